"""The logger that shows a run in the terminal: a picture redrawn in place, or plain lines if the terminal cannot do that."""

import os
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console, Group
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from maskrl.clock import Clock
from maskrl.runs.directory import Run, title
from maskrl.runs.loggers import Logger, Speed
from maskrl.words import count, duration, number

EVERY_SECONDS, EVERY_SHARE = 30.0, 0.01  # between two plain lines


class Progress:
    """The values to show, collected from the points of a run. Prints nothing."""

    def __init__(self, run: Run) -> None:
        self.recipe, self.clock, self.speed = run.recipe, Clock(0, 0, 0, 0.0), Speed()
        self.began: Clock | None = None  # when this process started or continued the run
        self.episodes, self.episode_return = 0, float("nan")
        self.scores: list[tuple[int, float, float]] = []  # frames, score and spread over episodes of each evaluation
        self.evaluating: tuple[int, int] | None = None  # during an evaluation: episodes that have ended, and all
        self.random_score: float | None = None
        self.losses: dict[str, float] = {}  # the newest of each part; some parts do not learn in every update
        self.seconds: dict[str, float] = {}  # of each part in this process …
        self._seconds_at = 0.0  # … up to this time of the run
        self._run = run

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        if self.began is None:
            self._begin(clock)
        self.clock = clock
        self.speed.add(points, clock)
        if "training/return" in points:
            self.episodes, self.episode_return = self.episodes + 1, points["training/return"]
        if "evaluation/ended" in points:
            self.evaluating = int(points["evaluation/ended"]), int(points["evaluation/episodes"])
        if "evaluation/score" in points:
            self.evaluating = None
            self.scores.append((clock.frames, points["evaluation/score"], points["evaluation/spread"]))
        self.random_score = points.get("random/score", self.random_score)
        self.losses |= {name.removesuffix("/loss"): points[name] for name in points if name.endswith("/loss")}
        if seconds := {name.removeprefix("time/"): points[name] for name in points if name.startswith("time/")}:
            self.seconds, self._seconds_at = seconds, clock.seconds

    def _begin(self, clock: Clock) -> None:
        """Load the points that earlier processes logged."""
        self.began = clock
        self.scores = [(int(one["frames"]), one["score"], one["spread"]) for one in self._run.scores]
        for event in self._run.events("random"):
            self.random_score = event["score"]
        for event in self._run.events("episode"):
            self.episodes, self.episode_return = self.episodes + 1, event["return"]

    @property
    def share(self) -> float:
        """The finished share of the budget, 0 to 1."""
        return self.clock.frames / self.recipe.frames

    @property
    def best(self) -> tuple[int, float, float]:
        return max(self.scores, key=lambda score: score[1])

    @property
    def seconds_left(self) -> float | None:
        """An estimate from the recent speed and the time of an evaluation; None during the warm-up, which is much faster."""
        speed, evaluation = self.speed.decisions_per_second, self.recipe.evaluation
        if speed is None or (self.clock.updates == 0 and self.share < 1):
            return None
        frames_left = self.recipe.frames - self.clock.frames
        evaluations_left = -(-self.recipe.frames // evaluation.every) - self.clock.frames // evaluation.every
        evaluations = max(1, len([frames for frames, _, _ in self.scores if frames > 0]))
        seconds_each = self.seconds.get("evaluation", 0.0) / evaluations
        return frames_left / self.recipe.env.action_repeat / speed + evaluations_left * seconds_each

    @property
    def phase(self) -> str:
        """The current phase of the run, in words."""
        frames, last = self.clock.frames, self.scores[-1][0] if self.scores else -1
        if frames >= self.recipe.frames and last == frames:
            return "done"
        if last != frames and (frames % self.recipe.evaluation.every == 0 or frames >= self.recipe.frames):
            ended, episodes = self.evaluating or (0, self.recipe.evaluation.episodes)
            return f"evaluating, {ended} of {episodes} episodes"
        return "warming up" if self.clock.updates == 0 else "learning"

    def shares_of_time(self) -> dict[str, float]:
        """The share of time of each part in this process, 0 to 1, without parts below 0.5 %."""
        if self.began is None or not self.seconds:
            return {}
        total = max(self._seconds_at - self.began.seconds, sum(self.seconds.values()), 1e-9)
        shares = {part: seconds / total for part, seconds in self.seconds.items()}
        shares["other"] = 1 - sum(shares.values())
        return {part: share for part, share in shares.items() if share >= 0.005}


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _facts(progress: Progress) -> dict[str, str]:
    """Texts for both the plain line and the picture; empty while a value is unknown."""
    speed, left = progress.speed.decisions_per_second, progress.seconds_left
    words = [f"{number(speed)} decisions/s"] if speed is not None else []
    if progress.share < 1:
        words.append(f"{duration(left)} to go" if left is not None else "time to go unknown yet")
    return {
        "frames": f"{progress.clock.frames:,} of {progress.recipe.frames:,} frames ({progress.share:.0%})",
        "speed": ", ".join(words),
        "training": f"return {number(progress.episode_return)}" if progress.episodes else "",
        "losses": "  ".join(f"{name} {number(value)}" for name, value in progress.losses.items()),
        "time": "  ".join(f"{part} {share:.0%}" for part, share in progress.shares_of_time().items()),
    }


def _line(progress: Progress) -> str:
    facts = _facts(progress)
    return " | ".join(f"{name}: {text}" if name in ("losses", "time") else text for name, text in facts.items() if text)


def _evaluation(progress: Progress) -> str:
    (frames, score, spread), episodes = progress.scores[-1], count(progress.recipe.evaluation.episodes, "episode")
    best_frames, best, _ = progress.best
    words = f"{frames:,} frames: score {number(score)} ± {number(spread)} over {episodes}"
    if len(progress.scores) == 1:
        return words
    return words + (", the best so far" if best_frames == frames else f", best {number(best)} at {best_frames:,}")


def _score(progress: Progress) -> Text:
    if not progress.scores:
        return Text("–")
    (_, last, spread), (best_frames, best, _) = progress.scores[-1], progress.best
    words = f" ± {number(spread)}, best {number(best)} at {best_frames:,}"
    random = "" if progress.random_score is None else f", random {number(progress.random_score)}"
    return Text.assemble("last ", (number(last), "bold green"), words, random)


def picture(progress: Progress) -> Group:
    """The picture that is redrawn in place."""
    recipe, clock, facts = progress.recipe, progress.clock, _facts(progress)
    bar = Table.grid(padding=(0, 1), expand=True)
    bar.add_column(ratio=1)
    bar.add_column(no_wrap=True)
    bar.add_row(ProgressBar(total=recipe.frames, completed=clock.frames), facts["frames"])
    table = Table.grid(padding=(0, 2, 0, 0), expand=True)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(ratio=1)  # takes the remaining width and wraps, so that narrow terminals show everything
    table.add_row("speed", ", ".join(filter(None, [facts["speed"], f"{duration(clock.seconds)} so far"])))
    table.add_row("score", _score(progress))
    table.add_row("training", f"{facts['training']}, episode {progress.episodes:,}" if progress.episodes else "–")
    table.add_row("losses", facts["losses"] or "–")
    table.add_row("time", facts["time"] or "–")
    head = Text.assemble((title(recipe), "bold"), "  ", (progress.phase, "cyan"))
    return Group(head, bar, table)


# ── The logger ────────────────────────────────────────────────────────────────────────────────────────────────────────


class Terminal(Logger):
    """Shows a run on the standard output: redrawn in place in a terminal, and in plain lines in a file or pipe.

    Plain lines are printed at every evaluation, and in between at the rarer of EVERY_SECONDS and EVERY_SHARE of the budget.
    """

    name = "terminal"

    def __init__(self, run: Run, console: Console | None = None) -> None:
        """`console`: the terminal to draw in (default: the standard output, if it is a terminal that can be redrawn)."""
        self.progress = Progress(run)
        can_redraw = sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
        # Without a thread of rich: it would slow the run, and nothing changes between two decisions.
        live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._live = live if can_redraw or console is not None else None
        self._newest: Clock | None = None  # of the newest picture or line

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        continues = self.progress.began is None and clock.frames > 0
        self.progress.write(points, clock)
        if continues:
            self._say(f"continues at {clock.frames:,} of {self.progress.recipe.frames:,} frames")
        if "random/score" in points:
            self._say(f"random actions: score {number(points['random/score'])}")
        if "evaluation/score" in points:
            self._say(_evaluation(self.progress))
        if self._live is None:
            self._print_if_due()
        elif self._newest is None or clock.seconds - self._newest.seconds >= 0.25 or self.progress.evaluating:
            self._newest = clock
            self._draw(self._live)

    def note(self, text: str, clock: Clock) -> None:
        self._say(f"{clock.frames:,} frames: {text}", style="yellow")

    def close(self) -> None:
        if self._live is not None and self._live.is_started:
            self._draw(self._live)  # the final picture stays on the screen
            with until_closed():
                self._live.stop()

    def _say(self, line: str, style: str = "") -> None:
        with until_closed():
            if self._live is None:
                print(line, flush=True)
            else:
                self._live.console.print(line, highlight=False, markup=False, style=style)

    def _draw(self, live: Live) -> None:
        with until_closed():
            live.start()
            # Room for the "^C" that a terminal echoes: on a full last line it would wrap and displace the next picture.
            live.update(Constrain(picture(self.progress), live.console.width - 3), refresh=True)

    def _print_if_due(self) -> None:
        progress, clock = self.progress, self.progress.clock
        last = self._newest = self._newest or clock
        frames = EVERY_SHARE * progress.recipe.frames
        if clock.seconds - last.seconds >= EVERY_SECONDS and clock.frames - last.frames >= frames:
            self._newest = clock
            self._say(_line(progress))


@contextmanager
def until_closed() -> Iterator[None]:
    """Stop printing once the pipe or the terminal is closed; the run continues without output."""
    try:
        yield
    except OSError:
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115, it stays for the rest of the process
