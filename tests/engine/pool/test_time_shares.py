"""Whose turn it is, when shares take as long as a script says."""

from collections import Counter
from itertools import groupby

from hypothesis import given
from hypothesis import strategies as st

from reprise.engine.pool.watchdog import SLICE_S, TimeShares


def run(
    shares: TimeShares[str], runners: list[str], cost_s: dict[str, float], until_s: float
) -> Counter[str]:
    """Give shares until so many seconds are spent; return the seconds of each."""
    spent: Counter[str] = Counter()
    while sum(spent.values()) < until_s:
        chosen = shares.choose(runners)
        assert chosen is not None
        shares.charge(chosen, cost_s[chosen])
        spent[chosen] += cost_s[chosen]  # type: ignore[assignment]
    return spent


@given(st.lists(st.floats(0.001, 1.0), min_size=2, max_size=4))
def test_models_with_work_get_the_same_time_however_long_their_steps_are(costs: list[float]) -> None:
    cost_s = {f"model {at}": cost for at, cost in enumerate(costs)}
    spent = run(TimeShares(), list(cost_s), cost_s, 20.0)
    assert max(spent.values()) - min(spent.values()) <= max(costs) + 2 * SLICE_S + 1e-6


def test_shares_change_once_in_a_slice_and_not_at_every_step() -> None:
    shares: TimeShares[str] = TimeShares()
    order = []
    for _ in range(100):
        order.append(shares.choose(["a", "b"]))
        shares.charge(str(order[-1]), SLICE_S / 5)
    lengths = [len(list(run)) for _, run in groupby(order)]
    assert max(lengths) <= 11
    assert len(lengths) <= 100 / 5


def test_idle_time_is_not_saved_up() -> None:
    shares: TimeShares[str] = TimeShares()
    run(shares, ["a"], {"a": 1.0}, 100.0)
    spent = run(shares, ["a", "b"], {"a": 0.1, "b": 0.1}, 10.0)
    assert abs(spent["a"] - spent["b"]) <= 0.2 + 2 * SLICE_S


def test_nobody_has_a_turn_without_work() -> None:
    assert TimeShares[str]().choose([]) is None


def test_who_passes_on_is_next_only_if_no_other_has_work() -> None:
    shares: TimeShares[str] = TimeShares()
    order = []
    for runners in (["a", "b"], ["a", "b"], ["a", "b"], ["a"], ["a"]):
        order.append(shares.choose(runners))
        shares.charge(
            str(order[-1]), 10 * SLICE_S if order[-1] == "b" else SLICE_S / 10, passes_on=order[-1] == "a"
        )
    assert order == ["a", "b", "a", "a", "a"]
