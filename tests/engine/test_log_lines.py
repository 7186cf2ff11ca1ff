"""Every log line about a request names its id."""

from tests.engine.faults.test_faults import POISON, Poisoned
from tests.engine.speculative.test_drafting import answers_of, raising, requests, run, sources
from tests.engine.support import ask, prompt_of, request


def test_a_request_that_fails(start_engine, caplog):
    engine = start_engine(wrap=Poisoned)
    ask(engine, request([*prompt_of(8), POISON], name="order-66")).failed()
    assert _lines(caplog)
    assert all("order-66" in line for line in _lines(caplog))


def test_a_sink_that_raises(start_engine, caplog):
    def broken(_):
        raise ValueError("sink")

    engine = start_engine()
    engine.submit(request(prompt_of(8), name="order-66"), broken)
    ask(engine, request(prompt_of(9), name="next")).finished()
    assert _lines(caplog)
    assert all("order-66" in line for line in _lines(caplog))


def test_a_drafter_that_raises(start_engine, caplog):
    asked = requests(0.0)[:2]
    drafter = raising(answers_of("llama", 0.0), "propose")
    engine = start_engine("llama", make_sources=sources(drafter), draft_type="suffix")
    run(engine, asked)
    assert _lines(caplog)
    assert all(any(one.id in line for one in asked) for line in _lines(caplog))


def test_a_prompt_that_is_read_for_long_and_only_that(start_engine, caplog, monkeypatch):
    caplog.set_level("INFO", "reprise.engine")
    engine = start_engine(prefill_chunk_tokens=8)
    ask(engine, request(prompt_of(40), name="quick")).finished()
    monkeypatch.setattr("reprise.engine.batch.sequence.LOG_PROMPT_EVERY_S", 0.0)
    ask(engine, request([1, *prompt_of(39)], name="order-66")).finished()
    lines = [line for line in _lines(caplog) if "reading the prompt" in line]
    assert all("order-66" in line for line in lines)
    assert "order-66: reading the prompt, 8 of 40 tokens (20 %) after 0 s" in lines


def _lines(caplog):
    return [record.getMessage() for record in caplog.records if record.name == "reprise.engine"]
