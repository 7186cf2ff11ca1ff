"""Tools as Codex sends them: namespaces, free-form tools, and those that are left out."""

import json
import logging

import pytest

from reprise.engine.interface.request import Grammar
from reprise.server.openai_api.responses import presenter as presenting
from reprise.server.openai_api.responses.presenter import ResponsePresenter
from reprise.server.openai_api.responses.schemas import ResponsesRequest
from reprise.server.output.parts import CallArgumentsPart, ToolCallPart
from reprise.server.output.presenter import KEEP_ALIVE, InputDecoder, ResponseHead
from reprise.server.requests.fields import validate
from reprise.server.requests.tools import Tool, function_name
from tests.server.fake_engine import says
from tests.server.openai_api.responses.responses_shapes import raw_events, valid_events, valid_response
from tests.server.tools.test_json_lark import PATCH

PATH = "/v1/responses"
SPAWN = {"type": "function", "name": "spawn_agent", "parameters": {"type": "object", "properties": {}}}
NAMESPACE = {"type": "namespace", "name": "collaboration", "description": "Agents.", "tools": [SPAWN]}
APPLY = {
    "type": "custom",
    "name": "apply_patch",
    "description": "Edit files.",
    "format": {"type": "grammar", "syntax": "lark", "definition": PATCH},
}
LEFT_OUT = [{"type": "local_shell"}, {"type": "web_search", "external_web_access": True}]
TOOLS = [SPAWN | {"name": "shell"}, NAMESPACE, APPLY, *LEFT_OUT]
TEXT = '*** Begin Patch\n*** Add File: "ż😀"\n+x\\n\n*** End Patch\n'


def call(name, arguments):
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


async def test_codex_s_first_request_is_accepted_and_says_what_it_left_out(client, engine, caplog):
    with caplog.at_level(logging.INFO, logger="reprise"):
        response = await client.post(PATH, json={"input": "hi", "tools": TOOLS})
    assert response.status_code == 200
    assert response.headers["x-reprise-ignored"] == "tools[3].local_shell, tools[4].web_search"
    assert "ignored tools[3].local_shell, tools[4].web_search" in caplog.text
    (shown,) = engine.tokenizer.rendered_tools
    names = [tool["function"]["name"] for tool in shown]
    assert names == ["shell", "collaboration__spawn_agent", "apply_patch"]
    assert "*** Begin Patch" in shown[2]["function"]["description"]
    assert [tool["type"] for tool in response.json()["tools"]] == ["function", "namespace", "custom"]


async def test_a_request_with_nothing_left_out_has_no_such_header(client):
    response = await client.post(PATH, json={"input": "hi", "tools": TOOLS[:3]})
    assert "x-reprise-ignored" not in response.headers


async def test_a_call_that_the_model_did_not_end_is_incomplete(client, engine):
    engine.script = says(call("shell", {"command": "rm -r a/b"}).partition("/")[0])
    response = await client.post(PATH, json={"input": "hi", "tools": TOOLS, "stream": True})
    (item,) = valid_events(response.text)[-1].response.output
    assert (item.type, item.status) == ("function_call", "incomplete")


async def test_a_lark_grammar_is_enforced_inside_the_call(client, engine):
    await client.post(PATH, json={"input": "hi", "tools": [APPLY]})
    (grammar,) = engine.compiled_grammars
    assert isinstance(grammar, Grammar)
    assert "input_0: %lark" in grammar.text


async def test_a_regex_is_enforced_as_the_pattern_of_the_input(client, engine):
    tool = APPLY | {"format": {"type": "grammar", "syntax": "regex", "definition": "[a-c]+"}}
    await client.post(PATH, json={"input": "hi", "tools": [tool]})
    (grammar,) = engine.compiled_grammars
    assert "^(?:[a-c]+)$" in grammar.text


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_a_call_has_the_tool_s_own_name(client, engine, stream):
    said = call("collaboration__spawn_agent", {"a": 1}) + call("apply_patch", {"input": TEXT})
    engine.script = says(*said)
    response = await client.post(PATH, json={"input": "hi", "tools": TOOLS, "stream": stream})
    if stream:
        events = raw_events(response.text)
        valid_events(response.text)
        deltas = [e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta"]
        assert "".join(deltas) == TEXT
        (done,) = [e for e in events if e["type"] == "response.custom_tool_call_input.done"]
        assert done["input"] == TEXT
        items = events[-1]["response"]["output"]
    else:
        items = response.json()["output"]
        valid_response(response.json())
    spawned, patched = items
    assert (spawned["type"], spawned["name"]) == ("function_call", "spawn_agent")
    assert spawned["namespace"] == "collaboration"
    assert (patched["type"], patched["name"], patched["input"]) == ("custom_tool_call", "apply_patch", TEXT)


async def test_calls_and_their_outputs_can_be_sent_back(client, engine):
    engine.script = says(call("collaboration__spawn_agent", {}), call("apply_patch", {"input": TEXT}))
    first = (await client.post(PATH, json={"input": "hi", "tools": TOOLS})).json()
    spawned, patched = first["output"]
    outputs = [
        {"type": "function_call_output", "call_id": spawned["call_id"], "output": "ok"},
        {"type": "custom_tool_call_output", "call_id": patched["call_id"], "output": "done"},
    ]
    again = {"input": [{"role": "user", "content": "hi"}, spawned, patched, *outputs], "tools": TOOLS}
    continued = {"input": outputs, "previous_response_id": first["id"], "tools": TOOLS}
    for body in (again, continued):
        assert (await client.post(PATH, json=body)).status_code == 200
        messages = engine.tokenizer.rendered[-1][0]
        made = [one["function"] for one in messages[1]["tool_calls"]]
        assert made == [
            {"name": "collaboration__spawn_agent", "arguments": {}},
            {"name": "apply_patch", "arguments": {"input": TEXT}},
        ]
        assert [message["content"] for message in messages[2:]] == ["ok", "done"]


async def test_reasoning_that_another_server_encrypted_is_left_out_and_named(client, engine):
    foreign = {"type": "reasoning", "summary": [], "encrypted_content": "gAAAAB"}
    body = {"input": [{"role": "user", "content": "x"}, foreign, {"role": "assistant", "content": "y"}]}
    response = await client.post("/v1/responses", json=body)
    assert response.status_code == 200
    assert response.headers["x-reprise-ignored"] == "input[1].encrypted_content"
    without = await client.post("/v1/responses", json={"input": [body["input"][0], body["input"][2]]})
    assert without.status_code == 200
    assert engine.requests[0].prompt == engine.requests[1].prompt


async def test_reasoning_goes_round_in_encrypted_content_alone(client, engine):
    engine.tokenizer.markers = engine.tokenizer.markers.__class__(
        think_start=None, think_end=None, call_start=None
    )
    encrypted = {"type": "reasoning", "summary": [], "encrypted_content": "reprise:aG0="}
    body = {"input": [{"role": "user", "content": "x"}, encrypted, {"role": "assistant", "content": "y"}]}
    assert (await client.post(PATH, json=body)).status_code == 200
    assert engine.tokenizer.rendered[-1][0][1]["reasoning_content"] == "hm"


async def test_a_named_tool_is_found_in_its_namespace(client, engine):
    choice = {"type": "function", "namespace": "collaboration", "name": "spawn_agent"}
    body = {"input": "x", "tools": TOOLS, "tool_choice": choice}
    assert (await client.post(PATH, json=body)).status_code == 200
    assert "collaboration__spawn_agent" in engine.compiled_grammars[-1].text


def grammar(syntax, definition):
    return [APPLY | {"format": {"type": "grammar", "syntax": syntax, "definition": definition}}]


@pytest.mark.parametrize(
    ("tools", "param"),
    [
        ([{"type": "browser"}], "tools[0].browser"),
        ([NAMESPACE | {"tools": [{"type": "web_search"}]}], "tools[0].tools[0].web_search"),
        ([NAMESPACE | {"tools": [SPAWN | {"name": "a b"}]}], "tools[0].tools[0].name"),
        ([NAMESPACE | {"extra": 1}], "tools[0].extra"),
        ([NAMESPACE, NAMESPACE], "tools[1].tools[0]"),
        ([APPLY | {"name": None}], "tools[0].custom"),
        (grammar("ebnf", "x"), "tools[0].format.syntax"),
        (grammar("lark", ""), "tools[0].format.definition"),
        (grammar("lark", "start: %json {}"), "tools[0].format.definition"),
        (grammar("regex", "a" * 4097), "tools[0].format.definition"),
    ],
)
async def test_a_malformed_tool_is_refused_by_its_own_path(strict_client, tools, param):
    response = await strict_client.post(PATH, json={"input": "x", "tools": tools})
    assert response.status_code == 400
    assert response.json()["error"]["param"] == param


def test_names_are_short_enough_and_distinct():
    long = function_name("mcp__codex_apps__" + "g" * 124, "search")
    assert len(long) == 128
    assert long != function_name("mcp__codex_apps__" + "g" * 125, "search")
    assert function_name("a.b", "c") == "a_b__c"


@pytest.mark.parametrize("text", [TEXT, "", "\u0001\t\r\b\f\\u0041", '"'])
@pytest.mark.parametrize("is_ascii", [False, True])
def test_input_is_decoded_however_it_is_split(text, is_ascii):
    shown = json.dumps({"input": text}, ensure_ascii=is_ascii)
    for pieces in ([shown], list(shown), *([shown[:at], shown[at:]] for at in range(1, len(shown)))):
        decoder = InputDecoder()
        assert "".join(map(decoder.feed, pieces)) == text


async def test_instructions_and_a_developer_message_are_one_system_message(client, engine):
    """As Codex sends them; many chat templates refuse a second system message."""
    developer = {"role": "developer", "content": "Be brief."}
    said = [developer, {"role": "user", "content": "x"}]
    await client.post(PATH, json={"instructions": "You code.", "input": said})
    assert engine.tokenizer.rendered[-1][0] == [
        {"role": "system", "content": "You code.\n\nBe brief."},
        {"role": "user", "content": "x"},
    ]


async def test_tools_that_items_bring_stay_in_later_turns(client, engine):
    brings = {"type": "additional_tools", "role": "developer", "tools": [SPAWN, {"name": "no such name"}]}
    first = (
        await client.post(PATH, json={"input": [brings, {"role": "user", "content": "hi"}], "tools": [APPLY]})
    ).json()
    later = await client.post(
        PATH, json={"input": "go", "tools": [APPLY], "previous_response_id": first["id"]}
    )
    assert later.status_code == 200
    assert engine.tokenizer.rendered_tools[0] == engine.tokenizer.rendered_tools[1]
    names = [tool["function"]["name"] for tool in engine.tokenizer.rendered_tools[1]]
    assert names == ["apply_patch", "spawn_agent"]


@pytest.mark.parametrize("tools", [[None], [5, [], {}], [{"type": []}]])
async def test_what_is_no_tool_is_left_out(client, tools):
    response = await client.post(PATH, json={"input": "hi", "tools": tools})
    assert (response.status_code, response.json()["tools"]) == (200, [])
    assert "tools[0]" in response.headers["x-reprise-ignored"]


def test_parts_that_show_nothing_are_a_comment_unless_no_event_came_for_long(monkeypatch):
    body = validate({"input": "x", "instructions": "Be brief."}, ResponsesRequest)
    edit = Tool("edit", None, {}, is_custom=True)
    presenter = ResponsePresenter(ResponseHead("1", 1, "m", ""), body, 1, lambda _: None, [edit])
    assert presenter.format_parts([(0, ToolCallPart("c1", "edit"))]).startswith(
        b"event: response.output_item"
    )
    assert presenter.format_parts([(0, CallArgumentsPart('{"in'))]) == KEEP_ALIVE
    monkeypatch.setattr(presenting, "QUIET_S", -1.0)
    assert presenter.format_parts([(0, CallArgumentsPart("put"))]).startswith(b"event: response.in_progress")
    assert b"delta" in presenter.format_parts([(0, CallArgumentsPart('": "a'))])
