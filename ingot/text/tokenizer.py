"""Text to tokens and back, in pieces: a stream of text never splits a character and never differs from the whole.

The tokenizers library reads tokenizer.json from memory; nothing here touches files or the network.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from time import thread_time
from typing import Any

import tokenizers

from ingot.errors import CheckpointError, RequestError, TooLongError
from ingot.text import split_pattern, tokenizer_file

# Characters beyond which a text is encoded as a batch of one, for which the library lets other threads go on.
LONG_TEXT = 2_000
# Of a text that is tokenised, for each token that it may have; the vocabulary's longest one where that has more. A text
# beyond this is refused before its tokens cost time and memory.
TOKEN_CHARACTERS = 128
REPLACEMENT = "\ufffd"  # what undecodable bytes become, those of an unfinished character included


# Runs of these, of the characters in a pattern and of what it repeats, are encoded once when it has repetitions in a
# row: one that backtracks far shows it there.
PROBES = ("a", "A", "0", " ", "\n", "!", "\u4e2d", "\u0301", "a ", "aA0!")
PROBE_CHARACTERS = 64  # of the pattern, at most
PROBE_SAMPLES = 64  # of what the patterns repeat, at most
PROBE_PATTERN = 2_000  # characters of the patterns at the end of a probe
PROBE_LENGTHS = (64, 128, 256, 512, 1024)
PROBE_SECONDS = 0.25  # for one of them; usual patterns take a thousandth of that


@dataclass(frozen=True)
class Special:
    """A token that stands for no text: how it is written, and how the library looks for it in a text."""

    text: str
    single_word: bool
    normalized: bool


class Tokenizer:
    """One model's tokenizer. Safe from several threads.

    Args:
        data: the bytes of tokenizer.json.
        bos_token_id, add_bos: the beginning token, and whether the model's configuration wants it before every
            prompt. It is prepended when that is so or the tokenizer's own post-processor says so, and never twice.
        vocab_size: how many tokens the model has; default, as many as the tokenizer.

    Raises CheckpointError for a file that cannot be read, or had better not be used (see `tokenizer_file`).
    """

    def __init__(
        self, data: bytes, bos_token_id: int | None = None, add_bos: bool = False, vocab_size: int | None = None
    ) -> None:
        content = tokenizer_file.read(data)
        patterns = tokenizer_file.check(content, vocab_size)
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(data)
        except BaseException as e:  # the library has no error type of its own, and panics are no Exception
            if not isinstance(e, Exception) and not _panic(e):
                raise
            raise CheckpointError(f"tokenizer.json cannot be read: {str(e)[:300]}") from None
        self._check_added(content)
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.limit = vocab_size
        self._token_characters = max(TOKEN_CHARACTERS, tokenizer_file.longest(content))
        if patterns:
            repeated = dict.fromkeys(text for pattern in patterns for text in split_pattern.samples(pattern))
            self._probe("".join(patterns)[:PROBE_PATTERN], list(repeated)[:PROBE_SAMPLES])
        self._bos: list[int] = []
        if add_bos and bos_token_id is not None and self._encoded("", True)[:1] != [bos_token_id]:
            self._bos = [bos_token_id]
        self._byte_tokens = self._find_byte_tokens(content)
        added = {id: token for id, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}
        self._special = frozenset(added)
        self.specials = [Special(token.content, token.single_word, token.normalized) for token in added.values()]

    def _check_added(self, content: dict[str, Any]) -> None:
        """The library numbers added tokens on from the vocabulary, whatever the file says."""
        for token in content.get("added_tokens") or ():
            found = self._tokenizer.token_to_id(token["content"])
            if found != token["id"]:
                raise CheckpointError(
                    f"tokenizer.json cannot be used: it gives {token['content'][:40]!r} the id {token['id']}, and in "
                    f"the order of the file that would be {found}"
                )

    def _probe(self, pattern: str, repeated: list[str]) -> None:
        """Raises CheckpointError when short texts take long: longer ones would take for ever."""
        characters = "".join(sorted(set(pattern)))[:PROBE_CHARACTERS]
        for text in dict.fromkeys((*PROBES, *characters, *repeated)):
            for length in PROBE_LENGTHS:
                # What a pattern asks for at its end is there, out of reach: else a matcher need not even begin.
                run = text * (length // len(text)) + "\x01" + characters + pattern
                begin = thread_time()  # a process that is stopped meanwhile is not slow
                try:
                    self._encoded(run, False)
                    slow = thread_time() - begin > PROBE_SECONDS
                except RequestError:
                    slow = True
                if slow:
                    raise CheckpointError(
                        f"tokenizer.json cannot be used: its pattern takes too long for {length} times {text[:1]!r}"
                    )

    def _find_byte_tokens(self, content: dict[str, Any]) -> frozenset[int]:
        """Ids of the tokens `<0x00>` … `<0xFF>` when the decoder joins runs of them to characters."""
        if "ByteFallback" not in json.dumps(content.get("decoder")):
            return frozenset()
        found = (self._tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(id for id in found if id is not None)

    @property
    def size(self) -> int:
        """One more than the largest id that `encode` can give."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def check_length(self, text: str, tokens: int) -> None:
        """Raises TooLongError for a text so long that nobody needs to count its tokens to see that it has too many.

        Args:
            tokens: how many there may be.
        """
        most = tokens * self._token_characters
        if len(text) > most:
            raise TooLongError(
                f"the text has {len(text):,} characters, and {tokens:,} tokens hold {most:,} at most: shorten it"
            )

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt, the beginning token included where the model wants one."""
        return self._bos + self._encode(text, True)

    def encode_plain(self, text: str) -> list[int]:
        """The tokens of a text and no others."""
        return self._encode(text, False)

    def _encode(self, text: str, special: bool) -> list[int]:
        ids = self._encoded(text, special)
        if self.limit is not None and ids and max(ids) >= self.limit:
            # A token added after the model was made: files of many fine-tuned models have one that is never used.
            token = self._tokenizer.id_to_token(max(ids))
            raise RequestError(
                f"the text holds {token!r}, whose id {max(ids)} the model does not have (0 to {self.limit - 1})"
            )
        return ids

    def _encoded(self, text: str, special: bool) -> list[int]:
        try:
            if len(text) > LONG_TEXT:
                (found,) = self._tokenizer.encode_batch([text], add_special_tokens=special)
            else:
                found = self._tokenizer.encode(text, add_special_tokens=special)
            ids: list[int] = found.ids
        except (UnicodeEncodeError, TypeError):  # what the library says of a lone surrogate is only that it is no text
            raise RequestError("the prompt is not Unicode text: it holds half of a surrogate pair") from None
        except BaseException as e:
            if not isinstance(e, Exception) and not _panic(e):
                raise
            raise RequestError(f"the model's tokenizer gives up on this text: {str(e)[:200]}") from None
        return ids

    def ends_in_bytes(self, ids: Sequence[int]) -> bool:
        """Whether the last token that shows is one of a run of bytes, which reads as characters or as replacements only
        once it is complete."""
        last = next((id for id in reversed(ids) if id not in self._special), None)
        return last in self._byte_tokens

    def decode(self, ids: Sequence[int]) -> str:
        """The text of tokens, special ones left out."""
        text: str = self._tokenizer.decode(ids, skip_special_tokens=True)
        return text


def token_ids(ids: Sequence[int], count: int, what: str) -> list[int]:
    """The ids as a list. Raises RequestError when one is no token's, of `count`; `what` they are, for the message."""
    try:
        if isinstance(ids, bytes | bytearray):
            raise TypeError
        found = [operator.index(i) for i in ids]
    except TypeError:
        raise RequestError(f"{what} is text or a sequence of integers, the token ids") from None
    for i in found:
        if not 0 <= i < count:
            raise RequestError(f"{i} is no token id: the model has 0 to {count - 1}")
    return found


def _panic(error: BaseException) -> bool:
    """Whether the library's native code panicked, which it tells by a class of its own that nobody can import."""
    return type(error).__name__ == "PanicException"


class Detokenizer:
    """Tokens in, text out as soon as it is final; the pieces add up to `tokenizer.decode` of all tokens.

    Each call decodes a window of the last few tokens only. The window begins where an earlier piece began, since what
    a token reads as may depend on whether one stands before it (a leading space, say).
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._given = 0  # leading tokens of the window whose text has been returned
        self._given_text = ""  # what they read as inside the window

    def push(self, ids: Sequence[int]) -> str:
        """The text that became final with these tokens; may be empty."""
        self._window += ids
        if not ids or self._tokenizer.ends_in_bytes(self._window):
            return ""
        text = self._tokenizer.decode(self._window)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._given_text):
            return ""
        new = text[len(self._given_text) :]
        self._window = self._window[self._given :]
        self._given = len(self._window)
        self._given_text = self._tokenizer.decode(self._window)
        return new

    def finish(self) -> str:
        """What is left: the text of a character that was never completed."""
        return self._tokenizer.decode(self._window)[len(self._given_text) :]


class TextStream:
    """A detokenizer that ends at the first stop string, which is held back even when it comes in several tokens.

    Without a tokenizer there is no text.
    """

    def __init__(self, tokenizer: Tokenizer | None, stop: tuple[str, ...] = ()) -> None:
        self._detokenizer = Detokenizer(tokenizer) if tokenizer else None
        self._stop = stop
        self._held = ""  # the end of the text so far, as long as it may be the beginning of a stop string
        self.stopped = False

    def push(self, ids: Sequence[int]) -> str:
        """The text to show after these tokens. With stop strings, pass one token at a time: the first that stops
        counts.
        """
        if self.stopped or not self._detokenizer:
            return ""
        return self._release(self._detokenizer.push(ids))

    def finish(self) -> str:
        """The text left when no more tokens come."""
        if self.stopped or not self._detokenizer:
            return ""
        text = self._release(self._detokenizer.finish())
        held, self._held = self._held, ""
        return text + held

    def _release(self, text: str) -> str:
        if not self._stop or not text:
            return text
        text = self._held + text
        found = [at for at in map(text.find, self._stop) if at >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max(_overlap(text, stop) for stop in self._stop)
        cut = len(text) - keep
        self._held = text[cut:]
        return text[:cut]


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that is a beginning, though not the whole, of `stop`."""
    for length in range(min(len(text), len(stop) - 1), 0, -1):
        if stop.startswith(text[-length:]):
            return length
    return 0
