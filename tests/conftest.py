"""Settings and models that all tests share."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from ingot.passes import pipeline
from tests import kept, sampling, workers
from tests.gpu import GPU
from tests.kept import PICO
from tests.workers import PROCESSES, seconds_per_folder, shared, unit

if not GPU:  # read when Triton is imported, which others may do before our own tests
    os.environ.setdefault("TRITON_INTERPRET", "1")

# Tests start some hundred processes: what one has compiled the others read, whatever the environment says of that.
if os.environ.pop("PYTHONDONTWRITEBYTECODE", None):
    sys.dont_write_bytecode = False

# A shell ignores Ctrl-C for what it starts in the background, and programs would inherit that from here.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# "ci" is what `make test` uses: the same examples at every run, and no limit on the time of one; "few" is for what is
# repeated at other instruction-set levels.
# `pytest --hypothesis-profile=conformance` draws fresh ones, twenty times as many.
settings.register_profile(
    "ci", max_examples=50, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("conformance", parent=settings.get_profile("ci"), derandomize=False, max_examples=1000)
settings.register_profile("few", parent=settings.get_profile("ci"), max_examples=20)
settings.load_profile("ci")


@pytest.fixture(scope="session", autouse=True)
def verified_after_each_pass() -> None:
    """A build verifies a network once, at the end of its passes."""
    pipeline.each = True


@pytest.fixture(scope="session")
def pico() -> Path:
    """The Hugging Face directory of pico-python."""
    return PICO


@pytest.fixture(scope="session")
def pico_engine() -> Path:
    """The engine of pico-python in bfloat16."""
    return kept.pico()


# ------------------------------------------------------------------------------------------------- several workers

if "PYTEST_XDIST_WORKER" in os.environ:
    # As many workers as processors: torch, the oracle, gets one thread each. Our own pools stay as they are.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "of the cases of each test only the Kth of every N, and at least one"
    parser.addoption("--share", metavar="K/N", default="0/1", help=told)


def pytest_itemcollected(item: pytest.Item) -> None:
    sampling.leave_out(item)


@pytest.hookimpl(trylast=True)  # a share is of what -m leaves
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    share, of = map(int, config.getoption("--share").split("/"))
    kept = shared([item.nodeid for item in items], share, of)
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid not in kept])
    items[:] = sorted((i for i in items if i.nodeid in kept), key=lambda item: unit(item.nodeid) != PROCESSES)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    return workers.scheduler(config, log)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = [report for found in terminalreporter.stats.values() for report in found]
    lines = seconds_per_folder((r.nodeid, r.duration) for r in reports if isinstance(r, pytest.TestReport))
    if lines:
        terminalreporter.section("seconds per folder, of all workers together")
        terminalreporter.write("".join(f"{line}\n" for line in lines))
