"""Small models of transformers with random weights, exported and compared with torch: a sample of the part
`architectures` of `make conformance`, and what that part says of those that differ.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tools.conformance import architectures
from tools.conformance.architecture_list import ARCHITECTURES

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning:torch", "ignore::DeprecationWarning:torch")
KNOWN = {one.name: one for one in ARCHITECTURES}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ["patchtst", "fnet", "clip_vision_model"])
def test_small_model(name: str) -> None:
    """Built once for all sizes, equal at two, without a host call."""
    one = KNOWN[name]
    found = architectures.compare(one)
    assert found.passed, found.why
    assert found.dynamic == tuple(one.letters()) and found.host == () and found.calls > 5


def test_results_that_differ_are_misses() -> None:
    want = torch.tensor([1.0, 2.0])
    assert architectures.difference([want.numpy() + np.float32(1e-4)], [want]) < 1e-4
    for found, why in (([1.0, 2.1], "differs by 0.05"), ([1.0], "float32"), ([np.nan, 2.0], "differs by nan")):
        with pytest.raises(architectures.Differs, match=why):
            architectures.difference([np.array(found, np.float32)], [want])
    with pytest.raises(architectures.Differs, match="not finite"):
        architectures.difference([want.numpy()], [want * torch.inf])


def test_the_section() -> None:
    good = architectures.Result("bert", "text", dynamic=("N", "T"), calls=9, error=1e-6)
    miss = architectures.Result("ctrl", "text", why="no such op")
    outside = architectures.Result("vilt", "multimodal", exported=False, why="torch.export cannot export it")
    found = architectures.section([good, miss, outside])
    assert found.failed and found.tests == {"passed": 1, "failed": 1, "skipped": 1}
    assert "1 of 2 that it exports agree with torch" in found.body.replace("\n", " ")
    assert "| bert | text | 9 | none | N T | 1.0e-06 |  |" in found.body
    assert "| ctrl | no such op |" in found.body and "| vilt | torch.export cannot export it |" in found.body


def test_every_goal_can_be_reached() -> None:
    for category, goal in architectures.GOALS.items():
        assert sum(one.category == category for one in ARCHITECTURES) >= goal
    assert len(KNOWN) == len(ARCHITECTURES) >= architectures.GOAL
