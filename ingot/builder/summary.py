"""What an engine is in short, and what makes it slow and where: what `ingot build` says at its end."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ingot import dtypes
from ingot.backends.device import program_of, with_bodies
from ingot.builder.algorithms import Tuned
from ingot.builder.compile import Compiled
from ingot.engine.session import Engine, Port
from ingot.frontends.comparing import UNFIT
from ingot.frontends.recording import Remark
from ingot.ir import Network
from ingot.ops.control import bodies
from ingot.passes.weights import recipe_of
from ingot.passes.widen import NARROW

SCALES = ("scales", "fitted_scales")  # recipe steps
PRODUCTS = "zero_products"  # of scales and zero points, which are summed in float32
WORTH_SAYING = 64 << 10  # bytes of weights that are made in every run, or kept wider than they came
SOON = 500_000_000  # nanoseconds
CONTROL = ("cond", "scan", "while_loop")  # host calls that hold networks
CONVOLUTIONS = ("conv_packed", "conv_depthwise", "conv_transpose")


@dataclass(frozen=True)
class Summary:
    """An engine in short.

    Attributes:
        ops: of the portable network, those of its bodies included.
        native, host: calls of the program; the latter run in Python.
        dims: the sizes that runs choose: name, least, most (None: any).
        remarks: what makes it slow or large, and where.
        notes: what an importer left out or changed.
        host_share: of the time of a run, on the inputs of the report or seeded ones, what host calls take: 0.0 … 1.0.
            None: there are none, or it was not measured.
        tuned: what was measured of convolutions and products, where it was.
    """

    ops: int
    native: int
    host: int
    inputs: tuple[Port, ...]
    outputs: tuple[Port, ...]
    dims: tuple[tuple[str, int, int | None], ...]
    remarks: tuple[Remark, ...] = ()
    notes: tuple[str, ...] = ()
    host_share: float | None = None
    tuned: Tuned | None = None

    def host_words(self) -> str:
        """How many calls run in Python, and their share of the time."""
        calls = "1 host call" if self.host == 1 else f"{self.host} host calls"
        time = "" if self.host_share is None else f", {self.host_share:.0%} of a run's time"
        return f"{calls} in Python{time}"

    def json(self) -> dict[str, Any]:
        """As --json shows it."""
        return {
            "ops": {"network": self.ops, "native": self.native, "host": self.host},
            "inputs": [port._asdict() for port in self.inputs], "outputs": [port._asdict() for port in self.outputs],
            "dims": [dict(zip(("name", "min", "max"), dim, strict=True)) for dim in self.dims],
            "host_share": self.host_share,
            **({} if self.tuned is None else {"tuned": self.tuned.json()}),
            "remarks": [remark._asdict() for remark in self.remarks], "notes": list(self.notes),
        }  # fmt: skip

    def __str__(self) -> str:
        host = "no host calls" if not self.host else f"{self.host} host call{'s' if self.host > 1 else ''}"
        lines = [("ops", f"{self.ops}: {self.native} kernel calls, {host}")]
        lines += [("input", str(port)) for port in self.inputs]
        lines += [("output", str(port)) for port in self.outputs]
        lines += [("dims", ", ".join(map(_bounds, self.dims)))] if self.dims else []
        lines += [("note", text) for text in self.notes]
        lines += [("slow", self.host_words())] if self.host_share is not None else []
        lines += [("slow", str(remark)) for remark in self.remarks]
        return "\n".join(f"{word:7} {text}".replace("\n", "\n        ") for word, text in lines)


def _bounds(dim: tuple[str, int, int | None]) -> str:
    name, low, high = dim
    return f"{name} ({low} or more)" if high is None else f"{name} ({low} … {high})"


def summary(engine: Engine, network: Network, compiled: Compiled) -> Summary:
    """The summary of an engine that was made of a network and what that compiled to."""
    program = program_of(engine.header, "main")
    calls = list(_calls(program))
    symbols = [s for s in program["symbols"] if not s.get("unbacked")]
    return Summary(
        _count(network), sum("kernel" in c for _, c in calls), sum("host" in c for _, c in calls),
        tuple(engine.inputs), tuple(engine.outputs), tuple((s["name"], s["min"], s["max"]) for s in symbols),
        (
            *_host_calls(program, compiled), *_computed(program), *_as_floats(engine, compiled),
            *_without_groups(compiled), *_rows_of_floats(compiled), *_wider(network, compiled),
        ),
    )  # fmt: skip


def _count(network: Network) -> int:
    return sum(1 + sum(map(_count, bodies(node.op).values())) for node in network.nodes)


def _calls(program: Mapping[str, Any]) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    """Every call with the program that it stands in."""
    for inner in with_bodies(program):
        yield from ((inner, call) for call in inner["calls"])


def _gathered(found: Iterable[tuple[Remark, str]]) -> list[Remark]:
    """Remarks that differ in their places only are one."""
    places: dict[Remark, list[str]] = {}
    for remark, place in found:
        places.setdefault(remark, []).append(place)
    return [
        remark._replace(calls=len(where), where=tuple(dict.fromkeys(p for p in where if p)))
        for remark, where in places.items()
    ]


# ------------------------------------------------------------------------------------------------------- host calls


def host_share(engine: Engine, feeds: Mapping[str, Any]) -> float | None:
    """The host calls' share of a run's time, the second of two where that is soon over; None where the engine does not
    run on these inputs."""
    session = engine.session()
    found = 0.0
    for _ in range(2):
        try:
            calls = session.profile(feeds)
        except UNFIT:
            return None
        whole = sum(call["ns"] for call in calls)
        found = sum(call["ns"] for call in calls if "host" in call) / max(whole, 1)
        if whole > SOON:
            break
    return found


def _host_calls(program: Mapping[str, Any], compiled: Compiled) -> list[Remark]:
    """Calls that run in Python, with the reason why no kernel takes them; of a loop, which op in it has none."""
    whys = iter(compiled.host_calls)
    loops = {(e.node.rpartition(" ")[2], e.where): e.verdict for e in compiled.log if e.rule == "bodies"}
    found = []
    for inner, call in _calls(program):
        if "host" in call:
            why = next(whys).why if inner is program else "no kernel takes it"
            why = loops.get((call["host"], call.get("where", "")), why)
            found.append((_host_call(inner, call, why), call.get("where", "")))
    return _gathered(found)


def _host_call(program: Mapping[str, Any], call: Mapping[str, Any], why: str) -> Remark:
    op = call["host"]
    if op in CONTROL:
        todo = "take that op out of the loop, or write it with ops that run natively (`ingot ops`)"
        why = f"its rounds run in Python: {why.removeprefix('is left to the host: ')}"
        return Remark("host loop", op, (), 1, why, todo)
    wide = any(_buffer(program, i)["dtype"] == "float64" for i in (*call["in"], *call["out"]))
    todo = "compute it in float32" if wide else f"`ingot ops {op}` says which element types run natively"
    where = "it runs in Python, in float64" if wide else "it runs in Python"
    return Remark("host call in float64" if wide else "host call", op, (), 1, f"{where}: {why}", todo)


def _buffer(program: Mapping[str, Any], index: int) -> Mapping[str, Any]:
    """The buffer that a number stands for, of a view the one that it lies in."""
    buffer: Mapping[str, Any] = program["buffers"][index]
    return _buffer(program, buffer["of"]) if buffer["kind"] == "view" else buffer


# ---------------------------------------------------------------------------------------------- weights in every run


def _computed(program: Mapping[str, Any]) -> list[Remark]:
    """Convolutions whose weight is computed, and what every run computes of weights alone."""
    found: list[tuple[Remark, str]] = []
    again: dict[str, int] = {}
    for inner in with_bodies(program):
        fixed = {i for i, b in enumerate(inner["buffers"]) if b["kind"] == "weight"}
        for call in inner["calls"]:
            reads = [_index(inner, i) for i in call["in"]]
            if call.get("kernel") in CONVOLUTIONS and len(reads) > 1 and reads[1] not in fixed:
                found.append((COMPUTED_CONVOLUTION, call.get("where", "")))
            if "kernel" in call and reads and all(i in fixed for i in reads):
                writes = [_index(inner, i) for i in call["out"]]
                fixed |= set(writes)
                where = call.get("where", "")
                again[where] = again.get(where, 0) + sum(_bytes(inner["buffers"][i]) for i in writes)
    large = [where for where, count in again.items() if count >= WORTH_SAYING]
    return _gathered([*found, *((COMPUTED_AGAIN, where) for where in large)])


COMPUTED_CONVOLUTION = Remark(
    "computed convolution weight", "conv", (), 1,
    "its weight is brought into the kernel's layout in every run, and has no fast algorithm",
    "make the weight a parameter, where it does not depend on inputs",
)  # fmt: skip
COMPUTED_AGAIN = Remark(
    "weights computed in every run",
    "weights",
    (),
    1,
    "what depends on weights alone is computed by every run anew",
    "compute it before the export, and keep the result as a parameter",
)


def _index(program: Mapping[str, Any], index: int) -> int:
    buffer = program["buffers"][index]
    return _index(program, buffer["of"]) if buffer["kind"] == "view" else index


def _bytes(buffer: Mapping[str, Any]) -> int:
    """Of a buffer whose sizes are known; 0 for others."""
    sizes = buffer.get("shape", ())
    known = all(isinstance(d, int) for d in sizes)
    return math.prod(sizes) * dtypes.get(buffer["dtype"]).bits // 8 if known else 0


def _as_floats(engine: Engine, compiled: Compiled) -> list[Remark]:
    """Weights that stay as they are though the build stores weights in a smaller format, by the reason."""
    format = engine.config.get("weights", "integers")
    return [
        Remark("weights as floats", "weights", names, len(names), f"not stored as {format}: {why}",
               CALIBRATE if why.startswith("conv") else STORED)
        for (_, why), names in _said(compiled, "weights", " stays ")
    ]  # fmt: skip


def _without_groups(compiled: Compiled) -> list[Remark]:
    """Weights of int8 where the build stores weights as int4, by the reason."""
    return [
        Remark("weights as int8", "weights", names, len(names), f"{kept.removeprefix('int8, ')}: {why}", DIVIDING)
        for (kept, why), names in _said(compiled, "groups", " becomes ")
    ]


def _rows_of_floats(compiled: Compiled) -> list[Remark]:
    """Products whose rows stay floats though the build rounds rows."""
    return [
        Remark("rows as floats", "matmul", names, len(names), why, FLOAT_ROWS)
        for (_, why), names in _said(compiled, "rows", " meets ")
    ]


def _said(compiled: Compiled, rule: str, verb: str) -> list[tuple[tuple[str, str], tuple[str, ...]]]:
    """What a rule says became of weights and why, and of which: a name may have spaces and colons."""
    found: dict[tuple[str, str], list[str]] = {}
    for event in compiled.log:
        if event.rule == rule:
            name, _, said = event.verdict.partition(verb)
            became, _, why = said.partition(": ")
            found.setdefault((became, why), []).append(name)
    return [(said, tuple(dict.fromkeys(names))) for said, names in found.items()]


CALIBRATE = "int8 convolutions need data: --weights int8 --activations int8 --data calib.npz, or ingot.quantize"
STORED = "nothing: matrices of products and experts, tables, and weights of recurrent layers are stored so"
DIVIDING = "nothing, or a smaller group, if one divides the inputs: int4-g32 or int4-g64, -asym as before"
FLOAT_ROWS = "nothing, or build from the float checkpoint: --weights int4-g128 --activations int8 for example"


def _wider(network: Network, compiled: Compiled) -> list[Remark]:
    """Weights that are kept in float32, and came in half of that. Scales of integers are float32 in every format."""
    narrow = {v.name for v in network.parameters if v.dtype in NARROW}
    stored = [v for v in compiled.stored.values() if v.kind == "parameter" and v.dtype is dtypes.float32]
    recipes = {v: recipe_of(v) for v in stored}
    wide = [v for v, recipe in recipes.items() if not any(call.name in (*SCALES, PRODUCTS) for call in recipe.steps)]
    kept = [v for v in wide if any(name in narrow for name in recipes[v].sources)]
    count = sum(int(v.spec.elements) * 4 for v in kept)
    if count < WORTH_SAYING:
        return []
    where = tuple(v.name for v in kept)
    why = f"kept in float32, {count:,} bytes, though they came in half precision: their kernels read float32"
    todo = "build with --precision float32, or bfloat16, which more kernels read"
    return [Remark("weights in float32", "weights", where, len(kept), why, todo)]
