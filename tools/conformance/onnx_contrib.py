"""Ops of com.microsoft, each in a model of one node, compared with ONNX Runtime.

python -m tools.conformance.onnx_contrib [WORD …]     those whose name has one of the words
"""

from __future__ import annotations

import sys
import traceback
import warnings
from collections import Counter
from typing import NamedTuple

import numpy as np

from ingot import _lazy
from ingot.errors import IngotError
from tools.conformance.onnx_nodes import host_calls
from tools.conformance.onnx_probes import Array, Probe, probes, theirs
from tools.conformance.page import table
from tools.conformance.suites import Outcome


class Found(NamedTuple):
    """What came of a probe: why it differs, and the ops that ran on the host."""

    probe: Probe
    why: str
    host: tuple[str, ...] = ()


def ours(probe: Probe) -> tuple[list[Array], tuple[str, ...]]:
    """What ingot's engine gives, and its host calls."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rep = _lazy.load("ingot.onnx_backend:prepare")(probe.model())
    found = rep.run(probe.feeds())
    return list(found), host_calls(rep.engine)


def compared(probe: Probe, mine: Array, wanted: Array) -> str:
    """How an output differs; nothing where it does not."""
    if mine.dtype != wanted.dtype or mine.shape != wanted.shape:
        return f"{mine.dtype}{list(mine.shape)}, should be {wanted.dtype}{list(wanted.shape)}"
    if mine.dtype.kind in "biu":
        gap = np.abs(mine.astype(np.int64) - wanted.astype(np.int64))
        if gap.size and (gap.max() > probe.steps or (gap > 0).mean() > probe.few):
            return f"{(gap > 0).sum()} of {gap.size} integers differ, by up to {gap.max()}"
        return ""
    near = np.isclose(mine, wanted, rtol=probe.rtol, atol=probe.atol, equal_nan=True)
    if near.all():
        return ""
    worst = np.nanmax(np.abs(mine.astype(np.float64) - wanted.astype(np.float64)))
    return (
        f"{(~near).sum()} of {near.size} numbers differ, by up to {worst:.3g}: {mine[~near][:3]}, {wanted[~near][:3]}"
    )


def tried(probe: Probe) -> Found:
    """Runs a probe in both and compares."""
    try:
        wanted = theirs(probe)
    except Exception as e:  # the peer's own errors have no common type
        return Found(probe, f"ONNX Runtime: {' '.join(str(e).split())[:300]}")
    try:
        mine, host = ours(probe)
    except IngotError as e:
        return Found(probe, f"{type(e).__name__}: {e}")
    except Exception as e:  # a fault of ours: shown as one
        at = traceback.extract_tb(e.__traceback__)[-1]
        return Found(probe, f"{type(e).__name__} (unexpected, {at.filename.rpartition('/')[2]}:{at.lineno}): {e}")
    if len(mine) != len(wanted):
        return Found(probe, f"{len(mine)} results, should be {len(wanted)}", host)
    whys = [compared(probe, a, b) for a, b in zip(mine, wanted, strict=True)]
    return Found(probe, "; ".join(f"result {i}: {why}" for i, why in enumerate(whys) if why), host)


def onnx_contrib() -> Outcome:
    """All probes: a row for each op, and what differs."""
    found = [tried(probe) for probe in probes()]
    rows = []
    for op in sorted({one.probe.op for one in found}):
        own = [one for one in found if one.probe.op == op]
        bad = [f"{one.probe.what}: {one.why[:200]}" for one in own if one.why]
        host = sorted({name for one in own for name in one.host})
        rows.append([op, str(len(own)), str(len(own) - len(bad)), ", ".join(host) or "none", "; ".join(bad)])
    good = sum(not one.why for one in found)
    body = table(["op", "models", "agree", "host calls", "what differs"], rows)
    counts = Counter({"passed": good, "failed": len(found) - good})
    return Outcome(good < len(found), body, "python -m tools.conformance onnx-contrib", counts)


def main(words: list[str]) -> None:
    """Prints what differs, and how many agree."""
    found = [tried(probe) for probe in probes(words)]
    for one in found:
        if one.why or one.host:
            print(f"{one.probe.name}: {one.why} {', '.join(one.host)}")
    print(sum(not one.why for one in found), "of", len(found))


if __name__ == "__main__":
    main(sys.argv[1:])
