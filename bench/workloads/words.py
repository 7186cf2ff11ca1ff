"""The vocabulary of the workloads: plain English words and invented names, drawn at random.

The bundled model was trained on these words. Names have no meaning, so a model can only copy them.
"""

import keyword
import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Generic, TypeVar


def words_of(text: str) -> list[str]:
    """Split a text into its words."""
    return text.split()


NOUNS = words_of("""
lantern bridge harbor garden engine basket window river valley market ladder hammer anchor bottle candle
castle circle copper cotton desert dragon falcon feather forest fountain glacier granite helmet island
jacket journal kettle letter library magnet marble meadow mirror mountain needle ocean orchard palace
pencil pepper piano pillow planet pocket pottery prairie rabbit ribbon rocket saddle sailor shadow
shelter signal silver spider spring station stone summer sunset table temple thunder ticket timber tower
trumpet tunnel turtle velvet village violin wagon walnut whistle winter wizard barrel blanket button
cabinet camera carpet cellar chapter charcoal chimney clover compass cradle curtain diamond drawer eagle
ember fabric ferry finger flute gallery goblet grape gravel hazel honey hornet insect ivory jungle
kitchen lemon lizard locket maple mask mill monk moth oak onion orange otter owl oyster paddle parcel
parrot pebble pigeon plum poem puzzle quarry quilt radish raven reef robin rope salmon scarf seed sheep
shell spoon statue straw tailor thread tiger tulip vault wheel willow wolf wool badge bell bench boat
book bowl branch brick brush cart chain chair chest clock cloud coat coin crown
""")

ADJECTIVES = words_of("""
amber ancient blue bright broad broken calm careful clean clever cold crimson curious dark deep distant
dry dusty early empty faint fast fierce final fine flat fresh frozen gentle golden grand gray green happy
heavy hidden hollow honest humble large late light little long loud lucky mild modern narrow new noble
northern old pale patient plain polished proud quick quiet
""")

VERBS = words_of("""
carry build paint clean count collect deliver fold gather guard hide keep lift measure move open pack
plant polish print pull push repair replace save select send shape ship show sort split stack start stop
store sweep test trace track trade turn update wash watch weigh wrap write bake bind block borrow break
bring buy call carve catch change check choose clear close cook copy cover cut draw drop export fetch
fill filter find fix freeze grow hang heat hold
""")

FIELDS = words_of("""
name city color size price weight height owner role team status level score count width length age year
rank floor code grade speed depth stock shape origin title region budget
""")

NAMES = words_of("""
Duzar Clotrok Rove Mawom Quastor Tepras Babu Keklax Flomun Jesek Cleri Titum Negrind Muku Metom Sejurt
Ticort Natrex Wojo Magrund Prorel Nebex Zuflox Jujor Suquam Vuvex Trufo Miprun Nomim Japund Vuhond Berex
Prezax Vibra Zalar Fliclul Jicel Gudrirt Stilik Mabim Hover Clitun Quowan Bodal Lusox Weruk Fluram Suvirt
Robril Fagra Gritem Pridax Zaprend Lewux Brofi Fusond Foclor Nobind Zogral Fivul Hofirt Clopirt Potrun
Cacel Drufis Quuwis Hiclin Zutrol Prutras Brocol Wehand Procux Flucis Grupak Gavar Busa Klawan Flukle
Lesel Taklox Wipik Hafi Bavind Hokim Cahuk Clifux Zosir Drufin Flici Trocurt Heki Hehur Prucen Bekar Pata
Ragrik Meclus Cusel Tredir Cluwur Dedu Triwurt Pedrim Pebrer Trasom Pipox Lakil Gobond Bastind Duder
Wikum Drucek Benix Rosen Hoson Stohund Tire Curil Negrir Zujek Quazand Nukel Gofu Mostim Nepax Cirar
Tadurt Salem Vokes Lequon Cloquum Cligem Tubex Lubart Quewin Dridun Giprirt Lepik Kegra Clutax Grecus
Juha Lojix Kivuk Clokex Birux Foquum Tistek Quufix Boprom Huprak Terirt Botert Trovil Trawu Jivort Pidor
Melu Guclum Cico Druste Kiquin Neflir Casturt Jonu Drirur Jutem Podror Zuher Quezand Kikler Farend Lutend
Gonel Trestos Groflan Stican Kimal Bravu Tresak Stuwuk Hiclul Clekek Lotren Flilund Kelis Mucle Bravak
Hozur Fodre Bodu Proge Libax Bruwe Gaklan Borer Sesom Higen Bruvul Joquurt Najum Pestum Sastind Tage Dafo
Brawuk Nicli Dubrort Dotro Tugar Vici Zobris Tego Ziclon Nufis Nopro Donund Stupar Tefim Niclos Ducar
Wuhor Higix Nanal Hivind Cogok Jowand Vadax Muzin Stutis Vikik Quipul Begend Dadrond Brapi Ficux Razan
Reno Prizor Flequon
""")

IDENTIFIER_WORDS = sorted({*NOUNS, *ADJECTIVES, *VERBS} - set(keyword.kwlist))

ItemT = TypeVar("ItemT")
_NUM_SINGLE = 160
"""Number of names used alone; the others are used in pairs, so that no name is part of another."""


class Supply(Generic[ItemT]):
    """An endless sequence of items, made on demand and kept."""

    def __init__(self, made: Iterator[ItemT]) -> None:
        self._made = made
        self._kept: list[ItemT] = []

    def first(self, count: int) -> list[ItemT]:
        """Return the first count items."""
        self._kept += islice(self._made, max(0, count - len(self._kept)))
        return self._kept[:count]


def names(rng: random.Random) -> Iterator[str]:
    """Yield distinct names of people: single words first, then pairs."""
    yield from rng.sample(NAMES[:_NUM_SINGLE], _NUM_SINGLE)
    yield from _distinct(lambda: " ".join(rng.sample(NAMES[_NUM_SINGLE:], 2)))


def identifiers(rng: random.Random) -> Iterator[str]:
    """Yield distinct identifiers of one or two words."""
    return _distinct(lambda: "_".join(rng.sample(IDENTIFIER_WORDS, rng.choice((1, 1, 2)))))


def thing(rng: random.Random) -> str:
    """Return an adjective and a noun."""
    return f"{rng.choice(ADJECTIVES)} {rng.choice(NOUNS)}"


def number(rng: random.Random) -> int:
    """Return a whole number of up to four digits."""
    return rng.randrange(rng.choice((10, 100, 100, 100, 1000, 10000)))


def value(rng: random.Random) -> str | int:
    """Return a value for a field: a name, a word, two words or a number."""
    kind = rng.random()
    if kind < 0.3:
        return rng.choice(NAMES)
    if kind < 0.6:
        return rng.choice(NOUNS) if kind < 0.45 else thing(rng)
    return number(rng)


def _distinct(make: Callable[[], str]) -> Iterator[str]:
    """Yield the results of make without repetitions."""
    seen: set[str] = set()
    while True:
        made = make()
        if made not in seen:
            seen.add(made)
            yield made
