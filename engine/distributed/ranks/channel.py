"""Send messages between two ranks over TCP, each as its length and then JSON."""

import contextlib
import json
import socket
import struct
import threading
from typing import Any

HEADER = struct.Struct("<I")
MAX_MESSAGE_BYTES = 64 << 20
"""A longer message is refused: no command is that long."""


class Channel:
    """A connection between two ranks. Any thread may send; one thread receives."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._connection = connection
        self._lock = threading.Lock()
        self._reader = connection.makefile("rb")

    def send(self, message: Any) -> None:
        """Send a message of numbers, strings, lists and dictionaries. Raises OSError."""
        self.send_encoded(encode(message))

    def send_encoded(self, data: bytes) -> None:
        """Send a message that encode() made. Raises OSError."""
        with self._lock:
            self._connection.sendall(data)

    def receive(self) -> Any:
        """Wait for a message. Raises EOFError if the other side is gone, OSError, or ValueError."""
        (size,) = HEADER.unpack(self._read(HEADER.size))
        if size > MAX_MESSAGE_BYTES:
            raise ValueError(f"a message of {size} bytes is no command")
        return json.loads(self._read(size))

    def limit_wait(self, seconds: float | None) -> None:
        """Let each receive() or send() that takes longer than this raise TimeoutError; None for no limit."""
        self._connection.settimeout(seconds)

    def close(self) -> None:
        """Close the connection."""
        with contextlib.suppress(OSError):
            self._connection.shutdown(socket.SHUT_RDWR)
        self._connection.close()

    def _read(self, size: int) -> bytes:
        data = self._reader.read(size)
        if len(data) < size:
            raise EOFError("the connection was closed")
        return data


def encode(message: Any) -> bytes:
    """Return a message as the bytes that send() writes: its length, then JSON."""
    body = json.dumps(message, separators=(",", ":")).encode()
    return HEADER.pack(len(body)) + body
