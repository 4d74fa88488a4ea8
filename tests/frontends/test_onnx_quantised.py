"""ONNX's ops on quantised tensors: that convolutions and products are of int8, and agree with ONNX Runtime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
runtime = pytest.importorskip("onnxruntime")

from onnx import helper, numpy_helper  # noqa: E402

import ingot  # noqa: E402
from ingot.builder.network import build_network  # noqa: E402
from ingot.cli.inspect import kernel_counts  # noqa: E402
from ingot.errors import UnsupportedError  # noqa: E402
from ingot.frontends.onnx import Model  # noqa: E402
from ingot.frontends.onnx import build_network as import_network  # noqa: E402

Array = np.ndarray[Any, Any]
RNG = np.random.default_rng(0)


def scales(*shape: int) -> Array:
    return RNG.uniform(0.001, 0.003, shape).astype(np.float32)


def whole(kind: str, *shape: int) -> Array:
    return RNG.integers(np.iinfo(kind).min, np.iinfo(kind).max, shape, endpoint=True).astype(kind)


def compared(nodes: list[Any], stored: dict[str, Array], x: Array, kind: int) -> tuple[Array, Array, dict[str, int]]:
    """What the engine and ONNX Runtime give, and the engine's calls but copies."""
    inputs = [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, x.shape)]
    outputs = [helper.make_tensor_value_info("y", kind, None)]
    initializers = [numpy_helper.from_array(array, name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = onnx.shape_inference.infer_shapes(helper.make_model(graph, opset_imports=opsets, ir_version=10))
    options = runtime.SessionOptions()
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    want = runtime.InferenceSession(proto.SerializeToString(), options, ["CPUExecutionProvider"]).run(None, {"x": x})[0]
    imported = import_network(Model(proto, "test"), None).imported
    engine = build_network(imported.network, imported.weights, report=False)
    native, hosted = kernel_counts(engine.header["programs"]["cpu"])
    assert not hosted
    return engine.session().run({"x": x})["y"], want, {name: n for name, n in native.items() if name != "copy"}


@pytest.mark.parametrize("kind", ["uint8", "int8"])
def test_qlinear_ops(kind: str) -> None:
    """A quantised input, two convolutions, the second of every channel by itself, and a product."""
    zero = np.array(131 if kind == "uint8" else 3, kind)
    stored = {
        "s": np.float32(0.02), "z": zero, "w": whole("int8", 8, 6, 3, 3), "ws": scales(8), "wz": np.zeros(8, np.int8),
        "b": RNG.integers(-9000, 9000, 8).astype(np.int32), "t": np.float32(0.05), "d": whole("int8", 8, 1, 3, 3),
        "ds": np.float32(0.004), "dz": np.int8(0), "m": whole("int8", 72, 10), "ms": np.float32(0.002),
        "u": np.float32(0.06), "shape": np.array([2, 72], np.int64),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("QLinearConv", [*"qsz", "w", "ws", "wz", "t", "z", "b"], ["c"], pads=[1] * 4, strides=[2, 2]),
        helper.make_node("QLinearConv", [*"ctz", "d", "ds", "dz", "t", "z"], ["e"], pads=[1] * 4, group=8),
        helper.make_node("Reshape", ["e", "shape"], ["r"]),
        helper.make_node("QLinearMatMul", [*"rtz", "m", "ms", "dz", "u", "z"], ["y"]),
    ]
    x = RNG.standard_normal((2, 6, 5, 6)).astype(np.float32)
    found, want, calls = compared(nodes, stored, x, onnx.TensorProto.DataType.Value(kind.upper()))
    assert np.abs(found.astype(int) - want.astype(int)).max() <= 1
    assert found.dtype == want.dtype
    assert calls == {"elementwise": 2, "conv_packed": 1, "conv_depthwise": 1, "matmul_packed": 1}  # x, and a bias


def quantised_products(count: int, more: list[Any], stored: dict[str, Array]) -> Any:
    """A model of so many products of one quantised x [3, 24], each [24, 10] by weights of int8 and a ReLU behind it,
    added: u. Then more nodes, which make y."""
    stored = {"s": np.float32(0.02), "z": np.int8(3), "wz": np.zeros(10, np.int8), **stored}
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
    ]
    for i in map(str, range(count)):
        stored |= {f"w{i}": whole("int8", 24, 10), f"ws{i}": scales(10)}
        nodes += [
            helper.make_node("DequantizeLinear", [f"w{i}", f"ws{i}", "wz"], [f"m{i}"], axis=1),
            helper.make_node("MatMul", ["d", f"m{i}"], [f"p{i}"]),
            helper.make_node("Relu", [f"p{i}"], [f"r{i}"]),
        ]
    nodes += [helper.make_node("Sum", [f"r{i}" for i in range(count)], ["u"]), *more]
    kind = onnx.TensorProto.FLOAT
    inputs, outputs = (helper.make_tensor_value_info(name, kind, [3, n]) for name, n in (("x", 24), ("y", 10)))
    initializers = [numpy_helper.from_array(np.asarray(array), name) for name, array in stored.items()]
    graph = helper.make_graph(nodes, "g", [inputs], [outputs], initializers)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


def travelled(engine: Any) -> None:
    """Other targets find the scales that the CPU has multiplied."""
    x = RNG.standard_normal((3, 24)).astype(np.float32)
    found, there = (engine.session(device=device).run({"x": x})["y"] for device in ("cpu", "torch:cpu"))
    assert any("times" in name for name in engine.header["weights"])
    np.testing.assert_allclose(there, found, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 3])
def test_scales_of_explicit_integers_travel(count: int) -> None:
    """The CPU multiplies a weight's scales with an input's, which cannot be undone: other targets find them beside. It
    joins products of one x, and so their scales."""
    pytest.importorskip("torch")
    proto = quantised_products(count, [helper.make_node("Identity", ["u"], ["y"])], {})
    imported = import_network(Model(proto, "test"), None).imported
    engine = build_network(imported.network, imported.weights, report=False)
    assert {f"ws{i}" for i in range(count)} <= engine.header["weights"].keys()
    travelled(engine)


def test_scales_of_explicit_integers_travel_beside_a_plan(tmp_path: Path) -> None:
    """A net is calibrated of which one part has explicit integers, and another floats."""
    pytest.importorskip("torch")
    stored = {"f": RNG.standard_normal((10, 10)).astype(np.float32)}
    onnx.save(quantised_products(1, [helper.make_node("MatMul", ["u", "f"], ["y"])], stored), tmp_path / "net.onnx")
    samples = [RNG.standard_normal((3, 24)).astype(np.float32) for _ in range(2)]
    engine = ingot.quantize(tmp_path / "net.onnx", samples, report=False, always_int8=True)
    plan = engine.config["quantization"]
    assert "int8" in {layer["type"].partition(" ")[0] for layer in plan["layers"]}
    travelled(engine)


@pytest.mark.parametrize("scale", [0.0, -0.0, float("inf"), float("nan"), [0.1, 0.0, 0.1, 0.1]])
@pytest.mark.parametrize("dtype", ["FLOAT", "FLOAT16", "BFLOAT16"])
@pytest.mark.parametrize("op", ["QuantizeLinear", "DequantizeLinear"])
def test_scales_that_are_none(op: str, dtype: str, scale: Any) -> None:
    floats = onnx.TensorProto.DataType.Value(dtype)
    kind, to = (floats, onnx.TensorProto.UINT8) if op == "QuantizeLinear" else (onnx.TensorProto.INT8, floats)
    node = helper.make_node(op, ["x", "s"], ["y"], axis=1)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind, (2, 4))],
        [helper.make_tensor_value_info("y", to, (2, 4))],
        [helper.make_tensor("s", floats, np.shape(scale), np.ravel(scale))],
    )  # fmt: skip
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = Model(proto, "test")
    if op == "DequantizeLinear" and np.isfinite(scale).all():  # of 0 all numbers are 0, as of a channel that was pruned
        import_network(model, None)
        return
    with pytest.raises(UnsupportedError, match="a scale must be finite( and not 0)?, and is"):
        import_network(model, None)


@pytest.mark.parametrize(("name", "scale", "words"), [
    ("ys", 0.0, "finite and not 0, and is 0.0 in y_scale"), ("ys", float("nan"), "not 0, and is nan in y_scale"),
    ("xs", float("inf"), "a scale must be finite, and is inf in"), ("ws", float("nan"), "finite, and is nan in"),
])  # fmt: skip
@pytest.mark.parametrize(("op", "domain"), [("QLinearMatMul", ""), ("QLinearAdd", "com.microsoft")])
def test_scales_of_whole_ops_that_are_none(op: str, domain: str, name: str, scale: float, words: str) -> None:
    stored = {"xs": np.float32(0.1), "ws": np.float32(0.1), "ys": np.float32(0.1), "z": np.uint8(128),
              "w": whole("uint8", 4, 4)}  # fmt: skip
    stored[name] = np.float32(scale)
    node = helper.make_node(op, ["x", "xs", "z", "w", "ws", "z", "ys", "z"], ["y"], domain=domain)
    kind = onnx.TensorProto.UINT8
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", kind, (4, 4))],
        [helper.make_tensor_value_info("y", kind, (4, 4))],
        [numpy_helper.from_array(np.asarray(array), label) for label, array in stored.items()],
    )  # fmt: skip
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(graph, opset_imports=versions, ir_version=10)
    with pytest.raises(UnsupportedError, match=words):
        import_network(Model(proto, "test"), None)


def in_blocks(size: int, scale: Array) -> Any:
    node = helper.make_node("DequantizeLinear", ["x", "s"], ["y"], axis=1, block_size=size)
    graph = helper.make_graph(
        [node], "g", [helper.make_tensor_value_info("x", onnx.TensorProto.INT8, (2, 6))],
        [helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, (2, 6))], [numpy_helper.from_array(scale, "s")],
    )  # fmt: skip
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)


@pytest.mark.parametrize(("size", "shape", "words"), [
    (-2, (2, 3), "block_size must be positive, and is -2"),
    (2, (3,), "blocks need scales of 2 dimensions, not 1"),
    (2, (2, 4), "4 scales along axis 1 are not those of 6 in blocks of 2"),
    (4, (2, 1), "1 scales along axis 1 are not those of 6 in blocks of 4"),
])  # fmt: skip
def test_blocks_that_are_none(size: int, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(UnsupportedError, match=words):
        import_network(Model(in_blocks(size, np.ones(shape, np.float32)), "test"), None)


@pytest.mark.parametrize("size", [4, 6, 2**62])
def test_a_last_block_may_be_cut_off(size: int, tmp_path: Path) -> None:
    """Also of a block much larger than the tensor, which takes no more memory than that."""
    scale = RNG.uniform(0.1, 1, (2, -(-6 // size))).astype(np.float32)
    x = RNG.integers(-100, 100, (2, 6)).astype(np.int8)
    onnx.save(in_blocks(size, scale), tmp_path / "net.onnx")
    found = ingot.build(tmp_path / "net.onnx", report=False).run({"x": x})["y"]
    assert np.array_equal(found, x * np.repeat(scale, min(size, 6), 1)[:, :6])


def test_pairs_around_floats() -> None:
    """Explicit QuantizeLinear and DequantizeLinear, biases of int32 too; Gemm by a turned weight of uint8."""
    stored = {
        "s": np.float32(0.02), "z": np.uint8(120), "w": whole("int8", 8, 6, 3, 3), "ws": scales(8),
        "wz": np.zeros(8, np.int8), "b": RNG.integers(-9000, 9000, 8).astype(np.int32),
        "bs": scales(8) * np.float32(0.02), "t": np.float32(0.05), "o": np.uint8(0),
        "m": whole("uint8", 10, 240), "ms": np.float32(0.002),
        "mz": np.uint8(128), "shape": np.array([2, 240], np.int64),
    }  # fmt: skip
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["q"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["f"]),
        helper.make_node("DequantizeLinear", ["w", "ws", "wz"], ["fw"], axis=0),
        helper.make_node("DequantizeLinear", ["b", "bs"], ["fb"], axis=0),
        helper.make_node("Conv", ["f", "fw", "fb"], ["c"], pads=[1] * 4),
        helper.make_node("Relu", ["c"], ["r"]),
        helper.make_node("QuantizeLinear", ["r", "t", "o"], ["rq"]),
        helper.make_node("DequantizeLinear", ["rq", "t", "o"], ["rf"]),
        helper.make_node("Reshape", ["rf", "shape"], ["flat"]),
        helper.make_node("DequantizeLinear", ["m", "ms", "mz"], ["fm"]),
        helper.make_node("Gemm", ["flat", "fm"], ["y"], transB=1),
    ]
    x = RNG.standard_normal((2, 6, 5, 6)).astype(np.float32)
    found, want, calls = compared(nodes, stored, x, onnx.TensorProto.FLOAT)
    np.testing.assert_allclose(found, want, atol=0.002 * 128 * 0.05 * 2)  # a tie of what lies between
    assert calls == {"elementwise": 2, "conv_packed": 1, "matmul_packed": 1}
