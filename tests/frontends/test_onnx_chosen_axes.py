"""ONNX ops whose axes and k are inputs: one engine for all, beside NumPy; a run refuses those that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from ingot.builder.network import build_network  # noqa: E402
from ingot.engine.session import Engine  # noqa: E402
from ingot.errors import IngotError, UnsupportedError, ValueFault  # noqa: E402
from ingot.frontends.onnx import Model  # noqa: E402
from ingot.frontends.onnx import build_network as import_network  # noqa: E402

FLOAT, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64
node, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
RNG = np.random.default_rng(0)

Numpy = Callable[..., Any]
BY_NUMPY: dict[str, Numpy] = {
    "ReduceSum": np.sum, "ReduceMean": np.mean, "ReduceProd": np.prod, "ReduceMax": np.max, "ReduceMin": np.min,
    "ReduceL1": lambda x, **k: np.sum(np.abs(x), **k), "ReduceL2": lambda x, **k: np.sqrt(np.sum(x * x, **k)),
    "ReduceLogSum": lambda x, **k: np.log(np.sum(x, **k)), "ReduceSumSquare": lambda x, **k: np.sum(x * x, **k),
    "ReduceLogSumExp": lambda x, **k: np.log(np.sum(np.exp(x), **k)),
}  # fmt: skip


def engine(nodes: list[Any], inputs: dict[str, Any], outputs: list[str]) -> Engine:
    """x is of floats, all else of int64; opset 18."""
    graph = onnx.helper.make_graph(
        nodes, "net", [value(n, FLOAT if n == "x" else INT64, shape) for n, shape in inputs.items()],
        [value(n, FLOAT, None) for n in outputs],
    )  # fmt: skip
    for output in graph.output:
        output.type.tensor_type.elem_type = 0
    proto = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)])
    imported = import_network(Model(proto, "net")).imported
    return build_network(imported.network, imported.weights, report=False)


@pytest.mark.parametrize("keepdims", [0, 1])
def test_reductions_over_axes_that_a_run_names(keepdims: int) -> None:
    net = engine([node(op, ["x", "axes"], [op], keepdims=keepdims) for op in BY_NUMPY],
                 {"x": ["N", 3, "T"], "axes": [2]}, list(BY_NUMPY))  # fmt: skip
    for axes, shape in (((0, 2), (2, 3, 5)), ((-1, 1), (4, 3, 1)), ((1, 0), (1, 3, 7))):
        x = RNG.uniform(0.5, 1.5, shape).astype(np.float32)
        found = net.run({"x": x, "axes": np.array(axes)})
        for op, compute in BY_NUMPY.items():
            wanted = compute(x.astype(np.float64), axis=axes, keepdims=bool(keepdims))
            assert found[op].shape == wanted.shape
            np.testing.assert_allclose(found[op], wanted, rtol=2e-6, atol=1e-6, err_msg=f"{op} over {axes}")
    for axes in ((0, 0), (2, -1), (0, 3), (-4, 1)):
        with pytest.raises(IngotError, match="axes must be different dimensions of an operand that has 3"):
            net.run({"x": x, "axes": np.array(axes)})


def test_axes_that_a_run_names_of_a_size_that_is_zero() -> None:
    net = engine([node("ReduceSum", ["x", "axes"], ["y"])], {"x": ["N", 2], "axes": [1]}, ["y"])
    assert net.run({"x": np.zeros((0, 2), np.float32), "axes": np.array([1])})["y"].shape == (0, 1)
    with pytest.raises(ValueFault, match="slice along dimension 0 .*: there are N elements; .*with N=0"):
        net.run({"x": np.zeros((0, 2), np.float32), "axes": np.array([0])})


def test_what_needs_axes_that_are_known() -> None:
    for shape, count in (([0, 2], 1), ([2, 2], "K")):
        with pytest.raises(UnsupportedError, match="axes must be known when the network is built"):
            engine([node("ReduceSum", ["x", "axes"], ["y"])], {"x": shape, "axes": [count]}, ["y"])
    with pytest.raises(UnsupportedError, match="axes must be at most 2 integers"):
        engine([node("ReduceSum", ["x", "axes"], ["y"])], {"x": [2, 2], "axes": [3]}, ["y"])
    with pytest.raises(UnsupportedError, match="the axes of a mean of integers must be known"):
        engine([node("Shape", ["x"], ["s"]), node("ReduceMean", ["s", "axes"], ["y"])],
               {"x": ["N", 2], "axes": [1]}, ["y"])  # fmt: skip


def test_running_sums_along_an_axis_that_a_run_names() -> None:
    net = engine([node("CumSum", ["x", "axis"], ["y"], reverse=1), node("CumSum", ["x", "axis"], ["z"], exclusive=1)],
                 {"x": ["N", 4], "axis": []}, ["y", "z"])  # fmt: skip
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    for axis in (0, 1, -1, -2):
        found = net.run({"x": x, "axis": np.array(axis)})
        np.testing.assert_allclose(found["y"], np.flip(np.cumsum(np.flip(x, axis), axis), axis), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["z"], np.cumsum(x, axis) - x, rtol=1e-5, atol=1e-6)
    for axis in (2, -3):
        with pytest.raises(IngotError, match="axis must be a dimension of an operand that has 2"):
            net.run({"x": x, "axis": np.array(axis)})


def test_as_many_of_the_first_as_a_run_says() -> None:
    net = engine([node("TopK", ["x", "k"], ["y", "at"], axis=1)], {"x": ["N", 6], "k": [1]}, ["y", "at"])
    x = RNG.standard_normal((3, 6)).astype(np.float32)
    for k in (0, 1, 4, 6):
        found = net.run({"x": x, "k": np.array([k])})
        np.testing.assert_array_equal(found["at"], np.argsort(-x, axis=1, kind="stable")[:, :k])
        np.testing.assert_array_equal(found["y"], -np.sort(-x, axis=1)[:, :k])
    for k, said in ((7, "along dimension 1 .*: there are 6 elements"), (-1, "it is k .-1")):
        with pytest.raises(IngotError, match=said):
            net.run({"x": x, "k": np.array([k])})
