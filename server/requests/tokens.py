"""The bodies of /tokenize and /detokenize, which llama-server and vLLM both have, and of /v1/embeddings.

The two servers name some fields differently and choose other defaults. Here both names are taken, and the
default is that of the server whose name for the text was used: `content` is llama-server's, `prompt` vLLM's.
"""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from server.requests.chat_template import Messages, TemplateArguments
from server.requests.tools import Tools
from server.validation.field_errors import field_error
from server.validation.fields import INT32_MAX, RequestModel, unsupported

_ONE_TEXT = ("content", "prompt", "messages")
_ALWAYS = {"phrase": "is not supported; leave it out", "description": "Only the default."}


class TokenizeRequest(RequestModel):
    """The body of POST /tokenize: a text, under either name, or a conversation."""

    model: str | None = Field(None, description="The model or one of its aliases; the served one if absent.")
    content: str | None = Field(None, description="The text; llama-server's name for it.")
    prompt: str | None = Field(None, description="The text; vLLM's name for it.")
    messages: Messages | None = Field(None, description="A conversation, up to where the answer begins.")
    tools: Tools = Field((), description="Shown to the model with the messages.")
    chat_template_kwargs: TemplateArguments | None = Field(None, description="Handed to the chat template.")
    add_special: bool | None = Field(
        None,
        description="Whether the text gets what a prompt begins or ends with; true for prompt, false for "
        "content if absent. Of messages the chat template decides.",
    )
    add_special_tokens: bool | None = Field(None, description="vLLM's name for add_special.")
    with_pieces: bool = Field(False, description="Each token as an object with its id and its piece of text.")
    return_token_strs: bool = Field(False, description="The text of each token, in token_strs.")
    parse_special: unsupported(True, **_ALWAYS) = None  # type: ignore[valid-type]
    add_generation_prompt: unsupported(True, **_ALWAYS) = None  # type: ignore[valid-type]
    continue_final_message: unsupported(False, **_ALWAYS) = None  # type: ignore[valid-type]

    @model_validator(mode="after")
    def one_text(self) -> "TokenizeRequest":
        """Refuse none and several texts, and what does not go with the one there is."""
        given = [name for name in _ONE_TEXT if getattr(self, name) is not None]
        if not given:
            raise field_error(
                "missing_required_parameter", "is missing, and so are prompt and messages", "content"
            )
        if len(given) > 1:
            raise field_error("invalid_value", f"and {given[0]} are both there; send one of them", given[1])
        if self.messages is None and self.tools:
            raise field_error("invalid_value", "go with messages only", "tools")
        if self.messages is None and self.chat_template_kwargs is not None:
            raise field_error("invalid_value", "goes with messages only", "chat_template_kwargs")
        if None not in (self.add_special, self.add_special_tokens) and (
            self.add_special != self.add_special_tokens
        ):
            raise field_error(
                "invalid_value", "and add_special_tokens disagree; send one of them", "add_special"
            )
        if self.messages is not None and self._asked_for_special:
            name = "add_special" if self.add_special else "add_special_tokens"
            raise field_error("unsupported_value", "is decided by the chat template; leave it out", name)
        return self

    @property
    def text_field(self) -> Literal["content", "prompt"]:
        """Under which name the text came."""
        return "prompt" if self.content is None else "content"

    @property
    def wants_special(self) -> bool:
        """Whether the text gets what a prompt begins or ends with."""
        asked = self._asked_for_special
        return self.content is None if asked is None else asked

    @property
    def _asked_for_special(self) -> bool | None:
        return self.add_special_tokens if self.add_special is None else self.add_special


Token = Annotated[int, Field(ge=0, le=INT32_MAX)]


class DetokenizeRequest(RequestModel):
    """The body of POST /detokenize."""

    model: str | None = Field(None, description="The model or one of its aliases; the served one if absent.")
    tokens: list[Token] = Field(description="Token ids, at most as many as the context has room for.")
