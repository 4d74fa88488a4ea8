"""Arithmetic on sizes: what exported programs compute with the shapes of their inputs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ingot import dims
from ingot.dims import Dimension, Expr
from ingot.frontends.torch_export.aten.table import Unsupported
from ingot.ir import Value
from ingot.ir.spec import axis_of, elements


class Unknown:
    """A condition whose truth depends on sizes that only a run shows."""

    def __repr__(self) -> str:
        return "a condition on sizes"


UNKNOWN = Unknown()


def _difference(a: Dimension, b: Dimension) -> tuple[float, float]:
    return dims.bounds(dims.add(a, dims.mul(b, -1)))


def _certain(yes: bool, no: bool) -> Any:
    return True if yes else False if no else UNKNOWN


def _less(a: Dimension, b: Dimension) -> Any:
    low, high = _difference(a, b)
    return _certain(high < 0, low >= 0)


def _not(a: Any) -> Any:
    return a if a is UNKNOWN else not a


def _equal(a: Dimension, b: Dimension) -> Any:
    low, high = _difference(a, b)
    return _certain(low == high == 0, high < 0 or low > 0)


def _and(a: Any, b: Any) -> Any:
    return False if a is False or b is False else _certain(a is True and b is True, False)


def _or(a: Any, b: Any) -> Any:
    return True if a is True or b is True else _certain(False, a is False and b is False)


def _power(a: Dimension, b: Dimension) -> Dimension:
    if not isinstance(b, int) or not 0 <= b <= 16:
        raise Unsupported("a size to a power beyond 16 is not supported")
    return dims.mul(1, *[a] * b)


_SIZES: dict[str, Callable[..., Any]] = {
    "_operator.add": dims.add,
    "_operator.sub": lambda a, b: dims.add(a, dims.mul(b, -1)),
    "_operator.mul": dims.mul,
    "_operator.floordiv": dims.floordiv,
    "_operator.mod": dims.mod,
    "_operator.neg": lambda a: dims.mul(a, -1),
    "_operator.pos": lambda a: a,
    "_operator.pow": _power,
    "_operator.eq": _equal,
    "_operator.ne": lambda a, b: _not(_equal(a, b)),
    "_operator.lt": _less,
    "_operator.ge": lambda a, b: _not(_less(a, b)),
    "_operator.gt": lambda a, b: _less(b, a),
    "_operator.le": lambda a, b: _not(_less(b, a)),
    "torch.sym_max": dims.maximum,
    "torch.sym_min": dims.minimum,
}
_TRUTHS: dict[str, Callable[..., Any]] = {"_operator.and_": _and, "_operator.or_": _or, "torch.sym_not": _not}
_SHAPES: dict[str, Callable[..., Any]] = {
    "aten.sym_size.int": lambda x, dim: x.shape[axis_of(dim, x.ndim(), "dim")],
    "aten.sym_size.default": lambda x: x.shape,
    "aten.sym_numel.default": lambda x: elements(x.shape),
}
# Checks that torch makes while running. What they state about shapes our own rules check when the network is built.
CHECKS = {
    "aten._assert_scalar.default", "aten._assert_tensor_metadata.default", "aten._assert_async.msg",
    "aten.sym_constrain_range.default", "aten.sym_constrain_range_for_size.default", "aten._assert_async.default",
}  # fmt: skip
NAMES = {*_SIZES, *_TRUTHS, *_SHAPES, *CHECKS}


def compute(op: str, arguments: tuple[Any, ...]) -> Any:
    """The result of an op on sizes. Raises Unsupported for operands that it does not take."""
    if op in CHECKS:
        return None
    if op in _SHAPES:
        if not arguments or not isinstance(arguments[0], Value) or any(type(a) is not int for a in arguments[1:]):
            raise Unsupported("it takes a tensor and a dimension")
        wanted: tuple[type, ...] = (Value, int)
    else:
        wanted = (bool, Unknown) if op in _TRUTHS else (int, Expr)
    if not all(isinstance(a, wanted) for a in arguments):
        raise Unsupported(f"it is supported on sizes only, not on {', '.join(type(a).__name__ for a in arguments)}")
    try:
        return (_SIZES.get(op) or _TRUTHS.get(op) or _SHAPES[op])(*arguments)
    except TypeError:
        raise Unsupported(f"it does not take {len(arguments)} operands") from None
