"""The page that the long suites write, and how their outcomes are counted."""

from __future__ import annotations

import itertools
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ingot import _native
from ingot.errors import UserError
from tools.conformance import __main__ as conformance
from tools.conformance import parts, sanitizers, suites
from tools.conformance.page import FACTS, Page, Section, table
from tools.conformance.site import faults
from tools.conformance.suites import ROOT, Outcome, counted, run_tests

ORDER = ("first", "second", "third")


def section(part: str, result: str = "passed") -> Section:
    facts = {name: f"{part} {name}" for name in FACTS} | {"result": result}
    return Section(part, f"what {part} does", facts, table(["tests", "passed"], [["tests/ops", "3"]]))


def summary(text: str) -> list[str]:
    """The rows of the table on top."""
    return [line for line in text.split("<!-- part", 1)[0].splitlines() if re.match(r"\| \w+ \|", line)][1:]


def test_the_order_of_runs_does_not_matter(tmp_path: Path) -> None:
    texts = set()
    for names in itertools.permutations(ORDER):
        path = tmp_path / "-".join(names)
        for name in names:
            page = Page.read(path)
            page.put(section(name))
            page.write(path, ORDER)
        texts.add(path.read_text())
    (text,) = texts
    assert re.findall(r"^## (\w+): what", text, re.MULTILINE) == list(ORDER)


def test_a_run_changes_its_own_section_and_its_row(tmp_path: Path) -> None:
    path = tmp_path / "page.md"
    page = Page()
    for name in ("first", "third"):
        page.put(section(name))
    page.write(path, ORDER)
    before = path.read_text()
    assert summary(before)[1] == "| second | has not run |  |  |  |  |"
    page = Page.read(path)
    page.put(section("third", "**failed**"))
    page.write(path, ORDER)
    after = path.read_text()
    assert str(section("first")) in before and str(section("first")) in after
    assert [a == b for a, b in zip(summary(before), summary(after), strict=True)] == [True, True, False]
    assert summary(after)[2].startswith("| third | **failed** | third tests |")
    assert os.listdir(tmp_path) == ["page.md"]


def test_a_section_that_no_part_writes_any_more_stays(tmp_path: Path) -> None:
    page = Page()
    page.put(section("gone"))
    page.write(tmp_path / "page.md", ORDER)
    assert str(section("gone")) in (tmp_path / "page.md").read_text()
    assert Page.read(tmp_path / "page.md") == page


def test_what_a_table_cannot_hold_is_put_into_one_line(tmp_path: Path) -> None:
    odd = Section("first", "two\nlines", dict.fromkeys(FACTS, "a | b\nc"))
    page = Page()
    page.put(odd)
    text = page.text(ORDER)
    assert "## first: two lines\n" in text and "| result | a \\| b c |" in text
    assert summary(text)[0] == "| first |" + " a \\| b c |" * 5


def test_a_part_writes_its_section(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "PAGE", ROOT / "build" / "page-of-a-test.md")
    (ROOT / "build").mkdir(exist_ok=True)
    try:
        outcome = Outcome(True, "why", "pytest x", Counter(passed=1200, failed=1))
        assert conformance.run(parts.Part("ops", "all ops", 1, lambda: outcome))
        text = conformance.PAGE.read_text()
    finally:
        conformance.PAGE.unlink(missing_ok=True)
    assert "| result | **failed** |" in text and "| tests | 1,200 passed, 1 failed |" in text
    assert "| command | `pytest x` |" in text and "\nwhy\n" in text
    assert re.search(r"\| minutes \| 0\.\d \|\n\| date \| \d{4}-\d\d-\d\d \|\n\| commit \| \w", text)


def test_a_part_that_is_interrupted_writes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> Outcome:
        raise KeyboardInterrupt

    monkeypatch.setattr(conformance, "PAGE", ROOT / "build" / "page-of-a-test.md")
    with pytest.raises(KeyboardInterrupt):
        conformance.run(parts.Part("ops", "all ops", 1, interrupted))
    assert not conformance.PAGE.exists()


def test_the_list_of_parts(capsys: pytest.CaptureFixture[str]) -> None:
    assert conformance.main([]) == 0
    out = capsys.readouterr().out
    assert all(f"\n{part.name} " in out for part in parts.PARTS)
    assert all(0 < part.minutes <= 25 for part in parts.PARTS)
    with pytest.raises(SystemExit) as ended:
        conformance.main(["nope"])
    assert ended.value.code == 2


def test_every_folder_is_in_a_part() -> None:
    covered = {folder for *_, folders in parts.SUITES for folder in folders}
    there = {f"tests/{p.name}" for p in (ROOT / "tests").iterdir() if p.name.startswith("test_")}
    there |= {f"tests/{p.parent.name}" for p in (ROOT / "tests").glob("*/test_*.py")}
    assert there == covered


def test_every_level_is_a_part() -> None:
    assert set(_native.levels()) <= set(parts.LEVELS)
    with pytest.raises(UserError, match="this machine has no avx1024: it has "):
        parts.at_level("avx1024")


def test_kernels_for_gpus_need_triton(monkeypatch: pytest.MonkeyPatch) -> None:
    """All would be skipped, which is no result."""
    monkeypatch.setattr(parts, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"ingot\[gpu-test\]"):
        parts.cuda()


def test_the_page_that_lies_in_docs_is_as_it_would_be_written() -> None:
    names = [part.name for part in parts.PARTS]
    page = Page.read(conformance.PAGE)
    assert page.sections.keys() <= set(names)
    assert conformance.PAGE.read_text() == page.text(names)


REPORT = """<testsuites><testsuite>
<testcase classname="tests.ops.test_ops" name="test_case[a-b@c]"/>
<testcase classname="tests.ops.test_ops" name="test_case[x]"><failure>no</failure></testcase>
<testcase classname="tests.ops.test_ops" name="test_case[y]"><error>no</error></testcase>
<testcase classname="tests.test_docs" name="test_x"><skipped/></testcase>
<testcase classname="" name="tests.broken"><error>collection failure</error></testcase>
</testsuite></testsuites>"""


def test_counting() -> None:
    counts, bad = counted(REPORT)
    assert counts["tests/ops"] == Counter(passed=1, failed=2)
    assert counts["tests/test_docs"] == Counter(skipped=1)
    assert sum(c["failed"] for c in counts.values()) == 3
    assert bad[:2] == ["tests/ops/test_ops::test_case[x]", "tests/ops/test_ops::test_case[y]"]


def test_a_run_without_tests_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suites, "WORKERS", 0)
    outcome = run_tests(["tests/test_imports.py", "-k", "nothing_is_called_so"])
    assert outcome.failed and not outcome.tests
    assert "pytest ended with status 5" in outcome.body


def test_a_run_that_somebody_ends_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """pytest is killed by a test here; a test that fails for whatever reason is no such end."""
    monkeypatch.setattr(suites, "WORKERS", 0)
    (tmp_path / "test_end.py").write_text("import os, signal\ndef test(): os.kill(os.getpid(), signal.SIGTERM)\n")
    with pytest.raises(KeyboardInterrupt, match="status -15"):
        run_tests([str(tmp_path / "test_end.py"), f"--rootdir={tmp_path}"])


def test_reports_are_found_once_each(tmp_path: Path) -> None:
    one = "==================\nWARNING: ThreadSanitizer: data race (pid=7)\n  Write of size 4\n"
    one += "SUMMARY: ThreadSanitizer: data race pool.cpp:9 in run\n==================\n"
    (tmp_path / "report.7").write_text(one + one)
    (tmp_path / "report.8").write_text("x.cpp:3:4: runtime error: signed integer overflow\n")
    (tmp_path / "report.9").write_text("ThreadSanitizer: 3 warnings\n")
    found = sanitizers.reported(tmp_path)
    assert [line.splitlines()[0][:24] for line in found] == ["WARNING: ThreadSanitizer", "x.cpp:3:4: runtime error"]
    assert sanitizers.shown(found).startswith("**Reports: 2.**")
    assert sanitizers.shown([]) == "The sanitizer reported nothing."


def test_another_module_takes_the_place_of_the_native_one(tmp_path: Path) -> None:
    """The mechanism by which a sanitized module is loaded, with a plain one."""
    copied = tmp_path / Path(_native.__file__).name
    for name in (copied.name, "libingot.so"):  # which lies beside it there too
        (tmp_path / name).write_bytes(Path(_native.__file__).with_name(name).read_bytes())
    path = os.pathsep.join([str(sanitizers.HERE / "loaded_first"), str(ROOT)])
    environment = os.environ | {"INGOT_SANITIZED_MODULE": str(copied), "PYTHONPATH": path}
    code = "from ingot import _native; print(_native.__file__, _native.level())"
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.split() == [str(copied), _native.level()]


def test_links_of_the_site_that_lead_nowhere_are_found(tmp_path: Path) -> None:
    good = '<h1 id="top"></h1><a href="b.html#x">b</a><a href="#top">top</a><a href="https://python.org">elsewhere</a>'
    bad = '<p id="x"></p><a href="c.html">c</a><a href="a.html#y">y</a><script src="https://cdn.example/x.js"></script>'
    (tmp_path / "a.html").write_text(good)
    (tmp_path / "b.html").write_text(bad)
    wrong = ["b.html links to a.html#y", "b.html links to c.html", "b.html loads https://cdn.example/x.js"]
    assert sorted(faults(tmp_path)) == wrong
