"""POST /v1/responses/compact: the model summarises a conversation; later requests send the summary."""

from collections.abc import Sequence
from typing import Any

from pydantic import Field
from pydantic_core import to_json

from reprise.server.errors import ContextLengthError, RequestFailedError
from reprise.server.openai_api.responses.items import as_listed, encode_reasoning, kind_of
from reprise.server.openai_api.responses.presenter import ResponsePresenter, item_id, response_id, usage_json
from reprise.server.openai_api.responses.schemas import Input, ResponsesRequest
from reprise.server.output.openai_objects import Timings, UsageBlock
from reprise.server.output.parts import ChoiceOutput
from reprise.server.output.presenter import ResponseHead
from reprise.server.validation.fields import AcceptsPeerFields, no_effect, unsupported, validate

SHARE_OF_CONTEXT = 8
"""A summary takes at most one part in so many of the context."""
ASKED = (
    "Summarise this conversation for an assistant that will continue it and sees nothing of it but the "
    "user's messages and your summary. Say what the user wants, what was done and found out, which names, "
    "files and values matter, what was decided and why, and what is still to be done. Do not continue the "
    "conversation: write the summary alone."
)


def summary_tokens(context_tokens: int) -> int:
    """Return the maximum number of tokens of a summary."""
    return max(1, context_tokens // SHARE_OF_CONTEXT)


class CompactRequest(AcceptsPeerFields):
    """The body of POST /v1/responses/compact."""

    names = ResponsesRequest.names

    model: str | None = Field(None, description="As in POST /v1/responses.")
    input: Input = Field([], description="A string, or items. Optional with previous_response_id.")
    instructions: str | None = Field(None, description="A system message at the start, as in the session.")
    previous_response_id: str | None = Field(None, description="The id of a stored response to begin with.")
    prompt_cache_key: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]
    prompt_cache_retention: no_effect("has no effect.") = None  # type: ignore[valid-type]
    prompt_cache_options: no_effect("prompts are cached by their content.") = None  # type: ignore[valid-type]
    service_tier: no_effect("there is one tier, default.") = None  # type: ignore[valid-type]
    image: unsupported() = None  # type: ignore[valid-type]

    def asked(self, context_tokens: int) -> ResponsesRequest:
        """Return the request whose answer is the summary: the conversation, then the demand to summarise."""
        given = {
            **self.model_dump(include={"model", "instructions", "previous_response_id"}),
            "input": [{"role": "user", "content": ASKED}],
            "max_output_tokens": summary_tokens(context_tokens),
            # A thought would take the room of the summary.
            "reasoning": {"effort": "none"},
            "store": False,
        }
        asked = validate(given, ResponsesRequest)
        # Not validated with these: the demand makes one item more than a client may send.
        return asked.model_copy(update={"input": [*self.input, *asked.input]})


class CompactionPresenter(ResponsePresenter):
    """Presenter for /v1/responses/compact, which does not stream.

    items: the conversation's items. context_tokens: the size of the model's context.
    """

    def __init__(
        self, head: ResponseHead, body: ResponsesRequest, items: Sequence[Any], context_tokens: int
    ) -> None:
        super().__init__(head, body, len(items), lambda _: None, ())
        self._items, self._context_tokens = items, context_tokens

    def format_response(self, outputs: Sequence[ChoiceOutput], usage: UsageBlock, timings: Timings) -> bytes:
        """See Presenter. Raises ApiError if the summary is cut off: the client must keep its conversation."""
        (output,) = outputs
        summary, num_tokens = output.text.strip(), usage.completion_tokens
        if output.finish_reason == "length" and num_tokens < summary_tokens(self._context_tokens):
            way_out = f"It left only {num_tokens} tokens for a summary."
            raise ContextLengthError(usage.prompt_tokens, self._context_tokens, "input", way_out)
        if not summary:
            message = "The model wrote no summary. Go on with the conversation as it is."
            raise RequestFailedError(message, code="no_summary")
        head = self._head
        users = [item for item in self._items if _is_users(item)]
        kept = [as_listed(item, item_id(head, "msg", index)) for index, item in enumerate(users)]
        compaction = {
            "id": item_id(head, "cmp", len(kept)),
            "type": "compaction",
            "encrypted_content": encode_reasoning(summary),
        }
        return to_json(
            {
                "id": response_id(head),
                "object": "response.compaction",
                "created_at": head.created,
                "output": [*kept, compaction],
                "usage": usage_json(usage),
                "timings": timings.model_dump(),
            }
        )


def _is_users(item: Any) -> bool:
    if not isinstance(item, dict):
        return True
    return kind_of(item) == "message" and (item.get("role") or "user") == "user"
