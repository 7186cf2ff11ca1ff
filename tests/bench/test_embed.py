"""`reprise bench embed` from the command line, on servers with scripted vectors."""

import base64
import json
import sys

import numpy as np
import pytest

from reprise.cli.main import main

LIBRARY = """
import numpy as np
class SentenceTransformer:
    def __init__(self, folder, device): print("loading", folder)
    def encode(self, texts, batch_size): return np.array([[1.0, 1.0]] * len(texts))
"""


def vectors(*given):
    return json.dumps({"data": [{"embedding": one} for one in given]}).encode()


def bench(model_folder, file, *given):
    sizes = ["--lengths", "8,16", "--batches", "1", "--requests", "2", "--rounds", "2"]
    status = main(["bench", "embed", "--model", str(model_folder), *sizes, "--json", str(file), *given])
    return status, json.loads(file.read_text())["embed"]["rows"] if file.exists() else []


def test_peers_get_the_same_new_texts_and_their_vectors_are_compared(
    model_folder, tokenizer, server, other_server, tmp_path, monkeypatch, capsys
):
    server.play(vectors([3.0, 3.0]))
    other_server.play(vectors(base64.b64encode(np.array([1, 0], "<f4").tobytes()).decode()))
    (tmp_path / "sentence_transformers.py").write_text(LIBRARY)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    given = ["--server", f"first={server.url}", "--server", f"other={other_server.url}"]
    status, rows = bench(
        model_folder, tmp_path / "found.json", *given, "--sentence-transformers", sys.executable
    )
    assert status == 0
    names = ["first", "other", "sentence-transformers"]
    assert [(row["length"], row["name"]) for row in rows] == [(n, name) for n in (8, 16) for name in names]
    cosines = {row["name"]: row["cosine"] for row in rows}
    assert cosines == {"first": None, "other": pytest.approx(0.5**0.5), "sentence-transformers": 1.0}
    assert all(row["texts_per_s"] > 0 for row in rows)
    assert all(row["ratio"] > 0 for row in rows if row["name"] != "first")
    texts = [text for body in server.bodies for text in body["input"]]
    assert texts == [text for body in other_server.bodies for text in body["input"]]
    assert len(set(texts)) == len(texts) == 2 * 2 * 3
    lengths = [len(tokenizer.encode(text)) for text in texts]
    assert max(lengths[:6]) <= 8 < max(lengths[6:]) <= 16
    assert "The same texts on each peer" in capsys.readouterr().out


def test_a_peer_that_fails_is_told_with_its_reason(model_folder, server, tmp_path, capsys):
    server.play(b"{}", status=400)
    status, rows = bench(model_folder, tmp_path / "found.json", "--server", f"it={server.url}")
    assert (status, [row["failed"] for row in rows]) == (1, [6, 6])
    assert "! failed: it: HTTPStatusError: Client error '400 Bad Request'" in capsys.readouterr().out


@pytest.mark.parametrize("python", [sys.executable, "no-such-python"])
def test_a_library_that_is_not_there_is_one_line(model_folder, server, tmp_path, capsys, python):
    given = ["--server", f"it={server.url}", "--sentence-transformers", python]
    assert bench(model_folder, tmp_path / "found.json", *given) == (1, [])
    assert f"reprise bench embed: --sentence-transformers {python}: " in capsys.readouterr().err
