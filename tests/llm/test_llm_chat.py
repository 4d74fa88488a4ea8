"""Conversations with LLM: templates, roles, and event loops that do not wait."""

from __future__ import annotations

import asyncio
import copy
import json
import threading
from typing import Any

import pytest

from ingot.engine.session import Engine
from ingot.errors import RequestError, UserError
from ingot.llm.llm import LLM
from ingot.llm.stream import Completion


def with_template(engine: Engine, source: str) -> Engine:
    """The engine with a chat template, as if it had come with one."""
    settings = json.dumps({"chat_template": source, "bos_token": {"content": "<|endoftext|>"}}).encode()
    files = {**engine.files(), "tokenizer_config.json": settings}
    changed = copy.copy(engine)
    changed.files = lambda: files  # type: ignore[method-assign]
    return changed


def test_chat_renders_and_completes(engine: Engine) -> None:
    source = (
        "{% for m in messages %}# {{ m.role }}: {{ m.content }}\n{% endfor %}"
        "{% if add_generation_prompt %}def {% endif %}"
    )
    talk = [{"role": "user", "content": "sort a list"}]
    with LLM(with_template(engine, source), threads=1) as model:
        answer = model.chat(talk, max_tokens=8)
        plain = model.generate(model.tokenizer.encode_plain("# user: sort a list\ndef "), max_tokens=8)
        assert isinstance(answer, Completion)
        assert answer.token_ids == plain.token_ids
        assert asyncio.run(model.achat(talk, max_tokens=8)).token_ids == plain.token_ids
        with pytest.raises(RequestError, match="messages"):
            model.chat([])
        with pytest.raises(RequestError, match=r"messages\[1\].role is 'usr': did you mean user\?"):
            model.chat([*talk, {"role": "usr", "content": "and sort it"}])


def test_a_slow_template_does_not_block_the_event_loop(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    with LLM(with_template(engine, "{{ messages[0].content }}"), threads=1) as model:
        written, gate = model.chat_prompt, threading.Event()

        def slow(messages: Any) -> list[int]:
            assert gate.wait(10), "who would open it waits for this"
            return written(messages)

        async def both() -> Any:
            answer = asyncio.create_task(model.achat([{"role": "user", "content": "def "}], max_tokens=2))
            await asyncio.sleep(0.01)
            gate.set()
            return await answer

        monkeypatch.setattr(model, "chat_prompt", slow)
        assert len(asyncio.run(both()).token_ids) == 2


def test_chat_needs_a_template(llm: LLM) -> None:
    with pytest.raises(UserError, match="without a chat template"):
        llm.chat([{"role": "user", "content": "hi"}])
