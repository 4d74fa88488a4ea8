"""What is said of drivers, of memory and of an engine's calls on device cuda; no GPU is needed."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.backends.cuda.driver import Driver, driver, require_room, why_not
from ingot.cli import main
from ingot.errors import MemoryLimitError
from ingot.ir import F
from tests.backends.cuda.interpreted import WITHOUT
from tests.kept import PICO


def library(version: int, init: int = 0, gpus: int = 1) -> Any:
    """A libcuda that answers so."""

    def said(number: int) -> Any:
        def answer(place: Any) -> int:
            place._obj.value = number
            return 0

        return answer

    return lambda name: SimpleNamespace(
        cuDriverGetVersion=said(version), cuInit=lambda flags: init, cuDeviceGetCount=said(gpus)
    )


def absent(name: str) -> Any:
    raise OSError(name)


def test_drivers(tmp_path: Path) -> None:
    module = tmp_path / "version"
    module.write_text("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (root)\n")
    nowhere = tmp_path / "none"
    assert driver(library(13000, gpus=2), module) == Driver("580.159.04", (13, 0), 2, "")
    assert driver(library(12040), nowhere) == Driver(None, (12, 4), 1, "")
    assert "libcuda.so.1" in driver(absent, nowhere).why
    assert "sees no GPU" in driver(library(13000, 100), module).why
    assert "start the machine again" in driver(library(13000, 803), module).why
    assert "error 999" in driver(library(13000, 999), module).why
    assert "sees no GPU" in driver(library(13000, gpus=0), module).why


def test_why_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    good = Driver("570.1", (12, 8), 1)
    assert why_not("12.6", 0, good) == "" == why_not("12.9", 0, good)
    assert "runs CUDA up to 12.8 and torch is built for 13.0" in why_not("13.0", 0, good)
    assert "built without CUDA" in why_not(None, 0, good)
    assert "GPUs here: 1" in why_not("12.6", 4, good) and "'3'" in why_not("12.6", 4, good)
    assert why_not(None, 0, Driver(why="none")) == "none"


def opening(kind: str, shapes: dict[str, tuple[int, ...]]) -> Any:
    buffers = [{"kind": "weight", "tensor": n, "shape": s, "dtype": "bfloat16"} for n, s in shapes.items()]
    header = {"kind": kind, "programs": {"cpu": {"entries": {"main": {"buffers": buffers, "calls": []}}}}}
    return SimpleNamespace(header=header, entry="main", device="0",
                           tensor=lambda name: np.broadcast_to(np.int16(0), shapes[name]))  # fmt: skip


def test_room() -> None:
    model = opening("llm", {"a": (40_000, 50_000), "b": (50_000,)})  # 4.0 GB
    require_room(model, 5 * 10**9, True)
    require_room(model, None, True)
    with pytest.raises(MemoryLimitError) as found:
        require_room(model, 3 * 10**9, True)
    assert str(found.value) == (
        "the engine's weights take 4.0 GB and cuda:0 has 3.0 GB free: built with --weights int8 (2.1 GB) or "
        "--weights fp8 (2.1 GB) or --weights int4-g128 (1.1 GB) they fit"
    )
    with pytest.raises(MemoryLimitError, match=r"int8 \(2.1 GB\) or --weights int4"):  # a GPU without float8
        require_room(model, 3 * 10**9, False)
    with pytest.raises(MemoryLimitError, match=r"free: built with --weights int4-g128 \(1.1 GB\) they fit"):
        require_room(model, 15 * 10**8, True)
    with pytest.raises(MemoryLimitError, match="no other format"):
        require_room(model, 10**8, True)
    with pytest.raises(MemoryLimitError, match="no other format"):
        require_room(opening("network", {"a": (40_000, 50_000)}), 3 * 10**9, True)


class Net(ingot.nn.Module):
    """A product, its bias and an activation."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = ingot.Parameter(shape=(5, 4), dtype="float16")
        self.bias = ingot.Parameter(shape=(5,), dtype="float16")

    def forward(self, x: Any) -> Any:
        return F.silu(F.add(F.matmul(x, self.weight, transpose_b=True), self.bias))


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("net") / "net.ingot"
    inputs = {"x": ingot.Spec(("N", 4), "float16")}
    ingot.build(Net(), inputs, weights_from="random", seed=0, report=False).save(path)
    return path


def said(capsys: pytest.CaptureFixture[str], *words: Any) -> tuple[int, dict[str, Any], str]:
    code = main.main([*map(str, words), "--json"])
    out = capsys.readouterr()
    lines = out.out.splitlines()
    return code, json.loads(lines[-1]) if lines else {}, out.err


def test_calls_without_a_gpu(engine: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nor torch, nor Triton: both are hidden from that process."""
    hidden = "import sys; sys.modules['torch'] = sys.modules['triton'] = None; from ingot.cli.main import main; "
    words = ["inspect", engine, "--program", "--device", "cuda", "--json"]
    run = subprocess.run([sys.executable, "-c", f"{hidden}sys.exit(main())", *words], capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    calls = json.loads(run.stdout.splitlines()[-1])["programs"]["cuda"]["main"]
    assert [(c["call"], c["runs"]) for c in calls] == [("matmul+chain", "kernel")]
    assert calls[0]["ops"] == ["matmul", "add", "silu"]
    code, _, error = said(capsys, "inspect", engine, "--device", "cuda")
    assert code == 2 and "--program" in error


def test_without_triton(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What to install is said before anything is built."""
    monkeypatch.setitem(sys.modules, "triton", None)
    words = ["build", str(PICO), "-o", str(tmp_path / "x.ingot"), "--device", "cuda:sm_90"]
    assert main.main(words) == 2
    assert "device cuda:sm_90 needs the package 'triton': pip install 'ingot[cuda]'" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_doctor(engine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    torch: Any = pytest.importorskip("torch", reason="device cuda runs on torch")
    code, found, error = said(capsys, "doctor", engine, "--device", "cuda:77")
    assert code == 2 and "cuda:77" in error
    assert found["device"]["name"] == "cuda:77"
    assert found["ops"] == [{"op": "matmul+chain", "calls": 1, "runs": "kernel"}]
    code, found, _ = said(capsys, "doctor", "--device", "torch:cpu")
    assert code == 0 and found["device"] == {"name": "torch:cpu"}
    code, _, error = said(capsys, "doctor", "--device", "gpu")
    assert code == 2 and "is not available" in error
    pytest.importorskip("triton", reason=WITHOUT)
    there = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    test = ingot._lazy.load("ingot.backends.cuda.examine:self_test")(torch, there)
    assert test["works"] and test["product"] < 1e-6 and test["chain"] < 1e-6
