"""Find earlier occurrences of the end of a growing text, in a trie of the contexts of all its positions.

The context of a position is the text before it, read backwards. Contexts that start with the same tokens
share a path from the root. Edges are compressed (Morrison's PATRICIA, 1968): a node exists only where
contexts diverge. A token therefore adds at most two nodes, however much of the text is repeated, and
inserting it visits at most `max_length` nodes, however long the text is. A token takes 70 to 140 bytes.

The nodes' children are in many small dictionaries instead of a large one, because a dictionary is copied when
it grows, and freed entry by entry: 10 ms each for a text of 100,000 tokens.
"""

from array import array
from collections.abc import Sequence

from drafters.base import Slices

# Stands before the first token. It is not a valid id, so no match extends beyond the start of the text.
_FILLER = -1
# Greater than every id, so that (node, id) pairs have distinct keys; odd, so that the keys spread.
_KEY_FACTOR = 2654435761
_NUM_SHARDS = 64  # a power of two


class ContextTrie:
    """A growing text and the newest of the longest earlier occurrences of its end.

    max_length: maximum length of a match in tokens, >= 1.

    position: index into `text` of the token after the match; below len(text) unless the text is empty.
    length: length of the match in tokens, in [0, max_length]; 0 if there is none.
    text: max_length fillers, then the tokens, each in [0, 2**31).
    """

    __slots__ = ("_children", "_depths", "_newest", "length", "max_length", "position", "text")

    def __init__(self, max_length: int) -> None:
        self.max_length = max_length
        self.position = 0
        self.length = 0
        self.text = array("i", [_FILLER]) * max_length
        # By node number; the root is 0. _newest: the newest position whose context passes through the node.
        self._depths = array("i", [0])
        self._newest = array("i", [0])
        self._children: list[dict[int, int]] = [{} for _ in range(_NUM_SHARDS)]

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens and find the longest match of the new end; of equally long ones, the newest.

        Raises OverflowError for an id that does not fit in 32 bits.
        """
        text, children, depths, newest, max_length = (
            self.text,
            self._children,
            self._depths,
            self._newest,
            self.max_length,
        )
        last_shard = _NUM_SHARDS - 1
        position, length = self.position, self.length
        for token in tokens:
            text.append(token)
            end = len(text)
            position = length = node = 0
            while length < max_length:
                key = node * _KEY_FACTOR + text[end - 1 - length]
                shard = children[key & last_shard]
                child = shard.get(key)
                if child is None:
                    shard[key] = len(newest)
                    depths.append(max_length)
                    newest.append(end)
                    break
                position = newest[child]
                depth = depths[child]
                if (
                    depth - length > 1
                    and text[end - depth : end - 1 - length] != text[position - depth : position - 1 - length]
                ):
                    length += 1
                    while text[end - 1 - length] == text[position - 1 - length]:
                        length += 1
                    # The two contexts diverge on the edge to the child: split it where they do.
                    fork = len(newest)
                    shard[key] = fork
                    key = fork * _KEY_FACTOR + text[position - 1 - length]
                    children[key & last_shard][key] = child
                    key = fork * _KEY_FACTOR + text[end - 1 - length]
                    children[key & last_shard][key] = fork + 1
                    depths.extend((length, max_length))
                    newest.extend((end, end))
                    break
                newest[child] = end
                node, length = child, depth
        self.position, self.length = position, length

    def free(self) -> Slices:
        """Return the work of freeing the nodes. The trie cannot be used any more."""
        while self._children:
            self._children.pop()
            yield 0

    def continuation(self, limit: int) -> list[int]:
        """Return the limit tokens that followed the match, or none if there is no match.

        If the end of the text is reached, the continuation repeats itself, as a periodic text would.
        """
        if not self.length:
            return []
        tokens = self.text[self.position : self.position + limit].tolist()
        if len(tokens) < limit:
            tokens = (tokens * (limit // len(tokens) + 1))[:limit]
        return tokens
