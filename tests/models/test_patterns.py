"""Patterns out of files: they mean what `re` means by them, and end in time."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingot.frontends.lora.patterns import BoundedPattern, BoundedPatternError, Steps

SAME = [
    r".*\.(q_proj|v_proj)",
    r"(?:.*?(?:language|text).*?(?:self_attn|mlp).*?(?:k_proj|q_proj).*?)|(?:\bmodel\.layers\.[\d]{1,}\.q_proj)",
    r"(a|b)*c?",
    r"[^a]b{2,3}",
    r"(?=a)\w+",
    r"(?!a)\w+",
    r"(a|ab)(c|bcd)*",
    r"^a.*$",
    r"a??b+?",
    r"()*a",
    r"(a{0,3}){2,}b",
    r"\Ba|\bb",
    r"[a-c\d_]+\W",
    r"[^\s.]+\S",
    r"\D*",
]


@pytest.mark.parametrize("pattern", SAME)
@given(text=st.text("abcd_.1 ", max_size=8) | st.sampled_from(["model.layers.0.q_proj", "text.mlp.k_proj", "x.v_proj"]))
def test_patterns_mean_what_re_means(pattern: str, text: str) -> None:
    assert BoundedPattern(pattern).matches(text) == bool(re.fullmatch(pattern, text))


@pytest.mark.timeout(30)
@pytest.mark.parametrize(
    ("pattern", "matches"),
    [
        (r"(a+)+b", False),
        (r"(a|a)*b", False),
        (r"(.*)*x", False),
        (r"(.?){999}y", False),
        (r"(){1000000}a{100}", True),
        (r"(a?){4294967294}", True),
        ("(" * 9 + "a" + ")*" * 9, True),
        (r"a?" * 100 + "a" * 100, True),
    ],
)
def test_patterns_that_take_re_forever(pattern: str, matches: bool) -> None:
    assert BoundedPattern(pattern).matches("a" * 100) == matches


@pytest.mark.parametrize("pattern", ["(?=(.*)*)" * 100, "(?:.*.*)*" * 100, "((?=.*)a?)*" * 80])
def test_a_file_has_so_many_steps(pattern: str) -> None:
    """For all its patterns and all names: of these the first took minutes for the layers of a small model."""
    begin = time.process_time()
    one = BoundedPattern(pattern, Steps(100_000))
    with pytest.raises(BoundedPatternError, match="too long to match"):
        any(one.matches(f"model.layers.{i}.self_attn.q_proj") and i < 0 for i in range(10_000))
    assert time.process_time() - begin < 5  # half a second on a busy machine


@pytest.mark.parametrize(
    ("pattern", "why"),
    [
        (r"(a)\1", "groupref"),
        ("(", "missing"),
        ("a{2,1}", "min repeat"),
        ("(?i)a", "flags"),
        ("(?i:a)", "flags"),
        ("(?<=a)b", "not supported"),
        ("(" * 450 + ")" * 450, "nests"),
        ("(?>a*)a", "not supported"),
        ("a*+", "not supported"),
        ("x" * 3000, "at most 1,000"),
    ],
)
def test_what_is_refused(pattern: str, why: str) -> None:
    with pytest.raises(BoundedPatternError, match=why):
        BoundedPattern(pattern)
