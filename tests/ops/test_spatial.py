"""Spatial ops: shape rules on named dims, engines with packed weights, and values that are no numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot import dtypes, ops
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import IngotError, OpError
from ingot.ir import OPS, Case, Network, Op, Spec
from ingot.ir.interpret import interpret
from ingot.ops.spatial import at
from tests.ops.check import assert_close, sample
from tests.ops.draw import Draw

SPATIAL = [OPS[name] for name in ("conv", "conv_transpose", "avg_pool", "max_pool", "group_norm", "batch_norm")]
NAN, INF = np.float32("nan"), np.float32("inf")


@pytest.mark.parametrize("cls", SPATIAL, ids=[cls.name for cls in SPATIAL])
@given(data=st.data())
def test_named_dims_give_the_same_sizes(cls: type[Op], data: st.DataObject) -> None:
    """The rule on named dims, evaluated, is the rule on numbers, which the references follow (test_ops.py)."""
    case = cls.draw(Draw(data))
    op, (x, *rest) = cls(**case.attrs), case.specs
    channels = len(x.shape) - 1 if case.attrs.get("channels_last") else 1
    names = {f"d{i}": size for i, size in enumerate(x.shape) if i != channels}
    symbolic = Spec([size if i == channels else Dim(f"d{i}") for i, size in enumerate(x.shape)], x.dtype)
    assert op.infer(symbolic, *rest).evaluate(names) == op.infer(x, *rest).shape


@given(data=st.data())
def test_a_transposed_convolution_undoes_the_sizes_of_a_convolution(data: st.DataObject) -> None:
    """With the same attributes it leads back to every size that has as many windows, by a smaller post_padding."""
    draw = Draw(data)
    size, kernel, stride = draw.choice(range(1, 30)), draw.choice([1, 2, 3, 5]), draw.choice([1, 2, 3, 4])
    dilation, before, after = draw.choice([1, 2]), draw.choice([0, 1, 2]), draw.choice([0, 1, 2])
    span = dilation * (kernel - 1) + 1
    if size + before + after < span:
        return
    common: dict[str, Any] = {"stride": (stride,), "dilation": (dilation,), "pre_padding": (before,)}
    down = OPS["conv"](**common, post_padding=(after,))
    count = down.infer(Spec((1, 1, size), "float32"), Spec((1, 1, kernel), "float32")).shape[2]
    left = (size + before + after - span) % stride
    up = OPS["conv_transpose"](**common, post_padding=(after - left,))
    assert up.infer(Spec((1, 1, count), "float32"), Spec((1, 1, kernel), "float32")).shape[2] == size


def test_sizes_that_cannot_be() -> None:
    """A dim whose bounds leave no result is refused when the network is recorded."""
    weight = Spec((1, 1, 5), "float32")
    conv = OPS["conv"](stride=(1,), pre_padding=(0,), post_padding=(0,), dilation=(1,))
    with pytest.raises(OpError, match=r"dimension 2 .* size H - 4 = \(H \+ 0 \+ 0 - 5\) // 1 \+ 1"):
        conv.infer(Spec((1, 1, Dim("H", 1, None, 4)), "float32"), weight)
    assert str(conv.infer(Spec((1, 1, Dim("H", 1, None, 5)), "float32"), weight)) == "f32[1, 1, H - 4]"


def run_time_cases() -> dict[str, tuple[Any, dict[int, tuple[int, ...] | None]]]:
    """Functions of x [2, 3, H] and, by H, the sizes that they give; None: refused."""
    wide, narrow = np.ones((4, 3, 5), np.float32), np.ones((3, 4, 1), np.float32)
    once = {"stride": (1,), "pre_padding": (0,), "post_padding": (0,)}
    return {
        "conv": (lambda x: ops.conv(x, wide, **once, dilation=(1,)), {5: (1,), 4: (0,), 3: None}),
        "conv of zeros": (
            lambda x: ops.conv(x, wide, **once | {"pre_padding": (5,)}, dilation=(1,)), {0: (1,), 1: (2,)},
        ),
        "conv_transpose": (
            lambda x: ops.conv_transpose(x, narrow, **once | {"stride": (3,), "pre_padding": (-4,)}, dilation=(1,)),
            {1: (5,), 0: (2,)},
        ),
        "conv_transpose, cut": (
            lambda x: ops.conv_transpose(x, narrow, **once | {"pre_padding": (2,)}, dilation=(1,)),
            {3: (1,), 2: (0,), 1: None},
        ),
        "avg_pool": (lambda x: ops.avg_pool(x, kernel=(3,), **once), {3: (1,), 2: (0,), 1: None}),
        "max_pool": (lambda x: ops.max_pool(x, kernel=(3,), **once, dilation=(2,)), {5: (1,), 4: (0,), 0: None}),
    }  # fmt: skip


@pytest.mark.parametrize("name", run_time_cases())
def test_sizes_that_only_a_run_shows(name: str) -> None:
    """No elements are legal then, fewer are refused, by the interpreter and by engines alike."""
    function, expected = run_time_cases()[name]
    network = Network()
    network.output("y", function(network.input("x", Spec((2, 3, "H"), "float32"))))
    engine = build_network(network, {})
    for size, wanted in expected.items():
        feeds = {"x": np.ones((2, 3, size), np.float32)}
        if wanted is None:
            with pytest.raises(OpError, match="the result would have"):
                interpret(network, feeds)
            with pytest.raises(IngotError, match="would be -"):
                engine.run(feeds)
        else:
            want = interpret(network, feeds)["y"]
            assert want.shape[2:] == wanted
            np.testing.assert_allclose(engine.run(feeds)["y"], want, rtol=1e-6)


@pytest.mark.parametrize("cls", SPATIAL[:4], ids=[cls.name for cls in SPATIAL[:4]])
def test_more_elements_than_32_bits_count(cls: type[Op]) -> None:
    """Sizes are exact far beyond 2³¹ elements; nothing is allocated to know them."""
    big = 1 << 26
    attrs: dict[str, Any] = {"stride": (2,), "pre_padding": (1,), "post_padding": (1,)}
    attrs |= {"kernel": (4,)} if "kernel" in cls.attributes else {}
    attrs |= {"dilation": (1,)} if "dilation" in cls.attributes else {}
    weights = [] if "kernel" in cls.attributes else [Spec((64, 64, 4), "float32")]
    out = cls(**attrs).infer(Spec((4, 64, big), "float32"), *weights)
    assert out.shape == (4, 64, 2 * big if cls.name == "conv_transpose" else big // 2)


def compare_with_parameters(cls: type[Op], case: Case, seed: int) -> None:
    """The engine of one call whose weights are parameters, so that they are packed, and whose other sizes are dims."""
    (x, *rest), names = case.specs, [o.name for o in cls.operands]
    channels = len(x.shape) - 1 if case.attrs.get("channels_last") else 1
    arrays = sample(cls(**case.attrs), case.specs, {}, seed)
    network = Network()
    shape = [size if i == channels else Dim(f"d{i}") for i, size in enumerate(x.shape)]
    values = [network.input("x", Spec(shape, x.dtype))]
    values += [network.parameter(name, spec) for name, spec in zip(names[1:], rest, strict=False)]
    network.output("y", getattr(ops, cls.name)(*values, **case.attrs))
    weights = dict(zip(names[1:], arrays[1:], strict=False))
    want = interpret(network, {"x": arrays[0]}, weights)["y"]
    assert_close(build_network(network, weights).run({"x": arrays[0]})["y"], want, str(case), 2 * cls.tolerance)


WEIGHTED = [cls for cls in SPATIAL if len(cls.operands) > 1]


@pytest.mark.parametrize("cls", WEIGHTED, ids=[cls.name for cls in WEIGHTED])
@given(data=st.data())
def test_engines_with_packed_weights(cls: type[Op], data: st.DataObject) -> None:
    compare_with_parameters(cls, cls.draw(Draw(data)), data.draw(st.integers(0, 9)))


@pytest.mark.parametrize("cls", WEIGHTED, ids=[cls.name for cls in WEIGHTED])
def test_engines_with_packed_weights_on_every_case(cls: type[Op]) -> None:
    for case in cls.cases:
        if case.error is None and all(spec.is_fixed and spec.dtype is not dtypes.float64 for spec in case.specs):
            compare_with_parameters(cls, case, 0)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("size", [(1, 1), (3, 4), (9, 23)])
def test_wide_convolutions(dtype: str, size: tuple[int, int]) -> None:
    """More channels than a panel has, sizes that no tile divides: 3×3 (also by Winograd), 1×1, 5×5, transposed."""
    for op, kernel, attrs in (
        ("conv", (3, 3), at(2, pre=1)), ("conv", (3, 3), at(2, pre=(2, 0), post=(0, 2))), ("conv", (1, 1), at(2)),
        ("conv", (5, 5), at(2, pre=2, stride=2)), ("conv", (3, 3), at(2, pre=2, dilation=2)),
        ("conv_transpose", (3, 3), at(2, pre=1, post=0, stride=2)), ("conv_transpose", (2, 2), at(2, stride=2)),
    ):  # fmt: skip
        inputs, outputs = 70, 45
        sides = (inputs, outputs) if op == "conv_transpose" else (outputs, inputs)
        specs = Spec((2, inputs, *size), dtype), Spec((*sides, *kernel), dtype), Spec((outputs,), dtype)
        compare_with_parameters(OPS[op], Case("wide", specs, attrs), 0)


def test_not_a_number_wins() -> None:
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = np.array([[[1, NAN, 2, 3, -INF, -INF, INF, 4]]], np.float32)
    got = ops.max_pool(x, kernel=(2,), stride=(1,), pre_padding=(1,), post_padding=(1,), dilation=(1,))
    want = torch.nn.functional.max_pool1d(torch.tensor(x), 2, 1, 1).numpy()
    np.testing.assert_array_equal(got, want)
    assert np.isnan(got[0, 0, 1:3]).all() and got[0, 0, 5] == -INF


def test_infinities_pass() -> None:
    """Padding is skipped by no product: what torch gives for infinities and NaN, so do we."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    x = np.array([[[1, INF, 2, 3, 4, 5, NAN, 6, 7]]], np.float32)
    weight = np.array([[[1, -1, 2]]], np.float32)
    given = {"stride": (1,), "pre_padding": (0,), "post_padding": (0,), "dilation": (1,)}
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(
            ops.conv(x, weight, **given), torch.nn.functional.conv1d(torch.tensor(x), torch.tensor(weight)).numpy()
        )
    np.testing.assert_array_equal(
        ops.conv_transpose(x, weight, **given),
        torch.nn.functional.conv_transpose1d(torch.tensor(x), torch.tensor(weight)).numpy(),
    )
