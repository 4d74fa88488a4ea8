"""What a conversation has to be, and which roles are known."""

from __future__ import annotations

from typing import Any

import pytest

from ingot.errors import RequestError
from ingot.text.messages import ROLES, check_messages


@pytest.mark.parametrize(
    "messages",
    [None, [], "hello", [1], [{"role": "user"}], [{"content": "x"}], [{"role": 5, "content": "x"}],
     [{"role": "user", "content": None}], [{"role": "user", "content": ["x"]}], [{"role": "", "content": "x"}]],
)  # fmt: skip
def test_messages_are_checked(messages: Any) -> None:
    with pytest.raises(RequestError, match="messages"):
        check_messages(messages)


def roles(*roles: str, words: tuple[str, ...] = ("model", "role")) -> list[str]:
    return [m["role"] for m in check_messages([{"role": role, "content": "x"} for role in roles], words)]


def test_roles_are_those_that_all_know_and_those_of_the_template() -> None:
    assert roles(*ROLES, "model") == ["system", "system", "user", "assistant", "tool", "model"]
    with pytest.raises(
        RequestError, match=r"^messages\[1\].role is 'usr': did you mean user\? The roles are system, dev"
    ):
        roles("user", "usr")
    with pytest.raises(
        RequestError, match=r"^messages\[0\].role is 'narrator': The roles are .*, and those that the model"
    ):
        roles("narrator")
    with pytest.raises(RequestError, match="is 'model': "):
        roles("model", words=())


def test_a_developer_is_the_system_unless_the_template_knows_one() -> None:
    assert roles("developer", "user") == ["system", "user"]
    assert roles("developer", words=("developer",)) == ["developer"]
