"""Distinguish this machine's own addresses, for data that must not leave it."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether text is a loopback IP address. Host names, localhost included, give False."""
    address = address_of(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Parse an IP address; None if the text is none."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def takes_proxy(url: str, *, has_key: bool) -> bool:
    """Return whether requests to a URL may use a proxy from the environment, such as http_proxy.

    A proxy cannot reach this machine, and would read a key sent over plain HTTP.
    """
    try:
        parts = urlsplit(url)
        host = (parts.hostname or "").removesuffix(".")
    except ValueError:
        return False
    address = address_of(host)
    is_here = (
        is_loopback(host) or f".{host}".endswith(".localhost") or bool(address and address.is_unspecified)
    )
    return not is_here and not (has_key and parts.scheme == "http")
