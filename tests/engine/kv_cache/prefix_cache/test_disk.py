"""Prefixes survive a restart; truncated, damaged and foreign files do no harm."""

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from reprise.config.atomic_files import unfinished_path
from reprise.engine.kv_cache.buffers import KVSlice, State
from reprise.engine.kv_cache.prefix_cache import disk
from reprise.engine.kv_cache.prefix_cache.disk import PrefixStore, weights_fingerprint
from tests.combinations import FAMILIES, every_kind_of_cache
from tests.engine.conftest import StartEngine
from tests.engine.kv_cache.prefix_cache.test_trie import slice_of, state_of
from tests.engine.support import CONFIGS, ask, make_loaded, make_model, oracle, prompt_of, request

TOKENS = tuple(range(1, 101))


class CheckedStore:
    """A store that saves any number of tokens, and checks everything it loads."""

    def __init__(self, folder: Path, budget_bytes: int = 10**9, needs_state: bool = False, model: str = "a"):
        self.needs_state = needs_state
        self.store = PrefixStore(folder, budget_bytes, model, needs_state)

    def save(self, *tokens: int) -> None:
        state = (lambda: state_of(tokens)) if self.needs_state else list
        self.store.save(tokens, lambda start, end: slice_of(tokens[start:end]), state)

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


def test_only_the_owner_can_read_the_files(tmp_path: Path) -> None:
    checked = CheckedStore(tmp_path / "new")
    checked.save(*TOKENS)
    checked.store.close()
    (file,) = (tmp_path / "new").iterdir()
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.parent.stat().st_mode & 0o777 == 0o700


def test_a_full_disk_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    checked = CheckedStore(tmp_path)

    def fail(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(disk, "write", fail)
    checked.save(*TOKENS)
    assert checked.load(*TOKENS, 7) == 0
    monkeypatch.undo()
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
