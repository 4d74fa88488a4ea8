"""/v1/responses by the official client, its types as the oracle, and what clients send that changes nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai.types.responses import Response, ResponseStreamEvent
from pydantic import TypeAdapter

from ingot.serve import frames
from tests.serve.harness import MODEL, Running, serving
from tests.serve.in_process import served

EVENT: TypeAdapter[Any] = TypeAdapter(ResponseStreamEvent)
PATH = "/v1/responses"
HARMLESS = {
    "user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto", "safety_identifier": "s",
    "prompt_cache_key": "k", "prompt_cache_retention": "24h", "parallel_tool_calls": True,
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving("--chat-template", "plain") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as found:
        yield found


def events(text: str) -> list[dict[str, Any]]:
    """The events of a stream, each under its own name."""
    found = []
    for part in text.split("\n\n")[:-1]:
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


def test_a_response_is_what_a_chat_answers(client: openai.OpenAI, server: Running) -> None:
    chat: Any = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "import"}]
    wanted = client.chat.completions.create(model=MODEL, messages=chat, max_tokens=20, temperature=0)
    got = client.responses.create(
        model=MODEL, instructions="Be short.", input="import", max_output_tokens=20, temperature=0
    )
    assert got.output_text == wanted.choices[0].message.content
    assert (got.status, got.incomplete_details and got.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert got.usage is not None and wanted.usage is not None
    assert (got.usage.input_tokens, got.usage.output_tokens) == (wanted.usage.prompt_tokens, 20)
    items: Any = [
        {"role": "developer", "content": "Be short."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "import"}]},
    ]
    again = client.responses.create(model=MODEL, input=items, max_output_tokens=20, temperature=0)
    assert again.output_text == got.output_text
    raw = server.post(PATH, {"model": MODEL, "input": "x", "max_output_tokens": 4}).json()
    assert Response.model_validate(raw).store is False  # the client itself checks no type


def test_answers_go_back_in_the_next_request(client: openai.OpenAI) -> None:
    items: Any = [{"role": "user", "content": "import"}]
    first = client.responses.create(model=MODEL, input=items, max_output_tokens=8, temperature=0)
    items += [*(item.model_dump() for item in first.output), {"role": "user", "content": "more"}]
    second = client.responses.create(model=MODEL, input=items, max_output_tokens=8, temperature=0)
    chat: Any = [
        {"role": "user", "content": "import"}, {"role": "assistant", "content": first.output_text},
        {"role": "user", "content": "more"},
    ]  # fmt: skip
    wanted = client.chat.completions.create(model=MODEL, messages=chat, max_tokens=8, temperature=0)
    assert second.output_text == wanted.choices[0].message.content


@pytest.mark.parametrize("logprobs", [False, True])
def test_every_event_of_a_stream_parses(client: openai.OpenAI, server: Running, logprobs: bool) -> None:
    words: dict[str, Any] = {"model": MODEL, "input": "import os", "max_output_tokens": 24, "temperature": 0}
    words |= {"include": ["message.output_text.logprobs"], "top_logprobs": 2} if logprobs else {}
    whole = client.responses.create(**words)
    found = events(server.post(PATH, words | {"stream": True}).text)
    for number, event in enumerate(found):
        assert EVENT.validate_python(event).sequence_number == number
    kinds = list(dict.fromkeys(event["type"] for event in found))
    assert kinds == [
        "response.created", "response.in_progress", "response.output_item.added", "response.content_part.added",
        "response.output_text.delta", "response.output_text.done", "response.content_part.done",
        "response.output_item.done", "response.incomplete",
    ]  # fmt: skip
    with client.responses.stream(**words) as stream:
        said = "".join(event.delta for event in stream if event.type == "response.output_text.delta")
    assert said == whole.output_text == found[-4]["text"]
    last, made = found[-1]["response"], whole.to_dict()
    for one in (last, made):
        del one["id"], one["created_at"], one["output"][0]["id"], one["usage"]["input_tokens_details"]
    assert last == made
    tokens = made["output"][0]["content"][0]["logprobs"]
    assert b"".join(bytes(token["bytes"]) for token in tokens).decode() == (whole.output_text if logprobs else "")
    assert not logprobs or all(len(token["top_logprobs"]) == 2 for token in tokens)


def test_a_stream_that_fails_says_so_at_its_end() -> None:
    def says(message: Any) -> list[frames.FromEngine]:
        begun = frames.Pieces([frames.Piece(message.id, 0, "word", 1, [], None)])
        return [begun, frames.Refused(message.id, "memory", "too little")]

    with served(says) as server, openai.OpenAI(
        base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0
    ) as client:  # fmt: skip
        stream = client.responses.create(model="m", input="x", stream=True)
        with pytest.raises(openai.APIError, match="too little") as found:
            list(stream)
        assert found.value.code == "memory"


def test_nothing_is_kept(client: openai.OpenAI) -> None:
    for words in ({"previous_response_id": "resp_1"}, {"conversation": "conv_1"}, {"background": True}):
        with pytest.raises(openai.BadRequestError, match="keeps no") as found:
            client.responses.create(model=MODEL, input="x", **words)
        assert found.value.param == next(iter(words))
    kept = client.responses.create(model=MODEL, input="x", max_output_tokens=2, store=True)
    assert kept.to_dict()["store"] is False
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(kept.id)


@pytest.mark.parametrize("stream", [False, True])
def test_words_without_effect_are_listed(server: Running, stream: bool) -> None:
    text = {"model": MODEL, "prompt": "import os", "max_tokens": 4, "temperature": 0, "stream": stream}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}], "max_tokens": 4, "stream": stream}
    new = {"model": MODEL, "input": "x", "max_output_tokens": 4, "stream": stream}
    thinks = {"reasoning_effort": "low", "verbosity": "low"}
    for path, body, more in (
        ("/v1/completions", text, thinks), ("/v1/chat/completions", chat, thinks),
        (PATH, new, {"reasoning": {"effort": "low"}, "include": ["reasoning.encrypted_content"], "max_tool_calls": 1}),
    ):  # fmt: skip
        plain, given = server.post(path, body), server.post(path, body | HARMLESS | more)
        assert plain.status_code == given.status_code == 200, given.text
        assert "x-ingot-ignored" not in plain.headers
        assert set(given.headers["x-ingot-ignored"].split(", ")) == {*HARMLESS, *more}
        heeded = server.post(path, body | {"store": False, "user": None})
        assert "x-ingot-ignored" not in heeded.headers
    got = server.post("/v1/embeddings", {"model": MODEL, "input": "x", "user": "u"})
    assert got.headers["x-ingot-ignored"] == "user"


def test_refusals_say_why(server: Running) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {}}}
    chat = {"model": MODEL, "messages": [{"role": "user", "content": "x"}]}
    for path, body, reason in (
        ("/v1/chat/completions", chat | {"tools": [tool]}, "call nothing"),
        ("/v1/chat/completions", chat | {"response_format": {"type": "json_object"}}, "held to no schema"),
        (PATH, {"model": MODEL, "input": "x", "tools": [tool]}, "call nothing"),
        (PATH, {"model": MODEL, "input": "x", "text": {"format": {"type": "json_object"}}}, "held to no schema"),
        (PATH, {"model": MODEL, "input": "x", "truncation": "auto"}, "leave out the oldest"),
    ):
        got = server.post(path, body)
        assert got.status_code == 400 and reason in got.json()["error"]["message"], got.text


def test_any_name_where_one_model_is_served() -> None:
    with serving("--any-model", "--chat-template", "plain") as server:
        got = server.post("/v1/completions", {"model": "gpt-4", "prompt": "x", "max_tokens": 2})
        assert got.status_code == 200 and got.json()["model"] == MODEL
        assert server.http.get("/v1/models/gpt-4").json()["id"] == MODEL
        assert server.post(PATH, {"model": "o9", "input": "x", "max_output_tokens": 2}).json()["model"] == MODEL
        assert server.post("/v1/embeddings", {"model": "ada", "input": "x"}).json()["model"] == MODEL
        assert server.http.get("/openapi.json").status_code == 200


@pytest.mark.parametrize("stream", [False, True])
def test_an_answer_that_the_context_shortens_says_how_long_it_may_be(server: Running, stream: bool) -> None:
    body = {"model": MODEL, "prompt": "import os", "temperature": 0, "stop": ["\n"], "stream": stream}
    assert "x-ingot-max-tokens" not in server.post("/v1/completions", body | {"max_tokens": 4}).headers
    got = server.post("/v1/completions", body | {"max_tokens": 100_000})
    context = server.http.get("/v1/models").json()["data"][0]["context_length"]
    prompt = 1 if stream else got.json()["usage"]["prompt_tokens"]
    assert got.status_code == 200 and got.headers["x-ingot-max-tokens"] == str(context - prompt)
