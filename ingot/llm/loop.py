"""The engine loop: the one thread that plans, runs and records steps. Others talk to it by `submit` and `abort`."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from time import perf_counter
from typing import NamedTuple, Protocol

from ingot.errors import IngotError, MemoryLimitError, RequestError
from ingot.llm.jobs import Drafter, Job, Result
from ingot.llm.scheduler import Scheduler, Status, StepPlan
from ingot.llm.step_times import StepTimes

# Of the time of a step of decodes: for how long the first step after a pause waits for the next request, and for all.
NEXT_REQUEST, ALL_REQUESTS = 0.1, 0.5


@dataclass(frozen=True)
class Stats:
    """How busy an engine loop is. Blocks are of the KV cache: used ones belong to requests, idle ones can be
    found by their tokens; of the tokens asked for, those found had been computed before."""

    running: int
    waiting: int
    steps: int
    preemptions: int
    blocks: int
    blocks_used: int
    blocks_idle: int
    tokens_asked: int
    tokens_found: int


class StepRunner(Protocol):
    """What computes steps, in the order in which it gets them.

    `lag`: how many of them may be under way when the next one is planned, as the last one that was launched allows.
    With none the loop waits for each step's results. With more, a position may hold a token that is not known when its
    step is launched (scheduler.Chunk): the runner takes it from the step before.
    """

    lag: int

    def launch(self, step: StepPlan[Job]) -> Callable[[], Sequence[Result]]:
        """Starts a step. Returns what waits for its results, one of each chunk, in order, or raises why there are none.

        Everything that it needs to know of the scheduler, the cache and the jobs it reads now, for they change as soon
        as the results of earlier steps come.
        """


class UnderWay(NamedTuple):
    """A step, when it was launched, and what waits for its results."""

    step: StepPlan[Job]
    launched_at: float
    results: Callable[[], Sequence[Result]]


class EngineLoop:
    """Runs jobs until `close`. An error ends the jobs of the step it struck, never the loop.

    Args:
        scheduler: says what a step computes.
        runner: computes it.
        drafter: guesses tokens ahead, which steps then check. What it guesses follows from what was accepted, so with
            one the loop waits for each step's results.

    Every job submitted gets its last wake-up with `finish_reason` ("stop", "length", "abort", or "done" of one that
    generates nothing) or `error` set, and by then its blocks are free.
    """

    def __init__(self, scheduler: Scheduler[Job], runner: StepRunner, drafter: Drafter | None = None) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._drafter = drafter
        self._times = StepTimes(scheduler.max_mixed_tokens, scheduler.max_step_tokens)
        self._under_way: deque[UnderWay] = deque()
        self._finished_at = 0.0  # the last step
        self._inbox: SimpleQueue[tuple[str, Sequence[Job]]] = SimpleQueue()
        self._lock = threading.Lock()  # numbers go up in the order of the inbox; nothing enters it after "close"
        self._submitted = self._taken = 0  # jobs, ever
        self._alone: int | None = None  # the last job of the message that ended a pause, until a step is finished
        self._company = False  # whether others came so soon after the last such message
        self._steps = 0
        self._closed = False
        # A daemon, so that a program that forgets to close can end; the finaliser of LLM closes at exit.
        self._thread = threading.Thread(target=self._run, name="ingot-engine-loop", daemon=True)
        self._thread.start()

    def submit(self, *jobs: Job) -> None:
        """Hands jobs over, all or none. Raises RequestError or TooLongError for one that could never be carried out."""
        for job in jobs:
            self._scheduler.check(job)
        with self._lock:
            if self._closed or not self._thread.is_alive():  # a forked child has no loop
                raise RequestError("this LLM is closed, or belongs to the parent of this process: make a new one")
            for job in jobs:
                job.id = self._submitted
                job.arrival = perf_counter()
                self._submitted += 1
            self._inbox.put(("add", jobs))

    def abort(self, job: Job) -> None:
        """Ends a job soon, if it has not ended yet; its blocks are free before its last wake-up."""
        if job.finish_reason is None and job.error is None:
            self._inbox.put(("abort", (job,)))

    def stats(self) -> Stats:
        """How busy it is, from any thread: every number is right, though not all of the same moment."""
        scheduler, cache = self._scheduler, self._scheduler.cache
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + max(0, self._submitted - self._taken),
            steps=self._steps,
            preemptions=scheduler.preemptions,
            blocks=cache.num_blocks,
            blocks_used=cache.num_blocks - cache.num_free,
            blocks_idle=cache.num_idle,
            tokens_asked=cache.tokens_asked,
            tokens_found=cache.tokens_found,
        )

    def close(self) -> None:
        """Aborts what is left and ends the thread. Harmless when done twice."""
        with self._lock:
            if not self._closed:
                self._closed = True
                self._inbox.put(("close", ()))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        error = None
        try:
            while self._take_messages():
                drafts = {} if self._drafter is None else self._propose(self._drafter)
                step = self._scheduler.plan(drafts)
                if step:
                    self._launch(step)
                lag = self._runner.lag if step and self._drafter is None else 0
                while len(self._under_way) > lag:
                    self._finish(self._under_way.popleft())
            while self._under_way:
                self._finish(self._under_way.popleft())
        except Exception as e:  # a fault of ours, in the planning itself: nobody may be left waiting
            error = IngotError(f"the engine loop has ended: {type(e).__name__}: {e}")
            error.__cause__ = e
        with self._lock:
            self._closed = True
        self._end_all(error)

    def _take_messages(self) -> bool:
        """Carries out what has arrived, waiting when there is nothing else to do. False once closed."""
        while True:
            if not (self._scheduler or self._under_way):
                if not self._carry_out(*self._inbox.get()):
                    return False
                if self._scheduler and not self._gather():
                    return False
            elif self._inbox.empty():
                return True
            elif not self._carry_out(*self._inbox.get()):
                return False

    def _gather(self) -> bool:
        """After a pause, carries out what comes together with its first message. False once closed.

        Clients whose answers ended together ask again together, within milliseconds. With the first of them alone in a
        step the others wait for it, and then their prompts are computed few tokens at a time beside its answer. So
        where others came the last time before the first step was over, this one waits for them; who asks alone never
        does.
        """
        self._alone = self._taken - 1
        step = self._times.shortest_alone() if self._company else 0.0
        now = perf_counter()
        end = now + ALL_REQUESTS * step
        while step and len(self._scheduler.waiting) < self._scheduler.max_running and now < end:
            try:
                message = self._inbox.get(timeout=min(end - now, NEXT_REQUEST * step))
            except Empty:
                break
            if not self._carry_out(*message):
                return False
            now = perf_counter()
        return True

    def _carry_out(self, message: str, jobs: Sequence[Job]) -> bool:
        """False for the message that ends the loop."""
        for job in jobs:
            if message == "add":
                self._taken += 1
                self._scheduler.add(job)
            elif job.status is not Status.FINISHED:
                self._end(job, "abort")
        return message != "close"

    def _propose(self, drafter: Drafter) -> dict[int, Sequence[int]]:
        """What the next step may check, by request."""
        jobs = self._scheduler.decoding()
        if not jobs:
            return {}
        try:
            proposed = drafter.propose(jobs)
            return {job.id: job.usable(drafts) for job, drafts in zip(jobs, proposed, strict=True)}
        except Exception as e:
            self._fail(jobs, e)
            return {}

    def _launch(self, step: StepPlan[Job]) -> None:
        begin = perf_counter()
        self._steps += 1
        for chunk in step.chunks:
            chunk.request.started_at = chunk.request.started_at or begin
        self._scheduler.advance(step)
        try:
            self._under_way.append(UnderWay(step, begin, self._runner.launch(step)))
        except Exception as e:
            self._fail([chunk.request for chunk in step.chunks], e)

    def _finish(self, under_way: UnderWay) -> None:
        """Waits for a step, and gives its jobs what came of it; those that have ended meanwhile need nothing."""
        step = under_way.step
        try:
            found = under_way.results()
        except Exception as e:
            self._fail([chunk.request for chunk in step.chunks], e)
            return
        if self._alone is not None:
            self._company, self._alone = self._submitted - 1 > self._alone, None
        now = perf_counter()
        seconds, self._finished_at = now - max(under_way.launched_at, self._finished_at), now
        self._times.took(step.tokens - step.prompt_tokens, step.prompt_tokens, seconds, step.prompts_left)
        self._scheduler.max_mixed_tokens = self._times.tokens()
        for chunk, result in zip(step.chunks, found, strict=True):
            job = chunk.request
            if job.status is Status.FINISHED:
                continue
            try:
                tokens, reason = job.take(chunk, result)
            except Exception as e:
                self._fail([job], e)
                continue
            self._scheduler.accept(chunk, tokens)
            if reason is not None:
                self._end(job, reason)
            elif tokens and job.eager:
                job.wakeups.put(job)

    def _fail(self, jobs: Sequence[Job], why: Exception) -> None:
        """Ends jobs with an error; one that is a fault of ours too, and the loop goes on."""
        if isinstance(why, IngotError):
            error = why
        elif isinstance(why, MemoryError):
            error = MemoryLimitError("the process ran out of memory during a step")
        else:
            error = IngotError(f"a step failed: {type(why).__name__}: {why}")
            error.__cause__ = why
        for job in jobs:
            if job.status is not Status.FINISHED:
                job.error = error
                self._end(job, None)

    def _end(self, job: Job, reason: str | None) -> None:
        self._scheduler.remove(job)
        if self._drafter is not None:
            self._drafter.forget(job)
        job.ended_at = perf_counter()
        job.finish_reason = reason
        job.wakeups.put(job)

    def _end_all(self, error: IngotError | None) -> None:
        """Ends every job that has not ended, those still in the inbox included."""
        jobs = [*self._scheduler.running, *self._scheduler.waiting]
        while not self._inbox.empty():
            jobs += [job for job in self._inbox.get()[1] if job not in jobs]
        for job in jobs:
            if job.finish_reason is None and job.error is None:
                job.error = error
                self._end(job, None if error else "abort")
