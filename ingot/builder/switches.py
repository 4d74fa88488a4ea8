"""The switches for finding a fault in the compile path, as the pipeline of passes takes them."""

from __future__ import annotations

import itertools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ingot.builder.layers import empty_cache
from ingot.builder.report import seeded
from ingot.errors import FileError
from ingot.ir import Network
from ingot.passes.pipeline import Check
from ingot.passes.widen import NARROW
from ingot.written import write_whole

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Debug:
    """The two switches for finding a fault in the compile path.

    dump: a folder that gets the network's text after every pass. check: run every pass's network on the inputs of the
    report, or on seeded ones, and stop at the one that changes the numbers (slow: by the ops' references).
    """

    dump: str | os.PathLike[str] | None = None
    check: bool = False


def switches(
    debug: Debug, network: Network, weights: Mapping[str, Array], feeds: Mapping[str, Array] | None, seed: int
) -> dict[str, Any]:
    """The switches as the pipeline takes them. feeds: what the report is made on; None: seeded inputs."""
    found: dict[str, Any] = {}
    if debug.dump is not None:
        place = Path(debug.dump)
        try:
            place.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise FileError(f"{place} cannot be written: {e.strerror}") from None
        number = itertools.count()

        def dump(name: str, text: str) -> None:
            write_whole(place / f"{next(number):02}-{name.replace(' ', '-')}.txt", text.encode())

        found["dump"] = dump
    if debug.check:
        feeds = seeded(network, seed) if feeds is None else feeds
        narrow = any(v.dtype in NARROW for v in network.values.values())
        caches = {v.name: empty_cache(network, v.spec, feeds) for v in network.states}
        found["check"] = Check(feeds, weights, caches, tolerance=0.05 if narrow else 1e-4)
    return found
