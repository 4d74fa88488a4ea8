"""ONNX files are compared with ONNX Runtime: while they are built, and by `ingot diff`."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

import ingot  # noqa: E402
from ingot import _lazy  # noqa: E402
from ingot.__main__ import main  # noqa: E402
from ingot.builder.diff import diff_source  # noqa: E402
from ingot.errors import InputError, MismatchError, UserError  # noqa: E402
from ingot.frontends.onnx.table import TABLE  # noqa: E402

helper, TYPES = onnx.helper, onnx.TensorProto
value, node = helper.make_tensor_value_info, helper.make_node
RNG = np.random.default_rng(0)


def file(
    path: Path, nodes: list[Any], x: Any, y: str, arrays: dict[str, Any], dtype: int = TYPES.FLOAT, opset: int = 21
) -> Path:
    """A model of one input and one output; arrays become initializers."""
    tensors = [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "net", [value("x", dtype, x)], [value(y, dtype, None)], tensors)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10), path)
    return path


def mlp(path: Path, dtype: Any = np.float32, **more: Any) -> Path:
    arrays = {"w": RNG.standard_normal((6, 40)).astype(dtype), "b": RNG.standard_normal(6).astype(dtype)}
    nodes = [
        node("Gemm", ["x", "w", "b"], ["h"], "/layers.0/Gemm", transB=1), node("Relu", ["h"], ["r"], "/layers.0/Relu"),
        node("Softmax", ["r"], ["y"], "/layers.1/Softmax"),
    ]  # fmt: skip
    kind = TYPES.FLOAT if dtype is np.float32 else TYPES.FLOAT16
    return file(path, nodes, ["batch size", 40], "y", arrays, kind, **more)


def test_a_build_compares_at_two_sizes(tmp_path: Path) -> None:
    engine = ingot.build(mlp(tmp_path / "net.onnx"))
    found = engine.report.comparison
    assert found.source.startswith("ONNX Runtime ") and found.inputs == "seeded" and found.output == "y"
    assert 0 < found.largest < 1e-6 and 0 < found.absolute < 1e-6  # measured: 1.2e-07 of 0.98
    assert engine.report.source.startswith("against ONNX Runtime")
    x = RNG.standard_normal((3, 40)).astype(np.float32)
    given = ingot.build(tmp_path / "net.onnx", report={"x": x}, precision="bfloat16")
    assert given.report.comparison.inputs == "given and seeded" and given.report.outputs[0].relative > 1e-4
    json.dumps(given.report.json())


def test_sizes_that_an_export_wrote_into_the_graph(tmp_path: Path) -> None:
    """As torch's older exporter writes the length of its example into an encoder's attention."""
    nodes = [node("Reshape", ["x", "shape"], ["y"])]
    path = file(tmp_path / "net.onnx", nodes, ["T", "N", 6], "y", {"shape": np.asarray([9, -1, 3])})
    with pytest.raises(InputError, match=r"at no sizes .* as \[9, .* stay free, .* \(report=False, --no-report\)$"):
        ingot.build(path)
    x = RNG.standard_normal((9, 2, 6)).astype(np.float32)
    assert ingot.build(path, report={"x": x}).run({"x": x})["y"].shape == (9, 4, 3)


def test_half_precision_is_compared_as_such(tmp_path: Path) -> None:
    engine = ingot.build(mlp(tmp_path / "net.onnx", np.float16))
    assert 1e-5 < engine.report.comparison.largest < 0.01  # measured: 6e-04, float32 against float16


@pytest.mark.parametrize("op", ["Gemm", "Softmax"])
def test_a_difference_names_the_first_node(op: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mlp(tmp_path / "net.onnx")
    entries = TABLE[("", op)]
    wrong = [dataclasses.replace(e, function=_off(e.function)) for e in entries]
    monkeypatch.setitem(TABLE, ("", op), wrong)
    first = rf"output y is off .* node that differs is \w = {op} in node /layers\.\d/{op}"
    with pytest.raises(MismatchError, match=first):
        ingot.build(path)


def _off(function: Any) -> Any:
    def call(*args: Any, **how: Any) -> Any:
        return function(*args, **how) * 1.01

    return call


def test_steps_of_quantisation_may_differ_by_one(tmp_path: Path) -> None:
    """Behind QuantizeLinear a last bit becomes a step: not beyond the tolerance for such networks."""
    arrays = {"s": np.float32(0.02), "z": np.uint8(128), "w": RNG.standard_normal((40, 8)).astype(np.float32)}
    nodes = [node("MatMul", ["x", "w"], ["h"]), node("QuantizeLinear", ["h", "s", "z"], ["q"]),
             node("DequantizeLinear", ["q", "s", "z"], ["y"])]  # fmt: skip
    engine = ingot.build(file(tmp_path / "q.onnx", nodes, [64, 40], "y", arrays))
    assert engine.report.comparison.largest < 0.02


def test_large_tensors_are_handed_over(tmp_path: Path) -> None:
    """Those are not in what was parsed: initializers, attributes, and 16-bit floats, which NumPy has no name for."""
    w, v = (RNG.standard_normal((256, 256)).astype(np.float32) for _ in range(2))
    half = onnx.helper.make_tensor("h", TYPES.BFLOAT16, (256, 256), np.zeros(256 * 512, np.uint8).tobytes(), raw=True)
    nodes = [node("Constant", [], ["v"], value=onnx.numpy_helper.from_array(v)), node("MatMul", ["x", "w"], ["a"]),
             node("Constant", [], ["h"], value=half), node("Cast", ["h"], ["z"], to=TYPES.FLOAT),
             node("Add", ["v", "z"], ["u"]), node("MatMul", ["a", "u"], ["y"])]  # fmt: skip
    engine = ingot.build(file(tmp_path / "net.onnx", nodes, [4, 256], "y", {"w": w}))
    found = engine.report.comparison
    assert found.source.startswith("ONNX Runtime") and not found.missing and found.largest < 1e-5, str(found)


def test_outputs_that_last_bits_move_as_far(tmp_path: Path) -> None:
    """A variance of nearly constant rows, as E[x²] - E[x]²: rounding alone decides it. A wrong op stays a mismatch."""
    one = {"b": np.full(2048, 100, np.float32), "s": np.full(2048, 0.1, np.float32)}
    nodes = [node("Mul", ["x", "s"], ["t"]), node("Add", ["t", "b"], ["c"]), node("Mul", ["c", "c"], ["q"]),
             node("ReduceMean", ["q"], ["m"], axes=[1]), node("ReduceMean", ["c"], ["n"], axes=[1]),
             node("Mul", ["n", "n"], ["o"]), node("Sub", ["m", "o"], ["y"])]  # fmt: skip
    found = ingot.build(file(tmp_path / "net.onnx", nodes, [4, 2048], "y", one, opset=13)).report.comparison
    assert found.largest > 1e-4 and found.sensitive and "last bits" in str(found), str(found)


def test_a_loop_that_is_written_out_is_in_the_summary(tmp_path: Path) -> None:
    """What it carries grows from round to round."""
    body = helper.make_graph(
        [node("Concat", ["v", "v"], ["w"], axis=0), node("Identity", ["c"], ["d"])], "body",
        [value("i", TYPES.INT64, []), value("c", TYPES.BOOL, []), value("v", TYPES.FLOAT, None)],
        [value("d", TYPES.BOOL, []), value("w", TYPES.FLOAT, None)],
    )  # fmt: skip
    nodes = [node("Loop", ["n", "", "x"], ["y"], "/grow", body=body)]
    engine = ingot.build(file(tmp_path / "net.onnx", nodes, [2, 3], "y", {"n": np.int64(3)}))
    (remark,) = engine.summary.remarks
    assert (remark.kind, remark.op, remark.where) == ("unrolled loop", "Loop", ("/grow",))
    assert "its 3 rounds are written out" in remark.why and engine.report.comparison.largest == 0


def test_sizes_at_which_a_model_runs(tmp_path: Path) -> None:
    """A convolution over 40 samples: 4 and 8 are too few."""
    nodes = [node("Conv", ["x", "w"], ["y"])]
    arrays = {"w": RNG.standard_normal((2, 1, 40)).astype(np.float32)}
    found = ingot.build(file(tmp_path / "net.onnx", nodes, ["n", 1, "t"], "y", arrays)).report.comparison
    assert not found.missing and found.largest < 1e-5


def test_external_data_is_handed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime opens no file: it gets the elements from us."""
    path = mlp(tmp_path / "net.onnx")
    proto = onnx.load(path)
    onnx.save(proto, path, save_as_external_data=True, location="weights.bin", size_threshold=0)
    monkeypatch.chdir("/")
    assert ingot.build(path).report.comparison.largest < 1e-6


def test_what_is_not_compared_says_why(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = mlp(tmp_path / "net.onnx")
    own = file(tmp_path / "own.onnx", [node("Gelu", ["x"], ["y"])], [2, 3], "y", {}, TYPES.BFLOAT16)
    assert "ONNX Runtime" in ingot.build(own).report.comparison.missing

    def missing(module: str, needed_for: str, install: str) -> Any:
        if module != "onnxruntime":
            return optional(module, needed_for, install)
        raise UserError(f"{needed_for} needs the package {module!r}: pip install {install!r}")

    optional = _lazy.optional
    monkeypatch.setattr(_lazy, "optional", missing)
    assert ingot.build(path).report.source == (
        "not compared with its source: comparing with the source needs the package 'onnxruntime': "
        "pip install 'ingot[onnxruntime]'"
    )


def test_diff(tmp_path: Path, capsys: Any) -> None:
    path, engine = mlp(tmp_path / "net.onnx"), tmp_path / "net.ingot"
    assert main(["build", str(path), "-o", str(engine), "--precision", "bfloat16", "--no-report"]) == 0
    capsys.readouterr()
    assert main(["diff", str(engine), str(path), "--json", "--size", "batch_size=3"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["against"] == "ONNX Runtime" and [p["name"] for p in found["outputs"]] == ["y"]
    assert 1e-4 < found["outputs"][0]["relative"] < 0.05 and found["outputs"][0]["shape"] == [3, 6]
    assert [p["name"] for p in found["layers"]] == ["layers.0", "layers.1"]
    assert main(["diff", str(engine), str(path), "--json", "--values"]) == 0
    assert {"relu", "softmax"} <= {p["op"] for p in json.loads(capsys.readouterr().out)["layers"]}
    assert main(["diff", str(path), str(path), "--tolerance", "1e-6"]) == 0
    assert "as ONNX Runtime runs it" in capsys.readouterr().out


def test_diff_of_a_calibrated_engine(tmp_path: Path, capsys: Any) -> None:
    """Its batch norm is part of the convolution, which ONNX Runtime's is not: the source is built in float."""
    rng, path, data = np.random.default_rng(0), tmp_path / "net.onnx", tmp_path / "calib.npz"
    arrays = {"stem.weight": rng.standard_normal((8, 4, 3, 3)), **{name: np.full(8, 2.0) for name in "gbmv"}}
    graph = helper.make_graph(
        [node("Conv", ["x", "stem.weight"], ["c"]), node("BatchNormalization", ["c", *"gbmv"], ["n"]),
         node("Relu", ["n"], ["y"])], "net",
        [value("x", TYPES.FLOAT, ["N", 4, 8, 8])], [value("y", TYPES.FLOAT, ["N", 8, 6, 6])],
        [onnx.numpy_helper.from_array(a.astype(np.float32), name) for name, a in arrays.items()],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    np.savez(data, x=rng.standard_normal((32, 4, 8, 8)).astype(np.float32))
    words = ["build", str(path), "-o", str(tmp_path / "q.ingot"), "--weights", "int8", "--activations", "int8"]
    assert main([*words, "--data", str(data)]) == 0
    capsys.readouterr()
    assert main(["diff", str(tmp_path / "q.ingot"), str(path), "--json"]) == 0
    told = capsys.readouterr()
    assert "the source is built in float32" in told.err
    assert 1e-4 < json.loads(told.out)["outputs"][0]["relative"] < 0.05
    with pytest.raises(UserError, match="compare it with the engine in float"):
        diff_source(ingot.load(tmp_path / "q.ingot"), path, {"x": np.ones((1, 4, 8, 8), np.float32)})


def test_a_graph_that_rounds_is_said_to(tmp_path: Path, capsys: Any) -> None:
    graph = helper.make_graph(
        [node("QuantizeLinear", ["x", "s", "z"], ["q"]),
         node("DequantizeLinear", ["q", "s", "z"], ["y"])], "g",
        [value("x", TYPES.FLOAT, [2, 4])], [value("y", TYPES.FLOAT, [2, 4])],
        [onnx.numpy_helper.from_array(np.array(a), name) for name, a in (("s", np.float32(0.1)), ("z", np.int8(0)))],
    )  # fmt: skip
    path = tmp_path / "qdq.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    assert "the source rounds to integers itself" in ingot.build(path).report.note
    assert main(["inspect", str(path)]) == 0
    told = capsys.readouterr().out
    assert "a source, of which `ingot build` makes this" in told and "quantised in the source: 2 ops" in told


def test_a_loop_without_rounds_has_no_size_to_compare(tmp_path: Path) -> None:
    """What its rounds would have given is [0, n] here and [0, 0] in ONNX Runtime; with rounds both agree."""
    body = helper.make_graph(
        [node("Identity", ["go"], ["on"]), node("Add", ["s", "x"], ["t"]), node("Identity", ["t"], ["each"])], "body",
        [value("i", TYPES.INT64, []), value("go", TYPES.BOOL, []), value("s", TYPES.FLOAT, ["n"])],
        [value("on", TYPES.BOOL, []), value("t", TYPES.FLOAT, ["n"]), value("each", TYPES.FLOAT, ["n"])],
    )  # fmt: skip
    graph = helper.make_graph(
        [node("Loop", ["m", "", "x"], ["last", "y"], body=body)], "net",
        [value("m", TYPES.INT64, []), value("x", TYPES.FLOAT, ["n"])], [value("y", TYPES.FLOAT, None)],
    )  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), tmp_path / "l.onnx")
    rounds = {"m": np.array(2), "x": np.ones(3, np.float32)}
    engine = ingot.build(tmp_path / "l.onnx", report=rounds)
    assert engine.report.comparison.largest == 0.0
    assert engine.run(rounds)["y"].tolist() == [[2.0] * 3, [3.0] * 3]
    assert engine.run({**rounds, "m": np.array(0)})["y"].shape == (0, 3)


def test_windows_that_do_not_fit_into_small_images(tmp_path: Path) -> None:
    """ONNX Runtime says that a window of 3 fits once into 2 elements: such sizes compare nothing."""
    pool = {"kernel_shape": [3, 3], "strides": [2, 2]}
    nodes = [node("MaxPool", ["x"], ["a"], **pool), node("MaxPool", ["a"], ["b"], **pool), node("Relu", ["b"], ["y"])]
    engine = ingot.build(file(tmp_path / "net.onnx", nodes, ["N", 3, "H", "W"], "y", {}))
    assert engine.report.comparison.largest < 1e-6 and not engine.report.comparison.missing


def test_a_batch_that_has_to_be_1(tmp_path: Path) -> None:
    arrays = {"w": RNG.standard_normal((1, 6, 3), np.float32), "r": RNG.standard_normal((1, 6, 2), np.float32),
              "h": RNG.standard_normal((1, 1, 2), np.float32)}  # fmt: skip
    nodes = [node("GRU", ["x", "w", "r", "", "", "h"], ["y"], hidden_size=2)]
    engine = ingot.build(file(tmp_path / "net.onnx", nodes, ["T", "N", 3], "y", arrays))
    assert engine.report.comparison.largest < 1e-5


def test_likelihoods_of_nothing(tmp_path: Path) -> None:
    """ONNX Runtime's sigmoid is near by absolute distance alone."""
    nodes = [node("Sub", ["x", "far"], ["a"]), node("Sigmoid", ["a"], ["b"]), node("Transpose", ["b"], ["y"])]
    engine = ingot.build(file(tmp_path / "net.onnx", nodes, ["N", 40], "y", {"far": np.float32(14)}))
    assert not engine.report.comparison.missing


def test_a_size_of_1_that_a_squeeze_keeps(tmp_path: Path) -> None:
    nodes = [node("Squeeze", ["x"], ["a"]), node("Relu", ["a"], ["y"])]
    path = file(tmp_path / "net.onnx", nodes, [1, "N", 3], "y", {})
    engine = ingot.build(path, report={"x": np.ones((1, 1, 3), np.float32)})
    assert not engine.report.comparison.missing
    assert any("names no axes" in line for line in engine.log)


def test_half_precision_between_floats_is_compared_as_such(tmp_path: Path) -> None:
    """As converters leave it that keep the types of inputs and outputs, with weights as constants."""
    weight = onnx.numpy_helper.from_array(RNG.standard_normal((40, 6)).astype(np.float16), "w")
    nodes = [node("Constant", [], ["w"], value=weight), node("Cast", ["x"], ["a"], to=TYPES.FLOAT16),
             node("MatMul", ["a", "w"], ["b"]), node("Cast", ["b"], ["y"], to=TYPES.FLOAT)]  # fmt: skip
    found = ingot.build(file(tmp_path / "net.onnx", nodes, ["N", 40], "y", {})).report.comparison
    assert 1e-4 < found.largest < 0.01
