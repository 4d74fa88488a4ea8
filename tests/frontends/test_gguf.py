"""GGUF files: blocks against the package `gguf`, a converted model against its directory, and files that lie."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from fuzz.gguf_files import NUMBER, text, written
from ingot import models
from ingot.builder.network import build_network
from ingot.builder.outline import outline
from ingot.errors import CheckpointError
from ingot.frontends.checkpoint import Checkpoint
from ingot.frontends.gguf.blocks import KINDS
from ingot.frontends.gguf.file import GgufFile
from ingot.frontends.gguf.model import LLAMA3, GgufModel
from ingot.text.tokenizer import Tokenizer
from tests.kept import PICO

gguf = pytest.importorskip("gguf")
Array = np.ndarray[Any, Any]
BACK = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip


def stored(array: Array, kind: str) -> tuple[str, tuple[int, ...], bytes]:
    if kind == "F32" or array.ndim == 1:
        return "F32", array.shape, array.astype(np.float32).tobytes()
    return kind, array.shape, gguf.quants.quantize(array, gguf.GGMLQuantizationType(NUMBER[kind])).tobytes()


def metadata(pre: str = "gpt-2") -> dict[str, Any]:
    """What llama.cpp's converter writes of pico-python."""
    content = json.loads((PICO / "tokenizer.json").read_text())
    tokens = sorted(content["model"]["vocab"], key=content["model"]["vocab"].__getitem__)
    return {
        "general.architecture": "llama", "llama.context_length": 1024, "llama.embedding_length": 256,
        "llama.block_count": 8, "llama.feed_forward_length": 768, "llama.attention.head_count": 4,
        "llama.attention.head_count_kv": 2, "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": 64, "llama.rope.freq_base": 10000.0, "llama.vocab_size": 4096,
        "llama.expert_count": 0, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.token_type": [3, *[1] * 4095],
        "tokenizer.ggml.merges": [" ".join(pair) for pair in content["model"]["merges"]],
        "tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.add_bos_token": True,
    }  # fmt: skip


def converted(kind: str) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """pico-python's tensors as the converter stores them: rows of queries and keys by pairs that turn together."""
    found = {}
    for name, array in Checkpoint(PICO).items():
        own = name.replace("model.embed_tokens", "token_embd").replace("model.norm", "output_norm")
        if own.startswith("model.layers."):
            _, _, layer, *inner, last = own.split(".")
            own = f"blk.{layer}.{BACK['.'.join(inner)]}.{last}"
            if heads := {"attn_q": 4, "attn_k": 2}.get(own.split(".")[2]):
                array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        found[own] = stored(array.astype(np.float32), kind)
    return found


@pytest.fixture(scope="module")
def pico(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "pico.gguf"
    path.write_bytes(written(metadata(), converted("F32")))
    return path


BLOCKS = {kind.name: number for number, kind in KINDS.items() if kind.read is not None}


@pytest.mark.parametrize("number", BLOCKS.values(), ids=BLOCKS)
def test_blocks_are_bit_for_bit_those_of_ggml(number: int, tmp_path: Path) -> None:
    """Any bytes at all, NaN among the scales; read in one piece and in several."""
    kind = KINDS[number]
    blocks = np.random.default_rng(number).integers(0, 256, (37 * 8, kind.bytes), np.uint8)
    with np.errstate(all="ignore"):
        want = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType(number)).reshape(37, -1)
        path = tmp_path / "blocks.gguf"
        path.write_bytes(written({}, {"w": (kind.name, want.shape, blocks.tobytes())}))
        found = GgufFile(path)["w"]
    assert found.dtype == np.float32 and np.array_equal(found, want, equal_nan=True)
    assert np.array_equal(np.signbit(found), np.signbit(want)) or np.isnan(want).any()


def test_a_long_tensor_is_read_a_piece_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    blocks = np.random.default_rng(0).integers(0, 100, (640, 34), np.uint8)
    (tmp_path / "x.gguf").write_bytes(written({}, {"w": ("Q8_0", (20, 1024), blocks.tobytes())}))
    file = GgufFile(tmp_path / "x.gguf")
    whole = file["w"]
    monkeypatch.setattr("ingot.frontends.gguf.file.AT_ONCE", 96)
    assert np.array_equal(file["w"], whole)


def test_a_converted_model_is_its_directory(pico: Path) -> None:
    """Weights by name and bits, what config.json says, and the same text; a tokenizer with its patterns."""
    ours, want = models.load(pico), models.load(PICO, "float32")
    assert {n: a.tobytes() for n, a in ours.weights.items()} == {n: a.tobytes() for n, a in want.weights.items()}
    differ = {key for key in want.config if ours.config.get(key) != want.config[key]}
    assert not differ and ours.remarks == ()
    ids = [0, *range(100, 112)]
    one, other = (ingot.LLM(source, precision="float32").generate(ids, max_tokens=8) for source in (pico, PICO))
    assert one.token_ids == other.token_ids
    tokenizer = Tokenizer(ours.files["tokenizer.json"])
    for line in ("def f(x):\n    return 'it''s' + \"ü\"\n", "  12345 \t\n\n "):
        assert tokenizer.decode(tokenizer.encode(line)) == line
    assert outline(pico)[0].config["num_layers"] == 8


def test_quantised_weights_become_floats_and_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "q8.gguf"
    path.write_bytes(written(metadata(), converted("Q8_0")))
    loaded = models.load(path)
    assert loaded.config["precision"] == "bfloat16"
    (remark,) = loaded.remarks
    assert "57 tensors of Q8_0, read as bfloat16" in str(remark)
    asked = [ingot.build(path, weights=weights, report=False) for weights in ("same", "int8")]
    assert [any(r.kind == remark.kind for r in engine.summary.remarks) for engine in asked] == [True, False]
    assert asked[0].config["quantized"] == "gguf"
    name = "model.layers.3.mlp.up_proj.weight"
    exact, near = Checkpoint(PICO)[name].astype(np.float32), models.load(path, "float32").weights[name]
    assert 0 < np.abs(near - exact).max() <= np.abs(exact).max() / 127


def naive_pieces(line: str, tokens: list[str], scores: list[float]) -> list[str]:
    """SentencePiece's BPE: the pair with the best score, the leftmost of equal ones, until there is none."""
    parts = list(line)
    while True:
        pairs = [(-scores[tokens.index(a + b)], i) for i, (a, b) in enumerate(zip(parts, parts[1:], strict=False))
                 if a + b in tokens]  # fmt: skip
        if not pairs:
            return parts
        _, at = min(pairs)
        parts[at : at + 2] = [parts[at] + parts[at + 1]]


def test_sentencepiece_merges_by_scores(tmp_path: Path) -> None:
    rng, letters = random.Random(0), "abc\u2581"
    pieces = sorted({"".join(rng.choices(letters, k=rng.randint(2, 5))) for _ in range(120)})
    pieces += sorted({p[:i] for p in pieces for i in range(2, len(p))} - set(pieces))
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *letters, *pieces]
    scores = [0.0] * (259 + len(letters)) + [-float(i) for i in rng.sample(range(len(pieces)), len(pieces))]
    kinds = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    given = metadata() | {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.bos_token_id": 1, "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.unknown_token_id": 0,
    }  # fmt: skip
    path = tmp_path / "spm.gguf"
    path.write_bytes(written(given, {"token_embd.weight": stored(np.zeros((len(tokens), 256)), "F32")}))
    tokenizer = Tokenizer(GgufModel(path).files["tokenizer.json"])
    for _ in range(100):
        line = "".join(rng.choices("abc ", k=rng.randint(1, 12)))
        want = naive_pieces("\u2581" + line.replace(" ", "\u2581"), tokens, scores)
        assert [tokens[i] for i in tokenizer.encode(line) if i != 1] == want, line
    assert tokenizer.decode(tokenizer.encode("a é b")) == "a é b"


@pytest.mark.parametrize(("pre", "begins"), [
    ("gpt-2", False), ("qwen2", False), ("llama-bpe", True), ("llama3", True), ("llama-v3", True)])  # fmt: skip
def test_where_nothing_is_said_texts_begin_as_in_llama_cpp(pre: str, begins: bool, tmp_path: Path) -> None:
    for said in ({}, {"tokenizer.ggml.add_bos_token": not begins}):
        given = metadata(pre)
        del given["tokenizer.ggml.add_bos_token"]
        (tmp_path / "x.gguf").write_bytes(written(given | said, EMBEDDING))
        found = json.loads(GgufModel(tmp_path / "x.gguf").files["tokenizer_config.json"])
        assert found["add_bos_token"] is (not begins if said else begins)


@pytest.mark.parametrize(("fields", "scaling"), [
    ({}, None), ({"type": "linear"}, None), ({"factor": 0.0}, None), ({"type": "none", "factor": 4.0}, None),
    ({"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    ({"type": "linear", "factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
    ({"type": "yarn", "factor": 4.0, "original_context_length": 128},
     {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}),
])  # fmt: skip
def test_positions_are_scaled_as_in_llama_cpp(fields: dict[str, Any], scaling: Any, tmp_path: Path) -> None:
    """Linear where no type is named, by nothing where no factor is."""
    given = metadata() | {f"llama.rope.scaling.{key}": value for key, value in fields.items()}
    (tmp_path / "x.gguf").write_bytes(written(given, EMBEDDING))
    assert GgufModel(tmp_path / "x.gguf").config.get("rope_scaling") == scaling


def test_factors_of_llama_3_1_are_recognised(tmp_path: Path) -> None:
    waves = 2 * np.pi * 10000.0 ** (np.arange(32) / 32)
    low, high, length = LLAMA3.values()
    smooth = np.clip((length / waves - low) / (high - low), 0, 1)
    factors = 1 / ((1 - smooth) / 8 + smooth)
    table = {"token_embd.weight": stored(np.zeros((4096, 256)), "F32")}
    path = tmp_path / "x.gguf"
    path.write_bytes(written(metadata(), table | {"rope_freqs.weight": stored(factors, "F32")}))
    assert GgufModel(path).config["rope_scaling"] == {"rope_type": "llama3", "factor": 8.0, **LLAMA3}
    for fields in ({"factor": 4.0}, {"type": "yarn", "factor": 4.0}):
        given = metadata() | {f"llama.rope.scaling.{key}": value for key, value in fields.items()}
        path.write_bytes(written(given, table | {"rope_freqs.weight": stored(factors, "F32")}))
        with pytest.raises(CheckpointError, match=r"factor scales \(\w+\) what rope_freqs\.weight scales too, .* Give"):
            GgufModel(path)
    path.write_bytes(written(metadata(), table | {"rope_freqs.weight": stored(factors[::-1].copy(), "F32")}))
    with pytest.raises(CheckpointError, match=r"rope_freqs\.weight holds factors that are none of Llama 3\.1's"):
        GgufModel(path)


EMBEDDING = {"token_embd.weight": ("F32", (4096, 256), bytes(4 << 20))}
WRONG: list[tuple[str, Callable[[dict[str, Any]], object], str]] = [
    ("another architecture", lambda m: m.update({"general.architecture": "mamba"}), "architecture 'mamba' is not read"),
    ("no architecture", lambda m: m.pop("general.architecture"), "architecture 'None' is not read"),
    ("an unknown key", lambda m: m.update({"llama.logit_scale": 2.0}), r"llama\.logit_scale = 2\.0: keys that may"),
    ("experts", lambda m: m.update({"llama.expert_count": 8}), r"llama\.expert_count = 8"),
    ("heads of two sizes", lambda m: m.update({"llama.rope.dimension_count": 32}), "is 32, and heads of 64 are read"),
    ("a field missing", lambda m: m.pop("llama.block_count"), r"llama\.block_count is missing"),
    ("a field of text", lambda m: m.update({"llama.block_count": "8"}), r"llama\.block_count must be a whole number"),
    ("an unknown cut", lambda m: m.update({"tokenizer.ggml.pre": "tekken"}), "pre is 'tekken': how it cuts"),
    ("cuts in a list", lambda m: m.update({"tokenizer.ggml.pre": ["qwen2"]}), r"pre is \"\['qwen2'\]\": how it cuts"),
    ("another tokenizer", lambda m: m.update({"tokenizer.ggml.model": "bert"}), "tokenizer 'bert' is not read"),
    ("a token twice", lambda m: m["tokenizer.ggml.tokens"].append("a"), "has 4,096 entries for 4,097 tokens"),
    ("merges of one", lambda m: m.update({"tokenizer.ggml.merges": ["a"]}), "must be pairs"),
    ("no merges", lambda m: m.pop("tokenizer.ggml.merges"), r"tokenizer\.ggml\.merges is missing"),
    ("an end beyond", lambda m: m.update({"tokenizer.ggml.eos_token_id": 9999}), "must be the id of one of 4,096"),
    ("pairs of no token", lambda m: m["tokenizer.ggml.merges"].append("a zz"), "joins 'a' and 'zz', of which one"),
    ("an end of turn beyond", lambda m: m.update({"tokenizer.ggml.eot_token_id": 9999}), "eot_token_id must be the id"),
    ("an end of text", lambda m: m.update({"tokenizer.ggml.eot_token_id": "a"}), "of 4,096 tokens, not a"),
    ("no beginning", lambda m: m.pop("tokenizer.ggml.bos_token_id"), "bos_token_id is missing, and every text"),
    ("types beyond", lambda m: m["tokenizer.ggml.token_type"].append(7), "token_type has 4,097 entries"),
    ("a type of 7", lambda m: m["tokenizer.ggml.token_type"].__setitem__(5, 7), "has 7, and types are 0 to 6"),
    ("half a type", lambda m: m.update({"tokenizer.ggml.token_type": [1.5] * 4096}), "token_type has 1.5, and"),
    ("a template of 5", lambda m: m.update({"tokenizer.chat_template": 5}), "chat_template must be a text, not 5"),
    ("a part", lambda m: m.update({"split.count": 3}), "split.count is 3: it is a part of a model.*--merge"),
    ("an alignment of 3", lambda m: m.update({"general.alignment": 3}), "must be a power of two"),
]


@pytest.mark.parametrize(("change", "why"), [w[1:] for w in WRONG], ids=[w[0] for w in WRONG])
def test_what_is_not_read_is_said(change: Callable[[dict[str, Any]], object], why: str, tmp_path: Path) -> None:
    given = metadata()
    change(given)
    (tmp_path / "x.gguf").write_bytes(written(given, EMBEDDING))
    with pytest.raises(CheckpointError, match=why):
        GgufModel(tmp_path / "x.gguf")


def test_two_tensors_of_one_name(tmp_path: Path) -> None:
    """blk.0 and blk.00, or a name that the model's directory has: neither may take the other's place unseen."""
    for name in ("blk.00.attn_q.weight", "model.layers.0.self_attn.q_proj.weight"):
        both = {n: stored(np.zeros((4, 32)), "F32") for n in ("blk.0.attn_q.weight", name)}
        (tmp_path / "x.gguf").write_bytes(written(metadata(), EMBEDDING | both))
        with pytest.raises(CheckpointError, match=rf"blk\.0\.attn_q\.weight and {re.escape(name)} are both model"):
            GgufModel(tmp_path / "x.gguf")


def test_factors_beyond_the_heads_are_not_read(tmp_path: Path) -> None:
    """A sparse file of 1 TB takes no disk; its factors would take the memory."""
    path, count = tmp_path / "x.gguf", 1 << 38
    head = written(metadata(), EMBEDDING | {"rope_freqs.weight": ("F32", (count,), b"")})
    path.write_bytes(head)
    os.truncate(path, len(head) + 4 * count)
    with pytest.raises(CheckpointError, match="holds 274,877,906,944 factors for heads of 64"):
        GgufModel(path)


def test_tokens_that_can_be_merged_in_too_many_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ingot.frontends.gguf.tokenizer.MAX_MERGES", 100)
    tokens = ["<unk>", *("".join(t) for n in range(1, 6) for t in itertools.product("ab", repeat=n))]
    given = metadata() | {
        "tokenizer.ggml.model": "llama", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [0.0] * len(tokens), "tokenizer.ggml.token_type": [2] + [1] * (len(tokens) - 1),
    }  # fmt: skip
    (tmp_path / "x.gguf").write_bytes(written(given, EMBEDDING))
    with pytest.raises(CheckpointError, match="can be merged in more than 100 ways"):
        GgufModel(tmp_path / "x.gguf")


def header(*, version: int = 3, tensors: int = 0, keys: int = 0, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", version, tensors, keys) + rest


def place(name: str, shape: tuple[int, ...], kind: int, offset: int) -> bytes:
    return text(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, kind, offset)


BAD = {
    "nothing": (b"", "ends inside the magic"),
    "another magic": (b"GGML" + bytes(60), "does not begin with GGUF"),
    "version 1": (header(version=1), "version 1 of the format is not read"),
    "big-endian": (header(version=3 << 24), "big-endian"),
    "keys without end": (header(keys=2**63), "9,223,372,036,854,775,808 keys; at most"),
    "a long name": (header(keys=1, rest=struct.pack("<Q", 2**60)), "the name of a key has"),
    "no UTF-8": (header(keys=1, rest=text(b"\xff\xfe")), "is no UTF-8"),
    "a type beyond": (header(keys=1, rest=text("a") + struct.pack("<I", 13)), "of type 13"),
    "an array of arrays": (header(keys=1, rest=text("a") + struct.pack("<IIQ", 9, 9, 1)), "array of type 9"),
    "an array without end": (header(keys=1, rest=text("a") + struct.pack("<IIQ", 9, 4, 2**40)), "elements of a; at"),
    "arrays of too many": (
        header(keys=3, rest=b"".join(text(n) + struct.pack("<IIQ", 9, 0, 1_500_000) + bytes(1_500_000) for n in "abc")),
        "1,500,000 elements of c behind 3,000,000 of other arrays; at most 1,000,000",
    ),
    "an array cut off": (header(keys=1, rest=text("a") + struct.pack("<IIQ", 9, 10, 10**6)), "the file ends inside a"),
    "five dimensions": (header(tensors=1, rest=place("w", (1,) * 5, 0, 0)), "has 5 dimensions"),
    "another kind": (header(tensors=1, rest=place("w", (4,), 99, 0)), "stored as kind 99, which is not read; F32"),
    "no elements": (header(tensors=1, rest=place("w", (0,), 0, 0)), "it must have elements"),
    "too many elements": (header(tensors=1, rest=place("w", (2**40, 2**40), 0, 0)), r"fewer than 2\^63"),
    "half a block": (header(tensors=1, rest=place("w", (16,), 8, 0)), "rows of Q8_0 are blocks of 32"),
    "beyond the end": (header(tensors=1, rest=place("w", (2**30,), 0, 0)), "leaves the file's"),
    "not aligned": (header(tensors=1, rest=place("w", (1,), 0, 4) + bytes(99)), "not aligned to 32"),
    "a tensor twice": (header(tensors=2, rest=place("w", (1,), 0, 0) * 2 + bytes(99)), "w stands there twice"),
    "overlapping": (
        header(tensors=2, rest=place("v", (9,), 0, 0) + place("w", (1,), 0, 32) + bytes(99)), "v and w overlap"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_files_are_refused(name: str, tmp_path: Path) -> None:
    data, why = BAD[name]
    (tmp_path / "x.gguf").write_bytes(data)
    with pytest.raises(CheckpointError, match=why):
        GgufFile(tmp_path / "x.gguf")


def test_any_change_of_a_header_is_read_or_refused(tmp_path: Path) -> None:
    """Bytes and words replaced, and the file cut anywhere: never anything but CheckpointError, never much memory."""
    tensors = {"token_embd.weight": stored(np.zeros((4, 32)), "Q8_0"), "output_norm.weight": stored(np.ones(32), "F32")}
    whole = written({"general.architecture": "llama", "a": [1.5, 2.0], "b": ["x", "y"]}, tensors)
    rng, path, refused = random.Random(0), tmp_path / "x.gguf", 0
    for _ in range(600):
        data = bytearray(whole[: rng.randrange(len(whole))] if rng.random() < 0.3 else whole)
        for _ in range(rng.randint(0, 3)):
            at = rng.randrange(max(len(data) - 8, 1))
            data[at : at + 8] = rng.choice([rng.randbytes(1), struct.pack("<Q", 2 ** rng.randrange(64)), bytes(8)])
        path.write_bytes(data)
        try:
            file = GgufFile(path)
            assert all(file[name].size <= 4096 for name in file)
        except CheckpointError:
            refused += 1
    assert 300 < refused < 600


def test_a_file_that_is_shortened_meanwhile(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    path.write_bytes(written({}, {"w": stored(np.ones((64, 64)), "Q8_0")}))
    file = GgufFile(path)
    path.write_bytes(path.read_bytes()[:900])
    with pytest.raises(CheckpointError, match="the file ends inside the tensor w"):
        file["w"]


@pytest.fixture(scope="module")
def q4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("gguf") / "q4.gguf"
    path.write_bytes(written(metadata(), converted("Q4_0")))
    return path


def test_q4_0_is_int4_in_groups_of_32_bit_for_bit(q4: Path) -> None:
    """What an engine stores, dequantised as its kernels do, is what ggml's reference gives; q and k in our order."""
    loaded = models.load(q4, "float32")
    floats = models.load(q4, "float32", integers=False).weights
    engine = ingot.build(q4, precision="float32", report=False)
    for name in ("model.layers.0.self_attn.q_proj", "model.layers.7.mlp.down_proj", "model.layers.3.self_attn.v_proj"):
        whole, scales = (loaded.weights[f"{name}.weight.{part}"] for part in ("int4", "scales"))
        assert whole.dtype.name == "int4" and scales.dtype == np.float16
        ours = whole.astype(np.float32) * np.repeat(scales, 32, 1)
        assert ours.tobytes() == floats[f"{name}.weight"].tobytes()
    recipes = engine.header["weights"].values()
    sources = {source for item in recipes if item["recipe"] for source in item["recipe"]["sources"]}
    assert len([name for name in sources if name.endswith(".int4")]) == 7 * 8
    plain, _ = outline(q4)
    assert plain.config["num_layers"] == 8


def test_q4_0_generates_what_its_floats_do_and_says_what_became_floats(q4: Path) -> None:
    ids = [0, *range(100, 120)]
    network, remarks = models.load(q4).network()
    assert not [v.name for v in network.parameters if v.name.endswith("up_proj.weight")]
    assert any("something else than a product" in str(remark) for remark in remarks), "the table"
    one = ingot.LLM(q4, precision="float32").generate(ids, max_tokens=12)
    floats = models.load(q4, "float32", integers=False)
    engine = build_network(floats.network()[0], floats.weights, config=floats.config, kind="llm", files=floats.files)
    assert one.token_ids == ingot.LLM(engine).generate(ids, max_tokens=12).token_ids


def test_scales_of_q4_0_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    tensors = converted("Q4_0")
    kind, shape, data = tensors["blk.2.ffn_up.weight"]
    tensors["blk.2.ffn_up.weight"] = (kind, shape, b"\x00\x7e" + data[2:])
    (tmp_path / "nan.gguf").write_bytes(written(metadata(), tensors))
    with pytest.raises(CheckpointError, match=r"blk\.2\.ffn_up\.weight holds 1 scales"):
        ingot.build(tmp_path / "nan.gguf", report=False)


def test_scales_of_other_blocks_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    array = np.random.default_rng(0).standard_normal((4096, 256))
    kind, shape, data = stored(array, "Q8_0")
    (tmp_path / "inf.gguf").write_bytes(
        written(metadata(), {"token_embd.weight": (kind, shape, data[:34] + b"\x00\x7c" + data[36:])})
    )
    with pytest.raises(CheckpointError, match=r"token_embd\.weight holds blocks .*: 32 of its values are NaN or inf"):
        GgufModel(tmp_path / "inf.gguf")["model.embed_tokens.weight"]
