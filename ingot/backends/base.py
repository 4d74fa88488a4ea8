"""A target as the compiler sees it: its steps, and for each node a kernel call, or the reason why there is none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ingot.backends.device import Runtime
from ingot.ir import Node
from ingot.passes.pipeline import Lowers, Step


class Reads(Enum):
    """What strides a kernel reads an operand with, or writes its result."""

    ANY = "any strides"
    ROWS = "a dense last dimension and rows a fixed distance apart"
    INNER = "a dense last dimension"
    DENSE = "row-major without gaps"


@dataclass(frozen=True)
class KernelCall:
    """A kernel for a node: its name and parameters, how it reads each operand (the last entry repeats), and with what
    strides it writes its result."""

    kernel: str
    params: Mapping[str, Any] = field(default_factory=dict)
    reads: tuple[Reads, ...] = (Reads.ANY,)
    version: int = 1
    writes: Reads = Reads.DENSE


@dataclass(frozen=True)
class Refusal:
    """Why no kernel of the target takes a node."""

    why: str


Choose = Callable[[Node], KernelCall | Refusal]


@dataclass(frozen=True)
class Target:
    """A back end. What a run needs of it (name, limits, how a session opens) is its `runtime`.

    table: for each op name the function that picks a kernel; ops that are missing have none. lowering: makes its steps.
    """

    runtime: Runtime
    table: Mapping[str, Choose]
    lowering: Callable[[Lowers], Sequence[Step]]

    @property
    def name(self) -> str:
        """As people write it."""
        return self.runtime.name

    @property
    def steps(self) -> Sequence[Step]:
        """What makes any network one that the target runs."""
        return self.lowering(self)

    def choose(self, node: Node) -> KernelCall | Refusal:
        """The kernel call of a node, or why there is none."""
        pick = self.table.get(node.op.name)
        return pick(node) if pick else Refusal(f"the {self.name} target has no kernel for {node.op.name}")

    def refuses(self, node: Node) -> str | None:
        """Why no kernel takes a node; None when one does."""
        choice = self.choose(node)
        return choice.why if isinstance(choice, Refusal) else None
