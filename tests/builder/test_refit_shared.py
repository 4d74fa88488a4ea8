"""What a refitted engine shares with the old one, and what it does not."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import threading
import weakref
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.builder.outline import outline
from ingot.llm.llm import LLM
from ingot.llm.plan import MemoryPlanner
from ingot.models.weights import RandomWeights, parameter_specs
from ingot.safetensors_file import SafetensorsFile
from tests.builder.test_refit import build_net, net_of
from tests.builder.test_refit_given import linear
from tests.frontends.test_torch_export_nets import SMALL as NETS
from tests.frontends.test_torch_export_nets import batch
from tests.kept import PICO

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")
ROOT = Path(__file__).parents[2]


# ------------------------------------------------------------------------------------------------- while others run


def test_the_old_engine_goes_on_answering(tmp_path: Path) -> None:
    """A session of the old one runs in another thread all the while, and its bits stay."""
    build_net("resnet", 0, "float32").save(tmp_path / "net.ingot")
    engine = ingot.load(tmp_path / "net.ingot")
    x = {"x": batch("resnet", NETS["resnet"][1], 1)}
    session = engine.session(threads=1)
    wanted = session.run(x)["output_0"]
    states = [net_of("resnet", seed).state_dict() for seed in (1, 0)]
    refitted = [build_net("resnet", seed, "float32").run(x)["output_0"] for seed in (1, 0)]
    stop, runs, odd = threading.Event(), [0], [0]

    def answer() -> None:
        while not stop.is_set():
            odd[0] += not np.array_equal(session.run(x)["output_0"], wanted)
            runs[0] += 1

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        new = engine
        for i in range(4):
            new = new.refit(states[i % 2])
            assert np.array_equal(new.run(x)["output_0"], refitted[i % 2])
    finally:
        stop.set()
        thread.join()
    assert runs[0] > 3 and odd[0] == 0


def test_the_old_model_goes_on_answering(pico_engine: Path) -> None:
    """The same for language models, whose requests take many steps."""
    engine = ingot.load(pico_engine)
    rng = np.random.default_rng(0)
    table = SafetensorsFile(PICO / "model.safetensors")["model.embed_tokens.weight"].astype(np.float32)
    given = {"model.embed_tokens.weight": table + rng.standard_normal(table.shape) * 0.05}
    with LLM(engine, threads=1) as old:
        wanted = old.generate("def quicksort(items):", max_tokens=200, logprobs=0)
        pending = old.stream("def quicksort(items):", max_tokens=200, logprobs=0)
        first = next(pending)
        with LLM(engine.refit(given), threads=1) as new:
            found = new.generate("def quicksort(items):", max_tokens=20)
        rest = list(pending)
    assert found.token_ids != wanted.token_ids[:20]
    assert [*first.token_ids, *(t for part in rest for t in part.token_ids)] == wanted.token_ids


def test_an_engine_on_another_device_stays_there() -> None:
    engine, state = linear()
    x = {engine.inputs[0].name: np.ones((3, 6), np.float32)}
    there = engine.on("torch")
    there.run(x)  # has brought its weights there
    given = {"weight": state["weight"] * 2}
    new = there.refit(given)
    assert new.device == there.device
    np.testing.assert_allclose(new.run(x)["output_0"], engine.refit(given).run(x)["output_0"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(there.run(x)["output_0"], engine.run(x)["output_0"], rtol=1e-5, atol=1e-6)


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


ANONYMOUS = """
import ctypes, gc, sys
import numpy as np, ingot
def anonymous():
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    text = open("/proc/self/smaps_rollup").read()
    return 1024 * int(text.partition("Anonymous:")[2].split()[0])
engine = ingot.load(sys.argv[1])
found, kept = [], []
"""


def measured(code: str, path: Path) -> list[int]:
    """By how much memory that is mapped from no file grows, in a process of its own, from one entry of `found` to the
    next. The first refit there imports the compiler.
    """
    words = [sys.executable, "-c", f"{ANONYMOUS}{code}\nprint(*found)", str(path)]
    done = subprocess.run(words, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)})
    assert done.returncode == 0, done.stderr
    sizes = [int(n) for n in done.stdout.split()]
    return [later - earlier for earlier, later in pairwise(sizes)]


def test_memory_is_that_of_the_plan(tmp_path: Path) -> None:
    """New weights for all of a model take what `ingot plan` says its weights take; one norm, next to nothing."""
    config = {
        "architectures": ["LlamaForCausalLM"], "hidden_size": 512, "intermediate_size": 2048, "num_hidden_layers": 4,
        "num_attention_heads": 8, "num_key_value_heads": 8, "vocab_size": 8000, "torch_dtype": "bfloat16",
        "max_position_embeddings": 64,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(config))
    ingot.build(tmp_path, weights_from="random", report=False).save(tmp_path / "a.ingot")
    planned = MemoryPlanner(outline(tmp_path)[0], 1).plan(1, 64).weights
    code = """
sizes = {p["name"]: p["shape"] for p in engine.header["networks"]["main"]["parameters"]}
norm = {"model.norm.weight": np.ones(512, np.float32)}
for given in (norm, norm, {name: np.ones(shape, np.float32) for name, shape in sizes.items()}):
    kept.append(engine.refit(given))
    del given
    found.append(anonymous())
"""
    norm, whole = measured(code, tmp_path / "a.ingot")
    print(f"one norm takes {norm:,} bytes, all weights {whole:,}; planned {planned:,}")
    assert planned > 40e6
    assert norm < 1_000_000
    assert whole == pytest.approx(planned, rel=0.03)


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
    code = """
x = {"x": np.ones((1, 64, 32, 32), np.float32)}
engine.run(x)
bias, weight = {"convs.0.bias": np.ones(256, np.float32)}, {"convs.1.weight": np.ones((256, 256, 3, 3), np.float32)}
for given in (bias, bias, weight):
    kept.append(engine.refit(given))
    kept[-1].session(threads=1).run(x)
    found.append(anonymous())
"""
    bias, weight = measured(code, tmp_path / "a.ingot")
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
