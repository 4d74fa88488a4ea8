"""Phi-3 and Phi-4: Llama with one product for queries, keys and values, and one for the MLP's gate and up halves."""

from __future__ import annotations

from functools import partial
from typing import Any

from ingot import functional
from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models import rope
from ingot.models.blocks import CALLS
from ingot.models.config import DecoderConfig, common
from ingot.models.decoder import CausalLM, DecoderLayer, FusedAttention
from ingot.models.weights import DECODER
from ingot.nn import Linear, Module

ARCHITECTURE = "Phi3ForCausalLM"
MODEL_TYPE = "phi3"
NAMING = DECODER


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json."""
    shared = common(fields, ARCHITECTURE, rotary=partial(rope.parse, share=1.0))
    window = fields.integer("sliding_window", 1, rope.MAX_POSITIONS, None)
    shared["windows"] = (window,) * shared["num_layers"]
    return DecoderConfig(**shared)


class GatedMLP(Module):
    """down_proj(act(gate) · up), gate and up the halves of gate_up_proj(x)"""

    def __init__(self, config: DecoderConfig, dtype: DType) -> None:
        super().__init__()
        self.activation = CALLS[config.activation]
        self.gate_up_proj = Linear(config.hidden_size, 2 * config.intermediate_size, False, dtype)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, False, dtype)

    def forward(self, x: Any) -> Any:
        """[T, hidden] → the same"""
        gate, up = functional.chunk(self.gate_up_proj(x), 2, 1)
        return self.down_proj(functional.mul(self.activation(gate), up))


LAYER = partial(DecoderLayer, attend=partial(FusedAttention, names=("qkv_proj", "o_proj")), mlp=GatedMLP)
model = partial(CausalLM, layer=LAYER)
