"""The command line of the benchmarks: a table that needs none of their packages, and one line for what is missing."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks import compiler, genai, level_code, llm_formats, machine
from benchmarks.harness import Options, Result
from ingot.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
WITHOUT = """
import sys
missing = {"transformers", "gguf", "onnx", "onnxruntime", "openvino", "pytest"}
class Missing:
    def find_spec(self, name, path=None, target=None):
        if name in missing:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Missing())
from benchmarks.__main__ import TABLE, main
"""


def without_peers(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", WITHOUT + code], cwd=ROOT, capture_output=True, text=True)


def failing(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    with pytest.raises(SystemExit) as ended:
        command.main(words)
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) == 1
    return said


def test_the_help_has_every_name_and_needs_no_peer() -> None:
    done = without_peers("missing.add('torch')\nmain(['--help'])")
    assert done.returncode == 0, done.stderr
    for name in command.TABLE:
        assert re.search(rf"^  {re.escape(name)} +\w", done.stdout, re.MULTILINE), name


def test_most_benchmarks_load_without_the_peers_of_others() -> None:
    plain = ["machine", "scheduler"]
    names = [*plain, "invariance", "order", "fourier", "recurrent", "einsum", "stgcn", "llm-int8", "onnx-models"]
    done = without_peers(
        f"import json\nmissing.add('torch')\nfound = {{n: callable(TABLE[n].function(n)) for n in {plain}}}\n"
        f"missing.remove('torch')\nprint(json.dumps([found.get(n) or callable(TABLE[n].function(n)) for n in {names}]))"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True] * len(names)


def test_a_missing_package_is_one_line_that_says_what_to_install() -> None:
    done = without_peers("main(['greedy'])")
    assert done.returncode == 2
    expected = "python -m benchmarks: error: greedy needs the package 'transformers': pip install 'ingot[bench]'\n"
    assert done.stderr == expected


@pytest.mark.parametrize("name", command.TABLE)
def test_every_name_leads_to_a_function(name: str) -> None:
    if name.startswith(command.GPU):
        pytest.importorskip("triton")
    assert callable(command.TABLE[name].function(name))


def test_the_page_has_every_name() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text()
    rows = " ".join(line.split("|")[1] for line in page.splitlines() if line.startswith("| `"))
    listed, first = set(), ""
    for name in re.findall(r"`([\w-]+)`", rows):  # "-unet" after "gpu-peers-stgcn" has its beginning
        first = first if name.startswith("-") else name
        listed |= {first[:i] + name for i in range(len(first))} if name.startswith("-") else {name}
    assert set(command.TABLE) <= listed


def test_a_mistyped_name_is_shown_with_its_near_miss(capsys: pytest.CaptureFixture[str]) -> None:
    assert "did you mean invariance?" in failing(capsys, "invarience")


def test_without_a_gpu_its_benchmarks_say_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "gpu_fault", lambda: "device 'cuda:0': there is no driver")
    assert "gpu-rows needs an NVIDIA GPU: device 'cuda:0': there is no driver" in failing(capsys, "machine", "gpu-rows")
    kept = command.chosen(["all"], command.Console(stderr=True))
    assert "machine" in kept and not [name for name in kept if name.startswith("gpu-")]


def test_a_fault_of_our_own_is_no_missing_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(command.TABLE, "machine", command.Benchmark("no_such_module:run", ""))
    with pytest.raises(ModuleNotFoundError, match="no_such_module"):
        command.run("machine", Options(1, 1))


def test_the_fault_of_a_gpu_is_what_doctor_says(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(word: str) -> None:
        raise UserError(f"device {word!r} is not there")

    monkeypatch.setattr("ingot.backends.device.device_of", refused)
    assert command.gpu_fault() == "device 'cuda' is not there"


def test_prompts_are_held_against_their_products_alone() -> None:
    result = Result("llm-int8")
    ours: dict[str, llm_formats.Run] = {"ingot": lambda prompts, tokens: None}
    llm_formats._add(
        result, llm_formats.FORMATS[1], ours, Options(pairs=3, threads=2), "prompt of 9", lambda run: 90.0,
        products=lambda threads: 50.0 * threads,
    )  # fmt: skip
    (row,) = (row for row in result.rows if "share of what matmul_bench reaches" in row.what)
    assert row.value == 0.9 and row.at_least == 0.85 and row.note == "100 tok/s"


@pytest.mark.parametrize("name", ["machine", "llm-int8"])
def test_without_a_compiler_a_line_says_what_to_install(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Before a model is built."""
    monkeypatch.setattr(compiler, "CACHE", tmp_path)
    monkeypatch.setattr(compiler, "COMPILER", "no-such-compiler")
    machine.roofs.cache_clear()
    said = failing(capsys, name)
    assert said.endswith("machine.cpp needs the compiler no-such-compiler: install it (apt-get install g++)\n")


def test_without_a_core_prompts_are_held_against_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """And the result says so."""
    monkeypatch.setattr(level_code, "ROOT", tmp_path)
    result = Result("llm-int8")
    assert llm_formats._products(llm_formats.FORMATS[1], result) is None
    (note,) = result.notes
    assert note.startswith("no share of what matmul_bench reaches: matmul_bench.cpp needs the core's static library")


@pytest.mark.parametrize("level", machine.HELD)
def test_levels_below_avx512(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "forced_level", lambda: level)
    assert machine.below_avx512() != level.startswith("avx512")


def test_code_of_a_level_without_a_core(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(level_code, "ROOT", tmp_path)
    with pytest.raises(UserError, match=r"matmul_bench.cpp needs the core's static library: make builds"):
        level_code.matmul_bench("int4-g32", "int8")


@pytest.mark.parametrize(("rows_of_int8", "size"), [(False, "0"), (True, "128")])
def test_genai_rounds_rows_where_ours_do(rows_of_int8: bool, size: str, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []
    monkeypatch.setenv(genai.VARIABLE, sys.executable)
    monkeypatch.setattr(genai, "_converted", lambda python, directory, weights: directory)
    monkeypatch.setattr(genai, "Peer", lambda name, python, module, settings: asked.append(settings))
    genai.peer(Path("model"), 2, "int4", rows_of_int8)
    assert asked[0]["properties"]["DYNAMIC_QUANTIZATION_GROUP_SIZE"] == size
