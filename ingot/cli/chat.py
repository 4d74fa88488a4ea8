"""Talk with a language model, in turns.

examples:
  ingot chat pico.ingot --chat-template plain          a model without a template of its own needs one, this or a file
  ingot chat models/chatty --system "Answer in one sentence." --temperature 0.7 --verbose
  printf 'Hello\\nAnd again?\\n' | ingot chat chatty.ingot --json     a line is a turn; one object at the end

At the terminal: /help lists the commands; Ctrl-C stops the answer, and once more leaves, as Ctrl-D and /exit do. When
the context is full the oldest turns leave it, which is said. The lines typed are kept for the arrow keys in
$XDG_STATE_HOME/ingot/chat_history (~/.local/state without it); --no-history keeps none."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from ingot import _lazy
from ingot.cli import options
from ingot.cli.output import Output, answer, remark, since_start
from ingot.cli.template import add_chat_template, chat_template
from ingot.errors import FileError, IngotError, RequestError, UserError
from ingot.written import write_whole

HISTORY_LINES = 1000
ROOM = 4  # this part of the context is kept free for an answer, as long as there are turns to drop
# What /set takes, and how its text is read.
SETTINGS: dict[str, Callable[[str], Any]] = {
    "max_tokens": int, "temperature": float, "top_k": int, "top_p": float, "min_p": float, "seed": int,
    "repetition_penalty": float, "presence_penalty": float, "frequency_penalty": float,
}  # fmt: skip
HELP = """/help               this list
/reset              begin anew; the system message stays
/system [TEXT]      show the system message, or set it (/system - takes it away)
/set [NAME VALUE]   show the settings, or change one: /set temperature 0.7 (/set seed - draws anew)
/save FILE          write the conversation to a new file, as JSON
/exit               leave, as Ctrl-D, /quit and /bye do
//TEXT              say something that begins with a slash"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of `ingot chat`."""
    options.add_model(parser)
    talk = parser.add_argument_group("conversation")
    talk.add_argument("--system", metavar="TEXT", help="what the model is told before everything else")
    add_chat_template(talk)
    talk.add_argument("--verbose", action="store_true", help="tokens a second and cached tokens after each answer")
    talk.add_argument("--no-history", action="store_true", help="neither read nor keep the lines typed")
    options.add_sampling(parser, "to the end of the context", several=False)


def run(args: argparse.Namespace, out: Output) -> int:
    """Carries out `ingot chat`."""
    words = options.sampling_words(args)
    params = _lazy.load("ingot.llm.sampling:SamplingParams")(**words)  # a mistake shows before the model is loaded
    if params.n != 1:
        raise UserError(f"--n {params.n}: a conversation goes on from one answer; `ingot generate` gives several")
    template, stop = chat_template(args.chat_template)
    words["stop"] = [*words.get("stop", ()), *stop]
    with _lazy.load("ingot.llm.llm:LLM")(
        args.source, **options.model_words(args), max_running=1, chat_template=template
    ) as llm:
        out.left_out(llm.left_out)
        words.setdefault("max_tokens", llm.context_length)
        chat = Chat(args, out, llm, words)
        code = chat.talk()
    out.result(chat.result())
    return code


class Chat:
    """One run of the command: reads lines, carries out commands, shows answers as they come."""

    def __init__(self, args: argparse.Namespace, out: Output, llm: Any, words: dict[str, Any]) -> None:
        self._out, self._llm = out, llm
        self._verbose: bool = args.verbose
        self._params = _lazy.load("ingot.llm.sampling:SamplingParams")(**words)
        self._loaded = since_start()
        self._saved: set[Path] = set()  # files that /save may write again
        self._answers: list[dict[str, Any]] = []
        self._conversation = _lazy.load("ingot.llm.conversation:Conversation")(llm, args.system)
        llm.chat_prompt([{"role": "user", "content": "?"}])  # a model that cannot chat says so at once
        self._at_keyboard = sys.stdin.isatty()
        self._keyboard = Keyboard(out, not args.no_history) if self._at_keyboard else None
        # With --json standard output is the object's.
        self._screen = sys.stderr if out.as_json else sys.stdout
        self._commands: dict[str, Callable[[str], None]] = {
            "/help": self._help, "/reset": self._reset, "/system": self._system, "/set": self._set,
            "/save": self._save,
        }  # fmt: skip

    def talk(self) -> int:
        """Until the end of the input; returns the exit code."""
        if self._keyboard is None:
            for line in piped():
                if not self._take(line):
                    break
            return 0
        self._out.note("/help lists the commands, Ctrl-C stops an answer, /exit or Ctrl-D ends")
        warned = False  # by a Ctrl-C: the next one leaves
        while True:
            try:
                if not self._take(self._keyboard.line()):
                    return 0
                warned = False
            except EOFError:
                return 0
            except Stopped:
                warned = True
            except KeyboardInterrupt:
                if warned:
                    return 130
                warned = True
                self._out.note("\nCtrl-C once more, Ctrl-D or /exit ends")
            except IngotError as e:
                self._out.note(f"error: {e}")
                warned = False

    def result(self) -> dict[str, Any]:
        """The object of --json."""
        return {
            "messages": self._conversation.messages(), "answers": self._answers,
            "dropped_turns": self._conversation.dropped,
            "seconds": {"load": round(self._loaded, 4), "total": round(since_start(), 4)},
        }  # fmt: skip

    def _take(self, line: str) -> bool:
        """One line: a command, or something said. False when it is the last."""
        line = line.strip()
        if not line:
            return True
        if line.startswith("/") and not line.startswith("//"):
            name, _, rest = line.partition(" ")
            if name in ("/exit", "/quit", "/bye"):
                return False
            if name not in self._commands:
                raise UserError(f"{name[:40]} is no command: /help lists them, and //… says it")
            self._commands[name](rest.strip())
            return True
        self._answer(line[1:] if line.startswith("//") else line)
        return True

    def _answer(self, text: str) -> None:
        """Says it and shows the answer. Raises Stopped when the user stopped that."""
        talk, llm = self._conversation, self._llm
        before = talk.dropped
        prompt = talk.begin(text, min(self._params.max_tokens, llm.context_length // ROOM))
        if talk.dropped > before:
            self._out.note(
                f"the context of {llm.context_length:,} tokens is full: the oldest {talk.dropped - before} turn(s) "
                "are no longer in it"
            )
        done, stream, stopped = None, None, False
        try:
            stream = llm.stream(prompt, params=self._params)
            with stream:
                for piece in stream:
                    self._show(piece.text)
        except KeyboardInterrupt:
            stopped = True
            if self._keyboard is None:  # nobody is there to go on
                raise
        finally:
            done = stream.completion if stream is not None else None
            if done is not None and done.text:
                talk.finish(done.text)
            else:
                talk.withdraw()
        if done is not None:
            self._show("" if done.text.endswith("\n") else "\n")
            self._report(done)
        if stopped:
            raise Stopped

    def _show(self, text: str) -> None:
        if self._screen is sys.stderr and self._out.quiet:
            return
        shown = harmless(text) if self._screen.isatty() else text
        if self._screen is sys.stderr:
            remark(shown, end="")
        else:
            answer(shown, end="")

    def _report(self, done: Any) -> None:
        """What there is to say about an answer, and its entry in the object of --json."""
        decoding = done.seconds["total"] - done.seconds["first_token"]
        rate = (done.completion_tokens - 1) / decoding if done.completion_tokens > 1 and decoding > 0 else None
        used, context = done.prompt_tokens + done.completion_tokens, self._llm.context_length
        self._answers.append(
            {
                "text": done.text, "token_ids": done.token_ids, "finish_reason": done.finish_reason,
                "prompt_tokens": done.prompt_tokens, "cached_tokens": done.cached_tokens,
                "completion_tokens": done.completion_tokens,
                "seconds": {name: round(value, 4) for name, value in done.seconds.items()},
            }
        )  # fmt: skip
        if done.finish_reason == "abort":
            kept = "what has come of it stays in the conversation" if done.text else "the message is taken back"
            self._out.note(f"stopped: {kept}; Ctrl-C once more leaves")
        elif done.finish_reason == "length" and used >= context:
            self._out.note(f"the context of {context:,} tokens is full: the answer ends here (/reset begins anew)")
        elif done.finish_reason == "length" and self._at_keyboard:
            self._out.note(f"cut after {done.completion_tokens:,} tokens: /set max_tokens N allows more")
        elif not done.text:
            self._out.note("an empty answer: the message is taken back")
        if self._verbose:
            self._out.note(
                f"[{done.prompt_tokens:,} tokens before the answer, {done.cached_tokens:,} of them cached; "
                f"{done.completion_tokens:,} in it ({done.finish_reason}), "
                + ("" if rate is None else f"{rate:,.1f} a second after the first, ")
                + f"which came after {done.seconds['first_token']:.3f} s; {used:,} of {context:,} used]"
            )

    def _help(self, _: str) -> None:
        self._out.note(HELP)

    def _reset(self, _: str) -> None:
        self._conversation.reset()
        self._out.note("a new conversation")

    def _system(self, text: str) -> None:
        if text:
            self._conversation.system = None if text == "-" else text
        self._out.note(f"system: {self._conversation.system or 'nothing'}")

    def _set(self, text: str) -> None:
        name, _, value = text.partition(" ")
        name, value = name.replace("-", "_"), value.strip()
        if text:
            if name not in SETTINGS:
                raise UserError(f"/set {name[:40]}: it takes {', '.join(SETTINGS)}")
            try:
                chosen = None if name == "seed" and value == "-" else SETTINGS[name](value)
            except ValueError:
                raise RequestError(f"/set {name}: {value[:40]!r} is no number") from None
            self._params = replace(self._params, **{name: chosen})
        shown = asdict(self._params)
        self._out.note("  ".join(f"{key} {shown[key]}" for key in SETTINGS if not text or key == name))

    def _save(self, name: str) -> None:
        if not name:
            raise UserError("/save FILE: name the file")
        path = Path(name).expanduser().absolute()
        text = json.dumps({"messages": self._conversation.messages()}, ensure_ascii=False, indent=1) + "\n"
        try:
            data = text.encode()
            if path not in self._saved:
                path.touch(exist_ok=False)  # the name is taken before anything is written
        except FileExistsError:
            raise FileError(f"{name} exists already: give a new name") from None
        except (OSError, ValueError) as e:
            raise FileError(f"{name} cannot be written: {e}") from None
        try:
            write_whole(path, data)
        except FileError:
            if path not in self._saved:
                path.unlink()
            raise
        self._saved.add(path)
        self._out.note(f"{name}: {len(self._conversation.turns)} turn(s)")


class Stopped(Exception):
    """The user stopped an answer with Ctrl-C."""


class Keyboard:
    """Lines typed at a terminal, edited and remembered by readline."""

    def __init__(self, out: Output, history: bool) -> None:
        self._out = out
        self._readline = _lazy.load("readline")
        self._readline.set_auto_history(True)
        self._readline.set_history_length(HISTORY_LINES)
        self._path = self._open() if history else None

    def line(self) -> str:
        """The next line. Raises EOFError, KeyboardInterrupt, RequestError for what is no text."""
        prompt = "> "
        if self._out.as_json or not sys.stdout.isatty():  # where readline would write the prompt is not ours
            print(prompt, end="", file=sys.stderr, flush=True)
            prompt = ""
        try:
            line = input(prompt)
        except UnicodeDecodeError:
            raise RequestError("this line is not UTF-8 text") from None
        if line.strip() and self._path is not None:
            try:
                self._readline.append_history_file(1, self._path)
            except OSError as e:
                self._forget(e)
        return line

    def _open(self) -> Path | None:
        state = os.environ.get("XDG_STATE_HOME", "")
        path = Path(state if os.path.isabs(state) else "~/.local/state").expanduser() / "ingot" / "chat_history"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            os.close(os.open(path, os.O_RDWR | os.O_CREAT, 0o600))  # what was said is the user's alone
            self._readline.read_history_file(path)
        except (OSError, RuntimeError) as e:  # no home, a full disk, a folder of somebody else's
            self._forget(e)
            return None
        return path

    def _forget(self, e: Exception) -> None:
        self._path = None
        self._out.note(f"the lines typed are not kept: {e}")


def piped() -> Iterator[str]:
    """The lines of standard input. Raises RequestError for one that is not UTF-8."""
    for number, line in enumerate(sys.stdin.buffer, 1):
        try:
            yield line.decode("utf-8")
        except UnicodeDecodeError as e:
            raise RequestError(f"line {number} is not UTF-8 text (byte {e.start})") from None


def harmless(text: str) -> str:
    """What a terminal would obey, shown instead: a model may have been told to write it."""
    return "".join(c if c.isprintable() or c in "\n\t" else c.encode("unicode_escape").decode("ascii") for c in text)
