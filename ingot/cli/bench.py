"""Measure an engine: steps of a language model, or runs of a network.

examples:
  ingot bench pico.ingot                            a decoding step of one request with 128 tokens of context
  ingot bench pico.ingot --what prefill --length 512
  ingot bench pico.ingot --profile trace.json       where the time goes; the file opens in chrome://tracing or Perfetto

share_of_bandwidth is the bytes that a step has to read (weights, keys and values), over its time, over the memory's
read bandwidth: the one given by --bandwidth, or else a quick measurement. Models that fit the caches go beyond 1."""

from __future__ import annotations

import argparse
import json
import math
import statistics
from collections import defaultdict
from pathlib import Path
from time import perf_counter
from typing import Any

from ingot import _lazy
from ingot.cli import options
from ingot.cli.output import Output, size, table
from ingot.errors import FileError

WARM_UP = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot bench`."""
    options.add_model(parser)
    group = parser.add_argument_group("what to measure")
    group.add_argument(
        "--what", choices=("decode", "prefill"), default="decode", help="of a language model (default: decode)"
    )
    group.add_argument(
        "--length",
        type=options.positive,
        default=128,
        metavar="N",
        help="tokens of context, or of the prompt (default: 128)",
    )
    group.add_argument(
        "--batch", type=options.positive, default=1, metavar="N", help="requests in a decoding step (default: 1)"
    )
    group.add_argument(
        "--size", action="append", default=[], metavar="DIM=N", help="of a network: a dim's size (default: its optimum)"
    )
    group.add_argument("--repeat", type=options.positive, default=30, metavar="N", help="measurements (default: 30)")
    group.add_argument("--bandwidth", type=float, metavar="GB/S", help="the memory's read bandwidth, if known")
    group.add_argument("--profile", metavar="FILE", help="write the time of every call, as a Chrome trace")


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot bench`."""
    engine = _engine(args)
    measure = _lazy.load("ingot.cli.measure")
    case = measure.case_of(engine, args)
    for _ in range(WARM_UP):
        case.run()
    seconds = []
    for _ in range(args.repeat):
        begin = perf_counter()
        case.run()
        seconds.append(perf_counter() - begin)
    low, median = min(seconds), statistics.median(seconds)
    p90 = sorted(seconds)[math.ceil(0.9 * len(seconds)) - 1]
    if args.profile:
        _write_profile(args.profile, case.profile(), out)
    bandwidth = args.bandwidth * 1e9 if args.bandwidth else measure.bandwidth(args.threads)
    rate = case.tokens / median if case.tokens else None
    share = case.bytes / median / bandwidth
    speed = f", {rate:,.1f} tokens a second" if rate else ""
    out.text(f"{case.name}: {median * 1e3:.3f} ms (at best {low * 1e3:.3f}, 90 % within {p90 * 1e3:.3f}){speed}")
    out.text(f"reads {size(case.bytes)}: {share:.0%} of the bandwidth of {bandwidth / 1e9:.1f} GB/s")
    out.result(
        {
            "name": case.name,
            "ms": {"min": low * 1e3, "median": median * 1e3, "p90": p90 * 1e3},
            "tokens_per_s": rate,
            "bytes": case.bytes,
            "share_of_bandwidth": share,
        }
    )


def _engine(args: argparse.Namespace) -> Any:
    if Path(args.source).is_file():
        engine = _lazy.load("ingot.engine.session:load")(args.source)
        if engine.kind != "llm":
            return engine
    return _lazy.load("ingot.llm.llm:open_engine")(args.source, args.precision, args.weights, args.device)


def _write_profile(path: str, calls: list[dict[str, Any]], out: Output) -> None:
    """The calls as a Chrome trace, and the sums by kernel as a table."""
    events, at = [], 0
    total: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for call in calls:
        name = call.get("kernel") or f"host {call['host']}"
        events.append(
            {"name": name, "cat": call["where"], "ph": "X", "pid": 0, "tid": 0, "ts": at / 1e3, "dur": call["ns"] / 1e3,
             "args": {"where": call["where"], "call": call["call"], "bytes": call["bytes"]}}
        )  # fmt: skip
        at += call["ns"]
        total[name][0] += 1
        total[name][1] += call["ns"]
    try:
        Path(path).write_text(json.dumps({"traceEvents": events, "displayTimeUnit": "ns"}))
    except OSError as e:
        raise FileError(f"{path} cannot be written: {e.strerror}") from None
    rows = [(name, n, ns / 1e3, ns / at) for name, (n, ns) in sorted(total.items(), key=lambda item: -item[1][1])]
    out.text(table(rows, ("kernel", "calls", "µs", "share")))
