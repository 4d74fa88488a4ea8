"""The benchmarks' own C++ programs, compiled at first use."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

from benchmarks.harness import CACHE
from ingot.errors import UserError

COMPILER = "g++"


def compile_program(name: str, target: str, source: Path, read: Iterable[Path], words: Iterable[str] = ()) -> Path:
    """A program of that name for a target (as -march takes it), made again when the source or what it reads is newer.

    words: what the compiler is told besides. Raises UserError where there is none.
    """
    program = CACHE / name
    if not program.exists() or program.stat().st_mtime < max(one.stat().st_mtime for one in (source, *read)):
        if shutil.which(COMPILER) is None:
            raise UserError(f"{source.name} needs the compiler {COMPILER}: install it (apt-get install g++)")
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [COMPILER, "-O3", "-std=c++20", f"-march={target}", "-pthread", str(source), *words]
        subprocess.run([*command, "-o", str(program)], check=True)
    return program
