"""Strings of ONNX models: against Python's own, as tensors of code points in one engine for all lengths."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import ingot
import ingot.onnx_backend as backend
from ingot.errors import CheckpointError, InputError, UnsupportedError, ValueFault
from ingot.frontends.onnx.regex import MAX_WORK, Work, automaton
from ingot.frontends.onnx.text import codes, words
from ingot.frontends.table import Unsupported

onnx = pytest.importorskip("onnx")
h, T = onnx.helper, onnx.TensorProto
ANY = ["abc", "", "ß", "日本語", "a\u0301", "Ⅷ", "𝔘x", "two words", " both ends ", "-a--b-", "aaa", "A\tb\nC", "ǅ"]


def model(op: str, outputs: dict[str, int], rank: int = 1, inputs: int = 1, domain: str = "", **attributes: Any) -> Any:
    """A model of one node with strings of any sizes as inputs."""
    names = [f"x{i}" for i in range(inputs)]
    node = h.make_node(op, names, list(outputs), domain=domain, **attributes)
    given = [h.make_tensor_value_info(n, T.STRING, [f"N{i}" for i in range(rank)]) for n in names]
    made = [h.make_tensor_value_info(n, kind, None) for n, kind in outputs.items()]
    opsets = [h.make_opsetid("", 20), h.make_opsetid("ai.onnx.ml", 4)]
    return h.make_model(h.make_graph([node], "text", given, made), opset_imports=opsets)


def run(made: Any, *sets: tuple[Any, ...]) -> list[tuple[Any, ...]]:
    """One engine for all sets of inputs; none of its calls stays with the host."""
    prepared = backend.prepare(made)
    found = [prepared.run([np.array(x, object) for x in given]) for given in sets]
    assert prepared.engine is not None and not prepared.engine.header["programs"]["cpu"]["entries"]["main"].get("host")
    assert not any("host" in c for c in prepared.engine.header["programs"]["cpu"]["entries"]["main"]["calls"])
    return found


def test_codes_and_words() -> None:
    """What goes in comes out; what cannot is an error that says why."""
    array = np.array([ANY, ANY[::-1]], object)
    assert codes(array).dtype == np.int32 and codes(array).shape == (2, len(ANY), 11)
    assert words(codes(array)).tolist() == array.tolist()
    assert words(codes(np.array([], object))).shape == (0,) and words(np.zeros((3, 0), np.int32)).tolist() == [""] * 3
    assert words(np.array([[65, -1, 0x110000]], np.int32)).tolist() == ["A\ufffd\ufffd"]
    for bad, told in ((["a", 1], "no str"), (["a\0b"], "a NUL"), (np.zeros(3), "must be an array of str")):
        with pytest.raises(InputError, match=told):
            codes(np.array(bad, object) if isinstance(bad, list) else bad)


@pytest.mark.parametrize("delimiter", [None, "", " ", "-", "aa", "--", "b-"])
@pytest.mark.parametrize("most", [None, 0, 1, 3])
def test_split(delimiter: str | None, most: int | None) -> None:
    """As str.split, for texts of any length and number."""
    extra: dict[str, Any] = {} if delimiter is None else {"delimiter": delimiter}
    extra |= {} if most is None else {"maxsplit": most}
    rng = np.random.default_rng(0)
    drawn = ["".join(rng.choice(list("ab- "), rng.integers(0, 12))) for _ in range(60)]
    sets = [(ANY,), (drawn,), (["x"],), ([],), ([""] * 3,)]
    found = run(model("StringSplit", {"y": T.STRING, "n": T.INT64}, **extra), *sets)
    for (given,), (pieces, counts) in zip(sets, found, strict=True):
        want = [w.split(delimiter or None, -1 if most is None else most) for w in given]
        assert counts.tolist() == [len(w) for w in want]
        assert pieces.shape == (len(given), max(map(len, want), default=0))
        assert pieces.tolist() == [w + [""] * (pieces.shape[1] - len(w)) for w in want]


@pytest.mark.parametrize("delimiter", ["", ","])
def test_split_takes_memory_for_its_pieces(delimiter: str) -> None:
    """40,000 pieces of a text are short ones: no row of code points is as long as the text for each. Beside a text
    that is one long piece that cannot be helped: it is refused before it is made."""
    joined = (delimiter or " ").join(["ab"] * 40_000)
    split = model("StringSplit", {"y": T.STRING, "n": T.INT64}, delimiter=delimiter)
    ((pieces, counts),) = run(split, ([joined, "c"],))
    assert counts.tolist() == [40_000, 1] and pieces.shape == (2, 40_000)
    assert set(pieces[0]) == {"ab"} and set(pieces[1]) == {"c", ""}
    with pytest.raises(ValueFault, match="StringSplit would make over 268,435,456 characters"):
        run(split, ([joined, "c" * 10_000],))


def test_concat_and_equal() -> None:
    sets = [(ANY, ANY[::-1]), (["a"], ["a"]), (["", "b"], ["", "bb"]), ([], [])]
    joined = run(model("StringConcat", {"y": T.STRING}, inputs=2), *sets)
    equal = run(model("Equal", {"y": T.BOOL}, inputs=2), *sets)
    for (a, b), (one,), (two,) in zip(sets, joined, equal, strict=True):
        left, right = np.broadcast_arrays(np.array(a, object), np.array(b, object))
        assert one.tolist() == [x + y for x, y in zip(left, right, strict=True)]
        assert two.tolist() == [x == y for x, y in zip(left, right, strict=True)]


@pytest.mark.parametrize("case", ["NONE", "LOWER", "UPPER"])
@pytest.mark.parametrize("sensitive", [0, 1])
def test_normalizer(case: str, sensitive: int) -> None:
    """Where a letter has no single one in the other case, as ß has not, it stays."""
    change = {"NONE": str, "LOWER": str.lower, "UPPER": str.upper}[case]

    def simple(text: str) -> str:
        return "".join(c if len(change(c)) > 1 else change(c) for c in text)

    stop = ["ABC", "ß", "🙂É"]
    attributes = {"case_change_action": case, "is_case_sensitive": sensitive, "stopwords": stop}
    made = model("StringNormalizer", {"y": T.STRING}, **attributes)
    sets = [(ANY,), (["abc", "Abc"],), (["ABC", "ß"],), (["x"],), (["🙂é", "🙂É", "🙂"],)]
    for (given,), (found,) in zip(sets, run(made, *sets), strict=True):
        lower = [w.lower() for w in stop]
        kept = [w for w in given if (w not in stop if sensitive else w.lower() not in lower)]
        assert found.tolist() == ([simple(w) for w in kept] or [""])


PATTERNS = [
    "", "a*", "(a|b)+?c{2,3}", "[^a-c]+", r"\d{3}-?\d{2}", "(a{2}){3}", "x|y|", r"\bfoo\b.*", r"[]a]+", r"[a\-z]+",
    "(?P<n>a)b", r"\x41\x{42}", "a{,3}", "日本+", r"^a$", r"a^b", r"((a|b)*c)*", r"[^\w]", r"\Ba\B", r"\w+@\w+\.com",
    r"www\.[\w.-]+\.\bcom\b", r"(\W|^)[\w.\-]{0,25}@(yahoo|gmail)\.com(\W|$)", r"\s+|\S+", "a{2}b?|c", "a{01}|A{1,02}",
]  # fmt: skip


def matches(found: Any, text: str) -> bool:
    state = 0
    for c in text:
        state = found.moves[state, np.searchsorted(found.boundaries, ord(c), side="right") - 1]
    return bool(found.accepts[state])


@pytest.mark.parametrize("pattern", PATTERNS)
def test_automata(pattern: str) -> None:
    """Against Python's re on drawn texts; its syntax differs in three of the patterns."""
    as_python = {"a{,3}": r"a\{,3\}", "a{01}|A{1,02}": r"a\{01\}|A\{1,02\}", r"\x41\x{42}": "AB"}
    theirs = re.compile(as_python.get(pattern, pattern), re.ASCII)
    ours, rng = automaton(pattern, Work()), np.random.default_rng(1)
    drawn = ["".join(rng.choice(list("abcxy.-@ w19AB日本{,3}"), rng.integers(0, 8))) for _ in range(200)]
    known = ["www.google.com", "www.bbc.co.uk", "account@gmail.com", "x@y.com", "foo", "123-45", "aaaaaa", "AB", "a"]
    for text in [*drawn, *known, "foo bar", *ANY]:
        assert matches(ours, text) == bool(theirs.fullmatch(text)), (pattern, text)


def test_full_match() -> None:
    sets = [(ANY,), ([],), (["www.google.com", "www.bbc.co.uk", ""],)]
    for pattern in PATTERNS[-5:-3]:
        theirs = re.compile(pattern, re.ASCII)
        results = run(model("RegexFullMatch", {"y": T.BOOL}, pattern=pattern), *sets)
        for (given,), (found,) in zip(sets, results, strict=True):
            assert found.tolist() == [bool(theirs.fullmatch(w)) for w in given]


@pytest.mark.parametrize(("pattern", "why"), [
    ("(", r"\( without its \)"), ("a)", r"\) without its \("), ("[a", "too early"), ("*a", "nothing is before"),
    (r"\1", "none of"), ("(?i)a", "flags"), ("a{2,1}", "repeats"), ("a{9999}", "repeats"), ("[b-a]", "a range"),
    ("[[:alpha:]]", "classes by name"), ("(" * 99, "nested"), ("(a{1000}){1000}", "too large"),
    (".*a.{14}", "more than 4,096 states"), (r"\p{L}", "none of"), ("a" * 5000, "at most 4,096 characters"),
])  # fmt: skip
def test_patterns_that_are_refused(pattern: str, why: str) -> None:
    with pytest.raises(Unsupported, match=why):
        automaton(pattern, Work())
    with pytest.raises(UnsupportedError):
        backend.prepare(model("RegexFullMatch", {"y": T.BOOL}, pattern=pattern))


CLASS = "[" + "".join(chr(0x4E00 + 2 * i) for i in range(4000)) + "]"  # which merges into no fewer ranges


@pytest.mark.sampled(3)
@pytest.mark.parametrize("pattern", [f"({CLASS}{{1000}}){{6}}", r"(\w|[a-z]x){60}", "(a?){900}a{900}"])
def test_patterns_take_a_second_at_most(pattern: str) -> None:
    """Classes of thousands of ranges in thousands of copies are counted before they are made."""
    with pytest.raises(Unsupported, match="takes too long to prepare"):
        automaton(pattern, Work())


def test_patterns_of_one_file_share_their_work() -> None:
    """Of many that are each within bounds, the file that has them all is refused."""
    work = Work()
    automaton("[a-z]{1000}", work)
    fit = MAX_WORK // (MAX_WORK - work.left)
    assert 20 < fit < 100
    many = [h.make_node("RegexFullMatch", ["x"], [f"y{i}"], pattern="[a-z]{1000}") for i in range(fit + 1)]
    graph = h.make_graph(many, "g", [h.make_tensor_value_info("x", T.STRING, ["N"])],
                         [h.make_tensor_value_info(f"y{fit}", T.BOOL, None)])  # fmt: skip
    with pytest.raises(UnsupportedError, match=f"(?s)RegexFullMatch +1  y{fit}.*with those before it in the file"):
        backend.prepare(h.make_model(graph, opset_imports=[h.make_opsetid("", 20)]))


def test_label_encoder() -> None:
    """Of every pair of types; the first of several equal keys counts, NaN finds NaN, the others get the default."""
    keys = ["a", "日本", "", "a"]
    given = ["日本", "b", "a", "", "aa"]
    encode = model("LabelEncoder", {"y": T.INT64}, domain="ai.onnx.ml", keys_strings=keys, values_int64s=[5, 6, 7, 8])
    ((found,),) = run(encode, (given,))
    assert found.tolist() == [6, -1, 5, 7, -1]
    attributes: Any = {"keys_strings": keys[:2], "values_strings": ["x", "yes"], "default_string": "no"}
    swap = model("LabelEncoder", {"y": T.STRING}, domain="ai.onnx.ml", **attributes)
    ((found,),) = run(swap, (given,))
    assert found.tolist() == ["yes", "no", "x", "no", "no"]
    numbers = h.make_tensor_value_info("x", T.FLOAT, ["N"]), h.make_tensor_value_info("y", T.STRING, None)
    node = h.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_floats=[1.5, float("nan")],
                       values_strings=["one", "none"])  # fmt: skip
    graph = h.make_graph([node], "g", numbers[:1], numbers[1:])
    made = h.make_model(graph, opset_imports=[h.make_opsetid("ai.onnx.ml", 4)])
    (found,) = backend.prepare(made).run([np.array([1.5, np.nan, 2], np.float32)])
    assert found.tolist() == ["one", "none", "_Unused"]


@pytest.mark.parametrize(
    ("kind", "words", "told"),
    [(T.INT64, {"keys_floats": [1.5]}, "its keys are float32 and its input is int64: cast the input"),
     (T.FLOAT, {"keys_int64s": [1]}, "its keys are int64 and its input is float32"),
     (T.INT32, {"keys_int64s": [1]}, "its keys are int64 and its input is int32"),
     (T.DOUBLE, {"keys_floats": [1.5]}, "its keys are float32 and its input is float64"),
     (T.INT64, {"keys_tensor": np.int8([1])}, "its keys are int8 and its input is int64"),
     (T.INT64, {"keys_strings": ["1"]}, "its operand is not of the keys' type"),
     (T.STRING, {"keys_int64s": [1]}, "its operand is not of the keys' type"),
     (T.INT64, {"keys_int64s": [1], "default_tensor": np.float32([0.5])}, "is one element of the values' type"),
     (T.INT64, {"keys_int64s": [1], "default_tensor": np.int64([])}, "default_tensor is one element")],
)  # fmt: skip
def test_labels_of_other_types_are_refused(kind: int, words: Any, told: str) -> None:
    """They are not cast: 1.5 would become the key 1."""
    words = {name: onnx.numpy_helper.from_array(v) if isinstance(v, np.ndarray) else v for name, v in words.items()}
    node = h.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", values_int64s=[7], **words)
    graph = h.make_graph([node], "g", [h.make_tensor_value_info("x", kind, ["N"])],
                         [h.make_tensor_value_info("y", T.INT64, None)])  # fmt: skip
    with pytest.raises(UnsupportedError, match=re.escape(told)):
        backend.prepare(h.make_model(graph, opset_imports=[h.make_opsetid("ai.onnx.ml", 4)]))


def test_many_labels() -> None:
    """A thousand words, of which some begin others; texts longer than any of them; and numbers."""
    rng = np.random.default_rng(3)
    letters = list("abcü日🙂")
    keys = ["".join(rng.choice(letters, rng.integers(0, 9))) for _ in range(1000)]
    drawn = ["".join(rng.choice(letters, rng.integers(0, 12))) for _ in range(300)]
    given = [*keys[:300], *drawn, "a" * 40, "\U0010ffff"]
    encode = model("LabelEncoder", {"y": T.INT64}, domain="ai.onnx.ml", keys_strings=keys, values_int64s=[*range(1000)])
    first = {key: i for i, key in reversed(list(enumerate(keys)))}
    ((found,), (none,)) = run(encode, (given,), ([],))
    assert found.tolist() == [first.get(w, -1) for w in given] and none.shape == (0,)
    whole = [*rng.integers(-50, 50, 40).tolist(), 2**40]
    node = h.make_node("LabelEncoder", ["x"], ["y"], domain="ai.onnx.ml", keys_int64s=whole, values_int64s=[*range(41)])
    graph = h.make_graph([node], "g", [h.make_tensor_value_info("x", T.INT64, ["N"])],
                         [h.make_tensor_value_info("y", T.INT64, None)])  # fmt: skip
    numbers = np.array([*range(-60, 60), 2**40, 2**40 + 1])
    (found,) = backend.prepare(h.make_model(graph, opset_imports=[h.make_opsetid("ai.onnx.ml", 4)])).run([numbers])
    first = {key: i for i, key in reversed(list(enumerate(whole)))}
    assert found.tolist() == [first.get(n, -1) for n in numbers.tolist()]


def test_a_classifier_of_words(tmp_path: Any) -> None:
    """Words to classes and back, as an engine file: text is code points there, and the notes say so."""
    nodes = [
        h.make_node("LabelEncoder", ["word"], ["code"], domain="ai.onnx.ml", keys_strings=["red", "green"],
                    values_floats=[0.0, 1.0], default_float=2.0),
        h.make_node("Mul", ["code", "two"], ["twice"]),
        h.make_node("Cast", ["twice"], ["whole"], to=T.INT64),
        h.make_node("LabelEncoder", ["whole"], ["label"], domain="ai.onnx.ml", keys_int64s=[0, 2],
                    values_strings=["stop", "go"], default_string="?"),
    ]  # fmt: skip
    two = onnx.numpy_helper.from_array(np.array(2, np.float32), "two")
    graph = h.make_graph(nodes, "g", [h.make_tensor_value_info("word", T.STRING, ["N"])],
                         [h.make_tensor_value_info("label", T.STRING, ["N"])], [two])  # fmt: skip
    path = tmp_path / "words.onnx"
    onnx.save(h.make_model(graph, opset_imports=[h.make_opsetid("", 20), h.make_opsetid("ai.onnx.ml", 4)]), path)
    engine = ingot.build(path, report=False)
    (port,) = engine.inputs
    assert port.name == "word" and str(port.dims[0]) == "N" and len(port.dims) == 2
    found = engine.run({"word": codes(np.array(["green", "blue", "red"], object))})
    assert words(found["label"]).tolist() == ["go", "?", "stop"]


def test_strings_where_none_are_taken() -> None:
    with pytest.raises(UnsupportedError, match="x0 has strings|x has strings"):
        backend.prepare(model("Relu", {"y": T.FLOAT}))
    bad = h.make_tensor("c", T.STRING, [1], [b"\xff"])
    node = h.make_node("Constant", [], ["y"], value=bad)
    made = h.make_model(h.make_graph([node], "g", [], [h.make_tensor_value_info("y", T.STRING, [1])]))
    with pytest.raises(CheckpointError, match="not UTF-8"):
        backend.prepare(made)
    with pytest.raises(InputError, match="no str"):
        backend.prepare(model("Equal", {"y": T.BOOL}, inputs=2)).run([np.array([1], object), np.array(["a"], object)])
