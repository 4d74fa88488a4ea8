"""The table of what is covered, against what ops declare of their cases and what engines do."""

from __future__ import annotations

import pytest

from ingot import dtypes
from ingot.builder import coverage
from ingot.ir import OPS, Op, Spec


@pytest.mark.parametrize("cls", OPS.values(), ids=OPS)
def test_it_says_what_the_cases_declare(cls: type[Op]) -> None:
    """In the type of an op's cases the CPU runs it as these say (tests/engine/test_ops_run.py holds them to it)."""
    for kind in (dtypes.float32, dtypes.int32, dtypes.bool_):
        taken = list(coverage.cases_of(cls, kind))
        own = [case for case in cls.cases if case in taken]  # those that are of this type anyway
        if not own or len(own) < len(taken):
            continue
        declared = {coverage.HOST if (cls.host if c.host is None else c.host) else coverage.NATIVE for c in own}
        expected = coverage.SOME if len(declared) > 1 else declared.pop()
        assert coverage.on_cpu(cls, kind) == expected


def test_rows() -> None:
    rows = {row["op"]: row for row in coverage.coverage(["relu", "while_loop", "conv", "embedding", "lowered"])}
    assert list(rows) == ["conv", "embedding", "lowered", "relu", "while_loop"]
    assert rows["relu"]["cpu"]["bfloat16"] == "native" and "bool" not in rows["relu"]["cpu"]
    assert rows["relu"]["kernels"] == ["elementwise"] and rows["relu"]["importers"]["torch"] == ["relu.default"]
    assert rows["conv"]["cpu"]["float64"] == "host"
    assert {"conv2d.default", "conv2d.padding", "conv1d.default"} <= set(rows["conv"]["importers"]["torch"])
    assert "embedding.default" in rows["embedding"]["importers"]["torch"]
    assert rows["lowered"]["internal"] and rows["lowered"]["torch"] == "host"


def test_element_types_are_those_of_the_first_operand() -> None:
    """An index stays one when a lookup is asked about in another type."""
    (case,) = [c for c in coverage.cases_of(OPS["take"], dtypes.int8) if c.why == "the rows of logits"]
    assert [spec.dtype.name for spec in case.specs if isinstance(spec, Spec)] == ["int8", "int32"]


def test_one_type() -> None:
    (row,) = coverage.coverage(["einsum"], ("int8",))
    assert row["cpu"] == {}
    (row,) = coverage.coverage(["einsum"], ("int64",))
    assert row["cpu"] == {"int64": "native"}
