"""All sections of the page, made from result documents of any version.

A section exists if a document has data for it; if several have, the reader chooses among them.
"""

from collections.abc import Callable, Sequence

from bench.page import comparisons, decoding, economics, settings
from bench.page.parts import Built, Document, Part, day, is_number, measured_on


def report(documents: Sequence[Document]) -> list[Part]:
    """Return all sections of a page, in order."""
    names = _names(documents)
    found = [_top(documents)]
    for section_id, (title, short, build) in SECTIONS.items():
        variants = []
        for one, name in zip(documents, names, strict=True):
            if (built := build(one)) is not None:
                lead, parts = built
                variants.append({"name": name, "lead": lead, "measured": [measured_on(one)], "parts": parts})
        if variants:
            found.append({"id": section_id, "title": title, "short": short, "variants": variants})
        if section_id == "acceptance" and (costs := decoding.costs(documents, names)):
            found.append(costs)
    return [*found, _sources(documents)]


def _names(documents: Sequence[Document]) -> list[str]:
    """Return a distinct name for each document: the properties that distinguish it from the others."""
    properties = [
        [
            str((one.get("machine") or {}).get("cpu") or "unknown machine"),
            str((one.get("model") or {}).get("name") or "no model"),
            day(one),
            " ".join(str(one.get("command") or "").split()[2:3]),
        ]
        for one in documents
    ]
    telling = [at for at in range(4) if len({row[at] for row in properties}) > 1]
    names = [", ".join(row[at] for at in telling if row[at]) for row in properties]
    return [
        name if name and names.count(name) == 1 else f"{name or 'document'} ({number})"
        for number, name in enumerate(names, 1)
    ]


def _top(documents: Sequence[Document]) -> Part:
    rows = next((rows for one in documents if (rows := decoding.decode_rows(one))), [])
    whole = [row for row in rows if row.get("turn") is None and is_number(row.get("speedup"))]
    items = []
    if whole:
        most, least = (pick(whole, key=lambda row: row["speedup"]) for pick in (max, min))
        items = [
            [
                f"{row['speedup']:.2f}\N{MULTIPLICATION SIGN}",
                f"{which} speedup: {row['workload']}, {row['series']}",
            ]
            for which, row in (("highest", most), ("lowest", least))
        ]
        judged = [row for row in whole if row.get("parity")]
        passed = sum(row["parity"] == "PASS" for row in judged)
        items += [[f"{passed} of {len(judged)}", "with the same tokens as plain decoding"]] if judged else []
    lead = (
        "Reprise drafts text that it has already seen; the model verifies each draft in one forward pass. "
        "These are measurements of that, compared with plain decoding of the same prompts."
    )
    measured = [measured_on(documents[0])] if len(documents) == 1 else []
    parts = [{"kind": "headline", "items": items}] if items else []
    return {
        "id": "top",
        "title": "Speedup from drafting",
        "variants": [{"name": "", "lead": lead, "measured": measured, "parts": parts}],
    }


def _sources(documents: Sequence[Document]) -> Part:
    items: list[list[str]] = []
    for one in documents:
        machine, model = one.get("machine") or {}, one.get("model") or {}
        items.append(
            [
                f"{day(one)}, at a load of {machine.get('load_at_start', 'unknown')}",
                str(one.get("command") or "unknown command"),
            ]
        )
        facts = (
            {"reprise": one.get("reprise")}
            | machine
            | {f"model {name}": value for name, value in model.items()}
        )
        items += [
            [
                name.replace("_", " "),
                f"{value / 2**30:.1f} GiB" if name.endswith("_bytes") and is_number(value) else str(value),
            ]
            for name, value in facts.items()
            if value is not None
            and name != "load_at_start"
            and not (one is not documents[0] and documents[0].get("machine") == machine)
        ]
    lead = "To reproduce the figures, run these commands on the machines listed with them."
    variant = {"name": "", "lead": lead, "measured": [], "parts": [{"kind": "sources", "items": items}]}
    return {"id": "sources", "title": "Sources", "short": "Sources", "variants": [variant]}


SECTIONS: dict[str, tuple[str, str, Callable[[Document], Built]]] = {
    "speedup": ("Speedup", "Speedup", decoding.speedup),
    "parity": ("Parity", "Parity", decoding.parity),
    "answers": ("The source of each token", "Tokens", decoding.answers),
    "acceptance": ("Acceptance", "Acceptance", decoding.acceptance),
    "sweep": ("Settings", "Settings", settings.sweep),
    "economics": ("When drafting pays", "Economics", economics.economics),
    "translation": ("Across vocabularies", "Translation", comparisons.translation),
    "peers": ("Compared with others", "Peers", comparisons.peers),
    "serve": ("Servers under load", "Load", comparisons.serve),
    "replay": ("Replayed without a model", "Replay", comparisons.replay),
}
"""By id: the title, the name in the table of contents, and the function that builds it from a document."""
