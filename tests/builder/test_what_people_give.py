"""Files that are no engines and words that are not ours: what each is, and the command or the word that takes it."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import Spec
from ingot.cli.main import main
from ingot.errors import IngotError, InputError, UserError
from ingot.words import precision_word


def written(data: bytes) -> Callable[[Path], Any]:
    return lambda path: path.write_bytes(data)


def zipped(path: Path) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("model/config.json", "{}")
        archive.writestr("model/model.safetensors", "weights")


def holding(*names: str) -> Callable[[Path], Any]:
    def make(path: Path) -> None:
        path.mkdir()
        for name in names:
            (path / name).write_text("{}")

    return make


# a name → what makes it, and what the message says
FILES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "model.py": (written(b"import torch\n"), "is Python code, .*ingot.build"),
    "weights.bin": (written(b"\0\1\2\3" * 100), "holds weights and no network: build takes the whole folder"),
    "pytorch_model.bin": (written(b"\x80\x02}q\0."), "is a file of torch.save, a pickle"),
    "model.safetensors": (written(b"\2\0\0\0\0\0\0\0{}"), "holds weights and no network: build takes the whole folder"),
    "checkpoint.zip": (zipped, "is a zip archive: unpack it, .*ingot build checkpoint"),
    "model.onnx": (written(b"version https://git-lfs.github.com/spec/v1\noid"), "git lfs pull"),
    "page.onnx": (written(b"<!DOCTYPE html><html>"), "is a web page, .*download the file again"),
    "x.npy": (written(b"\x93NUMPY\1\0"), "ingot run ENGINE --input NAME="),
    "net.h5": (written(b"\x89HDF\r\n\x1a\n"), "tf2onnx"),
    "net.tflite": (written(b"\0\0\0\0TFL3"), "tf2onnx"),
    "net.engine": (written(b"ftrt" * 9), "an engine of TensorRT"),
    "readme.md": (written(b"# A model"), "is text, and no network"),
    "a folder": (holding("notes.txt"), "has no config.json"),
    "of files": (holding("a.onnx", "b.txt"), "give the file in it, .*a.onnx"),
    "an adapter": (holding("adapter_config.json"), "ingot build BASE --lora"),
    "of weights": (holding("model.safetensors"), "has weights but no config.json"),
    "a pipeline": (holding("model_index.json"), "a pipeline of diffusers"),
    "saved": (holding("saved_model.pb"), "tf2onnx"),
}


@pytest.mark.parametrize("name", FILES)
def test_what_it_is_and_what_takes_it(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make, why = FILES[name]
    path = tmp_path / name
    make(path)
    for opened in (ingot.build, ingot.load):
        with pytest.raises(IngotError, match=why):
            opened(path)
    assert main(["run", str(path), "--random"]) == 2
    found = capsys.readouterr().err
    assert why.split(",")[0].split(":")[0].split(".*")[0] in found


COMMANDS = {
    "run": [], "inspect": [], "bench": [], "generate": ["--prompt", "x"], "chat": [], "diff": ["other.ingot"],
    "build": ["-o", "new.ingot"], "score": ["--text", "x.txt"],
}  # fmt: skip
GIVEN = ("model.py", "weights.bin", "pytorch_model.bin", "page.onnx", "net.tflite", "a folder", "x.ingot", "state.pt")


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_says_it(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`serve` has the words from the process that opens the model, as the others have them."""
    monkeypatch.chdir(tmp_path)
    Path("x.txt").write_text("text")
    others = {"x.ingot": (lambda path: None, "there is no such file: build it first"),
              "state.pt": (written(b"\x80\x02}q\0."), "is a file of torch.save, a pickle")}  # fmt: skip
    for name in GIVEN:
        make, why = (FILES | others)[name]
        make(tmp_path / name)
        assert main([command, name, *COMMANDS[command]]) == 2, (command, name)
        found = capsys.readouterr().err
        assert re.search(why, found, re.DOTALL) and "Traceback" not in found, found


def test_a_part_of_a_model(tmp_path: Path) -> None:
    holding("config.json", "model.safetensors")(tmp_path / "model")
    for name in ("config.json", "model.safetensors"):
        with pytest.raises(UserError, match=f"is a part of a model: .*ingot build {tmp_path / 'model'}$"):
            ingot.build(tmp_path / "model" / name)


def test_what_is_built_first(tmp_path: Path) -> None:
    (tmp_path / "net.onnx").write_bytes(b"\x08\x08")
    with pytest.raises(IngotError, match=r"is an ONNX file: .*ingot build .*net.onnx -o net.ingot"):
        ingot.load(tmp_path / "net.onnx")
    holding("config.json")(tmp_path / "llama")
    with pytest.raises(IngotError, match=r"is a folder: .*ingot build .*llama -o llama.ingot"):
        ingot.load(tmp_path / "llama")


@pytest.mark.parametrize("opened", [ingot.load, ingot.build])
def test_a_file_that_is_not_there(opened: Callable[[Path], Any], tmp_path: Path) -> None:
    with pytest.raises(IngotError, match=r"there is no such file: build it first, ingot build SOURCE -o .*x.ingot"):
        opened(tmp_path / "x.ingot")
    (tmp_path / "resnet50.ingot").write_bytes(b"")
    with pytest.raises(IngotError, match=r"there is no such file: did you mean .*resnet50.ingot\?"):
        opened(tmp_path / "resnet.ingot")


# ------------------------------------------------------------------------------------------------- words and arrays


class Net(ingot.Module):
    def forward(self, x: Any, y: Any = None) -> Any:
        return x * 2 if y is None else x * 2 + y


X = np.ones((2, 3), np.float32)


def test_arrays_of_a_run() -> None:
    engine = ingot.build(Net(), {"x": Spec((2 * ingot.Dim("N"), 3), "float32")}, report=False)
    for found in (
        engine(X), engine(x=X), engine.run(X), engine.run(x=X), engine.run({"x": X}), engine.session().run(X),
        engine.session().run(x=X),
    ):  # fmt: skip
        np.testing.assert_array_equal(found["output_0"], X * 2)
    assert f"{engine.inputs}" == "[x: f32[2*N, 3]]"
    with pytest.raises(InputError, match="2 arrays for 1 inputs: x"):
        engine(X, X)
    with pytest.raises(InputError, match="x is given twice"):
        engine(X, x=X)
    with pytest.raises(InputError, match="missing: 'x'"):
        engine.run()


def test_arrays_of_a_run_with_two_inputs() -> None:
    spec = Spec((2, 3), "float32")
    engine = ingot.build(Net(), {"x": spec, "y": spec}, report=False)
    for found in (engine(X, X), engine(X, y=X), engine.run(x=X, y=X), engine.run({"x": X}, y=X)):
        np.testing.assert_array_equal(found["output_0"], X * 3)
    with pytest.raises(InputError, match=r"by name, run\(\{'x': x, 'y': y\}\), not a ndarray"):
        engine.run(X)


def test_words_for_a_precision() -> None:
    torch = pytest.importorskip("torch")
    for word in ("bf16", "bfloat16", torch.bfloat16, ingot.dtypes.bfloat16):
        assert precision_word(word) == "bfloat16"
    for word in ("fp16", "half", torch.float16, np.float16, np.dtype("float16")):
        assert precision_word(word) == "float16"
    assert precision_word("fp32") == precision_word(torch.float32) == "float32"
    engine = ingot.build(torch.nn.Linear(3, 2), {"input": torch.ones(1, 3)}, precision=torch.bfloat16, report=False)
    assert engine.config["precision"] == "bfloat16"
    with pytest.raises(UserError, match=r"must be one of .*not 'int8': int8 is a way to store weights, weights="):
        ingot.build(torch.nn.Linear(3, 2), (torch.ones(1, 3),), precision="int8")
    with pytest.raises(UserError, match=r"precision must be one of float32, bfloat16, float16, not torch.int8"):
        ingot.build(torch.nn.Linear(3, 2), (torch.ones(1, 3),), precision=torch.int8)
