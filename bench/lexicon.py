"""The words of the bundled model's training text, of which workloads use the first ones.

Common English words, made-up names, and Polish words, all different. Nothing but the standard library is
imported, so that the training script can use it anywhere.
"""

import random


def _words(text: str) -> list[str]:
    return text.split()


NOUNS = _words("""
lantern bridge harbor garden engine basket window river valley market ladder hammer anchor bottle candle
castle circle copper cotton desert dragon falcon feather forest fountain glacier granite helmet island
jacket journal kettle letter library magnet marble meadow mirror mountain needle ocean orchard palace pencil
pepper piano pillow planet pocket pottery prairie rabbit ribbon rocket saddle sailor shadow shelter signal
silver spider spring station stone summer sunset table temple thunder ticket timber tower trumpet tunnel
turtle velvet village violin wagon walnut whistle winter wizard barrel blanket button cabinet camera carpet
cellar chapter charcoal chimney clover compass cradle curtain diamond drawer eagle ember fabric ferry finger
flute gallery goblet grape gravel hazel honey hornet insect ivory jungle kitchen lemon lizard locket maple
mask mill monk moth oak onion orange otter owl oyster paddle parcel parrot pebble pigeon plum poem puzzle
quarry quilt radish raven reef robin rope salmon scarf seed sheep shell spoon statue straw tailor thread
tiger tulip vault wheel willow wolf wool badge bell bench boat book bowl branch brick brush cart chain chair
chest clock cloud coat coin crown dish door drum fence field flag flame flower fork fox frame gate glass
glove grain hill horn horse house key king knife lake lamp leaf lock map mast moon nest nut page path pearl
pen pond
""")

ADJECTIVES = _words("""
amber ancient blue bright broad broken calm careful clean clever cold crimson curious dark deep distant dry
dusty early empty faint fast fierce final fine flat fresh frozen gentle golden grand gray green happy heavy
hidden hollow honest humble large late light little long loud lucky mild modern narrow new noble northern
old pale patient plain polished proud quick quiet rapid rare red rough round rusty sharp short silent slow
small smooth soft solid steady strong sturdy sweet tall tender thick thin tiny vivid warm western white wide
wild wise wooden yellow young
""")

VERBS = _words("""
carry build paint clean count collect deliver fold gather guard hide keep lift measure move open pack plant
polish print pull push repair replace save select send shape ship show sort split stack start stop store
sweep test trace track trade turn update wash watch weigh wrap write bake bind block borrow break bring buy
call carve catch change check choose clear close cook copy cover cut draw drop export fetch fill filter find
fix freeze grow hang heat hold import join label lead learn load mark melt merge mix name order pick place
pour press read reset roll scan search sell serve spin submit swap switch tie update validate wind
""")

FIELDS = _words("""
name city color size price weight height owner role team status level score count width length age year rank
floor code grade speed depth stock shape origin title region budget
""")


def _made_up(count: int, seed: int, taken: set[str]) -> list[str]:
    """Make up words that are not taken, from random syllables."""
    rng = random.Random(seed)
    onsets = _words("b br c cl d dr f fl g gr h j k kl l m n p pr qu r s st t tr v w z")
    vowels = _words("a e i o u")
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

POLISH_NOUNS = _words("""
żółw źródło ścieżka wąwóz łódź gęś ślimak dąb wróbel jeż źdźbło świerszcz książka świeca wieża zamek ręka
głowa noga stół krzesło okno dzwon młyn rzeka jezioro wyspa góra dolina łąka pole ogród sad jabłoń śliwa
grusza wiśnia orzech żyto jęczmień pszenica mąka chleb masło sól pieprz cukier miód mleko śmietana twaróg
ser jajko zupa kasza łyżka widelec nóż talerz szklanka dzbanek kubek garnek piec ogień węgiel drewno dłuto
młotek gwóźdź śruba piła pędzel farba ściana dach próg drzwi zamknięcie klucz skrzynia półka szuflada łóżko
poduszka pościel dywan zasłona lampa żarówka zegar wahadło wąż żaba ryba sum łosoś śledź karp pstrąg rak
mrówka pszczoła osa motyl ćma pająk koń źrebię owca jagnię krowa cielę wół kozioł świnia prosię pies kot
mysz szczur zając królik lis wilk niedźwiedź ryś żubr łoś jeleń sarna dzik bóbr wydra kuna łasica kret
nietoperz sowa orzeł jastrząb sokół bocian żuraw czapla łabędź kaczka kura kogut gołąb kruk wrona sroka
szpak skowronek jaskółka dzięcioł kukułka słowik sikora deszcz śnieg grad mgła burza błyskawica grzmot wiatr
słońce księżyc gwiazda niebo chmura tęcza mróz lód rosa świt zmierzch noc dzień żagiel maszt kotwica wiosło
ster pokład żeglarz rybak młynarz piekarz kowal cieśla szewc krawiec ogrodnik pasterz myśliwy żołnierz
rycerz król królowa książę księżna błazen strażnik posłaniec pieśń bęben skrzypce flet trąbka
""")

POLISH_ADJECTIVES = _words("""
żółty zielony błękitny czarny biały szary brązowy różowy złoty srebrny mały wielki długi krótki wąski
szeroki głęboki płytki ciężki lekki gorący zimny ciepły chłodny suchy mokry świeży stary młody nowy dawny
szybki powolny cichy głośny jasny ciemny ostry tępy miękki twardy gładki szorstki słodki gorzki słony kwaśny
śmiały łagodny mądry głupi dzielny piękny brzydki śliczny ważny prosty krzywy okrągły pusty pełny drogi tani
święty wesoły smętny późny wczesny dziki
""")

POLISH_NAMES = _words("""
Łukasz Małgorzata Świętosław Żaneta Bożena Grażyna Stanisław Władysław Bogusław Mirosław Zdzisław Elżbieta
Wąsowicz Kościuszko Piłsudska Żeromska Mickiewicz Słowacka Gałczyński Święcicka Dąbrowska Wójcik Kamińska
Zieliński Szymański Woźniak Kozłowska Jabłoński Wieczorek Wróblewska Górski Różycka Głowacki Pałka Błaszczyk
Sikorska Źrebiec Kraków Gdańsk Poznań Wrocław Toruń Białystok Świdnica Zakopane Rzeszów Częstochowa Łomża
Płock Słupsk Elbląg Gorzów Wałbrzych Zamość Świnoujście Jarosław Przemyśl Nałęczów Żywiec Cieszyn
Bolesławiec Międzyzdroje Władysławowo Kołobrzeg Malbork Chełm Suwałki Augustów Giżycko Mrągowo Iława Żnin
Wągrowiec Śrem Gostyń Głogów Żagań Żary Bytów
""")
