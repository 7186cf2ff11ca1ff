"""Generate long traffic to replay: edits of real Python files, and repeated texts.

Everything is generated from a seed. The edits are not commits that people made.
"""

import random
import re
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path

from reprise.bench.replay.pairs import Encode, TokenPair
from reprise.bench.workloads.generated import NOUNS

SMALLEST_FILE, LARGEST_FILE = 2_500, 9_000  # characters
NEW, AGAIN, EDIT, EDIT_AGAIN = "new", "again", "edit", "edit again"
SHARES = {NEW: 0.2, AGAIN: 0.3, EDIT: 0.25, EDIT_AGAIN: 0.25}
"""Kinds of requests in traffic. Edits show the file; new texts and repeated ones do not show it."""


def make_traffic(root: Path, count: int, seed: int, encode: Encode) -> Iterator[TokenPair]:
    """Yield requests like a server's over weeks, about the Python files below a folder.

    The kind of a request, one of SHARES, is its workload.
    The age of a repeated text is log-uniform: some are recent, some from the very start. With the same seed,
    shorter traffic is a prefix of longer traffic.
    """
    rng = random.Random(f"traffic {seed}")
    files, used = cycle(_texts(root, random.Random(seed))), list[str]()
    for _ in range(count):
        kind = rng.choices(list(SHARES), list(SHARES.values()))[0] if used else NEW
        text = used[-round(len(used) ** rng.random())] if kind in (AGAIN, EDIT_AGAIN) else next(files)
        prompt, answer = "Write it again.\n" if kind == AGAIN else "Write a file.\n", text
        if kind in (EDIT, EDIT_AGAIN):
            text, instruction = edit(text, rng)
            prompt = f"{instruction} Answer with the whole file.\n\n```python\n{answer}```\n"
            answer = f"```python\n{text}```\n"
        used.append(text)
        yield TokenPair(tuple(encode(prompt)), tuple(encode(answer)), kind)


def _texts(root: Path, rng: random.Random) -> Iterator[str]:
    """Yield the Python files below a folder in random order: long ones truncated, short ones skipped."""
    paths = sorted(root.rglob("*.py"))
    rng.shuffle(paths)
    for path in paths:
        text = path.read_text(errors="ignore")
        if len(text) >= SMALLEST_FILE:
            yield text[:LARGEST_FILE].rpartition("\n")[0] + "\n"


def edit(text: str, rng: random.Random) -> tuple[str, str]:
    """Rename something in a Python file, or change values or lines. Return the file and the instruction."""
    if rng.random() < 0.3 and (names := re.findall(r"(?m)^ *(?:def|class) ([^\W\d_]\w\w+)", text)):
        old, new = rng.choice(names), "_".join(rng.sample(NOUNS, 2))
        return re.sub(rf"\b{old}\b", new, text), f"Rename {old} to {new}."
    if rng.random() < 0.5:
        places = [*re.finditer(r"(?<![\w.])\d+(?![\w.])|'[a-z]+'|\"[a-z]+\"", text)]
        instruction = "Change the values as discussed."
    else:
        places = [*re.finditer(r"(?m)^ +\w.*[\w)]$", text)]
        instruction = "Fix the lines that the review names."
    chosen = rng.sample(places, min(len(places), rng.randint(2, 6)))
    for match in sorted(chosen, key=re.Match.start, reverse=True):
        word = rng.choice(NOUNS)
        new = str(rng.randint(2, 900)) if match[0].isdigit() else re.sub(r"\w+", word, match[0], count=1)
        text = text[: match.start()] + new + text[match.end() :]
    return text, instruction
