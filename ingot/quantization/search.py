"""The search for a plan: scales by row, corrected biases, methods and a budget, each by the errors of whole runs."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from typing import Any

import numpy as np

from ingot.builder.phases import Phases
from ingot.engine.session import Engine
from ingot.errors import UserError
from ingot.ir import Network
from ingot.ops.product import Matmul
from ingot.ops.spatial import ConvTranspose
from ingot.passes.calibrated import Choice, Layer, Plan, by_outputs, rows_as_stored
from ingot.quantization.mixed import left_float
from ingot.quantization.options import Metric, Options
from ingot.quantization.ranges import AUTO, PERCENTILE
from ingot.quantization.running import Apart, Feeds, Made, Maker, Prepared, Tried, differences, samples_of
from ingot.quantization.seen import Seen
from ingot.quantization.sensitivity import sensitivity

Array = np.ndarray[Any, Any]

BY_ROWS_LEAST = 0.8  # of the error with one scale for a tensor: rows with their own take a pass over them first
FIRST_METHOD, OTHER_METHOD = "mse", "l3"  # that auto tells apart
OTHER_LEAST = 0.9  # of the error by the first method, for the other to be taken
SHIFTED = 1 << 16  # elements of a weight that a shift takes at a time: what is made of them stays in the caches
CHOSEN_ON = 4  # samples of those that errors are measured on, that choices between whole plans are made by
ALONE = 32  # layers times samples that errors of single layers are measured with; one sample at least
AT_ONCE = 2  # layers whose shifts are computed side by side: each takes a few copies of its weight


class Search:
    """Finds the plan: errors of layers, the budget, and whether correcting biases helps.

    behind: where a candidate runs while the next one is lowered.
    """

    def __init__(
        self, network: Network, make: Maker, ready: Network, seen: Seen, in_float: Engine, options: Options,
        phases: Phases, behind: Executor,
    ) -> None:  # fmt: skip
        self.network, self.make, self.ready, self.float = network, make, ready, in_float
        self.values = Prepared(ready, make.weights)
        self.seen, self.options, self.phases, self.behind = seen, options, phases, behind
        self.all = seen.kept
        self.few = self._first(CHOSEN_ON)
        self.wanted = Tried(in_float, behind)
        for feeds, outputs in zip(self.all, seen.outputs, strict=True):
            if outputs is not None:
                self.wanted.know(feeds, outputs)
        self.facts: dict[str, Any] = {
            "method": FIRST_METHOD if options.method == AUTO else options.method, "batches": seen.batches,
        }  # fmt: skip
        if options.method == PERCENTILE:
            self.facts["percentile"] = options.magnitudes
        # By the best choices so far, and by those that they are tried with.
        self._made: dict[tuple[Choice, ...], tuple[Made, Tried]] = {}
        self._shift_of: dict[int, tuple[float, ...]] = {}

    def plan(self, choices: list[Choice], faster: Callable[[list[Choice]], list[Choice]]) -> Plan:
        """The plan from the first choices on. faster: leaves those float that are, before errors are measured."""
        with self.phases.phase("choose"):
            self.wanted.begin([*self.all, *self.few])
            for better in (self._by_rows, self._corrected, self._by_method):
                choices = self._settled(better(choices))
        choices = self._settled(faster(choices))
        if all(choice.scale is None for choice in choices):
            return Plan(tuple(choices), {**self._sampled(), "error": 0.0, "largest": 0.0})
        if self.options.errors:
            choices = self._with_errors(choices)
        if self.options.budget is not None:
            with self.phases.phase("budget") as done:
                choices = self._within(choices, done)
        error = self._apart(choices, self.all)
        return Plan(tuple(choices), {**self._sampled(), "error": error.relative, "largest": error.largest})

    def _sampled(self) -> dict[str, Any]:
        return {**self.facts, "samples": sum(samples_of(self.ready, kept) for kept in self.seen.kept)}

    def _by_rows(self, choices: list[Choice]) -> list[Choice]:
        """The choices with a scale for each row of the products' inputs, where most layers are products and one for the
        tensor costs much more: some tokens of an encoder are far larger than others."""
        rows = [
            dataclasses.replace(c, rows=c.scale is not None and isinstance(layer.node.op, Matmul))
            for c, layer in zip(choices, self.seen.layers, strict=True)
        ]
        products, layers = sum(c.rows for c in rows), sum(c.scale is not None for c in choices)
        if 2 * products <= layers:
            return choices
        for tried in (choices, rows):
            self._begin(tried, self.few)
        if self.options.bias_correction:
            self._shifts(choices)  # meanwhile: it takes the same ones of either
        return rows if self._error(rows, self.few) <= BY_ROWS_LEAST * self._error(choices, self.few) else choices

    def _by_method(self, choices: list[Choice]) -> list[Choice]:
        """The choices by mse, or by l3 where that makes the error clearly smaller and the choice is ours.

        mse leaves the smallest error of most values, and cuts off the largest, which may be those that count. So the
        largest difference of the outputs counts as much as their relative error.
        """
        if self.options.method != AUTO or all(c.scale is None or c.rows for c in choices):
            return choices
        scaled = self.seen.choices([c.why if c.scale is None else "" for c in choices], OTHER_METHOD)
        others = [
            dataclasses.replace(c, scale=new.scale, output=new.output) for c, new in zip(choices, scaled, strict=True)
        ]
        if self._apart(others, self.few).both > OTHER_LEAST * self._apart(choices, self.few).both:
            return choices
        self.facts["method"] = OTHER_METHOD
        return others

    def _with_errors(self, choices: list[Choice]) -> list[Choice]:
        batches = self._first(max(ALONE // len(choices), 1))
        with self.phases.phase("sensitivity") as done:
            found = sensitivity(self.ready, self.values, choices, batches, done)
        return [dataclasses.replace(c, error=e) for c, e in zip(choices, found, strict=True)]

    def _corrected(self, choices: list[Choice]) -> list[Choice]:
        """The choices with shifts, where these make the error smaller."""
        if not self.options.bias_correction:
            return choices
        self._begin(choices, self.few)
        shifts = self._shifts(choices)
        shifted = [dataclasses.replace(c, shift=shifts[i]) if i in shifts else c for i, c in enumerate(choices)]
        better = self._error(shifted, self.few) < self._error(choices, self.few)
        self.facts["bias_correction"] = better
        return shifted if better else choices

    def _shifts(self, choices: Sequence[Choice]) -> dict[int, tuple[float, ...]]:
        """By layer in int8 what rounding its weight takes from the mean of each output."""
        int8 = [i for i, c in enumerate(choices) if c.scale is not None]
        missing = [i for i in int8 if i not in self._shift_of]
        with ThreadPoolExecutor(min(AT_ONCE, len(os.sched_getaffinity(0)))) as pool:
            self._shift_of |= zip(missing, pool.map(self._shift, missing), strict=True)
        return {i: self._shift_of[i] for i in int8}

    def _shift(self, i: int) -> tuple[float, ...]:
        layer = self.seen.layers[i]
        weight = layer.weight.array if layer.weight.kind == "constant" else self.values[layer.weight.name]
        return _shift(weight, layer, self.seen.means[i].mean)

    def made(self, choices: Sequence[Choice]) -> Made:
        """The program by these choices, its tensors and its engine; errors of layers change none of them."""
        key = _key(choices)
        return self._made[key][0] if key in self._made else self.make(self.network, Plan(key, {}), self.ready)

    def _first(self, samples: int) -> list[Feeds]:
        """The first samples of those that errors are measured on."""
        found: list[Feeds] = []
        for batch in self.all:
            left = samples - sum(samples_of(self.ready, some) for some in found)
            if left <= 0:
                break
            found.append(self.seen.cut(batch, left))
        return found

    def _begin(self, choices: Sequence[Choice], batches: Sequence[Feeds]) -> None:
        """Makes an engine by these choices and runs it behind what else is done."""
        self._tried(choices).begin(batches)

    def _tried(self, choices: Sequence[Choice]) -> Tried:
        key = _key(choices)
        if key not in self._made:
            made = self.made(choices)
            self._made[key] = made, Tried(made.engine, self.behind)
        return self._made[key][1]

    def _apart(self, choices: Sequence[Choice], batches: Sequence[Feeds]) -> Apart:
        """How far the outputs by these choices are from those in float."""
        return differences(self._tried(choices).on(batches), self.wanted.on(batches))

    def error_of(self, choices: Sequence[Choice]) -> Apart:
        """How far the outputs by these choices are from those in float, on all samples that errors are measured on."""
        return self._apart(choices, self.all)

    def _settled(self, choices: list[Choice]) -> list[Choice]:
        """The choices; of what was made for others nothing is kept."""
        kept = _key(choices)
        self._made = {key: made for key, made in self._made.items() if key == kept}
        return choices

    def _error(self, choices: Sequence[Choice], batches: Sequence[Feeds]) -> float:
        return self._apart(choices, batches).relative

    def _within(self, choices: list[Choice], done: Callable[[int, int], None]) -> list[Choice]:
        """The choices with the fewest layers in float that keep the budget."""
        budget, metric = self.options.budget, self.options.metric
        assert budget is not None
        best = None if metric is None else _measured(metric, self.float)
        tried = 0

        def mixed(floats: frozenset[int]) -> list[Choice]:
            why = f"its error alone: without it the outputs keep to the budget of {budget:g}"
            return [c.in_float(why) if i in floats else c for i, c in enumerate(choices)]

        def within(floats: frozenset[int]) -> bool:
            nonlocal tried
            tried += 1
            done(tried, len(choices).bit_length() + 2)
            if metric is None or best is None:
                return self._error(self._settled(mixed(floats)), self.all) <= budget
            return best - _measured(metric, self.made(mixed(floats)).engine) <= budget

        chosen = mixed(left_float([c.error if c.scale is not None else None for c in choices], within))
        self.facts["budget"] = budget
        if metric is not None and best is not None:
            self.facts |= {"metric": _measured(metric, self.made(chosen).engine), "metric_float": best}
        return chosen


def _key(choices: Sequence[Choice]) -> tuple[Choice, ...]:
    """What says whether two plans give one program."""
    return tuple(dataclasses.replace(c, error=None) for c in choices)


def _shift(weight: Array, layer: Layer, mean: Array) -> tuple[float, ...]:
    """What rounding a weight takes from the mean of each output, for inputs of this mean in every channel.

    Borders of padding are taken for the inside, and outputs of a transposed convolution for their average.
    """
    op: Any = layer.node.op
    parted = by_outputs(weight, op)
    groups, inputs = parted.shape[0], parted.shape[2]
    rows = parted.reshape(-1, *parted.shape[2:])
    outputs, summed = len(rows), weight.size // max(len(rows), 1)
    means = np.repeat(mean.reshape(groups, inputs), summed // max(inputs, 1), axis=1)
    found = np.empty(outputs)
    each = max(SHIFTED // max(summed, 1), 1)
    wide, stored, lost = (np.empty((min(each, outputs), summed), kind) for kind in (np.float32, np.float32, np.float64))
    for begin in range(0, outputs, each):
        count = min(each, outputs - begin)
        some = wide[:count]
        some[...] = rows[begin : begin + each].reshape(count, -1)
        some -= rows_as_stored(some, stored[:count])  # exact in float32: one is 0, or they are within a factor of 2
        lost[:count] = some
        at = np.arange(begin, begin + count) * groups // outputs
        each_mean = means[at] if groups > 1 else np.broadcast_to(means, (count, summed))
        found[begin : begin + count] = np.einsum("ok,ok->o", lost[:count], each_mean)
    if isinstance(op, ConvTranspose):
        found /= math.prod(op.stride)
    return tuple(found.astype(np.float32).tolist())


def _measured(metric: Metric, engine: Engine) -> float:
    value = metric(engine)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UserError(f"metric must give a number, not a {type(value).__name__}") from None
    except OverflowError:
        raise UserError("metric gave an integer that no float holds") from None
    if math.isnan(number):
        raise UserError("metric gave NaN")
    return number
