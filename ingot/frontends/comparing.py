"""Comparing an imported network with its source: on which inputs, how far apart, and at which node first."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Protocol

import numpy as np

from ingot import dims, dtypes
from ingot.errors import InputError, KernelRefused, MemoryLimitError, MismatchError, UserError, ValueFault
from ingot.frontends.recording import Imported
from ingot.ir import Network, Node, Value, interpret
from ingot.ir.difference import Difference, difference
from ingot.passes.masks import shows
from ingot.passes.widen import NARROW, widen
from ingot.seeded import bools

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]
Blame = Callable[[Mapping[str, Array], float], str]

SEEDED = (4, 64, 512, 2048)  # the size of a dim that nothing else fixes: the first at which the network runs …
MAX_SEEDED = 1 << 20  # … and its inputs have no more elements than that
# An output may be so many times as far from its source's as last bits of the weights move it: sums of thousands that
# are added one by one are off by that. Measured 66: ONNX Runtime's E[x²] - E[x]² of nearly constant rows.
SENSITIVE = 256
TOLERANCE = 1e-4  # of the largest output, in float32
NARROW_TOLERANCE = 0.05  # of a source that computes in half precision against ours in float32, or that rounds to steps


# What a run says of inputs, and of sizes, that the network cannot take: 20 best of 16, say.
UNFIT = (InputError, ValueFault, KernelRefused, MemoryLimitError)


class Refused(Exception):
    """The framework of a source does not run it, or not on these inputs; the message says why."""


class Step(NamedTuple):
    """A node of a source: its op, where it stands, and the tensors that it made, by the source's names."""

    op: str
    place: str
    made: Mapping[str, Array]


class Outputs(NamedTuple):
    """What a source gives, by the network's names, and how far ours may be from that. Those that are missing are not
    compared. `least`: of outputs that the source computes by absolute distance, what counts as their largest element at
    least. `squeezes`: whether it may drop sizes of 1 that ours keeps, as they are others in other runs."""

    arrays: Mapping[str, Array]
    tolerance: float
    least: Mapping[str, float] = {}
    squeezes: bool = False

    def apart(self, name: str, ours: Array) -> Difference:
        """How far ours is from it."""
        theirs = self.arrays[name]
        if self.squeezes and [n for n in ours.shape if n != 1] == [n for n in theirs.shape if n != 1]:
            theirs = theirs.reshape(ours.shape)
        found = difference(ours, theirs)
        least = self.least.get(name, 0.0)
        if not least or found.odd:
            return found
        return replace(found, relative=min(found.relative, found.absolute / least))


class Peer(Protocol):
    """A source as its own framework runs it, beside us."""

    @property
    def framework(self) -> str:
        """The framework and its version."""

    def run(self, feeds: Mapping[str, Array], word: str) -> Outputs:
        """The outputs for inputs by the network's names; `word` says where these are from. Raises Refused."""

    def walk(self, feeds: Mapping[str, Array], look: Callable[[Step], None]) -> Outputs:
        """The same, node by node."""


@dataclass(frozen=True)
class Comparison:
    """How far the outputs were apart at most, and on which inputs; or why nothing was compared.

    largest: relative to the largest element of the output. absolute: of one element. output: where the former was.
    source: the framework. nan: elements of the outputs that are NaN on both sides. left_out: outputs that were
    not compared. widened: it was the network in float32 that was compared, and not the engine, which computes or stores
    narrower. sensitive: they were further apart than usual, and last bits of the weights move them as far.
    """

    largest: float = 0.0
    absolute: float = 0.0
    output: str = ""
    inputs: str = ""
    source: str = ""
    missing: str = ""
    nan: int = 0
    left_out: tuple[str, ...] = ()
    sensitive: bool = False
    widened: bool = False

    def json(self) -> dict[str, Any]:
        """As --json shows it."""
        if self.missing:
            return {"compared": False, "why": self.missing}
        return {
            "compared": True, "against": self.source, "inputs": self.inputs, "relative": self.largest,
            "absolute": self.absolute, "output": self.output, "nan": self.nan, "left_out": list(self.left_out),
            "sensitive": self.sensitive, "compares": "network in float32" if self.widened else "engine",
        }  # fmt: skip

    def __str__(self) -> str:
        if self.missing:
            return f"not compared with its source: {self.missing}"
        both = f"; NaN in the same {self.nan} elements of both" if self.nan else ""
        rest = f"; {', '.join(self.left_out)} not compared" if self.left_out else ""
        rest += "; last bits of the weights move these outputs as far" if self.sensitive else ""
        ours = "the network in float32 " if self.widened else ""
        return (
            f"{ours}against {self.source}, {self.inputs} inputs: within {self.largest:.1e} of the largest output "
            f"({self.output}, at most {self.absolute:.1e} apart){both}{rest}"
        )


# ------------------------------------------------------------------------------------------------------- inputs


class Inputs(NamedTuple):
    """Arrays by name, and the word for where they come from."""

    word: str
    arrays: Mapping[str, Array]


def seeded_inputs(
    network: Network, sizes: Callable[[Sequence[str], int], Mapping[str, int]], run: Run, seed: int
) -> Inputs:
    """Seeded inputs that the network runs on: those with elements in most of its tensors, the first of several; or else
    those of the first sizes. A batch of several comes first, then one of 1, which is all that some models take, and at
    the end 1 for all dims.

    Args:
        sizes: of the dims where most are of a usual size, and some as given ("N=1").

    Raises:
        InputError: no sizes were found at which it runs.
    """
    found: list[Inputs] = []
    best: tuple[int, Inputs] | None = None
    fault: Exception | None = None
    alone = [f"{d.name}=1" for d in {v.shape[0]: None for v in network.inputs if v.shape} if isinstance(d, dims.Dim)]
    tries: list[tuple[Sequence[str], int]] = [((), usual) for usual in SEEDED]
    tries += [*((alone, usual) for usual in SEEDED if alone), ((), 1)]
    for given, usual in tries:
        try:
            known = sizes(given, usual)
            if found and sum(math.prod(v.spec.evaluate(known)) for v in network.inputs) > MAX_SEEDED:
                continue
            made = Inputs("seeded", seeded(network, known, seed))
            if not found:
                found.append(made)
            run(made.arrays)
        except (UserError, *UNFIT) as e:
            fault = fault or e
            continue
        count = _empty(network, known)
        if best is None or count < best[0]:
            best = count, made
        if not count:
            break
    if best is None and not found:
        raise InputError(f"{fault}")
    return best[1] if best else found[0]


def _empty(network: Network, sizes: Mapping[str, int]) -> int:
    """How many tensors that have elements at other sizes have none at these: a window does not fit once into a small
    image, where ONNX Runtime says that one does."""
    counts = (v.spec.elements for v in network.values.values() if not v.is_state)
    some = [n for n in counts if isinstance(n, dims.Expr) and n.dims().keys() <= sizes.keys()]
    return sum(not n.evaluate(sizes) for n in some)


def cases(network: Network, examples: Mapping[str, Array], seed: int) -> list[dict[str, Array]]:
    """Inputs to compare on: the ones there are, and with dynamic dims sets of other sizes, of which one is enough."""
    known = {name: d for name, d in network.dims.items() if not d.unbacked}
    pairs = [zip(value.shape, examples[value.name].shape, strict=True) for value in network.inputs]
    sizes = dims.values_of(pair for shapes in pairs for pair in shapes)
    found = [dict(examples)]
    both = zip(*(_others(d, sizes[name]) for name, d in known.items()), strict=True) if known else ()
    others = [dict(zip(known, several, strict=True)) for several in both]
    others.sort(key=lambda one: _empty(network, one))
    return found + [seeded(network, one, seed + 1) for one in others]


def _others(d: dims.Dim, size: int) -> tuple[int, int]:
    """Two other sizes of a dim, a smaller one first if possible: what a network needs of a size may not be known."""
    smaller, larger = max(size // 2, d.min, 1), size + 1
    larger = larger if d.max is None or larger <= d.max else max(size - 1, d.min)
    return smaller if smaller < size else larger, larger


def seeded(network: Network, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    """Normal numbers; integers that every embedding and comparison of the network takes; masks hiding no row whole."""
    rng = np.random.default_rng(seed)
    return {v.name: _random(rng, network, v, v.spec.evaluate(sizes)) for v in network.inputs}


def _random(rng: np.random.Generator, network: Network, value: Value, shape: tuple[int, ...]) -> Array:
    if value.dtype.is_float:
        return rng.standard_normal(shape).astype(value.dtype.numpy)
    if value.dtype is dtypes.bool_:
        return bools(rng, shape, shows(network, value))
    return rng.integers(0, _rows(network, value), shape).astype(value.dtype.numpy)


def _rows(network: Network, value: Any) -> int:
    """How many rows the smallest table has that an integer input chooses from; 2 when it chooses from none."""
    found, todo, seen = [], [value], {value}
    while todo:
        for node in network.users(todo.pop()):
            if node.op.name == "embedding":
                found.append(node.inputs[1].shape[0])
            elif node.op.is_view or node.op.name in ("cast", "concat"):
                todo += [v for v in node.outputs if v not in seen]
                seen.update(node.outputs)
    known = [n for n in found if isinstance(n, int)]
    return min(known, default=2)


# --------------------------------------------------------------------------------------------------- comparison


def compare(
    imported: Imported, name: str, opened: Callable[[], Peer], run: Run, inputs: Inputs, blame: Blame, seed: int = 0
) -> Comparison:
    """Compares a network with what it was imported from; where dims are dynamic, at two sizes.

    Args:
        name: of the file or module, for messages.
        opened: gives the source in its framework. Raises UserError when that is not installed, Refused when it does
            not take the source.
        run: the network in float32.
        blame: says what is at fault on these inputs, to a tolerance, where every op by itself agrees with the source's.

    Raises:
        MismatchError: an output is further from the source's than the tolerance, or NaN where the source's is not;
            names the first such node.
    """
    try:
        peer = opened()
    except (UserError, Refused) as e:
        return Comparison(missing=str(e))
    worst, absolute, output, nan, words, refused, sensitive = 0.0, 0.0, "", 0, [], "", False
    left_out: tuple[str, ...] = ()
    noise: dict[str, float] = {}
    compared = False  # at sizes of our own choice
    for i, feeds in enumerate(cases(imported.network, inputs.arrays, seed)):
        if compared:
            break
        word, noise = inputs.word if i == 0 else "seeded", {}
        try:
            ours = _ours(run, feeds, word)  # first: it is bounded
            theirs = peer.run(feeds, word)
        except Refused as e:
            if word == "given":
                raise MismatchError(f"{name}: not compared on these inputs: {e!s:.500}") from None
            refused = str(e)[:200]
            continue  # seeded numbers need not be inputs that the source takes
        for key, array in theirs.arrays.items():
            apart = theirs.apart(key, ours[key])
            if not apart.relative <= max(theirs.tolerance, noise.get(key, 0.0)) and not noise and not apart.odd:
                noise = _noise(imported, feeds, seed)
            if not apart.relative <= max(theirs.tolerance, noise.get(key, 0.0)):
                first = _first_difference(imported, peer, feeds, theirs, blame)
                raise MismatchError(_mismatch(name, word, key, apart, theirs.tolerance) + first)
            sensitive |= apart.relative > theirs.tolerance
            absolute = max(absolute, apart.absolute)
            if apart.relative >= worst:
                worst, output = apart.relative, key
            nan += int(np.isnan(array).sum()) if array.dtype.kind == "f" else 0
        left_out = tuple(key for key in imported.network.outputs if key not in theirs.arrays)
        words.append(word)
        compared = i > 0
    if not words:
        others = "ingot.build takes others by name: report={'x': array}"
        return Comparison(missing=f"the {inputs.word} inputs do not suit it ({refused}); {others}")
    inputs_of = " and ".join(dict.fromkeys(words))
    return Comparison(worst, absolute, output, inputs_of, peer.framework, "", nan, left_out, sensitive)


def _ours(run: Run, feeds: Mapping[str, Array], word: str) -> Mapping[str, Array]:
    try:
        return run({key: wide(array) for key, array in feeds.items()})
    except UNFIT as e:
        if word == "seeded":
            raise Refused(str(e)) from None
        raise


def _mismatch(name: str, word: str, output: str, apart: Difference, tolerance: float) -> str:
    return (
        f"{name}: on {word} inputs output {output} {apart}, against the source"
        f"{'' if apart.odd else f': more than {tolerance:.0e}'}. "
    )


def _noise(imported: Imported, feeds: Mapping[str, Array], seed: int) -> dict[str, float]:
    """How far each output may be from its source's because of rounding alone: SENSITIVE times as far as it moves when
    last bits of the weights change. By the ops' references.
    """
    network, rng = widen(imported.network), np.random.default_rng(seed)
    given = {key: wide(array) for key, array in feeds.items()}
    weights = {v.name: wide(imported.weights[v.name]) for v in network.parameters}

    def moved(array: Array) -> Array:
        if array.dtype != np.float32:
            return array
        ulps = rng.integers(-1, 2, array.shape).astype(np.float32) * np.float32(np.finfo(np.float32).eps)
        return array * (1 + ulps)

    before = interpret(network, given, weights)
    after = interpret(network, {k: moved(a) for k, a in given.items()}, {k: moved(a) for k, a in weights.items()})
    return {key: SENSITIVE * difference(after[key], array).relative for key, array in before.items()}


def _first_difference(
    imported: Imported, peer: Peer, feeds: Mapping[str, Array], whole: Outputs, blame: Blame
) -> str:
    """Walks both node by node, ours by the ops' references."""
    network = widen(imported.network)
    names = {value: name for name, value in _widened(imported, network).items()}
    arrays: dict[str, Array] = {}

    def tap(node: Node, results: tuple[Array, ...]) -> None:
        arrays.update({names[v]: a for v, a in zip(node.outputs, results, strict=True) if v in names})

    weights = {v.name: wide(imported.weights[v.name]) for v in network.parameters}
    interpret(network, {key: wide(array) for key, array in feeds.items()}, weights, taps=tap)
    found: list[str] = []

    def look(step: Step) -> None:
        for name, array in step.made.items():
            if name not in arrays or found:
                continue
            apart = difference(arrays[name], array)
            if not apart.relative <= TOLERANCE:
                found.append(f"The first node that differs is {name} = {step.op} in {step.place}: it {apart}")

    try:
        walked = peer.walk(feeds, look)
    except Refused as e:
        return f"Which node differs first cannot be said: {e}"
    if found:
        return found[0]
    for key, array in walked.arrays.items():
        apart = difference(array, whole.arrays[key])
        if not apart.relative <= whole.tolerance:
            return (
                f"Every node agrees by the ops' references, and the nodes as {peer.framework} runs them give an output "
                f"{key} that {apart} too: what was exported is not what the source computes as a whole"
            )
    return f"Every node agrees by the ops' references. {blame(feeds, TOLERANCE)}"


def _widened(imported: Imported, network: Network) -> dict[str, Value]:
    """The source's names of the values of the same network in float32."""
    pairs = zip(imported.network.nodes, network.nodes, strict=True)
    copies = {a: b for old, new in pairs for a, b in zip(old.outputs, new.outputs, strict=True)}
    return {name: copies[v] for name, v in imported.values.items() if v in copies}


def wide(array: Array) -> Array:
    """Floats that are narrower than float32 as float32; other arrays as they are."""
    return array.astype(np.float32) if dtypes.get(array.dtype) in NARROW else array
