"""Say why the server cannot listen: a port in use may be Reprise's already."""

import errno
import http.client
import json
import urllib.error
import urllib.request
from typing import Literal

from reprise.config.settings import Settings
from reprise.server.http.connections.listener import ListenError

_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))
ASK_S = 2
"""How long what holds the port may take to say whether it is Reprise."""


def explain(fault: ListenError, settings: Settings) -> str:
    """Explain why the server cannot listen, and what to do about it.

    If the port is in use, find out whether Reprise uses it already.
    """
    if fault.errno != errno.EADDRINUSE:
        return str(fault)
    other = "choose another with --port, or 0 for any that is free"
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)  # noqa: S104 - compared
    url = f"http://{f'[{local}]' if ':' in local else local}:{settings.port}"
    told = f"cannot listen on {settings.host} port {settings.port}"
    match find_user(url):
        case "reprise":
            return f"{told}: Reprise runs there already, at {url}. Use it, or {other}"
        case "silent":
            return (
                f"{told}: a program has it that does not answer, as Reprise while it starts. Wait, or {other}"
            )
        case _:
            return f"{told}: another program has it. End that, or {other}"


def find_user(url: str) -> Literal["reprise", "silent", "other"]:
    """Name the kind of program that listens at a URL. Reprise is recognized even if it wants an API key."""
    try:
        with _OPENER.open(f"{url}/", timeout=ASK_S) as response:
            return "reprise" if "Reprise" in json.load(response)["message"] else "other"
    except urllib.error.HTTPError as refused:
        return "reprise" if "x-request-id" in refused.headers else "other"
    except (TimeoutError, urllib.error.URLError):
        return "silent"
    except (OSError, ValueError, LookupError, TypeError, http.client.HTTPException):
        return "other"
