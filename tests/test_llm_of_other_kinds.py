"""Models in Python that see images, and that embed."""

import gc
import io
import threading
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reprise import LLM, SamplingParams
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.setting import SettingsError
from reprise.engine.interface.errors import ModelError
from reprise.engine.memory.pressure import MemoryPressure
from reprise.server.errors import ApiError, BadRequestError, UnavailableError
from tests.end_to_end.seeing_folder import write_seeing
from tests.engine.embedding.encoder_folders import minilm


def test_a_model_that_sees_is_shown_images_in_three_ways(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (40, 56, 3), dtype=np.uint8)
    image, file = Image.fromarray(pixels), io.BytesIO()
    image.save(file, "PNG")
    (tmp_path / "image.png").write_bytes(file.getvalue())
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)

    def asked(shown: object) -> list[dict[str, object]]:
        content = [{"type": "image", "image": shown}, {"type": "text", "text": "What is it?"}]
        return [{"role": "user", "content": content}]

    with LLM(
        write_seeing(tmp_path / "model", "qwen3_vl"),
        progress=False,
    ) as seeing:
        ways = [image, file.getvalue(), str(tmp_path / "image.png")]
        answers = [seeing.chat(asked(shown), params) for shown in ways]
        assert len({tuple(one.token_ids) for one in answers}) == 1
        assert answers[0].usage["prompt_tokens_details"]["image_tokens"] > 0
        other = seeing.chat(asked(Image.fromarray(255 - pixels)), params)
        assert other.prompt_token_ids == answers[0].prompt_token_ids


def test_a_stream_keeps_its_model_open() -> None:
    params = SamplingParams(temperature=0, max_tokens=24)
    said = "".join(delta.text for delta in LLM(progress=False).stream("Once", params))
    # Closed with the stream, so another can be opened.
    with LLM(progress=False) as other:
        assert other.generate("Once", params).text == said


@pytest.mark.parametrize("where", ["reprise-engine", "reprise-watchdog", "reprise-llm", "own"])
def test_one_that_is_dropped_is_closed_whichever_thread_collects_it(
    where: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_dropped, is_collected = threading.Event(), threading.Event()

    def collect() -> None:
        assert gc.collect()
        is_collected.set()

    def look(_: object) -> None:
        if where == "reprise-watchdog" and is_dropped.is_set() and not is_collected.is_set():
            collect()

    monkeypatch.setattr(MemoryPressure, "look", look)
    gc.disable()
    try:
        llm = LLM(progress=False)
        engine, server = llm._engine, llm._server
        llm.itself = llm  # type: ignore[attr-defined]
        del llm
        is_dropped.set()
        if where == "reprise-engine":
            engine.first_engine.between_steps(collect)
        elif where == "reprise-llm":
            server._loop.call_soon_threadsafe(collect)
        elif where == "own":
            threading.Thread(target=collect).start()
        assert is_collected.wait(30)
    finally:
        gc.enable()
    with LLM(progress=False) as other:
        assert other.encode("x")


def test_models_of_a_folder_are_meant_by_their_names_and_loaded(tmp_path: Path) -> None:
    for name in ("mine", "other"):
        (tmp_path / name).symlink_to(BUNDLED_MODEL)
    asked = [{"role": "user", "content": "Hi"}]
    with LLM("mine", models_dir=str(tmp_path), progress=False) as llm:
        assert llm.chat(asked, max_tokens=3).text == llm.chat(asked, max_tokens=3, model="other").text
    with (
        LLM(models_dir=str(tmp_path), allow_load=False, progress=False) as llm,
        pytest.raises(ApiError, match="--allow-load"),
    ):
        llm.chat(asked, max_tokens=3, model="other")
    with pytest.raises(SettingsError, match="there is no such folder"):
        LLM(models_dir=str(tmp_path / "nowhere"), progress=False)


def test_a_model_that_embeds() -> None:
    with LLM(minilm(), progress=False) as embedding:
        one, two = embedding.embed(["The cat sits.", "Rates rose."])
        assert len(one) == 384
        assert sum(number * number for number in one) == pytest.approx(1, abs=1e-5)
        assert embedding.embed("The cat sits.") == one
        assert one != two
        assert len(embedding.embed("The cat sits.", dimensions=16)) == 16
        with pytest.raises(BadRequestError, match="makes embeddings, and this endpoint is for"):
            embedding.generate("x")
    embedding.close()
    with pytest.raises(UnavailableError, match="The LLM is closed"):
        embedding.embed("x")
    with pytest.raises(ModelError, match="/nowhere/at/all"):
        LLM("/nowhere/at/all", progress=False)
