"""Look into an engine: what it is, what it holds, what it runs.

examples:
  ingot inspect pico.ingot                  formats, inputs, outputs, sizes, memory
  ingot inspect models/pico-python          a Hugging Face directory in words, and what build makes of it
  ingot inspect net.ingot --size N=8        the memory of a run at that size, and when it needs the most
  ingot inspect pico.ingot --network        the portable network, as text that reads back
  ingot inspect pico.ingot --program        the kernel calls, in order
  ingot inspect net.ingot --program --device cuda   which calls are kernels there, and which are torch's; needs no GPU
  ingot inspect models/pico-python --why    which rewrites were made, and why others were not
  ingot inspect pico.ingot --verify         compare every weight with its digests
  ingot inspect net.ingot --check           repeat the build's self-test here: language models and calibrated nets"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ingot import _lazy
from ingot.cli import options
from ingot.cli.output import Output, in_words, printable, size, table
from ingot.cli.source import default_name
from ingot.errors import IngotError, UserError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot inspect`."""
    parser.add_argument("source", metavar="SOURCE", help=options.SOURCE)
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--network", action="store_true", help="print the network, as it is before it is compiled")
    what.add_argument("--program", action="store_true", help="print the calls of kernels (native code), in their order")
    what.add_argument("--why", action="store_true", help="print which rewrites the compiler made, and why not others")
    what.add_argument("--verify", action="store_true", help="compare all weights with their digests in the file")
    what.add_argument(
        "--check", action="store_true",
        help="repeat the self-test of a language model or of a calibrated net on this machine",
    )  # fmt: skip
    parser.add_argument("--device", metavar="DEVICE", choices=("cpu", "cuda"), help="whose calls --program prints")
    options.add_sizes(parser)
    parser.add_argument("--threads", type=options.positive, metavar="N", help="how many threads memory is planned for")


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot inspect`."""
    if args.verify:
        _verify(args.source, out)
        return
    if args.check:
        _check(args.source, out)
        return
    if Path(args.source).is_dir() and not (args.network or args.program or args.why):
        _directory(args, out)
        return
    if args.device and not args.program:
        raise UserError("--device says whose calls are listed: give --program too")
    engine = open_source(args.source)
    if args.device == "cuda":
        load = _lazy.load("ingot.backends.cuda.examine:calls_of")
        calls = {entry: load(engine.header, engine.external, entry) for entry in engine.entries}
        for entry, rows in calls.items():
            shown = [(i, r["call"], r["runs"], "+".join(r["ops"]), r["where"] or "") for i, r in enumerate(rows)]
            out.text(f"cuda {entry}\n" + table(shown, ("", "call", "runs", "ops", "in")))
        out.result({"programs": {"cuda": calls}})
    elif args.network:
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
        log = _lazy.load("ingot.builder.compile:decisions")(_network(engine), engine.config)
        found = [e._asdict() for e in log] + _chosen(engine.header["programs"])
        out.text(table([tuple(one.values()) for one in found], ("rewrite", "in", "node", "verdict")))
        out.result({"decisions": found})
    else:
        _summary(engine, args, out)


def open_source(source: str) -> Any:
    """The engine of a file, or of a source that is built in memory."""
    return _lazy.load("ingot.source:open_engine")(source)


def _chosen(programs: dict[str, Any]) -> list[dict[str, str]]:
    """What calls take in the place of their kernels' rules, as --tune measured it, and which products take Strassen's
    step; like what the passes decided.
    """
    return [
        {"rule": "strassen" if call["params"][name] == "strassen" else "tune", "where": call.get("where", ""),
         "node": f"{entry} call {number}, {call['kernel']}", "verdict": _verdict(name, call["params"][name])}
        for program in programs.values()
        for entry, body in program["entries"].items()
        for number, call in enumerate(body["calls"])
        for name in ("algorithm", "order", "split")
        if call.get("kernel") in ("conv_packed", "matmul_packed") and name in call["params"]
    ]  # fmt: skip


def _verdict(name: str, value: str) -> str:
    if value == "strassen":
        return "rows of a sample in pairs: seven products of half the size in the place of eight"
    return f"{name} {value} in the place of the kernel's rules, as measured"


def _network(engine: Any) -> Any:
    _lazy.load("ingot.ops")  # a network is read in terms of the ops that are known
    with _lazy.load("ingot.release:reading")(engine.header):
        return _lazy.load("ingot.ir.text:from_json")(engine.header["networks"]["main"], engine.external)


def _verify(source: str, out: Output) -> None:
    if Path(source).exists() and not _lazy.load("ingot.source:is_engine")(source):
        raise UserError(
            f"{source} is no engine: digests are made when one is built. Build it, and verify that: "
            f"ingot build {source}, ingot inspect {default_name(source)} --verify"
        )
    checked = _lazy.load("ingot.engine.file:read")(source).verify()
    out.text(f"{source}: all weights agree with their digests ({size(checked)})")
    out.result({"path": source, "verified_bytes": checked})


def _check(source: str, out: Output) -> None:
    found = _lazy.load("ingot.engine.self_test:check")(open_source(source))
    took = f"{found.seconds * 1e3:.1f} ms"
    out.text(f"{source}: computes what its build did, up to {found.difference:.1e} of the outputs ({took})")
    out.result({"path": source, "difference": found.difference, "tolerance": found.tolerance,
                "seconds": found.seconds})  # fmt: skip


def _directory(args: argparse.Namespace, out: Output) -> None:
    """A Hugging Face directory in words, and the engine that a build would make of it.

    Weights are read of a quantised one only.
    """
    source = args.source
    found, files = _lazy.load("ingot.builder.directory:describe")(source)
    template = _lazy.load("ingot.text.chat_template:from_files")(files)
    found["chat_template"] = None if template is None else "own"
    if found["quantized"]:  # what its engine holds follows from the numbers
        engine, granted = open_source(source), []
    else:
        engine, granted = _lazy.load("ingot.builder.outline:outline")(source)
    stored = ", ".join(f"{size(count)} of {dtype}" for dtype, count in found["stored"].items())
    how_stored = ", quantised" if found["quantized"] else ""
    words, how = found["tokenizer"], "--chat-template plain, or a file of Jinja, lets it chat"
    out.text(f"{source}: a Hugging Face directory of family {printable(found['family'])} ({found['architecture']})")
    out.text(
        f"  {found['layers']:,} layers, {found['width']:,} wide; {found['heads']:,} heads, {found['kv_heads']:,} for "
        f"keys and values; {found['vocabulary']:,} tokens; context {found['context_length']:,}"
    )
    stored = stored or "none (build --weights-from random)"
    out.text(f"  {found['parameters']:,} parameters; stored{how_stored}: {stored}")
    if words is None:
        out.text("  no tokenizer.json: it takes and gives token ids, no text")
    else:
        begins = "nothing" if words["begins_with"] is None else f"token {words['begins_with']}"
        ends = f"by token {in_words(words['ends_with'])}" if words["ends_with"] else "at no token"
        out.text(
            f"  tokenizer: {printable(words['model'])}, {words['tokens']:,} tokens and {words['added']:,} added ones; "
            f"{begins} is put before a text, which ends {ends}"
        )
    if engine.kind == "llm":
        out.text(f"  chat template: {'its own' if found['chat_template'] else f'none; {how}'}")
    out.left_out(found["left_out"])
    out.text(f"`ingot build {source}` makes {default_name(source)} of it:")
    for remark in granted:
        out.text(f"  taken for granted: {remark}")
    _summary(engine, args, out, {"directory": found, "granted": granted, "files": sorted(files)})


def _rounding(header: dict[str, Any]) -> int:
    """How many ops of a net that was not calibrated here round to integers, or make floats of them: Q/DQ."""
    network = header["networks"].get("main", {})
    ops = Counter(node["op"] for node in network.get("nodes", ()))
    known = "quantization" in header["config"] or "quantized" in header["config"]
    return 0 if known else ops["quantize"] + ops["dequantize"]


def _summary(engine: Any, args: argparse.Namespace, out: Output, more: dict[str, Any] | None = None) -> None:
    header, source = engine.header, args.source
    programs = _lazy.load("ingot.backends.device:programs_of")(header)
    fusion = {entry: _fusion(program) for entry, program in programs.items()}
    memory = {entry: _memory(engine, entry, args, out) for entry in fusion}
    weights = {name: engine.tensor(name) for name in header["weights"]}
    unseen = ("kv", "aliases", "quantization", "self_test")
    config = {name: value for name, value in header["config"].items() if name not in unseen}
    bytes_ = {name: int(array.nbytes) for name, array in weights.items()}
    kernels = {target: kernel_counts(program) for target, program in header["programs"].items()}
    made = f"{header['kind']} engine of format {header['format']}, made by {header['producer']}"
    if Path(source).is_file() and not _lazy.load("ingot.source:is_engine")(source):
        made = f"a source, of which `ingot build` makes this: {made}"
    out.text(f"{source}: {made}")
    for name, value in config.items():
        out.text(f"  {in_words(name)}: {in_words(value)}")
    if rounding := _rounding(header):
        out.text(f"  quantised in the source: {rounding} ops that round to integers or take them")
    if "quantization" in header["config"]:
        report = _lazy.load("ingot.quantization.report:Report").of(engine)
        out.text("\n".join(f"  {printable(line)}" for line in str(report).splitlines()))
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
    for entry, found in fusion.items():
        out.text(f"  {entry}: {found['calls_with_fused']} calls carry {found['fused_operations']} fused operations")
    for entry, planned in memory.items():
        if planned is not None:
            _show_memory(entry, planned, out)
    kinds: dict[str, int] = {}
    for name, array in weights.items():
        if name not in header["files"].values():
            kinds[array.dtype.name] = kinds.get(array.dtype.name, 0) + bytes_[name]
    shown = ", ".join(f"{size(count)} of {kind}" for kind, count in sorted(kinds.items(), key=lambda kind: -kind[1]))
    out.text(f"weights: {shown or 'none'}")
    files = (more or {}).get("files", sorted(header["files"]))
    out.text(f"{len(weights)} tensors, {size(sum(bytes_.values()))}; files: {', '.join(files) or 'none'}")
    out.result(
        {
            "path": source, "kind": header["kind"], "format": header["format"], "producer": header["producer"],
            "config": header["config"], "inputs": [p._asdict() for p in engine.inputs],
            "outputs": [p._asdict() for p in engine.outputs], "tensors": bytes_, "weights": kinds,
            "files": sorted(header["files"]),
            "kernels": {t: native for t, (native, _) in kernels.items()},
            "host_calls": {t: host for t, (_, host) in kernels.items()}, "fusion": fusion, "memory": memory,
            **(more or {}),
        }
    )  # fmt: skip


def _memory(engine: Any, entry: str, args: argparse.Namespace, out: Output) -> dict[str, Any] | None:
    """The memory that a run takes at the sizes asked for; None when only a run can tell."""
    inputs = _lazy.load("ingot.engine.inputs")
    program = _lazy.load("ingot.backends.device:program_of")(engine.header, entry)
    plain = entry == "main" and engine.kind != "llm"
    sizes = inputs.sizes_that_run(engine, args.size) if plain else inputs.sizes_of(engine, args.size, entry)
    if any(symbol.get("unbacked") for symbol in program["symbols"]):
        return None
    try:
        session = engine.session(args.threads, entry=entry, kv_blocks=int(engine.kind == "llm"))
        planned = session.planned(sizes)
    except IngotError as e:
        out.note(f"the memory of {entry} cannot be planned: {e}")
        return None
    copies = [call["out"][0] for call in program["calls"] if call.get("kernel") == "copy"]
    return {
        "sizes": sizes, "weights": session.memory().weights, "arena": planned.arena, "buffers": planned.buffers,
        "lower_bound": planned.lower_bound, "working": planned.working, "threads": session.threads,
        "copies": len(copies), "copied": sum(_bytes(program["buffers"], b, sizes) for b in copies),
        "most_at": _most(program["calls"], planned.most_at),
    }  # fmt: skip


def _show_memory(entry: str, found: dict[str, Any], out: Output) -> None:
    sizes = ", ".join(f"{name}={value}" for name, value in found["sizes"].items())
    out.text(f"memory of {entry}{f' at {sizes}' if sizes else ''}")
    out.text(f"  weights  {size(found['weights'])}")
    out.text(
        f"  arena    {size(found['arena'])}: {size(found['buffers'])} between calls (no layout needs less than "
        f"{size(found['lower_bound'])}), {size(found['working'])} inside them on {found['threads']} threads"
    )
    most = found["most_at"]
    if most is not None:
        where = f" in {most['where']}" if most["where"] else ""
        out.text(f"  most     at call {most['call']}, {most['kernel']}{where}")
    out.text(f"  copies   {found['copies']}, which move {size(found['copied'])}")


def _most(calls: list[dict[str, Any]], i: int) -> dict[str, Any] | None:
    """The call at which the most is alive; None of a program without calls."""
    return {"call": i, "kernel": name_of(calls[i]), "where": calls[i].get("where", "")} if calls else None


def _bytes(buffers: list[dict[str, Any]], number: int, sizes: dict[str, int]) -> int:
    """Of a buffer, or of a view, which has the element type of what it is a view of."""
    read = _lazy.load("ingot.dims_parsing:from_json")
    shape = [d if isinstance(d, int) else d.evaluate(sizes) for d in map(read, buffers[number]["shape"])]
    while "dtype" not in buffers[number]:
        number = buffers[number]["of"]
    return int(math.prod(shape)) * int(_lazy.load("ingot.dtypes:get")(buffers[number]["dtype"]).bits) // 8


def _fusion(program: dict[str, Any]) -> dict[str, int]:
    """Calls that do more than one operation on a number, and how many those are beside the first."""
    counts = []
    for call in all_calls(program):
        params = call.get("params", {})
        steps = params.get("epilogue", params.get("expression", {})).get("steps", ())
        operations = sum(step[0] not in ("input", "const") for step in steps)
        counts.append(operations - (call["kernel"] == "elementwise") if steps else 0)
    fused = [n for n in counts if n > 0]
    return {"calls_with_fused": len(fused), "fused_operations": sum(fused)}


def name_of(call: dict[str, Any]) -> str:
    """What a call, or an item of a profile, runs: a kernel, a way of control, or a host operation."""
    return str(call.get("kernel") or call.get("control") or f"host {call['host']}")


def all_calls(program: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The calls of a program, and those of the programs in them."""
    for call in program["calls"]:
        yield call
        for body in call.get("bodies", ()):
            yield from all_calls(body["program"])


def kernel_counts(program: dict[str, Any]) -> tuple[Counter[str], Counter[str]]:
    """How often each native kernel and each host call appears in a target's programs."""
    calls = [call for body in program["entries"].values() for call in all_calls(body)]
    native = Counter(call["kernel"] for call in calls if "kernel" in call)
    return native, Counter(call["host"] for call in calls if "host" in call)


def _calls(body: dict[str, Any]) -> str:
    buffers = body["buffers"]
    rows = [
        (i, name_of(call), ", ".join(_buffer(buffers, b) for b in call["in"]),
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
