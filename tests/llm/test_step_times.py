"""How many tokens of prompts a step may have: found by times of machines that are written down here."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from ingot.llm.kv_cache import KVCache
from ingot.llm.scheduler import Request, Scheduler
from ingot.llm.step_times import LEAST, STEPS_UNTIL_ALONE, StepTimes

Machine = Callable[[int], float]  # tokens of a step → seconds


def tiles(tokens: int) -> float:
    """Weights are read in 10 ms; 16 rows take as long as one, and 0.4 ms of arithmetic."""
    return max(0.010, 0.0004 * 16 * -(-tokens // 16))


MACHINES: dict[str, tuple[Machine, int, int]] = {  # and the fewest and most tokens that take half again as long
    "memory first": (tiles, 16, 32), "arithmetic": (lambda tokens: 0.001 + 0.002 * tokens, 4, 5),
    "a launch": (lambda tokens: 0.004 + 1e-6 * tokens, 500, 512), "no room": (lambda tokens: 0.01 * tokens, 4, 4),
}  # fmt: skip


@pytest.mark.parametrize("first", [12, 512])
@pytest.mark.parametrize("name", MACHINES)
def test_a_prompt_now_and_then_fills_half_a_step(name: str, first: int) -> None:
    """One step in four has prompts. Measured behind the first 60 of those, with noise of a tenth; one step in 50 takes
    three times as long."""
    machine, fewest, most = MACHINES[name]
    times, noise, seen = StepTimes(first, 512), random.Random(0), []
    decoded = 8
    for i in range(1600):
        prompts = times.tokens() if i >= 5 and i % 4 == 0 else 0
        factor = 3 if noise.random() < 0.02 else 1 + 0.1 * noise.random()
        times.took(decoded, prompts, machine(decoded + prompts) * factor)
        if i > 240 and prompts:
            seen.append(prompts)
    middle = sorted(seen)[len(seen) // 2]
    assert fewest <= middle <= most
    assert all(LEAST <= n <= 512 for n in seen)


@pytest.mark.parametrize("delayed", [0, 1, 3])
def test_a_step_that_something_else_delays_makes_no_later_one_longer(delayed: int) -> None:
    """The machine stands still for five seconds in a step without prompts, the first of all or a later one."""
    times, alone = StepTimes(5, 512), 0
    for i in range(3000):
        prompts = times.tokens() if i else 0
        seconds = 0.010 + 0.0015 * (4 + prompts)
        assert seconds <= 0.06, i
        if not prompts:
            seconds += 5 * (alone == delayed)
            alone += 1
        times.took(4, prompts, seconds, 2)
    assert alone > delayed + 2


@pytest.mark.parametrize("prompts", [0, 50])
def test_a_step_that_had_ended_when_it_was_read_makes_no_later_one_shorter(prompts: int) -> None:
    """The host stood still: one step took too long, as it was read, and the next one next to nothing, or nothing."""
    times = StepTimes(50, 2048)
    for _ in range(20):
        times.took(16, 0, 0.010)
    for at in range(3000):
        count = times.tokens()
        takes = 0.010 + 0.0001 * count
        if at % 300 == 50:
            times.took(16, prompts, takes + 0.02, 3)
            times.took(16, prompts, 0.0, 3)
        times.took(16, count, takes, 3)
        assert at < 10 or not times.tokens() or 45 <= times.tokens() <= 56, at  # 0: one without prompts is due


def test_steps_that_all_take_longer_are_believed() -> None:
    """Contexts of four times the length, from one step to the next."""
    times = StepTimes(64, 512)
    for i in range(4000):
        prompts = times.tokens() if i else 0
        times.took(4, prompts, (0.010 if i < 1000 else 0.040) + 0.0001 * prompts)
    assert 190 <= times.tokens() <= 201


def test_few_prompts_that_wait_fill_half_a_step() -> None:
    """One for nine answers, all the time."""
    times = StepTimes(12, 512)
    times.took(4, 0, 0.009)
    for i in range(3000):
        prompts = times.tokens() if i >= 5 else 0
        times.took(9, prompts, 0.010 + 0.0001 * prompts, 1)
    assert 45 <= times.tokens() <= 51


def test_where_many_prompts_wait_all_the_time_a_step_takes_two_and_a_half_times_as_long() -> None:
    times, seen = StepTimes(12, 512), []
    times.took(2, 0, 0.009)
    for i in range(3000):
        prompts = times.tokens() if i >= 5 else 0
        seconds = 0.010 + 0.0001 * prompts
        times.took(4, prompts, seconds, 1)
        seen.append(seconds / 0.010)
    assert all(seen[i] <= 1.1 * max(1.5, 1.3 * sum(seen[:i]) / max(i, 1)) for i in range(256)), "they grow slowly"
    assert 2.4 < max(seen) <= 2.51 and seen[-1] > 2.4


@pytest.mark.parametrize(
    ("run", "compiling", "fewest", "most"),
    [
        (lambda tokens: max(0.030, 0.0022 * tokens), 0.0, 1.4, 1.6),  # waits for memory, then for arithmetic
        (lambda tokens: 0.006 + 3e-5 * tokens, 0.0, 2.4, 2.6),
        (lambda tokens: 0.006 + 3e-5 * tokens, 30.0, 2.4, 2.6),
    ],
)
def test_steps_grow_only_where_longer_ones_compute_more_tokens_a_second(
    run: Machine, compiling: float, fewest: float, most: float
) -> None:
    """8 answers beside many prompts that always wait, after a step of prompts alone (with kernels compiled in it)."""
    times, noise, seen = StepTimes(12, 512), random.Random(0), []
    times.took(0, 512, run(512) + compiling)
    times.took(4, 0, run(4))
    for i in range(3000):
        prompts = times.tokens() if i >= 5 else 0
        seconds = run(8 + prompts)
        times.took(8, prompts, seconds * (1 + 0.1 * noise.random()), 16)
        if prompts and i > 1500:
            assert prompts >= LEAST
            seen.append(seconds / run(8))
    assert fewest <= sorted(seen)[len(seen) // 2] <= most
    assert max(seen) <= 1.1 * most


def test_answers_that_cost_as_much_together_are_not_slowed_for_more() -> None:
    """A step of 4 decodes takes 1.3 times as long as one of 2."""
    times = StepTimes(12, 512)
    times.took(2, 0, 0.0077)
    for i in range(3000):
        prompts = times.tokens() if i >= 5 else 0
        times.took(4, prompts, 0.010 + 0.0001 * prompts, 1)
    assert 45 <= times.tokens() <= 51


def test_of_many_clients_few_wait() -> None:
    """32 clients ask again as soon as they are answered: 32 tokens in, 16 out. A step of 32 decodes takes 7 ms, and 6
    more for the prompts that come in the meantime; half as long as its decodes would leave half of them waiting."""
    clients, in_, out = 32, 32, 16
    scheduler: Scheduler[Request] = Scheduler(KVCache(64, 128, reuse=False), 512, clients, 1, max_mixed_tokens=64)
    times, reading, asked = StepTimes(64, 512), [], 0
    for step in range(3000):
        while len(scheduler.running) + len(scheduler.waiting) < clients:
            request = Request(asked, [0] * in_, in_ + out)
            request.streamed, asked = True, asked + 1
            scheduler.add(request)
        plan = scheduler.plan()
        decoded = plan.tokens - plan.prompt_tokens
        scheduler.advance(plan)
        seconds = 0.006 + 0.00003 * decoded + 0.0001 * plan.prompt_tokens
        times.took(decoded, plan.prompt_tokens, seconds, plan.prompts_left)
        scheduler.max_mixed_tokens = times.tokens()
        for chunk in plan.chunks:
            scheduler.accept(chunk, [0] if chunk.ends else [])
            if len(chunk.request.tokens) == in_ + out:
                scheduler.remove(chunk.request)
        if step > 1500:
            reading.append(decoded)
    assert sorted(reading)[len(reading) // 2] > 24


def test_contexts_that_grow_are_not_taken_for_prompts() -> None:
    """What decodes take alone is looked at again while prompts never end."""
    times, alone = StepTimes(12, 512), 0
    for i in range(2000):
        prompts = times.tokens() if i >= 5 else 0
        alone += not prompts
        times.took(4, prompts, 0.010 * (1 + i / 500) + 0.0004 * prompts, 1)
    assert alone - 5 == 1995 // (STEPS_UNTIL_ALONE + 1)
    assert 37 < times.tokens() <= 73  # 0.5 × 50 ms at 0.4 ms each


def test_decodes_are_measured_alone_first() -> None:
    """The first step with prompts is followed by one without, and so is the first of twice as many decodes."""
    times = StepTimes(12, 512)
    times.took(0, 400, 9.0)
    assert times.tokens() == 12
    times.took(3, 12, 1.0)
    assert times.tokens() == 0
    times.took(3, 0, 0.8)
    assert times.tokens() == 12
    times.took(2, 12, 1.2)
    assert times.tokens() == 12
    times.took(4, 12, 1.2)
    assert times.tokens() == 0


def test_short_prompts_do_not_raise_the_limit_of_long_ones() -> None:
    times = StepTimes(64, 512)
    times.took(2, 0, 0.01)
    for _ in range(50):
        times.took(2, 3, 0.01)
    assert times.tokens() == 64
    times.took(2, 3, 0.1)
    assert times.tokens() == 64, "it may have been delayed by something else"
    times.took(2, 3, 0.1)
    assert times.tokens() < 64
