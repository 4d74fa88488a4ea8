"""The commands on files of torch.export: build, run, bench and diff."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot.builder.diff import diff_source
from ingot.errors import UserError
from tests.cli.command import as_json
from tests.cli.command import ingot as command


class Block(torch.nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = torch.nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm = torch.nn.BatchNorm2d(width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(x)) + x)


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = torch.nn.Conv2d(3, 8, 3, 2)
        self.blocks = torch.nn.Sequential(Block(8), Block(8))
        self.head = torch.nn.Linear(8, 5)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(image)).mean((2, 3)))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """net.pt2, image.npy, and torch's output for it in want.npy."""
    path = tmp_path_factory.mktemp("pt2")
    torch.manual_seed(0)
    net = Net().eval()
    image = torch.randn(3, 3, 17, 17)
    shapes = ({0: torch.export.Dim("N", min=1, max=8)},)
    torch.export.save(torch.export.export(net, (image,), dynamic_shapes=shapes), path / "net.pt2")
    np.save(path / "image.npy", image.numpy())
    with torch.no_grad():
        np.save(path / "want.npy", net(image).numpy())
    return path


def test_build_run_and_bench(folder: Path) -> None:
    built = as_json("build", folder / "net.pt2", cwd=folder)
    assert built["path"] == "net.ingot" and (folder / "net.ingot").exists()
    assert built["accuracy"]["source"].startswith("against torch")
    shown = command("build", folder / "net.pt2", "-o", folder / "net.bf16.ingot", "--precision", "bfloat16")
    assert "against torch" in shown.stdout and "blocks.1" in shown.stdout
    want = np.load(folder / "want.npy")
    for source in ("net.ingot", "net.pt2"):
        found = as_json("run", folder / source, "--input", f"image={folder}/image.npy", "-o", folder / "out.npz")
        assert ("build" in found["seconds"]) == source.endswith(".pt2")
        with np.load(folder / "out.npz") as out:
            np.testing.assert_allclose(next(iter(out.values())), want, rtol=1e-4, atol=1e-5)
    assert as_json("inspect", folder / "net.pt2")["inputs"][0]["name"] == "image"
    bench = as_json("bench", folder / "net.pt2", "--repeat", 2, "--bandwidth", 10, "--profile")
    assert bench["name"] == "run" and bench["calls"]


def test_diff_with_torch(folder: Path) -> None:
    source = folder / "net.pt2"
    for precision, low, high in (("float32", 0.0, 1e-5), ("bfloat16", 1e-4, 0.05)):
        engine = folder / f"{precision}.ingot"
        ingot.build(source, report=False, precision=precision).save(engine)
        found = as_json("diff", engine, source)
        assert found["against"] == "torch"
        assert [p["name"] for p in found["layers"]][-2:] == ["blocks.0", "blocks.1"]
        assert all(low <= p["relative"] < high for p in (*found["layers"], *found["outputs"]))
    values = as_json("diff", engine, source, "--values", "--input", f"image={folder}/image.npy")
    assert values["not_compared"] == ["conv in blocks.0.conv", "conv in blocks.1.conv"]
    assert {"batch_norm", "relu", "add"} <= {p["op"] for p in values["layers"]}
    assert all(p["relative"] < 0.05 for p in values["layers"])
    assert "as torch runs it" in command("diff", engine, source).stdout
    own = as_json("diff", source, folder / "float32.ingot")
    assert own["against"] == "engine" and own["outputs"][0]["relative"] == 0


def test_diff_with_another_file_is_refused(folder: Path, tmp_path: Path) -> None:
    torch.export.save(torch.export.export(torch.nn.Linear(3, 4), (torch.zeros(1, 3),)), tmp_path / "other.pt2")
    engine = ingot.build(folder / "net.pt2", report=False)
    feeds: dict[str, Any] = {"image": np.load(folder / "image.npy")}
    with pytest.raises(UserError, match="different networks"):
        diff_source(engine, tmp_path / "other.pt2", feeds)
