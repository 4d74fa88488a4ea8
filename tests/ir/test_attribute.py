"""What each kind of attribute accepts, what it stores, how it crosses JSON, and what it refuses on either way."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from ingot import dtypes
from ingot.dims import MAX_VALUE, Dim
from ingot.ir.attribute import KINDS, AttributeRefused, accept, from_json, kind_of

NAN, INF = math.nan, math.inf
T = Dim("T")


def nested(depth: int, kind: Any) -> Any:
    found = kind([1])
    for _ in range(depth):
        found = kind([found])
    return found


# Of each kind: what is given, what is stored, its JSON.
TAKEN: list[tuple[str, Any, Any, Any]] = [
    ("int", 5, 5, 5), ("int", np.int8(5), 5, 5), ("int", MAX_VALUE, MAX_VALUE, MAX_VALUE),
    ("int", -MAX_VALUE, -MAX_VALUE, -MAX_VALUE), ("float", 2, 2.0, 2.0), ("float", 0.5, 0.5, 0.5),
    ("float", INF, INF, "inf"), ("float", -INF, -INF, "-inf"), ("float", NAN, NAN, "nan"), ("bool", True, True, True),
    ("str", "silu", "silu", "silu"), ("str", "", "", ""), ("DType", "bf16", dtypes.bfloat16, "bfloat16"),
    ("DType", np.int32, dtypes.int32, "int32"), ("Dimension", "T", T, "T"), ("Dimension", 7, 7, 7),
    ("Dimension", 2 * T, 2 * T, ["*", 2, "T"]), ("Shape", ["T", 3], (T, 3), ["T", 3]), ("Shape", (), (), []),
    ("tuple[int, ...]", [1, np.int64(2)], (1, 2), [1, 2]), ("tuple[int, ...]", (), (), []),
    ("tuple[float, ...]", (1, INF), (1.0, INF), [1.0, "inf"]),
    ("tuple", (1, [2.5, (None, "x", True)]), (1, (2.5, (None, "x", True))), [1, [2.5, [None, "x", True]]]),
    ("tuple", (INF, -INF), (INF, -INF), [{"float": "inf"}, {"float": "-inf"}]),
    ("tuple", nested(16, tuple), nested(16, tuple), nested(16, list)),
    ("int | None", None, None, None), ("int | None", 3, 3, 3), ("float | None", INF, INF, "inf"),
    ("Shape | None", None, None, None), ("Shape | None", ("T",), (T,), ["T"]),
]  # fmt: skip
REFUSED: list[tuple[str, Any]] = [
    ("int", True), ("int", 1.0), ("int", "1"), ("int", MAX_VALUE + 1), ("int", -MAX_VALUE - 1), ("int", None),
    ("float", True), ("float", "1"), ("float", b"1"), ("float", None), ("float", 10**400), ("bool", 1), ("bool", None),
    ("str", 1), ("str", b"x"), ("DType", "float7"), ("DType", 3), ("Dimension", 1.5), ("Dimension", "3x"),
    ("Shape", "T"), ("Shape", 3), ("Shape", [1.5]), ("tuple[int, ...]", [1.0]), ("tuple[int, ...]", 3),
    ("tuple[int, ...]", {1, 2}), ("tuple[float, ...]", ["x"]), ("tuple", {1}), ("tuple", ({},)), ("tuple", 3),
    ("tuple", nested(18, tuple)), ("int | None", "x"),
]  # fmt: skip
REFUSED_JSON: list[tuple[str, Any]] = [
    ("int", True), ("int", 1.0), ("int", None), ("float", True), ("float", "1"), ("float", "infinity"), ("float", None),
    ("bool", 0), ("str", 1), ("DType", 3), ("DType", "float7"), ("Dimension", 1.5), ("Dimension", ["?", 1, 2]),
    ("Shape", "T"), ("Shape", ("T",)), ("Shape", {"T": 1}), ("tuple[int, ...]", [True]), ("tuple[int, ...]", (1,)),
    ("tuple[float, ...]", ["x"]), ("tuple", (1,)), ("tuple", [{"float": "1"}]), ("tuple", [{"double": "inf"}]),
    ("tuple", [{"float": "inf", "x": 1}]), ("tuple", [{}]), ("tuple", nested(18, list)), ("tuple", [(1,)]),
    ("int | None", "x"),
]  # fmt: skip


def same(a: Any, b: Any) -> bool:
    return repr(a) == repr(b) and type(a) is type(b)  # NaN too


@pytest.mark.parametrize(("kind", "given", "stored", "written"), TAKEN, ids=lambda v: str(v)[:20])
def test_what_is_taken(kind: str, given: Any, stored: Any, written: Any) -> None:
    found = accept(kind_of(kind), given, "op", "name")
    assert same(found, stored)
    data = json.loads(json.dumps(kind_of(kind).to_json(found), allow_nan=False))
    assert same(data, written)
    assert same(from_json(kind_of(kind), data, "op", "name"), stored)


@pytest.mark.parametrize(("kind", "given"), REFUSED, ids=lambda v: str(v)[:20])
def test_what_is_refused(kind: str, given: Any) -> None:
    with pytest.raises(AttributeRefused, match=f"attribute n must be {kind_of(kind).wanted}"):
        accept(kind_of(kind), given, "op", "n")


@pytest.mark.parametrize(("kind", "given"), REFUSED_JSON, ids=lambda v: str(v)[:20])
def test_what_a_file_may_not_say(kind: str, given: Any) -> None:
    with pytest.raises(AttributeRefused, match="attribute n must be "):
        from_json(kind_of(kind), given, "op", "n")


def test_which_kinds_hold_dims() -> None:
    assert {name for name, kind in KINDS.items() if kind.symbolic} == {"Dimension", "Shape"}
    assert kind_of("Shape | None").symbolic and not kind_of("int | None").symbolic
    assert {kind for kind, *_ in TAKEN} >= KINDS.keys() - {"Network", "Op"}  # these are read by op_from_json
