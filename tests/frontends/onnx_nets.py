"""Small ONNX models in nodes, and the engines of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

onnx = pytest.importorskip("onnx")

from ingot.builder.network import build_network  # noqa: E402
from ingot.frontends.onnx import Model  # noqa: E402
from ingot.frontends.onnx import build_network as import_network  # noqa: E402

helper, FLOAT, INT64, BOOL = onnx.helper, onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
node, value = helper.make_node, helper.make_tensor_value_info
RNG = np.random.default_rng(0)


def floats(*shape: int) -> Any:
    return RNG.standard_normal(shape, np.float32)


def engine(nodes: list[Any], inputs: dict[str, Any], constants: dict[str, Any] | None = None) -> Any:
    """Of nodes that end in `y`; an input is given by its dims, floats unless a type stands before them."""
    kinds = {n: (d[0], d[1]) if isinstance(d, tuple) else (FLOAT, d) for n, d in inputs.items()}
    graph = helper.make_graph(
        nodes, "net", [value(n, kind, shape) for n, (kind, shape) in kinds.items()], [value("y", FLOAT, None)],
        [onnx.numpy_helper.from_array(np.asarray(a), n) for n, a in (constants or {}).items()],
    )  # fmt: skip
    graph.output[0].type.tensor_type.elem_type = 0
    proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    imported = import_network(Model(proto, "net")).imported
    return build_network(imported.network, imported.weights, report=False)


def branch(name: str, nodes: list[Any], *outputs: str) -> Any:
    return helper.make_graph(nodes, name, [], [value(o, FLOAT, None) for o in outputs])
