"""Runs one kernel call of the native core on arrays, through an engine made in memory."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot import _native

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Weight:
    """An operand stored in the engine file."""

    array: Array


@dataclass(frozen=True)
class View:
    """An operand that is a strided window on an array; strides and offset count elements."""

    array: Array
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int = 0


Operand = Array | Weight | View


def run(
    kernel: str,
    params: dict[str, Any],
    operands: Sequence[Operand],
    outputs: Sequence[tuple[str, tuple[int, ...]]],
    threads: int = 1,
) -> list[Array]:
    """The outputs (dtype name, shape) of one call of version 1 of a kernel."""
    session, feeds = opened(kernel, params, operands, outputs, threads)
    found = session.run(feeds)
    return [found[f"y.{i}"] for i in range(len(outputs))]


def opened(
    kernel: str,
    params: dict[str, Any],
    operands: Sequence[Operand],
    outputs: Sequence[tuple[str, tuple[int, ...]]],
    threads: int = 1,
) -> tuple[_native.Session, dict[str, Array]]:
    """The session of such a call, and what it runs on."""
    buffers: list[dict[str, Any]] = []
    feeds: dict[str, Array] = {}
    tensors: dict[str, Array] = {}
    weights: dict[str, Any] = {}
    inputs = []
    for i, operand in enumerate(operands):
        array = operand if isinstance(operand, np.ndarray) else operand.array
        described = {"dtype": array.dtype.name, "shape": list(array.shape)}
        if isinstance(operand, Weight):
            tensors[f"w.{i}"] = array
            weights[f"w.{i}"] = {"recipe": {"sources": [f"w.{i}"], "steps": []}, "hash": []}
            buffers.append({"kind": "weight", "tensor": f"w.{i}", **described})
        else:
            feeds[f"x.{i}"] = array
            buffers.append({"kind": "input", "name": f"x.{i}", **described})
        if isinstance(operand, View):
            place = {"stride": list(operand.stride), "offset": operand.offset}
            buffers.append({"kind": "view", "of": len(buffers) - 1, "shape": list(operand.shape), **place})
        inputs.append(len(buffers) - 1)
    first = len(buffers)
    buffers += [{"kind": "temp", "dtype": dtype, "shape": list(shape)} for dtype, shape in outputs]
    results = list(range(first, len(buffers)))
    call = {"kernel": kernel, "version": 1, "in": inputs, "out": results, "params": params, "where": "test"}
    program = {
        "version": 1,
        "symbols": [],
        "buffers": buffers,
        "calls": [call],
        "outputs": [{"name": f"y.{i}", "buffer": buffer} for i, buffer in enumerate(results)],
    }
    header = {
        "format": 1,
        "producer": "ingot test",
        "kind": "network",
        "config": {},
        "networks": {},
        "weights": weights,
        "programs": {"cpu": {"entries": {"main": program}}},
        "files": {},
    }
    engine = _native.Engine.from_memory(json.dumps(header).encode(), tensors)
    return _native.Session(engine, threads=threads), feeds
