"""The words of a request: seeds, stops, limits, several answers, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ingot
from ingot.engine.session import Engine
from ingot.errors import RequestError, TooLongError
from ingot.llm.llm import LLM
from tests.llm.pico import idle


def test_a_seed_decides_and_no_seed_varies(llm: LLM) -> None:
    words: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0}
    first, second = (llm.generate("import", seed=5, **words).token_ids for _ in range(2))
    assert first == second
    assert len({tuple(llm.generate("import", **words).token_ids) for _ in range(4)}) > 1


def test_token_ids_are_taken_as_they_are(llm: LLM) -> None:
    ids = llm.tokenizer.encode("import os")
    assert ids[0] == 0
    text = llm.generate("import os", max_tokens=8)
    assert llm.generate(ids, max_tokens=8).token_ids == text.token_ids
    assert llm.generate(np.array(ids), max_tokens=8).token_ids == text.token_ids  # type: ignore[call-overload]
    for both in ([ids, "import os"], [np.array(ids), tuple(ids)]):
        assert [c.token_ids for c in llm.generate(both, max_tokens=8)] == [text.token_ids] * 2  # type: ignore[arg-type]
    assert llm.generate(ids[1:], max_tokens=8).prompt_tokens == len(ids) - 1


def test_stop_strings_and_ids(llm: LLM) -> None:
    free = llm.generate("def f(x):", max_tokens=40)
    stop = free.text[10:14]
    done = llm.generate("def f(x):", max_tokens=40, stop=[stop, "never this"])
    assert (done.text, done.finish_reason) == (free.text[: free.text.index(stop)], "stop")
    assert done.token_ids == free.token_ids[: len(done.token_ids)]
    assert stop in llm.tokenizer.decode(done.token_ids)
    assert stop not in llm.tokenizer.decode(done.token_ids[:-1])
    end = free.token_ids[7]
    done = llm.generate("def f(x):", max_tokens=40, stop_ids=[end])
    assert done.token_ids == free.token_ids[: free.token_ids.index(end)]
    assert done.finish_reason == "stop"
    assert idle(llm)


def test_the_context_ends_a_request(engine: Engine) -> None:
    with LLM(engine, threads=1, context_length=20) as model:
        done = model.generate([0, 5, 6], max_tokens=1000, ignore_end=True)
        assert (len(done.token_ids), done.finish_reason) == (17, "length")
        assert model.generate([0] * 19, max_tokens=5, ignore_end=True).completion_tokens == 1
        with pytest.raises(TooLongError, match="20 tokens and the context holds 20"):
            model.generate([0] * 20)
    with pytest.raises(RequestError, match="context_length"):
        LLM(engine, context_length=2000)


@pytest.mark.parametrize(
    ("prompt", "words", "match"),
    [
        ([], {}, "empty"), ([4096], {}, "4096 is no token id"), ([-1], {}, "-1"), ([0.5], {}, "integers"),
        (b"abc", {}, "integers"),
        (["a", 5], {}, "sequence of integers"), ("a\ud800", {}, "surrogate"), ("x", {"temperature": -1}, "temperature"),
        (None, {}, "sequence of integers"), ("x", {"max_new_tokens": 1}, "max_new_tokens: did you mean max_tokens"),
        ("x", {"heat": 1}, "unknown sampling word"), ("x", {"params": {}}, "SamplingParams"),
        ("x " * 3000, {}, "context"), ([0] * 1024, {}, "context"),
    ],
    ids=lambda v: repr(v)[:20],
)  # fmt: skip
def test_bad_requests_are_refused(llm: LLM, prompt: Any, words: dict[str, Any], match: str) -> None:
    with pytest.raises(RequestError, match=match):
        llm.generate(prompt, **words)
    with pytest.raises(RequestError, match=match):
        llm.stream(prompt, **words)
    assert llm.generate("x", max_tokens=2).completion_tokens == 2


def test_sampling_params_may_stand_behind_the_prompt(llm: LLM) -> None:
    """As the users of other libraries write it."""
    params = ingot.SamplingParams(max_tokens=4, temperature=0.8, seed=3)
    wanted = llm.generate("import os", max_tokens=4, temperature=0.8, seed=3).token_ids
    assert llm.generate("import os", params).token_ids == llm.generate(["import os"], params)[0].token_ids == wanted
    stream = llm.stream("import os", params)
    assert "".join(piece.text for piece in stream) == llm.generate("import os", params=params).text
    with pytest.raises(RequestError, match="params takes a SamplingParams, and no other"):
        llm.generate("import os", params, max_tokens=5)


def test_bad_scores_are_refused(llm: LLM) -> None:
    for text, window, match in (
        ("", None, "two tokens"),
        ([5], None, "two tokens"),
        ("abc def", 500, "too few"),
        ("abc def", 0, "window"),
        ("abc def", 2000, "window"),
        ([5, 9999], None, "token id"),
    ):
        with pytest.raises(RequestError, match=match):
            llm.score(text, window)  # type: ignore[arg-type]


def test_n_answers_share_their_prompt(llm: LLM) -> None:
    """The prompt is computed once; answer i is what seed + i gives alone."""
    prompt = list(range(40, 90))
    cache = llm._loop._scheduler.cache
    cache.forget()
    before = cache.tokens_found
    answers = llm.generate(prompt, n=3, temperature=1.0, seed=11, max_tokens=8)
    assert isinstance(answers, list)
    assert cache.tokens_found - before == 2 * 48
    assert [a.cached_tokens for a in answers] == [0, 48, 48]
    for i, answer in enumerate(answers):
        alone = llm.generate(prompt, temperature=1.0, seed=11 + i, max_tokens=8)
        assert (answer.token_ids, answer.logprobs) == (alone.token_ids, alone.logprobs)
    both = llm.generate([prompt, prompt[:5]], n=2, max_tokens=3)
    assert [c.prompt_tokens for c in both] == [50, 50, 5, 5]
    with pytest.raises(RequestError, match="one answer, not of n = 2"):
        llm.stream(prompt, n=2)


def test_top_logprobs_penalties_and_bad_words(llm: LLM) -> None:
    plain = llm.generate("def add(a, b):", max_tokens=12, logprobs=4)
    assert all(len(top) == 4 for top in plain.top_logprobs)
    for token, logprob, top in zip(plain.token_ids, plain.logprobs, plain.top_logprobs, strict=True):
        assert next(iter(top)) == token and top[token] == logprob
    with llm.stream("def add(a, b):", max_tokens=12, logprobs=4) as stream:
        pieces = list(stream)
    assert [top for piece in pieces for top in piece.top_logprobs] == plain.top_logprobs
    assert [value for piece in pieces for value in piece.logprobs] == plain.logprobs
    banned = llm.generate("def add(a, b):", max_tokens=12, bad_words=[[plain.token_ids[0]]])
    assert plain.token_ids[0] not in banned.token_ids
    assert "return" in llm.generate("def add(a, b):", max_tokens=20).text
    assert "return" not in llm.generate("def add(a, b):", max_tokens=20, bad_words=["return"]).text
    biased = llm.generate("x", max_tokens=3, logit_bias={77: 100.0}, ignore_end=True)
    assert biased.token_ids == [77, 77, 77]
    spread = llm.generate("x", max_tokens=40, logit_bias={77: 3.0}, frequency_penalty=2.0, presence_penalty=2.0)
    assert max(spread.token_ids.count(t) for t in spread.token_ids) < 20
    with pytest.raises(RequestError, match="the model has tokens 0 to"):
        llm.generate("x", logit_bias={10**6: 1.0})
    with pytest.raises(RequestError, match="priority must be"):
        llm.generate("x", priority=1000)
