"""The words of number formats, which mean the same to Python, the command line and an engine's header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.errors import UserError

PRECISIONS = ("float32", "bfloat16", "float16")
SAME = "same"  # weights as the precision has them
WEIGHTS = (SAME, "int8", "int4-g32", "int4-g64", "int4-g128")  # ir/weight_format.py says what they mean


def check_words(precision: str | None, weights: str | None) -> None:
    """Raises UserError for a word that this version cannot build by."""
    if precision is not None and precision not in PRECISIONS:
        raise UserError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r}")
    if weights is not None and weights not in WEIGHTS:
        raise UserError(f"weights must be one of {', '.join(WEIGHTS)}, not {weights!r:.60}")


def check_built(source: object, config: Mapping[str, Any], precision: str | None, weights: str | None) -> None:
    """Raises UserError for a word that conflicts with what an engine was built with, as its config says."""
    for name, word, built in (
        ("precision", precision, config.get("precision")), ("weights", weights, config.get("weights", SAME)),
    ):  # fmt: skip
        if word is not None and built is not None and word != built:
            raise UserError(
                f"{name} {word!r} conflicts with {source}, which was built with {built!r}: leave it out, or build it "
                "again from its source"
            )
