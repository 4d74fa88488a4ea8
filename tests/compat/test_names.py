"""Every name that the retired API had is there, or refused with a sentence of its own and the user's line."""

from __future__ import annotations

import importlib
import re
from pathlib import Path

import pytest

from ingot.compat.attention import REFUSED
from ingot.compat.attention_layers import _REFUSED as REFUSED_OF_LAYERS
from ingot.compat.missing import NAMES, NETWORK, PACKAGES
from ingot.errors import UnsupportedError

# The names of TensorRT-LLM up to 1.2 and of TensorRT 10 that code for networks and engines uses, module by module.
API: dict[str, str] = {
    "tensorrt_llm": """
        Builder BuilderConfig Tensor Parameter Module ModuleList Network Mapping constant default_net default_trtnet
        net_guard precision str_dtype_to_trt str_dtype_to_torch torch_dtype_to_trt torch_dtype_to_str np_dtype_to_trt
        logger functional layers models quantization runtime plugin module parameter network builder mapping mpi_rank
        mpi_world_size mpi_comm mpi_barrier LLM SamplingParams build BuildConfig AutoParallelConfig KvCacheConfig
        graph_rewriting auto_parallel executor llmapi bindings""",
    "tensorrt_llm.functional": """
        activation relu tanh sigmoid clip int_clip silu swiglu squared_relu gelu geglu quick_gelu gegelu softplus cast
        unary round sqrt exp sin cos abs log not_op elementwise_binary add sub mul div gt lt eq minimum maximum pow
        floordiv op_xor op_and op_or modulo where identity log_softmax softmax mean max sum reduce prod min argmax topk
        cumsum nonzero masked_select masked_scatter gather gather_nd scatter scatter_nd select index_select embedding
        categorical_sample rand constant constant_to_tensor_ constants_to_tensors_ arange shape view flatten permute
        transpose expand expand_dims expand_dims_like unsqueeze squeeze stack concat split chunk unbind slice pad flip
        interpolate repeat repeat_interleave meshgrid2d rearrange broadcast_helper matmul einsum outer conv1d conv2d
        conv3d conv_transpose2d avg_pool2d layer_norm rms_norm group_norm assertion Conditional generate_alibi_slopes
        generate_alibi_biases generate_logn_scaling expand_mask gather_last_token_logits is_gated_activation
        non_gated_version ACT2FN GATED_ACT_2_ACT allreduce allgather send recv reduce_scatter bert_attention
        gpt_attention inflight_batching_gpt_attention lora_plugin dora_plugin gemm_swiglu gemm_allreduce
        low_latency_gemm low_latency_gemm_swiglu cuda_stream_sync cp_split_plugin create_allreduce_plugin mamba_conv1d
        selective_scan rg_lru gated_delta_rule DimRange RaggedTensor AttentionMaskType PositionEmbeddingType
        RotaryScalingType LayerNormType LayerNormPositionType MLPType SliceInputType SideStreamIDType AllReduceStrategy
        AllReduceFusionOp AllReduceParams MoEAllReduceParams RopeEmbeddingUtils Tensor""",
    "tensorrt_llm.layers": """
        Mish Attention AttentionMaskParams AttentionMaskType AttentionParams BertAttention BlockSparseAttnParams
        CogVLMAttention DeepseekV2Attention KeyValueCacheParams MropeParams PositionEmbeddingType SpecDecodingParams
        Cast Conv1d Conv2d Conv3d ConvTranspose2d Embedding PromptTuningEmbedding LanguageAdapter LanguageAdapterConfig
        ColumnLinear Linear RowLinear Lora LoraParams LoraRuntimeParams MLP FusedGatedMLP GatedMLP MOE MoeConfig
        SharedMoE GroupNorm LayerNorm RmsNorm AvgPool2d FusedRgLru GroupedLinear Recurrent RgLru Mamba Mamba2
        activation attention cast conv embedding linear mlp normalization pooling lora moe recurrent ssm
        language_adapter""",
    "tensorrt_llm._common": "default_net default_trtnet set_network precision serialize_engine check_max_num_tokens",
    "tensorrt_llm._utils": """
        str_dtype_to_trt str_dtype_to_torch str_dtype_to_np torch_dtype_to_trt trt_dtype_to_torch trt_dtype_to_np
        trt_dtype_to_str np_dtype_to_trt dim_resolve_negative dim_to_trt_axes int32_array int64_array fp16_array
        fp32_array bf16_array bool_array dims_array torch_to_numpy set_obj_attrs get_sm_version""",
    "tensorrt_llm.network": "Network PluginInfo set_plugin_info get_np_weight set_np_weight net_guard",
    "tensorrt_llm.builder": "Builder BuilderConfig BuildConfig EngineConfig Engine build",
    "tensorrt_llm.plugin": """
        PluginConfig ContextFMHAType CustomAllReduceHelper init_all_reduce_helper current_all_reduce_helper""",
    "tensorrt_llm.runtime": """
        Session TensorInfo SamplingConfig ModelConfig GenerationSession ChatGLMGenerationSession
        QWenForCausalLMGenerationSession MambaLMHeadModelGenerationSession ModelRunner ModelRunnerCpp session
        generation model_runner KVCacheManager LogitsProcessor StoppingCriteria to_word_list_format""",
    "tensorrt_llm.quantization": "QuantMode QuantAlgo GroupwiseQuantAlgo functional layers mode quantize_and_export",
    "tensorrt_llm.quantization.functional": """
        smooth_quant_gemm weight_only_quant_matmul weight_only_groupwise_quant_matmul smooth_quant_layer_norm
        smooth_quant_rms_norm quantize dequantize quantize_per_token quantize_tensor quantize_to_fp4_tensor
        fp8_rowwise_gemm fp8_rowwise_rms_norm quantize_fp8_per_token qserve_gemm_per_channel qserve_gemm_per_group
        preprocess_weights_for_mixed_gemm postprocess_weight_only get_weight_scale_interleave_factor fused_layernorm
        fp4_gemm""",
    "tensorrt_llm.quantization.layers": """
        Quantize QuantizePerToken Dequantize SmoothQuantLinear SmoothQuantColumnLinear SmoothQuantRowLinear
        SmoothQuantLayerNorm SmoothQuantRmsNorm WeightOnlyQuantLinear WeightOnlyQuantColumnLinear
        WeightOnlyQuantRowLinear WeightOnlyGroupwiseQuantLinear WeightOnlyGroupwiseQuantColumnLinear
        WeightOnlyGroupwiseQuantRowLinear SmoothQuantMLP SmoothQuantGatedMLP SmoothQuantAttention Int8SmoothQuantLinear
        Int8SmoothQuantRowLinear FP8Linear FP8RowLinear Fp8RowwiseMLP QServeW4A8Linear FP4Linear FP4RowLinear""",
    "tensorrt": """
        DataType float32 float16 bfloat16 int8 int32 int64 uint8 bool fp8 int4 Dims Dims2 Dims3 Dims4 DimsHW Permutation
        Weights ITensor ILayer INetworkDefinition Builder IBuilderConfig IOptimizationProfile IHostMemory Logger ILogger
        Runtime ICudaEngine IExecutionContext ILoop IIfConditional OnnxParser Refitter EngineInspector IProfiler
        IErrorRecorder IGpuAllocator IOutputAllocator ITimingCache get_plugin_registry init_libnvinfer_plugins nptype
        volume IPluginV2 IPluginV2DynamicExt IPluginV3 PluginField PluginFieldCollection IInt8Calibrator
        IInt8EntropyCalibrator2 IInt8MinMaxCalibrator ActivationType BuilderFlag CumulativeOperation
        ElementWiseOperation EngineCapability ExecutionContextAllocationStrategy FillOperation GatherMode
        HardwareCompatibilityLevel InterpolationMode LayerInformationFormat LayerType LoopOutput MatrixOperation
        MemoryPoolType NetworkDefinitionCreationFlag PaddingMode PoolingType PreviewFeature ProfilingVerbosity
        ReduceOperation ResizeCoordinateTransformation ResizeMode ResizeRoundMode ResizeSelector SampleMode ScaleMode
        ScatterMode SliceMode TacticSource TensorFormat TensorIOMode TensorLocation TopKOperation TripLimit
        UnaryOperation BoundingBoxFormat AttentionNormalizationOp""",
}
METHODS = """
    add_activation add_assertion add_attention add_cast add_concatenation add_constant add_convolution_nd add_cumulative
    add_deconvolution_nd add_dequantize add_dynamic_quantize add_einsum add_elementwise add_fill add_gather
    add_gather_v2
    add_grid_sample add_identity add_if_conditional add_input add_loop add_lrn add_matrix_multiply add_nms add_non_zero
    add_normalization add_one_hot add_padding_nd add_parametric_relu add_plugin_v2 add_plugin_v3 add_pooling_nd
    add_quantize add_ragged_softmax add_reduce add_resize add_reverse_sequence add_scale add_scale_nd add_scatter
    add_select add_shape add_shuffle add_slice add_softmax add_squeeze add_topk add_unary add_unsqueeze
    are_weights_marked_refittable get_flag get_input get_layer get_output is_debug_tensor mark_debug mark_output
    mark_output_for_shapes mark_weights_refittable remove_tensor set_weights_name unmark_debug unmark_output
    unmark_output_for_shapes name num_inputs num_layers num_outputs builder flags error_recorder
    has_implicit_batch_dimension add_fully_connected add_convolution add_pooling add_deconvolution add_padding
    add_rnn_v2 add_plugin"""
OBJECTS = {
    "Tensor": """
        name dtype shape location network profiles trt_tensor producer mark_output view permute transpose mean max abs
        sqrt cast split size rank ndim is_dynamic flatten squeeze unsqueeze log select unbind repeat get_parent
        get_users replace_all_uses_with is_trt_wrapper""",
    "Network": """
        dtype trt_network plugin_config strongly_typed _add_input _mark_output set_named_parameters named_parameters
        register_ndarray get_inputs get_outputs is_input is_output get_layers get_layer_by_name get_tensor_users
        get_tensor_parent mark_removed_layer is_removed_layer removed_layers to_dot""",
    "Module": """
        forward named_modules named_modules_with_parent named_children children parameters named_parameters apply
        register_parameter register_network_output named_network_outputs update_parameters""",
    "Builder": """
        trt_builder strongly_typed create_network create_builder_config refit_engine build_engine save_timing_cache
        save_config""",
}
FAR = {
    "sofmax": r"instead: softmax, log_softmax, max\? dir\(tensorrt_llm.functional\) lists its \d+ names$",
    "nonsense": r"instead: dir\(tensorrt_llm.functional\) lists its \d+ names$",
}


@pytest.mark.parametrize("name", FAR)
def test_a_name_that_never_was_is_answered_with_the_nearest(name: str) -> None:
    with pytest.raises(UnsupportedError, match=FAR[name]):
        getattr(importlib.import_module("tensorrt_llm.functional"), name)


PRESENT = [(module, name) for module, names in API.items() for name in names.split()]


@pytest.mark.parametrize(("module", "name"), PRESENT)
def test_a_name_is_there_or_refused_with_a_sentence(module: str, name: str) -> None:
    found = importlib.import_module(module)
    if hasattr(found, name):
        return
    with pytest.raises(UnsupportedError, match=rf"test_names.py:\d+: ingot's {module} has no '{name}'; ") as caught:
        getattr(found, name)
    assert not re.search("instead: one of |instead: a plain function", str(caught.value)), "a sentence of its own"
    with pytest.raises(ImportError, match=rf"test_names.py:\d+: .*has no '{name}'"):
        exec(f"from {module} import {name}")


def test_methods_of_tensorrts_network() -> None:
    import tensorrt as trt

    network = trt.Builder(trt.Logger()).create_network()
    for name in METHODS.split():
        if not hasattr(network, name):
            assert name in NETWORK, name
            with pytest.raises(UnsupportedError, match=rf"test_names.py:\d+: .*no {name}; instead: "):
                getattr(network, name)


def test_attributes_of_objects() -> None:
    import tensorrt_llm

    builder = tensorrt_llm.Builder()
    network = builder.create_network()
    with tensorrt_llm.net_guard(network):
        tensor = tensorrt_llm.Tensor("x", "float32", [2, 3])
    held = {"Tensor": tensor, "Network": network, "Module": tensorrt_llm.Module(), "Builder": builder}
    for kind, names in OBJECTS.items():
        missing = [name for name in names.split() if not hasattr(held[kind], name)]
        assert not missing, f"{kind}: {missing}"


def test_a_network_in_the_language_of_graphviz(tmp_path: Path) -> None:
    import tensorrt_llm

    network = tensorrt_llm.Builder().create_network()
    with tensorrt_llm.net_guard(network):
        x = tensorrt_llm.Tensor('the "x"', "float32", [2, 3])
        y = tensorrt_llm.functional.relu(x)
        y.mark_output("y")
    text = network.to_dot()
    assert text.startswith("digraph {") and r'"the \"x\""' in text and '[label="relu"]' in text and '"output y"' in text
    assert network.to_dot(tmp_path / "net.dot") is None and (tmp_path / "net.dot").read_text() == text
    node = network.get_layer_by_name(y.name)
    assert node is y.producer and network.get_layer_by_name("nothing") is None
    network.mark_removed_layer(node)
    assert network.is_removed_layer(node) and network.removed_layers == [node]


def test_each_refusal_names_the_line_and_what_to_write() -> None:
    import tensorrt as trt

    for full, instead in {**NAMES, **PACKAGES}.items():
        module, _, name = full.rpartition(".")
        sentence = rf"test_names.py:\d+: ingot's {module} has no '{name}'; instead: {re.escape(instead)}"
        with pytest.raises(UnsupportedError, match=sentence):
            getattr(importlib.import_module(module), name)
    for full in PACKAGES:
        with pytest.raises(ImportError, match=re.escape(PACKAGES[full])):
            importlib.import_module(full)
    network = trt.Builder(trt.Logger()).create_network()
    for name, instead in NETWORK.items():
        with pytest.raises(UnsupportedError, match=rf"test_names.py:\d+: .*no {name}; instead: {re.escape(instead)}"):
            getattr(network, name)


def test_each_refused_argument_of_attention_names_the_line_and_what_to_write() -> None:
    import tensorrt_llm
    from tensorrt_llm.layers import Attention

    for name, instead in REFUSED.items():
        with pytest.raises(UnsupportedError, match=rf"test_names.py:\d+: .*with {name}: {re.escape(instead)}"):
            tensorrt_llm.functional.gpt_attention(num_heads=1, **{name: object()})
    for name, instead in REFUSED_OF_LAYERS.items():
        with pytest.raises(UnsupportedError, match=rf"test_names.py:\d+: .*{name}=1: {re.escape(instead)}"):
            Attention(8, 2, **{name: 1})
