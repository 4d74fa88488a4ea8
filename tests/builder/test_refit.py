"""Engine.refit: a refitted engine is the engine that a build from the new weights gives, and the old one stays."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot import dtypes
from ingot.builder.adapter import merge
from ingot.engine.session import Engine
from ingot.errors import IngotError, InputError, RecipeError
from ingot.llm.llm import LLM
from ingot.models.weights import RandomWeights, parameter_specs
from ingot.safetensors_file import SafetensorsFile
from tests.conftest import PICO
from tests.frontends.test_torch_export_nets import SMALL as NETS
from tests.frontends.test_torch_export_nets import batch
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


@pytest.mark.parametrize("precision", ["bfloat16", "float32"])
@pytest.mark.parametrize("stored", [False, True], ids=["in memory", "file"])
def test_a_language_model(precision: str, stored: bool, tuned: tuple[Path, dict[str, Any]], tmp_path: Path) -> None:
    folder, state = tuned
    assert "lm_head.weight" in state, "the head is tied, and still a name of the state dict"
    engine = ingot.build(PICO, precision=precision, report=False)
    if stored:
        engine.save(tmp_path / "base.ingot")
        engine = ingot.load(tmp_path / "base.ingot")
    before = image(engine, tmp_path)
    wanted = ingot.build(folder, precision=precision, report=False)
    new = engine.refit(state)
    assert_same(new, wanted, tmp_path)
    with LLM(new) as one, LLM(wanted) as other:
        found, expected = (llm.generate("import os", max_tokens=24, logprobs=0) for llm in (one, other))
    assert (found.token_ids, found.logprobs) == (expected.token_ids, expected.logprobs)
    del state["lm_head.weight"]
    for name, tensor in sorted(state.items()):  # the others, each time, from what is stored
        engine = engine.refit({name: tensor})
    assert_same(engine, wanted, tmp_path)
    state["lm_head.weight"] = state["model.embed_tokens.weight"]
    back = new.refit(SafetensorsFile(PICO / "model.safetensors"))
    assert image(back, tmp_path) == before


FAMILIES = {
    "llama, tied and multi-head": "bfloat16", "llama, multi-query with biases": "float32", "qwen2": "float16",
    "gemma2": "float32", "mixtral": "bfloat16", "qwen2_moe": "float16", "phi3": "bfloat16",
}  # fmt: skip


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


def build_net(name: str, seed: int, precision: str) -> Engine:
    _, shape, dynamic = NETS[name]
    inputs = (batch(name, shape, 1),)
    return ingot.build(net_of(name, seed), inputs, dynamic={"x": dynamic}, precision=precision, report=False)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", NETS)
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


@pytest.mark.parametrize("name", ["unet", "bert"])
def test_nets_one_parameter_at_a_time(name: str, tmp_path: Path) -> None:
    """Nothing in these is folded away."""
    engine, wanted = (build_net(name, seed, "float32") for seed in (0, 1))
    for parameter, tensor in net_of(name, 1).state_dict().items():
        engine = engine.refit({parameter: tensor})
    assert_same(engine, wanted, tmp_path)


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


def image_in_memory(engine: Engine) -> dict[str, bytes]:
    return {name: engine.tensor(name).tobytes() for name in engine.header["weights"]}


def test_what_one_tensor_hides_another_may_show(tmp_path: Path) -> None:
    """A convolution's weight is stored plain, too: then it need not be given, unless rounding took bits of it."""
    parts = [p for p in PARTS if p != "conv.weight"]
    (engine, old), (_, state) = block(0, shared=True), block(1, shared=True)
    given = {p: state[p] for p in parts}
    assert_same(engine.refit(given), engine.refit({**given, "conv.weight": old["conv.weight"]}), tmp_path)
    narrow, _ = block(0, "bfloat16", shared=True)
    with pytest.raises(RecipeError, match="Give also conv.weight; or build"):
        narrow.refit(given)


# ---------------------------------------------------------------------------------------------- arrays that are given


def linear(dtype: str = "float32", seed: int = 0) -> tuple[Engine, dict[str, np.ndarray]]:
    module, rng = ingot.nn.Linear(6, 5, dtype=dtype), np.random.default_rng(seed)
    for parameter in module.parameters():
        parameter.value = rng.standard_normal(parameter.shape).astype(parameter.dtype.numpy)
    return ingot.build(module, {"x": ingot.Spec((3, 6), dtype)}, report=False), module.state_dict()


class Lent:
    """An array that only DLPack shows."""

    def __init__(self, array: np.ndarray) -> None:
        self.array = array

    def __dlpack__(self, **words: Any) -> Any:
        return self.array.__dlpack__(**words)

    def __dlpack_device__(self) -> Any:
        return self.array.__dlpack_device__()


def forms(array: np.ndarray) -> Iterator[Any]:
    yield array
    yield torch.from_numpy(array).requires_grad_()
    yield Lent(array)
    yield np.asfortranarray(array)
    yield array[::-1].copy()[::-1]
    yield array.astype(np.float64)
    yield torch.from_numpy(array).double()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_arrays_of_any_kind_are_rounded_as_in_a_build(dtype: str, tmp_path: Path) -> None:
    engine, _ = linear(dtype)
    rng = np.random.default_rng(5)
    weight, bias = rng.standard_normal((5, 6)).astype(np.float32), rng.standard_normal(5).astype(np.float32)
    module = ingot.nn.Linear(6, 5, dtype=dtype)
    kind = dtypes.get(dtype).numpy
    module.load_state_dict({"weight": weight.astype(kind), "bias": bias.astype(kind)})
    wanted = ingot.build(module, {"x": ingot.Spec((3, 6), dtype)}, report=False)
    for form in forms(weight):
        assert_same(engine.refit({"weight": form, "bias": torch.from_numpy(bias)}), wanted, tmp_path)
    narrow = torch.from_numpy(weight).to(torch.bfloat16)
    assert_same(engine.refit({"weight": narrow}), engine.refit({"weight": narrow.float()}), tmp_path)


def test_numbers_that_are_none_are_weights_too(tmp_path: Path) -> None:
    engine, _ = linear()
    bits = np.array([0x7FC12345, 0xFF800000, 0x80000000, 0x00000001, 0x7F800000], np.uint32).view(np.float32)
    new = engine.refit({"bias": bits})
    assert next(new.tensor(n) for n in new.header["weights"] if "bias" in n).tobytes() == bits.tobytes()
    zero = new.refit({"weight": np.zeros((5, 6))})
    assert_same(zero.refit({"bias": bits.copy()}), zero, tmp_path)


def test_later_changes_of_given_arrays_change_nothing() -> None:
    """An optimizer writes into the parameters that refit was given."""
    engine, state = linear()
    x = {engine.inputs[0].name: np.ones((3, 6), np.float32)}
    bias, weight = torch.zeros(5), torch.ones(5, 6)
    new = engine.refit({"weight": weight, "bias": bias})
    before = new.run(x)
    bias += 7
    weight *= 3
    for name in state:
        state[name] *= 100  # what the first engine was built from
    assert np.array_equal(new.run(x)["output_0"], before["output_0"])
    assert np.abs(engine.run(x)["output_0"]).max() < 30


def test_everything_that_is_wrong_is_said_at_once() -> None:
    engine, state = linear()
    before = image_in_memory(engine)
    given: dict[Any, Any] = {
        "weight": np.zeros((6, 5), np.float32), "bias": np.zeros(5, np.int32), "wieght": state["weight"], 3: 1.0,
        "x" * 500: state["bias"],
    }  # fmt: skip
    with pytest.raises(InputError) as caught:
        engine.refit(given)
    for said in (
        "nothing was changed", "'wieght' is no parameter of it", "'3' is no parameter",
        "weight: shape [6, 5], and the engine's is [5, 6]", "bias: dtype int32, and floats are needed",
        "It has weight, bias",
    ):  # fmt: skip
        assert said in str(caught.value), said
    with pytest.raises(InputError, match="'weighs' is no parameter of it; is it weight"):
        engine.refit({"weighs": state["weight"]})
    for odd in ([0.0] * 5, 1.0, None, "weight", np.ma.MaskedArray(np.zeros(5)), np.zeros(5, "O"), np.zeros(5, ">f4"),
                np.zeros(5, "f4,f4"), torch.zeros(5).to_sparse(), torch.zeros(5, dtype=torch.complex64)):  # fmt: skip
        with pytest.raises(InputError, match="bias"):
            engine.refit({"bias": odd})
    for none in (None, [("bias", np.zeros(5))], "bias"):
        with pytest.raises(InputError, match="refit takes a dict of arrays by name"):
            engine.refit(none)  # type: ignore[arg-type]
    assert image_in_memory(engine) == before
    assert image_in_memory(engine.refit({})) == before


def test_numbers_too_large_for_float16() -> None:
    engine, _ = linear("float16")
    with pytest.raises(RecipeError) as caught:
        engine.refit({"weight": np.full((5, 6), 1e6), "bias": np.full(5, -7e4)})
    assert "largest magnitude 1e+06" in str(caught.value) and "largest magnitude 70000" in str(caught.value)
    assert "weight" in str(caught.value) and "bias" in str(caught.value)


# ------------------------------------------------------------------------------------------------- while others run


def test_the_old_engine_goes_on_answering(tmp_path: Path) -> None:
    """A session of the old one runs in another thread all the while, and its bits stay."""
    build_net("resnet", 0, "float32").save(tmp_path / "net.ingot")
    engine = ingot.load(tmp_path / "net.ingot")
    x = {"x": batch("resnet", NETS["resnet"][1], 1)}
    session = engine.session(threads=1)
    wanted = session.run(x)["output_0"]
    states = [net_of("resnet", seed).state_dict() for seed in (1, 2)]
    refitted = [build_net("resnet", seed, "float32").run(x)["output_0"] for seed in (1, 2)]
    stop, runs, odd = threading.Event(), [0], [0]

    def answer() -> None:
        while not stop.is_set():
            odd[0] += not np.array_equal(session.run(x)["output_0"], wanted)
            runs[0] += 1

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        new = engine
        for i in range(8):
            new = new.refit(states[i % 2])
            assert np.array_equal(new.run(x)["output_0"], refitted[i % 2])
    finally:
        stop.set()
        thread.join()
    assert runs[0] > 3 and odd[0] == 0


def test_engines_that_nobody_uses_go(tmp_path: Path) -> None:
    """A chain of refits keeps what the last engine has, and no engine before it."""
    engine, state = linear()
    engine.save(tmp_path / "a.ingot")
    engine = ingot.load(tmp_path / "a.ingot")
    seen = []
    for i in range(4):
        engine.run({engine.inputs[0].name: np.ones((3, 6), np.float32)})
        new = engine.refit({"bias" if i % 2 else "weight": state["bias" if i % 2 else "weight"]})
        seen.append(weakref.ref(engine))
        engine = new
    del new
    gc.collect()
    assert not any(one() for one in seen)


# ---------------------------------------------------------------------------------------------------------- memory


def test_what_does_not_change_is_shared(tmp_path: Path) -> None:
    """Weights of a file stay mapped. Only of those that are made of a given parameter there are new ones."""
    ingot.build(PICO, report=False).save(tmp_path / "a.ingot")
    engine = ingot.load(tmp_path / "a.ingot")
    name = "model.layers.0.self_attn.k_proj.weight"
    new = engine.refit({name: np.zeros((128, 256), np.float32)})
    again = new.refit({"model.norm.weight": np.ones(256, np.float32)})
    weights = engine.header["weights"]
    changed = {t for t, e in weights.items() if e["recipe"] is not None and name in e["recipe"]["sources"]}
    assert len(changed) == 1
    for tensor in weights:
        pairs = ((engine, new), (new, again), (engine, again))
        shared = [np.shares_memory(a.tensor(tensor), b.tensor(tensor)) for a, b in pairs]
        if tensor in changed:
            assert shared == [False, True, False]
        elif "model.norm" in tensor:
            assert shared == [True, False, False]
        else:
            assert all(shared), tensor
    sessions = [e.session(threads=1, kv_blocks=1) for e in (engine, new)]
    assert sessions[0].memory() == sessions[1].memory()


MEASURED = """
import ctypes, gc, sys
import numpy as np, ingot
def anonymous():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    text = open("/proc/self/smaps_rollup").read()
    return 1024 * int(text.partition("Anonymous:")[2].split()[0])
engine = ingot.load(sys.argv[1])
x = {"x": np.ones((1, 64, 32, 32), np.float32)}
engine.run(x)
bias, weight = {"convs.0.bias": np.ones(256, np.float32)}, {"convs.1.weight": np.ones((256, 256, 3, 3), np.float32)}
found, kept = [], []
for given in (bias, bias, weight):  # the first time imports the compiler
    new = engine.refit(given)
    new.session(threads=1).run(x)
    kept.append(new)
    found.append(anonymous())
print(found[1] - found[0], found[2] - found[1])
"""


class Convolutions(ingot.Module):
    """3x3 convolutions that go by Winograd, whose transformed weights take 36 / 9 of the plain ones."""

    def __init__(self) -> None:
        super().__init__()
        sizes = [64, 256, 256, 256, 256]
        pairs = zip(sizes, sizes[1:], strict=False)
        self.convs = ingot.nn.ModuleList(ingot.nn.Conv2d(a, b, 3, padding=1) for a, b in pairs)

    def forward(self, x: Any) -> Any:
        for conv in self.convs:
            x = ingot.functional.relu(conv(x))
        return ingot.functional.mean(x, (2, 3))


def test_transformed_weights_in_kernels_are_shared(tmp_path: Path) -> None:
    """Measured in a process of its own: another bias costs next to nothing, another weight itself and its transform.

    Plain 256 * 256 * 9 floats are 2.36 MB and transformed ones 9.44 MB; all four transformed ones would be 30.7 MB.
    """
    spec = ingot.Spec((1, 64, 32, 32), "float32")
    engine = ingot.build(Convolutions(), {"x": spec}, weights_from="random", report=False)
    engine.save(tmp_path / "a.ingot")
    words = [sys.executable, "-c", MEASURED, str(tmp_path / "a.ingot")]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    bias, weight = map(int, done.stdout.split())
    print(f"another bias takes {bias:,} bytes, another weight {weight:,}")
    plain, transformed = 256 * 256 * 9 * 4, 256 * 256 * 36 * 4
    assert bias < 1_000_000
    assert plain + transformed <= weight < plain + transformed + 3_000_000


def test_transformed_weights_are_those_of_the_new_weight() -> None:
    """Both engines run before and after the refit, so that whichever copy were kept would show."""
    spec = ingot.Spec((1, 64, 32, 32), "float32")
    engine = ingot.build(Convolutions(), {"x": spec}, weights_from="random", report=False)
    rng = np.random.default_rng(0)
    x = {"x": rng.standard_normal((1, 64, 32, 32)).astype(np.float32)}
    old = engine.run(x)["output_0"]
    given = {"convs.1.weight": rng.standard_normal((256, 256, 3, 3)).astype(np.float32) * np.float32(0.02)}
    new = engine.refit(given)
    module = Convolutions()
    state = dict(RandomWeights(parameter_specs(module), 0))
    module.load_state_dict(state | given)
    wanted = ingot.build(module, {"x": spec}, report=False).run(x)["output_0"]
    for _ in range(2):
        assert np.array_equal(new.run(x)["output_0"], wanted)
        assert np.array_equal(engine.run(x)["output_0"], old)
    assert not np.array_equal(wanted, old)


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


# -------------------------------------------------------------------------------------------- files of strangers


def altered(engine: Engine, change: Callable[[dict[str, Any], str], None]) -> Engine:
    header = json.loads(json.dumps(engine.header))
    name = next(n for n, e in header["weights"].items() if e["recipe"] and "weight" in e["recipe"]["sources"][0])
    change(header["weights"][name]["recipe"], name)
    return Engine.from_memory(header, {n: engine.tensor(n) for n in engine.header["weights"]})


def doubled(recipe: dict[str, Any], name: str) -> None:
    """2^40 times the weight on the way, of which the last step takes a part."""
    steps = [["cast", 1, {"dtype": "float32", "in": [0]}]]
    steps += [["concat", 1, {"axis": 0, "in": [i, i]}] for i in range(1, 41)]
    steps += [["slice", 1, {"starts": [0, 0], "sizes": [5, 6], "in": [41]}]]
    recipe["steps"] = [*steps, ["pack_panels", 1, {"in": [42]}]]


def deep(recipe: dict[str, Any], name: str) -> None:
    recipe["steps"] = [["transpose", 1, {"axes": [1, 0], "in": [i]}] for i in range(6000)]
    recipe["steps"] += [["pack_panels", 1, {"in": [6000]}]]


def endless(recipe: dict[str, Any], name: str) -> None:
    recipe["steps"] = [["transpose", 1, {"axes": [1, 0], "in": [0]}]] * 20_000 + [["pack_panels", 1, {"in": [0]}]]


def another_shape(recipe: dict[str, Any], name: str) -> None:
    recipe["steps"] = [["slice", 1, {"starts": [0, 0], "sizes": [5, 4], "in": [0]}], ["pack_panels", 1, {"in": [1]}]]


def foreign(recipe: dict[str, Any], name: str) -> None:
    recipe["sources"] += ["nobody"]
    recipe["steps"] = [["concat", 1, {"axis": 0, "in": [0, 1]}]]


def of_an_adapter(recipe: dict[str, Any], name: str) -> None:
    recipe["sources"] += ["lora.x.A"]
    recipe["steps"] = [["concat", 1, {"axis": 0, "in": [0, 1]}]]


@pytest.mark.parametrize("change", [doubled, endless, another_shape, foreign, of_an_adapter])
def test_recipes_that_lie(change: Callable[[dict[str, Any], str], None]) -> None:
    engine, state = linear()
    bad = altered(engine, change)
    with pytest.raises(IngotError) as caught:
        bad.refit({"weight": state["weight"], "lora.x.A": state["weight"]} if change is of_an_adapter else state)
    print(caught.value)
    assert isinstance(caught.value, RecipeError | InputError)


def test_a_deep_recipe_is_followed() -> None:
    engine, state = linear()
    new = altered(engine, deep).refit({"weight": state["weight"] + 1})
    wanted = engine.refit({"weight": state["weight"] + 1})
    assert image_in_memory(new) == image_in_memory(wanted)


def test_aliases_that_lie() -> None:
    engine, state = linear()
    for aliases in (["bias"], {"b": "nobody"}, {"b": 3}, {"b": ["bias"]}, "b"):
        header = {**engine.header, "config": {**engine.config, "aliases": aliases}}
        bad = Engine.from_memory(header, {n: engine.tensor(n) for n in engine.header["weights"]})
        with pytest.raises(InputError, match="'b' is no parameter of it"):
            bad.refit({"b": state["bias"]})
