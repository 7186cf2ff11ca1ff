"""What takes llguidance minutes to compile is refused; what only looks like it is compiled."""

import json

import pytest

from reprise.engine.interface.errors import GrammarError
from reprise.engine.interface.request import Grammar
from reprise.engine.sampling.grammar import TRIAL_LIMITS, TRIALS, Grammars
from reprise.engine.sandbox.child_process import ChildError
from tests.engine.support import make_tokenizer


def alternatives(num: int) -> dict[str, object]:
    """All of num schemas with two alternatives each: 2 ** num combinations."""
    return {"allOf": [{"anyOf": [{"required": [f"{name}{i}"]} for name in "ab"]} for i in range(num)]}


def doubling(levels: int, keyword: str) -> dict[str, object]:
    """A schema in which each level refers twice to the level below."""
    names = {f"a{i}": {keyword: [{"$ref": f"#/$defs/a{i - 1}"}] * 2} for i in range(1, levels)}
    return {"$ref": f"#/$defs/a{levels - 1}", "$defs": {"a0": {"type": "string"}, **names}}


def at_once(num: int) -> str:
    """A terminal that matches num patterns at once."""
    return "start: A\nA: " + " & ".join(f"/(.*{i}.{{0,4}})*/" for i in range(num))


SLOW = {
    "multiples of a large number": {"multipleOf": 99_999_989, "type": "integer"},
    "several multiples": {"allOf": [{"type": "integer", "multipleOf": n} for n in (83, 89, 97, 101)]},
    "patterns that must not overlap": {"patternProperties": {f"^x{n}(x|y){{0,4}}$": {} for n in range(900)}},
    "patterns at once, beside a token": at_once(12).replace("start: A", "start: <[7]> A"),
}  # fmt: skip
FINE = {
    "few combinations": alternatives(6),
    "many alternatives": {"anyOf": [{"const": i} for i in range(1000)]},
    "alternatives that exclude each other": {
        "oneOf": [
            {"type": "object", "properties": {"kind": {"const": f"{i}"}}, "required": ["kind"]}
            for i in range(300)
        ]
    },
    "doubling alternatives": doubling(30, "anyOf"),
    "doubling what must hold": doubling(30, "allOf"),
    "optional members beside a base": {
        "allOf": [
            {"type": "object", "properties": {"id": {"type": "string", "format": "uuid"}}},
            {"properties": {str(i): {"anyOf": [{"type": "string"}, {"type": "null"}]} for i in range(50)}},
        ]
    },
    "many formats": {"properties": {str(i): {"type": "string", "format": "date"} for i in range(100)}},
    "long texts": {"enum": ["x" * 30_000, "y" * 30_000]},
    "cents": {"type": "number", "multipleOf": 0.01},
}


def grammar_of(given: object) -> Grammar:
    return Grammar("lark", given) if isinstance(given, str) else Grammar("json_schema", json.dumps(given))


@pytest.fixture(scope="module")
def grammars() -> Grammars:
    return Grammars(make_tokenizer())


@pytest.mark.parametrize("given", SLOW.values(), ids=SLOW)
def test_what_would_take_minutes_is_refused(grammars: Grammars, given: object) -> None:
    with pytest.raises(GrammarError, match=f"took more than {TRIAL_LIMITS.cpu_s:g} seconds .* to compile"):
        grammars.compile(grammar_of(given))


@pytest.mark.parametrize("given", FINE.values(), ids=FINE)
def test_what_only_looks_like_it_is_compiled(grammars: Grammars, given: object) -> None:
    assert grammars.compile(grammar_of(given)).compiled


def test_a_process_that_was_killed_is_tried_once_more_and_is_not_the_grammar_s_fault(
    grammars: Grammars, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = []

    def killed(**call: object) -> None:
        calls.append(call)
        raise ChildError("it was killed")

    monkeypatch.setattr(TRIALS, "call", killed)
    with pytest.raises(ChildError):
        grammars.compile(grammar_of({"const": "not compiled before"}))
    assert len(calls) == 2
