"""Encode a request's texts: chats by the template, prompts, fill-in-the-middle, and predictions.

All functions block: see LeasedModel.run_in_turn(). Encoding cannot be stopped within a text, so text that is
certainly too long for the context is refused first.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reprise.engine.interface.cancellation import check_wanted
from reprise.engine.interface.images import PromptImage, before_images, without_marks
from reprise.engine.text.markers import PREAMBLE, FimTokens
from reprise.server.errors import BadRequestError
from reprise.server.prompt.images import Placed, Seen
from reprise.server.prompt.length import (
    check_size,
    check_token_ids,
    context_error,
    fit,
    newest_turn,
    num_systems,
)
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest

if TYPE_CHECKING:
    from reprise.engine.generating.generating_engine import GeneratingEngine
    from reprise.engine.text.tokenizer import Tokenizer

TokenIds = tuple[int, ...]
Json = dict[str, Any]
SNIPPET = "\n\n--- snippet ---\n\n"
"""The text before another file for a model that knows no further files, as in llama-server."""
THIS_FILE = "filename"
"""The name of the file with the hole, if others precede it."""


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    """A rendered and encoded conversation, up to where the model's output starts.

    prediction: token ids of the output that the client predicts; often none.
    is_thinking: the prompt has already opened the model's reasoning.
    num_dropped: how many of the oldest messages were left out, as the request allows.
    head_tokens, images: see GenerationRequest. seen: the conversation as it was rendered.
    """

    tokens: TokenIds
    seen: Seen
    prediction: TokenIds = ()
    is_thinking: bool = False
    num_dropped: int = 0
    head_tokens: int = 0
    images: tuple[PromptImage, ...] = ()


def encode_chat(engine: "GeneratingEngine", body: ChatRequest, seen: Seen) -> ChatPrompt:
    """Render and encode a conversation, given with its images replaced. Raises BadRequestError."""
    tokenizer, context_tokens = engine.tokenizer, engine.info.context_tokens
    messages, tools = shown(body.model_copy(update={"messages": seen.messages}))
    if seen.processor:
        # Some templates are shown thoughts, calls and tools as content, which has the images' own marks.
        messages = [{**without_marks(one), "content": one["content"]} for one in messages]
        tools = without_marks(tools)
    reserved_tokens = None
    if body.truncation == "auto":
        # Of a conversation that is too long only what may fit is encoded.
        room = context_tokens // 4
        reserved_tokens = min(room, body.requested_max_tokens or room)
    else:
        calls = (call.arguments for message in seen.messages for call in message.calls)
        num_characters = sum(len(one["content"]) for one in messages) + sum(map(_text_size, calls))
        check_size(engine, num_characters, "messages", body)
    predicted = body.prediction.content if body.prediction else ""
    check_size(engine, len(predicted), "prediction")
    check_size(engine, _text_size(tools), "tools")
    is_harmony, arguments = tokenizer.markers.is_harmony, body.template_arguments
    shown_tools = to_harmony_tools(tools) if is_harmony else tools
    arguments = to_harmony_arguments(arguments) if is_harmony else arguments

    def encode(some: Sequence[Json]) -> Placed:
        check_wanted()
        given = to_harmony_messages(some) if is_harmony else list(some)
        try:
            # None, not an empty list: some templates treat an empty list as a request with tools.
            ids = tokenizer.render_chat(
                given, shown_tools or None, arguments or None, body.prompt_end, seen.processor
            )
        # TemplateError is a ValueError; importing it would import MLX.
        except ValueError as fault:
            raise BadRequestError(f"{fault}", param="messages", code="template_error") from fault
        return seen.place(ids, some)

    prediction = tuple(tokenizer.encode_answer(predicted)) if predicted else ()
    if len(prediction) >= context_tokens:
        raise context_error(len(prediction), "prediction", engine.info)
    num_dropped = 0
    if reserved_tokens is None:
        placed = encode(messages)
    else:
        # The newest turn may be too long to encode.
        check_size(engine, sum(len(one["content"]) for one in newest_turn(messages)), "messages")
        placed, num_dropped = fit(messages, context_tokens, reserved_tokens, encode)
    said = next((one["content"] for one in messages if one["role"] == "user"), "")
    return ChatPrompt(
        placed.tokens,
        seen,
        prediction,
        tokenizer.opens_thinking(placed.tokens),
        num_dropped,
        tokenizer.find_head_end(placed.tokens, before_images(said)),
        placed.images,
    )


def shown(body: ChatRequest) -> tuple[list[Json], list[Json]]:
    """Return the messages and the tools for the template."""
    messages = [message.for_template() for message in body.messages]
    # Many templates take only one system message.
    if (num_first := num_systems(messages)) > 1:
        content = "\n\n".join(message["content"] for message in messages[:num_first])
        messages = [{**messages[0], "content": content}, *messages[num_first:]]
    return messages, [tool.for_template() for tool in body.shown_tools]


def _text_size(value: Any) -> int:
    """Return a lower bound of a value's JSON length in characters, without writing it."""
    # Not to_json(): it would keep all other threads from running.
    size, left = 0, [value]
    while left:
        one = left.pop()
        if isinstance(one, str):
            size += len(one) + len('""')
        elif isinstance(one, dict):
            size += len("{}") + 2 * len(one) - bool(one)
            left += [*one, *one.values()]
        elif isinstance(one, list):
            size += len("[]") + len(one) - bool(one)
            left += one
        else:
            size += 1
    return size


def encode_prompts(engine: "GeneratingEngine", body: CompletionRequest) -> list[TokenIds]:
    """Return the token ids of each prompt. Raises BadRequestError."""
    encode = engine.tokenizer.encode if body.add_special_tokens else engine.tokenizer.encode_answer
    for prompt in body.prompt:
        if isinstance(prompt, str):
            check_size(engine, len(prompt), "prompt", body)
    encoded: list[TokenIds] = []
    for index, prompt in enumerate(body.prompt):
        check_wanted()
        if not isinstance(prompt, str):
            check_token_ids(prompt, "prompt" if len(body.prompt) == 1 else f"prompt[{index}]", engine.info)
        encoded.append(tuple(encode(prompt) if isinstance(prompt, str) else prompt))
    return encoded


def decode_prompts(engine: "GeneratingEngine", body: CompletionRequest) -> list[str]:
    """Return the text of each prompt, for a response that echoes it."""
    return [one if isinstance(one, str) else engine.tokenizer.decode(one) for one in body.prompt]


def encode_text(engine: "GeneratingEngine", text: str, param: str, *, is_prompt: bool) -> TokenIds:
    """Return the token ids of a text. Raises BadRequestError.

    is_prompt: whether to add the special tokens that prompts start or end with.
    """
    check_size(engine, len(text), param)
    return tuple((engine.tokenizer.encode if is_prompt else engine.tokenizer.encode_answer)(text))


def encode_texts(engine: "GeneratingEngine", texts: Iterable[str]) -> list[TokenIds]:
    """Return the token ids of texts without special tokens."""
    encoded: list[TokenIds] = []
    for text in texts:
        check_wanted()
        encoded.append(tuple(engine.tokenizer.encode_answer(text)))
    return encoded


def decode(engine: "GeneratingEngine", tokens: Sequence[int]) -> str:
    """Return the text of token ids. Raises BadRequestError."""
    if len(tokens) > engine.info.context_tokens:
        raise context_error(len(tokens), "tokens", engine.info)
    if not tokens:
        return ""
    check_token_ids(tokens, "tokens", engine.info)
    text: str = engine.tokenizer.decode(tokens)
    return text


@dataclass(frozen=True, slots=True)
class Hole:
    """A gap for fill-in-the-middle: the texts before and after it, and (name, text) of other files."""

    before: str
    after: str
    others: Sequence[tuple[str, str]] = ()


def fim_of(tokenizer: "Tokenizer", model: str, param: str) -> FimTokens:
    """Return the model's fill-in-the-middle tokens. Raises BadRequestError if it has none.

    model, param: the model's name and the request's field, for the error.
    """
    if tokenizer.fim is None:
        raise BadRequestError(
            f"'{param}': the tokenizer of {model} has no tokens to fill in text with (fill-in-the-middle). "
            "Leave it out, or serve a model of code that was trained for this.",
            param=param,
            code="fim_not_supported",
        )
    return tokenizer.fim


def encode_holes(
    engine: "GeneratingEngine", fim: FimTokens, holes: Sequence[Hole], *, has_special: bool
) -> list[TokenIds]:
    """Return the fill-in-the-middle prompt of each gap. Raises BadRequestError.

    has_special: whether to begin with the special tokens of the model's prompts, such as BOS, if any.
    """
    for hole in holes:
        others = sum(len(name) + len(text) for name, text in hole.others)
        check_size(engine, len(hole.before) + len(hole.after) + others, "prompt")
    return [encode_hole(engine.tokenizer, fim, hole, has_special) for hole in holes]


def encode_hole(tokenizer: "Tokenizer", fim: FimTokens, hole: Hole, has_special: bool) -> TokenIds:
    """Return the tokens of one gap's prompt. See encode_holes()."""
    encode = tokenizer.encode_answer
    before, after = encode(hole.before), encode(hole.after)
    opening: list[int] = []
    if has_special:
        # The tokens that prompts begin with, if they do not depend on the text.
        whole = tokenizer.encode(hole.before)
        num_special = len(whole) - len(before)
        opening = whole[:num_special] if whole[num_special:] == before else []
    parts = [[fim.prefix, *before], [fim.suffix, *after]]
    if fim.is_suffix_first:
        parts.reverse()
    others: list[int] = []
    for name, text in hole.others:
        others += encode(SNIPPET + text) if fim.file is None else [fim.file, *encode(f"{name}\n{text}")]
    if others and fim.file is not None:
        others += [fim.file, *encode(f"{THIS_FILE}\n")]
    middle = [] if fim.middle is None else [fim.middle]
    return (*opening, *others, *parts[0], *parts[1], *middle)


_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""The efforts that the model does not know, and what comes closest."""


def to_harmony_messages(messages: Sequence[Json]) -> list[Json]:
    """Convert messages from OpenAI's format to that of gpt-oss's chat template."""
    num_first = num_systems(messages)
    instructions = "\n\n".join(message["content"] for message in messages[:num_first])
    converted: list[Json] = [{"role": "system", "content": instructions}] if num_first else []
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
    placed: set[str] = set()
    for message in messages[num_first:]:
        match message["role"]:
            case "assistant" if message.get("tool_calls"):
                converted += _calls(message, results, placed)
            case "assistant":
                converted.append({"role": "assistant", "content": message["content"] or ""})
            case "tool":
                if message["tool_call_id"] not in placed:
                    converted.append({"role": "tool", "content": message["content"]})
            case _:
                content = message["content"].replace(PREAMBLE, "")
                converted.append({**message, "role": "user", "content": content})
    return converted


def to_harmony_tools(tools: Sequence[Json]) -> list[Json]:
    """Give a description to each tool that has none, as the template fails without it."""
    return [{**tool, "function": {"description": "", **tool["function"]}} for tool in tools]


def to_harmony_arguments(arguments: Json) -> Json:
    """Map an unsupported reasoning_effort to one that gpt-oss supports."""
    effort = arguments.get("reasoning_effort")
    return arguments if effort not in _EFFORTS else {**arguments, "reasoning_effort": _EFFORTS[effort]}


def _calls(message: Json, results: dict[str, Json], placed: set[str]) -> Iterator[Json]:
    """Yield the text before the calls, and a message for each call; if there are several, with its result."""
    if words := (message["content"] or "").replace(PREAMBLE, ""):
        yield {"role": "user", "content": f"{PREAMBLE}{words}{PREAMBLE}"}
    thinking, has_several = message.get("reasoning_content"), len(message["tool_calls"]) > 1
    for index, call in enumerate(message["tool_calls"]):
        shown: Json = {"role": "assistant", "tool_calls": [call]}
        yield shown | ({"thinking": thinking} if thinking and not index else {})
        if has_several and (result := results.get(call["id"])) is not None:
            placed.add(call["id"])
            yield {"role": "tool", "content": result["content"]}
