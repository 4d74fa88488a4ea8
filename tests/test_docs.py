"""The documents say what the code does: error codes, the list of files, the example of the README."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ingot import errors
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


def test_every_file_says_what_it_is_for() -> None:
    silent = [p.relative_to(ROOT) for p in architecture.files() if p.read_text() and not architecture.first_sentence(p)]
    assert not silent, f"files without a first sentence: {silent}"


def test_the_readme_example_runs(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert len(blocks) == 1
    assert len(blocks[0].strip().splitlines()) <= 15
    (tmp_path / "models").symlink_to(ROOT / "models")
    done = subprocess.run([sys.executable, "-c", blocks[0]], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
