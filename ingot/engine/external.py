"""The user's own ops that an engine needs, against those that its loader was given; nothing is imported for either."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from reprlib import repr as brief
from typing import Any

from ingot.errors import ExternalOpError


def declared(ops: Sequence[Any]) -> dict[str, Any]:
    """The classes of ops that a caller gives, as `external_op` and `op_library` return them, by name.

    Raises ExternalOpError for what is none, and for two of one name.
    """
    found: dict[str, Any] = {}
    if isinstance(ops, str | bytes) or not isinstance(ops, Sequence):
        raise ExternalOpError(f"ops is a list of ops of your own, not {brief(ops)}")
    for item in ops:
        cls = getattr(item, "op", item)
        if not getattr(cls, "external", False) or not isinstance(cls, type):
            raise ExternalOpError(f"{brief(item)} is no op of your own: ingot.external_op or op_library makes them")
        name = cls.declaration["name"]  # type: ignore[attr-defined]
        if found.setdefault(name, cls) is not cls:
            raise ExternalOpError(f"two of the given ops are called {name}")
    return found


def matching(where: str, header: Mapping[str, Any], given: Mapping[str, Any]) -> dict[str, Any]:
    """Of the given ops those that the engine lists.

    Raises ExternalOpError that names all that are missing, or declared otherwise than the engine says.
    """
    listed = header.get("external_ops", [])
    wrong = []
    for item in listed:
        shown = f"{item['name'][:100]} version {item['version']}{item['signature'][:300]}"
        if item["name"] not in given:
            wrong.append(f"{shown} is not given")
        elif dict(given[item["name"]].declaration) != item:
            own = given[item["name"]].declaration
            wrong.append(f"{shown} is given as version {own['version']}{own['signature']}")
    if wrong:
        raise ExternalOpError(
            f"{where} uses ops of its maker's own, which a file cannot bring: {'; '.join(wrong)}. Give them in Python: "
            "ingot.load(path, ops=[…])"
        )
    return {item["name"]: given[item["name"]] for item in listed}
