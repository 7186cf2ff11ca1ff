"""An answer of 2,048 vectors of 4,096 numbers arrives whole and holds the event loop for nobody."""

import base64
import json

import httpx
import numpy as np
import pytest
from safetensors.numpy import save_file

from tests.end_to_end.conftest import serving
from tests.engine.embedding.encoder_folders import write_encoder, write_modules

WIDTH, NUM_TEXTS = 4096, 2048


@pytest.fixture
def folder(tmp_path):
    folder = write_encoder(tmp_path / "wide", num_hidden_layers=1)
    write_modules(folder, {"pooling_mode": "mean"}, "Dense", "Normalize")
    dense = folder / "2_Dense"
    told = json.loads((dense / "config.json").read_text()) | {"out_features": WIDTH}
    (dense / "config.json").write_text(json.dumps(told))
    weight = np.random.default_rng(0).normal(size=(WIDTH, 32)).astype(np.float32)
    save_file({"linear.weight": weight, "linear.bias": weight[:, 0].copy()}, dense / "model.safetensors")
    return folder


@pytest.mark.slow
def test_170_mb_of_numbers_arrive_and_hold_nobody(folder, tmp_path):
    body = {"input": [f"text {number}" for number in range(NUM_TEXTS)]}
    # It fails if the server's loop was held for over 100 ms by its own work.
    with serving(tmp_path, "--model", str(folder)) as (url, _):
        found = {}
        for shape in ("float", "base64"):
            answer = httpx.post(f"{url}/v1/embeddings", json=body | {"encoding_format": shape}, timeout=250)
            assert int(answer.headers["content-length"]) == len(answer.content)
            found[shape] = [one["embedding"] for one in answer.json()["data"]]
            assert httpx.get(f"{url}/health", timeout=60).json()["running"] == 0
    coded = [np.frombuffer(base64.b64decode(one), "<f4") for one in found["base64"]]
    assert np.array_equal(np.float32(found["float"]), coded)
    assert np.shape(coded) == (NUM_TEXTS, WIDTH)
