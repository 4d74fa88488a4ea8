"""The chat page in headless Chromium, over an engine that says what it is told to."""

from __future__ import annotations

import http.client
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from ingot.serve import frames
from tests.serve.browser import CHROMIUM, Browser, browser
from tests.serve.in_process import Served, served

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="Chromium is not installed (apt-get install chromium)")
HOSTILE = """# Title

<img src=x onerror="window.hurt = 1"><script>window.hurt = 2</script> and [a link](javascript:window.hurt=3),
[another](https://example.org/x), ![a picture](http://example.org/p.png), [data](data:text/html,x), **bold** `1 < 2`

<div onclick="window.hurt = 4">block</div>

| a | b |
|---|---|
| 1 | <b>2</b> |

```python
x < 1
```
"""


class Model:
    """The engine behind the page: `reply` gives (text, reason, tokens of the prompt, of the answer), or a refusal."""

    def __init__(self) -> None:
        self.asked: list[Any] = []
        self.reply: Callable[[Any], tuple[str, str, int, int] | str] = lambda message: ("word", "stop", 5, 1)

    def __call__(self, message: Any) -> list[frames.FromEngine]:
        if not isinstance(message, frames.Generate):
            return [frames.Ended(message.id)]
        self.asked.append([(role, said) for role, said, _ in message.messages or [("prompt", message.text, None)]])
        found = self.reply(message)
        if isinstance(found, str):
            return [frames.Refused(message.id, found, "refused")]
        text, reason, prompt, count = found
        end = frames.End(reason, prompt, 0, count, 0.0, 0.0, 0.0, 0.0, 0.0)
        return [frames.Pieces([frames.Piece(message.id, 0, text, count, [], end)])]


@pytest.fixture(scope="module")
def model() -> Model:
    return Model()


@pytest.fixture(scope="module")
def server(model: Model) -> Iterator[Served]:
    with served(model) as found:  # its context: 64 tokens
        yield found


@pytest.fixture(scope="module")
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    with browser(tmp_path_factory.mktemp("chromium")) as found:
        yield found


@pytest.fixture
def page(chromium: Browser, server: Served, model: Model) -> Browser:
    model.asked.clear()
    model.reply = lambda message: ("word", "stop", 5, 1)
    chromium.messages.clear()
    chromium.open(f"http://127.0.0.1:{server.port}/")
    chromium.until("typeof context === 'number' && context === 64 && document.querySelector('.turn') === null")
    return chromium


def say(page: Browser, text: str) -> None:
    """Types it and waits until the answer is there."""
    page.value(f"at('input').value = {json.dumps(text)}, at('form').requestSubmit()")
    page.until("!running && at('turns').querySelector('.turn.user .tools, .turn.fault, .turn.whole .tools') !== null")


def press(page: Browser, label: str) -> None:
    """The last button of that name."""
    buttons = "[...document.querySelectorAll('.tools button')]"
    page.value(f"{buttons}.filter(b => b.textContent === {label!r}).at(-1).click()")
    page.until("!running")


def shown(page: Browser) -> str:
    return str(page.value("at('turns').innerText"))


def test_markdown_is_shown_and_html_stays_text(page: Browser, model: Model) -> None:
    model.reply = lambda message: (HOSTILE, "stop", 5, 9)
    say(page, "hello <img src=x onerror='window.hurt = 5'>")
    said = "document.querySelector('.turn.assistant .said')"
    assert page.value(f"{said}.querySelectorAll('img, script, iframe, b, div').length") == 0
    assert page.value("document.querySelectorAll('.turn.user img').length") == 0
    assert page.value(f"[...{said}.querySelectorAll('a')].map(a => a.href)") == [
        "https://example.org/x", "http://example.org/p.png",
    ]  # fmt: skip
    attributes = f"[...{said}.querySelectorAll('*')].flatMap(one => one.getAttributeNames())"
    assert set(page.value(attributes)) <= {"href", "rel", "target", "title", "tabindex"}
    text = shown(page)
    assert '<img src=x onerror="window.hurt = 1">' in text and "<script>" in text and "<b>2</b>" in text
    assert page.value(f"{said}.querySelector('h3').textContent") == "Title"
    assert page.value(f"{said}.querySelector('strong').textContent") == "bold"
    assert page.value(f"getComputedStyle({said}.querySelector('pre')).fontFamily").endswith("monospace")
    assert page.value(f"{said}.querySelector('pre').textContent") == "x < 1"
    assert page.value("window.hurt") is None
    assert not page.faults()


def test_what_nests_without_end_stays_text(page: Browser, model: Model) -> None:
    model.reply = lambda message: ("> " * 20_000 + "x", "stop", 5, 9)
    say(page, "nest")
    assert page.value("document.querySelector('.turn.assistant .said').textContent.endsWith('x')")


def test_the_oldest_turns_leave_a_full_context(page: Browser, model: Model) -> None:
    model.reply = lambda message: ("word", "stop", 20 * len(message.messages or ()) // 2, 8)
    for text in ("one", "two", "three", "four"):
        say(page, text)
        page.until(f"turns.length && turns.at(-1).asked === {text!r}")
    assert [said for _, said in model.asked[-1]] == ["two", "word", "three", "word", "four"]
    assert "is full: the oldest" in shown(page)
    model.reply = lambda message: "too_long" if len(message.messages or ()) > 1 else ("word", "stop", 5, 1)
    say(page, "five")
    page.until("turns.at(-1).asked === 'five'")
    assert [said for _, said in model.asked[-1]] == ["five"]
    assert page.value("document.querySelectorAll('.turn.fault').length") == 0
    model.reply = lambda message: "too_long"
    page.value("at('clear').click()")
    say(page, "alone")
    assert page.until("document.querySelector('.turn.fault .said').textContent") == "refused"


def test_an_answer_that_was_cut_says_so_and_goes_on(page: Browser, model: Model) -> None:
    model.reply = lambda message: ("a part", "length", 5, 2)
    say(page, "begin")
    assert "Most tokens" in shown(page)
    press(page, "Go on")
    page.until("turns.length === 2")
    assert [said for _, said in model.asked[-1]] == ["begin", "a part", "Go on."]
    model.reply = lambda message: ("the end", "length", 60, 4)
    say(page, "more")
    page.until("turns.length === 3")
    assert "is full: the answer ends here" in shown(page)


def test_regenerate_edit_and_copy(page: Browser, model: Model) -> None:
    say(page, "first")
    page.until("turns.length === 1")
    model.reply = lambda message: ("another", "stop", 5, 1)
    press(page, "Regenerate")
    page.until("turns.length === 1 && turns[0].said === 'another'")
    assert model.asked[0] == model.asked[1] == [("user", "first")]
    assert page.value("document.querySelectorAll('.turn').length") == 2
    page.value("navigator.clipboard.writeText = (text) => { window.copied = text; return Promise.resolve(); }")
    press(page, "Copy")
    assert page.until("window.copied") == "another"
    press(page, "Edit")
    assert page.value("[at('input').value, turns.length, document.querySelectorAll('.turn').length]") == ["first", 0, 0]


def test_a_model_that_was_not_trained_to_chat_writes_in_one_width(page: Browser, model: Model) -> None:
    model.reply = lambda message: ("def f(x):\n    return x*y*z", "stop", 5, 4)
    page.value("plain = true")
    say(page, "code")
    said = "document.querySelector('.turn.assistant .said')"
    assert page.value(f"{said}.textContent") == "def f(x):\n    return x*y*z"
    assert page.value(f"getComputedStyle({said}).fontFamily").endswith("monospace")
    assert page.value(f"getComputedStyle({said}).whiteSpace").startswith("pre")
    page.value("at('mode').value = 'completion'")
    say(page, "import")
    assert model.asked[-1] == [("prompt", "import")]


def test_the_table_of_running_requests(chromium: Browser) -> None:
    def says(message: Any) -> list[frames.FromEngine]:
        return [frames.Pieces([frames.Piece(message.id, 0, "word", 3, [], None)])]

    with served(says) as other:
        asking = http.client.HTTPConnection("127.0.0.1", other.port)
        body = json.dumps({"model": "m", "prompt": "a secret", "stream": True})
        asking.request("POST", "/v1/completions", body, {"Content-Type": "application/json", "Host": "localhost"})
        first = asking.getresponse()
        chromium.open(f"http://127.0.0.1:{other.port}/status")
        rows = "[...document.querySelectorAll('#rows tr')].map(row => [...row.cells].map(cell => cell.textContent))"
        (row,) = chromium.until(f"document.querySelectorAll('#rows tr').length && {rows}")
        assert row[0].startswith("cmpl-") and (row[1], row[3], row[4]) == ("/v1/completions", "1", "3")
        assert float(row[5]) > 0 and "secret" not in chromium.value("document.body.innerText")
        first.close()
        asking.close()
        chromium.until("document.querySelectorAll('#rows tr').length === 0 && !document.getElementById('empty').hidden")
    assert Path(chromium.value("location.pathname")).name == "status"
