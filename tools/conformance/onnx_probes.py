"""Models of one node of com.microsoft, with the numbers that it is tried on, and what ONNX Runtime gives."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from ingot import _lazy

Array = np.ndarray[Any, Any]
DOMAIN = "com.microsoft"
TREES = "ai.onnx.ml"
OPSET = 21
RNG = np.random.default_rng(7)
SEEDED = RNG.bit_generator.state


class Probe(NamedTuple):
    """One node. `stored`: operands that are initializers. `dims`: sizes that are dims of a name. `results`: outputs, of
    which those in `absent` have no name. `rtol`, `atol`: how near floats have to be; `steps`: how many units integers
    may differ by, and `few` the share of them that may. `like`: another node that ONNX Runtime runs in its place,
    where it has no kernel for this one.
    """

    op: str
    what: str
    operands: tuple[Array | None, ...]
    attributes: dict[str, Any] = {}
    stored: tuple[int, ...] = ()
    dims: dict[int, str] = {}
    results: int = 1
    absent: tuple[int, ...] = ()
    rtol: float = 1e-4
    atol: float = 1e-5
    steps: int = 0
    few: float = 0.0
    like: Callable[[Any], list[Array]] | None = None
    domain: str = DOMAIN

    @property
    def name(self) -> str:
        return f"{self.op}: {self.what}"

    def model(self) -> Any:
        """The model of this one node."""
        helper = _lazy.load("onnx.helper")
        numpy_helper = _lazy.load("onnx.numpy_helper")
        names = ["" if x is None else f"x{i}" for i, x in enumerate(self.operands)]
        outputs = ["" if i in self.absent else f"y{i}" for i in range(self.results)]
        node = helper.make_node(self.op, names, outputs, domain=self.domain, **self.attributes)
        given = [(i, x) for i, x in enumerate(self.operands) if x is not None]
        inputs = [
            helper.make_tensor_value_info(f"x{i}", helper.np_dtype_to_tensor_dtype(x.dtype), self.shape(x))
            for i, x in given if i not in self.stored
        ]  # fmt: skip
        weights = [numpy_helper.from_array(x, f"x{i}") for i, x in given if i in self.stored]
        infos = [helper.make_empty_tensor_value_info(name) for name in outputs if name]
        graph = helper.make_graph([node], "probe", inputs, infos, weights)
        imports = [helper.make_opsetid("", OPSET), helper.make_opsetid(DOMAIN, 1), helper.make_opsetid(TREES, 3)]
        return helper.make_model(graph, opset_imports=imports, ir_version=10)

    def shape(self, x: Array) -> list[Any]:
        return [self.dims.get(n, n) for n in x.shape]

    def feeds(self) -> dict[str, Array]:
        return {f"x{i}": x for i, x in enumerate(self.operands) if x is not None and i not in self.stored}


def theirs(probe: Probe) -> list[Array]:
    """What ONNX Runtime gives, without its own rewrites."""
    if probe.like is not None:
        return probe.like(probe)
    runtime = _lazy.load("onnxruntime")
    options = runtime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = runtime.InferenceSession(probe.model().SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, probe.feeds()))


def normal(*shape: int, kind: Any = np.float32) -> Array:
    return RNG.standard_normal(shape).astype(kind)


def whole(low: int, high: int, *shape: int, kind: Any = np.int32) -> Array:
    """Integers of low..high, both included."""
    return RNG.integers(low, high + 1, shape).astype(kind)


def number(value: Any, kind: Any = np.float32) -> Array:
    return np.array(value, kind)


def activations() -> Iterator[Probe]:
    x, bias = normal(3, 5, 7), normal(7)
    rows = {3: "N"}
    yield Probe("Gelu", "three dimensions", (x,), dims=rows)
    yield Probe("BiasGelu", "a bias of the last dimension", (x, bias), dims=rows)
    yield Probe("FastGelu", "no bias", (x,), dims=rows, atol=3e-5)
    yield Probe("FastGelu", "a bias that is stored", (x, bias), stored=(1,), atol=3e-5)
    yield Probe("QuickGelu", "as it is", (x,), dims=rows)
    yield Probe("QuickGelu", "alpha 0.7, one dimension", (x[0, 0],), {"alpha": 0.7})
    yield Probe("QuickGelu", "alpha 1, which is SiLU", (x,), {"alpha": 1.0})


def norms() -> Iterator[Probe]:
    x, skip, gamma, beta, bias = normal(2, 5, 9), normal(2, 5, 9), normal(9), normal(9), normal(9)
    batch = {2: "N", 5: "T"}
    for op, betas in (("SkipLayerNormalization", True), ("SkipSimplifiedLayerNormalization", False)):
        more = (beta,) if betas else ()
        stored = tuple(range(2, 3 + len(more)))
        yield Probe(op, "plain", (x, skip, gamma, *more), stored=stored, dims=batch)
        yield Probe(
            op, "with the sum as a result", (x, skip, gamma, *more), {"epsilon": 1e-3}, results=4, absent=(1, 2)
        )
        yield Probe(op, "with a bias", (x, skip, gamma, *more, bias), dims=batch, results=4, absent=(1, 2))
        yield Probe(op, "a skip of every batch", (x, skip[:1], gamma, *more))
        yield Probe(op, "a skip without a batch", (x, skip[0], gamma, *more, bias))
        yield Probe(op, "rows without a batch", (x[0], skip[0], gamma, *more))
    yield Probe("SkipLayerNormalization", "no beta", (x, skip, gamma), dims=batch)
    yield Probe("SkipLayerNormalization", "a bias and no beta", (x, skip, gamma, None, bias))
    for what, given in (("plain", (x, gamma)), ("over two dimensions", (x, normal(5, 9)))):
        yield Probe("SimplifiedLayerNormalization", what, given, {"axis": -len(given[1].shape), "epsilon": 1e-4},
                    domain="")  # fmt: skip
    yield Probe("LayerNormalization", "with its statistics", (x, gamma, beta), {"axis": -1}, results=3, domain="")
    ids, segments = whole(0, 10, 2, 5), whole(0, 1, 2, 5)
    tables = (normal(11, 9), normal(8, 9), normal(2, 9), gamma, beta)
    stored, mask = (2, 3, 4, 5, 6), np.array([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]], np.int32)
    places = np.array([[4, 3, 2, 1, 0], [1, 1, 0, 7, 7]], np.int32)
    op = "EmbedLayerNormalization"
    yield Probe(op, "with segments and a mask", (ids, segments, *tables, mask), stored=stored, dims=batch, results=2)
    yield Probe(op, "no segments, no mask", (ids, None, *tables[:2], None, *tables[3:]), stored=(2, 3, 5, 6), results=2)
    yield Probe(op, "with the sum", (ids, segments, *tables, mask), {"epsilon": 1e-4}, results=3)
    yield Probe(op, "with positions", (ids, segments, *tables, mask, places), results=2, dims=batch)
    yield Probe(op, "positions for every batch", (ids, segments, *tables, None, places[:1]), results=2)


def products() -> Iterator[Probe]:
    a, b = normal(2, 3, 5, 7), normal(2, 3, 7, 4)
    op = "FusedMatMul"
    yield Probe(op, "as matmul", (a, b), {"alpha": 0.25}, dims={2: "N"})
    yield Probe(op, "a weight", (a, b[0, 0]), {"alpha": -1.5}, stored=(1,), dims={2: "N", 3: "T"})
    yield Probe(op, "left transposed", (a.swapaxes(2, 3).copy(), b), {"transA": 1})
    yield Probe(op, "right transposed", (a, b.swapaxes(2, 3).copy()), {"transB": 1, "alpha": 2.0})
    yield Probe(op, "both, of matrices", (normal(7, 5), normal(4, 7)), {"transA": 1, "transB": 1})
    yield Probe(op, "batches broadcast", (a, b[:1, :1]))
    yield Probe(op, "vectors", (normal(7), normal(7)), {"alpha": 3.0})
    yield Probe(op, "a vector on the left", (normal(7), normal(3, 7, 4)))
    yield Probe(op, "a vector on the right", (normal(3, 5, 7), normal(7)))
    first = np.moveaxis(a, 2, 0).copy()
    yield Probe(op, "left batch behind", (first, b), {"transBatchA": 1})
    last = np.moveaxis(b, 2, 0).copy()
    yield Probe(op, "right batch behind", (a, last), {"transBatchB": 1})
    yield Probe(op, "left batch behind, and transposed",
                (np.moveaxis(a.swapaxes(2, 3), 2, 0).copy(), b), {"transBatchA": 1, "transA": 1})  # fmt: skip
    yield Probe("TransposeMatMul", "right transposed", (a, b.swapaxes(2, 3).copy()), {"transB": 1, "alpha": 0.5})
    m, w, c = normal(5, 7), normal(7, 4), normal(4)
    for word, more in (("Relu", {}), ("LeakyRelu", {"activation_alpha": 0.2}), ("Sigmoid", {}), ("Tanh", {}),
                       ("HardSigmoid", {"activation_alpha": 0.3, "activation_beta": 0.4}),
                       ("Elu", {"activation_alpha": 0.7})):  # fmt: skip
        yield Probe(
            "FusedGemm", word, (m, w, c), {"activation": word, "alpha": 0.5, "beta": 2.0, **more}, dims={5: "N"}
        )
    yield Probe("FusedGemm", "transposed, no bias", (m, w.T.copy()), {"activation": "Relu", "transB": 1})
    yield Probe(
        "MatMulInteger16", "int16", (whole(-300, 300, 3, 5, kind=np.int16), whole(-300, 300, 5, 4, kind=np.int16))
    )


def convolutions() -> Iterator[Probe]:
    x, w, bias = normal(2, 4, 9, 8), normal(6, 4, 3, 3) / 4, normal(6)
    pads = {"pads": [1, 1, 1, 1]}
    free = {2: "N"}
    for word, more in (("Relu", {}), ("LeakyRelu", {"activation_params": [0.2]}), ("Sigmoid", {}), ("Tanh", {}),
                       ("Clip", {"activation_params": [-0.3, 0.6]}),
                       ("HardSigmoid", {"activation_params": [0.3, 0.4]})):  # fmt: skip
        yield Probe("FusedConv", word, (x, w, bias), {"activation": word, **more, **pads}, stored=(1, 2), dims=free)
    yield Probe(
        "FusedConv", "no bias, strides", (x, w), {"activation": "Relu", "strides": [2, 1], "kernel_shape": [3, 3]}
    )
    yield Probe(
        "FusedConv", "with a sum", (x, w, bias, normal(2, 6, 9, 8)), {"activation": "Relu", **pads}, stored=(1, 2)
    )
    yield Probe("FusedConv", "groups, one dimension", (x[:, :, :, 0].copy(), normal(6, 2, 3), bias),
                {"activation": "Tanh", "group": 2, "dilations": [2]})  # fmt: skip
    last = np.ascontiguousarray(x.transpose(0, 2, 3, 1))
    yield Probe("NhwcFusedConv", "Relu", (last, w, bias), {"activation": "Relu", **pads}, stored=(1, 2), like=_as_nchw)
    yield Probe("NhwcConv", "plain", (last, w, bias), pads, stored=(1, 2), like=_as_nchw)
    small = whole(0, 255, 2, 9, 8, 5, kind=np.uint8)
    yield Probe("NhwcMaxPool", "uint8", (small,), {"kernel_shape": [3, 2], "strides": [2, 2], "pads": [1, 0, 1, 0]})


def _as_nchw(probe: Probe) -> list[Array]:
    """ONNX Runtime's own convolution with the channels moved, as it has none on CPUs with the channels last."""
    x, *rest = probe.operands
    assert x is not None
    moved = probe._replace(op="FusedConv", like=None, operands=(np.ascontiguousarray(x.transpose(0, 3, 1, 2)), *rest))
    (found,) = theirs(moved)
    return [found.transpose(0, 2, 3, 1)]


def attentions() -> Iterator[Probe]:
    n, t, h, d = 3, 5, 2, 4
    x, w, bias = normal(n, t, 7), normal(7, 3 * h * d) / 2, normal(3 * h * d)
    free = {3: "N", 5: "T"}
    op, base = "Attention", {"num_heads": h}
    ends = np.array([5, 2, 3], np.int32)
    shown = (np.arange(t) < ends[:, None]).astype(np.int32)
    yield Probe(op, "plain", (x, w, bias), base, stored=(1, 2), dims=free)
    yield Probe(op, "no bias, scale", (x, w), {**base, "scale": 0.3})
    yield Probe(op, "unidirectional", (x, w, bias), {**base, "unidirectional": 1}, stored=(1, 2), dims=free)
    yield Probe(op, "a mask of tokens", (x, w, bias, shown), base, stored=(1, 2), dims=free)
    yield Probe(op, "a mask that hides all of a row", (x, w, bias, shown * np.array([[1], [0], [1]], np.int32)), base)
    yield Probe(op, "its own filter value", (x, w, bias, shown), {**base, "mask_filter_value": -2.0})
    yield Probe(op, "the ends of the tokens", (x, w, bias, ends), base, dims=free)
    both = np.concatenate([ends, np.array([1, 0, 2], np.int32)])
    yield Probe(op, "ends and starts", (x, w, bias, both), base)
    square = whole(0, 1, n, t, t) | np.eye(t, dtype=np.int32)
    yield Probe(op, "a mask of pairs", (x, w, bias, square), base, dims=free)
    yield Probe(op, "a mask of pairs, unidirectional", (x, w, bias, square), {**base, "unidirectional": 1})
    yield Probe(op, "a bias of the scores", (x, w, bias, None, None, normal(n, h, t, t)), base)
    yield Probe(op, "a bias of the scores for all", (x, w, bias, shown, None, normal(1, 1, t, t)), base)
    past = normal(2, n, h, 6, d)
    yield Probe(op, "with past", (x, w, bias, None, past), base, results=2, dims={3: "N"})
    yield Probe(op, "with past, unidirectional", (x, w, bias, None, past), {**base, "unidirectional": 1}, results=2,
                dims={3: "N", 6: "P"})  # fmt: skip
    long = np.concatenate([np.ones((n, 6), np.int32), shown], 1)
    yield Probe(op, "with past and a mask", (x, w, bias, long, past), {**base, "unidirectional": 1}, results=2)
    yield Probe(op, "present without past", (x, w, bias), base, results=2, dims=free)
    yield Probe(op, "values of another width", (x, normal(7, 22), normal(22)), {**base, "qkv_hidden_sizes": [8, 8, 6]})
    quantised = whole(0, 255, n, t, 7, kind=np.uint8), whole(-127, 127, 7, 24, kind=np.int8)
    scales = number(0.02), number(0.01)
    op = "QAttention"
    yield Probe(op, "plain", (*quantised, bias, *scales, None, number(120, np.uint8), number(3, np.int8)), base)
    yield Probe(op, "a mask, no zero points", (*quantised, bias, *scales, shown), base, dims=free)
    yield Probe(op, "a scale for each column", (*quantised, bias, scales[0], np.abs(normal(24)) / 50, None,
                                                number(99, np.uint8), np.zeros(24, np.int8)), base)  # fmt: skip
    yield Probe(op, "with past", (*quantised, bias, *scales, None, number(7, np.uint8), number(0, np.int8), past),
                {**base, "unidirectional": 1}, results=2)  # fmt: skip


def several_heads() -> Iterator[Probe]:
    n, t, s, h, d = 3, 5, 6, 2, 4
    q, k, v = normal(n, t, h * d), normal(n, s, h * d), normal(n, s, h * d)
    bias, base, free = normal(3 * h * d), {"num_heads": h}, {3: "N", 5: "T", 6: "S"}
    op = "MultiHeadAttention"
    yield Probe(op, "plain", (q, k, v), base, dims=free)
    yield Probe(op, "with a bias", (q, k, v, bias), {**base, "scale": 0.4}, stored=(3,), dims=free)
    yield Probe(op, "values of another width", (q, k, normal(n, s, h * 3), normal(2 * h * d + h * 3)), base)
    ends = np.array([6, 2, 3], np.int32)
    yield Probe(op, "lengths of the keys", (q, k, v, None, ends), base, dims=free)
    shown = (np.arange(s) < ends[:, None]).astype(np.int32)
    yield Probe(op, "a padding mask", (q, k, v, bias, shown), base, dims=free)
    yield Probe(op, "a mask of pairs", (q, k, v, bias, whole(0, 1, n, t, s)), base)
    yield Probe(op, "a filter value", (q, k, v, None, shown), {**base, "mask_filter_value": -1.5})
    yield Probe(op, "a bias of the scores", (q, k, v, None, None, normal(1, h, t, s)), base, dims=free)
    yield Probe(op, "a bias for each request", (q, k, v, None, shown, normal(n, 1, t, s)), base)
    own = normal(n, t, h * d), normal(n, t, h * d)
    past = normal(n, h, 6, d), normal(n, h, 6, d)
    free = {3: "N", 5: "T", 6: "P"}
    yield Probe(op, "unidirectional", (q, *own), {**base, "unidirectional": 1}, dims=free)
    yield Probe(op, "present", (q, *own, bias), base, results=3, dims=free)
    yield Probe(op, "with past", (q, *own, None, None, None, *past), base, results=3, dims=free)
    yield Probe(op, "with past, unidirectional", (q, *own, bias, None, None, *past), {**base, "unidirectional": 1},
                results=3, dims=free)  # fmt: skip
    heads = normal(n, h, s, d), normal(n, h, s, d)
    yield Probe(op, "keys that have their heads", (q, *heads), base)
    yield Probe(op, "packed keys and values", (q, normal(n, s, h, 2, d)), base, dims={5: "T", 6: "S"}, like=_apart)
    yield Probe(op, "all packed", (normal(n, t, h, 3, d),), base, dims={5: "T"}, like=_apart)


def _apart(probe: Probe) -> list[Array]:
    """ONNX Runtime's attention of what is packed, given in parts, as it takes the packed form on GPUs only."""
    parts = []
    for x in probe.operands:
        assert x is not None
        each = [x[:, :, :, i] for i in range(x.shape[3])] if x.ndim == 5 else [x]
        parts += [np.ascontiguousarray(y.reshape(*y.shape[:2], -1)) for y in each]
    return theirs(probe._replace(operands=tuple(parts), like=None))


def grouped() -> Iterator[Probe]:
    n, t, h, g, d = 3, 5, 4, 2, 16
    op, base = "GroupQueryAttention", {"num_heads": h, "kv_num_heads": g}
    q, k, v = normal(n, t, h * d), normal(n, t, g * d), normal(n, t, g * d)
    empty = np.zeros((n, g, 0, d), np.float32)

    def lengths(count: int) -> tuple[Array, Array]:
        return np.full(n, count - 1, np.int32), number(count, np.int32)

    tables = normal(16, d // 2), normal(16, d // 2)
    yield Probe(op, "a prompt", (q, k, v, None, None, *lengths(t)), base, results=3, dims={3: "N", 5: "T"})
    yield Probe(op, "a prompt, past that is empty", (q, k, v, empty, empty, *lengths(t)), base, results=3)
    yield Probe(op, "rotary", (q, k, v, None, None, *lengths(t), *tables), {**base, "do_rotary": 1}, results=3)
    yield Probe(op, "rotary in pairs", (q, k, v, None, None, *lengths(t), *tables),
                {**base, "do_rotary": 1, "rotary_interleaved": 1}, results=3)  # fmt: skip
    yield Probe(op, "a scale and a window", (q, k, v, None, None, *lengths(t)),
                {**base, "scale": 0.2, "local_window_size": 3}, results=3)  # fmt: skip
    yield Probe(op, "a softcap", (q, k, v, None, None, *lengths(t)), {**base, "softcap": 1.5}, results=3)
    yield Probe(op, "a smooth softmax", (q, k, v, None, None, *lengths(t)), {**base, "smooth_softmax": 1}, results=3)
    sink = normal(h)
    none = (None,) * 4
    yield Probe(op, "sinks", (q, k, v, None, None, *lengths(t), *none, sink), base, results=3)
    yield Probe(op, "sinks and a window", (q, k, v, None, None, *lengths(t), *none, sink),
                {**base, "local_window_size": 2}, results=3)  # fmt: skip
    yield Probe(op, "a bias of the scores", (q, k, v, None, None, *lengths(t), None, None, None, normal(1, h, t, t)),
                base, results=3)  # fmt: skip
    packed = np.concatenate([q, k, v], 2)
    yield Probe(
        op, "packed", (packed, None, None, None, None, *lengths(t), *tables), {**base, "do_rotary": 1}, results=3
    )
    one = q[:, :1].copy(), k[:, :1].copy(), v[:, :1].copy()
    past = normal(n, g, 7, d), normal(n, g, 7, d)
    free = {3: "N", 7: "P"}
    yield Probe(op, "a token behind past", (*one, *past, *lengths(8)), base, results=3, dims=free)
    yield Probe(op, "a token behind past, rotary", (*one, *past, *lengths(8), *tables), {**base, "do_rotary": 1},
                results=3, dims=free)  # fmt: skip
    yield Probe(op, "a token behind past, a window", (*one, *past, *lengths(8)), {**base, "local_window_size": 4},
                results=3)  # fmt: skip
    yield Probe(op, "a token behind past, sinks", (*one, *past, *lengths(8), *none, sink), base, results=3, dims=free)
    apart = np.array([3, 7, 5], np.int32), number(8, np.int32)
    yield Probe(op, "a token behind past of different lengths", (*one, *past, *apart), base, results=3, dims=free)
    yield Probe(op, "different lengths, rotary and a window", (*one, *past, *apart, *tables),
                {**base, "do_rotary": 1, "local_window_size": 4}, results=3, dims=free)  # fmt: skip
    yield Probe(op, "different lengths, sinks and a softcap", (*one, *past, *apart, *none, sink),
                {**base, "softcap": 1.5}, results=3, dims=free)  # fmt: skip
    yield Probe(op, "different lengths, a bias of the scores",
                (*one, *past, *apart, None, None, None, normal(1, h, 1, 8)), base, results=3, dims=free)  # fmt: skip
    yield Probe(op, "a buffer with room for more", (*one, *past, np.array([3, 0, 4], np.int32), number(5, np.int32),
                *tables), {**base, "do_rotary": 1}, results=3, dims=free)  # fmt: skip
    yield Probe(op, "a prompt into a buffer with room for more", (q, k, v, *past, *lengths(t), *tables),
                {**base, "do_rotary": 1}, results=3, dims={3: "N", 5: "T", 7: "P"})  # fmt: skip
    first = [x[:1].copy() for x in (q, k, v)]
    before = [x[:1].copy() for x in past]
    yield Probe(op, "several tokens behind past", (*first, *before, np.array([11], np.int32), number(12, np.int32)),
                base, results=3)  # fmt: skip
    x, half = normal(n, h, t, d), normal(n, t, h * d)
    for what, given, more in (
        ("heads apart", x, {}), ("heads joined", half, {"num_heads": h}), ("in pairs", x, {"interleaved": 1}),
    ):  # fmt: skip
        places = whole(0, 15, n, t, kind=np.int64)
        yield Probe("RotaryEmbedding", what, (given, places, *tables), more, stored=(2, 3), dims={3: "N", 5: "T"})
        yield Probe("RotaryEmbedding", f"{what}, from a place on", (given, np.array([4]), *tables), more)
    part = normal(16, 2), normal(16, 2)
    yield Probe("RotaryEmbedding", "a part of the head", (half, np.array([0]), *part),
                {"num_heads": h, "rotary_embedding_dim": 4})  # fmt: skip
    yield Probe("RotaryEmbedding", "the number of heads from the tables", (half, np.array([0]), *tables))


def quantised() -> Iterator[Probe]:
    """ONNX Runtime's kernels round products of scales in another order: a step apart where a number is half way."""
    near: dict[str, Any] = {"steps": 1, "few": 0.02}
    for kind, zero in ((np.uint8, 128), (np.int8, -3)):
        low, high = (0, 255) if kind is np.uint8 else (-128, 127)
        a, b = whole(low, high, 3, 5, 7, kind=kind), whole(low, high, 3, 5, 7, kind=kind)
        s, z = (
            (number(0.0313), number(0.0537), number(0.0719)),
            (number(zero, kind), number(zero + 5, kind), number(zero, kind)),
        )
        word = np.dtype(kind).name
        for op in ("QLinearAdd", "QLinearMul"):
            yield Probe(op, word, (a, s[0], z[0], b, s[1], z[1], s[2], z[2]), stored=(1, 2, 4, 5, 6, 7), dims={3: "N"},
                        **near)  # fmt: skip
            yield Probe(op, f"{word}, broadcast", (a, s[0], z[0], b[0, 0], s[1], z[1], s[2], z[2]), **near)
        yield Probe("QLinearSigmoid", word, (a, s[0], z[0], number(1 / 256), number(low, kind)), **near)
        yield Probe("QLinearLeakyRelu", word, (a, s[0], z[0], s[1], z[2]), {"alpha": 0.2}, **near)
        choice = whole(0, 1, 3, 5, 7, kind=np.bool_)
        yield Probe("QLinearWhere", word, (choice, a, s[0], z[0], b, s[1], z[1], s[2], z[2]),
                    **near)  # fmt: skip
        yield Probe(
            "QLinearConcat", word, (s[2], z[2], a, s[0], z[0], b[:, :2].copy(), s[1], z[1]), {"axis": 1}, **near
        )
        for opset, axis in ((13, -1), (13, 1), (12, 1)):
            scaled = (a, s[1], z[0], number(1 / 256), number(low, kind))
            yield Probe("QLinearSoftmax", f"{word}, opset {opset}, axis {axis}", scaled, {"opset": opset, "axis": axis},
                        **near)  # fmt: skip
        image = whole(low, high, 2, 4, 9, 8, kind=kind)
        last = np.ascontiguousarray(image.transpose(0, 2, 3, 1))
        scales = (s[0], z[0], s[1], z[1])
        for channels, given in ((0, image), (1, last)):
            more = {"channels_last": channels}
            yield Probe("QLinearGlobalAveragePool", f"{word}, channels_last {channels}", (given, *scales), more, **near)
            for count in (0, 1):
                yield Probe("QLinearAveragePool", f"{word}, channels_last {channels}, count_include_pad {count}",
                            (given, *scales), {**more, "kernel_shape": [3, 3], "strides": [2, 2], "pads": [1] * 4,
                                               "count_include_pad": count}, steps=1, few=0.06)  # fmt: skip
        w = whole(-127, 127, 6, 4, 3, 3, kind=np.int8)
        bias = whole(-900, 900, 6)
        each = np.abs(normal(6)) / 100 + np.float32(0.001)
        conv = (s[0], z[0], w, each, np.zeros(6, np.int8), number(0.4), z[1], bias)
        for channels, given in ((0, image), (1, last)):
            yield Probe("QLinearConv", f"{word}, channels_last {channels}", (given, *conv),
                        {"pads": [1] * 4, "channels_last": channels}, stored=tuple(range(1, 9)), **near)  # fmt: skip
        yield from _products(kind, low, high, zero, near)
    x = normal(3, 5, 8)
    yield Probe("QuantizeLinear", "int8", (x, number(0.1), number(3, np.int8)))
    yield Probe(
        "QuantizeLinear",
        "of an axis",
        (x, np.abs(normal(5)) / 9 + np.float32(0.01), whole(0, 9, 5, kind=np.uint8)),
        {"axis": 1},
    )
    yield Probe("QuantizeLinear", "uint16", (x, number(0.001), number(900, np.uint16)))
    yield Probe("DequantizeLinear", "int8", (whole(-9, 9, 3, 5, kind=np.int8), number(0.1), number(3, np.int8)))
    yield Probe("DequantizeLinear", "int32", (whole(-999, 999, 3, 5), number(0.1)))


def _products(kind: Any, low: int, high: int, zero: int, near: dict[str, Any]) -> Iterator[Probe]:
    word = np.dtype(kind).name
    for other in (np.uint8, np.int8):
        if kind is np.int8 and other is np.uint8:
            continue
        a = whole(low, high, 5, 19, kind=kind)
        b = whole(0 if other is np.uint8 else -127, 255 if other is np.uint8 else 127, 19, 6, kind=other)
        pair = f"{word} by {np.dtype(other).name}"
        zeros = number(zero, kind), number(7, other)
        columns = np.abs(normal(6)) / 90 + np.float32(0.001), whole(0, 9, 6, kind=other)
        both = (a, b, number(0.03), number(0.02))
        op = "MatMulIntegerToFloat"
        yield Probe(op, pair, (*both, *zeros), dims={5: "N"})
        yield Probe(
            op, f"{pair}, of columns, a bias", (a, b, number(0.03), columns[0], zeros[0], columns[1], normal(6))
        )
        yield Probe(op, f"{pair}, no zero points", both)
        yield Probe(
            "QGemm", f"{pair}, floats", (a, number(0.03), zeros[0], b, number(0.02), zeros[1], whole(-99, 99, 6))
        )
        yield Probe("QGemm", f"{pair}, turned", (a, number(0.03), zeros[0], b.T.copy(), columns[0], columns[1]),
                    {"transB": 1, "alpha": 0.5})  # fmt: skip
        more = whole(-99, 99, 6), number(0.4), number(zero, kind)
        given = (a, number(0.03), zeros[0], b, number(0.02), zeros[1], *more)
        yield Probe("QGemm", f"{pair}, quantised", given, **near)
        yield Probe("QLinearMatMul", pair, (a, number(0.03), zeros[0], b, number(0.02), zeros[1], number(0.4),
                                            number(zero, kind)), domain="", **near)  # fmt: skip
        yield Probe("MatMulInteger", pair, (a, b, *zeros), domain="")
        if kind is np.uint8:
            yield Probe("DynamicQuantizeMatMul", pair, (normal(2, 5, 19), b, number(0.02), zeros[1]), dims={2: "N"})
            yield Probe("DynamicQuantizeMatMul", f"{pair}, of columns, a bias",
                        (normal(5, 19), b, *columns, normal(6)), stored=(1, 2, 3, 4))  # fmt: skip
            yield Probe("DynamicQuantizeMatMul", f"{pair}, no zero point", (normal(5, 19), b, number(0.02)))


def integer_convolutions() -> Iterator[Probe]:
    """Sums beyond what float32 holds, and windows of every kind."""
    x, w = whole(200, 255, 2, 64, 9, 8, kind=np.uint8), whole(90, 127, 6, 64, 3, 3, kind=np.int8)
    zeros, pads = (number(3, np.uint8), number(-7, np.int8)), {"pads": [1, 1, 1, 1]}
    op = "ConvInteger"
    yield Probe(op, "zero points", (x, w, *zeros), pads, stored=(1, 2, 3), domain="")
    more = {"strides": [2, 1], "dilations": [1, 2], "pads": [1, 2, 0, 1]}
    yield Probe(op, "strides and dilations", (x, w, zeros[0]), more, stored=(1, 2), domain="")
    yield Probe(op, "groups", (x, w[:, :16].copy()[:4], zeros[0]), {"group": 4, "auto_pad": "SAME_UPPER"}, domain="")
    yield Probe(op, "large sums", (x, w), pads, stored=(1,), dims={2: "N", 9: "H", 8: "W"}, domain="")


def few_bits() -> Iterator[Probe]:
    k, n = 64, 6
    x = normal(2, 3, k)
    free = {2: "N", 3: "T"}
    op = "MatMulNBits"
    for bits, block in ((4, 16), (4, 32), (8, 32), (2, 16)):
        count = k // block
        packed = whole(0, 255, n, count, block * bits // 8, kind=np.uint8)
        scales = np.abs(normal(n, count)) / 20
        base = {"K": k, "N": n, "bits": bits, "block_size": block}
        zeros = whole(0, 255, n, -(-count * bits // 8), kind=np.uint8)
        word = f"{bits} bits in blocks of {block}"
        yield Probe(op, word, (x, packed, scales), base, stored=(1, 2), dims=free)
        flat = scales.reshape(-1), zeros.reshape(-1)
        yield Probe(op, f"{word}, flat scales and zero points", (x, packed, *flat), base, stored=(1, 2, 3), dims=free)
        yield Probe(
            op,
            f"{word}, zero points and a bias",
            (x, packed, scales, zeros, None, normal(n)),
            base,
            stored=(1, 2, 3, 5),
        )
        if bits == 4:
            yield Probe(op, f"{word}, zero points that are floats",
                        (x, packed, scales, np.abs(normal(n, count)) * 8), base, stored=(1, 2, 3))  # fmt: skip
    odd = 50
    packed = whole(0, 255, n, 4, 8, kind=np.uint8)
    yield Probe(op, "a last block that is cut off", (normal(3, odd), packed, np.abs(normal(n, 4)) / 20),
                {"K": odd, "N": n, "bits": 4, "block_size": 16}, stored=(1, 2))  # fmt: skip
    ids = whole(0, 10, 2, 3, kind=np.int64)
    op = "GatherBlockQuantized"
    for bits, width in ((4, 16), (8, 32)):
        data, scales = whole(0, 255, 11, width, kind=np.uint8), np.abs(normal(11, 2)) / 9
        base = {"bits": bits, "block_size": 16, "gather_axis": 0, "quantize_axis": 1}
        zeros = whole(0, 255, 11, 2 * bits // 8, kind=np.uint8)
        yield Probe(op, f"bytes of {bits} bits", (data, ids, scales), base, stored=(0, 2), dims={2: "N"})
        yield Probe(op, f"bytes of {bits} bits, zero points", (data, ids, scales, zeros), base, stored=(0, 2, 3))


def others() -> Iterator[Probe]:
    x = normal(3, 5, 7)
    for axis in (0, 2, -1):
        yield Probe("ExpandDims", f"at {axis}", (x, number(axis, np.int32)), stored=(1,), dims={3: "N"})
    yield Probe("GatherND", "coordinates", (x, np.array([[0, 1], [2, 4]])), dims={3: "N"})
    for upper in (0, 1):
        yield Probe("Trilu", f"upper {upper}", (x, number(-1, np.int64)), {"upper": upper}, stored=(1,))
    for metric in ("euclidean", "sqeuclidean"):
        yield Probe(
            "CDist", metric, (normal(4, 6), normal(5, 6)), {"metric": metric}, dims={4: "N"}, rtol=1e-3, atol=1e-4
        )
    size, hidden = 6, 8
    weights = whole(-127, 127, 1, size, 4 * hidden, kind=np.int8), whole(-127, 127, 1, hidden, 4 * hidden, kind=np.int8)
    scales = np.array([0.004], np.float32), np.zeros(1, np.int8)
    yield Probe("DynamicQuantizeLSTM", "inputs that 8 bits hold", (
        normal(5, 3, size), *weights, normal(1, 8 * hidden), None, None, None, None, *scales, *scales,
    ), {"hidden_size": hidden}, results=3, stored=(1, 2), rtol=0.05, atol=0.05)  # fmt: skip


def trees() -> Iterator[Probe]:
    x = normal(9, 4)
    x[2, 1] = np.nan
    op = "TreeEnsembleRegressor"
    for aggregate in ("SUM", "AVERAGE", "MIN", "MAX"):
        for targets in (1, 3):
            for words in (("BRANCH_LEQ",), ("BRANCH_LT", "BRANCH_GTE", "BRANCH_GT")):
                grown = {**_grown(4, 3, targets, words), "aggregate_function": aggregate}
                what = f"{aggregate}, {targets} targets, {' '.join(words)}"
                yield Probe(op, what, (x,), grown, dims={9: "N"}, domain=TREES)
    lost = {"nodes_missing_value_tracks_true": [1, 0] * 30}
    yield Probe(op, "missing values", (x,), {**_grown(4, 3, 2, ("BRANCH_LT",)), **lost}, domain=TREES)
    # ONNX Runtime adds no base value where no tree says anything, and transforms no single target.
    for how in ("NONE", "SOFTMAX", "LOGISTIC"):
        grown = {**_grown(3, 2, 2, ("BRANCH_LEQ",), full=True), "base_values": [0.5, -1.0], "post_transform": how}
        yield Probe(op, f"base values, {how}", (x,), grown, domain=TREES)


def _grown(trees: int, depth: int, targets: int, words: tuple[str, ...], full: bool = False) -> dict[str, Any]:
    """Whole trees of so many levels of branches, numbered level by level; leaves have one target, or all if `full`."""
    branches, count = 2**depth - 1, 2 ** (depth + 1) - 1
    node, tree = np.tile(np.arange(count), trees), np.repeat(np.arange(trees), count)
    leaf = node >= branches
    modes = [word if inside else "LEAF" for word, inside in zip(RNG.choice(words, len(node)), ~leaf, strict=True)]
    each = targets if full else 1
    said = np.repeat(np.flatnonzero(leaf), each)
    ids = np.tile(np.arange(targets), leaf.sum()) if full else whole(0, targets - 1, len(said))
    return {
        "n_targets": targets, "nodes_treeids": tree.tolist(), "nodes_nodeids": node.tolist(),
        "nodes_featureids": whole(0, 3, len(node)).tolist(), "nodes_values": normal(len(node)).tolist(),
        "nodes_modes": modes, "nodes_truenodeids": np.where(leaf, 0, 2 * node + 1).tolist(),
        "nodes_falsenodeids": np.where(leaf, 0, 2 * node + 2).tolist(), "target_treeids": tree[said].tolist(),
        "target_nodeids": node[said].tolist(), "target_ids": ids.tolist(), "target_weights": normal(len(said)).tolist(),
    }  # fmt: skip


PROBES = (
    activations,
    norms,
    products,
    convolutions,
    attentions,
    several_heads,
    grouped,
    quantised,
    integer_convolutions,
    few_bits,
    others,
    trees,
)


def probes(words: Sequence[str] = ()) -> list[Probe]:
    """All of them, or those whose name has one of the words; the same numbers each time."""
    RNG.bit_generator.state = SEEDED
    return [p for make in PROBES for p in make() if not words or any(w in p.name for w in words)]
