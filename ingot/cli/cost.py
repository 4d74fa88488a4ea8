"""What a kernel call has to do at least: its arithmetic, and the bytes that it has to move.

`FLOPS` has one line per kernel, in operations on numbers (a multiply-add is two, an exponential one). A kernel that is
not listed counts bytes only. Bytes are those of the operands and the results, each once, whatever the caches do; where
a kernel reads only part of an operand, `BYTES` says how much.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from ingot import dtypes

Tensor = tuple[str, tuple[int, ...]]  # dtype and shape


@dataclass(frozen=True)
class Attended:
    """What the tokens of a step see of the key-value cache: pairs of query and key tokens, and keys read."""

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

    @property
    def compute(self) -> str:
        """The number format whose peak bounds it: bfloat16 where products of bfloat16 are summed, else float32."""
        attention = ("attention", "paged_attention")
        products = ("matmul_packed", "matmul", "conv_packed", "conv_transpose_packed", "moe", *attention)
        return "bfloat16" if self.kernel in products and self.inputs[0][0] == "bfloat16" else "float32"


def size(shape: tuple[int, ...]) -> int:
    """How many elements."""
    return math.prod(shape)


def nbytes(tensor: Tensor) -> int:
    """How many bytes."""
    return math.prod(tensor[1]) * dtypes.get(tensor[0]).bits // 8


def steps(call: Call) -> int:
    """The operations that its scalar expression does per element."""
    return sum(step[0] not in ("input", "const", "wrap") for step in call.params["expr"]["steps"])


def taps(call: Call) -> int:
    """The positions of its window."""
    return math.prod(call.params["kernel"])


def _pairs(c: Call) -> int:
    """Pairs of query and key of dense attention, over all batches and heads; causal leaves out those after."""
    queries, keys = c.x[-2], c.inputs[1][1][-2]
    if not c.params["causal"]:
        return size(c.x[:-1]) * keys
    growing = min(queries, keys)  # query i sees the keys 0 … i
    return size(c.x[:-2]) * (growing * (growing + 1) // 2 + (queries - growing) * keys)


def _paged_flops(c: Call) -> int:
    _, heads, width = c.x
    return 4 * heads * width * c.attended.pairs if c.attended else 0


def _paged_bytes(c: Call) -> int:
    state = c.inputs[1]  # [blocks, 2, heads, block size * width]
    row = 2 * state[1][2] * c.x[-1] * dtypes.get(state[0]).bits // 8
    return nbytes(c.inputs[0]) + nbytes(c.outputs[0]) + (row * c.attended.keys if c.attended else 0)


def _picked_bytes(c: Call) -> int:
    return 2 * nbytes(c.outputs[0]) + nbytes(c.inputs[1])


FLOPS: dict[str, Callable[[Call], int]] = {
    # products
    "matmul_packed": lambda c: 2 * size(c.x) * c.params["n"] * c.params["parts"],
    "matmul": lambda c: 2 * size(c.y) * c.x[-1],
    "matmul_float64": lambda c: 2 * size(c.y) * c.x[-1],
    "moe": lambda c: 6 * size(c.x) * c.params["inner"] * c.params["top_k"],
    "conv_packed": lambda c: 2 * size(c.y) * taps(c) * (c.x[-1] // c.params["groups"]),
    "conv_transpose_packed": lambda c: 2 * size(c.x) * taps(c) * (c.params["outputs"] // c.params["groups"]),
    "conv_depthwise": lambda c: 2 * size(c.y) * taps(c),
    "attention": lambda c: 2 * _pairs(c) * (c.x[-1] + c.y[-1]),
    "paged_attention": _paged_flops,
    # per element
    "elementwise": lambda c: size(c.y) * steps(c),
    "avg_pool": lambda c: size(c.y) * taps(c),
    "max_pool": lambda c: size(c.y) * taps(c),
    "rms_norm": lambda c: 4 * size(c.x),
    "layer_norm": lambda c: 7 * size(c.x),
    "group_norm": lambda c: 7 * size(c.x),
    "softmax": lambda c: 4 * size(c.x),
    "reduce": lambda c: size(c.x),
    "argmax": lambda c: size(c.x),
    "rope": lambda c: 3 * size(c.x),
    "rope_kv_write": lambda c: 3 * (size(c.x) + size(c.inputs[1][1])),
}

BYTES: dict[str, Callable[[Call], int]] = {
    "embedding": lambda c: 2 * nbytes(c.outputs[0]) + nbytes(c.inputs[0]),  # as many rows of the table as it writes
    "take": _picked_bytes,
    "gather": _picked_bytes,
    "kv_write": lambda c: sum(2 * nbytes(t) for t in c.inputs[1:3]),
    "rope_kv_write": lambda c: sum(2 * nbytes(t) for t in c.inputs[:3]),
    "paged_attention": _paged_bytes,
}


def flops(call: Call) -> int:
    """Its operations on numbers, beside the expression that a product may end in."""
    return FLOPS[call.kernel](call) if call.kernel in FLOPS else 0


def moved(call: Call) -> int:
    """The bytes that it has to read and write."""
    return BYTES[call.kernel](call) if call.kernel in BYTES else call.bytes
