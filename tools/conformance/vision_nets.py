"""Nets of timm and torchvision, imported through torch.export and compared with torch."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter

from ingot import _lazy
from ingot.errors import UserError
from tools.conformance.page import table
from tools.conformance.suites import ROOT, Outcome
from tools.vision_nets import CACHE, PACKAGES, TOLERANCE, Row, fetch

WANTED = 25  # nets that have to agree; torch itself cannot export whole detectors
SHARES = 2


def vision_nets() -> Outcome:
    """Every net in a process that has the packages' Python code on its path, and those that have no engine with why."""
    fetch()
    environment = {**os.environ, "PYTHONPATH": str(CACHE)}
    words = [sys.executable, "-m", "tools.vision_nets", "--check"]
    running = [
        subprocess.Popen([*words, f"{i}/{SHARES}"], cwd=ROOT, env=environment, stdout=subprocess.PIPE,
                         stderr=subprocess.DEVNULL, text=True)
        for i in range(SHARES)
    ]  # fmt: skip
    said = [process.communicate()[0] for process in running]
    if any(process.returncode for process in running):
        raise UserError("a process that imports nets has ended: " + " ".join(words))
    found = [Row(**json.loads(line)) for text in said for line in text.splitlines()]
    found.sort(key=lambda row: (bool(row.why), row.net))
    good = sum(row.good for row in found)
    free = sum(row.good and bool(row.dynamic) for row in found)
    rows = [
        [row.net, str(row.ops or ""), ", ".join(row.host) or "none" * (not row.why), row.dynamic,
         row.why.replace("|", "\\|") or f"{row.error:.2g}"]
        for row in found
    ]  # fmt: skip
    version = _lazy.load("torch").__version__
    head = (
        f"{good} of {len(found)} agree with torch {version} within {TOLERANCE:g} of each output's largest element, "
        f"{free} of them in one engine for several sizes. Weights are random, nets and images small. From "
        f"{', '.join(PACKAGES)}, with torchvision's own ops in NumPy (tools/torchvision_ops.py)."
    )
    columns = ["net", "calls", "host calls", "sizes that runs choose", "difference, or why there is no engine"]
    missed = [row for row in found if not row.good]
    foreign = [row for row in missed if "torch.export cannot export" in row.why]
    counts = Counter({"passed": good, "failed": len(missed) - len(foreign), "skipped": len(foreign)})
    failed = len(missed) > len(foreign) or good < WANTED
    return Outcome(failed, f"{head}\n\n{table(columns, rows)}", "python -m tools.conformance vision-nets", counts)
