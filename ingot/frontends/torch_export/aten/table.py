"""The table of ATen ops: one function per op, which composes ops of ingot and means exactly what torch's op means.

    @aten("aten.softmax.int")
    def softmax(self: Tensor, dim: int, dtype: MaybeDType = None) -> Tensor: ...

Parameters have the names of torch's schema; ingot.frontends.table has the kinds that they are annotated with.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from ingot.frontends.table import (
    KINDS,
    Convert,
    Ints,
    MaybeBool,
    MaybeDType,
    MaybeFloat,
    MaybeFloats,
    MaybeInt,
    MaybeInts,
    MaybeOperand,
    MaybeScalar,
    MaybeSize,
    MaybeSizes,
    MaybeStr,
    MaybeTensor,
    MaybeTensors,
    Operand,
    Result,
    Results,
    Scalar,
    Size,
    Sizes,
    Tensor,
    Tensors,
    Unsupported,
    carried_out,
    converted,
    shown,
)
from ingot.frontends.torch_export.graph import Setting
from ingot.ir import Network

__all__ = [
    "TABLE", "Entry", "Ints", "MaybeBool", "MaybeDType", "MaybeFloat", "MaybeFloats", "MaybeInt", "MaybeInts",
    "MaybeOperand", "MaybeScalar", "MaybeSize", "MaybeSizes", "MaybeStr", "MaybeTensor", "MaybeTensors", "Operand",
    "Result", "Results", "Scalar", "Size", "Sizes", "Tensor", "Tensors", "Unsupported", "aten", "call", "few",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


class Entry(NamedTuple):
    """One op of the table. `views`: the result may share its first operand's memory in torch."""

    function: Callable[..., Any]
    kinds: dict[str, Convert]
    required: tuple[str, ...]
    takes_network: bool
    views: bool


TABLE: dict[str, Entry] = {}
MAX_PIECES = 1 << 16  # that one call cuts a tensor into


def few(pieces: int) -> int:
    """The number of pieces, unless a file asks for more than any network has."""
    if pieces > MAX_PIECES:
        raise Unsupported(f"{pieces:,} pieces are more than any network has ({MAX_PIECES:,})")
    return pieces


def aten(*names: str, views: bool = False) -> Callable[[F], F]:
    """Enters a function under the names of the ops that it carries out."""

    def enter(function: F) -> F:
        parameters = list(inspect.signature(function).parameters.values())
        takes_network = bool(parameters) and parameters[0].name == "network"
        parameters = parameters[takes_network:]
        kinds = {p.name: KINDS[p.annotation] for p in parameters}
        required = tuple(p.name for p in parameters if p.default is p.empty)
        for name in names:
            assert name not in TABLE, name
            TABLE[name] = Entry(function, kinds, required, takes_network, views)
        return function

    return enter


def call(entry: Entry, network: Network, arguments: dict[str, Any]) -> Any:
    """The results of an op on resolved arguments. Raises Unsupported for arguments that it does not take."""
    for name in sorted(arguments.keys() - entry.kinds.keys()):
        if not _says_nothing(name, arguments[name]):
            raise Unsupported(f"the argument {name} = {shown(arguments[name])} is not supported")
    found = converted(entry.kinds, {name: value for name, value in arguments.items() if name in entry.kinds})
    if missing := [name for name in entry.required if name not in found]:
        raise Unsupported(f"the arguments {', '.join(missing)} are missing")
    return carried_out(entry.function, *((network,) if entry.takes_network else ()), **found)


# Where and how torch computes, and values that are torch's own defaults: nothing that changes a number.
_IGNORED = {
    "device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "cudnn_enabled", "cudnn_enable",
    "momentum", "padding_idx", "scale_grad_by_freq", "sparse", "path", "inplace", "benchmark", "deterministic",
}  # fmt: skip


def _says_nothing(name: str, value: Any) -> bool:
    return name in _IGNORED or value is None or isinstance(value, Setting)
