"""Networks of convolutions through the compile path: what they become, and that nothing but the numbers' last digits
changes on the way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import dtypes
from ingot.backends.cpu import CPU
from ingot.backends.program import ProgramBuilder
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.ir import F, Network, Spec, Value
from ingot.ir import recipe as R
from ingot.ir.evaluation import evaluate
from ingot.ir.interpret import interpret
from ingot.ir.text import parse
from ingot.ops.panels import unpack_panels
from ingot.passes import batch_norm, channels_last, convolution, pipeline
from ingot.passes.precision import in_precision
from ingot.passes.rewrite import Log
from tests import nets
from tests.passes.conv_nets import NETS, Builder, feeds, mish, pool, weights

F32 = dtypes.float32


def lowered(net: Network, log: Log | None = None, *, tolerance: float = 1e-4, batch: int = 2) -> Network:
    """The lowered network, the numbers of every stage checked on the way."""
    check = pipeline.Check(feeds(net, batch), weights(net), tolerance=tolerance)
    return pipeline.lower(net, CPU, log=log, check=check)


def computing(net: Network) -> list[str]:
    """The ops that are no views, in order."""
    return [nets.op_name(n) for n in net.nodes if not n.op.is_view]


def copies(net: Network) -> list[list[Any]]:
    """The shapes of what the program copies, but into what a concat makes."""
    program = ProgramBuilder(net, CPU).build()
    made = [program["buffers"][c["out"][0]] for c in program["calls"] if c.get("kernel") == "copy"]
    return [buffer["shape"] for buffer in made if buffer["kind"] == "temp"]


# ----------------------------------------------------------------------------------------------------- whole networks


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("name", sorted(NETS))
def test_every_stage_gives_the_numbers_of_the_first(name: str, dtype: str) -> None:
    net = NETS[name](dtype)
    low = lowered(net, tolerance=1e-4 if dtype == "float32" else 0.06)
    assert str(parse(str(low))) == str(low)
    stored = {v.name: evaluate(v.recipe, weights(net)) for v in low.parameters}
    assert all(R.Recipe.from_json(v.recipe.json()) == v.recipe for v in low.parameters)
    assert {v.name: Spec.of(stored[v.name]) for v in low.parameters} == {v.name: v.spec for v in low.parameters}


@pytest.mark.parametrize("name", sorted(NETS))
def test_engines_run_them(name: str) -> None:
    net = NETS[name]()
    given = feeds(net, 3)
    want = interpret(net, given, weights(net))
    got = build_network(net, weights(net)).run(given)
    for key, array in want.items():
        scale = float(np.abs(array).max())
        np.testing.assert_allclose(got[key], array, atol=2e-5 * scale, rtol=2e-5)


def test_a_resnet_is_one_call_per_convolution() -> None:
    low = lowered(NETS["resnet"]())
    assert computing(low) == [
        "conv_packed", "max_pool",
        "matmul_packed", "conv_packed", "matmul_packed", "conv_packed",  # the last is the strided shortcut
        "matmul_packed", "conv_packed", "matmul_packed",
        "reduce_mean", "matmul_packed",
    ]  # fmt: skip
    assert copies(low) == [["N", 32, 32, 3]], "only the input is turned"
    last = [n for n in low.nodes if nets.op_name(n) == "matmul_packed"][-2]
    assert [step[0] for step in last.op.epilogue[0]] == ["input", "input", "add", "input", "add", "const", "max"]  # type: ignore[attr-defined]
    assert [str(v.spec) for v in last.inputs[2:]] == ["f32[16]", "f32[N, 4, 4, 16]"], "the bias and the residual"


def test_a_unet_copies_its_input_and_its_output() -> None:
    low = lowered(NETS["unet"]())
    block = ["conv_packed", "group_norm"] * 2
    assert computing(low) == [
        *block, "avg_pool", *block, "conv_transpose_packed", "concat", *block, "matmul_packed"
    ]  # fmt: skip
    assert copies(low) == [["N", 16, 16, 3], ["N", 2, 16, 16]]


def test_a_graph_net_multiplies_views() -> None:
    low = lowered(NETS["stgcn"]())
    block = ["matmul_packed", "matmul", "fused_elementwise", "conv_packed"]
    assert computing(low) == [*block * 3, "conv_packed", "reduce_mean", "matmul_packed"]
    assert copies(low) == [["N", 12, 5, 3]]


def test_another_precision_rounds_folded_weights_once() -> None:
    net, given = NETS["resnet"](), weights(NETS["resnet"]())
    narrow = pipeline.lower(in_precision(net, dtypes.bfloat16), CPU)
    w = next(v for v in narrow.parameters if v.name.startswith("stem.conv.weight"))
    assert [c.name for c in w.recipe.steps].count("cast") == 4 and w.dtype is dtypes.bfloat16
    scale = given["stem.bn.weight"] / np.sqrt(given["stem.bn.running_var"] + np.float32(1e-5))
    want = (given["stem.conv.weight"] * scale[:, None, None, None]).astype(dtypes.bfloat16.numpy)
    (panels,) = unpack_panels(evaluate(w.recipe, given), 8, 147, 1)
    got = panels.reshape(8, 7, 7, 3).transpose(0, 3, 1, 2).astype(np.float32)
    assert np.mean(got == want.astype(np.float32)) > 0.99  # the scale itself is rounded from float64


# ------------------------------------------------------------------------------------------------------ batch norm


def images(build: Callable[[Builder, Value], Value], *, channels: int = 6, dtype: str = "float32") -> Network:
    """A network of one input x [N, channels, 8, 8] with the one output y."""
    b = Builder("net", dtype)
    b.net.outputs["y"] = build(b, b.net.input("x", Spec((Dim("N", 1), channels, 8, 8), dtype)))
    return b.net


@pytest.mark.parametrize(
    ("build", "ops"),
    [
        (lambda b, x: b.batch_norm("bn", b.conv("c", x, 4)), ["conv_packed"]),
        (lambda b, x: b.batch_norm("bn", b.conv("c", x, 4, bias=False), affine=False), ["conv_packed"]),
        (lambda b, x: b.batch_norm("bn", b.conv("c", x, 6, groups=3)), ["conv_packed"]),
        (lambda b, x: b.batch_norm("bn", b.conv("c", x, 6, groups=6)), ["conv_depthwise"]),
        (lambda b, x: b.batch_norm("bn", b.up("c", x, 4)), ["conv_transpose_packed"]),
        (lambda b, x: b.batch_norm("bn", b.up("c", x, 4, groups=2)), ["conv_transpose_packed"]),
        (lambda b, x: b.batch_norm("bn", F.relu(x)), ["fused_elementwise"]),
        (lambda b, x: b.batch_norm("a", b.batch_norm("b", b.conv("c", x, 4))), ["conv_packed"]),
        (lambda b, x: b.conv("c", b.batch_norm("bn", x), 4), ["fused_elementwise", "conv_packed"]),
    ],
)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batch_norm_goes_where_it_costs_nothing(build: Any, ops: list[str], dtype: str) -> None:
    low = lowered(images(build, dtype=dtype), tolerance=1e-4 if dtype == "float32" else 0.03)
    assert computing(low) == ops


def test_batch_norm_after_a_linear_layer() -> None:
    for bias in (False, True):
        b = Builder("net")
        x = b.net.input("x", Spec((Dim("N"), 6), F32))
        y = F.matmul(x, b.param("w", 4, 6), transpose_b=True)
        b.net.outputs["y"] = b.batch_norm("bn", y + b.param("b", 4) if bias else y)
        low = lowered(b.net)
        assert computing(low) == ["matmul_packed"]
        assert [v.name for v in low.nodes[0].inputs[1:]] == ["w.folded.packed", "b.folded" if bias else "w.bias.folded"]


def test_batch_norm_after_a_linear_layer_whose_rows_are_joined() -> None:
    for bias in (False, True):
        b = Builder("net")
        x = b.net.input("x", Spec((Dim("N"), 5, 6), F32))
        y: Value = F.matmul(x, b.param("w", 4, 6), transpose_b=True)
        y = y + b.param("b", 4) if bias else y
        b.net.outputs["y"] = F.relu(F.reshape(b.batch_norm("bn", y.flatten(0, 1)), y.shape))
        assert computing(lowered(b.net)) == ["matmul_packed"]


def test_batch_norm_after_a_linear_layer_whose_rows_are_joined_twice() -> None:
    b = Builder("net")
    x = b.net.input("x", Spec((Dim("N"), 4, 5, 6), F32))
    y: Value = F.matmul(x, b.param("w", 4, 6), transpose_b=True)
    rows = F.reshape(F.reshape(y, (Dim("N"), 20, 4)), (Dim("N") * 20, 4))
    b.net.outputs["y"] = b.batch_norm("bn", rows)
    batch_norm.batch_norm(b.net, [])
    assert "batch_norm" not in [node.op.name for node in b.net.nodes]


def test_batch_norm_of_an_inputs_rows() -> None:
    b = Builder("net")
    x = b.net.input("x", Spec((Dim("N"), 5, 6), F32))
    b.net.outputs["y"] = b.batch_norm("bn", x.flatten(0, 1))
    assert computing(lowered(b.net)) == ["fused_elementwise"]


def test_batch_norm_of_rows_that_are_no_product() -> None:
    for build in (
        lambda b, x: x,
        lambda b, x: x + x,
        lambda b, x: x.flatten(),
        lambda b, x: F.matmul(x, b.param("w", 6, 6)) + F.relu(x),  # the sum is no product with a bias
    ):
        b = Builder("net")
        x = b.net.input("x", Spec((Dim("N"), 6), F32))
        b.net.outputs["y"] = b.batch_norm("bn", F.reshape(build(b, x), x.shape))
        assert not any(v.name.endswith("folded") for v in lowered(b.net).parameters)


def test_batch_norm_of_float64_has_no_recipe() -> None:
    net, log = Network("net"), list[Any]()
    x = net.input("x", Spec((2, 3, 4), "float64"))
    net.outputs["y"] = F.batch_norm(x, *(net.parameter(name, Spec((3,), "float64")) for name in ("mean", "var")))
    batch_norm.batch_norm(net, log)
    assert [n.op.name for n in net.nodes] == ["batch_norm"] and "it is computed in float64" in str(log[0])


def test_batch_norm_says_why_it_does_not_fold() -> None:
    def build(b: Builder, x: Value) -> Value:
        y = b.conv("c", x, 6)
        return b.batch_norm("bn", y) + y

    log: Log = []
    assert computing(lowered(images(build), log)) == ["conv_packed"], "what is elementwise goes there all the same"
    net = images(build)
    batch_norm.batch_norm(net, [])
    assert {"bn.scale", "bn.shift"} < {v.name for v in net.parameters}
    said = [e.verdict for e in log if e.rule == "batch norm"]
    assert said and "has other readers: a scale and a shift per channel" in said[0]


# ---------------------------------------------------------------------------------------------------- channels last


@pytest.mark.parametrize(
    ("before", "after", "value", "joins"),
    [
        ((0, 0, 1, 2), (0, 0, 3, 0), 0, True), ((0, 0, 1, 2), (0, 0, 3, 0), 1, False),
        ((0, 2, 1, 2), (0, 0, 3, 0), 0, False), ((0, 0, 0, 0), (0, 2, 1, 1), 0, False),
        ((2, 0, 1, 1), (0, 0, 1, 1), 0, False), ((0, 0, -1, 1), (0, 0, 1, 1), 0, False),
    ],
)  # fmt: skip
def test_zeros_around_an_image_are_the_convolutions_own(
    before: tuple[int, ...], after: tuple[int, ...], value: float, joins: bool
) -> None:
    """Zeros, in spatial dimensions alone, and none taken away."""
    b = Builder("net")
    x = b.net.input("x", Spec((3, 4, 8, 8), F32))
    padded = F.pad(x, before, after, value=value)
    w = b.param("w", 5, padded.shape[1], 3, 3)
    b.net.outputs["y"] = F.conv(padded, w, stride=(1, 1), pre_padding=(1, 0), post_padding=(0, 1), dilation=(1, 1))
    want = interpret(b.net, feeds(b.net, 2), weights(b.net))["y"]
    convolution.paddings(b.net, [])
    assert [node.op.name for node in b.net.nodes] == (["conv"] if joins else ["pad", "conv"])
    np.testing.assert_array_equal(interpret(b.net, feeds(b.net, 2), weights(b.net))["y"], want)


@pytest.mark.parametrize("after", [(0, 1, 2, 0), (0, 0, 0, 1)])
def test_zeros_around_an_image_that_is_channels_last(after: tuple[int, ...]) -> None:
    b = Builder("net")
    padded = F.pad(b.net.input("x", Spec((3, 8, 8, 4), F32)), (0, 1, 0, 0), after)
    same = {"stride": (1, 1), "pre_padding": (0, 0), "post_padding": (0, 0), "dilation": (1, 1)}
    b.net.outputs["y"] = F.conv(padded, b.param("w", 5, padded.shape[3], 3, 3), channels_last=True, **same)
    want = interpret(b.net, feeds(b.net, 2), weights(b.net))["y"]
    convolution.paddings(b.net, [])
    assert [node.op.name for node in b.net.nodes] == (["pad", "conv"] if after[3] else ["conv"])
    np.testing.assert_array_equal(interpret(b.net, feeds(b.net, 2), weights(b.net))["y"], want)


def test_a_parameter_beside_placed_values_is_stored_as_they_lie() -> None:
    """Not permuted at each run."""
    low = lowered(images(lambda b, x: b.conv("c", x, 4) * b.param("s", 4, 8, 8)))
    assert any("transposed" in v.name for v in low.parameters)
    assert len(copies(low)) == 2, "the image on its way in, and the result"


def test_ops_that_are_channels_last_already_stay_so() -> None:
    b = Builder("net")
    x = b.net.input("x", Spec((Dim("N"), 6, 8, 8), F32))
    b.net.outputs["y"] = F.relu(b.conv("c", x, 8))
    channels_last.channels_last(b.net, [])
    once = str(b.net)
    channels_last.channels_last(b.net, [])
    assert str(b.net) == once and "channels_last" in once
    b.net.outputs["y"] = b.conv("d", b.net.outputs["y"], 4)
    want = interpret(b.net, feeds(b.net, 2), weights(b.net))["y"]
    channels_last.channels_last(b.net, [])
    assert str(b.net).count("channels_last=True") == 2
    np.testing.assert_allclose(interpret(b.net, feeds(b.net, 2), weights(b.net))["y"], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("build", "ops"),
    [
        # squeeze and excite: a mean, two products on one row, and a gate
        (lambda b, x: b.conv("c", x, 8) * F.sigmoid(b.conv("b", F.relu(b.conv("a", F.reduce_mean(
            x, (2, 3), True), 2, 1)), 8, 1)),
         ["conv_packed", "reduce_mean", "matmul_packed", "matmul_packed", "fused_elementwise"]),
        # statistics over channels, and slices, pads and softmax of them
        (lambda b, x: F.softmax(F.slice(b.conv("c", x, 8), (0, 2, 0, 0), (x.shape[0], 4, 8, 8), (1, 1, 1, 1)), 1),
         ["conv_packed", "softmax"]),
        (lambda b, x: b.conv("d", F.concat(F.relu(b.conv("c", x, 8)).split([3, 5], 1)[::-1], 1), 3),
         ["conv_packed", "concat", "conv_packed"]),
        (lambda b, x: b.conv("c", F.pad(x, (0, 0, 1, 0), (0, 0, 2, 3)), 4, 3, padding=(0, 0)), ["conv_packed"]),
        # a shuffle of channels: a reshape that splits and one that merges them
        (lambda b, x: b.conv("d", F.reshape(F.permute(F.reshape(b.conv("c", x, 8), (x.shape[0], 2, 4, 8, 8)),
                                                      (0, 2, 1, 3, 4)), (x.shape[0], 8, 8, 8)), 4),
         ["conv_packed", "conv_packed"]),
        # patches become tokens
        (lambda b, x: F.layer_norm(F.permute(F.reshape(b.conv("c", x, 8, 4, stride=4, padding=(0, 0)),
                                                       (x.shape[0], 8, 4)), (0, 2, 1))),
         ["conv_packed", "layer_norm"]),
        (lambda b, x: b.conv("b", mish(b.conv("a", x, 6, groups=6)) + x, 4, 1, bias=False),
         ["conv_depthwise", "matmul_packed"]),
        (lambda b, x: pool(pool(x), "max_pool"), ["avg_pool", "max_pool"]),
        # an image normalised as data sets have it: the loop reads the view of the input
        (lambda b, x: b.conv("c", (F.cast(x, "float32") * 2 - b.param("m", 6, 1, 1)) / b.param("s", 1, 6, 1, 1), 4),
         ["fused_elementwise", "conv_packed"]),
        (lambda b, x: F.group_norm(x, groups=3) * b.param("g", 6, 1, 1), ["group_norm"]),
        (lambda b, x: b.conv("c", x, 4) + F.conv(x, b.param("w", 4, 6, 1, 1), stride=(1, 1), pre_padding=(0, 0),
                                                 post_padding=(0, 0), dilation=(1, 1)),
         ["conv_packed", "matmul_packed"]),
        (lambda b, x: b.conv("c", x, 6) + F.exp(F.cos(x) * F.sin(x)), ["conv_packed"]),
    ],
    ids=["gate", "softmax", "concat", "pad", "shuffle", "tokens", "depthwise", "pools", "pixels", "group norm", "two",
         "turned"],
)  # fmt: skip
def test_what_becomes_of_pieces(build: Any, ops: list[str]) -> None:
    low = lowered(images(build))
    assert computing(low) == ops
    ends = (["N", 8, 8, 6], [str(d) if isinstance(d, Dim) else d for d in low.outputs["y"].shape])
    inside = [shape for shape in copies(low) if shape not in ends]
    assert inside == ([["N", 8, 8, 4, 2]] if ops == ["conv_packed"] * 2 else []), "only a shuffle moves anything"


def test_networks_without_images_stay_as_they_are() -> None:
    net = Network("net")
    x = net.input("x", Spec((2, 3, 4), F32))
    net.outputs["y"] = F.exp(F.permute(x, (2, 0, 1)))
    before = str(net)
    channels_last.channels_last(net, [])
    assert str(net) == before


@pytest.mark.parametrize(
    ("old", "new", "order", "held", "turned"),
    [
        ((2, 8, 3, 5), (2, 4, 2, 3, 5), (0, 3, 1, 2), (2, 3, 5, 4, 2), False),
        ((2, 8, 3, 5), (2, 8, 15), (0, 3, 1, 2), (2, 15, 8), False),
        ((2, 8, 1, 1), (2, 8), (0, 3, 1, 2), (2, 8), False),
        ((2, 8), (2, 8, 1, 1), (1, 0), (8, 2, 1, 1), False),
        ((2, 4, 2, 3, 5), (2, 8, 3, 5), (0, 4, 3, 1, 2), (2, 3, 5, 8), True),
        ((2, 8, 3, 5), (2, 120), (0, 3, 1, 2), (2, 120), True),
        ((2, 1, 8, 3), (16, 3), (0, 2, 3, 1), (3, 16), True),
        ((1, 1), (1,), (1, 0), (1,), False),
        ((8, 3), (1, 8, 3), (1, 0), (3, 1, 8), False),
        (("N", 8, "H", "W"), ("N", 2, 4, "H", "W"), (0, 3, 1, 2), ("N", "H", "W", 2, 4), False),
        (("N", 8, "H", "W"), ("N", 8, Dim("H") * Dim("W")), (0, 3, 1, 2), ("N", Dim("H") * Dim("W"), 8), False),
    ],
)  # fmt: skip
def test_reshapes_of_what_is_held_in_another_order(old: Any, new: Any, order: Any, held: Any, turned: bool) -> None:
    old, new, held = (tuple(Dim(d) if isinstance(d, str) else d for d in shape) for shape in (old, new, held))
    turn, shape, result = channels_last.reordered(old, new, order) or ((), (), ())
    assert shape == held and (turn != tuple(range(len(turn)))) == turned
    if all(isinstance(d, int) for d in (*old, *new)):
        x = np.arange(np.prod(old)).reshape([old[i] for i in channels_last.inverse(order)])
        got = x.transpose(turn).reshape(shape).transpose(result)
        np.testing.assert_array_equal(got, x.transpose(order).reshape(new))


def test_sizes_of_1_in_front_come_back() -> None:
    """One value for each channel of one image, computed by loops that are turned: before a pool, and beside one."""
    net = Network("net")
    x = net.input("x", Spec((1, 6, 1, 1), F32))
    net.outputs["y"] = F.concat(F.exp(x) * 2, pool(F.cos(x), "max_pool", kernel=(1, 1)), dim=1)
    low = lowered(net)
    assert str(low.outputs["y"].spec) == "f32[1, 12, 1, 1]"
    assert sum(nets.op_name(n) == "reshape" for n in low.nodes) == 4, "no reshape of a reshape"


def test_reshapes_of_nothing_are_left_alone() -> None:
    assert channels_last.reordered((0, 8, 3), (0, 24), (0, 2, 1)) is None


@pytest.mark.parametrize(
    ("outputs", "channels", "dtype", "kernel"),
    [
        (1, 32, "float32", "conv_packed"), (2, 32, "float32", "conv_packed"), (3, 32, "float32", "matmul_packed"),
        (2, 32, "float16", "conv_packed"), (2, 32, "bfloat16", "matmul_packed"), (1, 11, "float32", "matmul_packed"),
        (8, 200, "float32", "conv_packed"), (9, 200, "float32", "matmul_packed"),
    ],
)  # fmt: skip
def test_few_outputs_of_one_pixel_are_summed_along_its_channels(
    outputs: int, channels: int, dtype: str, kernel: str
) -> None:
    net = images(lambda b, x: b.conv("c", x, outputs, 1), channels=channels, dtype=dtype)
    assert computing(lowered(net, tolerance=1e-4 if dtype == "float32" else 2e-2)) == [kernel]
    if dtype == "float32":
        same_numbers(net)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_fixed_weights_are_packed_as_parameters_are(groups: int) -> None:
    rng = np.random.default_rng(0)
    conv, up = (rng.standard_normal(s).astype(np.float32) for s in ((6, 6 // groups, 3, 3), (6, 6 // groups, 2, 2)))
    attrs = {"pre_padding": (0, 0), "post_padding": (0, 0), "dilation": (1, 1), "groups": groups}
    net = images(
        lambda b, x: F.conv_transpose(
            F.conv(x, b.net.constant(conv), stride=(1, 1), **attrs), b.net.constant(up), stride=(2, 2), **attrs
        )
    )
    kind = "conv_depthwise" if groups == 6 else "conv_packed"
    assert computing(lowered(net)) == [kind, "conv_transpose_packed"]
    same_numbers(net)


@pytest.mark.parametrize("groups", [1, 2, 6])
def test_a_computed_weight_is_laid_out_in_each_run(groups: int) -> None:
    """The same kernels as those of stored weights, of the same numbers bit for bit: nothing is a host call."""
    attrs = {"pre_padding": (1, 0), "post_padding": (0, 1), "dilation": (1, 1), "groups": groups}

    def net(computed: bool) -> Network:
        def weight(b: Builder, name: str, *shape: int) -> Value:
            w = b.param(name, *shape)
            return w * b.net.input(f"{name}_scale", Spec((1,), F32)) if computed else w

        return images(
            lambda b, x: F.conv_transpose(
                F.conv(x, weight(b, "w", 6, 6 // groups, 3, 3), stride=(1, 2), **attrs),
                weight(b, "up", 6, 6 // groups, 2, 2),
                stride=(2, 2),
                **attrs,
            )
        )

    kind = "conv_depthwise" if groups == 6 else "conv_packed"
    found = [k for k in computing(lowered(net(True))) if k.startswith("conv")]
    assert found == [kind, "conv_transpose_packed"]
    same_numbers(net(True))


def test_a_computed_weight_of_open_sizes_is_left_to_the_reference() -> None:
    net = images(
        lambda b, x: F.conv(
            x,
            b.net.input("w", Spec(("O", 6, 3, 3), F32)),
            stride=(1, 1),
            pre_padding=(1, 1),
            post_padding=(1, 1),
            dilation=(1, 1),
        )
    )
    log: Log = []
    assert "conv" in computing(pipeline.lower(net, CPU, log=log))
    assert any(e.rule == "convolutions" and e.verdict == "its weight has sizes that only a run knows" for e in log)


# ---------------------------------------------------------------------------------------------- other ranks, open sizes


@pytest.mark.parametrize("rank", [1, 2, 3])
def test_images_of_any_rank_and_size(rank: int) -> None:
    b = Builder("net")
    x = b.net.input("x", Spec((Dim("N", 1), 4, *[Dim(f"S{i}", 1) for i in range(rank)]), F32))
    y = mish(b.group_norm("n", b.conv("a", x, 8), 2))
    y = F.relu(b.batch_norm("bn", b.conv("b", y, 8, groups=8)) + y)
    y = b.conv("c", F.concat([y, x], 1), 6, 1)
    y = b.conv("d", pool_all(F.max_pool, y, 2, dilation=(1,) * rank) + pool_all(F.avg_pool, y, 2), 4, 3, stride=2)
    b.net.outputs |= {"y": y, "mean": F.reduce_mean(y, tuple(range(2, rank + 2))), "flat": y.flatten(2)}
    low = pipeline.lower(b.net, CPU)
    assert computing(low)[:6] == ["conv_packed", "group_norm", "conv_depthwise", "concat", "matmul_packed",
                                  "max_pool"]  # fmt: skip
    rng = np.random.default_rng(0)
    engine = build_network(b.net, weights(b.net))
    for sizes in ((1, 7, 6, 5), (2, 4, 9, 4)):
        given = {"x": rng.standard_normal((sizes[0], 4, *sizes[1 : rank + 1])).astype(np.float32)}
        want, got = interpret(b.net, given, weights(b.net)), engine.run(given)
        for key, array in want.items():
            np.testing.assert_allclose(got[key], array, atol=1e-5, rtol=1e-4)


def pool_all(kind: Any, x: Value, size: int, **more: Any) -> Value:
    rank = len(x.shape) - 2
    return kind(  # type: ignore[no-any-return]
        x, kernel=(size,) * rank, stride=(size,) * rank, pre_padding=(0,) * rank, post_padding=(0,) * rank, **more
    )


# --------------------------------------------------------------------------------------------------------------- concat


def calls(net: Network) -> tuple[list[str], list[dict[str, Any]], dict[str, Any]]:
    program = ProgramBuilder(pipeline.lower(net, CPU), CPU).build()
    return [c.get("kernel") or c["host"] for c in program["calls"]], program["calls"], program


def same_numbers(net: Network) -> None:
    want, got = interpret(net, feeds(net), weights(net)), build_network(net, weights(net)).run(feeds(net))
    for key, array in want.items():
        np.testing.assert_allclose(got[key], array, atol=2e-5 * float(np.abs(array).max()), rtol=2e-5)


def test_what_is_joined_is_written_in_its_place() -> None:
    kernels, made, program = calls(NETS["unet"]())
    assert "concat" not in kernels and kernels.count("copy") == 3, "the skip is read by others too, and copied"
    views = [program["buffers"][c["out"][0]] for c in made if program["buffers"][c["out"][0]]["kind"] == "view"]
    assert [(v["shape"], v["offset"]) for v in views] == [(["N", 16, 16, 8], 0), (["N", 16, 16, 8], 8)]
    assert len({v["of"] for v in views}) == 1


def _dense(b: Builder, x: Value) -> Value:
    """Every layer reads all before it."""
    features = [x]
    for i in range(3):
        joined = F.concat(features, 1) if i else x
        features.append(F.relu(b.conv(f"c{i}", joined, 5)))
    return b.conv("out", F.concat(features, 1), 3, 1)


@pytest.mark.parametrize(
    ("build", "left"),
    [
        (_dense, {"concat": 0, "copy": 2 + 1 + 2 + 3}),  # of what is read before, all but the newest
        # an operand that is joined twice, one that others read too, one that no kernel writes with gaps
        (lambda b, x: F.concat([F.concat([y := b.conv("a", x, 4), y], 1), x], 1), {"concat": 2}),
        (lambda b, x: F.concat([y := b.conv("a", x, 6), b.conv("b", F.tanh(y) * y, 3)], 1), {"copy": 3, "concat": 0}),
        (lambda b, x: F.concat([
            F.tanh(y := b.conv("a", x, 6)) * F.slice(y, (0, 0, 0, 0), (y.shape[0], 1, 8, 8), (1,) * 4), y], 1),
         {"concat": 1}),
        # rows of images lie apart when images are joined along their width
        (lambda b, x: F.concat([b.conv("a", x, 6, 1), b.conv("b", x, 6, 1)], 3), {}),
    ],
    ids=["dense", "twice", "two readers", "elementwise", "width"],
)  # fmt: skip
def test_what_joining_leaves_to_copy(build: Any, left: dict[str, int]) -> None:
    net = images(build)
    same_numbers(net)
    found = calls(net)[0]
    assert {k: found.count(k) for k in left} == left


@pytest.mark.parametrize(("equation", "stays"), [("...tv,vw->...tw", True), ("nctv,vw->nctw", False)])
def test_an_equation_with_an_ellipsis_keeps_its_order(equation: str, stays: bool) -> None:
    """One operand with one is enough; the numbers are the same either way."""
    b = Builder("net")
    x = b.conv("conv", b.net.input("x", Spec((Dim("N"), 3, 6, 5), F32)), 4)
    b.net.outputs["y"] = F.einsum(x, b.param("graph", 5, 7), equation=equation)
    log: Log = []
    lowered(b.net, log)
    assert any("an equation with an ellipsis" in str(event) for event in log) == stays


def test_a_batch_norm_is_not_folded_into_a_computed_weight() -> None:
    b = Builder("net")
    x, weight = b.net.input("x", Spec((Dim("N"), 3, 6, 5), F32)), b.net.input("w", Spec((4, 3, 3, 3), F32))
    y = F.conv(x, weight, stride=(1, 1), pre_padding=(1, 1), post_padding=(1, 1), dilation=(1, 1))
    b.net.outputs["y"] = b.batch_norm("norm", y)
    log: Log = []
    assert "conv_packed" in computing(lowered(b.net, log))
    assert any("the weight or the bias before it is no parameter" in str(event) for event in log)
