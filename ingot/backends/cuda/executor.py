"""An executor of networks on an NVIDIA GPU: kernels of our own where there are some, torch forms elsewhere.

A step of a language model is padded to one of few sizes: its first kernel reads its inputs in memory of the host, its
last one writes the tokens there. It runs call by call, and while the device computes it these calls are recorded as a
CUDA graph, one for each kind of choice that is made of its logits; those of prompts when their size comes again. Large
steps, and whatever else is asked for, run call by call as they are.

That takes tens of milliseconds. Only a step whose kernels nobody has compiled yet waits longer: they are foreseen and
compiled side by side, and meanwhile, in a process of its own, those of the steps that are likely next.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from ingot import _lazy, dtypes
from ingot.backends.cuda.choice import WORDS, Chooser, Kind, kind_of, tokens_of
from ingot.backends.cuda.compiled_only import NotCompiled, compiled_only
from ingot.backends.cuda.devices import FLOAT8, available, require_float8, require_gpu
from ingot.backends.cuda.driver import architecture, require_room
from ingot.backends.cuda.faults import checks_of, faulty
from ingot.backends.cuda.kernel_calls import KernelCalls, Prompts
from ingot.backends.cuda.last_rows import LastRows, last_rows
from ingot.backends.cuda.launch import Launcher
from ingot.backends.cuda.launch_shapes import tiles_of
from ingot.backends.cuda.net_executor import open_net
from ingot.backends.cuda.operands import Rows, unpacked
from ingot.backends.cuda.program import Attention, Call, Experts
from ingot.backends.cuda.steps import LARGEST, PADDING, TILES, Graphs, Size, Step, columns_of, likely_after
from ingot.backends.cuda.transfer import Inputs, Transfer, arrays_of
from ingot.backends.cuda.weights import Arranged, arranged
from ingot.backends.device import Choice, Chosen, Opening
from ingot.backends.torch_device import package
from ingot.backends.torch_executor import TorchExecutor, item_of, load, typed_errors
from ingot.errors import MemoryLimitError, UserError
from ingot.ir import Node, Op, Value
from ingot.ir.interpret import learn
from ingot.ops.conversion import Dequantize
from ingot.ops.in_torch import call, check, first_line, known, out_of_memory, to_tensor
from ingot.ops.indexing import Embedding

Array = np.ndarray[Any, Any]

_NONE = np.zeros(0, np.int64)

log = logging.getLogger("ingot.cuda")


def open_session(opening: Opening) -> TorchExecutor:
    """A session on a GPU. Raises UserError for an engine that cannot run there, FileError, MemoryLimitError."""
    require_gpu(opening.device)
    torch = package()
    device = torch.device("cuda", int(opening.device))
    major, minor = torch.cuda.get_device_capability(device)
    _lazy.load("ingot.backends.cuda.kernel_files:prepare")(10 * major + minor)
    with _lazy.load("ingot.backends.cuda.first_launch:beside")(torch, device):
        return open_on(torch, device, opening)


def open_on(torch: Any, device: Any, opening: Opening) -> TorchExecutor:
    """A session of target cuda on a torch device; on the CPU its kernels are interpreted."""
    there = replace(opening, device=str(device))
    if opening.threads is not None and device.type != "cpu":
        raise UserError(f"threads={opening.threads}: device cuda has no threads to choose")
    if ("cuda", str(device), opening.entry) not in opening.kept and device.type == "cuda":
        float8 = torch.cuda.get_device_capability(device) >= FLOAT8
        require_room(opening, available(opening.device), float8)
    if opening.header["kind"] != "llm":
        return open_net(torch, device, there)
    key = ("cuda", str(device), opening.entry)
    made = opening.kept.get(key)
    if made is None:
        loaded = load(torch, there, device)
        if device.type == "cuda":
            require_float8(torch.cuda.get_device_capability(device), loaded.network)
        made = opening.kept.setdefault(key, arranged(torch, loaded))
    return CudaExecutor(torch, device, made, there)


class CudaExecutor(TorchExecutor):
    """See device.Executor."""

    def __init__(self, torch: Any, device: Any, made: Arranged, opening: Opening) -> None:
        super().__init__(torch, device, made.loaded, opening)
        self._made = made
        self._launcher = Launcher(torch)
        if self._launcher.native:  # a kernel can be started while the one before it still runs
            self._launcher.dependent = torch.cuda.get_device_capability(device) >= (9, 0)
        self._kernels = KernelCalls(torch, device, made, self._launcher)
        self._chooser = Chooser(torch, device, self._launcher)
        self._transfer = Transfer(torch, device)
        self._steps: dict[tuple[Size, Kind | None], Step] = {}
        self._uncaptured = ""  # why the last step that could not be captured was not
        names = {v.name for v in self._network.inputs}
        attentions = [c for c in made.calls if isinstance(c, Attention)]
        self._decodes = bool(attentions) and names - {"query_start", "hidden_rows"} <= PADDING.keys()
        self._decodes &= all(v.dtype is dtypes.int32 for v in self._network.inputs)
        self._decodes &= {"query_start", "block_table", "token_ids", "logit_rows"} <= names
        self._on_gpu = device.type == "cuda"
        self._captures = self._on_gpu
        self._opening = opening
        self._foresees = self._on_gpu and self._launcher.native  # whether kernels are compiled side by side
        self._checks, self._repeated, foreseen = checks_of(self._network)
        self._foreseen = foreseen and bool(attentions)
        self._decodes &= foreseen
        self._graphs = Graphs(torch, device, self._live(self._padded_sizes(LARGEST))[0] if self._decodes else 0)
        self._groups = sorted({found.group for found in attentions})
        self._last_rows = last_rows(self._network, made.calls) if self._foreseen else None

    # ------------------------------------------------------------------------------------------------------------ runs
    def run(self, feeds: dict[str, Array], out: dict[str, Array] | None = None) -> dict[str, Array]:
        with self._there():
            if out is None and self._captures and self._size(feeds):
                with self._alone():
                    waits = self._launched(feeds, None)
                return dict(waits().outputs)
            return super().run(feeds, out)

    def profile(self, feeds: dict[str, Array]) -> list[dict[str, Any]]:
        with self._there():
            return super().profile(feeds)

    def first_bad(self, feeds: dict[str, Array]) -> str:
        with self._there():
            return super().first_bad(feeds)

    def _look(self, node: Node, tensors: Mapping[Value, Any]) -> None:
        super()._look(node, {v: _wide(tensors[v]) for v in node.outputs if v in tensors})

    def launch(self, feeds: dict[str, Array], choice: Choice) -> Callable[[], Chosen]:
        """See device.LaunchingExecutor."""
        with self._there(), self._alone():
            return self._launched(feeds, choice)

    @contextmanager
    def _there(self) -> Iterator[None]:
        """Where kernels are launched. What is left of a run for which there was no memory is given back, so that the
        next one finds some.
        """
        try:
            with self._torch.cuda.device(self._device) if self._on_gpu else nullcontext():
                yield
        except MemoryLimitError:
            if self._on_gpu:
                self._torch.cuda.empty_cache()
            raise

    def _launched(self, feeds: dict[str, Array], choice: Choice | None) -> Callable[[], Chosen]:
        """Starts a run; without a choice all outputs come back."""
        count = 0 if choice is None else len(choice.temperature)
        kind = kind_of(choice, int(self._network.outputs["logits"].shape[1])) if choice and count else None
        step = self._step(feeds, kind)
        try:
            with compiled_only() if self._foresees else nullcontext():
                wait = self._started(feeds, choice, kind, step)
        except NotCompiled:
            self._compile(feeds, kind)  # what was launched of the step until here is launched once more
            wait = self._started(feeds, choice, kind, step)
        if step is not None and step.wants_graph:
            self._record(step)
        return wait

    def _started(
        self, feeds: dict[str, Array], choice: Choice | None, kind: Kind | None, step: Step | None
    ) -> Callable[[], Chosen]:
        torch, transfer = self._torch, self._transfer
        sizes = self._last = self._sizes(feeds)
        count = 0 if choice is None else len(choice.temperature)
        flags: dict[Node, Any] = {}
        chosen: Any = None
        if step is not None:
            chosen, padded = step.start(transfer, feeds, choice, partial(self._work, step))
            counts = {n: v.spec.evaluate(sizes)[0] for n, v in self._network.outputs.items()}
            outputs = {n: padded[n][:size] for n, size in counts.items()}
        else:
            tensors, words = self._inputs(feeds, choice)
            if self._foreseen:
                check(list(known := self._faults(feeds, sizes)), known.values())
            noted = None if self._foreseen else flags
            outputs = self._calls(tensors, sizes, None, noted, self._prompts(feeds), self._narrow(feeds))
            if kind is not None:
                chosen = transfer.back(self._chooser.choose(outputs["logits"][:count], words, kind))
        if choice is not None and "logits" in outputs:
            outputs["logits"] = _rows_of(torch, outputs["logits"], choice.back)
        come = {name: transfer.back(tensor) for name, tensor in outputs.items()}
        told = [transfer.back(tensor) for tensor in self._flags(flags)]
        event = transfer.mark()
        if step is not None:
            step.ends(event)
        known = self._faults(feeds, sizes) if step is not None else {}  # while the device computes

        def wait() -> Chosen:
            with typed_errors(f"a run on torch:{self._device}"):
                transfer.wait(event)
            check(list(known), known.values())
            if told:
                check(list(flags), told[0].tolist())
            tokens, logprobs = (_NONE, _NONE) if chosen is None else tokens_of(chosen.numpy()[:, :count])
            return Chosen(tokens, logprobs, arrays_of(torch, come))

        return wait

    def _size(self, feeds: Mapping[str, Array]) -> Size | None:
        """What a step with these inputs is padded to; None for any other run."""
        if not self._decodes or feeds.keys() != {v.name for v in self._network.inputs}:
            return None
        return Size.of(feeds)

    def _prompts(self, feeds: Mapping[str, Array]) -> Prompts | None:
        """None for a step of one row a request, which needs it not."""
        size = self._size(feeds)
        if not self._groups or (size is not None and size.each):
            return None
        there = self._transfer.there({str(group): tiles_of(feeds["query_start"], group) for group in self._groups})
        return Prompts({int(name): tensor for name, tensor in there.items()}, int(feeds["query_start"][-1]))

    def _few(self, tokens: int, rows: int) -> LastRows | None:
        """What to do for few rows alone, if there are few of the logits and none of hidden states."""
        return self._last_rows if 2 * rows <= tokens else None

    def _narrow(self, feeds: Mapping[str, Array]) -> LastRows | None:
        """The same of a run. Rows of zeros, and those that a step does not have, go the long way."""
        if self._last_rows is None or len(feeds.get("hidden_rows", ())):
            return None
        rows, tokens = feeds["logit_rows"], len(feeds["token_ids"])
        return self._few(tokens, len(rows)) if np.all((rows >= 0) & (rows < tokens)) else None

    def _step(self, feeds: Mapping[str, Array], kind: Kind | None) -> Step | None:
        """The padded step for these inputs and this choice, if they are those of one."""
        size = self._size(feeds) if self._captures else None
        if size is None:
            return None
        if (size, kind) not in self._steps:
            names = [v.name for v in self._network.inputs]
            self._steps[size, kind] = Step(self._torch, self._device, size, names, self._groups, kind)
        return self._steps[size, kind]

    # ------------------------------------------------------------------------------------------------ behind a launch
    def _record(self, step: Step) -> None:
        """Makes a graph of a step that was launched, while the device computes it. One that cannot be captured runs
        call by call from then on, which is said once.

        Here, and not in a thread beside the steps: while anybody captures, CUDA lets nobody in the process wait for
        the whole device, so whoever has the answers already would be refused torch.cuda.synchronize().
        """
        work = partial(self._work, step)
        try:
            try:
                step.record(self._graphs, work)
            except RuntimeError as e:
                if not _short_of_memory(e) or not self._on_gpu:
                    raise
                self._torch.cuda.empty_cache()  # nothing is given back inside of a capture
                step.record(self._graphs, work)
        except Exception as e:  # the step itself has run: whatever it is, steps run without
            tell = log.info if self._uncaptured else log.warning
            self._uncaptured = first_line(e.__cause__ or e.__context__ or e)
            tell("steps like %s run call by call, for they cannot be captured: %s", step.size, self._uncaptured)

    @cached_property
    def _compiling(self) -> Any:
        compiling, wanted = _lazy.load("ingot.backends.cuda.steps_ahead:Compiling"), str(self._device.index)
        made = compiling(self._torch, architecture(wanted), self._network, self._opening)
        weakref.finalize(self, made.beside.close)
        return made

    def _compile(self, feeds: Mapping[str, Array], kind: Kind | None) -> None:
        """Compiles what a run launches, while it waits; and beside it, and the steps behind it, what others are likely
        to."""
        size, kinds = self._size(feeds) if self._captures else None, () if kind is None else (kind,)
        near: Sequence[Size] = ()
        if self._decodes:
            near = likely_after(len(feeds["query_start"]) - 1, columns_of(feeds["block_table"].shape[1]))
        self._compiling.compile(size or {name: array.shape for name, array in feeds.items()}, kinds, near)

    # --------------------------------------------------------------------------------------------------- padded steps
    def _work(self, step: Step) -> dict[str, Any]:
        outputs = self._padded_calls(step.inputs, step.size)
        if step.kind is not None:
            tensors = step.inputs.tensors
            self._chooser.choose(outputs["logits"], tensors, step.kind, tensors["results"])
        return outputs

    def _padded_calls(self, inputs: Inputs, size: Size) -> dict[str, Any]:
        self._launcher.take_inputs(inputs, self._chooser.chosen)
        tensors = inputs.tensors
        given = {**tensors, "token_ids": inputs.tokens}
        prompts = None if size.each else Prompts({group: tensors[f"{TILES}{group}"] for group in self._groups})
        narrow = self._few(size.tokens, size.logits)
        values = {v: given[v.name] for v in self._network.inputs}
        return self._calls(values, self._padded_sizes(size), None, None, prompts, narrow)

    def _padded_sizes(self, size: Size) -> dict[str, int]:
        names = [v.name for v in self._network.inputs]
        places = size.layout(names, ()).places
        return self._sizes({name: np.empty(places[name].shape, np.int32) for name in names})

    def _inputs(
        self, feeds: Mapping[str, Array], choice: Choice | None = None
    ) -> tuple[dict[Value, Any], dict[str, Any]]:
        """The inputs on the device, and what a choice says."""
        values = self._network.inputs
        if not all(v.dtype is dtypes.int32 for v in values):
            return {v: to_tensor(self._torch, feeds[v.name], self._device) for v in values}, {}
        given = {v.name: feeds[v.name] for v in values}
        if choice is not None:
            given |= {name: getattr(choice, name) for name in (*WORDS, "behind")}
        found = self._transfer.there(given)
        if choice is not None:
            found["token_ids"] = self._chooser.follow(found["token_ids"], found["behind"])
        return {v: found[v.name] for v in values}, found

    def _faults(self, feeds: Mapping[str, Array], sizes: Mapping[str, int]) -> dict[Node, bool]:
        """Of every node that may have had values that it does not take, whether it had: seen by the host's integers."""

        def operand(value: Value) -> Any:
            return feeds[value.name] if value.kind == "input" else self._shape(value, sizes)

        return {node: faulty(known(node.op, sizes), [operand(v) for v in node.inputs]) for node in self._checks}

    def _shape(self, value: Value, sizes: Mapping[str, int]) -> tuple[int, ...]:
        state = value.is_state
        return tuple(self._states[_state(value)].shape) if state else value.spec.evaluate(sizes)

    def _fault(self, node: Node, tensors: Mapping[Value, Any], sizes: Mapping[str, int]) -> Any:
        """A flag, by a node's inputs and the shapes of its other operands."""
        given = {v: tensors[v] for v in node.inputs if v.kind == "input"}
        there = next(iter(given.values())).device

        def shaped(value: Value) -> Any:  # one number stands for all
            return self._torch.zeros((), device=there).expand(self._shape(value, sizes))

        operands = [given[v] if v in given else shaped(v) for v in node.inputs]
        return known(node.op, sizes).torch_fault(self._torch, *operands)  # type: ignore[misc]

    # ----------------------------------------------------------------------------------------------------------- calls
    def _results(
        self, feeds: dict[str, Array], items: list[dict[str, Any]] | None
    ) -> tuple[dict[str, Any], dict[Node, Any]]:
        sizes = self._sizes(feeds)
        faults: dict[Node, Any] = {}
        tensors, _ = self._inputs(feeds)
        narrow = None if self._looks else self._narrow(feeds)
        found = self._calls(tensors, sizes, items, faults, self._prompts(feeds), narrow)
        self._transfer.mark()
        self._last = sizes
        return found, faults

    def _calls(
        self, tensors: dict[Value, Any], sizes: dict[str, int], items: list[dict[str, Any]] | None,
        faults: dict[Node, Any] | None, prompts: Prompts | None, narrow: LastRows | None = None,
    ) -> dict[str, Any]:  # fmt: skip
        """Runs every call; the outputs. Without `faults` nobody asks here. With `narrow` the calls of it take the rows
        of the logits alone, in their order, so that nothing is left to pick."""
        tensors |= self._loaded.tensors | self._states
        left = dict(self._left)
        rows = None if narrow is None else next(tensors[v] for v in self._network.inputs if v.name == "logit_rows")
        for number, found in enumerate(self._made.calls):
            begin = self._now(items)
            if faults is not None:
                self._note_faults(found, tensors, sizes, faults)
            if narrow is not None and number == narrow.first:
                tensors |= {v: tensors[v].index_select(0, rows) for v in narrow.given}
            picked = narrow is not None and number in narrow.picks
            inside = "picked" if picked else self._kernels.run(number, found, tensors, prompts)
            by_reference = False
            if picked:
                (node,) = found.nodes
                tensors |= self._nothing(node, sizes) or {node.output: tensors[node.inputs[0]]}
            elif not inside:
                for node in found.nodes:
                    by_reference |= self._by_torch(node, tensors, sizes)
            if self._looks:
                for node in found.nodes:
                    self._look(node, tensors)
            if items is not None:
                items.append(self._profiled(number, found, inside, by_reference, self._now(items) - begin, tensors))
            for node in found.nodes:
                for value in set(node.given):
                    left[value] -= 1
                    if not left[value]:
                        tensors.pop(value, None)
        return {name: tensors[value] for name, value in self._network.outputs.items()}

    def _profiled(
        self, number: int, found: Call, inside: str, host: bool, ns: int, tensors: Mapping[Value, Any]
    ) -> dict[str, Any]:
        first, last = found.nodes[0], found.nodes[-1]
        made = {v for node in found.nodes for v in node.outputs}
        read = dict.fromkeys(v for node in found.nodes for v in node.given if v not in made)
        operands, results = ([_wide(tensors[v]) for v in vs if v in tensors] for vs in (read, last.outputs))
        item = item_of(number, last, host, ns, operands, results)
        if len(found.nodes) > 1 or isinstance(found, Experts):
            item["kernel"] = inside or "+".join(node.op.name for node in found.nodes)
            item["where"] = first.where
        return item

    def _note_faults(self, found: Call, tensors: Mapping[Value, Any], sizes: Mapping[str, int],
                     faults: dict[Node, Any]) -> None:  # fmt: skip
        """Flags of a call's nodes, on the device; one of several that ask the same."""
        for node in found.nodes:
            if node.op.torch_fault is None or node in self._repeated:
                continue
            if node in self._checks:
                faults[node] = self._fault(node, tensors, sizes)
            else:
                operands = [None if v.spec is None else tensors[v] for v in node.inputs]
                faults[node] = known(node.op, sizes).torch_fault(self._torch, *operands)  # type: ignore[misc]

    def _nothing(self, node: Node, sizes: Mapping[str, int]) -> dict[Value, Any] | None:
        """A node's results where none has an element: nothing is launched for them. None for any other node."""
        if node.op.binds or any(v.is_state or v.dtype.bits < 8 for v in node.outputs):
            return None
        shapes = {v: v.spec.evaluate(sizes) for v in node.outputs}
        if not all(0 in shape for shape in shapes.values()):
            return None
        torch, device = self._torch, self._device
        return {v: torch.empty(n, dtype=getattr(torch, v.dtype.name), device=device) for v, n in shapes.items()}

    def _by_torch(self, node: Node, tensors: dict[Value, Any], sizes: dict[str, int]) -> bool:
        if (empty := self._nothing(node, sizes)) is not None:
            tensors |= empty
            return False
        op: Op = known(node.op, sizes)
        operands = [None if v.spec is None else _wide(tensors[v]) for v in node.inputs]
        if isinstance(op, Dequantize) and node.inputs[0] in self._made.groups:
            operands[0] = unpacked(self._torch, operands[0], self._made.groups[node.inputs[0]])
        results, by_reference = call(self._torch, node, op, operands, self._device, sizes)
        if isinstance(op, Embedding) and node.inputs[1] in self._made.groups:  # rows of two integers a byte
            group, rows = self._made.groups[node.inputs[1]], results[0]
            results = (unpacked(self._torch, rows.flatten(0, -2), group).view(*rows.shape[:-1], -1),)
        for value, result in zip(node.outputs, results, strict=True):
            tensors[value] = result
            if op.binds:
                learn(node, value.spec, tuple(result.shape), op.bound_dims(), sizes)
        return by_reference


def _short_of_memory(error: BaseException) -> bool:
    """The end of a capture may say that it failed, and not why."""
    return out_of_memory(error) or (error.__context__ is not None and out_of_memory(error.__context__))


def _wide(tensor: Any) -> Any:
    """What rows of float8 stand for; others as they are."""
    return tensor.wide() if isinstance(tensor, Rows) else tensor


def _rows_of(torch: Any, logits: Any, rows: Sequence[int]) -> Any:
    """Some rows: those of a range without a copy, for it is what all rows are, or none."""
    if not rows:
        return logits[:0]
    first, count = rows[0], len(rows)
    if list(rows) == list(range(first, first + count)):
        return logits[first : first + count]
    return torch.stack([logits[row] for row in rows])


def _state(value: Value) -> Value:
    """The state that a chain of writes began with."""
    while value.node is not None:
        value = value.node.inputs[0]
    return value
