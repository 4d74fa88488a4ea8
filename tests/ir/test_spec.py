"""Specs at their limits, and the rules that shapes and axes share."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest

from ingot import dtypes
from ingot.dims import Dim
from ingot.errors import DTypeError, IngotError, OpError
from ingot.ir import Spec, StateSpec
from ingot.ir.spec import axes_of, axis_of, broadcast, elements

T, S = Dim("T"), Dim("S")


def test_a_spec_is_its_shape_and_its_dtype() -> None:
    spec = Spec(("T", 8), "float32")
    assert spec == Spec(["T", 8]) == Spec([T, np.int64(8)], dtypes.float32)
    assert (str(spec), spec.rank, spec.elements, hash(spec)) == ("f32[T, 8]", 2, 8 * T, hash(Spec(("T", 8))))
    assert spec != Spec(("T", 8), "float16") and spec != Spec(("T", 9), "float32") and spec != "f32[T, 8]"
    assert (spec.like("int8"), spec.like(shape=())) == (Spec(("T", 8), "int8"), Spec((), "float32"))
    assert spec.evaluate({"T": 3}) == (3, 8) and pickle.loads(pickle.dumps(spec)) == spec
    assert Spec.of(np.zeros((2, 3), np.int8)) == Spec((2, 3), "int8")
    with pytest.raises(AttributeError, match="immutable"):
        spec.shape = ()


def test_the_limits_of_a_shape() -> None:
    for shape in ((1,) * 16, (2**62,), (2**31, 2**31), (0, 2**62), (T, 2**62), (0,)):
        Spec(shape, "int8")
    for bad in ((1,) * 17, (2**62 + 1,), (2**31, 2**31, 2), (-1,), (T, -1), (1.5,)):
        with pytest.raises(IngotError):
            Spec(bad, "int8")
    for words in (("float32", ("N", 8)), ("float32",), (dtypes.int8, ()), ((), ("N", 8)), ((), None)):
        with pytest.raises(OpError, match=r'takes its shape first, Spec\(\("N", 8\), "float32"\)'):
            Spec(*words)
    with pytest.raises(DTypeError):
        Spec((), "float7")


def test_the_limits_of_a_state() -> None:
    state = StateSpec("bf16", heads=1, head_dim=2**31 - 1)
    assert state == StateSpec("bfloat16", "kv_cache", heads=1, head_dim=2**31 - 1) and hash(state) == hash(state)
    assert str(StateSpec("f32", heads=2, head_dim=8)) == "state kv_cache<f32, heads=2, head_dim=8>"
    assert state != StateSpec("bf16", heads=2, head_dim=2**31 - 1) != StateSpec("f32", heads=2, head_dim=2**31 - 1)
    for words in (
        {"heads": 0}, {"heads": True}, {"heads": 1.0}, {"head_dim": 2**31}, {"head_dim": -1}, {"type": "rnn"},
    ):  # fmt: skip
        with pytest.raises(OpError):
            StateSpec("bf16", **{"heads": 1, "head_dim": 8, **words})
    with pytest.raises(AttributeError, match="immutable"):
        state.heads = 2


@pytest.mark.parametrize(
    ("shapes", "wanted"),
    [
        ([(2, 3)], (2, 3)), ([(T, 3), (T, 3)], (T, 3)), ([(T, 3), (3,)], (T, 3)), ([(3,), (T, 1)], (T, 3)),
        ([(1, 3), (T, 1)], (T, 3)), ([(), (T, 3)], (T, 3)), ([(1,), (0,)], (0,)), ([(2, 1, 3), (4, 1), ()], (2, 4, 3)),
        ([(T, 1), (1, S)], (T, S)), ([(1, 1), (1,)], (1, 1)),
        ([(2,), (3,)], None), ([(T,), (S,)], None), ([(T,), (3,)], None), ([(2, 3), (2,)], None), ([(0,), (2,)], None),
    ],
)  # fmt: skip
def test_broadcasting(shapes: list[Any], wanted: Any) -> None:
    if wanted is None:
        with pytest.raises(OpError, match="do not broadcast"):
            broadcast(*shapes)
    else:
        assert broadcast(*shapes) == broadcast(*reversed(shapes)) == wanted


def test_axes() -> None:
    assert [axis_of(a, 3) for a in (-3, -1, 0, 2)] == [0, 2, 0, 2]
    for axis, rank, words in ((3, 3, "axis 3 .* -3..2"), (-4, 3, "axis -4"), (0, 0, "a scalar"), (-1, 0, "a scalar")):
        with pytest.raises(OpError, match=words):
            axis_of(axis, rank)
    assert [axes_of(a, 3) for a in (None, (), (2, 0), (-1, 0), [1])] == [(0, 1, 2), (), (0, 2), (0, 2), (1,)]
    for axes in ((0, 0), (0, -3), (3,)):
        with pytest.raises(OpError):
            axes_of(axes, 3)
    assert (elements(()), elements((2, 3)), elements((0, T)), elements((2, T, 3))) == (1, 6, 0, 6 * T)
