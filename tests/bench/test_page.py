"""The report is one file that needs nothing else, whatever its documents contain."""

import base64
import hashlib
import json
import math
from html.parser import HTMLParser

import pytest

from bench.page import page, write_page
from cli.main import main
from tests.bench.documents.made_up import made_up

HOSTILE = "</script><script>alert(1)</script><!-- {{script}} <img src=x onerror=alert(1)> \u2028 & \x00"


class _Elements(HTMLParser):
    """Collects the scripts and styles of a page, and every address in its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.attributes: list[dict[str, str | None]] = []
        self.texts: list[tuple[str, str]] = []
        self._tag = ""
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self._tag = tag
        self.attributes.append({"": tag, **dict(attrs)})

    def handle_data(self, data):
        if self._tag in ("script", "style"):
            self.texts.append((self._tag, data))

    def handle_endtag(self, tag):  # noqa: ARG002
        self._tag = ""


def test_the_policy_allows_the_page_its_own_script_and_style_alone():
    elements = _Elements(page([made_up()]))
    (policy,) = [one["content"] for one in elements.attributes if one.get("http-equiv")]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    style, documents, script = (text for _, text in elements.texts)
    for name, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives[name] == f"'sha256-{digest}'"
    assert directives["default-src"] == directives["form-action"] == directives["base-uri"] == "'none'"
    assert json.loads(documents)[0]["id"] == "top"


def test_the_page_refers_to_nothing_outside():
    elements = _Elements(page([made_up()]))
    for one in elements.attributes:
        assert "src" not in one
        assert (one.get("href") or "#").startswith("#")
    style = "".join(text for tag, text in elements.texts if tag == "style")
    assert "url(" not in style
    assert "@import" not in style


def test_no_text_ends_the_element_it_is_in():
    document = made_up()
    document["decode"]["samples"][0].update(prompt=HOSTILE, tokens=[[HOSTILE, HOSTILE]])
    document["command"] = HOSTILE
    elements = _Elements(page([document]))
    assert [tag for tag, _ in elements.texts] == ["style", "script", "script"]
    sections = {one["id"]: one for one in json.loads(elements.texts[1][1])}
    (answers,) = sections["answers"]["variants"][0]["parts"]
    assert [HOSTILE, HOSTILE] in [token for sample in answers["samples"] for token in sample["tokens"]]


def test_what_is_no_number_in_json_is_missing():
    document = made_up()
    document["decode"]["rows"][0]["speedup"] = math.nan
    document["decode"]["rows"][1]["speedup"] = math.inf
    read = {one["id"]: one for one in json.loads(_Elements(page([document])).texts[1][1])}
    (table,) = [part for part in read["speedup"]["variants"][0]["parts"] if part["kind"] == "table"]
    assert [row["speedup"] for row in table["rows"][:2]] == [None, None]


def test_a_report_needs_a_document(tmp_path):
    with pytest.raises(ValueError, match="at least one"):
        write_page(tmp_path / "report.html", [])


def test_the_command_draws_several_documents_as_one_page(tmp_path, capsys):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for number, file in enumerate(files):
        file.write_text(json.dumps(made_up(seed=number)))
    page_file = tmp_path / "report.html"
    assert main(["bench", "report", *map(str, files), "--html", str(page_file)]) == 0
    assert "decode, sweep, economics, translation, peers, serve, replay" in capsys.readouterr().out
    sections = {one["id"]: one for one in json.loads(_Elements(page_file.read_text()).texts[1][1])}
    names = [one["name"] for one in sections["peers"]["variants"]]
    assert names == [f"A machine that does not exist ({number})" for number in (1, 2)]


def test_replays_on_several_curves_are_drawn_from_rows_of_either_version():
    late = made_up()
    late["replay"]["rows"] = [
        row | {"curve": curve, "speedup": speedup, "slowest": row["slowest"][curve]}
        for row in late["replay"]["rows"]
        for curve, speedup in row["speedup"].items()
    ]
    early, drawn = (
        next(one for one in json.loads(_Elements(page([one])).texts[1][1]) if one["id"] == "replay")
        for one in (made_up(), late)
    )
    assert early["variants"][0]["lead"] == drawn["variants"][0]["lead"]
    for one, other in zip(early["variants"][0]["parts"][:2], drawn["variants"][0]["parts"][:2], strict=True):
        assert one["spec"]["data"] == other["spec"]["data"]


@pytest.mark.parametrize("text", ["{", "[]", '{"machine": {}}', None])
def test_the_command_refuses_other_files_in_one_line(text, tmp_path, capsys):
    file = tmp_path / "a.json"
    if text is not None:
        file.write_text(text)
    assert main(["bench", "report", str(file), "--html", str(tmp_path / "report.html")]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "a.json" in printed
