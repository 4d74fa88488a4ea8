"""How weights are stored and rows rounded: the words of `weights=` and `activations=`, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ingot import dtypes
from ingot.dtypes import DType
from ingot.words import SAME, check_words


@dataclass(frozen=True)
class WeightFormat:
    """Numbers of `dtype`, integers or floats of 8 bits, from −`limit`, and a float32 scale for every output and `group`
    of inputs (0: all of them).

    In a network such a weight is `dequantize(integers, scales)`. dtype None: as they are, in the engine's precision.
    zeros: whether each group has an int8 zero point too, and the weight is `dequantize(integers, scales, zeros)`.
    activations: what rows become too, with a scale for each, before they meet such a weight: int8 (`quantize_rows`)
    or fp8 (`float8_rows`).
    """

    word: str
    dtype: DType | None = None
    limit: int = 0
    group: int = 0
    activations: str | None = None
    zeros: bool = False

    @property
    def asked(self) -> tuple[str | None, str | None]:
        """The words for weights and activations as somebody asks for them: None for what nobody asked."""
        return (self.word if self.dtype else None, self.activations)

    @property
    def per_output(self) -> WeightFormat:
        """What is taken where groups do not fit: the rows of tables, and inputs that they do not divide."""
        return replace(INT8, word=self.word, activations=self.activations)


AS_IS = WeightFormat("same")
INT8 = WeightFormat("int8", dtypes.int8, 127)
GROUPS = (32, 64, 128)
_INT4 = (WeightFormat(f"int4-g{n}", dtypes.int4, 8, n) for n in GROUPS)
_ASYMMETRIC = (WeightFormat(f"int4-g{n}-asym", dtypes.int4, 8, n, zeros=True) for n in GROUPS)
FP8 = WeightFormat("fp8", dtypes.float8_e4m3fn, dtypes.MOST_FLOAT8)
FORMATS = {f.word: f for f in (AS_IS, INT8, *_INT4, *_ASYMMETRIC, FP8)}
INTEGERS = (dtypes.int8, dtypes.int4)
COMPACT = (*INTEGERS, dtypes.float8_e4m3fn)  # what a product takes beside floats of its rows' type


def weight_format(word: str | None, activations: str | None = None) -> WeightFormat:
    """The format of a word; of none, `same`. Raises UserError for words that are not known or do not go together."""
    check_words(None, word, activations)
    return replace(FORMATS[word or AS_IS.word], activations=None if activations == SAME else activations)


def format_of(config: Mapping[str, Any]) -> WeightFormat:
    """The format that an engine's config says it was built in."""
    return weight_format(config.get("weights"), config.get("activations"))
