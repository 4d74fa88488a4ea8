"""Attacks by a .pt2 file: the zip container, its JSON, its tensors and its graph (classes 1 to 32)."""

from __future__ import annotations

import json
import os
import pickle
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from attacks.image import add

Json = Any


class Bomb:
    """Runs code where it is un-pickled."""

    def __reduce__(self) -> Any:
        return os.system, ("touch /tmp/ingot-attack-pickle",)


def tensor(*sizes: int, dtype: int = 7) -> Json:
    """A contiguous tensor's description."""
    strides = [1] * len(sizes)
    for i in reversed(range(len(sizes) - 1)):
        strides[i] = strides[i + 1] * sizes[i + 1]
    return {
        "dtype": dtype, "sizes": [{"as_int": n} for n in sizes], "requires_grad": False,
        "device": {"type": "cpu", "index": None}, "strides": [{"as_int": n} for n in strides],
        "storage_offset": {"as_int": 0}, "layout": 7,
    }  # fmt: skip


def node(op: str, result: str, **arguments: Json) -> Json:
    """A call of an op with one result."""
    inputs = [{"name": name, "arg": arg, "kind": 1} for name, arg in arguments.items()]
    metadata = {"stack_trace": 'File "net.py", line 7, in forward', "nn_module_stack": "L__self__,,Net"}
    return {"target": f"torch.ops.{op}", "inputs": inputs, "outputs": [{"as_tensor": {"name": result}}],
            "metadata": metadata, "is_hop_single_tensor_return": None, "name": result}  # fmt: skip


def ref(name: str) -> Json:
    return {"as_tensor": {"name": name}}


def program() -> Json:
    """y = relu(x · wᵀ + b) for x [2, 4], w [3, 4], b [3]."""
    tensors = {"p_w": tensor(3, 4), "p_b": tensor(3), "x": tensor(2, 4), "linear": tensor(2, 3), "relu": tensor(2, 3)}
    graph = {
        "inputs": [ref("p_w"), ref("p_b"), ref("x")],
        "outputs": [ref("relu")],
        "nodes": [
            node("aten.linear.default", "linear", input=ref("x"), weight=ref("p_w"), bias=ref("p_b")),
            node("aten.relu.default", "relu", self=ref("linear")),
        ],
        "tensor_values": tensors, "sym_int_values": {}, "sym_bool_values": {}, "is_single_tensor_return": False,
        "custom_obj_values": {}, "sym_float_values": {},
    }  # fmt: skip
    inputs = [
        {"parameter": {"arg": {"name": "p_w"}, "parameter_name": "w"}},
        {"parameter": {"arg": {"name": "p_b"}, "parameter_name": "b"}},
        {"user_input": {"arg": ref("x")}},
    ]
    leaf: Json = {"type": None, "context": None, "children_spec": []}
    spec = {"type": "builtins.tuple", "context": "null", "children_spec": [
        {"type": "builtins.tuple", "context": "null", "children_spec": [leaf]},
        {"type": "builtins.dict", "context": "[]", "children_spec": []}]}  # fmt: skip
    call = {"inputs": [], "outputs": [], "in_spec": json.dumps([1, spec]), "out_spec": json.dumps([1, leaf]),
            "forward_arg_names": ["x"]}  # fmt: skip
    return {
        "graph_module": {
            "graph": graph,
            "signature": {"input_specs": inputs, "output_specs": [{"user_output": {"arg": ref("relu")}}]},
            "module_call_graph": [{"fqn": "", "signature": call}], "metadata": {}, "treespec_namedtuple_fields": {},
        },
        "opset_version": {"aten": 10}, "range_constraints": {}, "schema_version": {"major": 8, "minor": 20},
        "verifiers": ["TRAINING"], "torch_version": "2.13.0", "guards_code": [],
    }  # fmt: skip


def entry(member: str, meta: Json, use_pickle: bool = False) -> Json:
    return {"path_name": member, "is_param": True, "use_pickle": use_pickle, "tensor_meta": meta}


@dataclass
class Member:
    """One member and what its headers claim."""

    name: str
    data: bytes
    method: int = 0
    flags: int = 0x808
    size: int | None = None
    packed: int | None = None
    crc: int | None = None
    at: int | None = None  # where the directory says it begins
    local_name: str | None = None


@dataclass
class Package:
    """A .pt2 file in parts; `members` come behind those made of the other fields."""

    program: Json = field(default_factory=program)
    weights: dict[str, Json] = field(
        default_factory=lambda: {"w": entry("weight_0", tensor(3, 4)), "b": entry("weight_1", tensor(3))}
    )
    constants: dict[str, Json] = field(default_factory=dict)
    labels: dict[str, bytes] = field(
        default_factory=lambda: {"archive_format": b"pt2", "archive_version": b"0", "byteorder": b"little"}
    )
    storages: dict[str, bytes] = field(
        default_factory=lambda: {"weights/weight_0": bytes(48), "weights/weight_1": bytes(12)}
    )
    members: list[Member] = field(default_factory=list)
    text: bytes | None = None
    folder: str = "net"
    count: int | None = None
    tail: bytes = b""

    @property
    def graph(self) -> Json:
        return self.program["graph_module"]["graph"]

    def value(self, name: str) -> Json:
        """The description of a tensor of the graph."""
        return self.graph["tensor_values"][name]

    def weight(self, name: str) -> Json:
        """The description of a stored tensor."""
        return self.weights[name]["tensor_meta"]

    @property
    def call(self) -> Json:
        """How forward was called."""
        return self.program["graph_module"]["module_call_graph"][0]["signature"]

    def argument(self, index: int, name: str, value: Json) -> None:
        """Gives a node an argument."""
        inputs = self.graph["nodes"][index]["inputs"]
        inputs[:] = [i for i in inputs if i["name"] != name] + [{"name": name, "arg": value, "kind": 1}]

    def encode(self) -> bytes:
        text = json.dumps(self.program).encode() if self.text is None else self.text
        made = [Member(f"{self.folder}/data/{name}", data) for name, data in self.storages.items()]
        made += [
            Member(f"{self.folder}/data/weights/model_weights_config.json", _config(self.weights)),
            Member(f"{self.folder}/data/constants/model_constants_config.json", _config(self.constants)),
            Member(f"{self.folder}/models/model.json", text),
            Member(f"{self.folder}/data/sample_inputs/model.pt", pickle.dumps(Bomb())),
        ]
        made += [Member(f"{self.folder}/{name}", data) for name, data in self.labels.items()]
        return archive(made + self.members, self.count) + self.tail


def _config(entries: dict[str, Json]) -> bytes:
    return json.dumps({"config": entries}).encode()


def archive(members: list[Member], count: int | None = None) -> bytes:
    """A zip file as torch writes it: stored, sizes behind the data."""
    out, directory = b"", b""
    for m in members:
        at, name = len(out), m.name.encode()
        local = name if m.local_name is None else m.local_name.encode()
        size = len(m.data) if m.size is None else m.size
        packed = size if m.packed is None else m.packed
        crc = zlib.crc32(m.data) if m.crc is None else m.crc
        out += struct.pack("<4s5H3L2H", b"PK\3\4", 0, m.flags, m.method, 0, 0, 0, 0, 0, len(local), 0) + local + m.data
        out += struct.pack("<4s3L", b"PK\7\x08", crc, packed & 0xFFFFFFFF, size & 0xFFFFFFFF)
        place = at if m.at is None else m.at
        extra = b""
        if max(size, packed) > 0xFFFFFFFE:
            extra = struct.pack("<2H2Q", 1, 16, size, packed)
            size = packed = 0xFFFFFFFF
        directory += struct.pack("<4s6H3L5H2L", b"PK\1\2", 0, 0, m.flags, m.method, 0, 0, crc, packed, size, len(name),
                                 len(extra), 0, 0, 0, 0, place) + name + extra  # fmt: skip
    number = len(members) if count is None else count
    end = struct.pack("<4s4H2LH", b"PK\5\6", 0, 0, number, number, len(directory), len(out), 0)
    return out + directory + end


def package(number: int, name: str, change: Callable[[Package], object], why: str, code: str = "checkpoint") -> None:
    """An attack that alters a good package in place."""

    def make(path: Path) -> None:
        made = Package()
        change(made)
        path.write_bytes(made.encode())

    add(number, f"pt2: {name}", make, {"exported": (code, why)})


def raw(number: int, name: str, content: Callable[[bytes], bytes], why: str) -> None:
    """An attack on the bytes of a good package."""

    def make(path: Path) -> None:
        path.write_bytes(content(Package().encode()))

    add(number, f"pt2: {name}", make, {"exported": ("checkpoint", why)})


def several(*_: object) -> None:
    """Changes that were made in order."""


# ---------------------------------------------------------------------------------------------------- container
raw(1, "empty", lambda data: b"", r"is not a .pt2 archive \(0 bytes\)")
for _share in (0.1, 0.5, 0.9, 0.999):
    raw(2, f"cut off at {_share}", lambda data, s=_share: data[: int(len(data) * s)], "not a whole .pt2 archive")
raw(3, "text", lambda data: b"hello " * 50, "not a whole .pt2 archive")
raw(3, "a pickle", lambda data: pickle.dumps(Bomb()) + bytes(100), "is a pickle")
raw(12, "bytes behind it", lambda data: data + b"garbage", "not a whole .pt2 archive")
raw(12, "bytes before it", lambda data: b"#!/bin/sh\n" + data, "not a whole .pt2 archive")
raw(11, "a flipped bit in a weight", lambda data: data.replace(bytes(48), bytes(40) + b"\1" + bytes(7), 1), "checksum")
raw(11, "a flipped bit in the program", lambda data: data.replace(b"aten.relu", b"aten.relv", 1), "checksum")
add(13, "pt2: a directory", lambda path: path.mkdir(), {"exported": ("checkpoint", "not a regular file")})
add(13, "pt2: a FIFO", lambda path: os.mkfifo(path), {"exported": ("checkpoint", "not a regular file")})
add(13, "pt2: /dev/zero", lambda path: path.symlink_to("/dev/zero"), {"exported": ("checkpoint", "not a regular file")})


def _sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


add(13, "pt2: a terabyte of nothing", _sparse, {"exported": ("checkpoint", "not a whole .pt2 archive")})
package(12, "a member count that lies", lambda p: setattr(p, "count", 3), "longer than its entries")
package(12, "more members than there are", lambda p: setattr(p, "count", 5000), "malformed at entry")
package(22, "two members of one name",
        lambda p: p.members.append(Member("net/models/model.json", b"{}")), "two members named")  # fmt: skip
for _name in (
    "../escape",
    "net/../../escape",
    "/etc/passwd",
    "net//x",
    "net/./x",
    "net\\x",
    "net/\x00",
    "net/" + "x" * 2000,
    "",
):
    package(39, f"a member named {_name[:20]!r}", lambda p, n=_name: p.members.append(Member(n, b"")), "the member")
package(
    39, "members of two folders", lambda p: p.members.append(Member("other/x", b"")), "all its members in one folder"
)
package(38, "a compressed member", lambda p: p.members.append(Member("net/x", zlib.compress(bytes(10**6)), method=8)),
        "is compressed")  # fmt: skip
package(38, "a compression bomb as weight", lambda p: p.members.append(
    Member("net/data/weights/weight_2", b"x" * 100, method=8, size=10**12, packed=100)), "is compressed")  # fmt: skip
package(38, "an encrypted member", lambda p: p.members.append(Member("net/x", b"x", flags=0x809)), "is compressed, enc")
package(17, "sizes that disagree", lambda p: p.members.append(Member("net/x", b"x" * 10, size=20, packed=10)),
        "claims 20 bytes but 10 are stored")  # fmt: skip
for _size in (10**6, 2**32 - 2, 2**62):
    package(5, f"a member of {_size} bytes", lambda p, s=_size: p.members.append(Member("net/x", b"x", size=s)),
            "outside the file")  # fmt: skip
package(
    18,
    "overlapping members",
    lambda p: several(
        p.storages.pop("weights/weight_0"), p.members.append(Member("net/data/weights/weight_0", b"x" * 12, at=0))
    ),
    "header and the directory disagree|overlaps",
)
_INSIDE = struct.pack("<4s5H3L2H", b"PK\3\4", 0, 0x808, 0, 0, 0, 0, 0, 0, 5, 0) + b"net/y"
package(
    18,
    "a member inside a member",
    lambda p: several(
        p.members.append(Member("net/x", _INSIDE)),
        p.members.append(Member("net/y", b"", at=p.encode().index(_INSIDE))),
    ),
    "y overlaps x",
)
package(12, "a local name that differs", lambda p: p.members.append(Member("net/x", b"x", local_name="net/y")),
        "header and the directory disagree")  # fmt: skip
package(4, "another format", lambda p: p.labels.update(archive_format=b"pt3"), "archive_format is 'pt3'")
package(4, "another version", lambda p: p.labels.update(archive_version=b"9"), "archive_version is '9'")
package(4, "big endian", lambda p: p.labels.update(byteorder=b"big"), "byteorder is 'big'")
package(4, "no format", lambda p: p.labels.pop("archive_format"), "has no archive_format")
package(4, "a version of 10 MB", lambda p: p.labels.update(archive_version=b"0" * 10**7), "at most 64")
package(
    4,
    "an old archive",
    lambda p: several(p.labels.clear(), p.members.append(Member("net/serialized_exported_program.json", b"{}"))),
    "older torch",
)
package(
    4,
    "a TorchScript archive",
    lambda p: several(p.labels.clear(), p.members.append(Member("net/data.pkl", pickle.dumps(Bomb())))),
    "a pickle that can run any code",
)
package(
    4, "no model", lambda p: setattr(p, "folder", "models/model.json"), "holds 0 models|in one folder|no archive_form"
)
package(4, "two models", lambda p: p.members.append(Member("net/models/other.json", b"{}")), "holds 2 models")

# ----------------------------------------------------------------------------------------------------- pickles
package(
    44,
    "a pickled weight",
    lambda p: several(
        p.weights.update(w=entry("weight_0", tensor(3, 4), True)),
        p.storages.update({"weights/weight_0": pickle.dumps(Bomb())}),
    ),
    "weight_0 holds w as pickle",
)
package(
    44,
    "a pickled constant",
    lambda p: several(p.weights.pop("b"), p.constants.update(b=entry("tensor_0", None, True))),
    "tensor_0 holds b as pickle",
)
package(
    44,
    "a pickled object that nothing needs",
    lambda p: several(p.constants.update(o=entry("custom_obj_0", None, True)), p.weights.pop("w")),
    "no tensor 'w'",
)
package(44, "pickled weights of before", lambda p: p.members.append(
    Member("net/data/weights/model.pt", pickle.dumps(Bomb()))), "model.pt holds its weights as pickle")  # fmt: skip
package(44, "pickled constants of before", lambda p: p.members.append(
    Member("net/data/constants/model.pt", pickle.dumps(Bomb()))), "model.pt holds its constants as pickle")  # fmt: skip

# -------------------------------------------------------------------------------------------------------- JSON
_TEXTS: dict[str, tuple[int, bytes, str]] = {
    "not UTF-8": (7, b'{"\xff": 1}', "not UTF-8"),
    "not JSON": (7, b"{'x': 1}", "models/model.json"),
    "a list": (29, b"[]", "must be a JSON object"),
    "depth": (8, b'{"x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested deeper"),
    "a duplicate key": (9, b'{"schema_version": {"major": 8}, "schema_version": {}}', "appears twice"),
    "NaN": (10, b'{"x": NaN}', "NaN is not JSON"),
    "1e400": (10, b'{"x": 1e400}', "too large"),
    "an integer beyond 64 bits": (10, b'{"x": 99999999999999999999999}', "64 bits"),
    "ten million entries": (21, b'{"x":[' + b"0," * 10**7 + b"0]}", "entries"),
    "nothing": (29, b"{}", "its schema has version None"),
    "an empty program": (29, b'{"schema_version": {"major": 8, "minor": 20}}', "lacks graph_module"),
}
for _label, (_number, _text, _why) in _TEXTS.items():
    package(_number, f"program: {_label}", lambda p, t=_text: setattr(p, "text", t), _why)
package(6, "program: 65 MB", lambda p: setattr(p, "text", b" " * (65 << 20)), "at most 67,108,864")
package(4, "program: schema 9", lambda p: p.program["schema_version"].update(major=9), "schema has version 9")
package(29, "program: an unknown field", lambda p: p.graph.update(execute="rm -rf"), "unknown field 'execute'")
package(
    29, "program: a node with an unknown field", lambda p: p.graph["nodes"][0].update(code="x"), "nodes.0: has an unk"
)
package(29, "program: inputs that are text", lambda p: p.graph.update(inputs="x"), "graph.inputs: must be a list")
package(29, "program: an argument of two kinds", lambda p: p.graph["nodes"][0]["inputs"][0].update(
    arg={"as_int": 1, "as_bool": True}), "one field that says its kind")  # fmt: skip
package(29, "program: an argument of no kind", lambda p: p.argument(0, "bias", {"as_python": "x"}), "unknown kind")
package(29, "program: true as an int", lambda p: p.argument(0, "bias", {"as_int": True}), "must be an integer")
package(20, "program: element type 99", lambda p: p.value("x").update(dtype=99), "unknown element type 99")
package(16, "program: a negative size", lambda p: p.value("x")["sizes"].__setitem__(0, {"as_int": -2}), "negative")
package(16, "program: sizes without strides", lambda p: p.value("x").update(strides=[]), "2 sizes and 0 strides")
package(16, "program: 65 dimensions", lambda p: p.value("x").update(
    sizes=[{"as_int": 1}] * 65, strides=[{"as_int": 1}] * 65), "too large")  # fmt: skip
package(15, "program: 2^124 elements", lambda p: p.value("x").update(
    sizes=[{"as_int": 2**62}] * 2), "too large")  # fmt: skip
_EXPRESSIONS = (
    "__import__('os').system('x')", "Symbol('s0').__class__", "s0", "Add(" * 500 + ")" * 500,
    "Pow(Integer(2), Integer(10**9))", "Integer(9" + "9" * 5000 + ")", "Symbol('a b')", "lambda: 1",
    "FloorDiv(Integer(4), Integer(0))", "Mul(" + ", ".join(["Symbol('s')"] * 200) + ")", "x" * 30000,
)  # fmt: skip
for _expr in _EXPRESSIONS:
    package(37, f"program: the size {_expr[:40]}", lambda p, e=_expr: p.value("x")["sizes"].__setitem__(
        0, {"as_expr": {"expr_str": e, "hint": None}}), "sizes.0")  # fmt: skip
package(
    29,
    "program: a range that is empty",
    lambda p: several(
        p.value("x")["sizes"].__setitem__(0, {"as_expr": {"expr_str": "Symbol('s0')", "hint": None}}),
        p.program["range_constraints"].update(s0={"min_val": 9, "max_val": 3}),
    ),
    "range of the symbol s0",
)
package(29, "program: a tree that is deep", lambda p: p.call.update(in_spec="[" * 10**5), "in_spec")

# ----------------------------------------------------------------------------------------------------- tensors
package(
    16, "tensor: a negative stride", lambda p: p.weight("w")["strides"].__setitem__(0, {"as_int": -4}), "not be negat"
)
package(
    18, "tensor: a negative offset", lambda p: p.weight("w").update(storage_offset={"as_int": -1}), "not be negative"
)
package(
    18, "tensor: an offset outside", lambda p: p.weight("w").update(storage_offset={"as_int": 1}), "reaches element 12"
)
package(
    18, "tensor: strides outside", lambda p: p.weight("w")["strides"].__setitem__(0, {"as_int": 2**61}), "reaches elem"
)
package(15, "tensor: 2^62 elements of one", lambda p: p.weight("w").update(
    sizes=[{"as_int": 2**31}] * 2, strides=[{"as_int": 0}] * 2), "would come from a storage of 48 bytes")  # fmt: skip
package(15, "tensor: sizes beyond 64 bits", lambda p: p.weight("w").update(
    sizes=[{"as_int": 2**62}] * 2), "would come from a storage")  # fmt: skip
package(16, "tensor: 65 dimensions", lambda p: p.weight("w").update(
    sizes=[{"as_int": 1}] * 65, strides=[{"as_int": 1}] * 65), "at most 16")  # fmt: skip
package(16, "tensor: a symbolic size", lambda p: p.weight("w")["sizes"].__setitem__(
    0, {"as_expr": {"expr_str": "Symbol('s0')", "hint": None}}), "plain sizes")  # fmt: skip
package(17, "tensor: half an element", lambda p: p.storages.update({"weights/weight_0": bytes(47)}), "whole number")
package(
    17, "tensor: a short storage", lambda p: p.storages.update({"weights/weight_0": bytes(44)}), "reaches element 11"
)
package(17, "tensor: another dtype than the program's", lambda p: p.weight("w").update(dtype=4), "w is i32")
package(17, "tensor: another shape than the program's", lambda p: p.weight("w").update(
    tensor(4, 3)), r"w is f32\[4, 3\] where it is stored")  # fmt: skip
package(20, "tensor: a sparse layout", lambda p: p.weight("w").update(layout=1), "not the plain one")
package(
    39, "tensor: a member elsewhere", lambda p: p.weights["w"].update(path_name="../../archive_format"), "no plain name"
)
package(39, "tensor: a member that is not there", lambda p: p.weights["w"].update(path_name="weight_9"), "is not there")
package(
    22, "tensor: a name that is a path", lambda p: p.weights.update({"../x": entry("weight_0", tensor(3, 4))}), "a path"
)
package(
    22,
    "tensor: both weight and constant",
    lambda p: p.constants.update(w=entry("tensor_0", tensor(1))),
    "both a weight",
)
package(29, "tensor: not described", lambda p: p.weights.pop("w"), "no tensor 'w', which its program reads")

# ------------------------------------------------------------------------------------------------------- graph
package(26, "graph: a cycle", lambda p: p.argument(0, "input", ref("relu")), "a cycle, or a gap")
package(27, "graph: a value from nowhere", lambda p: p.argument(1, "self", ref("ghost")), "reads 'ghost'")
package(
    27, "graph: a value made twice", lambda p: p.graph["nodes"][1].update(outputs=[ref("linear")]), "exists already"
)
package(27, "graph: an input made again", lambda p: p.graph["nodes"][1].update(outputs=[ref("x")]), "exists already")
package(27, "graph: a value without a description", lambda p: p.graph["tensor_values"].pop("relu"), "says nothing")
package(27, "graph: an output from nowhere", lambda p: p.graph.update(outputs=[ref("ghost")]), "output 0 reads 'ghost'")
package(27, "graph: more outputs than its signature", lambda p: p.graph["outputs"].append(ref("x")), "its signature 1")
package(27, "graph: fewer inputs than its signature", lambda p: p.graph["inputs"].pop(), "its signature 3")
package(28, "graph: an unknown op", lambda p: p.graph["nodes"][1].update(target="torch.ops.aten.evil.default"),
        "aten.evil.default +1 +.*net.py:7.*there is no such op", "unsupported")  # fmt: skip
for _target in ("os.system", "torch.ops.aten.__class__", "builtins.eval", "torch.load"):
    package(28, f"graph: the target {_target}", lambda p, t=_target: p.graph["nodes"][1].update(target=t),
            "there is no such op", "unsupported")  # fmt: skip
package(28, "graph: a branch without its graphs",
        lambda p: p.graph["nodes"][1].update(target="torch.ops.higher_order.cond"), "missing .*arguments",
        "unsupported")  # fmt: skip
package(28, "graph: an op on another kind of argument", lambda p: p.argument(1, "self", {"as_string": "x"}),
        "self must be a tensor, not 'x'", "unsupported")  # fmt: skip
package(28, "graph: an empty graph as argument",
        lambda p: p.argument(1, "self", {"as_graph": {"name": "g", "graph": {}}}), "tensor_values")  # fmt: skip
package(
    29, "graph: a missing argument", lambda p: p.graph["nodes"][1].update(inputs=[]), "self are missing", "unsupported"
)
package(29, "graph: an argument too many", lambda p: p.argument(1, "other", {"as_int": 3}), "other = 3", "unsupported")
package(29, "graph: two arguments of one name", lambda p: p.graph["nodes"][1]["inputs"].append(
    p.graph["nodes"][1]["inputs"][0]), "two arguments of one name")  # fmt: skip
package(17, "graph: a result that lies", lambda p: p.graph["tensor_values"].update(relu=tensor(2, 4)),
        "the file says", "unsupported")  # fmt: skip
package(17, "graph: a result of another type", lambda p: p.graph["tensor_values"].update(relu=tensor(2, 3, dtype=4)),
        "the file says", "unsupported")  # fmt: skip
package(28, "graph: it changes a buffer", lambda p: p.program["graph_module"]["signature"].update(output_specs=[
    {"buffer_mutation": {"arg": {"name": "relu"}, "buffer_name": "b"}}]), "outside itself", "unsupported")  # fmt: skip
package(28, "graph: an object as input", lambda p: p.program["graph_module"]["signature"]["input_specs"].__setitem__(
    2, {"custom_obj": {"arg": {}, "custom_obj_name": "x"}}), "a custom object")  # fmt: skip
package(20, "graph: complex numbers", lambda p: p.value("x").update(dtype=10), "complex numbers", "unsupported")


def _call(op: str, result: Json, **arguments: Json) -> Callable[[Package], object]:
    """Puts another op behind the last."""

    def change(p: Package) -> None:
        p.graph["nodes"].append(node(op, "more", **arguments))
        p.graph["tensor_values"]["more"] = result
        p.graph["outputs"] = [ref("more")]
        p.program["graph_module"]["signature"]["output_specs"] = [{"user_output": {"arg": ref("more")}}]

    return change


_OPS: list[tuple[int, str, Callable[[Package], object], str]] = [
    (32, "two sizes of -1", _call("aten.reshape.default", tensor(2, 3), self=ref("relu"), shape={"as_ints": [-1, -1]}),
     "at most one size"),
    (31, "a permutation that is none", _call("aten.permute.default", tensor(2, 3), self=ref("relu"),
                                             dims={"as_ints": [0, 0]}), "is not a permutation"),
    (31, "an axis out of range", _call("aten.softmax.int", tensor(2, 3), self=ref("relu"), dim={"as_int": 7}), "range"),
    (30, "a stride of 0", _call("aten.avg_pool1d.default", tensor(2, 3), self=ref("relu"), kernel_size={"as_ints": [1]},
                                stride={"as_ints": [0]}), "stride"),
    (30, "a pool of 2^62", _call("aten.max_pool1d.default", tensor(2, 3), self=ref("relu"),
                                 kernel_size={"as_ints": [2**62]}), "kernel|size"),
    (36, "an einsum that repeats", _call("aten.einsum.default", tensor(2), equation={"as_string": "ij->ii"},
                                         tensors={"as_tensors": [{"name": "relu"}]}), "names i twice"),
    (35, "an array of 2^80", _call("aten.full.default", tensor(2, 3), size={"as_ints": [2**40, 2**40]},
                                   fill_value={"as_float": 1.0}), "too large"),
    (35, "a repetition of 2^80", _call("aten.repeat.default", tensor(2, 3), self=ref("relu"),
                                       repeats={"as_ints": [2**40, 2**40]}), "too large"),
    (35, "a range of 2^62", _call("aten.arange.default", tensor(2), end={"as_int": 2**62}), "file says|not fit"),
    (35, "a range with a step of 0", _call("aten.arange.start_step", tensor(2), start={"as_int": 0}, end={"as_int": 9},
                                           step={"as_int": 0}), "step"),
    (35, "an identity of 2^60", _call("aten.eye.default", tensor(2), n={"as_int": 2**30}), "2\\^20"),
    (35, "a power of 10^9", _call("aten.pow.Tensor_Scalar", tensor(2, 3, dtype=5), self=ref("relu"),
                                  exponent={"as_int": 10**9}), "the file says"),
    (35, "ten million pieces", _call("aten.unbind.int", tensor(3), self=ref("relu")), "results"),
    (30, "an output padding that is too large", _call(
        "aten.conv_transpose1d.default", tensor(2, 3), input=ref("relu"), weight=ref("p_w"),
        output_padding={"as_ints": [9]}), "output_padding|dimension"),
]  # fmt: skip
for _number, _label, _change, _why in _OPS:
    package(_number, f"op: {_label}", _change, _why, "unsupported")
