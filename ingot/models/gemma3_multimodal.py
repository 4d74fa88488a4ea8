"""Gemma 3 with a vision part (4B and larger) as a language model: its text part is Gemma 3; images are not read."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from ingot.frontends.fields import Fields
from ingot.models import gemma3
from ingot.models.config import DecoderConfig
from ingot.models.weights import Ignored, Naming

ARCHITECTURE = "Gemma3ForConditionalGeneration"
MODEL_TYPE = "gemma3"
LEFT_OUT = ("the vision part: this model is used for text alone, and images are not read",)
NAMING = Naming(
    prefixes=(
        ("model.", "language_model.model."),
        ("model.", "model.language_model."),
        ("lm_head.", "language_model.lm_head."),
    ),
    ignored=tuple(Ignored(rf"(model\.)?{part}\..*", "of images") for part in ("vision_tower", "multi_modal_projector")),
)
model = gemma3.model
# What the published text_config objects leave to the defaults of transformers.
DEFAULTS: dict[str, Any] = {
    "vocab_size": 262_208, "hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26,
    "num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 256, "max_position_embeddings": 131_072,
}  # fmt: skip
# May stand outside text_config.
SHARED = ("dtype", "torch_dtype", "bos_token_id", "eos_token_id", "tie_word_embeddings")


def config(fields: Fields) -> DecoderConfig:
    """Reads config.json: the text's numbers are in text_config, some that concern all parts beside it."""
    text = fields.nested("text_config")
    if text is None:
        if not fields.has("text_config"):
            fields.fault("text_config", "is missing")
        text = Fields({}, "text_config.", fields.faults)
    outside = {key: fields.values[key] for key in SHARED if fields.has(key)}
    given = {key: value for key, value in text.values.items() if value is not None or key not in DEFAULTS}
    found = gemma3.config(Fields({**DEFAULTS, **outside, **given}, "text_config.", fields.faults))
    return replace(found, architecture=ARCHITECTURE, model_type=MODEL_TYPE, left_out=LEFT_OUT)
