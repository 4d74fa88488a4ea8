"""Small classes of tensorrt_llm.functional: kinds of norms and blocks, and ranges of dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

from ingot.compat.refusal import refused


class LayerNormType(IntEnum):
    """Kinds of normalisation."""

    LayerNorm = 0
    RmsNorm = 1
    GroupNorm = 2


class LayerNormPositionType(IntEnum):
    """Where a block is normalised."""

    pre_layernorm = 0
    post_layernorm = 1


class MLPType(IntEnum):
    """Kinds of MLPs."""

    MLP = 0
    GatedMLP = 1
    FusedGatedMLP = 2


class SliceInputType(IntEnum):
    """Inputs of TensorRT's slices, by index."""

    data = 0
    start = 1
    size = 2
    stride = 3
    fill_value = 4
    axes = 5


class DimRange:
    """The least, usual and greatest sizes of a tensor's dimensions in one profile.

    Args:
        shape: an int, or (min, opt, max), for each dimension.
        names: of the dimensions.
    """

    def __init__(self, shape: Sequence[Any], names: Sequence[str | None] = ()) -> None:
        bounds = [tuple(one) if isinstance(one, list | tuple) else (one,) * 3 for one in shape]
        if any(len(one) != 3 for one in bounds):
            raise refused(f"DimRange({list(shape)})", "every dimension is an int or (min, opt, max)")
        if names and len(names) != len(bounds):
            raise refused(f"DimRange of {len(bounds)} dimensions and {len(names)} names", "give one name for each")
        self.min, self.opt, self.max = ([one[i] for one in bounds] for i in range(3))
        self.dimension_names = list(names)

    def _key(self) -> tuple[Any, ...]:
        return (*self.min, None, *self.opt, None, *self.max, None, *self.dimension_names)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DimRange) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())


WORDS = {cls.__name__: cls for cls in (LayerNormType, LayerNormPositionType, MLPType, SliceInputType, DimRange)}
