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


def drawn(samples: int, rows: int, n: int, k: int) -> tuple[Array, Array, tuple[Array, Array]]:
    rng = np.random.default_rng(rows + n + k)
    shapes = ((samples, rows, k), (n, k), (n,), (samples, rows, n))
    x, w, bias, residual = (rng.standard_normal(shape).astype(np.float32) for shape in shapes)
    return x, w, (bias, residual)


def ended(sums: Array, epilogue: str, bias: Array, residual: Array) -> Array:
    """The epilogue in float64."""
    both = sums + bias
    if epilogue == "gelu":
        (found,) = run("elementwise", {"expression": {"steps": GELU, "outputs": [8]}}, [both.astype(np.float32)],
                       [("float32", both.shape)])  # fmt: skip
        return found
    return {"none": sums, "bias": both, "residual": both + residual, "no chain": both * both + sums}[epilogue]


def used(epilogue: str, extras: tuple[Array, Array]) -> tuple[Array, ...]:
    return {"none": (), "residual": extras}.get(epilogue, extras[:1])


@pytest.mark.parametrize("epilogue", EPILOGUES)
@pytest.mark.parametrize(("samples", "rows", "n", "k"), SIZES)
def test_product(samples: int, rows: int, n: int, k: int, epilogue: str) -> None:
    x, w, extras = drawn(samples, rows, n, k)
    sums, scale = x.astype(np.float64) @ w.T.astype(np.float64), np.sqrt(k)
    wanted = ended(sums, epilogue, *extras)
    found = product(x, w, epilogue, used(epilogue, extras))
    slope = 1 + (2 * abs(sums + extras[0]) if epilogue == "no chain" else 0)
    assert np.all(abs(found - wanted) <= slope * scale * 6e-6 + 1e-6), np.max(abs(found - wanted))
    for threads in (2, 3):
        for split in ({}, {"split": "rows"}, {"split": "outputs"}):
            same = product(x, w, epilogue, used(epilogue, extras), threads, **split)
            assert same.tobytes() == found.tobytes(), (threads, split)


def test_it_is_another_order_of_sums() -> None:
    """So that the other tests test it, and what cannot be in pairs goes by the direct product."""
    x, w, _ = drawn(1, 28, 64, 258)
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


@pytest.mark.parametrize("k", [64, 900])
def test_samples_are_apart(k: int) -> None:
    """The same bits of a sample alone and in company, and of rows that are further apart than they are long."""
    x, w, _ = drawn(5, 130, 128, k)
    whole = product(x, w, threads=3)
    for sample in range(5):
        assert product(x[sample : sample + 1].copy(), w).tobytes() == whole[sample].tobytes()
    wide = np.zeros((5, 130, k + 3), np.float32)
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


@pytest.mark.parametrize("at", [np.s_[5], np.s_[69], np.s_[:, 17], np.s_[:, 343]])
def test_weights_beside_much_greater_ones(at: Any) -> None:
    """Of outputs, and of inputs that are added."""
    x, w, _ = drawn(1, 30, 128, 344)
    assert product(x, w).tobytes() != product(x, w, algorithm="direct").tobytes()
    w[at] *= np.float32(1e3)
    assert product(x, w).tobytes() == product(x, w, algorithm="direct").tobytes()


def error(found: Array, exact: Array) -> float:
    """The root mean square one, of that of the outputs."""
    return float(np.sqrt(np.mean((found - exact) ** 2) / np.mean(exact**2)))


@pytest.mark.parametrize("many", [1, 2, 3])
@pytest.mark.parametrize("factor", [3e1, 1e2, 1e3, 1e5])
def test_an_input_much_greater_than_the_others(factor: float, many: int) -> None:
    """Outputs that do not use it, beside partners that do, get none of its rounding errors."""
    x, w, _ = drawn(1, 64, 512, 768)
    great = np.arange(many) * 37
    x[..., great] = np.where(x[..., great] < 0, -1, 1) * np.float32(factor)
    w[:256, great] = 0
    exact = (x.astype(np.float64) @ w.T.astype(np.float64))[..., :256]
    found, direct = (product(x, w, algorithm=word)[..., :256] for word in ("strassen", "direct"))
    if factor < 1e3:
        assert found.tobytes() != direct.tobytes()
        assert error(found, exact) < 5e-6
    else:
        assert found.tobytes() == direct.tobytes()
        assert error(found, exact) < 7e-7


@pytest.mark.parametrize("factor", [1e2, 1e3, 1e5])
def test_a_weight_much_greater_than_an_output_s_others(factor: float) -> None:
    """Of each output and each input, so that partners are near: rows that do not use them get none of their errors."""
    x, w, _ = drawn(1, 64, 512, 512)
    w[np.arange(512), np.arange(512)] = factor
    x[:, :32, 256:] = 0
    exact = (x.astype(np.float64) @ w.T.astype(np.float64))[:, :32, 256:]
    found, direct = (product(x, w, algorithm=word)[:, :32, 256:] for word in ("strassen", "direct"))
    assert (found.tobytes() == direct.tobytes()) == (factor > 100)
    assert error(found, exact) < 5e-6


@pytest.mark.parametrize(("n", "k"), [(128, 512), (896, 900)])
def test_the_limit_of_such_values(n: int, k: int) -> None:
    """8 sqrt(k) times the mean of the others: a row over it and its partner are direct, whatever their company."""
    x, w, extras = drawn(2, 70, n, k)
    x = np.copysign(np.float32(1), x)
    limit = 8 / np.sqrt(k) * (k - 1)
    x[..., 0] = 0.999 * limit
    over = [(0, 7), (0, 34), (1, 0), (1, 69), (1, 40)]
    for at in over:
        x[at][0] = -1.001 * limit
    direct = product(x, w, "residual", extras, algorithm="direct")
    alone = [product(x[i : i + 1].copy(), w, "residual", (extras[0], extras[1][i : i + 1].copy())) for i in range(2)]
    for threads, split in ((1, "rows"), (2, "rows"), (2, "outputs"), (3, "rows"), (3, "outputs")):
        found = product(x, w, "residual", extras, threads, split=split)
        same = {at for at in np.ndindex(2, 70) if found[at].tobytes() == direct[at].tobytes()}
        assert same == {(sample, row % 35 + half) for sample, row in over for half in (0, 35)}
        assert found.tobytes() == np.concatenate(alone).tobytes()


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
