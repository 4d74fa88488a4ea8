"""Ops that the importer lacks, replaced by what torch itself makes of them: for programs in this process."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from typing import Any

from ingot.frontends.torch_export import higher_order
from ingot.frontends.torch_export.aten import COMPLEX_TABLE, TABLE
from ingot.frontends.torch_export.aten import sizes as size_ops
from ingot.frontends.torch_export.importer import NUMBERS
from ingot.frontends.torch_export.plain_forms import has_plain_form

ROUNDS = 8  # torch's rules make ops that are taken apart again
MAX_ALONE = 12  # ops that are tried one by one, where some cannot be taken apart
_TRACING = ("torch._functorch.",)  # calls that only steer torch: functionalizing a program carries them out


def taken_apart(torch: Any, program: Any) -> Any:
    """The exported program in which every op that the importer lacks is replaced, where torch has a rule whose ops it
    has; else the program as it is. A rule may choose by sizes, as torch's guards then say.
    """
    steered = any(_steers(torch, node) for node in _calls(program))
    lacking = _lacking(torch, program)
    if not lacking and not steered:
        return program
    whole = _replaced(torch, program, lacking)
    if whole is not None:
        return whole if _agree(torch, program, whole) else program
    all_of_them = set(lacking)
    good = [op for op in lacking[:MAX_ALONE] if _replaced(torch, program, [op], all_of_them - {op}) is not None]
    found = _replaced(torch, program, good, all_of_them.difference(good)) if good or steered else None
    return program if found is None or not _agree(torch, program, found) else found


def _agree(torch: Any, program: Any, other: Any) -> bool:
    """Whether both give the same on the example inputs: a rule of torch 2.13, multilabel_margin_loss's, is wrong."""
    if program.example_inputs is None:
        return False
    results = []
    for one in (program, other):
        args, kwargs = torch.utils._pytree.tree_map_only(torch.Tensor, torch.clone, program.example_inputs)
        try:
            with torch.no_grad():
                results.append(torch.utils._pytree.tree_leaves(one.module()(*args, **kwargs)))
        except Exception:  # whatever the user's code raises when it runs
            return False
    pairs = zip(*results, strict=True)
    return all(_close(torch, a, b) if isinstance(a, torch.Tensor) else a == b for a, b in pairs)


def _close(torch: Any, a: Any, b: Any) -> bool:
    if a.dtype is not b.dtype or a.shape != b.shape:
        return False
    if not (a.is_floating_point() or a.is_complex()):
        return bool(torch.equal(a, b))
    apart = 2e-2 if a.dtype in (torch.bfloat16, torch.float16) else 1e-4
    return bool(torch.allclose(a, b, apart, apart * float(a.abs().nan_to_num(0, 0, 0).max()) if a.numel() else 0, True))


def _calls(program: Any) -> Iterable[Any]:
    for module in program.graph_module.modules():
        yield from (node for node in module.graph.nodes if node.op == "call_function")


def _steers(torch: Any, node: Any) -> bool:
    """Whether a call says how torch runs others, which the program's own ops do not show."""
    if node.target is torch.ops.higher_order.wrap_with_autocast:
        return node.args[2] is not False
    return str(getattr(node.target, "__module__", "")).startswith(_TRACING)


def _lacking(torch: Any, program: Any) -> list[Any]:
    """The ops of a program that the importer has no entry for."""
    found = {node.target: None for node in _calls(program) if isinstance(node.target, torch._ops.OpOverload)}
    return [op for op in found if not _known(str(op))]


def _known(op: str) -> bool:
    known = op in TABLE or op in COMPLEX_TABLE or op in size_ops.NAMES or op in higher_order.TABLE or op in NUMBERS
    return known or has_plain_form(op)


def _rule(torch: Any, op: Any) -> Any:
    """What torch makes of an op; None where it has no rule."""
    rules = torch._decomp.decomposition_table
    core = torch.export.default_decompositions()
    for table in (core, rules):
        if op in table:
            return table[op]
    return op.decompose if op._can_decompose() else None


def _replaced(torch: Any, program: Any, ops: list[Any], others: Any = frozenset()) -> Any:
    """The program without these ops; None where torch cannot, or makes ops of them that the importer lacks (but those
    of `others`).
    """
    guards = program._guards_code
    for _ in range(ROUNDS):
        rules = {op: rule for op in ops if (rule := _rule(torch, op)) is not None}
        if len(rules) < len(ops):
            return None
        try:
            with torch.no_grad(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                program = program.run_decompositions(rules)
        except Exception:  # whatever torch's rules raise: the importer then names the op that it lacks
            return None
        ops = [op for op in _lacking(torch, program) if op not in others]
        if not ops:
            program._guards_code = guards
            return program
    return None
