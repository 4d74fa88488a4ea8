"""Random numbers in a network. An engine is data, and gives the same ones in every run: of a seed and a place."""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.functional.reduction import argmax, cumsum
from ingot.functional.shape import Sizes, expand_dims, select
from ingot.functional.tensor import Tensor
from ingot.ir import F, spec
from ingot.ir.sizes import as_shape

# The mixing function of splitmix64 (Steele, Lea and Flood, Fast splittable pseudorandom number generators, 2014).
_STEP, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB


def rand(shape: Sizes, low: float = 0, high: float = 1, dtype: DType | str = "float32", *, seed: int = 0) -> Tensor:
    """Numbers spread evenly over low..high, each a multiple of (high − low) / 2²⁴ above low.

    The same in every run, so that runs can be repeated: for others give another `seed`, or random numbers as an input.

    Args:
        shape: sizes, or a tensor of them.

    Raises:
        OpError: a dtype that is no float, a low that is above high.
    """
    kind = dtypes.get(dtype)
    if kind not in dtypes.FLOATS:
        raise OpError(f"rand: random numbers are floats, not {kind.name}; cast them")
    if not low <= high:
        raise OpError(f"rand: low {low} is above high {high}")
    sizes = as_shape(shape)
    wide = dtypes.uint64

    def number(value: int) -> Any:
        return np.array(value % 2**64, wide.numpy)

    def folded(x: Tensor, bits: int) -> Tensor:
        return F.logical_xor(x, F.floordiv(x, number(2**bits)))

    state = F.cast(F.iota(size=spec.elements(sizes), start=0, dtype=dtypes.int64), wide)
    state = F.mul(F.add(state, number((seed * 2 + 1) * 0xD1342543DE82EF95)), number(_STEP))
    mixed = F.mul(folded(F.mul(folded(state, 30), number(_FIRST)), 27), number(_SECOND))
    part = F.cast(F.floordiv(folded(mixed, 31), number(2**40)), "float32")  # 24 bits: exact
    even = F.add(F.mul(part, np.float32((high - low) / 2**24)), np.float32(low))
    return F.reshape(even if kind is dtypes.float32 else F.cast(even, kind), sizes)


def categorical_sample(probs: Tensor, rand_data: Tensor | None = None) -> Tensor:
    """An index (int64) along the last dimension, drawn by the probabilities there, which need not add up to 1.

    Args:
        probs: floats [..., n], not negative, with a sum above 0.
        rand_data: a number of 0..1 for each draw, [...], of the same dtype. None: `rand`, the same in every run.
    """
    if not len(probs.shape):
        raise OpError("categorical_sample: probs needs a last dimension to draw from")
    drawn = rand(tuple(probs.shape[:-1]), dtype="float32") if rand_data is None else F.cast(rand_data, "float32")
    up_to = cumsum(F.cast(probs, "float32"), -1)
    # Compared with a share of the whole as it was added up: the last one is reached whatever the rounding.
    bound = F.mul(drawn, select(up_to, -1, -1))
    reached = F.logical_and(F.greater_equal(up_to, expand_dims(bound, -1)), F.greater(up_to, np.float32(0)))
    return argmax(F.cast(reached, "float32"), -1)
