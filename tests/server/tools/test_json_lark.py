"""Grammars of free-form input are followed inside JSON strings."""

import json

import pytest

from reprise.engine.interface.request import Grammar
from reprise.engine.sampling.grammar import Grammars
from reprise.server.requests.lark import escape_lark
from tests.engine.support import make_tokenizer
from tests.server.tools.test_grammar import accepts

PATCH = r"""
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
update_hunk: "*** Update File: " filename LF change+
filename: /(.+)/
add_line: "+" /(.*)/ LF
change: ("+" | "-" | " ") /(.*)/ LF
%import common.LF
"""
GOOD = '*** Begin Patch\n*** Update File: a "b".py\n-x\t= "\\n"\n+y ż\n*** End Patch\n'


@pytest.fixture(scope="module")
def model():
    tokenizer = make_tokenizer()
    return tokenizer, Grammars(tokenizer)


@pytest.mark.parametrize(
    ("grammar", "text", "passes"),
    [
        (PATCH, GOOD, True),
        (PATCH, GOOD.replace("Begin", "Start"), False),
        (PATCH, GOOD.replace("+y", "y"), False),
        (r'start: "a" /[^b"\n]+/ "\n"', "axx\\\n", True),
        (r'start: "a" /[^b"\n]+/ "\n"', 'a"\n', False),
        (r"start: /(?s:.)*x/", "a\nbx", True),
        (r"start: /.*x/", "a\nbx", False),
        (r"start: /\s\S{2}/", "\nab", True),
        (r"start: /[0-9]{2,3}|\d/", "12", True),
    ],
)
def test_a_grammar_is_followed_within_a_json_string(model, grammar, text, passes):
    shown = json.dumps({"input": text}, ensure_ascii=False)
    whole = f'start: "{{\\"input\\": \\"" input "\\"}}"\ninput: %lark {{\n{escape_lark(grammar)}\n}}\n'
    assert accepts(model, Grammar("lark", grammar), text) == passes
    assert accepts(model, Grammar("lark", whole), shown) == passes


@pytest.mark.parametrize(
    "grammar",
    [
        "start: %json {}",
        "start: <[5]>",
        "%import common.SIGNED_NUMBER",
        "start: /a)/",
        "start: /[b/",
        "start: /(?=a)/",
        'start: "a"i',
        "start: A & B",
    ],
)
def test_what_cannot_stand_in_a_string_is_refused(grammar):
    with pytest.raises(ValueError, match=r"has|imports"):
        escape_lark(grammar)
