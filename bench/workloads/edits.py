"""Edits of random source files, requested in words; each answer is the whole file."""

import random
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice

from reprise.bench.workloads.agents import ANSWERS, Answer, Change, agent_turns
from reprise.bench.workloads.chats import Grow, Turn, Workload, conversation, user
from reprise.bench.workloads.words import NOUNS, VERBS, identifiers, number, thing, value

WHOLE = "Answer with the whole file."

Kind = Callable[[str, random.Random], tuple[str, str]]  # changes a file: returns a request and the result
Statement = tuple[str, str]  # one or more lines, and what to add if the file ends here


def _statements(
    rng: random.Random, constants: tuple[int, int] = (1, 4), statements: tuple[int, int] = (1, 4)
) -> Iterator[Statement]:
    """Yield the statements of a random file: so many constants and a function of so many, by turns."""
    rng = random.Random(rng.random())
    unused = identifiers(rng)
    gap = ""
    while True:
        for _ in range(rng.randint(*constants)):
            target = next(unused)
            literal = str(number(rng)) if rng.random() < 0.7 else f'"{value(rng)}"'
            yield f"{gap}{target} = {literal}", ""
            gap = ""
        name = next(unused)
        known = [next(unused) for _ in range(rng.choice((1, 2)))]
        opening = f"\ndef {name}({', '.join(known)}):\n"
        count = rng.randint(*statements)
        for at in range(count):
            target = next(unused)
            text = f"{'' if at else opening}    {target} = {_expression(rng, known)}"
            known.append(target)
            closing = f"\n    return {_expression(rng, known)}"
            yield (text, closing) if at < count - 1 else (text + closing, "")
        gap = "\n"


def _expression(rng: random.Random, known: Sequence[str]) -> str:
    kind, left = rng.random(), rng.choice(known)
    if kind < 0.4:
        return f"{left} {rng.choice('+-*')} {number(rng)}"
    if kind < 0.8:
        return f"{left} {rng.choice('+-*')} {rng.choice(known)}"
    return f'{left}["{rng.choice(NOUNS)}"]'


def _file(statements: Iterable[Statement]) -> str:
    lines, closings = zip(*statements, strict=True)
    return "\n".join(["```python", *lines]) + f"{closings[-1]}\n```"


def _constants(file: str) -> list[tuple[str, str]]:
    return re.findall(r"(?m)^(\w+) = (.*)$", file)


def _set_value(file: str, name: str, new: str | int) -> str:
    return re.sub(rf"(?m)^{name} = .*", f"{name} = {new}", file)


def _value(file: str, rng: random.Random) -> tuple[str, str]:
    name, old = rng.choice(_constants(file))
    new = _other_than(old, make=lambda: str(number(rng)))
    asked = (f"Set {name} to {new}.", f"Change {name} to {new}.", f"Change {name} from {old} to {new}.")
    return rng.choice(asked), _set_value(file, name, new)


def _rename(file: str, rng: random.Random) -> tuple[str, str]:
    names = [name for name, _ in _constants(file)]
    names += re.findall(r"(?m)^def (\w+)", file) + re.findall(r"(?m)^    (\w+) = ", file)
    old = rng.choice(names)
    new = _other_than(*names, "python", make=lambda: next(identifiers(rng)))
    everywhere = f"Replace {old} with {new} everywhere."
    asked = (f"Rename {old} to {new}.", f"Change the name {old} to {new}.", everywhere)
    return rng.choice(asked), re.sub(rf"\b{old}\b", new, file)


def _docstring(file: str, rng: random.Random) -> tuple[str, str]:
    bare = re.findall(r'(?m)^def (\w+)\(.*\):\n(?!    """)', file)
    if not bare:
        return _return(file, rng)
    name, text = rng.choice(bare), f"{rng.choice(VERBS).capitalize()} the {thing(rng)}."
    asked = (f'Add the docstring "{text}" to {name}.', f'Give {name} the docstring "{text}".')
    return rng.choice(asked), re.sub(rf"(?m)^(def {name}\(.*\):)$", rf'\1\n    """{text}"""', file)


def _return(file: str, rng: random.Random) -> tuple[str, str]:
    ends = r"\):\n(?:    .*\n)*?    return "
    name, arguments, old = rng.choice(re.findall(rf"(?m)^def (\w+)\((.*){ends}(.*)$", file))
    new = _other_than(old, make=lambda: _expression(rng, arguments.split(", ")))
    instead = (f"{name} should return {new}, not {old}.", f"In {name}, return {new} instead of {old}.")
    asked = (f"Make {name} return {new}.", *instead)
    return rng.choice(asked), re.sub(rf"(?m)(^def {name}\(.*{ends}).*$", lambda m: m[1] + new, file, count=1)


def _other_than(*old: str, make: Callable[[], str]) -> str:
    while (new := make()) in old:
        pass
    return new


KINDS = (_value, _rename, _docstring, _return)


def _edits(file: str, rng: random.Random, num_turns: int, kinds: Sequence[Kind] = KINDS) -> list[Turn]:
    """Make a chat about one file, in which each turn changes the previous answer."""
    changed, exchanges = file, []
    for _ in range(num_turns):
        kind = rng.choice(kinds)
        if kind in (_docstring, _return) and "\ndef " not in changed:
            kind = _value
        request, changed = kind(changed, rng)
        exchanges.append((f"{request} {WHOLE}", changed))
    return conversation(exchanges, file)


def _edit_again(rng: random.Random, _: Grow) -> list[Turn]:
    file = _file(islice(_statements(rng), 11))
    name = _constants(file)[0][0]
    return [
        Turn((user(f"{verb} {name} to {new}.\n\n{file}"),), _set_value(file, name, new), verb == "Change")
        for verb, new in zip(("Set", "Change"), rng.sample(range(100, 999), 2), strict=True)
    ]


def _agent_edits(rng: random.Random, _: Grow) -> Iterator[Turn]:
    """Yield an agent's turns about a file that it has read: two edits, then it writes the whole file."""
    file, steps = _file(islice(_statements(rng), 11)), list[tuple[str, Answer]]()
    made = first = Change("", "", f"{next(identifiers(rng))}.py", "", _bare(file))
    for form in ("edit", "edit", "write"):
        request, file = _value(file, rng)
        made = replace(made, before=made.after, after=_bare(file))
        steps += [(request, answer) for answer in ANSWERS[form](made)]
    yield from agent_turns(f"Read {made.path}.", replace(first, before=first.after), "arrow", steps)


def _bare(file: str) -> str:
    """Return a file without the fence around it."""
    return "\n".join(file.split("\n")[1:-1]) + "\n"


def _grown(statements: Iterator[Statement], grow: Grow) -> str:
    return _file(grow(statements, lambda first: f"Set lantern to 100. {WHOLE}\n\n{_file(first)}"))


WORKLOADS = (
    Workload("edits", "a file of about 20 lines with one value changed, answered in full",
             lambda rng, _: _edits(_file(islice(_statements(rng), 11)), rng, 1, (_value,))),
    Workload("edits_again", "the same, after an earlier edit of the same file", _edit_again),
    Workload("edits_again_cold", "the chats of edits_again without the earlier edit",
             lambda rng, grow: _edit_again(rng, grow)[1:]),
    Workload("code", "one change in a file of the given length, answered in full",
             lambda rng, grow: _edits(_grown(_statements(rng), grow), rng, 1), (600, 800)),
    Workload("edits_short", "a snippet of about ten lines, edited in six turns, each answered in full",
             lambda rng, _: _edits(_file(islice(_statements(rng), 6)), rng, 6)),
    Workload("edits_long", "a file of hundreds of lines, edited in four turns, each answered in full",
             lambda rng, grow: _edits(_grown(_statements(rng, (12, 24), (2, 4)), grow), rng, 4), (1500,)),
)  # fmt: skip
AGENT = Workload(
    "agent_edits", "a file read with line numbers, edited twice and then written, by tool calls", _agent_edits
)
