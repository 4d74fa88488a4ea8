"""The HTTP process's side of the engine: starts it, watches over it, and hands each request its pieces."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from time import monotonic

from ingot.errors import IngotError, from_code
from ingot.serve import frames
from ingot.serve.pace import Pace
from ingot.serve.problem import Problem, engine_down, from_error

FIRST_DELAY, LAST_DELAY = 0.5, 30.0  # seconds between attempts to start the engine again
STEADY = 60.0  # seconds after which an engine that ends is taken for one that ran well
TELL_EVERY = 10.0  # seconds
SILENCE = 5 * frames.HEARTBEAT  # seconds that tell of nothing but a busy machine
MAX_RETRY = 60.0  # seconds after which a client that was refused may always try again
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # end a server, and come to its engine process too
END_SECONDS = 5.0  # for the engine process to end by itself once its socket is closed

log = logging.getLogger("ingot.serve")


class ClientGone(Exception):
    """Nobody waits for the answer any more."""


class Ticket:
    """Requests that have been handed over for one client: their pieces as they come. For the event loop's thread."""

    def __init__(self, ids: list[int], answers: int) -> None:
        self.ids = ids
        self.left = answers  # answers that have not ended
        self._pieces: deque[frames.Piece] = deque()
        self._vectors: frames.Vectors | None = None
        self._problem: Problem | None = None
        self._cancelled = False
        self._waiter: asyncio.Future[None] | None = None
        self.at_once: Callable[[frames.Piece], bool] | None = None  # shows a piece now, or says that it has to wait

    async def pieces(self) -> list[frames.Piece]:
        """What came since the last call, at least one piece. Raises Problem, or ClientGone."""
        while self._cancelled or not self._pieces:
            await self._wait()
        found = list(self._pieces)
        self._pieces.clear()
        return found

    async def vectors(self) -> frames.Vectors:
        """The answer to Embed. Raises as `pieces`."""
        while self._vectors is None:
            await self._wait()
        return self._vectors

    async def _wait(self) -> None:
        if self._cancelled:
            raise ClientGone
        if self._problem is not None:
            raise self._problem
        self._waiter = asyncio.get_running_loop().create_future()
        await self._waiter

    def push(self, piece: frames.Piece) -> None:
        """A piece has come. In the middle of an answer, with those before it gone, it need not wake anybody."""
        waits = self._waiter is not None and not self._waiter.done()
        if waits and self.at_once is not None and piece.end is None and self.at_once(piece):
            return
        self._pieces.append(piece)
        if piece.end is not None:
            self.left -= 1
        self._wake()

    def answer(self, vectors: frames.Vectors) -> None:
        """The vectors have come."""
        self._vectors = vectors
        self.left = 0
        self._wake()

    def fail(self, problem: Problem) -> None:
        """Nothing more comes of one of them."""
        self._problem = problem
        self._wake()

    def cancel(self) -> None:
        """The client is gone."""
        self._cancelled = True
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class _Connection(asyncio.Protocol):
    """One engine process's socket."""

    def __init__(self, take: Callable[[frames.FromEngine], None], lost: Callable[[], None]) -> None:
        self._take = take
        self._lost = lost
        self._decoder = frames.Decoder(frames.FromEngine)
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._decoder.push(data):
                self._take(message)
        except frames.FrameError as e:
            log.error("the engine process is stopped: %s", e)
            self.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._lost()

    def send(self, data: bytes) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def abort(self) -> None:
        """Closes at once: what is still to be sent is not."""
        if self._transport is not None:
            self._transport.abort()


class EngineProcess:
    """The engine process, started again when it ends, and ended when it hangs.

    Args:
        start: what it loads.
        max_waiting: answers that may wait beside the `start.max_running` that run.
        patience: seconds that it may be silent (a few heartbeats at least), and one step or prompt of its may take; 0:
            any time.
        max_wait: seconds that a new answer may have to wait, by the pace of those before it; 0: any time.
    """

    def __init__(self, start: frames.Start, max_waiting: int, patience: float = 0.0, max_wait: float = 0.0) -> None:
        self.start_message = start
        self.hangs = 0  # times that it was killed
        self.ready: frames.Ready | None = None  # None while there is no engine
        self.load: frames.Load | None = None
        self.restarts = 0
        self.capacity = start.max_running + max_waiting
        self._tickets: dict[int, Ticket] = {}
        self._held: dict[int, int] = {}  # answers of each request that the engine has not ended yet
        self._last_id = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: _Connection | None = None
        self._ended = asyncio.Event()
        self._started: asyncio.Future[frames.Ready] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._patience = patience
        self._max_wait = max_wait
        self._pace = Pace(start.max_running)
        self._silent = 0.0  # seconds since it said something
        self._closed = False

    @property
    def accepted(self) -> int:
        """Answers under way: those that wait too, and those whose client has gone but which the engine still has."""
        return sum(self._held.values())

    @property
    def waiting(self) -> int:
        """Answers under way that do not run."""
        return max(0, self.accepted - (0 if self.load is None else self.load.running))

    @property
    def pid(self) -> int | None:
        """Of the engine process."""
        return None if self._process is None else self._process.pid

    @property
    def state(self) -> str:
        """ok, loading (for the first time), or engine_down."""
        return "ok" if self.ready is not None else "engine_down" if self._tasks else "loading"

    async def open(self) -> None:
        """Starts the engine and waits until its model is loaded. Raises what loading raised."""
        loading = asyncio.create_task(self._tell())
        try:
            await self._start()
        finally:
            loading.cancel()
        self._tasks.append(asyncio.create_task(self._keep()))
        if self._patience:
            self._tasks.append(asyncio.create_task(self._watch()))

    async def _tell(self) -> None:
        """Says now and then what a long start waits for."""
        begin = monotonic()
        while True:
            await asyncio.sleep(TELL_EVERY)
            log.info("loading %s: %.0f s so far", self.start_message.source, monotonic() - begin)

    async def close(self) -> None:
        """Ends the engine; whoever still waits gets a 503."""
        self._closed = True
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._end()

    def submit(self, requests: Sequence[frames.Generate | frames.Embed], field: str) -> Ticket:
        """Hands requests over, all or none; `close_ticket` follows.

        Args:
            field: of the client's request, which asks for so many answers.

        Raises Problem: 503 without an engine, 429 when there is no room, 400 for text that is none.
        """
        held = {request.id: request.answers for request in requests}
        self.admit(sum(held.values()), field)
        try:
            data = b"".join(map(frames.encode, requests))
        except UnicodeEncodeError:
            message = "the text is not Unicode: it holds half of a surrogate pair"
            raise Problem(400, message, "invalid_value") from None
        ticket = Ticket(list(held), sum(held.values()))
        if self._connection is None:
            raise engine_down()
        self._held |= held
        self._tickets |= dict.fromkeys(ticket.ids, ticket)
        self._connection.send(data)
        return ticket

    def close_ticket(self, ticket: Ticket) -> None:
        """Ends what has not ended of a ticket's requests; their room is free when the engine says that they have
        ended."""
        for id in ticket.ids:
            if self._tickets.pop(id, None) is not None and id in self._held and self._connection is not None:
                self._connection.send(frames.encode(frames.Abort(id)))

    def next_id(self) -> int:
        """A number for a new request."""
        self._last_id += 1
        return self._last_id

    def admit(self, answers: int, field: str) -> None:
        """Raises Problem when so many answers could not be handed over now; `field` of the request asks for them."""
        if self.ready is None:
            if self.state == "loading":
                raise Problem(503, "the model is being loaded: try again soon", "loading", None, 5)
            raise Problem(503, "the engine is not ready: it is being started again", "engine_down", None, 1)
        if answers > self.capacity:
            message = f"{answers} answers at once: this server takes {self.capacity}"
            raise Problem(400, message, "too_many_answers", field)
        wait = self._pace.seconds(self.waiting)
        full = self.accepted + answers > self.capacity
        if not full and not 0 < self._max_wait < wait:
            return
        message = f"{self.accepted} answers are under way and this server takes {self.capacity}: try again later"
        if not full:
            message = f"{self.waiting} answers wait, for {wait:.0f} s about, and {self._max_wait:g} s are the most"
        raise Problem(429, message, "queue_full", None, round(min(MAX_RETRY, max(1.0, wait))))

    def _take(self, message: frames.FromEngine) -> None:
        self._silent = 0.0
        if isinstance(message, frames.Pieces):
            for piece in message.pieces:
                if piece.end is not None and piece.id in self._held:
                    self._pace.ended()
                    self._held[piece.id] -= 1
                    if not self._held[piece.id]:
                        del self._held[piece.id]
                if (ticket := self._tickets.get(piece.id)) is not None:
                    ticket.push(piece)
        elif isinstance(message, frames.Load):
            self.load = message
            self._pace.look(monotonic(), self.waiting > 0)
        elif isinstance(message, frames.Ended):
            self._held.pop(message.id, None)
        elif isinstance(message, frames.Refused):
            self._held.pop(message.id, None)
            if (ticket := self._tickets.get(message.id)) is not None:
                ticket.fail(from_error(from_code(message.code, message.message)))
        elif isinstance(message, frames.Vectors):
            self._pace.ended(self._held.pop(message.id, 0))
            if (ticket := self._tickets.get(message.id)) is not None:
                ticket.answer(message)
        elif self._started is not None and not self._started.done():
            if isinstance(message, frames.Ready):
                self._started.set_result(message)
            elif isinstance(message, frames.Failed):
                self._started.set_exception(from_code(message.code, message.message))

    def _lost(self) -> None:
        """The socket is closed: the process has ended, or will."""
        self.ready = self.load = None
        self._silent = 0.0
        self._ended.set()
        tickets, self._tickets, self._held = self._tickets, {}, {}
        for ticket in set(tickets.values()):
            ticket.fail(engine_down(not self._closed))
        if self._started is not None and not self._started.done():
            self._started.set_exception(IngotError("the engine process ended while it loaded the model"))

    async def _start(self) -> None:
        loop = asyncio.get_running_loop()
        self._ended.clear()
        self._started = loop.create_future()
        ours, theirs = socket.socketpair()
        try:
            self._process = _spawn(theirs)
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        _, self._connection = await loop.create_unix_connection(lambda: _Connection(self._take, self._lost), sock=ours)
        self._connection.send(frames.encode(self.start_message))
        try:
            self.ready = await self._started
        except BaseException:
            await self._end()
            raise

    async def _end(self) -> None:
        """Closes the socket and waits for the process, which is killed when it takes too long."""
        if self._connection is not None:
            self._connection.close()
        process, self._process = self._process, None
        if process is None:
            return
        try:
            code = await asyncio.to_thread(process.wait, END_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            code = await asyncio.to_thread(process.wait)
        if self._tasks:  # before, the error says it all
            log.info("the engine process %d has ended with code %d", process.pid, code)

    async def _watch(self) -> None:
        """Kills an engine that hangs; `_keep` does the rest."""
        while True:
            await asyncio.sleep(frames.HEARTBEAT)
            self._silent += frames.HEARTBEAT  # and not by the clock: while this process is stopped it hears nothing
            process, still = self._process, 0.0 if self.load is None else self.load.still
            silent = self._silent >= max(SILENCE, self._patience)
            if process is None or self.ready is None or not (silent or still >= self._patience):
                continue
            what = f"has said nothing for {self._silent:g} s" if silent else f"one step or prompt has taken {still:g} s"
            log.error("the engine process %d hangs and is killed: %s", process.pid, what)
            self.hangs += 1
            process.kill()
            assert self._connection is not None
            self._connection.abort()  # whoever waits is told at once
            self.ready = None

    async def _keep(self) -> None:
        """Starts the engine again whenever it ends."""
        delay, begun = 0.0, monotonic()
        while True:
            await self._ended.wait()
            log.error("the engine process has ended; it is started again")
            delay = 0.0 if monotonic() - begun > STEADY else min(LAST_DELAY, max(FIRST_DELAY, 2 * delay))
            await asyncio.sleep(delay)
            begun = monotonic()
            try:
                await self._end()
                self.restarts += 1
                await self._start()
                log.info("the engine process is ready again")
            except Exception as e:  # whatever it is, there has to be an engine again
                expected = isinstance(e, IngotError | OSError)
                log.error("the engine process does not start: %s", str(e) or type(e).__name__, exc_info=not expected)
                self._ended.set()


def _spawn(connection: socket.socket) -> subprocess.Popen[bytes]:
    """A fresh interpreter that sees the modules that this one sees, and of our files only its socket."""
    command = [sys.executable, "-P", "-m", "ingot.serve.worker", str(connection.fileno())]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    environment["TOKENIZERS_PARALLELISM"] = "false"  # a prompt is encoded by the thread that asks for it
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)  # it is born with them blocked, and stays so
    try:
        return subprocess.Popen(
            command, pass_fds=(connection.fileno(),), stdin=subprocess.DEVNULL, stdout=2, env=environment
        )
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
