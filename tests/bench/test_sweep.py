"""`reprise bench sweep` replays answers under many settings, and draws conclusions."""

import json
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bench.cost_curves import FLAT, M4_PRO
from bench.outputs import Work
from bench.replay.pairs import TokenPair
from bench.replay.policies import Setup
from bench.sweep import parts, tables
from bench.sweep.parts import Model
from bench.sweep.replaying import AnsweredChat, settings_of
from bench.sweep.tables import AGAIN, EDIT, NEW, WatchedTable, make_traffic, source_files
from bench.workloads import Chat
from cli.main import main
from config.settings import Settings
from drafters.base import TableFileError
from drafters.ngram_mod.table import NgramModTable

ROOT = Path(__file__).parent.parent.parent
SETUP = Setup(Settings(), M4_PRO)

texts = st.lists(st.lists(st.integers(0, 5), max_size=40), max_size=6)


def encode(text: str) -> list[int]:
    """Return words as ids."""
    return [zlib.crc32(word.encode()) % 2**20 for word in text.split()]


@pytest.fixture(scope="module")
def traffic():
    return list(make_traffic(source_files([ROOT / "drafters", ROOT / "engine"], 1), encode, 40, seed=1))


@settings(max_examples=30)
@given(st.integers(1, 3), st.integers(1, 60), texts, st.booleans())
def test_a_watched_table_equals_the_servers_and_knows_the_owner_of_each_slot(
    n: int, size: int, learned: list[list[int]], is_long: bool
) -> None:
    watched, plain, owners = WatchedTable(n, size), NgramModTable(n, size), dict[int, tuple[int, ...]]()
    overwritten = 0
    for text in learned:
        # Long texts take another code path, with arrays.
        repeated = text * 20 if is_long else text
        watched.learn(repeated)
        plain.learn(repeated)
        for at in range(n, len(repeated)):
            ngram = tuple(repeated[at - n : at])
            slot = plain.slot(plain.hash(ngram))
            overwritten += owners.get(slot, ngram) != ngram
            owners[slot] = ngram
    assert [held.tolist() for held in watched.contents()] == [held.tolist() for held in plain.contents()]
    assert watched.owners.counts.overwrites == overwritten
    assert watched.owners.counts.inserts == plain.counts.inserts


def test_tokens_that_other_ngrams_left_are_counted_where_they_are_drafted() -> None:
    table = WatchedTable(2, 1)
    table.learn([1, 2, 3])
    assert table.continuation([1, 2], table.hash([1, 2]), 1) == [3]
    assert (table.drafted, table.foreign) == (1, 0)
    assert table.continuation([8, 9], table.hash([8, 9]), 3) == [3, 3, 3]
    assert (table.drafted, table.foreign) == (4, 3)
    assert table.look_up([8, 9, 3, 4]) == [False, False], "what another n-gram wrote is not known"
    table.learn([8, 9, 3])
    assert table.look_up([8, 9, 3, 4]) == [True, False]


def test_a_short_traffic_is_the_beginning_of_a_long_one(traffic) -> None:
    short = list(make_traffic(source_files([ROOT / "drafters", ROOT / "engine"], 1), encode, 10, seed=1))
    assert short == traffic[:10]


def test_repeated_texts_are_the_answers_of_earlier_requests(traffic) -> None:
    assert {asked.workload for asked in traffic} == {EDIT, AGAIN, NEW}
    for number, asked in enumerate(traffic):
        answers = [earlier.answer for earlier in traffic[:number]]
        if asked.workload != EDIT:
            was_answered = asked.answer in [*answers, *(answer[1:-1] for answer in answers)]
            assert was_answered == (asked.workload == AGAIN)


def test_a_larger_table_knows_more_and_collides_less(traffic) -> None:
    small, large = tables.sweep(SETUP, [(4096, 16), (1 << 20, 16)], traffic, 12, Work())
    assert (small["entries"], large["entries"]) == (4096, 1 << 20)
    assert small["traffic_tokens"] == large["traffic_tokens"]
    assert small["occupancy"] > large["occupancy"]
    assert small["overwritten"] > 10 * large["overwritten"]
    assert small["foreign_drafts"] > large["foreign_drafts"]
    assert small["known_again"] < large["known_again"] <= 1
    assert small["tokens_per_forward"] < large["tokens_per_forward"]


def test_the_smallest_table_that_loses_nothing_must_be_as_good_in_everything() -> None:
    def row(entries: int, known: float, per_forward: float, speedup: float) -> dict[str, float]:
        return {"entries": entries, "known": known, "tokens_per_forward": per_forward, "speedup": speedup}

    rows = [row(1, 0.80, 4, 2), row(2, 0.90, 3.9, 2), row(4, 0.899, 4.0, 1.999), row(8, 0.90, 4, 2)]
    assert tables.smallest_without_loss(rows) == 4


@pytest.mark.parametrize(("requests", "max_measured", "expected"), [(10, 3, 3), (4, 100, 2), (1, 1, 1)])
def test_the_measured_requests_are_late_ones(requests: int, max_measured: int, expected: int) -> None:
    numbers = tables.measured_numbers(requests, max_measured)
    assert len(numbers) == expected
    assert numbers == sorted(set(numbers))
    assert min(numbers) >= requests // 2
    assert max(numbers) == requests - 1


def point(draft_type: str, length: int, size: int | None) -> dict[str, object]:
    return {"draft_type": draft_type, "num_draft_tokens": length, "ngram_size": size}


def test_the_grid_has_each_length_and_size_once_and_no_sizes_where_a_type_has_none() -> None:
    assert parts.grid(["suffix", "ngram-mod"], [8, 4], [16, 2]) == [
        point("suffix", 4, None),
        point("suffix", 8, None),
        *(point("ngram-mod", length, size) for length in (4, 8) for size in (2, 16)),
    ]


def test_a_point_becomes_the_settings_of_a_server() -> None:
    mod = settings_of(point("auto", 8, 4), Settings())
    assert (mod.draft_type, mod.num_draft_tokens, mod.ngram_mod_size) == ("auto", 8, 4)
    simple = settings_of(point("ngram-simple", 8, 24), Settings())
    assert (simple.ngram_size_min, simple.ngram_size_max) == (24, 24)
    gated = settings_of({"draft_type": "auto", "gate": "on", "threshold": 0.5}, Settings())
    assert (gated.gate, gated.gate_threshold) == ("on", 0.5)


def test_of_equal_points_the_one_with_short_drafts_is_best() -> None:
    def row(length: int, workload: str, speedup: float) -> dict[str, object]:
        return point("auto", length, 16) | {"workload": workload, "speedup": speedup}

    rows = [row(31, "a", 4.0), row(31, "b", 1.0), row(8, "a", 2.0), row(8, "b", 2.0), row(4, "a", 1.0)]
    means = point("auto", 31, 16) | {"mean": pytest.approx(2.0), "lowest": 1.0}
    assert means in parts.overall(rows)
    assert parts.best_of(rows)["num_draft_tokens"] == 8


def copies(count: int) -> list[TokenPair]:
    """Make chats of two turns: a text is copied, then repeated without being in the prompt."""
    pairs = []
    for number in range(count):
        text = tuple(1000 * number + at for at in range(100))
        for turn, prompt in ((1, text), (2, (7,) * 20)):
            pairs.append(TokenPair(prompt, text, "copies", f"{number}", turn))
    return pairs


def test_replays_of_longer_drafts_take_fewer_forwards() -> None:
    setup, points = Setup(Settings(), FLAT), parts.grid(["auto"], [2, 16], [8])
    short, long = parts.replays(setup, points, copies(2), Work())
    assert short["tokens"] == long["tokens"] == 400
    assert 2 < short["tokens_per_forward"] <= 3 < long["tokens_per_forward"]
    assert long["acceptance"] > 0.9


def test_a_gate_that_is_on_drafts_nothing_below_its_threshold() -> None:
    rows = parts.gate(SETUP, [0.0, 0.9], [one for one in copies(2) if one.turn == 1], Work())
    found = {(row["threshold"], row["gate"]): row for row in rows}
    assert found[0.9, "on"]["speedup"] == 1.0
    assert found[0.9, "on"]["repetitive"] == 0.0
    assert found[0.0, "on"]["speedup"] > 2
    assert found[0.9, "auto"]["speedup"] > 1.5


def answered(pairs: list[TokenPair]) -> list[AnsweredChat]:
    return [AnsweredChat(Chat("copies", ()), tuple(pairs[at : at + 2])) for at in range(0, len(pairs), 2)]


def test_a_warm_table_knows_what_the_first_model_said_and_misses_where_the_other_differs(
    tmp_path: Path,
) -> None:
    first = Model(parts.SAME, SETUP, answered(copies(2)))
    rows = list(parts.warm(first, first, tmp_path, Work()))
    found = {(row["memory"], row["draft_type"], row["turn"]): row for row in rows}
    cold, warmed, others = (
        found[memory, "ngram-mod", None] for memory in (parts.COLD, parts.WARM, parts.OTHERS)
    )
    assert warmed["tokens_per_forward"] > cold["tokens_per_forward"] == others["tokens_per_forward"]
    assert found["cold", "ngram-mod", 2]["speedup"] > 2, "the chat's first turn was remembered"
    assert {row["same_answer"] for row in rows} == {1.0}
    other = [
        TokenPair(p.prompt, tuple(9000 + t for t in p.answer), p.workload, p.chat, p.turn) for p in copies(2)
    ]
    rows = list(parts.warm(first, Model(parts.OTHER, SETUP, answered(other)), tmp_path, Work()))
    found = {(row["memory"], row["draft_type"], row["turn"]): row for row in rows}
    assert found["warm", "ngram-mod", 1]["acceptance"] in (None, 0.0)
    assert {row["same_answer"] for row in rows} == {0.0}


def test_a_table_goes_to_no_model_with_another_vocabulary(tmp_path: Path) -> None:
    first = Model(parts.SAME, SETUP, answered(copies(1)))
    other = Model(parts.OTHER, Setup(Settings(), M4_PRO, "another"), answered(copies(1)))
    with pytest.raises(TableFileError, match="its vocabulary is replay, but another is expected"):
        list(parts.warm(first, other, tmp_path, Work()))


def test_the_command_finds_all_parts_and_writes_them(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, file, sheet = tmp_path / "own.jsonl", tmp_path / "sweep.json", tmp_path / "sweep.csv"
    chats = [{"messages": [{"role": "user", "content": f"the cat and the {who}"}]} for who in ("dog", "cat")]
    prompts.write_text("\n".join(map(json.dumps, chats)))
    given = ["--model", str(model_folder), "--other-model", str(model_folder), "--prompts", str(prompts)]
    given += ["--max-tokens", "16", "--num-draft-tokens", "4", "--ngram-sizes", "4", "--repeats", "1"]
    given += ["--table-entries", "4096,65536", "--requests", "2", "--measured-requests", "1"]
    given += ["--thresholds", "0,0.01", "--json", str(file), "--csv", str(sheet)]
    assert main(["bench", "sweep", *given]) == 0
    section = json.loads(file.read_text())["sweep"]
    assert {row["draft_type"] for row in section["grid"]} == set(parts.DRAFT_TYPES)
    assert {row["parity"] for row in section["measured"]} == {"PASS"}
    assert [row["entries"] for row in section["table_sizes"]] == [4096, 65536]
    assert [row["ngram_size"] for row in section["ngram_sizes"]] == [4]
    assert {row["gate"] for row in section["gate"]} == {"auto", "on"}
    assert {row["pair"] for row in section["warm"]} == {"same model", "other model"}
    assert all(row["speedup"] > 0 for part in ("grid", "gate", "warm") for row in section[part])
    by_engine = {(row["draft_type"], row["memory"]) for row in section["warm"] if row["measured_speedup"]}
    assert by_engine == {("auto", "cold"), ("auto", "warm")}
    assert sheet.read_text().startswith("part,")
    printed = capsys.readouterr().out
    assert "the default, auto, drafts of 31, n-grams of 16" in printed
    assert "2 requests" in printed


def test_a_model_of_another_vocabulary_is_refused_before_anything_is_asked(
    model_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "sweep", "--other-model", str(model_folder)]) == 2
    assert "and demo_model have different vocabularies" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--parts", "grid,speed"], "--parts: speed is not one of grid, tables, gate, warm"),
        (["--draft-types", "draft-model"], "--draft-types: draft-model is not one of auto"),
        (
            ["--num-draft-tokens", "1000"],
            "--num-draft-tokens: num_draft_tokens is 1000; it must be between 1 and 255",
        ),
    ],
)
def test_what_cannot_be_swept_is_refused_in_one_line(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "sweep", *given]) == 2
    assert message in capsys.readouterr().err
