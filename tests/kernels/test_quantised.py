"""Sums of int8 that an epilogue quantises again: bits as NumPy has them, in odd sizes, with zero points around x."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot import _native, dtypes
from ingot.ir.expr import evaluate
from ingot.ops.fused import JOINED, REQUANTISED, expr_json, quantising
from tests.kernels.one_call import Weight
from tests.kernels.one_call import run as run_stored
from tests.kernels.support import Array, run
from tests.kernels.test_conv import Window, packed, reference, square
from tests.kernels.test_depthwise import exact, window
from tests.kernels.test_matmul import exact_int8, pack, wholes

SCALED = (*REQUANTISED[0][:5],)  # sums · operand 1 + operand 2
WRAPPED = ((*SCALED, ("to_int", "int64", 4, "int32"), ("wrap", "int64", 5, "int8")), (6,))  # not held in its range
SQUARED = quantising((*SCALED, ("mul", "float32", 4, 4)), 1e-7, 2.0, -128.0, 127.0, "int8")  # no chain of steps
ZEROS = quantising((*SCALED, ("input", "int64", 3), ("to_float", "float32", 5), ("add", "float32", 4, 6)),
                   0.002, 7.0, -128.0, 127.0, "int8")  # fmt: skip
RELU = (*SCALED, ("const", "float32", 0.0), ("max", "float32", 4, 5))
LIMITS = {  # relu before, or a zero point that is none of the numbers: what end_chain looks at
    "relu": quantising(RELU, 0.002, -128.0, -128.0, 127.0, "int8"),
    "relu of what is turned": quantising(RELU, -0.002, 100.0, 0.0, 255.0, "uint8"),
    "beyond its zero point": quantising(RELU, 0.002, -3.0, 5.0, 100.0, "int8"),
}
BARE = quantising((("input", "float32", 0),), 0.002, 7.0, -128.0, 127.0, "int8")
EPILOGUES = {"int8": REQUANTISED, "a residual": JOINED, "wraps": WRAPPED, "twice": SQUARED, "no scale": ZEROS,
             "bare": BARE, **LIMITS}  # fmt: skip


def operands(rng: Any, name: str, shape: tuple[int, ...]) -> list[Array]:
    """What the epilogue of that name reads, for a result of this shape; scales that are no numbers among them."""
    n = shape[-1]
    if name == "bare":
        return []
    scale, shift = rng.standard_normal(n).astype(np.float32), (9 * rng.standard_normal(n)).astype(np.float32)
    if name != "wraps":
        scale[: n // 7] = np.nan
        shift[-1] = np.inf
    more = {"a residual": rng.integers(0, 256, shape).astype(np.uint8), "no scale": rng.integers(-128, 128, n, np.int8)}
    return [scale, shift, *([more[name]] if name in more else [])]


def finished(sums: Array, name: str, extras: list[Array]) -> tuple[str, Array]:
    kind = EPILOGUES[name][0][-1][-1]
    return kind, evaluate(expr_json(EPILOGUES[name]), [sums.astype(np.float32), *extras], [dtypes.get(kind)])[0]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", EPILOGUES)
@pytest.mark.parametrize(("rows", "n", "k"), [(1, 40, 7), (5, 33, 64), (37, 75, 150), (130, 16, 1100)])
def test_products(name: str, rows: int, n: int, k: int) -> None:
    rng = np.random.default_rng(n)
    x, w = wholes(rng, (rows, k)), wholes(rng, (n, k))
    extras = operands(rng, name, (rows, n))
    kind, want = finished(exact_int8(x, w), name, extras)
    params = {"n": n, "k": k, "parts": 1, "epilogue": expr_json(EPILOGUES[name])}
    for threads in (1, 2):
        found = run_stored("matmul_packed", params, [x, Weight(pack([w])), *extras], [(kind, (rows, n))], threads)[0]
        np.testing.assert_array_equal(found, want)


def added(steps: list[Any], kind: str, operand: int, rounded: bool = False) -> None:
    """Adds an operand to the last value: (q - 3) * 0.3 of one of whole numbers, which may be rounded to bfloat16."""
    last = len(steps) - 1
    whole = kind in ("int8", "uint8")
    steps.append(("input", "int64" if whole else "float32", operand))
    if whole:
        steps += [("const", "int64", 3), ("sub", "int64", last + 1, last + 2), ("to_float", "float32", last + 3)]
        steps += [("const", "float32", 0.3), ("mul", "float32", last + 4, last + 5)]
    if rounded:
        steps.append(("round", "float32", len(steps) - 1, "bfloat16"))
    steps.append(("add", "float32", last, len(steps) - 1))


@pytest.mark.sampled(7)
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8", "uint8"])
@pytest.mark.parametrize("residual", [None, "float32", "bfloat16", "int8", "uint8", "rounded int8", "rounded uint8"])
@pytest.mark.parametrize("shifted", [None, "float32", "bfloat16"])
@pytest.mark.parametrize("limited", ["", "relu", "relu of a sum with 0"])
@pytest.mark.parametrize("size", [1.0, 0.01], ids=["", "no int32 leaves the range of int32"])
def test_scaled_sums(kind: str, residual: str | None, shifted: str | None, limited: str, size: float) -> None:
    """Every way in which sums of whole numbers end in most layers, for odd numbers of rows and of columns."""
    rng = np.random.default_rng(5)
    n = 103
    rounded, residual = residual is not None and "rounded" in residual, residual and residual.removeprefix("rounded ")
    for rows, k, least in ((1, 33, -128), (7, 33, 0), (15, 33, -128), (37, 64, 0), (30, 64, -128)):
        steps: list[Any] = list(SCALED)
        extras = operands(rng, "int8", (rows, n))
        extras[0] *= np.float32(size)
        if shifted is not None:
            extras[1] = extras[1].astype(dtypes.get(shifted).numpy)
            extras.append(rng.standard_normal(n).astype(dtypes.get(shifted).numpy))
            added(steps, "float32", 3)
        if residual is not None:
            numbers = rng.integers(0, 256, (rows, n)).astype(np.uint8)
            extras.append(numbers if residual == "uint8" else numbers.view(np.int8) if residual == "int8" else
                          rng.standard_normal((rows, n)).astype(dtypes.get(residual).numpy))  # fmt: skip
            added(steps, residual, len(extras), rounded)
        if "0" in limited:
            last = len(steps) - 1
            steps += [("const", "float32", 0.0), ("add", "float32", last, last + 1)]
        if limited:
            last = len(steps) - 1
            steps += [("const", "float32", 0.0), ("max", "float32", last, last + 1)]
        expr: Any = (tuple(steps), (len(steps) - 1,))
        if kind in ("int8", "uint8"):
            low, high = (-128.0, 127.0) if kind == "int8" else (0.0, 255.0)
            expr = quantising(steps, 0.5, 7.0, low, high, kind)
        x, w = rng.integers(least, 128, (rows, k), np.int8), wholes(rng, (n, k))
        want = evaluate(expr_json(expr), [exact_int8(x, w).astype(np.float32), *extras], [dtypes.get(kind)])[0]
        params = {"n": n, "k": k, "parts": 1, "epilogue": expr_json(expr)}
        found = run_stored("matmul_packed", params, [x, Weight(pack([w])), *extras], [(kind, (rows, n))], 2)[0]
        # In float32, for NumPy knows no NaN of bfloat16.
        np.testing.assert_array_equal(found.astype(np.float32), want.astype(np.float32))


@pytest.mark.parametrize("least", [2.0**-149, 2.0**-126, 2.0**-101, 2.0**-100, 1.0])
def test_denormals_stay(least: float) -> None:
    """Sums that become bfloat16, by numbers so small that some results are denormals, or just too large for that."""
    rng = np.random.default_rng(6)
    n, k, rows = 64, 8, 29
    x, w = rng.integers(0, 3, (rows, k), np.int8), rng.integers(-2, 3, (n, k)).astype(np.int8)
    few = np.array([-1.5, -1, 0, 1, 1.25], np.float32) * np.float32(least)
    extras = [rng.choice(few[[0, 1, 3, 4]], n), rng.choice(few, n)]
    expr: Any = expr_json((SCALED, (4,)))
    want = evaluate(expr, [exact_int8(x, w).astype(np.float32), *extras], [dtypes.bfloat16])[0]
    params = {"n": n, "k": k, "parts": 1, "epilogue": expr}
    found = run_stored("matmul_packed", params, [x, Weight(pack([w])), *extras], [("bfloat16", (rows, n))])[0]
    np.testing.assert_array_equal(found.view(np.uint16), want.view(np.uint16))


GELU: list[Any] = [  # of value 0
    ("const", "float32", 0.5), ("mul", "float32", 1, 0), ("const", "float32", 0.7071067811865476),
    ("mul", "float32", 0, 3), ("erf", "float32", 4), ("const", "float32", 1.0), ("add", "float32", 6, 5),
    ("mul", "float32", 2, 7),
]  # fmt: skip


def moved(step: Any, by: int) -> Any:
    """A step whose operands are so many further on; a constant has none."""
    return step if step[0] == "const" else (*step[:2], *(at + by for at in step[2:]))


@pytest.mark.parametrize("rows", [1, 7, 37])
@pytest.mark.parametrize("kind", ["float32", "bfloat16", "int8"])
@pytest.mark.parametrize("biases", [(), ("bfloat16",), ("float32", "float16")], ids=str)
@pytest.mark.parametrize("end", ["", "residual", "relu", "gelu", "residual and gelu"])
def test_sums_of_quantised_rows(rows: int, kind: str, biases: tuple[str, ...], end: str) -> None:
    """Each row has a scale of its own. GELU, of which NumPy has other last bits, is compared with fewer columns."""
    rng = np.random.default_rng(7)
    n, k = 103, 64
    steps: list[Any] = [*SCALED[:3], ("input", "float32", 2), ("mul", "float32", 2, 3)]
    extras = [rng.standard_normal(n).astype(np.float32), 0.01 * rng.standard_normal((rows, 1)).astype(np.float32)]
    for bias in biases:
        extras.append(rng.standard_normal(n).astype(dtypes.get(bias).numpy))
        added(steps, "float32", len(extras))
    if "residual" in end:
        extras.append(rng.standard_normal((rows, n)).astype(dtypes.bfloat16.numpy))
        added(steps, "bfloat16", len(extras))
    last = len(steps) - 1
    if end == "relu":
        steps += [("const", "float32", 0.0), ("max", "float32", last, last + 1)]
    elif "gelu" in end:
        steps += [moved(step, last) for step in GELU]
    whole: Any = (tuple(steps), (len(steps) - 1,))
    expr = expr_json(quantising(steps, 0.5, 7.0, -128.0, 127.0, kind) if kind == "int8" else whole)
    x, w = wholes(rng, (rows, k)), wholes(rng, (n, k))

    def multiplied(first: int, end: int) -> Array:
        params = {"n": end - first, "k": k, "parts": 1, "epilogue": expr}
        some = [np.ascontiguousarray(extra if extra.shape[-1] == 1 else extra[..., first:end]) for extra in extras]
        stored = [x, Weight(pack([w[first:end]])), *some]
        return run_stored("matmul_packed", params, stored, [(kind, (rows, end - first))], 2)[0].astype(np.float32)

    if "gelu" in end:
        want = np.concatenate([multiplied(at, min(at + 31, n)) for at in range(0, n, 31)], -1)
    else:
        sums = exact_int8(x, w).astype(np.float32)
        want = evaluate(expr, [sums, *extras], [dtypes.get(kind)])[0].astype(np.float32)
    np.testing.assert_array_equal(multiplied(0, n), want)


WINDOWS = [
    (2, (9, 7), 3, 40, square(3, 2, 1)),
    (1, (6, 5), 6, 10, square(3, 1, 2, groups=2)),
    (1, (3, 2), 5, 33, square(5, 1, 4)),
    (2, (11,), 7, 17, square(3, 2, 2, dilation=2, rank=1)),
    (1, (3, 4, 5), 4, 5, square(3, 1, 1, rank=3)),
]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", ["int8", "a residual", "twice"])
@pytest.mark.parametrize(("n", "sizes", "channels", "outputs", "over"), WINDOWS)
@pytest.mark.parametrize("outside", [-128, 5])
def test_convolutions(
    name: str, n: int, sizes: tuple[int, ...], channels: int, outputs: int, over: Window, outside: int
) -> None:
    rng = np.random.default_rng(outputs)
    x = wholes(rng, (n, *sizes, channels))
    w = wholes(rng, (outputs, *over.kernel, channels // over.groups))
    sums = reference(x.astype(np.float64) - outside, w, over)[0]
    sums += outside * w.reshape(outputs, -1).sum(1, dtype=np.int64)
    extras = operands(rng, name, sums.shape)
    kind, want = finished(sums, name, extras)
    params = over.params(outputs, channels, expr_json(EPILOGUES[name])) | {"outside": outside}
    for threads in (1, 2):
        given = [x, packed(w, over.groups), *extras]
        found = run_stored("conv_packed", params, given, [(kind, sums.shape)], threads)[0]
        np.testing.assert_array_equal(found, want)


@pytest.mark.parametrize("name", ["int8", "a residual", "bare"])
@pytest.mark.parametrize(("kernel", "channels"), [((3, 3), 37), ((5,), 16), ((2, 3, 3), 130)])
@pytest.mark.parametrize("outside", [-128, 0, 5])
def test_every_channel_by_itself(name: str, kernel: tuple[int, ...], channels: int, outside: int) -> None:
    rng = np.random.default_rng(channels)
    sizes = (4, 3, 23)[3 - len(kernel) :]
    more = {"stride": [2, 1, 1][: len(kernel)], "pre_padding": [1, 2, 1][: len(kernel)]}
    over = window(kernel, **more)
    out = [(n + 3 - k) // s + 1 for n, k, s in zip(sizes, kernel, more["stride"], strict=True)]
    x, w = wholes(rng, (2, *sizes, channels)), wholes(rng, (int(np.prod(kernel)), channels))
    sums = exact(x.astype(np.float64) - outside, w, out, over) + outside * w.sum(0, dtype=np.int64)
    extras = operands(rng, name, sums.shape)
    kind, want = finished(sums, name, extras)
    params = {**over, "outside": outside, "epilogue": expr_json(EPILOGUES[name])}
    for threads in (1, 2):
        (found,) = run("conv_depthwise", [x, w, *extras], [(np.dtype(kind), sums.shape)], threads, **params)
        np.testing.assert_array_equal(found, want)


def test_refusals() -> None:
    x, w = np.zeros((1, 4, 2), np.float32), np.zeros((2, 3, 2), np.float32)
    over = square(3, rank=1)
    params = over.params(2, 2, {"steps": [["input", "float32", 0]], "outputs": [0]})
    for outside, why in ((1, "outside is 0 around floats"), (128, "outside is 128, must be")):
        with pytest.raises(_native.Error, match=why):
            run_stored("conv_packed", params | {"outside": outside}, [x, packed(w, 1)], [("float32", (1, 2, 2))])
    many, whole = np.zeros((1025, 1), np.int8), np.zeros((1, 1025, 1), np.int8)
    of = {**window((1025,)), "epilogue": params["epilogue"]}
    with pytest.raises(_native.Error, match="exact up to 1024 taps"):
        run("conv_depthwise", [whole, many], [(np.float32, (1, 1, 1))], 1, **of)
