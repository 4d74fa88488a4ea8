"""Encoders against transformers; pooling as the files of sentence-transformers say; vectors that know no company."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers

import ingot
from ingot.errors import CheckpointError, RequestError, TooLongError, UserError

torch: Any = pytest.importorskip("torch", reason="torch is not installed: nothing to compare with")
transformers: Any = pytest.importorskip("transformers", reason="transformers is not installed: nothing to compare with")

TOLERANCE = 1e-4
SENTENCE = "the a quick brown fox jumps over lazy dog and runs far away from every other animal it meets"
WORDS = SENTENCE.split()
SIZES = {
    "vocab_size": 40, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48,
    "max_position_embeddings": 40,
}  # fmt: skip
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", {}),
    "bert with its head, another activation": ("BertForMaskedLM", {"hidden_act": "gelu_new", "type_vocab_size": 3}),
    "roberta": ("RobertaModel", {"pad_token_id": 1, "type_vocab_size": 1}),
    "roberta with its head, padding elsewhere": ("RobertaForMaskedLM", {"pad_token_id": 3, "layer_norm_eps": 1e-3}),
    "xlm-roberta": ("XLMRobertaModel", {"pad_token_id": 1, "type_vocab_size": 1}),
}
LENGTHS = (1, 7, 30, 19, 36)


def make(architecture: str, settings: dict[str, Any], folder: Path) -> Any:
    """A seeded transformers encoder in float32, saved to `folder`; norm weights and biases are random too."""
    kind = getattr(transformers, architecture)
    torch.manual_seed(7)
    model = kind(kind.config_class(**{**SIZES, **settings})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.ndim == 1:
                parameter.normal_(1.0 if name.endswith("weight") else 0.0, 0.2)
            else:
                parameter.normal_(0.0, 0.25)
    model.save_pretrained(folder)
    return model


def texts() -> list[list[int]]:
    rng = np.random.default_rng(3)
    return [[int(i) for i in rng.integers(4, 40, n)] for n in LENGTHS]


def states(model: Any, ids: list[int]) -> np.ndarray:
    """The last layer's hidden states."""
    base = getattr(model, model.base_model_prefix, model)
    with torch.no_grad():
        return base(torch.tensor([ids])).last_hidden_state[0].numpy()  # type: ignore[no-any-return]


def pooled(hidden: np.ndarray, how: str) -> np.ndarray:
    return {"mean": hidden.mean(0), "cls": hidden[0], "last": hidden[-1], "max": hidden.max(0)}[how]


def add_tokenizer(folder: Path) -> None:
    """Words, between [CLS] and [SEP]."""
    vocabulary = {word: i for i, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, "[UNK]"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.post_processor = tokenizers.processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    made.save(str(folder / "tokenizer.json"))


def describe(folder: Path, pooling: dict[str, Any], *more: str, **files: dict[str, Any]) -> None:
    """The files of sentence-transformers."""
    names = ["Transformer", "Pooling", *more]
    paths = ["", *(f"{i}_{name}" for i, name in enumerate(names) if i)]
    modules = [
        {"idx": i, "name": str(i), "path": path, "type": f"sentence_transformers.models.{name}"}
        for i, (name, path) in enumerate(zip(names, paths, strict=True))
    ]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir(exist_ok=True)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    for name, values in files.items():
        (folder / f"{name}.json").write_text(json.dumps(values))


@pytest.mark.parametrize("name", CASES)
def test_same_vectors_as_transformers(name: str, tmp_path: Path) -> None:
    architecture, settings = CASES[name]
    model = make(architecture, settings, tmp_path)
    embedder = ingot.Embedder(tmp_path)
    worst = 0.0
    for how in ("mean", "cls", "last", "max"):
        want = np.stack([pooled(states(model, ids), how) for ids in texts()])
        got = embedder.embed(texts(), how)
        assert got.shape == want.shape and got.dtype == np.float32
        worst = max(worst, float(np.abs(got - want).max()))
    print(f"{name}: {worst:.2g}")
    assert worst < TOLERANCE
    assert np.abs(got - want.mean(0)).max() > 0.1, "vectors that hardly differ show no mistake"


def test_a_vector_does_not_depend_on_its_company(tmp_path: Path) -> None:
    make("BertModel", {"max_position_embeddings": 200}, tmp_path)
    rng = np.random.default_rng(5)
    many = [[int(i) for i in rng.integers(0, 40, n)] for n in (3, 150, 64, 65, 9, 128, 200, 1)]
    embedder = ingot.Embedder(tmp_path)
    together = embedder.embed(many)
    for ids, vector in zip(many, together, strict=True):
        np.testing.assert_array_equal(embedder.embed(ids)[0], vector)
    np.testing.assert_array_equal(embedder.embed(many[::-1])[::-1], together)
    np.testing.assert_array_equal(ingot.Embedder(tmp_path, threads=1).embed(many), together)


def test_many_texts_run_in_several_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from ingot.llm import embedding

    make("BertModel", {}, tmp_path)
    embedder = ingot.Embedder(tmp_path)
    many = texts() * 3
    want = embedder.embed(many)
    monkeypatch.setattr(embedding, "MAX_RUN_TOKENS", 40)
    runs: list[int] = []
    run = embedder._run
    monkeypatch.setattr(embedder, "_run", lambda rows: runs.append(len(rows)) or run(rows))
    np.testing.assert_array_equal(embedder.embed(many), want)
    assert sum(runs) == len(many) and len(runs) > 5
    assert embedder.embed([]).shape == (0, 32)


def test_texts_and_pooling_as_the_files_say(tmp_path: Path) -> None:
    model = make("BertModel", {}, tmp_path)
    add_tokenizer(tmp_path)
    flags = {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False, "pooling_mode_max_tokens": False}
    describe(tmp_path, flags, "Normalize", sentence_bert_config={"max_seq_length": 9})
    embedder = ingot.Embedder(tmp_path)
    assert (embedder.pooling, embedder.normalize, embedder.context_length) == ("cls", True, 9)
    text = "the quick brown fox"
    ids = [2, *(4 + WORDS.index(word) for word in text.split()), 3]
    want = states(model, ids)[0]
    np.testing.assert_allclose(embedder.embed(text)[0], want / np.linalg.norm(want), atol=TOLERANCE)
    np.testing.assert_allclose(embedder.embed([text], normalize=False)[0], want, atol=TOLERANCE)
    np.testing.assert_array_equal(embedder.embed([text, ids])[0], embedder.embed([text, ids])[1])
    long = " ".join(WORDS)
    with pytest.raises(TooLongError, match="has 21 tokens and the model reads 9"):
        embedder.embed(long)
    cut = [2, *(4 + i for i in range(7)), 3]
    np.testing.assert_array_equal(embedder.embed(long, truncate=True), embedder.embed([cut]))


def test_a_default_prompt_stands_before_every_text(tmp_path: Path) -> None:
    make("BertModel", {}, tmp_path)
    add_tokenizer(tmp_path)
    settings = {"default_prompt_name": "q", "prompts": {"q": "the lazy dog ", "d": ""}}
    describe(tmp_path, {"pooling_mode": "mean", "embedding_dimension": 32}, config_sentence_transformers=settings)
    prompted = ingot.Embedder(tmp_path).embed("runs far")
    describe(tmp_path, {"pooling_mode": "mean"}, config_sentence_transformers={"default_prompt_name": None})
    np.testing.assert_array_equal(prompted, ingot.Embedder(tmp_path).embed("the lazy dog runs far"))


def test_an_engine_file_knows_it_all(tmp_path: Path) -> None:
    make("RobertaModel", {"pad_token_id": 1}, tmp_path / "model")
    add_tokenizer(tmp_path / "model")
    describe(tmp_path / "model", {"pooling_mode_lasttoken": True})
    engine = ingot.build(tmp_path / "model", precision="bfloat16")
    assert engine.kind == "encoder" and engine.report is not None
    assert 0 < engine.report.outputs[0].relative < 0.05
    engine.save(tmp_path / "model.ingot")
    loaded, direct = ingot.Embedder(tmp_path / "model.ingot"), ingot.Embedder(tmp_path / "model")
    assert loaded.pooling == "last" and not loaded.normalize
    np.testing.assert_array_equal(loaded.embed("the fox"), ingot.Embedder(engine).embed("the fox"))
    difference = np.abs(loaded.embed("the fox") - direct.embed("the fox")).max()
    assert 0 < difference < 0.2
    with pytest.raises(UserError, match="is an encoder of texts, not a language model: .*ingot.Embedder"):
        ingot.LLM(tmp_path / "model.ingot")
    with pytest.raises(UserError, match="is an encoder of texts, not a language model"):
        ingot.LLM(tmp_path / "model")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"text": "no tokenizer"}, "came without tokenizer.json"),
        ({"text": [[4], [40]]}, "40 is no token id: the model has 0 to 39"),
        ({"text": [-1]}, "-1 is no token id"),
        ({"text": [[5], []]}, "without tokens"),
        ({"text": [1.5]}, "sequence of integers"),
        ({"text": [[4]], "pooling": "sum"}, "pooling must be one of mean, cls, last, max, not 'sum'"),
    ],
)
def test_what_cannot_be_embedded(words: dict[str, Any], message: str, tmp_path: Path) -> None:
    make("BertModel", {}, tmp_path)
    with pytest.raises((RequestError, UserError), match=message):
        ingot.Embedder(tmp_path).embed(**words)


PLAIN = {"pooling_mode_mean_tokens": True}


@pytest.mark.parametrize(
    ("pooling", "more", "files", "message"),
    [
        (PLAIN, ("Dense",), {}, "Transformer, Pooling, Dense are not supported"),
        (PLAIN, ("Normalize", "Normalize"), {}, "are not supported"),
        ({"pooling_mode_weightedmean_tokens": True}, (), {}, "must be true, not pooling_mode_weightedmean_tokens"),
        (PLAIN | {"pooling_mode_cls_token": True}, (), {}, "exactly one of"),
        ({}, (), {}, "must be true, not none"),
        ({"pooling_mode": "mean_sqrt_len_tokens"}, (), {}, "is not supported; supported are cls"),
        (PLAIN, (), {"sentence_bert_config": {"max_seq_length": 0}}, "max_seq_length: must lie in"),
        (PLAIN, (), {"config_sentence_transformers": {"default_prompt_name": "x"}}, "one of the prompts"),
        (PLAIN, (), {"modules": [{"type": "my.Own", "path": ""}]}, "the modules my.Own are not supported"),
        (PLAIN, (), {"modules": {}}, "must be a list"),
        (PLAIN, (), {"config": {"position_embedding_type": "relative_key"}}, "position_embedding_type"),
        (PLAIN, (), {"config": {"is_decoder": True}}, "only encoders"),
    ],
)
def test_files_that_ask_for_more_are_refused(
    pooling: dict[str, Any], more: tuple[str, ...], files: dict[str, Any], message: str, tmp_path: Path
) -> None:
    make("BertModel", {}, tmp_path)
    if "config" in files:
        files["config"] = json.loads((tmp_path / "config.json").read_text()) | files["config"]
    describe(tmp_path, pooling, *more, **files)
    with pytest.raises(CheckpointError, match=message):
        ingot.build(tmp_path)


def test_a_pooling_folder_elsewhere_is_refused(tmp_path: Path) -> None:
    make("BertModel", {}, tmp_path / "model")
    describe(tmp_path, PLAIN)
    modules = json.loads((tmp_path / "modules.json").read_text())
    modules[1]["path"] = "../1_Pooling"
    (tmp_path / "model" / "modules.json").write_text(json.dumps(modules))
    with pytest.raises(CheckpointError, match="is not the name of a file in this folder"):
        ingot.build(tmp_path / "model")
