"""A process of its own on a GPU, for test_gpu.py: what it is told to do, and what came of it as JSON."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import torch

import ingot
from tests.kept import PICO

PROMPT = "def add(a, b):\n"


def error_of(work: Callable[[], Any]) -> list[str]:
    """The code and message of what goes wrong."""
    try:
        work()
    except ingot.IngotError as e:
        return [e.code, str(e)]
    return []


def text() -> dict[str, Any]:
    """Some tokens, while another process does the same."""
    with ingot.LLM(PICO, device="cuda", kv_memory=64 << 20) as llm:
        print("ready", file=sys.stderr, flush=True)
        sys.stdin.readline()
        return {"tokens": [llm.generate(PROMPT, max_tokens=64).token_ids for _ in range(4)]}


def failure() -> dict[str, Any]:
    """A kernel of somebody else's asserts, which ends the device for this process."""
    with ingot.LLM(PICO, device="cuda", kv_memory=64 << 20) as llm:
        good = llm.generate(PROMPT, max_tokens=4).token_ids
        torch.zeros(4, device="cuda")[torch.tensor([99], device="cuda")]
        return {"good": good, "errors": [error_of(lambda: llm.generate(PROMPT, max_tokens=4)) for _ in range(2)],
                "blocks": llm.stats().blocks_used}  # fmt: skip


def memory() -> dict[str, Any]:
    """Somebody takes all memory in the middle of serving, and gives it back."""
    with ingot.LLM(PICO, device="cuda", kv_memory=256 << 20) as llm:
        prompts = [[5 + i, *range(100, 1000)] for i in range(4)]
        good = llm.generate(PROMPT, max_tokens=16).token_ids
        torch.cuda.empty_cache()
        hog = all_memory()
        short = error_of(lambda: llm.generate(prompts, max_tokens=2))
        blocks = llm.stats().blocks_used
        hog.clear()
        torch.cuda.empty_cache()
        again = llm.generate(PROMPT, max_tokens=16).token_ids
        llm.generate(prompts, max_tokens=2)
    return {"short": short, "blocks": blocks, "same": good == again}


def all_memory() -> list[torch.Tensor]:
    """All that is left on the device."""
    hog = []
    for size in (1 << 30, 1 << 26, 1 << 21):
        while True:
            try:
                hog.append(torch.empty(size, dtype=torch.uint8, device="cuda"))
            except torch.OutOfMemoryError:
                break
    return hog


def hog() -> dict[str, Any]:
    """Has all memory until it is told to go on."""
    taken = all_memory()
    print("ready", file=sys.stderr, flush=True)
    sys.stdin.readline()
    return {"bytes": sum(item.numel() for item in taken)}


def too_much() -> dict[str, Any]:
    """A cache that is larger than the memory, and weights for which no room is left."""
    whole = torch.cuda.get_device_properties(0).total_memory
    cache = error_of(lambda: ingot.build(PICO, report=False).session(device="cuda", kv_blocks=whole // 4096))
    hog = torch.empty(torch.cuda.mem_get_info()[0] - (8 << 20), dtype=torch.uint8, device="cuda")
    weights = error_of(lambda: ingot.LLM(PICO, device="cuda"))
    del hog
    return {"cache": cache, "weights": weights}


if __name__ == "__main__":
    done = {"text": text, "failure": failure, "memory": memory, "hog": hog, "too_much": too_much}[sys.argv[1]]()
    json.dump(done, sys.stdout)
    sys.stdout.flush()
