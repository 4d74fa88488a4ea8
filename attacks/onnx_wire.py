"""ONNX files out of protobuf's wire format, byte by byte: attacks hold what the package onnx would never write.

Every function gives the bytes of one message of onnx.proto.
"""

from __future__ import annotations

import struct
from typing import Any

FLOAT, UINT8, INT8, INT32, INT64, STRING, BOOL, FLOAT16 = 1, 2, 3, 6, 7, 8, 9, 10
COMPLEX64, FLOAT8, UINT4, INT4 = 14, 17, 21, 22
OPSET = 21


class Graph(bytes):
    """The bytes of a GraphProto, as an attribute's value."""


class Tensor(bytes):
    """The bytes of a TensorProto, as an attribute's value."""


class Sparse(bytes):
    """The bytes of a SparseTensorProto, as an attribute's value."""


SMALL = [bytes([number]) for number in range(128)]  # most numbers: some files have millions


def varint(number: int) -> bytes:
    """A number; negative ones have ten bytes, as protobuf writes them."""
    if 0 <= number < 128:
        return SMALL[number]
    number &= 2**64 - 1
    found = bytearray()
    while number > 127:
        found.append(number & 127 | 128)
        number >>= 7
    return bytes([*found, number])


def field(number: int, value: int | float | str | bytes) -> bytes:
    """One field of a message; bytes are those of another message, or text."""
    if isinstance(value, str):
        value = value.encode("utf-8", "surrogatepass")
    if isinstance(value, bytes):
        return varint(number << 3 | 2) + varint(len(value)) + value
    if isinstance(value, float):
        return varint(number << 3 | 5) + struct.pack("<f", value)
    return varint(number << 3) + varint(value)


def fields(number: int, values: Any) -> bytes:
    """A repeated field."""
    return b"".join(field(number, value) for value in values)


def tensor(
    name: str, dims: Any = (), kind: int = FLOAT, raw: bytes | None = None, ints: Any = (), **external: str
) -> Tensor:
    """A tensor: its bytes (zeros, where nothing is said), int32 numbers, or where it lies outside."""
    data = fields(1, dims) + field(2, kind) + field(8, name)
    if external:
        entries = [field(1, key) + field(2, value) for key, value in external.items()]
        return Tensor(data + fields(13, entries) + field(14, 1))
    if raw is None and not ints:
        count = 1
        for d in dims:
            count *= d
        raw = bytes(count * {INT64: 8, FLOAT: 4, INT32: 4, FLOAT16: 2}.get(kind, 1))
    return Tensor(data + fields(5, ints) + (b"" if raw is None else field(9, raw)))


def ints(name: str, *values: int, dims: Any = None) -> Tensor:
    """int64 numbers."""
    return tensor(name, (len(values),) if dims is None else dims, INT64, struct.pack(f"<{len(values)}q", *values))


def floats(name: str, *values: float, dims: Any = None) -> Tensor:
    """float32 numbers."""
    return tensor(name, (len(values),) if dims is None else dims, FLOAT, struct.pack(f"<{len(values)}f", *values))


def attribute(name: str, value: Any) -> bytes:
    """An attribute of the type that its value has in Python; a tuple is (its type's number, the fields)."""
    if isinstance(value, tuple):
        kind, data = value
        return b"".join([field(1, name), data, field(20, kind)])
    if isinstance(value, list):
        whole = all(isinstance(v, int) for v in value)
        return field(1, name) + fields(8 if whole else 7, value) + field(20, 7 if whole else 6)
    numbers: dict[type, tuple[int, int]] = {
        float: (2, 1), int: (3, 2), str: (4, 3), Tensor: (5, 4), Graph: (6, 5), Sparse: (22, 11)
    }  # fmt: skip
    number, kind = numbers[type(value)]
    return b"".join([field(1, name), field(number, value), field(20, kind)])


def node(op: str, inputs: Any, outputs: Any, domain: str = "", name: str = "", **attributes: Any) -> bytes:
    """A node; attributes by their names."""
    data = fields(1, inputs) + fields(2, outputs) + field(3, name) + field(4, op) + field(7, domain)
    return data + fields(5, [attribute(key, value) for key, value in attributes.items()])


def info(name: str, dims: Any = (4,), kind: int = FLOAT) -> bytes:
    """What an input or output is: a tensor of these sizes and names of sizes; None: of no shape."""
    shape = b"" if dims is None else field(2, fields(1, [field(1 if isinstance(d, int) else 2, d) for d in dims]))
    return field(1, name) + field(2, field(1, field(1, kind) + shape))


def graph(
    nodes: Any, inputs: Any = (), outputs: Any = ("y",), initializers: Any = (), sparse: Any = (), name: str = "net"
) -> Graph:
    """A graph; inputs and outputs are names of float32[4], or what `info` gives."""
    described = [[i if isinstance(i, bytes) else info(i) for i in several] for several in (inputs, outputs)]
    data = fields(1, nodes) + field(2, name) + fields(5, initializers) + fields(15, sparse)
    return Graph(data + fields(11, described[0]) + fields(12, described[1]))


def function(name: str, nodes: Any, inputs: Any = ("x",), outputs: Any = ("y",), domain: str = "own") -> bytes:
    """A function of the model's own."""
    said = fields(9, [opset("", OPSET), opset("own", 1)])
    return field(1, name) + fields(4, inputs) + fields(5, outputs) + fields(7, nodes) + said + field(10, domain)


def opset(domain: str, version: int) -> bytes:
    """Which version of an opset a model is written in."""
    return field(1, domain) + field(2, version)


OPSETS = (opset("", OPSET), opset("own", 1), opset("com.microsoft", 1))


def model(inner: bytes, functions: Any = (), opsets: Any = OPSETS, version: int = 10) -> bytes:
    """A whole file."""
    return field(1, version) + fields(8, opsets) + field(7, inner) + fields(25, functions)
