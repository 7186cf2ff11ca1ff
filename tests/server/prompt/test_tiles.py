"""A prompt with LFM2-VL's tiles has the text that transformers' processor would write."""

import base64
import io

import pytest
from PIL import Image
from transformers.models.lfm2_vl.processing_lfm2_vl import Lfm2VlProcessor

from reprise.engine.interface.images import mark
from reprise.engine.sandbox.child_process import ImageDecoder
from reprise.server.prompt.images import Seen
from tests.engine.text.templates.test_image_parts import make, user


class Processor(Lfm2VlProcessor):
    """What of it needs no torch."""

    def __init__(self):
        self.image_token = "*"
        self.image_start_token, self.image_end_token = "<|image_start|>", "<|image_end|>"
        self.image_thumbnail_token = "<|img_thumbnail|>"

    def text_of(self, rows, columns, size):
        of_whole = self._compute_tokens_for_image(size, 16, 2)
        of_tile = self._compute_tokens_per_tile(512, 16, 2)
        return self._build_image_tokens(rows, columns, of_tile, of_whole, True, True)


@pytest.mark.parametrize(
    ("size", "tiles", "whole"),
    [((64, 64), (1, 1), (256, 256)), ((768, 1024), (2, 3), (416, 576)), ((1999, 301), (7, 1), (1312, 192))],
)
def test_tiles_are_marked_as_transformers_marks_them(tmp_path, size, tiles, whole):
    tokenizer, vision = make(tmp_path, "lfm2_vl")
    file = io.BytesIO()
    Image.new("RGB", size[::-1]).save(file, "PNG")
    decoder = ImageDecoder()
    picture = decoder.decode(vision.processor, base64.b64encode(file.getvalue()).decode())
    decoder.stop()
    messages = [user(f"See {mark(0)}!")]
    seen = Seen((), vision.processor, {0: picture})
    placed = seen.place(tokenizer.render_chat(messages, processor=vision.processor), messages)
    pieces = [
        "*" if token == vision.placeholder else tokenizer.piece(token).decode() for token in placed.tokens
    ]
    shown = Processor().text_of(*tiles, whole)
    assert "".join(pieces) == f"<|im_start|>user\nSee {shown}!<|im_end|>\n<|im_start|>assistant\n"
    inside = sum(image.length for image in placed.images)
    assert inside == placed.tokens.count(vision.placeholder) == shown.count("*")
