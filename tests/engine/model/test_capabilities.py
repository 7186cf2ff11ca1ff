"""What a model was found to be able to do is tried once; what it failed at, or another model, again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import pytest

from reprise.config.settings import Settings
from reprise.engine.generating.setup import TRIALS, flat_costs, make_worker
from reprise.engine.kv_cache import exact_widths
from reprise.engine.memory import budget
from reprise.engine.model import loading
from reprise.engine.model.capabilities import Findings
from reprise.engine.model.loading import LoadedModel
from reprise.engine.pool.residency import Makers
from tests.engine.support import make_loaded

TRIED = (
    (loading, "find_sharing"),
    (loading, "rollback_fault"),
    (loading, "prefix_fault"),
    (budget, "measure"),
)
UNUSABLE = b'{"sharing, None bits": "all", "footprint, None bits, batched": 1}'


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list of what is tried from now on."""
    names: list[str] = []

    def watch(name: str, original: Any) -> Any:
        def watched(*given: Any, **options: Any) -> Any:
            names.append(name)
            return original(*given, **options)

        return watched

    for module, name in TRIED:
        monkeypatch.setattr(module, name, watch(name, getattr(module, name)))
    return names


def start(folder: Path, name: str = "lfm2", **changes: Any) -> LoadedModel:
    """Set up a worker for a model whose findings are kept in a folder."""
    loaded = make_loaded(name)
    loaded.findings = Findings.of(replace(loaded.info, **changes), folder)
    settings = Settings(memory_bytes=2**40, prefix_cache_bytes=2**20, keeps_costs=False)
    make_worker(loaded, None, settings, Makers(make_sources=lambda _: None), lambda _stage, _share: None)
    return loaded


def test_the_next_start_tries_nothing_and_finds_the_same(tmp_path: Path, tried: list[str]) -> None:
    first = start(tmp_path)
    assert sorted(tried) == sorted(name for _, name in TRIED)
    tried.clear()
    second = start(tmp_path)
    assert tried == []
    assert second.info == first.info
    footprints = [budget.find_footprint(one, None, True) for one in (first, second)]
    assert footprints[0] == footprints[1]


def test_exact_widths_are_tried_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(exact_widths, "LENGTHS", (21,))
    monkeypatch.setattr(exact_widths, "LONG_LENGTHS", ())
    stages: list[list[str]] = []
    found = []
    for _ in range(2):
        stages.append([])
        loaded = make_loaded("llama")
        loaded.findings = Findings.of(loaded.info, tmp_path)
        settings = Settings(memory_bytes=2**40, keeps_costs=False, exact=True, max_rows=2, num_draft_tokens=3)
        note = lambda stage, _, told=stages[-1]: told.append(stage)  # noqa: E731
        make_worker(loaded, None, settings, Makers(make_sources=lambda _: None), note)
        found.append(loaded.info.exact)
    first, second = (stage.count("Trying which widths are exact") for stage in stages)
    assert first > 10
    assert not second
    assert found[0] == found[1] == "1 to 2 rows: all up to 4"


class Counted(nn.Module):
    """A model that counts the tokens that it is fed."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.inner = model
        self.num_fed = 0

    def __getattr__(self, name: str) -> Any:
        return self[name] if name in self else getattr(self.get("inner"), name)

    def __call__(self, tokens: mx.array, cache: Any = None) -> mx.array:
        self.num_fed += tokens.size
        logits: mx.array = self.inner(tokens, cache=cache)
        return logits


def test_a_start_tells_what_is_tried_and_how_much_of_it_is_done_by_the_tokens_fed() -> None:
    loaded = make_loaded("llama", Counted)
    told: list[tuple[str, float, int]] = []
    note = lambda stage, share: told.append((stage, share, loaded.model.num_fed))  # noqa: E731
    settings = Settings(memory_bytes=2**40, prefix_cache_bytes=2**20, keeps_costs=False)
    make_worker(loaded, None, settings, Makers(make_sources=lambda _: None, costs=flat_costs()), note)
    assert {stage for stage, _, _ in told} == {"Trying what llama can do"}
    assert [share for _, share, _ in told] == [num_fed / loaded.model.num_fed for _, _, num_fed in told]
    assert len(told) == len(TRIALS) + 35, "before each trial, and after each of its forward passes"


@pytest.mark.parametrize("changes", [{"fingerprint": "another"}, {"device": "another"}])
def test_another_model_and_another_machine_are_tried(
    changes: dict[str, Any], tmp_path: Path, tried: list[str]
) -> None:
    start(tmp_path)
    start(tmp_path, **changes)
    assert len(tried) == 2 * len(TRIED)


@pytest.mark.parametrize("content", [b"", b"[]", UNUSABLE])
def test_a_damaged_file_costs_only_time(content: bytes, tmp_path: Path, tried: list[str]) -> None:
    start(tmp_path)
    (file,) = tmp_path.iterdir()
    file.write_bytes(content)
    start(tmp_path)
    assert len(tried) == 2 * len(TRIED)


def test_what_failed_is_tried_again(tmp_path: Path) -> None:
    faults = iter(["no memory", None, "not asked"])
    for expected in ("no memory", None, None):
        assert Findings(tmp_path / "file.json").find_fault("name", lambda: next(faults)) == expected
