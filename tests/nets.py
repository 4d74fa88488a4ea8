"""Small networks that several tests build: a Llama-like decoder written by hand, with its weights and one step's
inputs.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from ingot import dtypes
from ingot.backends.cpu import CPU
from ingot.backends.kernel import KernelCall
from ingot.dims import Dim
from ingot.ir import F, Network, Node, Spec, StateSpec, Value

Array = np.ndarray[Any, Any]


def op_name(node: Node) -> str:
    """The name of a node's op; of a lowered one that of its kernel."""
    choice = CPU.choose(node) if node.op.name == "lowered" else None
    return choice.kernel if isinstance(choice, KernelCall) else node.op.name


def llama(
    *, layers: int = 2, hidden: int = 64, heads: int = 4, kv_heads: int = 2, width: int = 16, mlp: int = 96,
    vocabulary: int = 80, dtype: str = "float32", tied: bool = True, bias: bool = False,
    slopes: Array | None = None,
) -> Network:  # fmt: skip
    """The network of CONTRACT's step inputs: token_ids … logit_rows → logits float32."""
    net = Network("main")
    tokens, requests, blocks, rows = Dim("T", max=512), Dim("B", max=64), Dim("N", max=64), Dim("R", max=64)
    i32 = dtypes.int32
    ids = net.input("token_ids", Spec((tokens,), i32))
    positions = net.input("positions", Spec((tokens,), i32))
    start = net.input("query_start", Spec((requests + 1,), i32))
    length = net.input("context_len", Spec((requests,), i32))
    table = net.input("block_table", Spec((requests, blocks), i32))
    slot = net.input("slot", Spec((tokens,), i32))
    logit_rows = net.input("logit_rows", Spec((rows,), i32))

    def weight(name: str, *shape: int) -> Value:
        return net.values.get(name) or net.parameter(name, Spec(shape, dtype))

    def linear(x: Value, name: str, n: int) -> Value:
        y = F.matmul(x, weight(f"{name}.weight", n, x.shape[-1]), transpose_b=True)
        return F.add(y, weight(f"{name}.bias", n)) if bias and "_proj" in name and "mlp" not in name else y

    embedding = weight("model.embed_tokens.weight", vocabulary, hidden)
    cos, sin = F.rope_table(
        positions, net.constant((10000.0 ** (-np.arange(width // 2) / (width // 2))).astype(np.float32))
    )
    x = F.embedding(ids, embedding)
    for i in range(layers):
        with net.scope(f"model.layers.{i}"):
            p = f"model.layers.{i}"
            state = net.state(f"kv.{i}", StateSpec(dtype, heads=kv_heads, head_dim=width))
            h = F.rms_norm(x, weight(f"{p}.input_layernorm.weight", hidden), eps=1e-5)
            q = F.reshape(linear(h, f"{p}.self_attn.q_proj", heads * width), (tokens, heads, width))
            k = F.reshape(linear(h, f"{p}.self_attn.k_proj", kv_heads * width), (tokens, kv_heads, width))
            v = F.reshape(linear(h, f"{p}.self_attn.v_proj", kv_heads * width), (tokens, kv_heads, width))
            q, k = F.rope(q, cos, sin), F.rope(k, cos, sin)
            written = F.kv_write(state, k, v, slot)
            step = (start, length, table, *([net.constant(slopes)] if slopes is not None else []))
            a = F.paged_attention(q, written, *step, scale=width**-0.5)
            x = x + linear(F.reshape(a, (tokens, heads * width)), f"{p}.self_attn.o_proj", hidden)
            h = F.rms_norm(x, weight(f"{p}.post_attention_layernorm.weight", hidden), eps=1e-5)
            gated = F.silu(linear(h, f"{p}.mlp.gate_proj", mlp)) * linear(h, f"{p}.mlp.up_proj", mlp)
            x = x + linear(gated, f"{p}.mlp.down_proj", hidden)
    x = F.rms_norm(F.take(x, logit_rows), weight("model.norm.weight", hidden), eps=1e-5)
    head = embedding if tied else weight("lm_head.weight", vocabulary, hidden)
    net.outputs["logits"] = F.matmul(x, head, transpose_b=True, out_dtype=dtypes.float32)
    return net


def weights(net: Network, seed: int = 0) -> dict[str, Array]:
    """Random values of every parameter: norm weights near 1, others small."""
    rng = np.random.default_rng(seed)

    def one(v: Value) -> Array:
        shape = v.spec.evaluate({})
        draw = rng.standard_normal(shape) * (0.1 if len(shape) == 1 else 1.5 / np.sqrt(shape[-1]))
        return (draw + ("norm" in v.name)).astype(v.dtype.numpy)  # type: ignore[no-any-return]

    return {v.name: one(v) for v in net.parameters}


def step(context: int = 5, rows: int = 5, vocabulary: int = 80, seed: int = 0, block: int = 16) -> dict[str, Array]:
    """One request's step: its last `rows` of `context` tokens, in blocks 1, 2, …, and one padding row."""
    rng = np.random.default_rng(seed)
    blocks = -(-context // block)
    at = np.arange(context - rows, context)
    pad = np.array([-1])
    arrays = {
        "token_ids": np.append(rng.integers(0, vocabulary, rows), 0),
        "positions": np.append(at, 0),
        "query_start": np.array([0, rows]),
        "context_len": np.array([context]),
        "block_table": np.arange(1, blocks + 1)[None],
        "slot": np.append((at // block + 1) * block + at % block, pad),
        "logit_rows": np.array([rows - 1, 0]),
    }
    return {name: a.astype(np.int32) for name, a in arrays.items()}


def caches(net: Network, blocks: int = 8, block: int = 16) -> dict[str, Array]:
    """Empty states for the interpreter."""
    return {v.name: np.zeros((blocks, block, 2, v.spec.heads, v.spec.width), v.dtype.numpy) for v in net.states}
