"""How tokenizers of several kinds spell the bytes of a token."""

import re
from typing import Any

BYTE = re.compile(r"<0x[0-9A-Fa-f]{2}>")


class VocabularyError(ValueError):
    """The bytes of a tokenizer's tokens are not known; the message says why."""


class TokenByteDecoder:
    """Reads the bytes of a token from how a tokenizer's vocabulary spells it.

    written: the tokenizer as the tokenizers library writes it. Raises VocabularyError for unknown kinds.
    """

    def __init__(self, written: dict[str, Any]) -> None:
        model = written["model"]
        self._model_ids = read_model_ids(model)
        if model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
            raise VocabularyError(f"its tokenizer marks parts of words ({model.get('type')})")
        self.unknown = self._find_unknown(model)
        self._replaced: list[tuple[str, str]] = []
        self._has_bytes = bool(model.get("byte_fallback"))
        self._byte_level = False
        is_fused = False
        for part in read_decoders(written.get("decoder")):
            match part:
                case {"type": "ByteLevel"}:
                    self._byte_level = True
                case {"type": "Replace", "pattern": {"String": pattern}, "content": content}:
                    self._replaced.append((pattern, content))
                case {"type": "Metaspace"}:
                    self._replaced.append((part.get("replacement", "\u2581"), " "))
                case {"type": "ByteFallback"}:
                    self._has_bytes = True
                case {"type": "Fuse"}:
                    is_fused = True
                # Behind a fuse it strips the whole text, which is none of the tokens' business.
                case {"type": "Strip"} if is_fused:
                    pass
                case _:
                    raise VocabularyError(f"its tokenizer decodes by a {part.get('type')}")

    def is_byte(self, spelling: str) -> bool:
        """Whether a token is written as a byte."""
        return self._has_bytes and BYTE.fullmatch(spelling) is not None

    def piece(self, spelling: str, token: int) -> bytes:
        """The bytes of a token."""
        # Added tokens are found in the text as they are written.
        if self._model_ids.get(spelling) != token:
            return spelling.encode()
        if self.is_byte(spelling):
            return bytes([int(spelling[3:5], 16)])
        if self._byte_level:
            known = [BYTE_LEVEL.get(character) for character in spelling]
            # So does the library with a token that is not all bytes.
            return spelling.encode() if None in known else bytes(byte for byte in known if byte is not None)
        for pattern, content in self._replaced:
            spelling = spelling.replace(pattern, content)
        return spelling.encode()

    def _find_unknown(self, model: dict[str, Any]) -> int | None:
        if "unk_id" in model:
            unknown: int | None = model["unk_id"]
            return unknown
        return self._model_ids.get(model.get("unk_token"))


def read_model_ids(model: dict[str, Any]) -> dict[Any, int]:
    """Spelling -> id of a written model; added tokens may not be among them."""
    vocab = model["vocab"]
    if isinstance(vocab, dict):
        return vocab
    # A Unigram's is a list of spellings and scores.
    return {entry[0]: token for token, entry in enumerate(vocab)}


def read_decoders(written: dict[str, Any] | None) -> list[dict[str, Any]]:
    """The decoders of a written tokenizer, one after another. Raises VocabularyError if there are none."""
    if written is None:
        raise VocabularyError("its tokenizer has no decoder")
    if written["type"] == "Sequence":
        return [part for inner in written["decoders"] for part in read_decoders(inner)]
    return [written]


def make_byte_level() -> dict[str, int]:
    """Character -> byte, as byte-level vocabularies write bytes. Source: GPT-2's `bytes_to_unicode`."""
    shown = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    hidden = [byte for byte in range(256) if byte not in shown]
    table = {chr(byte): byte for byte in shown}
    return table | {chr(256 + at): byte for at, byte in enumerate(hidden)}


BYTE_LEVEL = make_byte_level()
