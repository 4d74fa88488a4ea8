"""`ingot.quantize`: an engine whose convolutions and products compute in int8, with scales that data show."""

from __future__ import annotations

import dataclasses
import fnmatch
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import Any

from ingot.backends.device import DEFAULT, Device, device_of
from ingot.builder.algorithms import Tune
from ingot.builder.build import Request, built, conclude, scored_texts
from ingot.builder.garbage import seldom_collected
from ingot.builder.layers import Stored, network_of
from ingot.builder.measurements import Budget
from ingot.builder.network import build_network
from ingot.builder.phases import Phases
from ingot.builder.plans import Calibrated
from ingot.builder.refit import misfit
from ingot.builder.switches import Debug
from ingot.engine import self_test
from ingot.engine.session import Engine, as_array, load
from ingot.errors import InputError, UserError
from ingot.ir import Network
from ingot.ir.precision import scope
from ingot.ir.weight_format import AS_IS, format_of
from ingot.passes.calibrated import IS_QUANTISED, KEY, Choice, Layer, is_quantised, layers_of, prepared
from ingot.passes.clone import clone
from ingot.passes.weights import recipe_of, sizes
from ingot.progress import Asked, log, told
from ingot.quantization.data import Batches
from ingot.quantization.options import FIRST, LAST, MOST_BATCHES, SAMPLES, Metric, Options, check_smooth
from ingot.quantization.places import word_of
from ingot.quantization.ranges import AUTO
from ingot.quantization.report import NotTaken, Report, Speed, check_name, measured, write_accuracy
from ingot.quantization.running import Array, Feeds, Made, Maker
from ingot.quantization.search import FIRST_METHOD, Search
from ingot.quantization.seen import Seen
from ingot.quantization.smooth import Smoothing
from ingot.quantization.tuning import SHARE, WHY, Tuning, key_of, read, tuned
from ingot.source import is_engine
from ingot.words import SAME, check_words, precision_word

FEW = 32  # samples: with fewer a build says that scales follow from them alone
SHOWN = 6  # layers that a remark names, weights that an error names
LARGE = 0.1  # error of the outputs, of which a build warns
ELSEWHERE = (
    "whether it pays on {} is not timed, for that is not here; on an H100 the benchmarks' nets in int8 take 0.8 to 1.4 "
    "times as long as in float16 (docs/devices.md). A build there with the device cuda times both"
)


def quantize(
    source: Any,
    data: Any,
    inputs: Any = None,
    *,
    weights: Mapping[str, Any] | None = None,
    precision: str | None = None,
    dynamic: Any = None,
    method: str = AUTO,
    percentile: float | None = None,
    budget: float | None = None,
    metric: Metric | None = None,
    keep: str | Sequence[str] = (),
    bias_correction: bool = True,
    errors: bool = True,
    samples: int = SAMPLES,
    batches: int | None = MOST_BATCHES,
    tune: float | None = None,
    tune_file: str | os.PathLike[str] | None = None,
    always_int8: bool = False,
    smooth: float | None = None,
    kv: str = SAME,
    device: str | Device | None = None,
    report: bool = True,
    report_file: str | os.PathLike[str] | None = None,
    text: str | os.PathLike[str] | Sequence[str] | None = None,
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
        weights: the values of a Network's parameters by name, arrays as `Engine.refit` takes them; for no other source.
        method: mse, l3, entropy, percentile or min-max: how the largest magnitude is chosen from those that were seen;
            auto: l3 where it makes the error of the outputs clearly smaller, else mse.
        percentile: of the values that are told apart, for the method of this name (default: 99.99).
        budget: the largest relative error of an output (root mean square of the difference over that of the output in
            float), on the first `samples` samples. Layers stay float, those with the largest error first, until it is
            kept.
        metric: your own measure in its place: called with an engine, gives a number of which more is better. `budget`
            is then by how much it may fall below that of the float engine.
        keep: names of layers that stay float, with * and ? as in file names; first and last where none is named so.
        bias_correction: whether to add to each output what rounding the weights takes from its mean, where this makes
            the error smaller.
        errors: whether to measure the error of each layer alone; a budget needs it.
        samples: of the data that errors of the outputs are measured on, as far as batches can be cut. Choices between
            scales take the first 4 of them, errors of layers alone fewer where there are many layers.
        batches: that are read at most; None: all.
        tune: seconds to measure for which layers are faster in float on this machine, which stay float; and as in
            `ingot.build` which algorithms of convolutions. No measurement begins after that but of the whole net in
            int8 beside float, which is made in any case.
        tune_file: where this is kept (JSON). If it holds this network's, nothing is measured, and equal files give
            equal engines.
        always_int8: whether a net is built in int8 even if a few runs on this machine show that it is clearly slower
            then; by default it stays float. Equal data and options give equal engines only with it, or with a
            tune_file.
        smooth: of a language model, from 0 to 1: how far channels that are large in the rows of a product are made
            smaller there and larger in its weights. Default: what leaves the smallest error of each product.
        kv: of a language model, as for `ingot.build`.
        device: where the engine's sessions run unless they are told otherwise, as for `ingot.build`. On a GPU that is
            here int8 is timed beside float there, and not on the CPU.
        report: whether to compare the outputs with those in float32, as `ingot.build` does.
        report_file: where the quantisation report goes: .svg (a chart) or .json. Both engines are timed for it.
        text: of a language model, as for `ingot.build`; default: the data, which the calibration has seen then.
        progress, debug: as for `ingot.build`.

    Raises:
        UserError: wrong words, no samples, data by which no layer can be int8, a source that cannot be calibrated, a
            budget that no layer keeps.
        InputError: a batch that does not fit, by its number; weights of a Network that do not. ValueFault: NaN or
            infinite values in the network.
        What `ingot.build` raises.
    """
    if scope() is not None:
        raise UserError("quantize is called inside of a precision scope: call it outside, with its own precision=…")
    precision = precision_word(precision)
    check_words(precision, None, kv=kv)
    check_smooth(smooth)
    options = Options(
        method, percentile, budget, metric, keep, bias_correction, errors, samples, batches, tune, tune_file,
        always_int8,
    )  # fmt: skip
    report_file = None if report_file is None else check_name(report_file)
    calibration = Calibration(data, options, smooth is not None or kv != SAME, device_of(device))
    with told(progress) as tell, seldom_collected():
        request = Request(
            precision, report, None, 0, debug or Debug(), Phases(tell), calibrate=calibration,
            smooth=Smoothing(data, smooth, options.of_nets, report_file is not None and report is False), kv=kv,
            texts=scored_texts(text, report),
            tune=calibration.tune,
        )  # fmt: skip
        engine = _calibrated(source, inputs, weights, dynamic, request, calibration)
        calibration.conclude(engine, request.phases, report_file)
    if progress is None:
        conclude(engine)
        for remark in calibration.remarks:
            log.warning("%s", remark)
    return engine if device is None else engine.on(calibration.device)


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
        if request.texts is not None:
            raise UserError("a text is scored by a language model, from its folder: leave the text out")
        network, values, config, files = _of_network(source, weights) if isinstance(source, Network) else (
            _of_engine(source if isinstance(source, Engine) else load(source))
        )  # fmt: skip
        return build_network(
            network, values, config=config, files=files, report=request.report, phases=request.phases,
            debug=request.debug, calibrate=calibration, tune=request.tune,
        )  # fmt: skip
    if weights is not None:
        raise UserError("weights are the values of a Network's parameters; this source has its own")
    return built(source, inputs, dynamic, request)


def _of_network(network: Network, weights: Mapping[str, Any] | None) -> Any:
    if weights is None and network.parameters:
        raise UserError("a Network is quantised with weights={name: array}, the values of its parameters")
    return network, _fitting(network, {} if weights is None else weights), {"precision": "float32"}, {}


def _fitting(network: Network, weights: Any) -> dict[str, Array]:
    """The values of a network's parameters, as a refit would take them. Raises InputError with all that do not fit."""
    if not isinstance(weights, Mapping):
        raise UserError(f"weights must be the values of the parameters by name, not a {type(weights).__name__}")
    found: dict[str, Array] = {}
    faults: list[str] = []
    for name, parameter in {name: v for v in network.parameters for name in recipe_of(v).sources}.items():
        try:
            if name not in weights:
                why = "it has no value"
            else:
                found[name] = array = as_array(weights[name], name, "parameter")
                known = (parameter.dtype, sizes(parameter))  # of one with a recipe, whose sources the recipe checks
                why = "" if parameter.recipe else misfit(array, *known, "the network's")
        except UserError as e:
            why = str(e)
        if why:
            faults.append(f"{name}: {why}")
    if faults:
        more = [f"… and {len(faults) - SHOWN:,} more"] if len(faults) > SHOWN else []
        lines = "\n  ".join([*faults[:SHOWN], *more])
        raise InputError(f"the given weights do not fit network {network.name}:\n  {lines}")
    return found


def _of_engine(engine: Engine) -> Any:
    """The network of an engine as it stands after batch norms were folded, its weights, its config and files."""
    if KEY in engine.config or format_of(engine.config) != AS_IS:
        raise UserError("this engine is quantised already: start from its source, or from an engine in float")
    _check_kind(network_of(engine))
    network = prepared(network_of(engine))
    stored = Stored(engine, network_of(engine))
    if lacking := [name for v in network.parameters for name in stored.lacking(v)]:
        if is_quantised(network):
            raise UserError(f"the network of this engine {IS_QUANTISED}")
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
        self.float: Engine | None = None  # what the engine by the plan is compared with, and inputs of both
        self.wide: Engine | None = None  # the same where it is in float32
        self.feeds: Feeds = {}
        self.error: float | None = None  # of the plan's outputs, from those in float
        self.clipped: dict[str, float] = {}  # by layer the share of its input's values
        self.tuning: Tuning | None = None
        self.speed: tuple[frozenset[str], Speed] | None = None  # with these layers in int8
        self.not_taken: NotTaken | None = None
        self.remarks: list[str] = []
        self.budget = None if options.tune is None else Budget(options.tune, options.tune_file)

    @property
    def tune(self) -> Tune | None:
        """What chooses what convolutions and products take, of the kernels of this machine's processor."""
        return None if self.budget is None or self.device.runtime.name != DEFAULT else Tune(self.budget)

    def __call__(self, network: Network, weights: Mapping[str, Array], phases: Phases) -> Calibrated:
        _check_kind(network)
        if self.of_llm:
            raise UserError("smooth and kv are for language models, and this is a net: leave them out")
        ready = prepared(network)
        layers = layers_of(ready)
        make = Maker(weights)
        whys = _kept(layers, self.options.kept)
        if all(whys):
            if is_quantised(ready):
                raise UserError(f"network {network.name} {IS_QUANTISED}")
            why = "; ".join(dict.fromkeys(whys))[:300] or "it has no convolution and no product"
            raise UserError(f"network {network.name} has no layer that can be int8: {why}")
        with ThreadPoolExecutor(1) as behind:
            return self._planned(network, ready, layers, whys, make, phases, behind)

    def _planned(
        self, network: Network, ready: Network, layers: Sequence[Layer], whys: Sequence[str], make: Maker,
        phases: Phases, behind: Executor,
    ) -> Calibrated:  # fmt: skip
        """What the network becomes by the data. behind: a thread for what is done beside this one."""
        with phases.phase("calibrate") as done:
            seen = Seen(ready, make, layers, self.options)
            made: list[Future[Made]] = []  # after what calibrates, whose weights it takes over, and beside its runs
            batches = Batches(self.data, ready, self.options.batches)
            seen.read(batches, done, lambda: made.append(behind.submit(make, network)))
            self.float = made[0].result().engine
        choices = seen.choices(whys, FIRST_METHOD if self.options.method == AUTO else self.options.method)
        if all(choice.scale is None for choice in choices):
            raise UserError(f"by these data no layer of network {network.name} can be int8: {_whys(choices)}")
        if seen.samples < FEW:
            self.remarks.append(
                f"int8: scales follow from only {seen.samples} sample(s); a few hundred, as the network will see them, "
                "are usual"
            )
        if batches.flat:
            self.remarks.append(f"int8: input {', '.join(batches.flat)} is the same everywhere in the data")
        if flat := seen.flat:
            more = f" and {len(flat) - SHOWN} more" if len(flat) > SHOWN else ""
            self.remarks.append(
                f"int8: the input of {', '.join(flat[:SHOWN])}{more} was 0, or of one magnitude, in all the data: data "
                "as the network will see them give it a scale"
            )
        self.wide, self.feeds = None if seen.is_narrow else self.float, seen.kept[0]
        with phases.phase("choose"):
            search = Search(network, make, ready, seen, self.float, self.options, phases, behind)
        if self.budget is not None:
            choices = self._tuned(search, choices, phases, self.budget)
        plan = search.plan(choices, lambda choices: self._paying(search, choices, phases))
        self.error, self.clipped = plan.facts["error"], seen.clipped(plan.layers)
        best = search.made(plan.layers)
        return Calibrated(plan, self.feeds, best.compiled, best.tensors)

    def _tuned(self, search: Search, choices: list[Choice], phases: Phases, budget: Budget) -> list[Choice]:
        """The choices with layers in float where this is faster, by the file of measurements or by new ones."""
        names, file = [c.name for c in choices if c.scale is not None], budget.file
        key = key_of(search.ready, self.feeds, names)
        if file is not None:
            self.tuning, word = read(file, key, names)
            self.remarks += [f"tune: {word}: measured anew"] if word else []
        if self.tuning is None:
            compared: list[Speed] = []

            def make(floats: frozenset[str]) -> Engine:
                return search.made(_in_float(choices, floats)).engine

            def compare(engine: Engine) -> float:
                compared.append(measured(engine, search.float, self.feeds, self.timed, precise=False))
                return compared[-1].ratio

            with phases.phase("tune") as done, budget.clock(done, SHARE if self.tune else 1.0) as clock:
                self.tuning, untried = tuned(
                    key, search.made(choices).engine, search.float, self.feeds, names, make, clock, self.timed, compare
                )
                if untried:
                    self.remarks.append(
                        f"tune: the {clock.seconds:.3g} s for layers were over before whole runs were tried with "
                        f"{', '.join(untried[:SHOWN])} in float: more seconds try them"
                    )
            if len(self.tuning.floats) == len(names):
                with phases.phase("measure"):
                    self.not_taken = NotTaken(compared[0], *search.error_of(choices))
            self._say_tuned(compared, self.tuning, len(names))
            if file is not None:
                self.tuning.write(file)
        elif self.tuning.isa != (here := word_of(self.timed)):
            self.remarks.append(f"tune: {file} was measured at {self.tuning.isa}, and this machine has {here}")
        return _in_float(choices, frozenset(self.tuning.floats))

    def _say_tuned(self, speeds: Sequence[Speed], tuning: Tuning, able: int) -> None:
        """What whole runs showed. speeds: beside float, with all layers in int8 and with those that tuning chose."""
        if len(tuning.floats) < able:
            self.remarks.append(f"tune: {able - len(tuning.floats)} of {able} layers in int8: {speeds[-1]}")
        else:
            self.remarks.append(f"tune: it does not pay on this machine: {speeds[0]}, so that the net stays float")

    def _paying(self, search: Search, choices: list[Choice], phases: Phases) -> list[Choice]:
        """The choices; all layers in float where int8 takes clearly longer and nobody asked for it all the same.

        The reason that stays in the engine has no times, so that equal decisions give equal engines.
        """
        names = _int8(choices)
        if self.budget is not None or not names or self.device.is_architecture:  # no time of this CPU tells of a GPU
            return choices
        with phases.phase("measure"):
            speed = measured(search.made(choices).engine, search.float, self.feeds, self.timed, precise=False)
        self.speed = names, speed
        if not speed.is_slower or self.options.always_int8:
            return choices
        with phases.phase("measure"):
            self.not_taken = NotTaken(speed, *search.error_of(choices))
        why = f"a run of the net is faster in float, as measured on this machine ({speed.isa})"
        self.remarks.append(
            f"int8: it does not pay on this machine: {speed}, so that the net stays float; always_int8 (--always-int8) "
            "builds it in int8 all the same, and tune leaves single layers float"
        )
        return [c.in_float(why) if c.scale is not None else c for c in choices]

    def conclude(self, engine: Engine, phases: Phases, report_file: str | None) -> None:
        """What is measured of the engine that was built: remarks in its log, a self test, and the report as a file."""
        found = None
        if self.float is not None:
            with phases.phase("measure"):
                found = self.report(engine, whole=report_file is not None)
        engine.calibrated, engine.log = found, [*engine.log, *self.remarks]
        if found is not None and (test := self_test.made(engine, self.error)) is not None:
            engine.header["config"][self_test.KEY] = test
        if report_file is None:
            return
        if found is None:
            write_accuracy(engine.report, report_file)
        else:
            found.write(report_file)

    def report(self, engine: Engine, whole: bool) -> Report:
        """The report of the engine that was built by the plan, with its speed: as precisely as a file of it wants, if
        it is asked for as a `whole`; else a few runs, where nothing is tuned. What speaks against the plan, errors that
        are large and time that is not saved, becomes remarks.
        """
        assert self.float is not None
        algorithms = engine.summary.tuned
        report = dataclasses.replace(
            Report.of(engine), tuning=self.tuning, clipped=self.clipped, algorithms=algorithms,
            not_taken=self.not_taken,
        )  # fmt: skip
        int8 = [choice for choice in report.plan.layers if choice.scale is not None]
        if self.error is not None and self.error > LARGE:
            worst = sorted((c for c in int8 if c.error is not None), key=lambda c: -(c.error or 0.0))[:3]
            most = f" ({', '.join(f'{c.name} alone {c.error:.2g}' for c in worst)})" if worst else ""
            self.remarks.append(
                f"int8: the outputs have a relative error of {self.error:.2g}{most}: a budget leaves layers float"
            )
        if not int8 and self.not_taken is None:
            self.remarks.append(f"int8: all {len(report.plan.layers)} layers are float: {_whys(report.plan.layers)}")
        doubted = self.options.tune is None and bool(int8) and not self.device.is_architecture
        if int8 and (whole or doubted):
            known = self.speed is not None and self.speed[0] == _int8(report.plan.layers) and not whole
            speed = self.speed[1] if self.speed is not None and known else measured(
                engine, self.float, self.feeds, self.timed, precise=whole
            )  # fmt: skip
            report = dataclasses.replace(report, speed=speed)
        if doubted:
            self.remarks += report.doubts(self.options.always_int8)
        if int8 and self.device.is_architecture:
            self.remarks.append(f"int8: {ELSEWHERE.format(self.device)}")
        return report


def _int8(choices: Sequence[Choice]) -> frozenset[str]:
    """The names of the layers in int8."""
    return frozenset(choice.name for choice in choices if choice.scale is not None)


def _in_float(choices: Sequence[Choice], names: frozenset[str]) -> list[Choice]:
    return [c.in_float(WHY) if c.name in names else c for c in choices]


def _kept(layers: Sequence[Layer], keep: Sequence[str]) -> list[str]:
    """Why each layer stays float, or nothing. Raises UserError for a name that no layer has."""
    whys = [layer.why for layer in layers]
    able = [i for i, why in enumerate(whys) if not why]
    for name in keep:
        found = [i for i, layer in enumerate(layers) if layer.name == name or fnmatch.fnmatchcase(layer.name, name)]
        if not found and name in (FIRST, LAST):
            found = able[:1] if name == FIRST else able[-1:]
        elif not found and layers:
            names = ", ".join(layer.name for layer in layers)
            raise UserError(f"keep: no layer is named {name!r:.80}; there are {names[:600]}")
        for i in found:
            whys[i] = whys[i] or f"kept by the name {name}"
    return whys


def _whys(choices: Sequence[Choice]) -> str:
    """Why layers are float, each reason once."""
    return "; ".join(dict.fromkeys(choice.why for choice in choices))[:300]
