"""llama.cpp by llama-cpp-python, under a Python that has it: the process of llama_cpp.py, spoken to as peer.py says.

Its argument is JSON: `model`, a GGUF file; `threads`; `requests` at once; and `context`, the tokens of each. What else
llama.cpp lets be set stays as it is by itself: weights repacked for the CPU, steps of 512 tokens, a cache in float16.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any, NamedTuple

import llama_cpp
import numpy as np

from benchmarks.peer import Event, serve

ERROR = 4  # GGML_LOG_LEVEL_ERROR


class Token(NamedTuple):
    """A row of a step. `last`: of its request, so the next token is wanted."""

    id: int
    position: int
    request: int
    last: bool


class Model:
    """A model and its context, in which each request has a cache of its own."""

    def __init__(self, settings: dict[str, Any]) -> None:
        llama_cpp.llama_log_set(_log, ctypes.c_void_p(None))
        llama_cpp.llama_backend_init()
        model = llama_cpp.llama_model_load_from_file(settings["model"].encode(), llama_cpp.llama_model_default_params())
        if not model:
            raise SystemExit(f"llama.cpp cannot load {settings['model']}")
        wanted = llama_cpp.llama_context_default_params()
        wanted.n_ctx = settings["requests"] * settings["context"]
        wanted.n_seq_max = settings["requests"]
        wanted.n_threads = wanted.n_threads_batch = settings["threads"]
        self.context = llama_cpp.llama_init_from_model(model, wanted)
        if not self.context:
            raise SystemExit(f"llama.cpp has no context of {wanted.n_ctx} tokens")
        self.room = wanted.n_batch
        self.batch = llama_cpp.llama_batch_init(self.room, 0, 1)
        self.vocabulary = llama_cpp.llama_vocab_n_tokens(llama_cpp.llama_model_get_vocab(model))

    def generate(self, prompts: list[list[int]], tokens: int) -> list[Event]:
        """All prompts at once, each answered greedily with that many tokens: which came when."""
        llama_cpp.llama_memory_clear(llama_cpp.llama_get_memory(self.context), False)
        begin = time.perf_counter()
        events: list[Event] = []
        newest: dict[int, int] = {}

        def step(rows: list[Token]) -> None:
            found = self._step(rows)
            now = time.perf_counter() - begin
            events.extend((now, request, 1) for request in found)
            newest.update(found)

        rows = [
            Token(token, position, request, position == len(ids) - 1)
            for request, ids in enumerate(prompts)
            for position, token in enumerate(ids)
        ]
        for start in range(0, len(rows), self.room):
            step(rows[start : start + self.room])
        for more in range(tokens - 1):
            step([Token(newest[request], len(ids) + more, request, True) for request, ids in enumerate(prompts)])
        return events

    def _step(self, rows: list[Token]) -> dict[int, int]:
        """The next token of each request whose last row is among these."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for at, row in enumerate(rows):
            batch.token[at], batch.pos[at], batch.logits[at] = row.id, row.position, row.last
            batch.n_seq_id[at], batch.seq_id[at][0] = 1, row.request
        status = llama_cpp.llama_decode(self.context, batch)
        if status:
            raise SystemExit(f"llama_decode answers {status} to {len(rows)} tokens")
        return {row.request: self._best(at) for at, row in enumerate(rows) if row.last}

    def _best(self, at: int) -> int:
        scores = llama_cpp.llama_get_logits_ith(self.context, at)
        return int(np.ctypeslib.as_array(scores, (self.vocabulary,)).argmax())


@llama_cpp.llama_log_callback
def _log(level: int, text: bytes, _: object) -> None:
    if level == ERROR:
        sys.stderr.write(text.decode())


def version() -> str:
    """Whose it is, and which of the CPU's instructions it was compiled for."""
    able = llama_cpp.llama_print_system_info().decode()
    used = [word.split("=")[0].split(":")[-1].strip() for word in able.split("|") if word.strip().endswith("= 1")]
    return f"{llama_cpp.llama_version().decode()} by llama-cpp-python {llama_cpp.__version__}: {', '.join(used)}"


if __name__ == "__main__":
    loaded = Model(json.loads(sys.argv[1]))
    serve(version(), loaded.generate)
