"""Which layers are faster in float on this machine, by measurement: `tune` of `ingot.quantize`, `--tune` of a build.

What was measured, and what followed, is kept in a file. A build that finds it measures nothing and decides the same.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from time import perf_counter
from typing import Any, NamedTuple

from ingot.backends.device import DEFAULT, Device
from ingot.builder.measurements import GAIN, NUMBER, Clock, damaged, in_turn, is_time, keep, least, part_of
from ingot.engine.session import Engine, Session
from ingot.errors import FileError
from ingot.ir import Network
from ingot.quantization.pays import SHORT_CALL, Pairs, is_slower
from ingot.quantization.places import placed, seconds_of, word_of
from ingot.quantization.running import Feeds
from ingot.version import __version__

PART = "int8"  # of a file of measurements
SHARE = 0.6  # of the seconds; the others are for what convolutions and products take
PROFILES, MOST = 3, 100  # profiled runs of both engines, at least and at most
MANY, PART_OF_TIME = 7, 0.1  # for tuning, which goes by layers: at least, and of the time where more
WHY = "it is not faster in int8, as measured"


@dataclass(frozen=True)
class Tuning:
    """What was measured of one network, and the layers that stay float for it.

    Attributes:
        key: of the network, the sizes of its inputs and its layers that could be int8.
        isa: the level of instructions that was measured with; on a GPU, its name.
        layers: (name, milliseconds in float, in int8) by layer, as far as both are known.
        floats: names of the layers that stay float.
        before_ms, after_ms: of a run with all layers in int8, and with these in float.
    """

    key: str
    isa: str
    layers: list[tuple[str, float, float]] = field(default_factory=list)
    floats: list[str] = field(default_factory=list)
    before_ms: float = 0.0
    after_ms: float = 0.0

    def write(self, path: str | os.PathLike[str]) -> None:
        """Keeps it. Raises FileError."""
        keep(path, PART, asdict(self))


def key_of(network: Network, feeds: Feeds, names: Sequence[str]) -> str:
    """What tells one thing to tune from another; the weights' values are not part of it."""
    sizes = {name: list(array.shape) for name, array in sorted(feeds.items())}
    return hashlib.sha256(json.dumps([__version__, str(network), sizes, list(names)]).encode()).hexdigest()


def read(path: str | os.PathLike[str], key: str, names: Sequence[str]) -> tuple[Tuning | None, str]:
    """What a file holds for this key; or nothing, and a word for why. Raises FileError for a damaged file."""
    found = part_of(path, PART, _KINDS)
    if found is None:
        return None, ""
    if any(not _is_layer(item) for item in found["layers"]):
        raise damaged(path, "layers")
    if not all(isinstance(name, str) for name in found["floats"]):
        raise damaged(path, "floats")
    if found["key"] != key:
        return None, f"{path} was measured for another network, other layers or sizes, or by another ingot"
    if unknown := sorted({*found["floats"]} - {*names}):
        raise FileError(f"{path} names the layer {unknown[0]!r:.80}, which the network has not: remove the file")
    layers = [(name, float(a), float(b)) for name, a, b in found.pop("layers")]
    return Tuning(layers=layers, **found), ""


_KINDS: dict[str, Any] = {
    "key": str, "isa": str, "layers": list, "floats": list, "before_ms": NUMBER, "after_ms": NUMBER,
}  # fmt: skip


def _is_layer(item: Any) -> bool:
    return isinstance(item, list) and len(item) == 3 and isinstance(item[0], str) and all(map(is_time, item[1:]))


# ------------------------------------------------------------------------------------------------------------ measuring


def tuned(
    key: str, int8: Engine, plain: Engine, feeds: Feeds, layers: Sequence[str],
    make: Callable[[frozenset[str]], Engine], clock: Clock, device: Device, compare: Callable[[Engine], float],
) -> tuple[Tuning, list[str]]:  # fmt: skip
    """Leaves layers float as long as that makes a whole run faster and there is time, the slowest in int8 first; and
    all of them where the whole net in float is faster than that. On a GPU, whose kernels join what one layer does with
    what stands around it, all layers or none. What was tuned, and layers slower in int8 for which there was no time.

    Args:
        int8, plain: the engine with all layers in int8, and in float.
        layers: the names of those in int8.
        make: an engine in which these are float.
        compare: how many times as fast as in float an engine is, as a build that does not tune measures it. This is
            done whatever the time, first of all and of what the layers led to.
    """
    begin = perf_counter()
    ratio = compare(int8)
    kept = perf_counter() - begin
    best, best_engine, given = int8.session(device=device), int8, placed(feeds, device)
    times: list[tuple[str, float, float]] = []
    if device.runtime.name == DEFAULT:
        end = perf_counter() + clock.seconds * PART_OF_TIME
        times = profiled(plain.session(), best, feeds, layers, MANY, lambda: perf_counter() < end).layers
    slower = [name for _, name in sorted((b - a, name) for name, a, b in times if b > a)[::-1]]
    floats: frozenset[str] = frozenset()
    before = after = least(partial(seconds_of, best, given))
    untried = list(slower)
    while untried and clock.left(kept):
        more = untried.pop(0)
        engine = make(floats | {more})
        other = engine.session(device=device)
        one, two = in_turn(partial(seconds_of, best, given), partial(seconds_of, other, given))
        if two < one * (1 - GAIN):
            floats, best, best_engine, after = floats | {more}, other, engine, after * two / one
    if floats and floats != {*layers}:
        ratio = compare(best_engine)
    if floats != {*layers} and ratio < 1 - GAIN:  # what joins layers in int8 may cost more than all of them save
        floats, after, untried = frozenset(layers), after * ratio, []
    named = [name for name in layers if name in floats]
    return Tuning(key, word_of(device), times, named, before * 1e3, after * 1e3), untried


class Profiled(NamedTuple):
    """Milliseconds in float and in int8 by layer (name, float, int8), each the least of some runs; seconds of all
    calls of each pair of runs together; and the layers that take clearly longer in int8, see `pays`.
    """

    layers: list[tuple[str, float, float]]
    runs: Pairs
    slower: tuple[str, ...] = ()


def profiled(
    plain: Session, int8: Session, feeds: Feeds, names: Sequence[str], least: int = PROFILES,
    more: Callable[[], bool] = lambda: False,
) -> Profiled:  # fmt: skip
    """Runs of both sessions, in turn, call by call. Layers are those that both of them name.

    least: how many of each; and as long as there shall be more, up to MOST.
    """
    runs: list[tuple[dict[str, float], dict[str, float]]] = []
    while len(runs) < least or (len(runs) < MOST and more()):
        runs.append((_by_place(plain.profile(feeds)), _by_place(int8.profile(feeds))))
    by_layer = {name: [(a[name], b[name]) for a, b in runs if name in a and name in b] for name in names}
    by_layer = {name: pairs for name, pairs in by_layer.items() if pairs}
    layers = [(name, *(min(times) * 1e3 for times in zip(*pairs, strict=True))) for name, pairs in by_layer.items()]
    slower = tuple(name for name, pairs in by_layer.items() if is_slower(pairs, SHORT_CALL))
    return Profiled(layers, [(sum(a.values()), sum(b.values())) for a, b in runs], slower)


def _by_place(calls: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Seconds by module path."""
    found: dict[str, float] = {}
    for call in calls:
        where = call.get("where") or ""
        found[where] = found.get(where, 0.0) + call["ns"] / 1e9
    return found
