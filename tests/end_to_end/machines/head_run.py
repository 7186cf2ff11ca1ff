"""Answer with drafts of a head wherever it can draft, as one rank of several or alone, and write the answers.

Arguments: the model's folder, the file to write, the split, the folder of the head ("" for the model's own).
"""

import json
import sys
from pathlib import Path

from reprise.config.settings import Settings
from reprise.engine.distributed import follow
from reprise.engine.distributed.rank_0 import Ranks, leave
from reprise.engine.distributed.ranks import read_place
from reprise.engine.engine import Engine
from reprise.engine.generating.setup import flat_costs
from reprise.engine.pool.residency import Makers
from reprise.engine.speculative.proposers import DraftSources
from tests.drafters.fakes import scored
from tests.engine.support import ask, prompt_of, request

NUM_REQUESTS = 5


def main(model: str, file: str, split: str, head: str) -> None:
    """Run this rank."""
    settings = Settings(
        model=model,
        split=split,  # type: ignore[arg-type]
        draft_model=head or None,
        keeps_costs=False,
        num_draft_tokens=3,
        prefill_chunk_tokens=32,
    )
    place = read_place()
    if place is not None and place.rank:
        follow.run(place, settings)
    ranks = Ranks(place, settings) if place else None
    sources = DraftSources({}, scored(0.0))
    engine = Engine(settings, Makers(make_sources=lambda _: sources, costs=flat_costs(), ranks=ranks))
    engine.start()
    asked = [
        request(prompt_of(40 + 9 * at, at), 30, name=str(at), temperature=0.8 * (at % 2), seed=at)
        for at in range(NUM_REQUESTS)
    ]
    ends = [answer.finished() for answer in [ask(engine, one) for one in asked]]
    found = {
        "head": engine.info.head,
        "tokens": [list(end.tokens) for end in ends],
        "num_drafted": sum(end.usage.drafting.num_drafted for end in ends),
    }
    Path(file).write_text(json.dumps(found))
    engine.stop(drain_s=0)
    if ranks:
        leave(ranks.release(0))


if __name__ == "__main__":
    main(*sys.argv[1:])
