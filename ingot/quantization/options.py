"""The words of `ingot.quantize` that say how a plan is searched, checked before anything is read."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from ingot.builder.measurements import check_tune
from ingot.engine.session import Engine
from ingot.errors import UserError
from ingot.quantization.ranges import AUTO, PERCENTILE, USUAL, check_method

Metric = Callable[[Engine], float]

FIRST, LAST = "first", "last"  # that keep takes beside names
MOST_BATCHES = 1024  # that are read unless somebody wants more: an iterable may be endless
SAMPLES = 32  # of the data, that errors are measured on


@dataclass(frozen=True)
class Options:
    """How scales are chosen, and which layers stay float; see `quantize`."""

    method: str
    percentile: float | None  # None: not given
    budget: float | None
    metric: Metric | None
    keep: str | Sequence[str]
    bias_correction: bool
    errors: bool
    samples: int
    batches: int | None
    tune: float | None = None
    tune_file: str | os.PathLike[str] | None = None
    always_int8: bool = False

    def __post_init__(self) -> None:
        """Raises UserError for a wrong word, and for words that do not go together."""
        if self.percentile is not None and not _is_number(self.percentile):
            raise UserError(f"percentile must be a number from 50 to 100, not {self.percentile!r:.60}")
        check_method(self.method, self.magnitudes)
        if not _are_names(self.keep):
            raise UserError(f"keep must be the name of a layer or a list of such names, not {self.keep!r:.60}")
        if self.percentile is not None and self.method != PERCENTILE:
            raise UserError(f"percentile is a word for the method of this name, and the method is {self.method}: give "
                            f"method={PERCENTILE!r} with it")  # fmt: skip
        if self.budget is not None and not (_is_number(self.budget) and 0 <= self.budget < math.inf):
            raise UserError(f"budget must be a number from 0 on, not {self.budget!r:.60}")
        if self.metric is not None and (self.budget is None or not callable(self.metric)):
            raise UserError("metric is a function of an engine, and budget says by how much it may fall: give both")
        if self.budget is not None and not self.errors:
            raise UserError("a budget needs the error of each layer: leave out errors=False")
        for name, value in (("samples", self.samples), ("batches", self.batches)):
            if value is not None and (type(value) is not int or value < 1):
                raise UserError(f"{name} must be an int of at least 1, not {value!r:.60}")
        check_tune(self.tune, self.tune_file)
        if self.always_int8 and self.tune is not None:
            raise UserError("tune leaves layers float, and always_int8 none: give one of them")

    @property
    def magnitudes(self) -> float:
        """How many percent of them the method percentile tells apart."""
        return USUAL if self.percentile is None else self.percentile

    @property
    def kept(self) -> tuple[str, ...]:
        """The names of `keep`."""
        return (self.keep,) if isinstance(self.keep, str) else tuple(self.keep)

    @property
    def of_nets(self) -> list[str]:
        """The words that were given and that mean nothing for a language model."""
        given = {"method": self.method != AUTO, "budget": self.budget is not None, "metric": self.metric is not None,
                 "keep": bool(self.keep), "tune": self.tune is not None, "always_int8": self.always_int8,
                 "bias_correction": not self.bias_correction, "errors": not self.errors,
                 "samples": self.samples != SAMPLES, "batches": self.batches != MOST_BATCHES}  # fmt: skip
        return [word for word, is_given in given.items() if is_given]


def check_smooth(smooth: Any) -> None:
    """Raises UserError for what is no number from 0 to 1."""
    if smooth is not None and not (_is_number(smooth) and 0 <= smooth <= 1):
        raise UserError(f"smooth must be a number from 0 to 1, not {smooth!r:.60}")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _are_names(value: Any) -> bool:
    return isinstance(value, Collection) and all(isinstance(name, str) for name in value)
