"""Small networks for tests of passes, and the ops that passes leave of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dims import Dim
from ingot.ir import Network, Spec, Value
from tests import nets

Array = np.ndarray[Any, Any]
F32 = dtypes.float32


def ops_of(net: Network) -> list[str]:
    return [nets.op_name(n) for n in net.nodes]


def vector(build: Callable[[Value], Any], *, size: int = 6) -> Network:
    """A network of one input x [T, size] with the one output y."""
    net = Network("net")
    x = net.input("x", Spec((Dim("T"), size), F32))
    net.outputs["y"] = build(x)
    return net
