"""A model's chat template, and conversations that it was not written for."""

import json
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
from mlx_lm.tokenizer_utils import TokenizerWrapper

from reprise.engine.interface.embeddings import count_common
from reprise.engine.interface.errors import UnbrokenTextError
from reprise.engine.interface.images import MARK, OPEN, ImageProcessor, numbers_in
from reprise.engine.interface.request import PromptEnd
from reprise.engine.sandbox.child_process import ChildError, RenderLimitError
from reprise.engine.text.encoding import TextEncoder
from reprise.engine.text.markers import PREAMBLE
from reprise.engine.text.templates.fit import (
    PLACE,
    Fitted,
    Json,
    Traits,
    assistant,
    find_traits,
    fit,
    place_words,
    plain_tools,
    probe_call,
    system,
    user,
    with_text_arguments,
)

TOKEN_OPEN, TOKEN_CLOSE = "\ufdd0", "\ufdd1"
"""Stand around such text while a template is rendered. Unicode keeps both from ever being characters."""
MARKS = {TOKEN_OPEN, TOKEN_CLOSE, PLACE}
"""Marked where a text has them itself, so that they stay in it."""


class ControlTokens:
    """The tokens that a chat template writes around messages: special ones, and those in its own text.

    wrapped: one of mlx-lm's tokenizers. template: the text of the chat template; "" if it is not text.
    """

    def __init__(self, wrapped: Any, template: str, encoder: TextEncoder | None = None) -> None:
        self._encoder = encoder or TextEncoder(wrapped._tokenizer)
        self._backend = wrapped.backend_tokenizer
        self._template = template
        self._known: dict[str, list[int]] = {}

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        """Matches a control token in text, or a mark that the text has; of two at one place, the longer."""
        added = self._backend.get_added_tokens_decoder().values()
        texts = {
            entry.content
            for entry in added
            if entry.special or (entry.content in self._template and not entry.content.isspace())
        }
        longest_first = sorted(filter(None, texts | MARKS), key=lambda text: (-len(text), text))
        return re.compile("|".join(map(re.escape, longest_first)))

    @cached_property
    def _marked(self) -> re.Pattern[str]:
        """Matches a marked token, or a mark that the template has separated from its token."""
        return re.compile(f"{TOKEN_OPEN}({self._pattern.pattern}){TOKEN_CLOSE}|[{TOKEN_OPEN}{TOKEN_CLOSE}]")

    def mark(self, value: Any, pattern: re.Pattern[str] | None = None) -> Any:
        """Mark the control tokens in all strings of a JSON value, but not in the keys of its objects.

        pattern: matches the tokens to mark; None for all.
        """
        pattern = pattern or self._pattern
        match value:
            case str():
                return pattern.sub(rf"{TOKEN_OPEN}\g<0>{TOKEN_CLOSE}", value)
            case dict():
                return {key: self.mark(one, pattern) for key, one in value.items()}
            case list():
                return [self.mark(one, pattern) for one in value]
        return value

    def mark_messages(self, messages: list[Json], in_answers: re.Pattern[str]) -> list[Json]:
        """Mark control tokens in messages; in the assistant's, only those that in_answers matches.

        The model wrote the assistant's messages, which must match the prefix cache.
        """
        return [
            {**self.mark(one, in_answers if one["role"] == "assistant" else None), "role": one["role"]}
            for one in messages
        ]

    def encode(self, rendered: str) -> list[int]:
        """Return the ids of a rendered prompt. Marked tokens are encoded as text, without their marks."""
        if TOKEN_OPEN not in rendered and TOKEN_CLOSE not in rendered:
            return self._encoder.encode(rendered)
        # [text, marked token or None, text, ..., text]
        parts: list[str | None] = self._marked.split(rendered)
        ids = self._encoder.encode(parts[0] or "")
        texts = self._encode_inner([text or "" for text in parts[2::2]])
        for token, text_ids in zip(parts[1::2], texts, strict=True):
            ids += self._ids_as_text(token) if token else []
            ids += text_ids
        return ids

    def _ids_as_text(self, token: str) -> list[int]:
        """Return the ids of the text of a control token."""
        if token not in self._known:
            (ids,) = self._encode_inner([token], splits_specials=True)
            if self._backend.token_to_id(token) in ids:
                # An added token that is not special is found even so, but not in two halves.
                ids = [one for half in self._encode_inner([token[:1], token[1:]]) for one in half]
            self._known[token] = ids
        return self._known[token]

    def _encode_inner(self, texts: Sequence[str], *, splits_specials: bool = False) -> list[list[int]]:
        """Return the ids of each text as a continuation of other text."""
        if not texts:
            return []
        break_ids = self._encoder.encode("\n")
        encode = partial(self._encoder.encode_all, splits_specials=splits_specials)
        # After a line break no tokenizer puts a space of its own in front of the text.
        found = encode([f"\n{text}" for text in texts])
        return [
            ids[len(break_ids) :] if ids[: len(break_ids)] == break_ids else encode([text])[0]
            for text, ids in zip(texts, found, strict=True)
        ]


PROBE, PADDED_THOUGHT = "probe-q", " \n Hm. \n "


def with_parts(message: Json, processor: ImageProcessor, *, takes_parts: bool) -> Json:
    """Replace a message's image marks by parts if the template takes parts, else by images' tokens."""
    content = message.get("content")
    if not isinstance(content, str) or OPEN not in content:
        return message
    if not takes_parts:
        return {**message, "content": MARK.sub(lambda _: processor.alone, content)}
    # A text, a number, a text, and so on.
    pieces = MARK.split(content)
    parts: list[Json] = []
    for index, piece in enumerate(pieces):
        if index % 2:
            parts.append({"type": "image"})
        elif piece:
            parts.append({"type": "text", "text": piece})
    return {**message, "content": parts}


def probe(role: str) -> Sequence[Json]:
    """Return a test conversation whose last message, of the user or a tool, has an image part."""
    parts = [{"type": "image"}, {"type": "text", "text": PROBE}]
    if role != "tool":
        return [{"role": role, "content": parts}]
    # Mistral's templates take ids of nine characters alone.
    call = probe_call("probeid01")
    result = {"role": "tool", "tool_call_id": call["id"], "name": "probe_function", "content": parts}
    return [user("probe-a"), assistant("", [call]), result]


def with_placeholders(rendered: str, processor: ImageProcessor) -> str:
    """Replace the template's text for each image by placeholders, unless it is marked as text."""
    if processor.written == processor.shown:
        return rendered
    written = re.compile(f"(?<!{TOKEN_OPEN}){re.escape(processor.written)}")
    return written.sub(lambda _: processor.shown, rendered)


_PREAMBLE = re.compile(
    rf"<\|start\|>user<\|message\|>{PREAMBLE}([^{PREAMBLE}]*){PREAMBLE}<\|end\|>"
    r"(<\|start\|>assistant<\|channel\|>analysis<\|message\|>.*?<\|end\|>)?",
    re.DOTALL,
)
"""Matches the words before a call, as gpt-oss's template shows them, and the reasoning of that call."""


def with_preambles(rendered: str) -> str:
    """Move text before a call to the commentary channel after its reasoning, as gpt-oss writes it."""
    shown = r"<|start|>assistant<|channel|>commentary<|message|>\1<|end|>"
    return _PREAMBLE.sub(rf"\2{shown}", rendered) if PREAMBLE in rendered else rendered


HEAD_CHARACTERS, HEAD_TOKENS = 200, 16
"""How much of a message is searched in the prompt, to find where its text begins."""

Render = Callable[[list[Json], PromptEnd], list[int]]
"""Renders messages and encodes them. Raises almost anything if the template refuses them."""


@dataclass(frozen=True, slots=True)
class MessageOpenings:
    """The tokens with which messages begin in prompts.

    answer: the first two tokens that open an answer; empty if none do.
    num_lasting: how many of an answer's opening tokens stay in later turns' prompts.
    tokens: control tokens with which messages begin.
    user: the first two tokens of a user's message; empty if it does not begin with a control token.
    num_user: number of tokens before the text of a user's message.
    """

    answer: tuple[int, ...] = ()
    num_lasting: int = 0
    tokens: frozenset[int] = frozenset()
    user: tuple[int, ...] = ()
    num_user: int = 0

    def head_end(self, ids: Sequence[int], text: Sequence[int], *, is_whole: bool) -> int:
        """Return the index in a prompt where system text and tools end and the user's first message begins.

        Some templates write system text into the user's first message; then the user's own text is searched
        for.
        text: the first ids of the user's text, encoded alone. is_whole: whether they are all of it, so that
            the system text may contain them too. Returns 0 if the index is not found.
        """
        held = np.asarray(ids, np.int32)
        if not self.user or (start := _find(held, self.user, 0, len(held))) is None:
            return 0
        openings = np.flatnonzero(np.isin(held[start + 1 :], list(self.tokens)))
        end = start + 1 + int(openings[0]) if len(openings) else len(held)
        # The first token may be another one after the text before it.
        for skipped in (0, 1):
            found = _find(held, text[skipped:], start, end, is_last=is_whole)
            if found is not None and found - skipped > start + self.num_user:
                # Without the white space before it, which may be part of a longer token in other prompts.
                return found - skipped - 1
        return start


def find_openings(render: Render, control: frozenset[int]) -> MessageOpenings:
    """Find the openings by comparing short rendered conversations. control: the ids of control tokens."""
    one = user("a")
    try:
        closed, opened = tuple(render([one], "messages")), tuple(render([one], "answer"))
        changed = tuple(render([user("b")], "messages"))
    # A template is a program that comes with the model: it may raise anything.
    except Exception:
        return MessageOpenings()
    answer = opened[len(closed) :][:2] if opened[: len(closed)] == closed else ()
    num_lasting = 0
    if answer:
        try:
            later = tuple(render([one, assistant("b"), one], "messages"))
            num_lasting = count_common(opened, later) - len(closed)
        except Exception:
            num_lasting = 0
    text_at = count_common(closed, changed)
    before = [at for at in range(text_at) if closed[at] in control]
    # Where messages begin with more than one control token, it is the one that opens an answer, too.
    place = next(
        (at for at in reversed(before) if closed[at] == (answer or (None,))[0]),
        before[-1] if before else None,
    )
    asked = closed[place : place + 2] if place is not None else ()
    tokens = frozenset({*answer[:1], *asked[:1]} & control)
    return MessageOpenings(
        answer, max(0, num_lasting), tokens, asked, 0 if place is None else text_at - place
    )


def _find(
    held: "np.ndarray[Any, np.dtype[np.int32]]",
    sought: Sequence[int],
    start: int,
    end: int,
    *,
    is_last: bool = False,
) -> int | None:
    """Return the first or last index of the sought tokens in held[start:end]; None if there is none."""
    count = len(sought)
    if not count or end - start < count:
        return None
    places = np.flatnonzero(held[start : end - count + 1] == sought[0]) + start
    order = reversed(places.tolist()) if is_last else iter(places.tolist())
    wanted = np.asarray(sought, np.int32)
    return next((at for at in order if np.array_equal(held[at : at + count], wanted)), None)


log = logging.getLogger("reprise.engine")
_TOKEN = re.compile(r"<[^<>]+>|\[[A-Z_]+\]")
"""Matches what looks like a special token."""


Form = Literal["unchanged", "fitted", "pythonic", "generic"]
"""What to change in a conversation: nothing, what the template needs, or also calls that it does not show to
LFM2's format or tools and calls to fit.py's."""


THOUGHT_SWITCHES: Sequence[Json] = (
    {"preserve_thinking": True},
    {"clear_thinking": False},
    {"truncate_history_thinking": False},
)
"""Variables with which templates keep thoughts of earlier turns: Qwen3.6 and Gemma 4, GLM 4.7, Nemotron 3."""


THINKING_SWITCHES: Mapping[str, Sequence[Any]] = {
    "enable_thinking": (True, False),
    "thinking": (True, False),
    "reasoning_effort": ("low", "high"),
}
"""Variables with which templates switch an answer's thinking or say how much, and values that differ."""


class TemplateError(ValueError):
    """The chat template rejected a conversation; the message is the template's."""


def template_text(tokenizer: Any) -> str:
    """Return a tokenizer's chat template (the one for tools if several); "" if none is text."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return template if isinstance(template, str) else ""


class ChatTemplate:
    """Renders conversations, changed where the template would reject them or drop a part.

    The template is probed once, so that a conversation changes in the same way at every turn.

    arguments: variables for the template, of every conversation.
    """

    def __init__(
        self,
        wrapped: TokenizerWrapper,
        encoder: TextEncoder | None = None,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        self._wrapped = wrapped
        self._encoder = encoder or TextEncoder(wrapped._tokenizer)
        self.arguments = dict(arguments or {})
        self._logged: set[str] = set()
        self._shows_images: dict[str, bool] = {}

    @cached_property
    def _control_tokens(self) -> ControlTokens:
        return ControlTokens(self._wrapped, template_text(self._wrapped), self._encoder)

    @cached_property
    def traits(self) -> Traits | None:
        """The template's traits; None if unknown: conversations are not changed. Raises ChildError."""
        if self._wrapped._chat_template is not None or not template_text(self._wrapped):
            return None
        try:
            return find_traits(self._render_probe)
        except RenderLimitError:
            return None

    def _render_probe(
        self, messages: Sequence[Json], tools: list[Json] | None, arguments: Mapping[str, Any] | None = None
    ) -> str:
        shown = {"tools": tools, "add_generation_prompt": True, "tokenize": False}
        variables = self._variables(tools) | self.arguments | dict(arguments or {})
        return str(self._wrapped.apply_chat_template(list(messages), **shown, **variables))

    def find_thought_gap(self, start: str, end: str, *, is_generic: bool) -> tuple[str, str] | None:
        """Return the whitespace that the template writes around a thought. See Markers.thought_gap.

        start, end: the markers of thoughts. is_generic: see fit().
        """
        if self.traits is None:
            return None
        said = {**assistant(None, [probe_call("call_1")]), "reasoning_content": PADDED_THOUGHT}
        fitted = fit([user("a"), said], None, self.traits, is_generic)
        try:
            rendered = self._render_probe(fitted.messages, fitted.tools)
        except ChildError:
            raise
        # A template is a program that comes with the model: it may raise anything.
        except Exception:
            return None
        before, found, after = rendered.rpartition(PADDED_THOUGHT)
        gap = before.rpartition(start)[2], after.partition(end)[0]
        return gap if found and not "".join(gap).strip() else None

    def _variables(self, tools: list[Json] | None) -> Json:
        """Return variables that Firefunction's template requires: the tools as text, and the date."""
        if not self._wants_variables:
            return {}
        functions = [tool["function"] for tool in tools or ()]
        # Not the time, as its makers' code has it: the prompt's beginning would change with every request.
        return {
            "functions": json.dumps(functions, indent=4, ensure_ascii=False),
            "datetime": time.strftime("%Y-%m-%d"),
        }

    @cached_property
    def _wants_variables(self) -> bool:
        text = template_text(self._wrapped)
        return all(re.search(rf"\b{name}\b", text) for name in ("functions", "datetime"))

    def render(
        self,
        messages: list[Json],
        tools: list[Json] | None,
        arguments: Json,
        end: PromptEnd = "answer",
        *,
        form: Form = "fitted",
        processor: ImageProcessor | None = None,
    ) -> list[int]:
        """Return the ids of a conversation.

        processor: the model's for images; each mark of an image becomes one placeholder.
        Raises TemplateError if the template rejects it, changed or not, and ChildError if the machine fails.
        """
        arguments = self.arguments | arguments
        mark = self._control_tokens
        # An answer that spells an image's token shows no image.
        images = {processor.written, *_TOKEN.findall(processor.shown)} if processor else set[str]()
        messages = mark.mark_messages(messages, re.compile("|".join(map(re.escape, images | MARKS))))
        tools, arguments = mark.mark(tools), mark.mark(arguments)
        traits = None if form == "unchanged" else self.traits
        if traits is None:
            return self._render(Fitted(messages, tools), arguments, end, processor)
        fault: TemplateError | None = None
        # Its probes do not show everything. What it refuses of this beginning it will refuse in later turns
        # too, so that they are changed alike.
        for fitted in _fitted(messages, tools, traits, form=form):
            try:
                ids = self._render(fitted, arguments, end, processor)
            except TemplateError as refusal:
                fault = fault or refusal
                if isinstance(refusal.__cause__, RenderLimitError):
                    break
            else:
                self._log(fitted.done)
                return ids
        assert fault is not None
        raise fault

    def find_thought_switch(self) -> Json | None:
        """Return the variable of THOUGHT_SWITCHES with which the template shows more earlier thoughts."""
        call = probe_call("probeid01")
        result = {"role": "tool", "tool_call_id": call["id"], "name": "probe_function", "content": "probe-c"}
        turn = [
            user("probe-q"),
            {**assistant("", [call]), "reasoning_content": "probe-t"},
            result,
            {**assistant("probe-a"), "reasoning_content": "probe-t"},
            user("probe-r"),
        ]

        def count_thoughts(arguments: Json) -> int:
            try:
                return str(self._wrapped.decode(self.render(turn, None, arguments))).count("probe-t")
            except (TemplateError, UnbrokenTextError):
                return 0

        named = (one for one in THOUGHT_SWITCHES if next(iter(one)) in template_text(self._wrapped))
        return next((one for one in named if count_thoughts(one) > count_thoughts({})), None)

    def find_thinking_switches(self) -> tuple[str, ...]:
        """Return the variables of THINKING_SWITCHES that change a prompt."""

        def render(name: str, value: Any) -> str:
            try:
                return self._render_probe([user("a")], None, {name: value})
            # A template is a program that comes with the model: it may raise anything.
            except Exception:
                return ""

        named = [name for name in THINKING_SWITCHES if name in template_text(self._wrapped)]
        return tuple(
            name for name in named if len({render(name, value) for value in THINKING_SWITCHES[name]}) > 1
        )

    def _log(self, changes: Sequence[str]) -> None:
        """Log each kind of change once."""
        for what in changes:
            if what not in self._logged:
                self._logged.add(what)
                name = Path(str(self._wrapped.name_or_path)).name or "this model"
                log.info("the chat template of %s: %s", name, what)

    def _render(
        self, fitted: Fitted, arguments: Json, end: PromptEnd, processor: ImageProcessor | None
    ) -> list[int]:
        """Return the ids of a conversation as it is, with its words in their places. See render()."""
        messages, tools = fitted.messages, fitted.tools
        if processor is not None:
            if (numbers := numbers_in(messages)) != sorted(numbers):
                raise TemplateError("the chat template cannot show these images in their order")
            messages = [
                with_parts(one, processor, takes_parts=self._takes_images(one["role"], processor))
                for one in messages
            ]
        if self._wrapped._chat_template is not None:
            messages, arguments = _for_python_template(messages, tools, arguments)
        else:
            arguments = {**self._variables(tools), **arguments, "return_dict": False}
        shown = {"tools": tools, "add_generation_prompt": end == "answer", "tokenize": False}
        if end == "final_message":
            shown["continue_final_message"] = True
        try:
            rendered = with_preambles(self._wrapped.apply_chat_template(messages, **shown, **arguments))
            if fitted.words and self.traits:
                rendered = place_words(rendered, fitted.words, self.traits.call_opening)
            if processor is not None:
                rendered = with_placeholders(rendered, processor)
            return self._control_tokens.encode(rendered)
        except (UnbrokenTextError, ChildError):
            raise
        # A template is a program that comes with the model: it may raise anything.
        except Exception as fault:
            raise TemplateError(f"the chat template refused the messages: {fault}") from fault

    def _takes_images(self, role: str, processor: ImageProcessor) -> bool:
        """Return whether the template shows an image among the parts of a message of that role."""
        if role not in ("user", "tool") or self._wrapped._chat_template is not None:
            return False
        if role not in self._shows_images:
            try:
                text = self._render_probe(probe(role), None)
            except ChildError:
                raise
            # A template is a program that comes with the model: it may raise anything.
            except Exception:
                text = ""
            self._shows_images[role] = processor.written in text and PROBE in text
        return self._shows_images[role]


def _fitted(
    messages: list[Json], tools: list[Json] | None, traits: Traits, *, form: Form
) -> Iterator[Fitted]:
    """Yield a conversation's forms to try, the least changed first."""
    tried: list[Fitted] = []
    for assumed in (traits, replace(traits, call_opening=""), traits.strictest):
        fitted = fit(messages, tools, assumed, form == "generic", form == "pythonic")
        if any(fitted.messages == one.messages for one in tried):
            continue
        tried.append(fitted)
        yield fitted
        if fitted.tools and (plain := plain_tools(fitted.tools)) != fitted.tools:
            changed = "it refuses some tools: schemas are shown with descriptions and simpler types"
            yield replace(fitted, tools=plain, done=[*fitted.done, changed])


def _for_python_template(
    messages: list[Json], tools: list[Json] | None, arguments: Json
) -> tuple[list[Json], Json]:
    """Convert messages and arguments for mlx-lm's Python templates, such as DeepSeek V3.2's.

    These templates want tool calls' arguments as text and a system message if there are tools, and fail on
    unknown arguments.
    """
    # They write tools into the first message.
    shown = [{**with_text_arguments(message)} for message in messages]
    if tools and shown[0]["role"] != "system":
        shown.insert(0, system(""))
    return shown, {key: value for key, value in arguments.items() if key == "enable_thinking"}
