"""The module that a node belongs to, from what exporters leave of it."""

from __future__ import annotations

import re
from typing import Any

from ingot.frontends.onnx.model import Weights

MAX_PATH = 200
MAX_SCOPES = 4096  # characters of the metadata that are looked at
_SCOPES = "pkg.torch.onnx.name_scopes"  # a list as Python writes it: ['', 'encoder', 'encoder.layer.0', 'linear']
_QUOTED = re.compile(r"'([^']*)'")


def path_of(node: Any, weights: Weights) -> str:
    """Exporters name nodes by the path, "/encoder/layer.0/MatMul"; or weights, "encoder.layer.0.weight", and keep the
    path of other nodes beside them. Else it is the name of the weight itself. May be empty.
    """
    read = [name for name in node.input if name in weights]
    found = (
        node.name.rpartition("/")[0].strip("/").replace("/", "."),
        *(name.rpartition(".")[0] for name in read),
        _scope(node),
        *(name for name in read if _is_matrix(weights, name)),
    )
    return next((path[:MAX_PATH] for path in found if path and path.isprintable()), "")


def _scope(node: Any) -> str:
    """The last module of torch's list; the list ends with the name of the op."""
    for item in getattr(node, "metadata_props", ()):  # the package onnx before 1.16 has none
        if item.key == _SCOPES and len(item.value) <= MAX_SCOPES:
            return "".join(_QUOTED.findall(item.value)[-2:-1])
    return ""


def _is_matrix(weights: Weights, name: str) -> bool:
    spec = weights.spec(name)
    return spec.dtype.is_float and len(spec.shape) > 1
