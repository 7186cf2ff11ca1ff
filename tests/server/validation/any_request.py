"""Requests made from our own OpenAPI document: such as fit it, and such as do not."""

import contextlib
import random

import hypothesis
import pytest
import schemathesis

from config.settings import Settings
from server.app import create_app
from tests.server.fake_engine import FakeEngine

NOT_FOR_THIS_SERVER = "POST /v1/embeddings"
"""It says so with a 501, whatever it is asked."""
HELLO = {"model": "reprise-demo", "messages": [{"role": "user", "content": "hello"}]}
GOOD = {
    "POST /v1/chat/completions": (HELLO, "max_tokens"),
    "POST /v1/completions": ({"prompt": "hello"}, "max_tokens"),
    "POST /v1/messages": (HELLO, "max_tokens"),
    "POST /v1/responses": ({"model": "reprise-demo", "input": "hello"}, "max_output_tokens"),
}
"""For each address that generates: a request that is served, and what limits its answer."""

# Fields at their limits one by one are what test_bad_input.py has; here they are drawn, several at a time.
_CONFIG = schemathesis.config.SchemathesisConfig.from_dict({"phases": {"coverage": {"enabled": False}}})
DOCUMENT = create_app(FakeEngine(), Settings()).openapi()
SCHEMA = schemathesis.openapi.from_dict(DOCUMENT, config=_CONFIG)


def drawn(num_examples: int) -> hypothesis.settings:
    """So many requests to each address, the same in every run."""
    return hypothesis.settings(
        max_examples=num_examples,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )


OPERATIONS = [pytest.param(found.ok(), id=found.ok().label) for found in SCHEMA.get_all_operations()]
"""Every address and method there is."""


def send_many(
    operation: schemathesis.schemas.APIOperation, url: str, num_examples: int, max_tokens: int
) -> None:
    """Send requests, half of them such as the document forbids: no answer is a fault of ours."""
    for mode in schemathesis.GenerationMode:

        @drawn(num_examples // 2)
        @hypothesis.given(case=operation.as_strategy(generation_mode=mode))
        def send(case: schemathesis.Case) -> None:
            simplify(case, max_tokens)
            assert_no_fault(case, url)

        # Where nothing can be wrong, as without parameters, nothing can be drawn.
        with contextlib.suppress(hypothesis.errors.Unsatisfiable):
            send()


def simplify(case: schemathesis.Case, max_tokens: int) -> None:
    """Make most bodies good ones but for a few fields: of those drawn as a whole nearly all are refused."""
    chance = random.Random(repr(case.body))
    if case.operation.label not in GOOD or not isinstance(case.body, dict) or chance.random() < 0.25:
        return
    drawn_fields = sorted(case.body, key=str)
    kept = chance.sample(drawn_fields, min(len(drawn_fields), chance.randint(1, 2)))
    good, limit = GOOD[case.operation.label]
    case.body = good | {name: case.body[name] for name in kept} | {limit: max_tokens}


def assert_no_fault(case: schemathesis.Case, url: str) -> None:
    """Send it: whatever is answered, no fault of the server's."""
    response = case.call(base_url=url, timeout=60)
    assert response.status_code < 500 or case.operation.label == NOT_FOR_THIS_SERVER, response.text
    assert response.status_code != 429
