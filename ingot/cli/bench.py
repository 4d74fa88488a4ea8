"""Measure an engine: steps of a language model, or runs of a network, and where their time goes.

examples:
  ingot bench pico.ingot                            a decoding step of one request with 128 tokens of context
  ingot bench pico.ingot --what prefill --length 512
  ingot bench net.ingot --size N=8                  a plain network on seeded inputs, or those of --input, --npz
  ingot bench model.pt2                             builds in memory first
  ingot bench net.ingot --profile                   tables: time by kernel, and the slowest calls
  ingot bench net.ingot --profile trace.json        and every call as a trace for https://ui.perfetto.dev

share_of_bandwidth is the bytes that a step has to read (weights, keys and values), over its time, over the memory's
read bandwidth. That is what --bandwidth gives, or else a quick measurement, which is made for the CPU only. Models that
fit the caches go beyond 1.

In a profile a call's time is the median of --repeat runs. "of the roof" (the roofline model, docs/performance.md) is
the least time that the call could take, over its time. The least time is that of its bytes at the memory's bandwidth,
or of its operations at the speed of ingot's own matrix product. Calls that are clearly faster than memory have "in
caches" in its place. On another --device than the CPU the calls are the
network's ops, and --bandwidth is the one roof."""

from __future__ import annotations

import argparse
import math
import statistics
from time import perf_counter

from ingot import _lazy
from ingot.cli import options
from ingot.cli.output import Output, size
from ingot.cli.source import open_engine

WARM_UP = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot bench`."""
    options.add_model(parser, options.SOURCE)
    group = parser.add_argument_group("what to measure")
    group.add_argument(
        "--what", choices=("decode", "prefill"), default="decode",
        help="of a language model: a step that adds a token to each request, or one that computes a prompt "
        "(default: decode)",
    )  # fmt: skip
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
    group.add_argument("--repeat", type=options.positive, default=30, metavar="N", help="how often (default: 30)")
    group.add_argument("--bandwidth", type=options.rate, metavar="GB/S", help="the memory's read bandwidth, if known")
    group.add_argument(
        "--profile",
        nargs="?",
        const="",
        metavar="FILE",
        help="show the time by kernel and of the slowest calls; with a FILE write every call there, as a Chrome trace",
    )
    group.add_argument(
        "--profile-calls", type=options.natural, default=20, metavar="N", help="slowest calls to show (default: 20)"
    )  # fmt: skip
    options.add_inputs(parser)


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot bench`."""
    profiling = _lazy.load("ingot.cli.profiling") if args.profile is not None else None
    if profiling and args.profile:
        profiling.check_trace_path(args.profile)
    engine, _ = open_engine(args, args.source, out)
    ours = engine.device.runtime.name == _lazy.load("ingot.backends.device:DEFAULT")
    measure = _lazy.load("ingot.cli.measure")
    case = measure.case_of(engine, args, out.note)
    for _ in range(WARM_UP):
        case.run()
    seconds = []
    for _ in range(args.repeat):
        begin = perf_counter()
        case.run()
        seconds.append(perf_counter() - begin)
    low, median = min(seconds), statistics.median(seconds)
    p90 = sorted(seconds)[math.ceil(0.9 * len(seconds)) - 1]
    bandwidth = args.bandwidth * 1e9 if args.bandwidth else measure.bandwidth(args.threads) if ours else None
    rate = case.tokens / median if case.tokens else None
    share = case.bytes / median / bandwidth if bandwidth else None
    speed = f", {rate:,.1f} tokens a second" if rate else ""
    out.text(f"{case.name}: {median * 1e3:.3f} ms (at best {low * 1e3:.3f}, 90 % within {p90 * 1e3:.3f}){speed}")
    part = f": {share:.0%} of the bandwidth of {bandwidth / 1e9:.1f} GB/s" if bandwidth else ""
    if bandwidth and share > _lazy.load("ingot.cli.profiling:CLEAR"):
        part = f" from caches: faster than memory's {bandwidth / 1e9:.1f} GB/s"
    out.text(f"reads {size(case.bytes)}{part}")
    extra = {}
    if profiling:
        roofs = measure.roofs(args.threads, bandwidth) if ours else profiling.Roofs(bandwidth, {})
        found = profiling.profile(engine, case.profile, args.repeat, roofs, case.attended)
        extra = found.json()
        out.text("\n" + found.text(args.profile_calls, median))
        if args.profile:
            profiling.write_trace(args.profile, found)
            out.note(f"{args.profile}: open it in https://ui.perfetto.dev or chrome://tracing")
    out.result(
        {
            "name": case.name,
            "ms": {"min": low * 1e3, "median": median * 1e3, "p90": p90 * 1e3},
            "tokens_per_s": rate,
            "bytes": case.bytes,
            "share_of_bandwidth": share,
            **extra,
        }
    )
