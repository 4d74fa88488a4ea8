"""Element types: every numeric type of ONNX, each one object."""
from __future__ import annotations

import copy

import ml_dtypes
import numpy as np
import pytest

from ingot import dtypes
from ingot.errors import BY_CODE, DTypeError, IngotError, from_code

# TensorProto.DataType of ONNX 1.20 without STRING (8): FLOAT = 1 … INT2 = 26
ONNX_NUMERIC = {*range(1, 27)} - {8}


def test_every_onnx_type_is_there_once() -> None:
    assert {d.onnx for d in dtypes.ALL} == ONNX_NUMERIC
    assert len({d.name for d in dtypes.ALL} | {d.short for d in dtypes.ALL}) == 2 * len(dtypes.ALL) - 1  # bool is bool


@pytest.mark.parametrize("dtype", dtypes.ALL, ids=repr)
def test_every_way_to_name_a_type(dtype: dtypes.DType) -> None:
    for like in (dtype, dtype.name, dtype.short, dtype.numpy, dtype.numpy.type):
        assert dtypes.get(like) is dtype
    assert copy.deepcopy(dtype) is dtype
    assert np.zeros(3, dtype.numpy).astype(dtype.numpy).dtype == dtype.numpy
    if dtype.safetensors:
        assert dtypes.from_safetensors(dtype.safetensors) is dtype


def test_unknown_types_are_type_errors() -> None:
    for like in ("float31", object(), "O", None, 3, np.dtype("U4"), "float"):
        with pytest.raises(DTypeError, match="is not an element type; known are float32"):
            dtypes.get(like)
    with pytest.raises(TypeError):
        dtypes.get("string")
    with pytest.raises(DTypeError, match="no safetensors element type"):
        dtypes.from_safetensors("Q4_0")


def test_widths() -> None:
    assert dtypes.get(ml_dtypes.int4).bits == 4
    assert dtypes.bfloat16.kind == "float" and dtypes.bool_.kind == "bool"


def test_error_codes_are_distinct_and_known() -> None:
    assert len(BY_CODE) == len(set(BY_CODE.values()))
    assert type(from_code("program", "x")) is BY_CODE["program"]
    assert type(from_code("never heard of", "x")) is IngotError

    def below(cls: type[IngotError]) -> set[type[IngotError]]:
        return {cls}.union(*map(below, cls.__subclasses__()))

    assert {cls for cls in below(IngotError) if cls.__module__ == "ingot.errors"} == set(BY_CODE.values())
