"""Every op on every case that it promises, and on random ones."""
from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingot import ops
from ingot.ir import OPS, Case, Op
from tests.ops.check import check_case
from tests.ops.draw import Draw

CASES = [(cls, case) for _, cls in sorted(OPS.items()) for case in cls.cases]
DRAWN = [cls for _, cls in sorted(OPS.items()) if cls.draw is not None]


@pytest.mark.sampled(4, by=lambda given: given["cls"])
@pytest.mark.parametrize(("cls", "case"), CASES, ids=[f"{cls.name}-{case.why}" for cls, case in CASES])
def test_case(cls: type[Op], case: Case) -> None:
    check_case(cls, case)


@pytest.mark.parametrize("cls", DRAWN, ids=[cls.name for cls in DRAWN])
@settings(max_examples=max(25, settings.default.max_examples // 4))
@given(data=st.data())
def test_random(cls: type[Op], data: st.DataObject) -> None:
    check_case(cls, cls.draw(Draw(data)), seed=data.draw(st.integers(0, 9)))


@pytest.mark.parametrize("cls", list(OPS.values()), ids=list(OPS))
def test_declaration(cls: type[Op]) -> None:
    """Every op says what it is, and promises something, each promise for a reason of its own."""
    assert cls.__doc__
    assert any(case.error is None for case in cls.cases)
    assert len({case.why for case in cls.cases}) == len(cls.cases), "two cases give the same reason"
    assert type(cls).__name__ == "type" and OPS[cls.name] is cls


def test_table_has_a_row_per_op() -> None:
    rows = ops.table()
    assert [row["op"] for row in rows] == sorted(OPS)
    assert all(row["cases"] and row["doc"] for row in rows)


def test_every_op_is_a_function_of_the_package() -> None:
    assert [name for name in OPS if not callable(getattr(ops, name))] == []
    with pytest.raises(AttributeError, match="there is no op 'softmaxx'"):
        ops.softmaxx  # noqa: B018
