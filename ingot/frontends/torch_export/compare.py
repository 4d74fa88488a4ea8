"""Whether an imported network computes what its source computes: the program run by torch's own ops beside it.

Only ops of our table are looked up in torch, by name; nothing that a file says is evaluated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Expr
from ingot.dtypes import DType
from ingot.errors import IngotError, MismatchError
from ingot.frontends.torch_export.aten import TABLE
from ingot.frontends.torch_export.aten import sizes as size_ops
from ingot.frontends.torch_export.graph import GraphNode, Program, Ref, Setting, SizeRef, refs
from ingot.frontends.torch_export.importer import Imported, in_place
from ingot.ir import Network, Node, Spec, interpret
from ingot.nn.parameter import as_array

Array = np.ndarray[Any, Any]
Run = Callable[[Mapping[str, Array]], Mapping[str, Array]]

TOLERANCE = 1e-4  # of the largest output, in float32
NARROW_TOLERANCE = 0.05  # of a module in half precision against ours in float32
NARROW = (dtypes.bfloat16, dtypes.float16)


@dataclass(frozen=True)
class Comparison:
    """How far the outputs were apart, relative to the largest, and on which inputs; or why nothing was compared."""

    largest: float = 0.0
    inputs: str = ""
    source: str = ""
    missing: str = ""

    def __str__(self) -> str:
        if self.missing:
            return f"not compared with its source: {self.missing}"
        return f"against {self.source}, {self.inputs} inputs: within {self.largest:.1e} of the largest output"


class TorchRun:
    """The program on torch's own ops, in float32 where the program has narrower floats.

    Args:
        weights: the source's tensors by the names of the program.
    """

    def __init__(self, torch: Any, program: Program, weights: Mapping[str, Array]) -> None:
        self.torch, self.program = torch, program
        self.stored = {
            argument.name: self._tensor(weights[spec.name])
            for argument, spec in zip(program.graph.inputs, program.inputs, strict=True)
            if spec.kind in ("parameter", "buffer", "constant") and spec.name in weights
        }

    def __call__(self, feeds: Mapping[str, Array], keep: Callable[[GraphNode, dict[str, Any]], None] | None = None
                 ) -> list[Array | None]:  # fmt: skip
        """The outputs in order (None for those that are no tensors). feeds: by the names of the program.

        keep: called after every node with the tensors that it made.
        """
        graph = self.program.graph
        values: dict[str, Any] = dict(self.stored) | {name: self._tensor(array) for name, array in feeds.items()}
        last = {name: i for i, node in enumerate(graph.nodes) for name in refs(a.value for a in node.arguments)}
        kept = set(refs(graph.outputs))
        with self.torch.no_grad():
            for i, node in enumerate(graph.nodes):
                made = self._run(node, values)
                values.update(made)
                if keep is not None:
                    keep(node, made)
                for name in set(refs(a.value for a in node.arguments)):
                    if last[name] == i and name not in kept and name not in self.stored:
                        del values[name]
            return [self._output(value, values) for value in graph.outputs]

    def _tensor(self, array: Array) -> Any:
        wide = array.astype(np.float32) if dtypes.get(array.dtype) in NARROW else array
        return self.torch.from_numpy(np.array(wide))

    def _run(self, node: GraphNode, values: dict[str, Any]) -> dict[str, Any]:
        if node.op in size_ops.CHECKS:
            return {}
        given = {a.name: self._argument(a.value, values) for a in node.arguments if not isinstance(a.value, Setting)}
        if node.op in size_ops.NAMES:
            found = self._size(node.op, tuple(given.values()))
        else:
            if node.op not in TABLE and in_place(node.op) is None:
                raise MismatchError(f"{node.op} is not in ingot's table")
            space, name, overload = node.op.split(".")
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
        if isinstance(value, DType):
            return getattr(self.torch, "float32" if value in NARROW else value.name)
        return [self._argument(item, values) for item in value] if type(value) is tuple else value

    def _output(self, value: Any, values: dict[str, Any]) -> Array | None:
        found = values.get(value.name) if isinstance(value, Ref | SizeRef) else value
        if found is None:
            return None
        return as_array(found) if isinstance(found, self.torch.Tensor) else np.asarray(found)


def difference(ours: Array, theirs: Array) -> float:
    """The largest difference relative to the largest finite element of theirs; infinite for what cannot be equal."""
    if ours.shape != theirs.shape:
        return float("inf")
    if not ours.size:
        return 0.0
    a, b = ours.astype(np.float64), theirs.astype(np.float64)
    finite = np.isfinite(b)
    if not np.array_equal(finite, np.isfinite(a)) or not np.array_equal(a[~finite], b[~finite], equal_nan=True):
        return float("inf")
    scale = float(np.abs(b[finite]).max(initial=0)) or 1.0
    return float(np.abs(a[finite] - b[finite]).max(initial=0)) / scale


# ------------------------------------------------------------------------------------------------------- inputs


def cases(network: Network, examples: Mapping[str, Array] | None, seed: int) -> list[dict[str, Array]]:
    """Inputs to compare on: the examples, or seeded ones; with dynamic dims a second set of other sizes."""
    known = network.dims
    first = {name: d.opt or max(d.min, 2, min(16, 16 if d.max is None else d.max)) for name, d in known.items()}
    if examples is not None:
        for value in network.inputs:
            pairs = zip(value.shape, examples[value.name].shape, strict=True)
            first |= {d.name: size for d, size in pairs if isinstance(d, dims.Dim)}
    found = [dict(examples) if examples is not None else seeded(network, first, seed)]
    if known:
        found.append(seeded(network, {name: _other(d, first[name]) for name, d in known.items()}, seed + 1))
    return found


def _other(d: dims.Dim, size: int) -> int:
    """Another size of a dim, a smaller one if possible."""
    smaller = max(size // 2 + 1, d.min, 1)
    larger = size + 1
    return smaller if smaller < size else larger if d.max is None or larger <= d.max else max(size - 1, d.min)


def seeded(network: Network, sizes: Mapping[str, int], seed: int) -> dict[str, Array]:
    """Normal numbers; integers that every embedding and comparison of the network takes."""
    rng = np.random.default_rng(seed)
    return {v.name: _random(rng, v.spec, sizes, _rows(network, v)) for v in network.inputs}


def _random(rng: np.random.Generator, spec: Spec, sizes: Mapping[str, int], rows: int) -> Array:
    shape = spec.evaluate(sizes)
    if spec.dtype.is_float:
        return rng.standard_normal(shape).astype(spec.dtype.numpy)
    return rng.integers(0, rows, shape).astype(spec.dtype.numpy)


def _rows(network: Network, value: Any) -> int:
    """How many rows the smallest table has that an integer input chooses from; 2 when it chooses from none."""
    found, todo, seen = [], [value], {value}
    while todo:
        for node in network.users(todo.pop()):
            if node.op.name == "embedding":
                found.append(node.inputs[1].shape[0])
            elif node.op.is_view or node.op.name in ("cast", "concat"):
                todo += [v for v in node.outputs if v not in seen]
                seen.update(node.outputs)
    known = [n for n in found if isinstance(n, int)]
    return min(known, default=2)


# --------------------------------------------------------------------------------------------------- comparison


def compare(
    imported: Imported, run: Run, torch_run: TorchRun, feeds: Mapping[str, Array], name: str, tolerance: float = TOLERANCE
) -> float:
    """The largest relative difference of the outputs. Raises MismatchError, which names the first node that differs."""
    theirs = torch_run(imported.placeholders(feeds))
    ours = run(feeds)
    expected = [found for found, kind in zip(theirs, torch_run.program.outputs, strict=True) if kind.kind == "user_output"]
    largest = 0.0
    for output, value in zip(ours, (e for e in expected if e is not None), strict=True):
        apart = difference(ours[output], value)
        if not apart <= tolerance:
            raise MismatchError(
                f"{name}: output {output} differs from the source's by {apart:.2g} of its largest element, more than "
                f"{tolerance:.0e}. {_first_difference(imported, torch_run, feeds, tolerance)}"
            )
        largest = max(largest, apart)
    return largest
