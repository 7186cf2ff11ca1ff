"""Rows become tables in a terminal and in Markdown."""

from reprise.bench.document import Column, format_value, interval, markdown

ROWS = [
    {"name": "one", "speed": 1234.5, "share": 0.25, "low": 1.0, "high": 2.0},
    {"name": "two", "speed": None, "share": None},
]
COLUMNS = [
    Column("name", "name"),
    Column("speed", "tok-\nens/s", "1"),
    Column("share", "share", "%"),
    Column(interval, "95 %"),
]


def test_markdown_has_a_line_for_each_row_and_dashes_where_nothing_is_known() -> None:
    assert markdown(ROWS, COLUMNS) == (
        "| name | tokens/s | share | 95 % |\n|---|---|---|---|\n"
        "| one | 1,234.5 | 25 % | 1.00 to 2.00 |\n| two | - | - | - |\n"
    )
    assert [format_value(one, "text") for one in (0.12345, 1234.5, 7)] == ["0.123", "1,234", "7"]
    assert format_value(3, lambda value: f"<{value}>") == "<3>"
