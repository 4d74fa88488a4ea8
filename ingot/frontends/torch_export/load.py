"""Opening a .pt2 file: its program, and its tensors read when asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from ingot.frontends.torch_export import guards
from ingot.frontends.torch_export.archive import Archive
from ingot.frontends.torch_export.conditions import Branch
from ingot.frontends.torch_export.decode import Malformed
from ingot.frontends.torch_export.importer import Source
from ingot.frontends.torch_export.payload import Payload, model_name
from ingot.frontends.torch_export.program import Program, program
from ingot.ir import Spec


def open_archive(path: str | os.PathLike[str]) -> tuple[Program, Source]:
    """The program of a .pt2 file and where its tensors are.

    Raises:
        CheckpointError: not a .pt2 archive, a damaged or malicious one, or one whose tensors are pickled.
    """
    archive = Archive(path)
    found = read_program(archive)
    payload = Payload(archive, model_name(archive))

    def spec(name: str) -> tuple[Any, Spec]:
        stored = payload.info(name)
        return stored, stored.spec

    return found, Source(spec, payload, payload.state())


def read_program(archive: Archive, branches: Sequence[Branch] | None = None) -> Program:
    """The checked program of an open archive. branches: as `guards.applied` takes them."""
    member = f"models/{model_name(archive)}.json"
    try:
        return guards.applied(program(archive.json(member)), branches)
    except Malformed as e:
        raise archive.error(f"{member}: {e}") from None
