"""Headless Chromium, told what to do through a pair of pipes (its DevTools protocol), without any package."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

PATIENCE = 60.0
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class Browser:
    """One page."""

    def __init__(self, told: int, says: int) -> None:
        self._told, self._says, self._rest, self._number, self._session = told, says, b"", 0, ""
        self.messages: list[dict[str, Any]] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """What a method gives."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        message |= {"sessionId": self._session} if self._session else {}
        os.write(self._told, json.dumps(message).encode() + b"\0")
        while True:
            found = self._next()
            if found.get("id") == self._number:
                assert "error" not in found, found
                return dict(found["result"])
            self.messages.append(found)

    def _next(self) -> dict[str, Any]:
        deadline = time.monotonic() + PATIENCE
        while b"\0" not in self._rest:
            assert select.select([self._says], [], [], max(0.0, deadline - time.monotonic()))[0], "Chromium is silent"
            data = os.read(self._says, 1 << 16)
            assert data, "Chromium has ended"
            self._rest += data
        first, _, self._rest = self._rest.partition(b"\0")
        return dict(json.loads(first))

    def open(self, url: str) -> None:
        """Goes to a page."""
        self.call("Page.navigate", url=url)

    def value(self, expression: str) -> Any:
        """Of an expression in the page; a promise is waited for."""
        words = {"expression": expression, "awaitPromise": True, "returnByValue": True, "userGesture": True}
        found = self.call("Runtime.evaluate", **words)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def until(self, expression: str) -> Any:
        """Of an expression, once that is something."""
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            if found := self.value(expression):
                return found
            time.sleep(0.02)
        raise AssertionError(f"{expression} did not come about: {self.value('document.body.innerText')}")

    def faults(self) -> list[str]:
        """What the page has thrown, and what its policy has refused."""
        kinds = ("Runtime.exceptionThrown", "Log.entryAdded")
        return [json.dumps(found["params"]) for found in self.messages if found.get("method") in kinds]


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """Chromium with nothing of the user's, its files in `folder`."""
    assert CHROMIUM is not None
    reads, told = os.pipe()
    says, writes = os.pipe()

    def placed() -> None:  # where Chromium looks for them
        kept = os.dup(writes)
        os.dup2(reads, 3)
        os.dup2(kept, 4)

    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank",
    ]  # fmt: skip
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    process = subprocess.Popen(
        command, preexec_fn=placed, close_fds=False, env=environment, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    os.close(reads)
    os.close(writes)
    try:
        yield Browser(told, says)
    finally:
        process.kill()
        process.wait()
        os.close(told)
        os.close(says)
