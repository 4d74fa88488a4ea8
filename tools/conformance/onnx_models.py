"""Trained ONNX models, one engine each for all sizes that they declare, compared with ONNX Runtime at several."""

from __future__ import annotations

from collections import Counter

from tools.conformance.page import table
from tools.conformance.suites import Outcome
from tools.onnx_models import TOLERANCE, compare, fetch
from tools.onnx_table import MODELS


def onnx_models() -> Outcome:
    """Every model at every size; a model without an engine, and one that differs, is shown with the reason."""
    fetch()
    rows, good, known = [], 0, 0
    for model in MODELS:
        for one in compare(model):
            excused = bool(model.differs) and not one.good and not one.why and not one.host
            good, known = good + one.good, known + excused
            found = one.why or f"{one.error:.2g}" + (f": {model.differs}" if excused else "")
            about = [model.name, model.source.package, one.size, " ".join(found.split()).replace("|", "\\|")]
            rows.append([*about, ", ".join(one.host) or "none"])
    head = (
        "One engine of each model runs at all of these sizes. Differences are of the largest element of a row along an "
        f"output's last axis, or of its share of integers; allowed are {TOLERANCE:g}."
    )
    body = "\n\n".join(
        [head, table(["model", "from", "inputs", "difference to ONNX Runtime", "host calls"], rows)]
    )
    failed = len(rows) - good - known
    counts = Counter({"passed": good, "failed": failed, "skipped": known})
    return Outcome(failed > 0, body, "python -m tools.conformance onnx-models", counts)
