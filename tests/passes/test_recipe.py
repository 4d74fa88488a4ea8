"""Recipes: layouts invert bit for bit, the JSON form is strict, and a recipe gives the same bytes each time."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot import dtypes
from ingot.errors import EngineVersionError, RecipeError
from ingot.ir import Network, Spec
from ingot.ir import recipe as R
from ingot.ir.evaluation import evaluate
from ingot.ir.steps.quantize import PARTS, TRIED
from ingot.ops.layouts import LAYOUTS, pack_groups, phases, unpack_groups
from ingot.ops.panels import pack_panels, packed_shape, unpack_panels
from ingot.ops.spatial import ConvTranspose
from ingot.passes.convolution import phase_recipe
from ingot.passes.layout import packed_groups

FLOATS = ("float32", "bfloat16", "float16")
PACKED = (*FLOATS, "int8", "int4")


def bits(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Arbitrary bit patterns: NaNs, infinities and denormals too. int4 has a byte for each of its values."""
    kind = dtypes.get(dtype)
    if kind is dtypes.int4:
        return np.random.default_rng(seed).integers(-8, 8, shape).astype(kind.numpy)
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, kind.bits // 8), np.uint8)
    return raw.view(kind.numpy).reshape(shape)


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@given(st.integers(1, 100), st.integers(1, 70), st.sampled_from(PACKED), st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_packing_inverts_bit_for_bit(n: int, k: int, dtype: str, parts: int, seed: int) -> None:
    weights = [bits((n, k), dtype, seed + i) for i in range(parts)]
    packed = pack_panels(weights)
    assert packed.shape == packed_shape(dtypes.get(dtype), n, k, parts)
    assert all(same_bits(a, b) for a, b in zip(unpack_panels(packed, n, k, parts), weights, strict=True))


@pytest.mark.parametrize("dtype", FLOATS)
def test_packing_is_the_documented_layout(dtype: str) -> None:
    n, k, kind = 40, 5, dtypes.get(dtype)
    gate, up = (np.random.default_rng(i).standard_normal((n, k)).astype(kind.numpy) for i in range(2))
    packed = pack_panels([gate, up])
    for panel in range(4):
        part = (gate, up)[panel % 2]
        for col in range(k + k % 2 if dtype == "bfloat16" else k):
            for lane in range(32):
                row = panel // 2 * 32 + lane
                want = part[row, col] if row < n and col < k else 0
                got = packed[panel, col // 2, lane, col % 2] if dtype == "bfloat16" else packed[panel, col, lane]
                assert got == want


@pytest.mark.parametrize(("dtype", "depth"), [("int8", 4), ("int4", 8)])
def test_packing_of_integers_is_the_documented_layout(dtype: str, depth: int) -> None:
    weight = bits((40, 13), dtype)
    packed = pack_panels([weight]).view(np.uint8)
    assert packed.shape == (2, -(-13 // depth), 32, 4)
    for row in range(64):
        for k in range(-(-13 // depth) * depth):
            byte = packed[row // 32, k // depth, row % 32, k % depth * 4 // depth]
            got = byte if dtype == "int8" else byte >> k % 2 * 4 & 15
            want = int(weight[row, k]) if row < 40 and k < 13 else 0
            assert got == want % 2 ** (32 // depth)


def undone(recipe: R.Recipe, array: np.ndarray[Any, Any], sources: dict[str, R.Known]) -> list[np.ndarray[Any, Any]]:
    """The operands of the last step, from the stored array."""
    call, known = recipe.steps[-1], recipe.infer_all(sources)
    assert call.step.inverse is not None
    return call.step.inverse(array, [known[i] for i in call.inputs], **dict(call.args))


@given(st.data())
def test_layout_steps_invert(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    x = bits(shape, data.draw(st.sampled_from(FLOATS)))
    known = {"x": (dtypes.get(x.dtype), shape)}
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    after = tuple(data.draw(st.integers(0, 3)) for _ in shape)
    for name, args in (("transpose", {"axes": axes}), ("reshape", {"shape": (x.size,)}), ("pad", {"after": after})):
        made = R.source("x").then(name, **args)
        stored = evaluate(made, {"x": x})
        assert (dtypes.get(stored.dtype), stored.shape) == made.infer(known)
        assert same_bits(undone(made, stored, known)[0], x)


def quantized(
    weight: np.ndarray[Any, Any], dtype: str, group: int, limit: int, step: str = "scales"
) -> list[np.ndarray[Any, Any]]:
    """Integers and scales by the recipe's steps."""
    scales = R.source("w").then(step, group=group, limit=limit)
    made = R.combine("quantize", [R.source("w"), scales], dtype=dtype, group=group, limit=limit)
    assert R.Recipe.from_json(json.loads(json.dumps(made.json()))) == made
    known = {"w": (dtypes.get(weight.dtype), weight.shape)}
    specs = [r.infer(known) for r in (made, scales)]
    found = [evaluate(r, {"w": weight}) for r in (made, scales)]
    assert [(dtypes.get(a.dtype), a.shape) for a in found] == specs
    return found


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("to", "group", "limit"), [("int8", 0, 127), ("int8", 32, 127), ("int4", 32, 7)])
def test_quantised_weights_are_the_nearest(dtype: str, to: str, group: int, limit: int) -> None:
    """Against NumPy in float64: the largest of each group is `limit`, and every weight is at most half a step off."""
    w = (np.random.default_rng(0).standard_normal((70, 96)) * 0.05).astype(dtypes.get(dtype).numpy)
    w[3, :] = 0
    q, scale = quantized(w, to, group, limit)
    assert scale.shape == (70, 3 if group else 1)
    wide = w.astype(np.float64).reshape(70, scale.shape[1], -1)
    largest = np.abs(wide).max(-1)
    np.testing.assert_array_equal(scale, np.where(largest, (largest.astype(np.float32) / np.float32(limit)), 1))
    whole = q.astype(np.float64).reshape(wide.shape)
    np.testing.assert_array_equal(np.abs(whole).max(-1), np.where(largest, limit, 0))
    assert (np.abs(whole * scale[..., None] - wide) <= scale[..., None] * (0.5 + 1e-4)).all()


@pytest.mark.parametrize("group", [0, 32])
def test_fitted_scales_leave_the_smallest_error(group: int) -> None:
    """Against a search in float64 over what the largest magnitude may be divided by; zeros, and the ends of float32."""
    w = (np.random.default_rng(0).standard_normal((40, 96)) * 0.05).astype(np.float32)
    w[3], w[4], w[5], w[6, 1:] = 0, w[4] * 1e38, w[5] * 1e-38, 0
    q, scale = quantized(w, "int4", group, 8, "fitted_scales")
    plain, plain_scale = quantized(w, "int4", group, 7)
    wide, whole, before = (a.astype(np.float64).reshape(40, scale.shape[1], -1) for a in (w, q, plain))
    peak = np.take_along_axis(wide, np.abs(wide).argmax(-1, keepdims=True), -1)
    peak[peak == 0] = 1
    left = []
    for more in TRIED:
        tried = np.clip(np.rint(wide / peak * (-8 - more)), -8, 7)
        fitted = (wide * tried).sum(-1) / np.maximum((tried * tried).sum(-1), 1)
        rounded = np.clip(np.rint(wide / np.where(fitted, fitted, 1)[..., None]), -8, 7)
        left.append((((rounded * fitted[..., None] - wide) / peak) ** 2).sum(-1))
    error = (((whole * scale[..., None] - wide) / peak) ** 2).sum(-1)
    assert error.sum() <= 1.01 * np.min(left, 0).sum()
    assert error.mean() < 0.8 * ((((before * plain_scale[..., None] - wide) / peak) ** 2).sum(-1)).mean()
    assert (q[3] == 0).all() and (scale[3] == 1).all()
    np.testing.assert_allclose(whole[6, 0, 0] * scale[6, 0], w[6, 0], rtol=1e-6)
    for bad in (np.inf, np.nan):
        with pytest.raises(RecipeError, match="not finite"):
            quantized(np.full((2, 32), bad, np.float32), "int4", group, 8, "fitted_scales")


def test_scales_of_16_bits() -> None:
    """Scales are rounded, then weights with them, each to the nearest of what stands for something; a group far smaller
    than others of its row has denormal scales."""
    w = (np.random.default_rng(0).standard_normal((40, 96)) * 0.05).astype(np.float32)
    w[3], w[4, :32], w[5, :32], w[6, :32], w[7] = 0, w[4, :32] * 1e-4, w[5, :32] * 1e-12, 0, w[7] * 1e-3
    fitted = R.source("w").then("fitted_scales", group=32, limit=8)
    scales = fitted.then("float16_scales")
    whole = R.combine("quantize", [R.source("w"), scales], dtype="int8", group=32, limit=8)
    known = {"w": (dtypes.float32, w.shape)}
    assert scales.infer(known) == (dtypes.float16, (40, 3)) and whole.infer(known) == (dtypes.int8, w.shape)
    wide, s, q = (evaluate(made, {"w": w}) for made in (fitted, scales, whole))
    assert s.dtype == np.float16 and (s != 0).all() and (s[3] == 1).all()
    held = wide.astype(np.float16)
    np.testing.assert_array_equal(s, np.where(held, held, np.float16(2.0**-24)))
    by = np.repeat(s.astype(np.float64), 32, 1)
    left = np.abs(q * by - w)
    assert (left <= np.abs(by) * 0.501)[np.abs(q) < 7].all()
    assert (left <= 2.0**-25 + 1e-12)[5, :32].all()


@pytest.mark.parametrize("scale", [1e-9, 2e5])
def test_scales_that_float16_does_not_hold(scale: float) -> None:
    """Of one row, all of them: the step says so, and of which parameters."""
    scales = np.full((4, 3), 0.01, np.float32)
    scales[2] = scale
    with pytest.raises(R.ScalesError, match=r"step 0 \(float16_scales\) of the recipe from s: float16 does") as caught:
        evaluate(R.source("s").then("float16_scales"), {"s": scales})
    assert caught.value.sources == {"s"} and f"such as {scale:.3g}" in str(caught.value)
    scales[:, 0] = 1  # a group of zeros, which says nothing of the others' size
    with pytest.raises(R.ScalesError, match=r"float16 does not hold"):
        evaluate(R.source("s").then("float16_scales"), {"s": scales})


@pytest.mark.parametrize("group", [0, 32])
def test_ranged_scales_and_their_zero_points_leave_the_smallest_error(group: int) -> None:
    """Against a search in float64 over parts of each range; one-sided groups, zeros, and the ends of float32."""
    w = (np.random.default_rng(0).standard_normal((40, 96)) * 0.05 + 0.04).astype(np.float32)
    w[2], w[3], w[4], w[5], w[6, 1:] = -abs(w[2]) - 1, 0, w[4] * 1e38, w[5] * 1e-38, 0
    args = {"group": group, "limit": 8}
    weight = R.source("w")
    scales = weight.then("ranged_scales", **args)
    zeros = R.combine("centred_zeros", [weight, scales], **args)
    whole = R.combine("quantize_to_zeros", [weight, scales, zeros], dtype="int4", **args)
    s, z, q = (evaluate(made, {"w": w}) for made in (scales, zeros, whole))
    assert (s.dtype, z.dtype, q.dtype) == (np.float32, np.int8, dtypes.int4.numpy)
    assert s.shape == z.shape == (40, 3 if group else 1) and z.min() >= -8 and z.max() <= 7
    wide = w.astype(np.float64).reshape(*s.shape, -1)
    low, high = np.minimum(wide.min(-1), 0), np.maximum(wide.max(-1), 0)
    unit = np.maximum(high - low, 1e-300)[..., None]

    def left(scale: Any, zero: Any, integers: Any) -> Any:
        return (((((integers - zero[..., None]) * scale[..., None]) - wide) / unit) ** 2).sum(-1)

    tried = []
    for part in PARTS:
        scale = np.where(high > low, (high - low) / 15 * part, 1)
        zero = np.clip(np.rint(-0.5 - (low + high) / 2 / scale), -8, 7)
        tried.append(left(scale, zero, np.clip(np.rint(wide / scale[..., None]) + zero[..., None], -8, 7)))
    error = left(s.astype(np.float64), z, q.astype(np.float64).reshape(wide.shape))
    assert error.sum() <= 1.01 * np.min(tried, 0).sum()
    plain, plain_scale = quantized(w, "int4", group, 8, "fitted_scales")
    symmetric = left(plain_scale.astype(np.float64), np.zeros(s.shape), plain.astype(np.float64).reshape(wide.shape))
    assert error.sum() < 0.8 * symmetric.sum()
    assert (q[3].astype(int) == z[3].repeat(96 // s.shape[1])).all() and (s[3] == 1).all(), "0 is an integer"
    for bad in (np.inf, np.nan):
        with pytest.raises(RecipeError, match="not finite"):
            evaluate(scales, {"w": np.full((2, 32), bad, np.float32)})


def test_large_weights_are_quantised_a_few_rows_at_a_time() -> None:
    w = np.random.default_rng(0).standard_normal((1100, 2048)).astype(np.float32)
    q, scale = quantized(w, "int8", 0, 127)
    for rows in (slice(0, 3), slice(510, 515), slice(1097, 1100)):
        some = quantized(w[rows], "int8", 0, 127)
        assert same_bits(q[rows], some[0]) and same_bits(scale[rows], some[1])


def test_what_cannot_be_quantised() -> None:
    w = np.ones((2, 6), np.float32)
    with pytest.raises(RecipeError, match="groups of 4 do not divide the 6 inputs"):
        quantized(w, "int8", 4, 127)
    with pytest.raises(RecipeError, match="300 does not fit int8"):
        quantized(w, "int8", 0, 300)
    for odd in (np.nan, np.inf):
        w[1, 2] = odd
        with pytest.raises(RecipeError, match=r"step 0 \(scales\) of the recipe from w: weights that are not finite"):
            quantized(w, "int8", 0, 127)


def test_three_weights_in_one_product() -> None:
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal((rows, 6)).astype(np.float32) for name, rows in (("q", 40), ("k", 8), ("v", 8))
    }
    cast = [R.source(name).then("cast", dtype="bfloat16") for name in weights]
    made = R.combine("pack_panels", [R.combine("concat", cast, axis=0)])
    joined = np.concatenate([w.astype(dtypes.bfloat16.numpy) for w in weights.values()])
    assert same_bits(evaluate(made, weights), pack_panels([joined]))
    again = R.Recipe.from_json(json.loads(json.dumps(made.json())))
    assert again == made and hash(again) == hash(made)
    known = {name: (dtypes.float32, w.shape) for name, w in weights.items()}
    assert made.infer(known) == (dtypes.bfloat16, (2, 3, 32, 2))
    assert same_bits(undone(made, evaluate(made, weights), known)[0], joined)


def test_shared_steps_are_kept_once() -> None:
    cast = R.source("w").then("cast", dtype="float32")
    both = R.combine("pack_panels", [cast, cast])
    assert both.sources == ("w",) and [s.name for s in both.steps] == ["cast", "pack_panels"]


def test_scale_folds_a_norm_weight() -> None:
    w, norm = np.ones((4, 3), np.float32), np.array([1, 2, 3], np.float32)
    folded = evaluate(R.combine("scale", [R.source("w"), R.source("n")], axis=1), {"w": w, "n": norm})
    np.testing.assert_array_equal(folded, w * norm)


def test_slice_takes_a_box() -> None:
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    made = R.source("w").then("slice", starts=(1, 0), sizes=(2, 3))
    np.testing.assert_array_equal(evaluate(made, {"w": w}), w[1:3])
    with pytest.raises(RecipeError, match="does not lie in"):
        R.source("w").then("slice", starts=(3, 0), sizes=(2, 3)).infer({"w": (dtypes.float32, (4, 3))})


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize(("groups", "each"), [(1, 40), (3, 5), (2, 32)])
def test_panels_of_groups_are_those_of_the_recipe(groups: int, each: int, dtype: str) -> None:
    """What the reference of a grouped convolution packs, the pass's recipe packs too; and it comes back bit for bit."""
    net = Network("net")
    weight = net.parameter("w", Spec((groups * each, 9), dtype))
    w = bits((groups * each, 9), dtype)
    made = packed_groups(net, weight, groups, "w.packed")
    stored = evaluate(made.recipe, {"w": w})
    assert same_bits(stored, pack_groups(w, groups)) and Spec.of(stored) == made.spec
    assert same_bits(unpack_groups(stored, groups, groups * each, 9), w)


@pytest.mark.parametrize("dtype", FLOATS)
def test_phases_hold_every_weight_of_a_transposed_convolution_once(dtype: str) -> None:
    """Their taps, put back in their places, are the weight again, bit for bit; the layout stores the same."""
    weight, groups = bits((6, 2, 3, 4), dtype), 2  # [C, O/groups, *K]
    op = ConvTranspose(stride=(2, 3), pre_padding=(1, 0), post_padding=(0, 0), dilation=(1, 2), groups=groups)
    found = np.zeros((groups, 2, 3, 4, 3), weight.dtype)  # [groups, O/groups, *K, C/groups]
    panels = []
    for phase in phases(op, (3, 4)):
        recipe = phase_recipe(R.source("w"), phase, groups, weight.shape)
        flat = evaluate(recipe, {"w": weight})
        panels.append(pack_groups(flat, groups))
        taps = flat.reshape(groups, 2, *map(len, phase.taps), 3)
        found[:, :, np.array(phase.taps[0])[:, None], np.array(phase.taps[1])] = taps
        for p, dim, s, pad, d in zip(phase.place, phase.taps, (2, 3), (1, 0), (1, 2), strict=True):
            read = [(p + pad - k * d) / s for k in dim]  # the input, counted from the output's place in its phase
            assert read == sorted(read) and all(at.is_integer() for at in read)
    assert same_bits(np.ascontiguousarray(found.transpose(0, 4, 1, 2, 3)).reshape(weight.shape), weight)
    stored = LAYOUTS["phases"].pack(op, [weight], weight.shape)
    assert all(same_bits(a, b) for a, b in zip(stored, panels, strict=True))


def test_batch_norm_as_scale_and_shift() -> None:
    rng = np.random.default_rng(0)
    p = {n: rng.standard_normal(5).astype(np.float32) for n in ("mean", "weight", "bias", "prior")}
    p["var"] = rng.uniform(0.1, 2, 5).astype(np.float32)
    scale = R.combine("norm_scale", [R.source("var"), R.source("weight")], eps=1e-5)
    exact = p["weight"].astype(np.float64) / np.sqrt(p["var"].astype(np.float64) + 1e-5)
    np.testing.assert_array_equal(evaluate(scale, p), exact.astype(np.float32))
    for bias, prior in ((False, False), (True, False), (False, True), (True, True)):
        more = [R.source(n) for n, there in (("bias", bias), ("prior", prior)) if there]
        shift = R.combine("norm_shift", [R.source("mean"), scale, *more], bias=bias, prior=prior)
        want = (p["prior"] * prior - p["mean"]) * exact + p["bias"] * bias
        np.testing.assert_allclose(evaluate(shift, p), want, rtol=1e-5, atol=1e-7)
        assert R.Recipe.from_json(json.loads(json.dumps(shift.json()))) == shift
        known = dict.fromkeys(p, (dtypes.float32, (5,)))
        assert shift.infer(known) == (dtypes.float32, (5,))


def test_add_rounds_once() -> None:
    p = {"a": np.array([1, 256, -3], dtypes.bfloat16.numpy), "b": np.array([2**-9, 1.5, 3], np.float32)}
    total = R.combine("add", [R.source("a"), R.source("b")])
    want = np.array([1 + 2**-9, 257.5, 0], np.float32).astype(dtypes.bfloat16.numpy)
    np.testing.assert_array_equal(evaluate(total, p), want)


@pytest.mark.parametrize(
    ("step", "args", "shapes", "why"),
    [
        ("norm_scale", {"eps": 1e-5}, [(5,), (4,)], "vectors of one size"),
        ("norm_scale", {"eps": 1e-5}, [(5,), (5,), (5,)], "1 to 2 vectors"),
        ("norm_shift", {"bias": True, "prior": False}, [(5,), (5,)], "takes 3 vectors, not 2"),
        ("add", {}, [(5,), (4,)], r"two tensors of one shape, not \[5\] and \[4\]"),
        ("add", {}, [(5,)], "takes two tensors, not 1"),
        ("quantize", {"dtype": "int4", "group": 0, "limit": 8}, [(4, 3)], "a weight and its scales, not 1"),
        ("quantize_to_zeros", {"dtype": "int4", "group": 0, "limit": 8}, [(4, 3), (4, 1)], "zero points, not 2"),
        ("quantize_to_zeros", {"dtype": "int4", "group": 0, "limit": 8}, [(4, 3), (4, 1), (4, 1)], "zero points are f"),
        ("centred_zeros", {"group": 0, "limit": 8}, [(4, 3), (4, 2)], "its scales are float32"),
        ("centred_zeros", {"group": 0, "limit": 127}, [(4, 3), (4, 1)], "which ends at 127"),
        ("take", {"axis": 1, "indices": (0, 3)}, [(4, 3)], "do not lie along axis 1"),
        ("take", {"axis": 2, "indices": (0,)}, [(4, 3)], "do not lie along axis 2"),
        ("diagonal", {}, [(4,)], r"needs two dims, not \[4\]"),
    ],
)
def test_operands_that_a_step_refuses(step: str, args: Any, shapes: list[tuple[int, ...]], why: str) -> None:
    made = R.combine(step, [R.source(f"p{i}") for i in range(len(shapes))], **args)
    with pytest.raises(RecipeError, match=why):
        made.infer({f"p{i}": (dtypes.float32, shape) for i, shape in enumerate(shapes)})


def test_take_chooses_in_order() -> None:
    w = np.arange(12, dtype=np.float32).reshape(3, 4)
    made = R.source("w").then("take", axis=1, indices=(3, 0, 3))
    np.testing.assert_array_equal(evaluate(made, {"w": w}), w[:, [3, 0, 3]])
    assert made.steps[-1].step.inverse is None


def test_diagonal_spreads_and_inverts() -> None:
    w = np.arange(1, 13, dtype=np.int8).reshape(2, 3, 2)
    made = R.source("w").then("diagonal")
    spread = evaluate(made, {"w": w})
    np.testing.assert_array_equal(spread, np.einsum("njk,ji->njik", w, np.eye(3, dtype=np.int8)))
    known = {"w": (dtypes.int8, w.shape)}
    assert made.infer(known) == (dtypes.int8, spread.shape)
    assert same_bits(undone(made, spread, known)[0], w)


def test_a_source_is_read_when_needed_and_intermediates_are_dropped() -> None:
    alive = []

    class Lazy(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            alive.append(name)
            return np.ones((2, 2), np.float32)

    a = R.source("a").then("cast", dtype="float16")
    evaluate(R.combine("concat", [a, R.source("b")], axis=0), Lazy())
    assert alive == ["a", "b"]


def test_float16_that_overflows_is_refused() -> None:
    with pytest.raises(RecipeError, match="largest magnitude 100000"):
        evaluate(R.source("w").then("cast", dtype="float16"), {"w": np.array([1e5], np.float32)})
    ok = evaluate(R.source("w").then("cast", dtype="float16"), {"w": np.array([np.inf, np.nan], np.float32)})
    assert np.isinf(ok[0]) and np.isnan(ok[1])


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        ([], "exactly the keys"),
        ({"sources": ["a"], "steps": [], "x": 1}, "exactly the keys"),
        ({"sources": [1], "steps": []}, "list of names"),
        ({"sources": ["a", "b"], "steps": []}, "exactly one source"),
        ({"sources": ["a"], "steps": [["melt", 1, {"in": [0]}]]}, "no recipe step 'melt'; the steps are add, cast"),
        ({"sources": ["a"], "steps": [["cast", 1, {"in": [0], "dtype": "float32", "x": 1}]]}, r"unknown \['x'\]"),
        ({"sources": ["a"], "steps": [["cast", 0, {"in": [0], "dtype": "float32"}]]}, "a version is a number from 1"),
        ({"sources": ["a"], "steps": [["cast", True, {"in": [0], "dtype": "float32"}]]}, "a version is a number from"),
        ({"sources": ["a"], "steps": [["cast", 1, {"in": [1], "dtype": "float32"}]]}, "earlier values"),
        ({"sources": ["a"], "steps": [["cast", 1, {"in": [True], "dtype": "float32"}]]}, "earlier values"),
        ({"sources": ["a"], "steps": [["cast", 1, {"in": [0]}]]}, r"cast has arguments \['dtype'\]; missing"),
        ({"sources": ["a"], "steps": [["x" * 10**6, 1, {"in": [0]}]]}, "there is no recipe step"),
        ({"sources": ["a"], "steps": [["cast", 1, {"in": [[0] * 10**5], "dtype": "float32"}]]}, "earlier values"),
        ({"sources": ["a"], "steps": [["cast", 1, {"in": [0], "dtype": "f" * 10**6}]]}, "not a legal value"),
        ({"sources": ["a"], "steps": [["cast", 1, {"in": [0], "dtype": "f99"}]]}, "not a legal value"),
        ({"sources": ["a"], "steps": [["pad", 1, {"in": [0], "after": [-1]}]]}, "not a legal value"),
        ({"sources": ["a"], "steps": ["cast"]}, "list of name, version"),
        ({"sources": ["a"], "steps": [["norm_scale", 1, {"in": [0], "eps": True}]]}, "not a legal value"),
        ({"sources": ["a"], "steps": [["norm_scale", 1, {"in": [0], "eps": -1.0}]]}, "not a legal value"),
        ({"sources": ["a"], "steps": [["norm_shift", 1, {"in": [0, 0], "bias": 1, "prior": False}]]}, "not a legal"),
        ({"sources": ["a"], "steps": [["take", 1, {"in": [0], "axis": 0, "indices": [-1]}]]}, "not a legal value"),
    ],
)
def test_bad_json_is_refused(obj: Any, why: str) -> None:
    with pytest.raises(RecipeError, match=why) as caught:
        R.Recipe.from_json(obj)
    assert len(str(caught.value)) < 400


def _scaled(version: int, args: dict[str, Any]) -> Any:
    return {"sources": ["w"], "steps": [["test_scaled", version, {"in": [0], **args}]]}


@pytest.fixture
def scaled() -> Iterator[None]:
    """A step that was x · factor first, and has a bias now."""

    def upgrade(version: int, args: dict[str, Any]) -> dict[str, Any]:
        if version == 1:
            args["numerator"] = args.pop("factor")
        return args

    def number(value: Any) -> bool:
        return type(value) is float

    R.register(
        R.Step(
            "test_scaled", 3, lambda known, **args: known[0], lambda xs, numerator, bias: xs[0] * numerator + bias,
            {"numerator": number, "bias": number}, defaults={"bias": 0.0}, upgrade=upgrade,
        )
    )  # fmt: skip
    yield
    del R.STEPS["test_scaled"]


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize(("version", "args", "want"), [
    (1, {"factor": 3.0}, 6.0), (2, {"numerator": 3.0}, 6.0), (3, {"numerator": 3.0, "bias": 1.0}, 7.0),
])  # fmt: skip
def test_steps_of_older_versions_are_read_as_the_newest(version: int, args: dict[str, Any], want: float) -> None:
    made = R.Recipe.from_json(_scaled(version, args))
    assert evaluate(made, {"w": np.array([2.0], np.float32)}).tolist() == [want]
    expected = {"numerator": 3.0, "bias": args.get("bias", 0.0)}
    assert made == R.source("w").then("test_scaled", **expected), "it is found by what a build makes today"
    assert made.json() == _scaled(3, expected)
    if version < 3:
        assert made == R.source("w").then("test_scaled", numerator=3.0), "a default may be left out in code, too"


@pytest.mark.usefixtures("scaled")
@pytest.mark.parametrize(("version", "args", "error", "why"), [
    (4, {}, EngineVersionError, "step test_scaled is of version 4; this ingot knows versions up to 3"),
    (1, {"numerator": 3.0}, RecipeError, "its arguments are none of version 1: 'factor'"),
    (1, {"factor": 3.0, "x": 1}, RecipeError, r"unknown \['x'\]"),
    (1, {"factor": "3"}, RecipeError, "numerator = '3' is not a legal value"),
    (3, {"bias": 3.0}, RecipeError, r"missing \['numerator'\]"),
])  # fmt: skip
def test_steps_of_no_version_are_refused(version: int, args: Any, error: type[Exception], why: str) -> None:
    with pytest.raises(error, match=why):
        R.Recipe.from_json(_scaled(version, args))


def test_missing_source_is_named() -> None:
    with pytest.raises(RecipeError, match=r"parameter 'w' has no value"):
        evaluate(R.source("w"), {})


def test_an_adapters_tensor_is_read_by_the_merge_alone() -> None:
    """No network lists it: what a recipe makes of it cannot be known before it is there."""
    recipe = R.combine("concat", [R.source("w"), R.source(f"{R.ADAPTER}a.x.A")], axis=0)
    with pytest.raises(RecipeError, match="an adapter's tensor is no operand"):
        recipe.infer({"w": (dtypes.float32, (4, 6))})
