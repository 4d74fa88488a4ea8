"""The native module under sanitizers: how it is built and loaded in place of the usual one, and what they report."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.conformance.suites import ROOT

HERE = Path(__file__).parent
MOST_REPORTS = 10  # in a section
MOST_LINES = 30  # of one report


@dataclass(frozen=True)
class Sanitizer:
    """One sanitized build.

    `folder` under build/ holds it, `option` of CMakeLists.txt asks for it. `library` has to be in the process before
    Python is; `variable` tells it `settings`. With `flag` the `faults` of canary.cpp are something that it must report.
    """

    folder: str
    option: str
    flag: str
    library: str
    variable: str
    settings: tuple[str, ...]
    faults: tuple[str, ...]

    @property
    def place(self) -> Path:
        return ROOT / "build" / self.folder

    @property
    def reports(self) -> Path:
        return self.place / "reports"

    @property
    def module(self) -> Path:
        """The module that `build` has built."""
        (found,) = self.place.glob("_native*.so")
        return found

    def build(self) -> None:
        """Builds the module, with the C library beside it, or what changed of them."""
        made = [f"-D{self.option}=ON", f"-DPython_EXECUTABLE={sys.executable}"]
        subprocess.run(["cmake", "-S", str(ROOT), "-B", str(self.place), "-G", "Ninja", *made], check=True)
        subprocess.run(["cmake", "--build", str(self.place), "--target", "_native", "ingot_c"], check=True)

    def environment(self) -> dict[str, str]:
        """What makes Python load the module, and the sanitizer write to `reports`, which this empties."""
        self.reports.mkdir(parents=True, exist_ok=True)
        for old in self.reports.iterdir():
            old.unlink()
        # libstdc++ too: the sanitizer looks for what throws exceptions when it starts, before our module is loaded.
        libraries = [self._compiler(f"-print-file-name={name}") for name in (self.library, "libstdc++.so.6")]
        given = filter(None, [os.environ.get("PYTHONPATH")])
        return {
            "LD_PRELOAD": " ".join(libraries),
            "PYTHONPATH": os.pathsep.join([str(HERE / "loaded_first"), str(ROOT), *given]),
            "INGOT_SANITIZED_MODULE": str(self.module),
            # Threads of libraries that are not sanitized: how they wait for each other is not seen.
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            self.variable: ":".join([*self.settings, f"log_path={self.reports}/report"]),
        }

    def is_awake(self) -> bool:
        """Whether it reports the faults of canary.cpp: only then does its silence mean anything."""
        library = self.place / "canary.so"
        self._compiler("-shared", "-fPIC", "-g", "-O1", self.flag, str(HERE / "canary.cpp"), "-o", str(library))
        return all(self._reports(f"import ctypes; ctypes.CDLL({str(library)!r}).{fault}") for fault in self.faults)

    def _reports(self, code: str) -> bool:
        """Whether there is one report when Python runs this."""
        subprocess.run([sys.executable, "-c", code], env=os.environ | self.environment(), capture_output=True)
        return len(reported(self.reports)) == 1

    def _compiler(self, *words: str) -> str:
        """What the compiler of the build says when it is called like this."""
        cache = (self.place / "CMakeCache.txt").read_text()
        compiler = re.search(r"^CMAKE_CXX_COMPILER:\w+=(.*)$", cache, re.MULTILINE)
        assert compiler is not None, "CMake names its compiler in its cache"
        return subprocess.run([compiler[1], *words], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


ADDRESS = Sanitizer(
    "fuzz", "INGOT_SANITIZE", "-fsanitize=address,undefined", "libasan.so",
    "ASAN_OPTIONS", ("detect_leaks=0", "verify_asan_link_order=0"), ("read_behind(100)",),
)  # fmt: skip
# Everything goes on after a report: the exit codes are those of the tests.
THREAD = Sanitizer(
    "tsan", "INGOT_SANITIZE_THREADS", "-fsanitize=thread", "libtsan.so",
    "TSAN_OPTIONS", ("exitcode=0", "die_after_fork=0", "history_size=4"), ("race()", "race_told()"),
)  # fmt: skip


def reported(reports: Path) -> list[str]:
    """What the sanitizer wrote, one text per report, each once, however often it came."""
    found: dict[str, str] = {}
    for path in sorted(reports.iterdir()):
        for text in re.split(r"^(?:={10,}\n)+", path.read_text(errors="replace"), flags=re.MULTILINE):
            summary = re.search(r"^SUMMARY: .*$", text, re.MULTILINE)
            if summary is not None or "runtime error:" in text:
                found.setdefault(summary[0] if summary else text.splitlines()[0], text.strip())
    return list(found.values())


def shown(reports: list[str]) -> str:
    """Reports as a section shows them."""
    if not reports:
        return "The sanitizer reported nothing."
    texts = ["\n".join(report.splitlines()[:MOST_LINES]) for report in reports[:MOST_REPORTS]]
    return f"**Reports: {len(reports)}.**\n\n" + "\n\n".join(f"```\n{text}\n```" for text in texts)
