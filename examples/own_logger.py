"""A logger of your own: append every evaluation to a CSV file. About half a minute.

python examples/own_logger.py [RUN_DIR] [FRAMES]
"""

import csv
import sys
from collections.abc import Mapping
from pathlib import Path

import maskrl
from maskrl.clock import Clock


class Scores(maskrl.Logger):
    name = "scores"

    def __init__(self, path: Path) -> None:
        self.path = path

    def write(self, points: Mapping[str, float], clock: Clock) -> None:  # after every decision, often without points
        if "evaluation/score" in points:
            with self.path.open("a", newline="") as file:
                csv.writer(file).writerow([clock.frames, f"{clock.seconds:.1f}", f"{points['evaluation/score']:.2f}"])

    def note(self, text: str, clock: Clock) -> None:
        print(f"{clock.frames:,} frames: {text}")


if __name__ == "__main__":
    run_dir, frames = (sys.argv[1:] + ["runs/own-logger", "1000"][len(sys.argv) - 1 :])[:2]
    scores = Path(f"{run_dir}.csv")
    scores.parent.mkdir(parents=True, exist_ok=True)
    maskrl.train(maskrl.recipe("toy/reach", f"budget.frames={frames}", method="baseline"), run_dir, [Scores(scores)])
    print(scores.read_text())
