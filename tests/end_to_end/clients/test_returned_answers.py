"""An agent's next prompt has the model's own answer exactly as the model wrote it, in every format.

The server parses what the model wrote, each API's own SDK sends its objects back, and the template
renders them. Templates are Python functions with the rules of real ones; the slow test has those themselves.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from itertools import product
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import anthropic
import mlx_lm.tool_parsers
import ollama
import openai
import pytest
from mlx_lm.chat_templates import muse_spark
from mlx_lm.tokenizer_utils import TokenizerWrapper, _infer_tool_parser
from mlx_lm.utils import load_tokenizer
from transformers import AddedToken

from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.engine.interface.events import Delta, Finished, Usage
from reprise.engine.text.detokenizer import Detokenizer
from reprise.engine.text.markers import HARMONY
from reprise.engine.text.tokenizer import HARMONY_TOKENS, Tokenizer
from reprise.server.app import create_app
from reprise.server.prompt.encoder import to_harmony_messages, to_harmony_tools
from reprise.server.tools.formats import BREAK, DIGITS, FORMATS, IS_TEXT, TYPE, JsonFormat, TaggedFormat
from tests.engine.text.templates.test_real_templates import find_templates
from tests.server.fake_engine import FakeEngine
from tests.server.served import served
from tests.server.tools.test_every_format import MARKERS

Json = dict[str, Any]
Calls = Sequence[tuple[str, Json]]
QUESTION, THOUGHT, WORDS = "What does it cost?", "The file is needed:\n\na look.", "I look at it: 8 €."
CALLS: Calls = [
    ("read", {"limit": 3, "path": "shop ä.py"}),
    ("write", {"force": True, "text": 'if "<b>":\n\tx'}),
]
"""Arguments in alphabetical order, as some templates write them."""
KINDS = {"limit": "integer", "path": "string", "force": "boolean", "text": "string"}
PARAMETERS = {"type": "object", "properties": {name: {"type": kind} for name, kind in KINDS.items()}}
CALL_ID = r'"id": "\w+"|\[CALL_ID\]\w+'
"""What Mistral's templates write of a call's id: another one if the client sends none back."""
DEEPSEEK = ("<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>")
DSML = ("<｜DSML｜tool_calls>", "</｜DSML｜tool_calls>")
SECTIONS = {
    **MARKERS,
    "deepseek_v3": DEEPSEEK,
    "deepseek_v31": DEEPSEEK,
    "deepseek_v32": DSML,
    "llama3": ('{"name": ', ""),
    "mistral_list": ("[TOOL_CALLS]", ""),
    HARMONY: ("", ""),
}


@dataclass(frozen=True)
class Style:
    """How a model writes, and what its template does otherwise.

    thought, words: the texts around a thought and around words; thought is empty if the model has none.
    gap: the text between words and calls. call: the text around a call in a message of its own.
    begins, ends: around an answer. call_ends: where one with calls ends otherwise.
    parts: the template wants a thought as a part of the content.
    lacks: words beside calls are left out, or calls are; late: words are written after them.
    template: text by which the format is recognized. parser: mlx-lm's name for the format, if another.
    """

    thought: tuple[str, str] = ("", "")
    words: tuple[str, str] = ("", "")
    gap: str = ""
    begins: str = "<|im_start|>assistant\n"
    ends: str = "<|im_end|>\n"
    parts: bool = False
    lacks: str = ""
    late: bool = False
    special: tuple[str, ...] = ()
    template: str = "any"


QWEN, PLAIN = ("<think>\n", "\n</think>\n\n"), ("<think>", "</think>")
XTML = "<|open|>{0}<|sep|>", "<|close|>{0}<|sep|>"
STYLES = {
    "json_tools": Style(QWEN, gap="\n"),
    "json_tools without words": Style(lacks="words"),
    "generic": Style(QWEN, gap="\n", lacks="tools"),
    "llama3": Style(lacks="words", template='Environment: ipython "parameters"'),
    "mistral": Style(
        ("[THINK]", "[/THINK]"), parts=True, special=("[ARGS]", "[THINK]", "[/THINK]"), template="[THINK]"
    ),
    "mistral_list": Style(lacks="words"),
    "deepseek_v3": Style(PLAIN, late=True, special=DEEPSEEK, template=DEEPSEEK[0] + "```json"),
    "deepseek_v31": Style(PLAIN, special=DEEPSEEK, template=DEEPSEEK[0]),
    "deepseek_v32": Style(PLAIN, gap="\n\n", special=("｜DSML｜",), template=DSML[0]),
    "kimi_k2": Style(PLAIN),
    "kimi_k3": Style(
        tuple(one.format("think") for one in XTML),
        tuple(one.format("response") for one in XTML),
        special=("<|open|>", "<|close|>", "<|sep|>", "<|end_of_msg|>"),
    ),
    "qwen3_coder": Style(QWEN, gap="\n\n"),
    "minimax_m2": Style(QWEN, gap="\n"),
    "minicpm5": Style(QWEN, gap="\n"),
    "muse_spark": Style(
        (" to=self<|message|>", "<|eom|><|start|>assistant"),
        (" to=user<|message|>", "<|eom|><|start|>assistant"),
        begins="<|start|>assistant",
        ends="<|eot|>",
        lacks="words",
        special=("<|start|>", "<|message|>", "<|eom|>", "<|eot|>"),
    ),
    "gemma4": Style(
        ("<|channel>thought\n", "\n<channel|>"), lacks="words", special=("<|channel>", "<channel|>", '<|"|>')
    ),
    "gemma4 with late words": Style(
        ("<|channel>thought\n", "<channel|>"), late=True, special=("<|channel>", "<channel|>")
    ),
    "function_gemma": Style(),
    "pythonic": Style(PLAIN),
    "pythonic without calls": Style(lacks="calls"),
    "glm47": Style(PLAIN),
    "laguna": Style(("<think>\n", "\n</think>\n"), gap="\n"),
    "longcat": Style(("<longcat_think>", "</longcat_think>")),
    "json_tools with other thoughts": Style(("<|think:start|>", "<|think:end|>"), gap="\n"),
    HARMONY: Style(
        ("<|channel|>analysis<|message|>", "<|end|><|start|>assistant"),
        ("<|channel|>commentary<|message|>", "<|end|><|start|>assistant"),
        begins="<|start|>assistant",
        ends="<|end|>",
        special=HARMONY_TOKENS,
    ),
}


def write(name: str, calls: Calls) -> str:
    """Write calls as the format's description for grammars has it."""
    if name == HARMONY:
        ((tool, arguments),) = calls
        return f" to=functions.{tool}<|channel|>commentary json<|message|>{dumps(arguments)}<|call|>"
    form, (start, end) = FORMATS[name], SECTIONS[name]
    texts = []
    for number, (tool, arguments) in enumerate(calls):
        match form:
            case JsonFormat():
                inner = dumps(arguments)
            case TaggedFormat():
                inner = "".join(tagged(form, key, value) for key, value in arguments.items())
            case _:
                quote = (lambda one: form.quotes[0] + one + form.quotes[0]) if not form.is_python else dumps
                literal = {True: form.constants[0], False: form.constants[1]}
                values = {
                    key: quote(one) if isinstance(one, str) else literal.get(one, str(one))
                    for key, one in arguments.items()
                }
                inner = form.comma.join(f"{key}{form.after_key}{one}" for key, one in values.items())
        text = form.before + tool + form.after_name + inner + form.after
        texts.append(text.replace(BREAK, "").replace(DIGITS, str(number)))
    if name == "muse_spark":
        sections = [f"{start}{form.opening}{text}{end}" for text in texts]
        heads = [f" to={tool}<|message|>" for tool, _ in calls]
        return "<|eom|><|start|>assistant".join(map("".join, zip(heads, sections, strict=True)))
    if form.is_one_per_section:
        return "".join(start + form.opening + text + form.closing + end for text in texts)
    return start + form.opening + form.separator.join(texts) + form.closing + end


def tagged(form: TaggedFormat, key: str, value: Any) -> str:
    after_key = form.after_key.replace(IS_TEXT, dumps(isinstance(value, str)))
    after_key = after_key.replace(TYPE, {str: "string", int: "number", bool: "boolean"}[type(value)])
    text = value if isinstance(value, str) else dumps(value)
    if form.quotes and isinstance(value, str) and "<" in value:
        text = form.quotes[0] + text + form.quotes[1]
    return form.before_key + key + after_key + text + form.value_end + form.after_value


def dumps(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def compose(name: str, thought: str = "", words: str = "", calls: Calls = ()) -> str:
    """Return an answer as the model writes it, up to what ends it."""
    style, format_name = STYLES[name], FORMAT_OF[name]
    text = style.thought[0] + thought + style.thought[1] if thought else ""
    text += style.words[0] + words + style.words[1] if words else ""
    return text + (style.gap if words and calls else "") + (write(format_name, calls) if calls else "")


FORMAT_OF = {name: "json_tools" if name == "generic" else name.partition(" ")[0] for name in STYLES}
SHAPES: dict[str, Json] = {
    "thought, words, a call": {"thought": THOUGHT, "words": WORDS, "calls": CALLS[:1]},
    "thought in whitespace, a call": {"thought": f"\n {THOUGHT} \n", "calls": CALLS[1:]},
    "words, two calls": {"words": f"{WORDS}\n\nBoth.", "calls": CALLS},
}


def make_template(name: str) -> Callable[..., str]:
    """Return a function that renders messages by the rules of the style's template."""
    style = STYLES[name]

    def answer(message: Json) -> str:
        calls = [
            (one["function"]["name"], one["function"]["arguments"]) for one in message.get("tool_calls") or ()
        ]
        calls = [] if style.lacks in ("calls", "tools") else calls
        words = message.get("content") or ""
        thought = message.get("thinking" if name == HARMONY else "reasoning_content", "")
        if style.parts:
            parts = words if isinstance(words, list) else [{"text": words}]
            thought = "".join(part.get("thinking", "") for part in parts)
            words = "".join(part.get("text", "") for part in parts)
        if name == "muse_spark" and words and not calls:
            text = compose(name, thought, words)
            return text.removesuffix("<|eom|><|start|>assistant") if message.get("end_turn", True) else text
        if style.late and calls:
            return compose(name, thought, "", calls) + words
        return compose(name, thought, "" if style.lacks == "words" and calls else words, calls)

    def render(
        messages: Sequence[Json], tools: Any = None, add_generation_prompt: bool = False, **_: Any
    ) -> str:
        text = ""
        for message in messages:
            if message["role"] == "assistant":
                said = answer(message)
                is_open = said.endswith(("<|call|>", style.begins))
                text += style.begins + said.removesuffix(style.begins) + ("" if is_open else style.ends)
            elif name == HARMONY:
                text += f"<|start|>{message['role']}<|message|>{message['content']}<|end|>"
            else:
                text += f"<|im_start|>{message['role']}\n{message['content']}<|im_end|>\n"
        described = "" if style.lacks == "tools" else json.dumps(tools or [])
        return described + text + (style.begins if add_generation_prompt else "")

    return render


def make_tokenizer(name: str) -> Tokenizer:
    """Make the bundled tokenizer with a style's tokens, format and template."""
    style, format_name = STYLES[name], FORMAT_OF[name]
    inner = load_tokenizer(BUNDLED_MODEL)._tokenizer
    thinking = re.findall(r"</?\w*think[:\w]*>|<\|think:\w+\|>", "".join(style.thought))
    inner.add_tokens([AddedToken(text, special=False, normalized=False) for text in thinking])
    inner.add_tokens([AddedToken(text, special=True, normalized=False) for text in style.special])
    inner.chat_template = style.template
    inner.apply_chat_template = make_template(name)
    return wrapped(inner, "" if name == "generic" else format_name.removesuffix("_list"))


def wrapped(inner: Any, parser: str | None) -> Tokenizer:
    """Wrap a tokenizer with mlx-lm's parser of that name, if there is one."""
    if parser not in {module.name for module in iter_modules(mlx_lm.tool_parsers.__path__)}:
        return Tokenizer(TokenizerWrapper(inner), len(inner))
    module = import_module(f"mlx_lm.tool_parsers.{parser}")
    given = TokenizerWrapper(
        inner,
        tool_parser=module.parse_tool_call,
        tool_call_start=module.tool_call_start,
        tool_call_end=module.tool_call_end,
        response_format=muse_spark.RESPONSE_FORMAT if parser == "muse_spark" else None,
    )
    return Tokenizer(given, len(inner))


def saying(tokenizer: Tokenizer, *answers: str) -> Any:
    """Return a script that gives these answers, one a request, token by token."""
    left = iter(answers)

    def say(_: FakeEngine, job: Any) -> Any:
        tokens = tokenizer.encode_answer(next(left))
        detokenizer = Detokenizer(tokenizer, [])
        for token in tokens:
            job.sink(Delta(detokenizer.add(token)))
        job.sink(Delta(detokenizer.finish()))
        usage = Usage(
            num_prompt_tokens=len(job.request.prompt), num_completion_tokens=len(tokens), total_s=0.1
        )
        return Finished("stop", usage, tuple(tokens))

    return say


@contextmanager
def serving(tokenizer: Tokenizer) -> Iterator[tuple[str, Any]]:
    """Serve a tokenizer with an engine whose script the test sets. Yields the address, and the engine."""
    engine: Any = FakeEngine()
    engine.tokenizer = tokenizer
    engine.info = replace(engine.info, context_tokens=100_000, vocab_size=tokenizer.vocab_size)
    with served(create_app(engine, Settings())) as url:
        yield url, engine


def chats(url: str, *, streams: bool) -> None:
    """Ask, and ask again with the results of calls, at /v1/chat/completions."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name, _ in CALLS
    ]
    messages: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        asked = {"model": "org/fake-model", "messages": messages, "tools": tools}
        if streams:
            with client.chat.completions.stream(**asked) as stream:
                answer = stream.get_final_completion()
        else:
            answer = client.chat.completions.create(**asked)
        said = answer.choices[0].message
        messages.append(said.model_dump(exclude_none=True) if streams else said)
        messages += [
            {"role": "tool", "tool_call_id": one.id, "content": "done"} for one in said.tool_calls or ()
        ]


def responses(url: str, *, streams: bool, **fields: Any) -> None:
    """Ask, and ask again with the results of calls, at /v1/responses."""
    client = openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)
    tools: Any = [
        {"type": "function", "name": name, "strict": False, "parameters": PARAMETERS} for name, _ in CALLS
    ]
    items: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        asked = {"model": "org/fake-model", "input": items, "tools": tools, **fields}
        if streams:
            with client.responses.stream(**asked) as stream:
                answer = stream.get_final_response()
        else:
            answer = client.responses.create(**asked)
        for item in answer.output:
            # Codex sends back encrypted reasoning alone.
            if fields and item.type == "reasoning":
                item.content = None
            items.append(item.model_dump(exclude_none=True))
        calls = [item for item in answer.output if item.type == "function_call"]
        items += [{"type": "function_call_output", "call_id": one.call_id, "output": "done"} for one in calls]


def messages(url: str, *, streams: bool, **thinking: Any) -> None:
    """Ask, and ask again with the results of calls, at /v1/messages."""
    client = anthropic.Anthropic(base_url=url, api_key="none", max_retries=0)
    tools: Any = [{"name": name, "input_schema": PARAMETERS} for name, _ in CALLS]
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        asked = {"model": "org/fake-model", "max_tokens": 1000, "messages": history, "tools": tools}
        asked["thinking"] = {"type": "adaptive", **thinking}
        if streams:
            with client.messages.stream(**asked) as stream:
                answer = stream.get_final_message()
        else:
            answer = client.messages.create(**asked)
        history.append({"role": "assistant", "content": answer.content})
        calls = [block for block in answer.content if block.type == "tool_use"]
        results = [{"type": "tool_result", "tool_use_id": one.id, "content": "done"} for one in calls]
        history.append({"role": "user", "content": results or "And?"})


def chat_of_ollama(url: str, *, streams: bool) -> None:
    """Ask, and ask again with the results of calls, at /api/chat."""
    client = ollama.Client(host=url)
    tools: Any = [
        {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name, _ in CALLS
    ]
    history: list[Any] = [{"role": "user", "content": QUESTION}]
    for _ in range(2):
        asked = {"model": "org/fake-model", "messages": history, "tools": tools, "think": True}
        if streams:
            said = [part.message for part in client.chat(**asked, stream=True)]
            texts = {
                name: "".join(getattr(one, name) or "" for one in said) for name in ("content", "thinking")
            }
            calls = [call for one in said for call in one.tool_calls or ()]
            answer = ollama.Message(role="assistant", tool_calls=calls, **texts)
        else:
            answer = client.chat(**asked).message
        history.append(answer)
        names = [call.function.name for call in answer.tool_calls or ()]
        history += [{"role": "tool", "tool_name": name, "content": "done"} for name in names]


CLIENTS: dict[str, Callable[..., None]] = {
    "chats": chats,
    "responses": responses,
    "responses, encrypted": partial(responses, store=False, include=["reasoning.encrypted_content"]),
    "messages": messages,
    "messages, omitted": partial(messages, display="omitted"),
    "ollama": chat_of_ollama,
}


@pytest.mark.parametrize("name", STYLES)
def test_what_the_model_wrote_comes_back_as_it_was(name: str):
    tokenizer = make_tokenizer(name)
    with serving(tokenizer) as (url, engine):
        for (shape, parts), client, streams in product(SHAPES.items(), CLIENTS, (False, True)):
            if (parts.get("thought") and not STYLES[name].thought[0]) or (name == HARMONY and "two" in shape):
                continue
            written = compose(name, **parts)
            engine.script = saying(tokenizer, written, "So.")
            CLIENTS[client](url, streams=streams)
            first, second = (tokenizer.decode(request.prompt) for request in engine.requests[-2:])
            assert second[: len(first + written)] == first + written, (shape, client, streams)


def test_every_format_has_a_style():
    assert {*FORMAT_OF.values()} == {*FORMATS, HARMONY}


TOKENS = re.compile(r"</?[|｜]?[\w:▁/ -]{1,40}[|｜]?>|\[/?[A-Z_]{3,}\]|｜DSML｜")
MARKED = re.compile(r"[|｜\[]|think|tool|arg_|channel")


def load_real(file: Path) -> Tokenizer:
    """Make the bundled tokenizer with a real template, and with what looks like a token there."""
    inner = load_tokenizer(BUNDLED_MODEL)._tokenizer
    inner.chat_template = file.read_text(encoding="utf-8")
    named = {*TOKENS.findall(inner.chat_template), *(HARMONY_TOKENS if "gpt-oss" in file.stem else ())}
    marked = sorted(text for text in named if MARKED.search(text) and not text.startswith("<|im_"))
    is_special = _infer_tool_parser(inner) == "muse_spark"
    inner.add_tokens([AddedToken(text, special=is_special, normalized=False) for text in marked])
    return wrapped(inner, _infer_tool_parser(inner))


def rendered(tokenizer: Tokenizer, messages: Sequence[Json]) -> str:
    """Return a prompt as the server renders it. messages: in OpenAI's form."""
    tools = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name, _ in CALLS]
    shown: list[Json] = list(messages)
    if tokenizer.markers.is_harmony:
        shown, tools = to_harmony_messages(messages), to_harmony_tools(tools)
    return tokenizer.decode(tokenizer.render_chat(shown, tools))


def written_by(tokenizer: Tokenizer, prompt: str, parts: Json) -> str:
    """Return the answer that the template itself shows after a prompt; "" if it does not show all of it."""
    calls = [
        {"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": given}}
        for at, (name, given) in enumerate(parts["calls"])
    ]
    said = {"role": "assistant", "content": parts.get("words"), "tool_calls": calls}
    said |= {"reasoning_content": parts["thought"]} if "thought" in parts else {}
    results = [{"role": "tool", "tool_call_id": call["id"], "content": "done"} for call in calls]
    text = rendered(tokenizer, [{"role": "user", "content": QUESTION}, said, *results])
    places = [text.find(parts.get(name, "")) for name in ("thought", "words")] + [
        text.rfind(parts["calls"][0][0])
    ]
    if not text.startswith(prompt) or -1 in places or places != sorted(places):
        return ""
    answer = text[len(prompt) : text.index("done", len(prompt))]
    if tokenizer.markers.is_harmony:
        return answer[: answer.index("<|call|>")]
    end = tokenizer.markers.call_end
    return answer[: answer.rfind(end.text) + len(end.text)] if end else answer[: answer.rfind("}") + 1]


@pytest.mark.slow
def test_what_a_real_template_shows_of_an_answer_comes_back_as_it_was():
    """Where a template shows an answer in full, and the answer is written like that."""
    compared = set()
    for file in sorted(find_templates().glob("*.jinja")):
        tokenizer = load_real(file)
        markers, traits = tokenizer.markers, tokenizer._template.traits
        if markers.is_generic or not traits or not (traits.tools or markers.call_format == "pythonic"):
            continue
        prompt = rendered(tokenizer, [{"role": "user", "content": QUESTION}])
        with serving(tokenizer) as (url, engine):
            for (shape, parts), client in product(SHAPES.items(), CLIENTS):
                if len(parts["calls"]) > 1 and not traits.parallel_calls:
                    continue
                if not (written := written_by(tokenizer, prompt, parts)):
                    continue
                engine.script = saying(tokenizer, written, "So.")
                CLIENTS[client](url, streams=client != "chats")
                first, second = (tokenizer.decode(request.prompt) for request in engine.requests[-2:])
                expected = re.sub(CALL_ID, "", first + written)
                assert re.sub(CALL_ID, "", second)[: len(expected)] == expected, (file.stem, shape, client)
                compared.add((file.stem, shape))
    assert {"google-gemma-4-31B-it", "openai-gpt-oss-120b"} < {stem for stem, _ in compared}
    assert len(compared) > 40
