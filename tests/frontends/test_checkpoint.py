"""Files and directories that must be refused: each a CheckpointError that says why, and nothing else happens."""

from __future__ import annotations

import json
import os
import pickle
import struct
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from ingot import strict_json
from ingot.builder.build import build
from ingot.errors import CheckpointError
from ingot.frontends.checkpoint import Checkpoint, read_config, read_file, resolve_directory
from ingot.safetensors_file import SafetensorsFile
from ingot.tensor_table import TensorInfo, read_tensor
from tests.kept import PICO

F32_2 = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}


def container(header: Any, data: bytes = bytes(8)) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + data


def entry(**changes: Any) -> bytes:
    return container({"x": F32_2 | changes})


FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "the file is empty"),
    "short": (b"abc", "not a safetensors file"),
    "header length 0": (struct.pack("<Q", 0) + bytes(8), "not a safetensors file"),
    "header length 2^63": (struct.pack("<Q", 2**63) + bytes(8), "not a whole safetensors file"),
    "header length -1": (b"\xff" * 16, "not a whole safetensors file"),
    "header longer than the file": (struct.pack("<Q", 100) + b"{}", "not a whole safetensors file"),
    "a pickle": (b"\x80\x04K\x01." * 9, "not a whole safetensors file"),
    "not UTF-8": (container(b'{"\xff": 1}'), "not UTF-8"),
    "not JSON": (container(b"{'x': 1}"), "bad header"),
    "not an object": (container(b"[1, 2]"), "does not begin with '{'"),
    "leading space": (container(b" {}"), "does not begin with '{'"),
    "something behind the object": (container(b"{} {}"), "Extra data"),
    "deep": (container(b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}"), "nested deeper"),
    "deep enough to matter": (container(b'{"x":' + b"[" * 10 + b"]" * 10 + b"}"), "nested deeper"),
    "duplicate name": (container(b'{"x": 1, "x": 2}'), "'x' appears twice"),
    "NaN": (container(b'{"x": NaN}'), "NaN is not JSON"),
    "Infinity": (container(b'{"x": -Infinity}'), "-Infinity is not JSON"),
    "1e400": (container(b'{"x": 1e400}'), "1e400 is too large"),
    "huge integer": (container(b'{"x": 1' + b"0" * 5000 + b"}"), "does not fit in 64 bits"),
    "bomb": (container(b'{"x":[' + b"0," * 5_000_000 + b"0]}"), "entries"),
    "metadata": (container({"__metadata__": {"a": 1}}, b""), "__metadata__ must be an object of strings"),
    "no dtype": (container({"x": {"shape": [2], "data_offsets": [0, 8]}}), "exactly dtype, shape and data_offsets"),
    "another key": (entry(pointer=1), "exactly dtype, shape and data_offsets"),
    "unknown dtype": (entry(dtype="F33"), "unknown dtype 'F33'"),
    "dtype number": (entry(dtype=-1), "unknown dtype '-1'"),
    "negative size": (entry(shape=[-2]), "positive integers"),
    "zero size": (entry(shape=[0], data_offsets=[0, 0]), "positive integers"),
    "float size": (entry(shape=[2.0]), "positive integers"),
    "bool size": (entry(shape=[True, 2]), "positive integers"),
    "65 dimensions": (entry(shape=[1] * 64 + [2]), "at most 64"),
    "overflow": (entry(shape=[2**32, 2**32]), "needs 73,786,976,294,838,206,464 bytes"),
    "too many bytes": (entry(shape=[1]), "needs 4 bytes but its offsets span 8"),
    "backward": (entry(data_offsets=[8, 0]), "span -8"),
    "negative offset": (entry(data_offsets=[-8, 0]), "two integers"),
    "one offset": (entry(data_offsets=[0]), "two integers"),
    "out of the file": (entry(shape=[4], data_offsets=[0, 16]), "ends 8 bytes behind the end of the file"),
    "misaligned": (
        container(
            {"b": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}, "x": F32_2 | {"data_offsets": [1, 9]}},
            bytes(9),
        ),
        "starts at byte 1",
    ),
    "hole": (container({"x": F32_2 | {"data_offsets": [8, 16]}}, bytes(16)), "a hole of 8 bytes with the header"),
    "overlap": (
        container({"x": F32_2, "y": F32_2 | {"data_offsets": [4, 12]}}, bytes(12)),
        "'y': an overlap of 4 bytes with 'x'",
    ),
    "two tensors in one place": (container({"x": F32_2, "y": F32_2}), "an overlap of 8 bytes"),
    "trailing bytes": (container({"x": F32_2}, bytes(8) + b"PK\x05\x06"), "4 bytes follow the last tensor"),
    "no tensors but data": (container({}, bytes(8)), "8 bytes follow the last tensor"),
    "name with NUL": (container({"x\0y": F32_2}), "cannot be printed"),
    "name with a newline": (container({"x\ny": F32_2}), "cannot be printed"),
    "lone surrogate": (container(b'{"\\ud800": 1}'), "cannot be printed"),
    "long name": (container({"x" * 2000: F32_2}), "1 to 1024 bytes"),
    "empty name": (container({"": F32_2}), "1 to 1024 bytes"),
    "name as path": (container({"../x": F32_2}), "path out of a folder"),
    "name as absolute path": (container({"/x": F32_2}), "path out of a folder"),
}


@pytest.mark.parametrize("name", FILES)
def test_file_refused(name: str, tmp_path: Path) -> None:
    data, message = FILES[name]
    path = tmp_path / "bad.safetensors"
    path.write_bytes(data)
    with pytest.raises(CheckpointError) as caught:
        SafetensorsFile(path)
    assert str(path) in str(caught.value)
    assert message in str(caught.value)


def test_all_bad_tensors_are_listed(tmp_path: Path) -> None:
    path = tmp_path / "bad.safetensors"
    path.write_bytes(container({f"t{i}": F32_2 | {"dtype": "?"} for i in range(30)}))
    with pytest.raises(CheckpointError, match=r"'t0'(.|\n)*'t19'(.|\n)*and 10 more"):
        SafetensorsFile(path)


def sample() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "scalar": np.array(3.5, np.float32),
        "bf": rng.standard_normal((3, 5)).astype(ml_dtypes.bfloat16),
        "half": rng.standard_normal((2, 1, 4)).astype(np.float16),
        "wide": rng.standard_normal(7),
        "int": np.arange(-3, 6, dtype=np.int64),
        "flags": np.array([True, False, True]),
    }


def test_reads_what_safetensors_writes(tmp_path: Path) -> None:
    tensors = sample()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    opened = SafetensorsFile(tmp_path / "model.safetensors")
    assert set(opened) == set(tensors) and opened.metadata == {"format": "pt"}
    for name, array in tensors.items():
        assert opened.info(name).shape == array.shape and opened.info(name).dtype.numpy == array.dtype
        np.testing.assert_array_equal(opened[name], array)
        assert opened[name].dtype == array.dtype


def test_every_truncation_is_refused(tmp_path: Path) -> None:
    save_file(sample(), tmp_path / "whole")
    whole = (tmp_path / "whole").read_bytes()
    for size in range(len(whole)):
        (tmp_path / "cut").write_bytes(whole[:size])
        with pytest.raises(CheckpointError):
            SafetensorsFile(tmp_path / "cut")


@given(st.integers(0, 400), st.integers(0, 255))
def test_a_changed_header_byte_never_crashes(tmp_path_factory: pytest.TempPathFactory, at: int, value: int) -> None:
    folder = tmp_path_factory.getbasetemp() / "flips"
    folder.mkdir(exist_ok=True)
    save_file(sample(), folder / "whole")
    data = bytearray((folder / "whole").read_bytes())
    data[at % len(data)] = value
    (folder / "changed").write_bytes(data)
    try:
        opened = SafetensorsFile(folder / "changed")
    except CheckpointError:
        return
    for name in opened:
        assert opened[name].shape == opened.info(name).shape


def test_a_file_shortened_while_open(tmp_path: Path) -> None:
    save_file({"x": np.zeros(4096, np.float32)}, tmp_path / "model.safetensors")
    opened = SafetensorsFile(tmp_path / "model.safetensors")
    os.truncate(tmp_path / "model.safetensors", 4096)
    with pytest.raises(CheckpointError, match="ends inside tensor x: the file was shortened"):
        opened["x"]


def test_no_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(CheckpointError, match="is not a regular file"):
            SafetensorsFile(path)
    with pytest.raises(CheckpointError, match="cannot be opened: No such file"):
        SafetensorsFile(tmp_path / "absent")


def test_a_sparse_terabyte(tmp_path: Path) -> None:
    with (tmp_path / "sparse").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(CheckpointError):
        SafetensorsFile(tmp_path / "sparse")


# ------------------------------------------------------------------------------------------------ directories


def directory(folder: Path, weights: bool = True) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text("{}")
    if weights:
        save_file({"x": np.ones(2, np.float32)}, folder / "model.safetensors")
    return folder


def sharded(folder: Path, weight_map: Any) -> Path:
    directory(folder, weights=False)
    save_file({"a": np.ones(2, np.float32)}, folder / "one.safetensors")
    save_file({"b": np.ones(3, np.float32)}, folder / "two.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    return folder


def test_shards(tmp_path: Path) -> None:
    opened = Checkpoint(sharded(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"}))
    assert sorted(opened) == ["a", "b"] and opened.info("b").shape == (3,)
    np.testing.assert_array_equal(opened["b"], np.ones(3, np.float32))
    opened.close()


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "../one.safetensors"}, "'../one.safetensors' is not the name of a file in this folder"),
        ({"a": "/etc/one.safetensors"}, "is not the name of a file in this folder"),
        ({"a": "sub/one.safetensors"}, "is not the name of a file in this folder"),
        ({"a": "..\\one.safetensors"}, "is not the name of a file in this folder"),
        ({"a": "\\\\host\\share\\one.safetensors"}, "is not the name of a file in this folder"),
        ({"a": "one\0.safetensors"}, "is not the name of a file in this folder"),
        ({"a": "one.bin"}, "is no .safetensors file"),
        ({"a": 3}, "is no .safetensors file"),
        (
            {"a": "three.safetensors", "b": "four.safetensors"},
            "lacks 2 of the 2 files.*four.safetensors, three.safetensors",
        ),
        (
            {"a": "two.safetensors", "b": "two.safetensors"},
            r"names tensors that their files lack: a \(two.safetensors\)",
        ),
        ({"../a": "one.safetensors"}, "path out of a folder"),
        ({}, "weight_map must be an object"),
        ([], "weight_map must be an object"),
    ],
)
def test_bad_index(weight_map: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=message):
        Checkpoint(sharded(tmp_path, weight_map))


def test_whether_there_is_a_tensor_is_known_without_reading_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.safetensors").write_bytes(entry())
    monkeypatch.setattr("ingot.safetensors_file.read_tensor", None)
    for file in (SafetensorsFile(tmp_path / "model.safetensors"), Checkpoint(tmp_path)):
        assert "x" in file and "y" not in file


def test_a_build_reads_each_tensor_once(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []

    def counted(descriptor: int, info: TensorInfo) -> Any:
        read.append(info.begin)
        return read_tensor(descriptor, info)

    monkeypatch.setattr("ingot.safetensors_file.read_tensor", counted)
    build(PICO, report=False)
    assert len(read) == len(set(read)) > 50


def test_a_tensor_stored_twice(tmp_path: Path) -> None:
    sharded(tmp_path, {"a": "one.safetensors", "b": "two.safetensors"})
    save_file({"a": np.ones(2, np.float32), "b": np.ones(3, np.float32)}, tmp_path / "two.safetensors")
    with pytest.raises(CheckpointError, match=r"stored twice: a \(one.safetensors, two.safetensors\)"):
        Checkpoint(tmp_path)


def test_links_stay_inside(tmp_path: Path) -> None:
    outside = tmp_path / "secret.safetensors"
    save_file({"x": np.ones(2, np.float32)}, outside)
    inside = directory(tmp_path / "model", weights=False)
    (inside / "model.safetensors").symlink_to(outside)
    with pytest.raises(CheckpointError, match="outside its folder"):
        Checkpoint(inside)
    (inside / "model.safetensors").unlink()
    outside.rename(inside / "real.safetensors")
    (inside / "model.safetensors").symlink_to("real.safetensors")
    assert list(Checkpoint(inside)) == ["x"]
    (inside / "config.json").unlink()
    (inside / "config.json").symlink_to("/etc/passwd")
    with pytest.raises(CheckpointError, match="outside its folder"):
        read_config(inside)


def test_a_hub_cache(tmp_path: Path) -> None:
    """snapshots/<revision> holds links into blobs, and only those may leave the folder."""
    repository = tmp_path / "models--org--name"
    blobs, snapshot = repository / "blobs", repository / "snapshots" / "abc"
    blobs.mkdir(parents=True)
    snapshot.mkdir(parents=True)
    (blobs / "1").write_text("{}")
    save_file({"x": np.ones(2, np.float32)}, blobs / "2")
    (snapshot / "config.json").symlink_to("../../blobs/1")
    (snapshot / "model.safetensors").symlink_to("../../blobs/2")
    assert list(Checkpoint(snapshot)) == ["x"]
    (tmp_path / "elsewhere").write_text("secret")
    (snapshot / "tokenizer.json").symlink_to("../../../elsewhere")
    with pytest.raises(CheckpointError, match="outside its folder"):
        read_file(snapshot, "tokenizer.json")


def test_pickles_are_never_read(tmp_path: Path) -> None:
    class Bait:
        def __reduce__(self) -> tuple[Any, ...]:
            return (Path.touch, (tmp_path / "executed",))

    folder = directory(tmp_path / "model", weights=False)
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps(Bait()))
    with pytest.raises(CheckpointError, match=r"only as pickle \(pytorch_model.bin\)(.|\n)*save_pretrained"):
        Checkpoint(folder)
    save_file({"x": np.ones(2, np.float32)}, folder / "model.safetensors")
    assert list(Checkpoint(folder)) == ["x"]
    assert not (tmp_path / "executed").exists()


def test_no_weights(tmp_path: Path) -> None:
    folder = directory(tmp_path / "model", weights=False)
    with pytest.raises(CheckpointError, match="holds no weights"):
        Checkpoint(folder)
    (folder / "consolidated.safetensors").write_bytes(b"")
    with pytest.raises(CheckpointError, match="add the index: consolidated.safetensors"):
        Checkpoint(folder)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "'a' appears twice"),
        ('{"a": NaN}', "NaN is not JSON"),
        ('{"a": 1e999}', "too large"),
        ("[]", "must be a JSON object, not list"),
        ("{", "line 1, column"),
        ("[" * 100_000, "nested deeper|line 1"),
        ('{"a": ' + "[" * 70 + "]" * 70 + "}", "nested deeper than 64"),
        ('{"a": "' + "x" * (5 << 20) + '"}', "has at most 4,194,304"),
    ],
)
def test_bad_config_json(text: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=message):
        read_config(tmp_path)


def test_no_config(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has no config.json"):
        read_config(tmp_path)
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    with pytest.raises(CheckpointError, match="of a GGUF file, give the file itself"):
        read_config(tmp_path)


def test_what_is_no_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError, match=r"\n    hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B\n"):
        resolve_directory("Qwen/Qwen3-0.6B")
    with pytest.raises(CheckpointError, match=r"hf download gpt2 --local-dir gpt2"):
        resolve_directory("gpt2")
    for text in ("/no/such/folder", "./absent", "a/b/c", "../x"):
        with pytest.raises(CheckpointError, match="there is no such folder"):
            resolve_directory(text)
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is a file; give the folder"):
        resolve_directory("file")
    with pytest.raises(CheckpointError, match="is not a path"):
        resolve_directory("a\0b")


def test_strict_json_accepts_json() -> None:
    assert strict_json.parse(b'{"a": [1, -2.5e3, true, null, "\\u00e9"], "b": {}}') == {
        "a": [1, -2500.0, True, None, "é"],
        "b": {},
    }
    assert strict_json.parse(b"18446744073709551615") == 2**64 - 1
    with pytest.raises(strict_json.JsonError, match="64 bits"):
        strict_json.parse(b"18446744073709551616")


def test_the_largest_integer_of_tokenizer_settings() -> None:
    unlimited = b'{"model_max_length": 1000000000000000019884624838656}'  # as transformers writes it
    assert strict_json.parse_object(unlimited, big_integers=True)["model_max_length"] == int(1e30)
    with pytest.raises(strict_json.JsonError, match="64 bits"):
        strict_json.parse_object(unlimited)
    with pytest.raises(strict_json.JsonError, match="more than 40 digits"):
        strict_json.parse(b"1" * 5000, big_integers=True)
