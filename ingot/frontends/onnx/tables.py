"""Initializers that a model only computes with: short tables of floats, known with all that is made of them."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from ingot import dtypes
from ingot.frontends.onnx.model import Model
from ingot.frontends.onnx.table import domain_of, find
from ingot.ir import Spec

MAX_TABLE = 64 << 10  # bytes
MAX_ROUNDS = 16  # each leaves out what the one before has shown to be read elsewhere


def tables(model: Model) -> frozenset[str]:
    """The names of one-dimensional float initializers of the main graph that no node reads beside what only a run
    knows: axes of a window, gammas that a file divides by a deviation. As constants they fold; they are no weights
    that somebody might replace.
    """
    graph = model.graph
    specs = {name: model.weights.spec(name) for name in model.weights}
    given = {info.name for info in graph.input} - specs.keys()
    found = {name for name, spec in specs.items() if _short(spec)}
    plain = {name for name, spec in specs.items() if spec.dtype not in dtypes.FLOATS or spec.elements == 1}
    readers: dict[str, list[int]] = defaultdict(list)
    for i, node in enumerate(graph.node):
        for name in {*node.input, *_captured(node)}:
            readers[name].append(i)
    found -= {info.name for info in graph.output} | given
    for _ in range(MAX_ROUNDS):
        known, computed = found | plain, set()
        for i, node in enumerate(graph.node):
            if _folds(model, node) and all(name in known for name in node.input if name):
                computed.add(i)
                known.update(name for name in node.output if name)
        bad = {name for name in found if not readers[name] or any(i not in computed for i in readers[name])}
        if not bad:
            return frozenset(found)
        found -= bad
    return frozenset()


def _short(spec: Spec) -> bool:
    is_row = spec.dtype in dtypes.FLOATS and len(spec.shape) == 1
    return is_row and int(spec.elements) * spec.dtype.bits // 8 <= MAX_TABLE


def _folds(model: Model, node: Any) -> bool:
    """Whether a node is computed at once when its operands are known."""
    domain = domain_of(node.domain)
    if model.function(domain, node.op_type, getattr(node, "overload", "")) is not None or _captured(node):
        return False
    entry = find(domain, node.op_type, model.versions.get(domain, 0))
    return entry is not None and entry.folds


def _captured(node: Any) -> set[str]:
    """Every name that the subgraphs of a node read."""
    found: set[str] = set()
    todo = list(node.attribute)
    while todo:
        attribute = todo.pop()
        for inner in (*((attribute.g,) if attribute.HasField("g") else ()), *attribute.graphs):
            for one in inner.node:
                found.update(one.input)
                todo.extend(one.attribute)
            found.update(info.name for info in inner.output)
    return found
