"""The log records of the last requests: counts and times, never texts."""

from collections import deque
from datetime import UTC, datetime

from reprise.server.logs import RequestRecord

MAX_REQUESTS = 100


class RecentRequests:
    """The last requests that generated tokens or failed. For the event loop's thread alone."""

    def __init__(self) -> None:
        self._held: deque[dict[str, object]] = deque(maxlen=MAX_REQUESTS)

    def add(self, record: RequestRecord) -> None:
        """Remember a request that has ended, if it is of interest."""
        if record.is_of_interest:
            ended_at = datetime.now(UTC).isoformat(timespec="milliseconds")
            self._held.appendleft({"time": ended_at} | record.as_fields())

    def newest_first(self) -> list[dict[str, object]]:
        """Return the requests as fields of JSON objects, as in the log; see RequestRecord."""
        return list(self._held)
