"""Compare two engines of one network, or an engine and its source, layer by layer.

examples:
  ingot diff net.bf16.ingot net.f32.ingot                   on seeded inputs: how far apart is each layer?
  ingot diff net.ingot model.pt2 --input x=image.npy        an engine and what torch computes from its source
  ingot diff net.ingot model.onnx                           an engine and what ONNX Runtime computes from its source
  ingot diff pico.ingot models/pico-python                  another source is built in float32
  ingot diff a.ingot b.ingot --values                       every value of the network instead of every layer
  ingot diff a.ingot b.ingot --tolerance 1e-3               marks the first layer beyond, and ends with 1

"relative" is the root mean square of the differences over that of the second's values. Both engines run the same
inputs, each layer on what its own engine gave before. The exit code is 0 however far they are apart, unless --tolerance
is given and exceeded, as by a NaN that only one of them has: then it is 1."""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from ingot import _lazy
from ingot.cli import options
from ingot.cli.output import Output, table
from ingot.cli.source import open_engine, progress_bar
from ingot.errors import MismatchError, UserError

USUAL = 8  # a dim of unknown purpose: enough for a sequence to be one, and for a mask to leave something


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot diff`."""
    parser.add_argument("source", metavar="A", help=options.SOURCE)
    parser.add_argument("other", metavar="B", help="what it is compared with, the same kinds")
    parser.add_argument("--values", action="store_true", help="compare every value, not only what leaves a layer")
    parser.add_argument(
        "--tolerance", type=options.tolerance, metavar="T", help="the largest relative difference that is all right"
    )
    options.add_inputs(parser)


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot diff`. Raises MismatchError, after all has been shown, when the tolerance is exceeded."""
    args.precision = "float32"  # for what has to be built: the reference
    engine, _ = open_engine(args, args.source, out, check=False)
    given = bool(args.input or args.input_dir or args.npz)
    args.random = args.random or not given
    feeds = _feeds(engine, args, out)
    compare = _lazy.load("ingot.builder.diff")
    framework = _framework(engine, compare, args.other, out)
    other, against = compare.diff_source, args.other
    if not framework:
        other = compare.diff
        against, _ = open_engine(args, args.other, out, check=False)
    with progress_bar(out) as progress:
        done = partial(progress, "compare")
        found = other(engine, against, feeds, values=args.values, done=done)
    beyond = None if args.tolerance is None else found.beyond(args.tolerance)
    inputs = "given inputs" if given and not args.random else f"seeded inputs (seed {args.seed})"
    by = f"{args.other} as {framework} runs it" if framework else args.other
    out.text(f"{args.source} against {by}, on {inputs}")
    out.text(_table(found, beyond))
    if found.hidden:
        names = ", ".join(found.hidden[:4]) + (", …" if len(found.hidden) > 4 else "")
        out.note(f"not compared: {len(found.hidden)} stored only as folded into what comes after: {names}")
    out.result(
        {
            "against": framework or "engine",
            "layers": [place.json() for place in found.places],
            "outputs": [place.json() for place in found.outputs],
            "not_compared": list(found.hidden),
            "tolerance": args.tolerance,
            "first_beyond": beyond.name if beyond else None,
        }
    )
    if beyond is not None:
        raise MismatchError(f"{beyond.name} is the first beyond {args.tolerance:g}: relative {beyond.relative:.2e}")


def _framework(engine: Any, compare: Any, source: str, out: Output) -> str:
    """What runs a source beside us; a remark where it could and is not installed, or has other layers."""
    try:
        found = str(compare.framework_of(source))
    except UserError as e:
        out.note(f"{e}; the source is built in float32 and compared with that")
        return ""
    if found and "quantization" in engine.config:
        out.note("a calibrated engine has batch norms in its layers: the source is built in float32 and compared so")
        return ""
    return found


def _feeds(engine: Any, args: argparse.Namespace, out: Output) -> Any:
    if engine.kind == "llm" and args.random:
        network = _lazy.load("ingot.builder.layers:network_of")(engine)
        return _lazy.load("ingot.builder.report:seeded")(network, args.seed)
    return _lazy.load("ingot.cli.feed:feeds_of")(engine, args, args.source, out.note, usual=USUAL)


def _table(found: Any, beyond: Any) -> str:
    rows = [
        (p.name, p.op, "×".join(map(str, p.shape)) or "scalar", p.largest_value, p.largest, f"{p.relative:.2e}",
         ", ".join(filter(None, ("<- first beyond" if p is beyond else "", p.odd))))
        for p in (*found.places, *found.outputs)
    ]  # fmt: skip
    return table(rows, ("layer", "op", "shape", "largest value", "largest difference", "relative", ""))
