"""Write docs/api.md and docs/metrics.md from the code: `python -m reprise.server.reference`."""

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fastapi.routing import APIRoute

from reprise.config.version import VERSION
from reprise.server.app import BODIES, ROUTES
from reprise.server.errors import ApiError
from reprise.server.metrics.definitions import GROUPS, MODEL, Metric, MetricGroup
from reprise.server.validation.fields import INSIDE, REFUSED
from reprise.server.validation.peer_fields import LEFT_OUT, UNDERSTOOD


def table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [heads, ["---"] * len(heads), *([escape_cell(cell) for cell in row] for row in rows)]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def escape_cell(text: str) -> str:
    """Put text on one line and escape the pipes in it."""
    return " ".join(text.split()).replace("|", r"\|")


Schema = Mapping[str, Any]

_TYPES = {"string": "string", "integer": "integer", "number": "number", "boolean": "boolean"}


def resolved(schema: Schema, definitions: Schema) -> Schema:
    """Follow $ref; return a schema without one unchanged."""
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    return schema


def alternatives(schema: Schema, definitions: Schema) -> Iterator[Schema]:
    """Yield the alternatives of anyOf, except null, which always means the default."""
    schema = resolved(schema, definitions)
    for one in schema.get("anyOf") or [schema]:
        if one is not schema:
            yield from alternatives(one, definitions)
        elif schema.get("type") != "null":
            yield schema


def describe_type(schema: Schema, definitions: Schema) -> str:
    """Return the type of a field and its limits, such as `integer (0 to 20)`."""
    words = [_one(schema, definitions) for schema in alternatives(schema, definitions)]
    return " or ".join(dict.fromkeys(words))


def code(value: object) -> str:
    """Return a JSON value as Markdown code."""
    return f"`{json.dumps(value, ensure_ascii=False)}`"


def _one(schema: Schema, definitions: Schema) -> str:
    if "const" in schema:
        return code(schema["const"])
    if "enum" in schema:
        return ", ".join(code(value) for value in schema["enum"] if value is not None)
    match schema.get("type"):
        case None:
            return "anything"
        case "array":
            entries = _plural(describe_type(schema.get("items", {}), definitions))
            text = f"array of {entries}" + _limits(schema, "minItems", "maxItems", " entries")
            return text.replace(") (", "; ")
        case "object":
            values = schema.get("additionalProperties")
            held = f" of {_plural(_one(values, definitions))}" if isinstance(values, dict) else ""
            return f"object{held}" + _limits(schema, "minProperties", "maxProperties", " entries")
        case "string":
            return "string" + _limits(schema, "minLength", "maxLength", " characters")
        case kind:
            return _TYPES[kind] + _limits(schema, "minimum", "maximum")


def _plural(words: str) -> str:
    if words.startswith("array"):
        return "arrays" + words.removeprefix("array")
    head, bracket, limits = words.partition(" (")
    return words if head == "anything" or head.startswith("`") else f"{head}s{bracket}{limits}"


def _limits(schema: Schema, lower: str, upper: str, unit: str = "") -> str:
    match schema.get(lower), schema.get(upper):
        case None, None:
            return ""
        case None, limit:
            return f" (at most {limit}{unit})"
        case limit, None:
            return f" (at least {limit}{unit})"
        case lowest, highest:
            return f" ({lowest} to {highest}{unit})"


FIRST_VERSION = "0.1.0"
"""The version of everything without a version of its own."""
SINCE = "x-since"
"""The key in a field's JSON schema, and in a route's OpenAPI entry, for the version that added it."""


class UndocumentedError(Exception):
    """A field has no description."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table of fields.

    path: a.b for field b of the object a, a[].b for field b of the objects in the array a.
    type, default: Markdown; empty if there is none.
    refused: for an unsupported field, the error message for other values; None for a supported field.
    """

    path: str
    type: str
    default: str
    description: str
    since: str
    refused: str | None = None

    @property
    def has_no_effect(self) -> bool:
        """Whether the field is accepted and ignored, so that clients need no change."""
        return self.description.rpartition("`: ")[2].startswith(("Accepted", "Left out"))


def read_rows(schema: Schema) -> list[Row]:
    """Return the rows of all fields of an object. Raises UndocumentedError."""
    return list(_rows("", [schema], schema.get("$defs", {})))


def _rows(prefix: str, variants: Sequence[Schema], definitions: Schema) -> Iterator[Row]:
    """Yield the fields of an object that fits one of the variants, required ones first.

    Fields that are the same in several variants get one row.
    """
    names = dict.fromkeys(name for variant in variants for name in variant["properties"])
    required = {name for variant in variants for name in variant.get("required", ())}
    for name in sorted(names, key=lambda name: name not in required):
        holders = [variant for variant in variants if name in variant["properties"]]
        path = f"{prefix}{name}"
        if all(_constants(holder, name) for holder in holders) and len(holders) > 1:
            yield _type_row(path, holders, name)
            continue
        rows: dict[Row, list[Schema]] = {}
        for holder in holders:
            rows.setdefault(_row(path, holder, name, definitions), []).append(holder)
        for row, owners in rows.items():
            where = "" if len(owners) == len(variants) else f"{', '.join(map(_label, owners))}: "
            yield Row(row.path, row.type, row.default, where + row.description, row.since, row.refused)
            if row.refused is None:
                for suffix, inner in _inner(owners[0]["properties"][name], definitions):
                    yield from _rows(f"{path}{suffix}.", inner, definitions)


def _row(path: str, holder: Schema, name: str, definitions: Schema) -> Row:
    schema = holder["properties"][name]
    default = "required" if name in holder.get("required", ()) else ""
    if schema.get("default") not in (None, [], {}) and not isinstance(schema["default"], dict):
        default = code(schema["default"])
    return Row(
        path,
        describe_type(schema, definitions),
        default,
        _description(path, holder, name, definitions),
        schema.get(SINCE, FIRST_VERSION),
        schema.get(REFUSED),
    )


def _description(path: str, holder: Schema, name: str, definitions: Schema) -> str:
    """Return the field's description.

    Without one, return that of the object that the field holds or, for a type field, that it is in.
    Raises UndocumentedError.
    """
    schema = holder["properties"][name]
    objects = [held for suffix, group in _inner(schema, definitions) if not suffix for held in group]
    if "description" in schema:
        return str(schema["description"])
    if _constants(holder, name):
        return str(holder["description"])
    if len(objects) == 1 and "description" in objects[0]:
        return str(objects[0]["description"])
    raise UndocumentedError(f"{holder['title']}.{name} ({path}) has no description")


def _type_row(path: str, holders: Sequence[Schema], name: str) -> Row:
    """Return the row of the type field that distinguishes the variants of an object."""
    variants = [(", ".join(map(code, _constants(holder, name))), holder["description"]) for holder in holders]
    return Row(
        path,
        ", ".join(constants for constants, _ in variants),
        "",
        " ".join(f"{constants}: {description}" for constants, description in variants),
        FIRST_VERSION,
    )


def _constants(holder: Schema, name: str) -> list[Any]:
    """Return the values of a field named type; empty for other fields."""
    schema = holder["properties"].get(name, {})
    values = [schema["const"]] if "const" in schema else schema.get("enum", [])
    return values if name == "type" else []


def _label(holder: Schema) -> str:
    return ", ".join(map(code, _constants(holder, "type"))) or str(holder["title"])


def _inner(schema: Schema, definitions: Schema) -> Iterator[tuple[str, list[Schema]]]:
    """Yield the objects that a field may hold, with "", and those that its array may hold, with "[]"."""
    held = list(alternatives(schema, definitions))
    entries = [
        entry
        for one in held
        if one.get("type") == "array"
        for entry in alternatives(resolved(one.get("items", {}), definitions), definitions)
    ]
    for suffix, group in (("", held), ("[]", entries)):
        objects = [one for one in group if "properties" in one]
        if objects:
            yield suffix, objects


_HEADER = """\
# API reference

Generated from the code by `python -m reprise.server.reference`, for version {version}. Do not edit. The
server has the same in machine-readable form at `/openapi.json`.

- `a.b` is the field `b` of the object `a`; `a[].b` is the field `b` of each object in the array `a`.
- A field that is absent or null has its default, if there is one. Types are not converted: `"1"` is not a
  number.
- What cannot change the answer is no reason to refuse a request: unknown fields, fields without effect, and
  what a conversation's history holds. It is left out or shown as text, fields of other servers (vLLM,
  llama-server, Ollama, OpenRouter) are understood, and the header `x-reprise-ignored` names all of it, as
  does the log: `a` is left out, `a (as text)` shown as text, `a (understood)` read as what is certainly
  meant. A value outside its limits is refused with a 400 that names the field. `--unknown-fields refuse`
  refuses all that the header would name but fields of other servers. [The guide](guide.md#what-is-left-out)
  has the table of what is left out of a conversation, and why.
- Paths work without `/v1`, with `/v1` twice, with a doubled slash and with a slash at the end.
- Bodies are JSON, and have the header `Content-Type: application/json` or none. From a browser they need it.
- If the server was started with API keys (`--api-key`, `--api-key-file`), every endpoint except `/health`
  and the page needs one: `Authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's clients send it.
  A stored response belongs to the key that created it. With `--ngram-scope api-key`, requests with different
  keys share no drafts.
- Every response has the header `x-request-id`: the request's id in the log. A client may choose the id by
  sending that header, with 1 to 128 visible ASCII characters.
- *Since* is the version that added the endpoint or field.
"""
_PEERS = """\
## Fields of other servers

They are accepted in every body of an endpoint that generates. Those in the tables above work where they
are listed; elsewhere they are left out, and the header `x-reprise-ignored` names them. A field of another of
this server's APIs that would change the answer, such as `response_format` at `/v1/responses`, `text` at
`/v1/chat/completions` or `stop` at `/v1/messages`, does what it says or gets a 400.
"""
_ERRORS = """\
## Errors

An error is `{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}`. `param` is the path of the
field at fault, such as `messages[0].content`. Under `/v1/messages`, errors have Anthropic's format, and under
`/api` Ollama's, which is the message alone: `{"error": "..."}`. If a stream has begun, an error is its last
event or line. A 429, and a 503 while the server is stopping, has a `Retry-After` header.

| Status | `type` | Meaning |
|---|---|---|
"""
_FIELDS = ("Field", "Type", "Default", "Description", "Since")
_NO_EFFECT = ("Field", "Type", "Note", "Since")
_REFUSED = ("Field", "Accepted values", "Error message", "Since")


def write_api_page() -> str:
    """Return the page: all endpoints with their fields. Raises UndocumentedError."""
    routes = _routes()
    parts = [_HEADER.format(version=VERSION)]
    index = [
        (f"[`{_title(route)}`](#{_anchor(_title(route))})", _route_description(route), _since(route))
        for route in routes
    ]
    parts.append(table(("Endpoint", "Description", "Since"), index))
    parts += [_section(route) for route in routes]
    parts.append(_peers())
    parts.append(_ERRORS + "".join(f"{line}\n" for line in _error_rows()))
    return "\n".join(parts)


def _routes() -> list[APIRoute]:
    return [route for module in ROUTES for route in module.router.routes if isinstance(route, APIRoute)]


def _section(route: APIRoute) -> str:
    lines = [f"## {_title(route)}\n", f"{_route_description(route)}\n"]
    rows = [row for schema in _schemas(route) for row in read_rows(schema)]
    supported = [row for row in rows if row.refused is None and not row.has_no_effect]
    if supported:
        lines.append(
            table(_FIELDS, [(_code(r.path), r.type, r.default, r.description, r.since) for r in supported])
        )
    if ignored := [row for row in rows if row.refused is None and row.has_no_effect]:
        lines.append("Accepted, but without effect:\n")
        lines.append(table(_NO_EFFECT, [(_code(r.path), r.type, _reason(r), r.since) for r in ignored]))
    if refused := [row for row in rows if row.refused is not None]:
        lines.append("Not supported; any other value is refused:\n")
        lines.append(
            table(_REFUSED, [(_code(r.path), r.type or "absent", str(r.refused), r.since) for r in refused])
        )
    return "\n".join(lines)


def _schemas(route: APIRoute) -> Iterator[dict[str, Any]]:
    """Yield the JSON schemas of the route's query and body, if it has them."""
    extra = route.openapi_extra or {}
    if "parameters" in extra:
        yield {
            "title": route.path,
            "properties": {one["name"]: one["schema"] for one in extra["parameters"]},
        }
    if "requestBody" in extra:
        named = extra["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        yield {model.__name__: model for model in BODIES}[named].model_json_schema()


def _peers() -> str:
    """Return the section about fields of other servers."""
    names = [(f"Understood: {', '.join(map(_code, UNDERSTOOD))}.\n")]
    rows = [(server, ", ".join(map(_code, sorted(fields)))) for server, fields in LEFT_OUT.items()]
    rows.append(("inside messages, tools and options", ", ".join(map(_code, INSIDE))))
    return "\n".join([_PEERS, *names, "Left out and named:\n", table(("Server", "Fields"), rows)])


def _error_rows() -> Iterator[str]:
    """Yield a table row for each class of errors, by status."""
    for kind in sorted(_subclasses(ApiError), key=lambda kind: kind.status):
        yield f"| {kind.status} | `{kind.type}` | {escape_cell(str(kind.__doc__).splitlines()[0])} |"


def _subclasses(error: type[ApiError]) -> Iterator[type[ApiError]]:
    for kind in error.__subclasses__():
        yield kind
        yield from _subclasses(kind)


def _title(route: APIRoute) -> str:
    method, *_ = sorted(route.methods or ())
    return f"{method} {route.path_format}"


def _anchor(title: str) -> str:
    """Return GitHub's anchor of a heading: lower case, most punctuation dropped, dashes for spaces."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _route_description(route: APIRoute) -> str:
    return " ".join(route.description.split())


def _since(route: APIRoute) -> str:
    return str((route.openapi_extra or {}).get(SINCE, FIRST_VERSION))


def _reason(row: Row) -> str:
    """Return the part of the description after "Accepted;", as a sentence."""
    head, _, reason = row.description.partition("Accepted")
    reason = reason.lstrip(";,. ")
    return head + reason[:1].upper() + reason[1:]


def _code(path: str) -> str:
    return f"`{path}`"


_METRICS_HEADER = """\
# Metrics

Generated from the code by `python -m reprise.server.reference`, for version {version}. Do not edit.

`GET /metrics` returns these metrics in Prometheus' text format. Counters start at 0 when the server starts.
A histogram `x` has the series `x_bucket`, `x_sum` and `x_count`; the table lists the upper bounds of its
buckets. If the server has API keys, Prometheus must send one too.
"""


def write_metrics_page() -> str:
    """Return the page: a section for each group of metrics."""
    return "\n".join([_METRICS_HEADER.format(version=VERSION), *map(_metrics_section, GROUPS)])


def _metrics_section(group: MetricGroup) -> str:
    rows = [
        (f"`{m.name}`", _kind(m), ", ".join(f"`{label}`" for label in m.labels), m.help)
        for m in group.metrics
    ]
    lines = [f"## {group.title}\n", table(("Metric", "Type", "Labels", "Help"), rows)]
    notes = [group.note] if group.note else []
    if group.is_by_model:
        notes.append(f"With several models each of these has the label `{MODEL}` too, the name of its model.")
    if notes:
        lines.insert(1, f"{' '.join(notes)}\n")
    return "\n".join(lines)


def _kind(metric: Metric) -> str:
    bounds = ", ".join(f"{bound:g}" for bound in metric.buckets)
    return f"{metric.kind}: {bounds}" if bounds else metric.kind


DOCS = Path(__file__).resolve().parents[1] / "docs"
API_PAGE = DOCS / "api.md"
METRICS_PAGE = DOCS / "metrics.md"

if __name__ == "__main__":
    folder = Path(sys.argv[1]) if sys.argv[1:] else DOCS
    for page, write in ((API_PAGE, write_api_page), (METRICS_PAGE, write_metrics_page)):
        (folder / page.name).write_text(write(), encoding="utf-8")
