"""The programs of docs/migrating.md run as they stand; a before and its after give the same."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SECTIONS = re.split(r"^## ", (ROOT / "docs" / "migrating.md").read_text(), flags=re.MULTILINE)[1:]
PROGRAMS = {text.partition("\n")[0]: re.findall(r"```python\n(.*?)```", text, re.DOTALL) for text in SECTIONS}
# What the programs have of their readers, what comes between before and after, and how they are compared.
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


def test_before_and_after() -> None:
    """All ways in one process, each with names of its own: starting torch takes longer than the programs."""
    whole = ""
    for way, (given, between, behind) in AROUND.items():
        before, after = PROGRAMS[way]
        program = "\n".join([given, before, between, after, behind])
        whole += f"exec(compile({program!r}, {way!r}, 'exec'), {{}})\n"
    done = subprocess.run([sys.executable, "-c", whole], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


def test_every_program_is_run() -> None:
    assert {way for way, programs in PROGRAMS.items() if programs} == AROUND.keys()
