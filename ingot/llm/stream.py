"""What the caller's thread does with a job: wait for its tokens, make text of them, notice stop strings and the end."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType

from ingot.llm.jobs import GenerationJob, Job
from ingot.text.tokenizer import TextStream, Tokenizer


@dataclass(frozen=True)
class Completion:
    """What a request gave. `token_ids` are without the prompt and without the end token; `logprobs` are theirs, under
    the unmodified distribution, and `top_logprobs` those of the likeliest tokens at each place, if asked for.
    `cached_tokens`: how much of the prompt had been computed before. `seconds`: to the first token, and in total, from
    when it was submitted."""

    text: str
    token_ids: list[int]
    finish_reason: str  # "stop", "length" or "abort"
    prompt_tokens: int
    completion_tokens: int
    logprobs: list[float]
    top_logprobs: list[dict[int, float]]
    cached_tokens: int
    seconds: dict[str, float]


@dataclass(frozen=True)
class Piece:
    """A part of a streamed completion, with the log probabilities of its tokens. The last one has a `finish_reason`."""

    text: str
    token_ids: list[int]
    logprobs: list[float]
    top_logprobs: list[dict[int, float]]
    finish_reason: str | None = None


@dataclass(frozen=True)
class Score:
    """How well a model foresees a text: the mean negative log-likelihood of a token, over `windows` windows.

    left_out: tokens at the end of the text that fill no window.
    """

    nats_per_token: float
    tokens: int
    windows: int
    left_out: int


class Reader:
    """Reads one job in its caller's thread: tokens to text, stop strings, the end."""

    def __init__(self, job: GenerationJob, tokenizer: Tokenizer | None, submitted_at: float) -> None:
        self.job = job
        self.token_ids: list[int] = []
        self.finish_reason: str | None = None
        self._textless = tokenizer is None
        self._stream = TextStream(tokenizer, job.params.stop)
        self._texts: list[str] = []
        self._submitted_at = submitted_at
        self._ended_at = 0.0

    def read(self) -> str:
        """The text since the last call. Raises the job's error."""
        job = self.job
        reason = job.finish_reason  # before the tokens: once it is set they are all there
        if job.error is not None:
            raise job.error
        new = job.tokens[job.prompt_length + len(self.token_ids) :]
        if job.params.stop:
            text = "".join(self._push_one(token) for token in itertools.takewhile(self._goes_on, new))
        else:
            self.token_ids += new
            text = self._stream.push(new)
        if reason is not None and not self._stream.stopped:
            text += self._stream.finish()
        if reason is not None or self._stream.stopped:
            self.finish_reason = "stop" if self._stream.stopped or reason is None else reason
            self._ended_at = perf_counter()
        self._texts.append(text)
        return text

    def _goes_on(self, _: int) -> bool:
        return not self._stream.stopped

    def _push_one(self, token: int) -> str:
        self.token_ids.append(token)
        return self._stream.push((token,))

    def shows(self, text: str, seen: int) -> bool:
        """Whether there is something to hand over: text, the end, or without a tokenizer more than `seen` tokens."""
        return bool(text) or self.finish_reason is not None or (self._textless and len(self.token_ids) > seen)

    def piece(self, text: str, seen: int) -> Piece:
        """What has been read since there were `seen` tokens."""
        until, job = len(self.token_ids), self.job
        return Piece(
            text, self.token_ids[seen:], job.logprobs[seen:until], job.top_logprobs[seen:until], self.finish_reason
        )

    def completion(self) -> Completion:
        """The whole, as far as it has been read."""
        first, end = self.job.first_token_at or self._ended_at, self._ended_at or perf_counter()
        return Completion(
            text="".join(self._texts),
            token_ids=self.token_ids,
            finish_reason=self.finish_reason or "abort",
            prompt_tokens=self.job.prompt_length,
            completion_tokens=len(self.token_ids),
            logprobs=self.job.logprobs[: len(self.token_ids)],
            top_logprobs=self.job.top_logprobs[: len(self.token_ids)],
            cached_tokens=self.job.found or 0,
            seconds={"first_token": first - self._submitted_at, "total": end - self._submitted_at},
        )


class Signal:
    """Wakes an event loop from the engine's thread: takes the place of a job's queue of wake-ups."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()
        self._told = False

    def put(self, job: Job) -> None:
        """Called by the engine loop. Wake-ups that come before the last one was seen cost nothing."""
        if not self._told:
            self._told = True
            try:
                self._loop.call_soon_threadsafe(self._event.set)
            except RuntimeError:  # that event loop has ended, and nobody waits any more
                return

    async def wait(self) -> None:
        """Until something has come since the last call."""
        await self._event.wait()
        self._event.clear()
        self._told = False


class _Request:
    """What streams share: a reader, and the end of its request when the stream is closed or dropped.

    Args:
        reader: of the one job.
        release: called once, when the stream is over; it ends the job.
    """

    def __init__(self, reader: Reader, release: Callable[[], None]) -> None:
        self._reader = reader
        self._release = release
        self._open = True

    def close(self) -> None:
        """Ends the request if it has not ended; iteration stops."""
        if self._open:
            self._open = False
            self._release()

    @property
    def completion(self) -> Completion:
        """Everything that has been streamed so far, as one; its finish_reason is "abort" as long as it has not ended.
        """
        return self._reader.completion()

    def _handed_over(self, text: str, seen: int) -> Piece:
        """The piece since there were `seen` tokens; the last one closes the stream."""
        if self._reader.finish_reason is not None:
            self.close()
        return self._reader.piece(text, seen)

    def __del__(self) -> None:
        self.close()


class AsyncStream(_Request, AsyncIterator[Piece]):
    """A Stream for `async for`. Closing it, cancelling its task or dropping it ends the request."""

    def __init__(self, reader: Reader, signal: Signal, release: Callable[[], None]) -> None:
        super().__init__(reader, release)
        self._signal = signal

    async def __anext__(self) -> Piece:
        if not self._open:
            raise StopAsyncIteration
        reader, text = self._reader, ""
        seen = len(reader.token_ids)
        try:
            while not reader.shows(text, seen):
                await self._signal.wait()
                text = reader.read()
        except BaseException:
            self.close()
            raise
        return self._handed_over(text, seen)

    async def aclose(self) -> None:
        """As `close`, for contextlib.aclosing."""
        self.close()


class Stream(_Request, Iterator[Piece]):
    """The pieces of one completion as they come. Closing it, or dropping it, ends the request and frees its blocks."""

    def __init__(self, reader: Reader, wakeups: SimpleQueue[Job], release: Callable[[], None]) -> None:
        super().__init__(reader, release)
        self._wakeups = wakeups

    def __next__(self) -> Piece:
        if not self._open:
            raise StopIteration
        reader, wakeups = self._reader, self._wakeups
        seen = len(reader.token_ids)
        text = ""
        try:
            while not reader.shows(text, seen):
                wakeups.get()
                while not wakeups.empty():  # what came meanwhile is read in one go
                    wakeups.get()
                text = reader.read()
        except BaseException:
            self.close()
            raise
        return self._handed_over(text, seen)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()
