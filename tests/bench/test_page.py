"""The report is one file that needs nothing else, whatever its documents contain."""

import base64
import hashlib
import json
import math
from html.parser import HTMLParser

import pytest

from reprise.bench.page import page, write_page
from reprise.cli.main import main
from tests.bench.documents.made_up import made_up

HOSTILE = (
    "</script><script>alert(1)</script><!-- {{script}} {% raw %} <img src=x onerror=alert(1)> \u2028 & \ud800"
)


class _Elements(HTMLParser):
    """Collects the elements of a page with their attributes and the texts directly in them."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.all: list[tuple[str, dict[str, str | None], list[str]]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.all.append((tag, dict(attrs), []))

    def handle_endtag(self, tag):
        # What follows belongs to an outer element, whose text no test needs.
        self.all.append((f"/{tag}", {}, []))

    def handle_data(self, data):
        if self.all:
            self.all[-1][2].append(data)

    def texts(self, tag, **attributes):
        """Return the text of each element with this tag and these attributes."""
        return [
            "".join(texts)
            for name, own, texts in self.all
            if name == tag and attributes.items() <= own.items()
        ]


def test_the_policy_allows_the_page_its_own_script_and_style_alone():
    elements = _Elements(page([made_up()]))
    (policy,) = [own["content"] for _, own, _ in elements.all if own.get("http-equiv")]
    directives = dict(part.strip().split(" ", 1) for part in policy.split(";"))
    (style,) = elements.texts("style")
    (script,) = ["".join(texts) for tag, own, texts in elements.all if tag == "script" and not own]
    for name, text in (("script-src", script), ("style-src", style)):
        digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        assert directives[name] == f"'sha256-{digest}'"
    assert directives["default-src"] == directives["form-action"] == directives["base-uri"] == "'none'"


def test_the_page_refers_to_nothing_outside():
    elements = _Elements(page([made_up()]))
    for _, own, _ in elements.all:
        assert "src" not in own
        assert "style" not in own
        assert (own.get("href") or "#").startswith("#")
    (style,) = elements.texts("style")
    assert "url(" not in style
    assert "@import" not in style


def test_no_text_ends_the_element_it_is_in(tmp_path):
    plain, document = made_up(), made_up()
    document["decode"]["samples"][0].update(prompt=HOSTILE, tokens=[[HOSTILE, HOSTILE]])
    document["decode"]["rows"][0]["workload"] = document["command"] = HOSTILE
    write_page(tmp_path / "report.html", [document])
    elements = _Elements((tmp_path / "report.html").read_text())
    shown = HOSTILE.replace("\ud800", "\ufffd")
    assert shown in elements.texts("pre")
    assert shown in elements.texts("span")
    assert shown in elements.texts("dt")
    specs = [json.loads(text) for text in elements.texts("script", type="application/json")]
    assert HOSTILE in [row["case"] for row in specs[0]["data"]["values"]]
    for tag in ("script", "img", "style"):
        assert len(elements.texts(tag)) == len(_Elements(page([plain])).texts(tag))


def test_what_is_no_number_in_json_is_missing():
    document = made_up()
    document["decode"]["rows"][0]["speedup"] = math.nan
    document["decode"]["rows"][1]["speedup"] = math.inf
    elements = _Elements(page([document]))
    spec = json.loads(elements.texts("script", type="application/json")[0], parse_constant=pytest.fail)
    assert [row["speedup"] for row in spec["data"]["values"]].count(None) == 2


def test_the_command_draws_several_documents_as_one_page(tmp_path, capsys):
    files = [tmp_path / "a.json", tmp_path / "b.json"]
    for number, file in enumerate(files):
        file.write_text(json.dumps(made_up(seed=number)))
    page_file = tmp_path / "report.html"
    given = [word for file in files for word in ("--page", str(file))]
    assert main(["bench", "all", *given, "--html", str(page_file)]) == 0
    assert "decode, sweep, serve, replay" in capsys.readouterr().out
    names = _Elements(page_file.read_text()).texts("option")
    for number in (1, 2):
        assert f"2026-01-02 on A machine that does not exist; model made-up-model ({number})" in names


@pytest.mark.parametrize("text", ["{", "[]", '{"machine": {}}', None])
def test_the_command_refuses_other_files_in_one_line(text, tmp_path, capsys):
    file = tmp_path / "a.json"
    if text is not None:
        file.write_text(text)
    assert main(["bench", "all", "--page", str(file), "--html", str(tmp_path / "report.html")]) == 2
    printed = capsys.readouterr().err
    assert printed.count("\n") == 1
    assert "a.json" in printed
