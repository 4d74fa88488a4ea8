"""RopeEmbeddingUtils: frequencies and tables of rotary embeddings in NumPy, and their application to tensors."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from ingot import functional as f
from ingot.compat.attention import PositionEmbeddingType
from ingot.compat.functional import recorded
from ingot.compat.refusal import called, refused

Array = np.ndarray[Any, Any]


class RopeEmbeddingUtils:
    """Rotary embeddings: what tensorrt_llm.functional had under this name."""

    # -------------------------------------------------------------------------------------------- numbers
    @staticmethod
    def apply_llama3_scaling(inv_freqs: Array, rope_scaling_config: Mapping[str, Any]) -> Array:
        """Frequencies stretched as Llama 3.1's: low ones by `factor`, high ones not, those between in part."""
        factor = float(rope_scaling_config.get("factor", 8.0))
        low = float(rope_scaling_config.get("low_freq_factor", 1.0))
        high = float(rope_scaling_config.get("high_freq_factor", 4.0))
        length = float(rope_scaling_config.get("original_max_position_embeddings", 8192))
        inv_freqs = np.asarray(inv_freqs)
        turns = length * inv_freqs / (2 * math.pi)  # within the original length
        share = np.clip((turns - low) / (high - low), 0, 1)
        return np.asarray((1 - share) * inv_freqs / factor + share * inv_freqs)

    @staticmethod
    def create_sinusoidal_positions(num_pos: int, dim: int, theta: float = 10000.0, dtype: Any = np.float32) -> Array:
        """Sines and then cosines of every position: [1, num_pos, dim]."""
        angle = np.arange(num_pos)[:, None] * (1.0 / theta ** (np.arange(0, dim, 2) / dim))
        return np.concatenate([np.sin(angle), np.cos(angle)], 1)[None].astype(dtype)

    @staticmethod
    def create_sinusoidal_positions_for_attention_plugin(
        num_pos: int, dim: int, theta: float = 10000.0, scale: float = 1.0, scale_type: Any = 0,
        rope_scaling_config: Mapping[str, Any] | None = None, dtype: Any = np.float32,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Frequencies [dim / 2], and (cos, sin) of every position, [1, num_pos · dim]: what gpt_attention takes.

        Args:
            scale: divides positions where scale_type is linear; for llama3 rope_scaling_config says more.
        """
        inv_freq = 1.0 / theta ** (np.arange(0, dim, 2) / dim)
        if int(scale_type) == 4:
            inv_freq = RopeEmbeddingUtils.apply_llama3_scaling(inv_freq, rope_scaling_config or {})
        elif int(scale_type) in (1, 0):
            inv_freq = inv_freq / (scale if int(scale_type) else 1.0)
        else:
            raise refused(f"create_sinusoidal_positions_for_attention_plugin with scale_type {scale_type}",
                          "none, linear or llama3; for yarn create_sinusoidal_positions_yarn")  # fmt: skip
        inv_freq = inv_freq.astype(dtype)
        return inv_freq, _table(np.arange(num_pos)[:, None] * inv_freq).reshape(1, -1).astype(dtype)

    @staticmethod
    def create_sinusoidal_positions_yarn(
        num_pos: int, dim: int, base: float = 10000.0, scaling_factor: float = 1.0,
        original_max_position_embeddings: int = 4096, beta_fast: float = 32, beta_slow: float = 1, mscale: float = 1.0,
        mscale_all_dim: float = 1.0, dtype: Any = np.float32,
    ) -> tuple[Array, Array]:  # fmt: skip
        """Frequencies [dim / 2] as YaRN stretches them, and (cos, sin) of every position, [num_pos, dim / 2, 2]."""

        def place(turns: float) -> float:  # the dimension that turns so often within the original length
            return dim * math.log(original_max_position_embeddings / (turns * 2 * math.pi)) / (2 * math.log(base))

        low, high = max(math.floor(place(beta_fast)), 0), min(math.ceil(place(beta_slow)), dim - 1)
        share = np.clip((np.arange(dim // 2) - low) / (high - low if high > low else 0.001), 0, 1)
        plain = 1.0 / base ** (np.arange(0, dim, 2) / dim)
        inv_freq = plain / scaling_factor * share + plain * (1 - share)

        def grown(by: float) -> float:
            return 0.1 * by * math.log(scaling_factor) + 1.0 if scaling_factor > 1 else 1.0

        table = _table(np.arange(num_pos)[:, None] * inv_freq) * (grown(mscale) / grown(mscale_all_dim))
        return inv_freq.astype(dtype), table.astype(dtype)

    @staticmethod
    def create_fake_weight(dim: int, dtype: Any = np.float32) -> Array:
        """Random numbers in the place of a table."""
        return np.random.default_rng(0).random(dim).astype(dtype)

    # -------------------------------------------------------------------------------------------- tensors
    @staticmethod
    @called("RopeEmbeddingUtils.rotate_every_two")
    def rotate_every_two(tensor: Any) -> Any:
        """[B, S, H, D]: (x0, x1, x2, x3, …) as (−x1, x0, −x3, x2, …)."""
        return recorded("rotate", _every_two, {"x": tensor})

    @staticmethod
    @called("RopeEmbeddingUtils.rotate_half")
    def rotate_half(tensor: Any) -> Any:
        """[B, S, H, D]: the second half, negated, before the first."""
        return recorded("rotate", _half, {"x": tensor})

    @staticmethod
    @called("RopeEmbeddingUtils.apply_rotary_pos_emb")
    def apply_rotary_pos_emb(
        tensor: Any, position_embedding: Any = None, pos_emb_type: Any = PositionEmbeddingType.rope_gptj
    ) -> Any:
        """[B, S, H, D] turned by (cos, sin), each [1, S, 1, R / 2], in pairs side by side (rope_gptj) or in halves."""
        position = PositionEmbeddingType(int(pos_emb_type))
        if position not in (PositionEmbeddingType.rope_gptj, PositionEmbeddingType.rope_gpt_neox):
            raise refused(f"apply_rotary_pos_emb with {position.name}", "rope_gptj or rope_gpt_neox")
        gptj = position is PositionEmbeddingType.rope_gptj
        cos, sin = position_embedding

        def call(x: Any, cos: Any, sin: Any) -> Any:
            doubled = [f.repeat_interleave(t, 2, 3) if gptj else f.concat([t, t], 3) for t in (cos, sin)]
            width = doubled[0].shape[3]
            turned, rest = (x, None) if width == x.shape[3] else f.split(x, [width, x.shape[3] - width], 3)
            out = f.add(f.mul(turned, doubled[0]), f.mul(_every_two(turned) if gptj else _half(turned), doubled[1]))
            return out if rest is None else f.concat([out, rest], 3)

        return recorded("apply_rotary_pos_emb", call, {"x": tensor, "cos": cos, "sin": sin})


def _table(angle: Array) -> Array:
    """(cos, sin) of angles [P, R]: [P, R, 2]."""
    return np.stack([np.cos(angle), np.sin(angle)], 2)


def _every_two(x: Any) -> Any:
    pairs = f.view(x, (*x.shape[:-1], x.shape[-1] // 2, 2), False)
    first, second = (f.slice(pairs, [0] * (len(x.shape)) + [i], (*pairs.shape[:-1], 1)) for i in (0, 1))
    return f.view(f.concat([f.neg(second), first], len(x.shape)), x.shape, False)


def _half(x: Any) -> Any:
    first, second = f.chunk(x, 2, -1)
    return f.concat([f.neg(second), first], -1)
