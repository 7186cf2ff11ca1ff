"""How long a request keeps its model: as a number or a duration, as Ollama takes it."""

import pytest

from reprise.server.errors import BadRequestError
from reprise.server.requests.generation_fields import keep_alive_s


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        (None, None),
        (0, 0),
        (-1, -1),
        (2.5, 2.5),
        ("300", 300),
        ("-1", -1),
        ("5m", 300),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("1.5h", 5400),
        ("-1m", -60),
    ],
)
def test_numbers_and_durations_are_understood(given: float | str | None, seconds: float | None) -> None:
    assert keep_alive_s(given) == seconds


@pytest.mark.parametrize("given", ["", "soon", "5 m", "m5", "5d", "1h-2m", "1" * 20 + "h"])
def test_anything_else_is_refused_by_name(given: str) -> None:
    with pytest.raises(BadRequestError, match="keep_alive") as raised:
        keep_alive_s(given)
    assert raised.value.param == "keep_alive"
