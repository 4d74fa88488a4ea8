"""Files of compiled kernels from somebody who means no good: each is said to be none, before Triton sees it."""

from __future__ import annotations

import json
import os
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest

from ingot.errors import FileError, UserError
from tests.backends.cuda.interpreted import WITHOUT

pytest.importorskip("triton", reason=WITHOUT)
pytest.importorskip("torch")

from ingot.backends.cuda.kernel_files import TRITON, Folder, headers, read

KEY = "ab" * 32
SAID = {
    "target": {"backend": "cuda", "arch": 90, "warp_size": 32}, "name": "f", "num_warps": 4, "num_ctas": 1, "shared": 0,
    "launch_pdl": False, "launch_cooperative_grid": False, "global_scratch_size": 0, "profile_scratch_size": 0,
}  # fmt: skip


def put(folder: Path, metadata: Any, **more: Any) -> Path:
    """A file whose digest is right."""
    rest = (metadata if isinstance(metadata, bytes) else json.dumps(metadata).encode()) + b"\nCUBIN"
    digest = sha256(KEY.encode() + rest).hexdigest()
    head = {"format": 1, "key": KEY, "digest": digest, "name": "f", "architecture": 90, "triton": TRITON} | more
    path = folder / f"{KEY}.kernel"
    path.write_bytes(json.dumps(head).encode() + b"\n" + rest)
    return path


def test_a_sound_one(tmp_path: Path) -> None:
    found = read(put(tmp_path, SAID))
    assert (found.name, found.architecture, found.binary) == ("f", 90, b"CUBIN")
    assert json.loads(found.metadata) == SAID


@pytest.mark.parametrize("metadata", [
    b"\xff\xfe{}", b"", b"{", b"[]", b"{}", b"[" * 100_000, SAID | {"target": {"backend": "hip", "arch": 90}},
    SAID | {"target": {"backend": "cuda", "arch": 80, "warp_size": 32}}, SAID | {"class": 1}, SAID | {"_x": 1},
    SAID | {"shared": "1"}, SAID | {"shared": True}, SAID | {"num_warps": -1}, SAID | {"num_warps": 4096},
    {k: v for k, v in SAID.items() if k != "shared"}, SAID | {"launch_pdl": 1}, SAID | {"name": "g"},
], ids=lambda said: repr(said)[:24])  # fmt: skip
def test_metadata_that_triton_does_not_write(tmp_path: Path, metadata: Any) -> None:
    with pytest.raises(FileError, match="not what Triton writes"):
        read(put(tmp_path, metadata))


@pytest.mark.parametrize("more", [
    {"architecture": 1e308}, {"architecture": True}, {"architecture": "90"}, {"architecture": -1}, {"triton": 5},
    {"triton": ["3"]}, {"triton": "3.6\x1b[31m"}, {"triton": "x" * 4000}, {"key": "cd" * 32}, {"format": 2},
])  # fmt: skip
def test_first_lines(tmp_path: Path, more: dict[str, Any]) -> None:
    path = put(tmp_path, SAID, **more)
    with pytest.raises(FileError, match="no kernel of ingot's"):
        read(path)
    with pytest.raises(UserError, match="holds no kernels"):
        Folder.opened(tmp_path, 90)


def test_a_fifo_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / f"{KEY}.kernel")
    (tmp_path / "zero.kernel").symlink_to("/dev/zero")
    assert list(headers(tmp_path)) == []
    with pytest.raises(FileError, match="not a regular file"):
        read(tmp_path / f"{KEY}.kernel")
