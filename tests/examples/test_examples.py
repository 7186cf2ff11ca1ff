"""The examples run as they stand: against one server of the bundled model and of small ones beside it."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from reprise.cli.client import DEFAULT_URL
from tests.end_to_end.clients.packages import INSTALLED_WITHIN_S, install
from tests.end_to_end.conftest import serving
from tests.end_to_end.seeing_folder import write_seeing
from tests.engine.embedding.encoder_folders import minilm, write_encoder

EXAMPLES = Path(__file__).parents[2] / "examples"
FILES = sorted(EXAMPLES.glob("*.py"))
MAX_LINES = 60
DONE_WITHIN_S = 240
ADA = '{"name": "Ada", "title": "sailor", "level": 12, "city": "Metom"}'
BEN = '{"name": "Ben", "title": "tailor", "level": 7, "city": "Berex"}'
BOAT = '"Bisti painted the boat in the harbor."'


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("examples")
    write_seeing(folder / "models" / "sees", "qwen3_vl")
    ranks = write_encoder(folder / "ranks", ranks=True)
    flags = ("--models-dir", str(folder / "models"), "--embedding-model", str(minilm()))
    with serving(folder, "--model", "reprise-demo", *flags, "--rerank-model", str(ranks)) as (address, _):
        yield address


@pytest.fixture
def run(url: str, tmp_path: Path):
    """Return what runs an example in an empty folder, and returns the lines that it printed."""
    # A key or an address of the person who runs the tests must not be used.
    others = ("ANTHROPIC_", "OLLAMA_", "OPENAI_")
    environment = {name: value for name, value in os.environ.items() if not name.startswith(others)}

    def run(name: str, *arguments: str | Path, python: Path | str = sys.executable) -> list[str]:
        done = subprocess.run(
            [python, EXAMPLES / name, *arguments],
            env=environment | {"BASE_URL": url},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=DONE_WITHIN_S,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()

    return run


def test_openai_s_client_goes_on_with_a_conversation_that_is_cached(run):
    first, second, cached = run("openai_chat.py")
    assert (first, second) == (ADA, BEN)
    num_cached, num_tokens = map(
        int, re.fullmatch(r"(\d+) of (\d+) prompt tokens were cached", cached).groups()
    )
    assert 0 < num_cached < num_tokens


def test_anthropic_s_client_streams_a_quote(run):
    assert run("anthropic_chat.py") == [BOAT, "10 tokens, then end_turn"]


def test_ollama_s_client_streams_an_answer_and_gets_json(run):
    said, count, record = run("ollama_chat.py")
    assert said.startswith("I am the Reprise demo model")
    assert (count, record) == ("39 tokens", '{"name": "Ada", "level": 12}')


def test_a_stream_is_the_file_with_another_name_and_ends_with_what_was_drafted(run):
    source = (EXAMPLES / "stream.py").read_text(encoding="utf-8")
    renamed = re.search(r"```python\n.*?```", source, re.DOTALL)[0].replace("find_lantern", "paint_lantern")
    lines = run("stream.py")
    written = len(renamed.splitlines())
    assert "\n".join(lines[:written]) == renamed
    passes, drafts, *by_source = lines[written:]
    forwards = int(re.fullmatch(r"73 tokens in (\d+) forward passes", passes)[1])
    counts = re.fullmatch(r"(\d+) of (\d+) drafted tokens were accepted", drafts).groups()
    # How much is drafted depends on what steps cost on this machine.
    accepted, drafted = map(int, counts)
    assert sum(int(re.search(r"'draft_n': (\d+)", line)[1]) for line in by_source) == drafted
    assert accepted <= drafted
    assert 73 - accepted <= forwards <= 73


def test_a_tool_is_called_until_the_answer_is_in_words(run):
    assert run("tools.py") == [
        'call: find_lantern {"color": "red", "size": 12}',
        "result: {'price': 84}",
        "find_lantern returned: price is 84.",
    ]


def test_structured_output_is_an_object(run):
    assert run("structured_output.py") == [
        "Ben is a tailor in Berex",
        "Person(name='Ben', title='tailor', level=7, city='Berex')",
    ]


def test_a_picture_is_seen(run, tmp_path):
    png = tmp_path / "shot.png"
    png.write_bytes((EXAMPLES.parent / "docs" / "page-phone.png").read_bytes())
    own, given = (run("image.py", *arguments)[-1] for arguments in ((), (png,)))
    for line in (own, given):
        assert re.fullmatch(r"The picture took [1-9]\d* tokens of the prompt", line)
    # The two pictures have other shapes.
    assert own != given


def test_a_search_ranks_the_passages_that_are_closest(run, tmp_path):
    notes = tmp_path / "notes"
    (notes / "old").mkdir(parents=True)
    (notes / "old" / "cats.md").write_text("A kitten rests on a rug.\n\n\n" * 20)
    (notes / "rates.txt").write_text("Interest rates rose again.\n\n" * 5)
    (notes / "picture.png").write_bytes(b"A kitten\xff")
    count, *found = run("search.py", notes, "Where does the cat sleep?")
    assert count == "25 passages"
    # The ranking model is random, but the embeddings leave it nothing else.
    assert found[1::3] == ["A kitten rests on a rug."] * 3
    assert [re.fullmatch(r"0\.\d{3}  (.*)", line)[1] for line in found[::3]] == ["old/cats.md"] * 3


def test_a_model_runs_in_the_same_process(run):
    said, boat, _, mill, counted = run("in_process.py")
    assert said.startswith("I am the Reprise demo model")
    assert boat.endswith(BOAT)
    assert mill.endswith('"Clekek met Migon near the mill."')
    assert re.fullmatch(r"9 tokens in \d+ forward passes", counted)


# The package takes long to install, the first time.
@pytest.mark.slow
@pytest.mark.timeout(INSTALLED_WITHIN_S + 2 * DONE_WITHIN_S)
def test_an_agent_calls_a_tool_in_each_of_two_turns(run):
    assert run("agent.py", python=install("openai_agents") / "python") == [
        "find_lantern: red 12",
        "find_lantern returned: price is 84.",
        "paint_lantern: blue",
        "paint_lantern returned: price is 12.",
    ]


def test_every_example_is_short_listed_and_tested():
    here = Path(__file__).read_text(encoding="utf-8")
    listed = re.findall(r"`(\w+\.py)`", (EXAMPLES / "README.md").read_text(encoding="utf-8"))
    assert sorted(listed) == [file.name for file in FILES]
    for file in FILES:
        text = file.read_text(encoding="utf-8")
        assert len(text.splitlines()) < MAX_LINES, file
        assert f'run("{file.name}"' in here
        assert DEFAULT_URL in text or file.name == "in_process.py"
    assert len((EXAMPLES / "README.md").read_text(encoding="utf-8").splitlines()) <= 25
