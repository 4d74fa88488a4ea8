"""What products end with and begin with, interpreted on the CPU, against the ops' own torch forms: activations behind a
bias or of a gate, bias and residual together, and layer norms.
"""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.cuda.interpreted import WITHOUT, one_of_each

torch: Any = pytest.importorskip("torch", reason="the kernels are compared with torch")
pytest.importorskip("triton", reason=WITHOUT)

from ingot.backends.cuda import launch  # noqa: E402
from ingot.backends.cuda.launch import Launcher  # noqa: E402
from ingot.backends.cuda.launch_shapes import Tile, power  # noqa: E402
from ingot.backends.cuda.operands import Norm, Weight, packed  # noqa: E402
from ingot.ops.conversion import Float8Rows  # noqa: E402
from ingot.ops.elementwise import Relu  # noqa: E402
from ingot.ops.mixture import ACTIVATIONS  # noqa: E402
from ingot.ops.norm import LayerNorm  # noqa: E402
from tests.backends.cuda.test_kernels import DEVICE, HALF, close, draw  # noqa: E402

# Of the exponential of a large number, which one is divided by.
pytestmark = [pytest.mark.filterwarnings(f"ignore:{said} encountered") for said in ("overflow", "invalid value")]

LAUNCHER = Launcher(torch)
INPUTS = {"floats": 70, "float8": 70, "int8": 128, "int4": 128}


def layer_norm(x: Any, norm: Norm) -> Any:
    gains = [v for v in (norm.gain, norm.beta) if v is not None]
    return LayerNorm(norm.eps).torch(torch, x, *gains)


def stored(kind: str, n: int, k: int, seed: int) -> tuple[Any, Any, Any]:
    """A weight as kernels read it, its scales, and the floats that these stand for."""
    if kind == "floats":
        floats = draw(n, k, dtype=HALF, seed=seed)
        return floats, None, floats.float()
    group = 64 if kind == "int4" else 0
    scales = draw(n, k // group if group else 1, dtype=torch.float32, seed=seed + 50).abs()
    if kind == "float8":
        numbers, scales = draw(n, k, dtype=torch.float32, seed=seed).to(torch.float8_e4m3fn), scales / 5
    else:
        most = 8 if group else 127
        make = torch.Generator().manual_seed(seed)
        numbers = torch.randint(-most, most, (n, k), dtype=torch.int8, generator=make).to(DEVICE)
        scales = scales / most
    wide = numbers.float() * scales.repeat_interleave(group or k, 1)
    return (packed(torch, numbers, group), scales, wide) if group else (numbers, scales.view(-1), wide)


def product(kind: str, rows: int, activation: str, pair: bool, extra: str, rounds: bool = False) -> None:
    """A product with all that may be around it, against the ops one after the other."""
    n, k = 19, INPUTS[kind]
    x = draw(rows, k + 3, dtype=HALF, seed=1)[:, :k]
    norm = Norm(draw(k, dtype=HALF, seed=2), 1e-5, 0.0, draw(k, dtype=HALF, seed=3), True)
    weights = [stored(kind, n, k, seed) for seed in (4, 5)[: 1 + pair]]
    (first, scales, wide), *more = weights
    second = more[0][:2] if pair else (None, None)
    weight = Weight(first, scales, *second, 64 if kind == "int4" else 0, activation)
    bias = None if pair else draw(n, dtype=HALF, seed=6)
    added = draw(rows, n, dtype=HALF, seed=7) if extra == "residual" else None
    values = layer_norm(x, norm).float()
    if rounds:
        values = Float8Rows().torch(torch, values)
    wanted = values @ wide.T if bias is None else values @ wide.T + bias.float()
    wanted = ACTIVATIONS[activation].torch(torch, wanted) if activation else wanted
    wanted = wanted * (values @ more[0][2].T) if pair else wanted
    wanted = wanted if added is None else wanted + added.float()
    out = torch.full((rows, n + 1), float("nan"), dtype=HALF, device=DEVICE)
    tile = {
        (n, k, 1 + pair, kind if kind[0] == "i" else "float8_e4m3fn", max(16, power(rows))): Tile(16, 4, 2, 2)
    }
    for launcher in (LAUNCHER, Launcher(torch, LAUNCHER.dependent, tiles=tile)):
        launcher.product(x, weight, out[:, :n], norm, added, rounds, bias)
        close(out[:, :n], wanted, HALF, 3)
        assert out[:, n].isnan().all()
        if rows < 5 or kind == "floats":
            break  # these have no tiles


@one_of_each(lambda a: (a["kind"], a["activation"] if a["rows"] == 3 else a["rows"]))
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("kind", ["floats", "int8", "int4", "float8"])
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "relu", "silu"])
def test_activations(activation: str, kind: str, rows: int) -> None:
    """Behind a bias, and of a gate."""
    product(kind, rows, activation, False, "none")
    product(kind, rows, activation, True, "none")


@one_of_each()
@pytest.mark.parametrize("rows", [1, 3, 17])
@pytest.mark.parametrize("kind", ["floats", "int8", "int4", "float8"])
def test_bias_and_residual(kind: str, rows: int) -> None:
    product(kind, rows, "", False, "residual")


@one_of_each()
@pytest.mark.parametrize(("rows", "activation", "pair"), [
    (1, "gelu", False), (3, "gelu_tanh", True), (6, "relu", False), (17, "", False),
])  # fmt: skip
def test_rows_of_float8(rows: int, activation: str, pair: bool) -> None:
    product("float8", rows, activation, pair, "residual", True)


@pytest.mark.parametrize(("activation", "pair"), [("gelu_tanh", True), ("gelu", False), ("", False)])
def test_rows_of_float8_by_the_library(activation: str, pair: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "TILE_ROWS", 8)
    rows, n, k = 9, 48, 64
    x, residual = (draw(rows, width, dtype=torch.bfloat16, seed=s) for s, width in ((1, k), (2, n)))
    weights = [stored("float8", n, k, seed) for seed in (3, 4)[: 1 + pair]]
    parts = [part for weight in weights for part in weight[:2]]
    weight, wide = Weight(*parts, activation=activation), [w for *_, w in weights]
    bias = None if pair else draw(n, dtype=torch.bfloat16, seed=5)
    values = Float8Rows().torch(torch, x.float())
    wanted = values @ wide[0].T if bias is None else values @ wide[0].T + bias.float()
    wanted = ACTIVATIONS[activation].torch(torch, wanted) if activation else wanted
    wanted = wanted * (values @ wide[1].T) if pair else wanted
    out = torch.full((rows, n), float("nan"), dtype=torch.bfloat16, device=DEVICE)
    assert LAUNCHER.by_library(weight, rows, x.dtype)
    LAUNCHER.product(x, weight, out, None, residual, True, bias)
    close(out, wanted + residual.float(), torch.bfloat16, 3)
    if pair:  # and as rows of float8 for the next product
        given = LAUNCHER.blank_rows(rows, n, x.dtype, x.device)
        LAUNCHER.product(x, weight, given, rounds=True)
        close(given.wide(), Float8Rows().torch(torch, wanted), torch.bfloat16, 8)  # of 8 bits: some round otherwise


def test_results_over_what_they_add() -> None:
    """As the library's products write them, a program has an element to itself."""
    rows, n, k = 7, 70, 40
    x, weight = draw(rows, k, dtype=HALF, seed=1), draw(n, k, dtype=HALF, seed=2)
    bias, out = draw(n, dtype=HALF, seed=3), draw(rows, n, dtype=HALF, seed=4)
    wanted = x.float() @ weight.float().T + bias.float() + out.float()
    LAUNCHER.product(x, Weight(weight), out, extra=out, bias=bias)
    close(out, wanted, HALF, 2)


def test_activations_at_the_ends() -> None:
    """Large numbers, infinities and none give what the ops give, and nothing else loses its digits."""
    x = torch.tensor([[-1e30, -1e4, -9.0, -3.0, -0.0, 1e-20, 5.0, 1e30, float("inf"), float("nan")]], device=DEVICE)
    x = torch.cat([x, torch.linspace(-4, 4, 10, device=DEVICE)[None]])
    for name, op in ACTIVATIONS.items():
        out = torch.full_like(x, 7.0)
        LAUNCHER.finished(x, None, name, None, out)
        wanted = op.torch(torch, x.double())
        assert torch.equal(out.isnan(), wanted.isnan()), name
        apart = (out - wanted).nan_to_num(0, 0, 0).abs()
        assert (apart <= 1e-6 * wanted.abs().nan_to_num(0, 0, 0) + 4e-7).all(), f"{name}: {apart}"
    assert isinstance(ACTIVATIONS["relu"], Relu) and set(ACTIVATIONS) == {"silu", "gelu", "gelu_tanh", "relu"}


@pytest.mark.parametrize(("gain", "beta"), [(True, True), (True, False), (False, False)])
@pytest.mark.parametrize(("rows", "k", "dtype"), [(1, 70, HALF), (5, 33, torch.float32), (3, 1, HALF)])
def test_layer_norm(rows: int, k: int, dtype: Any, gain: bool, beta: bool) -> None:
    """Rows far from zero too: the deviation is that from the mean."""
    x = draw(rows, k + 2, dtype=dtype, seed=1)[:, :k] + 40
    norm = Norm(
        draw(k, dtype=dtype, seed=2) if gain else None, 1e-5, 0.0, draw(k, dtype=dtype, seed=3) if beta else None, True
    )
    out = torch.full((rows, k + 1), float("nan"), dtype=dtype, device=DEVICE)
    LAUNCHER.norm(x, norm, out[:, :k])
    wanted = layer_norm(x, norm)
    assert (out[:, :k] - wanted).abs().max() <= {HALF: 4e-3, torch.float32: 2e-5}[dtype]
    assert out[:, k].isnan().all()
    weight = draw(9, k, dtype=dtype, seed=4)
    found = torch.empty((rows, 9), dtype=dtype, device=DEVICE)
    LAUNCHER.product(x, Weight(weight), found, norm)
    apart = (found.float() - wanted.float() @ weight.float().T).abs().max()
    assert apart <= {HALF: 4e-2, torch.float32: 2e-4}[dtype]
