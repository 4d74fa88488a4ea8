"""Programmatic dependent launch, in Triton: with DEPENDENT a kernel is started while the one before it still runs.

It loads weights, which nobody writes, and then waits for all that was launched before it. Every program waits, also one
with nothing to do, for the next kernel counts on it.
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def after_others(DEPENDENT: tl.constexpr):
    if DEPENDENT:
        gdc_launch_dependents()
        gdc_wait()
