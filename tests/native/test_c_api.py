"""The C interface: a C program, compiled here, runs engines."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from ingot import _native
from tests.native.engines import seeds

HERE = Path(__file__).parent
LIBRARY = Path(_native.__file__).parent / "libingot.so"
INCLUDE = HERE.parent.parent / "native" / "include"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run_engine.c, built against the library that lies beside the module."""
    target = tmp_path_factory.mktemp("c") / "run_engine"
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-I", str(INCLUDE)]
    link = ["-L", str(LIBRARY.parent), "-lingot", f"-Wl,-rpath,{LIBRARY.parent}"]
    subprocess.run(
        [os.environ.get("CC", "cc"), *flags, str(HERE / "run_engine.c"), *link, "-o", str(target)], check=True
    )
    return target


def run(program: Path, directory: Path, name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    path = directory / f"{name}.ingot"
    path.write_bytes(seeds().get(name, b"not an engine"))
    return subprocess.run([program, path, *arguments], capture_output=True, text=True, check=False, timeout=60)


def test_sixty_lines() -> None:
    assert len((HERE / "run_engine.c").read_text().splitlines()) <= 60


def test_runs_an_engine(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "chain", "2")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == ["input x: float32[T, 8]", "output y: float32[T, 8]", "y = 0 5 10 0 5 10 0 5"]


def test_runs_strided_outputs_and_weights(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "normalise", "3")
    assert done.returncode == 0 and done.stdout.splitlines()[-1] == "rows = 0 1 2 3 4 5 6 7"


def test_a_cache_needs_its_size(program: Path, tmp_path: Path) -> None:
    assert "argument: kv_blocks: 0 is not in" in run(program, tmp_path, "attend", "0").stderr
    done = run(program, tmp_path, "attend", "0", "4")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("name", ["move", "compute", "fused"])
def test_runs_every_family(program: Path, tmp_path: Path, name: str) -> None:
    done = run(program, tmp_path, name, "0", "4")
    assert (done.returncode, done.stderr) == (0, "")


def test_operations_without_a_kernel_are_listed(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "select")
    assert done.returncode == 1 and "operations without a native kernel (pick)" in done.stderr


def test_a_bad_file_is_a_typed_error(program: Path, tmp_path: Path) -> None:
    done = run(program, tmp_path, "garbage")
    assert done.returncode == 1 and done.stderr.startswith("engine_file: ")


def test_only_the_interface_is_exported() -> None:
    done = subprocess.run(["nm", "-D", "--defined-only", str(LIBRARY)], capture_output=True, text=True, check=True)
    names = [line.split()[-1] for line in done.stdout.splitlines()]
    ours = [name for name in names if name.startswith("ingot_")]
    assert len(ours) == 14
    assert [name for name in names if "ingot" in name and name not in ours] == []
