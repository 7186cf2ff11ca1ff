"""MLX never takes more memory than it is given, and estimates are not far above what it takes.

Random configurations run in random amounts of memory, so that requests wait and are preempted. MLX runs ahead
of the device as far as memory allows; its peak over all steps is what is compared.
"""

import gc
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import mlx.core as mx
import pytest
from mlx.utils import tree_flatten

from reprise.config.settings import Settings
from reprise.drafters.base import Draft, DraftQuery, SequenceStart
from reprise.engine.batch.batch import Device
from reprise.engine.interface.events import Finished
from reprise.engine.interface.models import HeadKind
from reprise.engine.interface.request import DraftChoice, GenerationRequest
from reprise.engine.kv_cache.probes import find_sharing
from reprise.engine.memory.budget import make_memory_budget
from reprise.engine.memory.estimate import measure
from reprise.engine.model.loading import LoadedModel, describe
from reprise.engine.speculative.draft_model.forecast import DraftForecast
from reprise.engine.speculative.heads import eagle
from reprise.engine.speculative.heads.assistant import AssistantHead
from reprise.engine.speculative.heads.dflash import DFlashConfig, DFlashHead
from reprise.engine.speculative.heads.head import find_ends
from reprise.engine.speculative.heads.head_drafter import NamedHead
from reprise.engine.speculative.heads.mtp import FAMILIES, MTPHead
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import scored
from tests.engine.driven import Driven
from tests.engine.memory.conftest import ROOMY
from tests.engine.speculative.heads.test_assistant import LARGE, assistant_config
from tests.engine.support import SIZES, VOCAB_SIZE, config_of, make_model, make_tokenizer, prompt_of, request
from tests.tiny_models import tiny_config

MAX_RATIO = 1.5
NEVER_END = ((2, -100.0),)
KINDS: list[dict[str, Any]] = [
    {},
    {"temperature": 1.0},
    {"temperature": 0.9, "top_p": 0.9},
    {"temperature": 0.9, "top_k": 40, "min_p": 0.02},
    {"temperature": 0.9, "top_k": 3000, "top_p": 0.95, "presence_penalty": 0.3, "repetition_penalty": 1.1},
]
# At least two layers of each kind, and large state.
LAYERS: dict[str, dict[str, Any]] = {
    "gemma3_text": {"sliding_window": 64, "sliding_window_pattern": 2},
    "gpt_oss": {"sliding_window": 200},
    "gemma4_text": {"sliding_window": 64, "global_head_dim": 64, "num_global_key_value_heads": 4, **LARGE},
    "lfm2": {"full_attn_idxs": [0, 2]},
    "qwen3_next": {
        "linear_num_value_heads": 8, "linear_num_key_heads": 4,
        "linear_key_head_dim": 64, "linear_value_head_dim": 64,
    },
    "mamba2": {"num_heads": 16, "head_dim": 64, "state_size": 64, "intermediate_size": 1024},
    "falcon_h1": {"mamba_d_ssm": 512, "mamba_d_state": 64, "mamba_n_heads": 8, "mamba_d_head": 64},
}  # fmt: skip
FULL = ["llama", "qwen3"]
WINDOWED = ["gemma3_text", "gpt_oss"]
RECURRENT = ["lfm2", "qwen3_next", "mamba2", "falcon_h1"]
QUANTIZABLE = [*FULL, "gemma3_text", "qwen3_next"]


class Guesser:
    """A drafter that always drafts as much as it may, and is nearly always wrong."""

    name = "suffix"

    def open(self, start: SequenceStart) -> None:
        """Need nothing."""

    def propose(self, query: DraftQuery) -> Draft:
        """Draft as many tokens as may be asked for."""
        return Draft([7] * query.limit, self.name, 0, 0.9)

    def observe(self, seq: int, tokens: Sequence[int]) -> None:
        """Learn nothing."""

    def note_verified(self, seq: int, num_verified: int, num_accepted: int) -> None:
        """Learn nothing."""

    def close(self, seq: int) -> None:
        """Hold nothing."""


def make_large(name: str, **changes: Any) -> LoadedModel:
    """Make a random model whose caches take far more than its weights."""
    changes = {"num_hidden_layers": 4, "num_attention_heads": 4, "head_dim": 64} | changes
    changes |= LAYERS.get(name, {})
    model = make_model(name, **changes)
    info = describe(model, config_of(name) | changes, name, VOCAB_SIZE, None, 0.0)
    return LoadedModel(model, make_tokenizer(), replace(info, context_tokens=4096))


def run(
    loaded: LoadedModel,
    asked: Sequence[GenerationRequest],
    is_drafting: bool,
    draft: LoadedModel | None = None,
    head: NamedHead | None = None,
    **settings: Any,
) -> tuple[Driven, int, int]:
    """Run requests; return the engine, the largest estimate, and the peak of MLX, weights not counted."""
    gc.collect()
    before = mx.get_active_memory()
    sources = DraftSources({"suffix": Guesser()}, scored(1.0))
    make_sources = (lambda _: sources) if is_drafting else None
    driven = Driven(replace(loaded), make_sources, draft, lambda _: head, **settings)
    mx.clear_cache()
    mx.reset_peak_memory()
    for one in asked:
        driven.ask(one)
    largest = 0
    budget = driven.worker.queue.memory_budget
    while driven.worker.has_work:
        driven.worker.step()
        largest = max(largest, budget.used_bytes + sum(cache.num_bytes for cache in budget.prefixes))
    for one in asked:
        assert len(driven.answers[one.id].finished().tokens) == one.max_tokens
    return driven, largest, mx.get_peak_memory() - before


def bytes_alone(loaded: LoadedModel, num_tokens: int, **settings: Any) -> int:
    """Return the least memory, besides weights, in which a sequence of that length may run."""
    batched = find_sharing(loaded.model, settings.get("kv_bits"))
    budget = make_memory_budget(replace(loaded), Settings(memory_bytes=ROOMY, **settings), batched, None)
    return budget.bytes_alone(num_tokens)


def random_model(rng: random.Random, names: Sequence[str], **changes: Any) -> tuple[str, LoadedModel]:
    """Make one of these models, with random sizes."""
    name = rng.choice(names)
    sizes = {
        "num_hidden_layers": rng.choice([4, 6]),
        "num_attention_heads": 8,
        "num_key_value_heads": rng.choice([4, 8]),
        "head_dim": rng.choice([64, 128]),
    }
    return name, make_large(name, **sizes | changes)


def random_settings(rng: random.Random, name: str) -> dict[str, Any]:
    """Choose settings that change what memory is needed."""
    return {
        "max_rows": rng.choice([2, 4, 6]),
        "prefill_chunk_tokens": rng.choice([32, 128, 256]),
        "num_draft_tokens": rng.choice([2, 7, 15]),
        "kv_bits": rng.choice([None, None, 4, 8]) if name in QUANTIZABLE else None,
    }


def random_requests(
    rng: random.Random, lengths: tuple[int, int], num_prefixes: int
) -> list[GenerationRequest]:
    """Make requests whose prompts have so many tokens. Of more than num_prefixes, some share a beginning."""
    asked = []
    for i in range(rng.randint(3, 6)):
        kind = rng.choice(KINDS) | {"logit_bias": NEVER_END}
        prompt = prompt_of(rng.randint(*lengths), rng.randrange(num_prefixes))
        one = request(prompt, name=str(i), max_tokens=rng.randint(5, 30), **kind)
        asked.append(replace(one, top_logprobs=rng.choice([None, None, 5])))
    return asked


def check_random_case(seed: int, names: Sequence[str]) -> None:
    """Run one random configuration of one of these models in a random amount of memory."""
    rng = random.Random(seed)
    name, loaded = random_model(rng, names)
    settings = random_settings(rng, name) | {"prefix_cache_bytes": rng.choice([0, 2**20, 2**30])}
    asked = random_requests(rng, (150, 450), 4)
    needed = bytes_alone(loaded, max(len(one.prompt) + one.max_tokens for one in asked), **settings)
    room = int(needed * rng.uniform(1.0, 1.5))
    is_drafting = rng.random() < 0.5
    _, _, taken = run(loaded, asked, is_drafting, memory_bytes=loaded.info.weight_bytes + room, **settings)
    assert taken <= room


def check_random_estimate(seed: int, names: Sequence[str]) -> None:
    """Compare the estimate of a random configuration, in ample memory, with what MLX takes.

    Layers are many, so that what one of them takes for a moment does not count.
    """
    rng = random.Random(seed)
    name, loaded = random_model(rng, names, num_hidden_layers=8, num_key_value_heads=4, head_dim=64)
    settings = random_settings(rng, name) | {"prefix_cache_bytes": 0, "max_stall_ms": 10_000.0}
    lengths = rng.choice([(150, 450), (700, 1500)])
    asked = random_requests(rng, lengths, 100)
    _, estimate, taken = run(loaded, asked, rng.random() < 0.5, memory_bytes=ROOMY, **settings)
    assert estimate <= MAX_RATIO * taken


@pytest.mark.parametrize(
    ("seed", "names"),
    [
        *(pytest.param(seed, FULL, marks=pytest.mark.slow) for seed in (25, 39)),
        (106, WINDOWED),
        (108, RECURRENT),
    ],
)
def test_mlx_takes_at_most_the_memory_it_is_given(seed: int, names: Sequence[str]) -> None:
    check_random_case(seed, names)


@pytest.mark.parametrize("name", ["llama", "gemma3_text", "lfm2"])
def test_rows_that_await_prompts_hold_nothing_that_has_left(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("reprise.engine.generating.worker.MAX_TOGETHER_S", 1e9)
    driven = Driven(make_large(name), prefill_chunk_tokens=32, prefix_cache_bytes=0)
    driven.ask(request(prompt_of(700), name="leaves", max_tokens=500, logit_bias=NEVER_END))
    driven.step_until(lambda: len(driven.worker.members) == 1)
    driven.ask(request(prompt_of(260, 1), name="joins"))
    driven.step_until(lambda: bool(driven.worker.prefilling))
    driven.ask(request(prompt_of(255, 2), name="is awaited"))
    driven.step_until(lambda: len(driven.worker.members) == 2)
    driven.worker.cancel("leaves")
    driven.worker.step()
    assert [s.request.id for s in driven.worker.members] == ["joins"]
    assert driven.worker.prefilling
    assert not driven.worker.device.step
    mx.synchronize()
    held = mx.get_active_memory()
    rows = driven.worker.rows
    mx.eval([rows.kv_slice(0, 0, 1), rows.state(0)])
    assert mx.get_active_memory() >= held
    driven.finish()


def test_a_draft_model_is_within_the_memory_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows, the texts that it reads, and what is kept of them."""
    monkeypatch.setattr(Device, "lap", lambda *_: None)
    monkeypatch.setattr(DraftForecast, "rate", 0.9)
    loaded = make_large("qwen3", num_key_value_heads=4)
    draft = make_large("llama", num_key_value_heads=4)
    settings = {"draft_type": "draft-model", "draft_model": "the one that is given", "num_draft_tokens": 7}
    settings |= {"max_rows": 2, "prefix_cache_bytes": 2**22, "prefill_chunk_tokens": 128}
    asked = [
        request(prompt_of(length, i % 2), name=str(i), max_tokens=30, logit_bias=NEVER_END)
        for i, length in enumerate((320, 200, 250))
    ]
    weight_bytes = loaded.info.weight_bytes + draft.info.weight_bytes
    _, estimate, _ = run(loaded, asked, True, draft, memory_bytes=ROOMY, **settings)
    driven, _, taken = run(loaded, asked, True, draft, memory_bytes=weight_bytes + estimate, **settings)
    ends = [driven.answers[one.id].events[-1] for one in asked]
    assert sum(isinstance(end, Finished) and end.usage.drafting.num_drafted > 0 for end in ends) >= 2
    assert taken <= estimate


@pytest.mark.parametrize(
    "name", [pytest.param("mtp", marks=pytest.mark.slow), "eagle3", "dflash", "assistant"]
)
def test_a_head_is_within_the_memory_too(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rows, and the states that prompts and rows keep until it has read them."""
    monkeypatch.setattr(Device, "lap", lambda *_: None)
    monkeypatch.setattr(DraftForecast, "rate", 0.9)
    loaded = make_large("gemma4_text" if name == "assistant" else "qwen3", num_key_value_heads=4)
    kind: HeadKind = "dflash" if name == "dflash" else "eagle3" if name == "eagle3" else "mtp"
    sizes = SIZES | {"num_attention_heads": 4, "num_key_value_heads": 4, "head_dim": 64}
    config, ends = tiny_config("llama", **sizes), find_ends(loaded.model)
    head: Any = MTPHead(FAMILIES["llama"], config, ends, 7)
    if name == "assistant":
        of_head = {"vocab_size": VOCAB_SIZE, "head_dim": 64, "global_head_dim": 64, "sliding_window": 64}
        head = AssistantHead(assistant_config(True, config["hidden_size"], **of_head), ends)
    if name == "dflash":
        hidden = config["hidden_size"]
        wide = DFlashConfig(
            hidden, 128, 4, 4, 64, 1e-6, 1e4, None, 2048, False, 8, 3, (0, 1, 2), (None, 64, None, 64)
        )
        # DFlash 2, which takes the most.
        wide = replace(wide, conv_width=3, conv_group=8, candidates=20, rank=16, vocab_size=VOCAB_SIZE)
        head = DFlashHead(wide, ends)
    if name == "eagle3":
        deep = config | {"num_hidden_layers": 3, "draft_vocab_size": None}
        deep["eagle_config"] = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
        head = eagle.EagleHead(eagle.read_config(deep, 3), ends, has_output=True)
    mx.eval(head.parameters())
    settings = {"num_draft_tokens": 7, "max_rows": 2, "prefix_cache_bytes": 2**22}
    settings |= {"prefill_chunk_tokens": 128, "draft_type": "auto", "gate": "off"}
    asked = [
        request(prompt_of(length, i), name=str(i), max_tokens=30, logit_bias=NEVER_END)
        for i, length in enumerate((320, 200, 250))
    ]
    asked = [replace(one, draft=DraftChoice(kind)) for one in asked]
    weight_bytes = loaded.info.weight_bytes + sum(
        array.nbytes for _, array in tree_flatten(head.parameters())
    )
    named = NamedHead(head, kind)
    _, estimate, _ = run(loaded, asked, True, None, named, memory_bytes=ROOMY, **settings)
    driven, _, taken = run(loaded, asked, True, None, named, memory_bytes=weight_bytes + estimate, **settings)
    ends_of = [driven.answers[one.id].events[-1] for one in asked]
    assert sum(isinstance(end, Finished) and end.usage.drafting.num_drafted > 0 for end in ends_of) >= 2
    assert taken <= estimate


def test_a_borrowed_prefix_does_not_copy_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = make_large("llama", num_hidden_layers=8, num_key_value_heads=4)
    # However fast the machine is, no prompt is complete after its first step beside rows.
    driven = Driven(replace(loaded), memory_bytes=ROOMY, prefix_cache_bytes=0, max_stall_ms=0)
    for i in range(4):
        driven.ask(request(prompt_of(200, i), name=str(i), max_tokens=300, logit_bias=NEVER_END))
    driven.step_until(lambda: len(driven.worker.members) == 4)
    driven.worker.step()
    gc.collect()
    held = mx.get_active_memory()
    row_bytes = 512 * measure(loaded.model).token_bytes
    # MLX waits after nearly every operation, as in tight memory.
    mx.set_memory_limit(0)
    monkeypatch.setattr(mx, "set_memory_limit", lambda _: None)
    mx.reset_peak_memory()
    sharing = [*prompt_of(190, 2), *prompt_of(100, 9)]
    driven.ask(request(sharing, name="sharing", max_tokens=2, logit_bias=NEVER_END))
    driven.worker.step()
    assert driven.worker.prefilling[0].prefill.num_computed >= 190
    # The prompt's own buffers, and a layer of the rows'; not the buffers of four rows.
    assert mx.get_peak_memory() - held <= 1.5 * row_bytes


@pytest.mark.slow
@pytest.mark.parametrize("names", [FULL, WINDOWED, RECURRENT], ids=["full", "windowed", "recurrent"])
@pytest.mark.parametrize("seed", range(100, 130))
def test_mlx_takes_at_most_the_memory_it_is_given_in_many_configurations(
    seed: int, names: Sequence[str]
) -> None:
    check_random_case(seed, names)


@pytest.mark.parametrize(
    ("seed", "names", "window"),
    [
        (200, WINDOWED, 64),
        *(pytest.param(seed, FULL, None, marks=pytest.mark.slow) for seed in (*range(100, 106), 200)),
        *(pytest.param(seed, WINDOWED, 512, marks=pytest.mark.slow) for seed in range(100, 106)),
        *(pytest.param(seed, WINDOWED, 64, marks=pytest.mark.slow) for seed in range(100, 106)),
        *(pytest.param(seed, RECURRENT, None, marks=pytest.mark.slow) for seed in range(100, 106)),
    ],
)
def test_the_estimate_is_not_far_above_what_mlx_takes(
    monkeypatch: pytest.MonkeyPatch, seed: int, names: Sequence[str], window: int | None
) -> None:
    for name in WINDOWED if window else ():
        monkeypatch.setitem(LAYERS[name], "sliding_window", window)
    check_random_estimate(seed, names)
