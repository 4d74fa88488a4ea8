"""Templates of elementwise, norms, reductions and movement: the calls that reach every way through each kernel."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from fuzz.epilogues import EPILOGUES, FLOATS, INTEGERS, NARROW, broadcasts, extras, f, panels, steps
from fuzz.template import Template, calc

Json = Any

# ---- rows ----


def shapes(t: Template, rank: int, last: int = 513) -> list[Json]:
    """Sizes of that rank, the last one the largest."""
    if rank == 0:
        return []
    most = {1: 1, 2: 75, 3: 17, 4: 9}.get(rank, 5)
    return [*(t.size(name, 0, most) for name in "abcdef"[: rank - 1]), t.size("n", 0, last)]


def wide(rank: int) -> Template:
    """64 bits, and the conversions between all classes."""
    t = Template(f"elementwise.wide.{rank}")
    y = shapes(t, rank)
    dtypes = ("float64", "uint64", t.choice("dtype2", *FLOATS), t.choice("dtype3", *NARROW))
    x = [t.input(f"x{i}", t.choice(f"shape{i}", *broadcasts(y)), dtype) for i, dtype in enumerate(dtypes)]
    unary = t.choice("unary", "exp", "log", "sqrt", "sin", "tanh", "sigmoid", "erf", "floor", "round", "silu", "neg")
    binary = t.choice("binary", "add", "sub", "mul", "div", "pow", "max", "min", "mod", "floordiv", "fmod")
    whole = t.choice("whole", "add", "sub", "mul", "floordiv", "mod", "fmod", "max", "min", "and", "or", "xor")
    register = t.choice("register", "int32", "int64")
    expression = steps(
        ["input", "float64", 0], ["input", "uint64", 1], f("input", 2), ["input", "int64", 3],
        ["to_float", "float64", 1], ["to_float", "float64", 2], [binary, "float64", 0, 4], [unary, "float64", 6],
        [binary, "float64", 7, 5], ["to_int", "uint64", 8], ["to_int", "uint64", 2], [whole, "uint64", 9, 10],
        ["to_int", "uint64", 3], [whole, "uint64", 11, 12], ["to_int", "int64", 13], ["to_int", "int64", 8, register],
        ["max", "int64", 14, 15], f("to_float", 8), f(binary, 17, 2), ["lt", "bool", 1, 9], ["to_bool", "bool", 8],
        ["and", "bool", 19, 20], ["where", "float64", 21, 8, 0], ["wrap", "int64", 16, "uint8"],
        outputs=[22, 13, 23, 18, 21],
    )  # fmt: skip
    narrow = (t.result(y, t.choice("y2", *NARROW)), t.result(y, t.choice("y3", *FLOATS)))
    results = [t.result(y, "float64"), t.result(y, "uint64"), *narrow, t.result(y, "bool")]
    t.call("elementwise", x, results, expression=expression)
    return t


def elementwise() -> Iterator[Template]:
    binary = ("add", "sub", "mul", "div", "pow", "max", "min")
    unary = ("neg", "abs", "exp", "log", "sqrt", "rsqrt", "sin", "cos", "tanh", "sigmoid", "erf", "floor", "ceil")
    for rank in range(5):
        t = Template(f"elementwise.float.{rank}")
        y = shapes(t, rank)
        dtypes = [t.choice(f"dtype{i}", *FLOATS) for i in range(3)]
        x = [t.input(f"x{i}", t.choice(f"shape{i}", *broadcasts(y)), dtypes[i]) for i in range(3)]
        op, other, one = t.choice("op", *binary), t.choice("other", *binary), t.choice("one", *unary, "recip", "silu")
        inputs = [f("input", i) for i in range(3)]
        expression = steps(*inputs, f(op, 0, 1), f(one, 3), f(other, 4, 2), outputs=[5, 4])
        results = [t.result(y, t.choice(f"y{i}", *FLOATS)) for i in range(2)]
        t.call("elementwise", x, results, expression=expression)
        yield t
        t = Template(f"elementwise.integer.{rank}")
        y = shapes(t, rank)
        dtypes = [t.choice(f"dtype{i}", *NARROW) for i in range(2)]
        x = [t.input(f"x{i}", t.choice(f"shape{i}", *broadcasts(y)), dtypes[i]) for i in range(2)]
        op = t.choice("op", "add", "sub", "mul", "floordiv", "mod", "fmod", "max", "min", "and", "or", "xor")
        expression = steps(
            ["input", "int64", 0], ["input", "int64", 1], [op, "int64", 0, 1], ["lt", "bool", 2, 1],
            ["where", "int64", 3, 2, 0], ["wrap", "int64", 4, "int8"], f("to_float", 5), outputs=[5, 3, 6],
        )  # fmt: skip
        y0 = t.result(y, t.choice("y0", *NARROW))
        t.call("elementwise", x, [y0, t.result(y, "bool"), t.result(y, t.choice("y2", *FLOATS))], expression=expression)
        yield t
        yield wide(rank)
        t = Template(f"elementwise.bool.{rank}")
        y = shapes(t, rank)
        x = [t.input(f"x{i}", t.choice(f"shape{i}", *broadcasts(y)), "bool") for i in range(2)]
        x.append(t.input("x2", t.choice("shape2", *broadcasts(y)), t.choice("dtype2", *FLOATS)))
        op, compare = t.choice("op", "and", "or", "xor"), t.choice("compare", "eq", "ne", "lt", "le", "gt", "ge")
        expression = steps(
            ["input", "bool", 0], ["input", "bool", 1], f("input", 2), [op, "bool", 0, 1], f("const", 0.25),
            [compare, "bool", 2, 4], ["not", "bool", 5], ["where", "bool", 3, 5, 6],
            f("where", 7, 2, 4), ["to_int", "int64", 3], outputs=[7, 8, 9],
        )  # fmt: skip
        y1 = t.result(y, t.choice("y1", *FLOATS))
        t.call("elementwise", x, [t.result(y, "bool"), y1, t.result(y, t.choice("y2", *NARROW))], expression=expression)
        yield t
        t = Template(f"elementwise.chain.{rank}")
        y = shapes(t, rank)
        dtypes = [t.choice(f"dtype{i}", *FLOATS) for i in range(3)]
        x = [t.input(f"x{i}", t.choice(f"shape{i}", *broadcasts(y)), dtypes[i]) for i in range(3)]
        rounded = f("round", 2, "float16")
        expression = steps(f("input", 0), f("input", 1), f("add", 0, 1), rounded, f("input", 2), f("mul", 3, 4))
        t.call("elementwise", x, [t.result(y, t.choice("y0", *FLOATS))], expression=expression)
        yield t


def norms() -> Iterator[Template]:
    eps = (1e-5, 0.0, 0.5)
    for rank, weighted in itertools.product((1, 2, 3), (False, True)):
        t = Template(f"rms_norm.{rank}.{weighted}")
        y = shapes(t, rank)
        operands = [t.input("x", y, t.choice("dtype", *FLOATS))]
        params: dict[str, Json] = {"eps": t.choice("eps", *eps)}
        if weighted:
            operands.append((t.weight if rank == 2 else t.input)("w", [y[-1]], t.choice("w_dtype", *FLOATS)))
            params["shift"] = t.choice("shift", 0.0, 1.0)
        t.call("rms_norm", operands, [t.result(y, t.choice("y_dtype", *FLOATS))], **params)
        yield t
    for rank, (weighted, biased) in itertools.product((1, 2, 3), itertools.product((False, True), repeat=2)):
        t = Template(f"layer_norm.{rank}.{weighted}.{biased}")
        y = shapes(t, rank)
        operands = [t.input("x", y, t.choice("dtype", *FLOATS))]
        for name in ["w"] * weighted + ["bias"] * biased:
            operands.append((t.weight if rank == 2 else t.input)(name, [y[-1]], t.choice(f"{name}_dtype", *FLOATS)))
        result = t.result(y, t.choice("y_dtype", *FLOATS))
        t.call("layer_norm", operands, [result], eps=t.choice("eps", *eps), weight=weighted, bias=biased)
        yield t
    for rank in (1, 2, 3):
        t = Template(f"quantize_rows.{rank}")
        y = shapes(t, rank)
        x = t.input("x", y, t.choice("dtype", *FLOATS))
        t.call("quantize_rows", [x], [t.result(y, "int8"), t.result([*y[:-1], 1], "float32")])
        yield t
    for rank in (1, 2, 3, 4):
        t = Template(f"softmax.{rank}")
        y = shapes(t, rank)
        axis, log = t.choice("axis", -1, *range(-rank, rank)), t.choice("log", False, True)
        x = t.input("x", y, t.choice("dtype", *FLOATS))
        t.call("softmax", [x], [t.result(y, t.choice("y_dtype", *FLOATS))], axis=axis, log=log)
        yield t


def group_norm() -> Iterator[Template]:
    factors = ((False, False), (True, False), (True, True))
    for rank, (weighted, biased), epilogue in itertools.product((2, 3, 4), factors, EPILOGUES):
        t = Template(f"group_norm.{rank}.{weighted}.{biased}.{epilogue}")
        groups = t.choice("groups", 1, 2, 3, 8)
        lead = [t.size("images", 0, 3), *(t.size(f"s{i}", 0, 33) for i in range(rank - 2))]
        channels, dtype = t.value("c", calc("*", groups, t.size("each", 1, 33))), t.choice("dtype", *FLOATS)
        operands = [t.input("x", [*lead, channels], dtype)]
        operands += [t.input(name, [channels], dtype) for name in ["w"] * weighted + ["bias"] * biased]
        more, expression = extras(t, epilogue, [*lead, channels])
        y = t.result([*lead, channels], t.choice("y_dtype", *FLOATS))
        params = {"groups": groups, "eps": t.choice("eps", 1e-5, 0.5), "weight": weighted, "bias": biased}
        t.call("group_norm", [*operands, *more], [y], epilogue=expression, **params)
        yield t


def reductions() -> Iterator[Template]:
    """The order of sums and products of floats depends on whether the last reduced dimension is dense."""
    for rank, kind in itertools.product((1, 2, 3, 4), ("sums", "extremes", "integer")):
        axes: list[list[int]] = [list(a) for n in range(rank + 1) for a in itertools.combinations(range(rank), n)]
        for number, (reduced, keep) in enumerate(itertools.product(axes, (False, True))):
            t = Template(f"reduce.{rank}.{kind}.{number}")
            x = shapes(t, rank)
            y = [1 if i in reduced else s for i, s in enumerate(x) if keep or i not in reduced]
            ops = {
                "sums": ["sum", "mean", "prod"],
                "extremes": ["max", "min"],
                "integer": ["sum", "max", "min", "prod"],
            }[kind]
            number_of_op, values = t.choice("number_of_op", *range(len(ops))), "moderate"
            if kind == "sums":
                values = t.value("values", calc("at", ["moderate", "moderate", "near_one"], number_of_op))
                largest = 4  # of moderate values
                count = calc("*", largest, *(x[i] for i in reduced))
                t.magnitude = calc("at", [count, largest, 0], number_of_op)
            dtypes = (*INTEGERS, "bool") if kind == "integer" else FLOATS
            operand = t.input("x", x, t.choice("dtype", *dtypes), kind=values)
            result = t.result(y, t.choice("y_dtype", *dtypes))
            t.call("reduce", [operand], [result], op=calc("at", ops, number_of_op), axes=reduced, keepdims=keep)
            yield t
    for rank, last in itertools.product((1, 2, 3), (False, True)):
        t = Template(f"reduce.{rank}.float64.{last}")
        x = shapes(t, rank)
        kept = x[: rank - 1] if last else []
        operand = t.input("x", x, "float64", kind="moderate")
        op, first = t.choice("op", "max", "min"), rank - 1 if last else 0
        call: Json = {"op": op, "axes": [*range(first, rank)], "keepdims": False}
        t.call("reduce", [operand], [t.result(kept, "float64")], **call)
        yield t
    for rank, keep in itertools.product((1, 2, 3), (False, True)):
        for axis in range(rank):
            t = Template(f"argmax.{rank}.{axis}.{keep}")
            x = [t.size(name, 1 if i == axis else 0, 129 if i == axis else 17) for i, name in enumerate("abc"[:rank])]
            y = [1 if i == axis else s for i, s in enumerate(x) if keep or i != axis]
            operand = t.input("x", x, t.choice("dtype", *FLOATS, "float64", *INTEGERS, "bool"))
            t.call("argmax", [operand], [t.result(y, "int64")], axis=axis, keepdims=keep)
            yield t


# ---- order ----


def order() -> Iterator[Template]:
    for rank, axis in ((r, a) for r in (1, 2, 3) for a in range(r)):
        for kernel, flag in (("sort", "descending"), ("top_k", "largest")):
            t = Template(f"{kernel}.{rank}.{axis}")
            x, dtype = shapes(t, rank, 1025), t.choice("dtype", *FLOATS, *INTEGERS, "float64", "bool")
            y = [t.size("k", 0, s) if kernel == "top_k" and i == axis else s for i, s in enumerate(x)]
            call = {"axis": axis, flag: t.choice("flag", False, True)}
            t.call(kernel, [t.input("x", x, dtype)], [t.result(y, dtype), t.result(y, "int64")], **call)
            yield t
        t = Template(f"bucketize.{rank}.{axis}")
        y, dtype = shapes(t, rank, 129), t.choice("dtype", *FLOATS, *INTEGERS, "float64", "bool")
        operands = [t.input("x", y, dtype), t.input("boundaries", [t.size("marks", 0, 65)], dtype)]
        t.call("bucketize", operands, [t.result(y, "int64")], right=t.choice("right", False, True))
        yield t
        t = Template(f"cumsum.{rank}.{axis}")
        x, dtype = shapes(t, rank, 1025), t.choice("dtype", *FLOATS, *INTEGERS, "float64")
        t.call("cumsum", [t.input("x", x, dtype)], [t.result(x, dtype)], axis=axis)
        yield t
        for kernel, types in (("cumprod", (*FLOATS, *INTEGERS, "float64")), ("logcumsumexp", (*FLOATS, "float64"))):
            t = Template(f"{kernel}.{rank}.{axis}")
            x, dtype = shapes(t, rank, 1025), t.choice("dtype", *types)
            t.call(kernel, [t.input("x", x, dtype)], [t.result(x, dtype)], axis=axis)
            yield t
        for kernel in ("cummax", "cummin"):
            t = Template(f"{kernel}.{rank}.{axis}")
            x, dtype = shapes(t, rank, 1025), t.choice("dtype", *FLOATS, *INTEGERS, "float64", "bool")
            t.call(kernel, [t.input("x", x, dtype)], [t.result(x, dtype), t.result(x, "int64")], axis=axis)
            yield t


def nonzero() -> Iterator[Template]:
    """Of elements that are not zero, so that the size of the result is known."""
    for rank in (1, 2, 3, 4):
        t = Template(f"count_nonzero.{rank}")
        x = t.input("x", shapes(t, rank), t.choice("dtype", *FLOATS, *INTEGERS, "float64", "bool"))
        t.call("count_nonzero", [x], [t.result([1], "int64")])
        yield t
        t = Template(f"nonzero.{rank}")
        y = shapes(t, rank, 65)
        x = t.input("x", y, t.choice("dtype", *NARROW), kind="index", low=1, high=9)
        filled = t.choice("filled", 0, 1)  # 0: a result without elements, which no input contradicts
        t.call("nonzero", [x], [t.result([rank, calc("*", filled, *y)], "int64")])
        yield t


def sizes() -> Iterator[Template]:
    """Numbers that can be sizes, and such that cannot."""
    for count in (1, 2, 3):
        names = [f"n{i}" for i in range(count)]
        for kind in ({"kind": "index", "low": 0, "high": 100}, {}):
            t = Template(f"read_sizes.{count}.{len(kind)}")
            x = t.input("x", [count], t.choice("dtype", *INTEGERS), **kind)
            t.call("read_sizes", [x], [t.result([count], "int64")], names=names, text="of the data")
            yield t
        t = Template(f"assertion.{count}")
        condition = t.input("condition", shapes(t, count), "bool")
        t.call("assertion", [condition], [t.result([], "bool")], message=t.choice("message", "it holds", ""))
        yield t
        t = Template(f"sizes_of.{count}")
        x = t.input("x", [count], t.choice("dtype", *INTEGERS))
        t.call("sizes_of", [x], [t.result([t.size(f"n{i}", 1, 9), 0], "bool") for i in range(count)])
        yield t


# ---- movement ----

ANY = ("float32", "bfloat16", "int64", "uint8", "bool", "float64", "int16")


def movement() -> Iterator[Template]:
    for rank in range(6):
        t = Template(f"copy.{rank}")
        y, dtype = shapes(t, rank, 129), t.choice("dtype", *ANY)
        t.call("copy", [t.input("x", y, dtype)], [t.result(y, dtype)])
        yield t
    for rank, axis in ((r, a) for r in (1, 2, 3, 4) for a in range(r)):
        t = Template(f"concat.{rank}.{axis}")
        y, dtype = shapes(t, rank, 33), t.choice("dtype", *ANY)
        parts = [t.size(f"part{i}", 0, 17) for i in range(3)]
        x = [t.input(f"x{i}", [*y[:axis], part, *y[axis + 1 :]], dtype) for i, part in enumerate(parts)]
        t.call("concat", x, [t.result([*y[:axis], calc("+", *parts), *y[axis + 1 :]], dtype)], axis=axis)
        yield t
    for ids_rank, dtype, packed in itertools.product((0, 1, 2), (*FLOATS, "int8"), (False, True)):
        t = Template(f"embedding.{ids_rank}.{dtype}.{packed}")
        n, k = t.size("rows", 1, 129), t.size("k", 1, 75)
        lead = [t.size(name, 0, 17) for name in "ab"[:ids_rank]]
        ids = t.input("ids", lead, t.choice("index", "int32", "int64"), kind="index", low=0, high=calc("-", n, 1))
        table = t.weight("w", panels(n, k, dtype), dtype) if packed else t.input("table", [n, k], dtype)
        params = {"packed": True, "n": n, "k": k} if packed else {"packed": False}
        t.call("embedding", [ids, table], [t.result([*lead, k], dtype)], **params)
        yield t
    for rank, index_rank in itertools.product((1, 2, 3), (0, 1, 2)):
        for axis in range(rank):
            t = Template(f"take.{rank}.{index_rank}.{axis}")
            x, dtype = shapes(t, rank, 33), t.choice("dtype", *ANY)
            index_shape = [t.size(f"i{i}", 0, 9) for i in range(index_rank)]
            index = {"kind": "index", "low": -1, "high": calc("-", x[axis], 1)}
            places = t.input("index", index_shape, t.choice("index", "int32", "int64"), **index)
            rows = t.result([*x[:axis], *index_shape, *x[axis + 1 :]], dtype)
            t.call("take", [t.input("x", x, dtype), places], [rows], axis=axis)
            yield t
    for rank, axis in ((r, a) for r in (1, 2, 3) for a in range(r)):
        t = Template(f"gather.{rank}.{axis}")
        x, dtype = shapes(t, rank, 33), t.choice("dtype", *ANY)
        y = [t.size(f"i{i}", 0, s if i != axis else 17) for i, s in enumerate(x)]
        index = {"kind": "index", "low": calc("-", 0, x[axis]), "high": calc("-", x[axis], 1)}
        operands = [t.input("x", x, dtype), t.input("index", y, t.choice("index", "int32", "int64"), **index)]
        t.call("gather", operands, [t.result(y, dtype)], axis=axis)
        yield t
    for rank in (1, 2, 3):
        t = Template(f"bitcast.{rank}")
        x = shapes(t, rank, 33)
        t.call("bitcast", [t.input("x", x, "float32")], [t.result(x, t.choice("as", "int32", "uint32", "float32"))])
        yield t
    t = Template("iota")
    dtype = t.choice("dtype", "float32", "float64", "int32", "int64")
    start, step = t.choice("start", 0, -7), t.choice("step", 1, -3)
    t.call("iota", [], [t.result([t.size("n", 0, 513)], dtype)], start=start, step=step)
    yield t


# What a scatter writes, and the types that it takes for that.
UPDATES = (("replace", ANY), *((mode, (*FLOATS, *INTEGERS, "float64")) for mode in ("add", "mul", "min", "max")))


def scatters() -> Iterator[Template]:
    """Places along an axis, places of several coordinates, and those that a mask chooses."""
    for (rank, axis), (mode, types) in itertools.product(((r, a) for r in (1, 2, 3) for a in range(r)), UPDATES):
        t = Template(f"scatter.{rank}.{axis}.{mode}")
        x, dtype = shapes(t, rank, 33), t.choice("dtype", *types)
        some = [t.size(f"i{i}", 0, s if i != axis else 17) for i, s in enumerate(x)]
        low, high = calc("-", 0, x[axis]), calc("-", x[axis], 1)
        index = t.input("index", some, t.choice("index", "int32", "int64"), kind="index", low=low, high=high)
        operands = [t.input("x", x, dtype), index, t.input("updates", some, dtype)]
        t.call("scatter", operands, [t.result(x, dtype)], axis=axis, mode=mode)
        yield t
    for depth, rest, (mode, types) in itertools.product((1, 2), (0, 1), (*UPDATES, ("gather", ANY))):
        name = "gather_nd" if mode == "gather" else "scatter_nd"
        t = Template(f"{name}.{depth}.{rest}.{mode}")
        n, dtype = t.size("n", 1, 17), t.choice("dtype", *types)
        slices = [t.size("rest", 0, 33)] * rest
        many = [t.size("many", 0, 17)]
        whole = t.input("x", [*[n] * depth, *slices], dtype)
        fill = {"kind": "index", "low": calc("-", 0, n), "high": calc("-", n, 1)}
        index = t.input("index", [*many, depth], t.choice("index", "int32", "int64"), **fill)
        if mode == "gather":
            t.call(name, [whole, index], [t.result([*many, *slices], dtype)], batch_dims=0)
        else:
            updates = t.input("updates", [*many, *slices], dtype)
            t.call(name, [whole, index, updates], [t.result([*[n] * depth, *slices], dtype)], mode=mode)
        yield t
    for rank in (1, 2, 3):
        t = Template(f"masked_scatter.{rank}")
        x, dtype = shapes(t, rank, 33), t.choice("dtype", *ANY)
        mask = t.input("mask", t.choice("shape", *broadcasts(x)), "bool")
        operands = [t.input("x", x, dtype), mask, t.input("source", [calc("*", 1, *x)], dtype)]
        t.call("masked_scatter", operands, [t.result(x, dtype)])
        yield t


FAMILIES = (elementwise, norms, group_norm, reductions, order, nonzero, sizes, movement, scatters)
