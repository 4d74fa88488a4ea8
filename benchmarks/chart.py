"""The README's chart and table: how much of what a machine can do ingot and its peers reach, from kept measurements.

`python -m benchmarks NAME --keep` adds a measurement to `benchmarks/measured/`, a file for each kind of machine.
`python -m benchmarks chart` draws them as docs/measured.svg and writes the tables into the README; what INGOT_ISA
forced is in the tables alone. Equal measurements give equal bytes.
"""

from __future__ import annotations

import datetime
import io
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness import ROOT, Result
from benchmarks.machine import HOLDS, LOOSE, forced_level
from tools.machine import machine_name

MEASURED = ROOT / "benchmarks" / "measured"
README, CHART = ROOT / "README.md", ROOT / "docs" / "measured.svg"
BEGIN, END = "<!-- chart: written by python -m benchmarks chart -->\n", "<!-- end of chart -->\n"
COLOURS = {
    "ingot": "#c2410c", "OpenVINO": "#2b6cb0", "llama.cpp": "#2f855a", "ONNX Runtime": "#6b7280", "torch": "#d69e2e",
}  # fmt: skip
OTHER = "#a0aec0"
BAR = 0.22  # inches
UNHELD = "OpenVINO's kernels that the level does not hold: "
FORCED = ", INGOT_ISA="  # what stands behind a machine's name, and before the level

Machine = Mapping[str, Any]  # as a file of MEASURED has it: schema, machine, results {name: Result.json() and date}


def kind_of_machine() -> str:
    """A word for the processor and how many of its CPUs are used, and the level that INGOT_ISA forces, if it does.

    The family tells generations of one name apart.
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    family = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("cpu family")), "unknown")
    return _word(f"{machine_name().replace(',', f' family {family}')} {forced_level() or ''}")


def file_of(machine: str = "", folder: Path = MEASURED) -> Path:
    """Where measurements of a machine are kept: a GPU's by its name, without one this processor's."""
    return folder / f"{_word(machine) if machine else kind_of_machine()}.json"


def _word(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def keep(result: Result, folder: Path = MEASURED) -> Path:
    """Adds a result to its machine's file, in the place of an older one of the same name; the file."""
    path = file_of(result.machine, folder)
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"schema": 1, "results": {}}
    data = result.json()
    level = None if result.machine else forced_level()
    found["machine"] = data.pop("machine") + (f"{FORCED}{level}" if level else "")
    found["results"][result.name] = {"date": datetime.date.today().isoformat(), **data}
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n")
    return path


def draw(folder: Path = MEASURED, readme: Path = README, chart: Path = CHART) -> None:
    """Writes the chart, and the table into the README. Raises SystemExit where nothing has been kept."""
    machines = {path.stem: json.loads(path.read_text()) for path in sorted(folder.glob("*.json"))}
    machines = {name: found for name, found in machines.items() if works(found)}
    if not at_best(machines):
        raise SystemExit(f"{folder} has no measurement with shares: python -m benchmarks resnet50 --keep makes one")
    chart.write_text(svg(at_best(machines)))
    text = readme.read_text()
    begin, end = text.index(BEGIN) + len(BEGIN), text.index(END)
    readme.write_text(text[:begin] + table(machines, chart.relative_to(readme.parent)) + text[end:])


def works(machine: Machine) -> dict[str, dict[str, Any]]:
    """By what was computed: the limit, and by who did it the share, the value and its unit."""
    found: dict[str, dict[str, Any]] = {}
    for result in machine["results"].values():
        for share in result.get("shares", ()):
            work = found.setdefault(share["work"], {"limit": share["limit"], "who": {}})
            work["who"][share["who"]] = share
    return found


def table(machines: Mapping[str, Machine], chart: Path) -> str:
    """The Markdown: the chart, and for each machine a table, and one of the levels that INGOT_ISA forced on it."""
    lines = [f"![share of the machine's limit, ingot beside its peers]({chart})", ""]
    for name, machine in at_best(machines).items():
        found = works(machine)
        people = _people(found)
        lines += [f"{machine['machine']} (`{name}`), {_measured([machine])}:", "", *_head(["limit", *people])]
        for work, entry in found.items():
            lines.append(_line([work, entry["limit"], *(_cell(entry["who"].get(who)) for who in people)]))
        lines.append("")
    for machine_of, levels in _by_machine(machines).items():
        lines.append(f"{machine_of}, ingot and peers held to levels by `INGOT_ISA`, {_measured(levels.values())}")
        lines += ["(shares of portable code are of what AVX2 can do; torch's MKL is held to none):", ""]
        by_level = {level: works(machine) for level, machine in levels.items()}
        columns = [(level, who) for level, found in by_level.items() for who in _people(found)]
        lines += _head([f"{level}: {who}" for level, who in columns])
        for work in dict.fromkeys(work for found in by_level.values() for work in found):
            entries = [by_level[level].get(work, {"who": {}})["who"].get(who) for level, who in columns]
            lines.append(_line([work, *map(_cell, entries)]))
        lines += ["", *_not_held(levels)]
    return "\n".join(lines)


def at_best(machines: Mapping[str, Machine]) -> dict[str, Machine]:
    """Those whose instructions were all used: they have a panel in the chart."""
    return {name: machine for name, machine in machines.items() if FORCED not in machine["machine"]}


def _by_machine(machines: Mapping[str, Machine]) -> dict[str, dict[str, Machine]]:
    """The others, by the machine and the level."""
    found: dict[str, dict[str, Machine]] = {}
    for machine in machines.values():
        of, _, level = machine["machine"].partition(FORCED)
        if level:
            found.setdefault(of, {})[level] = machine
    return found


def _not_held(levels: Mapping[str, Machine]) -> list[str]:
    """A list of what the results' notes say of peers that a level does not hold, each thing once for a net."""
    said: dict[tuple[str, str], dict[str, None]] = {}
    for level, machine in levels.items():
        for result in machine["results"].values():
            for note in result["notes"]:
                if note.endswith(LOOSE):
                    _, _, kernels = note.removesuffix(LOOSE).partition(HOLDS)
                    said.setdefault((level, result["name"]), {})[kernels.strip()] = None
    found = [f"- {level}, {name}: {UNHELD}{'; '.join(kernels)}" for (level, name), kernels in said.items()]
    return [*found, ""] if found else []


def _measured(machines: Iterable[Machine]) -> str:
    results = (result for machine in machines for result in machine["results"].values())
    dates = sorted({result["date"] for result in results if result.get("shares")})
    return f"measured {' to '.join(dict.fromkeys((dates[0], dates[-1])))}"


def _head(columns: Sequence[str]) -> list[str]:
    return [_line(["what", *columns]), "|---" * (len(columns) + 1) + "|"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _people(found: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Who is there: those with a colour first, in that order."""
    there = {who for entry in found.values() for who in entry["who"]}
    return [who for who in COLOURS if who in there] + sorted(there - COLOURS.keys())


def _cell(share: Mapping[str, Any] | None) -> str:
    if share is None:
        return ""
    return f"{_figure(share['value'])} {share['unit']}, {share['share']:.0%}"


def _figure(value: float) -> str:
    """Three significant digits, or all of a whole number that has more."""
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def svg(machines: Mapping[str, Machine]) -> str:
    """The chart: a panel for each machine, a group of bars for each work."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "ingot", "svg.fonttype": "none", "font.size": 8}):
        all_works = [works(machine) for machine in machines.values()]
        heights = [sum(len(entry["who"]) + 1 for entry in found.values()) * BAR + 1 for found in all_works]
        figure = Figure(figsize=(9, sum(heights)), layout="constrained")
        axes = figure.subplots(len(machines), 1, squeeze=False, height_ratios=heights)[:, 0]
        for axis, machine, found in zip(axes, machines.values(), all_works, strict=True):
            _panel(axis, machine["machine"], found)
        out = io.StringIO()
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def _panel(axis: Any, title: str, found: Mapping[str, Mapping[str, Any]]) -> None:
    people = _people(found)
    drawn: set[str] = set()
    ticks: list[tuple[float, str]] = []
    at = 0
    for work, entry in found.items():
        here = [who for who in people if who in entry["who"]]
        ticks.append((at + (len(here) - 1) / 2, f"{work}\n({entry['limit']})"))
        for who in here:
            share = entry["who"][who]
            label = who if who not in drawn else None
            drawn.add(who)
            axis.barh(at, 100 * share["share"], color=COLOURS.get(who, OTHER), label=label, height=0.9)
            text = f"{_figure(share['value'])} {share['unit']}"
            axis.text(100 * share["share"] + 0.8, at, text, va="center", fontsize=6)
            at += 1
        at += 1
    axis.set_yticks([place for place, _ in ticks], [text for _, text in ticks])
    axis.invert_yaxis()
    axis.set_ylim(at - 0.5, -1)
    axis.set_xlim(0, _end(found.values()))
    axis.set_xlabel("share of the machine's limit, %")
    axis.set_title(title)
    axis.legend(loc="lower right")
    axis.spines[["top", "right"]].set_visible(False)


def _end(entries: Sequence[Mapping[str, Any]] | Any) -> float:
    """Where the axis ends: Winograd's products go beyond the limit of direct ones."""
    most = max(share["share"] for entry in entries for share in entry["who"].values())
    return float(max(110, 115 * most))
