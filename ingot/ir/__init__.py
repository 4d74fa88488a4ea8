"""The intermediate representation: specs, values, ops, networks, and what can be done with any of them."""
from __future__ import annotations

from ingot.ir.attribute import Hole
from ingot.ir.call import apply, op
from ingot.ir.expr import ExprBuilder, Scalar
from ingot.ir.network import Network, Node
from ingot.ir.op import OPS, Case, Op, require
from ingot.ir.spec import Spec, StateSpec
from ingot.ir.value import F, Value, functions

__all__ = ["OPS", "Case", "ExprBuilder", "F", "Hole", "Network", "Node", "Op", "Scalar", "Spec", "StateSpec", "Value", "apply",
           "functions", "op", "require"]
