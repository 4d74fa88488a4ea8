"""Score a text: how well a language model predicts it, in nats a token (less is better).

examples:
  ingot score pico.ingot --text models/pico-python/heldout.txt --window 512 --json

What a token costs is the negative natural logarithm of the probability that the model gave it. The text is encoded
whole and cut into windows; each begins with an empty context. No token is added. What fills no window is left out."""

from __future__ import annotations

import argparse

from ingot import _lazy
from ingot.cli import options
from ingot.cli.generate import read_text
from ingot.cli.output import Output
from ingot.cli.source import progress_bar


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot score`."""
    options.add_model(parser)
    options.add_check(parser)
    parser.add_argument("--text", metavar="FILE", required=True, help="the text; - is standard input")
    parser.add_argument("--window", type=options.positive, metavar="W", help="tokens a window (default: the context)")


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot score`."""
    text = read_text(args.text)
    with _lazy.load("ingot.llm.llm:LLM")(args.source, **options.model_words(args)) as llm:
        out.left_out(llm.left_out)
        with progress_bar(out) as progress:
            score = llm.score(text, args.window, progress=progress)
    rest = f"; {score.left_out:,} at the end, which fill no window, are left out" if score.left_out else ""
    out.text(
        f"{score.nats_per_token:.4f} nats per token over {score.tokens:,} tokens in {score.windows} window(s){rest}"
    )
    out.result({"nats_per_token": score.nats_per_token, "tokens": score.tokens, "windows": score.windows,
                "left_out": score.left_out})  # fmt: skip
