"""The intermediate representation: specs, values, ops, networks, and what can be done with any of them."""
from __future__ import annotations

from ingot.ir import steps  # noqa: F401 recipes name them
from ingot.ir.attribute import Hole
from ingot.ir.call import apply, op
from ingot.ir.expr import ExprBuilder, Scalar
from ingot.ir.interpret import Eager, interpret
from ingot.ir.network import Network, Node
from ingot.ir.op import OPS, Case, Op, require
from ingot.ir.pattern import Pattern
from ingot.ir.spec import Spec, StateSpec
from ingot.ir.value import F, Value, functions
from ingot.ir.verify import verify

__all__ = [
    "OPS",
    "Case",
    "Eager",
    "ExprBuilder",
    "F",
    "Hole",
    "Network",
    "Node",
    "Op",
    "Pattern",
    "Scalar",
    "Spec",
    "StateSpec",
    "Value",
    "apply",
    "functions",
    "interpret",
    "op",
    "require",
    "verify",
]
