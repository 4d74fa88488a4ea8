"""`LLM`: text in, text out, from any thread. Owns the engine loop and makes jobs of prompts."""

from __future__ import annotations

import asyncio
import difflib
import math
import os
import threading
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from queue import SimpleQueue
from time import perf_counter
from types import TracebackType
from typing import Any, cast, overload

import numpy as np

from ingot import _lazy
from ingot.engine.session import Engine, Memory
from ingot.errors import RequestError, TooLongError, UserError
from ingot.llm.assembly import assemble, check_kind, within
from ingot.llm.config import model_config
from ingot.llm.jobs import EmbeddingJob, GenerationJob, Job, ScoringJob, Wakeups
from ingot.llm.loop import EngineLoop, Stats
from ingot.llm.sampling import SamplingParams, sampler_of
from ingot.llm.stream import AsyncStream, Completion, Reader, Score, Signal, Stream
from ingot.llm.vectors import Prompt, Texts, pooling_of, scaled
from ingot.progress import Progress
from ingot.source import open_engine
from ingot.text.plain_template import PLAIN, PLAIN_STOP, PLAIN_TEMPLATE
from ingot.text.tokenizer import Tokenizer, token_ids

MAX_PRIORITY = 100

Array = np.ndarray[Any, Any]
Messages = Sequence[Mapping[str, Any]]


class LLM:
    """A language model ready to generate, score and embed. Every method may be called from any thread.

    Args:
        source: an engine file, a Hugging Face directory (built in memory), or an Engine.
        precision, weights, activations, kv: number formats, for a directory; on an engine they must be what it was
            built with.
        device: "cpu", or a device of torch's: "torch", "torch:cuda", "torch:cuda:0" (docs/devices.md). Default: where
            the engine's sessions run, which is the CPU unless somebody said otherwise.
        threads: default, the smaller of affinity and cgroup quota.
        context_length: the most tokens of one request, prompt included; default and limit: the model's.
        kv_memory: bytes for the KV cache. Default: room for 64 requests of full length, but at most a quarter of
            the memory that is available. Pages are taken as they are used.
        max_running: requests in flight at once (default: 64, or what the device likes best); the others wait their
            turn.
        prefix_cache: whether requests that begin alike share what has been computed; the results are the same bits.
        chat_template: the text of a template (Jinja), in place of the one that came with the model; "plain": a
            built-in one, for models that have none.
        lora, lora_scale: the folder of a LoRA adapter that is merged into the weights, and a number that multiplies its
            scale (docs/lora.md).
        check: on devices torch and cuda, say of logits that are no numbers in which step and layer they were lost. Each
            step is waited for then.

    Raises:
        UserError and its subclasses: a source that is no language model, words that conflict with the engine.
        MemoryLimitError: no room for the cache.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | Engine,
        *,
        precision: str | None = None,
        weights: str | None = None,
        activations: str | None = None,
        kv: str | None = None,
        device: str | None = None,
        threads: int | None = None,
        context_length: int | None = None,
        kv_memory: int | None = None,
        max_running: int | None = None,
        prefix_cache: bool = True,
        chat_template: str | None = None,
        lora: str | os.PathLike[str] | None = None,
        lora_scale: float | None = None,
        check: bool = False,
    ) -> None:
        self.engine = open_engine(
            source, precision, weights, device, lora, lora_scale, activations=activations, kv=kv
        )
        check_kind(self.engine, source, "llm")
        config = model_config(self.engine)
        self.vocab_size = config.vocab_size
        self.context_length = within("context_length", context_length, config.context_length)
        self.left_out = config.left_out  # parts of the source that are not used, in words
        self.generates = config.generates  # and scores; else it has no head and embeds
        self._end_ids = config.eos_token_ids
        self._vectors = config.embedding
        data, marks = self.engine.files().get("tokenizer.json"), (config.bos_token_id, config.add_bos)
        self._chat: Any = None  # a ChatPrompt, from the first conversation on
        self._template_source, self.chat_stop = _template(chat_template)  # strings that end an answer in a conversation
        self._tokenizer = None if data is None else Tokenizer(data, *marks, config.vocab_size)
        reach = min(self.context_length, self._vectors.max_tokens or self.context_length)
        self.hidden_size = self._vectors.width  # of a vector; 0: an engine of an earlier version, which gives none
        self.texts = Texts(self._tokenizer, config.vocab_size, reach, self._vectors.prompt)
        scheduler, runner = assemble(
            self.engine, config, threads, self.context_length, kv_memory, max_running, prefix_cache, check
        )
        self._runner = runner
        self._loop = EngineLoop(scheduler, runner)
        self._named: dict[str, Sequence[Job]] = {}
        self._lock = threading.Lock()
        self._finalizer = weakref.finalize(self, self._loop.close)  # at exit too

    @property
    def tokenizer(self) -> Tokenizer:
        """The model's tokenizer. Raises UserError when the source came without tokenizer.json."""
        if self._tokenizer is None:
            raise UserError("this model came without tokenizer.json: pass token ids, not text, and no stop strings")
        return self._tokenizer

    @overload
    def generate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, request_id: str | None = None, **sampling: Any
    ) -> Completion: ...

    @overload
    def generate(
        self, prompt: Sequence[Prompt], params: SamplingParams | None = None, *, request_id: str | None = None,
        **sampling: Any,
    ) -> list[Completion]: ...  # fmt: skip

    def generate(
        self, prompt: Prompt | Sequence[Prompt], params: SamplingParams | None = None, *,
        request_id: str | None = None, priority: int = 0, **sampling: Any,
    ) -> Completion | list[Completion]:  # fmt: skip
        """Completes a prompt (text, or token ids, which are taken as they are), or several at once.

        Args:
            request_id: a name under which `abort` finds it.
            priority: greater goes first, -100 to 100; a step of it is worth ten seconds of waiting.
            params: a SamplingParams, or else its fields by name (`max_tokens=64, temperature=0.8`).

        With n above 1 the answers to a prompt come as a list, and those to several prompts one after the other.

        Raises RequestError for what is out of range, TooLongError for a prompt without room in the context.
        """
        prompts, many = _as_prompts(prompt)
        params = _params(params, sampling)
        wakeups: SimpleQueue[Job] = SimpleQueue()
        readers = self._submit(prompts, params, request_id, False, priority, wakeups)
        try:
            left = len(readers)
            by_job = {id(reader.job): reader for reader in readers}
            while left:
                reader = by_job[id(wakeups.get())]
                if reader.finish_reason is None:
                    reader.read()
                    if reader.finish_reason is not None:
                        left -= 1
        finally:
            self._release([reader.job for reader in readers], request_id)
        completions = [reader.completion() for reader in readers]
        return completions if many or params.n > 1 else completions[0]

    def stream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, request_id: str | None = None,
        priority: int = 0, **sampling: Any,
    ) -> Stream:  # fmt: skip
        """Like `generate` for one answer to one prompt, as an iterator of pieces; their texts add up to its text."""
        params = _params(params, sampling)
        if params.n != 1:
            raise RequestError(f"a stream is of one answer, not of n = {params.n}: open {params.n} streams")
        wakeups: SimpleQueue[Job] = SimpleQueue()
        (reader,) = self._submit([prompt], params, request_id, True, priority, wakeups)
        return Stream(reader, wakeups, lambda: self._release([reader.job], request_id))

    def chat(
        self, messages: Messages, params: SamplingParams | None = None, *, request_id: str | None = None,
        priority: int = 0, **sampling: Any,
    ) -> Completion | list[Completion]:  # fmt: skip
        """The model's answer to a conversation, written by the model's own chat template.

        Args:
            messages: each {"role": "system" | "user" | "assistant", "content": text}.

        Raises UserError for a model without a template, RequestError for a conversation that it refuses.
        """
        ids = self.chat_prompt(messages)
        return self.generate(ids, self._to_chat(params, sampling), request_id=request_id, priority=priority)

    def _to_chat(self, given: SamplingParams | None, words: dict[str, Any]) -> SamplingParams:
        """The sampling of an answer in a conversation, which the built-in template's strings end too."""
        params = _params(given, words)
        return replace(params, stop=(*params.stop, *self.chat_stop)) if self.chat_stop else params

    def chat_prompt(self, messages: Messages, **variables: Any) -> list[int]:
        """The token ids of a conversation up to where the model's answer begins. Raises as `chat`."""
        ids: list[int] = self.chats.encode(messages, **variables)
        return ids

    @property
    def chats(self) -> Any:
        """What writes conversations as prompts, a ChatPrompt. Raises UserError for a model without a template."""
        chats = _lazy.load("ingot.text.chat_prompt")  # Jinja takes its time, and most starts need none
        with self._lock:
            if self._chat is None:
                files, template = self.engine.files, self._template_source
                self._chat = chats.open_chat(files, template, lambda: self.tokenizer, self.context_length)
        return self._chat

    async def agenerate(
        self, prompt: Prompt, params: SamplingParams | None = None, *, request_id: str | None = None,
        priority: int = 0, **sampling: Any,
    ) -> Completion:  # fmt: skip
        """`generate` of one answer to one prompt, without blocking the event loop."""
        stream = self.astream(prompt, params, request_id=request_id, priority=priority, **sampling)
        async for _ in stream:
            pass
        return stream.completion

    def astream(
        self, prompt: Prompt, params: SamplingParams | None = None, *, request_id: str | None = None,
        priority: int = 0, **sampling: Any,
    ) -> AsyncStream:  # fmt: skip
        """`stream` for `async for`; called in the event loop's thread."""
        params, signal = _params(params, sampling), Signal()
        if params.n != 1:
            raise RequestError(f"a stream is of one answer, not of n = {params.n}: open {params.n} streams")
        (reader,) = self._submit([prompt], params, request_id, True, priority, signal)
        return AsyncStream(reader, signal, lambda: self._release([reader.job], request_id))

    async def achat(
        self, messages: Messages, params: SamplingParams | None = None, *, request_id: str | None = None,
        priority: int = 0, **sampling: Any,
    ) -> Completion:  # fmt: skip
        """`chat` for one answer, without blocking the event loop."""
        ids = await asyncio.to_thread(self.chat_prompt, messages)  # which waits for the template's process
        return await self.agenerate(ids, self._to_chat(params, sampling), request_id=request_id, priority=priority)

    def score(self, text: Prompt, window: int | None = None, *, progress: Progress | None = None) -> Score:
        """The mean negative log-likelihood of a text's tokens, in windows that each begin with an empty context.

        No token is added. Window j feeds tokens jW … (j+1)W-1 and scores those one further; a rest that fills no window
        is left out.

        Args:
            window: W, from 1 to the context length; default: the context length, or the whole text if that is shorter.
            progress: called as progress("score", done, total) whenever a window is done.
        """
        self._check_generates()
        ids = self.tokenizer.encode_plain(text) if isinstance(text, str) else self._checked(text)
        if len(ids) < 2:
            raise RequestError("the text has fewer than two tokens: there is nothing to score")
        size = within("window", window, self.context_length, default=min(self.context_length, len(ids) - 1))
        windows = (len(ids) - 1) // size
        if not windows:
            raise RequestError(
                f"the text has {len(ids)} tokens, too few for one window of {size}: use a smaller window"
            )
        wakeups: SimpleQueue[Job] = SimpleQueue()
        starts = range(0, windows * size, size)
        jobs = [ScoringJob(ids[a : a + size], ids[a + 1 : a + size + 1], wakeups, self.vocab_size) for a in starts]
        self._start(jobs, None, 0)
        try:
            for done in range(1, windows + 1):
                _check_done(wakeups.get())
                if progress:
                    progress("score", done, windows)
        finally:
            self._release(jobs, None)
        total = math.fsum(number for job in jobs for number in job.logprobs)
        return Score(-total / (windows * size), windows * size, windows, len(ids) - 1 - windows * size)

    def embed(
        self, text: Prompt | Sequence[Prompt], pooling: str | None = None, *, normalize: bool | None = None,
        truncate: bool = False, request_id: str | None = None, priority: int = 0,
    ) -> Array:  # fmt: skip
        """One vector for each text (or list of token ids, taken as they are): float32 [N, hidden_size].

        Made of the last hidden states, those that the head gets. A text's vector is the same bits alone and among
        others, whatever else runs meanwhile.

        Args:
            pooling: last, mean, max or cls (the first token); default: as the model's files say, else last.
            normalize: whether vectors are scaled to length 1; default: as the model's files say, else not.
            truncate: whether a text with too many tokens loses those behind, its closing ones kept, or is refused.
            request_id, priority: as for `generate`; after `abort` there are no vectors, but a RequestError.

        Raises RequestError for what is out of range, TooLongError for a text beyond the context.
        """
        wakeups: SimpleQueue[Job] = SimpleQueue()
        jobs = self._embeddings(text, pooling, truncate, request_id, priority, wakeups)
        try:
            for _ in jobs:
                _check_done(wakeups.get())
        finally:
            self._release(jobs, request_id)
        return self._vectors_of(jobs, normalize)

    async def aembed(
        self, text: Prompt | Sequence[Prompt], pooling: str | None = None, *, normalize: bool | None = None,
        truncate: bool = False, request_id: str | None = None, priority: int = 0,
    ) -> Array:  # fmt: skip
        """`embed`, without blocking the event loop."""
        signal = Signal()
        jobs = self._embeddings(text, pooling, truncate, request_id, priority, signal)
        try:
            for job in jobs:
                while job.finish_reason is None and job.error is None:
                    await signal.wait()
                _check_done(job)
        finally:
            self._release(jobs, request_id)
        return self._vectors_of(jobs, normalize)

    def submit(
        self, prompt: Prompt, wakeups: Wakeups, params: SamplingParams | None = None, *, eager: bool = True,
        priority: int = 0, **sampling: Any,
    ) -> list[Reader]:  # fmt: skip
        """Starts the n answers to a prompt and returns at once: a Reader for each, which `end` wants back.

        For servers, which wait for many requests in one place: `wakeups` gets the reader's job whenever there is
        something to read, or with `eager` off only at the end.
        """
        return self._submit([prompt], _params(params, sampling), None, eager, priority, wakeups)

    def end(self, readers: Sequence[Reader]) -> None:
        """Ends what has not ended of answers that `submit` started; their blocks are free soon."""
        self._release([reader.job for reader in readers], None)

    def stats(self) -> Stats:
        """How busy the engine is, and how full its cache."""
        return self._loop.stats()

    def abort(self, request_id: str) -> bool:
        """Ends the request of that name: it finishes with what it has, for the reason "abort". False when there is
        none.
        """
        with self._lock:
            jobs = self._named.get(request_id, ())
        for job in jobs:
            self._loop.abort(job)
        return bool(jobs)

    def memory(self) -> Memory:
        """Bytes of weights, of activations as far as steps have needed them yet, and of keys and values."""
        return self._runner.memory()

    def close(self) -> None:
        """Aborts what is running and ends the engine loop. Using the LLM afterwards is a RequestError."""
        self._finalizer()

    def __enter__(self) -> LLM:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _submit(
        self, prompts: list[Prompt], params: SamplingParams, request_id: str | None, streaming: bool, priority: int,
        wakeups: Wakeups,
    ) -> list[Reader]:  # fmt: skip
        submitted_at = perf_counter()
        self._check_generates()
        tokenizer = self.tokenizer if params.stop else self._tokenizer
        stop_ids = frozenset(params.stop_ids) | (frozenset() if params.ignore_end else self._end_ids)
        jobs: list[GenerationJob] = []
        bad_words = self._bad_words(params)
        for prompt in prompts:
            ids = self._encoded(prompt) if isinstance(prompt, str) else self._checked(prompt)
            if len(ids) >= self.context_length:
                raise TooLongError(
                    f"the prompt has {len(ids)} tokens and the context holds {self.context_length}, one of them to be "
                    "generated: shorten the prompt"
                )
            length = min(len(ids) + params.max_tokens, self.context_length)
            for index in range(params.n):
                sampler = sampler_of(params, ids, self.vocab_size, index, bad_words)
                job = GenerationJob(ids, length, params, sampler, stop_ids, wakeups, streaming or bool(params.stop))
                job.streamed = streaming
                job.after = jobs[-index] if index else None  # the first answer to this prompt
                jobs.append(job)
        self._start(jobs, request_id, priority)
        return [Reader(job, tokenizer, submitted_at) for job in jobs]

    def _embeddings(
        self, text: Prompt | Sequence[Prompt], pooling: str | None, truncate: bool, request_id: str | None,
        priority: int, wakeups: Wakeups,
    ) -> list[EmbeddingJob]:  # fmt: skip
        width = self._vectors.width
        if not width:
            raise UserError("this engine was built by an earlier version and gives no hidden states: build it again")
        how = pooling_of(pooling, self._vectors.pooling)
        jobs = [EmbeddingJob(ids, how, wakeups, width) for ids in self.texts.rows(text, truncate)]
        self._start(jobs, request_id, priority)
        return jobs

    def _vectors_of(self, jobs: Sequence[EmbeddingJob], normalize: bool | None) -> Array:
        vectors = np.empty((len(jobs), self._vectors.width), np.float32)
        for row, job in zip(vectors, jobs, strict=True):
            row[:] = job.vector()
        return scaled(vectors) if (self._vectors.normalize if normalize is None else normalize) else vectors

    def _start(self, jobs: Sequence[Job], request_id: str | None, priority: int) -> None:
        """Hands jobs to the loop, under a name if they get one."""
        if type(priority) is not int or not -MAX_PRIORITY <= priority <= MAX_PRIORITY:
            raise RequestError(f"priority must be an integer from -{MAX_PRIORITY} to {MAX_PRIORITY}, not {priority!r}")
        for job in jobs:
            job.priority = priority
        if request_id is not None:
            with self._lock:
                if request_id in self._named:
                    raise RequestError(f"a request called {request_id!r} is under way: names must differ")
                self._named[request_id] = jobs
        try:
            self._loop.submit(*jobs)
        except BaseException:
            with self._lock:
                self._named.pop(request_id or "", None)
            raise

    def _release(self, jobs: Sequence[Job], request_id: str | None) -> None:
        """Ends what has not ended (a stop string ends the text and not yet the job) and forgets the name."""
        for job in jobs:
            self._loop.abort(job)
        if request_id is not None:
            with self._lock:
                self._named.pop(request_id, None)

    def _encoded(self, text: str) -> list[int]:
        self.tokenizer.check_length(text, self.context_length)
        return self.tokenizer.encode(text)

    def _bad_words(self, params: SamplingParams) -> list[Sequence[int]]:
        """The forbidden sequences as token ids; a text is meant at the beginning of a word and inside one."""
        found: list[Sequence[int]] = []
        for word in params.bad_words:
            if isinstance(word, str):
                found += [self.tokenizer.encode_plain(text) for text in dict.fromkeys((word, " " + word.lstrip()))]
            else:
                found.append(self._checked(word))
        return [word for word in found if word]

    def _check_generates(self) -> None:
        if not self.generates:
            raise UserError("this model has no head: it embeds texts (embed), and neither generates nor scores")

    def _checked(self, ids: Sequence[int]) -> list[int]:
        return token_ids(ids, self.vocab_size, "a prompt")


def _template(given: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The text of a template, and the strings that end an answer with it. Raises UserError for what is none."""
    if given == PLAIN:
        return PLAIN_TEMPLATE, PLAIN_STOP
    if given is not None and not any(mark in str(given) for mark in ("{{", "{%")):  # str: a Path is no text either
        raise UserError(
            f"chat_template takes the text of a template, or {PLAIN!r}, the built-in one, and {given!r:.60} has none "
            "of Jinja's marks: of a file give what it holds, Path(…).read_text()"
        )
    return given, ()


def _as_prompts(prompt: Prompt | Sequence[Prompt]) -> tuple[list[Prompt], bool]:
    """The prompts given, and whether they were given as a sequence of prompts (a sequence of numbers is one prompt)."""
    several = not isinstance(prompt, str) and hasattr(prompt, "__len__") and len(prompt) > 0
    many = several and hasattr(prompt[0], "__len__")
    return ([cast(Prompt, p) for p in prompt], True) if many else ([cast(Prompt, prompt)], False)


def _check_done(job: Job) -> None:
    """Raises unless a job that gives a number or a vector has ended with it."""
    if job.error is not None:
        raise job.error
    if job.finish_reason == "abort":
        raise RequestError("the request was ended before its result was known: by abort, or as the LLM was closed")


def _params(given: SamplingParams | None, words: dict[str, Any]) -> SamplingParams:
    if given is not None:
        if words or not isinstance(given, SamplingParams):
            raise RequestError("params takes a SamplingParams, and no other sampling words beside it")
        return given
    if unknown := sorted(set(words) - set(SamplingParams.__dataclass_fields__)):
        known = ", ".join(SamplingParams.__dataclass_fields__)
        near = difflib.get_close_matches(unknown[0], list(SamplingParams.__dataclass_fields__), 1)
        meant = f": did you mean {near[0]}?" if len(unknown) == 1 and near else ""
        raise RequestError(f"unknown sampling word(s) {', '.join(unknown)}{meant or f'; known are {known}'}")
    return SamplingParams(**words)
