"""Ops in place, and with `out`, as the plain ops of the table that compute the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.frontends.torch_export.aten import COMPLEX_TABLE, TABLE, Entry


def in_place(op: str, arguments: Mapping[str, Any]) -> tuple[str, dict[str, Any]] | None:
    """The plain op of `aten.add_.Tensor` or of `aten.add.out`, and its arguments; None for an op of another kind."""
    given = {name: value for name, value in arguments.items() if name != "out"}
    for plain in _plain_forms(op):
        entry = TABLE.get(plain) or COMPLEX_TABLE[plain]
        if len(given) == len(arguments) or _fits(entry, given):
            return plain, given
    return None


def has_plain_form(op: str) -> bool:
    """Whether an op in place, or with `out`, is one of the table otherwise."""
    return bool(_plain_forms(op))


def _plain_forms(op: str) -> list[str]:
    """The ops of the table that an op in place, or with `out`, may be."""
    parts = op.split(".")
    if len(parts) != 3:
        return []
    space, name, overload = parts
    if overload.endswith("out"):
        return [o for o in dict.fromkeys((*TABLE, *COMPLEX_TABLE)) if o.startswith(f"{space}.{name}.")]
    if not name.endswith("_") or name.endswith("__"):
        return []
    other = {("floor_divide_", "Tensor"): "default", ("transpose_", "default"): "int"}
    overload = other.get((name, overload), overload)
    plain = f"{space}.{name[:-1]}.{overload}"
    return [plain] if plain in TABLE or plain in COMPLEX_TABLE else []


def _fits(entry: Entry, given: Mapping[str, Any]) -> bool:
    return given.keys() <= entry.kinds.keys() and all(name in given for name in entry.required)
