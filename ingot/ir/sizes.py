"""Sizes that are data: small integer tensors whose elements are known as dims, and those that become dims at run time.

Networks may compute sizes as tensors: `x.view(concat([shape(x, 0), …]))`. What is known of such a tensor before a run
follows from the ops that made it (`Op.on_dims`), so that it can stand wherever a size is wanted. Where an element is
data, it becomes an unbacked dim: `sizes_of` binds it when the network runs.
"""
from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dimension
from ingot.dtypes import DType
from ingot.errors import DimError, OpError, ValueFault
from ingot.ir.op import OPS, Op
from ingot.ir.spec import Spec

Array = np.ndarray[Any, Any]

MAX_KNOWN = 64  # elements of a tensor that are followed
MAX_BOUND = 8  # elements of one tensor that can become unbacked dims: it is a shape at most
MAX_SIZE = 1 << 46  # of a dim that is data: what programs can hold
SHOWN = 3  # ops of an expression that its text shows, one inside the other


class Tensor:
    """What a Value is to whom computes sizes. `known`: its elements, an object array of dims (or bools), or None."""

    __slots__ = ("known",)
    known: Array | None


def follow(op: Op, inputs: tuple[Any, ...], specs: tuple[Any, ...]) -> Array | None:
    """The elements of an op's only result as dims, where they follow from those of its operands."""
    if op.on_dims is None or len(specs) != 1 or not _small(specs[0], MAX_KNOWN):
        return None
    operands = [v.spec if op.reads_shapes else _elements(v) for v in inputs]
    if any(x is None for x in operands):
        return None
    try:
        found = np.asarray(op.on_dims(*operands), object)
    except (DimError, ValueFault):  # a choice that only a run makes, or a fault that it shows
        return None
    return found if all(_fits(x, specs[0].dtype) for x in found.flat) else None


def _small(spec: Any, most: int) -> bool:
    if type(spec) is not Spec or not (spec.dtype.is_integer or spec.dtype is dtypes.bool_):
        return False
    count: Dimension = spec.elements  # 0 also where only one of several sizes is known
    return isinstance(count, int) and count <= most and spec.is_fixed


def _fits(x: Dimension, dtype: DType) -> bool:
    """Whether a dtype holds an element, as far as it is known: there integers wrap."""
    if not isinstance(x, int):
        return dtype.is_integer
    low = 0 if dtype.kind in ("uint", "bool") else -(2 ** (dtype.bits - 1))
    return bool(low <= x < low + 2**dtype.bits)


def _elements(value: Any) -> Array | None:
    """What is known of a value: of constants, and of all values that carry numbers, everything."""
    if value.array is None:
        return value.known  # type: ignore[no-any-return]
    return np.asarray(value.array.tolist(), object) if _small(value.spec, MAX_KNOWN) else None


def elements(value: Any) -> Array:
    """The elements of an integer tensor as dims. Those that are data are bound at run time, where they have to be 0 or
    more; what is computed of them is an expression of these dims.

    Raises OpError for a tensor of another dtype, and for one with too many elements.
    """
    if not value.dtype.is_integer:
        raise OpError(f"{_text(value)} is {value.spec}: sizes are integers; cast it first")
    todo = [value]
    while todo:
        one = todo[-1]
        waiting = [v for v in _sources(one) if _elements(v) is None] if _elements(one) is None else []
        todo += waiting
        if waiting:
            continue
        todo.pop()
        if _elements(one) is None:
            one.known = follow(one.node.op, one.node.inputs, (one.spec,)) if _sources(one) else None
            if one.known is None:
                one.known = _bind(one)
    found = _elements(value)
    assert found is not None
    return found


def _sources(value: Any) -> tuple[Any, ...]:
    """The values from which its elements can be followed once theirs are dims; (): it has to become dims itself."""
    node = value.node
    if node is None or node.op.on_dims is None or len(node.outputs) != 1:
        return ()
    for v in node.inputs:
        if _elements(v) is None and not (_small(v.spec, MAX_BOUND) and v.dtype.is_integer):
            return ()
    return tuple(node.inputs)


def _bind(value: Any) -> Array:
    if not _small(value.spec, MAX_BOUND):
        raise OpError(f"{_text(value)} is {value.spec}: at most {MAX_BOUND} numbers that only a run shows can become "
                      "sizes; select those that are meant")
    if value.spec.elements == 0:
        return np.empty(value.shape, object)
    if value.network.detached:  # what uses the size need not use a value beside it: it would be bound nowhere
        raise OpError(f"{_text(value)} is made of sizes alone, and has met no tensor of the network yet: compute it as "
                      "an expression of dims")
    binder: Any = OPS["sizes_of"]
    made = value.network.emit(binder(text=_text(value)), (value,))
    found = [v.shape[0] for v in (made if isinstance(made, tuple) else (made,))]
    return np.asarray(found, object).reshape(value.shape)


def _text(value: Any, depth: int = 0) -> str:
    """The expression that makes a value: `sub(length, 2)`."""
    if value.array is not None and value.array.size == 1:
        return str(value.array.item())
    node = value.node
    if node is None or depth == SHOWN:
        return "…" if value.name.isdecimal() else value.name
    return f"{node.op.name}({', '.join(_text(v, depth + 1) for v in node.inputs)})"


# ------------------------------------------------------------------------------------------------ sizes that are given
def is_data(x: Any) -> bool:
    """Whether sizes are given by a tensor or an array, alone or within a list."""
    if isinstance(x, tuple | list):
        return any(isinstance(item, Tensor | np.ndarray) for item in x)
    return isinstance(x, Tensor | np.ndarray)


def as_shape(x: Any) -> tuple[Dimension, ...]:
    """Sizes from what users write: a tensor or array of integers, or a list of ints, dims, and such tensors."""
    if isinstance(x, tuple | list):
        return tuple(d for item in x for d in as_shape(item))
    if isinstance(x, Tensor):
        return tuple(elements(x).flat)
    if isinstance(x, np.ndarray):
        if x.dtype.kind not in "iu":
            raise OpError(f"an array of {x.dtype} gives no sizes: sizes are integers")
        return tuple(x.ravel().tolist())
    return (dims.as_dim(x),)


def as_size(x: Any) -> Dimension:
    """One size from what users write: an int, a dim, or a tensor or array of one integer."""
    found = as_shape(x)
    if len(found) != 1:
        shape = "" if isinstance(x, tuple | list) else f" of shape {list(x.shape)}"
        raise OpError(f"one size is wanted, and not a {type(x).__name__}{shape}")
    return found[0]
