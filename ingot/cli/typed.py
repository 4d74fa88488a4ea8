"""Errors of the library name its arguments; here they come to name the options of the command that was typed."""

from __future__ import annotations

import argparse
import re

_RENAMED = {"context_length": "context"}  # arguments of the library that options call otherwise
_VALUE = r"'([^']*)'|(-?\d[\w.]*)"


def as_typed(text: str, parser: argparse.ArgumentParser) -> str:
    """The text of an error with `--top-p` for `top_p must be …`, and `--weights int8` for `weights='int8'`.

    An argument counts where a fault begins with it or where it is given a value: elsewhere it may be a plain word. What
    the text says of Python, `(in Python …)`, stays.
    """
    known = {action.dest: action.option_strings[-1] for action in parser._actions if action.option_strings}
    known |= {name: known[word] for name, word in _RENAMED.items() if word in known}
    names = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    text = re.sub(rf"(?:(?<=^)|(?<=; ))({names})(?= must be | has \d|: -?\d)", lambda m: known[m[1]], text)
    text = re.sub(rf"^({names}) '([^']*)'", lambda m: f"{known[m[1]]} {m[2]}", text)
    given = re.compile(rf"(?<![\w.'\"-])({names})=(?:{_VALUE})")
    parts = re.split(r"(\(in Python [^)]*\))", text)
    return "".join(
        part if i % 2 else given.sub(lambda m: f"{known[m[1]]} {m[2] or m[3]}", part) for i, part in enumerate(parts)
    )
