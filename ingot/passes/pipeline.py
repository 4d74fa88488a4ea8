"""The compile path of a Network, as a list of named passes. At its end the network is verified.

Where that fails, or a pass raises anything, the passes run once more and the network is verified after each, which
names the one that broke it. Tests set `each` and have that from the start.

A target says which passes there are. Those that change more of a stored weight than its layout are the same for all
targets, `portable`, and come first. So a weight that was stored for one target can be recovered for another.

Two switches help to find a fault. `dump` gets the text of every stage. `check` runs every stage on the given feeds and
names the pass that changed the numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np

from ingot.errors import NetworkError
from ingot.ir import Network, Node, Op, Value
from ingot.ir.difference import difference
from ingot.ir.evaluation import evaluate
from ingot.ir.interpret import interpret
from ingot.ir.precision import unscoped
from ingot.ir.verify import Sound, held, same, verify
from ingot.passes import batch_norm, known, simplify, smooth, weights, written_out
from ingot.passes.clone import clone
from ingot.passes.rewrite import Log, detach, note
from ingot.passes.weights import recipe_of

Array = np.ndarray[Any, Any]

each = False  # whether every network is verified after each pass, and not only one that is found broken
_in_steps: ContextVar[bool | None] = ContextVar("in_steps", default=None)  # how the network around a body is lowered


class Pass(NamedTuple):
    """One named change of a network; it writes what it did, and why not, to the log."""

    name: str
    run: Callable[[Network, Log], None]


class Lowers(Protocol):
    """What a lowering asks of its target."""

    @property
    def passes(self) -> Sequence[Pass]:
        """What makes any network one that the target runs."""

    def refuses(self, node: Node) -> str | None:
        """Why no kernel of the target takes a node; None when one does."""


def decompose(target: Lowers, later: tuple[type[Op], ...] = ()) -> Callable[[Network, Log], None]:
    """Ops with neither a kernel on the target nor a scalar expression become simpler ops, where they have that form."""

    def run(network: Network, log: Log) -> None:
        todo = list(network.nodes)
        while todo:
            node = todo.pop()
            op: Any = node.op
            if op.is_view or op.expr is not None or op.decompose is None or isinstance(op, later):
                continue
            why = target.refuses(node)
            if why is None:
                continue
            note(log, "decompose", node, why)
            todo.extend(_decomposed(network, node))

    return run


def _decomposed(network: Network, node: Node) -> list[Node]:
    before = set(network.nodes)
    with network.insert_before(node):
        found = node.op.decompose(*(None if v.spec is None else v for v in node.inputs))  # type: ignore[misc]
        results = [_joined(network, node, v) for v in (found if isinstance(found, tuple) else (found,))]
    for old, new in zip(node.outputs, results, strict=True):
        network.replace(old, new)
    network.remove(detach(network, node))
    return [n for n in network.nodes if n not in before]


def _joined(network: Network, node: Node, found: Value | Array) -> Value:
    """A decomposition's result in this network: without tensor operands it may be an array, or stand by itself."""
    if not isinstance(found, Value):
        return network.constant(found)
    if found.network is not network:
        network.join(found.network, node.op)
    return found


def portable() -> list[Pass]:
    """The passes that every target begins with: they fold what is known, also into weights."""
    return [
        Pass("remove dead", simplify.remove_dead),
        Pass("scaled weights", smooth.scaled_weights),
        Pass("fold", simplify.fold),
        Pass("comparisons", known.comparisons),
        Pass("algebra", simplify.algebra),
        Pass("written out", written_out.written_out),
        Pass("lookups", weights.lookups),
        Pass("moved weights", weights.moved),
        Pass("batch norm", batch_norm.batch_norm),
    ]


@dataclass
class Check:
    """Numbers to compare between stages: feeds, source parameters, and how far a pass may move an output (relative)."""

    feeds: Mapping[str, Array]
    parameters: Mapping[str, Array]
    states: Mapping[str, Array] = field(default_factory=dict)
    tolerance: float = field(kw_only=True)

    def outputs(self, network: Network) -> dict[str, Array]:
        """The network's outputs on these numbers; stored parameters are made by their recipes."""
        stored = {v.name: evaluate(recipe_of(v), self.parameters) for v in network.parameters}
        states = {name: np.array(a) for name, a in self.states.items()}
        return interpret(network, dict(self.feeds), stored, states=states)

    def compare(self, name: str, before: Mapping[str, Array], after: Mapping[str, Array]) -> None:
        """Raises NetworkError naming the pass when an output moved."""
        for output, old in before.items():
            moved = difference(after[output], old)
            if not moved.relative <= self.tolerance:
                raise NetworkError(f"pass {name!r} changed output {output!r}: it {moved}")


def lower(
    network: Network, target: Lowers, *, log: Log | None = None, dump: Callable[[str, str], None] | None = None,
    check: Check | None = None,
) -> Network:  # fmt: skip
    """A lowered copy: every node has a kernel on the target or will be a host call. The log gets what was decided.

    Raises NetworkError when a pass leaves a network that breaks a rule, naming the pass.
    """
    decisions: Log = [] if log is None else log
    with unscoped():
        if each or dump or check or _in_steps.get():
            return _in_steps_of(network, target, decisions, dump, check)
        if _in_steps.get() is False:  # the network around this body has the passes run once more
            return _at_once(network, target, decisions)
        begin = len(decisions)
        try:
            with _lowering(in_steps=False):
                return _at_once(network, target, decisions)
        except Exception:  # what a pass makes of a broken network may be anything
            del decisions[begin:]
        with _lowering(in_steps=True):
            return _in_steps_of(network, target, decisions, dump, check)


@contextmanager
def _lowering(in_steps: bool) -> Iterator[None]:
    token = _in_steps.set(in_steps)
    try:
        yield
    finally:
        _in_steps.reset(token)


def _at_once(network: Network, target: Lowers, log: Log) -> Network:
    new = clone(network)
    for stage in target.passes:
        stage.run(new, log)
    return verify(new)


def _in_steps_of(
    network: Network, target: Lowers, log: Log, dump: Callable[[str, str], None] | None, check: Check | None
) -> Network:
    """The same, verified after each pass."""
    new = clone(network)
    numbers = check.outputs(new) if check else {}
    if dump:
        dump("start", str(new))
    verified: list[object] = []
    sound: Sound = {}
    for stage in target.passes:
        stage.run(new, log)
        if not same(verified, found := held(new)):  # most passes have nothing to do in most networks
            try:
                verify(new, sound)
            except NetworkError as e:
                raise NetworkError(f"after pass {stage.name!r}: {e}") from None
            verified = found
        if dump:
            dump(stage.name, str(new))
        if check:
            outputs = check.outputs(new)
            check.compare(stage.name, numbers, outputs)
            numbers = outputs
    return new
