"""Graphs that torch's PT2E quantised: their `quantize` and `dequantize` against torch, and that products and
convolutions between them are of int8.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.ao.quantization.fx._decomposed  # makes the ops known
from torch import nn

import ingot
from ingot.cli.inspect import kernel_counts
from ingot.errors import UnsupportedError
from ingot.nn.parameter import as_array

Q = torch.ops.quantized_decomposed
INT8, UINT8 = (-128, 127, torch.int8), (0, 255, torch.uint8)
PAIR = (0.5, 0, *INT8)
RNG = torch.Generator().manual_seed(0)


class Net(nn.Module):
    """A function of an input and of stored tensors."""

    def __init__(self, function: Callable[..., Any], **stored: torch.Tensor) -> None:
        super().__init__()
        self.function = function
        for name, tensor in stored.items():
            self.register_buffer(name, tensor)

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(self, x)


def built(net: nn.Module, x: torch.Tensor) -> Any:
    return ingot.build(torch.export.export(net.eval(), (x,)), report=False)


def both(net: nn.Module, x: torch.Tensor) -> list[tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]]:
    """What the engine and torch give, output by output."""
    ours = built(net, x).run({"x": as_array(x)})
    theirs = net(x)
    theirs = theirs if isinstance(theirs, tuple) else (theirs,)
    return [(a, as_array(b)) for a, b in zip(ours.values(), theirs, strict=True)]


def calls(engine: Any) -> dict[str, int]:
    """The engine's calls but copies, none of which is the host's."""
    native, hosted = kernel_counts(engine.header["programs"]["cpu"])
    assert not hosted
    return {name: n for name, n in native.items() if name != "copy"}


def whole(*shape: int, dtype: torch.dtype = torch.int8) -> torch.Tensor:
    """Weights as torch stores them: without the smallest number."""
    return torch.randint(-127, 128, shape, generator=RNG).to(dtype)


def scales(count: int) -> torch.Tensor:
    return torch.rand(count, generator=RNG) * 0.002 + 0.001


def rounded(x: torch.Tensor, *how: Any) -> Any:
    return Q.dequantize_per_tensor(Q.quantize_per_tensor(x, *how), *how)


# -------------------------------------------------------------------------------------------------------- one by one


def test_a_tensor_at_a_time() -> None:
    """Each way of calling, types and ranges: equal where 1 / scale is exact; ties, what is beyond, infinities."""
    ranges = [INT8, UINT8, (-127, 127, torch.int8), (0, 127, torch.uint8), (-8, 7, torch.int8),
              (-30000, 32767, torch.int16), (-(2**20), 2**20, torch.int32)]  # fmt: skip
    made = [(0.25, 0, *INT8), (0.25, 0, *UINT8), *((0.25, 3, *one) for one in ranges)]

    def forward(net: Any, x: torch.Tensor) -> Any:
        found = [Q.quantize_per_tensor(x, *how) for how in made]
        found += [Q.dequantize_per_tensor(q, *how) for q, how in zip(found, made, strict=True)]
        q = Q.quantize_per_tensor.tensor(x, net.scale, net.zero, *INT8)
        found += [q, Q.dequantize_per_tensor.tensor(q, net.scale, net.zero, *INT8)]
        q = Q.quantize_per_tensor.tensor2(x, net.scale, net.zero, net.low, net.high, torch.int8)
        found += [q, Q.dequantize_per_tensor.tensor2(q, net.scale, net.zero, net.low, net.high, torch.int8)]
        found += [Q.dequantize_per_tensor(q, *made[0], out_dtype=kind) for kind in (torch.bfloat16, torch.float16)]
        return (*found, Q.quantize_per_tensor(x.bfloat16(), *made[1]))

    stored = {"scale": torch.tensor([0.5]), "zero": torch.tensor([-7]), "low": torch.tensor(-100),
              "high": torch.tensor(99)}  # fmt: skip
    x = torch.cat((torch.arange(-400, 400) / 16, torch.tensor([1e9, -1e9, torch.inf, -torch.inf])))
    for ours, theirs in both(Net(forward, **stored), x):
        np.testing.assert_array_equal(ours, theirs)
        assert ours.dtype == theirs.dtype


@pytest.mark.parametrize("axis", [0, 1, 2, -1])
def test_channels(axis: int) -> None:
    """Along each axis, with and without zero points, and with one for all."""
    kinds = [("int8", INT8), ("uint8", UINT8), ("narrow", (-100, 90, torch.int8))]
    shape = (3, 4, 5)
    count = shape[axis]
    factors = torch.tensor([0.125, 0.25, 0.5, 2.0, 1.0])[:count]
    zeros = {"int8": torch.arange(count) - 2, "uint8": torch.full((count,), 128), "narrow": torch.zeros(count).int()}

    def forward(net: Any, x: torch.Tensor) -> Any:
        found = []
        for name, kind in kinds:
            q = Q.quantize_per_channel(x, net.factors, getattr(net, name), axis, *kind)
            found += [q, Q.dequantize_per_channel(q, net.factors, getattr(net, name), axis, *kind)]
            found.append(Q.dequantize_per_channel(q, net.wide, None, axis, *kind, out_dtype=torch.float16))
        return tuple(found)

    x = torch.randint(-900, 900, shape, generator=RNG) / 16
    for ours, theirs in both(Net(forward, factors=factors, wide=factors.double(), **zeros), x):
        np.testing.assert_array_equal(ours, theirs)


# -------------------------------------------------------------------------------------------------------------- nets


@pytest.mark.parametrize(
    "kind", [(3, *INT8), (0, -127, 127, torch.int8), (131, *UINT8), (0, *UINT8), (60, 0, 127, torch.uint8)], ids=str
)
def test_layers_of_int8(kind: tuple[Any, ...]) -> None:
    """Two convolutions, the second of every channel by itself, and a product, as convert_pt2e leaves them."""

    def forward(net: Any, x: torch.Tensor) -> Any:
        stored = [[getattr(net, f"{name}{i}") for name in "wsz"] for i in range(3)]
        weights = [Q.dequantize_per_channel(*several, 0, -127, 127, torch.int8) for several in stored]
        x = rounded(x, 0.02, *kind)
        x = torch.relu(nn.functional.conv2d(x, weights[0], net.bias, stride=2, padding=1))
        x = rounded(x, 0.04, *kind)
        x = rounded(nn.functional.conv2d(x, weights[1], padding=1, groups=8), 0.03, *kind)
        return Q.quantize_per_tensor(nn.functional.linear(x.flatten(1), weights[2]), 0.01, *kind)

    shapes = [(8, 6, 3, 3), (8, 1, 3, 3), (10, 72)]
    stored = {f"w{i}": whole(*shape) for i, shape in enumerate(shapes)}
    stored |= {f"s{i}": scales(shape[0]) for i, shape in enumerate(shapes)}
    stored |= {f"z{i}": torch.zeros(shape[0], dtype=torch.int64) for i, shape in enumerate(shapes)}
    net = Net(forward, bias=torch.randn(8, generator=RNG), **stored)
    x = torch.randn((2, 6, 5, 6), generator=RNG)
    engine = built(net, x)
    found, want = engine.run({"x": as_array(x)})["output_0"], as_array(net(x))
    assert found.dtype == want.dtype and np.abs(found.astype(int) - want.astype(int)).max() <= 1
    assert len(np.unique(want)) >= 10
    assert calls(engine) == {"elementwise": 1, "conv_packed": 1, "conv_depthwise": 1, "matmul_packed": 1}  # x alone
    assert {name for name in engine.header["weights"] if ".float32" in name} == set()


def test_weights_and_biases_of_other_kinds() -> None:
    """A weight of uint8 around 128, one with a scale for all, a bias of int32; and weights with zero points, which are
    floats in the engine.
    """
    ones = (3, *INT8)

    def forward(net: Any, x: torch.Tensor) -> Any:
        q, conv, linear = Q.quantize_per_tensor(x, 0.02, *ones), nn.functional.conv2d, nn.functional.linear
        x = [Q.dequantize_per_tensor(q, 0.02, *ones) for _ in range(5)]  # one for each reader, as convert_pt2e has it
        bias = Q.dequantize_per_channel(net.bias, net.bias_scale, None, 0, -(2**31), 2**31 - 1, torch.int32)
        first = conv(x[0], Q.dequantize_per_channel(net.unsigned, net.scale, net.middle, 0, *UINT8), bias)
        second = conv(x[1], Q.dequantize_per_tensor(net.signed, 0.002, 0, *INT8))
        third = conv(x[2], Q.dequantize_per_channel(net.signed, net.scale, net.mixed, 0, *INT8))
        fourth = conv(x[3], Q.dequantize_per_tensor(net.unsigned, 0.002, 120, *UINT8))
        fifth = linear(x[4].flatten(2), Q.dequantize_per_channel(net.rows, net.scale, net.mixed, 0, *INT8))
        return first, second, third, fourth, fifth

    stored = {
        "unsigned": torch.randint(0, 256, (8, 6, 3, 3), generator=RNG, dtype=torch.uint8), "rows": whole(8, 16),
        "signed": whole(8, 6, 3, 3), "scale": scales(8), "middle": torch.full((8,), 128), "mixed": torch.arange(8) - 3,
        "bias": whole(8, dtype=torch.int32) * 100, "bias_scale": scales(8) * 0.02,
    }  # fmt: skip
    net, x = Net(forward, **stored), torch.randn((2, 6, 4, 4), generator=RNG)
    for ours, theirs in both(net, x):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4 * np.abs(theirs).max())
    kept = built(net, x).header["weights"]
    assert {"unsigned.signed.flat.packed", "signed.flat.packed", "bias.float32"} <= kept.keys()


def test_scales_stay_float32_in_another_precision() -> None:
    def forward(net: Any, x: torch.Tensor) -> Any:
        weight = Q.dequantize_per_channel(net.weight, net.scale, net.zero, 0, *INT8)
        return nn.functional.linear(rounded(x, 0.02, 3, *INT8), weight)

    net = Net(forward, weight=whole(8, 16), scale=scales(8), zero=torch.zeros(8).int())
    x = torch.randn((4, 16), generator=RNG)
    engine = ingot.build(net, (x,), precision="bfloat16", report=False)
    want = as_array(net(x))
    np.testing.assert_allclose(engine.run({"x": x})["output_0"], want, atol=0.02 * np.abs(want).max())


def test_the_build_compares_with_torch() -> None:
    net = Net(lambda net, x: rounded(torch.tanh(rounded(x, 0.25, *PAIR[1:])), 0.125, *PAIR[1:]))
    x = torch.randn((4, 5), generator=RNG)
    for source, arguments in ((net, ((x,),)), (torch.export.export(net, (x,)), ())):
        engine = ingot.build(source, *arguments)
        assert engine.report is not None and engine.report.source.startswith("against torch"), engine.report.source


# ------------------------------------------------------------------------------------------------ scales of each run


@pytest.mark.parametrize("choose", ["choose_qparams", "choose_qparams_symmetric"])
@pytest.mark.parametrize("kind", [INT8, UINT8, (0, 127, torch.uint8)], ids=str)
def test_scales_of_each_run(choose: str, kind: tuple[Any, ...]) -> None:
    """A product reads int8 whose scale and zero point the run finds. Constant inputs have the least scale."""

    def forward(net: Any, x: torch.Tensor) -> Any:
        scale, zero = getattr(Q, choose).tensor(x, *kind[:2], 2**-12, kind[2])
        q = Q.quantize_per_tensor.tensor(x, scale, zero, *kind)
        y = Q.dequantize_per_tensor.tensor(q, scale, zero, *kind)
        weight = Q.dequantize_per_channel(net.weight, net.scale, net.zero, 0, -127, 127, torch.int8)
        return nn.functional.linear(y, weight), q, scale, zero

    net = Net(forward, weight=whole(16, 32), scale=scales(16), zero=torch.zeros(16, dtype=torch.int64))
    x = torch.randn((4, 32), generator=RNG) + 0.7
    engine = built(net, x)
    assert calls(engine)["matmul_packed"] == 1
    assert not any(".float32" in name for name in engine.header["weights"])
    for one in (x, x - 9, torch.zeros(4, 32)):
        found = list(engine.run({"x": as_array(one)}).values())
        want = [as_array(t) for t in net(one)]
        assert [a.dtype for a in found] == [a.dtype for a in want]
        np.testing.assert_allclose(found[2], want[2], rtol=1e-6)
        np.testing.assert_array_equal(found[3], want[3])
        assert np.abs(found[1].astype(int) - want[1].astype(int)).max() <= 1
        step = float(want[2][0]) * 127 * 0.003
        np.testing.assert_allclose(found[0], want[0], atol=step)


# ------------------------------------------------------------------------------------------------------ what is refused
REFUSED: dict[str, tuple[Callable[[Any, torch.Tensor], Any], str]] = {
    "zero scale": (lambda net, x: rounded(x, 0.0, 0, *INT8), "scale must be positive and finite in float32, not 0.0"),
    "negative scale": (lambda net, x: rounded(x, -0.5, 0, *INT8), "scale must be positive .* not -0.5"),
    "NaN scale": (lambda net, x: rounded(x, float("nan"), 0, *INT8), "scale must be positive .* not nan"),
    "scale without bits": (lambda net, x: rounded(x, 1e-50, 0, *INT8), "scale must be positive .* not 1e-50"),
    "large zero point": (lambda net, x: rounded(x, 0.5, 128, *INT8), "must lie in -128..127 of int8, not 128"),
    "negative zero point": (lambda net, x: rounded(x, 0.5, -1, *UINT8), "must lie in 0..255 of uint8, not -1"),
    "range of another type": (lambda net, x: rounded(x, 0.5, 0, 0, 255, torch.int8), "must lie in -128..127 of int8"),
    "empty range": (lambda net, x: rounded(x, 0.5, 0, 9, 9, torch.int8), "quant_min 9 and quant_max 9 must lie in"),
    "another input": (lambda net, x: Q.dequantize_per_tensor(Q.quantize_per_tensor(x, *PAIR), 0.5, 0, *UINT8),
                      "its input is int8, and its dtype says uint8"),
    "computed scale": (lambda net, x: rounded_by(x, x.amax(), torch.tensor(0)),
                       "scale must be a constant, and is the result of reduce_max"),
    "computed zero point": (lambda net, x: rounded_by(x, net.one, x.amax().long()),
                            "zero_point must be a constant, and is the result of cast"),
    "scales of channels": (lambda net, x: by_channel(x, net.bad, net.zeros), "scales must be positive .* not nan at 2"),
    "zero points of channels": (lambda net, x: by_channel(x, net.good, net.large),
                                "zero_points must lie in -128..127 of int8, not 300 at 1"),
    "broken zero points": (lambda net, x: by_channel(x, net.good, net.good), "zero_points must be whole numbers"),
    "too few": (lambda net, x: by_channel(x, net.good[:2].clone(), net.zeros), "must be a constant"),
    "other lengths": (lambda net, x: by_channel(x, net.long, net.zeros), r"scales must have shape \(4,\)"),
    "lengths that differ": (lambda net, x: by_channel(x, net.good, net.few), r"zero_points must have shape \(4,\)"),
    "computed scales": (lambda net, x: by_channel(x, x.amax(0), net.zeros), "must be a constant, and is the result"),
    "scales of tokens": (lambda net, x: Q.choose_qparams_per_token(x, torch.int8)[0],
                         "build the float net with weights='int8', activations='int8'"),
    "not yet converted": (lambda net, x: torch.fake_quantize_per_tensor_affine(x, 0.5, 0, -128, 127),
                          "export what convert_pt2e makes"),
}  # fmt: skip


def rounded_by(x: torch.Tensor, scale: torch.Tensor, zero: torch.Tensor) -> Any:
    return Q.quantize_per_tensor.tensor(x, scale, zero, *INT8)


def by_channel(x: torch.Tensor, scales: torch.Tensor, zeros: torch.Tensor) -> Any:
    return Q.quantize_per_channel(x, scales, zeros, 1, *INT8)


@pytest.mark.parametrize("name", REFUSED)
def test_refused(name: str) -> None:
    forward, why = REFUSED[name]
    stored = {
        "one": torch.ones(1), "good": torch.tensor([0.5, 1, 2, 4]), "bad": torch.tensor([0.5, 1, torch.nan, 0]),
        "long": torch.ones(5), "zeros": torch.zeros(4).int(), "large": torch.tensor([0, 300, 0, 0]),
        "few": torch.zeros(3).int(),
    }  # fmt: skip
    x = torch.ones(3, 4)
    program = torch.export.export(Net(forward, **stored), (x,))
    with pytest.raises(UnsupportedError, match=why) as caught:
        ingot.build(program, report=False)
    assert re.search(r"^  (quantized_decomposed|aten)\.\w*(quant|qparams)", str(caught.value), re.MULTILINE)
