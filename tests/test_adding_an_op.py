"""docs/adding-an-op.md, carried out: its ops and its kernel's declaration work as they stand there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")

ROOT = Path(__file__).parent.parent
SCRIPT = Path(__file__).parent / "adding_an_op.py"


def test_the_page_works_as_it_stands(tmp_path: Path) -> None:
    """In a process of its own: ops are registered for good."""
    done = subprocess.run(
        [sys.executable, str(SCRIPT), str(tmp_path)], capture_output=True, text=True, cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.split() == ["frac", "reduce_sum_of_squares", "unit_rms", "functions", "import", "kernel"]
