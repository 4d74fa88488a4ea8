"""Print what a C or C++ compiler needs to use ingot's C library: flags, and where CMake and pkg-config find it.

examples:
  c++ -std=c++17 main.cpp $(ingot config --cflags --libs) -o main
  cmake -S . -B build -Dingot_DIR="$(ingot config --cmake-dir)"
  PKG_CONFIG_PATH="$(ingot config --pkg-config-dir)" pkg-config --libs ingot
  ingot config --json"""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from ingot import _native
from ingot.cli.output import Output
from ingot.errors import FileError
from ingot.version import __version__


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot config`."""
    for word, told in (
        ("cflags", "the flags that find ingot.h"),
        ("libs", "the flags that link libingot.so, and find it again when the program starts"),
        ("cmake-dir", "the folder of ingot-config.cmake: a value of ingot_DIR for find_package(ingot)"),
        ("pkg-config-dir", "the folder of ingot.pc: a value of PKG_CONFIG_PATH"),
        ("include-dir", "the folder of ingot.h"),
        ("lib-dir", "the folder of libingot.so"),
    ):
        parser.add_argument(f"--{word}", dest="asked", action="append_const", const=word, help=told)


def run(args: argparse.Namespace, out: Output) -> None:
    """Carries out `ingot config`. The flags of one line are quoted as a shell reads them."""
    home = Path(_native.__file__).parent
    include, cmake, pkg_config = home / "include", home / "cmake", home / "pkgconfig"
    for file in (home / "libingot.so", include / "ingot.h", cmake / "ingot-config.cmake", pkg_config / "ingot.pc"):
        if not file.is_file():
            raise FileError(
                f"{file} is not there: this ingot was not installed by pip. Install it (`pip install .`), or build the "
                "C library alone, as docs/cpp.md says"
            )
    found = {
        "cflags": shlex.join([f"-I{include}"]),
        "libs": shlex.join([f"-L{home}", "-lingot", f"-Wl,-rpath,{home}"]),
        "cmake-dir": str(cmake),
        "pkg-config-dir": str(pkg_config),
        "include-dir": str(include),
        "lib-dir": str(home),
    }
    if args.asked:
        flags = [found[word] for word in args.asked if word in ("cflags", "libs")]
        folders = [found[word] for word in args.asked if word not in ("cflags", "libs")]
        out.text("\n".join(([" ".join(flags)] if flags else []) + folders))
    else:
        width = max(map(len, found))
        out.text("\n".join(f"{word:{width}}  {text}" for word, text in found.items()))
    out.result({"version": __version__} | {word.replace("-", "_"): text for word, text in found.items()})
