"""Windowed decoding as a client sees it: the official SDK, the real server, a random WeDLM model."""

import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from tests.end_to_end.conftest import serving
from tests.engine.windows import SURE, write_window_model
from tests.server.openai_shapes import valid_timings

REQUEST = {"model": "demo", "prompt": "A window of masks is filled", "max_tokens": 40, "seed": 5}
DIFFERS = "the answer may differ from that of plain decoding"


@pytest.fixture(scope="module")
def streaming_server(server_folder, tmp_path_factory):
    """A server that decodes in windows, and what it printed."""
    folder = tmp_path_factory.mktemp("wedlm")
    write_window_model(folder)
    flags = ("--model", str(folder), "--wedlm-decoding", "streaming", "--wedlm-entropy-threshold", str(SURE))
    with serving(server_folder, *flags) as (address, printed):
        yield address, printed


@pytest.fixture
def client(streaming_server):
    address, _ = streaming_server
    with openai.OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as made:
        yield made


def ask(client, **fields):
    """Ask for a completion. fields: those that OpenAI's API does not have go into the extra body."""
    extra = {name: fields.pop(name) for name in list(fields) if name.startswith(("wedlm", "draft", "ignore"))}
    extra = {"ignore_eos": True} | extra
    return client.completions.create(**REQUEST | fields, extra_body=extra)


def test_the_banner_says_that_answers_may_differ(streaming_server):
    _, printed = streaming_server
    assert "answers may differ from those of plain decoding" in "".join(printed)


def test_timings_say_that_the_answer_may_differ_and_took_fewer_forwards_than_tokens(client):
    answer = ask(client)
    timings = valid_timings(answer.timings)
    assert timings.streaming["note"] == DIFFERS
    assert timings.forwards < timings.predicted_n == 40
    assert timings.fed > timings.forwards
    assert ask(client, wedlm_decoding="off").timings.get("streaming") is None


def test_the_answer_is_the_same_alone_in_a_batch_streamed_and_cut_short(client):
    alone = ask(client).choices[0].text
    with ThreadPoolExecutor(6) as pool:
        others = [pool.submit(ask, client, prompt=f"Another {i}", seed=i) for i in range(3)]
        plain = pool.submit(ask, client, wedlm_decoding="off")
        again = pool.submit(ask, client)
        assert again.result().choices[0].text == alone
    assert all(other.result().usage.completion_tokens == 40 for other in others)
    assert plain.result().choices[0].text == ask(client, wedlm_decoding="off").choices[0].text
    chunks = [chunk.choices[0].text for chunk in ask(client, stream=True) if chunk.choices]
    assert "".join(chunks) == alone
    assert alone.startswith(ask(client, max_tokens=11).choices[0].text.rstrip("\ufffd"))


def test_one_by_one_with_the_anchor_it_is_plain_decoding(client):
    in_windows = ask(client, wedlm_entropy_threshold="none", wedlm_anchor=True, wedlm_window_size=4)
    assert (
        in_windows.choices[0].text
        == ask(client, wedlm_decoding="off", draft={"type": "none"}).choices[0].text
    )


def test_choices_differ_by_their_seeds(client):
    answer = ask(client, n=3)
    assert answer.choices[0].text == ask(client).choices[0].text
    assert len({choice.text for choice in answer.choices}) == 3


def test_a_larger_window_than_the_servers_is_refused_by_name(client):
    with pytest.raises(openai.BadRequestError, match="'wedlm_window_size' is 17; at most 16") as refused:
        ask(client, wedlm_window_size=17)
    assert refused.value.param == "wedlm_window_size"


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--wedlm-decoding", "streaming"), "--wedlm-decoding is for WeDLM models"),
        (("--wedlm-window-size", "0"), "wedlm_window_size is 0; it must be at least 1"),
        (("--wedlm-decoding", "lossy"), "wedlm_decoding is 'lossy'; it must be one of off, streaming"),
    ],
)
def test_a_server_that_cannot_stream_does_not_start(flags, said):
    command = [sys.executable, "-c", "import sys; from reprise.cli.main import main; sys.exit(main())"]
    done = subprocess.run(
        [*command, "serve", "--port", "0", *flags], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode != 0
    assert said in done.stderr
