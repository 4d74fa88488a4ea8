"""Small calls of every kernel. The tests of strides lay their operands and results out in every way."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.backends.cpu.product import ORDERS, SPLITS
from ingot.ops.fused import REQUANTISED, expr_json
from ingot.ops.mixture import gated_expression
from ingot.ops.panels import pack_panels
from tests.kernels.support import Array

F32, BF16, F16 = np.dtype(np.float32), dtypes.bfloat16.numpy, np.dtype(np.float16)
I8 = np.dtype(np.int8)
STATE = "state"
ORDERS_AND_SPLITS = [("order", order) for order in ORDERS] + [("split", split) for split in SPLITS]
SUM = [["input", "float32", 0], ["input", "float32", 1], ["add", "float32", 0, 1]]
# (value + a per-column operand) * an operand as large as the result + a number per row, at least 0.
EPILOGUE = {
    "steps": [
        *SUM, ["input", "float32", 2], ["mul", "float32", 2, 3], ["input", "float32", 3], ["add", "float32", 4, 5],
        ["const", "float32", 0.0], ["max", "float32", 6, 7],
    ],
    "outputs": [8],
}  # fmt: skip
IDENTITY = {"steps": [["input", "float32", 0]], "outputs": [0]}
BIAS = {"steps": SUM, "outputs": [2]}


def random(dtype: Any, *shape: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def integers(high: int, *shape: int, dtype: Any = np.int32, seed: int = 0) -> Array:
    return np.random.default_rng(seed).integers(0, high, shape).astype(dtype)


def extras(*shape: int, dtype: Any = F32) -> list[Array]:
    """The operands of EPILOGUE for a result of this shape."""
    return [random(dtype, shape[-1], seed=5), random(dtype, *shape, seed=6), random(dtype, *shape[:-1], 1, seed=7)]


@dataclass(frozen=True)
class Call:
    """A call; an operand is an array, the state, or the number of an earlier call's first result."""

    kernel: str
    operands: Sequence[Array | str | int]
    results: Sequence[tuple[Any, tuple[int, ...]]]
    params: dict[str, Any] = field(default_factory=dict)
    weights: tuple[int, ...] = ()  # the operands that are stored in the engine


Case = Sequence[Call]


def packed(n: int, k: int, dtype: Any) -> Array:
    return pack_panels([random(F32, n, k, seed=1).astype(dtype)])


def linear(dtype: Any, rows: tuple[int, ...], n: int, k: int, epilogue: Any, more: Sequence[Array] = ()) -> Case:
    params = {"n": n, "k": k, "parts": 1, "epilogue": epilogue}
    made = F32 if dtype is I8 else dtype
    return [Call("matmul_packed", [random(dtype, *rows, k), packed(n, k, dtype), *more], [(made, (*rows, n))], params)]


def convolution(dtype: Any, n: int, c: int, kernel: int, pad: int, stored: bool = False, groups: int = 1) -> Case:
    y = (2, 9, 11, n)
    params = {
        "outputs": n, "channels": c, "groups": groups, "kernel": [kernel] * 2, "stride": [1, 1],
        "pre_padding": [pad] * 2, "dilation": [1, 1], "epilogue": EPILOGUE,
    }  # fmt: skip
    size = (2, 9 + kernel - 1 - 2 * pad, 11 + kernel - 1 - 2 * pad, c)
    panels = np.concatenate([packed(n // groups, kernel**2 * c // groups, dtype) for _ in range(groups)])
    made = F32 if dtype is I8 else dtype
    operands = [random(dtype, *size), panels, *extras(*y, dtype=made)]
    return [Call("conv_packed", operands, [(made, y)], params, (1,) if stored else ())]


def attention_step(fused: bool) -> Case:
    """Two requests of 3 and 2 tokens written to the cache and attended to."""
    q, k, v = random(F32, 5, 4, 16), random(F32, 5, 2, 16, seed=1), random(F32, 5, 2, 16, seed=2)
    slot = np.array([32, 33, 34, 1, 2], np.int32)
    start, context = np.array([0, 3, 5], np.int32), np.array([3, 2], np.int32)
    table = np.array([[2, 0], [0, 1]], np.int32)
    after = {"scale": 0.25, "window": None, "softcap": None}
    slopes = random(F32, 4, seed=9)
    if fused:
        cos, sin = random(F32, 5, 8, seed=3), random(F32, 5, 8, seed=4)
        write = Call("rope_kv_write", [q, k, v, cos, sin, slot, STATE], [(F32, q.shape)], {"style": "half"})
        return [write, Call("paged_attention", [0, STATE, start, context, table, slopes], [(F32, q.shape)], after)]
    table[0, 0], slot[2] = 2, 34
    write = Call("kv_write", [STATE, k, v, slot], [])
    return [write, Call("paged_attention", [q, STATE, start, context, table, slopes], [(F32, q.shape)], after)]


def recurrent(dtype: Any) -> Iterator[tuple[str, Case]]:
    """Layers of 35 units, and an LSTM with a projection to 20, of weights in panels, of int8 too, and as they are."""
    forms = (("lstm", 4, {}), ("gru", 3, {}), ("gru", 3, {"reset_after": False}), ("rnn", 1, {"activation": "tanh"}))
    for kernel, gates, more in forms:
        for packed, scaled in ((False, False), (True, False), (True, True)):
            width, lengths = 20 if kernel == "lstm" else 35, np.array([6, 0, 4], np.int32)
            weight, projection = random(F32, gates, 35, width, seed=1), random(dtype, width, 35, seed=2)
            rows = weight.astype(dtype).reshape(-1, width)
            if packed:
                stored = I8 if scaled else dtype
                padded = np.zeros((gates, 64, width), stored)
                padded[:, :35] = (20 * weight if scaled else weight).astype(stored)
                rows, projection = (pack_panels([w]) for w in (padded.reshape(-1, width), projection))
            scales = [abs(random(F32, gates * 35, seed=6)) / 20] if scaled else []
            operands = [random(dtype, 6, 3, gates * 35), rows, *scales, random(dtype, 3, width, seed=3)]
            operands += [random(dtype, 3, 35, seed=4)] if kernel == "lstm" else []
            operands += [random(dtype, gates * 35, seed=5), lengths]
            results = [(dtype, (6, 3, width)), (dtype, (3, width))]
            params = {**more, "reverse": packed, "packed": packed, "lengths": True}
            params |= {"scales": True} if scaled else {}
            if kernel == "lstm":
                operands, results = [*operands, projection], [*results, (dtype, (3, 35))]
                params["projection"] = True
            yield f"{kernel} {dtype.name} {packed} {scaled} {more}", [Call(kernel, operands, results, params)]


def window(**changes: Any) -> dict[str, Any]:
    return {"kernel": [3, 3], "stride": [2, 1], "pre_padding": [1, 1], **changes}


def of_float64_and_whole_numbers() -> Iterator[tuple[str, Case]]:
    """Products, reductions and argmax of the types that few kernels take."""
    wide = [random(np.float64, 3, 7, 33), random(np.float64, 3, 33, 70)]
    yield "matmul_float64", [Call("matmul_float64", wide, [(np.float64, (3, 7, 70))])]
    for kind in (np.int8, np.int32, np.int64):
        whole = [(50 * x).astype(kind) for x in wide]
        for out in (np.int8, np.int16, np.int32, np.int64):
            yield f"matmul_integer {kind.__name__} {out.__name__}", [Call("matmul_integer", whole, [(out, (3, 7, 70))])]
    yield "argmax float64", [Call("argmax", wide[1:], [(np.int64, (3, 33))], {"axis": 2})]
    for axes, kept in (([1], (3, 70)), ([2], (3, 33)), ([0, 2], (33,))):
        total = {"op": "sum", "axes": axes, "keepdims": False}
        yield f"reduce float64 {axes}", [Call("reduce", wide[1:], [(np.float64, kept)], total)]


def of_int8() -> Iterator[tuple[str, Case]]:
    """Products and convolutions of int8, to floats and to int8."""
    yield "matmul_packed int8", linear(I8, (2, 9), 75, 21, EPILOGUE, extras(2, 9, 75, dtype=F32))
    words = [integers(256, 3, 8, 32, 4, dtype=np.uint8), random(F32, 3, 2, 32, seed=1)]
    four = {"n": 75, "k": 64, "parts": 1, "group": 32, "epilogue": EPILOGUE}
    operands = [random(I8, 2, 9, 64), *words, *extras(2, 9, 75, dtype=F32)]
    yield "matmul_packed int8 by 4 bits", [Call("matmul_packed", operands, [(F32, (2, 9, 75))], four)]
    yield "conv_packed int8", convolution(I8, 75, 6, 3, 1)
    vectors = [random(F32, 75, seed=3), random(F32, 75, seed=4)]
    requantised = expr_json(REQUANTISED)
    (rows,) = linear(I8, (2, 9), 75, 21, requantised, vectors)
    yield "matmul_packed to int8", [replace(rows, results=[(I8, (2, 9, 75))])]
    (conv,) = convolution(I8, 75, 6, 3, 1)
    more = {"epilogue": requantised, "outside": -3}
    operands = [*conv.operands[:2], *vectors]
    yield "conv_packed to int8", [replace(conv, operands=operands, results=[(I8, (2, 9, 11, 75))],
                                          params={**conv.params, **more})]  # fmt: skip
    taps = [integers(200, 2, 9, 11, 75, dtype=I8), integers(200, 9, 75, dtype=I8, seed=1), *vectors]
    over = {"kernel": [3, 3], "stride": [1, 1], "pre_padding": [1, 1], "dilation": [1, 1], **more}
    yield "conv_depthwise to int8", [Call("conv_depthwise", taps, [(I8, (2, 9, 11, 75))], over)]
    pooled = {"kernel": [3, 3], "stride": [1, 1], "pre_padding": [1, 1], "dilation": [1, 1]}
    yield "max_pool int8", [Call("max_pool", taps[:1], [(I8, (2, 9, 11, 75))], pooled)]
    average = window(post_padding=[1, 1], count_include_pad=False, divisor=0)
    yield "avg_pool int8", [Call("avg_pool", taps[:1], [(F32, (2, 5, 11, 75))], average)]


def products(dtype: Any) -> Iterator[tuple[str, Case]]:
    """Products and convolutions of floats."""
    name = dtype.name
    for n in (75, 32, 600):
        yield f"matmul_packed {name} {n}", linear(dtype, (2, 9), n, 21, EPILOGUE, extras(2, 9, n, dtype=dtype))
    yield f"matmul_packed {name} one row", linear(dtype, (1,), 75, 64, BIAS, [random(dtype, 75)])
    yield f"matmul {name}", [Call("matmul", [random(dtype, 3, 7, 33), random(dtype, 3, 33, 64)], [(dtype, (3, 7, 64))])]
    yield f"conv_packed {name}", convolution(dtype, 75, 6, 3, 1)
    yield f"conv_packed {name} groups", convolution(dtype, 70, 12, 2, 0, groups=2)


def loops() -> Iterator[tuple[str, Case]]:
    """Products and convolutions whose loops a build has chosen."""
    for dtype, (word, value) in itertools.product((F32, BF16, I8), ORDERS_AND_SPLITS):
        made = F32 if dtype is I8 else dtype
        (rows,) = linear(dtype, (2, 39), 75, 64, EPILOGUE, extras(2, 39, 75, dtype=made))
        (conv,) = convolution(dtype, 75, 64, 2, 1)
        for call in (rows, conv):
            yield f"{call.kernel} {dtype.name} {word} {value}", [replace(call, params={**call.params, word: value})]


def norms(dtype: Any) -> Iterator[tuple[str, Case]]:
    """Norms, rows brought to int8, softmax."""
    name = dtype.name
    for kernel, more in (("rms_norm", {"eps": 1e-5}), ("layer_norm", {"eps": 1e-5, "weight": True, "bias": False})):
        operands = [random(dtype, 3, 5, 75), random(dtype, 75, seed=1)]
        yield f"{kernel} {name}", [Call(kernel, operands, [(dtype, (3, 5, 75))], more)]
    rows = [(np.int8, (3, 5, 75)), (F32, (3, 5, 1))]
    yield f"quantize_rows {name}", [Call("quantize_rows", [random(dtype, 3, 5, 75)], rows)]
    for axis in (0, 2):
        softmax = Call("softmax", [random(dtype, 5, 3, 35)], [(dtype, (5, 3, 35))], {"axis": axis, "log": False})
        yield f"softmax {name} {axis}", [softmax]
    y = (2, 5, 7, 72)
    norm = {"groups": 8, "eps": 1e-5, "weight": True, "bias": True, "epilogue": EPILOGUE}
    operands = [random(dtype, *y), random(dtype, 72, seed=1), random(dtype, 72, seed=2), *extras(*y, dtype=dtype)]
    yield f"group_norm {name}", [Call("group_norm", operands, [(dtype, y)], norm)]


def windows(dtype: Any) -> Iterator[tuple[str, Case]]:
    """Windows, pools and other sizes of images."""
    name = dtype.name
    y, x = (2, 5, 9, 40), random(dtype, 2, 9, 9, 40)
    operands = [x, random(dtype, 9, 40, seed=1), *extras(*y, dtype=dtype)]
    depthwise = window(dilation=[1, 1], epilogue=EPILOGUE)
    yield f"conv_depthwise {name}", [Call("conv_depthwise", operands, [(dtype, y)], depthwise)]
    average = window(post_padding=[1, 1], count_include_pad=True, divisor=0)
    yield f"avg_pool {name}", [Call("avg_pool", [x], [(dtype, y)], average)]
    yield f"max_pool {name}", [Call("max_pool", [x], [(dtype, y)], window(dilation=[1, 1]))]
    yield f"adaptive_pool {name}", [Call("adaptive_pool", [x], [(dtype, (2, 4, 2, 40))], {"kind": "average"})]
    size = {"mode": "cubic", "align_corners": False}
    yield f"resize {name}", [Call("resize", [x], [(dtype, (2, 5, 9, 40))], size)]
    place = {"mode": "linear", "beyond": "zeros", "align_corners": False}
    grid = random(F32, 2, 3, 4, 2, seed=1)
    yield f"grid_sample {name}", [Call("grid_sample", [x, grid], [(dtype, (2, 3, 4, 40))], place)]


def attention(dtype: Any) -> Iterator[tuple[str, Case]]:
    """Attention of whole sequences."""
    name = dtype.name
    heads = [random(dtype, 2, 4, 21, 24), random(dtype, 2, 2, 70, 24, seed=1), random(dtype, 2, 2, 70, 32, seed=2)]
    attention = {"scale": 0.2, "causal": False, "heads_inside": False, "mask": "float"}
    mask = random(dtype, 2, 1, 21, 70, seed=3)
    yield f"attention {name}", [Call("attention", [*heads, mask], [(dtype, (2, 4, 21, 32))], attention)]
    inside = attention | {"heads_inside": True, "mask": "bool", "causal": True}
    kept = random(F32, 21, 70) > -1
    kept[:, 0] = True
    yield f"attention {name} bool", [Call("attention", [*heads, kept], [(dtype, (2, 21, 4, 32))], inside)]


def _narrow_experts(dtype: Any, rows: list[Array], params: dict[str, Any]) -> Iterator[tuple[str, Case]]:
    """The same of int8 with a scale for each output, and of int4 with those of groups, without zero points and with."""
    int4 = dtypes.int4.numpy
    made: dict[Any, list[Array]] = {}
    for kind in (I8, int4):
        pairs = [pack_panels([integers(7, 40, 24, dtype=np.int8, seed=i).astype(kind)] * 2) for i in range(5)]
        downs = [pack_panels([integers(7, 24, 40, dtype=np.int8, seed=i).astype(kind)]) for i in range(5)]
        made[kind] = [np.concatenate(pairs), np.concatenate(downs)]
    scales = random(F32, 400, seed=3), random(F32, 120, seed=4)
    groups = packed(5 * 64, 1, F32).repeat(2, 0), packed(5 * 32, 2, F32)
    read = {**params, "expression": expr_json(gated_expression("silu", True))}
    given = [*rows, made[I8][0], scales[0], made[I8][1], scales[1]]
    yield f"moe {dtype.name} int8", [Call("moe", given, [(dtype, (9, 24))], read)]
    given = [*rows, made[int4][0], groups[0], made[int4][1], groups[1]]
    of_groups = {**params, "gate_up_group": 32, "down_group": 32}
    yield f"moe {dtype.name} int4", [Call("moe", given, [(dtype, (9, 24))], of_groups)]
    zeros = packed(5 * 64, 1, F32).repeat(2, 0), packed(5 * 32, 2, F32), packed(5 * 32, 1, F32)
    read = {**of_groups, "gate_up_zeros": True, "down_zeros": True,
            "expression": expr_json(gated_expression("silu", zeros=True))}  # fmt: skip
    given = [*given[:4], zeros[0], *given[4:], zeros[1]]
    yield f"moe {dtype.name} int4 zeros", [Call("moe", given, [(dtype, (9, 24))], read)]
    read = {**params, "gate_up_zeros": True, "down_zeros": True,
            "expression": expr_json(gated_expression("silu", True, True))}  # fmt: skip
    given = [*rows, made[I8][0], scales[0], zeros[0], made[I8][1], scales[1], zeros[2]]
    yield f"moe {dtype.name} int8 zeros", [Call("moe", given, [(dtype, (9, 24))], read)]


def other_floats(dtype: Any) -> Iterator[tuple[str, Case]]:
    """Reductions, positions, experts, groups of scalar ops, recurrent layers and scans, transforms."""
    name = dtype.name
    for how, axes in itertools.product(("sum", "mean", "max"), ([1], [0, 2], [2])):
        shape = tuple(n for i, n in enumerate((4, 6, 35)) if i not in axes)
        reduce = {"op": how, "axes": axes, "keepdims": False}
        yield f"reduce {name} {how} {axes}", [Call("reduce", [random(dtype, 4, 6, 35)], [(dtype, shape)], reduce)]
    argmax = {"axis": 1, "keepdims": False}
    yield f"argmax {name}", [Call("argmax", [random(dtype, 4, 35, 3)], [(np.int64, (4, 3))], argmax)]
    rope = [random(dtype, 5, 3, 32), random(F32, 5, 16, seed=1), random(F32, 5, 16, seed=2)]
    yield f"rope {name}", [Call("rope", rope, [(dtype, (5, 3, 32))], {"style": "half"})]
    sizes = {"experts": 5, "hidden": 24, "inner": 40, "top_k": 2, "normalize": True}
    pairs = [pack_panels([random(F32, 40, 24, seed=i).astype(dtype)] * 2) for i in range(5)]
    downs = np.concatenate([packed(24, 40, dtype)] * 5)
    experts = [random(dtype, 9, 24), random(F32, 9, 5, seed=1), np.concatenate(pairs), downs]
    params = {**sizes, "expression": expr_json(gated_expression("silu"))}
    yield f"moe {name}", [Call("moe", experts, [(dtype, (9, 24))], params)]
    yield from _narrow_experts(dtype, experts[:2], params)
    elementwise = [random(dtype, 7, 5, 75), *extras(7, 5, 75, dtype=dtype)]
    steps = Call("elementwise", elementwise, [(dtype, (7, 5, 75))], {"expression": EPILOGUE})
    yield f"elementwise {name}", [steps]
    yield from recurrent(dtype)
    wide = [random(dtype, 2, 5, 36, seed=i) for i in range(2)]
    more = [random(dtype, 36, 3, seed=2), *(random(dtype, 2, 5, 2, 3, seed=i) for i in (3, 4))]
    scan = [*wide, *more, random(dtype, 36, seed=5), random(dtype, 2, 36, 3, seed=6)]
    yield f"selective_scan {name}", [Call("selective_scan", scan, [(dtype, (2, 5, 36)), (dtype, (2, 36, 3))])]
    for axis, (n, rows) in ((0, (12, 7)), (1, (35, 3))):
        whole = (n, rows) if axis == 0 else (rows, n)
        half = whole[:axis] + (n // 2 + 1,) + whole[axis + 1 :]
        x, z, how = random(dtype, *whole), random(dtype, *half, 2, seed=1), {"axis": axis, "norm": "ortho"}
        yield f"fft {name} {axis}", [Call("fft", [z], [(dtype, z.shape)], {**how, "inverse": axis == 1})]
        yield f"rfft {name} {axis}", [Call("rfft", [x], [(dtype, z.shape)], {**how, "onesided": True})]
        yield f"irfft {name} {axis}", [Call("irfft", [z], [(dtype, x.shape)], how)]


def stored_weights() -> Iterator[tuple[str, Case]]:
    """Products and convolutions with a weight in the engine, which kernels may keep in another form."""
    for dtype in (F32, F16, BF16):
        (rows,) = linear(dtype, (2, 38), 100, 76, EPILOGUE, extras(2, 38, 100, dtype=dtype))
        paired = replace(rows, params={**rows.params, "algorithm": "strassen"}, weights=(1,))
        yield f"matmul_packed strassen {dtype.name}", [paired]
    yield "conv_packed winograd", convolution(F32, 40, 20, 3, 1, stored=True)
    for name, kernel, pads in (("down", [9, 1], [4, 0]), ("across", [1, 9], [0, 4])):
        line = convolution(F32, 40, 20, 3, 1, stored=True)[0]
        operands = [line.operands[0], packed(40, 9 * 20, F32), *line.operands[2:]]
        params = {**line.params, "kernel": kernel, "pre_padding": pads}
        yield f"conv_packed winograd {name}", [replace(line, operands=operands, params=params)]
    yield "conv_packed groups", convolution(F32, 24, 24, 3, 1, stored=True, groups=3)
    yield "conv_packed few outputs", convolution(F32, 3, 40, 3, 1, stored=True)
    yield "conv_packed few outputs float16", convolution(np.float16, 1, 40, 5, 1, stored=True)
    yield "conv_packed few outputs int8", convolution(I8, 2, 40, 1, 0, stored=True)
    yield "conv_packed winograd float16", convolution(np.float16, 40, 20, 3, 1, stored=True)
    for dtype in (F32, BF16):
        for word in ("direct", "winograd_2", "winograd_4"):
            (square,) = convolution(dtype, 40, 20, 3, 1, stored=True)
            chosen = {**square.params, "algorithm": word}
            yield f"conv_packed {dtype.name} {word}", [replace(square, params=chosen)]
    taps = {"outputs": 40, "channels": 6, "groups": 1, "kernel": [2, 2], "stride": [2, 2], "dilation": [1, 1]}
    phases = [packed(40, 6, F32) for _ in range(4)]
    operands = [random(F32, 2, 5, 6, 6), *phases, *extras(2, 10, 12, 40)]
    transposed = {**taps, "pre_padding": [0, 0], "epilogue": EPILOGUE}
    yield "conv_transpose_packed", [Call("conv_transpose_packed", operands, [(F32, (2, 10, 12, 40))], transposed)]
    phases = [packed(40, count * 20, F32) for count in (1, 2, 2, 4)]
    operands = [random(F32, 2, 7, 9, 20), *phases, *extras(2, 14, 18, 40)]
    doubled = {**transposed, "channels": 20, "kernel": [3, 3], "pre_padding": [1, 1]}
    call = Call("conv_transpose_packed", operands, [(F32, (2, 14, 18, 40))], doubled, (1, 2, 3, 4))
    yield "conv_transpose_packed winograd", [call]


def integer_types() -> Iterator[tuple[str, Case]]:
    """Groups of scalar ops, copies and reductions of integers."""
    whole = {"steps": [["input", "int64", 0], ["input", "int64", 1], ["mul", "int64", 0, 1]], "outputs": [2]}
    for dtype in (np.int32, np.int64, np.uint8, np.int8):
        x = integers(100, 7, 33, dtype=dtype)
        low = integers(100, 33, dtype=np.int64, seed=1)
        call = Call("elementwise", [x, low], [(np.int64, x.shape)], {"expression": whole})
        yield f"elementwise {np.dtype(dtype)}", [call]
        yield f"copy {np.dtype(dtype)}", [Call("copy", [x], [(dtype, x.shape)])]
        same = np.dtype(f"{'i' if np.dtype(dtype).kind == 'u' else 'u'}{np.dtype(dtype).itemsize}")
        yield f"bitcast {np.dtype(dtype)}", [Call("bitcast", [x], [(same, x.shape)])]
        total = {"op": "sum", "axes": [0], "keepdims": True}
        yield f"reduce {np.dtype(dtype)}", [Call("reduce", [x], [(np.int64, (1, 33))], total)]
        best = {"axis": 1, "keepdims": False}
        yield f"argmax {np.dtype(dtype)}", [Call("argmax", [x], [(np.int64, (7,))], best)]


def places() -> Iterator[tuple[str, Case]]:
    """Elements by their places."""
    for dtype in (np.int8, F16, F32, np.int64):
        x, ids = (100 * random(F32, 6, 5, 17)).astype(dtype), integers(5, 6, 4, 17, seed=2)
        yield f"gather {np.dtype(dtype)}", [Call("gather", [x, ids], [(dtype, ids.shape)], {"axis": 1})]
        rows = integers(5, 2, 3, dtype=np.int64)
        yield f"take {np.dtype(dtype)}", [Call("take", [x, rows], [(dtype, (6, 2, 3, 17))], {"axis": 1})]
        yield f"concat {np.dtype(dtype)}", [Call("concat", [x, x[:, :2]], [(dtype, (6, 7, 17))], {"axis": 1})]
        plain = {"packed": False}
        yield f"embedding {np.dtype(dtype)}", [Call("embedding", [rows, x[0]], [(dtype, (2, 3, 17))], plain)]
    params = {"packed": True, "n": 40, "k": 17}
    operands = [integers(40, 2, 3), packed(40, 17, BF16)]
    yield "embedding packed", [Call("embedding", operands, [(BF16, (2, 3, 17))], params)]


def ordered() -> Iterator[tuple[str, Case]]:
    """Sorting, running sums and extremes, scatters."""
    for dtype in (F32, F16, np.int8, np.uint64, np.float64, np.bool_):
        x, name = (20 * random(F32, 6, 35, 5)).astype(dtype), np.dtype(dtype)
        for axis in (1, 2):
            results = [(dtype, x.shape), (np.int64, x.shape)]
            yield f"sort {name} {axis}", [Call("sort", [x], results, {"axis": axis, "descending": axis == 1})]
        best = [(dtype, (6, 2, 5)), (np.int64, (6, 2, 5))]
        yield f"top_k {name}", [Call("top_k", [x], best, {"axis": 1, "largest": True})]
        marks = np.sort(20 * random(F32, 9)).astype(dtype)
        yield f"bucketize {name}", [Call("bucketize", [x, marks], [(np.int64, x.shape)], {"right": False})]
        if dtype is not np.bool_:
            for axis in (0, 2):
                yield f"cumsum {name} {axis}", [Call("cumsum", [x], [(dtype, x.shape)], {"axis": axis})]
        rows = np.sort(20 * random(F32, 6, 35, 4)).astype(dtype)
        yield f"bucketize {name} rows", [Call("bucketize", [x, rows], [(np.int64, x.shape)], {"right": True})]
        for axis, kernel in itertools.product((0, 2), ("cumprod", "cummax", "cummin", "logcumsumexp")):
            floats = name in (F32, F16, np.float64)
            if kernel in ("cummax", "cummin") or (dtype is not np.bool_ and (floats or kernel == "cumprod")):
                results = [(dtype, x.shape), (np.int64, x.shape)][: 2 if kernel in ("cummax", "cummin") else 1]
                yield f"{kernel} {name} {axis}", [Call(kernel, [x], results, {"axis": axis})]
        for mode in ("replace", "add", "mul", "min", "max") if name.itemsize >= 4 or name == np.int8 else ("replace",):
            ids = integers(12, 9, 5, 3, dtype=np.int64, seed=3) - 6
            changes = (20 * random(F32, 9, 5, 3, seed=4)).astype(dtype)
            results, along = [(dtype, x.shape)], {"axis": 0, "mode": mode}
            yield f"scatter {name} {mode}", [Call("scatter", [x, ids, changes], results, along)]
            ids = np.stack([integers(12, 9, seed=5) - 6, integers(35, 9, seed=6)], 1)
            changes = changes[:, 0, :1] + np.zeros(5, dtype)
            yield f"scatter_nd {name} {mode}", [Call("scatter_nd", [x, ids, changes], results, {"mode": mode})]
        ids = integers(35, 6, 4, 1, dtype=np.int64, seed=7)
        yield f"gather_nd {name}", [Call("gather_nd", [x, ids], [(dtype, (6, 4, 5))], {"batch_dims": 1})]
        mask, source = integers(2, 35, 1, seed=8).astype(bool), (20 * random(F32, 30, 35, seed=9)).astype(dtype)
        yield f"masked_scatter {name}", [Call("masked_scatter", [x, mask, source], [(dtype, x.shape)])]


def counts() -> Iterator[tuple[str, Case]]:
    """Counts, and what acts on sizes."""
    for dtype in (F32, F16, np.int8, np.float64, np.bool_):
        x = (integers(3, 6, 35, 5) % 2).astype(dtype)
        yield f"count_nonzero {np.dtype(dtype)}", [Call("count_nonzero", [x], [(np.int64, (1,))])]
    x = np.ones((3, 5, 4), np.int32)
    yield "nonzero", [Call("nonzero", [x], [(np.int64, (3, 60))])]
    for dtype in (np.int8, np.uint64, np.int64):
        x = np.array([[3, 0], [7, 100]], dtype)
        yield (
            f"read_sizes {np.dtype(dtype)}",
            [Call("read_sizes", [x], [(np.int64, (4,))], {"names": ["a", "b", "c", "d"], "text": "of the data"})],
        )
    yield "assertion", [Call("assertion", [np.ones((3, 17), np.bool_)], [(np.bool_, ())], {"message": "all of them"})]
    yield "sizes_of", [Call("sizes_of", [np.ones(2, np.int32)], [(np.bool_, (1, 0)), (np.bool_, (3, 0))])]
    yield "iota", [Call("iota", [], [(F32, (5, 7))], {"start": 1.5, "step": 2})]


def cases() -> Iterator[tuple[str, Case]]:
    yield from of_float64_and_whole_numbers()
    yield from of_int8()
    for dtype in (F32, BF16, F16):
        for kind in (products, norms, windows, attention, other_floats):
            yield from kind(dtype)
    yield from stored_weights()
    yield from loops()
    yield "attention step", attention_step(False)
    yield "attention step, fused", attention_step(True)
    table = Call("rope_table", [integers(99, 6), random(F32, 5)], [(F32, (6, 5))] * 2, {"scale": 1.0})
    yield "rope_table", [table]
    yield from integer_types()
    yield from places()
    yield from ordered()
    yield from counts()


CASES = dict(cases())
