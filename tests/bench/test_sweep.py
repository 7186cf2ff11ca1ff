"""`reprise bench sweep` replays answers under many settings, and draws conclusions."""

import json
import zlib
from dataclasses import replace
from pathlib import Path

import pytest

from reprise.bench.cost_curves import FLAT, M4_PRO
from reprise.bench.outputs import Work
from reprise.bench.page import page
from reprise.bench.replay.file_edits import AGAIN, NEW, SHARES, make_traffic
from reprise.bench.replay.pairs import TokenPair
from reprise.bench.replay.policies import Setup
from reprise.bench.sweep.points import (
    DRAFT_TYPES,
    best_of,
    default_point,
    fill,
    filled,
    grid,
    overall,
    replay,
    settings_of,
)  # fmt: skip
from reprise.cli.main import main
from reprise.config.settings import Settings

ROOT = Path(__file__).parent.parent.parent
SETUP = Setup(Settings(ngram_table_entries=1 << 16), M4_PRO)


def encode(text: str) -> list[int]:
    """Return words as ids."""
    return [zlib.crc32(word.encode()) % 2**20 for word in text.split()]


def make(count: int) -> list[TokenPair]:
    return [*make_traffic(ROOT, count, 1, encode)]


@pytest.fixture(scope="module")
def traffic():
    return make(40)


def test_a_short_traffic_is_the_beginning_of_a_long_one(traffic) -> None:
    assert make(10) == traffic[:10]


def test_repeated_texts_are_the_answers_of_earlier_requests(traffic) -> None:
    assert {asked.workload for asked in traffic} == {*SHARES}
    for number, asked in enumerate(traffic):
        answers = [earlier.answer for earlier in traffic[:number]]
        if asked.workload in (AGAIN, NEW):
            was_answered = asked.answer in [*answers, *(answer[1:-1] for answer in answers)]
            assert was_answered == (asked.workload == AGAIN)


def test_a_larger_table_drafts_more_and_collides_less(traffic) -> None:
    small, large = (fill(SETUP, traffic, entries, 16) for entries in (4096, 1 << 20))
    assert (small["entries"], large["entries"], large["requests"]) == (4096, 1 << 20, 40)
    assert small["occupancy"] > large["occupancy"]
    assert small["overwritten"] > 5 * large["overwritten"]
    assert small["known_again"] < large["known_again"] > large["known"]
    assert small["tokens_per_forward"] < large["tokens_per_forward"]


def point(draft_type: str, length: int, size: int | None) -> dict[str, object]:
    return {"draft_type": draft_type, "num_draft_tokens": length, "ngram_size": size}


def test_the_grid_has_each_length_and_size_once_and_no_sizes_where_a_type_has_none() -> None:
    assert grid(["suffix", "ngram-mod"], [8, 4], [16, 2]) == [
        point("suffix", 4, None),
        point("suffix", 8, None),
        *(point("ngram-mod", length, size) for length in (4, 8) for size in (2, 16)),
    ]


def test_a_point_becomes_the_settings_of_a_server() -> None:
    mod = settings_of(point("auto", 8, 4), Settings())
    assert (mod.draft_type, mod.num_draft_tokens, mod.ngram_mod_size) == ("auto", 8, 4)
    gated = settings_of({"draft_type": "auto", "gate": "on", "threshold": 0.5}, Settings())
    assert (gated.gate, gated.gate_threshold) == ("on", 0.5)
    assert settings_of(default_point(Settings()), Settings()) == Settings()


def test_of_equal_points_the_one_with_short_drafts_is_best() -> None:
    def row(length: int, workload: str, speedup: float) -> dict[str, object]:
        return point("auto", length, 16) | {"workload": workload, "speedup": speedup}

    rows = [row(31, "a", 4.0), row(31, "b", 1.0), row(8, "a", 2.0), row(8, "b", 2.0), row(4, "a", 1.0)]
    means = point("auto", 31, 16) | {"mean": pytest.approx(2.0), "lowest": 1.0}
    assert means in overall(rows)
    assert best_of(overall(rows))["num_draft_tokens"] == 8


def copies(count: int) -> list[TokenPair]:
    """Make chats of two turns: a text is copied, then repeated without being in the prompt."""
    pairs = []
    for number in range(count):
        text = tuple(1000 * number + at for at in range(100))
        for turn, prompt in ((1, text), (2, (7,) * 20)):
            pairs.append(TokenPair(prompt, text, "copies", f"{number}", turn))
    return pairs


def test_replays_of_longer_drafts_take_fewer_forwards() -> None:
    points = grid(["auto"], [2, 16], [8])
    rows = replay(replace(SETUP, curve=FLAT), points, copies(2), Work(), "", has_turns=True)
    assert [row["turn"] for row in rows] == 2 * [None, 1, 2]
    short, long = rows[0], rows[3]
    assert short["tokens"] == long["tokens"] == 400
    assert 2 < short["tokens_per_forward"] <= 3 < long["tokens_per_forward"]
    assert long["acceptance"] > 0.9


def test_a_gate_that_is_on_drafts_nothing_below_its_threshold() -> None:
    points = [
        {"draft_type": "auto", "threshold": at, "gate": gate} for at in (0, 0.9) for gate in ("auto", "on")
    ]
    first = [pair for pair in copies(2) if pair.turn == 1]
    found = {
        (row["threshold"], row["gate"]): row["speedup"] for row in replay(SETUP, points, first, Work(), "")
    }
    assert found[0.9, "on"] == 1.0
    assert found[0, "on"] > 2
    assert found[0.9, "auto"] > 1.5


def test_a_warm_table_knows_what_the_first_model_said_and_misses_where_the_other_differs() -> None:
    own, points = copies(2), [{"draft_type": "ngram-mod"}]
    others = [replace(pair, answer=tuple(9000 + token for token in pair.answer)) for pair in own]

    def rows(pairs: list[TokenPair]) -> list[dict[str, object]]:
        return replay(SETUP, points, pairs, Work(), "", has_turns=True)

    (cold, cold_first, cold_second), (warm, warm_first, _) = rows(own), rows(filled(own, own))
    assert cold["tokens"] == warm["tokens"] == 400
    assert warm_first["tokens_per_forward"] > cold_first["tokens_per_forward"]
    assert cold_second["speedup"] > 2, "the chat's first turn was remembered"
    assert rows(filled(own, others))[1]["acceptance"] in (None, 0.0)


def test_the_command_finds_all_parts_writes_them_and_a_page_shows_them(
    model_folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts, file, sheet = tmp_path / "own.jsonl", tmp_path / "sweep.json", tmp_path / "sweep.csv"
    chats = [{"messages": [{"role": "user", "content": f"the cat and the {who}"}]} for who in ("dog", "cat")]
    prompts.write_text("\n".join(map(json.dumps, chats)))
    given = ["--model", str(model_folder), "--prompts", str(prompts), "--max-tokens", "16", "--repeats", "1"]
    given += ["--num-draft-tokens", "4", "--ngram-sizes", "4", "--requests", "2"]
    given += ["--table-entries", "4096,65536", "--json", str(file), "--csv", str(sheet)]
    assert main(["bench", "sweep", *given]) == 0
    record = json.loads(file.read_text())
    section = record["sweep"]
    assert {row["draft_type"] for row in section["grid"]} == set(DRAFT_TYPES)
    assert {row["parity"] for row in section["measured"]} == {"PASS"}
    assert all(row["replayed_speedup"] for row in section["measured"])
    assert [row["entries"] for row in section["table_sizes"]] == [4096, 65536]
    assert [row["ngram_size"] for row in section["ngram_sizes"]] == [4]
    assert {row["gate"] for row in section["gate"]} == {"auto", "on"}
    assert {(row["memory"], row["turn"]) for row in section["warm"]} == {
        ("cold", None), ("cold", 1), ("warm", None), ("warm", 1)
    }  # fmt: skip
    assert all(row["speedup"] > 0 for part in ("grid", "gate", "warm") for row in section[part])
    assert sheet.read_text().startswith("part,")
    printed = capsys.readouterr().out
    assert "the default: draft type auto, num draft tokens 31, ngram size 16" in printed
    drawn = page([record])
    for title in (
        "Draft length by n-gram size", "Measured on the engine", "Size of ngram-mod",
        "Length of ngram-mod", "Gate threshold", "Cold and warm tables",
    ):  # fmt: skip
        assert title in drawn


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["--parts", "grid,speed"], "--parts: speed is not one of grid, tables, gate, warm"),
        (["--draft-types", "draft-model"], "--draft-types: draft-model is not one of auto"),
        (["--num-draft-tokens", "1000"], "--num-draft-tokens: 1000 is above 255"),
        (["--cost-curve", "none.json"], "No such file or directory: 'none.json'"),
    ],
)
def test_what_cannot_be_swept_is_refused_in_one_line(
    given: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "sweep", *given]) == 2
    assert message in capsys.readouterr().err
