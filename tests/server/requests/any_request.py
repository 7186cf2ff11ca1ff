"""Requests generated from the OpenAPI document: valid ones and invalid ones."""

import contextlib
import random

import hypothesis
import pytest
import schemathesis

from reprise.config.settings import Settings
from reprise.server.app import create_app
from tests.server.fake_engine import FakeEngine

HELLO = {"model": "reprise-demo", "messages": [{"role": "user", "content": "hello"}]}
GOOD = {
    "POST /v1/chat/completions": (HELLO, "max_tokens"),
    "POST /v1/completions": ({"prompt": "hello"}, "max_tokens"),
    "POST /v1/messages": (HELLO, "max_tokens"),
    "POST /api/chat": (HELLO, "max_tokens"),
    "POST /api/generate": ({"prompt": "hello"}, "max_tokens"),
    "POST /v1/responses": ({"model": "reprise-demo", "input": "hello"}, "max_output_tokens"),
}
"""For each generating endpoint: a valid body, and the field that limits the answer's length."""

# test_bad_input.py tests single fields at their limits; here several fields are drawn at random.
_CONFIG = schemathesis.config.SchemathesisConfig.from_dict({"phases": {"coverage": {"enabled": False}}})
DOCUMENT = create_app(FakeEngine(), Settings()).openapi()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=_CONFIG)


def drawn(num_examples: int) -> hypothesis.settings:
    """Draw this many requests for each endpoint, the same ones in every run."""
    return hypothesis.settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )


OPERATIONS = [pytest.param(found.ok(), id=found.ok().label) for found in SCHEMA.get_all_operations()]
"""Every endpoint."""


def send_many(
    operation: schemathesis.schemas.APIOperation, url: str, num_examples: int, max_tokens: int
) -> None:
    """Send requests, half of them invalid. No response may be a server error."""
    for mode in schemathesis.GenerationMode:

        @drawn(num_examples // 2)
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def send(case: schemathesis.Case) -> None:
            simplify(case, max_tokens)
            assert_no_fault(case, url)

        # An endpoint without parameters has no invalid requests to draw.
        with contextlib.suppress(hypothesis.errors.Unsatisfiable):
            send()


def simplify(case: schemathesis.Case, max_tokens: int) -> None:
    """Convert most bodies into valid ones with a few drawn fields: fully drawn ones are mostly refused."""
    chance = random.Random(repr(case.body))
    if case.operation.label not in GOOD or not isinstance(case.body, dict) or chance.random() < 0.25:
        return
    drawn_fields = sorted(case.body, key=str)
    kept = chance.sample(drawn_fields, min(len(drawn_fields), chance.randint(1, 2)))
    good, limit = GOOD[case.operation.label]
    case.body = good | {name: case.body[name] for name in kept} | {limit: max_tokens}


def assert_no_fault(case: schemathesis.Case, url: str) -> None:
    """Send the request. The response must not be a server error."""
    response = case.call(base_url=url, timeout=60)
    assert response.status_code < 500, response.text
    assert response.status_code != 429
