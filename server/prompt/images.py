"""Prepare a conversation's images: choose, decode and count them, and place them in the prompt."""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeGuard

from fastapi import Request

from reprise.config.settings import Settings
from reprise.engine.interface.bounded_cache import BoundedCache
from reprise.engine.interface.cancellation import check_wanted
from reprise.engine.interface.images import (
    MAX_IMAGE_TOKENS,
    ImageProcessor,
    PromptImage,
    mark,
    numbers_in,
    placeholders,
    without_marks,
)
from reprise.engine.sandbox.child_process import ImageDecoder, Picture
from reprise.engine.sandbox.child_script import FileError
from reprise.server.errors import BadRequestError
from reprise.server.http.request_log import note_ignored
from reprise.server.requests.fields import Notes
from reprise.server.requests.media import Media
from reprise.server.requests.messages import Message, Part, check_answerable, newest_start

DECODER = ImageDecoder()
MAX_KEPT_BYTES = 64 * 2**20
"""Maximum bytes of decoded images that are kept for later turns, which send them again."""
LEFT_OUT = "[image: left out]"
"""What a model that sees is shown of an image that it cannot be shown, the same at every turn."""


@dataclass(frozen=True, slots=True)
class Placed:
    """A prompt's tokens, including its images' tokens, and the images."""

    tokens: tuple[int, ...]
    images: tuple[PromptImage, ...] = ()

    def __len__(self) -> int:
        return len(self.tokens)


@dataclass(frozen=True, slots=True)
class Seen:
    """A conversation with its images replaced by text or marks.

    messages: each image is replaced by text, or by a numbered mark if the model gets the image.
    pictures: the decoded images, by the numbers of their marks.
    """

    messages: tuple[Message, ...]
    processor: ImageProcessor | None = None
    pictures: Mapping[int, Picture] = field(default_factory=dict)

    def place(self, ids: Sequence[int], messages: Sequence[Mapping[str, Any]]) -> Placed:
        """Insert the images' tokens into a rendered prompt.

        ids: the prompt's tokens, with a placeholder for each image. messages: those that were rendered.
        Raises BadRequestError if the prompt lacks a placeholder.
        """
        processor = self.processor
        if processor is None:
            return Placed(tuple(ids))
        pictures = [self.pictures[number] for number in numbers_in(messages)]
        places = [index for index, token in enumerate(ids) if token == processor.placeholder]
        if len(places) != len(pictures):
            raise BadRequestError(
                f"The chat template shows {len(places)} of {len(pictures)} images. Send them in messages "
                "of the user.",
                param="messages",
                code="template_error",
            )
        tokens: list[int] = []
        images: list[PromptImage] = []
        done = 0
        for place, picture in zip(places, pictures, strict=True):
            tokens += ids[done:place]
            for before, part in zip(picture.before, picture.parts, strict=True):
                tokens += before
                images.append(replace(part, start=len(tokens)))
                tokens += placeholders(processor, part.grid)
            done = place + 1
            if processor.last_end is not None:
                tokens.append(processor.last_end)
        tokens += ids[done:]
        return Placed(tuple(tokens), tuple(images))


class ImageReader:
    """Decodes conversations' images, and caches some for later turns. Thread-safe; blocks."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._kept = BoundedCache[Picture](lambda picture: picture.num_bytes, MAX_KEPT_BYTES)

    def read(self, request: Request, messages: Sequence[Message], processor: ImageProcessor | None) -> Seen:
        """Decode a conversation's images. Images shown as text are noted.

        processor: the model's; None if it takes no images.
        Raises BadRequestError for an image of the newest turn that cannot be shown.
        """
        found = list(_images(messages))
        notes = Notes(self._settings.unknown_fields == "refuse")
        try:
            if found and processor is not None:
                return self._read(messages, found, processor, notes)
            for _, image in found:
                notes.as_text(image.at)
            check_answerable(messages, sees=False)
            return Seen(tuple(messages))
        finally:
            note_ignored(request, notes.entries())

    def _read(
        self,
        messages: Sequence[Message],
        found: Sequence[tuple[int, Media]],
        processor: ImageProcessor,
        notes: Notes,
    ) -> Seen:
        newest = newest_start(messages)
        num_dropped = self._num_dropped(found, newest)
        pictures: dict[int, Picture] = {}
        for number, (index, image) in enumerate(found):
            try:
                if number < num_dropped:
                    raise FileError("is one too many")
                check_wanted()
                pictures[number] = self._picture(image, processor)
            except FileError as fault:
                # Content of the history is never refused.
                if index >= newest:
                    message = f"The image '{image.at}' {fault}."
                    raise BadRequestError(message, param=image.at, code="invalid_image") from fault
                notes.as_text(image.at)
        numbers = iter(range(len(found)))
        shown = tuple(_marked(message, numbers, pictures) for message in messages)
        return Seen(shown, processor, pictures)

    def _num_dropped(self, found: Sequence[tuple[int, Media]], newest: int) -> int:
        """Return how many of the oldest images are shown as text. Raises BadRequestError."""
        most = self._settings.max_images
        num_newest = sum(index >= newest for index, _ in found)
        if num_newest > most:
            raise BadRequestError(
                f"The newest turn has {num_newest} images; at most {most} are allowed (--max-images).",
                param=found[-1][1].at,
                code="too_many_images",
            )
        # Several at a time, so that most requests of a session begin with the same prompt, which is cached.
        step = max(1, most // 2)
        num_more = max(0, len(found) - most)
        return min(-(-num_more // step) * step, len(found) - num_newest)

    def _picture(self, image: Media, processor: ImageProcessor) -> Picture:
        """Decode an image, unless it is cached. Raises FileError."""
        if image.fault:
            raise FileError(image.fault)
        digest = hashlib.sha256(repr((processor, image.detail, MAX_IMAGE_TOKENS)).encode())
        digest.update(image.data.encode("ascii", "replace"))
        key = digest.digest()
        if (picture := self._kept.get(key)) is None:
            picture = DECODER.decode(processor, image.data, image.detail, MAX_IMAGE_TOKENS)
            self._kept.put(key, picture)
        return picture


def _is_image(part: Part) -> TypeGuard[Media]:
    return isinstance(part, Media) and part.kind == "image"


def _images(messages: Sequence[Message]) -> Iterator[tuple[int, Media]]:
    for index, message in enumerate(messages):
        for part in message.parts:
            if _is_image(part):
                yield index, part


def _marked(message: Message, numbers: Iterator[int], pictures: Mapping[int, Picture]) -> Message:
    """Return a message with a mark for each image that the model gets. numbers: of all images, in order."""
    shown = ""
    # Between texts only: the joint is not added next to an image.
    joint = ""
    for part in message.parts:
        is_image = _is_image(part)
        if is_image and (number := next(numbers)) in pictures:
            shown += mark(number)
            joint = ""
        else:
            shown += joint + (LEFT_OUT if is_image else without_marks(str(part)))
            joint = message.joint
    return replace(message, parts=(shown,) if message.parts else ())
