"""Build an engine: one file that holds the network, its programs and its weights.

examples:
  ingot build models/pico-python -o pico.ingot
  ingot build model.pt2 -o model.ingot --precision bfloat16  a file of torch.export.save: docs/importing.md
  ingot build model.onnx -o model.ingot                      an ONNX file (extra onnx): docs/onnx.md
  ingot build models/pico-python -o pico.ingot --precision bfloat16 --json
  ingot build CONFIG_DIR --weights-from random --seed 0      true shapes from config.json alone, for measuring
  ingot build DIRECTORY --lora ADAPTER -o tuned.ingot        with a LoRA adapter in its weights: docs/lora.md

The report says how far each layer is from float32. A .pt2 file is also compared with what torch computes from it, where
torch is installed. --no-report leaves both out. Dynamic sizes are those that the file was exported with."""

from __future__ import annotations

import argparse
from time import perf_counter

from ingot import _lazy
from ingot.cli import options
from ingot.cli.output import Output, printable, size
from ingot.cli.source import check_output, check_target, default_name, progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot build`."""
    parser.add_argument("source", metavar="SOURCE", help="a Hugging Face directory, a .pt2 or an .onnx file")
    parser.add_argument("-o", "--output", metavar="FILE", help="default: the source's name with .ingot, here")
    options.add_formats(parser)
    options.add_lora(parser)
    parser.add_argument("--weights-from", choices=("random",), help="seeded random weights: config.json alone will do")
    parser.add_argument("--seed", type=options.natural, default=0, metavar="N", help="of --weights-from random")
    parser.add_argument("--no-report", action="store_true", help="do not compare with float32, nor with torch")
    parser.add_argument("--dump-stages", metavar="FOLDER", help="write the network's text after every pass there")
    parser.add_argument("--check-stages", action="store_true", help="stop at the pass that changes the numbers (slow)")


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot build`."""
    check_target(args.device, "engines are built")
    path = args.output or default_name(args.source)
    check_output(path, args.source)
    with progress_bar(out) as progress:
        engine = _lazy.load("ingot.builder.build:build")(
            args.source,
            precision=args.precision,
            weights=args.weights or "same",
            report=not args.no_report,
            weights_from=args.weights_from,
            seed=args.seed,
            **options.lora_words(args),
            progress=progress,
            debug=_lazy.load("ingot.builder.build:Debug")(args.dump_stages, args.check_stages),
        )
    begin = perf_counter()
    written = engine.save(path)
    seconds = {**engine.seconds, "write": perf_counter() - begin}
    for phase, value in seconds.items():
        out.note(f"{phase:8} {value:7.2f} s")
    out.left_out(engine.config.get("left_out", ()))
    for words in engine.config.get("converted", ()):
        out.note(words)
    kept = [line.removeprefix("weights: ") for line in engine.log if line.startswith("weights: ")]
    if kept:
        out.note(f"{len(kept)} weight(s) are not stored as {args.weights}: {kept[0]}" + ", …" * (len(kept) > 1))
    out.text("\n".join(map(printable, str(engine.summary).splitlines())))
    if engine.report is not None:
        out.text(str(engine.report) + "\n")
    out.text(f"{path}: {size(written)} in {sum(seconds.values()):.2f} s")
    out.result(
        {
            "path": path,
            "bytes": written,
            "seconds": {phase: round(value, 4) for phase, value in seconds.items()},
            "accuracy": engine.report.json() if engine.report is not None else None,
            **engine.summary.json(),
        }
    )
