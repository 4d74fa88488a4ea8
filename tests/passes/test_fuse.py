"""Fusion at its edges: what joins a loop or a product and what does not, and that no number changes by it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

from ingot.dims import Dim
from ingot.ir import F, Network, Node, Spec, Value
from ingot.ir.evaluation import evaluate
from ingot.ir.expr import MAX_INPUTS, MAX_STEPS
from ingot.ir.interpret import interpret
from ingot.ir.verify import verify
from ingot.ops.lowering import PRODUCT, plain
from ingot.passes import fuse, products
from ingot.passes.rewrite import Log
from ingot.passes.weights import recipe_of

T = Dim("T")
RNG = np.random.default_rng(0)
Array = np.ndarray[Any, Any]


class Made:
    """A network in the making: inputs f32[T, 6], weights, and the outputs in order."""

    def __init__(self) -> None:
        self.net = Network("net")
        self.arrays: dict[str, Array] = {}
        self.log: Log = []

    def input(self, *shape: Any, dtype: str = "float32") -> Value:
        value = self.net.input(f"x{len(self.net.inputs)}", Spec(shape or (T, 6), dtype))
        self.arrays[value.name] = RNG.standard_normal(value.spec.evaluate({"T": 3})).astype(value.dtype.numpy)
        return value

    def weight(self, *shape: int, dtype: str = "float32") -> Value:
        value = self.net.parameter(f"w{len(self.net.parameters)}", Spec(shape, dtype))
        self.arrays[value.name] = RNG.standard_normal(shape).astype(value.dtype.numpy)
        return value

    def linear(self, x: Value, n: int, k: int = 6) -> Value:
        return F.matmul(x, self.weight(n, k), transpose_b=True)  # type: ignore[no-any-return]

    def out(self, *values: Value) -> None:
        for value in values:
            self.net.outputs[f"y{len(self.net.outputs)}"] = value

    def after(self, *passes: Callable[[Network, Log], None]) -> list[Node]:
        """The nodes that the passes leave. They compute what was computed before."""
        want = self.run()
        for one in passes:
            one(self.net, self.log)
        verify(self.net)
        for name, array in self.run().items():
            assert array.dtype == want[name].dtype and array.shape == want[name].shape
            wide = [a.astype(np.float64) for a in (array, want[name])]
            np.testing.assert_allclose(*wide, rtol=1e-5, atol=1e-5)
        return list(self.net.nodes)

    def run(self) -> dict[str, Array]:
        stored = {v.name: evaluate(recipe_of(v), self.arrays) for v in self.net.parameters}
        return interpret(self.net, {v.name: self.arrays[v.name] for v in self.net.inputs}, stored)

    def said(self, words: str) -> bool:
        return any(words in str(entry) for entry in self.log)


PRODUCTS: dict[str, Any] = {"inner": PRODUCT, "layouts": plain(2), "dtype": "float32"}
FUSED = (products.products, fuse.elementwise, fuse.epilogues)


def names(nodes: Sequence[Node]) -> list[str]:
    return [node.op.name for node in nodes]


# ---------------------------------------------------------------------------------------------------------- elementwise


def test_what_is_one_loop() -> None:
    """One reader, or several in one loop; of the loop's shape; no output of the network."""
    made = Made()
    x = made.input()
    y = F.exp(x)
    made.out(F.tanh(y) * F.sin(y), F.cos(x))
    assert len(made.after(fuse.elementwise)) == 2
    made = Made()
    y = F.exp(made.input())
    made.out(F.tanh(y), y)  # an output is stored, whoever else reads it
    assert len(made.after(fuse.elementwise)) == 2
    made = Made()
    y = F.exp(made.input())
    made.out(F.tanh(y), F.sin(y))  # two loops read it
    assert len(made.after(fuse.elementwise)) == 3
    made = Made()
    made.out(F.tanh(F.exp(made.input(1, 6))) + made.input())  # computed once for all rows
    first, second = made.after(fuse.elementwise)
    assert (first.output.shape, second.output.shape) == ((1, 6), (T, 6))
    made = Made()
    y = F.exp(made.input())
    made.out(F.reduce_sum(F.tanh(y), (1,)) + F.reduce_sum(y, (1,)))  # one of its readers is no loop
    assert names(made.after(fuse.elementwise)) == ["fused_elementwise"] * 2 + ["reduce_sum"] * 2 + ["fused_elementwise"]
    assert not made.said("one loop")


def test_what_an_expression_has_no_class_for_stays() -> None:
    made = Made()
    made.out(F.tanh(F.cast(F.cast(F.exp(made.input()), "float8_e4m3fn"), "float32")))
    assert names(made.after(fuse.elementwise)) == ["fused_elementwise", "cast", "cast", "fused_elementwise"]


@pytest.mark.parametrize("more", [0, 1])
def test_a_loop_has_at_most_so_many_operands(more: int) -> None:
    made = Made()
    total = made.input()
    for _ in range(MAX_INPUTS - 1 + more):
        total = total + made.input()
    made.out(total)
    assert len(made.after(fuse.elementwise)) == 1 + more
    assert made.said("one loop for add, add")


@pytest.mark.parametrize("more", [0, 1])
def test_a_loop_has_at_most_so_many_steps(more: int) -> None:
    """Reading its operand is a step too, of every op as it is counted."""
    made = Made()
    x = made.input()
    for _ in range(MAX_STEPS // 2 + more):
        x = F.tanh(x)
    made.out(x)
    nodes = made.after(fuse.elementwise)
    assert len(nodes) == 1 + more
    assert all(len(node.op.expression[0]) <= MAX_STEPS for node in nodes)  # type: ignore[attr-defined]


def test_constants_of_a_loop() -> None:
    """Numbers are part of the expression, arrays are operands; a loop on numbers alone reads one for its shape."""
    made = Made()
    row = made.net.constant(np.arange(6, dtype=np.float32))
    two = made.net.constant(np.array(2, np.float32))
    made.out((made.input() * two + row) / row.network.constant(np.array([4], np.float32)))
    (node,) = made.after(fuse.elementwise)
    assert [v.shape for v in node.inputs] == [(T, 6), (6,), (1,)]
    made = Made()
    made.out(F.exp(made.net.constant(np.array(2, np.float32)) * made.net.constant(np.array(3, np.float32))))
    (node,) = made.after(fuse.elementwise)
    assert [v.shape for v in node.inputs] == [()]


# ------------------------------------------------------------------------------------------------------------- products


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda m: F.matmul(m.input(), m.weight(4, 6), transpose_b=True), ""),
        (lambda m: F.matmul(m.input(), m.weight(6, 4)), ""),
        (lambda m: F.matmul(m.input(T, 6, dtype="bfloat16"), m.weight(6, 4, dtype="bfloat16")), ""),
        (lambda m: F.matmul(m.input(T, 6, dtype="float16"), m.weight(6, 4, dtype="float16"), out_dtype="float32"), ""),
        (lambda m: F.matmul(m.input(), m.input(6, 4)), "no parameter of rank 2"),
        (lambda m: F.matmul(m.input(2, 3, 6), m.weight(2, 6, 4)), "no parameter of rank 2"),
        (lambda m: F.matmul(m.input(6, T), m.weight(6, 4), transpose_a=True), "its first operand is transposed"),
        (
            lambda m: F.matmul(m.input(T, 6, dtype="float64"), m.weight(6, 4, dtype="float64")),
            "no packed products of float64",
        ),
        (lambda m: F.matmul(m.input(T, 6), m.weight(6, 4), out_dtype="float64"), "with a float64 result"),
        (lambda m: F.matmul(m.input(T, 0), m.weight(0, 4)), "a weight without elements"),
        (lambda m: F.matmul(m.input(T, 6), m.weight(6, 0)), "a weight without elements"),
    ],
)
def test_which_products_are_packed(make: Callable[[Made], Value], why: str) -> None:
    made = Made()
    made.out(make(made))
    (node,) = made.after(products.products)
    assert (node.op.name == "matmul") == bool(why)
    assert made.said(why) == bool(why)


@pytest.mark.parametrize(
    ("make", "left", "why"),
    [
        (lambda m, y: F.gelu(y), 1, ""),
        (lambda m, y: y + m.weight(4), 1, ""),
        (lambda m, y: y + m.input(T, 4), 1, ""),
        (lambda m, y: F.cast(y * 2, "float16"), 1, ""),
        (lambda m, y: (y + m.weight(4)) * m.input(T, 4) + m.weight(4), 1, ""),
        (lambda m, y: y + m.input(T, 1), 1, ""),
        (lambda m, y: y + m.input(1, 4), 2, "which the epilogue cannot spread over the result"),
        (lambda m, y: y + m.input(2, T, 4), 2, "is broadcast"),
        (lambda m, y: F.cast(F.greater(y, 0), "int32"), 2, "the result is int32"),
        (lambda m, y: F.cast(y, "float64"), 2, "the result is float64"),
        (lambda m, y: F.softmax(F.gelu(y)), 2, ""),
    ],
)
def test_what_a_product_takes_along(make: Callable[[Made, Value], Value], left: int, why: str) -> None:
    made = Made()
    made.out(make(made, made.linear(made.input(), 4)))
    assert len(made.after(*FUSED)) == left
    assert made.said(why)


def test_a_product_that_others_read_stays() -> None:
    made = Made()
    y = made.linear(made.input(), 4)
    made.out(F.gelu(y), y)
    assert len(made.after(*FUSED)) == 2 and made.said("has other readers")
    made = Made()
    y = made.linear(made.input(), 4)
    made.out(F.gelu(y), F.softmax(y))
    assert len(made.after(*FUSED)) == 3 and made.said("has other readers")


def rounded(x: Value) -> Value:
    scale = x.network.constant(np.float32(0.05))
    return F.dequantize(F.quantize(x, scale), scale, dtype=x.dtype)  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("make", "left"),
    [
        (lambda m, x: F.silu(m.linear(x, 4)) * m.linear(x, 4), 1),
        (lambda m, x: m.linear(x, 4) / F.exp(m.linear(x, 4)), 1),
        (lambda m, x: F.silu(m.linear(x, 4)) * m.linear(x, 4) + m.weight(4), 1),
        (lambda m, x: m.linear(x, 4) - m.linear(m.input(), 4), 2),
        (lambda m, x: m.linear(x, 4) - m.linear(x, 1), 2),  # one is broadcast, and a column for the other
        (lambda m, x: m.linear(x, 4) - F.softmax(m.linear(x, 4)), 3),
        (lambda m, x: m.linear(x, 4) - m.linear(x, 4) * m.linear(x, 4), 2),  # the last two
        (lambda m, x: rounded(m.linear(x, 4) + m.linear(x, 4) * m.weight(4)), 1),  # two groups, one after the other
    ],
)
def test_pairs_of_products(make: Callable[[Made, Value], Value], left: int) -> None:
    """Two products of one x by weights of one shape are one; else the last one takes the others' results."""
    made = Made()
    made.out(make(made, made.input()))
    assert len(made.after(*FUSED)) == left


@pytest.mark.parametrize("more", [0, 1])
def test_a_products_expression_has_at_most_so_many_operands(more: int) -> None:
    """Its x and its weight are among them."""
    made = Made()
    y = made.linear(made.input(), 4)
    for _ in range(MAX_INPUTS - 2 + more):
        y = y + made.input(T, 4)
    made.out(y)
    assert len(made.after(*FUSED)) == 1 + more
    assert made.said("the expression would be too long") == bool(more)


# ------------------------------------------------------------------------------------------------------------- siblings


def joined(made: Made) -> list[str]:
    return names(made.after(*FUSED, fuse.siblings))


@pytest.mark.parametrize("widths", [(4, 4), (5, 2, 3), (1, 7, 4, 2)])
@pytest.mark.parametrize("bias", [False, True])
def test_products_of_one_x_are_one(widths: tuple[int, ...], bias: bool) -> None:
    """However wide each is; every one's bias lies beside its own columns."""
    made = Made()
    x = made.input(2, T, 6)
    for n in widths:
        y = made.linear(x, n)
        made.out(F.softmax(y + made.weight(n) if bias else y))
    assert joined(made) == ["lowered"] + ["slice"] * len(widths) + ["softmax"] * len(widths)
    assert made.said(f"one product for {', '.join(f'w{i}' for i in range(0, len(widths) * (1 + bias), 1 + bias))}")


@pytest.mark.parametrize(
    ("make", "count"),
    [
        (lambda m, x: [m.linear(x, 4)], 1),
        (lambda m, x: [m.linear(x, 4), m.linear(m.input(), 4)], 2),
        (lambda m, x: [m.linear(x, 4), F.gelu(m.linear(x, 4))], 2),
        (lambda m, x: [F.gelu(m.linear(x, 4)), F.gelu(m.linear(x, 3))], 1),
        (lambda m, x: [F.gelu(m.linear(x, 4)), F.gelu(m.linear(x, 3)), m.linear(x, 5), m.linear(x, 2)], 2),
        (lambda m, x: [m.linear(x, 4) + m.weight(4), m.linear(x, 4)], 2),
        (lambda m, x: [m.linear(x, 4) + m.input(T, 4), m.linear(x, 4) + m.input(T, 4)], 2),
        (lambda m, x: [m.linear(x, 4) + m.input(4), m.linear(x, 4) + m.input(4)], 2),
        (lambda m, x: [F.silu(m.linear(x, 4)) * m.linear(x, 4), F.silu(m.linear(x, 4)) * m.linear(x, 4)], 2),
        (
            lambda m, x: [
                m.linear(x, 4) + m.weight(4),
                m.linear(x, 4) + F.cast(m.weight(4, dtype="float16"), "float32"),
            ],
            2,
        ),
    ],
)
def test_how_many_products_are_left(make: Callable[[Made, Value], Sequence[Value]], count: int) -> None:
    made = Made()
    made.out(*(F.softmax(y) for y in make(made, made.input())))
    assert joined(made).count("lowered") == count


def test_outputs_are_no_siblings() -> None:
    made = Made()
    x = made.input()
    made.out(made.linear(x, 4), F.softmax(made.linear(x, 4)), F.softmax(made.linear(x, 3)))
    assert joined(made).count("lowered") == 2
    assert made.said("it is an output of the network")
    made = Made()
    x = made.input()
    made.out(*(F.softmax(made.linear(x, 4) + made.input(T, 4)) for _ in range(2)))
    joined(made)
    assert made.said("reads more than what is stored per column")
    made = Made()
    x = made.input()
    made.out(*(F.softmax(F.silu(made.linear(x, 4)) * made.linear(x, 4)) for _ in range(2)))
    joined(made)
    assert made.said("it has two weights already")


def test_an_epilogue_goes_behind_the_one_that_is_there() -> None:
    """What a product's expression read before it still reads; a row that both read is one operand."""
    made = Made()
    x, weight, bias, other = made.input(), made.weight(4, 6), made.weight(4), made.weight(4)
    steps = (("input", "float32", 0), ("input", "float32", 1), ("add", "float32", 0, 1), ("tanh", "float32", 2))
    y = F.lowered(x, weight, bias, **PRODUCTS, epilogue=(steps, (3,)))
    made.out(F.exp(y) * other - bias)
    (node,) = made.after(fuse.elementwise, fuse.epilogues)
    assert [v.name for v in node.inputs] == ["x0", "w0", "w1", "w2"]
    assert made.said("part of the matmul of w0")


def test_a_second_bias_joins_at_once() -> None:
    """Of two sums that are added one takes the other along: both have their biases by then. Products without any wait,
    as they may be a pair."""
    biased = (("input", "float32", 0), ("input", "float32", 1), ("add", "float32", 0, 1))
    made = Made()
    x = made.input()
    sums = [F.lowered(x, made.weight(4, 6), made.weight(4), **PRODUCTS, epilogue=(biased, (2,))) for _ in range(2)]
    made.out(F.relu(F.add(*(F.add(y, made.weight(4)) for y in sums))))
    first, second = made.after(fuse.biases, fuse.elementwise, fuse.epilogues)
    assert [len(n.inputs) for n in (first, second)] == [4, 5] and second.inputs[-1] is first.output
    assert made.said("part of the matmul of w0")
    made = Made()
    x = made.input()
    made.out(F.add(F.add(made.linear(x, 4), made.weight(4)), F.add(made.linear(x, 4), made.weight(4))))
    assert len(made.after(products.products, fuse.biases, fuse.elementwise, fuse.epilogues)) == 1


def test_one_that_has_an_epilogue_is_not_paired() -> None:
    made = Made()
    x, weight = made.input(), made.weight(4, 6)
    steps = (("input", "float32", 0), ("tanh", "float32", 0))
    a = F.lowered(x, weight, **PRODUCTS, epilogue=(steps, (1,)))
    b = F.lowered(x, made.weight(4, 6), **PRODUCTS, epilogue=(steps[:1], (0,)))
    for values in ((a, b), (b, a)):
        made.out(F.exp(values[0]) * values[1])
    made.net.outputs.popitem()
    made.net.remove_dead()
    assert len(made.after(fuse.elementwise, fuse.epilogues)) == 2


def test_what_a_product_is_alike_is_told_by_its_rounded_numbers() -> None:
    """A product in bfloat16, compared with itself as it was stored: 1 everywhere, as bytes too."""
    made = Made()
    x, w = made.input(40, 64, dtype="bfloat16"), made.weight(48, 64, dtype="bfloat16")
    wide = [made.arrays[v.name].astype(np.float32) for v in (x, w)]
    stored = made.input(40, 48, dtype="bfloat16")
    made.arrays[stored.name] = (wide[0] @ wide[1].T).astype(stored.dtype.numpy)
    made.out(F.cast(F.matmul(x, w, transpose_b=True) == stored, "uint8"))
    assert made.run()["y0"].mean() > 0.9
    assert len(made.after(products.products, fuse.elementwise, fuse.epilogues)) == 1
    assert made.run()["y0"].mean() > 0.9


@pytest.mark.parametrize("by_product", [False, True])
def test_what_is_left_of_a_product_less_itself_as_stored_is_nothing(by_product: bool) -> None:
    """bfloat16(a b) - y with y as it was stored is 0, and 5000 times that as int8 too: a sum that cancels shows whether
    what goes into it was rounded. As the end of a loop and of a product."""
    made = Made()
    a, b = made.input(40, 48), made.weight(48, 48) if by_product else made.input(40, 48)
    product = F.matmul(a, b, transpose_b=True) if by_product else F.mul(a, b)
    stored = made.input(40, 48, dtype="bfloat16")
    rounded = F.cast(F.cast(product, "bfloat16"), "float32")
    left = F.sub(rounded, F.cast(stored, "float32"))
    made.out(F.cast(F.clip(F.round(F.mul(left, 5000.0)), minimum=-127.0, maximum=127.0), "int8"))
    wide = made.arrays[a.name] @ made.arrays[b.name].T if by_product else made.arrays[a.name] * made.arrays[b.name]
    made.arrays[stored.name] = wide.astype(stored.dtype.numpy)
    assert len(made.after(products.products, fuse.elementwise, fuse.epilogues)) == 1
    assert not made.run()["y0"].any()


@pytest.mark.parametrize("stored", [True, False])
def test_what_stored_numbers_scale_is_quantised_by_a_product(stored: bool) -> None:
    """A quotient takes longer, but decides the ties of what nothing else rounds as the network has them."""
    made = Made()
    x = made.input(40, 6, dtype="bfloat16")
    scale, shift = (made.weight(6) if stored else made.input(40, 6) for _ in range(2))
    scaled = F.relu(F.add(F.mul(F.cast(x, "float32"), scale), shift))
    made.out(F.cast(F.clip(F.round(F.div(scaled, 0.21)), minimum=-127.0, maximum=127.0), "int8"))
    (node,) = made.after(fuse.elementwise, fuse.epilogues)
    assert ("div" in [step[0] for step in node.op.expression[0]]) is not stored  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["down", "up", "cut", "compared", "what is left", "to the nearest"])
def test_a_quotient_whose_least_error_shows_is_none_by_a_product(name: str) -> None:
    """41 times what is nearest to 1 / 41 is less than 1: a byte would move by one, or by as many as hang on that."""
    made = Made()
    x, by = made.input(256, 6, dtype="uint8"), made.weight(6)
    made.arrays[x.name][:], made.arrays[by.name][:] = np.arange(256)[:, None], 1
    q = F.div(F.mul(F.cast(x, "float32"), by), 47.0 if name == "up" else 41.0)
    ways: dict[str, Callable[[], Value]] = {
        "down": lambda: F.floor(q), "up": lambda: F.ceil(q), "cut": lambda: F.abs(q),
        "to the nearest": lambda: F.round(q),
        "compared": lambda: F.where(F.relu(q) >= 1.0, q * 20.0, q), "what is left": lambda: (q - F.floor(q)) * 100.0,
    }  # fmt: skip
    made.out(F.cast(F.clip(ways[name](), minimum=-127.0, maximum=127.0), "int8"))
    want = made.run()["y0"]
    (node,) = made.after(fuse.elementwise, fuse.epilogues)
    assert ("div" in [step[0] for step in node.op.expression[0]]) == (name != "to the nearest")  # type: ignore[attr-defined]
    np.testing.assert_array_equal(made.run()["y0"], want)
