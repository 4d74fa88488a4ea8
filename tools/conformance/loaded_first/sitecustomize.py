"""Puts the module that INGOT_SANITIZED_MODULE names in the place of ingot._native; Python imports it when it starts."""

import importlib.abc
import importlib.machinery
import importlib.util
import os
import sys
from collections.abc import Sequence
from types import ModuleType


class Finder(importlib.abc.MetaPathFinder):
    """Comes before the finder of an editable installation."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname != "ingot._native":
            return None
        return importlib.util.spec_from_file_location(fullname, os.environ["INGOT_SANITIZED_MODULE"])


sys.meta_path.insert(0, Finder())
