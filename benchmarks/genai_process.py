"""OpenVINO GenAI's continuous batching, under a Python that has it: the process of genai.py, spoken to as peer.py says.

Its argument is JSON: `model`, a directory in OpenVINO's form; `threads`; `scheduler`, fields of SchedulerConfig; and
`properties` of the device.
"""

from __future__ import annotations

import json
import sys
import time
from functools import partial
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peer import Event, serve


def pipeline(settings: dict[str, Any]) -> Any:
    """The engine, as the settings say."""
    scheduler = openvino_genai.SchedulerConfig()
    for name, value in settings["scheduler"].items():
        setattr(scheduler, name, value)
    properties = {"INFERENCE_NUM_THREADS": settings["threads"], **settings["properties"]}
    return openvino_genai.ContinuousBatchingPipeline(settings["model"], scheduler, "CPU", properties)


def generate(pipe: Any, prompts: list[list[int]], tokens: int) -> list[Event]:
    """All prompts at once, each answered greedily with that many tokens: which came when."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = tokens
    config.ignore_eos = True
    config.do_sample = False
    tensors = [openvino.Tensor(np.array([ids], np.int64)) for ids in prompts]
    begin = time.perf_counter()
    handles = [pipe.add_request(number, ids, config) for number, ids in enumerate(tensors)]
    events = []
    while pipe.has_non_finished_requests():
        pipe.step()
        now = time.perf_counter() - begin
        for number, handle in enumerate(handles):
            if handle.can_read():
                events.append((now, number, sum(len(output.generated_ids) for output in handle.read().values())))
    return events


if __name__ == "__main__":
    serve(openvino_genai.__version__, partial(generate, pipeline(json.loads(sys.argv[1]))))
