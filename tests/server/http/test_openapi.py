import json
import re

from reprise.server.http.error_responses import MessagesErrorResponse
from reprise.server.openai_api.responses.schemas import ListQuery, ResponsesRequest
from reprise.server.requests.chat import ChatRequest
from reprise.server.requests.completions import CompletionRequest


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
    for path, operations in document["paths"].items():
        for operation in operations.values():
            # The framework validates nothing: its own errors would be a 422.
            assert len(operation["responses"]) == 2
            assert "422" not in operation["responses"]
            content = operation["responses"]["default"]["content"]["application/json"]
            if not path.startswith("/v1/messages"):
                kind = "OllamaErrorResponse" if path.startswith("/api/") else "ErrorResponse"
                assert content["schema"] == {"$ref": f"#/components/schemas/{kind}"}


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


async def test_errors_of_messages_are_described_in_anthropic_s_shape(client):
    document = (await client.get("/openapi.json")).json()
    paths = [path for path in document["paths"] if path.startswith("/v1/messages")]
    assert len(paths) == 2
    for path in paths:
        content = document["paths"][path]["post"]["responses"]["default"]["content"]["application/json"]
        assert content["schema"] == {"$ref": "#/components/schemas/MessagesErrorResponse"}
        sent = (await client.post(path, content=b"x")).json()
        assert MessagesErrorResponse.model_validate(sent, strict=True).model_dump(exclude_unset=True) == sent


async def test_the_document_has_the_content_types_that_are_sent(client):
    document = (await client.get("/openapi.json")).json()

    def types(method, path):
        return set(document["paths"][path][method]["responses"]["200"]["content"])

    sent = (await client.get("/metrics")).headers["content-type"].partition(";")[0]
    assert types("get", "/metrics") == {sent} == {"text/plain"}
    for path in ("/v1/chat/completions", "/v1/completions", "/v1/messages", "/v1/responses"):
        assert types("post", path) == {"application/json", "text/event-stream"}
    assert types("get", "/v1/responses/{response_id}") == {"application/json", "text/event-stream"}
    assert types("post", "/v1/models/pull") == {"text/event-stream"}
    for path in ("/api/chat", "/api/generate", "/api/pull"):
        assert types("post", path) == {"application/json", "application/x-ndjson"}
    assert types("post", "/v1/responses/input_tokens") == {"application/json"}


async def test_null_is_described_wherever_it_stands_for_the_default(client):
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    assert {"type": "null"} in schemas["ChatRequest"]["properties"]["stream"]["anyOf"]
    assert schemas["ModelRequest"]["properties"]["model"]["type"] == "string"
    assert (await client.post("/v1/completions", json={"prompt": "a", "stream": None, "n": None})).is_success


async def test_the_limit_of_a_list_is_described(client):
    document = (await client.get("/openapi.json")).json()
    asked = document["paths"]["/v1/responses/{response_id}/input_items"]["get"]["parameters"]
    (limit,) = [one["schema"] for one in asked if one.get("name") == "limit"]
    assert (limit["type"], limit["minimum"], limit["maximum"]) == ("integer", 0, 100)


async def test_what_this_server_cannot_do_is_not_in_the_document(client, engine):
    assert engine.tokenizer.fim is None
    document = (await client.get("/openapi.json")).json()
    assert not {"/v1/embeddings", "/v1/rerank", "/infill"} & document["paths"].keys()
    suffix = document["components"]["schemas"]["CompletionRequest"]["properties"]["suffix"]
    assert suffix["anyOf"][0] == {"type": "string", "maxLength": 0}


async def test_the_limits_of_the_served_model_are_described(client, engine):
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]
    (ids, _) = schemas["DetokenizeRequest"]["properties"]["tokens"]["anyOf"]
    assert ids["items"]["maximum"] == engine.info.vocab_size - 1
    assert schemas["ChatRequest"]["properties"]["n"]["anyOf"][0]["maximum"] == 8
    biases = schemas["ResponsesRequest"]["properties"]["logit_bias"]["anyOf"][0]["propertyNames"]["pattern"]
    allowed = [number for number in range(2000) if re.search(biases, str(number))]
    assert allowed == list(range(engine.info.vocab_size))
    assert not re.search(biases, "007")


async def test_what_is_left_out_or_understood_is_described(client, strict_client):
    liberal, strict = [
        (await one.get("/openapi.json")).json()["components"]["schemas"] for one in (client, strict_client)
    ]
    assert "additionalProperties" not in liberal["ChatRequest"]
    assert strict["ChatRequest"]["additionalProperties"] is False
    assert {"const": -1} in liberal["ChatRequest"]["properties"]["max_tokens"]["anyOf"]
    assert {"const": -1} not in strict["ChatRequest"]["properties"]["max_tokens"]["anyOf"]
    assert {} in liberal["ChatRequest"]["properties"]["draft"]["anyOf"]
    assert {} in liberal["JsonSchema"]["properties"]["name"]["anyOf"]
    assert {} not in strict["JsonSchema"]["properties"]["name"]["anyOf"]
    assert liberal["ChatRequest"]["properties"]["messages"]["anyOf"][1]["type"] == "object"
    assert strict["ChatRequest"]["properties"]["messages"]["type"] == "array"
