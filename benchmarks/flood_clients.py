"""Clients that mean no good: they send and leave, say nothing, read nothing, or take for ever; and a normal one."""

from __future__ import annotations

import asyncio
import json
import resource
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

EMBED, CHAT, TEXT = "/v1/embeddings", "/v1/chat/completions", "/v1/completions"
LINE = "x = (a + b) * 17\n"
ENDLESS = {"max_tokens": 1000, "stream": True, "logit_bias": {"0": -100}}


def _head(path: str, length: int) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {length}\r\n\r\n".encode()


async def _open(port: int, sent: bytes = b"") -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 12)
    writer.write(sent)
    await writer.drain()
    return reader, writer


def _text(length: int) -> str:
    return LINE * (length // len(LINE))


async def _dropped(port: int, path: str, body: dict[str, Any], count: int, seconds: float) -> None:
    """Requests that are sent whole, evenly over that time, by clients that leave at once."""
    data = json.dumps({"model": "m"} | body).encode()
    whole = _head(path, len(data)) + data
    begin = time.monotonic()

    async def one(at: float) -> None:
        await asyncio.sleep(begin + at - time.monotonic())
        with suppress(OSError):
            _, writer = await _open(port, whole)
            writer.close()
            await writer.wait_closed()

    await asyncio.gather(*(one(i * seconds / count) for i in range(count)))


async def embeddings(port: int, context: int) -> None:
    """100 of 1 MB, within 3.6 s."""
    await _dropped(port, EMBED, {"input": _text(1_000_000)}, 100, 3.6)


async def chats(port: int, context: int) -> None:
    """60 of 0.85 MB, within 3.6 s."""
    await _dropped(port, CHAT, {"messages": [{"role": "user", "content": _text(850_000)}]}, 60, 3.6)


async def long_chats(port: int, context: int) -> None:
    """60 as long as any text may be that is tokenised at all, within 3.6 s."""
    body = {"messages": [{"role": "user", "content": _text(100 * context)}]}
    await _dropped(port, CHAT, body, 60, 3.6)


async def small_embeddings(port: int, context: int) -> None:
    """5,000, within 20 s."""
    await _dropped(port, EMBED, {"input": "import os"}, 5000, 20.0)


async def dropped_streams(port: int, context: int) -> None:
    """200 long answers, each left in its middle."""
    data = json.dumps({"model": "m", "prompt": "x"} | ENDLESS).encode()

    async def one() -> None:
        with suppress(OSError):
            reader, writer = await _open(port, _head(TEXT, len(data)) + data)
            await reader.readexactly(40_000)  # some 200 tokens
            writer.transport.abort()

    await asyncio.gather(*(one() for _ in range(200)), return_exceptions=True)


async def slow_readers(port: int, context: int) -> None:
    """50 long answers of which nobody reads anything for 15 s: more than a socket takes."""
    data = json.dumps({"model": "m", "prompt": "x", "logprobs": 20} | ENDLESS).encode()
    held = [await _open(port, _head(TEXT, len(data)) + data) for _ in range(50)]
    await asyncio.sleep(15.0)
    for _, writer in held:
        writer.transport.abort()


async def dribbling_bodies(port: int, context: int) -> None:
    """200 bodies that come by the byte, ten bytes a second, for 15 s; half of them behind a refusal."""
    paths = (TEXT, "/nowhere")
    held = [await _open(port, _head(paths[i % 2], 1_000_000)) for i in range(200)]
    until = time.monotonic() + 15.0
    while time.monotonic() < until:
        for _, writer in held:
            if not writer.is_closing():
                writer.write(b"x")
        await asyncio.sleep(0.1)
    for _, writer in held:
        writer.transport.abort()


async def silent_sockets(port: int, context: int) -> None:
    """1,300 connections that say nothing, for 15 s; what the server closes is opened again within a second."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (2048, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    held: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
    until = time.monotonic() + 15.0
    while time.monotonic() < until:
        for reader, writer in held:
            if reader.at_eof() or writer.is_closing():
                writer.transport.abort()
        held = [one for one in held if not one[1].is_closing()]
        opened = await asyncio.gather(*(_open(port) for _ in range(1300 - len(held))), return_exceptions=True)
        held += [one for one in opened if not isinstance(one, BaseException)]
        await asyncio.sleep(1.0)
    for _, writer in held:
        writer.transport.abort()


# Each with the seconds that it takes, about.
FLOODS: dict[str, tuple[Callable[[int, int], Awaitable[None]], float]] = {
    "embeddings": (embeddings, 4.0),
    "chats": (chats, 4.0),
    "long chats": (long_chats, 4.0),
    "silent sockets": (silent_sockets, 15.0),
    "slow readers": (slow_readers, 15.0),
    "dribbling bodies": (dribbling_bodies, 15.0),
    "small embeddings": (small_embeddings, 20.0),
    "dropped streams": (dropped_streams, 10.0),
}


async def flood(port: int, name: str, context: int, begin: float) -> list[float]:
    """One of them; when it began and when it ended."""
    await asyncio.sleep(begin - time.monotonic())
    await FLOODS[name][0](port, context)
    return [begin, time.monotonic()]


async def probe(port: int, until: float) -> list[tuple[float, float, int]]:
    """A normal client, which asks again and again for 16 tokens: when, seconds, status (0: no answer)."""
    data = json.dumps({"model": "m", "prompt": "def quicksort(items):", "max_tokens": 16, "temperature": 0,
                       "logit_bias": {"0": -100}}).encode()  # fmt: skip
    found = []
    while (begin := time.monotonic()) < until:
        status = 0
        with suppress(OSError, IndexError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(_head(TEXT, len(data)).replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + data)
            got = await reader.read()
            writer.close()
            status = int(got.split(b" ", 2)[1])
        found.append((begin, time.monotonic() - begin, status))
        await asyncio.sleep(0.02)
    return found
