"""/v1/embeddings of encoders and of language models: the vectors of the library, through the official client."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tokenizers

import ingot
from ingot.errors import RequestError
from tests import kept
from tests.kept import PICO
from tests.serve.harness import MODEL, Running, serving, start

torch: Any = pytest.importorskip("torch", reason="torch is not installed: there is no encoder to make")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed")

TEXTS = ["a quick brown fox", "the lazy dog", "dog"]


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random BERT with a tokenizer of words."""
    folder = tmp_path_factory.mktemp("encoder") / "tiny-bert"
    torch.manual_seed(1)
    sizes = {"vocab_size": 16, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.BertConfig(**sizes, intermediate_size=48, max_position_embeddings=40)
    transformers.BertModel(config).save_pretrained(folder)
    words = ["[UNK]", *dict.fromkeys(" ".join(TEXTS).split())]
    model = tokenizers.models.WordLevel({word: i for i, word in enumerate(words)}, "[UNK]")
    tokenizer = tokenizers.Tokenizer(model)
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


@pytest.fixture(scope="module")
def server(encoder: Path) -> Iterator[Running]:
    running = start(source=encoder)
    try:
        yield running
        assert running.end() == 0
    finally:
        running.close()


def test_vectors_are_those_of_the_library(server: Running, encoder: Path) -> None:
    embedder = ingot.Embedder(encoder)
    wanted = embedder.embed(TEXTS)
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        for kind in ("float", "base64"):  # the client asks for base64 by itself, and unpacks it
            words: Any = {} if kind == "base64" else {"encoding_format": kind}
            got = client.embeddings.create(model="tiny-bert", input=TEXTS, **words)
            assert [one.index for one in got.data] == [0, 1, 2]
            assert np.array_equal(np.array([one.embedding for one in got.data], np.float32), wanted)
            assert got.usage.prompt_tokens == got.usage.total_tokens == 8
        one = client.embeddings.create(model="tiny-bert", input=embedder.tokenizer.encode(TEXTS[2]))
        assert np.array_equal(np.array(one.data[0].embedding, np.float32), wanted[2])


@pytest.mark.parametrize(("given", "status", "code"), [
    ([99], 400, "request"), ([1] * 41, 400, "context_length_exceeded"),
    ("", 400, "request"), ([], 400, "invalid_value"),
])  # fmt: skip
def test_what_has_no_vector(server: Running, given: Any, status: int, code: str) -> None:
    got = server.post("/v1/embeddings", {"model": "tiny-bert", "input": given})
    assert (got.status_code, got.json()["error"]["code"]) == (status, code)


def test_an_encoder_writes_nothing(server: Running) -> None:
    model = server.http.get("/v1/models/tiny-bert").json()
    assert (model["generates"], model["chats"], model["embeds"]) == (False, False, True)
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for path, words in (("completions", {"prompt": "x"}), ("chat/completions", chat)):
        got = server.post(f"/v1/{path}", {"model": "tiny-bert"} | words)
        assert (got.status_code, got.json()["error"]["code"]) == (501, "unsupported")


# ---------------------------------------------------------------------------------------------------------------
# language models


@pytest.fixture(scope="module")
def decoder() -> Iterator[Running]:
    with serving() as running:
        yield running


def test_vectors_of_a_language_model(decoder: Running) -> None:
    with ingot.LLM(PICO) as llm:
        texts = ["import os", "def quicksort(items):\n    pass", ""]
        wanted = llm.embed(texts)
        ids = llm.tokenizer.encode(texts[0])
        tokens = sum(len(llm.tokenizer.encode(text)) for text in texts)
    with openai.OpenAI(base_url=f"{decoder.url}/v1", api_key="none", max_retries=0) as client:
        got = client.embeddings.create(model=MODEL, input=texts)
        assert np.array_equal(np.array([one.embedding for one in got.data], np.float32), wanted)
        assert got.usage.prompt_tokens == got.usage.total_tokens == tokens
        one = client.embeddings.create(model=MODEL, input=ids, encoding_format="float")
        assert np.array_equal(np.array(one.data[0].embedding, np.float32), wanted[0])


def test_vectors_beside_answers(decoder: Running) -> None:
    """Both are the same bits as alone, and the metrics count the tokens of both."""
    texts = [f"# {i}\nimport os\n" * (1 + i % 5) for i in range(24)]

    def vectors(i: int) -> list[list[float]]:
        got = decoder.post("/v1/embeddings", {"model": MODEL, "input": texts[i::6]})
        assert got.status_code == 200, got.text
        return [one["embedding"] for one in got.json()["data"]]

    def answer(i: int) -> str:
        return str(decoder.complete(texts[i], max_tokens=60)["choices"][0]["text"])

    before = decoder.metrics()
    alone = [vectors(i) for i in range(6)], [answer(i) for i in range(12)]
    middle = decoder.metrics()
    with ThreadPoolExecutor(18) as pool:
        found = [pool.submit(vectors, i) for i in range(6)], [pool.submit(answer, i) for i in range(12)]
        together = tuple([one.result() for one in many] for many in found)
    assert together == alone
    after = decoder.until(lambda m: not m["ingot_requests_running"] and not m["ingot_kv_blocks_used"])
    for name in ("ingot_prompt_tokens_total", "ingot_generated_tokens_total"):
        assert after[name] - middle[name] == middle[name] - before[name] > 0
    assert after["ingot_queue_depth"] == 0


def test_vectors_wait_in_the_same_queue() -> None:
    with serving("--max-running", 2, "--max-queue", 3) as server:
        got = server.post("/v1/embeddings", {"model": MODEL, "input": ["x"] * 6})
        assert (got.status_code, got.json()["error"]["code"]) == (400, "too_many_answers")
        assert got.json()["error"]["param"] == "input"
        assert len(server.post("/v1/embeddings", {"model": MODEL, "input": ["x"] * 5}).json()["data"]) == 5


def test_clients_that_leave_end_their_vectors() -> None:
    """They would be computed for minutes."""
    texts = [[i % 1000 for i in range(at, at + 100_000)] for at in range(3)]
    with serving("--kv-memory", "256MiB", source=kept.endless()) as server:
        steps = server.metrics()["ingot_steps_total"]
        leaving = server.send("/v1/embeddings", {"model": MODEL, "input": texts})
        server.until(lambda m: m["ingot_steps_total"] > steps + 1)
        leaving.close()
        seen = server.until(lambda m: not (m["ingot_requests_running"] or m["ingot_kv_blocks_used"]))
        assert seen["ingot_steps_total"] - steps < 3 * 100_000 / 512
        assert seen["ingot_client_disconnects_total"] == 1 and seen["ingot_prompt_tokens_total"] == 0
        assert server.complete(max_tokens=3)["usage"]["completion_tokens"] == 3


def test_an_encoder_ends_between_its_runs(encoder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    embedder = ingot.Embedder(encoder)
    monkeypatch.setattr("ingot.llm.embedding.MAX_RUN_TOKENS", 1)  # a text in every run
    whole, run = embedder.embed(["dog"] * 5), embedder._run

    def leaving(rows: Any) -> Any:
        if embedder.runs == 7:
            assert embedder.abort("mine") and not embedder.abort("another")
        return run(rows)

    monkeypatch.setattr(embedder, "_run", leaving)
    with pytest.raises(RequestError, match="aborted"):
        embedder.embed(["dog"] * 5, request_id="mine")
    assert embedder.runs == 8, "the run under way was the last"
    assert not embedder.abort("mine")
    assert np.array_equal(embedder.embed(["dog"] * 5, request_id="mine"), whole)
