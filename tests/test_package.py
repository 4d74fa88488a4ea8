"""What an import and a command load: serving never loads the compiler, and nothing loads torch or huggingface_hub."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
from pathlib import Path

import ingot

COMPILER = (
    "passes",
    "frontends",
    "ops",
    "nn",
    "functional",
    "ir",
    "backends",
    "engine.build",
    "engine.compile",
    "llm.models",
)
NEVER = ("torch", "transformers", "huggingface_hub", "onnx", "triton", "tensorflow", "jax")


def loaded(code: str, *arguments: str) -> set[str]:
    """The modules that a fresh interpreter has after running the code."""
    code += "\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=300, check=True
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def command(*arguments: str) -> set[str]:
    """The modules that are loaded after a command of ours."""
    return loaded("import sys\nfrom ingot.__main__ import main\nassert main(sys.argv[1:]) == 0", *arguments)


def any_of(modules: set[str], prefixes: tuple[str, ...]) -> set[str]:
    return {m for m in modules if any(m == p or m.startswith(f"{p}.") for p in prefixes)}


def test_import_loads_almost_nothing() -> None:
    modules = loaded("import ingot")
    ours = any_of(modules, ("ingot",))
    assert ours == {"ingot", "ingot._lazy", "ingot.errors", "ingot.version"}
    assert not any_of(modules, ("numpy", "ml_dtypes", "safetensors", "tokenizers", "jinja2", "rich", *NEVER))


def test_an_engine_runs_without_the_compiler(pico_engine: Path) -> None:
    modules = command("generate", str(pico_engine), "--prompt", "import os", "--max-tokens", "4", "--json")
    assert "ingot.llm.llm" in modules
    assert not any_of(modules, tuple(f"ingot.{name}" for name in COMPILER))
    assert not any_of(modules, NEVER)


def test_a_directory_runs_without_torch(pico: Path) -> None:
    modules = command("generate", str(pico), "--prompt", "import os", "--max-tokens", "4", "--json")
    assert "ingot.engine.build" in modules
    assert not any_of(modules, NEVER)


def test_scoring_an_engine_runs_without_the_compiler(pico_engine: Path, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("import os\n" * 20)
    modules = command("score", str(pico_engine), "--text", str(text), "--window", "16")
    assert not any_of(modules, tuple(f"ingot.{name}" for name in COMPILER) + NEVER)


def test_public_names_exist() -> None:
    for name in ingot.__all__:
        assert getattr(ingot, name) is not None


def test_the_installed_version_is_the_one_in_the_source() -> None:
    found = [d for d in importlib.metadata.distributions() if d.name == "ingot"]
    assert all(d.version == ingot.__version__ for d in found)
