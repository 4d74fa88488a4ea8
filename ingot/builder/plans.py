"""What a build asks of those who plan its numbers by data: layers in int8, or smoothed rows of a language model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import numpy as np

from ingot import models
from ingot.builder.compile import Compiled
from ingot.builder.phases import Phases
from ingot.engine.session import Engine
from ingot.ir import Network
from ingot.passes.calibrated import Plan

Array = np.ndarray[Any, Any]


class Calibrated(NamedTuple):
    """The plan of a network's layers in int8, inputs of the calibration, which the report is made on, and the program
    by the plan with the tensors that it reads.
    """

    plan: Plan
    feeds: Mapping[str, Array]
    compiled: Compiled
    tensors: dict[str, Array]


class Calibrate(Protocol):
    """Plans the layers of a network."""

    @property
    def wide(self) -> Engine | None:
        """The network in float32, where it was made for the plan."""

    def __call__(self, network: Network, weights: Mapping[str, Array], phases: Phases, /) -> Calibrated: ...


class Smoothed(NamedTuple):
    """A language model's network with smoothed rows, its new parameters' values, what its config says of it, and the
    texts that were looked at."""

    network: Network
    values: Mapping[str, Array]
    config: Mapping[str, Any]
    texts: Sequence[str]


Smooth = Callable[[models.LoadedModel, Network, Phases], Smoothed]
