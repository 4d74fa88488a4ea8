"""LLM.embed: against transformers' last hidden states, and the same bits whatever else runs and however it is cut."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import models
from ingot.backends.device import CPU, Device
from ingot.builder.compile import compile_network, header_of, make_tensors
from ingot.engine.session import Engine
from ingot.errors import CheckpointError, EngineFileError, RequestError, TooLongError, UserError
from ingot.llm.llm import LLM
from ingot.llm.plan import MemoryPlanner
from ingot.llm.vectors import POOLINGS, Pooler
from ingot.nn import Module, trace
from tests.kept import PICO
from tests.models import model_zoo, test_models_gpt
from tests.models.test_embedding import WORDS, add_tokenizer, describe, pooled

torch: Any = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")

# transformers compiles parts of StarCoder with what torch has deprecated
pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")

TOLERANCE = 3e-5  # the worst of these families is off by 5e-6
LLAMAS = (
    "llama", "mistral, sliding window", "qwen3", "gemma", "gemma2, low caps and its own scale",
    "gemma3, layer types and rotary settings", "qwen3_moe", "mixtral", "phi3",
)  # fmt: skip
GPTS = ("gpt2", "starcoder, multi-query", "gptj", "opt, as 350m", "phi", "bloom", "mpt", "falcon, as 40b", "starcoder2")
LENGTHS = (1, 7, 40, 19, 64)
WAIT = 120.0  # seconds, for what takes none


def texts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [[int(i) for i in rng.integers(3, 61, n)] for n in LENGTHS]


def make(name: str, folder: Path) -> Any:
    if name in model_zoo.CASES:
        return model_zoo.make(transformers, torch, *model_zoo.CASES[name], folder)
    return test_models_gpt.make(*test_models_gpt.CASES[name], folder)


def states(model: Any, ids: list[int]) -> np.ndarray:
    with torch.no_grad():
        return model.base_model(torch.tensor([ids])).last_hidden_state[0].numpy()  # type: ignore[no-any-return]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", LLAMAS + GPTS)
def test_same_vectors_as_transformers(name: str, tmp_path: Path) -> None:
    model = make(name, tmp_path)
    wanted = [states(model, ids) for ids in texts()]
    worst = 0.0
    with LLM(tmp_path, threads=1) as llm:
        for how in POOLINGS:
            want = np.stack([pooled(state, how) for state in wanted])
            got = llm.embed(texts(), how)
            assert got.shape == want.shape and got.dtype == np.float32
            worst = max(worst, float(np.abs(got - want).max()))
        np.testing.assert_array_equal(llm.embed(texts()), llm.embed(texts(), "last"))
        assert np.abs(np.linalg.norm(llm.embed(texts(), normalize=True), axis=1) - 1).max() < 1e-6
        assert llm.embed([]).shape == (0, got.shape[1])
    print(f"{name}: {worst:.2g}")
    assert worst < TOLERANCE
    assert np.abs(got - want.mean(0)).max() > 0.1, "vectors that hardly differ show no mistake"


@pytest.mark.parametrize("how", POOLINGS)
def test_pooling_in_pieces(how: str) -> None:
    rows = np.random.default_rng(2).standard_normal((50, 7)).astype(np.float32)
    whole = Pooler(how)
    whole.add(rows)
    np.testing.assert_allclose(whole.vector(), pooled(rows, how), atol=1e-6)
    for sizes in ([1] * 50, [3, 0, 20, 1, 26], [49, 1]):
        pooler, at = Pooler(how), 0
        for size in sizes:
            pooler.add(rows[at : at + size])
            at += size
        np.testing.assert_array_equal(pooler.vector(), whole.vector())


# ---------------------------------------------------------------------------------------------------------------
# the same bits


@pytest.fixture(scope="module")
def engine() -> Engine:
    return ingot.build(PICO, precision="bfloat16", report=False)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = np.random.default_rng(9)
    shared = [int(i) for i in rng.integers(1, 4000, 90)]
    return [shared[: 20 + 17 * i] + [int(i) for i in rng.integers(1, 4000, n)] for i, n in enumerate((1, 50, 3, 120))]


@pytest.fixture(scope="module")
def alone(engine: Engine, prompts: list[list[int]]) -> dict[str, np.ndarray]:
    """Each text in a step of its own, nothing found in the cache."""
    with LLM(engine, threads=1, prefix_cache=False) as llm:
        return {how: np.concatenate([llm.embed([ids], how) for ids in prompts]) for how in POOLINGS}


@pytest.mark.parametrize("prefix_cache", [False, True])
@pytest.mark.parametrize("tokens", [5, 24, 512])
def test_company_chunks_and_found_prefixes_change_no_bit(
    engine: Engine, prompts: list[list[int]], alone: dict[str, np.ndarray], tokens: int, prefix_cache: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(Device, "limits", replace(CPU.limits, max_step_tokens=tokens))
    with LLM(engine, threads=1, prefix_cache=prefix_cache, max_running=min(tokens, 8)) as llm, llm.stream(
        prompts[3][:60], max_tokens=300, ignore_end=True
    ) as stream:
        next(stream)
        for how, want in alone.items():
            for _ in range(2):
                np.testing.assert_array_equal(llm.embed(prompts, how), want)
                np.testing.assert_array_equal(llm.embed(prompts[::-1], how), want[::-1])
        found = llm.stats().tokens_found
    assert (found > 0) == prefix_cache


def test_several_threads_and_kinds_of_requests(
    engine: Engine, prompts: list[list[int]], alone: dict[str, np.ndarray]
) -> None:
    with LLM(engine, threads=2, max_running=6) as llm, ThreadPoolExecutor(6) as pool:
        want = llm.generate(prompts, max_tokens=9, ignore_end=True)
        score = llm.score(prompts[3], 32)
        again = [pool.submit(llm.embed, prompts, how) for how in POOLINGS]
        generated, scored = pool.submit(llm.generate, prompts, max_tokens=9), pool.submit(llm.score, prompts[3], 32)
        for how, one in zip(POOLINGS, again, strict=True):
            np.testing.assert_array_equal(one.result(WAIT), alone[how])
        assert [one.token_ids for one in generated.result(WAIT)] == [one.token_ids[:9] for one in want]
        assert scored.result(WAIT) == score


def test_states_that_nobody_asks_for_cost_no_call(engine: Engine) -> None:
    def calls(rows: int, logits: int) -> int:
        i32 = np.int32
        feeds = {
            "token_ids": np.array([5], i32), "positions": np.array([0], i32), "query_start": np.array([0, 1], i32),
            "context_len": np.array([1], i32), "block_table": np.array([[0]], i32), "slot": np.array([0], i32),
            "logit_rows": np.zeros(logits, i32), "hidden_rows": np.zeros(rows, i32),
        }  # fmt: skip
        return len(engine.session(1, kv_blocks=1).profile(feeds))

    assert calls(1, 1) == calls(0, 1) + 3 == calls(1, 0) + 3 == calls(0, 0) + 6


# ---------------------------------------------------------------------------------------------------------------
# held at a step


class Gate:
    """Holds the engine loop before each of its steps until it is opened."""

    def __init__(self, llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
        self.entered, self._open, self._run = threading.Event(), threading.Event(), llm._runner.run
        self.in_time = True
        monkeypatch.setattr(llm._runner, "run", self._held)

    def _held(self, step: Any) -> Any:
        self.entered.set()
        self.in_time &= self._open.wait(WAIT)
        return self._run(step)

    def open(self) -> None:
        self._open.set()


@contextmanager
def held(engine: Engine, monkeypatch: pytest.MonkeyPatch, **words: Any) -> Iterator[tuple[LLM, Gate]]:
    """An LLM of short steps that waits before the first one."""
    monkeypatch.setattr(Device, "limits", replace(CPU.limits, max_step_tokens=24))
    with LLM(engine, threads=1, max_running=8, **words) as llm:
        gate = Gate(llm, monkeypatch)
        try:
            yield llm, gate
        finally:
            gate.open()
        assert gate.in_time


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + WAIT
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.002)


@pytest.mark.parametrize("how", POOLINGS)
def test_preempted_and_begun_again(
    how: str, engine: Engine, prompts: list[list[int]], alone: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request of high priority takes the blocks of a text that is half computed."""
    block = 16 * engine.config["num_layers"] * 2 * 2 * 64 * 2
    words = {"kv_memory": 16 * block, "prefix_cache": False}
    with held(engine, monkeypatch, **words) as (llm, gate), ThreadPoolExecutor(2) as pool:
        vector = pool.submit(llm.embed, prompts[3], how)
        assert gate.entered.wait(WAIT)
        other = pool.submit(llm.generate, prompts[1], max_tokens=20, ignore_end=True, priority=9)
        until(lambda: not llm._loop._inbox.empty())
        gate.open()
        np.testing.assert_array_equal(vector.result(WAIT)[0], alone[how][3])
        assert other.result(WAIT).completion_tokens == 20
        assert llm.stats().preemptions == (0 if how == "cls" else 1)


def test_abort_ends_it_with_an_error(
    engine: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(engine, monkeypatch) as (llm, gate), ThreadPoolExecutor(2) as pool:
        vectors = pool.submit(llm.embed, [prompts[3], prompts[1]], request_id="mine")
        assert gate.entered.wait(WAIT)
        with pytest.raises(RequestError, match="'mine' is under way"):
            llm.embed(prompts[0], request_id="mine")
        assert llm.abort("mine") and not llm.abort("other")
        gate.open()
        with pytest.raises(RequestError, match="ended before its result was known"):
            vectors.result(WAIT)
        assert not llm.abort("mine")
        assert llm.embed(prompts[0], request_id="mine").shape == (1, 256)
        until(lambda: llm.stats().blocks_used == 0)
        llm._loop._scheduler.check_integrity()


def test_closing_ends_it_with_an_error(
    engine: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with held(engine, monkeypatch) as (llm, gate), ThreadPoolExecutor(2) as pool:
        vectors = pool.submit(llm.embed, prompts[3])
        assert gate.entered.wait(WAIT)
        closing = pool.submit(llm.close)
        until(lambda: not llm._loop._inbox.empty())
        gate.open()
        with pytest.raises(RequestError, match="ended before its result was known"):
            vectors.result(WAIT)
        closing.result(WAIT)
        with pytest.raises(RequestError, match="this LLM is closed"):
            llm.embed(prompts[3])


def test_aembed_leaves_the_event_loop_free(
    engine: Engine, prompts: list[list[int]], alone: dict[str, np.ndarray], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main(llm: LLM, gate: Gate) -> None:
        one = asyncio.create_task(llm.aembed(prompts, "mean"))
        dropped = asyncio.create_task(llm.aembed(prompts, request_id="dropped"))
        while not gate.entered.is_set():
            await asyncio.sleep(0.001)
        dropped.cancel()
        with pytest.raises(asyncio.CancelledError):
            await dropped
        assert not llm.abort("dropped")
        gate.open()  # by the event loop, which waits for nothing
        np.testing.assert_array_equal(await one, alone["mean"])
        with pytest.raises(RequestError, match="pooling must be one of mean, cls, last, max, not 'sum'"):
            await llm.aembed("x", "sum")

    with held(engine, monkeypatch) as (llm, gate):
        asyncio.run(main(llm, gate))
        until(lambda: llm.stats().blocks_used == 0)


def test_an_error_of_a_step_is_the_callers(
    engine: Engine, prompts: list[list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with LLM(engine, threads=1) as llm:
        with monkeypatch.context() as patch:
            patch.setattr(llm._runner, "run", lambda step: (_ for _ in ()).throw(UserError("no such luck")))
            for embed in (llm.embed, lambda ids: asyncio.run(llm.aembed(ids))):
                with pytest.raises(UserError, match="no such luck"):
                    embed(prompts)
        assert llm.embed(prompts).shape == (4, 256)


# ---------------------------------------------------------------------------------------------------------------
# what the files say, and errors


def describe_last(folder: Path, **files: dict[str, Any]) -> None:
    describe(folder, {"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "Normalize", **files)


def test_pooling_as_the_files_say(tmp_path: Path) -> None:
    """As in Qwen3-Embedding: the last token, which the tokenizer puts behind every text, scaled to length 1."""
    model = make("qwen3", tmp_path)
    add_tokenizer(tmp_path)
    settings = {"default_prompt_name": "q", "prompts": {"q": "the lazy dog "}}
    describe_last(tmp_path, sentence_bert_config={"max_seq_length": 9}, config_sentence_transformers=settings)
    ingot.build(tmp_path, report=False).save(tmp_path / "model.ingot")
    for source in (tmp_path, tmp_path / "model.ingot"):
        with LLM(source, threads=1) as llm:
            ids = [2, *(4 + WORDS.index(word) for word in ["the", "lazy", "dog", "quick", "brown", "fox"]), 3]
            want = states(model, ids)[-1]
            np.testing.assert_allclose(llm.embed("quick brown fox")[0], want / np.linalg.norm(want), atol=TOLERANCE)
            np.testing.assert_allclose(llm.embed(ids, normalize=False)[0], want, atol=TOLERANCE)
            long = " ".join(WORDS)
            with pytest.raises(TooLongError, match="has 24 tokens and the model reads 9"):
                llm.embed(long)
            cut = [2, *(4 + WORDS.index(word) for word in ["the", "lazy", "dog", *WORDS[:4]]), 3]
            np.testing.assert_array_equal(llm.embed(long, truncate=True), llm.embed([cut]))
            assert llm.generate(list(range(4, 30)), max_tokens=5, ignore_end=True).completion_tokens == 5


def test_modules_that_are_not_known_are_refused(tmp_path: Path) -> None:
    make("llama", tmp_path)
    describe(tmp_path, {"pooling_mode_mean_tokens": True}, "Dense")
    with pytest.raises(CheckpointError, match="Transformer, Pooling, Dense are not supported"):
        ingot.build(tmp_path)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"text": [[4], [4096]]}, "4096 is no token id: the model has 0 to 4095"),
        ({"text": [-1]}, "-1 is no token id"),
        ({"text": [[5], []]}, "without tokens"),
        ({"text": b"bytes"}, "sequence of integers"),
        ({"text": [[4]], "pooling": "sum"}, "pooling must be one of mean, cls, last, max, not 'sum'"),
        ({"text": [[4]], "priority": 101}, "priority must be an integer from -100 to 100"),
        ({"text": [1] * 1025}, "has 1025 tokens and the model reads 1024"),
        ({"text": "\ud800"}, "half of a surrogate pair"),
    ],
)
def test_what_cannot_be_embedded(words: dict[str, Any], message: str, engine: Engine) -> None:
    with LLM(engine, threads=1) as llm:
        with pytest.raises(RequestError, match=message):
            llm.embed(**words)
        assert llm.embed([1] * 1024).shape == (1, 256)  # a text may fill the context
        assert not llm._named


def test_more_than_the_cache_holds(engine: Engine) -> None:
    block = 16 * engine.config["num_layers"] * 2 * 2 * 64 * 2
    with LLM(engine, threads=1, kv_memory=2 * block) as llm:
        assert llm.embed([5] * 32).shape == (1, 256)
        with pytest.raises(TooLongError, match="room for 33 tokens"):
            llm.embed([[5], [5] * 33])


@pytest.mark.parametrize(
    "facts",
    [
        [], {"pooling": "sum"}, {"pooling": []}, {"normalize": 1}, {"prompt": None}, {"max_tokens": 0},
        {"max_tokens": True},
    ],
)  # fmt: skip
def test_headers_that_say_nonsense(facts: Any, engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(engine.header["config"], "embedding", facts)
    with pytest.raises(EngineFileError, match="embedding must say how texts become vectors"):
        LLM(engine)


class WithoutStates(Module):
    """A step as it was before hidden states were part of it."""

    def __init__(self, inner: Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(
        self, token_ids: Any, positions: Any, query_start: Any, context_len: Any, block_table: Any, slot: Any,
        logit_rows: Any,
    ) -> dict[str, Any]:  # fmt: skip
        step = (token_ids, positions, query_start, context_len, block_table, slot)
        return {"logits": self.inner(*step, logit_rows, logit_rows)["logits"]}


def test_an_engine_of_an_earlier_version_generates_and_says_why_it_does_not_embed(tmp_path: Path) -> None:
    make("llama", tmp_path)
    loaded = models.load(tmp_path)
    specs = {name: spec for name, spec in loaded.input_specs.items() if name != "hidden_rows"}
    network = trace(WithoutStates(loaded.module), specs)
    compiled = compile_network(network)
    config = {name: fact for name, fact in loaded.config.items() if name != "embedding"}
    weights = {f"inner.{name}": array for name, array in loaded.weights.items()}
    tensors = make_tensors(compiled.stored, weights)
    old = Engine.from_memory(header_of("llm", config, network, compiled), tensors)
    with LLM(old, threads=1) as llm, LLM(tmp_path, threads=1) as new:
        want = new.generate([5, 6, 7], max_tokens=9, ignore_end=True).token_ids
        assert llm.generate([5, 6, 7], max_tokens=9, ignore_end=True).token_ids == want
        assert llm.score([5, 6, 7]) == new.score([5, 6, 7])
        with pytest.raises(UserError, match="built by an earlier version"):
            llm.embed([5, 6, 7])


# ---------------------------------------------------------------------------------------------------------------
# models without a head


def make_body(name: str, folder: Path) -> Any:
    """Only the body of a model, as AutoModel saves it: names without "model." and no head."""
    body = make(name, folder / "whole").model
    body.save_pretrained(folder)
    return body


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["llama", "mistral, sliding window", "qwen2", "qwen3"])
def test_a_model_without_a_head_embeds_and_says_that_it_generates_nothing(name: str, tmp_path: Path) -> None:
    body = make_body(name, tmp_path)
    report = ingot.build(tmp_path, precision="bfloat16").report
    assert report is not None and [row.name for row in report.outputs] == ["hidden"]
    assert 0 < report.outputs[0].relative < 0.05
    engine = ingot.build(tmp_path, report=False)
    engine.save(tmp_path / "model.ingot")
    with LLM(tmp_path / "model.ingot", threads=1) as llm, LLM(tmp_path / "whole", threads=1) as whole:
        assert not llm.generates and whole.generates
        for how in POOLINGS:
            want = np.stack([pooled(states(body, ids), how) for ids in texts()])
            np.testing.assert_allclose(llm.embed(texts(), how), want, atol=TOLERANCE)
            np.testing.assert_array_equal(llm.embed(texts(), how), whole.embed(texts(), how))
        for call in (llm.generate, llm.stream, llm.score, lambda ids: asyncio.run(llm.agenerate(ids))):
            with pytest.raises(UserError, match="this model has no head: it embeds texts"):
                call([5, 6, 7])
    with pytest.raises(UserError, match="this model has no head"):
        MemoryPlanner(engine)


def test_a_body_whose_head_is_its_table_generates(tmp_path: Path) -> None:
    make_body("gemma", tmp_path)
    with LLM(tmp_path, threads=1) as llm, LLM(tmp_path / "whole", threads=1) as whole:
        assert llm.generates
        want = whole.generate([5, 6, 7], max_tokens=9, ignore_end=True).token_ids
        assert llm.generate([5, 6, 7], max_tokens=9, ignore_end=True).token_ids == want


def test_a_head_may_be_missing_only_where_the_files_are_for_embedding(tmp_path: Path) -> None:
    """As Qwen3-Embedding-8B: the architecture has a head, the checkpoint has none."""
    body = make_body("qwen3", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"architectures": ["Qwen3ForCausalLM"]}))
    with pytest.raises(CheckpointError, match="lm_head.weight"):
        ingot.build(tmp_path)
    describe_last(tmp_path)
    with LLM(tmp_path, threads=1) as llm:
        want = states(body, [5, 6, 7])[-1]
        np.testing.assert_allclose(llm.embed([5, 6, 7])[0], want / np.linalg.norm(want), atol=TOLERANCE)


def test_attention_to_tokens_to_come_is_refused(tmp_path: Path) -> None:
    make_body("qwen2", tmp_path)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"is_causal": False}))
    with pytest.raises(CheckpointError, match="is_causal: is false"):
        ingot.build(tmp_path)
