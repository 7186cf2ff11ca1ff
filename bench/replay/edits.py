"""Generate requests to replay: edits of real Python files, documents cut in half, traps, and long traffic.

Everything is generated from a seed. The edits are not commits that people made.
"""

import ast
import random
import re
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from operator import attrgetter
from pathlib import Path

from bench.replay.pairs import Encode, Pair

SMALLEST_FILE, LARGEST_FILE = 2_500, 9_000  # characters
NEW, AGAIN, EDIT, EDIT_AGAIN = "new", "again", "edit", "edit again"
SHARES = {NEW: 0.2, AGAIN: 0.3, EDIT: 0.25, EDIT_AGAIN: 0.25}
"""Kinds of requests in traffic. Edits show the file; new texts and repeated ones do not show it."""

_FAST = ("values", "docstrings", "delete", "lines")  # kinds of edits that take little time
_WORDS = (
    "fetch", "store", "current", "final", "outer", "merge", "record", "known", "stable", "remote", "scale",
)  # fmt: skip


def edit_cases(root: Path, count: int, seed: int) -> list[Pair]:
    """Generate edits of the Python files below a folder. A pair's id is the kind of edit."""
    rng = random.Random(seed)
    paths = sorted(root.rglob("*.py"))
    rng.shuffle(paths)
    kinds, cases = cycle(KINDS), list[Pair]()
    for path in paths:
        text = path.read_text(errors="ignore")
        if SMALLEST_FILE <= len(text) <= LARGEST_FILE and len(_functions(text)) >= 4:
            kind = next(kinds)
            edited, instruction = edit(text, kind, rng)
            cases += [_edit_pair(text, edited, instruction, "edits", kind)] if edited != text else []
        if len(cases) == count:
            break
    return cases


def prose_cases(root: Path, encode: Encode, count: int, seed: int) -> list[Pair]:
    """Cut documents and docstrings below a folder in half: the answer is the second half."""
    paths = [path for kind in ("*.md", "*.rst", "METADATA", "*.py") for path in sorted(root.rglob(kind))]
    random.Random(seed).shuffle(paths)
    fitting = (text[:LARGEST_FILE] for text in map(_prose, paths) if len(text) >= SMALLEST_FILE)
    texts = [tuple(encode(text)) for text in islice(fitting, count)]
    return [Pair(text[: len(text) // 2], text[len(text) // 2 :], "prose") for text in texts]


def trap_cases(count: int, seed: int) -> list[Pair]:
    """Generate prompts in which all n-grams of the answer occur, always followed by a wrong token."""
    rng = random.Random(seed)
    cases: list[Pair] = []
    for size in islice(cycle((2, 5, 12, 20)), count):
        answer = [rng.randrange(1000, 3000) for _ in range(400)]
        prompt = [token for at in range(size, 400) for token in (*answer[at - size : at], 1 + at)]
        cases.append(Pair(tuple(prompt), tuple(answer), "trap"))
    return cases


def make_traffic(root: Path, count: int, seed: int) -> Iterator[Pair]:
    """Yield requests as in weeks of a server, over the Python files below a folder; workload is the kind.

    The age of a repeated text is drawn evenly over its logarithm: some are recent, some from the very start.
    Shorter traffic with a seed begins longer traffic.
    """
    rng = random.Random(f"traffic {seed}")
    paths = sorted(path for path in root.rglob("*.py") if path.stat().st_size >= SMALLEST_FILE)
    random.Random(seed).shuffle(paths)
    files, used = cycle(paths), list[str]()
    for _ in range(count):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0] if used else NEW
        if kind in (AGAIN, EDIT_AGAIN):
            text = used[-round(len(used) ** rng.random())]
        else:
            text = next(files).read_text(errors="ignore")[:LARGEST_FILE].rpartition("\n")[0] + "\n"
        if kind in (EDIT, EDIT_AGAIN):
            edited, instruction = edit(text, rng.choice(_FAST), rng)
            used.append(edited)
            yield _edit_pair(text, edited, instruction, kind)
        else:
            used.append(text)
            yield Pair("Write it again.\n" if kind == AGAIN else "Write a file.\n", text, kind)


def _edit_pair(text: str, edited: str, instruction: str, workload: str, kind: str = "") -> Pair:
    prompt = f"{instruction} Answer with the whole file.\n\n```python\n{text}```\n"
    return Pair(prompt, f"```python\n{edited}```\n", workload, id=kind)


def edit(text: str, kind: str, rng: random.Random) -> tuple[str, str]:
    """Make one kind of edit to a Python file. Return the edited file and the instruction."""
    if kind != "several":
        return _EDITS[kind](text, rng)
    notes: list[str] = []
    for one in rng.sample(tuple(_EDITS), 3):
        text, note = edit(text, one, rng)
        notes.append(note)
    return text, " ".join(notes)


def _rename(text: str, rng: random.Random) -> tuple[str, str]:
    used = {getattr(node, field, "") or "" for node in _nodes(text) for field in ("id", "attr", "arg")}
    long = sorted(name for name in used - {"self"} if len(name) > 2)
    often = [name for name in long if len(re.findall(rf"\b{name}\b", text)) >= 4]
    if not often:
        return text, ""
    old = rng.choice(often)
    parts = old.split("_")
    if rng.random() < 0.5:
        parts[rng.randrange(len(parts))] = rng.choice(_WORDS)
    else:
        parts = rng.sample(_WORDS, rng.randint(1, 3))
    new = "_".join(parts)
    return re.sub(rf"\b{old}\b", new, text), f"Rename {old} to {new}."


def _change_values(text: str, rng: random.Random) -> tuple[str, str]:
    found = list(re.finditer(r"(?<![\w.])\d+(?![\w.])|'[a-z]+'|\"[a-z]+\"", text))
    chosen = rng.sample(found, min(len(found), rng.randint(2, 6)))
    for match in sorted(chosen, key=re.Match.start, reverse=True):
        old = match.group()
        new = str(rng.randint(2, 900)) if old.isdigit() else f"{old[0]}{rng.choice(_WORDS)}{old[0]}"
        text = text[: match.start()] + new + text[match.end() :]
    return text, "Change the values as discussed."


def _add_docstrings(text: str, rng: random.Random) -> tuple[str, str]:
    bare = [node for node in _functions(text) if not ast.get_docstring(node)]
    lines = text.splitlines(keepends=True)
    for node in sorted(rng.sample(bare, min(len(bare), 6)), key=attrgetter("lineno"), reverse=True):
        body, words = node.body[0], " ".join(rng.sample(_WORDS, rng.randint(3, 7)))
        docstring = f'"""{node.name.strip("_").title()} the {words}."""\n'
        lines.insert(body.lineno - 1, " " * body.col_offset + docstring)
    return "".join(lines), "Add docstrings."


def _delete(text: str, rng: random.Random) -> tuple[str, str]:
    functions = [node for node in _functions(text) if (node.end_lineno or 0) - node.lineno < 40]
    names: list[str] = []
    lines = text.splitlines(keepends=True)
    last = len(lines) + 1
    for node in sorted(rng.sample(functions, min(len(functions), 2)), key=attrgetter("lineno"), reverse=True):
        # One function may be inside the other.
        if (node.end_lineno or 0) < last:
            last = node.lineno
            del lines[last - 1 : node.end_lineno]
            names.append(node.name)
    return "".join(lines), f"Delete {' and '.join(names)}."


def _fix_lines(text: str, rng: random.Random) -> tuple[str, str]:
    lines = text.splitlines(keepends=True)
    fitting = [at for at, line in enumerate(lines) if re.match(r" +\w.*[\w)]\n", line)]
    for at in sorted(rng.sample(fitting, min(len(fitting), rng.randint(3, 7))), reverse=True):
        line = lines[at].rstrip("\n")
        indent = line[: len(line) - len(line.lstrip())]
        word, other = rng.sample(_WORDS, 2)
        lines[at] = rng.choice((
            f"{line} or {word}\n", f"{line}\n{indent}{word} = {other}({word})\n",
            f"{indent}if {word} is not None:\n{indent}    {line.lstrip()}\n", f"{indent}{word}.{other}()\n",
            line.replace("(", f"({word}, ", 1) + "\n", re.sub(r"\w+", word, line, count=1) + "\n",
        ))  # fmt: skip
    return "".join(lines), "Fix the lines that the review names."


_EDITS: dict[str, Callable[[str, random.Random], tuple[str, str]]] = {
    "rename": _rename, "values": _change_values, "docstrings": _add_docstrings, "delete": _delete,
    "lines": _fix_lines,
}  # fmt: skip

KINDS = (*_EDITS, "several")
"""Kinds of edits."""


def _prose(path: Path) -> str:
    """Return a document, or the docstrings of a Python file."""
    text = path.read_text(errors="ignore")
    if path.suffix != ".py":
        return text
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = [ast.get_docstring(node) for node in _nodes(text) if isinstance(node, kinds)]
    return "\n\n".join(one for one in found if one)


def _nodes(text: str) -> list[ast.AST]:
    try:
        return list(ast.walk(ast.parse(text)))
    except (SyntaxError, ValueError):
        return []


def _functions(text: str) -> list[ast.FunctionDef]:
    """Return the functions of more than one line."""
    found = [node for node in _nodes(text) if isinstance(node, ast.FunctionDef)]
    return [node for node in found if (node.end_lineno or 0) > node.lineno]
