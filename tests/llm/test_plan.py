"""What `ingot plan` says before anything loads is what a running model takes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ingot
from ingot.builder.outline import outline
from ingot.errors import CheckpointError, UserError
from ingot.llm.llm import LLM
from ingot.llm.plan import MemoryPlanner
from tests.cli.command import ingot as run
from tests.kept import PICO
from tests.models.model_zoo import SMALL

ROOT = Path(__file__).parents[2]
WIDE = SMALL | {
    "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 3, "vocab_size": 777, "head_dim": 32,
    "max_position_embeddings": 2048, "torch_dtype": "bfloat16",
}  # fmt: skip
FAMILIES: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"rms_norm_eps": 1e-5},
    "LlamaForCausalLM, tied, float32": {"tie_word_embeddings": True, "torch_dtype": "float32", "vocab_size": 5000},
    "MistralForCausalLM, windows": {"sliding_window": 64},
    "Qwen2ForCausalLM": {"num_key_value_heads": 1},
    "Qwen3ForCausalLM": {"head_dim": 64},
    "MixtralForCausalLM": {"num_local_experts": 4, "sliding_window": None},
    "Gemma2ForCausalLM": {"sliding_window": 64},
    "GPT2LMHeadModel": {
        "n_embd": 128,
        "n_layer": 3,
        "n_head": 4,
        "n_positions": 1024,
        "activation_function": "gelu_new",
    },
    "BloomForCausalLM": {"n_layer": 3, "n_head": 4, "seq_length": 1024},
}
LARGE = {
    "architectures": ["LlamaForCausalLM"], "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80,
    "num_attention_heads": 64, "num_key_value_heads": 8, "max_position_embeddings": 131072, "vocab_size": 128256,
    "torch_dtype": "bfloat16", "tie_word_embeddings": False,
}  # fmt: skip


def directory(folder: Path, config: dict[str, Any]) -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def family(name: str, folder: Path) -> Path:
    return directory(folder, WIDE | FAMILIES[name] | {"architectures": [name.partition(",")[0]]})


def command(*words: object, code: int = 0) -> tuple[str, str]:
    done = run("plan", *words, code=code)
    return done.stdout, done.stderr


def run_full(llm: LLM, requests: int, length: int) -> None:
    """Steps as large as they get: prompts of all requests at once, and then all of them decode."""
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, llm.vocab_size, length - 4).tolist() for _ in range(requests)]
    llm.generate(prompts, max_tokens=4, ignore_end=True, seed=0)


def check(directory_planner: MemoryPlanner, engine: Any, requests: int, length: int, threads: int) -> float:
    """Compares the plans of directory and engine with a run; returns by how much the arena differs."""
    plan = directory_planner.plan(requests, length)
    assert MemoryPlanner(engine, threads).plan(requests, length) == plan, "an engine and its source plan alike"
    with LLM(engine, threads=threads, max_running=requests, context_length=length, kv_memory=plan.kv_bytes) as llm:
        run_full(llm, requests, length)
        found = llm.memory()
    assert found.weights == plan.weights
    assert found.state == plan.kv_bytes
    assert found.arena == pytest.approx(plan.activations, rel=0.05)
    total = found.weights + found.state + found.arena + plan.results
    assert total == pytest.approx(plan.total, rel=0.05)
    return found.arena / plan.activations - 1


SIZES = ((3, 400, 1), (16, 90, 2))


@pytest.mark.sampled(5, by=lambda given: given["name"])
@pytest.mark.parametrize(
    ("name", "requests", "length", "threads"),
    [(name, *sizes) for name in FAMILIES for sizes in SIZES],
)
def test_a_run_takes_what_was_planned(name: str, requests: int, length: int, threads: int, tmp_path: Path) -> None:
    source = family(name, tmp_path)
    engine = ingot.build(source, weights_from="random", report=False)
    found = check(MemoryPlanner(outline(source)[0], threads), engine, requests, length, threads)
    print(f"{name}: the arena of {requests} x {length} is {found:+.2%} off the plan")


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_real_model_takes_what_was_planned(precision: str, tmp_path: Path) -> None:
    engine = ingot.build(PICO, precision=precision, report=False)
    found = check(MemoryPlanner(outline(PICO, precision)[0], 2), engine, 8, 1024, 2)
    print(f"pico {precision}: the arena is {found:+.2%} off the plan")
    engine.save(tmp_path / "pico.ingot")
    mapped = MemoryPlanner(ingot.load(tmp_path / "pico.ingot"), 2).plan(8, 1024)
    assert mapped == MemoryPlanner(outline(PICO, precision)[0], 2).plan(8, 1024)


def test_memory_of_the_process_grows_as_planned(tmp_path: Path) -> None:
    """Not only by the allocators' own count: resident pages."""
    config = WIDE | {"architectures": ["LlamaForCausalLM"], "hidden_size": 768, "intermediate_size": 1024,
                     "num_hidden_layers": 8, "num_attention_heads": 12, "num_key_value_heads": 12, "head_dim": 64,
                     "vocab_size": 16000}  # fmt: skip
    source = directory(tmp_path, config)
    ingot.build(source, weights_from="random", report=False).save(tmp_path / "m.ingot")
    plan = MemoryPlanner(outline(source)[0], 2).plan(8, 1500)
    assert plan.total > 400e6
    code = f"""
import numpy as np, ingot
from ingot.llm.llm import LLM
def resident():
    fields = dict(line.split(":") for line in open("/proc/self/status") if line.startswith(("RssAnon", "RssFile")))
    return 1024 * sum(int(v.split()[0]) for v in fields.values())
with LLM({str(PICO)!r}, threads=2) as small:  # imports, threads and their stacks
    small.generate("import os")
    before = resident()
    with LLM({str(tmp_path / "m.ingot")!r}, threads=2, max_running=8, context_length=1500,
             kv_memory={plan.kv_bytes}) as llm:
        prompts = [np.random.default_rng(i).integers(0, llm.vocab_size, 1496).tolist() for i in range(8)]
        llm.generate(prompts, max_tokens=4, ignore_end=True)
        print(resident() - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert done.returncode == 0, done.stderr
    print(f"resident {int(done.stdout):,}, planned {plan.total:,}: {int(done.stdout) / plan.total - 1:+.2%}")
    assert int(done.stdout) == pytest.approx(plan.total, rel=0.05)


def test_the_largest_combinations_are_the_last_that_fit() -> None:
    planner = MemoryPlanner(outline(PICO)[0], 1)
    memory = planner.plan(10, 512).total
    most = planner.most_requests(512, memory)
    assert most == 10
    assert planner.plan(most + 1, 512).total > memory
    longest = planner.longest_context(10, memory)
    assert longest == 512 and planner.plan(10, longest + 1).total > memory
    assert planner.longest_context(10, 10**12) == 1024 and planner.most_requests(512, 10**12) == planner.step_tokens
    assert planner.longest_context(10, 10**6) == 0 and planner.most_requests(512, 10**6) == 0
    for requests, context in ((0, 5), (513, 5), (1, 0), (1, 1025)):
        with pytest.raises(UserError):
            planner.plan(requests, context)


def test_a_model_that_this_machine_could_never_load(tmp_path: Path) -> None:
    source = directory(tmp_path, LARGE)
    begin = time.process_time()
    engine, granted = outline(source)
    plan = MemoryPlanner(engine, 1).plan(8, 8192)
    assert time.process_time() - begin < 30, "it takes two seconds; seventy billion numbers would take longer"
    parameters = 80 * (8192 * (8192 * 2 + 1024 * 2 + 28672 * 3) + 2 * 8192) + 2 * 128256 * 8192 + 8192
    assert plan.weights == pytest.approx(2 * parameters, rel=1e-4)
    assert plan.kv_bytes == 8 * 8192 * 80 * 2 * 8 * 128 * 2
    assert not granted


def test_what_is_taken_for_granted_is_said(tmp_path: Path) -> None:
    source = directory(tmp_path, {k: v for k, v in LARGE.items() if k != "torch_dtype"} | {"num_hidden_layers": 1})
    engine, granted = outline(source)
    assert engine.config["precision"] == "float32" and "names no dtype: float32 is taken" in granted[0]
    assert "embedding table" in outline(directory(tmp_path, LARGE | {"tie_word_embeddings": True,
                                                                     "num_hidden_layers": 1}))[1][0]  # fmt: skip
    copy = tmp_path / "copy"
    copy.mkdir()
    shutil.copy(PICO / "model.safetensors", copy)
    config = json.loads((PICO / "config.json").read_text())
    del config["dtype"]
    engine, granted = outline(directory(copy, config), None)
    assert engine.config["precision"] == "bfloat16" and "the weights are bfloat16" in granted[0]


def test_the_command(tmp_path: Path) -> None:
    words = (PICO, "--concurrency", 16, "--context", 512, "--threads", 2)
    output, _ = command(*words, "--memory", "24GB", "--json")
    assert len(output.splitlines()) == 1
    found = json.loads(output)
    plan = MemoryPlanner(outline(PICO)[0], 2).plan(16, 512)
    assert found["weights"] == plan.weights and found["activations"] == plan.activations
    assert found["kv_bytes"] == plan.kv_bytes == 16 * 512 * found["kv_bytes_per_token"]
    assert found["total"] == plan.total and found["fits"] is True and found["memory"] == 24 * 10**9
    assert [row["context_length"] for row in found["by_context"]] == [256, 512, 1024]
    output, _ = command(*words, "--memory", "20MB", code=2)
    assert "does not fit: " in output and "KV cache" in output and "4,096 bytes" in output
    assert "free on this machine" in command(*words)[0]
    ingot.build(PICO, report=False).save(tmp_path / "pico.ingot")
    assert json.loads(command(tmp_path / "pico.ingot", *words[1:], "--json")[0])["total"] == plan.total
    for bad, why in (
        ((PICO, "--context", "5000"), "the model's"),
        ((PICO, "--concurrency", "5000"), "a step's tokens"),
        ((PICO, "--weights", "int3"), "int3"),
        ((PICO, "--device", "cuda"), "cuda"),
        (("nobody/no-model",), "download"),
        ((tmp_path / "pico.ingot", "--precision", "float32"), "conflicts"),
    ):
        assert why in command(*bad, code=2)[1]
    with pytest.raises(CheckpointError):
        outline(directory(tmp_path, LARGE | {"hidden_size": -1}))
    encoder = {"architectures": ["BertModel"], "hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
               "intermediate_size": 64, "vocab_size": 61, "max_position_embeddings": 64}  # fmt: skip
    said = command(directory(tmp_path, encoder), code=2)[1]
    assert "this is an encoder of texts, and plans are made for requests to a language model: `ingot inspect" in said


def test_a_limit_of_address_space_counts(tmp_path: Path) -> None:
    """Whatever the machine has, as `ulimit -v` says; less what the process has taken."""
    say = "from ingot.llm.memory import available_memory; print(available_memory())"
    limited = f"ulimit -v 400000; exec {sys.executable} -c '{say}'"
    done = subprocess.run(["bash", "-c", limited], capture_output=True, text=True, check=True)
    assert 100_000 << 10 < int(done.stdout) < 400_000 << 10
