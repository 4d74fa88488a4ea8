"""torch's own samples (OpInfo) of the ops that the importer has, each built into an engine and compared with torch."""

from __future__ import annotations

import gc
import warnings
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from typing import Any
from unittest import mock

import torch
from torch.utils import _pytree as pytree

import ingot
from ingot.builder.coverage import DTYPES, coverage
from ingot.errors import IngotError
from ingot.frontends.torch_export.aten import TABLE
from tests.functional.test_retired import NAMES
from tools.conformance.page import table
from tools.conformance.suites import Outcome

SAMPLES = {"float32": 5, "bfloat16": 1, "int64": 2, "bool": 1}  # of an op, by element type
# Relative and absolute.
TOLERANCE = {torch.bfloat16: (2e-2, 1e-2), torch.float32: (1e-4, 1e-5), torch.float64: (1e-7, 1e-9)}
RANDOM = ("dropout", "rand", "bernoulli", "multinomial", "normal", "empty")  # no two runs agree
# torch leaves the order of equal elements open; of these only float32 has none.
TIES = ("sort", "argsort", "topk", "kthvalue")
PASSED, FAILED, REFUSED = "passed", "failed", "refused"
MOST = 60  # lines of a list


@dataclass(frozen=True)
class Result:
    """What came of one sample: why it failed or was refused, and whether its engine has host calls."""

    op: str
    dtype: str
    outcome: str
    why: str = ""
    native: bool = True


@cache
def database() -> dict[str, list[Any]]:
    """torch's OpInfos of mapped ops by name: an overload of their ATen op is in the importer's table.

    torch's own tests forbid to set its flags outside of a context (torch.backends), from their import to the end of the
    process. Whoever reads its samples may be in a process with others, who do set them.
    """
    with warnings.catch_warnings(), mock.patch.object(torch.backends, "disable_global_flags"):
        warnings.simplefilter("ignore")
        from torch.testing._internal.common_methods_invocations import op_db
    known = {name.split(".")[1] for name in TABLE}
    found: dict[str, list[Any]] = {}
    for info in op_db:
        if {info.aten_name, info.name.rpartition(".")[2]} & known and not any(word in info.name for word in RANDOM):
            found.setdefault(info.name, []).append(info)
    return found


def results(names: Sequence[str], samples: dict[str, int]) -> Iterator[Result]:
    """What comes of the first samples of these ops."""
    for name in names:
        for info in database()[name]:
            for kind, count in samples.items():
                dtype = getattr(torch, kind)
                if dtype not in info.supported_dtypes("cpu") or (name in TIES and kind != "float32"):
                    continue
                torch.manual_seed(0)
                with warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    found = list(islice(info.sample_inputs("cpu", dtype), count))
                    gc.collect()  # the generator ends here: later, its clean-up would run in the middle of an export
                    yield from [compared(info, kind, sample) for sample in found]


class Call(torch.nn.Module):  # type: ignore[misc]
    """An op on its sample's tensors; all other arguments are fixed."""

    def __init__(self, op: Any, arguments: Any) -> None:
        super().__init__()
        self.op = op
        self.leaves, self.tree = pytree.tree_flatten(arguments)
        self.places = [i for i, leaf in enumerate(self.leaves) if isinstance(leaf, torch.Tensor)]
        self.tensors = tuple(self.leaves[i].detach().contiguous() for i in self.places)
        parameters = "".join(f", x{i}" for i in range(len(self.places)))
        self.forward = eval(f"lambda self{parameters}: self.call([{parameters[2:]}])").__get__(self)

    def call(self, tensors: Sequence[Any]) -> Any:
        leaves = list(self.leaves)
        for place, tensor in zip(self.places, tensors, strict=True):
            leaves[place] = tensor
        given, arguments, named = pytree.tree_unflatten(leaves, self.tree)
        return tuple(x for x in pytree.tree_leaves(self.op(given, *arguments, **named)) if isinstance(x, torch.Tensor))


def compared(info: Any, kind: str, sample: Any) -> Result:
    """One sample, built and run. What ingot refuses by a typed error is refused; all else has to agree with torch."""
    try:
        module = Call(info.op, (sample.input, sample.args, sample.kwargs)).eval()
        want = module(*module.tensors)
    except Exception as e:  # torch's, for a sample that its eager mode does not take in this form
        return Result(info.name, kind, REFUSED, f"torch itself: {type(e).__name__}")
    if not want or any(x.is_complex() or x.layout != torch.strided for x in (*want, *module.tensors)):
        return Result(info.name, kind, REFUSED, "complex or sparse tensors, or no result")
    try:
        engine = ingot.build(module, module.tensors, report=False)
        found = list(engine.run({f"x{i}": tensor for i, tensor in enumerate(module.tensors)}).values())
    except IngotError as e:
        outcome = REFUSED if e.exit_code == 2 else FAILED
        return Result(info.name, kind, outcome, " ".join(str(e).split())[:300])
    except Exception as e:  # ours: nothing but typed errors may come out
        return Result(info.name, kind, FAILED, f"{type(e).__name__}: {' '.join(str(e).split())[:300]}")
    native = not engine._native.host_calls("main")
    why = difference(found, want)
    if why and kind == "bfloat16" and _closer(found, want, exact(info, sample)):
        why = ""
    return Result(info.name, kind, FAILED if why else PASSED, why, native)


def exact(info: Any, sample: Any) -> Sequence[Any]:
    """torch's results of a sample of bfloat16 in float64."""
    arguments = pytree.tree_map_only(
        torch.Tensor, lambda x: x.double() if x.is_floating_point() else x, (sample.input, sample.args, sample.kwargs)
    )
    module = Call(info.op, arguments).eval()
    return tuple(module(*module.tensors))


def _closer(found: Sequence[Any], want: Sequence[Any], oracle: Sequence[Any]) -> bool:
    """Whether no result is further from the exact one than torch's own, which rounds between the steps of an op."""

    def error(x: Any, y: Any) -> float:
        return float((x.double() - y.double()).abs().max())

    ours = [torch.from_numpy(x.astype("float32")) for x in found]
    return all(error(a, o) <= error(b, o) for a, b, o in zip(ours, want, oracle, strict=True))


def difference(found: Sequence[Any], want: Sequence[Any]) -> str:
    """Where results are not torch's, or nothing."""
    if len(found) != len(want):
        return f"{len(found)} results, torch has {len(want)}"
    for array, tensor in zip(found, want, strict=True):
        if str(array.dtype) != str(tensor.dtype).removeprefix("torch.") or array.shape != tuple(tensor.shape):
            return f"{array.dtype}{list(array.shape)}, torch has {tensor.dtype}{list(tensor.shape)}"
        ours = torch.from_numpy(array.astype("float32") if array.dtype.name == "bfloat16" else array)
        relative, absolute = TOLERANCE.get(tensor.dtype, (0.0, 0.0))
        theirs = tensor.to(ours.dtype)
        if not torch.allclose(ours, theirs, relative, absolute, equal_nan=True):
            off, most = (x.abs().max().item() for x in (ours.double() - theirs.double(), theirs.double()))
            return f"differs by {off:.3g} of {most:.3g}"
    return ""


def op_info() -> Outcome:
    """All mapped ops; the names of the retired API; what runs natively."""
    found = list(results(sorted(database()), SAMPLES))
    missing = [name for name in NAMES if not hasattr(ingot.functional, name)]
    rows = []
    for kind in SAMPLES:
        own = [r for r in found if r.dtype == kind]
        count = Counter(r.outcome for r in own)
        ran = [r for r in own if r.outcome != REFUSED]
        share = f"{sum(r.native for r in ran) / max(1, len(ran)):.1%}"
        rows.append([kind, *(str(count[o]) for o in (PASSED, FAILED, REFUSED)), share])
    failed = [f"- `{r.op}` in {r.dtype}: {r.why}" for r in found if r.outcome == FAILED]
    reasons = Counter((r.op, r.why) for r in found if r.outcome == REFUSED)
    refused = [f"- `{op}` ({count}): {why}" for (op, why), count in sorted(reasons.items())]
    body = [
        f"{len(NAMES) - len(missing)} of the {len(NAMES)} plain functions of the retired API are there"
        + (f"; missing: {', '.join(missing)}." if missing else "."),
        f"{len(database())} ops of torch's op_db lead to ops that the importer has; their first samples, as engines "
        "(one of bfloat16 passes too where it is no further from torch's float64 than torch's own bfloat16):",
        table(["type", PASSED, FAILED, REFUSED, "engines without host calls"], rows),
        "Ops that an engine runs natively, by element type of their own cases:", _share(),
        *_listed("Failed:", failed), *_listed("Refused, with the number of samples:", refused),
    ]  # fmt: skip
    bad = bool(failed or missing or not any(r.outcome == PASSED for r in found))
    tests = Counter({o: n for o, n in Counter(r.outcome for r in found).items() if o != REFUSED})
    tests["skipped"] = sum(reasons.values())
    return Outcome(bad, "\n\n".join(body), "python -m tools.conformance op-info", tests)


def _share() -> str:
    ops = [row for row in coverage() if not row["internal"]]
    rows = []
    for kind in DTYPES:
        taken = [row for row in ops if kind in row["cpu"]]
        by = [sum(row["cpu"][kind] == "native" for row in taken), sum(row["torch"] == "native" for row in taken)]
        rows.append([kind, str(len(taken)), *(f"{count} ({count / len(taken):.0%})" for count in by)])
    return table(["type", "ops that take it", "native on the CPU", "by torch on a torch device"], rows)


def _listed(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    more = [f"- and {len(lines) - MOST} more"] if len(lines) > MOST else []
    return [f"{title}\n\n" + "\n".join([*lines[:MOST], *more])]
