"""Text to tokens and back, in pieces: a stream of text never splits a character and never differs from the whole.

The tokenizers library reads tokenizer.json from memory; nothing here touches files or the network.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import tokenizers

from ingot.errors import CheckpointError, RequestError

REPLACEMENT = "\ufffd"  # what undecodable bytes become, those of an unfinished character included


class Tokenizer:
    """One model's tokenizer. Safe from several threads.

    Args:
        data: the bytes of tokenizer.json.
        bos_token_id, add_bos: the beginning token, and whether the model's configuration wants it before every
        prompt. It is
            prepended when that is so or the tokenizer's own post-processor says so, and never twice.
    """

    def __init__(self, data: bytes, bos_token_id: int | None = None, add_bos: bool = False) -> None:
        try:
            self._tokenizer = tokenizers.Tokenizer.from_buffer(data)
        except Exception as e:  # the library has no error type of its own
            raise CheckpointError(f"tokenizer.json cannot be read: {e}") from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self._bos: list[int] = []
        if add_bos and bos_token_id is not None and self._tokenizer.encode("").ids[:1] != [bos_token_id]:
            self._bos = [bos_token_id]
        self._byte_tokens = self._find_byte_tokens(data)
        self._special = {id for id, token in self._tokenizer.get_added_tokens_decoder().items() if token.special}

    def _find_byte_tokens(self, data: bytes) -> frozenset[int]:
        """Ids of the tokens `<0x00>` … `<0xFF>` when the decoder joins runs of them to characters."""
        if b"ByteFallback" not in data or "ByteFallback" not in json.dumps(json.loads(data).get("decoder")):
            return frozenset()
        found = (self._tokenizer.token_to_id(f"<0x{byte:02X}>") for byte in range(256))
        return frozenset(id for id in found if id is not None)

    @property
    def size(self) -> int:
        """One more than the largest id that `encode` can give."""
        return max(self._tokenizer.get_vocab().values(), default=-1) + 1

    def encode(self, text: str) -> list[int]:
        """The tokens of a prompt, the beginning token included where the model wants one."""
        return self._bos + self._encode(text, True)

    def encode_plain(self, text: str) -> list[int]:
        """The tokens of a text and no others."""
        return self._encode(text, False)

    def _encode(self, text: str, special: bool) -> list[int]:
        try:
            ids: list[int] = self._tokenizer.encode(text, add_special_tokens=special).ids
        except (UnicodeEncodeError, TypeError):  # what the library says of a lone surrogate is only that it is no text
            raise RequestError("the prompt is not Unicode text: it holds half of a surrogate pair") from None
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
