"""`ingot chat` as its users meet it: lines from a pipe, and a keyboard behind a pseudo-terminal."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

import ingot
from ingot.cli.chat import harmless
from ingot.errors import RequestError, TooLongError, UserError
from ingot.llm.conversation import Conversation
from ingot.text.plain_template import PLAIN_STOP, PLAIN_TEMPLATE
from tests import kept
from tests.cli.command import ENVIRONMENT as OURS
from tests.cli.command import ingot as command
from tests.cli.command import process
from tests.kept import PICO
from tests.tuned import tuned

ENVIRONMENT = OURS | {"TERM": "dumb", "INPUTRC": "/dev/null", "PYTHONUTF8": "1"}
TEMPLATE = "{% for m in messages %}#{{ m.role }}:{{ m.content }}\n\n{% endfor %}#assistant:"


@pytest.fixture(scope="module")
def engine() -> Path:
    return kept.pico()


@pytest.fixture(scope="module")
def talkative() -> Path:
    """A model that is still answering whenever Ctrl-C comes."""
    return kept.endless()


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "chat.jinja"
    path.write_text(TEMPLATE)
    return path


def piped(
    lines: Sequence[str] | bytes, engine: Path, template: Path | None, *words: object, code: int = 0, run: Any = command
) -> tuple[str, str]:
    """Standard output and error of a chat whose input is a pipe."""
    told = () if template is None else ("--chat-template", template)
    data = lines if isinstance(lines, bytes) else "".join(f"{line}\n" for line in lines).encode()
    done = run("chat", engine, *told, "--threads", 1, *words, stdin=data, code=code)
    return done.stdout, done.stderr


def as_json(lines: Sequence[str], engine: Path, template: Path, *words: object) -> dict[str, Any]:
    output, _ = piped(lines, engine, template, *words, "--json")
    assert len(output.splitlines()) == 1
    found = json.loads(output)
    assert found.pop("schema") == 1
    return dict(found)


# ------------------------------------------------------------------------------------------------------------- pipes


def test_a_line_is_a_turn_and_history_is_in_the_context(engine: Path, template: Path) -> None:
    lines = ["def f(x):", "class A:", "import os"]
    words = ("--max-tokens", 12, "--system", "write Python")
    found = as_json(lines, engine, template, *words)
    messages: list[dict[str, str]] = [{"role": "system", "content": "write Python"}]
    with ingot.LLM(engine, threads=1, chat_template=TEMPLATE) as llm:
        for line, answer in zip(lines, found["answers"], strict=True):
            messages.append({"role": "user", "content": line})
            expected = llm.chat(messages, max_tokens=12)
            assert isinstance(expected, ingot.Completion)
            assert answer["token_ids"] == expected.token_ids and answer["text"] == expected.text
            messages.append({"role": "assistant", "content": expected.text})
    assert found["messages"] == messages
    assert found["dropped_turns"] == 0 and set(found["seconds"]) == {"load", "total"}
    assert found["answers"][0]["cached_tokens"] == 0
    last = found["answers"][-1]
    assert 0 < last["prompt_tokens"] - last["cached_tokens"] < last["prompt_tokens"] / 2, "turns before it are cached"
    output, errors = piped(lines, engine, template, *words, "--quiet", run=process)
    ends = [a["text"] if a["text"].endswith("\n") else a["text"] + "\n" for a in found["answers"]]
    assert output == "".join(ends) and errors == ""


def test_a_model_without_a_template_says_which_one_to_take(engine: Path) -> None:
    _, errors = piped(["hello"], engine, None, code=2)
    assert "--chat-template plain" in errors and "--chat-template FILE" in errors
    found, _ = piped(["import os"], engine, None, "--chat-template", "plain", "--max-tokens", 8)
    assert found.strip()


def test_the_built_in_template_in_python(engine: Path) -> None:
    """By the same word; what has no mark of a template, such as a file's name, was rendered as one without a word."""
    turns = [{"role": "user", "content": "def main("}]
    with (
        ingot.LLM(PICO, chat_template="plain", threads=1) as plain,
        ingot.LLM(PICO, chat_template=PLAIN_TEMPLATE, threads=1) as written,
    ):
        for words in ({}, {"stop": "\n\n"}, {"stop": ["\n\n"]}):
            stop = ["\n\n", *PLAIN_STOP] if words else list(PLAIN_STOP)
            found, wanted = plain.chat(turns, max_tokens=24, **words), written.chat(turns, max_tokens=24, stop=stop)
            assert isinstance(found, ingot.Completion) and isinstance(wanted, ingot.Completion)
            assert found.token_ids == wanted.token_ids
            given = plain.chat(turns, ingot.SamplingParams(max_tokens=24, **words))
            assert isinstance(given, ingot.Completion) and given.token_ids == wanted.token_ids
    with pytest.raises(UserError, match=r"'chatml\.jinja' has none of Jinja's marks: of a file give what it holds"):
        ingot.LLM(PICO, chat_template="chatml.jinja")
    with pytest.raises(UserError, match="none of Jinja's marks"):
        ingot.LLM(PICO, chat_template=Path("chatml.jinja"))  # type: ignore[arg-type]


def test_verbose_tells_speed_and_cached_tokens(engine: Path, template: Path) -> None:
    _, errors = piped(["def f(x):", "class A:"], engine, template, "--max-tokens", 24, "--verbose")
    shown = re.findall(
        r"\[(\d+) tokens before the answer, (\d+) of them cached; 24 in it \(length\), [\d.,]+ a", errors
    )
    assert len(shown) == 2 and int(shown[1][1]) >= 16


def test_commands(engine: Path, template: Path, tmp_path: Path) -> None:
    file = tmp_path / "talk.json"
    lines = [
        "/system be brief", "one", f"/save {file}", "/reset", "/set temperature 0.9", "/set seed 3", "/set", "",
        "//two", f"/save {file}", "/help", "/exit", "never said",
    ]  # fmt: skip
    output, errors = piped(lines, engine, template, "--max-tokens", 4, "--json")
    found = json.loads(output)
    assert [m["content"] for m in found["messages"][:2]] == ["be brief", "/two"] and len(found["messages"]) == 3
    assert len(found["answers"]) == 2
    assert json.loads(file.read_text()) == {"messages": found["messages"]}, "the file it wrote is written again"
    assert "temperature 0.9" in errors and "seed 3" in errors and "/reset  " in errors and "system: be brief" in errors
    drawn = as_json(["//two"], engine, template, "--system", "be brief", "--max-tokens", 4,
                    "--temperature", 0.9, "--seed", 3)  # fmt: skip
    assert drawn["answers"][0]["token_ids"] == found["answers"][1]["token_ids"], "/set does what the options do"


def test_a_full_context_drops_the_oldest_turns_and_says_so(engine: Path, template: Path) -> None:
    lines = [f"message {i} " + "x = 1 " * 4 for i in range(8)]
    words = ("--context", 128, "--max-tokens", 16, "--system", "S", "--ignore-end")
    output, errors = piped(lines, engine, template, *words, "--json")
    found = json.loads(output)
    assert found["dropped_turns"] > 1 and "the context of 128 tokens is full: the oldest 1 turn(s)" in errors
    kept = [m["content"] for m in found["messages"]]
    assert kept[0] == "S" and kept[-2] == lines[-1].strip() and lines[0].strip() not in kept
    assert len(kept) == 1 + 2 * (len(lines) - found["dropped_turns"])
    assert all(a["prompt_tokens"] + 16 <= 128 and a["completion_tokens"] == 16 for a in found["answers"])
    _, errors = piped(["x"], engine, template, "--context", 32, "--ignore-end")
    assert "the context of 32 tokens is full: the answer ends here" in errors


def test_an_adapter_is_merged(template: Path, tmp_path: Path) -> None:
    words = ("--max-tokens", 12, "--lora", tuned(tmp_path), "--lora-scale", 0.5)
    found = as_json(["def main("], PICO, template, *words)
    with ingot.LLM(PICO, chat_template=TEMPLATE, lora=tmp_path / "tuned", lora_scale=0.5) as llm:
        wanted = llm.chat([{"role": "user", "content": "def main("}], max_tokens=12)
    assert isinstance(wanted, ingot.Completion) and found["answers"][0]["token_ids"] == wanted.token_ids
    plain = as_json(["def main("], PICO, template, "--max-tokens", 12)
    assert plain["answers"][0]["token_ids"] != wanted.token_ids


def test_the_built_in_template_ends_an_answer_before_the_next_turn() -> None:
    found = as_json(["def main("], PICO, Path("plain"), "--max-tokens", 24, "--stop", "\n\n")
    with ingot.LLM(PICO, chat_template=PLAIN_TEMPLATE) as llm:
        wanted = llm.chat(
            [{"role": "user", "content": "def main("}], max_tokens=24, stop=["\n\n", *PLAIN_STOP]
        )
    assert isinstance(wanted, ingot.Completion) and found["answers"][0]["token_ids"] == wanted.token_ids


def test_mistakes_are_2(engine: Path, template: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.jinja"
    bad.write_text("{% if %}")
    (tmp_path / "there").write_text("precious")
    cases: list[tuple[Sequence[str] | bytes, Path | None, tuple[object, ...], str]] = [
        (["x"], None, (), "without a chat template"),
        (["x"], bad, (), "cannot be read"),
        (["x"], tmp_path / "none.jinja", (), "none.jinja"),
        (["x"], Path("-"), (), "takes a file"),
        (["x"], template, ("--temperature", "-1"), "temperature"),
        (["/nope"], template, (), "is no command"),
        (["/set", "/set top_p 2"], template, (), "top_p"),
        (["/set top_p high"], template, (), "no number"),
        (["/set colour 2"], template, (), "it takes"),
        (["/save"], template, (), "name the file"),
        ([f"/save {tmp_path / 'there'}"], template, (), "exists already"),
        ([f"/save {tmp_path / 'no' / 'there'}"], template, (), "cannot be written"),
        (["x = 1 " * 100], template, ("--context", "64"), "shorten it"),
        (b"def f\n\xff\xfe\n", template, ("--max-tokens", "2"), "line 2 is not UTF-8"),
    ]
    for lines, file, words, match in cases:
        assert match in piped(lines, engine, file, *words, code=2)[1], match
    assert (tmp_path / "there").read_text() == "precious"


# ---------------------------------------------------------------------------------------------------------- keyboard


class Terminal:
    """A chat at a pseudo-terminal."""

    def __init__(self, home: Path, *words: object) -> None:
        self.master, slave = pty.openpty()
        command = [sys.executable, "-m", "ingot", "chat", *map(str, words)]
        environment = ENVIRONMENT | {"XDG_STATE_HOME": str(home)}
        self.process = subprocess.Popen(
            command, stdin=slave, stdout=slave, stderr=slave, env=environment, start_new_session=True,
            preexec_fn=_take_terminal,
        )  # fmt: skip
        os.close(slave)
        self.text = ""

    def read(self, pattern: str, seconds: float = 60) -> str:
        """Everything shown until the pattern is; what comes later is kept for the next call."""
        end = time.monotonic() + seconds
        while not (found := re.search(pattern, self.text)):
            assert time.monotonic() < end, f"no {pattern!r} in {self.text!r}"
            if select.select([self.master], [], [], 0.2)[0]:
                try:
                    data = os.read(self.master, 4096)
                except OSError:  # Linux says so when the other side is closed
                    data = b""
                assert data, f"no {pattern!r} before the end of {self.text!r}"
                self.text += data.decode(errors="replace")
        shown, self.text = self.text[: found.end()], self.text[found.end() :]
        return shown

    def type(self, text: str) -> None:
        os.write(self.master, text.encode())

    def press(self, key: str) -> None:
        """A control key at the prompt, once the process waits there. Between the prompt and the waiting a signal would
        be seen at the next key only, and the end of the input would be the line discipline's."""
        waits = 0
        while waits < 4:
            status = Path(f"/proc/{self.process.pid}/stat").read_text()
            waits = waits + 1 if status.rpartition(")")[2].split()[0] == "S" else 0
            time.sleep(0.05)
        self.type(key)

    def end(self) -> int:
        """The exit code."""
        while True:
            try:
                if not os.read(self.master, 4096):
                    break
            except OSError:
                break
        code = self.process.wait(60)
        os.close(self.master)
        return code


def _take_terminal() -> None:
    """The session's leader opens it, so that Ctrl-C typed there reaches the process as a signal."""
    os.close(os.open(os.ttyname(0), os.O_RDWR))


@pytest.fixture
def started(engine: Path, template: Path, tmp_path: Path) -> Iterator[Any]:
    running: list[Terminal] = []

    def start(*words: object, source: Path = engine) -> Terminal:
        told = (source, "--chat-template", template, "--threads", 1)
        running.append(Terminal(tmp_path, *told, *words))
        running[-1].read(r"or Ctrl-D ends\r?\n> ")
        return running[-1]

    yield start
    for terminal in running:
        if terminal.process.poll() is None:
            os.kill(terminal.process.pid, signal.SIGKILL)
            terminal.process.wait()


LONG = ("--ignore-end", "--context", 1 << 16)


def test_ctrl_c_stops_the_answer_and_not_the_program(started: Any, talkative: Path) -> None:
    terminal = started(*LONG, "--verbose", source=talkative)
    terminal.type("def f(x):\n")
    terminal.read(r"def f\(x\):\r?\n")
    terminal.read(r"\w+")  # of the answer
    terminal.type("\x03")
    terminal.read(r"stopped: what has come of it stays")
    terminal.read(r"\(abort\).*?\n> ")
    terminal.type("/set max_tokens 5\n")
    terminal.read(r"max_tokens 5")
    terminal.type("class A:\n")
    terminal.read(r"5 in it \(length\)")
    terminal.read("> ")
    terminal.press("\x03")
    terminal.read("Ctrl-C once more")
    terminal.type("/system\n")  # whoever types on does not want to leave
    terminal.read("system: nothing")
    terminal.read("> ")
    terminal.press("\x03")
    terminal.read(r"Ctrl-C once more.*\n> ")
    terminal.press("\x03")
    assert terminal.end() == 130


def test_a_second_ctrl_c_after_an_answer_leaves(started: Any, talkative: Path) -> None:
    terminal = started(*LONG, source=talkative)
    terminal.type("def f(x):\n")
    terminal.read(r"def f\(x\):\r?\n")
    terminal.read(r"\w+")
    terminal.type("\x03")
    terminal.read(r"stopped: .*\n> ")
    terminal.press("\x03")
    assert terminal.end() == 130


def test_ctrl_d_and_exit_and_mistakes_that_end_nothing(started: Any, tmp_path: Path) -> None:
    terminal = started("--max-tokens", 3, "--context", 64)
    for line, answer in (
        ("/nope", "error: /nope is no command"),
        ("x = 1 " * 100, "error: the message takes"),
        ("/set temperature 7000", "error: temperature"),
        ("def f", "cut after 3 tokens: /set max_tokens N allows more"),
    ):
        terminal.type(line + "\n")
        terminal.read(answer)
        terminal.read("\n> ")
    terminal.press("\x04")
    assert terminal.end() == 0
    file = tmp_path / "ingot" / "chat_history"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    kept = file.read_text().splitlines()
    assert kept[0] == "/nope" and kept[-1] == "def f"
    terminal = started("--max-tokens", 3)
    terminal.press("\x10\n")  # the line before, as the arrow key brings it
    terminal.read("def f\r?\n")
    terminal.read("\n> ")
    terminal.type("/bye\n")
    assert terminal.end() == 0
    terminal = started("--max-tokens", 3, "--no-history", "--json")
    terminal.type("secret\n")
    terminal.read("> ")
    terminal.press("\x04")
    terminal.read(r'\{"schema": 1, "messages": \[\{"role": "user", "content": "secret"')
    assert terminal.end() == 0
    assert "secret" not in file.read_text()


# ------------------------------------------------------------------------------------------------------------- parts


class Counting:
    """A model whose every character is a token."""

    context_length = 40

    def chat_prompt(self, messages: Sequence[Mapping[str, Any]]) -> list[int]:
        if any(m["content"] == "refuse" for m in messages):
            raise RequestError("refused")
        if sum(len(m["content"]) for m in messages) > 60:
            raise TooLongError("far too long to count tokens")
        return [0] * sum(len(m["content"]) for m in messages)


def test_a_conversation_keeps_what_fits() -> None:
    talk = Conversation(Counting(), "sys")
    for text in ("a" * 10, "b" * 10):
        assert talk.begin(text, 5)
        talk.finish(text.upper()[:2])
    assert talk.dropped == 0
    assert len(talk.begin("c" * 10, 5)) == 3 + 12 + 12 + 10 - 12 and talk.dropped == 1  # 37 + 5 is above 40
    talk.withdraw()
    assert talk.turns == [("b" * 10, "BB")]
    for text, error in (("d" * 37, TooLongError), ("f" * 99, TooLongError), ("refuse", RequestError)):
        with pytest.raises(error):
            talk.begin(text, 5)
        assert talk.turns == [("b" * 10, "BB")] and talk.dropped == 1, "an error changes nothing"
        assert [m["role"] for m in talk.messages()] == ["system", "user", "assistant"]
    assert len(talk.begin("e" * 36, 5)) == 39 and talk.turns == [], "room for less of an answer than was asked"
    talk.finish("E" * 30)
    assert len(talk.begin("g" * 30, 5)) == 33 and talk.turns == [], "99 characters are not counted at all"
    talk.finish("G")
    talk.reset()
    assert talk.messages() == [{"role": "system", "content": "sys"}]


def test_a_terminal_obeys_no_answer() -> None:
    assert harmless("a\x1b[2J\tb\n\r\x9bé😀") == "a\\x1b[2J\tb\n\\r\\x9bé😀"
