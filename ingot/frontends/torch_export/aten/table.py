"""The table of ATen ops: one function per op, which composes ops of ingot and means exactly what torch's op means.

    @aten("aten.softmax.int")
    def softmax(self: Tensor, dim: int, dtype: MaybeDType = None) -> Tensor: ...

Parameters have the names of torch's schema; ingot.frontends.table has the kinds that they are annotated with.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

from ingot import dtypes
from ingot.dims import Expr
from ingot.dtypes import DType
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
    MaybeScalar,
    MaybeSize,
    MaybeSizes,
    MaybeStr,
    MaybeTensor,
    MaybeTensors,
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
    maybe,
    one,
    several,
    shown,
)
from ingot.frontends.torch_export.graph import Setting
from ingot.frontends.torch_export.reals import Real
from ingot.ir import Network, Spec, Value
from ingot.ir.spec import Shape

__all__ = [
    "COMPLEX_TABLE", "TABLE", "AnyOperand", "AnyTensor", "AnyTensors", "Complex", "Entry", "Ints", "Known", "MaybeBool",
    "MaybeDType", "MaybeFloat", "MaybeFloats", "MaybeInt", "MaybeInts", "MaybeOperand", "MaybeQuantity", "MaybeScalar",
    "MaybeSize", "MaybeSizes", "MaybeStr", "MaybeTensor", "MaybeTensors", "Operand", "Quantity", "Result", "Results",
    "Scalar", "Size", "Sizes", "Tensor", "Tensors", "Unsupported", "aten", "call", "entry_for", "few",
]  # fmt: skip

F = TypeVar("F", bound=Callable[..., Any])


class Entry(NamedTuple):
    """One op of the table. `views`: the result may share its first operand's memory in torch."""

    function: Callable[..., Any]
    kinds: dict[str, Convert]
    required: tuple[str, ...]
    takes_network: bool
    views: bool


@dataclass(frozen=True, eq=False)
class Complex:
    """A complex tensor of the program: pairs (real, imaginary) in one dimension more."""

    pairs: Value

    @property
    def shape(self) -> Shape:
        return self.pairs.shape[:-1]

    @property
    def dtype(self) -> DType:
        return dtypes.complex128 if self.pairs.dtype is dtypes.float64 else dtypes.complex64

    @property
    def spec(self) -> Spec:
        return Spec(self.shape, self.dtype)

    def __repr__(self) -> str:
        return f"%{self.pairs.name}"


class Known(NamedTuple):
    """A constant or a stored tensor of the program, and its numbers."""

    value: Value
    array: Any


Quantity = Value | Known | int | float  # a scale, a zero point, or what they are given by
MaybeQuantity = Quantity | None
Operand = Value | bool | int | float | Expr | Real  # torch takes a number wherever a tensor meets another
MaybeOperand = Operand | None
AnyTensor = Value | Complex
AnyTensors = tuple[AnyTensor, ...]
AnyOperand = Value | Complex | bool | int | float | complex | Expr



def _operand(value: Any) -> Any:
    return value if type(value) in (Value, Real) else KINDS["Scalar"](value)


_any_tensor = one("a tensor", Value, Complex)
_quantity = one("a tensor or a number", Value, Known, int, float)
_KINDS: dict[str, Convert] = {
    **KINDS, "Operand": _operand, "MaybeOperand": maybe(_operand), "DType": one("an element type", DType),
    "Quantity": _quantity, "MaybeQuantity": maybe(_quantity),
}  # fmt: skip
_COMPLEX_KINDS: dict[str, Convert] = {
    **_KINDS, "Complex": one("a complex tensor", Complex), "AnyTensor": _any_tensor, "AnyTensors": several(_any_tensor),
    "AnyOperand": lambda value: value if type(value) in (Value, Complex, complex) else KINDS["Scalar"](value),
}  # fmt: skip

TABLE: dict[str, Entry] = {}
COMPLEX_TABLE: dict[str, Entry] = {}  # the same for ops of which an operand, or the result, is complex
MAX_PIECES = 1 << 16  # that one call cuts a tensor into


def few(pieces: int) -> int:
    """The number of pieces, unless a file asks for more than any network has."""
    if pieces > MAX_PIECES:
        raise Unsupported(f"{pieces:,} pieces are more than any network has ({MAX_PIECES:,})")
    return pieces


def aten(*names: str, views: bool = False, complex: bool = False) -> Callable[[F], F]:
    """Enters a function under the names of the ops that it carries out, with `complex` those of complex numbers."""
    table, known = (COMPLEX_TABLE, _COMPLEX_KINDS) if complex else (TABLE, _KINDS)

    def enter(function: F) -> F:
        parameters = list(inspect.signature(function).parameters.values())
        takes_network = bool(parameters) and parameters[0].name == "network"
        parameters = parameters[takes_network:]
        kinds = {p.name: known[p.annotation] for p in parameters}
        required = tuple(p.name for p in parameters if p.default is p.empty)
        for name in names:
            assert name not in table, name
            table[name] = Entry(function, kinds, required, takes_network, views)
        return function

    return enter


def entry_for(op: str, arguments: Mapping[str, Any]) -> Entry | None:
    """The entry of an op for its resolved arguments. Raises Unsupported for complex numbers that it does not take."""
    if any(map(_is_complex, arguments.values())) or op not in TABLE:
        found = COMPLEX_TABLE.get(op)
        if found is None and op in TABLE:
            raise Unsupported("it computes with complex numbers, and ingot has no such op of them")
        return found
    return TABLE.get(op)


def _is_complex(value: Any) -> bool:
    if type(value) is tuple:
        return any(map(_is_complex, value))
    return type(value) in (Complex, complex) or type(value) is DType and value.kind == "complex"


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
