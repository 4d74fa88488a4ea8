"""Whether a regular expression that came with a tokenizer can run away, judged by its shape.

A matcher that backtracks tries, in the worst case, every way in which the repetitions and choices of a pattern can
share out a text. What makes those ways grow exponentially is refused: a repetition of something that varies in length.
What makes them many is bounded, so that the rest grows with a small power of the text's length. The patterns of
published tokenizers are far below the limits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

MAX_LENGTH = 20_000  # characters of a pattern
MAX_DEPTH = 32  # of groups
MAX_OPEN = 4  # repetitions without a bound, one after the other
MAX_WAYS = 10_000  # of options and alternatives in all
WIDE = 8  # a bounded repetition that may differ by more counts as one without a bound
MAX_COUNT = 1_000
MAX_SAMPLE = 32  # characters

_CANDIDATES = "aA0 \n\t!-_.~\u4e2d"
_MEMBERS = {"d": "0", "w": "a", "s": " ", "S": "a", "D": "a", "W": " ", "h": "0", "L": "a", "N": "0", "P": "!",
            "Z": " ", "M": "\u0301", "n": "\n", "r": "\r", "t": "\t"}  # fmt: skip

_QUANTIFIER = re.compile(r"\{(\d*)(,?)(\d*)\}")
_GROUP = re.compile(r"\?(?:[:=!>]|<[=!]|[a-wyzA-WYZ-]*:|<[A-Za-z_]\w*>)")
_FLAGS = re.compile(r"\?[imIM-]+\)")


class PatternFault(ValueError):
    """Why a pattern is not used."""


@dataclass(frozen=True)
class _Shape:
    """How many ways there are to match: `ways` by choice, `open` repetitions without a bound. `first`: the characters
    it begins with, when that is plain; `fixed`: no part of it varies in length; `sample`: a text that it probably
    matches."""

    ways: int = 1
    open: int = 0
    fixed: bool = True
    first: str = ""
    sample: str = ""

    @property
    def certain(self) -> bool:
        """Matches in one way only."""
        return self.ways == 1 and not self.open and self.fixed


def check_pattern(pattern: str) -> int:
    """The most repetitions without a bound that follow one another. Raises PatternFault for a pattern that may run away
    or that cannot be judged."""
    return _read(pattern)[0].open


def samples(pattern: str) -> list[str]:
    """Texts of which the repetitions without a bound in a pattern that passed `check_pattern` match many in a row."""
    return list(dict.fromkeys(_read(pattern)[1]))


def _read(pattern: str) -> tuple[_Shape, list[str]]:
    if len(pattern) > MAX_LENGTH:
        raise PatternFault(f"has {len(pattern):,} characters, the limit is {MAX_LENGTH:,}")
    reader = _Reader(pattern)
    shape = reader.alternatives(0)
    if reader.at < len(pattern):
        raise PatternFault(f"closes a group that is not open, at character {reader.at}")
    return shape, reader.samples


class _Reader:
    """Reads Oniguruma's syntax as far as tokenizers use it."""

    def __init__(self, pattern: str) -> None:
        self._pattern = pattern
        self.at = 0
        self.samples: list[str] = []  # of what is repeated without a bound

    def alternatives(self, depth: int) -> _Shape:
        """To the end of the group, or of the pattern."""
        if depth > MAX_DEPTH:
            raise PatternFault(f"nests groups deeper than {MAX_DEPTH}")
        found = [self._sequence(depth)]
        while self._peek() == "|":
            self.at += 1
            found.append(self._sequence(depth))
        if len(found) == 1:
            return found[0]
        firsts = [shape.first for shape in found]
        # Alternatives that are certain and begin with different characters leave no choice.
        plain = all(firsts) and len(set(firsts)) == len(firsts) and all(shape.certain for shape in found)
        ways = 1 if plain else sum(shape.ways for shape in found)
        return _bounded(_Shape(ways, max(shape.open for shape in found), plain, "", found[0].sample))

    def _sequence(self, depth: int) -> _Shape:
        ways, open_, fixed, first, parts, sample = 1, 0, True, "", 0, ""
        while self._peek() not in ("", "|", ")"):
            item = self._repeated(self._item(depth))
            first = item.first if not parts else first
            ways, open_, fixed, parts = ways * item.ways, open_ + item.open, fixed and item.fixed, parts + 1
            sample = (sample + item.sample)[:MAX_SAMPLE]
            _bounded(_Shape(ways, open_))
        return _Shape(ways, open_, fixed, first, sample)

    def _repeated(self, item: _Shape) -> _Shape:
        """An item with the quantifier that follows."""
        bounds = self._quantifier()
        if bounds is None:
            return item
        low, high = bounds
        if self._peek() in ("?", "+"):
            self.at += 1  # lazy or possessive: no more ways than there were
        if self._peek() in ("*", "+", "?") or self._quantifier() is not None:
            raise PatternFault(f"repeats a repetition, at character {self.at}")
        if high is None or high > 1:
            if low == high and high is not None:
                sample = (item.sample * high)[:MAX_SAMPLE]
                return _bounded(_Shape(item.ways ** min(high, 64), item.open * high, item.fixed, item.first, sample))
            if not item.certain:
                raise PatternFault(f"repeats what can match in several ways, before character {self.at}")
        if high is None or high - low > WIDE:
            if item.sample:
                self.samples.append(item.sample)
            return _bounded(_Shape(item.ways, item.open + 1, False, "", item.sample))
        return _bounded(_Shape(item.ways * (high - low + 1), item.open, low == high and item.fixed, "", item.sample))

    def _quantifier(self) -> tuple[int, int | None] | None:
        """Least and most, None without a bound; stays where it is when there is none."""
        sign = self._peek()
        if sign in ("*", "+", "?"):
            self.at += 1
            return {"*": (0, None), "+": (1, None), "?": (0, 1)}[sign]
        found = _QUANTIFIER.match(self._pattern, self.at)
        if not found or found[0] in ("{}", "{,}"):
            return None
        self.at = found.end()
        if max(len(found[1]), len(found[3])) > 6:
            raise PatternFault(f"repeats more than {MAX_COUNT} times")
        low = int(found[1] or 0)
        high = low if not found[2] else int(found[3]) if found[3] else None
        if max(low, high or 0) > MAX_COUNT or (high is not None and high < low):
            raise PatternFault(f"repeats {found[0]} times; the limit is {MAX_COUNT}")
        return low, high

    def _item(self, depth: int) -> _Shape:
        char = self._peek()
        if char == "(":
            return self._group(depth)
        if char == "[":
            begin = self.at
            self._class(0)
            return _Shape(sample=_member(self._pattern[begin : self.at]))
        if char == "\\":
            begin = self.at
            first = self._escape()
            return _Shape(first=first, sample=_member(self._pattern[begin : self.at]))
        if char in ("*", "+", "?"):
            raise PatternFault(f"repeats nothing, at character {self.at}")
        self.at += 1
        sample = {".": "a", "^": "", "$": ""}.get(char, char)
        return _Shape(first="" if char in ".^$" else char.casefold()[:1], sample=sample)  # (?i: may hold

    def _group(self, depth: int) -> _Shape:
        self.at += 1
        found = None
        if self._peek() == "?":
            if found := _FLAGS.match(self._pattern, self.at):
                self.at = found.end()
                return _Shape()
            found = _GROUP.match(self._pattern, self.at)
            if not found:
                raise PatternFault(f"has a group of an unknown kind, at character {self.at - 1}")
            self.at = found.end()
        looks = found is not None and found[0][1:] in ("=", "!", "<=", "<!")
        shape = self.alternatives(depth + 1)
        if self._peek() != ")":
            raise PatternFault("leaves a group open")
        self.at += 1
        return replace(shape, first="", sample="") if looks else shape

    def _class(self, depth: int) -> None:
        """[…], whatever is in it: one character."""
        if depth > MAX_DEPTH:
            raise PatternFault(f"nests classes deeper than {MAX_DEPTH}")
        self.at += 1
        if self._peek() == "^":
            self.at += 1
        if self._peek() == "]":  # the first one stands for itself
            self.at += 1
        while (char := self._peek()) != "]":
            if not char:
                raise PatternFault("leaves a class open")
            if char == "[":
                self._class(depth + 1)
            elif char == "\\":
                self._escape()
            else:
                self.at += 1
        self.at += 1

    def _escape(self) -> str:
        """An escape sequence; its text when that names one character or class."""
        begin = self.at
        char = self._pattern[begin + 1 : begin + 2]
        if not char:
            raise PatternFault("ends in a backslash")
        if char in "kg" or char in "123456789":
            raise PatternFault(f"refers back to a group, at character {begin}")
        if char in "RX":
            raise PatternFault(f"uses \\{char}, which matches in several ways")
        self.at += 2
        if char in "pPx" and self._peek() == "{":
            end = self._pattern.find("}", self.at)
            if end < 0:
                raise PatternFault("leaves a brace open")
            self.at = end + 1
        return "" if char.isalpha() else char

    def _peek(self) -> str:
        return self._pattern[self.at : self.at + 1]


def _member(text: str) -> str:
    """A character that a class or an escape sequence probably matches."""
    if text.startswith("[^"):
        return next((char for char in _CANDIDATES if not _in_class(char, text)), "")
    if text.startswith("["):
        found = next((char for char in _CANDIDATES if _in_class(char, text)), "")
        return found or next((char for char in text[1:-1] if char not in "\\^-[]"), "")
    kind = text[1]
    if kind in _MEMBERS:
        return _MEMBERS[kind]
    if kind in "pP":
        return _MEMBERS.get(text[3:4], "a")
    return "" if kind.isalnum() else kind


def _in_class(char: str, text: str) -> bool:
    """Whether a class names the character itself, or one of its kind."""
    kind = "L" if char.isalpha() else "N" if char.isdigit() else "P"
    spaces = char.isspace() and "\\s" in text
    words = char.isalnum() and "\\w" in text or char.isdigit() and "\\d" in text
    ranges = char.isalnum() and any(f"{a}-{b}" in text for a, b in ("az", "AZ", "09") if a <= char <= b)
    return char in text.strip("[]^") or spaces or words or ranges or f"{{{kind}" in text


def _bounded(shape: _Shape) -> _Shape:
    if shape.open > MAX_OPEN:
        raise PatternFault(f"has {shape.open} repetitions without a bound one after the other, the limit is {MAX_OPEN}")
    if shape.ways > MAX_WAYS:
        raise PatternFault(f"can match in more than {MAX_WAYS:,} ways")
    return shape
