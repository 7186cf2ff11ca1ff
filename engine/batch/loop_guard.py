"""Find out whether an answer only repeats one text by now, and would do so for ever."""

from collections.abc import Sequence

TIMES = 8
"""How often a text must be repeated to count as a loop."""
LEAST_TOKENS = 64
"""The fewest tokens of a loop, whatever a request says: less is an ordinary line."""


def ends_in_loop(tokens: Sequence[int], num_answered: int, loop_tokens: int) -> bool:
    """Return whether an answer ends with one text repeated TIMES times or more, over loop_tokens or more.

    tokens: (n,) ids that end with the answer. num_answered: how many of them the answer has.
    loop_tokens: 0 for never; fewer than LEAST_TOKENS count as so many.

    A window of loop_tokens finds repeated texts of up to an eighth of its length; windows of 2, 4, ... times
    that length find longer texts. Each window is checked when the answer's length is a multiple of an eighth
    of the window. So tokens alone decide, not the steps in which they came.
    """
    if not loop_tokens:
        return False
    window = max(loop_tokens, LEAST_TOKENS)
    while window <= num_answered:
        longest = window // TIMES
        if num_answered % longest == 0 and _repeats(tokens[-window:], longest):
            return True
        window *= 2
    return False


def _repeats(tail: Sequence[int], longest: int) -> bool:
    """Return whether some text of at most longest tokens, again and again, is the whole tail."""
    # A text of that length would hold all ids of the tail. Nearly every other tail has more.
    return len(set(tail)) == len(set(tail[-longest:])) and _period(tail) <= longest


def _period(tokens: Sequence[int]) -> int:
    """Return the least p with tokens[i] == tokens[i + p] everywhere. Source: Knuth, Morris and Pratt 1977."""
    borders, length = [0] * len(tokens), 0
    for at in range(1, len(tokens)):
        while length and tokens[at] != tokens[length]:
            length = borders[length - 1]
        length += tokens[at] == tokens[length]
        borders[at] = length
    return len(tokens) - borders[-1]
