"""The examples of the documentation run as they stand, against the bundled model, and its answers end."""

import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from reprise.cli.client import DEFAULT_URL, Server, started

ROOT = Path(__file__).parents[2]
FENCED = r"^```{}\n(.*?)^```"
RECORD = '{"name": "Ben", "title": "tailor", "level": 7, "city": "Berex"}'
CODE = "x = 0\nfor n in [3, 4]:\n    x += n\nprint(x)\n"
FIRST = ("Who are you?", "Hello!")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with started([], lambda *_: None) as one:
        yield one


def blocks(page: str, language: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.findall(FENCED.format(language), text, re.MULTILINE | re.DOTALL)


def run(examples: list[str], server: Server) -> dict[str, object]:
    """Run examples of Python one after the other, and return what they have named."""
    names: dict[str, object] = {}
    for example in examples:
        exec(example.replace(DEFAULT_URL, server.url), names)
    return names


README_PYTHON = blocks("README.md", "python")[:1]
README_SHELL = blocks("README.md", "sh")


def test_the_readme_s_curl_is_answered(server):
    (command,) = README_SHELL
    done = subprocess.run(
        ["bash", "-c", command.replace(DEFAULT_URL, server.url)], capture_output=True, text=True, check=True
    )
    assert "I am the Reprise demo model" in done.stdout
    assert '"finish_reason":"stop"' in done.stdout.replace(" ", "")


def test_the_readme_s_python_prints_what_the_readme_says(server, capsys):
    run(README_PYTHON, server)
    record, gain = capsys.readouterr().out.splitlines()
    assert record == RECORD
    tokens, passes = map(int, re.fullmatch(r"(\d+) tokens in (\d+) forward passes", gain).groups())
    # Whether drafts pay is measured on a machine that may be busy.
    assert passes <= tokens


def test_structured_output_of_the_guide_is_the_record_as_an_object(server):
    names = run([*README_PYTHON, *blocks("docs/guide.md", "python")], server)
    assert names["answer"].choices[0].message.parsed.model_dump_json() == RECORD.replace(": ", ":").replace(
        ", ", ","
    )


def test_drafts_and_predictions_of_the_drafting_page_are_taken(server, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "totals.py").write_text(CODE)
    run([*README_PYTHON, *blocks("docs/drafting.md", "python")], server)
    assert int(capsys.readouterr().out.splitlines()[-1]) >= 0


@pytest.mark.parametrize("page", ["README.md", "docs/python.md"])
def test_the_examples_of_a_model_in_python_run_one_after_the_other(page, capsys):
    examples = [example for example in blocks(page, "python") if "OpenAI(" not in example]
    names: dict[str, object] = {}
    for example in examples:
        exec(example, names)
    printed = capsys.readouterr().out
    assert printed.startswith("I am the Reprise demo model")
    if page == "docs/python.md":
        *_, passes = printed.splitlines()[1].split(" in ")
        assert re.fullmatch(r"\d+ forward passes", passes)
        assert printed.endswith("'temperature' must be at most 2, not 9.\n")
        assert {"find_lantern {'size': 12}", "True True", "name='Ada' level=12"} <= set(printed.splitlines())


def test_every_example_in_python_is_one_of_these():
    pages = [
        page
        for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        if "```python" in page.read_text()
    ]
    assert {page.name for page in pages} - {"page.md"} == {
        "README.md",
        "guide.md",
        "drafting.md",
        "python.md",
    }


@pytest.mark.parametrize("limit", [{}, {"max_tokens": 100}])
@pytest.mark.parametrize("first", FIRST)
def test_the_readme_s_question_as_a_second_message_gets_an_answer_that_ends(server, first, limit):
    """A model that small may err there; what it may not do is to go on and on."""
    question = re.search(r'question = """(.*?)"""', README_PYTHON[0], re.DOTALL)[1]
    messages = [{"role": "user", "content": first}]
    for asked in (question, question.replace("Ben as", "Ada as")):
        said = server.post("/v1/chat/completions", {"messages": messages, **limit})
        messages += [said["choices"][0]["message"], {"role": "user", "content": asked}]
    last = server.post("/v1/chat/completions", {"messages": messages, **limit})
    assert said["usage"]["completion_tokens"] < 200
    assert last["usage"]["completion_tokens"] < 200
