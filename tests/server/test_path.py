"""A streamed chat passes the stations that docs/how-it-works.md lists, in that order."""

import re
import threading
from functools import cache
from pathlib import Path

import httpx

from tests.server.served import served

ROOT = Path(__file__).parents[2]
STATION = re.compile(r"^\| \d+ \| `([\w.]+)` \| `([\w/]+\.py)` \|", re.MULTILINE)
CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "max_tokens": 3}

whole_path = cache(lambda name: Path(name).resolve())


def test_a_streamed_chat_passes_the_stations_of_the_documentation_in_order(app):
    listed = STATION.findall((ROOT / "docs" / "how-it-works.md").read_text())
    stations = [(ROOT / "server" / file, name.rpartition(".")[2]) for name, file in listed]
    names = {name for _, name in stations}
    passed: list[tuple[Path, str]] = []

    def note(frame, event, _):
        if event == "call" and frame.f_code.co_name in names:
            station = whole_path(frame.f_code.co_filename), frame.f_code.co_name
            if station in stations and station not in passed:
                passed.append(station)

    threading.setprofile(note)
    try:
        with served(app) as url:
            httpx.post(f"{url}/v1/chat/completions", json=CHAT, timeout=60).raise_for_status()
    finally:
        threading.setprofile(None)
    assert len(stations) == 11
    assert passed == stations
