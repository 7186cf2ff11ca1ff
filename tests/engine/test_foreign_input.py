"""A client's values cannot make libraries fetch schemas or replace the chat template."""

import inspect
import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from mlx_lm.tokenizer_utils import TokenizerWrapper
from transformers import PreTrainedTokenizerBase

from reprise.config.model_settings import RESERVED_TEMPLATE_KEYS
from reprise.engine.interface.errors import GrammarError
from reprise.engine.interface.request import Grammar
from reprise.engine.sampling.grammar import Grammars
from tests.engine.support import make_tokenizer

SCHEMA = b'{"type": "integer"}'
FOR_TEMPLATES = {"documents", "kwargs", "args", "self"}
"""Parameters that only reach the template, or that no keyword can set."""


def test_clients_can_set_only_variables_of_the_template():
    for method in (PreTrainedTokenizerBase.apply_chat_template, TokenizerWrapper.apply_chat_template):
        assert set(inspect.signature(method).parameters) <= RESERVED_TEMPLATE_KEYS | FOR_TEMPLATES


@pytest.fixture
def site():
    """Serve a schema over HTTP; yield the URL and the list of paths requested."""
    asked = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            self.send_response(200)
            self.send_header("Content-Length", str(len(SCHEMA)))
            self.end_headers()
            self.wfile.write(SCHEMA)

    with HTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", asked
        server.shutdown()


def test_no_grammar_fetches_a_schema_from_a_site_or_a_file(site, tmp_path):
    url, asked = site
    (tmp_path / "schema.json").write_bytes(SCHEMA)
    (tmp_path / "rules.lark").write_text('start: "a"')
    grammars = Grammars(make_tokenizer())
    file = f"file://{tmp_path}/schema.json"
    texts = [
        *(
            Grammar("json_schema", json.dumps({"$ref": place}))
            for place in (f"{url}/s.json", file, str(tmp_path))
        ),
        Grammar("json_schema", json.dumps({"$id": f"file://{tmp_path}/", "$ref": "schema.json"})),
        Grammar("json_schema", json.dumps({"$schema": file, "type": "object"})),
        Grammar("lark", f'start: %json {{"$ref": "{file}"}}'),
        Grammar("lark", f'%import "{tmp_path}/rules.lark"\nstart: "a"'),
        Grammar("lark", '%import .rules.start\nstart: "a"'),
    ]
    for grammar in texts:
        with pytest.raises(GrammarError):
            grammars.compile(grammar)
    assert asked == []
