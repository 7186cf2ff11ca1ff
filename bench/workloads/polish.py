"""Chats with Polish words: text with diacritics, which different vocabularies tokenize differently.

The requests stay in English; nouns, adjectives and names are replaced by Polish ones, consistently within a
chat and in identifiers too. The bundled Polish draft model was trained on these words.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import replace

from bench.workloads import edits, passages, records
from bench.workloads.chats import Grow, Turn, Workload
from bench.workloads.words import ADJECTIVES, NAMES, NOUNS, words_of

POLISH_NOUNS = words_of("""
żółw źródło ścieżka wąwóz łódź gęś ślimak dąb wróbel jeż źdźbło świerszcz książka świeca wieża zamek ręka
głowa noga stół krzesło okno dzwon młyn rzeka jezioro wyspa góra dolina łąka pole ogród sad jabłoń śliwa
grusza wiśnia orzech żyto jęczmień pszenica mąka chleb masło sól pieprz cukier miód mleko śmietana twaróg
ser jajko zupa kasza łyżka widelec nóż talerz szklanka dzbanek kubek garnek piec ogień węgiel drewno dłuto
młotek gwóźdź śruba piła pędzel farba ściana dach próg drzwi zamknięcie klucz skrzynia półka szuflada
łóżko poduszka pościel dywan zasłona lampa żarówka zegar wahadło wąż żaba ryba sum łosoś śledź karp pstrąg
rak mrówka pszczoła osa motyl ćma pająk koń źrebię owca jagnię krowa cielę wół kozioł świnia prosię pies
kot mysz szczur zając królik lis wilk niedźwiedź ryś żubr łoś jeleń sarna dzik bóbr wydra kuna łasica kret
nietoperz sowa orzeł jastrząb sokół bocian żuraw czapla łabędź kaczka kura kogut gołąb kruk wrona sroka
szpak skowronek jaskółka dzięcioł kukułka słowik sikora deszcz śnieg grad mgła burza błyskawica grzmot
wiatr słońce księżyc gwiazda niebo chmura tęcza mróz lód rosa świt zmierzch noc dzień żagiel maszt kotwica
wiosło ster pokład żeglarz rybak młynarz piekarz kowal cieśla szewc krawiec ogrodnik pasterz myśliwy
żołnierz rycerz król królowa książę księżna błazen strażnik posłaniec pieśń bęben skrzypce flet trąbka
""")

POLISH_ADJECTIVES = words_of("""
żółty zielony błękitny czarny biały szary brązowy różowy złoty srebrny mały wielki długi krótki wąski
szeroki głęboki płytki ciężki lekki gorący zimny ciepły chłodny suchy mokry świeży stary młody nowy dawny
szybki powolny cichy głośny jasny ciemny ostry tępy miękki twardy gładki szorstki słodki gorzki słony
kwaśny śmiały łagodny mądry głupi dzielny piękny brzydki śliczny ważny prosty krzywy okrągły pusty pełny
drogi tani święty wesoły smętny późny wczesny dziki
""")

POLISH_NAMES = words_of("""
Łukasz Małgorzata Świętosław Żaneta Bożena Grażyna Stanisław Władysław Bogusław Mirosław Zdzisław Elżbieta
Wąsowicz Kościuszko Piłsudska Żeromska Mickiewicz Słowacka Gałczyński Święcicka Dąbrowska Wójcik Kamińska
Zieliński Szymański Woźniak Kozłowska Jabłoński Wieczorek Wróblewska Górski Różycka Głowacki Pałka
Błaszczyk Sikorska Źrebiec Kraków Gdańsk Poznań Wrocław Toruń Białystok Świdnica Zakopane Rzeszów
Częstochowa Łomża Płock Słupsk Elbląg Gorzów Wałbrzych Zamość Świnoujście Jarosław Przemyśl Nałęczów
Żywiec Cieszyn Bolesławiec Międzyzdroje Władysławowo Kołobrzeg Malbork Chełm Suwałki Augustów Giżycko
Mrągowo Iława Żnin Wągrowiec Śrem Gostyń Głogów Żagań Żary Bytów
""")

_KINDS = (
    (frozenset(NOUNS), POLISH_NOUNS),
    (frozenset(ADJECTIVES), POLISH_ADJECTIVES),
    (frozenset(name.lower() for name in NAMES), [name.lower() for name in POLISH_NAMES]),
)
_WORD = re.compile(r"[A-Za-z]+")
_SUFFIX = "_polish"


class _Speller:
    """Replaces English words by Polish ones, one for one, until they run out."""

    def __init__(self, rng: random.Random) -> None:
        self._supplies = [iter(rng.sample(polish, len(polish))) for _, polish in _KINDS]
        self._known: dict[str, str] = {}

    def respell(self, text: str) -> str:
        """Return the text with the workloads' nouns, adjectives and names in Polish."""
        return _WORD.sub(lambda match: self._word(match[0]), text)

    def _word(self, word: str) -> str:
        lower = word.lower()
        if lower not in self._known:
            kind = next((at for at, (english, _) in enumerate(_KINDS) if lower in english), None)
            self._known[lower] = lower if kind is None else next(self._supplies[kind], lower)
        other = self._known[lower]
        # Words that are not ours keep their capitals, so they are returned unchanged.
        return word if other == lower else other.capitalize() if word[0].isupper() else other


def in_polish(turns: Sequence[Turn], rng: random.Random) -> list[Turn]:
    """Return the turns of a chat with Polish words in messages and references. Tools and schemas stay."""
    speller = _Speller(rng)
    return [
        replace(
            turn,
            messages=tuple({**one, "content": speller.respell(one["content"])} for one in turn.messages),
            reference=None if turn.reference is None else speller.respell(turn.reference),
        )
        for turn in turns
    ]


def _variant(family: Workload) -> Workload:
    def make(rng: random.Random, grow: Grow) -> Sequence[Turn]:
        return in_polish(family.make(rng, grow), rng)

    return Workload(family.name + _SUFFIX, f"{family.summary}; with Polish words", make)


_FAMILIES = (*edits.WORKLOADS, *passages.WORKLOADS, *records.WORKLOADS)
_CHOSEN = ("edits", "quotes", "passages", "records")

WORKLOADS = tuple(_variant(family) for family in _FAMILIES if family.name in _CHOSEN)
