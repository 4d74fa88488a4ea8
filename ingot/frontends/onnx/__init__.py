"""Importing ONNX models: an .onnx file, or a ModelProto in this process."""

from __future__ import annotations

from ingot.frontends.onnx.compare import RuntimePeer, runtime_package
from ingot.frontends.onnx.importer import Built, NeedsValues, build_network
from ingot.frontends.onnx.inputs import Given
from ingot.frontends.onnx.model import Model, onnx_package, open_model

__all__ = [
    "Built", "Given", "Model", "NeedsValues", "RuntimePeer", "build_network", "onnx_package", "open_model",
    "runtime_package",
]  # fmt: skip
