"""Baichuan 1 and 2: Llama with one product for queries, keys and values. The 7B models rotate; the 13B ones have ALiBi.
Baichuan 2 brings the rows of its head to length 1."""

from __future__ import annotations

from functools import partial

from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.functional import generate_alibi_slopes
from ingot.models import rope
from ingot.models.config import DecoderConfig, common
from ingot.models.decoder import CausalLM, DecoderLayer, FusedAttention
from ingot.models.weights import DECODER

ARCHITECTURE = "BaichuanForCausalLM"
ALSO = ("BaiChuanForCausalLM",)  # the first 7B
MODEL_TYPE = "baichuan"
NAMING = DECODER
VOCABULARY_2 = 125_696


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json.

    Two things it does not say outright. The 13B models are those with model_max_length but no max_position_embeddings.
    Baichuan 2 is known by its vocabulary or by the z_loss_weight of its training.
    """
    rotates = fields.has("max_position_embeddings")
    names = {} if rotates else {"max_position_embeddings": "model_max_length"}
    shared = common(fields.called(names), ARCHITECTURE, rotary=rope.parse if rotates else None)
    second = fields.has("z_loss_weight") or shared["vocab_size"] == VOCABULARY_2
    if second and shared["tied"]:
        fields.fault("tie_word_embeddings", "is true, but Baichuan 2's head is normalised and its table is not")
    return DecoderConfig(**shared, unit_rows=("lm_head.weight",) if second else ())


def attend(config: DecoderConfig, index: int, dtype: DType) -> FusedAttention:
    """One product, and slopes where nothing rotates."""
    slopes = generate_alibi_slopes(config.num_heads) if config.rope is None else None
    return FusedAttention(config, index, dtype, ("W_pack", "o_proj"), slopes=slopes)


model = partial(CausalLM, layer=partial(DecoderLayer, attend=attend))
