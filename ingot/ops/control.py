"""Ops that hold networks: a choice between two, and a loop.

What a branch or a loop body reads comes in as operands. It has no parameters or states of its own, and does not see the
values of the network around it. `branch` makes one from a function.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dim, Dimension
from ingot.errors import ValueFault
from ingot.ir import Case, Network, Node, Op, Spec, Value, apply, interpret, op, require
from ingot.ops.binary import Add, Less
from ingot.ops.common import PYTHON_STEPS, Array, boolean, f32, i32, nbytes
from ingot.ops.elementwise import Neg
from ingot.ops.in_torch import run
from ingot.ops.sizes import SizesOf

MAX_ROUNDS = 1 << 24  # of a loop: one that does not end ends within minutes


def branch(function: Callable[..., Any], *operands: Any, name: str = "branch") -> Network:
    """The network of a function from tensors like `operands` (Values, arrays or Specs) to one or a tuple of them."""
    network = Network(name)
    specs = [x.spec if isinstance(x, Value) else x if isinstance(x, Spec) else Spec.of(np.asarray(x)) for x in operands]
    results = function(*(network.input(f"x{i}", spec) for i, spec in enumerate(specs)))
    for i, value in enumerate(results if isinstance(results, tuple) else (results,)):
        network.output(f"y{i}", value)
    return network


def _results(what: str, network: Network, xs: tuple[Spec, ...]) -> tuple[Spec, ...]:
    """The specs of the network's results for these operands. Its dims stand for whatever sizes these have there."""
    require(not network.parameters and not network.states,
            f"{what} has parameters or states of its own; pass them as operands")
    require(bool(network.outputs), f"{what} has no outputs")
    require(not any(isinstance(node.op, SizesOf) for node in network.nodes),
            f"{what} makes sizes of numbers that are data, which nothing bounds there; compute them outside")
    wanted = tuple(v.spec for v in network.inputs)
    sizes: dict[str, Dimension] = {}
    for want, x in zip(wanted, xs, strict=False):
        for d, size in zip(want.shape, x.shape, strict=False):
            if isinstance(d, Dim):
                sizes.setdefault(d.name, size)
    require(tuple(_with(sizes, w) for w in wanted) == xs,
            f"{what} takes ({_list(wanted)}), the operands are ({_list(xs)})")
    return tuple(_with(sizes, v.spec) for v in network.outputs.values())


def _with(sizes: dict[str, Dimension], spec: Spec) -> Spec:
    return Spec(spec.dtype, [dims.substitute(d, sizes) for d in spec.shape])


def _list(specs: tuple[Spec, ...]) -> str:
    return ", ".join(map(str, specs))


def _known(network: Network, xs: tuple[Spec, ...]) -> Iterator[tuple[Node, Op, tuple[Spec, ...], dict[Value, int]]]:
    """Every node with its op, its operands, and the bytes of its results, when the network's operands are these."""
    sizes = dims.values_of((d, n) for v, x in zip(network.inputs, xs, strict=True)
                           for d, n in zip(v.spec.shape, x.evaluate({}), strict=True))  # fmt: skip
    for node in network.nodes:
        operands = tuple(v.spec and v.spec.like(shape=v.spec.evaluate(sizes)) for v in node.inputs)
        for d in node.op.bound_dims():  # at most one for each element
            sizes[d.name] = max((int(x.elements) for x in operands if x is not None), default=0)
        made = {v: nbytes(v.spec.like(shape=v.spec.evaluate(sizes))) for v in node.outputs}
        yield node, node.op.map_dims(lambda d: dims.substitute(d, sizes)), operands, made


def _working(network: Network, xs: tuple[Spec, ...]) -> int:
    """The bytes that a run of the network needs at once, for its values and for the references that make them."""
    left = Counter(v for node in network.nodes for v in set(node.given)) + Counter(network.outputs.values())
    live: dict[Value, int] = {}
    held = most = 0
    for node, known, operands, made in _known(network, xs):
        live |= made
        held += sum(made.values())
        most = max(most, held + known.working(*operands))
        for v in set(node.given):
            left[v] -= 1
            if not left[v]:
                held -= live.pop(v, 0)  # an operand of the network is nobody's result
    return most


def _steps(network: Network, xs: tuple[Spec, ...]) -> int:
    """Op.steps of a run of the network."""
    return sum(PYTHON_STEPS + known.steps(*operands) for _, known, operands, _ in _known(network, xs))


def _run(network: Network, xs: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(interpret(network, {v.name: x for v, x in zip(network.inputs, xs, strict=True)}).values())


def _one_or_all(results: tuple[Any, ...]) -> Any:
    return results[0] if len(results) == 1 else results


_DOUBLED = branch(lambda x: apply(Add(), (x, x)), f32("T", 3), name="doubled")
_NEGATED = branch(lambda x: apply(Neg(), (x,)), f32("T", 3), name="negated")
_TWO = branch(lambda x: (apply(Neg(), (x,)), apply(Add(), (x, 1))), f32("T", 3), name="two")
_COUNT_UP = branch(lambda i, x: (apply(Add(), (i, 1)), apply(Add(), (x, x))), i32(), f32(3), name="count_up")
_BELOW_FIVE = branch(lambda i, x: apply(Less(), (i, 5)), i32(), f32(3), name="below_five")


@op("cond")
class Cond(Op):
    """The results of `then_branch(*xs)` where the predicate (a bool scalar) holds, else of `else_branch(*xs)`.

    Only the chosen one runs. Both take the operands and give results of the same types.
    """

    then_branch: Network
    else_branch: Network
    in_scope = "keeps"
    scalars_like = ("xs",)
    host = "no kernel runs a network"
    cases = (
        Case("one result", (boolean(), f32("T", 3)), {"then_branch": _DOUBLED, "else_branch": _NEGATED}),
        Case("two results", (boolean(), f32("T", 3)), {"then_branch": _TWO, "else_branch": _TWO}),
        Case("a predicate per row", (boolean(3), f32("T", 3)), {"then_branch": _DOUBLED, "else_branch": _NEGATED},
             error="predicate must be a bool scalar"),
        Case("results differ", (boolean(), f32("T", 3)), {"then_branch": _DOUBLED, "else_branch": _TWO},
             error="then_branch gives .*else_branch"),
        Case("other operands", (boolean(), f32("T", 4)), {"then_branch": _DOUBLED, "else_branch": _NEGATED},
             error=r"then_branch takes \(f32\[T, 3\]\), the operands are \(f32\[T, 4\]\)"),
        Case("no network", (boolean(), f32("T", 3)), {"then_branch": 1, "else_branch": _NEGATED},
             error="then_branch must be a Network"),
    )

    def infer(self, predicate: Spec, *xs: Spec) -> tuple[Spec, ...]:
        require(predicate == Spec(dtypes.bool_, ()), f"predicate must be a bool scalar, not {predicate}")
        one, other = _results("then_branch", self.then_branch, xs), _results("else_branch", self.else_branch, xs)
        require(one == other, f"then_branch gives ({_list(one)}), else_branch ({_list(other)})")
        return one

    def working(self, predicate: Spec, *xs: Spec) -> int:
        return max(_working(self.then_branch, xs), _working(self.else_branch, xs))

    def steps(self, predicate: Spec, *xs: Spec) -> int:
        return max(_steps(self.then_branch, xs), _steps(self.else_branch, xs))

    def reference(self, predicate: Array, *xs: Array) -> Any:
        return _one_or_all(_run(self.then_branch if predicate else self.else_branch, xs))

    def torch(self, torch: Any, predicate: Any, *xs: Any) -> Any:
        """Which branch it is has to be read back."""
        return _one_or_all(run(torch, self.then_branch if predicate.item() else self.else_branch, xs))


@op("while_loop")
class WhileLoop(Op):
    """Repeats xs = body(*xs) while condition(*xs), a bool scalar, holds; returns the last xs.

    More than `limit` rounds are a fault at run time: a loop that does not end ends here.
    """

    condition: Network
    body: Network
    limit: int = 1_000_000
    in_scope = "keeps"
    host = "no kernel runs a network"
    cases = (
        Case("five rounds", (i32(), f32(3)), {"condition": _BELOW_FIVE, "body": _COUNT_UP}),
        Case("a body of other results", (i32(), f32(3)), {"condition": _BELOW_FIVE, "body": _BELOW_FIVE},
             error=r"body gives \(bool\[\]\), it must give what it takes"),
        Case("a condition that is no bool", (i32(), f32(3)), {"condition": _COUNT_UP, "body": _COUNT_UP},
             error="condition must give one bool scalar"),
        Case("no rounds allowed", (i32(), f32(3)), {"condition": _BELOW_FIVE, "body": _COUNT_UP, "limit": 0},
             error="limit must be positive"),
    )

    def infer(self, *xs: Spec) -> tuple[Spec, ...]:
        require(0 < self.limit <= MAX_ROUNDS, f"limit must be positive and at most {MAX_ROUNDS}, not {self.limit}")
        require(_results("condition", self.condition, xs) == (Spec(dtypes.bool_, ()),),
                "condition must give one bool scalar")
        got = _results("body", self.body, xs)
        require(got == xs, f"body gives ({_list(got)}), it must give what it takes: ({_list(xs)})")
        return xs

    def working(self, *xs: Spec) -> int:
        return max(_working(self.condition, xs), _working(self.body, xs))

    def steps(self, *xs: Spec) -> int:
        """Of one round: how many there are only a run shows, and `limit` ends them."""
        return _steps(self.condition, xs) + _steps(self.body, xs)

    def reference(self, *xs: Array) -> Any:
        for _ in range(self.limit):
            if not _run(self.condition, xs)[0]:
                return _one_or_all(xs)
            xs = _run(self.body, xs)
        raise self._endless()

    def torch(self, torch: Any, *xs: Any) -> Any:
        """Whether there is one more round has to be read back."""
        for _ in range(self.limit):
            if not run(torch, self.condition, xs)[0].item():
                return _one_or_all(xs)
            xs = run(torch, self.body, xs)
        raise self._endless()

    def _endless(self) -> ValueFault:
        return ValueFault(f"while_loop: the condition still holds after {self.limit} rounds")

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        return np.array(rng.integers(0, 9), np.int32), rng.standard_normal(3).astype(np.float32)
