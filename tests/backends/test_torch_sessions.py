"""Sessions on torch: what they read back, whose memory results are, how many threads a run takes, profiles."""

from __future__ import annotations

import math
import re
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot.backends import torch_device, torch_executor
from ingot.backends.base import Target
from ingot.backends.cpu import CPU
from ingot.backends.device import RUNTIMES
from ingot.backends.kernel import Kernel, Operand
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import ArgumentError, DeviceError, InputError, MemoryLimitError, NetworkError, UserError, ValueFault
from ingot.ir import OPS, F, Network, Op, Spec
from ingot.ops import in_torch
from ingot.ops.layouts import LAYOUTS, PLAIN
from tests import nets
from tests.kept import PICO

Array = np.ndarray[Any, Any]

READS = ("cpu", "item", "tolist", "numpy", "nonzero", "__bool__", "__int__", "__float__", "__index__", "__array__")


class Reads:
    """Counts what would wait for a device, and copy from it, were the tensors there."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counts: Counter[str] = Counter()
        patch.setattr(in_torch, "away", lambda device: True)
        for name in READS:
            self._count(patch, name)
        to = torch.Tensor.to

        def moved(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            self.counts["to the host"] += args[:1] == ("cpu",)
            return to(tensor, *args, **kwargs)

        patch.setattr(torch.Tensor, "to", moved)

    def _count(self, patch: pytest.MonkeyPatch, name: str) -> None:
        whole = getattr(torch.Tensor, name)

        def counted(tensor: Any, *args: Any, **kwargs: Any) -> Any:
            self.counts[name] += 1
            return whole(tensor, *args, **kwargs)

        patch.setattr(torch.Tensor, name, counted)

    def taken(self) -> dict[str, int]:
        """Since the last time."""
        found, self.counts = {k: n for k, n in self.counts.items() if n}, Counter()
        return found


def test_a_decoder_reads_back_once_a_step(pico: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits, hidden states and verdicts come in one transfer, of the rows that were asked for. `numpy` is of what has
    come.
    """
    engine = ingot.build(pico, precision="float32", report=False)
    steps: list[dict[str, int]] = []
    rows: list[int] = []
    with monkeypatch.context() as patch:
        reads = Reads(patch)
        run = torch_executor.TorchExecutor.run

        def counted(self: Any, feeds: dict[str, Array], out: Any = None) -> dict[str, Array]:
            reads.taken()
            found = run(self, feeds, out)
            steps.append(reads.taken())
            rows.append(len(found["logits"]) - len(feeds["logit_rows"]))
            return found

        patch.setattr(torch_executor.TorchExecutor, "run", counted)
        with ingot.LLM(engine, device="torch:cpu") as llm:
            (one, two) = llm.generate(["import os", "def fib(n):"], max_tokens=6)
    assert len(one.token_ids) == len(two.token_ids) == 6 and len(steps) >= 6
    assert steps == [{"to the host": 1, "numpy": 3}] * len(steps)
    assert not any(rows)
    with ingot.LLM(engine, device="torch:cpu") as llm:
        assert [c.token_ids for c in llm.generate(["import os", "def fib(n):"], max_tokens=6)] == [
            one.token_ids, two.token_ids,
        ]  # fmt: skip


def test_a_net_reads_back_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """With one output, without anything that may be a fault."""
    network = Network("n")
    x = network.input("x", Spec(("T", 4), "float32"))
    network.output("y", F.softmax(x * 2.0))
    session = build_network(network, {}).session(device="torch:cpu")
    reads = Reads(monkeypatch)
    session.run({"x": np.ones((3, 4), np.float32)})
    assert reads.taken() == {"to the host": 1, "numpy": 1}


def test_states_stay_where_they_are() -> None:
    network = nets.llama(layers=1)
    session = build_network(network, nets.weights(network)).session(kv_blocks=8, device="torch:cpu")
    held: Any = session._executor._network  # type: ignore[attr-defined]
    stored = [v.spec.evaluate({}) for v in (*held.parameters, *held.constants)]
    assert session.memory().weights == 4 * sum(map(math.prod, stored))
    (state,) = session._executor._states.values()
    before = state.data_ptr(), state.clone()
    session.run(nets.step())
    (after,) = session._executor._states.values()
    assert after.data_ptr() == before[0] and not torch.equal(after, before[1])


def test_results_are_nobody_elses() -> None:
    """What shows a weight, a constant or another result may be written to."""
    network = Network("n")
    x = network.input("x", Spec((2, 3), "float32"))
    weight = network.parameter("w", Spec((2, 3), "float32"))
    network.output("turned", F.permute(weight, (1, 0)))
    network.output("same", x)
    network.output("again", F.reshape(x, (6,)))
    network.output("fixed", network.constant(np.arange(3)))
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    for device in ("cpu", "torch:cpu"):
        session = build_network(network, {"w": np.ones((2, 3), np.float32)}).session(device=device)
        first = session.run(feeds)
        kept = {name: array.copy() for name, array in first.items()}
        for array in first.values():
            array += 7
            for name, other in kept.items():
                assert not np.shares_memory(array, other), name
        assert (first["same"].reshape(6) == first["again"]).all() and (first["same"] == feeds["x"] + 7).all()
        for name, array in session.run(feeds).items():
            np.testing.assert_array_equal(array, kept[name], err_msg=f"{name} on {device}")


# -------------------------------------------------------------------------------------------------------------- threads


@pytest.fixture
def four(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """torch with four threads, on four processors."""
    before = torch.get_num_threads()
    torch.set_num_threads(4)
    monkeypatch.setattr(torch_device, "processors", lambda: 4)
    yield
    torch.set_num_threads(before)


def net() -> Any:
    network = Network("n")
    x = network.input("x", Spec(("T",), "float32"))
    network.output("y", F.neg(x))
    return build_network(network, {})


FEEDS = {"x": np.ones(3, np.float32)}


def test_threads_of_a_run(four: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session's number holds while it runs, and torch has its own again then."""
    seen: list[int] = []
    form = OPS["neg"].torch

    def look(self: Op, torch: Any, x: Any) -> Any:
        seen.append(torch.get_num_threads())
        return form(self, torch, x)

    monkeypatch.setattr(OPS["neg"], "torch", look)
    engine = net()
    for threads, wanted in ((1, 1), (3, 3), (None, 4), (0, 4)):
        session = engine.session(threads, device="torch:cpu")
        assert session.threads == wanted and torch.get_num_threads() == 4
        session.run(FEEDS)
        assert seen.pop() == wanted and torch.get_num_threads() == 4
        session._executor._device = SimpleNamespace(type="cuda")  # type: ignore[attr-defined]
        assert session.threads == 1, "torch's threads are the processor's"
    monkeypatch.setattr(torch_device, "processors", lambda: 2)
    engine.session(device="torch:cpu").run(FEEDS)
    assert seen == [2] and torch.get_num_threads() == 4


def test_threads_of_runs_side_by_side(four: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Later ones get what those under way leave, at least one, unless they have a number of their own."""
    seen: dict[str, int] = {}
    inside = {name: threading.Event() for name in "abcd"}
    go = threading.Event()
    form = OPS["neg"].torch

    def look(self: Op, torch: Any, x: Any) -> Any:
        name = threading.current_thread().name
        seen[name] = torch.get_num_threads()
        inside[name].set()
        assert go.wait(60)
        assert torch.get_num_threads() == seen[name], "each thread has its own number"
        return form(self, torch, x)

    monkeypatch.setattr(OPS["neg"], "torch", look)
    engine = net()
    threads = []
    for name, number in (("a", 3), ("b", None), ("c", None), ("d", 2)):
        session = engine.session(number, device="torch:cpu")
        threads.append(threading.Thread(target=session.run, args=(FEEDS,), name=name))
        threads[-1].start()
        assert inside[name].wait(60)
    go.set()
    for thread in threads:
        thread.join()
    assert seen == {"a": 3, "b": 1, "c": 1, "d": 2}
    after: list[int] = []
    later = threading.Thread(target=lambda: after.append(torch.get_num_threads()))
    later.start()
    later.join()
    assert [torch.get_num_threads(), *after] == [4, 4]


# ------------------------------------------------------------------------------------------------------------ profiles


def test_a_profile_is_of_the_nodes() -> None:
    """Of the same form as the CPU's; a fault is one there too."""
    network = nets.llama(layers=1)
    engine = build_network(network, nets.weights(network))
    sessions = {device: engine.session(kv_blocks=8, device=device) for device in ("cpu", "torch:cpu")}
    begin = time.perf_counter_ns()
    found = {device: session.profile(nets.step()) for device, session in sessions.items()}
    assert sum(item["ns"] for items in found.values() for item in items) < time.perf_counter_ns() - begin
    kinds = {device: {frozenset(item) for item in items} for device, items in found.items()}
    assert kinds["torch:cpu"] == {kind - {"waited_ns"} for kind in kinds["cpu"]}, "torch says nothing of its threads"
    items = found["torch:cpu"]
    assert [item["call"] for item in items] == list(range(len(items)))
    (attention,) = [item for item in items if item["kernel"] == "paged_attention"]
    assert attention["where"] == "model.layers.0" and attention["ns"] > 0
    assert attention["in"][:2] == [("float32", [6, 4, 16]), ("float32", [8, 16, 2, 2, 16])]
    assert attention["out"] == [("float32", [6, 4, 16])]
    assert attention["bytes"] == 4 * (2 * 6 * 4 * 16 + 8 * 16 * 2 * 2 * 16 + 2 + 1 + 1)
    bad = nets.step()
    bad["token_ids"][0] = 80
    with pytest.raises(ValueFault, match="embedding"):
        sessions["torch:cpu"].profile(bad)


def test_a_call_on_a_device_has_ended_when_its_time_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """The device is not there: what would wait for it is counted."""
    waited: list[Any] = []
    session = net().session(device="torch:cpu")
    executor: Any = session._executor
    monkeypatch.setattr(executor, "_device", SimpleNamespace(type="cuda"))
    monkeypatch.setattr(torch.accelerator, "synchronize", waited.append)
    assert executor._now(None) == 0 and not waited
    assert executor._now([]) > 0 and waited == [executor._device]


def test_devices_that_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    def package(kind: str | None) -> Any:
        found = None if kind is None else SimpleNamespace(type=kind)
        return SimpleNamespace(accelerator=SimpleNamespace(current_accelerator=lambda: found, device_count=lambda: 2))

    assert torch_device.present(package(None)) == ["torch:cpu"]
    assert torch_device.present(package("cuda")) == ["torch:cpu", "torch:cuda:0", "torch:cuda:1"]


def test_memory_that_is_free_on_a_device(monkeypatch: pytest.MonkeyPatch) -> None:
    known = SimpleNamespace(device=torch.device, cuda=SimpleNamespace(mem_get_info=lambda device: (7, 9)), xpu=None)
    monkeypatch.setattr(torch_device, "package", lambda: known)
    assert [torch_device.available(name) for name in ("cpu", "cuda:0", "xpu:0", "mps")] == [None, 7, None, None]


# -------------------------------------------------------------------------------------------------------------- memory


def test_what_is_alive_at_once_is_planned() -> None:
    """x and its exp; that and its negation, for x is gone; that, for it is wanted, and the sum."""
    network = Network("net")
    x = network.input("x", Spec((Dim("N", min=2, max=64), 4), "float32"))
    network.outputs["y"] = y = F.neg(F.exp(x))
    network.outputs["z"] = F.reduce_sum(F.sqrt(F.abs(y)))
    session = build_network(network, {}).session(device="torch:cpu")
    executor: Any = session._executor
    for n in (2, 3, 64):
        most = 3 * 16 * n  # y, its magnitude and the root of that
        assert executor.planned({"N": n}) == {
            "buffers": most, "lower_bound": most, "working": 0, "arena": most, "most_at": 3,
        }  # fmt: skip
    assert session.memory().arena == 0
    session.run({"x": np.ones((3, 4), np.float32)})
    assert session.memory().arena == 3 * 16 * 3
    for n in (1, 65):
        with pytest.raises(InputError, match=f"N is {n}, outside its bounds"):
            executor.planned({"N": n})
    with pytest.raises(ArgumentError, match="sizes has no N"):
        executor.planned({})


def test_sizes_that_only_a_run_shows_are_not_planned() -> None:
    network = Network("net")
    x = network.input("x", Spec((Dim("N"),), "float32"))
    network.outputs["y"] = F.nonzero(F.abs(x))
    session = build_network(network, {}).session(device="torch:cpu")
    with pytest.raises(ArgumentError, match="only a run shows all sizes"):
        session.planned({"N": 3})
    assert session.run({"x": np.array([0, 2, 0, 3], np.float32)})["y"].size == 2
    assert session.memory().arena == 0


def test_an_engine_without_its_network() -> None:
    engine = net()
    engine.header["networks"].clear()
    with pytest.raises(UserError, match="has no network 'main', which device torch needs: build it again"):
        engine.session(device="torch:cpu")


# ------------------------------------------------------------------------------------------------- a device that fails


class CudaError(RuntimeError):
    """As torch.cuda.check_error raises it, which a torch for the CPU cannot make."""


@pytest.mark.parametrize(
    ("raised", "said"),
    [
        (torch.AcceleratorError("CUDA error: an illegal memory access was encountered\nCompile with …"),
         "illegal memory access was encountered"),
        (RuntimeError("CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx( handle )`"),
         "CUBLAS_STATUS_EXECUTION_FAILED when calling `cublasGemmEx"),
        (CudaError("device-side assert triggered (710)"), "device-side assert triggered"),
    ],
)  # fmt: skip
def test_a_device_that_fails(raised: Exception, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said by torch, or by a library that meets a device which failed before."""

    def fails(self: Op, torch: Any, x: Any) -> Any:
        raise raised

    session = net().session(device="torch:cpu")
    with monkeypatch.context() as patch:
        patch.setattr(OPS["neg"], "torch", fails)
        with pytest.raises(DeviceError, match=f"{said}.*; the device is of no more use"):
            session.run(FEEDS)
    assert session.run(FEEDS)["y"][0] == -1


FULL = [torch.AcceleratorError("CUDA error: out of memory\nCompile with …"), CudaError("out of memory (2)")]


@pytest.mark.parametrize("raised", FULL, ids=["torch", "CUDA"])
def test_a_device_that_is_full(raised: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said by CUDA, not by torch's allocator: the device goes on."""

    def fails(self: Op, torch: Any, x: Any) -> Any:
        raise raised

    session = net().session(device="torch:cpu")
    with monkeypatch.context() as patch:
        patch.setattr(OPS["neg"], "torch", fails)
        with pytest.raises(MemoryLimitError, match="out of memory"):
            session.run(FEEDS)
    assert session.run(FEEDS)["y"][0] == -1


# -------------------------------------------------------------------------------------------------------------- targets


def test_layouts_of_a_target() -> None:
    """Those that its kernels read: each is known, and none is there that nobody reads."""
    assert CPU.layouts == {PLAIN, *LAYOUTS}
    kernel = Kernel("k", operands=(Operand("x", None, layouts=("tiles",)),), results=(), runs={}, flops=None)
    with pytest.raises(NetworkError, match="cpu: its kernels read tiles, which no layout is called"):
        Target(RUNTIMES["cpu"], (kernel,), lambda target: [])


@pytest.mark.parametrize(("free", "ways"), [(20 << 20, 3), (2 << 20, 3), (14 << 16, 2), (64, 0)])
def test_a_cache_too_large_for_a_device(monkeypatch: pytest.MonkeyPatch, free: int, ways: int) -> None:
    """Whatever the error says would fit does, and leaves something to the steps."""
    taken: list[int] = []
    whole = torch_executor.TorchExecutor._empty

    def empty(executor: Any, spec: Any, opening: Any) -> Any:
        taken.append(opening.kv_blocks * torch_executor._block_bytes(spec, opening))
        if sum(taken) > free:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return whole(executor, spec, opening)

    monkeypatch.setattr(torch_executor.TorchExecutor, "_empty", empty)
    monkeypatch.setattr(torch_executor, "available_again", lambda name: free)
    engine = ingot.build(PICO, report=False).on("torch:cpu")
    words = {"kv_memory": 1 << 40, "max_running": 16}
    with pytest.raises(MemoryLimitError, match="the states on torch:cpu: CUDA out of memory; the KV cache takes") as e:
        ingot.LLM(engine, **words)
    assert f"{free:,} free" in str(e.value)
    advice = str(e.value).partition("what fits: ")[2]
    if not ways:
        assert "no cache fits" in str(e.value) and not advice
        return
    options = {"--context": "context_length", "--max-running": "max_running", "--kv-memory": "kv_memory"}
    found = [{options[o]: int(n) for o, n in re.findall(r"(--[a-z-]+) (\d+)", way)} for way in advice.split(", or ")]
    assert len(found) == ways
    for way in found:
        taken.clear()
        with ingot.LLM(engine, **words | way) as llm:
            assert llm.generate([1, 2], max_tokens=1).completion_tokens == 1
        assert free // 3 < sum(taken) <= free - free // torch_executor.STEPS_SHARE
