"""List the ops: which element types an engine runs natively, which kernels, and what else they run as or come from.

examples:
  ingot ops                                 every op
  ingot ops matmul conv                     these
  ingot ops aten.conv2d.default             whether that op of torch is taken, and what it may become
  ingot ops --dtype float16 --host          what is a host call in float16
  ingot ops --json | python -m json.tool

A host call is an op that runs in Python, in NumPy, because no kernel (native code) takes its element type."""

from __future__ import annotations

import argparse
from collections.abc import Iterable
from typing import Any

from ingot import _lazy
from ingot.cli.output import Output, table
from ingot.cli.parser import did_you_mean
from ingot.errors import UserError

SHORT = {"native": "native", "host": "host", "native or host": "some"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot ops`."""
    parser.add_argument("op", nargs="*", metavar="OP", help="only these; an op of torch shows what it may become")
    parser.add_argument("--dtype", metavar="TYPE", help="only this element type, and the ops that take it")
    parser.add_argument("--host", action="store_true", help="only ops that run in Python for some element type")


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot ops`."""
    known = _lazy.load("ingot.builder.covered:covered")()
    ops, kinds = known["ops"], known["dtypes"]
    asked = set(args.op) & {row["op"] for row in ops}
    unknown = []
    for name in sorted(set(args.op) - asked):
        if found := _made_of(name, ops):
            out.note(f"{name} is an op of torch that ingot takes; what it may become:")
            asked |= set(found)
        else:
            unknown.append(name)
    if foreign := [name for name in unknown if name.startswith("aten.")]:
        raise UserError(f"ingot takes no op {', '.join(foreign)} of torch: docs/importing.md says what to do about one")
    if unknown:
        near = did_you_mean(unknown[0], (row["op"] for row in ops)) if len(unknown) == 1 else ""
        raise UserError(f"there is no op {', '.join(unknown)}{near or '; `ingot ops` lists them'}")
    if args.dtype is not None:
        kind = _lazy.load("ingot.dtypes:get")(args.dtype).name
        if kind not in kinds:  # complex64, say: found anew
            ops = _lazy.load("ingot.builder.coverage:coverage")(sorted(asked) or None, (kind,))
        kinds = [kind]
        ops = [{**op, "cpu": {kind: op["cpu"][kind]}} for op in ops if kind in op["cpu"]]
    if args.op:
        ops = [op for op in ops if op["op"] in asked]
    if args.host:
        ops = [op for op in ops if "host" in " ".join(op["cpu"].values())]
    rows = [
        (o["op"], o["family"], ", ".join(o["operands"]), *(SHORT.get(o["cpu"].get(kind), "-") for kind in kinds),
         o["torch"], ", ".join(o["kernels"]) or "-", len(o["importers"]["torch"]) or "-")
        for o in ops
    ]  # fmt: skip
    out.text(table(rows, ("op", "family", "operands", *kinds, "torch device", "CPU kernels", "from torch")))
    pairs = [how for op in ops if not op["internal"] for how in op["cpu"].values()]
    native = pairs.count("native")
    count = f"{len(ops)} op{'s' * (len(ops) != 1)}"
    out.text(
        f"\n{count}. Of {len(pairs)} pairs of an op and an element type the CPU runs {native} natively. host: a "
        "NumPy reference in Python. some: natively or so, by the case."
    )
    if out.as_json:
        declared = {kernel.name: kernel for kernel in _lazy.load("ingot.backends.cpu:CPU").kernels}
        kernels = _lazy.load("ingot._native").kernels()
        listed = [{**kernel, "ops": list(declared[kernel["name"]].runs)} for kernel in kernels]
        out.result({"ops": ops, "kernels": listed})


def _made_of(name: str, ops: Iterable[dict[str, Any]]) -> list[str]:
    """The ops that an op of torch may become; aten.conv2d and conv2d stand for all overloads."""
    bare = name.removeprefix("torch.").removeprefix("ops.").removeprefix("aten.")
    return [
        op["op"] for op in ops
        if any(bare in (overload, overload.partition(".")[0]) for overload in op["importers"]["torch"])
    ]  # fmt: skip
