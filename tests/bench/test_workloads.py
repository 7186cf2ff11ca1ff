"""Workloads are generated, the same for whoever runs them, and know their right answers."""

import pytest

from bench.workloads import WORKLOADS, make_chats


def count_words(text: str) -> int:
    return len(text.split())


@pytest.mark.parametrize("workload", WORKLOADS)
def test_chats_depend_on_nothing_but_the_seed(workload: str) -> None:
    assert make_chats(workload, 3, 1, count_words) == make_chats(workload, 3, 1, count_words)
    assert make_chats(workload, 3, 1, count_words) != make_chats(workload, 3, 2, count_words)


def test_the_cold_twin_asks_the_same_without_what_came_before() -> None:
    warm, cold = (make_chats(name, 3, 1, count_words) for name in ("edits_again", "edits_again_cold"))
    assert [chat.turns[1:] for chat in warm] == [chat.turns for chat in cold]
    assert not any(chat.turns[0].is_measured for chat in warm)
