"""tokenizer.json, checked before the tokenizers library gets it: it comes with a model, so from anybody."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ingot import strict_json
from ingot.errors import CheckpointError
from ingot.text.split_pattern import PatternFault, check_pattern

MAX_FILE = 64 << 20  # bytes; the largest published ones have 35 MB
MAX_VOCABULARY = 2_000_000
MAX_MERGES = 2_000_000
MAX_ADDED = 100_000  # added tokens
MAX_ADDED_TEXT = 4 << 20  # characters of all of them
MAX_WORD = 2_000  # characters; published ones say 100
MAX_GROWTH = 1_000  # how many times longer replacements may make a text
MAX_TEMPLATE = 64  # special tokens around a text
MAX_SHOWN = 40

Json = dict[str, Any]


def read(data: bytes) -> Json:
    """The content of tokenizer.json. Raises CheckpointError when it is too large or no strict JSON."""
    if len(data) > MAX_FILE:
        raise CheckpointError(f"tokenizer.json cannot be used: it has {len(data):,} bytes, the limit is {MAX_FILE:,}")
    try:
        return strict_json.parse_object(data, big_integers=True)
    except strict_json.JsonError as e:
        raise CheckpointError(f"tokenizer.json cannot be used: {e}") from None


def check(content: Json, vocab_size: int | None = None) -> list[str]:
    """Checks what `read` gave; returns its patterns that have several repetitions without a bound in a row.

    Args:
        vocab_size: rows of the model's embedding table; ids of the tokenizer's own vocabulary must be below it.

    Raises CheckpointError: too many tokens or merges, ids that two tokens have or that the model lacks, patterns that
    may run away, replacements that make texts explode.
    """
    try:
        _check_vocabulary(content, vocab_size)
        return _check_steps(content)
    except _Fault as e:
        raise CheckpointError(f"tokenizer.json cannot be used: {e}") from None


def longest(content: Json) -> int:
    """The characters of the longest entry in the vocabulary of a file that was checked."""
    vocabulary = content["model"]["vocab"]
    texts = vocabulary if isinstance(vocabulary, dict) else (text for text, _ in vocabulary)
    return max(map(len, texts), default=0)


class _Fault(ValueError):
    """What is wrong with the file."""


def _check_vocabulary(content: Json, vocab_size: int | None) -> None:
    model = content.get("model")
    if not isinstance(model, dict):
        raise _Fault("it has no model")
    longest = model.get("max_input_chars_per_word", 0)
    if type(longest) is not int or not 0 <= longest <= MAX_WORD:
        raise _Fault(f"max_input_chars_per_word must be a number up to {MAX_WORD:,}, not {str(longest)[:MAX_SHOWN]}")
    merges = model.get("merges")
    if isinstance(merges, list) and len(merges) > MAX_MERGES:
        raise _Fault(f"it has {len(merges):,} merges, the limit is {MAX_MERGES:,}")
    by_id = _tokens(model.get("vocab"))
    limit = MAX_VOCABULARY if vocab_size is None else vocab_size
    last = max(by_id, default=0)
    if last >= limit:
        raise _Fault(f"token {by_id[last][:MAX_SHOWN]!r} has the id {last}, and the model has 0 to {limit - 1}")
    added = content.get("added_tokens") or []
    if not isinstance(added, list) or len(added) > MAX_ADDED:
        raise _Fault(f"added_tokens must be a list of at most {MAX_ADDED:,}")
    size = 0
    for token in added:
        text, id_ = (token.get("content"), token.get("id")) if isinstance(token, dict) else (None, None)
        if not isinstance(text, str) or type(id_) is not int or not 0 <= id_ < 2**31:
            raise _Fault(f"an added token needs a content and an id, not {str(token)[:80]}")
        size += len(text)
        if by_id.setdefault(id_, text) != text:
            raise _Fault(f"the id {id_} is that of {by_id[id_][:MAX_SHOWN]!r} and of {text[:MAX_SHOWN]!r}")
    if size > MAX_ADDED_TEXT:
        raise _Fault(f"its added tokens have {size:,} characters, the limit is {MAX_ADDED_TEXT:,}")


def _tokens(vocabulary: Any) -> dict[int, str]:
    """id → token of a vocabulary: an object of ids, or Unigram's list of tokens with scores."""
    if isinstance(vocabulary, list):
        if len(vocabulary) > MAX_VOCABULARY:
            raise _Fault(f"it has {len(vocabulary):,} tokens, the limit is {MAX_VOCABULARY:,}")
        return {i: str(entry[0]) if isinstance(entry, list) and entry else "" for i, entry in enumerate(vocabulary)}
    if not isinstance(vocabulary, dict) or len(vocabulary) > MAX_VOCABULARY:
        raise _Fault(f"its vocabulary must be an object or a list of at most {MAX_VOCABULARY:,} tokens")
    found: dict[int, str] = {}
    for text, id_ in vocabulary.items():
        if type(id_) is not int or not 0 <= id_ < 2**31:
            raise _Fault(f"the id of {text[:MAX_SHOWN]!r} must be an integer from 0 on, not {str(id_)[:MAX_SHOWN]}")
        if found.setdefault(id_, text) != text:
            raise _Fault(f"the id {id_} is that of {found[id_][:MAX_SHOWN]!r} and of {text[:MAX_SHOWN]!r}")
    return found


def _check_steps(content: Json) -> list[str]:
    """What happens to a text before and after the vocabulary. Returns patterns as `check` does."""
    found: list[str] = []
    growth = {"normalizer": 1, "decoder": 1}
    for part in ("normalizer", "pre_tokenizer", "post_processor", "decoder"):
        for step in _objects(content.get(part)):
            pattern = step.get("Regex")
            if isinstance(pattern, str):
                try:
                    if check_pattern(pattern) > 1:
                        found.append(pattern)
                except PatternFault as e:
                    raise _Fault(f"the pattern {pattern[:60]!r} of its {part} {e}") from None
            if part in growth:
                growth[part] *= _growth(step)
                if growth[part] > MAX_GROWTH:
                    raise _Fault(f"its {part} makes texts more than {MAX_GROWTH:,} times longer")
            for name in ("single", "pair", "ids", "tokens"):
                if isinstance(step.get(name), list) and len(step[name]) > MAX_TEMPLATE:
                    raise _Fault(f"its {part} puts more than {MAX_TEMPLATE} tokens around a text")
    return found


def _growth(step: Json) -> int:
    """How many times longer a step can make a text."""
    if step.get("type") == "Prepend":
        return max(1, len(str(step.get("prepend", ""))))
    if step.get("type") != "Replace":
        return 1
    pattern, content = step.get("pattern"), step.get("content")
    text = pattern.get("String") if isinstance(pattern, dict) else None
    least = len(text) if isinstance(text, str) else 0  # a regular expression may match nothing
    size = len(content) if isinstance(content, str) else 0
    return max(1, -(-size // least) if least else size + 1)


def _objects(value: Any) -> Iterator[Json]:
    """All objects inside a value; strict JSON is of bounded depth."""
    if isinstance(value, dict):
        yield value
        for inner in value.values():
            yield from _objects(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _objects(inner)
