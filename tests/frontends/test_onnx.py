"""ONNX files as sources of a build: names, dims, control flow, functions, external data, errors that list everything; a
sample of ONNX's own node tests through the backend."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

import ingot  # noqa: E402
from ingot.__main__ import main  # noqa: E402
from ingot.builder.network import build_network as build_engine  # noqa: E402
from ingot.cli.inspect import kernel_counts  # noqa: E402
from ingot.errors import CheckpointError, InputError, UnsupportedError, UserError  # noqa: E402
from ingot.frontends.onnx import Given, Model, NeedsValues, build_network  # noqa: E402
from ingot.ir import interpret  # noqa: E402
from tools.conformance import onnx_nodes  # noqa: E402

helper, FLOAT, INT64, BOOL = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
value, node = helper.make_tensor_value_info, helper.make_node
RNG = np.random.default_rng(0)


def tensor(name: str, array: Any) -> Any:
    return onnx.numpy_helper.from_array(np.asarray(array), name)


def model(nodes: list[Any], inputs: list[Any], outputs: list[Any], initializers: Any = (), **more: Any) -> Any:
    graph = helper.make_graph(nodes, "net", inputs, outputs, list(initializers))
    opsets = [helper.make_opsetid("", 21), *more.pop("imports", [])]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10, **more)  # as the ONNX Runtimes in use read it


def computed(proto: Any, **feeds: Any) -> dict[str, np.ndarray[Any, Any]]:
    """What the engine gives, which is what the network's references give."""
    built = build_network(Model(proto, "net")).imported
    weights = {v.name: built.weights[v.name] for v in built.network.parameters}
    found = build_engine(built.network, built.weights).run(feeds)
    for name, array in interpret(built.network, feeds, weights).items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6)
    return found  # type: ignore[no-any-return]


def refused(proto: Any, folder: Path | None = None) -> str:
    with pytest.raises((UnsupportedError, CheckpointError)) as e:
        build_network(Model(proto, "net", folder))
    return str(e.value)


# ------------------------------------------------------------------------------------------------- node tests

# A few modules of the node tests for every family, a third of their cases; `make conformance PART=onnx-nodes` runs all.
MODULES = (
    "add", "ai_onnx_ml.tree_ensemble", "batch_normalization", "bitcast", "bitshift", "clip", "concat", "conv", "cumsum",
    "einsum", "gather", "gemm", "gru", "if_", "loop", "lstm", "matmul", "maxpool", "nonmaxsuppression", "onehot", "pad",
    "qlinearmatmul", "reshape", "resize", "roialign", "scan", "sequenceinsert", "slice", "softmax", "topk", "where",
)  # fmt: skip
MISSED = {  # which go by the factor where ONNX Runtime and torch go by the sizes
    "test_resize_downsample_scales_linear_align_corners", "test_resize_downsample_scales_cubic_align_corners",
}  # fmt: skip


def test_nodes_of_onnx() -> None:
    chosen = onnx_nodes.cases(MODULES)[::3]
    found = onnx_nodes.results(chosen)
    assert len(found) > 50
    assert {r.name for r in found if r.why} <= MISSED, [(r.name, r.why) for r in found if r.why]
    assert sum(bool(r.host) for r in found) == 0


# ------------------------------------------------------------------------------------------- a file on the way


def mlp(path: Path | None = None) -> tuple[Any, dict[str, np.ndarray[Any, Any]]]:
    arrays = {"w": RNG.standard_normal((6, 4)).astype(np.float32), "b": RNG.standard_normal(6).astype(np.float32)}
    proto = model(
        [node("Gemm", ["x", "w", "b"], ["h"], "/block/Gemm", transB=1), node("Relu", ["h"], ["y"], "/block/Relu")],
        [value("x", FLOAT, ["batch size", 4])], [value("y", FLOAT, ["batch size", 6])],
        [tensor(n, a) for n, a in arrays.items()],
    )  # fmt: skip
    if path is not None:
        onnx.save(proto, path)
    return proto, arrays


def test_build_run_and_diff(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "net.onnx"
    _, arrays = mlp(path)
    engine = ingot.build(path)
    assert [(p.name, [str(d) for d in p.dims]) for p in engine.inputs] == [("x", ["batch_size", "4"])]
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    np.testing.assert_allclose(engine.run({"x": x})["y"], np.maximum(x @ arrays["w"].T + arrays["b"], 0), rtol=1e-5)
    assert engine.refit({"b": np.zeros(6, np.float32)}).run({"x": x})["y"].min() >= 0
    assert main(["build", str(path), "-o", str(tmp_path / "net.ingot")]) == 0
    assert main(["run", str(path), "--random", "--size", "batch_size=2"]) == 0
    assert main(["diff", str(tmp_path / "net.ingot"), str(path), "--tolerance", "1e-6"]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(("name", "weight", "scopes", "path"), [
    ("/block/Gemm", "other.weight", "['', 'third', 'linear']", "block"),
    ("node_linear", "l1.fc.weight", "['', 'l1', 'l1.fuser', 'linear']", "l1.fc"),  # a fused node has the other's scope
    ("node_linear", "val_3", "['', 'l1', 'l1.fc', 'linear']", "l1.fc"),
    ("node_linear", "val_3", "['', 'linear']", "val_3"),  # of no module: by its weight
    ("", "dense_weight", "['a\n', 'b\n', 'c']", "dense_weight"),
    ("", "dense_weight", "no list", "dense_weight"),
])  # fmt: skip
def test_calls_have_the_path_of_their_module(tmp_path: Path, name: str, weight: str, scopes: str, path: str) -> None:
    gemm = node("Gemm", ["x", weight, "bias"], ["y"], name, transB=1)
    gemm.metadata_props.add(key="pkg.torch.onnx.name_scopes", value=scopes)
    arrays = {weight: np.ones((6, 4), np.float32), "bias": np.ones(6, np.float32)}
    proto = model([gemm], [value("x", FLOAT, [2, 4])], [value("y", FLOAT, [2, 6])],
                  [tensor(n, a) for n, a in arrays.items()])  # fmt: skip
    onnx.save(proto, tmp_path / "net.onnx")
    calls = ingot.build(tmp_path / "net.onnx").session().profile({"x": np.ones((2, 4), np.float32)})
    assert {call["where"] for call in calls} == {path}


def test_what_cannot_be_imported_is_listed_at_once() -> None:
    nodes = [
        node("Nothing", ["x"], ["a"], "first"), node("Nothing", ["a"], ["b"], "second"),
        node("Flatten", ["x"], ["c"], "third", axis=7), node("Relu", ["x"], ["y"], alpha=2.0),
    ]  # fmt: skip
    said = refused(model(nodes, [value("x", FLOAT, [2, 3])], [value("y", FLOAT, None)]))
    assert "  Nothing      1  first\n      there is no such op in ingot's table\n" in said
    assert "  Flatten      1  third\n      axis 7 is out of range\n" in said
    assert "  Relu         1  y\n      the attribute alpha = 2.0 is not supported\n" in said
    assert "what to do: export the model with another opset" in said


def test_inputs_on_whose_elements_the_network_depends() -> None:
    proto = model(
        [node("Unsqueeze", ["x", "axes"], ["y"])],
        [value("x", FLOAT, [2, 3]), value("axes", INT64, [1])], [value("y", FLOAT, None)],
    )  # fmt: skip
    with pytest.raises(NeedsValues, match=r"axes must be known when the network is built, and is the input axes") as e:
        build_network(Model(proto, "net"))
    assert e.value.inputs == {"axes"}
    built = build_network(Model(proto, "net"), Given({"axes": np.array([1])}, {})).imported
    assert [v.name for v in built.network.inputs] == ["x"]


def test_integers_are_compared_with_a_threshold_between_two() -> None:
    proto = model([onnx.helper.make_node("Binarizer", ["x"], ["y"], domain="ai.onnx.ml", threshold=-0.5)],
                  [value("x", INT64, [3])], [value("y", INT64, [3])])  # fmt: skip
    proto.opset_import.add(domain="ai.onnx.ml", version=1)
    found = build_network(Model(proto, "net")).imported.network
    assert interpret(found, {"x": np.array([-1, 0, 1])}, {})["y"].tolist() == [0, 1, 1]


def test_sizes_that_are_data() -> None:
    """Expand, ConstantOfShape and Range by numbers that only a run shows."""
    proto = model(
        [node("Expand", ["x", "n"], ["e"]), node("ConstantOfShape", ["n"], ["c"]),
         node("NonZero", ["x"], ["z"]), node("Shape", ["z"], ["s"])],
        [value("x", FLOAT, [1]), value("n", INT64, [1])],
        [value(name, kind, None) for name, kind in (("e", FLOAT), ("c", FLOAT), ("s", INT64))],
    )  # fmt: skip
    found = computed(proto, x=np.array([2.0], np.float32), n=np.array([3]))
    assert [found[n].tolist() for n in ("e", "c", "s")] == [[2, 2, 2], [0, 0, 0], [1, 1]]


def test_shape_arithmetic_stays_symbolic() -> None:
    """[N, T, 6] → [N, T, 2, 3] by a shape computed of the operand's own."""
    nodes = [
        node("Shape", ["x"], ["s"]), node("Slice", ["s", "zero", "two"], ["head"]),
        node("Concat", ["head", "rest"], ["shape"], axis=0), node("Reshape", ["x", "shape"], ["y"]),
    ]  # fmt: skip
    given = [tensor("zero", np.array([0])), tensor("two", np.array([2])), tensor("rest", np.array([2, -1]))]
    proto = model(nodes, [value("x", FLOAT, ["N", "T", 6])], [value("y", FLOAT, None)], given)
    built = build_network(Model(proto, "net")).imported
    assert str(built.network.outputs["y"].shape) == "(N, T, 2, 3)"
    assert {n.op.name for n in built.network.nodes} == {"reshape"}


def test_broadcasting_as_it_was_said_before_opset_7() -> None:
    graph = helper.make_graph(
        [node("Add", ["x", "b"], ["s"], axis=1, broadcast=1), node("PRelu", ["s", "b"], ["y"])], "net",
        [value("x", FLOAT, [2, 3, 4]), value("b", FLOAT, [3])], [value("y", FLOAT, [2, 3, 4])],
    )  # fmt: skip
    x, b = RNG.standard_normal((2, 3, 4)).astype(np.float32), np.array([1, -2, 3], np.float32)
    total = x + b[:, None]
    found = computed(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 6)]), x=x, b=b)["y"]
    np.testing.assert_allclose(found, np.where(total < 0, total * b[:, None], total), rtol=1e-6)
    assert "the attribute axis = 1 is not supported" in refused(
        helper.make_model(graph, opset_imports=[helper.make_opsetid("", 7)])
    )


def test_a_slice_of_a_table_bounds_the_dim() -> None:
    """As models read the first T of their positions."""
    rows = RNG.standard_normal((6, 2)).astype(np.float32)
    nodes = [
        node("Shape", ["x"], ["s"], end=1), node("Slice", ["rows", "zero", "s", "zero"], ["first"]),
        node("Add", ["x", "first"], ["y"]),
    ]  # fmt: skip
    given = [tensor("rows", rows), tensor("zero", np.array([0]))]
    proto = model(nodes, [value("x", FLOAT, ["T", 2])], [value("y", FLOAT, None)], given)
    x = np.ones((4, 2), np.float32)
    assert np.array_equal(computed(proto, x=x)["y"], x + rows[:4])
    built = build_network(Model(proto, "net")).imported
    with pytest.raises(InputError, match="T"):
        build_engine(built.network, built.weights).run({"x": np.ones((7, 2), np.float32)})


def test_sizes_divided_and_resized_to_dims() -> None:
    """[N, C, H, W] at half its size and back, by sizes that the model computes."""
    nodes = [
        node("Shape", ["x"], ["s"]), node("Div", ["s", "halves"], ["h"]),
        node("Resize", ["x", "", "", "h"], ["small"], mode="linear"),
        node("Resize", ["small", "", "", "s"], ["y"], mode="linear"),
    ]  # fmt: skip
    given = [tensor("halves", np.array([1, 1, 2, 2]))]
    proto = model(nodes, [value("x", FLOAT, ["N", 3, "H", "W"])], [value("y", FLOAT, None)], given)
    assert computed(proto, x=RNG.standard_normal((2, 3, 8, 6)).astype(np.float32))["y"].shape == (2, 3, 8, 6)


# ------------------------------------------------------------------------------------- functions and control flow


def test_functions_are_inlined() -> None:
    scaled = helper.make_function(
        "own", "Scaled", ["x"], ["y"],
        [helper.make_node("Constant", [], ["k"]), node("Mul", ["x", "k"], ["y"])],
        [helper.make_opsetid("", 21)], ["by"],
    )  # fmt: skip
    reference = scaled.node[0].attribute.add()
    reference.name, reference.ref_attr_name, reference.type = "value_float", "by", onnx.AttributeProto.FLOAT
    proto = model(
        [node("Scaled", ["x"], ["a"], domain="own", by=3.0), node("Scaled", ["a"], ["y"], domain="own", by=2.0)],
        [value("x", FLOAT, [2])], [value("y", FLOAT, [2])], functions=[scaled],
        imports=[helper.make_opsetid("own", 1)],
    )  # fmt: skip
    assert computed(proto, x=np.array([1, -2], np.float32))["y"].tolist() == [6, -12]
    scaled.node.add().CopyFrom(node("Scaled", ["y"], ["again"], domain="own"))
    assert "the function 'Scaled' calls itself" in refused(helper.make_model(
        proto.graph, functions=[scaled], opset_imports=proto.opset_import))  # fmt: skip


def test_if_and_loops_capture_what_is_around_them() -> None:
    """A choice within a loop, both of which read a value from outside."""
    then = helper.make_graph([node("Add", ["now", "w"], ["t"])], "then", [], [value("t", FLOAT, [2])])
    other = helper.make_graph([node("Sub", ["now", "w"], ["e"])], "else", [], [value("e", FLOAT, [2])])
    body = helper.make_graph(
        [node("Cast", ["i"], ["odd"], to=BOOL), node("If", ["odd"], ["next"], then_branch=then, else_branch=other),
         node("Identity", ["go"], ["still"]), node("ReduceSum", ["next"], ["kept"], keepdims=0)],
        "body", [value("i", INT64, []), value("go", BOOL, []), value("now", FLOAT, [2])],
        [value("still", BOOL, []), value("next", FLOAT, [2]), value("kept", FLOAT, [])],
    )  # fmt: skip
    proto = model(
        [node("Neg", ["x"], ["w"]), node("Loop", ["n", "", "x"], ["y", "all"], body=body)],
        [value("x", FLOAT, [2]), value("n", INT64, [])], [value("y", FLOAT, [2]), value("all", FLOAT, None)],
    )  # fmt: skip
    x = np.array([1, 3], np.float32)
    found = computed(proto, x=x, n=np.array(3))
    assert found["all"].tolist() == [8, 4, 0] and found["y"].tolist() == [0, 0]
    assert computed(proto, x=x, n=np.array(0))["all"].shape == (0,)


def test_a_loop_that_its_condition_ends() -> None:
    body = helper.make_graph(
        [node("Add", ["now", "now"], ["next"]), node("Less", ["next", "most"], ["still"])],
        "body", [value("i", INT64, []), value("go", BOOL, []), value("now", FLOAT, [])],
        [value("still", BOOL, []), value("next", FLOAT, [])],
    )  # fmt: skip
    proto = model([node("Loop", ["", "go", "x"], ["y"], body=body)],
                  [value("x", FLOAT, []), value("go", BOOL, []), value("most", FLOAT, [])],
                  [value("y", FLOAT, [])])  # fmt: skip
    feeds = {"x": np.array(1, np.float32), "most": np.array(100, np.float32)}
    assert computed(proto, go=np.array(True), **feeds)["y"] == 128
    assert computed(proto, go=np.array(False), **feeds)["y"] == 1


@pytest.mark.parametrize(("op", "gates", "attributes", "kernels"), [
    ("LSTM", 4, {}, {"matmul_packed", "lstm", "copy"}),
    ("GRU", 3, {"linear_before_reset": 1}, {"matmul_packed", "gru", "copy"}),
    ("GRU", 3, {}, {"matmul_packed", "gru", "copy"}),
    ("RNN", 1, {}, {"matmul_packed", "rnn", "copy", "concat"}),
])  # fmt: skip
def test_weights_of_recurrent_layers_are_packed_when_the_engine_is_built(
    op: str, gates: int, attributes: dict[str, int], kernels: set[str]
) -> None:
    """Both directions of a tensor, their gates in another order: none of it is left to a run, in a body neither."""
    size, hidden = 5, 6
    arrays = {"w": (2, gates * hidden, size), "r": (2, gates * hidden, hidden), "b": (2, 2 * gates * hidden)}
    given = [tensor(name, RNG.standard_normal(shape).astype(np.float32)) for name, shape in arrays.items()]
    nodes = [node(op, ["x", "w", "r", "b"], ["y"], hidden_size=hidden, direction="bidirectional", **attributes)]
    proto = model(nodes, [value("x", FLOAT, ["T", "N", size])], [value("y", FLOAT, None)], given)
    computed(proto, x=RNG.standard_normal((4, 3, size)).astype(np.float32))
    built = build_network(Model(proto, "net")).imported
    engine = build_engine(built.network, built.weights)
    (program,) = engine.header["programs"].values()
    counts, host = kernel_counts(program)
    assert not host and set(counts) <= {*kernels, "concat", "scan"} and counts["matmul_packed"] >= 1, counts


# ---------------------------------------------------------------------------------------------------- bad files


def external(location: str, **keys: str) -> Any:
    made = onnx.TensorProto(name="w", data_type=FLOAT, dims=[4], data_location=onnx.TensorProto.EXTERNAL)
    for key, text in {"location": location, **keys}.items():
        entry = made.external_data.add()
        entry.key, entry.value = key, text
    return model([node("Add", ["x", "w"], ["y"])], [value("x", FLOAT, [4])], [value("y", FLOAT, [4])], [made])


def test_external_data(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    data = RNG.standard_normal(9).astype(np.float32)
    data.tofile(tmp_path / "sub" / "w.bin")
    onnx.save(external("sub/w.bin", offset="12", length="16"), tmp_path / "net.onnx")
    x = np.zeros(4, np.float32)
    assert np.array_equal(ingot.build(tmp_path / "net.onnx").run({"x": x})["y"], data[3:7])


@pytest.mark.parametrize(
    ("keys", "why"),
    [
        ({"location": "/etc/passwd"}, "no path inside"), ({"location": "../w"}, "no path inside"),
        ({"location": "a/../../w"}, "no path inside"), ({"location": "\\\\host\\share"}, "no path inside"),
        ({"location": "w\0"}, "no path inside"), ({"location": ""}, "no path inside"),
        ({"location": "*/_ORT_MEM_ADDR_/*"}, "no path inside"),
        ({"location": "link"}, "not followed"),
        ({"location": "down/w"}, "not followed"), ({"location": "twice"}, "no plain file of its own"),
        ({"location": "w", "offset": "-1"}, "no number of bytes"),
        ({"location": "w", "length": "9" * 18}, "its length"),
        ({"location": "w", "offset": "4"}, "ends at byte 20 of a file that has 16"),
        ({"location": "w", "address": "1"}, "unknown or given twice"), ({"location": "folder"}, "no plain file"),
    ],
)  # fmt: skip
def test_external_data_that_leads_elsewhere(tmp_path: Path, keys: dict[str, str], why: str) -> None:
    np.zeros(4, np.float32).tofile(tmp_path / "w")
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to("w")
    (tmp_path / "down").symlink_to(".")
    (tmp_path / "other").write_bytes(bytes(16))
    os.link(tmp_path / "other", tmp_path / "twice")
    loaded = Model(external(**keys), "net", tmp_path)
    with pytest.raises(CheckpointError, match=why):
        loaded.weights["w"]


def test_models_that_contradict_themselves(tmp_path: Path) -> None:
    x, y = value("x", FLOAT, [4]), value("y", FLOAT, [4])
    assert "'a' is read, and nothing before makes it" in refused(model(
        [node("Neg", ["a"], ["y"]), node("Neg", ["y"], ["a"])], [x], [y]))  # fmt: skip
    assert "'y' is made twice" in refused(model([node("Neg", ["x"], ["y"])] * 2, [x], [y]))
    assert "two inputs are called 'x'" in refused(model([node("Neg", ["x"], ["y"])], [x, x], [y]))
    assert "and the file says int64" in refused(model([node("Neg", ["x"], ["y"])], [x], [value("y", INT64, [4])]))
    short = tensor("w", np.zeros(4, np.float32))
    short.dims[0] = 5
    assert "must have 20 bytes, and has 16" in refused(model([node("Add", ["x", "w"], ["y"])], [x], [y], [short]))
    short.dims[0] = -4
    assert "impossible shape" in refused(model([node("Add", ["x", "w"], ["y"])], [x], [y], [short]))
    raw = model([node("Neg", ["x"], ["yes"])], [x], [value("yes", FLOAT, [4])]).SerializeToString()
    broken = onnx.ModelProto()
    broken.ParseFromString(raw.replace(b"yes", b"y\xffs"))
    assert "is not UTF-8" in refused(broken)
    proto = model([node("Neg", ["x"], ["y"])], [x], [y])
    proto.opset_import[0].version = 2**40
    assert "1099511627776 is no version of the opset 'ai.onnx'" in refused(proto)
    (tmp_path / "net.onnx").write_bytes(b"\xff" * 40)
    with pytest.raises(CheckpointError, match="is no ONNX model"):
        ingot.build(tmp_path / "net.onnx")
    with pytest.raises(CheckpointError, match="is not a regular file"):
        ingot.build(_special(tmp_path))


def _special(folder: Path) -> Path:
    os.mkfifo(folder / "fifo.onnx")
    return folder / "fifo.onnx"


@pytest.mark.parametrize("kind", ["FLOAT8E4M3FN", "FLOAT8E5M2FNUZ", "FLOAT4E2M1", "INT4", "UINT2"])
def test_elements_that_others_carry(kind: str) -> None:
    """There and back through types that no program has, as onnx's own conversion of them."""
    code = getattr(onnx.TensorProto, kind)
    nodes = [
        node("Cast", ["x"], ["n"], to=code), node("Reshape", ["n", "s"], ["m"]), node("Cast", ["m"], ["y"], to=FLOAT),
    ]  # fmt: skip
    proto = model(nodes, [value("x", FLOAT, [12])], [value("y", FLOAT, [3, 4])], [tensor("s", np.array([3, 4]))])
    whole = kind.endswith(("INT4", "INT2"))
    low = 0.0 if kind.startswith("U") else -2.0
    x = np.linspace(low, 2 if kind != "UINT2" else 3, 12).astype(np.float32)
    x = np.trunc(x) if whole else x
    wanted = x.astype(helper.tensor_dtype_to_np_dtype(code)).astype(np.float32)
    assert np.array_equal(computed(proto, x=x)["y"], wanted.reshape(3, 4))


def test_quantised_to_what_is_not_narrow() -> None:
    """A zero point says the type; one of 32 bits has no table of its numbers."""
    nodes = [node("QuantizeLinear", ["x", "s", "z"], ["y"])]
    given = [tensor("s", np.float32(1)), tensor("z", np.float32(0))]
    said = refused(model(nodes, [value("x", FLOAT, [3])], [value("y", FLOAT, [3])], given))
    assert "float32 is no type that a tensor is quantised to" in said


def test_narrow_tensors_at_the_border() -> None:
    """A weight of 4 bits, and an output of 8: the backend gives the type that the model says."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ingot import onnx_backend as backend
    four, eight = onnx.TensorProto.INT4, onnx.TensorProto.FLOAT8E5M2
    weight = RNG.integers(-8, 8, (3, 4))
    stored = helper.make_tensor("w", four, [3, 4], weight.reshape(-1).tolist())
    proto = model(
        [node("DequantizeLinear", ["w", "s"], ["d"], axis=0), node("Add", ["x", "d"], ["a"]),
         node("Cast", ["a"], ["y"], to=eight)],
        [value("x", FLOAT, [3, 4])], [value("y", eight, [3, 4])],
        [stored, tensor("s", np.array([1, 2, 0.5], np.float32))],
    )  # fmt: skip
    x = RNG.standard_normal((3, 4)).astype(np.float32)
    wanted = (x + weight * np.array([[1], [2], [0.5]], np.float32)).astype(helper.tensor_dtype_to_np_dtype(eight))
    (found,) = backend.run_model(proto, [x])
    assert found.dtype == wanted.dtype and np.array_equal(found.view(np.uint8), wanted.view(np.uint8))
    note = build_network(Model(proto, "net")).imported.notes
    assert note == ["output y is float8_e5m2, given as uint8"]


def test_folding_is_bounded() -> None:
    """10¹² numbers are left to the run, which has a limit of its own."""
    given = [tensor("n", np.array([10**6, 10**6])), tensor("one", np.ones((1, 1), np.float32))]
    nodes = [
        node("Expand", ["one", "n"], ["big"]), node("ReduceMax", ["big"], ["top"]), node("Add", ["x", "top"], ["y"]),
    ]  # fmt: skip
    built = build_network(Model(model(nodes, [value("x", FLOAT, [1, 1])], [value("y", FLOAT, [1, 1])], given), "net"))
    assert all(v.array is None or v.array.size <= 4 for v in built.imported.network.values.values())


def test_functions_cannot_grow_without_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each calls the one before twice."""
    monkeypatch.setattr("ingot.frontends.onnx.importer.MAX_NODES", 2000)
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    made = [helper.make_function("own", "f0", ["x"], ["y"], [node("Neg", ["x"], ["y"])], imports)]
    for i in range(1, 40):
        calls = [node(f"f{i - 1}", ["x"], ["t"], domain="own"), node(f"f{i - 1}", ["t"], ["y"], domain="own")]
        made.append(helper.make_function("own", f"f{i}", ["x"], ["y"], calls, imports))
    proto = model([node("f39", ["x"], ["y"], domain="own")], [value("x", FLOAT, [1])], [value("y", FLOAT, [1])],
                  functions=made, imports=imports[1:])  # fmt: skip
    assert "nodes, with the functions it calls" in refused(proto)


# -------------------------------------------------------------------------------------------------- the backend


def test_backend() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ingot import onnx_backend as backend
    proto, arrays = mlp()
    x = RNG.standard_normal((2, 4)).astype(np.float32)
    wanted = np.maximum(x @ arrays["w"].T + arrays["b"], 0)
    np.testing.assert_allclose(backend.run_model(proto, [x])[0], wanted, rtol=1e-5)
    rep = backend.prepare(proto)
    np.testing.assert_allclose(rep.run({"x": x})[0], wanted, rtol=1e-5)
    assert backend.run_node(node("Add", ["a", "b"], ["c"]), [x, x])[0].tolist() == (x + x).tolist()
    assert backend.supports_device("CPU") and not backend.supports_device("CUDA")
    assert backend.is_compatible(proto)
    with pytest.raises(UserError, match="runs on CPU, not on 'CUDA:0'"):
        backend.prepare(proto, "CUDA:0")
    axes = model([node("ReduceSum", ["x", "axes"], ["y"])], [value("x", FLOAT, [2, 4]), value("axes", INT64, [1])],
                 [value("y", FLOAT, None)])  # fmt: skip
    rep = backend.prepare(axes)
    for axis in (0, 1, 0):
        assert np.allclose(rep.run([x, np.array([axis])])[0], x.sum(axis, keepdims=True), atol=1e-6)
