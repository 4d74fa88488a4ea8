"""Build an engine: one file that holds the network, its programs and its weights.

examples:
  ingot build models/pico-python -o pico.ingot
  ingot build model.pt2 -o model.ingot --precision bfloat16  a file of torch.export.save: docs/importing.md
  ingot build model.onnx -o model.ingot                      an ONNX file (extra onnx): docs/onnx.md
  ingot build model.gguf -o model.ingot                      a GGUF file: docs/families.md
  ingot build models/pico-python -o pico.ingot --precision bfloat16 --json
  ingot build CONFIG_DIR --weights-from random --seed 0      true shapes from config.json alone, for measuring
  ingot build DIRECTORY --lora ADAPTER -o tuned.ingot        with a LoRA adapter in its weights: docs/lora.md
  ingot build models/pico-python --weights int4-g128 --text models/pico-python/heldout.txt    what it costs on a text
  ingot build net.onnx --activations int8 --data calib.npz --report q.svg    docs/quantization.md
  ingot build net.onnx --tune 30                             measures what is fastest here: docs/tuning.md
  ingot build models/pico-python -o pico.ingot --device cuda:sm_90     kernels for GPUs elsewhere too: docs/devices.md

The report says how far each layer is from float32. A .pt2 file is also compared with what torch computes from it,
where torch is installed, an .onnx file with ONNX Runtime. --no-report leaves all of this out. Of the phases whose
times are shown, "load" is loading the compiler's code, "compare" has the import of torch, and "other" is what is in
none. Sizes that runs may choose are those that the file was exported with. With --device cuda:sm_90 (sm_80, sm_86,
sm_89, sm_90, sm_100, sm_120) the engine is the same file, and OUTPUT.cuda has the compiled kernels that it launches
on such a GPU; no GPU is needed for that."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from time import perf_counter
from typing import Any

from ingot import _lazy
from ingot.cli import options
from ingot.cli.output import OTHER, Output, phases, printable, since_start, size
from ingot.cli.source import check_output, default_name, progress_bar
from ingot.errors import UserError
from ingot.words import HEADS, TABLES


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot build`."""
    parser.add_argument(
        "source",
        metavar="SOURCE",
        help="a Hugging Face directory, a .gguf, .pt2 or .onnx file; or an engine, to merge --lora into",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="the engine (default: SOURCE's name with .ingot)")
    options.add_formats(parser)
    parser.add_argument(
        "--head", choices=HEADS,
        help="how the product that makes logits is stored (default: as --weights says; a head that is the table of "
        "embeddings too, as that)",
    )  # fmt: skip
    parser.add_argument(
        "--embeddings", choices=TABLES,
        help="how tables are stored that rows are looked up in (default: in the precision, int8 with other --weights)",
    )  # fmt: skip
    options.add_lora(parser)
    options.add_sizes(parser)
    parser.add_argument("--tune", type=options.rate, metavar="SECONDS", help="of a net: measure on this machine which "
                        "algorithm of each convolution, which loops of each product and how many threads are the "
                        "fastest, and with --data which layers are faster in float; kept in OUTPUT.tune.json, "
                        "by which the next build decides")  # fmt: skip
    parser.add_argument("--weights-from", choices=("random",), help="random weights: config.json alone will do")
    parser.add_argument("--seed", type=options.natural, default=0, metavar="N", help="of --weights-from (default: 0)")
    parser.add_argument("--no-report", action="store_true", help="compare neither with float32 nor the source")
    parser.add_argument("--report", metavar="FILE", help="write the errors by layer: FILE.svg (a chart), FILE.json")
    parser.add_argument(
        "--text", metavar="FILE",
        help="of a language model: a text, on whose first 4,096 tokens the report says what the formats cost in nats "
        "per token beside the source as it is, and the speed of decoding (default: the text of --data)",
    )  # fmt: skip
    parser.add_argument("--dump-stages", metavar="FOLDER", help="write the network after every compiler pass there")
    group = parser.add_argument_group("calibrated int8 (with --activations int8; weights are int8 too)")
    group.add_argument(
        "--data", metavar="FILE",
        help="inputs as the net will see them: FILE.npz, an array for each; for a language model a text",
    )  # fmt: skip
    group.add_argument(
        "--smooth", type=options.share, metavar="ALPHA",
        help="of a language model, 0 to 1: how far large channels become smaller, and their weights larger (default: "
        "the best for each norm)",
    )  # fmt: skip
    group.add_argument(
        "--method", choices=("auto", "mse", "l3", "entropy", "percentile", "min-max"),
        help="how the ranges of values are chosen (default: auto, which is mse or l3 by the error of the outputs)",
    )  # fmt: skip
    group.add_argument("--budget", type=options.tolerance, metavar="E", help="largest relative error of an output: "
                       "layers stay float until it is kept")  # fmt: skip
    group.add_argument("--keep", action="append", metavar="NAME", help="leave layers float: a name with * and ?, "
                       "first, or last; repeatable")  # fmt: skip
    group.add_argument("--always-int8", action="store_true", help="int8 even if runs on this machine show that the net "
                       "is clearly slower then (default: it stays float)")  # fmt: skip
    parser.add_argument(
        "--check-stages", action="store_true", help="run the network after every pass; stop where numbers change (slow)"
    )


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot build`."""
    started, begun = since_start(), perf_counter()
    device = _device(args)
    if args.output is None and _lazy.load("ingot.source:is_engine")(args.source):
        _lazy.load("ingot.engine.session:load")(args.source)  # what is no engine is said to be what it is
        raise UserError(f"{args.source} is an engine already: name the file of the other one, -o FILE")
    path = args.output or default_name(args.source)
    check_output(path, args.source)
    _check_calibration(args)
    with progress_bar(out) as progress:
        begin = perf_counter()
        build = _lazy.load("ingot.builder.build:build")
        loaded = perf_counter() - begin
        debug = _lazy.load("ingot.builder.switches:Debug")(args.dump_stages, args.check_stages)
        words = {"precision": args.precision, "report": not args.no_report, "progress": progress, "debug": debug,
                 "text": args.text,
                 "tune": args.tune, "tune_file": None if args.tune is None else f"{path}.tune.json"}  # fmt: skip
        engine = _calibrated(args, path, words) if args.data is not None else build(
            args.source,
            weights=args.weights or "same",
            activations=args.activations or "same",
            kv=args.kv or "same",
            weights_from=args.weights_from,
            seed=args.seed,
            head=args.head,
            embeddings=args.embeddings,
            tune_sizes=None if args.tune is None else _sizes(args.size),
            **options.lora_words(args),
            **words,
        )  # fmt: skip
        begin = perf_counter()
        written = engine.on(None).save(path)  # for a device it compiles kernels too, which are a phase of their own
        seconds = {"load": loaded, **engine.seconds, "write": perf_counter() - begin}
        kernels = None
        if device is not None:
            kernels = _lazy.load("ingot.builder.kernels:beside")(engine, path, device, args.size, progress)
            seconds["kernels"] = kernels.seconds
    seconds[OTHER] = max(0.0, perf_counter() - begun - sum(seconds.values()))
    out.detail(f"start: interpreter and imports {started:.3f} s")
    out.note(phases(seconds))
    _say_built(engine, args, out)
    out.text(f"{path}: {size(written)} in {sum(seconds.values()):.2f} s")
    if kernels is not None:
        _say_kernels(kernels, device, out)
    summary = {} if engine.summary is None else engine.summary.json()
    out.result(
        {
            "path": path,
            "bytes": written,
            "seconds": {phase: round(value, 4) for phase, value in seconds.items()},
            "accuracy": engine.report.json() if engine.report is not None else None,
            **({} if kernels is None else {"kernels": kernels.json()}),
            **({} if engine.calibrated is None else {"quantization": engine.calibrated.json()}),
            **summary,
            "notes": [*summary.get("notes", ()), *_remarks(engine)],
        }
    )


def _remarks(engine: Any) -> list[str]:
    """What the build says of its measurements and of int8."""
    return [line for line in engine.log if line.startswith(("tune: ", "int8: "))]


def _say_built(engine: Any, args: argparse.Namespace, out: Output) -> None:
    """What the engine is and how near it comes to its source; the file of --report. Raises UserError, FileError."""
    out.left_out(engine.config.get("left_out", ()))
    for line in (*engine.config.get("converted", ()), *_remarks(engine)):
        out.note(printable(line))
    if engine.summary is not None:  # None: the source is an engine, which was built before
        out.text(printable_lines(engine.summary))
    if engine.calibrated is not None:
        out.text(printable_lines(engine.calibrated))
    if args.report is not None and args.data is None:
        if engine.report is None:
            raise UserError(f"{args.source} is an engine, whose report its build gave: build its source to have one")
        _lazy.load("ingot.quantization.report:write_accuracy")(engine.report, args.report)
    if engine.report is not None:
        out.text(str(engine.report) + "\n")


def _device(args: argparse.Namespace) -> Any:
    """What kernels are compiled for beside the engine; None where that is built alone. Raises UserError."""
    if args.device in (None, _lazy.load("ingot.backends.device:DEFAULT")):
        if args.size and (args.tune is None or args.data is not None):
            raise UserError("--size says at which sizes kernels are compiled or a net without --data is tuned: give "
                            "--device cuda:sm_90 or --tune with it")  # fmt: skip
        return None
    device = _lazy.load("ingot.backends.device:device_of")(args.device)
    if args.tune is not None and device.is_architecture:
        raise UserError(f"--tune measures runs, and {device} is no GPU of this machine: leave out --tune; or --device, "
                        "to tune for this machine's processor")  # fmt: skip
    if args.tune is not None and args.data is None:
        raise UserError("--tune measures the kernels of this machine's processor: leave out --device, or calibrate "
                        "int8, of which runs are measured there: --activations int8 --data FILE")  # fmt: skip
    _lazy.load("ingot.builder.kernels:check")(device, args.output or default_name(args.source))
    return device


def _sizes(given: Sequence[str]) -> dict[str, int]:
    """The sizes of dims. Raises UserError; whether there are such dims, the build says."""
    found = {}
    for text in given:
        name, _, value = text.partition("=")
        if not (value.isascii() and value.isdecimal() and len(value) < 20):
            raise UserError(f"--size {text}: write DIM=N")
        found[name] = int(value)
    return found


def _say_kernels(kernels: Any, device: Any, out: Output) -> None:
    there = f", {kernels.kernels - kernels.compiled} of them were there" if kernels.compiled < kernels.kernels else ""
    out.text(f"{kernels.folder}: {kernels.kernels} kernels for {device} in {kernels.seconds:.1f} s, "
             f"{size(kernels.bytes)}{there}; run with --kernels {kernels.folder}")  # fmt: skip
    for entry, why in kernels.left_out.items():
        out.note(f"kernels of {entry}: some are compiled where it runs, for only a run shows its sizes ({why})")


def printable_lines(value: object) -> str:
    """The lines of an object's text, with what a terminal would obey escaped."""
    return "\n".join(map(printable, str(value).splitlines()))


def _check_calibration(args: argparse.Namespace) -> None:
    """Raises UserError for words of a calibration that do not go together."""
    if args.data is None:
        names = ("method", "budget", "keep", "smooth")
        given = [f"--{name}" for name in names if getattr(args, name) is not None]
        given += ["--always-int8"] if args.always_int8 else []
        if given:
            raise UserError(f"{', '.join(given)} is for a calibration: give its data too, --data FILE")
        if args.activations == "int8" and args.weights in (None, "same") and args.source.endswith((".pt2", ".onnx")):
            raise UserError("--activations int8 of a net is calibrated: give samples of its inputs, --data calib.npz "
                            "(with --weights int8 in its place convolutions stay float)")  # fmt: skip
        if args.report is not None:
            _lazy.load("ingot.quantization.report:check_name")(args.report)
            if args.no_report:
                raise UserError("--report writes the report that --no-report leaves out: give one of them")
        return
    if (args.weights or "int8", args.activations) != ("int8", "int8"):
        raise UserError("--data calibrates int8: give --activations int8 with it, and no --weights but int8")
    if args.lora is not None or args.weights_from is not None:
        raise UserError("--data calibrates the weights of SOURCE: --lora and --weights-from do not go with it")
    if args.head is not None or args.embeddings is not None:
        raise UserError("--data chooses what is int8: --head and --embeddings do not go with it")


def _calibrated(args: argparse.Namespace, path: str, words: dict[str, Any]) -> Any:
    """The engine of a net in calibrated int8."""
    return _lazy.load("ingot.quantization.quantize:quantize")(
        args.source,
        args.data,
        method=args.method or "auto",
        budget=args.budget,
        keep=args.keep or (),
        always_int8=args.always_int8,
        smooth=args.smooth,
        kv=args.kv or "same",
        device=args.device,
        report_file=args.report,
        **words,
    )
