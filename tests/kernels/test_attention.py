"""The cache kernels and paged attention: against float64, bit for bit under any split, with values out of range."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import pytest

from ingot import _native
from tests.kernels.support import FLOATS, ROUNDING, Array, close, run, same_bits, session

F32, BF16, F16 = FLOATS
I8 = np.dtype(np.int8)


def random(dtype: Any, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


# ---- rope ----


def rotated(x: Array, cos: Array, sin: Array, style: str) -> Array:
    wide, half = x.astype(np.float64), cos.shape[1]
    c, s = cos[:, None].astype(np.float64), sin[:, None].astype(np.float64)
    first, second = (
        (slice(half), slice(half, 2 * half)) if style == "half" else (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    )
    out = wide.copy()
    out[..., first] = wide[..., first] * c - wide[..., second] * s
    out[..., second] = wide[..., second] * c + wide[..., first] * s
    return out


def test_rope_table_at_large_positions() -> None:
    positions = np.array([0, 1, 2, 777, 4095, 131_071, 2_000_000, -3], np.int32)
    inv_freq = (500_000.0 ** -(np.arange(0, 128, 2) / 128)).astype(np.float32)
    # The angle is rounded to float32 first, as transformers does.
    angle = (positions.astype(np.float32)[:, None] * inv_freq).astype(np.float64)
    shape = ("float32", angle.shape)
    cos, sin = run("rope_table", [positions, inv_freq], [shape, shape], threads=2, scale=1.0)
    close(cos, np.cos(angle), 1.1)
    close(sin, np.sin(angle), 1.1)
    cos, sin = run("rope_table", [positions, inv_freq], [shape, shape], scale=1.25)
    close(cos, 1.25 * np.cos(angle), 3)


@pytest.mark.parametrize("style", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rope(dtype: Any, style: str) -> None:
    for width, half in ((64, 32), (128, 64), (80, 16), (10, 5), (2, 1), (34, 17), (8, 0)):
        whole = random(dtype, 5, 7, width)
        cos, sin = random(F32, 5, half, seed=1), random(F32, 5, half, seed=2)
        expected = rotated(whole, cos, sin, style)
        for heads in (slice(0, 7), slice(2, 5)):
            x = whole[:, heads]
            (y,) = run("rope", [x, cos, sin], [(dtype, x.shape)], threads=2, style=style)
            close(y, expected[:, heads], 4, around=4.0)
            assert same_bits(y[..., 2 * half :], np.ascontiguousarray(x[..., 2 * half :]))


# ---- a layer: write a step's keys and values, attend ----


class Layer(NamedTuple):
    heads: int
    kv_heads: int
    width: int
    dtype: Any = F32
    state: Any = F32
    block: int = 16
    window: int | None = None
    softcap: float | None = None
    sloped: bool = False

    @property
    def scale(self) -> float:
        return float(self.width**-0.5)

    @property
    def slopes(self) -> Array:
        return (0.7 ** np.arange(1, self.heads + 1)).astype(np.float32)


def open_layer(layer: Layer, blocks: int, threads: int = 2, rope: bool = False) -> Any:
    """A session that writes k and v of a step to the cache (rotating q and k first with `rope`) and attends."""
    h, kv, d, dtype = layer.heads, layer.kv_heads, layer.width, layer.dtype.name
    shapes: dict[str, tuple[str, list[Any]]] = {
        "q": (dtype, ["T", h, d]), "k": (dtype, ["T", kv, d]), "v": (dtype, ["T", kv, d]), "slot": ("int32", ["T"]),
        "query_start": ("int32", [["+", "B", 1]]), "context_len": ("int32", ["B"]),
        "block_table": ("int32", ["B", "N"]), "slopes": ("float32", [h]),
        "cos": ("float32", ["T", d // 2]), "sin": ("float32", ["T", d // 2]),
    }  # fmt: skip
    unused = ([] if layer.sloped else ["slopes"]) + ([] if rope else ["cos", "sin"])
    used = [name for name in shapes if name not in unused]
    buffers = [{"kind": "input", "name": n, "dtype": shapes[n][0], "shape": shapes[n][1]} for n in used]
    at = {name: i for i, name in enumerate(used)}
    kv_cache = {"type": "kv_cache", "heads": kv, "head_dim": d}
    state, turned, out = len(used), len(used) + 1, len(used) + 2
    buffers += [{"kind": "state", "name": "kv.0", "dtype": layer.state.name, "state": kv_cache}]
    buffers += [{"kind": "temp", "dtype": dtype, "shape": ["T", h, d]}] * 2
    if rope:
        names = ("q", "k", "v", "cos", "sin", "slot")
        write = {
            "kernel": "rope_kv_write",
            "in": [*(at[n] for n in names), state],
            "out": [turned],
            "params": {"style": "half"},
        }
    else:
        write = {"kernel": "kv_write", "in": [state, at["k"], at["v"], at["slot"]], "out": []}
        del buffers[-1]
        turned, out = at["q"], len(buffers) - 1
    params = {"scale": layer.scale, "window": layer.window, "softcap": layer.softcap}
    operands = [turned, state, at["query_start"], at["context_len"], at["block_table"]]
    operands += [at["slopes"]] if layer.sloped else []
    attend = {"kernel": "paged_attention", "in": operands, "out": [out], "params": params}
    symbols = {"T": 8192, "B": 64, "N": 256}
    return session(
        buffers, [write, attend], {"y": out}, symbols, threads=threads, kv_blocks=blocks, kv_block_size=layer.block
    )


def as_stored(x: Array, layer: Layer) -> Array:
    """What the cache gives back of vectors that were written to it."""
    if layer.state != I8:
        return x.astype(layer.state)
    wide = x.astype(F32)
    scale = np.abs(wide).max(-1, keepdims=True) / F32.type(127)
    return np.rint(wide / np.where(scale > 0, scale, 1)).clip(-127, 127) * scale


def slack(layer: Layer) -> float:
    """Of sums of whole numbers, weights have 14 bits or more: half of the last one is 3e-5, and values are up to 4."""
    return 5e-4 if layer.state == I8 else 1e-5


class Request:
    """Tokens of one request: q, k, v of every position, and the blocks that it owns."""

    def __init__(self, layer: Layer, length: int, blocks: Array, seed: int) -> None:
        self.layer, self.blocks = layer, blocks
        self.q = random(layer.dtype, length, layer.heads, layer.width, seed=seed)
        self.k, self.v = (random(layer.dtype, length, layer.kv_heads, layer.width, seed=seed + i) for i in (1, 2))

    def slots(self, first: int, last: int) -> Array:
        position = np.arange(first, last)
        return np.asarray(
            self.blocks[position // self.layer.block] * self.layer.block + position % self.layer.block, np.int32
        )

    def expected(self) -> Array:
        layer = self.layer
        q, k, v = (x.astype(np.float64) for x in (self.q, as_stored(self.k, layer), as_stored(self.v, layer)))
        group = layer.heads // layer.kv_heads
        q, k, v = (x.swapaxes(0, 1) for x in (q, np.repeat(k, group, 1), np.repeat(v, group, 1)))
        scores = q @ k.swapaxes(1, 2) * layer.scale
        row, column = np.ogrid[: len(self.q), : len(self.q)]
        if layer.sloped:
            scores = scores + layer.slopes[:, None, None].astype(np.float64) * (column - row)
        scores = scores if layer.softcap is None else layer.softcap * np.tanh(scores / layer.softcap)
        scores = np.where((column <= row) & (column > row - (layer.window or len(self.q))), scores, -np.inf)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        return np.asarray((weights / weights.sum(-1, keepdims=True) @ v).swapaxes(0, 1))


def requests_of(layer: Layer, lengths: Sequence[int], seed: int) -> tuple[list[Request], int]:
    most = -(-max(lengths) // layer.block)
    blocks = np.random.default_rng(seed).permutation(len(lengths) * most + 1)
    owned = [blocks[i * most : (i + 1) * most].astype(np.int32) for i in range(len(lengths))]
    return [Request(layer, n, owned[i], 10 * seed + 3 * i) for i, n in enumerate(lengths)], len(blocks)


def step(
    opened: Any, layer: Layer, parts: Sequence[tuple[Request, int, int]], padding: int = 0, **changed: Array
) -> list[Array]:
    """Runs tokens first..last of several requests in one step, with rows of padding behind, and an empty request."""
    counts = [last - first for _, first, last in parts]
    total, width = sum(counts) + padding, max(len(r.blocks) for r, _, _ in parts)
    table = np.full((len(parts) + 1, width), -1, np.int32)
    for i, (request, _, _) in enumerate(parts):
        table[i, : len(request.blocks)] = request.blocks
    slot = np.full(total, -1, np.int32)
    slot[: sum(counts)] = np.concatenate([r.slots(first, last) for r, first, last in parts])
    starts = np.concatenate([[0], np.cumsum([*counts, 0])]).astype(np.int32)
    feeds: dict[str, Array] = {
        "slot": slot, "query_start": starts, "context_len": np.array([last for _, _, last in parts] + [0], np.int32),
        "block_table": table,
    }  # fmt: skip
    if layer.sloped:
        feeds["slopes"] = layer.slopes
    for name in ("q", "k", "v"):
        rows = np.concatenate([getattr(r, name)[first:last] for r, first, last in parts])
        feeds[name] = np.concatenate([rows, np.full((padding, *rows.shape[1:]), np.nan, layer.dtype)])
    y = opened.run(feeds | changed)["y"]
    assert not y[sum(counts) :].any(), "padding rows must be zero"
    return [y[starts[i] : starts[i + 1]] for i in range(len(parts))]


LAYERS = [
    Layer(8, 2, 64),
    Layer(8, 2, 64, BF16, BF16, block=32),
    Layer(3, 3, 64, F16, F16),
    Layer(7, 1, 128, F32, BF16, window=20),
    Layer(2, 2, 64, BF16, BF16),
    Layer(6, 2, 10, BF16, BF16, window=21),
    Layer(9, 1, 80, BF16, BF16, block=32, window=70),
    Layer(4, 2, 96, BF16, BF16, block=64, softcap=5.0),
    Layer(2, 2, 2, F32, F32, window=1),
    Layer(6, 2, 10, BF16, F32, window=70),
    Layer(4, 4, 80, F32, F16, block=128),
    Layer(2, 1, 256, BF16, BF16, window=64, softcap=30.0),
    Layer(2, 2, 512, F32, F32),
    Layer(32, 1, 34, F16, F16, window=100),
    Layer(4, 4, 64, sloped=True),
    Layer(14, 2, 64, BF16, BF16, window=90, sloped=True),
    Layer(5, 1, 80, F16, F16, softcap=8.0, sloped=True),
    Layer(6, 3, 34, F32, BF16, block=32, window=20, softcap=2.0, sloped=True),
    Layer(8, 2, 64, BF16, I8),
    Layer(7, 1, 128, F32, I8, block=32, window=20),
    Layer(6, 6, 10, F16, I8, softcap=5.0),
    Layer(10, 2, 80, BF16, I8, window=90, sloped=True),
    Layer(2, 2, 512, F32, I8),
    Layer(23, 1, 34, F32, I8, block=128),
]


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_attention(layer: Layer) -> None:
    requests, blocks = requests_of(layer, (1, 37, 150), 1)
    opened = open_layer(layer, blocks)
    got = step(opened, layer, [(r, 0, len(r.q)) for r in requests], padding=3)
    for request, y in zip(requests, got, strict=True):
        error = np.abs(y.astype(np.float64) - request.expected()).max()
        assert error < 4 * ROUNDING[layer.dtype] * 4 + slack(layer), error


@pytest.mark.parametrize("layer", LAYERS, ids=str)
def test_a_row_does_not_depend_on_its_company(layer: Layer) -> None:
    """Whole prompts, random chunks beside other requests, and single tokens: the same bits; one thread or three too."""
    lengths = (5, 70, 203)
    rng = np.random.default_rng(7)
    requests, blocks = requests_of(layer, lengths, 2)
    opened = open_layer(layer, blocks)
    whole = step(opened, layer, [(r, 0, len(r.q)) for r in requests])
    for threads in (1, 3):
        chunked = open_layer(layer, blocks, threads)
        done = [0, 0, 0]
        while any(d < n for d, n in zip(done, lengths, strict=True)):
            ends = [min(n, d + int(rng.choice([0, 1, 2, 5, 16, 64]))) for d, n in zip(done, lengths, strict=True)]
            chosen = [i for i in rng.permutation(3) if ends[i] > done[i]]
            if not chosen:
                continue
            got = step(
                chunked, layer, [(requests[i], done[i], ends[i]) for i in chosen], padding=int(rng.integers(0, 3))
            )
            for i, y in zip(chosen, got, strict=True):
                assert same_bits(y, whole[i][done[i] : ends[i]]), (i, done[i], ends[i])
                done[i] = ends[i]


LONG = [
    Layer(8, 1, 64, BF16, BF16),
    Layer(2, 2, 64, BF16, BF16, window=901),
    Layer(4, 2, 96, F32, F32, block=48, window=700),
    Layer(6, 2, 34, F16, F16, window=1300, softcap=5.0),
    Layer(4, 1, 32, F32, BF16, block=32, sloped=True),
    Layer(9, 1, 34, F32, I8, block=48, window=900),
    Layer(8, 1, 64, BF16, I8),
]


@pytest.mark.parametrize("layer", LONG, ids=str)
def test_a_long_context_is_shared_by_threads(layer: Layer) -> None:
    """Single tokens and short chunks behind up to four segments: the bits of the whole prompt, with any threads."""
    lengths = (1100, 513, 1600)
    requests, blocks = requests_of(layer, lengths, 6)
    opened = open_layer(layer, blocks)
    whole = step(opened, layer, [(r, 0, len(r.q)) for r in requests])
    for request, y in zip(requests, whole, strict=True):
        assert np.abs(y.astype(np.float64) - request.expected()).max() < 16 * ROUNDING[layer.dtype] + slack(layer)
    for threads in (1, 2, 3, 7):
        again = open_layer(layer, blocks, threads)
        # The prompts are written, of requests without a token: none attends. Later steps write what is there already.
        none = np.zeros(len(lengths) + 2, np.int32)
        step(again, layer, [(r, 0, len(r.q)) for r in requests], query_start=none, context_len=none[1:])
        for ends in ((1024, 511, 1535), (1025, 512, 1600), (1100, 513, 40), (64, 65, 600)):
            for count in (1, 5):
                parts = [(r, end - count, end) for r, end in zip(requests, ends, strict=True)]
                for company in (parts, parts[:1], parts[2:]):
                    for (request, first, end), y in zip(company, step(again, layer, company), strict=True):
                        assert same_bits(y, whole[requests.index(request)][first:end]), (threads, first, end)


@pytest.mark.parametrize("state", [BF16, I8], ids=str)
@pytest.mark.parametrize(
    "layer", [Layer(2, 2, 64, BF16), Layer(6, 2, 64, BF16), Layer(2, 2, 64, BF16, window=21)], ids=str
)
def test_few_rows_at_the_diagonal(layer: Layer, state: Any) -> None:
    """18 rows are taken tile by tile, 19 in whole tiles; both leave out groups of 16 tokens that a tile does not see.

    A chunk has the bits of the whole prompt, wherever in a group it begins and ends.
    """
    layer = layer._replace(state=state)
    (request,), blocks = requests_of(layer, [100], 3)
    opened = open_layer(layer, blocks)
    (whole,) = step(opened, layer, [(request, 0, 100)])
    for count in (6, 7, 12, 13, 18, 19, 20, 24, 25):  # tokens: rows of a head, or a third of them
        for first in (0, 13, 14, 15, 16, 29, 63, 64, 75):
            (y,) = step(opened, layer, [(request, first, first + count)])
            assert same_bits(y, whole[first : first + count]), (first, count)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_values_of_any_size_over_segments(dtype: Any) -> None:
    """Scores that rise and fall by hundreds from segment to segment; NaN and infinity in one of them."""
    layer = Layer(2, 1, 32, dtype, dtype)
    (request,), blocks = requests_of(layer, (1600,), 8)
    request.k[:] = (request.k * np.where(np.arange(1600) // 512 % 2 == 0, 20, 1)[:, None, None]).astype(dtype)
    request.q[:] = (request.q * 8).astype(dtype)
    opened = open_layer(layer, blocks)
    (y,) = step(opened, layer, [(request, 0, 1600)])
    assert np.abs(y.astype(np.float64) - request.expected()).max() < 16 * ROUNDING[dtype] + 1e-3  # of scores near 1000
    request.v[700] = np.nan
    (bad,) = step(opened, layer, [(request, 0, 1600)])
    assert same_bits(bad[:700], y[:700]) and np.isnan(bad[1599:].astype(np.float64)).all()


@pytest.mark.parametrize("heads", [1, 4, 8])
def test_values_of_different_sizes_in_a_cache_of_int8(heads: int) -> None:
    """Scales of neighbours that are far apart, zeros among them, tiny or large: as exact as the largest value."""
    layer = Layer(heads, 1, 64, F32, I8)
    for size in (1e-20, 1.0, 1e20):
        (request,), blocks = requests_of(layer, (200,), 12)
        sizes = 10.0 ** -np.random.default_rng(13).integers(0, 7, (200, 1, 1))
        request.v[:] = request.v * sizes * size
        request.v[::9] = 0
        (y,) = step(open_layer(layer, blocks), layer, [(request, 0, 200)])
        assert np.abs(y.astype(np.float64) - request.expected()).max() < slack(layer) * size


@pytest.mark.parametrize("heads", [1, 4, 8])
def test_large_scores_over_a_cache_of_int8(heads: int) -> None:
    """Of scores in the millions the greatest takes all, however small its value (but for rows where two are close)."""
    layer = Layer(heads, 1, 64, F32, I8)
    (request,), blocks = requests_of(layer, (200,), 14)
    request.k[:] *= 1e4
    request.q[:] *= 1e3
    request.v[:] *= np.where(np.arange(200) % 2, 1, 0.01).astype(F32)[:, None, None]
    (y,) = step(open_layer(layer, blocks), layer, [(request, 0, 200)])
    scores = np.einsum("thd,sd->ths", request.q.astype(np.float64), as_stored(request.k, layer)[:, 0]) * layer.scale
    scores[np.triu(np.ones((200, 200), bool), 1)[:, None].repeat(heads, 1)] = -np.inf
    greatest = np.sort(scores)[..., -2:]
    assert np.abs(greatest[1:]).max() > 2**23
    close = greatest[..., 1] - greatest[..., 0] < 1e5
    error = np.abs(y.astype(np.float64) - request.expected()).max(-1)
    assert error[~close].max() < slack(layer) and (~close).sum() > 100


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_infinite_later_values_do_not_reach_earlier_rows(dtype: Any) -> None:
    layer = Layer(4, 2, 64, dtype, dtype)
    (request,), blocks = requests_of(layer, (60,), 3)
    opened = open_layer(layer, blocks)
    (clean,) = step(opened, layer, [(request, 0, 60)])
    request.v[41], request.k[55] = np.inf, np.nan
    (y,) = step(opened, layer, [(request, 0, 60)])
    assert same_bits(y[:41], clean[:41]) and not np.isfinite(y[41:55]).any() and np.isnan(y[55:]).all()


@pytest.mark.parametrize("state", [BF16, I8], ids=str)
@pytest.mark.parametrize("size", [1e-39, 3e-37, 1e37])
def test_values_of_any_size_do_not_depend_on_their_company(state: Any, size: float) -> None:
    """Some instructions take denormals, and make them, as zeros, and add zeros for tokens that a row does not see."""
    layer = Layer(6, 2, 64, BF16, state)
    (request,), blocks = requests_of(layer, (150,), 9)
    request.k[:] = (request.k * np.where(np.arange(150) // 30 % 2 == 0, 30, 1)[:, None, None]).astype(BF16)
    request.v[:] = (request.v.astype(np.float64) * size).astype(BF16)
    request.v[::7] = -0.0
    opened, alone = open_layer(layer, blocks), open_layer(layer, blocks)
    (whole,) = step(opened, layer, [(request, 0, 150)])
    for first, last in ((0, 1), (1, 2), (2, 63), (63, 64), (64, 65), (65, 140), (140, 141), (141, 150)):
        (y,) = step(alone, layer, [(request, first, last)])
        assert same_bits(y, whole[first:last]), (first, last)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rope_kv_write_is_rope_and_kv_write(dtype: Any) -> None:
    for state in FLOATS:
        layer = Layer(4, 2, 64, dtype, state)
        (request,), blocks = requests_of(layer, (50,), 4)
        tables = {"cos": random(F32, 50, 32, seed=5), "sin": random(F32, 50, 32, seed=6)}
        (fused,) = step(open_layer(layer, blocks, rope=True), layer, [(request, 0, 50)], **tables)
        for name in ("q", "k"):
            x = getattr(request, name)
            setattr(request, name, run("rope", [x, *tables.values()], [(dtype, x.shape)], style="half")[0])
        (apart,) = step(open_layer(layer, blocks), layer, [(request, 0, 50)])
        assert same_bits(fused, apart)


def test_slopes_of_zero_are_no_slopes() -> None:
    """And slopes alone decide where all keys are equal: weights fall by e^-slope a token."""
    plain, sloped = Layer(4, 2, 64), Layer(4, 2, 64, sloped=True)
    (request,), blocks = requests_of(plain, (70,), 5)
    (want,) = step(open_layer(plain, blocks), plain, [(request, 0, 70)])
    opened = open_layer(sloped, blocks)
    (flat,) = step(opened, sloped, [(request, 0, 70)], slopes=np.zeros(4, np.float32))
    np.testing.assert_allclose(flat, want, atol=1e-6)
    request.k[:] = 0
    (got,) = step(opened, sloped, [(request, 0, 70)])
    for head, slope in enumerate(sloped.slopes.astype(np.float64)):
        weights = np.exp(-slope * np.arange(69, -1, -1))
        mean = weights @ request.v[:, head // 2].astype(np.float64) / weights.sum()
        np.testing.assert_allclose(got[69, head], mean, atol=1e-6)


@pytest.mark.parametrize(
    ("slopes", "message"),
    [
        (np.zeros(3, np.float32), "slopes"),
        (np.zeros((2, 1), np.float32), "slopes"),
        (np.zeros(2, np.float16), "slopes must be one of float32|slopes"),
    ],
)
def test_slopes_that_do_not_fit(slopes: Array, message: str) -> None:
    layer = Layer(2, 1, 16)
    ints = [np.array(v, np.int32) for v in ([0, 1], [1], [[0]])]
    inputs = [random(F32, 1, 2, 16), *ints, slopes]
    names = ("q", "query_start", "context_len", "block_table", "slopes")
    buffers: list[dict[str, Any]] = [
        {"kind": "input", "name": n, "dtype": x.dtype.name, "shape": list(x.shape)}
        for n, x in zip(names, inputs, strict=True)
    ]
    cache = {"type": "kv_cache", "heads": 1, "head_dim": 16}
    buffers += [{"kind": "state", "name": "kv.0", "dtype": "float32", "state": cache}]
    buffers += [{"kind": "temp", "dtype": "float32", "shape": [1, 2, 16]}]
    params = {"scale": layer.scale, "window": None, "softcap": None}
    call = {"kernel": "paged_attention", "in": [0, 5, 1, 2, 3, 4], "out": [6], "params": params}

    def attempt() -> None:
        opened = session(buffers, [call], {"y": 6}, {}, kv_blocks=2, kv_block_size=16)
        opened.run(dict(zip(names, inputs, strict=True)))

    with pytest.raises(_native.Error, match=message) as caught:
        attempt()
    assert caught.value.code == "kernel_refused"


def test_empty_steps() -> None:
    layer = Layer(2, 1, 16)
    opened = open_layer(layer, 2)
    empty = {
        "k": np.zeros((0, 1, 16), np.float32),
        "slot": np.zeros(0, np.int32),
        "q": np.zeros((0, 2, 16), np.float32),
    }
    empty["v"] = empty["k"]
    table = np.zeros((1, 0), np.int32)
    feeds = {**empty, "query_start": np.zeros(2, np.int32), "context_len": np.zeros(1, np.int32), "block_table": table}
    assert opened.run(feeds)["y"].shape == (0, 2, 16)
    nobody = {
        "query_start": np.zeros(1, np.int32),
        "context_len": np.zeros(0, np.int32),
        "block_table": np.zeros((0, 3), np.int32),
    }
    rows = {"q": np.ones((4, 2, 16), np.float32), "slot": np.full(4, -1, np.int32)}
    rows |= {"k": np.ones((4, 1, 16), np.float32), "v": np.ones((4, 1, 16), np.float32)}
    assert not opened.run({**rows, **nobody})["y"].any()


BIG = 2**31 - 1


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"slot": [0, 1, 2, 64, -1]}, "kv_write: slot out of range"),
        ({"slot": [0, 1, 2, -2, -1]}, "slot out of range"),
        ({"slot": [BIG, 1, 2, 3, -1]}, "slot out of range"),
        ({"query_start": [1, 2, 5]}, "query_start must begin at 0"),
        ({"query_start": [0, 5, 2]}, "query_start must never fall"),
        ({"query_start": [0, 2, 6]}, "stay within the tokens"),
        ({"query_start": [0, BIG, 5]}, "stay within the tokens"),
        ({"query_start": [0, -BIG, 5]}, "query_start must never fall"),
        ({"context_len": [33, 3]}, "more than block_table holds"),
        ({"context_len": [BIG, 3]}, "more than block_table holds"),
        ({"context_len": [1, 3]}, "less than the request's query tokens"),
        ({"context_len": [-BIG, 3]}, "less than the request's query tokens"),
        ({"block_table": [[0, 4], [2, 3]]}, "block out of range"),
        ({"block_table": [[-1, 1], [2, 3]]}, "block out of range"),
        ({"block_table": [[0, 1], [BIG, 3]]}, "block out of range"),
    ],
)
def test_a_value_out_of_range_is_a_typed_error(changed: dict[str, Any], message: str) -> None:
    layer = Layer(2, 1, 16)
    opened = open_layer(layer, 4)
    feeds: dict[str, Any] = {
        "slot": [0, 1, 2, 3, -1],
        "query_start": [0, 2, 5],
        "context_len": [20, 3],
        "block_table": [[0, 1], [2, 3]],
    }
    feeds = {name: np.array(value, np.int32) for name, value in feeds.items()}
    feeds |= {"q": random(F32, 5, 2, 16), "k": random(F32, 5, 1, 16), "v": random(F32, 5, 1, 16)}
    expected = opened.run(feeds)["y"]
    with pytest.raises(_native.Error, match=message) as caught:
        opened.run(feeds | {name: np.array(value, np.int32) for name, value in changed.items()})
    assert caught.value.code == "value"
    assert same_bits(opened.run(feeds)["y"], expected), "the session goes on"


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (Layer(2, 1, 15), "head_dim must be even"),
        (Layer(2, 1, 514), "head_dim must be even and in"),
        (Layer(3, 2, 16), "a multiple of the state's kv_heads"),
        (Layer(2, 1, 16, window=0), "parameter window is 0"),
        (Layer(2, 1, 16, softcap=-1.0), "parameter softcap is -1"),
        (Layer(2, 1, 16, np.dtype(np.int32)), "must be one of float32"),
    ],
)
def test_refusals(layer: Layer, message: str) -> None:
    sizes = {"q": layer.heads, "k": layer.kv_heads, "v": layer.kv_heads}
    ints = {"slot": [0], "query_start": [0, 1], "context_len": [1], "block_table": [[0]]}
    feeds = {name: np.zeros((1, heads, layer.width), layer.dtype) for name, heads in sizes.items()}
    feeds |= {name: np.array(values, np.int32) for name, values in ints.items()}

    def attempt() -> None:  # refused when the session opens, or when the shapes are known
        open_layer(layer, 4).run(feeds)

    with pytest.raises(_native.Error, match=message) as caught:
        attempt()
    assert caught.value.code == "kernel_refused"
