"""ingot: an ahead-of-time engine for neural networks.

    engine = ingot.build("models/pico-python")           # or load("pico.ingot")
    llm = ingot.LLM("pico.ingot")
    print(llm.generate("import os", max_tokens=16).text)

Everything below `ingot` is loaded when first used: serving a built engine never loads the compiler.
"""

from __future__ import annotations

from typing import Any

from ingot import _lazy, errors
from ingot.errors import IngotError
from ingot.version import __version__

_NAMES = {
    "LLM": "ingot.llm.llm:LLM",
    "Completion": "ingot.llm.stream:Completion",
    "Dim": "ingot.dims:Dim",
    "Embedder": "ingot.llm.embedding:Embedder",
    "Engine": "ingot.engine.session:Engine",
    "Module": "ingot.nn:Module",
    "Network": "ingot.ir:Network",
    "Op": "ingot.ir:Op",
    "Parameter": "ingot.nn:Parameter",
    "SamplingParams": "ingot.llm.sampling:SamplingParams",
    "Session": "ingot.engine.session:Session",
    "Spec": "ingot.ir:Spec",
    "Tensor": "ingot.ir:Value",
    "build": "ingot.builder.build:build",
    "compat": "ingot.compat",
    "dtypes": "ingot.dtypes",
    "external_op": "ingot.ops.external:external_op",
    "functional": "ingot.functional",
    "interpret": "ingot.ir:interpret",
    "load": "ingot.engine.session:load",
    "nn": "ingot.nn",
    "op_library": "ingot.ops.library:op_library",
    "ops": "ingot.ops",
    "precision": "ingot.ir.precision:precision",
    "quantization": "ingot.quantization",
    "quantize": "ingot.quantization.quantize:quantize",
    "torch2trt": "ingot.compat.torch2trt:torch2trt",
}

__all__ = ["IngotError", "__version__", "errors", *_NAMES]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'ingot' has no attribute {name!r}")
    found = globals()[name] = _lazy.load(_NAMES[name])
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
