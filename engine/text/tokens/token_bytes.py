"""Decode the token strings of a tokenizer's vocabulary to bytes."""

import re
from typing import Any

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class VocabularyError(ValueError):
    """The bytes of a tokenizer's tokens are not known; the message says why."""


class TokenByteDecoder:
    """Decoder from token strings, such as "Ġthe" or "<0x41>", to the bytes that the tokens stand for.

    config: the tokenizer as the tokenizers library serializes it to JSON.
    Raises VocabularyError for a kind of tokenizer whose token strings cannot be decoded.
    """

    def __init__(self, config: dict[str, Any]) -> None:
        model = config["model"]
        self._model_ids = read_model_ids(model)
        if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
            raise VocabularyError(f"its tokenizer marks parts of words ({model.get('type')})")
        self.unknown_id = self._find_unknown_id(model)
        self._replacements: list[tuple[str, str]] = []
        self._has_byte_fallback = bool(model.get("byte_fallback"))
        self._is_byte_level = False
        is_fused = False
        for decoder in read_decoders(config.get("decoder")):
            match decoder:
                case {"type": "ByteLevel"}:
                    self._is_byte_level = True
                case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                    self._replacements.append((pattern, content))
                case {"type": "Metaspace"}:
                    self._replacements.append((decoder.get("replacement", "\u2581"), " "))
                case {"type": "ByteFallback"}:
                    self._has_byte_fallback = True
                case {"type": "Fuse"}:
                    is_fused = True
                # After Fuse, Strip works on the whole text and not on its tokens.
                case {"type": "Strip"} if is_fused:
                    pass
                case _:
                    raise VocabularyError(f"its tokenizer uses an unsupported decoder: {decoder.get('type')}")

    def is_byte(self, token_string: str) -> bool:
        """Return whether a token string is a byte written as `<0x41>`."""
        return self._has_byte_fallback and BYTE.fullmatch(token_string) is not None

    def decode(self, token_string: str, token: int) -> bytes:
        """Return the bytes of a token. token: its id."""
        # Added tokens are matched in the text exactly as they are written.
        if self._model_ids.get(token_string) != token:
            return token_string.encode()
        if self.is_byte(token_string):
            return bytes([int(token_string[3:5], 16)])
        if self._is_byte_level:
            # The library does the same with a token that is not byte-level throughout.
            return decode_byte_level(token_string) or token_string.encode()
        for pattern, content in self._replacements:
            token_string = token_string.replace(pattern, content)
        return token_string.encode()

    def _find_unknown_id(self, model: dict[str, Any]) -> int | None:
        if "unk_id" in model:
            unknown: int | None = model["unk_id"]
            return unknown
        return self._model_ids.get(model.get("unk_token"))


def decode_partial(token_string: str) -> bytes:
    """Return the bytes of a token that is not whole characters, such as "<0xE4>" or "âĢ".

    Only for a token whose own text contains U+FFFD. Returns no bytes if the token is U+FFFD itself.
    """
    if BYTE.fullmatch(token_string):
        return bytes([int(token_string[3:5], 16)])
    return decode_byte_level(token_string)


def decode_byte_level(token_string: str) -> bytes:
    """Return the bytes of a byte-level token; none if a character of it stands for no byte."""
    try:
        return token_string.translate(_TO_LATIN_1).encode("latin-1")
    except UnicodeEncodeError:
        return b""


def read_model_ids(model: dict[str, Any]) -> dict[Any, int]:
    """Return token string -> id of a serialized model. Added tokens may be missing."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        return vocab
    # A Unigram model has a list of token strings and scores.
    return {entry[0]: token for token, entry in enumerate(vocab)}


def read_decoders(decoder: dict[str, Any] | None) -> list[dict[str, Any]]:
    """Return the decoders of a serialized tokenizer in order. Raises VocabularyError if there are none."""
    if decoder is None:
        raise VocabularyError("its tokenizer has no decoder")
    if decoder["type"] == "Sequence":
        return [part for inner in decoder["decoders"] for part in read_decoders(inner)]
    return [decoder]


def make_byte_level() -> dict[str, int]:
    """Return character -> byte for byte-level vocabularies. Source: GPT-2's `bytes_to_unicode`."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    table = {chr(byte): byte for byte in printable}
    return table | {chr(256 + at): byte for at, byte in enumerate(others)}


BYTE_LEVEL = make_byte_level()

# Latin-1 has one character for each byte. Characters that stand for no byte become one that it lacks.
_TO_LATIN_1 = dict.fromkeys(range(256), 0xFFFD) | {ord(key): byte for key, byte in BYTE_LEVEL.items()}
