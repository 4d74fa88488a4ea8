"""The kernels of mixtures of experts, interpreted on the CPU, against the op's own torch form."""

from __future__ import annotations

from typing import Any

import pytest

from tests.backends.cuda.interpreted import LONG, WITHOUT, one_of_each

torch: Any = pytest.importorskip("torch", reason="the kernels are compared with torch")
pytest.importorskip("triton", reason=WITHOUT)

from ingot import dtypes  # noqa: E402
from ingot.backends.cuda.kernel_calls import KernelCalls  # noqa: E402
from ingot.backends.cuda.launch import Launcher  # noqa: E402
from ingot.backends.cuda.launch_shapes import Block, power  # noqa: E402
from ingot.backends.cuda.operands import Mixture, Weight, packed, unpacked  # noqa: E402
from ingot.backends.cuda.program import Experts  # noqa: E402
from ingot.backends.cuda.weights import arranged  # noqa: E402
from ingot.backends.torch_executor import Loaded  # noqa: E402
from ingot.ir import F, Network, Spec, Value  # noqa: E402
from ingot.ops.mixture import Moe  # noqa: E402
from tests.backends.cuda.test_kernels import DEVICE, HALF, close, draw  # noqa: E402

LAUNCHER = Launcher(torch)
pytestmark = one_of_each()


def walled(tensor: Any) -> Any:
    """The same in memory that goes on with infinities: who reads them multiplies them with 0, and is warned of it."""
    return torch.cat([tensor.flatten(), torch.full((64,), float("inf"), device=DEVICE)])[: tensor.numel()]


def stored(kind: str, n: int, k: int, seed: int, dtype: Any) -> tuple[Any, Any, Any, Any]:
    """Random weights [n, k] as a kernel reads them, their scales and zero points, and what they stand for."""
    drawn = draw(n, k, dtype=torch.float32, seed=seed) / k**0.5
    if kind == "floats":
        return drawn.to(dtype), None, None, drawn.to(dtype).float()
    scales = draw(n, 1, dtype=torch.float32, seed=seed + 10).abs() / k**0.5 / 40 + 1e-3
    if kind == "fp8":
        numbers = (drawn / scales).clamp(-448, 448).to(torch.float8_e4m3fn)  # a GPU draws others, beyond it too
        return numbers, walled(scales), None, numbers.float() * scales
    if kind == "int8":
        numbers = (drawn / scales).round().clamp(-127, 127)
        return numbers.to(torch.int8), walled(scales), None, numbers * scales
    group = int(kind.split("-")[1])
    scales = (draw(n, k // group, dtype=torch.float32, seed=seed + 10).abs() / k**0.5 / 4 + 1e-2).to(torch.float16)
    zeros = torch.zeros((n, k // group), dtype=torch.int8, device=DEVICE)
    if kind.endswith("asym"):
        zeros = draw(n, k // group, dtype=torch.float32, seed=seed + 20).mul(4).round().clamp(-8, 8).to(torch.int8)
    wide = scales.float().repeat_interleave(group, 1)
    less = zeros.float().repeat_interleave(group, 1)
    numbers = (drawn / wide + less).round().clamp(-8, 7)
    found = packed(torch, numbers.to(torch.int8), group)
    return found, scales, zeros if kind.endswith("asym") else None, (numbers - less) * wide


def mixture(
    kinds: tuple[str, str], experts: int, top: int, hidden: int, inner: int, dtype: Any, normalize: bool = True,
    activation: str = "silu",
) -> tuple[Mixture, list[Any]]:  # fmt: skip
    """A mixture whose gates and ups are of the first kind, and its downs of the second; and all weights in float32."""
    gate, up = (stored(kinds[0], experts * inner, hidden, seed, dtype) for seed in (3, 4))
    down = stored(kinds[1], experts * hidden, inner, 5, dtype)
    groups = [int(kind.split("-")[1]) if "-" in kind else 0 for kind in kinds]
    gated = Weight(gate[0], gate[1], up[0], up[1], groups[0], activation, gate[2], up[2])
    of = Mixture(gated, Weight(*down[:2], group=groups[1], zeros=down[2]), experts, top, normalize)
    wide = [gate[3].view(experts, inner, hidden), up[3].view(experts, inner, hidden), down[3].view(experts, hidden, -1)]
    return of, [expert for each in wide for expert in each]


def blocks(of: Mixture) -> dict[Any, Block]:
    """Of integers rows in two parts, and many outputs a program, which the interpreter likes. Parts of one chunk, which
    no launch shape has, Triton 3.6 compiles wrong where groups have zero points (H200)."""
    found = {}
    for one in (of.one(w) for w in of.weights if w.integers):
        line = power(one.inputs // (32 if one.group else 16))
        kind = "int4" if one.group else "int8"
        found[one.outputs, one.inputs, one.parts, kind] = Block(1, 32, 1 if line == 1 else max(2, line // 2), 1)
    return found


def check(of: Mixture, weights: list[Any], rows: int, hidden: int, dtype: Any) -> None:
    """Of experts that many rows choose, of such that none does, and of equal scores. Rows lie apart in x and out."""
    x = draw(rows, hidden + 3, dtype=dtype, seed=1)[:, :hidden]
    router = draw(rows, of.experts, dtype=torch.float32, seed=2)
    router[:, 1] -= 30  # nobody's
    router[::2, 0] += 3
    router[-1] = 0.5
    out = torch.full((rows, hidden + 1), float("nan"), dtype=dtype, device=DEVICE)
    Launcher(torch, blocks=blocks(of)).experts(x, router, of, out[:, :hidden])
    op = Moe(top_k=of.top, normalize=of.normalize, activation=of.gated.acts)
    close(out[:, :hidden], op.torch(torch, x, router, *weights), dtype, 2)
    assert out[:, hidden:].isnan().all()


@one_of_each(by=lambda given: given["rows"] <= 4)
@pytest.mark.parametrize(
    ("rows", "experts", "top", "hidden", "inner", "dtype", "normalize", "activation"),
    [
        (1, 4, 2, 40, 24, torch.float32, True, "silu"),
        (3, 5, 3, 33, 50, HALF, False, "silu"),
        (7, 4, 1, 40, 70, torch.float32, True, "silu"),
        (40, 6, 2, 72, 33, HALF, True, "silu"),
        (150, 3, 2, 70, 24, HALF, False, "silu"),
        (2, 3, 2, 40, 24, HALF, True, "gelu_tanh"),
        (9, 3, 2, 40, 24, HALF, True, "gelu"),
        (9, 3, 2, 40, 24, HALF, True, "relu"),
    ],
)
def test_experts(
    rows: int, experts: int, top: int, hidden: int, inner: int, dtype: Any, normalize: bool, activation: str
) -> None:
    """Weights of floats: few rows, and more by tiles."""
    of, weights = mixture(("floats", "floats"), experts, top, hidden, inner, dtype, normalize, activation)
    check(of, weights, rows, hidden, dtype)


@one_of_each(by=lambda given: (given["rows"] <= 4, given["kinds"][0].split("-")[0]))
@pytest.mark.parametrize(
    ("rows", "kinds", "hidden", "inner", "dtype", "activation"),
    [
        (1, ("int8", "int8"), 32, 48, HALF, "silu"),
        (9, ("int8", "int8"), 40, 72, HALF, "silu"),
        (1, ("int4-32", "int4-32"), 64, 32, HALF, "silu"),
        (9, ("int4-64", "int4-64"), 128, 64, HALF, "silu"),
        (2, ("fp8", "fp8"), 40, 72, HALF, "silu"),
        (9, ("fp8", "fp8"), 40, 72, HALF, "silu"),
        (1, ("int8", "int8"), 40, 72, HALF, "relu"),  # 40 is no multiple of 16
        (2, ("int8", "int8"), 112, 48, torch.float32, "gelu"),
        (70, ("int8", "int8"), 40, 72, torch.float32, "gelu"),
        (1, ("int4-128", "int4-128"), 256, 128, HALF, "gelu_tanh"),
        (1, ("int4-32-asym", "int4-64-asym"), 96, 64, HALF, "silu"),
        (40, ("int4-32-asym", "int4-64-asym"), 96, 64, HALF, "gelu"),
        (2, ("int4-128-asym", "int8"), 256, 48, torch.float32, "relu"),
        (150, ("int4-64", "int8"), 128, 72, torch.float32, "gelu_tanh"),
        (260, ("int4-32-asym", "int4-64"), 32, 64, HALF, "silu"),  # rounded with their scales
        (2, ("int4-64", "fp8"), 128, 40, HALF, "silu"),
        (1, ("int4-32-asym", "int4-32-asym"), 224, 32, HALF, "silu"),
        (70, ("fp8", "int4-128"), 72, 128, HALF, "relu"),
    ],
)
def test_compact_experts(
    rows: int, kinds: tuple[str, str], hidden: int, inner: int, dtype: Any, activation: str
) -> None:
    """Weights of integers and of floats of 8 bits, gates and downs in one format or two."""
    of, weights = mixture(kinds, 4, 2, hidden, inner, dtype, activation=activation)
    check(of, weights, rows, hidden, dtype)


@LONG
@pytest.mark.filterwarnings("ignore:overflow encountered")  # of the exponential of a large number, which divides one
@pytest.mark.parametrize("kind", ["int8", "int4-64-asym", "fp8"])
def test_rows_of_bfloat16(kind: str) -> None:
    """They become float16 with a scale each on their way to the matrix units: of small ones and large ones alike."""
    of, weights = mixture((kind, kind), 4, 2, 128, 64, torch.bfloat16)
    x = draw(9, 128, dtype=torch.bfloat16, seed=1)
    x[::2] *= 2.0**40
    x[1::2] *= 2.0**-40
    router, out = draw(9, 4, dtype=torch.float32, seed=2), torch.zeros_like(x)
    LAUNCHER.experts(x, router, of, out)
    wanted = Moe(top_k=2).torch(torch, x, router, *weights)
    for row in range(9):
        close(out[row], wanted[row], torch.bfloat16, 3)


@pytest.mark.filterwarnings("ignore:All-NaN")  # of the interpreter's maximum
@pytest.mark.parametrize("kind", ["floats", pytest.param("int8", marks=LONG)])
def test_scores_that_are_no_numbers(kind: str) -> None:
    """Their rows are none, and no others."""
    of, _ = mixture((kind, kind), 4, 2, 32, 32, torch.float32)
    for rows in (2, 9):
        x = draw(rows, 32, dtype=torch.float32, seed=1)
        router = draw(rows, 4, dtype=torch.float32, seed=2)
        router[1] = float("nan")
        router[2:3, 3] = float("nan")
        out = torch.zeros((rows, 32), device=DEVICE)
        Launcher(torch, blocks=blocks(of)).experts(x, router, of, out)
        assert out[1:3].isnan().all() and out[[0, *range(3, rows)]].isfinite().all()


@LONG
@pytest.mark.parametrize(
    "kinds", [("int8", "int8"), ("int4-32-asym", "int4-64"), ("fp8", "floats"), ("floats", "int8")]
)
@pytest.mark.parametrize("rows", [2, 9])
def test_a_network_of_compact_experts(kinds: tuple[str, str], rows: int) -> None:
    """What stands for their weights is part of one call, whose kernels read them as they are stored."""
    of, weights = mixture(kinds, 4, 2, 64, 64, torch.float32)
    network, tensors = Network(), {}

    def operand(name: str, stored: Any, scales: Any, zeros: Any, group: int) -> Value:
        """One expert's weight, [64, 64]."""
        values = []
        for part, tensor in (("", stored), (".scales", scales), (".zeros", zeros)):
            if tensor is not None:
                wide = unpacked(torch, tensor, group) if group and not part else tensor
                wide = wide.view(-1, 1) if part == ".scales" and not group else wide
                dtype = "int4" if group and not part else str(wide.dtype).removeprefix("torch.")
                values.append(network.parameter(name + part, Spec(tuple(wide.shape), dtypes.get(dtype))))
                tensors[values[-1]] = wide.clone()
        return F.dequantize(*values, group=group) if len(values) > 1 else values[0]

    x, router = (network.input(n, Spec(("T", k), dtypes.float32)) for n, k in (("x", 64), ("router", 4)))
    experts = []
    for name, w, each in (
        ("gate", of.gated, (of.gated.first, of.gated.scales, of.gated.zeros)),
        ("up", of.gated, (of.gated.second, of.gated.second_scales, of.gated.second_zeros)),
        ("down", of.downs, (of.downs.first, of.downs.scales, of.downs.zeros)),
    ):
        parts = [[None] * 4 if t is None else t.chunk(4) for t in each]
        experts += [operand(f"{name}{e}", *(part[e] for part in parts), w.group) for e in range(4)]
    network.outputs["y"] = F.moe(x, router, *experts, top_k=2)
    made = arranged(torch, Loaded(network, dict(tensors), 0))
    (call,) = made.calls
    assert isinstance(call, Experts) and len(call.nodes) == 1 + sum(v.node is not None for v in experts)
    given = {x: draw(rows, 64, dtype=torch.float32, seed=1), router: draw(rows, 4, dtype=torch.float32, seed=2)}
    run = made.loaded.tensors | given
    assert KernelCalls(torch, torch.device(DEVICE), made, LAUNCHER).run(0, call, run, None) == "experts"
    close(run[call.out], Moe(top_k=2).torch(torch, given[x], given[router], *weights), torch.float32, 2)
