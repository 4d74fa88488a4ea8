"""Changes values of plain data as a string of bytes says: they stay JSON, so that they get past the parser."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from typing import Any

VALUES: tuple[Any, ...] = (
    None, True, False, 0, 1, -1, 2, 7, 63, 64, 65, 2**31 - 1, 2**31, 2**32, 2**53, 2**62, 2**63 - 1, -(2**63),
    0.0, -1.5, 1e300, 1e-320, "", "x", "N", "w", "a", "float32", "bfloat16", "int32", "kv_cache", "matmul", "softmax",
    "reshape", "cond", "while_loop", "-", "\x00", "../x", "ingot 99.0.0", "é" * 300, [], [0], [-1], [1, 2, 3], ["N"],
    [[]], {}, {"a": 1}, ["+", "N", 1], ["//", "N", 0], ["*", "N", "N"],
)  # fmt: skip


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of everything inside a value."""
    keys: Any = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in list(keys):
        yield value, key
        yield from _places(value[key])


def mutated(value: Any, data: bytes, values: Sequence[Any] = VALUES) -> Any:
    """A copy of `value` with one change for every four bytes: replace (by one of `values`), remove, double,
    exchange, or nudge."""
    value = copy.deepcopy(value)
    for at in range(0, min(len(data), 64) - 3, 4):
        kind, first, second, choice = data[at : at + 4]
        places = list(_places(value))
        if not places:
            break
        inside, key = places[(first * 256 + second) % len(places)]
        if kind % 5 == 0:
            inside[key] = copy.deepcopy(values[choice % len(values)])
        elif kind % 5 == 1:
            del inside[key]
        elif kind % 5 == 2 and isinstance(inside, list):
            inside.insert(choice % (len(inside) + 1), copy.deepcopy(inside[key]))
        elif kind % 5 == 3:
            other, name = places[choice % len(places)]
            inside[key] = copy.deepcopy(other[name])
        elif type(inside[key]) is int:
            inside[key] += choice - 128
    return value
