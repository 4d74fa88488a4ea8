"""How the tests are divided: nothing is lost in shares, processes stay together, the closing line stays last."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.sampling import leave_out
from tests.workers import PROCESSES, THEIRS, seconds_per_folder, shared, unit

ROOT = Path(__file__).parent.parent

CASES = [f"tests/a.py::test_many[{i}]" for i in range(12)] + [f"tests/a.py::test_two[{i}]" for i in range(2)]
CASES += ["tests/a.py::test_one", "tests/b.py::test_one"]


@pytest.mark.parametrize("of", [1, 2, 5, 30])
def test_shares_have_something_of_every_test_and_together_all(of: int) -> None:
    shares = [shared(CASES, share, of) for share in range(of)]
    assert set().union(*shares) == set(CASES)
    for share in shares:
        assert {name.partition("[")[0] for name in share} == {name.partition("[")[0] for name in CASES}
    assert shared(CASES, 0, 1) == set(CASES)
    assert sum("many" in name for name in shared(CASES, 1, 5)) == 3


@pytest.mark.parametrize(("words", "kept"), [({}, [0, 4, 8]), ({"by": lambda given: given["n"] > 5}, [0, 4, 6, 8])])
def test_samples_have_the_first_of_so_many_and_of_every_kind(words: dict[str, Any], kept: list[int]) -> None:
    session, marked = SimpleNamespace(stash=pytest.Stash()), pytest.mark.sampled(4, **words).mark

    def often(test: str, n: int, mark: Any = marked) -> bool:
        added: list[Any] = []
        leave_out(SimpleNamespace(
            nodeid=f"{test}[{n}]", session=session, callspec=SimpleNamespace(params={"n": n}),
            get_closest_marker=lambda name: mark, add_marker=added.append,
        ))  # type: ignore[arg-type]  # fmt: skip
        return not added

    for test in ("a.py::test", "b.py::test"):  # each has a sample of its own
        assert [n for n in range(10) if often(test, n)] == kept
    assert all(often("c.py::test", n, None) for n in range(10))


def test_units() -> None:
    for name in THEIRS:
        files = sorted((ROOT / name).glob("test_*.py")) if name.endswith("/") else [ROOT / name]
        assert files and all(file.exists() for file in files)
        assert {unit(f"{file.relative_to(ROOT)}::test_x[a::b]") for file in files} == {PROCESSES}
    assert unit("tests/ir/test_dims.py::test_x[a::b]") == "tests/ir/test_dims.py"


def test_seconds_per_folder() -> None:
    took = [("tests/ir/test_a.py::test[a/b]", 1.0), ("tests/test_a.py::test", 0.25), ("tests/ir/test_b.py::test", 2.5)]
    assert seconds_per_folder(took) == ["     3.5  tests/ir", "     0.2  tests", "     3.8  together"]
    assert seconds_per_folder(took[:1]) == []


def test_two_workers_run_files_as_a_whole_and_close_as_ever(tmp_path: Path) -> None:
    files = ["tests/ir/test_dtypes.py", "tests/native/test_container.py"]
    pytest.importorskip("xdist", reason="pytest-xdist is not installed: there is one process")
    words = ["-n", "2", "-v", "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", *words, f"--basetemp={tmp_path / 'base'}", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    workers = {file: set(re.findall(rf"^\[(gw\d)\].* PASSED {file}", done.stdout, re.MULTILINE)) for file in files}
    assert {len(found) for found in workers.values()} == {1}, workers
    lines = done.stdout.splitlines()
    assert re.fullmatch(r"=+ .* in [0-9.]+s.* =+", lines[-1]), "what .ci/run looks for"
    table = next(i for i, line in enumerate(lines) if "seconds per folder" in line)
    assert sorted(line.split()[1] for line in lines[table + 1 : table + 4]) == ["tests/ir", "tests/native", "together"]
