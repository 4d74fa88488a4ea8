"""An ONNX model as ONNX Runtime runs it: what an imported network is compared with, and nothing else.

ONNX Runtime gets the model's bytes and, from us, the elements of large and external tensors: it opens no file.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from ingot import _lazy
from ingot.frontends.comparing import NARROW_TOLERANCE, TOLERANCE, Outputs, Refused, Step
from ingot.frontends.onnx.importer import Built
from ingot.frontends.onnx.model import Model
from ingot.ir import Network, Value
from ingot.ops.control import bodies
from ingot.passes.widen import NARROW

Array = np.ndarray[Any, Any]

INSTALL = "ingot[onnxruntime]"
MAX_BYTES = 1 << 30  # of a model beside its large initializers; ONNX Runtime makes copies of it
QUIET = 4  # a level of its log: fatal errors
ROUNDING = ("quantize", "round")  # ops behind which a last bit becomes a whole step
# ONNX Runtime's sigmoid is near by absolute distance, 1e-7, where the number itself may be 1e-13: a detector that sees
# nothing in noise gives numbers as small as that.
LEAST = 1e-2
MAX_MOVES = 16  # between a sigmoid and an output
_MOVES = {"cast", "slice", "permute", "take", "reduce_max", "mul"}
EXTERNAL = 1  # a TensorProto's data_location


def runtime_package(needed_for: str) -> Any:
    """ONNX Runtime, or a UserError that says what to install."""
    return _lazy.optional("onnxruntime", needed_for, INSTALL)


class RuntimePeer:
    """A model in ONNX Runtime, without its optimisations: node by node what the file says.

    Raises:
        UserError: ONNX Runtime is not installed.
        Refused: it does not take the model.
    """

    def __init__(self, model: Model, built: Built) -> None:
        self.runtime = runtime_package("comparing with the source")
        self.model, self.built = model, built
        self.proto, self.beside = self._complete()
        self._session = self._opened(self.proto)

    @property
    def framework(self) -> str:
        return f"ONNX Runtime {self.runtime.__version__}"

    def run(self, feeds: Mapping[str, Array], word: str) -> Outputs:
        return self._outputs(self._run(self._session, [o.name for o in self.model.graph.output], feeds))

    def walk(self, feeds: Mapping[str, Array], look: Callable[[Step], None]) -> Outputs:
        nodes = [n for n in self.model.graph.node if any(name in self.built.imported.values for name in n.output)]
        own = [o.name for o in self.model.graph.output]
        wanted = [name for n in nodes for name in n.output if name in self.built.imported.values and name not in own]
        proto = type(self.proto)()
        proto.CopyFrom(self.proto)
        for name in wanted:
            proto.graph.output.add().name = name
        made = self._run(self._opened(proto), [*own, *wanted], feeds)
        for node in nodes:
            found = {n: made[n] for n in node.output if isinstance(made.get(n), np.ndarray)}
            look(Step(node.op_type, f"node {node.name or node.output[0]}", found))
        return self._outputs({name: made[name] for name in own})

    # ------------------------------------------------------------------------------------------------- sessions

    def _complete(self) -> tuple[Any, dict[str, Any]]:
        """The model with all that it left in files, and the large initializers, which are handed over beside it."""
        proto = type(self.model.proto)()
        proto.CopyFrom(self.model.proto)
        proto.ClearField("training_info")
        beside: dict[str, Any] = {}
        for tensor in proto.graph.initializer:
            data, kind = self.model.tensors.elsewhere(tensor), self.model.tensors.spec(tensor).dtype
            if data is not None and kind.numpy.isbuiltin == 1:
                array = np.ascontiguousarray(data).view(kind.numpy).reshape(tuple(tensor.dims))
                beside[tensor.name] = self.runtime.OrtValue.ortvalue_from_numpy(array)
                del tensor.external_data[:]
                tensor.ClearField("raw_data")
                tensor.data_location = EXTERNAL
                entry = tensor.external_data.add()
                entry.key, entry.value = "location", "beside"
            elif data is not None:
                _fill(tensor, data)
        for tensor in _tensors(*proto.graph.node, *proto.graph.sparse_initializer, *proto.functions):
            if (data := self.model.tensors.elsewhere(tensor)) is not None:
                _fill(tensor, data)
        return proto, beside

    def _opened(self, proto: Any) -> Any:
        if (count := proto.ByteSize()) > MAX_BYTES:
            raise Refused(f"the model has {count:,} bytes, and ONNX Runtime gets at most {MAX_BYTES:,}")
        options = self.runtime.SessionOptions()
        options.graph_optimization_level = self.runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = QUIET
        options.intra_op_num_threads = len(os.sched_getaffinity(0))
        if self.beside:
            options.add_external_initializers(list(self.beside), list(self.beside.values()))
        data, where = proto.SerializeToString(), ["CPUExecutionProvider"]
        return self._tried(lambda: self.runtime.InferenceSession(data, options, providers=where))

    def _run(self, session: Any, names: Sequence[str], feeds: Mapping[str, Array]) -> dict[str, Any]:
        if any(array.dtype.isbuiltin != 1 for array in feeds.values()):
            raise Refused("ONNX Runtime takes no inputs of these element types from Python")
        arrays = self._tried(lambda: session.run(list(names), dict(feeds)))
        return dict(zip(names, arrays, strict=True))

    def _tried(self, call: Callable[[], Any]) -> Any:
        """What ONNX Runtime gives; its own errors, which have no class in common but these, are refusals."""
        try:
            return call()
        except Exception as e:
            if not isinstance(e, RuntimeError | ValueError | TypeError) and not type(e).__module__.startswith(
                self.runtime.__name__
            ):
                raise
            raise Refused(f"{self.framework} does not run it: {' '.join(str(e).split())[:300]}") from None

    # -------------------------------------------------------------------------------------------------- outputs

    def _outputs(self, found: Mapping[str, Any]) -> Outputs:
        """By the network's names. Left out: types that arrays of ONNX Runtime carry otherwise, integers of networks in
        half precision, where a last bit may choose another, and empty results of networks with loops: of a loop without
        rounds ONNX Runtime does not know how large a round's result would have been, and says 0."""
        arrays: dict[str, Array] = {}
        for info in self.model.graph.output:
            own, value = self.built.outputs.get(info.name), found[info.name]
            if isinstance(own, list):
                arrays |= dict(zip(own, value, strict=True))
            elif own is not None and info.name not in self.built.narrow:
                arrays[own] = np.asarray(value)
        network = self.built.imported.network
        half = any(v.dtype in NARROW for v in network.values.values())
        steps = any(name in ROUNDING for name in _ops(network))
        if half:
            arrays = {name: a for name, a in arrays.items() if a.dtype.kind == "f"}
        if any(node.op_type in ("Loop", "Scan") for node in self.model.proto.graph.node):
            arrays = {name: a for name, a in arrays.items() if a.size}
        likely = {name: LEAST for name, v in network.outputs.items() if _is_likely(v)}
        squeezes = any(_is_plain_squeeze(node) for node in self.model.proto.graph.node)
        return Outputs(arrays, NARROW_TOLERANCE if half or steps else TOLERANCE, likely, squeezes)


def _is_plain_squeeze(node: Any) -> bool:
    return node.op_type == "Squeeze" and not node.attribute and len([name for name in node.input if name]) == 1


def _is_likely(value: Value, depth: int = 0) -> bool:
    """Whether it is what a sigmoid gives, perhaps moved, or a product of several."""
    node = value.node
    if node is None or depth > MAX_MOVES:
        return False
    if node.op.name == "sigmoid":
        return True
    read = node.inputs if node.op.name == "mul" else node.inputs[:1]
    return (node.op.is_view or node.op.name in _MOVES) and all(_is_likely(v, depth + 1) for v in read)


def _ops(network: Network) -> Iterator[str]:
    """The names of a network's ops, those of its bodies included."""
    for node in network.nodes:
        yield node.op.name
        for body in bodies(node.op).values():
            yield from _ops(body)


def _fill(tensor: Any, data: Array) -> None:
    """Puts the bytes of a tensor into it."""
    del tensor.external_data[:]
    tensor.ClearField("data_location")
    tensor.raw_data = data.tobytes()


def _tensors(*messages: Any) -> Iterator[Any]:
    """Every tensor in these parts of a model: attributes, and those of subgraphs."""
    todo = list(messages)
    while todo:
        one = todo.pop()
        if one.DESCRIPTOR.name == "TensorProto":
            yield one
            continue
        for field, value in one.ListFields():
            if field.message_type is not None:
                todo.extend((value,) if hasattr(value, "DESCRIPTOR") else value)
