"""Templates with the features of 25 families: the bytes that transformers gives, with every kind of turn."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ingot.text.chat_sandbox import _Refusal, _rendered, _Sandbox
from ingot.text.chat_template import ChatTemplate
from tests.text.family_templates import FAMILIES

utils: Any = pytest.importorskip("transformers.utils.chat_template_utils")

TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {
        "name": "weather", "description": "How <it> is, \"now\" & later — ü",
        "parameters": {"type": "object", "required": ["city"], "properties": {
            "city": {"type": "string", "enum": ["Köln", "a'b"]},
            "days": {"type": "array", "items": {"type": "integer"}}, "when": {"type": ["string", "null"]}}}}},
    {"type": "function", "function": {"name": "stop", "description": "", "parameters": {
        "type": "object", "properties": {}}}},
]  # fmt: skip
SYSTEM = {"role": "system", "content": " Be brief.\n"}
USER = {"role": "user", "content": " Hëllo\r\n\n<b>you</b> & 'me' "}
ANSWER = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi! "}
ARGUMENTS = {"city": "Köln", "days": [1, 2], "exact": True, "far": None, "at": 1.5}
CALLED = {"id": "abcdefghi", "type": "function", "function": {"name": "weather", "arguments": ARGUMENTS}}
CALL = {"role": "assistant", "content": "", "tool_calls": [CALLED]}
RESULT = {"role": "tool", "tool_call_id": "abcdefghi", "name": "weather", "content": '{"t": -3.0}'}
PARTS = {"role": "user", "content": [{"type": "text", "text": " a "}, {"type": "image"}, {"type": "text", "text": "b"}]}
TALKS: dict[str, list[dict[str, Any]]] = {
    "one turn": [USER],
    "a system": [SYSTEM, USER, ANSWER, {"role": "user", "content": "Bye"}],
    "an answer last": [USER, ANSWER],
    "a call": [USER, CALL],
    "a result": [SYSTEM, USER, CALL, RESULT, ANSWER, {"role": "user", "content": "Thanks /no_think"}],
    "two results": [USER, CALL, RESULT, RESULT | {"content": "again"}],
    "parts": [PARTS],
    "turns that do not alternate": [USER, USER],
    "only the system": [SYSTEM],
    "a role of its own": [USER, {"role": "critic", "content": "no"}],
}
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>"}
WORDS: list[dict[str, Any]] = [{}, {"enable_thinking": False, "thinking": True, "controls": {"length": "short"}}]


def cases() -> list[dict[str, Any]]:
    return [
        {"messages": talk, "tools": tools, "documents": None, "add_generation_prompt": prompt, **SPECIAL, **words}
        for talk in TALKS.values()
        for tools in (None, TOOLS)
        for prompt, words in ((True, WORDS[0]), (False, WORDS[0]), (True, WORDS[1]))
    ]


def outcome(render: Any) -> str:
    """The text; or why there is none, where the template or Jinja says so."""
    try:
        return str(render())
    except _Refusal as e:
        return f"TemplateError: {e}"
    except Exception as e:
        return f"{type(e).__name__}: {e}"


@pytest.mark.parametrize("family", FAMILIES)
def test_the_same_bytes(family: str) -> None:
    source = FAMILIES[family]
    template, theirs = _Sandbox().from_string(source), utils._compile_jinja_template(source)
    texts = 0
    for case in cases():
        names = json.loads(json.dumps(case))
        ours = outcome(lambda names=names: _rendered(template, names, 1 << 20))
        assert ours == outcome(lambda case=case: theirs.render(**case)), case
        texts += not ours.split(":")[0].endswith("Error")
    assert texts >= 18, "most conversations are taken"


def test_through_the_process() -> None:
    """One of them as a model's: what is sent there and back changes nothing."""
    template = ChatTemplate(FAMILIES["Qwen 2.5"], SPECIAL)
    talk = TALKS["a result"]
    (want,), _ = utils.render_jinja_template([talk], tools=TOOLS, chat_template=FAMILIES["Qwen 2.5"], **SPECIAL)
    assert template.render(talk, tools=TOOLS, add_generation_prompt=False) == want
    assert "Köln" in want and "<tool_response>" in want
