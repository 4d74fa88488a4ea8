"""Networks in files: the text and JSON forms read back, and whatever else is a typed error."""
from __future__ import annotations

import contextlib
import copy
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot import dtypes, ops
from ingot.errors import IngotError, NetworkError
from ingot.ir import Network, Spec, interpret, verify
from ingot.ir.printer import _numbers, quote
from ingot.ir.text import from_json, parse, parse_spec, to_json
from tests.ir.test_verify import sound


def rich() -> Network:
    """Every kind of value and attribute, odd names, big and small constants of all types."""
    net = sound()
    x = net.inputs[0]
    odd = net.parameter('odd "name", of {x} @ %1', Spec((3, 4), "bf16"))
    with net.scope('blocks[0].weird "path" {@}'):
        net.output("cast = odd?", ops.cast(odd, "float32"))
    net.output("clipped", ops.clip(x, float("-inf"), 1e30))
    for dtype in dtypes.ALL:
        net.constant(np.array([[1, 0], [1, 1]]).astype(dtype.numpy))
    net.constant(np.array([np.nan, np.inf, -np.inf, -0.0, 0.1, 1e-45], np.float32))
    net.constant(np.arange(1000, dtype=np.int64), name="many")
    net.constant(np.zeros((0, 3), np.float32))
    return net


def test_text_reads_back() -> None:
    net = verify(rich())
    again = parse(str(net))
    assert str(again) == str(net)
    assert to_json(again) == to_json(net), "the constants' bytes too"


def test_json_reads_back() -> None:
    net = rich()
    data = json.loads(json.dumps(to_json(net), allow_nan=False))
    again = from_json(data)
    assert to_json(again) == data and str(again) == str(net)
    assert [n.where for n in again.nodes] == [n.where for n in net.nodes]


def test_a_network_that_was_read_runs() -> None:
    net = Network()
    x = net.input("x", Spec(("T", 3), "f32"))
    net.output("y", ops.softmax(x * 3)[-1:])
    feeds = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    expected = interpret(net, feeds)["y"]
    for again in (parse(str(net)), from_json(to_json(net))):
        np.testing.assert_array_equal(interpret(again, feeds)["y"], expected)


def test_a_network_that_was_read_can_grow() -> None:
    again = from_json(to_json(rich()))
    again.output("more", again.outputs["y"] * 2 + 1)
    verify(again)


names = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)


@given(names, names, names)
def test_any_name_reads_back(name: str, where: str, output: str) -> None:
    net = Network("n")
    x = net.input(name, Spec((2,), "f32"))
    with net.scope(where):
        net.output(output, ops.neg(x))
    again = parse(str(net))
    assert [v.name for v in again.inputs] == [name]
    assert list(again.outputs) == [output] and again.nodes[0].where == where
    assert str(again) == str(net)


def paths(obj: Any, at: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    items = obj.items() if isinstance(obj, dict) else enumerate(obj) if isinstance(obj, list) else ()
    return [at, *(p for key, inner in items for p in paths(inner, (*at, key)))]


JUNK = [None, True, -1, 0, 3, 2**63, 1.5, "", "x", "1", "T", "nonzero", "f32", [], [1], ["+", "T", 1], {}, {"a": 1}]
RICH = to_json(sound())
PATHS = paths(RICH)[1:]


@given(st.sampled_from(PATHS), st.sampled_from(["replace", "delete", "add", "repeat"]), st.sampled_from(JUNK))
def test_damaged_json_is_a_typed_error_or_a_sound_network(path: tuple[Any, ...], how: str, junk: Any) -> None:
    data = copy.deepcopy(RICH)
    *before, last = path
    holder: Any = data
    for key in before:
        holder = holder[key]
    if how == "replace":
        holder[last] = copy.deepcopy(junk)
    elif how == "delete":
        del holder[last]
    elif how == "add" and isinstance(holder, dict):
        holder["extra"] = junk
    elif how == "repeat" and isinstance(holder, list):
        holder.insert(last, copy.deepcopy(holder[last]))
    with contextlib.suppress(IngotError):
        verify(from_json(data))


@given(st.data())
def test_damaged_text_is_a_typed_error_or_a_sound_network(data: st.DataObject) -> None:
    text = str(sound())
    at = data.draw(st.integers(0, len(text) - 1))
    width = data.draw(st.integers(0, 12))
    damaged = text[:at] + data.draw(st.text("%=(){}[],:@\"\\ \n0fT*/-.network", max_size=6)) + text[at + width:]
    with contextlib.suppress(IngotError):
        verify(parse(damaged))


def edit(path: str, value: Any) -> dict[str, Any]:
    data: Any = copy.deepcopy(RICH)
    *before, last = (int(p) if p.isdigit() else p for p in path.split("."))
    holder = data
    for key in before:
        holder = holder[key]
    holder[last] = value
    return data  # type: ignore[no-any-return]


def node(name: str) -> int:
    return next(i for i, n in enumerate(RICH["nodes"]) if n["op"] == name)


NORM, COND, SHAPE = node("rms_norm"), node("cond"), node("reshape")


@pytest.mark.parametrize(("path", "value", "message"), [
    ("extra", 1, r"a network has the keys .* unknown \['extra'\]"),
    ("inputs.0.dtype", "float31", "not an element type"),
    ("inputs.0.shape.1", -4, "no negative dimensions"),
    ("inputs.0.shape.1", 4.0, "not a dimension: 4.0"),
    ("inputs.0.name", "slot", "already has a value named 'slot'"),
    ("inputs.0.name", "", "needs a name"),
    ("constants.0.data", "AAAA", "has 3 bytes of data"),
    ("constants.0.data", "?", "not base64"),
    ("states.0.heads", 0, "positive int for heads"),
    ("states.0.heads", True, "heads is a bool, not a int"),
    (f"nodes.{NORM}.op", "rms_norms", r"node \d+ of network main: there is no op 'rms_norms'"),
    (f"nodes.{NORM}.version", 3, "node .*: rms_norm is of version 3; this ingot knows versions up to 2"),
    (f"nodes.{NORM}.version", 0, "rms_norm: a version is a number from 1 on, not 0"),
    (f"nodes.{NORM}.version", "2", "version is a str, not a int"),
    (f"nodes.{NORM}.version", True, "version is a bool, not a int"),
    (f"nodes.{SHAPE}.attrs", {}, r"reshape has attributes \['shape'\]; missing \['shape'\], unknown \[\]"),
    (f"nodes.{NORM}.attrs", {"eps": 1, "x": 1}, r"unknown \['x'\]"),
    (f"nodes.{NORM}.attrs.eps", "1", "attribute eps must be a float, not '1'"),
    (f"nodes.{NORM}.in", ["99", "w"], "there is no value %99 before it .a cycle, or a dangling name"),
    (f"nodes.{NORM}.in", [f"{RICH['nodes'][NORM]['out'][0]}", "w"], "a cycle, or a dangling name"),
    (f"nodes.{NORM}.in", [], "takes 1 to 2 operands, got 0"),
    (f"nodes.{NORM}.in", ["kv", "w"], "x must be a tensor, not state"),
    (f"nodes.{NORM}.out", ["a", "b"], "has 1 results, not 2"),
    (f"nodes.{NORM}.out", ["x"], "already has a value named 'x'"),
    (f"nodes.{COND}.attrs.then_branch", {}, "a network has the keys"),
    (f"nodes.{COND}.attrs.then_branch.nodes.0.op", "sin.", "there is no op 'sin.'"),
    ("outputs.0", ["y"], r"an output is \[name, value\]"),
    ("outputs.0.1", "nope", "output .*: there is no value %nope"),
    ("dims.0.min", -1, "min must be an int from 0"),
    ("dims.0.max", "many", "max is a str"),
])
def test_json_errors_name_the_place(path: str, value: Any, message: str) -> None:
    with pytest.raises(IngotError, match=message):
        from_json(edit(path, value))


def test_nesting_has_a_limit() -> None:
    inner = copy.deepcopy(RICH["nodes"][COND]["attrs"]["then_branch"])
    for _ in range(100):
        outer = copy.deepcopy(RICH)
        outer["nodes"][COND]["attrs"]["then_branch"] = inner
        inner = outer
    with pytest.raises(NetworkError, match="nest deeper than"):
        from_json(inner)


@pytest.mark.parametrize(("text", "message"), [
    ("", "no network in the text"),
    ("hello", "line 1: expected `network NAME {`"),
    ("network n {\n  what\n}", "line 2, 'what': not a line of a network"),
    ("network n {\n  input %x : f32[T\n}", "line 2.*is not a type such as"),
    ("network n {\n  input %x : f32[T] = 3\n}", "line 2.*not a input"),
    ("network n {\n  constant %c : f32[2] = [1.0]\n}", r"the data have shape \[1\]"),
    ("network n {\n  constant %c : f32[] = __import__('os')\n}", "not a literal"),
    ("network n {\n  input %x : f32[2]\n  %0 = neg(%x) : f32[3]\n}", r"gives f32\[2\], the text says f32\[3\]"),
    ("network n {\n  input %x : f32[2]\n  %0 = nag(%x) : f32[2]\n}", "there is no op 'nag'"),
    ("network n {\n  input %x : f32[2]\n  %0 = softmax(%x) : f32[2]\n}", r"softmax needs \['axis'\] too"),
    ("network n {\n  input %x : f32[2]\n  %0 = softmax(%x) {axes=1} : f32[2]\n}", "has no attribute axes"),
    ("network n {\n  %0 = neg(%x) : f32[2]\n}", "there is no value %x before it"),
    ("network n {\n  input %x : f32[2]\n  %0 = softmax(%x) {axis=0, axis=0} : f32[2]\n}", "repeated|stands twice"),
    ("network n {\n  input %x : f32[2]\n  %0 = softmax(%x) {0} : f32[2]\n}", "attributes are written name=value"),
    ("network n {\n  constant %c : f32[2]\n}", "line 2.*not a constant"),
    ("network n {\n  input %x : state kv_cache<f32, heads=1, head_dim=4>\n}", "not a input"),
    ("network n {\n  state %x : f32[2]\n}", "not a state"),
    ("network n {\n  constant %c : f32[1] = [-None]\n}", "not a literal"),
    ("network n {\n  constant %c : f32[1] = ~1\n}", "not a literal"),
    ("network n {\n  constant %c : f32[1] = [{}]\n}", "not a literal"),
    ("network n {\n  input %x : f32[2]\n  return y\n}", "expected `return name=%value"),
    ("network n {\n  input %x : f32[2]\n}\nnetwork n {\n}", "two networks are called n"),
    ("network n {\n  input %x : f32[-1]\n}", "line 2.*no negative dimensions"),
    ("network n {\n  input %x : f33[2]\n}", "not a type such as f32"),
    ("network n {\n  dim T in 5..3\n}", "line 2.*need min <= opt <= max"),
    ("network n {\n  input %x : f32[2]\n  %0 = softmax(%x) {axis=inf} : f32[2]\n}", "attribute axis must be an int"),
    ("network n {\n  input %x : f32[2]\n  %0 = lowered(%x) {inner=neg(3)} : f32[2]\n}", "an op is written name\\("),
    ("network n {\n  input %x : f32[2]\n  %0 = lowered(%x) {inner=nag()} : f32[2]\n}", "an op is written name\\("),
])
def test_text_errors_name_the_line(text: str, message: str) -> None:
    with pytest.raises(NetworkError, match=message):
        parse(text)


@pytest.mark.parametrize("text", ["f32[]", "bf16[T, 256]", "i4[2*T + 1, max(3, S)]", "bool[T // 4]",
                                  "state kv_cache<bf16, heads=2, head_dim=64>"])
def test_specs_read_back(text: str) -> None:
    assert str(parse_spec(text)) == text


def test_networks_inside_are_found_by_name() -> None:
    """They follow those that use them; another name, or none, is an error."""
    text = str(sound())
    label = text.split("then_branch=network(\"", 1)[1].split("\"", 1)[0]
    for changed in (f'then_branch=network("{label}x")', "then_branch=network()", "then_branch=1", "then_branch=None"):
        with pytest.raises(NetworkError, match="does not follow|must be a Network"):
            parse(text.replace(f'then_branch=network("{label}")', changed))


def test_dims_are_written_with_what_they_claim() -> None:
    lines = ["dim T", "dim T in 0..9", "dim T in 2..", "dim T opt 4", "dim T in 1..9 opt 4 unbacked"]
    claims = ["T", "T in 0..9", "T in 2..", "T opt 4", "T in 1..9 opt 4 unbacked"]
    for line, claim in zip(lines, claims, strict=True):
        net = parse(f"network n {{\n  {line}\n  input %x : f32[T]\n  return y=%x\n}}")
        assert net.dims["T"].claims() == claim


def test_arrays_are_written_as_they_are() -> None:
    for array in (
        np.float32([[1.5, -0.0], [np.inf, np.nan]]), np.zeros((0, 3), np.int8), np.array(True), np.array(-7, np.int64),
        np.arange(100, dtype=np.uint16).reshape(4, 25), np.float64(2.0**-1074).reshape(()), np.array([], np.bool_),
    ):  # fmt: skip
        net = Network("n")
        net.output("y", net.constant(array))
        for again in (parse(str(net)), from_json(to_json(net))):
            (found,) = again.constants
            assert (found.array.dtype, found.array.shape) == (array.dtype, array.shape)
            assert found.array.tobytes() == array.tobytes()


def test_strings_are_quoted_in_ascii() -> None:
    """All of ASCII that can be seen stands for itself, but for what cuts lines and what escapes."""
    plain = "".join(map(chr, range(32, 127)))
    assert quote("\x1f ~\x7f") == '"\\U0000001f ~\\U0000007f"'
    assert quote("é@") == '"\\U000000e9\\U00000040"'
    kept = [c for c in plain if quote(c) == f'"{c}"']
    assert "".join(kept) == plain.translate(str.maketrans("", "", '"\\{}@'))


@pytest.mark.parametrize(
    ("array", "text"),
    [
        (np.array([True, False]), "[True, False]"), (np.array([-3, 4], np.int8), "[-3, 4]"),
        (np.array([[1], [2]], np.uint16), "[[1], [2]]"), (np.array(2**62 + 1), str(2**62 + 1)),
        (np.array(0.1, np.float32), "0.1"), (np.array(0.1), "0.1"), (np.array(0.1, np.float16), "0.099975586"),
        (np.array(1 / 3, np.float32), "0.33333334"), (np.array(1 / 3), "0.3333333333333333"),
        (np.array([1.5, -2.0], np.float32), "[1.5, -2.0]"),
    ],
)  # fmt: skip
def test_numbers_of_constants_are_written_as_short_as_they_are_exact(array: Any, text: str) -> None:
    assert _numbers(array) == text
