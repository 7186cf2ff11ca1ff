"""A head of the target never changes the answer, whatever it drafts, and reads the right states."""

import dataclasses
import random
import weakref
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from reprise.bench.cost_curves import M4_PRO
from reprise.bench.workloads import make_chats
from reprise.bench.workloads.chats import render, render_turn
from reprise.config.model_settings import BUNDLED_MODEL
from reprise.config.settings import Settings
from reprise.drafters.assembly import make_drafters
from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery
from reprise.drafters.repetition import score_in_slices
from reprise.engine.engine import Engine
from reprise.engine.interface.errors import ModelError
from reprise.engine.interface.events import Finished
from reprise.engine.interface.models import HeadKind
from reprise.engine.interface.request import GenerationRequest, Grammar
from reprise.engine.kv_cache.per_row import make_caches
from reprise.engine.kv_cache.rows import NextTokenView, SeparateRows, Sharing
from reprise.engine.memory.budget import MemoryBudget
from reprise.engine.model.loading import LoadedModel, load_model
from reprise.engine.speculative.costs.cost_table import WIDTHS
from reprise.engine.speculative.costs.step_costs import StepCosts
from reprise.engine.speculative.draft_model.forecast import (
    PREFILL_ONE_PROMPT_IN,
    DraftModelCosts,
    ShareOfTarget,
)
from reprise.engine.speculative.draft_model.model import MAX_BACKLOG_TOKENS
from reprise.engine.speculative.heads import eagle
from reprise.engine.speculative.heads.assistant import AssistantHead
from reprise.engine.speculative.heads.dflash import DFlashConfig, DFlashHead, read_config
from reprise.engine.speculative.heads.head import Choose, Head, States, TappedStates, Taps, find_ends
from reprise.engine.speculative.heads.head_drafter import MAX_IDLE_STEPS, HeadDrafter, NamedHead
from reprise.engine.speculative.heads.loading import find_given_head, find_head
from reprise.engine.speculative.heads.mtp import FAMILIES, MTPHead
from reprise.engine.speculative.planner import Planner
from reprise.engine.speculative.proposers import DraftSources
from tests.combinations import spread
from tests.drafters.fakes import Coin, Oracle, scored
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.speculative.heads.dflash_kinds import CONFIGS as KINDS
from tests.engine.speculative.heads.fakes import ReadingHead
from tests.engine.speculative.heads.test_assistant import assistant_config, draft
from tests.engine.support import CONFIGS, SIZES, ask, make_loaded, prompt_of, request
from tests.tiny_models import tiny_config

TEMPERATURES = [0.0, 0.8]
INNER = {"mamba2": (1,), "gemma3_text": (1, 0), "lfm2": (1, 0), "qwen3_next": (0, 1)}
"""Layers that heads of some architectures read; those of all others read the state after the final norm."""


def requests(temperature: float) -> list[GenerationRequest]:
    lengths = [3, 40, 17, 90, 8, 25, 64, 2]
    return [
        request(prompt_of(length, i), 16 + 2 * i, name=str(i), temperature=temperature, seed=i)
        for i, length in enumerate(lengths)
    ]


def finding(head: Head, source: HeadKind = "mtp") -> Callable[[LoadedModel], NamedHead]:
    return lambda _: NamedHead(head, source)


def knowing(name: str, asked: Sequence[GenerationRequest], **ways: Any) -> ReadingHead:
    """Make a head that knows the answers."""
    return ReadingHead({one.prompt: expected_tokens(name, one) for one in asked}, INNER.get(name, ()), **ways)


def nothing_else(_: str) -> DraftSources:
    return DraftSources({}, scored(0.0))


def start(start_engine: StartEngine, name: str, find: Any, **settings: Any) -> Engine:
    chosen = {"draft_type": "mtp", "num_draft_tokens": 4, "prefill_chunk_tokens": 16} | settings
    return start_engine(name, make_sources=nothing_else, find_head=find, **chosen)


def run(engine: Engine, asked: Sequence[GenerationRequest]) -> list[list[int]]:
    answers = [ask(engine, one) for one in asked]
    return [list(answer.finished().tokens) for answer in answers]


@pytest.mark.parametrize(("name", "temperature"), spread(list(CONFIGS), TEMPERATURES))
def test_a_head_that_knows_the_answers_is_always_right(
    name: str, temperature: float, start_engine: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    asked = requests(temperature)
    engine = start(start_engine, name, finding(knowing(name, asked)), prefix_cache_bytes=0)
    assert run(engine, asked) == [expected_tokens(name, one) for one in asked]
    assert "without drafts" not in caplog.text
    last = ask(engine, asked[3]).finished()
    assert list(last.tokens) == expected_tokens(name, asked[3])
    report = last.usage.drafting
    assert report.gate_decision == "mtp"
    assert report.num_drafted
    assert report.num_accepted == report.num_drafted
    assert dict(report.origins)["mtp"] > 0
    assert 0 < report.drafter_s < last.usage.total_s


def random_mtp(family: str, num: int = 3) -> Callable[[LoadedModel], NamedHead]:
    def find(loaded: LoadedModel) -> NamedHead:
        config = tiny_config(family, **SIZES) | {"mtp_hybrid_override_pattern": "*E"}
        return NamedHead(MTPHead(FAMILIES[family], config, find_ends(loaded.model), num), "mtp")

    return find


def random_dflash(*windows: int | None) -> Callable[[LoadedModel], NamedHead]:
    def find(loaded: LoadedModel) -> NamedHead:
        with Taps(loaded.model, (0,)).tapping() as tapped:
            loaded.model(mx.array([[1]]), cache=make_caches(loaded.model))
        hidden = tapped.states()[0].shape[-1]
        config = DFlashConfig(
            hidden, 2 * hidden, 4, 2, 16, 1e-6, 1e4, None, 2048, False, 6, 3, (0, 1), tuple(windows)
        )
        return NamedHead(DFlashHead(config, find_ends(loaded.model)), "dflash")

    return find


def random_eagle(**changes: Any) -> Callable[[LoadedModel], NamedHead]:
    def find(loaded: LoadedModel) -> NamedHead:
        config = tiny_config("llama", **SIZES) | {"num_hidden_layers": 1, "draft_vocab_size": 40} | changes
        config["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1]}
        head = eagle.EagleHead(eagle.read_config(config, 2), find_ends(loaded.model), has_output=True)
        if "d2t" in head:
            head.d2t = mx.arange(40)
        return NamedHead(head, "eagle3")

    return find


def random_assistant(loaded: LoadedModel) -> NamedHead:
    config = assistant_config(routed=True, vocab_size=SIZES["vocab_size"])
    return NamedHead(AssistantHead(config, find_ends(loaded.model)), "mtp")


def random_of_kind(kind: str) -> Callable[[LoadedModel], NamedHead]:
    """Return what makes a drafter of a published kind, with random weights and the target's sizes."""

    def find(loaded: LoadedModel) -> NamedHead:
        ends = find_ends(loaded.model)
        sizes = {"hidden_size": ends.embed(mx.array([[1]])).shape[-1], "vocab_size": loaded.info.vocab_size}
        config = dataclasses.replace(read_config(KINDS[kind]), mask_token_id=3, taps=(0, 1), **sizes)
        own = ("embed_tokens", "lm_head") if "Gemma" in kind else ()
        return NamedHead(DFlashHead(config, ends, own), "dflash")

    return find


WINDOWED = ["sliding_attention", "full_attention"]

HEADS = {
    "llama, MTP": ("llama", random_mtp("llama")),
    "llama, EAGLE-3": ("llama", random_eagle()),
    "gemma 3, EAGLE-3 with windows": (
        "gemma3_text",
        random_eagle(num_hidden_layers=2, layer_types=WINDOWED, sliding_window=12),
    ),
    "qwen 3 next, EAGLE-3.1": (
        "qwen3_next",
        random_eagle(
            num_hidden_layers=2, fc_norm=True, norm_output=True, draft_vocab_size=None, model_type="qwen3"
        ),
    ),
    "llama, DFlash": ("llama", random_dflash(None, 12)),
    "gemma 3, DFlash": ("gemma3_text", random_dflash(None)),
    "qwen 3 next, MTP": ("qwen3_next", random_mtp("qwen3_next")),
    "deepseek v3, MTP": ("deepseek_v3", random_mtp("deepseek_v3")),
    "deepseek v3.2, MTP": ("deepseek_v32", random_mtp("deepseek_v32")),
    "glm 5, MTP": ("glm_moe_dsa", random_mtp("glm_moe_dsa")),
    "glm 4.7 flash, MTP": ("glm4_moe_lite", random_mtp("glm4_moe_lite")),
    "mimo, MTP": ("mimo", random_mtp("mimo")),
    "nemotron h, MTP": ("nemotron_h", random_mtp("nemotron_h")),
    "gemma 4, assistant": ("gemma4_text", random_assistant),
    "lfm2, DFlash": ("lfm2", random_dflash(12, None)),
    "gemma 3, DFlash 2": ("gemma3_text", random_of_kind("DFlash 2")),
    "llama, DSpark": ("llama", random_of_kind("DSpark")),
    "lfm2, DSpark": ("lfm2", random_of_kind("DSpark, causal, behind the known token")),
    "deepseek v3, Gemma 4 DSpark": ("deepseek_v3", random_of_kind("Gemma 4 DSpark")),
    "qwen 3 next, Laguna": ("qwen3_next", random_of_kind("Laguna")),
    "llama, Muse Glimmer": ("llama", random_of_kind("Muse Glimmer")),
    "llama, a liar": ("llama", finding(ReadingHead({}))),
    "baichuan m1, a liar": ("baichuan_m1", finding(ReadingHead({}))),
}


@pytest.mark.parametrize(("case", "temperature"), spread(list(HEADS), TEMPERATURES))
def test_a_wrong_head_never_changes_the_tokens(
    case: str, temperature: float, start_engine: StartEngine, caplog: pytest.LogCaptureFixture
) -> None:
    name, find = HEADS[case]
    asked = requests(temperature)
    is_mtp = case.endswith(("MTP", "assistant", "a liar"))
    source = "mtp" if is_mtp else "eagle3" if "EAGLE" in case else "dflash"
    engine = start(start_engine, name, find, draft_type="auto")
    assert run(engine, asked) == [expected_tokens(name, one) for one in asked]
    last = ask(engine, asked[3]).finished()
    assert list(last.tokens) == expected_tokens(name, asked[3])
    assert [name for name, *_ in last.usage.drafting.by_source] == [source]
    assert "without drafts" not in caplog.text


@pytest.fixture
def scarce_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Now and then the next step does not fit, so that the youngest sequence is preempted."""
    rng, fits = random.Random(7), MemoryBudget.make_room
    monkeypatch.setattr(
        MemoryBudget, "make_room", lambda self, *rest: fits(self, *rest) and rng.random() > 0.05
    )


@pytest.mark.usefixtures("scarce_memory")
@pytest.mark.parametrize(
    "keeps", [{}, {"window": 24}, {"bounds": (2, 16)}], ids=["all", "window", "sink and window"]
)
@pytest.mark.parametrize("name", ["llama", "gemma3_text", "lfm2", "baichuan_m1"])
def test_rows_join_leave_and_restart_beside_lookups_and_are_drafted_for_by_what_they_hold(
    name: str, keeps: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    rng, asked = random.Random(3), []
    for number in range(14):
        shared = prompt_of(30, number % 3)[: rng.randint(0, 30)]
        prompt = [*shared, *prompt_of(rng.randint(1, 40), 10 + number)]
        sampling = {"temperature": 0.9 * (number % 2), "seed": number}
        asked.append(request(prompt, rng.randint(12, 40), name=str(number), **sampling))
    expected = {one.prompt: expected_tokens(name, one) for one in asked}
    head = knowing(name, asked, **keeps)
    drafter = Reluctant(expected, 0.4, num_ids=4096, name="suffix")
    driven = Driven(
        dataclasses.replace(loaded_once(name)),
        lambda _: DraftSources({"suffix": drafter}, scored(1.0)),
        find_head=finding(head),
        max_rows=5,
        num_draft_tokens=4,
        prefill_chunk_tokens=16,
        gate="off",
    )
    cancelled = {"4", "9"}

    def cancel_some() -> bool:
        for one in [
            s.request.id for s in driven.worker.members if s.request.id in cancelled and s.num_answered
        ]:
            driven.worker.cancel(one)
        return not driven.worker.has_work

    for one in asked:
        driven.ask(one)
        if rng.random() < 0.6:
            cancel_some()
            driven.worker.step()
    driven.step_until(cancel_some)
    ends = [driven.answers[one.id].end() for one in asked]
    finished = [end for end in ends if isinstance(end, Finished)]
    assert len(finished) >= len(asked) - len(cancelled)
    for one, end in zip(asked, ends, strict=True):
        assert not isinstance(end, Finished) or list(end.tokens) == expected[one.prompt]
    assert driven.worker.stats.num_preemptions > 0
    by_source: dict[str, list[int]] = {}
    for end in finished:
        for source, drafted, accepted in end.usage.drafting.by_source:
            counts = by_source.setdefault(source, [0, 0])
            counts[0] += drafted
            counts[1] += accepted
    assert by_source["suffix"][1] < by_source["suffix"][0]
    assert "without drafts" not in caplog.text
    # It reads its own caches, which hold the row's text and nothing else.
    assert by_source["mtp"][1] == by_source["mtp"][0] > 20
    if head.bounds:
        # A row reads what it lacks before it drafts.
        assert head.longest <= head.bounds.most + MAX_BACKLOG_TOKENS + 1


@pytest.mark.usefixtures("scarce_memory")
@pytest.mark.parametrize("sharing", [Sharing.GROUPS, Sharing.NOTHING], ids=["shared", "apart"])
def test_an_assistant_drafts_by_its_own_row_s_text_whatever_joins_leaves_or_is_rejected(
    sharing: Sharing, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded, rng = dataclasses.replace(loaded_once("gemma4_text")), random.Random(3)
    monkeypatch.setattr(loaded, "find_sharing", lambda _: sharing)
    head, drafted = random_assistant(loaded), dict[tuple[int, ...], list[int]]()
    fill_in = HeadDrafter.fill_in

    sights: list[weakref.ref[NextTokenView]] = []
    look = NextTokenView.__init__

    def looked(self: NextTokenView, *given: Any) -> None:
        look(self, *given)
        sights.append(weakref.ref(self))

    monkeypatch.setattr(NextTokenView, "__init__", looked)

    def noted(self: HeadDrafter, inputs: list[Any], committed: Any, sampler: Any) -> Any:
        work = fill_in(self, inputs, committed, sampler)
        # With a view alive, the next forward pass would copy the buffers.
        assert not [sight for sight in sights if sight()]
        # Without a state there is no work, whose time would teach what drafts cost.
        assert work is None or work.num_drafted
        for one, tokens in zip(inputs, committed, strict=True):
            if one.num_wanted and one.draft:
                drafted[tuple(tokens)] = list(one.draft)
        return work

    monkeypatch.setattr(HeadDrafter, "fill_in", noted)
    shared, asked = prompt_of(50), []
    for number in range(14):
        prompt = [*shared[: rng.randint(0, 50)], *prompt_of(rng.randint(1, 40), 10 + number)]
        asked.append(request(prompt, rng.randint(12, 40), name=str(number)))
    expected = {one.prompt: expected_tokens("gemma4_text", one) for one in asked}
    driven = Driven(
        loaded,
        lambda _: DraftSources(
            {"suffix": Reluctant(expected, 0.4, num_ids=4096, name="suffix")}, scored(1.0)
        ),
        find_head=lambda _: head,
        max_rows=8,
        num_draft_tokens=4,
        prefill_chunk_tokens=16,
        gate="off",
    )
    for one in asked:
        driven.ask(one)
        if rng.random() < 0.4:
            driven.worker.step()
    driven.finish()
    ends = [driven.answers[one.id].finished() for one in asked]
    assert [list(end.tokens) for end in ends] == list(expected.values())
    assert driven.worker.stats.num_preemptions > 0
    assert any(end.usage.num_cached_tokens > 16 for end in ends)
    assert "without drafts" not in caplog.text
    assert len(drafted) > 100
    assert any(len(text) > 80 for text in drafted)
    for text, made in drafted.items():
        assert made == alone(loaded, head.head, text, len(made)), len(text)


def alone(loaded: LoadedModel, head: Head, text: Sequence[int], num: int) -> list[int]:
    """Draft for a text in a row of its own, fed at once."""
    caches = make_caches(loaded.model)
    with Taps(loaded.model, ()).tapping() as tapped:
        loaded.model(mx.array([text[:-1]]), cache=caches)
    rows = SeparateRows(loaded.model)
    rows.add(caches, len(text) - 1)
    return draft(head, rows, [0], [tapped.states()[0][0, -1]], [text[-1]], num)[0]


def test_an_assistant_keeps_one_state_of_each_row_and_no_others() -> None:
    loaded, size, num_fed = loaded_once("gemma4_text"), 4096, 64
    drafter, tapped = HeadDrafter(random_assistant(loaded), loaded), TappedStates(1)
    drafter.add(drafter.make_prefill(States(), 5))
    tapped.outputs[0].append(mx.ones((1, num_fed, size)))
    mx.eval(tapped.outputs)
    before = mx.get_active_memory()
    mx.eval(drafter.receive(tapped, [num_fed]))
    assert mx.get_active_memory() - before <= 2 * mx.float32.size * size
    # Another one costs so little that a row without drafts keeps its assistant.
    for _ in range(MAX_IDLE_STEPS + 1):
        tapped.outputs = [[mx.ones((1, 1, size))]]
        drafter.receive(tapped, [1])
    assert drafter.idle_rows() == []


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_bounded_head_drafts_for_texts_of_any_length(temperature: float, start_engine: StartEngine) -> None:
    asked = [request(prompt_of(n, n), 80, name=str(n), temperature=temperature) for n in (5, 40, 100, 200)]
    head = knowing("llama", asked, bounds=(3, 20))
    engine = start(start_engine, "llama", finding(head), prefix_cache_bytes=0)
    assert run(engine, asked) == [expected_tokens("llama", one) for one in asked]
    last = ask(engine, asked[3]).finished().usage.drafting
    assert last.num_accepted == last.num_drafted > 40
    assert head.bounds
    assert head.longest <= head.bounds.most + MAX_BACKLOG_TOKENS + 1


def test_a_prompt_from_the_prefix_cache_is_drafted_for_from_its_first_known_state(
    start_engine: StartEngine,
) -> None:
    asked = request(prompt_of(90), 30, name="again")
    engine = start(start_engine, "llama", finding(knowing("llama", [asked])))
    expected = expected_tokens("llama", asked)
    first, second = (ask(engine, asked).finished() for _ in range(2))
    assert [list(one.tokens) for one in (first, second)] == [expected, expected]
    assert second.usage.num_cached_tokens > 80
    assert second.usage.drafting.num_accepted == second.usage.drafting.num_drafted > 0


@pytest.mark.parametrize("temperature", TEMPERATURES)
def test_a_head_drafts_under_a_grammar(temperature: float, start_engine: StartEngine) -> None:
    words = Grammar("regex", "(red|green|blue)( (red|green|blue)){5}")
    asked = [
        dataclasses.replace(
            request(prompt_of(9 + i, i), 60, name=str(i), temperature=temperature, seed=i),
            grammar=words if i % 2 else None,
        )
        for i in range(4)
    ]
    plain = run(start_engine("llama"), asked)
    head = ReadingHead({one.prompt: tokens for one, tokens in zip(asked, plain, strict=True)})
    assert run(start(start_engine, "llama", finding(head)), asked) == plain
    others = random_mtp("llama"), random_eagle(), random_of_kind("DFlash 2"), random_of_kind("DSpark")
    for find in others:
        assert run(start(start_engine, "llama", find, draft_type="auto"), asked) == plain


class Reluctant(Coin):
    """A coin that has no draft half of the time."""

    def propose(self, query: DraftQuery) -> Draft:
        draft = super().propose(query)
        return draft if query.seq % 2 and draft.tokens and draft.tokens[0] % 2 else NO_DRAFT


class Failing(ReadingHead):
    """A head that raises from its third draft on, or when it reads."""

    def __init__(self, method: str) -> None:
        super().__init__({})
        self.num_drafts = 0
        self.method = method

    def feed(self, states: mx.array, following: mx.array, caches: Sequence[Any]) -> None:
        if self.method == "read" and following.shape[1] > 2:
            raise RuntimeError("a fault in a head")
        super().feed(states, following, caches)

    def draft(
        self, states: mx.array, last: mx.array, caches: Sequence[Any], num: int, choose: Choose
    ) -> mx.array:
        self.num_drafts += 1
        if self.method == "draft" and self.num_drafts > 2:
            raise RuntimeError("a fault in a head")
        return super().draft(states, last, caches, num, choose)


@pytest.mark.parametrize("method", ["read", "draft"])
def test_a_head_that_raises_costs_nothing_but_its_drafts(method: str, start_engine: StartEngine) -> None:
    asked = requests(0.8)
    engine = start(start_engine, "llama", finding(Failing(method)))
    assert run(engine, asked) == [expected_tokens("llama", one) for one in asked]


@pytest.mark.parametrize("layers", [(), (1, 0)], ids=["after the norm", "two layers"])
@pytest.mark.parametrize("name", ["llama", "qwen3_next", "gemma3_text", "deepseek_v3", "lfm2"])
def test_taps_leave_logits_as_they_are_and_the_model_as_it_was(name: str, layers: tuple[int, ...]) -> None:
    model = loaded_once(name).model
    tokens = mx.array([prompt_of(9)])
    kinds = [type(model.model), *(type(layer) for layer in model.layers)]
    before = model(tokens, cache=make_caches(model))
    with Taps(model, layers).tapping() as tapped:
        logits = model(tokens, cache=make_caches(model))
    assert mx.array_equal(logits, before).item()
    assert [type(model.model), *(type(layer) for layer in model.layers)] == kinds
    (states,) = tapped.states()
    normed = model.model(tokens, cache=make_caches(model))
    assert states.shape == (1, 9, normed.shape[-1] * max(1, len(layers)))
    if not layers:
        assert mx.array_equal(states, normed).item()
        return
    # The first layer's output is what the second one reads.
    second = states[..., normed.shape[-1] :]
    fewer = tapped.outputs[1][0]
    assert mx.array_equal(second, fewer).item()


def test_a_head_that_reads_layers_that_a_model_lacks_is_refused() -> None:
    loaded = make_loaded("llama")
    with pytest.raises(ModelError, match=r"a head reads layer 40, counted from 0; Model has . layers"):
        Driven(loaded, nothing_else, find_head=finding(ReadingHead({}, (0, 40))))


@pytest.mark.parametrize(("find", "has_own"), [(random_eagle(), True), (random_mtp("llama"), False)])
def test_the_target_s_output_head_counts_unless_a_head_has_its_own(find: Any, has_own: bool) -> None:
    loaded = loaded_once("llama")
    drafter = HeadDrafter(find(loaded), loaded)
    arrays: Any = tree_flatten(loaded.model.parameters())
    of_target = [array.nbytes for _, array in arrays]
    read = drafter.num_bytes + (0 if has_own else max(of_target))
    assert drafter.cost_share(loaded) == min(1.0, read / sum(of_target))


def test_a_head_that_has_nothing_to_do_for_long_costs_nothing_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Handing over the states takes time in every step."""
    monkeypatch.setattr(Planner, "plan", lambda *_: [])
    asked = request(prompt_of(20), MAX_IDLE_STEPS + 20, logit_bias=((2, -100.0),))
    driven = Driven(
        loaded_once("llama"), nothing_else, find_head=finding(knowing("llama", [asked])), draft_type="mtp"
    )
    answer = driven.ask(asked)
    head = driven.worker.batch.draft_model
    assert isinstance(head, HeadDrafter)
    driven.step_until(lambda: bool(driven.worker.members))
    driven.worker.step()
    with head.tapping() as tapped:
        assert tapped is not None
    driven.step_until(lambda: driven.worker.members[0].num_answered > MAX_IDLE_STEPS + 5)
    with head.tapping() as tapped:
        assert tapped is None
    driven.finish()
    assert list(answer.finished().tokens) == expected_tokens("llama", asked)


def test_a_head_drafts_at_once_after_a_long_copy() -> None:
    num_copied = 4 * MAX_BACKLOG_TOKENS
    asked = request(prompt_of(20), num_copied + 40, logit_bias=((2, -100.0),))
    answers = {asked.prompt: expected_tokens("llama", asked)}
    driven = Driven(
        loaded_once("llama"),
        lambda _: DraftSources({"suffix": Oracle(answers, "suffix", num_copied)}, scored(1.0)),
        find_head=finding(knowing("llama", [asked])),
        num_draft_tokens=4,
        gate="off",
    )
    answer = driven.ask(asked)
    driven.finish()
    end = answer.finished()
    assert list(end.tokens) == answers[asked.prompt]
    counts = {source: (drafted, accepted) for source, drafted, accepted in end.usage.drafting.by_source}
    drafted, accepted = counts["mtp"]
    assert drafted == accepted >= 20


SHARE = 0.05
"""Cost of a token that a head drafts, in plain steps."""


def projected(
    loaded: LoadedModel, prompts: Sequence[tuple[int, ...]], draft_type: str, head: str | None
) -> float:
    """Return the speedup of answers over plain decoding, with the published costs of steps."""
    settings = Settings(draft_type=draft_type, draft_model=str(BUNDLED_MODEL / head) if head else None)
    given = find_given_head(settings)
    costs = StepCosts({(1, width): M4_PRO.cost(width) for width in WIDTHS}, is_learned=False)
    driven = Driven(
        loaded,
        lambda name: DraftSources(make_drafters(settings, name), score_in_slices),
        find_head=(lambda target: find_head(settings, given, target)) if head else None,
        costs=costs,
        draft_type=draft_type,
        draft_model=settings.draft_model,
    )
    prior = ShareOfTarget(costs, SHARE)
    driven.worker.planner.model_costs = DraftModelCosts(prior, costs, is_learned=False) if head else None
    spent_s = plain_s = 0.0
    for number, prompt in enumerate(prompts):
        answer = driven.ask(request(prompt, 120, name=str(number)))
        driven.finish()
        report = answer.finished().usage.drafting
        spent_s, plain_s = spent_s + report.charged_s, plain_s + report.charged_plain_s
    return plain_s / spent_s


@pytest.mark.slow
def test_the_bundled_heads_and_lookups_together_are_no_slower_than_either() -> None:
    loaded = load_model(BUNDLED_MODEL, "reprise", 2048)
    prompts = [
        render_turn(loaded.tokenizer, chat.turns[0])
        for name in ("edits_short", "quotes", "free", "code")
        for chat in make_chats(name, 1, 1, lambda text: len(render(loaded.tokenizer, text)))
    ]
    lookups = projected(loaded, prompts, "auto", None)
    for head in ("mtp", "dflash"):
        alone = projected(loaded, prompts, head, head)
        together = projected(loaded, prompts, "auto", head)
        assert together >= 0.99 * max(lookups, alone), head


def test_states_of_prompts_are_taken_only_if_the_head_is_to_read_them(
    start_engine: StartEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To compute the last layer of a whole prompt takes time, which nothing else needs."""
    monkeypatch.setattr(Planner, "model_pays", lambda *_: False)
    widths: list[int] = []
    states = TappedStates.states

    def noted(self: TappedStates) -> list[mx.array]:
        found = states(self)
        widths.extend(each.shape[1] for each in found)
        return found

    monkeypatch.setattr(TappedStates, "states", noted)
    asked = [request(prompt_of(40, i), 6, name=str(i)) for i in range(PREFILL_ONE_PROMPT_IN + 1)]
    engine = start(start_engine, "llama", finding(knowing("llama", asked)), prefix_cache_bytes=0)
    widths.clear()
    taken = []
    for one in asked:
        assert list(ask(engine, one).finished().tokens) == expected_tokens("llama", one)
        taken.append(sum(width for width in widths if width > 5))
        widths.clear()
    # The first one, and then one in PREFILL_ONE_PROMPT_IN.
    assert [num > 0 for num in taken] == [True, *[False] * (PREFILL_ONE_PROMPT_IN - 1), True]
