"""What a server refuses when more is asked of it than it can answer, and in which order it takes the rest."""

from __future__ import annotations

import argparse
import threading
from typing import Any

import pytest

from ingot.cli import options
from ingot.serve import frames, worker
from ingot.serve.engine_process import EngineProcess
from ingot.serve.pace import Pace
from ingot.serve.problem import Problem
from tests import kept
from tests.serve.harness import MODEL, serving

PLACES = 8


def busy(pace: Pace, seconds: float, per_second: float, begin: float = 0.0) -> None:
    """Looks four times a second while something waits and answers end."""
    looks = int(seconds * 4)
    for i in range(looks):
        pace.look(begin + i / 4, True)
        pace.ended(round((i + 1) * per_second / 4) - round(i * per_second / 4))
    pace.look(begin + looks / 4, False)


def test_a_queue_has_a_length_in_seconds() -> None:
    pace = Pace(PLACES)
    assert pace.seconds(100) == 0.0, "nothing is known"
    busy(pace, 20, 10)
    assert pace.seconds(100) == pytest.approx(10, rel=0.05)
    pace.look(1000.0, False)
    pace.ended(3)
    pace.look(2000.0, False)
    assert pace.seconds(100) == pytest.approx(10, rel=0.05), "a server with room has no pace"
    busy(pace, 100, 1, begin=3000.0)
    assert pace.seconds(10) == pytest.approx(10, rel=0.1), "only what ended last counts"
    busy(pace, 60, 0, begin=4000.0)
    assert pace.seconds(10) > 30, "nothing ends any more"


def test_answers_that_began_together_have_not_been_slow() -> None:
    pace = Pace(PLACES)
    busy(pace, 6, 0)
    assert pace.seconds(PLACES) == pytest.approx(6), "as if all that run ended now"


def process(max_wait: float) -> EngineProcess:
    """One whose engine runs nothing, and says nothing but what a test says for it."""
    start = frames.Start("none", None, None, None, None, None, None, PLACES, True, None, None, None)
    engine = EngineProcess(start, 1000, max_wait=max_wait)
    engine._connection = type("Deaf", (), {"send": lambda self, data: None})()
    engine.ready = frames.Ready(64, 64, True, False, True, [])
    engine.load = frames.Load(PLACES, 0, 0, 0, 0, 0, 0, 0, 0, 0.0)
    return engine


@pytest.mark.parametrize(("max_wait", "taken"), [(5.0, 50), (20.0, 200), (0.0, 300)])
def test_what_would_wait_too_long_is_refused(max_wait: float, taken: int) -> None:
    """At ten answers a second."""
    engine = process(max_wait)
    busy(engine._pace, 20, 10)
    found: list[Any] = []
    for _ in range(PLACES + 300):
        try:
            engine.submit([frames.Embed(engine.next_id(), ["x"])], "input")
        except Problem as problem:
            found.append(problem)
    assert abs(engine.waiting - taken) <= 1
    for problem in found:
        assert (problem.status, problem.code) == (429, "queue_full")
        assert problem.retry_after == pytest.approx(max_wait, abs=1)
    engine._held.clear()
    busy(engine._pace, 600, 0.01, begin=100.0)
    engine.admit(1, "n")  # whoever finds no queue does not wait, whatever was before


def test_a_short_prompt_overtakes_long_ones() -> None:
    order: list[str] = []
    held, begun, ended = threading.Event(), threading.Semaphore(0), threading.Semaphore(0)
    encoders = worker.Encoders(lambda work: work())

    def busy() -> None:
        begun.release()
        held.wait()

    def noted(name: str) -> None:
        order.append(name)
        ended.release()

    for _ in range(worker.ENCODERS):
        encoders.submit(1, busy)
        begun.acquire()
    for name, characters in (("first", 1_000_000), ("second", 1_000_000), ("short", 100), ("shorter", 10)):
        encoders.submit(characters, lambda name=name: noted(name))  # type: ignore[misc]
    held.set()
    for _ in range(4):
        assert ended.acquire(timeout=60)
    assert set(order[:2]) == {"short", "shorter"} and set(order[2:]) == {"first", "second"}


def test_the_first_message_has_every_word_for_a_model() -> None:
    """A new word of LLM's on the command line is one of the server's."""
    parser = argparse.ArgumentParser()
    options.add_model(parser)
    words = options.model_words(parser.parse_args(["source"]))
    assert words.keys() <= set(frames.Start.__struct_fields__)


def test_a_full_server_refuses_before_the_body_has_come() -> None:
    head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    words = ("--max-running", 1, "--max-queue", 0, "--kv-memory", "64MiB")
    with serving(*words, source=kept.endless()) as server:
        running = server.send("/v1/completions", {"model": MODEL, "prompt": "x", "max_tokens": 50_000, "stream": True})
        running.recv(1)
        with server.connect() as asking:
            asking.sendall(head + b"Content-Length: 900000\r\n\r\n{")
            assert asking.recv(1 << 16).startswith(b"HTTP/1.1 429 ")
        running.close()
