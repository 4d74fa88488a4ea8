"""quantization_config of a config.json: by which method a checkpoint was quantised, and how its layers are stored.

Only what changes the numbers is read. What the tensors say themselves (which layers are quantised, how many groups
there are) is taken from them and held against this.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ingot.errors import CheckpointError
from ingot.frontends.fields import Fields
from ingot.frontends.lora.patterns import MAX_STEPS, BoundedPattern, BoundedPatternError, Steps

KEYS = ("quantization_config", "compression_config")  # the second is what compressed-tensors wrote before 2024-09
METHODS = ("awq", "compressed-tensors", "fbgemm_fp8", "fp8", "gptq", "modelopt")
FORMATS = ("dense", "float-quantized", "int-quantized", "mixed-precision", "naive-quantized", "pack-quantized")
MAX_GROUP = 1 << 24
MAX_GROUPS = 64  # config_groups of one file
MAX_NAMES = 10_000  # names and patterns of layers
MAX_PATTERNS = 64  # among them
STEPS_OF_LAYER = 1000  # that all patterns together may take, where that is more than MAX_STEPS
INSTEAD = "take the original float checkpoint, and --weights int8, int4-g32, int4-g64 or int4-g128"
# Of compressed-tensors: by which layers share a scale.
STRATEGIES = ("block", "channel", "group", "tensor")


@dataclass(frozen=True)
class Scheme:
    """How the weight of a layer is stored.

    kind: "awq", "gptq", "integers" (of compressed-tensors) or "floats" (of 8 bits).
    group: so many inputs share a scale; 0: all. block: [outputs, inputs] that do, of floats. one: all weights do.
    minus: what the stored zero points lack; 1 in the first version of GPTQ's format.
    rows: what the layer was made for its inputs to become: "int8" by row, "" nothing, or in words what is not done.
    """

    kind: str
    bits: int
    group: int = 0
    block: tuple[int, int] | None = None
    one: bool = False
    symmetric: bool = False
    minus: int = 0
    rows: str = ""


@dataclass(frozen=True)
class Quantization:
    """A checkpoint's method, and the schemes of its layers: pairs of targets and scheme."""

    method: str
    schemes: tuple[tuple[tuple[str, ...], Scheme], ...]
    ignored: tuple[str, ...] = ()


class Schemes:
    """How each of so many layers is stored, by what config.json says."""

    def __init__(self, quantization: Quantization, layers: int) -> None:
        self._of = quantization
        self._steps = Steps(max(MAX_STEPS, STEPS_OF_LAYER * layers))
        self._patterns: dict[str, BoundedPattern] = {}

    def scheme(self, module: str) -> Scheme | str:
        """The scheme of a layer, by its path; or why it should not be quantised. Raises CheckpointError for patterns
        that take too long."""
        if self._of.method != "compressed-tensors":
            return self._of.schemes[0][1]
        try:
            if any(self._names(target, module) for target in self._of.ignored):
                return "quantization_config.ignore names it"
            for targets, scheme in self._of.schemes:
                if any(self._names(target, module) for target in targets):
                    return scheme
        except BoundedPatternError as error:
            raise CheckpointError(f"quantization_config: {error}") from None
        found = [scheme for targets, scheme in self._of.schemes if "Linear" in targets]
        return found[0] if found else "no group of quantization_config.config_groups is for it"

    def _names(self, target: str, module: str) -> bool:
        """Whether a target is this layer's path, or a pattern (`re:…`) that its path begins with."""
        if not target.startswith("re:"):
            return target == module
        if target not in self._patterns:
            self._patterns[target] = BoundedPattern(f"(?:{target.removeprefix('re:')}).*", self._steps)
        return self._patterns[target].matches(module)


def is_quantized(values: Mapping[str, Any]) -> bool:
    """Whether a config.json says that the weights are quantised."""
    return any(values.get(key) is not None for key in KEYS)


def parse(values: Mapping[str, Any], where: str) -> Quantization | None:
    """What config.json says of the quantisation; None where it says nothing.

    Raises:
        CheckpointError: a method or a layout that is not read, by name, or all bad values at once.
    """
    key = next((k for k in KEYS if values.get(k) is not None), None)
    if key is None:
        return None
    config = values[key]
    if not isinstance(config, dict):
        raise CheckpointError(f"{where}: {key} must be an object, so nothing says how the weights are quantised")
    method = config.get("quant_method")
    if method is None and "config_groups" in config:
        method = "compressed-tensors"
    if method not in METHODS:
        named = str(method)[:40] if method else "no quant_method is named"
        raise CheckpointError(
            f"{where}: the weights are quantised ({named}), which is not read; read are {', '.join(METHODS)}. {INSTEAD}"
        )
    fields = Fields(config, f"{key}.")
    found = _READERS[method](fields)
    _names_of(fields, "modules_to_not_convert")
    fields.finish(f"{where}: the weights are quantised ({method})")
    return found


def _awq(fields: Fields) -> Quantization:
    layout = fields.values.get("version") or fields.values.get("format") or "gemm"
    if not isinstance(layout, str) or layout.lower() != "gemm":
        fields.fault("version", f"the layout {str(layout)[:40]!r} is not read, only gemm is: quantise anew with that")
    _only(fields, "bits", (4,))
    if not fields.flag("zero_point", True):
        fields.fault("zero_point", "is false, and weights without zero points have no GEMM layout")
    return Quantization("awq", ((("Linear",), Scheme("awq", 4, _group(fields, "group_size"))),))


def _gptq(fields: Fields) -> Quantization:
    layout = fields.values.get("checkpoint_format") or fields.values.get("format") or "gptq"
    if layout not in ("gptq", "gptq_v2"):
        fields.fault("checkpoint_format", f"the layout {str(layout)[:40]!r} is not read, only gptq and gptq_v2 are: "
                     "take the checkpoint that it was converted from")  # fmt: skip
    if fields.values.get("is_marlin_format"):
        fields.fault("is_marlin_format", "the layout marlin is not read: take what it was converted from")
    if fields.values.get("pack_dtype") not in (None, "int32"):
        fields.fault("pack_dtype", f"{str(fields.values['pack_dtype'])[:40]!r} is not read, only int32 is")
    if fields.values.get("dynamic"):
        fields.fault("dynamic", "layers with settings of their own are not read")
    bits = _only(fields, "bits", (4, 8))
    scheme = Scheme("gptq", bits, _group(fields, "group_size"), minus=int(layout != "gptq_v2"))
    return Quantization("gptq", ((("Linear",), scheme),))


def _fp8(fields: Fields) -> Quantization:
    scheme = fields.choice("activation_scheme", ("dynamic", "static"), "dynamic")
    block = _block(fields, "weight_block_size")
    rows = f"float8 ({scheme})"
    return Quantization("fp8", ((("Linear",), Scheme("floats", 8, block=block, one=block is None, rows=rows)),))


def _fbgemm(fields: Fields) -> Quantization:
    """Meta's: a scale for each output; inputs are rounded by row, cut off at activation_scale_ub."""
    return Quantization("fbgemm_fp8", ((("Linear",), Scheme("floats", 8, rows="float8 (dynamic, by token)")),))


def _modelopt(fields: Fields) -> Quantization:
    """NVIDIA's: of its algorithms the one with a scale for each weight, and for its inputs one that is static."""
    fields.choice("quant_algo", ("FP8",))
    rows = "float8 (static, by tensor)"
    return Quantization("modelopt", ((("Linear",), Scheme("floats", 8, one=True, rows=rows)),))


_READERS = {"awq": _awq, "fbgemm_fp8": _fbgemm, "fp8": _fp8, "gptq": _gptq, "modelopt": _modelopt}


# --------------------------------------------------------------------------------------------------- compressed-tensors


def _compressed(fields: Fields) -> Quantization:
    if fields.has("format"):
        fields.choice("format", FORMATS)
    sparsity = fields.nested("sparsity_config")
    if sparsity is not None and sparsity.values.get("format") not in (None, "dense"):
        sparsity.fault("format", f"{str(sparsity.values['format'])[:40]!r} is not read: weights must be stored whole")
    if fields.values.get("transform_config"):
        fields.fault("transform_config", "weights that were rotated are not read")
    groups = fields.nested("config_groups")
    found: list[tuple[tuple[str, ...], Scheme]] = []
    if groups is None or not groups.values:
        fields.fault("config_groups", "is missing: nothing says how the weights are stored")
    elif len(groups.values) > MAX_GROUPS:
        fields.fault("config_groups", f"has {len(groups.values):,} groups; at most {MAX_GROUPS} are read")
    else:
        for name in groups.values:
            one = groups.nested(name)
            if one is not None:
                found.append((_names_of(one, "targets"), _scheme(one)))
    return Quantization("compressed-tensors", tuple(found), _names_of(fields, "ignore"))


_READERS["compressed-tensors"] = _compressed


def _scheme(group: Fields) -> Scheme:
    if group.values.get("format") is not None:
        group.choice("format", FORMATS)
    weights = group.nested("weights")
    if weights is None:
        group.fault("weights", "is missing: nothing says how the weights are stored")
        return Scheme("integers", 8)
    rows = _rows(group)
    strategy = weights.choice("strategy", STRATEGIES, "group" if weights.has("group_size") else "tensor")
    block = _block(weights, "block_structure") if strategy == "block" else None
    if weights.choice("type", ("float", "int"), "int") == "float":
        _only(weights, "num_bits", (8,), 8)
        size = _group(weights, "group_size") if strategy == "group" else 0
        return Scheme("floats", 8, size, block, strategy == "tensor", True, rows=rows)
    if strategy == "block":
        weights.fault("strategy", "blocks of integers are not read")
    bits = _only(weights, "num_bits", (4, 8), 8)
    size = _group(weights, "group_size") if strategy == "group" else 0
    by_rows = rows == "int8" and bits == 8 and not size
    rows = rows if by_rows or rows != "int8" else "int8 rows, which only weights of int8 by output are summed with"
    return Scheme("integers", bits, size, None, strategy == "tensor", weights.flag("symmetric", True), rows=rows)


def _rows(group: Fields) -> str:
    """What becomes of a layer's inputs: "int8", "" for nothing, or in words what is not done."""
    if group.values.get("output_activations"):
        group.fault("output_activations", "results that are quantised are not read")
    inputs = group.nested("input_activations")
    if inputs is None:
        return ""
    dynamic = inputs.flag("dynamic", False)
    kind, bits = inputs.choice("type", ("float", "int"), "int"), inputs.integer("num_bits", 1, 16, 8)
    strategy = str(inputs.values.get("strategy") or "tensor")[:20]
    if dynamic and (kind, bits, strategy) == ("int", 8, "token") and inputs.flag("symmetric", True):
        return "int8"
    return f"{kind}{bits} ({'dynamic' if dynamic else 'static'}, by {strategy})"


# ------------------------------------------------------------------------------------------------------------- fields


def _only(fields: Fields, key: str, known: tuple[int, ...], *default: int) -> int:
    bits = fields.integer(key, 0, 64, *default)
    if bits not in known:
        fields.fault(key, f"{bits} bits are not read, only {' and '.join(map(str, known))}: {INSTEAD}")
        return known[0]
    return bits


def _group(fields: Fields, key: str) -> int:
    """Inputs that share a scale; 0 for −1, all of them."""
    value = fields.integer(key, -1, MAX_GROUP)
    if value == 0:
        fields.fault(key, "groups of 0 inputs are none; -1 means all of them")
    return max(value, 0)


def _block(fields: Fields, key: str) -> tuple[int, int] | None:
    value = fields.values.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or len(value) != 2 or not all(type(n) is int and 0 < n <= MAX_GROUP for n in value):
        fields.fault(key, f"must be two positive integers, not {str(value)[:60]}")
        return None
    return value[0], value[1]


def _names_of(fields: Fields, key: str) -> tuple[str, ...]:
    """A list of layers' names and patterns; absent is none."""
    value = fields.values.get(key)
    if value is None:
        return ()
    if not isinstance(value, list) or len(value) > MAX_NAMES or not all(isinstance(name, str) for name in value):
        fields.fault(key, f"must be a list of at most {MAX_NAMES:,} names")
        return ()
    patterns = [name.removeprefix("re:") for name in value if name.startswith("re:")]
    if len(patterns) > MAX_PATTERNS:
        fields.fault(key, f"has {len(patterns):,} patterns; at most {MAX_PATTERNS} are read")
    for pattern in patterns[:MAX_PATTERNS]:
        try:
            BoundedPattern(pattern)
        except BoundedPatternError as error:
            fields.fault(key, str(error))
    return tuple(value)
