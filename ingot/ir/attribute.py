"""The types an op's attributes may have: what each accepts, and how it crosses JSON.

An attribute is declared by its annotation (`eps: float = 1e-6`, `axes: tuple[int, ...] | None = None`). `accept` turns
what a user writes into the one stored form or says what it wanted; the JSON side is strict.
"""
from __future__ import annotations

import math
import operator
from collections.abc import Callable
from dataclasses import dataclass
from reprlib import repr as brief
from typing import Any

from ingot import dims, dims_parsing, dtypes
from ingot.errors import DimError, DTypeError


@dataclass(frozen=True)
class Hole:
    """An attribute left open in a rewrite pattern: matches any value, and hands it to the rule by this name."""

    name: str


@dataclass(frozen=True)
class Kind:
    """One type of attribute. `accept` and `from_json` raise TypeError, ValueError or an IngotError when refused."""

    name: str
    wanted: str  # completes "must be …"
    accept: Callable[[Any], Any]
    to_json: Callable[[Any], Any]
    from_json: Callable[[Any], Any]
    symbolic: bool = False  # whether its values may hold dims


def same(x: Any) -> Any:
    return x


def _int(x: Any) -> int:
    if isinstance(x, bool):
        raise TypeError
    value = operator.index(x)
    if abs(value) > dims.MAX_VALUE:
        raise ValueError
    return value


def _float(x: Any) -> float:
    if isinstance(x, bool | str | bytes):
        raise TypeError
    return float(x)


def _exactly(kind: type) -> Callable[[Any], Any]:
    def accept(x: Any) -> Any:
        if type(x) is not kind:
            raise TypeError
        return x
    return accept


def _float_to_json(x: float) -> Any:
    return x if math.isfinite(x) else "nan" if math.isnan(x) else "inf" if x > 0 else "-inf"


def _float_from_json(x: Any) -> float:
    if x in ("inf", "-inf", "nan"):
        return float(x)
    return _float(x)


def _tuple(accept: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def convert(x: Any) -> tuple[Any, ...]:
        if not isinstance(x, tuple | list):
            raise TypeError
        return tuple([accept(item) for item in x])
    return convert


def _list_of(accept: Callable[[Any], Any]) -> Callable[[Any], tuple[Any, ...]]:
    def convert(x: Any) -> tuple[Any, ...]:
        if type(x) is not list:
            raise TypeError
        return tuple([accept(item) for item in x])
    return convert


def _plain(x: Any, depth: int = 0) -> Any:
    """Nested tuples of ints, floats, bools, strings and None."""
    if x is None or type(x) in (int, float, bool, str):
        return x
    if not isinstance(x, tuple | list) or depth > 16:
        raise TypeError
    return tuple([_plain(item, depth + 1) for item in x])


def _plain_to_json(x: Any) -> Any:
    if isinstance(x, tuple):
        return [_plain_to_json(item) for item in x]
    return {"float": _float_to_json(x)} if isinstance(x, float) and not math.isfinite(x) else x


def _plain_from_json(x: Any, depth: int = 0) -> Any:
    if isinstance(x, dict):
        if list(x) != ["float"] or x["float"] not in ("inf", "-inf", "nan"):
            raise TypeError
        return float(x["float"])
    if type(x) is list and depth <= 16:
        return tuple([_plain_from_json(item, depth + 1) for item in x])
    if x is None or type(x) in (int, float, bool, str):
        return x
    raise TypeError


def _dtype_from_json(x: Any) -> dtypes.DType:
    if not isinstance(x, str):
        raise TypeError
    return dtypes.get(x)


KINDS: dict[str, Kind] = {
    kind.name: kind
    for kind in (
        Kind("int", "an int", _int, same, _exactly(int)),
        Kind("float", "a float", _float, _float_to_json, _float_from_json),
        Kind("bool", "True or False", _exactly(bool), same, _exactly(bool)),
        Kind("str", "a string", _exactly(str), same, _exactly(str)),
        Kind("DType", "an element type", dtypes.get, lambda x: x.name, _dtype_from_json),
        Kind("Dimension", "an int, a dim name or a dim expression", dims.as_dim, dims.to_json,
             dims_parsing.from_json, True),
        Kind("Shape", "a tuple of dimensions", _tuple(dims.as_dim), lambda x: [dims.to_json(d) for d in x],
             _list_of(dims_parsing.from_json), True),
        Kind("tuple[int, ...]", "a tuple of ints", _tuple(_int), list, _list_of(_exactly(int))),
        Kind("tuple[float, ...]", "a tuple of floats", _tuple(_float), lambda x: [_float_to_json(v) for v in x],
             _list_of(_float_from_json)),
        Kind("tuple", "nested tuples of numbers and strings", _tuple(_plain), _plain_to_json,
             _list_of(_plain_from_json)),
    )
}


def add_kind(kind: Kind) -> None:
    """Makes a further type known (the network adds itself: an op may hold networks)."""
    KINDS[kind.name] = kind


def kind_of(annotation: str) -> Kind:
    """The Kind of an annotation's text; `X | None` accepts None too."""
    base = annotation.removesuffix(" | None")
    kind = KINDS[base]
    if base == annotation:
        return kind

    def maybe(f: Callable[[Any], Any]) -> Callable[[Any], Any]:
        return lambda x: None if x is None else f(x)

    return Kind(annotation, f"{kind.wanted} or None", maybe(kind.accept), maybe(kind.to_json), maybe(kind.from_json),
                kind.symbolic)


def accept(kind: Kind, value: Any, op: str, name: str) -> Any:
    """The stored form of an attribute's value, or a TypeError or ValueError that names the op and the attribute."""
    return _convert(kind.accept, kind, value, op, name)


def from_json(kind: Kind, value: Any, op: str, name: str) -> Any:
    """The attribute's value from its JSON form."""
    return _convert(kind.from_json, kind, value, op, name)


class AttributeRefused(ValueError):
    """Carries the sentence; the op turns it into its typed error."""


def _convert(convert: Callable[[Any], Any], kind: Kind, value: Any, op: str, name: str) -> Any:
    try:
        return convert(value)
    except (DimError, DTypeError) as e:
        raise AttributeRefused(f"attribute {name} must be {kind.wanted}: {e}") from None
    except (TypeError, ValueError, OverflowError, AttributeError):
        raise AttributeRefused(f"attribute {name} must be {kind.wanted}, not {brief(value)} "
                               f"({type(value).__name__})") from None
