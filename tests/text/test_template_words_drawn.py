"""Expressions drawn at random from what templates may say: what transformers makes of them, or a refusal by name."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

import pytest

from ingot.text.chat_sandbox import _rendered, _Sandbox
from tests.text.test_template_words import FILTERS, GLOBALS, METHODS, NAMES, TESTS, theirs

WHOLE = [e for rows in (FILTERS, TESTS, GLOBALS, METHODS) for found in rows.values() for e in found if "now" not in e]
VALUES = [
    "n", "words", "deep", "rows", "messages", "long", "none", "empty", "nothing", "'a<b'", "3", "-2.5", "true", "loop",
    "messages[0]", "range(4)", "(n|map('abs'))", "namespace(a=1)", "cycler(1, 2)", "deep.items()", "'<'|e", "dict",
]  # fmt: skip
FIELDS = [
    "upper", "a", "role", "items", "append", "format", "real", "name", "next", "grouper", "content", "join", "count",
    "copy", "start", "sep", "pop", "encode", "mapping", "gi_frame", "_x", "__class__", "__init__", "__globals__",
]  # fmt: skip
OPERATORS = ["+", "~", "*", "==", "in", "and", "or", "is not", "%"]


def drawn(draw: random.Random, depth: int = 0) -> str:
    def inner() -> str:
        return f"({drawn(draw, depth + 1)})"

    kind = draw.randrange(8) if depth < 4 else draw.randrange(2)
    if kind < 2:
        return draw.choice(VALUES if kind else WHOLE)
    if kind == 2:
        return f"{inner()}.{draw.choice(FIELDS)}"
    if kind == 3:
        return f"{inner()}[{draw.choice(['0', '-1', '1:', repr(draw.choice(FIELDS))])}]"
    if kind == 4:
        return f"{inner()}|{draw.choice(list(FILTERS))}"
    if kind == 5:
        return f"{inner()}|{draw.choice(list(FILTERS))}{inner()}"
    if kind == 6:
        return f"{inner()}({drawn(draw, depth + 1) if draw.random() < 0.4 else ''})"
    return f"{inner()} {draw.choice(OPERATORS)} {inner()}"


def outcome(render: Callable[[str], str], source: str) -> tuple[str, str]:
    """A text, its addresses in memory left out, or an error's words."""
    try:
        return re.sub("0x[0-9a-f]+", "", render(source), flags=re.IGNORECASE), ""
    except Exception as e:
        return "", f"{type(e).__name__}: {e}"


def compare(seed: int, count: int) -> None:
    draw, sandbox = random.Random(seed), _Sandbox()
    texts = 0
    for _ in range(count):
        source = "{% for m in messages[:1] %}{{ " + drawn(draw) + " }}{% endfor %}"
        text, error = outcome(lambda source: _rendered(sandbox.from_string(source), dict(NAMES), 1 << 22), source)
        wanted, fault = outcome(theirs, source)
        if "_format object" in text.lower() or "is not for templates" in error or "is not safely callable" in error:
            continue
        assert text == wanted and bool(error) == bool(fault), (source, text, error, wanted, fault)
        texts += not error
    assert texts > count / 4


@pytest.mark.filterwarnings("ignore::SyntaxWarning")
def test_drawn_expressions() -> None:
    compare(0, 100)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::SyntaxWarning")
@pytest.mark.parametrize("seed", range(1, 5))
def test_many_drawn_expressions(seed: int) -> None:
    compare(seed, 3000)
