"""Check the settings that decide who may use the server: keys, host names, origins of web pages."""

import re
from collections.abc import Collection

from reprise.config.setting import SettingsError

KEY = re.compile(r"[!-~]+")
"""A key that an HTTP header can carry: visible ASCII characters without spaces."""
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


def check_access(
    keys: Collection[str], hosts: Collection[str], origins: Collection[str], is_open_allowed: bool
) -> None:
    """Raise SettingsError for a key that no header can carry, or an invalid host name or origin.

    is_open_allowed: whether the origins may include "*", which means every site.
    """
    if not all(KEY.fullmatch(key) for key in keys):
        raise SettingsError("api_key must be visible ASCII characters without spaces")
    for name in hosts:
        if not _NAME.fullmatch(name):
            raise SettingsError(
                f"allowed_host is {name!r}; it must be a host name without scheme and port, "
                "such as llm.example.com"
            )
    for origin in origins:
        if origin == "*" and not is_open_allowed:
            raise SettingsError(
                "cors_origin is '*', which lets every web page use this server; name the sites instead, "
                "set api_key, or set insecure to allow it"
            )
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise SettingsError(
                f"cors_origin is {origin!r}; it must be a site's scheme, host name and optional port, "
                "such as https://chat.example.com"
            )
