"""What an LLM is made of: engine files, engines that lie, and what a model lacks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ingot.engine.session import Engine
from ingot.errors import EngineFileError, TooLongError, UserError
from ingot.llm.llm import LLM
from tests.gpu import GPU
from tests.llm.pico import block_bytes


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


def test_sources_that_are_none(engine: Engine) -> None:
    with pytest.raises(UserError, match="download"):
        LLM("nobody/no-model")
    for words, match in (
        ({"kv_memory": 5}, "kv_memory"),
        ({"kv_memory": "2G"}, "kv_memory"),
        ({"max_running": 0}, "max_running"),
    ):
        with pytest.raises(UserError, match=match):
            LLM(engine, **words)  # type: ignore[arg-type]


@pytest.mark.skipif(GPU, reason="a GPU is here")
def test_a_device_that_is_not_here(engine: Engine) -> None:
    with pytest.raises(UserError, match="cuda"):
        LLM(engine, device="cuda")


def test_a_request_beyond_the_whole_cache_is_refused(engine: Engine) -> None:
    with LLM(engine, threads=1, kv_memory=4 * block_bytes(engine)) as model:
        assert model._loop._scheduler.cache.num_blocks == 4
        with pytest.raises(TooLongError, match="kv_memory"):
            model.generate("x", max_tokens=64)
        assert model.generate("x", max_tokens=62, ignore_end=True).completion_tokens == 62


def test_a_context_that_no_memory_holds(engine: Engine) -> None:
    """A model may say that its context is 2³¹ − 1: what a step needs is sized by the cache, not by that."""
    header = {**engine.header, "config": {**engine.header["config"], "context_length": 2**31 - 1}}
    large = Engine.from_memory(header, {n: engine.tensor(n) for n in header["weights"]})
    with LLM(large, kv_memory=4 * block_bytes(engine), max_running=8) as model:
        assert model.context_length == 2**31 - 1
        assert len(model.generate("class A:", max_tokens=2).token_ids) == 2
        with pytest.raises(TooLongError, match="cache"):
            model.generate([5] * 1000, max_tokens=2)


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
