"""How a JSON schema multiplies: the library writes out every combination of what must hold together."""

from collections import defaultdict
from collections.abc import Iterable

from server.validation.field_errors import field_error
from server.validation.json_schema_nodes import Node, children, target_of

MAX_COMBINATIONS = 64
MAX_LOOKS = 10_000
"""Schemas that are looked at in all, each as often as it is met."""

_TELLS_NOTHING = frozenset(
    {"title", "description", "default", "examples", "$comment", "$id", "$schema", "$defs", "definitions"}
    | {"deprecated", "readOnly", "writeOnly", "discriminator"}
)
_TOO_MANY = f"combines too many alternatives; {MAX_COMBINATIONS} combinations are the limit"


def says_more(node: Node, *keys: str) -> bool:
    """Whether a schema demands anything besides what stands under these keys."""
    return bool(node.keys() - _TELLS_NOTHING - set(keys))


class Alternatives:
    """Counts the combinations of one schema document."""

    def __init__(self, schema: Node) -> None:
        self._schema = schema
        self._known: dict[int, int] = {}
        self._num_looks = 0

    def check(self, at: str = "") -> None:
        """Refuse a schema with too many of them. at: see field_error()."""
        unseen = [(self._schema, at)]
        while unseen:
            node, path = unseen.pop()
            try:
                self._count([node])
            except (OverflowError, RecursionError):
                raise field_error("schema_too_large", _TOO_MANY, path) from None
            unseen += [(child, path + step) for step, child in children(node)]

    def _count(self, nodes: Iterable[Node]) -> int:
        """Combinations of what schemas that must hold together leave open. Raises OverflowError."""
        held = self._held_together(nodes)
        key = next(iter(held)) if len(held) == 1 else None
        if key in self._known:
            return self._known[key]
        if key is not None:
            # What comes back to itself multiplies nothing more.
            self._known[key] = 1
        count = 1
        for node in held.values():
            for name in ("anyOf", "oneOf"):
                if isinstance(choices := node.get(name), list):
                    branches = [choice for choice in choices if isinstance(choice, dict)]
                    count *= max(1, sum(self._count([branch]) for branch in branches))
        for together in _members(held.values()):
            count *= self._count(together)
        is_alone = len(held) == 1 and any(
            not says_more(node, name) for node in held.values() for name in ("anyOf", "oneOf")
        )
        if count > MAX_COMBINATIONS and not is_alone:
            raise OverflowError
        if key is not None:
            self._known[key] = count
        return count

    def _held_together(self, nodes: Iterable[Node]) -> dict[int, Node]:
        """All schemas that must hold where these must, those of references and of allOf among them."""
        held: dict[int, Node] = {}
        seen: set[int] = set()
        unseen = list(nodes)
        while unseen:
            node = unseen.pop()
            self._num_looks += 1
            if self._num_looks > MAX_LOOKS:
                raise OverflowError
            if id(node) in seen:
                continue
            seen.add(id(node))
            if (target := target_of(self._schema, node)) is not None:
                unseen.append(target)
            if isinstance(several := node.get("allOf"), list):
                unseen += [one for one in several if isinstance(one, dict)]
            if says_more(node, "$ref", "allOf"):
                held[id(node)] = node
        return held


def _members(nodes: Iterable[Node]) -> list[list[Node]]:
    """The schemas of properties that several of these speak of."""
    members: defaultdict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        properties = node.get("properties")
        for name, child in properties.items() if isinstance(properties, dict) else ():
            if isinstance(child, dict):
                members[name].append(child)
    return [together for together in members.values() if len(together) > 1]
