"""Models, templates and adapters made to do harm, given to `ingot serve`: the start ends with one readable error, or
the requests that meet the fault do."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from attacks.adapters import Adapter
from attacks.directories import Directory
from attacks.image import TABLE
from attacks.make import MODULES
from ingot.llm.llm import LLM
from tests import kept
from tests.cli.command import ingot
from tests.kept import PICO
from tests.serve.harness import Running, refused, serving
from tests.tuned import tuned

assert MODULES, "they have filled the table"
TOKENIZERS = (
    "an empty object", "of 70 MB", "100,000 deep", "3,000,000 merges", "an id twice", "an id beyond the model's",
    "an added token with another's id", "the pattern '(a+)+$' of 6", "the slow pattern 'a*a*a*b'",
    "a normalizer that doubles 20 times",
)  # fmt: skip
ADAPTERS = (
    "r = 0", "r = 1000000", "alpha NaN", "A of another base", "A and B of different ranks", "no B",
    "target_modules = ['evil']", "a layer that the base has not", "target_modules that is the pattern '(a+)+$'",
)  # fmt: skip
BROKEN_TEMPLATES = ("of 1 MB", "that is cut off", "a number that explodes")
TEMPLATES = (
    "a method's globals", "a macro that calls itself", "a text that doubles", "a power that takes long",
    "padding by a format",
)  # fmt: skip


def line(text: str) -> str:
    """Nothing but one error, which may go on in indented lines, and before it that a busy machine takes its time."""
    lines = [line for line in text.splitlines() if not re.search(r" loading .*: \d+ s so far$", line)]
    assert lines[0].startswith("ingot: error: ") and len(text) < 4000, text
    assert all(line.startswith(" ") for line in lines[1:]), text
    return text


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", TOKENIZERS)
def test_a_bad_tokenizer_ends_the_start(name: str, tmp_path: Path) -> None:
    attack = TABLE[f"tokenizer: {name}"]
    attack.make(tmp_path / "model")
    _, why = attack.expect["llm"]
    assert re.search(why, line(refused(source=tmp_path / "model")))


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", BROKEN_TEMPLATES)
def test_a_template_that_cannot_be_read_ends_the_start(name: str, tmp_path: Path) -> None:
    attack = TABLE[f"chat template: {name}"]
    attack.make(tmp_path / "model")
    assert re.search(attack.expect["chat"][1], line(refused(source=tmp_path / "model")))


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", TEMPLATES)
def test_a_hostile_template_fails_its_requests_only(name: str, tmp_path: Path) -> None:
    attack = TABLE[f"chat template: {name}"]
    attack.make(tmp_path / "model")
    with serving(source=tmp_path / "model") as server:
        body: dict[str, Any] = {"model": "model", "messages": [{"role": "user", "content": "abc"}]}
        got = server.post("/v1/chat/completions", body)
        assert (got.status_code, got.json()["error"]["code"]) == (400, "request"), got.text
        assert re.search(attack.expect["chat"][1], got.json()["error"]["message"])
        body = {"model": "model", "prompt": "abc", "max_tokens": 3}
        assert server.post("/v1/completions", body).status_code == 200


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", ADAPTERS)
def test_a_bad_adapter_ends_the_start(name: str, tmp_path: Path) -> None:
    Directory().write(tmp_path / "model")
    attack = TABLE[f"adapter: {name}"]
    attack.make(tmp_path / "adapter")
    _, why = attack.expect["adapter"]
    assert re.search(why, line(refused("--lora", tmp_path / "adapter", source=tmp_path / "model")))


def test_words_of_adapters_that_make_no_sense(tmp_path: Path) -> None:
    assert "no such" in refused("--lora", tmp_path / "nothing").lower()
    said = ingot("serve", kept.pico(), "--lora-scale", "0.5", code=2).stderr
    assert "give its folder too, --lora FOLDER" in line(said)
    Adapter().write(tmp_path / "adapter")
    assert "adapter" in line(refused("--lora", tmp_path / "adapter"))  # one of another base


# ---------------------------------------------------------------------------------------------------------------
# a good one


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tuned(tmp_path_factory.mktemp("adapters"))


@pytest.fixture(scope="module", params=["directory", "engine"])
def server(request: Any, adapter: Path) -> Iterator[Running]:
    source = PICO if request.param == "directory" else None
    with serving("--lora", adapter, "--lora-scale", 0.5, source=source) as running:
        yield running


@pytest.fixture(scope="module")
def written(adapter: Path) -> tuple[str, str]:
    """What the library writes with the adapter, and without."""
    with LLM(PICO, lora=adapter, lora_scale=0.5) as llm, LLM(PICO) as base:
        wanted, plain = (model.generate("def main(", max_tokens=16).text for model in (llm, base))
    return wanted, plain


def test_an_adapter_is_merged_into_what_is_served(server: Running, written: tuple[str, str]) -> None:
    wanted, plain = written
    assert server.complete("def main(", max_tokens=16)["choices"][0]["text"] == wanted != plain
