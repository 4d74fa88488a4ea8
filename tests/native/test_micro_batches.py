"""Micro-batches: calls that treat images apart run for some images and then for the next, and no bit shows it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from ingot import _native
from tests.native.engines import WEIGHTS, Program, header, symbol

Array = Any

ROWS, COLUMNS = 128, 512  # of an image of float32: a batch of 9 and more is beyond the 2 MiB of one worker
SHAPE: list[Any] = ["N", ROWS, COLUMNS]
IMAGE = ROWS * COLUMNS


def session_of(program: Program, threads: int = 1) -> _native.Session:
    engine = _native.Engine.from_memory(json.dumps(header(main=program.json)).encode(), WEIGHTS)
    return _native.Session(engine, threads=threads)


def numbers(*shape: int) -> Array:
    return np.random.default_rng(sum(shape)).standard_normal(shape).astype(np.float32)


class Drawn:
    """A program of random calls on images, and what NumPy makes of it."""

    def __init__(self, seed: int, batch: int) -> None:
        self.rng = np.random.default_rng(seed)
        self.batch = batch
        self.program = Program(symbol("N", 1))
        self.feeds = {"x": numbers(batch, ROWS, COLUMNS), "one": numbers(1, ROWS, COLUMNS), "row": numbers(COLUMNS)}
        shapes: list[list[Any]] = [SHAPE, [1, ROWS, COLUMNS], [COLUMNS]]
        inputs = [self.program.input(name, shape) for name, shape in zip(self.feeds, shapes, strict=True)]
        self.values: list[tuple[int, Array]] = [(inputs[0], self.feeds["x"])]
        self.small = [(b, a) for b, a in zip(inputs[1:], list(self.feeds.values())[1:], strict=True)]
        steps = [self.add, self.add, self.add, self.scale, self.turn, self.join, self.mix, self.backwards, self.most]
        for _ in range(int(self.rng.integers(4, 12))):
            step: Callable[[], tuple[int, Array]] = steps[self.rng.integers(len(steps))]
            self.values.append(step())
        for i in sorted({len(self.values) - 1, *self.rng.integers(1, len(self.values), 2).tolist()}):
            self.program.output(f"y{i}", self.values[i][0])
        self.wanted = {f"y{i}": value for i, (_, value) in enumerate(self.values)}

    def some(self) -> tuple[int, Array]:
        """A value, the last ones first."""
        return self.values[max(0, len(self.values) - 1 - int(self.rng.geometric(0.6)) + 1)]

    def owner(self) -> tuple[int, Array]:
        """A value that is no view, which views may look into."""
        buffers = self.program.json["buffers"]
        owners = [value for value in self.values if buffers[value[0]]["kind"] != "view"]
        return owners[self.rng.integers(len(owners))]

    def binary(self, op: str, a: tuple[int, Array], b: tuple[int, Array]) -> tuple[int, Array]:
        result = a[1] + b[1] if op == "add" else np.maximum(a[1], b[1])
        return self.program.binary(op, a[0], b[0], SHAPE), result

    def add(self) -> tuple[int, Array]:
        return self.binary("add", self.some(), self.some())

    def scale(self) -> tuple[int, Array]:
        """With an operand that has no part for each image."""
        return self.binary("max", self.some(), self.small[self.rng.integers(2)])

    def copied(self, view: int, shape: list[Any]) -> int:
        out = self.program.temp(shape)
        self.program.call("copy", [view], [out])
        return out

    def turn(self) -> tuple[int, Array]:
        """Each image transposed, and read as if it were not."""
        buffer, value = self.owner()
        shape = ["N", COLUMNS, ROWS]
        turned = self.copied(self.program.view(buffer, shape, [IMAGE, 1, COLUMNS]), shape)
        view = self.program.view(turned, SHAPE, [IMAGE, COLUMNS, 1])
        return view, np.ascontiguousarray(value.transpose(0, 2, 1)).reshape(value.shape)

    def join(self) -> tuple[int, Array]:
        """Written in parts, and every second column of that."""
        parts = [self.some(), self.some()]
        whole = self.program.temp(["N", ROWS, 2 * COLUMNS])
        stride = [2 * IMAGE, 2 * COLUMNS, 1]
        for i, (buffer, _) in enumerate(parts):
            self.program.call("copy", [buffer], [self.program.view(whole, SHAPE, stride, i * COLUMNS)])
        view = self.program.view(whole, SHAPE, [2 * IMAGE, 2 * COLUMNS, 2], 1)
        joined = np.concatenate([value for _, value in parts], -1)[..., 1::2]
        return self.copied(view, SHAPE), np.ascontiguousarray(joined)

    def mix(self) -> tuple[int, Array]:
        """Images and rows change places: no image is made of one."""
        buffer, value = self.owner()
        shape = [ROWS, "N", COLUMNS]
        mixed = self.copied(self.program.view(buffer, shape, [COLUMNS, IMAGE, 1]), shape)
        view = self.program.view(mixed, SHAPE, [IMAGE, COLUMNS, 1])
        return view, np.ascontiguousarray(value.transpose(1, 0, 2)).reshape(value.shape)

    def backwards(self) -> tuple[int, Array]:
        """The last image first."""
        buffer, value = self.owner()
        last = ["*", ["-", "N", 1], IMAGE]
        view = self.program.view(buffer, SHAPE, [-IMAGE, COLUMNS, 1], last)
        return self.copied(view, SHAPE), np.ascontiguousarray(value[::-1])

    def most(self) -> tuple[int, Array]:
        """With an operand that is made of all images."""
        buffer, value = self.some()
        most = self.program.temp([1, ROWS, COLUMNS])
        self.program.call("reduce", [buffer], [most], op="max", axes=[0], keepdims=True)
        return self.binary("add", (most, value.max(0, keepdims=True)), self.some())


@pytest.mark.sampled(3, by=lambda case: case["seed"] % 12)  # each batch on each number of threads
@pytest.mark.parametrize("seed", range(40))
def test_random_programs(seed: int) -> None:
    drawn = Drawn(seed, batch=(9, 13, 40)[seed % 3])
    session = session_of(drawn.program, threads=1 + seed // 3 % 4)
    for _ in range(2):
        for name, found in session.run(drawn.feeds).items():
            np.testing.assert_array_equal(found, drawn.wanted[name], err_msg=name)


def sums(length: int, rows: int = ROWS, columns: int = COLUMNS) -> Program:
    """Sums of x with itself, each call's result for the next one alone."""
    p = Program(symbol("N", 1))
    shape: list[Any] = ["N", rows, columns]
    y = p.input("x", shape)
    for i in range(length):
        y = p.binary("add", y, y, shape, f"sum.{i}")
    p.output("y", y)
    return p


@pytest.mark.parametrize("batch", [16, 64])
def test_what_calls_hand_on_takes_the_memory_of_few_images(batch: int) -> None:
    """Of 4 images, which are 1 MiB, two at a time; and of all of them the input and the result."""
    session = session_of(sums(5))
    x = numbers(batch, ROWS, COLUMNS)
    np.testing.assert_array_equal(session.run({"x": x})["y"], 32 * x)
    assert session.planned({"N": batch})["buffers"] == 2 * (batch + 4) * IMAGE * 4 + 5 * _native.RED_ZONE


@pytest.mark.parametrize("threads", [2, 3])
@pytest.mark.parametrize("left_over", [0, 1])
def test_each_worker_has_memory_for_its_own_images(threads: int, left_over: int) -> None:
    """Workers are at different calls: what one hands on has no place of what another does."""
    session = session_of(sums(5), threads)
    batch = 16 * threads + left_over
    x = numbers(batch, ROWS, COLUMNS)
    np.testing.assert_array_equal(session.run({"x": x})["y"], 32 * x)
    zones = (3 + 2 * threads) * _native.RED_ZONE
    assert session.planned({"N": batch})["buffers"] == 2 * (batch + 4 * threads) * IMAGE * 4 + zones


@pytest.mark.parametrize(("rows", "each"), [(1024, 2), (512, 2), (256, 4)])
def test_a_worker_has_two_groups_of_images_where_these_have_enough_rows(rows: int, each: int) -> None:
    """So that others take one of a slower worker's; of few rows all four of its images stay together."""
    session = session_of(sums(5, rows, 64), threads=2)
    x = numbers(8, rows, 64)
    np.testing.assert_array_equal(session.run({"x": x})["y"], 32 * x)
    zones = (3 + 2 * 2) * _native.RED_ZONE
    assert session.planned({"N": 8})["buffers"] == 2 * (8 + 2 * each) * rows * 64 * 4 + zones


@pytest.mark.parametrize("threads", [2, 4])
def test_whoever_takes_a_group_no_bit_shows_it(threads: int) -> None:
    """Which worker takes which images is another matter in each run."""
    session = session_of(rows(), threads)
    x = numbers(4 * threads, ROWS, COLUMNS)
    first = session.run({"x": x})
    for _ in range(20):
        for name, value in session.run({"x": x}).items():
            np.testing.assert_array_equal(value, first[name], err_msg=name)


def test_an_image_that_is_too_large_for_one_worker_is_shared() -> None:
    """Of 3 MiB: two workers have caches for it, one alone has not."""
    rows = 12 * ROWS
    session = session_of(sums(5, rows), threads=2)
    x = numbers(4, rows, COLUMNS)
    np.testing.assert_array_equal(session.run({"x": x})["y"], 32 * x)
    assert session.planned({"N": 4})["buffers"] == 2 * (4 + 1) * 12 * IMAGE * 4 + 5 * _native.RED_ZONE


def rows() -> Program:
    """Calls on rows of images: a norm, attention of two heads, a softmax, and rows as int8."""
    p = Program(symbol("N", 1))
    x = p.input("x", SHAPE)
    y = p.temp(SHAPE)
    p.call("layer_norm", [x], [y], eps=1e-5, weight=False, bias=False)
    heads = p.view(y, ["N", 2, ROWS, COLUMNS // 2], [IMAGE, COLUMNS // 2, COLUMNS, 1])
    mixed = p.temp(["N", 2, ROWS, COLUMNS // 2])
    p.call("attention", [heads, heads, heads], [mixed], scale=0.1, causal=False, heads_inside=False, mask="none")
    likely = p.temp(["N", 2, ROWS, COLUMNS // 2])
    p.call("softmax", [mixed], [likely], axis=-1)
    whole, scales = p.temp(["N", 2, ROWS, COLUMNS // 2], "int8"), p.temp(["N", 2, ROWS, 1])
    p.call("quantize_rows", [likely], [whole, scales])
    for name, value in {"mixed": mixed, "whole": whole, "scales": scales}.items():
        p.output(name, value)
    return p


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_rows_are_those_of_images_one_by_one(threads: int) -> None:
    x = numbers(20, ROWS, COLUMNS)
    found = session_of(rows(), threads).run({"x": x})
    one = session_of(rows())
    for i, image in enumerate(x):
        for name, value in one.run({"x": image[None]}).items():
            np.testing.assert_array_equal(found[name][i], value[0], err_msg=f"{name} of image {i}")


@pytest.mark.parametrize("threads", [1, 2])
def test_a_profile_shows_calls_and_not_their_parts(threads: int) -> None:
    session = session_of(sums(5), threads)
    items = session.profile({"x": numbers(16, ROWS, COLUMNS)})
    assert [item["call"] for item in items] == list(range(5))
    for item in items:
        assert item["out"] == [("float32", [16, ROWS, COLUMNS])] and item["in"] == 2 * item["out"]
        assert item["bytes"] == 3 * 16 * IMAGE * 4 and item["ns"] > 0


def test_a_call_has_the_time_of_every_worker_that_ran_parts_of_it() -> None:
    """No core moves a terabyte in a second: a call that has less time than that was counted where others ran it."""
    session, x = session_of(sums(5), 2), numbers(16, ROWS, COLUMNS)
    for _ in range(20):
        for item in session.profile({"x": x}):
            assert item["ns"] - item["waited_ns"] > item["bytes"] / 1e12 * 1e9 / 2


@pytest.mark.parametrize("batch", [2, 4, 8])
def test_operands_that_do_not_fit_the_batch_are_refused(batch: int) -> None:
    """Also where they have as many images as run together."""
    p = Program(symbol("N", 1), symbol("M", 1))
    x, other = p.input("x", SHAPE), p.input("other", ["M", 1, COLUMNS])
    for _ in range(4):
        x = p.binary("add", x, x, SHAPE)
    p.output("y", p.binary("add", x, other, SHAPE))
    with pytest.raises(_native.Error, match="operand 1 does not broadcast to the outputs' shape"):
        session_of(p).run({"x": numbers(16, ROWS, COLUMNS), "other": numbers(batch, 1, COLUMNS)})


def test_thousands_of_calls_are_planned_at_once() -> None:
    """Their plan once took the square of their number: 23 s of these, which take 0.01."""
    p = Program(symbol("N", 1))
    y = p.input("x", ["N", 8])
    for _ in range(20_000):
        y = p.binary("add", y, y, ["N", 8])
    p.output("y", y)
    session = session_of(p)
    before = time.process_time()
    session.planned({"N": 8})
    assert time.process_time() - before < 5
