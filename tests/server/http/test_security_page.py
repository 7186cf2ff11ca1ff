"""docs/security.md agrees with the code."""

import re
from pathlib import Path

from reprise.config.settings import Settings
from reprise.engine.sandbox.child_process import MEMORY_LIMIT_BYTES, TIME_LIMIT_S
from reprise.server.http.body import MAX_HEADERS
from reprise.server.http.connection_limits import (
    MAX_HEAD_BYTES,
    MAX_PIPELINED,
    MAX_SMALL_CHUNKS,
    MAX_UNREAD_BYTES,
    SMALL_CHUNK_BYTES,
)
from reprise.server.http.executor import LARGE_BYTES
from reprise.server.llama_server_api.tokens import TOKENS_AT_ONCE
from reprise.server.openai_api.responses.routes import MAX_NAMED
from reprise.server.openai_api.responses.schemas import MAX_ITEMS
from reprise.server.requests.fields import MAX_FIELDS
from reprise.server.requests.json_body import (
    FRAGMENT_BYTES,
    FRAGMENT_VALUES,
    MAX_CONTAINERS,
    MAX_MEMBERS,
    MAX_VALUES,
)
from reprise.server.requests.messages import MAX_MESSAGES, MAX_PARTS
from reprise.server.tools.values import MAX_SIGNS

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_setting_that_the_page_names_exists():
    flags = {flag.replace("-", "_") for flag in re.findall(r"--([a-z][a-z-]+)", PAGE)}
    assert flags
    assert flags <= set(Settings.__dataclass_fields__)


def test_the_page_s_limits_are_those_of_the_code():
    text = " ".join(PAGE.split())
    assert f"more than {MAX_HEADERS} headers" in text
    assert (MAX_VALUES, f"{MAX_CONTAINERS:,} arrays and objects" in text) == (1_000_000, True)
    assert f"{MAX_MEMBERS:,} members" in text
    assert f"{MAX_FIELDS:,} in an object" in text
    assert f"{MAX_SMALL_CHUNKS:,} chunks beyond one for every {SMALL_CHUNK_BYTES} bytes" in text
    assert f"{MAX_HEAD_BYTES >> 10} KiB, {MAX_HEADERS}" in text
    assert f"answer is read | {MAX_PIPELINED} |" in text
    assert f"{MAX_MESSAGES:,} and {MAX_ITEMS:,}, {MAX_PARTS:,} parts" in text
    assert f"{MAX_NAMED:,} items" in text
    assert f"{TOKENS_AT_ONCE:,} tokens at a time" in text
    assert f"{MAX_UNREAD_BYTES >> 20} MiB for each address" in text
    assert f"fragments of {FRAGMENT_BYTES >> 10} KiB and {FRAGMENT_VALUES:,} values" in text
    assert f"more than {LARGE_BYTES >> 20} MiB have threads" in text
    assert f"{TIME_LIMIT_S:g} seconds and {MEMORY_LIMIT_BYTES >> 30} GiB" in text
    assert f"more than {MAX_SIGNS:,} commas and opening brackets" in text
    assert Settings().host == "127.0.0.1"
