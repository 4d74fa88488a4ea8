"""Engines that are templates for others like them: what the native fuzzer starts from.

A template is a Program in which "$name" stands for a variable and ["$", op, a, b] for arithmetic on integers
(native/fuzz/template.h has the format). It stands in config.fuzz of an engine whose own program is the template with
the first choice of every variable. So every file of the corpus opens and runs, and the driver makes others like it.
"""

from __future__ import annotations

import math
from typing import Any

from attacks.image import Image

Json = Any
CODES = {
    "float32": ("F32", 4), "bfloat16": ("BF16", 2), "float16": ("F16", 2), "float64": ("F64", 8), "int8": ("I8", 1),
    "int16": ("I16", 2), "int32": ("I32", 4), "int64": ("I64", 8), "uint8": ("U8", 1), "uint16": ("U16", 2),
    "uint32": ("U32", 4), "uint64": ("U64", 8), "bool": ("BOOL", 1),
}  # fmt: skip


def calc(op: str, *operands: Json) -> Json:
    """Arithmetic in a template: + - * // max min, or at(list, index)."""
    return ["$", op, *operands]


class Block:
    """Builds a program in which "$name" stands for a variable. What makes a buffer returns its number."""

    def __init__(self) -> None:
        self.program: dict[str, Json] = {"symbols": [], "buffers": [], "calls": [], "outputs": []}

    def _buffer(self, **fields: Json) -> int:
        self.program["buffers"].append(fields)
        return len(self.program["buffers"]) - 1

    def input(self, name: str, shape: Json, dtype: str = "float32") -> int:
        return self._buffer(kind="input", name=name, dtype=dtype, shape=shape)

    def weight(self, name: str, shape: Json, dtype: str = "float32") -> int:
        return self._buffer(kind="weight", tensor=name, dtype=dtype, shape=shape)

    def temp(self, shape: Json, dtype: str = "float32") -> int:
        return self._buffer(kind="temp", dtype=dtype, shape=shape)

    def view(self, of: int, shape: Json, stride: Json, offset: Json = 0) -> int:
        return self._buffer(kind="view", of=of, shape=shape, stride=stride, offset=offset)

    def output(self, buffer: int) -> None:
        self.program["outputs"].append({"name": f"y{len(self.program['outputs'])}.{buffer}", "buffer": buffer})

    def result(self, shape: Json, dtype: str = "float32") -> int:
        """A temp that is an output of the program too."""
        buffer = self.temp(shape, dtype)
        self.output(buffer)
        return buffer

    def unbacked(self, name: str) -> str:
        """A symbol that a call binds."""
        self.program["symbols"].append({"name": name, "min": 0, "max": None, "unbacked": True})
        return name

    def call(self, kernel: str, operands: list[int], results: list[int], /, **params: Json) -> None:
        self.program["calls"].append(kernel_call(kernel, operands, results, **params))

    def control(
        self, way: str, operands: list[int], results: list[int], bodies: list[Block], /, *binds: str, **params: Json
    ) -> None:
        """A call with programs of its own. The driver names the sizes that the programs around have as symbols."""
        inner = [{"sizes": {}, "program": body.program} for body in bodies]
        call = {"control": way, "in": operands, "out": results, "params": params, "bodies": inner, "where": ""}
        self.program["calls"].append({**call, "binds": list(binds)} if binds else call)


def kernel_call(kernel: str, operands: list[int], results: list[int], /, *binds: str, **params: Json) -> Json:
    """A call of a program; what it binds are the symbols that numbers in its result give a value."""
    call = {"kernel": kernel, "version": 1, "in": operands, "out": results, "params": params, "where": ""}
    return {**call, "binds": list(binds)} if binds else call


class Template(Block):
    """Builds a template; `name` begins with the kernel or the way of control that it is there for."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.program = {"version": 1, **self.program}
        self.name = name
        self.vars: list[Json] = []
        self.fills: dict[str, Json] = {}
        self.cache: dict[str, Json] | None = None
        # Where the order of sums depends on strides: of what makes up one result, together.
        self.magnitude: Json = None

    def size(self, name: str, low: int, high: int) -> str:
        """A size, which a program may have as a symbol."""
        self.vars.append({"name": name, "sizes": [low, high]})
        return f"${name}"

    def choice(self, name: str, *choices: Json) -> str:
        self.vars.append({"name": name, "choices": list(choices)})
        return f"${name}"

    def value(self, name: str, expression: Json) -> str:
        self.vars.append({"name": name, "value": expression})
        return f"${name}"

    def input(self, name: str, shape: Json, dtype: str = "float32", **fill: Json) -> int:
        if fill:
            self.fills[name] = fill
        return super().input(name, shape, dtype)

    def state(self, heads: Json, head_dim: Json, dtype: str) -> int:
        cache = {"type": "kv_cache", "heads": heads, "head_dim": head_dim}
        return self._buffer(kind="state", name="kv", dtype=dtype, state=cache)

    def encode(self) -> bytes:
        """The engine file."""
        values = first_choices(self.vars)
        program = evaluate(self.program, values)
        template = {"vars": self.vars, "program": self.program, "fills": self.fills}
        if self.magnitude is not None:
            template["magnitude"] = self.magnitude
        if self.cache is not None:
            template["cache"] = self.cache
        ours = {
            "format": 1, "producer": "fuzz", "kind": "network", "config": {"fuzz": template}, "networks": {},
            "files": {}, "weights": {}, "programs": {"cpu": {"entries": {"main": program}}},
        }  # fmt: skip
        entries: list[tuple[str, Json]] = []
        end = 0
        for buffer in program["buffers"]:
            if buffer["kind"] != "weight":
                continue
            if gap := -end % 64:
                pad = {"dtype": "U8", "shape": [gap], "data_offsets": [end, end + gap]}
                entries.append((f"~pad.{len(entries)}", pad))
                end += gap
            code, width = CODES[buffer["dtype"]]
            size = math.prod(buffer["shape"]) * width
            described = {"dtype": code, "shape": buffer["shape"], "data_offsets": [end, end + size]}
            entries.append((buffer["tensor"], described))
            end += size
        return Image(ours, entries, bytes(end)).encode()


def first_choices(variables: list[Json]) -> dict[str, Json]:
    """A value for each variable; of sizes a small one."""
    values: dict[str, Json] = {}
    for var in variables:
        if "sizes" in var:
            low, high = (evaluate(end, values) for end in var["sizes"])
            values[var["name"]] = min(max(low, 3), high)
        else:
            values[var["name"]] = evaluate(var["choices"][0] if "choices" in var else var["value"], values)
    return values


def evaluate(template: Json, values: dict[str, Json]) -> Json:
    """The template with values for its variables."""
    if isinstance(template, str) and template.startswith("$") and len(template) > 1:
        return values[template[1:]]
    if isinstance(template, dict):
        return {key: evaluate(item, values) for key, item in template.items()}
    if not isinstance(template, list):
        return template
    items = [evaluate(item, values) for item in (template[2:] if template[:1] == ["$"] else template)]
    if template[:1] != ["$"]:
        return items
    op, (first, *rest) = template[1], items
    for other in rest:
        match op:
            case "+":
                first += other
            case "-":
                first -= other
            case "*":
                first *= other
            case "//":
                first //= other
            case "max":
                first = max(first, other)
            case "min":
                first = min(first, other)
            case "at":
                first = first[other]
            case _:
                raise ValueError(f"template: unknown operation {op}")
    return first
