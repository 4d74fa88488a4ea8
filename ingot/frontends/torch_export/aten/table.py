"""The table of ATen ops: one function per op, which composes ops of ingot and means exactly what torch's op means.

    @aten("aten.softmax.int")
    def softmax(self: Tensor, dim: int, dtype: MaybeDType = None) -> Tensor: ...

Parameters have the names of torch's schema. Their annotations are checked against what a file gives, so that an entry
sees only values of its types. What an entry cannot take it refuses with `Unsupported`, in one sentence.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from reprlib import repr as brief
from typing import Any, NamedTuple, TypeVar

from ingot.dims import Dimension, Expr
from ingot.dtypes import DType
from ingot.errors import IngotError
from ingot.frontends.torch_export.graph import Setting
from ingot.ir import Network, Value

# What entries annotate their parameters with; each has a converter below.
Tensor = Value
MaybeTensor = Value | None
Tensors = tuple[Value, ...]
MaybeTensors = tuple[Value | None, ...]
Scalar = bool | int | float | Expr
MaybeScalar = bool | int | float | Expr | None
Operand = Value | bool | int | float | Expr  # torch takes a number wherever a tensor meets another
MaybeOperand = Value | bool | int | float | Expr | None
MaybeInt = int | None
Ints = tuple[int, ...]
MaybeInts = tuple[int, ...] | None
Size = Dimension
MaybeSize = Dimension | None
Sizes = tuple[Dimension, ...]
MaybeFloat = float | None
MaybeFloats = tuple[float, ...] | None
MaybeBool = bool | None
MaybeSizes = tuple[Dimension, ...] | None
MaybeDType = DType | None
MaybeStr = str | None
Result = Any  # a tensor: ops are found by name, so that their results have no type
Results = tuple[Any, ...]  # several; None stands for one that ingot does not compute

F = TypeVar("F", bound=Callable[..., Any])


class Unsupported(Exception):
    """An op, or a way of using it, that ingot has no counterpart for; the message completes "aten.x: …"."""


class Entry(NamedTuple):
    """One op of the table. `views`: the result may share its first operand's memory in torch."""

    function: Callable[..., Any]
    kinds: dict[str, Callable[[Any], Any]]
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
        kinds = {p.name: _KINDS[p.annotation] for p in parameters}
        required = tuple(p.name for p in parameters if p.default is p.empty)
        for name in names:
            assert name not in TABLE, name
            TABLE[name] = Entry(function, kinds, required, takes_network, views)
        return function

    return enter


def call(entry: Entry, network: Network, arguments: dict[str, Any]) -> Any:
    """The results of an op on resolved arguments. Raises Unsupported for arguments that it does not take."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        if name in entry.kinds:
            try:
                found[name] = entry.kinds[name](value)
            except TypeError as e:
                raise Unsupported(f"{name} {e}, not {_shown(value)}") from None
        elif not _says_nothing(name, value):
            raise Unsupported(f"the argument {name} = {_shown(value)} is not supported")
    if missing := [name for name in entry.required if name not in found]:
        raise Unsupported(f"the arguments {', '.join(missing)} are missing")
    try:
        return entry.function(network, **found) if entry.takes_network else entry.function(**found)
    except IngotError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as e:
        raise Unsupported(f"its arguments do not fit together ({str(e)[:200]})") from e


def _shown(value: Any) -> str:
    return f"%{value.name}" if isinstance(value, Value) else brief(value)


# Where and how torch computes, and values that are torch's own defaults: nothing that changes a number.
_IGNORED = {
    "device", "layout", "pin_memory", "memory_format", "non_blocking", "copy", "cudnn_enabled", "cudnn_enable",
    "momentum", "padding_idx", "scale_grad_by_freq", "sparse", "path", "inplace", "benchmark", "deterministic",
}  # fmt: skip


def _says_nothing(name: str, value: Any) -> bool:
    return name in _IGNORED or value is None or isinstance(value, Setting)


# -------------------------------------------------------------------------------------------------- converters


def _one(words: str, *types: type) -> Callable[[Any], Any]:
    def convert(value: Any) -> Any:
        if type(value) not in types:
            raise TypeError(f"must be {words}")
        return value

    return convert


def _float(value: Any) -> float:
    if type(value) not in (int, float):
        raise TypeError("must be a number known at export")
    return float(value)


def _size(value: Any) -> Dimension:
    if type(value) is not int and not isinstance(value, Expr):
        raise TypeError("must be a size")
    return value


def _scalar(value: Any) -> Any:
    if type(value) not in (bool, int, float) and not isinstance(value, Expr):
        raise TypeError("must be a number")
    return value


def _operand(value: Any) -> Any:
    return value if type(value) is Value else _scalar(value)


def _several(convert: Callable[[Any], Any], single: bool = False) -> Callable[[Any], Any]:
    def run(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple:
            if not single:
                raise TypeError("must be a list")
            value = (value,)
        return tuple([convert(item) for item in value])

    return run


def _maybe(convert: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else convert(value)


_tensor = _one("a tensor", Value)
_int = _one("an integer known at export", int)
_bool = _one("true or false", bool)
_dtype = _one("an element type", DType)
_ints = _several(_int, single=True)
_KINDS: dict[str, Callable[[Any], Any]] = {
    "Tensor": _tensor, "MaybeTensor": _maybe(_tensor), "Tensors": _several(_tensor),
    "MaybeTensors": _several(_maybe(_tensor)), "Scalar": _scalar, "MaybeScalar": _maybe(_scalar), "Operand": _operand,
    "MaybeOperand": _maybe(_operand), "MaybeStr": _maybe(_one("a word", str)),
    "int": _int, "MaybeInt": _maybe(_int), "Ints": _ints, "MaybeInts": _maybe(_ints),
    "Size": _size, "MaybeSize": _maybe(_size), "Sizes": _several(_size, single=True),
    "MaybeSizes": _maybe(_several(_size, single=True)),
    "float": _float, "MaybeFloat": _maybe(_float), "MaybeFloats": _maybe(_several(_float)),
    "bool": _bool, "MaybeBool": _maybe(_bool), "str": _one("a word", str), "MaybeDType": _maybe(_dtype),
}  # fmt: skip
