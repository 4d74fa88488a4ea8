"""`ingot.build`: from a Hugging Face directory, a Module, a file of torch or ONNX, or an engine file to an Engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ingot import dtypes, foreign, models
from ingot.backends.device import Device, device_of
from ingot.builder import adapter as lora_adapter
from ingot.builder import report as accuracy
from ingot.builder import text_loss
from ingot.builder.algorithms import OF_LLM, Tune, requested
from ingot.builder.blame import blame
from ingot.builder.compile import Beside, Borrowed
from ingot.builder.garbage import seldom_collected
from ingot.builder.network import build_network
from ingot.builder.phases import Phases
from ingot.builder.plans import Calibrate, Smooth
from ingot.builder.switches import Debug
from ingot.builder.text_loss import texts_of
from ingot.engine.inputs import OTHER_SIZES, sizes_that_run
from ingot.engine.session import Engine, load
from ingot.errors import DTypeError, FileError, InputError, ModuleError, UserError
from ingot.frontends import onnx, torch_export
from ingot.frontends.checkpoint import resolve_directory
from ingot.frontends.comparing import Inputs, Peer, compare, seeded_inputs
from ingot.frontends.gguf.model import is_gguf
from ingot.frontends.lora.adapter import Adapter, check_scale, read_adapter
from ingot.frontends.quantized.model import AS_FLOATS
from ingot.frontends.recording import Imported
from ingot.ir import Network, Spec
from ingot.ir.precision import scope
from ingot.ir.weight_format import AS_IS, WeightFormat, weight_format
from ingot.models.weights import RandomWeights, parameter_specs
from ingot.nn import Module, trace
from ingot.passes.precision import in_precision
from ingot.passes.widen import NARROW, widen, without_float64
from ingot.progress import Asked, log, phase_line, told, watched
from ingot.words import SAME, check_built, check_words, precision_word

Array = np.ndarray[Any, Any]

BUILT = (".pt2", ".onnx")  # files of networks that have no adapters


@dataclass(frozen=True)
class Request:
    """What `build` was asked for, beside the source."""

    precision: str | None
    report: bool | Mapping[str, Any]
    weights_from: str | None
    seed: int
    debug: Debug
    phases: Phases
    lora: str | os.PathLike[str] | None = None
    lora_scale: float | None = None
    weights: WeightFormat = AS_IS
    calibrate: Calibrate | None = None
    smooth: Smooth | None = None  # of language models, in the place of `calibrate`
    kv: str = SAME
    texts: Sequence[str] | None = None  # on which the report says what the formats of a language model cost
    tune: Tune | None = None


def build(
    source: Any,
    inputs: Any = None,
    *,
    precision: str | None = None,
    weights: str = SAME,
    activations: str = SAME,
    kv: str = SAME,
    device: str | Device | None = None,
    dynamic: Any = None,
    report: bool | Mapping[str, Any] = True,
    weights_from: str | None = None,
    seed: int = 0,
    progress: Asked = None,
    debug: Debug | None = None,
    lora: str | os.PathLike[str] | None = None,
    lora_scale: float | None = None,
    text: str | os.PathLike[str] | Sequence[str] | None = None,
    head: str | None = None,
    embeddings: str | None = None,
    tune: float | None = None,
    tune_file: str | os.PathLike[str] | None = None,
    tune_sizes: Mapping[str, int] | None = None,
) -> Engine:
    """An engine of `source`.

    Args:
        source: a Module, a torch.nn.Module, a torch.export.ExportedProgram, a file of torch.export.save (.pt2), an
            ONNX file (.onnx), a GGUF file (.gguf), the folder of a Hugging Face model, or an engine file (which is
            opened).
        inputs: for a Module, Specs by the names of forward's parameters; for a torch module, example inputs: a tuple,
            or a dict by name.
        precision: float32, bfloat16 or float16 (also "bf16", torch.bfloat16); default what the checkpoint or the Module
            is in. A network's inputs and outputs keep their types, with casts at the border. A network of float64, by a
            parameter or an input, is built only when this is given: then nothing inside is float64. A float32 network
            may compute in float64.
        weights: how the matrices of linear layers and the tables are stored: same (in the precision), int8 with a scale
            for each output, or int4-g32, int4-g64, int4-g128 with one for so many inputs (tables: int8), each of them
            with zero points too as int4-g32-asym and so on; or fp8 (e4m3) with a scale for each output (tables: int8).
            Products are computed in the precision; engine.log says which weights stay floats.
        activations: what rows become before they meet such a matrix: same (the precision), or int8 with a scale for
            each row, which wants weights of int8 or int4 (sums are then of whole numbers), or fp8 with a scale for each
            row, which wants weights of fp8.
        kv: how the KV cache of a language model is stored: same (in the precision), int8 with a scale for each
            key and value of a head, or fp8, which a CPU keeps as int8 (docs/weights.md).
        device: where the engine's sessions run unless they are told otherwise ("torch:cuda"); the engine, and the file
            that it is saved to, is built for the CPU.
        dynamic: for a torch module, which dimensions of its inputs may change and their names: {"x": {0: "N"}}, or
            {0: ingot.Dim("N", 1, 8, 64)} with bounds. A Module's Specs say it themselves, a file says it too.
        report: compare with float32 layer by layer, and what was imported with its source: on seeded or example
            inputs, on the arrays given here by name, or not (False).
        weights_from: "random" takes seeded weights of the true shapes instead of the stored ones.
        progress: called with (phase, done, total). By default a terminal gets a bar, and at the end a line with the
            seconds of each phase; False shows neither. By default too, host calls are logged as a warning of the logger
            "ingot.build", with their share of a run's time.
        debug: see Debug.
        lora: the folder of a LoRA adapter, which is merged into the weights (docs/lora.md).
        lora_scale: multiplies the adapter's own scale; default 1.
        text: of a language model, the path of a text or strings: the report says how many nats per token worse the
            engine foresees their beginning than its source does (docs/weights.md). That needs memory for both.
        head: how the product that makes logits is stored: same, int8, or int4 as for weights; default: as `weights`.
        embeddings: how tables are stored: same or int8; default: same, or int8 if weights are anything else.
        tune: of a net, seconds to measure on this machine which algorithm of each convolution is the fastest, and how
            many threads: on the arrays of `report` or the example inputs, else on seeded ones (docs/tuning.md).
        tune_file: where this is kept (JSON). If it holds this net's, nothing is measured, and equal files give equal
            engines.
        tune_sizes: of the dims that runs choose, for seeded inputs; default: as for `ingot bench`.

    Raises:
        CheckpointError, ModuleError, OpError, NetworkError, UserError: what is wrong with the source or the request.
        DTypeError: a network of float64, without a precision to compute it in.
        UserError: also inside of a precision scope, which is for what a Module records.
    """
    if scope() is not None:
        raise UserError("build is called inside of a precision scope: call it outside, with its own precision=…")
    precision = precision_word(precision)
    check_words(precision, weights, activations, kv)
    if weights_from not in (None, "random"):
        raise UserError(f"weights_from must be 'random' or left out, not {weights_from!r}")
    where = device_of(device)
    tuner = requested(tune, tune_file, tune_sizes, where)
    with told(progress) as tell:
        request = Request(
            precision, report, weights_from, seed, debug or Debug(), Phases(tell), lora, _lora_scale(lora, lora_scale),
            weight_format(weights, activations, head, embeddings), kv=kv, texts=scored_texts(text, report),
            tune=tuner,
        )  # fmt: skip
        engine = built(source, inputs, dynamic, request)
    if progress is None:
        conclude(engine)
    return engine if device is None else engine.on(where)


def scored_texts(text: Any, report: Any) -> list[str] | None:
    """The texts of the word `text`. Raises UserError for what is none, or where there is no report."""
    if text is not None and report is False:
        raise UserError("what a text costs is said in the report: leave report=False (--no-report) out, or the text")
    return None if text is None else texts_of(text, "scored")


def conclude(engine: Engine) -> None:
    """What is worth knowing of a build that nobody watches in another way."""
    if engine.seconds and watched():
        print(phase_line(engine.seconds), file=sys.stderr)
    if engine.summary is not None and engine.summary.host:
        log.warning("%s; engine.summary says where, why, and what to do", engine.summary.host_words())


def built(source: Any, inputs: Any, dynamic: Any, request: Request) -> Engine:
    """The engine of any source that `build` takes, by a request whose words are checked."""
    if request.lora is not None and (not isinstance(source, str | os.PathLike) or str(source).endswith(BUILT)):
        raise UserError("lora is for the folder of a Hugging Face model, or for an engine of one")
    if request.texts is not None and not _is_model(source):
        raise UserError("a text is scored by a language model, from its folder or a GGUF file: leave the text out")
    if isinstance(source, Module):
        if dynamic is not None:
            raise UserError(
                "dynamic is for sources with example inputs; give a Module's inputs as Specs with ingot.Dim sizes"
            )
        return _build_module(source, inputs, request)
    if not isinstance(source, str | os.PathLike) and (why := torch_export.refusal(source)) is not None:
        raise UserError(why)
    if torch_export.is_module(source) or torch_export.is_program(source):
        return _build_torch(source, inputs, dynamic, request)
    if not isinstance(source, str | os.PathLike):
        raise UserError(f"build takes a Module, a torch module or a path, not a {type(source).__name__}")
    if inputs is not None or dynamic is not None:
        raise UserError("inputs and dynamic are for Modules; a model folder, a file or an engine has its own")
    path = Path(source)
    if (why := foreign.missing(path)) is not None:
        raise FileError(why)
    if (why := foreign.refusal(path)) is not None:
        raise UserError(why)
    if path.suffix == ".pt2":
        return _build_exported(path, request)
    if path.suffix == ".onnx":
        return _build_onnx(path, request)
    if is_gguf(path):
        return _build_directory(path, request)
    if path.is_file():
        engine = _open(path, request)
        return engine if request.lora is None else lora_adapter.merge(engine, request.lora, request.lora_scale)
    resolve_directory(source)  # the error for a Hub id, or for nothing at all
    return _build_directory(path, request)


def _is_model(source: Any) -> bool:
    """Whether a source is no Module and no file but one of a language model."""
    return isinstance(source, str | os.PathLike) and (is_gguf(source) or not Path(source).is_file())


def _lora_scale(lora: Any, scale: float | None) -> float:
    if scale is not None and lora is None:
        raise UserError("lora_scale is the scale of an adapter: give its folder as lora")
    return check_scale(scale)


def _open(path: Path, request: Request) -> Engine:
    if path.suffix in (".pt", ".pth"):
        raise UserError(f"{path}: build takes the folder of a Hugging Face model, not a {path.suffix} file")
    engine = load(path)
    kv, format = None if request.kv == SAME else request.kv, request.weights
    check_built(path, engine.config, request.precision, *format.asked, kv, format.head, format.embeddings)
    if request.weights_from is not None:
        raise UserError(f"{path} is an engine and has its weights; weights_from is for model folders and Modules")
    if request.tune is not None:
        raise UserError(f"{path} is an engine, whose program is made: tune is for its source")
    return engine


def _build_directory(path: Path, request: Request) -> Engine:
    precision, phases = request.precision, request.phases
    with phases.phase("read"):
        if request.weights_from:
            model = models.load_config_only(path, request.seed, precision)
        else:
            model = models.load(path, precision, integers=request.lora is None)
    with phases.phase("trace"):
        network, remarks = model.network()
    if request.tune is not None and network.states:
        raise UserError(OF_LLM)
    with phases.phase("read"):
        adapter = _adapter(request, network, model)
    weights: Mapping[str, Array] = model.weights
    config, format, calibrate, beside = model.config, request.weights, request.calibrate, None
    ids = None if request.texts is None else text_loss.tokens_of(request.texts, model, network)
    calibrated = False
    if request.smooth is not None and network.states:
        network, beside, facts, texts = request.smooth(model, network, phases)
        if calibrated := ids is None and request.report is not False and bool(texts):
            ids = text_loss.tokens_of(texts, model, network)
        weights, config = Beside(weights, beside), {**config, **facts}
        format, calibrate = weight_format("int8", "int8"), None
    wide = weights
    if request.report is not False and model.config["precision"] != "float32" and not request.weights_from:
        with phases.phase("read"):
            wide = models.load(path, "float32").weights
            wide = wide if beside is None else Beside(wide, beside)
    report = model.example if request.report is True and model.example else request.report
    engine = build_network(
        network, weights, config=config, kind=model.kind, files=model.files, report=report, wide=wide,
        seed=request.seed, phases=phases, debug=request.debug, adapter=adapter, format=format, calibrate=calibrate,
        kv=request.kv, tune=request.tune,
    )  # fmt: skip
    remarks = [one for one in remarks if format.asked[0] is None or one.what_to_do != AS_FLOATS]  # else it was done
    engine.summary = replace(engine.summary, remarks=(*remarks, *engine.summary.remarks))
    if ids is not None:
        source = _source(path, request)
        with phases.phase("score") as done:
            found = text_loss.measured(engine, source, ids, calibrated, done)
        engine.report = replace(engine.report, text=found)
    return engine


def _adapter(request: Request, network: Network, model: models.LoadedModel) -> Adapter | None:
    """The adapter of a request, read for that network."""
    if request.lora is None:
        return None
    unit_rows = model.config.get("unit_rows", ())
    adapter = read_adapter(request.lora, network, check_scale(request.lora_scale), unit_rows)
    adapter.check_base(model.weights)
    return adapter


def _source(path: Path, request: Request) -> Engine:
    """The engine of a model's folder at its own precision, adapter and all: what formats are compared with."""
    with request.phases.phase("source"):
        model = models.load(path, integers=request.lora is None)
        network, _ = model.network()
        return build_network(network, model.weights, config=model.config, adapter=_adapter(request, network, model))


def _build_module(module: Module, inputs: Any, request: Request) -> Engine:
    if not isinstance(inputs, Mapping) or not inputs or not all(isinstance(spec, Spec) for spec in inputs.values()):
        raise UserError(
            'a Module is built with inputs={"x": ingot.Spec(shape, dtype), …}, one Spec per parameter of forward'
        )
    values = _values(module, request)
    with request.phases.phase("trace"):
        network, config = _in_precision(trace(module, inputs), request.precision, type(module).__name__)
    return build_network(
        network, values, config=config | _aliases(module.state_names(), network), report=request.report,
        seed=request.seed, phases=request.phases, debug=request.debug, format=request.weights,
        calibrate=request.calibrate, kv=request.kv, tune=request.tune,
    )  # fmt: skip


def _in_precision(
    network: Network, precision: str | None, name: str, buffers: Collection[str] = ()
) -> tuple[Network, dict[str, Any]]:
    """The network in the precision asked for, and what the engine's config says about it.

    It is one of float64 when a parameter or an input is; `buffers`, parameters that the user does not train, may be.
    """
    config: dict[str, Any] = {}
    wide = [f"parameter {v.name}" for v in network.parameters if v.dtype is dtypes.float64 and v.name not in buffers]
    wide += [f"input {v.name}" for v in network.inputs if v.dtype is dtypes.float64]
    if wide:
        shown = wide[0] + (f" and {len(wide) - 1} more" if len(wide) > 1 else "")
        if precision is None:
            raise DTypeError(
                f"{name} computes in float64 ({shown}), and engines compute in float32, bfloat16 or float16: build it "
                'with precision="float32" (on the command line --precision float32), which converts its weights once '
                "and its inputs when they come in"
            )
        network = without_float64(network)
        config["converted"] = [f"{shown}: float64 became {precision}, inside and in what is stored"]
    floats = {v.dtype.name for v in network.parameters if v.dtype.is_float and v.dtype is not dtypes.float64}
    if precision is not None and floats - {precision}:
        return in_precision(network, dtypes.get(precision)), {"precision": precision, **config}
    found = next(iter(floats)) if len(floats) == 1 else "mixed" if floats else "float32"
    return network, {"precision": found, **config}


def _aliases(names: Mapping[str, str | None], network: Network) -> dict[str, Any]:
    """The entry of a config for names of the source's state dict: those that are not the network's own, so that
    `Engine.refit` takes the whole of it."""
    read = {v.name for v in (*network.parameters, *network.constants)}
    found = {name: of if of in read else None for name, of in names.items() if name != of or of not in read}
    return {"aliases": found} if found else {}


# ------------------------------------------------------------------------------------------- what torch exported


def _build_torch(module: Any, inputs: Any, dynamic: Any, request: Request) -> Engine:
    name = type(module).__name__
    with request.phases.phase("export"), seldom_collected():
        if torch_export.is_program(module):
            if inputs is not None or dynamic is not None:
                raise UserError("inputs and dynamic are for modules; an ExportedProgram has its own")
            exported, module = torch_export.read_program_of(module), torch_export.Ran(module)
        else:
            exported = torch_export.export(module, inputs, dynamic)
    with request.phases.phase("import") as done:
        imported = torch_export.build_network(exported.program, exported.source, name, exported.dims, done)
        imported = imported._replace(weights=Borrowed(imported.weights))
    origin = torch_export.Origin(name, exported.program, exported.source, module, exported)
    opened = partial(torch_export.TorchPeer, imported, origin)
    return _build_imported(imported, name, opened, request, partial(torch_export.examples, imported, exported))


def _build_exported(path: Path, request: Request) -> Engine:
    with request.phases.phase("read"):
        program, source = torch_export.open_archive(path)
    with request.phases.phase("import") as done:
        imported = torch_export.build_network(program, source, str(path), done=done)
    origin = torch_export.Origin(str(path), program, source)
    return _build_imported(imported, str(path), partial(torch_export.TorchPeer, imported, origin), request)


def _build_onnx(path: Path, request: Request) -> Engine:
    with request.phases.phase("read"):
        model = onnx.open_model(path)
    with request.phases.phase("import") as done:
        built = onnx.build_network(model, done=done)
    return _build_imported(built.imported, str(path), partial(onnx.RuntimePeer, model, built), request)


def _build_imported(
    imported: Imported, name: str, opened: Callable[[], Peer], request: Request,
    examples: Callable[[], Inputs] | None = None,
) -> Engine:  # fmt: skip
    """An engine of an imported network, compared with its source as the source's framework runs it: on arrays given by
    name, else on the examples of the export, else on seeded ones of sizes that run.
    """
    if request.weights_from is not None:
        raise UserError(f"{name} has its weights; weights_from is for model folders and Modules")
    network, config = _in_precision(imported.network, request.precision, name, imported.buffers)
    config |= _aliases(imported.aliases, network)
    tried: list[Inputs] = []

    def seeded(engine: Engine) -> Mapping[str, Array]:
        sizes, run = partial(sizes_that_run, engine), engine.session().run
        try:
            tried.append(seeded_inputs(imported.network, sizes, run, request.seed))
        except InputError as e:
            why = str(e).removesuffix(OTHER_SIZES)
            raise InputError(
                f"{name}: at no sizes that were tried does it run, to be measured and compared: {why}. If the export "
                "wrote sizes of its example into the network, it runs at these alone: export it again so that they "
                "stay free, or give inputs that suit it (report={'x': array}), or build it without a report "
                "(report=False, --no-report)"
            ) from None
        return tried[0].arrays

    if isinstance(request.report, Mapping):
        tried.append(Inputs("given", request.report))
    elif request.report and examples is not None:
        tried.append(examples())
    engine = build_network(
        network, imported.weights, config=config, report=tried[0].arrays if tried else request.report and seeded,
        seed=request.seed, phases=request.phases, debug=request.debug, format=request.weights,
        calibrate=request.calibrate, kv=request.kv, tune=request.tune,
    )  # fmt: skip
    engine.log = [*imported.notes, *engine.log]
    remarks = (*imported.remarks, *engine.summary.remarks)
    engine.summary = replace(engine.summary, remarks=remarks, notes=tuple(imported.notes))
    if tried:
        with request.phases.phase("compare"):
            as_imported = (
                config["precision"] == "float32" and request.weights == AS_IS and request.calibrate is None
                and not any(v.dtype in NARROW for v in imported.network.inputs)  # fed as float32 here
            )  # fmt: skip
            wide = request.calibrate.wide if request.calibrate and network is imported.network else None
            other = engine if as_imported else wide or accuracy.in_float32(
                without_float64(imported.network) if "converted" in config else imported.network, imported.weights
            )  # fmt: skip
            run, at_fault = other.session().run, partial(_blame, imported)
            found = compare(imported, name, opened, run, tried[0], at_fault, request.seed)
            found = replace(found, widened=not as_imported)
        own = engine.report.note or request.calibrate is not None
        word = engine.report.inputs if own else tried[0].word
        engine.report = replace(engine.report, inputs=word, comparison=found)
        engine.seconds = request.phases.seconds
    return engine


def _blame(imported: Imported, feeds: Mapping[str, Array], tolerance: float) -> str:
    """What is at fault where the network in float32 is not what it was imported from, though all of its ops are."""
    network = widen(imported.network)
    weights = {v.name: imported.weights[v.name].astype(v.dtype.numpy) for v in network.parameters}
    kept = {v.name: feeds[v.name].astype(v.dtype.numpy) for v in network.inputs}
    return blame(network, kept, weights, tolerance)


def _values(module: Module, request: Request) -> Mapping[str, Array]:
    """The value of every parameter of a Module. Raises ModuleError listing those without."""
    if request.weights_from:
        return RandomWeights(parameter_specs(module), request.seed)
    parameters = dict(module.named_parameters())
    if missing := [name for name, p in parameters.items() if p.value is None]:
        raise ModuleError(
            f"{len(missing)} parameter(s) have no value: "
            f"{', '.join(missing[:40])}{', …' if len(missing) > 40 else ''}. "
            'Use load_state_dict, assign .value, or build with weights_from="random"'
        )
    return Borrowed({name: p.value for name, p in parameters.items() if p.value is not None})
