"""A model's chat template, and the conversations of clients that it was not written for."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from mlx_lm.tokenizer_utils import TokenizerWrapper

from engine.foreign.chat_templates import RenderLimitError, for_python_template
from engine.interface.errors import UnbrokenTextError
from engine.interface.request import PromptEnd
from engine.text.encoding import TextEncoder
from engine.text.templates.control_tokens import ControlTokens
from engine.text.templates.fit import Fitted, fit
from engine.text.templates.traits import Json, Traits, find_traits

log = logging.getLogger("reprise.engine")


class TemplateError(ValueError):
    """The chat template rejected the messages; the message is the template's own."""


def template_text(tokenizer: Any) -> str:
    """Return a tokenizer's chat template: of several with names, that for tools. "" if none is text."""
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

    @cached_property
    def _control_tokens(self) -> ControlTokens:
        return ControlTokens(self._wrapped, template_text(self._wrapped), self._encoder)

    @cached_property
    def traits(self) -> Traits | None:
        """The template's traits; None if they cannot be found out: then it is given all as it is."""
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
    ) -> list[int]:
        """Return the ids of a conversation, changed as far as the template needs it.

        is_generic: tools are shown in the generic format of fit.py.
        Raises TemplateError if the template refuses it even so.
        """
        traits = self.traits
        if traits is None:
            return self.render_unchanged(messages, tools, arguments, end)
        given = self._mark(messages, tools, arguments)
        fitted = fit(given.messages, given.tools, traits, is_generic)
        self._log(fitted.done)
        try:
            return self._render(given.with_(fitted), end)
        except TemplateError as fault:
            # Its probes did not show everything. As it refuses this beginning, it will refuse it in later
            # turns too, so that they are changed alike.
            strict = fit(given.messages, given.tools, traits.strictest, is_generic)
            if strict.messages == fitted.messages or isinstance(fault.__cause__, RenderLimitError):
                raise
            try:
                ids = self._render(given.with_(strict), end)
            except TemplateError:
                raise fault from fault.__cause__
            self._log(strict.done)
            return ids

    def render_unchanged(
        self, messages: list[Json], tools: list[Json] | None, arguments: Json, end: PromptEnd = "answer"
    ) -> list[int]:
        """Return the ids of messages as they are. Raises TemplateError."""
        return self._render(self._mark(messages, tools, arguments), end)

    def _log(self, changes: Sequence[str]) -> None:
        """Say once for each kind of change that it is made."""
        for what in changes:
            if what not in self._logged:
                self._logged.add(what)
                name = Path(str(self._wrapped.name_or_path)).name or "this model"
                log.info("the chat template of %s: %s", name, what)

    def _mark(self, messages: list[Json], tools: list[Json] | None, arguments: Json) -> "_Given":
        mark = self._control_tokens
        marked = _Given(mark.mark_messages(messages), mark.mark(tools), mark.mark(arguments))
        marked.is_marked = not (
            marked.messages is messages and marked.tools is tools and marked.arguments is arguments
        )
        return marked

    def _render(self, given: "_Given", end: PromptEnd) -> list[int]:
        messages, arguments = given.messages, given.arguments
        if self._wrapped._chat_template is not None:
            messages, arguments = for_python_template(messages, given.tools, arguments)
        else:
            arguments = {**arguments, "return_dict": False}
        shown = {"tools": given.tools, "add_generation_prompt": end == "answer", "tokenize": False}
        if end == "final_message":
            shown["continue_final_message"] = True
        try:
            rendered = self._wrapped.apply_chat_template(messages, **shown, **arguments)
            return (self._control_tokens if given.is_marked else self._encoder).encode(rendered)
        except UnbrokenTextError:
            raise
        # A template is a program that comes with the model: it may raise anything.
        except Exception as fault:
            raise TemplateError(f"the chat template refused the messages: {fault}") from fault


@dataclass(slots=True)
class _Given:
    """The arguments of a template. is_marked: control tokens in them are marked, as ControlTokens does it."""

    messages: list[Json]
    tools: list[Json] | None
    arguments: Json
    is_marked: bool = False

    def with_(self, fitted: Fitted) -> "_Given":
        return replace(self, messages=fitted.messages, tools=fitted.tools)
