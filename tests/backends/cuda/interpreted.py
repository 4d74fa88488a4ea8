"""Marks of tests whose kernels Triton interprets where there is no GPU, which takes seconds a case.

`make test` takes some of them there, the part `cuda` of `make conformance` all, and a GPU all at once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.gpu import GPU

WITHOUT = "Triton is not installed: pip install 'ingot[gpu-test]', which has it for Linux on x86-64"


def one_of_each(by: Callable[[dict[str, Any]], object] = lambda arguments: None) -> pytest.MarkDecorator:
    """The first case of a test, and of every kind that `by` tells of its arguments."""
    return pytest.mark.sampled(1 if GPU else 1000, by=by)


LONG = pytest.mark.sampled(1) if GPU else pytest.mark.slow
