"""Long texts of one client: the short requests of others are answered before them."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.end_to_end.conftest import serving

NUM_CHATS = 5
CHAT = {"messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 5}
PROSE = {"prompt": "the lemon granite jungle " * 130_000, "max_tokens": 1, "truncate_prompt_tokens": 100}
EMOJI = {"content": "\U0001f600" * 400_000}
COUNTED = {"model": "demo", "messages": [{"role": "user", "content": EMOJI["content"]}]}


@pytest.fixture(scope="module")
def url(server_folder: Path) -> Iterator[str]:
    """The address of a server with a context for which such texts are not too long."""
    with serving(server_folder, "--max-context-tokens", "65536") as (address, _):
        yield address


@pytest.mark.parametrize(
    ("path", "body", "number"),
    [
        ("/tokenize", EMOJI, 4),
        pytest.param("/v1/completions", PROSE, 4, marks=pytest.mark.slow),
        pytest.param("/v1/messages/count_tokens", COUNTED, 8, marks=pytest.mark.slow),
    ],
)
async def test_short_chats_do_not_wait_for_long_texts(url: str, path: str, body: dict, number: int) -> None:
    async with httpx.AsyncClient(base_url=url, timeout=120) as http:
        long = [asyncio.create_task(http.post(path, json=body)) for _ in range(number)]
        # The first ones may come before the others' bodies have been read.
        for _ in range(NUM_CHATS):
            assert (await http.post("/v1/chat/completions", json=CHAT)).status_code == 200
        assert not all(one.done() for one in long)
        assert {one.status_code for one in await asyncio.gather(*long)} == {200}
