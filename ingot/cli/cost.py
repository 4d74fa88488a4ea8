"""What a call has to do at least: arithmetic, and bytes moved. On the CPU its kernel's declaration says so."""

from __future__ import annotations

from typing import Any, NamedTuple

from ingot import _lazy
from ingot.backends.cost import Call, nbytes
from ingot.backends.device import DEFAULT


class Cost(NamedTuple):
    """Operations on numbers, the number format whose peak bounds them, and bytes. None: operations are not counted."""

    flops: int | None
    compute: str | None
    moved: int


def of(call: Call, target: str) -> Cost:
    """A call's on a target."""
    if target == DEFAULT:
        return Cost(flops(call), compute(call), moved(call))
    return Cost(None, None, _moved_by_op(call))


INDEX = {"embedding": 0, "take": 1, "gather": 1}  # ops that look up rows or elements, and which operand says which


def _moved_by_op(call: Call) -> int:
    """The bytes that an op has to read and write: of a table what is looked up, of a KV cache the tokens that it
    writes, or that are seen.
    """
    if call.kernel in INDEX and call.bytes:
        return 2 * nbytes(call.outputs[0]) + nbytes(call.inputs[INDEX[call.kernel]])
    if call.kernel == "kv_write":
        return sum(2 * nbytes(tensor) for tensor in call.inputs[1:3])
    if call.kernel == "paged_attention":
        cache = call.inputs[1]
        dtype, (blocks, block_size, *token) = cache
        seen = call.attended.keys if call.attended else blocks * block_size
        return call.bytes - nbytes(cache) + seen * nbytes((dtype, tuple(token)))
    return call.bytes


def _declared(call: Call) -> Any:
    """The declaration of its kernel; None for a host call."""
    return _lazy.load("ingot.backends.cpu:CPU").by_name.get(call.kernel)


def flops(call: Call) -> int:
    """Its operations on numbers, beside the expression that a product may end in."""
    kernel = _declared(call)
    return kernel.flops(call) if kernel and kernel.flops else 0


def moved(call: Call) -> int:
    """The bytes that it has to read and write."""
    kernel = _declared(call)
    return kernel.moved(call) if kernel and kernel.moved else call.bytes


def compute(call: Call) -> str:
    """The number format whose peak bounds it: bfloat16 where products of bfloat16 are summed, else float32."""
    kernel = _declared(call)
    return "bfloat16" if kernel and kernel.products and call.inputs[0][0] == "bfloat16" else "float32"
