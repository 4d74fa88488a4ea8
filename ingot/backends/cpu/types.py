"""The element types that the CPU's kernels take, under the names that their declarations use."""

from __future__ import annotations

from ingot import dtypes

FLOATS = dtypes.PRECISIONS  # computed in float32
SUMMED = (*FLOATS, dtypes.int8)  # what weights in panels are multiplied with
FINISHED = (*FLOATS, dtypes.int8, dtypes.uint8)  # what an epilogue may end in
FLOAT32 = (dtypes.float32,)
NUMBERS = (*FLOATS, *dtypes.INTEGERS, dtypes.bool_)
STORED = (*NUMBERS, dtypes.float64)
INDICES = (dtypes.int32, dtypes.int64)
INT32 = (dtypes.int32,)
