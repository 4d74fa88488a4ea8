"""Trained ONNX models on an NVIDIA GPU: engines that were built on a CPU machine, beside the CPU's own results.

`python -m benchmarks.gpu_onnx` on any machine writes the engines, inputs and results to build/bench/onnx; that folder
travels to the GPU, where neither ONNX nor the models' packages have to be.
"""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np

import ingot
from benchmarks.harness import CACHE, Options, Result, Sample, repeated
from ingot.errors import UserError

FOLDER = CACHE / "onnx"
ACCURACY = 1e-3  # of a row's largest number, to the CPU's
UNSTABLE = 0.5  # of models that amplify float32's last bit, by which other implementations are apart too: 0.08 at most


def prepare() -> None:
    """Writes an engine for each model, inputs at the first of its sizes, and what the CPU makes of them."""
    from tools.onnx_models import build_for, fetch
    from tools.onnx_table import MODELS

    fetch()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for model in MODELS:
        engine = build_for(model)
        engine.save(FOLDER / f"{model.name}.ingot")
        feeds = model.feeds(np.random.default_rng(0), *model.sizes[0])
        results = engine.run(feeds)
        np.savez(FOLDER / f"{model.name}.npz", differs=model.differs, **{f"in {k}": v for k, v in feeds.items()},
                 **{f"out {k}": v for k, v in results.items()})  # fmt: skip
        print(model.name, (FOLDER / f"{model.name}.ingot").stat().st_size, flush=True)


def gpu_onnx(options: Options) -> Result:
    """Of each model: the first run, later ones, inputs and results on the host; the difference to the CPU."""
    from benchmarks.gpu_decode import started  # torch, which `prepare` can do without

    if not (paths := sorted(FOLDER.glob("*.ingot"))):
        raise UserError(f"{FOLDER} is empty: python -m benchmarks.gpu_onnx fills it, on a machine with onnx")
    result, _ = started("gpu-onnx", "host transfers included")
    for path in paths:
        try:
            _model(result, path.stem, ingot.load(path).session(device="cuda"), options.pairs)
        except ingot.IngotError as e:
            result.add(f"{path.stem}: runs", 0, "of 1", at_least=1, note=str(e))
    return result


def _model(result: Result, name: str, session: ingot.Session, times: int) -> None:
    with np.load(FOLDER / f"{name}.npz") as file:
        feeds = {k[3:]: file[k] for k in file if k.startswith("in ")}
        wanted = {k[4:]: file[k] for k in file if k.startswith("out ")}
        differs = str(file["differs"])
    begin = perf_counter()
    session.run(feeds)
    first = perf_counter() - begin

    def run() -> float:
        start = perf_counter()
        session.run(feeds)
        return (perf_counter() - start) * 1e3

    run()
    took: Sample = repeated(run, max(times, 20))
    found = session.run(feeds)
    apart = max(_apart(found[k], v) for k, v in wanted.items())
    executor: Any = session._executor
    captured = any(seen.graph is not None or seen.there for seen in executor._seen.values())
    why = "" if captured else f", not captured: {executor.uncaptured or 'an op on its way reads values back'}"
    result.add(f"{name}: ingot", took.median, "ms", quartiles=took.quartiles, note=f"first {first:.2f} s{why}")
    most = UNSTABLE if differs else ACCURACY
    result.add(f"{name}: largest difference to the CPU's", apart, "of a row's largest", at_most=most, note=differs)


def _apart(found: Any, wanted: Any) -> float:
    if found.shape != wanted.shape:
        return float("inf")
    if wanted.dtype.kind != "f" or not wanted.size:
        return float((found != wanted).mean()) if wanted.size else 0.0
    largest = np.maximum(np.abs(np.atleast_1d(wanted)).max(-1), 1e-2)
    return float((np.abs(np.atleast_1d(found - wanted)).max(-1) / largest).max())


if __name__ == "__main__":
    prepare()
