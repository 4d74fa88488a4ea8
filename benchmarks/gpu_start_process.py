"""A process from its start to its first tokens on a GPU, for gpu_start: seconds and what was compiled, as JSON."""

from __future__ import annotations

import json
import sys
from time import perf_counter

from ingot.cli.output import since_start


def main(engine: str, length: int) -> None:
    """A prompt of so many tokens, its first token, and 16 more."""
    begin, started = perf_counter(), since_start()
    import torch
    from triton import knobs

    torch.zeros(1, device="cuda")
    torch.cuda.synchronize()
    compiled: list[int] = []  # microseconds
    had: list[str] = []

    def note(*, src: object, times: object, cache_hit: bool, **more: object) -> None:
        if cache_hit:
            had.append(str(src))
        else:
            compiled.append(times.total)  # type: ignore[attr-defined]

    knobs.compilation.listener = note
    import ingot

    context = perf_counter()
    with ingot.LLM(engine, device="cuda", context_length=4096 + 64, max_running=64) as llm:
        opened = perf_counter()
        prompt = [(7 * i) % 90_000 + 2 for i in range(length)]
        first = llm.generate(prompt, max_tokens=1, ignore_end=True)
        told = perf_counter()
        llm.generate(prompt[::-1], max_tokens=17, ignore_end=True)
        decoded = perf_counter()
        llm.generate(prompt[1:], max_tokens=17, ignore_end=True)
        again = perf_counter()
    json.dump(
        {
            "tokens": first.token_ids, "import and context": started + context - begin, "open": opened - context,
            "first token": told - opened, "decoding": decoded - told, "decoding again": again - decoded,
            "process to first token": started + told - begin, "compiled": len(compiled), "had": len(had),
            "compiling": sum(compiled) / 1e6,
        },
        sys.stdout,
    )  # fmt: skip


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
