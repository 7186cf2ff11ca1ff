"""docs/api.md agrees with the code and describes every field."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from types import UnionType
from typing import Annotated, NotRequired, Required, Union, get_args, get_origin

import pytest
from anthropic.types import message_count_tokens_params, message_create_params
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_completion_create_params
from openai.types.responses import input_token_count_params, response_compact_params, response_create_params
from pydantic import BaseModel, Field
from typing_extensions import get_type_hints, is_typeddict

from reprise import server
from reprise.config.settings import Settings
from reprise.server.anthropic_api.schemas import CountTokensRequest, MessagesRequest
from reprise.server.app import BODIES, ROUTES
from reprise.server.errors import STATUSES, ApiError
from reprise.server.http.request_log import ENDPOINTS
from reprise.server.openai_api.responses.schemas import CompactRequest, ResponsesRequest
from reprise.server.reference import API_PAGE, SINCE, UndocumentedError, read_rows, write_api_page
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest
from reprise.server.requests.embeddings import EmbeddingsRequest
from reprise.server.requests.fields import INSIDE, RequestModel, unsupported
from reprise.server.requests.peer_fields import IGNORED


def test_the_page_is_what_the_code_says():
    assert API_PAGE.read_text(encoding="utf-8") == write_api_page(), (
        "run .venv/bin/python -m reprise.server.reference"
    )


def test_the_page_has_the_status_of_every_error():
    raised = {kind.status for kind in (ApiError, *ApiError.__subclasses__())}
    for file in Path(server.__path__[0]).rglob("*.py"):
        calls = [node for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Call)]
        named = [call.keywords for call in calls if isinstance(call.func, ast.Name)]
        given = [one.value for keywords in named for one in keywords if one.arg == "status"]
        raised |= {one.value for one in given if isinstance(one, ast.Constant)}
    assert {401, 413} < raised <= {status for status, _ in STATUSES}


def test_every_setting_that_the_page_names_exists():
    flags = re.findall(r"--([a-z][a-z-]+)", write_api_page())
    assert flags
    assert {flag.replace("-", "_") for flag in flags} <= set(Settings.__dataclass_fields__)


def test_the_page_has_every_endpoint_and_endpoints_are_listed():
    routes = {
        f"{method} {re.sub('{.*?}', '{}', route.path)}"
        for module in ROUTES
        for route in module.router.routes
        for method in route.methods
    }
    assert routes - {"GET /", "HEAD /", "GET /ui", "GET /ui/{}"} == {
        re.sub("{.*?}", "{}", endpoint) for endpoint in ENDPOINTS
    }
    titles = re.findall(r"^## ([A-Z]+ /.*)$", write_api_page(), re.MULTILINE)
    assert {re.sub("{.*?}", "{}", title) for title in titles} == routes


@pytest.mark.parametrize("model", BODIES, ids=lambda model: model.__name__)
def test_every_field_of_every_body_has_a_description(model):
    rows = read_rows(model.model_json_schema())
    assert {row.path for row in rows if "." not in row.path} == set(model.model_fields)
    assert all(row.description and re.fullmatch(r"\d+\.\d+\.\d+", row.since) for row in rows)


class Undocumented(BaseModel):
    """A nested object."""

    level: int


class Outer(BaseModel):
    """A body."""

    inner: list[Undocumented] = Field(description="Objects.")


class Documented(RequestModel):
    """A body."""

    needed: list[str] = Field(description="Texts.")
    level: int = Field(3, ge=1, le=9, description="A number.", json_schema_extra={SINCE: "0.9.0"})
    idle: bool = Field(False, description="Accepted; nothing to do.")
    absent: unsupported("plain", phrase="is not here", is_needed=True) = None


def test_a_field_without_a_description_is_a_fault():
    with pytest.raises(UndocumentedError, match=r"Undocumented.level \(inner\[\].level\) has no description"):
        read_rows(Outer.model_json_schema())


def test_a_row_has_type_default_description_and_version():
    rows = {row.path: row for row in read_rows(Documented.model_json_schema())}
    needed, level, idle, absent = (rows[name] for name in ("needed", "level", "idle", "absent"))
    assert (needed.type, needed.default, needed.description) == ("array of strings", "required", "Texts.")
    assert (needed.since, needed.has_no_effect) == ("0.2.0", False)
    assert (level.type, level.default, level.since) == ("integer (1 to 9)", "`3`", "0.9.0")
    assert (idle.type, idle.default, idle.has_no_effect) == ("boolean", "`false`", True)
    assert (absent.type, absent.refused) == ('`"plain"`', "is not here")


SENT_AS_HEADERS = {"user_profile_id", "workspace_id"}


def _published(*params: type) -> set[str]:
    """Return the fields of a request in the SDK's own types."""
    return {name for param in params for name in get_type_hints(param)} - SENT_AS_HEADERS


PUBLISHED = [
    (ChatRequest, chat_completion_create_params.CompletionCreateParams),
    (CompletionRequest, completion_create_params.CompletionCreateParams),
    (ResponsesRequest, response_create_params.ResponseCreateParams),
    (ResponsesRequest, input_token_count_params.InputTokenCountParams),
    (CompactRequest, response_compact_params.ResponseCompactParams),
    (EmbeddingsRequest, embedding_create_params.EmbeddingCreateParams),
    (MessagesRequest, message_create_params.MessageCreateParams),
    (CountTokensRequest, message_count_tokens_params.MessageCountTokensParams),
]


@pytest.mark.parametrize(("model", "params"), PUBLISHED, ids=lambda value: getattr(value, "__name__", ""))
def test_every_published_field_works_or_is_left_out_or_refused_by_name(model, params):
    published = _published(*(get_args(params) or (params,)))
    known = {field.alias or name for name, field in model.model_fields.items()}
    assert len(published) > 4
    assert published <= known | IGNORED


CONVERSATIONS = PUBLISHED[0], PUBLISHED[2], PUBLISHED[6]


@pytest.mark.parametrize(("model", "params"), CONVERSATIONS, ids=lambda value: getattr(value, "__name__", ""))
def test_every_published_nested_field_works_or_is_left_out_or_refused_by_name(model, params):
    known = {row.path: row for row in read_rows(model.model_json_schema())}
    published = {path for one in get_args(params) for path in _paths(one, known)}
    assert any(path.count(".") > 1 for path in published)
    assert published - set(known) - SENT_AS_HEADERS <= IGNORED | {f"text.{name}" for name in INSIDE}


def _paths(published, known, prefix="", above=()):
    """Yield the paths of a TypedDict's fields, nested ones too where this server supports their type."""
    for name, hint in get_type_hints(published, include_extras=True).items():
        path = f"{prefix}{name}"
        yield path
        if path not in known or known[path].refused is not None:
            continue
        for inner, suffix in _typed_dicts(hint):
            within = f"{path}{suffix}."
            has_fields = any(other.startswith(within) for other in known)
            if has_fields and inner not in above and _is_supported(inner, known.get(f"{within}type")):
                yield from _paths(inner, known, within, (*above, inner))


def _typed_dicts(hint, suffix=""):
    """Yield the TypedDicts in a type hint; those in arrays with the suffix []."""
    if is_typeddict(hint):
        yield hint, suffix
    elif get_origin(hint) in (Union, UnionType, Annotated, Required, NotRequired):
        for one in get_args(hint):
            yield from _typed_dicts(one, suffix)
    elif get_origin(hint) in (list, Iterable):
        yield from _typed_dicts(get_args(hint)[0], f"{suffix}[]")


def _is_supported(published, row):
    """Return whether this server supports the TypedDict's type, according to the row of the type field."""
    constants = re.findall(r"'([\w.]+)'", str(get_type_hints(published).get("type", "")))
    return row is None or not constants or any(f'"{constant}"' in row.type for constant in constants)
