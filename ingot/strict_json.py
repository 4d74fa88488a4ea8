"""JSON as the standard has it, from files that nobody vouches for.

Python's own reader accepts NaN, turns 1e400 into infinity and keeps the last of two equal keys. A model file that
relies on any of these would mean different things to different readers. Everything here ends in a `JsonError`, whose
message the callers put behind the name of the file.
"""

from __future__ import annotations

import json
import math
from typing import Any

_CONTAINERS = (dict, list)  # exactly what the parser makes
MAX_DEPTH = 64
MAX_DIGITS = 40
MAX_PARTS = 4_000_000  # commas and brackets: bounds what a small hostile file can make the parser allocate


def finite(value: Any) -> Any:
    """A copy of what is to be written, with null for NaN and infinities, which JSON has not."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class JsonError(ValueError):
    """The text is not strict JSON; the message says why, without naming the file."""


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        repeated = next(key for key, _ in pairs if key in seen or seen.add(key))  # type: ignore[func-returns-value]
        raise JsonError(f"the key {repeated[:80]!r} appears twice in one object")
    return result


def _any_integer(text: str) -> int:
    if len(text) > MAX_DIGITS:
        raise JsonError(f"the integer {text[:24]}… has more than {MAX_DIGITS} digits")
    return int(text)


def _integer(text: str) -> int:
    if len(text) > 21 or not -(2**63) <= (value := int(text)) < 2**64:
        raise JsonError(f"the integer {text[:24]}{'…' if len(text) > 24 else ''} does not fit in 64 bits")
    return value


def _float(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise JsonError(f"the number {text[:24]} is too large")
    return value


def _constant(text: str) -> None:
    raise JsonError(f"{text} is not JSON")


def _check_depth(value: Any, limit: int) -> None:
    level, depth = [value] if type(value) in _CONTAINERS else [], 0
    while level:
        depth += 1
        if depth > limit:
            raise JsonError(f"nested deeper than {limit} levels")
        level = [
            inner
            for outer in level
            for inner in (outer.values() if type(outer) is dict else outer)
            if type(inner) in _CONTAINERS
        ]


def parse(data: bytes, *, max_depth: int = MAX_DEPTH, big_integers: bool = False) -> Any:
    """The value that `data` (UTF-8 bytes) holds.

    Args:
        big_integers: take integers of more than 64 bits as they are. Tokenizer settings need it: transformers writes
            an unlimited `model_max_length` as 1000000000000000019884624838656.

    Raises:
        JsonError: not UTF-8, not JSON, a repeated key, NaN, Infinity or a number too large for 64 bits, nesting
            deeper than `max_depth`, or more parts than any model has.
    """
    if data.count(b",") + data.count(b"[") + data.count(b"{") > MAX_PARTS:
        raise JsonError(f"more than {MAX_PARTS:,} entries")
    try:
        text = data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise JsonError(f"not UTF-8 (byte {error.start})") from None
    try:
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_any_integer if big_integers else _integer,
            parse_float=_float,
            parse_constant=_constant,
        )
    except RecursionError:
        raise JsonError(f"nested deeper than {max_depth} levels") from None
    except json.JSONDecodeError as error:
        raise JsonError(f"{error.msg} at line {error.lineno}, column {error.colno}") from None
    _check_depth(value, max_depth)
    return value


def parse_object(data: bytes, *, max_depth: int = MAX_DEPTH, big_integers: bool = False) -> dict[str, Any]:
    """Like `parse`, for files whose outermost value has to be an object."""
    value = parse(data, max_depth=max_depth, big_integers=big_integers)
    if not isinstance(value, dict):
        raise JsonError(f"must be a JSON object, not {type(value).__name__}")
    return value
