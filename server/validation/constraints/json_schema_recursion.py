"""Find recursive JSON schemas that no finite value satisfies."""

from collections import defaultdict
from typing import Any

from reprise.server.validation.constraints.json_schema_nodes import Node, children, list_of, target_of


def find_endless(schema: Node) -> str | None:
    """Return the path of a schema whose every value would contain another one; None if there is none."""
    paths: dict[int, str] = {}
    nodes: dict[int, Node] = {}
    holders: defaultdict[int, list[int]] = defaultdict(list)
    unseen = [("", schema)]
    while unseen:
        path, node = unseen.pop()
        if id(node) in nodes:
            continue
        nodes[id(node)], paths[id(node)] = node, path
        found = list(children(node))
        if (target := target_of(schema, node)) is not None:
            found.append((node["$ref"], target))
        for step, child in found:
            holders[id(child)].append(id(node))
            unseen.append((step if step.startswith("#") else path + step, child))
    ended: set[int] = set()
    # Checked from the end: the schemas found last lie deepest, and the others mostly depend on them.
    waiting = list(nodes)
    while waiting:
        key = waiting.pop()
        if key not in ended and _has_end(schema, nodes[key], ended):
            ended.add(key)
            waiting += holders[key]
    return next((paths[key] or "#" for key in nodes if key not in ended), None)


def _has_end(schema: Node, node: Node, ended: set[int]) -> bool:
    """Return whether a finite value of this schema exists, given the schemas known to have one."""

    def ends(child: object) -> bool:
        return not isinstance(child, dict) or id(child) in ended

    if (target := target_of(schema, node)) is not None and not ends(target):
        return False
    if not all(map(ends, list_of(node.get("allOf")))):
        return False
    for key in ("anyOf", "oneOf"):
        if (choices := list_of(node.get(key))) and not any(map(ends, choices)):
            return False
    return _may_be_scalar(node) or _has_finite_members(node, ends)


def _may_be_scalar(node: Node) -> bool:
    """Return whether a value need not be an object or an array, or is one of a finite list of values."""
    kinds = node.get("type")
    if "const" in node or "enum" in node:
        return True
    holds_objects = "object" in (kinds if isinstance(kinds, list) else [kinds])
    holds_arrays = "array" in (kinds if isinstance(kinds, list) else [kinds])
    if kinds is None or (isinstance(kinds, list) and len(kinds) > holds_objects + holds_arrays):
        return True
    return not holds_objects and not holds_arrays


def _has_finite_members(node: Node, ends: Any) -> bool:
    """Return whether the members that this schema requires of an object or array can be finite."""
    kinds = node["type"] if isinstance(node["type"], list) else [node["type"]]
    members = node.get("properties")
    members = members if isinstance(members, dict) else {}
    names = [name for name in list_of(node.get("required")) if isinstance(name, str)]
    object_ends = all(ends(members.get(name, node.get("additionalProperties"))) for name in names)
    first = list_of(node.get("prefixItems"))
    num_items = node.get("minItems", 0)
    num_items = num_items if isinstance(num_items, int) else 0
    array_ends = all(map(ends, first[:num_items])) and (num_items <= len(first) or ends(node.get("items")))
    return ("object" in kinds and object_ends) or ("array" in kinds and array_ends)
