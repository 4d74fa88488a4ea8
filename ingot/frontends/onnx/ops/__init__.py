"""The converters of ONNX ops, in files by family; importing them fills the table."""

from __future__ import annotations

from ingot.frontends.onnx.ops import (  # noqa: F401
    attention,
    control,
    elementwise,
    images,
    indexing,
    linear,
    loss,
    microsoft,
    microsoft_attention,
    microsoft_grouped,
    microsoft_quantised,
    norm,
    padding,
    quantised,
    recurrent,
    reduction,
    resample,
    shape,
    signal,
    spatial,
    text,
    training,
    trees,
)
