"""Runs pytest at instruction-set levels, each in a fork of a process that has imported what takes longest.

`python -m tests.kernels.levels` reads lines of JSON, each a level, a file for what pytest writes and its arguments; it
answers each with a line, pytest's status.
"""

from __future__ import annotations

import json
import os
import sys

import ml_dtypes  # noqa: F401
import numpy  # noqa: F401
import pytest
import torch  # noqa: F401


def run(level: str, output: str, arguments: list[str]) -> int:
    """pytest in a fork: the native core reads its level once, and is not loaded here."""
    child = os.fork()
    if not child:
        os.environ["INGOT_ISA"] = level
        file = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(file, 1)
        os.dup2(file, 2)
        status = pytest.main(arguments)
        sys.stdout.flush()
        os._exit(status)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


if __name__ == "__main__":
    assert not any(name.partition(".")[0] == "ingot" for name in sys.modules)
    for line in sys.stdin:
        print(run(*json.loads(line)), flush=True)
