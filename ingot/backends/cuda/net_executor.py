"""An executor of nets on an NVIDIA GPU: each set of input sizes becomes a CUDA graph.

The first run of a size goes call by call, compiles what it needs and times ways to compute; the second one is captured,
and later ones are replayed. All graphs of a session share one memory pool, and their inputs lie at fixed addresses.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ingot import _lazy, dtypes
from ingot.backends.cuda.net_calls import Call, Sums, net_program
from ingot.backends.cuda.net_forms import Forms, NetMade, narrow, prepared
from ingot.backends.cuda.net_target import NET
from ingot.backends.cuda.page_locked import PAGE_LOCKED
from ingot.backends.cuda.program import Single
from ingot.backends.device import Opening
from ingot.backends.torch_device import Settings
from ingot.backends.torch_executor import TorchExecutor, item_of, load, typed_errors, written
from ingot.errors import BusyError
from ingot.ir import Network, Node, Value
from ingot.ir.interpret import learn
from ingot.ops.in_torch import call as by_form
from ingot.ops.in_torch import check, first_line, known, of_device, out_of_memory, to_array, to_arrays, to_tensor

Array = np.ndarray[Any, Any]

MOST_GRAPHS = 16  # of a session; the one that was used least recently goes
MOST_SEEN = 256  # sets of input sizes that a session remembers


def open_net(torch: Any, device: Any, opening: Opening) -> NetExecutor:
    """A session of a net. Raises UserError for an engine that cannot run there, MemoryLimitError."""
    key = ("cuda", str(device), opening.entry)
    made = opening.kept.get(key)
    if made is None:
        loaded = load(torch, opening, device, NET)
        made = opening.kept.setdefault(key, prepared(torch, loaded, net_program(loaded.network)))
    return NetExecutor(torch, device, made, opening)


@dataclass
class Sized:
    """What is known of one set of input sizes.

    by_reference: whether some op reads back on its way. fixed: stored tensors, and values that only sizes decide.
    inputs, pinned: where a captured run reads, and pinned memory for what comes from the host; outputs, flags: what it
    leaves. nodes: whose faults the flags tell.
    """

    sizes: dict[str, int]
    by_reference: bool = False
    fixed: dict[Value, Any] = field(default_factory=dict)
    replay: Callable[[], None] | None = None
    inputs: dict[str, Any] = field(default_factory=dict)
    pinned: dict[str, Any] = field(default_factory=dict)
    outputs: dict[str, Any] = field(default_factory=dict)
    nodes: list[Node] = field(default_factory=list)
    flags: Any = None


class NetExecutor(TorchExecutor):
    """See device.Executor."""

    def __init__(self, torch: Any, device: Any, made: NetMade, opening: Opening) -> None:
        super().__init__(torch, device, made.loaded, opening)
        self._made = made
        self._opening = opening
        self._forms = Forms(torch, device, made)
        self._seen: OrderedDict[Any, Sized] = OrderedDict()
        self._on_gpu = device.type == "cuda"
        self._varying = _varying(self._network)
        self._captures = self._on_gpu and not self._late
        # whether kernels are compiled before a run at new sizes meets them
        self._foresees = self._on_gpu and not _lazy.load("triton").knobs.runtime.interpret
        for each in made.calls:
            for value in _held(each):
                self._left[value] += 1
        run = {node for each in made.calls for node in each.nodes}
        for node in self._network.nodes:
            for value in set() if node in run else set(node.given):
                self._left[value] -= 1
        self.uncaptured = ""  # why runs are not captured, where a capture failed
        self._pool: Any = None
        self._stream: Any = None  # of the last replay

    def own(self, value: Any) -> Any:
        """A tensor on this GPU, as torch sees it."""
        torch = self._torch
        if isinstance(value, torch.Tensor):
            return value.detach() if value.device == self._device and self._on_gpu else None
        if not self._on_gpu or not hasattr(value, "__dlpack_device__"):
            return None
        kind, number = value.__dlpack_device__()
        return torch.from_dlpack(value) if (int(kind), number) == (2, self._device.index) else None

    # ------------------------------------------------------------------------------------------------------------ runs
    def run(self, feeds: dict[str, Any], out: dict[str, Array] | None = None) -> dict[str, Array]:
        key = tuple((name, x.dtype, x.shape) for name, x in feeds.items())
        seen = self._seen.get(key)
        if seen is None or seen.replay is None:
            return self._slow(key, feeds, out)
        if not self._busy.acquire(blocking=False):
            raise BusyError("this session is running already: give each thread a session of its own")
        try:
            with typed_errors(f"a run on cuda:{self._device.index}"), self._there():
                self._seen.move_to_end(key)
                return self._replayed(seen, feeds, out)
        finally:
            self._busy.release()

    def _slow(self, key: Any, feeds: dict[str, Any], out: dict[str, Array] | None) -> dict[str, Array]:
        """A run call by call, or the one that is captured."""
        with self._alone(), _libraries(self._torch), self._there():
            seen = self._seen.get(key)
            if seen is not None and self._captures and not seen.by_reference:
                self._capture(seen, feeds)
                if seen.replay is not None:
                    self._forget()
                    return self._replayed(seen, feeds, out)
            if seen is None and self._captures and self._foresees:
                self._compile(feeds)
            found = self._eager(feeds, None)
            if seen is None:
                self._seen[key] = Sized(found.sizes, found.by_reference)
                while len(self._seen) > MOST_SEEN:
                    self._seen.popitem(last=False)
            return self._given_back(feeds, found.outputs, found.nodes, found.flags, out)

    def _compile(self, feeds: Mapping[str, Any]) -> None:
        """Compiles what a first run at these sizes launches. One by one, as the run meets them, that takes ten times as
        long. Looking for it takes a tenth of a second, so once others have brought nothing new, that ends."""
        work = _lazy.load("ingot.backends.cuda.ahead:compile_net")
        new = work(self._torch, self._device, self._network, self._made.calls, self._opening, self._sized(feeds))
        self._foresees = new > 0 or not self._seen

    def profile(self, feeds: dict[str, Any]) -> list[dict[str, Any]]:
        items: list[dict[str, Any]] = []
        with self._alone(), _libraries(self._torch), self._there():
            self._eager(feeds, None)  # compiles
            found = self._eager(feeds, items)
            if found.nodes:
                check(found.nodes, to_array(self._torch, found.flags))
        return items

    def trace(self, sizes: Mapping[str, int]) -> None:
        """Makes the calls of a run at these sizes, in every way that there is, for somebody who looks at what is
        launched: the inputs hold nothing.
        """
        torch = self._torch
        with self._alone(), self._there():
            tensors = self._loaded.tensors | self._states
            for value in self._network.inputs:
                dtype = getattr(torch, value.dtype.name)
                tensors[value] = torch.empty(value.spec.evaluate(sizes), dtype=dtype, device=self._device)
            self._forms.traces = True
            self._calls(self._made.calls, tensors, dict(sizes), {})

    def _there(self) -> AbstractContextManager[Any]:
        """Where kernels are launched."""
        there: AbstractContextManager[Any] = self._torch.cuda.device(self._device) if self._on_gpu else nullcontext()
        return there

    def _sized(self, feeds: Mapping[str, Any]) -> dict[str, int]:
        """The value of every dim. Raises InputError for what does not fit."""
        shells = {}
        for name, given in feeds.items():
            dtype = given.dtype
            if not isinstance(given, np.ndarray):
                dtype = dtypes.get(str(dtype).removeprefix("torch.")).numpy
            shells[name] = np.broadcast_to(np.empty((), dtype), tuple(given.shape))
        return self._sizes(shells)

    def _eager(self, feeds: Mapping[str, Any], items: list[dict[str, Any]] | None) -> Sized:
        sizes = self._sized(feeds)
        tensors = self._loaded.tensors | self._states
        for value in self._network.inputs:
            given = feeds[value.name]
            own = isinstance(given, np.ndarray)
            tensors[value] = to_tensor(self._torch, given, self._device) if own else given
        found = Sized(sizes)
        self._forms.times = self._on_gpu and items is None
        faults: dict[Node, Any] = {}
        found.by_reference = self._calls(self._made.calls, tensors, found.sizes, faults, items)
        self._forms.times = False
        self._last = found.sizes
        found.outputs = {name: tensors[value] for name, value in self._network.outputs.items()}
        found.nodes = list(faults)
        found.flags = self._torch.stack(list(faults.values())) if faults else None
        return found

    def _calls(
        self, calls: Sequence[Call], tensors: dict[Value, Any], sizes: dict[str, int], faults: dict[Node, Any],
        items: list[dict[str, Any]] | None = None,
    ) -> bool:  # fmt: skip
        """Runs calls, and lets go of what none of them reads any more. Whether a reference computed some of it."""
        left = {value: self._left[value] for value in tensors}
        by_references = False
        for number, each in enumerate(calls):
            begin = self._now(items)
            inside, by_reference = self._call(each, tensors, sizes, faults)
            by_references |= by_reference
            if items is not None:
                items.append(self._profiled(number, each, inside, by_reference, self._now(items) - begin, tensors))
            for value in (*(v for node in each.nodes for v in set(node.given)), *_held(each)):
                left[value] = left.get(value, self._left[value]) - 1
                if not left[value]:
                    tensors.pop(value, None)
        return by_references

    def _call(
        self, each: Call, tensors: dict[Value, Any], sizes: dict[str, int], faults: dict[Node, Any]
    ) -> tuple[bool, bool]:
        """Runs a call: whether as one, and whether a reference computed some of it."""
        for node in each.nodes:
            if node.op.torch_fault is not None:
                operands = [None if v.spec is None else tensors[v] for v in node.inputs]
                faults[node] = known(node.op, sizes).torch_fault(self._torch, *operands)  # type: ignore[misc]
        if not isinstance(each, Single) and self._forms.run(each, tensors, sizes):
            return True, False
        self._forms.complete(each, tensors)
        by_reference = False
        for node in (*_missing(each, tensors), *each.nodes):
            by_reference |= self._by_torch(node, tensors, sizes)
        return False, by_reference

    def _by_torch(self, node: Node, tensors: dict[Value, Any], sizes: dict[str, int]) -> bool:
        op = known(node.op, sizes)
        operands = [None if v.spec is None else tensors[v] for v in node.inputs]
        result = narrow(self._torch, op, operands)
        if result is not None:
            tensors[node.output] = result
            return False
        results, by_reference = by_form(self._torch, node, op, operands, self._device, sizes)
        for value, made in zip(node.outputs, results, strict=True):
            tensors[value] = made
            if op.binds:
                learn(node, value.spec, tuple(made.shape), op.bound_dims(), sizes)
        return by_reference or op.reads_back

    def _profiled(
        self, number: int, each: Call, inside: bool, host: bool, ns: int, tensors: Mapping[Value, Any]
    ) -> dict[str, Any]:
        made = {v for node in each.nodes for v in node.outputs}
        reads = dict.fromkeys(v for node in each.nodes for v in node.given if v not in made)
        operands, results = (
            [t for v in vs if isinstance(t := tensors.get(v), self._torch.Tensor)] for vs in (reads, made)
        )
        item = item_of(number, each.nodes[-1], host, ns, operands, results or operands[:1])
        if inside and not isinstance(each, Single):
            item["kernel"] = each.kernel
        elif len(each.nodes) > 1:
            item["host" if host else "kernel"] = "+".join(node.op.name for node in each.nodes)
        return item

    # ---------------------------------------------------------------------------------------------------------- graphs
    def _capture(self, seen: Sized, feeds: Mapping[str, Any]) -> None:
        torch = self._torch
        for value in self._network.inputs:
            given = feeds[value.name]
            tensor = to_tensor(torch, given, self._device) if isinstance(given, np.ndarray) else given.clone()
            seen.inputs[value.name] = tensor.contiguous()
            if isinstance(given, np.ndarray):
                seen.pinned[value.name] = PAGE_LOCKED.empty(torch, self._device, tuple(tensor.shape), tensor.dtype)
        base = self._loaded.tensors | self._states
        base |= {value: seen.inputs[value.name] for value in self._network.inputs}
        for each in self._made.calls:  # what only sizes decide is computed once
            if not self._varying & set(each.nodes):
                self._call(each, base, dict(seen.sizes), {})
        calls = [each for each in self._made.calls if self._varying & set(each.nodes)]
        seen.fixed = base
        faults: dict[Node, Any] = {}

        def work() -> tuple[dict[str, Any], Any]:
            faults.clear()
            tensors = dict(base)
            self._calls(calls, tensors, dict(seen.sizes), faults)
            flags = torch.stack(list(faults.values())) if faults else None
            return {name: tensors[value] for name, value in self._network.outputs.items()}, flags

        try:
            seen.replay, (seen.outputs, seen.flags) = self._captured(work)
        except RuntimeError as e:
            if out_of_memory(e) or of_device(e):
                raise
            # The end of a capture may say only that it failed; why is in what it was raised over.
            self.uncaptured, self._captures = first_line(e.__context__ or e), False
            seen.inputs, seen.fixed = {}, {}
        seen.nodes = list(faults)

    def _captured(self, work: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        """What computes `work` again where its results lie, and these."""
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            found = work()
        return graph.replay, found

    def _forget(self) -> None:
        """Keeps the number of graphs within its bound."""
        graphs = [key for key, seen in self._seen.items() if seen.replay is not None]
        for key in graphs[: max(0, len(graphs) - MOST_GRAPHS)]:
            old = self._seen.pop(key)
            self._seen[key] = Sized(old.sizes)
            self._seen.move_to_end(key, last=False)

    def _replayed(self, seen: Sized, feeds: Mapping[str, Any], out: dict[str, Array] | None) -> dict[str, Array]:
        if self._on_gpu:
            stream = self._torch.cuda.current_stream()
            if self._stream is not None and self._stream != stream:
                stream.wait_stream(self._stream)
            self._stream = stream
        for name, place in seen.inputs.items():
            given = feeds[name]
            if isinstance(given, np.ndarray):
                pinned = seen.pinned[name]
                pinned.copy_(to_tensor(self._torch, given, "cpu"))
                place.copy_(pinned, non_blocking=True)
            else:
                place.copy_(given)
        assert seen.replay is not None
        seen.replay()
        self._last = seen.sizes
        return self._given_back(feeds, seen.outputs, seen.nodes, seen.flags, out)

    def _given_back(
        self, feeds: Mapping[str, Any], outputs: Mapping[str, Any], nodes: Sequence[Node], flags: Any,
        out: dict[str, Array] | None,
    ) -> dict[str, Array]:  # fmt: skip
        """Results where the inputs came from: on the device if one of them lay there."""
        here = all(isinstance(given, np.ndarray) for given in feeds.values())
        if not here and out is None:
            found = {name: tensor.clone() for name, tensor in outputs.items()}
            if nodes:
                check(nodes, to_array(self._torch, flags))
            elif any(isinstance(given, np.ndarray) for given in feeds.values()) and self._on_gpu:
                self._torch.cuda.current_stream().synchronize()  # pinned memory is written by the next run
            return found
        arrays = to_arrays(self._torch, [*outputs.values(), *([flags] if nodes else [])])
        if nodes:
            check(nodes, arrays.pop())
        named = dict(zip(outputs, arrays, strict=True))
        return named if out is None else written(named, out)


def _held(each: Call) -> Sequence[Value]:
    """What a call reads and none of its nodes does."""
    return each.held if isinstance(each, Sums) else ()


def _missing(each: Call, tensors: Mapping[Value, Any]) -> Sequence[Node]:
    """What makes floats of integers that a call would have read as such."""
    if not isinstance(each, Sums):
        return ()
    made = dict.fromkeys(v.node for v in each.unread if v not in tensors and v.node is not None)
    return [node for node in made if node not in each.nodes]


def _varying(network: Network) -> set[Node]:
    """Nodes whose results depend on more than the sizes of a run."""
    values: set[Value] = {*network.inputs, *network.states}
    nodes: set[Node] = set()
    for node in network.nodes:
        if not values.isdisjoint(node.inputs) or not node.inputs:
            nodes.add(node)
            values.update(node.outputs)
    return nodes


def _library_settings(torch: Any) -> list[tuple[Any, str, Any]]:
    """While sizes are met for the first time, cuDNN looks for its fastest algorithms; no product adds up in 16 bits."""
    matmul = torch.backends.cuda.matmul
    return [
        (torch.backends.cudnn, "benchmark", True),
        (matmul, "allow_fp16_reduced_precision_reduction", False),
        (matmul, "allow_bf16_reduced_precision_reduction", False),
    ]  # fmt: skip


_libraries = Settings(_library_settings)
