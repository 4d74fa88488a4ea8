"""Every sampling word is checked; what is drawn follows the distribution; greedy is the first maximum."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from ingot import _native
from ingot.errors import RequestError
from ingot.llm.sampling import MAX_STOP_LENGTH, MAX_STOPS, SamplingParams, sampler_of

BAD: list[tuple[str, Any]] = [
    ("max_tokens", -1), ("max_tokens", 0), ("max_tokens", 10**9), ("max_tokens", 1.5), ("max_tokens", True),
    ("max_tokens", "64"), ("max_tokens", None), ("temperature", -0.1), ("temperature", float("nan")),
    ("temperature", float("inf")), ("temperature", 101), ("temperature", "1"), ("temperature", None),
    ("temperature", True), ("temperature", 10**400), ("top_k", -1), ("top_k", 2**31), ("top_k", 1.0), ("top_p", 0),
    ("top_p", 2), ("top_p", float("nan")), ("top_p", -1), ("min_p", -0.1), ("min_p", 1.01), ("min_p", float("nan")),
    ("seed", -1), ("seed", 2**64), ("seed", 2**70), ("seed", 1.0), ("seed", "7"), ("stop", ""), ("stop", [""]),
    ("stop", ["x"] * (MAX_STOPS + 1)), ("stop", ["x"] * 100_000), ("stop", "x" * (MAX_STOP_LENGTH + 1)), ("stop", [1]),
    ("stop", 5), ("stop_ids", [-1]), ("stop_ids", [2**31]), ("stop_ids", ["a"]), ("stop_ids", "a"),
    ("stop_ids", [0] * (MAX_STOPS + 1)), ("ignore_end", 1), ("repetition_penalty", 0), ("repetition_penalty", 11),
    ("presence_penalty", 2.1), ("presence_penalty", float("nan")), ("frequency_penalty", -3),
    ("frequency_penalty", "1"), ("logit_bias", [1]), ("logit_bias", {-1: 1.0}), ("logit_bias", {"5": 1.0}),
    ("logit_bias", {5: 101}), ("logit_bias", {5: float("nan")}), ("logit_bias", dict.fromkeys(range(2000), 1.0)),
    ("bad_words", ""), ("bad_words", [[]]), ("bad_words", [[-1]]), ("bad_words", [5]), ("bad_words", ["x"] * 2000),
    ("logprobs", 21), ("logprobs", -1), ("logprobs", True), ("n", 0), ("n", 10**6), ("n", 1.0),
]  # fmt: skip


@pytest.mark.parametrize(("name", "value"), BAD, ids=lambda v: repr(v)[:30])
def test_what_is_out_of_range_is_refused_by_name(name: str, value: Any) -> None:
    with pytest.raises(RequestError, match=name) as caught:
        SamplingParams(**{name: value})
    assert len(str(caught.value)) < 300


def test_all_faults_come_in_one_error() -> None:
    with pytest.raises(RequestError) as caught:
        SamplingParams(max_tokens=0, temperature=-1, top_p=3, seed=-1)
    assert all(name in str(caught.value) for name in ("max_tokens", "temperature", "top_p", "seed"))


LEAST = 5e-324  # the least positive number
# Of each word: what is just allowed, and what is not any more.
EDGES: dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]] = {
    "max_tokens": ((1, 1_000_000), (0, 1_000_001)),
    "temperature": ((0, LEAST, 100), (-LEAST, np.nextafter(100, 101))),
    "top_k": ((0, 2**31 - 1), (-1, 2**31)),
    "top_p": ((LEAST, 1), (0, 0.0, np.nextafter(1, 2))),
    "min_p": ((0, 1), (-LEAST, np.nextafter(1, 2))),
    "seed": ((None, 0, 2**64 - 1), (-1, 2**64)),
    "stop": ((None, (), "x", "x" * 1024, ["x"] * 64, {"x"}), ("", "x" * 1025, ["x"] * 65, ["x", ""])),
    "stop_ids": ((None, (), [0], [2**31 - 1], [5] * 64), ([-1], [2**31], [5, 2**31], [5] * 65)),
    "ignore_end": ((False, True), (0, None)),
    "repetition_penalty": ((LEAST, 10), (0, np.nextafter(10, 11))),
    "presence_penalty": ((-2, 2), (np.nextafter(-2, -3), np.nextafter(2, 3))),
    "frequency_penalty": ((-2, 2), (np.nextafter(-2, -3), np.nextafter(2, 3))),
    "logit_bias": (
        ({}, {0: -100}, {2**31 - 1: 100}, dict.fromkeys(range(1024), 1)),
        ({-1: 1}, {2**31: 1}, {0: np.nextafter(-100, -101)}, {0: np.nextafter(100, 101)}, {0: 1, 1: 101},
         dict.fromkeys(range(1025), 1), None),
    ),
    "bad_words": (
        (None, (), "x", "x" * 1024, [[0]], [[2**31 - 1]], [[5] * 1024], ["x"] * 1024),
        ("", "x" * 1025, [[]], [[-1]], [[2**31]], [[5, 2**31]], [[5] * 1025], ["x"] * 1025, ["x", ""]),
    ),
    "logprobs": ((0, 20), (-1, 21)),
    "n": ((1, 128), (0, 129)),
}  # fmt: skip


@pytest.mark.parametrize("name", EDGES)
def test_the_edges(name: str) -> None:
    allowed, refused = EDGES[name]
    for value in allowed:
        SamplingParams(**{name: value})
    for value in refused:
        with pytest.raises(RequestError, match=name):
            SamplingParams(**{name: value})


def test_what_is_not_said() -> None:
    """Every word has edges above and a value where it is not said; numbers become floats, collections tuples."""
    assert dataclasses.asdict(SamplingParams()) == {
        "max_tokens": 64, "temperature": 0.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": None, "stop": (),
        "stop_ids": (), "ignore_end": False, "repetition_penalty": 1.0, "presence_penalty": 0.0,
        "frequency_penalty": 0.0, "logit_bias": {}, "bad_words": (), "logprobs": 0, "n": 1,
    }  # fmt: skip
    assert {field.name for field in dataclasses.fields(SamplingParams)} == set(EDGES)
    assert SamplingParams(stop="a").stop == ("a",)
    found = SamplingParams(stop=["a", "b"], stop_ids={3}, bad_words=["no", [1, 2]])  # type: ignore[arg-type]
    assert (found.stop, found.stop_ids, found.bad_words) == (("a", "b"), (3,), ("no", (1, 2)))
    numbers = ("temperature", "top_p", "min_p", "repetition_penalty", "presence_penalty", "frequency_penalty")
    given = SamplingParams(**dict.fromkeys(numbers, 1))
    assert all(type(getattr(given, name)) is float for name in numbers)


def draw(logits: np.ndarray, n: int, **words: Any) -> np.ndarray:
    """n draws from one row of logits, at positions 0 … n-1 of one seed."""
    rows = np.repeat(logits[None].astype(np.float32), n, 0)

    words = {"temperature": 1.0, "seed": 5, **words}
    samplers = [_native.Sampler(len(logits), np.zeros(0, np.int64), **words) for _ in range(n)]
    return np.asarray(_native.sample(rows, samplers, np.arange(n, dtype=np.int64))[0])


def softmax(x: np.ndarray) -> np.ndarray:
    e = np.exp(x - x.max())
    return e / e.sum()


@pytest.mark.parametrize(
    ("words", "kept"),
    [
        ({}, 8), ({"temperature": 0.5}, 8), ({"temperature": 2.0}, 8), ({"top_k": 3}, 3), ({"top_p": 0.7}, None),
        ({"min_p": 0.2}, None), ({"top_k": 5, "top_p": 0.8, "min_p": 0.1, "temperature": 1.5}, None),
    ],
    ids=str,
)  # fmt: skip
def test_draws_follow_the_distribution(words: dict[str, float], kept: int | None) -> None:
    """Chi-square over 20,000 draws, against the rule written out; the seed is fixed, so this never flickers."""
    n = 20_000
    logits = np.array([2.0, 1.5, 1.0, 0.5, 0.0, -0.5, -1.0, -1.5])
    p = softmax(logits / words.get("temperature", 1))
    order = np.argsort(-p)
    keep = order[: int(words.get("top_k", 0)) or len(p)]
    q = p[keep] / p[keep].sum()
    keep = keep[: int(np.searchsorted(np.cumsum(q), words.get("top_p", 1.0) - 1e-9)) + 1]
    keep = keep[p[keep] >= words.get("min_p", 0) * p.max()]
    assert kept is None or len(keep) == kept
    expected = np.zeros(len(p))
    expected[keep] = p[keep] / p[keep].sum() * n
    found = np.bincount(draw(logits, n, **words), minlength=len(p))
    assert found[expected == 0].sum() == 0
    chi = ((found - expected)[expected > 0] ** 2 / expected[expected > 0]).sum()
    assert chi < 3 * len(keep) + 15, (found, expected)


def penalised(logits: np.ndarray, prompt: list[int], answer: list[int], **words: Any) -> np.ndarray:
    """Bias, penalties and bad words, written out."""
    found = logits.astype(np.float32).copy()
    for token, bias in words.get("bias", ()):
        found[token] += np.float32(bias)
    for token in {*prompt, *answer}:
        value, factor = found[token], np.float32(words.get("repetition", 1))
        found[token] = value / factor if value > 0 else value * factor
    for token in set(answer):
        times = np.float32(answer.count(token))
        found[token] -= np.float32(words.get("presence", 0)) + times * np.float32(words.get("frequency", 0))
    both = prompt + answer
    for word in words.get("bad_words", ()):
        if len(word) == 1 or both[-len(word) + 1 :] == list(word[:-1]):
            found[word[-1]] = -np.inf
    return found


@pytest.mark.parametrize(
    "words",
    [
        {"repetition": 1.7}, {"presence": 0.8}, {"frequency": 0.6}, {"bias": [(3, 2.5), (9, -100.0)]},
        {"bad_words": [[4], [1, 2], [2, 2, 3]]},
        {"repetition": 1.2, "presence": -0.5, "frequency": 1.1, "bias": [(0, 1.0)], "bad_words": [[5, 6]]},
    ],
    ids=str,
)  # fmt: skip
def test_penalties_bias_and_bad_words(words: dict[str, Any]) -> None:
    """A greedy answer of 60 tokens, each the best after what the rules take off; logprobs stay those of the model."""
    rng = np.random.default_rng(3)
    prompt, answer = [int(t) for t in rng.integers(0, 12, 9)], []
    sampler = _native.Sampler(12, np.array(prompt, np.int64), temperature=0.0, top_logprobs=3, **words)
    for place in range(60):
        logits = rng.standard_normal(12).astype(np.float32)
        tokens, logprobs, tops, values = _native.sample(logits[None], [sampler], np.array([place]))
        assert tokens[0] == penalised(logits, prompt, answer, **words).argmax()
        plain = np.log(softmax(logits.astype(np.float64)))
        assert abs(logprobs[0] - plain[tokens[0]]) < 1e-5
        assert tops[0].tolist() == np.argsort(-logits, kind="stable")[:3].tolist()
        np.testing.assert_allclose(values[0], plain[tops[0]], atol=1e-5)
        answer.append(int(tokens[0]))
    assert len(set(answer)) > 3


def test_rows_may_want_different_things() -> None:
    logits = np.random.default_rng(1).standard_normal((3, 30)).astype(np.float32)
    none = np.zeros(0, np.int64)
    samplers = [_native.Sampler(30, none, top_logprobs=n) for n in (0, 5, 2)]
    _, _, tops, _ = _native.sample(logits, samplers, np.zeros(3, np.int64))
    assert (tops >= 0).sum(1).tolist() == [0, 5, 2]
    with pytest.raises(_native.Error, match="vocabulary of 31"):
        _native.sample(logits[:1], [_native.Sampler(31, none)], np.zeros(1, np.int64))
    banned = _native.Sampler(2, none, bad_words=[[0], [1]])
    with pytest.raises(_native.Error, match="leave no token"):
        _native.sample(logits[:1, :2].copy(), [banned], np.zeros(1, np.int64))
    for words in ({"bias": [(30, 1.0)]}, {"bad_words": [[31]]}, {"repetition": 0.0}, {"top_logprobs": 31}):
        with pytest.raises(_native.Error, match=next(iter(words))):
            _native.Sampler(30, none, **words)


def test_greedy_takes_the_first_maximum() -> None:
    logits = np.array([0.0, 3.0, 1.0, 3.0])
    assert set(draw(logits, 5, temperature=0).tolist()) == {1}


def test_a_draw_depends_on_seed_and_position_alone() -> None:
    logits = np.random.default_rng(0).standard_normal(100)
    assert (draw(logits, 50, seed=1) == draw(logits, 200, seed=1)[:50]).all()
    assert (draw(logits, 200, seed=1) != draw(logits, 200, seed=2)).any()


def best_of(prompt: list[int], logits: list[float], words: dict[str, Any], bad_words: tuple[Any, ...] = ()) -> int:
    sampler = sampler_of(SamplingParams(**words), prompt, len(logits), bad_words=bad_words)
    return int(_native.sample(np.array([logits], np.float32), [sampler], np.zeros(1, np.int64))[0][0])


def test_the_sampler_of_a_request() -> None:
    """Repetition counts the prompt, with or without words that may not come; these go on from the prompt."""
    logits = [3.0, 2.0, 1.0]
    assert best_of([0], logits, {}) == 0
    assert best_of([0], logits, {"repetition_penalty": 2.0}) == 1
    assert best_of([0], logits, {"repetition_penalty": 2.0}, ((2,),)) == 1
    assert best_of([2], logits, {}, ((2, 0),)) == 1
    assert best_of([1], logits, {}, ((2, 0),)) == 0
    assert best_of([0], logits, {"presence_penalty": 2.0}) == 0  # of what was answered, not of what was asked
    assert best_of([0], logits, {"logit_bias": {2: 2.5}}) == 2
    with pytest.raises(RequestError, match="the model has tokens 0 to 2"):
        best_of([0], logits, {"logit_bias": {3: 1.0}})


def test_the_seed_of_each_answer() -> None:
    """seed + i, which goes on from 0 behind the greatest; without a seed each one has its own."""
    logits = np.zeros((20, 1000), np.float32)

    def tokens(index: int, seed: int | None) -> list[int]:
        params = SamplingParams(temperature=1.0, seed=seed)
        samplers = [sampler_of(params, [], 1000, index)] * 20
        return _native.sample(logits.copy(), samplers, np.arange(20))[0].tolist()  # type: ignore[no-any-return]

    assert tokens(1, 5) == tokens(0, 6) != tokens(0, 5)
    assert tokens(1, 2**64 - 1) == tokens(0, 0) != tokens(0, 2**64 - 1)
    assert tokens(0, None) != tokens(0, None)


def test_as_many_logprobs_as_there_are_tokens() -> None:
    sampler = sampler_of(SamplingParams(logprobs=5), [], 3)
    tops = _native.sample(np.zeros((1, 3), np.float32), [sampler], np.zeros(1, np.int64))[2]
    assert (tops >= 0).sum() == 3
