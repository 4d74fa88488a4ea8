"""`ingot.quantize`: an engine whose convolutions and products compute in int8, with scales that data show."""

from __future__ import annotations

import dataclasses
import fnmatch
import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ingot.backends.device import Device, device_of
from ingot.builder.build import Calibrated, Debug, Phases, Request, build_network, built, conclude
from ingot.builder.layers import Stored, network_of
from ingot.engine import self_test
from ingot.engine.session import Engine, load
from ingot.errors import UserError
from ingot.ir import Network, Node
from ingot.ir.precision import scope
from ingot.ir.weight_format import AS_IS, format_of
from ingot.ops.product import Matmul
from ingot.ops.spatial import ConvTranspose
from ingot.passes.calibrated import KEY, LIMIT, Choice, Layer, Plan, groups_of, is_scale, layers_of, prepared
from ingot.passes.calibrated import weight_as_stored as rounded
from ingot.passes.clone import clone
from ingot.progress import Asked, log, told
from ingot.quantization.data import Batches
from ingot.quantization.mixed import left_float
from ingot.quantization.observers import Means, Observer
from ingot.quantization.places import word_of
from ingot.quantization.ranges import AUTO, check_method, range_of
from ingot.quantization.report import Report, check_name, measured, write_accuracy
from ingot.quantization.running import Apart, Feeds, Prepared, Taps, differences, made, run, samples_of
from ingot.quantization.sensitivity import sensitivity
from ingot.quantization.smooth import Smoothing
from ingot.quantization.tuning import WHY, Clock, Tuning, key_of, read, tuned
from ingot.source import is_engine
from ingot.words import SAME, check_words

Array = np.ndarray[Any, Any]
Metric = Callable[[Engine], float]

MOST_BATCHES = 1024  # that are read unless somebody wants more: an iterable may be endless
SAMPLES = 32  # of the data, that errors are measured on
FEW = 32  # samples: with fewer a build says that scales follow from them alone
FIRST, LAST = "first", "last"
LARGE = 0.1  # error of the outputs, of which a build warns
COMPARED = 0.5  # seconds for whole runs in int8 and in float, where no report of them is asked for
ELSEWHERE = (
    "whether it pays on {} is not timed, for that is not here; on an H100 the benchmarks' nets in int8 take 0.8 to 1.4 "
    "times as long as in float16 (docs/devices.md). A build there with the device cuda times both"
)
BY_ROWS_LEAST = 0.8  # of the error with one scale for a tensor: rows with their own take a pass over them first
FIRST_METHOD, OTHER_METHOD = "mse", "l3"  # that auto tells apart
OTHER_LEAST = 0.9  # of the error by the first method, for the other to be taken


@dataclass(frozen=True)
class Options:
    """How scales are chosen, and which layers stay float; see `quantize`."""

    method: str
    percentile: float
    budget: float | None
    metric: Metric | None
    keep: Sequence[str]
    bias_correction: bool
    errors: bool
    samples: int
    batches: int | None
    tune: float | None = None
    tune_file: str | os.PathLike[str] | None = None


def quantize(
    source: Any,
    data: Any,
    inputs: Any = None,
    *,
    weights: Mapping[str, Any] | None = None,
    precision: str | None = None,
    dynamic: Any = None,
    method: str = AUTO,
    percentile: float = 99.99,
    budget: float | None = None,
    metric: Metric | None = None,
    keep: str | Sequence[str] = (),
    bias_correction: bool = True,
    errors: bool = True,
    samples: int = SAMPLES,
    batches: int | None = MOST_BATCHES,
    tune: float | None = None,
    tune_file: str | os.PathLike[str] | None = None,
    smooth: float | None = None,
    kv: str = SAME,
    device: str | Device | None = None,
    report: bool = True,
    report_file: str | None = None,
    progress: Asked = None,
    debug: Debug | None = None,
) -> Engine:
    """An engine in calibrated INT8 (docs/quantization.md); of a language model, with smoothed rows (docs/weights.md).

    Convolutions, transposed convolutions and products with weights take int8: weights with a scale for each output,
    inputs with one for the tensor, which is the largest magnitude to tell apart divided by 127.

    Args:
        source: what `ingot.build` takes; a Network, or an Engine of a net.
        data: batches that the network is typically run on: a DataLoader, or any iterable of dicts by the inputs' names,
            of tuples in their order (what is left over, such as labels, is not read), or of arrays for one input; or
            the path of a .npz file. For a language model: the path of a text, or strings. It is read once. Floats
            become the inputs' type, nothing else is converted.
        inputs, precision, dynamic: as for `ingot.build`.
        weights: the values of a Network's parameters by name; for no other source.
        method: mse, l3, entropy, percentile or min-max: how the largest magnitude is chosen from those that were seen;
            auto: l3 where it makes the error of the outputs clearly smaller, else mse.
        percentile: of the values that are told apart, for the method of this name.
        budget: the largest relative error of an output (root mean square of the difference over that of the output in
            float), on the first `samples` samples. Layers stay float, those with the largest error first, until it is
            kept.
        metric: your own measure in its place: called with an engine, gives a number of which more is better. `budget`
            is then by how much it may fall below that of the float engine.
        keep: names of layers that stay float, with * and ? as in file names, and the words first and last.
        bias_correction: whether to add to each output what rounding the weights takes from its mean, where this makes
            the error smaller.
        errors: whether to measure the error of each layer alone; a budget needs it.
        samples: of the data that errors are measured on, as far as batches can be cut.
        batches: that are read at most; None: all.
        tune: seconds to measure for which layers are faster in float on this machine; they stay float. No new
            measurement begins after that.
        tune_file: where this is kept (JSON). If it holds this network's, nothing is measured, and equal files give
            equal engines.
        smooth: of a language model, from 0 to 1: how far channels that are large in the rows of a product are made
            smaller there and larger in its weights. Default: what leaves the smallest error of each product.
        kv: of a language model, as for `ingot.build`.
        device: where the engine's sessions run unless they are told otherwise, as for `ingot.build`. On a GPU that is
            here int8 is timed beside float there, and not on the CPU.
        report: whether to compare the outputs with those in float32, as `ingot.build` does.
        report_file: where the quantisation report goes: .svg (a chart) or .json. Both engines are timed for it.
        progress, debug: as for `ingot.build`.

    Raises:
        UserError: wrong words, no samples, data by which no layer can be int8, a source that cannot be calibrated, a
            budget that no layer keeps.
        InputError: a batch that does not fit, by its number. ValueFault: NaN or infinite values in the network.
        What `ingot.build` raises.
    """
    if scope() is not None:
        raise UserError("quantize is called inside of a precision scope: call it outside, with its own precision=…")
    check_words(precision, None, kv=kv)
    _check_smooth(smooth)
    options = _options(method, percentile, budget, metric, keep, bias_correction, errors, samples, batches)
    options = dataclasses.replace(options, **_tune_words(tune, tune_file))
    if report_file is not None:
        check_name(report_file)
    words = {"method": method != AUTO, "budget": budget is not None, "metric": metric is not None, "keep": bool(keep),
             "tune": tune is not None}  # fmt: skip
    smoothing = Smoothing(data, smooth, [word for word, given in words.items() if given])
    calibration = Calibration(data, options, smooth is not None or kv != SAME, device_of(device))
    with told(progress) as tell:
        phases = Phases(tell)
        request = Request(
            precision, report, None, 0, debug or Debug(), phases, calibrate=calibration, smooth=smoothing, kv=kv
        )
        engine = _calibrated(source, inputs, weights, dynamic, request, calibration)
        found = None
        if calibration.float is not None:
            with phases.phase("measure"):
                found = calibration.report(engine, whole=report_file is not None)
        engine.log = [*engine.log, *calibration.remarks]
    if found is None:
        if report_file is not None:
            write_accuracy(engine.report, report_file)
    else:
        if (test := self_test.made(engine, calibration.error)) is not None:
            engine.header["config"][self_test.KEY] = test
        if report_file is not None:
            found.write(report_file)
    if progress is None:
        conclude(engine)
        for remark in calibration.remarks:
            log.warning("%s", remark)
    return engine if device is None else engine.on(calibration.device)


def _check_smooth(smooth: Any) -> None:
    number = isinstance(smooth, int | float) and not isinstance(smooth, bool)
    if smooth is not None and not (number and 0 <= smooth <= 1):
        raise UserError(f"smooth must be a number from 0 to 1, not {smooth!r:.60}")


def _tune_words(tune: Any, file: str | os.PathLike[str] | None) -> dict[str, Any]:
    number = isinstance(tune, int | float) and not isinstance(tune, bool)
    if tune is not None and not (number and 0 < tune < math.inf):
        raise UserError(f"tune must be a number of seconds above 0, not {tune!r:.60}")
    if file is not None and tune is None:
        raise UserError("tune_file keeps what tune measures: give tune=SECONDS with it")
    return {"tune": tune, "tune_file": file}


def _calibrated(
    source: Any,
    inputs: Any,
    weights: Mapping[str, Any] | None,
    dynamic: Any,
    request: Request,
    calibration: Calibration,
) -> Engine:
    """The engine of any source."""
    if isinstance(source, Network | Engine) or (isinstance(source, str | os.PathLike) and is_engine(source)):
        if inputs is not None or dynamic is not None or request.precision is not None:
            raise UserError("inputs, dynamic and precision are for sources that are built; this one has its own")
        network, values, config, files = _of_network(source, weights) if isinstance(source, Network) else (
            _of_engine(source if isinstance(source, Engine) else load(source))
        )  # fmt: skip
        return build_network(
            network, values, config=config, files=files, report=request.report, phases=request.phases,
            debug=request.debug, calibrate=calibration,
        )  # fmt: skip
    if weights is not None:
        raise UserError("weights are the values of a Network's parameters; this source has its own")
    return built(source, inputs, dynamic, request)


def _options(
    method: str, percentile: float, budget: Any, metric: Any, keep: str | Sequence[str], bias_correction: bool,
    errors: bool, samples: int, batches: int | None,
) -> Options:  # fmt: skip
    check_method(method, percentile)
    number = isinstance(budget, int | float) and not isinstance(budget, bool)
    if budget is not None and not (number and 0 <= budget < math.inf):
        raise UserError(f"budget must be a number from 0 on, not {budget!r:.60}")
    if metric is not None and (budget is None or not callable(metric)):
        raise UserError("metric is a function of an engine, and budget says by how much it may fall: give both")
    if budget is not None and not errors:
        raise UserError("a budget needs the error of each layer: leave out errors=False")
    for name, value in (("samples", samples), ("batches", batches)):
        if value is not None and (type(value) is not int or value < 1):
            raise UserError(f"{name} must be an int of at least 1, not {value!r:.60}")
    names = (keep,) if isinstance(keep, str) else tuple(keep)
    return Options(method, percentile, budget, metric, names, bias_correction, errors, samples, batches)


def _of_network(network: Network, weights: Mapping[str, Any] | None) -> Any:
    if weights is None and network.parameters:
        raise UserError("a Network is quantised with weights={name: array}, the values of its parameters")
    return network, dict(weights or {}), {"precision": "float32"}, {}


def _of_engine(engine: Engine) -> Any:
    """The network of an engine as it stands after batch norms were folded, its weights, its config and files."""
    if KEY in engine.config or format_of(engine.config) != AS_IS:
        raise UserError("this engine is quantised already: start from its source, or from an engine in float")
    _check_kind(network_of(engine))
    network = prepared(network_of(engine))
    stored = Stored(engine, network_of(engine))
    if lacking := [name for v in network.parameters for name in stored.lacking(v)]:
        raise UserError(
            f"{', '.join(lacking[:8])} {'are' if len(lacking) > 1 else 'is'} stored only in a form that cannot be "
            "undone, such as folded with a batch norm: start from the engine's source"
        )
    weights = stored.make({v.name: v for v in network.parameters})
    new = clone(network)
    for value in new.parameters:
        value.recipe = None
    config = {name: value for name, value in engine.config.items() if name not in ("aliases", "report")}
    return new, weights, config, engine.files()


def _check_kind(network: Network) -> None:
    if network.states:
        raise UserError(
            "a language model is calibrated from its folder, with a text as data, and not from an engine or a Network"
        )


class Calibration:
    """What makes the plan of a network when it is built."""

    def __init__(self, data: Any, options: Options, of_llm: bool, device: Device) -> None:
        if options.tune is not None and device.is_architecture:
            raise UserError(f"tune measures runs, and {device} has no GPU to run on: tune there, with device='cuda'")
        self.data, self.options, self.device = data, options, device
        self.timed = Device() if device.is_architecture else device  # where int8 is timed beside float
        self.of_llm = of_llm  # whether something was asked for that only a language model has
        self.float: Engine | None = None  # once there is a plan, the engine that it is compared with, and its inputs
        self.feeds: Feeds = {}
        self.error: float | None = None  # of the plan's outputs, from those in float
        self.clipped: dict[str, float] = {}  # by layer the share of its input's values
        self.tuning: Tuning | None = None
        self.remarks: list[str] = []

    def __call__(self, network: Network, weights: Mapping[str, Array], phases: Phases) -> Calibrated:
        _check_kind(network)
        if self.of_llm:
            raise UserError("smooth and kv are for language models, and this is a net: leave them out")
        ready = prepared(network)
        layers = layers_of(ready)
        values = Prepared(ready, weights)
        whys = _kept(layers, self.options.keep)
        if all(whys):
            why = "; ".join(dict.fromkeys(whys))[:300] or "it has no convolution and no product"
            raise UserError(f"network {network.name} has no layer that can be int8: {why}")
        with phases.phase("calibrate") as done:
            seen = Seen(ready, values, layers, self.options)
            seen.read(Batches(self.data, ready, self.options.batches), done)
        choices = seen.choices(whys, FIRST_METHOD if self.options.method == AUTO else self.options.method)
        if all(choice.scale is None for choice in choices):
            raise UserError(f"by these data no layer of network {network.name} can be int8: {_whys(choices)}")
        if seen.samples < FEW:
            self.remarks.append(
                f"int8: scales follow from only {seen.samples} sample(s); a few hundred, as the network will see them, "
                "are usual"
            )
        search = _Search(network, weights, ready, values, seen, self.options, phases)
        self.float, self.feeds = search.float, seen.kept[0]
        if self.options.tune is not None:
            choices = self._tuned(search, choices, phases)
        plan = search.plan(choices)
        self.error, self.clipped = plan.facts["error"], seen.clipped(plan.layers)
        return Calibrated(plan, self.feeds)

    def _tuned(self, search: _Search, choices: list[Choice], phases: Phases) -> list[Choice]:
        """The choices with layers in float where this is faster, by the file of measurements or by new ones."""
        names, file = [c.name for c in choices if c.scale is not None], self.options.tune_file
        key = key_of(search.ready, self.feeds, names)
        if file is not None:
            self.tuning, word = read(file, key, names)
            self.remarks += [f"tune: {word}: measured anew"] if word else []
        if self.tuning is None:
            assert self.options.tune is not None

            def make(floats: frozenset[str]) -> Engine:
                return search.engine(_in_float(choices, floats))

            with phases.phase("tune") as done:
                clock = Clock(self.options.tune, done)
                self.tuning = tuned(
                    key, search.engine(choices), search.float, self.feeds, names, make, clock, self.timed
                )
            if file is not None:
                self.tuning.write(file)
        elif self.tuning.isa != (here := word_of(self.timed)):
            self.remarks.append(f"tune: {file} was measured at {self.tuning.isa}, and this machine has {here}")
        return _in_float(choices, frozenset(self.tuning.floats))

    def report(self, engine: Engine, whole: bool) -> Report:
        """The report of the engine that was built by the plan, with its speed: as precisely as a file of it wants, if
        it is asked for as a `whole`; else a few runs, where nothing is tuned. What speaks against the plan, errors that
        are large and time that is not saved, becomes remarks.
        """
        assert self.float is not None
        report = dataclasses.replace(Report.of(engine), tuning=self.tuning, clipped=self.clipped)
        int8 = [choice for choice in report.plan.layers if choice.scale is not None]
        if self.error is not None and self.error > LARGE:
            worst = sorted((c for c in int8 if c.error is not None), key=lambda c: -(c.error or 0.0))[:3]
            most = f" ({', '.join(f'{c.name} alone {c.error:.2g}' for c in worst)})" if worst else ""
            self.remarks.append(
                f"int8: the outputs have a relative error of {self.error:.2g}{most}: a budget leaves layers float"
            )
        if not int8:
            self.remarks.append(f"int8: all {len(report.plan.layers)} layers are float: {_whys(report.plan.layers)}")
        doubted = self.options.tune is None and bool(int8)
        if whole or doubted:
            speed = measured(engine, self.float, self.feeds, self.timed, math.inf if whole else COMPARED)
            report = dataclasses.replace(report, speed=speed)
        if doubted:
            self.remarks += report.doubts
        if int8 and self.device.is_architecture:
            self.remarks.append(f"int8: {ELSEWHERE.format(self.device)}")
        return report


def _in_float(choices: Sequence[Choice], names: frozenset[str]) -> list[Choice]:
    return [c.in_float(WHY) if c.name in names else c for c in choices]


def _kept(layers: Sequence[Layer], keep: Sequence[str]) -> list[str]:
    """Why each layer stays float, or nothing. Raises UserError for a name that no layer has."""
    whys = [layer.why for layer in layers]
    able = [i for i, why in enumerate(whys) if not why]
    for name in keep:
        if name in (FIRST, LAST):
            found = (able[:1] if name == FIRST else able[-1:]) or [0]
        else:
            found = [i for i, layer in enumerate(layers) if fnmatch.fnmatchcase(layer.name, name)]
        if not found:
            names = ", ".join(layer.name for layer in layers)
            raise UserError(f"keep: no layer is named {name!r:.80}; there are {names[:600]}")
        for i in found:
            whys[i] = whys[i] or f"kept by the name {name}"
    return whys


# ----------------------------------------------------------------------------------------------- what the data show


class Seen:
    """What the values of a network were on the data: magnitudes by group, means by layer; and samples for errors."""

    def __init__(
        self, network: Network, weights: Mapping[str, Array], layers: Sequence[Layer], options: Options
    ) -> None:
        self.network, self.weights, self.layers, self.options = network, weights, layers, options
        self.groups = groups_of(layers)
        self.observers = [Observer() for _ in self.groups]
        self.means = {i: Means(_channels(layer.node)) for i, layer in enumerate(layers) if not layer.why}
        self.kept: list[Feeds] = []
        self.batches = self.samples = 0

    def read(self, batches: Batches, done: Callable[[int, int], None]) -> None:
        """Runs the network on all batches."""
        sources = [v for group in self.groups for v in group]
        group_of = {v.name: self.observers[i] for i, group in enumerate(self.groups) for v in group}
        means: dict[str, list[Means]] = {}
        for i, mean in self.means.items():
            means.setdefault(self.layers[i].node.inputs[0].name, []).append(mean)
        read = [self.network.values[name] for name in means]
        taps = Taps(self.network, self.weights, list(dict.fromkeys((*sources, *read))))
        for number, feeds in batches:
            for found in taps.run(feeds, number):
                for name, array in found.items():
                    if name in group_of:
                        group_of[name].add(array, f"batch {number} of data: %{name} of network {self.network.name}")
                    for mean in means.get(name, ()):
                        mean.add(array)
            self._keep(feeds)
            self.batches += 1
            self.samples += samples_of(self.network, feeds)
            done(number + 1, batches.total or number + 2)

    def _keep(self, feeds: Feeds) -> None:
        """Keeps the first samples, in whole batches where these cannot be cut."""
        missing = self.options.samples - sum(samples_of(self.network, kept) for kept in self.kept)
        if missing <= 0:
            return
        first = self.network.inputs[0].shape[0] if self.network.inputs[0].shape else 1
        alike = all(v.shape and v.shape[0] == first for v in self.network.inputs)
        if alike and not isinstance(first, int) and missing >= getattr(first, "min", math.inf):
            feeds = {name: array[:missing] for name, array in feeds.items()}
        self.kept.append({name: np.array(array) for name, array in feeds.items()})

    def choices(self, whys: Sequence[str], method: str) -> list[Choice]:
        """The layers with their scales by a method, all as int8 as they can be."""
        scale_of: dict[str, float] = {}
        unseen: set[str] = set()
        for group, seen in zip(self.groups, self.observers, strict=True):
            unseen |= set() if seen.any else {v.name for v in group}
            scale = range_of(seen, method, self.options.percentile) / LIMIT
            scale_of |= {v.name: float(np.float32(scale)) for v in group}
        found = []
        for layer, why in zip(self.layers, whys, strict=True):
            scale = 0.0 if why else scale_of[layer.sources[0].name]
            if not why and not is_scale(scale):
                if layer.sources[0].name in unseen:
                    why = "its input had no elements in the data"
                else:
                    why = "its input was 0 in all the data" if not scale else "its input is too small for a scale"
            choice = Choice(layer.name, layer.node.op.name, None if why else scale, why=why)
            waits = 0.0 if why or layer.summand is None else scale_of[layer.summand.name]
            found.append(dataclasses.replace(choice, output=waits) if is_scale(waits) else choice)
        return found

    def clipped(self, choices: Sequence[Choice]) -> dict[str, float]:
        """By layer the share of its input's values that would be integers beyond LIMIT; not of rows with own scales."""
        seen = {v.name: observer for group, observer in zip(self.groups, self.observers, strict=True) for v in group}
        return {
            c.name: seen[layer.sources[0].name].beyond(c.scale * (LIMIT + 0.5))
            for layer, c in zip(self.layers, choices, strict=True)
            if c.scale is not None and not c.rows
        }


def _whys(choices: Sequence[Choice]) -> str:
    """Why layers are float, each reason once."""
    return "; ".join(dict.fromkeys(choice.why for choice in choices))[:300]


def _channels(node: Node) -> int:
    """The dimension of a layer's input that its weight sums over."""
    return -1 if isinstance(node.op, Matmul) or node.op.channels_last else 1  # type: ignore[attr-defined]


def _shift(weight: Array, layer: Layer, mean: Array) -> tuple[float, ...]:
    """What rounding a weight takes from the mean of each output, for inputs of this mean in every channel.

    Borders of padding are taken for the inside, and outputs of a transposed convolution for their average.
    """
    op: Any = layer.node.op
    lost = weight.astype(np.float64) - rounded(weight, layer.node)
    if isinstance(op, Matmul):
        found = (lost if op.transpose_b else lost.T) @ mean
    elif isinstance(op, ConvTranspose):
        found = lost.reshape(*lost.shape[:2], -1).sum(-1).T @ mean / math.prod(op.stride)
    else:
        summed = lost.reshape(op.groups, len(lost) // op.groups, lost.shape[1], -1).sum(-1)
        found = (summed @ mean.reshape(op.groups, -1, 1)).reshape(-1)
    return tuple(found.astype(np.float32).tolist())


# ------------------------------------------------------------------------------------------------------- the choices


class _Search:
    """Finds the plan: errors of layers, the budget, and whether correcting biases helps."""

    def __init__(
        self, network: Network, weights: Mapping[str, Array], ready: Network, values: Prepared, seen: Seen,
        options: Options, phases: Phases,
    ) -> None:  # fmt: skip
        self.network, self.weights, self.ready, self.values = network, weights, ready, values
        self.seen, self.options, self.phases = seen, options, phases
        self.float = made(network, weights).engine
        self.wanted = [run(self.float, feeds, i) for i, feeds in enumerate(seen.kept)]
        self.facts: dict[str, Any] = {
            "method": FIRST_METHOD if options.method == AUTO else options.method, "batches": seen.batches,
        }  # fmt: skip
        self._known: dict[tuple[Choice, ...], Apart] = {}
        if options.method == "percentile":
            self.facts["percentile"] = options.percentile

    def plan(self, choices: list[Choice]) -> Plan:
        with self.phases.phase("choose"):
            choices = self._by_method(self._corrected(self._by_rows(choices)))
        if self.options.errors:
            choices = self._with_errors(choices)
        if self.options.budget is not None:
            with self.phases.phase("budget") as done:
                choices = self._within(choices, done)
        error = self._apart(choices)
        facts = {**self.facts, "samples": sum(samples_of(self.ready, kept) for kept in self.seen.kept),
                 "error": error.relative, "largest": error.largest}  # fmt: skip
        return Plan(tuple(choices), facts)

    def _by_rows(self, choices: list[Choice]) -> list[Choice]:
        """The choices with a scale for each row of the products' inputs, where most layers are products and one for the
        tensor costs much more: some tokens of an encoder are far larger than others."""
        rows = [
            dataclasses.replace(c, rows=c.scale is not None and isinstance(layer.node.op, Matmul))
            for c, layer in zip(choices, self.seen.layers, strict=True)
        ]
        products, layers = sum(c.rows for c in rows), sum(c.scale is not None for c in choices)
        return rows if 2 * products > layers and self._error(rows) <= BY_ROWS_LEAST * self._error(choices) else choices

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
        if self._apart(others).both > OTHER_LEAST * self._apart(choices).both:
            return choices
        self.facts["method"] = OTHER_METHOD
        return others

    def _with_errors(self, choices: list[Choice]) -> list[Choice]:
        with self.phases.phase("sensitivity") as done:
            found = sensitivity(self.ready, self.values, choices, self.seen.kept, self.wanted, done)
        return [dataclasses.replace(c, error=e) for c, e in zip(choices, found, strict=True)]

    def _corrected(self, choices: list[Choice]) -> list[Choice]:
        """The choices with shifts, where these make the error smaller."""
        if not self.options.bias_correction:
            return choices
        shifted = [
            c if c.scale is None else dataclasses.replace(c, shift=self._shift(i)) for i, c in enumerate(choices)
        ]
        self.facts["bias_correction"] = better = self._error(shifted) < self._error(choices)
        return shifted if better else choices

    def _shift(self, i: int) -> tuple[float, ...]:
        layer = self.seen.layers[i]
        weight = layer.weight.array if layer.weight.kind == "constant" else self.values[layer.weight.name]
        return _shift(weight, layer, self.seen.means[i].mean)

    def engine(self, choices: Sequence[Choice]) -> Engine:
        """An engine by these choices."""
        return made(self.network, self.weights, Plan(tuple(choices), {})).engine

    def _apart(self, choices: Sequence[Choice]) -> Apart:
        """How far the outputs by these choices are from those in float."""
        key = tuple(dataclasses.replace(c, error=None) for c in choices)
        if key not in self._known:
            engine = self.engine(choices)
            found = [run(engine, feeds, i) for i, feeds in enumerate(self.seen.kept)]
            self._known[key] = differences(found, self.wanted)
        return self._known[key]

    def _error(self, choices: Sequence[Choice]) -> float:
        return self._apart(choices).relative

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
                return self._error(mixed(floats)) <= budget
            return best - _measured(metric, self.engine(mixed(floats))) <= budget

        chosen = mixed(left_float([c.error if c.scale is not None else None for c in choices], within))
        self.facts["budget"] = budget
        if metric is not None and best is not None:
            self.facts |= {"metric": _measured(metric, self.engine(chosen)), "metric_float": best}
        return chosen


def _measured(metric: Metric, engine: Engine) -> float:
    value = metric(engine)
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise UserError(f"metric must give a number, not a {type(value).__name__}") from None
    if math.isnan(number):
        raise UserError("metric gave NaN")
    return number
