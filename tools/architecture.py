"""The list of files in docs/architecture.md, made from the first sentence of each: `python -m tools.architecture`."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "architecture.md"
BEGIN, END = "<!-- files: written by python -m tools.architecture -->\n", "<!-- end of files -->\n"
FOLDERS = {
    "ingot": "*.py",
    "native": "*.[hc]*",
    "attacks": "*.py",
    "benchmarks": "*.*",
    "fuzz": "*.*",
    "tools": "*.py",
}


def first_sentence(path: Path) -> str:
    """What a file says of itself: the start of its docstring, or of its first comment."""
    source = path.read_text()
    if path.suffix == ".py":
        text = ast.get_docstring(ast.parse(source)) or ""
    elif path.suffix == ".md":
        text = source.lstrip("# ")
    else:
        comment = re.match(r"(?:\s*(?://[^\n]*|/\*.*?\*/)\n?)+", source, re.DOTALL)
        lines = re.sub(r"/\*|\*/", "", comment[0] if comment else "").splitlines()
        text = "\n".join(re.sub(r"^\s*(//+|\*)?\s?", "", line) for line in lines).strip()
    if not text and path.with_suffix(".h").exists():
        return f"implements `{path.stem}.h`"
    paragraph = " ".join(text.split("\n\n")[0].split())
    return re.split(r"(?<=[.!?])\s|:$", paragraph, maxsplit=1)[0].rstrip(".:")


def files() -> list[Path]:
    """Every source file that belongs in the list."""
    found = [p for folder, pattern in FOLDERS.items() for p in (ROOT / folder).rglob(pattern) if p.suffix != ".pyc"]
    return sorted(p for p in found if p.is_file() and p.suffix in (".py", ".h", ".cpp", ".c", ".md"))


def listing() -> str:
    """The list in Markdown, one line per file under its folder; empty __init__.py files are left out."""
    lines: list[str] = []
    folder = None
    for path in sorted(files(), key=lambda p: (p.parent, p.name)):
        if path.name == "__init__.py" and not path.read_text().strip():
            continue
        if path.parent != folder:
            folder = path.parent
            lines += ["", f"**{folder.relative_to(ROOT)}/**", ""]
        lines.append(f"- `{path.name}`: {first_sentence(path)}")
    return "\n".join(lines[1:]) + "\n"


def written() -> str:
    """The page as it should be."""
    page = PAGE.read_text()
    head, rest = page.split(BEGIN, 1)
    return head + BEGIN + "\n" + listing() + "\n" + END + rest.split(END, 1)[1]


if __name__ == "__main__":
    PAGE.write_text(written())
