"""Lowered networks as programs: views cost nothing where the strides can be read, and copies are made where not."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot import _native, dtypes
from ingot.backends.cpu import CPU
from ingot.backends.kernel import Reads
from ingot.backends.program import ProgramBuilder, readable
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import NetworkError
from ingot.ir import F, Network, Spec, Value
from ingot.ir.interpret import interpret
from ingot.ir.window import Window, dense_strides, merged, reshaped
from ingot.passes import pipeline
from tests import nets

F32 = dtypes.float32


def program_of(net: Network) -> dict[str, Any]:
    return ProgramBuilder(pipeline.lower(net, CPU), CPU).build()


def kernels(program: dict[str, Any]) -> list[str]:
    return [c.get("kernel") or c["host"] for c in program["calls"]]


def net_of(build: Any, shape: tuple[Any, ...] = (Dim("T"), 12)) -> Network:
    net = Network("net")
    net.outputs["y"] = build(net.input("x", Spec(shape, F32)))
    return net


def test_calls_of_the_host_are_listed_with_their_reason() -> None:
    def build(x: Value) -> Value:
        wide = F.cast(F.reshape(x, (x.shape[0], 3, 4)), "float64")
        ones = x.network.constant(np.ones((5, 3, 2)))
        return F.conv(wide, ones, stride=(1,), pre_padding=(0,), post_padding=(0,), dilation=(1,))

    builder = ProgramBuilder(pipeline.lower(net_of(build), CPU), CPU)
    assert "conv" in kernels(builder.build())
    (said,) = builder.host_calls
    assert said.node.startswith("conv(") and "its weight is not in panels" in said.why


def test_a_walk_backwards_that_no_pass_replaced_is_a_call_of_the_host() -> None:
    net = Network("net")
    net.outputs["y"] = net.input("x", Spec((4,), "f32"))[::-1]
    builder = ProgramBuilder(net, CPU)
    builder.build()
    (said,) = builder.host_calls
    assert "a negative step has no native form" in said.why


def test_views_are_read_in_place() -> None:
    def build(x: Value) -> Value:
        parts = F.reshape(x, (x.shape[0], 3, 4)).split([1, 2], 1)
        return F.exp(F.permute(parts[1], (2, 0, 1)))

    program = program_of(net_of(build))
    assert kernels(program) == ["elementwise"]
    view = next(b for b in program["buffers"] if b["kind"] == "view")
    assert (view["shape"], view["stride"], view["offset"]) == ([4, "T", 2], [1, 12, 4], 4)


def test_a_kernel_that_needs_rows_gets_a_copy_once() -> None:
    def build(x: Value) -> Value:
        turned = F.permute(x, (1, 0))
        return F.rms_norm(turned) + F.layer_norm(turned)

    assert kernels(program_of(net_of(build, (6, 12)))) == ["copy", "rms_norm", "layer_norm", "elementwise"]


def test_outputs_have_memory_of_their_own() -> None:
    net = Network("net")
    x = net.input("x", Spec((Dim("T"), 4), F32))
    y = F.exp(x)
    net.outputs |= {
        "x": x,
        "y": y,
        "again": y,
        "part": F.slice(y, (0, 1), (x.shape[0], 2), (1, 1)),
        "w": F.reshape(y, (-1,)),
    }
    program = program_of(net)
    assert kernels(program) == ["elementwise", "copy", "copy"]
    for out in program["outputs"]:
        buffer = program["buffers"][out["buffer"]]
        base = program["buffers"][buffer["of"]] if buffer["kind"] == "view" else buffer
        assert base["kind"] == "temp"


def test_states_are_aliased_in_place() -> None:
    program = program_of(nets.llama(layers=1))
    state = next(i for i, b in enumerate(program["buffers"]) if b["kind"] == "state")
    write = next(c for c in program["calls"] if c["kernel"] == "rope_kv_write")
    read = next(c for c in program["calls"] if c["kernel"] == "paged_attention")
    assert state in write["in"] and state in read["in"] and state not in write["out"]


def test_a_dim_that_nothing_binds_is_an_error() -> None:
    net = Network("net")
    x = net.input("x", Spec((Dim("T") * Dim("S"),), F32))
    net.outputs["y"] = F.exp(x)
    with pytest.raises(NetworkError, match=r"no input has the dim\(s\) S, T, or a multiple, as a size"):
        program_of(net)


def test_what_has_no_form_names_the_node() -> None:
    net = Network("net")
    x = net.input("x", Spec((2,) * 9, "int8"))
    net.outputs["y"] = F.neg(x)
    with pytest.raises(NetworkError, match="at most 8"):
        program_of(net)


@given(st.data())
def test_reshaped_windows_walk_the_same_elements(data: st.DataObject) -> None:
    """Against NumPy: a window that reshapes without a copy reads what NumPy's reshape gives."""
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 3, 4]), min_size=1, max_size=4)))
    base = np.arange(int(np.prod(shape)) * 8).reshape(*shape, 8)[..., : data.draw(st.integers(1, 8))]
    order = data.draw(st.permutations(range(base.ndim)))
    array = base.transpose(order)
    target = data.draw(st.sampled_from(_shapes(array.size)))
    window = Window(0, array.shape, tuple(s // 8 for s in array.strides))
    found = reshaped(window, target)
    if found is not None:
        strides: Any = tuple(int(s) * 8 for s in found.stride)
        walked = np.lib.stride_tricks.as_strided(array, target, strides)
        np.testing.assert_array_equal(walked, array.reshape(target))


def _shapes(size: int) -> list[tuple[int, ...]]:
    halves = [d for d in range(1, size + 1) if size % d == 0]
    return [(size,)] + [(d, size // d) for d in halves] + [(d, 1, size // d) for d in halves]


def test_merging_of_dims() -> None:
    assert merged((4, 3), (3, 1)) == 1 and merged((4, 3), (6, 1)) is None and merged((1, 3), (99, 2)) == 2
    rows = Dim("T")
    assert dense_strides((rows, 4)) == (4, 1) and dense_strides((2, rows)) == (rows, 1)


# ------------------------------------------------------------------------------------------------ results in a concat


def linear(x: Value, n: int) -> Value:
    """A product whose kernel writes rows at a distance."""
    net = x.network
    weight = net.parameter(f"w{len(net.parameters)}", Spec((n, x.shape[-1]), F32))
    return F.matmul(x, weight, transpose_b=True)  # type: ignore[no-any-return]


def twice(x: Value) -> Any:
    y = linear(x, 4)
    return F.concat([y, y], 1)


def read_elsewhere(x: Value) -> Any:
    y = linear(x, 4)
    return F.concat([y, x], 1), F.softmax(y)


def in_two(x: Value) -> Any:
    y = linear(x, 4)
    return F.concat([y, x], 1), F.concat([x, y], 1)


def an_output(x: Value) -> Any:
    y = linear(x, 4)
    return F.concat([y, x], 1), y


def staged(x: Value) -> Any:
    return F.concat([linear(x, 4), x], 1), F.nonzero(x)


@pytest.mark.parametrize(
    ("build", "calls"),
    [
        (lambda x: F.concat([linear(x, 4), linear(F.exp(x), 3) * 2], 1), "elementwise matmul matmul"),
        (lambda x: F.concat([x, linear(x, 4)], 1), "matmul copy"),
        (lambda x: F.concat([linear(x, 4), x, linear(F.exp(x), 2), x], 1), "elementwise matmul matmul copy copy"),
        (lambda x: F.concat([linear(x, 12), x], 0), "matmul copy"),
        (lambda x: F.concat([x, F.concat([linear(x, 4), x], 1)], 1), "matmul copy concat"),
        (lambda x: F.concat([F.permute(linear(x, 4), (1, 0)), F.permute(x, (1, 0))], 0), "matmul concat"),
        (in_two, "matmul copy concat"),  # it is written into the first one, and read there by the second one
        (twice, "matmul concat"), (read_elsewhere, "matmul concat softmax"), (an_output, "matmul concat"),
        (staged, "matmul concat count_nonzero nonzero"),
    ],
)  # fmt: skip
def test_results_are_written_into_their_place(build: Any, calls: str) -> None:
    """Those of kernels that can write there, into the first concat that reads them; the rest is copied, or the concat
    is a call of its own.
    """
    net = Network("net")
    made = build(net.input("x", Spec((Dim("T"), 12), F32)))
    for i, value in enumerate(made if isinstance(made, tuple) else (made,)):
        net.outputs[f"y{i}"] = value
    rng = np.random.default_rng(0)
    weights = {v.name: rng.standard_normal(v.spec.evaluate({})).astype(np.float32) for v in net.parameters}
    engine = build_network(net, weights)
    program = engine.header["programs"]["cpu"]["entries"]["main"]
    assert sorted(name.removesuffix("_packed") for name in kernels(program)) == sorted(calls.split())
    for rows in (1, 5):
        feeds = {"x": rng.standard_normal((rows, 12)).astype(np.float32)}
        want = interpret(net, feeds, weights)
        for name, array in engine.run(feeds).items():
            np.testing.assert_allclose(array, want[name], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("shape", "stride", "wanted"),
    [
        ((5, 3), (3, 1), "DRI"), ((5, 3), (4, 1), "RI"), ((5, 3), (3, 2), ""), ((2, 5, 3), (20, 4, 1), "RI"),
        ((2, 5, 3), (21, 4, 1), "I"), ((2, 5, 3), (4, 8, 1), "I"), ((2, 5, 3), (30, 6, 2), ""), ((), (), "DRI"),
        ((3,), (1,), "DRI"), ((3,), (2,), ""), ((5, 1), (4, 1), "RI"), ((1, 3), (9, 1), "DRI"), ((5, 3), (0, 1), "RI"),
    ],
)  # fmt: skip
def test_what_a_kernel_can_read(shape: tuple[int, ...], stride: tuple[int, ...], wanted: str) -> None:
    """Dense, in Rows, or with a dense Inner dimension; any strides always."""
    window = Window(0, shape, stride)
    kinds = {"D": Reads.DENSE, "R": Reads.ROWS, "I": Reads.INNER}
    assert "".join(letter for letter, how in kinds.items() if readable(window, how)) == wanted
    assert readable(window, Reads.ANY)


def test_no_two_live_buffers_overlap() -> None:
    """What the native planner does with our programs, for several sizes."""
    program = json.dumps(program_of(nets.llama()))
    for tokens, requests in ((1, 1), (17, 3), (300, 20)):
        layout = _native.plan_layout(program, {"T": tokens, "B": requests, "N": 4, "R": requests})
        live = layout["buffers"]
        for i, a in enumerate(live):
            for b in live[:i]:
                together = a["first"] <= b["last"] and b["first"] <= a["last"]
                apart = a["offset"] + a["bytes"] <= b["offset"] or b["offset"] + b["bytes"] <= a["offset"]
                assert apart or not together
        assert layout["lower_bound"] <= layout["arena"] <= 1.3 * layout["lower_bound"] + 4096
