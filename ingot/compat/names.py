"""Which names `tensorrt_llm` and `tensorrt` have here, module by module."""

from __future__ import annotations

from typing import Any

from ingot.compat import (
    attention,
    attention_layers,
    builder,
    collectives,
    context,
    datatype,
    layers,
    lora,
    mixture,
    module,
    parameter,
    plugin,
    quantization,
    quantized,
    recurrent,
    recurrent_layers,
    runtime,
    trt_runtime,
    utils,
)
from ingot.compat.functional import ACT2FN, FUNCTIONS, GATED_ACT_2_ACT
from ingot.compat.logger import Logger, logger
from ingot.compat.network import Network
from ingot.compat.rope_utils import RopeEmbeddingUtils
from ingot.compat.tensor import Dims, ITensor, Tensor
from ingot.compat.trt_enums import ENUMS, Severity
from ingot.compat.trt_layers import Conditional, Layer
from ingot.compat.trt_loop import Loop
from ingot.compat.trt_network import INetworkDefinition
from ingot.compat.words import WORDS

__version__ = "1.2.0"  # of the API that is followed


class TrtLogger:
    """tensorrt.Logger: its severities; what is logged goes where tensorrt_llm.logger's lines go."""

    INTERNAL_ERROR, ERROR, WARNING, INFO, VERBOSE = Severity

    def __init__(self, min_severity: Severity = Severity.WARNING) -> None:
        self.min_severity = min_severity

    def log(self, severity: Severity, msg: str) -> None:
        """One line, where it is severe enough."""
        if severity <= self.min_severity:
            logger.log(severity.name.lower(), msg)


TrtLogger.Severity = Severity  # type: ignore[attr-defined]


def _of(source: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(source, name) for name in names}


_HELPERS = _of(
    datatype, "str_dtype_to_trt", "str_dtype_to_torch", "str_dtype_to_np", "torch_dtype_to_trt", "torch_dtype_to_str",
    "torch_dtype_to_np", "np_dtype_to_trt", "np_dtype_to_torch", "trt_dtype_to_np", "trt_dtype_to_torch",
    "trt_dtype_to_str",
) | _of(
    utils, "int32_array", "int64_array", "fp16_array", "fp32_array", "bf16_array", "bool_array", "dims_array",
    "dim_resolve_negative", "dim_to_trt_axes", "torch_to_numpy", "numpy_to_torch", "set_obj_attrs", "get_sm_version",
    "mpi_rank", "mpi_world_size", "mpi_comm", "mpi_barrier", "pad_vocab_size",
)  # fmt: skip
_CONTEXT = _of(context, "default_net", "default_trtnet", "net_guard", "set_network", "precision")
_BUILDER = _of(builder, "Builder", "BuilderConfig")
_PLUGIN = _of(plugin, "PluginConfig", "ContextFMHAType")
_RUNTIME = _of(runtime, "Session", "TensorInfo")
_FUNCTIONAL = {
    **FUNCTIONS, **recurrent.STEPS, "Tensor": Tensor, "ACT2FN": ACT2FN, "GATED_ACT_2_ACT": GATED_ACT_2_ACT,
    **attention.ENUMS, **collectives.ENUMS, **WORDS, "RopeEmbeddingUtils": RopeEmbeddingUtils,
}  # fmt: skip
_MODULES = _of(module, "Module", "ModuleList")
_LAYERS = {**layers.FILES, **attention_layers.FILES, **recurrent_layers.FILES, **lora.FILES, **mixture.FILES}
_MOE: dict[str, Any] = {"MOE": mixture.MixtureOfExperts}
_MORE = {"attention": {"RopeEmbeddingUtils": RopeEmbeddingUtils}, "moe": _MOE}

TABLE: dict[str, dict[str, Any]] = {
    "tensorrt_llm": {
        **_CONTEXT, **_BUILDER, **_MODULES, "Tensor": Tensor, "Parameter": parameter.Parameter, "Network": Network,
        "constant": FUNCTIONS["constant"], "logger": logger, "__version__": __version__, "Mapping": utils.Mapping,
        **{name: _HELPERS[name] for name in ("str_dtype_to_trt", "str_dtype_to_torch", "torch_dtype_to_trt",
                                             "torch_dtype_to_str", "np_dtype_to_trt", "mpi_rank", "mpi_world_size",
                                             "mpi_comm", "mpi_barrier")},
    },
    "tensorrt_llm._common": {**_CONTEXT, "check_max_num_tokens": utils.check_max_num_tokens},
    "tensorrt_llm._utils": _HELPERS,
    "tensorrt_llm.builder": _BUILDER,
    "tensorrt_llm.functional": _FUNCTIONAL,
    "tensorrt_llm.layers": {layer.__name__: layer for file in _LAYERS.values() for layer in file} | _MOE,
    **{f"tensorrt_llm.layers.{file}": {layer.__name__: layer for layer in found}
       | _MORE.get(file, {})
       for file, found in _LAYERS.items()},
    "tensorrt_llm.logger": {"logger": logger, "Logger": Logger},
    "tensorrt_llm.mapping": {"Mapping": utils.Mapping},
    "tensorrt_llm.module": _MODULES,
    "tensorrt_llm.network": {"Network": Network, **_CONTEXT},
    "tensorrt_llm.parameter": {"Parameter": parameter.Parameter},
    "tensorrt_llm.plugin": _PLUGIN,
    "tensorrt_llm.plugin.plugin": _PLUGIN,
    "tensorrt_llm.quantization": {"QuantMode": quantization.QuantMode},
    "tensorrt_llm.quantization.functional": quantized.QUANTISING,
    "tensorrt_llm.quantization.layers": quantized.QUANTISED_LAYERS,
    "tensorrt_llm.quantization.layer": quantized.QUANTISED_LAYERS,
    "tensorrt_llm.quantization.mode": {"QuantMode": quantization.QuantMode},
    "tensorrt_llm.runtime": _RUNTIME,
    "tensorrt_llm.runtime.session": _RUNTIME,
    "tensorrt": {
        **ENUMS, **datatype.ALIASES, "DataType": datatype.DataType, "Dims": Dims, "Dims2": Dims, "Dims3": Dims,
        "Dims4": Dims, "DimsHW": Dims, "Permutation": Dims, "Weights": utils.Weights, "ITensor": ITensor,
        "INetworkDefinition": INetworkDefinition, "Builder": builder.TrtBuilder, "Logger": TrtLogger,
        "ILogger": TrtLogger, "IBuilderConfig": builder.TrtBuilderConfig, "IHostMemory": builder.HostMemory,
        "IOptimizationProfile": builder.OptimizationProfile, "Runtime": trt_runtime.Runtime,
        "ICudaEngine": trt_runtime.ICudaEngine, "IExecutionContext": trt_runtime.IExecutionContext,
        "ILayer": Layer, "ILoop": Loop, "IIfConditional": Conditional, "nptype": datatype.trt_dtype_to_np,
        "volume": utils.volume, "init_libnvinfer_plugins": utils.init_libnvinfer_plugins, "__version__": "10.14.1",
    },
}  # fmt: skip
DOCS = {
    "tensorrt_llm": "TensorRT-LLM's network API up to 1.2, on ingot (docs/migrating.md).",
    "tensorrt": "What network code needs of TensorRT, on ingot (docs/migrating.md).",
}
