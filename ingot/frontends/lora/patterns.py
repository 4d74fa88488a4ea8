"""Regular expressions out of files of strangers, matched in bounded time.

Python's own matcher goes back and tries again, which takes it years over `(a+)+$` and forty letters. Here a pattern is
a function from a set of positions to the set of positions behind it, so that what is usual takes some hundred steps. A
file has a number of them for all its patterns and all names together; one that needs more is refused. Python's parser
of patterns is used, so the syntax is that of `re`; what is no regular expression in the strict sense (a reference to a
group) is refused.
"""

from __future__ import annotations

import importlib
import re
import warnings
from collections.abc import Callable
from typing import Any

MAX_PATTERN = 1000  # characters; the longest that PEFT's users write have some 400
MAX_DEPTH = 20
MAX_STEPS = 500_000  # a second or two; a usual pattern takes some 100 for a name
TOO_DEEP = f"a pattern nests at most {MAX_DEPTH} deep"

_parser: Any = importlib.import_module("re._parser")  # the only one there is: `re` shows no syntax tree
_CATEGORIES: dict[str, Callable[[str], bool]] = {
    "DIGIT": str.isdecimal,
    "SPACE": str.isspace,
    "WORD": lambda c: c.isalnum() or c == "_",
}


class BoundedPatternError(ValueError):
    """Text that is no pattern, or one with parts that are not supported."""


class Steps:
    """How many steps may still be taken."""

    def __init__(self, left: int = MAX_STEPS) -> None:
        self._left = left

    def take(self, count: int = 1) -> None:
        """Takes some. Raises BoundedPatternError when there are none left."""
        self._left -= count
        if self._left < 0:
            raise BoundedPatternError("the patterns take too long to match: repeat fewer parts that repeat parts")


class BoundedPattern:
    """A regular expression. Raises BoundedPatternError.

    Args:
        steps: that it may take, together with others; default, some of its own.
    """

    def __init__(self, text: str, steps: Steps | None = None) -> None:
        self._steps = steps or Steps()
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
        """Whether the whole of `text` is of this pattern, as `re.fullmatch` has it. Raises BoundedPatternError when
        that takes too long."""
        return bool(_Run(text, self._steps).sequence(self._tree, 1) >> len(text))


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
    """Patterns over one text. A set of positions is a number: bit i stands for position i.

    What a part makes of a set is what it makes of each position together, so that no set is looked at twice by the same
    part in a row. `steps` bounds the rest: parts that repeat parts that repeat.
    """

    def __init__(self, text: str, steps: Steps) -> None:
        self.text, self.steps = text, steps
        self.fitting: dict[Any, int] = {}  # id of a part that takes one character → where it can

    def sequence(self, tree: Any, at: int) -> int:
        """Where a match may end that begins at one of these."""
        for op, value in tree:
            if not at:
                break
            at = self.one(str(op), value, at)
        return at

    def one(self, op: str, value: Any, at: int) -> int:
        self.steps.take()
        if op == "BRANCH":
            found = 0
            for branch in value[1]:
                found |= self.sequence(branch, at)
            return found
        if op == "SUBPATTERN":
            return self.sequence(value[3], at)
        if op in ("MAX_REPEAT", "MIN_REPEAT"):
            low, high, tree = value
            return self.repeat(low, high, tree, at)
        if op in ("ASSERT", "ASSERT_NOT"):
            wanted = op == "ASSERT"
            return self.where(at, lambda i: bool(self.sequence(value[1], 1 << i)) == wanted)
        if op == "AT":
            return self.where(at, lambda i: self.anchored(str(value), i))
        return (at & self.fits(op, value)) << 1

    def where(self, at: int, holds: Callable[[int], bool]) -> int:
        """Those of the positions at which this holds."""
        self.steps.take(len(self.text))
        found = 0
        for i in range(len(self.text) + 1):
            if at >> i & 1 and holds(i):
                found |= 1 << i
        return found

    def fits(self, op: str, value: Any) -> int:
        """The positions whose character is of a part that takes one. The tree outlives this, so its ids are its own."""
        key = id(value) if op in ("IN", "ANY") else (op, value)
        if key not in self.fitting:
            self.steps.take(len(self.text))
            self.fitting[key] = sum(1 << i for i, char in enumerate(self.text) if _fits(op, value, char))
        return self.fitting[key]

    def repeat(self, low: int, high: int, tree: Any, at: int) -> int:
        for _ in range(low):
            after = self.sequence(tree, at)
            if after == at:  # and so it would stay
                break
            at = after
        found, left = at, high - low
        while at and left > 0:
            at = self.sequence(tree, at) & ~found
            found |= at
            left -= 1
        return found

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
