"""Run a network once on given arrays, and show or write what comes out.

examples:
  ingot run net.ingot --random                                    seeded inputs: does it run, and what comes out?
  ingot run net.ingot --random --size N=4 --size H=320            at other sizes
  ingot run net.ingot --input x=image.npy -o out.npz              one file per input; results into one file
  ingot run net.ingot --input-dir arrays/ -o results/             arrays/NAME.npy for each input; a file per result
  ingot run net.ingot --npz inputs.npz --input mask=mask.npy
  ingot run model.pt2 --random                                    builds in memory first (torch.export's file)
  ingot run model.onnx --random                                   the same of an ONNX file (extra onnx)

`ingot inspect net.ingot` lists the inputs. An array must have the type and the shape of its input: nothing is converted
silently. min, max and mean are of the finite numbers. The checksum is the start of SHA-256 over the bytes, so equal
checksums are equal results. bfloat16 is written as float32 (.npy has no name for it) and read back as such."""

from __future__ import annotations

import argparse
from typing import Any

from ingot import _lazy
from ingot.cli import options
from ingot.cli.output import Output, phases, table
from ingot.cli.source import open_network


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot run`."""
    parser.add_argument("source", metavar="SOURCE", help="an .ingot engine, or a .pt2 or .onnx file to build first")
    options.add_inputs(parser)
    parser.add_argument("-o", "--output", metavar="FILE.npz|DIR", help="write results there, one alone to FILE.npy too")
    options.add_formats(parser)
    options.add_kernels(parser)
    parser.add_argument("--threads", type=options.positive, metavar="N", help=options.THREADS)


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot run`."""
    engine, seconds = open_network(args, args.source, out)
    if args.output:
        _lazy.load("ingot.cli.arrays:check_name")(args.output, [port.name for port in engine.outputs])
    once = _lazy.load("ingot.cli.feed")
    outputs, taken = once.run_once(engine, args, out.note)
    seconds |= taken
    if args.output:
        _lazy.load("ingot.cli.arrays:write_arrays")(args.output, outputs)
    rows = [once.figures(name, array) for name, array in outputs.items()]
    out.text(
        table([_row(r) for r in rows], ("output", "type", "shape", "min", "max", "mean", "NaN", "Inf", "checksum"))
    )
    out.note(phases(seconds, 1e3, "ms", 3))
    if args.output:
        out.note(f"written to {args.output}")
    out.result({"outputs": rows, "seconds": seconds, "path": args.output})


def _row(figures: dict[str, Any]) -> tuple[Any, ...]:
    shape = "×".join(map(str, figures["shape"])) or "scalar"
    return (
        figures["name"],
        figures["dtype"],
        shape,
        *(figures[k] for k in ("min", "max", "mean", "nan", "inf", "checksum")),
    )
