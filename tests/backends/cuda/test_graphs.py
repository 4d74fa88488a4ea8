"""What target cuda asks of torch when it captures a step, seen by something in torch's place."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from ingot.backends.cuda import capturing
from ingot.backends.cuda.net_executor import NetExecutor
from ingot.backends.cuda.net_forms import Forms
from ingot.backends.cuda.steps import Graphs


class Torch:
    """Notes what is asked. fails: what raises."""

    uint8, bfloat16 = "uint8", "bfloat16"

    def __init__(self, *fails: str) -> None:
        self.asked: list[Any] = []
        self.fails = [*fails]
        self.cuda = SimpleNamespace(
            graph_pool_handle=lambda: self.note("pool"), Stream=lambda device: self.note(f"stream of {device.index}"),
            CUDAGraph=lambda: SimpleNamespace(
                capture_begin=lambda **words: self.note(("begin", words)), capture_end=lambda: self.note("end"),
                replay="replay",
            ), stream=self.stream,
        )  # fmt: skip
        self._C = SimpleNamespace(_cuda_endAllocateToPool=lambda index, pool: self.note(("left", index, pool)))

    def note(self, what: Any) -> Any:
        self.asked.append(what)
        if what in self.fails:
            self.fails.remove(what)
            raise RuntimeError(f"{what} failed")
        return what

    @contextmanager
    def stream(self, stream: str) -> Iterator[None]:
        self.note(f"on {stream}")
        yield
        self.note("off")

    def zeros(self, shape: Any, dtype: str, device: Any) -> str:
        return "zeros"

    def mm(self, a: str, b: str) -> None:
        self.note("product")

    def empty(self, count: int, dtype: str, device: Any) -> None:
        self.note(f"{count} bytes")


BEGIN = ("begin", {"pool": "pool", "capture_error_mode": "thread_local"})
BEFORE = ["pool", "stream of 2", "on stream of 2", "product", BEGIN]
DEVICE = SimpleNamespace(index=2)


def test_a_capture() -> None:
    """On a stream of its own, in one pool, which has room for the largest from the first one on; the library's handle
    is made before."""
    torch = Torch()
    graphs = Graphs(torch, DEVICE, 1000)
    found = graphs.captured(lambda: torch.note("work") and {})
    assert torch.asked == [*BEFORE, "1000 bytes", "work", "end", "off"] and found.replay == "replay"
    torch.asked.clear()
    graphs.captured(lambda: torch.note("work") and {})
    assert torch.asked == ["on stream of 2", "product", BEGIN, "work", "end", "off"]


@pytest.mark.parametrize("fails", ["work", "end", "1000 bytes", ("work", "end")])
def test_a_capture_that_fails_is_ended(fails: Any) -> None:
    """So is what torch's allocator knows of it; why is told, and the next one is as if there had been none."""
    torch = Torch(*((fails,) if isinstance(fails, str) else fails))
    graphs = Graphs(torch, DEVICE, 1000)
    with pytest.raises(RuntimeError) as raised:
        graphs.captured(lambda: torch.note("work") and {})
    assert torch.asked[-2:] == ["end", ("left", 2, "pool")]
    first = fails if isinstance(fails, str) else fails[0]
    assert str(raised.value.__context__ or raised.value) == f"{first} failed"
    torch.asked.clear()
    graphs.captured(lambda: torch.note("work") and {})
    assert torch.asked == ["on stream of 2", "product", BEGIN, "work", "end", "off"]


@pytest.mark.parametrize("whose", ["a step's", "a net's", "that of ways which are timed"])
def test_one_capture_at_a_time(whose: str) -> None:
    """Whose ever it is, and with it a wait for the device, which would end another thread's; and nothing is
    collected."""
    torch, alone = Torch(), []

    def note(*_: Any, **words: Any) -> Any:
        alone.append(capturing._captures._is_owned() and not gc.isenabled())
        return nullcontext()

    torch.cuda.synchronize, torch.cuda.graph = note, note
    executor = SimpleNamespace(_torch=torch, _pool=None)
    forms = SimpleNamespace(torch=torch, made=SimpleNamespace(refused={}))
    if whose == "a step's":
        Graphs(torch, DEVICE, 0).captured(lambda: note() and {})
    elif whose == "a net's":
        NetExecutor._captured(executor, lambda: note() and {})
    else:
        torch.cuda.Event = lambda **words: SimpleNamespace(record=int, synchronize=int, elapsed_time=lambda end: 1.0)
        torch.cuda.CUDAGraph = lambda: SimpleNamespace(replay=int)
        assert Forms._time(forms, "way", note) == 1.0
        assert alone.pop(0) is False  # the first run is none of the capture
    assert len(alone) > 0 and all(alone) and not capturing._captures._is_owned() and gc.isenabled()
