"""Trained ONNX models, built for sizes of inputs and for all sizes, and compared with ONNX Runtime."""

from __future__ import annotations

from collections import Counter

from tools.conformance.page import table
from tools.conformance.suites import Outcome
from tools.onnx_models import MODELS, TOLERANCE, compare, fetch, for_any_size


def onnx_models() -> Outcome:
    """Every model at every size, and those that one engine cannot run at all sizes, with the reason."""
    fetch()
    found = [compare(model, sizes) for model in MODELS for sizes in model.sizes]
    whys = {model.name: for_any_size(model) for model in MODELS}
    rows = [[one.model, one.size, one.why or f"{one.error:.2g}", ", ".join(one.host) or "none"] for one in found]
    head = f"Differences are of the largest element of a row along an output's last axis; allowed are {TOLERANCE:g}."
    sized = table(["model", "inputs", "difference to ONNX Runtime", "host calls"], rows)
    kept = [[name, " ".join(why.split())[:300].replace("|", "\\|") or "yes"] for name, why in whys.items()]
    body = "\n\n".join([head, sized, table(["model", "one engine for all sizes that it declares"], kept)])
    good, fixed = sum(one.good for one in found), sum(bool(why) for why in whys.values())
    counts = Counter({"passed": good + len(whys) - fixed, "failed": len(found) - good, "skipped": fixed})
    return Outcome(good < len(found), body, "python -m tools.conformance onnx-models", counts)
