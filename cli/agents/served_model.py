"""Ask a running server for the model that it serves."""

import json
import urllib.error
import urllib.request
from dataclasses import dataclass

from cli.arguments import UsageError

_PATIENCE_S = 10


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as an agent reaches it.

    url: the server's address, without /v1. key: what a client sends as its API key; None if it needs none.
    context_tokens: of a prompt and its answer together. can_call: whether it can call tools.
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


def find_model(url: str, key: str | None) -> ServedModel:
    """Return the first model that GET /v1/models lists.

    url: with or without /v1 at the end.
    Raises UsageError if no Reprise server answers there, or if it refuses the key.
    """
    url = url.rstrip("/").removesuffix("/v1")
    if not url.startswith(("http://", "https://")):
        raise UsageError(f"--url is {url}; it must start with http:// or https://")
    request = urllib.request.Request(
        f"{url}/v1/models", headers={"Authorization": f"Bearer {key}"} if key else {}
    )
    try:
        with urllib.request.urlopen(request, timeout=_PATIENCE_S) as response:
            card = json.load(response)["data"][0]
        return ServedModel(url, card["id"], card["context_length"], card["tools"], key)
    except urllib.error.HTTPError as error:
        if error.code == 401:
            raise UsageError(f"{url} wants an API key: pass --api-key") from None
        raise UsageError(f"{url}/v1/models answers with status {error.code}") from None
    except OSError as error:
        reason = getattr(error, "reason", error)
        raise UsageError(f"no server at {url} ({reason}): start `reprise serve`, or pass --url") from None
    except (ValueError, LookupError, TypeError):
        raise UsageError(f"{url}/v1/models does not answer as Reprise does") from None
