"""Arguments of the retired API that are accepted and change no number here, each with the reason.

This is the only list of them: every other argument is honoured or refused, and a test goes over all signatures.
"""

from __future__ import annotations

_ONE_DEVICE = "an engine runs on one device"
_RANKS = dict.fromkeys(("tp_group", "tp_rank", "sharding_dim", "workspace", "instance_id"), _ONE_DEVICE)
_CROSS = "only paged caches read it, which are refused"
_ONE_KERNEL = "every op has one kernel on a machine, chosen when the engine is built"
_SUMS = "sums are always in float32"
_LINEAR = {
    "instance_id": _ONE_DEVICE,
    **dict.fromkeys(("pad_lda", "pad_ldc"), "the build lays weights out for its kernels"),
    "strict_dtype": "types are always strict", "prefer_managed_weight": "all weights are kept by the engine",
    "is_qkv": "only ranks and adapters look at it", "is_expert": "only ranks look at it",
    "max_lora_rank": "an adapter is merged, or brings its own rank",
}  # fmt: skip
_BLOCK = {
    **dict.fromkeys(("tp_group", "instance_id", "is_expert"), _ONE_DEVICE),
    "eps": "only inner_layernorm reads it, which is refused", "max_lora_rank": "an adapter is merged",
}  # fmt: skip
_NOT_TIMED = "nothing is timed while an engine is built"
_PERMISSION = "a permission to compute in other types, which a build here does not need: types are the network's"

NO_EFFECT: dict[str, dict[str, str]] = {
    # ------------------------------------------------------------------------------------ functional
    "topk": {"prefer_plugin": _ONE_KERNEL},
    "cumsum": {"prefer_plugin": _ONE_KERNEL},
    "matmul": {"use_fp32_acc": _SUMS},
    "expand_dims": {"shape_cast_dtype": "sizes have no dtype here"},
    "layer_norm": {"use_diff_of_squares": "the variance is always computed in two passes"},
    "squeeze": {"zero_is_placeholder": "a dimension that is squeezed has size 1"},
    "embedding": _RANKS,
    "allreduce": {"workspace": _ONE_DEVICE, "instance_id": _ONE_DEVICE, "strategy": _ONE_DEVICE},
    "allgather": {"gather_dim": _ONE_DEVICE},
    "gpt_attention": {
        "host_past_key_value_lengths": "a step's first position follows from sequence_length",
        "max_context_length": "sizes say it", "host_context_lengths": "context_lengths says it",
        "cross_kv_length": "sizes say it", "cross_qkv_length": "sizes say it",
        "host_runtime_perf_knobs": "there are none", "host_context_progress": "a step runs whole",
        "rotary_embedding_max_positions": "positions are computed as they come",
        "rotary_embedding_original_max_positions": "only the scaling types read it that are refused without tables",
        "multi_block_mode": _ONE_KERNEL, "dense_context_fmha": "attention is always fused",
        "cp_group": _ONE_DEVICE,
    },
    "mamba_conv1d": {"dtype": "the type of input", "host_context_lengths": "last_token_ids says it"},
    "selective_scan": {
        "dtype": "the type of input", "host_context_lengths": "last_token_ids says it",
        "chunk_size": "how a GPU's kernel cut texts",
    },
    "rg_lru": {"dtype": "the type of input"},
    "lora_plugin": {"max_context_length": "sizes say it"},
    "smooth_quant_layer_norm": {"use_diff_of_squares": "the variance is always computed in two passes"},
    **dict.fromkeys(("SmoothQuantLinear", "WeightOnlyQuantLinear"),
                    dict.fromkeys(("tp_group", "gather_output"), _ONE_DEVICE)),
    **dict.fromkeys(("SmoothQuantRowLinear", "WeightOnlyQuantRowLinear"), {"tp_group": _ONE_DEVICE}),
    "bert_attention": {
        "max_input_length": "sizes say it", "cp_group": _ONE_DEVICE,
        **dict.fromkeys(("sage_attn_q_block_size", "sage_attn_k_block_size", "sage_attn_v_block_size"),
                        "only sage_attn reads it, which is refused"),
    },
    # ------------------------------------------------------------------------------------ TensorRT's layers
    "add_attention": {"decomposable": _ONE_KERNEL},
    "add_normalization": {"compute_precision": _SUMS},
    # ------------------------------------------------------------------------------------ layers
    "Embedding": _RANKS, "PromptTuningEmbedding": _RANKS,
    **dict.fromkeys(("Linear", "ColumnLinear", "RowLinear"), _LINEAR),
    **dict.fromkeys(("_Block", "MLP", "GatedMLP", "FusedGatedMLP"), _BLOCK),
    "LayerNorm": {"tp_dim": _ONE_DEVICE},
    "MixtureOfExperts": {
        **dict.fromkeys(("tp_group", "tp_rank", "use_all_reduce"), _ONE_DEVICE),
        "group_size": "only weights in groups read it, which are refused",
    },
    "MixtureOfExperts.forward": {"all_reduce_params": _ONE_DEVICE},
    "SharedMoE": {"use_side_stream": "an engine orders its own steps"},
    "MambaConv1d.forward": {"conv_indices": "only networks without the plugin read it; last_token_ids says it"},
    **dict.fromkeys(("Mamba2", "RgLru", "FusedRgLru", "Recurrent"), {"tp_group": _ONE_DEVICE}),
    "GroupedLinear": {
        "tp_group": _ONE_DEVICE, "gather_output": _ONE_DEVICE, "strict_dtype": "types are always strict",
    },
    "Attention": {
        **dict.fromkeys(("tp_group", "tp_rank", "instance_id", "cp_group", "layernorm_share", "layernorm_type", "eps"),
                        "only what is refused reads it"),
        "original_max_position_embeddings": "only long rotary embeddings read it, which are refused",
        "num_kv_heads_origin": _ONE_DEVICE,
    },
    "BertAttention": {
        **dict.fromkeys(("tp_group", "tp_rank", "cp_group", "cp_rank"), _ONE_DEVICE),
        "max_position_embeddings": "sizes say it",
        **dict.fromkeys(("max_distance", "num_buckets"), "only relative attention reads it, which is refused"),
    },
    "BertAttention.forward": {"max_input_length": "sizes say it"},
    "AttentionParams": {
        **dict.fromkeys(("encoder_max_input_length", "encoder_num_tokens", "host_encoder_input_lengths"),
                        "encoder_input_lengths says it"),
        **dict.fromkeys(("host_runtime_perf_knobs", "host_context_progress"), "a step runs whole"),
    },
    "AttentionParams.is_valid": dict.fromkeys(("more", "remove_input_padding"), "both layouts need the same tensors"),
    "KeyValueCacheParams.is_valid": {"gpt_attention_plugin": _ONE_KERNEL},
    "KeyValueCacheParams": {
        "cross_kv_cache_block_offsets": _CROSS, "host_cross_kv_cache_block_offsets": _CROSS,
        "host_cross_kv_cache_pool_pointers": _CROSS, "host_cross_kv_cache_pool_mapping": _CROSS,
        **dict.fromkeys(("kv_cache_block_offsets", "host_kv_cache_block_offsets", "host_kv_cache_pool_pointers",
                         "host_kv_cache_pool_mapping"), "kept, and refused by Attention where it is given"),
    },
    # ------------------------------------------------------------------------------------ building and running
    "Builder.create_builder_config": {
        "timing_cache": _NOT_TIMED, "opt_level": _NOT_TIMED, "precision_constraints": _PERMISSION,
        "force_num_profiles": "an engine takes the sizes of all profiles",
        **dict.fromkeys(("use_strip_plan", "weight_streaming"), "weights stay in the file, and are mapped"),
    },
    "Builder.save_timing_cache": dict.fromkeys(("builder_config", "out_path"), _NOT_TIMED),
    "TrtBuilderConfig.set_timing_cache": dict.fromkeys(("cache", "ignore_mismatch"), _NOT_TIMED),
    "TrtBuilder.is_network_supported": dict.fromkeys(("config", "network"), "what is not was refused at once"),
    "Parameter": dict.fromkeys(("is_buffer", "prefer_managed"), "all weights are kept by the engine"),
    "Network.register_ndarray": {"ndarray": "constants are kept by the network itself"},
    "IExecutionContext.set_optimization_profile_async": {"stream_handle": "there is one profile, at once"},
    "ICudaEngine.create_execution_context": {"strategy": "memory belongs to ingot's session"},
    "check_max_num_tokens": {"limits": "ingot's scheduler has its own budget of tokens"},
    "torch2trt": {
        **dict.fromkeys(("input_names", "output_names"), "names are those of the module"),
        "log_level": "see tensorrt_llm.logger", "max_workspace_size": "memory follows from sizes",
        "strict_type_constraints": "types are strict", "keep_network": "an engine keeps its network",
        **dict.fromkeys(("use_onnx", "onnx_opset"), "torch.export is read"),
        **dict.fromkeys(("int8_calib_algorithm", "int8_calib_batch_size"),
                        "ingot.quantize chooses by the error of the outputs, and reads what the data set gives"),
        **dict.fromkeys(("default_device_type", "device_types", "dla_core", "gpu_fallback"), _ONE_DEVICE),
        "avg_timing_iterations": _NOT_TIMED, "use_implicit_batch_dimension": "batches are always explicit",
    },
    "init_libnvinfer_plugins": dict.fromkeys(("logger", "namespace"), "there are no plugins to load"),
}  # fmt: skip


def ignored(function: str) -> dict[str, str]:
    """The arguments of a function that change nothing, with the reasons."""
    return NO_EFFECT.get(function, {})
