"""Runs one part, or lists them: `python -m tools.conformance [NAME|all]`.

Each part writes its own section of docs/conformance.md at its end and leaves the others as they are; one that is
interrupted writes nothing. The exit code is 1 when anything failed, 2 for a part that is not there or that this machine
cannot run.
"""

from __future__ import annotations

import argparse
import datetime
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Sequence

from ingot.errors import UserError
from tools.conformance.page import Page, Section
from tools.conformance.parts import PARTS, Part
from tools.conformance.suites import OUTCOMES, ROOT, Outcome
from tools.machine import machine_name

PAGE = ROOT / "docs" / "conformance.md"


def commit() -> str:
    """The commit that is checked out, and whether files differ from it; the page itself may."""
    words = ["git", "-C", str(ROOT)]
    head = subprocess.run([*words, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    if head.returncode:
        return "not in a git checkout"
    status = [*words, "status", "--porcelain", "--untracked-files=no", "--", ".", f":!{PAGE.relative_to(ROOT)}"]
    changed = subprocess.run(status, capture_output=True, text=True, check=True).stdout
    return head.stdout.strip() + (" with changes" if changed.strip() else "")


def section(part: Part, outcome: Outcome, facts: dict[str, str]) -> Section:
    """What the page says about one run."""
    counts = ", ".join(f"{outcome.tests[o]:,} {o}" for o in OUTCOMES if outcome.tests[o])
    found = {"result": "**failed**" if outcome.failed else "passed", "tests": counts, "command": f"`{outcome.command}`"}
    return Section(part.name, part.what, {**facts, **found}, outcome.body)


def run(part: Part) -> bool:
    """Runs a part and writes its section; whether it failed."""
    facts = {
        "date": str(datetime.date.today()), "commit": commit(), "machine": machine_name(),
        "python": platform.python_version(),
    }  # fmt: skip
    start = time.monotonic()
    outcome = part.run()
    facts["minutes"] = f"{(time.monotonic() - start) / 60:.1f}"
    page = Page.read(PAGE)
    page.put(section(part, outcome, facts))
    page.write(PAGE, [p.name for p in PARTS])
    print(f"{part.name}: {'FAILED' if outcome.failed else 'passed'} after {facts['minutes']} minutes")
    return outcome.failed


def listing() -> str:
    return "\n".join(f"{part.name:18} {part.minutes:3} min  {part.what}" for part in PARTS)


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.conformance", description=__doc__, epilog=f"parts:\n{listing()}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )  # fmt: skip
    parser.add_argument("part", nargs="?", choices=[*(part.name for part in PARTS), "all"], metavar="NAME|all")
    given = parser.parse_args(words)
    if given.part is None:
        print(f"make conformance PART=NAME, or PART=all for all in turn:\n\n{listing()}")
        return 0
    # Whoever ends this process ends what it runs: subprocess.run sees to that when an exception passes through it.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    failed = []
    for part in PARTS:
        if given.part not in (part.name, "all"):
            continue
        try:
            failed += [part.name] if run(part) else []
        except UserError as e:
            print(f"{part.name}: {e}", file=sys.stderr)
            if given.part != "all":
                return 2
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
