"""A model that sees answers clients about their images, through every API, and never about another one."""

import base64
import io
import json

import anthropic
import httpx
import jsonschema
import numpy as np
import openai
import pytest
from PIL import Image

from tests.end_to_end.conftest import serving
from tests.end_to_end.seeing_folder import TOKENS, write_seeing

QUESTION = "What is it?"


def png(seed):
    """Return a PNG of random pixels in base64."""
    file = io.BytesIO()
    values = np.random.default_rng(seed).integers(0, 256, (40, 56, 3), dtype=np.uint8)
    Image.fromarray(values).save(file, "PNG")
    return base64.b64encode(file.getvalue()).decode()


def chat_parts(*seeds):
    urls = [f"data:image/png;base64,{png(seed)}" for seed in seeds]
    return [
        *({"type": "image_url", "image_url": {"url": url}} for url in urls),
        {"type": "text", "text": QUESTION},
    ]


def asked_by_chat(url, *seeds):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": chat_parts(*seeds)}],
        max_tokens=10,
        temperature=0,
        logprobs=True,
        extra_body={"ignore_eos": True},
    )
    (choice,) = answer.choices
    likely = [one.logprob for one in choice.logprobs.content]
    return choice.message.content, answer.usage, likely


def asked_by_responses(url, seed):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    content = [
        {"type": "input_image", "image_url": f"data:image/png;base64,{png(seed)}", "detail": "auto"},
        {"type": "input_text", "text": QUESTION},
    ]
    answer = client.responses.create(
        model="demo",
        input=[{"role": "user", "content": content}],
        max_output_tokens=16,
        temperature=0,
        extra_body={"ignore_eos": True},
    )
    return answer.output_text


def asked_by_messages(url, seed):
    client = anthropic.Anthropic(base_url=url, api_key="none")
    source = {"type": "base64", "media_type": "image/png", "data": png(seed)}
    content = [{"type": "image", "source": source}, {"type": "text", "text": QUESTION}]
    messages = [{"role": "user", "content": content}]
    counted = client.messages.count_tokens(model="demo", messages=messages)
    answer = client.messages.create(model="demo", messages=messages, max_tokens=10)
    usage = answer.usage
    assert usage.input_tokens + usage.cache_read_input_tokens == counted.input_tokens
    return counted.input_tokens


@pytest.fixture(
    scope="module",
    params=[
        "qwen3_vl",
        *(pytest.param(name, marks=pytest.mark.slow) for name in TOKENS if name != "qwen3_vl"),
    ],
)
def seeing_url(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("seeing")
    model = write_seeing(folder / "model", request.param)
    with serving(folder, "--model", str(model), "--sampling-defaults", "openai") as (address, printed):
        assert "sees images" in "".join(printed)
        yield address


def test_each_image_gets_its_own_answer_and_keeps_it(seeing_url):
    asked = [(1,), (2,), (1, 2), (2, 1), ()]
    answers = [asked_by_chat(seeing_url, *seeds) for seeds in asked]
    # So small a model may choose the same words; how likely they are tells two images apart.
    assert len({likely[0] for *_, likely in answers}) == len(asked)
    images = [usage.prompt_tokens_details.image_tokens or 0 for _, usage, _ in answers]
    assert images[1:] == [images[0], 2 * images[0], 2 * images[0], 0]
    assert images[0] > 3
    again = [asked_by_chat(seeing_url, *seeds) for seeds in asked]
    assert [text for text, *_ in again] == [text for text, *_ in answers]
    assert all(usage.prompt_tokens_details.cached_tokens > usage.prompt_tokens // 2 for _, usage, _ in again)


SCHEMA = {
    "type": "object",
    "properties": {
        "what_is_on_the_picture": {"type": "string", "maxLength": 12},
        "how_certain_is_that": {"enum": ["certain", "likely"]},
    },
    "required": ["what_is_on_the_picture", "how_certain_is_that"],
    "additionalProperties": False,
}


def asked_for_json(url, *seeds, **options):
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none")
    answer = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": chat_parts(*seeds)}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "seen", "schema": SCHEMA, "strict": True},
        },
        max_tokens=200,
        temperature=0.8,
        seed=1,
        extra_body=options,
    )
    return answer.choices[0].message.content


def test_an_answer_about_an_image_matches_its_schema_and_drafts_do_not_change_it(seeing_url):
    for seeds in ((1,), (2, 1)):
        text = asked_for_json(seeing_url, *seeds)
        jsonschema.validate(json.loads(text), SCHEMA)
        assert asked_for_json(seeing_url, *seeds, draft={"type": "none"}) == text


def test_all_apis_show_the_same_image(seeing_url):
    text, usage, _ = asked_by_chat(seeing_url, 1)
    assert asked_by_responses(seeing_url, 1).startswith(text)
    assert asked_by_messages(seeing_url, 1) == usage.prompt_tokens
    told = {"role": "user", "content": QUESTION, "images": [png(1)]}
    options = {"temperature": 0, "num_predict": 10}
    body = {"model": "demo", "messages": [told], "stream": False, "options": options}
    answer = httpx.post(f"{seeing_url}/api/chat", json=body, timeout=60).json()
    assert answer["prompt_eval_count"] == usage.prompt_tokens
    assert "vision" in httpx.post(f"{seeing_url}/api/show", json={"model": "demo"}).json()["capabilities"]
