"""Transposed convolutions through built engines against torch: the whole space of small parameters.

One dimension is enumerated: every kernel, stride, dilation, group, padding (far beyond the kernel too) and
output_padding; a sample by default, the whole in the long suites. More dimensions, padding of each side, negative
padding, SAME padding, element types and computed weights are drawn at random.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from ingot import dtypes
from ingot import functional as F
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import OpError
from ingot.ir import Network, Spec

Array = np.ndarray[Any, Any]
ROUNDING = {"float32": 1e-5, "float16": 2.0**-9, "bfloat16": 2.0**-6}  # of sums of at most 54 products near 1


def integers(seed: int, *shape: int) -> Array:
    """Small whole numbers, of which sums are exact in any order and type."""
    return np.random.default_rng(seed).integers(-3, 4, shape).astype(np.float32)


def native(network: Network) -> Any:
    engine = build_network(network, {})
    assert engine._native.host_calls("main") == []
    return engine


def cut(full: Array, before: Sequence[int], after: Sequence[int]) -> Array | None:
    """The whole result without `before` and `after` elements; negative counts add zeros. None: nothing is left."""
    for axis, (b, a) in enumerate(zip(before, after, strict=True), 2):
        size = full.shape[axis] - b - a
        if size < 1:
            return None
        places = np.arange(size) + b
        inside = (places >= 0) & (places < full.shape[axis])
        column = inside.reshape(-1, *[1] * (full.ndim - axis - 1))
        full = np.where(column, np.take(full, np.clip(places, 0, full.shape[axis] - 1), axis), 0)
    return full


SPACE = list(itertools.product((1, 2, 3, 4), (1, 2, 3, 4), (1, 2, 3), (1, 2)))


def test_the_space_is_all_of_it() -> None:
    assert len(SPACE) == 96


@pytest.mark.parametrize(
    ("kernel", "stride", "dilation", "groups"),
    [pytest.param(*one, marks=[] if i % 13 == 5 else pytest.mark.slow) for i, one in enumerate(SPACE)],
)
def test_one_dimension(kernel: int, stride: int, dilation: int, groups: int) -> None:
    """torch's arguments; what torch refuses is refused."""
    network, wanted = Network(), {}
    weight, bias = integers(1, 4, 3, kernel), integers(2, 3 * groups)
    feeds = {f"x{size}": integers(size, 2, 4, size) for size in (1, 2, 5)}
    inputs = {name: network.input(name, Spec(("N", *x.shape[1:]), "float32")) for name, x in feeds.items()}
    paddings = range(dilation * (kernel - 1) + 4)
    for (name, x), padding, extra in itertools.product(feeds.items(), paddings, range(max(stride, dilation) + 1)):
        how = {"stride": stride, "padding": padding, "output_padding": extra, "dilation": dilation, "groups": groups}
        operands = map(torch.tensor, (x, weight, bias))
        try:
            want = torch.nn.functional.conv_transpose1d(*operands, **how).numpy()
        except RuntimeError:
            want = np.empty(0)
        if not want.size:  # torch gives no elements where we refuse
            with pytest.raises(OpError, match="output_padding of spatial dimension 0|it must be at least 1"):
                F.conv_transpose1d(inputs[name], weight, bias, **how)
            continue
        output = f"{name} padding {padding} {extra}"
        network.output(output, F.conv_transpose1d(inputs[name], weight, bias, **how))
        wanted[output] = want
    engine = native(network)
    found = engine.run(feeds)
    for output, want in wanted.items():
        np.testing.assert_array_equal(found[output], want, err_msg=output)
    empty = engine.run({name: x[:0] for name, x in feeds.items()})
    assert all(empty[output].shape == (0, *want.shape[1:]) for output, want in wanted.items())


def test_the_textbook_case_of_padding_beyond_the_kernel() -> None:
    """ConvTranspose2d(…, kernel 2, stride 2, padding 2)."""
    x, weight = integers(0, 1, 2, 5, 6), integers(1, 2, 3, 2, 2)
    network = Network()
    network.output("y", F.conv_transpose2d(network.input("x", Spec(("N", 2, "H", "W"), "float32")), weight, None, 2, 2))
    want = torch.nn.functional.conv_transpose2d(torch.tensor(x), torch.tensor(weight), None, 2, 2).numpy()
    np.testing.assert_array_equal(native(network).run({"x": x})["y"], want)


@st.composite
def transposed(draw: st.DrawFn) -> dict[str, Any]:
    rank = draw(st.sampled_from([1, 2, 2, 3]))
    groups = draw(st.sampled_from([1, 1, 2, 3]))

    def each(*choices: int) -> tuple[int, ...]:
        return tuple(draw(st.sampled_from(choices)) for _ in range(rank))

    return {
        "groups": groups, "kernel": each(1, 2, 3), "stride": each(1, 2, 3), "dilation": each(1, 1, 2),
        "before": each(0, 0, 1, 2, 5, -1, -3), "after": each(0, 0, 1, 2, 5, -1, -3), "sizes": each(1, 2, 4),
        "mode": draw(st.sampled_from([
            "explicit_round_down", "EXPLICIT_ROUND_UP", "same_upper", "SAME_LOWER"])),
        "inner": draw(st.sampled_from([1, 3])), "outer": draw(st.sampled_from([1, 5])), "bias": draw(st.booleans()),
        "dtype": draw(st.sampled_from(["float32", "float32", "float16", "bfloat16"])),
        "computed": draw(st.booleans()), "batch": draw(st.sampled_from([None, 1, 2])), "open": draw(st.booleans()),
    }  # fmt: skip


@given(transposed())
def test_any_number_of_dimensions(c: dict[str, Any]) -> None:
    rank, kind = len(c["kernel"]), dtypes.get(c["dtype"])
    x = integers(0, c["batch"] or 1, c["inner"] * c["groups"], *c["sizes"])
    weight = integers(1, c["inner"] * c["groups"], c["outer"], *c["kernel"])
    bias = integers(2, c["outer"] * c["groups"]) if c["bias"] else None
    before, after = c["before"], c["after"]
    sides: dict[str, Any] = {"pre_padding": before, "post_padding": after}
    if c["mode"].lower().startswith("same"):
        total = [max(d * (k - 1) + 1 - s, 0) for k, s, d in zip(c["kernel"], c["stride"], c["dilation"], strict=True)]
        small, large = tuple(p // 2 for p in total), tuple(p - p // 2 for p in total)
        before, after = (large, small) if "lower" in c["mode"].lower() else (small, large)
        sides = {}
    conv = getattr(torch.nn.functional, f"conv_transpose{rank}d")
    full = conv(torch.tensor(x), torch.tensor(weight), None, c["stride"], 0, 0, c["groups"], c["dilation"]).numpy()
    want = cut(full, before, after)
    assume(want is not None)
    assert want is not None
    want = want if bias is None else want + bias.reshape(-1, *[1] * rank)
    network = Network()
    sample = x if c["batch"] else x[0]
    lead = () if c["batch"] is None else ("N",)
    shape = (*lead, x.shape[1], *(Dim(f"S{i}", n) if c["open"] else n for i, n in enumerate(c["sizes"])))
    feeds = {"x": sample.astype(kind.numpy)}
    operands = [network.input("x", Spec(shape, kind))]
    if c["computed"]:
        feeds["w"] = weight.astype(kind.numpy)
        operands.append(network.input("w", Spec(weight.shape, kind)))
    else:
        operands.append(network.constant(weight.astype(kind.numpy)))
    operands += [] if bias is None else [network.constant(bias.astype(kind.numpy))]
    call = getattr(F, f"conv_transpose{rank}d")
    network.output("y", call(*operands, stride=c["stride"], dilation=c["dilation"], groups=c["groups"],
                             padding_mode=c["mode"], **sides))  # fmt: skip
    got = native(network).run(feeds)["y"]
    np.testing.assert_allclose(
        got.astype(np.float64), want if c["batch"] else want[0], rtol=ROUNDING[c["dtype"]], atol=0
    )


def test_sizes_beyond_32_bits() -> None:
    """Right from the shape rule alone; nothing is allocated."""
    weight = np.ones((1, 1, 2, 2), np.float32)
    x = Network().input("x", Spec((1, 1, 1 << 20, 1 << 15), "float32"))
    assert F.conv_transpose2d(x, weight, stride=2).shape == (1, 1, 1 << 21, 1 << 16)
    huge = Network().input("x", Spec((1 << 30, 1, 1 << 20, 1 << 12), "float32"))
    with pytest.raises(OpError, match="too large"):
        F.conv_transpose2d(huge, weight, stride=(1 << 15, 1 << 12))


@pytest.mark.parametrize(("stride", "kernel"), [((100, 90), (3, 2)), ((5000,), (3,)), ((20, 17, 30), (1, 2, 2))])
def test_strides_of_many_phases(stride: tuple[int, ...], kernel: tuple[int, ...]) -> None:
    """Nearly all outputs are reached by no tap, and are the bias."""
    x, w, b = integers(1, 1, 2, *[2] * len(stride)), integers(2, 2, 3, *kernel), integers(3, 3)
    network = Network()
    name = f"conv_transpose{len(stride)}d"
    network.output("y", getattr(F, name)(network.input("x", Spec(x.shape, "float32")), w, b, stride=stride))
    want = getattr(torch.nn.functional, name)(*map(torch.from_numpy, (x, w, b)), stride=stride)
    np.testing.assert_array_equal(native(network).run({"x": x})["y"], want.numpy())
