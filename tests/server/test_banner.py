"""The progress bar, and how the banner describes drafts."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from reprise.config.settings import Settings
from reprise.engine.interface.models import ModelEntry
from reprise.engine.text.markers import Markers
from reprise.server.banner import (
    LoadingBar,
    Pace,
    banner,
    describe_drafts,
    describe_models,
)
from tests.server.fake_engine import FakeEngine, FakeTokenizer


def _banner(info=None, markers=None, drafts="auto", **settings):
    tokenizer = FakeTokenizer()
    tokenizer.markers = markers or tokenizer.markers
    return banner(info or FakeEngine().info, Settings(**settings), "http://127.0.0.1:8000", tokenizer, drafts)


def _shown(steps, is_watched=True, show_after_s=0.0):
    written = io.StringIO()
    console = Console(file=written, force_terminal=is_watched, width=100)
    with LoadingBar(console, show_after_s) as bar:
        for what, share in steps:
            bar.advance(what, share)
    return written.getvalue()


def test_each_task_is_named():
    steps = [("Loading demo_model", 0.5), ("Loading demo_model", 1.0), ("Trying which widths are exact", 0.1)]
    shown = _shown(steps)
    assert shown.index("Loading demo_model") < shown.index("Trying which widths are exact")


def test_a_model_s_name_is_shown_as_it_is():
    assert "Loading a[red]b[/red]" in _shown([("Loading a[red]b[/red]", 0.5)])


@pytest.mark.parametrize(("is_watched", "show_after_s"), [(False, 0.0), (True, 600.0)])
def test_no_bar_is_shown_without_a_terminal_or_for_a_quick_start(is_watched, show_after_s):
    assert _shown([("Loading demo_model", 0.5)], is_watched, show_after_s).strip() == ""


@pytest.fixture(autouse=True)
def _home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.mark.parametrize(
    ("settings", "can_draft", "said"),
    [
        ({}, True, "auto, step costs from ~/cache/reprise/step_costs.json"),
        (
            {"draft_model": "org/small", "draft_type": "draft-model"},
            True,
            "draft-model with org/small, step costs from ~/cache/reprise/step_costs.json",
        ),
        ({"draft_type": "suffix"}, False, "off, this model does not support drafting"),
    ],
)
def test_the_banner_says_where_drafts_and_their_costs_come_from(settings, can_draft, said):
    assert describe_drafts(Settings(**settings, log_level="debug"), can_draft, FakeEngine().info) == said


def test_the_banner_says_how_drafts_are_translated():
    settings = Settings(draft_model="org/small", log_level="debug")
    said = "auto with org/small (translated: context), step costs from ~/cache/reprise/step_costs.json"
    assert describe_drafts(settings, True, replace(FakeEngine().info, draft_strategy="context")) == said
    assert "translated" not in describe_drafts(
        settings, True, replace(FakeEngine().info, draft_strategy="none")
    )


def test_the_banner_says_which_head_drafts():
    costs = "step costs from ~/cache/reprise/step_costs.json"
    info = replace(FakeEngine().info, head="mtp", head_described="an MTP head")
    assert describe_drafts(Settings(log_level="debug"), True, info) == f"auto with an MTP head, {costs}"
    given = Settings(draft_model="block", log_level="debug")
    assert describe_drafts(given, True, info) == f"auto with an MTP head (block), {costs}"


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({}, "on, where they save time"),
        ({"draft_type": "suffix"}, "on, by suffix"),
        ({"draft_model": "org/small"}, "on, where they save time with org/small"),
        ({"draft_type": "none"}, "off (--draft-type none)"),
    ],
)
def test_the_banner_of_a_newcomer_has_words_and_no_settings(settings, said):
    assert describe_drafts(Settings(**settings), True, FakeEngine().info) == said
    info = replace(FakeEngine().info, batching="one forward pass for all rows")
    shown = _banner(info, Markers(is_generic=True), said)
    rows = [line.split()[0] for line in shown.splitlines() if line.startswith("  ")]
    assert rows[:6] == ["model", "device", "memory", "context", "drafts", "address"]
    assert "`reprise run`" in shown


def test_the_banner_says_that_drafts_come_once_all_is_tried():
    info = replace(FakeEngine().info, is_tried=False)
    said = "later, once it was tried what this model can do, while nothing is asked"
    assert describe_drafts(Settings(), False, info) == said


def test_the_banner_says_what_weights_mean_for_drafts_here():
    info = replace(FakeEngine().info, weights_note="drafts cannot pay here")
    shown = _banner(info)
    assert "  weights  drafts cannot pay here" in shown.splitlines()


def test_what_a_part_of_the_start_still_takes_follows_from_its_pace():
    pace = Pace()
    told = []
    for what, share, at_s in [
        ("Loading a", 0.0, 10.0),
        ("Loading a", 0.25, 12.0),
        ("Loading a", 0.5, 13.0),
        ("Trying what a can do", 0.5, 14.0),
        ("Trying what a can do", 0.75, 15.0),
        ("Trying what a can do", 0.0, 16.0),
    ]:
        pace.note(what, share, at_s)
        told.append(pace.left_s(at_s))
    assert told == [None, 6.0, 3.0, None, 1.0, None]


def test_it_counts_down_between_two_shares_and_ends_when_it_was_wrong():
    pace = Pace()
    pace.note("Loading a", 0.0, 10.0)
    pace.note("Loading a", 0.5, 12.0)
    assert [pace.left_s(at_s) for at_s in (12.0, 13.5, 15.0)] == [2.0, 0.5, None]


def test_the_banner_says_that_streamed_answers_may_differ():
    assert "decoding  " not in _banner()
    said = _banner(wedlm_decoding="streaming", wedlm_entropy_threshold=None)
    differs = "answers may differ from those of plain decoding"
    assert f"decoding streaming (window of 16, one by one): {differs}" in said


def test_the_banner_says_that_tools_have_the_generic_format():
    assert "  tools  " not in _banner(log_level="debug")
    said = _banner(markers=Markers(is_generic=True), log_level="debug")
    assert "  tools    generic format: the chat template has none that is known\n" in said


def test_the_banner_says_what_was_found_by_trying():
    info = FakeEngine().info
    said = _banner(info, log_level="debug")
    assert "  exact    widths not tried; --exact and `reprise verify` find them\n" in said
    info = replace(info, batching="one forward pass for all rows", exact="1 row: 2, 3")
    said = _banner(info, log_level="debug")
    assert "  batch    one forward pass for all rows\n" in said
    assert "  exact    1 row: 2, 3\n" in said


def test_the_banner_names_the_other_models_that_can_be_loaded():
    found = [ModelEntry(f"model {at}", "unloaded", 1, None) for at in range(9)]
    broken = [ModelEntry("broken", "unloaded", 1, None, fault="no config.json")]
    shown = describe_models([*broken, *found], Settings(allow_load=True))
    names = ", ".join(f"model {at}" for at in range(8))
    assert shown == f"{names}, and 1 more (loaded when a request asks for them)"
    assert describe_models(found[:1], Settings()) == "model 0 (loaded with --allow-load only)"
    assert describe_models(broken, Settings()) == "none found"
