"""The words of the corpus: common English words and made-up names.

The tokenizer is trained so that every word is one token (see train_demo_model.py). Words are combined at
random, so there is nothing to memorize: a model that does well has learned to copy.
"""

import random

NOUNS = """
lantern bridge harbor garden engine basket window river valley market ladder hammer anchor bottle candle
castle circle copper cotton desert dragon falcon feather forest fountain glacier granite helmet island jacket
journal kettle letter library magnet marble meadow mirror mountain needle ocean orchard palace pencil pepper
piano pillow planet pocket pottery prairie rabbit ribbon rocket saddle sailor shadow shelter signal silver
spider spring station stone summer sunset table temple thunder ticket timber tower trumpet tunnel turtle
velvet village violin wagon walnut whistle winter wizard barrel blanket button cabinet camera carpet cellar
chapter charcoal chimney clover compass cradle curtain diamond drawer eagle ember fabric ferry finger flute
gallery goblet grape gravel hazel honey hornet insect ivory jungle kitchen lemon lizard locket maple mask
mill monk moth oak onion orange otter owl oyster paddle parcel parrot pebble pigeon plum poem puzzle quarry
quilt radish raven reef robin rope salmon scarf seed sheep shell spoon statue straw tailor thread tiger tulip
vault wheel willow wolf wool badge bell bench boat book bowl branch brick brush cart chain chair chest clock
cloud coat coin crown dish door drum fence field flag flame flower fork fox frame gate glass glove grain
hill horn horse house key king knife lake lamp leaf lock map mast moon nest nut page path pearl pen pond
""".split()

ADJECTIVES = """
amber ancient blue bright broad broken calm careful clean clever cold crimson curious dark deep distant dry
dusty early empty faint fast fierce final fine flat fresh frozen gentle golden grand gray green happy heavy
hidden hollow honest humble large late light little long loud lucky mild modern narrow new noble northern old
pale patient plain polished proud quick quiet rapid rare red rough round rusty sharp short silent slow small
smooth soft solid steady strong sturdy sweet tall tender thick thin tiny vivid warm western white wide wild
wise wooden yellow young
""".split()

VERBS = """
carry build paint clean count collect deliver fold gather guard hide keep lift measure move open pack plant
polish print pull push repair replace save select send shape ship show sort split stack start stop store sweep
test trace track trade turn update wash watch weigh wrap write bake bind block borrow break bring buy call
carve catch change check choose clear close cook copy cover cut draw drop export fetch fill filter find fix
freeze grow hang heat hold import join label lead learn load mark melt merge mix name order pick place pour
press read reset roll scan search sell serve spin submit swap switch tie update validate wind
""".split()

FIELDS = """
name city color size price weight height owner role team status level score count width length age year rank
floor code grade speed depth stock shape origin title region budget
""".split()


def _made_up(count: int, seed: int, taken: set[str]) -> list[str]:
    rng = random.Random(seed)
    onsets = "b br c cl d dr f fl g gr h j k kl l m n p pr qu r s st t tr v w z".split()
    vowels = "a e i o u".split()
    codas = ["", "", "l", "n", "r", "s", "m", "k", "x", "nd", "rt"]
    words: list[str] = []
    while len(words) < count:
        word = rng.choice(onsets) + rng.choice(vowels)
        word += rng.choice(onsets) + rng.choice(vowels) + rng.choice(codas)
        if word not in taken and 4 <= len(word) <= 7:
            taken.add(word)
            words.append(word)
    return words


_taken = set(NOUNS) | set(ADJECTIVES) | set(VERBS) | set(FIELDS)
NAMES = [word.capitalize() for word in _made_up(320, 1, _taken)]
COINED = _made_up(260, 2, _taken)
IDENTIFIER_WORDS = sorted(set(NOUNS + ADJECTIVES + VERBS + COINED))


class Words:
    """Random words and phrases from a seeded random source."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng

    def name(self) -> str:
        """Return a name of a person or place: one or two capitalized made-up words."""
        return " ".join(self.rng.sample(NAMES, self.rng.choice((1, 1, 1, 2))))

    def names(self, count: int) -> list[str]:
        """Return names of one or two words, all with different first words."""
        first = self.rng.sample(NAMES, count)
        return [f"{n} {self.rng.choice(NAMES)}" if self.rng.random() < 0.25 else n for n in first]

    def noun(self) -> str:
        """Return a noun."""
        return self.rng.choice(NOUNS)

    def thing(self) -> str:
        """Return an adjective and a noun."""
        return f"{self.rng.choice(ADJECTIVES)} {self.rng.choice(NOUNS)}"

    def verb(self) -> str:
        """Return a verb."""
        return self.rng.choice(VERBS)

    def identifier(self) -> str:
        """Return a snake_case identifier of one or two words, sometimes with a number."""
        words = self.rng.sample(IDENTIFIER_WORDS, self.rng.choice((1, 1, 2, 2)))
        if self.rng.random() < 0.05:
            words.append(str(self.number()))
        return "_".join(words)

    def identifiers(self, count: int) -> list[str]:
        """Return different identifiers."""
        found: dict[str, None] = {}
        while len(found) < count:
            found[self.identifier()] = None
        return list(found)

    def number(self) -> int:
        """Return a whole number of one to four digits."""
        return self.rng.randrange(self.rng.choice((10, 100, 100, 100, 1000, 10000)))

    def odd(self) -> str:
        """Return a string of random letters and digits, which is not a word of any tokenizer."""
        letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
        return "".join(self.rng.choice(letters) for _ in range(self.rng.randint(3, 9)))

    def value(self) -> str | int:
        """Return a field's value: a name, a noun, two words, a number, or rarely random characters."""
        kind = self.rng.random()
        if kind < 0.3:
            return self.name()
        if kind < 0.45:
            return self.noun()
        if kind < 0.6:
            return self.thing()
        return self.number() if kind < 0.99 else self.odd()
