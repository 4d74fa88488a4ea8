"""The site of docs/: built without a warning, no link leads nowhere, nothing comes from other hosts, samples run."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from tools.conformance.page import table
from tools.conformance.suites import ROOT, Outcome, run_tests


class Page(HTMLParser):
    """What a page links to, what it loads, and its anchors."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        words = {name: value or "" for name, value in attrs}
        self.anchors |= {words[name] for name in ("id", "name") if name in words}
        if "href" in words:
            (self.links if tag == "a" else self.loaded).append(words["href"])
        if "src" in words:
            self.loaded.append(words["src"])


def faults(site: Path) -> list[str]:
    """Links and files of a site that lead nowhere, or that a browser would fetch from elsewhere."""
    pages = {path.resolve(): Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    found = []
    for path, page in pages.items():
        place = path.relative_to(site.resolve())
        found += [f"{place} loads {word}" for word in page.loaded if "//" in word]
        for word in page.links + page.loaded:
            parts = urlsplit(word)
            if parts.scheme or parts.netloc:
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            known = pages.get(to)
            if not to.exists() or (parts.fragment and known and unquote(parts.fragment) not in known.anchors):
                found.append(f"{place} links to {word}")
    return found


def site() -> Outcome:
    """Builds the site in a new folder, checks it, and runs the samples of all pages."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", folder]
        done = subprocess.run(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
        pages = len(list(Path(folder).rglob("*.html")))
        wrong = faults(Path(folder))
    said = [line for line in done.stderr.splitlines() if line]
    outcome = run_tests(["-m", "slow or not slow", "tests/test_docs.py", "tests/test_samples.py"])
    rows = [["pages", str(pages)], ["warnings of Sphinx", str(len(said))], ["links that lead nowhere", str(len(wrong))]]
    outcome.failed = outcome.failed or done.returncode != 0 or bool(wrong) or pages == 0
    shown = "\n".join(f"    {line}" for line in [*said, *wrong][:50])
    outcome.body = "\n\n".join(part for part in (table(["what", "count"], rows), shown, outcome.body) if part)
    return outcome
