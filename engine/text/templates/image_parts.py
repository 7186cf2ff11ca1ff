"""Images in a conversation, as its chat template takes them.

While messages are changed to fit a template they stay texts, in which marks stand for images. Then a text
with marks becomes a list of parts, if the template takes them; else an image's own tokens replace a mark.
"""

import re
from collections.abc import Sequence

from reprise.engine.interface.image_marks import MARK, OPEN
from reprise.engine.interface.images import ImageProcessor
from reprise.engine.text.templates.control_tokens import OPEN as TOKEN_OPEN
from reprise.engine.text.templates.traits import NUM_ID_CHARACTERS, Json, assistant, user

PROBE = "probe-q"


def with_parts(message: Json, processor: ImageProcessor, *, takes_parts: bool) -> Json:
    """Replace the marks in a message's text by parts, if the template takes them, else by images' tokens."""
    content = message.get("content")
    if not isinstance(content, str) or OPEN not in content:
        return message
    if not takes_parts:
        return {**message, "content": MARK.sub(lambda _: processor.alone, content)}
    # A text, a number, a text, and so on.
    pieces = MARK.split(content)
    parts: list[Json] = []
    for index, piece in enumerate(pieces):
        if index % 2:
            parts.append({"type": "image"})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return {**message, "content": parts}


def probe(role: str) -> Sequence[Json]:
    """Return a conversation whose last message, of the user or a tool, has an image among parts."""
    parts = [{"type": "image"}, {"type": "text", "text": PROBE}]
    if role != "tool":
        return [{"role": role, "content": parts}]
    call_id = "probeid01"[:NUM_ID_CHARACTERS]
    function = {"name": "probe", "arguments": {}}
    call = {"id": call_id, "type": "function", "function": function}
    result = {"role": "tool", "tool_call_id": call_id, "name": "probe", "content": parts}
    return [user("probe-a"), assistant("", [call]), result]


def with_placeholders(rendered: str, processor: ImageProcessor) -> str:
    """Replace the text that a template wrote for each image by its placeholders, unless marked as text."""
    if processor.written == processor.shown:
        return rendered
    written = re.compile(f"(?<!{TOKEN_OPEN}){re.escape(processor.written)}")
    return written.sub(lambda _: processor.shown, rendered)
