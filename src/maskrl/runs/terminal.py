"""What a run shows while it trains: live in a terminal, in plain lines elsewhere, and in TensorBoard or W&B for later."""

import importlib.util
import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

from rich.console import Console, Group
from rich.constrain import Constrain
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from maskrl.agents.base import Metrics
from maskrl.runs.evaluate import EpisodeReturns
from maskrl.recipes.schema import Recipe, as_json, digest
from maskrl.runs.directory import Clock, Run
from maskrl.runs.loop import Watcher, is_logged

PARTS = ("environment", "replay", "critic", "objective", "optimizer", "actor", "evaluation", "checkpoint")  # as shown
RECENT = 60.0  # seconds of training that the speed is taken over


class Progress:
    """What there is to show, gathered from what a watcher is told. It prints nothing."""

    def __init__(self, run: Run) -> None:
        self.recipe, self.clock = run.recipe, Clock(0, 0, 0, 0.0)
        self.episodes, self.episode_return = 0, float("nan")
        self.scores: list[tuple[int, float, float]] = []  # frames, score and spread over episodes of each evaluation
        self.looked: tuple[int, int] | None = (
            None  # episodes that have ended in the evaluation that is under way, and all of them
        )
        self.random_score: float | None = None
        self.losses: Metrics = {}
        self.seconds: dict[str, float] = {}  # of each part, in this sitting
        self._recent: deque[tuple[int, float]] = deque()  # decisions, and seconds of training without looking
        self._seconds_at_begin = 0.0
        self._run = run

    def begin(self, clock: Clock) -> None:
        """Continue a run with what it has logged."""
        self.clock, self._seconds_at_begin = clock, clock.seconds
        for event in self._run.events():
            match event["kind"]:
                case "evaluation":
                    returns = EpisodeReturns(tuple(event["returns"]))
                    self.scores.append((event["frames"], returns.score, returns.spread))
                case "random":
                    self.random_score = event["score"]
                case "episode":
                    self.episodes, self.episode_return = self.episodes + 1, event["return"]

    def decision(self, clock: Clock, metrics: Metrics, seconds: Mapping[str, float]) -> None:
        learning_began = clock.updates > 0 and self.clock.updates == 0
        if learning_began:
            self._recent.clear()  # the decisions of the warm-up are many times faster than those to come
        self.clock, self.seconds = clock, dict(seconds)
        self.losses = {**self.losses, **metrics}  # some parts learn only now and then
        busy = clock.seconds - sum(seconds.get(part, 0.0) for part in ("evaluation", "checkpoint"))
        if not self._recent or busy - self._recent[-1][1] >= 0.5:
            self._recent.append((clock.decisions, busy))
            while busy - self._recent[0][1] > RECENT:
                self._recent.popleft()

    def episode(self, clock: Clock, episode_return: float) -> None:
        self.clock, self.episodes, self.episode_return = clock, self.episodes + 1, episode_return

    def evaluating(self, clock: Clock, ended: int, episodes: int) -> None:
        self.clock, self.looked = clock, (ended, episodes)

    def evaluation(self, clock: Clock, returns: EpisodeReturns) -> None:
        self.clock, self.looked = clock, None
        self.scores.append((clock.frames, returns.score, returns.spread))
        for event in self._run.events("random") if self.random_score is None else ():
            self.random_score = event["score"]

    # ── derived ───────────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def share(self) -> float:
        """Of the budget, 0 to 1."""
        return self.clock.frames / self.recipe.frames

    @property
    def best(self) -> tuple[int, float, float]:
        return max(self.scores, key=lambda score: score[1])

    @property
    def decisions_per_second(self) -> float | None:
        """Over the last minute, without evaluations; None until there is something to go by."""
        if len(self._recent) < 2:
            return None
        (decisions, seconds), (last_decisions, last_seconds) = self._recent[0], self._recent[-1]
        return (last_decisions - decisions) / (last_seconds - seconds)

    @property
    def seconds_left(self) -> float | None:
        """From the recent speed and what an evaluation took; None during the warm-up, whose speed says nothing."""
        speed, evaluation = self.decisions_per_second, self.recipe.evaluation
        if speed is None or (self.clock.updates == 0 and self.share < 1):
            return None
        frames_left = self.recipe.frames - self.clock.frames
        looks_left = -(-self.recipe.frames // evaluation.every) - self.clock.frames // evaluation.every
        looks = max(1, len([frames for frames, _, _ in self.scores if frames > 0]))
        looking = self.seconds.get("evaluation", 0.0) / looks
        return frames_left / self.recipe.env.action_repeat / speed + looks_left * looking

    @property
    def phase(self) -> str:
        """What happens after this decision, which is what a reader of the display is waiting for."""
        frames, last = self.clock.frames, self.scores[-1][0] if self.scores else -1
        if frames >= self.recipe.frames and last == frames:
            return "done"
        if last != frames and (frames % self.recipe.evaluation.every == 0 or frames >= self.recipe.frames):
            ended, episodes = self.looked or (0, self.recipe.evaluation.episodes)
            return f"evaluating, {ended} of {episodes} episodes"
        return "warming up" if self.clock.updates == 0 else "learning"

    def shares_of_time(self) -> dict[str, float]:
        """Where the time of this sitting went: fractions of 1, in a fixed order, parts of no weight left out."""
        total = max(self.clock.seconds - self._seconds_at_begin, sum(self.seconds.values()), 1e-9)
        shares = {part: self.seconds[part] / total for part in PARTS if part in self.seconds}
        shares["other"] = 1 - sum(shares.values())
        return {part: share for part, share in shares.items() if share >= 0.005}

    def loss_values(self) -> dict[str, float]:
        """The losses alone, by the part they belong to. Reading them waits for a GPU: ask seldom."""
        return {
            name.removesuffix("/loss"): float(value) for name, value in self.losses.items() if name.endswith("/loss")
        }


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def duration(seconds: float) -> str:
    """5 s, 3 min 20 s, 2 h 05 min, 3 d 04 h."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    if whole < 86400:
        return f"{whole // 3600} h {whole % 3600 // 60:02} min"
    return f"{whole // 86400} d {whole % 86400 // 3600:02} h"


def number(value: float) -> str:
    """Three significant digits at least, no exponent for what a score or a loss usually is."""
    size = abs(value)
    if size >= 1000 or (size and size < 0.001):
        return f"{value:,.0f}" if 1000 <= size < 1e6 else f"{value:.2e}"
    return f"{value:.0f}" if size >= 100 else f"{value:.1f}" if size >= 10 else f"{value:.3g}"


def title(recipe: Recipe) -> str:
    return f"{recipe.name} · {recipe.method} · {recipe.profile} profile · seed {recipe.seed}"


def _speed(progress: Progress) -> str:
    speed, left = progress.decisions_per_second, progress.seconds_left
    words = [f"{number(speed)} decisions/s"] if speed is not None else []
    if progress.share < 1:
        words.append(f"{duration(left)} to go" if left is not None else "time to go unknown yet")
    return ", ".join(words)


def _evaluation(progress: Progress) -> str:
    (frames, score, spread), episodes = progress.scores[-1], progress.recipe.evaluation.episodes
    best_frames, best, _ = progress.best
    words = f"{frames:,} frames: score {number(score)} ± {number(spread)} over {episodes} episode{'s' * (episodes > 1)}"
    if len(progress.scores) == 1:
        return words
    return words + (", the best so far" if best_frames == frames else f", best {number(best)} at {best_frames:,}")


def _named(values: Mapping[str, float]) -> str:
    return "  ".join(f"{name} {number(value)}" for name, value in values.items())


def _shares(progress: Progress) -> str:
    return "  ".join(f"{part} {share:.0%}" for part, share in progress.shares_of_time().items())


# ── Displays ──────────────────────────────────────────────────────────────────────────────────────────────────────────


class PlainProgress:
    """Lines for a log: every evaluation, and in between one per 30 seconds or 1 % of the budget, whichever is rarer."""

    def __init__(self, run: Run, *, every_seconds: float = 30.0, every_share: float = 0.01) -> None:
        self.progress = Progress(run)
        self._every_seconds, self._every_share = every_seconds, every_share
        self._seconds, self._frames = 0.0, 0  # of the newest line
        self._looked = time.monotonic()  # the newest decision, or line within an evaluation

    def begin(self, recipe: Recipe, clock: Clock) -> None:
        self.progress.begin(clock)
        self._seconds, self._frames = clock.seconds, clock.frames
        if clock.frames:
            self._print(f"continues at {clock.frames:,} of {recipe.frames:,} frames")

    def decision(self, clock: Clock, metrics: Metrics, seconds: Mapping[str, float]) -> None:
        self.progress.decision(clock, metrics, seconds)
        self._looked = time.monotonic()
        rested = clock.seconds - self._seconds >= self._every_seconds
        if rested and clock.frames - self._frames >= self._every_share * self.progress.recipe.frames:
            self._seconds, self._frames = clock.seconds, clock.frames
            self._print(self.line())

    def episode(self, clock: Clock, episode_return: float) -> None:
        self.progress.episode(clock, episode_return)

    def evaluating(self, clock: Clock, ended: int, episodes: int) -> None:
        self.progress.evaluating(clock, ended, episodes)
        if time.monotonic() - self._looked >= self._every_seconds and ended < episodes:
            self._looked = time.monotonic()
            self._print(f"{clock.frames:,} frames: {self.progress.phase}")

    def evaluation(self, clock: Clock, returns: EpisodeReturns) -> None:
        self.progress.evaluation(clock, returns)
        if clock.frames == 0 and self.progress.random_score is not None:
            self._print(f"random actions: score {number(self.progress.random_score)}")
        self._print(_evaluation(self.progress))

    def note(self, clock: Clock, text: str) -> None:
        self._print(f"{clock.frames:,} frames: {text}")

    def line(self) -> str:
        progress, frames = self.progress, self.progress.clock.frames
        parts = [f"{frames:,} of {progress.recipe.frames:,} frames ({progress.share:.0%})", _speed(progress)]
        if progress.episodes:
            parts.append(f"return {number(progress.episode_return)}")
        if losses := progress.loss_values():
            parts.append(f"losses: {_named(losses)}")
        parts.append(f"time: {_shares(progress)}")
        return " | ".join(parts)

    def _print(self, line: str) -> None:
        try:
            print(line, flush=True)
        except OSError:
            # Whoever read this has gone (a closed pipe or terminal). The run is worth more than its narration.
            sys.stdout = open(os.devnull, "w")  # noqa: SIM115, it stays for the rest of the process


class LiveProgress:
    """A display that is rewritten in place, at most four times a second; every evaluation leaves a line above it."""

    def __init__(self, run: Run, console: Console | None = None) -> None:
        self.progress = Progress(run)
        # No thread of rich's own: it would take time from the run, and nothing changes between two decisions.
        self._live = Live(console=console, auto_refresh=False, vertical_overflow="crop")
        self._drawn = -1.0

    def __enter__(self) -> "LiveProgress":
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.draw()  # what stays on the screen is the end
        self._live.stop()

    def begin(self, recipe: Recipe, clock: Clock) -> None:
        self.progress.begin(clock)
        if clock.frames:
            self._live.console.print(f"continues at {clock.frames:,} of {recipe.frames:,} frames", highlight=False)
        self.draw()

    def decision(self, clock: Clock, metrics: Metrics, seconds: Mapping[str, float]) -> None:
        self.progress.decision(clock, metrics, seconds)
        if clock.seconds - self._drawn >= 0.25 or self.progress.phase.startswith("evaluating"):
            self.draw()

    def episode(self, clock: Clock, episode_return: float) -> None:
        self.progress.episode(clock, episode_return)

    def evaluating(self, clock: Clock, ended: int, episodes: int) -> None:
        if self.progress.looked != (ended, episodes):
            self.progress.evaluating(clock, ended, episodes)
            self.draw()

    def evaluation(self, clock: Clock, returns: EpisodeReturns) -> None:
        self.progress.evaluation(clock, returns)
        self._live.console.print(_evaluation(self.progress), highlight=False)
        self.draw()

    def note(self, clock: Clock, text: str) -> None:
        self._live.console.print(f"{clock.frames:,} frames: {text}", highlight=False, markup=False, style="yellow")

    def draw(self) -> None:
        self._drawn = self.progress.clock.seconds
        # Room for the "^C" that a terminal echoes: on a full last line it would wrap, and the next drawing miss its place.
        with suppress(OSError):  # the terminal was closed, and the run is about to save itself
            self._live.update(Constrain(self.picture(), self._live.console.width - 3), refresh=True)

    def picture(self) -> Group:
        progress, recipe, clock = self.progress, self.progress.recipe, self.progress.clock
        bar = Table.grid(padding=(0, 1), expand=True)
        bar.add_column(ratio=1)
        bar.add_column(no_wrap=True)
        bar.add_row(
            ProgressBar(total=recipe.frames, completed=clock.frames),
            f"{clock.frames:,} of {recipe.frames:,} frames ({progress.share:.0%})",
        )
        table = Table.grid(padding=(0, 2, 0, 0), expand=True)
        table.add_column(style="dim", no_wrap=True)
        table.add_column(ratio=1)  # takes what is left and wraps, so a narrow terminal loses nothing
        table.add_row(
            "speed", ", ".join(words for words in (_speed(progress), f"{duration(clock.seconds)} so far") if words)
        )
        table.add_row("score", self._score())
        last = f"return {number(progress.episode_return)}, episode {progress.episodes:,}" if progress.episodes else "–"
        table.add_row("training", last)
        table.add_row("losses", _named(progress.loss_values()) or "–")
        table.add_row("time", _shares(progress) or "–")
        head = Text.assemble((title(recipe), "bold"), "  ", (progress.phase, "cyan"))
        return Group(head, bar, table)

    def _score(self) -> Text:
        progress = self.progress
        if not progress.scores:
            return Text("–")
        _, last, spread = progress.scores[-1]
        best_frames, best, _ = progress.best
        words = Text.assemble(
            "last ", (number(last), "bold green"), f" ± {number(spread)}, best {number(best)} at {best_frames:,}"
        )
        return words if progress.random_score is None else words.append(f", random {number(progress.random_score)}")


# ── Records for other tools ───────────────────────────────────────────────────────────────────────────────────────────

Points = dict[str, float]


class Record:
    """Turns what a watcher is told into named points against frames, and hands them to `write`."""

    def __init__(self, run: Run, write: Callable[[Points, int], None]) -> None:
        self.progress, self._write = Progress(run), write

    def begin(self, recipe: Recipe, clock: Clock) -> None:
        self.progress.begin(clock)

    def decision(self, clock: Clock, metrics: Metrics, seconds: Mapping[str, float]) -> None:
        made = range(self.progress.clock.updates + 1, clock.updates + 1)  # none, one or several updates
        self.progress.decision(clock, metrics, seconds)
        if any(is_logged(update) for update in made):
            points = {name: float(value) for name, value in metrics.items()}
            if (speed := self.progress.decisions_per_second) is not None:
                points["speed/decisions_per_second"] = speed
            self._write(points, clock.frames)

    def episode(self, clock: Clock, episode_return: float) -> None:
        self.progress.episode(clock, episode_return)
        self._write({"training/return": episode_return}, clock.frames)

    def evaluating(self, clock: Clock, ended: int, episodes: int) -> None:
        pass

    def evaluation(self, clock: Clock, returns: EpisodeReturns) -> None:
        self.progress.evaluation(clock, returns)
        shares = {f"time/{part}": share for part, share in self.progress.shares_of_time().items()}
        self._write({"evaluation/score": returns.score, "evaluation/spread": returns.spread, **shares}, clock.frames)

    def note(self, clock: Clock, text: str) -> None:
        pass


@contextmanager
def tensorboard(run: Run) -> Iterator[Record]:
    """Event files in the run directory; `tensorboard --logdir runs` shows them."""
    from torch.utils.tensorboard import SummaryWriter

    writers: list[Any] = []

    def write(points: Points, frames: int) -> None:
        if not writers:
            # What an earlier sitting wrote after its checkpoint is lived through again: from here on, hide the first time.
            purge = frames if frames else None
            writers.append(SummaryWriter(str(run.path / "tensorboard"), purge_step=purge))
        for name, value in points.items():
            writers[0].add_scalar(name, value, frames)

    try:
        yield Record(run, write)
    finally:
        for writer in writers:
            writer.close()


def require_wandb() -> None:
    if importlib.util.find_spec("wandb") is None:
        raise ModuleNotFoundError("wandb is not installed: pip install wandb, or leave --wandb out.", name="wandb")


@contextmanager
def weights_and_biases(run: Run) -> Iterator[Record]:
    """The same points in a W&B run that has the name of ours, and that a continued run continues."""
    require_wandb()
    import wandb  # type: ignore[import-not-found, unused-ignore]

    recipe = run.recipe
    there: Any = wandb.init(
        project="maskrl",
        name=title(recipe),
        id=f"{digest(recipe)}-{recipe.seed}",
        resume="allow",
        config=json.loads(as_json(recipe)),
        dir=str(run.path),
    )
    there.define_metric("frames")
    there.define_metric("*", step_metric="frames")
    try:
        yield Record(run, lambda points, frames: there.log({**points, "frames": frames}))
    finally:
        there.finish()


class Watchers:
    """Several watchers as one."""

    def __init__(self, watchers: Sequence[Watcher], progress: Progress) -> None:
        self.watchers, self.progress = watchers, progress

    def begin(self, recipe: Recipe, clock: Clock) -> None:
        for watcher in self.watchers:
            watcher.begin(recipe, clock)

    def decision(self, clock: Clock, metrics: Metrics, seconds: Mapping[str, float]) -> None:
        for watcher in self.watchers:
            watcher.decision(clock, metrics, seconds)

    def episode(self, clock: Clock, episode_return: float) -> None:
        for watcher in self.watchers:
            watcher.episode(clock, episode_return)

    def evaluating(self, clock: Clock, ended: int, episodes: int) -> None:
        for watcher in self.watchers:
            watcher.evaluating(clock, ended, episodes)

    def evaluation(self, clock: Clock, returns: EpisodeReturns) -> None:
        for watcher in self.watchers:
            watcher.evaluation(clock, returns)

    def note(self, clock: Clock, text: str) -> None:
        for watcher in self.watchers:
            watcher.note(clock, text)


@contextmanager
def make_watcher(run: Run, *, tty: bool, wandb: bool = False) -> Iterator[Watchers]:
    """The display that suits, TensorBoard's event files if it is installed, and W&B if it is asked for."""
    with ExitStack() as stack:
        # The display comes first in and last out, and last in the list: the others have their say before it draws.
        display = stack.enter_context(LiveProgress(run)) if tty else PlainProgress(run)
        watchers: list[Watcher] = []
        if importlib.util.find_spec("tensorboard") is not None:
            watchers.append(stack.enter_context(tensorboard(run)))
        if wandb:
            watchers.append(stack.enter_context(weights_and_biases(run)))
        yield Watchers([*watchers, display], display.progress)
