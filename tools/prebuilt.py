"""Finds a wheel in dist/ whose native core fits this Python and these sources: `python tools/prebuilt.py`.

Prints its path; says of each other wheel there why it is not taken. The exit code is 1 when none fits. Any Python 3 can
run it. `python tools/prebuilt.py --unpack WHEEL` puts the native core of the wheel into the environment that runs it,
where it completes an editable install of the Python half, as if it had been compiled.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
import sysconfig
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
DIGEST = "ingot/native.sha256"  # of a wheel; CMakeLists.txt writes it
# The editable install finds ingot in the source tree, and knows native modules only where it has compiled them.
FINDER = """# Finds ingot._native, which came in a wheel: written by tools/prebuilt.py.
import sys


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "ingot._native":
            return None
        from importlib.util import spec_from_file_location

        return spec_from_file_location(name, {core!r})


sys.meta_path.insert(0, Finder)
"""


def source_digest(root: Path = ROOT) -> str:
    """The digest of all that the native core is made of, as CMakeLists.txt computes it."""
    files = [path.relative_to(root).as_posix() for path in (root / "native").rglob("*") if path.is_file()]
    lines = [
        f"{hashlib.sha256((root / file).read_bytes()).hexdigest()}  {file}\n"
        for file in sorted([*files, "CMakeLists.txt", "ingot/version.py"])
    ]
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def tag_fault(
    name: str, version: tuple[int, int], free_threaded: bool, machine: str, libc: tuple[int, int]
) -> str | None:
    """Why a wheel of this file name is not for this Python and this machine."""
    found = re.fullmatch(r"ingot-[^-]+-cp3(\d+)-(abi3|cp3\d+)-(.+)\.whl", name)
    if found is None:
        return "its name is not that of a wheel of ingot"
    minor, abi, platforms = int(found[1]), found[2], found[3].split(".")
    stable = abi == "abi3"
    if version[0] != 3 or free_threaded or (version[1] < minor if stable else version[1] != minor):
        wanted = f"3.{minor}{' and newer' if stable else ''}"
        return f"it is for Python {wanted}, and this is {version[0]}.{version[1]}{'t' if free_threaded else ''}"
    for word in platforms:
        tag = re.fullmatch(r"(?:linux|manylinux_(\d+)_(\d+))_(\w+)", word)
        if tag is not None and tag[3] == machine and (tag[1] is None or (int(tag[1]), int(tag[2])) <= libc):
            return None
    return f"it is for {', '.join(platforms)}, and this is {machine} with glibc {libc[0]}.{libc[1]}"


def fault(wheel: Path, digest: str) -> str | None:
    """Why a wheel's native core cannot be used here."""
    libc = re.fullmatch(r"(\d+)\.(\d+).*", platform.libc_ver()[1])
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    release = (int(libc[1]), int(libc[2])) if libc else (0, 0)
    wrong = tag_fault(wheel.name, sys.version_info[:2], free_threaded, platform.machine(), release)
    if wrong is not None:
        return wrong
    try:
        with zipfile.ZipFile(wheel) as archive:
            made_of = archive.read(DIGEST).decode().strip()
    except (OSError, zipfile.BadZipFile, KeyError) as error:
        return f"it cannot be read: {error}"
    return None if made_of == digest else "its native core was made of other sources than these"


def put(path: Path, content: bytes) -> None:
    """Writes a file whole or not at all: a process may have the one before mapped."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f"{path.name}.part")
    part.write_bytes(content)
    os.replace(part, path)


def unpack(wheel: Path) -> None:
    """Puts what the wheel has beside the source tree's files into the environment, and lets it be found."""
    site = Path(sysconfig.get_path("platlib"))
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if re.match(r"ingot(\.libs)?/.*[^/]$", name)]
        names = [name for name in names if not (ROOT / name).exists()]
        cores = [name for name in names if re.fullmatch(r"ingot/_native\.[\w.-]+\.so", name)]
        if len(cores) != 1 or any(".." in name.split("/") for name in names):
            sys.exit(f"{wheel} is no wheel of ingot")
        for name in names:
            put(site / name, archive.read(name))
    put(site / "_ingot_prebuilt.py", FINDER.format(core=str(site / cores[0])).encode())
    put(site / "_ingot_prebuilt.pth", b"import _ingot_prebuilt\n")


def main(arguments: list[str]) -> int:
    """Prints the wheel to take."""
    if arguments:
        unpack(Path(arguments[1]))
        return 0
    digest = source_digest()
    for wheel in sorted((ROOT / "dist").glob("*.whl")):
        wrong = fault(wheel, digest)
        if wrong is None:
            print(wheel)
            return 0
        print(f"{wheel.relative_to(ROOT)} is not used: {wrong}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
