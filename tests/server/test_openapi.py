import json
import re

from server.responses_api.schemas import ResponsesRequest
from server.schemas import ChatRequest, CompletionRequest


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
