"""Who may import whom: the layers of docs/architecture.md, no import of ours inside a function, no cycle."""

from __future__ import annotations

import ast
import functools
import re
from graphlib import TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parent.parent
BASE = {
    "errors", "dtypes", "dims", "dims_parsing", "foreign", "npz_file", "regular", "release", "strict_json",
    "safetensors_file", "seeded", "progress", "tensor_table", "version", "words", "written",
}  # fmt: skip
IR = BASE | {"ir"}
COMPILER = IR | {"ops", "functional", "nn", "passes", "frontends"}
RUN = BASE | {"_native", "_lazy", "engine", "backends.device"}
# What a module may import beside its own layer: the longest prefix of its name decides. Names are without "ingot.".
MAY_IMPORT = {
    "": {"_lazy", "errors", "version"},
    "errors": set(),
    "dtypes": BASE,
    "dims": BASE,
    "dims_parsing": BASE,
    "strict_json": BASE,
    "safetensors_file": BASE,
    "npz_file": {"errors", "regular"},
    "regular": set(),
    "seeded": set(),
    "release": {"errors", "_native"},
    "tensor_table": BASE,
    "_lazy": {"errors"},
    "version": set(),
    "foreign": set(),
    "progress": {"_lazy"},
    "words": {"errors"},
    "written": {"errors"},
    "source": RUN,  # where a build is asked for
    "_interrupt": set(),
    "__main__": {"_interrupt", "_lazy"},
    "ir": IR,
    "ops": IR | {"_lazy"},  # packages that ingot does not require
    "functional": IR | {"ops"},
    "nn": IR | {"ops", "functional"},
    "passes": IR | {"ops", "functional"},
    "frontends": COMPILER | {"_lazy"},
    "models": IR | {"functional", "nn", "frontends.checkpoint", "frontends.fields", "frontends.gguf",
               "frontends.quantized", "frontends.recording", "text"},
    "backends": IR | {"_lazy", "ops", "passes"},  # a target lowers a network; whatever runs sees programs only
    "backends.device": BASE | {"_lazy"},
    "backends.native": BASE | {"_lazy", "_native", "backends.device"},
    "backends.cost": BASE,
    "builder": COMPILER | RUN | {"backends", "models"},
    "builder.text_loss": COMPILER | RUN | {"builder", "models", "text"},  # of language models
    "quantization": COMPILER | RUN | {"backends", "builder", "llm.memory", "source"},  # what values are
    "quantization.smooth": COMPILER | RUN | {"builder", "llm.memory", "models", "quantization", "text"},
    "onnx_backend": COMPILER | RUN | {"builder"},  # ONNX's interface over engines
    "compat": COMPILER | RUN | {"builder"},  # the retired API, on all that builds
    "compat.torch2trt": COMPILER | RUN | {"builder", "compat", "quantization"},
    "engine": RUN,
    "text": BASE,
    "llm": RUN | {"source", "text"},
    "llm.kv_cache": {"errors"},
    "llm.scheduler": {"errors", "llm.kv_cache"},
    "serve": RUN | {"llm", "source", "text"},  # over HTTP
    "cli": RUN | {"_interrupt", "llm", "source", "backends.cost"},
}
# What folders may name for a late import, beside what they import: an engine has host calls, a model a directory.
MAY_NAME = {
    "": {"compat", "dims", "dtypes", "builder", "engine", "functional", "ir", "llm", "nn", "ops", "quantization"},
    "backends": {"ops"},
    "source": {"builder"},
    "__main__": {"cli"},
    "cli": {"backends", "builder", "frontends", "ir", "models", "ops", "quantization", "serve", "text"},
}
# What methods of an engine leave to the builder: the one way back from run time, taken when they are called.
BACK = {("engine", "builder.refit"), ("engine", "builder.kernels")}
NAMED = re.compile(r"ingot\.([\w.]+)(?::\w+)?")  # a module, or something in it, as `_lazy.load` takes them


def modules() -> dict[str, Path]:
    """Every module of the package by its name below ingot ("" is the package itself)."""
    found = {}
    for path in sorted((ROOT / "ingot").rglob("*.py")):
        parts = path.relative_to(ROOT / "ingot").with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@functools.cache
def nodes(path: Path) -> list[ast.Import | ast.ImportFrom | ast.Constant]:
    """The imports and the strings of a module, wherever they stand."""
    kinds = (ast.Import, ast.ImportFrom, ast.Constant)
    found = [node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds)]
    return [node for node in found if not isinstance(node, ast.Constant) or type(node.value) is str]


@functools.cache
def imports(path: Path) -> list[tuple[str, ast.stmt]]:
    """(module of ours, statement) for every import of ours, wherever it stands."""
    result: list[tuple[str, ast.stmt]] = []
    for node in nodes(path):
        if isinstance(node, ast.Import):
            result += [(alias.name[6:], node) for alias in node.names if alias.name.split(".")[0] == "ingot"]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import; write the whole name"
            if (node.module or "").split(".")[0] == "ingot":
                base = (node.module or "")[6:]
                full = [f"{base}.{alias.name}".lstrip(".") for alias in node.names]
                result += [(one if one in MODULES or one == "_native" else base, node) for one in full]
    return result


@functools.cache
def named(path: Path) -> list[tuple[str, int]]:
    """(module of ours, line) for every string that names one: what `_lazy.load` imports when it is needed."""
    strings = [node for node in nodes(path) if isinstance(node, ast.Constant)]
    found = [(match[1], node.lineno) for node in strings if (match := NAMED.fullmatch(str(node.value)))]
    return [(name, line) for name, line in found if name in MODULES or name == "_native"]


def folder_of(name: str) -> str:
    return name.partition(".")[0]


def under(name: str, prefixes: set[str]) -> bool:
    return any(name == p or name.startswith(f"{p}.") for p in prefixes)


MODULES = modules()


def test_modules_import_what_their_layers_may() -> None:
    wrong = []
    for name, path in MODULES.items():
        layer = max((p for p in MAY_IMPORT if under(name, {p}) or not p), key=len)
        if name and not layer:
            wrong.append(f"ingot.{name} is in no layer: give it one here and in docs/architecture.md")
        may = MAY_IMPORT[layer] | ({layer} if layer else set())
        for target, node in imports(path):
            where = f"{path.relative_to(ROOT)}:{node.lineno}"
            if node.col_offset:
                wrong.append(f"{where}: import of ingot.{target} inside a block; it belongs at the top of the file")
            if not under(target, may):
                wrong.append(f"{where}: ingot.{name} may not import ingot.{target}")
    assert not wrong, "\n".join(wrong)


def test_modules_name_what_their_folders_may() -> None:
    wrong = []
    for name, path in MODULES.items():
        folder = folder_of(name)
        may = MAY_IMPORT.get(folder, set()) | MAY_NAME.get(folder, set()) | ({folder} if folder else set())
        for target, line in named(path):
            if not under(target, may) and (folder, target) not in BACK:
                where = f"{path.relative_to(ROOT)}:{line}"
                wrong.append(f"{where}: ingot.{name} may not name ingot.{target} for a late import")
    assert not wrong, "\n".join(wrong)


def test_no_cycle_of_folders() -> None:
    """Late imports count here, so that a string hides no loop. The package itself names whatever users may want."""
    graph: dict[str, set[str]] = {}
    for name, path in MODULES.items():
        folder = folder_of(name)
        late = {target for target, _ in named(path) if (folder, target) not in BACK}
        targets = {target for target, _ in imports(path)} | late
        graph.setdefault(folder, set()).update({folder_of(t) for t in targets if t in MODULES} - {folder})
    del graph[""]
    TopologicalSorter({f: targets - {""} for f, targets in graph.items()}).prepare()


def test_no_cycle() -> None:
    graph = {name: {t for t, _ in imports(path) if t in MODULES} - {name} for name, path in MODULES.items()}
    TopologicalSorter(graph).prepare()  # raises CycleError with the cycle in it


FORBIDDEN = {"torch", "transformers", "onnx", "onnxruntime", "huggingface_hub", "pickle"}
# What computes in the place of our own code, also late and by a string; one module compares with it, and the doctor
# says its version.
OTHERS = re.compile(r"onnx\.(reference|backend\.test)\b|onnxruntime\b")
NAMED_IN = {"frontends.onnx.compare": "onnxruntime", "cli.doctor": "onnxruntime"}


def test_optional_packages_are_not_imported_by_name() -> None:
    for name, path in MODULES.items():
        for node in nodes(path):
            text = str(node.value) if isinstance(node, ast.Constant) else ""
            bad = bool(OTHERS.match(text)) and text != NAMED_IN.get(name)
            assert not bad, f"{path.relative_to(ROOT)}:{node.lineno}: ingot.{name} names {text[:60]!r}"
            targets = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            targets += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            wrong = {t.split(".")[0] for t in targets} & FORBIDDEN
            assert not wrong, f"{path.relative_to(ROOT)}:{node.lineno}: ingot.{name} imports {', '.join(wrong)}"


def test_what_is_named_is_there() -> None:
    """A string for a late import names something that its module has; no type checker sees it."""
    wrong, seen = [], 0
    for path in MODULES.values():
        for node in nodes(path):
            name, _, attribute = str(getattr(node, "value", "")).removeprefix("ingot.").partition(":")
            if not NAMED.fullmatch(str(getattr(node, "value", ""))) or not attribute or name not in MODULES:
                continue
            seen += 1
            if attribute not in defined(MODULES[name]):
                wrong.append(f"{path.relative_to(ROOT)}:{node.lineno}: ingot.{name} has no {attribute}")
    assert not wrong, "\n".join(wrong)
    assert seen > 50


@functools.cache
def defined(path: Path) -> set[str]:
    """Names at the top of a module, in the branches there too."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)) and not node.col_offset:
            found.add(node.name)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)) and not node.col_offset:
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            found |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        elif isinstance(node, (ast.Import, ast.ImportFrom)) and not node.col_offset:
            found |= {alias.asname or alias.name for alias in node.names}
    return found
