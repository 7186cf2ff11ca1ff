"""The bodies of /tokenize and /detokenize, which llama-server and vLLM both have.

The two servers name some fields differently and have different defaults. Both names are accepted, and the
defaults follow the name used for the text: `content` is llama-server's, `prompt` is vLLM's.
"""

from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationInfo, model_validator

from reprise.server.conversation.chats import read_chat
from reprise.server.requests.messages import ONE_END, Messages, TemplateArguments, Tools
from reprise.server.validation.field_errors import field_error
from reprise.server.validation.fields import RequestModel, Rules, TokenId, neutral, unsupported
from reprise.server.validation.notes import notes_in

_TEXT_FIELDS = ("content", "prompt", "messages")
_FIXED = {"phrase": "is not supported; leave it out", "description": "Left out: only the default."}


class TokenizeRequest(RequestModel):
    """The body of POST /tokenize: exactly one of content, prompt and messages."""

    rules: ClassVar[Rules] = (
        {
            "anyOf": [
                {**neutral("prompt", "messages"), "required": ["content"]},
                {**neutral("content", "messages"), "required": ["prompt"]},
                {**neutral("content", "prompt"), "required": ["messages"]},
            ]
        },
        {"not": neutral("content", "prompt", "messages")},
        ONE_END,
        {
            "anyOf": [
                neutral("messages"),
                neutral("add_special", "add_special_tokens", values=(None, False)),
            ]
        },
        {
            "anyOf": [
                neutral("add_special"),
                neutral("add_special_tokens"),
                neutral("add_special", "add_special_tokens", values=(True,)),
                neutral("add_special", "add_special_tokens", values=(False,)),
            ]
        },
    )

    model: str | None = Field(
        None, description="The model's name or one of its aliases. null: the served model."
    )
    content: str | None = Field(None, description="The text, under llama-server's name.")
    prompt: str | None = Field(None, description="The text, under vLLM's name.")
    messages: Messages | None = Field(None, description="A conversation; returns the tokens of its prompt.")
    tools: Tools = Field((), description="Tools to render with the messages.")
    chat_template_kwargs: TemplateArguments | None = Field(
        None, description="Arguments for the chat template."
    )
    add_special: bool | None = Field(
        None,
        description="Whether to add the special tokens that a prompt begins or ends with. null: true for "
        "prompt, false for content. With messages, the chat template decides.",
    )
    add_special_tokens: bool | None = Field(None, description="vLLM's name for add_special.")
    with_pieces: bool = Field(
        False, description="Whether to return each token as an object with id and piece."
    )
    return_token_strs: bool = Field(False, description="Whether to return each token's text in token_strs.")
    parse_special: unsupported(True, **_FIXED) = None  # type: ignore[valid-type]
    continue_final_message: bool = Field(
        False, description="As in a chat: whether the prompt ends within the last message."
    )
    add_generation_prompt: bool | None = Field(
        None, description="As in a chat: whether the prompt opens the answer."
    )

    @model_validator(mode="before")
    @classmethod
    def read_conversation(cls, given: Any, info: ValidationInfo) -> Any:
        """Bring the conversation into the normal form, without a tool_choice: there is none."""
        if not isinstance(given, dict):
            return given
        read = read_chat(given, notes_in(info.context))
        return {name: value for name, value in read.items() if name in given}

    @model_validator(mode="after")
    def check_text_fields(self) -> "TokenizeRequest":
        """Refuse a request without a text or with several, and fields that do not apply to it."""
        given = [name for name in _TEXT_FIELDS if getattr(self, name) is not None]
        if not given:
            raise field_error(
                "missing_required_parameter",
                "is missing, and so are prompt and messages; send one of them",
                "content",
            )
        if len(given) > 1:
            raise field_error(
                "invalid_value", f"and {given[0]} cannot be combined; send one of them", given[1]
            )
        if self.messages is None and self.tools:
            raise field_error("invalid_value", "are allowed only with messages", "tools", leaves_out=True)
        if self.messages is None and self.chat_template_kwargs is not None:
            phrase = "is allowed only with messages"
            raise field_error("invalid_value", phrase, "chat_template_kwargs", leaves_out=True)
        if None not in (self.add_special, self.add_special_tokens) and (
            self.add_special != self.add_special_tokens
        ):
            raise field_error(
                "invalid_value", "and add_special_tokens differ; send one of them", "add_special"
            )
        if self.messages is not None and self._special_requested:
            name = "add_special" if self.add_special else "add_special_tokens"
            raise field_error("unsupported_value", "is decided by the chat template; leave it out", name)
        return self

    @property
    def text_field(self) -> Literal["content", "prompt"]:
        """The field that holds the text."""
        return "prompt" if self.content is None else "content"

    @property
    def wants_special(self) -> bool:
        """Whether to add the special tokens that a prompt begins or ends with."""
        requested = self._special_requested
        return self.content is None if requested is None else requested

    @property
    def _special_requested(self) -> bool | None:
        return self.add_special_tokens if self.add_special is None else self.add_special


class DetokenizeRequest(RequestModel):
    """The body of POST /detokenize."""

    model: str | None = Field(
        None, description="The model's name or one of its aliases. null: the served model."
    )
    tokens: list[TokenId] = Field(description="Token ids; at most as many as the context holds.")
