"""The C interface: C programs, compiled here, run engines, call every function wrongly, and run out of memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ingot import _native
from ingot.version import __version__
from tests.native.engines import Program, encode, header, seeds, symbol

HERE = Path(__file__).parent
LIBRARY = Path(_native.__file__).parent / "libingot.so"
SANITIZED = HERE.parent.parent / "build" / "fuzz" / "libingot.so"
PRIVATE = f"INGOT_PRIVATE_{__version__.replace('.', '_')}"  # the version of what the module takes of the library
INCLUDE = HERE.parent.parent / "native" / "include"


def compiled(name: str, folder: Path, library: Path = LIBRARY, *more: str) -> Path:
    """A C program of this folder, built against a library: the one that lies beside the module."""
    target = folder / name
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", "-pthread", "-I", str(INCLUDE), *more]
    link = ["-L", str(library.parent), "-lingot", f"-Wl,-rpath,{library.parent}"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, str(HERE / f"{name}.c"), *link, "-o", str(target)], check=True)
    return target


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """run_engine.c"""
    return compiled("run_engine", tmp_path_factory.mktemp("c"))


def plain() -> Program:
    """Without inputs and symbols."""
    p = Program()
    counted = p.temp([4], "int32")
    p.call("iota", [], [counted], start=3, step=2)
    p.output("counted", counted)
    return p


def wide() -> Program:
    """A sum of many rows: it takes long enough for two threads to meet in it."""
    p = Program(symbol("T", 0, 1 << 16))
    x = p.input("x", ["T", 8])
    p.output("y", p.binary("add", x, x, ["T", 8]))
    return p


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
    assert len(ours) == 14 and all(name.endswith("@@INGOT") for name in ours)
    others = [name for name in names if "ingot" in name and name not in ours]
    assert 0 < len(others) < 100  # for the module of the same version alone
    assert [name for name in others if not name.endswith(f"@@{PRIVATE}")] == []


def imported(first: str = "", **environment: str) -> subprocess.CompletedProcess[str]:
    """Imports the module in a fresh process, after `first`, and prints the libraries of ingot that are mapped there."""
    mapped = "print(*{line.split()[-1] for line in open('/proc/self/maps') if 'libingot' in line})"
    command = [sys.executable, "-c", f"{first}\nfrom ingot import _native\n{mapped}"]
    return subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, check=False)


def other_library(folder: Path) -> Path:
    """A libingot.so of another version."""
    (folder / "map").write_text("INGOT { global: *; };\nINGOT_PRIVATE_99_1_0 { global: nothing; };\n")
    library = folder / "libingot.so"
    flags = ["-shared", "-x", "c", "/dev/null", "-Wl,-soname,libingot.so", f"-Wl,--version-script={folder / 'map'}"]
    subprocess.run([os.environ.get("CC", "cc"), *flags, "-o", str(library)], check=True)
    return library


def test_the_module_runs_on_the_library_beside_it(tmp_path: Path) -> None:
    other_library(tmp_path)
    done = imported(LD_LIBRARY_PATH=str(tmp_path))
    assert (done.returncode, done.stdout.split()) == (0, [str(LIBRARY)])


def test_the_module_does_not_run_on_a_library_of_another_version(tmp_path: Path) -> None:
    library = other_library(tmp_path)
    done = imported(f"import ctypes; ctypes.CDLL({str(library)!r})")
    assert done.returncode == 1 and f"{library}: version `{PRIVATE}' not found" in done.stderr


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with every engine that misuse.c opens."""
    more = {name: encode(header(main=make().json), {}) for name, make in (("plain", plain), ("wide", wide))}
    for name, content in (seeds() | more).items():
        (tmp_path / f"{name}.ingot").write_bytes(content)
    return tmp_path


def misuse(program: Path, folder: Path) -> None:
    """misuse.c has the cases; it prints those that fail."""
    done = subprocess.run([program, folder, __version__], capture_output=True, text=True, check=False, timeout=200)
    assert (done.returncode, done.stderr) == (0, "")


def test_every_function_refuses_what_is_wrong(folder: Path) -> None:
    misuse(compiled("misuse", folder), folder)


@pytest.mark.slow
@pytest.mark.skipif(not SANITIZED.exists(), reason="`make conformance` and `make fuzz` build that library")
def test_it_does_so_under_the_sanitizers(folder: Path) -> None:
    misuse(compiled("misuse", folder, SANITIZED, "-fsanitize=address,undefined"), folder)


@pytest.mark.parametrize("threads", [1, 3])
def test_a_failed_allocation_is_an_error_and_no_more(tmp_path: Path, threads: int) -> None:
    (tmp_path / "chain.ingot").write_bytes(seeds()["chain"])
    starve = compiled("starve", tmp_path)
    command = [starve, tmp_path / "chain.ingot", str(threads)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    declaring, creating, running = map(int, done.stdout.split())
    assert declaring > 2 and creating > 50 and running > 10


@pytest.mark.parametrize("seed", range(4))
def test_random_calls_fail_exactly_when_an_argument_is_wrong(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "chain.ingot"
    path.write_bytes(seeds()["chain"])
    command = [sys.executable, "-X", "faulthandler", "-m", "tests.native.random_calls", LIBRARY, path, seed, 2000]
    root = HERE.parent.parent
    done = subprocess.run(list(map(str, command)), cwd=root, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
