"""The one sanctioned late import: names that are loaded when first used."""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from ingot.errors import UserError


def load(where: str) -> Any:
    """The object that `where` names as "package.module:attribute" (or the module, without a colon)."""
    module, _, attribute = where.partition(":")
    found = importlib.import_module(module)
    return getattr(found, attribute) if attribute else found


def optional(module: str, needed_for: str, install: str) -> ModuleType:
    """A third-party module that ingot does not require; when it is not there a UserError says what to install."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as e:
        if e.name is None or e.name.split(".")[0] != module.split(".")[0]:
            raise
        raise UserError(f"{needed_for} needs the package {module.split('.')[0]!r}: pip install {install!r}") from None
