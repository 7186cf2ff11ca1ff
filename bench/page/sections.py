"""All sections of the page, made from result documents of any version.

A section exists if a document has data for it; if several have, the reader chooses among them.
"""

from collections.abc import Callable, Sequence
from typing import Any

from bench.page import comparisons, decoding, economics, settings
from bench.page.charts import is_number
from bench.page.parts import Built, Document, Part, Rows, label

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


def report(documents: Sequence[Document]) -> list[Part]:
    """Return all sections of a page, in order."""
    names = _names(documents)
    found = [_top(documents)]
    for section_id, (title, short, build) in SECTIONS.items():
        built = [(name, one, build(one)) for one, name in zip(documents, names, strict=True)]
        variants = [_variant(*parts, [one], name) for name, one, parts in built if parts is not None]
        if variants:
            found.append({"id": section_id, "title": title, "short": short, "variants": variants})
        if section_id == "acceptance" and (costs := decoding.costs(documents, names)):
            variants = [_variant(*costs)]
            found.append({"id": "costs", "title": "Cost curve", "short": "Costs", "variants": variants})
    return [*found, _sources(documents)]


def _variant(lead: str, parts: Sequence[Part], of: Sequence[Document] = (), name: str = "") -> Part:
    """Return a section as made from some documents; when, where and with which model they were measured."""
    measured = []
    for one in of:
        machine, model = one.get("machine") or {}, one.get("model") or {}
        cores = f", {machine['cores']} cores" if machine.get("cores") else ""
        with_model = f"; model {model['name']}" if model.get("name") else ""
        place = machine.get("cpu") or "an unknown machine"
        measured.append(f"Measured on {_day(one)} on {place}{cores}{with_model}.")
    return {"name": name, "lead": lead, "measured": list(dict.fromkeys(measured)), "parts": list(parts)}


def _day(document: Document) -> str:
    return str(document.get("date") or "an unknown day")[:10]


def _names(documents: Sequence[Document]) -> list[str]:
    """Return a distinct name for each document: its machine, and properties that not all documents share."""
    rows: Rows = [
        {
            "cpu": (one.get("machine") or {}).get("cpu") or "unknown machine",
            "model": (one.get("model") or {}).get("name"), "day": _day(one),
            "benchmark": " ".join(str(one.get("command") or "").split()[2:3]),
        }
        for one in documents
    ]  # fmt: skip
    label(rows, "name", "cpu", model="{}", day="{}", benchmark="{}")
    names = [str(row["name"]) for row in rows]
    return [name if names.count(name) == 1 else f"{name} ({number})" for number, name in enumerate(names, 1)]


def _top(documents: Sequence[Document]) -> Part:
    rows = next((rows for one in documents if (rows := decoding.decode_rows(one))), [])
    whole = [row for row in rows if row.get("turn") is None and is_number(row.get("speedup"))]
    items = []
    if whole:
        for which, end in (("highest", max), ("lowest", min)):
            row: dict[str, Any] = end(whole, key=lambda row: row["speedup"])
            about = f"{which} speedup: {row['workload']}, {row['series']}"
            items.append([f"{row['speedup']:.2f}\N{MULTIPLICATION SIGN}", about])
        judged = [row["parity"] == "PASS" for row in whole if row.get("parity")]
        of_judged = f"{sum(judged)} of {len(judged)}"
        items += [[of_judged, "with the same tokens as plain decoding"]] if judged else []
    lead = (
        "Reprise drafts text that it has already seen; the model verifies each draft in one forward pass. "
        "These are measurements of that, compared with plain decoding of the same prompts."
    )
    variant = _variant(
        lead, [{"kind": "headline", "items": items}] if items else [],
        documents if len(documents) == 1 else (),
    )  # fmt: skip
    return {"id": "top", "title": "Speedup from drafting", "variants": [variant]}


def _sources(documents: Sequence[Document]) -> Part:
    items: list[list[str]] = []
    for one in documents:
        machine, model = dict(one.get("machine") or {}), one.get("model") or {}
        when = f"{_day(one)}, at a load of {machine.pop('load_at_start', 'unknown')}"
        items.append([when, str(one.get("command") or "unknown command")])
        if one is not documents[0] and documents[0].get("machine") == one.get("machine"):
            continue
        facts = {"reprise": one.get("reprise")} | machine | {f"model {name}": v for name, v in model.items()}
        for name, value in facts.items():
            if value is not None:
                is_bytes = name.endswith("_bytes") and is_number(value)
                shown = f"{value / 2**30:.1f} GiB" if is_bytes else str(value)
                items.append([name.replace("_", " "), shown])
    lead = "To reproduce the figures, run these commands on the machines listed with them."
    variants = [_variant(lead, [{"kind": "sources", "items": items}])]
    return {"id": "sources", "title": "Sources", "short": "Sources", "variants": variants}
