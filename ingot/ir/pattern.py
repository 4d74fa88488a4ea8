"""Recording rewrite patterns: ordinary op code called on wildcards.

    pattern = Pattern.record(lambda gate, up: ops.mul(ops.silu(gate), up))
    pattern = Pattern.record(lambda x, w: ops.rms_norm(x, w, eps=Hole("eps")))

Because a call finds its network from its operands, a Pattern is a network whose `emit` records without inferring: its
values are wildcards of no known dtype or shape. A constant in a pattern (a number in the code) matches a constant of
equal value. What matching means is in passes/rewrite.py.
"""
from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.ir.network import Network, Node
from ingot.ir.op import Op
from ingot.ir.value import Value


class Unknown:
    """The spec of a wildcard. A pattern that asks for a shape or dtype must ask in its rule's `when` instead."""

    def __getattr__(self, name: str) -> Any:
        raise OpError(f"a pattern's values have no {name}: patterns are matched before anything is known; "
                      "test it in the rule's `when`")

    def __repr__(self) -> str:
        return "any"


class Wildcard(Unknown):
    """`dtype` of a wildcard: numbers beside it stay Python numbers."""

    dtype: DType | None = None


ANY = Wildcard()


class Pattern(Network):
    """A network of wildcards. `holes`: the pattern's operands by name; `roots`: what its function returned."""

    def __init__(self, name: str = "pattern") -> None:
        super().__init__(name)
        self.holes: dict[str, Value] = {}
        self.roots: tuple[Value, ...] = ()

    @classmethod
    def record(cls, function: Callable[..., Any]) -> Pattern:
        """The pattern of a function from operands (one per parameter) to a value or a tuple of values."""
        pattern = cls(getattr(function, "__name__", "pattern"))
        for name in inspect.signature(function).parameters:
            pattern.holes[name] = pattern.input(name, ANY)  # type: ignore[arg-type]
        result = function(*pattern.holes.values())
        pattern.roots = result if isinstance(result, tuple) else (result,)
        if any(getattr(r, "node", None) is None for r in pattern.roots):
            raise OpError(f"pattern {pattern.name} must return results of ops, got {result!r}")
        return pattern

    def emit(self, op: Op, inputs: tuple[Value, ...]) -> Any:
        """Records the call. Results number as the op says; for those that depend on the operands, one."""
        count = op.outputs or 1
        start = len(self.values)
        outputs = tuple(self._add(Value(self, f"p{start + i}", ANY, "result")) for i in range(count))
        node = Node(op, inputs, outputs)
        for value in outputs:
            value.node = node
        self.nodes.append(node)
        return outputs[0] if count == 1 else outputs

    def scalar(self, number: bool | int | float, dtype: DType | None) -> Value:
        """A number of whatever dtype the tensor beside it turns out to have; `array` is the number itself."""
        value = self._add(Value(self, f"p{len(self.values)}", ANY, "constant", array=number))
        self.constants.append(value)
        return value

