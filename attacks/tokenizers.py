"""Attacks by tokenizer.json and chat templates (classes 45 and 46), in a directory that is good otherwise."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.directories import VOCABULARY, Directory
from attacks.image import add

Json = Any
CHECKPOINT = "checkpoint"


def tokenizer() -> dict[str, Json]:
    """A small byte-level tokenizer with a pattern; it encodes."""
    characters = [chr(c) for c in range(ord("a"), ord("z") + 1)]
    return {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [
            {"id": 28, "content": "<end>", "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
        ],
        "normalizer": None,
        "pre_tokenizer": {
            "type": "Split", "pattern": {"Regex": " ?[a-z]+|\\s+"}, "behavior": "Isolated", "invert": False
        },
        "post_processor": None, "decoder": None,
        "model": {
            "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": False,
            "vocab": {c: i for i, c in enumerate([*characters, "ab", "abc"])}, "merges": [["a", "b"], ["ab", "c"]],
        },
    }  # fmt: skip


def attack(number: int, name: str, change: Callable[[Json], object], why: str, *readers: str) -> None:
    """A tokenizer.json changed in place, or returned as bytes. Who reads the directory has to refuse it, and so has an
    LLM of it; or only `readers`.
    """

    def make(path: Path) -> None:
        content = tokenizer()
        changed = change(content)
        data = changed if isinstance(changed, bytes) else json.dumps(content).encode()
        Directory(files={"tokenizer.json": data}).write(path)

    add(number, f"tokenizer: {name}", make, dict.fromkeys(readers or ("directory", "llm"), (CHECKPOINT, why)))


def _pattern(text: str) -> Callable[[Json], None]:
    return lambda content: content["pre_tokenizer"]["pattern"].update(Regex=text)


def _vocabulary(**ids: Any) -> Callable[[Json], None]:
    return lambda content: content["model"]["vocab"].update(ids)


def _added(id_: Any, text: Any = "<x>") -> Callable[[Json], None]:
    plain = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    return lambda content: content["added_tokens"].append(plain | {"id": id_, "content": text})


attack(45, "empty", lambda content: b"", "line 1")
attack(45, "a list", lambda content: b"[]", "object")
attack(45, "an empty object", lambda content: b"{}", "no model")
attack(45, "of 70 MB", lambda content: b" " * (70 << 20) + b"{}", "limit|no model")
attack(45, "100,000 deep", lambda content: b'{"model":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "deep")
attack(45, "a vocabulary that is a number", lambda content: content["model"].update(vocab=3), "vocabulary")
attack(45, "10,000,000 merges", lambda content: json.dumps(content).encode().replace(
    b'[["a", "b"]', b"[" + b'"a b",' * 10_000_000 + b'["a", "b"]'), "entries")  # fmt: skip
attack(45, "3,000,000 merges", lambda content: json.dumps(content).encode().replace(
    b'[["a", "b"]', b"[" + b'"a b",' * 3_000_000 + b'["a", "b"]'), "3,000,002 merges")  # fmt: skip
attack(45, "a token twice", lambda content: json.dumps(content).encode().replace(b'"a": 0', b'"a": 0, "a": 9'), "twice")
attack(45, "an id twice", _vocabulary(a=1), "id 1 is that of 'a' and of 'b'")
attack(45, "an id beyond the model's", _vocabulary(a=VOCABULARY), "the id 64, and the model has 0 to 63")
attack(45, "an id of 2^40", _vocabulary(a=2**40), "id of 'a'")
attack(45, "a negative id", _vocabulary(a=-1), "id of 'a'")
attack(45, "an id that is a text", _vocabulary(a="0"), "id of 'a'")
attack(45, "an added token with another's id", _added(0), "id 0 is that of 'a' and of '<x>'")
attack(45, "an added token with an id that the library does not give", _added(40), "the id 40, .* 29", "llm")
attack(45, "an added token with a negative id", _added(-5), "added token")
attack(45, "an added token that is a number", _added(40, 3), "added token")
attack(45, "200,000 added tokens", lambda content: content["added_tokens"].extend([{}] * 200_000), "at most 100,000")
attack(45, "an added token of 5 MB", _added(40, "x" * 5_000_000), "5,000,005 characters")
for _text in (
    "(a+)+$", "(a|aa)+$", "(?=(a+)+$)b", "(.*a){20}$", "(a*)*b", "(\\w+\\s?)+$", "(a+)\\1+$", "a?" * 30 + "a" * 30,
    ".*.*.*.*.*x", "(?<x>a|b\\g<x>)+", "((a{0,900}){900}){900}", "(?:" * 500 + "a" + ")" * 500, "(", "a{1,1000000}",
    "a" * 50_000,
):  # fmt: skip
    attack(45, f"the pattern {_text[:20]!r} of {len(_text)}", _pattern(_text), "the pattern")
for _text in (
    "a*a*a*b",
    "[^x]*[^y]*[^z]*~~",
    "\\s*\\s*\\s*x",
):  # of an allowed shape: only the tokenizer itself shows it
    attack(45, f"the slow pattern {_text!r}", _pattern(_text), "takes too long", "llm")


def _replace(old: str, new: str) -> Json:
    return {"type": "Replace", "pattern": {"String": old}, "content": new}


attack(45, "a normalizer that doubles 20 times", lambda content: content.update(
    normalizer={"type": "Sequence", "normalizers": [_replace("a", "aa")] * 20}), "times longer")  # fmt: skip
attack(45, "a normalizer that makes 1 MB of a letter", lambda content: content.update(
    normalizer=_replace("a", "b" * 1_000_000)), "times longer")  # fmt: skip
attack(45, "a decoder that makes 1 MB of nothing", lambda content: content.update(
    decoder={"type": "Replace", "pattern": {"Regex": "b?"}, "content": "b" * 1_000_000}), "times longer")  # fmt: skip
attack(45, "a pattern that runs away in the decoder", lambda content: content.update(
    decoder={"type": "Replace", "pattern": {"Regex": "(a+)+$"}, "content": ""}), "of its decoder")  # fmt: skip
attack(45, "a template of 1,000 tokens", lambda content: content.update(post_processor={
    "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<end>", "type_id": 0}}] * 1000,
    "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 0}}],
    "special_tokens": {"<end>": {"id": "<end>", "ids": [28], "tokens": ["<end>"]}}}), "more than 64")  # fmt: skip


def template(name: str, text: str, code: str, why: str) -> None:
    """A chat template that an LLM meets when it is asked to chat."""

    def make(path: Path) -> None:
        settings = {"chat_template": text}
        files = {"tokenizer.json": json.dumps(tokenizer()), "tokenizer_config.json": json.dumps(settings)}
        Directory(files=dict(files)).write(path)

    add(46, f"chat template: {name}", make, {"chat": (code, why)})


_REFUSED = "request"
template("the classes of a text", "{{ ''.__class__.__mro__[1].__subclasses__() }}", _REFUSED, "chat template")
template("a method's globals", "{{ messages.append.__globals__ }}", _REFUSED, "chat template")
template("a request for attributes", "{{ ('a'|attr('__class__')).__mro__ }}", f"{CHECKPOINT}|{_REFUSED}", "template")
template("an import", "{% import 'os' as os %}{{ os }}", f"{CHECKPOINT}|{_REFUSED}", "template")
template("a loop in loops", "{% for i in range(9999) %}{% for j in range(9999) %}{{ i }}{% endfor %}{% endfor %}",
         _REFUSED, "more than")  # fmt: skip
template("a macro that calls itself", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", _REFUSED, "template")
template("1 GB of text", "{{ 'a' * 1000000000 }}", _REFUSED, "more than")
template("a text that doubles", "{% set n = namespace(x='aaaaaaaa') %}{% for i in range(60) %}"
         "{% set n.x = n.x ~ n.x %}{% endfor %}", _REFUSED, "more than")  # fmt: skip
template("a number that explodes", "{{ 9 ** (9 ** 99) }}", CHECKPOINT, "more than")
template("a sum of a long range", "{{ range(10 ** 12) | sum }}", _REFUSED, "Range too big")
template("a power that takes long", "{% set n = namespace(x=7) %}{{ (n.x ** 90000000) % 11 }}", _REFUSED,
         "seconds of processor time")  # fmt: skip
template("padding by a format", "{{ '%1000000000d' % 1 }}", _REFUSED, "chat template")
template("of 1 MB", "x" * 1_000_000, CHECKPOINT, "limit")
template("that is cut off", "{% for m in messages %}", CHECKPOINT, "cannot be read")
