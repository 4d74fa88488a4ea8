"""Compiled kernels in files: `ingot build --device cuda:sm_90` writes them, and runs take what they would compile.

A file holds one kernel under a key: the digest of its source with all that it calls, its signature, constants and
options, Triton's version, and the architecture. A run computes the key of what it is about to compile, and looks for
that. So nothing of a file says what is run in whose place, and no file is opened that was not asked for. What is found
goes into Triton's own cache, from which Triton loads it.

Kernels are code: only a folder that the user names is read (INGOT_KERNELS; docs/threat-model.md).
"""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from keyword import iskeyword
from pathlib import Path
from shutil import which
from typing import Any

from triton import __version__ as TRITON
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.compiler import ASTSource, make_backend
from triton.runtime.cache import get_cache_key, get_cache_manager
from triton.runtime.driver import driver

from ingot.backends.cuda.compiled_only import NotCompiled, is_compiled_only
from ingot.errors import FileError, IngotError, UserError
from ingot.regular import descriptor_of
from ingot.strict_json import parse_object
from ingot.written import write_whole

FOLDER = "INGOT_KERNELS"  # the environment's variable that names a folder to take kernels from
SUFFIX = ".kernel"
FORMAT = 1
MOST_HEADER = 4096  # bytes of a file's first line
MOST_BYTES = 64 << 20  # of a file
_VERSION = re.compile(r"[\w.+-]{1,40}", re.ASCII)
# What of Triton's metadata is read where a kernel is loaded and launched, at least and at most.
_NUMBERS = {"num_warps": (1, 64), "num_ctas": (1, 16), "shared": (0, 1 << 20), "global_scratch_size": (0, 1 << 30),
            "profile_scratch_size": (0, 1 << 30)}  # fmt: skip

log = logging.getLogger("ingot.cuda")


@dataclass(frozen=True)
class Source:
    """A kernel to be compiled: its source with signature and constants, Triton's options, and for which GPUs."""

    source: Any
    options: Any
    target: Any

    @staticmethod
    def of(jitted: Any, asked: Mapping[str, Any], target: Any) -> Source:
        """What Triton's hook is told before it compiles."""
        backend = make_backend(target)
        options = json.loads(asked["specialization_data"])["options"]
        parsed = backend.parse_options({k: tuple(v) if isinstance(v, list) else v for k, v in options.items()})
        return Source(ASTSource(jitted, asked["signature"], asked["constants"], asked["configs"][0]), parsed, target)

    @property
    def name(self) -> str:
        """The function's."""
        return str(self.source.name)

    @property
    def file(self) -> str:
        """What Triton's cache calls the file of its metadata."""
        return f"{self.name[:150]}.json"

    @property
    def cached(self) -> bool:
        """Whether Triton's cache has it."""
        return bool(self.cache.get_group(self.file))

    @property
    def key(self) -> str:
        """The same on every machine, in every Python."""
        flags = sorted(get_cache_invalidating_env_vars().items())
        parts = (FORMAT, TRITON, self.source.hash(), self.options.hash(), self.target.arch, flags)
        return sha256(repr(parts).encode()).hexdigest()

    @property
    def cache(self) -> Any:
        """Where Triton keeps it on this machine."""
        flags = get_cache_invalidating_env_vars()
        key = get_cache_key(self.source, make_backend(self.target), self.options, env_vars=flags)
        return get_cache_manager(sha256(key.encode()).hexdigest())


@dataclass(frozen=True)
class Kernel:
    """What a file says of its kernel in its first line, and the rest: `metadata` is a line of JSON for Triton."""

    key: str
    name: str
    architecture: int
    triton: str
    metadata: str = ""
    binary: bytes = b""

    def write(self, folder: Path) -> int:
        """Into its place in a folder; the bytes. Raises FileError."""
        rest = self.metadata.encode() + b"\n" + self.binary
        head = {"format": FORMAT, "key": self.key, "digest": _digest(self.key, rest), "name": self.name,
                "architecture": self.architecture, "triton": self.triton}  # fmt: skip
        whole = json.dumps(head).encode() + b"\n" + rest
        write_whole(folder / f"{self.key}{SUFFIX}", whole)
        return len(whole)


def _digest(key: str, rest: bytes) -> str:
    return sha256(key.encode() + rest).hexdigest()


def read(path: Path) -> Kernel:
    """A kernel out of its file. Raises FileError where that cannot be read, or is not what its first line says."""
    try:
        with open(descriptor_of(path), "rb") as file:
            first = file.readline(MOST_HEADER)
            rest = file.read(MOST_BYTES + 1)
    except OSError as e:
        raise FileError(f"{path} cannot be read: {e.strerror or e}") from None
    found, digest = _header(path, first)
    if len(rest) > MOST_BYTES or _digest(found.key, rest) != digest:
        raise FileError(f"{path} is damaged: its digest is another one")
    metadata, _, binary = rest.partition(b"\n")
    if not _sound(metadata, found):
        raise FileError(f"{path} is no kernel of ingot's: what it says for Triton is not what Triton writes")
    return replace(found, metadata=metadata.decode(), binary=binary)


def _sound(metadata: bytes, kernel: Kernel) -> bool:
    """Whether Triton can read what stands for it there, and its numbers are those of a kernel."""
    try:
        said = parse_object(metadata)
    except ValueError:
        return False
    target = {"backend": "cuda", "arch": kernel.architecture, "warp_size": 32}
    numbers = all(type(said.get(name)) is int and low <= said[name] <= high for name, (low, high) in _NUMBERS.items())
    flags = all(type(said.get(name)) is bool for name in ("launch_pdl", "launch_cooperative_grid"))
    names = all(name.isidentifier() and not iskeyword(name) and name[0] != "_" for name in said)  # a named tuple's
    return names and flags and numbers and said.get("target") == target and said.get("name") == kernel.name


def _header(path: Path, line: bytes) -> tuple[Kernel, str]:
    """A file's first line, and the digest that it says. Raises FileError."""
    try:
        said = parse_object(line)
        if not line.endswith(b"\n") or said["format"] != FORMAT or said["key"] != path.name.removesuffix(SUFFIX):
            raise ValueError
        name, architecture, version = said["name"], said["architecture"], said["triton"]
        if type(architecture) is not int or not 0 < architecture < 1000 or not _VERSION.fullmatch(version):
            raise ValueError
        return Kernel(said["key"], name, architecture, version), said["digest"]
    except (ValueError, KeyError, TypeError, IngotError):
        raise FileError(f"{path} is no kernel of ingot's") from None


def headers(folder: Path) -> Iterator[Kernel]:
    """What the files of a folder say of themselves; those that are none say nothing. Raises FileError."""
    try:
        paths = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else None
    except OSError as e:
        raise FileError(f"{folder} cannot be read: {e.strerror}") from None
    if paths is None:
        raise FileError(f"{folder} is no folder: `ingot build --device cuda:sm_90` writes one beside its engine")
    for path in paths:
        with suppress(FileError, OSError), open(descriptor_of(path), "rb") as file:
            yield _header(path, file.readline(MOST_HEADER))[0]


@dataclass
class Folder:
    """The folder of kernels that this process takes from. taken, missed: how many kernels it had, and had not."""

    path: Path
    taken: int = 0
    missed: int = 0

    @staticmethod
    def opened(path: Path, architecture: int) -> Folder:
        """Raises FileError for what is no folder, UserError where none of its kernels is for this GPU and Triton."""
        found = list(headers(path))
        if not found:
            raise UserError(f"{path} holds no kernels: `ingot build --device cuda:sm_{architecture}` makes some")
        built = {f"sm_{k.architecture} by Triton {k.triton}" for k in found}
        if not any((k.architecture, k.triton) == (architecture, TRITON) for k in found):
            raise UserError(
                f"the kernels in {path} are for {', '.join(sorted(built))}, and this GPU is sm_{architecture}, with "
                f"Triton {TRITON}: build the engine again with --device cuda:sm_{architecture} where Triton {TRITON} "
                "is, or leave the folder out: then they are compiled here"
            )
        return Folder(path)

    def json(self) -> dict[str, Any]:
        """What it holds."""
        found = list(headers(self.path))
        return {"folder": str(self.path), "compiled": len(found),
                "for": ", ".join(sorted({f"sm_{k.architecture}" for k in found}))}  # fmt: skip

    def install(self, source: Source) -> None:
        """Gives Triton's cache a kernel, if the folder has it and the cache has not."""
        path = self.path / f"{source.key}{SUFFIX}"
        cache, meta = source.cache, source.file
        if source.cached:
            return
        if not path.is_file():
            self.missed += 1
            tell = log.warning if self.missed == 1 else log.info  # an engine that was built anew misses all of them
            tell("%s lacks the kernel %s: it is compiled here, as are others that it lacks", self.path, source.name)
            return
        try:
            kernel = read(path)
        except FileError as e:
            self.missed += 1
            log.warning("%s; %s is compiled here", e, source.name)
            return
        binary = f"{source.name[:150]}.cubin"
        group = {binary: cache.put(kernel.binary, binary), meta: cache.put(kernel.metadata, meta, binary=False)}
        cache.put_group(meta, group)
        self.taken += 1


_folders: dict[tuple[str, int], Folder] = {}
_used: list[Folder] = []  # at most one: the folder that the hook takes from


def prepare(architecture: int) -> Folder | None:
    """Before kernels run here: whether Triton can compile, and the folder that INGOT_KERNELS names, if it does.

    Raises FileError, UserError.
    """
    if not (os.environ.get("CC") or which("gcc") or which("clang")):
        raise UserError("Triton makes a part of its driver by a C compiler, and none is here: install gcc, or name one "
                        "in CC")  # fmt: skip
    place = Path(knobs.cache.dir)
    try:
        place.mkdir(parents=True, exist_ok=True)
        writable = os.access(place, os.W_OK | os.X_OK)
    except OSError:
        writable = False
    if not writable:
        raise FileError(f"{place}, where Triton keeps the kernels that it compiles, cannot be written: set "
                        "TRITON_CACHE_DIR to a folder that can be")  # fmt: skip
    if not isinstance(knobs.runtime.jit_cache_hook, _Hook):
        knobs.runtime.jit_cache_hook = _Hook(knobs.runtime.jit_cache_hook)
    named = os.environ.get(FOLDER)
    if not named:
        _used.clear()
        return None
    key = (os.path.abspath(named), architecture)
    if key not in _folders:
        _folders[key] = Folder.opened(Path(key[0]), architecture)
    _used[:] = [_folders[key]]
    return _used[0]


def taken(source: Source) -> bool:
    """Whether Triton's cache has a kernel, or has it now from the folder that this process takes from."""
    if _used:
        _used[0].install(source)
    return source.cached


@dataclass
class _Hook:
    """What Triton calls before it compiles. before: the one that was there."""

    before: Any

    def __call__(self, **asked: Any) -> bool:
        only = is_compiled_only()
        if _used or only:
            source = Source.of(asked["fn"].jit_function, asked["compile"], driver.active.get_current_target())
            if not taken(source) and only:
                raise NotCompiled(source.name)
        return bool(self.before(**asked)) if self.before is not None else False
