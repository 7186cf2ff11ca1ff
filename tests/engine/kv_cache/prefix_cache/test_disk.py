"""Prefixes survive a restart; truncated, damaged and foreign files do no harm."""

import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Event
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from reprise.config.atomic_files import unfinished_path
from reprise.engine.kv_cache.buffers import KVSlice, State
from reprise.engine.kv_cache.prefix_cache import disk
from reprise.engine.kv_cache.prefix_cache.disk import PrefixStore, weights_fingerprint
from reprise.engine.kv_cache.prefix_cache.text_key import TextKey
from reprise.engine.scheduler import prefixes
from reprise.engine.scheduler.prefixes import MAX_LOADS
from tests.combinations import FAMILIES, every_kind_of_cache
from tests.counted_calls import count_calls
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven
from tests.engine.kv_cache.prefix_cache.test_trie import slice_of, state_of
from tests.engine.support import CONFIGS, ask, make_loaded, make_model, oracle, prompt_of, request

TOKENS = tuple(range(1, 101))


class CheckedStore:
    """A store that saves any number of tokens, and checks everything it loads."""

    def __init__(
        self,
        folder: Path,
        budget_bytes: int | None = 10**9,
        needs_state: bool = False,
        model: str = "a",
    ):
        self.needs_state = needs_state
        self.store = PrefixStore(folder, budget_bytes, model, needs_state)

    def save(self, *tokens: int, is_head: bool = False) -> bool:
        state = (lambda: state_of(tokens)) if self.needs_state else list
        cut = lambda start, end: slice_of(tokens[start:end])  # noqa: E731
        return self.store.save(tokens, cut, state, is_head=is_head)

    def settle(self) -> None:
        """Wait for the disk, and have the store note what is there."""
        self.store._thread.submit(int).result()
        self.store._catch_up()

    def load(self, *prompt: int) -> int:
        """Load the longest prefix, check it, and return its number of tokens."""
        if not (length := self.store.match(prompt)):
            return 0
        taken = self.store.finish_load(self.store.start_load(prompt))
        if taken is None:
            return 0
        cut, state = taken
        for start in (0, length // 2):
            kv_slice: KVSlice = cut(start, length)
            assert kv_slice[0][0, 0, :, 0].tolist() == list(prompt[start:length])
        if self.needs_state:
            last: State = state
            assert last[0] is not None
            assert last[0].item() == sum(prompt[:length])
        return length


@pytest.fixture(autouse=True)
def save_anything(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(disk, "MIN_SAVED_TOKENS", 1)
    monkeypatch.setattr(disk, "OPENING_TOKENS", 1)
    monkeypatch.setattr(disk, "FILE_TOKENS", 128)
    monkeypatch.setattr(disk, "WRITES", disk.HourOfWrites())


def test_a_restart_finds_saved_prefixes(tmp_path: Path) -> None:
    checked = CheckedStore(tmp_path)
    checked.save(*TOKENS)
    assert checked.load(*TOKENS, 7) == 100
    checked.store.close()
    again = CheckedStore(tmp_path)
    assert again.load(*TOKENS, 7) == 100
    assert again.load(*TOKENS[:40], 200, 201) == 40
    assert again.load(*TOKENS) == 99
    assert again.load(200, *TOKENS) == 0


@pytest.mark.parametrize("needs_state", [False, True])
def test_only_new_tokens_are_written(needs_state: bool, tmp_path: Path) -> None:
    checked = CheckedStore(tmp_path, needs_state=needs_state)
    checked.save(*TOKENS)
    first_bytes = checked.store.num_bytes
    checked.save(*TOKENS, 300, 301)
    checked.save(*TOKENS[:50], 400)
    checked.save(*TOKENS[:30])
    assert checked.store.num_bytes < first_bytes + 3 * 1500
    checked.store.close()
    again = CheckedStore(tmp_path, needs_state=needs_state)
    assert again.load(*TOKENS, 300, 301, 9) == 102
    assert again.load(*TOKENS[:50], 400, 9) == 51
    assert again.load(*TOKENS[:50], 9) == (0 if needs_state else 50)


def num_shared(one: Sequence[int], other: Sequence[int]) -> int:
    """Count the leading tokens that agree."""
    return next(
        (i for i, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]),
        min(len(one), len(other)),
    )


def test_random_branches_are_loaded_unchanged(tmp_path: Path) -> None:
    rng = random.Random(3)
    checked, saved = CheckedStore(tmp_path), [()]
    for _ in range(120):
        tokens: tuple[int, ...] = tuple(rng.randrange(2) for _ in range(rng.randint(1, 10)))
        checked.save(*tokens)
        saved.append(tokens)  # type: ignore[arg-type]
    checked.store.close()
    again = CheckedStore(tmp_path)
    for _ in range(120):
        tokens = tuple(rng.randrange(2) for _ in range(rng.randint(1, 10)))
        longest = max(num_shared(tokens[:-1], one) for one in saved)
        assert again.load(*tokens) == longest


def test_the_folder_stays_within_its_budget_by_deleting_the_least_recently_used(tmp_path: Path) -> None:
    checked = CheckedStore(tmp_path, budget_bytes=10_000)
    checked.save(*[1] * 100)
    checked.save(*[2] * 100)
    checked.load(*[1] * 100)
    checked.save(*[3] * 100)
    assert checked.load(*[2] * 100) == 0
    assert checked.load(*[1] * 100) == 99
    checked.store.close()
    assert len(list(tmp_path.iterdir())) == 2
    smaller = CheckedStore(tmp_path, budget_bytes=5_000)
    smaller.store.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_files_of_another_model_are_not_used(tmp_path: Path) -> None:
    checked = CheckedStore(tmp_path)
    checked.save(*TOKENS)
    checked.store.close()
    other = CheckedStore(tmp_path, model="b")
    assert other.load(*TOKENS) == 0
    other.save(*TOKENS)
    assert other.load(*TOKENS) == 99
    other.store.close()
    assert CheckedStore(tmp_path).load(*TOKENS) == 99


@pytest.mark.parametrize("harm", ["truncate", "flip", "empty", "foreign", "gone", "parent gone"])
def test_a_damaged_file_is_a_miss(harm: str, tmp_path: Path) -> None:
    checked = CheckedStore(tmp_path)
    checked.save(*TOKENS)
    checked.save(*TOKENS, *range(500, 600))
    checked.store.close()
    parent, child = sorted(tmp_path.iterdir(), key=lambda path: disk.read_header(path).start)
    data = child.read_bytes()
    running = CheckedStore(tmp_path)
    match harm:
        case "truncate":
            child.write_bytes(data[: len(data) // 2])
        case "flip":
            child.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        case "empty":
            child.write_bytes(b"")
        case "foreign":
            child.write_bytes(b"something else entirely")
        case "gone":
            child.unlink()
        case "parent gone":
            parent.unlink()
    # One store that started before the damage, and one that starts after it.
    for store in (running, CheckedStore(tmp_path)):
        length = store.load(*TOKENS, *range(500, 600), 9)
        assert length in ((0,) if harm == "parent gone" else (0, 100))
        assert store.load(*TOKENS, 9) == (0 if harm == "parent gone" else 100)
        store.store.close()


def test_foreign_files_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "other.prefix").write_text("not one of them")
    checked = CheckedStore(tmp_path, budget_bytes=1)
    checked.save(*TOKENS)
    checked.store.close()
    assert {path.name for path in tmp_path.iterdir()} == {"notes.txt", "other.prefix"}


def test_what_is_no_file_is_neither_read_nor_waited_for(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("mine")
    names = [f"{letter * 40}.prefix" for letter in "abcd"]
    os.mkfifo(tmp_path / names[0])
    (tmp_path / names[1]).symlink_to(names[1])
    (tmp_path / names[2]).symlink_to("mine")
    (tmp_path / names[3]).mkdir()
    checked = CheckedStore(tmp_path)
    checked.save(*TOKENS)
    checked.settle()
    assert checked.load(*TOKENS, 7) == 100
    checked.store.close()
    assert {*names, "mine"} < {path.name for path in tmp_path.iterdir()}


def test_a_conversation_may_have_any_number_of_files(tmp_path: Path) -> None:
    checked = CheckedStore(tmp_path)
    tokens = range(1, sys.getrecursionlimit() + 50)
    for length in tokens:
        checked.save(*tokens[:length])
    checked.settle()
    (first,) = checked.store._index.roots
    assert len(checked.store) == len(tokens)
    loading = checked.store.start_load(tokens)
    first.path.unlink()
    checked.store._look_again()
    checked.settle()
    assert len(checked.store) == checked.store.num_bytes == 0
    checked.save(*TOKENS)
    checked.store._forget(loading.files[0])
    assert checked.load(*TOKENS, 7) == 100
    checked.store.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    checked = CheckedStore(tmp_path / "new")
    checked.save(*TOKENS)
    checked.store.close()
    (file,) = (tmp_path / "new").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_is_one_warning_and_writing_goes_on_when_there_is_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checked = CheckedStore(tmp_path)

    def fail(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        full.setattr(disk, "write", fail)
        for _ in range(3):
            checked.save(*TOKENS)
            checked.settle()
            assert checked.load(*TOKENS, 7) == 0
    assert len([one for one in caplog.records if one.levelname == "WARNING"]) == 1
    checked.save(*TOKENS)
    checked.settle()
    assert checked.load(*TOKENS, 7) == 100
    assert checked.store.written_bytes == checked.store.num_bytes
    checked.store.close()


def test_the_default_budget_is_a_tenth_of_what_is_free_as_that_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage._replace(free=10**12))
    checked = CheckedStore(tmp_path, budget_bytes=None)
    assert checked.store.budget_bytes == 20 * 10**9
    checked.save(*TOKENS)
    checked.save(2000, *TOKENS)
    checked.settle()
    held = checked.store.num_bytes
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage._replace(free=40_000))
    checked.save(3000, *TOKENS)
    checked.settle()
    assert (40_000 + held) // 10 < checked.store.budget_bytes < (40_000 + 2 * held) // 10
    assert len(checked.store) == 1
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage._replace(free=0))
    again = CheckedStore(tmp_path, budget_bytes=None)
    assert not again.save(*TOKENS)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: usage._replace(free=10**12))
    assert not again.save(*TOKENS)
    again.settle()
    assert again.save(*TOKENS)
    for one in (checked, again):
        one.store.close()
    assert len(list(tmp_path.iterdir())) == 1


def test_a_folder_that_vanishes_is_a_miss_and_made_again_for_its_owner_only(tmp_path: Path) -> None:
    folder = tmp_path / "prefixes"
    checked = CheckedStore(folder)
    checked.save(*TOKENS)
    checked.settle()
    shutil.rmtree(folder)
    assert checked.load(*TOKENS, 7) == 0
    checked.save(*TOKENS)
    checked.settle()
    assert checked.load(*TOKENS, 7) == 100
    assert folder.stat().st_mode & 0o777 == 0o700
    checked.store.close()


def test_what_is_written_in_an_hour_is_bounded_and_a_first_prompt_has_a_share_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each file takes over 4,000 bytes; of any two stores, as of two models."""
    now = 1000.0
    monkeypatch.setattr(disk.time, "monotonic", lambda: now)
    monkeypatch.setattr(disk, "WRITES", disk.HourOfWrites())
    monkeypatch.setattr(disk, "HOURLY_BYTES", 15_000)
    monkeypatch.setattr(disk, "HOURLY_REST_BYTES", 10_000)
    stores = [CheckedStore(tmp_path / name, model=name) for name in "ab"]

    def saved(first: int, *, is_head: bool) -> bool:
        return stores[first % 2].save(first, *TOKENS, is_head=is_head)

    assert [saved(1001, is_head=False), saved(1002, is_head=False), saved(1003, is_head=False)] == [
        True, True, False,
    ]  # fmt: skip
    assert [saved(1004, is_head=True), saved(1005, is_head=True), saved(1006, is_head=True)] == [
        True, False, False,
    ]  # fmt: skip
    assert sum(one.store.num_left_out for one in stores) == 3
    assert disk.WRITES.num_bytes() <= 15_000
    now += 3599
    assert not saved(1003, is_head=False)
    now += 1
    assert saved(1003, is_head=False)
    for one in stores:
        one.store.close()


@pytest.mark.parametrize("needs_state", [False, True])
def test_a_long_text_becomes_several_files_and_goes_on_where_it_was_cut_short(
    needs_state: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "FILE_TOKENS", 16)
    monkeypatch.setattr(disk, "MAX_UNWRITTEN_BYTES", 1)
    checked = CheckedStore(tmp_path, needs_state=needs_state)
    tries, lengths = 0, []
    while not checked.save(*TOKENS):
        checked.settle()
        lengths.append(checked.load(*TOKENS, 7))
        tries += 1
        assert tries < 20
    assert set(lengths) == {0} if needs_state else sorted(set(lengths)) == lengths
    assert checked.load(*TOKENS, 7) == 100
    checked.save(*TOKENS[:40], *[9] * 60)
    checked.store.close()
    assert max(len(disk.read_header(path).tokens) for path in tmp_path.iterdir()) < 32
    again = CheckedStore(tmp_path, needs_state=needs_state)
    assert again.load(*TOKENS, 7) == 100
    again.store.close()


def test_nothing_is_cut_where_memory_does_not_allow_a_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "FILE_TOKENS", 16)
    store, asked = PrefixStore(tmp_path, 10**9, "a", needs_state=False), []

    def may_copy(num_tokens: int) -> bool:
        asked.append(num_tokens)
        return len(asked) < 3

    assert not store.save(TOKENS, lambda start, end: slice_of(TOKENS[start:end]), list, may_copy)
    assert asked == [16, 16, 16]
    assert store.match(TOKENS) == 32
    store.close()


def test_stores_of_one_folder_know_each_other_s_files_and_share_its_budget(tmp_path: Path) -> None:
    """As two servers do, or two models of one."""
    stores = [CheckedStore(tmp_path, budget_bytes=10_000, model=model) for model in "aab"]
    one, same, other = stores
    one.save(*TOKENS)
    one.settle()
    same.save(2000, *TOKENS)
    same.settle()
    assert same.load(*TOKENS, 7) == 100
    assert other.load(*TOKENS, 7) == 0
    for number in range(3000, 3020):
        store = stores[number % 3]
        store.save(number, *TOKENS)
        store.settle()
        store.settle()
        held = sum(path.stat().st_size for path in tmp_path.iterdir())
        assert held == store.store.num_bytes <= 10_000
    for store in stores:
        store.store.close()


@pytest.mark.parametrize("needs_state", [False, True])
def test_two_stores_that_cut_one_text_elsewhere_do_not_write_over_each_other(
    needs_state: bool, tmp_path: Path
) -> None:
    first, second = (CheckedStore(tmp_path, needs_state=needs_state) for _ in range(2))
    second.save(*TOKENS[:40], *(() if needs_state else (500, 501)))
    second.settle()
    # Neither has seen the other's files yet: one writes the whole text, one what follows 40 tokens.
    first.save(*TOKENS)
    second.save(*TOKENS)
    second.settle()
    assert first.load(*TOKENS, 7) == second.load(*TOKENS, 7) == 100


def test_what_another_process_uses_is_not_the_first_to_go(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.time()
    one, other = (CheckedStore(tmp_path, budget_bytes=14_000) for _ in range(2))
    for first in (2000, 3000):
        one.save(first, *TOKENS)
    one.settle()
    other.save(4000, *TOKENS)
    other.settle()
    monkeypatch.setattr(disk.time, "time", lambda: now + 3600)
    assert other.load(2000, *TOKENS, 7) == 101
    other.settle()
    # It learns of all that by the listing after its own write.
    one.load(4000, *TOKENS)
    one.save(5000, *TOKENS)
    one.settle()
    one.save(6000, *TOKENS)
    one.settle()
    assert [one.store.match((first, *TOKENS, 7)) for first in (2000, 3000)] == [101, 0]
    for store in (one, other):
        store.store.close()


def test_a_file_from_a_time_when_the_clock_was_ahead_goes_first(tmp_path: Path) -> None:
    checked = CheckedStore(tmp_path)
    checked.save(*[1] * 100)
    checked.store.close()
    (ahead,) = tmp_path.iterdir()
    os.utime(ahead, 2 * (time.time() + 10**8,))
    checked = CheckedStore(tmp_path, budget_bytes=10_000)
    for first in (2, 3):
        checked.save(*[first] * 100)
    assert checked.load(*[1] * 100) == 0
    assert checked.load(*[2] * 100) == 99
    checked.store.close()


def test_a_prefix_that_memory_holds_counts_as_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of every session is read from its file once, and used all day."""
    now = time.time()
    checked = CheckedStore(tmp_path, budget_bytes=10_000)
    checked.save(*TOKENS)
    (head,) = checked.store._index.files
    for use in range(1, 50):
        # More often than the file system is told.
        monkeypatch.setattr(disk.time, "time", lambda use=use: now + use * disk.USED_S / 2)
        checked.save(*TOKENS)
        checked.save(1000 + use, *TOKENS)
    assert checked.load(*TOKENS, 7) == 100
    checked.store.close()
    assert (tmp_path / head).stat().st_mtime > now + 45 * disk.USED_S / 2


def test_a_text_that_fills_the_folder_is_not_written_over_and_over(tmp_path: Path) -> None:
    checked = CheckedStore(tmp_path, budget_bytes=6_000)
    assert checked.save(*TOKENS[:50])
    assert checked.save(*TOKENS)
    checked.settle()
    written = disk.WRITES.num_bytes()
    for _ in range(3):
        assert not checked.save(*TOKENS, *range(200, 250))
    assert disk.WRITES.num_bytes() == written
    assert checked.load(*TOKENS, 7) == 100
    checked.store.close()


def test_a_folder_has_a_bounded_number_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = CheckedStore(tmp_path)
    for number in range(40):
        checked.save(1000 + number, *TOKENS[:3])
    monkeypatch.setattr(disk, "MAX_FILES", 10)
    checked.save(2000, *TOKENS[:3])
    assert len(checked.store) == 10
    checked.store.close()
    again = CheckedStore(tmp_path)
    assert len(again.store) == len(list(tmp_path.iterdir())) == 10
    assert again.load(2000, *TOKENS[:3]) == 3
    again.store.close()


def test_a_file_that_this_user_may_not_read_is_left_alone_and_named_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    checked = CheckedStore(tmp_path)
    checked.save(*TOKENS)
    checked.store.close()
    (secret,) = tmp_path.iterdir()

    def refuse(path: Path) -> disk.Header:
        raise disk.PrefixFileError(f"{path.name} cannot be read") from PermissionError(13, "denied")

    with monkeypatch.context() as refused:
        refused.setattr(disk, "read_header", refuse)
        again = CheckedStore(tmp_path)
        for number in range(3):
            again.save(1000 + number, *TOKENS)
            again.settle()
        again.store.close()
    assert secret.exists()
    assert len([one for one in caplog.records if secret.name in one.getMessage()]) == 1


def test_a_lookup_compares_one_of_many_texts_beyond_their_openings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those of one template begin alike; to compare 2,000 such texts took 40 ms."""
    monkeypatch.setattr(disk, "OPENING_TOKENS", 64)
    checked = CheckedStore(tmp_path)
    texts = [(*TOKENS[:30], *range(1000 * number, 1000 * number + 70)) for number in range(1, 31)]
    for text in texts:
        checked.save(*text)
    asked = TextKey.of((*texts[7], 7))
    checked.store.match(asked)
    assert count_calls(lambda: checked.store.match(asked)) < 100 + 4 * len(texts)
    assert checked.store.match(asked) == 100
    assert checked.store.match((*texts[8][:50], 7, 8)) == 0
    assert checked.store.match((*texts[8][:50],)) == 49
    checked.store.close()


KILLED = """
import sys
from pathlib import Path
from tests.engine.kv_cache.prefix_cache import test_disk as t
t.disk.MIN_SAVED_TOKENS = 1
checked = t.CheckedStore(Path(sys.argv[1]))
print(len(checked.store), flush=True)
at = int(sys.argv[2])
while True:
    at += 1
    checked.save(*[at] * 3, *range(20000))
"""


def test_a_kill_while_writing_loses_no_earlier_file(tmp_path: Path) -> None:
    checked = CheckedStore(tmp_path)
    checked.save(*TOKENS)
    checked.store.close()
    held = 1
    for attempt in range(2):
        process = subprocess.Popen(
            [sys.executable, "-c", KILLED, str(tmp_path), str(30000 + 1000 * attempt)], stdout=subprocess.PIPE
        )
        assert process.stdout
        assert int(process.stdout.readline()) >= held
        deadline = time.monotonic() + 30
        while len(list(tmp_path.glob("*.prefix"))) <= held and time.monotonic() < deadline:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        process.wait()
        again = CheckedStore(tmp_path)
        assert again.load(*TOKENS, 7) == 100
        assert len(again.store) >= held
        held = len(again.store)
        again.store.close()
    assert held > 1


def test_unfinished_files_of_a_killed_process_are_removed_at_the_next_start_and_the_next_write(
    tmp_path: Path,
) -> None:
    name = tmp_path / f"{'0f' * 20}.prefix"
    foreign = [tmp_path / "notes.0123456789abcdef.new", tmp_path / "0f.prefix.0123456789abcdef.new"]
    checked: CheckedStore | None = None
    for _ in range(2):
        left, at_work = unfinished_path(name), unfinished_path(name)
        for path in (left, *foreign):
            path.write_bytes(b"half a file")
            os.utime(path, (0, 0))
        at_work.write_bytes(b"another process's")
        if checked is None:
            checked = CheckedStore(tmp_path)
        else:
            checked.save(*TOKENS)
            checked.store.close()
        assert not left.exists()
        assert all(path.exists() for path in (at_work, *foreign))


def test_a_change_of_any_weight_changes_the_fingerprint() -> None:
    model = make_model("llama")
    first = weights_fingerprint(model)
    assert weights_fingerprint(make_model("llama")) == first
    weight = model.model.layers[1].mlp.up_proj.weight
    weight[3, 5] = weight[3, 5] * 1.0001
    assert weights_fingerprint(model) != first
    assert weights_fingerprint(make_model("qwen3")) != first


@pytest.fixture
def long_prompt() -> list[int]:
    return prompt_of(420)


OTHERS = [pytest.param(name, marks=pytest.mark.slow) for name in FAMILIES if name not in CONFIGS]


@pytest.mark.parametrize("name", [*every_kind_of_cache(CONFIGS, 1, of=2), *OTHERS])
def test_after_a_restart_long_prompts_are_cached_and_answers_equal(
    name: str, start_engine: StartEngine, tmp_path: Path, long_prompt: list[int]
) -> None:
    def start() -> Any:
        return start_engine(name, prefix_cache_dir=str(tmp_path), prefill_chunk_tokens=128)

    first = start()
    answer = list(ask(first, request(long_prompt, 12)).finished().tokens)
    first.stop(drain_s=0)
    second = start()
    loaded = make_loaded(name)
    history = [*long_prompt, *answer, *prompt_of(9, 4)]
    # Two requests at once need the same files.
    asked = [request(history, 12, name=f"{i}", seed=i, temperature=0.8 * i) for i in range(2)]
    answers = [ask(second, one).finished() for one in asked]
    assert [list(one.tokens) for one in answers] == [oracle(loaded, one) for one in asked]
    assert all(one.usage.num_cached_tokens >= 420 for one in answers)
    assert second.prefix_status()["target"]["file_bytes"] > 0


@pytest.mark.parametrize(("name", "kv_bits"), [("llama", 8), ("gemma3_text", 4), ("qwen3_next", 4)])
def test_after_a_restart_quantized_keys_are_cached_and_answers_equal(
    name: str, kv_bits: int, start_engine: StartEngine, tmp_path: Path, long_prompt: list[int]
) -> None:
    cached = {"prefix_cache_dir": str(tmp_path), "kv_bits": kv_bits, "prefill_chunk_tokens": 128}
    first = start_engine(name, **cached)
    answer = ask(first, request(long_prompt, 12)).finished().tokens
    first.stop(drain_s=0)
    asked = request([*long_prompt, *answer, *prompt_of(9, 4)], 12)
    again = ask(start_engine(name, **cached), asked).finished()
    plain = ask(start_engine(name, kv_bits=kv_bits, prefix_cache_bytes=0), asked).finished()
    assert again.usage.num_cached_tokens >= 420 > plain.usage.num_cached_tokens
    assert again.tokens == plain.tokens


def test_two_engines_share_a_folder_and_delete_each_other_s_files(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    """The folder takes two of the five prompts, and the memory of either one."""
    folder = {"prefix_cache_dir": str(tmp_path), "prefix_cache_dir_bytes": 2**20, "prefix_cache_bytes": 2**19}
    loaded, chance, num_cached = make_loaded("llama"), random.Random(1), 0
    for _ in range(2):
        engines = [start_engine("llama", **folder) for _ in range(2)]
        for at in range(16):
            asked = request(prompt_of(400, chance.randrange(5)), 6, name=str(at))
            ended = ask(chance.choice(engines), asked).finished()
            assert list(ended.tokens) == oracle(loaded, asked)
            num_cached += ended.usage.num_cached_tokens
        for engine in engines:
            engine.stop(drain_s=0)
    assert num_cached > 0


def make_trouble(trouble: str, folder: Path, meanwhile: Callable[[], None]) -> None:
    """Harm the folder of an engine that runs. meanwhile: called while another process writes there."""
    files = list(folder.glob("*.prefix"))
    match trouble:
        case "damaged":
            for path in files:
                data = path.read_bytes()
                path.write_bytes(data[:-9] + bytes([data[-9] ^ 1]) + data[-8:])
        case "cut off":
            for path in files:
                os.truncate(path, path.stat().st_size // 2)
        case "vanished":
            folder.rename(folder.with_name("elsewhere"))
        case "in the way":
            folder.rename(folder.with_name("elsewhere"))
            folder.write_text("")
        case "killed":
            command = [sys.executable, "-c", KILLED, str(folder), "30000"]
            process = subprocess.Popen(command, stdout=subprocess.PIPE)
            assert process.stdout
            process.stdout.readline()
            meanwhile()
            process.kill()
            process.wait()


@pytest.mark.parametrize("trouble", ["damaged", "cut off", "full", "vanished", "in the way", "killed"])
@pytest.mark.parametrize("name", ["llama", "lfm2"])
def test_whatever_happens_to_the_folder_the_engine_serves_and_answers_are_equal(
    name: str, trouble: str, start_engine: StartEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, loaded, count = tmp_path / "prefixes", make_loaded(name), 0

    def start() -> Any:
        # Memory takes two of the three prompts, so files are read again and again.
        return start_engine(name, prefix_cache_dir=str(folder), prefix_cache_bytes=2**18)

    def answer(engine: Any) -> None:
        nonlocal count
        for start in range(3):
            count += 1
            asked = request(prompt_of(400, start), 6, name=str(count), seed=start, temperature=0.4 * start)
            assert list(ask(engine, asked).finished().tokens) == oracle(loaded, asked)

    def write_half(path: Path, _content: bytes) -> None:
        unfinished_path(path).write_bytes(b"half")
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as full:
        if trouble == "full":
            full.setattr(disk, "write_whole", write_half)
        running = start()
        answer(running)
        make_trouble(trouble, folder, lambda: answer(running))
        answer(running)
        running.stop(drain_s=0)
    if trouble == "in the way":
        folder.unlink()
    for _ in range(2):
        again = start()
        answer(again)
        again.stop(drain_s=0)
    assert list(folder.glob("*.prefix"))


def test_files_are_read_while_others_decode(
    start_engine: StartEngine, tmp_path: Path, long_prompt: list[int]
) -> None:
    first = start_engine("llama", prefix_cache_dir=str(tmp_path))
    ask(first, request(long_prompt, 4)).finished()
    first.stop(drain_s=0)
    second, loaded = start_engine("llama", prefix_cache_dir=str(tmp_path)), make_loaded("llama")
    asked = [request(prompt_of(5), 200, name="long"), request(long_prompt, 8, name="read")]
    answers: Sequence[Any] = [ask(second, one) for one in asked]
    assert [list(one.finished().tokens) for one in answers] == [oracle(loaded, one) for one in asked]
    assert answers[1].events[-1].usage.num_cached_tokens == 419


def test_what_several_prompts_share_is_read_once_and_one_step_waits_once(
    start_engine: StartEngine, tmp_path: Path, long_prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start_engine("llama", prefix_cache_dir=str(tmp_path))
    prompts = [long_prompt, prompt_of(300, 6)]
    for prompt in prompts:
        ask(first, request(prompt, 4)).finished()
    first.stop(drain_s=0)
    engine = Driven(make_loaded("llama"), prefix_cache_dir=str(tmp_path))
    reads, waits, waiting = Event(), list[float](), disk.Loading.wait
    read_file, loads = disk.read, list[Path]()

    def read(path: Path) -> Any:
        reads.wait()
        loads.append(path)
        return read_file(path)

    def wait(loading: disk.Loading, timeout_s: float = 0.0) -> bool:
        waits.append(timeout_s)
        return waiting(loading, timeout_s)

    monkeypatch.setattr(disk, "read", read)
    monkeypatch.setattr(disk.Loading, "wait", wait)
    asked = [
        request([*prompt, i], 4, name=f"{at} {i}") for i in range(3) for at, prompt in enumerate(prompts)
    ]
    answers = [engine.ask(one) for one in asked]
    engine.worker.step()
    assert sum(one > 0 for one in waits) == 1
    reads.set()
    engine.finish()
    assert len(loads) == len(set(loads))
    loaded, ends = make_loaded("llama"), [one.finished() for one in answers]
    assert [list(one.tokens) for one in ends] == [oracle(loaded, one) for one in asked]
    assert all(one.usage.num_cached_tokens >= 299 for one in ends)


def test_few_read_at_a_time_and_what_was_read_for_a_cancelled_request_is_dropped(
    start_engine: StartEngine, tmp_path: Path
) -> None:
    prompts = [prompt_of(300, at) for at in range(1, 7)]
    first = start_engine("llama", prefix_cache_dir=str(tmp_path))
    for at, prompt in enumerate(prompts):
        ask(first, request(prompt, 2, name=f"{at}")).finished()
    first.stop(drain_s=0)
    engine, loaded = (
        Driven(make_loaded("llama"), prefix_cache_dir=str(tmp_path), max_rows=1),
        make_loaded("llama"),
    )
    kept_in = engine.worker.queue.prefixes
    asked = [request([*prompt, 7], 30, name=f"{at}") for at, prompt in enumerate(prompts)]
    answers = [engine.ask(one) for one in asked]
    while len(engine.worker.running) < 1:
        engine.worker.step()
    assert 0 < len(kept_in.loaders) <= MAX_LOADS
    for one in asked[1:3]:
        engine.worker.cancel(one.id)
    engine.worker.step()
    assert all(not one.ended for one in kept_in.loaders)
    engine.finish()
    assert not kept_in.loaders
    for at in (0, 3, 4, 5):
        end = answers[at].finished()
        assert list(end.tokens) == oracle(loaded, asked[at])
        assert end.usage.num_cached_tokens >= 299
    # Whoever was admitted once waits for no files again.
    assert all(one.prefix.is_disk_searched for one in engine.worker.live)


def kept(folder: Path, *prompts: list[int], **settings: Any) -> Driven:
    """Return a worker that finds these prompts in files."""
    first = Driven(make_loaded("llama"), prefix_cache_dir=str(folder))
    for prompt in prompts:
        first.ask(request(prompt, 2, name=str(len(first.answers))))
    first.finish()
    first.worker.queue.prefixes.close()
    return Driven(make_loaded("llama"), prefix_cache_dir=str(folder), **settings)


def hold_reads(monkeypatch: pytest.MonkeyPatch) -> tuple[Event, list[Path]]:
    """Let files be read only once an event is set; return it and what is read."""
    go, paths, read = Event(), list[Path](), disk.read

    def wait_and_read(path: Path) -> disk.Contents:
        paths.append(path)
        go.wait()
        return read(path)

    monkeypatch.setattr(disk, "read", wait_and_read)
    return go, paths


def test_whoever_runs_awaits_no_files_when_it_restarts(
    tmp_path: Path, long_prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = kept(tmp_path, long_prompt)
    worker, queue = engine.worker, engine.worker.queue
    may_begin, dispatch = queue.memory_budget.may_begin, worker._decoder._dispatch
    # The second has no room while others run.
    monkeypatch.setattr(
        queue.memory_budget,
        "may_begin",
        lambda s, *running: may_begin(s, *running) and not (s.request.id == "2" and any(running)),
    )
    monkeypatch.setattr(disk, "MAX_LOAD_S", 0.1)
    go, _ = hold_reads(monkeypatch)
    asked = [request([*long_prompt, i], 60, name=f"{i}") for i in (1, 2, 3)]
    answers = [engine.ask(one) for one in asked]
    engine.step_until(lambda: len(worker.members) == 2)
    late = queue.prefixes.late
    assert late
    go.set()
    while not late.wait(0.1):
        pass
    failures = iter([RuntimeError("[metal] out of memory")])

    def fail_once(previous: Any) -> None:
        for failure in failures:
            raise failure
        dispatch(previous)

    monkeypatch.setattr(worker._decoder, "_dispatch", fail_once)
    engine.finish()
    loaded = make_loaded("llama")
    assert [list(one.finished().tokens) for one in answers] == [oracle(loaded, one) for one in asked]


def test_a_prompt_that_waited_for_memory_is_read_from_files_once_there_is_room(
    tmp_path: Path, long_prompt: list[int]
) -> None:
    engine = kept(tmp_path, long_prompt)
    budget = engine.worker.queue.memory_budget
    engine.ask(request(prompt_of(300, 9), 60, name="runs"))
    engine.step_until(lambda: bool(engine.worker.members))
    room, budget.room_bytes = budget.room_bytes, budget.used_bytes + 200_000
    answer = engine.ask(request([*long_prompt, 7], 4, name="waits"))
    for _ in range(20):
        engine.worker.step()
    assert engine.worker.queue.waiting
    budget.room_bytes = room
    engine.finish()
    assert answer.finished().usage.num_cached_tokens >= 419


def test_files_of_a_cancelled_request_or_an_unloaded_model_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    prompts = [prompt_of(300, at) for at in range(1, 4)]
    engine = kept(tmp_path, *prompts)
    go, paths = hold_reads(monkeypatch)
    for at, prompt in enumerate(prompts):
        engine.ask(request([*prompt, 7], 4, name=f"{at}"))
        engine.worker.step()
        if at < 2:
            engine.worker.cancel(f"{at}")
            engine.worker.step()
    monkeypatch.setattr(disk, "MAX_CLOSE_S", 0.0)
    engine.worker.queue.prefixes.close()
    go.set()
    engine.worker.queue.prefixes.store._thread.shutdown()  # type: ignore[union-attr]
    # The one that was being read.
    assert len(paths) == 1
    assert "still being written" not in caplog.text


def test_prompts_that_wait_for_the_same_files_are_compared_once(
    tmp_path: Path, long_prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = kept(tmp_path, long_prompt)
    go, _ = hold_reads(monkeypatch)
    for i in range(4):
        engine.ask(request([*long_prompt, i], 4, name=f"{i}"))
    engine.ask(request(prompt_of(5), 100, name="runs"))
    engine.step_until(lambda: bool(engine.worker.members))
    with monkeypatch.context() as context:
        context.setattr(prefixes, "num_shared", None)
        for _ in range(20):
            engine.worker.step()
    assert len(engine.worker.queue.waiting) == 4
    go.set()
    engine.finish()


@pytest.mark.parametrize("part", ["advance_load", "finish_load"])
def test_what_fails_while_files_are_read_harms_no_request(
    part: str, start_engine: StartEngine, tmp_path: Path, long_prompt: list[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    first = start_engine("llama", prefix_cache_dir=str(tmp_path))
    ask(first, request(long_prompt, 4)).finished()
    first.stop(drain_s=0)
    engine = Driven(make_loaded("llama"), prefix_cache_dir=str(tmp_path))

    def fail(*_: Any) -> None:
        raise RuntimeError("[malloc] out of memory")

    monkeypatch.setattr(PrefixStore, part, fail)
    asked = [request(prompt_of(5), 60, name="runs"), request([*long_prompt, 7], 8, name="reads")]
    answers = [engine.ask(asked[0])]
    engine.worker.step()
    answers.append(engine.ask(asked[1]))
    engine.finish()
    loaded = make_loaded("llama")
    assert [list(one.finished().tokens) for one in answers] == [oracle(loaded, one) for one in asked]


def test_a_disk_that_hangs_holds_no_prompt_up(
    start_engine: StartEngine, tmp_path: Path, long_prompt: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = start_engine("llama", prefix_cache_dir=str(tmp_path))
    ask(first, request(long_prompt, 4)).finished()
    first.stop(drain_s=0)
    hanging, read = Event(), disk.read

    def hang(path: Path) -> Any:
        hanging.wait()
        return read(path)

    with monkeypatch.context() as disk_hangs:
        disk_hangs.setattr(disk, "read", hang)
        disk_hangs.setattr(disk, "MAX_LOAD_S", 0.2)
        second, loaded = start_engine("llama", prefix_cache_dir=str(tmp_path)), make_loaded("llama")
        try:
            for name in ("given up", "not tried"):
                asked = request([*long_prompt, 5], 8, name=name)
                answers = [ask(second, asked), ask(second, request(prompt_of(5), 20, name=f"beside {name}"))]
                assert list(answers[0].finished().tokens) == oracle(loaded, asked)
                answers[1].finished()
        finally:
            hanging.set()
    second.stop(drain_s=0)
    third = start_engine("llama", prefix_cache_dir=str(tmp_path))
    asked = request([*long_prompt, 5], 8)
    ended = ask(third, asked).finished()
    assert list(ended.tokens) == oracle(loaded, asked)
    assert ended.usage.num_cached_tokens >= 420


def test_a_disk_that_hangs_does_not_hold_up_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers, write = Event(), disk._write

    def hang(*given: Any) -> int:
        answers.wait()
        return write(*given)

    monkeypatch.setattr(disk, "_write", hang)
    monkeypatch.setattr(disk, "MAX_CLOSE_S", 0.05)
    checked = CheckedStore(tmp_path)
    checked.save(*TOKENS)
    checked.store.close()
    assert "still being written" in caplog.text
    # What was asked for is written all the same.
    answers.set()
    while not (CheckedStore(tmp_path).load(*TOKENS, 7)):
        time.sleep(0.01)


def test_a_folder_that_cannot_be_used_is_an_error_at_start(start_engine: StartEngine, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(Exception, match=r"--prefix-cache-dir .*file"):
        start_engine("llama", prefix_cache_dir=str(tmp_path / "file"))


def test_bfloat16_is_stored_exactly() -> None:
    numbers = mx.arange(24, dtype=mx.float32).astype(mx.bfloat16).reshape(1, 2, 3, 4) / 7
    mx.eval(numbers)
    again = disk.from_stored(disk.to_contents([numbers], []).kv_slice[0])
    assert again.dtype == mx.bfloat16
    assert mx.array_equal(again, numbers).item()


def test_nothing_is_copied_to_be_written_and_little_at_a_time_after_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(disk, "FILE_TOKENS", 1024)
    array = mx.random.normal((1, 2, 300, 4))
    ((_, numbers),) = disk.to_contents([array], []).kv_slice
    assert np.shares_memory(numbers, np.asarray(array))
    store = PrefixStore(tmp_path, 10**9, "a", needs_state=True)
    tokens = tuple(range(300))
    store.save(tokens, lambda start, end: [array[:, :, start:end]] * 3, lambda: [None, array])
    loading = store.start_load((*tokens, 1))
    monkeypatch.setattr(disk, "MAX_TURNED_BYTES", array.nbytes)
    assert [store.advance_load(loading) for _ in range(5)] == [True, True, True, False, False]
    cut, state = store.finish_load(loading)
    assert all(mx.array_equal(one, array).item() for one in [*cut(0, 300), state[1]])
    store.close()


def test_the_file_that_saves_fewest_tokens_for_its_bytes_is_deleted_first(tmp_path: Path) -> None:
    texts = [tuple(range(start, start + length)) for start, length in ((1000, 90), (2000, 9), (3000, 60))]
    first = PrefixStore(tmp_path, 10**9, "a", needs_state=True)
    for tokens in texts:
        cut = lambda start, end, of=tokens: slice_of(of[start:end])  # noqa: E731
        first.save(tokens, cut, lambda: [mx.zeros(25_000)])
    first.close()
    for path in tmp_path.iterdir():
        # All were used as long ago, but for the shortest, a little later.
        used_at = time.time() - (90 if len(disk.read_header(path).tokens) == 9 else 100)
        os.utime(path, (used_at, used_at))
    smaller = PrefixStore(tmp_path, 250_000, "a", needs_state=True)
    assert [smaller.match((*tokens, 7)) for tokens in texts] == [90, 0, 60]
    smaller.close()
