"""Module and ModuleList: a network as a tree of named parts, with torch's habits."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np

from ingot.errors import ModuleError
from ingot.ir import Network, Value
from ingot.ir.interpret import Eager
from ingot.nn import tracer
from ingot.nn.parameter import Parameter, State, as_array
from ingot.safetensors_file import SafetensorsFile

MAX_LISTED = 40


class LoadResult(NamedTuple):
    """What a non-strict load left aside."""

    missing: list[str]
    unexpected: list[str]


class Module:
    """The base of all layers and models: assign Parameters, States and Modules to attributes, write `forward`.

    `forward` runs once, on symbolic tensors, when the module is traced or built. Called on NumPy arrays a module
    computes at once with the reference of each op, which is slow and meant for debugging.
    """

    # Names below this module that a state dict may hold and that mean nothing here, each with the reason.
    ignored: ClassVar[Mapping[str, str]] = {}

    _parameters: dict[str, Parameter | None]
    _states: dict[str, State]
    _modules: dict[str, Module]

    def __init__(self) -> None:
        for table in ("_parameters", "_states", "_modules"):
            object.__setattr__(self, table, {})

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise ModuleError(f"{type(self).__name__} has no forward")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = tracer.active.get()
        if trace is None:
            return _eager(self, args, kwargs)
        with trace.inside(self):
            return self.forward(*args, **kwargs)

    # ------------------------------------------------------------------------------------------ attributes
    def __setattr__(self, name: str, value: Any) -> None:
        table = _table_of(value)
        if "_modules" not in self.__dict__:
            if table is not None:
                raise ModuleError(
                    f"{type(self).__name__}.{name}: call super().__init__() before assigning a {type(value).__name__}"
                )
            object.__setattr__(self, name, value)
            return
        if table is None and value is None and name in self._parameters:
            self._parameters[name] = None
            return
        if isinstance(getattr(type(self), name, None), property):
            object.__setattr__(self, name, value)
            return
        if name in self._parameters or name in self._states or name in self._modules or table is not None:
            # An entry keeps its place in the order when it is replaced by another of its kind.
            for other in (self._parameters, self._states, self._modules):
                if other is not (getattr(self, table) if table else None):
                    other.pop(name, None)
        if table is None:
            object.__setattr__(self, name, value)
        else:
            self.__dict__.pop(name, None)
            getattr(self, table)[_checked_name(self, name)] = value

    def __getattr__(self, name: str) -> Any:
        tables = self.__dict__
        if "_modules" in tables:
            if name in tables["_modules"]:
                return tables["_modules"][name]
            for table in (tables["_parameters"], tables["_states"]):
                if name in table:
                    trace = tracer.active.get()
                    item = table[name]
                    return item if trace is None or item is None else trace.value(item, name)
        raise AttributeError(f"{type(self).__name__} has no attribute {name!r}")

    def __delattr__(self, name: str) -> None:
        for table in (self._parameters, self._states, self._modules):
            if name in table:
                del table[name]
                return
        object.__delattr__(self, name)

    def __dir__(self) -> Iterable[str]:
        return [*super().__dir__(), *self._parameters, *self._states, *self._modules]

    def register_parameter(self, name: str, parameter: Parameter | None) -> None:
        """Add a parameter; None leaves an optional one absent, so that the attribute reads None."""
        if parameter is not None and not isinstance(parameter, Parameter):
            raise ModuleError(f"register_parameter({name!r}) takes a Parameter or None, not {type(parameter).__name__}")
        if "_modules" not in self.__dict__:
            raise ModuleError(f"{type(self).__name__}.{name}: call super().__init__() before register_parameter")
        if hasattr(self, name) and name not in self._parameters:
            raise ModuleError(f"{type(self).__name__} already has an attribute {name!r}")
        self._parameters[_checked_name(self, name)] = parameter

    # ------------------------------------------------------------------------------------------ the tree
    def children(self) -> Iterator[Module]:
        """The modules directly below, each once."""
        return (module for _, module in self.named_children())

    def named_children(self) -> Iterator[tuple[str, Module]]:
        """(attribute, module) directly below, each module once."""
        seen: set[int] = set()
        for name, module in self._modules.items():
            if id(module) not in seen:
                seen.add(id(module))
                yield name, module

    def modules(self) -> Iterator[Module]:
        """This module and all below, each once."""
        return (module for _, module in self.named_modules())

    def named_modules(
        self, memo: set[int] | None = None, prefix: str = "", remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Module]]:
        """(path, module) of this one (path "") and all below, parents first."""
        memo = set() if memo is None else memo
        if remove_duplicate and id(self) in memo:
            return
        memo.add(id(self))
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(memo, f"{prefix}.{name}" if prefix else name, remove_duplicate)

    def parameters(self, recurse: bool = True) -> Iterator[Parameter]:
        """Every parameter once."""
        return (parameter for _, parameter in self.named_parameters(recurse=recurse))

    def named_parameters(
        self, prefix: str = "", recurse: bool = True, remove_duplicate: bool = True
    ) -> Iterator[tuple[str, Parameter]]:
        """(path, Parameter); a tied one only under its first path unless `remove_duplicate` is False."""
        return self._named("_parameters", prefix, recurse, remove_duplicate)

    def named_states(self, prefix: str = "", recurse: bool = True) -> Iterator[tuple[str, State]]:
        """(path, State) of the whole tree, each once."""
        return self._named("_states", prefix, recurse, True)

    def _named(self, table: str, prefix: str, recurse: bool, remove_duplicate: bool) -> Iterator[tuple[str, Any]]:
        seen: set[int] = set()
        whole = self.named_modules(prefix=prefix, remove_duplicate=remove_duplicate) if recurse else [(prefix, self)]
        for path, module in whole:
            for name, item in getattr(module, table).items():
                if item is None or (remove_duplicate and id(item) in seen):
                    continue
                seen.add(id(item))
                yield f"{path}.{name}" if path else name, item

    def apply(self, fn: Callable[[Module], Any]) -> Module:
        """Call `fn` on every module below and then on this one."""
        for module in self.children():
            module.apply(fn)
        fn(self)
        return self

    # ------------------------------------------------------------------------------------------ weights
    def state_dict(self) -> dict[str, np.ndarray]:
        """path → value of every parameter that has one; tied parameters appear under each of their paths."""
        every = self.named_parameters(remove_duplicate=False)
        return {path: parameter.value for path, parameter in every if parameter.value is not None}

    def state_names(self) -> dict[str, str | None]:
        """The names that a state dict may hold, and the first path of the parameter, or None where it is of none."""
        first = {id(parameter): path for path, parameter in self.named_parameters()}
        found: dict[str, str | None] = {
            f"{path}.{name}".lstrip("."): None for path, module in self.named_modules() for name in module.ignored
        }
        return found | {path: first[id(p)] for path, p in self.named_parameters(remove_duplicate=False)}

    def load_state_dict(self, state: Mapping[str, Any] | str | os.PathLike[str], strict: bool = True) -> LoadResult:
        """Give parameters their values by path.

        Args:
            state: a mapping of path → array (NumPy, torch, …), or the path of a .safetensors file.
            strict: whether every parameter needs a value and every name a parameter, but for the names that a module
                lists as `ignored`. Shapes and dtypes must match always.

        Raises:
            ModuleError: one error that lists all missing, unexpected and mismatched names. Nothing has been changed
                then.
        """
        if isinstance(state, str | os.PathLike):
            state = SafetensorsFile(state)
        paths: dict[int, list[str]] = {}
        targets: dict[str, Parameter] = {}
        for path, parameter in self.named_parameters(remove_duplicate=False):
            targets[path] = parameter
            paths.setdefault(id(parameter), []).append(path)
        passed = {name for name, path in self.state_names().items() if path is None}
        unexpected = [name for name in state if name not in targets and name not in passed]
        missing: list[str] = []
        faults: list[str] = []
        loaded: list[tuple[Parameter, np.ndarray]] = []
        for names in paths.values():
            parameter = targets[names[0]]
            given = [name for name in names if name in state]
            if not given:
                missing.append(names[0])
                continue
            arrays = [as_array(state[name]) for name in given]
            for name, array in zip(given, arrays, strict=True):
                if (fault := parameter.refuses(array)) is not None:
                    faults.append(f"{name}: {fault}")
                elif array is not arrays[0] and not np.array_equal(array, arrays[0]):
                    faults.append(f"{name}: differs from {given[0]}, but both are one tied parameter")
            loaded.append((parameter, arrays[0]))
        report = [("mismatched", faults)] + ([("missing", missing), ("unexpected", unexpected)] if strict else [])
        if any(names for _, names in report):
            told = "".join(_section(*part) for part in report)
            raise ModuleError(f"load_state_dict of {type(self).__name__}:{told}")
        for parameter, array in loaded:
            parameter.value = array
        return LoadResult(missing, unexpected)

    # ------------------------------------------------------------------------------------------ printing
    def extra_repr(self) -> str:
        """What `repr` shows beside the children; subclasses may say more."""
        return ", ".join(f"{name}={item and item.spec}" for name, item in self._parameters.items())

    def __repr__(self) -> str:
        lines = [f"({name}): " + repr(module).replace("\n", "\n  ") for name, module in self._modules.items()]
        body = "".join(f"\n  {line}" for line in lines) + ("\n" if lines else "")
        return f"{type(self).__name__}({self.extra_repr()}{body})"


class ModuleList(Module):
    """Modules in order, named "0", "1", …; indexing, slicing, assignment, append, extend and insert as in a list."""

    def __init__(self, modules: Iterable[Module] = ()) -> None:
        super().__init__()
        self._replace(list(modules))

    def _replace(self, modules: list[Module]) -> None:
        for module in modules:
            if not isinstance(module, Module):
                raise ModuleError(f"a ModuleList holds Modules, not {type(module).__name__}")
        self._modules.clear()
        self._modules.update((str(i), module) for i, module in enumerate(modules))

    def __len__(self) -> int:
        return len(self._modules)

    def __iter__(self) -> Iterator[Module]:
        return iter(self._modules.values())

    def __getitem__(self, index: int | slice) -> Any:
        found = list(self)[index]
        return ModuleList(found) if isinstance(found, list) else found

    def __setitem__(self, index: int, module: Module) -> None:
        modules = list(self)
        modules[index] = module
        self._replace(modules)

    def __delitem__(self, index: int | slice) -> None:
        modules = list(self)
        del modules[index]
        self._replace(modules)

    def append(self, module: Module) -> ModuleList:
        self._replace([*self, module])
        return self

    def extend(self, modules: Iterable[Module]) -> ModuleList:
        self._replace([*self, *modules])
        return self

    def insert(self, index: int, module: Module) -> None:
        modules = list(self)
        modules.insert(index, module)
        self._replace(modules)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        raise ModuleError("a ModuleList is not called itself; iterate over it")


class Sequential(ModuleList):
    """Modules one after the other, each called on the result of the one before it. Takes them, or a dict by name."""

    def __init__(self, *modules: Module | Mapping[str, Module]) -> None:
        named = modules[0] if len(modules) == 1 and isinstance(modules[0], Mapping) else None
        super().__init__(modules if named is None else named.values())  # type: ignore[arg-type]
        if named is not None:
            self._modules = {_checked_name(self, name): module for name, module in named.items()}

    def _replace(self, modules: list[Module]) -> None:
        """Names stay while the number does; else they are numbers again."""
        names = list(self._modules)
        super()._replace(modules)
        if len(names) == len(modules):
            self._modules = dict(zip(names, modules, strict=True))

    def __getitem__(self, index: int | slice) -> Any:
        found = list(self)[index]
        return Sequential(*found) if isinstance(found, list) else found

    def forward(self, x: Any) -> Any:
        for module in self:
            x = module(x)
        return x


def _table_of(value: Any) -> str | None:
    if isinstance(value, Parameter):
        return "_parameters"
    if isinstance(value, State):
        return "_states"
    return "_modules" if isinstance(value, Module) else None


def _checked_name(module: Module, name: str) -> str:
    if not name or "." in name:
        raise ModuleError(f"{type(module).__name__}: {name!r} cannot name a part: dots separate the parts of a path")
    return name


def _section(label: str, names: list[str]) -> str:
    if not names:
        return ""
    rest = [f"… and {len(names) - MAX_LISTED} more"] if len(names) > MAX_LISTED else []
    return f"\n  {label}: " + "\n    ".join(["", *names[:MAX_LISTED], *rest])


def tracer_of(module: Module, network: Network) -> tracer.Tracer:
    """The Tracer of a module tree in `network`."""
    return tracer.Tracer(network, module.named_parameters(), module.named_states(), module.named_modules())


def _eager(module: Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """forward on arrays, computed at once; arrays come out. Arguments that are no arrays pass as they are."""
    network = Eager()
    count = itertools.count()

    def wrap(arg: Any) -> Any:
        if isinstance(arg, Value):
            raise ModuleError(
                f"{type(module).__name__} was called on {arg!r} outside of a trace; use ingot.nn.trace(module, inputs)"
            )
        return network.feed(f"argument.{next(count)}", arg) if isinstance(arg, np.ndarray) else arg

    positional = [wrap(arg) for arg in args]
    named = {name: wrap(arg) for name, arg in kwargs.items()}
    with tracer.activated(tracer_of(module, network)):
        return _unwrap(module(*positional, **named))


def _unwrap(result: Any) -> Any:
    if isinstance(result, Value):
        return result.array
    if isinstance(result, dict):
        return {name: _unwrap(item) for name, item in result.items()}
    return type(result)(map(_unwrap, result)) if isinstance(result, tuple | list) else result
