"""The programs of docs/migrating.md run as they stand."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "migrating.md").read_text(), re.DOTALL)
ARRAYS = "import numpy\nx_array, y_array = numpy.ones((2, 8), 'f4'), numpy.ones((8, 4), 'f4')\n"


@pytest.mark.parametrize("number", range(len(BLOCKS)))
def test_program(number: int) -> None:
    program = ARRAYS + BLOCKS[number]
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_there_are_three() -> None:
    assert len(BLOCKS) == 3
