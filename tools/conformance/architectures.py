"""Architectures of transformers, built small from their configs, exported, imported, and compared with torch.

    python -m tools.conformance.architectures [MODEL_TYPE …]     those, or all; one line each
"""

from __future__ import annotations

import multiprocessing
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np

import ingot
from ingot import _lazy
from ingot.cli.inspect import kernel_counts
from ingot.errors import IngotError
from tools.conformance.architecture_list import ARCHITECTURES, Architecture, Port, factor_and_letter, tiny
from tools.conformance.page import table
from tools.conformance.suites import Outcome

TOLERANCE = 1e-4  # of an output's largest element
SECONDS = 300  # for one model, from its config to the last comparison
WORKERS = 2
GOALS = {"text": 20, "vision": 16, "audio": 8, "multimodal": 6, "time series": 4}
GOAL, DYNAMIC_GOAL = 60, 25  # of all
CANNOT_EXPORT = "torch.export cannot export"
MOST = 300  # characters of a reason, in the table


@dataclass
class Result:
    """What came of one model_type.

    exported: torch.export took the model, so that it counts. why: the reason of a miss. dynamic: the letters of the
    sizes that may change. fixed: why others of its letters may not. calls, host: how many kernels the engine calls, and
    the references on the host that it calls. error: the largest difference, over the largest element of that output.
    """

    name: str
    category: str
    exported: bool = True
    why: str = ""
    dynamic: tuple[str, ...] = ()
    fixed: str = ""
    calls: int = 0
    host: tuple[str, ...] = ()
    error: float = 0.0
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        return not self.why


# ------------------------------------------------------------------------------------------------- models and inputs


def model(architecture: Architecture) -> Any:
    """The small model in evaluation mode, with weights that are all random."""
    torch, transformers = _lazy.load("torch"), _lazy.load("transformers")
    torch.manual_seed(0)
    config = tiny(transformers.CONFIG_MAPPING[architecture.name], architecture.config)
    for name in ("use_cache", "return_loss"):
        if hasattr(config, name):
            setattr(config, name, False)
    made = getattr(transformers, architecture.model)
    made = made.from_config(config) if architecture.model.startswith("Auto") else made(config)
    _shake(torch, made)
    return made.eval()


def _shake(torch: Any, module: Any) -> None:
    """Moves every weight, so that none is 0 or 1 only and no layer the identity."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            if tensor.is_floating_point():
                noise = torch.empty(tensor.shape).normal_(generator=draw)
                variance = name.endswith("running_var")
                tensor.copy_(1 + noise.abs() / 2 if variance else tensor + noise / 20)


def inputs(architecture: Architecture, run: int, still: Sequence[str] = ()) -> dict[str, Any]:
    """Tensors of the sizes of one run; letters that stand still have those of the first."""
    torch = _lazy.load("torch")
    draw = torch.Generator().manual_seed(run)

    def size(d: int | str) -> int:
        if isinstance(d, int):
            return d
        factor, letter = factor_and_letter(d)
        return factor * architecture.size(letter, 0 if letter in still else run)

    def tensor(port: Port) -> Any:
        shape = [size(d) for d in port.shape]
        if port.kind == "floats":
            return torch.empty(shape).normal_(generator=draw)
        if port.kind == "mask":
            made = torch.ones(shape, dtype=torch.int64)
            made[0, -2:] = 0  # of nothing but ones, models make none when they run and one while they are exported
            return made
        return torch.randint(port.low, port.high, shape, generator=draw)

    return {name: tensor(port) for name, port in architecture.inputs.items()}


def dynamic_axes(architecture: Architecture, letters: Sequence[str]) -> dict[str, dict[int, Any]]:
    """What `ingot.build` is told of dynamic dimensions."""
    found: dict[str, dict[int, Any]] = {}
    for name, port in architecture.inputs.items():
        for axis, d in enumerate(port.shape):
            if isinstance(d, str) and (given := factor_and_letter(d))[1] in letters:
                found.setdefault(name, {})[axis] = given[0] * ingot.Dim(given[1])
    return found


# ---------------------------------------------------------------------------------------------------------- comparing


def results(module: Any, feeds: dict[str, Any]) -> list[Any]:
    """The tensors that the model itself returns."""
    torch = _lazy.load("torch")
    with torch.no_grad():
        leaves = torch.utils._pytree.tree_leaves(module(**feeds))
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


class Differs(Exception):
    """The engine's results are not torch's; the message says how."""


def difference(found: Sequence[Any], want: Sequence[Any]) -> float:
    """The largest one, over the largest element of its output. Raises Differs when it is more than TOLERANCE."""
    if len(found) != len(want):
        raise Differs(f"{len(found)} results, torch has {len(want)}")
    worst = 0.0
    for array, tensor in zip(found, want, strict=True):
        theirs = tensor.numpy()
        if array.shape != theirs.shape or array.dtype != theirs.dtype:
            raise Differs(f"{array.dtype}{list(array.shape)}, torch has {theirs.dtype}{list(theirs.shape)}")
        if not np.isfinite(theirs).all():
            raise Differs("torch's own result is not finite: the comparison would show nothing")
        if theirs.size:
            apart = np.abs(array.astype(np.float64) - theirs).max() / max(float(np.abs(theirs).max()), 1e-30)
            if not apart <= TOLERANCE:
                raise Differs(f"differs by {apart:.2g} of the largest element")
            worst = max(worst, float(apart))
    return worst


def attempt(module: Any, architecture: Architecture, letters: Sequence[str]) -> Result:
    """An engine with these letters dynamic, compared at the sizes of both runs; with none at those of the first."""
    result = Result(architecture.name, architecture.category, dynamic=tuple(letters))
    first = inputs(architecture, 0)
    try:
        engine = ingot.build(module, first, dynamic=dynamic_axes(architecture, letters), report=False)
        still = [d for d in architecture.letters() if d not in letters]
        for feeds in (first, inputs(architecture, 1, still)) if letters else (first,):
            apart = difference(list(engine.run(feeds).values()), results(module, feeds))
            result.error = max(result.error, apart)
    except (IngotError, Differs) as e:
        return replace(result, why=_line(e), exported=CANNOT_EXPORT not in str(e))
    for program in engine.header["programs"].values():
        native, host = kernel_counts(program)
        result.calls += native.total()
        result.host += tuple(sorted(host.elements()))
    return result


def compare(architecture: Architecture) -> Result:
    """One architecture: with all its letters dynamic, else with the batch alone, else with none."""
    start = time.monotonic()
    warnings.simplefilter("ignore")  # of transformers, about itself
    result = Result(architecture.name, architecture.category)
    fixed = ""
    try:
        module = model(architecture)
        for letters in dict.fromkeys((tuple(architecture.letters()), ("N",), ())):
            result = attempt(module, architecture, letters)
            if result.passed:
                break
            fixed = fixed or result.why
    except Exception as e:  # nothing but typed errors may come out of a build: the table has to name it
        result = Result(architecture.name, architecture.category, why=_line(e))
    return replace(result, fixed=fixed if result.passed else "", seconds=time.monotonic() - start)


def _line(e: Exception) -> str:
    return f"{type(e).__name__}: {' '.join(str(e).split())}"


# ---------------------------------------------------------------------------------------------------------- processes


def _send(connection: Connection, architecture: Architecture) -> None:
    _lazy.load("torch").set_num_threads(1)
    connection.send(compare(architecture))


def alone(architecture: Architecture) -> Result:
    """The same in a process of its own, with a clock: one that crashes or hangs is a miss of its own."""
    context = multiprocessing.get_context("forkserver")
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(there, architecture))
    process.start()
    there.close()
    missed = Result(architecture.name, architecture.category)
    try:
        return here.recv() if here.poll(SECONDS) else replace(missed, why=f"not done after {SECONDS} seconds")
    except EOFError:
        process.join()
        return replace(missed, why=f"its process ended with status {process.exitcode}")
    finally:
        process.kill()
        process.join()


def all_of_them(chosen: Sequence[Architecture]) -> list[Result]:
    """What came of each, in order; a line each on the way."""
    multiprocessing.get_context("forkserver").set_forkserver_preload(["torch", "transformers", __name__])
    found = []
    with ThreadPoolExecutor(WORKERS) as pool:
        for result in pool.map(alone, chosen):
            found.append(result)
            how = f"{result.error:.1e} {' '.join(result.dynamic)} {result.fixed}" if result.passed else result.why
            print(f"{result.category}: {result.name} {result.seconds:.0f} s: {how} {' '.join(result.host)}", flush=True)
    return found


# ------------------------------------------------------------------------------------------------------------ the page


def architectures() -> Outcome:
    """All, as a section of the page."""
    return section(all_of_them(ARCHITECTURES))


def section(found: Sequence[Result]) -> Outcome:
    """What the page says: a table by category, one of all, and what torch.export does not take."""
    torch, transformers = _lazy.load("torch"), _lazy.load("transformers")
    good, counted = [r for r in found if r.passed], [r for r in found if r.exported]
    missed = [r for r in counted if not r.passed]
    dynamic = [r for r in good if r.dynamic]
    native = sum(not r.host for r in good)
    head = (
        f"Model types of transformers {transformers.__version__}, small, with random weights, through torch.export "
        f"of torch {torch.__version__}; docs/importing.md says which versions are tried. {len(good)} of "
        f"{len(counted)} that it exports agree with torch (allowed are {TOLERANCE:g} of an output's largest element in "
        f"float32), {native} of them without a host call. {len(dynamic)} were built once with sizes that may change, "
        "and compared at two: N is the batch, T and U are lengths, H and W height and width."
    )
    counts_of = [Counter(r.category for r in some) for some in (good, dynamic, missed)]
    by_category = [[c, str(goal), *(str(count[c]) for count in counts_of)] for c, goal in GOALS.items()]
    rows = [
        [r.name, r.category, str(r.calls), ", ".join(f"{n} {op}" for op, n in Counter(r.host).items()) or "none",
         " ".join(r.dynamic) or "no", f"{r.error:.1e}", r.fixed[:MOST]]
        for r in good
    ]  # fmt: skip
    body = [
        head,
        table(["category", "goal", "passed", "with dynamic sizes", "missed"], by_category),
        table(["model_type", "category", "kernels", "host calls", "dynamic", "difference", "why not more is"], rows),
        *_listed("Missed:", missed),
        *_listed("torch itself does not export these, which count neither way:", [r for r in found if not r.exported]),
    ]
    enough = all(counts_of[0][c] >= goal for c, goal in GOALS.items())
    failed = not (enough and len(good) >= GOAL and len(dynamic) >= DYNAMIC_GOAL)
    counts = Counter({"passed": len(good), "failed": len(missed), "skipped": len(found) - len(counted)})
    return Outcome(failed, "\n\n".join(body), "python -m tools.conformance architectures", counts)


def _listed(title: str, found: Sequence[Result]) -> list[str]:
    return [title + "\n\n" + table(["model_type", "why"], [[r.name, r.why[:MOST]] for r in found])] if found else []


def main() -> None:
    names = sys.argv[1:]
    all_of_them([one for one in ARCHITECTURES if not names or one.name in names])


if __name__ == "__main__":
    main()
