"""No argument of the retired API is taken and forgotten: each is read, refused, or listed with its reason."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from ingot import functional as f
from ingot.compat import attention, names, torch2trt, trt_layers
from ingot.compat.functional import FUNCTIONS
from ingot.compat.no_effect import NO_EFFECT
from ingot.compat.signatures import SIGNATURES, signature
from ingot.errors import UnsupportedError


def unread(function: Callable[..., Any]) -> set[str]:
    """The parameters that a function's body never reads."""
    inner = inspect.unwrap(function)
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inner))).body
    assert isinstance(tree, ast.FunctionDef)
    arguments = tree.args
    given = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    given += [a.arg for a in (arguments.vararg, arguments.kwarg) if a is not None]
    read = {node.id for part in tree.body for node in ast.walk(part) if isinstance(node, ast.Name)}
    return {name for name in given if name not in read and name not in ("self", "cls")}


def callables() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Every function and method of ours that user code calls, by the name under which NO_EFFECT knows it."""
    seen = set()
    yield "torch2trt", torch2trt.torch2trt
    for module, table in names.TABLE.items():
        for name, item in table.items():
            home = getattr(item, "__module__", "") or ""
            if not home.startswith("ingot.compat") or id(item) in seen:
                continue
            seen.add(id(item))
            if inspect.isclass(item):
                yield from methods(item)
            elif callable(item) and inspect.isfunction(inspect.unwrap(item)) and name not in SIGNATURES:
                yield f"{name}", item
            elif not callable(item):
                yield from methods(type(item))
        assert module


def methods(cls: type) -> Iterator[tuple[str, Callable[..., Any]]]:
    for base in cls.__mro__:
        if not base.__module__.startswith("ingot.compat"):
            continue
        for name, item in vars(base).items():
            inner = item.__func__ if isinstance(item, staticmethod | classmethod) else item
            inner = inner.fset if isinstance(inner, property) and inner.fset else inner
            if inspect.isfunction(inner) and inspect.isfunction(inspect.unwrap(inner)):
                if inspect.unwrap(inner).__name__ == "<lambda>" or not is_ours(inner):
                    continue
                yield (base.__name__ if name == "__init__" else f"{base.__name__}.{name}"), inner


def is_ours(function: Callable[..., Any]) -> bool:
    inner = inspect.unwrap(function)
    return inner.__module__.startswith("ingot.compat") and not inner.__code__.co_filename.startswith("<")


def own_parameters(function: Callable[..., Any]) -> list[str]:
    return list(inspect.signature(inspect.unwrap(function)).parameters)


def only_raises(function: Callable[..., Any]) -> bool:
    """Whether a function does nothing but refuse, as one whose every argument is refused."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(inspect.unwrap(function)))).body
    assert isinstance(tree, ast.FunctionDef)
    return isinstance(tree.body[-1], ast.Raise) and all(isinstance(part, ast.Expr) for part in tree.body[:-1])


def test_every_argument_is_read_or_listed() -> None:
    wrong = []
    for name, function in dict(callables()).items():
        if only_raises(function):
            continue
        listed = set(NO_EFFECT.get(name, {}))
        missing = unread(function) - listed
        if missing:
            wrong.append(f"{name}: {', '.join(sorted(missing))}")
    assert not wrong, "\n".join(wrong)


def test_what_is_listed_is_an_argument_with_a_reason() -> None:
    known = dict(callables())
    for name, reasons in NO_EFFECT.items():
        assert all(len(reason) > 3 for reason in reasons.values()), name
        if name in SIGNATURES:
            assert set(reasons) <= set(signature(SIGNATURES[name]).parameters), name
        elif name.startswith("add_"):
            kind = trt_layers.LAYERS[name.removeprefix("add_")]
            assert set(reasons) <= {*signature(kind.arguments).parameters, *kind.settings}, name
        elif name == "gpt_attention":
            assert not set(reasons) & {*attention.REFUSED}
        else:
            function = known.get(name) or FUNCTIONS[name]
            parameters = inspect.signature(function).parameters
            if not any(p.kind is p.VAR_KEYWORD for p in parameters.values()):
                shared = [other for other, found in NO_EFFECT.items() if found is reasons]  # one list for several
                every = {n for other in shared for n in inspect.signature(known.get(other, function)).parameters}
                assert set(reasons) <= every, name
                if function is known.get(name) and not only_raises(function):
                    read = set(reasons) & set(own_parameters(function)) - unread(function)
                    assert not read, f"{name} reads {read}"


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_of_plain_functions_reach_ingots(name: str) -> None:
    """What ingot's function does not take is refused when it says something, unless it is listed."""
    import tensorrt_llm
    from tensorrt_llm import Tensor

    ours = FUNCTIONS[name]
    if ours.__code__.co_name != "call" or not hasattr(f, name) or name == "reduce_scatter":
        return
    takes = inspect.signature(getattr(f, name)).parameters
    if any(p.kind in (p.VAR_KEYWORD, p.VAR_POSITIONAL) for p in takes.values()):
        return
    declared = inspect.signature(ours).parameters
    with tensorrt_llm.net_guard(tensorrt_llm.Builder().create_network()):
        x = Tensor("x", "float32", [2, 3])
        for argument in [n for n in declared if n not in takes and n not in NO_EFFECT.get(name, {})]:
            needed = {n: x for n, p in declared.items() if p.default is p.empty}
            with pytest.raises(UnsupportedError, match=rf"{argument}="):
                ours(**(needed | {argument: object()}))


def test_arguments_of_gpt_attention_are_each_of_one_kind() -> None:
    kinds = (attention._NEEDED, attention._READ, attention._PLAIN, attention.REFUSED, NO_EFFECT["gpt_attention"])
    every = [name for kind in kinds for name in kind]
    assert len(every) == len(set(every))
    source = inspect.getsource(attention)
    for name in (*attention._READ, *attention._PLAIN):
        assert source.count(f'"{name}"') >= 2, f"{name} is listed and not read"
    for order in attention.ORDERS.values():
        assert set(order) <= set(every)


class Reads(dict[str, Any]):
    """Arguments and settings of a layer, and which of them were asked for."""

    seen: set[str]

    def __getitem__(self, name: str) -> Any:
        self.seen.add(name)
        return super().__getitem__(name)

    def get(self, name: str, default: Any = None) -> Any:
        self.seen.add(name)
        return super().get(name, default)


def recorded_only(record: Callable[..., Any], tensors: Any) -> None:
    """What a case of the tests of TensorRT's layers records, without building an engine."""
    import tensorrt_llm

    net = tensorrt_llm.Builder().create_network()
    with tensorrt_llm.net_guard(net):
        network = tensorrt_llm.default_trtnet()
        kinds = [tensorrt_llm.torch_dtype_to_trt(t.dtype) for t in tensors]
        given = enumerate(zip(kinds, tensors, strict=True))
        made = record(network, *(network.add_input(f"x{i}", kind, t.shape) for i, (kind, t) in given))
        if hasattr(made, "get_output"):
            made.get_output(0)


def test_settings_of_layers_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every argument and setting of every layer is looked at while some case of the tests is recorded."""
    from tests.compat import test_trt_layers, test_trt_network

    seen: dict[str, set[str]] = {kind: set() for kind in trt_layers.LAYERS}
    plain = trt_layers.recorded

    def recording(name: str, target: Any, arguments: Any, **more: Any) -> Any:
        def call(**given: Any) -> Any:
            kind = target.__closure__[0].cell_contents._kind
            reads = Reads(given)
            reads.seen = seen[kind]
            return trt_layers.LAYERS[kind].make(reads)

        return plain(name, call, arguments, **more)

    monkeypatch.setattr(trt_layers, "recorded", recording)
    image, words = test_trt_network.IMAGE, test_trt_network.trt()
    more: list[tuple[Any, Any]] = [
        (test_trt_layers.nms, (test_trt_layers.BOXES, test_trt_layers.SCORES)),
        (lambda n, x, g: n.add_grid_sample(x, g), (image, test_trt_layers.GRID)),
        (lambda n, x: n.add_activation(x, words.ActivationType.CLIP), (image,)),
    ]
    for cases in (test_trt_network.CASES, test_trt_layers.CASES):
        more += [(record, tensors) for record, tensors, _ in cases.values()]
    for record, tensors in more:
        recorded_only(record, tensors)
    wrong = []
    for kind, layer in trt_layers.LAYERS.items():
        every = {*signature(layer.arguments).parameters, *layer.settings, *(f"input_{i}" for i in layer.further)}
        missing = every - seen[kind] - set(NO_EFFECT.get(f"add_{kind}", {}))
        wrong += [f"add_{kind}: {', '.join(sorted(missing))}"] if missing else []
    assert not wrong, "\n".join(wrong)
