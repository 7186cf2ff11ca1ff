import pytest

from tests.server.openai_shapes import valid_completion

PATH = "/v1/completions"


@pytest.mark.parametrize(
    ("prompt", "texts"),
    [
        ("one", ["one"]),
        (["one", "two"], ["one", "two"]),
        ([111, 110, 101], ["one"]),
        ([[111], [116, 119, 111]], ["o", "two"]),
    ],
    ids=["text", "texts", "ids", "lists of ids"],
)
async def test_every_form_of_prompt_is_continued(client, prompt, texts):
    response = await client.post(PATH, json={"prompt": prompt})
    assert response.status_code == 200, response.text
    answer = valid_completion(response.json())
    assert [choice.text for choice in answer.choices] == texts
    assert [choice.index for choice in answer.choices] == list(range(len(texts)))
    assert answer.usage.prompt_tokens == sum(map(len, texts))


async def test_choices_of_one_prompt_stand_together(client):
    answer = valid_completion(
        (await client.post(PATH, json={"prompt": ["a", "b"], "n": 2, "best_of": 2})).json()
    )
    assert [choice.text for choice in answer.choices] == ["a", "a", "b", "b"]
    assert answer.usage.prompt_tokens == 2
    assert answer.usage.completion_tokens == 4


async def test_each_prompt_gets_the_seeds_that_it_would_get_alone(client, engine):
    await client.post(PATH, json={"prompt": ["a", "b"], "n": 2, "seed": 5})
    seeds = [request.sampling.seed for request in engine.requests]
    assert seeds[:2] == seeds[2:]
    assert seeds[0] == 5 != seeds[1]
