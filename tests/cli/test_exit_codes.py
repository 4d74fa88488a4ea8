"""A command that answers "no" does not end with 0, and says all it has to say first: the table of docs/errors.md."""

from __future__ import annotations

import functools
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401  NumPy's name for bfloat16, which the weights have
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import ingot
from ingot import functional as F
from ingot import nn
from ingot.builder.outline import outline
from ingot.cli import doctor
from ingot.cli.main import COMMANDS, main
from ingot.llm.plan import MemoryPlanner
from tests.kept import PICO
from tests.native.engines import seal

ROOT = Path(__file__).parents[2]
PLAN = ("plan", PICO, "--concurrency", 16, "--context", 512, "--threads", 1)


class Found:
    """What a command printed, and how it ended."""

    def __init__(self, capsys: pytest.CaptureFixture[str], *words: object) -> None:
        self.code = main(list(map(str, words)))
        self.out, self.err = capsys.readouterr()

    def verdict(self, code: int) -> str:
        """The error of a command that ended so: the one line of standard error, after everything else."""
        assert self.code == code, (self.out, self.err)
        lines = self.err.splitlines()
        assert lines[-1].startswith("ingot: error: ") and sum("error" in line for line in lines) == 1
        return lines[-1]

    def json(self) -> dict[str, Any]:
        lines = self.out.splitlines()
        assert len(lines) == 1
        return dict(json.loads(lines[0]))


def net(seed: int) -> ingot.Engine:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 4)

        def forward(self, x: ingot.Tensor) -> dict[str, ingot.Tensor]:
            return {"y": F.relu(self.layer(x))}

    return ingot.build(Net(), {"x": ingot.Spec(("N", 8), "float32")}, weights_from="random", seed=seed, report=False)


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two engines of one network with other weights."""
    folder = tmp_path_factory.mktemp("engines")
    paths = [folder / f"{seed}.ingot" for seed in range(2)]
    for seed, path in enumerate(paths):
        net(seed).save(path)
    return paths


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """pico-python with a NaN among its weights."""
    folder = tmp_path_factory.mktemp("nan") / "pico"
    shutil.copytree(PICO, folder)
    weights = load_file(folder / "model.safetensors")
    weights["model.norm.weight"][0] = np.nan
    save_file(weights, folder / "model.safetensors")
    return folder


def test_every_command_is_in_the_table() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    rows = re.findall(r"^\| ((?:`\w+`(?:, )?)+) \| [^|]+ \| [012][^|]* \|$", page, re.MULTILINE)
    named = {name for row in rows for name in re.findall(r"\w+", row)}
    assert named == {module.__name__.rpartition(".")[2] for module in COMMANDS}


@pytest.fixture(autouse=True)
def _outlined(monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory is outlined once and not by every command that plans for it."""
    monkeypatch.setattr("ingot.builder.outline.outline", once)


once = functools.cache(outline)


def test_a_plan_that_fits(capsys: pytest.CaptureFixture[str]) -> None:
    found = Found(capsys, *PLAN, "--memory", "60MB", "--json")
    assert (found.code, found.json()["fits"]) == (0, True)


def test_a_plan_that_does_not_fit(capsys: pytest.CaptureFixture[str]) -> None:
    found = Found(capsys, *PLAN, "--memory", "30MB", "--json")
    line, plan = found.verdict(2), found.json()
    assert plan["fits"] is False and "16 request(s) of 512 tokens do not fit in --memory 30.0 MB" in line
    assert f"what fits: --concurrency {plan['largest']['requests']}, or --context" in line
    for change in re.findall(r"--(?:concurrency|context) \d+", line):  # each way out is one, and the furthest
        name, number = change.split()
        assert Found(capsys, *PLAN, "--memory", "30MB", name, number).code == 0
        more = int(number) + (1 if name == "--concurrency" else 16)
        assert Found(capsys, *PLAN, "--memory", "30MB", name, more).code == 2
    found = Found(capsys, *PLAN, "--memory", "30MB", "--quiet")
    assert found.verdict(2) == line and "KV cache" in found.out and "does not fit: " in found.out


def test_a_plan_that_fits_in_no_way(capsys: pytest.CaptureFixture[str]) -> None:
    line = Found(capsys, *PLAN, "--memory", "1MB").verdict(2)
    assert line.endswith(": it needs more memory") and "one request of one token takes" in line
    assert "do not fit in --memory 0 bytes" in Found(capsys, *PLAN, "--memory", "0").verdict(2)
    least = MemoryPlanner(once(PICO)[0], 1).plan(1, 1).total
    line = Found(capsys, *PLAN, "--memory", least).verdict(2)
    assert "fewer requests and a shorter context together" in line


def test_a_plan_that_another_precision_fits(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def planner(precision: str) -> MemoryPlanner:
        return MemoryPlanner(once(PICO, precision)[0], 1)

    wide = (*PLAN, "--precision", "float32", "--memory")
    for asked, words in (((16, 512), "what fits: "), ((1, 1), "more memory or ")):
        fits, needed = planner("bfloat16").plan(*asked).total, planner("float32").plan(1, 1).total
        line = Found(capsys, *wide, fits).verdict(2)
        assert words in line and "--precision bfloat16" in line and "--precision float32" not in line
        assert (fits < needed) == ("more memory" in line)
        change = (*wide, fits, "--precision", "bfloat16", "--concurrency", asked[0], "--context", asked[1])
        assert Found(capsys, *change).code == 0
    built = tmp_path / "pico.ingot"  # a file has its precision for good
    assert Found(capsys, "build", PICO, "-o", built, "--no-report", "--precision", "float32").code == 0
    assert "--precision" not in Found(capsys, "plan", built, "--threads", 1, "--memory", "20MB").verdict(2)


# What was asked for, what there is just memory for, and what is offered first: weights, a cache, or both.
SMALLER: dict[str, tuple[dict[str, str], dict[str, str], str]] = {
    "weights of int8": ({}, {"weights": "int8"}, "--weights int8"),
    "weights of int4": ({}, {"weights": "int4-g128"}, "--weights int4-g128"),
    "int4 for int8": ({"weights": "int8"}, {"weights": "int4-g128"}, "--weights int4-g128"),
    "int4 for fp8": ({"weights": "fp8"}, {"weights": "int4-g128"}, "--weights int4-g128"),
    "a cache of int8": ({"weights": "int4-g128"}, {"kv": "int8"}, "--kv int8"),
    "both, int8": ({}, {"weights": "int8", "kv": "int8"}, "--weights int8 --kv int8"),
    "both, int4": ({}, {"weights": "int4-g128", "kv": "int8"}, "--weights int4-g128 --kv int8"),
    "rows of fp8": ({"weights": "fp8", "activations": "fp8"}, {"kv": "int8"}, "--kv int8"),
    "nothing smaller": ({"weights": "int4-g32", "kv": "fp8"}, {}, ""),
}


@pytest.mark.parametrize(("asked", "fitting", "offered"), SMALLER.values(), ids=SMALLER)
def test_a_plan_that_smaller_formats_fit(
    capsys: pytest.CaptureFixture[str], asked: dict[str, str], fitting: dict[str, str], offered: str
) -> None:
    words = {name: asked.get(name) for name in ("weights", "activations", "kv")}

    def total(words: dict[str, str | None]) -> int:
        return MemoryPlanner(once(PICO, "float16", *words.values())[0], 1).plan(4, 512).total

    memory = total({**words, **fitting}) - (not fitting)
    plan = ["plan", str(PICO), "--threads", "1", "--concurrency", "4", "--context", "512", "--precision", "float16"]
    plan += ["--memory", str(memory), *(part for name, word in asked.items() for part in (f"--{name}", word))]
    line = Found(capsys, *plan).verdict(2)
    found = re.findall(r"--(?:weights|kv) \S+(?: --kv \S+)?", line.replace(",", " ,"))
    assert found[:1] == ([offered] if offered else [])
    assert not offered or Found(capsys, *plan, *offered.split()).code == 0


def test_a_plan_that_does_not_fit_in_this_machine(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ingot.llm.memory.available_memory", lambda: 30 << 20)
    assert "do not fit in the 31.5 MB that this machine has left" in Found(capsys, *PLAN).verdict(2)


def test_a_doctor_that_misses_a_package(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert Found(capsys, "doctor").code == 0
    monkeypatch.setattr(doctor, "PACKAGES", ("numpy", "no-such-package"))
    found = Found(capsys, "doctor", "--json")
    assert found.verdict(2).endswith("packages are missing: pip install no-such-package")
    assert found.json()["versions"]["no-such-package"] is None


def test_a_doctor_tells_of_extras(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of pyproject.toml. That one lacks is no fault."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    for extra, names in doctor.EXTRAS.items():
        listed = {re.split(r"[<>=;\[ ]", one)[0] for one in project["optional-dependencies"][extra]}
        assert listed - {"ingot"} == {*names} - ({"torch"} if "ingot" in listed else set())
    monkeypatch.setattr(doctor, "EXTRAS", {"serve": ("uvicorn",), "images": ("pillow", "no-such-package")})
    assert "extras       serve (not installed: images)" in Found(capsys, "doctor").out
    found = Found(capsys, "doctor", "--json")
    assert found.code == 0 and found.json()["extras"]["images"]["no-such-package"] is None


def test_a_doctor_that_misses_a_kernel(engines: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert Found(capsys, "doctor", engines[0]).code == 0
    data = engines[0].read_bytes()
    end = 8 + int.from_bytes(data[:8], "little")
    text = data[8:end].replace(rb"\"kernel\":\"matmul_packed\"", rb"\"kernel\":\"matmul_beyond\"")
    assert text != data[8:end]
    (tmp_path / "newer.ingot").write_bytes(seal(text, data[end:]))
    found = Found(capsys, "doctor", tmp_path / "newer.ingot", "--json")
    assert "needs kernels, or versions of them" in (line := found.verdict(2)) and "matmul_beyond" in line
    assert {"op": "matmul_beyond", "calls": 1, "runs": "missing"} in found.json()["ops"]


def test_a_diff_is_a_verdict_only_with_a_tolerance(engines: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    assert Found(capsys, "diff", *engines).code == 0
    assert Found(capsys, "diff", engines[0], engines[0], "--tolerance", "0").code == 0
    found = Found(capsys, "diff", *engines, "--tolerance", "0.01", "--json")
    beyond = found.json()["first_beyond"]
    assert found.verdict(1).startswith(f"ingot: error: {beyond} is the first beyond 0.01: relative ")
    found = Found(capsys, "diff", *engines, "--tolerance", "0.01")
    assert found.verdict(1) and "<- first beyond" in found.out


def test_a_nan_is_beyond_every_tolerance(broken: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Found(capsys, "diff", broken, PICO, "--tolerance", "1e30", "--json")
    assert "is the first beyond 1e+30" in found.verdict(1) and found.json()["first_beyond"]
    assert Found(capsys, "diff", PICO, broken, "--tolerance", "1e30", "--json").verdict(1)


@pytest.mark.parametrize("command", ["generate", "score", "bench"])
def test_logits_that_are_no_numbers(
    command: str, broken: Path, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "text").write_text("import os\n" * 20)
    words = {
        "generate": ("--prompt", "x"), "score": ("--text", tmp_path / "text", "--window", 16),
        "bench": ("--repeat", 1, "--bandwidth", 10),
    }[command]  # fmt: skip
    assert "a logit is NaN" in Found(capsys, command, broken, *words, "--json").verdict(2)


def test_results_of_a_run_may_be_anything(
    engines: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", np.full((2, 8), np.nan, np.float32))
    found = Found(capsys, "run", engines[0], "--input", f"x={tmp_path / 'x.npy'}", "--json")
    assert found.code == 0 and found.json()["outputs"][0]["nan"] == 8
