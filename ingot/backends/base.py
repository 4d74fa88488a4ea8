"""A target as the compiler sees it: its passes, and for each node a kernel call, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

from ingot.backends.device import Runtime
from ingot.backends.kernel import Kernel, KernelCall, Refusal, inner
from ingot.errors import NetworkError
from ingot.ir import Node
from ingot.ops.layouts import LAYOUTS, PLAIN
from ingot.passes.pipeline import Lowers, Pass


@dataclass(frozen=True)
class Target:
    """A back end. What a run needs of it (name, limits, how a session opens) is its `runtime`.

    kernels: of those that run an op the first that does not decline a node is its kernel. lowering: makes its passes.
    """

    runtime: Runtime
    kernels: tuple[Kernel, ...]
    lowering: Callable[[Lowers], Sequence[Pass]]

    def __post_init__(self) -> None:
        if unknown := sorted(self.layouts - LAYOUTS.keys() - {PLAIN}):
            raise NetworkError(f"{self.name}: its kernels read {', '.join(unknown)}, which no layout is called")

    @property
    def name(self) -> str:
        """As people write it."""
        return self.runtime.name

    @property
    def passes(self) -> Sequence[Pass]:
        """What makes any network one that the target runs."""
        return self.lowering(self)

    @cached_property
    def table(self) -> dict[str, list[Kernel]]:
        """The kernels that run an op, by the op's name. Ops that are missing have none."""
        found: dict[str, list[Kernel]] = {}
        for kernel in self.kernels:
            for op in kernel.runs:
                found.setdefault(op, []).append(kernel)
        return found

    @cached_property
    def layouts(self) -> frozenset[str]:
        """In which its kernels read stored operands, plain ones among them (ops/layouts.py)."""
        return frozenset(name for kernel in self.kernels for operand in kernel.operands for name in operand.layouts)

    @cached_property
    def by_name(self) -> dict[str, Kernel]:
        """Its kernels by their own names."""
        return {kernel.name: kernel for kernel in self.kernels}

    def choose(self, node: Node) -> KernelCall | Refusal:
        """The kernel call of a node, or why there is none."""
        declined = []
        name = inner(node.op).name
        for kernel in self.table.get(name, ()):
            choice = kernel.choose(node)
            if isinstance(choice, KernelCall):
                return choice
            declined.append(f"{kernel.name}: {choice.why}")
        return Refusal("; ".join(declined) or f"the {self.name} target has no kernel for {name}")

    def refuses(self, node: Node) -> str | None:
        """Why no kernel takes a node; None when one does."""
        choice = self.choose(node)
        return choice.why if isinstance(choice, Refusal) else None
