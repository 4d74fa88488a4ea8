"""Options that several commands share: one word, one meaning, one description."""

from __future__ import annotations

import argparse
import math
import os
import re
from typing import Any

from ingot import _lazy
from ingot.errors import UserError
from ingot.words import ACTIVATIONS, KV, PRECISIONS, WEIGHTS, precision_word

SOURCE = "an .ingot engine; or a Hugging Face directory, a .gguf, .pt2 or .onnx file, which is built in memory first"
MODEL = "an .ingot engine; or a Hugging Face directory or a .gguf file, which is built in memory first"
THREADS = "how many threads compute (default: as many as there are processors that this process may use)"

_POWERS = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def add_common(parser: argparse.ArgumentParser, default: Any) -> None:
    """Options of every command; they may stand before or after its name."""
    parser.add_argument("--json", action="store_true", default=default, help="print one JSON object on standard output")
    parser.add_argument("--quiet", action="store_true", default=default, help="no remarks on standard error")
    parser.add_argument("--debug", action="store_true", default=default, help="tracebacks and timings by phase")


def add_formats(parser: argparse.ArgumentParser) -> None:
    """Number formats and the device: the same words for building and running."""
    group = parser.add_argument_group("formats and device")
    group.add_argument(
        "--precision", type=precision_word, choices=PRECISIONS, help="type to compute in (default: the checkpoint's)"
    )
    group.add_argument(
        "--weights", choices=WEIGHTS,
        help="how weights are stored: in the precision, as integers, or as fp8 (e4m3); int4 with a scale for each "
        "group of 32, 64 or 128, -asym with a zero point too (default: same, in the precision)",
    )  # fmt: skip
    group.add_argument(
        "--activations", choices=ACTIVATIONS,
        help="what flows between layers becomes, before it meets weights of int8 or int4, or of fp8 (default: same, "
        "the precision)",
    )  # fmt: skip
    group.add_argument(
        "--kv", choices=KV,
        help="how keys and values of past tokens are stored, the KV cache (default: same, in the precision)",
    )  # fmt: skip
    group.add_argument(
        "--device", metavar="DEVICE", help="where to run: cpu, torch, cuda, … (default: cpu; docs/devices.md)"
    )


def add_kernels(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """A folder of compiled kernels."""
    parser.add_argument(
        "--kernels", metavar="DIR",
        help="compiled kernels for the GPU, as `ingot build --device cuda:sm_90` leaves them beside an engine. They "
        "are code: name a folder that you trust (default: INGOT_KERNELS, or none: they are compiled here)",
    )  # fmt: skip


def add_check(parser: argparse.ArgumentParser) -> None:
    """Whether to look for numbers that are lost."""
    parser.add_argument(
        "--check", action="store_true", help="of logits that are NaN or infinite, say in which step and layer that "
        "began; on devices torch and cuda (slower)",
    )  # fmt: skip


def use_kernels(args: argparse.Namespace) -> None:
    """Tells this process and those that it starts what `add_kernels` read. Raises UserError where no run reads it."""
    if getattr(args, "kernels", None) is not None:
        device = _lazy.load("ingot.backends.device:device_of")(args.device)
        if device.runtime.name != "cuda":
            raise UserError(f"--kernels names kernels for NVIDIA GPUs, and this runs on {device}: give --device cuda")
        os.environ["INGOT_KERNELS"] = args.kernels


def add_model(parser: argparse.ArgumentParser, source: str = MODEL) -> None:
    """A language model to run, and how. source: what SOURCE may be."""
    parser.add_argument("source", metavar="SOURCE", help=source)
    add_formats(parser)
    group = parser.add_argument_group("resources")
    add_kernels(group)
    group.add_argument("--threads", type=positive, metavar="N", help=THREADS)
    group.add_argument(
        "--context",
        type=positive,
        metavar="N",
        help="most tokens of one request, prompt included (default: the model's)",
    )
    group.add_argument(
        "--kv-memory",
        type=byte_count,
        metavar="BYTES",
        help="memory for keys and values of past tokens, such as 512MB or 2GiB (default: sized to the machine)",
    )
    add_lora(parser)


def add_sampling(parser: argparse.ArgumentParser, length: str, several: bool = True) -> None:
    """How tokens are chosen and when a text ends. `length`: what holds without --max-tokens. `several`: whether more
    than one answer is offered."""
    sampling = parser.add_argument_group("sampling")
    sampling.add_argument("--max-tokens", type=whole, metavar="N", help=f"at most N tokens (default: {length})")
    sampling.add_argument("--temperature", type=number, metavar="T", help="0 takes the likeliest token (default: 0)")
    sampling.add_argument("--top-k", type=whole, metavar="K", help="only the K likeliest tokens (default: 0, all)")
    sampling.add_argument(
        "--top-p", type=number, metavar="P", help="only the likeliest tokens, until they reach P in sum (default: 1)"
    )
    sampling.add_argument(
        "--min-p", type=number, metavar="P", help="tokens P times as probable as the likeliest or more (default: 0)"
    )
    sampling.add_argument("--seed", type=whole, metavar="N", help="equal seeds give equal text (default: a new one)")
    sampling.add_argument(
        "--stop", action="append", metavar="TEXT", help="end before this text; may be given several times"
    )
    sampling.add_argument(
        "--repetition-penalty", type=number, metavar="P",
        help="above 1: tokens of prompt and text become less likely, by a factor (default: 1)",
    )  # fmt: skip
    sampling.add_argument(
        "--presence-penalty", type=number, metavar="P", help="taken off the score of tokens in the text (default: 0)"
    )
    sampling.add_argument(
        "--frequency-penalty", type=number, metavar="P", help="the same, as often as they are in the text (default: 0)"
    )
    sampling.add_argument(
        "--n", type=whole, metavar="N",
        help="how many answers; the i-th has the seed + i (default: 1)" if several else argparse.SUPPRESS,
    )  # fmt: skip
    sampling.add_argument("--ignore-end", action="store_true", default=None, help="go on past the model's end token")


def sampling_words(args: argparse.Namespace) -> dict[str, Any]:
    """The fields of SamplingParams that `add_sampling` has read."""
    words = (
        "max_tokens", "temperature", "top_k", "top_p", "min_p", "seed", "stop", "ignore_end", "repetition_penalty",
        "presence_penalty", "frequency_penalty", "n",
    )  # fmt: skip
    return {word: getattr(args, word) for word in words if getattr(args, word) is not None}


def add_lora(parser: argparse.ArgumentParser) -> None:
    """An adapter of the weights."""
    group = parser.add_argument_group("adapter")
    group.add_argument("--lora", metavar="FOLDER", help="a LoRA adapter of PEFT to merge into the weights")
    group.add_argument("--lora-scale", type=number, metavar="S", help="multiplies the adapter's own scale (default: 1)")


def lora_words(args: argparse.Namespace) -> dict[str, Any]:
    """The words of `build` and LLM that `add_lora` has read. Raises UserError for a scale of no adapter."""
    if args.lora is None and args.lora_scale is not None:
        raise UserError("--lora-scale is the scale of an adapter: give its folder too, --lora FOLDER")
    return {"lora": args.lora, "lora_scale": args.lora_scale}


def add_inputs(parser: argparse.ArgumentParser) -> None:
    """The arrays that a plain network runs on."""
    group = parser.add_argument_group("inputs")
    group.add_argument(
        "--input", action="append", default=[], metavar="NAME=FILE.npy",
        help="the array of one input; repeatable (an only input needs no NAME=)",
    )  # fmt: skip
    group.add_argument("--input-dir", metavar="DIR", help="a folder with NAME.npy for the inputs")
    group.add_argument("--npz", metavar="FILE", help="a .npz file with arrays of the inputs' names")
    group.add_argument("--random", action="store_true", help="random numbers for inputs that are not given")
    group.add_argument("--seed", type=natural, default=0, metavar="N", help="the seed of --random (default: 0)")
    add_sizes(group)


def add_sizes(parser: argparse.ArgumentParser | argparse._ArgumentGroup) -> None:
    """The sizes of dims, where there are no arrays to show them."""
    parser.add_argument(
        "--size", action="append", default=[], metavar="DIM=N",
        help="of a network: a size that runs choose, by its name; repeatable (default: what it was tuned for, or the "
        "smallest; diff: 8)",
    )  # fmt: skip


def model_words(args: argparse.Namespace) -> dict[str, Any]:
    """The words of LLM that `add_model` has read."""
    return {
        "precision": args.precision,
        "weights": args.weights,
        "activations": args.activations,
        "kv": args.kv,
        "device": args.device,
        "threads": args.threads,
        "context_length": args.context,
        "kv_memory": args.kv_memory,
        **({"check": True} if getattr(args, "check", False) else {}),
        **lora_words(args),
    }


def positive(text: str) -> int:
    """An integer from 1 to 2³¹ − 1."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or not 1 <= int(text) < 2**31:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to {2**31 - 1}")
    return int(text)


def natural(text: str) -> int:
    """An integer from 0 to 2⁶³ − 1."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to {2**63 - 1}")
    return int(text)


def port(text: str) -> int:
    """A port to listen on, or 0."""
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port, a number from 0 to 65535")
    return int(text)


def whole(text: str) -> int:
    """Any integer; what it may be is said where it is used."""
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number") from None


def number(text: str) -> float:
    """Any finite number."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"{text!r} is no number")
    return value


def rate(text: str) -> float:
    """A number above 0."""
    value = tolerance(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return value


def tolerance(text: str) -> float:
    """A number from 0 on."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 on")
    return value


def share(text: str) -> float:
    """A number from 0 to 1."""
    value = tolerance(text)
    if value > 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 1")
    return value


def byte_count(text: str) -> int:
    """A number of bytes, with an optional unit: 2G and 2GB are 2 · 1000³, 2Gi and 2GiB are 2 · 1024³."""
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([KMGT])(i?))?B?", text, re.IGNORECASE | re.ASCII)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of bytes: write 512MB or 2GiB")
    count = float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[(match[2] or "").upper()]
    if count >= 1 << 63:
        raise argparse.ArgumentTypeError(f"{text!r:.40} is more than any memory has")
    return int(count)
