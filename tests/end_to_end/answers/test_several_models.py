"""A server of several models, over HTTP: they come and go as requests ask, and each answers as if alone."""

import json
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.engine import Engine
from reprise.engine.generating.generating_engine import GeneratingEngine
from reprise.engine.model.hub import HubCache
from reprise.engine.pool.catalogue import Catalogue
from reprise.engine.pool.model_engine import Inbox
from reprise.engine.pool.residency import Makers
from reprise.server.app import create_app
from reprise.server.generation import service
from reprise.server.generation.list_and_pull import MAX_PULLS
from tests.end_to_end.conftest import serving as real_server
from tests.end_to_end.seeing_folder import write_seeing
from tests.engine.model import fake_hub
from tests.engine.model_folders import text_of, write_model, write_models
from tests.engine.support import prompt_of, request, wait_until
from tests.server.served import served

PROMPT = prompt_of(20)
ASKED = request(PROMPT, max_tokens=30)
SAID = [{"role": "user", "content": "a"}]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_models(tmp_path_factory.mktemp("models"))


class Gate:
    """Holds up the loads of models, but for the first one."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self.opened.set()
        self.is_first = True

    def make_engine(self, settings: Settings, makers: Makers, inbox: Inbox) -> GeneratingEngine:
        is_first, self.is_first = self.is_first, False

        def wait_and_load(progress: Any) -> Any:
            if not is_first:
                progress(0.25)
                assert self.opened.wait(60)
            return makers.load(progress)

        return GeneratingEngine(settings, replace(makers, load=wait_and_load), inbox)


@contextmanager
def serving(models: Path, hub: HubCache, gate: Gate | None = None, **settings: Any) -> Iterator[httpx.Client]:
    given = {"model": str(models / "one"), "models_dir": str(models), "allow_load": True} | settings
    wanted = Settings(**given)
    make_engine = gate.make_engine if gate else GeneratingEngine
    pool = Engine(wanted, catalogue=Catalogue(wanted, hub), make_engine=make_engine)
    pool.start()
    try:
        with served(create_app(pool, wanted)) as url, httpx.Client(base_url=url, timeout=60) as client:
            yield client
    finally:
        if gate:
            gate.opened.set()
        pool.stop(drain_s=0)


@pytest.fixture
def hub(tmp_path: Path) -> HubCache:
    return HubCache(tmp_path / "hub")


@pytest.fixture
def client(models: Path, hub: HubCache) -> Iterator[httpx.Client]:
    with serving(models, hub) as client:
        yield client


def ask(client: httpx.Client, model: str | None, **more: Any) -> httpx.Response:
    body = {"prompt": PROMPT, "max_tokens": 30, "temperature": 0, "model": model} | more
    return client.post("/v1/completions", json=body)


def states(client: httpx.Client) -> dict[str, str]:
    return {card["id"]: card["state"] for card in client.get("/v1/models").json()["data"]}


def answer(response: httpx.Response) -> str:
    assert response.status_code == 200, response.text
    return str(response.json()["choices"][0]["text"])


def test_a_request_loads_the_model_that_it_asks_for(client: httpx.Client, models: Path) -> None:
    assert states(client) == {
        "one": "loaded", "broken": "unloaded", "org/two": "unloaded", "three": "unloaded"
    }  # fmt: skip
    for name in ("three", "org/two", None, "one"):
        response = ask(client, name)
        assert answer(response) == text_of(models / (name or "one"), ASKED)
        assert response.json()["model"] == (name or "one")
    fingerprints = {ask(client, name).json()["system_fingerprint"] for name in ("one", "org/two", "three")}
    assert len(fingerprints) == 3
    card = client.get("/v1/models/org/two").json()
    assert (card["state"], card["context_length"], card["progress"]) == ("loaded", 1024, None)
    assert card["size_bytes"] == card["meta"]["size"] > 0
    counted = client.post("/tokenize", json={"content": "a b", "model": "three"}).json()
    assert counted["max_model_len"] == 1024
    assert 'reprise_model_loads_total{model="three"} 1.0' in client.get("/metrics").text


@pytest.mark.parametrize("max_images", [20, 0])
def test_a_model_that_was_never_loaded_says_whether_it_sees(
    hub: HubCache, tmp_path: Path, max_images: int
) -> None:
    for name, family in (("seeing", "mistral3"), ("one", "qwen3_vl")):
        write_seeing(tmp_path / "models" / name, family)
    write_model(tmp_path / "models" / "reading", "llama", 1)
    with serving(tmp_path / "models", hub, max_images=max_images) as client:

        def told(name: str) -> tuple[Any, Any, bool]:
            card = client.get(f"/v1/models/{name}").json()
            shown = client.post("/api/show", json={"model": name}).json()
            return card["modalities"]["input"], card["vision"], "vision" in shown["capabilities"]

        before = told("seeing")
        assert states(client)["seeing"] == "unloaded"
        assert before[0] == (["text", "image"] if max_images else ["text"])
        assert (before[1] is not None, before[2]) == (bool(max_images),) * 2
        assert told("reading") == (["text"], None, False)
        answer(ask(client, "seeing"))
        assert states(client)["seeing"] == "loaded"
        assert told("seeing") == before


def test_metrics_count_sequences_and_tokens_by_model(client: httpx.Client) -> None:
    num_tokens = {
        name: sum(ask(client, name).json()["usage"]["completion_tokens"] for _ in range(num_requests))
        for name, num_requests in (("three", 2), ("org/two", 1))
    }
    metrics = client.get("/metrics").text
    for name, num_requests in (("three", 2), ("org/two", 1)):
        assert f'reprise_completion_tokens_total{{model="{name}"}} {num_tokens[name]}.0' in metrics
        assert f'reprise_time_to_first_token_seconds_count{{model="{name}"}} {num_requests}.0' in metrics
        assert f'reprise_sequences_total{{end="length",model="{name}"}} {num_requests}.0' in metrics
        assert f'reprise_gate_decisions_total{{decision="plain",model="{name}"}} {num_requests}.0' in metrics
    assert 'reprise_completion_tokens_total{model="one"}' not in metrics


def test_all_apis_find_their_model(client: httpx.Client) -> None:
    said = [{"role": "user", "content": "hello"}]
    sdk = openai.OpenAI(base_url=f"{client.base_url}/v1", api_key="none")
    assert sdk.chat.completions.create(model="three", messages=said, max_tokens=5).model == "three"  # type: ignore[arg-type]
    assert sdk.responses.create(model="org/two", input="hello", max_output_tokens=5).model == "org/two"
    body = {"model": "three", "messages": said}
    assert client.post("/v1/messages", json=body | {"max_tokens": 5}).json()["model"] == "three"
    assert client.post("/v1/messages/count_tokens", json=body).json()["input_tokens"] > 0
    assert {model.id for model in sdk.models.list()} >= {"one", "org/two", "three"}


@pytest.mark.parametrize(
    ("path", "body", "last"),
    [
        ("/v1/completions", {"prompt": PROMPT, "max_tokens": 5}, "data: [DONE]"),
        (
            "/v1/chat/completions",
            {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5},
            "data: [DONE]",
        ),
        ("/v1/responses", {"input": "a", "max_output_tokens": 5}, "response.incomplete"),
        ("/v1/messages", {"messages": [{"role": "user", "content": "a"}], "max_tokens": 5}, "message_stop"),
    ],
)
def test_a_stream_shows_how_far_its_model_is_and_then_the_answer(
    models: Path, hub: HubCache, path: str, body: dict[str, Any], last: str
) -> None:
    gate = Gate()
    with serving(models, hub, gate) as client:
        gate.opened.clear()
        with client.stream("POST", path, json={"model": "three", "stream": True} | body) as response:
            assert response.status_code == 200
            lines = response.iter_lines()
            assert next(lines) == ": loading three, 25%"
            shown = client.get("/health").json()["models"]
            loading = {"state": "loading", "progress": 0.25, "phase": "reading weights"}
            assert {"id": "three", "running": 0} | loading in shown
            gate.opened.set()
            rest = [line for line in lines if line and not line.startswith(": ")]
        assert last in "\n".join(rest[-2:])


def test_a_load_that_takes_too_long_is_a_503_and_harms_nobody(
    models: Path, hub: HubCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "LOAD_TIMEOUT_S", 0.3)
    gate = Gate()
    with serving(models, hub, gate, idle_unload_s=0.05) as client:
        gate.opened.clear()
        response = ask(client, "three")
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "load_timeout"
        assert int(response.headers["retry-after"]) > 0
        stream = ask(client, "three", stream=True)
        assert stream.status_code == 200
        assert '"code":"load_timeout"' in stream.text
        lines = client.post("/api/chat", json={"model": "three", "messages": SAID}).text.splitlines()
        assert "was not loaded in time" in json.loads(lines[-1])["error"]
        gate.opened.set()
        # Nobody uses it, so its time is over at once.
        wait_until(lambda: states(client)["three"] == "unloaded")


def test_a_client_that_leaves_while_its_model_is_loaded_leaves_nothing(models: Path, hub: HubCache) -> None:
    gate = Gate()
    with serving(models, hub, gate, idle_unload_s=0.05) as client:
        gate.opened.clear()
        body = {"prompt": PROMPT, "model": "three"}
        with pytest.raises(httpx.TimeoutException):
            client.post("/v1/completions", json=body, timeout=0.6)
        with client.stream("POST", "/v1/completions", json=body | {"stream": True}) as response:
            assert next(response.iter_lines()).startswith(": loading three")
        gate.opened.set()
        wait_until(lambda: states(client)["three"] == "unloaded")
        assert client.get("/health").json()["waiting"] == 0


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [
        ("nobody", 404, "model_not_found"),
        ("../one", 404, "model_not_found"),
        ("broken", 400, "model_not_loadable"),
    ],
)
def test_a_model_that_cannot_be_had_is_an_error(
    client: httpx.Client, models: Path, name: str, status: int, code: str
) -> None:
    for response in (
        ask(client, name),
        client.post("/v1/models/load", json={"model": name}),
        client.post(
            "/v1/messages",
            json={"model": name, "messages": [{"role": "user", "content": "a"}], "max_tokens": 1},
        ),
    ):
        assert response.status_code == status
        error = response.json()["error"]
        assert error.get("code", code) == code
        assert name in error["message"]
    assert answer(ask(client, "one")) == text_of(models / "one", ASKED)
    assert client.get("/health").status_code == 200


def test_models_are_loaded_and_unloaded_by_request(client: httpx.Client, models: Path) -> None:
    loaded = client.post("/v1/models/load", json={"model": "three"}).json()
    assert (loaded["id"], loaded["state"]) == ("three", "loaded")
    left = client.post("/v1/models/unload", json={"model": "three"}).json()
    assert (left["id"], left["state"]) == ("three", "unloaded")
    assert client.post("/v1/models/unload", json={"model": "three"}).json()["state"] == "unloaded"
    assert client.post("/v1/models/unload", json={"model": "one"}).json()["state"] == "unloaded"
    assert client.get("/health").json()["status"] == "ready"
    assert answer(ask(client, None)) == text_of(models / "one", ASKED)


def test_keep_alive_says_how_long_a_model_stays(models: Path, hub: HubCache) -> None:
    with serving(models, hub, idle_unload_s=0.05) as client:
        ask(client, "three", keep_alive="5m")
        ask(client, "org/two", keep_alive=0)
        wait_until(lambda: states(client)["org/two"] == "unloaded")
        assert states(client)["three"] == "loaded"
        ask(client, "three", keep_alive=0)
        wait_until(lambda: states(client)["three"] == "unloaded")
        assert ask(client, "three", keep_alive="soon").json()["error"]["param"] == "keep_alive"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", {"messages": SAID, "max_tokens": 3}),
        ("/v1/responses", {"input": "a", "max_output_tokens": 3}),
        ("/v1/messages", {"messages": SAID, "max_tokens": 3}),
    ],
)
def test_every_api_can_keep_a_model_or_let_it_go(
    models: Path, hub: HubCache, path: str, body: dict[str, Any]
) -> None:
    with serving(models, hub, idle_unload_s=0.05) as client:
        for keep_alive in ("5m", 0):
            response = client.post(path, json=body | {"model": "three", "keep_alive": keep_alive})
            assert response.status_code == 200, response.text
            assert "x-reprise-ignored" not in response.headers
            if keep_alive:
                # Long enough for others to be unloaded.
                ask(client, "org/two")
                wait_until(lambda: states(client)["org/two"] == "unloaded")
                assert states(client)["three"] == "loaded"
        wait_until(lambda: states(client)["three"] == "unloaded")
        refused = client.post(path, json=body | {"model": "three", "keep_alive": "soon"})
        assert refused.status_code == 400
        assert "keep_alive" in refused.json()["error"]["message"]


def test_nothing_is_loaded_where_that_is_not_allowed(models: Path, hub: HubCache) -> None:
    with serving(models, hub, allow_load=False, idle_unload_s=0.05) as client:
        for response in (ask(client, "three"), client.post("/v1/models/load", json={"model": "three"})):
            assert response.status_code == 403
            assert response.json()["error"]["code"] == "loading_not_allowed"
        assert ask(client, "nobody").status_code == 404
        for path in ("unload", "pull"):
            assert client.post(f"/v1/models/{path}", json={"model": "one"}).status_code == 403
        # Ollama's clients pull each model before they ask for it.
        assert client.post("/api/pull", json={"model": "three:latest"}).json() == {"status": "success"}
        assert client.post("/api/pull", json={"model": "nobody"}).status_code == 403
        assert client.post("/api/generate", json={"model": "one", "keep_alive": 0}).status_code == 403
        # The owner chose this one.
        wait_until(lambda: states(client)["one"] == "unloaded")
        assert answer(ask(client, "one")) == text_of(models / "one", ASKED)


def test_aliases_and_any_name_mean_the_first_model(models: Path, hub: HubCache) -> None:
    with serving(models, hub, served_model_name=("gpt", "*")) as client:
        for name in ("gpt", "whatever"):
            assert answer(ask(client, name)) == text_of(models / "one", ASKED)
        assert answer(ask(client, "three")) == text_of(models / "three", ASKED)
        for name in ("gpt", "whatever"):
            card = client.get(f"/v1/models/{name}").json()
            assert (card["id"], card["state"]) == (name, "loaded")


def events(response: httpx.Response) -> list[dict[str, Any]]:
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]


def test_a_model_is_pulled_with_progress_and_then_served(models: Path, tmp_path: Path) -> None:
    files = {file.name: file.read_bytes() for file in (models / "three").iterdir()}
    with fake_hub.serve(files, {"model.safetensors"}) as remote:
        hub = HubCache(tmp_path / "hub", remote.endpoint)
        with serving(models, hub) as client:
            pulled = events(client.post("/v1/models/pull", json={"model": fake_hub.MODEL}))
            assert pulled[0]["status"] == "downloading"
            assert pulled[-1]["status"] == "success"
            assert pulled[-1]["completed_bytes"] == pulled[-1]["total_bytes"] == sum(map(len, files.values()))
            assert answer(ask(client, fake_hub.MODEL)) == text_of(models / "three", ASKED)
            [failed] = events(client.post("/v1/models/pull", json={"model": "some-org/none"}))[-1:]
            assert (failed["status"], failed["error"]["code"]) == ("error", "model_not_found")
            assert states(client)[fake_hub.MODEL] == "loaded"


class EndlessHeader(BaseHTTPRequestHandler):
    """Answers with a header that goes on for as long as anyone reads it, so that no timeout ends it."""

    def do_GET(self) -> None:
        with suppress(OSError):
            self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Endless: ")
            while not self.server.is_over.wait(1):
                self.wfile.write(b"a")


@contextmanager
def endless_hub() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), EndlessHeader) as server:
        server.is_over = threading.Event()
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.is_over.set()
        server.shutdown()
        thread.join()


def test_downloads_that_hang_hold_up_nobody_and_there_are_only_so_many(models: Path, tmp_path: Path) -> None:
    num_pulls = (os.cpu_count() or 1) + 5
    with (
        endless_hub() as url,
        serving(models, HubCache(tmp_path / "hub", url)) as client,
        ExitStack() as stack,
    ):
        statuses = []
        for at in range(max(num_pulls, MAX_PULLS + 1)):
            pull = client.stream("POST", "/v1/models/pull", json={"model": f"some-org/model-{at}"})
            statuses.append(stack.enter_context(pull).status_code)
        for name in ("one", "three"):
            assert answer(ask(client, name)) == text_of(models / name, ASKED)
        assert states(client)["three"] == "loaded"
        assert statuses == [200] * MAX_PULLS + [429] * (len(statuses) - MAX_PULLS)


def test_one_model_may_be_unloaded_while_nobody_asks(models: Path, hub: HubCache) -> None:
    with serving(models, hub, models_dir=None, allow_load=None, idle_unload_s=0.05) as client:
        wait_until(lambda: states(client) == {"one": "unloaded"})
        for name in (None, "one"):
            assert answer(ask(client, name)) == text_of(models / "one", ASKED)
        assert ask(client, "three").status_code == 404
        wait_until(lambda: states(client) == {"one": "unloaded"})


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="glibc gives back what is freed when it is told to")
def test_an_unloaded_model_gives_back_what_the_process_took_for_it(
    server_folder: Path, tmp_path: Path
) -> None:
    for name in ("a", "b", "c"):
        (tmp_path / name).symlink_to(BUNDLED_MODEL)
    flags = ("--model", str(tmp_path / "a"), "--models-dir", str(tmp_path))
    asked = {"messages": [{"role": "user", "content": "Hello! " * 500}], "max_tokens": 60}
    resident = []
    with real_server(server_folder, *flags) as (url, _), httpx.Client(base_url=url, timeout=240) as client:
        for name in ("a", "b", "c"):
            assert client.post("/v1/chat/completions", json=asked | {"model": name}).status_code == 200
            resident.append(read_resident_bytes(client))
        for name in ("b", "c"):
            assert client.post("/v1/models/unload", json={"model": name}).status_code == 200
        assert resident[0] * 1.1 < resident[-1]
        assert read_resident_bytes(client) < resident[0]


def read_resident_bytes(client: httpx.Client) -> float:
    [line] = re.findall(r"^process_resident_memory_bytes (.+)", client.get("/metrics").text, re.MULTILINE)
    return float(line)


def test_ollama_s_streams_have_lines_without_text_while_their_model_loads(
    models: Path, hub: HubCache
) -> None:
    body = {"model": "three:latest", "messages": SAID, "options": {"num_predict": 5, "temperature": 0}}
    gate = Gate()
    with serving(models, hub, gate) as client:
        gate.opened.clear()
        with client.stream("POST", "/api/chat", json=body) as response:
            assert response.headers["content-type"] == "application/x-ndjson"
            lines = map(json.loads, response.iter_lines())
            first = next(lines)
            assert (first["model"], first["message"]["content"], first["done"]) == ("three:latest", "", False)
            gate.opened.set()
            *rest, last = lines
        assert (last["done"], last["eval_count"]) == (True, 5)
        assert last["total_duration"] > last["load_duration"] > 0
        whole = client.post("/api/chat", json=body | {"stream": False}).json()
        assert "".join(line["message"]["content"] for line in rest) == whole["message"]["content"]


def test_ollama_s_clients_load_keep_and_unload_models(client: httpx.Client) -> None:
    listed = {model["model"] for model in client.get("/api/tags").json()["models"]}
    assert listed == {"one:latest", "broken:latest", "org/two:latest", "three:latest"}
    unknown = client.post("/api/show", json={"model": "three"}).json()
    assert (unknown["details"]["family"], unknown["capabilities"]) == ("", ["completion"])

    def runs() -> dict[str, str]:
        return {model["model"]: model["expires_at"] for model in client.get("/api/ps").json()["models"]}

    for name, keep, at_most_s in (("three", "10m", 600), ("org/two", 300, 300)):
        loaded = client.post("/api/generate", json={"model": name, "keep_alive": keep}).json()
        assert loaded["done_reason"] == "load"
        left_s = datetime.fromisoformat(runs()[f"{name}:latest"]).timestamp() - time.time()
        assert 0 < left_s <= at_most_s
    assert runs()["one:latest"].startswith("9999")
    assert client.post("/api/show", json={"model": "three"}).json()["details"]["family"]
    unloaded = client.post("/api/chat", json={"model": "three:latest", "messages": [], "keep_alive": 0})
    assert unloaded.json()["done_reason"] == "unload"
    assert "three:latest" not in runs()
    asked = {"prompt": "a", "options": {"num_predict": 2}, "stream": False}
    answered = client.post("/api/generate", json={"model": "org/two", "keep_alive": 0} | asked)
    assert answered.json()["eval_count"] == 2
    wait_until(lambda: "org/two:latest" not in runs())


def test_ollama_s_clients_pull_models(models: Path, tmp_path: Path) -> None:
    files = {file.name: file.read_bytes() for file in (models / "three").iterdir()}
    with fake_hub.serve(files, {"model.safetensors"}) as remote:
        hub = HubCache(tmp_path / "hub", remote.endpoint)
        with serving(models, hub) as client:
            response = client.post("/api/pull", json={"model": f"{fake_hub.MODEL}:latest"})
            states = [json.loads(line) for line in response.text.splitlines()]
            assert (states[0]["status"], states[-1]["status"]) == ("downloading", "success")
            assert states[-1]["completed"] == states[-1]["total"] == sum(map(len, files.values()))
            again = client.post("/api/pull", json={"name": fake_hub.MODEL, "stream": False})
            assert again.json() == {"status": "success"}
            for stream in (True, False):
                failed = client.post("/api/pull", json={"model": "some-org/none", "stream": stream})
                assert failed.status_code == (200 if stream else 404)
                assert "some-org/none" in json.loads(failed.text.splitlines()[-1])["error"]


ROUTES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": SAID},
    "/v1/completions": {"prompt": "a"},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {"messages": SAID, "max_tokens": 1},
    "/v1/embeddings": {"input": "a"},
    "/v1/models/load": {},
    "/v1/models/unload": {},
    "/api/chat": {"messages": SAID},
    "/api/generate": {"prompt": "a"},
    "/api/show": {},
    "/tokenize": {"content": "a"},
}


@pytest.mark.parametrize("long", ["x" * 256, "org/" + "x" * 256, "x" * 250 + ":" + "x" * 256, "é" * 128])
def test_a_name_that_no_folder_can_have_is_no_model(
    client: httpx.Client, long: str, caplog: pytest.LogCaptureFixture
) -> None:
    asked = {path: client.post(path, json={"model": long} | body) for path, body in ROUTES.items()}
    asked["/v1/models"] = client.get(f"/v1/models/{long}")
    assert {path: response.status_code for path, response in asked.items()} == dict.fromkeys(asked, 404)
    # Another test may have let the HTTP library log, too.
    said = "".join(one.getMessage() for one in caplog.records if one.name.startswith("reprise"))
    assert "failed" not in said
    assert long not in said
