"""Log probabilities equal the plain loop's, with and without drafts, alone and in a batch."""

import dataclasses
import itertools
import math

import mlx.core as mx
import pytest
from mlx_lm.models.cache import make_prompt_cache

from reprise.engine.interface.events import Delta, TokenLogprob
from reprise.engine.interface.request import GenerationRequest
from reprise.engine.memory.prefill_plan import PROMPT_LOGPROBS_CHUNK
from tests.combinations import spread
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.speculative.test_drafting import Scripted, sources
from tests.engine.support import Answer, ask, make_loaded, make_tokenizer, oracle, prompt_of, request

NAMES = ["llama", "gemma3_text"]


def entries(answer: Answer) -> list[TokenLogprob]:
    if not answer.events or not answer.events[-1].is_terminal:
        answer.finished()
    return sent_entries(answer)


def sent_entries(answer: Answer) -> list[TokenLogprob]:
    return [entry for event in answer.events if isinstance(event, Delta) for entry in event.logprobs]


def prompt_entries(answer: Answer) -> list[TokenLogprob]:
    """Return the entries of the prompt's deltas, which must be the first and have no text."""
    deltas = [event for event in answer.events if isinstance(event, Delta)]
    of_prompt = list(itertools.takewhile(lambda delta: delta.is_prompt, deltas))
    assert not any(delta.is_prompt for delta in deltas[len(of_prompt) :])
    assert "".join(delta.text for delta in of_prompt) == ""
    return [entry for delta in of_prompt for entry in delta.logprobs]


def asked(temperature: float) -> list[GenerationRequest]:
    """Make requests with top_logprobs of 3, 0, None and 5."""
    return [
        dataclasses.replace(
            request(prompt_of(8 + 9 * i, i), 24, name=str(i), temperature=temperature, seed=i),
            top_logprobs=num,
        )
        for i, num in enumerate((3, 0, None, 5))
    ]


def true_logprobs(name: str, tokens: list[int], num_prompt: int) -> list[mx.array]:
    """Return (vocabulary,) log probabilities for each token from num_prompt on, fed one by one."""
    loaded = make_loaded(name)
    caches = make_prompt_cache(loaded.model)
    fed, found = tokens[:num_prompt], []
    for at in range(num_prompt, len(tokens)):
        logits = loaded.model(mx.array([fed]), cache=caches)[0, -1].astype(mx.float32)
        found.append(logits - mx.logsumexp(logits))
        fed = [tokens[at]]
    return found


@pytest.mark.parametrize(("name", "temperature"), spread(NAMES, [0.0, 0.8]))
def test_logprobs_equal_the_plain_loops_with_and_without_drafts(
    name: str, temperature: float, start_engine: StartEngine
) -> None:
    requests = asked(temperature)
    plain_engine = start_engine(name)
    plain = [entries(ask(plain_engine, one)) for one in requests]
    assert plain[2] == []
    for one, found in zip(requests, plain, strict=True):
        if one.top_logprobs is None:
            continue
        answer = oracle(make_loaded(name), one)
        assert [entry.token for entry in found] == answer
        truth = true_logprobs(name, [*one.prompt, *answer], len(one.prompt))
        for entry, line in zip(found, truth, strict=True):
            # mlx-lm's own window cache rounds differently from ours.
            likeliest = sorted(line.tolist())[::-1][: one.top_logprobs]
            assert entry.logprob == pytest.approx(line[entry.token].item(), abs=1e-4)
            assert [value for _, _, value in entry.top] == pytest.approx(likeliest, abs=1e-4)
            assert all(value == pytest.approx(line[token].item(), abs=1e-4) for token, _, value in entry.top)
    answers = {one.prompt: oracle(make_loaded(name), one) for one in requests}
    for chance in (1.0, 0.6):
        engine = start_engine(name, make_sources=sources(Scripted(answers, chance)), draft_type="suffix")
        together = [ask(engine, one) for one in requests]
        assert [entries(one) for one in together] == plain
        assert [entries(ask(engine, one)) for one in requests] == plain


@pytest.mark.parametrize("chunk", [5, 512])
def test_prompt_logprobs_come_first_whatever_is_cached(chunk: int, start_engine: StartEngine) -> None:
    prompt = prompt_of(40)
    engine = start_engine("llama", prefill_chunk_tokens=chunk)
    one = dataclasses.replace(request(prompt, 4), top_logprobs=2, prompt_logprobs=True)
    truth = true_logprobs("llama", list(prompt), 1)
    for _ in range(2):
        answer = ask(engine, one)
        finished = answer.finished()
        first, *others = prompt_entries(answer)
        assert [entry.token for entry in (first, *others)] == list(prompt)
        assert first.logprob is None
        for entry, line in zip(others, truth, strict=True):
            assert entry.logprob is not None
            assert math.isclose(entry.logprob, line[entry.token].item(), abs_tol=1e-5)
            assert len(entry.top) == 2
        assert len(entries(answer)) == len(prompt) + finished.usage.num_completion_tokens


def test_prompt_logprobs_are_sent_once_even_if_the_first_step_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    driven = Driven(loaded_once("llama"), prefix_cache_bytes=0)
    one = dataclasses.replace(request(prompt_of(12)), top_logprobs=0, prompt_logprobs=True)
    # Learns what prompts cost, so that rows wait for each other.
    for each in (one, request(prompt_of(12, 1))):
        driven.ask(dataclasses.replace(each, id="earlier"))
        driven.finish()
    answer = driven.ask(one)
    other = driven.ask(request(prompt_of(12, 1), name="other"))
    driven.step_until(lambda: len(driven.worker.members) == 2)
    sent = [entry.token for entry in sent_entries(answer)]
    assert sent == list(one.prompt)

    def fail(*_: object) -> mx.array:
        raise RuntimeError("out of luck")

    # Both start over from their prompts.
    with monkeypatch.context() as patch:
        patch.setattr(type(driven.worker.rows), "forward", fail)
        driven.worker.step()
    assert driven.worker.members == []
    driven.step_until(lambda: not driven.worker.has_work)
    assert [entry.token for entry in entries(answer)] == [*one.prompt, *expected_tokens("llama", one)]
    other.finished()


def test_prompt_logprobs_are_sent_with_each_chunk() -> None:
    driven = Driven(loaded_once("llama"), prefill_chunk_tokens=512)
    one = dataclasses.replace(request(prompt_of(300), 2), top_logprobs=1, prompt_logprobs=True)
    answer, num_sent = driven.ask(one), [0]
    while driven.worker.has_work:
        driven.worker.step()
        num_sent.append(len(prompt_entries(answer)))
    in_one_step = max(later - sooner for sooner, later in itertools.pairwise(num_sent))
    assert in_one_step <= PROMPT_LOGPROBS_CHUNK + 1
    assert [entry.token for entry in prompt_entries(answer)] == list(one.prompt)
    answer.finished()


@pytest.mark.parametrize("length", [1, 2, 40])
def test_prompt_logprobs_are_sent_once_if_the_prompt_starts_over(
    length: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    driven = Driven(loaded_once("llama"), prefix_cache_bytes=0, prefill_chunk_tokens=7)
    one = dataclasses.replace(request(prompt_of(length), 3), top_logprobs=2, prompt_logprobs=True)
    undisturbed = Driven(loaded_once("llama"), prefix_cache_bytes=0, prefill_chunk_tokens=7)
    expected = undisturbed.ask(one)
    undisturbed.finish()
    other = driven.ask(request(prompt_of(9, 1), 12, name="other"))
    driven.step_until(lambda: len(driven.worker.members) == 1)
    answer = driven.ask(one)
    driven.step_until(lambda: len(prompt_entries(answer)) >= min(length, 10))

    def fail(*_: object) -> mx.array:
        raise RuntimeError("out of luck")

    with monkeypatch.context() as patch:
        patch.setattr(type(driven.worker.rows), "forward", fail)
        patch.setattr(type(driven.worker.rows), "forward_ragged", fail)
        driven.worker.step()
    assert driven.worker.members == []
    driven.finish()
    assert entries(answer) == entries(expected)
    assert [entry.token for entry in prompt_entries(answer)] == list(one.prompt)
    other.end()


def test_token_bytes_join_to_the_text() -> None:
    tokenizer = make_tokenizer()
    text = 'naïve ✓ 🙂\n    return {"a": 1}'
    ids = tokenizer.encode_answer(text)
    assert b"".join(tokenizer.piece(token) for token in ids) == text.encode()
    assert len(ids) > len(text.split())


@pytest.mark.parametrize("length", [1, 3])
def test_tokens_of_a_stop_string_have_no_entries(start_engine: StartEngine, length: int) -> None:
    plain = oracle(make_loaded("llama"), request(prompt_of(9), 12))
    stop = make_tokenizer().decode(plain[5 : 5 + length])
    one = dataclasses.replace(request(prompt_of(9), 12, stop=(stop,)), top_logprobs=0)
    answer = ask(start_engine("llama"), one)
    found = entries(answer)
    assert [entry.token for entry in found] == plain[: len(found)]
    assert b"".join(entry.token_bytes for entry in found).decode() == answer.text
    assert len(found) < len(plain)


def test_tokens_that_might_have_begun_a_stop_string_keep_their_entries(start_engine: StartEngine) -> None:
    plain = oracle(make_loaded("llama"), request(prompt_of(9), 12))
    text = make_tokenizer().decode(plain)
    one = dataclasses.replace(request(prompt_of(9), 12, stop=(text + "!",)), top_logprobs=0)
    answer = ask(start_engine("llama"), one)
    assert [entry.token for entry in entries(answer)] == plain
    assert answer.text == text


@pytest.mark.parametrize(
    ("stop", "text", "reason"), [((), "\ufffd" * 3, "length"), (("\ufffd" * 3,), "", "stop")]
)
def test_an_answer_that_ends_within_a_character_keeps_it(
    stop: tuple[str, ...], text: str, reason: str
) -> None:
    tokenizer = make_tokenizer()
    (lead,) = (token for token in range(tokenizer.vocab_size) if tokenizer.piece(token) == b"\xe4")
    driven = Driven(loaded_once("llama"))
    asked = request(prompt_of(9), 3, stop=stop, logit_bias=((lead, 100.0),))
    answer = driven.ask(dataclasses.replace(asked, top_logprobs=0))
    driven.finish()
    finished = answer.finished()
    assert (answer.text, finished.reason, finished.stop) == (text, reason, "".join(stop) or None)
    assert [entry.token_bytes for entry in sent_entries(answer)] == [b"\xe4"] * len(text)
