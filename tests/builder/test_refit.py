"""Engine.refit: a refitted engine is the engine that a build from the new weights gives, and the old one stays."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.builder.adapter import merge
from ingot.engine.session import Engine
from ingot.errors import InputError, RecipeError
from ingot.llm.llm import LLM
from ingot.safetensors_file import SafetensorsFile
from tests.frontends.test_torch_export_nets import SMALL as NETS
from tests.frontends.test_torch_export_nets import batch
from tests.kept import PICO
from tests.models import model_zoo, reference_models, test_lora

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
safetensors_torch = pytest.importorskip("safetensors.torch")

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")
ROOT = Path(__file__).parents[2]


def image(engine: Engine, folder: Path) -> bytes:
    """The engine's file."""
    path = folder / "saved.ingot"
    engine.save(path)
    return path.read_bytes()


def assert_same(found: Engine, wanted: Engine, folder: Path) -> None:
    assert found.header == wanted.header
    assert image(found, folder) == image(wanted, folder)


def image_in_memory(engine: Engine) -> dict[str, bytes]:
    return {name: engine.tensor(name).tobytes() for name in engine.header["weights"]}


# ------------------------------------------------------------------------------------------------- language models


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """pico-python with other weights: its folder, and its state dict as transformers gives it."""
    folder = tmp_path_factory.mktemp("tuned") / "pico"
    model = transformers.AutoModelForCausalLM.from_pretrained(PICO, dtype=torch.bfloat16)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_((torch.randn(parameter.shape, generator=generator) * 0.01).to(parameter.dtype))
    model.save_pretrained(folder)
    for file in PICO.iterdir():
        if file.suffix == ".json" and file.name.startswith(("config", "tokenizer", "generation")):
            (folder / file.name).write_bytes(file.read_bytes())
    return folder, dict(model.state_dict())


WORDS = [
    {"precision": "bfloat16"}, {"precision": "float32"}, {"precision": "bfloat16", "weights": "int8"},
    {"precision": "float32", "weights": "int4-g32"},
]  # fmt: skip


@pytest.mark.sampled(8)
@pytest.mark.parametrize("words", WORDS, ids=lambda words: " ".join(words.values()))
@pytest.mark.parametrize("stored", [True, False], ids=["file", "in memory"])
def test_a_language_model(
    words: dict[str, str], stored: bool, tuned: tuple[Path, dict[str, Any]], tmp_path: Path
) -> None:
    folder, state = tuned[0], dict(tuned[1])
    assert "lm_head.weight" in state, "the head is tied, and still a name of the state dict"
    engine = ingot.build(PICO, **words, report=False)
    if stored:
        engine.save(tmp_path / "base.ingot")
        engine = ingot.load(tmp_path / "base.ingot")
    before = image(engine, tmp_path)
    wanted = ingot.build(folder, **words, report=False)
    new = engine.refit(state)
    assert_same(new, wanted, tmp_path)
    with LLM(new) as one, LLM(wanted) as other:
        found, expected = (llm.generate("import os", max_tokens=24, logprobs=0) for llm in (one, other))
    assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)
    del state["lm_head.weight"]
    for name, tensor in sorted(state.items()):  # the others, each time, from what is stored
        engine = engine.refit({name: tensor})
    assert_same(engine, wanted, tmp_path)
    back = new.refit(SafetensorsFile(PICO / "model.safetensors"))
    assert image(back, tmp_path) == before


FAMILIES = {
    "llama, tied and multi-head": "bfloat16", "llama, multi-query with biases": "float32", "qwen2": "float16",
    "gemma2": "float32", "mixtral": "bfloat16", "qwen2_moe": "float16", "phi3": "bfloat16",
}  # fmt: skip


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("case", "precision"), FAMILIES.items())
def test_families(case: str, precision: str, tmp_path: Path) -> None:
    """Weights stored together (q, k and v; gate and up; all experts), one parameter at a time and all at once."""
    family, settings = model_zoo.CASES[case]
    model_zoo.make(transformers, torch, family, settings, tmp_path / "a")
    file = SafetensorsFile(tmp_path / "a" / "model.safetensors")
    rng = np.random.default_rng(1)
    state = {n: file[n] + rng.standard_normal(file[n].shape).astype(np.float32) * np.float32(0.1) for n in file}
    write_checkpoint(tmp_path / "a", tmp_path / "b", state)
    engine = ingot.build(tmp_path / "a", precision=precision, report=False)
    wanted = ingot.build(tmp_path / "b", precision=precision, report=False)
    assert_same(engine.refit(state), wanted, tmp_path)
    for name in rng.permutation(list(state)).tolist():
        engine = engine.refit({name: state[name]})
    assert_same(engine, wanted, tmp_path)


def write_checkpoint(source: Path, folder: Path, state: dict[str, np.ndarray]) -> None:
    folder.mkdir()
    for file in source.glob("*.json"):
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = {n: torch.from_numpy(np.ascontiguousarray(a)) for n, a in state.items()}
    safetensors_torch.save_file(tensors, str(folder / "model.safetensors"))


def test_names_of_a_checkpoint(tmp_path: Path) -> None:
    """Names as build takes them: without the prefix of a model saved bare, and with what it leaves aside."""
    model_zoo.make(transformers, torch, "Llama", {"tie_word_embeddings": True}, tmp_path / "a")
    engine = ingot.build(tmp_path / "a", report=False)
    rng = np.random.default_rng(0)
    table, norm = rng.standard_normal((61, 32)).astype(np.float32), rng.standard_normal(32).astype(np.float32)
    wanted = engine.refit({"model.embed_tokens.weight": table, "model.norm.weight": norm})
    rotary = {"model.layers.0.self_attn.rotary_emb.inv_freq": np.ones(4, np.float32)}
    for head in ({"lm_head.weight": table}, {"embed_tokens.weight": table}, {"model.embed_tokens.weight": table}):
        assert_same(engine.refit({**head, "norm.weight": norm, **rotary}), wanted, tmp_path)
    assert_same(engine.refit({"lm_head.weight": table, "embed_tokens.weight": table.copy()}),
                engine.refit({"lm_head.weight": table}), tmp_path)  # fmt: skip
    with pytest.raises(InputError, match=r"embed_tokens.weight: differs from lm_head.weight, but both are one tied"):
        engine.refit({"lm_head.weight": table, "model.embed_tokens.weight": table + 1})


def test_rows_of_length_one(tmp_path: Path) -> None:
    """Baichuan 2: a build brings the head's rows to length 1 when it reads them, and so does refit."""
    case = reference_models.CASES["baichuan 2, 7B"]
    reference_models.make(torch, case, tmp_path / "a")
    file = SafetensorsFile(tmp_path / "a" / "model.safetensors")
    state = {"lm_head.weight": file["lm_head.weight"] * 3 + 1}
    write_checkpoint(tmp_path / "a", tmp_path / "b", {n: file[n] for n in file} | state)
    for precision in ("float32", "bfloat16"):
        old, wanted = (ingot.build(tmp_path / f, precision=precision, report=False) for f in "ab")
        assert_same(old.refit(state), wanted, tmp_path)


def test_an_encoder(tmp_path: Path) -> None:
    config = transformers.BertConfig(
        hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=48, vocab_size=90
    )
    for seed, name in enumerate("ab"):
        torch.manual_seed(seed)
        model = transformers.BertModel(config)
        model.save_pretrained(tmp_path / name)
    old, wanted = (ingot.build(tmp_path / name, report=False) for name in "ab")
    assert old.kind == "encoder"
    assert_same(old.refit(model.state_dict()), wanted, tmp_path)


# ------------------------------------------------------------------------------------------------------- four nets


def net_of(name: str, seed: int) -> Any:
    torch.manual_seed(seed)
    net = NETS[name][0]().eval()
    for module in net.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            torch.nn.init.normal_(module.running_mean, 0.0, 0.1)
            torch.nn.init.uniform_(module.running_var, 0.5, 1.5)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
            torch.nn.init.normal_(module.bias, 0.0, 0.1)
    return net


@functools.cache
def build_net(name: str, seed: int, precision: str) -> Engine:
    """The same one for all who ask: a refit makes another engine."""
    _, shape, dynamic = NETS[name]
    inputs = (batch(name, shape, 1),)
    return ingot.build(net_of(name, seed), inputs, dynamic={"x": dynamic}, precision=precision, report=False)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "precision"), [
    *zip(NETS, ["float32", "bfloat16"] * 2, strict=True),
    *(pytest.param(*other, marks=pytest.mark.slow) for other in zip(NETS, ["bfloat16", "float32"] * 2, strict=True)),
])  # fmt: skip
def test_nets(name: str, precision: str, tmp_path: Path) -> None:
    """The whole state dict of another net, with counters of batches and all; in memory and from a file."""
    engine, wanted = (build_net(name, seed, precision) for seed in (0, 1))
    engine.save(tmp_path / "net.ingot")
    x = {"x": batch(name, NETS[name][1], 2)}
    old = engine.run(x)["output_0"]
    expected = wanted.run(x)["output_0"]
    assert not np.array_equal(old, expected)
    state = net_of(name, 1).state_dict()
    for base in (engine, ingot.load(tmp_path / "net.ingot")):
        new = base.refit(state)
        assert_same(new, wanted, tmp_path)
        assert np.array_equal(new.run(x)["output_0"], expected)
        assert np.array_equal(base.run(x)["output_0"], old)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("name", "precision"), [*zip(NETS, ["float32", "bfloat16"] * 2, strict=True)])
def test_nets_part_by_part(name: str, precision: str, tmp_path: Path) -> None:
    """As few parameters at a time as go: those that the error names together. Neighbours come from what is stored."""
    engine, wanted = (build_net(name, seed, precision) for seed in (0, 1))
    state = {n: tensor for n, tensor in net_of(name, 1).state_dict().items() if "num_batches" not in n}
    waiting, largest = list(state), 0
    while waiting:
        given = [waiting[0]]
        try:
            engine = engine.refit({n: state[n] for n in given})
        except RecipeError as e:
            given += str(e).partition("Give also ")[2].partition("; or build")[0].split(", ")
            engine = engine.refit({n: state[n] for n in given})
        waiting = [n for n in waiting if n not in given]
        largest = max(largest, len(given))
    assert_same(engine, wanted, tmp_path)
    assert largest == (1 if name in ("unet", "bert") else 5 if name == "resnet" else 6), "a convolution and its norm"


def test_a_saved_program(tmp_path: Path) -> None:
    """.pt2 with tied weights, whose second name is in the state dict only, and a tensor that no output reads."""

    class Net(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)
            self.b.weight = self.a.weight
            self.unread = torch.nn.Parameter(torch.zeros(3))
            self.register_buffer("order", torch.arange(7, -1, -1))

        def forward(self, x: Any) -> Any:
            return self.b(torch.relu(self.a(x))[:, self.order])

    def saved(seed: int) -> tuple[Path, Any]:
        torch.manual_seed(seed)
        net = Net().eval()
        torch.export.save(torch.export.export(net, (torch.ones(2, 8),)), tmp_path / f"{seed}.pt2")
        return tmp_path / f"{seed}.pt2", net

    (first, net), (second, other) = saved(0), saved(1)
    state = other.state_dict()
    assert "b.weight" in state and "unread" in state
    wanted = ingot.build(second, report=False)
    for engine in (ingot.build(first, report=False), ingot.build(net, (torch.ones(2, 8),), report=False)):
        new = engine.refit(state)
        assert_same(new, wanted, tmp_path)
        assert_same(engine.refit({k: v for k, v in state.items() if k != "a.weight"}), wanted, tmp_path)
        x = torch.randn(2, 8)
        np.testing.assert_allclose(new.run({"x": x})["output_0"], other(x).detach().numpy(), rtol=1e-5, atol=1e-6)
        with pytest.raises(InputError, match="b.weight: differs from a.weight, but both are one tied parameter"):
            engine.refit({**state, "b.weight": state["a.weight"] + 1})
        with pytest.raises(InputError, match="order: its numbers are a part of the network"):
            engine.refit({"order": torch.arange(8)})


class Block(ingot.Module):
    """A convolution and a batch norm, the convolution's weight read once more, plain."""

    def __init__(self, shared: bool = False) -> None:
        super().__init__()
        self.shared = shared
        self.conv = ingot.nn.Conv2d(4, 8, 3, padding=1)
        self.bn = ingot.nn.BatchNorm2d(8)
        self.head = ingot.nn.Linear(8, 8)
        self.head_again = self.head

    def forward(self, x: Any) -> Any:
        y = ingot.functional.relu(self.bn(self.conv(x)))
        y = y + ingot.functional.conv2d(x, self.conv.weight, padding=1) if self.shared else y
        return self.head(ingot.functional.mean(y, (2, 3)))


def block(seed: int, precision: str | None = None, shared: bool = False) -> tuple[Engine, dict[str, np.ndarray]]:
    module, rng = Block(shared), np.random.default_rng(seed)
    for name, parameter in module.named_parameters():
        value = rng.uniform(0.5, 1.5, parameter.shape) if "var" in name else rng.standard_normal(parameter.shape)
        parameter.value = value.astype(np.float32)
    spec = ingot.Spec((ingot.Dim("N", 1, 2, 8), 4, 8, 8), "float32")
    engine = ingot.build(module, {"x": spec}, precision=precision, report=False)
    return engine, module.state_dict()


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_a_module(precision: str, tmp_path: Path) -> None:
    """Folded batch norms are made from float32 and rounded once, as in a build; every path of a tied weight."""
    (engine, _), (wanted, state) = block(0, precision), block(1, precision)
    assert "head_again.weight" in state
    counter = {"bn.num_batches_tracked": np.array(3)}
    assert_same(engine.refit({**state, **counter}), wanted, tmp_path)


PARTS = ["bn.running_mean", "bn.running_var", "bn.weight", "bn.bias", "conv.weight", "conv.bias"]


def test_parameters_that_are_stored_as_one() -> None:
    """A convolution and its batch norm are folded together: the error names all of them, and why, at once."""
    (engine, _), (wanted, state) = block(0), block(1)
    before = image_in_memory(engine)
    for name in PARTS:
        with pytest.raises(RecipeError) as caught:
            engine.refit({name: state[name]})
        text = str(caught.value)
        needed = text.partition("Give also ")[2].partition(";")[0].split(", ")
        assert "must be given together; nothing was changed" in text and "cannot be undone" in text
        assert set(needed) == {p for p in PARTS if p != name}, (name, text)
    with pytest.raises(RecipeError, match="is made of bn.running_var, bn.weight and conv.weight by the step scale"):
        engine.refit({p: state[p] for p in PARTS if p != "conv.weight"})
    assert image_in_memory(engine) == before
    new = engine.refit({p: state[p] for p in PARTS})
    new = new.refit({"head.weight": state["head.weight"]}).refit({"head_again.bias": state["head.bias"]})
    assert image_in_memory(new) == image_in_memory(wanted)


def test_what_one_tensor_hides_another_may_show(tmp_path: Path) -> None:
    """A convolution's weight is stored plain, too: then it need not be given, unless rounding took bits of it."""
    parts = [p for p in PARTS if p != "conv.weight"]
    (engine, old), (_, state) = block(0, shared=True), block(1, shared=True)
    given = {p: state[p] for p in parts}
    assert_same(engine.refit(given), engine.refit({**given, "conv.weight": old["conv.weight"]}), tmp_path)
    narrow, _ = block(0, "bfloat16", shared=True)
    with pytest.raises(RecipeError, match="Give also conv.weight; or build"):
        narrow.refit(given)


class Twice(ingot.Module):
    """A transposed convolution whose weight is read twice: once plain, and once with a batch norm behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.bn = ingot.nn.ConvTranspose2d(4, 8, 3, stride=2, bias=False), ingot.nn.BatchNorm2d(8)

    def forward(self, x: Any) -> Any:
        plain = ingot.functional.conv_transpose2d(x, self.up.weight, stride=2)
        other = ingot.functional.conv_transpose2d(x, self.up.weight, stride=3)
        return ingot.functional.mean(plain, (2, 3)) + ingot.functional.mean(self.bn(other), (2, 3))


def twice(seed: int, precision: str | None = None) -> tuple[Engine, dict[str, np.ndarray]]:
    module, rng = Twice(), np.random.default_rng(seed)
    for name, parameter in module.named_parameters():
        value = rng.uniform(0.5, 1.5, parameter.shape) if "var" in name else rng.standard_normal(parameter.shape)
        parameter.value = value.astype(np.float32)
    spec = ingot.Spec((ingot.Dim("N", 1, 2, 8), 4, 8, 8), "float32")
    return ingot.build(module, {"x": spec}, precision=precision, report=False), module.state_dict()


def test_a_weight_that_is_stored_in_parts(tmp_path: Path) -> None:
    """By the phases of a transposed convolution: they make up the weight, which then need not be given."""
    (engine, old), (_, state) = twice(0), twice(1)
    given = {name: array for name, array in state.items() if name != "up.weight"}
    assert sum(bool(e["recipe"]) and "take" in str(e["recipe"]) for e in engine.header["weights"].values()) >= 4
    assert_same(engine.refit(given), engine.refit({**given, "up.weight": old["up.weight"]}), tmp_path)
    with pytest.raises(RecipeError, match=r"Give also up\.weight; or build"):
        twice(0, "bfloat16")[0].refit(given)


# ------------------------------------------------------------------------------------------------------ LoRA adapters


@pytest.fixture
def adapted(tmp_path: Path) -> tuple[Path, Path, Path, dict[str, np.ndarray]]:
    """A tiny model, the same with other weights, an adapter, and those other weights."""
    model_zoo.make(transformers, torch, "Llama", {}, tmp_path / "a")
    file = SafetensorsFile(tmp_path / "a" / "model.safetensors")
    rng = np.random.default_rng(2)
    state = {n: (file[n] + rng.standard_normal(file[n].shape) * 0.1).astype(np.float32) for n in file}
    write_checkpoint(tmp_path / "a", tmp_path / "b", state)
    adapter = test_lora.write(tmp_path / "lo", test_lora.config(), test_lora.tensors())
    return tmp_path / "a", tmp_path / "b", adapter, state


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_an_adapter_after_a_refit(
    precision: str, adapted: tuple[Path, Path, Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    old, new, adapter, state = adapted
    refitted = ingot.build(old, precision=precision, report=False).refit(state)
    assert_same(merge(refitted, adapter), ingot.build(new, precision=precision, lora=adapter, report=False), tmp_path)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_refit_after_an_adapter(
    precision: str, adapted: tuple[Path, Path, Path, dict[str, np.ndarray]], tmp_path: Path
) -> None:
    """The adapter stays merged: new weights are those of the base. Where it is part of one, its tensors are needed."""
    old, new, adapter, state = adapted
    engine = ingot.build(old, precision=precision, lora=adapter, report=False)
    wanted = ingot.build(new, precision=precision, lora=adapter, report=False)
    q, v = (f"model.layers.1.self_attn.{n}_proj" for n in "qv")
    with pytest.raises(RecipeError) as caught:
        engine.refit({f"{q}.weight": state[f"{q}.weight"]})
    assert f"Give also lora.lo.{q}.A, lora.lo.{q}.B; or build" in str(caught.value)
    assert "by the step lora_merge, which cannot be undone" in str(caught.value)
    with pytest.raises(RecipeError, match=f"Give also {q}.weight, lora.lo.{q}.B; or build"):
        engine.refit({f"lora.lo.{q}.A": np.zeros((4, 32), np.float32)})
    free = {n: array for n, array in state.items() if "q_proj" not in n and "v_proj" not in n}
    stored = SafetensorsFile(adapter / "adapter_model.safetensors")
    pairs = {f"lora.lo.{n.removeprefix('base_model.model.')[:-14]}.{n[-8]}": stored[n] for n in stored}
    assert f"lora.lo.{v}.B" in pairs
    rest = {n: array for n, array in state.items() if n not in free}
    assert_same(engine.refit(free).refit(rest | pairs), wanted, tmp_path)
    other = {n: np.asarray(a) * 0 for n, a in pairs.items()}
    without = ingot.build(new, precision=precision, report=False)
    assert np.array_equal(test_lora.logits(engine.refit(state | other)), test_lora.logits(without))
    with pytest.raises(InputError, match=r"dtype int32, and an adapter's tensors are floats"):
        engine.refit(rest | pairs | {f"lora.lo.{v}.A": np.zeros((4, 32), np.int32)})
    with pytest.raises(RecipeError, match="do not fit a base of 16 outputs and 32 inputs"):
        engine.refit(rest | pairs | {f"lora.lo.{v}.A": np.zeros((4, 31), np.float32)})


@pytest.mark.parametrize("much", [[1 << 30, 0], [1 << 58, 0]])
def test_a_file_whose_recipe_makes_much_of_little(tmp_path: Path, much: list[int]) -> None:
    """It is refused before anything of that size is allocated, and runs: a program reads stored tensors only."""
    x = np.ones((4, 8), np.float32)
    net, inputs = ingot.nn.Linear(8, 64), {"x": ingot.Spec((4, 8), "float32")}
    engine = ingot.build(net, inputs, weights_from="random", progress=False, report=False)
    steps = [["pad", 1, {"after": much, "in": [0]}], ["slice", 1, {"starts": [0, 0], "sizes": [64, 8], "in": [1]}],
             ["pack_panels", 1, {"in": [2]}]]  # fmt: skip
    weights = dict(engine.header["weights"])
    weights["weight.packed"] = {"recipe": {"sources": ["weight"], "steps": steps}, "hash": []}
    tensors = {name: engine.tensor(name) for name in weights}
    engine.with_tensors({**engine.header, "weights": weights}, tensors).save(tmp_path / "much.ingot")
    found = ingot.load(tmp_path / "much.ingot")
    assert np.array_equal(*(next(iter(one(x).values())) for one in (found, engine)))
    with pytest.raises(RecipeError, match="the file is damaged|is larger than any memory"):
        found.refit({"weight": np.zeros((64, 8), np.float32)})


TRANSPOSED = {  # inputs, outputs, kernel, stride, groups, with a batch norm: stored by up to 256 phases
    "groups and a norm": (256, 256, 4, 4, 2, True), "a norm": (64, 64, 16, 8, 1, True),
    "64 phases": (128, 128, 8, 8, 1, False), "the head of FCN-16s": (21, 21, 32, 16, 1, False),
    "256 phases": (64, 64, 16, 16, 1, False),
}  # fmt: skip


@pytest.mark.parametrize("stored", [True, False], ids=["file", "in memory"])
@pytest.mark.parametrize("case", TRANSPOSED)
def test_a_transposed_convolution_of_many_phases(case: str, stored: bool, tmp_path: Path) -> None:
    """What all phases are made of is made once, and counts once against the bytes that there are."""
    inputs, outputs, kernel, stride, groups, norm = TRANSPOSED[case]

    def net(seed: int) -> Any:
        torch.manual_seed(seed)
        layer = torch.nn.ConvTranspose2d(inputs, outputs, kernel, stride, groups=groups, bias=not norm)
        return torch.nn.Sequential(layer, *([torch.nn.BatchNorm2d(outputs)] if norm else [])).eval()

    x = torch.randn(1, inputs, 2, 2)
    other = net(2)
    engine, wanted = (ingot.build(one, (x,), progress=False, report=False) for one in (net(1), other))
    if stored:
        engine.save(tmp_path / "base.ingot")
        engine = ingot.load(tmp_path / "base.ingot")
    state = {name: t for name, t in other.state_dict().items() if t.is_floating_point()}
    assert image_in_memory(engine.refit(state)) == image_in_memory(wanted)
