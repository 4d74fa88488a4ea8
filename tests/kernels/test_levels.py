"""The tests of all kernels, and of conversions, at the other levels of this machine, one case of 40 at each."""

from __future__ import annotations

import os
import subprocess
import sys
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
    "avx512_bf16": ("matmul", "conv", "attention", "dense_attention"),
}
if _native.level().startswith(("avx512_", "amx")):  # the rest of avx512 is what runs here without being forced
    FEW["avx512"] = FEW["avx512_bf16"]


@pytest.mark.timeout(900)
@pytest.mark.parametrize("level", OTHERS)
def test_kernels(level: str) -> None:
    """In one process for all files: most take less time than a start. `make conformance` leaves no case out."""
    share = ("--share", f"{_native.levels().index(level)}/40", "--hypothesis-profile=few")
    files = [HERE.parent / f"test_{name}.py" for name in FEW[level]] if level in FEW else ALL
    command = [sys.executable, "-m", "pytest", "-q", *map(str, files), *LEAVE_OUT, *share]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    environment["INGOT_ISA"] = level
    command += ["-p", "no:cacheprovider"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-1000:]
