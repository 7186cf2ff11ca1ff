"""Set keys at the top of a YAML file's text. All other lines stay, comments too."""

from collections.abc import Mapping
from typing import Any

import yaml

from reprise.config.agents.merge import merge


class YamlTextError(ValueError):
    """A comment would be lost, or the text is written in a way that cannot be edited."""


def set_keys(text: str, settings: Mapping[str, Any]) -> str:
    """Return the text with the settings set.

    settings: values by the file's top-level keys. A value that is replaced must have no comment within.
    Raises YAMLError if the text is not YAML, and YamlTextError.
    """
    held = yaml.safe_load(text)
    if not isinstance(held, Mapping):
        raise YamlTextError("it does not hold a table")
    merged = merge(held, settings)
    changed = text if text.endswith("\n") else text + "\n"
    for key in settings:
        if key in held and held[key] == merged[key]:
            continue
        dumped = yaml.safe_dump({key: merged[key]}, sort_keys=False, allow_unicode=True)
        span = _span(changed, key)
        if span is None:
            changed += dumped
            continue
        start, end = span
        if _has_comments(changed[start:end]):
            raise YamlTextError(f"the comments in {key} would be lost")
        changed = changed[:start] + dumped.rstrip() + changed[end:]
    if yaml.safe_load(changed) != merged:
        raise YamlTextError("it holds these settings in another form")
    return changed


def _span(text: str, key: str) -> tuple[int, int] | None:
    """Return where a key and its value begin and end; None if it is not there.

    A value on one line ends before a comment beside it, any other with its last line.
    """
    node = yaml.compose(text)
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        raise YamlTextError("it is written in braces")
    for name, value in node.value:
        if name.value == key:
            start = name.start_mark.index
            if value.start_mark.line == value.end_mark.line:
                return start, value.end_mark.index
            # A block's end is where the next token begins, after blank lines and comments of others.
            lines = text[start : value.end_mark.index].splitlines(keepends=True)
            while lines and (not lines[-1].strip() or lines[-1].lstrip().startswith("#")):
                lines.pop()
            return start, start + len("".join(lines).rstrip())
    return None


def _has_comments(text: str) -> bool:
    """Find a # outside of scalars, which is where YAML's comments are."""
    rest = list(text)
    for token in yaml.scan(text):
        if isinstance(token, yaml.ScalarToken):
            start, end = token.start_mark.index, token.end_mark.index
            rest[start:end] = " " * (end - start)
    return "#" in rest
