"""The tables of the paper: Yu et al., Mask-based Latent Reconstruction for Reinforcement Learning, NeurIPS 2022.

Every number is as printed, in `data/*.csv` with the label of its table; `data/sources.csv` has the tables' numbers. Misprints are
kept as printed and marked (`data/misprints.csv`).
"""

import csv
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Literal, NamedTuple

PAPER = "Yu et al., Mask-based Latent Reconstruction for Reinforcement Learning, NeurIPS 2022"

Unit = Literal["frames", "decisions"]

# The tables to search if none is named. The ablations repeat methods of Table 1 with fewer seeds.
MAIN_TABLES = ("table:dmc_compare", "table:challenging_tasks", "table:atari_compare")


@dataclass(frozen=True)
class PublishedScore:
    """One cell of a table."""

    table: str  # the label in the paper's source, "table:dmc_compare"
    method: str  # as printed
    task: str  # "dmcontrol/walker-walk"
    at: int
    unit: Unit
    mean: float
    std: float | None  # over seeds, if printed; we assume n - 1, which the paper does not state
    seeds: int | None  # if printed
    misprint: str | None = None

    @property
    def source(self) -> str:
        return f"paper, {citations()[self.table]}"


class PublishedAggregate(NamedTuple):
    """One number over all tasks of a table: "mean_over_tasks", "median_over_tasks", "iqm" or "optimality_gap"."""

    table: str
    method: str
    at: int
    unit: Unit
    name: str
    value: float
    misprint: str | None = None


class Players(NamedTuple):
    """The random and the human score that normalise scores on Atari."""

    random: float
    human: float


@cache
def citations() -> dict[str, str]:
    """Label of a table → its place in the paper, "Table 1"."""
    return {row["source"]: row["place"] for row in rows_of("sources")}


@cache
def published_scores() -> tuple[PublishedScore, ...]:
    """Every cell of every table with scores per task, including Atari's random and human players."""

    def score(
        row: dict[str, str], task: str, at: int, unit: Unit, mean: str, misprint: str | None = None
    ) -> PublishedScore:
        told = (float(mean), _number(row["std"]), _count(row["seeds"]))
        return PublishedScore(row["source"], row["method"], task, at, unit, *told, misprint)

    control = [
        score(
            row, f"dmcontrol/{row['task']}", int(row["frames"]), "frames", row["mean"],
            _misprint(row["source"], row["method"], row["task"], row["frames"], "std"),
        )
        for row in (*rows_of("dmcontrol"), *rows_of("ablations"))
    ]  # fmt: skip
    atari = [score(row, f"atari/{row['game']}", 100_000, "decisions", row["score"]) for row in rows_of("atari100k")]
    return (*control, *atari)


@cache
def published_aggregates() -> tuple[PublishedAggregate, ...]:
    """Every printed number over tasks. For some methods, the paper has only those of Tables 4 and 7."""
    over_tasks = ("mean_over_tasks", "median_over_tasks")
    control = [
        PublishedAggregate(
            row["source"],
            row["method"],
            frames := int(row.get("frames", 100_000)),
            "frames",
            name,
            float(row[name]),
            _misprint(row["source"], row["method"], "", str(frames), name),
        )
        for row in (*rows_of("dmcontrol_aggregates"), *rows_of("ablation_aggregates"))
        for name in over_tasks
    ]
    atari = [
        PublishedAggregate(row["source"], row["method"], 100_000, "decisions", name, float(row[name]))
        for row in rows_of("atari100k_aggregates")
        for name in ("iqm", "optimality_gap")
    ]
    return (*control, *atari)


def published(task: str, at: int, method: str, *, table: str | None = None) -> PublishedScore | None:
    """The paper's score for a task at this time, in the table's unit; None if there is none. "sac_ae" finds "SAC+AE"."""
    tables = MAIN_TABLES if table is None else (table,)
    found = (_by_key().get((name, task, at, plainly(method))) for name in tables)
    return next((score for score in found if score is not None), None)


def plainly(method: str) -> str:
    """A method's name in a common spelling for tables and commands."""
    return method.lower().replace("+", "_")


def unit_of(task: str) -> str:
    """The unit of the tables: decisions on Atari-100k, frames elsewhere."""
    return "decisions" if task.startswith("atari/") else "frames"


def players(task: str) -> Players | None:
    """The random and the human player of a game of Atari-100k; None for another task."""
    random, human = published(task, 100_000, "Random"), published(task, 100_000, "Human")
    return None if random is None or human is None else Players(random.mean, human.mean)


def representation_cosines() -> dict[tuple[str, str], float]:
    """(method, task) → cosine between latents of masked and of original observations. Table 10."""
    return {
        (row["method"], f"dmcontrol/{row['task']}"): float(row["cosine"]) for row in rows_of("representation_cosine")
    }


def training_hours() -> dict[tuple[str, str], float]:
    """(suite, method) → hours of a run on one RTX 3090. Appendix B.2."""
    return {(row["suite"], row["method"]): float(row["hours_single_rtx3090"]) for row in rows_of("training_hours")}


@cache
def _by_key() -> dict[tuple[str, str, int, str], PublishedScore]:
    return {(score.table, score.task, score.at, plainly(score.method)): score for score in published_scores()}


def rows_of(name: str) -> list[dict[str, str]]:
    """The rows of a table in `data/`, as dicts by heading."""
    text = (resources.files("maskrl.recipes") / "data" / f"{name}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def _misprint(*key: str) -> str | None:
    """The note on (source, method, task, frames, field), if there is one."""
    names = ("source", "method", "task", "frames", "field")
    notes = {tuple(row[name] for name in names): row["note"] for row in _misprints()}
    return notes.get(key)


@cache
def _misprints() -> list[dict[str, str]]:
    return rows_of("misprints")


def _number(text: str) -> float | None:
    return float(text) if text else None


def _count(text: str) -> int | None:
    return int(text) if text else None
