"""A server with API keys and a model whose chat template is malicious."""

import shutil
import threading

import anthropic
import httpx
import openai
import pytest

from reprise.config.model_settings import BUNDLED_MODEL
from tests.end_to_end.conftest import serving

KEY = "the-key-of-this-test"
HOSTILE = """\
{%- set said = messages[-1].content -%}
{#- n depends on the message; a constant would be computed when the template is compiled. -#}
{%- set n = said | length -%}
{%- if said == "run" -%}{{ cycler.__init__.__globals__.os.popen("touch MARK").read() }}
{%- elif said == "hang" -%}{{ n ** (9 ** 10) }}
{%- elif said == "loop" -%}{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}
{%- elif said == "fill" -%}{{ "a" * n * 10 ** 11 }}
{%- endif -%}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The bundled model, with a few lines before its template, and a file of keys beside it."""
    made = tmp_path_factory.mktemp("hostile")
    shutil.copytree(BUNDLED_MODEL, made / "model")
    template = made / "model" / "chat_template.jinja"
    template.write_text(HOSTILE.replace("MARK", str(made / "mark")) + template.read_text())
    (made / "keys").write_text(f"{KEY}\n")
    return made


@pytest.fixture(scope="module")
def server(folder, server_folder):
    """The address, and what the server has printed."""
    flags = ("--model", str(folder / "model"), "--api-key", f"@{folder / 'keys'}", "--log-level", "debug")
    with serving(server_folder, *flags) as (address, printed):
        yield address, printed


@pytest.fixture(scope="module")
def url(server):
    return server[0]


@pytest.fixture
def client(url):
    with openai.OpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0, timeout=60) as made:
        yield made


def _say(client, text):
    messages = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="demo", messages=messages, max_tokens=4)


def test_the_clients_of_both_makers_get_in_with_the_key_alone(url, client):
    assert _say(client, "hello").usage.completion_tokens
    with pytest.raises(openai.AuthenticationError):
        _say(client.with_options(api_key="wrong"), "hello")
    ask = {"model": "demo", "max_tokens": 4, "messages": [{"role": "user", "content": "hello"}]}
    for given in ({"api_key": KEY}, {"auth_token": KEY, "api_key": None}):
        with anthropic.Anthropic(base_url=url, max_retries=0, **given) as other:
            assert other.messages.create(**ask).usage.output_tokens
    with (
        anthropic.Anthropic(base_url=url, api_key="wrong", max_retries=0) as other,
        pytest.raises(anthropic.AuthenticationError),
    ):
        other.messages.create(**ask)


def test_the_template_runs_no_code(client, folder):
    with pytest.raises(openai.BadRequestError, match="template"):
        _say(client, "run")
    assert not (folder / "mark").exists()


@pytest.mark.parametrize(
    "word",
    ["hang", pytest.param("loop", marks=pytest.mark.slow), pytest.param("fill", marks=pytest.mark.slow)],
)
def test_the_template_holds_nobody_up_for_long(client, url, word):
    codes = []

    def ask():
        with pytest.raises(openai.BadRequestError, match=r"it took (more than|too much)") as caught:
            _say(client, word)
        codes.append(caught.value.code)

    asking = threading.Thread(target=ask)
    asking.start()
    # Requests that need no template are answered in the meantime.
    num_answers = 0
    while asking.is_alive() or not num_answers:
        assert httpx.get(f"{url}/health", timeout=30).status_code == 200
        num_answers += 1
    asking.join()
    assert codes == ["template_error"]
    assert _say(client, "hello").usage.completion_tokens


def test_neither_the_key_nor_what_was_said_was_printed(server, client):
    _say(client, "a word for nobody else")
    printed = "".join(server[1])
    assert "POST /v1/chat/completions 200" in printed
    assert KEY not in printed
    assert "a word for nobody" not in printed
