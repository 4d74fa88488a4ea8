"""Streamed text equals decoded text, whatever the tokens and however they are cut; stop strings; the beginning token.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pytest
import tokenizers
from hypothesis import given
from hypothesis import strategies as st

from ingot.errors import CheckpointError, RequestError
from ingot.text.tokenizer import REPLACEMENT, Detokenizer, TextStream, Tokenizer
from tests.kept import PICO

FILE = PICO / "tokenizer.json"


def pieces_tokenizer() -> bytes:
    """As Llama 2's: pieces with a visible space, bytes for what has no piece, the first space stripped."""
    vocab = ["<unk>", "<s>", "</s>", *(f"<0x{b:02X}>" for b in range(256)), "▁", "▁a", "b", "▁word", "é", "▁▁", "€"]
    model = {"type": "BPE", "vocab": {token: id for id, token in enumerate(vocab)}, "merges": [], "byte_fallback": True}
    special = [
        {"id": i, "content": vocab[i], "single_word": False, "lstrip": False, "rstrip": False, "normalized": False,
         "special": True} for i in range(3)
    ]  # fmt: skip
    decoders = [
        {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
        {"type": "Strip", "content": " ", "start": 1, "stop": 0},
    ]  # fmt: skip
    template = {
        "type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}},
    }
    normalizers = [{"type": "Prepend", "prepend": "▁"}, {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}]
    whole: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": special,
        "normalizer": {"type": "Sequence", "normalizers": normalizers}, "pre_tokenizer": None,
        "post_processor": template, "decoder": {"type": "Sequence", "decoders": decoders}, "model": model,
    }  # fmt: skip
    return json.dumps(whole).encode()


TOKENIZERS = {"bytes": Tokenizer(FILE.read_bytes(), 0, True), "pieces": Tokenizer(pieces_tokenizer(), 1, True)}
TEXT = st.text(st.characters(exclude_categories=("Cs",)), max_size=40) | st.text("a b€é😀👩‍👩‍👧\n", max_size=30)


def streamed(tokenizer: Tokenizer, ids: list[int], cuts: list[int]) -> tuple[list[str], str]:
    detokenizer = Detokenizer(tokenizer)
    bounds = sorted({min(c, len(ids)) for c in cuts} | {0, len(ids)})
    pieces = [detokenizer.push(ids[a:b]) for a, b in zip(bounds, bounds[1:], strict=False)]
    return pieces, detokenizer.finish()


@pytest.mark.parametrize("name", TOKENIZERS)
@given(data=st.data())
def test_any_tokens_stream_to_their_text(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.size - 1) | st.integers(0, 260), max_size=40))
    cuts = data.draw(st.just(list(range(len(ids)))) | st.lists(st.integers(0, 40)))
    pieces, rest = streamed(tokenizer, ids, cuts)
    assert "".join(pieces) + rest == tokenizer.decode(ids)


@pytest.mark.parametrize("name", TOKENIZERS)
@given(text=TEXT)
def test_text_comes_in_whole_characters(name: str, text: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer.encode_plain(text)
    pieces, rest = streamed(tokenizer, ids, list(range(len(ids))))
    assert "".join(pieces) + rest == tokenizer.decode(ids)
    if REPLACEMENT not in tokenizer.decode(ids):
        assert all(REPLACEMENT not in piece for piece in pieces)


def test_an_emoji_is_shown_when_it_is_complete() -> None:
    tokenizer = TOKENIZERS["bytes"]
    ids = tokenizer.encode_plain("x😀y")
    detokenizer = Detokenizer(tokenizer)
    assert len(ids) > 3
    shown = [detokenizer.push([id]) for id in ids]
    assert [s for s in shown if s] == ["x", "😀", "y"]
    assert detokenizer.finish() == ""


def test_an_unfinished_character_comes_out_at_the_end() -> None:
    tokenizer = TOKENIZERS["bytes"]
    ids = tokenizer.encode_plain("ab😀")[:-1]
    pieces, rest = streamed(tokenizer, ids, list(range(len(ids))))
    assert "".join(pieces) == "ab" and rest and set(rest) == {REPLACEMENT}


@given(TEXT, st.lists(st.text("ab\n€", min_size=1, max_size=4), min_size=1, max_size=3), st.integers(1, 5))
def test_stop_strings_end_the_text_before_them(text: str, stop: list[str], size: int) -> None:
    tokenizer = TOKENIZERS["bytes"]
    stream = TextStream(tokenizer, tuple(stop))
    shown, given_ids = "", []
    for id in tokenizer.encode_plain(text):
        given_ids.append(id)
        shown += stream.push([id])
        assert not any(s in shown for s in stop)
        if stream.stopped:
            break
    ended_early = stream.stopped
    shown += stream.finish()
    whole = tokenizer.decode(given_ids)
    if stream.stopped:
        assert shown == whole[: min(at for at in map(whole.find, stop) if at >= 0)]
        if ended_early:
            before = tokenizer.decode(given_ids[:-1])
            assert not any(s in before for s in stop), "it should have stopped earlier"
    else:
        assert shown == whole == tokenizer.decode(tokenizer.encode_plain(text))
        assert not any(s in whole for s in stop)


def test_a_stop_string_in_several_tokens_is_held_back() -> None:
    tokenizer = TOKENIZERS["bytes"]
    stream = TextStream(tokenizer, ("\nclass ",))
    ids = tokenizer.encode_plain("pass\nclassy")
    assert "".join(stream.push([id]) for id in ids) + stream.finish() == "pass\nclassy"
    assert not stream.stopped
    stream = TextStream(tokenizer, ("\nclass ",))
    shown = "".join(stream.push([id]) for id in tokenizer.encode_plain("pass\nclass C:"))
    assert shown == "pass" and stream.stopped and stream.finish() == ""


def test_the_beginning_token_comes_once() -> None:
    assert TOKENIZERS["bytes"].encode("ab")[0] == 0  # because the configuration says so
    assert 0 not in TOKENIZERS["bytes"].encode_plain("ab")
    assert Tokenizer(FILE.read_bytes(), 0, False).encode("ab") == TOKENIZERS["bytes"].encode_plain("ab")
    assert Tokenizer(FILE.read_bytes(), None, True).encode("ab") == TOKENIZERS["bytes"].encode_plain("ab")
    for add_bos in (True, False):  # the post-processor says so; never twice
        ids = Tokenizer(pieces_tokenizer(), 1, add_bos).encode("word")
        assert ids.count(1) == 1 and ids[0] == 1
    assert TOKENIZERS["pieces"].encode_plain("word").count(1) == 0


def test_truncation_and_padding_of_the_file_are_not_applied() -> None:
    file = json.loads(FILE.read_bytes())
    file["truncation"] = {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0}
    tokenizer = Tokenizer(json.dumps(file).encode())
    assert len(tokenizer.encode_plain("def f(x): return x")) > 2


def test_errors_are_ours() -> None:
    with pytest.raises(CheckpointError, match=r"tokenizer\.json"):
        Tokenizer(b"{}")
    with pytest.raises(RequestError, match="surrogate"):
        TOKENIZERS["bytes"].encode("a\ud800b")


def test_nothing_of_the_hub_is_imported() -> None:
    code = "import sys, ingot.llm.llm; print({'huggingface_hub', 'torch', 'transformers'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


def test_the_library_agrees_on_what_it_decodes() -> None:
    """The oracle of this file is the library's own decoding."""
    library = tokenizers.Tokenizer.from_str(FILE.read_text())
    ids = library.encode("def f():\n    return 'é😀'").ids
    assert TOKENIZERS["bytes"].decode(ids) == library.decode(ids)
