"""The corpus of the native fuzzer: an engine for every template."""

from __future__ import annotations

from collections.abc import Iterator

from fuzz import array_programs, control_programs, layer_programs
from fuzz.template import Template


def templates() -> Iterator[Template]:
    """All of them; their names are distinct."""
    for family in (*layer_programs.FAMILIES, *array_programs.FAMILIES, *control_programs.FAMILIES):
        yield from family()
