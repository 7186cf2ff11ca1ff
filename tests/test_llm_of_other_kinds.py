"""Models in Python that see images, and that embed."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from reprise import LLM, SamplingParams
from reprise.engine.interface.errors import ModelError
from reprise.server.errors import BadRequestError, UnavailableError
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
