"""The engine loop: the one thread that plans, runs and records steps. Others talk to it by `submit` and `abort`."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter

from ingot.errors import IngotError, MemoryLimitError, RequestError
from ingot.llm.jobs import Embedding, Generation, Job, Scoring
from ingot.llm.runner import Runner, StepResult
from ingot.llm.scheduler import Scheduler, Status, StepPlan


@dataclass(frozen=True)
class Stats:
    """How busy an engine loop is. Blocks are of the key-value cache: used ones belong to requests, idle ones can be
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


class EngineLoop:
    """Runs jobs until `close`. An error ends the jobs of the step it struck, never the loop.

    Every job submitted gets its last wake-up with `finish_reason` ("stop", "length", "abort", or "done" of one that
    generates nothing) or `error` set, and by then its blocks are free.
    """

    def __init__(self, scheduler: Scheduler[Job], runner: Runner) -> None:
        self._scheduler = scheduler
        self._runner = runner
        self._inbox: SimpleQueue[tuple[str, Job | None]] = SimpleQueue()
        self._lock = threading.Lock()  # numbers go up in the order of the inbox; nothing enters it after "close"
        self._submitted = 0
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
                self._inbox.put(("add", job))

    def abort(self, job: Job) -> None:
        """Ends a job soon, if it has not ended yet; its blocks are free before its last wake-up."""
        if job.finish_reason is None and job.error is None:
            self._inbox.put(("abort", job))

    def stats(self) -> Stats:
        """How busy it is, from any thread: every number is right, though not all of the same moment."""
        scheduler, cache = self._scheduler, self._scheduler.cache
        return Stats(
            running=len(scheduler.running),
            waiting=len(scheduler.waiting) + self._inbox.qsize(),
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
                self._inbox.put(("close", None))
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _run(self) -> None:
        error = None
        try:
            while self._take_messages():
                step = self._scheduler.plan()
                if step:
                    self._step(step)
        except Exception as e:  # a fault of ours, in the planning itself: nobody may be left waiting
            error = IngotError(f"the engine loop has ended: {type(e).__name__}: {e}")
            error.__cause__ = e
        with self._lock:
            self._closed = True
        self._end_all(error)

    def _take_messages(self) -> bool:
        """Carries out what has arrived, waiting when there is nothing else to do. False once closed."""
        while not (self._scheduler and self._inbox.empty()):
            message, job = self._inbox.get()
            if job is None:
                return False
            if message == "add":
                self._scheduler.add(job)
            elif job.status is not Status.FINISHED:
                self._end(job, "abort")
        return True

    def _step(self, step: StepPlan[Job]) -> None:
        begin = perf_counter()
        self._steps += 1
        for chunk in step.chunks:
            chunk.request.started_at = chunk.request.started_at or begin
        try:
            result = self._runner.run(step)
        except IngotError as e:
            self._fail(step, e)
        except MemoryError:
            self._fail(step, MemoryLimitError("the process ran out of memory during a step"))
        except Exception as e:  # a fault of ours: the jobs get it, the loop goes on
            error = IngotError(f"a step failed: {type(e).__name__}: {e}")
            error.__cause__ = e
            self._fail(step, error)
        else:
            self._record(step, result)

    def _record(self, step: StepPlan[Job], result: StepResult) -> None:
        sampled = scored = embedded = 0
        for chunk in step.chunks:
            job, token = chunk.request, None
            if isinstance(job, Generation):
                if chunk.ends:
                    token = self._sampled(job, result, sampled)
                    sampled += 1
                    if token is None:
                        continue
            elif isinstance(job, Scoring):
                job.take(chunk.start, result.scores[scored : scored + chunk.count])
                scored += chunk.count
            elif isinstance(job, Embedding):
                rows = job.rows(chunk.count, chunk.ends)
                job.take(chunk.start, result.hidden[embedded : embedded + rows])
                embedded += rows
            self._scheduler.advance(chunk, token)
            if chunk.ends and len(job.tokens) == job.max_length:
                self._end(job, "length" if job.generates else "done")
            elif token is not None and isinstance(job, Generation) and job.eager:
                job.wakeups.put(job)

    def _sampled(self, job: Generation, result: StepResult, at: int) -> int | None:
        """The token chosen for a job, noted; None if it ends the text, and with it the job."""
        token, logprob = result.tokens[at], result.logprobs[at]
        if job.params.logprobs:
            job.top_logprobs.append(result.tops[at])
        job.sampling += result.sampling
        job.first_token_at = job.first_token_at or perf_counter()
        if token in job.stop_ids:
            self._end(job, "stop")
            return None
        job.logprobs.append(logprob)
        return token

    def _fail(self, step: StepPlan[Job], error: IngotError) -> None:
        for chunk in step.chunks:
            chunk.request.error = error
            self._end(chunk.request, None)

    def _end(self, job: Job, reason: str | None) -> None:
        self._scheduler.remove(job)
        job.ended_at = perf_counter()
        job.finish_reason = reason
        job.wakeups.put(job)

    def _end_all(self, error: IngotError | None) -> None:
        """Ends every job that has not ended, those still in the inbox included."""
        jobs = [*self._scheduler.running, *self._scheduler.waiting]
        while not self._inbox.empty():
            _, job = self._inbox.get()
            if job is not None and job not in jobs:
                jobs.append(job)
        for job in jobs:
            if job.finish_reason is None and job.error is None:
                job.error = error
                self._end(job, None if error else "abort")
