"""What importers share while they record: a network whose nodes carry the source's lines, faults found all at once, and
what comes of an import.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from ingot import dtypes
from ingot.errors import UnsupportedError
from ingot.ir import Network, Spec, Value
from ingot.ir.op import Op

Array = np.ndarray[Any, Any]

MAX_LISTED = 40
MAX_PLACES = 3
MAX_PLACE = 200  # characters
MAX_TEXT = 8000


class Imported(NamedTuple):
    """A network and the weights that it reads, by the names of its parameters.

    notes: what was left out. placeholders: the source's name of every input. values: what the source's tensors are.
    buffers: the network's parameters that are buffers or constants of the source. aliases: names of the source's state
    dict beside the network's own: the parameter that they are, or None where no output reads the tensor.
    """

    network: Network
    weights: Mapping[str, Array]
    notes: list[str]
    placeholders: dict[str, str]
    values: dict[str, Value]
    buffers: frozenset[str]
    aliases: dict[str, str | None]


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
    """What could not be imported: (op, reason) → the places."""

    found: dict[tuple[str, str], list[str]] = field(default_factory=dict)

    def add(self, op: str, why: str, place: str) -> None:
        self.found.setdefault((op, why), []).append(place)

    def report(self, name: str) -> None:
        """Raises UnsupportedError with all of them, when there are any."""
        if not self.found:
            return
        lines = []
        for (op, why), places in self.found.items():
            shown = ", ".join(_words(p, MAX_PLACE) for p in list(dict.fromkeys(p for p in places if p))[:MAX_PLACES])
            lines.append(f"  {_words(op, 100)} × {len(places)}: {_words(why, 400)}{f' ({shown})' if shown else ''}")
        total = sum(map(len, self.found.values()))
        text, listed = f"{name}: {total} call(s) of ops that ingot cannot take:", 0
        for line in lines[:MAX_LISTED]:
            if listed and len(text) + len(line) > MAX_TEXT:
                break
            text += f"\n{line}"
            listed += 1
        rest = f"\n  … and {len(lines) - listed} more" if len(lines) > listed else ""
        raise UnsupportedError(text + rest)


def _words(text: str, most: int) -> str:
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
