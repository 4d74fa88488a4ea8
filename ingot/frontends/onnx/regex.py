"""Regular expressions of RE2's syntax as tables of an automaton that reads a text once, code point by code point.

The pattern is parsed into a nondeterministic automaton (Thompson 1968), whose sets of states become the states of a
deterministic one. What looks around itself (`^`, `$`, `\\b`) is decided by the kinds of the code points on both sides.
Refused by name: what is no regular language or has no use in a whole match (RE2 has no back references either).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

from ingot.frontends.table import Unsupported

Array = np.ndarray[Any, Any]
Ranges = tuple[tuple[int, int], ...]  # of code points, both ends included, ascending

LAST = 0x10FFFF
MAX_PATTERN, MAX_REPEATS, MAX_PIECES, MAX_STATES, MAX_WORK = 4096, 1000, 20_000, 4096, 1 << 22  # a second or two
MAX_DEPTH = 50

DIGITS: Ranges = ((48, 57),)
WORD: Ranges = ((48, 57), (65, 90), (95, 95), (97, 122))
SPACE: Ranges = ((9, 10), (12, 13), (32, 32))  # RE2's \s has no vertical tab
CLASSES = {"d": DIGITS, "w": WORD, "s": SPACE}
ESCAPES = {"t": 9, "n": 10, "r": 13, "f": 12, "v": 11, "a": 7}
START, OTHER, IN_WORD, END = "start", "other", "word", "end"  # kinds of what lies beside a place
LOOKS: dict[str, Callable[[str, str], bool]] = {
    "^": lambda before, after: before == START,
    "$": lambda before, after: after == END,
    "b": lambda before, after: (before == IN_WORD) != (after == IN_WORD),
    "B": lambda before, after: (before == IN_WORD) == (after == IN_WORD),
}


class Work:
    """What the patterns of one file may take together: characters read, and states and ranges looked at."""

    def __init__(self, left: int = MAX_WORK) -> None:
        self.left = left

    def spend(self, steps: int, pattern: str) -> None:
        """Raises Unsupported where there is less left."""
        self.left -= steps
        if self.left < 0:
            raise Unsupported(f"the pattern {pattern:.60} takes too long to prepare, with those before it in the file")


class Automaton(NamedTuple):
    """State 0 is the first. A code point belongs to the class of how many `boundaries` are at most as large; `moves`
    [states, classes] says which state follows, `accepts` in which ones a text may end."""

    boundaries: Array
    moves: Array
    accepts: Array


def _inverse(ranges: Ranges) -> Ranges:
    found, low = [], 1
    for first, last in ranges:
        if first > low:
            found.append((low, first - 1))
        low = last + 1
    return (*found, (low, LAST)) if low <= LAST else tuple(found)


def _merged(ranges: list[tuple[int, int]]) -> Ranges:
    found: list[tuple[int, int]] = []
    for first, last in sorted(ranges):
        if found and first <= found[-1][1] + 1:
            found[-1] = found[-1][0], max(found[-1][1], last)
        else:
            found.append((first, last))
    return tuple(found)


def _is_count(digits: str) -> bool:
    """Whether this counts repeats; a{01} is these five characters to RE2."""
    return digits.isascii() and digits.isdigit() and (digits == "0" or digits[0] != "0")


class _Parser:
    """Recursive descent, straight into the pieces of the nondeterministic automaton."""

    def __init__(self, pattern: str, work: Work) -> None:
        if len(pattern) > MAX_PATTERN:
            raise Unsupported(f"a pattern has at most {MAX_PATTERN:,} characters, and this one {len(pattern):,}")
        self.text, self.at, self.depth, self.work = pattern, 0, 0, work
        self.sets: dict[int, tuple[Ranges, int]] = {}  # what is in the brackets from here on, and where that ends
        self.reads: list[tuple[Ranges, int] | None] = []  # of each state: what it reads, and where it goes then
        self.goes: list[list[tuple[str, int]]] = []  # where it goes without reading: "" or what has to hold

    def fault(self, why: str) -> Unsupported:
        return Unsupported(f"the pattern {self.text:.60} is not supported at character {self.at}: {why}")

    def state(self) -> int:
        if len(self.reads) >= MAX_PIECES:
            raise Unsupported(f"the pattern {self.text:.60} is too large: more than {MAX_PIECES:,} pieces")
        self.reads.append(None)
        self.goes.append([])
        return len(self.reads) - 1

    def peek(self) -> str:
        return self.text[self.at : self.at + 1]

    def take(self) -> str:
        found = self.peek()
        if not found:
            raise self.fault("it ends too early")
        self.work.spend(4, self.text)  # as long as so many states take
        self.at += 1
        return found

    def whole(self) -> tuple[int, int]:
        found = self.either()
        if self.peek():
            raise self.fault("a ) without its (")
        return found

    def either(self) -> tuple[int, int]:
        self.depth += 1
        if self.depth > MAX_DEPTH:
            raise self.fault(f"groups are nested more than {MAX_DEPTH} deep")
        first, last = self.state(), self.state()
        while True:
            begin, end = self.row()
            self.goes[first].append(("", begin))
            self.goes[end].append(("", last))
            if self.peek() != "|":
                break
            self.at += 1
        self.depth -= 1
        return first, last

    def row(self) -> tuple[int, int]:
        first = last = self.state()
        while self.peek() not in ("", "|", ")"):
            start = self.at
            begin, end = self.atom()
            while self.peek() and self.peek() in "*+?{":
                before = self.at
                least, most = self.counts()
                if before == self.at:  # a { that is no count
                    break
                begin, end = self.repeated(start, before, begin, end, least, most)
            self.goes[last].append(("", begin))
            last = end
        return first, last

    def counts(self) -> tuple[int, int | None]:
        """Of *, +, ?, {n}, {n,} and {n,m}; a ? behind it only says which match is found first."""
        start, mark = self.at, self.take()
        least, most = {"*": (0, None), "+": (1, None), "?": (0, 1)}.get(mark, (0, 0))
        if mark == "{":
            end = self.text.find("}", self.at)
            low, comma, high = self.text[self.at : max(end, self.at)].partition(",")
            if end < 0 or not _is_count(low) or high and not _is_count(high):
                self.at = start
                return 0, 0
            least, most = int(low[:6]), (int(high[:6]) if high else None) if comma else int(low[:6])
            if max(least, most or 0) > MAX_REPEATS or (most is not None and most < least):
                raise self.fault(f"repeats go from less to more, up to {MAX_REPEATS:,}")
            self.at = end + 1
        if self.peek() == "?":
            self.at += 1
        return least, most

    def repeated(
        self, start: int, stop: int, begin: int, end: int, least: int, most: int | None
    ) -> tuple[int, int]:
        """Copies of an atom, which is read again for each."""
        after = self.at

        def copy() -> tuple[int, int]:
            self.at = start
            found = self.atom()
            while self.at < stop:
                inner = self.at
                low, high = self.counts()
                found = self.repeated(start, inner, *found, low, high)
            return found

        first = last = self.state()
        pieces = least if most is None else most
        made = (begin, end) if pieces or most is None else None
        out = self.state()
        for i in range(pieces):
            one = made if made is not None else copy()
            made = None
            if i >= least:
                self.goes[last].append(("", out))
            self.goes[last].append(("", one[0]))
            last = one[1]
        if most is None:
            one = made if made is not None else copy()
            self.goes[last] += [("", one[0]), ("", out)]
            self.goes[one[1]].append(("", last))
        else:
            self.goes[last].append(("", out))
        self.at = after
        return first, out

    def atom(self) -> tuple[int, int]:
        mark = self.take()
        if mark == "(":
            if self.peek() == "?":
                self.group()
            found = self.either()
            if self.peek() != ")":
                raise self.fault("a ( without its )")
            self.at += 1
            return found
        if mark in "*+?":
            raise self.fault(f"nothing is before {mark}")
        if mark in "^$":
            return self.looking(mark)
        if mark == ".":
            return self.reading(_inverse(((10, 10),)))
        if mark == "[":
            return self.reading(self.set())
        if mark != "\\":
            return self.reading(((ord(mark), ord(mark)),))
        letter = self.peek()
        if letter in ("b", "B", "A", "z"):
            self.at += 1
            return self.looking({"A": "^", "z": "$"}.get(letter, letter))
        return self.reading(self.escape())

    def group(self) -> None:
        """What stands behind "(?": only names and groups that keep nothing."""
        self.at += 1
        if self.peek() == ":":
            self.at += 1
            return
        if self.peek() == "P":
            self.at += 1
        end = self.text.find(">", self.at)
        if self.peek() == "<" and end > 0 and self.text[self.at + 1 : end].isidentifier():
            self.at = end + 1
            return
        raise self.fault("flags, and groups that look around")

    def looking(self, what: str) -> tuple[int, int]:
        first, last = self.state(), self.state()
        self.goes[first].append((what, last))
        return first, last

    def reading(self, ranges: Ranges) -> tuple[int, int]:
        first, last = self.state(), self.state()
        self.reads[first] = (ranges, last)
        return first, last

    def escape(self) -> Ranges:
        letter = self.take()
        if letter.lower() in CLASSES:
            found = CLASSES[letter.lower()]
            return found if letter.islower() else _inverse(found)
        if letter in ESCAPES:
            return ((ESCAPES[letter],) * 2,)
        if letter == "x":
            return ((self.hexadecimal(),) * 2,)
        if letter.isascii() and letter.isalnum():
            raise self.fault(f"\\{letter} is none of \\d \\w \\s \\b \\A \\z \\t \\n \\r \\f \\v \\a \\x")
        return ((ord(letter), ord(letter)),)

    def hexadecimal(self) -> int:
        end = self.text.find("}", self.at) if self.peek() == "{" else self.at + 2
        digits = self.text[self.at + (self.peek() == "{") : max(end, self.at)]
        self.at = end + (self.peek() == "{")
        if not 1 <= len(digits) <= 8 or any(d not in "0123456789abcdefABCDEF" for d in digits):
            raise self.fault("\\x takes two digits, or some in braces")
        if not 1 <= (code := int(digits, 16)) <= LAST:
            raise self.fault("there is no such code point in a text")
        return code

    def set(self) -> Ranges:
        """What stands in brackets, which copies of an atom have alike."""
        start = self.at
        if start not in self.sets:
            self.sets[start] = self.new_set(), self.at
        ranges, self.at = self.sets[start]
        return ranges

    def new_set(self) -> Ranges:
        inverse = self.peek() == "^"
        self.at += inverse
        found: list[tuple[int, int]] = []
        first = True
        while first or self.peek() != "]":
            first = False
            if self.text.startswith("[:", self.at):
                raise self.fault("classes by name in brackets: write their ranges")
            low = self.member()
            if self.peek() == "-" and self.text[self.at + 1 : self.at + 2] not in ("]", ""):
                self.at += 1
                high = self.member()
                if len(low) > 1 or len(high) > 1 or low[0][0] != low[0][1] or low[0][0] > high[0][1]:
                    raise self.fault("a range goes from one character to a later one")
                low = ((low[0][0], high[0][1]),)
            found += low
        self.at += 1
        ranges = _merged(found)
        return _inverse(ranges) if inverse else ranges

    def member(self) -> Ranges:
        mark = self.take()
        return self.escape() if mark == "\\" else ((ord(mark), ord(mark)),)


def automaton(pattern: str, work: Work) -> Automaton:
    """The automaton of a pattern that has to match the whole of a text; `work` is what the file has left for it.

    Raises Unsupported for what the syntax above lacks, and for a pattern whose automaton is too large.
    """
    parsed = _Parser(pattern, work)
    first, last = parsed.whole()
    edges = {1, *(e for r in WORD for e in (r[0], r[1] + 1))}
    alphabet = {read[0] for read in parsed.reads if read is not None}
    work.spend(len(parsed.reads) + sum(map(len, alphabet)), pattern)
    for ranges in alphabet:
        edges |= {e for low, high in ranges for e in (low, high + 1)}
    boundaries = sorted(e for e in edges if 1 <= e <= LAST)
    kinds = [IN_WORD if any(low <= b <= high for low, high in WORD) else OTHER for b in boundaries]
    classes = {b: i for i, b in enumerate(boundaries)}
    work.spend(len(alphabet) * len(boundaries), pattern)  # at most, where every one has every class
    held = {ranges: _classes(ranges, classes, len(boundaries)) for ranges in alphabet}
    reads = [None if r is None else (held[r[0]], r[1]) for r in parsed.reads]
    states: dict[tuple[frozenset[int], str], int] = {(frozenset([first]), START): 0}
    todo, moves, accepts = [(frozenset([first]), START)], [], []
    while todo:
        core, before = todo.pop(0)
        closed = {kind: _closure(parsed.goes, core, before, kind) for kind in (OTHER, IN_WORD, END)}
        work.spend(4 * sum(map(len, closed.values())), pattern)
        accepts.append(last in closed[END])
        row = []
        for i, kind in enumerate(kinds):
            work.spend(len(closed[kind]) + 1, pattern)
            reached = frozenset(r[1] for s in closed[kind] if (r := reads[s]) is not None and i in r[0])
            key = reached, (kind if reached else OTHER)
            if key not in states:
                if len(states) >= MAX_STATES:
                    raise Unsupported(f"the pattern {pattern:.60} needs more than {MAX_STATES:,} states")
                states[key] = len(states)
                todo.append(key)
            row.append(states[key])
        moves.append(row)
    return Automaton(np.array(boundaries, np.int32), np.array(moves, np.int32), np.array(accepts))


def _classes(ranges: Ranges, classes: dict[int, int], count: int) -> frozenset[int]:
    """Classes of code points, which begin at the boundaries, that ranges hold."""
    return frozenset(i for low, high in ranges for i in range(classes[low], classes.get(high + 1, count)))


def _closure(goes: list[list[tuple[str, int]]], core: frozenset[int], before: str, after: str) -> set[int]:
    """All states that are reached without reading, between two code points of these kinds."""
    found, todo = set(core), list(core)
    while todo:
        for what, to in goes[todo.pop()]:
            if to not in found and (not what or LOOKS[what](before, after)):
                found.add(to)
                todo.append(to)
    return found
