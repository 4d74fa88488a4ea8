"""What the tokenizer's files say about the beginning and the end of a text."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingot import strict_json
from ingot.errors import CheckpointError


def parse_file(directory: Path, files: Mapping[str, bytes], name: str) -> dict[str, Any]:
    """The object in one of the carried files; empty when the directory has none of that name."""
    if name not in files:
        return {}
    try:
        return strict_json.parse_object(files[name], big_integers=True)
    except strict_json.JsonError as error:
        raise CheckpointError(f"{directory / name}: {error}") from None


def beginning(
    tokenizer: Mapping[str, Any], settings: Mapping[str, Any], default: int | None
) -> tuple[bool, int | None]:
    """Whether a text gets a beginning token, and its id.

    As in transformers: `add_bos_token` of tokenizer_config.json decides where it is given, else whatever special
    token the tokenizer's post-processor puts first.

    Args:
        tokenizer: tokenizer.json.
        settings: tokenizer_config.json.
        default: the id that the model's configuration gives.
    """
    wanted = settings.get("add_bos_token")
    first = _first_special(tokenizer.get("post_processor"))
    if not isinstance(wanted, bool):
        known = None if first is None else _id_of(tokenizer, first)
        return known is not None, default if known is None else known
    token = settings.get("bos_token")
    text = token.get("content") if isinstance(token, dict) else token
    known = _id_of(tokenizer, text) if isinstance(text, str) else None
    known = default if known is None else known
    return wanted and known is not None, known


def _first_special(processor: Any) -> str | None:
    """The special token that a TemplateProcessing puts in front of a single text."""
    if not isinstance(processor, dict):
        return None
    if processor.get("type") == "Sequence":
        inner = processor.get("processors")
        found = [_first_special(one) for one in inner] if isinstance(inner, list) else []
        return next((name for name in found if name is not None), None)
    single = processor.get("single")
    if processor.get("type") != "TemplateProcessing" or not isinstance(single, list) or not single:
        return None
    special = single[0].get("SpecialToken") if isinstance(single[0], dict) else None
    name = special.get("id") if isinstance(special, dict) else None
    return name if isinstance(name, str) else None


def _id_of(tokenizer: Mapping[str, Any], text: str) -> int | None:
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else []:
        if isinstance(token, dict) and token.get("content") == text and type(token.get("id")) is int:
            return token["id"]  # type: ignore[no-any-return]
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    found = vocabulary.get(text) if isinstance(vocabulary, dict) else None
    return found if type(found) is int else None
