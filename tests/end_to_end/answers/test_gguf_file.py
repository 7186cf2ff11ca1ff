"""A GGUF file is served as it is given: converted at the first start, and answered from as mlx_lm would."""

from pathlib import Path

import httpx
import pytest
from gguf.constants import GGMLQuantizationType as Kind

from tests.end_to_end.conftest import serving
from tests.engine.model.convert.gguf_files import write_gguf
from tests.engine.model_folders import text_of
from tests.engine.support import request


def test_a_gguf_file_is_served_like_its_converted_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    source = write_gguf(tmp_path / "my-model.gguf", "qwen3", Kind.Q4_0)
    prompt = [5, 900, 17, 4000, 33, 61]
    body = {"model": "my-model", "prompt": prompt, "max_tokens": 20, "temperature": 0}
    with serving(tmp_path, "--model", str(source)) as (address, printed):
        answered = httpx.post(f"{address}/v1/completions", json=body, timeout=100).json()
    (folder,) = (tmp_path / "cache").glob("reprise/converted/*/my-model")
    assert answered["choices"][0]["text"] == text_of(folder, request(prompt, 20))
    assert f"converting my-model.gguf, once, into {folder}" in "".join(printed)
