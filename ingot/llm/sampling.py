"""How tokens are chosen and when a request ends. Every field is checked; all faults of a request come in one error."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot import _native
from ingot.errors import RequestError

MAX_TOKENS = 1_000_000
MAX_TEMPERATURE = 100.0
MAX_STOPS = 64
MAX_STOP_LENGTH = 1024  # characters
MAX_BIASES = 1024
MAX_BIAS = 100.0
MAX_BAD_WORDS = 1024
MAX_LOGPROBS = 20
MAX_N = 128


@dataclass(frozen=True)
class SamplingParams:
    """The words of a request. Greedy unless a temperature is given.

    Attributes:
        max_tokens: generate at most so many tokens, 1 to 1,000,000; the model's context may end it sooner.
        temperature: 0 takes the likeliest token; else logits are divided by it, up to 100.
        top_k: only the so many likeliest tokens; 0 is all.
        top_p: only the likeliest tokens that together reach this probability, above 0 to 1.
        min_p: only tokens at least so probable as this share of the likeliest one, 0 to 1.
        seed: 0 to 2⁶⁴-1; None draws one. Equal seeds give equal tokens, whatever else runs.
        stop: strings that end the text and are not part of it; one string or up to 64.
        stop_ids: token ids that end the text beside the model's own end tokens.
        ignore_end: go on past the model's end tokens.
        repetition_penalty: above 0 to 10; the logits of tokens in prompt and answer are divided by it where positive
            and multiplied where negative. 1 changes nothing.
        presence_penalty, frequency_penalty: -2 to 2; taken off the logits of tokens in the answer, once, and as often
            as they are there.
        logit_bias: token id to a number from -100 to 100, added to its logit; up to 1,024.
        bad_words: texts, or sequences of token ids, that never come; up to 1,024.
        logprobs: report the so many likeliest tokens of each place beside the chosen one, 0 to 20.
        n: so many answers to a prompt, 1 to 128; answer i draws with seed + i.
    """

    max_tokens: int = 64
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    stop: tuple[str, ...] = ()
    stop_ids: tuple[int, ...] = ()
    ignore_end: bool = False
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    bad_words: tuple[str | tuple[int, ...], ...] = ()
    logprobs: int = 0
    n: int = 1

    def __post_init__(self) -> None:
        object.__setattr__(self, "stop", _tuple(self.stop))
        object.__setattr__(self, "stop_ids", _tuple(self.stop_ids))
        object.__setattr__(self, "bad_words", tuple(map(_word, _tuple(self.bad_words))))
        faults = [fault for fault in self._faults() if fault]
        if faults:
            raise RequestError("; ".join(faults))
        for name in ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty"):
            object.__setattr__(self, name, float(getattr(self, name)))

    def _faults(self) -> Iterable[str | None]:
        yield _integer("max_tokens", self.max_tokens, 1, MAX_TOKENS)
        yield _number("temperature", self.temperature, 0, MAX_TEMPERATURE)
        yield _integer("top_k", self.top_k, 0, 2**31 - 1)
        yield _number("top_p", self.top_p, 0, 1, above=True)
        yield _number("min_p", self.min_p, 0, 1)
        if self.seed is not None:
            yield _integer("seed", self.seed, 0, 2**64 - 1)
        yield _stops(self.stop)
        if len(self.stop_ids) > MAX_STOPS:
            yield f"stop_ids has {len(self.stop_ids)} entries, at most {MAX_STOPS} are allowed"
        else:
            yield next(filter(None, (_integer("each of stop_ids", i, 0, 2**31 - 1) for i in self.stop_ids)), None)
        if not isinstance(self.ignore_end, bool):
            yield f"ignore_end must be True or False, not {_shown(self.ignore_end)}"
        yield _number("repetition_penalty", self.repetition_penalty, 0, 10, above=True)
        yield _number("presence_penalty", self.presence_penalty, -2, 2)
        yield _number("frequency_penalty", self.frequency_penalty, -2, 2)
        yield _biases(self.logit_bias)
        yield _bad_words(self.bad_words)
        yield _integer("logprobs", self.logprobs, 0, MAX_LOGPROBS)
        yield _integer("n", self.n, 1, MAX_N)


def sampler_of(
    params: SamplingParams, prompt: Sequence[int], vocabulary: int, index: int = 0,
    bad_words: Sequence[Sequence[int]] = (),
) -> _native.Sampler:  # fmt: skip
    """The sampler of a request's answer `index`. Raises RequestError for token ids that the model does not have."""
    seed = secrets.randbits(64) if params.seed is None else (params.seed + index) % 2**64
    remembers = params.repetition_penalty != 1 or bool(bad_words)
    try:
        return _native.Sampler(
            vocabulary, np.array(prompt if remembers else (), np.int64), temperature=params.temperature,
            top_k=params.top_k, top_p=params.top_p, min_p=params.min_p, seed=seed,
            repetition=params.repetition_penalty, presence=params.presence_penalty, frequency=params.frequency_penalty,
            bias=list(params.logit_bias.items()), bad_words=[list(word) for word in bad_words],
            top_logprobs=min(params.logprobs, vocabulary),
        )  # fmt: skip
    except _native.Error as e:
        raise RequestError(f"sampling: {e}; the model has tokens 0 to {vocabulary - 1}") from None


def _tuple(value: Any) -> tuple[Any, ...]:
    """The value as a tuple; what is no collection becomes its only, faulty, entry."""
    return tuple(value) if isinstance(value, list | tuple | set | frozenset) else () if value is None else (value,)


def _word(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"


def _integer(name: str, value: object, low: int, high: int) -> str | None:
    if isinstance(value, int) and not isinstance(value, bool) and low <= value <= high:
        return None
    return f"{name} must be an integer from {low} to {high}, not {_shown(value)}"


def _number(name: str, value: object, low: float, high: float, above: bool = False) -> str | None:
    # Not a number, and infinities, fail the comparisons.
    fits = isinstance(value, int | float) and not isinstance(value, bool) and low <= value <= high
    if fits and not (above and value == low):
        return None
    start = f"above {low:g} up" if above else f"from {low:g}"
    return f"{name} must be a number {start} to {high:g}, not {_shown(value)}"


def _stops(stop: tuple[Any, ...]) -> str | None:
    if len(stop) > MAX_STOPS:
        return f"stop has {len(stop)} strings, at most {MAX_STOPS} are allowed"
    for text in stop:
        if not isinstance(text, str) or not 1 <= len(text) <= MAX_STOP_LENGTH:
            return f"each stop string must have 1 to {MAX_STOP_LENGTH} characters, not {_shown(text)}"
    return None


def _biases(biases: object) -> str | None:
    if not isinstance(biases, Mapping):
        return f"logit_bias must map token ids to numbers, not be {_shown(biases)}"
    if len(biases) > MAX_BIASES:
        return f"logit_bias has {len(biases)} entries, at most {MAX_BIASES} are allowed"
    for token, bias in biases.items():
        fault = _integer("each token of logit_bias", token, 0, 2**31 - 1)
        if fault := fault or _number("each value of logit_bias", bias, -MAX_BIAS, MAX_BIAS):
            return fault
    return None


def _bad_words(words: tuple[Any, ...]) -> str | None:
    if len(words) > MAX_BAD_WORDS:
        return f"bad_words has {len(words)} entries, at most {MAX_BAD_WORDS} are allowed"
    for word in words:
        if not isinstance(word, str | tuple) or not 1 <= len(word) <= MAX_STOP_LENGTH:
            return f"each of bad_words must be text or token ids, 1 to {MAX_STOP_LENGTH} of them, not {_shown(word)}"
        if isinstance(word, tuple):
            fault = next(filter(None, (_integer("each token of bad_words", i, 0, 2**31 - 1) for i in word)), None)
            if fault:
                return fault
    return None
