"""torch's higher-order ops: choices, loops, and blocks that only say how torch runs what is in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from ingot import dtypes
from ingot.dtypes import DType
from ingot.frontends.torch_export.aten import Complex, Unsupported
from ingot.frontends.torch_export.aten.sizes import UNKNOWN
from ingot.frontends.torch_export.graph import Body, Setting
from ingot.ir import F, Network, Spec, Value
from ingot.ops.control import MAX_ROUNDS

SPACE = "higher_order."


class Blocks(Protocol):
    """What an importer does with a graph inside of a program."""

    def inline(self, graph: Body, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
        """The results of the graph's ops, recorded here."""

    def network_of(self, graph: Body, arguments: tuple[Any, ...], specs: list[Spec]) -> Network:
        """A network of the graph's ops. Its inputs have these specs, and stand for the tensors among the arguments."""


Entry = Callable[..., tuple[Any, ...]]
TABLE: dict[str, Entry] = {}


def enter(name: str) -> Callable[[Entry], Entry]:
    def put(function: Entry) -> Entry:
        TABLE[SPACE + name] = function
        return function

    return put


def _tensors(values: Any, what: str) -> list[Value]:
    given = values if isinstance(values, tuple) else (values,)
    if any(isinstance(x, Complex) for x in given):
        raise Unsupported(f"complex {what} are not supported: give torch.view_as_real of them")
    if not all(isinstance(x, Value) for x in given):
        raise Unsupported(f"{what} must be tensors")
    return list(given)


def _results(found: Any) -> tuple[Any, ...]:
    return found if isinstance(found, tuple) else (found,)


@enter("cond")
def cond(blocks: Blocks, predicate: Any, yes: Any, no: Any, operands: tuple[Any, ...] = ()) -> tuple[Any, ...]:
    if not isinstance(yes, Body) or not isinstance(no, Body):
        raise Unsupported("its branches must be graphs")
    if predicate is UNKNOWN:
        raise Unsupported("its condition is one on sizes that only a run knows; make it a tensor, or fix the size")
    if isinstance(predicate, bool):
        return blocks.inline(yes if predicate else no, operands)
    (chosen,) = _tensors(predicate, "a condition")
    tensors = _tensors(tuple(x for x in operands if isinstance(x, Value | Complex)), "operands")
    specs = [x.spec for x in tensors]
    branches = [blocks.network_of(graph, operands, specs) for graph in (yes, no)]
    if chosen.dtype is not dtypes.bool_:
        raise Unsupported(f"its condition is {chosen.spec}; it must be a bool")
    chosen = F.reshape(chosen, ()) if chosen.shape else chosen
    return _results(F.cond(chosen, *tensors, then_branch=branches[0], else_branch=branches[1]))


@enter("while_loop")
def while_loop(blocks: Blocks, condition: Any, body: Any, carried: Any, others: Any = ()) -> tuple[Any, ...]:
    xs, rest = _tensors(carried, "what a loop carries"), _tensors(others, "operands of a loop")
    operands, specs = (*xs, *rest), [x.spec for x in (*xs, *rest)]
    test, rounds = (blocks.network_of(graph, operands, specs) for graph in (condition, body))
    if len(rounds.outputs) != len(xs):
        raise Unsupported(f"its body gives {len(rounds.outputs)} results of {len(xs)} that it carries")
    for i, value in enumerate(rounds.inputs[len(xs) :]):
        rounds.output(f"passed{i}", value)
    return _results(F.while_loop(*operands, condition=test, body=rounds, limit=MAX_ROUNDS))[: len(xs)]


@enter("scan")
def scan(blocks: Blocks, body: Any, carried: Any, scanned: Any, others: Any = ()) -> tuple[Any, ...]:
    xs, parts = _tensors(carried, "what a scan carries"), _tensors(scanned, "what a scan takes parts of")
    rest = _tensors(others, "operands of a scan")
    if not parts or not all(x.shape for x in parts):
        raise Unsupported("it scans nothing")
    specs = [*(x.spec for x in xs), *(Spec(x.shape[1:], x.dtype) for x in parts), *(x.spec for x in rest)]
    operands = (*xs, *parts, *rest)
    network = blocks.network_of(body, operands, specs)
    return _results(F.scan(*operands, body=network, length=parts[0].shape[0], carried=len(xs), scanned=len(parts)))


@enter("map_impl")
def mapped(blocks: Blocks, body: Any, scanned: Any, others: Any = ()) -> tuple[Any, ...]:
    return scan(blocks, body, (), scanned, others)


@enter("wrap_with_set_grad_enabled")
def with_gradients(blocks: Blocks, enabled: Any, graph: Any, *arguments: Any) -> tuple[Any, ...]:
    return blocks.inline(graph, arguments)


@enter("tag_activation_checkpoint")
def checkpoint(blocks: Blocks, graph: Any, *arguments: Any) -> tuple[Any, ...]:
    return blocks.inline(graph, arguments)


@enter("invoke_subgraph")
def invoke(blocks: Blocks, graph: Any, identifier: Any, *arguments: Any) -> tuple[Any, ...]:
    return blocks.inline(graph, arguments)


@enter("wrap_with_autocast")
def autocast(
    blocks: Blocks, device: Any, dtype: DType | Setting | None, enabled: Any, cache: Any, graph: Any, *arguments: Any
) -> tuple[Any, ...]:
    if enabled is not False:
        raise Unsupported(
            "what torch computes narrower inside of autocast the program does not say: save "
            "exported.run_decompositions({}), which writes the conversions out"
        )
    return blocks.inline(graph, arguments)
