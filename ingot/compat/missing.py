"""Names of the retired API that are not here, and what to write instead: modules, names, methods of networks."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

FEW = 8  # names that a message can list

_MODEL = "`ingot.build(folder)` builds a whole model of its Hugging Face folder (docs/families.md)"
_LLM = "`ingot.LLM`"
_LORA = "merge the adapter when the engine is built: `ingot.build(folder, lora=adapter)` (docs/lora.md)"
_ONE_DEVICE = "nothing: an engine runs on one device"
_KERNELS = "plain functions: every op has its kernel, so there are no plugins"
_ATTENTION = "`layers.Attention`, or `ingot.functional.scaled_dot_product_attention` with a mask"
_FP8 = 'float weights here, and `ingot.build(…, weights="int8")` for stored ones: float8 has no kernel on a CPU'
_FP4 = 'float weights here, and `ingot.build(…, weights="int4-g32")` for stored ones'
_QSERVE = 'float weights here, and `ingot.build(…, weights="int4-g128")` for stored ones'
_CALIBRATOR = "`ingot.quantize(net, data, inputs)`, which calibrates on data (docs/quantization.md)"
_PRODUCT = "matmul, which multiplies with float32 sums; the build chooses the kernel"
_FUSED_GATE = "swiglu(matmul(x, weight, transb=True)): the build fuses it"
_GENERATE = "`ingot.LLM(engine).generate(prompt)`"
_ENGINE_FILE = "`ingot.build(folder)`, whose engine is one file that `ingot.load` opens"

# Whole modules that are not here.
PACKAGES: dict[str, str] = {
    "tensorrt_llm.models": _MODEL,
    "tensorrt_llm.executor": _LLM,
    "tensorrt_llm.llmapi": _LLM,
    "tensorrt_llm.hlapi": _LLM,
    "tensorrt_llm.bindings": _LLM,
    "tensorrt_llm.serve": "`ingot serve` (docs/serving.md)",
    "tensorrt_llm.auto_parallel": "nothing: ingot's engines run on one device",
    "tensorrt_llm.graph_rewriting": "ingot's passes, which every build runs (docs/adding-an-op.md)",
    "tensorrt_llm.commands": "the command `ingot build`",
    "tensorrt_llm.tools": "`ingot inspect`, `ingot bench` and `ingot diff`",
    "tensorrt_llm.bench": "`ingot bench`",
    "tensorrt_llm.lora_manager": _LORA,
    "tensorrt_llm.profiler": "`ingot bench --profile`",
    "tensorrt_llm.scaffolding": _LLM,
    "tensorrt_llm.evaluate": "`ingot score`",
    "tensorrt_llm.inputs": _LLM,
    "tensorrt_llm.sampling_params": "`ingot.SamplingParams`",
    "tensorrt_llm.top_model_mixin": _MODEL,
    "tensorrt_llm._ipc_utils": _ONE_DEVICE,
    "tensorrt_llm._torch": "torch itself",
}


def _each(where: str, names: str, instead: str) -> dict[str, str]:
    return {f"{where}.{name}": instead for name in names.split()}


_FUNCTIONAL = "tensorrt_llm.functional"
_LAYERS = "tensorrt_llm.layers"
_QUANTIZATION = "tensorrt_llm.quantization"
_RUNTIME = "tensorrt_llm.runtime"
NAMES: dict[str, str] = {
    # ------------------------------------------------------------------------------------ the package itself
    "tensorrt_llm.LLM": "`ingot.LLM`",
    "tensorrt_llm.MultimodalEncoder": "`ingot.Embedder` for texts; images have no family yet",
    "tensorrt_llm.SamplingParams": "`ingot.SamplingParams`",
    "tensorrt_llm.build": "`ingot.build(folder)`",
    "tensorrt_llm.BuildConfig": "the arguments of `ingot.build`",
    "tensorrt_llm.AutoParallelConfig": _ONE_DEVICE,
    "tensorrt_llm.KvCacheConfig": "the limits of `ingot.LLM` (docs/serving.md)",
    "tensorrt_llm.KvCacheRetentionConfig": "the prefix cache of `ingot.LLM`, which keeps what is used",
    "tensorrt_llm.DisaggregatedParams": _ONE_DEVICE,
    "tensorrt_llm.TorchLlmArgs": "the arguments of `ingot.LLM`",
    "tensorrt_llm.TrtLlmArgs": "the arguments of `ingot.LLM`",
    "tensorrt_llm.set_mpi_comm": _ONE_DEVICE,
    "tensorrt_llm.disable_mpi": _ONE_DEVICE,
    "tensorrt_llm.local_mpi_rank": _ONE_DEVICE,
    "tensorrt_llm.default_gpus_per_node": _ONE_DEVICE,
    **_each("tensorrt_llm.builder", "BuildConfig EngineConfig Engine build KVCacheType serialize_engine", _ENGINE_FILE),
    **_each("tensorrt_llm._common", "serialize_engine", "`Path(path).write_bytes(engine)`: an engine is bytes"),
    **_each("tensorrt_llm._common", "_is_building deserialize_engine", "plain code; nothing is global while building"),
    # ------------------------------------------------------------------------------------ functional
    f"{_FUNCTIONAL}.inflight_batching_gpt_attention": "gpt_attention",
    **_each(_FUNCTIONAL, "gemm_swiglu low_latency_gemm_swiglu", _FUSED_GATE),
    f"{_FUNCTIONAL}.low_latency_gemm": _PRODUCT,
    f"{_FUNCTIONAL}.cuda_stream_sync": "nothing: an engine orders its own steps",
    f"{_FUNCTIONAL}.cp_split_plugin": "nothing: an engine runs on one device",
    f"{_FUNCTIONAL}.create_allreduce_plugin": "allreduce, which is the tensor itself at world size 1",
    f"{_FUNCTIONAL}.gated_delta_rule": "ingot.functional.scan over the tokens; there is no kernel for it",
    f"{_FUNCTIONAL}.RaggedTensor": "a packed tensor [tokens, hidden] beside its lengths",
    f"{_FUNCTIONAL}.MoEAllReduceParams": "AllReduceParams, of one rank",
    f"{_FUNCTIONAL}.SideStreamIDType": "nothing: an engine orders its own steps",
    f"{_FUNCTIONAL}.send": "nothing: an engine runs on one device, so there is no rank to send to",
    f"{_FUNCTIONAL}.recv": "nothing: an engine runs on one device, so there is no rank to receive from",
    f"{_FUNCTIONAL}.fp4_gemm": _FP4,
    # ------------------------------------------------------------------------------------ layers
    **_each(_LAYERS, "CogVLMAttention DeepseekV2Attention MropeParams SpecDecodingParams BlockSparseAttnParams "
                     "LanguageAdapter LanguageAdapterConfig AttentionMaskParams DiffusersAttention", _ATTENTION),
    **_each(_LAYERS, "language_adapter ia3", "Linears of your own"),
    f"{_LAYERS}.IA3": "functional.mul by its vectors",
    # ------------------------------------------------------------------------------------ quantisation
    **_each(_QUANTIZATION, "QuantAlgo GroupwiseQuantAlgo KV_CACHE_QUANT_ALGO_LIST W8A8_SQ_PLUGIN_LIST "
                          "MODELOPT_FLOW_QUANTIZATIONS",
            "QuantMode, or the words of `ingot.build`: weights=\"int8\", \"int4-g128\", …"),
    **_each(_QUANTIZATION, "quantize_and_export quantize_nemo_and_export",
            '`ingot.build(folder, weights="int8")` (docs/weights.md)'),
    # ------------------------------------------------------------------------------------ runtime
    **_each(_RUNTIME, "GenerationSession ModelRunner ModelRunnerCpp ChatGLMGenerationSession "
                      "QWenForCausalLMGenerationSession MambaLMHeadModelGenerationSession EncDecModelRunner "
                      "MultimodalModelRunner MultimodalRunnerMixin", _GENERATE),
    **_each(_RUNTIME, "generation model_runner model_runner_cpp enc_dec_model_runner "
                      "multimodal_model_runner", _GENERATE),
    f"{_RUNTIME}.SamplingConfig": "`ingot.SamplingParams`: temperature, top_k, top_p, seed, stop, and what else it has",
    f"{_RUNTIME}.ModelConfig": "`ingot.load(path).config`",
    **_each(_RUNTIME, "LogitsProcessor LogitsProcessorList StoppingCriteria StoppingCriteriaList",
            "`ingot.SamplingParams`: logit_bias, bad_words, stop, max_tokens"),
    **_each(_RUNTIME, "KVCacheManager SequenceMemoryManager MemoryPoolsAllocator PoolsKVCacheManager",
            "`ingot.LLM`, which pages its caches by itself"),
    **_each(_RUNTIME, "to_word_list_format decode_words_list", "`ingot.SamplingParams(stop=[…], bad_words=[…])`"),
    # ------------------------------------------------------------------------------------ networks and plugins
    **_each("tensorrt_llm.network", "PluginInfo set_plugin_info delete_plugin_info", _KERNELS),
    **_each("tensorrt_llm.network", "get_np_weight set_np_weight", "`parameter.value`, which gives and takes arrays"),
    **_each("tensorrt_llm.plugin", "CustomAllReduceHelper init_all_reduce_helper current_all_reduce_helper "
                                   "add_plugin_argument TRT_LLM_PLUGIN_NAMESPACE _load_plugin_lib", _ONE_DEVICE),
    # ------------------------------------------------------------------------------------ TensorRT
    "tensorrt.OnnxParser": "`ingot.build('net.onnx')` (docs/onnx.md)",
    "tensorrt.OnnxParserFlag": "`ingot.build('net.onnx')` (docs/onnx.md)",
    "tensorrt.OnnxParserRefitter": "`engine.refit({name: array})` of ingot (docs/refit.md)",
    **_each("tensorrt", "UffParser CaffeParser", "`torch.export.save(…, 'net.pt2')` and `ingot.build('net.pt2')`"),
    **_each("tensorrt", "get_plugin_registry IPluginRegistry IPluginV2 IPluginV2Ext IPluginV2IOExt IPluginV2DynamicExt "
                        "IPluginV3 IPluginV3OneCore IPluginV3OneBuild IPluginV3OneRuntime IPluginCreator "
                        "IPluginCreatorV3One IPluginCreatorInterface PluginField PluginFieldCollection "
                        "PluginFieldCollection_ PluginFieldType "
                        "PluginCreatorVersion PluginTensorDesc DynamicPluginTensorDesc TensorRTPhase plugin", _KERNELS),
    **_each("tensorrt", "IInt8Calibrator IInt8EntropyCalibrator IInt8EntropyCalibrator2 IInt8LegacyCalibrator "
                        "IInt8MinMaxCalibrator CalibrationAlgoType IAlgorithmSelector QuantizationFlag", _CALIBRATOR),
    "tensorrt.Refitter": "`engine.refit({name: array})` of ingot (docs/refit.md)",
    "tensorrt.WeightsRole": "`engine.refit({name: array})` of ingot (docs/refit.md)",
    **_each("tensorrt", "IProfiler Profiler", "`ingot bench --profile`"),
    **_each("tensorrt", "EngineInspector", "`ingot inspect`"),
    **_each("tensorrt", "IGpuAllocator IGpuAsyncAllocator IOutputAllocator IStreamReader IStreamWriter IStreamReaderV2 "
                        "DeviceType TempfileControlFlag", "nothing: memory belongs to ingot's session"),
    **_each("tensorrt", "IErrorRecorder IProgressMonitor IDebugListener IVersionedInterface InterfaceInfo APILanguage",
            "`try` … `except ingot.IngotError`, and logging's `ingot.compat` logger"),
    **_each("tensorrt", "ITimingCache TacticSource", "nothing: nothing is timed while an engine is built"),
    **_each("tensorrt", "IRNNv2Layer RNNOperation RNNDirection RNNInputMode RNNGateType", "`network.add_loop()`"),
}  # fmt: skip

# Parts of modules whose every further name is refused alike, by the first words of their names.
STEMS: dict[str, str] = {
    f"{_QUANTIZATION}.layers.FP8": _FP8, f"{_QUANTIZATION}.layers.Fp8": _FP8, f"{_QUANTIZATION}.layers.FP4": _FP4,
    f"{_QUANTIZATION}.layers.QServe": _QSERVE, f"{_QUANTIZATION}.layers.Int8": "SmoothQuantLinear",
    f"{_QUANTIZATION}.layers.SmoothQuantAttention": "layers.Attention of float weights",
    f"{_QUANTIZATION}.layers.SmoothQuantMLP": "two SmoothQuantLinear with the activation between them",
    f"{_QUANTIZATION}.layers.SmoothQuantGatedMLP": "SmoothQuantLinear for each product",
    f"{_QUANTIZATION}.layers.WeightOnlyGroupwise": 'a Linear, and `ingot.build(…, weights="int4-g128")`',
    f"{_QUANTIZATION}.functional.weight_only_groupwise": 'matmul, and `ingot.build(…, weights="int4-g128")`',
    f"{_QUANTIZATION}.functional.fp8": _FP8, f"{_QUANTIZATION}.functional.fp4": _FP4,
    f"{_QUANTIZATION}.functional.fused": "layer_norm, then quantize", f"{_QUANTIZATION}.functional.qserve": _QSERVE,
    f"{_QUANTIZATION}.functional.quantize_fp8": _FP8, f"{_QUANTIZATION}.functional.quantize_to_fp4": _FP4,
    f"{_QUANTIZATION}.functional.preprocess_weights": "the weights as they are: the build lays them out",
    f"{_QUANTIZATION}.functional.postprocess_weight": "the weights as they are: the build lays them out",
    f"{_QUANTIZATION}.functional.get_weight_scale": "the weights as they are: the build lays them out",
    f"{_QUANTIZATION}.functional.dynamic_quantize": "quantize_per_token",
    f"{_QUANTIZATION}.functional.block_double_dequantize": _FP4,
    f"{_QUANTIZATION}.functional.symmetric_quantize": "quantize",
    f"{_QUANTIZATION}.functional.change_qkv": "plain NumPy, before the weights are given",
}  # fmt: skip

# Methods of TensorRT's network that are not here.
NETWORK: dict[str, str] = {
    **dict.fromkeys(("add_plugin_v2", "add_plugin_v3", "add_plugin"), "functions of tensorrt_llm.functional"),
    "add_rnn_v2": "add_loop",
    "add_dynamic_quantize": 'build with weights="int8", or quantization.functional.quantize_per_token',
    "add_convolution": "add_convolution_nd",
    "add_deconvolution": "add_deconvolution_nd",
    "add_pooling": "add_pooling_nd",
    "add_padding": "add_padding_nd",
    "add_fully_connected": "add_matrix_multiply",
    "add_rotary_embedding": "functional.gpt_attention, or ingot.functional.rope",
    "add_kv_cache_update": "functional.gpt_attention",
    "add_moe": "layers.MOE",
    "add_dist_collective": _ONE_DEVICE,
    "add_normalization_v2": "add_normalization",
    "remove_tensor": "nothing: the build drops what no output reads",
    "mark_debug": "mark_output",
    "unmark_debug": "unmark_output",
    "is_debug_tensor": "mark_output",
    "mark_unfused_tensors_as_debug_tensors": "mark_output",
    "unmark_unfused_tensors_as_debug_tensors": "unmark_output",
    **dict.fromkeys(("set_weights_name", "mark_weights_refittable", "unmark_weights_refittable",
                     "are_weights_marked_refittable"),
                    "a tensorrt_llm.Parameter: `engine.refit({name: array})` finds it by its name"),
}  # fmt: skip


def instead_of(full: str, known: Iterable[str]) -> str:
    """What to write in the place of a name; `known`: what its module has."""
    if full in NAMES:
        return NAMES[full]
    package = next((p for p in PACKAGES if full == p or full.startswith(f"{p}.")), None)
    stem = next((s for s in STEMS if full.startswith(s)), None)
    if package or stem:
        return PACKAGES[package] if package else STEMS[stem or ""]
    file = full.rpartition(".")  # a file of the package layers has its names
    parent = file[0].rpartition(".")[0]
    if f"{parent}.{file[2]}" in NAMES and parent.count(".") == 1:
        return NAMES[f"{parent}.{file[2]}"]
    names = sorted(known)
    if len(names) <= FEW:
        return f"one of {', '.join(names)}" if names else "a plain function of tensorrt_llm.functional"
    listed = f"dir({file[0]}) lists its {len(names)} names"
    near = difflib.get_close_matches(file[2], names, 3)
    return f"{', '.join(near)}? {listed}" if near else listed
