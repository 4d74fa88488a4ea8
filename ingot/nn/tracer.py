"""The recording under way: which network a Module's attributes belong to while its forward runs.

One per thread (a context variable), set by `nn.trace` and by calling a Module on arrays; everything else finds its
network from its operands.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ingot.errors import ModuleError
from ingot.ir import Network, Value
from ingot.ir.interpret import Eager
from ingot.nn.parameter import Parameter, State


class Tracer:
    """Maps the Parameters and States of a module tree to the values of one network, each made at its first use.

    Args:
        network: where values are recorded; an Eager one computes them at once.
        parameters, states, modules: (path, item) of the whole tree; a tied parameter under its first path.
    """

    def __init__(
        self,
        network: Network,
        parameters: Iterable[tuple[str, Parameter]],
        states: Iterable[tuple[str, State]],
        modules: Iterable[tuple[str, Any]],
    ) -> None:
        self.network = network
        self._names: dict[int, str] = {}
        for path, item in [*parameters, *states]:
            self._names.setdefault(id(item), path)
        self._paths = {id(module): path for path, module in modules}
        self._values: dict[int, Value] = {}

    @contextmanager
    def inside(self, module: Any) -> Iterator[None]:
        """What is recorded inside carries the module's path."""
        before = self.network.where
        self.network.where = self._paths.get(id(module), f"{before}.{type(module).__name__}".lstrip("."))
        try:
            yield
        finally:
            self.network.where = before

    def value(self, item: Parameter | State, attribute: str) -> Value:
        """The network's value for a Parameter or State that forward reads as `attribute`."""
        found = self._values.get(id(item))
        if found is None:
            found = self._values[id(item)] = self._make(item, attribute)
        return found

    def _make(self, item: Parameter | State, attribute: str) -> Value:
        name = self._names.get(id(item))
        if name is None:
            raise ModuleError(
                f"forward reads {attribute}, a {item} of a module outside the tree; assign it to an attribute, so "
                "that its weights have names"
            )
        if isinstance(item, State):
            name = item.name or name
        if isinstance(item, State):
            value = self.network.state(name, item.spec)
        else:
            value = self.network.parameter(name, item.spec)
        if isinstance(self.network, Eager):
            if item.value is None:
                raise ModuleError(f"{name}: {item} has no value; give it one with .value = array or load_state_dict")
            value.array = item.value
        return value


active: ContextVar[Tracer | None] = ContextVar("ingot_tracer", default=None)


@contextmanager
def activated(tracer: Tracer) -> Iterator[Tracer]:
    """Attributes of Modules read inside are values of the tracer's network."""
    token = active.set(tracer)
    try:
        yield tracer
    finally:
        active.reset(token)
