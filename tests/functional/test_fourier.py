"""Transforms of one and more dimensions against torch.fft: axes, norms, lengths cropped and padded, sizes of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from ingot import functional as F
from ingot.builder.network import build_network
from ingot.dims import Dim
from ingot.errors import OpError
from ingot.ir import Network, Spec

Array = np.ndarray[Any, Any]
rng = np.random.default_rng(0)


def normal(*shape: int) -> Array:
    return rng.standard_normal(shape).astype(np.float32)


def number(x: Array) -> torch.Tensor:
    return torch.view_as_complex(torch.from_numpy(x).double())


def pairs(x: torch.Tensor) -> Array:
    return (torch.view_as_real(x.resolve_conj()) if x.is_complex() else x).numpy()


def native(function: Callable[..., Any], shapes: list[tuple[Any, ...]], *runs: list[Array]) -> list[Array]:
    """The results of an engine, which takes no host call, of operands of these shapes."""
    network = Network()
    network.output("y", function(*(network.input(f"x{i}", Spec(s, "float32")) for i, s in enumerate(shapes))))
    engine = build_network(network, {})
    assert engine._native.host_calls("main") == []
    session = engine.session(2)
    return [session.run({f"x{i}": a for i, a in enumerate(given)})["y"] for given in runs]


def close(got: Array, want: Array) -> None:
    """2e-7 of the largest number was the greatest error seen."""
    assert got.shape == want.shape
    np.testing.assert_allclose(got, want, rtol=0, atol=8e-7 * max(np.abs(want).max(initial=0), 1e-6))


ONE = [  # name, arguments, whether x is complex
    ("fft", {"n": 12, "dim": 1}, True), ("fft", {"n": 40, "dim": 0, "norm": "ortho"}, True),
    ("ifft", {"dim": -2, "norm": "forward"}, True), ("rfft", {"n": 9}, False), ("rfft", {"n": 50, "dim": 0}, False),
    ("irfft", {"n": 21, "dim": 1}, True), ("irfft", {"dim": 0}, True),
]  # fmt: skip
MANY = [
    ("fftn", {}, True), ("ifftn", {"s": (4, 9), "norm": "ortho"}, True), ("rfftn", {"dim": (2, 0)}, False),
    ("irfftn", {"s": (6, 8), "dim": (0, 1)}, True), ("fft2", {"s": (7, -1)}, True), ("ifft2", {"dim": (0, 1)}, True),
    ("rfft2", {"norm": "forward"}, False), ("irfft2", {"s": (17, 13)}, True), ("rfftn", {}, False),
]  # fmt: skip


@pytest.mark.parametrize(("name", "how", "of_pairs"), ONE + MANY)
def test_against_torch(name: str, how: dict[str, Any], of_pairs: bool) -> None:
    """At once, and by engines of known sizes and of sizes that a run shows."""
    x = normal(5, 17, 11, 2) if of_pairs else normal(5, 17, 11)
    given = {k: (tuple(x.shape[i] if n == -1 else n for i, n in zip((1, 2), v, strict=True)) if k == "s" else v)
             for k, v in how.items()} if how.get("s") == (7, -1) else how  # fmt: skip
    want = pairs(getattr(torch.fft, name)(number(x) if of_pairs else torch.from_numpy(x).double(), **given))
    call = getattr(F, name)
    close(call(x, **how), want)
    for shape in (x.shape, (Dim("A", 1, 60), Dim("B", 1, 60), *x.shape[2:])):
        (got,) = native(lambda v: call(v, **how), [shape], [x])
        close(got, want)


def test_an_empty_batch_and_another_length() -> None:
    """A length of a run, in one engine: even, odd, 1, prime; and no rows."""
    runs = [[normal(rows, n)] for rows, n in ((3, 8), (2, 45), (1, 1), (2, 37), (0, 8))]
    for (x,), got in zip(runs, native(lambda v: F.rfft(v), [(Dim("N"), Dim("T", 1, 100))], *runs), strict=True):
        close(got, pairs(torch.fft.rfft(torch.from_numpy(x).double())) if len(x) else np.zeros((0, 5, 2)))


def test_there_and_back() -> None:
    x = normal(3, 4, 6)
    close(F.irfftn(F.rfftn(x, norm="ortho"), norm="ortho"), x)
    z = normal(3, 5, 2)
    close(F.ifft(F.fft(z)), z)


def test_order_and_frequencies() -> None:
    for n in (1, 2, 7, 8):
        np.testing.assert_allclose(F.fftfreq(n, 0.25), torch.fft.fftfreq(n, 0.25), rtol=1e-7)
        np.testing.assert_allclose(F.rfftfreq(n, 0.25), torch.fft.rfftfreq(n, 0.25), rtol=1e-7)
        for periodic in (True, False):
            for ours, theirs in ((F.hann_window, torch.hann_window), (F.hamming_window, torch.hamming_window)):
                np.testing.assert_allclose(ours(n, periodic), theirs(n, periodic=periodic), atol=1e-6)
    x = normal(5, 4, 2)
    for name in ("fftshift", "ifftshift"):
        call, theirs = getattr(F, name), getattr(torch.fft, name)
        for dim in (None, 0, (1, 2)):
            np.testing.assert_array_equal(call(x, dim), theirs(torch.from_numpy(x), dim))
        np.testing.assert_array_equal(call(x, pairs=True), pairs(theirs(number(x))).astype(np.float32))
        (got,) = native(lambda v, call=call: call(v, pairs=True), [(Dim("N"), 4, 2)], [x])
        np.testing.assert_array_equal(got, call(x, pairs=True))


def test_complex_arithmetic() -> None:
    a, b = normal(4, 3, 2), normal(3, 2)
    p, q = number(a), number(b)
    r, t = normal(4, 3), 3 * normal(3)
    cases: list[tuple[Callable[..., Any], list[Array], torch.Tensor]] = [
        (F.complex_mul, [a, b], p * q), (F.complex_div, [a, b], p / q), (F.conj, [a], p.conj()),
        (F.complex_abs, [a], p.abs()), (F.angle, [a], p.angle()), (F.complex_exp, [a], p.exp()),
        (F.polar, [r, t], torch.polar(torch.from_numpy(r).double(), torch.from_numpy(t).double().expand(4, 3))),
        (F.complex, [r, t], torch.complex(torch.from_numpy(r), torch.from_numpy(t).expand(4, 3))),
        (F.complex, [r], torch.from_numpy(r).to(torch.complex64)), (F.real, [a], p.real), (F.imag, [a], p.imag),
        (F.view_as_real, [a], p), (F.view_as_complex, [a], p),
    ]  # fmt: skip
    for call, given, want in cases:
        for got in (call(*given), *native(call, [x.shape for x in given], given)):
            np.testing.assert_allclose(got, pairs(want), rtol=1e-6, atol=1e-6)


def test_absolute_values_without_squares_beyond_the_largest_number() -> None:
    x = np.array([[3e30, 4e30], [3e-30, -4e-30], [0, 0], [np.inf, 1], [0, -2], [np.nan, 1]], np.float32)
    np.testing.assert_allclose(F.complex_abs(x), [5e30, 5e-30, 0, np.inf, 2, np.nan], rtol=1e-6)
    np.testing.assert_allclose(F.complex_div(x[:2], x[:2]), [[1, 0], [1, 0]], atol=1e-6)


def test_angles_by_their_signs() -> None:
    """atan2 of zeros and infinities with either sign, and of numbers far apart."""
    some = np.array([0.0, -0.0, 1, -1, np.inf, -np.inf, 1e-30, -1e30, 0.4, np.nan], np.float32)
    y, x = (np.ascontiguousarray(v) for v in np.meshgrid(some, some))
    (got,) = native(F.atan2, [y.shape, x.shape], [y, x])
    want = np.arctan2(y.astype(np.float64), x)
    np.testing.assert_allclose(got, want, rtol=4e-7, atol=0)
    np.testing.assert_array_equal(np.signbit(got)[~np.isnan(want)], np.signbit(want)[~np.isnan(want)])


@pytest.mark.parametrize(("call", "message"), [
    (lambda: F.fft(normal(3, 5)), "x must be pairs"),
    (lambda: F.fft(normal(3, 2), dim=1), "dim 1 is out of range"),
    (lambda: F.rfft(normal(3), n=0), "at least 1 element, not 0"),
    (lambda: F.irfft(normal(1, 2)), "n must be at least 1, not 0"),
    (lambda: F.fft2(normal(3, 2)), "dim -2 is out of range"),
    (lambda: F.fftn(normal(3, 4, 2), dim=(0, -2)), "dimensions, each once"),
    (lambda: F.fftn(normal(3, 4, 2), s=(1, 2), dim=(0,)), "s has 2 sizes for 1 dimensions"),
    (lambda: F.fftfreq(0), "the length must be an int from 1"),
    (lambda: F.hann_window(-1), "the length must be an int from 0"),
    (lambda: F.conj(normal(3)), "conj: takes pairs"),
])  # fmt: skip
def test_refusals(call: Callable[[], Any], message: str) -> None:
    with pytest.raises(OpError, match=message):
        call()
