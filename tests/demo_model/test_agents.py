"""The bundled model's answers to agents: the same with views, and with history from before a restart."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from reprise.bench.local_engine import LocalEngine, equal_costs
from reprise.bench.workloads.chats import Turn, user
from reprise.config.settings import Settings
from reprise.drafters.base import NO_DRAFT, Draft, DraftQuery
from reprise.drafters.suffix import NUM_CLASSES, RESTORED, VIEW, SuffixDrafter
from reprise.engine.interface.request import DraftChoice, DraftType, GenerationRequest

MAX_TOKENS = 40
CODE = "".join(f"def area_{name}(width, height):\n    return width * height\n\n\n" for name in "abcd")
NUMBERED = "".join(f"{at:6}→{line}\n" for at, line in enumerate(CODE.splitlines(), 1))
CALL = {"id": "call_1", "type": "function", "function": {"name": "read", "arguments": '{"path": "a.py"}'}}
READ = (
    user("Read a.py."),
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "call_1", "content": NUMBERED},
)
KEYS = ("path", "old_string", "new_string")
SCHEMA = {"type": "object", "properties": {key: {"type": "string"} for key in KEYS}, "required": [*KEYS]}
EDIT = {"type": "function", "function": {"name": "edit", "description": "Edit.", "parameters": SCHEMA}}
NAMES = ("span", "reach", "girth", "breadth", "extent", "side", "gap", "bar", "lane", "edge")


@contextmanager
def started(folder: Path) -> Iterator[LocalEngine]:
    """Start an engine to which every draft seems worth its cost."""
    settings = Settings(prefix_cache_dir=str(folder), num_draft_tokens=7, gate="off", draft_overhead=100.0)
    with LocalEngine(settings, equal_costs(*range(2, 9))) as local:
        yield local


def asked(local: LocalEngine, draft_type: DraftType) -> list[GenerationRequest]:
    """Make the turns of ten agents that have read a file, by turns to be answered greedily and sampled."""
    turns = [
        Turn(
            (*READ, user(f"Rename width to {name} in a.py.")),
            None,
            tools=(EDIT,),
            temperature=0.8 * (at % 2),
        )
        for at, name in enumerate(NAMES)
    ]
    return local.requests(turns, DraftChoice(draft_type), MAX_TOKENS, 3)


def test_views_and_history_change_no_answer_alone_in_a_batch_and_after_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafted, propose = set[int](), SuffixDrafter.propose

    def note(drafter: SuffixDrafter, query: DraftQuery) -> Draft:
        draft = propose(drafter, query)
        if draft is not NO_DRAFT:
            drafted.add(draft.bucket // NUM_CLASSES)
        return draft

    monkeypatch.setattr(SuffixDrafter, "propose", note)
    with started(tmp_path) as local:
        plain = [local.answer([one])[0].tokens for one in asked(local, "none")]
        requests = asked(local, "suffix")
        together = local.answer(requests[:8])
        assert [end.tokens for end in together] == plain[:8]
        assert VIEW in drafted
        assert RESTORED not in drafted
        assert [local.answer([one])[0].tokens for one in requests[6:8]] == plain[6:8]
    drafted.clear()
    with started(tmp_path) as local:
        # Six of these were answered before the restart, two are new.
        requests = asked(local, "auto")[2:]
        assert all(one.views for one in requests)
        together = local.answer(requests)
        assert [end.tokens for end in together] == plain[2:]
        assert sum(end.usage.drafting.num_accepted for end in together) > MAX_TOKENS
        # What was answered before is mostly the longer match.
        assert RESTORED in drafted
