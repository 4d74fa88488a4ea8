"""Functions and layers of torch's documentation, and what people write with them: each built from a module, and run."""

from __future__ import annotations

import logging
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

import ingot
from ingot.errors import IngotError
from tools.conformance.op_info import FAILED, PASSED, REFUSED, difference
from tools.conformance.page import table
from tools.conformance.suites import Outcome
from tools.conformance.torch_list import CASES, Called, Case

WAYS_OUT = (": ", "(")  # behind one of these a reason says what to do


@dataclass(frozen=True)
class Found:
    """What came of a case: why it was refused or failed, and whether its engine has host calls."""

    case: Case
    outcome: str
    why: str = ""
    native: bool = True


def tried(cases: Iterable[Case]) -> Iterator[Found]:
    """Every case: it agrees with torch, or is refused by a typed error that says what to do; all else is a failure."""
    logger = logging.getLogger("torch")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # torch prints the graphs that it cannot export
    try:
        for case in cases:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield _tried(case)
    finally:
        logger.setLevel(level)


def _tried(case: Case) -> Found:
    module = case.call if isinstance(case.call, torch.nn.Module) else Called(case.call, len(case.inputs))
    module.eval()
    with torch.no_grad():
        results = torch.utils._pytree.tree_leaves(module(*[x.clone() for x in case.inputs]))
    want = [_in_pairs(torch.as_tensor(x)) for x in results if x is not None]
    try:
        engine = ingot.build(module, tuple(x.clone() for x in case.inputs), report=False)
        feeds = {port.name: _in_pairs(x) for port, x in zip(engine.inputs, case.inputs, strict=True)}
        found = list(engine.run(feeds).values())
    except IngotError as e:
        said = " ".join(str(e).split())
        typed = e.exit_code == 2 and any(word in said for word in WAYS_OUT)
        return Found(case, REFUSED if typed else FAILED, said)
    except Exception as e:  # ours: nothing but typed errors may come out
        return Found(case, FAILED, f"{type(e).__name__}: {' '.join(str(e).split())[:300]}")
    why = difference(found, want)
    return Found(case, FAILED if why else PASSED, why, not engine._native.host_calls("main"))


def _in_pairs(x: Any) -> Any:
    """As engines have it: complex numbers as pairs."""
    return torch.view_as_real(x.resolve_conj()) if x.is_complex() else x


def torch_functions() -> Outcome:
    """All cases, counted by section; every one that is refused, with the reason."""
    results = list(tried(CASES))
    rows = []
    for section in dict.fromkeys(case.section for case in CASES):
        own = [r for r in results if r.case.section == section]
        count = Counter(r.outcome for r in own)
        native = sum(r.native for r in own if r.outcome == PASSED)
        rows.append([section, *(str(n) for n in (len(own), count[PASSED], native, count[REFUSED], count[FAILED]))])
    total = [str(sum(int(row[i]) for row in rows)) for i in range(1, 6)]
    named = [[s, ", ".join(_name(r) for r in results if r.case.section == s and r.outcome == PASSED)]
             for s in dict.fromkeys(case.section for case in CASES)]  # fmt: skip
    rest = [r for r in results if r.outcome != PASSED]
    others = [[r.case.section, _name(r), r.outcome, r.why[:400].replace("|", "\\|")] for r in rest]
    body = "\n\n".join([
        "The lists of torch's documentation, gone through name by name, on small tensors; results within 1e-4.",
        table(["section", "tried", "agree", "without host calls", "refused", "failed"], [*rows, ["all", *total]]),
        "Those that agree:", table(["section", "names"], named),
        "Refused or failed:", table(["section", "name", "outcome", "why"], others),
    ])  # fmt: skip
    counts = Counter(r.outcome for r in results)
    tests = Counter({PASSED: counts[PASSED], "skipped": counts[REFUSED], FAILED: counts[FAILED]})
    return Outcome(counts[FAILED] > 0, body, "python -m tools.conformance torch-functions", tests)


def _name(found: Found) -> str:
    return found.case.name.replace("|", "\\|")
