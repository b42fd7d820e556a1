"""Probes of the encoders: the last probe of every run beside the paper's cosines, and cosines over training."""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from maskrl.recipes.published import representation_cosines
from maskrl.report.curves import method_lines
from maskrl.report.document import Block, Chart, Section
from maskrl.report.facts import RunFacts, is_number
from maskrl.report.groups import CASE_FIELDS, LITE, Case, Cases
from maskrl.report.tables import NOTHING, Cell, Column, Field, Table, number, summary_cell, tabulated

PROBES = {
    "encoder_cosine": "encoder cosine",
    "decoder_cosine": "decoder cosine",
    "rank": "effective rank",
    "dead": "dead units",
    "r2": "linear R²",
}


def representation(runs: Cases, *, papers: bool) -> Section | None:
    """The section on probes."""
    probed = {case: [fact for fact in facts if fact.probes] for case, facts in runs.items()}
    found = {case: facts for case, facts in probed.items() if facts}
    if not found:
        return None
    told = (
        "The cosine is between latents of masked and of original observations: near 1, the mask hardly changes the latents. "
        "Effective rank and dead units show collapse; R² measures how well a linear map predicts the simulator’s state from "
        "the latents.",
        "Each number is the mean over runs of their last probes.",
    )
    blocks: tuple[Block, ...] = (_probes_table(found, papers=papers), *_cosine_curves(found))
    return Section("representation", "What the encoders learned", told, blocks)


def _probes_table(found: Cases, *, papers: bool) -> Table:
    last = {case: [_last_probe(fact) for fact in facts] for case, facts in found.items()}
    printed = {(m.lower(), task): cosine for (m, task), cosine in representation_cosines().items()} if papers else {}

    def probe(key: str) -> Field[Case]:
        def cell(case: Case) -> Cell:
            values = [probe[key] for probe in last[case] if key in probe]
            return summary_cell(values) if values else NOTHING

        return Column(PROBES[key], ("mean", "std", "runs")), cell

    def papers_cosine(case: Case) -> Cell:
        cosine = number(printed.get((case.method, case.task)), 3)
        profile = found[case][0].run.protocol.get("profile")
        why = {"lite": LITE, None: "not comparable: the profile is unknown"}.get(profile)
        return replace(cosine, note=why, mark="apart") if why and cosine.numbers != (None,) else cosine

    first, *others = map(probe, PROBES)
    paper: Field[Case] = (Column("paper: cosine", ("",), "quiet"), papers_cosine)
    fields = [*CASE_FIELDS, first, *([paper] if papers else []), *others]
    return tabulated("representation", "Representation probes", fields, found)


def _last_probe(fact: RunFacts) -> dict[str, float]:
    """The newest value of each measure."""
    found = dict[str, float]()
    for probe in fact.probes:
        linear = probe.get("linear")
        values = {**probe, **({"r2": linear.get("r2")} if isinstance(linear, dict) else {})}
        found |= {key: float(values[key]) for key in PROBES if is_number(values.get(key))}
    return found


def _cosine_curves(found: Cases) -> Iterator[Chart]:
    """Charts of the encoder's cosine over training, if it was measured more than once; a panel per task and protocol."""
    lines: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for case, facts in found.items():
        measured = [(fact.run.seed, points) for fact in facts if (points := _cosines(fact))]
        if measured:
            lines[f"{case.task}, {case.setting.partition(' · ')[2]}"].append(method_lines(case.method, measured, 100))
    panels = [
        {"title": title, "methods": methods, "bands": []}
        for title, methods in lines.items()
        if any(len(seed["points"]) > 1 for method in methods for seed in method["seeds"])
    ]
    if panels:
        data = {"unit": "frames", "y": "cosine", "panels": panels, "apart": ""}
        yield Chart("probe-curves", "curves", "Cosine after the encoder, over training", data)


def _cosines(fact: RunFacts) -> list[tuple[int, float]]:
    found = {
        int(probe["frames"]): float(probe["encoder_cosine"])
        for probe in fact.probes
        if is_number(probe.get("frames")) and is_number(probe.get("encoder_cosine"))
    }
    return sorted(found.items())
