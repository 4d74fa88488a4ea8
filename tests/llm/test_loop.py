"""Loop, scheduler and runner together, over a session that computes from the arrays it is given and nothing else."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot import _native
from ingot.backends.device import Choice, Chosen, Device
from ingot.errors import RequestError, TooLongError
from ingot.llm.jobs import Drafter, EmbeddingJob, GenerationJob, Job, Result, Rows, ScoringJob
from ingot.llm.kv_cache import KVCache
from ingot.llm.loop import EngineLoop
from ingot.llm.runner import Runner
from ingot.llm.runner_behind import RunnerBehind
from ingot.llm.sampling import SamplingParams, sampler_of
from ingot.llm.scheduler import Chunk, Scheduler, StepPlan
from ingot.llm.vectors import POOLINGS
from tests.llm.ahead import Ahead
from tests.llm.drafters import Scripted

VOCABULARY = 97
WIDTH = 3
LONGEST = 64
LOGITS = np.random.default_rng(0).standard_normal((VOCABULARY, VOCABULARY)).astype(np.float32)
np.fill_diagonal(LOGITS, 4.5)  # likeliest by far is what comes next, and not the only one


def next_token(tokens: list[int]) -> int:
    """The fake model: what comes after these tokens."""
    value = 7
    for token in tokens:
        value = (value * 31 + token + 1) % VOCABULARY
    return value


def drawn(row: np.ndarray, temperature: float, top_k: int, top_p: float, min_p: float, uniform: float) -> int:
    """A token as the sampler of the core chooses it."""
    if temperature == 0:
        return int(row.argmax())
    weights = np.exp((row - row.max()) / temperature).astype(np.float64)
    order = np.arange(len(row))
    if top_k < len(row) or top_p < 1 or min_p > 0:
        order = np.lexsort((order, -row))[:top_k]
        before = weights[order].cumsum() - weights[order]
        order = order[(before < (top_p * weights[order].sum() if top_p < 1 else np.inf)) & (weights[order] >= min_p)]
    running = weights[order].cumsum()
    return int(order[min(int((running <= uniform * running[-1]).sum()), len(order) - 1)])


class FakeSession:
    """Keeps tokens by slot and reads contexts through the block table, as attention does with keys and values."""

    def __init__(self, block_size: int, blocks: int) -> None:
        self.block_size = block_size
        self.memory = np.full(blocks * block_size, -1)
        self.chosen = np.zeros(1, np.int64)  # by the last launch

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
        logits = LOGITS[after[feeds["logit_rows"]]]
        states = np.stack([after, after % 7, after / 10], 1).astype(np.float32)
        return {"logits": logits, "hidden": states[feeds["hidden_rows"]]}

    def launch(self, feeds: dict[str, Any], choice: Choice) -> Callable[[], Chosen]:
        """Runs at once, as a device that chooses tokens itself, and tells later."""
        before = np.append(self.chosen, -1)[choice.behind]
        tokens = np.where(choice.behind >= 0, before, feeds["token_ids"])
        found = self.run(feeds | {"token_ids": tokens.astype(np.int32)})
        draws = zip(choice.temperature, choice.top_k, choice.top_p, choice.min_p, choice.uniform, strict=True)
        rows = found["logits"][: len(choice.temperature)]
        self.chosen = np.array([drawn(row, *how) for row, how in zip(rows, draws, strict=True)], np.int64)
        logprobs = _native.log_probs(rows, self.chosen)
        outputs = found | {"logits": found["logits"][list(choice.back)]}
        return partial(Chosen, self.chosen, logprobs, outputs)

    device = Device()
    sample = staticmethod(_native.sample)
    log_probs = staticmethod(_native.log_probs)


class CheckedScheduler(Scheduler[Job]):
    """Looks at itself after every call."""

    def plan(self, drafts: Mapping[int, Sequence[int]] = {}) -> StepPlan[Job]:
        self.check_integrity()
        step = super().plan(drafts)
        self.check_integrity()
        return step

    def accept(self, chunk: Chunk[Job], tokens: Sequence[int] = ()) -> None:
        super().accept(chunk, tokens)
        self.check_integrity()


def scripted(texts: Sequence[Sequence[int]], script: Sequence[bool], count: int = 7) -> Scripted:
    return Scripted(texts, script, VOCABULARY, count)


def make(
    blocks: int, size: int, budget: int, running: int, runner: type[Runner] = Runner, drafter: Drafter | None = None
) -> EngineLoop:
    cache = KVCache(blocks, size)
    session: Any = FakeSession(size, blocks)
    rows = 4 * VOCABULARY * max(1, budget // 2)
    scheduler = CheckedScheduler(cache, budget, running, rows, draft_bytes=4 * VOCABULARY)
    return EngineLoop(scheduler, runner(session, cache, budget, running, LONGEST), drafter)


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


def job(prompt: list[int], length: int, wakeups: SimpleQueue[Job], **words: Any) -> GenerationJob:
    stop_ids, eager = frozenset(words.pop("stop_ids", ())), words.pop("eager", False)
    params = SamplingParams(**words)
    return GenerationJob(prompt, length, params, sampler_of(params, prompt, VOCABULARY), stop_ids, wakeups, eager)


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


@given(
    REQUESTS,
    st.integers(2, 12),
    st.sampled_from([2, 8, 16]),
    st.integers(3, 30),
    st.integers(1, 3),
    st.sampled_from([Runner, Ahead, RunnerBehind]),
    st.none() | st.lists(st.booleans(), min_size=1, max_size=9),
)
def test_everybody_gets_what_they_would_have_got_alone(
    requests: list[tuple[list[int], int | str, bool, bool]],
    blocks: int,
    size: int,
    budget: int,
    running: int,
    runner: type[Runner],
    script: list[bool] | None,
) -> None:
    texts = [expected(prompt, len(prompt) + 20) for prompt, *_ in requests]
    loop = make(blocks, size, budget, running, runner, None if script is None else scripted(texts, script))
    wakeups: SimpleQueue[Job] = SimpleQueue()
    jobs: list[Job] = []
    asked: dict[Job, tuple[list[int], str]] = {}
    try:
        for prompt, what, eager, abort in requests:
            new: Job
            if isinstance(what, int):
                new = job(prompt, len(prompt) + what, wakeups, eager=eager)
            elif what == "score":
                new = ScoringJob(prompt, expected(prompt, len(prompt) + 1)[1:], wakeups, VOCABULARY)
            else:
                new = EmbeddingJob(prompt, what, wakeups, WIDTH)
                asked[new] = prompt, what
            try:
                loop.submit(new)
            except TooLongError:
                assert -(-new.cached_length // size) > blocks
                continue
            jobs.append(new)
            if abort:
                loop.abort(new)
        while not all(one.finish_reason or one.error for one in jobs):
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
        if isinstance(one, ScoringJob):
            assert len(one.logprobs) == one.prompt_length
        elif isinstance(one, GenerationJob):
            assert len(one.logprobs) == one.max_length - one.prompt_length
        elif isinstance(one, EmbeddingJob):
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


class Gated(Runner):
    """Begins no step before it is told to, and notes which prompts each has."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.entered, self.go, self.begun = threading.Semaphore(0), threading.Semaphore(0), []

    def launch(self, step: StepPlan[Job]) -> Callable[[], Sequence[Result]]:
        self.entered.release()
        assert self.go.acquire(timeout=60)
        self.begun.append([chunk.request.tokens[0] for chunk in step.chunks])
        return super().launch(step)


def test_who_came_together_once_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """The wait is long enough here to be for ever; two are as many as run at once, and end it."""
    loop = make(8, 8, 16, 2, Gated)
    runner: Any = loop._runner
    monkeypatch.setattr(loop._times, "shortest_alone", lambda: 1e6)
    wakeups: SimpleQueue[Job] = SimpleQueue()

    def one_step() -> None:
        assert runner.entered.acquire(timeout=60)
        runner.go.release()

    def ended(count: int) -> None:
        assert all(wakeups.get(timeout=60).finish_reason == "length" for _ in range(count))

    loop.submit(job([1], 3, wakeups))
    assert runner.entered.acquire(timeout=60)  # alone before, so its step begins at once
    loop.submit(job([2], 2, wakeups))
    runner.go.release()
    one_step()
    ended(2)
    loop.submit(job([3], 2, wakeups))
    while loop._taken < 3:
        pass
    loop.submit(job([4], 2, wakeups))
    one_step()
    ended(2)
    loop.submit(job([5], 2, wakeups), job([6], 2, wakeups))  # together, and nobody behind them
    one_step()
    ended(2)
    loop.submit(job([7], 2, wakeups))
    one_step()
    ended(1)
    loop.close()
    assert runner.begun == [[1], [1, 2], [3, 4], [5, 6], [7]]


def test_closing_ends_the_wait_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = make(8, 8, 16, 2)
    monkeypatch.setattr(loop._times, "shortest_alone", lambda: 1e6)
    loop._company = True
    wakeups: SimpleQueue[Job] = SimpleQueue()
    loop.submit(job([1], 2, wakeups))
    loop.close()
    assert wakeups.get(timeout=60).finish_reason == "abort"


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
    scored = ScoringJob(prompt, expected(prompt, 7)[1:], wakeups, VOCABULARY)
    loop.submit(older, scored)
    while not (older.finish_reason and scored.finish_reason):
        wakeups.get(timeout=60)
    loop.close()
    assert loop._scheduler.preemptions
    assert older.tokens == expected([1, 2], 10)
    alone = make(blocks=5, size=2, budget=3, running=2)
    again = ScoringJob(prompt, scored.targets, wakeups, VOCABULARY)
    alone.submit(again)
    while not again.finish_reason:  # the queue may still hold wakeups of the others
        wakeups.get(timeout=60)
    alone.close()
    assert scored.logprobs == again.logprobs
    assert len(scored.logprobs) == 6


# ---------------------------------------------------------------------------------------------------------------
# drafts

RIGHT, WRONG = [True], [False]
SCRIPTS = {"right": RIGHT, "wrong": WRONG, "mixed": [True, True, False], "mostly": [True] * 6 + [False]}
PARAMS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 2.0, "seed": 5, "logprobs": 3},
    "filtered": {"temperature": 3.0, "seed": 2**64 - 1, "top_k": 40, "top_p": 0.95, "min_p": 0.001},
    "penalised": {"repetition_penalty": 1.7, "presence_penalty": 1.2, "frequency_penalty": 1.5, "logprobs": 2},
    "seeded and penalised": {"temperature": 1.5, "seed": 9, "frequency_penalty": 2.0, "logit_bias": {3: 2.0}},
}
PROMPTS = [[3, 1, 4, 1, 5, 9], [2, 7], [2, 7, 1, 8, 2, 8, 1, 8, 2, 8, 4, 5, 9, 0, 4], [3, 1, 4, 1, 5, 9, 2, 6]]


def finished(loop: EngineLoop, jobs: Sequence[GenerationJob], wakeups: SimpleQueue[Job]) -> list[Any]:
    """What came of jobs, submitted together; the loop is closed and whole afterwards."""
    loop.submit(*jobs)
    while not all(one.finish_reason or one.error for one in jobs):
        wakeups.get(timeout=60)
    loop.close()
    cache = loop._scheduler.cache
    assert cache.num_free == cache.num_blocks
    return [(one.tokens, one.logprobs, one.top_logprobs, one.finish_reason, one.error) for one in jobs]


def generated(loop: EngineLoop, stop_ids: Sequence[int] = (), **words: Any) -> list[Any]:
    wakeups: SimpleQueue[Job] = SimpleQueue()
    jobs = [job(prompt, len(prompt) + 30, wakeups, stop_ids=stop_ids, **words) for prompt in PROMPTS]
    return finished(loop, jobs, wakeups)


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
@pytest.mark.parametrize("words", PARAMS.values(), ids=PARAMS)
def test_drafts_change_no_bit(words: dict[str, Any], script: list[bool]) -> None:
    """With room for all, in a cache so small that requests are preempted, and with ends in the middle of drafts."""
    plain = generated(make(40, 4, 64, 4), **words)
    texts = [tokens for tokens, *_ in plain]
    drafter = scripted(texts, script)
    assert generated(make(40, 4, 64, 4, drafter=drafter), **words) == plain
    assert drafter.asked == {0, 1, 2, 3} and drafter.forgotten.count(0) == 1 and len(drafter.forgotten) == 4
    small = make(13, 4, 19, 3, drafter=scripted(texts, script, 5))
    assert generated(small, **words) == plain
    assert small._scheduler.preemptions and small._scheduler.cache.tokens_found
    stops = {texts[0][14], texts[1][20], texts[3][31]}
    ended = generated(make(40, 4, 64, 4), stops, **words)
    assert [reason for *_, reason, _ in ended].count("stop") >= 2
    assert generated(make(40, 4, 64, 4, drafter=scripted(texts, script)), stops, **words) == ended


@pytest.mark.parametrize("runner", [Ahead, RunnerBehind])
@pytest.mark.parametrize("words", PARAMS.values(), ids=PARAMS)
def test_a_step_behind_changes_no_bit(words: dict[str, Any], runner: type[Runner]) -> None:
    plain = generated(make(40, 4, 64, 4), **words)
    assert generated(make(40, 4, 64, 4, runner), **words) == plain
    small = make(13, 4, 19, 3, runner)
    assert generated(small, **words) == plain
    assert small._scheduler.preemptions
    stops = {plain[0][0][14], plain[1][0][20]}
    assert generated(make(40, 4, 64, 4, runner), stops, **words) == generated(make(40, 4, 64, 4), stops, **words)


@pytest.mark.parametrize("count", range(1, 8))
def test_right_drafts_save_steps_and_wrong_ones_cost_none(count: int) -> None:
    for prompt in PROMPTS:
        text = expected(prompt, len(prompt) + 40)
        steps = {}
        for name, script in {"none": [], **SCRIPTS}.items():
            wakeups: SimpleQueue[Job] = SimpleQueue()
            loop = make(40, 4, 64, 4, drafter=scripted([text] if script else [], script or RIGHT, count))
            ((tokens, *_),) = finished(loop, [job(prompt, len(text), wakeups)], wakeups)
            assert tokens == text
            steps[name] = loop.stats().steps
        assert steps["none"] == steps["wrong"] == 40
        assert steps["right"] == 1 + -(-39 // (count + 1))  # the prompt's step chooses one, every other count + 1
        assert steps["right"] <= steps["mostly"] <= steps["mixed"] <= 40


def test_what_is_rejected_is_never_found() -> None:
    """Wrong drafts fill whole blocks; a later request with just these tokens has to compute them all."""
    text = expected(PROMPTS[0], 30)
    drafter = scripted([text], WRONG)
    loop = make(40, 2, 64, 4, drafter=drafter)
    wakeups: SimpleQueue[Job] = SimpleQueue()
    first = job(PROMPTS[0], 30, wakeups)
    loop.submit(first)
    wakeups.get(timeout=60)
    rejected = [*text[:10], *((token + 1) % VOCABULARY for token in text[10:17])]
    second = job(rejected, 24, wakeups)
    loop.submit(second)
    wakeups.get(timeout=60)
    loop.close()
    assert (first.tokens, second.tokens) == (text, expected(rejected, 24))
    assert second.found == 10


def test_drafts_behind_an_end_are_not_computed() -> None:
    """Nor is a token chosen there, where nothing may be left to choose: all but the end is forbidden after it."""
    prompt = [1, 2]
    text = expected(prompt, 8)
    params = SamplingParams()
    words = [[text[5], token] for token in range(VOCABULARY)]
    sampler = sampler_of(params, prompt, VOCABULARY, bad_words=words)
    wakeups: SimpleQueue[Job] = SimpleQueue()
    one = GenerationJob(prompt, 20, params, sampler, frozenset([text[5]]), wakeups, False)
    loop = make(40, 4, 64, 4, drafter=scripted([text], RIGHT))
    ((tokens, logprobs, _, reason, error),) = finished(loop, [one], wakeups)
    assert (tokens, len(logprobs), reason, error) == (text[:5], 3, "stop", None)


def test_a_drafter_that_fails_ends_whom_it_was_asked_about() -> None:
    class Failing(Scripted):
        def propose(self, jobs: Sequence[Job]) -> list[list[int]]:
            if len(jobs[0].tokens) == 6:
                raise ZeroDivisionError("on purpose")
            return [[]] * (len(jobs) + (len(jobs[0].tokens) == 12))

    loop = make(40, 4, 64, 4, drafter=Failing([], RIGHT, VOCABULARY))
    wakeups: SimpleQueue[Job] = SimpleQueue()
    for prompt, match in (([1, 2], "ZeroDivisionError: on purpose"), (list(range(9)), "ValueError")):
        one = job(prompt, 20, wakeups)
        loop.submit(one)
        wakeups.get(timeout=60)
        assert match in str(one.error) and one.finish_reason is None
    last = job(list(range(20)), 25, wakeups)
    loop.submit(last)
    wakeups.get(timeout=60)
    loop.close()
    assert last.tokens == expected(list(range(20)), 25)


def test_a_step_behind_may_fail() -> None:
    """The jobs of the step that failed end with its error, those of the next one too if it needed that; others go on.
    """

    class Failing(Ahead):
        def launch(self, step: StepPlan[Job]) -> Callable[[], list[Result]]:
            results = super().launch(step)
            if all(chunk.request.prompt_length != 5 or chunk.start < 9 for chunk in step.chunks):
                return results

            def fail() -> list[Result]:
                raise MemoryError

            return fail

    loop = make(40, 4, 64, 4, Failing)
    wakeups: SimpleQueue[Job] = SimpleQueue()
    bad, good = job([1, 2, 3, 4, 5], 30, wakeups), job([1, 2, 3], 20, wakeups)
    loop.submit(bad)
    wakeups.get(timeout=60)
    loop.submit(good)
    wakeups.get(timeout=60)
    loop.close()
    assert "out of memory" in str(bad.error) and bad.tokens == expected([1, 2, 3, 4, 5], len(bad.tokens))
    assert good.tokens == expected([1, 2, 3], 20)
    loop._scheduler.check_integrity()
    assert loop._scheduler.cache.num_free == 40


class Observed(GenerationJob):
    """Generates, and wants of every position the log probability of a token and the hidden states, too."""

    def rows(self, chunk: Chunk[Any]) -> Rows:
        known = self.tokens[chunk.start : chunk.start + chunk.count]
        return super().rows(chunk)._replace(targets=known, states=chunk.count)

    def take(self, chunk: Chunk[Any], result: Result) -> tuple[Sequence[int], str | None]:
        assert result.states is not None
        for place, (score, states) in enumerate(zip(result.scores, result.states, strict=True), chunk.start):
            after = next_token(self.tokens[: place + 1])
            logits = LOGITS[after].astype(np.float64)
            wanted = logits[self.tokens[place]] - np.log(np.exp(logits).sum())
            assert abs(score - wanted) < 1e-5 and states.tolist() == pytest.approx([after, after % 7, after / 10])
        self.seen += len(result.scores)
        return super().take(chunk, result)

    seen = 0


def test_a_job_may_want_everything_at_once() -> None:
    """Even of a step that is full to the last token."""
    wakeups: SimpleQueue[Job] = SimpleQueue()
    prompt = list(range(16))
    params = SamplingParams()
    one = Observed(prompt, 20, params, sampler_of(params, prompt, VOCABULARY), frozenset(), wakeups, False)
    one.row_bytes = 4 * VOCABULARY
    loop = make(40, 4, 8, 4)
    loop._scheduler.max_row_bytes = 8 * one.row_bytes
    ((tokens, _, _, reason, error),) = finished(loop, [one], wakeups)
    assert (tokens, reason, error) == (expected(prompt, 20), "length", None)
    assert one.seen == 19


def test_a_prompt_whose_answer_ends_at_once_is_found_later() -> None:
    prompt = list(range(9))
    wakeups: SimpleQueue[Job] = SimpleQueue()
    loop = make(40, 4, 64, 4)
    first, second = job(prompt, 20, wakeups, stop_ids=[next_token(prompt)]), job(prompt, 20, wakeups)
    for one in (first, second):
        loop.submit(one)
        wakeups.get(timeout=60)
    loop.close()
    assert (first.finish_reason, first.tokens, second.found) == ("stop", prompt, 8)


def test_a_job_that_fails_ends_alone() -> None:
    class Failing(EmbeddingJob):
        def take(self, chunk: Chunk[Any], result: Result) -> tuple[Sequence[int], str | None]:
            raise ZeroDivisionError("on purpose")

    wakeups: SimpleQueue[Job] = SimpleQueue()
    loop = make(40, 4, 64, 4)
    bad, good = Failing([1, 2, 3], "mean", wakeups, WIDTH), job([1, 2, 3], 10, wakeups)
    loop.submit(bad, good)
    for _ in range(2):
        wakeups.get(timeout=60)
    loop.close()
    assert "ZeroDivisionError: on purpose" in str(bad.error) and bad.finish_reason is None
    assert (good.finish_reason, good.tokens) == ("length", expected([1, 2, 3], 10))
    assert loop._scheduler.cache.num_free == 40


def test_who_comes_while_the_loop_ends_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fault strikes while one job runs and another one has not been looked at."""
    loop = make(40, 4, 64, 4)
    planning, both = threading.Event(), threading.Event()

    def fail(drafts: Any) -> Any:
        planning.set()
        assert both.wait(60)
        raise ZeroDivisionError("on purpose")

    monkeypatch.setattr(loop._scheduler, "plan", fail)
    wakeups: SimpleQueue[Job] = SimpleQueue()
    jobs = [job([1], 9, wakeups), job([2], 9, wakeups)]
    loop.submit(jobs[0])
    assert planning.wait(60)
    loop.submit(jobs[1])
    both.set()
    assert {wakeups.get(timeout=60) for _ in jobs} == set(jobs)
    loop.close()
    assert wakeups.empty()
    assert all("the engine loop has ended: ZeroDivisionError" in str(one.error) for one in jobs)
