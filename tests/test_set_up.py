"""Setting up: all imports are named, what is missing is said first, a wheel saves compiling, which shows progress."""

from __future__ import annotations

import ast
import io
import os
import re
import subprocess
import sys
import sysconfig
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tools import compiling, prebuilt, prerequisites, size

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
# The lists of pyproject.toml that each folder may import from, beside what ingot requires. "build": the build system's.
FOLDERS = {
    "ingot": ("images", "onnx", "onnxruntime", "torch", "cuda", "serve"),
    "examples": ("torch",),
    "tests": ("build", "test", "gpu-test"),
    "attacks": ("test",),
    "tools": ("test", "gpu-test", "docs"),
    "benchmarks": ("test", "bench"),
    "fuzz": ("test", "fuzz"),
}
# Two run in environments of their own; the others use what the extra `bench` has, where it is installed.
ELSEWHERE = {
    "benchmarks/genai_process.py": {"openvino-genai"}, "benchmarks/llama_cpp_process.py": {"llama-cpp-python"},
    "tools/onnx_models.py": {"onnxruntime"}, "tests/frontends/test_onnx_models.py": {"onnxruntime"},
    "tools/conformance/onnx_peers.py": {"onnxruntime"}, "tools/conformance/onnx_probes.py": {"onnxruntime"},
    "tests/passes/test_onnx_road.py": {"onnxscript"}, "tools/vision_nets.py": {"timm", "torchvision"},
    "tools/torchvision_ops.py": {"torchvision"}, "tests/frontends/test_torchvision_ops.py": {"torchvision"},
    "tests/frontends/test_onnx_contrib.py": {"onnxruntime"}, "tests/frontends/test_onnx_compare.py": {"onnxruntime"},
    "tests/frontends/test_onnx_quantised.py": {"onnxruntime"}, "tests/test_chart.py": {"matplotlib"},
    "benchmarks/gpu_start_process.py": {"triton"},
}  # fmt: skip
LATE = {"load", "optional", "import_module", "importorskip", "find_spec", "__import__"}  # import what a string names
OTHERWISE = {"google": "protobuf", "xdist": "pytest-xdist", "sympy": "torch", "pydantic": "openai", "pil": "pillow",
             "llama-cpp": "llama-cpp-python", "sklearn": "scikit-learn"}  # fmt: skip
# pip comes with a virtual environment, and ingot.compat stands in for the other two.
OURS = {*FOLDERS, *sys.stdlib_module_names, "pip", "tensorrt", "tensorrt_llm"}


def distribution(name: str) -> str:
    """What a requirement asks for, as the package index spells it. The modules used here are called as their
    distributions are, but for those of OTHERWISE; torch's sizes are sympy's expressions.
    """
    found = re.split(r"[^\w.-]", name)[0].lower().replace("_", "-")
    return OTHERWISE.get(found, found)


def listed(name: str) -> set[str]:
    """The distributions of one list, those of ingot's own extras that it names included."""
    words = PROJECT["build-system"]["requires"] + EXTRAS["native"] if name == "build" else EXTRAS[name]
    found: set[str] = set()
    for word in words:
        own = re.fullmatch(r"ingot\[(\w+)\]", word)
        found |= listed(own[1]) if own else {distribution(word)}
    return found


def imported(tree: ast.AST) -> Iterator[str]:
    """The modules that a file names in an import, in a call that imports late, or behind -m of a command."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module
        elif isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", None))
            words = [a.value for a in node.args[:1] if isinstance(a, ast.Constant) and isinstance(a.value, str)]
            if called in LATE and words and re.fullmatch(r"[\w.:]+", words[0]):
                yield words[0].partition(":")[0]
        elif isinstance(node, ast.List | ast.Tuple):
            words = [item.value if isinstance(item, ast.Constant) else None for item in node.elts]
            # An interpreter's: what comes before -m is no literal.
            for before, flag, name in zip(words, words[1:], words[2:], strict=False):
                if before is None and flag == "-m" and isinstance(name, str) and re.fullmatch(r"[\w.]+", name):
                    yield name


@pytest.mark.parametrize("folder", FOLDERS)
def test_what_is_imported_is_named(folder: str) -> None:
    """Not what happens to be there because something else requires it."""
    required = {distribution(word) for word in PROJECT["project"]["dependencies"]}
    allowed = required.union(*map(listed, FOLDERS[folder]))
    missing: dict[str, set[str]] = {}
    for path in (ROOT / folder).rglob("*.py"):
        place = path.relative_to(ROOT).as_posix()
        modules = {name.split(".")[0] for name in imported(ast.parse(path.read_text()))} - OURS
        for name in {distribution(module) for module in modules} - allowed - ELSEWHERE.get(place, set()):
            missing.setdefault(name, set()).add(place)
    assert not missing


def test_the_walk_sees_every_kind_of_import() -> None:
    source = """
import a.b, c
from d.e import f
def late():
    import g
    _lazy.optional("h", "x", "y"), load("i.j:K"), pytest.importorskip("k"), np.load(path)
run([sys.executable, "-m", "l", "x"], [sys.executable, "-m", name, "-m", "not slow"])
from . import m
"""
    assert set(imported(ast.parse(source))) == {"a.b", "c", "d.e", "g", "h", "i.j", "k", "l"}


def test_the_makefile_runs_only_what_it_installs() -> None:
    """CMake and Ninja above all: a machine with Python and g++ alone has neither."""
    text = (ROOT / "Makefile").read_text()
    recipes = [line for line in text.splitlines() if line.startswith("\t")]
    installed = {"python", "pip", "ingot"} | listed("build").union(*map(listed, EXTRAS))
    assert set(re.findall(r"\$\(BIN\)/([\w-]+)", text)) <= installed
    assert not [line for line in recipes if re.search(r"(^\t@?|&& |\|\| )(cmake|ninja|pip|ruff|mypy|pytest)\b", line)]


@pytest.mark.parametrize("target", ["demo", "test", "bench", "fuzz", "conformance", "wheel", "size", "docs"])
def test_every_recipe_is_shell(target: str) -> None:
    """As make would run it, were nothing there yet."""
    words = ["make", "-n", "--no-print-directory", f"PYTHON={sys.executable}", "VENV=build/no-such-environment", target]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True, timeout=60)
    assert "@" not in done.stdout and len(done.stdout.splitlines()) > 5
    subprocess.run(["sh", "-n"], input=done.stdout, text=True, check=True, timeout=60)


@pytest.mark.parametrize("target", ["demo", "test", "bench", "fuzz", "wheel", "size", "docs"])
def test_the_path_of_the_clone_may_have_spaces(target: str, tmp_path: Path) -> None:
    """Wherever a recipe has it, it is one word."""
    clone = tmp_path / "two words"
    clone.mkdir()
    for name in ("Makefile", "pyproject.toml", "CMakeLists.txt", "native", "tools"):
        (clone / name).symlink_to(ROOT / name)
    words = ["make", "-n", "--no-print-directory", f"PYTHON={sys.executable}", target]  # make itself runs these tests
    done = subprocess.run(words, cwd=clone, capture_output=True, text=True, check=True, timeout=60)
    assert str(clone) in done.stdout
    assert done.stdout.count(str(clone)) == done.stdout.count(f'"{clone}/.venv/bin"')


# ---------------------------------------------------------------------------------------------------- prerequisites


def test_this_machine_has_all_that_is_needed(capsys: pytest.CaptureFixture[str]) -> None:
    assert prerequisites.main([]) == prerequisites.main(["--python"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(("version", "good"), [((3, 10), False), ((3, 11), True), ((3, 14), True), ((3, 15), False)])
def test_the_python_that_is_needed(version: tuple[int, int], good: bool) -> None:
    fault = prerequisites.python_fault(version)
    if good:
        assert fault is None
    else:
        assert fault is not None and fault.startswith("ingot needs Python 3.11 to 3.14, and ")
        assert fault.endswith(f" is 3.{version[1]}")
    assert "has no line requires-python" in str(prerequisites.python_fault((3, 11), "requires-python = '3'"))


def test_headers_that_are_missing(tmp_path: Path) -> None:
    assert f"{tmp_path} has no Python.h" in str(prerequisites.header_fault(str(tmp_path)))


def script(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def test_compilers_that_will_not_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CXX", str(tmp_path / "no-such-compiler"))
    assert f"no C++ compiler {tmp_path}/no-such-compiler: install g++ 12" in str(prerequisites.compiler_fault())
    old = script(tmp_path / "old-g++", "echo 'error: #error g++ 12 or newer is needed' >&2; exit 1")
    monkeypatch.setenv("CXX", f"{old} -m64")
    assert prerequisites.main([]) == 1
    said = capsys.readouterr().err
    assert said.startswith(f"ingot cannot be built here: {old} -m64 does not compile C++20") and "#error g++ 12" in said
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "there is no C++ compiler on PATH" in str(prerequisites.compiler_fault())
    script(tmp_path / "g++", "exit 0")
    assert prerequisites.compiler_fault() is None


@pytest.mark.parametrize("target", ["demo", "test", "wheel"])
def test_make_says_what_is_missing_before_it_installs(target: str, tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "CMakeLists.txt", "native", "tools"):
        (tmp_path / name).symlink_to(ROOT / name)
    environment = os.environ | {"CXX": "/no/such/compiler"}
    done = subprocess.run(
        ["make", f"PYTHON={sys.executable}", target],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode != 0 and "there is no C++ compiler /no/such/compiler: install g++" in done.stderr
    assert not (tmp_path / ".venv").exists()


# --------------------------------------------------------------------------------------------------- a wheel in dist/

NAME = "ingot-0.1.0-cp312-abi3-manylinux_2_27_x86_64.manylinux_2_28_x86_64.whl"
OLD = "ingot-0.1.0-cp311-cp311-linux_x86_64.whl"
TAGS = [
    (NAME, (3, 12), False, (2, 36), ""),
    (NAME, (3, 14), False, (2, 27), ""),
    (NAME, (3, 11), False, (2, 36), "it is for Python 3.12 and newer, and this is 3.11"),
    (NAME, (3, 14), True, (2, 36), "this is 3.14t"),
    (NAME, (3, 12), False, (2, 17), "manylinux_2_28_x86_64, and this is x86_64 with glibc 2.17"),
    (OLD, (3, 11), False, (2, 36), ""),
    (OLD, (3, 12), False, (2, 36), "it is for Python 3.11, and this is 3.12"),
    (OLD.replace("x86_64", "aarch64"), (3, 11), False, (2, 36), "it is for linux_aarch64, and this is x86_64"),
    ("numpy-2.1.0-cp311-cp311-linux_x86_64.whl", (3, 11), False, (2, 36), "its name is not that of a wheel of ingot"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "version", "free", "libc", "fault"), TAGS)
def test_the_tags_of_a_wheel(
    name: str, version: tuple[int, int], free: bool, libc: tuple[int, int], fault: str
) -> None:
    found = prebuilt.tag_fault(name, version, free, "x86_64", libc)
    assert (found is None) if not fault else fault in str(found)


def fitting(path: Path, digest: str) -> Path:
    """A wheel for this Python by its name, with a native core of these sources by its word."""
    wheel = path / f"ingot-0.1.0-cp3{sys.version_info[1]}-cp3{sys.version_info[1]}-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("ingot/native.sha256", f"{digest}\n")
        archive.writestr("ingot/cmake/", "")
        archive.writestr("ingot/cmake/ingot-config.cmake", "")
        archive.writestr("ingot/__init__.py", "")
        archive.writestr("ingot/_native.abi3.so", "core")
        archive.writestr("ingot-0.1.0.dist-info/METADATA", "")
    return wheel


def test_a_wheel_of_other_sources_is_not_taken(tmp_path: Path) -> None:
    digest = prebuilt.source_digest()
    assert prebuilt.fault(fitting(tmp_path, digest), digest) is None
    other = prebuilt.fault(fitting(tmp_path, "0" * 64), digest)
    assert other == "its native core was made of other sources than these"
    fitting(tmp_path, digest).write_bytes(b"PK")
    assert "it cannot be read" in str(prebuilt.fault(next(tmp_path.glob("*.whl")), digest))


def test_cmake_and_python_compute_the_same_digest(tmp_path: Path) -> None:
    """CMake's is written into a wheel, Python's is compared with it."""
    (code,) = re.findall(r"install\(CODE \[\[(.*?)\]\]\)", (ROOT / "CMakeLists.txt").read_text(), re.DOTALL)
    head = f'set(ROOT "{ROOT}")\nset(CMAKE_INSTALL_PREFIX "{tmp_path}")\n'
    (tmp_path / "digest.cmake").write_text(f"cmake_minimum_required(VERSION 3.20)\n{head}{code}")
    cmake = Path(sys.executable).parent / "cmake"
    subprocess.run([cmake, "-P", tmp_path / "digest.cmake"], check=True, timeout=60)
    assert (tmp_path / prebuilt.DIGEST).read_text().strip() == prebuilt.source_digest()


def test_a_wheel_gives_its_native_core_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path / "site"))
    assert prebuilt.main(["--unpack", str(fitting(tmp_path, "0" * 64))]) == 0
    unpacked = sorted(path.name for path in (tmp_path / "site").rglob("*") if path.is_file())
    ours = ["_ingot_prebuilt.pth", "_ingot_prebuilt.py"]
    assert unpacked == [*ours, "_native.abi3.so", "ingot-config.cmake", "native.sha256"]
    code = "import _ingot_prebuilt, sys; print(sys.meta_path[0].find_spec('ingot._native').origin)"
    found = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=tmp_path / "site", capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == str(tmp_path / "site" / "ingot" / "_native.abi3.so")


def test_make_takes_a_wheel_and_asks_for_no_compiler(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "CMakeLists.txt", "native", "ingot"):
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "tools").mkdir()
    for name in ("prebuilt.py", "prerequisites.py"):  # copies: each looks for dist/ beside its own folder
        (tmp_path / "tools" / name).write_bytes((ROOT / "tools" / name).read_bytes())
    (tmp_path / "dist").mkdir()
    wheel = fitting(tmp_path / "dist", prebuilt.source_digest())
    environment = os.environ | {"CXX": "/no/such/compiler"}
    words = ["make", "--no-print-directory", "VENV=env", "env/bin/python"]

    def made() -> subprocess.CompletedProcess[str]:
        # -m venv would take seconds: an interpreter that only says it was asked for one.
        stand_in = script(tmp_path / "python", f'[ "$1" = -m ] && echo "asked for $2" || exec {sys.executable} "$@"')
        return subprocess.run(
            [*words, f"PYTHON={stand_in}"], cwd=tmp_path, env=environment,
            capture_output=True, text=True, check=False, timeout=60,
        )  # fmt: skip

    done = made()
    assert done.returncode == 0 and "asked for venv" in done.stdout, done.stderr
    wheel.unlink()
    done = made()
    assert done.returncode != 0 and "there is no C++ compiler /no/such/compiler" in done.stderr


# -------------------------------------------------------------------------------------------------------- compiling

STEPS = [f"[{i}/92] Building CXX object CMakeFiles/a.dir/native/src/file{i}.cpp.o" for i in range(1, 93)]


class Terminal(io.StringIO):
    """A stream that is being watched."""

    def isatty(self) -> bool:
        return True


def compile_with(tmp_path: Path, stream: io.StringIO, lines: list[str], code: int = 0) -> tuple[int, str]:
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in lines))
    command = ["sh", "-c", f"cat {tmp_path}/lines; exit {code}"]
    found = compiling.run(command, stream, tmp_path / "build" / "log")
    assert (tmp_path / "build" / "log").read_text().splitlines() == lines
    return found, stream.getvalue()


def test_a_log_gets_a_dozen_lines(tmp_path: Path) -> None:
    code, said = compile_with(tmp_path, io.StringIO(), ["Collecting numpy", *STEPS, "Successfully installed ingot"])
    lines = said.splitlines()
    assert code == 0 and len(lines) == 11 and lines[-1] == "  92 of 92"
    assert re.fullmatch(r"compiling the native core: 92 steps, about \d+ (minutes|seconds) on \d+ proc.*", lines[0])
    assert compile_with(tmp_path, io.StringIO(), ["Successfully installed ingot"]) == (0, "")


def test_a_terminal_gets_one_line_that_changes(tmp_path: Path) -> None:
    code, said = compile_with(tmp_path, Terminal(), STEPS)
    assert code == 0 and said.count("\n") == 1 and said.count("\r") == 94
    assert "  92 of 92  native/src/file92.cpp " in said and said.endswith(" \r")


def test_the_time_that_is_left_goes_by_the_pace_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    now = iter(range(0, 10_000, 10))
    monkeypatch.setattr(compiling, "monotonic", lambda: next(now))  # each step takes ten seconds
    stream = io.StringIO()
    progress = compiling.Progress(stream, 2)
    for done in range(1, 21):
        progress.line(f"[{done}/20] Building CXX object a.dir/native/src/a.cpp.o")
    lines = stream.getvalue().splitlines()
    assert lines[1].startswith("  2 of 20, about ") and lines[1].endswith(" left")
    assert lines[-2].startswith("  18 of 20, about ") and "seconds left" in lines[-2] and lines[-1] == "  20 of 20"


def test_a_failure_shows_what_the_compiler_said(tmp_path: Path) -> None:
    fault = ["FAILED: CMakeFiles/a.dir/x.cpp.o", "g++ -o x.cpp.o", "x.cpp:1:2: error: expected ';'", "  1 | int a"]
    code, said = compile_with(tmp_path, io.StringIO(), [*STEPS[:9], *fault, STEPS[9], "ninja: build stopped"], 3)
    assert code == 3 and "\n".join([*fault, "ninja: build stopped"]) in said
    assert said.endswith(f"all it said is in {tmp_path}/build/log\n") and "[5/92]" not in said
    code, said = compile_with(tmp_path, io.StringIO(), ["no space left on device"], 1)
    assert code == 1 and said.startswith("no space left on device\n")


@pytest.mark.parametrize(
    ("wheel", "files", "fault"),
    [
        (12_000_001, {"numpy": 9}, "12,000,001 bytes of the wheel, at most 12,000,000"),
        (9, {"numpy": 50_000_001}, "50,000,001 bytes together, at most 50,000,000"),
        (9, {f"package{i}": 9 for i in range(29)}, "29 distributions, at most 28"),
        (9, {"torch-2.13.0.whl": 9}, "torch-2.13.0.whl is not to be needed"),
    ],
)
def test_what_is_over_its_budget_is_named(wheel: int, files: dict[str, int], fault: str) -> None:
    assert size.faults(wheel, files) == [fault]
    assert size.faults(12_000_000, {"numpy": 50_000_000}) == []
