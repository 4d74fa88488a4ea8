"""Layers of convolutional nets: torch's state dicts, torch's numbers, and what constructors and forwards refuse."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import functional as F
from ingot import nn
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import InputError, ModuleError, OpError
from ingot.ir import Spec
from ingot.ir.interpret import interpret
from ingot.nn import Module, Sequential, trace

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


# Each is made twice, from ingot.nn and from torch.nn, by the same call.
LAYERS: dict[str, tuple[Callable[[Any], Any], tuple[int, ...]]] = {
    "Conv1d": (lambda n: n.Conv1d(4, 6, 3, 2, 2, 2), (2, 4, 11)),
    "Conv2d": (lambda n: n.Conv2d(4, 6, (3, 2), padding=(1, 0), groups=2), (2, 4, 7, 8)),
    "Conv2d of one sample": (lambda n: n.Conv2d(4, 6, 3, bias=False), (4, 7, 8)),
    "Conv2d same": (lambda n: n.Conv2d(3, 5, 3, padding="same", dilation=2), (1, 3, 7, 8)),
    "Conv2d valid": (lambda n: n.Conv2d(3, 5, 3, padding="valid"), (1, 3, 7, 8)),
    "Conv3d": (lambda n: n.Conv3d(2, 3, 2, 1, (0, 1, 1)), (1, 2, 3, 4, 5)),
    "ConvTranspose1d": (lambda n: n.ConvTranspose1d(4, 6, 3, 3, 1, 2, groups=2), (2, 4, 5)),
    "ConvTranspose2d": (lambda n: n.ConvTranspose2d(4, 3, 3, 2, 1, output_padding=1), (2, 4, 5, 3)),
    "ConvTranspose2d of one sample": (lambda n: n.ConvTranspose2d(4, 3, (2, 3), dilation=2, bias=False), (4, 5, 3)),
    "ConvTranspose3d": (lambda n: n.ConvTranspose3d(2, 3, 2, 2), (1, 2, 3, 2, 3)),
    "AvgPool1d": (lambda n: n.AvgPool1d(3, 2, 1, True, False), (2, 4, 8)),
    "AvgPool2d": (lambda n: n.AvgPool2d(2), (2, 3, 7, 8)),
    "AvgPool2d, everything": (lambda n: n.AvgPool2d((3, 2), 2, (1, 0), True, True, 5), (3, 7, 8)),
    "AvgPool3d": (lambda n: n.AvgPool3d(2), (1, 2, 4, 4, 5)),
    "MaxPool1d": (lambda n: n.MaxPool1d(3), (2, 4, 8)),
    "MaxPool2d": (lambda n: n.MaxPool2d(3, 2, 1, 1, False, True), (2, 3, 8, 7)),
    "MaxPool3d": (lambda n: n.MaxPool3d(2, ceil_mode=True), (1, 2, 4, 4, 5)),
    "AdaptiveAvgPool2d": (lambda n: n.AdaptiveAvgPool2d((1, 1)), (2, 3, 6, 5)),
    "GroupNorm": (lambda n: n.GroupNorm(2, 6), (2, 6, 5, 3)),
    "GroupNorm without weights": (lambda n: n.GroupNorm(3, 6, 1e-3, False), (2, 6, 5)),
    "BatchNorm1d": (lambda n: n.BatchNorm1d(4), (3, 4)),
    "BatchNorm1d of [N, C, L]": (lambda n: n.BatchNorm1d(4, affine=False), (3, 4, 5)),
    "BatchNorm2d": (lambda n: n.BatchNorm2d(4, 1e-3), (2, 4, 5, 3)),
    "BatchNorm3d": (lambda n: n.BatchNorm3d(4), (2, 4, 5, 3, 2)),
    "Mish": (lambda n: n.Mish(), (3, 50)),
    "ReLU": (lambda n: n.ReLU(True), (3, 5)),
    "SiLU": (lambda n: n.SiLU(inplace=True), (3, 5)),
    "GELU": (lambda n: n.GELU(), (3, 5)),
    "GELU by tanh": (lambda n: n.GELU("tanh"), (3, 5)),
    "Sigmoid": (lambda n: n.Sigmoid(), (3, 5)),
    "Tanh": (lambda n: n.Tanh(), (3, 5)),
    "Identity": (lambda n: n.Identity(3, x=4), (3, 5)),
    "Dropout": (lambda n: n.Dropout(0.1), (3, 5)),
    "Flatten": (lambda n: n.Flatten(), (3, 5, 2)),
    "Sequential": (
        lambda n: n.Sequential(n.Conv2d(3, 4, 3, padding=1), n.BatchNorm2d(4), n.Sequential(n.Mish(), n.AvgPool2d(2))),
        (2, 3, 6, 6),
    ),
    "Sequential by name": (
        lambda n: n.Sequential(OrderedDict(first=n.Linear(5, 4), last=n.Linear(4, 2, bias=False))), (3, 5),
    ),
}  # fmt: skip


def given_statistics(torch: Any, module: Any) -> Any:
    """The torch module ready to infer, its norms with weights and statistics other than ones and zeros."""
    torch.manual_seed(0)
    for name, tensor in module.state_dict().items():
        if name.endswith("running_var"):
            tensor.uniform_(0.5, 2)
        elif "running" in name or module.state_dict()[name].ndim == 1 and tensor.dtype.is_floating_point:
            tensor.normal_()
    return module.eval()


@pytest.mark.parametrize("name", LAYERS)
def test_against_torch(name: str) -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    make, shape = LAYERS[name]
    theirs, ours = given_statistics(torch, make(torch.nn)), make(nn)
    ours.load_state_dict(theirs.state_dict())
    x = normal(*shape)
    with torch.no_grad():
        want = theirs(torch.tensor(x)).numpy()
    np.testing.assert_allclose(ours(x), want, rtol=2e-5, atol=1e-5)
    network = trace(ours, {"x": Spec(shape, "float32")})
    state = ours.state_dict()
    for results in (interpret(network, {"x": x}, state), build_network(network, state).run({"x": x})):
        (got,) = results.values()
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)
    names = [key for key in theirs.state_dict() if not key.endswith("num_batches_tracked")]
    assert sorted(ours.state_dict()) == sorted(names)


def test_narrow_weights_of_torch() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    theirs = torch.nn.Conv2d(3, 4, 3).to(torch.bfloat16)
    ours = nn.Conv2d(3, 4, 3, dtype="bfloat16")
    ours.load_state_dict(theirs.state_dict())
    x = normal(1, 3, 5, 5).astype(ours.weight.dtype.numpy)
    with torch.no_grad():
        want = theirs(torch.tensor(x.astype(np.float32)).to(torch.bfloat16)).float().numpy()
    np.testing.assert_allclose(ours(x).astype(np.float32), want, rtol=2**-7, atol=2**-7)


def test_ignored_names() -> None:
    """Only below the modules that ignore them."""
    net = Sequential(nn.BatchNorm2d(2))
    state = {f"0.{n}": normal(2) for n in ("weight", "bias", "running_mean", "running_var")}
    assert net.load_state_dict(state | {"0.num_batches_tracked": np.array(7)}) == ([], [])
    nn.BatchNorm1d(2).load_state_dict({n[2:]: a for n, a in state.items()} | {"num_batches_tracked": np.array(7)})
    with pytest.raises(ModuleError, match="unexpected: \n    num_batches_tracked"):
        net.load_state_dict(state | {"num_batches_tracked": np.array(7)})
    assert all(nn.BatchNorm2d.ignored.values())


# ------------------------------------------------------------------------------------------------ output_size


def transposed(**options: Any) -> Any:
    layer = nn.ConvTranspose2d(2, 3, **{"kernel_size": 3, "stride": 2, "padding": 1} | options)
    for parameter in layer.parameters():
        parameter.value = normal(*parameter.shape)
    return layer


@pytest.mark.parametrize("size", [7, 8])
def test_a_pair_of_a_unet(size: int) -> None:
    """7×7 → 4×4 → 7×7 and 8×8 → 4×4 → 8×8: the decoder's sizes are the encoder's."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    down, up = nn.Conv2d(3, 2, 3, stride=2, padding=1), transposed()
    down.load_state_dict({"weight": normal(2, 3, 3, 3), "bias": normal(2)})
    x = normal(1, 3, size, size)
    h = down(x)
    assert h.shape == (1, 2, 4, 4)
    theirs = torch.nn.ConvTranspose2d(2, 3, 3, stride=2, padding=1)
    theirs.load_state_dict({k: torch.tensor(v) for k, v in up.state_dict().items()})
    for output_size in ([size, size], x.shape):
        got = up(h, output_size=output_size)
        assert got.shape == x.shape
        with torch.no_grad():
            want = theirs(torch.tensor(h), output_size=list(output_size)).numpy()
        np.testing.assert_allclose(got, want, rtol=2e-5, atol=1e-5)
    one = up(h[0], output_size=(3, size, size))
    np.testing.assert_allclose(one, up(h, output_size=[size, size])[0], rtol=1e-6)


def test_output_size_out_of_reach() -> None:
    layer, x = transposed(), normal(1, 2, 4, 4)
    reach = r"output_size \[{}, 8\] is out of reach: sizes go from \[7, 7\] to \[8, 8\] for an input of \[4, 4\]"
    for wrong in (6, 9):
        with pytest.raises(ValueError, match=reach.format(wrong)):
            layer(x, output_size=[wrong, 8])
    for count in (1, 3, 5):
        with pytest.raises(ModuleError, match=f"must have 2 entries, or 4 for the whole result, not {count}"):
            layer(x, output_size=[7] * count)
    assert transposed(stride=1)(x, output_size=(4, 4)).shape == (1, 3, 4, 4)
    assert transposed(padding=0, padding_mode="same_upper")(x, output_size=(9, 8)).shape == (1, 3, 9, 8)
    assert transposed(pre_padding=2, post_padding=-1)(x, output_size=(8, 9)).shape == (1, 3, 8, 9)


class UpTo(Module):
    """x upsampled to the sizes of another tensor."""

    def __init__(self, up: Module) -> None:
        super().__init__()
        self.up = up

    def forward(self, x: Any, like: Any) -> Any:
        return self.up(x, output_size=like.shape)


@pytest.mark.parametrize("batched", [True, False])
def test_output_size_of_run_time(batched: bool) -> None:
    net = UpTo(transposed())
    first = ("N",) if batched else ()
    h, w = Dim("H", 1, None, 99), Dim("W", 1, None, 99)
    network = trace(net, {
        "x": Spec((*first, 2, (h - 1) // 2 + 1, "V"), "float32"), "like": Spec((*first, 3, h, w), "float32"),
    })  # fmt: skip
    (out,) = network.outputs.values()
    assert out.shape[-2:] == (h, w)
    outer = (2,) if batched else ()

    def run(height: int, width: int, v: int) -> np.ndarray:
        x, like = normal(*outer, 2, (height + 1) // 2, v), normal(*outer, 3, height, width)
        (got,) = interpret(network, {"x": x, "like": like}, net.state_dict()).values()
        np.testing.assert_allclose(got, net.up(x, output_size=(height, width)), rtol=1e-5, atol=1e-5)
        return got

    assert run(7, 7, 4).shape[-2:] == (7, 7)
    assert run(8, 9, 5).shape[-2:] == (8, 9)
    engine = build_network(network, net.state_dict())
    for wrong in ((7, 6, 4), (7, 9, 4)):  # 7 and 8 are within reach of 4
        with pytest.raises(OpError, match="dimension . starts at -1, before the first element"):
            run(*wrong)
        height, width, v = wrong
        feeds = {"x": normal(*outer, 2, (height + 1) // 2, v), "like": normal(*outer, 3, height, width)}
        with pytest.raises(InputError, match="up: slice along .*: it begins before the first element; .*V=4"):
            engine.run(feeds)


def test_output_size_of_a_dim_with_known_difference() -> None:
    network = trace(UpTo(transposed()), {
        "x": Spec((1, 2, "H", "H"), "float32"), "like": Spec((1, 3, Dim("H") * 2, Dim("H") * 2 - 1), "float32"),
    })  # fmt: skip
    assert [node.op.name for node in network.nodes] == ["conv_transpose"]
    with pytest.raises(ModuleError, match=r"sizes go from \[2\*H - 1, 2\*H - 1\] to \[2\*H, 2\*H\]"):
        trace(UpTo(transposed()), {
            "x": Spec((1, 2, "H", "H"), "float32"), "like": Spec((1, 3, Dim("H") * 2, Dim("H") * 2 + 1), "float32"),
        })  # fmt: skip


# ------------------------------------------------------------------------------------------------ containers, errors


def test_sequential() -> None:
    net = Sequential(nn.Linear(4, 3), nn.ReLU())
    net.append(nn.Linear(3, 2))
    assert [name for name, _ in net.named_parameters()] == ["0.weight", "0.bias", "2.weight", "2.bias"]
    assert isinstance(net[1:], Sequential) and len(net[1:]) == 2 and isinstance(net[-1], nn.Linear)
    named = Sequential({"a": nn.Identity(), "b": nn.Identity()})
    named[1] = nn.ReLU()
    assert [name for name, _ in named.named_children()] == ["a", "b"]
    np.testing.assert_array_equal(named(np.array([-1.0, 2.0], np.float32)), [0, 2])
    x = normal(3)
    np.testing.assert_array_equal(Sequential()(x), x)
    with pytest.raises(ModuleError, match="holds Modules, not function"):
        Sequential(nn.ReLU(), F.relu)  # type: ignore[arg-type]
    with pytest.raises(ModuleError, match="dots separate"):
        Sequential({"a.b": nn.ReLU()})


REFUSED: dict[str, tuple[Callable[[], Any], str]] = {
    "groups of 0": (lambda: nn.Conv2d(4, 4, 3, groups=0), "Conv2d: groups=0 must be positive ints"),
    "negative groups": (lambda: nn.ConvTranspose2d(4, 4, 3, groups=-1), "groups=-1 must be positive ints"),
    "several": (lambda: nn.Conv1d(0, -4, 3, groups=0), "in_channels=0, out_channels=-4, groups=0 must be"),
    "in_channels": (lambda: nn.Conv2d(3, 4, 3, groups=2), "Conv2d: in_channels=3 is not a multiple of groups=2"),
    "out_channels": (lambda: nn.Conv2d(4, 3, 3, groups=2), "Conv2d: out_channels=3 is not a multiple of groups=2"),
    "kernel of 0": (lambda: nn.Conv2d(4, 4, 0), "Conv2d: kernel_size=0 must be a positive int, or 2 of them"),
    "kernel of three": (lambda: nn.Conv2d(4, 4, (1, 2, 3)), "must be a positive int, or 2 of them"),
    "stride": (lambda: nn.Conv2d(4, 4, 3, stride=(1, 0)), r"stride=\(1, 0\) must be a positive int"),
    "padding": (lambda: nn.Conv2d(4, 4, 3, padding=-1), "padding=-1 must be an int of 0 or more"),
    "padding by word": (lambda: nn.Conv2d(4, 4, 3, padding="full"), "padding='full' must be"),
    "same with a stride": (lambda: nn.Conv2d(4, 4, 3, 2, "same"), 'padding="same" needs stride 1'),
    "same, transposed": (lambda: nn.ConvTranspose2d(4, 4, 3, 2, "same"), "padding='same' must be"),  # type: ignore[arg-type]
    "padding_mode": (lambda: nn.Conv2d(4, 4, 3, padding_mode="reflect"), "padding_mode='reflect' must be one of zeros"),
    "output_padding": (
        lambda: nn.ConvTranspose2d(4, 4, 3, (2, 1), 1, (1, 1)),
        "output_padding of spatial dimension 1 is 1; it must be below 1, the larger of stride 1 and dilation 1",
    ),
    "pool": (lambda: nn.AvgPool2d(0), "AvgPool2d: kernel_size=0"),
    "pool divisor": (lambda: nn.AvgPool2d(2, divisor_override=0), "divisor_override=0"),
    "indices": (lambda: nn.MaxPool2d(2, return_indices=True), "return_indices=True is not supported"),
    "GroupNorm": (lambda: nn.GroupNorm(0, 4), "GroupNorm: num_groups=0 must be positive ints"),
    "GroupNorm channels": (lambda: nn.GroupNorm(3, 4), "num_channels=4 is not a multiple of num_groups=3"),
    "BatchNorm": (lambda: nn.BatchNorm2d(0), "BatchNorm2d: num_features=0"),
    "BatchNorm statistics": (lambda: nn.BatchNorm2d(2, track_running_stats=False), "each batch's own statistics"),
    "BatchNorm rank": (lambda: nn.BatchNorm2d(2)(normal(1, 2, 3)), r"BatchNorm2d takes 4 dimensions, got \[1, 2, 3\]"),
    "GELU": (lambda: nn.GELU("erf"), 'approximate must be "none" or "tanh"'),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    call, message = REFUSED[name]
    with pytest.raises(ValueError, match=message):
        call()


def test_groups_by_position_are_refused() -> None:
    """torch has groups behind output_padding, the retired API dilation."""
    with pytest.raises(TypeError):
        nn.ConvTranspose2d(4, 4, 3, 2, 1, 1, 2)  # type: ignore[misc]
