"""What a session of a net knows of the sizes of its runs: to which they are padded, and the graphs captured of them."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from ingot.backends.cuda.net_rows import Batch, padded
from ingot.ir import Node, Value

MOST_SEEN = 256  # sets of input sizes that a session remembers
OWN_SIZES = 2  # of a batch: so many that come first are never padded
IN_PLACE = 4  # graphs of one set of sizes that read or write a caller's memory; and twice as many addresses remembered
UNUSED = 10_000  # runs after which such a graph makes room for another: a capture takes as long as hundreds of runs
ALIGNED = 16  # bytes, as whatever torch allocates: kernels and libraries are chosen for it

Array = np.ndarray[Any, Any]
Key = tuple[tuple[str, Any, tuple[int, ...]], ...]  # name, dtype and shape of every input
Addresses = tuple[int, ...]  # of inputs and results that may be used where they lie, 0 for the others; () for none


@dataclass(frozen=True)
class Plan:
    """How inputs of some sizes run: as `key`, their `rows` padded to `whole`; 0 where they are not. hosts: how many of
    them come from the host's memory."""

    key: Key
    rows: int = 0
    whole: int = 0

    @cached_property
    def hosts(self) -> int:
        return sum(isinstance(dtype, np.dtype) for _, dtype, _ in self.key)


class Plans:
    """The plans of a session. batch: of its net, if it has one.

    A caller whose batches have one size, or two (the last one of many is smaller), finds these graphs of their own.
    """

    def __init__(self, batch: Batch | None) -> None:
        self.batch = batch
        self._known: OrderedDict[Key, Plan] = OrderedDict()
        self._own: dict[Key, list[int]] = {}  # by the other sizes

    def of(self, key: Key) -> Plan:
        """The plan for inputs of these sizes."""
        plan = self._known.get(key)
        if plan is None:
            plan = self._known[key] = Plan(key) if self.batch is None else self._made(self.batch, key)
            if len(self._known) > MOST_SEEN:
                self._known.popitem(last=False)
        return plan

    def _made(self, batch: Batch, key: Key) -> Plan:
        found = {s[axis] for name, _, s in key if (axis := batch.inputs.get(name)) is not None and axis < len(s)}
        if len(found) != 1:
            return Plan(key)  # the run says what is wrong with it
        (rows,) = found
        most = batch.dim.max
        if rows < max(1, batch.dim.min) or (most is not None and rows > most):
            return Plan(key)
        whole = max(padded(rows), batch.dim.min)
        whole = whole if most is None else min(whole, most)
        if len(self._own) > MOST_SEEN:
            self._own.clear()
        own = self._own.setdefault(_with_rows(batch, key, 0), [])
        if len(own) < OWN_SIZES and rows not in own:
            own.append(rows)
        return Plan(key) if rows == whole or rows in own else Plan(_with_rows(batch, key, whole), rows, whole)

    def widened(self, torch: Any, plan: Plan, feeds: Mapping[str, Any]) -> dict[str, Any]:
        """Inputs with their first row repeated at the end: what is computed of it is no fault of its own."""
        found, axes = dict(feeds), {} if self.batch is None else self.batch.inputs
        for name, axis in axes.items() if plan.rows else ():
            given, more = feeds[name], plan.whole - plan.rows
            if isinstance(given, np.ndarray):
                found[name] = np.concatenate([given, np.repeat(given.take([0], axis), more, axis)], axis)
            else:
                found[name] = torch.cat([given, given.narrow(axis, 0, 1).expand(_with(given.shape, axis, more))], axis)
        return found

    def brought(self, plan: Plan, name: str, place: Any, given: Any, checked: bool) -> None:
        """Copies an input of a run to where graphs read it, from an array to an array or from a tensor to a tensor.
        checked: whether rows behind those of a padded run may be faults."""
        axis = self.batch.inputs.get(name) if self.batch is not None and plan.rows else None
        if axis is None:
            place[...] = given
            return
        before = (slice(None),) * axis
        place[*before, : plan.rows] = given
        if checked:
            place[*before, plan.rows :] = given[*before, :1]

    def cut(self, plan: Plan, outputs: Mapping[str, Any], sizes: Mapping[str, int]) -> dict[str, Any]:
        """Results of a padded run of the rows that were asked for."""
        found = dict(outputs)
        for name, place in self.batch.outputs.items() if self.batch is not None else ():
            inner = place.inner if isinstance(place.inner, int) else place.inner.evaluate(sizes)
            found[name] = outputs[name].narrow(place.axis, 0, plan.rows * inner)
        return found


def _with(shape: Sequence[int], axis: int, size: int) -> tuple[int, ...]:
    return (*shape[:axis], size, *shape[axis + 1 :])


def _with_rows(batch: Batch, key: Key, rows: int) -> Key:
    axes = batch.inputs
    return tuple((n, dtype, _with(s, axes[n], rows) if n in axes else s) for n, dtype, s in key)


@dataclass
class Results:
    """What a run leaves on the device. nodes: whose faults the flags tell."""

    outputs: dict[str, Any]
    nodes: list[Node] = field(default_factory=list)
    flags: Any = None


@dataclass
class Captured:
    """A graph. in_place: inputs and outputs that it reads or writes in a caller's memory, which it does not keep."""

    replay: Callable[[], None]
    results: Results
    in_place: frozenset[str] = frozenset()
    last: int = 0  # the number of the run that used it


@dataclass
class Sized:
    """What is known of one set of input sizes.

    by_reference: whether some op reads back on its way. results: shape and dtype of each, once a caller wants one in
    memory of its own. fixed: stored tensors, and values that only sizes decide, once
    something is captured. inputs, pinned: where graphs read what is copied there, and pinned memory for what comes from
    the host, as a tensor and as its array. graph: the one that takes inputs from anywhere; there: those for addresses
    of a caller's. met: addresses of the last runs.
    """

    sizes: dict[str, int]
    by_reference: bool = False
    results: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    fixed: dict[Value, Any] | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    pinned: dict[str, tuple[Any, Array]] = field(default_factory=dict)
    graph: Captured | None = None
    there: dict[Addresses, Captured] = field(default_factory=dict)
    met: OrderedDict[Addresses, None] = field(default_factory=OrderedDict)
    runs: int = 0

    def chosen(self, at: Addresses) -> Captured | None:
        """The graph of a run; None where one is to be captured: there is none yet, or memory of the caller's came again
        that lay there before. A caller with many buffers does not have them captured over and over."""
        self.runs += 1
        if not at:
            return self.graph
        found = self.there.get(at)
        if found is not None:
            found.last = self.runs
            return found
        if self.captures_at(at):
            return None
        if self.graph is not None:
            self.meet(at)
        return self.graph

    def captures_at(self, at: Addresses) -> bool:
        """Whether a graph for these addresses is worth it."""
        if not at or at not in self.met:
            return False
        return len(self.there) < IN_PLACE or min(graph.last for graph in self.there.values()) + UNUSED < self.runs

    def meet(self, at: Addresses) -> None:
        """Remembers addresses of a run."""
        if at:
            self.met[at] = None
            self.met.move_to_end(at)
            while len(self.met) > 2 * IN_PLACE:
                self.met.popitem(last=False)

    def keep(self, at: Addresses, graph: Captured) -> None:
        """A graph that was captured; `at`: for addresses, if it is for any."""
        if not at:
            self.graph = graph
            return
        graph.last = self.runs
        self.there[at] = graph
        while len(self.there) > IN_PLACE:
            del self.there[min(self.there, key=lambda each: self.there[each].last)]

    def forgotten(self) -> Sized:
        """Without its graphs."""
        return Sized(self.sizes, self.by_reference)
