"""No kernel reads before or behind an input that is read where the caller has it, or a weight where its file has it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from ingot import _native
from tests.kernels.borders import KINDS, NETS, SIZES, STORED

LEVELS = _native.levels()
LINES = {
    "inputs": 2 * len(NETS),
    "weights": 2 * sum(len(shapes) > 1 for _, shapes in NETS.values()) + len(STORED) * len(SIZES) * len(KINDS),
}


@pytest.mark.parametrize("what", LINES)
@pytest.mark.parametrize("level", [*(pytest.param(one, marks=pytest.mark.slow) for one in LEVELS[:-1]), LEVELS[-1]])
def test_nothing_beside_them_is_read(level: str, what: str) -> None:
    """In a process of its own: one that reads there dies, and its last line names the network."""
    done = subprocess.run([sys.executable, "-m", "tests.kernels.borders", what], env={**os.environ, "INGOT_ISA": level},
                          capture_output=True, text=True)  # fmt: skip
    assert done.returncode == 0, f"{done.returncode} after {done.stdout.splitlines()[-1:]}: {done.stderr[-2000:]}"
    assert len(done.stdout.splitlines()) == LINES[what]


@pytest.mark.parametrize("place", ["a.ctypes.data - 1", "a.ctypes.data + a.nbytes"])
def test_what_stands_beside_one_cannot_be_read(place: str) -> None:
    code = (f"from tests.kernels.borders import *; a = guarded(np.zeros(16384), {'+' in place}); "
            f"print(a.sum(), flush=True); ctypes.string_at({place}, 1)")  # fmt: skip
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (-signal.SIGSEGV, "0.0\n")
