"""Items of the input are listed in the types of the API, and read from the store as they were at first."""

import itertools

import pytest
from openai.types.responses import ResponseItem
from pydantic import TypeAdapter

from reprise.server.openai_api.responses.items import as_listed, from_items
from reprise.server.requests.fields import Notes
from reprise.server.requests.messages import settle

ITEM = TypeAdapter(ResponseItem)
NOTHING = object()
CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
OUTPUTS = ("function_call_output", "custom_tool_call_output")
GIVEN = {
    "call_id": (NOTHING, None, "", "c1", 5),
    "id": (NOTHING, None, "own_1"),
    "status": (NOTHING, None, "completed", "odd", 5),
    "name": (NOTHING, None, "read"),
}
"""Values of fields, one item for each combination."""
RESULTS = (
    {"result": "found"},
    {"output": None, "result": "lost"},
    {"output": {"content": [{"type": "input_text", "text": "found"}]}},
    {"result": {"content": "found", "is_error": False}},
    {"output": {"content": [{"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}},
    {"output": {"found": 5}},
)
CONTENTS = (NOTHING, None, "a", [], ["a"], {"type": "input_text", "text": "a"}, [{"type": "input_image"}], 5)
ASSISTANTS = ([{"type": "refusal", "refusal": "No."}], [{"type": "thinking", "thinking": "Hm."}, "a"])


def items(**fields):
    """Yield an item for each combination of values."""
    for values in itertools.product(*fields.values()):
        named = zip(fields, values, strict=True)
        yield {name: value for name, value in named if value is not NOTHING}


def pairs():
    for kind, key in CALLS.items():
        for fields in items(**GIVEN):
            call = {"type": kind, key: '{"input": "x"}', **fields}
            output = {"type": f"{kind}_output", "output": "found", **fields}
            yield [{"role": "user", "content": "q"}, call, output]
        for result in RESULTS:
            call = {"type": kind, key: "{}", "call_id": "c1", "name": "read"}
            yield ["q", call, {"type": f"{kind}_output", "call_id": "c1", **result}]


def messages():
    for role in ("user", "assistant", "developer", "tool", "human", NOTHING, None, 5):
        contents = (*CONTENTS, *ASSISTANTS) if role == "assistant" else CONTENTS
        for fields in items(role=(role,), content=contents, name=(NOTHING, "ann"), status=GIVEN["status"]):
            yield [{"type": "message", **fields}, {"role": "user", "content": "q"}]
    call = {"id": "c1", "type": "function", "function": {"name": "read", "arguments": "{}"}}
    said = {"role": "assistant", "content": None, "tool_calls": [call], "reasoning_content": "Hm."}
    yield [said, {"role": "tool", "tool_call_id": "c1", "content": "found"}, "plain", 5, None]
    yield [{"role": "assistant", "content": None, "refusal": "No."}, "q"]
    yield [{"type": "reasoning", "summary": [], "content": [{"type": "reasoning_text", "text": "Hm."}]}, "q"]


def read(given):
    made, _ = from_items(given, "input", Notes())
    return [message.for_template() for message in settle(made, Notes())]


@pytest.mark.parametrize("given", [pairs, messages], ids=["calls", "messages"])
def test_what_is_stored_is_read_as_it_was_at_first(given):
    for sent in given():
        assert read([as_listed(item, f"x_{at}") for at, item in enumerate(sent)]) == read(sent), sent


@pytest.mark.parametrize("given", [pairs, messages], ids=["calls", "messages"])
def test_listed_items_are_of_the_apis_own_types_and_have_a_status(given):
    for sent in given():
        for at, item in enumerate(sent):
            listed = as_listed(item, f"x_{at}")
            assert listed["status"] in ("completed", "in_progress", "incomplete")
            if listed.get("role") != "tool":
                ITEM.validate_python(listed)


@pytest.mark.parametrize(
    "kind",
    ["web_search_call", "computer_call_output", "shell_call_output", "tool_search_output", "compaction"],
)
def test_items_of_a_vendor_have_a_status_and_an_id_of_their_call(kind):
    listed = as_listed({"type": kind, "call_id": None, "status": None}, "x_0")
    assert (listed["status"], listed["call_id"]) == ("completed", "")
