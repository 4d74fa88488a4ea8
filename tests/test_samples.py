"""Every block of Python in the pages runs, here or in the test that the table names; excerpts of our files are true."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.kept import PICO
from tests.test_docs import PAGES, fenced

ROOT = Path(__file__).parent.parent
# Pages whose blocks have a test of their own.
ELSEWHERE = {
    "README.md": "tests/test_docs.py",
    "adding-an-op.md": "tests/adding_an_op.py",
    "migrating.md": "tests/compat/test_migrating.py",
    "serving.md": "tests/serve/test_docs_examples.py",
}
# Pages whose blocks are copied from a file of ours.
EXCERPTS = {
    "adding-a-kernel.md": "ingot/backends/cpu/norm.py",
    "adding-an-importer-op.md": "ingot/frontends/torch_export/aten/activation.py",
}
# What comes before the blocks of a page, and what has to hold after them.
BEFORE = {
    "chat.md": "",
    "devices.md": """
import torch, ingot
engine = ingot.build(torch.nn.Linear(3, 2), (torch.ones(2, 3),), precision="bfloat16", report=False)
tensor = torch.ones(2, 3)
""",
    "embeddings.md": "import ingot\n",
    "importing.md": "import torch\ntorch.manual_seed(0)\n",
    "onnx.md": """
import numpy, onnx, ingot
from onnx import TensorProto, helper
opsets = [helper.make_opsetid("ai.onnx.ml", 2), helper.make_opsetid("", 20)]
def saved(node, inputs, output, path):
    graph = helper.make_graph([node], "g", inputs, [output])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), path)
words_of = lambda name: helper.make_tensor_value_info(name, TensorProto.STRING, ["N"])
encoder = helper.make_node("LabelEncoder", ["word"], ["label"], domain="ai.onnx.ml",
                           keys_strings=["green", "red"], values_strings=["go", "stop"])
saved(encoder, [words_of("word")], words_of("label"), "text.onnx")
floats = lambda name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2])
saved(helper.make_node("Add", ["x", "y"], ["z"]), [floats("x"), floats("y")], floats("z"), "model.onnx")
x, y = numpy.float32([1, 2]), numpy.float32([3, 4])
""",
    "own-ops.md": """
from ingot import nn
class Net(nn.Module):
    def forward(self, x):
        return {"y": clip_rows(x, limit=2.0)}
""",
    "quantization.md": """
import numpy as np, torch, ingot
torch.manual_seed(0)
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.out = torch.nn.Conv2d(3, 8, 3), torch.nn.Linear(8 * 36, 4)
    def forward(self, x):
        return self.out(self.conv(x).relu().flatten(1))
net, example = Net().eval(), torch.randn(2, 3, 8, 8)
loader = [torch.randn(2, 3, 8, 8) for _ in range(4)]
held_out = torch.randn(2, 3, 8, 8)
def accuracy(engine, batch):
    (found,) = engine.run(batch.numpy()).values()
    return -float(np.abs(found - net(batch).detach().numpy()).mean())
""",
}
AFTER = {
    "chat.md": "assert answer.finish_reason in ('stop', 'length') and stream.completion.completion_tokens == 32\n",
    "devices.md": "assert tuple(out.shape) == (2, 2)\n",
    "embeddings.md": "assert vectors.shape[0] == 1\n",
    "importing.md": "import os; assert os.path.getsize('model.pt2') > 0 and engine.inputs[0].dims[0] == 'N'\n",
    "onnx.md": "assert labels.tolist() == ['go', 'stop'] and outputs[0].tolist() == z.tolist() == [4.0, 6.0]\n",
    "own-ops.md": "assert engine.run(np.full((1, 4), 9, np.float32))['y'].max() == 2\n",
    "quantization.md": "import os; assert os.path.exists('net.ingot')\n",
}


def blocks(name: str) -> list[str]:
    page = next(page for page in PAGES if page.name == name)
    return [text for language, text in fenced(page.read_text()) if language == "python"]


def test_every_block_is_accounted_for() -> None:
    shown = {page.name for page in PAGES if blocks(page.name)}
    assert shown == {*ELSEWHERE, *EXCERPTS, *BEFORE}
    for name, test in ELSEWHERE.items():
        assert name in (ROOT / test).read_text()


@pytest.mark.parametrize("name", EXCERPTS)
def test_excerpts_are_true(name: str) -> None:
    def plain(text: str) -> str:
        return re.sub(r"\s+", " ", text).strip()

    source = plain((ROOT / EXCERPTS[name]).read_text())
    for block in blocks(name):
        assert plain(block) in source


@pytest.mark.slow
@pytest.mark.parametrize("name", BEFORE)
def test_blocks_run(name: str, tmp_path: Path) -> None:
    """All of a page's, one after the other in one process, as somebody would who reads it."""
    found = blocks(name)
    if name == "devices.md":  # torch's device on the CPU, which every machine has
        found = [block.replace('"cuda"', '"torch"').replace('"x"', "engine.inputs[0].name") for block in found]
    if name == "chat.md":
        (tmp_path / "models").symlink_to(ROOT / "models")
    if name == "embeddings.md":  # a model of this repository, and a coroutine for what is awaited
        shutil.copytree(PICO, tmp_path / "Qwen3-Embedding-0.6B")
        body = "".join(f"    {line}\n" for line in found[0].splitlines())
        found = [f"import asyncio\nasync def shown():\n{body}    return vectors\nvectors = asyncio.run(shown())\n"]
    if name == "own-ops.md":  # a library of two ops in C, beside the op that the engine calls
        source, library = ROOT / "tests" / "ops" / "scale.c", tmp_path / "scale.so"
        include = ROOT / "native" / "include"
        subprocess.run(["gcc", "-shared", "-fPIC", f"-I{include}", source, "-o", library], check=True)
        found[2] = found[2].replace("(scale,)", "(scale, _)").replace("ops=[scale]", "ops=[clip_rows, scale]")
    code = "\n".join([BEFORE[name], *found, AFTER[name]])
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, done.stderr[-3000:]
