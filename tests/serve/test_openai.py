"""The official OpenAI client against a server of pico-python, and what it gets against the LLM in this process."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import openai
import pytest

import ingot
from tests.kept import PICO
from tests.serve.harness import MODEL, Running, serving

MARKED = "bb95d4c15f1289f78486eaacebf3bb18688475ed58a040ef762ed49337090542"  # 18.2.1, lib/marked.umd.js
PROMPTS = ("import os", "def quicksort(items):", "class Stack:\n", "for i in range(10):\n    ")


@pytest.fixture(scope="module")
def server() -> Iterator[Running]:
    with serving("--chat-template", "plain", "--trace") as running:
        yield running


@pytest.fixture(scope="module")
def client(server: Running) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0, timeout=120) as found:
        yield found


@pytest.fixture(scope="module")
def llm() -> Iterator[ingot.LLM]:
    with ingot.LLM(PICO) as found:
        yield found


def test_completion_is_that_of_the_library(client: openai.OpenAI, llm: ingot.LLM) -> None:
    for prompt in PROMPTS:
        got = client.completions.create(model=MODEL, prompt=prompt, max_tokens=24, temperature=0)
        wanted = llm.generate(prompt, max_tokens=24)
        assert got.choices[0].text == wanted.text
        assert got.choices[0].finish_reason == wanted.finish_reason
        assert got.usage is not None
        assert (got.usage.prompt_tokens, got.usage.completion_tokens) == (wanted.prompt_tokens, 24)
        assert got.usage.total_tokens == wanted.prompt_tokens + 24


def test_stream_adds_up_to_the_whole(client: openai.OpenAI) -> None:
    words: dict[str, Any] = {"model": MODEL, "prompt": PROMPTS[1], "max_tokens": 60, "temperature": 0.9, "seed": 7}
    whole = client.completions.create(**words)
    chunks = list(client.completions.create(**words, stream=True, stream_options={"include_usage": True}))
    assert "".join(c.choices[0].text for c in chunks if c.choices) == whole.choices[0].text
    assert [c.choices[0].finish_reason for c in chunks if c.choices and c.choices[0].finish_reason] == ["length"]
    assert chunks[-1].choices == []
    assert chunks[-1].usage is not None and whole.usage is not None
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 60
    assert all(c.usage is None for c in chunks[:-1])
    assert len({c.id for c in chunks}) == 1


def test_token_ids_and_several_prompts(client: openai.OpenAI, llm: ingot.LLM) -> None:
    ids = [llm.tokenizer.encode(prompt) for prompt in PROMPTS]
    texts = [llm.generate(prompt, max_tokens=12).text for prompt in PROMPTS]
    for given in (ids, list(PROMPTS)):
        got = client.completions.create(model=MODEL, prompt=given, max_tokens=12, temperature=0)
        assert [choice.index for choice in got.choices] == [0, 1, 2, 3]
        assert [choice.text for choice in got.choices] == texts
        assert got.usage is not None
        assert got.usage.prompt_tokens == sum(map(len, ids))
    one = client.completions.create(model=MODEL, prompt=ids[0], max_tokens=12, temperature=0)
    assert one.choices[0].text == texts[0]


def test_several_answers(client: openai.OpenAI, llm: ingot.LLM) -> None:
    words: dict[str, Any] = {"max_tokens": 20, "temperature": 1.0, "seed": 11, "n": 4}
    wanted = [c.text for c in llm.generate(PROMPTS[0], **words)]
    assert len(set(wanted)) > 1
    got = client.completions.create(model=MODEL, prompt=PROMPTS[0], **words)
    assert [choice.text for choice in got.choices] == wanted
    texts = [""] * 4
    for chunk in client.completions.create(model=MODEL, prompt=PROMPTS[0], stream=True, **words):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == wanted


def test_stop_strings_end_before_themselves(client: openai.OpenAI) -> None:
    words: dict[str, Any] = {"model": MODEL, "prompt": PROMPTS[0], "max_tokens": 60, "temperature": 0}
    whole = client.completions.create(**words).choices[0].text
    stop = whole[20:24]
    got = client.completions.create(**words, stop=[stop, "never there"])
    assert got.choices[0].text == whole[: whole.index(stop)]
    assert got.choices[0].finish_reason == "stop"
    parts = [chunk.choices[0] for chunk in client.completions.create(**words, stop=stop, stream=True)]
    assert "".join(part.text for part in parts) == got.choices[0].text
    assert parts[-1].finish_reason == "stop"


def test_logprobs_of_completions(client: openai.OpenAI, llm: ingot.LLM) -> None:
    got = client.completions.create(model=MODEL, prompt=PROMPTS[1], max_tokens=10, temperature=0, logprobs=3)
    wanted = llm.generate(PROMPTS[1], max_tokens=10, logprobs=3)
    found = got.choices[0].logprobs
    assert found is not None and found.token_logprobs and found.tokens and found.top_logprobs and found.text_offset
    assert "".join(found.tokens) == got.choices[0].text == wanted.text
    assert found.token_logprobs == pytest.approx(wanted.logprobs)
    assert found.text_offset == [sum(map(len, found.tokens[:i])) for i in range(10)]
    for token, logprob, top in zip(found.tokens, found.token_logprobs, found.top_logprobs, strict=True):
        assert top[token] == max(top.values()) == logprob  # greedy


def test_chat(client: openai.OpenAI) -> None:
    messages: Any = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "import"}]
    words: dict[str, Any] = {"model": MODEL, "messages": messages, "max_completion_tokens": 30, "temperature": 0}
    whole = client.chat.completions.create(**words, logprobs=True, top_logprobs=2)
    message = whole.choices[0].message
    assert message.role == "assistant" and message.content
    assert whole.choices[0].logprobs is not None and whole.choices[0].logprobs.content
    shown = whole.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes or []) for token in shown).decode() == message.content
    assert all(len(token.top_logprobs) == 2 for token in shown)
    chunks = list(client.chat.completions.create(**words, stream=True))
    assert chunks[0].choices[0].delta.role == "assistant"
    assert "".join(c.choices[0].delta.content or "" for c in chunks) == message.content
    assert chunks[-1].choices[0].finish_reason == whole.choices[0].finish_reason
    assert chunks[0].object == "chat.completion.chunk" and whole.object == "chat.completion"


def test_chat_content_in_parts(client: openai.OpenAI) -> None:
    def said(content: Any) -> str | None:
        messages: Any = [{"role": "user", "content": content}]
        got = client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, temperature=0)
        return got.choices[0].message.content

    parts = [{"type": "text", "text": "import "}, {"type": "text", "text": "os"}]
    assert said(parts) == said("import os")


def test_our_own_words(client: openai.OpenAI, llm: ingot.LLM) -> None:
    sampling: dict[str, Any] = {"top_k": 5, "min_p": 0.05, "repetition_penalty": 1.3}
    got = client.completions.create(
        model=MODEL, prompt=PROMPTS[2], max_tokens=30, temperature=0.8, seed=3, top_p=0.9, presence_penalty=0.5,
        frequency_penalty=0.2, logit_bias={"5": -100, "17": 3}, extra_body={**sampling, "priority": 5},
    )  # fmt: skip
    wanted = llm.generate(
        PROMPTS[2], max_tokens=30, temperature=0.8, seed=3, top_p=0.9, presence_penalty=0.5, frequency_penalty=0.2,
        logit_bias={5: -100, 17: 3}, **sampling,
    )  # fmt: skip
    assert got.choices[0].text == wanted.text


def test_many_clients_at_once(client: openai.OpenAI, server: Running) -> None:
    prompts = [f"{prompt}# {i}\n" for i in range(8) for prompt in PROMPTS]

    def ask(prompt: str) -> str:
        words: dict[str, Any] = {"model": MODEL, "prompt": prompt, "max_tokens": 40, "temperature": 0}
        return "".join(c.choices[0].text for c in client.completions.create(**words, stream=True))

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(len(prompts)) as pool:
        assert list(pool.map(ask, prompts)) == alone
    assert server.until(lambda m: not m["ingot_requests_running"])["ingot_kv_blocks_used"] == 0


def test_answers_are_sent_back_as_they_came(client: openai.OpenAI) -> None:
    """As programs keep a conversation: the message itself, or all of its fields, most of them empty."""

    def ask(*turns: Any) -> Any:
        messages = [{"role": "developer", "content": "be brief"}, {"role": "user", "content": "hi"}, *turns]
        return client.chat.completions.create(model=MODEL, messages=messages, max_tokens=8, temperature=0)

    message, again = ask().choices[0].message, {"role": "user", "content": "more"}
    wanted = ask({"role": "assistant", "content": message.content}, again).choices[0].message.content
    empty = {"tool_calls": [], "annotations": [], "refusal": ""}
    for sent in (message, message.model_dump(), message.to_dict(), message.model_dump() | empty):
        assert ask(sent, again).choices[0].message.content == wanted


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [MODEL]
    model = client.models.retrieve(MODEL)
    assert model.id == MODEL
    can = {"context_length": 1024, "generates": True, "chats": True, "embeds": True}
    assert model.to_dict().items() >= can.items()
    with pytest.raises(openai.NotFoundError) as found:
        client.models.retrieve("gpt-4")
    assert found.value.code == "model_not_found"


def test_errors_are_typed(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as found:
        client.completions.create(model=MODEL, prompt="x", temperature=3)
    assert found.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as found:
        client.completions.create(model=MODEL, prompt="x" * 20_000, stream=True)
    assert found.value.code == "context_length_exceeded"


def test_usage_in_every_chunk(server: Running) -> None:
    options = {"continuous_usage_stats": True}
    body = {"model": MODEL, "prompt": "import os", "max_tokens": 30, "stream": True, "stream_options": options}
    lines = server.post("/v1/completions", body).text.split("\n\n")
    counts = [json.loads(line[6:])["usage"]["completion_tokens"] for line in lines if line.startswith("data: {")]
    assert counts == sorted(counts) and counts[-1] == 30


def test_trace_and_metrics(server: Running) -> None:
    before = server.metrics()
    body = {"model": MODEL, "prompt": "def a_prompt_of_its_own():", "max_tokens": 16, "temperature": 0}
    got = server.post("/v1/completions", body)
    trace = dict(part.split("=") for part in got.headers["x-ingot-trace"].split())
    assert set(trace) == {"queue", "prefill", "decode", "sampling", "detokenising"}
    assert all(float(value) >= 0 for value in trace.values())
    assert float(trace["decode"]) > 0
    streamed = server.post("/v1/completions", body | {"stream": True}).text
    assert ": trace queue=" in streamed and streamed.endswith("data: [DONE]\n\n")
    name = 'ingot_requests_total{route="/v1/completions",status="200"}'
    after = server.until(lambda m: m[name] == before.get(name, 0) + 2)
    assert after["ingot_generated_tokens_total"] == before["ingot_generated_tokens_total"] + 32
    for histogram in ("time_to_first_token", "time_per_output_token", "request"):
        for part in ("count", 'bucket{le="+Inf"}'):
            key = f"ingot_{histogram}_seconds_{part}"
            assert after[key] == before[key] + 2
    assert got.headers["x-request-id"] == got.json()["id"]
    assert "queue=" in server.says(got.json()["id"])


def test_pages(server: Running) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/markdown.js", "text/javascript"),
        ("/marked.js", "text/javascript"),
        ("/status", "text/html"),
        ("/status.js", "text/javascript"),
        ("/icon.svg", "image/svg+xml"),
    ):
        got = server.http.get(path)
        assert got.status_code == 200
        assert got.headers["content-type"].partition(";")[0] == kind
        assert "default-src 'none'" in got.headers["content-security-policy"]
        assert "unsafe" not in got.headers["content-security-policy"]
        assert got.headers["x-content-type-options"] == "nosniff"
    for file in (Path(ingot.__file__).parent / "serve" / "page").iterdir():
        text = file.read_text()
        if file.name == "marked.js":  # as published; it writes http:// before addresses without a scheme
            assert hashlib.sha256(file.read_bytes()).hexdigest() == MARKED
        if file.stem == "marked":
            continue
        links = text.replace("http://www.w3.org/2000/svg", "")  # a name, not an address
        assert "http://" not in links and "https://" not in links, f"{file.name} asks others"
        assert "innerHTML" not in text and "onclick=" not in text and "style=" not in text


def test_health_and_ready(server: Running) -> None:
    assert server.http.get("/health").json() == {"status": "ok", "engine_restarts": 0, "engine_hangs": 0}
    assert server.http.get("/ready").json() == {"status": "ready"}
