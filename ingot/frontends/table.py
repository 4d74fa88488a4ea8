"""What the tables of importers share: ops by name, each with one function whose parameters are annotated with the kinds
of what it takes. A file's arguments are converted to these kinds, so that an entry sees only values of its types.

What an entry cannot take it refuses with `Unsupported`, in one sentence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import repr as brief
from typing import Any

from ingot.dims import Dimension, Expr
from ingot.dtypes import DType
from ingot.errors import IngotError
from ingot.ir import Value

# What entries annotate their parameters with; each has a converter below.
Tensor = Value
MaybeTensor = Value | None
Tensors = tuple[Value, ...]
MaybeTensors = tuple[Value | None, ...]
Scalar = bool | int | float | Expr
MaybeScalar = bool | int | float | Expr | None
MaybeInt = int | None
Ints = tuple[int, ...]
MaybeInts = tuple[int, ...] | None
Size = Dimension
MaybeSize = Dimension | None
Sizes = tuple[Dimension, ...]
MaybeFloat = float | None
Floats = tuple[float, ...]
MaybeFloats = tuple[float, ...] | None
MaybeBool = bool | None
MaybeSizes = tuple[Dimension, ...] | None
MaybeDType = DType | None
MaybeStr = str | None
Strs = tuple[str, ...]
Result = Any  # a tensor: ops are found by name, so that their results have no type
Results = tuple[Any, ...]  # several; None stands for one that ingot does not compute

Convert = Callable[[Any], Any]


class Unsupported(Exception):
    """An op, or a way of using it, that ingot has no counterpart for; the message completes "NAME: …".

    remedy: what to do, where the message does not say it.
    """

    def __init__(self, message: str, remedy: str = "") -> None:
        super().__init__(message)
        self.remedy = remedy


NO_SUCH_OP = "there is no such op in ingot's table"


def converted(kinds: Mapping[str, Convert], arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments as the kinds of their parameters. Raises Unsupported for one that is of another."""
    found: dict[str, Any] = {}
    for name, value in arguments.items():
        try:
            found[name] = kinds[name](value)
        except TypeError as e:
            remedy = "leave the size that it is computed of out of dynamic" if isinstance(value, Expr) else ""
            raise Unsupported(f"{name} {e}, not {shown(value)}", remedy) from None
    return found


def carried_out(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """What an entry's function gives; what its arguments make it stumble over is Unsupported."""
    try:
        return function(*args, **kwargs)
    except IngotError:
        raise
    except (ArithmeticError, LookupError, TypeError, ValueError) as e:
        raise Unsupported(f"its arguments do not fit together ({str(e)[:200]})") from e


def shown(value: Any) -> str:
    """An argument, for messages: a tensor by its name, or by what makes it."""
    if not isinstance(value, Value):
        return brief(value)
    if value.node is None:
        kind = {"input": "the input", "parameter": "the weight"}.get(value.kind, "the constant")
        return "a constant" if value.name.isdecimal() else f"{kind} {value.name}"
    return f"the result of {value.node.op.name}" + (f" in {value.node.where}" if value.node.where else "")


# -------------------------------------------------------------------------------------------------- converters


def one(words: str, *types: type) -> Convert:
    """Takes a value of one of the types."""

    def convert(value: Any) -> Any:
        if type(value) not in types:
            raise TypeError(f"must be {words}")
        return value

    return convert


def several(convert: Convert, single: bool = False) -> Convert:
    """Takes a tuple of what `convert` takes, and with `single` one of it alone."""

    def run(value: Any) -> tuple[Any, ...]:
        if type(value) is not tuple:
            if not single:
                raise TypeError("must be a list")
            value = (value,)
        return tuple([convert(item) for item in value])

    return run


def maybe(convert: Convert) -> Convert:
    """Takes None too."""
    return lambda value: None if value is None else convert(value)


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


_tensor = one("a tensor", Value)
_int = one("an integer known at export", int)
_bool = one("true or false", bool)
_str = one("a word", str)
_dtype = one("an element type", DType)
_ints = several(_int, single=True)
KINDS: dict[str, Convert] = {
    "Tensor": _tensor, "MaybeTensor": maybe(_tensor), "Tensors": several(_tensor),
    "MaybeTensors": several(maybe(_tensor)), "Scalar": _scalar, "MaybeScalar": maybe(_scalar),
    "MaybeStr": maybe(_str), "Strs": several(_str),
    "int": _int, "MaybeInt": maybe(_int), "Ints": _ints, "MaybeInts": maybe(_ints),
    "Size": _size, "MaybeSize": maybe(_size), "Sizes": several(_size, single=True),
    "MaybeSizes": maybe(several(_size, single=True)),
    "float": _float, "MaybeFloat": maybe(_float), "Floats": several(_float), "MaybeFloats": maybe(several(_float)),
    "bool": _bool, "MaybeBool": maybe(_bool), "str": _str, "MaybeDType": maybe(_dtype),
}  # fmt: skip
