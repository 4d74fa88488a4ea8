"""The CPU target: the kernels of the native table, declared family by family.

A declaration says what a kernel takes by element type, strides and what its functions decline. The kernel itself checks
everything again when an engine is loaded.
"""

from __future__ import annotations

from ingot.backends import device
from ingot.backends.base import Target
from ingot.backends.cpu import (
    attention,
    elementwise,
    fourier,
    movement,
    norm,
    order,
    product,
    recurrent,
    reduce,
    spatial,
    state_space,
)
from ingot.backends.cpu.passes import passes

CPU = Target(
    device.CPU,
    (
        *elementwise.KERNELS,
        *product.KERNELS,
        *spatial.KERNELS,
        *norm.KERNELS,
        *reduce.KERNELS,
        *movement.KERNELS,
        *order.KERNELS,
        *attention.KERNELS,
        *recurrent.KERNELS,
        *state_space.KERNELS,
        *fourier.KERNELS,
    ),
    passes,
)
