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
from ingot.llm.kv_cache import KVCache
from ingot.llm.loop import EngineLoop
from ingot.llm.runner import Job, Runner
from ingot.llm.sampling import SamplingParams
from ingot.llm.scheduler import Scheduler

VOCABULARY = 97
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
        return {"logits": logits}


def make(blocks: int, size: int, budget: int, running: int) -> EngineLoop:
    cache = KVCache(blocks, size)
    session: Any = FakeSession(size, blocks)
    runner = Runner(session, cache, VOCABULARY, budget, running, LONGEST)
    return EngineLoop(Scheduler(cache, budget, running, max(1, budget // 2)), runner)


def expected(prompt: list[int], length: int) -> list[int]:
    tokens = list(prompt)
    while len(tokens) < length:
        tokens.append(next_token(tokens))
    return tokens


def job(prompt: list[int], length: int, wakeups: SimpleQueue[Job], **words: Any) -> Job:
    stop_ids = frozenset(words.pop("stop_ids", ()))
    return Job(prompt, length, SamplingParams(), stop_ids, wakeups, words.pop("eager", False))


REQUESTS = st.lists(
    st.tuples(
        st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=40),
        st.integers(0, 20),
        st.booleans(),
        st.booleans(),
    ),
    min_size=1,
    max_size=10,
)


@given(REQUESTS, st.integers(2, 12), st.sampled_from([2, 8, 16]), st.integers(3, 30), st.integers(1, 3))
def test_everybody_gets_what_they_would_have_got_alone(
    requests: list[tuple[list[int], int, bool, bool]], blocks: int, size: int, budget: int, running: int
) -> None:
    loop = make(blocks, size, budget, running)
    wakeups: SimpleQueue[Job] = SimpleQueue()
    jobs: list[Job] = []
    try:
        for prompt, more, eager, abort in requests:
            if more:
                new = job(prompt, len(prompt) + more, wakeups, eager=eager)
            else:
                new = Job.scoring(prompt, expected(prompt, len(prompt) + 1)[1:], wakeups)
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
        else:
            assert one.finish_reason == ("scored" if one.scored else "length")
            assert one.tokens == whole
            assert len(one.logprobs) == (one.prompt_length if one.scored else one.max_length - one.prompt_length)


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
    scored = Job.scoring(prompt, expected(prompt, 7)[1:], wakeups)
    loop.submit(older, scored)
    while not (older.finish_reason and scored.finish_reason):
        wakeups.get(timeout=60)
    loop.close()
    assert loop._scheduler.preemptions
    assert older.tokens == expected([1, 2], 10)
    alone = make(blocks=5, size=2, budget=3, running=2)
    again = Job.scoring(prompt, scored.targets, wakeups)
    alone.submit(again)
    while not again.finish_reason:  # the queue may still hold wakeups of the others
        wakeups.get(timeout=60)
    alone.close()
    assert scored.logprobs == again.logprobs
    assert len(scored.logprobs) == 6
