"""Running a network on NumPy references: the oracle for everything faster.

`interpret` runs a finished network. `Eager` is a network that computes while it is being built: its values carry their
arrays, which is how a Module is debugged.
"""
from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from ingot.dims import Dim, affine, dims_of
from ingot.dtypes import get
from ingot.errors import DimError, IngotError, InputError, ValueFault, other_sizes
from ingot.ir.network import Network, Node
from ingot.ir.op import Op
from ingot.ir.spec import Spec
from ingot.ir.value import Value

Array = np.ndarray[Any, Any]
Tap = Callable[[Node, tuple[Array, ...]], None]

MAX_ROUNDS = 1 << 28  # of all loops of a run
_rounds: ContextVar[Iterator[int] | None] = ContextVar("rounds", default=None)
_outside: ContextVar[Mapping[str, int] | None] = ContextVar("outside", default=None)


def interpret(network: Network, feeds: Mapping[str, Array], parameters: Mapping[str, Array] | None = None,
              states: MutableMapping[str, Array] | None = None, taps: Tap | None = None) -> dict[str, Array]:
    """The network's outputs by name.

    feeds: inputs by name. parameters: by name. states: by name, [num_blocks, block_size, 2, heads, width] for a KV
    cache; each is replaced by its last version. taps(node, results) is called after every node.
    Raises InputError for arrays that do not fit, ValueFault for faults that only values show.
    """
    with rounds_together():
        return _interpret(network, feeds, parameters, states, taps)


def _interpret(network: Network, feeds: Mapping[str, Array], parameters: Mapping[str, Array] | None,
               states: MutableMapping[str, Array] | None, taps: Tap | None) -> dict[str, Array]:
    arrays: dict[Value, Any] = {v: v.array for v in (*network.constants, network.absent)}
    arrays |= _given("input", network.inputs, feeds, exact=True)
    arrays |= _given("parameter", network.parameters, parameters or {}, exact=False)
    arrays |= _states(network.states, states or {})
    sizes = bind(network, {v.name: arrays[v].shape for v in network.inputs})
    _check_shapes(network.parameters, arrays, sizes)
    latest = {v: v.name for v in network.states}
    left = {v: len(v.uses) for v in (*network.values.values(), network.absent)}
    for value in network.outputs.values():
        left[value] += 1
    for node in network.nodes:
        results = run_node(node, tuple(arrays[v] for v in node.inputs), sizes)
        for value, result in zip(node.outputs, results, strict=True):
            arrays[value] = result
            if value.is_state and states is not None:
                source = next(v for v in node.inputs if v in latest)
                latest[value] = latest[source]
                states[latest[value]] = result
        if taps is not None:
            taps(node, results)
        for value in set(node.inputs):
            left[value] -= 1
            if not left[value] and value.kind == "result":  # a long network holds only what is still needed
                del arrays[value]
    return {name: arrays[value] for name, value in network.outputs.items()}


@contextmanager
def rounds_together() -> Iterator[None]:
    """All loops that run inside take at most MAX_ROUNDS rounds together, as natively. A run inside of a run shares its
    count.
    """
    if _rounds.get() is not None:
        yield
        return
    token = _rounds.set(itertools.count(1))
    try:
        yield
    finally:
        _rounds.reset(token)


@contextmanager
def inside_of(sizes: Mapping[str, int]) -> Iterator[None]:
    """Bodies that run inside take dims that none of their inputs shows, as the N of [min(240, N)], from these."""
    token = _outside.set(sizes)
    try:
        yield
    finally:
        _outside.reset(token)


def outside() -> Mapping[str, int]:
    """The sizes of the network that a body runs in; none where nothing runs around."""
    return _outside.get() or {}


def count_round() -> None:
    """One more round of a loop. Raises ValueFault where the run has had too many."""
    rounds = _rounds.get()
    if rounds is not None and next(rounds) > MAX_ROUNDS:
        raise ValueFault(f"the loops of this run take more than {MAX_ROUNDS} rounds together")


def run_node(node: Node, operands: tuple[Array, ...], sizes: dict[str, int]) -> tuple[Array, ...]:
    """The node's results; checks them against its specs and puts the unbacked dims it binds into `sizes`."""
    op = node.op
    try:
        with inside_of(sizes):
            results = (op if op.binds else op.evaluate(sizes)).reference(*operands)
    except IngotError as e:
        raise type(e)(f"{node.describe()}: {e}") from None
    arrays: tuple[Array, ...] = results if isinstance(results, tuple) else (results,)
    for value, result in zip(node.outputs, arrays, strict=True):
        if not value.is_state:
            learn(node, value.spec, result.shape, op.bound_dims(), sizes)
            expected = value.spec.evaluate(sizes)
            if result.shape != expected or get(result.dtype) is not value.spec.dtype:
                raise AssertionError(f"{node.describe()}: the reference gave {result.dtype}{list(result.shape)}, the "
                                     f"shape rule says {value.spec} = {list(expected)}")
    return arrays


def learn(node: Node, spec: Spec, shape: tuple[int, ...], bound: tuple[Dim, ...], sizes: dict[str, int]) -> None:
    """Puts the unbacked dims that a result's shape shows into `sizes`. Raises ValueFault for one above its bound."""
    for d, size in zip(spec.shape, shape, strict=True):
        if isinstance(d, Dim) and d.name not in sizes and any(d == b for b in bound):
            if d.max is not None and size > d.max:
                raise ValueFault(f"{node.describe()}: {d.name} is {size}, above its bound {d.max}")
            sizes[d.name] = size


def bind(network: Network, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The value of every named dim, from the inputs' shapes; InputError when they disagree or break a bound."""
    sizes: dict[str, int] = {}
    for value in network.inputs:
        shape = shapes[value.name]
        if len(shape) != len(value.spec.shape):
            raise InputError(f"input {value.name} has shape {list(shape)}, the network takes {value.spec}")
        for axis, (d, size) in enumerate(zip(value.spec.shape, shape, strict=True)):
            found = affine(d)
            if found is None:
                continue
            number = found.value(size)
            if number is None:
                raise InputError(f"input {value.name} has size {size} at dimension {axis}, which must be "
                                 f"{found.rule()}")
            if sizes.setdefault(found.dim.name, number) != number:
                raise InputError(f"input {value.name} has size {size} at dimension {axis}, but {found.dim.name} is "
                                 f"{sizes[found.dim.name]} in an input before it")
    for name, size in sizes.items():
        dim = network.dims[name]
        if size < dim.min or dim.max is not None and size > dim.max:
            raise InputError(f"{name} is {size}, outside its bounds: {dim.claims()}")
    around = outside()
    sizes |= {n: around[n] for v in network.inputs for n in dims_of(v.spec.shape) if n not in sizes and n in around}
    _check_shapes(network.inputs, shapes, sizes)
    return sizes


def _check_shapes(values: list[Value], given: Mapping[Any, Any], sizes: dict[str, int]) -> None:
    for value in values:
        found = given.get(value, given.get(value.name)) if value in given or value.name in given else None
        shape = tuple(getattr(found, "shape", found))  # type: ignore[arg-type]
        try:
            expected = value.spec.evaluate(sizes)
        except DimError as e:
            raise InputError(f"{value.kind} {value.name}: {value.spec}: {e}") from None
        if shape != expected:
            raise InputError(f"{value.kind} {value.name} has shape {list(shape)}, the network takes {value.spec}"
                             + (f" = {list(expected)}" if not value.is_fixed else "")
                             + (_other_sizes(value, shape, expected) if value.kind == "input" else ""))


def _other_sizes(value: Value, shape: tuple[int, ...], expected: tuple[int, ...]) -> str:
    """What to do about an array that differs in a size that is fixed; "" where it differs elsewhere."""
    sizes = zip(value.spec.shape, shape, expected, strict=True)
    fixed = [axis for axis, (size, ours, wanted) in enumerate(sizes) if type(size) is int and ours != wanted]
    return other_sizes(value.name, fixed[0], expected[fixed[0]]) if fixed else ""


def _given(what: str, values: list[Value], given: Mapping[str, Array], exact: bool) -> dict[Value, Array]:
    missing = [v.name for v in values if v.name not in given]
    unknown = sorted(set(given) - {v.name for v in values}) if exact else []
    if missing or unknown:
        raise InputError(f"{what}s of the network: missing {missing}, unknown {unknown}")
    found: dict[Value, Array] = {}
    for value in values:
        array = np.asarray(given[value.name])
        if get(array.dtype) is not value.dtype:
            raise InputError(f"{what} {value.name} is {array.dtype}, the network takes {value.dtype.name}; "
                             "convert it first")
        found[value] = array
    return found


def _states(values: list[Value], given: Mapping[str, Array]) -> dict[Value, Array]:
    found = _given("state", values, given, exact=True)
    for value, array in found.items():
        if array.ndim != 5 or array.shape[2:] != (2, value.spec.heads, value.spec.width):
            raise InputError(f"state {value.name} has shape {list(array.shape)}; {value.spec} is "
                             f"[num_blocks, block_size, 2, {value.spec.heads}, {value.spec.width}]")
    return found


class Eager(Network):
    """A network whose values carry their arrays: every op computes when it is called.

    Prints real numbers while a Module is being debugged: `x = Eager().feed("x", array)`, then `module(x)`.
    """

    def __init__(self, name: str = "eager") -> None:
        super().__init__(name)
        self.sizes: dict[str, int] = {}

    def feed(self, name: str, array: Any, kind: str = "input") -> Value:
        """An input (or parameter) with its data."""
        array = np.asarray(array)
        value = self.parameter(name, Spec.of(array)) if kind == "parameter" else self.input(name, Spec.of(array))
        value.array = array
        return value

    def emit(self, op: Op, inputs: tuple[Value, ...]) -> Any:
        """Records the node and computes it. Sizes that the data shows are known at once."""
        for value in inputs:
            if value.array is None and value.spec is not None:
                raise InputError(f"%{value.name} has no numbers: give it with Eager.feed(name, array)")
        made = super().emit(op, inputs)
        node = (made if isinstance(made, Value) else made[0]).node
        for value, array in zip(node.outputs, run_node(node, tuple(v.array for v in inputs), self.sizes), strict=True):
            value.array = array
            if not value.is_state:
                value.spec = Spec(array.shape, value.spec.dtype)
        return made
