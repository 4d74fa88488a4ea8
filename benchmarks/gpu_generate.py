"""LLM.stream on a GPU, host included: pico-python beside torch on the same device, random weights of a true shape."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import ingot
from benchmarks.gpu_decode import SHAPES, Shape, copy_bandwidth
from benchmarks.harness import PICO, Options, Result, paired, repeated

PROMPTS = ("def add(a, b):\n", "import os\n", "class Point:\n    def __init__(self")
TOKENS = 200


def config(shape: Shape) -> dict[str, object]:
    """What config.json says of a Llama of that shape; its head is its table."""
    return {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape.hidden,
        "intermediate_size": shape.inner, "num_hidden_layers": shape.layers, "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv, "head_dim": shape.width, "vocab_size": shape.vocabulary,
        "max_position_embeddings": 4096, "rms_norm_eps": 1e-5, "rope_theta": 5e5, "tie_word_embeddings": True,
        "hidden_act": "silu", "bos_token_id": 0, "eos_token_id": 1, "torch_dtype": "bfloat16",
    }  # fmt: skip


def decoding(llm: ingot.LLM, prompt: str | list[int]) -> float:
    """Tokens per second of one request, from its first token on."""
    times = [perf_counter() for _ in llm.stream(prompt, max_tokens=TOKENS, ignore_end=True)]
    return (TOKENS - 1) / (times[-1] - times[0])


def gpu_generate(options: Options) -> Result:
    """pico-python's text and speed, then the 1B shape's speed."""
    result = Result("gpu-generate")
    bandwidth = copy_bandwidth()
    result.notes.append(f"copy {bandwidth / 1e12:.2f} TB/s; {asdict(SHAPES[1])}")
    engine = ingot.build(PICO, report=False)
    with ingot.LLM(engine) as cpu, ingot.LLM(engine, device="cuda") as gpu, ingot.LLM(engine, device="torch:cuda") as t:
        answers = [[llm.generate(p, max_tokens=48).token_ids for p in PROMPTS] for llm in (cpu, gpu)]
        same = sum(a == b for a, b in zip(*answers, strict=True))
        result.add("pico-python: answers as the CPU's", same, f"of {len(PROMPTS)}", at_least=len(PROMPTS))
        pairs = paired(partial(decoding, gpu, PROMPTS[0]), partial(decoding, t, PROMPTS[0]), options.pairs)
        result.add("pico-python: cuda", pairs.ours.median, "tok/s", quartiles=pairs.ours.quartiles)
        result.add("pico-python: cuda / torch:cuda", pairs.ratio.median, "×", quartiles=pairs.ratio.quartiles)
    shape = SHAPES[1]
    with TemporaryDirectory() as folder:
        (Path(folder) / "config.json").write_text(json.dumps(config(shape)))
        engine = ingot.build(folder, weights_from="random", seed=0, report=False)
    with ingot.LLM(engine, device="cuda", context_length=1024) as llm:
        found = repeated(partial(decoding, llm, list(range(100, 228))), options.pairs)
        result.add(f"{shape.name} bfloat16, prompt 128", found.median, "tok/s", quartiles=found.quartiles)
    return result
