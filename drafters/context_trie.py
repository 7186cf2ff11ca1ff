"""Where the end of a growing text has occurred before: a trie of the contexts of all its positions.

The context of a position is the text before it, read backwards. Contexts that begin alike share a path from
the root, and edges are compressed (Morrison's PATRICIA, 1968): a node stands only where contexts part. So a
token adds at most two nodes, however much of the text is repeated, and inserting it passes at most `longest`
nodes, however long the text is. A token takes 70 to 140 bytes.
"""

from array import array
from collections.abc import Sequence

_BEFORE_TEXT = -1  # stands before the first token; no id, so no context matches another's beyond the text
_SPREAD = 2654435761  # above every id, so (node, id) pairs have keys of their own, and odd, so they spread


class ContextTrie:
    """A text, and the newest earlier occurrence of its end.

    longest: tokens of a context that are told apart, >= 1.

    place: index into `text` of what followed that occurrence; below len(text) unless the text is empty.
    length: tokens that matched, in [0, longest]; 0 for no occurrence.
    text: longest fillers, then the tokens, each in [0, 2**31).
    """

    __slots__ = ("_children", "_depths", "_lasts", "length", "longest", "place", "text")

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self.place = 0
        self.length = 0
        self.text = array("i", [_BEFORE_TEXT]) * longest
        # By node; the root is node 0. last: the newest position whose context passes here.
        self._depths = array("i", [0])
        self._lasts = array("i", [0])
        self._children: dict[int, int] = {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens and find the longest match of the new end, of equally long ones the newest.

        Raises OverflowError for an id outside of 32 bits.
        """
        text, children, depths, lasts, longest = (
            self.text,
            self._children,
            self._depths,
            self._lasts,
            self.longest,
        )
        place, length = self.place, self.length
        for token in tokens:
            text.append(token)
            end = len(text)
            place = length = node = 0
            while length < longest:
                key = node * _SPREAD + text[end - 1 - length]
                child = children.get(key)
                if child is None:
                    children[key] = len(lasts)
                    depths.append(longest)
                    lasts.append(end)
                    break
                place = lasts[child]
                depth = depths[child]
                if (
                    depth - length > 1
                    and text[end - depth : end - 1 - length] != text[place - depth : place - 1 - length]
                ):
                    length += 1
                    while text[end - 1 - length] == text[place - 1 - length]:
                        length += 1
                    # The two contexts part here, half way to the child: a node for what they share.
                    fork = len(lasts)
                    children[key] = fork
                    children[fork * _SPREAD + text[place - 1 - length]] = child
                    children[fork * _SPREAD + text[end - 1 - length]] = fork + 1
                    depths.extend((length, longest))
                    lasts.extend((end, end))
                    break
                lasts[child] = end
                node, length = child, depth
        self.place, self.length = place, length

    def continuation(self, limit: int) -> list[int]:
        """What followed the match: limit tokens, or none without a match.

        Where that runs into the end of the text it goes on with itself, as a repeating pattern does.
        """
        if not self.length:
            return []
        tokens = self.text[self.place : self.place + limit].tolist()
        if len(tokens) < limit:
            tokens = (tokens * (limit // len(tokens) + 1))[:limit]
        return tokens
