"""Runs networks whose inputs, or stored weights, end, or begin, where memory that nobody may touch begins or ends: one
that reads past them dies. `python -m tests.kernels.borders inputs` (or `weights`) prints the name of each network
before it runs it.
"""

from __future__ import annotations

import ctypes
import itertools
import mmap
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from ingot import dtypes, functional
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.dtypes import DType
from ingot.ir import F, Network, Spec
from ingot.ir.weight_format import AS_IS, FORMATS, WeightFormat, weight_format

Array = np.ndarray[Any, Any]
PAGE = mmap.PAGESIZE
LARGE = 64 << 10  # bytes from which on a run reads an input where it lies
NONE, BOTH = 0, 3  # PROT_NONE; PROT_READ | PROT_WRITE
LIBC = ctypes.CDLL(None, use_errno=True)
RNG = np.random.default_rng(0)


def guarded(array: Array, at_end: bool) -> Array:
    """A copy of an array between two pages without access, next to the latter or the former."""
    size = -(-array.nbytes // PAGE) * PAGE
    memory = mmap.mmap(-1, size + 2 * PAGE)
    whole = np.frombuffer(memory, np.uint8)
    start = PAGE + (size - array.nbytes if at_end else 0)
    out = whole[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    out[...] = array
    for place in (0, size + PAGE):
        if LIBC.mprotect(ctypes.c_void_p(whole.ctypes.data + place), ctypes.c_size_t(PAGE), NONE) != 0:
            raise OSError(ctypes.get_errno(), "mprotect")
    return out


# A network: what it computes, and the shapes of its inputs, odd ones of 64 KiB and more in bfloat16 too.
ROWS, COLUMNS, DEEP, IMAGE = (259, 131), (131, 259), (9, 61, 67), (3, 5, 47, 53)
NETS: dict[str, tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]] = {
    "elementwise": (lambda x, y: F.exp(x) * y, (ROWS, ROWS)),
    "elementwise, by row": (lambda x, y: x + F.reshape(y, (259, 1)), (ROWS, (259,))),
    "elementwise, turned": (lambda x, y: x + F.permute(y, (1, 0)), (ROWS, COLUMNS)),
    "cast": (lambda x: F.cast(x, "float64"), (ROWS,)),
    "integers": (lambda x: F.cast(x * 9.0, "int8"), (ROWS,)),
    "matmul": (lambda x, y: F.matmul(x, y), (ROWS, COLUMNS)),
    "matmul, turned": (lambda x, y: F.matmul(x, y, transpose_b=True), (ROWS, ROWS)),
    "matmul, both": (lambda x, y: F.matmul(x, y, transpose_a=True, transpose_b=True), (COLUMNS, ROWS)),
    "matmul of batches": (lambda x, y: F.matmul(x, y, transpose_b=True), (DEEP, DEEP)),
    "matmul and a row": (lambda x, y: F.matmul(x, y), (ROWS, (131, 1))),
    "einsum": (lambda x, y: F.einsum(x, y, equation="abc,abd->acd"), (DEEP, DEEP)),
    "conv": (lambda x, w: functional.conv2d(x, w, padding=(1, 2)), ((3, 67, 17, 19), (53, 67, 3, 3))),
    "conv, pointwise": (lambda x, w: functional.conv2d(x, w), ((3, 167, 17, 19), (201, 167, 1, 1))),
    "conv in groups": (lambda x, w: functional.conv2d(x, w, groups=2), ((3, 134, 17, 19), (62, 67, 3, 3))),
    "conv, depthwise": (lambda x, w: functional.conv2d(x, w, groups=703), ((2, 703, 7, 9), (703, 1, 7, 7))),
    "conv, few outputs": (lambda x, w: functional.conv2d(x, w, padding=2), ((3, 67, 17, 19), (3, 67, 5, 5))),
    "conv 1-D": (lambda x, w: functional.conv1d(x, w, padding=2), ((9, 131, 67), (67, 131, 5))),
    "conv 3-D": (lambda x, w: functional.conv3d(x, w, padding=1), ((2, 41, 5, 9, 11), (31, 41, 3, 3, 3))),
    "conv_transpose": (lambda x, w: functional.conv_transpose2d(x, w, stride=2), ((3, 67, 17, 19), (67, 53, 3, 3))),
    "pools": (lambda x: functional.max_pool2d(x, (3, 2), (2, 2)), (IMAGE,)),
    "average": (lambda x: functional.avg_pool2d(x, (3, 2), (2, 2)), (IMAGE,)),
    "adaptive": (lambda x: functional.adaptive_avg_pool2d(x, (7, 9)), (IMAGE,)),
    "resize": (lambda x: functional.interpolate(x, size=(31, 101), mode="bilinear"), (IMAGE,)),
    "cubic": (lambda x: functional.interpolate(x, size=(61, 29), mode="bicubic"), (IMAGE,)),
    "grid_sample": (lambda x, g: functional.grid_sample(x, g, mode="bilinear", padding_mode="reflection"),
                    (IMAGE, (3, 83, 101, 2))),
    "softmax": (lambda x: F.softmax(x), (ROWS,)),
    "softmax of columns": (lambda x: F.softmax(x, axis=0), (ROWS,)),
    "rms_norm": (lambda x: F.rms_norm(x), (ROWS,)),
    "layer_norm": (lambda x: F.layer_norm(x), (ROWS,)),
    "quantize_rows": (lambda x: F.quantize_rows(x)[0], (ROWS,)),
    "group_norm": (lambda x: functional.group_norm(x, 5), (IMAGE,)),
    "sums": (lambda x: F.reduce_sum(x, axes=(1,)), (ROWS,)),
    "sums of columns": (lambda x: F.reduce_max(x, axes=(0,)), (ROWS,)),
    "argmax": (lambda x: functional.argmax(x, 1), (ROWS,)),
    "sort": (lambda x: functional.sort(x, 1)[0], (ROWS,)),
    "topk": (lambda x: functional.topk(x, 5, 1)[1], (ROWS,)),
    "topk of columns": (lambda x: functional.topk(x, 5, 0)[0], (ROWS,)),
    "cumsum": (lambda x: functional.cumsum(x, 1), (ROWS,)),
    "cumsum of columns": (lambda x: functional.cumsum(x, 0), (ROWS,)),
    "cummax": (lambda x: functional.cummax(x, 0)[0], (ROWS,)),
    "nonzero": (lambda x: functional.nonzero(x), (ROWS,)),
    "masked": (lambda x: functional.masked_select(x, x > 0.3), (ROWS,)),
    "bucketize": (lambda x: functional.bucketize(x, functional.sort(functional.flatten(x[:3]), 0)[0]), (ROWS,)),
    "where": (lambda x, y: functional.where(x > y, x, y), (ROWS, ROWS)),
    "take": (lambda x: functional.index_select(x, 1, functional.argmax(x, 0)[:100]), ((259, 259),)),
    "gather": (lambda x: functional.gather(x, 1, functional.topk(x, 3, 1)[1]), (ROWS,)),
    "scatter": (lambda x: functional.scatter(x, 1, functional.topk(x, 3, 1)[1], x[:, :3]), (ROWS,)),
    "concat": (lambda x, y: functional.concat([x, y], 1), (ROWS, ROWS)),
    "pad": (lambda x: F.pad(x, (1, 2), (3, 1)), (ROWS,)),
    "permute": (lambda x: F.permute(x, (2, 0, 1)), (DEEP,)),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v, causal=True), ((3, 5, 67, 62),) * 3),
    "attention, wide": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), ((1, 2, 131, 256),) * 3),
    "lstm": (lambda x, w, r: functional.lstm(x, None, (w, r), False)[0], ((41, 19, 67), (524, 67), (524, 131))),
    "gru": (lambda x, w, r: functional.gru(x, None, (w, r), False)[0], ((41, 19, 67), (393, 67), (393, 131))),
    "selective_scan": (lambda u, d, a, b: functional.selective_scan(u, d, a, b, b)[0],
                       ((7, 157, 67), (7, 157, 67), (157, 271), (7, 271, 67))),
    "rfft": (lambda x: functional.rfft(x), ((67, 1009),)),
    "rfft of columns": (lambda x: functional.rfft(x, dim=0), (ROWS,)),
    "fft": (lambda x: functional.fft(x), ((67, 509, 2),)),
    "irfft": (lambda x: functional.irfft(x), ((67, 509, 2),)),
    "causal_conv1d": (lambda x, w: functional.causal_conv1d(x, w)[0], ((3, 9001, 7), (9001, 4))),
}  # fmt: skip


# Products with stored weights: what those are, and what rows become. The rows go by every tile, by blocks of few and of
# many; the outputs fill no panel, and the last depth, which no group divides, no vector either.
STORED = [(word, None) for word in FORMATS] + [(word, "int8") for word in ("int8", "int4-g32", "int4-g128")]
SIZES = ((75, 768), (299, 1408), (33, 131))  # outputs, depth
ROWS_OF_PRODUCTS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 12, 13, 14, 15, 29, 57, 259)
KINDS = (dtypes.float32, dtypes.bfloat16, dtypes.float16)


def random(shape: tuple[int, ...], dtype: DType) -> Array:
    return RNG.standard_normal(shape).astype(dtype.numpy)


def of_inputs() -> None:
    for (name, (build, shapes)), dtype in itertools.product(NETS.items(), KINDS[:2]):
        print(name, dtype.name, flush=True)
        net = Network("net")
        net.outputs["y"] = build(*(net.input(f"x{i}", Spec(shape, dtype)) for i, shape in enumerate(shapes)))
        arrays = {f"x{i}": random(shape, dtype) for i, shape in enumerate(shapes)}
        session = build_network(net, {}).session(threads=2)
        assert any(a.nbytes >= LARGE for a in arrays.values()) or dtype is dtypes.bfloat16, name
        want = session.run(arrays)["y"]
        for at_end in (True, False):
            found = session.run({name: guarded(a, at_end) for name, a in arrays.items()})["y"]
            assert found.tobytes() == want.tobytes(), name


def of_weights() -> None:
    """What NETS have behind their first operand, as parameters; then products in every format."""
    for (name, (build, shapes)), dtype in itertools.product(NETS.items(), KINDS[:2]):
        if len(shapes) == 1:
            continue
        print(name, dtype.name, flush=True)
        net = Network("net")
        weights = {f"w{i}": random(shape, dtype) for i, shape in enumerate(shapes[1:])}
        x = net.input("x", Spec(shapes[0], dtype))
        net.outputs["y"] = build(x, *(net.parameter(n, Spec(w.shape, dtype)) for n, w in weights.items()))
        run_with_guarded_weights(net, weights, [random(shapes[0], dtype)], AS_IS)
    for how, (outputs, depth), dtype in itertools.product(STORED, SIZES, KINDS):
        print("product", *how, outputs, depth, dtype.name, flush=True)
        net = Network("net")
        x = net.input("x", Spec((Dim("R", max=512), depth), dtype))
        weights = {f"model.{part}.weight": random((outputs, depth), dtype) for part in ("one", "gate", "up")}
        one, gate, up = (
            F.matmul(x, net.parameter(name, Spec((outputs, depth), dtype)), transpose_b=True) for name in weights
        )
        net.outputs["y"] = functional.concat([one, F.silu(gate) * up], 1)
        run_with_guarded_weights(
            net, weights, [random((rows, depth), dtype) for rows in ROWS_OF_PRODUCTS], weight_format(*how)
        )


def run_with_guarded_weights(net: Network, weights: dict[str, Array], xs: list[Array], format: WeightFormat) -> None:
    engine = build_network(net, weights, format=format)
    session = engine.session(threads=2)
    want = [session.run({"x": x})["y"].tobytes() for x in xs]
    for at_end in (True, False):
        stored = {name: guarded(engine.tensor(name), at_end) for name in engine.header["weights"]}
        session = engine.with_tensors(engine.header, stored).session(threads=2)
        assert [session.run({"x": x})["y"].tobytes() for x in xs] == want


if __name__ == "__main__":
    {"inputs": of_inputs, "weights": of_weights}[sys.argv[1]]()
