"""What runs beside the steps of target cuda: in its order, ended with its session, and letting others pass."""

from __future__ import annotations

import gc
import logging
import subprocess
import sys
from threading import Barrier, Event, Thread, current_thread

import pytest

from ingot.backends.cuda.background import SWITCH, Background, capturing, compiled_only, gives_way, is_compiled_only


def test_the_order_of_work() -> None:
    """As it was asked for, in one thread, which is there while there is work."""
    done: list[object] = []
    background, free, begun = Background("behind"), Event(), Event()
    background.ask(lambda: (begun.set(), free.wait(60), done.append(current_thread().name)))
    assert begun.wait(60)
    for number in range(3):
        background.ask(lambda n=number: done.append((n, current_thread().name)))
    assert not done
    free.set()
    background.wait()
    assert done == ["behind", (0, "behind"), (1, "behind"), (2, "behind")]
    background.ask(lambda: done.append("again"))  # in another thread, for the first one has ended
    background.wait()
    assert done[-1] == "again"


def test_work_that_fails_is_said_and_the_next_is_done(caplog: pytest.LogCaptureFixture) -> None:
    background, done = Background("behind"), []
    with caplog.at_level(logging.ERROR, "ingot.cuda"):
        background.ask(lambda: 1 // 0)  # type: ignore[arg-type, return-value]
        background.ask(lambda: done.append(1))
        background.wait()
    assert done == [1] and "ZeroDivisionError" in caplog.text


def test_no_thread_is_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """It is said, nobody waits for one, and the next work is tried again."""
    background, done = Background("behind"), []

    def start(self: Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patched, caplog.at_level(logging.WARNING, "ingot.cuda"):
        patched.setattr(Thread, "start", start)
        background.ask(lambda: done.append(1))
        background.wait()
    assert "can't start new thread" in caplog.text
    background.ask(lambda: done.append(2))
    background.wait()
    background.close()
    assert done == [2]


def test_close() -> None:
    """What has begun ends first, and nothing begins."""
    background, free, begun, done = Background("behind"), Event(), Event(), []
    background.ask(lambda: (begun.set(), free.wait(60), done.append("begun")))
    background.ask(lambda: done.append("next"))
    assert begun.wait(60)
    closing = Thread(target=background.close)
    closing.start()
    while not background._closed:
        assert closing.is_alive()
    assert closing.is_alive() and not done
    free.set()
    closing.join()
    assert done == ["begun"]
    background.ask(lambda: done.append("late"))
    background.close()
    assert done == ["begun"]


def test_close_in_the_thread_itself() -> None:
    """Where the last who had a session was the work."""
    background, done = Background("behind"), []
    background.ask(lambda: (background.close(), done.append(1)))
    background.wait()
    assert done == [1]


@pytest.mark.parametrize("last", ["0", "owner.clear()"])
def test_a_process_ends_while_there_is_work(last: str) -> None:
    """Its owner's end closes it, also where the work was the last who had the owner: then nobody has waited."""
    code = (
        "import threading, time, weakref\nfrom ingot.backends.cuda.background import Background\n"
        "class Owner: pass\n"
        "owner, background = [Owner()], Background('behind')\n"
        "weakref.finalize(owner[0], background.close)\n"
        "begun = threading.Event()\n"
        f"background.ask(lambda: ({last}, begun.set(), time.sleep(0.2), print('whole')))\n"
        "background.ask(lambda: print('next'))\n"
        "begun.wait()\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["whole"], "")


def test_nothing_is_collected_inside_of_a_capture() -> None:
    assert gc.isenabled()
    with capturing():
        with pytest.raises(ZeroDivisionError), capturing():
            1 // gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    gc.disable()
    try:
        with capturing():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_only_this_thread_wants_what_is_compiled() -> None:
    both, found = Barrier(2), []

    def other() -> None:
        both.wait()
        found.append(is_compiled_only())
        both.wait()

    thread = Thread(target=other)
    thread.start()
    with compiled_only():
        both.wait()
        both.wait()
        found.append(is_compiled_only())
    thread.join()
    assert found == [False, True] and not is_compiled_only()


def test_giving_way() -> None:
    before = sys.getswitchinterval()

    def fails() -> None:
        with gives_way():
            assert sys.getswitchinterval() == pytest.approx(SWITCH)
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fails()
    assert sys.getswitchinterval() == before
    one, other = gives_way(), gives_way()  # of two threads, the first of which is done first
    with one:
        other.__enter__()
    assert sys.getswitchinterval() == pytest.approx(SWITCH)
    other.__exit__(None, None, None)
    assert sys.getswitchinterval() == before
