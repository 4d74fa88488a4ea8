"""A conversation as token ids, in which the template alone can write special tokens.

What somebody says may hold the text of a special token, `<|im_start|>system` for instance, and a template writes it
into the prompt as it is. Read there as the token it would be a turn that nobody took. So a character stands in for each
such text while the template is rendered, and special tokens found afterwards are the template's. The whole is encoded
by a twin of the tokenizer whose special tokens have names that nobody can write. To it the texts of the usual ones are
text. A conversation that holds none is encoded by the tokenizer itself, as transformers has it.
"""

from __future__ import annotations

import json
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ingot.errors import CheckpointError, RequestError, UserError
from ingot.text import tokenizer_file
from ingot.text.chat_template import ChatTemplate, from_files
from ingot.text.messages import check_messages
from ingot.text.tokenizer import Tokenizer

# Characters that mean nothing: of the names of special tokens in the twin, and to stand in for texts.
_NAMES, _STAND_INS = 0xF0000, range(0x100000, 0x10FFFE)


class Written(NamedTuple):
    """A rendered conversation, and the characters in it that stand for special tokens (None: nobody said any)."""

    text: str
    given: dict[str, str] | None


class ChatPrompt:
    """What a model with a template is given of a conversation. Safe from several threads.

    Args:
        template: the model's.
        tokenizer: the model's.
        data: gives the bytes of its tokenizer.json.
        tokens: how many the model reads.
    """

    def __init__(self, template: ChatTemplate, tokenizer: Tokenizer, data: Callable[[], bytes], tokens: int) -> None:
        self._template, self._tokenizer, self._data, self._tokens = template, tokenizer, data, tokens
        self._twin: _Twin | None = None
        self._lock = threading.Lock()

    @property
    def words(self) -> frozenset[str]:
        """What the template quotes; the roles that it treats apart are among them."""
        return self._template.words

    def encode(self, messages: Any, **variables: Any) -> list[int]:
        """The token ids up to where the model's answer begins.

        Raises RequestError for what is no conversation, or one that the template refuses, TooLongError for one whose
        text is far too long for the model.
        """
        return self.tokens(self.write(messages, **variables))

    def write(self, messages: Any, **variables: Any) -> Written:
        """The first half of `encode`, which waits for the template's process. Raises all that `encode` raises, but for
        a character that is a special token only."""
        checked = check_messages(messages, self.words)
        specials = self._tokenizer.specials
        said = "\0".join(_texts(checked))
        if not any(special.text in said or special.normalized for special in specials):
            return Written(self._rendered(checked, variables), None)
        pattern = re.compile("|".join(re.escape(special.text) for special in _longest_first(specials)))
        taken = set(said)
        free = (c for c in map(chr, _STAND_INS) if c not in taken)
        given = {text: next(free, "") for text in dict.fromkeys(pattern.findall(said))}
        if "" in given.values():
            raise RequestError("the messages hold every private character of Unicode's last plane: leave some out")
        hidden = _changed(checked, lambda text: pattern.sub(lambda one: given[one[0]], text))
        return Written(self._rendered(hidden, variables), given)

    def tokens(self, written: Written) -> list[int]:
        """The second half of `encode`."""
        if written.given is None:
            return self._tokenizer.encode_plain(written.text)
        return self._disarmed().encode(written.text, written.given)

    def _rendered(self, messages: Sequence[Mapping[str, Any]], variables: Mapping[str, Any]) -> str:
        text = self._template.render(messages, **variables)
        self._tokenizer.check_length(text, self._tokens)
        return text

    def _disarmed(self) -> _Twin:
        with self._lock:
            if self._twin is None:
                self._twin = _Twin(self._tokenizer, self._data())
            return self._twin


def open_chat(
    files: Callable[[], Mapping[str, bytes]], given: str | None, tokenizer: Callable[[], Tokenizer], tokens: int
) -> ChatPrompt:
    """The ChatPrompt of a model.

    Args:
        files: gives the files that came with it.
        given: a template in place of its own.
        tokens: how many the model reads.

    Raises UserError for a model without a template, CheckpointError for one that cannot be read.
    """
    template = from_files(files(), given)
    if template is None:
        raise UserError(
            "this model came without a chat template: it completes texts (generate); to chat with it, give a template: "
            "--chat-template plain, a built-in one, or --chat-template FILE (in Python chat_template='plain', or text)"
        )
    return ChatPrompt(template, tokenizer(), lambda: files()["tokenizer.json"], tokens)


class _Twin:
    """A tokenizer that gives the ids of special tokens to names of its own."""

    def __init__(self, tokenizer: Tokenizer, data: bytes) -> None:
        nonce = secrets.token_hex(16)
        specials = _longest_first(tokenizer.specials)
        self._names = {s.text: f"{chr(_NAMES)}{nonce}-{i}{chr(_NAMES + 1)}" for i, s in enumerate(specials)}
        alone = {True: r"(?<!\w){}(?!\w)", False: "{}"}
        self._pattern = re.compile("|".join(alone[s.single_word].format(re.escape(s.text)) for s in specials))
        try:
            self._tokenizer = Tokenizer(_renamed(tokenizer_file.read(data), self._names), vocab_size=tokenizer.limit)
        except CheckpointError as e:
            raise RequestError(f"the messages hold the text of a special token, which cannot be text: {e}") from None

    def encode(self, text: str, given: Mapping[str, str]) -> list[int]:
        """The ids of a rendered conversation; `given`: the characters in it that stand for texts."""
        for one in given:
            if not self._tokenizer.encode_plain(one):  # a single character that the vocabulary has for the token only
                raise RequestError(f"the messages hold {one[:40]!r}, which this model knows as a special token only")
        own = self._pattern.sub(lambda one: self._names[one[0]], text)
        return self._tokenizer.encode_plain(own.translate({ord(c): text for text, c in given.items()}))


def _longest_first(specials: Sequence[Any]) -> list[Any]:
    """Where several begin at one place the longest counts, as the tokenizers library has it."""
    return sorted(specials, key=lambda special: (-len(special.text), special.text))


def _renamed(content: dict[str, Any], names: Mapping[str, str]) -> bytes:
    """tokenizer.json with other names for the special tokens, wherever the old ones could come from text."""
    for token in content["added_tokens"]:
        if token.get("special"):
            token["content"] = names[token["content"]]
    model = content["model"]
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(text, text): id for text, id in vocabulary.items()}
    else:
        model["vocab"] = [[names.get(text, text), score] for text, score in vocabulary]
    if isinstance(model.get("merges"), list):
        pairs = [pair.split(" ", 1) if isinstance(pair, str) else pair for pair in model["merges"]]
        model["merges"] = [pair for pair in pairs if not {*pair, "".join(pair)} & names.keys()]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    content["post_processor"] = None  # what it puts around texts has the old names, and the template does that
    return json.dumps(content).encode()


def _texts(value: Any) -> list[str]:
    """All texts inside messages, names of fields left out."""
    if isinstance(value, str):
        return [value]
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return [text for one in inner for text in _texts(one)]


def _changed(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {name: _changed(one, change) for name, one in value.items()}
    return [_changed(one, change) for one in value] if isinstance(value, list | tuple) else value
