"""Parsers for the values of command-line flags; argparse prints their errors in one line."""

import argparse
from pathlib import Path

import httpx

from config.access import KEY


def count(text: str) -> int:
    """Parse a positive whole number."""
    number = int(text) if text.isdecimal() else 0
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is not a whole number above 0")
    return number


def levels(text: str) -> tuple[int, ...]:
    """Parse numbers of concurrent streams, separated by commas."""
    return tuple(dict.fromkeys(count(part.strip()) for part in text.split(",")))


def temperature(text: str) -> float:
    """Parse a sampling temperature from 0 to 2."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise argparse.ArgumentTypeError(f"{text} is not a number from 0 to 2")
    return value


def url(text: str) -> str:
    """Parse the base URL of a server; a trailing /v1 is dropped."""
    try:
        url = httpx.URL(text)
    except httpx.InvalidURL:
        url = httpx.URL("")
    if url.scheme not in ("http", "https") or not url.host:
        raise argparse.ArgumentTypeError(f"{text} is not an address such as http://127.0.0.1:8000")
    # People paste the base URL that they give their client.
    return text.rstrip("/").removesuffix("/v1")


def api_key(text: str) -> str:
    """Parse a key that can be sent in a header."""
    if not KEY.fullmatch(text):
        # The message leaves the key out, because terminal output may be logged.
        raise argparse.ArgumentTypeError("a key must be visible ASCII characters without spaces")
    return text


def model_folder(text: str) -> Path:
    """Parse the path of a model folder."""
    folder = Path(text).expanduser()
    if not (folder / "config.json").is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a model folder: it has no config.json")
    return folder


def output_file(text: str) -> Path:
    """Parse the path of a file to write; its folder must exist."""
    file = Path(text)
    if file.is_dir() or not file.parent.is_dir():
        raise argparse.ArgumentTypeError(f"cannot write {text}: it is a folder, or its folder does not exist")
    return file


def input_file(text: str) -> Path:
    """Parse the path of an existing file."""
    file = Path(text).expanduser()
    if not file.is_file():
        raise argparse.ArgumentTypeError(f"{text} is not a file")
    return file
