"""Samples of code edits (rename, value, docstring, fix), each answered with the whole file."""

import re
from dataclasses import dataclass

from reprise.demo_model.training.corpus.conversation import Conversation, Source

RENAME = [
    "Put {new} in place of {old}.",
    "{new} is the new name of {old}.",
    "Let {old} be called {new} in this file.",
    "Rename {old} to {new}.",
    "Rename `{old}` to `{new}` in this file.",
    "Please rename {old} to {new} everywhere.",
    "Change the name {old} to {new}.",
    "Replace {old} with {new} everywhere.",
    "Use the name {new} instead of {old}.",
    "Call it {new}, not {old}.",
    "{old} should be called {new}.",
    "I want {old} renamed to {new}.",
    "Could you rename {old} to {new}?",
    "Replace every {old} by {new} and show the whole file.",
    "Rename the identifier {old} to {new} and return the file.",
    "Can you please rename `{old}` to `{new}`?",
    "Please change the name `{old}` to `{new}` everywhere.",
    "In this file, rename {old} to {new}.",
    "Please use {new} instead of {old} everywhere.",
]
VALUE = [
    "Switch {name} from {old} to {new}.",
    "Set {name} to {new}.",
    "Change {name} to {new}.",
    "Change the value of {name} to {new}.",
    "Please set {name} to {new}.",
    "Change {name} from {old} to {new}.",
    "{name} should be {new}.",
    "Make {name} equal to {new}.",
    "The value of {name} should be {new}, not {old}.",
    "Update {name} to {new} and show the whole file.",
    "I want {name} to be {new}.",
    "Could you set `{name}` to {new}?",
    "Please change the value of `{name}` to {new}.",
    "Can you set {name} to {new}?",
    "Please update {name} from {old} to {new}.",
]
DOCSTRING = [
    'Put the docstring "{text}" into the function {name}.',
    'Add the docstring "{text}" to {name}.',
    'Give {name} the docstring "{text}".',
    'Please add a docstring to {name}: "{text}"',
    'Document {name} with "{text}".',
    'Add a docstring to `{name}` that says "{text}".',
    'The function {name} needs the docstring "{text}".',
    'Write "{text}" as the docstring of {name}.',
    'Could you add the docstring "{text}" to {name}?',
    'Please give `{name}` the docstring "{text}".',
    'Can you add the docstring "{text}" to the function {name}?',
]
FIX = [
    "Let {name} return {new} instead of {old}.",
    "{name} should return {new}, not {old}.",
    "Fix {name}: it should return {new}.",
    "In {name}, return {new} instead of {old}.",
    "There is a bug in {name}: it should return {new}.",
    "Make {name} return {new}.",
    "The function {name} returns {old}, but it should return {new}. Fix it.",
    "Please fix {name} so that it returns {new}.",
    "{name} is wrong. It must return {new}.",
    "Please make `{name}` return {new}, not {old}.",
    "Can you fix {name}? It should return {new} instead of {old}.",
]
SHOW = ["", "", "", " Show the whole file.", " Answer with the whole file.", " Return the full file."]


@dataclass
class File:
    """A generated Python file and the parts of it that can be edited."""

    lines: list[str]
    constants: dict[str, str]
    functions: dict[str, str]
    names: list[str]

    def text(self) -> str:
        """Return the file as one string, in a code fence."""
        return "```python\n" + "\n".join(self.lines) + "\n```"


def _expression(source: Source, names: list[str]) -> str:
    rng = source.rng
    left = rng.choice(names)
    kind = rng.random()
    if kind < 0.35:
        return f"{left} {rng.choice('+-*')} {source.words.number()}"
    if kind < 0.7:
        return f"{left} {rng.choice('+-*/')} {rng.choice(names)}"
    if kind < 0.85:
        return f"{source.words.identifier()}({left})"
    return f'{left}["{source.words.noun()}"]'


def _literal(source: Source) -> str:
    kind = source.rng.random()
    if kind < 0.55:
        return str(source.words.number())
    if kind < 0.85:
        return f'"{source.words.value()}"'
    return source.rng.choice(["True", "False", "None", f"[{source.words.number()}, {source.words.number()}]"])


def make_file(source: Source, num_lines: int) -> File:
    """Generate a file of about num_lines lines: constants, then functions with short bodies."""
    rng = source.rng
    lines: list[str] = []
    constants: dict[str, str] = {}
    functions: dict[str, str] = {}
    names: list[str] = []
    if source.chance(0.3):
        lines += [f"import {source.words.noun()}", ""]
    for name in source.words.identifiers(rng.randint(1, 2 + num_lines // 12)):
        constant = name.upper() if source.chance(0.2) else name
        constants[constant] = _literal(source)
        names.append(constant)
        lines.append(f"{constant} = {constants[constant]}")
    while not functions or len(lines) + 3 < num_lines:
        name, *local = source.words.identifiers(rng.randint(3, 5))
        if name in functions or name in constants:
            continue
        arguments = local[: rng.randint(1, 2)]
        lines += ["", f"def {name}({', '.join(arguments)}):"]
        known = list(arguments)
        for target in local[len(arguments) :]:
            if source.chance(0.25):
                lines.append(f"    if {rng.choice(known)} > {source.words.number()}:")
                lines.append(f"        {target} = {_expression(source, known)}")
            else:
                lines.append(f"    {target} = {_expression(source, known)}")
            known.append(target)
        functions[name] = _expression(source, known + list(constants)[:1])
        lines.append(f"    return {functions[name]}")
        names += [name, *known]
    return File(lines, constants, functions, names)


def _other_than(source: Source, old: str) -> str:
    while (new := _literal(source)) == old:
        pass
    return new


def edit(source: Source, file: File) -> str:
    """Change the file in place and return the request that asks for the change."""
    rng = source.rng
    kinds = ("rename", "value", "docstring", "fix")
    # Renames need the most practice, because every occurrence must be right.
    kind = rng.choice(kinds) if source.held_out else rng.choices(kinds, (0.42, 0.26, 0.14, 0.18))[0]
    show = rng.choice(SHOW)
    if kind == "rename":
        old = rng.choice(file.names)
        if not source.held_out and source.chance(0.5):
            old = max(rng.sample(file.names, min(3, len(file.names))), key=file.text().count)
        while (new := source.words.identifier()) in file.names:
            pass
        pattern = re.compile(rf"\b{re.escape(old)}\b")
        file.lines = [pattern.sub(new, line) for line in file.lines]
        file.names = [new if name == old else name for name in file.names]
        file.constants = {new if k == old else k: v for k, v in file.constants.items()}
        file.functions = {new if k == old else k: pattern.sub(new, v) for k, v in file.functions.items()}
        return source.say(RENAME, old=old, new=new) + show
    if kind == "value":
        name, old = rng.choice(list(file.constants.items()))
        new = file.constants[name] = _other_than(source, old)
        file.lines = [f"{name} = {new}" if line == f"{name} = {old}" else line for line in file.lines]
        return source.say(VALUE, name=name, old=old, new=new) + show
    name = rng.choice(list(file.functions))
    start = next(i for i, line in enumerate(file.lines) if line.startswith(f"def {name}("))
    if kind == "docstring" and '"""' not in file.lines[start + 1]:
        text = f"{source.words.verb().capitalize()} the {source.words.thing()}."
        file.lines.insert(start + 1, f'    """{text}"""')
        return source.say(DOCSTRING, name=name, text=text) + show
    old = file.functions[name]
    known = re.findall(r"[A-Za-z_]\w*", file.lines[start].split("(", 1)[1])
    while (new := _expression(source, known)) == old:
        pass
    file.functions[name] = new
    at = next(i for i in range(start, len(file.lines)) if file.lines[i] == f"    return {old}")
    file.lines[at] = f"    return {new}"
    return source.say(FIX, name=name, old=old, new=new) + show


def editing(source: Source, num_lines: int, num_turns: int = 1, family: str = "edit") -> Conversation:
    """Make a sample that edits one file num_turns times. Every answer is the whole file after the edit."""
    file = make_file(source, num_lines)
    talk = Conversation(family)
    for turn in range(num_turns):
        before = file.text()
        request = edit(source, file)
        talk.user(source.around(request, before) if turn == 0 else request)
        talk.assistant(file.text())
    return talk


def edit_short(source: Source) -> Conversation:
    """Make a sample of one edit in a file of up to 20 lines.

    In training many of the files are tiny, so that more of the answer is the edit.
    """
    if not source.held_out and source.chance(0.12):
        return renaming(source)
    if not source.held_out and source.chance(0.35):
        return editing(source, source.rng.randint(3, 9), source.rng.choice((1, 1, 2, 3)))
    return editing(source, source.between(5, 20))


def edit_long(source: Source) -> Conversation:
    """Make a sample of one edit in a file of about 60 lines; in training, of 20 to 60 lines."""
    return editing(source, 60 if source.held_out else source.between(20, 60), family="edit of 60 lines")


def edit_turns(source: Source) -> Conversation:
    """Make a sample of two to four edits in a file of up to 14 lines."""
    num_turns = source.rng.randint(2, 3 if source.size < 1 else 4)
    return editing(source, source.between(5, 14), num_turns, "multi-turn edit")


USES = [
    "{name} = {number}",
    "{other} = {name} + {number}",
    "{other} = {name}",
    "{other} = {name} * {name}",
    "{other} = {function}({name})",
    "def {function}({name}):",
    "    return {name}",
    "    return {name} - {number}",
    "    {other} = {name}",
    "    if {name} > {number}:",
    "    {function}({name}, {other})",
]
PLAIN = ["Rename {old} to {new}.", "Change the name {old} to {new}.", "Replace {old} with {new} everywhere."]


def renaming(source: Source) -> Conversation:
    """Make a sample of lines full of one name, renamed one to three times. For training only."""
    rng = source.rng
    name, *others = source.words.identifiers(4)
    if source.chance(0.5):
        name = name.split("_")[0]
    talk = Conversation("edit")
    used = rng.sample(USES, rng.randint(2, 7))
    fill = {"other": others[0], "function": others[1]}
    patterns = [line.replace("{number}", str(source.words.number())) for line in used]
    for turn in range(rng.choice((1, 1, 1, 2, 3))):
        before = "```python\n" + "\n".join(p.format(name=name, **fill) for p in patterns) + "\n```"
        while (new := source.words.identifier()) in (name, *others):
            pass
        if source.chance(0.5):
            new = new.split("_")[0]
        request = (
            source.say(RENAME, old=name, new=new)
            if source.chance(0.5)
            else rng.choice(PLAIN).format(old=name, new=new)
        )
        talk.user(source.around(request, before) if turn == 0 else request)
        talk.assistant("```python\n" + "\n".join(p.format(name=new, **fill) for p in patterns) + "\n```")
        name = new
    return talk
