"""Two engines of one network, layer by layer or value by value: where their numbers go apart.

    found = diff(ingot.load("net.bf16.ingot"), ingot.load("net.f32.ingot"), {"x": x})

Both run on the same inputs, each fed by its own earlier layers, on what they have stored. A Module or a folder is
compared by building it in float32 first, a .pt2 or .onnx file as its own framework runs it (`diff_source`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from ingot import dtypes
from ingot.builder.layers import Stored, computed_network, network_of, row, run, run_values, sections
from ingot.engine.session import Engine
from ingot.errors import InputError, UserError
from ingot.frontends import onnx, torch_export
from ingot.frontends.comparing import Peer, Refused, Step
from ingot.frontends.recording import Imported
from ingot.ir import Network, Node, Value
from ingot.passes.calibrated import KEY
from ingot.passes.sections import AFTER, BETWEEN, layer_of, module_of

Array = np.ndarray[Any, Any]
Done = Callable[[int, int], None]


@dataclass(frozen=True)
class Place:
    """One value of both networks: its largest magnitude in the second, and how far the first is from that. `odd` says
    where NaN or infinities stand in one of both only.
    """

    name: str
    op: str
    shape: tuple[int, ...]
    largest_value: float
    largest: float
    relative: float
    odd: str = ""

    def json(self) -> dict[str, Any]:
        """As --json shows it."""
        return {**asdict(self), "shape": list(self.shape)}


@dataclass(frozen=True)
class Diff:
    """Layers (or values) in the order of the network, then the outputs; `hidden`: values that could not be had."""

    places: tuple[Place, ...]
    outputs: tuple[Place, ...]
    hidden: tuple[str, ...] = ()

    def beyond(self, tolerance: float) -> Place | None:
        """The first that is relatively further apart."""
        return next((p for p in (*self.places, *self.outputs) if not p.relative <= tolerance), None)


def diff(a: Engine, b: Engine, feeds: Mapping[str, Array], *, values: bool = False, done: Done | None = None) -> Diff:
    """Compares two engines on the same inputs; floats are cast to what either takes.

    values: every value of the portable network, instead of what leaves each layer; both must be the same network up to
    casts. done: called with (sections done, all).

    Raises UserError when the engines are of different networks, InputError when the inputs do not fit.
    """
    networks = network_of(a), network_of(b)
    _check_ports(*networks)
    layers = _layers(*networks)
    sides = [_Side(engine, network, feeds, layers, values) for engine, network in zip((a, b), networks, strict=True)]
    count = [len(side.sections) for side in sides]
    for i, side in enumerate(sides):
        for n in side.run():
            if done:
                done(i * count[0] + n, sum(count))
    places = _value_places(*sides) if values else _layer_places(*sides)
    return _made(places, sides[0].outputs, sides[1].outputs, [*sides[0].hidden, *sides[1].hidden])


def framework_of(path: str | os.PathLike[str]) -> str:
    """What runs a source beside us: torch for a .pt2 file, ONNX Runtime for an .onnx file; empty for others.

    Raises UserError when it is not installed.
    """
    suffix = os.path.splitext(os.fspath(path))[1]
    if suffix == ".pt2":
        torch_export.torch_package("comparing with torch")
        return "torch"
    if suffix == ".onnx":
        onnx.runtime_package("comparing with ONNX Runtime")
        return "ONNX Runtime"
    return ""


def diff_source(
    a: Engine, path: str | os.PathLike[str], feeds: Mapping[str, Array], *, values: bool = False,
    done: Done | None = None,
) -> Diff:  # fmt: skip
    """Compares an engine with what its source's own framework computes from the file that it was built from: torch, in
    float32, from a .pt2 file; ONNX Runtime from an .onnx file.

    Raises what `diff` raises, CheckpointError and UnsupportedError for the file, UserError when there is no such
    framework or it does not run the file, InputError when it does not take the inputs.
    """
    framework_of(path)
    if KEY in a.config:
        raise UserError(f"a calibrated engine has batch norms in its layers, and {path} beside them: compare it with "
                        "the engine in float, diff(engine, ingot.build(source), …)")  # fmt: skip
    imported, opened = _opened(path)
    try:
        peer = opened()
    except Refused as e:
        raise UserError(f"{path}: {e}") from None
    network = network_of(a)
    _check_ports(network, imported.network)
    ours = _Side(a, network, feeds, _layers(network, network), values)
    for n in ours.run():
        if done:
            done(n, len(ours.sections) + 1)
    theirs = _SourceSide(peer, imported, feeds)
    twins = _aligned(ours.network, imported.network)
    if values:
        return _made(_value_places(ours, theirs), ours.outputs, theirs.outputs, ours.hidden)
    places = []
    for name, (value, array) in ours.layers.items():
        while value.node.op.name == "cast" and value.node.inputs[0].node is not None:
            value = value.node.inputs[0]
        twin = twins.get(value.node)
        if twin in theirs.results:
            found = theirs.results[twin][value.node.outputs.index(value)]
            places.append(_place(name, value.node.op.name, array, found))
    return _made(places, ours.outputs, theirs.outputs, ours.hidden)


def _opened(path: str | os.PathLike[str]) -> tuple[Imported, Callable[[], Peer]]:
    """The network of a file, and what opens the file in its own framework."""
    name = os.fspath(path)
    if name.endswith(".pt2"):
        program, source = torch_export.open_archive(path)
        imported = torch_export.build_network(program, source, name)
        return imported, lambda: torch_export.TorchPeer(imported, torch_export.Origin(name, program, source))
    model = onnx.open_model(path)
    built = onnx.build_network(model)
    return built.imported, lambda: onnx.RuntimePeer(model, built)


def _made(places: list[Place], ours: Mapping[str, Array], theirs: Mapping[str, Array], hidden: Sequence[str]) -> Diff:
    outputs = [_place(name, "output", array, theirs[name]) for name, array in ours.items() if name in theirs]
    unseen = [f"output {name}" for name in ours if name not in theirs]
    return Diff(tuple(places), tuple(outputs), tuple(dict.fromkeys([*hidden, *unseen])))


class _Side:
    """One of the two engines and what its layers gave."""

    def __init__(
        self, engine: Engine, network: Network, feeds: Mapping[str, Array], layer: Callable[[str], str], values: bool
    ) -> None:
        self.network = computed_network(engine)
        self.values = values
        self.weights = Stored(engine, network)
        self.sections = sections(self.network, layer, self.weights)
        self.arrays: dict[Value, Array] = {v: _as(feeds[v.name], v.dtype) for v in self.network.inputs}
        self.layers: dict[str, tuple[Value, Array]] = {}
        self.results: dict[Node, list[Array]] = {}
        self.hidden: list[str] = []

    def run(self) -> Iterator[int]:
        """Runs section after section; gives how many are done."""
        begin = 0
        for i, section in enumerate(self.sections):
            nodes = self.network.nodes[begin : begin + len(section.network.nodes)]
            begin += len(nodes)
            if self.values:
                found, hidden = run_values(section, self.arrays, self.weights)
                self.results |= {nodes[j]: arrays for j, arrays in found.items()}
                self.hidden += [f"{node.op.name} in {node.where or section.name}" for node in hidden]
            else:
                run(section, self.arrays, self.weights)
            if section.writes and section.name not in (BETWEEN, AFTER) and len(self.sections) > 1:
                last = list(section.writes.values())[-1]
                self.layers[section.name] = last, self.arrays[last]
            yield i + 1

    @property
    def outputs(self) -> dict[str, Array]:
        return {name: self.arrays[value] for name, value in self.network.outputs.items()}


class _SourceSide:
    """What a source's framework makes of it: the results that belong to nodes of the imported network, and the outputs.
    """

    def __init__(self, peer: Peer, imported: Imported, feeds: Mapping[str, Array]) -> None:
        self.network = imported.network
        known: dict[Value, Array] = {}

        def keep(step: Step) -> None:
            known.update({imported.values[name]: a for name, a in step.made.items() if name in imported.values})

        try:
            made = peer.walk({v.name: _as(feeds[v.name], v.dtype) for v in self.network.inputs}, keep)
        except Refused as e:
            raise InputError(str(e)) from None
        self.results = {
            node: [known[v] for v in node.outputs]
            for node in self.network.nodes
            if all(v in known for v in node.outputs)
        }
        self.outputs = dict(made.arrays)


def _check_ports(a: Network, b: Network) -> None:
    for what, one, other in (("inputs", [v.name for v in a.inputs], [v.name for v in b.inputs]),
                             ("outputs", list(a.outputs), list(b.outputs))):  # fmt: skip
        if sorted(one) != sorted(other):
            raise UserError(f"the engines are of different networks: {what} {', '.join(one)} and {', '.join(other)}")


def _layers(a: Network, b: Network) -> Callable[[str], str]:
    """Numbered modules, or the modules at the top where there are none."""
    numbered = all(any(layer_of(node.where) for node in network.nodes) for network in (a, b))
    return layer_of if numbered else module_of


def _layer_places(a: _Side, b: _Side) -> list[Place]:
    places = []
    for name, (value, array) in a.layers.items():
        if name in b.layers and b.layers[name][1].shape == array.shape:
            places.append(_place(name, value.node.op.name, array, b.layers[name][1]))
    return places


def _value_places(a: _Side, b: _Side | _SourceSide) -> list[Place]:
    places = []
    for one, other in _aligned(a.network, b.network).items():
        if not one.op.is_view and one in a.results and other in b.results:  # a view is what it is a view of
            pairs = zip(a.results[one], b.results[other], strict=True)
            places += [_place(one.where or "-", one.op.name, x, y) for x, y in pairs]
    return places


def _aligned(a: Network, b: Network) -> dict[Node, Node]:
    """The nodes of two networks that are the same up to casts. Raises UserError."""
    plain = [[node for node in network.nodes if node.op.name != "cast"] for network in (a, b)]
    for one, other in zip(*plain, strict=False):
        if (one.op.name, one.where) != (other.op.name, other.where):
            raise _different(one, other)
    if len(plain[0]) != len(plain[1]):
        raise UserError(f"the engines are of different networks: {len(plain[0])} and {len(plain[1])} ops without casts")
    return dict(zip(*plain, strict=True))


def _different(one: Node, other: Node) -> UserError:
    first, second = (f"{node.op.name} in {node.where or 'the network'}" for node in (one, other))
    return UserError(
        f"the engines are of different networks: {first} stands where the other has {second}. Without --values only "
        "the layers have to agree"
    )


def _place(name: str, op: str, a: Array, b: Array) -> Place:
    if a.shape != b.shape:
        raise UserError(f"the engines are of different networks: {name} is {list(a.shape)} and {list(b.shape)}")
    found = row(name, a, b)
    magnitudes = np.abs(b.astype(np.float64))
    return Place(
        name, op, a.shape, float(magnitudes[np.isfinite(magnitudes)].max(initial=0)), found.largest, found.relative,
        found.odd,
    )


def _as(array: Array, dtype: dtypes.DType) -> Array:
    both = dtype.is_float and dtypes.get(array.dtype).is_float
    return array.astype(dtype.numpy) if both and array.dtype != dtype.numpy else array
