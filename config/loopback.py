"""Tell this machine's own addresses from others, for what must not leave it."""

import ipaddress
from urllib.parse import urlsplit


def is_loopback(host: str) -> bool:
    """Return whether text is a loopback IP address. Host names, localhost included, give False."""
    address = address_of(host)
    mapped = getattr(address, "ipv4_mapped", None)
    return address is not None and (mapped or address).is_loopback


def address_of(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the IP address that a text is; None if it is none."""
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        return None


def takes_proxy(url: str, *, has_key: bool) -> bool:
    """Return whether requests to a URL may take a proxy that the environment names, such as http_proxy.

    No proxy reaches this machine, and a key over plain HTTP would be read by it.
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
