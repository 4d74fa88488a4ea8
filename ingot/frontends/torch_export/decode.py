"""Typed values from JSON: converters that refuse whatever their type does not allow, and say where.

A converter takes a JSON value and returns the typed one or raises `Malformed`. Containers put their key in front of the
place only as the error passes them, so that places cost nothing while all is well.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from reprlib import repr as brief
from typing import Any, TypeVar

T = TypeVar("T")
Convert = Callable[[Any], T]

MISSING: Any = object()


class Malformed(ValueError):
    """A value that its type does not allow; `place` is where it stands, outermost first."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why
        self.place: list[str] = []

    def __str__(self) -> str:
        return f"{'.'.join(self.place)[:300] or 'the description'}: {self.why}"


def exactly(kind: type[T], words: str) -> Convert[T]:
    """A value of one JSON type."""

    def convert(value: Any) -> T:
        if type(value) is not kind:
            raise Malformed(f"must be {words}, not {brief(value)}")
        return value

    return convert


text = exactly(str, "a string")
integer = exactly(int, "an integer")
boolean = exactly(bool, "true or false")
_NOT_JSON = {"Infinity": float("inf"), "-Infinity": float("-inf"), "NaN": float("nan")}


def number(value: Any) -> float:
    """A float; torch writes those that JSON lacks as words."""
    if type(value) in (int, float):
        return float(value)
    if isinstance(value, str) and value in _NOT_JSON:
        return _NOT_JSON[value]
    raise Malformed(f"must be a number, not {brief(value)}")


def anything(value: Any) -> Any:
    return value


def inside(key: object, convert: Convert[T], value: Any) -> T:
    """The converted value of a container's entry, whose key leads the place of what is wrong in it."""
    try:
        return convert(value)
    except Malformed as e:
        e.place.insert(0, str(key)[:100])
        raise


def always(made: T) -> Convert[T]:
    """The same whatever the value is."""
    return lambda value: made


def optional(convert: Convert[T]) -> Convert[T | None]:
    return lambda value: None if value is None else convert(value)


def tuple_of(convert: Convert[T]) -> Convert[tuple[T, ...]]:
    def run(value: Any) -> tuple[T, ...]:
        if type(value) is not list:
            raise Malformed(f"must be a list, not {brief(value)}")
        try:
            return tuple([convert(item) for item in value])
        except Malformed:
            return tuple([inside(i, convert, item) for i, item in enumerate(value)])  # once more, for the place

    return run


def dict_of(convert: Convert[T]) -> Convert[dict[str, T]]:
    def run(value: Any) -> dict[str, T]:
        if type(value) is not dict:
            raise Malformed(f"must be an object, not {brief(value)}")
        return {key: inside(key, convert, item) for key, item in value.items()}

    return run


def record(
    make: Callable[..., T], required: Mapping[str, Convert[Any]], **others: tuple[Convert[Any], Any]
) -> Convert[T]:
    """An object of known fields as `make(**fields)`; `others` may be absent, and have a default.

    A field that is not known is refused, unless it says nothing: newer writers add fields that are null or empty.
    """

    def run(value: Any) -> T:
        if type(value) is not dict:
            raise Malformed(f"must be an object, not {brief(value)}")
        found: dict[str, Any] = {}
        for key, item in value.items():
            convert = required.get(key) or (others[key][0] if key in others else None)
            if convert is not None:
                found[key] = inside(key, convert, item)
            elif item not in (None, [], {}):
                raise Malformed(f"has an unknown field {brief(key)}; it was saved by a torch that ingot does not know")
        if missing := [key for key in required if key not in found]:
            raise Malformed(f"lacks {', '.join(missing)}")
        for key, (_, default) in others.items():
            found.setdefault(key, default)
        return make(**found)

    return run


def union(kinds: Mapping[str, Convert[Any]], what: str) -> Convert[Any]:
    """An object with one field, whose name says what the value is."""

    def run(value: Any) -> Any:
        if type(value) is not dict or len(value) != 1:
            raise Malformed(f"must be an object with one field that says its kind, not {brief(value)}")
        ((kind, item),) = value.items()
        if kind not in kinds:
            raise Malformed(f"has the unknown kind {brief(kind)} of {what}")
        return inside(kind, kinds[kind], item)

    return run
