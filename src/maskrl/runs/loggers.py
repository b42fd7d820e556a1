"""Loggers that get a run's numbers besides metrics.jsonl: the terminal (terminal.py), TensorBoard, W&B, or your own."""

import importlib.util
import json
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from maskrl.clock import Clock
from maskrl.recipes.schema import as_json, digest
from maskrl.runs.directory import Run, title

RECENT = 60.0  # seconds of training over which the speed is measured


class Logger:
    """Receives the numbers of a run while it trains. Subclass it, or write a class with the same three methods.

    `write` is called once before training starts or continues, after every decision (usually with no points), and with points:

    logged update        its metrics, such as critic/loss (the 1st, 51st, 101st, … update)
    end of an episode    training/return, training/length
    during evaluation    evaluation/ended and evaluation/episodes: finished episodes, and all
    evaluation           evaluation/score, evaluation/spread; before the first decision also random/score

    Logged updates, evaluations and checkpoints also have time/<part>, the seconds spent in each part since the process
    started, and speed/decisions_per_second.
    """

    name = ""  # unique within a run; empty: the name of the class

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        """Receive points, perhaps none, at this time of the run."""
        raise NotImplementedError(f"{type(self).__name__} needs a method write(points, clock).")

    def note(self, text: str, clock: Clock) -> None:
        """Receive a sentence about a problem."""

    def close(self) -> None:
        """Finish, when the process stops training. May be called twice, and after an error in `write`."""


class Speed:
    """Decisions per second over the last minute of training, without evaluations and checkpoints."""

    def __init__(self) -> None:
        self._recent: deque[tuple[int, float]] = deque()  # decisions, and seconds of training
        self._aside = {"time/evaluation": 0.0, "time/checkpoint": 0.0}
        self._updates = 0

    def add(self, points: Mapping[str, float], clock: Clock) -> None:
        if clock.updates > 0 and self._updates == 0:
            self._recent.clear()  # the warm-up is many times faster than training
        self._updates = clock.updates
        self._aside |= {part: points[part] for part in self._aside if part in points}
        seconds = clock.seconds - sum(self._aside.values())
        last_decisions, last_seconds = self._recent[-1] if self._recent else (-1, float("-inf"))
        if clock.decisions > last_decisions and seconds - last_seconds >= 0.5:
            self._recent.append((clock.decisions, seconds))
            while seconds - self._recent[0][1] > RECENT:
                self._recent.popleft()

    @property
    def decisions_per_second(self) -> float | None:
        """The current speed; None until it was measured at two times."""
        if len(self._recent) < 2:
            return None
        (decisions, seconds), (last_decisions, last_seconds) = self._recent[0], self._recent[-1]
        return (last_decisions - decisions) / (last_seconds - seconds)


class Loggers:
    """Several loggers as one. If one raises, this is reported once, to `tell` and the other loggers, and it is dropped."""

    def __init__(self, loggers: Sequence[Logger], tell: Callable[[str, Clock], None]) -> None:
        self._loggers: dict[str, Logger] = {}
        for logger in loggers:
            name = _name_of(logger)
            if name in self._loggers:
                raise ValueError(f"Two loggers are named {name!r}. Give one of them another `name`.")
            self._loggers[name] = logger
        self._tell, self._speed, self._clock = tell, Speed(), Clock(0, 0, 0, 0.0)
        self._left_out: set[str] = set()  # names of those that failed or are closed

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        self._clock = clock
        self._speed.add(points, clock)
        speed = self._speed.decisions_per_second
        if speed is not None and any(name.startswith("time/") for name in points):
            points = {**points, "speed/decisions_per_second": speed}
        self._each(lambda logger: logger.write(points, clock))

    def note(self, text: str, clock: Clock) -> None:
        self._clock = clock
        self._each(lambda logger: logger.note(text, clock))

    def close(self) -> None:
        for name in self._loggers:
            self._call(name, lambda logger: logger.close())
            self._left_out.add(name)

    def _each(self, call: Callable[[Logger], None]) -> None:
        for name in self._loggers:
            if name not in self._left_out:
                self._call(name, call)

    def _call(self, name: str, call: Callable[[Logger], None]) -> None:
        try:
            call(self._loggers[name])
        except Exception as error:  # any error: a user's logger must not stop the run
            if name in self._left_out:
                return
            self._left_out.add(name)
            text = (
                f"The logger {name!r} failed and is not used any more ({type(error).__name__}: {error}). "
                "The run is not affected: metrics.jsonl has its numbers."
            )
            self._tell(text, self._clock)
            self.note(text, self._clock)


def _name_of(logger: Logger) -> str:
    """The logger's name; raise TypeError if it is not a logger."""
    if isinstance(logger, type):
        raise TypeError(f"{logger.__name__} is a class, but a logger is an object. Pass {logger.__name__}(…) instead.")
    kind = type(logger).__name__
    missing = [name for name in ("write", "note", "close") if not callable(getattr(logger, name, None))]
    if missing:
        raise TypeError(f"{kind} is not a logger: it has no method {', '.join(missing)}. Subclass maskrl.Logger.")
    return getattr(logger, "name", "") or kind


# ── Loggers for other tools ───────────────────────────────────────────────────────────────────────────────────────────


class TensorBoard(Logger):
    """Event files in the run's directory; `tensorboard --logdir runs` shows them."""

    name = "tensorboard"

    def __init__(self, run: Run) -> None:
        require_installed(self.name)
        self._directory = str(run.path / "tensorboard")
        self._writer: Any = None

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        if not points or "evaluation/ended" in points:  # a count of episodes is not a curve
            return
        if self._writer is None:
            from torch.utils.tensorboard import SummaryWriter

            # Points that an earlier process wrote after its last checkpoint are written again: hide the old ones.
            self._writer = SummaryWriter(self._directory, purge_step=clock.frames or None)
        for name, value in points.items():
            self._writer.add_scalar(name, value, clock.frames)

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()


class WandB(Logger):
    """The same points in a W&B run of the project "maskrl". Continuing the run continues its W&B run."""

    name = "wandb"

    def __init__(self, run: Run) -> None:
        require_installed(self.name)
        import wandb  # type: ignore[import-not-found, unused-ignore]

        recipe = run.recipe
        self._there: Any = wandb.init(
            project="maskrl",
            name=title(recipe),
            id=f"{digest(recipe)}-{recipe.seed}",
            resume="allow",
            config=json.loads(as_json(recipe)),
            dir=str(run.path),
        )
        self._there.define_metric("frames")
        self._there.define_metric("*", step_metric="frames")

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        if points and "evaluation/ended" not in points:
            self._there.log({**points, "frames": clock.frames})

    def close(self) -> None:
        self._there.finish()


NAMED: dict[str, Callable[[Run], Logger]] = {"tensorboard": TensorBoard, "wandb": WandB}


def choose_loggers(names: Sequence[str] | None) -> list[Callable[[Run], Logger]]:
    """Factories of the loggers with these names, to call with a run. None: TensorBoard if it is installed. "none": no logger.

    Raises an error for unknown names and missing packages, so call it before a run is created.
    """
    if names is None:
        names = ["tensorboard"] if importlib.util.find_spec("tensorboard") else []
    chosen = [name for name in dict.fromkeys(names) if name != "none"]
    for name in chosen:
        if name not in NAMED:
            raise ValueError(f"--log {name}: there is no such logger; choose from {', '.join(NAMED)} and none.")
        require_installed(name)
    return [NAMED[name] for name in chosen]


def require_installed(package: str) -> None:
    if importlib.util.find_spec(package) is None:
        advice = f"pip install {package}, or leave {package} out of --log"
        raise ModuleNotFoundError(f"{package} is not installed: {advice}.", name=package)
