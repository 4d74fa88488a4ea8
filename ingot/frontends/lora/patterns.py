"""Regular expressions out of files of strangers, matched in bounded time.

Python's own matcher goes back and tries again, which takes it years over `(a+)+$` and forty letters. Here a pattern is
a function from a set of positions to the set of positions behind it. What a part of the pattern does at a position is
computed once, so the time grows with the pattern's length times the square of the text's. Python's parser of patterns
is used, so the syntax is that of `re`; what is no regular expression in the strict sense (a reference to a group) is
refused.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from typing import Any

MAX_PATTERN = 1000  # characters; the longest that PEFT's users write have some 400
MAX_DEPTH = 20
TOO_DEEP = f"a pattern nests at most {MAX_DEPTH} deep"

_parser: Any = importlib.import_module("re._parser")  # the only one there is: `re` shows no syntax tree
_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda c: c.isalnum() or c == "_",
}


class BoundedPatternError(ValueError):
    """Text that is no pattern, or one with parts that are not supported."""


class BoundedPattern:
    """A regular expression. Raises BoundedPatternError."""

    def __init__(self, text: str) -> None:
        if len(text) > MAX_PATTERN:
            raise BoundedPatternError(f"a pattern has at most {MAX_PATTERN:,} characters, this one {len(text):,}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # about syntax that will mean something else one day
                self._tree: Any = _parser.parse(text)
            _check(self._tree, 0)
        except (re.error, OverflowError) as error:
            raise BoundedPatternError(f"{text[:80]!r} is no regular expression: {error}") from None
        except RecursionError:
            raise BoundedPatternError(TOO_DEEP) from None
        if self._tree.state.flags & ~re.UNICODE:
            raise BoundedPatternError(f"{text[:80]!r} sets flags, which is not supported")

    def matches(self, text: str) -> bool:
        """Whether the whole of `text` is of this pattern, as `re.fullmatch` has it."""
        return len(text) in _Run(text).sequence(self._tree, 0)


def _check(tree: Any, depth: int) -> None:
    """Raises BoundedPatternError for what `_Run` does not know."""
    if depth > MAX_DEPTH:
        raise BoundedPatternError(TOO_DEEP)
    for op, value in tree:
        name = str(op)
        if name == "IN":
            _check([(o, v) for o, v in value if str(o) not in ("NEGATE", "RANGE", "CATEGORY")], depth)
        elif name == "BRANCH":
            for one in value[1]:
                _check(one, depth + 1)
        elif name in ("MAX_REPEAT", "MIN_REPEAT"):
            _check(value[2], depth + 1)
        elif name == "SUBPATTERN":
            if value[1] or value[2]:
                raise BoundedPatternError("flags inside a pattern are not supported")
            _check(value[3], depth + 1)
        elif name in ("ASSERT", "ASSERT_NOT") and value[0] == 1:
            _check(value[1], depth + 1)
        elif name not in ("LITERAL", "NOT_LITERAL", "ANY", "AT"):
            raise BoundedPatternError(f"{name.lower().replace('_', ' ')} is not supported in a pattern")


class _Run:
    """Patterns over one text. `sequence` and `one` give all positions at which a match that begins at `at` may end."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.known: dict[tuple[int, int], frozenset[int]] = {}

    def sequence(self, tree: Any, at: int) -> frozenset[int]:
        key = (id(tree), at)
        if key not in self.known:
            found = frozenset((at,))
            for op, value in tree:
                found = frozenset(end for start in found for end in self.one(str(op), value, start))
            self.known[key] = found
        return self.known[key]

    def one(self, op: str, value: Any, at: int) -> frozenset[int]:
        if op == "BRANCH":
            return frozenset(end for branch in value[1] for end in self.sequence(branch, at))
        if op == "SUBPATTERN":
            return self.sequence(value[3], at)
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, tree = value
            return self.repeat(low, high, tree, at)
        if op in ("ASSERT", "ASSERT_NOT"):
            return frozenset((at,)) if bool(self.sequence(value[1], at)) == (op == "ASSERT") else frozenset()
        if op == "AT":
            return frozenset((at,)) if self.anchored(str(value), at) else frozenset()
        return frozenset((at + 1,)) if at < len(self.text) and _fits(op, value, self.text[at]) else frozenset()

    def repeat(self, low: int, high: int, tree: Any, at: int) -> frozenset[int]:
        now = frozenset((at,))
        for _ in range(low):
            after = frozenset(end for start in now for end in self.sequence(tree, start))
            if after == now:  # and so it would stay
                break
            now = after
        found, left = set(now), high - low
        while now and left > 0:
            now = frozenset(end for start in now for end in self.sequence(tree, start)) - found
            found |= now
            left -= 1
        return frozenset(found)

    def anchored(self, where: str, at: int) -> bool:
        if where in ("AT_BEGINNING", "AT_BEGINNING_STRING"):
            return at == 0
        if where in ("AT_END", "AT_END_STRING"):
            return at == len(self.text)
        word = _CATEGORIES["WORD"]
        before, after = at > 0 and word(self.text[at - 1]), at < len(self.text) and word(self.text[at])
        return (before != after) == (where == "AT_BOUNDARY")


def _fits(op: str, value: Any, char: str) -> bool:
    """Whether one character is of a part of a pattern that takes one."""
    if op == "ANY":
        return char != "\n"
    if op == "LITERAL":
        return bool(ord(char) == value)
    if op == "NOT_LITERAL":
        return bool(ord(char) != value)
    negated = bool(value) and str(value[0][0]) == "NEGATE"
    return any(_listed(str(o), v, char) for o, v in value[negated:]) != negated


def _listed(op: str, value: Any, char: str) -> bool:
    if op == "RANGE":
        return bool(value[0] <= ord(char) <= value[1])
    if op == "CATEGORY":
        _, _, name = str(value).partition("CATEGORY_")
        return _CATEGORIES[name.removeprefix("NOT_")](char) != name.startswith("NOT_")
    return bool(ord(char) == value)
