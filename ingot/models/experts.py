"""Mixtures of experts: a router's scores choose which gated MLPs a token goes through."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models.config import DecoderConfig
from ingot.nn import MoE


@dataclass(frozen=True, kw_only=True)
class ExpertsConfig(DecoderConfig):
    """A decoder some of whose layers have experts.

    `sparse`: which layers. `expert_size`: the width inside an expert. `normalize`: a token's weights sum to 1.
    `shared_size`: the width of the expert that every token goes through besides; None: there is none.
    """

    experts: int
    top_k: int
    expert_size: int
    normalize: bool
    sparse: tuple[bool, ...]
    shared_size: int | None = None


def counts(fields: Fields, experts: str, default_top_k: int | None = None) -> dict[str, Any]:
    """How many experts there are, by the field of that name, and how many a token goes through."""
    count = fields.integer(experts, 1, 4096)
    default = () if default_top_k is None else (default_top_k,)
    top_k = fields.integer("num_experts_per_tok", 1, 32, *default)
    if top_k > count:
        fields.fault("num_experts_per_tok", f"must be at most {experts} {count}, but is {top_k}")
    return {"experts": count, "top_k": min(top_k, count)}


def sparse_layers(fields: Fields, layers: int) -> tuple[bool, ...]:
    """Qwen's choice: every decoder_sparse_step-th layer, but those in mlp_only_layers."""
    step = fields.integer("decoder_sparse_step", 1, 1_000, 1)
    dense = fields.values.get("mlp_only_layers") or []
    if not isinstance(dense, list) or not all(type(i) is int and 0 <= i < layers for i in dense):
        fields.fault("mlp_only_layers", f"must list layers below {layers}")
        dense = []
    return tuple(i not in dense and (i + 1) % step == 0 for i in range(layers))


class Experts(MoE):
    """A mixture of experts as a configuration has it. The router is called `gate` by all checkpoints."""

    def __init__(
        self, config: ExpertsConfig, dtype: DType, names: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    ) -> None:
        super().__init__(
            config.hidden_size, config.expert_size, config.experts, config.top_k, dtype,
            normalize=config.normalize, activation=config.activation, names=names,
        )  # fmt: skip
