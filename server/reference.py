"""Write docs/api.md and docs/metrics.md from the code: `python -m reprise.server.reference`."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from fastapi.routing import APIRoute

from reprise.config.version import VERSION
from reprise.server.app import BODIES, ROUTES
from reprise.server.errors import STATUSES, type_of
from reprise.server.metrics.definitions import GROUPS, MODEL
from reprise.server.requests.fields import INSIDE, REFUSED
from reprise.server.requests.peer_fields import LEFT_OUT, UNDERSTOOD

DOCS = Path(__file__).resolve().parents[1] / "docs"
API_PAGE, METRICS_PAGE = DOCS / "api.md", DOCS / "metrics.md"
SINCE, FIRST_VERSION = "x-since", "0.2.0"
"""The key in a field's JSON schema for the version that added it, and the version of fields without one."""

Schema = Mapping[str, Any]
_ENDS = {"array": "Items", "object": "Properties", "string": "Length"}


class UndocumentedError(Exception):
    """A field has no description."""


class Row(NamedTuple):
    """A row of a table of fields. path: a.b, or a[].b for those in an array. refused: the error message."""

    path: str
    type: str
    default: str
    description: str
    since: str = FIRST_VERSION
    refused: str | None = None

    @property
    def has_no_effect(self) -> bool:
        """Whether the field is accepted and ignored, so that clients need no change."""
        return not self.refused and bool(re.match("(.*`: )?(Accepted|Left out)", self.description))


def read_rows(schema: Schema) -> list[Row]:
    """Return the rows of all fields of an object. Raises UndocumentedError."""
    return list(_rows("", [schema], schema.get("$defs", {})))


def _rows(prefix: str, variants: Sequence[Schema], definitions: Schema) -> Iterator[Row]:
    """Yield the fields of an object that fits one of the variants: required ones first, equal ones once."""
    names = dict.fromkeys(name for variant in variants for name in variant["properties"])
    for name in sorted(names, key=lambda name: not any(name in one.get("required", ()) for one in variants)):
        path, holders = f"{prefix}{name}", [one for one in variants if name in one["properties"]]
        kinds = [_constants(holder["properties"][name]) for holder in holders if name == "type"]
        if len(kinds) > 1 and all(kinds):
            told = [f"{kind}: {holder['description']}" for kind, holder in zip(kinds, holders, strict=True)]
            yield Row(path, ", ".join(kinds), "", " ".join(told))
            continue
        found = [(_row(path, holder, name, definitions), holder) for holder in holders]
        for row in dict.fromkeys(row for row, _ in found):
            owners = [holder for one, holder in found if one == row]
            labels = [_constants(one["properties"].get("type", {})) or one.get("title", "") for one in owners]
            where = f"{', '.join(labels)}: " if len(owners) < len(variants) else ""
            yield row._replace(description=where + row.description)
            held = _objects(owners[0]["properties"][name], definitions) if row.refused is None else {}
            for suffix, objects in held.items():
                yield from _rows(f"{path}{suffix}.", objects, definitions)


def _row(path: str, holder: Schema, name: str, definitions: Schema) -> Row:
    """Return a field's row. It may have the description of its object, or of the one that it tells apart."""
    schema = holder["properties"][name]
    given, is_required = schema.get("default"), name in holder.get("required", ())
    is_shown = not (given == [] or isinstance(given, dict))
    default = "required" if is_required else _constants({"const": given}) if is_shown else ""
    told = [holder] if name == "type" and _constants(schema) else _objects(schema, definitions)[""]
    description = schema.get("description") or (told[0].get("description") if len(told) == 1 else None)
    if description is None:
        raise UndocumentedError(f"{holder['title']}.{name} ({path}) has no description")
    since, refused = schema.get(SINCE, FIRST_VERSION), schema.get(REFUSED)
    return Row(path, _type(schema, definitions), default, description, since, refused)


def _alternatives(schema: Schema, definitions: Schema) -> list[Schema]:
    """Return the alternatives of anyOf, except null, which always means the default."""
    while "$ref" in schema:
        schema = definitions[schema["$ref"].rpartition("/")[2]]
    if "anyOf" in schema:
        return [held for one in schema["anyOf"] for held in _alternatives(one, definitions)]
    return [] if schema.get("type") == "null" else [schema]


def _objects(schema: Schema, definitions: Schema) -> dict[str, list[Schema]]:
    """Return the objects that a field may hold, by "", and those that its arrays may hold, by "[]"."""
    held = _alternatives(schema, definitions)
    inner = [entry for one in held for entry in _alternatives(one.get("items", {}), definitions)]
    groups = (("", held), ("[]", inner))
    return {suffix: [one for one in group if "properties" in one] for suffix, group in groups}


def _type(schema: Schema, definitions: Schema) -> str:
    """Return the type of a field and its limits, such as `integer (0 to 20)`."""
    words = []
    for one in _alternatives(schema, definitions):
        text = kind = one.get("type", "anything")
        held = one.get("items", {}) if kind == "array" else one.get("additionalProperties")
        if isinstance(held, dict):
            text += " of " + re.sub("^(?!anything)([a-z]+)", r"\1s", _type(held, definitions))
        least, most = (one.get(end + _ENDS.get(kind, "imum")) for end in ("min", "max"))
        unit = " characters" if kind == "string" else " entries" if kind in _ENDS else ""
        if least is not None or most is not None:
            only = f"at least {least}" if most is None else f"at most {most}"
            text += f" ({only if None in (least, most) else f'{least} to {most}'}{unit})"
        text = text.replace(") (", "; ") if kind == "array" else text
        words.append(_constants(one) if "const" in one or "enum" in one else text)
    return " or ".join(dict.fromkeys(words))


def _constants(schema: Schema) -> str:
    values = [schema["const"]] if "const" in schema else schema.get("enum", ())
    return _codes(json.dumps(value) for value in values if value is not None)


def _codes(texts: Iterable[str]) -> str:
    return ", ".join(f"`{text}`" for text in texts)


def _table(heads: str, rows: Iterable[Sequence[str]]) -> str:
    """Return a Markdown table. heads: the names of its columns, with commas between."""
    lines = [heads.split(","), ["---"] * (heads.count(",") + 1)]
    lines += [[" ".join(cell.split()).replace("|", r"\|") for cell in row] for row in rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def write_api_page() -> str:
    """Return the page: all endpoints with their fields. Raises UndocumentedError."""
    endpoints, sections = [], ""
    for route in (one for module in ROUTES for one in module.router.routes if isinstance(one, APIRoute)):
        title, extra = f"{min(route.methods or ())} {route.path_format}", route.openapi_extra or {}
        # GitHub's anchor of a heading: lower case, most punctuation dropped, dashes for spaces.
        anchor = re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-")
        endpoints.append((f"[`{title}`](#{anchor})", route.description, extra.get(SINCE, FIRST_VERSION)))
        heading = f"## {title}\n\n{' '.join(route.description.split())}\n"
        sections += "\n".join((heading, *_tables(extra), ""))
    left_out = {**LEFT_OUT, "inside messages, tools and options": INSIDE}
    errors = [(str(status), f"`{type_of(status)}`", meaning) for status, meaning in STATUSES]
    meanings = _table("Status,`type`,Meaning", errors).replace(" --- ", "---", 3)
    return f"""\
# API reference

To look up a field, find its endpoint below; `/openapi.json` has the same for programs. Generated from the
code by `python -m reprise.server.reference`, for version {VERSION}. Do not edit.

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
- If the server was started with API keys (`--api-key`), every endpoint except `/health`
  and the page needs one: `Authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's clients send it.
  A stored response belongs to the key that created it. With `--ngram-scope api-key`, requests with different
  keys share no drafts.
- Every response has the header `x-request-id`: the request's id in the log. A client may choose the id by
  sending that header, with 1 to 128 visible ASCII characters.
- *Since* is the version that added the endpoint or field.

{_table("Endpoint,Description,Since", endpoints)}
{sections}## Fields of other servers

They are accepted in every body of an endpoint that generates. Those in the tables above work where they
are listed; elsewhere they are left out, and the header `x-reprise-ignored` names them. A field of another of
this server's APIs that would change the answer, such as `response_format` at `/v1/responses`, `text` at
`/v1/chat/completions` or `stop` at `/v1/messages`, does what it says or gets a 400.

Understood: {_codes(UNDERSTOOD)}.

Left out and named:

{_table("Server,Fields", [(name, _codes(sorted(fields))) for name, fields in left_out.items()])}
## Errors

An error is `{{"error": {{"message": ..., "type": ..., "param": ..., "code": ...}}}}`. \
`param` is the path of the
field at fault, such as `messages[0].content`. Under `/v1/messages`, errors have Anthropic's format, and under
`/api` Ollama's, which is the message alone: `{{"error": "..."}}`. If a stream has begun, an error is its last
event or line. A 429, and a 503 while the server is stopping, has a `Retry-After` header.

{meanings}"""


def _tables(extra: Schema) -> Iterator[str]:
    """Yield the tables of a route's fields. extra: its entry in the OpenAPI document."""
    rows = read_rows({"properties": {one["name"]: one["schema"] for one in extra.get("parameters", ())}})
    if "requestBody" in extra:
        named = extra["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        rows += next(read_rows(model.model_json_schema()) for model in BODIES if model.__name__ == named)
    if works := [row for row in rows if row.refused is None and not row.has_no_effect]:
        yield _table("Field,Type,Default,Description,Since", [(f"`{one.path}`", *one[1:5]) for one in works])
    if idle := [row for row in rows if row.has_no_effect]:
        notes = [re.sub("Accepted[;,. ]*(.?)", lambda m: m[1].upper(), one.description) for one in idle]
        cells = [(f"`{one.path}`", one.type, note, one.since) for one, note in zip(idle, notes, strict=True)]
        yield "Accepted, but without effect:\n\n" + _table("Field,Type,Note,Since", cells)
    if refused := [row for row in rows if row.refused is not None]:
        cells = [(f"`{one.path}`", one.type or "absent", one.refused or "", one.since) for one in refused]
        heads = "Field,Accepted values,Error message,Since"
        yield "Not supported; any other value is refused:\n\n" + _table(heads, cells)


def write_metrics_page() -> str:
    """Return the page: a section for each group of metrics."""
    by_model = f" With several models each of these has the label `{MODEL}` too, the name of its model."
    sections = ""
    for group in GROUPS:
        note = group.note + by_model * group.is_by_model
        rows = []
        for metric in group.metrics:
            kind = ": ".join(filter(None, (metric.kind, ", ".join(f"{bound:g}" for bound in metric.buckets))))
            rows.append((f"`{metric.name}`", kind, _codes(metric.labels), metric.help))
        sections += f"\n## {group.title}\n\n" + f"{note}\n\n" * bool(note)
        sections += _table("Metric,Type,Labels,Help", rows)
    return f"""\
# Metrics

To watch a server, let Prometheus read `GET /metrics`, which returns these metrics. Generated from the code by
`python -m reprise.server.reference`, for version {VERSION}. Do not edit.

Counters start at 0 when the server starts. A histogram `x` has the series `x_bucket`, `x_sum` and `x_count`;
the table lists the upper bounds of its buckets. If the server has API keys, Prometheus must send one too.
{sections}"""


if __name__ == "__main__":
    API_PAGE.write_text(write_api_page(), encoding="utf-8")
    METRICS_PAGE.write_text(write_metrics_page(), encoding="utf-8")
