"""What the data of a calibration show of a network: magnitudes and means of values inside, and the scales by them."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np

from ingot.ir import Network, Node, Value
from ingot.ops.product import Matmul
from ingot.passes.calibrated import LIMIT, Choice, Layer, groups_of, is_scale
from ingot.passes.widen import NARROW
from ingot.quantization.data import Batches
from ingot.quantization.observers import Means, Observer
from ingot.quantization.options import Options
from ingot.quantization.ranges import range_of
from ingot.quantization.running import Feeds, Maker, Taps, samples_of

Array = np.ndarray[Any, Any]


class Seen:
    """What the values of a network were on the data: magnitudes by group, means by layer; and samples for errors."""

    def __init__(self, network: Network, make: Maker, layers: Sequence[Layer], options: Options) -> None:
        self.network, self.layers, self.options = network, layers, options
        self._make = make
        self.groups = groups_of(layers)
        self.observers = [Observer() for _ in self.groups]
        self.means = {i: Means(channels_of(layer.node)) for i, layer in enumerate(layers) if not layer.why}
        self.kept: list[Feeds] = []
        self.outputs: list[Mapping[str, Array] | None] = []  # of the kept, where the runs in float gave them
        self.batches = self.samples = 0

    def read(
        self, batches: Batches, done: Callable[[int, int], None], opened: Callable[[], None] = lambda: None
    ) -> None:
        """Runs the network on all batches. opened: is called when all is made that runs, before it does."""
        sources = [v for group in self.groups for v in group]
        group_of = {v.name: i for i, group in enumerate(self.groups) for v in group}
        means: dict[str, list[Means]] = {}
        for i, mean in self.means.items():
            means.setdefault(self.layers[i].node.inputs[0].name, []).append(mean)
        read = [self.network.values[name] for name in means]
        outputs = {} if self.is_narrow else {label: v.name for label, v in self.network.outputs.items()}
        wanted = [self.network.values[name] for name in outputs.values()]
        taps = Taps(self.network, self._make, list(dict.fromkeys((*sources, *read, *wanted))))

        def count(number: int, found: Mapping[str, Array], names: Sequence[str]) -> None:
            for name in names:
                if name in group_of:
                    what = f"batch {number} of data: %{name} of network {self.network.name}"
                    self.observers[group_of[name]].add(found[name], what)
                for mean in means.get(name, ()):
                    mean.add(found[name])

        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            for number, feeds in batches:
                if taps.open(feeds):
                    opened()
                results: dict[str, Array] = {}
                for found in taps.run(feeds, number):
                    results |= {label: found[name] for label, name in outputs.items() if name in found}
                    of_one: dict[int | str, list[str]] = {}  # an observer takes one value at a time
                    for name in found:
                        of_one.setdefault(group_of.get(name, name), []).append(name)
                    list(pool.map(partial(count, number, found), of_one.values()))
                self._keep(feeds, results)
                self.batches += 1
                self.samples += samples_of(self.network, feeds)
                done(number + 1, batches.total or number + 2)

    @property
    def is_narrow(self) -> bool:
        """Whether values are narrower than float32: what is given as an output is rounded to them, and what a kernel
        hands on is not. So the outputs beside values inside are not quite those of the network alone."""
        return any(v.dtype in NARROW for v in self.network.values.values())

    def _keep(self, feeds: Feeds, outputs: Mapping[str, Array]) -> None:
        """Keeps the first samples, in whole batches where these cannot be cut."""
        missing = self.options.samples - sum(samples_of(self.network, kept) for kept in self.kept)
        if missing <= 0:
            return
        some = self.cut(feeds, missing)
        self.outputs.append(outputs if some is feeds and outputs else None)
        self.kept.append({name: np.array(array) for name, array in some.items()})

    def cut(self, feeds: Feeds, samples: int) -> Feeds:
        """The first samples of a batch; the batch itself where it has no more, or cannot be cut."""
        first = self.network.inputs[0].shape[0] if self.network.inputs[0].shape else 1
        alike = all(v.shape and v.shape[0] == first for v in self.network.inputs)
        if not alike or isinstance(first, int) or samples < getattr(first, "min", math.inf):
            return feeds
        if samples_of(self.network, feeds) <= samples:
            return feeds
        return {name: array[:samples] for name, array in feeds.items()}

    def choices(self, whys: Sequence[str], method: str) -> list[Choice]:
        """The layers with their scales by a method, all as int8 as they can be."""
        scale_of: dict[str, float] = {}
        unseen: set[str] = set()
        find = partial(range_of, method=method, percentile=self.options.magnitudes)
        with ThreadPoolExecutor(len(os.sched_getaffinity(0))) as pool:
            ranges = list(pool.map(find, self.observers))
        for group, seen, found_range in zip(self.groups, self.observers, ranges, strict=True):
            unseen |= set() if seen.any else {v.name for v in group}
            scale_of |= {v.name: float(np.float32(found_range / LIMIT)) for v in group}
        found = []
        for layer, why in zip(self.layers, whys, strict=True):
            scale = 0.0 if why else scale_of[layer.sources[0].name]
            if not why and not is_scale(scale):
                if layer.sources[0].name in unseen:
                    why = "its input had no elements in the data"
                else:
                    why = "its input was 0 in all the data" if not scale else "its input is too small for a scale"
            choice = Choice(layer.name, layer.node.op.name, None if why else scale, why=why)
            waits = 0.0 if why or layer.summand is None else scale_of[layer.summand.name]
            found.append(dataclasses.replace(choice, output=waits) if is_scale(waits) else choice)
        return found

    @property
    def flat(self) -> list[str]:
        """The names of layers whose input had one magnitude in all the data, such as 0."""
        one = {v.name for v, observer in self._observed() if observer.is_flat}
        return [layer.name for layer in self.layers if not layer.why and layer.sources[0].name in one]

    def _observed(self) -> Iterator[tuple[Value, Observer]]:
        for group, observer in zip(self.groups, self.observers, strict=True):
            yield from ((v, observer) for v in group)

    def clipped(self, choices: Sequence[Choice]) -> dict[str, float]:
        """By layer the share of its input's values that would be integers beyond LIMIT; not of rows with own scales."""
        seen = {v.name: observer for v, observer in self._observed()}
        return {
            c.name: seen[layer.sources[0].name].beyond(c.scale * (LIMIT + 0.5))
            for layer, c in zip(self.layers, choices, strict=True)
            if c.scale is not None and not c.rows
        }


def channels_of(node: Node) -> int:
    """The dimension of a layer's input that its weight sums over."""
    return -1 if isinstance(node.op, Matmul) or node.op.channels_last else 1  # type: ignore[attr-defined]
