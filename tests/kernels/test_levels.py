"""The tests of all kernels, and of conversions, at the other levels of this machine, one case of 40 at each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ingot import _native

HERE = Path(__file__)
# No kernel's own test, and a plugin that takes a second to import.
LEAVE_OUT = (f"--ignore={HERE}", f"--ignore={HERE.parent / 'test_borders.py'}", "-p", "no:schemathesis")
ALL = [HERE.parent, HERE.parents[1] / "ops" / "test_conversion.py"]
OTHERS = [level for level in _native.levels() if level != _native.level()]
FEW = {  # levels that have code of their own for some kernels alone
    "avx_vnni": ("matmul", "conv"),
    "avx512_vnni": ("matmul", "conv"),
    "avx512_bf16": ("matmul", "conv", "winograd", "winograd_lines", "winograd_phases", "attention", "dense_attention"),
}
if _native.level().startswith(("avx512_", "amx")):  # the rest of avx512 is what runs here without being forced
    FEW["avx512"] = FEW["avx512_bf16"]


@pytest.fixture(scope="module")
def runner() -> Iterator[subprocess.Popen[str]]:
    """`tests.kernels.levels`, told nothing of the pytest that runs here."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    command = [sys.executable, "-m", "tests.kernels.levels"]
    root = HERE.parents[2]
    with subprocess.Popen(
        command, env=environment, cwd=root, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        yield process


@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", OTHERS)
def test_kernels(level: str, runner: subprocess.Popen[str], tmp_path: Path) -> None:
    """In one process for all files: most take less time than a start. `make conformance` leaves no case out."""
    share = ("--share", f"{_native.levels().index(level)}/40", "--hypothesis-profile=few")
    files = [HERE.parent / f"test_{name}.py" for name in FEW[level]] if level in FEW else ALL
    arguments = ["-q", *map(str, files), *LEAVE_OUT, *share, "-p", "no:cacheprovider"]
    output = tmp_path / "output"
    assert runner.stdin is not None and runner.stdout is not None
    runner.stdin.write(json.dumps([level, str(output), arguments]) + "\n")
    runner.stdin.flush()
    status = runner.stdout.readline()
    assert status == "0\n", output.read_text()[-9000:]
