"""Ops of older files: upgraded, defaults in the place of what they lack, and typed errors for all else."""
from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from ingot import ops
from ingot.errors import EngineVersionError, IngotError, OpError
from ingot.ir import OPS, Network, Op, Spec, interpret, op
from ingot.ir.op import op_from_json
from ingot.ir.text import from_json, to_json
from ingot.ir.value import functions


@pytest.fixture(autouse=True)
def scaled() -> Iterator[type[Op]]:
    """An op that had one attribute at first, `factor`, and is of version 3 now."""

    @op("test_scaled")
    class Scaled(Op):
        """x · numerator / denominator + bias. Version 1: x · factor. Version 2: no bias, and a `divisor`."""

        numerator: float
        denominator: float = 1.0
        bias: float = 0.0
        within: Network | None = None
        version = 3

        @classmethod
        def upgrade(cls, version: int, attributes: dict[str, Any]) -> dict[str, Any]:
            if version == 1:
                attributes["numerator"] = attributes.pop("factor")
            if version == 2:
                attributes["denominator"] = attributes.pop("divisor") * 1.0
            return attributes

        def infer(self, x: Spec) -> Spec:
            return x

        def reference(self, x: Any) -> Any:
            return x * np.float32(self.numerator / self.denominator) + np.float32(self.bias)

    yield Scaled
    del OPS["test_scaled"], functions["test_scaled"]


def file_of(version: Any, attrs: Any) -> dict[str, Any]:
    """The JSON form of y = test_scaled(x), as an older or newer release wrote it."""
    net = Network("n")
    x = net.input("x", Spec((2,), "f32"))
    net.output("y", functions["test_scaled"](x, numerator=1.0))
    data = copy.deepcopy(to_json(net))
    data["nodes"][0].update(version=version, attrs=attrs)
    return data


def runs(version: int, attrs: dict[str, Any]) -> list[float]:
    net = from_json(file_of(version, attrs))
    return list(map(float, interpret(net, {"x": np.array([1, 2], np.float32)})["y"]))


def test_version_1_is_upgraded_and_what_it_lacks_has_its_default() -> None:
    assert runs(1, {"factor": 3.0}) == [3, 6]
    read = from_json(file_of(1, {"factor": 3.0})).nodes[0].op
    assert read.attrs() == {"numerator": 3.0, "denominator": 1.0, "bias": 0.0, "within": None}


def test_version_2_is_upgraded_by_its_own_rule() -> None:
    assert runs(2, {"numerator": 3.0, "divisor": 2.0}) == [1.5, 3]


def test_this_version_reads_back() -> None:
    assert runs(3, {"numerator": 3.0, "denominator": 2.0, "bias": 1.0, "within": None}) == [2.5, 4]
    assert runs(3, {"numerator": 3.0}) == [3, 6], "the default of an attribute is what a file without it means"


def test_what_was_read_is_written_as_the_newest_version() -> None:
    data = file_of(1, {"factor": 3.0})
    kept = copy.deepcopy(data)
    node = to_json(from_json(data))["nodes"][0]
    assert node["version"] == 3
    assert node["attrs"] == {"numerator": 3.0, "denominator": 1.0, "bias": 0.0, "within": None}
    assert data == kept, "reading leaves the header as it is"


def test_networks_among_attributes_are_read_after_the_upgrade() -> None:
    inner = file_of(1, {"factor": 5.0})
    outer = from_json(file_of(1, {"factor": 3.0, "within": inner})).nodes[0].op
    assert isinstance(outer.attrs()["within"], Network)
    assert outer.attrs()["within"].nodes[0].op.attrs()["numerator"] == 5.0


@pytest.mark.parametrize(("version", "attrs", "error", "message"), [
    (4, {}, EngineVersionError, "node 0 of network n: test_scaled is of version 4; this ingot knows versions up to 3"),
    (2**62, {}, EngineVersionError, "version 4611686018427387904"),
    (0, {}, OpError, "a version is a number from 1 on, not 0"),
    (-1, {}, OpError, "not -1"),
    (1, {}, OpError, "test_scaled: its attributes are none of version 1: 'factor'"),
    (1, {"numerator": 3.0}, OpError, "none of version 1"),
    (1, {"factor": 3.0, "path": "/etc/passwd"}, OpError, r"unknown \['path'\]"),
    (1, {"factor": "3"}, OpError, "attribute numerator must be a float, not '3'"),
    (2, {"numerator": 3.0, "divisor": None}, OpError, "none of version 2: unsupported operand"),
    (2, {"numerator": 3.0, "divisor": 2.0, "denominator": 2.0, "factor": 1.0}, OpError, r"unknown \['factor'\]"),
    (3, {"factor": 3.0}, OpError, r"missing \['numerator'\], unknown \['factor'\]"),
    (3, {"numerator": 3.0, **{f"a{i}": 0 for i in range(10**4)}}, OpError, r"unknown \['a0', .*\.\.\.\]$"),
    (3, {"numerator": 3.0, "within": 7}, IngotError, "a network has the keys"),
])  # fmt: skip
def test_what_is_no_older_file_is_a_typed_error(version: int, attrs: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message) as caught:
        from_json(file_of(version, attrs))
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize("version", ["1", 1.0, True, None, [1], {}])
def test_a_version_is_an_int(version: Any) -> None:
    with pytest.raises(IngotError, match="version"):
        from_json(file_of(version, {"factor": 3.0}))
    with pytest.raises(OpError, match="a version is a number from 1 on"):
        op_from_json("test_scaled", version, {"factor": 3.0}, "here", from_json)


@pytest.mark.parametrize("attrs", [None, [], "x", 3])
def test_attributes_are_an_object(attrs: Any) -> None:
    with pytest.raises(OpError, match="its attributes are an object"):
        op_from_json("test_scaled", 1, attrs, "here", from_json)


def test_a_cast_of_version_1_may_have_quantised() -> None:
    with pytest.raises(OpError, match="here: cast: its attributes are none of version 1: it quantised as well"):
        op_from_json("cast", 1, {"dtype": "int8"}, "here", from_json)


def test_rms_norm_of_version_1_has_no_shift() -> None:
    net = Network("n")
    x, w = net.input("x", Spec((2, 8), "f32")), net.input("w", Spec((8,), "f32"))
    net.output("y", ops.rms_norm(x, w, eps=1e-5))
    data = to_json(net)
    data["nodes"][0].update(version=1, attrs={"eps": 1e-5})
    assert to_json(from_json(data)) == to_json(net)


@pytest.mark.parametrize(
    "inner", [3, "relu", None, [], {}, {"op": "relu"}, {"op": "relu", "version": 1, "attrs": {}, "x": 1}]
)
def test_an_op_inside_another_is_whole(inner: Any) -> None:
    attrs = {"inner": inner, "layouts": [["plain"]], "epilogue": None}
    with pytest.raises(OpError, match="attribute inner must be an op, not"):
        op_from_json("lowered", OPS["lowered"].version, attrs, "node 0", lambda value: value)
