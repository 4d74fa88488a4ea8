"""Lowered ops: what fusion and layout passes make of the others. They keep a reference, so that a lowered network can
still be interpreted and compared with the one that it came from.

Expressions are stored as nested tuples of the JSON form in ir/expr.py; between the steps of one nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dtypes import DType
from ingot.errors import OpError
from ingot.ir import Case, F, Op, Spec, StateSpec, op, require
from ingot.ir.expr import MAX_INPUTS, NoExpression, check, class_of, evaluate
from ingot.ir.spec import broadcast
from ingot.ir.weight_format import INTEGERS
from ingot.ops.attention import KvWrite, Rope
from ingot.ops.common import (
    Array,
    bf16,
    f32,
    f64,
    i4,
    i8,
    i32,
    rounded,
    same_dtype,
    show,
    widen,
)

WEIGHTS = (dtypes.float32, dtypes.bfloat16, dtypes.float16)

IDENTITY = ((("input", "float32", 0),), (0,))
SILU_MUL = ((("input", "float32", 0), ("silu", "float32", 0), ("input", "float32", 1), ("mul", "float32", 1, 2)), (3,))
TIMES = ((("input", "float32", 0), ("input", "float32", 1), ("mul", "float32", 0, 1)), (2,))
PLUS = ((("input", "float32", 0), ("input", "float32", 1), ("add", "float32", 0, 1)), (2,))
FIVE = ((("const", "float32", 5.0),), (0,))


def expr_json(expr: Sequence[Any]) -> dict[str, Any]:
    """The JSON form of a stored expression."""
    steps, outputs = expr
    return {"steps": [list(step) for step in steps], "outputs": list(outputs)}


def expr_tuple(expr: dict[str, Any]) -> tuple[Any, ...]:
    """The stored form of an expression's JSON form."""
    return tuple(tuple(step) for step in expr["steps"]), tuple(expr["outputs"])


def check_expr(expr: tuple[Any, ...], operands: int, outputs: int) -> None:
    """The rules for an expression over so many operands with so many results."""
    require(len(expr) == 2 and all(isinstance(part, tuple) for part in expr), "body must be (steps, outputs)")
    check(expr_json(expr))
    steps, results = expr
    require(operands <= MAX_INPUTS, f"an expression has at most {MAX_INPUTS} operands, not {operands}")
    used = [step[2] for step in steps if step[0] == "input"]
    require(all(i < operands for i in used), f"body reads operand {max(used, default=0)} of {operands}")
    require(len(results) == outputs, f"body has {len(results)} results, {outputs} are needed")


def check_classes(expr: tuple[Any, ...], operands: Sequence[DType], results: Sequence[DType]) -> None:
    """The rule that every operand is read, and every result stored, in the class of its dtype."""
    steps, outputs = expr
    read = [(f"operand {step[2]}", step[1], operands[step[2]]) for step in steps if step[0] == "input"]
    made = [(f"result {i}", steps[at][1], dtype) for i, (at, dtype) in enumerate(zip(outputs, results, strict=True))]
    for what, cls, dtype in (*read, *made):
        try:
            wanted = class_of(dtype)
        except NoExpression as e:
            raise OpError(f"{what}: {e}") from None
        require(cls == wanted, f"{what} is {dtype.name}, whose class is {wanted}, not {cls}")


class Bodied(Op):
    """An op with an expression on its float32 results: `body` of them (inputs 0…) and of the operands from the
    `fixed`-th on, each per channel or like the result, whose dtype is `dtype`."""

    body: tuple  # type: ignore[type-arg]
    dtype: DType
    reads_back = True

    @property
    def fixed(self) -> int:
        """How many operands stand before those that only the expression reads."""
        raise NotImplementedError

    @property
    def accumulators(self) -> int:
        """How many inputs of the expression are the op's own results."""
        return 1

    def check_body(self, result: Spec, extras: Sequence[Spec]) -> Spec:
        """The rules for the expression, and the result's spec."""
        require(result.dtype in WEIGHTS, f"x must be float32, bfloat16 or float16, not {result.dtype.name}")
        require(self.dtype in WEIGHTS, f"the result must be float32, bfloat16 or float16, not {self.dtype.name}")
        check_expr(self.body, self.accumulators + len(extras), 1)
        operands = [dtypes.float32] * self.accumulators + [extra.dtype for extra in extras]
        check_classes(self.body, operands, [self.dtype])
        row = result.shape[-1:]
        for extra in extras:
            require(
                extra.shape in (result.shape, row),
                f"an operand of the expression must be {show(row)} or {show(result.shape)}, not {show(extra.shape)}",
            )
        return Spec(self.dtype, result.shape)

    def working(self, *specs: Any) -> int:
        return (self.accumulators + len(self.body[0])) * int(self.infer(*specs).elements) * 8


@op("fused_elementwise")
class FusedElementwise(Op):
    """Several elementwise ops in one loop: `body` over elements of operands that broadcast; a result per dtype."""

    body: tuple  # type: ignore[type-arg]
    dtypes: tuple  # type: ignore[type-arg]
    cases = (
        Case(
            "bias and silu",
            (bf16("T", 40), bf16(40)),
            {"body": ((*PLUS[0], ("silu", "float32", 2)), (3,)), "dtypes": ("bfloat16",)},
        ),
        Case("two results", (f32(3, 5), f32(5)), {"body": (PLUS[0], (2, 0)), "dtypes": ("float32", "bfloat16")}),
        Case(
            "operand that is not there", (f32(3),), {"body": PLUS, "dtypes": ("float32",)}, error="reads operand 1 of 1"
        ),
        Case(
            "an operand in another class",
            (f64(3),),
            {"body": IDENTITY, "dtypes": ("float32",)},
            error="operand 0 is float64, whose class is float64, not float32",
        ),
        Case(
            "one dtype too many", (f32(3),), {"body": IDENTITY, "dtypes": ("float32", "float32")}, error="has 1 results"
        ),
    )

    def infer(self, *xs: Spec) -> tuple[Spec, ...]:
        require(bool(xs), "needs an operand")
        check_expr(self.body, len(xs), len(self.dtypes))
        check_classes(self.body, [x.dtype for x in xs], [dtypes.get(d) for d in self.dtypes])
        shape = broadcast(*(x.shape for x in xs))
        return tuple(Spec(dtype, shape) for dtype in self.dtypes)

    def working(self, *xs: Spec) -> int:
        return len(self.body[0]) * int(Spec("bool", broadcast(*(x.shape for x in xs))).elements) * 8

    def reference(self, *xs: Array) -> Any:
        found = tuple(evaluate(expr_json(self.body), xs, [dtypes.get(d) for d in self.dtypes]))
        return found[0] if len(found) == 1 else found


def require_weight(x: Spec, weight: Spec, group: int) -> None:
    """The rule for a product's weight: x's type; int8, whose scales belong to the expression; int4 and scales of
    groups."""
    if weight.dtype is dtypes.int4:
        fits = group > 0 and group % 8 == 0
        require(fits, f"a weight of int4 has scales of groups of 8, 16, … inputs, not of {group}")
    else:
        require(group == 0, f"a weight of {weight.dtype.name} has no scales of groups")
    if weight.dtype not in INTEGERS:
        same_dtype(x=x, weight=weight)


def _factor(x: Array, weight: Array, scales: Array | None, group: int) -> Array:
    """The numbers of a weight [N, K] that x is multiplied with."""
    if scales is None:
        return weight.astype(np.float32)
    return widen(rounded(weight.astype(np.float32) * np.repeat(scales, group, -1), x))


def _linear(x: Array, factors: Sequence[Array], extras: Sequence[Array], expr: tuple[Any, ...], dtype: DType) -> Array:
    products = [widen(x) @ factor.T for factor in factors]
    return evaluate(expr_json(expr), [*products, *extras], [dtype])[0]


@op("fused_linear")
class FusedLinear(Bodied):
    """`body` of the products x · Wᵀ with one or two W [N, K], and of further operands [N] or like the result.

    A W is of x's type, or of integers: of int8 as it is, of int4 followed by its scales [N, K / group].
    """

    parts: int = 1
    group: int = 0
    cases = (
        Case("one product", (f32("T", 6), f32(5, 6)), {"body": IDENTITY, "dtype": "float32"}),
        Case("gate and up", (bf16(3, 6), bf16(5, 6), bf16(5, 6)), {"body": SILU_MUL, "dtype": "bfloat16", "parts": 2}),
        Case("residual", (bf16(3, 6), bf16(5, 6), bf16(3, 5)), {"body": PLUS, "dtype": "bfloat16"}),
        Case("a body that reads nothing", (f32(3, 6), f32(5, 6)), {"body": FIVE, "dtype": "float32"}),
        Case("int8 and its scales", (bf16("T", 6), i8(5, 6), f32(5)), {"body": TIMES, "dtype": "bfloat16"}),
        Case(
            "two of int4",
            (bf16(3, 16), i4(5, 16), f32(5, 2), i4(5, 16), f32(5, 2)),
            {"body": SILU_MUL, "dtype": "bfloat16", "parts": 2, "group": 8},
            no_engine="int4",
        ),
        Case("K differs", (f32(3, 6), f32(5, 7)), {"body": IDENTITY, "dtype": "float32"}, error="weight must be"),
        Case("dtypes differ", (f32(3, 6), bf16(5, 6)), {"body": IDENTITY, "dtype": "float32"}, error="cast one of"),
        Case("int4 without scales", (f32(3, 8), i4(5, 8)), {"body": IDENTITY, "dtype": "float32"}, error="has scales"),
        Case(
            "scales of too few groups",
            (f32(3, 16), i4(5, 16), f32(5, 1)),
            {"body": IDENTITY, "dtype": "float32", "group": 8},
            error=r"its scales must be f32\[5, 2\]",
        ),
    )

    @property
    def accumulators(self) -> int:
        return self.parts

    @property
    def each(self) -> int:
        """Operands of one weight."""
        return 2 if self.group else 1

    @property
    def fixed(self) -> int:
        return 1 + self.parts * self.each

    def infer(self, x: Spec, *weights_and_extras: Spec) -> Spec:
        weights, extras = weights_and_extras[: self.fixed - 1], weights_and_extras[self.fixed - 1 :]
        require(self.parts in (1, 2), f"parts must be 1 or 2, not {self.parts}")
        require(len(weights) == self.fixed - 1 and len(x.shape) > 0, f"needs x and {self.parts} weight(s)")
        for w, *scales in zip(*[iter(weights)] * self.each, strict=True):
            require(
                len(w.shape) == 2 and w.shape == (weights[0].shape[0], x.shape[-1]),
                f"a weight must be [N, {x.shape[-1]}], not {w}",
            )
            require_weight(x, w, self.group)
            if scales:
                wanted = Spec(dtypes.float32, (w.shape[0], dims.floordiv(w.shape[1], self.group)))
                require(scales[0] == wanted, f"its scales must be {wanted}, not {scales[0]}")
        return self.check_body(Spec(x.dtype, (*x.shape[:-1], weights[0].shape[0])), extras)

    def reference(self, x: Array, *rest: Array) -> Array:
        pairs = zip(*[iter(rest[: self.fixed - 1])] * self.each, strict=True)
        factors = [_factor(x, w, scales[0] if scales else None, self.group) for w, *scales in pairs]
        return _linear(x, factors, rest[self.fixed - 1 :], self.body, self.dtype)

    def decompose(self, x: Any, *rest: Any) -> Any:
        floats = []
        for w, *scales in zip(*[iter(rest[: self.fixed - 1])] * self.each, strict=True):
            if scales:
                floats.append(F.dequantize(w, *scales, dtype=x.dtype, group=self.group))
            else:
                floats.append(w if w.dtype is x.dtype else F.cast(w, x.dtype))
        products = [F.matmul(x, w, transpose_b=True, out_dtype=dtypes.float32) for w in floats]
        return F.fused_elementwise(*products, *rest[self.fixed - 1 :], body=self.body, dtypes=(self.dtype.name,))


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
