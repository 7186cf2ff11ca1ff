"""Which values let clients in: keys, names of this server, sites whose web pages may use it."""

import re
from collections.abc import Collection

from config.setting import SettingsError

KEY = re.compile(r"[!-~]+")
"""What a header can carry as a key: visible ASCII characters, and no spaces."""
_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://([A-Za-z0-9_.-]+|\[[0-9A-Fa-f:.]+\])(:[0-9]{1,5})?")


def check_access(
    keys: Collection[str], hosts: Collection[str], origins: Collection[str], is_open_allowed: bool
) -> None:
    """Raise SettingsError for keys that no header carries, and for names and origins that are none.

    is_open_allowed: "*", all sites there are, may be among the origins.
    """
    if not all(KEY.fullmatch(key) for key in keys):
        raise SettingsError("api_key must be visible ASCII characters without spaces")
    for name in hosts:
        if not _NAME.fullmatch(name):
            raise SettingsError(f"allowed_host is {name!r}; it must be a name alone, such as llm.example.com")
    for origin in origins:
        if origin == "*" and not is_open_allowed:
            raise SettingsError(
                "cors_origin is '*', which lets every web page use this server; name the sites, "
                "or set api_key, or set insecure if that is meant"
            )
        if origin != "*" and not _ORIGIN.fullmatch(origin):
            raise SettingsError(
                f"cors_origin is {origin!r}; it must be a site's scheme, name and port, and nothing more, "
                "such as https://chat.example.com"
            )
