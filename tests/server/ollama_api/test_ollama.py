"""Ollama's API over the fake engine, validated with the ollama package's models."""

import re
from dataclasses import replace

import httpx
import ollama
import pytest
from ollama import ChatResponse, GenerateResponse, ListResponse, ProcessResponse, ShowResponse

from reprise.config.settings import Settings
from reprise.engine.interface.models import SamplingDefaults
from reprise.engine.text.markers import FimTokens
from reprise.server.app import create_app
from reprise.server.generation import answer
from reprise.server.requests.fields import MAX_FIELDS
from tests.server.fake_engine import CONTEXT_TOKENS, THINKING, fail_first, fail_midway, says, wait_midway
from tests.server.ollama_api.ollama_shapes import (
    assert_ollama_error,
    lines_of,
    valid_answer,
    valid_lines,
)
from tests.server.served import served

CHAT, GENERATE, OPENAI = "/api/chat", "/api/generate", "/v1/chat/completions"
HELLO = [{"role": "user", "content": "hello"}]
PARAMETERS = {"type": "object", "properties": {"at": {"type": "array"}}}
LOOK = {"type": "function", "function": {"name": "look", "description": "Looks.", "parameters": PARAMETERS}}
SCHEMA = {"type": "object", "properties": {"age": {"type": "integer"}}, "required": ["age"]}
CALLING_PIECES = (
    '<tool_call>{"name": "look", "argu', 'ments": {"at": [1, "ż"]}}</tool_call>',
    '<tool_call>{"name": "look", "arguments": {}}</tool_call>',
)  # fmt: skip


async def chat(client, **fields):
    return await client.post(CHAT, json={"model": "alias", "messages": HELLO, "stream": False} | fields)


async def generate(client, **fields):
    return await client.post(GENERATE, json={"model": "alias", "prompt": "hello", "stream": False} | fields)


async def test_an_answer_is_what_the_package_expects(client):
    answer = valid_answer((await chat(client)).json(), ChatResponse)
    assert (answer.model, answer.done_reason) == ("alias", "stop")
    assert (answer.message.role, answer.message.content) == ("assistant", "user: hello\n")
    assert (answer.prompt_eval_count, answer.eval_count) == (12, 12)
    assert (answer.prompt_eval_duration, answer.eval_duration) == (200_000_000, 1_200_000_000)
    assert answer.total_duration >= answer.load_duration


async def test_a_prompt_is_answered_as_what_a_user_says(client):
    answer = valid_answer((await generate(client, system="Be brief.")).json(), GenerateResponse)
    assert answer.response == "system: Be brief.\nuser: hello\n"


@pytest.mark.parametrize("stream", [False, True])
def test_the_package_reads_what_httpx_takes_for_the_end_of_a_line(engine, url, stream):
    text = "one\u2028two\u2029three\x85four\x0bfive\x1dsix"
    engine.script = says(text)
    found = ollama.Client(url).chat("alias", HELLO, stream=stream)
    assert "".join(part.message.content for part in (found if stream else [found])) == text


@pytest.mark.parametrize("ask", [chat, generate])
async def test_a_stream_is_the_default_and_says_what_a_whole_answer_says(client, ask):
    kind = ChatResponse if ask is chat else GenerateResponse
    whole = valid_answer((await ask(client)).json(), kind)
    response = await ask(client, stream=None)
    assert response.headers["content-type"] == "application/x-ndjson"
    *lines, last = valid_lines(response.text, kind)
    texts = [line.message.content if ask is chat else line.response for line in [*lines, last]]
    assert "".join(texts) == (whole.message.content if ask is chat else whole.response)
    assert (last.eval_count, last.prompt_eval_count) == (whole.eval_count, whole.prompt_eval_count)
    assert texts[-1] == ""


@pytest.mark.parametrize("stream", [True, False])
async def test_thinking_and_calls_are_apart_from_the_text(client, engine, stream):
    engine.tokenizer.markers = THINKING
    engine.script = says("<think>hm", " hm</think>", "I ", "look.", *CALLING_PIECES)
    response = await chat(client, tools=[LOOK], think=True, stream=stream)
    lines = valid_lines(response.text + "\n" * (not stream), ChatResponse)
    said = [line.message for line in lines]
    assert "".join(one.thinking or "" for one in said) == "hm hm"
    assert "".join(one.content for one in said) == "I look."
    calls = [call.function for one in said for call in one.tool_calls or ()]
    assert [(call.name, call.arguments) for call in calls] == [("look", {"at": [1, "ż"]}), ("look", {})]


@pytest.mark.parametrize("is_named", [True, False])
async def test_a_conversation_with_calls_is_the_same_prompt_as_in_chats(client, engine, is_named):
    names, ids = ("look", "find", "look"), ("call_1", "call_2", "call_3")
    # Results without a name are those of the calls in their order.
    order = (1, 0, 2) if is_named else (0, 1, 2)
    calls = [{"function": {"name": name, "arguments": {"at": [1]}}} for name in names]
    ollama = [
        *HELLO,
        {"role": "assistant", "content": "", "thinking": "hm", "tool_calls": calls},
        *({"role": "tool", "content": f"result {at}", **({"tool_name": names[at]} if is_named else {})}
          for at in order),
    ]  # fmt: skip
    chats = [
        *HELLO,
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [
            {"id": ids[at], "type": "function", "function": {"name": names[at], "arguments": '{"at": [1]}'}}
            for at in range(3)]},
        *({"role": "tool", "content": f"result {at}", "tool_call_id": ids[at]} for at in order),
    ]  # fmt: skip
    response = await chat(client, messages=ollama, tools=[LOOK], options={"seed": 7, "temperature": 0.5})
    assert response.status_code == 200, response.text
    assert "x-reprise-ignored" not in response.headers
    whole = await client.post(
        OPENAI, json={"messages": chats, "tools": [LOOK], "seed": 7, "temperature": 0.5}
    )
    assert whole.status_code == 200, whole.text
    (first, *_), (second, *_) = engine.tokenizer.rendered[-2:]
    assert first == second
    mine, theirs = engine.requests[-2:]
    assert (mine.prompt, mine.sampling) == (theirs.prompt, theirs.sampling)


async def test_a_last_message_of_the_assistant_is_continued(client, engine):
    await chat(client, messages=[*HELLO, {"role": "assistant", "content": "Well"}])
    assert bytes(engine.requests[-1].prompt) == b"user: hello\nassistant: Well"


async def test_options_are_sampling_and_the_others_are_named(client, engine):
    options = {
        "temperature": 0.5, "top_p": 0.9, "top_k": 20, "min_p": 0.1, "seed": 3, "num_predict": 5, "stop": "X",
        "repeat_penalty": 1.2, "presence_penalty": 0.5, "frequency_penalty": 0.25,
    }  # fmt: skip
    useless = {"num_ctx": 4096, "mirostat": 0, "num_gpu": 1, "repeat_last_n": 64, "typical_p": 0.7}
    response = await chat(client, options=options | useless | {"colour": 1})
    named = set(response.headers["x-reprise-ignored"].split(", "))
    assert named == {f"options.{name}" for name in (*useless, "colour")}
    asked = engine.requests[-1]
    same = await client.post(
        OPENAI,
        json={"messages": HELLO, "max_tokens": 5, "repetition_penalty": 1.2}
        | {name: options[name] for name in options if name not in ("num_predict", "repeat_penalty")},
    )
    assert same.status_code == 200
    theirs = engine.requests[-1]
    assert (asked.sampling, asked.max_tokens, asked.stop) == (
        theirs.sampling, theirs.max_tokens, theirs.stop
    )  # fmt: skip


@pytest.mark.parametrize("limit", [-1, -2, 0])
async def test_no_limit_of_tokens_is_as_many_as_the_context_allows(client, engine, limit):
    await chat(client, options={"num_predict": limit, "seed": -1})
    assert engine.requests[-1].max_tokens == CONTEXT_TOKENS - len(engine.requests[-1].prompt)


async def test_what_options_leave_out_is_as_the_model_recommends(client, engine):
    engine.info = replace(engine.info, sampling_defaults=SamplingDefaults(temperature=0.6, top_k=20))
    await chat(client)
    assert (engine.requests[-1].sampling.temperature, engine.requests[-1].sampling.top_k) == (0.6, 20)


@pytest.mark.parametrize(
    ("given", "same"), [("json", {"type": "json_object"}), (SCHEMA, None), ("", {"type": "text"})]
)
@pytest.mark.parametrize("ask", [chat, generate])
async def test_a_format_is_enforced_as_a_response_format_is(client, engine, ask, given, same):
    await ask(client, format=given)
    mine = engine.requests[-1].grammar
    asked = {"guided_json": SCHEMA} if same is None else {"response_format": same}
    await client.post(OPENAI, json={"messages": HELLO} | asked)
    theirs = engine.requests[-1].grammar
    assert mine == theirs
    assert (mine is None) == (given == "")


@pytest.mark.parametrize(
    ("think", "arguments"),
    [
        (True, {"enable_thinking": True}),
        (False, {"enable_thinking": False}),
        ("high", {"reasoning_effort": "high"}),
    ],
)
async def test_think_is_told_to_the_template(client, engine, think, arguments):
    await chat(client, think=think)
    await generate(client, think=think)
    assert [told for _, told in engine.tokenizer.rendered[-2:]] == [arguments, arguments]


async def test_images_are_shown_as_placeholders(client, engine):
    message = {"role": "user", "content": "What is it?", "images": ["aGk=", "aGk="]}
    response = await chat(client, messages=[message])
    assert response.headers["x-reprise-ignored"] == "messages[0].images (as text)"
    shown = 2 * "[image: this model reads text]"
    assert bytes(engine.requests[-1].prompt).decode() == f"user: {shown}What is it?\n"
    response = await generate(client, prompt="What?", images=["aGk="])
    assert valid_answer(response.json(), GenerateResponse).response.count("[image") == 1
    assert response.headers["x-reprise-ignored"] == "images (as text)"
    alone = await chat(client, messages=[{"role": "user", "content": "", "images": ["aGk="]}])
    told = assert_ollama_error(alone.json())
    assert "nothing but media" in told
    assert "serve a model that sees, such as mlx-community/Qwen3-VL-4B-Instruct-4bit" in told


async def test_a_raw_prompt_is_continued_without_a_template(client, engine):
    response = await generate(
        client, prompt="[INST] hi", raw=True, options={"num_predict": 3}, images=["aGk="]
    )
    answer = valid_answer(response.json(), GenerateResponse)
    assert (answer.response, answer.done_reason) == ("[IN", "length")
    assert response.headers["x-reprise-ignored"] == "images"
    assert bytes(engine.requests[-1].prompt) == b"[INST] hi"


async def test_a_suffix_is_a_hole_for_models_that_fill_in(client, engine):
    refused = await generate(client, suffix="}")
    assert refused.status_code == 400
    assert "fill-in-the-middle" in assert_ollama_error(refused.json())
    engine.tokenizer.fim = FimTokens(prefix=3, suffix=4, middle=5)
    await generate(client, prompt="", suffix="}")
    assert engine.requests[-1].prompt == (3, 4, ord("}"), 5)
    shown = ShowResponse.model_validate((await client.post("/api/show", json={"model": "alias"})).json())
    assert "insert" in shown.capabilities
    assert ".Suffix" in shown.template


async def test_log_probabilities_are_those_of_chats(client):
    asked = {"logprobs": True, "top_logprobs": 2}
    mine = (await chat(client, **asked)).json()["logprobs"]
    theirs = await client.post(OPENAI, json={"messages": HELLO} | asked)
    assert mine == theirs.json()["choices"][0]["logprobs"]["content"]
    lines = lines_of((await chat(client, stream=True, **asked)).text)
    assert [one for line in lines for one in line.get("logprobs", ())] == mine
    raw = (await generate(client, raw=True, **asked)).json()["logprobs"]
    assert [len(one["top_logprobs"]) for one in raw] == [2] * 5


@pytest.mark.parametrize(("ask", "empty"), [(chat, {"messages": []}), (generate, {"prompt": ""})])
async def test_nothing_to_say_loads_the_model(client, engine, ask, empty):
    for fields in (empty, empty | {"stream": True}):
        response = await ask(client, **fields)
        assert response.headers["content-type"] == "application/json"
        assert (response.json()["done"], response.json()["done_reason"]) == (True, "load")
    assert not engine.requests
    unloaded = await ask(client, **empty, keep_alive=0)
    assert (unloaded.json()["done_reason"], unloaded.headers["x-reprise-ignored"]) == ("unload", "keep_alive")
    assert (await ask(client, **empty, keep_alive=0, model="llama3.2")).status_code == 404


@pytest.mark.parametrize(
    ("body", "kind"), [({}, "application/x-ndjson"), ({"stream": False}, "application/json")]
)
async def test_a_model_that_is_here_is_pulled_at_once(client, body, kind):
    for name in ("alias", "alias:latest", "org/fake-model"):
        pulled = await client.post("/api/pull", json={"model": name} | body)
        assert (pulled.status_code, pulled.headers["content-type"]) == (200, kind)
        assert pulled.json() == {"status": "success"}


@pytest.mark.parametrize("ask", [chat, generate])
@pytest.mark.parametrize(
    ("options", "sampling"),
    [
        ({"temperature": 2.5}, {"temperature": 2.5}),
        ({"temperature": 40}, {"temperature": 40.0}),
        ({"temperature": 0}, {"temperature": 0.0}),
        ({"temperature": None}, {"temperature": 1.0}),
        ({"repeat_penalty": 0}, {"repetition_penalty": 1.0}),
        ({"repeat_penalty": 0.0, "temperature": 2.5}, {"repetition_penalty": 1.0, "temperature": 2.5}),
    ],
)
async def test_sampling_that_openai_s_api_lacks_is_taken(client, engine, ask, options, sampling):
    for more in ({}, {"raw": True}) if ask is generate else ({},):
        response = await ask(client, options=options, **more)
        assert response.status_code == 200, response.text
        used = engine.requests[-1].sampling
        assert {name: getattr(used, name) for name in sampling} == sampling


async def test_models_are_listed_with_a_tag_and_found_with_and_without(client):
    listed = ListResponse.model_validate((await client.get("/api/tags")).json()).models
    assert [model.model for model in listed] == ["org/fake-model:latest", "alias:latest"]
    assert listed[0].details.parameter_size == "8.1M"
    for name in ("org/fake-model:latest", "alias", "alias:latest", None):
        answer = (await chat(client, model=name)).json()
        assert answer["model"] == (name or "org/fake-model")
        assert (await client.post("/api/show", json={"model": name})).status_code == 200
    for path, body in ((CHAT, {"messages": HELLO}), ("/api/show", {}), (GENERATE, {"prompt": "a"})):
        response = await client.post(path, json={"model": "llama3.2"} | body)
        assert response.status_code == 404
        assert "'llama3.2' does not exist" in assert_ollama_error(response.json())


async def test_a_name_that_has_the_tag_keeps_it(engine, settings):
    app = create_app(engine, replace(settings, served_model_name=("own:latest",)))
    transport = httpx.ASGITransport(app)
    async with (
        app.router.lifespan_context(app),
        httpx.AsyncClient(transport=transport, base_url="http://a") as http,
    ):
        assert (await chat(http, model="own:latest")).status_code == 200
        assert (await chat(http, model="own")).status_code == 404


async def test_a_model_is_described(client, engine):
    engine.tokenizer.markers = THINKING
    engine.info = replace(engine.info, sampling_defaults=SamplingDefaults(temperature=0.6, top_k=20))
    given = (await client.post("/api/show", json={"name": "alias:latest", "verbose": True})).json()
    shown = ShowResponse.model_validate(given)
    assert shown.capabilities == ["completion", "tools", "thinking"]
    assert shown.modelinfo["fake.context_length"] == CONTEXT_TOKENS
    assert shown.modelinfo["general.parameter_count"] == 8_100_000
    # As Continue reads them.
    found = [re.fullmatch(r'(\S+)\s+((?:".*")|\S+)', line) for line in shown.parameters.split("\n")]
    assert [line.groups() for line in found] == [
        ("num_ctx", str(CONTEXT_TOKENS)), ("temperature", "0.6"), ("top_k", "20")
    ]  # fmt: skip


async def test_the_loaded_model_runs(client):
    (model,) = ProcessResponse.model_validate((await client.get("/api/ps")).json()).models
    assert (model.model, model.context_length) == ("org/fake-model:latest", CONTEXT_TOKENS)
    assert model.size_vram == model.size == 16_200_000
    assert model.expires_at.year == 9999


async def test_the_version_is_new_enough_for_clients_and_says_whose_it_is(client):
    told = (await client.get("/api/version")).json()
    assert tuple(map(int, told["version"].split("."))) >= (0, 30, 0)
    assert "reprise" in told
    for path in ("/", "/api/version", "/api/tags"):
        assert (await client.head(path)).status_code == 200


CONTINUE = {
    "model": "alias:latest",
    "messages": [
        {"role": "system", "content": "You help."},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": {}}}]},
        {"role": "tool", "content": "a tree"},
        {"role": "user", "content": "and now?", "images": []},
    ],
    "options": {"num_predict": 9, "num_ctx": 8192, "temperature": 0.1, "top_k": 5, "stop": ["\n\n\n"]},
    "tools": [LOOK],
    "think": False,
    "keep_alive": 1800,
    "stream": True,
}
OPEN_WEBUI = {
    "model": "alias:latest",
    "messages": [{"role": "user", "content": "hello"}],
    "options": {"num_ctx": 2048, "mirostat": 0, "seed": 1, "num_thread": 2},
    "stream": True,
    "keep_alive": "5m",
    "format": {"type": "object", "properties": {}},
}
LANGCHAIN = {
    "model": "alias",
    "messages": [
        {"role": "user", "content": "hello", "images": []},
        {"role": "assistant", "content": "", "images": [], "tool_calls": [
            {"function": {"name": "look", "arguments": {"at": [1]}}}]},
        {"role": "tool", "content": "a tree", "images": []},
    ],
    "stream": True,
    "options": {"temperature": 0.8, "repeat_penalty": 1.1, "num_predict": 128, "tfs_z": 1.0},
    "tools": [LOOK],
}  # fmt: skip
LLAMA_INDEX = {
    "model": "alias",
    "messages": [{"role": "user", "content": "hello"}],
    "stream": False,
    "format": "",
    "think": False,
    "options": {"temperature": 0.75, "num_ctx": 3900},
    "keep_alive": "5m",
    "tools": [],
}
GENERATES = {
    "model": "alias:latest",
    "prompt": "def f(",
    "raw": True,
    "options": {"num_ctx": 8192},
    "keep_alive": 1800,
}


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, CONTINUE), (CHAT, OPEN_WEBUI), (CHAT, LANGCHAIN), (CHAT, LLAMA_INDEX), (GENERATE, GENERATES)],
    ids=["Continue", "Open WebUI", "LangChain", "LlamaIndex", "Continue, raw"],
)
async def test_what_clients_send_is_answered(client, strict_client, path, body):
    liberal = await client.post(path, json=body)
    assert liberal.status_code == 200, liberal.text
    ignored = liberal.headers["x-reprise-ignored"].split(", ")
    assert {one for one in ignored if not one.startswith("options.")} <= {"keep_alive"}
    strict = await strict_client.post(path, json=body)
    assert strict.status_code == 200, strict.text


BAD = [
    (CHAT, {"messages": "hello"}, "'messages' must be an array"),
    (CHAT, {"options": {"temperature": -1}}, "'options.temperature' must be at least 0"),
    (CHAT, {"options": {"temperature": 1e300}}, "'options.temperature' must be at most 2147483647"),
    (CHAT, {"options": {"num_predict": "5"}}, "'options.num_predict' must be an integer"),
    (CHAT, {"options": {f"key{n}": 0 for n in range(MAX_FIELDS + 1)}}, f"at most {MAX_FIELDS}"),
    (CHAT, {"format": "xml"}, "'format' must be 'json'"),
    (CHAT, {"format": {"enum": ["a" * 10] * 7_000}}, "'format'"),
    (CHAT, {"think": 5}, "'think' must be a boolean"),
    (CHAT, {"tools": [LOOK | {"function": {"name": "no name!"}}]}, "'tools[0].function.name'"),
    (CHAT, {"messages": HELLO * 300, "truncate": False}, "maximum context length is 1000 tokens"),
    (CHAT, {"messages": [{"role": "user", "content": "a", "images": ["a"] * 9000}]}, "9000 parts"),
    (GENERATE, {"prompt": "a", "images": ["a"] * 9000}, "'images'"),
    (GENERATE, {"prompt": 5}, "'prompt' must be a string"),
    (GENERATE, {"prompt": "a", "template": "{{ .Prompt }}"}, "send raw: true with the whole prompt"),
    (GENERATE, {"prompt": "a", "context": [1, 2]}, "send the conversation to /api/chat"),
    (GENERATE, {"prompt": "a", "raw": True, "system": "b"}, "'system' cannot be combined with raw"),
    ("/api/pull", {}, "Missing required parameter: 'model'"),
]  # fmt: skip


# One test: an app for each would take longer than all of them.
async def test_bad_input_is_a_400_that_names_the_field(client, engine):
    for path, fields, named in BAD:
        response = await client.post(path, json={"messages": HELLO} | fields if path == CHAT else fields)
        assert response.status_code == 400, named
        assert named in assert_ollama_error(response.json())
    assert not engine.requests


async def test_too_long_a_conversation_loses_its_oldest_turns_and_says_so(client, engine):
    turns = [{"role": role, "content": 50 * "a"} for _ in range(20) for role in ("user", "assistant")]
    response = await chat(client, messages=[*turns, *HELLO])
    assert response.status_code == 200, response.text
    assert "truncation: the " in response.headers["x-reprise-ignored"]
    assert bytes(engine.requests[-1].prompt).endswith(b"user: hello\n")


NOT_HERE = [
    ("POST", "/api/create", 501, "reprise convert"),
    ("POST", "/api/push", 501, "uploads"),
    ("POST", "/api/copy", 501, "copies"),
    ("POST", "/api/blobs/sha256:00", 501, "reprise convert"),
    ("DELETE", "/api/delete", 501, "reprise rm"),
    ("GET", "/api/nothing", 404, "There is no endpoint"),
    ("GET", "/api/chat", 405, "Use POST"),
    ("POST", "/api/chat", 415, "Content-Type"),
    ("POST", "/api/pull", 403, "--allow-load"),
]


async def test_what_is_not_here_says_so_in_ollama_s_shape(client):
    for method, path, status, told in NOT_HERE:
        given = {"headers": {"Content-Type": "text/plain"}} if status == 415 else {"json": {"model": "a"}}
        response = await client.request(method, path, **given)
        assert response.status_code == status, path
        assert told in assert_ollama_error(response.json())


async def test_a_model_that_generates_makes_no_embeddings_and_says_the_way_out(client):
    for path, body in (("/api/embed", {"input": "a"}), ("/api/embeddings", {"prompt": "a"})):
        response = await client.post(path, json=body)
        assert response.status_code == 400
        assert "--embedding-model" in assert_ollama_error(response.json())


async def test_a_failure_is_a_status_or_the_last_line(client, engine):
    engine.script = fail_first
    response = await chat(client, stream=True)
    assert response.status_code == 500
    assert "roof is on fire" in assert_ollama_error(response.json())
    engine.script = fail_midway
    *_, last = lines_of((await chat(client, stream=True)).text)
    assert "roof is on fire" in assert_ollama_error(last)


def test_a_silent_stream_has_lines_without_text_and_a_client_that_leaves_is_noticed(engine, monkeypatch):
    monkeypatch.setattr(answer, "KEEP_ALIVE_S", 0.05)
    engine.script = wait_midway
    with (
        served(create_app(engine, Settings())) as url,
        httpx.stream("POST", url + CHAT, json={"messages": HELLO}, timeout=20) as response,
    ):
        lines = response.iter_lines()
        said = [lines_of(next(lines) + "\n")[0] for _ in range(3)]
        assert sorted(line["message"]["content"] for line in said) == ["", "", "well "]
        assert not any(line["done"] for line in said)
        response.close()
        assert engine.wait_until(lambda: engine.cancelled_ids)
