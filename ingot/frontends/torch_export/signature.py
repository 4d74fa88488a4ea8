"""The signature of an exported program: what each input and output of its graph is to the user."""

from __future__ import annotations

from typing import Any, NamedTuple

from ingot.frontends.torch_export.decode import always, boolean, integer, number, record, text, union
from ingot.frontends.torch_export.graph import argument, reference


class Input(NamedTuple):
    """What one input of the graph is: a user's input, a stored tensor, or a constant of the export.

    kind: "user", "parameter", "buffer", "constant", "value", or another word of the schema that ingot refuses.
    """

    kind: str
    argument: Any  # Ref, SizeRef, or what an exported constant was
    name: str = ""  # of the stored tensor, or of forward's parameter


class Output(NamedTuple):
    """What one output of the graph is; every kind but "user_output" changes something outside the graph."""

    kind: str
    argument: Any
    name: str = ""


_constant_value = union(
    {"as_none": always(None), "as_int": integer, "as_float": number, "as_string": text, "as_bool": boolean}, "constant"
)


def _stored(kind: str, name: str) -> Any:
    fields = {"arg": reference, name: text}
    return record(lambda **f: Input(kind, f["arg"], f[name]), fields, persistent=(boolean, True))


input_spec = union(
    {
        "user_input": record(lambda arg: Input("user", arg), {"arg": argument}),
        "parameter": _stored("parameter", "parameter_name"),
        "buffer": _stored("buffer", "buffer_name"),
        "tensor_constant": _stored("constant", "tensor_constant_name"),
        "constant_input": record(lambda name, value: Input("value", value, name),
                                 {"name": text, "value": _constant_value}),
        "custom_obj": always(Input("custom object", None)),
        "token": always(Input("token", None)),
    },
    "input",
)  # fmt: skip


def _changes(kind: str, name: str) -> Any:
    return record(lambda **f: Output(kind, f["arg"], f[name]), {"arg": reference, name: text})


output_spec = union(
    {
        "user_output": record(lambda arg: Output("user_output", arg), {"arg": argument}),
        "loss_output": always(Output("loss_output", None)),
        "token": always(Output("token", None)),
        "buffer_mutation": _changes("buffer_mutation", "buffer_name"),
        "parameter_mutation": _changes("parameter_mutation", "parameter_name"),
        "user_input_mutation": _changes("user_input_mutation", "user_input_name"),
        "gradient_to_parameter": _changes("gradient_to_parameter", "parameter_name"),
        "gradient_to_user_input": _changes("gradient_to_user_input", "user_input_name"),
    },
    "output",
)
