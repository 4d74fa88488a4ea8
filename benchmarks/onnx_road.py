"""The four nets by way of ONNX, from both exporters of torch, against our own engines of what torch.export gives."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import ingot
from benchmarks import torch_nets
from benchmarks.harness import CACHE, Options, Result, Sample
from benchmarks.nets import ACCURACY, BATCHES, Run, alternate
from benchmarks.torch_nets import EXPORTERS, NETS
from ingot.cli.inspect import kernel_counts

DIRECT = "torch.export"
SLOWER = 1.03  # of the time of the engine from torch.export


def onnx_road(options: Options) -> Result:
    """Time of a run by each road, in float32."""
    torch.set_num_threads(options.threads)
    result = Result("onnx-road", notes=[f"torch {torch.__version__}"])
    for name in NETS:
        engines = _engines(name)
        counts = {road: _calls(engine) for road, engine in engines.items()}
        for road in EXPORTERS:
            more, less = counts[road] - counts[DIRECT], counts[DIRECT] - counts[road]
            note = ", ".join([*(f"+{n} {k}" for k, n in more.items()), *(f"-{n} {k}" for k, n in less.items())])
            what = f"{name}, {road}: kernel calls that differ, of {counts[DIRECT].total()}"
            result.add(what, more.total() + less.total(), "calls", at_most=0, note=note)
        for batch in BATCHES:
            _measure(result, name, engines, batch, options)
    return result


def _engines(name: str) -> dict[str, Any]:
    """An engine by each road."""
    CACHE.mkdir(parents=True, exist_ok=True)
    net, module = NETS[name], torch_nets.make(name)
    inputs = net.inputs(2)
    engines = {DIRECT: ingot.build(module, (inputs,), dynamic={"x": net.dynamic}, report=False)}
    for road, dynamo in EXPORTERS.items():
        path = CACHE / f"{name}-{road.replace(' ', '-')}.onnx"
        torch_nets.export_onnx(module, inputs, net.dynamic, path, dynamo)
        engines[road] = ingot.build(path, report=False)
    return {road: _loaded(engine, CACHE / f"{name}-{road.replace(' ', '-')}.ingot") for road, engine in engines.items()}


def _loaded(engine: Any, path: Path) -> Any:
    """An engine from its file, as it is used."""
    engine.save(path)
    return ingot.load(path)


def _calls(engine: Any) -> Any:
    """How often each kernel, or op of the host, is called."""
    native, host = kernel_counts(engine.header["programs"]["cpu"])
    host_calls = {f"host {op}": n for op, n in host.items()}
    native.update(host_calls)
    return native


def _measure(result: Result, name: str, engines: dict[str, Any], batch: int, options: Options) -> None:
    x = NETS[name].inputs(batch)
    with torch.inference_mode():
        want = torch_nets.make(name)(x).numpy()
    runs: dict[str, Run] = {}
    for road, engine in engines.items():
        session, feeds = engine.session(options.threads), {engine.inputs[0].name: x.numpy()}
        (found,) = session.run(feeds).values()
        error = float(np.abs(found - want).max() / np.abs(want).max())
        what = f"{name}, batch {batch}, {road}: largest difference to torch"
        result.add(what, error, "of the largest", at_most=ACCURACY["float32"])
        runs[road] = partial(session.run, feeds)
    times = alternate(runs, options.pairs)
    direct = Sample.of([t * 1e3 for t in times[DIRECT]])
    result.add(f"{name}, batch {batch}: {DIRECT}", direct.median, "ms", quartiles=direct.quartiles)
    for road in EXPORTERS:
        ratio = Sample.of([a / b for a, b in zip(times[road], times[DIRECT], strict=True)])
        what = f"{name}, batch {batch}: {road} / {DIRECT}"
        result.add(what, ratio.median, "×", at_most=SLOWER, quartiles=ratio.quartiles)
