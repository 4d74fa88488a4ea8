"""Ops that are there for what they refuse: they end a run whose values are not what the network's author said."""
from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot.errors import ValueFault
from ingot.ir import Case, Op, Spec, op, require
from ingot.ops.common import Array, boolean, f32


@op("assertion")
class Assertion(Op):
    """True; a condition (bool) that does not hold everywhere is a fault at run time, which says `message`.

    It stays in a network though nobody reads it.
    """

    message: str = ""
    in_scope = "keeps"
    acts = True
    cases = (
        Case("one condition", (boolean(),), {"message": "the batch must be even"}),
        Case("many", (boolean("T", 3),)),
        Case("none", (boolean(0),)),
        Case("a number", (f32(3),), error="condition must be bool"),
    )

    def infer(self, condition: Spec) -> Spec:
        require(condition.dtype is dtypes.bool_, "condition must be bool; compare it with 0 first")
        return Spec((), dtypes.bool_)

    def reference(self, condition: Array) -> Array:
        if not condition.all():
            raise ValueFault(self.fault)
        return np.array(True)

    def torch(self, torch: Any, condition: Any) -> Any:
        return torch.ones((), dtype=torch.bool, device=condition.device)

    def torch_fault(self, torch: Any, condition: Any) -> Any:
        return ~condition.all()

    @property
    def fault(self) -> str:
        return f"assertion failed{': ' if self.message else ''}{self.message}"

    def sample(self, rng: np.random.Generator, condition: Spec) -> tuple[Array, ...]:
        return (np.ones(condition.evaluate({}), np.bool_),)
