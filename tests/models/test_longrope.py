"""Models with two rotary tables (longrope). A request turns by the one or the other by its own length alone, at every
length as transformers has it. One that outgrows the first is computed again by the second."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import models
from ingot.engine.session import Engine
from ingot.errors import EngineFileError
from tests.models.model_zoo import LONGROPE, PAD, Runner, log_softmax, make

torch: Any = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")

SHORT = 24
SETTINGS = PAD | {"original_max_position_embeddings": SHORT, "rope_parameters": LONGROPE}
IDS = [int(i) for i in np.random.default_rng(8).integers(3, 61, 60)]
PROMPTS = [IDS[:5], IDS[:20], IDS[:23], IDS[:24], IDS[:25], IDS[:40], IDS[30:52]]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Engine]:
    folder = tmp_path_factory.mktemp("phi3")
    theirs = make(transformers, torch, "Phi3", SETTINGS, folder)
    return theirs, ingot.build(folder, report=False)


def theirs(model: Any, ids: list[int]) -> np.ndarray:
    """Log-probabilities, every token of these computed at once."""
    with torch.no_grad():
        return log_softmax(model(torch.tensor([ids]), use_cache=False).logits[0].numpy())


@pytest.fixture(scope="module")
def wanted(model: tuple[Any, Engine]) -> list[list[int]]:
    """Greedy continuations of the prompts by 12 tokens, without any cache."""
    found = []
    for prompt in PROMPTS:
        ids = list(prompt)
        for _ in range(12):
            ids.append(int(theirs(model[0], ids)[-1].argmax()))
        found.append(ids[len(prompt) :])
    return found


@pytest.fixture
def llm(model: tuple[Any, Engine]) -> Iterator[ingot.LLM]:
    with ingot.LLM(model[1], threads=1) as made:
        yield made


def test_the_tables_make_a_difference(model: tuple[Any, Engine]) -> None:
    at_once = theirs(model[0], IDS[: SHORT + 1])[:SHORT]
    assert np.abs(at_once - theirs(model[0], IDS[:SHORT])).max() > 0.1


def test_greedy_tokens_at_every_length(llm: ingot.LLM, wanted: list[list[int]]) -> None:
    alone = [llm.generate(prompt, max_tokens=12, ignore_end=True) for prompt in PROMPTS]
    assert [c.token_ids for c in alone] == wanted
    together = llm.generate(PROMPTS, max_tokens=12, ignore_end=True)
    again = llm.generate(PROMPTS, max_tokens=12, ignore_end=True)  # every prompt is in the cache by now
    for one, other, last in zip(alone, together, again, strict=True):
        assert one.logprobs == other.logprobs == last.logprobs  # the same bits in company and from the cache
        assert one.token_ids == other.token_ids == last.token_ids
    assert llm._loop._scheduler.cache.tokens_found and not llm.stats().preemptions
    llm._loop._scheduler.check_integrity()


def test_log_probabilities_across_the_border(model: tuple[Any, Engine], llm: ingot.LLM) -> None:
    done = llm.generate(IDS[:20], max_tokens=12, ignore_end=True)
    ids = [*IDS[:20], *done.token_ids]
    for at, (token, logprob) in enumerate(zip(done.token_ids, done.logprobs, strict=True), 20):
        assert logprob == pytest.approx(theirs(model[0], ids[:at])[-1, token], abs=1e-4)


@pytest.mark.parametrize("length", [SHORT - 1, SHORT, SHORT + 1, 50])
def test_scores(model: tuple[Any, Engine], llm: ingot.LLM, length: int) -> None:
    rows = theirs(model[0], IDS[:length])
    mean = -np.mean([rows[i, IDS[i + 1]] for i in range(length)])
    assert llm.score(IDS[: length + 1], window=length).nats_per_token == pytest.approx(mean, abs=1e-4)


def test_with_preemption(model: tuple[Any, Engine], wanted: list[list[int]]) -> None:
    """A cache too small for them all."""
    engine = model[1]
    block = 16 * sum(2 * s["heads"] * s["head_dim"] for s in engine.config["kv"]) * 4
    with ingot.LLM(engine, threads=1, kv_memory=block * 6) as llm:
        done = llm.generate(PROMPTS, max_tokens=12, ignore_end=True)
        assert [c.token_ids for c in done] == wanted
        scheduler = llm._loop._scheduler
        scheduler.check_integrity()
        assert scheduler.preemptions


def test_a_context_within_the_first_training(model: tuple[Any, Engine], wanted: list[list[int]]) -> None:
    with ingot.LLM(model[1], threads=1, context_length=SHORT) as llm:
        assert llm.generate(PROMPTS[0], max_tokens=12, ignore_end=True).token_ids == wanted[0]
        assert llm.generate(PROMPTS[1], max_tokens=12, ignore_end=True).token_ids == wanted[1][:4]


def test_aborted_while_it_is_computed_again(llm: ingot.LLM, wanted: list[list[int]]) -> None:
    stream = llm.stream(IDS[:20], max_tokens=40, ignore_end=True)
    for number, _ in enumerate(stream):
        if number == 4:
            break
    stream.close()
    assert llm.generate(PROMPTS[1], max_tokens=12, ignore_end=True).token_ids == wanted[1]


def test_the_report_of_a_build(tmp_path: Path) -> None:
    make(transformers, torch, "Phi3", SETTINGS, tmp_path)
    engine = ingot.build(tmp_path, precision="bfloat16")
    assert engine.report.outputs[0].relative < 0.05
    engine.save(tmp_path / "phi3.ingot")
    again = ingot.load(tmp_path / "phi3.ingot")
    assert again.config["short_length"] == SHORT
    again.header["config"]["short_length"] = 0
    with pytest.raises(EngineFileError, match="short_length must be an integer from 1"):
        ingot.LLM(again)


@pytest.mark.parametrize("kind", ["su", "yarn", "longrope"])
def test_older_spellings(kind: str, tmp_path: Path) -> None:
    """config.json as Phi-3's publishers wrote it over time, read by both."""
    make(transformers, torch, "Phi3", SETTINGS, tmp_path)
    path = tmp_path / "config.json"
    values = json.loads(path.read_text())
    inner = values.pop("rope_parameters")
    scaling = {"type": kind, "short_factor": inner["short_factor"], "long_factor": inner["long_factor"]}
    path.write_text(json.dumps(values | {"rope_scaling": scaling, "rope_theta": 10000.0}))
    loaded = models.load(tmp_path)
    if kind == "su":  # which transformers 5 no longer completes from beside rope_scaling
        scaling["original_max_position_embeddings"] = SHORT
        path.write_text(json.dumps(values | {"rope_scaling": scaling, "rope_theta": 10000.0}))
    read = transformers.Phi3ForCausalLM.from_pretrained(tmp_path, attn_implementation="eager").eval()
    for length in (SHORT, SHORT + 1):
        got = log_softmax(Runner(loaded).run(IDS[:length], [length]))
        np.testing.assert_allclose(got, theirs(read, IDS[:length]), atol=1e-4)


@pytest.mark.parametrize("length", [SHORT, SHORT + 1])
def test_vectors(model: tuple[Any, Engine], llm: ingot.LLM, length: int) -> None:
    with torch.no_grad():
        states = model[0].model(torch.tensor([IDS[:length]]), use_cache=False).last_hidden_state[0].numpy()
    np.testing.assert_allclose(llm.embed(IDS[:length], "last")[0], states[-1], atol=1e-4)
