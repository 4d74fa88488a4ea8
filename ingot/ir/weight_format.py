"""How weights are stored: the words of `weights=` (--weights), and the numbers behind them."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ingot import dtypes
from ingot.dtypes import DType
from ingot.words import check_words


@dataclass(frozen=True)
class WeightFormat:
    """Integers of `dtype` up to `limit`, and a float32 scale for every output and `group` of inputs (0: all of them).

    In a network such a weight is `dequantize(integers, scales)`. dtype None: as they are, in the engine's precision.
    """

    word: str
    dtype: DType | None = None
    limit: int = 0
    group: int = 0

    @property
    def per_output(self) -> WeightFormat:
        """What is taken where groups do not fit: the rows of tables, and inputs that they do not divide."""
        return replace(INT8, word=self.word)


AS_IS = WeightFormat("same")
INT8 = WeightFormat("int8", dtypes.int8, 127)
FORMATS = {f.word: f for f in (AS_IS, INT8, *(WeightFormat(f"int4-g{n}", dtypes.int4, 7, n) for n in (32, 64, 128)))}
INTEGERS = (dtypes.int8, dtypes.int4)  # what a product takes beside floats of its rows' type


def weight_format(word: str | None) -> WeightFormat:
    """The format of a word; of none, `same`. Raises UserError for one that is not known."""
    check_words(None, word)
    return FORMATS[word or AS_IS.word]
