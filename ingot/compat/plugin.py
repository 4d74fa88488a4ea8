"""tensorrt_llm.plugin: settings that are accepted and kept, with what becomes of each.

TensorRT-LLM's plugins were hand-written kernels beside TensorRT's own. Here every op has its kernel, so a setting
changes nothing but where it says how inputs lie (`remove_input_padding`, `paged_kv_cache`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum
from typing import Any

from ingot.compat.refusal import MissingName, here

PLUGINS = (
    "bert_attention_plugin", "gpt_attention_plugin", "gemm_plugin", "smooth_quant_gemm_plugin", "identity_plugin",
    "layernorm_quantization_plugin", "rmsnorm_quantization_plugin", "nccl_plugin", "lookup_plugin", "lora_plugin",
    "weight_only_groupwise_quant_matmul_plugin", "weight_only_quant_matmul_plugin", "quantize_per_token_plugin",
    "quantize_tensor_plugin", "moe_plugin", "mamba_conv1d_plugin", "layernorm_plugin", "rmsnorm_plugin",
    "fp8_rowwise_gemm_plugin", "qserve_gemm_plugin", "gemm_swiglu_plugin", "low_latency_gemm_plugin",
    "low_latency_gemm_swiglu_plugin", "gemm_allreduce_plugin",
)  # fmt: skip
FEATURES: dict[str, Any] = {
    "context_fmha": True, "context_fmha_fp32_acc": False, "paged_kv_cache": False, "remove_input_padding": False,
    "use_custom_all_reduce": False, "multi_block_mode": False, "enable_xqa": True,
    "attention_qk_half_accumulation": False, "tokens_per_block": 32, "use_paged_context_fmha": False,
    "use_fp8_context_fmha": False, "use_context_fmha_for_generation": False, "multiple_profiles": False,
    "paged_state": False, "streamingllm": False, "in_flight_batching": False, "reduce_fusion": False,
    "user_buffer": False, "pp_reduce_scatter": False, "use_fused_mlp": True, "norm_quant_fusion": False,
    "bert_context_fmha_fp32_acc": False, "fuse_fp4_quant": False, "manage_weights": False,
    "use_fp8_context_fmha_for_generation": False, "dora_plugin": False,
}  # fmt: skip


class ContextFMHAType(IntEnum):
    """How attention over a prompt was fused; here it always is, with float32 sums."""

    disabled = 0
    enabled = 1
    enabled_with_fp32_acc = 2


class PluginConfig:
    """The settings of one network, and `recorded`: what was set, in order.

    Raises MissingName for a setting that no version had.
    """

    def __init__(self) -> None:
        object.__setattr__(self, "recorded", [])
        object.__setattr__(self, "_values", dict.fromkeys(PLUGINS) | FEATURES)

    recorded: list[tuple[str, Any]]
    _values: dict[str, Any]

    def __getattr__(self, name: str) -> Any:
        values = object.__getattribute__(self, "_values")
        if name in values:
            return values[name]
        setting = name.removeprefix("set_").removeprefix("enable_")
        if name.startswith("set_") and setting in PLUGINS or name.startswith("enable_") and setting in FEATURES:
            return self._setter(setting, "float16" if setting in PLUGINS else True)
        raise MissingName(
            f"{here()}plugin_config has no {name!r}; it has {', '.join(values)}. None changes what is computed: "
            "leave it out"
        )

    def __setattr__(self, name: str, value: Any) -> None:
        if name not in self._values:
            getattr(self, name)  # the refusal
        self.set_plugin(name, value)

    def _setter(self, setting: str, default: Any) -> Callable[..., PluginConfig]:
        def chosen(value: Any = default, *more: Any, **named: Any) -> PluginConfig:
            return self.set_plugin(setting, named.get("dtype", value))

        return chosen

    def set_plugin(self, name: str, value: Any) -> PluginConfig:
        """One setting, by name."""
        if name not in self._values:
            getattr(self, name)  # the refusal
        self._values[name] = value
        self.recorded.append((name, value))
        return self

    def update_from_dict(self, config: Mapping[str, Any]) -> PluginConfig:
        """The settings of a dict that are known here."""
        for name in config.keys() & self._values.keys():
            self.set_plugin(name, config[name])
        return self

    @classmethod
    def from_dict(cls, config: Mapping[str, Any]) -> PluginConfig:
        """Settings of a dict."""
        return cls().update_from_dict(config)

    def to_dict(self) -> dict[str, Any]:
        """All settings."""
        return dict(self._values)

    def to_legacy_setting(self) -> PluginConfig:
        """Packed input and a paged cache, off."""
        return self.set_plugin("remove_input_padding", False).set_plugin("paged_kv_cache", False)

    @property
    def context_fmha_type(self) -> ContextFMHAType:
        """What the settings say; attention is fused either way."""
        if self.context_fmha_fp32_acc:
            return ContextFMHAType.enabled_with_fp32_acc
        return ContextFMHAType.enabled if self.context_fmha else ContextFMHAType.disabled

    def set_context_fmha(self, context_fmha_type: ContextFMHAType = ContextFMHAType.enabled) -> PluginConfig:
        """Recorded."""
        self.set_plugin("context_fmha", context_fmha_type is not ContextFMHAType.disabled)
        return self.set_plugin("context_fmha_fp32_acc", context_fmha_type is ContextFMHAType.enabled_with_fp32_acc)

    def set_smooth_quant_plugins(self, dtype: str = "auto") -> PluginConfig:
        """Recorded."""
        for name in ("smooth_quant_gemm_plugin", "layernorm_quantization_plugin", "rmsnorm_quantization_plugin"):
            self.set_plugin(name, dtype)
        return self

    def enable_paged_kv_cache(self, tokens_per_block: int = 32) -> PluginConfig:
        """Recorded."""
        return self.set_plugin("paged_kv_cache", True).set_plugin("tokens_per_block", tokens_per_block)

    def enable_qk_half_accum(self) -> PluginConfig:
        """Recorded: sums are in float32."""
        return self.set_plugin("attention_qk_half_accumulation", True)

    def enable_mmha_multi_block_mode(self) -> PluginConfig:
        """Recorded."""
        return self.set_plugin("multi_block_mode", True)

    def enable_xqa_optimization(self) -> PluginConfig:
        """Recorded."""
        return self.set_plugin("enable_xqa", True)

    def set_nccl_plugin(self, dtype: str = "auto", use_custom_all_reduce: bool = False) -> PluginConfig:
        """Recorded: an engine runs on one device."""
        return self.set_plugin("nccl_plugin", dtype).set_plugin("use_custom_all_reduce", use_custom_all_reduce)
