"""The two helpers that every test of the retired API had: a session of a network, and a run of it."""

from __future__ import annotations

import math
from typing import Any

from ingot.cli.inspect import kernel_counts


def create_session(builder: Any, network: Any, precision: str = "float32", optimization_profiles: Any = ()) -> Any:
    import tensorrt_llm

    builder_config = builder.create_builder_config(precision=precision)
    for profile in optimization_profiles:
        builder_config.trt_builder_config.add_optimization_profile(profile)
    engine = builder.build_engine(network, builder_config)
    assert engine is not None
    return tensorrt_llm.runtime.Session.from_serialized_engine(engine)


def run_session(session: Any, inputs: dict[str, Any]) -> dict[str, Any]:
    import torch
    from tensorrt_llm._utils import torch_dtype_to_trt, trt_dtype_to_torch
    from tensorrt_llm.runtime import TensorInfo

    asked = [TensorInfo(name, torch_dtype_to_trt(tensor.dtype), tensor.shape) for name, tensor in inputs.items()]
    found = session.infer_shapes(asked)
    most = max([tensor.numel() for tensor in inputs.values()])  # of a result whose size only the run shows
    outputs = {
        t.name: torch.empty(
            t.shape if -1 not in t.shape else [most if n == -1 else n for n in t.shape],
            dtype=trt_dtype_to_torch(t.dtype),
        )
        for t in found
    }
    assert session.run(inputs=inputs, outputs=outputs, stream=0)
    for name, tensor in outputs.items():
        sizes = tuple(session.context.get_tensor_shape(name))
        if tuple(tensor.shape) != sizes:
            outputs[name] = tensor.reshape(-1)[: math.prod(sizes)].reshape(sizes)
    return outputs


def hosted(session: Any) -> list[str]:
    """The ops of an engine that are host calls; the C interface refuses engines that have some."""
    header = session.engine.ingot.header
    _, host = zip(*(kernel_counts(program) for program in header["programs"].values()), strict=True)
    return sorted(name for counts in host for name in counts)
