"""LSTM, GRU and RNN layers of 100 steps against torch eager, and their share of what the machine can do at most."""

from __future__ import annotations

import statistics
from functools import partial

import numpy as np
import torch

from benchmarks.harness import Options, Result, Sample
from benchmarks.machine import peak, roofs
from benchmarks.nets import Run, alternate
from ingot import nn
from ingot.builder.network import build_network
from ingot.ir import Spec
from ingot.nn import trace

STEPS = 100
LAYERS = {"LSTM": (nn.LSTM, torch.nn.LSTM, 4), "GRU": (nn.GRU, torch.nn.GRU, 3), "RNN": (nn.RNN, torch.nn.RNN, 1)}


class Sequence(nn.Module):
    """A layer's output alone."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: object) -> object:
        return self.layer(x)[0]


def floor(gates: int, hidden: int, rows: int, threads: int) -> float:
    """The least seconds: both products at the peak of arithmetic, or the recurrent weight read each step."""
    products = 2 * STEPS * rows * gates * hidden * (2 * hidden)
    read = STEPS * gates * hidden * hidden * 4
    return float(max(products / peak("float32", threads), read / (roofs(threads)["cache_bandwidth"] * 1e9)))


def recurrent(options: Options) -> Result:
    """Float32, an input as wide as the state, 128 and 512 units, one sequence and 16."""
    torch.set_num_threads(options.threads)
    result = Result("recurrent")
    rng = np.random.default_rng(0)
    for name, (ours, theirs, gates) in LAYERS.items():
        for hidden in (128, 512):
            peer = theirs(hidden, hidden).eval().requires_grad_(False)
            weights = {f"layer.{k}": v.numpy() for k, v in peer.state_dict().items()}
            for rows in (1, 16):
                x = rng.standard_normal((STEPS, rows, hidden)).astype(np.float32)
                network = trace(Sequence(ours(hidden, hidden)), {"x": Spec(x.shape, "float32")})
                session, given = build_network(network, weights).session(options.threads), torch.from_numpy(x)
                runs: dict[str, Run] = {"ingot": partial(session.run, {"x": x}), "torch": partial(peer, given)}
                times = alternate(runs, options.pairs)
                label, took = f"{name} {hidden}, batch {rows}", Sample.of([t * 1e3 for t in times["ingot"]])
                result.add(f"{label}: ingot", took.median, "ms", quartiles=took.quartiles)
                ratio = Sample.of([a / b for a, b in zip(times["torch"], times["ingot"], strict=True)])
                note = f"{statistics.median(times['torch']) * 1e3:.2f} ms"
                what = f"{label}: torch eager / ingot"
                result.add(what, ratio.median, "×", at_least=1.0, quartiles=ratio.quartiles, note=note)
                share = 100 * floor(gates, hidden, rows, options.threads) / (took.median / 1e3)
                result.add(f"{label}: share of the floor", share, "%")
    return result
