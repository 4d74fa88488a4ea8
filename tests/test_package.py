"""What an import and a command load: serving never loads the compiler, and nothing loads torch or huggingface_hub."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

import ingot

ROOT = Path(__file__).parent.parent

COMPILER = (
    "passes",
    "frontends",
    "ops",
    "nn",
    "functional",
    "ir",
    "backends.base",
    "backends.cpu",
    "backends.program",
    "builder",
    "models",
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
    assert "ingot.builder.build" in modules
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


def configured(source: Path) -> subprocess.CompletedProcess[str]:
    """What CMake says of a source tree."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert cmake, "CMake is needed: make puts it into .venv"
    command = [cmake, "-S", source, "-B", source / "build", f"-DPython_EXECUTABLE={sys.executable}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)


def test_cmake_needs_a_version(tmp_path: Path) -> None:
    (tmp_path / "ingot").mkdir()
    (tmp_path / "native").mkdir()
    (tmp_path / "native" / "CMakeLists.txt").write_bytes((ROOT / "native" / "CMakeLists.txt").read_bytes())
    for text in ("", 'VERSION = "1.0"\n', "__version__ = version()\n", '__version__ = ""\n'):
        (tmp_path / "ingot" / "version.py").write_text(text)
        done = configured(tmp_path / "native")
        assert done.returncode != 0 and "ingot/version.py has no line" in done.stderr


@pytest.mark.slow
def test_the_source_distribution_is_whole(tmp_path: Path) -> None:
    """It has what CMake asks for, the version above all, and nothing that was built."""
    code = "import sys; from scikit_build_core.build import build_sdist; print(build_sdist(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", code, tmp_path], cwd=ROOT, capture_output=True, text=True, timeout=300, check=True
    )
    name = done.stdout.split()[-1]
    assert name == f"ingot-{ingot.__version__}.tar.gz"
    with tarfile.open(tmp_path / name) as archive:
        archive.extractall(tmp_path, filter="data")
    source = tmp_path / name.removesuffix(".tar.gz")
    for path in (ROOT / "native").rglob("*"):
        assert (source / path.relative_to(ROOT)).exists()
    assert not (source / "build").exists() and not list(source.rglob("*.so"))
    done = configured(source)
    assert done.returncode == 0, done.stderr
