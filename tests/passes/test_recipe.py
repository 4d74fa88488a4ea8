"""Recipes: layouts invert bit for bit, the JSON form is strict, and a recipe gives the same bytes each time."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot import dtypes
from ingot.errors import RecipeError
from ingot.ir import recipe as R

FLOATS = ("float32", "bfloat16", "float16")


def bits(shape: tuple[int, ...], dtype: str, seed: int = 0) -> np.ndarray[Any, Any]:
    """Arbitrary bit patterns: NaNs, infinities and denormals too."""
    kind = dtypes.get(dtype)
    raw = np.random.default_rng(seed).integers(0, 256, (*shape, kind.bits // 8), np.uint8)
    return raw.view(kind.numpy).reshape(shape)


def same_bits(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes()


@settings(deadline=None, derandomize=True)
@given(st.integers(1, 100), st.integers(1, 70), st.sampled_from(FLOATS), st.integers(1, 2), st.integers(0, 2**32 - 1))
def test_packing_inverts_bit_for_bit(n: int, k: int, dtype: str, parts: int, seed: int) -> None:
    weights = [bits((n, k), dtype, seed + i) for i in range(parts)]
    packed = R.pack_panels(weights)
    assert packed.shape == R.packed_shape(dtypes.get(dtype), n, k, parts)
    assert all(same_bits(a, b) for a, b in zip(R.unpack_panels(packed, n, k, parts), weights, strict=True))


@pytest.mark.parametrize("dtype", FLOATS)
def test_packing_is_the_documented_layout(dtype: str) -> None:
    n, k, kind = 40, 5, dtypes.get(dtype)
    gate, up = (np.random.default_rng(i).standard_normal((n, k)).astype(kind.numpy) for i in range(2))
    packed = R.pack_panels([gate, up])
    for panel in range(4):
        part = (gate, up)[panel % 2]
        for col in range(k + k % 2 if dtype == "bfloat16" else k):
            for lane in range(32):
                row = panel // 2 * 32 + lane
                want = part[row, col] if row < n and col < k else 0
                got = packed[panel, col // 2, lane, col % 2] if dtype == "bfloat16" else packed[panel, col, lane]
                assert got == want


@settings(deadline=None, derandomize=True)
@given(st.data())
def test_layout_steps_invert(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=3)))
    x = bits(shape, data.draw(st.sampled_from(FLOATS)))
    known = {"x": (dtypes.get(x.dtype), shape)}
    axes = tuple(data.draw(st.permutations(range(len(shape)))))
    after = tuple(data.draw(st.integers(0, 3)) for _ in shape)
    for name, args in (("transpose", {"axes": axes}), ("reshape", {"shape": (x.size,)}), ("pad", {"after": after})):
        made = R.source("x").then(name, **args)
        stored = R.evaluate(made, {"x": x})
        assert (dtypes.get(stored.dtype), stored.shape) == made.infer(known)
        assert same_bits(R.invert_last(made, stored, known)[0], x)


def test_three_weights_in_one_product() -> None:
    rng = np.random.default_rng(0)
    weights = {
        name: rng.standard_normal((rows, 6)).astype(np.float32) for name, rows in (("q", 40), ("k", 8), ("v", 8))
    }
    cast = [R.source(name).then("cast", dtype="bfloat16") for name in weights]
    made = R.combine("pack_panels", [R.combine("concat", cast, axis=0)])
    joined = np.concatenate([w.astype(dtypes.bfloat16.numpy) for w in weights.values()])
    assert same_bits(R.evaluate(made, weights), R.pack_panels([joined]))
    again = R.Recipe.from_json(json.loads(json.dumps(made.json())))
    assert again == made and hash(again) == hash(made)
    known = {name: (dtypes.float32, w.shape) for name, w in weights.items()}
    assert made.infer(known) == (dtypes.bfloat16, (2, 3, 32, 2))
    assert same_bits(R.invert_last(made, R.evaluate(made, weights), known)[0], joined)


def test_shared_steps_are_kept_once() -> None:
    cast = R.source("w").then("cast", dtype="float32")
    both = R.combine("pack_panels", [cast, cast])
    assert both.sources == ("w",) and [s.name for s in both.steps] == ["cast", "pack_panels"]


def test_scale_folds_a_norm_weight() -> None:
    w, norm = np.ones((4, 3), np.float32), np.array([1, 2, 3], np.float32)
    folded = R.evaluate(R.combine("scale", [R.source("w"), R.source("n")], axis=1), {"w": w, "n": norm})
    np.testing.assert_array_equal(folded, w * norm)


def test_slice_takes_a_box() -> None:
    w = np.arange(12, dtype=np.float32).reshape(4, 3)
    made = R.source("w").then("slice", starts=(1, 0), sizes=(2, 3))
    np.testing.assert_array_equal(R.evaluate(made, {"w": w}), w[1:3])
    with pytest.raises(RecipeError, match="does not lie in"):
        R.source("w").then("slice", starts=(3, 0), sizes=(2, 3)).infer({"w": (dtypes.float32, (4, 3))})


def test_a_source_is_read_when_needed_and_intermediates_are_dropped() -> None:
    alive = []

    class Lazy(dict[str, Any]):
        def __getitem__(self, name: str) -> Any:
            alive.append(name)
            return np.ones((2, 2), np.float32)

    a = R.source("a").then("cast", dtype="float16")
    R.evaluate(R.combine("concat", [a, R.source("b")], axis=0), Lazy())
    assert alive == ["a", "b"]


def test_float16_that_overflows_is_refused() -> None:
    with pytest.raises(RecipeError, match="largest magnitude 100000"):
        R.evaluate(R.source("w").then("cast", dtype="float16"), {"w": np.array([1e5], np.float32)})
    ok = R.evaluate(R.source("w").then("cast", dtype="float16"), {"w": np.array([np.inf, np.nan], np.float32)})
    assert np.isinf(ok[0]) and np.isnan(ok[1])


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        ([], "exactly the keys"),
        ({"sources": ["a"], "steps": [], "x": 1}, "exactly the keys"),
        ({"sources": [1], "steps": []}, "list of names"),
        ({"sources": ["a", "b"], "steps": []}, "exactly one source"),
        ({"sources": ["a"], "steps": [["melt", 1, {"in": [0]}]]}, "unknown to this version"),
        ({"sources": ["a"], "steps": [["cast", 9, {"in": [0], "dtype": "float32"}]]}, "version 9"),
        ({"sources": ["a"], "steps": [["cast", 1, {"in": [1], "dtype": "float32"}]]}, "earlier values"),
        ({"sources": ["a"], "steps": [["cast", 1, {"in": [True], "dtype": "float32"}]]}, "earlier values"),
        ({"sources": ["a"], "steps": [["cast", 1, {"in": [0]}]]}, "takes the arguments"),
        ({"sources": ["a"], "steps": [["cast", 1, {"in": [0], "dtype": "f99"}]]}, "not a legal value"),
        ({"sources": ["a"], "steps": [["pad", 1, {"in": [0], "after": [-1]}]]}, "not a legal value"),
        ({"sources": ["a"], "steps": ["cast"]}, "list of name, version"),
    ],
)
def test_bad_json_is_refused(obj: Any, why: str) -> None:
    with pytest.raises(RecipeError, match=why):
        R.Recipe.from_json(obj)


def test_missing_source_is_named() -> None:
    with pytest.raises(RecipeError, match=r"parameter 'w' has no value"):
        R.evaluate(R.source("w"), {})
