"""docs/conformance.md: one section per part, and a table of them all that is made from the sections."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

HEAD = """# Conformance

What the long suites said when each of them ran last. `make conformance` lists the parts; `make conformance PART=NAME`
runs one and writes its section here, with the commit and the machine that it ran on. Nothing here is written by hand.
"""
MARKED = re.compile(r"<!-- part: (?P<part>[\w-]+) -->\n(?P<text>.*?)<!-- end of part: (?P=part) -->\n", re.DOTALL)
FACT = re.compile(r"^\| (\w+) \| (.*) \|$", re.MULTILINE)
# The rows of a section's first table, in this order; the summary shows those that are in COLUMNS.
FACTS = ("result", "tests", "minutes", "date", "commit", "machine", "python", "command")
COLUMNS = ("result", "tests", "minutes", "date", "commit")


@dataclass(frozen=True)
class Section:
    """What one run of a part has to say. `facts` are those of FACTS; `body` is Markdown."""

    part: str
    title: str
    facts: dict[str, str]
    body: str = ""

    def __str__(self) -> str:
        rows = [f"| {name} | {one_line(self.facts.get(name, ''))} |" for name in FACTS]
        parts = [f"## {self.part}: {one_line(self.title)}", "\n".join(["| | |", "|---|---|", *rows])]
        parts += [self.body.strip()] if self.body.strip() else []
        return f"<!-- part: {self.part} -->\n" + "\n\n".join(parts) + f"\n<!-- end of part: {self.part} -->\n"


@dataclass
class Page:
    """The sections of the page as they are written there, by part."""

    sections: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Page:
        """The page at `path`, or an empty one where there is no file."""
        text = path.read_text() if path.exists() else ""
        return cls({found["part"]: found[0] for found in MARKED.finditer(text)})

    def put(self, section: Section) -> None:
        """Sets the section of one part; the others stay as they are."""
        self.sections[section.part] = str(section)

    def text(self, order: Sequence[str]) -> str:
        """The whole page: parts in this order, then those that `order` does not know."""
        names = [*order, *sorted(self.sections.keys() - set(order))]
        lines = ["| part | " + " | ".join(COLUMNS) + " |", "|---" * (len(COLUMNS) + 1) + "|"]
        for name in names:
            # The facts come first: of rows of the same name, as the body may have some, the first one counts.
            facts = dict(reversed(FACT.findall(self.sections.get(name, ""))))
            cells = (
                [facts.get(column, "") for column in COLUMNS] if facts else ["has not run", *[""] * len(COLUMNS[1:])]
            )
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        written = [self.sections[name] for name in names if name in self.sections]
        return "\n".join([HEAD, "\n".join(lines) + "\n", *written])

    def write(self, path: Path, order: Sequence[str]) -> None:
        """Replaces the file at once, so that whoever ends the process leaves the old page or the new one."""
        beside = path.with_name(path.name + ".part")
        beside.write_text(self.text(order))
        os.replace(beside, path)


def one_line(text: str) -> str:
    """Text as a cell of a table may hold it."""
    return " ".join(text.split()).replace("|", "\\|")


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]
    return "\n".join([*lines, *("| " + " | ".join(map(one_line, row)) + " |" for row in rows)])
