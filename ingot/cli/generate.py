"""Generate text with a language model; it is printed as it comes.

examples:
  ingot generate pico.ingot --prompt "def main():" --max-tokens 100
  ingot generate models/pico-python --prompt-file start.py --temperature 0.8 --top-k 40 --seed 7
  cat start.py | ingot generate pico.ingot --prompt-file - --stop "\\nclass " --json

Without --temperature the likeliest token is taken (greedy). With --n above 1 the texts come one after the other, each
whole. With --json `seconds` has: load (from the start of the process until the model is ready), first_token (from then
on) and total (of the process). With --n above 1 `answers` has all answers, and the other fields are the first one's."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from ingot import _lazy
from ingot.cli import options
from ingot.cli.output import OTHER, Output, since_start
from ingot.errors import FileError, RequestError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot generate`."""
    options.add_model(parser)
    options.add_check(parser)
    prompt = parser.add_mutually_exclusive_group(required=True)
    prompt.add_argument("--prompt", metavar="TEXT", help="what to go on from")
    prompt.add_argument("--prompt-file", metavar="FILE", help="a file with the prompt; - is standard input")
    options.add_sampling(parser, "64")


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot generate`."""
    imported = since_start()
    params = _lazy.load("ingot.llm.sampling:SamplingParams")(**options.sampling_words(args))
    prompt = args.prompt if args.prompt is not None else read_text(args.prompt_file)
    with _lazy.load("ingot.llm.llm:LLM")(args.source, **options.model_words(args)) as llm:
        out.left_out(llm.left_out)
        loaded = since_start()
        answers = [_streamed(llm, prompt, params, out)] if params.n == 1 else llm.generate(prompt, params=params)
    done = answers[0]
    if params.n > 1:
        for number, one in enumerate(answers, 1):
            out.text(f"--- {number} of {params.n} ({one.finish_reason}) ---")
            out.text(one.text, end="" if one.text.endswith("\n") else "\n")
    total = since_start()
    seconds = {"load": loaded, "first_token": done.seconds["first_token"], "total": total}
    _report(out, done, imported, seconds, llm.engine.seconds)
    _cut(out, done, params.max_tokens, llm.context_length)
    out.result(
        {
            "text": done.text,
            "token_ids": done.token_ids,
            "finish_reason": done.finish_reason,
            "prompt_tokens": done.prompt_tokens,
            "completion_tokens": done.completion_tokens,
            "seconds": {name: round(value, 4) for name, value in seconds.items()},
            **({"answers": [_answer(one) for one in answers]} if params.n > 1 else {}),
        }
    )


def _streamed(llm: Any, prompt: str, params: Any, out: Output) -> Any:
    """The completion, shown as it comes."""
    with llm.stream(prompt, params=params) as stream:
        for piece in stream:
            out.text(piece.text, end="")
    if not stream.completion.text.endswith("\n"):
        out.text("")
    return stream.completion


def _answer(one: Any) -> dict[str, Any]:
    names = ("text", "token_ids", "finish_reason", "completion_tokens")
    return {name: getattr(one, name) for name in names}


def _cut(out: Output, done: Any, asked: int, context: int) -> None:
    """Says so where the context ended a text before --max-tokens did."""
    if done.finish_reason == "length" and done.completion_tokens < asked:
        out.note(
            f"ended after {done.completion_tokens} of the {asked} tokens asked for: the context of {context:,} tokens "
            "is full"
        )


def _report(out: Output, done: Any, imported: float, seconds: dict[str, float], phases: dict[str, float]) -> None:
    decoding = done.seconds["total"] - done.seconds["first_token"]
    if done.completion_tokens > 1 and decoding > 0:
        out.note(
            f"{done.completion_tokens} tokens ({done.finish_reason}), {(done.completion_tokens - 1) / decoding:,.0f} a "
            f"second after the first, which came {seconds['load'] + seconds['first_token']:.2f} s after the start"
        )
    load = seconds["load"] - imported
    parts = {**phases, OTHER: load - sum(phases.values())} if phases else {}
    of_it = f" ({', '.join(f'{phase} {value:.3f}' for phase, value in parts.items())})" if parts else ""
    out.detail(
        f"start: interpreter and imports {imported:.3f} s, load {load:.3f} s{of_it}, first token "
        f"{seconds['first_token']:.3f} s"
    )


def read_text(path: str) -> str:
    """A file's text (- is standard input). Raises FileError when it is unreadable, RequestError when no UTF-8."""
    try:
        data = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except OSError as e:
        raise FileError(f"{path} cannot be read: {e.strerror}") from None
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as e:
        raise RequestError(f"{path} is not UTF-8 text (byte {e.start})") from None
