"""Access: API keys, the Host header, and the origins of web pages."""

import socket

import httpx
import openai
import pytest

from reprise.config.setting import SettingsError
from reprise.config.settings import Settings
from reprise.server.app import create_app
from reprise.server.http.request_log import ENDPOINTS
from tests.server.fake_engine import FakeEngine
from tests.server.openai_shapes import assert_error
from tests.server.served import served

ONE, TWO = "key-number-one", "key-number-two"
CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "hello"}]}
SITE = "https://chat.example.com"


@pytest.fixture
def with_keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"# the second one\n\n  {TWO}\n")
    return Settings(api_key=(ONE, f"@{file}"))


@pytest.fixture
def connect(engine):
    """Makes a client of an app with the given settings, without a network."""

    def to(settings, base_url="http://reprise"):
        transport = httpx.ASGITransport(app := create_app(engine, settings))
        return app.router.lifespan_context(app), httpx.AsyncClient(transport=transport, base_url=base_url)

    return to


async def _answer(connection, method, path, **request):
    lifespan, client = connection
    async with lifespan, client:
        return await client.request(method, path, **request)


@pytest.mark.parametrize(
    "endpoint", [*ENDPOINTS, "GET /", "GET /openapi.json", "GET /nothing", "PUT /healthy"]
)
async def test_everything_but_health_needs_a_key(connect, with_keys, engine, endpoint):
    method, path = endpoint.split()
    response = await _answer(connect(with_keys), method, path)
    if path == "/health":
        assert response.status_code == 200
        return
    assert response.status_code == 401
    assert response.headers["www-authenticate"] == "Bearer"
    if path.startswith("/v1/messages"):
        error = response.json()["error"]
        assert error["type"] == "authentication_error"
        assert "Authorization: Bearer" in error["message"]
    elif path.startswith("/api/"):
        assert "Authorization: Bearer" in response.json()["error"]
    else:
        assert "Authorization: Bearer" in assert_error(response.json(), None, "missing_api_key")
    assert engine.requests == []
    assert engine.memory_calls == []


@pytest.mark.parametrize("key", [ONE, TWO], ids=["of a flag", "of a file"])
@pytest.mark.parametrize("header", ["Authorization", "x-api-key"])
async def test_each_key_works_in_either_header(connect, with_keys, key, header):
    value = f"Bearer {key}" if header == "Authorization" else key
    response = await _answer(connect(with_keys), "POST", CHAT, json=BODY, headers={header: value})
    assert response.status_code == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Authorization": "Bearer wrong"},
        {"Authorization": f"Bearer {ONE}x"},
        {"Authorization": f"Bearer {ONE[:-1]}"},
        {"Authorization": f"Bearer {ONE.upper()}"},
        {"Authorization": f"Basic {ONE}"},
        {"Authorization": ONE},
        {"Authorization": "Bearer"},
        {"Authorization": "Bearer # the second one"},
        {"x-api-key": "wrong"},
        {"x-api-key": f"Bearer {ONE}"},
        {"Authorization": b"Bearer \xff\xfe"},
    ],
)
@pytest.mark.parametrize("path", [CHAT, "/v1/messages", "/api/chat"])
async def test_any_other_key_is_refused_and_not_repeated_in_the_error(connect, with_keys, headers, path):
    response = await _answer(connect(with_keys), "POST", path, json=BODY, headers=headers)
    assert response.status_code == 401
    assert not [part for part in (ONE, "wrong", "second") if part in response.text.lower()]


async def test_a_valid_key_works_beside_an_invalid_one(connect, with_keys):
    headers = {"Authorization": "Bearer none", "x-api-key": ONE}
    assert (await _answer(connect(with_keys), "POST", CHAT, json=BODY, headers=headers)).status_code == 200


async def test_a_server_without_keys_accepts_any_key(connect):
    for headers in ({}, {"Authorization": "Bearer none"}):
        response = await _answer(connect(Settings()), "POST", CHAT, json=BODY, headers=headers)
        assert response.status_code == 200


async def test_openai_s_client_says_what_is_wrong(engine, with_keys):
    with served(create_app(engine, with_keys)) as url:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0) as client:
            with pytest.raises(openai.AuthenticationError) as caught:
                client.chat.completions.create(model="org/fake-model", messages=BODY["messages"])
            assert caught.value.code == "invalid_api_key"
        with openai.OpenAI(base_url=f"{url}/v1", api_key=TWO, max_retries=0) as client:
            assert client.chat.completions.create(model="org/fake-model", messages=BODY["messages"])


def test_a_body_in_flight_does_not_hide_that_the_key_is_wrong(engine, with_keys):
    with served(create_app(engine, with_keys)) as url:
        response = httpx.post(
            url + CHAT, content=b"x" * 6 * 2**20, headers={"x-api-key": "wrong"}, timeout=30
        )
    assert response.status_code == 401


@pytest.mark.parametrize("text", [None, "", "# nothing\n\n", "a key\n", "\x00\n", b"\xff\xff"])
def test_a_file_without_valid_keys_is_an_error(tmp_path, text):
    file = tmp_path / "keys"
    if text is not None:
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(SettingsError, match="api_key"):
        create_app(FakeEngine(), Settings(api_key=(f"@{file}",)))


async def test_stored_responses_belong_to_the_checked_key(connect, with_keys):
    lifespan, client = connect(with_keys)
    mine, other = ({"Authorization": f"Bearer {key}"} for key in (ONE, TWO))
    async with lifespan, client:
        made = (await client.post("/v1/responses", json={"input": "hello"}, headers=mine)).json()
        path = f"/v1/responses/{made['id']}"
        # An invalid key beside a valid one does not change whose request it is.
        disguised = {"Authorization": "Bearer claimed", "x-api-key": ONE}
        statuses = [(await client.get(path, headers=h)).status_code for h in (mine, other, disguised)]
    assert statuses == [200, 404, 200]


async def test_the_tenant_is_that_of_the_checked_key(connect, engine):
    settings = Settings(api_key=(ONE, TWO), ngram_scope="api-key")
    lifespan, client = connect(settings)
    async with lifespan, client:
        for headers in (
            {"x-api-key": ONE},
            {"Authorization": f"Bearer {ONE}"},
            {"Authorization": f"Bearer {TWO}"},
            {"Authorization": f"Bearer {TWO}claimed", "x-api-key": ONE},
        ):
            assert (await client.post(CHAT, json=BODY, headers=headers)).status_code == 200
    one, again, two, disguised = (order.tenant for order in engine.requests)
    assert one == again == disguised != two
    assert ONE not in one


async def test_the_document_says_that_a_key_is_needed(connect, with_keys):
    response = await _answer(connect(with_keys), "GET", "/openapi.json", headers={"x-api-key": ONE})
    document = response.json()
    assert document["security"] == [{"key": []}]
    assert document["paths"]["/health"]["get"]["security"] == []
    assert "security" not in (await _answer(connect(Settings()), "GET", "/openapi.json")).json()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LocalHost:8000", 200),
        ("localhost.:8000", 200),
        ("app.localhost", 200),
        ("host.docker.internal", 200),
        ("host.docker.internal:8000", 200),
        ("studio.local", 200),
        ("Studio.local.", 200),
        ("gateway.internal", 200),
        (socket.gethostname(), 200),
        (f"{socket.gethostname().upper()}:8000", 200),
        (socket.gethostname().partition(".")[0], 200),
        ("local", 403),
        ("internal", 403),
        ("evil.local.example", 403),
        ("host.docker.internal.evil.example", 403),
        ("evillocal", 403),
        ("127.0.0.1", 200),
        ("[::1]:8000", 200),
        ("192.168.0.7:8000", 200),
        ("proxy.example.com", 200),
        ("proxy.example.com:443", 200),
        ("evil.example", 403),
        ("evil.example:8000", 403),
        ("localhost.evil.example", 403),
        ("127.0.0.1.evil.example", 403),
        ("proxy.example.com.evil.example", 403),
        ("user@localhost", 403),
        ("[::1", 403),
        ("", 403),
    ],
)
async def test_over_loopback_only_names_of_this_machine_are_taken(connect, host, status):
    connection = connect(Settings(allowed_host=("proxy.example.com",)), "http://127.0.0.1")
    response = await _answer(connection, "GET", "/v1/models", headers={"Host": host})
    assert response.status_code == status
    if status == 403:
        assert "--allowed-host" in assert_error(response.json(), None, "host_not_allowed")


async def test_over_other_addresses_any_name_is_taken(connect):
    connection = connect(Settings(), "http://192.168.0.7")
    assert (await _answer(connection, "GET", "/v1/models", headers={"Host": "a.b"})).status_code == 200


def test_a_real_server_refuses_a_rebound_host_name(url):
    assert httpx.get(f"{url}/v1/models").status_code == 200
    refused = httpx.post(url + CHAT, json=BODY, headers={"Host": "rebound.evil.example"})
    assert (refused.status_code, refused.json()["error"]["code"]) == (403, "host_not_allowed")


PREFLIGHT = {
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


async def test_web_pages_get_no_cors_headers_unless_their_origin_is_allowed(connect):
    for origin in (SITE, "null", "http://localhost:3000"):
        asked = await _answer(connect(Settings()), "OPTIONS", CHAT, headers={"Origin": origin, **PREFLIGHT})
        assert asked.status_code == 405
        read = await _answer(connect(Settings()), "GET", "/v1/models", headers={"Origin": origin})
        for response in (asked, read):
            assert not [name for name in response.headers if name.startswith("access-control")]


async def test_an_allowed_origin_may_send_requests_with_a_key_and_read_the_responses(connect):
    settings = Settings(cors_origin=(SITE,), api_key=(ONE,))
    asked = await _answer(connect(settings), "OPTIONS", CHAT, headers={"Origin": SITE, **PREFLIGHT})
    assert asked.status_code == 200
    assert asked.headers["access-control-allow-origin"] == SITE
    assert asked.headers["access-control-allow-headers"] == "authorization,content-type"
    assert "access-control-allow-credentials" not in asked.headers
    headers = {"Origin": SITE, "Authorization": f"Bearer {ONE}"}
    answered = await _answer(connect(settings), "POST", CHAT, json=BODY, headers=headers)
    assert answered.status_code == 200
    assert answered.headers["access-control-allow-origin"] == SITE
    assert "x-request-id" in answered.headers["access-control-expose-headers"]
    refused = await _answer(connect(settings), "POST", CHAT, json=BODY, headers={"Origin": SITE})
    assert (refused.status_code, refused.headers["access-control-allow-origin"]) == (401, SITE)


@pytest.mark.parametrize("origin", ["https://evil.example", "https://chat.example.com.evil.example", "null"])
async def test_other_origins_get_no_cors_headers(connect, origin):
    settings = Settings(cors_origin=(SITE,))
    asked = await _answer(connect(settings), "OPTIONS", CHAT, headers={"Origin": origin, **PREFLIGHT})
    assert asked.status_code == 400
    read = await _answer(connect(settings), "GET", "/v1/models", headers={"Origin": origin})
    for response in (asked, read):
        assert "access-control-allow-origin" not in response.headers


async def test_an_allowed_origin_may_empty_the_table_and_others_may_not(connect, engine):
    settings = Settings(cors_origin=(SITE,))
    for origin, status in ((SITE, 200), ("https://evil.example", 403)):
        response = await _answer(connect(settings), "POST", "/v1/ngram-mod/reset", headers={"Origin": origin})
        assert response.status_code == status
    assert engine.memory_calls == ["reset"]
