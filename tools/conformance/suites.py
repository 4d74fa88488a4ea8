"""Runs tests and counts what came of them, per folder."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tools.conformance.page import table

ROOT = Path(__file__).parents[2]
OUTCOMES = ("passed", "failed", "skipped")
ENDED = (-signal.SIGINT, -signal.SIGTERM)  # by somebody
MOST_NAMES = 40  # of failed tests, in a section
WORKERS = int(os.environ.get("WORKERS", "2"))  # processes: `make conformance PART=NAME WORKERS=14`


@dataclass
class Outcome:
    """What a part found. `failed` is true for any reason that `body` gives; `tests` counts by outcome."""

    failed: bool
    body: str
    command: str
    tests: Counter[str] = field(default_factory=Counter)


def run_tests(arguments: Sequence[str], environment: Mapping[str, str] | None = None) -> Outcome:
    """pytest with these arguments. A run that ends otherwise than well has failed, whatever it counted.

    One that somebody ends is none: KeyboardInterrupt.
    """
    words = ["-q", "-n", str(WORKERS), *arguments]
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *words, f"--junitxml={report}"]
        status = subprocess.run(command, cwd=ROOT, env={**os.environ, **(environment or {})}).returncode
        text = report.read_text() if report.exists() else "<none/>"
    counts, bad = counted(text)
    if status in ENDED or (status == pytest.ExitCode.INTERRUPTED and not bad):
        raise KeyboardInterrupt(f"pytest ended with status {status}")
    total = sum(counts.values(), Counter[str]())
    notes = []
    if status and not bad:
        notes.append(f"**pytest ended with status {status}.**")
    if bad:
        more = f"\n- and {len(bad) - MOST_NAMES} more" if len(bad) > MOST_NAMES else ""
        notes.append("Failed:\n\n" + "\n".join(f"- `{name}`" for name in bad[:MOST_NAMES]) + more)
    rows = [[folder, *(f"{count[o]:,}" for o in OUTCOMES)] for folder, count in sorted(counts.items())]
    body = "\n\n".join([table(["tests", *OUTCOMES], rows), *notes])
    level = [f"INGOT_ISA={environment['INGOT_ISA']}"] if environment and "INGOT_ISA" in environment else []
    return Outcome(bool(status or bad or not total["passed"]), body, shlex.join([*level, "pytest", *words]), total)


def counted(report: str) -> tuple[dict[str, Counter[str]], list[str]]:
    """Outcomes per folder of a JUnit report, and the names of the tests that failed."""
    counts: dict[str, Counter[str]] = {}
    bad = []
    for case in ElementTree.fromstring(report).iter("testcase"):
        parts = (case.get("classname") or "").split(".")
        folder = "/".join(parts[:2]) or "collection"
        failed = case.find("failure") is not None or case.find("error") is not None
        outcome = "failed" if failed else "skipped" if case.find("skipped") is not None else "passed"
        counts.setdefault(folder, Counter())[outcome] += 1
        if failed:
            bad.append("/".join(parts) + f"::{case.get('name')}")
    return counts, bad
