"""Fused ops: several ops in one loop or walk. They keep a reference, so that a lowered network can still be interpreted
and compared with the one that it came from.

Expressions are stored as nested tuples of the JSON form in ir/expr.py; between the steps of one nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.ir import Case, Op, Spec, StateSpec, op, require
from ingot.ir.expr import MAX_INPUTS, NoExpression, check, class_of, evaluate
from ingot.ir.spec import broadcast
from ingot.ops.attention import KvWrite, Rope
from ingot.ops.common import Array, bf16, f32, f64, i32

IDENTITY = ((("input", "float32", 0),), (0,))
SILU_MUL = ((("input", "float32", 0), ("silu", "float32", 0), ("input", "float32", 1), ("mul", "float32", 1, 2)), (3,))
TIMES = ((("input", "float32", 0), ("input", "float32", 1), ("mul", "float32", 0, 1)), (2,))
SCALED = ((*TIMES[0], ("input", "float32", 2), ("mul", "float32", 2, 3)), (4,))  # sums, by outputs, by rows
PLUS = ((("input", "float32", 0), ("input", "float32", 1), ("add", "float32", 0, 1)), (2,))
RELU_PLUS = ((*PLUS[0], ("const", "float32", 0.0), ("max", "float32", 2, 3)), (4,))
TWICE = ((("input", "float32", 0), ("const", "float32", 2.0), ("mul", "float32", 0, 1)), (2,))
FIVE = ((("const", "float32", 5.0),), (0,))


def quantising(steps: Sequence[Any], scale: float, zero: float, low: float, high: float, kind: str) -> tuple[Any, Any]:
    """The expression whose last of `steps` is quantised as `quantize` does, by a product with a number."""
    n = len(steps)
    return ((*steps, ("const", "float32", scale), ("mul", "float32", n - 1, n), ("round", "float32", n + 1),
             ("eq", "bool", n + 2, n + 2), ("const", "float32", 0.0), ("where", "float32", n + 3, n + 2, n + 4),
             ("const", "float32", zero), ("add", "float32", n + 5, n + 6), ("const", "float32", low),
             ("max", "float32", n + 7, n + 8), ("const", "float32", high), ("min", "float32", n + 9, n + 10),
             ("to_int", "int64", n + 11, "int32"), ("wrap", "int64", n + 12, kind)), (n + 13,))  # fmt: skip


_SCALED_PLUS = (*TIMES[0], ("input", "float32", 2), ("add", "float32", 2, 3))
REQUANTISED = quantising(_SCALED_PLUS, 0.001, -3.0, -127.0, 127.0, "int8")
# … with a residual of uint8, (q - 130) * 0.5, and relu
JOINED = quantising((*_SCALED_PLUS, ("input", "int64", 3), ("const", "int64", 130), ("sub", "int64", 5, 6),
                     ("to_float", "float32", 7), ("const", "float32", 0.5), ("mul", "float32", 8, 9),
                     ("add", "float32", 4, 10), ("const", "float32", 0.0), ("max", "float32", 11, 12)),
                    0.001, 5.0, 0.0, 255.0, "uint8")  # fmt: skip


def expr_json(expr: Sequence[Any]) -> dict[str, Any]:
    """The JSON form of a stored expression."""
    steps, outputs = expr
    return {"steps": [list(step) for step in steps], "outputs": list(outputs)}


def expr_tuple(expr: dict[str, Any]) -> tuple[Any, ...]:
    """The stored form of an expression's JSON form."""
    return tuple(tuple(step) for step in expr["steps"]), tuple(expr["outputs"])


def checked(expr: tuple[Any, ...]) -> tuple[Any, ...]:
    """The stored expression itself when it is well formed; an op asks once, whatever its operands."""
    require(len(expr) == 2 and all(isinstance(part, tuple) for part in expr), "an expression is (steps, outputs)")
    check(expr_json(expr))
    return expr


def check_types(expr: tuple[Any, ...], operands: Sequence[DType], results: Sequence[DType]) -> None:
    """The rules for operands and results: as many as the expression has, each read or stored in its dtype's class."""
    steps, outputs = expr
    count = len(operands)
    require(count <= MAX_INPUTS, f"an expression has at most {MAX_INPUTS} operands, not {count}")
    used = [step[2] for step in steps if step[0] == "input"]
    require(all(i < count for i in used), f"the expression reads operand {max(used, default=0)} of {count}")
    require(len(outputs) == len(results), f"the expression has {len(outputs)} results, {len(results)} are needed")
    read = [(f"operand {step[2]}", step[1], operands[step[2]]) for step in steps if step[0] == "input"]
    made = [(f"result {i}", steps[at][1], dtype) for i, (at, dtype) in enumerate(zip(outputs, results, strict=True))]
    for what, cls, dtype in (*read, *made):
        try:
            wanted = class_of(dtype)
        except NoExpression as e:
            raise OpError(f"{what}: {e}") from None
        require(cls == wanted, f"{what} is {dtype.name}, whose class is {wanted}, not {cls}")


@op("fused_elementwise")
class FusedElementwise(Op):
    """Elementwise ops in one loop: `expression` over elements of operands that broadcast; a result per dtype."""

    expression: tuple  # type: ignore[type-arg]
    dtypes: tuple  # type: ignore[type-arg]
    cases = (
        Case("bias and silu", (bf16("T", 40), bf16(40)),
             {"expression": ((*PLUS[0], ("silu", "float32", 2)), (3,)), "dtypes": ("bfloat16",)}),
        Case("two results", (f32(3, 5), f32(5)), {"expression": (PLUS[0], (2, 0)), "dtypes": ("float32", "bfloat16")}),
        Case("operand that is not there", (f32(3),), {"expression": PLUS, "dtypes": ("float32",)},
             error="reads operand 1 of 1"),
        Case("an operand in another class", (f64(3),), {"expression": IDENTITY, "dtypes": ("float32",)},
             error="operand 0 is float64, whose class is float64, not float32"),
        Case("one dtype too many", (f32(3),), {"expression": IDENTITY, "dtypes": ("float32", "float32")},
             error="has 1 results"),
    )  # fmt: skip

    @cached_property
    def _checked(self) -> tuple[Any, ...]:
        return checked(self.expression)

    def infer(self, *xs: Spec) -> tuple[Spec, ...]:
        require(bool(xs), "needs an operand")
        check_types(self._checked, [x.dtype for x in xs], [dtypes.get(d) for d in self.dtypes])
        shape = broadcast(*(x.shape for x in xs))
        return tuple(Spec(shape, dtype) for dtype in self.dtypes)

    def working(self, *xs: Spec) -> int:
        return len(self.expression[0]) * int(Spec(broadcast(*(x.shape for x in xs)), "bool").elements) * 8

    def reference(self, *xs: Array) -> Any:
        found = tuple(evaluate(expr_json(self.expression), xs, [dtypes.get(d) for d in self.dtypes]))
        return found[0] if len(found) == 1 else found


# q of four heads, k and v of two, cos, sin, slot
_STEP = (f32("T", 4, 8), f32("T", 2, 8), f32("T", 2, 8), f32("T", 4), f32("T", 4), i32("T"))


@op("rope_kv_write")
class RopeKvWrite(Op):
    """`rope` of q and k, and `kv_write` of the rotated k and of v, in one walk: gives the rotated q, and the state."""

    style: str = "half"
    cases = (
        Case(
            "a step",
            (*_STEP, StateSpec("f32", heads=2, head_dim=8)),
        ),
        Case(
            "bfloat16, interleaved",
            (
                bf16(5, 2, 8),
                bf16(5, 1, 8),
                bf16(5, 1, 8),
                f32(5, 4),
                f32(5, 4),
                i32(5),
                StateSpec("bf16", heads=1, head_dim=8),
            ),
            {"style": "interleaved"},
        ),
        Case(
            "a cache of int8",
            (*_STEP, StateSpec("int8", heads=2, head_dim=8)),
        ),
        Case(
            "another cache",
            (*_STEP, StateSpec("f32", heads=4, head_dim=8)),
            error="k has 2 heads, the cache holds 4",
        ),
    )

    def infer(
        self, q: Spec, k: Spec, v: Spec, cos: Spec, sin: Spec, slot: Spec, state: StateSpec
    ) -> tuple[Spec, StateSpec]:
        rope, write = Rope(style=self.style), KvWrite()
        rotated = rope.infer(k, cos, sin)
        return rope.infer(q, cos, sin), write.infer(state, rotated, v, slot)

    def reference(
        self, q: Array, k: Array, v: Array, cos: Array, sin: Array, slot: Array, state: Array
    ) -> tuple[Array, Array]:
        rope = Rope(style=self.style)
        return rope.reference(q, cos, sin), KvWrite().reference(state, rope.reference(k, cos, sin), v, slot)

    def sample(self, rng: np.random.Generator, q: Spec, k: Spec, v: Spec, *rest: Any) -> tuple[Array, ...]:
        cos, sin, slot, state = rest
        cache, keys, values, slots = KvWrite().sample(rng, state, k, v, slot)
        angle = rng.uniform(0, 7, cos.shape)
        queries = rng.standard_normal(q.shape).astype(q.dtype.numpy)
        return queries, keys, values, np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32), slots, cache
