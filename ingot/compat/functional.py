"""tensorrt_llm.functional: ingot's functions under the retired API's signatures, on its Tensors.

`FUNCTIONS` is the whole of it by name. Most follow from the table in signatures.py; what differs is written out here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ingot import dtypes, functional
from ingot.compat import context
from ingot.compat.datatype import as_dtype
from ingot.compat.no_effect import ignored
from ingot.compat.refusal import called, refused, single
from ingot.compat.signatures import (
    GIVES_ARRAYS,
    INT32_INDICES,
    ONE_TYPE,
    PLACES,
    SIGNATURES,
    UNSCOPED,
    signature,
)  # fmt: skip
from ingot.compat.tensor import ITensor, Tensor, dtype_of, plain, shown
from ingot.dtypes import DType
from ingot.ir import F, Value
from ingot.nn import tracer

FUNCTIONS: dict[str, Callable[..., Any]] = {}


# ---------------------------------------------------------------------------------------------- element types


def _kinds(x: Any) -> list[DType]:
    """The element types of all tensors in an argument."""
    if isinstance(x, tuple | list):
        return [kind for item in x for kind in _kinds(item)]
    kind = dtype_of(x)
    return [] if kind is None else [kind]


def _cast(x: Any, change: Callable[[DType], DType], network: Any, why: str) -> Any:
    """An argument with every tensor in it cast as `change` says."""
    if isinstance(x, tuple | list):
        return type(x)(_cast(item, change, network, why) for item in x)
    kind = dtype_of(x)
    if kind is None or change(kind) is kind:
        return x
    return network.cast(x, change(kind), why) if isinstance(x, Value) else x.astype(change(kind).numpy)


def promoted(kinds: list[DType]) -> DType | None:
    """The one type of operands that TensorRT would let meet without strong typing; bools take no part.

    Floats win over integers, wider ones over narrower ones; float16 and bfloat16 meet in float32.
    """
    numbers = [kind for kind in kinds if kind is not dtypes.bool_]
    floats = [kind for kind in numbers if kind.is_float]
    if {dtypes.float16, dtypes.bfloat16} <= set(floats):
        return dtypes.float32
    return max(floats or numbers, key=lambda kind: kind.bits, default=None)


def _in_one_type(arguments: dict[str, Any], network: Any, name: str) -> dict[str, Any]:
    """The arguments of a call in a network that is not strongly typed."""
    apart = PLACES.get(name, ())
    common = promoted(_kinds([x for n, x in arguments.items() if n not in apart]))
    if common is None:
        return arguments
    why = f"the type in which the operands of {name} meet"
    return {
        n: x if n in apart else _cast(x, lambda kind: kind if kind is dtypes.bool_ else common, network, why)
        for n, x in arguments.items()
    }


def _in_scope(arguments: dict[str, Any], network: Any, scope: DType, whose: str) -> dict[str, Any]:
    """The arguments of a call that computes in a type of its own."""
    why = f"{whose} of {scope.name}"
    return {
        n: _cast(x, lambda kind: scope if kind in dtypes.FLOATS else kind, network, why) for n, x in arguments.items()
    }


def _back(result: Any, before: DType, scope: DType, network: Any) -> Any:
    """Results of a call in a type of its own, in the type of its operands."""
    if isinstance(result, tuple):
        return tuple(_back(item, before, scope, network) for item in result)
    if not isinstance(result, Value) or result.dtype is not scope:
        return result
    return network.cast(result, before, f"back from {scope.name}")


# ---------------------------------------------------------------------------------------------- calls


def _network_of(arguments: Any) -> Any:
    """The network of the net_guard, else that of the first Tensor; None without both."""
    found = context.current()
    if found is not None:
        return found
    if isinstance(arguments, Tensor | ITensor):
        return arguments.network
    if isinstance(arguments, dict):
        arguments = list(arguments.values())
    if isinstance(arguments, tuple | list):
        return next((n for n in map(_network_of, arguments) if n is not None), None)
    return None


def recorded(
    name: str, target: Callable[..., Any], arguments: dict[str, Any], rest: tuple[Any, ...] = (),
    scope: DType | None = None,
) -> Any:  # fmt: skip
    """What `target`, a function on ingot's values, gives for the retired API's arguments.

    Args:
        scope: the type that float operands are cast to, and results back from; default that of the precision scope,
            where it says something about this function.
    """
    network = _network_of([*arguments.values(), *rest])
    given, more = plain(arguments), plain(rest)
    if network is None:
        return target(*more, **given)
    before = promoted(_kinds(list(given.values())))
    if not network.strongly_typed and name in ONE_TYPE:
        given = _in_one_type(given, network, name)
    asked, back = scope, scope is not None or network.strongly_typed
    if scope is None and name not in UNSCOPED:
        scope = network.dtype
    if scope is not None:
        given = _in_scope(given, network, scope, "the layer's precision" if asked else "the precision scope")
    result = target(*more, **given)
    if scope is not None and back and before is not None and before.is_float:
        result = _back(result, before, scope, network)
    if name in INT32_INDICES:
        result = _narrow_indices(result, INT32_INDICES[name])
    return result if isinstance(result, str | bool) else shown(result, network)


def recorded_by(module: Any, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """What a layer of ingot's gives for Tensors: its forward, on ingot's values, in the network being built."""
    network = context.default_net()
    kinds = _kinds([*plain(args), *plain(list(kwargs.values()))])
    before, scope = promoted(kinds), network.dtype if module.scoped else None
    kind = scope
    if scope is None and not network.strongly_typed:
        kind = promoted(kinds + [parameter.spec.dtype for parameter in module.parameters()])
    given, why = plain(args), f"the type in which {type(module).__name__} computes"
    if kind is not None and kind.is_float:
        given = _cast(given, lambda k: kind if k in dtypes.FLOATS else k, network, why)
    with tracer.activated(network.parameters), network.parameters.meeting(kind, network):
        result = forward(module, *given, **plain(kwargs))
    if scope is not None and network.strongly_typed and isinstance(result, Value) and before is not None:
        result = network.cast(result, before, "back from the precision scope") if before.is_float else result
    return shown(result, network)


def _narrow_indices(result: Any, at: int) -> Any:
    if not isinstance(result, tuple):
        return F.cast(result, dtypes.int32)
    return tuple(F.cast(item, dtypes.int32) if i == at else item for i, item in enumerate(result))


def _adapted(name: str, text: str) -> Callable[..., Any]:
    """A function of ingot's under the signature `text`."""
    declared, target = signature(text), getattr(functional, name)
    takes = inspect.signature(target).parameters
    open_ended = any(p.kind is p.VAR_KEYWORD for p in takes.values())
    places = [p.name for p in declared.parameters.values() if p.kind is p.VAR_POSITIONAL]
    places += [p.name for p in takes.values() if p.kind is p.VAR_POSITIONAL and p.name in declared.parameters]

    def call(*args: Any, **kwargs: Any) -> Any:
        bound = declared.bind(*args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        for argument in [a for a in given if a not in takes and a not in places and not open_ended]:
            default = declared.parameters[argument].default
            if argument not in ignored(name) and given[argument] is not default and given[argument] != default:
                raise refused(f"{name}: {argument}={given[argument]!r}", f"leave it out; only {default!r} is computed")
            del given[argument]
        if name in GIVES_ARRAYS:
            return target(**given)
        if places:  # einsum(equation, inputs), constants_to_tensors_(*inputs)
            return recorded(name, _by_place(target, places[0]), given)
        return recorded(name, target, given | given.pop("kwargs", {}))

    call.__signature__ = declared  # type: ignore[attr-defined]
    call.__name__ = call.__qualname__ = name
    call.__doc__ = target.__doc__
    return called(name)(call)


def _by_place(target: Callable[..., Any], place: str) -> Callable[..., Any]:
    def call(**given: Any) -> Any:
        several = given.pop(place)
        return target(*given.values(), *several)

    return call


def _own(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is written out here, on Tensors."""
    FUNCTIONS[function.__name__] = called(function.__name__)(function)
    return FUNCTIONS[function.__name__]


for _name, _text in SIGNATURES.items():
    if hasattr(functional, _name):
        FUNCTIONS[_name] = _adapted(_name, _text)


# ---------------------------------------------------------------------------------------------- what differs


@_own
def embedding(
    input: Tensor, weight: Tensor, tp_size: int = 1, tp_group: Any = None, sharding_dim: int = 0, tp_rank: Any = None,
    per_token_scale: Any = None, padding: Any = None, workspace: Any = None, instance_id: int = 0,
) -> Tensor:  # fmt: skip
    """Rows of weight [V, H] by int ids […] → […, H]; a whole table only.

    Args:
        per_token_scale: [V], multiplies each row.
        padding: further rows behind the table.
    """
    single("embedding", tp_size)

    given = {"input": input, "weight": weight, "per_token_scale": per_token_scale, "padding": padding}
    return recorded("embedding", functional.embedding, given)  # type: ignore[no-any-return]


@_own
def identity(input: Tensor) -> Tensor:
    """The same elements, under a name of their own."""
    return recorded("identity", lambda input: functional.view(input, input.shape, False), {"input": input})  # type: ignore[no-any-return]


@_own
def slice(
    input: Tensor, starts: Any, sizes: Any, strides: Any = None, mode: Any = None, fill_value: Any = None
) -> Tensor:
    """A box: in dimension d, sizes[d] elements from starts[d], every strides[d]-th.

    Args:
        mode: a SampleMode for what lies beyond the edges; fill_value: what stands there for FILL.
    """

    given = {"input": input, "starts": starts, "sizes": sizes, "strides": strides, "fill_value": fill_value}
    given["mode"] = mode
    return recorded("slice", functional.slice, given)  # type: ignore[no-any-return]


@_own
def rms_norm(
    input: Tensor, normalized_shape: Any, num_groups: Any = 1, weight: Any = None, eps: Any = 1e-6
) -> Tensor:
    """x / sqrt(mean(x²) + eps) · weight over the last dimensions.

    A third argument that is a tensor or None is the weight of versions before 1.0, and eps then the fourth.

    Args:
        num_groups: of the last dimension, each normalised by itself.
    """
    if not isinstance(num_groups, int):
        eps = weight if isinstance(weight, float) else eps
        num_groups, weight = 1, num_groups
    call = {
        "input": input, "normalized_shape": normalized_shape, "weight": weight, "eps": eps, "num_groups": num_groups,
    }  # fmt: skip
    return recorded("rms_norm", functional.rms_norm, call)  # type: ignore[no-any-return]


@_own
def generate_alibi_slopes(num_heads: int, *args: Any, **kwargs: Any) -> Any:
    """The slopes of ALiBi: (num_heads, tp_size=1, tp_rank=0, alibi_scale=1.0, alibi_bias_max=8) → an array.

    With a dtype behind num_heads, as before 1.0, a tensor [1, num_heads, 1, 1] of that type.
    """
    old = bool(args and not isinstance(args[0], int)) or "dtype" in kwargs
    text = "tp_size=1, tp_rank=0, alibi_scale=1.0, alibi_bias_max=8"
    bound = signature(f"dtype, {text}" if old else text).bind(*args, **kwargs)
    bound.apply_defaults()
    given = bound.arguments
    if num_heads % given["tp_size"] or not 0 <= given["tp_rank"] < given["tp_size"]:
        raise refused(f"{num_heads} heads for rank {given['tp_rank']} of {given['tp_size']}", "give equal shares")
    part = {name: given[name] for name in ("tp_size", "tp_rank", "alibi_scale", "alibi_bias_max")}
    mine = functional.generate_alibi_slopes(num_heads, **part)
    if not old:
        return mine
    array = mine.astype(as_dtype(given["dtype"]).numpy).reshape(1, -1, 1, 1)
    return shown(array, context.default_net())


@_own
def gather_last_token_logits(hidden_states: Tensor, last_token_ids: Tensor, remove_input_padding: bool) -> Tensor:
    """Each request's last row: packed [tokens, hidden] or [1, tokens, hidden] with running counts [B], or padded
    [B, S, hidden] with lengths [B] → [B, hidden]."""

    def call(hidden_states: Any, last_token_ids: Any) -> Any:
        if remove_input_padding and len(hidden_states.shape) == 3:
            hidden_states = functional.squeeze(hidden_states, 0)
        if len(last_token_ids.shape) == 2:  # several rows of a request
            last_token_ids = functional.flatten(last_token_ids)
        return functional.gather_last_token_logits(hidden_states, last_token_ids, remove_input_padding)

    return recorded(  # type: ignore[no-any-return]
        "gather_last_token_logits", call, {"hidden_states": hidden_states, "last_token_ids": last_token_ids}
    )


class Conditional:
    """A choice between two tensors by one bool; both are computed."""

    @called("Conditional")
    def __init__(self, condition: Tensor) -> None:
        self.network = condition.network
        self._chosen = functional.Conditional(condition.value)

    def add_input(self, input: Tensor) -> Tensor:
        """The tensor, as both sides read it."""
        return input

    @called("Conditional.add_output")
    def add_output(self, true_value: Tensor, false_value: Tensor) -> Tensor:
        """true_value where the condition holds, else false_value; of one dtype and shape."""
        return shown(self._chosen.add_output(true_value.value, false_value.value), self.network)  # type: ignore[no-any-return]


FUNCTIONS["Conditional"] = Conditional


ACT2FN: dict[str, Callable[..., Any]] = {}
GATED_ACT_2_ACT = dict(functional.GATED_ACT_2_ACT)


def _activation(name: str) -> Callable[..., Any]:
    target = functional.ACT2FN[name]

    def call(input: Any) -> Any:
        return recorded(name, lambda x: target(x), {"x": input})

    return called(name)(call)


ACT2FN.update({name: FUNCTIONS.get(name) or _activation(name) for name in functional.ACT2FN})


# ---------------------------------------------------------------------------------------------- Tensor's own


def _operator(name: str, swapped: bool = False) -> Callable[..., Any]:
    function = FUNCTIONS[name]
    return (lambda self, other: function(other, self)) if swapped else (lambda self, other: function(self, other))


_OPERATORS = {
    "add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "floordiv": "floordiv", "mod": "modulo", "pow": "pow",
    "and": "op_and", "or": "op_or", "xor": "op_xor",
}  # fmt: skip
for _dunder, _name in _OPERATORS.items():
    setattr(Tensor, f"__{_dunder}__", _operator(_name))
    setattr(Tensor, f"__r{_dunder}__", _operator(_name, swapped=True))
for _dunder, _name in {"lt": "lt", "gt": "gt", "eq": "eq"}.items():
    setattr(Tensor, f"__{_dunder}__", _operator(_name))


def _compared(name: str) -> Callable[..., Any]:
    function = getattr(functional, name)
    return lambda self, other: recorded("eq", function, {"left": self, "right": other})


for _name in ("le", "ge", "ne"):
    setattr(Tensor, f"__{_name}__", _compared(_name))
setattr(Tensor, "__neg__", lambda self: recorded("neg", functional.neg, {"input": self}))  # noqa: B010
setattr(Tensor, "__invert__", lambda self: FUNCTIONS["not_op"](self))  # noqa: B010
setattr(Tensor, "__matmul__", _operator("matmul"))  # noqa: B010
for _name in (
    "view", "permute", "transpose", "mean", "max", "abs", "sqrt", "cast", "split", "flatten", "squeeze", "unsqueeze",
    "log", "select", "unbind", "repeat",
):  # fmt: skip
    setattr(Tensor, _name, (lambda function: lambda self, *a, **k: function(self, *a, **k))(FUNCTIONS[_name]))

