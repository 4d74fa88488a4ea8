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
