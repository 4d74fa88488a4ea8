"""Networks from and to files: the text form (printer.py writes it) and the JSON form of engine headers.

Both readers are strict: whatever they accept is a network that the verifier accepts too, and everything else is a typed
error that names the place. The JSON form of a value's data is base64 of its bytes. It lives in files, so its ops name
their versions and older ones are read; the text form is for people, and says what the ops of this release are.
"""
from __future__ import annotations

import ast
import base64
import binascii
import re
from collections.abc import Mapping
from reprlib import repr as brief
from typing import Any

import numpy as np

from ingot import dims, dims_parsing, dtypes
from ingot.dims import Dim, Dimension
from ingot.errors import DimError, DTypeError, IngotError, NetworkError, OpError
from ingot.ir.attribute import Kind
from ingot.ir.network import Network
from ingot.ir.op import OPS, Op, op_from_json
from ingot.ir.printer import to_text
from ingot.ir.spec import Spec, StateSpec
from ingot.ir.value import Value
from ingot.ir.verify import MAX_NESTING, verify

__all__ = ["from_json", "parse", "parse_spec", "to_json", "to_text"]


# ------------------------------------------------------------------------------------------------ JSON
def to_json(network: Network) -> dict[str, Any]:
    """Plain data; the same network gives the same data. Recipes of parameters are kept beside it, not in it."""
    return {
        "name": network.name,
        "dims": [{"name": d.name, "min": d.min, "opt": d.opt, "max": d.max, "unbacked": d.unbacked}
                 for _, d in sorted(network.dims.items())],
        "inputs": [_tensor_json(v) for v in network.inputs],
        "parameters": [_tensor_json(v) for v in network.parameters],
        "constants": [_tensor_json(v) | {"data": base64.b64encode(np.ascontiguousarray(v.array).tobytes()).decode()}
                      for v in network.constants],
        "states": [{"name": v.name, "dtype": v.spec.dtype.name, "type": v.spec.type, "heads": v.spec.heads,
                    "head_dim": v.spec.head_dim} for v in network.states],
        "nodes": [{"op": n.op.name, "version": n.op.version, "attrs": attrs_json(n.op), "where": n.where,
                   "in": [None if v.spec is None else v.name for v in n.inputs],
                   "out": [v.name for v in n.outputs]} for n in network.nodes],
        "outputs": [[name, value.name] for name, value in network.outputs.items()],
    }


def _tensor_json(value: Value) -> dict[str, Any]:
    return {"name": value.name, "dtype": value.dtype.name, "shape": [dims.to_json(d) for d in value.shape]}


def attrs_json(op: Op) -> dict[str, Any]:
    """The attributes' JSON forms, networks included."""
    return {name: to_json(value) if isinstance(value, Network) else op.attributes[name].to_json(value)
            for name, value in op.attrs().items()}


def from_json(obj: Any, external: Mapping[str, type[Op]] = {}, _depth: int = 0) -> Network:
    """The network of its JSON form, whose ops may be of older versions.

    external: the user's own ops that it may name.

    Raises NetworkError, OpError, DimError or DTypeError for what is no network, EngineVersionError for newer ops.
    """
    if _depth > MAX_NESTING:
        raise NetworkError(f"networks nest deeper than {MAX_NESTING}")
    top = _fields(obj, "a network", {"name": str, "dims": list, "inputs": list, "parameters": list, "constants": list,
                                     "states": list, "nodes": list, "outputs": list})
    network = Network(top["name"])
    for item in top["dims"]:
        d = _fields(item, "a dim", {"name": str, "min": int, "opt": (int, type(None)), "max": (int, type(None)),
                                    "unbacked": bool})
        if d["name"] in network.dims:
            raise NetworkError(f"dim {d['name']} is listed twice")
        network.dims[d["name"]] = Dim(d["name"], d["min"], d["opt"], d["max"], unbacked=d["unbacked"])
    tensor = {"name": str, "dtype": str, "shape": list}
    for item in top["inputs"]:
        t = _fields(item, "an input", tensor)
        network.input(t["name"], _spec(t, network))
    for item in top["parameters"]:
        t = _fields(item, "a parameter", tensor)
        network.parameter(t["name"], _spec(t, network))
    for item in top["constants"]:
        t = _fields(item, "a constant", tensor | {"data": str})
        network.constant(_array(_decoded(t["data"], t["name"]), _spec(t, network), t["name"]), t["name"])
    for item in top["states"]:
        s = _fields(item, "a state", {"name": str, "dtype": str, "type": str, "heads": int, "head_dim": int})
        network.state(s["name"], StateSpec(s["dtype"], s["type"], heads=s["heads"], head_dim=s["head_dim"]))
    for i, item in enumerate(top["nodes"]):
        _node(network, item, f"node {i} of network {network.name}", external, _depth)
    for item in top["outputs"]:
        if type(item) is not list or len(item) != 2 or not all(isinstance(x, str) for x in item):
            raise NetworkError(f"an output is [name, value], not {brief(item)}")
        network.output(item[0], _value(network, item[1], f"output {item[0]}"))
    return network if _depth else verify(network)


def _node(network: Network, item: Any, where: str, external: Mapping[str, type[Op]], depth: int) -> None:
    n = _fields(item, where, {"op": str, "version": int, "in": list, "out": list, "attrs": dict, "where": str})
    if not all(isinstance(x, str) for x in (*(x for x in n["in"] if x is not None), *n["out"])):
        raise NetworkError(f"{where}: in and out are lists of names (in: null for what is absent)")
    op = op_from_json(n["op"], n["version"], n["attrs"], where, lambda inner: from_json(inner, external, depth + 1),
                      external)
    op = _resolve(op, network.dims)
    inputs = tuple(network.absent if x is None else _value(network, x, where) for x in n["in"])
    network.add_node(op, inputs, n["where"], names=n["out"])


def _resolve(op: Op, known: Mapping[str, Dim]) -> Op:
    """The op with dims that carry the bounds declared in the network."""
    return op.map_dims(lambda d: dims.substitute(d, known))


def _fields(obj: Any, what: str, types: Mapping[str, Any]) -> dict[str, Any]:
    """The object itself when it has exactly these keys with values of these types (bools are no ints)."""
    if not isinstance(obj, dict) or obj.keys() != types.keys():
        keys = set(map(str, obj)) if isinstance(obj, dict) else set()
        raise NetworkError(f"{what} has the keys {sorted(types)}; missing {sorted(types.keys() - keys)}, unknown "
                           f"{sorted(keys - types.keys())[:10]}")
    for key, expected in types.items():
        allowed = expected if isinstance(expected, tuple) else (expected,)
        if type(obj[key]) not in allowed:
            raise NetworkError(f"{what}: {key} is a {type(obj[key]).__name__}, not a {allowed[0].__name__}")
    return obj


def _value(network: Network, name: str, where: str) -> Value:
    found = network.values.get(name)
    if found is None:
        raise NetworkError(f"{where}: there is no value %{name[:100]} before it (a cycle, or a dangling name)")
    return found


def _spec(t: dict[str, Any], network: Network) -> Spec:
    return Spec([dims.substitute(dims_parsing.from_json(d), network.dims) for d in t["shape"]], dtypes.get(t["dtype"]))


def _decoded(data: str, name: str) -> bytes:
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise NetworkError(f"constant %{name}: its data are not base64") from None


def _array(data: bytes, spec: Spec, name: str) -> np.ndarray[Any, Any]:
    shape = spec.evaluate({})
    if len(data) != int(np.prod(shape, dtype=object)) * spec.dtype.numpy.itemsize:
        raise NetworkError(f"constant %{name} is {spec}, but has {len(data)} bytes of data")
    if spec.dtype is dtypes.bool_ and any(b > 1 for b in data):
        raise NetworkError(f"constant %{name}: a bool is stored as 0 or 1")
    return np.frombuffer(data, spec.dtype.numpy).reshape(shape)


# ------------------------------------------------------------------------------------------------ text
_VALUE = r'%(?:"(?:[^"\\]|\\.)*"|[\w.\-/\[\]:]+)'
_WORD = r'(?:"(?:[^"\\]|\\.)*"|[\w.\-/\[\]:]+)'
_OPERAND = rf"(?:{_VALUE}|none)"
_VALUES = re.compile(_VALUE)
_OPERANDS = re.compile(_OPERAND)
_HEADER = re.compile(rf"network ({_WORD})(?: as ({_WORD}))? {{")
_DIM = re.compile(r"dim (\S+?)(?: in (\d+)\.\.(\d*))?(?: opt (\d+))?( unbacked)?")
_LEAF = re.compile(rf"(input|parameter|constant|state) ({_VALUE}) : ([^=]*?|state [^>]*>)(?: = (.*))?")
_NODE = re.compile(rf"({_VALUE}(?:, {_VALUE})*) = (\w+)\(((?:{_OPERAND}(?:, {_OPERAND})*)?)\)(?: {{(.*)}})? : "
                   rf"([^@]*?)(?: @ ({_WORD}))?")
_OUTPUT = re.compile(rf"({_WORD})=({_VALUE})")
_SPEC = re.compile(r"(\w+)\[([^\]]*)\]")
_STATE = re.compile(r"state (\w+)<(\w+), heads=(\d+), head_dim=(\d+)>")


def parse(text: str) -> Network:
    """The network that prints as `text`; NetworkError with the line otherwise."""
    blocks: list[tuple[str, str, list[tuple[int, str]]]] = []
    for number, line in enumerate(text.splitlines(), 1):
        line = line.strip()
        if header := _HEADER.fullmatch(line):
            label = _plain(header[1])
            blocks.append((label, _plain(header[2]) if header[2] else label, []))
        elif line and line != "}":
            if not blocks:
                raise NetworkError(f"line {number}: expected `network NAME {{`, got {line[:80]!r}")
            blocks[-1][2].append((number, line))
    if not blocks:
        raise NetworkError("no network in the text")
    nested: dict[str, Network] = {}
    for label, name, lines in reversed(blocks):  # inner networks stand after those that use them
        network = Network(name)
        for number, line in lines:
            try:
                _line(network, line, nested)
            except (IngotError, SyntaxError, ValueError, RecursionError, MemoryError) as e:
                raise NetworkError(f"line {number}, {line[:80]!r}: {e}") from None
        if label in nested:
            raise NetworkError(f"two networks are called {label}")
        nested[label] = network
    return verify(nested[blocks[0][0]])


def _plain(word: str) -> str:
    return str(ast.literal_eval(word)) if word.startswith('"') else word


def _line(network: Network, line: str, nested: Mapping[str, Network]) -> None:
    if found := _DIM.fullmatch(line):
        name, low, high, opt, unbacked = found.groups()
        network.dims[name] = Dim(name, int(low or 0), int(opt) if opt else None, int(high) if high else None,
                                 unbacked=bool(unbacked))
    elif found := _NODE.fullmatch(line):
        _text_node(network, found, nested)
    elif found := _LEAF.fullmatch(line):
        _leaf(network, *found.groups())
    elif line.startswith("return "):
        rest = line.removeprefix("return ")
        if not re.fullmatch(rf"{_OUTPUT.pattern}(?:, {_OUTPUT.pattern})*", rest):
            raise NetworkError("expected `return name=%value, …`")
        for match in _OUTPUT.finditer(rest):
            network.output(_plain(match[1]), _value(network, _plain(match[2][1:]), "return"))
    else:
        raise NetworkError("not a line of a network")


def _leaf(network: Network, kind: str, name: str, spec: str, data: str | None) -> None:
    plain = _plain(name[1:])
    known = parse_spec(spec, network.dims)
    if isinstance(known, StateSpec) is not (kind == "state") or (data is not None) is not (kind == "constant"):
        raise NetworkError(f"not a {kind}")
    if isinstance(known, StateSpec):
        network.state(plain, known)
    elif kind == "constant":
        if data is not None and data.startswith("base64:"):
            array = _array(_decoded(data.removeprefix("base64:"), plain), known, plain)
        else:
            array = np.array(_literal(ast.parse(data or "", mode="eval").body), known.dtype.numpy)
            array = array.reshape(known.evaluate({})) if array.size == 0 else array
        if Spec.of(array) != known:
            raise NetworkError(f"the data have shape {list(array.shape)}")
        network.constant(array, plain)
    else:
        (network.input if kind == "input" else network.parameter)(plain, known)


def _text_node(network: Network, found: re.Match[str], nested: Mapping[str, Network]) -> None:
    outs, op_name, ins, attributes, specs, where = found.groups()
    cls = OPS.get(op_name)
    if cls is None:
        raise OpError(f"there is no op {op_name!r}")
    call = ast.parse(f"f({attributes or ''})", mode="eval").body
    if not isinstance(call, ast.Call) or call.args:
        raise NetworkError("attributes are written name=value")
    values = _attributes(cls, call, nested)
    inputs = tuple(network.absent if v == "none" else _value(network, _plain(v[1:]), op_name)
                   for v in _OPERANDS.findall(ins))
    names = [_plain(v[1:]) for v in _VALUES.findall(outs)]
    node = network.add_node(_resolve(cls(**values), network.dims), inputs, _plain(where) if where else "", names=names)
    got = ", ".join(str(v.spec) for v in node.outputs)
    if got != specs:
        raise NetworkError(f"gives {got}, the text says {specs}")


def _attributes(cls: type[Op], call: ast.Call, nested: Mapping[str, Network]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for keyword in call.keywords:
        if keyword.arg not in cls.attributes or keyword.arg in values:
            raise OpError(f"{cls.name} has no attribute {keyword.arg}, or it stands twice")
        values[keyword.arg] = _attribute(cls.attributes[keyword.arg], keyword.value, nested)
    if missing := cls.attributes.keys() - values.keys():
        raise OpError(f"{cls.name} needs {sorted(missing)} too")
    return values


def _attribute(kind: Kind, node: ast.expr, nested: Mapping[str, Network]) -> Any:
    base = kind.name.removesuffix(" | None")
    if isinstance(node, ast.Constant) and node.value is None:
        return None
    if base == "DType" and isinstance(node, ast.Name):
        return dtypes.get(node.id)
    if base == "Dimension":
        return dims_parsing.from_ast(node)
    if base == "Shape" and isinstance(node, ast.Tuple):
        return tuple(map(dims_parsing.from_ast, node.elts))
    if base == "Network":
        match node:
            case ast.Call(func=ast.Name(id="network"), args=[ast.Constant(value=str(label))]) if label in nested:
                return nested[label]
        raise NetworkError("the network that it names does not follow")
    if base == "Op":
        match node:
            case ast.Call(func=ast.Name(id=name), args=[]) if name in OPS:
                return OPS[name](**_attributes(OPS[name], node, nested))
        raise NetworkError("an op is written name(attribute=value, …)")
    return _literal(node)


def _literal(node: ast.expr) -> Any:
    match node:
        case ast.Constant(value=value) if value is None or isinstance(value, bool | int | float | str):
            return value
        case ast.Name(id=("inf" | "nan") as name):
            return float(name)
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            inner = _literal(operand)
            if isinstance(inner, int | float):
                return -inner
        case ast.Tuple(elts=items):
            return tuple(map(_literal, items))
        case ast.List(elts=items):
            return list(map(_literal, items))
    raise NetworkError(f"not a literal: {ast.unparse(node)[:80]}")


def parse_spec(text: str, known: Mapping[str, Dimension] | None = None) -> Spec | StateSpec:
    """The Spec or StateSpec that prints as `text`."""
    if state := _STATE.fullmatch(text):
        return StateSpec(state[2], state[1], heads=int(state[3]), head_dim=int(state[4]))
    if not (tensor := _SPEC.fullmatch(text)):
        raise NetworkError(f"{text[:80]!r} is not a type such as f32[T, 8]")
    try:
        body = ast.parse(f"({tensor[2]},)" if tensor[2] else "()", mode="eval").body
        shape = tuple(map(dims_parsing.from_ast, body.elts if isinstance(body, ast.Tuple) else [body]))
        return Spec([dims.substitute(d, known or {}) for d in shape], dtypes.get(tensor[1]))
    except (SyntaxError, DimError, DTypeError) as e:
        raise NetworkError(f"{text[:80]!r} is not a type such as f32[T, 8]: {e}") from None
