"""Windows against NumPy's own strides: what can be walked as one, reshaped in place, and what a view of it is."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from ingot.dims import Dim
from ingot.ir import F, Network, Spec, Value
from ingot.ir.window import Window, dense_strides, is_dense, merged, reshaped, view

T, S = Dim("T"), Dim("S")


def places(shape: Any, stride: Any, offset: int = 0) -> list[int]:
    """The elements that a window walks, in order."""
    return [offset + sum(map(int.__mul__, at, stride)) for at in itertools.product(*map(range, shape))]


GRIDS = [
    (shape, stride)
    for shape in ((), (3,), (1,), (2, 3), (3, 1), (1, 3), (2, 1, 3), (1, 2, 2), (2, 2, 3))
    for stride in itertools.product((0, 1, 2, 3, 6), repeat=len(shape))
]


def test_what_is_one_walk() -> None:
    """Exactly where the elements lie at equal distances."""
    for shape, stride in GRIDS:
        walked = places(shape, stride)
        gaps = {b - a for a, b in itertools.pairwise(walked)}
        found = merged(shape, stride)
        assert (found is None) == (len(gaps) > 1), (shape, stride)
        if gaps and found is not None:
            assert {found} == gaps
    assert merged((), ()) == merged((1, 1), (7, 5)) == 1
    assert merged((T, 3, 4), (12, 4, 1)) == merged((T, 1, 12), (12, 99, 1)) == 1
    assert merged((T, S), (2 * S, 2)) == 2
    assert merged((T, S), (S + 1, 1)) is merged((T, 3), (4, 1)) is None


def test_what_is_dense() -> None:
    for shape, stride in GRIDS:
        assert is_dense(shape, stride) == (places(shape, stride) == list(range(len(places(shape, stride)))))
    assert is_dense((T, S, 4), (4 * S, 4, 1)) and not is_dense((T, S, 4), (4 * S, 4, 2))
    assert Window(0, (T, 4), (4, 1)).dense and not Window(0, (T, 4), (8, 1)).dense


@pytest.mark.parametrize("shape", [(2, 3), (2, 3, 4), (4, 1, 3), (2, 2, 2, 3), (6,)])
def test_reshaping_in_place(shape: tuple[int, ...]) -> None:
    """Of every window with gaps between rows, or transposed: the same elements in the same order, where NumPy can."""
    for order in itertools.permutations(range(len(shape))):
        for cut in (0, 1):
            base = np.arange(int(np.prod(shape)) * 2).reshape(*shape[:-1], -1)[..., : shape[-1] + cut]
            array = base.transpose(order)
            size = array.itemsize
            window = Window(3, array.shape, tuple(s // size for s in array.strides), 5)
            for target in (array.shape, (-1,), (array.shape[0], -1), (-1, array.shape[-1])):
                wanted = array.reshape(target)
                found = reshaped(window, wanted.shape)
                if found is None:
                    assert not np.shares_memory(wanted, array), (array.shape, array.strides, target)
                    continue
                assert (found.buffer, found.offset, found.whole, found.shape) == (3, 5, False, wanted.shape)
                assert places(found.shape, found.stride) == places(window.shape, window.stride)


def test_reshaping_with_sizes_that_a_run_knows() -> None:
    rows = Window(0, (T, 6), (8, 1))  # with gaps
    assert reshaped(rows, (T, 2, 3)) == Window(0, (T, 2, 3), (8, 3, 1), 0, False)
    assert reshaped(rows, (6 * T,)) is None
    assert reshaped(Window(0, (T, 6), (6, 1)), (6 * T,)) == Window(0, (6 * T,), (1,), 0, False)


def a_view(build: Any, window: Window, shape: Any = (T, 6)) -> Window | None:
    net = Network("net")
    x: Value = net.input("x", Spec(shape, "float32"))
    build(x)
    return view(window, net.nodes[-1])


def test_views() -> None:
    whole = Window(2, (T, 6), (6, 1), 0)
    gaps = Window(2, (T, 6), (20, 2), 7)
    assert a_view(lambda x: F.permute(x, (1, 0)), gaps) == Window(2, (6, T), (2, 20), 7, False)
    assert a_view(lambda x: F.permute(x, (-1, 0)), whole) == Window(2, (6, T), (1, 6), 0, False)
    assert a_view(lambda x: F.slice(x, (1, 2), (3, 2), (2, 2)), gaps) == Window(2, (3, 2), (40, 4), 7 + 20 + 4, False)
    assert a_view(lambda x: F.slice(x, (S, 0), (3, 6), (1, 1)), whole) == Window(2, (3, 6), (6, 1), 6 * S, False)
    assert a_view(lambda x: F.slice(x, (0, 5), (T, 6), (1, -1)), whole) is None
    assert a_view(lambda x: F.expand(x, (4, T, 6)), gaps) == Window(2, (4, T, 6), (0, 20, 2), 7, False)
    column = Window(2, (T, 1), (6, 1), 3)
    assert a_view(lambda x: F.expand(x, (T, 5)), column, (T, 1)) == Window(2, (T, 5), (6, 0), 3, False)
    wider = Window(2, (2, 1, T, 1), (0, 0, 6, 1), 3, False)
    assert a_view(lambda x: F.expand(x, (2, 1, T, 1)), column, (T, 1)) == wider
    assert a_view(lambda x: F.reshape(x, (T, 2, 3)), gaps) == Window(2, (T, 2, 3), (20, 6, 2), 7, False)
    assert a_view(lambda x: F.reshape(x, (6 * T,)), gaps) is None
    assert a_view(lambda x: F.exp(x), whole) is None


def test_strides_of_dense_shapes() -> None:
    assert dense_strides(()) == ()
    assert dense_strides((5,)) == (1,)
    assert dense_strides((2, T, 3)) == (3 * T, 3, 1)
