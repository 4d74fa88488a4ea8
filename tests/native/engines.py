"""Small programs and engine files made by hand, for the tests of the native core and as seeds of its fuzzer.

Written without ingot's own writer: the reader is tested against the format, not against the writer.
`python -m tests.native.engines DIRECTORY` writes the seeds.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

Json = Any
Array = Any
CODES = {"float32": "F32", "int32": "I32", "int64": "I64", "uint8": "U8", "float64": "F64", "uint16": "U16"}
PREFIX = b'{"__metadata__":{"ingot.sha256":"'


def header(**entries: Json) -> dict[str, Json]:
    """Our JSON around programs, by entry name."""
    return {"format": 1, "producer": "tests", "programs": {"cpu": {"entries": entries}}}


def seal(text: bytes, data: bytes) -> bytes:
    """A file around a header: padded, with its length and digest."""
    text = text[: len(PREFIX)] + b"0" * 64 + text[len(PREFIX) + 64 :]
    text += b" " * (-(8 + len(text)) % 4096)
    digest = hashlib.sha256(text).hexdigest().encode()
    text = text[: len(PREFIX)] + digest + text[len(PREFIX) + 64 :]
    return len(text).to_bytes(8, "little") + text + data


def encode(ours: Json, tensors: Mapping[str, Array]) -> bytes:
    """A whole engine file."""
    entries: dict[str, Json] = {}
    data = b""
    for name, array in tensors.items():
        if gap := -len(data) % 64:
            end = len(data) + gap
            entries[f"~pad.{len(entries)}"] = {"dtype": "U8", "shape": [gap], "data_offsets": [len(data), end]}
            data += bytes(gap)
        raw = np.ascontiguousarray(array).tobytes()
        offsets = [len(data), len(data) + len(raw)]
        entries[name] = {"dtype": CODES[str(array.dtype)], "shape": list(array.shape), "data_offsets": offsets}
        data += raw
    meta = {"ingot.sha256": "0" * 64, "ingot": json.dumps(ours, separators=(",", ":"))}
    return seal(json.dumps({"__metadata__": meta, **entries}, separators=(",", ":")).encode(), data)


def symbol(name: str, low: int = 0, high: int | None = 64, **more: Json) -> Json:
    return {"name": name, "min": low, "max": high, **more}


class Program:
    """Builds a Program's JSON; each method returns the number of the buffer it makes."""

    def __init__(self, *symbols: Json) -> None:
        self.json: dict[str, Json] = {"version": 1, "symbols": list(symbols), "buffers": [], "calls": [], "outputs": []}

    def buffer(self, kind: str, **fields: Json) -> int:
        self.json["buffers"].append({"kind": kind, **fields})
        return len(self.json["buffers"]) - 1

    def input(self, name: str, shape: list[Json], dtype: str = "float32") -> int:
        return self.buffer("input", name=name, dtype=dtype, shape=shape)

    def weight(self, tensor: str, shape: list[int], dtype: str = "float32") -> int:
        return self.buffer("weight", tensor=tensor, dtype=dtype, shape=shape)

    def temp(self, shape: list[Json], dtype: str = "float32") -> int:
        return self.buffer("temp", dtype=dtype, shape=shape)

    def state(self, name: str, heads: int = 1, head_dim: int = 16) -> int:
        cache = {"type": "kv_cache", "heads": heads, "head_dim": head_dim}
        return self.buffer("state", name=name, dtype="float32", state=cache)

    def view(self, of: int, shape: list[Json], stride: list[Json], offset: Json = 0) -> int:
        return self.buffer("view", of=of, shape=shape, stride=stride, offset=offset)

    def call(self, kernel: str, inputs: list[int], outputs: list[int], where: str = "", **params: Json) -> None:
        call = {"kernel": kernel, "version": 1, "in": inputs, "out": outputs, "params": params, "where": where}
        self.json["calls"].append(call)

    def host(
        self, name: str, inputs: list[int], outputs: list[int], binds: list[str] | None = None, **params: Json
    ) -> None:
        call = {"host": name, "version": 1, "in": inputs, "out": outputs, "params": params, "where": f"host.{name}"}
        self.json["calls"].append(call if binds is None else {**call, "binds": binds})

    def control(
        self, kind: str, inputs: list[int], outputs: list[int], bodies: list[tuple[dict[str, Json], Program]],
        binds: list[str] | None = None, **params: Json,
    ) -> None:  # fmt: skip
        """Each body is a program, with the values of its symbols."""
        inner = [{"sizes": sizes, "program": {k: v for k, v in body.json.items() if k != "version"}}
                 for sizes, body in bodies]  # fmt: skip
        where = f"{kind}.call"
        call = {"control": kind, "in": inputs, "out": outputs, "params": params, "bodies": inner, "where": where}
        self.json["calls"].append(call if binds is None else {**call, "binds": binds})

    def output(self, name: str, buffer: int) -> None:
        self.json["outputs"].append({"name": name, "buffer": buffer})

    def binary(self, op: str, a: int, b: int, shape: list[Json], where: str = "") -> int:
        """A float32 elementwise operation into a new temp."""
        out = self.temp(shape)
        steps = [["input", "float32", 0], ["input", "float32", 1], [op, "float32", 0, 1]]
        self.call("elementwise", [a, b], [out], where, expression={"steps": steps, "outputs": [2]})
        return out


def chain(length: int = 4) -> Program:
    """y = x + x + … : a chain of sums."""
    p = Program(symbol("T"))
    x = p.input("x", ["T", 8])
    y = x
    for i in range(length):
        y = p.binary("add", y, x, ["T", 8], f"sum.{i}")
    p.output("y", y)
    return p


def normalise() -> Program:
    """y = rms_norm(x) · w, seen transposed and copied; rows = w2[ids]."""
    p = Program(symbol("T", 1))
    x, ids = p.input("x", ["T", 8]), p.input("ids", ["T"], "int32")
    w, table = p.weight("w", [8]), p.weight("table", [4, 8])
    y = p.temp(["T", 8])
    p.call("rms_norm", [x, w], [y], "norm", eps=1e-5)
    turned, dense = p.view(y, [8, "T"], [1, 8]), p.temp([8, "T"])
    p.call("copy", [turned], [dense], "turn")
    rows = p.temp(["T", 8])
    p.call("take", [table, ids], [rows], "rows", axis=0)
    p.output("turned", dense)
    p.output("rows", rows)
    return p


def attend() -> Program:
    """One attention layer over a cache: the metadata of a language model's step."""
    p = Program(symbol("T", 0, 16), symbol("B", 0, 4), symbol("N", 1, 4))
    q, k, v = (p.input(name, ["T", 1, 16]) for name in "qkv")
    slot, start = p.input("slot", ["T"], "int32"), p.input("query_start", [["+", "B", 1]], "int32")
    context, table = p.input("context_len", ["B"], "int32"), p.input("block_table", ["B", "N"], "int32")
    state, y = p.state("kv.0"), p.temp(["T", 1, 16])
    p.call("kv_write", [state, k, v, slot], [], "write")
    p.call("paged_attention", [q, state, start, context, table], [y], "attend", scale=0.25, window=None, softcap=None)
    p.output("y", y)
    return p


def select() -> Program:
    """Rows of x picked by a host call whose result's length is known only then."""
    p = Program(symbol("T", 1), symbol("n", unbacked=True))
    x = p.input("x", ["T", 8])
    picked = p.temp(["n"], "int32")
    p.host("pick", [x], [picked], ["n"])
    rows = p.temp(["n", 8])
    p.call("take", [x, picked], [rows], "rows", axis=0)
    total = p.binary("add", rows, rows, ["n", 8])
    p.output("y", total)
    return p


def move() -> Program:
    """Movement and reductions, float32 and integers."""
    p = Program(symbol("T", 0, 16))
    x, ids = p.input("x", ["T", 8]), p.input("ids", ["T"], "int32")
    table, wide = p.weight("table", [4, 8]), p.temp(["T", 16])
    p.call("concat", [x, x], [wide], "concat", axis=1)
    for op in ("sum", "mean", "max", "min", "prod"):
        out = p.temp(["T", 1])
        p.call("reduce", [p.view(wide, ["T", 8], [16, 2], 1)], [out], op, op=op, axes=[1], keepdims=True)
        p.output(op, out)
    best, all_of = p.temp(["T"], "int64"), p.temp([])
    p.call("argmax", [wide], [best], "argmax", axis=-1, keepdims=False)
    p.call("reduce", [wide], [all_of], "all", op="sum", axes=[0, 1], keepdims=False)
    rows, found, counted = p.temp(["T", 8]), p.temp(["T", 2]), p.temp(["T"], "int32")
    p.call("embedding", [ids, table], [rows], "embedding", packed=False, n=4, k=8)
    p.call("gather", [x, p.view(ids, ["T", 2], [1, 0])], [found], "gather", axis=1)
    p.call("iota", [], [counted], "iota", start=3, step=2)
    for name, buffer in (("best", best), ("all", all_of), ("rows", rows), ("found", found), ("counted", counted)):
        p.output(name, buffer)
    return p


def compute() -> Program:
    """Products, norms and rotary positions."""
    p = Program(symbol("T", 0, 16))
    x, positions = p.input("x", ["T", 8]), p.input("positions", ["T"], "int32")
    panels, freq = p.weight("panels", [1, 8, 32]), p.weight("freq", [4])
    w, table = p.weight("w", [8]), p.weight("table", [4, 8])
    y, scores = p.temp(["T", 5]), p.temp(["T", 4])
    epilogue = {"steps": [["input", "float32", 0], ["silu", "float32", 0]], "outputs": [1]}
    p.call("matmul_packed", [x, panels], [y], "packed", n=5, k=8, parts=1, epilogue=epilogue)
    p.call("matmul", [x, p.view(table, [8, 4], [1, 8])], [scores], "matmul")
    normal, soft = p.temp(["T", 8]), p.temp(["T", 4])
    p.call("layer_norm", [x, w, w], [normal], "layer_norm", eps=1e-5, weight=True, bias=True)
    p.call("softmax", [scores], [soft], "softmax", axis=-1, log=False)
    cos, sin, turned = p.temp(["T", 4]), p.temp(["T", 4]), p.temp(["T", 1, 8])
    p.call("rope_table", [positions, freq], [cos, sin], "table", scale=1.0)
    p.call("rope", [p.view(x, ["T", 1, 8], [8, 8, 1]), cos, sin], [turned], "rope", style="half")
    for name, buffer in (("y", y), ("normal", normal), ("soft", soft), ("turned", turned)):
        p.output(name, buffer)
    return p


def fused() -> Program:
    """Rotation and cache write in one kernel, and attention with a window."""
    p = Program(symbol("T", 0, 16), symbol("B", 0, 4), symbol("N", 1, 4))
    q, k, v = p.input("q", ["T", 2, 16]), p.input("k", ["T", 1, 16]), p.input("v", ["T", 1, 16])
    cos, sin, slot = p.input("cos", ["T", 8]), p.input("sin", ["T", 8]), p.input("slot", ["T"], "int32")
    start, context = p.input("query_start", [["+", "B", 1]], "int32"), p.input("context_len", ["B"], "int32")
    table, state = p.input("block_table", ["B", "N"], "int32"), p.state("kv.0")
    turned, y = p.temp(["T", 2, 16]), p.temp(["T", 2, 16])
    p.call("rope_kv_write", [q, k, v, cos, sin, slot, state], [turned], "write", style="interleaved")
    p.call("paged_attention", [turned, state, start, context, table], [y], "attend", scale=0.25, window=4, softcap=2.0)
    p.output("y", y)
    return p


def count_down(limit: int = 100) -> Program:
    """i and a: i - 1 and a + a while i > 0, and every a on the way; their number is `n`."""
    condition, body = Program(symbol("T")), Program(symbol("T"))
    for p in (condition, body):
        p.input("i", []), p.input("a", ["T"])
    go = condition.temp([], "bool")
    steps = [["input", "float32", 0], ["const", "float32", 0.0], ["gt", "bool", 0, 1]]
    condition.call("elementwise", [0], [go], expression={"steps": steps, "outputs": [2]})
    condition.output("go", go)
    less = body.temp([])
    steps = [["input", "float32", 0], ["const", "float32", 1.0], ["sub", "float32", 0, 1]]
    body.call("elementwise", [0], [less], expression={"steps": steps, "outputs": [2]})
    twice = body.binary("add", 1, 1, ["T"])
    body.output("i", less), body.output("a", twice), body.output("kept", twice)
    p = Program(symbol("T"), symbol("n", 0, None, unbacked=True))
    i, a = p.input("i", []), p.input("a", ["T"])
    last, end, kept = p.temp([]), p.temp(["T"]), p.temp(["n", "T"])
    p.control("while", [i, a], [last, end, kept], [({"T": "T"}, condition), ({"T": "T"}, body)], ["n"],
              carried=2, limit=limit)  # fmt: skip
    p.output("i", last), p.output("a", end), p.output("kept", p.binary("add", kept, kept, ["n", "T"]))
    return p


def running() -> Program:
    """The running sum of the rows of x, by a scan whose body chooses: where the flag says so, a weight is added too."""
    yes, no = Program(symbol("C")), Program(symbol("C"))
    for p in (yes, no):
        p.input("s", ["C"]), p.input("x", ["C"])
        w = p.weight("w", [8])
        sum_ = p.binary("add", 0, 1, ["C"])
        p.output("s", p.binary("add", sum_, w, ["C"]) if p is yes else sum_)
    body = Program(symbol("C"))
    s, x, flag = body.input("s", ["C"]), body.input("x", ["C"]), body.input("flag", [], "bool")
    new = body.temp(["C"])
    body.control("cond", [flag, s, x], [new], [({"C": "C"}, yes), ({"C": "C"}, no)])
    body.output("s", new), body.output("y", new)
    p = Program(symbol("T"), symbol("C"))
    start, x, flag = p.input("start", ["C"]), p.input("x", ["T", "C"]), p.input("flag", [], "bool")
    end, all_ = p.temp(["C"]), p.temp(["T", "C"])
    p.control("scan", [start, x, flag], [end, all_], [({"C": "C"}, body)],
              carried=1, scanned=1, length="T", reverse=False)  # fmt: skip
    p.output("end", end), p.output("all", all_)
    return p


WEIGHTS: dict[str, Array] = {
    "w": np.linspace(0.5, 1.5, 8, dtype=np.float32),
    "table": np.arange(32, dtype=np.float32).reshape(4, 8),
    "freq": np.array([1, 0.1, 0.01, 0.001], np.float32),
    "panels": np.linspace(-1, 1, 256, dtype=np.float32).reshape(1, 8, 32),
}


def seeds() -> dict[str, bytes]:
    """Engine files by name."""
    return {
        "chain": encode(header(main=chain().json), {}),
        "normalise": encode(header(main=normalise().json, other=chain(1).json), WEIGHTS),
        "attend": encode(header(main=attend().json), {}),
        "select": encode(header(main=select().json), {}),
        "move": encode(header(main=move().json), WEIGHTS),
        "compute": encode(header(main=compute().json), WEIGHTS),
        "fused": encode(header(main=fused().json), {}),
        "count_down": encode(header(main=count_down().json), {}),
        "running": encode(header(main=running().json), WEIGHTS),
    }


if __name__ == "__main__":
    directory = Path(sys.argv[1])
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in seeds().items():
        (directory / f"{name}.ingot").write_bytes(content)
