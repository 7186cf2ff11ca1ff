"""Finished requests on disk: found again by the next run, by their owner only, and forgotten when wrong."""

import random
import stat
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.drafters.base import DraftQuery, SequenceStart, TableFileError, finish
from reprise.drafters.checked_file import owner_of
from reprise.drafters.copies.history import HistoryFile
from reprise.drafters.suffix import FINISHED, NUM_CLASSES, RESTORED, SuffixDrafter

TEXT = list(range(100, 160))
LATER = TEXT[:20]
"""The end of a prompt that continues as TEXT does."""


def file_in(folder: Path, vocabulary: str = "v", scope: str = "process") -> HistoryFile:
    return HistoryFile(folder / "history", vocabulary, scope)


def run(folder: Path, num_tokens: int = 256, **properties: str) -> SuffixDrafter:
    """Start the drafter of a run. num_tokens: how many it keeps."""
    drafter = SuffixDrafter(num_tokens, file_in(folder, **properties))
    drafter.load()
    return drafter


def answer(drafter: SuffixDrafter, prompt: list[int], answer: list[int], tenant: str = "") -> list[int]:
    """Serve a request, and return what was drafted for its first tokens. answer: what the model says."""
    finish(drafter.open(SequenceStart(7, prompt, tenant=tenant)))
    drafted = list(drafter.propose(DraftQuery(7, 4)).tokens)
    for token in answer:
        drafter.observe(7, [token])
    finish(drafter.close(7))
    return drafted


def test_the_next_run_drafts_from_what_an_earlier_one_finished(tmp_path: Path) -> None:
    first = run(tmp_path)
    answer(first, TEXT, [1])
    assert answer(first, LATER, []) == TEXT[20:24]
    assert first.save().startswith("wrote 2 finished requests")
    second = run(tmp_path)
    assert second.status()["finished_requests"] == 2
    assert answer(second, [5, *LATER], []) == TEXT[20:24]


def test_texts_of_an_earlier_run_are_evidence_of_a_kind_of_its_own(tmp_path: Path) -> None:
    first = run(tmp_path)
    answer(first, TEXT, [])
    first.save()
    second = run(tmp_path)
    other = list(range(300, 340))
    answer(second, other, [])
    for end, kind in ((LATER, RESTORED), (other[:20], FINISHED)):
        finish(second.open(SequenceStart(8, [5, *end])))
        assert second.propose(DraftQuery(8, 4)).bucket // NUM_CLASSES == kind
        finish(second.close(8))


def test_owners_stay_apart_over_a_restart_and_the_file_knows_them_by_a_digest(tmp_path: Path) -> None:
    first = run(tmp_path, scope="api-key")
    answer(first, TEXT, [], tenant="a key's digest")
    first.save()
    second = run(tmp_path, scope="api-key")
    assert answer(second, LATER, [], tenant="another") == []
    assert answer(second, LATER, []) == []
    assert answer(second, LATER, [], tenant="a key's digest") == TEXT[20:24]
    content = (tmp_path / "history").read_bytes()
    assert owner_of("a key's digest").encode() in content
    assert b"a key's digest" not in content


def test_only_its_owner_may_read_the_file_and_a_reset_deletes_it(tmp_path: Path) -> None:
    drafter = run(tmp_path)
    answer(drafter, TEXT, [])
    drafter.save()
    assert stat.S_IMODE((tmp_path / "history").stat().st_mode) == 0o600
    drafter.reset()
    assert not (tmp_path / "history").exists()
    assert answer(run(tmp_path), LATER, []) == []


@pytest.mark.parametrize("properties", [{"vocabulary": "w"}, {"scope": "api-key"}])
def test_a_file_of_another_vocabulary_or_scope_is_not_read(
    tmp_path: Path, properties: dict[str, str]
) -> None:
    drafter = run(tmp_path)
    answer(drafter, TEXT, [])
    drafter.save()
    with pytest.raises(TableFileError, match="is expected"):
        run(tmp_path, **properties)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    drafter, path = run(tmp_path), tmp_path / "history"
    answer(drafter, TEXT, [])
    drafter.save()
    content = path.read_bytes()
    for at in range(0, len(content), 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises(TableFileError):
            file_in(tmp_path).read(256)
        path.write_bytes(content[:at])
        with pytest.raises(TableFileError):
            file_in(tmp_path).read(256)


def test_a_text_whose_continuation_was_mostly_wrong_is_forgotten(tmp_path: Path) -> None:
    first = run(tmp_path, 4096)
    answer(first, TEXT, [])
    useful = list(range(300, 340))
    answer(first, useful, [])
    for at in range(26):
        # Four of its tokens are written again and again, and go on in another way each time.
        answer(first, [1000 + at, *TEXT[2 * at : 2 * at + 4]], [2000 + at])
        if at < 17:
            answer(first, [1000 + at, *useful[2 * at : 2 * at + 4]], useful[2 * at + 4 : 2 * at + 6])
    first.save()
    texts = [list(tokens) for _, tokens in file_in(tmp_path).read(4096)]
    assert not any(text[: len(TEXT)] == TEXT for text in texts)
    assert any(text[: len(useful)] == useful for text in texts)


def test_texts_that_were_copied_last_are_overwritten_last(tmp_path: Path) -> None:
    first = run(tmp_path)
    answer(first, TEXT, [])
    answer(first, list(range(300, 340)), [])
    answer(first, [5, *LATER], TEXT[20:24])
    first.save()
    second = run(tmp_path)
    # Leaves room for some of what was restored: the text that nobody copied goes first.
    answer(second, list(range(400, 600)), [])
    assert answer(second, [6, *range(300, 320)], []) == []
    assert answer(second, [6, *LATER], []) == TEXT[20:24]


def test_models_that_share_the_drafter_restore_it_once(tmp_path: Path) -> None:
    first = run(tmp_path)
    answer(first, TEXT, [])
    first.save()
    second = SuffixDrafter(256, file_in(tmp_path))
    finish(second.restore())
    assert second.restore() is None
    assert second.status()["finished_requests"] == 1


@settings(max_examples=10)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.lists(st.integers(0, 9), max_size=90)), max_size=12))
def test_a_file_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, texts: list[tuple[str, list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("run")
    first = run(folder)
    for tenant, tokens in texts:
        if tokens:
            answer(first, tokens, [], tenant)
    first.save()
    written = file_in(folder).read(256)
    second = run(folder)
    second.save()
    assert file_in(folder).read(256) == written


def test_a_full_history_is_read_in_the_order_of_its_tokens(tmp_path: Path) -> None:
    rng, first = random.Random(1), run(tmp_path)
    for _ in range(40):
        answer(first, [rng.randrange(50) for _ in range(rng.randrange(1, 80))], [])
    first.save()
    texts = file_in(tmp_path).read(256)
    assert 100 < sum(len(tokens) for _, tokens in texts) <= 256
