"""The ngram-mod drafter: writing in chunks, cooldowns, tenants, and the file."""

import json
import random
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.drafters.base import DraftQuery, SequenceStart, SharedTable, TableFileError, finish
from reprise.drafters.ngram_mod import table
from reprise.drafters.ngram_mod.drafter import FIRST_COOLDOWN, LOW_STREAK, NgramModDrafter
from reprise.drafters.ngram_mod.table import NgramModTables

TEXT = random.Random(3).sample(range(50_000), 300)


def make(**settings: object) -> NgramModDrafter:
    return NgramModDrafter(NgramModTables("vocabulary-a", **settings))


def draft_after(drafter: NgramModDrafter, tokens: list[int], limit: int = 8, tenant: str = "") -> list[int]:
    """Return what is drafted for a new request with this prompt. The prompt is written to the table."""
    finish(drafter.open(SequenceStart(-1, tokens, tenant=tenant)))
    draft = list(drafter.propose(DraftQuery(-1, limit)).tokens)
    finish(drafter.close(-1))
    return draft


def fail(drafter: NgramModDrafter, seq: int, times: int = LOW_STREAK) -> None:
    for _ in range(times):
        drafter.note_verified(seq, 4, 1)


def test_it_is_a_shared_table() -> None:
    assert isinstance(make(), SharedTable)


def test_one_request_drafts_for_the_next() -> None:
    drafter = make()
    finish(drafter.open(SequenceStart(1, TEXT[:100])))
    drafter.observe(1, TEXT[100:])
    finish(drafter.close(1))
    assert draft_after(drafter, TEXT[40:60]) == TEXT[60:68]
    assert draft_after(drafter, TEXT[92:108]) == TEXT[108:116]
    assert draft_after(drafter, TEXT[270:292]) == TEXT[292:300]


def test_an_answer_is_written_in_chunks_and_when_it_ends() -> None:
    drafter = make()
    finish(drafter.open(SequenceStart(1, TEXT[:16])))
    for token in TEXT[16:48]:
        drafter.observe(1, [token])
    assert drafter.status()["inserts"] == 0
    drafter.observe(1, TEXT[48:49])
    assert drafter.status()["inserts"] == 33
    drafter.observe(1, TEXT[49:60])
    assert drafter.status()["inserts"] == 33
    finish(drafter.close(1))
    assert drafter.status()["inserts"] == 44


@given(st.data())
def test_however_a_text_is_cut_the_table_ends_up_the_same(data: st.DataObject) -> None:
    text = data.draw(st.lists(st.integers(0, 3), min_size=1, max_size=120))
    cuts = sorted(data.draw(st.sets(st.integers(1, len(text)), max_size=8)) | {len(text)})
    whole, parts = make(n=3, size=5000), make(n=3, size=5000)
    finish(whole.open(SequenceStart(1, text)))
    finish(parts.open(SequenceStart(1, text[: cuts[0]])))
    for start, stop in pairwise(cuts):
        parts.observe(1, text[start:stop])
    finish(whole.close(1))
    finish(parts.close(1))
    a, b = whole.tables.table("").contents(), parts.tables.table("").contents()
    assert (a[0].tolist(), a[1].tolist()) == (b[0].tolist(), b[1].tolist())


def test_a_longer_run_of_predicted_tokens_has_a_higher_prior() -> None:
    drafter = make()
    draft_after(drafter, TEXT)
    finish(drafter.open(SequenceStart(1, TEXT[:20])))
    fresh = drafter.propose(DraftQuery(1, 4))
    priors = [fresh.prior]
    for start, stop in pairwise((20, 21, 28, 52)):
        drafter.observe(1, TEXT[start:stop])
        priors.append(drafter.propose(DraftQuery(1, 4)).prior)
    assert fresh.bucket == 0
    assert priors == sorted(set(priors))


def test_several_failed_drafts_cool_down_only_their_request() -> None:
    drafter = make()
    draft_after(drafter, TEXT)
    before = drafter.status()["occupied"]
    finish(drafter.open(SequenceStart(1, TEXT[:20])))
    finish(drafter.open(SequenceStart(2, TEXT[:20])))
    fail(drafter, 1)
    assert drafter.is_cooling_down(1)
    assert not drafter.propose(DraftQuery(1, 8)).tokens
    assert list(drafter.propose(DraftQuery(2, 8)).tokens) == TEXT[20:28]
    assert drafter.status()["occupied"] == before


def test_one_good_draft_ends_a_streak() -> None:
    drafter = make()
    finish(drafter.open(SequenceStart(1, TEXT[:20])))
    fail(drafter, 1, LOW_STREAK - 1)
    drafter.note_verified(1, 4, 2)
    fail(drafter, 1, LOW_STREAK - 1)
    assert not drafter.is_cooling_down(1)
    fail(drafter, 1, 1)
    assert drafter.is_cooling_down(1)


def test_each_cooldown_lasts_twice_as_long() -> None:
    drafter = make()
    finish(drafter.open(SequenceStart(1, TEXT[:20])))
    fresh = iter(range(100_000, 200_000))
    for tokens in (FIRST_COOLDOWN, 2 * FIRST_COOLDOWN, 4 * FIRST_COOLDOWN):
        fail(drafter, 1)
        drafter.observe(1, [next(fresh) for _ in range(tokens - 1)])
        assert drafter.is_cooling_down(1)
        drafter.observe(1, [next(fresh)])
        assert not drafter.is_cooling_down(1)


def test_a_cooldown_ends_early_when_the_table_predicts_the_answer() -> None:
    drafter = make()
    draft_after(drafter, TEXT)
    finish(drafter.open(SequenceStart(1, TEXT[:20])))
    fail(drafter, 1)
    drafter.observe(1, TEXT[20:27])
    assert drafter.is_cooling_down(1)
    drafter.observe(1, TEXT[27:28])
    assert list(drafter.propose(DraftQuery(1, 8)).tokens) == TEXT[28:36]


def test_tenants_share_the_table_of_the_process() -> None:
    drafter = make()
    draft_after(drafter, TEXT, tenant="anna")
    assert draft_after(drafter, TEXT[:20], tenant="ben") == TEXT[20:28]


def test_tenants_are_kept_apart_with_scope_api_key() -> None:
    drafter = make(scope="api-key")
    draft_after(drafter, TEXT, tenant="anna")
    assert draft_after(drafter, TEXT[:20], tenant="ben") == []
    assert draft_after(drafter, TEXT[:20], tenant="anna") == TEXT[20:28]
    assert drafter.status()["tables"] == 2


def test_the_least_recently_used_table_is_dropped_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table, "MAX_TENANTS", 2)
    drafter = make(scope="api-key")
    for tenant in ("anna", "ben", "anna", "carl"):
        draft_after(drafter, TEXT, tenant=tenant)
    assert drafter.status()["tables"] == 2
    assert draft_after(drafter, TEXT[:20], tenant="anna") == TEXT[20:28]
    assert draft_after(drafter, TEXT[:20], tenant="ben") == []


def test_a_reset_also_drops_unwritten_tokens_of_open_requests() -> None:
    drafter = make()
    finish(drafter.open(SequenceStart(1, TEXT[:100])))
    drafter.observe(1, TEXT[100:120])
    drafter.reset()
    finish(drafter.close(1))
    status = drafter.status()
    assert (status["occupied"], status["bytes"]) == (0, 0)
    assert status["inserts"] == 84


def test_status_is_plain_json() -> None:
    drafter = make(size=1_000_000, file=Path("table.bin"))
    draft_after(drafter, TEXT)
    draft_after(drafter, TEXT[:20])
    status = json.loads(json.dumps(drafter.status()))
    assert status["occupied"] == 284
    assert status["occupancy"] == pytest.approx(284e-6)
    assert (status["entries"], status["bytes"], status["scope"]) == (1_000_000, 4_000_000, "process")
    assert (status["inserts"], status["file"]) == (284 + 4, "table.bin")
    assert (status["hits"], status["misses"], status["overwrites"]) == (8, 1, 0)


@pytest.mark.parametrize("scope", ["process", "api-key"])
def test_saved_tables_are_drafted_from_after_loading(scope: str, tmp_path: Path) -> None:
    file = tmp_path / "new" / "table.bin"
    first = make(scope=scope, file=file)
    draft_after(first, TEXT, tenant="anna")
    assert str(file) in first.save()
    second = make(scope=scope, file=file)
    draft_after(second, TEXT[:10] * 4, tenant="ben")
    assert "284 entries" in second.load()
    assert draft_after(second, TEXT[:20], tenant="anna") == TEXT[20:28]
    assert second.status()["occupied"] == 284
    assert b"anna" not in file.read_bytes()
    assert [path.name for path in file.parent.iterdir()] == ["table.bin"]


def test_only_its_owner_may_read_the_file(tmp_path: Path) -> None:
    drafter = make(file=tmp_path / "table.bin")
    drafter.save()
    assert (tmp_path / "table.bin").stat().st_mode & 0o077 == 0


def test_empty_tables_can_be_saved_and_loaded(tmp_path: Path) -> None:
    drafter = make(file=tmp_path / "table.bin")
    drafter.save()
    draft_after(drafter, TEXT)
    drafter.load()
    assert drafter.status()["occupied"] == 0


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"vocabulary": "vocabulary-b"}, "vocabulary is vocabulary-a"),
        ({"n": 8}, "n is 16, but 8 is expected"),
        ({"size": 500}, "size is 1000, but 500 is expected"),
        ({"scope": "api-key"}, "scope is process"),
    ],
)
def test_a_file_that_does_not_agree_with_the_settings_is_refused(
    other: dict[str, object], reason: str, tmp_path: Path
) -> None:
    file = tmp_path / "table.bin"
    settings: dict[str, object] = {"vocabulary": "vocabulary-a", "size": 1000, "file": file}
    first = NgramModDrafter(NgramModTables(**settings))
    first.save()
    second = NgramModDrafter(NgramModTables(**(settings | other)))
    draft_after(second, TEXT)
    before = second.status()
    with pytest.raises(TableFileError, match=reason) as error:
        second.load()
    assert str(file) in str(error.value)
    assert second.status() == before


def test_a_truncated_or_changed_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "table.bin"
    drafter = make(size=1000, file=file)
    draft_after(drafter, TEXT[:40])
    drafter.save()
    whole = file.read_bytes()
    for at in range(len(whole)):
        for damaged in (whole[:at], whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]):
            file.write_bytes(damaged)
            with pytest.raises(TableFileError, match=r"table\.bin: it is"):
                drafter.load()
    file.write_bytes(whole + b"\0")
    with pytest.raises(TableFileError, match="checksum"):
        drafter.load()
    assert drafter.status()["occupied"] == 24


def test_the_error_for_a_missing_or_unset_file_says_so(tmp_path: Path) -> None:
    with pytest.raises(TableFileError, match="no file is set"):
        make().save()
    with pytest.raises(TableFileError, match=r"nowhere\.bin: No such file"):
        make(file=tmp_path / "nowhere.bin").load()
    (tmp_path / "folder").mkdir()
    with pytest.raises(TableFileError, match="cannot write"):
        make(file=tmp_path / "folder").save()
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]


@pytest.mark.parametrize("settings", [{"n": 0}, {"size": 0}, {"size": 2**32 + 1}, {"scope": "user"}])
def test_invalid_settings_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"n must|entries|scope"):
        make(**settings)
