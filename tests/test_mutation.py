"""Mutation testing: which faults a module can have, and which of them a test notices."""

from __future__ import annotations

import ast
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path
from typing import Any

import pytest

from tools.conformance.mutants import GROUPS, Same, judged, read_same
from tools.conformance.suites import ROOT
from tools.mutation.__main__ import sample
from tools.mutation.faults import faults, mutated

LIMITS = '''
"""A module."""
LIMIT = 2**4 - 1


def inside(x: int, low: int = 0) -> bool:
    """Whether x is."""
    if x is None or not low <= x < LIMIT:
        raise ValueError(f"{x + 1} is not in {low - 1}" + "!")
    return any(x == y for y in (low,) if y) or True


def count(items):
    total = 0
    for item in items:
        if item:
            continue
        total += item * 2 - 1
    items.append(total / -2.5)
    assert dict(zip(items, items, strict=True))
    list(zip(items, items, strict=True))
    note(1 + 2)
    return total
'''


def whats(source: str) -> list[str]:
    return [f"{fault.lines[0]} {fault.what.replace('`', '')}" for fault in faults(source)]


def test_the_faults_of_a_module() -> None:
    """Every kind, in order; nothing of texts, of declarations, and no fault twice."""
    assert whats(LIMITS) == [
        "3 2 ** 4 - 1 → 16", "3 2 ** 4 - 1 → 14",
        "6 0 → 1", "6 0 → -1",
        "8 x is None or not low <= x < LIMIT → not (x is None or not low <= x < LIMIT)",
        "8 x is None or not low <= x < LIMIT → x is None and (not low <= x < LIMIT)",
        "8 x is None → x is not None",
        "8 not low <= x < LIMIT → low <= x < LIMIT",
        "8 low <= x < LIMIT → low < x < LIMIT", "8 low <= x < LIMIT → low <= x <= LIMIT",
        "9 raise ValueError(f'{x + 1} is not in {low - 1}' + '!') → pass",
        "10 any((x == y for y in (low,) if y)) or True → any((x == y for y in (low,) if y)) and True",
        "10 any((x == y for y in (low,) if y)) → all((x == y for y in (low,) if y))",
        "10 x == y → x != y",
        "10 y → not y",
        "10 True → False",
        "14 0 → 1", "14 0 → -1",
        "16 item → not item",
        "17 continue → pass",
        "18 total += item * 2 - 1 → pass",
        "18 total += item * 2 - 1 → total -= item * 2 - 1",
        "18 item * 2 - 1 → item * 2 + 1",
        "18 item * 2 → item // 2",
        "18 2 → 3", "18 2 → 1", "18 1 → 2", "18 1 → 0",
        "19 items.append(total / -2.5) → pass",
        "19 total / -2.5 → total * -2.5",
        "19 -2.5 → 2.5",
        "21 list(zip(items, items, strict=True)) → pass",
    ]  # fmt: skip


def test_a_fault_changes_what_it_says_and_nothing_else() -> None:
    found = faults(LIMITS)
    texts = {fault.number: ast_text(mutated(LIMITS, fault.number)) for fault in found}
    whole = ast_text(None)
    assert len({*texts.values(), whole}) == len(found) + 1
    for fault in found:
        changed = [i for i, (a, b) in enumerate(zip(whole.splitlines(), texts[fault.number].splitlines(), strict=True))
                   if a != b]
        assert len(changed) == 1


def ast_text(tree: ast.Module | None) -> str:
    return ast.unparse(tree or ast.parse(LIMITS))


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A package of one module and its tests: one is wrong whatever happens, and one is wrong about nothing."""
    (tmp_path / "toy").mkdir()
    (tmp_path / "toy" / "__init__.py").write_text("")
    (tmp_path / "toy" / "steps.py").write_text(textwrap.dedent("""
        def minus(n):
            return -n


        def same(n):
            while True:
                return n


        def unused(n):
            return not n
    """))
    (tmp_path / "toy" / "table.py").write_text("LIMITS = {'a': 2}\n")
    (tmp_path / "test_first.py").write_text(textwrap.dedent("""
        from toy.steps import minus, same
        from toy.table import LIMITS


        def test_table():
            assert LIMITS["a"] == 2


        def test_wrong():
            assert minus(2) == 2


        def test_right():
            assert minus(2) == -2


        def test_same():
            assert same(None) is None
    """))
    (tmp_path / "test_wider.py").write_text(textwrap.dedent("""
        from toy.steps import same


        def test_three():
            assert same(3) == 3
    """))
    return tmp_path


def started(project: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "tools.mutation", "--modules", "toy/*.py", "--first", "test_first.py", *words]
    plugins = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "_hypothesis_pytestplugin,pytest_timeout"}
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{project}", **plugins}
    pipe = subprocess.PIPE
    return subprocess.Popen(command, cwd=project, env=environment, stdout=pipe, stderr=pipe, text=True)


def test_who_ends_it_ends_what_it_runs(project: Path) -> None:
    """While a fault is tried that makes a loop without an end."""
    (project / "toy" / "steps.py").write_text("def same(n):\n    while True:\n        return n\n\n\nminus = same\n")
    with started(project, "--limit", "100", "--seed", "1") as process:
        assert process.stderr is not None
        assert "as it is" in process.stderr.readline()
        here = str(project)
        time.sleep(0.5)
        process.terminate()
        assert process.wait(120) == 128 + signal.SIGTERM
        process.stderr.close()
    left = [path for path in Path("/proc").glob("[0-9]*/cwd") if link(path) == here]
    assert not left


def link(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:  # it has ended, or is somebody else's
        return ""


@pytest.mark.slow  # it waits for what takes too long
def test_what_is_noticed(project: Path) -> None:
    """By the first tests or the wider ones, by a loop that does not end, by what a table holds, and by none."""
    before = (project / "toy" / "steps.py").read_text()
    process = started(project, "--wider", "test_wider.py", "--limit", "4")
    said, errors = process.communicate()
    assert process.returncode == 0, errors
    result = json.loads(said)
    assert result["unfit"] == ["test_first.py::test_wrong"]
    assert (result["faults"], result["tests"]) == (6, 4)
    assert {f"{t['line']} {t['what'].replace('`', '')}": t["outcome"] for t in result["tried"]} == {
        "3 -n → n": "killed",
        "7 True → False": "killed", "8 return n → pass": "out of time",
        "12 not n → n": "survived",
        "1 2 → 3": "killed", "1 2 → 1": "killed",  # by a test that runs no line of the module
    }  # fmt: skip
    assert (project / "toy" / "steps.py").read_text() == before
    assert not list(project.glob("toy/__pycache__"))


def test_what_a_section_says() -> None:
    """The share that was noticed against the goal; every fault that was not, in order; no time left is no excuse."""
    def tried(noticed: int, survived: int, late: int) -> dict[str, Any]:
        outcomes = ["killed"] * noticed + ["survived"] * survived + ["out of time"] * late
        found = [{"module": "b.py", "line": 100 - i, "text": "if a < b:", "what": "`<` → `<=`", "outcome": outcome}
                 for i, outcome in enumerate(outcomes)]
        return {"faults": 2000, "tests": 30, "unfit": ["x"], "tried": found, "seconds": 1}

    good = judged(tried(92, 7, 1), "command", {})
    assert not good.failed and good.command == "command"
    assert "92 of 100 noticed, 92.0%; the goal is 92%" in good.body and "out of 2,000 faults; 30 tests" in good.body
    assert "| b.py | 92 | 7 | 1 |" in good.body
    assert good.body.endswith("- b.py:7: `<` → `<=`\n- b.py:8: `<` → `<=`")
    assert "- b.py:1: `<` → `<=` (out of time)\n- b.py:2:" in good.body
    assert judged(tried(91, 9, 0), "", {}).failed and judged(tried(0, 0, 0), "", {}).failed
    assert "Not noticed" not in judged(tried(5, 0, 0), "", {}).body


def test_faults_that_change_nothing_count_neither_way() -> None:
    """Unless a test noticed them: then the list is wrong, and they count."""
    def fault(module: str, what: str, outcome: str) -> dict[str, Any]:
        return {"module": module, "line": 7, "text": "x = y[0]", "what": what, "outcome": outcome}

    tried = [fault("a.py", "`0` → `1`", "killed"), fault("a.py", "`0` → `-1`", "survived"),
             fault("b.py", "`0` → `-1`", "survived"), fault("c.py", "`0` → `-1`", "killed")]  # fmt: skip
    same = {(m, "x = y[0]", "`0` → `-1`"): Same(m, "x = y[0]", "`0` → `-1`", "y has one") for m in ("a.py", "c.py")}
    found = judged({"faults": 9, "tests": 3, "unfit": [], "tried": tried}, "", same)
    assert "2 of 3 noticed" in found.body and "Not noticed:\n\n- b.py:7: `0` → `-1`" in found.body
    assert found.body.endswith("for they change nothing:\n\n- a.py:7: `0` → `-1`: y has one")


def test_the_faults_that_are_listed_are_there() -> None:
    listed = read_same()
    for path in {one.module for one in listed.values()}:
        known = {(path, fault.text, fault.what) for fault in faults((ROOT / path).read_text())}
        assert {key for key in listed if key[0] == path} <= known
    assert all(len(one.why) > 10 for one in listed.values())


def test_a_sample_stays_where_code_is_added() -> None:
    """Elsewhere, and above; and it is another one for another seed."""
    other = [(Path("b.py"), fault) for fault in faults("def f(x):\n    return x + 100\n")]
    before = [(Path("a.py"), fault) for fault in faults(LIMITS)]
    after = [(Path("a.py"), fault) for fault in faults(LIMITS.replace("LIMIT =", "MORE = 7\nLIMIT ="))]
    drawn = [{(str(p), f.text, f.what) for p, f in sample(all, 12, 1)} for all in (before, [*after, *other])]
    assert len(drawn[0] & drawn[1]) >= 9
    assert {f.what for _, f in sample(before, 12, 2)} != {f.what for _, f in sample(before, 12, 1)}
    assert len(sample(before, 1000, 1)) == len(before)


@pytest.mark.parametrize("name", GROUPS)
def test_what_a_part_names_is_there(name: str) -> None:
    group = GROUPS[name]
    assert all(list(ROOT.glob(pattern)) for pattern in (*group.modules, *group.first, *group.wider))
    assert group.count >= 100
