"""cast against torch for every pair of dtypes that both have: reference, scalar expression, and built engine.

The values are those at which conversions differ: halves, both sides of every integer's limits, infinities, NaN, both
zeros, denormals, and what rounds twice on the way to 16 bits. torch converts 1, 7, 64 and 1000 elements on different
paths.
"""

from __future__ import annotations

import itertools
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from ingot import dtypes, functional, ops
from ingot.builder.network import build_network
from ingot.ir import ExprBuilder, Network, Spec
from ingot.ir.expr import evaluate
from tests.ops.check import from_torch, to_torch

torch = pytest.importorskip("torch")

Array = np.ndarray[Any, Any]
DTYPES = (dtypes.bool_, *dtypes.INTEGERS, *dtypes.FLOATS)  # what torch and the native core both store
PAIRS = list(itertools.product(DTYPES, DTYPES))
SIZES = (1, 7, 64, 1000)

# Where torch differs from itself: its vectors and its single elements, and one release or processor and another, give
# different results for numbers that C++ leaves undefined. Ours are those of its single elements.
# (source is a float, target) → (the numbers that agree, why)
EXCEPTIONS = {
    dtypes.uint32: (lambda x: (x > -(2.0**31) - 1) & (x < 2.0**32), "its vectors do not go by way of int64"),
}


def edges(dtype: dtypes.DType) -> Array:
    if dtype is dtypes.bool_:
        return np.array([True, False, True, True])
    rng = np.random.default_rng(7)
    widths = (0, 1, 7, 8, 15, 16, 24, 31, 32, 39, 53, 62, 63, 64)
    around = [sign * (2**width + d) for width in widths for sign in (1, -1) for d in (-1, 0, 1)]
    # these are halfway between two bfloat16, or two float16, once they are float32
    twice = [0x40400001, 0x40BFFFFF, 0x4040000000000001, 0x40BFFFFFFFFFFFFF, 0x8080000000000001, 0x8000017FFFFFFFFF]
    if dtype.is_integer:
        whole = [v % 2**64 for v in (*around, *twice, *range(-3, 4), 2049, 2051, 65519, 65520)]
        return np.concatenate([np.array(whole, np.uint64), rng.integers(0, 2**64, 200, np.uint64)]).astype(dtype.numpy)
    parts = [0.0, 0.5, 0.6, 1.5, 1.7, 2.5, 2.9, 126.5, 127.5, 128.5, 255.5, 300.0, 3e9, 5e9, 1e12, 1e19, 1.5e19, 1e30,
             np.inf, np.nan, 1e-45, 1e-40, 6e-8, 3e-8, 65504, 65519, 65520, 3.3895314e38, 3.4e38, 1e300,
             1 + 2.0**-8 + 2.0**-40, 1 + 3 * 2.0**-8 - 2.0**-40, 1 + 2.0**-11 + 2.0**-40, 1 + 3 * 2.0**-11 - 2.0**-40,
             2.0**63 - 1024, 2.0**64 - 2048, 2.0**53 + 2]  # fmt: skip
    with np.errstate(over="ignore"):
        return np.concatenate(
            [
                parts,
                np.negative(parts),
                np.array(around, np.float64),
                rng.standard_normal(100) * 100,
                rng.standard_normal(200) * 10.0 ** rng.uniform(-3, 21, 200),
            ]
        ).astype(dtype.numpy)


def expected(x: Array, target: dtypes.DType, size: int) -> Array:
    """What torch makes of x, so many elements at a time."""
    chunks = [x[i : i + size] for i in range(0, len(x), size)]
    with np.errstate(all="ignore"):
        return np.concatenate([from_torch(to_torch(c).to(getattr(torch, target.name))) for c in chunks])


def check(got: Array, want: Array, x: Array, what: str) -> None:
    """The same bits, but for NaN, whose bits say nothing."""
    source, target = dtypes.get(x.dtype), dtypes.get(want.dtype)
    assert got.dtype == want.dtype and got.shape == want.shape, what
    differs = got.view(np.uint8).reshape(len(x), -1) != want.view(np.uint8).reshape(len(x), -1)
    wrong = differs.any(axis=1)
    if target.is_float:
        wrong &= ~(np.isnan(got) & np.isnan(want))
    if source.is_float and target in EXCEPTIONS:
        wrong &= EXCEPTIONS[target][0](x.astype(np.float64))
    assert not wrong.any(), f"{what}: of {x[wrong][:5]} {got[wrong][:5]}, must be {want[wrong][:5]}"


def tiled(x: Array) -> Array:
    return np.resize(x, 1000)


@pytest.mark.parametrize(("source", "target"), PAIRS, ids=[f"{a}-{b}" for a, b in PAIRS])
def test_reference_and_expression(source: dtypes.DType, target: dtypes.DType) -> None:
    distinct = edges(source)
    x = tiled(distinct)
    found = ops.cast(x, target)
    builder = ExprBuilder()
    builder.output(ops.cast.op(dtype=target).expr(builder, builder.input(0, source)))
    (of_expression,) = evaluate(builder.json(), [x], [target])
    for size in SIZES:
        count = len(x) if size == len(x) else len(distinct)
        want = expected(x[:count], target, size)
        check(found[:count], want, x[:count], f"reference, {size} at a time")
        check(of_expression[:count], want, x[:count], f"expression, {size} at a time")


def built(op: Any, pairs: list[tuple[dtypes.DType, dtypes.DType]]) -> Any:
    """An engine that converts every source to its targets, each by itself."""
    network = Network("casts")
    inputs: dict[dtypes.DType, Any] = {}
    for source, target in pairs:
        if source not in inputs:
            inputs[source] = network.input(source.name, Spec(("N",), source))
        network.output(f"{source.name}_{target.name}", op(inputs[source], target))
    engine = build_network(network, {})
    assert engine._native.host_calls("main") == [], "every pair runs natively"
    return engine


def test_native() -> None:
    """At every number of elements, in tiles and out of them; strided operands too. tests/kernels/test_levels.py runs
    this file at the other levels."""
    session = built(lambda x, d: ops.cast(x, d), PAIRS).session()
    for size in (*SIZES, 513):
        feeds = {d.name: np.resize(edges(d), size) for d in DTYPES}
        found = session.run(feeds)
        for source, target in PAIRS:
            if source is not target:
                x, got = feeds[source.name], found[f"{source.name}_{target.name}"]
                check(got, expected(x, target, 1000), x, f"{source} to {target}, {size}")


# ------------------------------------------------------------------------------------------------------- saturating
def held(x: Array, target: dtypes.DType) -> Array:
    """What saturates, in Python's integers."""
    low = 0 if target.kind == "uint" else -(2 ** (target.bits - 1))
    high = low + 2**target.bits - 1
    values = [
        0 if v != v else high if v == np.inf else low if v == -np.inf else min(max(int(v), low), high)
        for v in (x.tolist() if x.dtype.kind != "V" else x.astype(np.float64).tolist())
    ]
    return np.array(values, object).astype(target.numpy)


INTEGER_PAIRS = [(a, b) for a, b in PAIRS if b in dtypes.INTEGERS and a is not b]


def test_saturating() -> None:
    session = built(lambda x, d: ops.cast(x, d, saturate=True), INTEGER_PAIRS).session()
    feeds = {d.name: tiled(edges(d)) for d in DTYPES}
    found = session.run(feeds)
    for source, target in INTEGER_PAIRS:
        x = feeds[source.name]
        want = held(x, target)
        for got in (ops.cast(x, target, saturate=True), found[f"{source.name}_{target.name}"]):
            np.testing.assert_array_equal(got, want, err_msg=f"{source} to {target}")


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz"])
def test_floats_of_8_bits(name: str) -> None:
    """Beyond the range NaN or infinity, or the largest number with `saturate`; torch saturates float8_e4m3fn alone."""
    x = np.array([0.3, -1.7, 447, 448, 460, 500, 1e9, -1e9, np.inf, -np.inf, np.nan, 1e-9], np.float32)
    like_torch = ops.cast(x, name, saturate=name == "float8_e4m3fn")
    check(like_torch, from_torch(torch.from_numpy(x).to(getattr(torch, name))), x, name)
    plain, saturated = (ops.cast(x, name, saturate=s).astype(np.float32) for s in (False, True))
    largest = float(ml_dtypes.finfo(dtypes.get(name).numpy).max)
    assert saturated[6:10].tolist() == [largest, -largest, largest, -largest]
    assert not np.isfinite(plain[6:11]).any()
    assert np.isnan(saturated[10])
    assert saturated[:2].tolist() == plain[:2].tolist()


# -------------------------------------------------------------------------------------------- inside an expression
def test_a_computed_bfloat16_is_rounded_before_it_jumps() -> None:
    """Fused sums are not rounded to bfloat16, but what is cut off or compared is the bfloat16 number, as unfused."""
    network = Network("jumps")
    a, b = (network.input(name, Spec(("N",), dtypes.bfloat16)) for name in "ab")
    network.output("whole", ops.cast(a + b, "int32"))
    network.output("floor", ops.floor(a + b))
    network.output("equal", ops.equal(a + b, b))
    network.output("codes", ops.quantize(a + b, np.float32(0.5)))
    left, right = (torch.tensor(v).bfloat16() for v in ([2.0, -0.001, 3.0], [0.998, 1, 1000]))
    found = build_network(network, {}).session().run({"a": from_torch(left), "b": from_torch(right)})
    total = left + right
    assert found["whole"].tolist() == total.int().tolist() == [3, 1, 1004]
    assert found["floor"].astype(float).tolist() == total.floor().tolist()
    assert found["equal"].tolist() == (total == right).tolist()
    assert found["codes"].tolist() == [6, 2, 127]


# ---------------------------------------------------------------------------------------------- the two meanings
def test_the_retired_cast_quantises_and_every_other_road_converts() -> None:
    x = np.array([0.6, 1.5, -1.7, 2.9, 300, np.nan], np.float32)
    network = Network("roads")
    value = network.input("x", Spec((6,), dtypes.float32))
    network.output("quantised", functional.cast(value, "int8"))
    network.output("method", value.cast("int8"))
    network.output("to", value.to("int8"))
    network.output("op", ops.cast(value, "int8"))
    network.output("back", functional.cast(functional.cast(value, "int8", scale=0.5), "float32", scale=0.5))
    found = build_network(network, {}).session().run({"x": x})
    assert found["quantised"].tolist() == functional.cast(x, "int8").tolist() == [1, 2, -2, 3, 127, 0]
    for road in ("method", "to", "op"):
        assert found[road].tolist() == torch.from_numpy(x).to(torch.int8).tolist() == [0, 1, -1, 2, 44, 0]
    assert found["back"].tolist() == [0.5, 1.5, -1.5, 3.0, 63.5, 0.0]


def test_a_quantised_weight_in_a_network() -> None:
    """Zero points and scales per channel, both ways, in one loop with what is around them."""
    rng = np.random.default_rng(0)
    q = rng.integers(-128, 128, (6, 40)).astype(np.int8)
    zero, scale = rng.integers(-9, 9, (6, 1)).astype(np.int8), rng.uniform(0.01, 0.1, (6, 1)).astype(np.float32)
    network = Network("weights")
    values = [network.input(n, Spec.of(a)) for n, a in {"q": q, "scale": scale, "zero": zero}.items()]
    wide = ops.dequantize(*values)
    network.output("wide", wide)
    network.output("again", ops.quantize(wide, values[1], values[2], minimum=-128, maximum=127))
    found = build_network(network, {}).session().run({"q": q, "scale": scale, "zero": zero})
    np.testing.assert_array_equal(found["wide"], (q.astype(np.int32) - zero).astype(np.float32) * scale)
    np.testing.assert_array_equal(found["again"], q)
