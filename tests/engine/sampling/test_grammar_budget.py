"""A grammar that takes too much computation ends its own request; real grammars stay far below the limits."""

import dataclasses
import json
import random
from collections.abc import Callable

import pytest

from reprise.engine.interface.errors import GrammarCostError
from reprise.engine.interface.request import DraftChoice, Grammar
from reprise.engine.sampling import grammar as grammar_module
from reprise.engine.sampling.grammar import (
    MAX_MEAN_S,
    MAX_MEAN_STEPS,
    MAX_TOKEN_S,
    WINDOW_TOKENS,
    Grammars,
    Matcher,
    Stopwatch,
)
from tests.end_to_end.answers.test_structured import SCHEMAS
from tests.engine.conftest import StartEngine
from tests.engine.driven import Driven, expected_tokens, loaded_once
from tests.engine.sampling.test_grammar import PAIR, PERSON, WORDS
from tests.engine.support import ask, make_tokenizer, prompt_of, request

AMBIGUOUS = Grammar("lark", 'start: s\ns: s s | "a"\n')
VERY_AMBIGUOUS = Grammar(
    "lark",
    "start: s0\n"
    + "".join(
        f's{i}: {" | ".join(f"s{j} s{k}" for j in range(3) for k in range(3))} | "a"\n' for i in range(3)
    ),
)
ANY_TEXT = Grammar("lark", "start: /[a-z]*/")
SUMS = Grammar("lark", 'start: sum\nsum: sum "+" sum | sum "*" sum | "(" sum ")" | NUMBER\nNUMBER: /[0-9]+/')
QUERIES = Grammar(
    "lark",
    'start: "SELECT " columns " FROM " NAME where? ";"\n'
    'columns: "*" | column (", " column)*\n'
    'column: NAME | NAME "(" NAME ")" (" AS " NAME)?\n'
    'where: " WHERE " condition\n'
    'condition: comparison ((" AND " | " OR ") comparison)*\n'
    'comparison: NAME " " OPERATOR " " value | "(" condition ")"\n'
    "value: NAME | /[0-9]+/ | /'[^']*'/\n"
    'OPERATOR: "=" | "<" | ">" | "<=" | ">=" | "<>"\n'
    "NAME: /[a-z_]+/\n",
)
TOOL = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "mode": {"enum": ["read", "write", "append"]},
        "lines": {"type": "array", "items": {"type": "integer", "minimum": 0}},
    },
    "required": ["path"],
}
CALLS = " | ".join(f"call_{i}" for i in range(64))
TOOLS = Grammar(
    "lark",
    f"start: TEXT (call TEXT)*\nTEXT: /(.|\\n)*/\ncall: <[7]> ({CALLS}) <[8]>\n"
    + "".join(
        f"call_{i}: {json.dumps(json.dumps({'name': f'tool_{i}'}))} %json {json.dumps(TOOL)}\n"
        for i in range(64)
    ),
)
REAL = {
    "person": PERSON,
    "words": WORDS,
    "pair": PAIR,
    "sums": SUMS,
    "queries": QUERIES,
    "64 tools": TOOLS,
    "any object": Grammar("json_schema", '{"type": "object"}'),
    "long enum": Grammar("json_schema", json.dumps({"enum": [f"entry number {i}" for i in range(1000)]})),
    **{name: Grammar("json_schema", json.dumps(schema)) for name, schema in SCHEMAS.items()},
}
MANY_PROPERTIES = json.dumps(
    {"type": "object", "properties": {f"field_{i}": {"type": "string"} for i in range(500)}}
)
LARGEST = {
    "500 properties": Grammar("json_schema", MANY_PROPERTIES),
    "500 properties in Lark": Grammar("lark", f'start: "x" %json {MANY_PROPERTIES}'),
}


class Clock:
    """A clock on which the measurement number n takes cost(n) seconds."""

    def __init__(self, cost: Callable[[int], float]) -> None:
        self._cost = cost
        self._num_reads = 0
        self._now_s = 0.0

    def __call__(self) -> float:
        self._now_s += self._cost(self._num_reads // 2) if self._num_reads % 2 else 0.0
        self._num_reads += 1
        return self._now_s


def make_matcher(grammar: Grammar, cost: Callable[[int], float], plain_s: float = 0.0) -> Matcher:
    grammars = Grammars(make_tokenizer(), Stopwatch(Clock(cost)))
    grammars.plain_s = plain_s
    return grammars.matcher(grammar)


def walk(matcher: Matcher, num_tokens: int, seed: int = 0, drafted: tuple[int, ...] = ()) -> int:
    """Commit random tokens that the grammar allows; return how many there were before the answer ended."""
    rng, eos_ids = random.Random(seed), make_tokenizer().eos_ids
    for num_committed in range(num_tokens):
        mask = matcher.masks(drafted)[0]
        allowed = [token for token in mask.nonzero()[0].tolist() if token not in eos_ids]
        if not allowed:
            return num_committed
        matcher.commit([rng.choice(allowed)])
    return num_tokens


@pytest.mark.parametrize("draft", ["none", "auto"])
def test_an_ambiguous_grammar_ends_its_own_request_and_no_other(draft: str) -> None:
    driven = Driven(loaded_once("llama"))
    # As measured: the time for a token grows with the square of the answer's length, or faster.
    driven.grammars = Grammars(driven.loaded.tokenizer, Stopwatch(Clock(lambda n: 4e-7 * n * n)))
    no_end = tuple((token, -100.0) for token in driven.loaded.tokenizer.eos_ids)
    endless = dataclasses.replace(
        request(prompt_of(8), 800, name="endless", logit_bias=no_end),
        grammar=AMBIGUOUS,
        draft=DraftChoice(draft),  # type: ignore[arg-type]
    )
    neighbor = request(prompt_of(11, 3), 300, name="neighbor")
    ended, answered = driven.ask(endless), driven.ask(neighbor)
    driven.finish()
    failed = ended.failed()
    assert failed.kind == "grammar"
    assert 30 < failed.usage.num_completion_tokens < 200
    assert "ms" in failed.message
    assert list(answered.finished().tokens) == expected_tokens("llama", neighbor)


def test_llguidance_stops_an_ambiguous_grammar_before_a_token_takes_long() -> None:
    """No time is measured here: the limit on items ends the answer."""
    matcher = make_matcher(VERY_AMBIGUOUS, lambda _: 0.0)
    with pytest.raises(GrammarCostError, match="max is 2500"):
        walk(matcher, 100)


def test_a_draft_is_cut_before_it_reaches_a_limit_and_ends_no_answer() -> None:
    matcher = make_matcher(VERY_AMBIGUOUS, lambda _: 0.0)
    (token,) = make_tokenizer().encode_answer("a")
    num_masks = len(matcher.masks((token,) * 100))
    assert 10 < num_masks < 100
    matcher.commit((token,) * (num_masks - 1))
    with pytest.raises(GrammarCostError, match="max is 2500"):
        matcher.commit([token])


def test_one_slow_token_ends_the_answer() -> None:
    half_s = MAX_TOKEN_S / 2
    assert walk(make_matcher(ANY_TEXT, lambda n: 0.99 * half_s if n < 2 else 0.0), 100) == 100
    matcher = make_matcher(ANY_TEXT, lambda n: 1.01 * half_s if n < 2 else 0.0)
    matcher.commit([matcher.masks()[0].argmax()])
    with pytest.raises(GrammarCostError, match=r"took 252 ms .* at most 250 ms"):
        matcher.masks()


def test_many_slow_tokens_end_the_answer() -> None:
    half_s = MAX_MEAN_S / 2
    assert walk(make_matcher(ANY_TEXT, lambda _: 0.99 * half_s), 200) == 200
    with pytest.raises(GrammarCostError, match="for the last 32 tokens; at most 640 ms for 32 tokens"):
        walk(make_matcher(ANY_TEXT, lambda _: 1.01 * half_s), 200)
    # A short answer gets the time of a whole window.
    assert walk(make_matcher(ANY_TEXT, lambda _: 2 * half_s), WINDOW_TOKENS // 2) == WINDOW_TOKENS // 2


def test_no_draft_makes_an_answer_fail() -> None:
    cost_s = 0.99 * MAX_MEAN_S / 2
    matcher = make_matcher(ANY_TEXT, lambda _: cost_s)
    (token,) = make_tokenizer().encode_answer("a")
    draft = (token,) * 50
    masks = matcher.masks(draft)
    assert 1 < len(masks) <= MAX_MEAN_S / cost_s + 1
    assert walk(matcher, 200, drafted=draft) == 200


def test_a_slow_grammar_gets_no_drafts() -> None:
    (token,) = make_tokenizer().encode_answer("a")
    only_a = Grammar("lark", 'start: "a"{500}')
    fast, slow = make_matcher(only_a, lambda _: 1e-4), make_matcher(only_a, lambda _: 5e-3)
    for matcher in (fast, slow):
        walk(matcher, WINDOW_TOKENS)
    assert (fast.count_allowed([token]), bool(fast.forced_tokens())) == (1, True)
    assert (slow.count_allowed([token]), slow.forced_tokens()) == (0, [])


@pytest.mark.parametrize(("plain_s", "may_draft"), [(0.001, 0), (0.05, 0), (0.2, 1), (1.0, 1)])
def test_where_a_step_takes_long_a_grammar_may_take_a_share_of_it(plain_s: float, may_draft: int) -> None:
    (token,) = make_tokenizer().encode_answer("a")
    only_a = Grammar("lark", 'start: "a"{500}')
    # 8 ms a token: the largest schemas take 5 to 14.
    matcher = make_matcher(only_a, lambda _: 4e-3, plain_s)
    walk(matcher, WINDOW_TOKENS)
    assert matcher.count_allowed([token]) == may_draft
    # A fifth of a step is not worth ending an answer for.
    slow = make_matcher(only_a, lambda _: 0.49 * MAX_MEAN_STEPS * max(0.1, plain_s), plain_s)
    assert walk(slow, 2 * WINDOW_TOKENS) == 2 * WINDOW_TOKENS


@pytest.mark.parametrize("grammar", REAL.values(), ids=REAL)
def test_real_grammars_need_less_than_a_tenth_of_the_limits(
    grammar: Grammar, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("MAX_ITEMS", "MAX_LARK_ITEMS", "MAX_STEP_ITEMS", "MAX_STEP_FUEL", "MAX_LEXER_STATES"):
        monkeypatch.setattr(grammar_module, name, getattr(grammar_module, name) // 10)
    grammars = Grammars(make_tokenizer(), Stopwatch(lambda: 0.0))
    for seed in range(2):
        assert walk(grammars.matcher(grammar), 200, seed)


@pytest.mark.parametrize("grammar", LARGEST.values(), ids=LARGEST)
def test_the_largest_schemas_that_the_server_accepts_are_within_the_limits(grammar: Grammar) -> None:
    grammars = Grammars(make_tokenizer(), Stopwatch(lambda: 0.0))
    for seed in range(2):
        assert walk(grammars.matcher(grammar), 100, seed)


def test_the_time_of_all_grammars_is_counted(start_engine: StartEngine) -> None:
    engine = start_engine("llama")
    ask(engine, request(prompt_of(9), 8)).finished()
    assert engine.counts().span_s["grammars"] == 0
    ask(engine, dataclasses.replace(request(prompt_of(9), 40), grammar=WORDS)).finished()
    assert engine.counts().span_s["grammars"] > 0
