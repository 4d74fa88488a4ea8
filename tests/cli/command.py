"""Commands in this process, where modules are loaded already, and a few in one of their own, as users start them.

A start and the imports were most of a command's time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ingot.cli.main import main

ROOT = Path(__file__).parents[2]
ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}
Done = subprocess.CompletedProcess[str]


def run(*words: object, stdin: str | bytes = "", cwd: Path | None = None) -> Done:
    """Runs a command here, however it ends."""
    command = list(map(str, words))
    with contextlib.chdir(cwd or Path.cwd()), streams(stdin) as (output, errors):
        try:
            code = main(command)
        except SystemExit as e:  # of --help, --version, a bad command line
            code = int(e.code or 0)
    return subprocess.CompletedProcess(command, code, output.getvalue().decode(), errors.getvalue().decode())


def ingot(*words: object, code: int = 0, stdin: str | bytes = "", cwd: Path | None = None) -> Done:
    """Runs a command here, which must end with that code and without a traceback."""
    return checked(run(*words, stdin=stdin, cwd=cwd), code)


def process(*words: object, code: int = 0, stdin: str | bytes = "", cwd: Path | None = None) -> Done:
    """The same in a process of its own."""
    command = [sys.executable, "-m", "ingot", *map(str, words)]
    given = stdin.encode() if isinstance(stdin, str) else stdin
    done = subprocess.run(command, capture_output=True, input=given, cwd=cwd, env=ENVIRONMENT, check=False)
    output, errors = done.stdout.decode(), done.stderr.decode()
    return checked(subprocess.CompletedProcess(command, done.returncode, output, errors), code)


def checked(done: Done, code: int) -> Done:
    assert done.returncode == code, (done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    assert "nanobind" not in done.stderr
    return done


@contextlib.contextmanager
def streams(stdin: str | bytes) -> Iterator[tuple[io.BytesIO, io.BytesIO]]:
    """Standard input from these bytes; what goes to standard output and error."""
    given = io.BytesIO(stdin.encode() if isinstance(stdin, str) else stdin)
    output, errors = io.BytesIO(), io.BytesIO()
    before = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = (io.TextIOWrapper(f, encoding="utf-8") for f in (given, output, errors))
    replaced = sys.stdin, sys.stdout, sys.stderr
    try:
        yield output, errors
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for stream in replaced:
            stream.flush()
            stream.detach()


def as_json(*words: object, **options: Any) -> dict[str, Any]:
    """The object that a command prints: one line, nothing else on standard output, and only what JSON has."""

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is not JSON")

    lines = ingot(*words, "--json", **options).stdout.splitlines()
    assert len(lines) == 1
    value = json.loads(lines[0], parse_constant=refuse)
    assert value.pop("schema") == 1
    return dict(value)
