"""How many tokens of prompts fit beside answers that are read as they come, by what steps were measured to take."""

from __future__ import annotations

import math

LONGER = 0.5  # a step with tokens of prompts may take so much longer than one of decodes alone,
GROWTH = 0.3  # or so much longer than steps in which many prompts wait take of late,
MOST = 2.5  # but no more than so many times as long as one of decodes alone
MANY = 8  # prompts are many if there is one for so many decodes
CHEAP = 1.25  # and more answers gain something, if a step of twice as many decodes takes at most so many times as long
ENOUGH = 0.85  # and longer steps gain little, if these compute such a share of the tokens a second of prompts alone
LATELY = 256  # steps that count as of late, and more where they are short: neither a burst nor a long prompt
SECONDS = 2.5  # changes it much
LEAST = 4  # tokens of prompts: prompts go on, whatever is measured
FASTER = 4.0  # what one measurement may ask for: so many times as many tokens, or so many times fewer
WEIGHT = 0.3  # of a new measurement
DELAYED = 2.0  # a step that takes so many times as long as others, or as little, is believed if the next one does too
SHORTEST = 1e-6  # seconds: what is measured as less is as long
STEPS_UNTIL_ALONE = 64  # one step in so many has no prompts while they wait: what decodes take alone changes


class StepTimes:
    """Finds the number of prompt tokens with which a step takes half again as long as its decodes alone, or more where
    many prompts wait all the time.

    A prompt that comes now and then does not slow the answers beside it by more than half. Where more come than go,
    almost every step is longer by a half. If a step takes little longer for twice as many answers, as on a GPU, the
    next may then take 1.3 times as long as those of late, and so on, until few wait: the more answers share a step, the
    more tokens a second there are. (Half again as long in any case was kept by few answers beside many prompts that
    waited: with 128 clients of a GPU, two of three.) They do not grow where half again as long is enough to compute
    almost as many tokens a second as a full step of prompts alone, as on CPUs: answers would wait for nothing.

    How long a token takes depends on the machine, the model, the precision and the length of contexts, and the first
    few are almost free where a step waits for memory. So the number is found as the steps go: after each step that had
    prompts it moves towards what would have met the mark.

    Args:
        first: tokens to begin with.
        most: tokens of a step.
    """

    def __init__(self, first: int, most: int) -> None:
        self._limit = float(first)
        self._most = max(first, most)
        self._alone: dict[int, float] = {}  # seconds of steps without prompts, by the bits of their rows,
        self._last: dict[int, float] = {}  # and of the last of them
        self._before = math.inf  # seconds of the last step
        self._since_alone = 0
        self._lately = 1.0  # times as long as decodes alone, steps in which many wait; others count as 1
        self._each = math.inf
        self._full_pace = math.inf  # tokens a second of the last step of prompts alone, at least half full

    def took(self, decoded: int, prompts: int, seconds: float, left: int = 0) -> None:
        """A step took so long, with so many rows of decodes and tokens of prompts, and left some of so many prompts."""
        bits, seconds = decoded.bit_length(), max(seconds, SHORTEST)
        before, self._before = self._before, seconds
        if not prompts:
            self._took_alone(bits, seconds)
            self._count(1.0, seconds)
            return
        if not decoded:
            if 2 * prompts >= self._most:
                self._full_pace = prompts / seconds
            return
        self._since_alone = STEPS_UNTIL_ALONE if bits not in self._alone else self._since_alone + 1
        if not self._alone:
            return
        nearest = min(self._alone, key=lambda known: (abs(known - bits), known))
        if DELAYED * seconds < self._alone[nearest] <= DELAYED * before:
            return  # the host read the step before late, and this one had ended by then
        if nearest <= bits and DELAYED * seconds < self._alone[nearest]:
            self._alone[nearest] = seconds  # what has no prompts takes no longer than this
        took = seconds / self._alone[nearest]
        gains = self._gains((decoded + prompts) / seconds)
        self._count(took if gains and left * MANY >= decoded and self._are_cheap(nearest) else 1.0, seconds)
        longer = max(LONGER, min((1 + GROWTH) * self._lately, MOST) - 1)
        each = (took - 1) / prompts  # how much longer for a token
        lesser, self._each = min(each, self._each), each  # a step that something else delayed is not believed
        wished = min(prompts * FASTER, max(prompts / FASTER, longer / max(lesser, 1e-9)))
        if prompts * lesser <= longer and wished <= self._limit:
            return  # a step of few tokens says nothing against more
        limit = self._limit ** (1 - WEIGHT) * wished**WEIGHT
        self._limit = min(max(limit, LEAST), self._most)

    def _took_alone(self, bits: int, seconds: float) -> None:
        """A step without prompts took so long."""
        self._since_alone = 0
        before = self._alone.get(bits, seconds)
        last, self._last[bits] = self._last.get(bits, seconds), seconds
        if seconds > DELAYED * before:  # by something else maybe: beside that prompts would seem to cost nothing
            seconds = min(seconds, last)
        elif DELAYED * seconds < before <= DELAYED * last:  # one that had ended when the one before it was read
            return
        elif DELAYED * seconds < before:  # then those before were
            before = seconds
        self._alone[bits] = before + (seconds - before) * WEIGHT

    def _are_cheap(self, bits: int) -> bool:
        """By the steps alone with so many bits of rows and the next fewer, or the next more where none had fewer."""
        known = sorted(self._alone)
        at = max(known.index(bits), 1)
        if at == len(known):
            return False
        fewer, more = known[at - 1], known[at]
        return self._alone[more] <= CHEAP ** (more - fewer) * self._alone[fewer]

    def _gains(self, pace: float) -> bool:
        """Whether prompts alone compute many more tokens a second than a step with so many. Unknown counts as yes."""
        if pace > DELAYED * self._full_pace:  # that of prompts was delayed, as while kernels were compiled
            self._full_pace = math.inf
        return pace < ENOUGH * self._full_pace

    def _count(self, took: float, seconds: float) -> None:
        self._lately += (min(took, MOST) - self._lately) * min(1 / LATELY, seconds / SECONDS)

    def shortest_alone(self) -> float:
        """Seconds of a step without prompts, by the rows that take least (others may be delayed); 0 before one."""
        return min(self._alone.values(), default=0.0)

    def tokens(self) -> int:
        """How many tokens of prompts the next step may have beside decodes."""
        if self._since_alone >= STEPS_UNTIL_ALONE:
            return 0
        return round(self._limit)
