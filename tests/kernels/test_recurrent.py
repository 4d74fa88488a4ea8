"""lstm, gru and rnn against their references: odd sizes, weights in panels or not, of int8 too, rows alone and in
company."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ingot import _native
from ingot.ir import OPS
from ingot.ops.panels import pack_panels
from tests.kernels.support import FLOATS, Array, close, run, same_bits

GATES = {"lstm": 4, "gru": 3, "rnn": 1}
FORMS: dict[str, list[dict[str, Any]]] = {
    "lstm": [{}], "gru": [{}, {"reset_after": False}], "rnn": [{"activation": "relu"}, {"activation": "tanh"}],
}  # fmt: skip


def operands_of(kernel: str, steps: int, rows: int, units: int, width: int, dtype: Any) -> list[Array]:
    rng = np.random.default_rng(units)
    gates = GATES[kernel]

    def normal(*shape: int, scale: float = 1.0) -> Array:
        return (scale * rng.standard_normal(shape)).astype(dtype)

    found = [normal(steps, rows, gates * units), normal(gates * units, width, scale=width**-0.5), normal(rows, width)]
    found += [normal(rows, units)] if kernel == "lstm" else []
    found += [normal(gates * units), rng.integers(0, steps + 1, rows)]
    return [*found, normal(width, units, scale=units**-0.5)] if width != units else found


def packed(weight: Array, gates: int) -> Array:
    units, k = len(weight) // gates, weight.shape[1]
    padded = np.zeros((gates, -(-units // 32) * 32, k), weight.dtype)
    padded[:, :units] = weight.reshape(gates, units, k)
    return pack_panels([padded.reshape(-1, k)])


def quantised(weight: Array) -> tuple[Array, Array]:
    """int8 that holds a weight, and its scales."""
    scales = (np.abs(weight).max(1) / 127).astype(np.float32)
    return np.rint(weight.astype(np.float32) / scales[:, None]).astype(np.int8), scales


def call(
    kernel: str, operands: list[Array], pack: bool, threads: int = 1, scales: Array | None = None, **params: Any
) -> list[Array]:
    gates, weight, h0, *rest = operands
    projection = rest[3] if len(rest) > 3 else None
    (steps, rows), width, units = gates.shape[:2], h0.shape[1], gates.shape[2] // GATES[kernel]
    results = [(gates.dtype, (steps, rows, width)), (gates.dtype, (rows, width)), (gates.dtype, (rows, units))]
    if pack:
        weight = packed(weight, GATES[kernel])
        rest = rest if projection is None else [*rest[:3], pack_panels([projection])]
    params |= {"packed": pack, "lengths": True}
    if scales is not None:
        params["scales"] = True
    if kernel == "lstm":
        params["projection"] = projection is not None
    of_weight = [weight] if scales is None else [weight, scales]
    return run(kernel, [gates, *of_weight, h0, *rest], results[: 3 if kernel == "lstm" else 2], threads, **params)


def reference(kernel: str, operands: list[Array], **attributes: Any) -> list[Array]:
    """In float64."""
    wide = [a if a.dtype == np.int64 else a.astype(np.float64) for a in operands]
    return [np.asarray(a) for a in OPS[kernel](**attributes).reference(*wide)]


SIZES = [(1, 1, 1), (5, 3, 16), (4, 7, 33), (3, 26, 75), (2, 13, 300)]


@pytest.mark.parametrize(("kernel", "dtype"), [*itertools.product(GATES, FLOATS)])
def test_numbers(kernel: str, dtype: Any) -> None:
    """Of float32 the greatest error seen is 48 roundings, of relu, whose states grow; narrow results round once."""
    limits = dict(zip(FLOATS, (80, 2.04, 1.02), strict=True))  # ROUNDING of bfloat16 is a quarter of a step
    for steps, rows, units in SIZES:
        for pack, reverse, form in itertools.product((False, True), (False, True), FORMS[kernel]):
            width = units // 2 + 1 if kernel == "lstm" and pack is reverse else units
            operands = operands_of(kernel, steps, rows, units, width, dtype)
            attributes = {"reverse": reverse} | form
            want = reference(kernel, operands, **attributes)
            for threads in (1, 3):
                got = call(kernel, operands, pack, threads, **attributes)
                for a, b in zip(got, want, strict=True):
                    close(a, b, limits[a.dtype])


@pytest.mark.parametrize(("kernel", "dtype"), [*itertools.product(GATES, FLOATS)])
def test_numbers_of_int8(kernel: str, dtype: Any) -> None:
    """Against the floats that they stand for, of one row and of more than are multiplied together. The greatest error
    of float32 that was seen is 16 roundings, of an RNN."""
    limits = dict(zip(FLOATS, (40, 2.04, 1.02), strict=True))
    for rows, units, form in itertools.product((1, 2, 3, 5, 24, 25, 49), (1, 33, 75), FORMS[kernel]):
        width = units // 2 + 1 if kernel == "lstm" and rows % 2 else units
        operands = operands_of(kernel, 3, rows, units, width, dtype)
        whole, scales = quantised(operands[1])
        attributes = {"reverse": rows > 2} | form
        operands[1] = whole * scales[:, None].astype(np.float64)
        want = reference(kernel, operands, **attributes)
        operands[1] = whole
        for threads in (1, 2):
            got = call(kernel, operands, True, threads, scales, **attributes)
            for a, b in zip(got, want, strict=True):
                close(a, b, limits[a.dtype])


@pytest.mark.parametrize(("kernel", "form", "int8"), [
    (kernel, form, int8) for kernel in GATES for form in FORMS[kernel] for int8 in (False, True)])  # fmt: skip
def test_a_row_does_not_depend_on_its_company(kernel: str, form: dict[str, Any], int8: bool) -> None:
    """By rows and by units: 40 rows of 20 units, and of 600, whose weight no cache holds for each worker."""
    for units in (20, 600):
        width = 7 if kernel == "lstm" and units == 20 else units
        whole = operands_of(kernel, 3, 40, units, width, np.float32)
        more = {"reverse": True} | form
        if int8:
            whole[1], more["scales"] = quantised(whole[1])
        alone: list[Array] = []
        for rows, threads in itertools.product((1, 2, 3, 5, 16, 40), (1, 2, 3)):
            part = [a[:, :rows] if i == 0 else a[:rows] for i, a in enumerate(whole)]
            part[1] = whole[1]
            at = 4 if kernel == "lstm" else 3
            part[at], part[-1] = whole[at], whole[-1] if width != units else part[-1]
            found = call(kernel, part, True, threads, **more)
            first = [found[0][:, :1], *(a[:1] for a in found[1:])]
            alone = alone or first
            assert all(same_bits(np.ascontiguousarray(a), b) for a, b in zip(first, alone, strict=True))


def test_refusals() -> None:
    good = operands_of("lstm", 3, 2, 5, 4, np.float32)
    params: dict[str, Any] = {"reverse": False, "packed": False, "lengths": True, "projection": True}
    results = [(np.float32, (3, 2, 4)), (np.float32, (2, 4)), (np.float32, (2, 5))]

    def changed(at: int, operand: Array) -> list[Array]:
        return [operand if i == at else a for i, a in enumerate(good)]

    for operands, more, message in (
        (good[:-1], {}, "6 operands, must be 7"),
        (good, {"projection": False}, "7 operands, must be 6"),
        (good, {"packed": True}, "weight has rank 2, must be 3"),
        (good, {"reverse": 1}, "parameter reverse is 1, must be true or false"),
        (changed(0, good[0][:, :, :18].copy()), {}, "a positive number of units each"),
        (changed(0, good[0].astype(np.float64)), {}, "gates is float64"),
        (changed(1, good[1][:, :3].copy()), {}, r"the weight has shape \(20, 3\), must be \(20, 4\)"),
        (changed(2, good[2][:1].copy()), {}, r"h0 has shape \(1, 4\), must be \(2, 4\)"),
        (changed(3, good[3][:1].copy()), {}, r"c0 has shape \(1, 5\), must be \(2, 5\)"),
        (changed(4, good[4][:5].copy()), {}, r"the bias has shape \(5\), must be \(20\)"),
        (changed(5, good[5][:1].copy()), {}, r"lengths has shape \(1\), must be \(2\)"),
        (changed(5, good[5].astype(np.float32)), {}, "lengths is float32"),
        (changed(6, good[6][:3].copy()), {}, r"the projection has shape \(3, 5\), must be \(4, 5\)"),
        (changed(2, good[2].astype(np.float16)), {}, "h0 is float16, must be float32"),
    ):
        with pytest.raises(_native.Error, match=message) as caught:
            run("lstm", operands, results, **{**params, **more})
        assert caught.value.code == "kernel_refused"
    with pytest.raises(_native.Error, match=r"y has shape \(3, 2, 5\), must be \(3, 2, 4\)"):
        run("lstm", good, [(np.float32, (3, 2, 5)), *results[1:]], **params)
    with pytest.raises(_native.Error, match=r"a length of a recurrent layer's rows \(4 at element 1, limit 4\)"):
        run("lstm", changed(5, np.array([3, 4])), results, **params)
    whole, scales = quantised(good[1])
    of_int8 = [good[0], packed(whole, 4), scales, *good[2:-1], pack_panels([good[-1]])]
    params |= {"packed": True, "scales": True}
    for at, operand, more, message in (
        (0, good[0], {"packed": False}, "scales belong to a weight in panels"),
        (0, good[0], {"scales": False}, "8 operands, must be 7"),
        (1, of_int8[1].astype(np.float32), {}, "weight is float32, must be int8"),
        (1, of_int8[1][:, :, :, :2].copy(), {}, r"the weight has shape \(4, 1, 32, 2\), must be \(4, 1, 32, 4\)"),
        (1, of_int8[1][:, :, :, 0].copy(), {}, "weight has rank 3, must be 4"),
        (2, scales[:19].copy(), {}, r"the scales has shape \(19\), must be \(20\)"),
        (2, scales[:, None].copy(), {}, "scales has rank 2, must be 1"),
        (2, scales.astype(np.float16), {}, "scales is float16, must be float32"),
    ):
        changed_one = [operand if i == at else a for i, a in enumerate(of_int8)]
        with pytest.raises(_native.Error, match=message):
            run("lstm", changed_one, results, **{**params, **more})
    narrow = operands_of("rnn", 3, 2, 5, 5, np.float32)
    narrow[2] = narrow[2][:, :4].copy()
    with pytest.raises(_native.Error, match="h0 must be as wide as a gate"):
        run("rnn", narrow, [(np.float32, (3, 2, 4)), (np.float32, (2, 4))], reverse=False, packed=False, lengths=True,
            activation="tanh")  # fmt: skip
