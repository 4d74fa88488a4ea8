"""The engine process: loads the model, carries out what comes over the socket, and sends back what came of it.

`python -m ingot.serve.worker FD`, started by the HTTP process. It ends when the socket or that process does; signals of
the terminal or of a service manager are for the HTTP process, which lets running answers finish and starts this one
with them blocked.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import astuple
from functools import partial
from queue import Empty, PriorityQueue, SimpleQueue
from time import monotonic, perf_counter, sleep
from typing import Any

from ingot.errors import CheckpointError, DeviceError, FileError, IngotError, MemoryLimitError, RequestError, UserError
from ingot.llm.embedding import Embedder
from ingot.llm.jobs import Job
from ingot.llm.llm import LLM
from ingot.llm.loop import Stats
from ingot.llm.sampling import MAX_TOKENS, SamplingParams
from ingot.llm.stream import Reader
from ingot.serve import frames
from ingot.serve.chat_queue import ChatQueue
from ingot.source import open_engine
from ingot.text.chat_prompt import Written

PACE = 3.0  # pauses between rounds of reading answers, in times of what a round takes: a quarter of a thread at most
MAX_WORDS = 1000  # of a chat template that the HTTP process is told
MAX_PAUSE = 0.05  # seconds
STATS_EVERY = 0.25  # seconds; a whole part of frames.HEARTBEAT
ENCODERS = 2  # threads that make tokens of prompts
HANDICAP = 1e-5  # seconds for each character of a prompt: shorter ones that come within that go first
EMBEDDERS = 16  # requests for vectors at once, each with a thread that waits for them
SWITCH_INTERVAL = 5e-4  # seconds; the engine loop comes back from native code 200 times a second and must not wait
RECEIVE = 1 << 18
PR_SET_PDEATHSIG = 1  # prctl(2)


class Answer:
    """One of the n answers of a request, under way."""

    __slots__ = ("detokenising", "id", "index", "reader", "readers", "tokens")

    def __init__(self, id: int, index: int, reader: Reader, readers: list[Reader], tokens: bool) -> None:
        self.id = id
        self.index = index
        self.reader = reader
        self.readers = readers
        self.tokens = tokens
        self.detokenising = 0.0


class Encoders:
    """Threads that make tokens of prompts. A short one need not wait for all the long ones before it."""

    def __init__(self, guard: Callable[[Callable[[], None]], None]) -> None:
        self._waiting: PriorityQueue[tuple[float, int, Callable[[], None]]] = PriorityQueue()
        self._order = itertools.count()
        for i in range(ENCODERS):
            threading.Thread(target=guard, args=(self._run,), name=f"ingot-encoder-{i}", daemon=True).start()

    def submit(self, characters: int, work: Callable[[], None]) -> None:
        """Has work done on a prompt of so many characters or tokens."""
        self._waiting.put((monotonic() + HANDICAP * characters, next(self._order), work))

    def _run(self) -> None:
        while True:
            self._waiting.get()[2]()


class Stillness:
    """For how long work has been under way without a sign of going on, counted in looks: while this process is stopped
    nobody looks, and nothing counts."""

    def __init__(self) -> None:
        self._sign: object = None
        self._looks = 0

    def seen(self, sign: object, busy: bool) -> float:
        """Seconds; to be called every STATS_EVERY."""
        self._looks = self._looks + 1 if busy and sign == self._sign else 0
        self._sign = sign
        return self._looks * STATS_EVERY


class Worker:
    """One model and one socket.

    Args:
        model: the language model, or the encoder.
        connection: to the HTTP process.
        decoder: of what comes over it; it has seen the first message.
    """

    def __init__(self, model: LLM | Embedder, connection: socket.socket, decoder: frames.Decoder) -> None:
        self._model = model
        self._connection = connection
        self._decoder = decoder
        self._sending = threading.Lock()
        self._lock = threading.Lock()  # guards the two tables
        self._answers: dict[Job, Answer] = {}
        self._requests: dict[int, list[Reader] | None] = {}  # None until it has been submitted
        self._taken = 0  # requests, ever
        self._wakeups: SimpleQueue[Job] = SimpleQueue()
        self._texts: dict[int, str] = {}
        self._computing: set[int] = set()  # requests whose vectors are computed; guarded as the tables are
        self._looks: dict[int, int] = {}  # at requests whose prompts become tokens; guarded as the tables are
        self._encoders = Encoders(self._guarded)
        self._embedders = ThreadPoolExecutor(EMBEDDERS, "ingot-embedder")
        self._chats = ChatQueue(self._write, self._refuse)

    @property
    def _llm(self) -> LLM:
        if not isinstance(self._model, LLM):
            raise UserError("this model makes vectors of texts, and writes none")
        return self._model

    def run(self) -> None:
        """Serves until the other side closes the socket."""
        for work in (self._pump, self._report):
            threading.Thread(target=self._guarded, args=(work,), name=f"ingot{work.__name__}", daemon=True).start()
        while data := self._connection.recv(RECEIVE):
            for message in self._decoder.push(data):
                self._take(message)

    def _guarded(self, work: Any) -> None:
        """A thread without which nobody would be answered: when it fails the process ends, and is started again."""
        try:
            work()
        except OSError:  # the HTTP process is gone
            os._exit(0)
        except BaseException:
            sys.excepthook(*sys.exc_info())
            os._exit(1)

    def _take(self, message: Any) -> None:
        if isinstance(message, frames.Abort):
            with self._lock:
                readers = self._requests.pop(message.id, None)
            if readers:
                self._forget(readers)
                self._send(frames.Ended(message.id))
            elif self._chats.drop(message.id):
                self._send(frames.Ended(message.id))
            else:  # who has it in hand finds it gone, and says so
                self._model.abort(str(message.id))
        elif isinstance(message, frames.Generate | frames.Embed):
            with self._lock:
                self._requests[message.id] = None
                self._taken += 1
            if isinstance(message, frames.Generate) and message.messages is not None:
                self._chats.put(message)
                return
            work = self._generate if isinstance(message, frames.Generate) else self._embed
            self._encoders.submit(message.length, partial(self._carry_out, message.id, work, message))
        else:
            raise frames.FrameError(f"{type(message).__name__} comes first and once")

    def _wanted(self, id: int) -> bool:
        """Whether a request has not been aborted."""
        with self._lock:
            return id in self._requests

    def _carry_out(self, id: int, work: Callable[..., bool], *given: Any) -> None:
        """Does a part of a request's work, which says whether the request goes on."""
        try:
            if not (self._wanted(id) and work(*given)):
                self._send(frames.Ended(id))
        except IngotError as e:
            self._refuse(id, e)
        except MemoryError:
            self._refuse(id, MemoryLimitError("the engine process ran out of memory"))
        except OSError:  # the socket; the receiving thread sees it too
            return
        except Exception as e:  # a fault of ours: this request gets it, the others go on
            sys.excepthook(*sys.exc_info())
            self._refuse(id, IngotError(f"{type(e).__name__}: {e}"))

    def _write(self, message: frames.Generate) -> None:
        self._carry_out(message.id, self._render, message)

    def _render(self, message: frames.Generate) -> bool:
        turns = [{"role": role, "content": said, "name": name} for role, said, name in message.messages or ()]
        written = self._llm.chats.write([{k: v for k, v in turn.items() if v is not None} for turn in turns])
        self._encoders.submit(message.length, partial(self._carry_out, message.id, self._generate, message, written))
        return True

    def _generate(self, message: frames.Generate, written: Written | None = None) -> bool:
        words = {name: getattr(message.sampling, name) for name in message.sampling.__struct_fields__}
        if words["max_tokens"] is None:
            words["max_tokens"] = min(self._llm.context_length, MAX_TOKENS)
        with self._encoding(message.id):
            prompt = message.text or "" if message.ids is None else message.ids
            if written is not None:
                prompt = self._llm.chats.tokens(written)
            if not self._wanted(message.id):
                return False
            readers = self._llm.submit(
                prompt, self._wakeups, eager=message.eager, priority=message.priority, params=SamplingParams(**words)
            )
        with self._lock:
            wanted = message.id in self._requests
            if wanted:
                self._requests[message.id] = readers
                for index, reader in enumerate(readers):
                    self._answers[reader.job] = Answer(message.id, index, reader, readers, message.tokens)
        if not wanted:
            self._llm.end(readers)
            return False
        for reader in readers:
            self._wakeups.put(reader.job)  # it may have ended before it was in the table
        return True

    @contextmanager
    def _encoding(self, id: int) -> Iterator[None]:
        """A prompt becomes tokens in this block, and should soon be done."""
        with self._lock:
            self._looks[id] = 0
        try:
            yield
        finally:
            with self._lock:
                del self._looks[id]

    def _embed(self, message: frames.Embed) -> bool:
        with self._encoding(message.id):
            rows = self._model.texts.rows(message.inputs, False)
        self._embedders.submit(self._carry_out, message.id, self._vectors, message.id, rows)
        return True

    def _vectors(self, id: int, rows: list[list[int]]) -> bool:
        with self._lock:
            self._computing.add(id)
        try:
            vectors = self._model.embed(rows, request_id=str(id)).tolist()
        finally:
            with self._lock:
                self._computing.remove(id)
                self._requests.pop(id, None)
        self._send(frames.Vectors(id, sum(map(len, rows)), vectors))
        return True

    def _abort_again(self) -> None:
        """Vectors that were aborted just before the model knew of them."""
        with self._lock:
            gone = [id for id in self._computing if id not in self._requests]
        for id in gone:
            self._model.abort(str(id))

    def _refuse(self, id: int, error: IngotError) -> None:
        with self._lock:
            readers = self._requests.pop(id, None)
        if readers:
            self._forget(readers)
        self._send(frames.Refused(id, error.code, str(error)))
        if isinstance(error, DeviceError):  # nobody is served here any more: another process is started
            print(f"ingot: {error}", file=sys.stderr, flush=True)
            self._end_process()

    @staticmethod
    def _end_process() -> None:
        os._exit(1)

    def _forget(self, readers: Sequence[Reader]) -> None:
        self._llm.end(readers)
        with self._lock:
            for reader in readers:
                self._answers.pop(reader.job, None)

    def _pump(self) -> None:
        """Reads the answers that have something new, in rounds, and sends each round as one message."""
        while True:
            woken = {self._wakeups.get(): None}
            try:
                while True:
                    woken[self._wakeups.get_nowait()] = None
            except Empty:
                begin = perf_counter()
            with self._lock:
                answers = [self._answers[job] for job in woken if job in self._answers]
            pieces = [piece for answer in answers if (piece := self._read(answer)) is not None]
            if pieces:
                self._send(frames.Pieces(pieces))
            sleep(min(MAX_PAUSE, PACE * (perf_counter() - begin)))

    def _read(self, answer: Answer) -> frames.Piece | None:
        reader, begin = answer.reader, perf_counter()
        seen = len(reader.token_ids)
        if reader.finish_reason is not None:
            return None
        try:
            text = reader.read()
        except IngotError as e:
            self._refuse(answer.id, e)
            return None
        answer.detokenising += perf_counter() - begin
        tokens = self._tokens(reader, seen) if answer.tokens else []
        end = None
        if reader.finish_reason is not None:
            end = self._end(answer)
        elif not text and not tokens:
            return None
        return frames.Piece(answer.id, answer.index, text, len(reader.token_ids), tokens, end)

    def _end(self, answer: Answer) -> frames.End:
        job, reader = answer.reader.job, answer.reader
        self._llm.end([reader])  # a stop string ends the text and not yet the job
        with self._lock:
            self._answers.pop(job, None)
            if all(other.finish_reason is not None for other in answer.readers):
                self._requests.pop(answer.id, None)
        ended = job.ended_at or perf_counter()
        started = job.started_at or ended
        first = job.first_token_at or ended
        return frames.End(
            reason=reader.finish_reason or "abort",
            prompt_tokens=job.prompt_length,
            cached_tokens=job.found or 0,
            completion_tokens=len(reader.token_ids),
            queue=max(0.0, started - job.arrival),
            prefill=max(0.0, first - started),
            decode=max(0.0, ended - first),
            sampling=job.sampling,
            detokenising=answer.detokenising,
        )

    def _tokens(self, reader: Reader, seen: int) -> list[frames.Token]:
        job, until = reader.job, len(reader.token_ids)
        tops = job.top_logprobs[seen:until] if job.params.logprobs else [{}] * (until - seen)
        return [
            frames.Token(
                self._text(token),
                frames.finite(logprob),
                [(self._text(id), frames.finite(value)) for id, value in top.items()],
            )
            for token, logprob, top in zip(reader.token_ids[seen:], job.logprobs[seen:until], tops, strict=True)
        ]

    def _text(self, token: int) -> str:
        if token not in self._texts:
            self._texts[token] = self._llm.tokenizer.decode([token])
        return self._texts[token]

    def _report(self) -> None:
        """Says how busy the engine is whenever that has changed, and now and then even when it has not."""
        last, silent, steps, trimmed = None, 0.0, Stillness(), 0
        while True:
            stats = self._stats()
            with self._lock:
                for id in self._looks:
                    self._looks[id] += 1
                encoding = max(self._looks.values(), default=0) * STATS_EVERY
            still = max(encoding, steps.seen(stats.steps, bool(stats.running or stats.waiting)))
            load = frames.Load(*(*astuple(stats), still))
            self._chats.look(STATS_EVERY)
            self._abort_again()
            silent += STATS_EVERY
            if load != last or silent >= frames.HEARTBEAT:
                self._send(load)
                last, silent = load, 0.0
            with self._lock:
                taken, idle = self._taken, not self._requests
            if idle and taken != trimmed:
                give_memory_back()
                trimmed = taken
            sleep(STATS_EVERY)

    def _stats(self) -> Stats:
        if isinstance(self._model, LLM):
            return self._model.stats()
        with self._lock:
            running = len(self._requests)
        return Stats(running, 0, self._model.runs, 0, 0, 0, 0, 0, 0)

    def _send(self, message: frames.FromEngine) -> None:
        frame = frames.encode(message)
        with self._sending:
            self._connection.sendall(frame)


def give_memory_back() -> None:
    """Has the C library return to the system what nobody uses: long prompts leave much of that in pieces."""
    if (trim := getattr(ctypes.CDLL(None), "malloc_trim", None)) is not None:  # glibc's
        trim(0)


def end_with_parent() -> None:
    """Has the system end this process when the one that started it ends, whatever is running here then.

    A closed socket says so too, but not to a thread that is in the middle of a long call.
    """
    if ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError("prctl(PR_SET_PDEATHSIG) failed")


def main(connection: socket.socket) -> int:
    """Serves one HTTP process; the exit code."""
    end_with_parent()
    sys.setswitchinterval(SWITCH_INTERVAL)
    decoder = frames.Decoder(frames.ToEngine)
    found: list[Any] = []
    while not found:
        data = connection.recv(RECEIVE)
        if not data:
            return 0
        found = list(decoder.push(data))
    if len(found) != 1 or not isinstance(found[0], frames.Start):
        raise frames.FrameError("Start comes first, and alone")
    try:
        model = _load(found[0])
        chats = isinstance(model, LLM) and _chats(model)
    except (IngotError, MemoryError, OSError) as e:
        kind = type(e) if isinstance(e, IngotError) else MemoryLimitError if isinstance(e, MemoryError) else FileError
        connection.sendall(frames.encode(frames.Failed(kind.code, str(e))))
        return 1
    generates = isinstance(model, LLM) and model.generates
    left_out = list(model.left_out) if isinstance(model, LLM) else []
    words = sorted(model.chats.words)[:MAX_WORDS] if isinstance(model, LLM) and chats else []
    ready = frames.Ready(
        model.context_length, model.vocab_size, generates, chats, model.hidden_size > 0, left_out, words
    )
    try:
        connection.sendall(frames.encode(ready))
        Worker(model, connection, decoder).run()
    except ConnectionError:
        return 0
    finally:
        if isinstance(model, LLM):
            model.close()
    return 0


def _load(start: frames.Start) -> LLM | Embedder:
    engine = open_engine(
        start.source, start.precision, start.weights, start.device, start.lora, start.lora_scale,
        activations=start.activations, kv=start.kv,
    )  # fmt: skip
    if engine.kind == "encoder":
        for name in ("context_length", "kv_memory", "chat_template"):
            if getattr(start, name) is not None:
                raise UserError(f"{start.source} is an encoder: it takes no {name}")
        return Embedder(engine, threads=start.threads)
    return LLM(
        engine, precision=start.precision, weights=start.weights, activations=start.activations, kv=start.kv,
        device=start.device,
        threads=start.threads, context_length=start.context_length, kv_memory=start.kv_memory,
        max_running=start.max_running, prefix_cache=start.prefix_cache, chat_template=start.chat_template,
    )  # fmt: skip


def _chats(llm: LLM) -> bool:
    """Whether it has a chat template. Raises CheckpointError for one that cannot be read."""
    try:
        llm.chat_prompt([{"role": "user", "content": "?"}])
    except RequestError:  # it has a template, which refuses this
        return True
    except CheckpointError:
        raise
    except UserError:
        return False
    return True


if __name__ == "__main__":
    with socket.socket(fileno=int(sys.argv[1])) as parent:
        code = main(parent)
    sys.exit(code)
