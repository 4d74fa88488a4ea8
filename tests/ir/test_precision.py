"""Precision scopes, and that no element type changes but by a cast."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ingot
from ingot import dtypes, nn, ops
from ingot import functional as fn
from ingot.builder.network import build_network
from ingot.errors import OpError, UserError
from ingot.ir import F, Network, Op, Spec
from ingot.ir.op import OPS, infer
from ingot.ir.precision import precision, scope, unscoped

LARGE = np.full((2, 4), 300, np.float16)  # whose square no float16 holds


def inputs(*dtypes_: str) -> tuple[Network, list[Any]]:
    net = Network("scope")
    return net, [net.input(f"x{i}", Spec((2, 4), dtype)) for i, dtype in enumerate(dtypes_)]


def names(net: Network) -> list[str]:
    return [node.op.name for node in net.nodes]


def test_ops_inside_compute_in_the_scopes_type() -> None:
    net, (x,) = inputs("float16")
    with ingot.precision("float32"):
        square = x * x
        assert square.dtype is dtypes.float32
        y = fn.sqrt(square * 2.0)
    assert y.dtype is dtypes.float32 and names(net) == ["cast", "cast", "mul", "mul", "sqrt"]
    with pytest.raises(OpError, match="a is float32 and b is float16: nothing is promoted silently"):
        y + x
    net.outputs = {"y": fn.cast(y, "float16")}
    engine = build_network(net, {})
    np.testing.assert_array_equal(engine.run({"x0": LARGE})["y"], np.sqrt(2 * 300.0**2).astype(np.float16))


def test_scopes_nest_and_end() -> None:
    _, (x,) = inputs("float32")
    with ingot.precision("float16"):
        with ingot.precision("bfloat16"):
            inner = fn.relu(x)
        outer = fn.relu(inner)
    with pytest.raises(ZeroDivisionError), ingot.precision("float16"):
        raise ZeroDivisionError
    after = [value.dtype.name for value in (inner, outer, fn.relu(x))]
    assert after == ["bfloat16", "float16", "float32"]


def test_a_rewrite_inside_a_scope_is_outside_of_it_and_goes_back() -> None:
    with precision("bfloat16"):
        with unscoped():
            assert scope() is None
        assert scope() is not None
    assert scope() is None


def test_what_moves_elements_leaves_their_type() -> None:
    """A view, a lookup and an order of one tensor; two tensors of different types meet in the scope's."""
    net, (x, y) = inputs("float16", "bfloat16")
    with ingot.precision("float32"):
        for moved in (fn.view(x, (8,)), fn.transpose(x, 0, 1), fn.sort(x)[0], fn.embedding(np.array([1]), x)):
            assert moved.dtype is dtypes.float16
        assert "cast" not in names(net)
        assert fn.concat([x, y], 0).dtype is dtypes.float32
        assert fn.where(np.ones((2, 4), bool), x, 0.0).dtype is dtypes.float16
        assert fn.cast(x, "bfloat16").dtype is dtypes.bfloat16
        assert fn.cast(x, "int8", 0.5).dtype is dtypes.int8


def test_other_types_stay_what_they_are() -> None:
    net = Network("scope")
    whole, flags = net.input("i", Spec((3,), "int32")), net.input("b", Spec((3,), "bool"))
    with ingot.precision("float16"):
        assert (whole + whole).dtype is dtypes.int32 and ops.logical_not(flags).dtype is dtypes.bool_
    assert "cast" not in names(net)


def test_arrays_compute_in_the_scope_too() -> None:
    with ingot.precision("float32"):
        found = ops.mul(LARGE, LARGE)
    assert found.dtype == np.float32 and (found == 90000).all()


def test_a_cache_keeps_its_type() -> None:
    """An op on a state takes its operands as they are."""
    case = next(case for case in OPS["kv_write"].cases if not case.error)
    net = Network("cache")
    values = [net.input(f"x{i}", s) if isinstance(s, Spec) else net.state(f"x{i}", s) for i, s in enumerate(case.specs)]
    with ingot.precision("float16"):
        F.kv_write(*values, **case.attrs)
    assert names(net) == ["kv_write"]


class Scoped(nn.Module):
    """A linear layer, and a square in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, bias=False)

    def forward(self, x: Any) -> Any:
        y = self.layer(x)
        with ingot.precision("float32"):
            return fn.sqrt(y * y)


@pytest.mark.parametrize("cast", [False, True])
def test_a_scope_survives_a_build_in_another_precision(cast: bool) -> None:
    """What is float32 in a Module of float32 stays float32 in an engine of float16, by a scope or an explicit cast."""
    net = Scoped()
    if cast:
        net.forward = lambda x: fn.sqrt(fn.mul(*[fn.cast(net.layer(x), "float32")] * 2))  # type: ignore[method-assign]
    net.layer.weight.value = np.eye(4, dtype=np.float32)
    engine = ingot.build(net, {"x": Spec((2, 4), "float32")}, precision="float16", report=False)
    (found,) = engine.run({"x": LARGE.astype(np.float32)}).values()
    np.testing.assert_array_equal(found, LARGE.astype(np.float32))


def test_a_build_has_a_precision_of_its_own() -> None:
    with ingot.precision("float32"), pytest.raises(UserError, match="inside of a precision scope"):
        ingot.build(Scoped(), {"x": Spec((2, 4), "float32")}, weights_from="random")


@pytest.mark.parametrize(("dtype", "error"), [("int8", "int8 is none of float32, bfloat16"), ("float64", "none of")])
def test_scopes_of_other_types_are_refused(dtype: str, error: str) -> None:
    with pytest.raises(OpError, match=error), ingot.precision(dtype):
        pass


# ------------------------------------------------------------------------------------------------- strong typing

KINDS = ("float32", "bfloat16", "float16", "float64", "int8", "int32", "int64", "bool")
# Ops that take operands of two types by their meaning: the places of the operands that may have another one.
MIXED = {
    "grid_sample": {0},  # x at places of float32
    "rope": {0},  # x by a table of float32
    "quantize": {0},  # x by scales of float32
    "scaled_dot_product_attention": {3},  # a mask of bool or float32
    "selective_scan": {2, 5, 6},  # a, skip and h0 may be float32 beside narrower floats
    # Made by passes, with the casts inside:
    "fused_elementwise": {0, 1, 2, 3}, "lowered": set(range(8)), "rope_kv_write": {0},
}  # fmt: skip


def mixtures(cls: type[Op]) -> set[int]:
    """The operands that an op takes in another type than another operand of the same type in one of its cases."""
    found = set()
    for case in cls.cases:
        if case.error:
            continue
        op = cls(**case.attrs)
        specs = [(i, s) for i, s in enumerate(case.specs) if isinstance(s, Spec)]
        for i, spec in specs:
            if not any(j != i and other.dtype is spec.dtype for j, other in specs):
                continue
            for kind in KINDS:
                given = tuple(spec.like(dtype=kind) if j == i else s for j, s in enumerate(case.specs))
                if dtypes.get(kind) is not spec.dtype and _takes(op, given):
                    found.add(i)
    return found


def _takes(op: Op, specs: tuple[Any, ...]) -> bool:
    try:
        infer(op, specs, "a mixture")
    except OpError:
        return False
    return True


@pytest.mark.parametrize("name", sorted(OPS))
def test_no_op_takes_two_types_where_it_means_one(name: str) -> None:
    indices = {i for i, o in enumerate(OPS[name].operands) if o.name in ("index", "indices", "ids", "positions")}
    assert mixtures(OPS[name]) - indices <= MIXED.get(name, set())


@pytest.mark.parametrize(
    ("value", "dtype", "error"),
    [
        (2.5, "int32", "2.5 is not a int32"), (True, "int32", None), (2, "bool", "2 is not a bool"),
        (2**31, "int32", "is not a int32"), (-1, "uint8", "-1 is not a uint8"), (1, "float16", None),
        (70000.0, "float16", "70000.0 is beyond the largest float16"), (float("inf"), "float16", None),
        (1e39, "float32", "beyond the largest float32"), (-3.38e38, "bfloat16", None), (65519.0, "float16", None),
        (10**400, "float32", "beyond the largest float32"),
    ],
)  # fmt: skip
def test_python_numbers_take_a_tensors_type_or_are_refused(value: Any, dtype: str, error: str | None) -> None:
    x = np.ones(3, dtypes.get(dtype).numpy)
    if error is None:
        assert ops.where(np.ones(3, bool), x, value).dtype == x.dtype
    else:
        with pytest.raises(OpError, match=error):
            ops.where(np.ones(3, bool), x, value)
