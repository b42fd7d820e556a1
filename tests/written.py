"""Run directories as docs/files.md describes them, written in milliseconds: for what reads runs and does not train."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from maskrl.recipes.schema import Recipe, as_json

VERSIONS = {"python": "3.11.0", "torch": "2.10.0", "mujoco": "3.3.6", "dm_control": "1.0.38", "ale-py": "0.12.1"}


def write_run(
    path: Path,
    recipe: Recipe,
    curve: Mapping[int, float],
    *,
    status: str = "done",
    why: str = "",
    versions: Mapping[str, Any] = VERSIONS,
    events: Sequence[Mapping[str, Any]] = (),
) -> Path:
    """Frames → score, in thousands of frames a second. Other events are {"kind": …, "frames": …} and what they have."""
    path.mkdir(parents=True)
    (path / "recipe.json").write_text(as_json(recipe))
    (path / "versions.json").write_text(json.dumps(versions))
    (path / "status.json").write_text(json.dumps({"status": status, "why": why}))
    scores = [{"kind": "evaluation", "frames": at, "score": s, "returns": [s - 1, s + 1]} for at, s in curve.items()]
    lines = [
        {
            "decisions": event["frames"] // recipe.env.action_repeat,
            "updates": 0,
            "seconds": event["frames"] / 1000,
            **event,
        }
        for event in sorted([*scores, *events], key=lambda event: event["frames"])
    ]
    (path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
