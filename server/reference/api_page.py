"""The reference as one Markdown text."""

from collections.abc import Iterator
from importlib.metadata import version
from typing import Any

from fastapi.routing import APIRoute

from server.app import BODIES, ROUTES
from server.errors import ApiError
from server.reference.field_rows import FIRST_VERSION, SINCE, Row, read_rows
from server.reference.markdown import escape_cell, table

_BEFORE = """\
# The API, field by field

Made from the code by `python -m server.reference`, for version {version}; do not edit. The same for
programs is at `/openapi.json`.

- `a.b` is the field `b` of the object `a`, and `a[].b` that of each object in the array `a`.
- A field that is absent or null has its default, if there is one. Types are not converted: `"1"` is no
  number.
- A field that is in no table here is refused with a 400 that names it, and so is a value outside of its
  limits.
- Bodies are JSON and say so: `Content-Type: application/json`.
- A key is needed only where the server was started with some (`--api-key`, `--api-key-file`), and then for
  all but `/health`: `Authorization: Bearer KEY`, or `x-api-key: KEY` as Anthropic's clients send it.
  Responses that are kept belong to the key; with `--ngram-scope api-key` requests with different keys
  learn nothing from each other.
- Every answer has the header `x-request-id`, the name of the request in the log. A request to any address may
  bring one, of 1 to 128 visible ASCII characters.
- *Since* is the version that brought a field.
"""
_ERRORS = """\
## Errors

An error is `{"error": {"message": ..., "type": ..., "param": ..., "code": ...}}`; `param` is the path of the
field at fault, such as `messages[0].content`. Under `/v1/messages` it has Anthropic's shape. After a stream
began, an error is its last event. A 429, and a 503 while the server stops, has a `Retry-After` header.

| Status | `type` | When |
|---|---|---|
"""
_FIELDS = ("Field", "Type", "Default", "What it does", "Since")
_NO_EFFECT = ("Field", "Type", "Why", "Since")
_REFUSED = ("Field", "Passes only as", "Why it is refused", "Since")


def write_api_page() -> str:
    """All endpoints with their fields. Raises UndocumentedError for a field that says nothing."""
    routes = _routes()
    parts = [_BEFORE.format(version=version("reprise"))]
    index = [
        (f"[`{_title(route)}`](#{_anchor(_title(route))})", _does(route), _since(route)) for route in routes
    ]
    parts.append(table(("Endpoint", "What it does", "Since"), index))
    parts += [_section(route) for route in routes]
    parts.append(_ERRORS + "".join(f"{line}\n" for line in _errors()))
    return "\n".join(parts)


def _routes() -> list[APIRoute]:
    return [route for module in ROUTES for route in module.router.routes if isinstance(route, APIRoute)]


def _section(route: APIRoute) -> str:
    lines = [f"## {_title(route)}\n", f"{_does(route)}\n"]
    rows = [row for schema in _schemas(route) for row in read_rows(schema)]
    working = [row for row in rows if row.refused is None and not row.has_no_effect]
    if working:
        lines.append(table(_FIELDS, [(_code(r.path), r.kind, r.default, r.does, r.since) for r in working]))
    if idle := [row for row in rows if row.refused is None and row.has_no_effect]:
        lines.append("Accepted, without an effect on the answer:\n")
        lines.append(table(_NO_EFFECT, [(_code(r.path), r.kind, _reason(r), r.since) for r in idle]))
    if refused := [row for row in rows if row.refused is not None]:
        lines.append("Refused:\n")
        lines.append(
            table(_REFUSED, [(_code(r.path), r.kind or "absent", str(r.refused), r.since) for r in refused])
        )
    return "\n".join(lines)


def _schemas(route: APIRoute) -> Iterator[dict[str, Any]]:
    """The JSON schemas of the query and of the body, if there are any."""
    extra = route.openapi_extra or {}
    if "parameters" in extra:
        yield {
            "title": route.path,
            "properties": {asked["name"]: asked["schema"] for asked in extra["parameters"]},
        }
    if "requestBody" in extra:
        named = extra["requestBody"]["content"]["application/json"]["schema"]["$ref"].rpartition("/")[2]
        yield {model.__name__: model for model in BODIES}[named].model_json_schema()


def _errors() -> Iterator[str]:
    """A row for each kind of error, by status."""
    for kind in sorted(_kinds(ApiError), key=lambda kind: kind.status):
        yield f"| {kind.status} | `{kind.type}` | {escape_cell(str(kind.__doc__).splitlines()[0])} |"


def _kinds(error: type[ApiError]) -> Iterator[type[ApiError]]:
    for kind in error.__subclasses__():
        yield kind
        yield from _kinds(kind)


def _title(route: APIRoute) -> str:
    method, *_ = sorted(route.methods or ())
    return f"{method} {route.path_format}"


def _anchor(title: str) -> str:
    """Where a heading can be linked to: lower case, without most punctuation, dashes for spaces."""
    kept = "".join(c for c in title.lower() if c.isalnum() or c in " -_")
    return kept.replace(" ", "-")


def _does(route: APIRoute) -> str:
    return " ".join(route.description.split())


def _since(route: APIRoute) -> str:
    return str((route.openapi_extra or {}).get(SINCE, FIRST_VERSION))


def _reason(row: Row) -> str:
    """What follows after "Accepted;", as a sentence."""
    head, _, reason = row.does.partition("Accepted")
    reason = reason.lstrip(";,. ")
    return head + reason[:1].upper() + reason[1:]


def _code(path: str) -> str:
    return f"`{path}`"
