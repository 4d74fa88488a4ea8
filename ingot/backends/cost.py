"""What a kernel call costs at least: the call with its shapes, and the counts that kernels' declarations are made of.

Arithmetic is counted in operations on numbers (a multiply-add is two, an exponential one). Bytes are those that have to
be moved: the operands and the results, each once, whatever the caches do.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingot import dtypes

Tensor = tuple[str, tuple[int, ...]]  # dtype and shape


@dataclass(frozen=True)
class Attended:
    """What the tokens of a step see of the KV cache: pairs of query and key tokens, and keys read."""

    pairs: int
    keys: int


@dataclass(frozen=True)
class Call:
    """One kernel call with its shapes. `bytes`: of all operands and results."""

    kernel: str
    params: Mapping[str, Any]
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    bytes: int
    attended: Attended | None = None

    @property
    def x(self) -> tuple[int, ...]:
        """The shape of the first operand."""
        return self.inputs[0][1]

    @property
    def y(self) -> tuple[int, ...]:
        """The shape of the first result."""
        return self.outputs[0][1]


def size(shape: tuple[int, ...]) -> int:
    """How many elements."""
    return math.prod(shape)


def nbytes(tensor: Tensor) -> int:
    """How many bytes."""
    return math.prod(tensor[1]) * dtypes.get(tensor[0]).bits // 8


def steps(call: Call) -> int:
    """The operations that its scalar expression does per element."""
    return sum(step[0] not in ("input", "const", "wrap") for step in call.params["expression"]["steps"])


def taps(call: Call) -> int:
    """The positions of its window."""
    return math.prod(call.params["kernel"])
