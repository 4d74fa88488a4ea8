"""What a target tells the planner about one node: a kernel call, or the reason why it has none."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from ingot.ir import Node


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
    """A back end: for each op name the function that picks a kernel. Ops that are missing have none."""

    name: str
    table: Mapping[str, Choose]

    def choose(self, node: Node) -> KernelCall | Refusal:
        """The kernel call of a node, or why there is none."""
        pick = self.table.get(node.op.name)
        return pick(node) if pick else Refusal(f"the {self.name} target has no kernel for {node.op.name}")
