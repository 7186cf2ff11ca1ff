"""Limit the combinations of alternatives in a JSON schema: the grammar library expands each of them."""

from collections import defaultdict
from collections.abc import Iterable

from server.validation.field_errors import field_error
from server.validation.json_schema_nodes import Node, children, target_of

MAX_COMBINATIONS = 64
MAX_VISITS = 10_000
"""Maximum visits to schemas in total; visiting a schema again counts again."""

_ANNOTATIONS = frozenset(
    {"title", "description", "default", "examples", "$comment", "$id", "$schema", "$defs", "definitions"}
    | {"deprecated", "readOnly", "writeOnly", "discriminator"}
)
_TOO_MANY = f"combines too many alternatives; at most {MAX_COMBINATIONS} combinations are allowed"


def constrains_besides(node: Node, *keys: str) -> bool:
    """Return whether a schema constrains values by keywords other than these."""
    return bool(node.keys() - _ANNOTATIONS - set(keys))


class Alternatives:
    """The combinations of alternatives in one schema document."""

    def __init__(self, schema: Node) -> None:
        self._schema = schema
        self._known: dict[int, int] = {}
        self._num_visits = 0

    def check(self, at: str = "") -> None:
        """Refuse a schema with too many combinations. at: see field_error()."""
        unseen = [(self._schema, at)]
        while unseen:
            node, path = unseen.pop()
            try:
                self._count([node])
            except (OverflowError, RecursionError):
                raise field_error("schema_too_large", _TOO_MANY, path) from None
            unseen += [(child, path + step) for step, child in children(node)]

    def _count(self, nodes: Iterable[Node]) -> int:
        """Count the combinations of alternatives of schemas that apply to the same value.

        Raises OverflowError if there are too many.
        """
        applied = self._applied_together(nodes)
        key = next(iter(applied)) if len(applied) == 1 else None
        if key in self._known:
            return self._known[key]
        if key is not None:
            # A schema that refers back to itself adds no further combinations.
            self._known[key] = 1
        count = 1
        for node in applied.values():
            for name in ("anyOf", "oneOf"):
                if isinstance(choices := node.get(name), list):
                    branches = [choice for choice in choices if isinstance(choice, dict)]
                    count *= max(1, sum(self._count([branch]) for branch in branches))
        for together in _members(applied.values()):
            count *= self._count(together)
        is_alone = len(applied) == 1 and any(
            not constrains_besides(node, name) for node in applied.values() for name in ("anyOf", "oneOf")
        )
        if count > MAX_COMBINATIONS and not is_alone:
            raise OverflowError
        if key is not None:
            self._known[key] = count
        return count

    def _applied_together(self, nodes: Iterable[Node]) -> dict[int, Node]:
        """Return these schemas and those that they apply with $ref and allOf, by identity."""
        applied: dict[int, Node] = {}
        seen: set[int] = set()
        unseen = list(nodes)
        while unseen:
            node = unseen.pop()
            self._num_visits += 1
            if self._num_visits > MAX_VISITS:
                raise OverflowError
            if id(node) in seen:
                continue
            seen.add(id(node))
            if (target := target_of(self._schema, node)) is not None:
                unseen.append(target)
            if isinstance(several := node.get("allOf"), list):
                unseen += [one for one in several if isinstance(one, dict)]
            if constrains_besides(node, "$ref", "allOf"):
                applied[id(node)] = node
        return applied


def _members(nodes: Iterable[Node]) -> list[list[Node]]:
    """Group the schemas of each property that several of these schemas constrain."""
    members: defaultdict[str, list[Node]] = defaultdict(list)
    for node in nodes:
        properties = node.get("properties")
        for name, child in properties.items() if isinstance(properties, dict) else ():
            if isinstance(child, dict):
                members[name].append(child)
    return [together for together in members.values() if len(together) > 1]
