"""What the server and the engine exchange about images in a prompt."""

from dataclasses import dataclass
from hashlib import shake_256

KEY_BYTES = 16


@dataclass(frozen=True, slots=True)
class VisionInfo:
    """How a model sees images.

    family: the tower's name. placeholder: the token id that stands for a piece of an image.
    patch_size: pixels of a patch's side. merge_size: patches of a token's side.
    min_tokens, max_tokens: of one image. example_tokens: of one of 1024x768 pixels.
    """

    family: str
    placeholder: int
    patch_size: int
    merge_size: int
    min_tokens: int
    max_tokens: int
    example_tokens: int


@dataclass(frozen=True, slots=True)
class PromptImage:
    """An image in a prompt, as the model's own processor cut it.

    start: index in the prompt of its first placeholder. length: tokens from the first to the last placeholder
        and what stands between them, such as the tokens that end its rows.
    grid: (rows, columns) of patches. pixels: uint8 values in the order in which the tower reads them.
    shape: of pixels. key: see image_key().
    """

    start: int
    length: int
    grid: tuple[int, int]
    pixels: bytes
    shape: tuple[int, ...]
    key: bytes

    @property
    def end(self) -> int:
        """Index in the prompt after its last placeholder."""
        return self.start + self.length


def image_key(pixels: bytes, shape: tuple[int, ...], grid: tuple[int, int], settings: str) -> bytes:
    """Return what tells an image from every other one: (KEY_BYTES,) of a hash. settings: of the tower."""
    digest = shake_256(repr((shape, grid, settings)).encode())
    digest.update(pixels)
    return digest.digest(KEY_BYTES)
