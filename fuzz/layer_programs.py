"""Templates of products, convolutions, pooling and attention: the calls that reach every way through each kernel."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from fuzz.epilogues import EPILOGUES, FLOAT, FLOATS, broadcasts, extras, f, panels, steps
from fuzz.template import Template, calc
from ingot.backends.cpu.product import ORDERS, SPLITS, STRASSEN
from ingot.backends.cpu.spatial import ALGORITHMS
from ingot.ops.fused import expr_json
from ingot.ops.mixture import gated_expression

Json = Any

# ---- products ----


def matmul_packed() -> Iterator[Template]:
    for dtype, epilogue, rank in itertools.product(FLOATS, EPILOGUES, (1, 2, 3)):
        if (rank == 1) != (epilogue == "turned" and dtype == "float32") and rank == 1:
            continue
        t = Template(f"matmul_packed.{dtype}.{epilogue}.{rank}")
        lead = [t.size(name, 0, 75 if rank == 2 else 9) for name in ("b", "m")[: rank - 1]]
        k, n = t.size("k", 0, 257), t.size("n", 1, 200)
        x = t.input("x", [*lead, k], dtype)
        w = t.weight("w", panels(n, k, dtype), dtype)
        more, expression = extras(t, epilogue, [*lead, n])
        y = t.result([*lead, n], t.choice("y_dtype", dtype, *FLOATS))
        t.call("matmul_packed", [x, w, *more], [y], n=n, k=k, parts=1, epilogue=expression)
        yield t
    for dtype in FLOATS:
        t = Template(f"matmul_packed.{dtype}.gate")
        m, k, n = t.size("m", 0, 75), t.size("k", 0, 129), t.size("n", 1, 129)
        x, w = t.input("x", [m, k], dtype), t.weight("w", panels(n, k, dtype, 2), dtype)
        y = t.result([m, n], t.choice("y_dtype", dtype, *FLOATS))
        gate = steps(f("input", 0), f("silu", 0), f("input", 1), f("mul", 1, 2))
        t.call("matmul_packed", [x, w], [y], n=n, k=k, parts=2, epilogue=gate)
        yield t
    for dtype, stored, parts in itertools.product((*FLOATS, "int8"), ("int8", "uint8"), (1, 2)):
        t = Template(f"matmul_packed.{dtype}.{stored}.{parts}")
        m, n = t.size("m", 0, 140), t.size("n", 1, 129)
        group = t.choice("group", 32, 64, 128)
        k = t.value("k", calc("*", group, t.size("groups", 1, 5))) if stored == "uint8" else t.size("k", 0, 300)
        operands = [t.input("x", [m, k], dtype), t.weight("w", panels(n, k, stored, parts), stored)]
        if stored == "uint8":
            kind = t.choice("scales_dtype", "float32", "float16")
            operands.append(t.weight("scales", panels(n, calc("//", k, group), "float32", parts), kind))
        params = {"group": group} if stored == "uint8" else {}
        expression = FLOAT if parts == 1 else steps(f("input", 0), f("silu", 0), f("input", 1), f("mul", 1, 2))
        y = t.result([m, n], t.choice("y_dtype", *FLOATS))
        t.call("matmul_packed", operands, [y], n=n, k=k, parts=parts, epilogue=expression, **params)
        yield t
    for dtype in FLOATS:  # more rows, and deeper ones, than are packed at a time
        t = Template(f"matmul_packed.{dtype}.large")
        m, k, n = t.size("m", 96, 600), t.size("k", 1, 700), t.size("n", 1, 75)
        x, w = t.input("x", [m, k], dtype), t.weight("w", panels(n, k, dtype), dtype)
        t.call("matmul_packed", [x, w], [t.result([m, n], dtype)], n=n, k=k, parts=1, epilogue=FLOAT)
        yield t
    # Samples of more pairs of rows than a pass has, and deeper ones than are packed once.
    for dtype, epilogue in itertools.product(FLOATS, EPILOGUES):
        t = Template(f"matmul_packed.strassen.{dtype}.{epilogue}")
        lead = [t.size("b", 0, 3), t.value("m", calc("*", 2, t.size("pairs", 0, 75)))]
        step = 4 if dtype == "bfloat16" else 2
        k, n = t.value("k", calc("*", step, t.size("steps", 1, 840 // step))), t.size("n", 33, 140)
        x, w = t.input("x", [*lead, k], dtype), t.weight("w", panels(n, k, dtype), dtype)
        more, expression = extras(t, epilogue, [*lead, n])
        y = t.result([*lead, n], t.choice("y_dtype", *FLOATS))
        t.call("matmul_packed", [x, w, *more], [y], n=n, k=k, parts=1, algorithm=STRASSEN, epilogue=expression)
        yield t


PLAIN_PRODUCTS = {"float64": "matmul_float64", **dict.fromkeys(("int8", "int32", "int64"), "matmul_integer")}


def matmul() -> Iterator[Template]:
    # The leading dimensions of a, b and y.
    batches: list[tuple[list[Json], list[Json], list[Json]]] = [
        ([], [], []), (["$b"], ["$b"], ["$b"]), (["$b"], [], ["$b"]), ([], ["$b"], ["$b"]),
        (["$b", 1], ["$c"], ["$b", "$c"]), (["$b", "$c"], ["$b", "$c"], ["$b", "$c"]),
        ([1, "$c"], ["$b", 1], ["$b", "$c"]),
    ]  # fmt: skip
    for dtype, (a_lead, b_lead, y_lead) in itertools.product((*FLOATS, *PLAIN_PRODUCTS), batches):
        kernel = PLAIN_PRODUCTS.get(dtype, "matmul")
        t = Template(f"{kernel}.{dtype}.{len(a_lead)}{len(b_lead)}{len(y_lead)}{'ones' * (1 in a_lead + b_lead)}")
        for name in ("b", "c")[: len(y_lead)]:
            t.size(name, 0, 5)
        m, k, n = t.size("m", 0, 75), t.size("k", 0, 129), t.size("n", 0, 129)
        a, b = t.input("a", [*a_lead, m, k], dtype), t.input("b", [*b_lead, k, n], dtype)
        if kernel == "matmul_integer":
            y_dtype = t.choice("y_dtype", "int8", "int16", "int32", "int64")
        else:
            y_dtype = dtype if dtype == "float64" else t.choice("y_dtype", "float32", dtype)
        t.call(kernel, [a, b], [t.result([*y_lead, m, n], y_dtype)])
        yield t
    for dtype in FLOATS:
        t = Template(f"matmul.split.{dtype}")
        batch, m, n = t.size("b", 0, 5), t.size("m", 0, 75), t.size("n", 0, 75)
        outer, inner = t.size("outer", 0, 5), t.size("inner", 0, 33)
        a, b = t.input("a", [batch, m, outer, inner], dtype), t.input("b", [outer, inner, n], dtype)
        y = t.result([batch, m, n], t.choice("y_dtype", "float32", dtype))
        t.call("matmul", [a, b], [y], a_split=True, b_split=True)
        yield t


def moe() -> Iterator[Template]:
    for dtype in FLOATS:
        t = Template(f"moe.{dtype}")
        rows, hidden, inner = t.size("rows", 0, 33), t.size("hidden", 1, 75), t.size("inner", 1, 75)
        experts = t.size("experts", 2, 9)
        top, normalize = t.choice("top", 1, 2), t.choice("normalize", True, False)
        x = t.input("x", [rows, hidden], dtype)
        router = t.input("router", [rows, experts])
        up = t.weight("up", panels(inner, hidden, dtype, calc("*", 2, experts)), dtype)
        down = t.weight("down", panels(hidden, inner, dtype, experts), dtype)
        gate = steps(f("input", 0), f("silu", 0), f("input", 1), f("mul", 1, 2))
        sizes = {"experts": experts, "hidden": hidden, "inner": inner, "top_k": top}
        y = t.result([rows, hidden], dtype)
        t.call("moe", [x, router, up, down], [y], normalize=normalize, expression=gate, **sizes)
        yield t
    t = Template("moe.passes")  # more rows than are worked on at a time
    rows, hidden, inner = t.size("rows", 1025, 1100), t.size("hidden", 1, 9), t.size("inner", 1, 9)
    x, router = t.input("x", [rows, hidden]), t.input("router", [rows, 3])
    up, down = (
        t.weight("up", panels(inner, hidden, "float32", 6)),
        t.weight("down", panels(hidden, inner, "float32", 3)),
    )
    passes: dict[str, Json] = {"experts": 3, "hidden": hidden, "inner": inner, "top_k": 2}
    t.call("moe", [x, router, up, down], [t.result([rows, hidden])], normalize=True, expression=gate, **passes)
    yield t
    for dtype, gates, downs in itertools.product(FLOATS, ("int8", "uint8"), ("int8", "uint8")):
        for first, second in itertools.product((False, True), repeat=2):
            yield narrow_moe(dtype, (gates, downs), (first, second), 75)
    yield narrow_moe("bfloat16", ("uint8", "uint8"), (True, True), 700)  # what zero points add is made in parts
    yield narrow_moe("float32", ("int8", "int8"), (True, True), 700)


def narrow_moe(dtype: str, kinds: tuple[str, str], zeros: tuple[bool, bool], most: int) -> Template:
    """Weights of int8, or of 4 bits, whose inputs groups divide."""
    t = Template(f"moe.{dtype}.{'.'.join(kinds)}.{'.'.join('zeros' if z else 'none' for z in zeros)}.{most}")
    rows, experts, top = t.size("rows", 0, most), t.size("experts", 2, 5), t.choice("top", 1, 2)
    groups = [t.choice(f"g{i}", 32, 64, 128) for i in range(2)]
    widths = [
        t.value(f"k{i}", calc("*", groups[i], t.size(f"n{i}", 1, 3))) if kind == "uint8" else t.size(f"k{i}", 1, 300)
        for i, kind in enumerate(kinds)
    ]
    hidden, inner = widths
    operands = [t.input("x", [rows, hidden], dtype), t.input("router", [rows, experts])]
    params: dict[str, Json] = {"experts": experts, "hidden": hidden, "inner": inner, "top_k": top, "normalize": True}
    sets = (("gate_up", inner, hidden, 2), ("down", hidden, inner, 1))
    for (name, n, k, parts), kind, group, has in zip(sets, kinds, groups, zeros, strict=True):
        count = calc("*", parts, experts)
        operands.append(t.weight(name, panels(n, k, kind, count), kind))
        of_group = calc("//", k, group) if kind == "uint8" else 1
        if kind == "uint8":
            params[f"{name}_group"] = group
            scales = t.choice(f"{name}_dtype", "float32", "float16")
            operands.append(t.weight(f"{name}_scales", panels(n, of_group, "float32", count), scales))
        else:
            operands.append(t.weight(f"{name}_scales", [calc("*", count, n)], "float32"))
        if has:
            params[f"{name}_zeros"] = True
            operands.append(t.weight(f"{name}_zeros", panels(n, of_group, "float32", count), "float32"))
    expression = expr_json(gated_expression("silu", kinds[0] == "int8", zeros[0]))
    t.call("moe", operands, [t.result([rows, hidden], dtype)], expression=expression, **params)
    return t


# ---- windows ----


def window(t: Template, axes: int, most: int, pad: bool = True) -> tuple[list[Json], list[Json], dict[str, Json]]:
    """Sizes of x and y, and the parameters that both kinds of windows share."""
    x = [t.size(f"s{i}", 0 if i else 1, most) for i in range(axes)]
    kernel = [t.choice(f"k{i}", 3, 1, 2, 4, 5) for i in range(axes)]
    stride = [t.choice(f"t{i}", 1, 2, 3) for i in range(axes)]
    dilation = [t.choice(f"d{i}", 1, 1, 2, 3) for i in range(axes)]
    before = [t.choice(f"p{i}", 1, 0, 2, 5) if pad else 0 for i in range(axes)]
    y = []
    for i in range(axes):
        reach = calc("+", calc("*", dilation[i], calc("-", kernel[i], 1)), 1)
        fits = calc("+", calc("//", calc("-", calc("+", x[i], calc("*", 2, before[i])), reach), stride[i]), 1)
        exactly, fewer = calc("max", fits, 0), calc("max", calc("-", fits, 1), 0)
        y.append(t.choice(f"o{i}", exactly, exactly, fewer, 1, 3, 17))
    return x, y, {"kernel": kernel, "stride": stride, "dilation": dilation, "pre_padding": before}


MOST = {1: 75, 2: 17, 3: 7}


def conv_packed() -> Iterator[Template]:
    for dtype, axes, epilogue in itertools.product(FLOATS, (1, 2, 3), EPILOGUES):
        if (axes != 2) != (epilogue in ("bias", "plain")) and axes != 2:
            continue
        t = Template(f"conv_packed.{dtype}.{axes}d.{epilogue}")
        images, groups = t.size("images", 0, 3), t.choice("groups", 1, 1, 2, 3)
        channels, outputs = (calc("*", t.size(f"{name}_each", 1, 48), groups) for name in ("c", "n"))
        channels, outputs = t.value("c", channels), t.value("n", outputs)
        sx, sy, params = window(t, axes, MOST[axes])
        x = t.input("x", [images, *sx, channels], dtype)
        taps = calc("*", *params["kernel"], "$c_each")
        w = t.weight("w", panels("$n_each", taps, dtype, groups), dtype)
        more, expression = extras(t, epilogue, [images, *sy, outputs])
        y = t.result([images, *sy, outputs], t.choice("y_dtype", dtype, *FLOATS))
        params |= {"outputs": outputs, "channels": channels, "groups": groups}
        t.call("conv_packed", [x, w, *more], [y], epilogue=expression, **params)
        yield t
    for dtype, epilogue in itertools.product(FLOATS, ("plain", "bias", "residual", "integer")):  # by Winograd
        t = Template(f"conv_packed.winograd.{dtype}.{epilogue}")
        images, channels, outputs = t.size("images", 1, 2), t.size("c", 16, 64), t.size("n", 16, 64)
        height, width, pad = t.size("h", 4, 24), t.size("w", 4, 24), t.choice("pad", 1, 0, 2)
        size = [calc("+", calc("-", s, 2), calc("*", 2, pad)) for s in (height, width)]
        x = t.input("x", [images, height, width, channels], dtype)
        w = t.weight("w", panels(outputs, calc("*", 9, channels), dtype), dtype)
        more, expression = extras(t, epilogue, [images, *size, outputs])
        y = t.result([images, *size, outputs], t.choice("y_dtype", *FLOATS))
        t.call("conv_packed", [x, w, *more], [y], outputs=outputs, channels=channels, groups=1, epilogue=expression,
               kernel=[3, 3], stride=[1, 1], dilation=[1, 1], pre_padding=[pad, pad])  # fmt: skip
        yield t


def measured() -> Iterator[Template]:
    """What a build chooses by measurement: algorithms of convolutions, orders of loops and what is dealt to threads."""
    for dtype, axes in itertools.product((*FLOATS, "int8"), (1, 2)):
        t = Template(f"conv_packed.measured.{dtype}.{axes}d")
        images, groups = t.size("images", 0, 2), t.choice("groups", 1, 1, 2)
        channels, outputs = (calc("*", t.size(f"{name}_each", 1, 72), groups) for name in ("c", "n"))
        channels, outputs = t.value("c", channels), t.value("n", outputs)
        sx, sy, params = window(t, axes, MOST[axes])
        w = panels("$n_each", calc("*", *params["kernel"], "$c_each"), dtype, groups)
        operands = [t.input("x", [images, *sx, channels], dtype), t.weight("w", w, dtype)]
        y = t.result([images, *sy, outputs], t.choice("y_dtype", *FLOATS))
        params |= {"outputs": outputs, "channels": channels, "groups": groups, **loops(t)}
        t.call("conv_packed", operands, [y], epilogue=FLOAT, **params, algorithm=t.choice("algorithm", *ALGORITHMS))
        yield t
    for dtype in (*FLOATS, "int8"):
        t = Template(f"conv_packed.measured.{dtype}.square")
        images, channels, outputs = t.size("images", 0, 2), t.size("c", 1, 64), t.size("n", 1, 64)
        height, width, pad = t.size("h", 2, 24), t.size("w", 2, 24), t.choice("pad", 1, 2)
        size = [calc("+", calc("-", s, 2), calc("*", 2, pad)) for s in (height, width)]
        x = t.input("x", [images, height, width, channels], dtype)
        operands = [x, t.weight("w", panels(outputs, calc("*", 9, channels), dtype), dtype)]
        y = t.result([images, *size, outputs], t.choice("y_dtype", *FLOATS))
        t.call("conv_packed", operands, [y], outputs=outputs, channels=channels, groups=1, epilogue=FLOAT,
               kernel=[3, 3], stride=[1, 1], dilation=[1, 1], pre_padding=[pad, pad], **loops(t),
               algorithm=t.choice("algorithm", *ALGORITHMS))  # fmt: skip
        yield t
        t = Template(f"matmul_packed.measured.{dtype}")
        m, k, n = t.size("m", 0, 600), t.size("k", 0, 700), t.size("n", 1, 100)
        operands = [t.input("x", [m, k], dtype), t.weight("w", panels(n, k, dtype), dtype)]
        y = t.result([m, n], t.choice("y_dtype", *FLOATS))
        t.call("matmul_packed", operands, [y], n=n, k=k, parts=1, epilogue=FLOAT, **loops(t))
        yield t


def loops(t: Template) -> dict[str, Json]:
    return {"order": t.choice("order", *ORDERS), "split": t.choice("split", *SPLITS)}


def conv_lines() -> Iterator[Template]:
    """Taps along one axis, by Winograd or as the rules say."""
    shapes = (("down", "across"), FLOATS, ("plain", "bias", "residual", "integer"))
    for (axis, dtype, epilogue), algorithm in itertools.product(itertools.product(*shapes), ("rules", "winograd_4")):
        t = Template(f"conv_packed.lines.{axis}.{dtype}.{epilogue}.{algorithm}")
        images, channels, outputs = t.size("images", 0, 2), t.size("c", 1, 64), t.size("n", 1, 64)
        along, across = t.size("along", 24, 60), t.size("across", 0, 20)
        taps, step = t.choice("taps", 9, 3, 4, 5, 7, 11, 21), t.choice("step", 1, 2)
        pad, beside = t.choice("pad", 4, 0, 1, 9), t.choice("beside", 0, 0, 1)
        count = calc("+", calc("//", calc("-", calc("+", along, calc("*", 2, pad)), taps), step), 1)
        pairs = [(along, across), (count, calc("+", across, calc("*", 2, beside))), (taps, 1), (step, 1), (pad, beside)]
        size, result, kernel, stride, before = ([a, b] if axis == "down" else [b, a] for a, b in pairs)
        x = t.input("x", [images, *size, channels], dtype)
        w = t.weight("w", panels(outputs, calc("*", taps, channels), dtype), dtype)
        more, expression = extras(t, epilogue, [images, *result, outputs])
        y = t.result([images, *result, outputs], t.choice("y_dtype", *FLOATS))
        chosen: dict[str, Json] = {} if algorithm == "rules" else {"algorithm": algorithm}
        t.call("conv_packed", [x, w, *more], [y], outputs=outputs, channels=channels, groups=1, epilogue=expression,
               kernel=kernel, stride=stride, dilation=[1, 1], pre_padding=before, **chosen)  # fmt: skip
        yield t


def conv_narrow() -> Iterator[Template]:
    """Few outputs, whose vectors lie along the patches."""
    for dtype, axes, epilogue in itertools.product(FLOATS, (1, 2, 3), ("plain", "bias", "integer")):
        t = Template(f"conv_packed.narrow.{dtype}.{axes}d.{epilogue}")
        images, channels, outputs = t.size("images", 0, 3), t.size("c", 16, 80), t.size("n", 1, 8)
        sx, sy, params = window(t, axes, MOST[axes])
        x = t.input("x", [images, *sx, channels], dtype)
        w = t.weight("w", panels(outputs, calc("*", *params["kernel"], channels), dtype), dtype)
        more, expression = extras(t, epilogue, [images, *sy, outputs])
        y = t.result([images, *sy, outputs], t.choice("y_dtype", *FLOATS))
        params |= {"outputs": outputs, "channels": channels, "groups": 1}
        t.call("conv_packed", [x, w, *more], [y], epilogue=expression, **params)
        yield t


def conv_groups() -> Iterator[Template]:
    """Groups of few channels, of which a vector holds several."""
    dtypes, epilogues = ("float32", "bfloat16", "int8"), ("plain", "bias", "integer")
    for dtype, axes, epilogue in itertools.product(dtypes, (1, 2, 3), epilogues):
        t = Template(f"conv_packed.groups.{dtype}.{axes}d.{epilogue}")
        images, groups = t.size("images", 0, 3), t.size("groups", 2, 40)
        c, n = t.choice("c_each", 4, 8, 16), t.choice("n_each", 4, 8, 16)
        channels, outputs = t.value("c", calc("*", c, groups)), t.value("n", calc("*", n, groups))
        sx, sy, params = window(t, axes, MOST[axes])
        x = t.input("x", [images, *sx, channels], dtype)
        w = t.weight("w", panels("$n_each", calc("*", *params["kernel"], "$c_each"), dtype, groups), dtype)
        more, expression = extras(t, epilogue, [images, *sy, outputs])
        y = t.result([images, *sy, outputs], t.choice("y_dtype", *FLOATS))
        params |= {"outputs": outputs, "channels": channels, "groups": groups}
        params |= {"outside": t.choice("outside", 0, -128, 5)} if dtype == "int8" else {}
        t.call("conv_packed", [x, w, *more], [y], epilogue=expression, **params)
        yield t


def taps_of_phase(kernel: int, stride: int, dilation: int, before: int, phase: int) -> int:
    return sum((tap * dilation - before - phase) % stride == 0 for tap in range(kernel))


def conv_transpose_packed() -> Iterator[Template]:
    configurations = [([3], [2], [1], [1]), ([2, 2], [2, 2], [1, 1], [0, 0]), ([4, 3], [2, 1], [1, 2], [1, 2]),
                      ([3, 3], [3, 2], [2, 1], [-1, 1]), ([2, 1, 3], [1, 2, 2], [1, 1, 1], [0, 1, -2])]  # fmt: skip
    for dtype, (number, (kernel, stride, dilation, before)), epilogue in itertools.product(
        FLOATS, enumerate(configurations), ("plain", "bias", "integer")
    ):
        axes = len(kernel)
        t = Template(f"conv_transpose_packed.{dtype}.{number}.{epilogue}")
        images, groups = t.size("images", 0, 3), t.choice("groups", 1, 1, 2)
        c, n = t.size("c_each", 1, 33), t.size("n_each", 1, 48)
        channels, outputs = t.value("c", calc("*", c, groups)), t.value("n", calc("*", n, groups))
        sx = [t.size(f"s{i}", 1, MOST[axes]) for i in range(axes)]
        sy = []
        for i in range(axes):
            full = calc("+", calc("*", calc("-", sx[i], 1), stride[i]), dilation[i] * (kernel[i] - 1) + 1 - before[i])
            sy.append(t.choice(f"o{i}", calc("max", full, 0), calc("max", calc("-", full, 1), 0), 2, 9))
        operands = [t.input("x", [images, *sx, channels], dtype)]
        for phase in itertools.product(*(range(s) for s in stride)):
            taps = math.prod(taps_of_phase(*one) for one in zip(kernel, stride, dilation, before, phase, strict=True))
            if taps > 0:
                shape = panels(n, calc("*", taps, c), dtype, groups)
                operands.append(t.weight(f"w{len(operands)}", shape, dtype))
        more, expression = extras(t, epilogue, [images, *sy, outputs])
        y = t.result([images, *sy, outputs], t.choice("y_dtype", dtype, *FLOATS))
        t.call("conv_transpose_packed", [*operands, *more], [y], outputs=outputs, channels=channels, groups=groups,
               epilogue=expression, kernel=kernel, stride=stride, dilation=dilation, pre_padding=before)  # fmt: skip
        yield t


def conv_depthwise() -> Iterator[Template]:
    for dtype, axes, epilogue in itertools.product(FLOATS, (1, 2, 3), EPILOGUES):
        t = Template(f"conv_depthwise.{dtype}.{axes}d.{epilogue}")
        images, channels = t.size("images", 0, 3), t.size("c", 1, 75)
        sx, sy, params = window(t, axes, MOST[axes])
        x = t.input("x", [images, *sx, channels], dtype)
        w = (t.weight if axes == 2 else t.input)("w", [calc("*", 1, *params["kernel"]), channels], dtype)
        more, expression = extras(t, epilogue, [images, *sy, channels])
        y = t.result([images, *sy, channels], t.choice("y_dtype", dtype, *FLOATS))
        t.call("conv_depthwise", [x, w, *more], [y], epilogue=expression, **params)
        yield t


def pools() -> Iterator[Template]:
    for kind, axes in itertools.product(("avg_pool", "max_pool"), (1, 2, 3)):
        t = Template(f"{kind}.{axes}d")
        images, channels, dtype = t.size("images", 0, 3), t.size("c", 1, 129), t.choice("dtype", *FLOATS)
        sx, sy, params = window(t, axes, MOST[axes])
        if kind == "avg_pool":
            del params["dilation"]
            for var in t.vars:
                if var["name"] in {f"d{i}" for i in range(axes)}:
                    var["choices"] = [1]
            params |= {"post_padding": [t.choice(f"after{i}", 1, 0, 3) for i in range(axes)]}
            params |= {"count_include_pad": t.choice("count", True, False), "divisor": t.choice("divisor", 0, 0, 3)}
        x = t.input("x", [images, *sx, channels], dtype)
        t.call(kind, [x], [t.result([images, *sy, channels], dtype)], **params)
        yield t


def resampled() -> Iterator[Template]:
    for kind, axes in itertools.product(("adaptive_pool", "resize", "grid_sample"), (1, 2, 3)):
        if (kind, axes) == ("grid_sample", 1):
            continue
        t = Template(f"{kind}.{axes}d")
        images, channels, dtype = t.size("images", 0, 3), t.size("c", 1, 129), t.choice("dtype", *FLOATS)
        sx = [t.size(f"x{i}", 1, 9) for i in range(axes)]
        sy = [t.size(f"y{i}", 1, 9) for i in range(axes)]
        operands, params = [t.input("x", [images, *sx, channels], dtype)], {}
        if kind == "adaptive_pool":
            params["kind"] = t.choice("kind", "average", "greatest")
        else:
            least, most = (("nearest", "linear"), ("cubic",)) if kind == "grid_sample" else (
                ("nearest", "nearest_exact", "linear"), ("cubic",))  # fmt: skip
            params["mode"] = t.choice("mode", *least, *(most if axes == 2 else ()))
            params["align_corners"] = t.choice("corners", True, False)
        if kind == "grid_sample":
            params["beyond"] = t.choice("beyond", "zeros", "border", "reflection")
            operands.append(t.input("grid", [images, *sy, axes], "float32"))
        t.call(kind, operands, [t.result([images, *sy, channels], dtype)], **params)
        yield t


# ---- attention ----


def rope() -> Iterator[Template]:
    t = Template("rope_table")
    rows, half = t.size("rows", 0, 75), t.size("half", 0, 75)
    positions = t.input("positions", [rows], "int32", kind="index", low=-5, high=100000)
    y = [t.result([rows, half]), t.result([rows, half])]
    t.call("rope_table", [positions, t.input("freq", [half])], y, scale=t.choice("scale", 1.0, 0.25))
    yield t
    for style in ("half", "interleaved"):
        t = Template(f"rope.{style}")
        rows, heads, half = t.size("rows", 0, 33), t.size("heads", 0, 5), t.size("half", 1, 64)
        width = t.value("width", calc("+", calc("*", 2, half), t.choice("rest", 0, 0, 6)))
        dtype = t.choice("dtype", *FLOATS)
        x, cos, sin = (
            t.input("x", [rows, heads, width], dtype),
            t.input("cos", [rows, half]),
            t.input("sin", [rows, half]),
        )
        t.call("rope", [x, cos, sin], [t.result([rows, heads, width], dtype)], style=style)
        yield t


def paged() -> Iterator[Template]:
    kernels, styles = ("kv_write", "rope_kv_write", "paged_attention"), ("half", "interleaved")
    for state_dtype, kernel, style in itertools.product((*FLOATS, "int8"), kernels, styles):
        t = Template(f"{kernel}.{state_dtype}.{style}")
        rows, requests, blocks = t.size("rows", 0, 33), t.size("requests", 0, 5), t.size("blocks", 1, 6)
        table_width, block_size = t.size("table_width", 1, 33), t.choice("block_size", 16, 32, 48)
        kv_heads, group = t.choice("kv_heads", 1, 2, 3), t.choice("group", 1, 2, 4)
        half = t.choice("half", 8, 1, 5, 16, 32, 33)
        head_dim, heads = t.value("head_dim", calc("*", 2, half)), t.value("heads", calc("*", kv_heads, group))
        dtype, key_dtype = t.choice("dtype", *FLOATS), t.choice("key_dtype", *FLOATS)
        t.cache = {"blocks": blocks, "block_size": block_size}
        q = t.input("q", [rows, heads, head_dim], dtype)
        written = dtype if kernel == "rope_kv_write" else key_dtype
        k, v = (t.input(name, [rows, kv_heads, head_dim], written) for name in "kv")
        slot = t.input("slot", [rows], "int32", kind="slots", limit=calc("*", blocks, block_size))
        start = t.input("start", [calc("+", requests, 1)], "int32", kind="starts", rows=rows)
        most = calc("*", table_width, block_size)
        context = t.input("context", [requests], "int32", kind="contexts", starts="start", most=most)
        table = t.input("table", [requests, table_width], "int32", kind="index", low=0, high=calc("-", blocks, 1))
        state = t.state(kv_heads, head_dim, state_dtype)
        if kernel == "rope_kv_write":
            rotated = half if style == "half" else t.choice("rotated", half, calc("max", calc("-", half, 1), 1))
            cos, sin = (t.input(name, [rows, rotated]) for name in ("cos", "sin"))
            turned = t.result([rows, heads, head_dim], dtype)
            t.call("rope_kv_write", [q, k, v, cos, sin, slot, state], [turned], style=style)
        else:
            t.call("kv_write", [state, k, v, slot], [])
        operands = [q, state, start, context, table]
        if style == "half" and kernel == "paged_attention":
            operands.append(t.input("slopes", [heads]))
        window, softcap = t.choice("window", None, 1, 4, 20), t.choice("softcap", None, 2.0)
        y = t.result([rows, heads, head_dim], t.choice("y_dtype", dtype, *FLOATS))
        t.call("paged_attention", operands, [y], scale=t.choice("scale", 0.25, 1.0), window=window, softcap=softcap)
        yield t


def attention() -> Iterator[Template]:
    for dtype, mask, rank, inside in itertools.product(FLOATS, ("none", "bool", "float"), (2, 3, 4), (False, True)):
        if rank == 2 and inside:
            continue
        t = Template(f"attention.{dtype}.{mask}.{rank}.{inside}")
        rows, keys = t.size("rows", 0, 75), t.size("keys", 0, 129)
        width, value_width = t.size("width", 1, 75), t.size("value_width", 0, 75)
        kv_heads, group, batch = t.choice("kv_heads", 1, 2, 3), t.choice("group", 1, 1, 2), t.size("batch", 0, 3)
        heads = t.value("heads", calc("*", kv_heads, group))
        kv_batch = t.choice("kv_batch", batch, batch, 1)
        q_lead, kv_lead = [batch, heads][4 - rank :], [kv_batch, kv_heads][4 - rank :]
        q = t.input("q", [*q_lead, rows, width], dtype)
        k, v = t.input("k", [*kv_lead, keys, width], dtype), t.input("v", [*kv_lead, keys, value_width], dtype)
        operands = [q, k, v]
        if mask != "none":
            shape = t.choice("mask_shape", *broadcasts([*q_lead, rows, keys]))
            operands.append(t.input("mask", shape, "bool" if mask == "bool" else t.choice("mask_dtype", *FLOATS)))
        y = [*q_lead[:-1], rows, heads, value_width] if inside else [*q_lead, rows, value_width]
        params = {"scale": t.choice("scale", 0.25, 1.0), "causal": t.choice("causal", False, True)}
        params["empty_rows"] = t.choice("empty_rows", "zero", "nan")
        t.call("attention", operands, [t.result(y, dtype)], heads_inside=inside, mask=mask, **params)
        yield t


def images() -> Iterator[Template]:
    """Calls that treat the images of a batch apart, which workers may take through all of them by themselves."""
    for dtype in FLOATS:
        t = Template(f"matmul_packed.{dtype}.images")
        n, m, k, c = t.size("n", 0, 9), t.size("m", 1, 40), t.size("k", 1, 40), t.size("c", 1, 40)
        area = t.value("area", calc("*", m, c))
        rows, heads = [n, m, c], [n, 1, m, c]
        x, w = t.input("x", [n, m, k], dtype), t.weight("w", panels(c, k, dtype), dtype)
        y, normed, mixed, likely = t.temp(rows, dtype), t.temp(rows, dtype), t.temp(heads, dtype), t.temp(heads, dtype)
        t.call("matmul_packed", [x, w], [y], n=c, k=k, parts=1, epilogue=FLOAT)
        t.call("layer_norm", [y], [normed], eps=1e-5, weight=False, bias=False)
        q = t.view(normed, heads, [area, area, c, 1])
        t.call("attention", [q, q, q], [mixed], scale=0.25, causal=False, heads_inside=False, mask="none")
        t.call("softmax", [mixed], [likely], axis=-1)
        flat = t.view(likely, rows, [area, c, 1])
        t.call("quantize_rows", [flat], [t.result(rows, "int8"), t.result([n, m, 1], "float32")])
        both = steps(f("input", 0), f("input", 1), f("add", 0, 1))
        t.call("elementwise", [y, flat], [t.result(rows, dtype)], expression=both)
        yield t


# ---- recurrent layers ----


def recurrent() -> Iterator[Template]:
    """Layers by rows and by units, of weights in panels, of int8 too, and as they are."""
    stored = ((False, False), (True, False), (True, True))
    for kernel, dtype, (packed, scaled) in itertools.product(("lstm", "gru", "rnn"), FLOATS, stored):
        for more in itertools.product((False, True), repeat=2 if kernel == "lstm" else 1):
            t = Template(f"{kernel}.{dtype}.{packed}.{scaled}.{'.'.join(map(str, more))}")
            gates, projects = {"lstm": 4, "gru": 3, "rnn": 1}[kernel], len(more) > 1 and more[1]
            steps, rows, units = t.size("steps", 0, 9), t.size("rows", 0, 75), t.size("units", 1, 75)
            width = t.size("width", 1, 75) if projects else units
            inputs = calc("*", gates, units)

            def weight(name: str, groups: int, outputs: Json, k: Json, kind: str) -> int:
                if packed:  # noqa: B023  called in the loop's body
                    return t.weight(name, panels(outputs, k, kind, groups), kind)  # noqa: B023
                return t.input(name, [calc("*", groups, outputs), k], kind)  # noqa: B023

            kind = "int8" if scaled else dtype
            operands = [t.input("gates", [steps, rows, inputs], dtype), weight("w", gates, units, width, kind)]
            operands += [t.input("scales", [inputs], "float32")] if scaled else []
            operands += [t.input("h0", [rows, width], dtype)]
            operands += [t.input("c0", [rows, units], dtype)] if kernel == "lstm" else []
            operands += [t.input("bias", [inputs], dtype)]
            if more[0]:
                index = t.choice("index", "int32", "int64")
                operands.append(t.input("lengths", [rows], index, kind="index", low=0, high=steps))
            operands += [weight("projection", 1, width, units, dtype)] if projects else []
            results = [t.result([steps, rows, width], dtype), t.result([rows, width], dtype)]
            params: Json = {"reverse": t.choice("reverse", False, True), "packed": packed, "lengths": more[0]}
            if scaled:
                params["scales"] = True
            if kernel == "lstm":
                results.append(t.result([rows, units], dtype))
                params["projection"] = projects
            if kernel == "gru":
                params["reset_after"] = t.choice("reset_after", False, True)
            if kernel == "rnn":
                params["activation"] = t.choice("activation", "tanh", "relu")
            t.call(kernel, operands, results, **params)
            yield t


def selective_scan() -> Iterator[Template]:
    """Of one type, and with states in float32."""
    for dtype, wide in itertools.product(FLOATS, (False, True)):
        t = Template(f"selective_scan.{dtype}.{wide}")
        rows, steps, groups = t.size("rows", 0, 3), t.size("steps", 0, 9), t.choice("groups", 1, 1, 2, 3)
        channels, states = t.value("channels", calc("*", groups, t.size("each", 1, 35))), t.size("states", 0, 9)
        kept = "float32" if wide else dtype
        operands = [t.input(name, [rows, steps, channels], dtype) for name in ("x", "delta")]
        operands.append(t.input("a", [channels, states], kept))
        operands += [t.input(name, [rows, steps, groups, states], dtype) for name in ("b", "c")]
        operands += [t.input("skip", [channels], kept), t.input("h0", [rows, channels, states], kept)]
        results = [t.result([rows, steps, channels], dtype), t.result([rows, channels, states], kept)]
        t.call("selective_scan", operands, results)
        yield t


def fourier() -> Iterator[Template]:
    """Along each axis, there and back, of lengths with small factors and of primes."""
    for dtype, axis in itertools.product(FLOATS, (0, 1)):
        for kernel in ("fft", "rfft", "irfft"):
            t = Template(f"{kernel}.{dtype}.{axis}")
            n, rows, norm = t.size("n", 1, 80), t.size("rows", 0, 40), t.choice("norm", "backward", "ortho", "forward")
            half = t.value("half", calc("+", calc("//", n, 2), 1))

            def shape(size: Json, *pair: int) -> list[Json]:
                return [*([size, rows] if axis == 0 else [rows, size]), *pair]  # noqa: B023  called in the loop's body

            more: dict[str, Json] = {}
            if kernel == "fft":
                x, y, more = shape(n, 2), shape(n, 2), {"inverse": t.choice("inverse", False, True)}
            elif kernel == "rfft":
                x, y, more = shape(n), shape(half, 2), {"onesided": True}
            else:
                x, y = shape(t.choice("given", half, half, 1, 45), 2), shape(n)
            t.call(kernel, [t.input("x", x, dtype)], [t.result(y, dtype)], axis=axis, norm=norm, **more)
            yield t


FAMILIES = (
    matmul_packed,
    matmul,
    moe,
    conv_packed,
    measured,
    conv_lines,
    conv_narrow,
    conv_groups,
    conv_transpose_packed,
    conv_depthwise,
    pools,
    resampled,
    rope,
    paged,
    attention,
    images,
    recurrent,
    selective_scan,
    fourier,
)
