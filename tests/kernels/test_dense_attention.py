"""Attention over whole tensors: against float64 and torch, bit for bit in any company, every kind of mask and view."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot import _native
from tests.kernels.support import FLOATS, Array, close, run, same_bits

F32, BF16, F16 = FLOATS
torch = pytest.importorskip("torch")


def random(dtype: Any, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def attend(q: Array, k: Array, v: Array, mask: Array | None = None, *, causal: bool = False, inside: bool = False,
           scale: float | None = None, threads: int = 1, empty: str | None = None) -> Array:  # fmt: skip
    """One call of the kernel."""
    leading = np.broadcast_shapes(q.shape[:-3], k.shape[:-3], v.shape[:-3])
    heads = (max(x.shape[-3] for x in (q, k, v)),) if max(q.ndim, k.ndim, v.ndim) > 2 else ()
    shape = (*leading, *heads, q.shape[-2], v.shape[-1])
    shape = (*shape[:-3], shape[-2], shape[-3], shape[-1]) if inside else shape
    kind = "none" if mask is None else "bool" if mask.dtype == np.bool_ else "float"
    params = {"scale": scale_of(q, scale), "causal": causal, "heads_inside": inside, "mask": kind}
    params |= {} if empty is None else {"empty_rows": empty}
    operands = [q, k, v] if mask is None else [q, k, v, mask]
    return run("attention", operands, [(q.dtype, shape)], threads=threads, **params)[0]


def scale_of(q: Array, scale: float | None) -> float:
    return 1 / math.sqrt(q.shape[-1]) if scale is None else scale


def expected(q: Array, k: Array, v: Array, mask: Array | None = None, *, causal: bool = False,
             scale: float | None = None) -> Array:  # fmt: skip
    """In float64; a row that sees nothing is zero."""
    heads = max((x.shape[-3] for x in (q, k, v) if x.ndim > 2), default=1)
    wide = [x.astype(np.float64) for x in (q, k, v)]
    wide = [np.repeat(x, heads // x.shape[-3], -3) if x.ndim > 2 else x for x in wide]
    scores = wide[0] @ wide[1].swapaxes(-1, -2) * scale_of(q, scale)
    if mask is not None:
        scores = scores + (np.where(mask, 0, -np.inf) if mask.dtype == np.bool_ else mask.astype(np.float64))
    if causal:
        scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
    best = scores.max(-1, keepdims=True, initial=-np.inf)
    weights = np.exp(scores - np.where(np.isinf(best), 0, best))
    total = weights.sum(-1, keepdims=True)
    return np.asarray(weights @ wide[2] / np.where(total == 0, 1, total))


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_shapes(dtype: Any, causal: bool) -> None:
    for tokens, keys, width, values in (
        (1, 1, 1, 1), (1, 64, 16, 16), (5, 65, 8, 24), (7, 3, 33, 5), (64, 64, 64, 64), (13, 200, 64, 80),
        (300, 31, 4, 4), (2, 130, 512, 512), (131, 129, 40, 17),
    ):  # fmt: skip
        q, k = random(dtype, 2, tokens, width), random(dtype, 2, keys, width, seed=1)
        v = random(dtype, 2, keys, values, seed=2)
        close(attend(q, k, v, causal=causal, threads=2), expected(q, k, v, causal=causal), 30)


@pytest.mark.parametrize("dtype", FLOATS[:2], ids=str)
def test_against_torch(dtype: Any) -> None:
    def to_torch(x: Array) -> Any:
        return torch.from_numpy(x.astype(np.float32))

    for tokens, keys, causal, grouped in ((40, 70, False, 4), (70, 40, True, 2), (40, 70, True, 1), (1, 90, False, 2)):
        q = random(dtype, 2, 4, tokens, 16)
        k, v = random(dtype, 2, grouped, keys, 16, seed=1), random(dtype, 2, grouped, keys, 16, seed=2)
        want = torch.nn.functional.scaled_dot_product_attention(
            *map(to_torch, (q, k, v)), is_causal=causal, enable_gqa=grouped != 4, scale=0.3
        )
        close(attend(q, k, v, causal=causal, scale=0.3, threads=2), want.numpy().astype(np.float64), 30)


@pytest.mark.parametrize("kind", ["bool", "float32", "q's"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_masks_broadcast_in_every_way(dtype: Any, kind: str) -> None:
    q, k, v = random(dtype, 2, 4, 9, 8), random(dtype, 2, 2, 70, 8, seed=1), random(dtype, 2, 2, 70, 8, seed=2)
    for keep in range(16):
        shape = [d if keep >> i & 1 else 1 for i, d in enumerate((2, 4, 9, 70))]
        for drop in range(4 if keep in (0, 8, 12) else 1):
            whole = np.random.default_rng(keep).standard_normal(shape[drop:])
            mask = whole > -0.5 if kind == "bool" else np.where(whole < -1.0, -np.inf, whole)
            mask = mask.astype(np.bool_ if kind == "bool" else F32 if kind == "float32" else dtype)
            for causal in (False, True):
                close(attend(q, k, v, mask, causal=causal), expected(q, k, v, mask, causal=causal), 30)


def test_views_are_read_in_place() -> None:
    """Parts of one projection [B, T, 3, H, D], and a mask with its dimensions exchanged."""
    for dtype in FLOATS:
        joined = random(dtype, 2, 37, 3, 4, 24)
        q, k, v = (joined[:, :, i].transpose(0, 2, 1, 3) for i in range(3))
        mask = random(F32, 37, 37, seed=3).T
        dense = [np.ascontiguousarray(x) for x in (q, k, v)]
        for inside in (False, True):
            got = attend(q, k, v, mask, inside=inside)
            want = attend(*dense, np.ascontiguousarray(mask))
            assert same_bits(got, np.ascontiguousarray(want.swapaxes(1, 2)) if inside else want)


def test_leading_dimensions() -> None:
    q, k, v = random(F32, 3, 1, 4, 6, 8), random(F32, 2, 2, 7, 8, seed=1), random(F32, 1, 7, 8, seed=2)
    want = expected(q, np.repeat(k, 2, 1), np.repeat(v, 4, 0))
    close(attend(q, k, v, threads=3), want, 30)
    close(attend(q[0, 0, 0], k[0, 0], v[0]), expected(q[0, 0, 0], k[0, 0], v[0]), 30)  # no heads
    close(attend(q[0, 0, :1], k[:, 0], v), expected(q[0, 0, :1], k[:, 0], np.repeat(v, 2, 0)), 30)  # one query head
    for shape in ((0, 2, 3, 8), (2, 0, 3, 8), (2, 2, 0, 8)):
        q = np.zeros(shape, F32)
        assert attend(q, q, q, threads=2).shape == shape
    q, k = random(F32, 2, 5, 8), np.zeros((2, 0, 8), F32)
    for empty in (None, "zero", "nan"):
        assert not attend(q, k, k, empty=empty).any(), "no keys: zeros, even of a softmax written out"


@given(
    st.integers(1, 140), st.integers(1, 200), st.integers(1, 70), st.integers(1, 70), st.sampled_from([1, 2, 3]),
    st.sampled_from([1, 2]), st.booleans(), st.sampled_from(["none", "row", "whole"]), st.sampled_from(FLOATS),
)  # fmt: skip
def test_random(tokens: int, keys: int, width: int, values: int, group: int, kv: int, causal: bool, kind: str,
                dtype: Any) -> None:  # fmt: skip
    q = random(dtype, kv * group, tokens, width)
    k, v = random(dtype, kv, keys, width, seed=1), random(dtype, kv, keys, values, seed=2)
    mask = None if kind == "none" else random(F32, tokens if kind == "whole" else 1, keys, seed=3) > -1
    close(attend(q, k, v, mask, causal=causal, threads=2), expected(q, k, v, mask, causal=causal), 40)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_row_has_the_same_bits_in_any_company(dtype: Any) -> None:
    q = random(dtype, 3, 6, 150, 40)
    k, v = random(dtype, 3, 2, 170, 40, seed=1), random(dtype, 3, 2, 170, 24, seed=2)
    for mask in (None, random(F32, 3, 6, 150, 170, seed=3)):
        for causal in (False, True):
            whole = attend(q, k, v, mask, causal=causal)
            for threads in (2, 3, 5):
                assert same_bits(attend(q, k, v, mask, causal=causal, threads=threads), whole)
            part = None if mask is None else mask[1:2, 3:6]
            some = attend(q[1:2, 3:6], k[1:2, 1:2], v[1:2, 1:2], part, causal=causal)
            assert same_bits(some, whole[1:2, 3:6]), "one batch, the heads of one group"
            one = attend(q[2, 4:5], k[2, 1:2], v[2, 1:2], None if mask is None else mask[2, 4:5], causal=causal)
            assert same_bits(one, whole[2, 4:5]), "one head"
            for first, last in ((0, 1), (0, 2), (0, 77), (77, 78), (40, 47), (149, 150)):
                rows = slice(0 if causal else first, last)  # of causal rows the first ones stay
                part = attend(q[:, :, rows], k, v, None if mask is None else mask[:, :, rows], causal=causal)
                assert same_bits(part, whole[:, :, rows]), f"rows {rows}"


def test_a_mask_of_no_effect_may_stand_before_any_tokens() -> None:
    """A row's bits depend on its own mask alone: tokens whose weight is zero change nothing behind them."""
    q, k, v = (random(F32, 2, 70, 16, seed=i) for i in range(3))
    mask = np.ones((70, 70), np.bool_)
    mask[:, 60:] = False
    assert same_bits(attend(q, k, v, mask), attend(q, k[:, :60], v[:, :60], mask[:, :60]))


def test_rows_that_see_nothing() -> None:
    q, k, v = (random(F32, 2, 70, 16, seed=i) for i in range(3))
    blind = np.array([0, 5, 69])
    for nothing in (False, -np.inf):
        mask = np.ones((70, 70), np.bool_) if nothing is False else np.zeros((70, 70), F32)
        mask[blind] = nothing
        got = attend(q, k, v, mask)
        assert not got[:, blind].any(), "zeros, as torch gives"
        close(got, expected(q, k, v, mask), 30)
    mask = np.zeros((70, 70), F32)
    mask[blind] = np.finfo(F32).min  # as transformers masks: scores vanish beside it, and all tokens weigh the same
    got = attend(q, k, v, mask)
    close(got[:, blind], np.repeat(v.mean(1, dtype=np.float64)[:, None], 3, 1), 30)
    mask = np.zeros((1, 70), F32)
    mask[:, 64:] = np.finfo(F32).min
    close(attend(q, k, v, mask), expected(q, k[:, :64], v[:, :64]), 30)
    mask[:, :64], mask[:, 64:] = np.finfo(F32).min, 0  # the first chunk weighs nothing
    close(attend(q, k, v, mask), expected(q, k[:, 64:], v[:, 64:]), 30)


@pytest.mark.parametrize("kind", ["bool", "float32", "q's"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rows_that_see_nothing_are_zeros_or_nan(dtype: Any, kind: str) -> None:
    """All other rows have the same bits either way, in any company."""
    for tokens, keys, width in ((9, 5, 8), (70, 130, 40), (1, 64, 16), (200, 65, 3)):
        q, k, v = (random(dtype, 2, n, width, seed=n) for n in (tokens, keys, keys))
        seen = np.random.default_rng(tokens).random((2, tokens, keys)) < 0.5
        seen[0, tokens // 2], seen[1, 0], seen[1, -1, :-1] = False, False, False
        mask = seen if kind == "bool" else np.where(seen, 0, -np.inf).astype(F32 if kind == "float32" else dtype)
        for causal in (False, True):
            shown = seen & np.tril(np.ones((tokens, keys), bool)) if causal else seen
            blind = ~shown.any(-1)
            zero = attend(q, k, v, mask, causal=causal, empty="zero")
            nan = attend(q, k, v, mask, causal=causal, empty="nan", threads=2)
            assert same_bits(zero, attend(q, k, v, mask, causal=causal)), "what older engines do not say"
            assert blind.any() and not zero[blind].any() and np.isnan(nan[blind]).all()
            assert same_bits(nan[~blind], zero[~blind])
            inside = attend(q, k, v, mask, causal=causal, empty="nan", inside=True)
            assert same_bits(inside, np.ascontiguousarray(nan.swapaxes(0, 1)))


def test_a_mask_of_the_least_float_is_a_mean_whatever_empty_rows_are() -> None:
    q, k, v = (random(F32, 2, 70, 16, seed=i) for i in range(3))
    mask = np.full((1, 70), np.finfo(F32).min, F32)
    for empty in ("zero", "nan"):
        close(attend(q, k, v, mask, empty=empty), np.repeat(v.mean(1, dtype=np.float64)[:, None], 70, 1), 30)


def test_nan_and_infinity_pass() -> None:
    q, k, v = (random(F32, 1, 80, 16, seed=i) for i in range(3))
    fine = attend(q, k, v)
    for bad in (np.nan, np.inf, -np.inf):
        one = q.copy()
        one[0, 7, 3] = bad
        got = attend(one, k, v)
        assert np.isnan(got[0, 7]).all() and same_bits(np.delete(got, 7, 1), np.delete(fine, 7, 1))
        one = v.copy()
        one[0, 70, 3] = bad
        got = attend(q, k, one)
        assert (np.isnan(got) if math.isnan(bad) else got == bad)[0, :, 3].all()
        assert np.isfinite(np.delete(got, 3, 2)).all()
        mask = np.ones((1, 80), np.bool_)
        mask[0, 70] = False
        assert np.isnan(attend(q, k, one, mask)[0, :, 3]).all(), "0 times it is NaN, as in torch"
        causal = attend(q, k, one, causal=True)
        assert np.isfinite(causal[:, :70]).all(), "what a row does not see takes no part"
        for operand in (0, 1):
            operands = [q.copy(), k.copy(), v]
            operands[operand][0, 79, 0] = bad
            assert np.isfinite(attend(*operands, causal=True)[:, :79]).all()
    one = k.copy()
    one[0, 3, 0] = np.nan
    assert np.isnan(attend(q, one, v)).all()
    assert np.isnan(attend(q, k, v, np.full((80, 1), np.nan, F32))).all()
    assert np.isnan(attend(q, k, v, np.full((80, 80), np.inf, F32))).all()


def test_large_scores() -> None:
    """Later chunks raise the greatest score again and again, by steps small and large."""
    q = np.ones((1, 3, 16), F32)
    for slope in (-3.0, -0.02, 0.02, 3.0, 100.0):
        k = np.repeat(np.arange(300, dtype=F32)[None, :, None] * F32.type(slope / 16), 16, 2)
        v = random(F32, 1, 300, 8)
        close(attend(q, k, v, scale=1.0), expected(q, k, v, scale=1.0), 3000)
        close(attend(q, k, v, np.zeros((1, 300), F32), scale=1.0), expected(q, k, v, scale=1.0), 3000)


X = random(F32, 2, 3, 8)


@pytest.mark.parametrize(
    ("operands", "params", "message"),
    [
        ([X, X, X], {"scale": 1.0}, "parameter causal is missing"),
        ([X, X, X], {"window": 3}, "unknown parameter 'window'"),
        ([X, X, X], {"scale": "big"}, "parameter scale is"),
        ([X, X, X], {"mask": "additive"}, "parameter mask is"),
        ([X, X, X], {"empty_rows": "mean"}, "parameter empty_rows is"),
        ([X, X, X], {"mask": "float"}, "3 operands, must be 4"),
        ([X, X, X, X[0, :, :3]], {"mask": "bool"}, "the mask is float32"),
        ([X, X, X.astype(F16)], {}, "must have one dtype"),
        ([X.astype(np.float64)] * 3, {}, "q is float64"),
        ([X, X[..., :4], X], {}, "k's last dimension must be q's"),
        ([X, X, X[:, :2]], {}, "k and v must have as many tokens"),
        ([X[..., :0]] * 3, {}, "q's last dimension must be in"),
        ([np.zeros((2, 3, 513), F32)] * 3, {}, "q's last dimension must be in"),
        ([X, np.zeros((3, 3, 8), F32), np.zeros((3, 3, 8), F32)], {}, "leading dimensions must be"),
        ([X, X, X, np.zeros((2, 3), F32)], {"mask": "float"}, "the mask's last dimensions"),
        ([X, X, X, np.zeros((1, 2, 3, 3), F32)], {"mask": "float"}, "the mask has more dimensions"),
        ([X, X, X, np.zeros((3, 3, 3), F32)], {"mask": "float"}, "leading dimensions must be"),
    ],
)
def test_refusals(operands: list[Array], params: dict[str, Any], message: str) -> None:
    whole = {"scale": 1.0, "causal": False, "heads_inside": False, "mask": "none"} if params != {"scale": 1.0} else {}
    shape = (*operands[0].shape[:-1], operands[2].shape[-1])
    with pytest.raises(_native.Error, match=message) as caught:
        run("attention", operands, [(operands[0].dtype, shape)], **whole | params)
    assert caught.value.code == "kernel_refused"
