"""The scope of a precision: ops that are recorded inside compute in its type, by casts that the network shows."""
from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.ir.op import Op
from ingot.ir.value import Value


class Scope:
    """A scope under way: its type, and the values that are known to be computed in it."""

    def __init__(self, dtype: DType) -> None:
        self.dtype = dtype
        self.inside: set[Value] = set()

    def to_cast(self, op: Op, operands: Sequence[Any]) -> tuple[int, ...]:
        """The operands of an op that have to be cast first, by their places.

        Also those of the scope's own type, from outside: a build in another precision changes it, and a cast stays.
        """
        if op.in_scope == "keeps" or any(isinstance(x, Value) and x.is_state for x in operands):
            return ()
        floats = [i for i, x in enumerate(operands) if _is_float(x)]
        if op.in_scope == "moves" and len(floats) < 2:
            return ()
        return tuple(i for i in floats if not self.holds(operands[i]))

    def holds(self, x: Any) -> bool:
        """Whether an operand is known to be computed in this scope."""
        return isinstance(x, Value) and x in self.inside

    def note(self, results: Any, operands: Sequence[Any]) -> None:
        """Writes down what an op gave for operands of which all floats are in the scope."""
        if all(self.holds(x) for x in operands if _is_float(x)):
            several = results if isinstance(results, tuple) else (results,)
            self.inside.update(v for v in several if isinstance(v, Value) and v.dtype is self.dtype)


def _is_float(x: Any) -> bool:
    if isinstance(x, np.ndarray | np.generic):
        return dtypes.get(x.dtype) in dtypes.FLOATS
    return isinstance(x, Value) and x.spec is not None and x.dtype in dtypes.FLOATS


_scope: ContextVar[Scope | None] = ContextVar("ingot_precision", default=None)


def scope() -> Scope | None:
    """The innermost scope of this thread."""
    return _scope.get()


@contextmanager
def precision(dtype: DType | str) -> Iterator[None]:
    """Ops recorded or computed inside compute in float32, bfloat16 or float16, whatever the floats that they are given.

    Their float operands are cast to it, and results are of this type: nothing is cast back on the way out, and meeting
    a tensor of another type is the usual error. Casts stay when the network is built in another precision, so what is
    float32 in here remains so. Ops that only move elements (views, lookups, orders) leave the type of a single operand;
    explicit casts, quantisation, control flow and the KV cache keep theirs. Scopes nest, and hold for one thread.

    Raises OpError for another type.
    """
    found = dtypes.get(dtype)
    if found not in dtypes.PRECISIONS:
        raise OpError(f"precision: {found.name} is none of {', '.join(d.name for d in dtypes.PRECISIONS)}")
    token = _scope.set(Scope(found))
    try:
        yield
    finally:
        _scope.reset(token)


@contextmanager
def unscoped() -> Iterator[None]:
    """Inside, no scope holds: for changes of networks that are recorded already."""
    token = _scope.set(None)
    try:
        yield
    finally:
        _scope.reset(token)
