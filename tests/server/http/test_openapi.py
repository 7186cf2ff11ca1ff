import json
import re

from server.requests.chat import ChatRequest
from server.requests.completions import CompletionRequest
from server.responses_api.queries import ListQuery
from server.responses_api.schemas import ResponsesRequest


async def test_the_document_has_every_field_and_no_dangling_reference(client):
    document = (await client.get("/openapi.json")).json()
    schemas = document["components"]["schemas"]
    for path, model in (
        ("/v1/chat/completions", ChatRequest),
        ("/v1/completions", CompletionRequest),
        ("/v1/responses", ResponsesRequest),
    ):
        body = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        assert body == {"$ref": f"#/components/schemas/{model.__name__}"}
        assert set(schemas[model.__name__]["properties"]) == set(model.model_fields)
    named = set(re.findall(r"#/components/schemas/(\w+)", json.dumps(document)))
    assert named <= set(schemas)


async def test_the_document_has_every_query_and_the_shape_of_errors(client):
    document = (await client.get("/openapi.json")).json()
    listed = document["paths"]["/v1/responses/{response_id}/input_items"]["get"]["parameters"]
    assert {asked["name"] for asked in listed if asked.get("in") == "query"} == set(ListQuery.model_fields)
    for operations in document["paths"].values():
        for operation in operations.values():
            # The framework validates nothing: its own errors would be a 422.
            assert operation["responses"].keys() == {"200", "default"}
            content = operation["responses"]["default"]["content"]["application/json"]
            assert content["schema"] == {"$ref": "#/components/schemas/ErrorResponse"}


async def test_every_route_accepts_and_returns_a_request_id(client):
    await client.get("/openapi.json")
    document = (await client.get("/openapi.json")).json()
    (given,), (told,) = (document["components"][kind].values() for kind in ("parameters", "headers"))
    assert (given["name"], given["in"], given["required"]) == ("x-request-id", "header", False)
    assert given["schema"] == told["schema"] == {"type": "string", "pattern": "^[!-~]{1,128}$"}
    for operations in document["paths"].values():
        for operation in operations.values():
            assert operation["parameters"].count({"$ref": "#/components/parameters/RequestId"}) == 1
            for response in operation["responses"].values():
                assert response["headers"] == {"x-request-id": {"$ref": "#/components/headers/RequestId"}}
    for path in ("/health", "/nowhere"):
        told = (await client.get(path)).headers["x-request-id"]
        assert re.fullmatch(given["schema"]["pattern"], told)


async def test_the_document_shows_which_fields_are_refused(client):
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    prompt = schemas["ResponsesRequest"]["properties"]["prompt"]
    assert prompt["enum"] == [None]
    assert prompt["x-refused"].startswith("is not supported: no prompt templates are stored here")
