"""Files that are there whole or not at all: what was there before keeps its permissions, links and name."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from ingot.errors import FileError
from ingot.written import beside, check_folder, write_whole


def test_permissions_stay(tmp_path: Path) -> None:
    """A file that only its owner reads stays one, also while it is written; a new one goes by the umask."""
    place = tmp_path / "secret.ingot"
    for mode in (0o600, 0o640, 0o444):
        place.write_bytes(b"old")
        place.chmod(mode)
        with beside(place) as path, path.open("wb") as stream:
            assert stat.S_IMODE(path.stat().st_mode) == 0o600
            stream.write(b"new")
        assert (place.read_bytes(), stat.S_IMODE(place.stat().st_mode)) == (b"new", mode)
        place.unlink()
    before = os.umask(0o027)
    try:
        write_whole(place, b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE(place.stat().st_mode) == 0o640


def test_links_are_written_through(tmp_path: Path) -> None:
    """To what they lead to, also where that is not there yet; a circle is an error, and nothing is left behind."""
    (tmp_path / "disk").mkdir()
    real, link, new = tmp_path / "disk" / "net.ingot", tmp_path / "net.ingot", tmp_path / "new.ingot"
    real.write_bytes(b"old")
    link.symlink_to(Path("disk") / "net.ingot")
    new.symlink_to(link.parent / "disk" / "new.ingot")
    for place in (link, new):
        write_whole(place, b"new")
        assert place.is_symlink() and place.read_bytes() == b"new"
    with beside(link) as path:
        assert path.parent == real.parent
        path.write_bytes(b"new")
    circle = tmp_path / "circle"
    circle.symlink_to(circle)
    with pytest.raises(FileError, match="circle cannot be written: Too many levels of symbolic links"):
        write_whole(circle, b"new")
    assert circle.is_symlink() and sorted(os.listdir(real.parent)) == ["net.ingot", "new.ingot"]


@pytest.mark.parametrize("name", ["no/x", "a\0b", "circle/x", "n" * 300 + "/x", "\ud800/x", "file/x"])
def test_folders_that_take_no_file_are_said_before(tmp_path: Path, name: str) -> None:
    (tmp_path / "circle").symlink_to(tmp_path / "circle")
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="cannot be written: "):
        check_folder(tmp_path / name)


@pytest.mark.parametrize("name", ["n" * 255, "網" * 85, "é" * 127, "网" * 83 + ".ingot"])
def test_names_as_long_as_they_may_be(tmp_path: Path, name: str) -> None:
    write_whole(tmp_path / name, b"new")
    assert [p.name for p in tmp_path.iterdir()] == [name]


def test_a_stream_that_is_a_file(tmp_path: Path) -> None:
    """/dev/stdout stays what it is, and what was printed before and after is in the shell's file too."""
    code = "from pathlib import Path; from ingot.written import write_whole; write_whole(Path('/dev/stdout'), b'new')"
    out = tmp_path / "out"
    with out.open("ab") as stream:
        subprocess.run([sys.executable, "-c", code], stdout=stream, check=True)
    assert out.read_bytes() == b"new" and Path("/dev/stdout").is_symlink()
