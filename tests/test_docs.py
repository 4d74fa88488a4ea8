"""The documents say what the code does: error codes, the list of files, links, commands, the example of the README."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import ingot
from ingot import errors
from ingot.cli import main as command_line
from tools import architecture, ops

ROOT = Path(__file__).parent.parent


def test_every_error_is_listed_with_its_class_and_exit_code() -> None:
    page = (ROOT / "docs" / "errors.md").read_text()
    listed = dict(re.findall(r"^\| `(\w+)` \| (`\w+` \| \d) \|", page, re.MULTILINE))
    assert listed == {code: f"`{cls.__name__}` | {cls.exit_code}" for code, cls in errors.BY_CODE.items()}


def test_the_native_core_has_no_other_codes() -> None:
    native = re.findall(r'constexpr const char\* \w+ = "(\w+)"', (ROOT / "native" / "src" / "error.h").read_text())
    assert native
    assert set(native) <= set(errors.BY_CODE)


def test_every_file_is_in_the_architecture() -> None:
    assert architecture.PAGE.read_text() == architecture.written(), "run python -m tools.architecture"


def test_the_tests_that_promises_name_are_there() -> None:
    named = re.findall(r"`(tests/\S+)::(\w+)`", (ROOT / "docs" / "threat-model.md").read_text())
    assert named
    missing = [f"{path}::{name}" for path, name in named if f"\ndef {name}(" not in (ROOT / path).read_text()]
    assert not missing


def test_the_page_of_ops_is_current() -> None:
    for path, text in ops.pages().items():
        assert path.read_text() == text, "run python -m tools.ops"


def test_pages_for_contributors_name_what_writes_files() -> None:
    """A newcomer's op failed a test that no page had named: the commands are those that the tests ask for."""
    asked = {"adding-an-op.md": ("tools.ops", "tests.engine.make_golden"), "adding-a-kernel.md": ("tools.kernels",)}
    for page, modules in asked.items():
        text = (ROOT / "docs" / page).read_text()
        assert [module for module in modules if f"python -m {module}" not in text] == []


def test_every_file_says_what_it_is_for() -> None:
    """As the list has it, which is held to the files above."""
    _, _, listed = architecture.PAGE.read_text().partition(architecture.BEGIN)
    assert len(re.findall(r"^- `[^`]+`: .", listed, re.MULTILINE)) > 500
    silent = re.findall(r"^- `([^`]+)`:\s*$", listed, re.MULTILINE)
    assert not silent, f"files without a first sentence: {silent}"


def test_the_readme_example_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    assert len(blocks[0].strip().splitlines()) <= 15
    (tmp_path / "models").symlink_to(ROOT / "models")
    done = subprocess.run([sys.executable, "-c", blocks[0]], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr


PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]


def fenced(text: str) -> list[tuple[str, str]]:
    """The blocks of code of a page: language and content."""
    return re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.DOTALL | re.MULTILINE)


def prose(page: Path) -> str:
    return re.sub(r"^```.*?^```", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Of the headings, as GitHub and MyST make them."""
    words = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", word.lower()).strip().replace(" ", "-") for word in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    missing = []
    for target in re.findall(r"\]\((?!\w+:)([^)\s]+)\)", prose(page)):
        path, _, anchor = target.partition("#")
        to = (page.parent / path).resolve() if path else page
        if not to.exists() or (anchor and anchor not in anchors(to)):
            missing.append(target)
    assert not missing


def commands(page: Path) -> Iterator[str]:
    """The commands of ingot that a page shows, without comments: of options in brackets the first, N and L as 8."""
    for language, text in fenced(page.read_text()):
        for line in text.replace("\\\n", " ").splitlines() if language in ("", "sh") else ():
            if line.startswith("ingot "):
                shown = re.sub(r"\[[^\]]*…\]", "", re.split(r"\s#\s", line)[0])
                shown = re.sub(r"\[(--[^\]|]+)?[^\]]*\]", r"\1", shown)
                yield re.sub(r"\b[NL]\b", "8", shown)


@pytest.mark.parametrize("page", [page for page in PAGES if any(commands(page))], ids=lambda page: page.name)
def test_the_command_line_takes_what_pages_show(page: Path) -> None:
    parser = command_line._parser()
    for line in commands(page):
        parser.parse_args(shlex.split(line)[1:])  # ends with what is wrong when a line is


def test_the_changelog_keeps_to_150_columns() -> None:
    lines = (ROOT / "CHANGELOG.md").read_text().splitlines()
    assert not [f"line {number}: {line:.40}" for number, line in enumerate(lines, 1) if len(line) > 150]


def test_every_page_is_in_the_site() -> None:
    trees = re.findall(r"```{toctree}\n(.*?)```", (ROOT / "docs" / "index.md").read_text(), re.DOTALL)
    listed = [line for tree in trees for line in tree.splitlines() if line and not line.startswith(":")]
    assert sorted([*listed, "index"]) == sorted(page.stem for page in (ROOT / "docs").glob("*.md"))


def test_every_public_name_is_in_the_reference() -> None:
    page = (ROOT / "docs" / "api.md").read_text()
    listed = re.findall(r"^\.\. auto\w+:: (?:ingot\.)?(\w+)$", page, re.MULTILINE)
    elsewhere = {"__version__", "IngotError", "Module", "Parameter", "ops"}  # of errors, nn and docs/ops.md
    assert set(ingot.__all__) - elsewhere <= set(listed)
