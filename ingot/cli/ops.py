"""List the ops: what they take, which kernels run them, and how else they run.

examples:
  ingot ops
  ingot ops --json | python -m json.tool"""

from __future__ import annotations

import argparse
from typing import Any

from ingot import _lazy
from ingot.cli.output import Output, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`ingot ops` has no options of its own."""


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot ops`."""
    declared = {kernel.name: kernel for kernel in _lazy.load("ingot.backends.cpu:CPU").kernels}
    ops = [{**op, "kernels": _kernels(op, declared)} for op in _lazy.load("ingot.ops:table")()]
    rows = [
        (o["op"], o["family"], ", ".join(o["operands"]), ", ".join(o["kernels"]) or "-",
         ", ".join(o["lowering"]) or "-", o["cases"])
        for o in ops
    ]  # fmt: skip
    out.text(table(rows, ("op", "family", "operands", "kernels", "also as", "cases")))
    out.text(
        f"\n{len(ops)} ops, {len(declared)} native kernels. An op with neither kernel nor other form is a host call."
    )
    kernels = [
        {**native, "ops": list(declared[native["name"]].runs)} for native in _lazy.load("ingot._native").kernels()
    ]
    out.result({"ops": ops, "kernels": kernels})


def _kernels(op: dict[str, Any], declared: dict[str, Any]) -> list[str]:
    """The kernels that run an op; scalar expressions all go the way of fused_elementwise."""
    names = (op["op"], "fused_elementwise") if "expr" in op["lowering"] else (op["op"],)
    return [kernel.name for kernel in declared.values() if any(name in kernel.runs for name in names)]
