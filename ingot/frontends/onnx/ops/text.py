"""ONNX ops on strings, which are code points here (text.py): ordinary ops on int32."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.frontends.onnx.ops.common import cast, few, size_value
from ingot.frontends.onnx.regex import automaton
from ingot.frontends.onnx.table import Anything, Call, Strings, StringsOrTensor, onnx
from ingot.frontends.onnx.text import Text, is_text, lengths, longer, table_of
from ingot.frontends.table import MaybeInt, MaybeInts, Result, Unsupported
from ingot.ir import F, Network, Spec
from ingot.ir.sizes import as_size
from ingot.ir.spec import broadcast, elements
from ingot.ops.sizes import SizesOf

Array = np.ndarray[Any, Any]
ML = "ai.onnx.ml"
CASED = 0x1E944  # no letter behind it has another case


def _rows(x: Text) -> tuple[Any, Any]:
    """The code points as [texts, length], and how many texts there are."""
    count = elements(x.shape)
    return F.reshape(x.value, (count, x.length)), count


@onnx("StringConcat")
def string_concat(a: Strings, b: Strings) -> Result:
    """Each character of the second one stands behind as many as the first one has."""
    shape = broadcast(a.shape, b.shape)
    first = F.expand(longer(a, b.length), (*shape, dims.add(a.length, b.length)))
    second = F.expand(longer(b, a.length), (*shape, dims.add(b.length, a.length)))
    own = F.expand(lengths(a), (*shape, 1))
    places = F.sub(_places(first), own)
    moved = F.gather(second, F.expand(F.maximum(places, np.int32(0)), first.shape), axis=len(shape))
    return Text(F.where(F.less(places, np.int32(0)), first, moved))


def _places(x: Any) -> Any:
    """0, 1, … along the last dimension of code points, int32, beside x."""
    found = F.iota(size=x.shape[-1], dtype=dtypes.int32)
    return x.network.constant(found) if isinstance(found, np.ndarray) else found


# ------------------------------------------------------------------------------------------------- case and words


@cache
def _case(upper: bool) -> Array:
    """Each code point in the other case, where that is one code point (Unicode's simple mappings)."""
    letters = [chr(c).upper() if upper else chr(c).lower() for c in range(CASED)]
    return np.array([ord(w) if len(w) == 1 else c for c, w in enumerate(letters)], np.int32)


def _lower(word: str) -> str:
    """A word as `_cased` has it."""
    table = _case(False)
    return "".join(chr(table[ord(c)]) if ord(c) < CASED else c for c in word)


def _cased(x: Any, upper: bool) -> Any:
    table = _case(upper)
    changed = F.take(x.network.constant(table), F.minimum(x, np.int32(len(table) - 1)), axis=0)
    return F.where(F.less(x, np.int32(len(table))), changed, x)


@onnx("StringNormalizer")
def string_normalizer(
    call: Call, x: Strings, *, case_change_action: str = "NONE", is_case_sensitive: bool = False, locale: str = "",
    stopwords: Anything = (),
) -> Result:  # fmt: skip
    """Words without the stop words, in one case. Where none is left it is an empty one. No locale has its own rules."""
    if case_change_action not in ("NONE", "LOWER", "UPPER"):
        raise Unsupported(f"the case {case_change_action:.40} is none of NONE, LOWER, UPPER")
    if len(x.shape) not in (1, 2) or len(x.shape) == 2 and x.shape[0] != 1:
        raise Unsupported("its input has the shape [C] or [1, C]")
    count = x.shape[-1]
    words = F.reshape(x.value, (count, x.length))
    if stopwords:
        known = np.array(stopwords if is_case_sensitive else [_lower(w) for w in stopwords], np.str_)
        compared = words if is_case_sensitive else _cased(words, False)
        kept = F.equal(_place_of(call, Text(compared), known), np.int64(len(known)))
        none = F.equal(F.reduce_sum(cast(kept, dtypes.int32), axes=(0,), keepdims=True), np.int32(0))
        marks = F.concat(kept, none, dim=0)
        words = F.pad(words, before=(0, 0), after=(1, 0))
        places = F.nonzero(marks)
        words = F.take(words, F.reshape(places, (places.shape[1],)), axis=0)
    if case_change_action != "NONE":
        words = _cased(words, case_change_action == "UPPER")
    return Text(words if len(x.shape) == 1 else F.reshape(words, (1, *words.shape)))


# ------------------------------------------------------------------------------------------------- tables


@onnx("LabelEncoder", domain=ML)
def label_encoder(
    call: Call, x: StringsOrTensor, *, keys_strings: Anything = None, keys_int64s: MaybeInts = None,
    keys_floats: Anything = None, keys_tensor: Anything = None, values_strings: Anything = None,
    values_int64s: MaybeInts = None, values_floats: Anything = None, values_tensor: Anything = None,
    default_string: str = "_Unused", default_int64: int = -1, default_float: float = -0.0,
    default_tensor: Anything = None,
) -> Result:  # fmt: skip
    """The value that stands beside an element's key, or the default."""
    keys = _one(keys_strings, keys_int64s, keys_floats, keys_tensor, "keys")
    values = _one(values_strings, values_int64s, values_floats, values_tensor, "values")
    if keys.ndim != 1 or keys.shape != values.shape:
        raise Unsupported("it needs as many values as keys")
    if not isinstance(x, Text) and not is_text(keys) and keys.dtype != x.dtype.numpy:
        raise Unsupported(f"its keys are {keys.dtype.name} and its input is {x.dtype.name}: cast the input first")
    plain = default_string if is_text(values) else default_int64 if values.dtype.kind in "iu" else default_float
    default = np.array(plain) if default_tensor is None else np.asarray(default_tensor)
    if default.size != 1 or default_tensor is not None and not _alike(default, values):
        raise Unsupported("default_tensor is one element of the values' type")
    whole = np.append(values, default.reshape(1).astype(np.str_ if is_text(values) else values.dtype))
    place = _place_of(call, x, keys)
    if is_text(whole):
        return Text(F.take(table_of(call.network, whole).value, place, axis=0))
    return F.take(call.network.constant(whole), place, axis=0)


def _alike(a: Array, b: Array) -> bool:
    return is_text(a) and is_text(b) or a.dtype == b.dtype


def _one(strings: Any, integers: Any, floats: Any, tensor: Any, what: str) -> Array:
    """The one of several attributes that is there, as an array."""
    typed: Any = ((strings, np.str_), (integers, np.int64), (floats, np.float32))
    given = [np.array(v, t) for v, t in typed if v is not None]
    given += [np.asarray(tensor).reshape(-1)] if tensor is not None else []
    if len(given) != 1:
        raise Unsupported(f"it needs {what} of one type")
    return given[0]


def _place_of(call: Call, x: Any, keys: Array) -> Any:
    """Where among the keys each element stands, or how many keys there are: the first of several, and NaN is NaN.

    By search in the keys in order; texts by a number for each that no two of the keys share.
    """
    few(max(len(keys), 1))
    if is_text(keys) is not isinstance(x, Text):
        raise Unsupported("its operand is not of the keys' type")
    network = call.network
    if not len(keys):
        return F.expand(network.constant(np.int64(0)), x.shape)
    if isinstance(x, Text):
        table = table_of(network, keys).value.array
        width = table.shape[-1]
        rank = len(x.shape)
        ahead = F.slice(longer(x, width), (0,) * (rank + 1), (*x.shape, width), (1,) * (rank + 1))
        weights, numbers = _numbered(table)
        values = F.reduce_sum(F.mul(cast(ahead, dtypes.int64), weights), axes=(rank,), keepdims=False)
        short = F.reshape(F.less_equal(lengths(x), np.int32(width)), x.shape)
    else:
        values, numbers, short = x, keys, None
    numbers, first = np.unique(numbers, return_index=True)  # NaN, one of them, behind all others
    place = F.maximum(F.sub(F.bucketize(values, network.constant(numbers), right=True), np.int64(1)), np.int64(0))
    found = F.take(network.constant(first.astype(np.int64)), place, axis=0)
    if short is not None:
        own = F.equal(F.take(network.constant(table), found, axis=0), ahead)
        equal = F.equal(F.reduce_min(cast(own, dtypes.int32), axes=(rank,), keepdims=False), np.int32(1))
        equal = F.logical_and(equal, short)
    else:
        own = F.take(network.constant(numbers), place, axis=0)
        equal = F.equal(own, values)
        if numbers.dtype.kind == "f":
            equal = F.logical_or(equal, F.logical_and(F.not_equal(own, own), F.not_equal(values, values)))
    return F.where(equal, found, np.int64(len(keys)))


def _numbered(table: Array) -> tuple[Array, Array]:
    """Weights for the characters of texts [K, length], and the sums that they give: below 2^53, and no two alike."""
    rng, rows = np.random.default_rng(0), table.astype(np.int64)
    most = max((1 << 53) // max(int(table.max(initial=1)) * table.shape[-1], 1) - 1, 1)
    different = len(np.unique(table, axis=0))
    for _ in range(64):
        weights = rng.integers(1, min(most, 1 << 31) + 1, table.shape[-1])
        numbers = rows @ weights
        if len(np.unique(numbers)) == different:
            return weights, numbers
    raise Unsupported(f"{len(table):,} texts of up to {table.shape[-1]:,} characters cannot be told apart by numbers")


# ------------------------------------------------------------------------------------------------- patterns


@onnx("RegexFullMatch")
def regex_full_match(call: Call, x: Strings, *, pattern: str) -> Result:
    """An automaton that reads all texts side by side, a code point in each round."""
    found = automaton(pattern, call.work)
    rows, count = _rows(x)
    classes = len(found.boundaries)
    body = Network("automaton")
    state, code = (body.input(name, Spec((count,), dtypes.int32)) for name in ("state", "code"))
    kind = F.sub(cast(F.bucketize(code, body.constant(found.boundaries), right=True), dtypes.int32), np.int32(1))
    place = F.add(F.mul(state, np.int32(classes)), F.maximum(kind, np.int32(0)))
    moved = F.take(body.constant(found.moves.reshape(-1)), place, axis=0)
    body.output("next", F.where(F.equal(code, np.int32(0)), state, moved))  # behind a text are zeros
    start = F.expand(call.network.constant(np.int32(0)), (count,))
    (last,) = _scanned(F.scan(start, F.permute(rows, (1, 0)), body=body, length=x.length, carried=1, scanned=1))
    return F.reshape(F.take(call.network.constant(found.accepts), last, axis=0), x.shape)


def _scanned(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


# ------------------------------------------------------------------------------------------------- parts of a text


MAX_PIECES_TOGETHER = 1 << 28  # characters that StringSplit makes in a run


def _greatest(x: Any) -> Any:
    """The greatest number of a vector of int64, or 0."""
    return F.reduce_max(F.concat(x, np.zeros(1, np.int64), dim=0), axes=(0,), keepdims=False)


@onnx("StringSplit")
def string_split(call: Call, x: Strings, *, delimiter: str = "", maxsplit: MaybeInt = None) -> Result:
    """As Python's str.split, at the delimiter or at runs of white space: pieces [..., the most of all] and counts.

    A piece is as long as the longest one, and what all are together is bounded before it is made: a text of many pieces
    beside one that is a long piece asks for the square of their length.
    """
    rows, count = _rows(x)
    most = np.int32(2**31 - 1 if maxsplit is None or maxsplit < 0 else min(maxsplit, 2**31 - 1))
    there = F.not_equal(rows, np.int32(0))
    split = _at_delimiter(rows, count, there, delimiter, most) if delimiter else _at_space(rows, there, most)
    kept, piece, begin, pieces = split
    inner = cast(F.sub(_places(rows), begin), dtypes.int64)  # where in its piece each code point is
    wide = _greatest(cast(pieces, dtypes.int64))
    ends = F.where(kept, F.add(inner, np.int64(1)), np.int64(0))
    long = _greatest(F.reshape(ends, (dims.mul(count, x.length),)))
    fits = F.less_equal(F.mul(F.mul(wide, long), size_value(rows, count)), np.int64(MAX_PIECES_TOGETHER))
    binder = SizesOf(text=f"the longest piece, or -1: StringSplit would make over {MAX_PIECES_TOGETHER:,} characters")
    width, length = as_size(wide), rows.network.emit(binder, (F.where(fits, long, np.int64(-1)),)).shape[0]
    place = F.add(F.mul(cast(piece, dtypes.int64), long), inner)
    whole = dims.mul(width, length)
    place = F.where(kept, place, size_value(rows, whole))  # what is no part of a piece goes behind all of them
    empty = F.expand(call.network.constant(np.int32(0)), (count, dims.add(whole, 1)))
    put = F.scatter(empty, place, rows, axis=1)
    found = F.reshape(F.slice(put, (0, 0), (count, whole), (1, 1)), (*x.shape, width, length))
    return Text(found), F.reshape(cast(pieces, dtypes.int64), x.shape)


def _running(x: Any) -> Any:
    """The sums of all before and with each element of a row, of bools, int32."""
    return F.cumsum(cast(x, dtypes.int32), axis=1)


def _latest(x: Any) -> Any:
    """The greatest so far in each row."""
    return F.cummax(x, axis=1)[0]


@cache
def _space() -> Array:
    """Where runs of white space begin and end among the code points."""
    marks = np.array([chr(c).isspace() for c in range(0x3002)], np.int8)
    return (np.flatnonzero(np.diff(marks)) + 1).astype(np.int32)


def _at_space(rows: Any, there: Any, most: Any) -> tuple[Any, Any, Any, Any]:
    """Which code points are kept, in which piece, where that begins, and how many pieces a text has."""
    inside = F.mod(cast(F.bucketize(rows, rows.network.constant(_space()), right=True), dtypes.int32), np.int32(2))
    solid = F.logical_and(there, F.equal(inside, np.int32(0)))
    count, length = rows.shape
    before = F.slice(F.pad(cast(solid, dtypes.int32), before=(0, 1), after=(0, 0)), (0, 0), (count, length), (1, 1))
    first = F.logical_and(solid, F.equal(before, np.int32(0)))
    number = F.sub(_running(first), np.int32(1))
    rest = F.greater_equal(number, most)  # behind the last split nothing is taken off
    begins = F.logical_and(first, F.less_equal(number, most))
    begin = _latest(F.where(begins, _places(rows), np.int32(0)))
    kept = F.logical_and(there, F.logical_or(solid, rest))
    pieces = F.reduce_sum(cast(begins, dtypes.int32), axes=(1,), keepdims=False)
    return kept, F.minimum(F.maximum(number, np.int32(0)), most), begin, pieces


def _at_delimiter(rows: Any, count: Any, there: Any, delimiter: str, most: Any) -> tuple[Any, Any, Any, Any]:
    """The same, at a delimiter; a text without one is one piece, also the empty one."""
    if len(delimiter) > few(256):
        raise Unsupported("a delimiter has at most 256 characters")
    size, length = len(delimiter), rows.shape[1]
    ahead = F.pad(rows, before=(0, 0), after=(0, size))
    found: Any = None
    for i, letter in enumerate(delimiter):
        one = F.equal(F.slice(ahead, (0, i), (count, length), (1, 1)), np.int32(ord(letter)))
        found = one if found is None else F.logical_and(found, one)
    if size > 1:
        found = _apart(found, count, length, size)
    begins = F.logical_and(found, F.less_equal(_running(found), most))
    inside, behind = begins, F.pad(cast(begins, dtypes.int32), before=(0, size), after=(0, 0))
    for i in range(1, size):
        inside = F.logical_or(inside, F.not_equal(F.slice(behind, (0, size - i), (count, length), (1, 1)), np.int32(0)))
    begin = _latest(F.where(begins, F.add(_places(rows), np.int32(size)), np.int32(0)))
    pieces = F.add(F.reduce_sum(cast(begins, dtypes.int32), axes=(1,), keepdims=False), np.int32(1))
    return F.logical_and(there, F.logical_not(inside)), _running(begins), begin, pieces


def _apart(found: Any, count: Any, length: Any, size: int) -> Any:
    """Of places where a delimiter begins, from the left those that no other one before covers."""
    body = Network("delimiters")
    left, here = body.input("left", Spec((count,), dtypes.int32)), body.input("here", Spec((count,), dtypes.int32))
    free = F.logical_and(F.equal(left, np.int32(0)), F.not_equal(here, np.int32(0)))
    body.output("left", F.where(free, np.int32(size - 1), F.maximum(F.sub(left, np.int32(1)), np.int32(0))))
    body.output("begins", cast(free, dtypes.int32))
    start = F.expand(found.network.constant(np.int32(0)), (count,))
    columns = F.permute(cast(found, dtypes.int32), (1, 0))
    _, begins = F.scan(start, columns, body=body, length=length, carried=1, scanned=1)
    return F.not_equal(F.permute(begins, (1, 0)), np.int32(0))
