"""The parts that put faults into modules and count those that a test notices."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tools.conformance.page import table
from tools.conformance.suites import ROOT, Outcome

GOAL = 0.92  # of the faults of a sample
LIMIT = 240  # seconds for one fault's tests, in each set: enough for all of them on a machine that is busy
SEED = 1
NOTICED = "killed"
SAME = Path(__file__).with_name("same.toml")


@dataclass(frozen=True)
class Group:
    """Modules, how many of their faults are tried, and the tests: those that are most likely to notice, and others."""

    what: str
    modules: tuple[str, ...]
    count: int
    first: tuple[str, ...]
    wider: tuple[str, ...]


GROUPS = {
    "ir": Group(
        "the network: dims, specs, ops' frame, expressions, text, recipes", ("ingot/ir/*.py", "ingot/dims*.py"), 120,
        ("tests/ir", "tests/passes/test_recipe.py", "tests/ops/test_ops.py"),
        ("tests/passes", "tests/functional", "tests/ops/test_conversion.py",
         "tests/backends/test_stored.py", "tests/engine", "tests/nn", "tests/frontends/test_torch_export_dynamic.py",
         "tests/frontends/test_torch_export_ops.py"),
    ),
    "passes": Group(
        "the compiler's passes", ("ingot/passes/*.py",), 100,
        ("tests/passes",),
        ("tests/engine", "tests/frontends/test_masks.py", "tests/builder/test_weights.py", "tests/functional",
         "tests/nn", "tests/frontends/test_torch_export_nets.py", "tests/frontends/test_torch_export_families.py"),
    ),
    "backends": Group(
        "targets and their programs", ("ingot/backends/**/*.py",), 100,
        ("tests/backends", "tests/passes/test_program.py", "tests/engine/test_ops_run.py"),
        ("tests/passes", "tests/engine", "tests/native/test_planner.py", "tests/cli/test_run.py",
         "tests/llm/test_llm.py", "tests/llm/test_llm_words.py", "tests/llm/test_llm_sources.py",
         "tests/llm/test_plan.py", "tests/builder/test_refit_given.py", "tests/builder/test_refit_shared.py"),
    ),
    "serving": Group(
        "scheduler, KV cache and sampling",
        ("ingot/llm/scheduler.py", "ingot/llm/kv_cache.py", "ingot/llm/sampling.py"), 120,
        ("tests/llm/test_kv_cache.py", "tests/llm/test_scheduler.py", "tests/llm/test_scheduler_ahead.py",
         "tests/llm/test_sampling.py"),
        ("tests/llm/test_prefix.py", "tests/llm/test_loop.py", "tests/llm/test_llm.py", "tests/llm/test_llm_words.py",
         "tests/llm/test_llm_streams.py", "tests/llm/test_llm_sources.py"),
    ),
}  # fmt: skip


class Same(NamedTuple):
    """A fault that no test can notice, for it changes nothing but the text of the program: where, and why not."""

    module: str
    text: str
    what: str
    why: str


def read_same(path: Path = SAME) -> dict[tuple[str, str, str], Same]:
    """The faults that were looked at and found to change nothing. Raises TypeError for entries of other fields."""
    found = [Same(**entry) for entry in tomllib.loads(path.read_text()).get("fault", [])]
    return {(one.module, one.text, one.what): one for one in found}


def mutants(name: str) -> Outcome:
    """A random sample of the faults of a group. Fails when too few are noticed, or none could be tried."""
    group = GROUPS[name]
    words = ["--count", str(group.count), "--seed", str(SEED), "--limit", str(LIMIT), "--modules", *group.modules]
    words += ["--first", *group.first, "--wider", *group.wider]
    workers = max(2, len(os.sched_getaffinity(0)) // 2)
    command = [sys.executable, "-m", "tools.mutation", *words, "--workers", str(workers)]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    shown = f"python -m tools.mutation {shlex.join(words)}"
    if done.returncode:
        return Outcome(True, f"**It ended with status {done.returncode}.**", shown)
    return judged(json.loads(done.stdout), shown, read_same())


def judged(result: dict[str, Any], command: str, same: Mapping[tuple[str, str, str], Same]) -> Outcome:
    """What the tool found, as a section: the share that was noticed, per module, and every fault that was not. Faults
    that are known to change nothing count neither way, unless a test noticed them all the same.
    """
    nothing, tried = [], []
    for fault in result["tried"]:
        known = same.get((fault["module"], fault["text"], fault["what"]))
        if known and fault["outcome"] != NOTICED:
            nothing.append(f"- {fault['module']}:{fault['line']}: {fault['what']}: {known.why}")
        else:
            tried.append(fault)
    noticed = sum(fault["outcome"] == NOTICED for fault in tried)
    share = noticed / max(len(tried), 1)
    counts: dict[str, Counter[str]] = {}
    for fault in tried:
        counts.setdefault(fault["module"], Counter())[fault["outcome"]] += 1
    columns = (NOTICED, "survived", "out of time")
    rows = [[module, *(str(count[column]) for column in columns)] for module, count in sorted(counts.items())]
    lines = [
        f"{noticed} of {len(tried)} noticed, {share:.1%}; the goal is {GOAL:.0%}. The sample is random (seed {SEED}) "
        f"out of {result['faults']:,} faults; {result['tests']:,} tests may notice them, {len(result['unfit'])} that "
        "fail or skip without a fault are not used. Texts of messages are left out.",
        table(["module", *columns], rows),
    ]
    alive = [f for f in tried if f["outcome"] != NOTICED]
    if alive:
        order = sorted(alive, key=lambda f: (f["module"], f["line"]))
        lines.append("Not noticed:\n\n" + "\n".join(
            f"- {f['module']}:{f['line']}: {f['what']}{' (out of time)' * (f['outcome'] == 'out of time')}"
            for f in order))
    if nothing:
        lines.append("Tried too, and in neither number, for they change nothing:\n\n" + "\n".join(sorted(nothing)))
    return Outcome(share < GOAL or not tried, "\n\n".join(lines), command)
