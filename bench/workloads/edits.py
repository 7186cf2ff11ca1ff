"""Edits of random source files, requested in words; each answer is the whole file."""

import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from bench.workloads.chats import Grow, Turn, Workload, conversation, single_turn
from bench.workloads.words import NOUNS, VERBS, identifiers, kept, number, phrase, thing, value

KINDS = ("value", "rename", "docstring", "return")
"""Kinds of changes to a file."""

WHOLE = "Answer with the whole file."


Line = tuple[str, str]
"""One or more lines of a file, and the text to add if the file ends here."""


def make_file(
    rng: random.Random, num_constants: tuple[int, int] = (1, 4), num_statements: tuple[int, int] = (1, 4)
) -> Callable[[int], str]:
    """Make a random file; return a function that returns its first statements, this many, in a code fence.

    num_constants: range of the number of constants before each function.
    num_statements: range of the number of statements in each function.
    """
    first = kept(_lines(random.Random(rng.random()), num_constants, num_statements))

    def text(count: int) -> str:
        lines = first(count)
        code = "\n".join(text for text, _ in lines) + lines[-1][1]
        return f"```python\n{code}\n```"

    return text


def change(file: str, rng: random.Random, kinds: Sequence[str] = KINDS) -> tuple[str, str]:
    """Return a request for a random change, without WHOLE, and the changed file. file: in a code fence."""
    kind = rng.choice(kinds)
    if kind in ("docstring", "return") and "\ndef " not in file:
        kind = "value"
    return _CHANGES[kind](file, rng)


def set_value(file: str, name: str, new: str | int) -> str:
    """Return the file with another value for a constant."""
    return re.sub(rf"(?m)^{name} = .*", f"{name} = {new}", file)


def constants(file: str) -> list[tuple[str, str]]:
    """Return the names and values of a file's constants."""
    return re.findall(r"(?m)^(\w+) = (.*)$", file)


def _lines(
    rng: random.Random, num_constants: tuple[int, int], num_statements: tuple[int, int]
) -> Iterator[Line]:
    unused = identifiers(rng)
    gap = ""
    while True:
        for _ in range(rng.randint(*num_constants)):
            target = next(unused)
            literal = str(number(rng)) if rng.random() < 0.7 else f'"{value(rng)}"'
            yield f"{gap}{target} = {literal}", ""
            gap = ""
        name = next(unused)
        known = [next(unused) for _ in range(rng.choice((1, 2)))]
        opening = f"\ndef {name}({', '.join(known)}):\n"
        count = rng.randint(*num_statements)
        for at in range(count):
            target = next(unused)
            text = f"{'' if at else opening}    {target} = {_expression(rng, known)}"
            known.append(target)
            closing = f"\n    return {_expression(rng, known)}"
            is_last = at == count - 1
            yield (text + closing, "") if is_last else (text, closing)
        gap = "\n"


def _expression(rng: random.Random, known: Sequence[str]) -> str:
    kind, left = rng.random(), rng.choice(known)
    if kind < 0.4:
        return f"{left} {rng.choice('+-*')} {number(rng)}"
    if kind < 0.8:
        return f"{left} {rng.choice('+-*')} {rng.choice(known)}"
    return f'{left}["{rng.choice(NOUNS)}"]'


def _value(file: str, rng: random.Random) -> tuple[str, str]:
    name, old = rng.choice(constants(file))
    new = _other_than(old, make=lambda: str(number(rng)))
    return phrase(rng, "value", name=name, old=old, new=new), set_value(file, name, new)


def _rename(file: str, rng: random.Random) -> tuple[str, str]:
    names = [name for name, _ in constants(file)] + re.findall(r"(?m)^def (\w+)", file)
    names += re.findall(r"(?m)^    (\w+) = ", file)
    old = rng.choice(names)
    new = _other_than(*names, "python", make=lambda: next(identifiers(rng)))
    return phrase(rng, "rename", old=old, new=new), re.sub(rf"\b{old}\b", new, file)


def _docstring(file: str, rng: random.Random) -> tuple[str, str]:
    bare = re.findall(r'(?m)^def (\w+)\(.*\):\n(?!    """)', file)
    if not bare:
        return _return(file, rng)
    name, text = rng.choice(bare), f"{rng.choice(VERBS).capitalize()} the {thing(rng)}."
    request = phrase(rng, "docstring", name=name, text=text)
    changed = re.sub(rf"(?m)^(def {name}\(.*\):)$", rf'\1\n    """{text}"""', file)
    return request, changed


def _return(file: str, rng: random.Random) -> tuple[str, str]:
    name, arguments, old = rng.choice(
        re.findall(r"(?m)^def (\w+)\((.*)\):\n(?:    .*\n)*?    return (.*)$", file)
    )
    new = _other_than(old, make=lambda: _expression(rng, arguments.split(", ")))
    request = phrase(rng, "return", name=name, old=old, new=new)
    changed = re.sub(
        rf"(?m)(^def {name}\(.*\):\n(?:    .*\n)*?    return ).*$", lambda m: m[1] + new, file, count=1
    )
    return request, changed


def _other_than(*old: str, make: Callable[[], str]) -> str:
    while (new := make()) in old:
        pass
    return new


_CHANGES: dict[str, Callable[[str, random.Random], tuple[str, str]]] = {
    "value": _value, "rename": _rename, "docstring": _docstring, "return": _return,
}  # fmt: skip


SHORT_STATEMENTS, MEDIUM_STATEMENTS = 6, 11
MAX_STATEMENTS = 20_000


def _edit(rng: random.Random, _: Grow) -> Sequence[Turn]:
    file = make_file(rng)(MEDIUM_STATEMENTS)
    request, changed = change(file, rng, ["value"])
    return single_turn(f"{request} {WHOLE}\n\n{file}", changed)


def _edit_again(rng: random.Random, _: Grow) -> Sequence[Turn]:
    file = make_file(rng)(MEDIUM_STATEMENTS)
    name = constants(file)[0][0]
    (first,), (second,) = (
        single_turn(f"{verb} {name} to {new}.\n\n{file}", set_value(file, name, new))
        for verb, new in zip(("Set", "Change"), rng.sample(range(100, 999), 2), strict=True)
    )
    return [replace(first, is_measured=False), second]


def _grown(file: Callable[[int], str], grow: Grow) -> str:
    return file(grow(lambda count: f"Set lantern to 100. {WHOLE}\n\n{file(count)}", MAX_STATEMENTS))


def _edits(file: str, rng: random.Random, num_turns: int) -> list[Turn]:
    """Make a chat about one file, in which each turn changes the previous answer."""

    def changes() -> Iterator[tuple[str, str]]:
        changed = file
        for _ in range(num_turns):
            request, changed = change(changed, rng)
            yield f"{request} {WHOLE}", changed

    return conversation(changes(), f"\n\n{file}")


WORKLOADS = (
    Workload("edits", "a file of about 20 lines with one value changed, answered in full", _edit),
    Workload("edits_again", "the same, after an earlier edit of the same file", _edit_again),
    Workload("edits_again_cold", "the chats of edits_again without the earlier edit",
             lambda rng, grow: _edit_again(rng, grow)[1:]),
    Workload("code", "one change in a file of the given length, answered in full",
             lambda rng, grow: _edits(_grown(make_file(rng), grow), rng, 1), (600, 800)),
    Workload("edits_short", "a snippet of about ten lines, edited in six turns, each answered in full",
             lambda rng, _: _edits(make_file(rng)(SHORT_STATEMENTS), rng, 6)),
    Workload("edits_long", "a file of hundreds of lines, edited in four turns, each answered in full",
             lambda rng, grow: _edits(_grown(make_file(rng, (12, 24), (2, 4)), grow), rng, 4), (1500,)),
)  # fmt: skip
