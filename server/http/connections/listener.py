"""Bind the server's socket. Done before the model is loaded, so that a port in use is reported at once."""

import socket


class ListenError(Exception):
    """The server cannot listen on the address; the message says why. errno: the system's, if it said any."""

    def __init__(self, message: str, errno: int | None = None) -> None:
        super().__init__(message)
        self.errno = errno


def bind_address(host: str, port: int) -> socket.socket:
    """Bind a socket; it refuses connections until the server listens. port: 0 means any free port.

    Raises ListenError.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        bound = socket.socket(family, kind, protocol)
    except OSError as fault:
        raise ListenError(f"cannot listen on {host}: {fault.strerror}") from fault
    try:
        # Without it, a restart would fail while connections of the previous process are in TIME_WAIT.
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError as fault:
        bound.close()
        raise ListenError(f"cannot listen on {host} port {port}: {fault.strerror}", fault.errno) from fault
    return bound


def url_of(bound: socket.socket) -> str:
    """Return the URL by which a client on this machine reaches the socket."""
    host, port = bound.getsockname()[:2]
    wildcards = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - compared, not bound
    shown = wildcards.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"
