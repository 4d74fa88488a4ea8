"""The bytes of an ONNX file before protobuf parses them: large tensors are cut out, wherever they stand, and come back
as they were."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from onnx.reference import ReferenceEvaluator  # noqa: E402

import ingot  # noqa: E402
from ingot.errors import CheckpointError  # noqa: E402
from ingot.frontends.onnx import build_network, open_model, wire  # noqa: E402

helper, FLOAT = onnx.helper, onnx.TensorProto.FLOAT
RNG = np.random.default_rng(0)


def tensor(name: str, *sizes: int) -> Any:
    return onnx.numpy_helper.from_array(RNG.standard_normal(sizes).astype(np.float32), name)


def model() -> Any:
    """Large and small tensors as weights, in a constant, in a branch, and in a function."""
    info = helper.make_tensor_value_info
    inner = helper.make_graph(
        [helper.make_node("Add", ["x", "deep"], ["y"])], "then", [], [info("y", FLOAT, [200, 100])],
        [tensor("deep", 200, 100)],
    )  # fmt: skip
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["y"])], "else", [], [info("y", FLOAT, [200, 100])])
    own = helper.make_function(
        "own", "f", ["a"], ["b"],
        [helper.make_node("Constant", [], ["c"], value=tensor("", 200, 100)),
         helper.make_node("Mul", ["a", "c"], ["b"])],
        [helper.make_opsetid("", 21)],
    )  # fmt: skip
    nodes = [
        helper.make_node("Constant", [], ["k"], value=tensor("", 200, 100)),
        helper.make_node("If", ["c"], ["h"], then_branch=inner, else_branch=other),
        helper.make_node("f", ["h"], ["g"], domain="own"),
        helper.make_node("Sum", ["g", "k", "large", "small"], ["y"]),
    ]
    graph = helper.make_graph(
        nodes, "net", [info("x", FLOAT, [200, 100]), info("c", onnx.TensorProto.BOOL, [])],
        [info("y", FLOAT, [200, 100])], [tensor("large", 200, 100), tensor("small", 1, 100)],
    )  # fmt: skip
    imports = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, functions=[own], opset_imports=imports)


def tensors(message: Any) -> list[Any]:
    """All tensors of a message, in order."""
    if message.DESCRIPTOR.name == "TensorProto":
        return [message]
    found = []
    for field, value in message.ListFields():
        if field.message_type is not None:
            for one in [value] if hasattr(value, "DESCRIPTOR") else value:
                found += tensors(one)
    return found


def test_large_tensors_are_cut_out_and_come_back(tmp_path: Path) -> None:
    proto = model()
    path = tmp_path / "net.onnx"
    onnx.save(proto, path)
    rest, inside = wire.read(path, onnx.ModelProto)
    assert len(rest) < wire.LARGE < 200 * 100 * 4
    parsed = onnx.ModelProto()
    parsed.ParseFromString(rest)
    sizes = []
    for one, own in zip(tensors(parsed), tensors(proto), strict=True):
        place = inside.place(one.raw_data)
        found = one.raw_data if place is None else inside.file.array(*place).tobytes()
        assert found == own.raw_data
        sizes.append(None if place is None else place[1])
        one.raw_data = own.raw_data
    assert sorted(map(str, sizes)) == ["80000"] * 4 + ["None"]
    assert parsed == proto


def test_a_model_of_cut_tensors_computes_the_same(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(model(), path)
    x = RNG.standard_normal((200, 100)).astype(np.float32)
    engine = ingot.build(path, report=False)
    expected = ReferenceEvaluator(str(path))
    for c in (True, False):
        (wanted,) = expected.run(None, {"x": x, "c": np.array(c)})
        np.testing.assert_allclose(engine.run({"x": x, "c": np.array(c)})["y"], wanted, rtol=1e-5, atol=1e-6)


def test_marks_cannot_be_written_by_a_file(tmp_path: Path) -> None:
    """What was a mark once is data in another reading, and of another length."""
    path = tmp_path / "net.onnx"
    onnx.save(model(), path)
    first, second = wire.read(path, onnx.ModelProto)[1], wire.read(path, onnx.ModelProto)[1]
    mark = first.cut(0, 5)
    assert first.place(mark) == (0, 5) and second.place(mark) is None
    assert first.place(mark + b"\0") is None and first.place(b"") is None


def test_numbers_in_fields_are_left_to_protobuf(tmp_path: Path) -> None:
    proto = onnx.ModelProto()
    proto.graph.initializer.add(name="w", data_type=FLOAT, dims=[100_000], float_data=range(100_000))
    (tmp_path / "net.onnx").write_bytes(proto.SerializeToString())
    rest, _ = wire.read(tmp_path / "net.onnx", onnx.ModelProto)
    assert rest == proto.SerializeToString()


def test_every_cut_of_a_file_is_refused_or_parses(tmp_path: Path) -> None:
    """What protobuf reads of a shortened file we read too, and nothing else."""
    data = model().SerializeToString()
    path = tmp_path / "net.onnx"
    for end in [*range(0, 400, 7), *range(len(data) - 400, len(data), 7)]:
        path.write_bytes(data[:end])
        try:
            onnx.ModelProto().ParseFromString(data[:end])
            readable = True
        except Exception:
            readable = False
        try:
            parsed = onnx.ModelProto()
            parsed.ParseFromString(wire.read(path, onnx.ModelProto)[0])
            ours = True
        except CheckpointError:
            ours = False
        assert ours == readable, end


def test_a_file_that_changes_while_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(model(), path)
    built = build_network(open_model(path)).imported
    name = next(iter(built.weights))
    assert built.weights[name].size
    os.truncate(path, 1000)
    with pytest.raises(CheckpointError, match="was changed while it was read"):
        built.weights[name]


def test_large_files_are_mapped_from_copies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file from some size on; a smaller one is read into memory of its own. Whoever shortens the file changes nothing
    of what was there, and ends nobody."""
    path = tmp_path / "net.onnx"
    onnx.save(model(), path)
    data = path.read_bytes()
    _, inside = wire.read(path, onnx.ModelProto)
    assert not isinstance(inside.file.array(0, 10), np.memmap)
    monkeypatch.setattr(wire, "MAPPED", 1000)
    monkeypatch.setattr(wire, "LARGE", 80)
    found = [inside.file.array(begin, 80) for begin in (0, 3, 4096, 4097, 3)]  # elements are aligned at odd places too
    assert all(isinstance(one, np.memmap) and not one.flags.writeable for one in found)
    assert all(one.ctypes.data % 8 == 0 for one in found) and found[1] is found[4]
    many = [inside.file.array(begin, len(data) - 8) for begin in range(8)]  # more than the file has is read
    assert [isinstance(one, np.memmap) for one in many] == [True, *[False] * 7]
    os.truncate(path, 10)
    assert [one.tobytes() for one in found] == [data[begin : begin + 80] for begin in (0, 3, 4096, 4097, 3)]
    with pytest.raises(CheckpointError, match="was changed while it was read"):
        inside.file.array(8192, 80)


def test_nothing_maps_a_file_of_somebody_else() -> None:
    """Whoever shortened it would end the process. Engines are mapped by the core, which guards them. Pages of no file,
    `mmap.mmap(-1, …)`, are memory like any other."""
    root = Path(wire.__file__).parents[2]
    names = [path for path in root.rglob("*.py") if re.search(r"mmap\((?!-1,)", path.read_text())]
    assert names == [Path(wire.__file__)]
    assert wire.__file__ and Path(wire.__file__).read_text().count("np.memmap(") == 1


def test_no_room_for_a_file_without_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "net.onnx"
    onnx.save(model(), path)
    _, inside = wire.read(path, onnx.ModelProto)
    monkeypatch.setattr(wire, "MAPPED", 1000)

    def full(*arguments: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "sendfile", full)
    monkeypatch.setattr(wire, "LARGE", 80)
    assert inside.file.array(3, 80).tobytes() == path.read_bytes()[3:83]
