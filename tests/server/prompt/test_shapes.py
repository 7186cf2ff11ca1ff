"""What a tool's result shows of a file is the file's own lines, whichever tool it was."""

import json

import pytest

from reprise.server.prompt.views import read_shapes

FILE = "def area(w, h):\n    return w * h\n\n\nclass Box:\n    side = 2"
LINES = FILE.split("\n")


def numbered(form: str, first: int = 9) -> str:
    return "\n".join(form.format(number, line) for number, line in enumerate(LINES, first))


@pytest.mark.parametrize(
    "form",
    [
        "{:6}→{}",
        "{:6}\t{}",
        "{}: {}",
        "{}:{}",
        "{:05}| {}",
        "{:4} | {}",
        "{}|{}",
        "L{}: {}",
        "src/a.py:{}:{}",
    ],
)
def test_numbers_before_lines_are_cut(form: str) -> None:
    shown = read_shapes(numbered(form))
    assert shown.plain == FILE
    assert shown.cut == f"{FILE}\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [("<file>\n", "\n</file>"), ("<content>\n", "\n</content>\n(End of file)"), ("Here it is:\n", "\nDone.")],
)
def test_what_stands_around_a_file_is_kept(before: str, after: str) -> None:
    assert read_shapes(before + numbered("{:05}| {}") + after).plain == before + FILE + after


def test_a_tag_may_be_glued_to_the_first_line() -> None:
    assert read_shapes("<file>" + numbered("{:05}| {}") + "\n</file>").plain == FILE + "\n</file>"


def test_lines_that_a_search_found_are_cut_from_their_paths_and_numbers() -> None:
    found = "src/a.py:9:def area(w, h):\nsrc/a.py-10-    return w * h\n--\nsrc/b.py:3:import a"
    assert read_shapes(found).cut == "def area(w, h):\n    return w * h\nimport a\n"
    under_headings = "src/a.py\n9:def area(w, h):\n10-    return w * h\n40:    area(1, 2)"
    assert read_shapes(under_headings).cut == "def area(w, h):\n    return w * h\n    area(1, 2)\n"


def test_of_a_diff_the_new_lines_are_kept() -> None:
    hunk = "@@ -9,2 +9,2 @@ class Box\n def area(w, h):\n-    return w\n+    return w * h\n"
    diff = f"--- a/a.py\n+++ b/a.py\n{hunk}"
    assert read_shapes(diff).cut == "def area(w, h):\n    return w * h\n\n"


def test_text_within_a_result_in_json_is_read() -> None:
    result = json.dumps({"path": "a.py", "content": numbered("{:6}→{}") * 2})
    assert LINES[1] in read_shapes(result).cut.split("\n")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain\ntext",
        "1. one\n2. two\n3. three",
        "at 12:30 we met\nat 12:40 we left",
        "7→",
        "x | y\n1 | 2\n3 | 4",
    ][:4],
)
def test_other_text_is_as_it_is(text: str) -> None:
    shown = read_shapes(text)
    assert (shown.plain, shown.cut) == (text, "")


def test_numbers_that_do_not_follow_each_other_are_no_lines_of_a_file() -> None:
    text = "1\tone\n5\tfive\n2\ttwo"
    assert read_shapes(text).cut == ""


def test_a_file_indented_throughout_keeps_its_indentation() -> None:
    lines = "\n".join(f"{number}:    a = {number}" for number in range(1, 5))
    assert read_shapes(lines).plain == "\n".join(f"    a = {number}" for number in range(1, 5))


def test_escaped_quotes_that_end_nowhere_take_linear_time() -> None:
    """Else this would take minutes."""
    assert not read_shapes("x\n" + '\\"' * 300_000).cut
