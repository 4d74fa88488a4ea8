"""Nets on target cuda: chains against NumPy, small nets against torch forms; interpreted where there is no GPU."""

from __future__ import annotations

import itertools
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import dtypes
from ingot.ir import ExprBuilder
from ingot.ir.expr import evaluate
from tests.backends.cuda.interpreted import LONG, WITHOUT, one_of_each
from tests.backends.cuda.small_nets import NETS, Images, built

torch: Any = pytest.importorskip("torch", reason="target cuda runs on torch's memory")
pytest.importorskip("triton", reason=WITHOUT)

from torch import nn  # noqa: E402

from ingot.backends.cuda import chains, net_kernels, step_text  # noqa: E402
from ingot.ops.conversion import Float8Rows, Quantize, QuantizeRows  # noqa: E402
from ingot.ops.spatial import Conv  # noqa: E402

GPU = torch.cuda.is_available()
DEVICE = "cuda" if GPU else "cpu"
pytestmark = [
    one_of_each(),
    pytest.mark.usefixtures("cuda_here"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning:triton"),  # the interpreter computes masked elements too
]


def computed(builder: ExprBuilder, operands: list[Any], shape: tuple[int, ...], dtype: Any = None) -> tuple[Any, Any]:
    """An expression by its kernel, and by NumPy."""
    steps, last = tuple(map(tuple, builder.steps)), len(builder.steps) - 1
    given = [x.to(DEVICE) for x in operands]
    out = torch.empty(shape, dtype=dtype or torch.float32, device=DEVICE)
    chains.run(steps, last, given, out)
    wanted = evaluate({"steps": builder.steps, "outputs": [last]}, [x.numpy() for x in operands],
                      [dtypes.get(str(out.dtype).removeprefix("torch."))])  # fmt: skip
    return out.cpu().numpy(), wanted[0]


@pytest.mark.parametrize("name", [n for n in step_text._FLOAT if n != "div"])
def test_functions(name: str) -> None:
    builder = ExprBuilder()
    builder.call(name, builder.input(0, dtypes.float32))
    x = torch.cat([torch.linspace(0.01, 3, 61), torch.tensor([1e-3, 0.0999, 0.1001])])
    found, wanted = computed(builder, [x], (64,))
    np.testing.assert_allclose(found, wanted, rtol=3e-6 if GPU else 2e-6, atol=1e-7)


def test_steps() -> None:
    """Comparisons, choices, casts and NaN."""
    builder = ExprBuilder()
    x, y = builder.input(0, dtypes.float32), builder.input(1, dtypes.int32)
    larger = builder.max(builder.min(x, 2.0), -1.0)
    chosen = builder.where(builder.call("and", x > 0.5, builder.cast(y, dtypes.bool_)), larger, x / 3.0)
    builder.cast(chosen, dtypes.float16) + builder.cast(y * 7 - 3, dtypes.float16)
    given = torch.tensor([0.1, 0.7, 3.0, -5.0, float("nan"), float("inf")])
    found, wanted = computed(builder, [given, torch.tensor([1, 0, 5, -2, 3, 1], dtype=torch.int32)], (6,))
    np.testing.assert_array_equal(found, wanted)


def quantised(builder: ExprBuilder, x: Any, scale: float, **held: int) -> Any:
    """As the op rounds to int8 by a scale of its own."""
    return Quantize(**held).expr(builder, x, builder.const(scale, dtypes.float32))


def test_rounding_to_int8() -> None:
    """By one step, with the scale as a number of the kernel's: halves to even, what lies outside, NaN, infinities."""
    scales = (1.0, 0.1, 3.0, 0.030738649889826775)
    edges = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 1e-30, 3e38])
    for scale in scales:
        builder = ExprBuilder()
        whole = quantised(builder, builder.input(0, dtypes.float32), scale)
        builder.cast(whole, dtypes.float32) * scale
        steps = tuple(map(tuple, builder.steps))
        found, numbers = step_text.apart(steps)
        assert "quantise" in {step[0] for step in found} and len(numbers) == (0 if scale in (1.0, 3.0) else 1)
        x = torch.cat([edges, (torch.arange(-260, 261) / 2) * scale, torch.linspace(-140, 140, 3001) * scale])
        for last, dtype in ((whole.index, torch.int8), (len(steps) - 1, torch.float32)):
            out = torch.empty(x.shape, dtype=dtype, device=DEVICE)
            chains.run(steps, last, [x.to(DEVICE)], out)
            with np.errstate(over="ignore"):
                wanted = np.nan_to_num(x.numpy() / np.float32(scale), posinf=200, neginf=-200)
            wanted = np.clip(np.rint(wanted), -127, 127)
            wanted = wanted if last == whole.index else (wanted * np.float32(scale)).astype(np.float32)
            np.testing.assert_array_equal(out.cpu().numpy(), wanted)


def test_other_rounding_is_left() -> None:
    """By a scale that a run decides, of zero, or to another range than int8's."""
    for make in (
        lambda b, x: quantised(b, x, 0.0), lambda b, x: quantised(b, x, 1e-35),
        lambda b, x: Quantize().expr(b, x, b.input(1, dtypes.float32)),
        lambda b, x: quantised(b, x, 0.5, dtype=dtypes.uint8, minimum=0, maximum=255),
    ):  # fmt: skip
        builder = ExprBuilder()
        make(builder, builder.input(0, dtypes.float32))
        assert "quantise" not in {step[0] for step in step_text.apart(tuple(map(tuple, builder.steps)))[0]}


def test_layers_share_a_kernel() -> None:
    """Scales are arguments: expressions that differ in them alone have one source."""
    found = []
    for scale in (0.1, 0.7):
        builder = ExprBuilder()
        quantised(builder, builder.max(builder.input(0, dtypes.float32), 0.0), scale)
        found.append(step_text.apart(tuple(map(tuple, builder.steps))))
    assert found[0][0] == found[1][0] and [n for _, n in found] == [(0.1,), (0.7,)]


@pytest.mark.parametrize("dtype", ["float16", "float32"])
def test_rows_in_int8(dtype: str) -> None:
    """As the op quantises rows, alone and behind a layer norm; zeros, a NaN and an infinity."""
    x = torch.randn(6, 37, generator=torch.Generator().manual_seed(1)).to(getattr(torch, dtype))
    x[1], x[2, 3], x[3, 4] = 0, float("nan"), float("inf")
    gain = torch.rand(37)
    steps = (("input", "float32", 0),)
    for norm in (None, (gain.to(DEVICE), None, 1e-5)):
        there, out = x.to(DEVICE), torch.empty(x.shape, dtype=x.dtype, device=DEVICE)
        whole = torch.empty(x.shape, dtype=torch.int8, device=DEVICE), torch.empty((6, 1), device=DEVICE)
        chains.run_rows(steps, 0, [there], ["rows"], norm, out, True, whole)
        rows = out.cpu()
        if norm is None:
            np.testing.assert_array_equal(rows, x)
        else:
            wanted = nn.functional.layer_norm(x.float(), (37,), gain, None, 1e-5)
            np.testing.assert_allclose(rows.float(), wanted, atol=4e-3 if dtype == "float16" else 1e-5)
        numbers, scales = QuantizeRows().reference(rows.numpy())
        np.testing.assert_array_equal(whole[0].cpu(), numbers)
        np.testing.assert_array_equal(whole[1].cpu(), scales)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_rows_in_float8(dtype: str) -> None:
    """As the op rounds rows, behind an expression and a layer norm; zeros, tiny numbers, a NaN and an infinity."""
    x = torch.randn(7, 37, generator=torch.Generator().manual_seed(2)).to(getattr(torch, dtype))
    x[1], x[2, 3], x[3, 4], x[4] = 0, float("nan"), float("inf"), x[4] * 2.0**-20
    for steps, gain in (
        ((("input", "float32", 0),), None), ((("input", "float32", 0), ("neg", "float32", 0)), torch.rand(37)),
    ):  # fmt: skip
        there, out = x.to(DEVICE), torch.empty(x.shape, dtype=x.dtype, device=DEVICE)
        norm = None if gain is None else (gain.to(DEVICE), None, 1e-5)
        whole = torch.empty(x.shape, dtype=torch.float8_e4m3fn, device=DEVICE), torch.empty((7, 1), device=DEVICE)
        chains.run_rows(steps, len(steps) - 1, [there], ["rows"], norm, out, True, whole)
        rounded = (whole[0].float() * whole[1]).to(x.dtype).cpu().float()
        wanted = Float8Rows().torch(torch, out.cpu()).float()
        lost = ~wanted.isfinite()
        assert torch.equal(lost, ~rounded.isfinite()) and not lost[[0, 1, 4, 5, 6]].any() and lost[2:4].all()
        np.testing.assert_array_equal(rounded[~lost], wanted[~lost])
        assert norm is not None or torch.equal(out.cpu().isnan(), x.isnan())


POOLS = (  # x, kernel, stride, padding, dilation of the largest; means where there is none
    ((2, 5, 9, 7), (3, 2), (2, 1), (1, 1), (1, 2)), ((1, 16, 6, 5), (3, 3), (2, 2), (1, 1), (1, 1)),
    ((2, 8, 6, 9), (2, 3), (2, 3), (0, 0), None),
)  # fmt: skip


@pytest.mark.parametrize("case", range(len(POOLS)))
def test_pools(case: int) -> None:
    size, kernel, stride, padding, dilation = POOLS[case]
    x = torch.randn(size, generator=torch.Generator().manual_seed(case)).half()
    x[0, 1, 2, 3] = float("nan")
    x = x.contiguous(memory_format=torch.channels_last)
    if dilation is None:
        wanted = nn.functional.avg_pool2d(x.float(), kernel, stride).half()
    else:
        wanted = nn.functional.max_pool2d(x.float(), kernel, stride, padding, dilation).half()
    out = torch.zeros(wanted.shape, dtype=x.dtype).contiguous(memory_format=torch.channels_last).to(DEVICE)
    net_kernels.pool[(-(-out.numel() // 64),)](
        x.to(DEVICE), out, out.numel(), size[1], *size[2:], *wanted.shape[2:], *stride, *padding, *(dilation or (1, 1)),
        KH=kernel[0], KW=kernel[1], LARGEST=dilation is not None, BLOCK=64, num_warps=4,
    )  # fmt: skip
    np.testing.assert_allclose(out.cpu(), wanted, rtol=0 if dilation else 1e-3, atol=0 if dilation else 1e-3)


class Colours(nn.Module):
    """A first layer as ResNets have it, and another one whose windows reach over the edge of the last line."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 16, 7, 2, 3), nn.Conv2d(2, 16, (2, 3), (1, 2), (0, 2))

    def forward(self, x: Any) -> Any:
        return nn.functional.relu(self.a(x)).mean((2, 3)) + self.b(x[:, :2]).mean((2, 3))


def test_convolutions_of_few_channels() -> None:
    """Sums of lines of pixels: the numbers of the floats that the integers stand for."""
    from ingot.backends.cuda import net_forms, net_weights

    module, make = Colours(), torch.Generator().manual_seed(3)
    for conv, size in ((module.a, (2, 3, 11, 13)), (module.b, (1, 2, 5, 8))):
        x, weight = (torch.randint(-127, 128, s, dtype=torch.int8, generator=make) for s in (size, conv.weight.shape))
        op = Conv(conv.stride, conv.padding, conv.padding, (1, 1), 1)
        wanted = nn.functional.conv2d(x.double(), weight.double(), None, conv.stride, conv.padding)
        assert net_weights.few_channels(op, weight)
        lines, factors = net_weights.in_lines(weight), torch.ones(16)
        forms = net_forms.Forms(torch, torch.device(DEVICE), net_weights.NetMade(None, ()))  # type: ignore[arg-type]
        images, geometry = forms._images(op, x.to(DEVICE), lines, tuple(wanted.shape))
        out = torch.empty(wanted.shape).contiguous(memory_format=torch.channels_last).to(DEVICE)
        chains.run_sums((("input", "float32", 0),), 0, [None], ["sums"], images, lines.to(DEVICE),
                        torch.ones(1, device=DEVICE), factors.to(DEVICE), None, geometry,
                        chains.SumTile(16, 16, 32, 4), out)  # fmt: skip
        np.testing.assert_array_equal(out.cpu(), wanted.float())


@pytest.mark.parametrize("last", [True, False])
def test_broadcasting(last: bool) -> None:
    """Operands of a channel, of a row, of one number, and one whose memory is in another order."""
    builder = ExprBuilder()
    a, b, c, d, e = (builder.input(i, dtypes.float32) for i in range(5))
    ((a * b + c) * d) - e
    form = torch.channels_last if last else torch.contiguous_format
    shapes = ((2, 3, 5, 7), (3, 1, 1), (2, 1, 1, 7), (), (2, 3, 5, 7))
    operands = [torch.randn(s, generator=torch.Generator().manual_seed(i)) for i, s in enumerate(shapes)]
    operands[4] = operands[4].transpose(2, 3).contiguous().transpose(2, 3)
    out = torch.empty(shapes[0], device=DEVICE).contiguous(memory_format=form)
    chains.run(tuple(map(tuple, builder.steps)), len(builder.steps) - 1, [x.to(DEVICE) for x in operands], out)
    a, b, c, d, e = operands
    np.testing.assert_allclose(out.cpu().numpy(), ((a * b + c) * d - e).numpy(), rtol=1e-6, atol=1e-6)


def test_dimensions_are_merged() -> None:
    assert chains.arranged((2, 3, 4), (12, 4, 1), [(12, 4, 1), (0, 0, 0)]) == ([24], [(1, 1, 0)])
    assert chains.arranged((2, 3, 4), (12, 4, 1), [(0, 4, 1)]) == ([2, 12], [(12, 0), (1, 1)])
    assert chains.arranged((1, 1), (1, 1), []) == ([], [])


@pytest.mark.parametrize(("name", "precision"), [*itertools.product(NETS, ["float16"]), ("images", "float32")])
def test_nets(name: str, precision: str) -> None:
    """Numbers and calls of a net in 16 bits; another batch after the first."""
    engine, module, x = built(name, precision)
    session = engine.session(device="cuda")
    for batch in (1, 3):
        given = x[:1].expand(batch, *x.shape[1:]).contiguous()
        (found,) = session.run({"x": given.numpy()}).values()
        wanted = module(given).detach().numpy()
        assert found.shape == wanted.shape
        scale = np.abs(wanted).max()
        assert np.abs(found - wanted).max() <= (4e-3 if precision == "float16" else 1e-5) * scale
    if precision == "float16":
        kernels = {item.get("kernel") for item in session.profile({"x": x.numpy()})}
        assert NETS[name][2] <= kernels


class Gate(nn.Module):
    """Two products of one x, each with its bias, times each other."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(16, 8), nn.Linear(16, 8)

    def forward(self, x: Any) -> Any:
        return self.a(x) * self.b(x)


def test_gates() -> None:
    """The chain behind two products begins with the bias of the one that it does not end."""
    torch.manual_seed(0)
    module, x = Gate().eval(), torch.randn(3, 16)
    engine = ingot.build(module, (x,), precision="float16", report=False)
    (found,) = engine.session(device="cuda").run({"x": x.numpy()}).values()
    assert np.abs(found - module(x).detach().numpy()).max() <= 4e-3


FLOAT8 = {"weights": "fp8", "activations": "fp8"}


@cache
def in_float8() -> tuple[Any, Any]:
    """A net whose products are of float8, and an input."""
    _, module, x = built("words")
    engine = ingot.build(module, (x,), precision="float16", dynamic={"x": {0: "N"}}, report=False, **FLOAT8)
    return engine, x


@pytest.mark.parametrize("has", [True, False])
def test_float8_nets(has: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of float8 are rounded once for all that multiply them; where nothing multiplies float8, by torch forms."""
    engine, x = in_float8()
    session = engine.session(device="cuda")
    if not has:
        monkeypatch.setattr(session._executor._forms, "has_float8", False)
    (wanted,) = engine.session(device="torch").run({"x": x.numpy()}).values()
    for _ in range(2):
        (found,) = session.run({"x": x.numpy()}).values()
        assert np.abs(found - wanted).max() <= 2e-2 * np.abs(wanted).max()  # one float8 more or less
    names = [item.get("kernel") for item in session.profile({"x": x.numpy()})]
    ours = {"joined_products", "float8_matmul", "normed_rows", "quantised_rows"}
    assert ours <= {*names} if has else not ours & {*names} - {"normed_rows"}
    if has:
        assert not {"dequantize", "float8_rows"} & {*names} - {"dequantize"}
        held = [v for v in session._executor._loaded.tensors if v.dtype is dtypes.float16 and len(v.shape) == 2]
        assert not [v for v in held if v.kind == "result"]  # no weight of float8 is there as floats too


def test_products_of_float8() -> None:
    """By the library, where it is, and by floats."""
    from ingot.backends.cuda.net_forms import Float8

    make = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(size, generator=make).to(DEVICE) for size in ((3, 5, 32), (48, 32)))
    scales, bias = (torch.rand(48, generator=make).to(DEVICE) for _ in range(2))
    rows = Float8(x.to(torch.float8_e4m3fn), torch.rand(3, 5, 1, generator=make).to(DEVICE), torch.float16)
    weight = weight.to(torch.float8_e4m3fn)
    wanted = (rows.numbers.double() * rows.scales) @ (weight.double() * scales[:, None]).T + bias
    ways = [rows.by_floats] + [rows.by_library] * (GPU and torch.cuda.get_device_capability() >= (8, 9))
    for way in ways:
        found = way(torch, weight, scales[:, None], bias.half())
        assert found.dtype == torch.float16 and found.shape == (3, 5, 48)
        assert float((found - wanted).abs().max()) <= 4e-3 * float(wanted.abs().max())


@pytest.mark.parametrize("weights", ["fp8", "int8", "int4-g32"])
def test_weights_become_floats_once(weights: str) -> None:
    """When the first session opens, and not in every run; nobody keeps the bits that nobody reads."""
    _, module, x = built("words")
    engine = ingot.build(module, (x,), precision="float16", weights=weights, dynamic={"x": {0: "N"}}, report=False)
    session = engine.session(device="cuda")
    (wanted,) = engine.session(device="torch").run({"x": x.numpy()}).values()
    (found,) = session.run({"x": x.numpy()}).values()
    assert np.abs(found - wanted).max() <= 4e-3 * np.abs(wanted).max()
    made = session._executor._made
    # rows of the table, which is int8, meet weights of int8 as integers
    assert len(made.widened) == (6 if weights == "fp8" else 3) and made is engine.session(device="cuda")._executor._made
    assert not [v for node in made.widened for v in node.given if v in made.loaded.tensors]
    assert session.memory().weights == sum(t.nbytes for t in made.loaded.tensors.values())
    assert all(set(made.widened).isdisjoint(call.nodes) for call in made.running)


def test_bad_inputs() -> None:
    engine, _, x = built("graphs")
    session = engine.session(device="cuda")
    with pytest.raises(ingot.errors.InputError, match="float64"):
        session.run({"x": x.double().numpy()})
    with pytest.raises(ingot.errors.InputError, match="missing"):
        session.run({})
    with pytest.raises(ingot.errors.InputError):
        session.run({"x": np.zeros((2, 3, 5, 7), np.float32)})


def test_an_engine_travels(tmp_path: Path) -> None:
    """Built on a CPU, saved, loaded: the file runs on the device and then on the CPU, with the module's numbers."""
    engine, module, x = built("words")
    engine.save(tmp_path / "words.ingot")
    engine = ingot.load(tmp_path / "words.ingot")
    wanted = module(x).detach().numpy()
    for device in ("cuda", "cpu"):
        (found,) = engine.session(device=device).run({"x": x.numpy()}).values()
        assert np.abs(found - wanted).max() <= 4e-3 * np.abs(wanted).max()


@LONG
@pytest.mark.parametrize("name", NETS)
def test_calibrated_nets(name: str) -> None:
    """int8 of a net whose ranges were measured: the CPU's numbers, for sums of int8 are exact on both."""
    _, module, x = built(name)
    engine = ingot.quantize(module, [x], (x,), dynamic={"x": {0: "N"}}, errors=False, report=False, always_int8=True)
    session = engine.session(device="cuda")
    names = {item.get("kernel") for item in session.profile({"x": x.numpy()})}
    assert {"images": "int8_conv+chain", "words": "int8_matmul+chain", "graphs": "int8_conv+chain"}[name] in names
    assert not {"quantize", "dequantize"} & names
    for batch in (1, 2):
        (wanted,) = engine.run({"x": x[:batch].numpy()}).values()
        (found,) = session.run({"x": x[:batch].numpy()}).values()
        np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.skipif(not GPU, reason="no GPU is here")
def test_a_build_for_a_gpu_times_int8_there(tmp_path: Path) -> None:
    """Whole runs of both types on the GPU; tuned, all layers have the type that was faster."""
    _, module, x = built("images")
    told = tmp_path / "report.json"
    words = {"dynamic": {"x": {0: "N"}}, "device": "cuda", "errors": False, "report": False}
    engine = ingot.quantize(module, [x], (x,), report_file=str(told), always_int8=True, **words)
    speed, name = json.loads(told.read_text())["speed"], torch.cuda.get_device_name()
    assert speed["isa"] == name and speed["layers"] == [] and str(engine.device) == "cuda:0"
    assert speed["ratio"] > 1 or any("does not pay" in line and name in line for line in engine.log)
    ingot.quantize(module, [x], (x,), tune=60.0, tune_file=tmp_path / "tune.json", **words)
    found = json.loads((tmp_path / "tune.json").read_text())["int8"]
    assert found["isa"] == name and (not found["floats"] or found["after_ms"] < found["before_ms"])


@pytest.mark.parametrize("name", ["images", "words"])
@LONG
def test_calibrated_nets_whose_kernels_decline(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Node by node: floats of integers are made that no call makes where kernels read the integers."""
    _, module, x = built(name)
    engine = ingot.quantize(module, [x], (x,), dynamic={"x": {0: "N"}}, errors=False, report=False, always_int8=True)
    monkeypatch.setattr(chains, "MOST_ELEMENTS", 0)
    session = engine.session(device="cuda")
    assert "int8_" not in str([item.get("kernel") for item in session.profile({"x": x.numpy()})])
    (wanted,), (found,) = (e.run({"x": x.numpy()}).values() for e in (engine, session))
    np.testing.assert_allclose(found, wanted, atol=1e-5 * np.abs(wanted).max())


CONVOLUTIONS = (  # x, weight, stride, padding, dilation; the tile
    ((2, 5, 9, 7), (3, 5, 3, 3), (2, 1), (1, 0), (1, 1), chains.SumTile(16, 16, 32, 4)),
    ((1, 40, 6, 5), (33, 40, 1, 1), (1, 1), (0, 0), (1, 1), chains.SumTile(16, 32, 32, 4)),
    ((3, 3, 8, 8), (20, 3, 2, 4), (1, 2), (2, 3), (2, 1), chains.SumTile(32, 16, 32, 4)),
)


@pytest.mark.parametrize("case", range(len(CONVOLUTIONS)))
def test_sums_of_integers(case: int) -> None:
    """A convolution of int8 at odd sizes, with scales, a bias, a residual and a result in int8 again, exactly."""
    make = torch.Generator().manual_seed(case)
    size, shape, stride, padding, dilation, tile = CONVOLUTIONS[case]
    last = torch.channels_last
    x, weight = (torch.randint(-127, 128, s, dtype=torch.int8, generator=make) for s in (size, shape))
    factors, bias = torch.rand(shape[0], generator=make) / 64, torch.randn(shape[0], generator=make)
    wanted = nn.functional.conv2d(x.double(), weight.double(), None, stride, padding, dilation)
    beside, scale = torch.randn(wanted.shape, generator=make).contiguous(memory_format=last), torch.tensor(0.25)
    wanted = wanted.float() * factors.view(-1, 1, 1) * scale + bias.view(-1, 1, 1) + beside
    wanted = torch.clamp(torch.round(wanted / 0.5), -127, 127)
    steps = (("input", "float32", 0), ("input", "float32", 1), ("add", "float32", 0, 1), ("const", "float32", 0.5),
             ("div", "float32", 2, 3), ("round", "float32", 4), ("const", "float32", -127.0), ("max", "float32", 5, 6),
             ("const", "float32", 127.0), ("min", "float32", 7, 8), ("to_int", "int64", 9, "int32"),
             ("wrap", "int64", 10, "int8"))  # fmt: skip
    out = torch.full(wanted.shape, -128, dtype=torch.int8).contiguous(memory_format=last).to(DEVICE)
    images = (t.contiguous(memory_format=last) for t in (x, weight))
    there = [t.to(DEVICE) for t in (*images, scale.view(1), factors, bias)]
    beside = beside.to(DEVICE)
    geometry = chains.Geometry(size[2:], tuple(wanted.shape[2:]), shape[2:], stride, padding, dilation)
    chains.run_sums(steps, 11, [None, beside], ["sums", chains.sum_mode(beside, out)], *there, geometry, tile, out)
    assert torch.equal(out.cpu().float(), wanted)


def test_tiles_of_sums() -> None:
    """Every multiprocessor has one, where there are enough places and outputs; small sizes have small tiles."""
    many = chains.sum_tiles(32 * 56 * 56, 256, 64, 132)
    assert [(t.places, t.outputs, t.channels) for t in many] == [(128, 128, 64), (64, 128, 64), (64, 64, 64)]
    few = chains.sum_tiles(49, 512, 512, 132)
    assert [(t.places, t.outputs, t.channels) for t in few] == [(16, 32, 256), (64, 32, 128)]
    narrow = chains.sum_tiles(32 * 56 * 56, 64, 64, 132)
    assert [(t.places, t.outputs) for t in narrow] == [(128, 64), (64, 64), (64, 32)]
    assert chains.sum_tiles(5, 3, 3, 132)[0] == chains.SumTile(16, 16, 32)


@pytest.mark.skipif(not GPU, reason="tensors of a GPU")
def test_torch2trt_on_the_device() -> None:
    """A module and tensors there, on a stream of the caller; an engine from a state dict; a tensor of the CPU after."""
    module = Images().eval().cuda()
    x = torch.randn(2, 3, 4, 6, device="cuda")
    ours = ingot.torch2trt(module, [x], fp16_mode=True, max_batch_size=4)
    assert next(module.parameters()).is_cuda
    from ingot.compat.torch2trt import TRTModule

    other = TRTModule()
    other.load_state_dict(ours.state_dict())
    stream = torch.cuda.Stream()
    with torch.no_grad():
        wanted = module(x)
        for made in (ours, other):
            for _ in range(3):  # call by call, captured, replayed
                stream.wait_stream(torch.cuda.current_stream())
                with torch.cuda.stream(stream):
                    found = made(x)
                stream.synchronize()
                assert found.is_cuda and float((found - wanted).abs().max()) <= 4e-3 * float(wanted.abs().max())
        on_host = ours(x.cpu())
    assert not on_host.is_cuda
    assert float((on_host - wanted.cpu()).abs().max()) <= 4e-3 * float(wanted.abs().max())
