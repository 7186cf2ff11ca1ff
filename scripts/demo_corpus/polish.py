"""Put Polish words into the corpus: text with diacritics, for a model of another vocabulary.

The sentences stay English and the tasks stay the same. Nouns, adjectives and names become Polish, each the
same throughout a conversation.
"""

import random
import re

from demo_corpus.lexicon import ADJECTIVES, COINED, NAMES, NOUNS

POLISH_NOUNS = """
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
""".split()

POLISH_ADJECTIVES = """
żółty zielony błękitny czarny biały szary brązowy różowy złoty srebrny mały wielki długi krótki wąski
szeroki głęboki płytki ciężki lekki gorący zimny ciepły chłodny suchy mokry świeży stary młody nowy dawny
szybki powolny cichy głośny jasny ciemny ostry tępy miękki twardy gładki szorstki słodki gorzki słony
kwaśny śmiały łagodny mądry głupi dzielny piękny brzydki śliczny ważny prosty krzywy okrągły pusty pełny
drogi tani święty wesoły smętny późny wczesny dziki
""".split()

POLISH_NAMES = """
Łukasz Małgorzata Świętosław Żaneta Bożena Grażyna Stanisław Władysław Bogusław Mirosław Zdzisław Elżbieta
Wąsowicz Kościuszko Piłsudska Żeromska Mickiewicz Słowacka Gałczyński Święcicka Dąbrowska Wójcik Kamińska
Zieliński Szymański Woźniak Kozłowska Jabłoński Wieczorek Wróblewska Górski Różycka Głowacki Pałka
Błaszczyk Sikorska Źrebiec Kraków Gdańsk Poznań Wrocław Toruń Białystok Świdnica Zakopane Rzeszów
Częstochowa Łomża Płock Słupsk Elbląg Gorzów Wałbrzych Zamość Świnoujście Jarosław Przemyśl Nałęczów
Żywiec Cieszyn Bolesławiec Międzyzdroje Władysławowo Kołobrzeg Malbork Chełm Suwałki Augustów Giżycko
Mrągowo Iława Żnin Wągrowiec Śrem Gostyń Głogów Żagań Żary Bytów
""".split()

_KINDS = [
    (set(NOUNS) | set(COINED), POLISH_NOUNS),
    (set(ADJECTIVES), POLISH_ADJECTIVES),
    ({name.lower() for name in NAMES}, [name.lower() for name in POLISH_NAMES]),
]


def in_polish(pieces: list[tuple[str, bool]], rng: random.Random) -> list[tuple[str, bool]]:
    """Replace the nouns, adjectives and names of a rendered conversation by Polish ones."""
    known: dict[str, str] = {}
    supplies = [iter(rng.sample(words, len(words))) for _, words in _KINDS]

    def respell(match: re.Match[str]) -> str:
        word = match[0].lower()
        if word not in known:
            kind = next((k for k, (words, _) in enumerate(_KINDS) if word in words), None)
            known[word] = word if kind is None else next(supplies[kind], word)
        return known[word].capitalize() if match[0][0].isupper() else known[word]

    return [(re.sub(r"[A-Za-z]+", respell, text), is_answer) for text, is_answer in pieces]
