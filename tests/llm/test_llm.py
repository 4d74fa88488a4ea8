"""LLM on the real small model: against transformers, alone and in company, and under everything that ends a request."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ingot
from ingot.engine.session import Engine
from ingot.llm import assembly
from ingot.llm.llm import LLM
from tests.llm.ahead import Ahead
from tests.llm.drafters import Scripted
from tests.llm.pico import HELDOUT, PICO, block_bytes, idle, tiny


def test_greedy_tokens_are_those_of_transformers(llm: LLM, prompts: list[str]) -> None:
    """Each of our tokens is what transformers finds likeliest after what came before it; for some, its own `generate`.
    """
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(PICO, dtype=torch.float32).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(PICO)
    torch.set_num_threads(1)
    for i, (prompt, found) in enumerate(zip(prompts, llm.generate(prompts, max_tokens=64), strict=True)):
        ids = [0, *tokenizer.encode(prompt, add_special_tokens=False)]
        wanted = found.token_ids + ([0] if found.finish_reason == "stop" else [])
        whole = torch.tensor([ids + wanted[:-1]])
        with torch.no_grad():
            likeliest = model(whole).logits[0, len(ids) - 1 :].argmax(-1).tolist()
            assert likeliest == wanted
            if i % 7 == 0:
                prompt_ids = whole[:, : len(ids)]
                generated = model.generate(prompt_ids, max_new_tokens=64, do_sample=False, pad_token_id=0)
                assert generated[0, len(ids) :].tolist() == wanted
        assert found.prompt_tokens == len(ids)
        assert found.finish_reason == "stop" or len(wanted) == 64
        assert found.text == tokenizer.decode(found.token_ids)
        assert found.completion_tokens == len(found.token_ids) == len(found.logprobs)


@pytest.mark.parametrize(
    ("characters", "windows", "nats"), [(16_000, 8, 1.9740), pytest.param(None, 81, 1.9522, marks=pytest.mark.slow)]
)
def test_heldout_text_scores_as_it_should(llm: LLM, characters: int | None, windows: int, nats: float) -> None:
    """As transformers measures it; in bfloat16 within a hundredth."""
    text = HELDOUT.read_text()[:characters]
    score = llm.score(text, window=512)
    assert (score.tokens, score.windows) == (512 * windows, windows)
    assert score.nats_per_token == pytest.approx(nats, abs=5e-4)
    with LLM(PICO, precision="bfloat16", threads=1) as model:
        assert model.score(text, window=512).nats_per_token == pytest.approx(nats, abs=0.01)


WORDS = [
    {"max_tokens": 24},
    {"max_tokens": 24, "temperature": 0.9, "seed": 3},
    {"max_tokens": 24, "temperature": 1.2, "seed": 2**64 - 1, "top_k": 50, "top_p": 0.9, "min_p": 0.01},
]


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_company_changes_nothing(precision: str, prompts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Tokens and log probabilities with ==: alone, all at once, in small chunks, with preemptions, with two threads."""
    engine = ingot.build(PICO, precision=precision, report=False)
    short = [p[:200] for p in prompts[::2]]
    with LLM(engine, threads=1) as model:
        alone = [[model.generate(p, **w) for p in short] for w in WORDS]
        together = [model.generate(short, **w) for w in WORDS]
    with LLM(engine, threads=2) as model:
        two_threads = [model.generate(short, **w) for w in WORDS]
    with tiny(engine, monkeypatch, max_running=5) as model:
        chunked = [model.generate(short, **w) for w in WORDS]
    with tiny(engine, monkeypatch, kv_memory=13 * block_bytes(engine), max_running=8) as model:
        preempted = [model.generate(short, **w) for w in WORDS]
        assert model._loop._scheduler.preemptions
        assert idle(model)
    for other in (together, two_threads, chunked, preempted):
        for a, b in zip(alone, other, strict=True):
            assert [c.token_ids for c in a] == [c.token_ids for c in b]
            assert [c.logprobs for c in a] == [c.logprobs for c in b]
            assert [c.text for c in a] == [c.text for c in b]


DRAFTED: list[dict[str, Any]] = [
    *WORDS,
    {"max_tokens": 30, "temperature": 0.8, "seed": 5, "repetition_penalty": 1.3, "frequency_penalty": 0.7},
    {"max_tokens": 40, "stop": ["return", "\n\n"], "logprobs": 2},
    {"max_tokens": 12, "temperature": 1.0, "seed": 7, "n": 3, "bad_words": ["self"]},
]


def outcomes(model: LLM, prompts: list[str]) -> list[tuple[Any, ...]]:
    """What answers are: by words, then by prompt."""
    found = [c for words in DRAFTED for c in model.generate(prompts, **words)]
    return [(c.token_ids, c.logprobs, c.top_logprobs, c.text, c.finish_reason) for c in found]


@pytest.mark.parametrize("precision", ["bfloat16", pytest.param("float32", marks=pytest.mark.slow)])
def test_drafts_change_nothing(precision: str, prompts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Every word with ==, right, wrong and mixed drafts: with prefix hits, in small chunks, with preemptions."""
    engine = ingot.build(PICO, precision=precision, report=False)
    short = [p[:120] for p in prompts[::4]]
    with LLM(engine, threads=1) as model:
        plain = outcomes(model, short)
        answers = iter(plain)
        texts = []
        for words in DRAFTED:
            for prompt in short:
                texts += [model.tokenizer.encode(prompt) + next(answers)[0] for _ in range(words.get("n", 1))]
        steps = model.stats().steps
    for script in ([True], [False], [True, True, True, False, True, False]):
        drafter = Scripted(texts, script, 4096)
        with LLM(engine, threads=1) as model:
            model._loop._drafter = drafter
            assert outcomes(model, short) == plain
            cache, taken = model._loop._scheduler.cache, model.stats().steps
            assert cache.tokens_found and drafter.asked
            assert taken == steps if script == [False] else taken < steps
            assert idle(model)
    with tiny(engine, monkeypatch, kv_memory=13 * block_bytes(engine), max_running=8) as model:
        model._loop._drafter = Scripted(texts, [True] * 9 + [False], 4096, 5)
        assert outcomes(model, short) == plain
        assert model._loop._scheduler.preemptions
        assert idle(model)


def test_a_step_behind_changes_nothing(engine: Engine, prompts: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """With a runner that tells what came of a step when the next one has run."""
    short = [p[:120] for p in prompts[::4]]
    with LLM(engine, threads=1) as model:
        plain = outcomes(model, short)
        score = model.score(HELDOUT.read_text()[:2000], window=100)
        vectors = model.embed(short, pooling="mean")
    monkeypatch.setattr(assembly, "Runner", Ahead)
    for words in ({}, {"kv_memory": 13 * block_bytes(engine), "max_running": 8}):
        with tiny(engine, monkeypatch, **words) as model:
            assert outcomes(model, short) == plain
            if not words:
                assert model.score(HELDOUT.read_text()[:2000], window=100) == score
                np.testing.assert_array_equal(model.embed(short, pooling="mean"), vectors)
            assert idle(model)
            assert model._loop._scheduler.preemptions or not words
    tokens = plain[0][0]
    with LLM(engine, threads=1) as model:  # the end leaves a step under way, whose result nobody wants any more
        done = model.generate(short[0], max_tokens=24, stop_ids=[tokens[9]])
        assert done.token_ids == tokens[: tokens.index(tokens[9])]
        assert idle(model)


def test_scores_do_not_depend_on_company_either(engine: Engine, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    text = HELDOUT.read_text()[:4000]
    alone = llm.score(text, window=100)
    with tiny(engine, monkeypatch, max_running=6) as model:
        stream = model.stream("import os", max_tokens=200, ignore_end=True)
        assert model.score(text, window=100) == alone
        stream.close()


def test_logprobs_are_those_of_the_scoring_pass(llm: LLM) -> None:
    done = llm.generate("def f(x):\n", max_tokens=20, temperature=1.0, seed=1, ignore_end=True)
    prompt = llm.tokenizer.encode("def f(x):\n")
    ids = prompt + done.token_ids
    before = llm.score(prompt)
    whole = llm.score(ids)
    generated = -(whole.nats_per_token * whole.tokens - before.nats_per_token * before.tokens)
    assert generated == pytest.approx(sum(done.logprobs), abs=1e-4)
