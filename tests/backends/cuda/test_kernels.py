"""The kernels of target cuda, interpreted on the CPU, against torch in float32 at odd sizes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.backends.cuda.interpreted import LONG, WITHOUT, one_of_each

torch: Any = pytest.importorskip("torch", reason="the kernels are compared with torch")
pytest.importorskip("triton", reason=WITHOUT)

from ingot.backends.cuda import launch  # noqa: E402
from ingot.backends.cuda.launch import Launcher  # noqa: E402
from ingot.backends.cuda.launch_shapes import ROWS, SPLITS, Block, Shapes, Tile, power, tiles_of  # noqa: E402
from ingot.backends.cuda.operands import Form, Norm, Weight, packed, unpacked  # noqa: E402
from ingot.backends.cuda.transfer import Inputs, Layout  # noqa: E402
from ingot.ops.attention import KvWrite, PagedAttention, RopeTable  # noqa: E402
from ingot.ops.conversion import Float8Rows  # noqa: E402
from ingot.ops.indexing import Embedding, Take  # noqa: E402
from ingot.ops.narrow_cache import torch_to_int8, torch_vectors  # noqa: E402

# The interpreter has no products of bfloat16, and truncates to it.
HALF = torch.bfloat16 if torch.cuda.is_available() else torch.float16
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TOLERANCE = {torch.float32: 2e-6, torch.bfloat16: 8e-3, torch.float16: 1e-3}  # of the largest; one rounding of results
LAUNCHER = Launcher(torch)
pytestmark = one_of_each()


def close(found: Any, wanted: Any, dtype: Any, roundings: int = 1) -> None:
    error = (found.float() - wanted.float()).abs().max() / wanted.float().abs().max()
    assert error <= roundings * TOLERANCE[dtype], f"{float(error):.2e}"


def draw(*shape: int, dtype: Any, seed: int) -> Any:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def normed(x: Any, norm: Norm | None) -> Any:
    if norm is None:
        return x.float()
    wide = x.float()
    scale = (wide.square().mean(-1, keepdim=True) + norm.eps).rsqrt()
    return (wide * scale * (norm.gain.float() + norm.shift)).to(x.dtype).float()


def wanted_of(x: Any, norm: Norm | None, first: Any, second: Any, extra: Any) -> Any:
    values = normed(x, norm)
    sums = values @ first.T
    if second is not None:
        sums = torch.nn.functional.silu(sums) * (values @ second.T)
    return sums if extra is None else sums + extra.float()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int8])
@pytest.mark.parametrize(("count", "width"), [(9, 4), (33, 1028)])
def test_rows_of_a_table(dtype: Any, count: int, width: int) -> None:
    """As the ops' torch forms: the nearest index that is inside, and zeros for -1 where that means none."""
    table = draw(count, 2 * width, dtype=torch.float32, seed=0).mul(40).to(dtype)[:, width:]
    index = torch.tensor([3, -1, count - 1, 0, count, -7], dtype=torch.int32, device=DEVICE)
    for op, zeros in ((Take(), True), (Embedding(), False)):
        operands = (table, index) if zeros else (index, table)
        assert torch.equal(LAUNCHER.rows_of(table, index, zeros), op.torch(torch, *operands))


def test_nothing_begins_before_the_inputs_of_a_step_are_there() -> None:
    """Attention reads where its context lies before it waits for the kernels in front of it."""
    launcher, launched = Launcher(torch, dependent=True), []
    layout = Layout.of({"token_ids": ((2,), "int32"), "behind": ((2,), "int32")})
    inputs = Inputs.of(torch, torch.device("cpu"), layout, torch.zeros((4, layout.words), dtype=torch.int32))
    kernel = {(1,): lambda *given, **told: launched.append(told.get("launch_pdl", False))}
    launcher.step_kernels = SimpleNamespace(take_inputs=kernel)
    launcher.take_inputs(inputs, torch.zeros(2, dtype=torch.int32))
    assert launched == [True]
    assert ["launch_pdl" in launcher.options for _ in range(3)] == [False, True, True]
    assert launcher.options == {"DEPENDENT": True, "launch_pdl": True} and LAUNCHER.options["DEPENDENT"] is False


def test_angles() -> None:
    positions = torch.tensor([0, 1, 77, 131071], dtype=torch.int32, device=DEVICE)
    frequencies = (5e5 ** (-torch.arange(24) / 24)).to(DEVICE)
    found, wanted = LAUNCHER.angles(positions, frequencies, 1.25), RopeTable(1.25).torch(torch, positions, frequencies)
    for one, other in zip(found, wanted, strict=True):
        assert (one - other).abs().max() <= 2e-7


def test_rows_that_are_stored_as_integers() -> None:
    stored = torch.randint(-127, 128, (5, 100), dtype=torch.int8).to(DEVICE)
    scales = draw(5, 1, dtype=torch.float32, seed=1)
    found = LAUNCHER.floats_of(stored, scales, 0, torch.float32)
    assert torch.equal(found, stored.float() * scales)


@one_of_each(by=lambda given: (given["pair"], given["rows"] <= ROWS))
@pytest.mark.parametrize(
    ("rows", "n", "k", "dtype", "pair", "norm", "extra"),
    [
        (1, 37, 100, torch.float32, False, False, "none"),
        (1, 64, 128, HALF, True, True, "none"),
        (3, 33, 96, HALF, False, True, "bias"),
        (2, 16, 200, HALF, False, False, "residual"),
        (5, 40, 130, HALF, True, True, "residual"),
        (17, 33, 70, torch.float32, False, False, "bias"),
    ],
)
def test_product(rows: int, n: int, k: int, dtype: Any, pair: bool, norm: bool, extra: str) -> None:
    x = draw(rows, k + 3, dtype=dtype, seed=1)[:, :k]
    weights = [draw(n, k, dtype=dtype, seed=s) for s in (2, 3)[: 1 + pair]]
    given = Norm(draw(k, dtype=dtype, seed=4), 1e-5, 1.0) if norm else None
    added = {"none": None, "bias": draw(n, dtype=dtype, seed=5), "residual": draw(rows, n, dtype=dtype, seed=6)}[extra]
    out = torch.full((rows, n), float("nan"), dtype=dtype, device=DEVICE)
    wide = [w.float() for w in weights]
    library = 3 if rows > ROWS else 1  # whose sums are rounded before what follows them
    kind = str(dtype).removeprefix("torch.")
    staying = Launcher(torch, LAUNCHER.dependent, {(n, k, 1 + pair, kind): Block(4, 4, 0, 1)})  # has all blocks in turn
    for launcher in (LAUNCHER, staying):
        out.fill_(float("nan"))
        launcher.product(x, Weight(weights[0], second=weights[1] if pair else None), out, given, added)
        close(out, wanted_of(x, given, wide[0], wide[1] if pair else None, added), dtype, library)


@one_of_each(by=lambda given: given["rows"] <= ROWS)
@pytest.mark.parametrize(
    ("rows", "n", "k", "pair", "norm"),
    [
        (1, 37, 100, False, False),
        (1, 20, 96, True, True),
        (3, 19, 130, True, True),
        (4, 33, 64, False, True),
        (5, 20, 90, True, True),
        (19, 35, 300, False, False),
    ],
)
def test_product_of_float8(
    rows: int, n: int, k: int, pair: bool, norm: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By one kernel, by the matrix units, and expanded first; every float8 but NaN occurs, down to the smallest."""
    x = draw(rows, k + 8, dtype=HALF, seed=1)[:, :k]
    given = Norm(draw(k, dtype=HALF, seed=4), 1e-5, 1.0) if norm else None
    signs = 128 * torch.randint(0, 2, (1 + pair, n, k), device=DEVICE)
    bytes_ = torch.randint(0, 127, (1 + pair, n, k), device=DEVICE) + signs
    weights = list(bytes_.to(torch.uint8).view(torch.float8_e4m3fn))
    scales = [draw(n, dtype=torch.float32, seed=s).abs() / 900 for s in (2, 3)[: 1 + pair]]
    wide = [w.float() * s[:, None] for w, s in zip(weights, scales, strict=True)]
    weight = Weight(weights[0], scales[0], *((weights[1], scales[1]) if pair else (None, None)))
    residual = draw(rows, n, dtype=HALF, seed=7)
    wanted = wanted_of(x, given, wide[0], wide[1] if pair else None, residual)
    out = torch.full((rows, n + 1), float("nan"), dtype=HALF, device=DEVICE)
    key = (n, k, 1 + pair, "float8_e4m3fn")
    high = max(16, power(rows))
    parted = Launcher(torch, LAUNCHER.dependent, {key: Block(4, 4, 0, 1)}, {(*key, high): Tile(32, 4, 2, 2)})
    for launcher in (LAUNCHER, parted):
        launcher.product(x, weight, out[:, :n], given, residual)
        close(out[:, :n], wanted, HALF)
    monkeypatch.setattr(launch, "EXPANDED_ROWS", 3)
    LAUNCHER.product(x, weight, out[:, :n], given, residual)
    close(out[:, :n], wanted, HALF, 3)  # the weight is rounded too, and sums before what follows


def unlike_rows(rows: int, k: int) -> Any:
    """bfloat16: a row of large numbers, one of small ones, one of zeros, one with a NaN, and usual ones."""
    x = draw(rows, k, dtype=torch.bfloat16, seed=1)
    x[0] *= 2.0**80
    x[1] *= 2.0**-60
    x[2] = 0
    x[3, 5] = float("nan")
    return x


@pytest.mark.parametrize("rows", [5, 20])
def test_rows_of_bfloat16_by_float8(rows: int) -> None:
    """They are float16 with a power of two each: as exact, for a row of large numbers and one of small ones too."""
    n, k = 40, 130
    x = unlike_rows(rows, k)
    numbers = draw(n, k, dtype=torch.float32, seed=2).to(torch.float8_e4m3fn)
    weight = Weight(numbers, draw(n, dtype=torch.float32, seed=3))
    out = torch.empty((rows, n), dtype=torch.bfloat16, device=DEVICE)
    LAUNCHER.product(x, weight, out)
    wanted = x.double() @ (weight.first.double() * weight.scales.double()[:, None]).T
    for row in (0, 1, 4):
        close(out[row], wanted[row], torch.bfloat16)
    assert not out[2].any() and out[3].isnan().all()


@pytest.mark.parametrize(("rows", "group", "splits"), [(5, 64, 3), (20, 128, 1), (40, 256, 2)])
def test_rows_of_bfloat16_by_int4(rows: int, group: int, splits: int) -> None:
    """They are float16 with a power of two each: products are exact, sums those of float32."""
    n, k = 40, 768
    x = unlike_rows(rows, k)
    ints = torch.randint(-8, 8, (n, k), dtype=torch.int8, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    scales = draw(n, k // group, dtype=torch.float16, seed=3)
    high = max(16, power(rows))
    launcher = Launcher(torch, LAUNCHER.dependent, tiles={(n, k, 1, "int4", high): Tile(32, 2, splits, 2)})
    out = torch.empty((rows, n), dtype=torch.float32, device=DEVICE)
    launcher.product(x, Weight(packed(torch, ints, group), scales, group=group), out)
    wanted = x.double() @ (ints.double() * scales.double().repeat_interleave(group, 1)).T
    for row in (0, 1, 4, rows - 1):
        close(out[row], wanted[row], torch.float32)
    assert not out[2].any() and out[3].isnan().all()


@one_of_each(by=lambda given: (given["library"], given["rows"] <= ROWS))
@pytest.mark.parametrize(
    ("rows", "n", "k", "pair", "norm", "extra", "library"),
    [
        (1, 20, 96, True, True, "residual", False),
        (3, 19, 130, False, False, "none", False),
        (5, 20, 90, True, True, "residual", False),
        (9, 48, 64, True, True, "residual", True),
        (9, 32, 80, False, False, "residual", True),
        (9, 32, 80, False, True, "none", True),
    ],
)
def test_rows_of_float8(
    rows: int, n: int, k: int, pair: bool, norm: bool, extra: str, library: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows and weights of float8, by a kernel or by the library."""
    dtype = torch.bfloat16 if library else HALF
    if library:
        monkeypatch.setattr(launch, "TILE_ROWS", 8)
    x = draw(rows, k + 8, dtype=HALF, seed=1)[:, :k]
    x[0, :] *= 0.0 if rows > 4 else 1.0  # a row of zeros
    given = Norm(draw(k, dtype=HALF, seed=4), 1e-5, 1.0) if norm else None
    weights = [draw(n, k, dtype=torch.float32, seed=s).to(torch.float8_e4m3fn) for s in (2, 3)[: 1 + pair]]
    scales = [draw(n, dtype=torch.float32, seed=s).abs() / 10 for s in (5, 6)[: 1 + pair]]
    wide = [w.float() * s[:, None] for w, s in zip(weights, scales, strict=True)]
    weight = Weight(weights[0], scales[0], *((weights[1], scales[1]) if pair else (None, None)))
    residual = draw(rows, n, dtype=dtype, seed=7) if extra == "residual" else None
    rounded = Float8Rows().torch(torch, normed(x, given))
    wanted = wanted_of(rounded, None, wide[0], wide[1] if pair else None, residual)
    out = torch.full((rows, n + 1), float("nan"), dtype=dtype, device=DEVICE)
    tile = {(n, k, 1 + pair, "float8_e4m3fn", max(16, power(rows))): Tile(32, 4, 2, 2)}
    for launcher in (LAUNCHER, Launcher(torch, LAUNCHER.dependent, tiles=tile)):
        launcher.product(x, weight, out[:, :n], given, residual, rounds=True)
        close(out[:, :n], wanted, dtype, 3 if library else 2)


def test_rows_of_float8_from_one_product_to_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a gate gives is rounded at once for the product behind it, as that one would round it."""
    monkeypatch.setattr(launch, "TILE_ROWS", 8)
    rows, hidden, inner = 9, 32, 48
    x, residual = (draw(rows, hidden, dtype=torch.bfloat16, seed=s) for s in (1, 2))
    gate, up = (draw(inner, hidden, dtype=torch.float32, seed=s).to(torch.float8_e4m3fn) for s in (3, 4))
    down = draw(hidden, inner, dtype=torch.float32, seed=5).to(torch.float8_e4m3fn)
    scales = [draw(n, dtype=torch.float32, seed=n).abs() / 9 for n in (inner, inner, hidden)]
    pair, last = Weight(gate, scales[0], up, scales[1]), Weight(down, scales[2])
    assert LAUNCHER.by_library(pair, rows, x.dtype) and not LAUNCHER.by_library(pair, 8, x.dtype)
    between = torch.empty((rows, inner), dtype=x.dtype, device=DEVICE)
    LAUNCHER.product(x, pair, between, rounds=True)
    given = LAUNCHER.blank_rows(rows, inner, x.dtype, x.device)
    LAUNCHER.product(x, pair, given, rounds=True)
    close(given.wide(), Float8Rows().torch(torch, between), torch.bfloat16, 2)
    found, wanted = (torch.empty_like(x) for _ in range(2))
    for out, of in ((found, given), (wanted, between)):
        LAUNCHER.product(of, last, out, extra=residual, rounds=True)
    close(found, wanted, torch.bfloat16, 2)


@one_of_each(by=lambda given: (given["group"] > 0, given["rows"] <= ROWS, given["k"] % 4))
@pytest.mark.parametrize(
    ("rows", "n", "k", "group", "pair", "norm"),
    [
        (1, 3, 80, 0, True, True),
        (1, 3, 96, 32, False, True),
        (1, 20, 90, 0, True, False),  # no words of four: by the matrix units
        (6, 20, 96, 0, True, False),
        (3, 19, 80, 0, True, True),
        (1, 9, 4112, 0, False, True),  # in two parts
        (1, 19, 96, 32, False, True),
        (2, 5, 4224, 64, False, True),
        (4, 9, 192, 32, True, True),
        (4, 9, 192, 64, True, True),
        (6, 9, 384, 128, True, False),
        (6, 9, 1024, 512, False, False),
        (5, 20, 256, 0, True, True),
        (19, 35, 1152, 0, False, False),
        (9, 40, 512, 128, False, True),
        (33, 17, 192, 64, True, False),
    ],
)
def test_product_of_integers(rows: int, n: int, k: int, group: int, pair: bool, norm: bool) -> None:
    most = 8 if group else 127
    x = draw(rows, k + 8, dtype=HALF, seed=1)[:, :k]
    given = Norm(draw(k, dtype=HALF, seed=4), 1e-5, 1.0) if norm else None
    weights = list(torch.randint(-most, most, (1 + pair, n, k), dtype=torch.int8, device=DEVICE))
    scales = [draw(n, k // (group or k), dtype=torch.float32, seed=s).abs() / 20 / most for s in (2, 3)[: 1 + pair]]
    stored = [packed(torch, w, group) for w in weights] if group else weights
    if group:
        assert torch.equal(unpacked(torch, stored[0], group), weights[0])
    residual = draw(rows, n, dtype=HALF, seed=7)
    out = torch.full((rows, n + 1), float("nan"), dtype=HALF, device=DEVICE)
    of_kernels = [s if group else s.view(-1) for s in scales]
    weight = Weight(stored[0], of_kernels[0], *((stored[1], of_kernels[1]) if pair else (None, None)), group)
    wide = [w.float() * s.repeat_interleave(group or k, 1) for w, s in zip(weights, scales, strict=True)]
    wanted = wanted_of(x, given, wide[0], wide[1] if pair else None, residual)
    high = max(16, power(rows))
    kind = "int4" if group else "int8"
    parted = Launcher(torch, LAUNCHER.dependent, tiles={(n, k, 1 + pair, kind, high): Tile(16, 4, 3, 2)})
    for launcher in (LAUNCHER, parted):
        for _ in range(2):  # counters are left as they were
            out.fill_(float("nan"))
            launcher.product(x, weight, out[:, :n], given, residual)
            close(out[:, :n], wanted, HALF, 1 if rows <= ROWS else 2)
            assert out[:, n].isnan().all()


@pytest.mark.parametrize(
    ("rows", "group", "expanded"), [(1, 64, False), (6, 64, False), (6, 512, False), (6, 512, True)]
)
@LONG
def test_scales_of_float16(rows: int, group: int, expanded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bits as with float32: by few rows, by both kernels of the matrix units, and expanded first."""
    monkeypatch.setattr(launch, "EXPANDED_ROWS", 3 if expanded else 512)
    n, k = 9, 1024
    x = draw(rows, k, dtype=HALF, seed=1)
    gate, up = (packed(torch, w, group) for w in torch.randint(-8, 8, (2, n, k), dtype=torch.int8, device=DEVICE))
    halves = [draw(n, k // group, dtype=torch.float16, seed=s) / 100 for s in (2, 3)]
    found = []
    for a, b in (halves, [s.float() for s in halves], [halves[0], halves[1].float()]):
        found.append(torch.full((rows, n), float("nan"), dtype=HALF, device=DEVICE))
        LAUNCHER.product(x, Weight(gate, a, up, b, group), found[-1])
    assert found[0].isfinite().all() and torch.equal(found[0], found[1]) and torch.equal(found[0], found[2])


@pytest.mark.parametrize(("group", "k"), [(0, 64), (32, 64), (0, 256), (64, 256)])
def test_products_of_integers_with_odd_rows(group: int, k: int) -> None:
    """A row of zeros, one with numbers from far apart, and one without a number, each for itself."""
    x = draw(3, k, dtype=torch.float32, seed=1)
    x[0], x[1, ::2], x[1, 1::2], x[2, 5] = 0, 1e35, 1e-30, float("nan")
    ints = torch.randint(-8, 8, (4, k), dtype=torch.int8, generator=torch.Generator().manual_seed(2)).to(DEVICE)
    stored, scales = (packed(torch, ints, group), torch.ones(4, k // group)) if group else (ints, torch.ones(4))
    out = torch.full((3, 4), float("nan"), dtype=torch.float32, device=DEVICE)
    LAUNCHER.product(x, Weight(stored, scales.to(DEVICE) / 1e3, group=group), out)
    assert not out[0].any()
    close(out[1:2], x[1:2].double() @ ints.double().T / 1e3, torch.float32)
    assert not out[2].isfinite().any()


def rotated(x: Any, cos: Any, sin: Any, halves: bool) -> Any:
    r = cos.shape[1]
    wide = x.float().clone()
    a, b = (wide[..., :r], wide[..., r : 2 * r]) if halves else (wide[..., 0 : 2 * r : 2], wide[..., 1 : 2 * r : 2])
    a, b = a.clone(), b.clone()
    c, s = cos[:, None], sin[:, None]
    places = (slice(0, r), slice(r, 2 * r)) if halves else (slice(0, 2 * r, 2), slice(1, 2 * r, 2))
    wide[..., places[0]], wide[..., places[1]] = a * c - b * s, b * c + a * s
    return wide.to(x.dtype)


@one_of_each(by=lambda given: given["longest"])
@pytest.mark.parametrize(
    ("dtype", "heads", "kv", "width", "r", "halves", "size", "longest", "multiprocessors"),
    [(HALF, 3, 1, 32, 8, False, 64, 517, 132), (torch.float32, 4, 2, 16, 8, True, 16, 517, 1),
     (HALF, 4, 1, 16, 8, True, 16, 16, 1), (HALF, 40, 1, 16, 8, True, 16, 70, 1)],
)  # fmt: skip
def test_decode_attention(
    dtype: Any, heads: int, kv: int, width: int, r: int, halves: bool, size: int, longest: int, multiprocessors: int
) -> None:
    """Requests of 1 token, of several blocks, of more blocks than splits, and one of padding; poison elsewhere. Of few
    programs, of many, undivided, and of many heads that share keys.
    """
    contexts, columns = [1, min(37, longest - 3), 0, longest], -(-longest // size)
    requests, blocks = len(contexts), 4 * columns
    part = Shapes(multiprocessors).decode(requests * kv, heads // kv, columns * size, width, dtype.itemsize, False)
    keys = 32 if heads == 40 else 16 if dtype == torch.float32 else 64
    assert (part.keys, part.splits) == (keys, {16: 1, 70: 4}.get(longest, SPLITS))
    launcher = Launcher(torch, LAUNCHER.dependent)
    launcher.shapes = Shapes(multiprocessors)
    all_rows = draw(requests, (heads + 2 * kv) * width, dtype=dtype, seed=1)
    q, key, value = all_rows.split([heads * width, kv * width, kv * width], 1)
    q, key, value = (t.view(requests, -1, width) for t in (q, key, value))
    angle = draw(requests, r, dtype=torch.float32, seed=2)
    state = draw(blocks, size, 2, kv, width, dtype=dtype, seed=3)
    table = torch.randperm(blocks, generator=torch.Generator().manual_seed(4)).view(requests, columns)
    slots = [int(table[b, (c - 1) // size]) * size + (c - 1) % size if c else -1 for b, c in enumerate(contexts)]
    for slot in slots:
        if slot >= 0:
            state[slot // size, slot % size] = float("nan")
    expected = state.clone()
    out = torch.full((requests, heads * width), float("nan"), dtype=dtype, device=DEVICE)
    ints = torch.tensor(slots, dtype=torch.int32, device=DEVICE)
    context = torch.tensor(contexts, dtype=torch.int32, device=DEVICE)
    form = Form(0.3, angle.cos(), angle.sin(), halves)
    launcher.decode(q, key, value, ints, state, context, table.to(torch.int32).to(DEVICE), out, form)
    queries, keys = (rotated(t, angle.cos(), angle.sin(), halves) for t in (q, key))
    for b, (count, slot) in enumerate(zip(contexts, slots, strict=True)):
        if not count:
            assert not out[b].any()
            continue
        expected[slot // size, slot % size, 0], expected[slot // size, slot % size, 1] = keys[b], value[b]
        cached = expected[table[b].to(DEVICE)].flatten(0, 1)[:count].float().repeat_interleave(heads // kv, 2)
        scores = torch.einsum("hd,thd->ht", queries[b].float(), cached[:, 0]) * 0.3
        close(out[b], torch.einsum("ht,thd->hd", scores.softmax(-1), cached[:, 1]).flatten(), dtype)
    close(state.nan_to_num(99), expected.nan_to_num(99), dtype)
    assert not state.isnan().any()


FORMS: dict[str, dict[str, Any]] = {
    "plain": {}, "window": {"window": 21}, "cap": {"softcap": 2.0}, "alibi": {"slopes": True},
    "all": {"window": 40, "softcap": 3.0, "slopes": True},
}  # fmt: skip


@one_of_each(by=lambda given: (given["decode"], given["width"] == 16))
@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize(
    ("name", "heads", "kv", "dtype", "cache", "width"),
    [("cap", 4, 1, HALF, "", 16), ("plain", 6, 2, HALF, "", 16), ("window", 4, 4, torch.float32, "", 16),
     ("alibi", 3, 1, HALF, "", 16), ("all", 4, 2, torch.float32, "", 16), ("plain", 6, 2, HALF, "int8", 16),
     ("all", 4, 2, torch.float32, "int8", 16), ("alibi", 3, 3, HALF, "int8", 16), ("plain", 6, 2, HALF, "float8", 16),
     ("all", 4, 2, torch.float32, "float8", 16), ("plain", 3, 1, HALF, "int8", 48), ("all", 4, 2, HALF, "", 80),
     ("window", 2, 2, torch.float32, "", 96), ("cap", 4, 2, HALF, "float8", 112), ("alibi", 2, 1, HALF, "", 240),
     ("all", 4, 2, torch.float32, "int8", 80)],
)  # fmt: skip
def test_attention_of_all_forms(
    decode: bool, name: str, heads: int, kv: int, dtype: Any, cache: str, width: int
) -> None:
    """As the op's own torch form: requests of no, one and several rows, behind what was cached; poison elsewhere, and
    around queries, keys and values.
    """
    size = 16 if name in ("window", "alibi") else 64
    columns = 192 // size
    counts = [1, 1, 1] if decode else [1, 0, 45, 70, 2]
    contexts = [1, 150, 33] if decode else [90, 0, 45, 181, 3]
    starts = torch.tensor([0, *torch.tensor(counts).cumsum(0).tolist()], dtype=torch.int32)
    tokens, requests = sum(counts) + 2, len(counts)  # two rows are nobody's
    rows = torch.full((tokens + 2, heads + 2 * kv + 1, width), float("nan"), dtype=dtype, device=DEVICE)
    q, key, value = rows[1:-1, :-1].split((heads, kv, kv), 1)
    for seed, some in enumerate((q, key, value)):
        some[:] = draw(*some.shape, dtype=dtype, seed=seed)
    table = torch.randperm(requests * columns, generator=torch.Generator().manual_seed(4)).view(requests, columns)
    state = draw(requests * columns, size, 2, kv, width, dtype=dtype, seed=3)
    if cache == "int8":
        state = torch.stack(torch_to_int8(torch, *state.unbind(2)), 2)
    elif cache:
        state = state.to(torch.float8_e4m3fn)
    slots = [int(table[b, p // size]) * size + p % size
             for b, (n, c) in enumerate(zip(counts, contexts, strict=True)) for p in range(c - n, c)]  # fmt: skip
    words = dict(FORMS[name])
    slopes = torch.rand(heads, generator=torch.Generator().manual_seed(7)).to(DEVICE) if "slopes" in words else None
    cos = sin = None
    if name != "alibi":
        angle = draw(tokens, 8, dtype=torch.float32, seed=2)
        cos, sin = angle.cos(), angle.sin()
    form = Form(0.3, cos, sin, **{**words, "slopes": slopes})
    ints = [
        t.to(torch.int32).to(DEVICE) for t in (torch.tensor([*slots, -1, -1]), starts, torch.tensor(contexts), table)
    ]
    expected = state.clone()
    turned = [t if cos is None else rotated(t, cos, sin, True) for t in (q, key)]
    KvWrite().torch(torch, expected, turned[1], value, ints[0])
    op = PagedAttention(scale=0.3, window=words.get("window"), softcap=words.get("softcap"))
    wanted = op.torch(torch, turned[0], expected, *ints[1:], *([] if slopes is None else [slopes]))[:-2]
    out = torch.zeros(tokens, heads, width, dtype=dtype, device=DEVICE)
    if decode:
        LAUNCHER.decode(q[:-2], key[:-2], value[:-2], ints[0], state, *ints[2:], out[:-2].view(requests, -1), form)
    else:
        tiles = torch.from_numpy(tiles_of(starts.numpy(), heads // kv)).to(DEVICE)
        LAUNCHER.prefill(q, key, value, ints[0], state, tiles, *ints[1:], out, form)
    close(out[:-2], wanted, dtype)
    close(torch_vectors(torch, state, width), torch_vectors(torch, expected, width), dtype)
    assert not out[-2:].any()


@pytest.mark.parametrize("decode", [True, False])
def test_queries_of_bfloat16_over_float8(decode: bool) -> None:
    """They are float16 with a power of two for each head: of one as exact as of another, however large it is."""
    requests, heads, width, size = 2, 3, 32, 64
    contexts, table = torch.tensor([150, 1], dtype=torch.int32), torch.arange(6, dtype=torch.int32).view(2, 3)
    q, key, value = (draw(requests, n, width, dtype=torch.bfloat16, seed=s) for s, n in enumerate((heads, 1, 1)))
    q[:, 0], q[:, 1] = 2.0**40 * q[:, 0], 2.0**-40 * q[:, 1]
    state = draw(6, size, 2, 1, width, dtype=torch.float32, seed=3).to(torch.float8_e4m3fn)
    state[:, :, 0] = (2.0**-8 * state[:, :, 0].float()).to(state.dtype)
    slot = torch.tensor([2 * size + 21, 3 * size], dtype=torch.int32)
    ints = [t.to(DEVICE) for t in (slot, torch.arange(3, dtype=torch.int32), contexts, table)]
    expected = state.clone()
    KvWrite().torch(torch, expected, key, value, ints[0])
    for head, scale in enumerate((2.0**-36, 2.0**44, 16.0)):
        wanted = PagedAttention(scale=scale).torch(torch, q.float(), expected, *ints[1:])[:, head]
        out = torch.zeros(requests, heads * width, dtype=torch.bfloat16, device=DEVICE)
        if decode:
            LAUNCHER.decode(q, key, value, ints[0], state, *ints[2:], out, Form(scale))
        else:
            tiles = torch.from_numpy(tiles_of(ints[1].cpu().numpy(), heads)).to(DEVICE)
            LAUNCHER.prefill(q, key, value, ints[0], state, tiles, *ints[1:], out.view(q.shape), Form(scale))
        close(out.view(requests, heads, width)[:, head], wanted, torch.bfloat16)
    assert torch.equal(state.view(torch.uint8), expected.view(torch.uint8))


@pytest.mark.parametrize("expanded", [False, True])
@pytest.mark.parametrize(("kind", "pair"), [("int4", False), ("int8", True), ("whole", True), ("whole", False)])
def test_product_of_many_rows(kind: str, pair: bool, expanded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    rows, n, k = 131, 70, 128
    monkeypatch.setattr(launch, "EXPANDED_ROWS", rows - expanded)
    x = draw(rows, k, dtype=HALF, seed=1)
    norm, extra = Norm(draw(k, dtype=HALF, seed=4), 1e-5, 1.0), None if pair else draw(rows, n, dtype=HALF, seed=6)
    out = torch.full((rows, n), float("nan"), dtype=HALF, device=DEVICE)
    if kind == "whole":
        stored = wide = [draw(n, k, dtype=HALF, seed=s) for s in (2, 3)[: 1 + pair]]
        weight = Weight(stored[0], second=stored[1] if pair else None)
    else:
        group = 32 if kind == "int4" else 0
        most = 8 if group else 127
        stored = list(torch.randint(-most, most, (1 + pair, n, k), dtype=torch.int8, device=DEVICE))
        scales = [draw(n, k // (group or k), dtype=torch.float32, seed=s).abs() / 300 for s in (2, 3)[: 1 + pair]]
        wide = [w.float() * s.repeat_interleave(group or k, 1) for w, s in zip(stored, scales, strict=True)]
        if group:
            stored = [packed(torch, w, group) for w in stored]
        else:
            scales = [s.view(-1) for s in scales]
        weight = Weight(stored[0], scales[0], *((stored[1], scales[1]) if pair else (None, None)), group)
    LAUNCHER.product(x, weight, out, norm, extra)
    wide = [w.float() for w in wide]
    close(out, wanted_of(x, norm, wide[0], wide[1] if pair else None, extra), HALF, 3)


@one_of_each(by=lambda given: given["kind"])
@pytest.mark.parametrize("rows", [6, 70, 131])
@pytest.mark.parametrize("kind", ["whole", "int8", "int4"])
def test_logits(kind: str, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of short floats as float32, of few rows and of many: by the library, or from integers, expanded or not."""
    monkeypatch.setattr(launch, "EXPANDED_ROWS", 100)
    n, k = 70, 128
    x, norm = draw(rows, k, dtype=HALF, seed=1), Norm(draw(k, dtype=HALF, seed=4), 1e-5, 1.0)
    weight = Weight(draw(n, k, dtype=HALF, seed=2))
    wide = weight.first.float()
    if kind != "whole":
        group = 32 if kind == "int4" else 0
        ints = torch.randint(-8, 8, (n, k), dtype=torch.int8, device=DEVICE)
        scales = draw(n, k // (group or k), dtype=torch.float32, seed=3).abs() / 300
        wide = ints.float() * scales.repeat_interleave(group or k, 1)
        weight = Weight(packed(torch, ints, group), scales, group=group) if group else Weight(ints, scales.view(-1))
    by_library = kind == "whole" or rows > 100
    if DEVICE == "cpu" and by_library:
        assert not LAUNCHER.widens(x, weight, torch.float32)
        pytest.skip("torch's products on a CPU do not give float32 of short floats")
    out = torch.full((rows, n), float("nan"), device=DEVICE)
    LAUNCHER.product(x, weight, out, norm)
    close(out, wanted_of(x, norm, wide, None, None), HALF)


def test_norm() -> None:
    x = draw(3, 70, dtype=HALF, seed=1)
    norm, out = Norm(draw(70, dtype=HALF, seed=2), 1e-6, 0.0), torch.empty_like(x)
    LAUNCHER.norm(x, norm, out)
    close(out, normed(x, norm), HALF)


@pytest.mark.parametrize("shared", [101_376, 166_912, 232_448])  # of compute capability 8.6, 8.0 and 9.0
def test_what_programs_share_fits(shared: int) -> None:
    """Steps that are under way at once, by the memory that they take as the compiler lays them."""
    shapes = Shapes(132, shared)
    assert shapes.prefill(128, 2, 128)[:2] == ((128, 2) if shared > 163_839 else (64, 2))
    for width, size in ((64, 2), (256, 2), (128, 4), (256, 4)):
        keys, stages, _ = shapes.prefill(width, size, 128)
        assert (2 * stages * keys + 128) * width * size <= max(shared, 163_840), (width, size)
    for n, k, pair, group, rows in ((6144, 4096, 0, 0, 5), (14336, 4096, 1, 0, 64), (4096, 14336, 0, 128, 64)):
        stored = torch.empty((n, k // (2 if group else 1)), dtype=torch.uint8 if group else torch.int8, device="meta")
        found = shapes.integer_tile(Weight(stored, stored, *((stored, stored) if pair else (None, None)), group), rows)
        held = found.outputs * (1 + pair) * 128 // (2 if group else 1) + 3 * max(16, rows) * 128
        assert found.stages >= 1 and found.stages * held <= shared and found.splits in (1, 2, 4)
