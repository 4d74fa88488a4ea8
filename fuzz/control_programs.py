"""Templates of control calls: choices, loops and scans over programs of several kernels, and one inside the other."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from fuzz.epilogues import FLOAT, FLOATS, f, panels, steps
from fuzz.template import Block, Template, calc, kernel_call

Json = Any
NEXT = steps(["input", "int64", 0], ["const", "int64", 1], ["add", "int64", 0, 1])
SUM = steps(f("input", 0), f("input", 1), f("add", 0, 1))


class Rows:
    """What the bodies of a template compute on: rows [m, n] of one type, a vector [n], and a weight in panels.

    A control call's operands have no gaps, so it is the bodies that read strides: rows backwards, a vector that all
    rows share.
    """

    def __init__(self, t: Template, dtype: str) -> None:
        self.t, self.dtype = t, dtype
        self.m, self.n = t.size("m", 0, 9), t.size("n", 1, 33)
        self.shape, self.panels = [self.m, self.n], panels(self.n, self.n, dtype)
        t.weight("w", self.panels, dtype)  # what bodies name, too
        self.chains = 0

    def rows(self, block: Block, name: str) -> int:
        return block.input(name, self.shape, self.dtype)

    def vector(self, block: Block, name: str = "v") -> int:
        return block.input(name, [self.n], self.dtype)

    def backwards(self, block: Block, x: int) -> int:
        """The rows from the last to the first, as a view."""
        start = calc("*", calc("max", calc("-", self.m, 1), 0), self.n)
        return block.view(x, self.shape, [calc("-", 0, self.n), 1], start)

    def chain(self, block: Block, x: int, vector: int, length: int = 2) -> int:
        """Some kernels, one on the result of the other; which ones a case chooses."""
        w = block.weight("w", self.panels, self.dtype)
        for _ in range(length):
            y, turned = block.temp(self.shape, self.dtype), self.backwards(block, x)
            silu = steps(f("input", 0), f("silu", 0))
            block.program["calls"].append(self.t.choice(
                f"kernel{self.chains}",
                kernel_call("elementwise", [x], [y], expression=silu),
                kernel_call("elementwise", [turned, vector], [y], expression=SUM),
                kernel_call("softmax", [x], [y]),
                kernel_call("rms_norm", [turned, vector], [y], eps=1e-5),
                kernel_call("cumsum", [x], [y], axis=0),
                kernel_call("copy", [turned], [y]),
                kernel_call("matmul_packed", [x, w], [y], n=self.n, k=self.n, parts=1, epilogue=FLOAT),
            ))  # fmt: skip
            x, self.chains = y, self.chains + 1
        return x

    def copied(self, block: Block, x: int, shape: Json, dtype: str) -> int:
        """A body gives only what it made: an operand goes on by way of a copy."""
        y = block.temp(shape, dtype)
        block.call("copy", [x], [y])
        return y


def counted(t: Template) -> tuple[Json, Json]:
    """How far a loop counts, and how many rounds it may take: some take more."""
    return t.choice("count", 0, 1, 5, 9), t.choice("limit", 16, 5, 1)


def below(count: Json, block: Block, i: int) -> None:
    """The block's only output: whether i is below the count."""
    less = steps(["input", "int64", 0], ["const", "int64", count], ["lt", "bool", 0, 1])
    block.call("elementwise", [i], [block.result([], "bool")], expression=less)


def advanced(block: Block, i: int) -> int:
    y = block.temp([], "int64")
    block.call("elementwise", [i], [y], expression=NEXT)
    return y


# ---- cond ----


def cond() -> Iterator[Template]:
    for dtype, outputs in itertools.product(FLOATS, (1, 2)):
        t = Template(f"cond.{dtype}.{outputs}")
        rows = Rows(t, dtype)
        operands = [t.input("flag", [], "bool"), rows.rows(t, "x"), rows.vector(t)]
        branches = []
        for length in (1, 3):
            branch = Block()
            x, v = rows.rows(branch, "x"), rows.vector(branch)
            y = rows.chain(branch, x, v, length)
            branch.output(rows.backwards(branch, y) if length == 1 else y)
            if outputs == 2:
                branch.output(rows.copied(branch, v, [rows.n], dtype))
            branches.append(branch)
        results = [t.result(shape, dtype) for shape in (rows.shape, [rows.n])[:outputs]]
        t.control("cond", operands, results, branches)
        yield t
    t = Template("cond.scan")  # a scan in a branch, and nothing but a copy in the other
    rows, count = Rows(t, "float32"), t.size("length", 0, 5)
    operands = [t.input("flag", [], "bool"), rows.rows(t, "x"), t.input("parts", [count, rows.n])]
    one, other = Block(), Block()
    for branch in (one, other):
        x, parts = rows.rows(branch, "x"), branch.input("parts", [count, rows.n])
        if branch is other:
            branch.output(rows.copied(branch, x, rows.shape, "float32"))
            continue
        inner = Block()
        a, part = rows.rows(inner, "a"), inner.input("part", [rows.n])
        inner.output(rows.chain(inner, a, part))
        y = branch.result(rows.shape)
        branch.control("scan", [x, parts], [y], [inner], carried=1, scanned=1, length=count, reverse=True)
    t.control("cond", operands, [t.result(rows.shape)], [one, other])
    yield t


# ---- while ----


def loops() -> Iterator[Template]:
    for dtype, kept in itertools.product(FLOATS, (0, 1, 2)):
        t = Template(f"while.{dtype}.{kept}")
        rows, (count, limit) = Rows(t, dtype), counted(t)
        operands = [t.input("i", [], "int64", kind="index", low=0, high=3), rows.rows(t, "x"), rows.vector(t)]
        condition, body = Block(), Block()
        for block in (condition, body):
            i, x, v = block.input("i", [], "int64"), rows.rows(block, "x"), rows.vector(block)
            if block is condition:
                below(count, block, i)
                continue
            y = rows.chain(block, x, v)
            block.output(advanced(block, i))
            block.output(y)
            for buffer in (rows.backwards(block, y), rows.copied(block, v, [rows.n], dtype))[:kept]:
                block.output(buffer)
        names = [t.unbacked("rounds")] if kept else []
        results = [t.result([], "int64"), t.result(rows.shape, dtype)]
        results += [t.result(["rounds", *shape], dtype) for shape in (rows.shape, [rows.n])[:kept]]
        t.control("while", operands, results, [condition, body], *names, carried=2, limit=limit)
        if kept:  # a stage behind the loop
            t.call("reduce", [results[2]], [t.result(rows.shape, dtype)], op="max", axes=[0], keepdims=False)
        yield t
    yield _choosing_loop()
    yield _measuring_loop()


def _choosing_loop() -> Template:
    """A loop whose body chooses."""
    t = Template("while.cond")
    rows, (count, limit) = Rows(t, "float32"), counted(t)
    operands = [t.input("i", [], "int64", kind="index", low=0, high=3), rows.rows(t, "x"), rows.vector(t)]
    condition, body, branches = Block(), Block(), [Block(), Block()]
    for block in (condition, body):
        i, x, v = block.input("i", [], "int64"), rows.rows(block, "x"), rows.vector(block)
        if block is condition:
            below(count, block, i)
            continue
        early = block.temp([], "bool")
        less = steps(["input", "int64", 0], ["const", "int64", 3], ["lt", "bool", 0, 1])
        block.call("elementwise", [i], [early], expression=less)
        for branch in branches:
            inner, vector = rows.rows(branch, "x"), rows.vector(branch)
            branch.output(rows.chain(branch, inner, vector))
        y = block.temp(rows.shape)
        block.control("cond", [early, x, v], [y], branches)
        block.output(advanced(block, i))
        block.output(y)
    results = [t.result([], "int64"), t.result(rows.shape)]
    t.control("while", operands, results, [condition, body], carried=2, limit=limit)
    return t


def _measuring_loop() -> Template:
    """A loop whose body makes sizes of its counter: what follows there is planned as it runs."""
    t = Template("while.sizes")
    count, limit = counted(t)
    operands = [t.input("i", [], "int64", kind="index", low=0, high=3), t.input("x", [])]
    condition, body = Block(), Block()
    for block in (condition, body):
        i, x = block.input("i", [], "int64"), block.input("x", [])
        if block is condition:
            below(count, block, i)
            continue
        clamped, sizes = block.temp([1], "int64"), block.temp([1], "int64")
        between = steps(["input", "int64", 0], ["const", "int64", 0], ["max", "int64", 0, 1],
                        ["const", "int64", 20], ["min", "int64", 2, 3])  # fmt: skip
        block.call("elementwise", [i], [clamped], expression=between)
        name = block.unbacked("size")
        block.program["calls"].append(kernel_call("read_sizes", [clamped], [sizes], name, names=[name], text="of i"))
        counts, total, y = block.temp([name]), block.temp([]), block.temp([])
        block.call("iota", [], [counts], start=0, step=1)
        block.call("reduce", [counts], [total], op="sum", axes=[0], keepdims=False)
        block.call("elementwise", [total, x], [y], expression=SUM)
        block.output(advanced(block, i))
        block.output(y)
    t.control("while", operands, [t.result([], "int64"), t.result([])], [condition, body], carried=2, limit=limit)
    return t


# ---- scan ----


def scans() -> Iterator[Template]:
    for dtype, carried, scanned in itertools.product(FLOATS, (0, 1, 2), (0, 1, 2)):
        if carried + scanned == 0:
            continue
        t = Template(f"scan.{dtype}.{carried}.{scanned}")
        rows, length = Rows(t, dtype), t.size("length", 0, 9)
        operands = [rows.rows(t, f"x{i}") for i in range(carried)]
        operands += [t.input(f"s{i}", [length, *shape], dtype) for i, shape in enumerate(_parts(rows)[:scanned])]
        operands.append(rows.vector(t))
        body = Block()
        state = [rows.rows(body, f"x{i}") for i in range(carried)]
        parts = [body.input(f"s{i}", shape, dtype) for i, shape in enumerate(_parts(rows)[:scanned])]
        v = rows.vector(body)
        x = (parts or state)[0]
        if state and parts:
            x = body.temp(rows.shape, dtype)
            body.call("elementwise", [parts[0], state[0]], [x], expression=SUM)
        y = rows.chain(body, x, parts[1] if scanned == 2 else v)
        following = [y, *(rows.copied(body, one, rows.shape, dtype) for one in state[:-1])]
        kept = [y, rows.backwards(body, y)]
        for buffer in (*following[:carried], *kept):
            body.output(buffer)
        results = [t.result(rows.shape, dtype) for _ in range(carried)]
        results += [t.result([length, *rows.shape], dtype) for _ in kept]
        t.control("scan", operands, results, [body], carried=carried, scanned=scanned, length=length,
                  reverse=t.choice("reverse", False, True))  # fmt: skip
        yield t
    yield _looping_scan()
    yield _finding_scan()


def _parts(rows: Rows) -> tuple[list[Json], list[Json]]:
    """The shapes of a round's parts."""
    return rows.shape, [rows.n]


def _looping_scan() -> Template:
    """A scan whose rounds are loops that keep what each of their rounds gave."""
    t = Template("scan.while")
    rows, length, (count, limit) = Rows(t, "float32"), t.size("length", 0, 5), counted(t)
    operands = [rows.rows(t, "x"), t.input("starts", [length], "int64", kind="index", low=0, high=6), rows.vector(t)]
    body = Block()
    x, start, v = rows.rows(body, "x"), body.input("start", [], "int64"), rows.vector(body)
    condition, inner = Block(), Block()
    for block in (condition, inner):
        i, a, vector = block.input("i", [], "int64"), rows.rows(block, "a"), rows.vector(block)
        if block is condition:
            below(count, block, i)
            continue
        y = rows.chain(block, a, vector)
        for buffer in (advanced(block, i), y, y):
            block.output(buffer)
    last, end = body.temp([], "int64"), body.temp(rows.shape)
    kept = body.temp([body.unbacked("rounds"), *rows.shape])
    body.control("while", [start, x, v], [last, end, kept], [condition, inner], "rounds", carried=2, limit=limit)
    body.output(end)
    largest = body.result(rows.shape)
    body.call("reduce", [kept], [largest], op="max", axes=[0], keepdims=False)
    body.output(last)
    results = [t.result(rows.shape), t.result([length, *rows.shape]), t.result([length], "int64")]
    t.control("scan", operands, results, [body], carried=1, scanned=1, length=length, reverse=False)
    return t


def _finding_scan() -> Template:
    """A scan that finds what is not zero in each part: sizes that differ from round to round."""
    t = Template("scan.nonzero")
    length, m, n = t.size("length", 0, 9), t.size("m", 0, 9), t.size("n", 0, 33)
    x = t.input("x", [length, m, n], "int8", kind="index", low=0, high=1)
    body = Block()
    part, found = body.input("part", [m, n], "int8"), body.unbacked("found")
    number, places, total = body.temp([1], "int64"), body.temp([2, found], "int64"), body.result([2], "int64")
    body.program["calls"].append(kernel_call("count_nonzero", [part], [number], found))
    body.call("nonzero", [part], [places])
    body.call("reduce", [places], [total], op="sum", axes=[1], keepdims=False)
    t.control("scan", [x], [t.result([length, 2], "int64")], [body], carried=0, scanned=1, length=length,
              reverse=t.choice("reverse", False, True))  # fmt: skip
    return t


FAMILIES = (cond, loops, scans)
