"""Arguments that versions before this one took and forgot: honoured, or refused with what to write instead."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from ingot.errors import OpError, UnsupportedError
from tests.compat.test_trt_network import X, run, trt

torch = pytest.importorskip("torch")


def plain(record: Any, *tensors: Any) -> Any:
    """What a function of tensorrt_llm gives."""
    from tensorrt_llm import Tensor

    def call(network: Any, *given: Any) -> Any:
        return record(*(Tensor(trt_tensor=t) for t in given)).trt_tensor

    return run(call, *tensors)


def test_a_tensor_of_torchs_among_operands() -> None:
    import tensorrt_llm.functional as g

    with pytest.raises(OpError, match=r"test_arguments.py:\d+: matmul: operand b is a torch\.Tensor; operands are"):
        plain(lambda x: g.matmul(x, torch.ones(4, 2)), X)


IDS = torch.tensor([[0, 4], [2, 1]], dtype=torch.int32)


def test_embedding_with_scales_and_padding() -> None:
    import tensorrt_llm.functional as g

    table, more, scale = torch.randn(4, 3), torch.randn(2, 3), torch.rand(6)
    ours = plain(lambda i, w, p, s: g.embedding(i, w, per_token_scale=s, padding=p), IDS, table, more, scale)
    theirs = torch.cat([table, more])[IDS.long()] * scale[IDS.long()][..., None]
    torch.testing.assert_close(ours, theirs)


def test_slices_with_a_mode() -> None:
    import tensorrt_llm.functional as g

    ours = plain(lambda x: g.slice(x, [0, -1], [3, 6], mode=trt().SampleMode.FILL, fill_value=2.0), X)
    assert torch.equal(ours, torch.nn.functional.pad(X, (1, 1), value=2.0))
    ours = plain(lambda x: g.slice(x, [0, -1], [3, 6], mode=trt().SampleMode.CLAMP), X)
    assert torch.equal(ours, X[:, [0, 0, 1, 2, 3, 3]])


def test_shapes_within_bounds() -> None:
    import tensorrt_llm.functional as g

    ours = plain(lambda x: g.shape(x, cast_to_dtype="int32", clip_before_cast=[0, 3]), X)
    assert ours.tolist() == [3, 3] and ours.dtype == torch.int32


def test_allreduce_with_a_norm() -> None:
    import tensorrt_llm.functional as g

    def record(x: Any, y: Any, w: Any) -> Any:
        params = g.AllReduceParams(
            fusion_op=g.AllReduceFusionOp.RESIDUAL_RMS_NORM, residual=y, norm_weight=w, bias=x, eps=1e-5
        )
        normed, whole = g.allreduce(x, [0], params)
        return normed + whole

    weight = torch.rand(4)
    whole = X + X + X.flip(0)
    normed = torch.nn.functional.rms_norm(whole, (4,), weight, 1e-5)
    torch.testing.assert_close(plain(record, X, X.flip(0), weight), normed + whole)
    scaled = plain(lambda x, y: g.gemm_allreduce(x, y, [0], transb=True, alpha=2.0), X, X)
    torch.testing.assert_close(scaled, 2 * X @ X.T)


REFUSED = {
    "Linear called with all_reduce_params": lambda c, x: c.layers.Linear(4, 2)(x, all_reduce_params=fused(c, x)),
    "MLP called with reduce_fusion": lambda c, x: c.layers.MLP(4, 8, "gelu")(x, reduce_fusion=x),
    "LayerNorm called with normalized_shape": lambda c, x: c.layers.LayerNorm(4)(x, normalized_shape=3),
    "RmsNorm called with normalized_shape": lambda c, x: c.layers.RmsNorm(4)(x, normalized_shape=(3, 4)),
    "Mapping.rank=1": lambda c, x: c.Mapping(rank=1),
    "Mapping.moe_tp_size=2": lambda c, x: c.Mapping(moe_tp_size=2),
    "managed_weights": lambda c, x: c.Builder().build_engine(
        c.default_net(), c.Builder().create_builder_config(), managed_weights={}
    ),
    "Attention with qk_layernorm=True": lambda c, x: c.layers.Attention(8, 2, qk_layernorm=True),
    "Attention with nonsense": lambda c, x: c.layers.Attention(8, 2, nonsense=0),
    "KeyValueCacheParams with nonsense": lambda c, x: c.layers.KeyValueCacheParams(nonsense=0),
    "bert_attention with max_distance": lambda c, x: c.functional.bert_attention(x, x, 1, 1, 1.0, max_distance=3),
    "bert_attention: relative_attention and": lambda c, x: c.functional.bert_attention(x, x, 1, 1, 1.0, True),
    "allreduce with MOE": lambda c, x: c.functional.allreduce(
        x, [0], c.functional.AllReduceParams(fusion_op=c.functional.AllReduceFusionOp(8))
    ),
    "allgather of 2 ranks": lambda c, x: c.functional.allgather(x, [0, 1]),
}


def fused(c: Any, x: Any) -> Any:
    return c.functional.AllReduceParams(fusion_op=c.functional.AllReduceFusionOp.RESIDUAL_RMS_NORM, residual=x)


@pytest.mark.parametrize("message", REFUSED)
def test_refusals(message: str) -> None:
    import tensorrt_llm
    from tensorrt_llm import Tensor

    with tensorrt_llm.net_guard(tensorrt_llm.Builder().create_network()):
        x = Tensor("x", "float32", [3, 4])
        with pytest.raises(UnsupportedError, match=rf"test_arguments.py:\d+: .*{message}"):
            REFUSED[message](tensorrt_llm, x)


def test_flags_say_how_a_network_is_typed() -> None:
    words = trt()
    strong = 1 << int(words.NetworkDefinitionCreationFlag.STRONGLY_TYPED)
    for flags, expected in ((0, False), (1, False), (strong, True), (strong | 1, True)):
        network = words.Builder(words.Logger()).create_network(flags)
        assert network.get_flag(words.NetworkDefinitionCreationFlag.STRONGLY_TYPED) is expected
        assert network.get_flag(words.NetworkDefinitionCreationFlag.EXPLICIT_BATCH)
        assert bool(network.flags & strong) is expected


def test_a_layers_precision_is_that_of_its_sums() -> None:
    words = trt()
    network = words.Builder(words.Logger()).create_network()
    x = network.add_input("x", words.float32, (3, 4))
    layer = network.add_unary(x, words.UnaryOperation.EXP)
    layer.precision = words.float16
    assert layer.precision_is_set and layer.precision is words.float16
    layer.get_output(0).name = "y"
    network.mark_output(layer.get_output(0))
    import tensorrt_llm

    data = words.Builder(words.Logger()).build_serialized_network(network, words.Builder().create_builder_config())
    session = tensorrt_llm.runtime.Session.from_serialized_engine(data)
    y = torch.empty(3, 4)
    session.run({"x": X}, {"y": y}, 0)
    torch.testing.assert_close(y, torch.exp(X.half()).float(), rtol=1e-3, atol=1e-3)
    assert len(network.network.casts) == 2 and "the layer's precision of float16" in network.network.casts[0]


def test_a_warning_is_given_once(caplog: pytest.LogCaptureFixture) -> None:
    from tensorrt_llm import logger

    for _ in range(2):
        logger.warning_once("the same", key="one")
        logger.warning_once("the same", key="another")
    assert [record.getMessage() for record in caplog.records] == ["the same", "the same"]


def test_numbers() -> None:
    from tensorrt_llm.functional import DimRange

    one, other = DimRange([(1, 2, 3), 4], ["batch", "width"]), DimRange([[1, 2, 3], 4], ["batch", "width"])
    assert one == other and hash(one) == hash(other) and (one.min, one.opt, one.max) == ([1, 4], [2, 4], [3, 4])
    assert one != DimRange([(1, 2, 3), 5], ["batch", "width"])
    with pytest.raises(UnsupportedError, match="one name for each"):
        DimRange([1, 2], ["a"])


def test_rope_embedding_utils_are_transformers() -> None:
    transformers = pytest.importorskip("transformers")
    from tensorrt_llm.functional import RopeEmbeddingUtils
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    llama3 = {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64, "rope_theta": 10000.0,
    }  # fmt: skip
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64, "rope_theta": 10000.0}
    for scaling in (llama3, yarn):
        config = transformers.LlamaConfig(
            hidden_size=64, num_attention_heads=2, rope_theta=10000.0, rope_scaling=scaling, max_position_embeddings=256
        )
        theirs, grown = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu")
        if scaling is llama3:
            ours, table = RopeEmbeddingUtils.create_sinusoidal_positions_for_attention_plugin(
                10, 32, 10000.0, 8.0, 4, llama3
            )
        else:
            make = RopeEmbeddingUtils.create_sinusoidal_positions_yarn
            ours, table = make(10, 32, 10000.0, 4.0, 64, mscale_all_dim=0.0)
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-6)
        angle = np.arange(10)[:, None] * theirs.numpy()
        expected = np.stack([np.cos(angle), np.sin(angle)], 2) * grown
        np.testing.assert_allclose(table.reshape(10, 16, 2), expected, atol=2e-6)


def test_tensors_turned_by_rope_embedding_utils() -> None:
    from tensorrt_llm.functional import PositionEmbeddingType, RopeEmbeddingUtils

    x, angle = torch.randn(2, 5, 3, 8), torch.arange(5)[:, None] / torch.tensor([1.0, 10, 100, 1000])
    cos, sin = angle.cos()[None, :, None], angle.sin()[None, :, None]
    a, b = x[..., ::2], x[..., 1::2]
    pairs = torch.stack([a * cos - b * sin, b * cos + a * sin], -1).flatten(-2)
    c, d = x.chunk(2, -1)
    halves = torch.cat([c * cos - d * sin, d * cos + c * sin], -1)
    for kind, theirs in ((PositionEmbeddingType.rope_gptj, pairs), (PositionEmbeddingType.rope_gpt_neox, halves)):
        ours = plain(lambda x, c, s, k=kind: RopeEmbeddingUtils.apply_rotary_pos_emb(x, (c, s), k), x, cos, sin)
        torch.testing.assert_close(ours, theirs)


def test_make_causal_mask() -> None:
    from tensorrt_llm.layers.attention import make_causal_mask

    for dtype in ("float32", "float16", "bfloat16"):
        ours = plain(lambda x, d=dtype: make_causal_mask(2, 3, 1, d).cast("float32"), X)
        expected = torch.full((3, 4), torch.finfo(getattr(torch, dtype)).min).triu(2).expand(2, 1, 3, 4)
        assert torch.equal(ours, expected)
