"""Look into an engine: what it is, what it holds, what it runs.

examples:
  ingot inspect pico.ingot                  formats, inputs, outputs, sizes
  ingot inspect pico.ingot --network        the portable network, as text that reads back
  ingot inspect pico.ingot --program        the kernel calls, in order
  ingot inspect models/pico-python --why    which rewrites were made, and why others were not
  ingot inspect pico.ingot --verify         compare every weight with its digests"""

from __future__ import annotations

import argparse
import json
import os
from collections import Counter
from typing import Any

from ingot import _lazy
from ingot.cli.output import Output, size, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot inspect`."""
    parser.add_argument("source", metavar="SOURCE", help="an .ingot engine, or a Hugging Face directory")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--network", action="store_true", help="print the portable network")
    what.add_argument("--program", action="store_true", help="print the kernel calls")
    what.add_argument("--why", action="store_true", help="print what each rewrite decided")
    what.add_argument("--verify", action="store_true", help="check the digests of all weights")


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot inspect`."""
    if args.verify:
        _verify(args.source, out)
        return
    engine = open_source(args.source)
    if args.network:
        out.text(str(_network(engine)))
        out.result({"network": engine.header["networks"]["main"]})
    elif args.program:
        programs = engine.header["programs"]
        for target, program in programs.items():
            for entry, body in program["entries"].items():
                out.text(f"{target} {entry}")
                out.text(_calls(body))
        out.result({"programs": programs})
    elif args.why:
        log = _lazy.load("ingot.engine.compile:compile_network")(_network(engine)).log
        out.text(table([(e.rule, e.where, e.node, e.verdict) for e in log], ("rewrite", "in", "node", "verdict")))
        out.result({"decisions": [e._asdict() for e in log]})
    else:
        _summary(engine, args.source, out)


def open_source(source: str) -> Any:
    """The engine of a file, or of a directory built in memory."""
    if os.path.isdir(source):
        return _lazy.load("ingot.engine.build:build")(source, report=False)
    return _lazy.load("ingot.engine.session:load")(source)


def _network(engine: Any) -> Any:
    _lazy.load("ingot.ops")  # a network is read in terms of the ops that are known
    return _lazy.load("ingot.ir.text:from_json")(engine.header["networks"]["main"])


def _verify(source: str, out: Output) -> None:
    checked = _lazy.load("ingot.engine.file:read")(source).verify()
    out.text(f"{source}: all weights agree with their digests ({size(checked)})")
    out.result({"path": source, "verified_bytes": checked})


def _summary(engine: Any, source: str, out: Output) -> None:
    header = engine.header
    weights = {name: engine.tensor(name) for name in header["weights"]}
    config = {name: value for name, value in header["config"].items() if name != "kv"}
    bytes_ = {name: int(array.nbytes) for name, array in weights.items()}
    kernels = {target: kernel_counts(program) for target, program in header["programs"].items()}
    out.text(f"{source}: {header['kind']} engine of format {header['format']}, made by {header['producer']}")
    for name, value in config.items():
        out.text(f"  {name}: {value}")
    out.text("inputs")
    for port in engine.inputs:
        out.text(f"  {port}")
    out.text("outputs")
    for port in engine.outputs:
        out.text(f"  {port}")
    for target, (native, host) in kernels.items():
        calls = ", ".join(f"{count} {name}" for name, count in native.most_common())
        out.text(f"program for {target}: {sum(native.values())} kernel calls ({calls})")
        out.text(f"  host calls: {', '.join(f'{count} {name}' for name, count in host.items()) or 'none'}")
    arena = _arena(header["programs"]["cpu"]["entries"]["main"])
    if arena is not None:
        sizes = ", ".join(f"{name}={value}" for name, value in arena["sizes"].items())
        out.text(f"arena at {sizes}: {size(arena['bytes'])} (no layout needs less than {size(arena['lower_bound'])})")
    out.text(f"{len(weights)} tensors, {size(sum(bytes_.values()))}; files: {', '.join(header['files']) or 'none'}")
    out.result(
        {
            "path": source, "kind": header["kind"], "format": header["format"], "producer": header["producer"],
            "config": header["config"], "inputs": [p._asdict() for p in engine.inputs],
            "outputs": [p._asdict() for p in engine.outputs], "tensors": bytes_, "files": sorted(header["files"]),
            "kernels": {t: native for t, (native, _) in kernels.items()},
            "host_calls": {t: host for t, (_, host) in kernels.items()}, "arena": arena,
        }
    )  # fmt: skip


def _arena(program: dict[str, Any]) -> dict[str, Any] | None:
    """The memory for intermediate results at the optimum of every dim; None when only a run can tell."""
    if any(symbol.get("unbacked") for symbol in program["symbols"]):
        return None
    sizes = optimum(program)
    layout = _lazy.load("ingot._native").plan_layout(json.dumps(program), sizes)
    return {"sizes": sizes, "bytes": layout["arena"], "lower_bound": layout["lower_bound"]}


def optimum(program: dict[str, Any]) -> dict[str, int]:
    """The size of every dim that inputs have: the one to tune for, or the smallest."""
    return {s["name"]: s.get("opt") or max(1, s["min"]) for s in program["symbols"] if not s.get("unbacked")}


def kernel_counts(program: dict[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """How often each native kernel and each host call appears in a target's programs."""
    calls = [call for body in program["entries"].values() for call in body["calls"]]
    native = Counter(call["kernel"] for call in calls if "kernel" in call)
    return native, Counter(call["host"] for call in calls if "host" in call)


def _calls(body: dict[str, Any]) -> str:
    buffers = body["buffers"]
    rows = [
        (i, call.get("kernel") or f"host {call['host']}", ", ".join(_buffer(buffers, b) for b in call["in"]),
         ", ".join(_buffer(buffers, b) for b in call["out"]), call.get("where", ""))
        for i, call in enumerate(body["calls"])
    ]  # fmt: skip
    return table(rows, ("call", "kernel", "reads", "writes", "where"))


def _buffer(buffers: list[dict[str, Any]], index: int) -> str:
    buffer = buffers[index]
    kind = buffer["kind"]
    if kind == "view":
        return f"view of {_buffer(buffers, buffer['of'])}"
    return str(buffer["tensor"] if kind == "weight" else buffer.get("name", f"t{index}"))
