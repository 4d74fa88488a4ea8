"""tensorrt_llm.Module and ModuleList: modules that record what their forward does as soon as they are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from ingot import nn
from ingot.compat import context
from ingot.compat.parameter import Parameter
from ingot.compat.refusal import refused
from ingot.compat.tensor import Tensor, plain, shown
from ingot.ir import Value
from ingot.nn import tracer
from ingot.nn.parameter import as_array

# The layers here by those of ingot's that they compute like; layers.py fills it.
COUNTERPARTS: dict[type[nn.Module], type[nn.Module]] = {}


class Module(nn.Module):
    """The base of layers and models: called inside a net_guard, it records what `forward` does there.

    Attributes that are Parameters stay Parameters; `self.weight.value` is the tensor.
    """

    scoped = True  # whether a precision scope says what it computes in

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, nn.Parameter) and not isinstance(value, Parameter):
            value = Parameter.of(value)
        if isinstance(value, nn.Module) and not isinstance(value, Module):
            as_there(value)
        super().__setattr__(name, value)

    def register_parameter(self, name: str, parameter: Any) -> None:
        """Add a parameter; None leaves an optional one absent, so that the attribute reads None."""
        if isinstance(parameter, nn.Parameter) and not isinstance(parameter, Parameter):
            parameter = Parameter.of(parameter)
        super().register_parameter(name, parameter)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = tracer.active.get()
        if trace is not None:  # inside a layer of ingot's, on its values
            return self._inside(context.default_net(), args, kwargs)
        network = context.default_net()
        if not network.graph.where:
            network.parameters.learn(self)
        with network.parameters.inside(self):
            return self.forward(*args, **kwargs)

    def _inside(self, network: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Called with ingot's values by a layer of ingot's: gives such values too."""
        token = tracer.active.set(None)
        try:
            with network.parameters.inside(self):
                given = {name: _shown_all(arg, network) for name, arg in kwargs.items()}
                return plain(self.forward(*[_shown_all(arg, network) for arg in args], **given))
        finally:
            tracer.active.reset(token)

    def register_network_output(self, name: str, value: Tensor) -> None:
        """Remembers a tensor under a name, to be looked at: `named_network_outputs` gives them all."""
        self.__dict__.setdefault("_network_outputs", {})[name] = value

    def named_network_outputs(self) -> Iterator[tuple[str, Tensor]]:
        """(path, tensor) of everything registered in this module and below."""
        for path, module in self.named_modules():
            for name, value in module.__dict__.get("_network_outputs", {}).items():
                yield (f"{path}.{name}" if path else name), value

    def named_modules_with_parent(
        self, memo: set[int] | None = None, prefix: str = "", parent: Any = None
    ) -> Iterator[tuple[str, nn.Module, nn.Module | None]]:
        """(path, module, its parent) of this one and all below."""
        known: dict[str, nn.Module] = {}
        for path, module in self.named_modules(memo, prefix):
            known[path] = module
            yield path, module, known.get(path.rpartition(".")[0]) if path != prefix else parent

    def update_parameters(self, torch_module: Any) -> None:
        """Takes the values of a torch module's parameters by their names.

        Raises:
            ModuleError: names or shapes that do not match, all of them in one error.
        """
        mine = dict(self.named_parameters())
        given = {name: as_array(value) for name, value in torch_module.named_parameters()}
        missing = [f"missing {name}" for name in mine if name not in given]
        unexpected = [f"unexpected {name}" for name in given if name not in mine]
        wrong = [
            f"{name} has shape {list(given[name].shape)}, not {list(mine[name].spec.shape)}"
            for name in mine.keys() & given.keys()
            if given[name].shape != mine[name].spec.shape
        ]
        if missing or unexpected or wrong:
            found = "; ".join(sorted([*missing, *unexpected, *wrong])[:40])
            raise refused(f"{type(self).__name__}.update_parameters", f"the names do not match: {found}")
        for name, parameter in mine.items():
            parameter.value = given[name]


def _shown_all(arg: Any, network: Any) -> Any:
    return shown(arg, network) if isinstance(arg, Value | tuple | list) else arg


def as_there(module: nn.Module) -> None:
    """Makes a layer of ingot's, and all in it, the retired API's layer of that name, with parameters as there."""
    for part in module.modules():
        part.__class__ = COUNTERPARTS.get(type(part), type(part))
        for name, parameter in part._parameters.items():
            if parameter is not None and not isinstance(parameter, Parameter):
                part._parameters[name] = Parameter.of(parameter)


class ModuleList(Module, nn.ModuleList):
    """Modules in order, named "0", "1", …; not called itself."""

    def __init__(self, modules: Iterable[nn.Module] = ()) -> None:
        nn.ModuleList.__init__(self, modules)
        for module in self:
            if not isinstance(module, Module):
                as_there(module)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise refused("a ModuleList", "is not called itself; iterate over it")

    def __getitem__(self, index: int | slice) -> Any:
        found = list(self)[index]
        return ModuleList(found) if isinstance(found, list) else found
