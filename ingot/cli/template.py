"""--chat-template: a file of Jinja, or the built-in template for models that were not trained to chat."""

from __future__ import annotations

import argparse

from ingot import _lazy
from ingot.errors import FileError, UserError

PLAIN = "plain"  # as ingot.text.plain_template has it, which is loaded when it is asked for
MAX_TEMPLATE = 1 << 20  # bytes of its file


def add_chat_template(group: argparse._ArgumentGroup) -> None:
    """The option of the commands that hold conversations."""
    group.add_argument(
        "--chat-template", metavar=f"FILE|{PLAIN}",
        help=f"a chat template (Jinja) in place of the model's own; {PLAIN}: a built-in one for models that have none",
    )  # fmt: skip


def chat_template(given: str | None) -> tuple[str | None, tuple[str, ...]]:
    """The text of --chat-template, and the strings that end an answer with it.

    Raises FileError for a file that cannot be read, UserError for one that is too large or not UTF-8.
    """
    if given is None:
        return None, ()
    if given == PLAIN:
        plain = _lazy.load("ingot.text.plain_template")
        return plain.PLAIN_TEMPLATE, plain.PLAIN_STOP
    if given == "-":
        raise UserError("--chat-template takes a file, not standard input")
    try:
        with open(given, "rb") as file:
            data = file.read(MAX_TEMPLATE + 1)
        if len(data) > MAX_TEMPLATE:
            raise UserError(f"{given} is no chat template: it has more than {MAX_TEMPLATE:,} bytes")
        return data.decode("utf-8"), ()
    except OSError as e:
        raise FileError(f"{given} cannot be read: {e.strerror}") from None
    except UnicodeDecodeError as e:
        raise UserError(f"{given} is not UTF-8 text (byte {e.start})") from None
