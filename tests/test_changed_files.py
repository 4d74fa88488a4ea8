"""Files of a model that are replaced, shortened, continued or deleted while a build or a load reads them."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import ingot
from attacks.directories import Directory
from ingot.errors import IngotError

GOLDEN = Path(__file__).parent / "engine/golden/convnet-float32.ingot"


def shorten(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def go_on(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"\0" * 100)


def replace(path: Path) -> None:
    other = path.with_name(path.name + ".new")
    other.write_bytes(path.read_bytes()[::-1])
    os.replace(other, path)


CHANGES: list[Callable[[Path], object]] = [shorten, go_on, replace, os.unlink]
STEP = 5  # calls between two that are tried; 1: all of them, which takes 20 s
READS = ("open", "read", "pread", "preadv", "fstat")


class Hurdle:
    """After its n-th call of the system's for a file of a folder, that file is changed; all of them are counted."""

    def __init__(
        self, monkeypatch: pytest.MonkeyPatch, folder: Path, at: int, change: Callable[[Path], object]
    ) -> None:
        self.calls, self.at = 0, at
        for name in READS:
            monkeypatch.setattr(os, name, self.wrapped(getattr(os, name), folder, change))

    def wrapped(self, call: Any, folder: Path, change: Callable[[Path], object]) -> Any:
        def made(first: Any, *rest: Any, **words: Any) -> Any:
            found = call(first, *rest, **words)
            path = Path(os.readlink(f"/proc/self/fd/{first}")) if isinstance(first, int) else Path(os.fspath(first))
            if path.parent == folder and path.is_file():
                self.calls += 1
                if self.calls == self.at:
                    change(path)
            return found

        return made


def outcome(
    source: Path, monkeypatch: pytest.MonkeyPatch, at: int, change: Callable[[Path], object]
) -> tuple[int, Any]:
    """How often the system was asked, and the engine's bytes or the error."""
    with monkeypatch.context() as patched:
        hurdle = Hurdle(patched, source if source.is_dir() else source.parent, at, change)
        try:
            engine = ingot.build(source, report=False)
            return hurdle.calls, {name: engine.tensor(name).tobytes() for name in engine.header["weights"]}
        except IngotError as e:
            return hurdle.calls, e


@pytest.mark.parametrize("change", CHANGES, ids=lambda change: change.__name__)
def test_a_directory_that_changes_while_it_is_built(
    change: Callable[[Path], object], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is what it was, or an error with a code: never another engine, and no error of Python's own."""
    good = tmp_path / "good"
    Directory().write(good)
    calls, whole = outcome(good, monkeypatch, -1, change)
    assert calls > 8 and isinstance(whole, dict)
    errors = 0
    for at in range(1 + CHANGES.index(change), calls + 1, STEP):
        shutil.copytree(good, tmp_path / f"{at}")
        _, found = outcome(tmp_path / f"{at}", monkeypatch, at, change)
        assert isinstance(found, IngotError) or found == whole, f"another engine after call {at}"
        errors += isinstance(found, IngotError)
    assert errors or change is not shorten


@pytest.mark.parametrize("change", [shorten, replace])
def test_an_engine_that_is_replaced_by_half_of_one(change: Callable[[Path], object], tmp_path: Path) -> None:
    """What is open stays open when another file gets the name; what is opened then is refused."""
    path = tmp_path / "net.ingot"
    shutil.copyfile(GOLDEN, path)
    engine = ingot.load(path)
    before = {name: engine.tensor(name).tobytes() for name in engine.header["weights"]}
    other = tmp_path / "other"
    shutil.copyfile(path, other)
    change(other)
    os.replace(other, path)
    assert {name: engine.tensor(name).tobytes() for name in engine.header["weights"]} == before
    with pytest.raises(IngotError):
        ingot.load(path)
