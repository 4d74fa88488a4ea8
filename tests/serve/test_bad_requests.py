"""Requests that must fail well, each with its status and code; the server goes on as if nothing had been."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from ingot.serve.problem import Problem
from ingot.serve.responses import ResponsesRequest
from ingot.serve.schema import ChatRequest, CompletionRequest, read
from tests.serve.harness import MODEL, Running, rest, serving

TEXT = "/v1/completions"
CHAT = "/v1/chat/completions"
VECTOR = "/v1/embeddings"
RESPONSE = "/v1/responses"
HELLO = [{"role": "user", "content": "hello"}]
LIMIT = 1 << 20  # bytes of a body, for pico-python's context


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving("--chat-template", "plain") as running:
        yield running
        still_serves(running)


AFTER = itertools.count(1)
EVERY = 8  # a look at what was left behind comes after so many requests, and at the end


@pytest.fixture(autouse=True)
def _still_serves(server: Running) -> Iterator[None]:
    yield
    if next(AFTER) % EVERY == 0:
        still_serves(server)


def still_serves(server: Running) -> None:
    assert server.complete(max_tokens=6)["choices"][0]["text"].startswith("\nimport sys\n")
    metrics = server.until(lambda m: not m["ingot_requests_running"] and not m["ingot_queue_depth"])
    assert metrics["ingot_kv_blocks_used"] == 0
    assert metrics["ingot_engine_restarts_total"] == 0


def text(**words: Any) -> bytes:
    return json.dumps({"model": MODEL, "prompt": "x", "max_tokens": 4} | words).encode()


def chat(**words: Any) -> bytes:
    return json.dumps({"model": MODEL, "messages": HELLO, "max_tokens": 4} | words).encode()


def response(**words: Any) -> bytes:
    return json.dumps({"model": MODEL, "input": "x", "max_output_tokens": 4} | words).encode()


def vector(**words: Any) -> bytes:
    return json.dumps({"model": MODEL, "input": "x"} | words).encode()


# name → (path, body, status, code, param)
BAD: dict[str, tuple[str, bytes, int, str, str | None]] = {
    "nothing": (TEXT, b"", 400, "invalid_json", None),
    "no JSON": (TEXT, b"{", 400, "invalid_json", None),
    "no UTF-8": (TEXT, b'{"model": "\xff"}', 400, "invalid_json", None),
    "an array": (TEXT, b"[]", 400, "invalid_value", None),
    "depth": (TEXT, b'{"metadata":' + b"[" * 100_000, 400, "invalid_json", None),
    "a key twice": (TEXT, b'{"model":"pico-python","prompt":"x","n":1,"n":2}', 400, "invalid_json", None),
    "NaN": (TEXT, b'{"model":"pico-python","prompt":"x","temperature":NaN}', 400, "invalid_json", None),
    "infinity": (TEXT, b'{"model":"pico-python","prompt":"x","temperature":1e400}', 400, "invalid_json", None),
    "unknown field": (TEXT, text(tempreature=1), 400, "invalid_value", "tempreature"),
    "no model": (TEXT, b'{"prompt":"x"}', 400, "invalid_value", None),
    "no prompt": (TEXT, b'{"model":"pico-python"}', 400, "invalid_value", None),
    "a large body": (TEXT, text(prompt="x" * LIMIT), 413, "body_too_large", None),
    # numbers out of range
    "max_tokens -1": (TEXT, text(max_tokens=-1), 400, "invalid_value", "max_tokens"),
    "max_tokens 0": (TEXT, text(max_tokens=0), 400, "invalid_value", "max_tokens"),
    "max_tokens 1e9": (TEXT, text(max_tokens=10**9), 400, "invalid_value", "max_tokens"),
    "max_tokens 1.5": (TEXT, text(max_tokens=1.5), 400, "invalid_value", "max_tokens"),
    "max_tokens text": (TEXT, text(max_tokens="4"), 400, "invalid_value", "max_tokens"),
    "max_tokens true": (TEXT, text(max_tokens=True), 400, "invalid_value", "max_tokens"),
    "n 0": (TEXT, text(n=0), 400, "invalid_value", "n"),
    "n 10⁶": (TEXT, text(n=10**6), 400, "invalid_value", "n"),
    "temperature -1": (TEXT, text(temperature=-1), 400, "invalid_value", "temperature"),
    "top_p 2": (TEXT, text(top_p=2), 400, "invalid_value", "top_p"),
    "top_p 0": (TEXT, text(top_p=0), 400, "invalid_value", "top_p"),
    "top_k -1": (TEXT, text(top_k=-1), 400, "invalid_value", "top_k"),
    "min_p 1.5": (TEXT, text(min_p=1.5), 400, "invalid_value", "min_p"),
    "repetition_penalty 0": (TEXT, text(repetition_penalty=0), 400, "invalid_value", "repetition_penalty"),
    "presence_penalty 3": (TEXT, text(presence_penalty=3), 400, "invalid_value", "presence_penalty"),
    "frequency_penalty -3": (TEXT, text(frequency_penalty=-3), 400, "invalid_value", "frequency_penalty"),
    "priority 101": (TEXT, text(priority=101), 400, "invalid_value", "priority"),
    "seed 2⁷⁰": (TEXT, text(seed=2**70), 400, "invalid_json", None),
    "seed 2⁶³": (TEXT, text(seed=2**63), 400, "invalid_value", "seed"),
    "logprobs 21": (TEXT, text(logprobs=21), 400, "invalid_value", "logprobs"),
    "stop is empty": (TEXT, text(stop=""), 400, "invalid_value", "stop"),
    "stop with an empty one": (TEXT, text(stop=["a", ""]), 400, "invalid_value", "stop"),
    "stop 10⁵ strings": (TEXT, text(stop=["a"] * 10**5), 400, "invalid_value", "stop"),
    "stop is long": (TEXT, text(stop="x" * 300), 400, "invalid_value", "stop"),
    "logit_bias id -1": (TEXT, text(logit_bias={"-1": 1}), 400, "invalid_value", "logit_bias"),
    "logit_bias id text": (TEXT, text(logit_bias={"cat": 1}), 400, "invalid_value", "logit_bias"),
    "logit_bias beyond": (TEXT, text(logit_bias={"5": 101}), 400, "invalid_value", "logit_bias"),
    "logit_bias unknown": (TEXT, text(logit_bias={"4096": 1}), 400, "request", None),
    "logit_bias 2,000": (TEXT, text(logit_bias={str(i): 1 for i in range(2000)}), 400, "invalid_value", "logit_bias"),
    # prompts
    "too long": (TEXT, text(prompt="import os\n" * 2000), 400, "context_length_exceeded", "prompt"),
    "too many ids": (TEXT, text(prompt=[1] * 1024), 400, "context_length_exceeded", "prompt"),
    "no ids": (TEXT, text(prompt=[]), 400, "invalid_value", "prompt"),
    "a prompt without ids": (TEXT, text(prompt=[[1], []]), 400, "invalid_value", "prompt"),
    "prompts of two kinds": (TEXT, text(prompt=["a", 1]), 400, "invalid_value", "prompt"),
    "a number": (TEXT, text(prompt=5), 400, "invalid_value", "prompt"),
    "half a surrogate pair": (TEXT, text(prompt="a\ud800b"), 400, "invalid_value", None),
    "half a pair in stop": (TEXT, text(stop="\udfff"), 400, "invalid_value", None),
    "id too large": (TEXT, text(prompt=[4096]), 400, "request", None),
    "id -1": (TEXT, text(prompt=[-1]), 400, "invalid_value", "prompt"),
    "id 2⁴⁰": (TEXT, text(prompt=[2**40]), 400, "invalid_value", "prompt"),
    "129 prompts": (TEXT, text(prompt=["x"] * 129), 400, "invalid_value", "prompt"),
    "more answers than the server takes": (TEXT, text(prompt=["x"] * 128, n=16), 400, "too_many_answers", "n"),
    # what is not there
    "unknown model": (TEXT, text(model="gpt-4"), 404, "model_not_found", "model"),
    "an adapter by its path": (TEXT, text(model="pico-python:../../lora"), 404, "model_not_found", "model"),
    "an adapter as a word": (TEXT, text(lora="../../lora"), 400, "invalid_value", "lora"),
    "a path for a model": (CHAT, chat(model="../../etc/passwd"), 404, "model_not_found", "model"),
    "echo": (TEXT, text(echo=True), 400, "unsupported_parameter", "echo"),
    "suffix": (TEXT, text(suffix="x"), 400, "unsupported_parameter", "suffix"),
    "best_of": (TEXT, text(best_of=3), 400, "unsupported_parameter", "best_of"),
    "stream_options alone": (TEXT, text(stream_options={}), 400, "invalid_value", "stream_options"),
    # conversations
    "no messages": (CHAT, chat(messages=[]), 400, "invalid_value", "messages"),
    "a message without role": (CHAT, chat(messages=[{"content": "x"}]), 400, "invalid_value", "messages"),
    "a misspelt role": (CHAT, chat(messages=[{"role": "usr", "content": "x"}]), 400, "invalid_value", "messages"),
    "a role in capitals": (CHAT, chat(messages=[{"role": "User", "content": "x"}]), 400, "invalid_value", "messages"),
    "a later role": (
        CHAT, chat(messages=[*HELLO, {"role": "bot", "content": "x"}]), 400, "invalid_value", "messages",
    ),
    "content is a number": (CHAT, chat(messages=[{"role": "user", "content": 5}]), 400, "invalid_value", "messages"),
    "an image": (
        CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url", "text": "http://x/"}]}]),
        400, "unsupported_value", "messages",
    ),
    "an image as clients send it": (
        CHAT, chat(messages=[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "http://x/"}}]}]),
        400, "unsupported_value", "messages",
    ),
    "an image that is called text": (
        CHAT, chat(messages=[{"role": "user", "content": [{"type": "text", "text": "x", "image_url": "http://x/"}]}]),
        400, "unsupported_value", "messages",
    ),
    "a part without text": (
        CHAT, chat(messages=[{"role": "user", "content": [{"type": "text"}]}]), 400, "invalid_value", "messages",
    ),
    "no content": (CHAT, chat(messages=[{"role": "assistant", "content": None}]), 400, "invalid_value", "messages"),
    "a call of a tool in the past": (
        CHAT, chat(messages=[*HELLO, {"role": "assistant", "content": None, "tool_calls": [{"id": "1"}]}]),
        400, "unsupported_parameter", "messages",
    ),
    "what a tool said": (
        CHAT, chat(messages=[*HELLO, {"role": "tool", "content": "5", "tool_call_id": "1"}]),
        400, "unsupported_parameter", "messages",
    ),
    "tools": (CHAT, chat(tools=[{"type": "function"}]), 400, "unsupported_parameter", "tools"),
    "a tool that is a number": (CHAT, chat(tools=[1]), 400, "unsupported_parameter", "tools"),
    "a tool with a bad pattern": (
        CHAT, chat(tools=[{"type": "function", "function": {"name": "f", "parameters": {"pattern": "(a+)+$"}}}]),
        400, "unsupported_parameter", "tools",
    ),
    "functions": (CHAT, chat(functions=[{"name": "f"}]), 400, "invalid_value", "functions"),
    "tools are no list": (CHAT, chat(tools={"a": 1}), 400, "invalid_value", "tools"),
    "tool_choice": (CHAT, chat(tool_choice={"type": "function"}), 400, "unsupported_parameter", "tool_choice"),
    "a schema": (
        CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {"$ref": "#"}}}),
        400, "unsupported_parameter", "response_format",
    ),
    "a schema of 100,000 values": (
        CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {"enum": list(range(100_000))}}}),
        400, "unsupported_parameter", "response_format",
    ),
    "a schema that nothing fits": (
        CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {"minimum": 2, "maximum": 1}}}),
        400, "unsupported_parameter", "response_format",
    ),
    "a schema with an unknown word": (
        CHAT, chat(response_format={"type": "json_schema", "json_schema": {"schema": {"evil": 1}}}),
        400, "unsupported_parameter", "response_format",
    ),
    "some JSON": (
        CHAT, chat(response_format={"type": "json_object"}), 400, "unsupported_parameter", "response_format",
    ),
    "a format that is a text": (CHAT, chat(response_format="json"), 400, "invalid_value", "response_format"),
    "half a pair in a chat": (CHAT, chat(messages=[{"role": "user", "content": "\ud800"}]), 400, "invalid_value", None),
    "a regex": (
        CHAT, chat(response_format={"type": "regex", "regex": "(a+)+$"}),
        400, "unsupported_parameter", "response_format",
    ),
    "top_logprobs alone": (CHAT, chat(top_logprobs=3), 400, "invalid_value", "top_logprobs"),
    "two limits": (CHAT, chat(max_completion_tokens=5), 400, "invalid_value", "max_completion_tokens"),
    "a chat too long": (
        CHAT, chat(messages=[{"role": "user", "content": "import os\n" * 2000}]),
        400, "context_length_exceeded", "prompt",
    ),
    "an effort of 600 characters": (CHAT, chat(reasoning_effort="x" * 600), 400, "invalid_value", "reasoning_effort"),
    "a tier that is a number": (TEXT, text(service_tier=1), 400, "invalid_value", "service_tier"),
    "17 pairs of metadata": (
        TEXT, text(metadata={str(i): "x" for i in range(17)}), 400, "invalid_value", "metadata",
    ),
    # responses
    "no response": (RESPONSE, b"{", 400, "invalid_json", None),
    "a response to nothing": (RESPONSE, b'{"model":"pico-python"}', 400, "invalid_value", None),
    "a response to no items": (RESPONSE, response(input=[]), 400, "invalid_value", "input"),
    "a response to 5,000 items": (
        RESPONSE, response(input=[{"role": "user", "content": "x"}] * 5000), 400, "invalid_value", "input",
    ),
    "a response to a number": (RESPONSE, response(input=5), 400, "invalid_value", "input"),
    "a response to half a pair": (RESPONSE, response(input="\ud800"), 400, "invalid_value", None),
    "a response to instructions in parts": (
        RESPONSE, response(instructions=["x"]), 400, "invalid_value", "instructions",
    ),
    "a response to another role": (
        RESPONSE, response(input=[{"role": "root", "content": "x"}]), 400, "invalid_value", "input",
    ),
    "a response to a file": (
        RESPONSE, response(input=[{"role": "user", "content": [{"type": "input_file", "text": "/etc/passwd"}]}]),
        400, "unsupported_value", "input",
    ),
    "a response to an image": (
        RESPONSE, response(input=[{"role": "user", "content": [{"type": "input_image", "image_url": "http://x/"}]}]),
        400, "unsupported_value", "input",
    ),
    "a response to a part without text": (
        RESPONSE, response(input=[{"role": "user", "content": [{"type": "input_text"}]}]),
        400, "invalid_value", "input",
    ),
    "a response to a reference": (
        RESPONSE, response(input=[{"type": "item_reference", "id": "msg_1"}]), 400, "invalid_value", "input",
    ),
    "a response too long": (RESPONSE, response(input="import os\n" * 2000), 400, "context_length_exceeded", "prompt"),
    "a response of a large body": (RESPONSE, response(input="x" * LIMIT), 413, "body_too_large", None),
    "a response of 0 tokens": (RESPONSE, response(max_output_tokens=0), 400, "invalid_value", "max_output_tokens"),
    "max_tokens of a response": (RESPONSE, response(max_tokens=4), 400, "invalid_value", "max_tokens"),
    "several responses": (RESPONSE, response(n=2), 400, "invalid_value", "n"),
    "a response with 21 logprobs": (RESPONSE, response(top_logprobs=21), 400, "invalid_value", "top_logprobs"),
    "a response that includes more": (RESPONSE, response(include=["file"]), 400, "invalid_value", "include"),
    "a response with tools": (RESPONSE, response(tools=[{"type": "web"}]), 400, "unsupported_parameter", "tools"),
    "a response by a tool": (RESPONSE, response(tool_choice="f"), 400, "unsupported_parameter", "tool_choice"),
    "a response by a schema": (
        RESPONSE, response(text={"format": {"type": "json_schema", "schema": {"$ref": "#"}}}),
        400, "unsupported_parameter", "text",
    ),
    "a response on a response": (
        RESPONSE, response(previous_response_id="resp_1"), 400, "unsupported_parameter", "previous_response_id",
    ),
    "a response in a conversation": (
        RESPONSE, response(conversation={"id": "c"}), 400, "unsupported_parameter", "conversation",
    ),
    "a response by a prompt": (RESPONSE, response(prompt={"id": "p"}), 400, "unsupported_parameter", "prompt"),
    "a response for later": (RESPONSE, response(background=True), 400, "unsupported_parameter", "background"),
    "a response that forgets": (RESPONSE, response(truncation="auto"), 400, "unsupported_parameter", "truncation"),
    "a response of another model": (RESPONSE, response(model="gpt-4"), 404, "model_not_found", "model"),
    # vectors
    "vectors of nothing": (VECTOR, vector(input=[]), 400, "invalid_value", "input"),
    "vectors of no tokens": (VECTOR, vector(input=[[1], []]), 400, "invalid_value", "input"),
    "vectors of two kinds": (VECTOR, vector(input=["a", 1]), 400, "invalid_value", "input"),
    "vectors of a number": (VECTOR, vector(input=5), 400, "invalid_value", "input"),
    "vectors of 129 texts": (VECTOR, vector(input=["x"] * 129), 400, "invalid_value", "input"),
    "a vector of a long text": (VECTOR, vector(input="import os\n" * 2000), 400, "context_length_exceeded", "input"),
    "a vector of an id too large": (VECTOR, vector(input=[4096]), 400, "request", None),
    "a vector of an id below": (VECTOR, vector(input=[-1]), 400, "invalid_value", "input"),
    "a vector of half a pair": (VECTOR, vector(input="\ud800"), 400, "invalid_value", None),
    "vectors with dimensions": (VECTOR, vector(dimensions=8), 400, "unsupported_parameter", "dimensions"),
    "vectors with dimensions -1": (VECTOR, vector(dimensions=-1), 400, "invalid_value", "dimensions"),
    "vectors in words": (VECTOR, vector(encoding_format="words"), 400, "invalid_value", "encoding_format"),
    "vectors by another word": (VECTOR, vector(pooling="mean"), 400, "invalid_value", "pooling"),
    "vectors of another model": (VECTOR, vector(model="ada"), 404, "model_not_found", "model"),
}  # fmt: skip


# name → (the request's kind, its body, what is said of its unknown field)
MEANT: dict[str, tuple[type[msgspec.Struct], bytes, str]] = {
    "a misspelt field": (CompletionRequest, text(max_token=4), ": did you mean max_tokens?"),
    "a field of a message": (
        ChatRequest, chat(messages=[{"role": "user", "contents": "x"}]),
        " - at `$.messages[0]`: did you mean content?",
    ),
    "a field of a part": (
        ChatRequest, chat(messages=[{"role": "user", "content": [{"type": "text", "txt": "x"}]}]),
        " - at `$.messages[0].content[0]`: did you mean text?",
    ),
    "a field of options": (
        CompletionRequest, text(stream=True, stream_options={"include_use": True}),
        " - at `$.stream_options`: did you mean include_usage?",
    ),
    "the field of a chat": (ResponsesRequest, response(max_tokens=4), ": did you mean max_output_tokens?"),
    "a prompt of a chat": (ChatRequest, chat(prompt="x"), ": it is a field of /v1/completions"),
    "messages of a completion": (CompletionRequest, text(messages=HELLO), ": it is a field of /v1/chat/completions"),
    "nothing near": (CompletionRequest, text(lora="x"), "; /openapi.json has the fields that there are"),
    "a long name": (CompletionRequest, text(**{"z" * 10**5: 1}), "; /openapi.json has the fields that there are"),
}  # fmt: skip


@pytest.mark.parametrize("name", MEANT)
def test_an_unknown_field_says_what_was_meant(name: str) -> None:
    kind, body, said = MEANT[name]
    with pytest.raises(Problem) as e:
        read(body, kind)
    assert str(e.value).startswith("the request is malformed: Object contains unknown field `")
    assert str(e.value).endswith(f"`{said}")


def test_a_role_of_the_template(tmp_path: Path) -> None:
    template = tmp_path / "story.jinja"
    template.write_text("{% for m in messages %}{{ 'Once' if m.role == 'narrator' else m.role }}{% endfor %}")
    with serving("--chat-template", str(template)) as story:
        assert story.post(CHAT, chat(messages=[{"role": "narrator", "content": "x"}])).status_code == 200
        got = story.post(CHAT, chat(messages=[{"role": "narrater", "content": "x"}]))
        assert (got.status_code, got.json()["error"]["param"]) == (400, "messages")
        assert got.json()["error"]["message"].startswith("messages[0].role is 'narrater': The roles are system, dev")


def streams(path: str, body: bytes) -> bool:
    """Whether a body may ask for a stream, and does not say whether it does."""
    return path != VECTOR and body.startswith(b"{") and body.endswith(b"}") and b"stream" not in body


WAYS = [(name, False) for name in BAD] + [(name, True) for name in BAD if streams(*BAD[name][:2])]


@pytest.mark.parametrize(("name", "stream"), [pytest.param(*one, id="{}-{}".format(*one)) for one in WAYS])
def test_bad_body(server: Running, name: str, stream: bool) -> None:
    path, body, status, code, param = BAD[name]
    if stream:
        body = body[:-1] + b', "stream": true}'
    got = server.post(path, body)
    assert (got.status_code, got.json()["error"]["code"]) == (status, code), got.text[:500]
    error = got.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["param"] == param
    assert error["message"] and len(error["message"]) < 2000
    assert got.headers["content-type"] == "application/json"


@pytest.mark.parametrize("name", ["gpt-4", "..%2F..%2Fetc%2Fpasswd", "../../etc/passwd", "%00", "x" * 5000, ""])
def test_models_that_are_not_there(server: Running, name: str) -> None:
    got = server.http.get(f"/v1/models/{name}")
    assert (got.status_code, got.json()["error"]["type"]) == (404, "not_found_error")
    assert len(got.text) < 1000


@pytest.mark.parametrize(("method", "path", "said"), [
    ("POST", "/chat/completions", "it is /v1/chat/completions, so the base URL of a client ends in /v1"),
    ("POST", "/v1/v1/completions", "it is /v1/completions, so the base URL has one /v1 too many"),
    ("POST", "/v1/completions/", "it is /v1/completions, without a slash at its end"),
    ("GET", "/healthz", "and /health and /ready; /openapi.json describes them"),
    ("POST", "/v1/images/generations", "the routes are /v1/chat/completions, /v1/completions, /v1/embeddings, /v1/mo"),
    ("GET", "/docs", "/openapi.json describes them"),
    ("GET", "/v1/chat/completions", "/v1/chat/completions takes POST alone"),
])  # fmt: skip
def test_paths_that_clients_try(server: Running, method: str, path: str, said: str) -> None:
    got = server.http.request(method, path, json={} if method == "POST" else None)
    assert got.status_code == (405 if "takes" in said else 404)
    assert said in got.json()["error"]["message"]


def test_an_empty_prompt_is_the_beginning_token(server: Running) -> None:
    assert server.complete("", max_tokens=3)["usage"] | {"prompt_tokens_details": None} == {
        "prompt_tokens": 1, "completion_tokens": 3, "total_tokens": 4, "prompt_tokens_details": None,
    }  # fmt: skip


def test_words_at_their_limits_are_taken(server: Running) -> None:
    """The other side of the table: what is legal, if only just."""
    words = {
        "n": 16, "temperature": 2, "top_p": 1, "top_k": 2**31 - 1, "min_p": 1, "repetition_penalty": 10,
        "stop": ["a"] * 16, "presence_penalty": -2, "frequency_penalty": 2,
        "logit_bias": {"0": -100, "4095": 100}, "seed": -(2**63),
        "max_tokens": 2, "logprobs": 20, "priority": -100, "user": "x", "metadata": {"a": "b"}, "echo": False,
    }  # fmt: skip
    assert len(server.complete([1, 4095], **words)["choices"]) == 16
    assert server.complete("", max_tokens=1)["usage"]["prompt_tokens"] == 1  # the beginning token
    assert server.complete([1] * 1023, max_tokens=1_000_000)["usage"]["completion_tokens"] == 1


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_other_content_types(server: Running, kind: str) -> None:
    got = server.post(TEXT, text(), headers={"Content-Type": kind})
    assert (got.status_code, got.json()["error"]["code"]) == (415, "invalid_content_type")


@pytest.mark.parametrize(("method", "path", "status"), [
    ("GET", "/v1/completions", 405), ("POST", "/v1/models", 405), ("DELETE", "/health", 405), ("GET", "/nowhere", 404),
    ("GET", "/v1/models/", 404), ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404),
    ("GET", "/page.js/../../app.py", 404),
    ("GET", "/%2e%2e/app.py", 404), ("POST", "/v1/completions/", 404),
])  # fmt: skip
def test_other_routes(server: Running, method: str, path: str, status: int) -> None:
    connection = server.connect()
    with connection:
        connection.sendall(f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        got = rest(connection)
    assert got.startswith(f"HTTP/1.1 {status} ".encode()), got[:200]
    assert set(json.loads(got.partition(b"\r\n\r\n")[2])["error"]) == {"message", "type", "param", "code"}


def test_a_body_of_100_megabytes_is_refused_before_it_comes(server: Running) -> None:
    with server.connect() as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: 100000000\r\n\r\n{")
        got = rest(connection)
    assert got.startswith(b"HTTP/1.1 413 ")
    assert b"body_too_large" in got


def test_a_body_that_grows_without_end_is_cut_off(server: Running) -> None:
    with server.connect() as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        sent = 0
        try:
            while sent < 64 * LIMIT:
                connection.sendall(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
                sent += 0x10000
        except OSError:
            pass
        assert sent < 64 * LIMIT


@pytest.mark.parametrize("head", [
    b"GARBAGE\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00", b"GET \xff\xfe HTTP/1.1\r\nHost: x\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: -5\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
])  # fmt: skip
def test_what_is_no_http(server: Running, head: bytes) -> None:
    with server.connect() as connection:
        connection.sendall(head)
        got = rest(connection)
    assert got == b"" or got.startswith((b"HTTP/1.1 400 ", b"HTTP/1.1 421 ")), got[:200]


def test_headers_without_end(server: Running) -> None:
    with server.connect() as connection:
        try:
            connection.sendall(b"GET / HTTP/1.1\r\n")
            for i in range(20_000):
                connection.sendall(b"X-%d: %s\r\n" % (i, b"y" * 100))
        except OSError:
            pass
        got = rest(connection)
    assert got == b"" or got.startswith((b"HTTP/1.1 431 ", b"HTTP/1.1 400 "))


def test_other_names_of_the_host(server: Running) -> None:
    """What a web page could reach by rebinding its own name to this machine."""
    for host in ("evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example"):
        got = server.http.get("/v1/models", headers={"Host": host})
        assert (got.status_code, got.json()["error"]["code"]) == (421, "wrong_host")
    for host in ("localhost", "LOCALHOST:1", "127.0.0.1:99", "[::1]:8000", "[::1]"):
        assert server.http.get("/v1/models", headers={"Host": host}).status_code == 200
