"""Loop, scheduler and runner together, over a session that computes from the arrays it is given and nothing else."""

from __future__ import annotations

import os
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.errors import RequestError, TooLongError
from ingot.llm.jobs import Embedding, Generation, Job, Scoring
from ingot.llm.kv_cache import KVCache
from ingot.llm.loop import EngineLoop
from ingot.llm.runner import Runner
from ingot.llm.sampling import SamplingParams
from ingot.llm.scheduler import Scheduler
from ingot.llm.vectors import POOLINGS

VOCABULARY = 97
WIDTH = 3
LONGEST = 64


def next_token(tokens: list[int]) -> int:
    """The fake model: what comes after these tokens."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % VOCABULARY
    return value


class FakeSession:
    """Keeps tokens by slot and reads contexts through the block table, as attention does with keys and values."""

    def __init__(self, block_size: int, blocks: int) -> None:
        self.block_size = block_size
        self.memory = np.full(blocks * block_size, -1)

    def run(self, feeds: dict[str, Any]) -> dict[str, Any]:
        assert all(array.dtype == np.int32 for array in feeds.values())
        tokens, positions, start = feeds["token_ids"], feeds["positions"], feeds["query_start"]
        assert len(feeds["slot"]) == len(positions) == len(tokens) == start[-1]
        assert len(start) - 1 == len(feeds["context_len"]) == len(feeds["block_table"])
        assert len(set(feeds["slot"].tolist())) == len(tokens)
        self.memory[feeds["slot"]] = tokens
        after = np.zeros(len(tokens), np.int64)
        for table, length, begin, end in zip(
            feeds["block_table"], feeds["context_len"], start, start[1:], strict=False
        ):
            assert positions[begin:end].tolist() == list(range(length - (end - begin), length))
            at = np.arange(length)
            context = self.memory[table[at // self.block_size] * self.block_size + at % self.block_size].tolist()
            for row in range(begin, end):
                after[row] = next_token(context[: positions[row] + 1])
        logits = np.zeros((len(feeds["logit_rows"]), VOCABULARY), np.float32)
        logits[np.arange(len(logits)), after[feeds["logit_rows"]]] = 50
        states = np.stack([after, after % 7, after / 10], 1).astype(np.float32)
        return {"logits": logits, "hidden": states[feeds["hidden_rows"]]}


def make(blocks: int, size: int, budget: int, running: int) -> EngineLoop:
    cache = KVCache(blocks, size)
    session: Any = FakeSession(size, blocks)
    runner = Runner(session, cache, VOCABULARY, budget, running, LONGEST)
    return EngineLoop(Scheduler(cache, budget, running, 4 * VOCABULARY * max(1, budget // 2)), runner)


def expected(prompt: list[int], length: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < length:
        tokens.append(next_token(tokens))
    return tokens


def vector(prompt: list[int], how: str) -> np.ndarray:
    """Of a text, by itself and in one piece."""
    after = np.array([next_token(prompt[: i + 1]) for i in range(len(prompt))])
    states = np.stack([after, after % 7, after / 10], 1).astype(np.float32)
    if how == "mean":
        return np.add.accumulate(states)[-1] / np.float32(len(prompt))
    return {"last": states[-1], "cls": states[0], "max": states.max(0)}[how]


def job(prompt: list[int], length: int, wakeups: SimpleQueue[Job], **words: Any) -> Generation:
    stop_ids = frozenset(words.pop("stop_ids", ()))
    return Generation(prompt, length, SamplingParams(), stop_ids, wakeups, words.pop("eager", False))


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
        st.one_of(st.integers(1, 20), st.sampled_from(["score", *POOLINGS])),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=10,
)


@given(REQUESTS, st.integers(2, 12), st.sampled_from([2, 8, 16]), st.integers(3, 30), st.integers(1, 3))
def test_everybody_gets_what_they_would_have_got_alone(
    requests: list[tuple[list[int], int | str, bool, bool]], blocks: int, size: int, budget: int, running: int
) -> None:
    loop = make(blocks, size, budget, running)
    wakeups: SimpleQueue[Job] = SimpleQueue()
    jobs: list[Job] = []
    asked: dict[Job, tuple[list[int], str]] = {}
    try:
        for prompt, what, eager, abort in requests:
            new: Job
            if isinstance(what, int):
                new = job(prompt, len(prompt) + what, wakeups, eager=eager)
            elif what == "score":
                new = Scoring(prompt, expected(prompt, len(prompt) + 1)[1:], wakeups, VOCABULARY)
            else:
                new = Embedding(prompt, what, wakeups, WIDTH)
                asked[new] = prompt, what
            try:
                loop.submit(new)
            except TooLongError:
                assert -(-new.cached_length // size) > blocks
                continue
            jobs.append(new)
            if abort:
                loop.abort(new)
        while not all(one.finish_reason for one in jobs):
            wakeups.get(timeout=60)
    finally:
        loop.close()
    scheduler = loop._scheduler
    scheduler.check_integrity()
    assert scheduler.cache.num_free == blocks
    for one in jobs:
        assert one.error is None
        whole = expected(one.tokens[: one.prompt_length], one.max_length)
        if one.finish_reason == "abort":
            assert one.tokens == whole[: len(one.tokens)]
            continue
        assert one.finish_reason == ("length" if one.generates else "done")
        assert one.tokens == whole
        if isinstance(one, Scoring):
            assert len(one.logprobs) == one.prompt_length
        elif isinstance(one, Generation):
            assert len(one.logprobs) == one.max_length - one.prompt_length
        elif isinstance(one, Embedding):
            np.testing.assert_array_equal(one.vector(), vector(*asked[one]))


def test_the_end_token_is_not_among_the_tokens() -> None:
    loop = make(8, 8, 16, 4)
    wakeups: SimpleQueue[Job] = SimpleQueue()
    end = expected([1, 2], 6)[5]
    one = job([1, 2], 40, wakeups, stop_ids=[end])
    loop.submit(one)
    wakeups.get(timeout=60)
    loop.close()
    assert (one.finish_reason, one.tokens) == ("stop", expected([1, 2], 5))
    assert len(one.logprobs) == 3


def test_all_jobs_of_a_submission_or_none() -> None:
    loop = make(2, 8, 16, 4)
    wakeups: SimpleQueue[Job] = SimpleQueue()
    with pytest.raises(TooLongError):
        loop.submit(job([1], 5, wakeups), job([1], 60, wakeups))
    loop.close()
    assert wakeups.empty()
    assert not loop._scheduler


def test_a_forked_child_is_told() -> None:
    loop = make(2, 8, 16, 4)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        answer = b"no error"
        try:
            loop.submit(job([1], 5, SimpleQueue()))
        except RequestError as e:
            answer = str(e).encode()
        os.write(write, answer)
        os._exit(0)
    os.waitpid(child, 0)
    assert b"parent of this process" in os.read(read, 1000)
    os.close(read)
    os.close(write)
    loop.close()


def test_a_preempted_score_is_the_same_score() -> None:
    loop = make(blocks=5, size=2, budget=3, running=2)  # one row of scores a step
    wakeups: SimpleQueue[Job] = SimpleQueue()
    prompt = [3, 1, 4, 1, 5, 9]
    older = job([1, 2], 10, wakeups)
    scored = Scoring(prompt, expected(prompt, 7)[1:], wakeups, VOCABULARY)
    loop.submit(older, scored)
    while not (older.finish_reason and scored.finish_reason):
        wakeups.get(timeout=60)
    loop.close()
    assert loop._scheduler.preemptions
    assert older.tokens == expected([1, 2], 10)
    alone = make(blocks=5, size=2, budget=3, running=2)
    again = Scoring(prompt, scored.targets, wakeups, VOCABULARY)
    alone.submit(again)
    while not again.finish_reason:  # the queue may still hold wakeups of the others
        wakeups.get(timeout=60)
    alone.close()
    assert scored.logprobs == again.logprobs
    assert len(scored.logprobs) == 6
