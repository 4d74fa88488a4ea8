"""Transposed convolutions of more phases than a call takes weights; torch computes alike."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import ingot
from ingot.passes.convolution import MOST_PHASES

torch = pytest.importorskip("torch")

CONVOLUTIONS = {1: torch.nn.ConvTranspose1d, 2: torch.nn.ConvTranspose2d, 3: torch.nn.ConvTranspose3d}
TOGETHER = "as a convolution with the outputs of all of its phases"

# inputs, outputs, kernel, stride, and more; whether they are one convolution
WHOLE = {
    "the head of FCN-32s": (21, 21, (64, 64), (32, 32), {"bias": False}),
    "cut, with a bias": (5, 7, (64, 64), (32, 32), {"padding": (16, 3)}),
    "in groups": (8, 12, (64, 64), (32, 32), {"groups": 4, "padding": 1}),
    "every channel by itself": (6, 6, (64, 64), (32, 32), {"groups": 6}),
    "one tap": (4, 5, (40, 40), (40, 40), {}),
    "other taps in each dimension": (4, 5, (40, 90), (40, 30), {}),
    "1-D": (3, 4, (4000,), (2000,), {"padding": 7}),
    "3-D": (3, 2, (11, 22, 11), (11, 11, 11), {}),
    "3-D, in groups": (4, 6, (11, 11, 22), (11, 11, 11), {"groups": 2, "padding": (1, 2, 3)}),
}
APART = {
    "phases of several sizes": (4, 5, (65, 65), (33, 33), {}),
    "outputs that nothing reaches": (4, 5, (64, 64), (32, 32), {"output_padding": 3}),
    "dilation": (4, 5, (64, 64), (32, 32), {"dilation": 3}),
}


def net(inputs: int, outputs: int, kernel: Any, stride: Any, more: Any, seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return torch.nn.Sequential(CONVOLUTIONS[len(kernel)](inputs, outputs, kernel, stride, **more)).eval()


def sample(case: Any) -> Any:
    return torch.randn(2, case[0], *(3, 2, 2)[: len(case[2])])


@pytest.mark.parametrize(("case", "whole"), [(c, True) for c in WHOLE.values()] + [(c, False) for c in APART.values()],
                         ids=[*WHOLE, *APART])  # fmt: skip
def test_they_are_built_and_refitted(case: Any, whole: bool) -> None:
    module, x = net(*case), sample(case)
    engine = ingot.build(module, (x,), progress=False, report=False)
    assert any(TOGETHER in line for line in engine.log) == whole
    with torch.no_grad():
        wanted = module(x)
    (found,) = engine.run({"input": x}).values()
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=1e-4, atol=1e-6)
    other = net(*case, seed=1)
    again = ingot.build(other, (x,), progress=False, report=False)
    new = engine.refit(other.state_dict())
    assert all(np.array_equal(new.tensor(n), again.tensor(n)) for n in again.header["weights"])


def test_sizes_that_only_a_run_knows_and_narrow_floats() -> None:
    case = WHOLE["cut, with a bias"]
    module = net(*case)
    x = sample(case)
    engine = ingot.build(module, (x,), dynamic={"input": {0: "N", 2: "H", 3: "W"}}, precision="bfloat16",
                         progress=False, report=False)  # fmt: skip
    for shape in ((1, 5, 1, 1), (3, 5, 2, 4)):
        x = torch.randn(shape).bfloat16().float()
        with torch.no_grad():
            wanted = module.bfloat16().float()(x)
        (found,) = engine.run({"input": x}).values()
        torch.testing.assert_close(torch.from_numpy(np.float32(found)), wanted, rtol=1e-2, atol=1e-3)


@pytest.mark.parametrize("kernel", [64, 65])
def test_they_stay_float_in_a_calibrated_net(kernel: int) -> None:
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), *net(8, 4, (kernel, kernel), (32, 32), {})).eval()
    data = [torch.randn(8, 3, 5, 5) for _ in range(2)]
    engine = ingot.quantize(module, [(x,) for x in data], (data[0],), always_int8=True)
    with torch.no_grad():
        wanted = module(data[0])
    (found,) = engine.run({"input": data[0]}).values()
    torch.testing.assert_close(torch.from_numpy(found), wanted, rtol=0.05, atol=0.05 * float(wanted.abs().max()))


def test_a_call_takes_the_weights_of_as_many_phases_as_are_made_so() -> None:
    case = (2, 3, (MOST_PHASES,), (MOST_PHASES,), {})
    engine = ingot.build(net(*case), (sample(case),), progress=False, report=False)
    assert not any(TOGETHER in line for line in engine.log) and len(engine.header["weights"]) >= MOST_PHASES
