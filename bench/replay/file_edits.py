"""Generate requests to replay: edits of real Python files, documents cut in half, traps, and long traffic.

Everything is generated from a seed. The edits are not commits that people made.
"""

import keyword
import random
import re
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import cycle, islice
from pathlib import Path

from reprise.bench.replay.pairs import Encode, TokenPair
from reprise.bench.workloads.words import NOUNS

SMALLEST_FILE, LARGEST_FILE = 2_500, 9_000  # characters
NEW, AGAIN, EDIT, EDIT_AGAIN = "new", "again", "edit", "edit again"
SHARES = {NEW: 0.2, AGAIN: 0.3, EDIT: 0.25, EDIT_AGAIN: 0.25}
"""Kinds of requests in traffic. Edits show the file; new texts and repeated ones do not show it."""


def edit_cases(root: Path, count: int, seed: int, encode: Encode, kind: str | None = None) -> list[TokenPair]:
    """Generate edits of the Python files below a folder. kind: generate edits of this kind only."""
    rng = random.Random(seed)
    files = (text for text in _texts(root, rng) if text.count("def ") >= 4)
    edits = ((one, text, edit(text, one, rng)) for one, text in zip(cycle(KINDS), files, strict=False))
    changed = islice(((one, text, after) for one, text, after in edits if after[0] != text), count)
    return [_edit_pair(text, after, "edits", encode) for one, text, after in changed if kind in (None, one)]


def prose_cases(root: Path, count: int, seed: int, encode: Encode) -> list[TokenPair]:
    """Cut documents and docstrings below a folder in half: the answer is the second half."""
    ids = (tuple(encode(text)) for text in _texts(root, random.Random(seed), is_prose=True))
    return [TokenPair(one[: len(one) // 2], one[len(one) // 2 :], "prose") for one in islice(ids, count)]


def trap_cases(count: int, seed: int) -> list[TokenPair]:
    """Generate prompts in which all n-grams of the answer occur, always followed by a wrong token."""
    rng = random.Random(seed)
    cases: list[TokenPair] = []
    for size in islice(cycle((2, 5, 12, 20)), count):
        answer = [rng.randrange(1000, 3000) for _ in range(400)]
        prompt = [token for at in range(size, 400) for token in (*answer[at - size : at], 1 + at)]
        cases.append(TokenPair(tuple(prompt), tuple(answer), "trap"))
    return cases


def make_traffic(root: Path, count: int, seed: int, encode: Encode) -> Iterator[TokenPair]:
    """Yield requests such as a server gets over weeks, about the Python files below a folder.

    The kind of a request, one of SHARES, is its workload.
    The age of a repeated text is drawn evenly over its logarithm: some are recent, some from the very start.
    Shorter traffic with a seed begins longer traffic.
    """
    rng = random.Random(f"traffic {seed}")
    files, used = cycle(_texts(root, random.Random(seed))), list[str]()
    for _ in range(count):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0] if used else NEW
        text = used[-round(len(used) ** rng.random())] if kind in (AGAIN, EDIT_AGAIN) else next(files)
        if kind in (EDIT, EDIT_AGAIN):
            after = edit(text, rng.choice(KINDS), rng)
            used.append(after[0])
            yield _edit_pair(text, after, kind, encode)
        else:
            used.append(text)
            prompt = "Write it again.\n" if kind == AGAIN else "Write a file.\n"
            yield TokenPair(tuple(encode(prompt)), tuple(encode(text)), kind)


def _texts(root: Path, rng: random.Random, is_prose: bool = False) -> Iterator[str]:
    """Yield the Python files below a folder, or its documents and docstrings, in random order.

    Short ones are left out, and only the first lines of long ones are used.
    """
    patterns = ("*.md", "*.rst", "METADATA", "*.py") if is_prose else ("*.py",)
    paths = sorted(path for pattern in patterns for path in root.rglob(pattern))
    rng.shuffle(paths)
    for path in paths:
        text = path.read_text(errors="ignore")
        if is_prose and path.suffix == ".py":
            text = "\n\n".join(re.findall(r'(?s)"""(.+?)"""', text))
        if len(text) >= SMALLEST_FILE:
            yield text[:LARGEST_FILE].rpartition("\n")[0] + "\n"


def _edit_pair(text: str, after: tuple[str, str], workload: str, encode: Encode) -> TokenPair:
    edited, instruction = after
    prompt = f"{instruction} Answer with the whole file.\n\n```python\n{text}```\n"
    return TokenPair(tuple(encode(prompt)), tuple(encode(f"```python\n{edited}```\n")), workload)


def edit(text: str, kind: str, rng: random.Random) -> tuple[str, str]:
    """Make one kind of edit to a Python file. Return the edited file and the instruction."""
    if kind == "several":
        notes: list[str] = []
        for one in rng.sample(KINDS[:-1], 3):
            text, note = edit(text, one, rng)
            notes.append(note)
        return text, " ".join(notes)
    if kind == "rename":
        return _rename(text, rng)
    instruction, pattern, most, new = _PLACES[kind]
    found = list(re.finditer(pattern, text))
    chosen = rng.sample(found, min(len(found), rng.randint(2, most)))
    for match in sorted(chosen, key=re.Match.start, reverse=True):
        text = text[: match.start()] + new(match, rng) + text[match.end() :]
    return text, instruction


def _rename(text: str, rng: random.Random) -> tuple[str, str]:
    counts = Counter(re.findall(r"\w+", text))
    names = dict.fromkeys(re.findall(r"(?m)^ *(?:def |class |)([^\W\d_]\w\w+)(?= = |\(.*:$)", text))
    often = [name for name in names if counts[name] >= 4 and not keyword.iskeyword(name)]
    if not often:
        return text, ""
    old = rng.choice(often)
    parts = old.split("_")
    parts[rng.randrange(len(parts))] = "_".join(rng.sample(NOUNS, rng.randint(1, 2)))
    new = "_".join(parts)
    return re.sub(rf"\b{old}\b", new, text), f"Rename {old} to {new}."


def _value(match: re.Match[str], rng: random.Random) -> str:
    quote = match[0][0]
    return str(rng.randint(2, 900)) if quote.isdigit() else f"{quote}{rng.choice(NOUNS)}{quote}"


def _documented(match: re.Match[str], rng: random.Random) -> str:
    head, name, indent = match.group(0, 2, 3)
    words = " ".join(rng.sample(NOUNS, rng.randint(3, 7)))
    return f'{head}{indent}"""{name.strip("_").title()} the {words}."""\n'


def _fixed(match: re.Match[str], rng: random.Random) -> str:
    (indent, line), (word, other) = match.groups(), rng.sample(NOUNS, 2)
    return indent + rng.choice((
        f"{line} or {word}\n", f"{line}\n{indent}{word} = {other}({word})\n",
        f"if {word} is not None:\n{indent}    {line}\n", f"{word}.{other}()\n",
        line.replace("(", f"({word}, ", 1) + "\n", re.sub(r"\w+", word, line, count=1) + "\n",
    ))  # fmt: skip


_PLACES: dict[str, tuple[str, str, int, Callable[[re.Match[str], random.Random], str]]] = {
    "values": ("Change the values as discussed.",
               r"(?<![\w.])\d+(?![\w.])|'[a-z]+'|\"[a-z]+\"", 6, _value),
    "docstrings": ("Add docstrings.",
                   r"""(?m)^( *)def (\w+)\((?>(?s:.*?):\n)(?=(\1 +)[^\s"'])""", 6, _documented),
    "delete": ("Delete the functions that nothing needs.",
               r"(?m)^( *)def .*\n(?:\1[ )].*\n|\n)+", 2, lambda *_: ""),
    "lines": ("Fix the lines that the review names.", r"(?m)^( +)(\w.*[\w)])\n", 7, _fixed),
}  # fmt: skip
"""By kind: the instruction, the places that may change, how many do at most, and what is there instead."""

KINDS = ("rename", *_PLACES, "several")
"""Kinds of edits."""
