"""A calibrated net repeats a run of its build on another machine, and says where numbers differ."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.cli.main import main
from ingot.engine.self_test import KEY, check
from ingot.engine.session import Engine
from ingot.errors import EngineFileError, MismatchError, UserError
from tests.quantization.test_quantize import batches, net


@pytest.fixture(scope="module")
def engine() -> Engine:
    network, weights = net()
    found: Engine = ingot.quantize(network, batches(), weights=weights, errors=False)
    return found


def test_it_is_repeated_at_another_level(engine: Engine, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "net.ingot"
    engine.save(path)
    assert check(engine).difference == 0.0
    assert main(["inspect", str(path), "--check"]) == 0
    assert "computes what its build did" in capsys.readouterr().out
    command = [sys.executable, "-m", "ingot", "inspect", str(path), "--check"]
    done = subprocess.run(command, env={**os.environ, "INGOT_ISA": "portable"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_other_numbers_are_told(engine: Engine) -> None:
    tensors = {n: engine.tensor(n) for n in engine.header["weights"]}
    changed = {n: a * np.float32(1.5) if a.dtype == np.float32 else a for n, a in tensors.items()}
    with pytest.raises(MismatchError, match="of its root mean square"):
        check(engine.with_tensors(engine.header, changed))


def test_new_weights_have_no_old_self_test(engine: Engine) -> None:
    _, weights = net(seed=3)
    with pytest.raises(UserError, match="has no self-test"):
        check(engine.refit(weights))


CHANGES: dict[str, Any] = {
    "no outputs": lambda test: test.update(outputs={}),
    "another output": lambda test: test.update(outputs={"z": test["outputs"]["y"]}),
    "no base64": lambda test: test["outputs"]["y"].update(sample="?"),
    "rms": lambda test: test["outputs"]["y"].update(rms=-1),
    "tolerance": lambda test: test.update(tolerance="x"),
    "sizes": lambda test: test.update(sizes={"N": -1}),
    "no size": lambda test: test.update(sizes={}),
    "too large": lambda test: test.update(sizes={"N": 1 << 40}),
    "a list": lambda test: test.update(sizes=[]),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_damaged_ones_are_refused(engine: Engine, change: Any) -> None:
    header = copy.deepcopy(engine.header)
    change(header["config"][KEY])
    other = engine.with_tensors(header, {n: engine.tensor(n) for n in header["weights"]})
    with pytest.raises(EngineFileError, match="damaged"):
        check(other)
