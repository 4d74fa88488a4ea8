"""An exported program as torch runs it: what an imported network is compared with.

Only ops of our table are looked up in torch, by name; nothing that a file says is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot import dtypes
from ingot._lazy import optional
from ingot.dtypes import DType
from ingot.errors import MismatchError
from ingot.frontends.comparing import NARROW_TOLERANCE, TOLERANCE, Inputs, Outputs, Refused, Step, wide
from ingot.frontends.narrow import carried, is_narrow
from ingot.frontends.recording import Imported
from ingot.frontends.torch_export import higher_order
from ingot.frontends.torch_export.aten import COMPLEX_TABLE, TABLE
from ingot.frontends.torch_export.aten import sizes as size_ops
from ingot.frontends.torch_export.export import INSTALL, Exported, quiet, tensor_leaves, torch_package
from ingot.frontends.torch_export.graph import CHECKS, Body, Graph, GraphNode, Ref, Setting, SizeRef, refs
from ingot.frontends.torch_export.importer import NUMBERS, Source, in_pairs
from ingot.frontends.torch_export.plain_forms import in_place
from ingot.frontends.torch_export.program import Program
from ingot.nn.parameter import as_array
from ingot.passes.widen import NARROW

Array = np.ndarray[Any, Any]


class TorchRun:
    """The program on torch's own ops, in float32 where the program has narrower floats.

    Args:
        weights: the source's tensors by the names of the program, as arrays or torch's own.
    """

    def __init__(self, torch: Any, program: Program, weights: Mapping[str, Any]) -> None:
        self.torch, self.program = torch, program
        self.stored = {
            argument.name: self._tensor(weights[spec.name])
            for argument, spec in zip(program.graph.inputs, program.inputs, strict=True)
            if spec.kind in ("parameter", "buffer", "constant") and spec.name in weights
        }

    def __call__(
        self, feeds: Mapping[str, Array], keep: Callable[[GraphNode, dict[str, Any]], None] | None = None
    ) -> list[Array | None]:
        """The outputs in order (None for those that are no tensors). feeds: by the names of the program.

        keep: called after every node with the tensors that it made.
        """
        graph = self.program.graph
        values: dict[str, Any] = dict(self.stored) | {name: self._fed(name, a) for name, a in feeds.items()}
        self._run_graph(graph, values, keep)
        return [self._output(value, values) for value in graph.outputs]

    def _run_graph(
        self, graph: Graph, values: dict[str, Any], keep: Callable[[GraphNode, dict[str, Any]], None] | None = None
    ) -> None:
        """Adds what the nodes make to the values, and drops what nobody reads any more."""
        last = {name: i for i, node in enumerate(graph.nodes) for name in refs(a.value for a in node.arguments)}
        kept = set(refs(graph.outputs))
        with self.torch.no_grad():
            for i, node in enumerate(graph.nodes):
                made = {} if node.op in CHECKS or graph.idle(node) else self._run(node, values)
                values.update(made)
                if keep is not None:
                    keep(node, made)
                for name in set(refs(a.value for a in node.arguments)):
                    if last[name] == i and name not in kept and name not in self.stored:
                        values.pop(name, None)  # what only idle nodes read was never made

    def _block(self, graph: Body, arguments: Sequence[Any]) -> list[Any]:
        """The results of a graph inside of the program."""
        inner: Graph = graph.graph
        values = {a.name: x for a, x in zip(inner.inputs, arguments, strict=True) if isinstance(a, Ref | SizeRef)}
        self._run_graph(inner, values)
        return [self._argument(output, values) for output in inner.outputs]

    def _tensor(self, value: Any) -> Any:
        """Shares memory with the value where it can: nothing that the program may do changes it."""
        if isinstance(value, self.torch.Tensor):
            narrow = value.dtype in (self.torch.bfloat16, self.torch.float16)
            return value.detach().float() if narrow else value.detach()
        if is_narrow(dtype := dtypes.get(value.dtype)):
            return self.torch.from_numpy(carried(value)).view(getattr(self.torch, dtype.name))
        return self.torch.from_numpy(wide(value))

    def _fed(self, name: str, array: Array) -> Any:
        made, dtype = self._tensor(np.array(array)), self.program.graph.tensors[name].dtype
        if is_narrow(dtype):
            return made.view(getattr(self.torch, dtype.name))
        return self.torch.view_as_complex(made) if dtype.kind == "complex" else made

    def _run(self, node: GraphNode, values: dict[str, Any]) -> dict[str, Any]:
        given = {a.name: self._argument(a.value, values) for a in node.arguments}
        if node.op in higher_order.TABLE:
            found: Any = _HIGHER[node.op.removeprefix(higher_order.SPACE)](self._block, *given.values())
        elif node.op in size_ops.NAMES:
            found = self._size(node.op, tuple(given.values()))
        else:
            known = node.op in TABLE or node.op in COMPLEX_TABLE or node.op in NUMBERS
            if not known and in_place(node.op, given) is None:
                raise MismatchError(f"{node.op} is not in ingot's table")
            space, name, overload = node.op.split(".")
            if space in _REGISTERED_BY:
                optional(_REGISTERED_BY[space], "comparing with the source", INSTALL)
            found = getattr(getattr(getattr(self.torch.ops, space), name), overload)(**given)
        outputs = list(node.outputs)
        if len(outputs) == 1 and type(outputs[0]) is tuple:
            outputs = list(outputs[0])
        results = list(found) if isinstance(found, tuple | list) else [found]
        return {o.name: r for o, r in zip(outputs, results, strict=False) if isinstance(o, Ref | SizeRef)}

    def _size(self, op: str, given: tuple[Any, ...]) -> Any:
        tensors = [x for x in given if isinstance(x, self.torch.Tensor)]
        if not tensors:
            return size_ops.compute(op, given)
        shape = tuple(tensors[0].shape)
        if op == "aten.sym_size.int":
            return shape[given[1]]
        return int(np.prod(shape, dtype=np.int64)) if op == "aten.sym_numel.default" else shape

    def _argument(self, value: Any, values: dict[str, Any]) -> Any:
        if isinstance(value, Ref | SizeRef):
            return values[value.name]
        if isinstance(value, Setting):
            return "cpu" if value.kind == "device" else getattr(self.torch, _MEMORY_FORMATS.get(value.kind, "strided"))
        if isinstance(value, DType):
            return getattr(self.torch, "float32" if value in NARROW else value.name)
        return [self._argument(item, values) for item in value] if type(value) is tuple else value

    def _output(self, value: Any, values: dict[str, Any]) -> Array | None:
        found = values.get(value.name) if isinstance(value, Ref | SizeRef) else value
        if found is None:
            return None
        return _array(found) if isinstance(found, self.torch.Tensor) else np.asarray(found)


_REGISTERED_BY = {"quantized_decomposed": "torch.ao.quantization.fx._decomposed"}  # which makes these ops known

RunBlock = Callable[[Body, Sequence[Any]], list[Any]]


def _cond(block: RunBlock, predicate: Any, yes: Body, no: Body, operands: Any = ()) -> list[Any]:
    return block(yes if predicate else no, operands)


def _while(block: RunBlock, condition: Body, body: Body, carried: Any, others: Any = ()) -> list[Any]:
    now = list(carried)
    while block(condition, [*now, *others])[0]:
        now = block(body, [*now, *others])
    return now


def _scan(block: RunBlock, body: Body, carried: Any, scanned: Any, others: Any = ()) -> list[Any]:
    now, kept = list(carried), []
    for parts in zip(*scanned, strict=True):
        results = block(body, [*now, *parts, *others])
        now = results[: len(now)]
        kept.append(results[len(now) :])
    return [*now, *(_stacked(several) for several in zip(*kept, strict=True))]


def _stacked(parts: Sequence[Any]) -> Any:
    """Tensors of one shape along a new first dimension."""
    whole = parts[0].new_empty((len(parts), *parts[0].shape))
    for row, part in zip(whole, parts, strict=True):
        row.copy_(part)
    return whole


# What the entries of higher_order mean on torch's tensors.
_HIGHER: dict[str, Callable[..., list[Any]]] = {
    "cond": _cond,
    "while_loop": _while,
    "scan": _scan,
    "map_impl": lambda block, body, scanned, others=(): _scan(block, body, (), scanned, others),
    "wrap_with_set_grad_enabled": lambda block, enabled, graph, *xs: block(graph, xs),
    "tag_activation_checkpoint": lambda block, graph, *xs: block(graph, xs),
    "invoke_subgraph": lambda block, graph, identifier, *xs: block(graph, xs),
    "wrap_with_autocast": lambda block, device, dtype, enabled, cache, graph, *xs: block(graph, xs),
}


def _array(tensor: Any) -> Array:
    """A torch tensor as a network has it: complex numbers as pairs."""
    return in_pairs(as_array(tensor.resolve_conj().resolve_neg()))


_MEMORY_FORMATS = {
    "memory format 1": "contiguous_format", "memory format 2": "channels_last", "memory format 3": "channels_last_3d",
    "memory format 4": "preserve_format",
}  # fmt: skip


# --------------------------------------------------------------------------------------------------------- peer


@dataclass(frozen=True)
class Origin:
    """What a network was imported from: its name, program and tensors, and the module when there is one."""

    name: str
    program: Program
    source: Source
    module: Any = None
    exported: Exported | None = None


class TorchPeer:
    """The source as torch runs it: the module itself on the inputs of its export, on all others the program.

    Raises UserError when torch is not installed.
    """

    def __init__(self, imported: Imported, origin: Origin) -> None:
        self.torch = torch_package("comparing with the source")
        self.imported, self.origin = imported, origin
        tensors = origin.source.arrays if origin.exported is None else origin.exported.tensors
        self._run = TorchRun(self.torch, origin.program, tensors)

    @property
    def framework(self) -> str:
        return f"torch {self.torch.__version__}"

    def run(self, feeds: Mapping[str, Array], word: str) -> Outputs:
        exported = self.origin.exported
        if word == "example" and exported is not None:
            return module_outputs(self.torch, self.origin.module, exported, self.imported)
        return self.walk(feeds, None)

    def walk(self, feeds: Mapping[str, Array], look: Callable[[Step], None] | None) -> Outputs:
        def keep(node: GraphNode, made: dict[str, Any]) -> None:
            place = f" at {node.line[0]}:{node.line[1]}" if node.line else ""
            known = {k: _array(t) for k, t in made.items() if k in self.imported.values}
            assert look is not None
            look(Step(node.op, f"{node.where or 'the module'}{place}", known))

        given = {self.imported.placeholders[key]: array for key, array in feeds.items()}
        try:
            found = self._run(given, None if look is None else keep)
        except (RuntimeError, IndexError, ValueError) as e:
            raise Refused(f"torch cannot run the program on them: {e!s:.500}") from None
        kinds = zip(found, self.origin.program.outputs, strict=True)
        arrays = _named(self.imported, [f for f, output in kinds if output.kind == "user_output"])
        return Outputs(arrays, NARROW_TOLERANCE if _rounds(self.imported) else TOLERANCE)


def examples(imported: Imported, exported: Exported) -> Inputs:
    """The inputs that a module was exported with."""
    leaves = tensor_leaves(exported.arguments)
    arrays = {name: np.array(_array(x)) for name, x in zip(imported.placeholders, leaves, strict=True)}
    return Inputs("example", arrays)


def _named(imported: Imported, arrays: list[Array | None]) -> dict[str, Array]:
    """Outputs in order by the network's names; None is what is no tensor."""
    return dict(zip(imported.network.outputs, (a for a in arrays if a is not None), strict=True))


def module_outputs(torch: Any, module: Any, exported: Exported, imported: Imported) -> Outputs:
    """What the module itself computes on the arguments it was exported with."""
    args, kwargs = exported.arguments
    own = torch.utils._pytree.tree_map(lambda x: x.clone() if isinstance(x, torch.Tensor) else x, (args, kwargs))
    with quiet(torch, module):
        leaves = torch.utils._pytree.tree_leaves(module(*own[0], **own[1]))  # which may change its inputs in place
    tensors = [_array(x) if isinstance(x, torch.Tensor) else None if x is None else np.asarray(x) for x in leaves]
    read = (*module.parameters(), *module.buffers(), *tensor_leaves(exported.arguments))
    narrow = any(x.dtype in (torch.bfloat16, torch.float16) for x in read)
    named = _named(imported, [None if t is None else wide(t) for t in tensors])
    return Outputs(named, NARROW_TOLERANCE if narrow or _rounds(imported) else TOLERANCE)


def _rounds(imported: Imported) -> bool:
    """Whether a last bit may become a whole step."""
    return any(node.op.name == "quantize" for node in imported.network.nodes)
