"""Attacks by what an ONNX file asks for: folding bombs, cycles, recursion, bodies and attributes (classes 26 to 37)."""

from __future__ import annotations

from typing import Any

from attacks.onnx_files import REFUSED, file
from attacks.onnx_wire import (
    BOOL,
    FLOAT,
    INT4,
    INT8,
    INT64,
    UINT8,
    Graph,
    Sparse,
    field,
    fields,
    floats,
    function,
    graph,
    info,
    ints,
    model,
    node,
    opset,
    tensor,
)

WAITS = f"{REFUSED}|op|accepted"  # a run has limits of its own for what is not computed while building
NETS: list[bytes] = []  # all that are not made only when they are asked for
HUGE, HALF = 1 << 40, 2**62


def net(number: int, name: str, nodes: Any, given: Any = (), why: str = "", code: str = "unsupported", **more: Any
        ) -> None:  # fmt: skip
    """A model of these nodes, or of what makes them, from x float32[4] to y of no stated shape."""
    inputs, kind = more.pop("inputs", ["x"]), more.pop("kind", FLOAT)

    def made() -> bytes:
        return model(graph(nodes() if callable(nodes) else nodes, inputs, [info("y", None, kind)], given), **more)

    if not callable(nodes):
        NETS.append(made())
    file(number, name, made if callable(nodes) else NETS[-1], why, code)


# ---------------------------------------------------------------------------------------------------- folding bombs

ONE = ints("one", 1)
GROWS = {
    "ConstantOfShape to 2^40": ([node("ConstantOfShape", ["n"], ["b"])], [ints("n", HUGE)]),
    "ConstantOfShape to 2^62 and more": ([node("ConstantOfShape", ["n"], ["b"])], [ints("n", HALF, HALF)]),
    "ConstantOfShape to less than nothing": ([node("ConstantOfShape", ["n"], ["b"])], [ints("n", -1)]),
    "Expand to 2^40": ([node("Expand", ["one", "n"], ["b"])], [ints("n", HUGE), floats("one", 1)]),
    "Tile to 2^40": ([node("Tile", ["one", "n"], ["b"])], [ints("n", HUGE), floats("one", 1)]),
    "Tile by less than nothing": ([node("Tile", ["one", "n"], ["b"])], [ints("n", -5), floats("one", 1)]),
    "Range to 2^40": ([node("Range", ["z", "n", "o"], ["b"])], [
        ints("z", 0, dims=()), ints("n", HUGE, dims=()), ints("o", 1, dims=())]),
    "Range from end to end": ([node("Range", ["z", "n", "o"], ["b"])], [
        ints("z", -(2**63), dims=()), ints("n", 2**63 - 1, dims=()), ints("o", 1, dims=())]),
    "Range by nothing": ([node("Range", ["z", "n", "z"], ["b"])], [
        ints("z", 0, dims=()), ints("n", HUGE, dims=())]),
    "Range of floats to 10^30": ([node("Range", ["z", "n", "o"], ["b"])], [
        floats("z", 0, dims=()), floats("n", 1e30, dims=()), floats("o", 1, dims=())]),
    "Range of floats to NaN": ([node("Range", ["z", "n", "o"], ["b"])], [
        floats("z", 0, dims=()), floats("n", float("nan"), dims=()), floats("o", 1, dims=())]),
    "Pad by 2^40": ([node("Pad", ["one", "n"], ["b"])], [ints("n", 0, HUGE), floats("one", 1)]),
    "Pad by 2^40 of its edge": ([node("Pad", ["one", "n"], ["b"], mode="edge")], [ints("n", 0, HUGE),
        floats("one", 1)]),
    "Pad by 2^40 by reflecting": ([node("Pad", ["one", "n"], ["b"], mode="reflect")],
                                  [ints("n", HUGE, 0), floats("one", 1, 2)]),
    "Resize to 2^40": ([node("Resize", ["one", "", "", "n"], ["b"])], [ints("n", HUGE), floats("one", 1)]),
    "Resize to 2^40, linearly": ([node("Resize", ["one", "", "", "n"], ["b"], mode="linear")],
                                 [ints("n", HUGE), floats("one", 1)]),
    "Resize by 10^30": ([node("Resize", ["one", "", "s"], ["b"])], [floats("s", 1e30), floats("one", 1)]),
    "Resize by NaN": ([node("Resize", ["one", "", "s"], ["b"])], [floats("s", float("nan")), floats("one", 1)]),
    "Resize smoothly by 10^-30": ([node("Resize", ["t", "", "s"], ["b"], mode="cubic", antialias=1)],
                                  [floats("s", 1e-30), floats("t", *range(64))]),
    "Resize smoothly from 2^20 to 16": ([node("Resize", ["t", "", "", "n"], ["b"], mode="linear", antialias=1)],
                                        [ints("n", 16), tensor("t", (1 << 18,))]),
    "OneHot of 2^40": ([node("OneHot", ["one", "n", "v"], ["b"])], [ONE, ints("n", HUGE, dims=()), floats("v", 0, 1)]),
    "OneHot of less than nothing": ([node("OneHot", ["one", "n", "v"], ["b"])],
                                    [ONE, ints("n", -4, dims=()), floats("v", 0, 1)]),
    "CenterCropPad to 2^40": ([node("CenterCropPad", ["one", "n"], ["b"])], [ints("n", HUGE), floats("one", 1)]),
    "a window of 2^40": ([node("HannWindow", ["n"], ["b"])], [ints("n", HUGE, dims=())]),
    "a mel matrix of 2^40 bins": ([node("MelWeightMatrix", ["n", "m", "r", "l", "h"], ["b"])], [
        ints("n", HUGE, dims=()), ints("m", -2, dims=()), ints("r", 8000, dims=()), floats("l", 0, dims=()),
        floats("h", 4000, dims=())]),
    "a mel matrix of 2^40 rows": ([node("MelWeightMatrix", ["n", "m", "r", "l", "h"], ["b"])], [
        ints("n", 0, dims=()), ints("m", HUGE, dims=()), ints("r", 8000, dims=()), floats("l", 0, dims=()),
        floats("h", 4000, dims=())]),
    "DFT of length 2^40": ([node("DFT", ["t", "n"], ["b"])], [ints("n", HUGE, dims=()), tensor("t", (1, 4, 1))]),
    "STFT of frames of 2^40": ([node("STFT", ["t", "o", "", "n"], ["b"])], [
        ints("n", HUGE, dims=()), ints("o", 1, dims=()), tensor("t", (1, 4, 1))]),
    "Col2Im to 2^40": ([node("Col2Im", ["t", "n", "k"], ["b"])], [
        ints("n", HUGE, 1), ints("k", 1, 1), tensor("t", (1, 1, 4))]),
    "Col2Im of blocks of 2^40": ([node("Col2Im", ["t", "k", "n"], ["b"])], [
        ints("n", HUGE, 1), ints("k", 1, 1), tensor("t", (1, 1, 4))]),
    "MaxUnpool to 2^40": ([node("MaxUnpool", ["t", "i", "n"], ["b"], kernel_shape=[1])], [
        ints("n", 1, 1, HUGE), ints("i", 0, dims=(1, 1, 1)), tensor("t", (1, 1, 1))]),
    "AffineGrid of 2^40": ([node("AffineGrid", ["t", "n"], ["b"])], [ints("n", 1, 1, HUGE, HUGE), tensor("t", (1,
        2, 3))]),
    "Reshape to 2^62": ([node("Reshape", ["one", "n"], ["b"])], [ints("n", HALF, HALF), floats("one", 1)]),
    "Reshape to two of -1": ([node("Reshape", ["t", "n"], ["b"])], [ints("n", -1, -1), floats("t", 1, 2)]),
    "Reshape to -2": ([node("Reshape", ["t", "n"], ["b"])], [ints("n", -2), floats("t", 1, 2)]),
    "Split into 2^40": ([node("Split", ["t"], ["b"], num_outputs=HUGE)], [floats("t", 1, 2)]),
    "Split into nothing": ([node("Split", ["t"], ["b"], num_outputs=-1)], [floats("t", 1, 2)]),
    "Split by sizes that do not fit": ([node("Split", ["t", "n"], ["b", "c"])], [ints("n", -5, 7), floats("t", 1, 2)]),
    "SplitToSequence by nothing": ([node("SplitToSequence", ["t", "n"], ["s"]), node("SequenceAt", ["s", "z"], ["b"])],
                                   [ints("n", 0, dims=()), ints("z", 0, dims=()), floats("t", 1, 2)]),
    "SplitToSequence by less than nothing": (
        [node("SplitToSequence", ["t", "n"], ["s"]), node("SequenceAt", ["s", "z"], ["b"])],
        [ints("n", -1, dims=()), ints("z", 0, dims=()), floats("t", 1, 2)]),
    "TfIdfVectorizer with 2^62 skips": ([node("TfIdfVectorizer", ["one"], ["b"], max_gram_length=2, min_gram_length=2,
                                              max_skip_count=HALF, mode="TF", ngram_counts=[0, 0], ngram_indexes=[0],
                                              pool_int64s=[1, 2])], [ints("one", 1, 2, 3)]),
    "TfIdfVectorizer of column 2^40": ([node("TfIdfVectorizer", ["one"], ["b"], max_gram_length=1, min_gram_length=1,
                                             max_skip_count=0, mode="TF", ngram_counts=[0], ngram_indexes=[HUGE],
                                             pool_int64s=[1])], [ints("one", 1, 2, 3)]),
    "EyeLike of 2^40": ([node("ConstantOfShape", ["n"], ["e"]), node("EyeLike", ["e"], ["b"])], [ints("n", HUGE, 1)]),
    "Trilu of 2^40": ([node("ConstantOfShape", ["n"], ["e"]), node("Trilu", ["e"], ["b"])], [ints("n", HUGE, 2)]),
    "MaxPool of windows of 2^40": ([node("MaxPool", ["t"], ["b", "i"], kernel_shape=[HUGE])], [tensor("t", (1, 1, 4))]),
    "MaxPool with padding of 2^40": ([node("MaxPool", ["t"], ["b", "i"], kernel_shape=[2], pads=[HUGE, HUGE])],
                                     [tensor("t", (1, 1, 4))]),
    "AveragePool with padding of 2^40": ([node("AveragePool", ["t"], ["b"], kernel_shape=[2], pads=[HUGE, HUGE])],
                                         [tensor("t", (1, 1, 4))]),
    "MaxPool by steps of 0": ([node("MaxPool", ["t"], ["b"], kernel_shape=[2], strides=[0])], [tensor("t", (1, 1, 4))]),
    "MaxPool by steps of -1": ([node("MaxPool", ["t"], ["b"], kernel_shape=[2], strides=[-1])],
                               [tensor("t", (1, 1, 4))]),
    "MaxPool of no window": ([node("MaxPool", ["t"], ["b"], kernel_shape=[])], [tensor("t", (1, 1, 4))]),
    "RoiAlign to 2^40": ([node("RoiAlign", ["t", "r", "i"], ["b"], output_height=HUGE, sampling_ratio=1)], [
        tensor("t", (1, 1, 4, 4)), tensor("r", (1, 4)), ints("i", 0)]),
    "RoiAlign of 2^40 samples": ([node("RoiAlign", ["t", "r", "i"], ["b"], sampling_ratio=HUGE)], [
        tensor("t", (1, 1, 4, 4)), tensor("r", (1, 4)), ints("i", 0)]),
    "DeformConv in 2^40 groups": ([node("DeformConv", ["t", "k", "o"], ["b"], offset_group=HUGE)], [
        tensor("t", (1, 1, 4, 4)), tensor("k", (1, 1, 1, 1)), tensor("o", (1, 2, 4, 4))]),
    "Conv in 0 groups": ([node("Conv", ["t", "k"], ["b"], group=0)], [tensor("t", (1, 1, 4)), tensor("k", (1, 1, 1))]),
    "Conv in -1 groups": ([node("Conv", ["t", "k"], ["b"], group=-1)], [tensor("t", (1, 1, 4)), tensor("k", (1,
        1, 1))]),
    "Conv with dilation 0": ([node("Conv", ["t", "k"], ["b"], dilations=[0])], [
        tensor("t", (1, 1, 4)), tensor("k", (1, 1, 2))]),
    "Conv with padding of 2^62": ([node("Conv", ["t", "k"], ["b"], pads=[HALF, HALF])], [
        tensor("t", (1, 1, 4)), tensor("k", (1, 1, 2))]),
    "ConvTranspose by steps of 2^62": ([node("ConvTranspose", ["t", "k"], ["b"], strides=[HALF])], [
        tensor("t", (1, 1, 4)), tensor("k", (1, 1, 2))]),
    "ConvTranspose with more output_padding than steps": (
        [node("ConvTranspose", ["t", "k"], ["b"], output_padding=[7], strides=[2])],
        [tensor("t", (1, 1, 4)), tensor("k", (1, 1, 2))]),
    "a product of 10^12 steps": ([node("MatMul", ["t", "u"], ["b"])], [
        tensor("t", (1 << 10, 1 << 12)), tensor("u", (1 << 12, 1 << 10))]),
    "shifts by 2^40": ([node("BitShift", ["n", "n"], ["b"], direction="LEFT")], [ints("n", HUGE)]),
    "a power of 2^62": ([node("Pow", ["n", "n"], ["b"])], [ints("n", HALF)]),
    "a power of NaN": ([node("Pow", ["n", "n"], ["b"])], [floats("n", float("nan"))]),
    "a power of infinity": ([node("Pow", ["n", "n"], ["b"])], [floats("n", float("inf"))]),
    "a quotient by 0": ([node("Div", ["n", "z"], ["b"])], [ints("n", HALF), ints("z", 0)]),
    "the least over -1": ([node("Div", ["n", "z"], ["b"])], [ints("n", -(2**63)), ints("z", -1)]),
    "TopK of 2^40": ([node("TopK", ["t", "n"], ["b", "i"])], [floats("t", 1, 2), ints("n", HUGE)]),
    "TopK of -1": ([node("TopK", ["t", "n"], ["b", "i"])], [floats("t", 1, 2), ints("n", -1)]),
}  # fmt: skip
for _what, (_nodes, _given) in GROWS.items():
    net(35, _what, [*_nodes, node("Cast", ["b"], ["f"], to=FLOAT), node("ReduceMax", ["f"], ["m"], keepdims=0),
                    node("Add", ["x", "m"], ["y"])], _given, "", WAITS)  # fmt: skip

_doubled = [node("Concat", [f"t{i}", f"t{i}"], [f"t{i + 1}"], axis=0) for i in range(64)]
net(35, "what doubles 64 times", [*_doubled, node("ReduceMax", ["t64"], ["m"]), node("Add", ["x", "m"], ["y"])],
    [floats("t0", 1)], "", WAITS)  # fmt: skip
_doubled = [node("Add", [f"t{i}", f"t{i}"], [f"t{i + 1}"]) for i in range(3000)]
net(35, "3,000 constants of 4 MB", [node("ConstantOfShape", ["n"], ["t0"]), *_doubled,
    node("ReduceMax", ["t3000"], ["m"], keepdims=0), node("Add", ["x", "m"], ["y"])], [ints("n", 1 << 20)], "",
    WAITS)  # fmt: skip
_products = [node("MatMul", [f"t{i}", "t0"], [f"t{i + 1}"]) for i in range(200)]
net(35, "200 products that take a second each", [
    node("ConstantOfShape", ["n"], ["t0"]), *_products, node("ReduceMax", ["t200"], ["m"], keepdims=0),
    node("Add", ["x", "m"], ["y"])], [ints("n", 1000, 1000)], "", WAITS)  # fmt: skip
net(35, "a sequence of 20,000", lambda: [node("SequenceEmpty", [], ["s0"]), *(
    node("SequenceInsert", [f"s{i}", "x"], [f"s{i + 1}"]) for i in range(20_000)),
    node("ConcatFromSequence", ["s20000"], ["y"], axis=0)], why="sequence")  # fmt: skip
net(35, "512 strings of 1 MB", [node("Constant", [], ["s"], value_string="a" * (1 << 20)), node("Neg", ["x"], ["y"])],
    why="value_string", code=REFUSED)  # fmt: skip
net(36, "Einsum of 60 letters", [node("Einsum", ["x"], ["y"],
    equation="abcdefghijklmnopqrstuvwxyzABCDEFGH" * 2 + "->")],
    code=f"{REFUSED}|op")  # fmt: skip
net(36, "Einsum of 10,000 operands", [node("Einsum", ["x"] * 10_000, ["y"], equation=",".join("a" * 10_000) + "->a")],
    code=f"{REFUSED}|op|accepted")  # fmt: skip
net(36, "Einsum of the same label twice", [node("Einsum", ["x"], ["y"], equation="a->aa")], code=f"{REFUSED}|op")
net(36, "Einsum of nothing", [node("Einsum", [], ["y"], equation="->")], code=f"{REFUSED}|op")

# ------------------------------------------------------------------------------------------------ cycles, recursion

net(26, "a cycle", [node("Neg", ["b"], ["a"]), node("Neg", ["a"], ["b"]), node("Add", ["x", "a"], ["y"])],
    why="nothing before makes it", code="checkpoint")  # fmt: skip
net(26, "a node that reads its own output", [node("Add", ["x", "y"], ["y"])], why="nothing before makes it",
    code="checkpoint")  # fmt: skip
net(27, "a value that nothing makes", [node("Neg", ["a"], ["y"])], why="nothing before makes it", code="checkpoint")
net(27, "an output that nothing makes", [node("Neg", ["x"], ["a"])], why="nothing before makes it", code="checkpoint")
net(27, "no output", [node("Neg", ["x"], [])], why="nothing before makes it|no tensor", code="checkpoint")
net(27, "10,000 faults", lambda: [node("Nothing", ["x"], [f"a{i}"]) for i in range(10_000)],
    why="10000|10,000|before makes", code=REFUSED)  # fmt: skip
net(27, "10,000 kinds of faults", lambda: [node(f"Nothing{i}", ["x"], [f"a{i}"]) for i in range(10_000)] + [
    node("Neg", ["x"], ["y"])], why="and 9960 more")  # fmt: skip
_call = node("f", ["x"], ["y"], "own")
net(26, "a function that calls itself", [_call], functions=[function("f", [_call])], why="calls itself",
    code="checkpoint")  # fmt: skip
net(26, "functions that call each other", [_call], functions=[
    function("f", [node("g", ["x"], ["y"], "own")]), function("g", [_call])], why="calls itself",
    code="checkpoint")  # fmt: skip
_inside = graph([_call], [], ["y"])
net(26, "a function that calls itself from a branch", [_call], functions=[function("f", [
    node("If", ["x"], ["y"], then_branch=_inside, else_branch=_inside)])], why="calls itself",
    code="checkpoint")  # fmt: skip
file(26, "20,000 functions, each of which calls the next", lambda: model(
    graph([node("f20000", ["x"], ["y"], "own")], ["x"], [info("y", None)]), [
        function("f0", [node("Neg", ["x"], ["y"])]),
        *(function(f"f{i + 1}", [node(f"f{i}", ["x"], ["y"], "own")]) for i in range(20_000)),
    ]), "deep")  # fmt: skip
_twice = [function("f0", [node("Neg", ["x"], ["y"])])]
_twice += [function(f"f{i + 1}", [node(f"f{i}", ["x"], ["t"], "own"), node(f"f{i}", ["t"], ["y"], "own")])
           for i in range(40)]  # fmt: skip
net(26, "functions that double 40 times", [node("f40", ["x"], ["y"], "own")], functions=_twice,
    why="more than .* nodes", code="checkpoint")  # fmt: skip
net(26, "a function of the name of an op that calls the op", [node("Neg", ["x"], ["y"])], functions=[
    function("Neg", [node("Neg", ["x"], ["y"])], domain="")], why="calls itself", code="checkpoint")  # fmt: skip
net(27, "a function with too few results", [node("f", ["x"], ["y", "z"], "own")], functions=[
    function("f", [node("Neg", ["x"], ["y"])])], why="2 results")  # fmt: skip
net(27, "a function with too many operands", [node("f", ["x", "x"], ["y"], "own")], functions=[
    function("f", [node("Neg", ["x"], ["y"])])], why="2 operands")  # fmt: skip
net(27, "a function that does not make its result", [_call], functions=[
    function("f", [node("Neg", ["x"], ["a"])])], why="nothing before makes it", code="checkpoint")  # fmt: skip
net(27, "a function with one operand of two names", [_call], functions=[
    function("f", [node("Neg", ["x"], ["y"])], ["x", "x"])], why="two operands of one name",
        code="checkpoint")  # fmt: skip
net(28, "a function of a negative opset", [_call], functions=[function("f", [node("Neg", ["x"], ["y"])]) + field(
    9, opset("com.x", -9))], why="no version", code="checkpoint")  # fmt: skip

# --------------------------------------------------------------------------------------------------- If, Loop, Scan

TRUE = tensor("true", (), BOOL, b"\1")
FLAG = info("c", (), BOOL)


def branch(*nodes: bytes, outputs: Any = ("y",)) -> Graph:
    return graph(nodes, [], outputs)


_plain = branch(node("Neg", ["x"], ["y"]))
_either: Any = {"inputs": ["x", FLAG]}
for _what, _other in {
    "of other shapes": branch(node("Concat", ["x", "x"], ["y"], axis=0)),
    "of other types": branch(node("Cast", ["x"], ["y"], to=INT64)),
    "of other numbers of results": branch(node("Neg", ["x"], ["y"]), node("Neg", ["x"], ["z"]), outputs=["y", "z"]),
    "of no results": branch(outputs=[]), "of nothing": Graph(b""), "with inputs": graph([], ["x"], ["x"]),
    "that read each other": branch(node("Neg", ["q"], ["y"])), "of unknown ops": branch(node("Nothing", ["x"], ["y"])),
    "that give a sequence": branch(node("SequenceEmpty", [], ["y"])),
}.items():  # fmt: skip
    net(33, f"If with branches {_what}", [node("If", ["c"], ["y"], then_branch=_plain, else_branch=_other)], why="",
        code=f"{REFUSED}|op|network|accepted", **_either)  # fmt: skip
net(33, "If without a branch", [node("If", ["c"], ["y"], then_branch=_plain)], why="else_branch", **_either)
net(33, "If on a condition of four", [node("If", ["x"], ["y"], then_branch=_plain, else_branch=_plain)],
    code=f"{REFUSED}|op")  # fmt: skip
net(33, "If on a constant of none", [node("If", ["n"], ["y"], then_branch=_plain, else_branch=_plain)],
    [tensor("n", (0,), BOOL, b"")])  # fmt: skip
net(33, "If on a sequence", [node("SequenceEmpty", [], ["s"]),
    node("If", ["s"], ["y"], then_branch=_plain, else_branch=_plain)])  # fmt: skip
_deep = _plain
for _ in range(30):
    _deep = branch(node("If", ["c"], ["y"], then_branch=_deep, else_branch=_plain))
net(33, "If nested 30 deep", [node("If", ["c"], ["y"], then_branch=_deep, else_branch=_plain)], why="",
    code=f"{REFUSED}|network|accepted", **_either)  # fmt: skip
for _ in range(2, 4):
    _deep = branch(node("If", ["true"], ["t"], then_branch=_deep, else_branch=_deep),
                   node("If", ["c"], ["y"], then_branch=_deep, else_branch=_deep))  # fmt: skip
net(33, "If nested, on what is known", [node("If", ["true"], ["y"], then_branch=_deep, else_branch=_plain)], [TRUE],
    "", f"{REFUSED}|network|accepted", **_either)  # fmt: skip

BODY = [info("i", (), INT64), info("g", (), BOOL), info("a")]


def loop(*nodes: bytes, inputs: Any = None, outputs: Any = ("g2", "a2")) -> Graph:
    return graph(nodes, BODY if inputs is None else inputs, list(outputs))


_going, _next = node("Identity", ["g"], ["g2"]), node("Neg", ["a"], ["a2"])
MOST = ints("n", HALF, dims=())
for _what, _body in {
    "that runs 2^62 rounds": loop(_going, _next), "that grows": loop(_going, node("Concat", ["a", "a"], ["a2"],
        axis=0)),
    "that keeps 2^62 results": loop(_going, _next, node("Neg", ["a"], ["k"]), outputs=["g2", "a2", "k"]),
    "without the condition": loop(_next, outputs=["a2"]), "of no results": loop(outputs=[]),
    "with too few operands": loop(_going, _next, inputs=BODY[:2]),
    "with too many operands": loop(_going, _next, inputs=[*BODY, info("b")]),
    "of nothing": Graph(b""), "whose condition is a tensor": loop(node("Identity", ["a"], ["g2"]), _next),
    "whose operands have one name": loop(_going, _next, inputs=[BODY[0], BODY[0], BODY[2]]),
    "that changes its type": loop(_going, node("Cast", ["a"], ["a2"], to=INT64)),
    "that makes a sequence": loop(_going, node("SequenceConstruct", ["a"], ["a2"])),
    "that makes nothing": loop(_going, node("Optional", [], ["a2"])),
}.items():  # fmt: skip
    net(33, f"a Loop {_what}", [node("Loop", ["n", "true", "x"], ["y"], body=_body)], [MOST, TRUE], "",
        f"{REFUSED}|op|network|accepted")  # fmt: skip
_endless = loop(_going, node("Neg", ["a"], ["a2"]))
net(33, "a Loop without an end", [node("Loop", ["", "", "x"], ["y"], body=_endless)], [], "",
    f"{REFUSED}|op|network|accepted")  # fmt: skip
net(33, "a Loop of -5 rounds", [node("Loop", ["n", "", "x"], ["y"], body=_endless)], [ints("n", -5, dims=())], "",
    f"{REFUSED}|op|network|accepted")  # fmt: skip
net(33, "a Loop of a count of four", [node("Loop", ["n", "", "x"], ["y"], body=_endless)], [ints("n", 1, 2, 3, 4)], "",
    f"{REFUSED}|op|network")  # fmt: skip
net(33, "a Loop that counts constants", [node("Loop", ["n", "true", "z"], ["a"], body=_endless),
    node("Add", ["x", "a"], ["y"])], [MOST, TRUE, floats("z", 1, 2, 3, 4)], "",
        f"{REFUSED}|op|network|accepted")  # fmt: skip
_unrolled = loop(_going, node("SequenceInsert", ["a", "x"], ["a2"]))
net(33, "a Loop over a sequence of 2^62 rounds", [node("SequenceEmpty", [], ["s"]),
    node("Loop", ["n", "true", "s"], ["t"], body=_unrolled), node("ConcatFromSequence", ["t"], ["y"], axis=0)],
    [MOST, TRUE], "rounds")  # fmt: skip
_inner = _unrolled
for _ in range(5):
    _inner = loop(_going, node("Loop", ["n", "true", "a"], ["a2"], body=_inner))
net(33, "six Loops of 60 rounds, one in the other", [node("SequenceEmpty", [], ["s"]),
    node("Loop", ["n", "true", "s"], ["t"], body=_inner), node("ConcatFromSequence", ["t"], ["y"], axis=0)],
    [ints("n", 60, dims=()), TRUE], "", REFUSED)  # fmt: skip

SCAN = [info("a", ()), info("e", ())]
_sum = graph([node("Add", ["a", "e"], ["a2"])], SCAN, ["a2"])
for _what, _graph, _words in (
    ("with too few results", graph([], SCAN, []), {"num_scan_inputs": 1}),
    ("with too many results", graph([node("Add", ["a", "e"], ["a2"])], SCAN, ["a2"] * 9), {"num_scan_inputs": 1}),
    ("with a body of one operand", graph([node("Neg", ["a"], ["a2"])], SCAN[:1], ["a2"]), {"num_scan_inputs": 1}),
    ("of nothing", Graph(b""), {"num_scan_inputs": 1}), ("that scans 0 tensors", _sum, {"num_scan_inputs": 0}),
    ("that scans -3 tensors", _sum, {"num_scan_inputs": -3}),
    ("that scans 2^62 tensors", _sum, {"num_scan_inputs": HALF}),
    ("along axis 9", _sum, {"num_scan_inputs": 1, "scan_input_axes": [9]}),
    ("along no axes", _sum, {"num_scan_inputs": 1, "scan_input_axes": []}),
    ("in too few directions", _sum, {"num_scan_inputs": 1, "scan_input_directions": []}),
    ("with outputs along axis 9", _sum, {"num_scan_inputs": 1, "scan_output_axes": [9]}),
    ("without a count", _sum, {}),
):
    net(33, f"a Scan {_what}", [node("Scan", ["z", "x"], ["y"], body=_graph, **_words)], [floats("z", 0, dims=())], "",
        f"{REFUSED}|op|network|accepted")  # fmt: skip

# ------------------------------------------------------------------------------------------------------- attributes

_float = (1, field(2, float("nan")))
for _what, _node in {
    "NaN for an axis": node("Softmax", ["x"], ["y"], axis=_float), "text for an axis": node("Softmax", ["x"],
        ["y"], axis="a"),
    "a graph for an axis": node("Softmax", ["x"], ["y"], axis=_plain),
    "an axis out of range": node("Softmax", ["x"], ["y"], axis=7),
    "an axis of 2^63 - 1": node("Softmax", ["x"], ["y"], axis=2**63 - 1),
    "an axis of -2^63": node("Softmax", ["x"], ["y"], axis=-(2**63)),
    "an unknown attribute": node("Relu", ["x"], ["y"], alpha=1.0),
    "a missing attribute": node("Concat", ["x", "x"], ["y"]),
    "an attribute of no type": node("Softmax", ["x"], ["y"], axis=(0, field(3, 0))),
    "an attribute of the type 99": node("Softmax", ["x"], ["y"], axis=(99, field(3, 0))),
    "an attribute without its field": node("Cast", ["x"], ["y"], to=(2, b"")),
    "a number for a graph": node("If", ["c"], ["y"], then_branch=1, else_branch=_plain),
    "text for a graph": node("Loop", ["", "c", "x"], ["y"], body="a"),
    "a tensor for a graph": node("Scan", ["x", "x"], ["y"], body=ONE, num_scan_inputs=1),
    "a list of graphs": node("If", ["c"], ["y"], then_branch=(10, field(11, _plain)), else_branch=_plain),
    "a graph for a tensor": node("Constant", [], ["y"], value=_plain),
    "a number for a tensor": node("ConstantOfShape", ["x"], ["y"], value=3),
    "a tensor of four for one": node("ConstantOfShape", ["x"], ["y"], value=floats("", 1, 2)),
    "a tensor that is too short": node("Constant", [], ["y"], value=tensor("", (4,), FLOAT, b"")),
    "a tensor that lies outside": node("Constant", [], ["y"], value=tensor("", (4,), location="../w")),
    "a tensor of 2^62": node("Constant", [], ["y"], value=tensor("", (HALF,), FLOAT, b"")),
    "a sparse tensor of 2^40": node("Constant", [], ["y"], sparse_value=Sparse(
        field(1, floats("", 1)) + field(2, ints("", 0)) + fields(3, [HUGE]))),
    "two constants": node("Constant", [], ["y"], value_int=1, value_float=1.0), "no constant": node("Constant",
        [], ["y"]),
    "a type for a number": node("Softmax", ["x"], ["y"], axis=(13, field(14, b""))),
    "text that is not UTF-8": node("Gelu", ["x"], ["y"], approximate=(3, field(4, b"\xff\xfe"))),
    "text of 1 MB": node("Gelu", ["x"], ["y"], approximate="a" * 1_000_000),
    "1,000,000 numbers": lambda: node("Transpose", ["x"], ["y"], perm=list(range(1_000_000))),
    "a reference outside of a function": node("Softmax", ["x"], ["y"], axis=(2, field(21, "a"))),
    "an unknown word": node("Pad", ["x", "p"], ["y"], mode="sideways"),
    "an unknown type to cast to": node("Cast", ["x"], ["y"], to=99), "a cast to strings": node("Cast", ["x"],
        ["y"], to=8),
    "a permutation that is none": node("Transpose", ["x"], ["y"], perm=[0, 0]),
    "a permutation of nothing": node("Transpose", ["x"], ["y"], perm=[7]),
    "axes twice": node("ReduceSum", ["x", "a"], ["y"]), "a step of 0": node("Slice", ["x", "p", "p", "z", "z"], ["y"]),
    "no operands": node("Add", [], ["y"]), "three operands for two": node("Add", ["x", "x", "x"], ["y"]),
    "a mean of nothing": node("Mean", [], ["y"]), "a maximum of nothing": node("Max", [], ["y"]),
    "two results of one": node("Neg", ["x"], ["y", "q"]), "no results": node("Neg", ["x"], []),
    "a norm without a scale": node("LayerNormalization", ["x"], ["y"], axis=-9),
    "an LSTM of no weights": node("LSTM", ["x", "x", "x"], ["y"], hidden_size=HALF),
    "a GRU of odd activations": node("GRU", ["x", "x", "x"], ["y"], activations=[1, 2]),
    "attention without heads": node("MultiHeadAttention", ["x"], ["y"], "com.microsoft", num_heads=0),
    "attention of 2^62 heads": node("Attention", ["x", "x", "x"], ["y"], q_num_heads=HALF, kv_num_heads=0),
    "groups of 0": node("MatMulNBits", ["x", "p", "x"], ["y"], "com.microsoft", K=4, N=4, bits=4, block_size=0),
    "groups of -1": node("MatMulNBits", ["x", "p", "x"], ["y"], "com.microsoft", K=4, N=4, bits=4, block_size=-1),
    "weights of 2^62": node("MatMulNBits", ["x", "p", "x"], ["y"], "com.microsoft", K=HALF, N=HALF, bits=4,
        block_size=32),
    "blocks of 2^40": node("DequantizeLinear", ["w", "s"], ["y"], axis=0, block_size=HUGE),
    "a scale along axis 9": node("DequantizeLinear", ["w", "s"], ["y"], axis=9),
    "a scale of another length": node("DequantizeLinear", ["w", "s"], ["y"], axis=0),
    "a zero point of another type": node("DequantizeLinear", ["w", "s", "x"], ["y"], axis=0),
    "four bits along axis 9": node("DequantizeLinear", ["w4", "s"], ["y"], axis=9),
    "an integer scale": node("QuantizeLinear", ["x", "p"], ["y"], axis=0),
    "groups of channels that do not divide": node("GroupNormalization", ["x", "x", "x"], ["y"], num_groups=3),
    "0 groups of channels": node("GroupNormalization", ["x", "x", "x"], ["y"], num_groups=0),
    "depth to space by 0": node("DepthToSpace", ["q4"], ["y"], blocksize=0),
    "depth to space by -2": node("DepthToSpace", ["q4"], ["y"], blocksize=-2),
    "space to depth by 2^40": node("SpaceToDepth", ["q4"], ["y"], blocksize=HUGE),
    "indices out of range": node("Gather", ["s", "far"], ["y"]),
    "places out of range": node("GatherND", ["s", "far"], ["y"]),
    "updates out of range": node("ScatterND", ["s", "far", "s"], ["y"]),
    "a batch of dims out of range": node("GatherND", ["x", "far"], ["y"], batch_dims=HALF),
}.items():  # fmt: skip
    _one = (lambda made=_node: [made()]) if callable(_node) else [_node]
    net(29, f"{_what} in a node", _one, [
        ints("p", 0, 0), ints("z", 0), ints("a", 0, 0), floats("s", 1, 2, 3), tensor("w", (4,), INT8, bytes(4)),
        tensor("w4", (4,), INT4, bytes(2)), tensor("q4", (1, 4, 2, 2)), ints("far", 2**40, dims=(1, 1)),
    ], "", f"{REFUSED}|op|network|dtype|dim|kernel_refused|accepted", inputs=["x", FLAG])  # fmt: skip
net(29, "an attribute twice", [node("Softmax", ["x"], ["y"], axis=0) + field(5, field(1, "axis") + field(3,
    0) + field(20, 2))],
    why="twice", code="checkpoint")  # fmt: skip

# -------------------------------------------------------------------------------------------------------- sequences

_three = node("SequenceConstruct", ["x", "x", "x"], ["s"])
for _what, _nodes in {
    "at place 2^62": [_three, node("SequenceAt", ["s", "far"], ["y"])],
    "at place -4": [_three, node("SequenceAt", ["s", "four"], ["y"])],
    "at a place that is a tensor": [_three, node("SequenceAt", ["s", "x"], ["y"])],
    "inserted at 2^62": [_three, node("SequenceInsert", ["s", "x", "far"], ["t"]), node("SequenceAt", ["t", "z"],
        ["y"])],
    "erased from nothing": [node("SequenceEmpty", [], ["s"]), node("SequenceErase", ["s"], ["t"]),
                            node("SequenceAt", ["t", "z"], ["y"])],
    "that is a tensor": [node("SequenceAt", ["x", "z"], ["y"])],
    "as a tensor": [_three, node("Neg", ["s"], ["y"])], "joined from nothing": [
        node("SequenceEmpty", [], ["s"]), node("ConcatFromSequence", ["s"], ["y"], axis=0)],
    "joined along axis 9": [_three, node("ConcatFromSequence", ["s"], ["y"], axis=9)],
    "of a sequence": [_three, node("SequenceConstruct", ["s"], ["t"]), node("Neg", ["t"], ["y"])],
    "that is nothing": [node("Optional", [], ["o"]), node("OptionalGetElement", ["o"], ["y"])],
    "of nothing": [node("Optional", [], ["o"]), node("Neg", ["o"], ["y"])],
    "mapped by nothing": [_three, node("SequenceMap", ["s"], ["y"], body=Graph(b""))],
    "compared": [_three, node("If", ["c"], ["t"], then_branch=branch(node("Identity", ["s"], ["y"])),
                              else_branch=_plain), node("Neg", ["t"], ["y"])],
    "into a Loop": [_three, node("Loop", ["far", "", "s", "x"], ["t", "y"], body=loop(
        _going, _next, inputs=[*BODY, info("b")], outputs=["g2", "a2", "b"]))],
    "in the place of a weight": [_three, node("Gemm", ["x", "s"], ["y"])],
    "in the place of sizes": [_three, node("Reshape", ["x", "s"], ["y"])],
    "in the place of a narrow tensor": [_three, node("DequantizeLinear", ["s", "x"], ["y"])],
}.items():  # fmt: skip
    net(31, f"a sequence {_what}", _nodes, [ints("far", HALF, dims=()), ints("four", -4, dims=()), ints("z", 0,
        dims=())],
        "", f"{REFUSED}|op|network|accepted", inputs=["x", FLAG])  # fmt: skip

_kinds: dict[str, tuple[bytes, str]] = {
    "of no type": (field(1, "x"), REFUSED), "of an unknown type": (info("x", (4,), 99), REFUSED),
    "of strings": (info("x", (4,), 8), REFUSED), "of no shape": (info("x", None), REFUSED),
    "that is a sequence": (field(1, "x") + field(2, field(4, field(1, field(1, field(1, FLOAT))))), REFUSED),
    "that is a map": (field(1, "x") + field(2, field(5, field(1, INT64))), REFUSED),
    "that is a sparse tensor": (field(1, "x") + field(2, field(8, field(1, FLOAT))), REFUSED),
    "that is an optional of nothing": (field(1, "x") + field(2, field(9, b"")), REFUSED),
    "with 17 dimensions": (info("x", (1,) * 17), f"{REFUSED}|op"), "of complex numbers": (info("x", (4,), 14), REFUSED),
}  # fmt: skip
for _what, (_info, _code) in _kinds.items():
    net(29, f"an input {_what}", [node("Neg", ["x"], ["y"])], inputs=[_info], code=_code)


# -------------------------------------------------------------------------------- sizes that only a run knows

_IMAGE, _BOXES, _OF = info("x", ("N", 3, "H", "W")), info("r", ("K", 4)), info("i", ("K",), INT64)
_nested = [node("Shape", ["x"], ["s0"], start=2, end=3), node("Identity", ["x"], ["t0"])]
for _i in range(6):
    _nested += [node("Sub", [f"s{_i}", "seven"], [f"a{_i}"]), node("Div", [f"a{_i}", "two"], [f"b{_i}"]),
                node("Slice", [f"t{_i}", f"b{_i}", "far", "two"], [f"t{_i + 1}"]),
                node("Shape", [f"t{_i + 1}"], [f"s{_i + 1}"], start=2, end=3)]  # fmt: skip
_NUMBERS = [ints("seven", 7), ints("two", 2), ints("far", HALF), ints("huge", 1, 1, HUGE, HUGE)]
for _what, _nodes in {
    "RoiAlign of 2^40 samples": [node("RoiAlign", ["x", "r", "i"], ["y"], sampling_ratio=HUGE)],
    "RoiAlign to 2^40": [node("RoiAlign", ["x", "r", "i"], ["y"], output_height=HUGE)],
    "RoiAlign to nothing": [node("RoiAlign", ["x", "r", "i"], ["y"], output_height=0)],
    "auto_pad by steps of 2^62": [
        node("AveragePool", ["x"], ["y"], auto_pad="SAME_UPPER", kernel_shape=[3, 3], strides=[HALF, HALF])],
    "auto_pad by steps of 2^40": [
        node("MaxPool", ["x"], ["y"], auto_pad="SAME_LOWER", kernel_shape=[HUGE, HUGE], strides=[HUGE, HUGE])],
    "places in windows of 2^40": [node("MaxPool", ["x"], ["y", "p"], kernel_shape=[HUGE, HUGE])],
    "places in windows of 2^22": [node("MaxPool", ["x"], ["y", "p"], kernel_shape=[1 << 11, 1 << 11])],
    "powers of 0": [node("LpPool", ["x"], ["y"], kernel_shape=[2, 2], p=0)],
    "powers of -2^62": [node("LpPool", ["x"], ["y"], kernel_shape=[2, 2], p=-HALF)],
    "a diagonal 2^63 - 1 away": [node("EyeLike", ["r"], ["y"], k=2**63 - 1)],
    "AffineGrid of 2^80": [node("Slice", ["r", "two", "seven"], ["q"]), node("AffineGrid", ["q", "huge"], ["y"])],
    "slices that begin where the last one's size says": [*_nested, node("Neg", ["t6"], ["y"])],
    "2,000 Squeezes without axes": [
        node("Identity", ["x"], ["t0"]), *(node("Squeeze", [f"t{_i}"], [f"t{_i + 1}"]) for _i in range(2000)),
        node("Neg", ["t2000"], ["y"])],
}.items():  # fmt: skip
    net(35, f"{_what}, of an image of any size", _nodes, _NUMBERS, "", WAITS, inputs=[_IMAGE, _BOXES, _OF])

# ------------------------------------------------------------------------------------------------ files of images

_FILE, _BOMB, _U = info("x", ("N",), UINT8), b"P6 60000 60000 255\n", "unsupported"
for _what, (_nodes, _why, _code) in {
    "of floats": ([node("ImageDecoder", ["f"], ["y"])], "encoded must be uint8", _U),
    "of several files": ([node("ImageDecoder", ["two"], ["y"])], "encoded must be uint8", _U),
    "of no file": ([node("ImageDecoder", [], ["y"])], "encoded is missing", _U),
    "in an unknown order": ([node("ImageDecoder", ["x"], ["y"], pixel_format="x" * 10**5)], "pixels must", _U),
    "in an order of no name": ([node("ImageDecoder", ["x"], ["y"], pixel_format=2**62)], "pixel_format", _U),
    "that is told its sizes": ([node("ImageDecoder", ["x"], ["y"], height=3)], "attribute height", _U),
    "of a bomb that the file holds": ([node("ImageDecoder", ["bomb"], ["y"])], "", WAITS),
    "in a loop of 2^62 rounds": ([node("Loop", ["far", "", "x"], ["y"], body=graph(
        [node("ImageDecoder", ["a"], ["b"]), node("Identity", ["g"], ["g2"]), node("Identity", ["a"], ["a2"])],
        [info("i", (), INT64), info("g", (), BOOL), info("a", ("N",), UINT8)], ["g2", "a2"]))], "", WAITS),
    "repeated 2^40 times": (
        [node("ImageDecoder", ["x"], ["image"]), node("Tile", ["image", "huge"], ["y"])], "", WAITS),
}.items():  # fmt: skip
    net(31, f"an image {_what}", _nodes, [
        floats("f", 1), tensor("two", (2, 8), UINT8), ints("huge", HUGE, HUGE, 1), ints("far", HALF, dims=()),
        tensor("bomb", (len(_BOMB),), UINT8, raw=_BOMB),
    ], _why, _code, inputs=[_FILE], kind=UINT8)  # fmt: skip
