"""The lowered op: what its layouts hold, what of it is refused, which kernels run it, and what becomes of its text."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest

from ingot.backends.cpu import CPU
from ingot.backends.kernel import KernelCall, Refusal
from ingot.errors import EngineVersionError, IngotError, OpError
from ingot.ir import F, Network, Node, Op, Spec
from ingot.ir.op import op_from_json
from ingot.ir.text import parse, to_json
from ingot.ops.fused import IDENTITY, PLUS
from ingot.ops.layouts import LAYOUTS, entry
from ingot.ops.lowering import PRODUCT, Lowered, plain
from ingot.ops.spatial import at

LOWERED: Any = Lowered
X = ("plain", (0,))
PANELS = (X, ("panels", (1,), 40, 6))


def network(layouts: Any = PANELS, weight: tuple[int, ...] = (2, 6, 32), inner: Op = PRODUCT) -> Network:
    net = Network("one")
    operands = (net.input("x", Spec((3, 6), "float32")), net.parameter("w", Spec(weight, "float32")))
    net.outputs["y"] = net.emit(LOWERED(inner=inner, layouts=layouts, epilogue=IDENTITY, dtype="float32"), operands)
    return net


def conv(rank: int, groups: int = 1) -> Op:
    return F.conv.op(**at(rank, pre=1), groups=groups, channels_last=True)  # type: ignore[no-any-return]


def up(rank: int, stride: Any, groups: int = 1) -> Op:
    return F.conv_transpose.op(**at(rank, stride=stride, pre=1), groups=groups, channels_last=True)  # type: ignore[no-any-return]


MOE: Op = F.moe.op(top_k=1)
HELD: list[tuple[str, Op, int, tuple[int, ...]]] = [
    ("panels", PRODUCT, 1, (40, 6)), ("panels", PRODUCT, 2, (5, 7)),
    ("panels of experts", MOE, 6, (33, 5, 3)), ("panels of experts", MOE, 3, (5, 40, 3)),
    ("panels of groups", conv(1, 3), 1, (12, 5, 2)), ("panels of groups", conv(2, 2), 1, (66, 4, 2, 3)),
    ("panels of groups", conv(3), 1, (5, 2, 1, 2, 3)), ("taps", conv(2, 7), 1, (7, 1, 3, 2)),
    ("phases", up(1, 2), 1, (3, 5, 3)), ("phases", up(2, (2, 3), 2), 1, (6, 33, 4, 2)),
    ("phases", up(1, 5), 1, (2, 3, 2)), ("phases", up(3, (1, 2, 1)), 1, (2, 2, 1, 3, 2)),
]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize(("name", "op", "count", "sizes"), HELD, ids=[f"{n} {s}" for n, _, _, s in HELD])
def test_a_layout_holds_its_operands(name: str, op: Op, count: int, sizes: tuple[int, ...], dtype: str) -> None:
    """Bit for bit, in their order, in arrays of the shapes that it says."""
    rng = np.random.default_rng(0)
    form = entry(op, (name, tuple(range(1, 1 + count)), *sizes))
    shape = sizes[: LAYOUTS[name].rank]
    kind = Spec((), dtype).dtype.numpy
    operands = [rng.standard_normal(shape).astype(kind) for _ in range(count)]
    stored = form.pack(operands)
    assert len(stored) == form.arrays
    assert form.specs([Spec.of(a) for a in stored]) == [Spec(shape, dtype)] * count
    for found, wanted in zip(form.unpack(stored), operands, strict=True):
        assert found.dtype == wanted.dtype and found.shape == wanted.shape
        np.testing.assert_array_equal(found.astype(np.float32), wanted.astype(np.float32))


INNER = {"op": "matmul", "version": 1, "attrs": {"transpose_a": False, "transpose_b": True, "out_dtype": None}}
GOOD = {
    "inner": INNER, "layouts": [["plain", [0]], ["panels", [1], 40, 6]],
    "epilogue": [[["input", "float32", 0]], [0]], "dtype": "float32", "parts": 1, "group": 0,
}  # fmt: skip


def changed(**inner: Any) -> dict[str, Any]:
    found = copy.deepcopy(GOOD)
    found["inner"] |= inner  # type: ignore[operator]
    return found


@pytest.mark.parametrize(("attrs", "message"), [
    ({**GOOD, "inner": 3}, "attribute inner must be an op, not 3"),
    ({**GOOD, "inner": {"op": "relu"}}, "attribute inner must be an op"),
    (changed(more=1), "attribute inner must be an op"),
    (changed(op="no_such"), "the file: inner: there is no op 'no_such'"),
    (changed(op=["relu"]), "there is no op"),
    (changed(attrs={**INNER["attrs"], "wide": 1}), "wide"),  # type: ignore[dict-item]
    (changed(attrs={"transpose_a": 3}), "inner"),
    ({**GOOD, "epilogue": 3}, "attribute epilogue must be nested tuples of numbers and strings or None"),
])  # fmt: skip
def test_an_inner_op_of_a_file_that_is_none(attrs: Any, message: str) -> None:
    with pytest.raises(OpError, match=message):
        op_from_json("lowered", 1, attrs, "the file", lambda data: data)


def test_a_good_one_is_read_and_a_newer_one_says_so() -> None:
    wanted = LOWERED(inner=PRODUCT, layouts=PANELS, epilogue=IDENTITY, dtype="float32")
    assert op_from_json("lowered", 1, GOOD, "the file", lambda data: data) == wanted
    with pytest.raises(EngineVersionError, match="the file: inner: matmul is of version 9"):
        op_from_json("lowered", 1, changed(version=9), "the file", lambda data: data)


@pytest.mark.parametrize("inner", [F.relu.op(), LOWERED(inner=F.relu.op(), layouts=())])
def test_only_ops_with_kernels_are_inside(inner: Any) -> None:
    with pytest.raises(OpError, match=f"{inner.name} has no lowered form"):
        LOWERED(inner=inner, layouts=(X,)).infer(Spec((3,), "float32"))


@pytest.mark.parametrize("layouts", [
    3 * (X,), (), ((), ()), ("plain", (0,)), (("plain", 0),), (("plain", (0, 1)),), (("plain", (0,), 3),),
    (X, ("panels", (1,), 40.0, 6)), (X, ("panels", (), 40, 6)), (X, ("panels", (1,), 40, -6)),
    (X, ("panels", (2,), 40, 6)), (X, (3, (1,))), (X, ("panels", (1, 2, 3), 40, 6)),
    (X, ("panels of experts", (1,), 40, 6, 2)), (X, ("panels of groups", (1,), 40, 6, 1)),
])  # fmt: skip
def test_layouts_that_are_none(layouts: Any) -> None:
    with pytest.raises(OpError):
        network(layouts)


IMAGE, FLAT = Spec((1, 5, 4), "float32"), Spec((1, 12, 32), "float32")


@pytest.mark.parametrize(("inner", "layout", "stored", "message"), [
    (conv(1, 3), ("panels of groups", (1,), 4, 4, 3), FLAT, "4 channels do not split into 3 groups"),
    (conv(1, 0), ("panels of groups", (1,), 4, 4, 3), FLAT, "4 channels do not split into 0 groups"),
    (conv(1), ("panels of groups", (1, 2), 4, 4, 3), FLAT, "holds 1 operand"),
    (conv(1), ("panels of groups", (1,), 4, 4), FLAT, "takes 3 or 4 or 5 sizes, not 2"),
    (conv(1), ("taps", (1,), 4, 4, 3), FLAT, "a group by itself"),
    (conv(1), ("phases", (1,), 4, 4, 3), FLAT, "conv has no operands in phases"),
    (up(1, 1), ("phases", (1,), 4, 4, 3, 3), FLAT, "stride needs one entry for each of the 2 spatial dimensions"),
    (up(1, 0), ("phases", (1,), 4, 4, 3), FLAT, "stride must be at least 1"),
    (up(1, 1), ("phases", (1,), 4, 4, 1 << 23), FLAT, "too large for phases"),
    (up(1, 1), ("phases", (1,), 1 << 40, 1 << 40, 3), FLAT, "too large"),
])  # fmt: skip
def test_layouts_of_convolutions_that_are_none(inner: Op, layout: Any, stored: Spec, message: str) -> None:
    with pytest.raises(OpError, match=message):
        LOWERED(inner=inner, layouts=(X, layout), epilogue=IDENTITY, dtype="float32").infer(IMAGE, stored)


@pytest.mark.parametrize(("attrs", "message"), [
    ({"dtype": None}, "belong together"), ({"epilogue": None}, "belong together"),
    ({"parts": 0}, "do not split into 0 parts"), ({"parts": 3}, "do not split into 3 parts"),
    ({"group": -8}, "a weight and its scales"), ({"dtype": "float64"}, "the result may be float32 or .*, not float64"),
    ({"epilogue": PLUS}, "the expression reads operand 1 of 1"),
    ({"epilogue": ((("input", "float64", 0),), (0,))}, "operand 0 is float32, whose class is float32, not float64"),
])  # fmt: skip
def test_epilogues_that_are_none(attrs: dict[str, Any], message: str) -> None:
    given = {"inner": PRODUCT, "layouts": PANELS, "epilogue": IDENTITY, "dtype": "float32", **attrs}
    with pytest.raises(OpError, match=message):
        LOWERED(**given).infer(Spec((3, 6), "float32"), Spec((2, 6, 32), "float32"))


def test_nothing_is_rounded_before_the_epilogue() -> None:
    """The sum of two results that bfloat16 does not tell apart."""
    net = Network("one")
    x, w = (net.input(name, Spec((2, 2), "bfloat16")) for name in "xw")
    steps = (("input", "float32", 0), ("const", "float32", -1.0), ("add", "float32", 0, 1))
    op = LOWERED(inner=PRODUCT, layouts=plain(2), epilogue=(steps, (2,)), dtype="float32")
    net.emit(op, (x, w))
    kind = Spec((), "bfloat16").dtype.numpy
    x_, w_ = np.array([[1, 2**-6], [1, 0]]).astype(kind), np.array([[1, 2**-6], [1, 0]]).astype(kind)
    np.testing.assert_array_equal(op.reference(x_, w_), np.array([[2**-12, 0], [0, 0]], np.float32))


def test_text_says_the_inner_op() -> None:
    net = network()
    text = str(net)
    assert "lowered(%x, %w) {inner=matmul(" in text and str(parse(text)) == text
    assert to_json(parse(text)) == to_json(net)
    for wrong in ("inner=no_such(", "inner=(", "inner=matmul(wide=3, "):
        with pytest.raises(IngotError):
            parse(text.replace("inner=matmul(", wrong))


def chosen(node: Node) -> Any:
    found = CPU.choose(node)
    return found.kernel if isinstance(found, KernelCall) else found.why


def test_which_kernel_runs_it() -> None:
    """By the op inside, its layouts, and whether an epilogue follows."""
    choice = CPU.choose(network().nodes[0])
    assert isinstance(choice, KernelCall)
    assert (choice.kernel, choice.params["n"], choice.params["k"]) == ("matmul_packed", 40, 6)
    assert chosen(network(plain(2), (5, 6)).nodes[0]) == (
        "matmul_packed: its weight is not in panels; matmul: it reads strides instead of transposing; "
        "matmul_float64: it reads strides instead of transposing; "
        "matmul_integer: it reads strides instead of transposing"
    )
    turned = network((X, ("panels", (1,), 6, 40)), (1, 40, 32), F.matmul.op()).nodes[0]
    assert "matmul_packed: its weight is [outputs, inputs]" in chosen(turned)
    untouched = network(plain(2), (6, 40), F.matmul.op()).nodes[0]
    assert chosen(untouched).endswith("matmul_float64: it has no epilogue; matmul_integer: it has no epilogue")
    plain_one = Network("plain")
    F.matmul(plain_one.input("x", Spec((3, 6), "float32")), plain_one.input("w", Spec((6, 4), "float32")))
    assert chosen(plain_one.nodes[0]) == "matmul"


@pytest.mark.parametrize(("groups", "layout", "stored", "kernel"), [
    (4, ("taps", (1,), 4, 1, 3), (3, 4), "conv_depthwise"),
    (4, ("panels of groups", (1,), 4, 1, 3), (4, 3, 32), "conv_packed"),
    (4, ("taps", (1,), 8, 1, 3), (3, 8), "conv_packed: its weight is read in panels of groups, not taps; "
                                         "conv_depthwise: every channel has one output"),
    (1, ("plain", (1,)), (4, 4, 3), "conv_packed: its weight is not in panels, or its channels are not last; "
                                    "conv_depthwise: its weight is not in taps, or its channels are not last"),
])  # fmt: skip
def test_which_kernel_runs_a_convolution(groups: int, layout: Any, stored: tuple[int, ...], kernel: str) -> None:
    net = Network("one")
    op = LOWERED(inner=conv(1, groups), layouts=(X, layout), epilogue=IDENTITY, dtype="float32")
    net.emit(op, (net.input("x", IMAGE), net.parameter("w", Spec(stored, "float32"))))
    assert chosen(net.nodes[0]) == kernel
    assert isinstance(CPU.choose(net.nodes[0]), KernelCall if " " not in kernel else Refusal)
