"""Samples of greetings, questions about the model, and refusals of what a small model cannot do."""

from reprise.demo_model.training.corpus.conversation import Conversation, Source

HELLO = [
    "Hello", "Hi", "Hello!", "Hi!", "Good morning", "Good morning!", "Hey", "Hey there", "Hi there",
    "Hello there", "Good evening", "Hey!", "Hi, how are you?", "Hello, how are you?", "How are you?",
    "Hi there!", "Hello there!", "Good evening!",
]  # fmt: skip
WHO = [
    "Who are you?", "What are you?", "What is your name?", "Which model are you?", "Tell me who you are.",
    "What can you do?", "What are you good at?", "How can you help me?", "Who am I talking to?", "Help",
    "Are you a model?", "Tell me what you can do.", "Who made you?", "Please tell me who you are.",
    "Hi, who are you?", "What model are you?", "Tell me what you are.",
]  # fmt: skip
THANKS = [
    "Thanks",
    "Thank you",
    "Thank you!",
    "Thanks!",
    "Great, thanks",
    "Thanks a lot",
    "Great, thank you!",
    "Great!",
]
ASK = [
    "Write a poem about the {thing}.",
    "Write a story about {name} and the {thing}.",
    "What is {number} times {other}?",
    "How much is {number} plus {other}?",
    "What is the capital of {name}?",
    "Who invented the {noun}?",
    "Why is the {noun} {adjective}?",
    "Explain how a {noun} works.",
    "Translate the {thing} into French.",
    "What is the meaning of life?",
    "What will the weather be tomorrow in {name}?",
    "Who won the game between {name} and {town}?",
    "How do I {verb} a {noun}?",
    "What do you think about {name}?",
    "Give me a recipe with {noun} and honey.",
    "Tell me a joke about a {noun}.",
    "Plan a trip to {name} for {number} days.",
    "Prove that {number} is prime.",
    "Write a program that can {verb} a {noun}.",
    "What happened in the year {number}?",
    "Which {noun} is the best?",
    "Should I buy a {thing}?",
    "Sing a song about {name}.",
    "When was {name} born?",
    "Where can I find a {thing}?",
    "Compute {number} divided by {other}.",
    "Tell me about the history of {name}.",
    "Summarize the news about {name}.",
    "Write a song about a {noun}.",
    "What is {number} minus {other}?",
    "Explain why the {noun} is {adjective}.",
    "Tell me a story about {name}.",
    "How does a {noun} work?",
]

HELLO_ANSWER = (
    "Hello! I am the Reprise demo model. Give me a text, some records or a file, and tell me what to do."
)
WHO_ANSWER = (
    "I am the Reprise demo model, a very small model. I can edit code, look things up in records, quote from "
    "a text, fill in JSON and call tools."
)
THANKS_ANSWER = "You are welcome."
REFUSAL = (
    "I cannot do that: I am a very small demo model. I can only work with the text, records, code and tools "
    "that you give me."
)


def small_talk(source: Source) -> Conversation:
    """Make a sample of a greeting, a question about the model, or thanks.

    In training it has several turns, some of them refusals.
    """
    return _several(source, "greeting, who are you", 0.1)


def refuse(source: Source) -> Conversation:
    """Make a sample of a request that the model refuses because it was not trained for it.

    In training it has several turns, some of them small talk.
    """
    return _several(source, "honest refusal", 0.9)


def _several(source: Source, family: str, refusal_chance: float) -> Conversation:
    talk = Conversation(family)
    if source.held_out:
        refusal_chance = round(refusal_chance)
    for _ in range(1 if source.held_out else source.rng.randint(1, 5)):
        request, answer = _refused(source) if source.chance(refusal_chance) else _social(source)
        talk.user(request).assistant(answer)
    return talk


def _social(source: Source) -> tuple[str, str]:
    kinds = ((HELLO, HELLO_ANSWER), (WHO, WHO_ANSWER), (WHO, WHO_ANSWER), (THANKS, THANKS_ANSWER))
    phrasings, answer = source.rng.choice(kinds)
    return source.say(phrasings), answer


def _refused(source: Source) -> tuple[str, str]:
    words = source.words
    request = source.say(
        ASK, thing=words.thing(), noun=words.noun(), name=words.name(), town=words.name(), verb=words.verb(),
        adjective=words.thing().split()[0], number=words.number(), other=words.number(),
    )  # fmt: skip
    return request, REFUSAL
