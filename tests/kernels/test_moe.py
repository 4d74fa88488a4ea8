"""moe against the reference of its op, and what binds every kernel: a row's bits do not depend on its company."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from ingot import _native, dtypes
from ingot.ops.fused import IDENTITY, PLUS, TIMES, expr_json
from ingot.ops.layouts import LAYOUTS
from ingot.ops.lowering import Lowered, plain
from ingot.ops.mixture import Moe, gated_expression
from tests.kernels.one_call import Weight
from tests.kernels.support import FLOATS, Array, run, same_bits

# And the groups; those of 64 have narrow scales.
FORMS = {"": 0, "int8": 0, "float8": 0, "int4-g32": 32, "int4-g64": 64, "int8-asym": 0, "int4-g32-asym": 32,
         "int4-g64-asym": 64}  # fmt: skip
LAYOUT = {"": "panels of experts", "asym": "shifted panels of experts"}
TIMES_PLUS: Any = ((*TIMES[0], ("input", "float32", 2), ("add", "float32", 2, 3)), (4,))
FLOAT8 = dtypes.float8_e4m3fn.numpy
TOLERANCE = dict(zip(map(str, FLOATS), (2e-5, 2e-2, 3e-3), strict=True))


class Mixture:
    """Random weights of so many experts, as the kernel takes them: gates and ups, and downs, in a form of FORMS."""

    def __init__(
        self, dtype: Any, experts: int, hidden: int, inner: int, top_k: int, forms: tuple[str, str] = ("", ""),
        **changes: Any,
    ) -> None:  # fmt: skip
        rng = np.random.default_rng(2)
        self.moe = Moe(top_k=top_k, **changes)
        self.dtype, self.forms = dtype, forms
        self.sizes = {"experts": experts, "hidden": hidden, "inner": inner}
        self.weights: list[Array] = []
        layouts: list[Any] = [*plain(2)]
        first = 2
        for form, count, n, k in zip(forms, (2 * experts, experts), (inner, hidden), (hidden, inner), strict=True):
            weights = [((rng.standard_normal((n, k)) + form.endswith("asym")) / k**0.5).astype(np.float32)
                       for _ in range(count)]  # fmt: skip
            name, group = LAYOUT.get(form[-4:], "scaled panels of experts"), (FORMS[form] or k,) if form else ()
            given = (n, k, experts, *group)
            if form == "float8":
                given_weights = [w.astype(FLOAT8) for w in weights]
                scales = rng.uniform(0.5, 2, count * n).astype(np.float32)
                self.weights += [*LAYOUTS["panels of experts"].pack(self.moe, given_weights, given[:3]), scales]
            else:
                found = LAYOUTS[name].pack(self.moe, weights if form else [w.astype(dtype) for w in weights], given)
                if "g64" in form:
                    found[1] = found[1].astype(np.float16)
                self.weights += found
            layouts.append((name, tuple(range(first, first + count)), *given))
            first += count
        self.op = Lowered(inner=self.moe, layouts=tuple(layouts))

    def feeds(self, rows: int, seed: int = 0) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((rows, self.sizes["hidden"])).astype(self.dtype)
        return x, (2 * rng.standard_normal((rows, self.sizes["experts"]))).astype(np.float32)

    def params(self, **changes: Any) -> dict[str, Any]:
        own = {"top_k": self.moe.top_k, "normalize": self.moe.normalize}
        names = zip(("gate_up_group", "down_group"), self.forms, strict=True)
        own |= {name: FORMS[form] for name, form in names if FORMS[form]}
        zeros = [form.endswith("asym") for form in self.forms]
        own |= {name: True for name, has in zip(("gate_up_zeros", "down_zeros"), zeros, strict=True) if has}
        by_outputs = self.forms[0] in ("int8", "int8-asym", "float8")
        expression = gated_expression(self.moe.activation, by_outputs, zeros[0])
        return {**self.sizes, **own, "expression": expr_json(expression), **changes}

    def run(self, x: Array, router: Array, **options: Any) -> Array:
        weights = map(Weight, self.weights)
        return run("moe", [x, router, *weights], [(self.dtype, x.shape)], **options, **self.params())[0]

    def reference(self, x: Array, router: Array) -> Array:
        return self.op.reference(x, router, *self.weights).astype(np.float64)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("rows", [0, 1, 2, 7, 70])
@pytest.mark.parametrize("sizes", [(3, 6, 5, 2), (5, 64, 96, 1), (9, 33, 70, 9)], ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_moe(dtype: Any, sizes: tuple[int, int, int, int], rows: int, threads: int) -> None:
    for normalize in (True, False):
        made = Mixture(dtype, *sizes, normalize=normalize)
        x, router = made.feeds(rows)
        got, want = made.run(x, router, threads=threads), made.reference(x, router)
        np.testing.assert_allclose(
            got.astype(np.float64), want, atol=TOLERANCE[str(dtype)] * max(1, np.abs(want).max(initial=0))
        )


MIXED = [("int8", "int8"), ("float8", "float8"), ("int4-g32", "int4-g64"), ("int4-g64", "int8"), ("", "int4-g32"),
         ("int8", ""), ("int4-g32-asym", "int4-g64-asym"), ("int8-asym", "int4-g32-asym"),
         ("int4-g64-asym", "int8-asym"), ("", "int8-asym"), ("int4-g64-asym", "int4-g32")]  # fmt: skip


@pytest.mark.parametrize("forms", MIXED, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_narrow_weights(dtype: Any, forms: tuple[str, str]) -> None:
    """As the reference has it, and the same bits for a row whatever its company; outputs fill no whole panels."""
    made = Mixture(dtype, 5, 128, 192, 2, forms)
    x, router = made.feeds(70)
    whole, want = made.run(x, router, threads=3), made.reference(x, router)
    np.testing.assert_allclose(whole.astype(np.float64), want, atol=2 * TOLERANCE[str(dtype)] * np.abs(want).max())
    for first, last in ((0, 1), (5, 7), (5, 20), (3, 50), (3, 70)):
        assert same_bits(made.run(x[first:last], router[first:last]), whole[first:last])
    small = Mixture(dtype, 3, 40, 70, 2, tuple(re.sub("int4-g..", "int8", form) for form in forms))
    x, router = small.feeds(9)
    want = small.reference(x, router)
    np.testing.assert_allclose(small.run(x, router), want, atol=2 * TOLERANCE[str(dtype)] * np.abs(want).max())


@pytest.mark.parametrize("forms", [("int8", "int8"), ("int4-g32", "int4-g32")], ids=str)
def test_the_bits_of_products(forms: tuple[str, str]) -> None:
    """One expert whose share is 1 gives what products by the same panels give."""
    dtype = dtypes.bfloat16.numpy
    made = Mixture(dtype, 1, 128, 192, 1, forms)
    x, router = made.feeds(5)
    gates, gate_scales, downs, down_scales = made.weights
    by_outputs = forms[0] == "int8"
    pair = [*gate_scales.reshape(2, -1)] if by_outputs else [gate_scales]
    group = {} if by_outputs else {"group": 32}
    gated = expr_json(gated_expression("silu", by_outputs))
    hidden = run("matmul_packed", [x, gates, *pair], [(dtype, (5, 192))], n=192, k=128, parts=2, epilogue=gated,
                 **group)[0]  # fmt: skip
    ends = expr_json(TIMES if by_outputs else IDENTITY)
    want = run("matmul_packed", [hidden, downs, down_scales], [(dtype, (5, 128))], n=128, k=192, parts=1, epilogue=ends,
               **group)[0]  # fmt: skip
    assert same_bits(made.run(x, router), want)


@pytest.mark.parametrize("rows", [1, 5, 600])
@pytest.mark.parametrize("form", ["int4-g32-asym", "int4-g64-asym", "int8-asym"])
def test_the_bits_of_products_with_zero_points(form: str, rows: int) -> None:
    """One expert whose share is 1 gives what a product adds to that of the sums of groups, as other layers have them.
    Of many rows what is added is made in parts."""
    dtype = dtypes.bfloat16.numpy
    hidden, inner = 192, 640
    made = Mixture(dtype, 1, hidden, inner, 1, (form, form))
    x, router = made.feeds(rows)
    group = FORMS[form]

    def added(rows_: Array, panels: Array, n: int) -> Array:
        k = rows_.shape[1]
        size = group or k
        wide = rows_.astype(np.float32).reshape(-1, k // size, size)
        sums = run("reduce", [wide], [(np.float32, wide.shape[:2])], op="sum", axes=[2], keepdims=False)[0]
        return run("matmul_packed", [sums, panels], [(np.float32, (rows, n))], n=n, k=k // size, parts=1,
                   epilogue=expr_json(IDENTITY))[0]  # fmt: skip

    gates, gate_scales, gate_zeros, downs, down_scales, down_zeros = made.weights
    pair = [gate_scales] if group else [*gate_scales.reshape(2, -1)]
    more = {"group": group} if group else {}
    extras = [added(x, panels, inner) for panels in np.split(gate_zeros, 2)]
    middle = run("matmul_packed", [x, gates, *pair, *extras], [(dtype, (rows, inner))], n=inner, k=hidden, parts=2,
                 epilogue=made.params()["expression"], **more)[0]  # fmt: skip
    ends = PLUS if group else TIMES_PLUS
    want = run("matmul_packed", [middle, downs, down_scales, added(middle, down_zeros, hidden)],
               [(dtype, (rows, hidden))], n=hidden, k=inner, parts=1, epilogue=expr_json(ends), **more)[0]  # fmt: skip
    assert same_bits(made.run(x, router, threads=2), want)


@pytest.mark.parametrize(
    ("forms", "changed", "changes", "message"),
    [
        (("int4-g32-asym", "int8"), {4: lambda a: a[:-1]}, {}, "what zero points add"),
        (("int4-g32-asym", "int8"), {4: lambda a: a[:, :-1]}, {}, "what zero points add"),
        (("int4-g32-asym", "int8"), {4: lambda a: a.astype(np.float16)}, {}, "what zero points add"),
        (("int8", "int8-asym"), {6: lambda a: np.repeat(a, 2, 1)}, {}, "what zero points add"),
        (("int8", "int8-asym"), {6: None}, {}, "zero points lie behind"),
        (("int4-g32-asym", "int8"), {}, {"gate_up_zeros": False}, "operand|scales|a down"),
        (("int4-g32-asym", "int4-g32"), {}, {"down_zeros": True}, "zero points lie behind"),
        (("float8", "int8"), {}, {"gate_up_zeros": True}, "only integers have zero points"),
        (("", "int8"), {}, {"gate_up_zeros": True}, "only integers have zero points"),
        (("int4-g32-asym", "int8"), {}, {"gate_up_zeros": 1}, "gate_up_zeros"),
        (("int8", "int8"), {3: lambda a: a[:-1]}, {}, "the scales"),
        (("int8", "int8"), {3: lambda a: a.astype(np.float16)}, {}, "the scales"),
        (("int8", "int8"), {}, {"gate_up_group": 32}, "of 4 bits, and no other"),
        (("int4-g32", "int8"), {}, {"gate_up_group": 48}, "group must be 32, 64 or 128"),
        (("int4-g32", "int8"), {}, {"gate_up_group": 64}, "the scales"),
        (("int8", "int4-g32"), {5: lambda a: a[:, :-1]}, {}, "the scales"),
        (("int8", "int8"), {5: None}, {}, "scales"),
        (("int8", ""), {4: lambda a: a.astype(np.float16)}, {}, "scales|a down"),
    ],
)
def test_narrow_weights_that_are_refused(
    forms: tuple[str, str], changed: dict[int, Any], changes: dict[str, Any], message: str
) -> None:
    made = Mixture(np.dtype(np.float32), 4, 64, 96, 2, forms)
    inputs = [*made.feeds(3), *made.weights]
    for i, change in changed.items():
        inputs[i : i + 1] = [] if change is None else [np.ascontiguousarray(change(inputs[i]))]
    inputs[2:] = map(Weight, inputs[2:])
    with pytest.raises(_native.Error, match=message) as caught:
        run("moe", inputs, [(inputs[0].dtype, inputs[0].shape)], **made.params(**changes))
    assert caught.value.code == "kernel_refused"


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu"])
def test_activations(activation: str) -> None:
    made = Mixture(np.dtype(np.float32), 4, 24, 40, 2, activation=activation)
    x, router = made.feeds(9)
    np.testing.assert_allclose(made.run(x, router), made.reference(x, router), atol=2e-5)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_does_not_depend_on_its_company(dtype: Any) -> None:
    """More than one pass of rows, alone, in parts, on other threads, and all of them at one expert's door."""
    made = Mixture(dtype, 6, 40, 72, 2)
    x, router = made.feeds(1030)
    router[100:300] = router[100]
    whole = made.run(x, router, threads=2)
    assert same_bits(made.run(x, router, threads=1), whole)
    for first, last in ((0, 1), (100, 101), (100, 117), (90, 400), (1023, 1030)):
        assert same_bits(made.run(x[first:last], router[first:last], threads=3), whole[first:last])


def test_equal_and_unusable_scores() -> None:
    """Of equal scores the lower number wins; scores that are no numbers give rows that are none, and harm no others."""
    made = Mixture(np.dtype(np.float32), 4, 8, 8, 2)
    x, router = made.feeds(4)
    router[0] = 1.0
    router[1] = np.nan
    router[2] = [-np.inf, 0, -np.inf, -np.inf]
    router[3] = [np.inf, 0, 0, 0]
    got = made.run(x, router)
    np.testing.assert_allclose(got[[0, 2]], made.reference(x, router)[[0, 2]], atol=1e-5)
    first = Mixture(np.dtype(np.float32), 4, 8, 8, 2).run(x[:1], np.array([[1, 1, 0, 0]], np.float32))
    assert same_bits(got[:1], first)
    assert np.isnan(got[[1, 3]]).all()


def test_strided_rows() -> None:
    made = Mixture(np.dtype(np.float32), 4, 8, 16, 2)
    x, router = made.feeds(10)
    assert same_bits(made.run(x[::2], router[::2]), made.run(x[::2].copy(), router[::2].copy()))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"top_k": 5}, "top_k is 5, must be an integer in"),
        ({"top_k": 0}, "top_k is 0"),
        ({"experts": 0}, "experts is 0"),
        ({"experts": 3}, "the router's scores"),
        ({"hidden": 9}, "x must be"),
        ({"inner": 40}, "gates and ups"),
        ({"normalize": 1}, "normalize"),
        ({"speed": 1}, "speed"),
        ({"expression": {"steps": [["input", "float32", 2]], "outputs": [0]}}, "operand"),
    ],
)
def test_refused(changes: dict[str, Any], message: str) -> None:
    made = Mixture(np.dtype(np.float32), 4, 8, 16, 2)
    x, router = made.feeds(3)
    with pytest.raises(_native.Error, match=message) as caught:
        run("moe", [x, router, *made.weights], [(x.dtype, x.shape)], **made.params(**changes))
    assert caught.value.code == "kernel_refused"


def test_other_dtypes_are_refused() -> None:
    made = Mixture(np.dtype(np.float32), 4, 8, 16, 2)
    x, router = made.feeds(3)
    half = dtypes.bfloat16.numpy
    for inputs in ([x.astype(half), router, *made.weights], [x, router.astype(half), *made.weights]):
        with pytest.raises(_native.Error, match="moe"):
            run("moe", inputs, [(x.dtype, x.shape)], **made.params())
