"""LLM from several sides at once: streams, threads, event loops, and everything that ends a request."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import itertools
import threading
import time
from typing import Any

import pytest

from ingot.engine.session import Engine
from ingot.errors import IngotError, RequestError, ValueFault
from ingot.llm.llm import LLM
from tests.llm.pico import idle


def test_pieces_add_up(llm: LLM) -> None:
    for words in ({}, {"stop": ["return"]}, {"temperature": 1.0, "seed": 1}):
        whole = llm.generate("def quicksort(items):\n", max_tokens=60, **words)  # type: ignore[arg-type]
        with llm.stream("def quicksort(items):\n", max_tokens=60, **words) as stream:  # type: ignore[arg-type]
            pieces = list(stream)
        assert "".join(p.text for p in pieces) == whole.text == stream.completion.text
        assert [id for p in pieces for id in p.token_ids] == whole.token_ids
        assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert pieces[-1].finish_reason == whole.finish_reason == stream.completion.finish_reason
    assert idle(llm)


def test_leaving_a_stream_frees_its_blocks(llm: LLM) -> None:
    for leave in ("close", "drop", "with", "error"):
        stream = llm.stream("import os", max_tokens=900, ignore_end=True)
        next(stream)
        if leave == "close":
            stream.close()
            assert list(stream) == []
            assert stream.completion.finish_reason == "abort"
        elif leave == "drop":
            del stream
            gc.collect()
        elif leave == "with":
            with stream:
                next(stream)
        else:
            with pytest.raises(ZeroDivisionError), stream:
                _ = 1 / 0
        assert idle(llm), leave


def test_abort_by_name(llm: LLM) -> None:
    stream = llm.stream("import os", max_tokens=900, ignore_end=True, request_id="one")
    next(stream)
    with pytest.raises(RequestError, match="'one' is under way"):
        llm.generate("x", request_id="one")
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(llm.generate(["a", "b"], max_tokens=900, ignore_end=True, request_id="two"))
    )
    thread.start()
    while not llm.abort("two"):
        time.sleep(0.001)
    thread.join()
    assert [c.finish_reason for c in results[0]] == ["abort", "abort"]
    assert llm.abort("one")
    assert list(stream)[-1].finish_reason == "abort"
    assert not llm.abort("one")
    assert not llm.abort("never")
    assert llm.generate("x", request_id="one", max_tokens=1).completion_tokens == 1
    assert idle(llm)


def test_many_threads_at_once(llm: LLM, prompts: list[str]) -> None:
    wanted = [c.token_ids for c in llm.generate(prompts[:8], max_tokens=16)]
    found: dict[int, list[int]] = {}

    def work(i: int) -> None:
        if i % 3 == 2:
            with llm.stream(prompts[i % 8], max_tokens=300) as stream:
                next(stream)  # and leave
        elif i % 3 == 1:
            pieces = list(llm.stream(prompts[i % 8], max_tokens=16))
            found[i] = [id for piece in pieces for id in piece.token_ids]
        else:
            found[i] = llm.generate(prompts[i % 8], max_tokens=16).token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert all(ids == wanted[i % 8] for i, ids in found.items())
    assert idle(llm)


@pytest.mark.parametrize("error", [ValueFault, MemoryError, RuntimeError])
def test_an_error_ends_the_requests_of_its_step_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    runner, real = llm._runner, llm._runner.run
    steps = itertools.count()

    def failing(step: Any) -> Any:
        if next(steps) == 3:
            raise error("on purpose")
        return real(step)

    monkeypatch.setattr(runner, "run", failing)
    message = {ValueFault: "^on purpose", MemoryError: "out of memory", RuntimeError: "RuntimeError: on purpose"}[error]
    with pytest.raises(IngotError, match=message):
        llm.generate(["import os", "def f"], max_tokens=50, ignore_end=True)
    assert llm.generate("import os", max_tokens=4, ignore_end=True).completion_tokens == 4
    steps = itertools.count()
    with pytest.raises(IngotError, match=message):
        list(llm.stream("import os", max_tokens=50, ignore_end=True))
    assert idle(llm)


def test_closing_answers_everybody(engine: Engine) -> None:
    model = LLM(engine, threads=1)
    stream = model.stream("import os", max_tokens=900, ignore_end=True)
    next(stream)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(model.generate("a", max_tokens=900, ignore_end=True)))
    thread.start()
    while len(model._loop._scheduler.running) < 2:
        time.sleep(0.001)
    model.close()
    model.close()
    thread.join()
    assert results[0].finish_reason == "abort"
    assert list(stream)[-1].finish_reason == "abort"
    with pytest.raises(RequestError, match="closed"):
        model.generate("x")
    with pytest.raises(RequestError, match="closed"):
        model.score("x y z")


def test_a_fault_in_the_loop_itself_leaves_nobody_waiting(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LLM(engine, threads=1)
    monkeypatch.setattr(model._loop._scheduler, "plan", lambda drafts: 1 / 0)
    with pytest.raises(IngotError, match="the engine loop has ended: ZeroDivisionError"):
        model.generate(["a", "b"])
    with pytest.raises(RequestError, match="closed"):
        model.generate("x")


def test_a_dropped_model_ends_its_thread(engine: Engine) -> None:
    model = LLM(engine, threads=1)
    thread = model._loop._thread
    model.generate("x", max_tokens=1)
    del model
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


def test_async_streams_agree_and_close(llm: LLM, prompts: list[str]) -> None:
    """Many at once in one event loop; cancelling ends the request and frees its blocks."""

    async def one(prompt: str) -> str:
        return "".join([piece.text async for piece in llm.astream(prompt, max_tokens=9)])

    async def main() -> list[str]:
        texts = await asyncio.gather(*map(one, prompts))
        task = asyncio.create_task(llm.agenerate(prompts[0], max_tokens=100, ignore_end=True))
        await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        stream = llm.astream(prompts[1], max_tokens=100, ignore_end=True)
        await anext(stream)
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        return list(texts)

    texts = asyncio.run(main())
    assert texts == [llm.generate(prompt, max_tokens=9).text for prompt in prompts]
    assert idle(llm)
    with pytest.raises(RequestError, match="open 2 streams"):
        asyncio.run(llm.agenerate("x", n=2))
