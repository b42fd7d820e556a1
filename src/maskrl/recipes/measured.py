"""Scores of our own studies, the basis for plans of lite runs.

tools/evidence.py writes `data/measured.csv` from results/.
"""

from functools import cache
from typing import NamedTuple

from maskrl.recipes.published import rows_of


class MeasuredScore(NamedTuple):
    """The score of a method on a task after this many frames."""

    study: str  # the folder in results/
    task: str  # "dmcontrol/walker-walk"
    profile: str
    frames: int
    method: str
    mean: float
    std: float  # over seeds, with n - 1
    seeds: int


@cache
def measured_scores() -> tuple[MeasuredScore, ...]:
    return tuple(
        MeasuredScore(
            study=row["study"],
            task=row["task"],
            profile=row["profile"],
            frames=int(row["frames"]),
            method=row["method"],
            mean=float(row["mean"]),
            std=float(row["std"]),
            seeds=int(row["seeds"]),
        )
        for row in rows_of("measured")
    )


def measured(task: str, profile: str, frames: int) -> dict[str, MeasuredScore]:
    """The latest scores within this many frames, by method: of MLR and its Baseline in one study. Empty if there are none."""
    found = [
        score
        for score in measured_scores()
        if (score.task, score.profile) == (task, profile) and score.frames <= frames
    ]
    latest = max((score.frames for score in found), default=0)
    return {score.method: score for score in found if score.frames == latest}
