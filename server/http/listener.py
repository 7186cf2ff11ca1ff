"""The socket: taken before the model is loaded, so that a port in use is known at once."""

import socket


class ListenError(Exception):
    """The address cannot be listened on; the message tells the person why."""


def bind_address(host: str, port: int) -> socket.socket:
    """Bind a socket. It refuses connections until it is served. port: 0 takes any that is free.

    Raises ListenError.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        taken = socket.socket(family, kind, protocol)
    except OSError as fault:
        raise ListenError(f"cannot listen on {host}: {fault.strerror}") from fault
    try:
        # So that a server can be started again while connections of the last one fade.
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as fault:
        taken.close()
        raise ListenError(f"cannot listen on {host} port {port}: {fault.strerror}") from fault
    return taken


def url_of(taken: socket.socket) -> str:
    """The address as a client on this machine would write it."""
    host, port = taken.getsockname()[:2]
    everywhere = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}  # noqa: S104 - what was asked for
    shown = everywhere.get(host, f"[{host}]" if ":" in host else host)
    return f"http://{shown}:{port}"
