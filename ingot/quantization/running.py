"""Networks of a calibration on our own engine: prepared weights, values inside, and how far outputs are apart."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Executor, Future
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import numpy as np

from ingot import dims
from ingot.builder.compile import Compiled, compile_network, header_of, make_tensors
from ingot.engine.session import Engine, Session
from ingot.errors import InputError, ValueFault
from ingot.ir import F, Network, Value
from ingot.ir.evaluation import evaluate
from ingot.ir.precision import unscoped
from ingot.ir.recipe import Recipe
from ingot.ops.external import external_ops
from ingot.passes.calibrated import Plan
from ingot.passes.clone import clone
from ingot.passes.weights import recipe_of

Array = np.ndarray[Any, Any]
Feeds = Mapping[str, Array]

TAPPED = 256 << 20  # bytes of values inside that one run gives, where it can be told; more of them take several runs


class Prepared(Mapping[str, Array]):
    """The parameters of a prepared network by name, each made by its recipe when it is read."""

    def __init__(self, network: Network, weights: Mapping[str, Array]) -> None:
        self._recipes = {v.name: recipe_of(v) for v in network.parameters}
        self._weights = weights

    def __getitem__(self, name: str) -> Array:
        return evaluate(self._recipes[name], self._weights)

    def __iter__(self) -> Iterator[str]:
        return iter(self._recipes)

    def __len__(self) -> int:
        return len(self._recipes)


class Made(NamedTuple):
    """A compiled network, the tensors that it reads, and its engine."""

    compiled: Compiled
    tensors: dict[str, Array]
    engine: Engine


class Maker:
    """Makes engines by a network's weights. What several of them store by the same recipe is made once, and lives as
    long as one of these engines: most weights, in engines whose scales alone differ.
    """

    def __init__(self, weights: Mapping[str, Array]) -> None:
        self.weights = weights
        self._shared: WeakValueDictionary[Recipe, Array] = WeakValueDictionary()

    def __call__(self, network: Network, plan: Plan | None = None, ready: Network | None = None) -> Made:
        """An engine of a network, with its layers as a plan says. ready: the network `prepared`."""
        compiled = compile_network(network, plan=plan, ready=ready)
        header = header_of("network", {} if plan is None else plan.config, network, compiled)
        tensors = make_tensors(compiled.stored, self.weights, shared=self._shared)
        return Made(compiled, tensors, Engine.from_memory(header, tensors, external_ops(network)))


class Tried:
    """An engine whose outputs on batches are compared, each run once: here, or behind what else is done."""

    def __init__(self, engine: Engine, behind: Executor) -> None:
        self._engine, self._behind = engine, behind
        self._session: Session | None = None
        self._found: dict[int, Mapping[str, Array]] = {}  # by the id of a batch, all of which somebody keeps
        self._under_way: Future[None] | None = None

    def know(self, feeds: Feeds, outputs: Mapping[str, Array]) -> None:
        """Takes outputs that another run gave."""
        self._found[id(feeds)] = outputs

    def begin(self, batches: Sequence[Feeds]) -> None:
        """Runs behind what else is done, on the batches that it has not run on. A fault shows when outputs are read."""
        self._wait()
        if any(id(feeds) not in self._found for feeds in batches):
            self._under_way = self._behind.submit(self._run, batches)

    def on(self, batches: Sequence[Feeds]) -> list[Mapping[str, Array]]:
        """The outputs on these batches."""
        self._wait()
        self._run(batches)
        return [self._found[id(feeds)] for feeds in batches]

    def _run(self, batches: Sequence[Feeds]) -> None:
        for i, feeds in enumerate(batches):
            if id(feeds) in self._found:
                continue
            if self._session is None:
                self._session = self._engine.session()
            self._found[id(feeds)] = run(self._session, feeds, i)

    def _wait(self) -> None:
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()


def sizes_of(network: Network, feeds: Feeds) -> dict[str, int]:
    """What a batch says about the network's dims."""
    return dims.values_of(pair for v in network.inputs for pair in zip(v.shape, feeds[v.name].shape, strict=True))


def samples_of(takes: Network | Engine, feeds: Feeds) -> int:
    """How many samples a batch has: the first size of the first input."""
    first = feeds[takes.inputs[0].name]
    return len(first) if first.ndim else 1


def run(what: Engine | Session, feeds: Feeds, number: int) -> dict[str, Array]:
    """One run on batch `number`, which a fault of the batch names.

    Of an engine that is soon dropped a session: one that an engine keeps for its runs refers to it, so that both and
    their memory stay until Python looks for cycles.
    """
    try:
        return what.run(feeds)
    except (InputError, ValueFault) as e:
        raise type(e)(f"batch {number} of data: {e}") from None


# ---------------------------------------------------------------------------------------------------- values inside


class Taps:
    """Values of a network, by name, as they are on a batch: by engines that give some of them as further outputs.

    How many at once follows from the sizes of the first batch, so that they fit into TAPPED bytes.
    """

    def __init__(self, network: Network, make: Maker, values: Sequence[Value]) -> None:
        self._network, self._make, self._values = network, make, values
        self._engines: list[Engine] = []  # kept, for others take over their weights
        self._sessions: list[tuple[dict[str, str], Session]] = []

    def open(self, feeds: Feeds) -> bool:
        """Makes what runs, by a first batch; whether it was not there yet."""
        if self._sessions:
            return False
        self._sessions = [self._session(some) for some in self._rounds(feeds)]
        return True

    def run(self, feeds: Feeds, number: int) -> Iterator[dict[str, Array]]:
        """Some of the values at a time."""
        self.open(feeds)
        for names, session in self._sessions:
            found = run(session, feeds, number)
            yield {name: _turned(found[label]) for label, name in names.items()}

    def _rounds(self, feeds: Feeds) -> Iterator[list[Value]]:
        sizes = sizes_of(self._network, feeds)
        some: list[Value] = []
        total = 0
        for value in self._values:
            known = all(name in sizes for name in dims.dims_of(value.shape))
            count = math.prod(value.spec.evaluate(sizes)) * value.dtype.bits // 8 if known else 0
            if some and total + count > TAPPED:
                yield some
                some, total = [], 0
            some.append(value)
            total += count
        yield some

    def _session(self, values: Sequence[Value]) -> tuple[dict[str, str], Session]:
        network = clone(self._network)
        names = {f"tap.{i}": v.name for i, v in enumerate(values)}
        with unscoped():
            network.outputs = {label: _channels_last(network.values[name]) for label, name in names.items()}
        network.remove_dead()
        self._engines.append(self._make(network).engine)
        return names, self._engines[-1].session()


def _channels_last(value: Value) -> Value:
    """An image as convolutions compute it, so that it is given as it lies in memory."""
    rank = len(value.shape)
    return value if rank < 4 else F.permute(value, (0, *range(2, rank), 1))


def _turned(array: Array) -> Array:
    """The array that was given channels last, with its channels as dimension 1."""
    return array if array.ndim < 4 else np.moveaxis(array, -1, 1)


# ------------------------------------------------------------------------------------------------------- differences


class Apart(NamedTuple):
    """How far outputs are from what they should be, of each figure the output that is furthest.

    relative: the root mean square of the difference over that of what should be. largest: the largest difference over
    the largest of what should be. Of outputs that are no floats both are the share of elements that differ.
    """

    relative: float
    largest: float

    @property
    def both(self) -> float:
        """Their geometric mean."""
        return math.sqrt(self.relative * self.largest)


def apart(ours: Sequence[Mapping[str, Array]], theirs: Sequence[Mapping[str, Array]]) -> float:
    """The relative difference of outputs on several batches alone."""
    return differences(ours, theirs).relative


def differences(ours: Sequence[Mapping[str, Array]], theirs: Sequence[Mapping[str, Array]]) -> Apart:
    """How far outputs on several batches are from what they should be."""
    found = [_apart([a[name] for a in ours], [b[name] for b in theirs]) for name in theirs[0]]
    return Apart(*(max(figures) for figures in zip(*found, strict=True))) if found else Apart(0.0, 0.0)


def _apart(ours: Sequence[Array], theirs: Sequence[Array]) -> Apart:
    if not np.issubdtype(theirs[0].dtype, np.inexact) and theirs[0].dtype.kind in "biu":
        different = sum(int(np.count_nonzero(a != b)) for a, b in zip(ours, theirs, strict=True))
        share = different / max(sum(b.size for b in theirs), 1)
        return Apart(share, share)
    difference = whole = most = largest = 0.0
    for a, b in zip(ours, theirs, strict=True):
        x, y = a.astype(np.float64), b.astype(np.float64)
        finite = np.isfinite(y)
        if not np.array_equal(np.isfinite(x), finite):
            return Apart(math.inf, math.inf)
        away, y = np.abs(x[finite] - y[finite]), np.abs(y[finite])
        difference, whole = difference + float(np.sum(away**2)), whole + float(np.sum(y**2))
        most, largest = max(most, float(away.max(initial=0.0))), max(largest, float(y.max(initial=0.0)))
    return Apart(math.sqrt(difference / (whole or 1.0)), most / (largest or 1.0))
