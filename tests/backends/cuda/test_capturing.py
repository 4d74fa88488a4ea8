"""What holds while a graph is captured, and where a thread does without the compiler."""

from __future__ import annotations

import gc
from threading import Barrier, Thread

import pytest

from ingot.backends.cuda.capturing import capturing
from ingot.backends.cuda.compiled_only import compiled_only, is_compiled_only


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
