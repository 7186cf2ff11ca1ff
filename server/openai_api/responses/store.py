"""Store responses, and find the one that a request continues."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

from reprise.server.errors import NotFoundError, shortened

MAX_RESPONSES = 10_000
OVERHEAD_BYTES = 1024
ITEM_OVERHEAD_BYTES = 512
"""Estimated memory besides the JSON: OVERHEAD_BYTES for a response or a turn, and this for each item id."""

Json = dict[str, Any]


@dataclass(slots=True, eq=False)
class Turn:
    """The items that one response added to a conversation.

    Each turn links to the previous one; several responses may continue the same turn. A turn stays in memory
    while a stored response or a later turn refers to it, so every stored response can be continued.

    items_json: the input items, then the output items, each as JSON; the first num_input belong to the input.
    num_references: number of stored responses and later turns that refer to this turn.
    """

    previous: "Turn | None"
    items_json: tuple[bytes, ...]
    num_input: int
    num_references: int = 0

    @property
    def num_bytes(self) -> int:
        """The turn's memory in bytes."""
        return sum(map(len, self.items_json)) + OVERHEAD_BYTES

    def history(self) -> list[bytes]:
        """Return all items from the first turn to this one, each as JSON. Instructions are not included."""
        turns = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.previous
        return [item for turn in reversed(turns) for item in turn.items_json]

    def conversation(self) -> list[Json]:
        """Return the conversation's items up to this turn, parsed."""
        return [from_json(item) for item in self.history()]


@dataclass(frozen=True, slots=True, eq=False)
class StoredResponse:
    """A response stored in memory.

    body: the JSON that the client received.
    item_ids: the ids of the items in the response's turn.
    """

    turn: Turn
    body: bytes
    item_ids: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """The response's memory in bytes, without that of its turn."""
        return len(self.body) + OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES * len(self.item_ids)


def stored_response(
    response: Json, previous: Turn | None, stored_input: Sequence[tuple[str, bytes]]
) -> StoredResponse:
    """Make the stored form of a response. Slow for a long response.

    stored_input: (id, JSON) of each input item.
    """
    output = [(str(item["id"]), to_json(item)) for item in response["output"]]
    both = [*stored_input, *output]
    turn = Turn(previous, tuple(item for _, item in both), len(stored_input))
    return StoredResponse(turn, to_json(response), tuple(item_id for item_id, _ in both))


STORE_BYTES = 64 * 2**20
"""Maximum memory for stored responses: thousands of turns; requests that store nothing send store: false."""


class ResponseStore:
    """Stored responses; the least recently used are evicted. Use it on the event loop only.

    max_bytes: limit for the JSON and its overhead.
    owner, in all methods: only the owner who added a response can find it.
    """

    def __init__(self, max_bytes: int, max_responses: int = MAX_RESPONSES) -> None:
        self.num_bytes = 0
        self.max_bytes = max_bytes
        self._max_responses = max_responses
        self._responses: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self._places: dict[tuple[str, str], tuple[str, int]] = {}

    def __len__(self) -> int:
        return len(self._responses)

    def sizes(self) -> dict[str, int]:
        """Return the bytes that are taken, and their limit."""
        return {"bytes": self.num_bytes, "budget_bytes": self.max_bytes}

    def __contains__(self, owner_and_id: tuple[str, str]) -> bool:
        return owner_and_id in self._responses

    def add(self, owner: str, response_id: str, stored: StoredResponse) -> None:
        """Store a response, and evict the least recently used ones if there is no room."""
        self._responses[owner, response_id] = stored
        self._places.update(
            {(owner, item_id): (response_id, index) for index, item_id in enumerate(stored.item_ids)}
        )
        self.num_bytes += stored.num_bytes
        self._retain(stored.turn)
        while self._responses and (
            self.num_bytes > self.max_bytes or len(self._responses) > self._max_responses
        ):
            self._remove(next(iter(self._responses)))

    def find(
        self, owner: str, response_id: str, param: str = "response_id", code: str | None = None
    ) -> StoredResponse:
        """Return a stored response. Raises NotFoundError with the given param and code."""
        stored = self._responses.get((owner, response_id))
        if stored is None:
            raise NotFoundError(
                f"There is no stored response '{shortened(response_id)}'. Responses with store: false and "
                "failed ones are not stored, others are kept until evicted, or until "
                "the server stops, and each belongs to one API key. To continue without it, send the whole "
                "conversation as input.",
                param=param,
                code=code,
            )
        self._responses.move_to_end((owner, response_id))
        return stored

    def find_item(self, owner: str, item_id: str, param: str) -> bytes:
        """Return an item of a stored response, as JSON. Raises NotFoundError."""
        place = self._places.get((owner, item_id))
        if place is None:
            raise NotFoundError(
                f"'{param}': there is no stored item '{shortened(item_id)}'; send the item itself.",
                param=param,
                code="item_not_found",
            )
        response_id, index = place
        return self.find(owner, response_id).turn.items_json[index]

    def remove(self, owner: str, response_id: str) -> None:
        """Delete a response. Raises NotFoundError."""
        self.find(owner, response_id)
        self._remove((owner, response_id))

    def _remove(self, key: tuple[str, str]) -> None:
        stored = self._responses.pop(key)
        for item_id in stored.item_ids:
            del self._places[key[0], item_id]
        self.num_bytes -= stored.num_bytes
        self._release(stored.turn)

    def _retain(self, turn: Turn) -> None:
        """Add a reference to a turn. The first also counts its bytes and refers to the previous turn."""
        current: Turn | None = turn
        while current is not None:
            current.num_references += 1
            if current.num_references > 1:
                return
            self.num_bytes += current.num_bytes
            current = current.previous

    def _release(self, turn: Turn) -> None:
        current: Turn | None = turn
        while current is not None:
            current.num_references -= 1
            if current.num_references > 0:
                return
            self.num_bytes -= current.num_bytes
            current = current.previous
