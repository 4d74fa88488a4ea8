"""docs/cpp.md as its reader works through it: the program of the page, built in each of its ways, runs an engine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.version import __version__
from tests.native.engines import seeds

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "cpp.md").read_text()
SAID = [f"ingot {__version__}", "input x: float32[T, 8]", "output y: float32[T, 8] = 0 5 10 0 5 10 0 5"]


def block(of: str, holds: str) -> str:
    """The one code block of a language that holds these words."""
    found = [text for text in re.findall(rf"^```{of}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL) if holds in text]
    assert len(found) == 1, holds
    return found[0]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The reader's folder, its name with a space: the program, and an engine."""
    made = tmp_path / "my program"
    made.mkdir()
    (made / "main.cpp").write_text(block("cpp", "int main"))
    (made / "net.ingot").write_bytes(seeds()["chain"])
    return made


def shell(commands: str, folder: Path) -> None:
    """As the reader types it, with `ingot`, cmake and ninja of this environment."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    done = subprocess.run(
        ["sh", "-e", "-c", commands], cwd=folder, env=os.environ | {"PATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr


def check(program: Path, folder: Path) -> None:
    done = subprocess.run([program, "net.ingot", "2"], cwd=folder, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines() == SAID


def test_by_the_compiler_alone(folder: Path) -> None:
    shell(block("sh", "--cflags --libs) -o"), folder)
    check(folder / "main", folder)
    (folder / "net.ingot").write_bytes(b"no engine")
    done = subprocess.run([folder / "main", "net.ingot"], cwd=folder, capture_output=True, text=True)
    assert done.returncode == 1 and "net.ingot: " in done.stderr and "this is no engine file" in done.stderr


@pytest.mark.slow
def test_by_cmake(folder: Path) -> None:
    (folder / "CMakeLists.txt").write_text(block("cmake", "find_package"))
    shell(block("sh", "--cmake-dir"), folder)
    check(folder / "build" / "main", folder)


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("pkg-config") is None, reason="pkg-config is not installed")
def test_by_pkg_config(folder: Path) -> None:
    shell(block("sh", "PKG_CONFIG_PATH"), folder)
    check(folder / "main", folder)


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_library_alone(folder: Path, tmp_path: Path) -> None:
    """From a copy of the sources, without the package; the header of nlohmann/json from where the build takes it."""
    import nlohmann_json  # in a folder of its own: what builds the package has it

    for name in ("native", "ingot/version.py"):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (tmp_path / "clone" / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, tmp_path / "clone" / name)
    commands = block("sh", "-S native").replace("/opt/ingot", str(tmp_path / "in stalled").replace(" ", "\\ "))
    include = Path(nlohmann_json.__file__).parent / "include"
    shell(commands.replace("-B build/c\n", f"-B build/c -DINGOT_JSON_INCLUDE={include}\n", 1), tmp_path / "clone")
    (folder / "CMakeLists.txt").write_text(block("cmake", "find_package"))
    shell(f"cmake -S . -B build -DCMAKE_PREFIX_PATH='{tmp_path / 'in stalled'}' && cmake --build build", folder)
    check(folder / "build" / "main", folder)
