"""Convolutional and encoder nets against torch eager, ONNX Runtime and OpenVINO: build time, accuracy, speed."""

from __future__ import annotations

import copy
import functools
import statistics
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import ingot
from benchmarks import torch_nets
from benchmarks.harness import CACHE, Options, Result, Sample, seconds
from benchmarks.machine import roofs

BATCHES = (1, 8)
ACCURACY = {"float32": 1e-4, "bfloat16": 2e-2}  # of the largest output, against torch in float32
BUILD_SECONDS = 5
BURST = 0.25  # seconds of runs for one figure
PAUSE = 0.05  # between contestants: threads of the one before have stopped spinning

Run = Callable[[], Any]


def net(name: str, options: Options) -> Result:
    """One net at every batch and precision."""
    torch.set_num_threads(options.threads)
    result = Result(name)
    module = torch_nets.make(name)
    engines = {}
    for precision in ACCURACY:
        engines[precision], took = _built(name, module, precision)
        result.add(f"{precision}: build from the torch module, with report", took, "s", at_most=BUILD_SECONDS)
    for batch in BATCHES:
        x = torch_nets.NETS[name].inputs(batch)
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for precision, engine in engines.items():
                _measure(result, name, module, engine, precision, x, options)
    return result


def _built(name: str, module: Any, precision: str) -> tuple[Any, float]:
    spec = torch_nets.NETS[name]
    inputs = (spec.inputs(2),)
    parameter = "x"
    begin = time.perf_counter()
    engine = ingot.build(module, inputs, precision=precision, dynamic={parameter: spec.dynamic})
    took = time.perf_counter() - begin
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / f"{name}-{precision}.ingot"
    engine.save(path)
    return ingot.load(path), took


def _measure(
    result: Result, name: str, module: Any, engine: Any, precision: str, x: Any, options: Options
) -> None:  # fmt: skip
    batch = len(x)
    session = engine.session(options.threads)
    feeds = {engine.inputs[0].name: x.numpy()}
    want = module(x).numpy()
    (found,) = session.run(feeds).values()
    error = float(np.abs(found.astype(np.float32) - want).max() / np.abs(want).max())
    label = f"{precision}, batch {batch}"
    result.add(f"{label}: largest difference to torch float32", error, "of the largest", at_most=ACCURACY[precision])
    peers = dict(_peers(name, module, precision, x, options))
    times = alternate({"ingot": lambda: session.run(feeds), **peers}, options.pairs)
    ours = Sample.of([t * 1e3 for t in times["ingot"]])
    with FlopCounterMode(display=False) as counter:
        module(x)
    share = counter.get_total_flops() / (ours.median / 1e3) / _peak(precision, options.threads)
    note = f"{share:.0%} of the arithmetic peak"
    result.add(f"{label}: ingot", ours.median, "ms", quartiles=ours.quartiles, note=note)
    eager = [peer for peer in peers if peer.startswith("torch")]
    best = min(eager, key=lambda peer: statistics.median(times[peer]))
    for peer in peers:
        ratio = Sample.of([a / b for a, b in zip(times[peer], times["ingot"], strict=True)])
        goal = 1.0 if peer in (best, "ONNX Runtime") else None
        took = f"{statistics.median(times[peer]) * 1e3:.1f} ms"
        result.add(f"{label}: {peer} / ingot", ratio.median, "×", at_least=goal, quartiles=ratio.quartiles, note=took)


def _peak(precision: str, threads: int) -> float:
    """Operations a second from registers, with the widest instructions for this precision."""
    return max(float(v) for k, v in roofs(threads).items() if k.startswith(precision) and k.endswith("_gflops")) * 1e9


def alternate(contestants: dict[str, Run], rounds: int) -> dict[str, list[float]]:
    """Seconds of a run of each, in turns. A turn is a warm run and then the median of a burst of them."""
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            time.sleep(PAUSE)
            first = seconds(run)
            count = max(1, min(25, int(BURST / first)))
            times[name].append(statistics.median(seconds(run, collect=False) for _ in range(count)))
    return times


def _peers(name: str, module: Any, precision: str, x: Any, options: Options) -> Iterator[tuple[str, Run]]:
    images = x.dim() == 4
    if precision == "float32":
        yield "torch eager", lambda: module(x)
        if images:
            last = copy.deepcopy(module).to(memory_format=torch.channels_last)
            given = x.contiguous(memory_format=torch.channels_last)
            yield "torch eager channels-last", lambda: last(given)
        yield "ONNX Runtime", _onnx_runtime(name, module, x, options.threads)
        yield "OpenVINO", _openvino(name, module, x, "f32", options.threads)
        return
    narrow = copy.deepcopy(module).bfloat16()
    low = x.bfloat16() if x.is_floating_point() else x
    yield "torch eager", lambda: narrow(low)
    if images:
        last = copy.deepcopy(narrow).to(memory_format=torch.channels_last)
        given = low.contiguous(memory_format=torch.channels_last)
        yield "torch eager channels-last", lambda: last(given)

    def autocast() -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return module(x)

    yield "torch autocast", autocast
    yield "OpenVINO", _openvino(name, module, x, "bf16", options.threads)


@functools.cache
def _onnx(name: str, module: Any, batch: int) -> Path:
    """The net as ONNX with this batch, made once."""
    path = CACHE / f"{name}-{batch}.onnx"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        x = torch_nets.NETS[name].inputs(batch)
        torch.onnx.export(module, (x,), str(path), dynamo=True, verbose=False, external_data=False)
    return path


def _onnx_runtime(name: str, module: Any, x: Any, threads: int) -> Run:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    path = str(_onnx(name, module, len(x)))
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = {session.get_inputs()[0].name: x.numpy()}
    return lambda: session.run(None, feeds)


def _openvino(name: str, module: Any, x: Any, precision: str, threads: int) -> Run:
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
    }  # fmt: skip
    core = openvino.Core()
    compiled = core.compile_model(core.read_model(str(_onnx(name, module, len(x)))), "CPU", settings)
    request = compiled.create_infer_request()
    feeds = [x.numpy()]
    return lambda: request.infer(feeds)


def benchmark(name: str) -> Callable[[Options], Result]:
    """The benchmark of one net."""
    return functools.partial(net, name)
