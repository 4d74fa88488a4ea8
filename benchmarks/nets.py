"""Convolutional and encoder nets against torch eager, ONNX Runtime and OpenVINO: build time, accuracy, speed.

torch.compile, which takes minutes for a net, is one more peer where INGOT_BENCH_COMPILE is set. float16, which a CPU
stores and computes as float32, takes turns with our float32; int8 with our float engine, and the share that it reaches
of Amdahl's bound (1967) is said: that of a net whose products alone take as much less as the peaks of arithmetic say.
"""

from __future__ import annotations

import copy
import functools
import importlib.util
import os
import statistics
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.flop_counter import FlopCounterMode

import ingot
from benchmarks import torch_nets
from benchmarks.harness import CACHE, Options, Result, Sample, Share, seconds
from benchmarks.machine import (
    HOLDS,
    LOOSE,
    below_avx512,
    forced_level,
    has_bfloat16,
    hold_peers,
    peak,
    times_as_fast,
)

BATCHES = (1, 8)
# Of the largest output, against torch in float32. int8 is calibrated on eight samples.
ACCURACY = {"float32": 1e-4, "bfloat16": 2e-2, "float16": 5e-3, "int8": 0.1}
CALIBRATION = 8
# What is not int8 there, where graphs and attention multiply what is computed; float32 elsewhere.
AROUND = {"bert": "bfloat16", "bert-384": "bfloat16", "stgcn": "bfloat16"}
BUILD_SECONDS = 5
AMDAHL = 0.8  # the goal: of the bound
PRODUCTS = ("conv_packed", "conv_transpose_packed", "matmul_packed")  # kernels whose sums may be of int8
COMPILE = "INGOT_BENCH_COMPILE"
NO_NNCF = "int8: OpenVINO's calibrator, NNCF, is not installed"
BURST = 0.25  # seconds of runs for one figure
PAUSE = 0.05  # between contestants: threads of the one before have stopped spinning

Run = Callable[[], Any]


def net(name: str, options: Options) -> Result:
    """One net at every batch and precision."""
    torch.set_num_threads(options.threads)
    result = Result(name)
    if held := hold_peers():
        result.notes.append(f"{held}; not ONNX Runtime, which is left out")
    module = torch_nets.make(name)
    modules = {"float16": torch_nets.in_range(name, torch_nets.make(name))}
    engines = {}
    for precision in ACCURACY:
        engines[precision], took = _built(name, modules.get(precision, module), precision)
        what = "calibrate, without report" if precision == "int8" else "build from the torch module, with report"
        result.add(f"{precision}: {what}", took, "s", at_most=BUILD_SECONDS if precision != "int8" else None)
    for batch in BATCHES:
        x = torch_nets.ALL[name].inputs(batch)
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for precision, engine in engines.items():
                _measure(result, name, modules.get(precision, module), engine, precision, x, options, engines)
    return result


def _built(name: str, module: Any, precision: str) -> tuple[Any, float]:
    spec = torch_nets.ALL[name]
    inputs = (spec.inputs(2),)
    parameter = "x"
    begin = time.perf_counter()
    dynamic = {parameter: spec.dynamic}
    if precision == "int8":
        around = AROUND.get(name) if has_bfloat16() else None
        engine = ingot.quantize(
            module, _samples(name), inputs, precision=around, dynamic=dynamic, errors=False, report=False,
            always_int8=True,
        )  # fmt: skip
    else:
        engine = ingot.build(module, inputs, precision=precision, dynamic=dynamic)
    took = time.perf_counter() - begin
    CACHE.mkdir(parents=True, exist_ok=True)
    path = CACHE / f"{name}-{precision}.ingot"
    engine.save(path)
    return ingot.load(path), took


@functools.cache
def _samples(name: str) -> list[Any]:
    """What int8 is calibrated on, ours and the peer's."""
    return [torch_nets.ALL[name].inputs(1) for _ in range(CALIBRATION)]


def _measure(
    result: Result, name: str, module: Any, engine: Any, precision: str, x: Any, options: Options,
    engines: dict[str, Any],
) -> None:  # fmt: skip
    batch = len(x)
    session = engine.session(options.threads)
    feeds = {engine.inputs[0].name: x.numpy()}
    want = module(x).numpy()
    (found,) = session.run(feeds).values()
    error = float(np.abs(found.astype(np.float32) - want).max() / np.abs(want).max())
    label = f"{precision}, batch {batch}"
    result.add(f"{label}: largest difference to torch float32", error, "of the largest", at_most=ACCURACY[precision])
    peers = dict(_peers(name, module, precision, x, options, result.notes))
    if precision == "int8" and not peers and NO_NNCF not in result.notes:
        result.notes.append(NO_NNCF)
    wide = _beside(precision)
    of_wide = None if wide is None else engines[wide].session(options.threads)
    own: dict[str, Run] = {} if of_wide is None else {wide or "": lambda: of_wide.run(feeds)}
    times = alternate({"ingot": lambda: session.run(feeds), **peers, **own}, options.pairs)
    ours = Sample.of([t * 1e3 for t in times["ingot"]])
    with FlopCounterMode(display=False) as counter:
        module(x)
    most = peak(precision, options.threads)

    def reached(who: str, milliseconds: float) -> None:
        if most:
            share = counter.get_total_flops() / (milliseconds / 1e3) / most
            work = f"{torch_nets.ALL[name].title}, {precision}, batch {batch}"
            result.shares.append(Share(work, who, share, "arithmetic", milliseconds, "ms"))

    reached("ingot", ours.median)
    note = f"{result.shares[-1].share:.0%} of the arithmetic peak" if most else ""
    result.add(f"{label}: ingot", ours.median, "ms", quartiles=ours.quartiles, note=note)
    if wide is not None:
        _add_own(result, label, wide, times, _bound(of_wide, feeds, wide, options) if precision == "int8" else None)
    eager = [peer for peer in peers if peer.startswith("torch")]
    best = min(eager, key=lambda peer: statistics.median(times[peer]), default="")
    for peer in peers:
        if peer == best or peer not in eager:
            reached(peer.split()[0] if peer == best else peer, statistics.median(times[peer]) * 1e3)
    for peer in peers:
        ratio = Sample.of([a / b for a, b in zip(times[peer], times["ingot"], strict=True)])
        goal = 1.0 if peer in (best, "ONNX Runtime") else None
        took = f"{statistics.median(times[peer]) * 1e3:.1f} ms"
        result.add(f"{label}: {peer} / ingot", ratio.median, "×", at_least=goal, quartiles=ratio.quartiles, note=took)


def _beside(precision: str) -> str | None:
    """The precision of ours that one takes turns with."""
    if precision == "int8":
        return "bfloat16" if has_bfloat16() else "float32"
    return "float32" if precision == "float16" else None


def _add_own(result: Result, label: str, wide: str, times: dict[str, list[float]], bound: float | None) -> None:
    """How many times as fast as our engine of the other precision; of int8, what that is of Amdahl's bound."""
    faster = Sample.of([a / b for a, b in zip(times[wide], times["ingot"], strict=True)])
    goal = 1.0 if bound is None else None
    result.add(f"{label}: our {wide} / ingot", faster.median, "×", at_least=goal, quartiles=faster.quartiles)
    if bound is not None:
        share, note = faster.median / bound, f"bound: {bound:.2f} ×"
        result.add(f"{label}: share of Amdahl's bound", share, "", at_least=AMDAHL, note=note)


def _bound(session: Any, feeds: dict[str, Any], wide: str, options: Options) -> float:
    """How many times as fast a float net would be whose products alone had the arithmetic of int8."""
    faster = times_as_fast("int8", wide, options.threads)
    profiles = [session.profile(feeds) for _ in range(3)]
    total, products = (
        min(sum(c["ns"] for c in calls if every or c.get("kernel") in PRODUCTS) for calls in profiles)
        for every in (True, False)
    )
    return float(1 / (1 - products / total + products / total / faster))


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


def _peers(
    name: str, module: Any, precision: str, x: Any, options: Options, notes: list[str]
) -> Iterator[tuple[str, Run]]:
    images = x.dim() == 4
    if precision == "float16":
        return
    if precision == "int8":
        if importlib.util.find_spec("nncf") is not None:
            around = "bf16" if has_bfloat16() else "f32"
            yield from _openvino(name, module, x, around, options.threads, notes, calibrated=True)
        return
    if precision == "float32":
        yield "torch eager", lambda: module(x)
        if images:
            last = copy.deepcopy(module).to(memory_format=torch.channels_last)
            given = x.contiguous(memory_format=torch.channels_last)
            yield "torch eager channels-last", lambda: last(given)
        yield from _compiled(module, x)
        if forced_level() is None:
            yield "ONNX Runtime", _onnx_runtime(name, module, x, options.threads)
        yield from _openvino(name, module, x, "f32", options.threads, notes)
        return
    if not has_bfloat16():  # torch would compute it number by number; the best of a peer is float32
        yield from _openvino(name, module, x, "f32", options.threads, notes)
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
    yield from _compiled(narrow, low)
    yield from _openvino(name, module, x, "bf16", options.threads, notes)


def _compiled(module: Any, x: Any) -> Iterator[tuple[str, Run]]:
    """torch.compile, where it is asked for: it takes minutes."""
    if COMPILE in os.environ:
        torch._dynamo.reset()
        fast = torch.compile(module, mode="max-autotune-no-cudagraphs")
        fast(x)
        yield "torch.compile", lambda: fast(x)


@functools.cache
def _onnx(name: str, module: Any, batch: int) -> Path:
    """The net as ONNX with this batch, made once."""
    path = CACHE / f"{name}-{batch}.onnx"
    if not path.exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        x = torch_nets.ALL[name].inputs(batch)
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


def _openvino(
    name: str, module: Any, x: Any, precision: str, threads: int, notes: list[str], calibrated: bool = False
) -> Iterator[tuple[str, Run]]:
    """OpenVINO, calibrated in int8 by NNCF's post-training quantisation or not; other layers are of the precision.
    Adds to notes what of it is not held to the level that INGOT_ISA forces. Nothing where it refuses that level."""
    what = f"{'int8' if calibrated else precision}, batch {len(x)}"
    try:
        compiled = _by_openvino(name, module, x, precision, threads, calibrated)
    except RuntimeError as e:
        if forced_level() is None:
            raise
        notes.append(f"{what}: OpenVINO does not compile it at that level: {str(e).strip().splitlines()[-1]}")
        return
    if below_avx512() and (loose := _loose(compiled)):
        notes.append(f"{what}: {HOLDS} {loose} {LOOSE}")
    request = compiled.create_infer_request()
    feeds = [x.numpy()]
    yield "OpenVINO", lambda: request.infer(feeds)


def _by_openvino(name: str, module: Any, x: Any, precision: str, threads: int, calibrated: bool) -> Any:
    """Its compiled model. Raises RuntimeError where oneDNN is held to a level that OpenVINO has no kernels for."""
    import openvino

    settings = {
        "INFERENCE_PRECISION_HINT": precision, "INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
    }  # fmt: skip
    core = openvino.Core()
    model = core.read_model(str(_onnx(name, module, len(x))))
    if calibrated:
        import nncf

        # The model's batch is fixed, so the samples are repeated to fill it.
        data = [np.repeat(one.numpy(), len(x), axis=0) for one in _samples(name)]
        encoder = nncf.ModelType.TRANSFORMER if name.startswith("bert") else None
        model = nncf.quantize(model, nncf.Dataset(data), subset_size=len(data), model_type=encoder)
    return core.compile_model(model, "CPU", settings)


def _loose(compiled: Any) -> str:
    """Kernels that OpenVINO takes all the same where oneDNN is held to vectors of 256 bits, and how many: its products
    by MLAS ask the processor themselves."""
    kernels = (str(op.get_rt_info()["primitiveType"].astype(str)) for op in compiled.get_runtime_model().get_ops())
    found = Counter(kernel for kernel in kernels if "mlas" in kernel or "avx512" in kernel)
    return ", ".join(f"{count} × {kernel}" for kernel, count in found.most_common())


BENCHMARKS: dict[str, Callable[[Options], Result]] = {name: functools.partial(net, name) for name in torch_nets.ALL}
