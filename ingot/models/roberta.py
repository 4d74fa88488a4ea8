"""RoBERTa and XLM-RoBERTa: BERT whose positions begin behind the row of padding, and with one type of tokens."""

from __future__ import annotations

from typing import Any

from ingot.dtypes import DType
from ingot.frontends.fields import Fields
from ingot.models.bert import UNUSED, Body, encoder_config
from ingot.models.encoder import EncoderConfig
from ingot.models.weights import Ignored, Naming
from ingot.nn import Module

ARCHITECTURE = "RobertaModel"
ALSO = ("RobertaForMaskedLM", "XLMRobertaModel", "XLMRobertaForMaskedLM")
MODEL_TYPE = "roberta"
HEADS = Ignored(r"lm_head\..*", "the head of pretraining")
NAMING = Naming("roberta.embeddings.word_embeddings.weight", "", "roberta.", (*UNUSED, HEADS))


def config(fields: Fields) -> EncoderConfig:
    """Reads config.json."""
    return encoder_config(fields, ARCHITECTURE, fields.integer("pad_token_id", 0, 1 << 24, 1) + 1, 2)


class Roberta(Module):
    """The whole model, under the name that checkpoints with a head have."""

    def __init__(self, config: EncoderConfig, dtype: DType, tied: bool) -> None:
        super().__init__()
        self.roberta = Body(config, dtype)

    def forward(self, token_ids: Any, positions: Any, mask: Any) -> dict[str, Any]:
        """As Body."""
        return self.roberta(token_ids, positions, mask)  # type: ignore[no-any-return]


model = Roberta
