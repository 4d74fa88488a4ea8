"""What importers share while they record: a network whose nodes carry the source's lines, faults found all at once, and
what comes of an import.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.errors import UnsupportedError
from ingot.frontends.table import Unsupported
from ingot.ir import Network, Spec, Value
from ingot.ir.op import Op

Array = np.ndarray[Any, Any]
Done = Callable[[int, int], None]  # how many nodes are imported, of how many

MAX_LISTED = 40
MAX_PLACES = 3  # in the message …
MAX_ROWS = 100  # … and in its rows
MAX_PLACE = 200  # characters
MAX_WHY = 400
MAX_TEXT = 8000


class Remark(NamedTuple):
    """What makes a network slow or large: a kind, the op or the like, the places, how often, why, and what to do."""

    kind: str
    op: str
    where: tuple[str, ...]
    calls: int
    why: str
    what_to_do: str

    def __str__(self) -> str:
        more = ", …" if len(self.where) > MAX_PLACES else ""
        places = ", ".join(words(place, MAX_PLACE) for place in self.where[:MAX_PLACES])
        where = f" in {places}{more}" if self.where else ""
        times = f" × {self.calls}" if self.calls > 1 else ""
        why = words(self.why, MAX_WHY)
        return f"{self.kind}: {self.op}{times}{where}\n    {why}\n    what to do: {self.what_to_do}"


class Imported(NamedTuple):
    """A network and the weights that it reads, by the names of its parameters.

    notes: what was left out. placeholders: the source's name of every input. values: what the source's tensors are.
    buffers: the network's parameters that are buffers or constants of the source. aliases: names of the source's state
    dict beside the network's own: the parameter that they are, or None where no output reads the tensor. remarks: what
    became slow on the way.
    """

    network: Network
    weights: Mapping[str, Array]
    notes: list[str]
    placeholders: dict[str, str]
    values: dict[str, Value]
    buffers: frozenset[str]
    aliases: dict[str, str | None]
    remarks: tuple[Remark, ...] = ()


class Recorder(Network):
    """A network whose nodes carry the line of the source's node that is being imported."""

    line: tuple[str, int] | None = None

    def emit(self, op: Op, inputs: tuple[Value, ...]) -> Any:
        if op.binds:
            op = op.bind(self._fresh_dim, *(v.spec for v in inputs))
        outputs = self.add_node(op, inputs, self.where, self.line).outputs
        return outputs[0] if len(outputs) == 1 else outputs

    def free_name(self, name: str) -> str:
        """The name, changed if a value has it already."""
        while name in self.values:
            name = f"stored.{name}"
        return name

    def sweep(self) -> list[str]:
        """Takes out what no output reads; says in a note how many stored tensors went with it."""
        before = len(self.parameters)
        self.remove_dead()
        gone = before - len(self.parameters)
        return [f"{gone} stored tensor(s) are read by no output and were left out"] if gone else []


@dataclass
class Faults:
    """What could not be imported: (op, reason) → the places. otherwise: what to do where a reason does not say it."""

    otherwise: str
    found: dict[tuple[str, str], list[str]] = field(default_factory=dict)
    remedies: dict[tuple[str, str], str] = field(default_factory=dict)

    def add(self, op: str, why: str | Exception, place: str) -> None:
        """Remembers one call. why: an Unsupported says what to do, too."""
        key = op, str(why)
        self.found.setdefault(key, []).append(place)
        if isinstance(why, Unsupported) and why.remedy:
            self.remedies[key] = why.remedy

    def report(self, name: str) -> None:
        """Raises UnsupportedError with all of them, when there are any."""
        if not self.found:
            return
        rows = [self._row(key) for key in self.found]
        total = sum(row["calls"] for row in rows)
        width = max(len(row["op"]) for row in rows[:MAX_LISTED])
        text, listed = f"{name}: {total} call(s) of ops that ingot cannot take:\n  {'op':{width}}  calls  where", 0
        for row in rows[:MAX_LISTED]:
            more = ", …" if len(row["where"]) > MAX_PLACES else ""
            where = ", ".join(row["where"][:MAX_PLACES]) + more
            line = f"  {row['op']:{width}}  {row['calls']:5}  {where}".rstrip() + f"\n      {row['why']}"
            if listed and len(text) + len(line) > MAX_TEXT:
                break
            text += f"\n{line}"
            listed += 1
        rest = f"\n  … and {len(rows) - listed} more" if len(rows) > listed else ""
        todo = dict.fromkeys(row["what_to_do"] for row in rows[:listed])
        raise UnsupportedError(text + rest + "".join(f"\n  what to do: {remedy}" for remedy in todo), rows)

    def _row(self, key: tuple[str, str]) -> dict[str, Any]:
        (op, why), places = key, self.found[key]
        where = [words(place, MAX_PLACE) for place in dict.fromkeys(places) if place]
        remedy = self.remedies.get(key, self.otherwise)
        return {
            "op": words(op, 100), "calls": len(places), "where": where[:MAX_ROWS], "why": words(why, MAX_WHY),
            "what_to_do": remedy,
        }  # fmt: skip


def words(text: str, most: int) -> str:
    """Words out of a source, for a terminal: at most so many characters, none that cannot be printed."""
    text = text if len(text) <= most else text[: most - 1] + "…"
    return text if text.isprintable() else "".join(c if c.isprintable() else "\ufffd" for c in text)


class Renamed(Mapping[str, Array]):
    """The arrays of a source under the names that its network gave them."""

    def __init__(self, arrays: Mapping[str, Array], names: dict[str, str]) -> None:
        self._arrays, self._names = arrays, names

    def __getitem__(self, name: str) -> Array:
        return self._arrays[self._names[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


def checked(spec: Spec, name: str, source: str) -> Spec:
    """The Spec of a tensor of the source. Raises UnsupportedError for an element type that nothing computes with."""
    if spec.dtype.kind == "complex" or spec.dtype.is_float and spec.dtype not in dtypes.FLOATS:
        raise UnsupportedError(f"{source}: {name} is {spec.dtype.name}, which ingot does not compute with")
    return spec
