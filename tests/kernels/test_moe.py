"""moe against the reference of its op, and what binds every kernel: a row's bits do not depend on its company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import _native, dtypes
from ingot.ops.fused import expr_json
from ingot.ops.lowering import Lowered, plain
from ingot.ops.mixture import Moe, gated_expression
from ingot.ops.panels import pack_panels
from tests.kernels.support import FLOATS, Array, run, same_bits

TOLERANCE = dict(zip(map(str, FLOATS), (2e-5, 2e-2, 3e-3), strict=True))


class Mixture:
    """Random weights of so many experts, as the kernel takes them."""

    def __init__(self, dtype: Any, experts: int, hidden: int, inner: int, top_k: int, **changes: Any) -> None:
        rng = np.random.default_rng(2)

        def weight(n: int, k: int) -> Array:
            return (rng.standard_normal((n, k)) / k**0.5).astype(dtype)

        pairs = [pack_panels([weight(inner, hidden), weight(inner, hidden)]) for _ in range(experts)]
        self.weights = np.concatenate(pairs), np.concatenate([pack_panels([weight(hidden, inner)]) for _ in pairs])
        self.dtype = dtype
        self.sizes = {"experts": experts, "hidden": hidden, "inner": inner}
        places = tuple(range(2, 2 + 3 * experts))
        self.moe = Moe(top_k=top_k, **changes)
        self.op = Lowered(inner=self.moe, layouts=(
            *plain(2), ("panels of experts", places[: 2 * experts], inner, hidden, experts),
            ("panels of experts", places[2 * experts :], hidden, inner, experts),
        ))  # fmt: skip

    def feeds(self, rows: int, seed: int = 0) -> tuple[Array, Array]:
        rng = np.random.default_rng(seed)
        x = rng.standard_normal((rows, self.sizes["hidden"])).astype(self.dtype)
        return x, (2 * rng.standard_normal((rows, self.sizes["experts"]))).astype(np.float32)

    def params(self, **changes: Any) -> dict[str, Any]:
        own = {"top_k": self.moe.top_k, "normalize": self.moe.normalize}
        return {**self.sizes, **own, "expression": expr_json(gated_expression(self.moe.activation)), **changes}

    def run(self, x: Array, router: Array, **options: Any) -> Array:
        return run("moe", [x, router, *self.weights], [(self.dtype, x.shape)], **options, **self.params())[0]

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
