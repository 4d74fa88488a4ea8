"""What happens in a process of its own: tests run while lines are recorded, or with a fault in one module."""

from __future__ import annotations

import ast
import importlib.abc
import importlib.machinery
import json
import os
import resource
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from importlib.util import spec_from_loader
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings

MEMORY = 12 << 30  # of address space, for faults that make something huge
HANGS = 20  # a test has hung after this many seconds more than ten times what it takes
PYTEST = ("-q", "-x", "-p", "no:cacheprovider", "-W", "ignore::pytest.PytestAssertRewriteWarning")


def run_pytest(arguments: Sequence[str], plugin: object) -> int:
    """pytest in this process, silently. Properties are not shrunk, and draw the same examples each time."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    sys.dont_write_bytecode = True
    settings.register_profile(
        "mutation", deadline=None, derandomize=True, phases=[Phase.explicit, Phase.generate],
        suppress_health_check=[HealthCheck.too_slow],
    )  # fmt: skip
    silence = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(silence, stream)
    return int(pytest.main([*PYTEST, "--hypothesis-profile=mutation", *arguments], plugins=[plugin]))


# ------------------------------------------------------------------------------------------------------- recording


class Recorder:
    """A plugin that records which lines of some files each test runs, how long it takes, and whether it passes."""

    def __init__(self, files: Sequence[str]) -> None:
        self.files = set(files)
        self.lines: dict[str, set[int]] = {name: set() for name in files}
        self.tests: dict[str, dict[str, Any]] = {}
        self.failed: set[str] = set()
        sys.settrace(self._call)
        threading.settrace(self._call)

    def _call(self, frame: FrameType, event: str, argument: object) -> Any:
        return self._line if frame.f_code.co_filename in self.files else None

    def _line(self, frame: FrameType, event: str, argument: object) -> Any:
        self.lines[frame.f_code.co_filename].add(frame.f_lineno)
        return self._line

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        for found in self.lines.values():
            found.clear()
        start = time.monotonic()
        yield
        lines = {name: sorted(found) for name, found in self.lines.items() if found}
        self.tests[item.nodeid] = {"seconds": time.monotonic() - start, "lines": lines}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed or report.skipped:
            self.failed.add(report.nodeid)


def record(folders: Sequence[str], files: Sequence[str], to: Path) -> None:
    """Writes what the tests in `folders` run of `files`, and which modules from elsewhere they load."""
    recorder = Recorder(files)
    status = run_pytest(["--maxfail=1000000", *folders], recorder)
    sys.settrace(None)
    ours = {path.stem for path in Path.cwd().iterdir()} | {"__main__"}
    loaded = sorted({name.partition(".")[0] for name in sys.modules} - ours)
    found = {name: test for name, test in recorder.tests.items() if name not in recorder.failed}
    to.write_text(json.dumps({"status": status, "tests": found, "unfit": sorted(recorder.failed), "loaded": loaded}))


# ---------------------------------------------------------------------------------------------------------- testing


class Given(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads one module from a tree that is given, and nothing else."""

    def __init__(self, name: str, path: str, tree: ast.Module) -> None:
        self.name, self.path, self.tree = name, path, tree

    def find_spec(self, name: str, path: object, target: object = None) -> importlib.machinery.ModuleSpec | None:
        return spec_from_loader(name, self, origin=self.path) if name == self.name else None

    def exec_module(self, module: ModuleType) -> None:
        module.__file__ = self.path
        exec(compile(self.tree, self.path, "exec"), module.__dict__)


class Chosen:
    """A plugin that runs the tests that are named, in the order of the names, each for a limited time."""

    def __init__(self, seconds: Mapping[str, float]) -> None:
        self.seconds = seconds
        self.order = {name: i for i, name in enumerate(seconds)}

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.order), key=lambda item: self.order[item.nodeid])
        for item in items:
            item.add_marker(pytest.mark.timeout(HANGS + 10 * self.seconds[item.nodeid]))


def run_tests(module: Given, seconds: Mapping[str, float]) -> int:
    """pytest's status for the tests named by `seconds` with a module in the place of its file: 0 when all pass."""
    sys.meta_path.insert(0, module)
    files = dict.fromkeys(name.partition("::")[0] for name in seconds)
    return run_pytest(list(files), Chosen(seconds))
