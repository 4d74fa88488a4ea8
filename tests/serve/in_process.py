"""The HTTP side alone, in a thread of this process, over an engine that says what it is told to."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from ingot.serve import frames
from ingot.serve.app import LOOPBACK, App, Settings
from ingot.serve.engine_process import EngineProcess
from ingot.serve.server import http_server

MODEL = "m"
PATIENCE = 60.0
END = frames.End("length", 1, 0, 1, 0.0, 0.0, 0.0, 0.0, 0.0)


class Engine:
    """Stands in for the socket to the engine process: answers each request with what `says` gives for it."""

    def __init__(self, process: EngineProcess, says: Callable[[Any], list[frames.FromEngine]]) -> None:
        self.heard: list[Any] = []
        self._process = process
        self._says = says
        self._decoder = frames.Decoder(frames.ToEngine)

    def send(self, data: bytes) -> None:
        loop = asyncio.get_running_loop()
        for message in self._decoder.push(data):
            self.heard.append(message)
            for answer in self._says(message):
                loop.call_soon(self._process._take, answer)


class Served:
    """A server in a thread."""

    def __init__(self, app: App, engine: Engine, port: int, connections: set[Any]) -> None:
        self.app, self.engine, self.port, self.connections = app, engine, port, connections
        self.loop = asyncio.get_running_loop()

    def connect(self) -> socket.socket:
        """A bare connection."""
        return socket.create_connection(("127.0.0.1", self.port), PATIENCE)


def one_word(message: Any) -> list[frames.FromEngine]:
    """An answer of a word to each prompt."""
    if isinstance(message, frames.Generate):
        return [frames.Pieces([frames.Piece(message.id, 0, "word", 1, [], END)])]
    return [frames.Ended(message.id)] if isinstance(message, frames.Abort) else []


@contextmanager
def served(says: Callable[[Any], list[frames.FromEngine]] = one_word, key: bytes | None = None) -> Iterator[Served]:
    """A server on a port of its own."""
    found: list[Served] = []
    ready, stop = threading.Event(), asyncio.Event()

    async def serve() -> None:
        start = frames.Start("none", None, None, None, None, None, None, 4, True, None, None, None)
        process = EngineProcess(start, 4)
        engine = Engine(process, says)
        process._connection = engine  # type: ignore[assignment]
        process.ready = frames.Ready(64, 64, True, True, True, [])
        app = App(process, Settings(MODEL, key, LOOPBACK), 0)
        server = http_server(app)
        with socket.create_server(("127.0.0.1", 0)) as listener:
            serving = asyncio.create_task(server.serve([listener]))
            found.append(Served(app, engine, listener.getsockname()[1], server.server_state.connections))
            ready.set()
            await stop.wait()
            server.end()
            await serving

    logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
    thread = threading.Thread(target=asyncio.run, args=(serve(),))
    thread.start()
    try:
        assert ready.wait(PATIENCE)
        yield found[0]
    finally:
        if found:
            found[0].loop.call_soon_threadsafe(stop.set)
        thread.join(PATIENCE)
        assert not thread.is_alive()
