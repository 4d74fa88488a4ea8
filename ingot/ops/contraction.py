"""einsum: any equation, lowered to views and batched matrix products in a good order."""
from __future__ import annotations

import heapq
import math
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.dims import Dimension, dims_of
from ingot.ir import Case, F, Op, Spec, op, require
from ingot.ir.spec import broadcast, elements
from ingot.ir.window import dense_strides, merged
from ingot.ops.common import Array, bf16, f32, i32, i64, rounded, same_dtype, torch_wide, widen
from ingot.ops.in_torch import by_simpler_ops

MAX_LABELS = 52  # the letters, as in torch and NumPy
MAX_OPERANDS = 500  # every pair of them is looked at
OPTIMAL_OPERANDS = 8  # up to here every order of contraction is weighed; beyond, the cheapest pair is taken each time
USUAL_SIZE = 32  # what an unknown dimension counts as when orders are compared

Label = str
Labels = tuple[Label, ...]


# ------------------------------------------------------------------------------------------------------------ equations


@dataclass(frozen=True)
class Equation:
    """The labels of every operand's dimensions and of the result's. Dimensions under an ellipsis are "...1", "...0"."""

    operands: tuple[Labels, ...]
    output: Labels


def parse(equation: str, ranks: Sequence[int]) -> Equation:
    """Reads an equation as torch.einsum does. Raises OpError for what is no equation or does not fit the ranks."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    require(len(terms) == len(ranks), f"the equation {equation!r} names {len(terms)} operands, {len(ranks)} were given")
    pairs = zip(terms, ranks, strict=True)
    operands = tuple(_labels(term, rank, f"operand {i}") for i, (term, rank) in enumerate(pairs))
    count = Counter(label for labels in operands for label in labels)
    require(len(count) <= MAX_LABELS, f"the equation has {len(count)} labels; at most {MAX_LABELS} can be told apart")
    hidden = sorted((label for label in count if label.startswith("...")), reverse=True)
    if not arrow:
        once = sorted(label for label, n in count.items() if n == 1 and not label.startswith("..."))
        return Equation(operands, (*hidden, *once))
    output = _labels(right, right.count(".") // 3 * len(hidden) + len(right.replace("...", "")), "the result")
    repeated = [label for label, n in Counter(output).items() if n > 1]
    require(not repeated, f"the result of {equation!r} names {', '.join(repeated)} twice")
    unknown = [label for label in output if label not in count]
    require(not unknown, f"the result of {equation!r} names {', '.join(unknown)}, which no operand has")
    return Equation(operands, output)


def _labels(term: str, rank: int, what: str) -> Labels:
    head, ellipsis, tail = term.partition("...")
    for letter in head + tail:
        require(letter.isascii() and letter.isalpha(), f"{what} has {letter!r} where a letter or one ... may stand")
    hidden = rank - len(head) - len(tail)
    named = f"{what}, {term!r}, names {len(head) + len(tail)} dimensions"
    require(hidden == 0 or (hidden > 0 and bool(ellipsis)), f"{named}; the tensor has {rank}")
    return (*head, *(f"...{i}" for i in reversed(range(hidden))), *tail)


def sizes_of(equation: Equation, shapes: Sequence[Sequence[Dimension]]) -> dict[Label, Dimension]:
    """The size of every label; dimensions of size 1 broadcast, except along a diagonal."""
    sizes: dict[Label, Dimension] = {}
    for i, (labels, shape) in enumerate(zip(equation.operands, shapes, strict=True)):
        own: dict[Label, Dimension] = {}
        for label, size in zip(labels, shape, strict=True):
            require(own.setdefault(label, size) == size,
                    f"operand {i} has sizes {own[label]} and {size} along its diagonal {label}")
        for label, size in own.items():
            known = sizes.get(label, 1)
            require(1 in (size, known) or size == known,
                    f"dimension {label} has size {known} in one operand and {size} in operand {i}")
            sizes[label] = broadcast((known,), (size,))[0]
    return sizes


@op("einsum")
class Einsum(Op):
    """The sum of products that an equation describes: `nkctv,kvw->nctw`, with implicit results, ellipses, diagonals.

    Takes what torch.einsum takes. Floats accumulate in float32 and round once, with three operands and more too.
    """

    equation: str
    cases = (
        Case("a product with a weight", (f32("N", 3, 5), f32(5, 4)), {"equation": "nti,io->nto"}),
        Case("channels of an image", (f32(2, 5, 3, 4), f32(5, 6)), {"equation": "nctw,cd->ndtw"}),
        Case("graph convolution", (f32("N", 3, 4, 5, 6), f32(3, 6, 7)), {"equation": "nkctv,kvw->nctw"}),
        Case("a graph of its own for every channel", (f32(2, 3, 4, 5, 6), f32(3, 4, 6, 7)),
             {"equation": "nkctv,kcvw->nctw"}),
        Case("attention's values, heads moved", (bf16(2, 3, 4, 5), bf16(2, 6, 3, 5)), {"equation": "bhnm,bdhm->bdhn"}),
        Case("implicit result, sorted", (f32(2, 3), f32(3, 4)), {"equation": "ba,ac"}),
        Case("ellipsis broadcasts", (f32(5, 1, 2, 3), f32(4, 3, 2)), {"equation": "...ij,...jk->...ik"}),
        Case("ellipsis left out of the result is summed", (f32(2, 3, 4),), {"equation": "...i->i"}),
        Case("the diagonal", (f32(4, 4),), {"equation": "ii->i"}),
        Case("the trace", (f32(4, 4),), {"equation": "ii"}),
        Case("a diagonal of a batch, and its size unknown", (f32("T", "T", 3),), {"equation": "iik->ik"},
             dims={"T": 4}),
        Case("size 1 broadcasts", (f32(2, 1), f32(3, 4)), {"equation": "ij,jk->ik"}),
        Case("outer product", (f32(3), f32(4)), {"equation": "i,j->ij"}),
        Case("inner product", (f32(6), f32(6)), {"equation": "i,i->"}),
        Case("rows by rows", (f32(4, 6), f32(4, 6)), {"equation": "bi,bi->b"}),
        Case("elementwise, transposed", (f32(2, 3), f32(3, 2)), {"equation": "ij,ji->ij"}),
        Case("permutation only", (f32(2, 3, 4),), {"equation": "abc->cab"}),
        Case("three operands", (f32(3, 4), f32(4, 5), f32(5, 2)), {"equation": "ab,bc,cd->ad"}),
        Case("bilinear", (bf16(3, 4), bf16(6, 4, 5), bf16(3, 5)), {"equation": "bi,oij,bj->bo"}),
        Case("summed before it is multiplied", (f32(3, 4, 2), f32(4, 5)), {"equation": "abx,bc->ac"}),
        Case("integers", (i32(2, 3), i32(3, 4)), {"equation": "ij,jk->ik"}),
        Case("integers: a diagonal, a sum, three operands", (i64(2, 3, 3), i64(3, 4), i64(4, 2)),
             {"equation": "bii,ij,jk->bk"}),
        Case("nothing to sum", (f32(2, 0), f32(0, 3)), {"equation": "ij,jk->ik"}),
        Case("sizes disagree", (f32(2, 3), f32(4, 5)), {"equation": "ij,jk->ik"}, error="dimension j has size 3"),
        Case("the result repeats a label", (f32(2, 3),), {"equation": "ij->ii"}, error="names i twice"),
        Case("the result invents a label", (f32(2, 3),), {"equation": "ij->ik"}, error="names k, which no operand has"),
        Case("operands missing", (f32(2, 3),), {"equation": "ij,jk->ik"}, error="names 2 operands, 1 were given"),
        Case("rank", (f32(2, 3),), {"equation": "ijk->ik"}, error="names 3 dimensions; the tensor has 2"),
        Case("not a letter", (f32(2, 3),), {"equation": "i1->i"}, error="'1' where a letter"),
        Case("two ellipses", (f32(2, 3),), {"equation": "...i..."}, error=r"'\.' where a letter"),
        Case("diagonal of unequal sizes", (f32(2, 3),), {"equation": "ii->i"}, error="2 and 3 along its diagonal"),
        Case("too many labels", (*[f32(*[1] * 13)] * 4, f32(2, 1)),
             {"equation": "abcdefghijklm,nopqrstuvwxyz,ABCDEFGHIJKLM,NOPQRSTUVWXYZ,...a"}, error="at most 52"),
    )  # fmt: skip

    def infer(self, first: Spec, *others: Spec) -> Spec:
        specs = (first, *others)
        require(len(specs) <= MAX_OPERANDS, f"takes at most {MAX_OPERANDS} operands, got {len(specs)}")
        dtype = same_dtype(**{f"operand {i}": spec for i, spec in enumerate(specs)})
        require(dtype in dtypes.FLOATS or dtype in (dtypes.int32, dtypes.int64), f"no products of {dtype.name}")
        equation = parse(self.equation, [len(s.shape) for s in specs])
        sizes = sizes_of(equation, [s.shape for s in specs])
        return Spec(tuple(sizes[label] for label in equation.output), dtype)

    def steps(self, *specs: Spec) -> int:
        """Every operand at every index of all labels: no order of contraction is looked for."""
        equation = parse(self.equation, [len(s.shape) for s in specs])
        return len(specs) * math.prod(map(int, sizes_of(equation, [s.shape for s in specs]).values()))

    def reference(self, *arrays: Array) -> Array:
        equation = parse(self.equation, [a.ndim for a in arrays])
        sizes = sizes_of(equation, [a.shape for a in arrays])
        number = {label: i for i, label in enumerate(sizes)}
        terms: list[Any] = []
        for array, labels in zip(arrays, equation.operands, strict=True):
            kept = [i for i, label in enumerate(labels) if array.shape[i] == sizes[label]]  # the others broadcast
            lost = tuple(i for i in range(array.ndim) if i not in kept)
            terms += [widen(array).squeeze(lost), [number[labels[i]] for i in kept]]
        return rounded(np.einsum(*terms, [number[label] for label in equation.output]), arrays[0])

    def decompose(self, *operands: Any) -> Any:
        return contract(self.equation, operands)

    def torch(self, torch: Any, *tensors: Any) -> Any:
        if not tensors[0].is_floating_point():  # torch.einsum takes them on few devices
            return by_simpler_ops(torch, self, tensors)
        return torch.einsum(self.equation, *map(torch_wide, tensors)).to(tensors[0].dtype)

    def sample(self, rng: np.random.Generator, *specs: Spec) -> tuple[Array, ...]:
        """Positive floats: terms that cancel leave digits that depend on the order of additions."""
        if specs[0].dtype.is_float:
            return tuple(rounded(rng.uniform(0.5, 2, s.shape), s.dtype) for s in specs)
        return tuple(rng.integers(-9, 10, s.shape).astype(s.dtype.numpy) for s in specs)

    @classmethod
    def draw(cls, draw: Any) -> Case:
        letters = "abcde"
        sizes = {letter: draw.size() for letter in letters}
        terms = [[draw.choice(letters) for _ in range(draw.choice([1, 2, 3]))] for _ in range(draw.choice([1, 2, 3]))]
        used = sorted({letter for term in terms for letter in term})
        output = [letter for letter in used if draw.boolean()]
        specs = tuple(f32(*(sizes[letter] for letter in term)) for term in terms)
        return Case("random", specs, {"equation": f"{','.join(map(''.join, terms))}->{''.join(output)}"})


# ---------------------------------------------------------------------------------------------------------------- order


def estimate(size: Dimension) -> int:
    """A number for a size that only a run knows: its dims at their optimum, or at a usual size."""
    if isinstance(size, int):
        return size
    usual = {n: d.opt or min(max(USUAL_SIZE, d.min), d.max or USUAL_SIZE) for n, d in dims_of([size]).items()}
    return size.evaluate(usual)


def contraction_path(
    terms: Sequence[Collection[Label]], output: Collection[Label], sizes: Mapping[Label, int]
) -> list[tuple[int, int]]:
    """Which two terms are contracted next: numbers (first, second) among those left; the result joins at the end.

    Labels that one term has alone are summed before anything is multiplied. What follows has the least number of
    multiplications for up to eight terms (dynamic programming over their subsets, Pfeifer, Haegeman and Verstraete
    2014, without its bounds). Beyond, the cheapest pair that shares a label goes first, so that an outer product is
    made only where nothing else is left.
    """
    if len(terms) > OPTIMAL_OPERANDS:
        return _greedy_path(terms, output, sizes)
    everything = (1 << len(terms)) - 1

    def labels(subset: int) -> frozenset[Label]:
        inside = {x for i, t in enumerate(terms) if subset >> i & 1 for x in t}
        outside = {x for i, t in enumerate(terms) if not subset >> i & 1 for x in t} | set(output)
        return frozenset(inside & outside)

    kept = {subset: labels(subset) for subset in range(1, everything + 1)}
    best: dict[int, tuple[int, int]] = {1 << i: (0, 0) for i in range(len(terms))}
    for subset in sorted(kept, key=int.bit_count):
        part = (subset - 1) & subset
        while part > subset ^ part:  # each split once
            other = subset ^ part
            cost = best[part][0] + best[other][0] + _volume(kept[part] | kept[other], sizes)
            if subset not in best or cost < best[subset][0]:
                best[subset] = (cost, part)
            part = (part - 1) & subset
    pairs: list[tuple[int, int]] = []
    place = {1 << i: i for i in range(len(terms))}

    def visit(subset: int) -> int:
        if subset not in place:
            first, second = visit(best[subset][1]), visit(subset ^ best[subset][1])
            pairs.append((first, second))
            place[subset] = len(terms) + len(pairs) - 1
        return place[subset]

    visit(everything)
    return pairs


def _greedy_path(
    terms: Sequence[Collection[Label]], output: Collection[Label], sizes: Mapping[Label, int]
) -> list[tuple[int, int]]:
    needed = Counter(output)  # how many of the terms that are left, and the output, have a label
    for term in terms:
        needed.update(set(term))
    left = {i: frozenset(label for label in term if needed[label] > 1) for i, term in enumerate(terms)}

    def candidate(a: int, b: int) -> tuple[bool, int, int, int]:
        return left[a].isdisjoint(left[b]), _volume(left[a] | left[b], sizes), a, b

    heap = [candidate(a, b) for a, b in combinations(left, 2)]
    heapq.heapify(heap)
    pairs: list[tuple[int, int]] = []
    while len(left) > 1:
        *_, a, b = heapq.heappop(heap)
        if a not in left or b not in left:
            continue
        x, y = left.pop(a), left.pop(b)
        needed.subtract(x & y)  # one term has now what two had
        new = len(terms) + len(pairs)
        pairs.append((a, b))
        left[new] = frozenset(label for label in x | y if needed[label] > 1)
        for other in left:
            if other != new:
                heapq.heappush(heap, candidate(other, new))
    return pairs


def _volume(labels: Collection[Label], sizes: Mapping[Label, int]) -> int:
    return math.prod(sizes[label] for label in labels)


# ------------------------------------------------------------------------------------------------------------- lowering


@dataclass(frozen=True)
class Views:
    """How operands are viewed; a pass makes views of parameters into parameters."""

    permute: Callable[[Any, tuple[int, ...]], Any] = lambda x, order: F.permute(x, order)
    reshape: Callable[[Any, tuple[Dimension, ...]], Any] = lambda x, shape: F.reshape(x, shape)


@dataclass(frozen=True)
class Term:
    """A tensor, the label of each of its dimensions, and the strides with which they lie in memory."""

    value: Any
    labels: Labels
    strides: Mapping[Label, Dimension]

    def memory_order(self, labels: Collection[Label]) -> Labels:
        """These labels, the one with the largest stride first."""
        return tuple(sorted((x for x in self.labels if x in labels), key=lambda x: -estimate(self.strides[x])))


def contract(equation: str, operands: Sequence[Any], strides: Sequence[Sequence[Dimension]] | None = None,
             views: Views | None = None) -> Any:  # fmt: skip
    """The operations that compute an equation: views, sums, elementwise products, and matrix products.

    With the operands' strides the products are arranged so that as little as possible is copied.
    """
    shapes = [tuple(x.shape) for x in operands]
    parsed = parse(equation, [len(s) for s in shapes])
    lowering = _Lowering(sizes_of(parsed, shapes), parsed.output, views or Views())
    dtype = dtypes.get(operands[0].dtype)
    wide = len(operands) > 2 and dtype.is_float and dtype.bits < 32
    terms = []
    for i, (x, labels, shape) in enumerate(zip(operands, parsed.operands, shapes, strict=True)):
        steps = strides[i] if strides else dense_strides(shape)
        terms.append(lowering.prepare(F.cast(x, dtypes.float32) if wide else x, labels, shape, steps))
    sizes = {label: estimate(size) for label, size in lowering.sizes.items()}
    done = list(terms)
    for a, b in contraction_path([t.labels for t in terms], parsed.output, sizes):
        rest = [t.labels for i, t in enumerate(done) if i not in (a, b) and t is not _USED]
        keep = set(parsed.output).union(*rest)
        done.append(lowering.pair(done[a], done[b], keep))
        done[a] = done[b] = _USED
    result = lowering.summed(done[-1], set(parsed.output))
    order = tuple(result.labels.index(label) for label in parsed.output)
    out = result.value if order == tuple(range(len(order))) else lowering.views.permute(result.value, order)
    return F.cast(out, dtype) if wide else out


_USED = Term(None, (), {})


@dataclass(frozen=True)
class _Lowering:
    sizes: Mapping[Label, Dimension]
    output: Labels
    views: Views

    def prepare(self, x: Any, labels: Labels, shape: tuple[Dimension, ...], strides: Sequence[Dimension]) -> Term:
        """An operand without repeated labels and without dimensions that only broadcast."""
        kept = [i for i, label in enumerate(labels) if shape[i] == self.sizes[label]]
        if len(kept) < len(labels):
            x = self.views.reshape(x, tuple(shape[i] for i in kept))
        term = Term(x, tuple(labels[i] for i in kept), {labels[i]: strides[i] for i in kept})
        for label in dict.fromkeys(term.labels):
            while term.labels.count(label) > 1:
                term = self.diagonal(term, label)
        return term

    def diagonal(self, term: Term, label: Label) -> Term:
        """The last two dimensions of one label become one."""
        j = len(term.labels) - 1 - term.labels[::-1].index(label)
        i = term.labels[:j].index(label)
        size = self.sizes[label]
        order = (*(d for d in range(len(term.labels)) if d not in (i, j)), i, j)
        x = F.permute(term.value, order)
        lead = tuple(x.shape[:-2])
        labels = tuple(term.labels[d] for d in order[:-1])
        if isinstance(size, int):  # every (n + 1)st element of the square
            flat = F.reshape(x, (*lead, size * size))
            step = (*[1] * len(lead), size + 1)
            x = F.slice(flat, (0,) * (len(lead) + 1), (*lead, size), step) if size else F.reshape(x, (*lead, 0))
        else:
            row, column = (F.iota(size, dtype=dtypes.int32) for _ in range(2))
            same = F.equal(F.reshape(row, (size, 1)), F.reshape(column, (1, size)))
            x = F.reduce_sum(F.where(same, x, 0), (-1,))
        return Term(x, labels, dict(zip(labels, dense_strides((*lead, size)), strict=True)))

    def summed(self, term: Term, keep: Collection[Label]) -> Term:
        """A term without the labels that nobody else needs."""
        lost = tuple(i for i, label in enumerate(term.labels) if label not in keep)
        if not lost:
            return term
        labels = tuple(label for label in term.labels if label in keep)
        x = F.reduce_sum(term.value, lost)
        return Term(x, labels, dict(zip(labels, dense_strides(tuple(x.shape)), strict=True)))

    def pair(self, x: Term, y: Term, keep: set[Label]) -> Term:
        """The product of two terms, summed over what neither the result nor another term needs."""
        x, y = self.summed(x, keep | set(y.labels)), self.summed(y, keep | set(x.labels))
        both = [label for label in x.labels if label in y.labels]
        summed = [label for label in both if label not in keep]
        if not summed:
            return self.elementwise(x, y)
        free = [label for label in (*x.labels, *y.labels) if label not in both]
        if not free:
            return self.summed(self.elementwise(x, y), keep)
        plans = [_Product.arrange(self, a, b, set(summed)) for a, b in ((x, y), (y, x))]
        return min(plans, key=lambda plan: plan.cost).emit()

    def elementwise(self, x: Term, y: Term) -> Term:
        """Nothing to sum: one multiplication of two broadcast tensors, in the memory order of the larger."""
        big, small = (x, y) if self.volume(x.labels) >= self.volume(y.labels) else (y, x)
        order = (*(label for label in small.memory_order(small.labels) if label not in big.labels),
                 *big.memory_order(big.labels))  # fmt: skip
        value = F.mul(*(self.spread(term, order) for term in (x, y)))
        return Term(value, order, dict(zip(order, dense_strides(tuple(value.shape)), strict=True)))

    def spread(self, term: Term, order: Labels) -> Any:
        """A term under a longer list of labels: size 1 where it lacks one."""
        own = tuple(term.labels.index(label) for label in order if label in term.labels)
        return self.shaped(self.permuted(term.value, own), self.shape(order, term.labels))

    def permuted(self, x: Any, order: tuple[int, ...]) -> Any:
        return x if order == tuple(range(len(order))) else self.views.permute(x, order)

    def shaped(self, x: Any, shape: tuple[Dimension, ...]) -> Any:
        return x if tuple(x.shape) == shape else self.views.reshape(x, shape)

    def shape(self, labels: Collection[Label], own: Collection[Label]) -> tuple[Dimension, ...]:
        return tuple(self.sizes[label] if label in own else 1 for label in labels)

    def step(self, term: Term, labels: Labels) -> Dimension | None:
        """The one stride that walks these dimensions of a term, outermost first, as a single one; or None."""
        return merged(self.shape(labels, labels), tuple(term.strides[label] for label in labels))

    def volume(self, labels: Collection[Label]) -> int:
        return math.prod(estimate(self.sizes[label]) for label in labels)


@dataclass(frozen=True)
class _Product:
    """One way to make a product of a [batch, m, k] and b [batch, k, n], and what it costs beside the arithmetic."""

    lowering: _Lowering
    a: Term
    b: Term
    batch: Labels
    m: Labels
    n: Labels
    k: Labels
    cost: float

    @classmethod
    def arrange(cls, lowering: _Lowering, a: Term, b: Term, summed: set[Label]) -> _Product:
        """Labels that lie together become m, n or k; other free ones are batches, over which the other term repeats."""
        big = a if lowering.volume(a.labels) >= lowering.volume(b.labels) else b
        k = big.memory_order(summed)
        n, apart_n = _together(lowering, b, set(b.labels) - set(a.labels))
        m, apart_m = _together(lowering, a, set(a.labels) - set(b.labels))
        shared = tuple(label for label in big.memory_order(set(a.labels) & set(b.labels) - summed))
        batch = (*big.memory_order({*shared, *(apart_m if big is a else apart_n)}), *(apart_n if big is a else apart_m))
        cost = 0.0
        for term, inner in ((a, k), (b, n or k)):
            if lowering.step(term, k) is None:  # a copy: read and write, and another pass of the product's packing
                cost += 4 * lowering.volume(term.labels)
            elif lowering.step(term, inner[-1:]) != 1:  # strided reads
                cost += lowering.volume(term.labels)
        result = (*batch, *m, *n)
        inmost = big.memory_order(big.labels)[-1:]
        if set(inmost) <= set(result):  # what lies innermost should stay so
            cost += 0 if inmost == result[-1:] else lowering.volume(result)
        elif set(result) == set(lowering.output) and result[-1:] != lowering.output[-1:]:  # the last product: a copy
            cost += 4 * lowering.volume(result)
        if not n:  # a panel of one column
            cost += 8 * lowering.volume(b.labels)
        return cls(lowering, a, b, batch, m, n, k, cost)

    def emit(self) -> Term:
        low = self.lowering
        a = self._operand(self.a, self.m, self.k)
        b = self._operand(self.b, self.k, self.n)
        labels = (*self.batch, *self.m, *self.n)
        value = low.shaped(F.matmul(a, b), low.shape(labels, labels))
        return Term(value, labels, dict(zip(labels, dense_strides(tuple(value.shape)), strict=True)))

    def _operand(self, term: Term, rows: Labels, columns: Labels) -> Any:
        low = self.lowering
        own = [label for label in self.batch if label in term.labels]
        order = tuple(term.labels.index(label) for label in (*own, *rows, *columns))
        lead = low.shape(self.batch, own) if own else ()
        sides = tuple(elements(low.sizes[label] for label in group) for group in (rows, columns))
        return low.shaped(low.permuted(term.value, order), (*lead, *sides))


def _together(lowering: _Lowering, term: Term, free: set[Label]) -> tuple[Labels, Labels]:
    """The innermost free labels that one stride walks, and the others."""
    order = term.memory_order(free)
    for first in range(len(order)):
        if lowering.step(term, order[first:]) is not None:
            return order[first:], order[:first]
    return order, ()
