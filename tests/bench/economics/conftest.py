import polars as pl
import pytest

from reprise.bench.economics.trials import CONTROLLED

PLAIN_TPS = 100.0


class Planted:
    """Makes trials with known parameters."""

    @staticmethod
    def step_cost(length, r, beta):
        """Return the step cost, in plain steps, for a break-even at r + beta * length."""
        return 1 + length * (r + beta * length)

    @staticmethod
    def trial(chat, length, acceptance, cost, kind=CONTROLLED, workload="edits", gated=False, joules=None):
        """Make a chat of 50 steps, each verifying a full draft. cost: of such a step, in plain steps."""
        steps = 50
        accepted = round(steps * length * acceptance)
        tokens = steps + accepted
        decode_tps = tokens / (steps * cost / PLAIN_TPS)
        return {
            "chat": chat, "workload": workload, "draft_type": kind, "num_draft_tokens": length,
            "is_gated": gated, "tokens": tokens, "decode_tps": decode_tps, "plain_tps": PLAIN_TPS,
            "speedup": decode_tps / PLAIN_TPS, "acceptance": accepted / (steps * length),
            "drafted": steps * length, "accepted": accepted, "forwards": steps, "drafter_s": 0.0,
            "parity": "PASS", "drafts": [steps] * length,
            "joules": joules, "plain_joules": None if joules is None else 2.0 * tokens,
        }  # fmt: skip

    @staticmethod
    def frame(*trials):
        return pl.DataFrame(trials, infer_schema_length=None)

    def controlled(self, r=0.2, beta=0.02, lengths=(1, 2, 4, 8), chats=range(4)):
        """Make trials of every level at every length, without noise."""
        return [
            self.trial(chat, length, level, self.step_cost(length, r, beta))
            for chat in chats
            for length in lengths
            for level in (0.0, 0.25, 0.5, 0.75, 1.0)
        ]


@pytest.fixture
def planted():
    return Planted()
