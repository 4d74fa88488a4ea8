"""The text form of a network: deterministic, one line per value, and read back by `text.parse`.

    network main {
      dim T in 1..64
      input %x : f32[T, 8]
      parameter %norm.weight : f32[8]
      %0 = rms_norm(%x, %norm.weight) {eps=1e-06} : f32[T, 8] @ norm
      return y=%0
    }

A network held by an op follows as a block of its own, and the attribute names it.
"""
from __future__ import annotations

import base64
import re
from typing import Any

import numpy as np

from ingot.dtypes import DType

BARE = re.compile(r"[\w.\-/\[\]:]+")
SAFE = frozenset(map(chr, range(32, 127))) - set('"\\{}@')
MAX_LISTED = 64  # elements of a constant that are written out


def quote(text: str) -> str:
    """A Python string in ASCII without braces and @, so that lines can be cut at them."""
    return '"' + "".join(c if c in SAFE else f"\\U{ord(c):08x}" for c in text) + '"'


def name(text: str) -> str:
    """A name as it stands in the text form: bare, or quoted when it has odd characters."""
    return text if BARE.fullmatch(text) and text.isascii() else quote(text)


def to_text(network: Any) -> str:
    """The network and those that its ops hold."""
    blocks: list[str] = []
    _block(network, network.name, blocks)
    return "\n".join(blocks)


def _block(network: Any, label: str, blocks: list[str]) -> None:
    nested: list[tuple[Any, str]] = []
    lines = [f"network {name(label)}{'' if label == network.name else f' as {name(network.name)}'} {{"]
    lines += [f"  dim {d.claims()}" for _, d in sorted(network.dims.items()) if d.claims() != d.name]
    for value in (*network.inputs, *network.parameters, *network.constants, *network.states):
        data = f" = {data_text(value.array)}" if value.kind == "constant" else ""
        lines.append(f"  {value.kind} %{name(value.name)} : {value.spec}{data}")
    for node in network.nodes:
        lines.append(f"  {_node(node, label, nested)}")
    if network.outputs:
        lines.append(f"  return {', '.join(f'{name(k)}=%{name(v.name)}' for k, v in network.outputs.items())}")
    blocks.append("\n".join([*lines, "}"]))
    for inner, inner_label in nested:
        _block(inner, inner_label, blocks)


def _node(node: Any, label: str, nested: list[tuple[Any, str]]) -> str:
    attributes = []
    for key, kind in node.op.attributes.items():
        value = getattr(node.op, key)
        if kind.name.startswith("Network") and value is not None:
            inner = f"{label}.{node.outputs[0].name if node.outputs else ''}.{key}"
            nested.append((value, inner))
            attributes.append(f"{key}=network({quote(inner)})")
        else:
            attributes.append(f"{key}={literal(value)}")
    outs = ", ".join(f"%{name(v.name)}" for v in node.outputs)
    ins = ", ".join("none" if v.spec is None else f"%{name(v.name)}" for v in node.inputs)
    listed = f" {{{', '.join(attributes)}}}" if attributes else ""
    where = f" @ {name(node.where)}" if node.where else ""
    return f"{outs} = {node.op.name}({ins}){listed} : {', '.join(str(v.spec) for v in node.outputs)}{where}"


def literal(value: Any) -> str:
    """An attribute's value."""
    if isinstance(value, tuple):
        return f"({', '.join(map(literal, value))}{',' if len(value) == 1 else ''})"
    if hasattr(value, "attrs"):  # an op held by an op
        return f"{value.name}({', '.join(f'{k}={literal(v)}' for k, v in value.attrs().items())})"
    return quote(value) if isinstance(value, str) else value.short if isinstance(value, DType) else str(value)


def data_text(array: np.ndarray[Any, Any]) -> str:
    """A constant's data: nested lists of numbers, or base64 of its bytes when there are many."""
    if array.size > MAX_LISTED or array.dtype.kind == "c":
        return f"base64:{base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()}"
    return _numbers(array)


def _numbers(array: Any) -> str:
    if array.ndim:
        return f"[{', '.join(_numbers(a) for a in array)}]"
    if array.dtype.kind in "biu" or not hasattr(array.dtype.type, "__float__"):
        return str(array.item())
    short = str(array.astype(np.float64 if array.dtype.itemsize > 4 else np.float32)[()])
    return short if np.array(float(short), array.dtype) == array else repr(float(array))
