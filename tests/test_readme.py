"""What the README shows is what a newcomer types: every command of it runs, one after the other, in one folder."""

from __future__ import annotations

import io
import re
import shlex
import shutil
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from ingot.cli.main import main
from tests.test_docs import ROOT, commands

PLACEHOLDERS = {"DIR", "ADAPTER"}  # in a command: it has a test of its own
SERVED = "ingot serve "  # goes on until somebody ends it: tests/serve
ANOTHER_WAY = re.compile(r"\[(--[\w-]+(?:\|--[\w-]+)+)\]")


class Net(torch.nn.Module):
    """What somebody brings: a small net of images."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(3, 8, 3, padding=1)
        self.out = torch.nn.Linear(8, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.as_tensor(self.out(self.conv(x).relu().mean((2, 3))))


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the newcomer stands: the clone's model, with less text, and the net as both formats have it."""
    shutil.copytree(ROOT / "models", tmp_path / "models")
    text = tmp_path / "models" / "pico-python" / "heldout.txt"
    text.write_text(text.read_text()[:6000])
    torch.manual_seed(0)
    net, x = Net().eval(), torch.randn(2, 3, 16, 16)
    np.save(tmp_path / "image.npy", x.numpy())
    np.savez(tmp_path / "calib.npz", x=torch.randn(8, 3, 16, 16).numpy())
    batch = torch.export.Dim("N", min=1, max=64)
    torch.export.save(torch.export.export(net, (x,), dynamic_shapes=({0: batch},)), tmp_path / "net.pt2")
    with warnings.catch_warnings():  # torch advises against its exporter without onnxscript
        warnings.simplefilter("ignore")
        torch.onnx.export(net, (x,), str(tmp_path / "net.onnx"), dynamo=False, input_names=["x"],
                          dynamic_axes={"x": {0: "N"}})  # fmt: skip
    monkeypatch.chdir(tmp_path)
    return tmp_path


def shown() -> Iterator[list[str]]:
    """The words of each command; where a page offers several options, one after the other."""
    readme = (ROOT / "README.md").read_text()
    assert len(re.findall(ANOTHER_WAY, readme)) == 1  # of inspect
    ways = re.findall(r"--[\w-]+", ANOTHER_WAY.search(readme)[1])  # type: ignore[index]
    for line in commands(ROOT / "README.md"):
        words = shlex.split(line)[1:]
        if PLACEHOLDERS.isdisjoint(words) and not line.startswith(SERVED):
            yield words
            if words[0] == "inspect":
                found = [word for word in words if word not in ways]
                yield from ([*found, way] for way in ways)


@pytest.mark.usefixtures("folder")
def test_every_command_of_the_readme_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("onnx")
    ran = []
    for words in shown():
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"Hello\n")))  # of chat
        code = main(words)
        said = capsys.readouterr()
        assert code == 0, (words, said.err)
        assert said.out, words
        ran.append(words[0])
    assert {"generate", "build", "chat", "plan", "score", "run", "bench", "diff", "inspect", "doctor"} == set(ran)
    assert ran.count("inspect") == 5 and Path("out.npz").exists() and Path("trace.json").exists()
