"""Settings of well-known models in the spellings of their config.json, without what says nothing about the network."""

from __future__ import annotations

from typing import Any

PUBLISHED: dict[str, dict[str, Any]] = {
    "gpt2": {
        "architectures": ["GPT2LMHeadModel"], "model_type": "gpt2", "activation_function": "gelu_new", "n_ctx": 1024,
        "bos_token_id": 50256, "eos_token_id": 50256, "layer_norm_epsilon": 1e-05, "n_embd": 768, "n_head": 12,
        "n_layer": 12, "n_positions": 1024, "vocab_size": 50257,
    },
    "gpt-j-6b": {
        "architectures": ["GPTJForCausalLM"], "model_type": "gptj", "activation_function": "gelu_new",
        "bos_token_id": 50256, "eos_token_id": 50256, "layer_norm_epsilon": 1e-05, "n_embd": 4096, "n_head": 16,
        "n_inner": None, "n_layer": 28, "n_positions": 2048, "rotary": True, "rotary_dim": 64,
        "scale_attn_weights": True, "tie_word_embeddings": False, "vocab_size": 50400,
    },
    "pythia-70m": {
        "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "bos_token_id": 0, "eos_token_id": 0,
        "hidden_act": "gelu", "hidden_size": 512, "intermediate_size": 2048, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "num_attention_heads": 8, "num_hidden_layers": 6, "rotary_emb_base": 10000,
        "rotary_pct": 0.25, "tie_word_embeddings": False, "torch_dtype": "float16", "use_parallel_residual": True,
        "vocab_size": 50304,
    },
    "opt-350m": {
        "architectures": ["OPTForCausalLM"], "model_type": "opt", "_remove_final_layer_norm": False,
        "activation_function": "relu", "bos_token_id": 2, "do_layer_norm_before": False, "eos_token_id": 2,
        "ffn_dim": 4096, "hidden_size": 1024, "max_position_embeddings": 2048, "num_attention_heads": 16,
        "num_hidden_layers": 24, "pad_token_id": 1, "torch_dtype": "float16", "vocab_size": 50272,
        "word_embed_proj_dim": 512,
    },
    "phi-2": {
        "architectures": ["PhiForCausalLM"], "model_type": "phi", "bos_token_id": 50256, "eos_token_id": 50256,
        "hidden_act": "gelu_new", "hidden_size": 2560, "intermediate_size": 10240, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 2048, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "partial_rotary_factor": 0.4, "qk_layernorm": False, "rope_scaling": None,
        "rope_theta": 10000.0, "tie_word_embeddings": False, "torch_dtype": "float16", "vocab_size": 51200,
    },
    "starcoder": {
        "architectures": ["GPTBigCodeForCausalLM"], "model_type": "gpt_bigcode", "activation_function": "gelu",
        "attention_softmax_in_fp32": True, "multi_query": True, "bos_token_id": 0, "eos_token_id": 0,
        "layer_norm_epsilon": 1e-05, "n_embd": 6144, "n_head": 48, "n_inner": 24576, "n_layer": 40,
        "n_positions": 8192, "scale_attention_softmax_in_fp32": True, "scale_attn_weights": True,
        "vocab_size": 49152,
    },
    "starcoder2-3b": {
        "architectures": ["Starcoder2ForCausalLM"], "model_type": "starcoder2", "bos_token_id": 0, "eos_token_id": 0,
        "hidden_act": "gelu_pytorch_tanh", "hidden_size": 3072, "intermediate_size": 12288, "mlp_type": "default",
        "max_position_embeddings": 16384, "norm_epsilon": 1e-05, "norm_type": "layer_norm",
        "num_attention_heads": 24, "num_hidden_layers": 30, "num_key_value_heads": 2, "rope_theta": 999999.4420358813,
        "sliding_window": 4096, "use_bias": True, "vocab_size": 49152,
    },
    "bloom-560m": {
        "architectures": ["BloomForCausalLM"], "model_type": "bloom", "bos_token_id": 1, "eos_token_id": 2,
        "apply_residual_connection_post_layernorm": False, "layer_norm_epsilon": 1e-05, "n_embed": 1024,
        "n_inner": None, "n_layer": 24, "num_attention_heads": 16, "offset_alibi": 100, "pretraining_tp": 1,
        "seq_length": 2048, "skip_bias_add": True, "torch_dtype": "float16", "unk_token_id": 0, "vocab_size": 250880,
    },
    "mpt-7b": {
        "architectures": ["MPTForCausalLM"], "model_type": "mpt",
        "attn_config": {
            "alibi": True, "alibi_bias_max": 8, "attn_impl": "torch", "attn_pdrop": 0,
            "attn_type": "multihead_attention", "attn_uses_sequence_id": False, "clip_qkv": None, "prefix_lm": False,
            "qk_ln": False, "softmax_scale": None,
        },
        "auto_map": {"AutoConfig": "configuration_mpt.MPTConfig"}, "d_model": 4096, "emb_pdrop": 0,
        "embedding_fraction": 1.0, "expansion_ratio": 4, "init_device": "cpu", "learned_pos_emb": True,
        "logit_scale": None, "max_seq_len": 2048, "n_heads": 32, "n_layers": 32, "no_bias": True,
        "norm_type": "low_precision_layernorm", "resid_pdrop": 0, "torch_dtype": "bfloat16", "vocab_size": 50432,
    },
    "falcon-7b": {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "alibi": False, "bias": False,
        "apply_residual_connection_post_layernorm": False, "bos_token_id": 11, "eos_token_id": 11,
        "hidden_size": 4544, "layer_norm_epsilon": 1e-05, "multi_query": True, "new_decoder_architecture": False,
        "num_attention_heads": 71, "num_hidden_layers": 32, "num_kv_heads": 71, "parallel_attn": True,
        "torch_dtype": "bfloat16", "vocab_size": 65024,
    },
    "falcon-40b": {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "alibi": False, "bias": False,
        "bos_token_id": 11, "eos_token_id": 11, "hidden_size": 8192, "layer_norm_epsilon": 1e-05,
        "new_decoder_architecture": True, "num_attention_heads": 128, "num_hidden_layers": 60, "num_kv_heads": 8,
        "parallel_attn": True, "torch_dtype": "bfloat16", "vocab_size": 65024,
    },
    "falcon-rw-1b": {
        "architectures": ["FalconForCausalLM"], "model_type": "falcon", "alibi": True, "bias": True,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 2048, "layer_norm_epsilon": 1e-05, "multi_query": False,
        "new_decoder_architecture": False, "num_attention_heads": 32, "num_hidden_layers": 24, "num_kv_heads": 32,
        "parallel_attn": False, "torch_dtype": "bfloat16", "vocab_size": 50304,
    },
    "bert-base-uncased": {
        "architectures": ["BertForMaskedLM"], "model_type": "bert", "hidden_act": "gelu", "hidden_size": 768,
        "intermediate_size": 3072, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
        "position_embedding_type": "absolute", "type_vocab_size": 2, "vocab_size": 30522,
    },
    "all-MiniLM-L6-v2": {
        "architectures": ["BertModel"], "model_type": "bert", "gradient_checkpointing": False, "hidden_act": "gelu",
        "hidden_size": 384, "intermediate_size": 1536, "layer_norm_eps": 1e-12, "max_position_embeddings": 512,
        "num_attention_heads": 12, "num_hidden_layers": 6, "pad_token_id": 0, "position_embedding_type": "absolute",
        "type_vocab_size": 2, "vocab_size": 30522,
    },
    "roberta-base": {
        "architectures": ["RobertaForMaskedLM"], "model_type": "roberta", "bos_token_id": 0, "eos_token_id": 2,
        "hidden_act": "gelu", "hidden_size": 768, "intermediate_size": 3072, "layer_norm_eps": 1e-05,
        "max_position_embeddings": 514, "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 1,
        "type_vocab_size": 1, "vocab_size": 50265,
    },
}  # fmt: skip

LLAMA = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "attention_bias": False, "hidden_act": "silu",
         "attention_dropout": 0.0, "initializer_range": 0.02, "pretraining_tp": 1, "use_cache": True}  # fmt: skip
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "attention_dropout": 0.0, "hidden_act": "silu",
    "bos_token_id": 151643, "eos_token_id": 151645, "max_position_embeddings": 32768, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768, "torch_dtype": "bfloat16", "use_cache": True,
    "use_sliding_window": False, "vocab_size": 151936,
}  # fmt: skip
QWEN3 = QWEN2 | {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "attention_bias": False, "head_dim": 128,
    "max_position_embeddings": 40960, "rope_scaling": None, "sliding_window": None,
}  # fmt: skip
CHATGLM = {
    "architectures": ["ChatGLMModel"], "model_type": "chatglm", "add_bias_linear": False, "add_qkv_bias": True,
    "apply_query_key_layer_scaling": True, "apply_residual_connection_post_layernorm": False,
    "attention_softmax_in_fp32": True, "auto_map": {"AutoConfig": "configuration_chatglm.ChatGLMConfig"},
    "bias_dropout_fusion": True, "eos_token_id": 2, "ffn_hidden_size": 13696, "fp32_residual_connection": False,
    "hidden_size": 4096, "kv_channels": 128, "layernorm_epsilon": 1e-05, "multi_query_attention": True,
    "multi_query_group_num": 2, "num_attention_heads": 32, "num_layers": 28, "original_rope": True,
    "pad_token_id": 0, "padded_vocab_size": 65024, "post_layer_norm": True, "rmsnorm": True, "seq_length": 8192,
    "tie_word_embeddings": False, "torch_dtype": "float16", "use_cache": True,
}  # fmt: skip
BAICHUAN2 = {
    "architectures": ["BaichuanForCausalLM"], "model_type": "baichuan", "bos_token_id": 1, "eos_token_id": 2,
    "auto_map": {"AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM"}, "hidden_act": "silu",
    "hidden_size": 4096, "intermediate_size": 11008, "max_position_embeddings": 4096, "model_max_length": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 32, "pad_token_id": 0, "rms_norm_eps": 1e-06,
    "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 125696, "z_loss_weight": 0,
}  # fmt: skip
GEMMA = {
    "attention_bias": False, "attention_dropout": 0.0, "bos_token_id": 2, "eos_token_id": 1, "head_dim": 256,
    "hidden_activation": "gelu_pytorch_tanh", "pad_token_id": 0, "rms_norm_eps": 1e-06, "torch_dtype": "bfloat16",
}  # fmt: skip
PHI3 = {
    "architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "attention_bias": False, "bos_token_id": 1,
    "auto_map": {"AutoModelForCausalLM": "modeling_phi3.Phi3ForCausalLM"}, "embd_pdrop": 0.0, "eos_token_id": 32000,
    "hidden_act": "silu", "hidden_size": 3072, "intermediate_size": 8192, "max_position_embeddings": 4096,
    "num_attention_heads": 32, "num_hidden_layers": 32, "num_key_value_heads": 32,
    "original_max_position_embeddings": 4096, "pad_token_id": 32000, "resid_pdrop": 0.0, "rms_norm_eps": 1e-05,
    "rope_scaling": None, "rope_theta": 10000.0, "sliding_window": 2047, "tie_word_embeddings": False,
    "torch_dtype": "bfloat16", "vocab_size": 32064,
}  # fmt: skip
# Phi-3.5's lists are of 48 numbers each, which are not repeated here.
FACTORS = {"type": "longrope", "short_factor": [1.0] * 48, "long_factor": [1.0 + i for i in range(48)]}
PUBLISHED |= {
    "llama-2-7b": LLAMA | {
        "bos_token_id": 1, "eos_token_id": 2, "hidden_size": 4096, "intermediate_size": 11008,
        "max_position_embeddings": 4096, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 32, "rms_norm_eps": 1e-05, "rope_scaling": None, "tie_word_embeddings": False,
        "torch_dtype": "float16", "vocab_size": 32000,
    },
    "llama-3.2-1b": LLAMA | {
        "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "head_dim": 64, "hidden_size": 2048,
        "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": False, "num_attention_heads": 32,
        "num_hidden_layers": 16, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 500000.0,
        "rope_scaling": {
            "factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
            "original_max_position_embeddings": 8192, "rope_type": "llama3",
        },
        "tie_word_embeddings": True, "torch_dtype": "bfloat16", "vocab_size": 128256,
    },
    "mistral-7b-v0.3": {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 32768,
    },
    "mixtral-8x7b": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "attention_dropout": 0.0, "bos_token_id": 1,
        "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_experts_per_tok": 2,
        "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8, "output_router_logits": False,
        "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "sliding_window": None,
        "tie_word_embeddings": False, "torch_dtype": "bfloat16", "vocab_size": 32000,
    },
    "qwen2.5-0.5b": QWEN2 | {
        "hidden_size": 896, "intermediate_size": 4864, "max_window_layers": 21, "num_attention_heads": 14,
        "num_hidden_layers": 24, "num_key_value_heads": 2, "tie_word_embeddings": True,
    },
    "qwen1.5-moe-a2.7b": QWEN2 | {
        "architectures": ["Qwen2MoeForCausalLM"], "model_type": "qwen2_moe", "decoder_sparse_step": 1,
        "eos_token_id": 151643, "hidden_size": 2048, "intermediate_size": 5632, "max_position_embeddings": 8192,
        "max_window_layers": 21, "moe_intermediate_size": 1408, "norm_topk_prob": False, "num_attention_heads": 16,
        "num_experts": 60, "num_experts_per_tok": 4, "num_hidden_layers": 24, "num_key_value_heads": 16,
        "output_router_logits": False, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 5632,
        "tie_word_embeddings": False,
    },
    "qwen3-0.6b": QWEN3 | {
        "hidden_size": 1024, "intermediate_size": 3072, "max_window_layers": 28, "num_attention_heads": 16,
        "num_hidden_layers": 28, "num_key_value_heads": 8, "tie_word_embeddings": True,
    },
    "qwen3-30b-a3b": QWEN3 | {
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "decoder_sparse_step": 1,
        "hidden_size": 2048, "intermediate_size": 6144, "max_window_layers": 48, "mlp_only_layers": [],
        "moe_intermediate_size": 768, "norm_topk_prob": True, "num_attention_heads": 32, "num_experts": 128,
        "num_experts_per_tok": 8, "num_hidden_layers": 48, "num_key_value_heads": 4, "tie_word_embeddings": False,
    },
    "gemma-2b": GEMMA | {
        "architectures": ["GemmaForCausalLM"], "model_type": "gemma", "hidden_act": "gelu", "hidden_size": 2048,
        "intermediate_size": 16384, "max_position_embeddings": 8192, "num_attention_heads": 8,
        "num_hidden_layers": 18, "num_key_value_heads": 1, "rope_scaling": None, "rope_theta": 10000.0,
        "vocab_size": 256000,
    },
    "gemma-2-9b": GEMMA | {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "attn_logit_softcapping": 50.0,
        "cache_implementation": "hybrid", "final_logit_softcapping": 30.0, "hidden_act": "gelu_pytorch_tanh",
        "hidden_size": 3584, "intermediate_size": 14336, "max_position_embeddings": 8192, "num_attention_heads": 16,
        "num_hidden_layers": 42, "num_key_value_heads": 8, "query_pre_attn_scalar": 256, "rope_theta": 10000.0,
        "sliding_window": 4096, "sliding_window_size": 4096, "torch_dtype": "float32", "vocab_size": 256000,
    },
    "gemma-3-1b": GEMMA | {
        "architectures": ["Gemma3ForCausalLM"], "model_type": "gemma3_text", "attn_logit_softcapping": None,
        "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": None,
        "hidden_size": 1152, "intermediate_size": 6912, "max_position_embeddings": 32768, "num_attention_heads": 4,
        "num_hidden_layers": 26, "num_key_value_heads": 1, "query_pre_attn_scalar": 256, "rope_scaling": None,
        "rope_local_base_freq": 10000, "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
        "vocab_size": 262144,
    },
    "gemma-3-4b": {
        "architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "boi_token_index": 255999,
        "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144, "mm_tokens_per_image": 256,
        "text_config": {
            "hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text", "num_hidden_layers": 34,
            "rope_scaling": {"factor": 8.0, "rope_type": "linear"}, "sliding_window": 1024,
        },
        "torch_dtype": "bfloat16",
        "vision_config": {
            "hidden_size": 1152, "image_size": 896, "intermediate_size": 4304, "model_type": "siglip_vision_model",
            "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": False,
        },
    },
    "phi-3-mini-4k": PHI3,
    "phi-3.5-mini": PHI3 | {
        "max_position_embeddings": 131072, "rope_scaling": FACTORS, "sliding_window": 262144,
    },
    "phi-4-mini": PHI3 | {
        "bos_token_id": 199999, "eos_token_id": 199999, "max_position_embeddings": 131072, "num_attention_heads": 24,
        "num_key_value_heads": 8, "partial_rotary_factor": 0.75, "rope_scaling": FACTORS, "sliding_window": 262144,
        "tie_word_embeddings": True, "vocab_size": 200064,
    },
    "pythia-160m": PUBLISHED["pythia-70m"] | {
        "hidden_size": 768, "intermediate_size": 3072, "num_attention_heads": 12, "num_hidden_layers": 12,
    },
    "opt-125m": PUBLISHED["opt-350m"] | {
        "do_layer_norm_before": True, "ffn_dim": 3072, "hidden_size": 768, "num_attention_heads": 12,
        "num_hidden_layers": 12, "word_embed_proj_dim": 768,
    },
    "santacoder": PUBLISHED["starcoder"] | {
        "activation_function": "gelu_pytorch_tanh", "bos_token_id": 49152, "eos_token_id": 49152, "n_embd": 2048,
        "n_head": 16, "n_inner": 8192, "n_layer": 24, "n_positions": 2048, "vocab_size": 49280,
    },
}  # fmt: skip
# Models that transformers only runs with code from the checkpoint.
REMOTE: dict[str, dict[str, Any]] = {
    "chatglm3-6b": CHATGLM,
    "chatglm2-6b-32k": CHATGLM | {"rope_ratio": 16, "seq_length": 32768},
    "chatglm3-6b-32k": CHATGLM | {"rope_ratio": 50, "seq_length": 32768},
    "glm-4-9b-chat": CHATGLM | {
        "eos_token_id": [151329, 151336, 151338], "layernorm_epsilon": 1.5625e-07, "num_hidden_layers": 40,
        "num_layers": 40, "pad_token_id": 151329, "padded_vocab_size": 151552, "rope_ratio": 500,
        "seq_length": 131072, "torch_dtype": "bfloat16", "vocab_size": 151552,
    },
    "baichuan2-7b": BAICHUAN2,
    "baichuan2-13b": {k: v for k, v in BAICHUAN2.items() if k != "max_position_embeddings"} | {
        "hidden_size": 5120, "intermediate_size": 13696, "num_attention_heads": 40, "num_hidden_layers": 40,
    },
    "internlm2-7b": {
        "architectures": ["InternLM2ForCausalLM"], "model_type": "internlm2", "attn_implementation": "eager",
        "auto_map": {"AutoModelForCausalLM": "modeling_internlm2.InternLM2ForCausalLM"}, "bias": False,
        "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096, "intermediate_size": 14336,
        "max_position_embeddings": 32768, "num_attention_heads": 32, "num_hidden_layers": 32,
        "num_key_value_heads": 8, "pad_token_id": 2, "rms_norm_eps": 1e-05, "rope_theta": 1000000,
        "rope_scaling": {"factor": 1.0, "type": "dynamic"}, "tie_word_embeddings": False,
        "torch_dtype": "bfloat16", "vocab_size": 92544,
    },
    "qwen-7b": {
        "architectures": ["QWenLMHeadModel"], "model_type": "qwen", "attn_dropout_prob": 0.0, "bf16": False,
        "auto_map": {"AutoModelForCausalLM": "modeling_qwen.QWenLMHeadModel"}, "emb_dropout_prob": 0.0,
        "fp16": False, "fp32": False, "hidden_size": 4096, "intermediate_size": 22016, "kv_channels": 128,
        "layer_norm_epsilon": 1e-06, "max_position_embeddings": 32768, "no_bias": True, "num_attention_heads": 32,
        "num_hidden_layers": 32, "onnx_safe": None, "rotary_emb_base": 10000, "rotary_pct": 1.0,
        "scale_attn_weights": True, "seq_length": 8192, "tie_word_embeddings": False, "use_dynamic_ntk": True,
        "use_flash_attn": "auto", "use_logn_attn": True, "vocab_size": 151936,
    },
}  # fmt: skip
# Numbers in the checkpoints, a table that is also the head once, and without heads, poolers and vision parts.
PARAMETERS: dict[str, int] = {
    "gpt2": 124_439_808, "gpt-j-6b": 6_050_882_784, "pythia-70m": 70_426_624, "pythia-160m": 162_322_944,
    "opt-125m": 125_239_296, "opt-350m": 331_196_416, "phi-2": 2_779_683_840, "starcoder": 15_517_456_384,
    "starcoder2-3b": 3_030_371_328, "bloom-560m": 559_214_592, "mpt-7b": 6_649_286_656, "falcon-7b": 6_921_720_704,
    "llama-2-7b": 6_738_415_616, "llama-3.2-1b": 1_235_814_400, "mistral-7b-v0.3": 7_248_023_552,
    "mixtral-8x7b": 46_702_792_704, "qwen2.5-0.5b": 494_032_768, "qwen1.5-moe-a2.7b": 14_315_784_192,
    "qwen3-0.6b": 596_049_920, "qwen3-30b-a3b": 30_532_122_624, "gemma-2b": 2_506_172_416,
    "gemma-2-9b": 9_241_705_984, "gemma-3-1b": 999_885_952, "phi-3-mini-4k": 3_821_079_552,
    "phi-3.5-mini": 3_821_079_552, "phi-4-mini": 3_836_021_760,
    "chatglm3-6b": 6_243_584_000, "chatglm2-6b-32k": 6_243_584_000,
    "chatglm3-6b-32k": 6_243_584_000, "glm-4-9b-chat": 9_399_951_360, "baichuan2-7b": 7_505_973_248,
    "baichuan2-13b": 13_896_668_160, "internlm2-7b": 7_737_708_544, "qwen-7b": 7_721_324_544,
}  # fmt: skip
