"""docs/security.md agrees with the code."""

import re
from pathlib import Path

from config.settings import Settings
from engine.foreign.chat_templates import MEMORY_LIMIT_BYTES, TIME_LIMIT_S
from engine.foreign.tool_calls import PARSE_LIMITS
from server.http.body_limit import MAX_HEADERS
from server.validation.body import MAX_CONTAINERS, MAX_VALUES

PAGE = (Path(__file__).parents[3] / "docs" / "security.md").read_text(encoding="utf-8")


def test_every_setting_that_the_page_names_exists():
    flags = {flag.replace("-", "_") for flag in re.findall(r"--([a-z][a-z-]+)", PAGE)}
    assert flags
    assert flags <= set(Settings.__dataclass_fields__)


def test_the_page_s_limits_are_those_of_the_code():
    text = " ".join(PAGE.split())
    assert f"more than {MAX_HEADERS} headers" in text
    assert (MAX_VALUES, f"{MAX_CONTAINERS:,} arrays and objects" in text) == (1_000_000, True)
    assert f"{TIME_LIMIT_S:g} seconds and {MEMORY_LIMIT_BYTES >> 30} GiB" in text
    assert f"{PARSE_LIMITS.cpu_s:g} seconds of CPU time and {PARSE_LIMITS.memory_bytes >> 20} MiB" in text
    assert Settings().host == "127.0.0.1"
