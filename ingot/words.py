"""The words of number formats, which mean the same to Python, the command line and an engine's header."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ingot.errors import UserError

PRECISIONS = ("float32", "bfloat16", "float16")
SAME = "same"  # weights as the precision has them
INT4 = tuple(f"int4-g{group}{zeros}" for zeros in ("", "-asym") for group in (32, 64, 128))
WEIGHTS = (SAME, "int8", *INT4, "fp8")  # ir/weight_format.py says what they mean
HEADS = (SAME, "int8", *INT4)  # of the product that makes logits
TABLES = (SAME, "int8")  # that rows are looked up in
ACTIVATIONS = (SAME, "int8", "fp8")
KV = (SAME, "int8", "fp8")  # keys and values of the cache; ir/spec.py says how they are stored
KV_KEY = "kv_cache"  # in an engine's config, where "kv" lists the layers


_OTHERS = {
    "bf16": "bfloat16", "fp16": "float16", "f16": "float16", "half": "float16", "fp32": "float32", "f32": "float32",
    "float": "float32", "single": "float32",
}  # fmt: skip


def precision_word(precision: Any) -> Any:
    """The word for a precision, of what people also call it: "bf16", torch.bfloat16, numpy.float16. What it does not
    know it gives back.
    """
    text = precision.__name__ if isinstance(precision, type) else str(precision).removeprefix("torch.")
    word = _OTHERS.get(text, text)
    return word if word in PRECISIONS else precision


def both_of(word: object) -> tuple[str, str] | None:
    """The words for weights and activations that one names which is no word for weights, such as int4-g128-int8."""
    weights, _, activations = str(word).rpartition("-")
    return (weights, activations) if weights in WEIGHTS[1:] and activations in ACTIVATIONS[1:] else None


def check_words(
    precision: str | None, weights: str | None, activations: str | None = None, kv: str | None = None
) -> None:
    """Raises UserError for a word that this version cannot build by."""
    if precision is not None and precision not in PRECISIONS:
        hint = f": {precision} is a way to store weights, weights={precision!r}" if precision in WEIGHTS else ""
        raise UserError(f"precision must be one of {', '.join(PRECISIONS)}, not {precision!r:.60}{hint}")
    if weights is not None and weights not in WEIGHTS:
        both = both_of(weights)
        hint = f": write weights={both[0]!r}, activations={both[1]!r}" if both else ""
        raise UserError(f"weights must be one of {', '.join(WEIGHTS)}, not {weights!r:.60}{hint}")
    if activations is not None and activations not in ACTIVATIONS:
        raise UserError(f"activations must be one of {', '.join(ACTIVATIONS)}, not {activations!r:.60}")
    if kv is not None and kv not in KV:
        raise UserError(f"kv must be one of {', '.join(KV)}, not {kv!r:.60}")
    if activations == "int8" and weights in (None, SAME, "fp8"):
        raise UserError(
            "activations 'int8' are multiplied with weights that the build makes int8 or int4, not "
            f"{weights or SAME!r}: give both, weights='int8' or 'int4-g128' for example, for a source of floats (what "
            "a source stores as integers already is built as it is, without activations). A net is calibrated, and "
            "its convolutions become int8 too: "
            "ingot.quantize(source, data=…) with samples of its inputs (batches from any iterable, or a .npz file)"
        )
    if activations == "fp8" and weights != "fp8":
        raise UserError(
            f"activations 'fp8' are multiplied with weights of fp8, not {weights or SAME!r}: give both, weights='fp8'"
        )


def check_tables(head: str | None, embeddings: str | None) -> None:
    """Raises UserError for a word that heads or tables cannot be stored by."""
    for name, word, words in (("head", head, HEADS), ("embeddings", embeddings, TABLES)):
        if word is not None and word not in words:
            raise UserError(f"{name} must be one of {', '.join(words)}, not {word!r:.60}")


def check_built(
    source: object, config: Mapping[str, Any], precision: str | None, weights: str | None,
    activations: str | None = None, kv: str | None = None, head: str | None = None, embeddings: str | None = None,
) -> None:  # fmt: skip
    """Raises UserError for a word that conflicts with what an engine was built with, as its config says."""
    for name, word, built in (
        ("precision", precision, config.get("precision")), ("weights", weights, config.get("weights", SAME)),
        ("activations", activations, config.get("activations", SAME)), ("kv", kv, config.get(KV_KEY, SAME)),
        ("head", head, config.get("head", "what weights say")),
        ("embeddings", embeddings, config.get("embeddings", "what weights say")),
    ):  # fmt: skip
        if word is not None and built is not None and word != built:
            raise UserError(
                f"{name} {word!r} conflicts with {source}, which was built with {built!r}: leave it out, or build it "
                "again from its source"
            )
