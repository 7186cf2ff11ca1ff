"""Generate docs/api.md."""

from collections.abc import Iterator
from typing import Any

from fastapi.routing import APIRoute

from reprise.config.version import VERSION
from reprise.server.app import BODIES, ROUTES
from reprise.server.errors import ApiError
from reprise.server.reference.field_rows import FIRST_VERSION, SINCE, Row, read_rows
from reprise.server.reference.markdown import escape_cell, table
from reprise.server.validation.field_errors import INSIDE
from reprise.server.validation.peer_fields import LEFT_OUT, UNDERSTOOD

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
        (f"[`{_title(route)}`](#{_anchor(_title(route))})", _description(route), _since(route))
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
    lines = [f"## {_title(route)}\n", f"{_description(route)}\n"]
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


def _description(route: APIRoute) -> str:
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
