"""Decode compressed bodies, within the limit of size."""

import asyncio
import zlib

from reprise.server.errors import BodyTooLargeError, ContentEncodingError, InvalidEncodingError

SLICE_BYTES = 2**20
"""Bytes that are decoded at a time; in between, the event loop serves others."""
INPUT_BYTES = 2**16
"""Bytes of the body that are read at a time: zlib copies what it has not decoded yet."""
MAX_MEMBERS = 1024
"""Maximum gzip texts in one body, one behind the other. Each takes a decoder."""
_AUTOMATIC, _RAW = 47, -15
"""How zlib reads gzip's and zlib's headers, and data without a header."""
_NONE = frozenset({"", "identity"})
_KNOWN = _NONE | {"gzip", "x-gzip", "deflate"}


def coding_of(header: str) -> str | None:
    """Return the encoding that a Content-Encoding header names; None if the body is not encoded.

    Raises ContentEncodingError for an encoding that cannot be decoded here.
    """
    coding = header.strip().lower()
    if coding not in _KNOWN:
        raise ContentEncodingError(header)
    return None if coding in _NONE else coding


async def decoded(body: bytes, coding: str, limit_bytes: int) -> bytes:
    """Decode a body.

    limit_bytes: the limit of the decoded body; little more than that is ever held in memory.
    Raises BodyTooLargeError, and InvalidEncodingError if the body is not exactly one complete encoded text;
    gzip may have several in a row, as in RFC 1952.
    """
    is_raw = coding == "deflate" and not _has_zlib_header(body)
    decoder = zlib.decompressobj(_RAW if is_raw else _AUTOMATIC)
    text, num_members = bytearray(), 1
    for start in range(0, len(body), INPUT_BYTES):
        rest, has_more = body[start : start + INPUT_BYTES], False
        while rest or has_more:
            if decoder.eof:
                if coding == "deflate" or num_members == MAX_MEMBERS:
                    raise InvalidEncodingError(coding)
                decoder, num_members = zlib.decompressobj(_AUTOMATIC), num_members + 1
            room = min(SLICE_BYTES, limit_bytes + 1 - len(text))
            try:
                part = decoder.decompress(rest, room)
            except zlib.error:
                raise InvalidEncodingError(coding) from None
            text += part
            if len(text) > limit_bytes:
                raise BodyTooLargeError(limit_bytes)
            rest = decoder.unconsumed_tail or decoder.unused_data
            # zlib may have read all and still hold the end of a repetition.
            has_more = len(part) == room and not decoder.eof
            await asyncio.sleep(0)
    if not decoder.eof:
        raise InvalidEncodingError(coding)
    return bytes(text)


def _has_zlib_header(body: bytes) -> bool:
    """Return whether a deflate body has the header that it should have; some clients leave it out."""
    return len(body) > 1 and body[0] & 15 == 8 and int.from_bytes(body[:2]) % 31 == 0
