"""Floats of 8 bits in exported programs: their bits in uint8, which calls move; what computes converts them first."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.frontends.narrow import Narrow, decoded, encoded, is_narrow
from ingot.frontends.torch_export.aten import Entry, Unsupported
from ingot.frontends.torch_export.aten.promotion import cast
from ingot.ir import F, Network, Value

CONVERSIONS = frozenset((
    "aten.to.dtype", "aten.to.dtype_layout", "aten._to_copy.default", "aten.to.device", "aten.to.other",
    "aten.type_as.default", "prims.convert_element_type.default",
))  # fmt: skip
MOVES = frozenset((
    "alias", "cat", "chunk", "clone", "concat", "contiguous", "detach", "detach_", "expand", "flatten", "flip",
    "gather", "index", "index_select", "lift_fresh_copy", "movedim", "narrow", "permute", "repeat", "reshape", "roll",
    "select", "slice", "split", "split_with_sizes", "squeeze", "stack", "swapaxes", "t", "transpose", "unbind",
    "unflatten", "unsqueeze", "view", "_unsafe_view",
))  # fmt: skip


def concerns(value: Any) -> bool:
    """Whether an argument is, or names, a float of 8 bits."""
    if type(value) is tuple:
        return any(map(concerns, value))
    return isinstance(value, Narrow) or (type(value) is DType and is_narrow(value))


def call(op: str, entry: Entry | None, network: Network, arguments: Mapping[str, Any], run: Any) -> Any:
    """The results of an op that concerns such floats. `run`: calls an entry on arguments.

    Raises:
        Unsupported: it computes with them.
    """
    x = arguments.get("self", arguments.get("a"))
    if op in CONVERSIONS and isinstance(x, Value | Narrow):
        wanted = getattr(arguments.get("other"), "dtype", arguments.get("dtype") or x.dtype)
        if type(wanted) is not DType or wanted.kind == "complex":
            raise Unsupported(f"no conversion to {wanted!r:.40}")
        return _converted(x, wanted)
    if op == "aten.view.dtype" and isinstance(x, Value | Narrow) and type(arguments.get("dtype")) is DType:
        return _seen_as(x, arguments["dtype"])
    types = {n.dtype for n in _all(arguments.values())}
    if entry is None or op.split(".")[1] not in MOVES or len(types) != 1:  # entries have names of three parts
        raise Unsupported("it computes with floats of 8 bits, which ingot only converts and moves: convert them first")
    (dtype,) = types
    found = run(entry, network, {name: _bits(value) for name, value in arguments.items()})
    return tuple(Narrow(y, dtype) for y in found) if isinstance(found, tuple) else Narrow(found, dtype)


def _converted(x: Value | Narrow, dtype: DType) -> Any:
    """As torch 2.13 does: float8_e4m3fn stays in its range, other types have infinities or NaN beyond theirs."""
    if x.dtype is dtype:
        return x
    numbers = decoded(x) if isinstance(x, Narrow) else x
    if not is_narrow(dtype):
        return cast(numbers, dtype)
    numbers = cast(numbers, dtypes.float32)
    if dtype is dtypes.float8_e8m0fnu:  # what is in the middle of two goes up
        numbers = F.mul(numbers, float(np.nextafter(np.float32(1), np.float32(2))))
    return encoded(numbers, dtype, saturate=dtype is dtypes.float8_e4m3fn)


def _seen_as(x: Value | Narrow, dtype: DType) -> Any:
    """The same bits as another type."""
    bits = x.value if isinstance(x, Narrow) else x
    if not is_narrow(dtype):
        return bits if dtype is dtypes.uint8 else F.bitcast(bits, dtype=dtype)
    return Narrow(bits if bits.dtype is dtypes.uint8 else F.bitcast(bits, dtype=dtypes.uint8), dtype)


def _bits(value: Any) -> Any:
    if type(value) is tuple:
        return tuple(map(_bits, value))
    return value.value if isinstance(value, Narrow) else value


def _all(values: Any) -> list[Narrow]:
    found: list[Narrow] = []
    for value in values:
        if isinstance(value, Narrow):
            found.append(value)
        elif type(value) is tuple:
            found += _all(value)
    return found
