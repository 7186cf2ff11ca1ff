"""HEAD is answered wherever GET is, and Allow names every method of a path."""

import httpx
import pytest

from reprise.server.http.request_log import ENDPOINTS
from tests.server.served import served

GETS = ["/", "/health", "/metrics", "/openapi.json", "/ui", "/v1/models", "/v1/models/alias", "/v1/requests"]


@pytest.mark.parametrize("path", [*GETS, "/v1/responses/resp_unknown", "/nowhere"])
async def test_head_has_the_status_and_headers_of_get_and_no_body(client, path):
    got, told = await client.get(path), await client.head(path)
    assert told.status_code == got.status_code
    assert told.content == b""
    assert told.headers["content-type"] == got.headers["content-type"]
    # The metrics count the first request, so their length may change.
    assert int(told.headers["content-length"]) > 0


def test_a_connection_stays_usable_after_a_head_request(app):
    with served(app) as url, httpx.Client(base_url=url) as client:
        for _ in range(2):
            assert client.head("/v1/models").status_code == 200
            assert client.get("/v1/models").json()["object"] == "list"


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("PUT", "/v1/responses/resp_1", "DELETE, GET, HEAD"),
        ("GET", "/v1/responses/resp_1/cancel", "POST"),
        ("DELETE", "/v1/models/load", "POST"),
        ("DELETE", "/v1/models/alias", "GET, HEAD"),
        ("GET", "/v1/chat/completions", "POST"),
        ("HEAD", "/v1/chat/completions", "POST"),
        ("POST", "/openapi.json", "GET, HEAD"),
        ("OPTIONS", "/v1/ngram-mod", "GET, HEAD"),
        ("POST", "/health", "GET, HEAD"),
    ],
)
async def test_allow_names_all_methods_of_a_path(client, method, path, allowed):
    response = await client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allowed
    if method != "HEAD":
        assert f"Use {allowed}." in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("path", "given", "status"),
    [
        ("/v1/responses", {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}, 426),
        ("/v1/responses", {}, 405),
        ("/v1/nothing", {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}, 404),
        ("/v1/models", {"Sec-WebSocket-Key": "AAAAAAAAAAAAAAAAAAAAAA=="}, 200),
    ],
)
def test_a_websocket_is_told_to_use_http(app, path, given, status):
    wish = {"Connection": "Upgrade", "Upgrade": "websocket", "Sec-WebSocket-Version": "13"}
    with served(app) as url, httpx.Client(base_url=url) as client:
        for _ in range(2):
            response = client.get(path, headers=wish | given)
            assert response.status_code == status
            assert response.headers.get("upgrade") == ("HTTP/1.1" if status == 426 else None)
        if status == 426:
            assert response.json()["error"]["code"] == "websocket_not_supported"


async def test_allow_names_every_method_of_the_endpoints_that_are_listed(client):
    for endpoint in ENDPOINTS:
        method, path = endpoint.split()
        refused = await client.request("PATCH", path)
        assert method in refused.headers["allow"].split(", "), endpoint
