"""How weights are stored and rows rounded: the words of `weights=` and `activations=`, and the numbers behind them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from ingot import dtypes
from ingot.dtypes import DType
from ingot.errors import EngineFileError
from ingot.words import SAME, check_tables, check_words


@dataclass(frozen=True)
class WeightFormat:
    """Numbers of `dtype`, integers or floats of 8 bits, from −`limit`, and a scale for every output and `group` of
    inputs (0: all of them).

    In a network such a weight is `dequantize(integers, scales)`. dtype None: as they are, in the engine's precision.
    scales: the type of those of groups, but of weights made of the parameters `wide`: those are float32 in any case.
    zeros: whether each group has an int8 zero point too, and the weight is `dequantize(integers, scales, zeros)`.
    activations: what rows become too, with a scale for each, before they meet such a weight: int8 (`quantize_rows`)
    or fp8 (`float8_rows`).
    head, embeddings: words for what makes logits, and for tables that rows are looked up in, where somebody chose them.
    """

    word: str
    dtype: DType | None = None
    limit: int = 0
    group: int = 0
    activations: str | None = None
    zeros: bool = False
    scales: DType = dtypes.float32
    wide: frozenset[str] = frozenset()
    head: str | None = None
    embeddings: str | None = None

    @property
    def asked(self) -> tuple[str | None, str | None]:
        """The words for weights and activations as somebody asks for them: None for what nobody asked."""
        return (self.word if self.dtype else None, self.activations)

    @property
    def per_output(self) -> WeightFormat:
        """What is taken where groups do not fit: the rows of tables, and inputs that they do not divide."""
        return replace(INT8, word=self.word, activations=self.activations)

    def other(self, word: str) -> WeightFormat:
        """The format of that word in the place of this one, for one weight."""
        return replace(FORMATS[word], activations=self.activations, wide=self.wide)

    @property
    def is_floats(self) -> bool:
        """Whether every weight stays what it is."""
        return self.dtype is None and self.head in (None, SAME) and self.embeddings in (None, SAME)

    @property
    def narrow_scales(self) -> bool:
        """Whether there are float16 scales."""
        return dtypes.float16 in (self.scales, FORMATS[self.head or SAME].scales)


WIDE_SCALES = "float32_scales"  # of an engine's config
AS_IS = WeightFormat("same")
INT8 = WeightFormat("int8", dtypes.int8, 127)
GROUPS = (32, 64, 128)
_INT4 = [WeightFormat(f"int4-g{n}", dtypes.int4, 8, n, scales=dtypes.float16) for n in GROUPS]
_ASYMMETRIC = [replace(f, word=f"{f.word}-asym", zeros=True) for f in _INT4]
FP8 = WeightFormat("fp8", dtypes.float8_e4m3fn, dtypes.MOST_FLOAT8)
FORMATS = {f.word: f for f in (AS_IS, INT8, *_INT4, *_ASYMMETRIC, FP8)}
INTEGERS = (dtypes.int8, dtypes.int4)
COMPACT = (*INTEGERS, dtypes.float8_e4m3fn)  # what a product takes beside floats of its rows' type


def weight_format(
    word: str | None, activations: str | None = None, head: str | None = None, embeddings: str | None = None
) -> WeightFormat:
    """The format of a word; of none, `same`. Raises UserError for words that are not known or do not go together."""
    check_words(None, word, activations)
    check_tables(head, embeddings)
    rows = None if activations == SAME else activations
    return replace(FORMATS[word or AS_IS.word], activations=rows, head=head, embeddings=embeddings)


def format_of(config: Mapping[str, Any]) -> WeightFormat:
    """The format that an engine's config says it was built in. Raises EngineFileError where it says nothing sensible.
    """
    words = ("weights", "activations", "head", "embeddings")
    found = weight_format(*(config.get(word) for word in words))
    if not found.narrow_scales:
        return found
    wide = config.get(WIDE_SCALES)  # none in files from before there were scales of 16 bits
    if wide is None:
        return replace(found, scales=dtypes.float32)
    if not isinstance(wide, list) or not all(isinstance(name, str) for name in wide):
        raise EngineFileError(f"config {WIDE_SCALES} must be a list of parameters: the file is damaged")
    return replace(found, wide=frozenset(wide))


def config_of(format: WeightFormat) -> dict[str, Any]:
    """What an engine's config says of a format."""
    words: dict[str, Any] = {"weights": format.word}
    if format.activations:
        words["activations"] = format.activations
    words |= {name: word for name in ("head", "embeddings") if (word := getattr(format, name)) is not None}
    if format.narrow_scales:
        words[WIDE_SCALES] = sorted(format.wide)
    return words
