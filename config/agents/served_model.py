"""The model that an agent is to use."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as an agent reaches it.

    url: the server's address, without /v1. key: what a client sends as its API key; None if it needs none.
    context_tokens: limit of a prompt and its answer together. can_call: whether the model can call tools.
    """

    url: str
    name: str
    context_tokens: int
    can_call: bool
    key: str | None = None

    @property
    def openai_url(self) -> str:
        """The base URL for OpenAI's clients."""
        return f"{self.url}/v1"

    @property
    def sent_key(self) -> str:
        """The key, or a placeholder for clients that do not start without one."""
        return self.key or "none"

    @property
    def answer_tokens(self) -> int:
        """A quarter of the context, for agents that want a limit for answers too."""
        return self.context_tokens // 4
