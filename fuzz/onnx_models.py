"""ONNX models to start from, and changes of them that stay protobuf: values, fields and whole messages of one model and
another in each other's places.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import onnx

from attacks import onnx_graphs
from attacks.onnx_files import good

MAX_MODEL = 20_000  # bytes
TEXTS = (
    "", "x", "y", "w", "a", "Add", "Loop", "Identity", "axis", "to", "own", "com.microsoft", "ai.onnx", "../x", "\x00",
    "é" * 300, "N", "N+1", "max(N, 3)", "2*N//3", "NOTSET", "SAME_UPPER", "linear", "cubic", "ij,jk->ik", "location",
)  # fmt: skip
NUMBERS = (
    0, 1, -1, 2, 3, 4, 7, 8, 9, 10, 16, 21, 22, 63, 64, 127, 128, 255, 1000, 2**20, 2**31 - 1, -(2**31), 2**31, 2**32,
    2**40, 2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
REALS = (0.0, -0.0, 1.0, -1.5, 1e-30, 1e30, float("inf"), float("-inf"), float("nan"))
BYTES = (b"", b"\0", b"\xff" * 4, b"axis", bytes(16), b"\0\0\x80\x3f" * 4, (1 << 40).to_bytes(8, "little") * 2)


@cache
def models() -> tuple[Any, ...]:
    """Small models: those that the package onnx brings, exported by torch many of them, and the attacks'."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data"
    files = [p.read_bytes() for p in sorted(folder.rglob("*.onnx")) if p.stat().st_size <= MAX_MODEL]
    attacks = [data for data in onnx_graphs.NETS if len(data) <= MAX_MODEL]
    return tuple(onnx.load_model_from_string(data) for data in [good(), *files, *attacks])


def _places(message: Any) -> Iterator[tuple[Any, Any, int | None]]:
    """(message, field, index) of everything inside a message; index None: of a field that is not repeated."""
    for field, value in message.ListFields():
        single = hasattr(value, "DESCRIPTOR") or isinstance(value, str | bytes | int | float)
        for i, one in [(None, value)] if single else list(enumerate(value)):
            yield message, field, i
            if field.message_type is not None:
                yield from _places(one)


def _value(field: Any, choice: int) -> Any:
    """A value of a field's type."""
    if field.enum_type is not None:
        return field.enum_type.values[choice % len(field.enum_type.values)].number
    if field.cpp_type == field.CPPTYPE_STRING:
        several = BYTES if field.type == field.TYPE_BYTES else TEXTS
        return several[choice % len(several)]
    if field.cpp_type in (field.CPPTYPE_FLOAT, field.CPPTYPE_DOUBLE):
        return REALS[choice % len(REALS)]
    number = NUMBERS[choice % len(NUMBERS)]
    bits = 32 if field.cpp_type in (field.CPPTYPE_INT32, field.CPPTYPE_UINT32) else 64
    if field.cpp_type in (field.CPPTYPE_UINT32, field.CPPTYPE_UINT64):
        return number % (1 << bits)
    return number if bits == 64 else (number + (1 << 31)) % (1 << 32) - (1 << 31)


def _put(message: Any, field: Any, index: int | None, value: Any) -> None:
    if index is None and field.message_type is not None:
        getattr(message, field.name).CopyFrom(value)
    elif index is None:
        setattr(message, field.name, value)
    elif field.message_type is not None:
        getattr(message, field.name)[index].CopyFrom(value)
    else:
        getattr(message, field.name)[index] = value


def _one(places: list[tuple[Any, Any, int | None]], kind: int, first: int, choice: int) -> None:
    """One change."""
    message, field, index = places[first % len(places)]
    value = getattr(message, field.name) if index is None else getattr(message, field.name)[index]
    if kind == 0 and field.message_type is None:
        _put(message, field, index, _value(field, choice))
    elif kind == 1 and index is not None:
        del getattr(message, field.name)[index]
    elif kind == 1:
        message.ClearField(field.name)
    elif kind == 2 and index is not None:
        again = getattr(message, field.name)
        again.extend([value]) if field.message_type is not None else again.append(value)
    elif kind == 3:
        same = [p for p in places if p[1].type == field.type and p[1].message_type is field.message_type]
        there, of, at = same[choice % len(same)]
        other = getattr(there, of.name) if at is None else getattr(there, of.name)[at]
        if field.enum_type is None or of.enum_type is field.enum_type:
            if field.message_type is not None:
                copy = type(other)()
                copy.CopyFrom(other)
                other = copy
            _put(message, field, index, other)
    elif kind == 4:
        inside = message.DESCRIPTOR.fields[choice % len(message.DESCRIPTOR.fields)]
        if inside.message_type is None:
            new = _value(inside, first)
            if isinstance(getattr(message, inside.name), str | bytes | int | float):
                setattr(message, inside.name, new)
            else:
                getattr(message, inside.name).append(new)


def changed(data: bytes) -> bytes:
    """A model, with one change for every five bytes behind the first two, which say which model."""
    known = models()
    model = onnx.ModelProto()
    model.CopyFrom(known[int.from_bytes(data[:2], "big") % len(known)])
    for at in range(2, min(len(data), 62) - 4, 5):
        kind, first, choice = data[at], int.from_bytes(data[at + 1 : at + 3], "big"), data[at + 3] * 256 + data[at + 4]
        places = list(_places(model))
        if not places:
            break
        # A change may take away what a list of places names, and a place may hold what its own copy needs.
        try:
            _one(places, kind % 5, first, choice)
        except (ValueError, TypeError, IndexError):
            continue
    found: bytes = model.SerializeToString()
    return found
