"""A model's chat template, and conversations that it was not written for."""

import logging
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from reprise.engine.foreign.chat_templates import RenderLimitError, for_python_template
from reprise.engine.interface.errors import UnbrokenTextError
from reprise.engine.interface.image_marks import numbers_in
from reprise.engine.interface.images import ImageProcessor
from reprise.engine.interface.request import PromptEnd
from reprise.engine.text.templates.control_tokens import ControlTokens
from reprise.engine.text.templates.fit import Fitted, fit, plain_tools
from reprise.engine.text.templates.image_parts import PROBE, probe, with_parts, with_placeholders
from reprise.engine.text.templates.traits import Json, Traits, find_traits
from reprise.engine.text.tokens.encoding import TextEncoder

log = logging.getLogger("reprise.engine")
_TOKEN = re.compile(r"<[^<>]+>|\[[A-Z_]+\]")
"""Matches what looks like a special token."""


class TemplateError(ValueError):
    """The chat template rejected a conversation; this error's message is the template's."""


def template_text(tokenizer: Any) -> str:
    """Return a tokenizer's chat template, of several the one for tools; "" if it has none that is text."""
    template = tokenizer.chat_template
    if isinstance(template, dict):
        template = template.get("tool_use") or template.get("default")
    return template if isinstance(template, str) else ""


class ChatTemplate:
    """Renders conversations, changed where the template would refuse them or leave a part out.

    The template is probed once, so that a conversation is changed in the same way at every turn.
    """

    def __init__(self, wrapped: TokenizerWrapper, encoder: TextEncoder | None = None) -> None:
        self._wrapped = wrapped
        self._encoder = encoder or TextEncoder(wrapped._tokenizer)
        self._logged: set[str] = set()
        self._shows_images: dict[str, bool] = {}

    @cached_property
    def _control_tokens(self) -> ControlTokens:
        return ControlTokens(self._wrapped, template_text(self._wrapped), self._encoder)

    @cached_property
    def traits(self) -> Traits | None:
        """The template's traits; None if they cannot be found: conversations are not changed then."""
        if self._wrapped._chat_template is not None or not template_text(self._wrapped):
            return None
        try:
            return find_traits(self._render_probe)
        except RenderLimitError:
            return None

    def _render_probe(self, messages: Sequence[Json], tools: list[Json] | None) -> str:
        shown = {"tools": tools, "add_generation_prompt": True, "tokenize": False}
        return str(self._wrapped.apply_chat_template(list(messages), **shown))

    def render(
        self,
        messages: list[Json],
        tools: list[Json] | None,
        arguments: Json,
        end: PromptEnd = "answer",
        *,
        is_generic: bool = False,
        processor: ImageProcessor | None = None,
    ) -> list[int]:
        """Return the ids of a conversation, changed as far as the template needs it.

        is_generic: whether to show tools in the generic format of fit.py.
        processor: the model's for images; each mark of an image (see image_parts.py) becomes one placeholder.
        Raises TemplateError if the template refuses even the changed conversation.
        """
        traits = self.traits
        if traits is None:
            return self.render_unchanged(messages, tools, arguments, end, processor)
        given = self._mark(messages, tools, arguments, processor)
        fault: TemplateError | None = None
        # Its probes do not show everything. What it refuses of this beginning it will refuse in later turns
        # too, so that they are changed alike.
        for form in self._forms(given, traits, is_generic):
            try:
                ids = self._render(given.with_(form), end)
            except TemplateError as refusal:
                fault = fault or refusal
                if isinstance(refusal.__cause__, RenderLimitError):
                    break
            else:
                self._log(form.done)
                return ids
        assert fault is not None
        raise fault

    def _forms(self, given: "_Given", traits: Traits, is_generic: bool) -> Iterator[Fitted]:
        """Yield the forms of a conversation in which to try it: first that which changes it least."""
        tried: list[Fitted] = []
        for assumed in (traits, traits.strictest):
            fitted = fit(given.messages, given.tools, assumed, is_generic)
            if tried and fitted.messages == tried[0].messages:
                return
            tried.append(fitted)
            yield fitted
            if fitted.tools and (plain := plain_tools(fitted.tools)) != fitted.tools:
                changed = "it refuses some tools: schemas are shown with descriptions and simpler types"
                yield replace(fitted, tools=plain, done=[*fitted.done, changed])

    def render_unchanged(
        self,
        messages: list[Json],
        tools: list[Json] | None,
        arguments: Json,
        end: PromptEnd = "answer",
        processor: ImageProcessor | None = None,
    ) -> list[int]:
        """Return the ids of a conversation without changing it. Raises TemplateError if it is refused."""
        return self._render(self._mark(messages, tools, arguments, processor), end)

    def _log(self, changes: Sequence[str]) -> None:
        """Say once for each kind of change that it is made."""
        for what in changes:
            if what not in self._logged:
                self._logged.add(what)
                name = Path(str(self._wrapped.name_or_path)).name or "this model"
                log.info("the chat template of %s: %s", name, what)

    def _mark(
        self,
        messages: list[Json],
        tools: list[Json] | None,
        arguments: Json,
        processor: ImageProcessor | None,
    ) -> "_Given":
        mark = self._control_tokens
        # An answer that spells an image's token shows no image.
        images = {processor.written, *_TOKEN.findall(processor.shown)} if processor else ()
        in_answers = re.compile("|".join(map(re.escape, images)) or "(?!)")
        marked = _Given(
            mark.mark_messages(messages, in_answers), mark.mark(tools), mark.mark(arguments), processor
        )
        marked.is_marked = not (
            marked.messages is messages and marked.tools is tools and marked.arguments is arguments
        )
        return marked

    def _render(self, given: "_Given", end: PromptEnd) -> list[int]:
        messages, arguments, processor = given.messages, given.arguments, given.processor
        if processor is not None:
            if (numbers := numbers_in(messages)) != sorted(numbers):
                raise TemplateError("the chat template cannot show these images in their order")
            messages = [
                with_parts(one, processor, takes_parts=self._takes_images(one["role"], processor))
                for one in messages
            ]
        if self._wrapped._chat_template is not None:
            messages, arguments = for_python_template(messages, given.tools, arguments)
        else:
            arguments = {**arguments, "return_dict": False}
        shown = {"tools": given.tools, "add_generation_prompt": end == "answer", "tokenize": False}
        if end == "final_message":
            shown["continue_final_message"] = True
        try:
            rendered = self._wrapped.apply_chat_template(messages, **shown, **arguments)
            if processor is not None:
                rendered = with_placeholders(rendered, processor)
            return (self._control_tokens if given.is_marked else self._encoder).encode(rendered)
        except UnbrokenTextError:
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
            # A template is a program that comes with the model: it may raise anything.
            except Exception:
                text = ""
            self._shows_images[role] = processor.written in text and PROBE in text
        return self._shows_images[role]


@dataclass(slots=True)
class _Given:
    """The arguments of a template. processor: of its images, if it may have some.

    is_marked: control tokens in it are marked, as ControlTokens does it.
    """

    messages: list[Json]
    tools: list[Json] | None
    arguments: Json
    processor: ImageProcessor | None = None
    is_marked: bool = False

    def with_(self, fitted: Fitted) -> "_Given":
        return replace(self, messages=fitted.messages, tools=fitted.tools)
