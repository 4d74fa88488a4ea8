"""Tries a random sample of faults: `python -m tools.mutation --modules GLOB... --first TESTS... --wider TESTS...`

Prints JSON: {"faults", "tried": [{"module", "line", "text", "what", "outcome", "seconds"}], "tests", "unfit",
"seconds"}. What is drawn depends on the seed and on the faults themselves: where code is added, those that were drawn
elsewhere stay.

Every fault is tried in a process of its own, forked from this one, which never loads the package; no file changes.
First the tests in `--first` that run a faulty line, the fastest ones first, until one fails, then those in `--wider`. A
fault that no test notices in the time that it gets has survived. Tests that fail without any fault are not used.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import importlib
import json
import os
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tools.mutation import child
from tools.mutation.faults import Fault, faults, mutated

POLL = 0.02  # seconds
PAIR = 2  # processors that a fault's tests run on: sessions wait for their threads in a loop, and must not fight
BROKEN = 99  # the status of work that raised


@dataclass(frozen=True)
class Mutant:
    """A fault of a module (None: it is as it is), and the tests that may notice it with the seconds that each takes:
    first ones, wider ones. The path is relative to the root.
    """

    path: Path
    fault: Fault | None
    tests: tuple[dict[str, float], ...]

    def module(self) -> child.Given:
        source = self.path.read_text()
        tree = ast.parse(source) if self.fault is None else mutated(source, self.fault.number)
        name = ".".join(self.path.with_suffix("").parts)
        if name in sys.modules:
            raise RuntimeError(f"{name} is loaded already: no fault would reach the tests")
        return child.Given(name, str(self.path.absolute()), tree)


RUNNING: set[int] = set()  # processes that were forked and have not been waited for


def places(workers: int) -> list[set[int]]:
    """The processors of each worker: a pair of its own if there are so many, else all of them."""
    every = sorted(os.sched_getaffinity(0))
    if len(every) < PAIR * workers:
        return [set(every)] * workers
    return [set(every[i * PAIR : (i + 1) * PAIR]) for i in range(workers)]


def forked(work: Callable[[], int], processors: set[int]) -> int:
    """Starts a process that does the work on these processors and ends with its status; it leads a group of its own."""
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        os.setpgid(0, 0)
        os.sched_setaffinity(0, processors)
        errors = os.dup(2)  # the work may close the other
        try:
            os._exit(work())
        except BaseException:
            os.write(errors, traceback.format_exc().encode())
            os._exit(BROKEN)
    RUNNING.add(pid)
    return pid


def status_of(pid: int) -> int | None:
    """The exit status (negative: a signal) of a forked process, None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    if not found:
        return None
    RUNNING.discard(pid)
    return os.waitstatus_to_exitcode(status)


def end(pid: int) -> None:
    """Ends a forked process and all that it started."""
    os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    RUNNING.discard(pid)


def recorded(folders: Sequence[str], files: Sequence[Path], seconds: float) -> dict[str, Any]:
    """What the tests run of the files: see child.record."""
    with tempfile.TemporaryDirectory() as folder:
        to = Path(folder) / "lines.json"

        def work() -> int:
            child.record(folders, [str(f.absolute()) for f in files], to)
            return 0

        pid, deadline = forked(work, places(1)[0]), time.monotonic() + seconds
        while (status := status_of(pid)) is None and time.monotonic() < deadline:
            time.sleep(POLL)
        if status != 0 or not to.exists():
            sys.exit(f"recording the lines of {' '.join(folders)} ended with status {status}")
        return dict(json.loads(to.read_text()))


def sample(everything: Sequence[tuple[Path, Fault]], count: int, seed: int) -> list[tuple[Path, Fault]]:
    """So many faults, at random: by a hash of the seed, the module, the line and what is changed on it."""
    seen: Counter[str] = Counter()
    drawn = []
    for path, fault in everything:
        name = f"{path} {fault.text} {fault.what}"
        seen[name] += 1
        drawn.append((hashlib.sha256(f"{seed} {name} {seen[name]}".encode()).digest(), path, fault))
    return [(path, fault) for _, path, fault in sorted(drawn, key=lambda one: one[0])[:count]]


def noticing(path: Path, fault: Fault, tests: dict[str, Any]) -> dict[str, float]:
    """The tests that run a line of the fault, the fastest first.

    What a statement leaves that runs at import, a table for instance, may be seen by any test: by one that runs a line
    of the statement (in a lambda of the table) most likely, then by one that uses the module.
    """
    low, high = fault.lines
    users = {name: set(test["lines"].get(str(path.absolute()), ())) for name, test in tests.items()}
    apart = {name: lines.isdisjoint(range(low, high + 1)) for name, lines in users.items()}
    found = [name for name in tests if fault.at_import or not apart[name]]
    order = sorted(found, key=lambda name: (apart[name], not users[name], tests[name]["seconds"]))
    return {name: tests[name]["seconds"] for name in order}


def outcome(status: int) -> str:
    """`0` of pytest: no test failed; `5`: none was there."""
    if status == BROKEN:
        raise RuntimeError("a process that tries a fault failed before it could")
    return "survived" if status in (0, 5) else "killed"


class Trial:
    """One mutant being tried: its tests in turn, in a process each."""

    def __init__(self, mutant: Mutant, limit: float, place: set[int]) -> None:
        self.mutant, self.limit, self.place = mutant, limit, place
        self.start = time.monotonic()
        self.rest = [tests for tests in mutant.tests if tests]
        self.module = mutant.module()
        self.result = "survived"
        self.pid = 0
        self._next()

    def _next(self) -> None:
        if self.rest:
            tests = self.rest.pop(0)
            self.deadline = time.monotonic() + self.limit
            self.pid = forked(lambda: child.run_tests(self.module, tests), self.place)
        else:
            self.pid = 0

    def done(self) -> bool:
        """Looks at the process, and starts the next one when this one's tests all passed."""
        while self.pid:
            status = status_of(self.pid)
            if status is not None:
                self.result = outcome(status)
            elif time.monotonic() > self.deadline:
                end(self.pid)
                self.result = "out of time"
            else:
                return False
            if self.result == "killed":
                return True
            self._next()
        return True


def tried(mutants: Sequence[Mutant], limit: float, workers: int) -> list[dict[str, Any]]:
    waiting, running, found, free = list(mutants), list[Trial](), [], places(workers)
    while waiting or running:
        while waiting and free:
            running.append(Trial(waiting.pop(0), limit, free.pop()))
        for trial in [t for t in running if t.done()]:
            running.remove(trial)
            free.append(trial.place)
            seconds, fault = round(time.monotonic() - trial.start, 1), trial.mutant.fault
            line, text, what = (fault.lines[0], fault.text, fault.what) if fault else (0, "", "as it is")
            row = {"module": str(trial.mutant.path), "line": line, "text": text, "what": what, "outcome": trial.result}
            found.append({**row, "seconds": seconds})
            print(f"{trial.result:11} {seconds:6} s  {trial.mutant.path}:{line} {what}", file=sys.stderr, flush=True)
        time.sleep(POLL)
    return found


def main(words: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.mutation", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", nargs="+", required=True, help="relative to the working directory")
    parser.add_argument("--first", nargs="+", required=True)
    parser.add_argument("--wider", nargs="*", default=[])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=float, default=60, help="seconds for one fault's tests, in each set")
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args(words)
    os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}  # as many processes as processors
    start = time.monotonic()
    files = sorted(path for pattern in given.modules for path in Path().glob(pattern) if path.name != "__init__.py")
    found = recorded([*given.first, *given.wider], files, 900)
    if found["status"] not in (0, 1) or not found["tests"]:
        sys.exit(f"without any fault pytest ended with status {found['status']} after {len(found['tests'])} tests")
    for name in found["loaded"]:  # once, for all that are forked
        with suppress(ImportError):  # some put modules of their own making into sys.modules
            importlib.import_module(name)
    first = {n: t for n, t in found["tests"].items() if n.startswith(tuple(given.first))}
    wider = {n: t for n, t in found["tests"].items() if n not in first}
    everything = [(path, fault) for path in files for fault in faults(path.read_text())]
    mutants = [Mutant(path, fault, (noticing(path, fault, first), noticing(path, fault, wider)))
               for path, fault in sample(everything, given.count, given.seed)]
    control = Mutant(files[0], None, ({n: t["seconds"] for n, t in first.items()},))
    if tried([control], 900, 1)[0]["outcome"] != "survived":
        sys.exit("a module as it is fails tests when it is loaded in this way")
    results = tried(mutants, given.limit, given.workers)
    print(json.dumps({
        "faults": len(everything), "tests": len(found["tests"]), "unfit": found["unfit"], "tried": results,
        "seconds": round(time.monotonic() - start),
    }))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        sys.exit(main())
    finally:  # whoever ends this process ends what it runs
        for pid in list(RUNNING):
            end(pid)
