"""LLM on the real small model: against transformers, alone and in company, and under everything that ends a request."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import gc
import itertools
import json
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.backends.device import CPU, Device
from ingot.engine.session import Engine
from ingot.errors import EngineFileError, IngotError, RequestError, TooLongError, UserError, ValueFault
from ingot.llm import assembly
from ingot.llm.llm import LLM
from ingot.llm.stream import Completion
from tests.llm.ahead import Ahead
from tests.llm.drafters import Scripted

PICO = Path(__file__).parents[2] / "models" / "pico-python"
HELDOUT = PICO / "heldout.txt"


@pytest.fixture(scope="module")
def engine() -> Engine:
    """The model in float32, built in memory."""
    return ingot.build(PICO, precision="float32", report=False)


@pytest.fixture(scope="module")
def llm(engine: Engine) -> Iterator[LLM]:
    # One thread: these tests are about what is computed, and other processes may keep a second one waiting.
    with LLM(engine, threads=1) as model:
        yield model


@pytest.fixture(scope="module")
def prompts() -> list[str]:
    """Twenty beginnings of very different lengths, out of the held-out text."""
    lines = [line for line in HELDOUT.read_text().splitlines() if len(line.strip()) > 12]
    text = HELDOUT.read_text()
    return lines[:: len(lines) // 16][:16] + [text[1000:1400], text[5000:6200], "é😀", "x"]


def tiny(engine: Engine, monkeypatch: pytest.MonkeyPatch, **words: Any) -> LLM:
    """An LLM whose steps hold few tokens, so that prompts come in chunks."""
    monkeypatch.setattr(Device, "limits", replace(CPU.limits, max_step_tokens=24))
    return LLM(engine, threads=1, **words)


def block_bytes(engine: Engine) -> int:
    """Of one block of the cache: 16 tokens, keys and values, 8 layers, 2 heads of 64."""
    return 16 * 2 * 8 * 2 * 64 * (4 if engine.config["precision"] == "float32" else 2)


def idle(model: LLM) -> bool:
    """Whether every block is free, once the loop has had time to see what was asked of it."""
    scheduler = model._loop._scheduler
    for _ in range(2000):
        if not scheduler and scheduler.cache.num_free == scheduler.cache.num_blocks:
            scheduler.check_integrity()
            return True
        time.sleep(0.005)
    return False


# ---------------------------------------------------------------------------------------------------------------
# numbers


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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
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


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
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


# -----------------------------------------------------------------------------------------------------------------
# words


def test_a_seed_decides_and_no_seed_varies(llm: LLM) -> None:
    words: dict[str, Any] = {"max_tokens": 24, "temperature": 1.0}
    first, second = (llm.generate("import", seed=5, **words).token_ids for _ in range(2))
    assert first == second
    assert len({tuple(llm.generate("import", **words).token_ids) for _ in range(4)}) > 1


def test_token_ids_are_taken_as_they_are(llm: LLM) -> None:
    ids = llm.tokenizer.encode("import os")
    assert ids[0] == 0
    text = llm.generate("import os", max_tokens=8)
    assert llm.generate(ids, max_tokens=8).token_ids == text.token_ids
    assert llm.generate(np.array(ids), max_tokens=8).token_ids == text.token_ids  # type: ignore[call-overload]
    for both in ([ids, "import os"], [np.array(ids), tuple(ids)]):
        assert [c.token_ids for c in llm.generate(both, max_tokens=8)] == [text.token_ids] * 2  # type: ignore[arg-type]
    assert llm.generate(ids[1:], max_tokens=8).prompt_tokens == len(ids) - 1


def test_stop_strings_and_ids(llm: LLM) -> None:
    free = llm.generate("def f(x):", max_tokens=40)
    stop = free.text[10:14]
    done = llm.generate("def f(x):", max_tokens=40, stop=[stop, "never this"])
    assert (done.text, done.finish_reason) == (free.text[: free.text.index(stop)], "stop")
    assert done.token_ids == free.token_ids[: len(done.token_ids)]
    assert stop in llm.tokenizer.decode(done.token_ids)
    assert stop not in llm.tokenizer.decode(done.token_ids[:-1])
    end = free.token_ids[7]
    done = llm.generate("def f(x):", max_tokens=40, stop_ids=[end])
    assert done.token_ids == free.token_ids[: free.token_ids.index(end)]
    assert done.finish_reason == "stop"
    assert idle(llm)


def test_the_context_ends_a_request(engine: Engine) -> None:
    with LLM(engine, threads=1, context_length=20) as model:
        done = model.generate([0, 5, 6], max_tokens=1000, ignore_end=True)
        assert (len(done.token_ids), done.finish_reason) == (17, "length")
        assert model.generate([0] * 19, max_tokens=5, ignore_end=True).completion_tokens == 1
        with pytest.raises(TooLongError, match="20 tokens and the context holds 20"):
            model.generate([0] * 20)
    with pytest.raises(RequestError, match="context_length"):
        LLM(engine, context_length=2000)


@pytest.mark.parametrize(
    ("prompt", "words", "match"),
    [
        ([], {}, "empty"), ([4096], {}, "4096 is no token id"), ([-1], {}, "-1"), ([0.5], {}, "integers"),
        (b"abc", {}, "integers"),
        (["a", 5], {}, "sequence of integers"), ("a\ud800", {}, "surrogate"), ("x", {"temperature": -1}, "temperature"),
        (None, {}, "sequence of integers"), ("x", {"max_new_tokens": 1}, "max_new_tokens: did you mean max_tokens"),
        ("x", {"heat": 1}, "unknown sampling word"), ("x", {"params": {}}, "SamplingParams"),
        ("x " * 3000, {}, "context"), ([0] * 1024, {}, "context"),
    ],
    ids=lambda v: repr(v)[:20],
)  # fmt: skip
def test_bad_requests_are_refused(llm: LLM, prompt: Any, words: dict[str, Any], match: str) -> None:
    with pytest.raises(RequestError, match=match):
        llm.generate(prompt, **words)
    with pytest.raises(RequestError, match=match):
        llm.stream(prompt, **words)
    assert llm.generate("x", max_tokens=2).completion_tokens == 2


def test_sampling_params_may_stand_behind_the_prompt(llm: LLM) -> None:
    """As the users of other libraries write it."""
    params = ingot.SamplingParams(max_tokens=4, temperature=0.8, seed=3)
    wanted = llm.generate("import os", max_tokens=4, temperature=0.8, seed=3).token_ids
    assert llm.generate("import os", params).token_ids == llm.generate(["import os"], params)[0].token_ids == wanted
    stream = llm.stream("import os", params)
    assert "".join(piece.text for piece in stream) == llm.generate("import os", params=params).text
    with pytest.raises(RequestError, match="params takes a SamplingParams, and no other"):
        llm.generate("import os", params, max_tokens=5)


def test_bad_scores_are_refused(llm: LLM) -> None:
    for text, window, match in (
        ("", None, "two tokens"),
        ([5], None, "two tokens"),
        ("abc def", 500, "too few"),
        ("abc def", 0, "window"),
        ("abc def", 2000, "window"),
        ([5, 9999], None, "token id"),
    ):
        with pytest.raises(RequestError, match=match):
            llm.score(text, window)  # type: ignore[arg-type]


# ------------------------------------------------------------------------------------------------- streams, threads,
# ends


def test_pieces_add_up(llm: LLM) -> None:
    for words in ({}, {"stop": ["return"]}, {"temperature": 1.0, "seed": 1}):
        whole = llm.generate("def quicksort(items):\n", max_tokens=60, **words)  # type: ignore[arg-type]
        with llm.stream("def quicksort(items):\n", max_tokens=60, **words) as stream:  # type: ignore[arg-type]
            pieces = list(stream)
        assert "".join(p.text for p in pieces) == whole.text == stream.completion.text
        assert [id for p in pieces for id in p.token_ids] == whole.token_ids
        assert [p.finish_reason for p in pieces[:-1]] == [None] * (len(pieces) - 1)
        assert pieces[-1].finish_reason == whole.finish_reason == stream.completion.finish_reason
    assert idle(llm)


def test_leaving_a_stream_frees_its_blocks(llm: LLM) -> None:
    for leave in ("close", "drop", "with", "error"):
        stream = llm.stream("import os", max_tokens=900, ignore_end=True)
        next(stream)
        if leave == "close":
            stream.close()
            assert list(stream) == []
            assert stream.completion.finish_reason == "abort"
        elif leave == "drop":
            del stream
            gc.collect()
        elif leave == "with":
            with stream:
                next(stream)
        else:
            with pytest.raises(ZeroDivisionError), stream:
                _ = 1 / 0
        assert idle(llm), leave


def test_abort_by_name(llm: LLM) -> None:
    stream = llm.stream("import os", max_tokens=900, ignore_end=True, request_id="one")
    next(stream)
    with pytest.raises(RequestError, match="'one' is under way"):
        llm.generate("x", request_id="one")
    results: list[Any] = []
    thread = threading.Thread(
        target=lambda: results.append(llm.generate(["a", "b"], max_tokens=900, ignore_end=True, request_id="two"))
    )
    thread.start()
    while not llm.abort("two"):
        time.sleep(0.001)
    thread.join()
    assert [c.finish_reason for c in results[0]] == ["abort", "abort"]
    assert llm.abort("one")
    assert list(stream)[-1].finish_reason == "abort"
    assert not llm.abort("one")
    assert not llm.abort("never")
    assert llm.generate("x", request_id="one", max_tokens=1).completion_tokens == 1
    assert idle(llm)


def test_many_threads_at_once(llm: LLM, prompts: list[str]) -> None:
    wanted = [c.token_ids for c in llm.generate(prompts[:8], max_tokens=16)]
    found: dict[int, list[int]] = {}

    def work(i: int) -> None:
        if i % 3 == 2:
            with llm.stream(prompts[i % 8], max_tokens=300) as stream:
                next(stream)  # and leave
        elif i % 3 == 1:
            pieces = list(llm.stream(prompts[i % 8], max_tokens=16))
            found[i] = [id for piece in pieces for id in piece.token_ids]
        else:
            found[i] = llm.generate(prompts[i % 8], max_tokens=16).token_ids

    threads = [threading.Thread(target=work, args=(i,)) for i in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 16
    assert all(ids == wanted[i % 8] for i, ids in found.items())
    assert idle(llm)


@pytest.mark.parametrize("error", [ValueFault, MemoryError, RuntimeError])
def test_an_error_ends_the_requests_of_its_step_only(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    runner, real = llm._runner, llm._runner.run
    steps = itertools.count()

    def failing(step: Any) -> Any:
        if next(steps) == 3:
            raise error("on purpose")
        return real(step)

    monkeypatch.setattr(runner, "run", failing)
    message = {ValueFault: "^on purpose", MemoryError: "out of memory", RuntimeError: "RuntimeError: on purpose"}[error]
    with pytest.raises(IngotError, match=message):
        llm.generate(["import os", "def f"], max_tokens=50, ignore_end=True)
    assert llm.generate("import os", max_tokens=4, ignore_end=True).completion_tokens == 4
    steps = itertools.count()
    with pytest.raises(IngotError, match=message):
        list(llm.stream("import os", max_tokens=50, ignore_end=True))
    assert idle(llm)


def test_closing_answers_everybody(engine: Engine) -> None:
    model = LLM(engine, threads=1)
    stream = model.stream("import os", max_tokens=900, ignore_end=True)
    next(stream)
    results: list[Any] = []
    thread = threading.Thread(target=lambda: results.append(model.generate("a", max_tokens=900, ignore_end=True)))
    thread.start()
    while len(model._loop._scheduler.running) < 2:
        time.sleep(0.001)
    model.close()
    model.close()
    thread.join()
    assert results[0].finish_reason == "abort"
    assert list(stream)[-1].finish_reason == "abort"
    with pytest.raises(RequestError, match="closed"):
        model.generate("x")
    with pytest.raises(RequestError, match="closed"):
        model.score("x y z")


def test_a_fault_in_the_loop_itself_leaves_nobody_waiting(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    model = LLM(engine, threads=1)
    monkeypatch.setattr(model._loop._scheduler, "plan", lambda drafts: 1 / 0)
    with pytest.raises(IngotError, match="the engine loop has ended: ZeroDivisionError"):
        model.generate(["a", "b"])
    with pytest.raises(RequestError, match="closed"):
        model.generate("x")


def test_a_dropped_model_ends_its_thread(engine: Engine) -> None:
    model = LLM(engine, threads=1)
    thread = model._loop._thread
    model.generate("x", max_tokens=1)
    del model
    gc.collect()
    thread.join(30)
    assert not thread.is_alive()


# ---------------------------------------------------------------------------------------------------------------
# sources


def test_an_engine_file_gives_what_the_directory_gives(engine: Engine, llm: LLM, tmp_path: Path) -> None:
    path = tmp_path / "pico.ingot"
    engine.save(path)
    wanted = llm.generate("class A:", max_tokens=20)
    with LLM(path, precision="float32", weights="same", threads=1) as model:
        assert model.generate("class A:", max_tokens=20).token_ids == wanted.token_ids
    with pytest.raises(UserError, match=r"'bfloat16' conflicts with .*'float32'"):
        LLM(path, precision="bfloat16")
    with pytest.raises(UserError, match="int8"):
        LLM(path, weights="int8")


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"vocab_size": 0}, "vocab_size"), ({"context_length": "many"}, "context_length"), ({"add_bos": 1}, "add_bos"),
        ({"bos_token_id": 99999}, "bos_token_id"), ({"eos_token_ids": None}, "eos_token_ids"),
        ({"limits": []}, "max_step_tokens"), ({"vocab_size": True, "add_bos": None}, "vocab_size.*add_bos"),
    ],
    ids=str,
)  # fmt: skip
def test_an_engine_that_lies_about_its_model(engine: Engine, change: dict[str, Any], match: str) -> None:
    header = {**engine.header, "config": {**engine.header["config"], **change}}
    with pytest.raises(EngineFileError, match=match):
        LLM(Engine.from_memory(header, {n: engine.tensor(n) for n in header["weights"]}))


def test_sources_that_are_none(tmp_path: Path, engine: Engine) -> None:
    with pytest.raises(UserError, match="download"):
        LLM("nobody/no-model")
    with pytest.raises(UserError, match="cuda"):
        LLM(engine, device="cuda")
    for words, match in (
        ({"kv_memory": 5}, "kv_memory"),
        ({"kv_memory": "2G"}, "kv_memory"),
        ({"max_running": 0}, "max_running"),
    ):
        with pytest.raises(UserError, match=match):
            LLM(engine, **words)  # type: ignore[arg-type]


def test_a_request_beyond_the_whole_cache_is_refused(engine: Engine) -> None:
    with LLM(engine, threads=1, kv_memory=4 * block_bytes(engine)) as model:
        assert model._loop._scheduler.cache.num_blocks == 4
        with pytest.raises(TooLongError, match="kv_memory"):
            model.generate("x", max_tokens=64)
        assert model.generate("x", max_tokens=62, ignore_end=True).completion_tokens == 62


def test_without_a_tokenizer_ids_still_work(engine: Engine) -> None:
    header = {**engine.header, "files": {}}
    names = [n for n in header["weights"] if not n.startswith("file.")]
    header["weights"] = {n: header["weights"][n] for n in names}
    bare = Engine.from_memory(header, {n: engine.tensor(n) for n in names})
    with LLM(bare, threads=1) as model:
        done = model.generate([0, 5, 6], max_tokens=4, ignore_end=True)
        assert (done.text, done.completion_tokens) == ("", 4)
        for bad in ("x", ["x"]):
            with pytest.raises(UserError, match=r"without tokenizer\.json"):
                model.generate(bad)  # type: ignore[call-overload]
        with pytest.raises(UserError, match=r"without tokenizer\.json"):
            model.generate([5], stop="x")


def test_n_answers_share_their_prompt(llm: LLM) -> None:
    """The prompt is computed once; answer i is what seed + i gives alone."""
    prompt = list(range(40, 90))
    cache = llm._loop._scheduler.cache
    cache.forget()
    before = cache.tokens_found
    answers = llm.generate(prompt, n=3, temperature=1.0, seed=11, max_tokens=8)
    assert isinstance(answers, list)
    assert cache.tokens_found - before == 2 * 48
    assert [a.cached_tokens for a in answers] == [0, 48, 48]
    for i, answer in enumerate(answers):
        alone = llm.generate(prompt, temperature=1.0, seed=11 + i, max_tokens=8)
        assert (answer.token_ids, answer.logprobs) == (alone.token_ids, alone.logprobs)
    both = llm.generate([prompt, prompt[:5]], n=2, max_tokens=3)
    assert [c.prompt_tokens for c in both] == [50, 50, 5, 5]
    with pytest.raises(RequestError, match="one answer, not of n = 2"):
        llm.stream(prompt, n=2)


def test_top_logprobs_penalties_and_bad_words(llm: LLM) -> None:
    plain = llm.generate("def add(a, b):", max_tokens=12, logprobs=4)
    assert all(len(top) == 4 for top in plain.top_logprobs)
    for token, logprob, top in zip(plain.token_ids, plain.logprobs, plain.top_logprobs, strict=True):
        assert next(iter(top)) == token and top[token] == logprob
    with llm.stream("def add(a, b):", max_tokens=12, logprobs=4) as stream:
        pieces = list(stream)
    assert [top for piece in pieces for top in piece.top_logprobs] == plain.top_logprobs
    assert [value for piece in pieces for value in piece.logprobs] == plain.logprobs
    banned = llm.generate("def add(a, b):", max_tokens=12, bad_words=[[plain.token_ids[0]]])
    assert plain.token_ids[0] not in banned.token_ids
    assert "return" in llm.generate("def add(a, b):", max_tokens=20).text
    assert "return" not in llm.generate("def add(a, b):", max_tokens=20, bad_words=["return"]).text
    biased = llm.generate("x", max_tokens=3, logit_bias={77: 100.0}, ignore_end=True)
    assert biased.token_ids == [77, 77, 77]
    spread = llm.generate("x", max_tokens=40, logit_bias={77: 3.0}, frequency_penalty=2.0, presence_penalty=2.0)
    assert max(spread.token_ids.count(t) for t in spread.token_ids) < 20
    with pytest.raises(RequestError, match="the model has tokens 0 to"):
        llm.generate("x", logit_bias={10**6: 1.0})
    with pytest.raises(RequestError, match="priority must be"):
        llm.generate("x", priority=1000)


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


def test_async_streams_agree_and_close(llm: LLM, prompts: list[str]) -> None:
    """Many at once in one event loop; cancelling ends the request and frees its blocks."""

    async def one(prompt: str) -> str:
        return "".join([piece.text async for piece in llm.astream(prompt, max_tokens=9)])

    async def main() -> list[str]:
        texts = await asyncio.gather(*map(one, prompts))
        task = asyncio.create_task(llm.agenerate(prompts[0], max_tokens=100, ignore_end=True))
        await asyncio.sleep(0.05)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        stream = llm.astream(prompts[1], max_tokens=100, ignore_end=True)
        await anext(stream)
        await stream.aclose()
        with pytest.raises(StopAsyncIteration):
            await anext(stream)
        return list(texts)

    texts = asyncio.run(main())
    assert texts == [llm.generate(prompt, max_tokens=9).text for prompt in prompts]
    assert idle(llm)
    with pytest.raises(RequestError, match="open 2 streams"):
        asyncio.run(llm.agenerate("x", n=2))
