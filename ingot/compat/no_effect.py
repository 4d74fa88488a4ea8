"""Arguments of the retired API that are accepted and change no number here, each with the reason.

This is the only list of them: every other argument is honoured or refused, and a test goes over all signatures.
"""

from __future__ import annotations

_ONE_DEVICE = "an engine runs on one device"
_RANKS = dict.fromkeys(("tp_group", "tp_rank", "sharding_dim", "workspace", "instance_id"), _ONE_DEVICE)
_ONE_KERNEL = "every op has one kernel on a machine, chosen when the engine is built"
_SUMS = "sums are always in float32"
_LINEAR = {
    **dict.fromkeys(("tp_group", "gather_output", "instance_id"), _ONE_DEVICE),
    **dict.fromkeys(("pad_lda", "pad_ldc"), "the build lays weights out for its kernels"),
    "strict_dtype": "types are always strict", "prefer_managed_weight": "all weights are kept by the engine",
    "is_qkv": "only ranks and adapters look at it", "is_expert": "only ranks look at it",
    "max_lora_rank": "an adapter is merged, or brings its own rank",
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
        "host_runtime_perf_knobs": "there are none", "host_context_progress": "a step runs whole",
        "rotary_embedding_max_positions": "positions are computed as they come",
        "rotary_embedding_original_max_positions": "only the scaling types read it that are refused without tables",
        "multi_block_mode": _ONE_KERNEL, "dense_context_fmha": "attention is always fused",
        "cp_group": _ONE_DEVICE,
    },
    "bert_attention": {
        "max_input_length": "sizes say it", "cp_group": _ONE_DEVICE,
        **dict.fromkeys(("sage_attn_q_block_size", "sage_attn_k_block_size", "sage_attn_v_block_size"),
                        "only sage_attn reads it, which is refused"),
    },
}  # fmt: skip


def ignored(function: str) -> dict[str, str]:
    """The arguments of a function that change nothing, with the reasons."""
    return NO_EFFECT.get(function, {})
