"""Agents whose conversation outgrows the context understand the refusal, and go on after it.

Each does what its vendor designed. The model follows a script; the server and its refusals are real.
"""

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from reprise.config.settings import Settings
from tests.end_to_end.clients.agents import (
    AIDER,
    CLAUDE,
    CLINE,
    CODEX,
    CONTINUE,
    DONE_WITHIN_S,
    OPENCODE,
    QWEN,
    Agent,
    Run,
    connected,
    count_overflows,
    make_project,
)
from tests.end_to_end.clients.packages import INSTALLED_WITHIN_S
from tests.end_to_end.clients.scripted import Script, serving_script, write_json

# Packages of 55 to 700 MB.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(INSTALLED_WITHIN_S + 2 * DONE_WITHIN_S)]

TASK = "Read the parts one after the other."
NEXT = "What did you find in them?"
DONE = "All is done."
FOUND = "Only words were in them."
SUM = "Some of the parts were read."
SUMMARY = f"<summary>{SUM}</summary>\n<state_snapshot>{SUM}</state_snapshot>"
"""With the markers that Claude Code and qwen-code look for."""
CONDENSED_BY_CLINE = "Earlier context was compacted."
"""It asks no model."""
END, LAST = "end.txt", "Here is the end."
NUM_PARTS = 32


def parts(num_lines: int, line: str) -> dict[str, str]:
    """Return the files of a project, of so many lines each, and a short one."""
    lines = [f"{number} {line}\n" for number in range(num_lines)]
    texts = {f"part{n}.txt": f"part {n} begins\n{''.join(lines)}" for n in range(1, NUM_PARTS + 1)}
    return {**texts, END: f"{LAST}\n"}


def script_of(agent: Agent, project: Path, at_once: int = 1) -> Script:
    """Return the script that reads the parts until its conversation was condensed, then the end, and is done.

    at_once: parts that it reads with one answer.
    """

    def read(*names: str) -> str:
        calls = [write_json(*agent.reads(project / name)) for name in names]
        return "I read." + "".join(f"<tool_call>\n{call}\n</tool_call>" for call in calls)

    def answer(prompt: str) -> str:
        asked = prompt.rsplit("<|im_start|>user\n", 1)[-1].partition("<|im_end|>")[0]
        if NEXT in asked:
            return FOUND
        if SUM in prompt or CONDENSED_BY_CLINE in prompt:
            return DONE if LAST in prompt else read(END)
        has_tools = "You can call these tools:" in prompt
        if not has_tools or ("summary" in asked.lower() and TASK not in asked):
            return SUMMARY
        first = len(set(re.findall(r"part (\d+) begins", prompt))) + 1
        return read(*(f"part{n}.txt" for n in range(first, first + at_once)))

    return answer


@contextmanager
def session(
    agent: Agent,
    context_tokens: int,
    files: Mapping[str, str],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    at_once: int = 1,
    believed: int | None = None,
) -> Iterator[tuple[str, Run]]:
    """Serve the script in a context of so many tokens; yield the URL, and what runs the agent's commands.

    files: of the project. at_once: see script_of. believed: the context that the agent's settings have.
    """
    project = make_project(folder, files)
    settings = Settings(keeps_costs=False, ngram_table_file=None, max_context_tokens=context_tokens)
    with serving_script(script_of(agent, project, at_once), settings) as url:
        believes = (context_tokens, believed or context_tokens)
        yield url, connected(agent, url, project, monkeypatch, believes)


WORDS = "the quick brown fox jumps over the lazy dog"
"""Of 2.3 characters a token: the agents, which assume 4, find room where there is none."""


@pytest.mark.parametrize(
    ("agent", "context_tokens", "num_refused"),
    # The contexts of Claude Code and qwen-code also have room for the files that they show again after that.
    # qwen-code sends what is too long twice.
    [(CLAUDE, 60_000, 1), (OPENCODE, 17_500, 1), (QWEN, 60_000, 2), (CLINE, 12_500, 1)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_an_agent_that_is_refused_condenses_its_conversation_and_goes_on(
    agent: Agent, context_tokens: int, num_refused: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    believed = 4 * context_tokens
    with session(agent, context_tokens, parts(60, WORDS), tmp_path, monkeypatch, believed=believed) as (
        url,
        run,
    ):
        done = run([*agent.program, TASK])
        assert count_overflows(url) == num_refused, (done.stdout, done.stderr)
        assert DONE in done.stdout, done.stderr
        if agent.again:
            assert FOUND in run([*agent.again, NEXT]).stdout
            assert count_overflows(url) == num_refused


def test_codex_leaves_the_oldest_out_when_even_its_request_for_a_summary_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    # It condenses as soon as it counts nine tenths of the context, before it sends what is too long.
    with session(CODEX, 21_000, parts(150, WORDS), tmp_path, monkeypatch, at_once=4) as (url, run):
        done = run([*CODEX.program, TASK])
        assert (done.returncode, done.stdout.strip()) == (0, DONE)
        assert count_overflows(url) == done.stderr.count("Context window exceeded while compacting") > 0
        assert run([*CODEX.again, NEXT]).stdout.strip() == FOUND


def test_continue_condenses_before_the_context_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    # Of as many characters a token as its own count assumes.
    with session(CONTINUE, 12_000, parts(120, "    return count"), tmp_path, monkeypatch) as (url, run):
        assert DONE in run([*CONTINUE.program, TASK]).stdout
        assert count_overflows(url) == 0
        assert FOUND in run([*CONTINUE.again, NEXT]).stdout


def test_continue_says_that_the_context_is_full_and_does_not_try_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = parts(60, WORDS)
    with session(CONTINUE, 7_000, files, tmp_path, monkeypatch, at_once=3, believed=28_000) as (url, run):
        done = run([*CONTINUE.program, TASK])
        assert (done.returncode, count_overflows(url)) == (1, 1)
        assert '"message":"Context length exceeded: ' in done.stderr
        assert FOUND in run([*CONTINUE.again, NEXT]).stdout


def test_aider_says_that_the_context_is_full_and_goes_on_with_fewer_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    files = parts(60, WORDS)
    with session(AIDER, 6_000, files, tmp_path, monkeypatch) as (url, run):
        program, *arguments = AIDER.program
        done = run([program, *files, *arguments, TASK])
        assert count_overflows(url) == 1
        assert "has hit a token limit!" in done.stdout
        assert FOUND in run([*AIDER.again, NEXT]).stdout
        assert count_overflows(url) == 1
