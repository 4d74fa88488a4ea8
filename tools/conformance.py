"""Runs the long suites and writes their table: `python -m tools.conformance [--seconds N]` (make conformance).

All tests with a thousand examples for every property, those that reach native code at every level of this machine, the
benchmarks that check numbers, and the fuzzers. The table goes to docs/conformance.md; the exit code is 1 when anything
failed.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.harness import machine_name
from ingot import _native
from ingot.version import __version__

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "conformance.md"
NATIVE = ("kernels", "native", "passes", "engine", "llm", "cli")  # the suites that reach kernels


@dataclass
class Suites:
    """Outcomes per folder of tests, of one run of pytest."""

    level: str
    counts: dict[str, Counter[str]] = field(default_factory=dict)

    @property
    def failed(self) -> bool:
        return any(count["failed"] for count in self.counts.values()) or not self.counts


def run_tests(level: str, folders: list[Path]) -> Suites:
    """All tests of the folders, slow ones too, at one level."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        options = [
            "-q",
            "-m",
            "slow or not slow",
            "--hypothesis-profile=conformance",
            "--timeout=3600",
            f"--junitxml={report}",
        ]
        command = [sys.executable, "-m", "pytest", *options, *map(str, folders)]
        subprocess.run(command, cwd=ROOT, env=os.environ | {"INGOT_ISA": level})
        found = Suites(level)
        for case in ElementTree.parse(report).iter("testcase") if report.exists() else ():
            parts = (case.get("classname") or "").split(".")
            suite = parts[1] if len(parts) > 2 else "package"
            bad = case.find("failure") is not None or case.find("error") is not None
            outcome = "failed" if bad else "skipped" if case.find("skipped") is not None else "passed"
            found.counts.setdefault(suite, Counter())[outcome] += 1
        return found


def numbers(name: str) -> tuple[list[str], bool]:
    """Lines of the table from a benchmark that checks numbers, and whether a goal was missed."""
    done = subprocess.run(
        [sys.executable, "-m", "benchmarks", name, "--json"], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    if done.returncode:
        return [f"| {name} | failed to run | |"], True
    rows = json.loads(done.stdout.splitlines()[-1])["rows"]
    words = {True: "met", False: "**missed**", None: ""}
    lines = [f"| {name}: {row['what']} | {row['value']:.6g} {row['unit']} | {words[row['met']]} |" for row in rows]
    return lines, any(row["met"] is False for row in rows)


def fuzzed(seconds: int) -> tuple[list[str], bool]:
    """Lines of the table from the fuzzers."""
    command = [sys.executable, "-m", "fuzz", "--seconds", str(seconds)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    lines = [line.split(":", 1) for line in done.stdout.splitlines() if ":" in line]
    return [f"| {name} | {said.strip()[:200]} |" for name, said in lines], done.returncode != 0


def table(runs: list[Suites]) -> list[str]:
    """One row per suite, one column per level."""
    suites = sorted({suite for run in runs for suite in run.counts})
    lines = ["| suite | " + " | ".join(run.level for run in runs) + " |", "|---" * (len(runs) + 1) + "|"]
    for suite in suites:
        cells = []
        for run in runs:
            count = run.counts.get(suite)
            shown = "" if count is None else f"{count['passed']} passed"
            shown += f", {count['skipped']} skipped" if count and count["skipped"] else ""
            shown += f", **{count['failed']} failed**" if count and count["failed"] else ""
            cells.append(shown)
        lines.append(f"| {suite} | " + " | ".join(cells) + " |")
    return lines


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.conformance", description=__doc__)
    parser.add_argument(
        "--seconds", type=int, default=600, help="for the Python fuzzers, and as many for the native one"
    )
    given = parser.parse_args()
    levels = _native.levels()[::-1]
    lower = [ROOT / "tests" / name for name in NATIVE]
    runs = [run_tests(levels[0], [ROOT / "tests"]), *(run_tests(level, lower) for level in levels[1:])]
    checks = [numbers(name) for name in ("greedy", "heldout")]
    fuzz_lines, fuzz_failed = fuzzed(given.seconds)
    revision = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout
    page = [
        "# Conformance",
        "",
        f"Written by `make conformance` on {datetime.date.today()} at {revision.strip()}: ingot {__version__}, "
        f"Python {platform.python_version()}, {machine_name()}.",
        "",
        "## Tests, a thousand examples per property, by instruction-set level",
        "",
        *table(runs),
        "",
        "## Numbers against Hugging Face transformers",
        "",
        "| what | measured | goal |",
        "|---|---|---|",
        *(line for lines, _ in checks for line in lines),
        "",
        f"## Fuzzing, {given.seconds} s of the Python readers and as long of the C++ reader under ASan and UBSan",
        "",
        "| target | result |",
        "|---|---|",
        *fuzz_lines,
    ]
    PAGE.write_text("\n".join(page) + "\n")
    return int(any(run.failed for run in runs) or any(missed for _, missed in checks) or fuzz_failed)


if __name__ == "__main__":
    sys.exit(main())
