"""List the ops: what they take, which kernels run them, and how else they run.

examples:
  ingot ops
  ingot ops --json | python -m json.tool"""

from __future__ import annotations

import argparse

from ingot import _lazy
from ingot.cli.output import Output, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """`ingot ops` has no options of its own."""


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot ops`."""
    ops = _lazy.load("ingot.ops:table")()
    kernels = {kernel["name"]: kernel for kernel in _lazy.load("ingot._native").kernels()}
    rows = [
        (o["op"], o["family"], ", ".join(o["operands"]), ", ".join(k for k in o["kernels"] if k in kernels) or "-",
         ", ".join(o["lowering"]) or "-", o["cases"])
        for o in ops
    ]  # fmt: skip
    out.text(table(rows, ("op", "family", "operands", "kernels", "also as", "cases")))
    out.text(
        f"\n{len(ops)} ops, {len(kernels)} native kernels. An op with neither kernel nor other form is a host call."
    )
    out.result({"ops": ops, "kernels": list(kernels.values())})
