"""Generate the demo model's training text; nothing in it comes from other sources."""

import random
from collections.abc import Callable, Iterator

from reprise.demo_model.training.corpus import code, passages, records, talk, tools
from reprise.demo_model.training.corpus.conversation import Conversation, Source

Make = Callable[[Source], Conversation]

# Family -> (function that makes a sample, its weight in training).
FAMILIES: dict[str, tuple[Make, float]] = {
    "edit": (code.edit_short, 0.72),
    "edit of 60 lines": (code.edit_long, 0.015),
    "multi-turn edit": (code.edit_turns, 0.09),
    "record look-up": (records.look_up, 0.09),
    "JSON for a schema": (records.fill_schema, 0.04),
    "quote a sentence": (passages.quote, 0.20),
    "list or repeat a passage": (passages.list_people, 0.035),
    "tool call": (tools.call_tool, 0.07),
    "answer from a tool result": (tools.answer_result, 0.03),
    "greeting, who are you": (talk.small_talk, 0.02),
    "honest refusal": (talk.refuse, 0.03),
}

SYSTEM = [
    "You are a helpful assistant.",
    "You are the Reprise demo model.",
    "Answer with exact quotes.",
    "Be brief.",
    "You edit code and answer questions about documents.",
    "You are a careful assistant that copies text exactly.",
]


def conversations(source: Source) -> Iterator[Conversation]:
    """Yield training samples of all families without end, some with a system message."""
    makers = [make for make, _ in FAMILIES.values()]
    weights = [weight for _, weight in FAMILIES.values()]
    while True:
        (make,) = source.rng.choices(makers, weights)
        sample = make(source)
        if source.chance(0.25):
            sample.messages.insert(0, {"role": "system", "content": source.rng.choice(SYSTEM)})
        yield sample


def held_out(family: str, count: int, seed: int) -> list[Conversation]:
    """Return new samples of one family, at full size, in phrasings that are never trained on."""
    source = Source(random.Random(seed), held_out=True)
    return [FAMILIES[family][0](source) for _ in range(count)]
