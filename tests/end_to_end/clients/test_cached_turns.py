"""Sessions of coding agents: each prompt finds all that it shares with earlier prompts and answers cached.

The agents' clients are the official SDKs. They send what the agents send: a long system prompt and tools,
then answers as they came, and the results of tools.
"""

import json
import random
import re
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from reprise.engine.text.tokenizer import Tokenizer
from tests.end_to_end.clients.scripted import (
    ANSWER_BEGINS,
    count_shared,
    recording,
    serving_script,
)
from tests.engine.support import make_tokenizer, wait_until
from tests.engine.text.test_tokenizer import make_thinker

RULES = "\n".join(
    f"{number}. Where the user names part {number * 7 % 97}, look at it before part {number * 31 % 89}."
    for number in range(110)
)
TASK, SECOND_TASK = "Set PRICE to 8 in shop.py and run it.", "Now say what it costs in œuvre.txt."
CLOSING = "All is done. It costs 8."
PATCH = (
    '*** Begin Patch\n*** Update File: shop.py\n@@\n-PRICE = 7\n+PRICE = 8\n+\tNAME = "shop"\n*** End Patch'
)
CALLS: list[list[tuple[str, Mapping[str, Any]]]] = [
    [("Read", {"file_path": "/work/shop.py"})],
    [
        ("Read", {"file_path": "/work/shop.py", "offset": 12, "limit": 40}),
        ("Read", {"file_path": "/work/a b"}),
    ],
    [("Edit", {"input": 'PRICE = 7\nprint("a\\b")'})],
    [("Edit", {"input": PATCH})],
    [("Bash", {"command": "python3 shop.py | grep -c 'x' > out.txt && cat out.txt", "timeout": 1000})],
    [],
    [("Bash", {"command": "cat œuvre.txt", "background": False, "nothing": None})],
    [("Bash", {"command": "date", "changes": [{"line": 3, "text": "It costs 8 €."}, {"share": 0.25}]})],
    [("Bash", {"command": "cat œuvre.txt"})],
    [],
]
"""The tool calls of ten turns. In a turn without any the agent waits for its user."""
TOOLS = {"Read": "Read a file.", "Edit": "Edit a file.", "Bash": "Run a command."}
PARAMETERS = {"type": "object", "properties": {"command": {"type": "string"}}, "additionalProperties": True}

THINKING_TEMPLATE = """
{%- set last = namespace(user=0) %}
{%- for message in messages %}
    {%- if message.role == 'user' %}{% set last.user = loop.index0 %}{% endif %}
{%- endfor %}
{%- for message in messages %}
    {{- '<|im_start|>' + message.role + '\n' }}
    {%- if message.reasoning_content and (preserve_thinking is true or loop.index0 > last.user) %}
        {{- '<think>\n' + message.reasoning_content.strip('\n') + '\n</think>\n\n' }}
    {%- endif %}
    {{- message.content or '' }}
    {%- for call in message.tool_calls or [] %}
        {{- '\n' if message.content or not loop.first }}
        {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
        {{- call.function.arguments | tojson + '}\n</tool_call>' }}
    {%- endfor %}
    {%- if loop.first and tools %}{{ '\n\n' + tools | tojson }}{% endif %}
    {{- '<|im_end|>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' + ('<think>\n\n</think>\n\n' if enable_thinking is false else '') }}
{%- endif %}
"""
"""Shows thoughts only after the last message of the user, as many reasoning models' templates do."""
THOUGHT = "<think>\nWhat comes next? A look at it is needed.\n</think>\n\n"


@dataclass(frozen=True)
class Turn:
    """What the server said of a turn: the prompt's tokens, those that were cached, and the calls made."""

    num_prompt: int
    num_cached: int
    num_calls: int


Given = str | list[str]
"""What a turn adds: the user's words, or the results of the calls before."""
Agent = Callable[[str], Generator[Turn | None, Given, None]]


def claude_code(url: str) -> Generator[Turn | None, Given, None]:
    """Claude Code at /v1/messages, which is not shown thoughts and sends their blocks back."""
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    ephemeral = {"cache_control": {"type": "ephemeral"}}
    tools = [{"name": name, "description": text, "input_schema": PARAMETERS} for name, text in TOOLS.items()]
    messages: list[Any] = []
    calls: list[Any] = []
    turn = None
    while True:
        given = yield turn
        head = f"x-anthropic-billing-header: cc_version=2.1.197; cch={random.randrange(2**20):05x};"
        for block in (block for message in messages for block in message["content"]):
            block.pop("cache_control", None)
        if isinstance(given, str):
            reminder = "<system-reminder>\nThe folder is /work.\n</system-reminder>"
            content = [{"type": "text", "text": text} for text in (reminder, given)]
        else:
            pairs = zip(calls, given, strict=True)
            content = [{"type": "tool_result", "tool_use_id": c.id, "content": text} for c, text in pairs]
        content[-1] |= ephemeral
        messages.append({"role": "user", "content": content})
        with client.messages.stream(
            model="reprise-demo",
            max_tokens=8192,
            system=[{"type": "text", "text": head}, {"type": "text", "text": RULES, **ephemeral}],
            messages=messages,
            tools=tools,
            metadata={"user_id": "user_1"},
            thinking={"type": "adaptive", "display": "omitted"},
        ) as stream:
            answer = stream.get_final_message()
        names = {"type", "thinking", "signature", "text", "id", "name", "input"}
        said = [block.model_dump(include=names) for block in answer.content]
        messages.append({"role": "assistant", "content": said})
        calls = [block for block in answer.content if block.type == "tool_use"]
        num_cached = answer.usage.cache_read_input_tokens or 0
        num_created = answer.usage.cache_creation_input_tokens or 0
        turn = Turn(answer.usage.input_tokens + num_created + num_cached, num_cached, len(calls))


def codex(url: str) -> Generator[Turn | None, Given, None]:
    """Codex at /v1/responses, which stores nothing and gets its reasoning back."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tools: list[Any] = [
        {"type": "function", "name": name, "description": text, "strict": False, "parameters": PARAMETERS}
        for name, text in TOOLS.items()
        if name != "Edit"
    ]
    tools += [{"type": "custom", "name": "Edit", "description": TOOLS["Edit"]}]
    items: list[Any] = [_words("developer", "Commands run in a sandbox.")]
    calls: list[Any] = []
    turn = None
    while True:
        given = yield turn
        if isinstance(given, str):
            items.append(_words("user", given))
        else:
            items += [
                {"type": f"{call.type}_output", "call_id": call.call_id, "output": text}
                for call, text in zip(calls, given, strict=True)
            ]
        with client.responses.stream(
            model="reprise-demo",
            instructions=RULES,
            input=items,
            tools=tools,
            include=["reasoning.encrypted_content"],
            store=False,
            prompt_cache_key="session-1",
        ) as stream:
            answer = stream.get_final_response()
        names = {
            "type",
            "role",
            "content",
            "summary",
            "encrypted_content",
            "call_id",
            "name",
            "arguments",
            "input",
        }
        for item in answer.output:
            left_out = {"content"} if item.type == "reasoning" else set()
            items.append(item.model_dump(include=names - left_out, exclude_none=True))
        calls = [item for item in answer.output if item.type.endswith("_call")]
        usage = answer.usage
        turn = Turn(usage.input_tokens, usage.input_tokens_details.cached_tokens, len(calls))


def _words(role: str, text: str) -> dict[str, Any]:
    return {"type": "message", "role": role, "content": [{"type": "input_text", "text": text}]}


def opencode(url: str) -> Generator[Turn | None, Given, None]:
    """opencode at /v1/chat/completions; it writes the arguments of calls in its own way."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tools: list[Any] = [
        {"type": "function", "function": {"name": name, "description": text, "parameters": PARAMETERS}}
        for name, text in TOOLS.items()
    ]
    messages: list[Any] = [{"role": "system", "content": RULES}]
    calls: list[Any] = []
    turn = None
    while True:
        given = yield turn
        if isinstance(given, str):
            messages.append({"role": "user", "content": given})
        else:
            messages += [
                {"role": "tool", "tool_call_id": call["id"], "content": text}
                for call, text in zip(calls, given, strict=True)
            ]
        with client.chat.completions.stream(
            model="reprise-demo",
            messages=messages,
            tools=tools,
            stream_options={"include_usage": True},
        ) as stream:
            answer = stream.get_final_completion()
        said = answer.choices[0].message.model_dump()
        calls = [
            {"id": call["id"], "type": "function", "function": {
                "name": call["function"]["name"],
                "arguments": json.dumps(json.loads(call["function"]["arguments"]), separators=(",", ":")),
            }}
            for call in said["tool_calls"] or ()
        ]  # fmt: skip
        thought = said.get("reasoning_content")
        messages.append(
            {
                "role": "assistant",
                "content": said["content"] or "",
                **({"reasoning_content": thought} if thought else {}),
                **({"tool_calls": calls} if calls else {}),
            }
        )
        usage = answer.usage
        turn = Turn(usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, len(calls))


def script(prompt: str) -> str:
    """Return the answer of the turn."""
    number = prompt.count(ANSWER_BEGINS) - 1
    answer = f"Step {number + 1}." if CALLS[number] else CLOSING
    for name, arguments in CALLS[number]:
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        answer += f"<tool_call>\n{call}\n</tool_call>"
    return answer


def thoughtful_script(prompt: str) -> str:
    """Return the answer as THINKING_TEMPLATE has it, with a thought."""
    return THOUGHT + script(prompt).replace("<tool_call>", "\n<tool_call>")


def hold_session(agent: Agent, url: str, pause: Callable[[int], None] = lambda _: None) -> list[Turn]:
    """Hold the session of ten turns, with a result for every call. pause: called with each turn's number."""
    session = agent(url)
    next(session)
    given: Given = TASK
    turns: list[Turn] = []
    for number, calls in enumerate(CALLS):
        turn = session.send(given)
        assert turn is not None
        assert turn.num_calls == len(calls)
        turns.append(turn)
        pause(number)
        given = [f"{number}.{at}: PRICE = 8\n" for at in range(len(calls))] or SECOND_TASK
    return turns


@pytest.mark.parametrize(
    ("thinks", "keeps"),
    [(False, False), (True, False), (True, True)],
    ids=["plain", "thinking-with-a-window", "thoughts-kept"],
)
@pytest.mark.parametrize("agent", [claude_code, codex, opencode])
def test_all_that_a_prompt_shares_with_earlier_turns_is_cached(
    agent: Agent, thinks: bool, keeps: bool, tmp_path: Path
):
    # What is read ahead in the gaps would depend on their lengths.
    settings = recording(tmp_path, read_ahead="off")
    tokenizer = make_tokenizer()
    if thinks:
        thinker = make_thinker()
        thinker.wrapped.chat_template = THINKING_TEMPLATE
        switch = {"preserve_thinking": True} if keeps else None
        tokenizer = Tokenizer(thinker.wrapped, thinker.vocab_size, template_arguments=switch)
        assert tokenizer.thought_switch == (None if keeps else {"preserve_thinking": True})
    # A window is kept at a few places only: at the end of an answer, and before its opening of three tokens.
    with serving_script(thoughtful_script if thinks else script, settings, tokenizer, thinks) as url:
        turns = hold_session(agent, url)
    lines = [json.loads(line) for line in (tmp_path / "turns").read_text().splitlines()]
    assert [turn.num_cached for turn in turns] == [line["cached_tokens"] for line in lines]
    for turn, num_shared in zip(turns, count_shared(tokenizer, lines), strict=True):
        assert turn.num_cached >= num_shared - len(tokenizer.encode(ANSWER_BEGINS))
    later = turns[1:]
    if thinks and not keeps:
        # The template drops all thoughts so far when the user speaks again.
        del later[CALLS.index([])]
    assert min(turn.num_cached / turn.num_prompt for turn in later) >= 0.95


@pytest.mark.parametrize("mode", ["auto", "turn", "off"])
@pytest.mark.parametrize("agent", [codex, opencode])
def test_the_turn_without_its_thoughts_is_read_ahead(agent: Agent, mode: str, tmp_path: Path) -> None:
    settings = recording(tmp_path, read_ahead=mode)
    tokenizer = make_thinker()
    tokenizer.wrapped.chat_template = THINKING_TEMPLATE
    spoken = CALLS.index([])
    with serving_script(thoughtful_script, settings, tokenizer, has_window=True) as url:

        def count(name: str) -> int:
            metrics = httpx.get(f"{url}/metrics").text
            found = re.search(rf"^reprise_read_ahead_{name} (\d+)", metrics, re.MULTILINE)
            assert found
            return int(found[1])

        def pause(number: int) -> None:
            # With "turn" every answer with calls is read as it will stand without its thought.
            if mode == "turn" or (mode == "auto" and number == spoken):
                seen = read.get(number - 1, 0)
                wait_until(lambda: count("tokens_total") > seen and not count("left_tokens"))
            read[number] = count("tokens_total")

        read: dict[int, int] = {}
        turns = hold_session(agent, url, pause)
        num_used, num_wasted = count("used_tokens_total"), count("wasted_tokens_total")
    user_turn = turns[spoken + 1]
    if mode == "off":
        assert not any(read.values())
        assert user_turn.num_cached / user_turn.num_prompt < 0.9
        return
    num_words = len(tokenizer.encode(SECOND_TASK))
    assert user_turn.num_prompt - user_turn.num_cached <= num_words + 40
    assert num_used >= read[spoken] / 2
    assert not num_wasted
    if mode == "turn":
        # Most of it was read while the tools ran.
        assert read[spoken] - read[spoken - 1] < (read[spoken - 1]) / 2
