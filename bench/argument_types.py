"""What the values of flags may be; argparse turns the errors into one line."""

import argparse
from pathlib import Path

import httpx

from config.access import KEY


def count(text: str) -> int:
    """A whole number above 0."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number


def levels(text: str) -> tuple[int, ...]:
    """Numbers of streams, separated by commas."""
    return tuple(dict.fromkeys(count(part.strip()) for part in text.split(",")))


def temperature(text: str) -> float:
    """A sampling temperature."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 2")
    return value


def url(text: str) -> str:
    """The address of a server, without /v1."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise argparse.ArgumentTypeError(f"{text} is not an address such as http://127.0.0.1:8000")
    # People paste the base URL that their client takes.
    return text.rstrip("/").removesuffix("/v1")


def api_key(text: str) -> str:
    """A key that a header can carry."""
    if not KEY.fullmatch(text):
        # Not the key itself: what is printed may be kept.
        raise argparse.ArgumentTypeError("a key must be visible ASCII characters without spaces")
    return text


def model_folder(text: str) -> Path:
    """A folder with a model."""
    folder = Path(text).expanduser()
    if not (folder / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a model folder: it has no config.json")
    return folder


def output_file(text: str) -> Path:
    """A file that can be written, as far as can be told before."""
    file = Path(text)
    if file.is_dir() or not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"{text} cannot be written")
    return file


def input_file(text: str) -> Path:
    """A file that is there."""
    file = Path(text).expanduser()
    if not file.is_file():
        raise argparse.ArgumentTypeError(f"{text} is no file")
    return file
