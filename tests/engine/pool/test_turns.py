"""Whose turn it is, when turns take as long as a script says."""

from collections import Counter
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from engine.pool.turns import SLICE_S, Turns


def run(turns: Turns[str], runners: list[str], cost_s: dict[str, float], until_s: float) -> Counter[str]:
    """Give turns until so many seconds are spent; return the seconds of each."""
    spent: Counter[str] = Counter()
    while sum(spent.values()) < until_s:
        chosen = turns.choose(runners)
        assert chosen is not None
        turns.charge(chosen, cost_s[chosen])
        spent[chosen] += cost_s[chosen]  # type: ignore[assignment]
    return spent


@given(st.lists(st.floats(0.001, 1.0), min_size=2, max_size=4))
def test_models_with_work_get_the_same_time_however_long_their_steps_are(costs: list[float]) -> None:
    cost_s = {f"model {at}": cost for at, cost in enumerate(costs)}
    spent = run(Turns(), list(cost_s), cost_s, 20.0)
    assert max(spent.values()) - min(spent.values()) <= max(costs) + 2 * SLICE_S + 1e-6


def test_turns_change_once_in_a_slice_and_not_at_every_step() -> None:
    turns: Turns[str] = Turns()
    order = []
    for _ in range(100):
        order.append(turns.choose(["a", "b"]))
        turns.charge(str(order[-1]), SLICE_S / 5)
    lengths = [len(list(run)) for _, run in groupby(order)]
    assert max(lengths) <= 11
    assert len(lengths) <= 100 / 5


def test_idle_time_is_not_saved_up() -> None:
    turns: Turns[str] = Turns()
    run(turns, ["a"], {"a": 1.0}, 100.0)
    spent = run(turns, ["a", "b"], {"a": 0.1, "b": 0.1}, 10.0)
    assert abs(spent["a"] - spent["b"]) <= 0.2 + 2 * SLICE_S


def test_nobody_has_a_turn_without_work() -> None:
    assert Turns[str]().choose([]) is None


def test_who_passes_on_is_next_only_if_no_other_has_work() -> None:
    turns: Turns[str] = Turns()
    order = []
    for runners in (["a", "b"], ["a", "b"], ["a", "b"], ["a"], ["a"]):
        order.append(turns.choose(runners))
        turns.charge(
            str(order[-1]), 10 * SLICE_S if order[-1] == "b" else SLICE_S / 10, passes_on=order[-1] == "a"
        )
    assert order == ["a", "b", "a", "a", "a"]
