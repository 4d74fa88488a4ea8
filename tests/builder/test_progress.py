"""What a build tells those who wait for it: a bar on a terminal, its phases, host calls, what it was compared with."""

from __future__ import annotations

import io
import json
import re
import sys
from typing import Any

import numpy as np
import pytest
import torch

import ingot
from ingot import functional as F
from ingot import nn
from ingot.engine.session import Dims


class Linear(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)
        self.layer.weight.value, self.layer.bias.value = np.ones((4, 3), np.float32), np.ones(4, np.float32)

    def forward(self, x: ingot.Tensor) -> Any:
        return {"y": self.layer(x)}


class OnHost(nn.Module):
    """Its convolution of float64 is a host call."""

    def forward(self, x: ingot.Tensor) -> Any:
        wide = F.conv1d(F.cast(x, "float64"), np.ones((4, 3, 1)))
        return {"y": F.cast(wide, "float32")}


LINES = {"x": ingot.Spec(("N", 3, 16), "float32")}


def test_host_calls_are_said_once_with_their_share(caplog: pytest.LogCaptureFixture) -> None:
    engine = ingot.build(OnHost(), LINES)
    (record,) = caplog.records
    share = engine.summary.host_share
    assert record.name == "ingot.build" and record.levelname == "WARNING" and 0 < share <= 1
    assert record.getMessage().startswith(f"1 host call in Python, {share:.0%} of a run's time; engine.summary says")
    assert f"slow    1 host call in Python, {share:.0%} of a run's time\n" in f"{engine.summary}\n"
    assert engine.summary.json()["host_share"] == share
    caplog.clear()
    assert ingot.build(OnHost(), LINES, progress=False).summary.host_share is not None
    assert ingot.build(OnHost(), LINES, progress=False, report=False).summary.host_share is None
    assert not caplog.records
    assert ingot.build(Linear(), {"x": ingot.Spec(("N", 3), "float32")}).summary.host_share is None
    assert not caplog.records


def test_a_terminal_sees_a_bar_and_the_phases(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    def shown(**words: Any) -> str:
        monkeypatch.setattr(sys, "stderr", stream := Terminal())
        ingot.build(Linear(), {"x": ingot.Spec(("N", 3), "float32")}, **words)
        return stream.getvalue()

    assert re.search(r"built in [\d.]+ s: trace [\d.]+, lower [\d.]+, pack [\d.]+, report [\d.]+\n", shown())
    assert "lower" in shown().partition("built in")[0]  # the bar
    phases: list[str] = []
    assert shown(progress=False) == "" and shown(progress=lambda phase, *_: phases.append(phase)) == ""
    assert {"trace", "lower", "pack"} <= set(phases)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    ingot.build(Linear(), {"x": ingot.Spec(("N", 3), "float32")})
    assert stream.getvalue() == ""


def test_it_says_what_was_compared_with_torch() -> None:
    module, x = torch.nn.Linear(3, 4), torch.randn(2, 3)
    (exact, narrow) = (str(ingot.build(module, (x,), precision=p).report) for p in ("float32", "bfloat16"))
    assert "\nagainst torch" in exact and "\nthe network in float32 against torch" in narrow


def test_sizes_print_as_they_are_meant() -> None:
    assert f"{Dims(('N', 3, ['+', ['*', 2, 'H'], 1], 'W'))!r}" == "[N, 3, 2*H + 1, W]"
    assert Dims((1, 2)) == (1, 2) and json.dumps(Dims(("N", ["*", 2, "H"]))) == '["N", ["*", 2, "H"]]'
