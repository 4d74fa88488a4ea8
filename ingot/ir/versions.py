"""What files name by name and version, read by a later release: the one rule for ops and for the steps of recipes.

A version goes up when attributes or their meaning change. What a file has of an older version is read as the newest:
`upgrade` rewrites its attributes, and those that it lacks take their defaults. What is of a newer version is refused.
"""
from __future__ import annotations

from collections.abc import Callable, Collection
from reprlib import repr as brief
from typing import Any

from ingot.errors import EngineVersionError, UserError

Attributes = dict[str, Any]
Upgrade = Callable[[int, Attributes], Attributes]

# What an upgrade may raise for attributes that are none of the version that the file names.
_MALFORMED = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError)


def current(
    what: str, version: Any, given: Any, newest: int, known: Collection[str], optional: Collection[str],
    upgrade: Upgrade, error: type[UserError], called: str = "attributes",
) -> Attributes:  # fmt: skip
    """The attributes that a file gives, in their JSON forms, as version `newest` has them.

    Args:
        what: the place and the name, which begin every message.
        version, given: from the file, of any type.
        known: the names of all attributes of the newest version.
        optional: those that have a default; they may be absent from the result.
        upgrade: from the attributes of an older version to those of the newest.
        called: what messages call them.

    Raises:
        EngineVersionError: the version is newer than this release.
        `error`: no version; attributes that are unknown, missing, or none of that version.
    """
    if type(version) is not int or version < 1:
        raise error(f"{what}: a version is a number from 1 on, not {brief(version)}")
    if version > newest:
        raise EngineVersionError(f"{what} is of version {brief(version)}; this ingot knows versions up to {newest}")
    if type(given) is not dict:
        raise error(f"{what}: its {called} are an object, not {brief(given)}")
    attributes = dict(given)
    if version < newest:
        try:
            attributes = upgrade(version, attributes)
        except _MALFORMED as e:
            raise error(f"{what}: its {called} are none of version {version}: {str(e)[:200]}") from None
    unknown, missing = attributes.keys() - set(known), set(known) - set(optional) - attributes.keys()
    if unknown or missing:
        raise error(f"{what} has {called} {sorted(known)}; missing {sorted(missing)}, "
                    f"unknown {brief(sorted(map(str, unknown)))}")
    return attributes
