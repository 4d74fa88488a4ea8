"""tokenizer.json is checked before it is used: what published tokenizers have passes, what runs away does not."""

from __future__ import annotations

import contextlib
import copy
import json
import threading
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from attacks import tokenizers as attacks
from ingot.errors import CheckpointError, RequestError
from ingot.text import tokenizer_file
from ingot.text.split_pattern import PatternFault, check_pattern
from ingot.text.tokenizer import Tokenizer
from tests.kept import PICO

TOKENIZER = json.loads((PICO / "tokenizer.json").read_bytes())
# GPT-2, Llama 3 and Qwen, GPT-4 in tiktoken's writing, GPT-4o, DeepSeek 3, BLOOM, CLIP, Kimi 2, and parts of others.
PUBLISHED = [
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|"
    r"\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+",
    r" ?[^(\s|[.,!?…。，、।۔،])]+",
    r"<\|startoftext\|>|<\|endoftext\|>|'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+",
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    r"[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\s+",
    r"\d{1,3}(?=(?:\d{3})*\b)", r"[一-龥぀-ゟ゠-ヿ]+", r" {2,}", r"(?<=.)", r"", r"[0-9][0-9][0-9]",
]  # fmt: skip
RUNS_AWAY = [
    r"(a+)+$", r"(a|aa)+$", r"(?i:a|A)+$", r"(?:(?!b)a|b|a)+$", r"(a?){2,}", r"(a*)*", r"(\w+\s?)+$", r"(?:a{1,9})+b",
    r"a**", r"a{2}{3}", r"a+{5}", r"(a?){30}b", r"(?:(?:a|a)(?:a|a)){9}", "a?" * 20, "a*" * 5, r"(.*a){20}$",
    r"(a+)\1", r"(?<x>a)\k<x>", r"(?<x>a\g<x>?)", r"(?~ab)", r"(?(1)a|b)", r"(?x: a # b)",
]  # fmt: skip


def with_pattern(pattern: str) -> bytes:
    content = copy.deepcopy(TOKENIZER)
    content["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = pattern
    return json.dumps(content).encode()


@pytest.mark.parametrize("pattern", PUBLISHED)
def test_published_patterns_pass_and_are_quick(pattern: str) -> None:
    assert check_pattern(pattern) <= 2
    tokenizer = Tokenizer(with_pattern(pattern))
    begin = time.thread_time()
    for text in ("a" * 50_000, " " * 50_000, "def f(x):\n    return x\n" * 2000):
        assert tokenizer.encode_plain(text)
    assert time.thread_time() - begin < 10


@pytest.mark.parametrize("pattern", RUNS_AWAY)
def test_patterns_that_run_away_are_refused(pattern: str) -> None:
    with pytest.raises(PatternFault):
        check_pattern(pattern)
    with pytest.raises(CheckpointError, match="the pattern"):
        Tokenizer(with_pattern(pattern))


def test_certain_repetitions_pass() -> None:
    for pattern in (r"(?:ab)+", r"(?:a|b|\.)+c", r"(?:[ab])*", r"(?:\d{3})+", r"((?:a))*", r"(?:ab|cd)*?x", r"(ab){2}"):
        assert check_pattern(pattern) <= 1


@given(st.text(r"ab.|()[]{}?*+\^,1290:=!<>&-pLs", max_size=40))
def test_any_text_is_judged(pattern: str) -> None:
    with contextlib.suppress(PatternFault):
        assert 0 <= check_pattern(pattern) <= 4


@pytest.mark.sampled(8)
@pytest.mark.parametrize("pattern", [
    r"a*a*a*b", r"q*q*q*z", r"[^x]*[^y]*[^z]*~~", r"\s*\s*\s*x", r"(?:xy)*(?:xy)*(?:xy)*z",
    r"(?:\d\p{L})*(?:0a)*(?:0a)*!", r"[\p{N}]*\d*[0-9]*x", r"\p{Lu}*[\p{L}]*\w*!",
])  # fmt: skip
def test_slow_patterns_of_a_good_shape_show_when_tried(pattern: str) -> None:
    check_pattern(pattern)
    begin = time.thread_time()
    with pytest.raises(CheckpointError, match="takes too long"):
        Tokenizer(with_pattern(pattern))
    assert time.thread_time() - begin < 30


def test_other_threads_go_on_while_a_long_text_is_encoded() -> None:
    tokenizer, ticks, done = Tokenizer(json.dumps(TOKENIZER).encode()), 0, threading.Event()

    def encode() -> None:
        tokenizer.encode("def f(x):\n    return x\n" * 60_000)
        done.set()

    thread = threading.Thread(target=encode)
    thread.start()
    while not done.wait(0.001):
        ticks += 1
    thread.join()
    assert ticks > 20


def test_a_long_text_is_a_row_of_short_ones() -> None:
    tokenizer = Tokenizer(json.dumps(TOKENIZER).encode())
    line = "def f(x):\n    return x\n\n"
    assert tokenizer.encode_plain(line * 500) == tokenizer.encode_plain(line) * 500
    with pytest.raises(RequestError, match="surrogate"):
        tokenizer.encode("x" * 5000 + "\ud800")


def test_a_panic_of_the_library_is_a_typed_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tokenizer_file, "check_pattern", lambda pattern: 1)  # as if the shape had told nothing
    tokenizer = Tokenizer(with_pattern(r"(a+)+$"))
    with pytest.raises(RequestError, match="gives up on this text"):
        tokenizer.encode("a" * 40 + "!")
    with pytest.raises(RequestError, match="gives up on this text"):
        tokenizer.encode("b " * 3000 + "a" * 40 + "!")
    assert tokenizer.encode("b") == Tokenizer(with_pattern(r"(a+)$")).encode("b"), "it goes on"


def test_the_base_of_the_attacks_is_good() -> None:
    assert Tokenizer(json.dumps(attacks.tokenizer()).encode(), vocab_size=64).encode("abc") == [27]


def test_a_token_added_after_the_model_is_refused_when_it_is_used() -> None:
    content: Any = attacks.tokenizer()
    content["added_tokens"].append(content["added_tokens"][0] | {"id": 29, "content": "<pad>"})
    tokenizer = Tokenizer(json.dumps(content).encode(), vocab_size=29)
    assert tokenizer.encode("abc<end>") == [27, 28]
    with pytest.raises(RequestError, match=r"'<pad>', whose id 29 the model does not have \(0 to 28\)"):
        tokenizer.encode("abc<pad>")


def test_words_that_may_be_long() -> None:
    """WordPiece tries every end of a word at every place of it."""
    content: Any = {"model": {"type": "WordPiece", "vocab": {"a": 0, "[UNK]": 1}, "unk_token": "[UNK]",
                              "continuing_subword_prefix": "##", "max_input_chars_per_word": 100}}  # fmt: skip
    assert tokenizer_file.check(content, 2) == []
    for size in (10**9, 2**63, "100", -1, True):
        content["model"]["max_input_chars_per_word"] = size
        with pytest.raises(CheckpointError, match="max_input_chars_per_word"):
            tokenizer_file.check(content, 2)


def test_unigram_lists_are_vocabularies() -> None:
    content: Any = {"model": {"type": "Unigram", "vocab": [["<unk>", 0.0], ["a", -1.0], ["b", -2.0]], "unk_id": 0}}
    assert tokenizer_file.check(content, 3) == []
    with pytest.raises(CheckpointError, match="'b' has the id 2, and the model has 0 to 1"):
        tokenizer_file.check(content, 2)


def test_usual_replacements_pass() -> None:
    content: Any = attacks.tokenizer()
    steps = [
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        {"type": "Replace", "pattern": {"String": " "}, "content": "▁"},
        {"type": "Prepend", "prepend": "▁"},
        *[{"type": "Replace", "pattern": {"String": "``"}, "content": '"'}] * 5,
    ]
    content["normalizer"] = {"type": "Sequence", "normalizers": steps}
    assert tokenizer_file.check(content) == []
