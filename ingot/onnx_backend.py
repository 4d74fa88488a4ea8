"""ONNX's backend interface over ingot's engines: `prepare`, `run_model`, `run_node`, `supports_device`.

    import ingot.onnx_backend as backend
    outputs = backend.prepare(onnx.load("net.onnx")).run([x])

A model is built once, when it is prepared. Where its network depends on the elements of inputs (axes that are no
constants, the length of a sequence), it is built by the first run with such elements, and again for others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ingot import _lazy
from ingot.builder.network import build_network
from ingot.engine.session import Engine
from ingot.errors import InputError, UserError
from ingot.frontends.narrow import carried, restored
from ingot.frontends.onnx import Built, Given, Model, NeedsValues
from ingot.frontends.onnx import build_network as import_network
from ingot.frontends.onnx.text import codes, is_text, words
from ingot.ir import Spec

_base: Any = _lazy.optional("onnx.backend.base", "ingot.onnx_backend", "ingot[onnx]")
_onnx: Any = _lazy.optional("onnx", "ingot.onnx_backend", "ingot[onnx]")

Array = np.ndarray[Any, Any]

MAX_FIXED = 1 << 16  # elements of an input that a network is built for
MAX_ENGINES = 32  # of one model, for different elements of such inputs


class IngotRep(_base.BackendRep):  # type: ignore[misc]
    """A prepared model.

    `engine` is what ran last: its log and its host calls say how.
    """

    def __init__(self, model: Model, threads: int | None = None) -> None:
        self.model, self.threads = model, threads
        self.names = [i.name for i in model.graph.input if i.name not in model.weights]
        self.fixed: set[str] = set()
        self.engine: Engine | None = None
        self._made: dict[Any, tuple[Built, Engine]] = {}
        try:
            self._built({}, {}, {})
        except NeedsValues as e:
            self.fixed |= e.inputs

    def run(self, inputs: Any, **_: Any) -> tuple[Any, ...]:
        """The outputs in order, an array each; a list of arrays for a sequence, None for what is absent.

        Args:
            inputs: arrays in the order of the model's inputs, or a dict by name.

        Raises:
            InputError: another number of inputs, or arrays that do not fit.
        """
        given = self._by_name(inputs)
        while True:
            fixed, sequences = self._fixed(given)
            specs = {}
            if sequences:  # what stands beside their tensors has to fit these
                arrays = {n: v for n, v in given.items() if n not in fixed and n not in sequences}
                specs = {name: Spec.of(np.asarray(value)) for name, value in arrays.items()}
            try:
                built, engine = self._built(fixed, sequences, specs)
                break
            except NeedsValues as e:
                if e.inputs <= self.fixed:
                    raise
                self.fixed |= e.inputs
        self.engine = engine
        feeds: dict[str, Array] = {}
        for name, own in built.inputs.items():
            if isinstance(own, list):
                feeds |= dict(zip(own, given[name], strict=True))
            elif own is not None:
                feeds[own] = given[name]
        arrays = {name: codes(a, f"input {name}") if name in built.text else carried(np.asarray(a))
                  for name, a in feeds.items()}  # fmt: skip
        found = engine.run({port.name: arrays[port.name] for port in engine.inputs})
        found = {n: restored(a, built.narrow[n]) if n in built.narrow else words(a) if n in built.text else a
                 for n, a in found.items()}  # fmt: skip
        return tuple([self._output(found, built.outputs[info.name]) for info in self.model.graph.output])

    def _output(self, found: dict[str, Array], names: Any) -> Any:
        if isinstance(names, list):
            return [found[name] for name in names]
        return None if names is None else found[names]

    def _by_name(self, inputs: Any) -> dict[str, Any]:
        if isinstance(inputs, dict):
            given = dict(inputs)
        else:
            values = list(inputs) if isinstance(inputs, Sequence) else [inputs]
            if len(values) > len(self.names):
                raise InputError(f"{len(values)} inputs are given, and the model takes {len(self.names)}")
            given = dict(zip(self.names, values, strict=False))
        if unknown := sorted(given.keys() - set(self.names)):
            raise InputError(f"the model has no input {unknown[0]!r:.100}")
        return given

    def _fixed(self, given: dict[str, Any]) -> tuple[dict[str, Any], dict[str, list[Spec]]]:
        """The inputs that the network is built for, and the tensors of its sequences."""
        fixed: dict[str, Any] = {}
        sequences: dict[str, list[Spec]] = {}
        for name in self.names:
            value = given.get(name)
            if isinstance(value, list):
                sequences[name] = [Spec.of(np.asarray(x)) for x in value]
            elif value is None and name not in given:
                raise InputError(f"the input {name!r:.100} is missing")
            elif value is None:
                fixed[name] = None
            elif name in self.fixed:
                array = np.asarray(value)
                array = array.astype(np.str_) if is_text(array) else array
                if array.size > MAX_FIXED:
                    raise UserError(f"the network depends on input {name!r:.80}, which has {array.size:,} elements")
                fixed[name] = array
        return fixed, sequences

    def _built(
        self, fixed: dict[str, Any], sequences: dict[str, list[Spec]], specs: dict[str, Spec]
    ) -> tuple[Built, Engine]:
        key = (
            tuple((n, None if a is None else (a.dtype, a.shape, a.tobytes())) for n, a in sorted(fixed.items())),
            tuple((n, tuple(map(str, several))) for n, several in sorted(sequences.items())),
            tuple((n, str(spec)) for n, spec in sorted(specs.items())),
        )
        if key not in self._made:
            built = import_network(self.model, Given(fixed, sequences, specs))
            engine = build_network(built.imported.network, built.imported.weights)
            while len(self._made) >= MAX_ENGINES:
                del self._made[next(iter(self._made))]
            self._made[key] = built, engine
        return self._made[key]


class IngotBackend(_base.Backend):  # type: ignore[misc]
    """ONNX's backend interface."""

    @classmethod
    def is_compatible(cls, model: Any, device: str = "CPU", **kwargs: Any) -> bool:
        """Whether the model can be prepared."""
        try:
            cls.prepare(model, device, **kwargs)
        except UserError:
            return False
        return True

    @classmethod
    def prepare(cls, model: Any, device: str = "CPU", **kwargs: Any) -> IngotRep:
        """An engine of a ModelProto.

        Raises:
            UserError: another device than a CPU; what building raises.
        """
        if not cls.supports_device(device):
            raise UserError(f"the ONNX backend runs on CPU, not on {device!r:.40}")
        return IngotRep(Model(model, "model"))

    @classmethod
    def run_model(cls, model: Any, inputs: Any, device: str = "CPU", **kwargs: Any) -> tuple[Any, ...]:
        """The outputs of a ModelProto on inputs in order."""
        return cls.prepare(model, device, **kwargs).run(inputs)

    @classmethod
    def run_node(
        cls, node: Any, inputs: Any, device: str = "CPU", outputs_info: Any = None, **kwargs: Any
    ) -> tuple[Any, ...]:
        """The outputs of one node on arrays in the order of its inputs."""
        helper = _onnx.helper
        arrays = [np.asarray(x) for x in inputs]
        names = [name for name in node.input if name]
        kinds = [helper.np_dtype_to_tensor_dtype(a.dtype) for a in arrays]
        declared = [helper.make_tensor_value_info(n, k, a.shape) for n, k, a in zip(names, kinds, arrays, strict=True)]
        results = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
        graph = helper.make_graph([node], "node", declared, results)
        version = kwargs.get("opset_version") or _onnx.defs.onnx_opset_version()
        imports = [helper.make_opsetid(node.domain, version)]
        return cls.run_model(helper.make_model(graph, opset_imports=imports), arrays, device)

    @classmethod
    def supports_device(cls, device: str) -> bool:
        """Whether a device is a CPU."""
        return device.split(":")[0] == "CPU"


is_compatible = IngotBackend.is_compatible
prepare = IngotBackend.prepare
run_model = IngotBackend.run_model
run_node = IngotBackend.run_node
supports_device = IngotBackend.supports_device
