"""The parser of the command line: a word that it does not know is shown with the one that was probably meant."""

from __future__ import annotations

import argparse
import difflib
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NoReturn

from ingot.words import both_of

SHORTEST = 3  # letters by which the beginning of a word tells which is meant
MOST_COMMANDS = 4  # that are named for an option of theirs
_FORMATS = ("--weights", "--activations")
ELSEWHERE = {"--quantize": _FORMATS, "--quantization": _FORMATS, "--quant": _FORMATS, "--dtype": ("--precision",)}


class Parser(argparse.ArgumentParser):
    """A parser whose complaints name the nearest option, command or choice. commands: the parser of each."""

    commands: Mapping[str, argparse.ArgumentParser] = {}

    def none_of(self, unknown: Sequence[str]) -> str:
        """What is wrong with arguments that nothing takes."""
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if not options:  # else what stands beside them are probably their values
            return f"nothing takes {' '.join(unknown)}: {self.prog} --help lists the arguments"
        faults = [f"there is no option {word}{self._in_place_of(word)}" for word in options]
        return f"{'; '.join(faults)} ({self.prog} --help lists them)"

    def _in_place_of(self, word: str) -> str:
        """What was meant by an option that there is not: what other programs call otherwise here, a command that has
        it, or the nearest one."""
        if known := [option for option in ELSEWHERE.get(word, ()) if option in self._option_string_actions]:
            return f": did you mean {' or '.join(known)}?"
        if having := [name for name, command in self.commands.items() if word in command._option_string_actions]:
            more = ", …" if len(having) > MOST_COMMANDS else ""
            return f": use {', '.join(f'ingot {name}' for name in having[:MOST_COMMANDS])}{more} for it"
        return did_you_mean(word, self._option_string_actions)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """As argparse's; an error knows the words."""
        self._words = list(sys.argv[1:] if args is None else args)
        return super().parse_known_args(self._words, namespace)

    def error(self, message: str) -> NoReturn:
        """Ends with 2 and one line: a command's usage takes a screen, and --help has it."""
        if "required" in message and (mistyped := self._mistyped()):  # what is missing may be what it should be
            message = self.none_of(mistyped)
        more = "" if "--help" in message else f" ({self.prog} --help explains it)"
        self.exit(2, f"{self.prog}: error: {message}{more}\n")

    def _mistyped(self) -> list[str]:
        """The words that look like options and begin none."""
        words = self._words[: self._words.index("--")] if "--" in self._words else self._words
        options = [word.partition("=")[0] for word in words if word.startswith("--")]
        return [word for word in options if not any(known.startswith(word) for known in self._option_string_actions)]

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            both = both_of(value) if action.dest == "weights" else None
            near = did_you_mean(str(value), known)
            if both:
                near = f": write --weights {both[0]} --activations {both[1]}"
            raise argparse.ArgumentError(action, f"{value!r:.100} is none of {', '.join(known)}{near}")


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`: did you mean WORD?`, or nothing where none is near."""
    names = list(known)
    begun = [name for name in names if len(word) >= SHORTEST and name.startswith(word)]
    found = begun or difflib.get_close_matches(word, names, 1)
    return f": did you mean {found[0]}?" if found else ""
