"""Bodies may be compressed; the size limit holds for what they are decoded to."""

import gzip
import json
import tracemalloc
import zlib

import pytest

from reprise.server.http.body import MAX_MEMBERS, SLICE_BYTES, decoded
from tests.server.openai_shapes import assert_error

BODY = json.dumps({"prompt": "abc", "max_tokens": 3}).encode()
LIMIT = 100_000


def _raw_deflate(data):
    coder = zlib.compressobj(wbits=-15)
    return coder.compress(data) + coder.flush()


def _members(data):
    """Compress in parts, as tools do that append: each part is a gzip text of its own."""
    return gzip.compress(data[:9]) + gzip.compress(b"") + gzip.compress(data[9:])


async def _post(client, content, encoding):
    headers = {"Content-Type": "application/json", "Content-Encoding": encoding}
    return await client.post("/v1/completions", content=content, headers=headers)


@pytest.mark.parametrize(
    ("encoding", "encode"),
    [
        ("gzip", gzip.compress),
        ("gzip", _members),
        ("gzip", lambda data: b"".join(gzip.compress(data[at : at + 1]) for at in range(len(data)))),
        ("x-gzip", gzip.compress),
        ("GZIP", gzip.compress),
        ("deflate", zlib.compress),
        ("deflate", _raw_deflate),
        ("identity", bytes),
        ("", bytes),
    ],
)
async def test_a_compressed_body_is_answered_like_a_plain_one(client, engine, encoding, encode):
    assert (await _post(client, encode(BODY), encoding)).status_code == 200
    assert (
        await client.post("/v1/completions", content=BODY, headers={"Content-Type": "application/json"})
    ).is_success
    assert engine.requests[0].prompt == engine.requests[1].prompt


async def test_a_body_may_decode_to_exactly_the_limit(client):
    body = BODY + b" " * (LIMIT - len(BODY))
    assert (await _post(client, gzip.compress(body), "gzip")).status_code == 200
    response = await _post(client, gzip.compress(body + b" "), "gzip")
    assert response.status_code == 413
    assert_error(response.json(), None, "body_too_large")


def _many_bombs(data):
    return gzip.compress(bytes(LIMIT // 2)) * 3 + gzip.compress(data)[:50_000]


@pytest.mark.parametrize("encode", [gzip.compress, zlib.compress, _raw_deflate])
async def test_bodies_around_the_size_of_a_slice_are_whole(encode):
    coding = "gzip" if encode is gzip.compress else "deflate"
    for num_bytes in range(SLICE_BYTES - 3, SLICE_BYTES + 4):
        body = bytes(num_bytes)
        assert await decoded(encode(body), coding, 2 * SLICE_BYTES) == body


async def test_members_are_counted(client):
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    many = gzip.compress(BODY) + gzip.compress(b"") * MAX_MEMBERS
    response = await client.post("/v1/completions", content=many, headers=headers)
    assert response.status_code == 400
    assert_error(response.json(), None, "invalid_content_encoding")


@pytest.mark.parametrize("encode", [gzip.compress, zlib.compress, _raw_deflate, _many_bombs])
async def test_a_bomb_is_a_413_in_bounded_memory(client, engine, encode):
    bomb = encode(bytes(90 * 2**20))
    assert len(bomb) < LIMIT
    tracemalloc.start()
    try:
        response = await _post(client, bomb, "gzip" if encode in (gzip.compress, _many_bombs) else "deflate")
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert response.status_code == 413
    assert "100000 bytes" in assert_error(response.json(), None, "body_too_large")
    assert peak_bytes < 4 * 2**20
    assert engine.requests == []


@pytest.mark.parametrize("encoding", ["br", "zstd", "compress", "gzip, gzip", "x" * 300])
async def test_any_other_encoding_is_a_415_that_names_content_encoding(client, encoding):
    response = await _post(client, BODY, encoding)
    assert response.status_code == 415
    message = assert_error(response.json(), None, "unsupported_content_encoding")
    assert "Content-Encoding" in message
    assert "gzip or deflate" in message
    assert response.headers["accept-encoding"] == "gzip, deflate"


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize(
    "content",
    [BODY, b"", b"x", gzip.compress(BODY)[:-4], zlib.compress(BODY)[:-4], gzip.compress(BODY) + b"more"],
    ids=["not compressed", "empty", "a letter", "cut gzip", "cut zlib", "more behind"],
)
async def test_what_is_no_whole_compressed_body_is_a_400(client, engine, content, encoding):
    response = await _post(client, content, encoding)
    assert response.status_code == 400
    assert "Content-Encoding" in assert_error(response.json(), None, "invalid_content_encoding")
    assert engine.requests == []


async def test_messages_gets_these_errors_in_anthropic_s_shape(client):
    headers = {"Content-Type": "application/json", "Content-Encoding": "br"}
    response = await client.post("/v1/messages", content=BODY, headers=headers)
    assert (response.status_code, response.json()["type"]) == (415, "error")
