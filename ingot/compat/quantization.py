"""tensorrt_llm.quantization: QuantMode, the words for how weights, activations and caches are stored."""

from __future__ import annotations

from enum import IntFlag, auto


class QuantMode(IntFlag):
    """Flags of a quantisation. ingot takes it as words when it builds: `weights="int8"`, `weights="int4-g128"`."""

    INT4_WEIGHTS = auto()
    INT8_WEIGHTS = auto()
    ACTIVATIONS = auto()
    PER_CHANNEL = auto()
    PER_TOKEN = auto()
    PER_GROUP = auto()
    INT8_KV_CACHE = auto()
    FP8_KV_CACHE = auto()
    FP8_QDQ = auto()
    FP8_ROWWISE = auto()
    FP8_1x128_128x128 = auto()
    W4A8_QSERVE = auto()
    NVFP4 = auto()
    NVFP4_KV_CACHE = auto()
    COUNT = 1 << 14

    NONE = 0
    WEIGHTS_AND_ACTIVATIONS = INT4_WEIGHTS | INT8_WEIGHTS | ACTIVATIONS
    VALID_FLAGS = (1 << 14) - 1

    def _all(self, bits: QuantMode, mask: QuantMode) -> bool:
        return (self & mask) == bits

    def _any(self, bits: QuantMode) -> bool:
        return (self & bits) != 0

    def is_int8_weight_only(self) -> bool:
        return self._all(self.INT8_WEIGHTS, self.WEIGHTS_AND_ACTIVATIONS)

    def is_int4_weight_only(self) -> bool:
        return self._all(self.INT4_WEIGHTS, self.WEIGHTS_AND_ACTIVATIONS)

    def is_weight_only(self) -> bool:
        return self.is_int4_weight_only() or self.is_int8_weight_only()

    def is_int8_weight_only_per_group(self) -> bool:
        return self.is_int8_weight_only() and self.has_per_group_scaling()

    def is_int4_weight_only_per_group(self) -> bool:
        return self.is_int4_weight_only() and self.has_per_group_scaling()

    def is_qserve_w4a8(self) -> bool:
        return self._any(self.W4A8_QSERVE)

    def has_act_and_weight_quant(self) -> bool:
        return self._all(self.INT8_WEIGHTS | self.ACTIVATIONS, self.WEIGHTS_AND_ACTIVATIONS)

    def has_act_or_weight_quant(self) -> bool:
        return self._any(self.WEIGHTS_AND_ACTIVATIONS)

    def has_per_token_dynamic_scaling(self) -> bool:
        return self._any(self.PER_TOKEN)

    def has_act_static_scaling(self) -> bool:
        return self._any(self.ACTIVATIONS) and not self.has_per_token_dynamic_scaling()

    def has_per_channel_scaling(self) -> bool:
        return self._any(self.PER_CHANNEL)

    def has_per_group_scaling(self) -> bool:
        return self._any(self.PER_GROUP)

    def has_int8_kv_cache(self) -> bool:
        return self._any(self.INT8_KV_CACHE)

    def has_fp8_kv_cache(self) -> bool:
        return self._any(self.FP8_KV_CACHE)

    def has_fp4_kv_cache(self) -> bool:
        return self._any(self.NVFP4_KV_CACHE)

    def has_kv_cache_quant(self) -> bool:
        return self.has_int8_kv_cache() or self.has_fp8_kv_cache() or self.has_fp4_kv_cache()

    def has_fp8_qdq(self) -> bool:
        return self._any(self.FP8_QDQ)

    def has_fp8_rowwise(self) -> bool:
        return self._any(self.FP8_ROWWISE)

    def has_nvfp4(self) -> bool:
        return self._any(self.NVFP4)

    def has_any_quant(self, exclude_kv_cache: bool = False) -> bool:
        """Whether anything is quantised."""
        other = self.INT4_WEIGHTS | self.INT8_WEIGHTS | self.ACTIVATIONS | self.FP8_QDQ | self.FP8_ROWWISE | self.NVFP4
        return self._any(other | self.W4A8_QSERVE) or (not exclude_kv_cache and self.has_kv_cache_quant())

    def set_int8_kv_cache(self) -> QuantMode:
        return self | self.INT8_KV_CACHE

    def set_fp8_kv_cache(self) -> QuantMode:
        return self | self.FP8_KV_CACHE

    def set_fp8_qdq(self) -> QuantMode:
        return self | self.FP8_QDQ

    @classmethod
    def from_description(
        cls, quantize_weights: bool = False, quantize_activations: bool = False, per_token: bool = False,
        per_channel: bool = False, per_group: bool = False, use_int4_weights: bool = False,
        use_int8_kv_cache: bool = False, use_fp8_kv_cache: bool = False, use_fp8_qdq: bool = False,
    ) -> QuantMode:  # fmt: skip
        """The flags of a description in words.

        Raises:
            ValueError: scales for activations that are not quantised, or activations without weights.
        """
        if (quantize_activations and not quantize_weights) or (
            (per_token or per_channel) and not (quantize_weights and quantize_activations)
        ):
            raise ValueError(
                f"quantize_weights={quantize_weights}, quantize_activations={quantize_activations}, "
                f"per_token={per_token}, per_channel={per_channel} do not go together"
            )
        asked = {
            cls.INT4_WEIGHTS: quantize_weights and use_int4_weights,
            cls.INT8_WEIGHTS: quantize_weights and not use_int4_weights,
            cls.ACTIVATIONS: quantize_activations, cls.PER_CHANNEL: per_channel, cls.PER_TOKEN: per_token,
            cls.PER_GROUP: per_group, cls.INT8_KV_CACHE: use_int8_kv_cache, cls.FP8_KV_CACHE: use_fp8_kv_cache,
            cls.FP8_QDQ: use_fp8_qdq,
        }  # fmt: skip
        mode = cls(0)
        for flag, given in asked.items():
            mode |= flag if given else cls(0)
        return mode

    @classmethod
    def use_smooth_quant(cls, per_token: bool = False, per_channel: bool = False) -> QuantMode:
        return cls.from_description(True, True, per_token, per_channel)

    @classmethod
    def use_weight_only(cls, use_int4_weights: bool = False, per_group: bool = False) -> QuantMode:
        return cls.from_description(quantize_weights=True, per_group=per_group, use_int4_weights=use_int4_weights)
