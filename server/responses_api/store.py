"""Responses that a later request may continue or ask for: in memory, bounded, each its owner's alone."""

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json, to_json

from server.errors import NotFoundError, shortened
from server.responses_api.items import ConversationItem, parse_items

MAX_RESPONSES = 10_000
OVERHEAD_BYTES = 1024
ITEM_OVERHEAD_BYTES = 512
"""What a response or a turn, and each item, take besides their JSON: places in tables, rounded up."""

Json = dict[str, Any]


@dataclass(slots=True, eq=False)
class Turn:
    """What one response added to a conversation, as JSON.

    Turns form a chain to the first; several responses may continue one. A turn is counted for as long as a
    kept response or a later turn needs it, so that what is kept can always be continued.

    said: the items of the input and of the output, in that order; num_input of them are the input's.
    """

    previous: "Turn | None"
    said: bytes
    num_input: int
    num_holders: int = 0

    @property
    def num_bytes(self) -> int:
        """What it counts for."""
        return len(self.said) + OVERHEAD_BYTES

    def items(self) -> list[Json]:
        """Input and output."""
        items: list[Json] = from_json(self.said)
        return items

    def conversation(self) -> list[ConversationItem]:
        """All items from the first turn to the end of this one, without any instructions."""
        turns = []
        turn: Turn | None = self
        while turn is not None:
            turns.append(turn)
            turn = turn.previous
        return [item for turn in reversed(turns) for item in parse_items(turn.items())]


@dataclass(frozen=True, slots=True, eq=False)
class StoredResponse:
    """A response that ended well. body: the JSON that the client got."""

    turn: Turn
    body: bytes
    item_ids: tuple[str, ...]

    @property
    def num_bytes(self) -> int:
        """What it counts for, its turn left out."""
        return len(self.body) + OVERHEAD_BYTES + ITEM_OVERHEAD_BYTES * len(self.item_ids)


class ResponseStore:
    """Keeps what was used last, up to max_bytes of JSON. Lives on the event loop.

    owner, in all methods: whose the response is; nobody else finds it.
    """

    def __init__(self, max_bytes: int, max_responses: int = MAX_RESPONSES) -> None:
        self.num_bytes = 0
        self.max_bytes = max_bytes
        self._max_responses = max_responses
        self._kept: OrderedDict[tuple[str, str], StoredResponse] = OrderedDict()
        self._home: dict[tuple[str, str], str] = {}

    def __len__(self) -> int:
        return len(self._kept)

    def __contains__(self, owner_and_id: tuple[str, str]) -> bool:
        return owner_and_id in self._kept

    def add(
        self, owner: str, response: Json, previous: Turn | None, said: list[Json], num_input: int
    ) -> None:
        """Keep a response, and let go of what was used longest ago where there is no room.

        said: items of input and output, see Turn.
        """
        turn = Turn(previous, to_json(said), num_input)
        kept = StoredResponse(turn, to_json(response), tuple(str(item["id"]) for item in said))
        response_id = str(response["id"])
        self._kept[owner, response_id] = kept
        self._home.update({(owner, item_id): response_id for item_id in kept.item_ids})
        self.num_bytes += kept.num_bytes
        self._hold(turn)
        while self._kept and (self.num_bytes > self.max_bytes or len(self._kept) > self._max_responses):
            self._drop(next(iter(self._kept)))

    def find(
        self, owner: str, response_id: str, param: str = "response_id", code: str | None = None
    ) -> StoredResponse:
        """The response. Raises NotFoundError with the given param and code."""
        kept = self._kept.get((owner, response_id))
        if kept is None:
            raise NotFoundError(
                f"There is no response '{shortened(response_id)}' here: it had store: false, failed, "
                "belongs to another API key, or made room for others (--response-store-bytes).",
                param=param,
                code=code,
            )
        self._kept.move_to_end((owner, response_id))
        return kept

    def find_item(self, owner: str, item_id: str, param: str) -> ConversationItem:
        """An item of a response that is kept. Raises NotFoundError."""
        response_id = self._home.get((owner, item_id))
        if response_id is None:
            raise NotFoundError(
                f"'{param}': there is no item '{shortened(item_id)}' here; send the item itself.",
                param=param,
                code="item_not_found",
            )
        items = self.find(owner, response_id).turn.items()
        return parse_items([item for item in items if item["id"] == item_id])[0]

    def remove(self, owner: str, response_id: str) -> None:
        """Forget a response. Raises NotFoundError."""
        self.find(owner, response_id)
        self._drop((owner, response_id))

    def _drop(self, key: tuple[str, str]) -> None:
        kept = self._kept.pop(key)
        for item_id in kept.item_ids:
            del self._home[key[0], item_id]
        self.num_bytes -= kept.num_bytes
        self._let_go(kept.turn)

    def _hold(self, turn: Turn) -> None:
        """One more needs the turn; the first to do so brings its bytes, and needs the one before."""
        current: Turn | None = turn
        while current is not None:
            current.num_holders += 1
            if current.num_holders > 1:
                return
            self.num_bytes += current.num_bytes
            current = current.previous

    def _let_go(self, turn: Turn) -> None:
        current: Turn | None = turn
        while current is not None:
            current.num_holders -= 1
            if current.num_holders > 0:
                return
            self.num_bytes -= current.num_bytes
            current = current.previous
