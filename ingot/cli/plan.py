"""Say what memory a language model takes, before anything loads, and how many requests fit.

examples:
  ingot plan models/pico-python --concurrency 16 --context 512
  ingot plan llama-70b --concurrency 8 --context 8192 --memory 192GB --precision bfloat16
  ingot plan pico.ingot --concurrency 64 --json

Of a directory only config.json (and the headers of its weights) are read: a folder with nothing but a config.json can
be planned. A model runs so with `--context L --kv-memory BYTES`. Keys and values of past tokens are called the
KV cache. Not counted are the interpreter, its libraries and the tokenizer (about 0.1 GB), nor what building in memory
takes for a while.

The exit code is 0 when that fits in --memory (without it: in what this machine has left) and 2 when it does not. The
plan is printed either way; an error then says what would fit. MB and GB are 1000² and 1000³ bytes, MiB and GiB 1024²
and 1024³."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ingot import _lazy, foreign
from ingot.cli import options
from ingot.cli.output import Output, size, table
from ingot.cli.source import check_target
from ingot.errors import UserError
from ingot.words import PRECISIONS, SAME

# From the widest on. fp8 takes what int8 does: as weights, and a CPU keeps keys and values of fp8 as int8.
SMALLER_WEIGHTS = ("int8", "int4-g128")
SMALLER_KV = ("int8",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot plan`."""
    parser.add_argument("source", metavar="SOURCE", help="an .ingot engine, a Hugging Face directory or a .gguf file")
    parser.add_argument(
        "--concurrency", type=options.positive, default=1, metavar="N", help="requests at once (default: 1)"
    )
    parser.add_argument(
        "--context", type=options.positive, metavar="L", help="tokens of each, prompt included (default: the model's)"
    )
    parser.add_argument(
        "--memory", type=options.byte_count, metavar="BYTES",
        help="the memory that there is, such as 24GB or 24GiB (default: what this machine has left)",
    )  # fmt: skip
    options.add_formats(parser)
    parser.add_argument("--threads", type=options.positive, metavar="N", help=options.THREADS)


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot plan`. Raises UserError, after all has been shown, when the plan does not fit."""
    engine, granted = _engine(args)
    planner = _lazy.load("ingot.llm.plan:MemoryPlanner")(engine, args.threads)
    context = args.context or planner.context_limit
    plan = planner.plan(args.concurrency, context)
    memory = _lazy.load("ingot.llm.memory:available_memory")() if args.memory is None else args.memory
    if planner.windowed:
        granted.append("attention slides, and blocks are given back: long requests run in less than is counted")
    rows = [_row(planner, length, memory) for length in planner.contexts(context)]
    largest = {
        "requests": planner.most_requests(context, memory),
        "context_length": planner.longest_context(args.concurrency, memory),
    }
    _show(out, args, engine, planner, plan, memory, rows, largest)
    for remark in granted:
        out.text(f"taken for granted: {remark}")
    out.result(
        {
            "source": args.source, "precision": engine.config["precision"], **asdict(plan), "total": plan.total,
            "kv_bytes_per_token": planner.kv_bytes_per_token, "threads": planner.threads, "memory": memory,
            "fits": plan.total <= memory, "largest": largest, "by_context": rows, "granted": granted,
        }
    )  # fmt: skip
    if plan.total > memory:
        way_out = _way_out(args, engine.config["precision"], planner, plan, memory, largest)
        there = f"the {size(memory)} that this machine has left" if args.memory is None else f"--memory {size(memory)}"
        raise UserError(
            f"{plan.concurrency} request(s) of {context:,} tokens do not fit in {there}: they take {size(plan.total)}, "
            f"and {size(plan.total - memory)} are missing; {way_out}"
        )


def _way_out(
    args: argparse.Namespace, precision: str, planner: Any, plan: Any, memory: int, largest: dict[str, int]
) -> str:
    """What to change about a plan that does not fit: nothing that was not planned and found to fit."""
    ways = []
    if largest["requests"]:
        ways.append(f"--concurrency {largest['requests']}")
    if largest["context_length"]:
        ways.append(f"--context {largest['context_length']}")
    asked = plan.concurrency, plan.context_length
    ways += [words for words, _ in _other_formats(args, precision, lambda other: other.plan(*asked).total <= memory)]
    least = planner.plan(1, 1).total
    if not ways and least <= memory:
        ways.append("fewer requests and a shorter context together")
    if ways:
        return f"what fits: {', or '.join(ways)}"
    others = _other_formats(args, precision, lambda other: other.plan(1, 1).total <= memory)
    smaller = [f"{words}, with which it takes {size(other.plan(1, 1).total)}" for words, other in others]
    return (
        f"no fewer requests and no shorter context fit, for one request of one token takes {size(least)}: "
        f"it needs {' or '.join(['more memory', *smaller])}"
    )


def _other_formats(args: argparse.Namespace, precision: str, fits: Callable[[Any], bool]) -> list[tuple[str, Any]]:
    """What a directory could be built with instead so that it fits, and its planner: another precision, the widest
    smaller weights, a smaller KV cache; both of those where neither will do. An engine file has its formats for good.
    """
    if Path(args.source).is_file():
        return []

    def first(tried: Iterable[dict[str, str]]) -> Iterator[tuple[str, Any]]:
        for words in tried:
            engine, _ = _engine(argparse.Namespace(**{**vars(args), **words}))
            planner = _lazy.load("ingot.llm.plan:MemoryPlanner")(engine, args.threads)
            if fits(planner):
                yield " ".join(f"--{option} {word}" for option, word in words.items()), planner
                return

    rows = args.activations == "fp8"  # which are multiplied with weights of fp8 alone
    weights, caches = () if rows else _behind(args.weights, SMALLER_WEIGHTS), _behind(args.kv, SMALLER_KV)
    found = [one for name in PRECISIONS if name != precision for one in first([{"precision": name}])]
    narrower = [*first({"weights": word} for word in weights), *first({"kv": word} for word in caches)]
    both = ({"weights": one, "kv": two} for one in weights for two in caches)
    return [*found, *(narrower or first(both))]


def _behind(word: str | None, words: Sequence[str]) -> Sequence[str]:
    """The words that take less than this one."""
    if word in (None, SAME):
        return words
    word = "int8" if word == "fp8" else word
    return words[words.index(word) + 1 :] if word in words else ()


def _engine(args: argparse.Namespace) -> tuple[Any, list[str]]:
    """The engine of a file, or the outline of what a directory would be built into."""
    check_target(args.device, "plans are made")
    sources = _lazy.load("ingot.source")
    if sources.is_engine(args.source):
        words = {"activations": args.activations, "kv": args.kv}
        return sources.open_engine(args.source, args.precision, args.weights, **words), []
    path = Path(args.source)
    if (
        why := foreign.missing(path) or foreign.refusal(path) or (foreign.folder(path) if path.is_dir() else None)
    ) is not None:
        raise UserError(why)
    if path.is_file() and path.suffix in (".onnx", ".pt2"):
        raise UserError(
            f"{path} is a plain network, and plans are made for requests to a language model: `ingot inspect {path} "
            "--size DIM=N` tells the memory of its runs"
        )
    outline = _lazy.load("ingot.builder.outline:outline")
    return outline(args.source, args.precision, args.weights, args.activations, args.kv)  # type: ignore[no-any-return]


def _row(planner: Any, length: int, memory: int) -> dict[str, int]:
    most = planner.most_requests(length, memory)
    kv = planner.plan(most, length).kv_bytes if most else 0
    return {"context_length": length, "requests": most, "kv_bytes": kv}


def _show(
    out: Output, args: argparse.Namespace, engine: Any, planner: Any, plan: Any, memory: int,
    rows: list[dict[str, int]], largest: dict[str, int],
) -> None:  # fmt: skip
    config = engine.config
    tokens = plan.kv_bytes // planner.kv_bytes_per_token
    stored = config.get("weights", "same")
    formats = config["precision"] if stored == "same" else f"{config['precision']} with weights in {stored}"
    out.text(
        f"{args.source}: {config['architecture']}, {config['num_layers']} layers, {formats}; "
        f"{plan.concurrency} request(s) of {plan.context_length:,} tokens at once"
    )
    for name, bytes_, remark in (
        ("weights", plan.weights, ""),
        ("activations", plan.activations, f"in steps of {planner.step_tokens} tokens on {planner.threads} threads"),
        ("logits", plan.results, f"of {plan.concurrency} token(s)"),
        ("KV cache", plan.kv_bytes, f"{tokens:,} tokens of {planner.kv_bytes_per_token:,} bytes"),
        ("total", plan.total, ""),
    ):
        out.text(f"  {name:12} {size(bytes_):>10}  {remark}".rstrip())
    where = "free on this machine" if args.memory is None else "given"
    rest = memory - plan.total
    verdict = f"fits, {size(rest)} are left" if rest >= 0 else f"does not fit: {size(-rest)} are missing"
    out.text(f"  {'memory':12} {size(memory):>10}  {where}: {verdict}")
    out.text(f"\nthe most requests at once in that memory (a step takes {planner.step_tokens} at most)")
    shown = [(row["context_length"], row["requests"], size(row["kv_bytes"])) for row in rows]
    out.text(table(shown, ("context", "requests", "KV cache")))
    longest = largest["context_length"]
    out.text(
        f"{plan.concurrency} request(s) at once can have {longest:,} tokens each"
        if longest
        else f"{plan.concurrency} request(s) at once do not fit, however short"
    )
