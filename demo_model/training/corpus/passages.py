"""Samples of quoting and listing from passages."""

from reprise.bench.lexicon import ADJECTIVES, NOUNS
from reprise.demo_model.training.corpus.conversation import Conversation, Source

ABOUT = [
    "Show the exact sentence that is about {topic}.",
    "Tell me what the text says about {topic}, word for word.",
    "Quote the sentence about {topic}.",
    "Quote the sentence that mentions {topic}.",
    "Which sentence mentions {topic}? Quote it.",
    "Find the sentence about {topic} and quote it.",
    "Repeat the sentence that mentions {topic}.",
    "What does the text say about {topic}? Quote the sentence.",
    "Give me the exact sentence about {topic}.",
    "Where is {topic} mentioned? Quote the sentence.",
    "I need the sentence that mentions {topic}, word for word.",
    "Copy the sentence about {topic}.",
    "Please quote the exact sentence that mentions {topic}.",
    "Find the sentence that mentions {topic} and repeat it.",
    "What is the exact sentence about {topic}?",
]
FIRST = [
    "Quote the first sentence.",
    "What is the first sentence?",
    "Repeat the first sentence of the text.",
    "Give me the first sentence.",
    "Please quote the first sentence of the text.",
    "Copy the first sentence.",
]
SUBJECTS = [
    "Whose sentence mentions each of these?",
    "Say for each thing who does something with it.",
    "Name the subject of the sentence about each thing.",
    "Who goes with each of these?",
    "For each thing, name the first word of its sentence.",
    "To whom does each of these belong?",
]
PEOPLE = [
    "List everyone in the text.",
    "List all people in the text.",
    "Who is mentioned in the text? Make a list.",
    "List the people that the text mentions.",
    "Give me a list of all people.",
    "Please list everyone that the text mentions.",
    "Make a list of all people in the text.",
]
WHOLE = [
    "Repeat the text.",
    "Copy the text word for word.",
    "Repeat the whole text.",
    "Give me the text again.",
    "Please repeat the text word for word.",
    "Copy the whole text.",
]
SENTENCES = [
    "{who} {past} the {thing} in the {place}.",
    "{who} {past} {number} {noun}s for {other}.",
    "{who} met {other} near the {thing}.",
    "{who} has a {thing} and a {noun}.",
    "{who} lives in a {thing} behind the {place}.",
    "{who} {past} the {noun} of {other} on day {number}.",
    "{who} never {past} the {thing}.",
    "{who} bought the {thing} for {number} coins from {other}.",
    "{who} said that the {noun} is {number} years old.",
    "{who} wants to {verb} the {thing} with {other}.",
]
PAST = "found lost moved washed painted guarded repaired sorted watched opened carried counted packed".split()


def make_passage(source: Source, count: int) -> list[tuple[str, str, str]]:
    """Generate sentences as (sentence, its subject, another thing that only this sentence mentions)."""
    words, rng = source.words, source.rng
    nouns = iter(rng.sample(NOUNS, 3 * count))
    people = words.names(2 * count)
    sentences = []
    for who, other in zip(people[:count], people[count:], strict=True):
        noun, place, thing = next(nouns), next(nouns), f"{rng.choice(ADJECTIVES)} {next(nouns)}"
        pattern = rng.choice(SENTENCES)
        sentence = pattern.format(
            who=who, other=other, thing=thing, noun=noun, place=place,
            past=rng.choice(PAST), verb=words.verb(), number=words.number(),
        )  # fmt: skip
        sentences.append((sentence, who, f"the {thing}" if "{thing}" in pattern else f"the {noun}"))
    return sentences


def _paragraphs(source: Source, sentences: list[str]) -> str:
    joined = sentences[0]
    for sentence in sentences[1:]:
        joined += ("\n\n" if source.chance(0.12) else " ") + sentence
    return joined


def quote(source: Source) -> Conversation:
    """Make a sample of requests to quote sentences of one passage.

    A sentence is easy to find by its subject, because the answer starts with it. So training asks mostly for
    things later in the sentence, several times per passage.
    """
    if not source.held_out and source.chance(0.2):
        return find_subjects(source)
    made = make_passage(source, source.between(2, 8))
    text = _paragraphs(source, [sentence for sentence, _, _ in made])
    talk = Conversation("quote a sentence")
    for turn in range(1 if source.held_out else source.rng.randint(3, 8)):
        sentence, who, thing = source.rng.choice(made)
        if source.chance(0.1 if source.held_out else 0.04):
            request, sentence = source.say(FIRST), made[0][0]
        else:
            by_subject = source.chance(0.65 if source.held_out else 0.2)
            request = source.say(ABOUT, topic=who if by_subject else thing)
        is_either_way = source.held_out or source.chance(0.3)
        first = source.around(request, text) if is_either_way else f"{text}\n\n{request}"
        talk.user(request if turn else first).assistant(f'"{sentence}"')
    return talk


def find_subjects(source: Source) -> Conversation:
    """Make a sample that asks whose sentence mentions each thing. For training only.

    It teaches the model to go from a word back to the start of its sentence.
    """
    made = make_passage(source, source.rng.choice((2, 3, 4, 5)))
    text = _paragraphs(source, [sentence for sentence, _, _ in made])
    pairs = [
        (word, who) for sentence, who, _ in made for word in sentence.strip(".").split() if word in NOUNS
    ]
    source.rng.shuffle(pairs)
    things = "\n".join(f"- {thing}" for thing, _ in pairs)
    answer = "\n".join(f"- {thing}: {who}" for thing, who in pairs)
    talk = Conversation("quote a sentence")
    request = source.say(SUBJECTS) + "\n" + things
    return talk.user(f"{text}\n\n{request}").assistant(answer)


def list_people(source: Source) -> Conversation:
    """Make a sample that lists the subject of every sentence, or repeats the passage."""
    made = make_passage(source, source.between(2, 8))
    text = _paragraphs(source, [sentence for sentence, _, _ in made])
    talk = Conversation("list or repeat a passage")
    if source.chance(0.5):
        return talk.user(source.around(source.say(WHOLE), text)).assistant(text)
    answer = "\n".join(f"- {who}" for _, who, _ in made)
    return talk.user(source.around(source.say(PEOPLE), text)).assistant(answer)
