"""Modules made of a table of names, and what names that they lack are answered with."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping
from types import ModuleType
from typing import Any

from ingot.compat.missing import instead_of
from ingot.compat.refusal import MissingImport, MissingName, here

ROOTS = ("tensorrt_llm", "tensorrt")


def answer(where: str, name: str) -> str:
    """Why there is no `where.name`, and what to write instead."""
    instead = instead_of(f"{where}.{name}", getattr(sys.modules.get(where), "__all__", ()))
    return f"{here()}ingot's {where} has no {name!r}; instead: {instead}"


class Registered(ModuleType):
    """A module that is registered by `install`. What it lacks is refused with what to write instead."""

    def __init__(self, name: str, names: Mapping[str, Any], doc: str) -> None:
        super().__init__(name, doc)
        self.__all__ = sorted(names)
        self.__path__ = []
        self.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
        self.__file__ = __file__
        self.__dict__.update(names)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        raise MissingName(answer(self.__name__, name))


class Finder(importlib.abc.MetaPathFinder):
    """Refuses imports of what the registered modules lack; what they have is in sys.modules already."""

    def find_spec(self, fullname: str, path: Any, target: Any = None) -> None:
        where, _, name = fullname.rpartition(".")
        if where and fullname.partition(".")[0] in ROOTS:
            raise MissingImport(answer(where, name))


def assembled(table: Mapping[str, Mapping[str, Any]], docs: Mapping[str, str]) -> dict[str, ModuleType]:
    """A module for every entry of a table of names, each an attribute of the one that it lies in."""
    made: dict[str, ModuleType] = {
        name: Registered(name, names, docs.get(name, "Registered by ingot.compat.install."))
        for name, names in table.items()
    }
    for name, module in made.items():
        parent, _, last = name.rpartition(".")
        if parent and last not in made[parent].__dict__:
            setattr(made[parent], last, module)
    return made
