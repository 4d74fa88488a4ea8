"""Attacks by an ONNX file: protobuf, tensors, data outside of the file, names (classes 1 to 25, 38 to 40)."""

from __future__ import annotations

import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.image import add
from attacks.onnx_wire import (
    BOOL,
    COMPLEX64,
    FLOAT,
    FLOAT8,
    INT4,
    INT64,
    OPSETS,
    STRING,
    UINT8,
    field,
    fields,
    floats,
    graph,
    info,
    ints,
    model,
    node,
    opset,
    tensor,
    varint,
)

REFUSED = "checkpoint|unsupported"


def file(number: int, name: str, data: bytes | Callable[[], bytes], why: str, code: str = "checkpoint") -> None:
    """An attack that is an ONNX file of these bytes, or of what makes them, where that takes a second."""
    add(number, f"onnx: {name}", lambda path: _write(path, data), {"onnx": (code, why)})


def _write(path: Path, data: bytes | Callable[[], bytes]) -> None:
    path.write_bytes(data() if callable(data) else data)


def weight(data: bytes, sparse: bool = False) -> bytes:
    """y = x + w, of this tensor."""
    return model(graph([node("Add", ["x", "w"], ["y"])], ["x"], ["y"], [] if sparse else [data], [data] * sparse))


def good() -> bytes:
    """What attacks start from: y = relu(x · w), w at the end of the file."""
    return model(graph([node("Gemm", ["x", "w"], ["h"]), node("Relu", ["h"], ["y"])], [info("x", ["N", 4])],
                       [info("y", ["N", 3])], [tensor("w", (4, 3))]))  # fmt: skip


# ------------------------------------------------------------------------------------------------------- protobuf

GOOD = good()


def nested(depth: int, *numbers: int) -> bytes:
    """Messages of one field inside one another, by turns of these numbers, the first outermost."""
    lengths, heads = 0, []
    for i in reversed(range(depth)):
        heads.append(varint(numbers[i % len(numbers)] << 3 | 2) + varint(lengths))
        lengths += len(heads[-1])
    return b"".join(reversed(heads))


file(1, "an empty file", b"", "no graph")
file(2, "cut in the middle", GOOD[: len(GOOD) // 2], "is no ONNX model")
file(2, "cut in the last tensor", GOOD[:-20], "is no ONNX model")
file(3, "text", b"# not a model\n" * 9, "is no ONNX model")
file(5, "a length of 2^63 bytes", field(1, 10) + varint(7 << 3 | 2) + varint(2**63) + GOOD, "is no ONNX model")
file(5, "a length beyond the file", varint(7 << 3 | 2) + varint(1 << 30) + GOOD, "is no ONNX model")
file(5, "a number that does not end", b"\x38" + b"\xff" * 200, "is no ONNX model")
file(5, "a group that does not end", b"\x3b" * 5000, "is no ONNX model")
file(5, "a field of number 0", b"\x02\x01a" + GOOD, "is no ONNX model")
file(5, "a graph that is a number", field(7, 5), "no graph|is no ONNX model")
file(8, "subgraphs 50 deep", field(7, nested(150, 1, 5, 6)), "is no ONNX model")
file(8, "subgraphs 10,000 deep", field(7, nested(30_000, 1, 5, 6)), "is no ONNX model")
file(8, "types 5,000 deep", model(graph([], [field(1, "x") + field(2, nested(10_000, 4, 1))])), "is no ONNX model")
file(8, "groups 10,000 deep", b"\x0b" * 10_000 + b"\x0c" * 10_000, "is no ONNX model")
file(21, "10^7 nodes of no bytes", field(7, fields(1, [b""]) * 10_000_000), "more than")
file(21, "10^7 tensors of no bytes", field(7, fields(5, [b""]) * 10_000_000), "more than")
file(21, "10^7 attributes of no bytes", field(7, field(1, fields(5, [b""]) * 10_000_000)), "more than")
file(21, "10^7 names of no bytes", field(7, field(1, fields(1, [b""]) * 10_000_000)), "more than")
file(21, "10^7 functions of no bytes", GOOD + fields(25, [b""]) * 10_000_000, "more than")
file(33, "200,001 nodes", lambda: model(graph([node("Neg", ["x"], [f"y{i}"]) for i in range(200_001)], ["x"], ["y1"])),
     "more than 200,000 nodes")  # fmt: skip
file(12, "a second model behind it", GOOD + GOOD, "twice|two|is an input", REFUSED)
add(13, "onnx: a FIFO", lambda path: os.mkfifo(path), {"onnx": ("checkpoint", "not a regular file")})
add(13, "onnx: a directory", lambda path: path.mkdir(), {"onnx": ("checkpoint", "not a regular file")})
add(13, "onnx: a device", lambda path: path.symlink_to("/dev/zero"), {"onnx": ("checkpoint", "not a regular file")})


def _sparse_file(path: Path) -> None:
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


add(13, "onnx: a sparse file of 1 TB", _sparse_file, {"onnx": ("checkpoint", "such a file has at most")})

# ------------------------------------------------------------------------------------------- versions and opsets

PLAIN = graph([node("Neg", ["x"], ["y"])], ["x"])
file(4, "a format of the future", model(PLAIN, version=9999), "9999", "unsupported")
file(4, "a negative format", model(PLAIN, version=-1), "-1", "unsupported")
file(28, "an opset of the future", model(PLAIN, opsets=[opset("", 9999)]), "9999", REFUSED)
file(28, "a negative opset", model(PLAIN, opsets=[opset("", -1)]), "-1 is no version")
file(28, "an opset of 2^63 - 1", model(PLAIN, opsets=[opset("", 2**63 - 1)]), "is no version")
file(28, "one opset in two versions", model(PLAIN, opsets=[opset("", 21), opset("ai.onnx", 13)]), "two versions")
file(28, "no opset", model(PLAIN, opsets=[]), "no version of the opset", "unsupported")
file(28, "an unknown domain", model(graph([node("Neg", ["x"], ["y"], "a.stranger")], ["x"]),
     opsets=[*OPSETS, opset("a.stranger", 1)]), "no such op", "unsupported")  # fmt: skip
file(28, "an unknown op", model(graph([node("Nothing", ["x"], ["y"])], ["x"])), "no such op", "unsupported")
file(28, "an op of no name", model(graph([node("", ["x"], ["y"])], ["x"])), "no such op", "unsupported")

# ---------------------------------------------------------------------------------------------------------- names

for _what, _name in {
    "a path": "../../etc/passwd", "an absolute path": "/etc/passwd", "control characters": "a\x1b[2Jb\nc",
    "a NUL": "a\0b", "1 MB": "n" * 1_000_000, "a direction mark": "a\u202eb", "no characters": "",
}.items():  # fmt: skip
    _refused = REFUSED if _what != "an absolute path" else f"{REFUSED}|accepted"
    file(22, f"an input named {_what}", model(graph([node("Neg", [_name], ["y"])], [info(_name)])), "", _refused)
    file(22, f"an output named {_what}", model(graph([node("Neg", ["x"], [_name])], ["x"], [info(_name)])), "",
         _refused)  # fmt: skip
    file(22, f"a weight named {_what}", model(graph([node("Add", ["x", _name], ["y"])], ["x"], ["y"],
         [floats(_name, 1, 2, 3, 4)])), "", _refused)  # fmt: skip
    file(22, f"a failing node named {_what}", model(graph([node("Nothing" + _name, ["x"], ["y"], name=_name)], ["x"])),
         "no such op|is not UTF-8|cannot be printed", REFUSED)  # fmt: skip
file(7, "a name that is not UTF-8", model(graph([node("Neg", ["x"], ["y"])], ["x"])).replace(b"Neg", b"N\xffg"),
     "not UTF-8")  # fmt: skip
file(7, "a lone surrogate", model(graph([node("Neg", ["\ud800"], ["y"])], ["x"])), "not UTF-8")
file(22, "a size named 1 MB", model(graph([node("Neg", ["x"], ["y"])], [info("x", ["n" * 1_000_000])])), "",
     f"{REFUSED}|accepted")  # fmt: skip
for _what, _size in {
    "code": "__import__('os').system('touch /tmp/ingot-attack-pickle')", "a power": "9**9**9**9",
    "a long number": "9" * 9000, "a deep expression": "(" * 4000 + "N" + ")" * 4000, "a long sum": "N+" * 4000 + "N",
    "a product of sums": "*".join(f"(a{i}+b{i})" for i in range(700)), "a power of a sum": "*".join(["(N+1)"] * 900),
    "nested maxima": "max(N, " * 800 + "1" + ")" * 800, "a division by zero": "N//0", "a remainder of zero": "N%0",
    "a name of Python": "lambda", "an f-string": "f'{N}'", "a walrus": "(N:=3)", "2^63": "9223372036854775808*N",
    "a warning": "1is N", "an odd escape": "'\\q'",
}.items():  # fmt: skip
    file(29, f"a size that is {_what}", model(graph([node("Neg", ["x"], ["y"])], [info("x", [_size])],
         [info("y", None)])), "", f"{REFUSED}|dim|accepted")  # fmt: skip

# --------------------------------------------------------------------------------------------------------- shapes

for _what, _dims in {
    "2^32 × 2^32": (1 << 32, 1 << 32), "2^63 - 1": (2**63 - 1,), "65 dimensions": (1,) * 65,
    "-1": (-1,), "-2^63": (-(2**63),), "100,000 dimensions": (1,) * 100_000,
}.items():  # fmt: skip
    file(16, f"a weight of {_what}", weight(tensor("w", _dims, raw=bytes(16))), "impossible shape|must have")
    if _what not in ("-1", "-2^63"):  # an input's size that is negative has no name, and is dynamic
        file(16, f"an input of {_what}", model(graph([node("Neg", ["x"], ["y"])], [info("x", _dims)])),
             "", f"{REFUSED}|op|dim|kernel_refused|accepted")  # fmt: skip

# -------------------------------------------------------------------------------------------------------- tensors

FOUR = bytes(16)
file(17, "a weight that is too short", weight(tensor("w", (4,), raw=bytes(15))), "must have 16 bytes, and has 15")
file(17, "a weight that is too long", weight(tensor("w", (4,), raw=bytes(17))), "must have 16 bytes, and has 17")
file(17, "a weight of no data", weight(field(1, 4) + field(2, FLOAT) + field(8, "w")), "must have 4 numbers")
file(17, "a weight in raw bytes and numbers", weight(tensor("w", (4,), raw=FOUR) + fields(4, [1.0] * 4)),
     "more than one place")  # fmt: skip
file(17, "a weight in pieces", weight(tensor("w", (4,), raw=FOUR) + field(3, field(1, 0) + field(2, 4))), "segment")
file(17, "bytes of 1000", weight(tensor("w", (4,), UINT8, ints=[1000] * 4)), "out of the range")
file(17, "bools of 7", model(graph([node("Where", ["w", "x", "x"], ["y"])], ["x"], ["y"],
     [tensor("w", (4,), BOOL, ints=[7] * 4)])), "out of the range")  # fmt: skip
file(20, "elements of the type 99", weight(tensor("w", (4,), 99, FOUR)), "unknown type 99", REFUSED)
file(20, "elements of the type -1", weight(tensor("w", (4,), -1, FOUR)), "unknown type", REFUSED)
file(20, "elements of no type", weight(tensor("w", (4,), 0, FOUR)), "unknown type", REFUSED)
file(20, "elements that are strings", weight(field(1, 4) + field(2, STRING) + field(8, "w") + fields(6, ["a"] * 4)),
     "strings", REFUSED)  # fmt: skip
file(20, "elements that are complex", weight(tensor("w", (4,), COMPLEX64, bytes(32))), "complex", REFUSED)
file(20, "elements of 8 bits that nothing adds", weight(tensor("w", (4,), FLOAT8, bytes(4))), "float8", REFUSED)
file(23, "three of 4 bits in three bytes", weight(tensor("w", (3,), INT4, bytes(3))), "must have 2 bytes, and has 3")
file(23, "three of 4 bits in one byte", weight(tensor("w", (3,), INT4, bytes(1))), "must have 2 bytes, and has 1")
file(22, "two weights of one name", model(graph([node("Add", ["x", "w"], ["y"])], ["x"], ["y"],
     [floats("w", 1, 2, 3, 4)] * 2)), "two initializers are called 'w'")  # fmt: skip
file(22, "two inputs of one name", model(graph([node("Neg", ["x"], ["y"])], ["x", "x"])), "two inputs are called 'x'")
file(22, "two outputs of one name", model(graph([node("Neg", ["x"], ["y"])], ["x"], ["y", "y"])), "two outputs")
file(22, "two values of one name", model(graph([node("Neg", ["x"], ["y"])] * 2, ["x"])), "'y' is made twice")
file(22, "a node that makes its input", model(graph([node("Neg", ["x"], ["x"])], ["x"], ["x"])), "'x' is made twice")
file(22, "an input that is a weight of another shape", model(graph([node("Neg", ["x"], ["y"])], ["x"], ["y"],
     [tensor("x", (5,), INT64)])), "", f"{REFUSED}|accepted")  # fmt: skip
file(22, "a function twice", model(PLAIN, [field(1, "f")] * 2), "defined twice")


def sparse(values: bytes, places: bytes, *dims: int) -> bytes:
    return field(1, values) + field(2, places) + fields(3, dims)


TWO = floats("w", 1, 2)
for _what, _tensor in {
    "an index out of range": sparse(TWO, ints("", 0, 4), 4), "a negative index": sparse(TWO, ints("", -1, 2), 4),
    "an index twice": sparse(TWO, ints("", 2, 2), 4), "too few indices": sparse(TWO, ints("", 1), 4),
    "indices that descend": sparse(TWO, ints("", 3, 1), 4), "no indices": sparse(TWO, b"", 4),
    "indices of floats": sparse(TWO, floats("", 1, 2), 4), "2^40 elements": sparse(TWO, ints("", 1, 2), 1 << 40),
    "2^30 elements": sparse(TWO, ints("", 1, 2), 1 << 30), "a negative size": sparse(TWO, ints("", 1, 2), -4),
    "a size of 0": sparse(floats("w"), ints(""), 0), "2^63 × 2^63": sparse(TWO, ints("", 1, 2), 2**62, 2**62, 2**62),
    "70 dimensions": sparse(TWO, ints("", 0, 1), *[1] * 69, 4),
    "indices of three dimensions": sparse(TWO, ints("", 1, 2, dims=(1, 2, 1)), 4),
    "values of two dimensions": sparse(floats("w", 1, 2, dims=(1, 2)), ints("", 1, 2), 4),
}.items():  # fmt: skip
    file(40, f"sparse, with {_what}", weight(_tensor, sparse=True), "w'|sparse|strings|unknown type", REFUSED)

# ------------------------------------------------------------------------------------------ data outside of the file


def outside(
    name: str, why: str, prepare: Callable[[Path], object] = lambda folder: None, code: str = "checkpoint", **keys: str
) -> None:
    """y = x + w where w lies in another file. `prepare` fills the model's folder."""

    def make(path: Path) -> None:
        folder = path.with_suffix(".data")
        folder.mkdir()
        (folder / "w").write_bytes(bytes(16))
        prepare(folder)
        where: Any = {key: value.replace("DATA", folder.name) for key, value in keys.items()}
        path.write_bytes(weight(tensor("w", (4,), **where)))

    add(39, f"onnx: outside, {name}", make, {"onnx": (code, why)})


def _twice(folder: Path) -> None:
    os.link(folder / "w", folder / "v")


outside("absolute", "no path inside", location="/etc/passwd")
outside("up", "no path inside", location="../w")
outside("up in the middle", "no path inside", location="DATA/../../w")
outside("a network share", "no path inside", location="\\\\host\\share")
outside("a drive", "no path inside", location="c:/w")
outside("a NUL", "no path inside", location="DATA/w\0")
outside("no location", "no path inside", offset="0")
outside("an empty location", "no path inside", location="")
outside("the folder itself", "no path inside|no plain file", location=".")
outside("a location of 1 MB", "no path inside", location="a/" * 500_000)
outside("a memory marker", "no path inside", location="*/_ORT_MEM_ADDR_/*", offset="0", length="16")
outside("an unknown key", "unknown or given twice", location="DATA/w", address="1")
outside("nothing there", "No such file", location="DATA/nothing")
outside("a link", "links are not followed", lambda f: (f / "v").symlink_to("w"), location="DATA/v")
outside("a linked folder", "links are not followed", lambda f: (f / "d").symlink_to("."), location="DATA/d/w")
outside("a link to a device", "links are not followed", lambda f: (f / "v").symlink_to("/dev/zero"), location="DATA/v")
outside("a second name", "no plain file of its own", _twice, location="DATA/w")
outside("a FIFO", "no plain file", lambda f: os.mkfifo(f / "v"), location="DATA/v")
outside("a folder", "no plain file", lambda f: (f / "v").mkdir(), location="DATA/v")
outside("a negative offset", "no number of bytes", location="DATA/w", offset="-4")
outside("an offset beyond the file", "ends at byte 20", location="DATA/w", offset="4")
outside("an offset of 2^63", "no number of bytes|ends at byte", location="DATA/w", offset=str(2**63))
outside("an offset in words", "no number of bytes", location="DATA/w", offset="four")
outside("an offset in other digits", "no number of bytes", location="DATA/w", offset="٤")
outside("a negative length", "no number of bytes", location="DATA/w", length="-16")
outside("a length of a petabyte", "its length says", location="DATA/w", length="9" * 15)
outside("a length of another shape", "its length says", location="DATA/w", length="12")
outside("a file that is too short", "ends at byte 16", lambda f: (f / "w").write_bytes(bytes(9)), location="DATA/w")


def _both(path: Path) -> None:
    inner = tensor("w", (4,), location="w") + field(9, struct.pack("<4f", 1, 2, 3, 4))
    path.write_bytes(weight(inner))


add(39, "onnx: outside and inside", _both, {"onnx": ("checkpoint", "more than one place")})
