"""Trained ONNX models against ONNX Runtime, each at the first of its sizes, by an engine for all of them."""

from __future__ import annotations

import statistics
from functools import partial

import numpy as np

from benchmarks.harness import Options, Result, Sample
from benchmarks.nets import Run, alternate
from ingot.cli.inspect import kernel_counts
from tools.onnx_models import build_for, fetch, peer
from tools.onnx_table import MODELS


def onnx_models(options: Options) -> Result:
    """Time of a run, float32, and how many calls of the program are left to the host."""
    fetch()
    result = Result("onnx-models")
    for model in MODELS:
        feeds = model.feeds(np.random.default_rng(0), *model.sizes[0])
        engine = build_for(model)
        session, other = engine.session(options.threads), peer(model, options.threads)
        runs: dict[str, Run] = {"ingot": partial(session.run, feeds), "peer": partial(other.run, None, feeds)}
        times = alternate(runs, options.pairs)
        took = Sample.of([t * 1e3 for t in times["ingot"]])
        counts = [kernel_counts(program) for program in engine.header["programs"].values()]
        native, hosted = (sum(count[i].total() for count in counts) for i in range(2))
        host = f"{hosted} of {native + hosted} calls on the host"
        result.add(f"{model.name}: ingot", took.median, "ms", quartiles=took.quartiles, note=host)
        ratio = Sample.of([a / b for a, b in zip(times["peer"], times["ingot"], strict=True)])
        note = f"{statistics.median(times['peer']) * 1e3:.3g} ms"
        what = f"{model.name}: ONNX Runtime / ingot"
        result.add(what, ratio.median, "×", at_least=1.0, quartiles=ratio.quartiles, note=note)
    return result
