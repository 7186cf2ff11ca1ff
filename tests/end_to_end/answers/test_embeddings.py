"""Embeddings and ranking on real servers: alone, and beside a chat model, with real clients."""

import base64
import json
import socket
from pathlib import Path

import httpx
import numpy as np
import openai
import pytest

from reprise.config.settings import Settings
from reprise.engine.embedding.encoder import AFTER, BEFORE, INSTRUCTION
from reprise.engine.embedding.loading import load_embedding_model
from tests.end_to_end.conftest import serving
from tests.engine.embedding.encoder_folders import minilm, write_encoder, write_modules
from tests.engine.embedding.published_folders import NO, YES, write_published
from tests.engine.embedding.test_worker import Driven
from tests.engine.model import fake_hub
from tests.engine.support import wait_until
from tests.server.openai_shapes import assert_error

TEXTS = ["The cat sits on the mat.", "A kitten rests on a rug.", "Interest rates rose again."]
CHAT = {"model": "reprise-demo", "messages": [{"role": "user", "content": "Hello!"}], "max_tokens": 8}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    write_encoder(folder / "ranks", "xlm-roberta", ranks=True)
    write_encoder(folder / "narrow", vocab_size=1000)
    prompted = write_encoder(folder / "prompted")
    write_modules(prompted, {"pooling_mode": "mean", "include_prompt": False}, "Normalize")
    (prompted / "config_sentence_transformers.json").write_text(
        '{"prompts": {"query": "query: ", "document": "passage: "}, "default_prompt_name": null}'
    )
    whole = {"vocab_size": 30522, "max_position_embeddings": 160}
    judge = write_published(folder / "judge", "qwen3", ranks=True, **whole)
    modules = [{"path": path, "type": f"x.{path[2:] or 'Transformer'}"} for path in ("", "1_LogitScore")]
    (judge / "modules.json").write_text(json.dumps(modules))
    (judge / "1_LogitScore").mkdir()
    scoring = json.dumps({"true_token_id": YES, "false_token_id": NO})
    (judge / "1_LogitScore" / "config.json").write_text(scoring)
    return folder


@pytest.fixture(scope="module")
def url(server_folder, folders):
    flags = ("--embedding-model", str(minilm()), "--rerank-model", str(folders / "ranks"))
    with serving(server_folder, "--model", "reprise-demo", *flags, "--models-dir", str(folders)) as (
        address,
        _,
    ):
        yield address


@pytest.fixture
def http(url):
    with httpx.Client(base_url=url, timeout=120) as made:
        yield made


def vectors_of(response: httpx.Response) -> np.ndarray:
    assert response.status_code == 200, response.text
    return np.array([one["embedding"] for one in response.json()["data"]])


def test_openai_s_client_gets_vectors_that_mean_something(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        # It asks for base64 unless it is told otherwise.
        answer = client.embeddings.create(model="model", input=TEXTS)
        plain = client.embeddings.create(model="model", input=TEXTS, encoding_format="float")
    vectors = np.array([one.embedding for one in answer.data])
    assert vectors.shape == (3, 384)
    assert [one.index for one in answer.data] == [0, 1, 2]
    assert np.array_equal(vectors, [one.embedding for one in plain.data])
    cat, kitten, rates = vectors
    assert cat @ kitten > 0.5 > 0.2 > cat @ rates
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 25
    assert answer.model == "model"


def test_all_four_forms_of_input_are_the_same_vectors(http):
    ids = [
        http.post("/tokenize", json={"model": "model", "prompt": text}).json()["tokens"] for text in TEXTS[:2]
    ]
    whole = vectors_of(http.post("/v1/embeddings", json={"input": TEXTS[:2]}))
    assert np.array_equal(vectors_of(http.post("/v1/embeddings", json={"input": ids})), whole)
    assert np.array_equal(vectors_of(http.post("/v1/embeddings", json={"input": TEXTS[0]})), whole[:1])
    assert np.array_equal(vectors_of(http.post("/v1/embeddings", json={"input": ids[0]})), whole[:1])


def test_base64_is_the_same_numbers(http):
    body = {"input": TEXTS[0], "dimensions": 7}
    coded = http.post("/v1/embeddings", json=body | {"encoding_format": "base64"}).json()
    numbers = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    assert np.array_equal(numbers, vectors_of(http.post("/v1/embeddings", json=body))[0])
    assert numbers @ numbers == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize(
    ("body", "param", "code"),
    [
        ({"input": ["a", "word " * 300]}, "input[1]", "context_length_exceeded"),
        ({"input": "word " * 300}, "input", "context_length_exceeded"),
        ({"input": [[1, 2], [1] * 300]}, "input[1]", "context_length_exceeded"),
        ({"input": [[1], [2, 99_999]]}, "input[1][1]", "invalid_token_id"),
        ({"input": "a", "dimensions": 385}, "dimensions", "invalid_value"),
        ({"input": "a", "prompt_name": "query"}, "prompt_name", "invalid_value"),
        ({"input": "a", "model": "reprise-demo"}, "model", "wrong_kind_of_model"),
        ({"input": "a", "model": "demo"}, "model", "wrong_kind_of_model"),
        ({"input": "a", "model": "ranks"}, "model", "wrong_kind_of_model"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_the_model_cannot_take_is_a_400_that_names_it(http, body, param, code):
    response = http.post("/v1/embeddings", json=body)
    fault = response.json()["error"]
    assert (response.status_code, fault["param"], fault["code"]) == (400, param, code)


def test_a_text_with_a_token_that_the_weights_lack_is_a_400_and_the_server_lives(http):
    response = http.post("/v1/embeddings", json={"model": "narrow", "input": ["!", "kitten"]})
    assert response.status_code == 400
    assert_error(response.json(), "input[1]", "invalid_token_id")
    assert vectors_of(http.post("/v1/embeddings", json={"model": "narrow", "input": "!"})).shape == (1, 32)


def test_a_text_that_is_too_long_is_cut_if_that_is_asked_for(http):
    long, model = " ".join(f"word{number}" for number in range(60)), {"model": "prompted"}

    def ask(given, **more):
        return http.post("/v1/embeddings", json=model | {"input": given} | more)

    told = http.post("/tokenize", json=model | {"content": long, "add_special_tokens": False})
    ids = told.json()["tokens"]
    expected = vectors_of(ask([[101, *ids[:78], 102], [101, *ids[-78:], 102]]))
    assert np.array_equal(vectors_of(ask(long, truncate="END")), expected[:1])
    assert np.array_equal(vectors_of(ask(long, truncate="START")), expected[1:])
    # Two tokens are the prompt's, and each of the last words has two.
    prompt = {"prompt_name": "query"}
    last = vectors_of(ask(" ".join(long.split()[-38:]), **prompt))
    assert np.array_equal(vectors_of(ask(long, truncate="START", **prompt)), last)
    refused = ask("a", instruction="word " * 100, truncate="END")
    assert refused.status_code == 400
    assert "no room for a text" in assert_error(refused.json(), "instruction", "context_length_exceeded")
    assert ask(long, truncate=True).json()["usage"]["total_tokens"] == 80


def test_prompts_go_before_texts_and_are_pooled_only_if_the_folder_says_so(http):
    def ask(given, **more):
        body = {"model": "prompted", "input": given} | more
        return vectors_of(http.post("/v1/embeddings", json=body))[0]

    named, typed = ask("hello", prompt_name="query"), ask("hello", input_type="search_query")
    instructed = ask("hello", instruction="query: ")
    assert np.array_equal(named, typed)
    assert np.array_equal(named, instructed)
    # In the text itself it is pooled.
    assert not np.array_equal(named, ask("query: hello"))
    assert not np.array_equal(named, ask("hello", input_type="document"))
    assert np.array_equal(ask("hello", encoding_format="float"), ask("hello"))


def test_an_input_type_without_a_prompt_is_left_out_and_named(http):
    response = http.post("/v1/embeddings", json={"input": "a", "input_type": "query"})
    assert "input_type" in response.headers["x-reprise-ignored"]
    assert np.array_equal(vectors_of(response), vectors_of(http.post("/v1/embeddings", json={"input": "a"})))


@pytest.mark.parametrize("kind", ["document", "passage", "search_document"])
def test_an_instruction_is_for_queries_and_named_beside_documents(http, kind):
    body = {"model": "prompted", "input": "a", "input_type": kind}
    response = http.post("/v1/embeddings", json=body | {"instruction": "Find it: "})
    assert response.headers["x-reprise-ignored"] == "instruction"
    assert np.array_equal(vectors_of(response), vectors_of(http.post("/v1/embeddings", json=body)))


def test_ollama_s_clients_get_the_same_vectors(http):
    whole = vectors_of(http.post("/v1/embeddings", json={"input": TEXTS}))
    answer = http.post("/api/embed", json={"model": "model:latest", "input": TEXTS}).json()
    assert np.array_equal(answer["embeddings"], whole)
    assert (answer["model"], answer["prompt_eval_count"]) == ("model:latest", 25)
    assert http.post("/api/embed", json={"input": TEXTS}).json()["model"] == "model"
    shown = http.post("/api/show", json={"model": "model"}).json()
    assert shown["capabilities"] == ["embedding"]
    assert shown["model_info"]["bert.embedding_length"] == 384
    older = http.post("/api/embeddings", json={"model": "model", "prompt": TEXTS[0]}).json()
    assert np.array_equal([older["embedding"]], whole[:1])
    for given in ("", []):
        empty = http.post("/api/embed", json={"model": "model", "input": given})
        assert (empty.status_code, empty.json()["embeddings"]) == (200, [])
    assert http.post("/api/embeddings", json={"model": "model", "prompt": ""}).json() == {"embedding": []}
    refused = http.post("/api/embed", json={"input": ["a", "word " * 300], "truncate": False})
    assert refused.status_code == 400
    assert "'input[1]' has 300 tokens" in refused.json()["error"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_documents_are_ranked_in_the_shapes_of_jina_and_cohere(http, path):
    body = {"query": "cats", "documents": [TEXTS[0], {"text": TEXTS[1]}, TEXTS[2]], "return_documents": True}
    ranked = http.post(path, json=body).json()
    results = ranked["results"]
    assert {one["index"] for one in results} == {0, 1, 2}
    scores = [one["relevance_score"] for one in results]
    assert scores == sorted(scores, reverse=True)
    assert all(0 < score < 1 for score in scores)
    assert [one["document"]["text"] for one in results] == [TEXTS[one["index"]] for one in results]
    assert ranked["usage"]["total_tokens"] > 20
    best = http.post(path, json=body | {"top_n": 1, "return_documents": False}).json()["results"]
    assert best == [{key: results[0][key] for key in ("index", "relevance_score")}]
    # Continue reads data, Jina's and Cohere's clients results.
    assert http.post(path, json=body | {"return_documents": False}).json()["data"][:1] == best
    (alone,) = http.post(path, json=body | {"documents": [TEXTS[results[0]["index"]]]}).json()["results"]
    assert alone["relevance_score"] == scores[0]


def judged(model, query, document, instruction=INSTRUCTION):
    """Return a pair's score in Qwen3-Reranker's template, encoded in the three parts of its model card."""
    texts = (BEFORE, f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}", AFTER)
    driven = Driven(model)
    driven.submit("one", [[token for text in texts for token in model.tokenizer.encode_answer(text)]])
    driven.run()
    return np.frombuffer(driven.ended["one"].vectors[0], "<f4")[0]


def test_a_model_that_decodes_ranks_by_its_template(http, folders):
    model = load_embedding_model(Settings(model=str(folders / "judge")), "judge")
    body = {"model": "judge", "query": "cats", "documents": TEXTS}
    for more in ({}, {"instruction": "Find rhymes"}):
        results = http.post("/v1/rerank", json=body | more).json()["results"]
        given = {one["index"]: one["relevance_score"] for one in results}
        expected = [judged(model, "cats", text, *more.values()) for text in TEXTS]
        assert [given[index] for index in range(3)] == pytest.approx(expected, abs=1e-7)
    # The query stays whole, whatever is cut.
    for truncate, kept in (("END", "a" + " a" * 4), ("START", "a" + " a" * 4)):
        cut = {"documents": ["a " * 300], "max_tokens_per_doc": 5, "truncate": truncate}
        (one,) = http.post("/v1/rerank", json=body | cut).json()["results"]
        assert one["relevance_score"] == pytest.approx(judged(model, "cats", kept), abs=1e-7)
    ignored = http.post("/v1/rerank", json=body | {"model": "ranks", "instruction": "Find rhymes"})
    assert ignored.headers["x-reprise-ignored"] == "instruction"


@pytest.mark.parametrize("model", ["ranks", "judge"])
@pytest.mark.parametrize(
    ("change", "param"),
    [
        ({"query": "word " * 100}, "query"),
        ({"documents": ["a", "word " * 100], "truncate": False}, "documents[1]"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_a_400_that_names_it(http, model, change, param):
    response = http.post("/v1/rerank", json={"model": model, "query": "a", "documents": ["b"]} | change)
    fault = response.json()["error"]
    assert (response.status_code, fault["param"], fault["code"]) == (400, param, "context_length_exceeded")


def test_a_long_document_is_cut(http):
    body = {"query": "a", "documents": ["word " * 100]}
    assert http.post("/v1/rerank", json=body).json()["usage"]["total_tokens"] == 78
    assert http.post("/v1/rerank", json=body | {"max_tokens_per_doc": 9}).json()["usage"]["total_tokens"] < 20


def test_a_model_that_embeds_does_not_chat_and_says_why(http):
    for name in ("model", "ranks"):
        response = http.post("/v1/chat/completions", json=CHAT | {"model": name})
        assert (response.status_code, response.json()["error"]["code"]) == (400, "wrong_kind_of_model")


def test_vectors_beside_chats_are_the_same_and_chats_too(http):
    expected = vectors_of(http.post("/v1/embeddings", json={"input": TEXTS}))
    answer = http.post("/v1/chat/completions", json=CHAT).json()["choices"]
    with http.stream("POST", "/v1/chat/completions", json=CHAT | {"max_tokens": 200, "stream": True}) as chat:
        lines = chat.iter_lines()
        next(lines)
        with httpx.Client(base_url=http.base_url, timeout=120) as other:
            beside = vectors_of(other.post("/v1/embeddings", json={"input": TEXTS}))
        rest = sum(1 for _ in lines)
    assert rest
    assert np.array_equal(beside, expected)
    assert http.post("/v1/chat/completions", json=CHAT).json()["choices"] == answer


def test_2048_texts_are_answered_in_order_and_hold_nobody(http):
    given = [f"text {number}" for number in range(2048)]
    body = {"model": "prompted", "input": given}
    whole = vectors_of(http.post("/v1/embeddings", json=body))
    coded = http.post("/v1/embeddings", json=body | {"encoding_format": "base64"}).json()["data"]
    assert np.array_equal(whole, [np.frombuffer(base64.b64decode(one["embedding"]), "<f4") for one in coded])
    some = [0, 777, 2047]
    alone = vectors_of(http.post("/v1/embeddings", json=body | {"input": [given[index] for index in some]}))
    assert np.array_equal(whole[some], alone)


def test_models_say_what_they_are_for(http):
    cards = {card["id"]: card for card in http.get("/v1/models").json()["data"]}
    assert {name: cards[name]["purpose"] for name in ("reprise-demo", "model", "ranks", "prompted")} == {
        "reprise-demo": "generate",
        "model": "embed",
        "ranks": "rerank",
        "prompted": "embed",
    }
    assert cards["model"]["embedding"] == {
        "dimensions": 384,
        "pooling": "mean",
        "is_guessed": False,
        "normalizes": True,
        "prompts": {},
        "default_prompt": None,
    }
    assert cards["reprise-demo"]["embedding"] is None
    # Before it is loaded too.
    assert cards["prompted"]["embedding"] == {
        "dimensions": 32,
        "pooling": "mean",
        "is_guessed": False,
        "normalizes": True,
        "prompts": {"query": "query: ", "document": "passage: "},
        "default_prompt": None,
    }


def count(http, name):
    text = http.get("/metrics").text
    return float(next(line for line in text.splitlines() if line.startswith(name)).split()[-1])


def test_progress_is_on_metrics(http):
    before = count(http, "reprise_embedded_total")
    tokens = http.post("/v1/embeddings", json={"input": TEXTS}).json()["usage"]["total_tokens"]
    assert count(http, "reprise_embedded_total") == before + 3
    assert count(http, "reprise_embedded_tokens_total") >= tokens
    assert count(http, "reprise_embedding_waiting") == 0


def test_a_request_whose_client_leaves_ends(http, url):
    before = count(http, "reprise_embedded_total")
    body = json.dumps({"model": "model", "input": ["many words " * 60] * 2048}).encode()
    head = f"POST /v1/embeddings HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(body)}\r\n"
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(f"{head}Content-Type: application/json\r\n\r\n".encode() + body)
        wait_until(lambda: count(http, "reprise_embedding_waiting") > 1000)
    wait_until(lambda: count(http, "reprise_embedding_waiting") == 0)
    assert count(http, "reprise_embedded_total") < before + 2048


def test_a_folder_that_embeds_serves_embeddings(server_folder, folders):
    with serving(server_folder, "--model", str(folders / "prompted")) as (address, printed):
        answer = httpx.post(
            f"{address}/v1/embeddings", json={"model": "demo", "input": "a"}, timeout=120
        ).json()
        assert answer["model"] == "demo"
        assert any("32 dimensions, pooling mean; prompts: query, document" in line for line in printed)


def test_a_name_on_the_hub_embeds_at_its_first_start(
    server_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_encoder(tmp_path / "model")
    files = {file.name: file.read_bytes() for file in folder.iterdir()}
    with fake_hub.serve(files, {"model.safetensors"}) as hub:
        # The server is another process.
        monkeypatch.setenv("HF_ENDPOINT", hub.endpoint)
        monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
        with serving(server_folder, "--model", fake_hub.MODEL) as (address, _):
            answer = httpx.post(f"{address}/v1/embeddings", json={"input": TEXTS}, timeout=120)
    assert [len(one["embedding"]) for one in answer.json()["data"]] == [32] * len(TEXTS)
