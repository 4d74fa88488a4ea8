"""matmul_packed by Strassen's step, against float64, and that a row's bits depend on its own sample alone."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.one_call import Array, Operand, View, Weight, run
from tests.kernels.test_elementwise import GELU
from tests.kernels.test_matmul import IDENTITY, pack

ADDED = [["input", "float32", 0], ["input", "float32", 1], ["add", "float32", 0, 1]]
MOVED = [[name, kind, *(rest if name == "const" else [a + 2 for a in rest])] for name, kind, *rest in GELU[1:]]
EPILOGUES: dict[str, dict[str, Any]] = {
    "none": IDENTITY,
    "bias": {"steps": ADDED, "outputs": [2]},
    "residual": {"steps": [*ADDED, ["input", "float32", 2], ["add", "float32", 2, 3]], "outputs": [4]},
    "gelu": {"steps": [*ADDED, *MOVED], "outputs": [10]},
    "no chain": {"steps": [*ADDED, ["mul", "float32", 2, 2], ["add", "float32", 3, 0]], "outputs": [4]},
}
SIZES = [(1, 2, 64, 2), (2, 6, 50, 30), (1, 34, 128, 256), (3, 28, 64, 258), (2, 134, 192, 772), (1, 50, 1600, 1030)]


def product(
    x: Operand,
    w: Array,
    epilogue: str = "none",
    extras: tuple[Operand, ...] = (),
    threads: int = 1,
    out: str = "float32",
    **params: Any,
) -> Array:
    n, k = w.shape
    params = {"n": n, "k": k, "parts": 1, "epilogue": EPILOGUES[epilogue], "algorithm": "strassen", **params}
    return run("matmul_packed", params, [x, Weight(pack([w])), *extras], [(out, (*x.shape[:-1], n))], threads)[0]  # type: ignore[union-attr]


def drawn(samples: int, rows: int, n: int, k: int, dtype: str = "float32") -> tuple[Array, Array, tuple[Array, Array]]:
    rng = np.random.default_rng(rows + n + k)
    shapes = ((samples, rows, k), (n, k), (n,), (samples, rows, n))
    x, w, bias, residual = (rng.standard_normal(shape).astype(np.float32).astype(dtype) for shape in shapes)
    return x, w, (bias, residual)


def ended(sums: Array, epilogue: str, bias: Array, residual: Array) -> Array:
    """The epilogue in float64."""
    bias, residual = bias.astype(np.float64), residual.astype(np.float64)
    both = sums + bias
    if epilogue == "gelu":
        (found,) = run("elementwise", {"expression": {"steps": GELU, "outputs": [8]}}, [both.astype(np.float32)],
                       [("float32", both.shape)])  # fmt: skip
        return found
    return {"none": sums, "bias": both, "residual": both + residual, "no chain": both * both + sums}[epilogue]


def used(epilogue: str, extras: tuple[Array, Array]) -> tuple[Array, ...]:
    return {"none": (), "residual": extras}.get(epilogue, extras[:1])


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize(("samples", "rows", "n", "k"), SIZES)
def test_product(samples: int, rows: int, n: int, k: int, dtype: str, epilogue: str) -> None:
    x, w, extras = drawn(samples, rows, n, k, dtype)
    sums, scale = x.astype(np.float64) @ w.T.astype(np.float64), np.sqrt(k)
    wanted = ended(sums, epilogue, *extras)
    found = product(x, w, epilogue, used(epilogue, extras))
    slope = 1 + (2 * abs(sums + extras[0]) if epilogue == "no chain" else 0)
    assert np.all(abs(found - wanted) <= slope * scale * 6e-6 + 1e-6), np.max(abs(found - wanted))
    for threads in (2, 3):
        for split in ({}, {"split": "rows"}, {"split": "outputs"}):
            same = product(x, w, epilogue, used(epilogue, extras), threads, **split)
            assert same.tobytes() == found.tobytes(), (threads, split)


@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_it_is_another_order_of_sums(dtype: str) -> None:
    """So that the other tests test it, and what cannot be in pairs goes by the direct product."""
    x, w, _ = drawn(1, 28, 64, 258, dtype)
    assert product(x, w).tobytes() != product(x, w, algorithm="direct").tobytes()
    odd_rows, of_no_sample, odd_k, odd_panels = (x[:, :27], w), (x[0], w), (x[..., :257], w[:, :257]), (x, w[:32])
    for some, by in (odd_rows, of_no_sample, odd_k, odd_panels):
        assert product(some.copy(), by).tobytes() == product(some.copy(), by, algorithm="direct").tobytes()


def test_the_error_is_near_the_direct_sums() -> None:
    x, w, _ = drawn(1, 128, 128, 768)
    exact = x.astype(np.float64) @ w.T.astype(np.float64)
    by_pairs, direct = (
        np.sqrt(np.mean((product(x, w, algorithm=word) - exact) ** 2)) for word in ("strassen", "direct")
    )
    assert by_pairs < 2.5 * direct


@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("k", [64, 900])
def test_samples_are_apart(k: int, dtype: str) -> None:
    """The same bits of a sample alone and in company, and of rows that are further apart than they are long."""
    x, w, _ = drawn(5, 130, 128, k, dtype)
    whole = product(x, w, threads=3)
    for sample in range(5):
        assert product(x[sample : sample + 1].copy(), w).tobytes() == whole[sample].tobytes()
    wide = np.zeros((5, 130, k + 3), dtype)
    wide[..., :k] = x
    apart = View(wide, x.shape, (130 * (k + 3), k + 3, 1))
    assert product(apart, w).tobytes() == whole.tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 3e38, 2.0**61])
def test_what_is_not_finite_stays_in_its_row(value: float) -> None:
    """And a sum of large numbers that is finite stays so: such pairs of rows go by the direct product."""
    x, w, extras = drawn(2, 30, 128, 300)
    plain = product(x, w, "residual", extras)
    x[0, 3, 299] = x[1, 20, 0] = value
    with np.errstate(over="ignore", invalid="ignore"):
        direct = product(x, w, "residual", extras, algorithm="direct")
    for threads in (1, 2, 3):
        found = product(x, w, "residual", extras, threads)
        for sample, row in np.ndindex(2, 30):
            wanted = direct if (sample, row % 15) in ((0, 3), (1, 5)) else plain
            assert found[sample, row].tobytes() == wanted[sample, row].tobytes(), (sample, row)


@pytest.mark.parametrize("value", [np.nan, np.inf, 2.0**41])
def test_such_weights_go_by_the_direct_product(value: float) -> None:
    x, w, _ = drawn(1, 30, 128, 300)
    w[100, 7] = value
    assert product(x, w).tobytes() == product(x, w, algorithm="direct").tobytes()


@pytest.mark.parametrize("factor", [0.0, 1e2, 1e4, 1e12])
def test_a_row_beside_a_much_greater_one(factor: float) -> None:
    """The smaller one goes by the direct product, so that it does not get the other's rounding errors."""
    x, w, extras = drawn(2, 150, 128, 300)
    x[0, 3:71], x[1, 100] = x[0, 3:71] * np.float32(factor), x[1, 100] * np.float32(factor)
    direct = product(x, w, "residual", extras, algorithm="direct")
    smaller = [(0, row if factor == 0 else row + 75) for row in range(3, 71)] + [(1, 100 if factor == 0 else 25)]
    for threads in (1, 2, 3):
        found = product(x, w, "residual", extras, threads)
        same = {at for at in np.ndindex(2, 150) if found[at].tobytes() == direct[at].tobytes()}
        assert same == set(smaller), threads


@pytest.mark.parametrize("at", [np.s_[5], np.s_[:64, 17], np.s_[:, 17:]])
def test_weights_that_are_not_far_apart(at: Any) -> None:
    """Outputs that are greater by a factor, and inputs that are: partners' sums are as exact as a bound says."""
    x, w, _ = drawn(1, 30, 128, 344)
    w[at] *= np.float32(8)
    assert product(x, w).tobytes() != product(x, w, algorithm="direct").tobytes()


def test_an_output_of_zeros_beside_one_of_others() -> None:
    """It gets none of the other's rounding errors; two of zeros alone are no matter."""
    x, w, _ = drawn(1, 30, 128, 344)
    w[5] = 0
    assert product(x, w).tobytes() == product(x, w, algorithm="direct").tobytes()
    w[69] = 0
    found = product(x, w)
    assert found.tobytes() != product(x, w, algorithm="direct").tobytes()
    assert not found[..., [5, 69]].any()


FIGURE = 3e-4  # of the largest of 3,072 outputs


def quartiles(values: Array) -> Array:
    """The upper ones of the magnitudes along the last axis, of values that are not zero."""
    return np.nanquantile(np.where(values == 0, np.nan, abs(values).astype(np.float64)), 0.75, axis=-1)


def exceeding(x: Array, w: Array) -> float:
    """The greatest error of an output that is not the direct product's, beyond what that may lose of it.

    In quartiles of its row times those of its weights times the root of the row's number of values that are not zero.
    """
    found, direct = product(x, w), product(x, w, algorithm="direct")
    rows, weights = x.astype(np.float64), w.astype(np.float64)
    lost = abs(found - rows @ weights.T) - abs(rows) @ abs(weights).T * 1e-6
    unit = (quartiles(x) * np.sqrt(np.count_nonzero(x, axis=-1)))[..., None] * quartiles(w)
    return float(np.max(np.where(found == direct, 0, lost / unit)))


def great_values(rng: np.random.Generator, many: int, k: int, place: str) -> Array:
    """So many inputs of k, anywhere, or those that are added to one another, or of one half alone."""
    if place == "anywhere":
        return rng.choice(k, many, replace=False)
    block = np.arange(k) // 128 % 2 == 0
    first = rng.choice(np.flatnonzero(block[: k // 256 * 256]), max(1, many // 2), replace=False)
    return np.concatenate([first, first + 128])[:many] if place == "added" else first


@pytest.mark.parametrize(
    ("place", "dtype"),
    [("anywhere", "float32"), ("anywhere", "float16"), ("added", "float32"), ("one half", "float32")],
)
@pytest.mark.parametrize("many", [1, 5, 60, 384])
@pytest.mark.parametrize("factor", [3e1, 3e2, 1e4])
def test_the_error_of_great_values_is_bounded(factor: float, many: int, place: str, dtype: str) -> None:
    """Of rows, of weights and of both; in each row or in one of a pair; and of outputs that do not use them."""
    rng = np.random.default_rng(many)
    x, w, _ = drawn(1, 24, 128, 768)
    great, others = (great_values(rng, many, 768, place) for _ in range(2))

    def raised(values: Array, at: Any, inputs: Array, by: float = factor) -> Array:
        made = values.copy()
        made[at][..., inputs] *= np.float32(by)
        return made

    every, half = np.s_[:, :], np.s_[:, :12]
    cases = [
        *((raised(x, rows, great), raised(w, np.s_[:64], great, 0)) for rows in (every, half)),
        *((raised(x, half, great, 0), raised(w, outputs, great)) for outputs in (np.s_[:], np.s_[64:], np.s_[::7])),
        *((raised(x, every, great), raised(w, np.s_[64:], inputs)) for inputs in (great, others)),
    ]
    for of_x, of_w in cases:
        assert exceeding((of_x / 4).astype(dtype), (of_w / 4).astype(dtype)) < FIGURE


def test_sparse_rows_are_in_pairs() -> None:
    """Of 5 % of the values, as those of relu are."""
    x, w, _ = drawn(1, 64, 512, 768)
    x = np.where(np.random.default_rng(0).random(x.shape) < 0.05, abs(x), 0).astype(np.float32)
    found, direct = product(x, w), product(x, w, algorithm="direct")
    assert all(found[0, row].tobytes() != direct[0, row].tobytes() for row in range(64))


def test_outputs_that_fill_no_panel() -> None:
    """Nothing is the partner of what is not there."""
    x, w, _ = drawn(1, 30, 100, 300)
    assert product(x, w).tobytes() != product(x, w, algorithm="direct").tobytes()


def test_results_of_other_types() -> None:
    x, w, extras = drawn(1, 30, 128, 300)
    wide = product(x, w, "bias", extras[:1])
    assert product(x, w, "bias", extras[:1], out="float16").tobytes() == wide.astype(np.float16).tobytes()
