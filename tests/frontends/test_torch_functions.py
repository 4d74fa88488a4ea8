"""Some functions of torch's documentation, as `make conformance PART=torch-functions` builds and runs them all."""

from __future__ import annotations

import re

import pytest

from tools.conformance.op_info import FAILED, PASSED, REFUSED
from tools.conformance.torch_functions import tried
from tools.conformance.torch_list import CASES

AGREE = {
    ("torch", "diff"), ("torch", "atan2"), ("torch", "scatter_add"), ("torch.nn.functional", "pixel_unshuffle"),
    ("torch.nn", "GRUCell"), ("torch.nn", "utils.weight_norm"), ("in place", "y[:, 0] = 0"), ("in place", "index_put_"),
    ("in place", "masked_fill_"), ("in place", "y[y < 0] = 0"), ("control", "cond"), ("torch.fft", "fft"),
}  # fmt: skip
REFUSED_ONES = {
    ("torch", "bernoulli"): "aten.bernoulli.default.*draws no random numbers: give them as an input",
    ("control", "if on a value"): "torch.cond",
    ("control", "numpy inside of forward"): "write it in torch's ops",
}


def test_the_list() -> None:
    assert len(CASES) > 600
    assert {case.section for case in CASES} >= {"torch", "torch.linalg", "torch.special", "torch.Tensor", "in place"}


def test_some_agree() -> None:
    found = {(r.case.section, r.case.name): r for r in tried(c for c in CASES if (c.section, c.name) in AGREE)}
    assert found.keys() == AGREE
    assert {key: r.why for key, r in found.items() if r.outcome != PASSED} == {}


@pytest.mark.parametrize("key", REFUSED_ONES, ids=lambda key: key[1])
def test_some_are_refused_with_what_to_do(key: tuple[str, str]) -> None:
    (found,) = tried(c for c in CASES if (c.section, c.name) == key)
    assert found.outcome == REFUSED != FAILED
    assert re.search(REFUSED_ONES[key], found.why), found.why
