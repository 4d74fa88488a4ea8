"""The tokenizer in a GGUF file's metadata as tokenizer.json and tokenizer_config.json.

`gpt2` is byte-level BPE by a list of merges, whose words are cut by a pattern that has a name (llama.cpp's
llama-vocab.cpp lists them); `llama` is SentencePiece's BPE, which merges the pair whose result has the best score: the
merges follow from vocabulary and scores.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ingot.errors import CheckpointError
from ingot.frontends.gguf.file import Value

PREFIX = "tokenizer.ggml."
UNKNOWN, CONTROL, OWN = 2, 3, 4  # types of tokens
TYPES = range(7)  # llama.cpp's: 0 undefined, 1 usual, 5 unused, 6 a byte
MAX_PIECE = 256  # characters of a token of SentencePiece; published ones have up to 48
MAX_MERGES = 2_000_000  # as many as a tokenizer.json may have; tokens that all are halves of others have many more
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LETTERS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3, _QWEN2 = rf"{_LETTERS}\p{{N}}{{1,3}}{_REST}", rf"{_LETTERS}\p{{N}}{_REST}"
# The patterns by name, and whether they are Llama 3's: then a word that is a token is taken before its merges are
# tried, and texts begin with a token unless the file says otherwise, as llama.cpp has both.
PATTERNS = {
    "gpt-2": (_GPT2, False),
    "llama-bpe": (_LLAMA3, True), "llama3": (_LLAMA3, True), "llama-v3": (_LLAMA3, True),
    "qwen2": (_QWEN2, False),
}  # fmt: skip


def tokenizer_files(path: Path, metadata: Mapping[str, Value]) -> dict[str, bytes]:
    """The files by name; none where the file has no tokenizer."""
    model = metadata.get(f"{PREFIX}model")
    if model is None:
        return {}
    if model not in ("gpt2", "llama"):
        raise CheckpointError(f"{path}: the tokenizer {str(model)[:40]!r} is not read from GGUF; gpt2 and llama are")
    found = _Metadata(path, metadata)
    tokens = found.texts("tokens")
    types = found.numbers("token_type", len(tokens)) or [1] * len(tokens)
    if odd := [kind for kind in types if kind not in TYPES]:
        raise CheckpointError(f"{path}: {PREFIX}token_type has {odd[0]!r:.40}, and types are 0 to {TYPES[-1]}")
    if len(set(tokens)) != len(tokens):
        raise CheckpointError(f"{path}: {PREFIX}tokens names a token twice")
    content = _byte_level(found, tokens) if model == "gpt2" else _pieces(found, tokens, types)
    content["added_tokens"] = [
        {"id": i, "content": text, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": kind == CONTROL}
        for i, (text, kind) in enumerate(zip(tokens, types, strict=True)) if kind in (CONTROL, OWN)
    ]  # fmt: skip
    begins = model == "llama" or PATTERNS[str(metadata[f"{PREFIX}pre"])][1]
    settings = {
        "add_bos_token": found.flag("add_bos_token", begins),
        "bos_token": found.token("bos_token_id", tokens), "eos_token": found.token("eos_token_id", tokens),
        "unk_token": found.token("unknown_token_id", tokens), "chat_template": metadata.get("tokenizer.chat_template"),
    }  # fmt: skip
    if not isinstance(settings["chat_template"], str | None):
        raise CheckpointError(f"{path}: tokenizer.chat_template must be a text, not {settings['chat_template']!r:.40}")
    if settings["add_bos_token"] and settings["bos_token"] is None:
        raise CheckpointError(f"{path}: {PREFIX}bos_token_id is missing, and every text is to begin with this token")
    if found.flag("add_eos_token", False):
        raise CheckpointError(f"{path}: {PREFIX}add_eos_token is set: texts that get an end token are not read")
    known = {name: value for name, value in settings.items() if value is not None}
    return {"tokenizer.json": json.dumps(content).encode(), "tokenizer_config.json": json.dumps(known).encode()}


def _byte_level(found: _Metadata, tokens: list[str]) -> dict[str, Any]:
    name = found.metadata.get(f"{PREFIX}pre")
    if not isinstance(name, str) or name not in PATTERNS:
        raise CheckpointError(
            f"{found.path}: {PREFIX}pre is {str(name)[:40]!r}: how it cuts texts into words is not known here, and "
            f"another cut would give other tokens; {', '.join(PATTERNS)} are known. Give the folder of the model that "
            "the file was converted from"
        )
    pattern, whole = PATTERNS[name]
    merges = [text.split(" ") for text in found.texts("merges")]
    if any(len(pair) != 2 for pair in merges):
        raise CheckpointError(f"{found.path}: {PREFIX}merges must be pairs with a space between them")
    known = set(tokens)
    if odd := next((pair for pair in merges if not known.issuperset((*pair, "".join(pair)))), None):
        raise CheckpointError(f"{found.path}: {PREFIX}merges joins {odd[0]!r:.60} and {odd[1]!r:.60}, of which one, or "
                              f"what they make, is none of the {len(tokens):,} tokens")  # fmt: skip
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": None,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": [split, byte_level]}, "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False, "ignore_merges": whole,
                  "vocab": {text: i for i, text in enumerate(tokens)}, "merges": merges},
    }  # fmt: skip


def _pieces(found: _Metadata, tokens: list[str], types: list[int]) -> dict[str, Any]:
    scores = found.numbers("scores", len(tokens))
    if not scores:
        raise CheckpointError(f"{found.path}: {PREFIX}scores is missing, by which SentencePiece merges")
    if max(map(len, tokens), default=0) > MAX_PIECE:
        raise CheckpointError(f"{found.path}: {PREFIX}tokens has one of more than {MAX_PIECE} characters")
    ids = {text: i for i, text in enumerate(tokens)}
    merges: list[tuple[float, int, int, int]] = []
    for i, text in enumerate(tokens):
        if types[i] in (CONTROL, UNKNOWN):
            continue
        for cut in range(1, len(text)):
            left, right = ids.get(text[:cut]), ids.get(text[cut:])
            if left is not None and right is not None:
                merges.append((-scores[i], left, right, i))
        if len(merges) > MAX_MERGES:
            raise CheckpointError(
                f"{found.path}: {PREFIX}tokens can be merged in more than {MAX_MERGES:,} ways, which is the limit"
            )
    merges.sort()
    space, unknown = "\u2581", next((text for text, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    first = [{"type": "Prepend", "prepend": space}] if found.flag("add_space_prefix", True) else []
    steps = [*first, {"type": "Replace", "pattern": {"String": " "}, "content": space}]
    strip = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}] if first else []
    spaces = {"type": "Replace", "pattern": {"String": space}, "content": " "}
    decoders = [spaces, {"type": "ByteFallback"}, {"type": "Fuse"}]
    return {
        "version": "1.0", "truncation": None, "padding": None, "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None, "post_processor": None, "decoder": {"type": "Sequence", "decoders": [*decoders, *strip]},
        "model": {"type": "BPE", "dropout": None, "unk_token": unknown, "continuing_subword_prefix": None,
                  "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
                  "vocab": ids, "merges": [[tokens[left], tokens[right]] for _, left, right, _ in merges]},
    }  # fmt: skip


class _Metadata:
    """The tokenizer's keys, each of its type."""

    def __init__(self, path: Path, metadata: Mapping[str, Value]) -> None:
        self.path, self.metadata = path, metadata

    def texts(self, key: str) -> list[str]:
        found = self.metadata.get(PREFIX + key)
        if found is None:
            raise CheckpointError(f"{self.path}: {PREFIX}{key} is missing")
        if not isinstance(found, list) or not all(isinstance(text, str) for text in found):
            raise CheckpointError(f"{self.path}: {PREFIX}{key} must be an array of texts")
        return found

    def numbers(self, key: str, count: int) -> list[Any]:
        """As many as tokens, or none."""
        found = self.metadata.get(PREFIX + key, [])
        if not isinstance(found, list) or not all(type(v) in (int, float) for v in found):
            raise CheckpointError(f"{self.path}: {PREFIX}{key} must be an array of numbers")
        if found and len(found) != count:
            raise CheckpointError(f"{self.path}: {PREFIX}{key} has {len(found):,} entries for {count:,} tokens")
        if any(v != v for v in found):
            raise CheckpointError(f"{self.path}: {PREFIX}{key} has NaN")
        return found

    def flag(self, key: str, default: bool) -> bool:
        found = self.metadata.get(PREFIX + key, default)
        if type(found) is not bool:
            raise CheckpointError(f"{self.path}: {PREFIX}{key} must be a flag, not {str(found)[:40]}")
        return found

    def token(self, key: str, tokens: list[str]) -> str | None:
        found = self.metadata.get(PREFIX + key)
        if found is None:
            return None
        if type(found) is not int or not 0 <= found < len(tokens):
            raise CheckpointError(f"{self.path}: {PREFIX}{key} must be the id of one of {len(tokens):,} tokens")
        return tokens[found]
