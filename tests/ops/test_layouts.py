"""Ops with stored operands: what their layouts hold, what of them is refused, and which kernels read them."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from ingot.backends.cpu import CPU
from ingot.backends.kernel import KernelCall, Refusal
from ingot.errors import EngineVersionError, IngotError, OpError
from ingot.ir import F, Network, Spec
from ingot.ir.op import op_from_json
from ingot.ir.text import parse, to_json
from ingot.ops.fused import IDENTITY
from ingot.ops.layouts import LAYOUTS, LaidOut

LAID: Any = LaidOut
PANELS = (("plain", (0,)), ("panels", (1,), 40, 6))


def linear() -> Any:
    return F.fused_linear.op(body=IDENTITY, dtype="float32")


def network(layouts: Any = PANELS, weight: tuple[int, ...] = (2, 6, 32)) -> Network:
    net = Network("one")
    operands = (net.input("x", Spec("float32", (3, 6))), net.parameter("w", Spec("float32", weight)))
    net.outputs["y"] = net.emit(LAID(inner=linear(), layouts=layouts), operands)
    return net


@pytest.mark.parametrize(("name", "count", "sizes"), [
    ("panels", 1, (40, 6)), ("panels", 2, (5, 7)), ("panels of groups", 1, (12, 5, 3)),
    ("panels of groups", 1, (66, 4, 2)), ("panels of experts", 6, (33, 5, 3)), ("panels of experts", 3, (5, 40, 3)),
])  # fmt: skip
def test_a_layout_holds_its_arrays(name: str, count: int, sizes: tuple[int, ...]) -> None:
    """Bit for bit, in their order, in an array of the shape that it says."""
    rng = np.random.default_rng(0)
    weights = [rng.standard_normal(sizes[:2]).astype(np.float32) for _ in range(count)]
    stored = LAYOUTS[name].pack(weights, *sizes)
    assert stored.shape == LAYOUTS[name].shape(Spec.of(stored).dtype, count, *sizes)
    for found, wanted in zip(LAYOUTS[name].unpack(stored, count, *sizes), weights, strict=True):
        np.testing.assert_array_equal(found, wanted)


GOOD = {"inner": {"op": "fused_linear", "version": 1, "attrs": {
    "body": [[["input", "float32", 0]], [0]], "dtype": "float32", "parts": 1, "group": 0}},
    "layouts": [["plain", [0]], ["panels", [1], 40, 6]]}  # fmt: skip


def changed(**inner: Any) -> dict[str, Any]:
    found = copy.deepcopy(GOOD)
    found["inner"] |= inner
    return found


@pytest.mark.parametrize(("attrs", "message"), [
    ({**GOOD, "inner": 3}, "attribute inner must be an op, not 3"),
    ({**GOOD, "inner": {"op": "relu"}}, "attribute inner must be an op"),
    (changed(more=1), "attribute inner must be an op"),
    (changed(op="no_such"), "the file: inner: there is no op 'no_such'"),
    (changed(op=["relu"]), "there is no op"),
    (changed(attrs={**GOOD["inner"]["attrs"], "wide": 1}), "wide"),  # type: ignore[index]
    (changed(attrs={"body": 3}), "inner"),
])  # fmt: skip
def test_an_inner_op_of_a_file_that_is_none(attrs: Any, message: str) -> None:
    with pytest.raises(OpError, match=message):
        op_from_json("laid_out", 1, attrs, "the file", lambda data: data)


def test_a_good_one_is_read_and_a_newer_one_says_so() -> None:
    assert op_from_json("laid_out", 1, GOOD, "the file", lambda data: data) == LAID(inner=linear(), layouts=PANELS)
    with pytest.raises(EngineVersionError, match="the file: inner: fused_linear is of version 9"):
        op_from_json("laid_out", 1, changed(version=9), "the file", lambda data: data)


@pytest.mark.parametrize("inner", [F.relu.op(), LAID(inner=F.relu.op(), layouts=())])
def test_only_ops_with_layouts_are_inside(inner: Any) -> None:
    with pytest.raises(OpError, match=f"{inner.name} has no operands in a layout"):
        LAID(inner=inner, layouts=(("plain", (0,)),)).infer(Spec("float32", (3,)))


@pytest.mark.parametrize("layouts", [
    3 * (("plain", (0,)),), ((), ()), ("plain", (0,)), (("plain", 0),), (("plain", (0, 1)),), (("plain", (0,), 3),),
    (("plain", (0,)), ("panels", (1,), 40.0, 6)), (("plain", (0,)), ("panels", (), 40, 6)),
    (("plain", (0,)), ("panels", (1,), 40, -6)), (("plain", (0,)), ("panels", (2,), 40, 6)),
    (("plain", (0,)), (3, (1,))),
    (("plain", (0,)), ("panels of experts", (1,), 40, 6, 2)), (("plain", (0,)), ("panels of groups", (1,), 40, 6, 0)),
])  # fmt: skip
def test_layouts_that_are_none(layouts: Any) -> None:
    with pytest.raises(OpError):
        network(layouts)


def test_text_says_the_inner_op() -> None:
    net = network()
    text = str(net)
    assert "laid_out(%x, %w) {inner=fused_linear(body=" in text and str(parse(text)) == text
    assert to_json(parse(text)) == to_json(net)
    for wrong in ("inner=no_such(", "inner=(", "inner=fused_linear(wide=3, "):
        with pytest.raises(IngotError):
            parse(text.replace("inner=fused_linear(", wrong))


def test_a_kernel_declines_another_layout() -> None:
    """A plain weight, and panels of the wrong kind."""
    (node,) = network().nodes
    choice = CPU.choose(node)
    assert isinstance(choice, KernelCall)
    assert (choice.kernel, choice.params["n"], choice.params["k"]) == ("matmul_packed", 40, 6)
    (other,) = network((("plain", (0,)), ("panels of groups", (1,), 40, 6, 1))).nodes
    assert CPU.choose(other) == Refusal(
        "matmul_packed: its weight is read in panels, not panels of groups"
    )
    plain = Network("plain")
    x, w = plain.input("x", Spec("float32", (3, 6))), plain.input("w", Spec("float32", (4, 6)))
    F.fused_linear(x, w, body=IDENTITY, dtype="float32")
    assert CPU.choose(plain.nodes[-1]) == Refusal("matmul_packed: its weight is not in panels")
