"""The corpus keeps its text: models were trained on it, and tests and figures take prompts from it."""

import json
import random
from hashlib import sha256
from itertools import islice

from reprise.demo_model.training.corpus import FAMILIES, Source, conversations, held_out
from reprise.demo_model.training.corpus.conversation import Conversation
from reprise.demo_model.training.corpus.polish import in_polish
from reprise.demo_model.training.corpus.rendering import render

HELD_OUT = {
    "edit": "f4ed3335b59be158",
    "edit of 60 lines": "dc1d803349983ed3",
    "multi-turn edit": "5af5d393312cba1c",
    "record look-up": "98a28c6176e72afd",
    "JSON for a schema": "a8413cf29caddd5b",
    "quote a sentence": "9fcb136e3f9b9a98",
    "list or repeat a passage": "cee245698265232a",
    "tool call": "647c28697e4d4c70",
    "answer from a tool result": "02c7059418dc8515",
    "greeting, who are you": "39f6e0f8277e5492",
    "honest refusal": "aaef656d5b93ffe2",
}


def digest(talks: list[Conversation]) -> str:
    """Return the start of a hash of conversations and of their text."""
    written = [json.dumps([talk.family, talk.messages, talk.tools, render(talk)]) for talk in talks]
    return sha256("\n".join(written).encode()).hexdigest()[:16]


def test_held_out_samples_stay() -> None:
    assert {family: digest(held_out(family, 10, 11)) for family in FAMILIES} == HELD_OUT


def test_training_samples_stay() -> None:
    assert digest(list(islice(conversations(Source(random.Random(4))), 100))) == "7811888214719242"


def test_samples_in_polish_stay() -> None:
    rng = random.Random(3)
    pieces = [in_polish(render(talk), rng) for talk in islice(conversations(Source(rng)), 50)]
    assert sha256(json.dumps(pieces).encode()).hexdigest()[:16] == "44e7d22ca9f02f45"
