"""Checkpoints whose weights are quantised: each layout read bit for bit, run as integers, refused where it is bad."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ingot import dtypes, models
from ingot.builder.build import build
from ingot.builder.outline import outline
from ingot.engine.session import Engine
from ingot.errors import CheckpointError
from ingot.frontends.quantized.checkpoint import QuantizedCheckpoint
from ingot.frontends.quantized.config import parse
from ingot.frontends.quantized.model import IntegerWeights
from ingot.frontends.quantized.weights import QuantizedWeight
from ingot.ir.weight_format import COMPACT
from ingot.ops.conversion import Dequantize
from tests.models.model_zoo import EngineRunner, Runner
from tests.models.quantized_files import (
    CASES,
    CONFIG,
    HIDDEN,
    INNER,
    TOKENS,
    Case,
    compressed,
    model,
    packed,
    write,
    written,
)

IDS = [3, 7, 1, 22, 5, 60, 2, 2, 9]
Q = "model.layers.0.self_attn.q_proj"
RUN = (
    "awq g64, qwen2 with biases", "awq, all inputs", "awq g16", "gptq, act-order", "gptq, one act-order, zero points",
    "gptq, 8 bits of all inputs", "compressed int4 g64, asymmetric", "compressed W8A8", "fp8",
    "compressed fp8", "compressed fp8 by output", "awq, experts", "gptq, 8 bits of all inputs, experts",
    "compressed int4 g64, asymmetric, experts", "compressed W8A8, experts", "gptq, experts in act-order",
)  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_bit_for_bit(name: str, tmp_path: Path) -> None:
    """In the type of its scales each weight is what the method's own code makes of it: read as floats, and put together
    from what an engine would store."""
    case = CASES[name]
    folder, _, wanted = written(tmp_path, case)
    loaded = models.load(folder, "float32")
    network = loaded.network()[0]
    made = {
        node.inputs[0].name.rpartition(".")[0]: node
        for node in network.nodes if isinstance(node.op, Dequantize) and node.inputs[0].kind == "parameter"
    }  # fmt: skip
    for name_, weight in wanted.items():
        found = loaded.weights[name_].astype(weight.dtype)
        assert np.array_equal(_bits(found), _bits(weight)), name_
        if name_ in made:
            node = made.pop(name_)
            whole = node.op.reference(*(loaded.weights[v.name] for v in node.inputs)).astype(weight.dtype)
            orders = [v.name for v in _takes(network, node)]
            if orders:
                whole = whole[:, np.argsort(loaded.weights[orders[0]])]
            assert np.array_equal(_bits(whole), _bits(weight)), name_
    assert not made
    as_floats = [r for r in loaded.network()[1] if r.kind == "quantised weights as floats"]
    assert [case.floats in r.why for r in as_floats] == ([True] if case.floats else [])
    narrow = [v for v in network.parameters if v.dtype in COMPACT and len(v.shape) == 2 and "zeros" not in v.name]
    assert len(narrow) == len(case.kept)
    kinds = {v.dtype for v in network.parameters if v.name.endswith(".scales")}
    assert kinds <= {dtypes.float16 if v.dtype is dtypes.int4 else dtypes.float32 for v in narrow}


def test_scales_are_of_16_bits_where_they_are_exact() -> None:
    def form(scales: np.ndarray, bits: int = 4) -> Any:
        whole, group = np.ones((2, 64), np.int8), 32 if bits == 4 else 64
        return QuantizedWeight("w", (2, 64), ("w",), bits, group, lambda: whole, lambda: scales).form()

    exact = np.array([[0.25, 2.0**-24], [65504, 0.1]], np.float16).astype(np.float32)
    assert form(exact).scales is dtypes.float16 and form(exact[:, :1], 8).scales is dtypes.float32
    for odd in (0.1, 2.0**-25, 65536, -1e-9):
        assert form(np.where(exact == 0.25, np.float32(odd), exact)).scales is dtypes.float32


def _bits(array: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8)


def _takes(network: Any, node: Any) -> list[Any]:
    """The order of the rows that a product by this weight reads."""
    (product,) = node.output.uses
    maker = product.inputs[0].node
    return [maker.inputs[1]] if maker is not None and maker.op.name == "take" else []


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", RUN)
def test_runs(name: str, tmp_path: Path) -> None:
    """Logits are those of the network of floats with the dequantised weights, and a row does not depend on its company.
    With rows of int8 they are those of the same network as its ops' references compute it."""
    folder, floats, _ = written(tmp_path, CASES[name])
    engine = EngineRunner(folder, precision="float32")
    found = engine.run(IDS, [len(IDS)])
    loaded = models.load(folder, "float32")
    wanted = Runner(loaded if CASES[name].rounds else _Floats(floats, loaded.weights)).run(IDS, [len(IDS)])
    assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max()
    again = EngineRunner(folder, precision="float32").run(IDS, [1, 3, 5])
    assert np.array_equal(again, found)


class _Floats(models.LoadedModel):
    """A model of floats, with other weights."""

    def __init__(self, folder: Path, weights: Any) -> None:
        loaded = models.load(folder, "float32")
        super().__init__(loaded.module, loaded.input_specs, loaded.config, dict(weights), loaded.files)

    def network(self) -> Any:
        return models.LoadedModel(self.module, self.input_specs, self.config, {}, self.files).network()


def test_second_products_are_joined(tmp_path: Path) -> None:
    """Those that zero points need are one for gate and up, which stay a pair. Zero points that are all 0 need none."""
    logs = [build(written(tmp_path / n, CASES[n])[0], report=False).log for n in ("awq g32", "awq, no zero points")]
    small = "gate_proj.weight.zeros.products, model.layers.0.mlp.up_proj.weight.zeros.products"
    assert [line for line in logs[0] if "one product for model.layers.0.mlp" in line and small in line]
    assert [line for line in logs[0] if "part of the matmul of" in line and "gate_proj.weight.int4, " in line]
    assert not [line for line in logs[1] if "zero" in line]


def test_experts_stay_integers(tmp_path: Path) -> None:
    """One kernel reads them as they are stored, zero points too; the torch target gives the same of the file."""
    case = CASES["gptq, experts"]
    folder, _, _ = written(tmp_path, case)
    engine = build(folder, precision="float32", report=False)
    calls = engine.header["programs"]["cpu"]["entries"]["main"]["calls"]
    assert [call["kernel"] for call in calls if "kernel" in call].count("moe") == 1
    assert not [call for call in calls if "host" in call]
    packs = [name for name in engine.header["weights"] if "experts" in name and name.endswith("packed")]
    kinds = sorted(engine.tensor(name).dtype.name for name in packs)
    assert kinds == ["float16"] * 2 + ["float32"] * 2 + ["uint8"] * 2
    pytest.importorskip("torch")
    runner = EngineRunner(folder, precision="float32")
    wanted = runner.run(IDS, [len(IDS)])
    runner.session, runner.done = engine.on("torch").session(kv_blocks=8, kv_block_size=16), 0
    assert np.abs(runner.run(IDS, [len(IDS)]) - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_experts_of_several_forms(tmp_path: Path) -> None:
    """Scales that float16 does not hold make those of all others float32; another form makes floats, and it is said."""
    case = CASES["compressed int4 g64, asymmetric, experts"]
    tensors, whole, config = model(case)
    name = "model.layers.0.block_sparse_moe.experts.1.w1"
    odd = tensors | {f"{name}.weight_scale": tensors[f"{name}.weight_scale"] * dtypes.bfloat16.numpy.type(2.0**-20)}
    method = {"quantization_config": case.quantization}
    loaded = models.load(write(tmp_path / "odd", odd, config | method), "float32")
    network, remarks = loaded.network()
    assert not [r for r in remarks if r.kind == "quantised weights as floats"]
    (mixture,) = (node for node in network.nodes if node.op.name == "moe")
    scales = [v.node.inputs[1].dtype for v in mixture.inputs[2:]]
    assert scales == [dtypes.float32] * 6 + [dtypes.float16] * 3
    found = EngineRunner(tmp_path / "odd", precision="float32").run(IDS, [len(IDS)])
    floats = write(tmp_path / "floats", whole, config)
    wanted = Runner(_Floats(floats, loaded.weights)).run(IDS, [len(IDS)])
    assert np.abs(found - wanted).max() < 2e-5 * np.abs(wanted).max()
    zeros = f"{name}.weight_zero_point"
    plain = packed(np.full((INNER, HIDDEN // 64), 8), 0, 4)
    loaded = models.load(write(tmp_path / "plain", tensors | {zeros: plain}, config | method), "float32")
    (said,) = (r for r in loaded.network()[1] if r.kind == "quantised weights as floats")
    assert "stored in several forms" in said.why and said.calls == 6


def test_narrow(tmp_path: Path) -> None:
    """In half precision the engine is as near to float32 as that of the dequantised floats."""
    folder, floats, _ = written(tmp_path, CASES["gptq, zero points"])
    ours, theirs = (build(f, precision="bfloat16").report.outputs[0].relative for f in (folder, floats))
    assert ours < 2 * theirs


def test_stored_and_refit(tmp_path: Path) -> None:
    """An engine file has the integers, gives them back, and takes new scales; zero points are kept, for others."""
    folder, _, _ = written(tmp_path, CASES["gptq, one act-order, zero points"])
    built = build(folder, report=False)
    built.save(tmp_path / "m.ingot")
    engine = Engine.load(tmp_path / "m.ingot")
    names = set(engine.header["weights"])
    assert f"{Q}.weight.zeros" in names and f"{Q}.weight.order" in names and f"{Q}.weight" not in names
    assert not [name for name in names if name.endswith(("k_proj.weight.order", "up_proj.weight.order"))]
    loaded = models.load(folder)
    scales = loaded.weights[f"{Q}.weight.scales"]
    new = engine.refit({f"{Q}.weight.scales": scales * 2})
    same = new.refit({f"{Q}.weight.scales": scales})
    for name in names:
        assert np.array_equal(_bits(same.tensor(name)), _bits(built.tensor(name))), name
    assert any(not np.array_equal(_bits(new.tensor(n)), _bits(built.tensor(n))) for n in names)


def test_other_target(tmp_path: Path) -> None:
    """What a file of the CPU holds is enough for the torch target, zero points included."""
    pytest.importorskip("torch")
    folder, _, _ = written(tmp_path, CASES["awq g64, qwen2 with biases"])
    engine = build(folder, precision="float32", report=False)
    runner = EngineRunner(folder, precision="float32")
    wanted = runner.run(IDS, [len(IDS)])
    runner.session, runner.done = engine.on("torch").session(kv_blocks=8, kv_block_size=16), 0
    assert np.abs(runner.run(IDS, [len(IDS)]) - wanted).max() < 1e-4 * np.abs(wanted).max()


def test_formats_on_top(tmp_path: Path) -> None:
    """--weights is for what the checkpoint holds as floats: here table and head."""
    folder, _, _ = written(tmp_path, CASES["awq g32"])
    engine = build(folder, precision="float32", weights="int8", report=False)
    recipes = [w["recipe"] for w in engine.header["weights"].values() if w["recipe"] is not None]
    made = {tuple(r["sources"]) for r in recipes if "quantize" in [step[0] for step in r["steps"]]}
    assert made == {("model.embed_tokens.weight",), ("lm_head.weight",)}
    assert not [event for event in engine.log if "scales stays" in event]


def test_nothing_is_advised_that_was_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zero points in float32 are what products of groups take, whatever the precision."""
    monkeypatch.setattr("ingot.builder.summary.WORTH_SAYING", 1)
    folder, _, _ = written(tmp_path, CASES["awq g32"])
    engine = build(folder, precision="float32", report=False)
    assert any(name.endswith(".zeros.products.packed") for name in engine.header["weights"])
    assert "weights in float32" not in [remark.kind for remark in engine.summary.remarks]


def test_an_adapter_needs_floats(tmp_path: Path) -> None:
    """One sentence, however many layers it is about."""
    folder, _, _ = written(tmp_path, CASES["awq g32"])
    said = ".* stored as integers in the base, and an adapter needs floats: take the float checkpoint .*"
    with pytest.raises(CheckpointError, match=rf"model:\n  1 layer is{said} \({Q}\)$"):
        build(folder, lora=_adapter(tmp_path / "1", "q_proj"), report=False)
    three = ", ".join(Q.replace("q_proj", name) for name in ("k_proj", "o_proj", "q_proj"))
    with pytest.raises(CheckpointError, match=rf"model:\n  4 layers are{said} \({three}, …\)$"):
        build(folder, lora=_adapter(tmp_path / "4", "q_proj", "k_proj", "v_proj", "o_proj"), report=False)


def _adapter(folder: Path, *names: str) -> Path:
    prefix = f"base_model.model.{Q}.lora_"
    tensors = {f"{prefix}A.weight": np.ones((2, 128), np.float32), f"{prefix}B.weight": np.ones((128, 2), np.float32)}
    path = write(folder / "adapter", tensors, {})
    (path / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": 2, "lora_alpha": 2, "target_modules": names})
    )
    (path / "model.safetensors").rename(path / "adapter_model.safetensors")
    return path


def test_biases_of_zeros(tmp_path: Path) -> None:
    """AutoGPTQ gave layers without a bias one of zeros. One of other numbers is no part of the model."""
    tensors, _, config = model(CASES["gptq"])
    config |= {"quantization_config": CASES["gptq"].quantization}
    zeros = {f"{Q}.bias": np.zeros(128, np.float16)}
    models.load(write(tmp_path / "zeros", tensors | zeros, config))
    with pytest.raises(CheckpointError, match=f"unexpected:\n  {Q}.bias"):
        models.load(write(tmp_path / "ones", tensors | {f"{Q}.bias": np.ones(128, np.float16)}, config))


def test_turned(tmp_path: Path) -> None:
    """A model that has its weights as [inputs, outputs], as GPT-2 does, gets them so."""
    case = CASES["gptq, zero points"]
    tensors, whole, config = model(case)
    folder = write(tmp_path / "m", tensors, config | {"quantization_config": case.quantization})
    found = parse(config | {"quantization_config": case.quantization}, "here")
    assert found is not None
    checkpoint = QuantizedCheckpoint(folder, found)
    checkpoint.turned = {f"{Q}.weight"}
    assert np.array_equal(checkpoint[f"{Q}.weight"].astype(np.float16), whole[f"{Q}.weight"].T)
    assert isinstance(models.load(folder).weights, IntegerWeights)


def test_what_is_not_done_is_said(tmp_path: Path) -> None:
    """Rows of float8, and scales of the cache."""
    tensors, _, config = model(CASES["compressed fp8"])
    config |= {"quantization_config": CASES["compressed fp8"].quantization}
    tensors[f"{Q}.input_scale"] = np.ones(1, np.float32)
    engine = build(write(tmp_path / "m", tensors, config), report=False)
    kinds = {remark.kind: remark for remark in engine.summary.remarks}
    assert "quantised weights as floats" not in kinds  # they have a scale for each output
    assert kinds["inputs as they are"].why.endswith("float8 (static, by tensor)")
    assert kinds["tensors not used"].where == (f"{Q}.input_scale",)


def test_rows_that_stay_floats_are_said(tmp_path: Path) -> None:
    """Rows of int8 are asked for, and weights that the checkpoint stores as integers read floats."""
    folder, _, _ = written(tmp_path, CASES["awq g64, qwen2 with biases"])
    engine = build(folder, weights="int8", activations="int8", report=False)
    (remark,) = [one for one in engine.summary.remarks if one.kind == "rows as floats"]
    assert remark.calls == len(remark.where) == 7 and remark.where[0] == f"{Q}.weight.int4"
    assert remark.why.startswith("rows of int8 go to 1 of 8 products by stored integers; the source stores")
    engine = build(folder, weights="int8", report=False)
    assert not [one for one in engine.summary.remarks if one.kind == "rows as floats"]
    (tmp_path / "rounded").mkdir()
    folder, _, _ = written(tmp_path / "rounded", CASES["compressed W8A8"])
    engine = build(folder, weights="int8", activations="int8", report=False)
    assert not [one for one in engine.summary.remarks if one.kind == "rows as floats"]


def test_what_modelopt_says_beside_config_json(tmp_path: Path) -> None:
    tensors, wanted, config = model(CASES["modelopt fp8"])
    folder = write(tmp_path / "m", tensors, config)
    beside = folder / "hf_quant_config.json"
    said = {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8", "exclude_modules": ["lm_head"]}
    beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": said}))
    loaded = models.load(folder, "float32")
    assert np.array_equal(loaded.weights[f"{Q}.weight"], wanted[f"{Q}.weight"])
    beside.write_text(json.dumps({"quantization": {"quant_algo": None, "kv_cache_quant_algo": "FP8"}}))
    plain = write(tmp_path / "plain", wanted, config)
    (plain / beside.name).write_bytes(beside.read_bytes())
    assert np.array_equal(models.load(plain, "float32").weights[f"{Q}.weight"], wanted[f"{Q}.weight"])
    beside.write_text(json.dumps({"producer": {"name": "modelopt"}, "quantization": []}))
    with pytest.raises(CheckpointError, match=r"hf_quant_config\.json: quantization must be an object"):
        models.load(folder)


# ------------------------------------------------------------------------------------------------------------ bad files

Change = Callable[[dict[str, np.ndarray]], Any]


def _set(role: str, make: Callable[[np.ndarray], np.ndarray]) -> Change:
    def change(tensors: dict[str, np.ndarray]) -> None:
        tensors[f"{Q}.{role}"] = make(tensors[f"{Q}.{role}"])

    return change


def _without(role: str) -> Change:
    return lambda tensors: tensors.pop(f"{Q}.{role}")


def _one(value: Any) -> Callable[[np.ndarray], np.ndarray]:
    def change(array: np.ndarray) -> np.ndarray:
        new = np.array(array, order="C")
        new.reshape(-1)[5] = value
        return new

    return change


PACKED, W8A8, ASYMMETRIC = "compressed int4 g32", "compressed W8A8", "compressed int4 g64, asymmetric"
BAD_TENSORS: list[tuple[str, Change, str]] = [
    ("awq g32", _without("qzeros"), f"{Q}.qzeros is missing"),
    ("awq g32", _without("scales"), f"{Q}.scales is missing"),
    ("awq g32", _without("qweight"), "unexpected:\n  .*q_proj.qzeros"),
    ("awq g32", _set("qweight", lambda a: a[:100]), "groups of 32 do not divide its 100 inputs"),
    ("awq g32", _set("qweight", lambda a: a[:, :15]), f"{Q}.qzeros has shape [4, 16], and must have [4, 15]"),
    ("awq g32", _set("qweight", lambda a: a.astype(np.int64)), f"{Q}.qweight is int64, and must be int32"),
    ("awq g32", _set("qweight", lambda a: a.reshape(-1)), "must have 2 dimensions"),
    ("awq g32", _set("scales", lambda a: a[:2]), f"{Q}.scales has shape [2, 128], and must have [4, 128]"),
    ("awq g32", _set("scales", _one(np.nan)), f"{Q}.scales holds 1 scales that are NaN or infinite"),
    ("awq g32", _set("scales", _one(np.inf)), f"{Q}.scales holds 1 scales that are NaN or infinite"),
    ("awq g32", lambda t: t.update({f"{Q}.weight": np.zeros((128, 128), np.float16)}), "stands beside the quantised"),
    ("awq g32", lambda t: [t.pop(n) for n in list(t) if "qweight" in n], "and no tensor is"),
    ("gptq", _without("qzeros"), f"{Q}.qzeros is missing"),
    ("gptq", _set("g_idx", _one(-1)), f"{Q}.g_idx holds the group -1, and there are 0 to 3"),
    ("gptq", _set("g_idx", _one(4)), f"{Q}.g_idx holds the group 4, and there are 0 to 3"),
    ("gptq", _set("g_idx", lambda a: a[:-1]), f"{Q}.g_idx has shape [127], and must have [128]"),
    ("gptq", _set("g_idx", lambda a: a.astype(np.float32)), f"{Q}.g_idx is float32"),
    ("gptq", _set("qweight", lambda a: a[:, :100]), "100 outputs are no multiple of 8"),
    ("gptq, 8 bits of all inputs", _set("qzeros", lambda a: a[:, :16]), f"{Q}.qzeros has shape [1, 16]"),
    (PACKED, _without("weight_shape"), f"{Q}.weight_shape is missing"),
    (PACKED, _without("weight_scale"), f"{Q}.weight_scale is missing"),
    (PACKED, _set("weight_shape", lambda a: np.array([128, 1 << 40])), "says [128, 1099511627776], and"),
    (PACKED, _set("weight_shape", lambda a: np.array([128, -1])), "says [128, -1], and"),
    (PACKED, _set("weight_packed", lambda a: a[:64]), f"{Q}.weight_shape says [128, 128]"),
    ("compressed int4, act-order", _set("weight_g_idx", _one(-1)), f"{Q}.weight_g_idx holds the group -1"),
    (ASYMMETRIC, _without("weight_zero_point"), f"{Q}.weight_zero_point is missing"),
    (ASYMMETRIC, _set("weight_zero_point", lambda a: a[:3]), f"{Q}.weight_zero_point has shape [3, 2]"),
    ("compressed int4 g64, asymmetric, not packed", _set("weight_zero_point", _one(9)), "outside of -8..7"),
    (W8A8, _set("weight_scale", lambda a: a[:5]), f"{Q}.weight_scale has shape [5, 1], and must have [128, 1]"),
    (W8A8, lambda t: t.update({"lm_head.weight": np.zeros((61, 128), np.int8)}), "ignore names it"),
    (W8A8, lambda t: t.update({f"{Q}.weight": np.zeros((128, 128), dtypes.float8_e4m3fn.numpy)}), "must be int8"),
    ("compressed fp8", _set("weight", lambda a: np.full_like(a, np.nan)), "weight holds 16,384 elements that are NaN"),
    ("fp8", _without("weight_scale_inv"), f"{Q}.weight_scale is missing"),
    ("fp8", _set("weight_scale_inv", lambda a: np.ones((2, 1), np.float32)), f"{Q}.weight_scale_inv has shape [2, 1]"),
]


@pytest.mark.parametrize("case", BAD_TENSORS, ids=[f"{name} {i}" for i, (name, *_) in enumerate(BAD_TENSORS)])
def test_bad_tensors(case: tuple[str, Change, str], tmp_path: Path) -> None:
    """Each is a typed error that names the tensor."""
    name, change, message = case
    tensors, _, config = model(CASES[name])
    change(tensors)
    folder = write(tmp_path / "m", tensors, config | {"quantization_config": CASES[name].quantization})
    with pytest.raises(CheckpointError, match=message if ".*" in message else re.escape(message)):
        _read(folder)


def _read(folder: Path) -> None:
    loaded = models.load(folder)
    for parameter in loaded.weights:
        loaded.weights[parameter]


def test_tensors_without_end(tmp_path: Path) -> None:
    """Sparse files of gigabytes take no disk: nothing of that size is read before it is known to fit."""
    gptq = {"qweight": ("I32", 4, (1 << 28, 8)), "qzeros": ("I32", 4, (1 << 26, 1)), "scales": ("F16", 2, (1 << 26, 8)),
            "g_idx": ("I32", 4, (1 << 31,))}  # fmt: skip
    few = {"qweight": ("I32", 4, (16, 128)), "qzeros": ("I32", 4, (4, 16)), "scales": ("F16", 2, (4, 128)),
           "bias": ("F16", 2, (1 << 33,))}  # fmt: skip
    wide = {"qweight": ("I32", 4, (4, 1 << 33)), "qzeros": ("I32", 4, (1, 1 << 30)),
            "scales": ("F16", 2, (1, 1 << 33)), "bias": ("F16", 2, (1 << 33,))}  # fmt: skip
    for tensors, words in (
        (gptq, "q_proj has 2,147,483,648 inputs; at most 16,777,216 are read"), (few, "the weights do not fit"),
        (wide, "q_proj has 8,589,934,592 outputs"),
    ):  # fmt: skip
        header, end = {}, 0
        for role, (kind, width, shape) in tensors.items():
            begin, end = end, end + math.prod(shape) * width
            header[f"{Q}.{role}"] = {"dtype": kind, "shape": shape, "data_offsets": [begin, end]}
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        (tmp_path / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": GPTQ}))
        with (tmp_path / "model.safetensors").open("wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + end)
        with pytest.raises(CheckpointError, match=words):
            models.load(tmp_path)


def _without_key(config: dict[str, Any], key: str) -> dict[str, Any]:
    return {k: v for k, v in config.items() if k != key}


AWQ, GPTQ, GROUPED = (CASES[name].quantization for name in ("awq g32", "gptq", PACKED))
BY_BITS = {"num_bits": 8, "strategy": "channel"}
BAD_CONFIGS: list[tuple[Any, str]] = [
    (7, "must be an object"),
    ({}, "no quant_method is named"),
    *(
        ({"quant_method": name}, rf"quantised \({name}\).*--weights")
        for name in ("bitsandbytes", "hqq", "aqlm", "quanto", "torchao", "mxfp4")
    ),
    (AWQ | {"version": "gemv"}, "'gemv' is not read, only gemm is"),
    (AWQ | {"version": "marlin"}, "'marlin' is not read"),
    (AWQ | {"version": 5}, "'5' is not read"),
    (AWQ | {"bits": 3}, "3 bits are not read, only 4"),
    (AWQ | {"group_size": 0}, "groups of 0 inputs are none"),
    (AWQ | {"group_size": -2}, "group_size: must lie in -1"),
    (AWQ | {"zero_point": False}, "zero_point: is false"),
    (AWQ | {"modules_to_not_convert": [3]}, "must be a list"),
    (_without_key(AWQ, "bits"), "bits: is missing"),
    (GPTQ | {"bits": 2}, "2 bits are not read, only 4 and 8"),
    (GPTQ | {"checkpoint_format": "marlin"}, "'marlin' is not read, only gptq and gptq_v2"),
    (GPTQ | {"is_marlin_format": True}, "is_marlin_format"),
    (GPTQ | {"pack_dtype": "int8"}, "pack_dtype: 'int8'"),
    (GPTQ | {"dynamic": {"-:lm_head": {}}}, "dynamic"),
    (GROUPED | {"format": "nvfp4-pack-quantized"}, "format: 'nvfp4-pack-quantized' is not supported"),
    (GROUPED | {"config_groups": {}}, "config_groups: is missing"),
    (GROUPED | {"config_groups": {str(i): {} for i in range(65)}}, "has 65 groups"),
    (GROUPED | {"config_groups": {"a": {"targets": ["Linear"]}}}, "a.weights: is missing"),
    (GROUPED | {"sparsity_config": {"format": "sparse-24-bitmask"}}, "sparse-24-bitmask"),
    (GROUPED | {"transform_config": {"a": 1}}, "rotated"),
    (GROUPED | {"ignore": ["re:(a"]}, "is no regular expression"),
    (GROUPED | {"ignore": ["re:" + "a" * 2000]}, "at most 1,000 characters"),
    (compressed({**BY_BITS, "num_bits": 3}, "pack-quantized"), "3 bits are not read"),
    (compressed({**BY_BITS, "strategy": "tensor_group"}, "pack-quantized"), "strategy: 'tensor_group'"),
    (compressed({**BY_BITS, "type": "float", "num_bits": 4}, "float-quantized"), "4 bits are not read, only 8"),
    (compressed({**BY_BITS, "strategy": "block"}, "int-quantized"), "blocks of integers are not read"),
    ({"quant_method": "modelopt", "quant_algo": "NVFP4"}, "quant_algo: 'NVFP4' is not supported; supported are FP8"),
    ({"quant_method": "modelopt"}, "quant_algo: is missing"),
    ({"quant_method": "fp8", "weight_block_size": [128]}, "must be two positive integers"),
    ({"quant_method": "fp8", "weight_block_size": [128, 0]}, "must be two positive integers"),
]


@pytest.mark.parametrize(("quantization", "message"), BAD_CONFIGS, ids=[str(i) for i in range(len(BAD_CONFIGS))])
def test_bad_configs(quantization: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=f"(?s){message}"):
        models.parse_config(CONFIG | {"quantization_config": quantization}, tmp_path)


def test_patterns_take_bounded_time(tmp_path: Path) -> None:
    """`ignore` is a stranger's pattern."""
    case = CASES[W8A8]
    slow = Case(case.quantization | {"ignore": ["re:" + "(?:(?=(.*)*).?)*" * 50 + "!"] * 3}, case.make)
    with pytest.raises(CheckpointError, match="take too long to match"):
        models.load(written(tmp_path, slow)[0])


def test_groups_of_layers(tmp_path: Path) -> None:
    """Layers of two schemes, by name, pattern and class; a layer that no group is for is an error."""
    tensors, _, config = model(CASES[W8A8])
    other, _, _ = model(CASES[PACKED])
    tensors = {n: a for n, a in tensors.items() if ".mlp." not in n} | {n: a for n, a in other.items() if ".mlp." in n}
    groups = {
        "a": {"targets": ["re:.*self_attn"], "weights": BY_BITS, "input_activations": TOKENS},
        "b": {"targets": ["Linear"], "weights": {"num_bits": 4, "strategy": "group", "group_size": 32}},
    }
    method = {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups}
    folder = write(tmp_path / "both", tensors, config | {"compression_config": method})
    kinds = {v.dtype.name for v in models.load(folder).network()[0].parameters if v.dtype.is_integer}
    assert kinds == {"int4", "int8"}
    del groups["b"]
    with pytest.raises(CheckpointError, match="gate_proj is quantised, but no group"):
        models.load(write(tmp_path / "one", tensors, config | {"quantization_config": method}))


def test_plan(tmp_path: Path) -> None:
    """The engine in outline has the tensors of the one that is built."""
    folder, _, _ = written(tmp_path, CASES["gptq, one act-order, zero points"])
    engine, built = outline(folder)[0], build(folder, report=False)
    assert built.config["quantized"] == "gptq"
    assert {n: built.tensor(n).shape for n in built.header["weights"]} == {
        n: engine.tensor(n).shape for n in engine.header["weights"]
    }


def test_config_alone_is_of_floats(tmp_path: Path) -> None:
    folder, _, _ = written(tmp_path, CASES["awq g32"])
    with pytest.raises(CheckpointError, match="a model of config.json alone is one of floats"):
        models.load_config_only(folder)
