"""An executor of nets on an NVIDIA GPU: each set of input sizes becomes a CUDA graph.

The first run of a size goes call by call, compiles what it needs and times ways to compute; the second one is captured,
and later ones are replayed. Where a size is a batch, runs are padded, so that few sizes are met (net_graphs.py). All
graphs of a session share one memory pool. They read inputs at addresses of their own, to which these are copied, or
where a caller has them again and again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import numpy as np

from ingot import _lazy, dtypes
from ingot.backends.cuda.capturing import capturing
from ingot.backends.cuda.net_calls import Call, Joined, Sums, Weighted
from ingot.backends.cuda.net_forms import Forms, narrow
from ingot.backends.cuda.net_graphs import ALIGNED, MOST_SEEN, Addresses, Captured, Plan, Plans, Results, Sized
from ingot.backends.cuda.net_program import net_program
from ingot.backends.cuda.net_target import NET
from ingot.backends.cuda.net_weights import NetMade, prepared
from ingot.backends.cuda.page_locked import PAGE_LOCKED
from ingot.backends.cuda.program import Single
from ingot.backends.device import Opening
from ingot.backends.torch_device import Settings
from ingot.backends.torch_executor import TorchExecutor, item_of, load, typed_errors, written
from ingot.errors import BusyError, InputError, ValueFault
from ingot.ir import Network, Node, Value
from ingot.ir.interpret import learn
from ingot.ops.in_torch import (
    array_over,
    check,
    first_line,
    known,
    of_device,
    out_of_memory,
    to_array,
    to_arrays,
    to_tensor,
)
from ingot.ops.in_torch import call as by_form

Array = np.ndarray[Any, Any]

MOST_GRAPHS = 32  # sets of input sizes of a session that have graphs; the one that was used least recently goes


def open_net(torch: Any, device: Any, opening: Opening) -> NetExecutor:
    """A session of a net. Raises UserError for an engine that cannot run there, MemoryLimitError."""
    key = ("cuda", str(device), opening.entry)
    made = opening.kept.get(key)
    if made is None:
        loaded = load(torch, opening, device, NET)
        made = opening.kept.setdefault(key, prepared(torch, loaded, net_program(loaded.network)))
    return NetExecutor(torch, device, made, opening)


class NetExecutor(TorchExecutor):
    """See device.Executor."""

    def __init__(self, torch: Any, device: Any, made: NetMade, opening: Opening) -> None:
        super().__init__(torch, device, made.loaded, opening)
        self._made = made
        self._opening = opening
        self._forms = Forms(torch, device, made)
        self._seen: OrderedDict[Any, Sized] = OrderedDict()
        self._on_gpu = device.type == "cuda"
        self._here = (2, device.index) if self._on_gpu else None  # where inputs and results may lie, as DLPack says it
        self._padding = Plans(made.batch)
        self._varying = _varying(self._network)
        self._captures = self._on_gpu and not self._late
        # whether kernels are compiled before a run at new sizes meets them
        self._foresees = self._on_gpu and not _lazy.load("triton").knobs.runtime.interpret
        for each in made.running:
            for value in _held(each):
                self._left[value] += 1
        run = {node for each in made.running for node in each.nodes}
        for node in self._network.nodes:
            for value in set() if node in run else set(node.given):
                self._left[value] -= 1
        self.uncaptured = ""  # why runs are not captured, where a capture failed
        self._pool: Any = None
        self._stream: Any = None  # of the last replay

    def own(self, value: Any) -> Any:
        """A tensor on this GPU, as torch sees it."""
        torch = self._torch
        if self._here is None:
            return None
        if isinstance(value, torch.Tensor):
            return value.detach() if value.device == self._device else None
        if not hasattr(value, "__dlpack_device__") or not hasattr(value, "__dlpack__"):
            return None
        try:
            kind, number = value.__dlpack_device__()
            return torch.from_dlpack(value) if (int(kind), number) == self._here else None
        except Exception as e:  # whatever another library's object may raise
            raise InputError(f"torch cannot read this {type(value).__name__} through DLPack: {first_line(e)}") from None

    # ------------------------------------------------------------------------------------------------------------ runs
    def run(self, feeds: dict[str, Any], out: dict[str, Any] | None = None) -> dict[str, Any]:
        key = tuple([(name, x.dtype, x.shape) for name, x in feeds.items()])
        if out:
            _refuse_shared(self._torch, out)
        plan = self._padding.of(key) if self._captures else Plan(key)
        seen = self._seen.get(plan.key)
        if seen is None or not self._captures:
            return self._slow(plan, feeds, out)
        if not self._busy.acquire(blocking=False):
            raise BusyError("this session is running already: give each thread a session of its own")
        try:
            at = self._addresses(plan, seen, feeds, out)
            graph = None if seen.by_reference else seen.chosen(at)
            if graph is not None:
                with typed_errors(f"a run on cuda:{self._device.index}"), self._there():
                    self._seen.move_to_end(plan.key)
                    return self._replayed(seen, graph, plan, feeds, out)
        finally:
            self._busy.release()
        return self._slow(plan, feeds, out)

    def _slow(self, plan: Plan, feeds: dict[str, Any], out: dict[str, Any] | None) -> dict[str, Any]:
        """A run call by call, or one that is captured."""
        with self._alone(), _libraries(self._torch), self._there():
            seen, given = self._seen.get(plan.key), self._padding.widened(self._torch, plan, feeds)
            if seen is not None and self._captures and not seen.by_reference:
                graph = self._capture(seen, given, out, self._addresses(plan, seen, feeds, out))
                if graph is not None:
                    self._forget()
                    return self._replayed(seen, graph, plan, feeds, out)
            if seen is None and self._captures and self._foresees:
                self._compile(given)
            found, sizes, by_reference = self._eager(given, None)
            if seen is None:
                seen = self._seen[plan.key] = Sized(sizes, by_reference)
                seen.meet(self._addresses(plan, seen, feeds, out))
                while len(self._seen) > MOST_SEEN:
                    self._seen.popitem(last=False)
            results = self._given_back(plan, feeds, found, sizes, out)
            if by_reference:
                self._padding = Plans(None)  # nothing is captured that padding would serve
            return results

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
            found, *_ = self._eager(feeds, items)
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
            self._calls(self._made.running, tensors, dict(sizes), {})

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

    def _eager(
        self, feeds: Mapping[str, Any], items: list[dict[str, Any]] | None
    ) -> tuple[Results, dict[str, int], bool]:
        """Results of a run call by call, all sizes, and whether some op reads back on its way."""
        sizes = self._sized(feeds)
        tensors = self._loaded.tensors | self._states
        for value in self._network.inputs:
            given = feeds[value.name]
            own = isinstance(given, np.ndarray)
            tensors[value] = to_tensor(self._torch, given, self._device) if own else given
        self._forms.times = self._on_gpu and items is None
        try:
            found, by_reference = self._computed(self._made.running, tensors, sizes, items)
        finally:
            self._forms.times = False
        self._last = sizes
        return found, sizes, by_reference

    def _computed(
        self, calls: Sequence[Call], tensors: dict[Value, Any], sizes: dict[str, int],
        items: list[dict[str, Any]] | None = None,
    ) -> tuple[Results, bool]:  # fmt: skip
        faults: dict[Node, Any] = {}
        by_reference = self._calls(calls, tensors, sizes, faults, items)
        outputs = {name: tensors[value] for name, value in self._network.outputs.items()}
        flags = self._torch.stack(list(faults.values())) if faults else None
        return Results(outputs, list(faults), flags), by_reference

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
    def _addresses(self, plan: Plan, seen: Sized, feeds: Mapping[str, Any], out: Mapping[str, Any] | None) -> Addresses:
        """Of inputs and results in memory of the caller's on the device, as far as graphs can use them there."""
        if self._here is None or plan.rows:
            return ()
        at = [_address(feeds[value.name]) for value in self._network.inputs]
        if out:
            read = [feeds[value.name] for value, address in zip(self._network.inputs, at, strict=True) if address]
            if not seen.results:
                named = self._network.outputs.items()
                dtype = partial(getattr, self._torch)
                seen.results = {name: (v.spec.evaluate(seen.sizes), dtype(v.dtype.name)) for name, v in named}
            for name, kind in seen.results.items():
                x: Any = out.get(name)
                fits = x is not None and (x.shape, x.dtype) == kind and not any(_overlap(x, other) for other in read)
                at.append(_address(x) if fits else 0)
        return tuple(at) if any(at) else ()

    def _capture(
        self, seen: Sized, feeds: Mapping[str, Any], out: Mapping[str, Any] | None, at: Addresses
    ) -> Captured | None:
        """A graph for these inputs' sizes, and where that is worth it for their addresses; None where that fails."""
        torch, network = self._torch, self._network
        at = at if seen.captures_at(at) else ()
        read = {v.name for v, address in zip(network.inputs, at, strict=False) if address}
        outputs = zip(network.outputs, at[len(network.inputs) :], strict=False)
        into = {name: out[name] for name, address in outputs if address and out}
        if seen.fixed is None:
            seen.fixed = self._fixed(seen.sizes)
        tensors = dict(seen.fixed)
        for value in network.inputs:
            given = feeds[value.name]
            if value.name not in read and value.name not in seen.inputs:
                own = to_tensor(torch, given, self._device) if isinstance(given, np.ndarray) else given.clone()
                seen.inputs[value.name] = own = own.contiguous()
                if isinstance(given, np.ndarray):
                    pinned = PAGE_LOCKED.empty(torch, self._device, tuple(own.shape), own.dtype)
                    seen.pinned[value.name] = pinned, array_over(torch, pinned)
            tensors[value] = given if value.name in read else seen.inputs[value.name]
        calls = [each for each in self._made.running if self._varying & set(each.nodes)]

        def work() -> Results:
            self._forms.into = {network.outputs[name]: x for name, x in into.items()}
            try:
                found, _ = self._computed(calls, dict(tensors), dict(seen.sizes))
            finally:
                self._forms.into = {}
            for name, x in into.items():
                if found.outputs[name] is not x:
                    x.copy_(found.outputs[name])
                del found.outputs[name]
            return found

        try:
            replay, found = self._captured(work)
        except (RuntimeError, ValueFault) as e:  # ValueFault: what torch said of an op's form
            if out_of_memory(e) or of_device(e):
                raise
            # The end of a capture may say only that it failed; why is in what it was raised over.
            why = e if isinstance(e, ValueFault) else e.__context__ or e
            self.uncaptured, self._captures = first_line(why), False
            seen.inputs, seen.pinned, seen.fixed = {}, {}, None
            return None
        graph = Captured(replay, found, frozenset(read))
        seen.keep(at, graph)
        return graph

    def _fixed(self, sizes: Mapping[str, int]) -> dict[Value, Any]:
        """Stored tensors, and what only sizes decide, which is computed once."""
        base = self._loaded.tensors | self._states
        for each in self._made.running:
            if not self._varying & set(each.nodes):
                self._call(each, base, dict(sizes), {})
        return base

    def _captured(self, work: Callable[[], Results]) -> tuple[Callable[[], None], Results]:
        """What computes `work` again where its results lie, and these."""
        torch = self._torch
        graph = torch.cuda.CUDAGraph()
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with capturing(), torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            found = work()
        return graph.replay, found

    def _forget(self) -> None:
        """Keeps the number of graphs within its bound."""
        graphs = [key for key, seen in self._seen.items() if seen.graph is not None or seen.there]
        for key in graphs[: max(0, len(graphs) - MOST_GRAPHS)]:
            self._seen[key] = self._seen.pop(key).forgotten()
            self._seen.move_to_end(key, last=False)

    def _replayed(
        self, seen: Sized, graph: Captured, plan: Plan, feeds: Mapping[str, Any], out: dict[str, Any] | None
    ) -> dict[str, Any]:
        if self._on_gpu:
            stream = self._torch.cuda.current_stream()
            if self._stream is not None and self._stream != stream:
                stream.wait_stream(self._stream)
            self._stream = stream
        for name, place in seen.inputs.items():
            if name in graph.in_place:
                continue
            given = feeds[name]
            if isinstance(given, np.ndarray):
                # By NumPy: torch copies with many threads, and waits for each of them where the processors are busy.
                pinned, array = seen.pinned[name]
                self._padding.brought(plan, name, array, given, bool(graph.results.nodes))
                place.copy_(pinned, non_blocking=True)
            else:
                self._padding.brought(plan, name, place, given, bool(graph.results.nodes))
        graph.replay()
        self._last = seen.sizes
        return self._given_back(plan, feeds, graph.results, seen.sizes, out)

    def _given_back(
        self, plan: Plan, feeds: Mapping[str, Any], results: Results, sizes: Mapping[str, int],
        out: dict[str, Any] | None,
    ) -> dict[str, Any]:  # fmt: skip
        """Results where the inputs came from: on the device if one of them lay there; or where `out` says."""
        left = self._padding.cut(plan, results.outputs, sizes) if plan.rows else results.outputs
        there, arrays = {}, {}
        if out:
            there = {name: x for name, x in out.items() if not isinstance(x, np.ndarray)}
            arrays = {name: x for name, x in out.items() if name not in there}
            self._write(left, there)
            left = {name: x for name, x in left.items() if name not in there}
        flags = [results.flags] if results.nodes else []
        if plan.hosts < len(feeds) and not arrays:
            found = {name: tensor.clone() for name, tensor in left.items()}
            if flags:
                check(results.nodes, to_array(self._torch, results.flags))
            elif plan.hosts and self._on_gpu:
                self._torch.cuda.current_stream().synchronize()  # pinned memory is written by the next run
            return found | there if there else found
        brought = to_arrays(self._torch, [*left.values(), *flags])
        if flags:
            check(results.nodes, brought.pop())
        elif not brought and self._on_gpu:
            self._torch.cuda.current_stream().synchronize()
        return written(dict(zip(left, brought, strict=True)), arrays) | there

    def _write(self, results: Mapping[str, Any], out: Mapping[str, Any]) -> None:
        """Copies results into tensors of the caller's; a graph has written those that are not among the results. Raises
        InputError, before it writes, for what does not fit."""
        names = self._network.outputs
        for name, x in out.items():
            if name not in names:
                raise InputError(f"out {name!r} is no output: the outputs are {', '.join(names)}")
            found = results.get(name, x)
            if (x.shape, x.dtype) != (found.shape, found.dtype):
                raise InputError(
                    f"out {name!r} is {x.dtype}{list(x.shape)}, the result is {found.dtype}{list(found.shape)}"
                )
        for name in out.keys() & results.keys():
            out[name].copy_(results[name])


def _refuse_shared(torch: Any, out: Mapping[str, Any]) -> None:
    """Raises InputError for tensors in which one result would overwrite another, or itself."""
    tensors = [(name, x) for name, x in out.items() if isinstance(x, torch.Tensor)]
    for i, (name, x) in enumerate(tensors):
        if any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True)):
            raise InputError(f"out {name!r}: its elements overlap in memory (strides {x.stride()}): pass a copy")
        for other, earlier in tensors[:i]:
            if _overlap(x, earlier):
                raise InputError(f"out {name!r} and out {other!r} share memory: each needs memory of its own")


def _address(x: Any) -> int:
    """Where a tensor of the device lies; 0 for an array, and where graphs do not use it."""
    if isinstance(x, np.ndarray) or not x.is_contiguous():
        return 0
    address: int = x.data_ptr()  # 0 where it has no elements
    return 0 if address % ALIGNED else address


def _overlap(x: Any, y: Any) -> bool:
    """Whether two tensors share memory, if both are contiguous."""
    if not (x.is_contiguous() and y.is_contiguous() and x.numel() and y.numel()):
        return False
    return bool(x.data_ptr() < y.data_ptr() + y.nbytes and y.data_ptr() < x.data_ptr() + x.nbytes)


def _held(each: Call) -> Sequence[Value]:
    """What a call reads and none of its nodes does."""
    return each.held if isinstance(each, Sums | Weighted | Joined) else ()


def _missing(each: Call, tensors: Mapping[Value, Any]) -> Sequence[Node]:
    """What makes floats of integers, or of float8, that a call would have read as such."""
    if not isinstance(each, Sums | Weighted | Joined):
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
