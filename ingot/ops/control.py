"""Ops that hold networks: a choice between two, a loop, and a scan.

What a branch or a loop body reads comes in as operands. It has no parameters or states of its own, and does not see the
values of the network around it. `branch` makes one from a function.
"""
from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ingot import dims, dtypes
from ingot.dims import Dim, Dimension
from ingot.errors import ValueFault
from ingot.ir import Case, Network, Node, Op, Spec, Value, apply, interpret, op, require
from ingot.ir.interpret import count_round, outside
from ingot.ops.binary import Add, Less
from ingot.ops.common import PYTHON_STEPS, Array, boolean, f32, i32, nbytes
from ingot.ops.elementwise import Neg
from ingot.ops.in_torch import run, to_tensor
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
    wanted = tuple(v.spec for v in network.inputs)
    sizes = sizes_for(network, xs)
    require(tuple(_with(sizes, w) for w in wanted) == xs,
            f"{what} takes ({_list(wanted)}), the operands are ({_list(xs)})")
    given = dims.dims_of(d for v in network.inputs for d in v.spec.shape)
    found = tuple(v.spec for v in network.outputs.values())
    late = [spec for spec in found if dims.dims_of(spec.shape).keys() - given.keys()]
    require(not late, f"{what} gives {_list(tuple(late))}, whose sizes only a run of it shows")
    return tuple(_with(sizes, spec) for spec in found)


def sizes_for(network: Network, xs: tuple[Spec, ...]) -> dict[str, Dimension]:
    """What the dims of a branch or body stand for when these are its operands; those that are missing mean themselves.
    """
    sizes: dict[str, Dimension] = {}
    for value, x in zip(network.inputs, xs, strict=False):
        for d, size in zip(value.spec.shape, x.shape, strict=False):
            if isinstance(d, Dim):
                sizes.setdefault(d.name, size)
    return sizes


def _with(sizes: dict[str, Dimension], spec: Spec) -> Spec:
    return Spec([dims.substitute(d, sizes) for d in spec.shape], spec.dtype)


def _list(specs: tuple[Spec, ...]) -> str:
    return ", ".join(map(str, specs))


def _known(network: Network, xs: tuple[Spec, ...]) -> Iterator[tuple[Node, Op, tuple[Spec, ...], dict[Value, int]]]:
    """Every node with its op, its operands, and the bytes of its results, when the network's operands are these."""
    sizes = dims.values_of((d, n) for v, x in zip(network.inputs, xs, strict=True)
                           for d, n in zip(v.spec.shape, x.evaluate({}), strict=True))  # fmt: skip
    for node in network.nodes:
        require(not isinstance(node.op, SizesOf), "sizes are made of numbers that are data, and nothing bounds what "
                                                  "the reference would take; with kernels for all ops it is native")
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


def _stack(network: Network, xs: tuple[Any, ...], rounds: list[tuple[Any, ...]], first: int) -> list[tuple[Any, Any]]:
    """The results from `first` on, each with what the rounds gave of it and the spec of one."""
    shown = dims.values_of((d, n) for v, x in zip(network.inputs, xs, strict=True)
                           for d, n in zip(v.spec.shape, x.shape, strict=True))  # fmt: skip
    sizes = {**outside(), **shown}
    specs = [v.spec for v in network.outputs.values()]
    return [([kept[i] for kept in rounds], spec.like(shape=spec.evaluate(sizes)))
            for i, spec in enumerate(specs[first:])]  # fmt: skip


def _stacked(network: Network, xs: tuple[Array, ...], rounds: list[tuple[Array, ...]], first: int) -> tuple[Array, ...]:
    return tuple(np.stack(parts) if parts else np.empty((0, *one.shape), one.dtype.numpy)
                 for parts, one in _stack(network, xs, rounds, first))  # fmt: skip


def _stacked_in_torch(torch: Any, network: Network, xs: tuple[Any, ...], rounds: list[tuple[Any, ...]], first: int
                      ) -> tuple[Any, ...]:  # fmt: skip
    return tuple(torch.stack(parts) if parts else
                 to_tensor(torch, np.empty((0, *one.shape), one.dtype.numpy), xs[0].device)
                 for parts, one in _stack(network, xs, rounds, first))  # fmt: skip


def _run(network: Network, xs: tuple[Array, ...]) -> tuple[Array, ...]:
    return tuple(interpret(network, {v.name: x for v, x in zip(network.inputs, xs, strict=True)}).values())


def _one_or_all(results: tuple[Any, ...]) -> Any:
    return results[0] if len(results) == 1 else results


_DOUBLED = branch(lambda x: apply(Add(), (x, x)), f32("T", 3), name="doubled")
_NEGATED = branch(lambda x: apply(Neg(), (x,)), f32("T", 3), name="negated")
_TWO = branch(lambda x: (apply(Neg(), (x,)), apply(Add(), (x, 1))), f32("T", 3), name="two")
_COUNT_UP = branch(lambda i, x: (apply(Add(), (i, 1)), apply(Add(), (x, x))), i32(), f32(3), name="count_up")
_BELOW_FIVE = branch(lambda i, x: apply(Less(), (i, 5)), i32(), f32(3), name="below_five")
_COUNT_AND_KEEP = branch(lambda i, x: (apply(Add(), (i, 1)), apply(Add(), (x, x)), x), i32(), f32(3), name="keep")
_SUM = branch(lambda s, x: (apply(Add(), (s, x)), apply(Neg(), (s,))), f32(3), f32(3), name="sum")
_PLUS = branch(lambda x, y: apply(Add(), (x, y)), f32("N"), f32("N"), name="plus")


@op("cond")
class Cond(Op):
    """The results of `then_branch(*xs)` where the predicate (a bool scalar) holds, else of `else_branch(*xs)`.

    Only the chosen one runs. Both take the operands and give results of the same types.
    """

    then_branch: Network
    else_branch: Network
    in_scope = "keeps"
    scalars_like = ("xs",)
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
        require(predicate == Spec((), dtypes.bool_), f"predicate must be a bool scalar, not {predicate}")
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
        return _one_or_all(run(torch, self.then_branch if predicate.item() else self.else_branch, xs, predicate.device))


@op("while_loop")
class WhileLoop(Op):
    """Repeats xs = body(*xs) while condition(*xs), a bool scalar, holds; returns the last xs.

    What the body gives beyond xs is kept of every round: a result [rounds, …], whose first dimension is an unbacked dim
    that this op binds. More than `limit` rounds are a fault at run time: a loop that does not end ends here.
    """

    condition: Network
    body: Network
    limit: int = 1_000_000
    rounds: Dimension | None = None
    binds = True
    in_scope = "keeps"
    cases = (
        Case("five rounds", (i32(), f32(3)), {"condition": _BELOW_FIVE, "body": _COUNT_UP}),
        Case("what every round had", (i32(), f32(3)), {"condition": _BELOW_FIVE, "body": _COUNT_AND_KEEP}),
        Case("a body of other results", (i32(), f32(3)), {"condition": _BELOW_FIVE, "body": _BELOW_FIVE},
             error=r"body gives \(bool\[\]\), it must give what it takes"),
        Case("a condition that is no bool", (i32(), f32(3)), {"condition": _COUNT_UP, "body": _COUNT_UP},
             error="condition must give one bool scalar"),
        Case("no rounds allowed", (i32(), f32(3)), {"condition": _BELOW_FIVE, "body": _COUNT_UP, "limit": 0},
             error="limit must be positive"),
        Case("rounds of which nothing is kept", (i32(), f32(3)),
             {"condition": _BELOW_FIVE, "body": _COUNT_UP, "rounds": Dim("n", unbacked=True)},
             error="rounds must be left out"),
        Case("rounds that are known", (i32(), f32(3)),
             {"condition": _BELOW_FIVE, "body": _COUNT_AND_KEEP, "rounds": 5}, error="rounds must be an unbacked dim"),
    )

    def infer(self, *xs: Spec) -> tuple[Spec, ...]:
        require(0 < self.limit <= MAX_ROUNDS, f"limit must be positive and at most {MAX_ROUNDS}, not {self.limit}")
        require(_results("condition", self.condition, xs) == (Spec((), dtypes.bool_),),
                "condition must give one bool scalar")
        got = _results("body", self.body, xs)
        require(got[: len(xs)] == xs, f"body gives ({_list(got)}), it must give what it takes: ({_list(xs)})")
        kept, rounds = got[len(xs) :], self.rounds
        require(bool(kept) or rounds is None, "rounds must be left out where nothing is kept of them")
        require(not kept or (isinstance(rounds, Dim) and rounds.unbacked), "rounds must be an unbacked dim")
        return (*xs, *(Spec([rounds, *spec.shape], spec.dtype) for spec in kept))

    def bind(self, fresh: Callable[..., Dim], *specs: Any) -> Op:
        if self.rounds is not None or len(self.body.outputs) <= len(specs):
            return self
        return replace(self, rounds=fresh("rounds", max=self.limit))

    def bound_dims(self) -> tuple[Dim, ...]:
        return (self.rounds,) if isinstance(self.rounds, Dim) else ()

    def working(self, *xs: Spec) -> int:
        return max(_working(self.condition, xs), _working(self.body, xs))

    def steps(self, *xs: Spec) -> int:
        """Of one round: how many there are only a run shows, and `limit` ends them."""
        return _steps(self.condition, xs) + _steps(self.body, xs)

    def reference(self, *xs: Array) -> Any:
        now, kept = self._rounds(xs, lambda network, operands: _run(network, operands))
        return _one_or_all((*now, *_stacked(self.body, xs, kept, len(xs))))

    def torch(self, torch: Any, *xs: Any) -> Any:
        """Whether there is one more round has to be read back."""
        now, kept = self._rounds(xs, lambda network, operands: run(torch, network, operands, keep=True))
        return _one_or_all((*now, *_stacked_in_torch(torch, self.body, xs, kept, len(xs))))

    def _rounds(self, xs: tuple[Any, ...], run_one: Callable[[Network, tuple[Any, ...]], tuple[Any, ...]]) -> Any:
        """The last xs, and what every round gave beyond them."""
        kept: list[Any] = []
        now = xs
        while run_one(self.condition, now)[0].item():
            if len(kept) == self.limit:
                raise ValueFault(f"while_loop: the condition still holds after {self.limit} rounds")
            count_round()
            results = run_one(self.body, now)
            now = results[: len(xs)]
            kept.append(results[len(xs) :])
        return now, kept

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        return np.array(rng.integers(0, 9), np.int32), rng.standard_normal(3).astype(np.float32)


@op("scan")
class Scan(Op):
    """Runs the body once for each part of what is scanned, in order, and carries values from round to round.

    Operands are first the `carried` values, then `scanned` tensors [length, …], of which every round gets one part
    […], then others, which every round reads whole. The body takes them in this order. It gives the next carried
    values, and any number of tensors beside them. The results are the last carried values, and what the rounds gave
    beside them, as [length, …]. `reverse`: from the last part to the first; results then lie in the order of the parts.
    """

    body: Network
    length: Dimension
    carried: int = 0
    scanned: int = 0
    reverse: bool = False
    in_scope = "keeps"
    cases = (
        Case("a running sum", (f32(3), f32(4, 3)), {"body": _SUM, "length": 4, "carried": 1, "scanned": 1}),
        Case("from the end, as long as the data", (f32(3), f32("T", 3)),
             {"body": _SUM, "length": Dim("T"), "carried": 1, "scanned": 1, "reverse": True}),
        Case("no parts", (f32(3), f32(0, 3)), {"body": _SUM, "length": 0, "carried": 1, "scanned": 1}),
        Case("nothing carried", (f32("T", 2), f32(2)), {"body": _PLUS, "length": Dim("T"), "scanned": 1}),
        Case("nothing scanned", (f32(2), f32(2)), {"body": _PLUS, "length": 3, "carried": 1}),
        Case("another length", (f32(3), f32(5, 3)), {"body": _SUM, "length": 4, "carried": 1, "scanned": 1},
             error=r"every round needs a part of f32\[5, 3\], which has to be 4 long"),
        Case("a scalar in parts", (f32(3), f32()), {"body": _SUM, "length": 4, "carried": 1, "scanned": 1},
             error="has to be 4 long"),
        Case("more than there is", (f32(3), f32(4, 3)), {"body": _SUM, "length": 4, "carried": 2, "scanned": 1},
             error="carried and scanned name 3 of 2 operands"),
        Case("carried as another type", (f32("N"), f32("T", 1)), {"body": branch(
            lambda s, x: apply(Add(), (s, x)), f32(1), f32(1)), "length": Dim("T"), "carried": 1, "scanned": 1},
             error=r"body takes \(f32\[1\], f32\[1\]\)"),
    )  # fmt: skip

    def infer(self, *xs: Spec) -> tuple[Spec, ...]:
        named = self.carried + self.scanned
        require(self.carried >= 0 and self.scanned >= 0 and named <= len(xs),
                f"carried and scanned name {named} of {len(xs)} operands")
        for x in xs[self.carried : named]:
            require(bool(x.shape) and x.shape[0] == self.length,
                    f"every round needs a part of {x}, which has to be {self.length} long")
        got = _results("body", self.body, self.parts(xs))
        wanted = xs[: self.carried]
        require(got[: self.carried] == wanted,
                f"body gives ({_list(got)}), which must begin with what is carried: ({_list(wanted)})")
        return (*wanted, *(Spec((self.length, *spec.shape), spec.dtype) for spec in got[self.carried :]))

    def parts(self, xs: tuple[Spec, ...]) -> tuple[Spec, ...]:
        """What one round takes."""
        return tuple(x.like(shape=x.shape[1:]) if self.carried <= i < self.carried + self.scanned else x
                     for i, x in enumerate(xs))  # fmt: skip

    def working(self, *xs: Spec) -> int:
        return _working(self.body, self.parts(xs))

    def steps(self, *xs: Spec) -> int:
        return (self.length if isinstance(self.length, int) else 1) * _steps(self.body, self.parts(xs))

    def _rounds(self, xs: tuple[Any, ...], one_round: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> Any:
        """The last carried values, and what the rounds gave beside them, in the order of the parts."""
        now, ends = xs[: self.carried], self.carried + self.scanned
        length = self.length if isinstance(self.length, int) else self.length.evaluate({})
        kept: list[Any] = []
        for i in reversed(range(length)) if self.reverse else range(length):
            count_round()
            results = one_round((*now, *(x[i] for x in xs[self.carried : ends]), *xs[ends:]))
            now = results[: self.carried]
            kept.append(results[self.carried :])
        return now, kept[::-1] if self.reverse else kept

    def reference(self, *xs: Array) -> Any:
        now, kept = self._rounds(xs, lambda operands: _run(self.body, operands))
        shapes = tuple(np.empty(s.shape, np.bool_) for s in self.parts(tuple(map(Spec.of, xs))))
        return _one_or_all((*now, *_stacked(self.body, shapes, kept, self.carried)))

    def torch(self, torch: Any, *xs: Any) -> Any:
        now, kept = self._rounds(xs, lambda operands: run(torch, self.body, operands, xs[0].device, keep=True))
        ends = self.carried + self.scanned
        shapes = tuple(x.new_empty(x.shape[1:]) if self.carried <= i < ends else x for i, x in enumerate(xs))
        return _one_or_all((*now, *_stacked_in_torch(torch, self.body, shapes, kept, self.carried)))


CONTROL = (Cond, WhileLoop, Scan)


def body_operands(op: Op, operands: Sequence[Any]) -> list[Any]:
    """Of an op of CONTROL, the operands that its branches or bodies take, in their order."""
    return list(operands[1:] if isinstance(op, Cond) else operands)


def bodies(op: Op) -> dict[str, Network]:
    """The networks that an op holds, by attribute."""
    return {name: value for name, value in op.attrs().items() if isinstance(value, Network)}


def carried(op: Op, operands: int) -> int:
    """How many of a body's operands come back as its first results."""
    return op.carried if isinstance(op, Scan) else operands if isinstance(op, WhileLoop) else 0
