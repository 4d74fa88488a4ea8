"""What calibrated int8 costs in quality where weights were trained: digits that a net tells apart, and ONNX models."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import nn

import ingot
from benchmarks.harness import Options, Result, Sample
from benchmarks.nets import alternate
from ingot.quantization.running import apart
from tools.onnx_models import fetch
from tools.onnx_table import FACE, MODELS, TEXT, Picture

LOST = 0.5  # percentage points of accuracy that int8 may cost
EPOCHS, BATCH = 30, 64
TRAINED_ON, CALIBRATED_ON = 1197, 256  # of 1,797 digits; the others are told apart
CROPS = 16  # of a picture, that a model is calibrated on

Array = np.ndarray[Any, Any]
# The trained models by their names: a picture, its height and width, and what its pixels are less and times.
PICTURES: dict[str, tuple[Picture, int, int, float, float]] = {
    "nudenet": (FACE, 320, 320, 0.0, 1 / 255),
    "ocr-detection": (TEXT, 320, 480, 127.5, 1 / 127.5),
    "ocr-direction": (TEXT, 48, 192, 127.5, 1 / 127.5),
    "ocr-recognition": (TEXT, 48, 320, 127.5, 1 / 127.5),
}


def int8(options: Options) -> Result:
    """Accuracy on digits that were not trained on, and how far outputs of trained models are from float32; times."""
    torch.set_num_threads(options.threads)
    result = Result("int8")
    _digits(result, options)
    fetch()
    for model in MODELS:
        if model.name in PICTURES:
            _trained(result, model, options)
    return result


# --------------------------------------------------------------------------------------------------------------- digits


def _digits(result: Result, options: Options) -> None:
    """A net of four convolutions, trained here within seconds, on 8 × 8 pixels."""
    from sklearn.datasets import load_digits

    found = load_digits()
    order = np.random.default_rng(0).permutation(len(found.target))
    x = (found.images[order, None] / 16).astype(np.float32)
    labels = found.target[order]
    net = _fitted(x[:TRAINED_ON], labels[:TRAINED_ON])
    example, dynamic = (torch.zeros(2, 1, 8, 8),), {"input": {0: "N"}}
    float32 = ingot.build(net, example, dynamic=dynamic)
    data = np.split(x[:CALIBRATED_ON], CALIBRATED_ON // BATCH)
    whole = ingot.quantize(net, data, example, dynamic=dynamic, always_int8=True)
    wanted, given = labels[TRAINED_ON:], {"input": x[TRAINED_ON:]}

    def accuracy(engine: Any) -> float:
        (scores,) = engine.run(given).values()
        return float((scores.argmax(1) == wanted).mean() * 100)

    before, after = accuracy(float32), accuracy(whole)
    result.add("digits: accuracy in float32", before, "%", note=f"of {len(wanted)} that were not trained on")
    result.add("digits: what int8 loses of it", before - after, "points", at_most=LOST)
    _faster(result, "digits", float32, whole, given, options)


def _fitted(x: Array, labels: Array) -> nn.Module:
    torch.manual_seed(0)

    def block(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]

    net = nn.Sequential(
        *block(1, 16, 1), *block(16, 32, 2), *block(32, 32, 1), *block(32, 64, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )  # fmt: skip
    trainer = torch.optim.Adam(net.parameters(), 2e-3)
    images, wanted = torch.from_numpy(x), torch.from_numpy(labels)
    for _ in range(EPOCHS):
        for some in torch.randperm(len(images)).split(BATCH):
            trainer.zero_grad()
            nn.functional.cross_entropy(net(images[some]), wanted[some]).backward()
            trainer.step()
    return net.eval()


# ------------------------------------------------------------------------------------------------- trained ONNX models


def _trained(result: Result, model: Any, options: Options) -> None:
    picture, height, width, shift, scale = PICTURES[model.name]
    rng = np.random.default_rng(0)
    crops = [((_crop(picture, height, width, rng) - shift) * np.float32(scale)) for _ in range(CROPS + 1)]
    dims = dict(model.dims) or None
    float32 = ingot.build(str(model.file), dims, report=False)
    (name,) = (v.name for v in float32.inputs)
    data = [{name: x} for x in crops[1:]]
    whole = ingot.quantize(str(model.file), data, dims, errors=False, report=False, always_int8=True)
    given = {name: crops[0]}
    wanted, found = float32.run(given), whole.run(given)
    most = max(float(np.abs(found[k] - wanted[k]).max() / np.abs(wanted[k]).max()) for k in wanted)
    note = f"at most {most:.3g} of the largest"
    result.add(f"{model.name}: difference to float32", apart([found], [wanted]), "relative", note=note)
    _faster(result, model.name, float32, whole, given, options)


def _crop(picture: Picture, height: int, width: int, rng: np.random.Generator) -> Any:
    """A part of the picture, at least a half of it each way, in this size."""
    shape = np.load(picture.file, mmap_mode="r").shape
    share = rng.uniform(0.5, 1.0)
    part = [max(1, int(n * share)) for n in shape[:2]]
    begin = [int(rng.integers(0, n - p + 1)) for n, p in zip(shape[:2], part, strict=True)]
    return picture.pixels(height, width, window=tuple(slice(b, b + p) for b, p in zip(begin, part, strict=True)))


def _faster(result: Result, name: str, float32: Any, whole: Any, given: Any, options: Options) -> None:
    runs: dict[str, Callable[[], Any]] = {
        kind: partial(engine.session(options.threads).run, given) for kind, engine in (("a", float32), ("b", whole))
    }
    times = alternate(runs, options.pairs)
    ratio = Sample.of([a / b for a, b in zip(times["a"], times["b"], strict=True)])
    note = f"{statistics.median(times['b']) * 1e3:.3g} ms"
    result.add(f"{name}: float32 / int8", ratio.median, "×", quartiles=ratio.quartiles, note=note)
