"""From a request's texts to tokens: chats by the template, prompts, holes to fill in, and predictions.

All of it blocks: see LeasedModel.run_in_turn(). A job that encodes cannot be stopped within a text, so text
that is certainly too long for the context is refused before it is encoded.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic_core import to_json

from reprise.engine.interface.cancellation import check_wanted
from reprise.engine.interface.images import PromptImage, before_images
from reprise.engine.interface.models import ModelInfo
from reprise.engine.text.markers import PREAMBLE, FimTokens
from reprise.server.errors import BadRequestError, ContextLengthError
from reprise.server.prompt.images import Placed, Seen
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.generation_fields import GenerationFields

if TYPE_CHECKING:
    from reprise.engine.generating.generating_engine import GeneratingEngine
    from reprise.engine.text.tokenizer import Tokenizer


def check_token_ids(prompt: Sequence[int], param: str, info: ModelInfo) -> None:
    """Raise BadRequestError for token ids that the model does not have.

    param: path of the prompt in the body.
    """
    if min(prompt) < 0 or max(prompt) >= info.vocab_size:
        index = next(i for i, token in enumerate(prompt) if not 0 <= token < info.vocab_size)
        raise _unknown_id(f"{param}[{index}]", prompt[index], info)


def check_encoded(tokens: Sequence[int], param: str, info: ModelInfo) -> None:
    """Raise BadRequestError if a text has tokens that the weights lack: MLX would read beyond the weights.

    tokens: the text's tokens. param: the text's path in the body.
    """
    if tokens and (highest := max(tokens)) >= info.vocab_size:
        raise _unknown_id(param, highest, info)


def check_ids(body: GenerationFields, info: ModelInfo) -> None:
    """Raise BadRequestError if a sampling field, such as logit_bias, has token ids that the model lacks."""
    for name in ("stop_token_ids", "allowed_token_ids"):
        if given := getattr(body, name):
            check_token_ids(given, name, info)
    for token, _ in body.logit_bias:
        if token >= info.vocab_size:
            raise _unknown_id("logit_bias", token, info)


def _unknown_id(param: str, token: int, info: ModelInfo) -> BadRequestError:
    subject = f"token id {token} is" if abs(token) < 10**20 else "the token id is far too large,"
    return BadRequestError(
        f"'{param}': {subject} outside the vocabulary of {info.vocab_size} tokens; "
        f"ids go from 0 to {info.vocab_size - 1}.",
        param=param,
        code="invalid_token_id",
    )


def check_length(prompt: tuple[int, ...], param: str, info: ModelInfo) -> int:
    """Return the number of tokens of the context that are left for the output, at least one.

    Raises BadRequestError if the prompt is empty, leaves no room, or has tokens that the weights lack.
    """
    if not prompt:
        raise BadRequestError(
            "The prompt is empty; send at least one token.", param=param, code="invalid_value"
        )
    room = info.context_tokens - len(prompt)
    if room < 1:
        raise context_error(len(prompt), param, info)
    check_encoded(prompt, param, info)
    return room


def context_error(
    num_tokens: int, param: str, info: ModelInfo, is_lower_bound: bool = False
) -> BadRequestError:
    """Make the error for a prompt, prediction or array of tokens that leaves no room in the context.

    is_lower_bound: the tokens were not counted exactly; there are at least num_tokens.
    """
    noun = {"prediction": "prediction", "tokens": "array 'tokens'"}.get(param, "prompt")
    counted = f"{'at least ' if is_lower_bound else ''}{num_tokens} tokens"
    limit = info.memory_limit
    if limit is None:
        message = (
            f"The {noun} has {counted}; the limit is {info.context_tokens}, prompt and output together "
            "(the model's own limit, or --max-context-tokens). Shorten it."
        )
    else:
        message = (
            f"The {noun} has {counted}, which would take {limit.bytes_of(num_tokens) / 2**20:,.1f} MiB of "
            f"memory to compute; this server has {limit.room_bytes / 2**20:,.1f} MiB for it, that is "
            f"{info.context_tokens} tokens, prompt and output together. Shorten it, or start the server with "
            "a larger --memory-bytes."
        )
    if noun != "prompt":
        return BadRequestError(message, param=param, code="context_length_exceeded")
    return ContextLengthError(num_tokens, info.context_tokens, param, message)


TokenIds = tuple[int, ...]
Json = dict[str, Any]
Messages = Sequence[Json]
MAX_TRUNCATED_CONTEXTS = 4
"""Maximum length of a prompt of which only the end is kept, in contexts: all of it has to be encoded."""
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
    head_tokens, images: see GenerationRequest.
    """

    tokens: TokenIds
    prediction: TokenIds = ()
    is_thinking: bool = False
    num_dropped: int = 0
    head_tokens: int = 0
    images: tuple[PromptImage, ...] = ()


def encode_chat(engine: "GeneratingEngine", body: ChatRequest, seen: Seen) -> ChatPrompt:
    """Render and encode a conversation. seen: it as the model is shown it. Raises BadRequestError."""
    tokenizer, context_tokens = engine.tokenizer, engine.info.context_tokens
    messages, tools = shown(body.model_copy(update={"messages": seen.messages}))
    reserved_tokens = None
    if body.truncation == "auto":
        # Of a conversation that is too long only what may fit is encoded.
        room = context_tokens // 4
        reserved_tokens = min(room, body.requested_max_tokens or room)
    else:
        calls = (call.arguments for message in seen.messages for call in message.calls)
        num_characters = sum(len(one["content"]) for one in messages) + sum(map(_text_size, calls))
        _check_size(engine, num_characters, "messages", _num_contexts(body))
    predicted = body.prediction.content if body.prediction else ""
    _check_size(engine, len(predicted), "prediction")
    _check_size(engine, _text_size(tools), "tools")
    is_harmony, arguments = tokenizer.markers.is_harmony, body.template_arguments
    shown_tools = to_harmony_tools(tools) if is_harmony else tools
    arguments = to_harmony_arguments(arguments) if is_harmony else arguments

    def encode(some: Sequence[Json]) -> Placed:
        check_wanted()
        given = to_harmony_messages(some) if is_harmony else list(some)
        # A tokenizer of a model that sees nothing need not know of images.
        more = {} if seen.processor is None else {"processor": seen.processor}
        try:
            # None, not an empty list: some templates treat an empty list as a request with tools.
            ids = tokenizer.render_chat(
                given, shown_tools or None, arguments or None, body.prompt_end, **more
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
        newest_size = sum(len(one["content"] or "") for one in newest_turn(messages))
        _check_size(engine, newest_size, "messages")
        placed, num_dropped = fit(messages, context_tokens, reserved_tokens, encode)
    said = next((one["content"] for one in messages if one["role"] == "user"), None)
    return ChatPrompt(
        placed.tokens,
        prediction,
        tokenizer.opens_thinking(placed.tokens),
        num_dropped,
        tokenizer.find_head_end(placed.tokens, before_images(said or "")),
        placed.images,
    )


def shown(body: ChatRequest) -> tuple[list[Json], list[Json]]:
    """Return the messages and the tools that a template is given."""
    messages = [message.for_template() for message in body.messages]
    # Many templates take only one system message.
    if (num_first := num_systems(messages)) > 1:
        content = "\n\n".join(message["content"] for message in messages[:num_first])
        messages = [{**messages[0], "content": content}, *messages[num_first:]]
    return messages, [tool.for_template() for tool in body.shown_tools]


def num_systems(messages: Messages) -> int:
    """Return how many system messages a conversation begins with."""
    return next((at for at, one in enumerate(messages) if one["role"] != "system"), len(messages))


def _text_size(value: Any) -> int:
    """Return how many characters JSON has at least, without writing it."""
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
            _check_size(engine, len(prompt), "prompt", _num_contexts(body))
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
    _check_size(engine, len(text), param)
    return tuple((engine.tokenizer.encode if is_prompt else engine.tokenizer.encode_answer)(text))


def encode_texts(engine: "GeneratingEngine", texts: Iterable[str]) -> list[TokenIds]:
    """Return the token ids of texts without special tokens."""
    encode: Callable[[str], list[int]] = engine.tokenizer.encode_answer
    encoded: list[TokenIds] = []
    for text in texts:
        check_wanted()
        encoded.append(tuple(encode(text)))
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


def _num_contexts(body: GenerationFields) -> int:
    """Return how many contexts a prompt may be long."""
    return 1 if body.truncate_prompt_tokens is None else MAX_TRUNCATED_CONTEXTS


def _check_size(engine: "GeneratingEngine", num_characters: int, param: str, num_contexts: int = 1) -> None:
    """Refuse text that certainly has more tokens than so many contexts."""
    min_tokens = num_characters // engine.tokenizer.longest_token
    if min_tokens >= num_contexts * engine.info.context_tokens:
        raise context_error(min_tokens, param, engine.info, is_lower_bound=True)


@dataclass(frozen=True, slots=True)
class Hole:
    """A hole to fill in: the texts before and after it, and (name, text) of other files."""

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
    """Return the prompt that asks for the text in each hole. Raises BadRequestError.

    has_special: whether to begin with the special tokens of the model's prompts, such as BOS, if any.
    """
    for hole in holes:
        others = sum(len(name) + len(text) for name, text in hole.others)
        _check_size(engine, len(hole.before) + len(hole.after) + others, "prompt")
    return [encode_hole(engine.tokenizer, fim, hole, has_special) for hole in holes]


def encode_hole(tokenizer: "Tokenizer", fim: FimTokens, hole: Hole, has_special: bool) -> TokenIds:
    """Return the tokens of the prompt that asks for the text in a hole. See encode_holes()."""
    encode = tokenizer.encode_answer
    before, after = encode(hole.before), encode(hole.after)
    opening = _opening(tokenizer, hole.before, before) if has_special else []
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


def _opening(tokenizer: "Tokenizer", text: str, tokens: Sequence[int]) -> list[int]:
    """Return the tokens that prompts begin with, found at a text and its tokens without them."""
    whole = tokenizer.encode(text)
    num_before = len(whole) - len(tokens)
    return whole[:num_before] if whole[num_before:] == list(tokens) else []


_EFFORTS = {"none": "low", "minimal": "low", "xhigh": "high", "max": "high"}
"""The efforts that the model does not know, and what comes closest."""


def to_harmony_messages(messages: Sequence[Json]) -> list[Json]:
    """Convert messages from OpenAI's form to the form that gpt-oss's chat template takes."""
    num_first = num_systems(messages)
    instructions = "\n\n".join(message["content"] for message in messages[:num_first])
    converted: list[Json] = [{"role": "system", "content": instructions}] if num_first else []
    results = {message["tool_call_id"]: message for message in messages if message["role"] == "tool"}
    placed: set[str] = set()
    for message in messages[num_first:]:
        match message["role"]:
            case "assistant" if message.get("tool_calls"):
                calls = message["tool_calls"]
                converted += _calls(message, results, placed, is_only=len(calls) == 1)
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
    """Replace a reasoning_effort that gpt-oss does not know by one that it knows."""
    effort = arguments.get("reasoning_effort")
    return arguments if effort not in _EFFORTS else {**arguments, "reasoning_effort": _EFFORTS[effort]}


def _calls(message: Json, results: dict[str, Json], placed: set[str], *, is_only: bool) -> Iterator[Json]:
    """Yield the words before the calls, and a message for each; after all but the last one its result."""
    if words := (message["content"] or "").replace(PREAMBLE, ""):
        yield {"role": "user", "content": f"{PREAMBLE}{words}{PREAMBLE}"}
    thinking = message.get("reasoning_content")
    for index, call in enumerate(message["tool_calls"]):
        shown: Json = {"role": "assistant", "tool_calls": [call]}
        yield shown | ({"thinking": thinking} if thinking and not index else {})
        if not is_only and (result := results.get(call["id"])) is not None:
            placed.add(call["id"])
            yield {"role": "tool", "content": result["content"]}


EncodedT = TypeVar("EncodedT", bound=Sized)
MAX_CHARACTERS_PER_TOKEN = 6
"""More is never encoded to see whether it fits: turns are left out until the average is at most this."""


@dataclass(frozen=True, slots=True)
class Cut:
    """A conversation without some of its oldest turns.

    num_characters: length of the messages that are left, as JSON. num_dropped: messages that were left out.
    """

    messages: Messages
    num_characters: int
    num_dropped: int = 0


def cuts(messages: Messages, step: int) -> list[Cut]:
    """Return the whole conversation, and then shorter and shorter cuts of it without its oldest turns.

    Every cut has the system messages at the head and the newest turn. step: each cut leaves out at least so
    many characters more than the one before.
    """
    head, starts = _turns(messages)
    sizes = [len(to_json(message)) for message in messages]
    found = [Cut(messages, sum(sizes))]
    left_out = [0, *accumulate(sizes[head:])]
    reached = step
    for start in starts:
        num_left_out = left_out[start - head]
        if num_left_out >= reached or start == starts[-1]:
            rest = _without(messages, head, start)
            found.append(Cut(rest, found[0].num_characters - num_left_out, start - head))
            reached = num_left_out - num_left_out % step + step
    return found


def newest_turn(messages: Messages) -> Messages:
    """Return the system messages at a conversation's head and its newest turn, which are always there."""
    head, starts = _turns(messages)
    return _without(messages, head, starts[-1]) if starts else messages


def _turns(messages: Messages) -> tuple[int, list[int]]:
    """Return how many system messages a conversation begins with, and where its later turns start."""
    head = num_systems(messages)
    return head, [at for at in range(head + 1, len(messages)) if messages[at]["role"] == "user"]


def _without(messages: Messages, head: int, start: int) -> Messages:
    return [*messages[:head], *messages[start:]]


def fit(
    messages: Messages,
    context_tokens: int,
    reserved_tokens: int,
    encode: Callable[[Messages], EncodedT],
) -> tuple[EncodedT, int]:
    """Encode a conversation, without its oldest turns if it does not fit into the context.

    reserved_tokens: room that is left for the answer if turns are left out. encode: returns the tokens.
    Returns what encode returned, and how many messages were left out. It may still be too long, if the newest
        turn alone is.
    """
    every = cuts(messages, max(1, context_tokens // 2))
    longest = MAX_CHARACTERS_PER_TOKEN * context_tokens
    tried = [cut for cut in every if cut.num_characters <= longest] or every[-1:]
    encoded: dict[int, EncodedT] = {}

    def fits(at: int) -> bool:
        tokens = encoded[at] = encode(tried[at].messages)
        reserved = reserved_tokens if tried[at].num_dropped else 1
        return len(tokens) <= context_tokens - reserved

    # With fewer messages the prompt only gets shorter.
    at = min(bisect_left(range(len(tried)), True, key=fits), len(tried) - 1)
    return encoded[at], tried[at].num_dropped
