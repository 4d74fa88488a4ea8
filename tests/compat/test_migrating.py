"""The programs of docs/migrating.md run as they stand, each way's before and after in one process."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SECTIONS = re.split(r"^## ", (ROOT / "docs" / "migrating.md").read_text(), flags=re.MULTILINE)[1:]
PROGRAMS = {text.partition("\n")[0]: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for text in SECTIONS}
# What the programs have of their readers, and how they are checked: before and after give the same.
AROUND = {
    "TensorRT-LLM's network API": (
        "import numpy\nx_array, y_array = numpy.ones((2, 8), 'f4'), numpy.ones((8, 4), 'f4')\n",
        "import torch\nout = {'z': torch.empty(2, 4)}\n"
        "session.run({'x': torch.from_numpy(x_array), 'y': torch.from_numpy(y_array)}, out, 0)\n",
        "assert numpy.array_equal(out['z'].numpy(), z)\n",
    ),
    "TensorRT": (
        "import numpy, pathlib, tempfile\nx = numpy.arange(8, dtype='f4').reshape(2, 4)\ngiven = x\n",
        "path = pathlib.Path(tempfile.mkdtemp()) / 'net.ingot'\npath.write_bytes(data)\n"
        "import ingot\nbefore = ingot.load(path).run({'x': given})['y']\n",
        "assert numpy.array_equal(engine.run({'x': given})['y'], before)\n",
    ),
    "torch2trt": (
        "import sys, torch, ingot.compat.torch2trt\nsys.modules['torch2trt'] = ingot.compat.torch2trt\n"
        "model, x = torch.nn.Linear(4, 3).eval(), torch.ones(2, 4)\n",
        "before = y\n",
        "assert torch.equal(y, before) and torch.allclose(y, model(x), atol=1e-2)\n",
    ),
}


@pytest.mark.parametrize("way", AROUND)
def test_before_and_after(way: str) -> None:
    (before, after), (given, between, behind) = PROGRAMS[way], AROUND[way]
    program = "\n".join([given, before, between, after, behind])
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr


def test_every_program_is_run() -> None:
    assert {way for way, programs in PROGRAMS.items() if programs} == AROUND.keys()
