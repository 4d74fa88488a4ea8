"""An encoder behind /v1/embeddings: the vectors of the library, through the official client."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import tokenizers

import ingot
from tests.serve.harness import Running, start

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
    chat = {"messages": [{"role": "user", "content": "x"}]}
    for path, words in (("completions", {"prompt": "x"}), ("chat/completions", chat)):
        got = server.post(f"/v1/{path}", {"model": "tiny-bert"} | words)
        assert (got.status_code, got.json()["error"]["code"]) == (501, "unsupported")
