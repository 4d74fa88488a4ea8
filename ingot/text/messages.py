"""What a conversation has to be: whom its messages are from, and what is in them."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping
from typing import Any

from ingot.errors import RequestError

ROLES = ("system", "developer", "user", "assistant", "tool")


def check_messages(messages: Any, words: Collection[str] = ()) -> list[dict[str, Any]]:
    """A conversation, checked: a list of {"role": text, "content": text}. Raises RequestError for the first fault.

    Args:
        messages: as they were given.
        words: what the model's chat template quotes. Where `developer` is not among them, it is `system`.
    """
    if not isinstance(messages, list | tuple) or not messages:
        raise RequestError('messages must be a list of {"role": …, "content": …} with at least one entry')
    found = []
    for i, message in enumerate(messages):
        if not isinstance(message, Mapping):
            raise RequestError(f"messages[{i}] must be an object with role and content, not {str(message)[:60]!r}")
        role, content = message.get("role"), message.get("content")
        if not isinstance(role, str) or not 1 <= len(role) <= 64:
            raise RequestError(f"messages[{i}].role must be a text such as user, assistant or system")
        check_role(role, i, words)
        if not isinstance(content, str):
            raise RequestError(f"messages[{i}].content must be a text, not {type(content).__name__}")
        if role == "developer" and role not in words:
            role = "system"
        found.append({**message, "role": role, "content": content})
    return found


def check_role(role: str, index: int, words: Collection[str]) -> None:
    """Raises RequestError for a role, of the message of that index, that is none of ROLES nor among the words that the
    model's chat template quotes: most templates write any role down, so a misspelt one would be a turn of nobody.
    """
    if role in ROLES or role in words:
        return
    near = difflib.get_close_matches(role.lower(), ROLES, 1)
    meant = f"did you mean {near[0]}? " if near else ""
    raise RequestError(
        f"messages[{index}].role is {role!r}: {meant}The roles are {', '.join(ROLES)}, and those that the model's chat "
        "template names"
    )
