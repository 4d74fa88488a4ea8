"""What an ONNX model computes of its weights is computed when the engine is built, and its weights keep their names."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from ingot.builder.network import build_network  # noqa: E402
from ingot.cli.inspect import kernel_counts  # noqa: E402
from ingot.errors import UnsupportedError  # noqa: E402
from ingot.frontends.onnx import Model  # noqa: E402
from ingot.frontends.onnx import build_network as import_network  # noqa: E402
from ingot.ir.weight_format import FORMATS  # noqa: E402

helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT
node, value = helper.make_node, helper.make_tensor_value_info
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


def engine(nodes: list[Any], shape: list[Any], constants: dict[str, Any]) -> tuple[Any, Counter[str]]:
    """The engine of nodes from `x` to `y`, and how often its program calls each kernel."""
    initializers = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in constants.items()]
    ends = [value("x", FLOAT, shape)], [value("y", FLOAT, None)]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    proto = helper.make_model(helper.make_graph(nodes, "net", *ends, initializers), opset_imports=opsets)
    imported = import_network(Model(proto, "net")).imported
    built = build_network(imported.network, imported.weights, report=False)
    counts = [kernel_counts(program) for program in built.header["programs"].values()]
    assert not any(host for _, host in counts)
    return built, sum((native for native, _ in counts), Counter())


def lstm(x: Any, w: Any, r: Any, b: Any) -> Any:
    """Both directions of a layer by NumPy: [T, 2, N, H]."""
    steps, rows, hidden = len(x), x.shape[1], r.shape[2]
    found = np.empty((steps, 2, rows, hidden), np.float32)
    for way, order in enumerate((range(steps), reversed(range(steps)))):
        h = c = np.zeros((rows, hidden), np.float32)
        for t in order:
            gates = x[t] @ w[way].T + h @ r[way].T + b[way, : 4 * hidden] + b[way, 4 * hidden :]
            i, o, f, g = np.split(gates, 4, 1)
            c = c / (1 + np.exp(-f)) + np.tanh(g) / (1 + np.exp(-i))
            h = found[t, way] = np.tanh(c) / (1 + np.exp(-o))
    return found


def test_gates_of_both_directions_are_in_order_before_a_run() -> None:
    w, r, b = floats(2, 32, 5), floats(2, 32, 8), floats(2, 64)
    layer = node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=8, direction="bidirectional")
    net, calls = engine([layer], ["T", "N", 5], {"w": w, "r": r, "b": b})
    assert calls["lstm"] == 2 and calls["matmul_packed"] and not calls["matmul"], calls
    assert calls["concat"] <= 1, calls  # of the results
    x = floats(6, 3, 5)
    np.testing.assert_allclose(net.run({"x": x})["y"], lstm(x, w, r, b), rtol=1e-4, atol=1e-5)
    other = {"w": floats(2, 32, 5), "b": floats(2, 64)}
    np.testing.assert_allclose(net.refit(other).run({"x": x})["y"], lstm(x, other["w"], r, other["b"]), rtol=1e-4,
                               atol=1e-5)  # fmt: skip


def test_a_weight_that_is_read_whole_too_is_not_stored_twice() -> None:
    w = floats(64, 16)
    parts = [node("Split", ["w"], ["a", "b"], axis=0), node("Concat", ["b", "a"], ["c"], axis=0)]
    both = [node("Gemm", ["x", "w"], ["p"], transB=1), node("Gemm", ["x", "c"], ["q"], transB=1)]
    net, calls = engine([*parts, *both, node("Add", ["p", "q"], ["y"])], ["N", 16], {"w": w})
    x = floats(3, 16)
    turned = np.concatenate([w[32:], w[:32]])
    np.testing.assert_allclose(net.run({"x": x})["y"], x @ w.T + x @ turned.T, rtol=1e-4, atol=1e-5)
    assert calls["concat"] == 1, calls


@pytest.mark.parametrize("scales", [(), (24,)])
def test_a_quantised_weight_of_a_product(scales: tuple[int, ...]) -> None:
    """[inputs, outputs] and zero points: no kernel takes that as integers, so it is floats from the start."""
    q = RNG.integers(-128, 128, (3000, 24), np.int8)
    scale = np.asarray(RNG.uniform(0.01, 0.02, scales), np.float32)
    zero = RNG.integers(-9, 9, scales, np.int8) if scales else np.int8(3)
    nodes = [node("DequantizeLinear", ["q", "s", "z"], ["w"], axis=1), node("MatMul", ["x", "w"], ["y"])]
    net, calls = engine(nodes, ["N", 3000], {"q": q, "s": scale, "z": zero})
    assert calls == Counter({"matmul_packed": 1}), calls
    x = floats(2, 3000)
    wide = (q - zero.astype(np.float32)) * scale
    np.testing.assert_allclose(net.run({"x": x})["y"], x @ wide, rtol=1e-3, atol=1e-2)


def test_a_quantised_recurrent_layer() -> None:
    w, r = (RNG.integers(-128, 128, (1, n, 512), np.int8) for n in (140, 128))
    constants = {"w": w, "r": r, "ws": np.float32([0.01]), "wz": np.int8([2]), "rs": np.float32([0.002]),
                 "rz": np.int8([0])}  # fmt: skip
    names = ["x", "w", "r", "", "", "", "", "", "ws", "wz", "rs", "rz"]
    net, calls = engine([node("DynamicQuantizeLSTM", names, ["y"], hidden_size=128, domain="com.microsoft")],
                        ["T", 1, 140], constants)  # fmt: skip
    assert calls["lstm"] == calls["matmul_packed"] == 1 and not calls["elementwise"] and not calls["concat"], calls
    wide = (((w - 2.0) * 0.01).transpose(0, 2, 1), (r * 0.002).transpose(0, 2, 1))
    two = [np.repeat(v, 2, 0).astype(np.float32) for v in wide]
    x = 0.1 * floats(5, 1, 140)
    wanted = lstm(x, *two, np.zeros((2, 1024), np.float32))[:, :1]
    np.testing.assert_allclose(net.run({"x": x})["y"], wanted, rtol=1e-3, atol=1e-5)


def quantised_layer(kind: Any, directions: int, each: bool, inputs: int = 70, hidden: int = 40) -> dict[str, Any]:
    """Weights of DynamicQuantizeLSTM without a zero point, or of uint8 with 128; scales of directions or of outputs."""
    middle = 128 if kind is np.uint8 else 0
    found: dict[str, Any] = {}
    for name, k in (("w", inputs), ("r", hidden)):
        whole = RNG.integers(-127, 128, (directions, k, 4 * hidden)) + middle
        shape = (directions, 4 * hidden) if each else (directions,)
        scale = RNG.uniform(0.5, 1.5, shape).astype(np.float32) / np.float32(100 * k**0.5)
        found |= {name: whole.astype(kind), f"{name}s": scale, f"{name}z": np.full(shape, middle, kind)}
    return found | {"b": 0.1 * floats(directions, 8 * hidden)}


def stored_in(net: Any) -> set[str]:
    """The types of its weights, but those of scales, biases and first states."""
    return {array.dtype.name for n in net.header["weights"] if (array := net.tensor(n)).ndim > 2}


QUANTISED = ["x", "w", "r", "b", "", "", "", "", "ws", "wz", "rs", "rz"]


@pytest.mark.parametrize("each", [False, True])
@pytest.mark.parametrize("kind", [np.int8, np.uint8])
@pytest.mark.parametrize("direction", ["forward", "bidirectional"])
@pytest.mark.parametrize("hidden", [40, 136])
def test_a_quantised_recurrent_layer_reads_integers(direction: str, kind: Any, each: bool, hidden: int) -> None:
    """Small weights are constants and large ones parameters; no float weight is left, and nothing is computed of them
    at run time."""
    count = 2 if direction == "bidirectional" else 1
    of = quantised_layer(kind, count, each, hidden=hidden)
    layer = node("DynamicQuantizeLSTM", QUANTISED, ["y"], hidden_size=hidden, domain="com.microsoft",
                 direction=direction)  # fmt: skip
    net, calls = engine([layer], ["T", "N", 70], of)
    assert calls["lstm"] == count and not calls["elementwise"], calls
    assert stored_in(net) == {"int8"}
    middle = 128 if kind is np.uint8 else 0
    wide = {}
    for name in "wr":
        scale = of[f"{name}s"].reshape(count, 1, -1)
        wide[name] = ((of[name].astype(np.float32) - middle) * scale).transpose(0, 2, 1).repeat(3 - count, 0)
    x = floats(5, 3, 70)
    want = lstm(x, wide["w"], wide["r"], of["b"].repeat(3 - count, 0))[:, :count]
    np.testing.assert_allclose(net.run({"x": x})["y"], want, rtol=1e-4, atol=1e-5)
    torch_found = net.session(device="torch:cpu").run({"x": x})["y"]
    np.testing.assert_allclose(torch_found, want, rtol=1e-4, atol=1e-5)


def test_a_quantised_recurrent_layer_with_zero_points_is_of_floats() -> None:
    of = quantised_layer(np.uint8, 1, True)
    of["rz"] = RNG.integers(120, 140, of["rz"].shape, np.uint8)
    layer = node("DynamicQuantizeLSTM", QUANTISED, ["y"], hidden_size=40, domain="com.microsoft")
    net, calls = engine([layer], ["T", "N", 70], of)
    assert calls["lstm"] == 1
    two = {name: a.repeat(2, 0) for name, a in of.items()}
    w, r = ((two[n].astype(np.float32) - two[f"{n}z"][:, None]) * two[f"{n}s"][:, None] for n in "wr")
    x = floats(5, 3, 70)
    want = lstm(x, w.transpose(0, 2, 1), r.transpose(0, 2, 1), two["b"])[:, :1]
    np.testing.assert_allclose(net.run({"x": x})["y"], want, rtol=1e-4, atol=1e-5)


def test_a_quantised_recurrent_layer_step_by_step() -> None:
    """One with a clip is a scan, which reads floats."""
    of = quantised_layer(np.int8, 1, True)
    names = [*QUANTISED]
    plain, clipped = (
        engine([node("DynamicQuantizeLSTM", names, ["y"], hidden_size=40, domain="com.microsoft", **more)],
               ["T", "N", 70], of)
        for more in ({}, {"clip": 100.0})
    )  # fmt: skip
    assert plain[1]["lstm"] == 1 and not clipped[1]["lstm"]
    x = floats(5, 3, 70)
    np.testing.assert_allclose(clipped[0].run({"x": x})["y"], plain[0].run({"x": x})["y"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("name", "shape"), [
    ("rs", (160,)), ("rs", (2,)), ("rs", (1, 320)), ("ws", (160,)), ("wz", (1, 1)), ("rz", (1, 320)),
    ("r", (1, 40, 320)), ("w", (1, 70, 320)), ("b", (1, 640)), ("r", (40, 160))])  # fmt: skip
def test_a_quantised_recurrent_layer_with_numbers_of_other_outputs(name: str, shape: tuple[int, ...]) -> None:
    """[4·H] without the direction would give every output the scale of the first, and what is too long lose its end."""
    of = quantised_layer(np.int8, 1, True)
    of[name] = np.resize(of[name], shape)
    layer = node("DynamicQuantizeLSTM", QUANTISED, ["y"], hidden_size=40, domain="com.microsoft")
    with pytest.raises(UnsupportedError, match=r"not those of directions or outputs|are not \[directions|for 40 units"):
        engine([layer], ["T", "N", 70], of)


def test_recurrent_layers_of_a_file_in_int8() -> None:
    """`--weights int8` takes them after their gates are in order."""
    w, r, b = 0.2 * floats(2, 32, 70), 0.3 * floats(2, 32, 8), 0.1 * floats(2, 64)
    layer = node("LSTM", ["x", "w", "r", "b"], ["y"], hidden_size=8, direction="bidirectional")
    graph = helper.make_graph(
        [layer], "net", [value("x", FLOAT, ["T", "N", 70])], [value("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(a, n) for a, n in ((w, "w"), (r, "r"), (b, "b"))],
    )  # fmt: skip
    model = Model(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), "net")
    imported = import_network(model).imported
    net = build_network(imported.network, imported.weights, report=False, format=FORMATS["int8"])
    assert stored_in(net) == {"int8"}
    scale = {n: np.abs(a).max(2, keepdims=True) / np.float32(127) for n, a in (("w", w), ("r", r))}
    wide = {n: (np.rint(a / scale[n]) * scale[n]).astype(np.float32) for n, a in (("w", w), ("r", r))}
    x = floats(6, 3, 70)
    np.testing.assert_allclose(net.run({"x": x})["y"], lstm(x, wide["w"], wide["r"], b), rtol=1e-4, atol=1e-5)


def test_tables_that_a_file_computes_with_are_computed_when_it_is_built() -> None:
    """A window of [7, 30] from two rows of floats, and a product with it; the rows are no weights then."""
    rows = {"a": np.arange(7, dtype=np.float32) / 7, "b": np.arange(30, dtype=np.float32) / 30, "one": np.array([1])}
    nodes = [
        node("Unsqueeze", ["a", "one"], ["column"]), node("Add", ["column", "b"], ["t"]), node("Cos", ["t"], ["w"]),
        node("MatMul", ["x", "w"], ["y"]),
    ]  # fmt: skip
    built, counts = engine(nodes, ["n", 7], rows)
    assert set(counts) <= {"matmul", "matmul_packed"} and "a" not in built.header["weights"]
    x = floats(5, 7)
    want = x @ np.cos(rows["a"][:, None] + rows["b"])
    assert np.abs(built.run({"x": x})["y"] - want).max() <= 1e-5 * np.abs(want).max()


@pytest.mark.parametrize("reader", ["x", "a loop", "nobody computes"])
def test_a_row_that_a_run_reads_too_stays_a_weight(reader: str) -> None:
    nodes = [node("Cos", ["a"], ["w"]), node("Mul", ["x", "w"], ["m"])]
    if reader == "x":
        nodes.append(node("Add", ["m", "a"], ["y"]))
    elif reader == "a loop":
        inner = helper.make_graph([node("Add", ["m", "a"], ["z"])], "inner", [], [value("z", FLOAT, None)])
        other = helper.make_graph([node("Sub", ["m", "a"], ["z"])], "other", [], [value("z", FLOAT, None)])
        nodes += [node("ReduceSum", ["x"], ["total"], keepdims=0), node("Cast", ["total"], ["some"], to=9),
                  node("If", ["some"], ["y"], then_branch=inner, else_branch=other)]  # fmt: skip
    else:
        nodes = [node("Add", ["x", "a"], ["y"])]
    built, _ = engine(nodes, ["n", 7], {"a": np.arange(7, dtype=np.float32)})
    assert "a" in built.header["weights"]
