"""Replace a conversation's documents by their text."""

import hashlib
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from time import monotonic

from fastapi import Request

from reprise.config.settings import Settings
from reprise.engine.interface.bounded_cache import BoundedCache
from reprise.engine.interface.cancellation import check_wanted
from reprise.engine.sandbox.child_process import ChildError, read_document
from reprise.engine.sandbox.child_script import FileError, check_length
from reprise.server.errors import BadRequestError, UnavailableError, retry_after
from reprise.server.http.request_log import note_ignored
from reprise.server.requests.fields import Notes
from reprise.server.requests.media import Media
from reprise.server.requests.messages import Message, Part, newest_start

MAX_KEPT_BYTES = 64 * 2**20
"""Maximum bytes of texts that are kept: for later turns, which send the same documents again, and until the
request that sent them is prepared. All that one request may have fit."""
KEY_BYTES = 256
MAX_READ_S = 15.0
"""Seconds after which no further document of a request is read; its next attempt finds the others read."""


@dataclass(frozen=True, slots=True)
class Found:
    """A document's text, or the fault why it has none."""

    text: str
    is_fault: bool = False


class UnreadError(Exception):
    """Documents must be read first. documents: for DocumentReader.read()."""

    def __init__(self, documents: Sequence[str]) -> None:
        super().__init__("documents are not read yet")
        self.documents = documents


class DocumentReader:
    """Reads documents, and shows conversations with their text. Thread-safe."""

    def __init__(self) -> None:
        self._kept = BoundedCache[Found](lambda found: sys.getsizeof(found.text) + KEY_BYTES, MAX_KEPT_BYTES)

    def read(self, documents: Sequence[str]) -> None:
        """Read documents, so that show() finds them. Blocks.

        documents: in base64, the newest first.
        Raises UnavailableError if that takes too long, or fails for another reason than a document.
        """
        end_at = monotonic() + MAX_READ_S
        num_characters = 0
        for data in documents:
            check_wanted()
            if monotonic() > end_at:
                raise _unavailable(f"Its documents were not read within {MAX_READ_S:g} s.")
            try:
                found = Found(read_document(data))
            except FileError as fault:
                found = Found(str(fault), is_fault=True)
            except ChildError as fault:
                raise _unavailable("The process that reads documents ended.") from fault
            self._kept.put(_key(data), found)
            num_characters += 0 if found.is_fault else len(found.text)
            try:
                check_length(num_characters)
            except FileError:
                # show() shows no older ones.
                return

    def show(self, request: Request, settings: Settings, messages: Sequence[Message]) -> Sequence[Message]:
        """Return a request's messages with each document that was sent as its text.

        A document without text in the history, or in a tool's result, is shown with the reason for that, and
        noted. All have a limit together, which leaves out the oldest.
        Raises UnreadError, and BadRequestError for a document without text in a newer message of the user.
        """
        if not any(_is_sent(part) for message in messages for part in message.parts):
            return messages
        notes = Notes(settings.unknown_fields == "refuse")
        newest, num_characters = newest_start(messages), 0
        shown: list[Message] = []
        unread: list[str] = []
        for index, message in reversed(list(enumerate(messages))):
            parts: list[Part] = []
            for part in reversed(message.parts):
                if not isinstance(part, Media) or not _is_sent(part):
                    parts.append(part)
                    continue
                try:
                    check_length(num_characters)
                    if (found := self._kept.get(_key(part.data))) is None:
                        unread.append(part.data)
                        continue
                    if found.is_fault:
                        raise FileError(found.text)
                    num_characters += len(found.text)
                    check_length(num_characters)
                    text = f"]\n{found.text}"
                except FileError as fault:
                    if index >= newest and message.role != "tool":
                        told = f"The document '{part.at}' {fault}."
                        raise BadRequestError(told, param=part.at, code="invalid_document") from fault
                    notes.as_text(part.at)
                    text = f": it {fault}]"
                # What follows stands apart, as APIs join parts without a gap.
                parts.append(f"[{f'document {part.name}'.rstrip()}{text}\n\n")
            shown.append(replace(message, parts=tuple(reversed(parts))))
        if unread:
            raise UnreadError(list(dict.fromkeys(unread)))
        note_ignored(request, notes.entries())
        return shown[::-1]


def _key(data: str) -> bytes:
    return hashlib.sha256(data.encode("ascii", "replace")).digest()


def _is_sent(part: Part) -> bool:
    return isinstance(part, Media) and part.kind == "document" and bool(part.data)


def _unavailable(said: str) -> UnavailableError:
    told = f"{said} Try again; what is read is kept."
    return UnavailableError(told, code="document_timeout", headers=retry_after(1))
