"""`maskrl sweep` and `maskrl sweep status`."""

import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from maskrl import __version__
from maskrl.cli import options
from maskrl.cli.help import App, Group
from maskrl.cli.words import command, console, listed, paste, print_rows, refusing, shown, table
from maskrl.words import count, duration, size

if TYPE_CHECKING:
    from rich.text import Text

    from maskrl.studies.backends import Size
    from maskrl.studies.jobs import Job
    from maskrl.studies.sweep import Backend as Place
    from maskrl.studies.sweep import Entry, Look, State

OUT_HELP = "The directory of the runs (default: sweeps/NAME, with - for /)."
RETRIES_HELP = "How often to retry a failed run, from its checkpoint."
ADDRESS_HELP = "ray: auto, HOST:PORT, ray://HOST:PORT, or local for Ray on this machine only."
EXTEND_HELP = "DIR may hold a part of this sweep, such as fewer seeds; the rest is added."


class StartIsUnderstood(Group):
    """Reads `maskrl sweep toy` as `maskrl sweep start toy`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["start", *(args or ["--help"])]
        return super().parse_args(ctx, args)


HELP = """Run many runs with one command, here or on a Ray cluster."""

app = App(cls=StartIsUnderstood, help=HELP)


class Sweep(NamedTuple):
    """A requested sweep."""

    name: str
    folder: Path
    jobs: "Sequence[Job]"
    todo: "Sequence[Job]"  # jobs that are not done
    entries: "Sequence[Entry]"
    again: str  # the command that continues it

    @property
    def there(self) -> Path:
        return self.folder.absolute()  # nodes of a cluster may have another working directory


@app.command(epilog="The word start may be left out. `maskrl sweep status DIR` shows the progress of a sweep.")
def start(
    context: typer.Context,
    name: options.SweepName,
    grid: options.Grid = None,
    out: Annotated[Path | None, typer.Option(metavar="DIR", help=OUT_HELP)] = None,
    backend: options.Backend = "local",
    seeds: options.Seeds = None,
    methods: options.Methods = None,
    tasks: options.Tasks = None,
    profile: options.ProfileOption = "auto",
    workers: options.Workers = None,
    retries: Annotated[int, typer.Option(metavar="N", min=0, max=1000, help=RETRIES_HELP)] = 2,
    address: Annotated[str, typer.Option(metavar="HOST", help=ADDRESS_HELP)] = "auto",
    runs_per_gpu: Annotated[
        int, typer.Option(metavar="N", min=1, max=1000, help="Runs that share a GPU, if there is one.")
    ] = 1,
    extend: Annotated[bool, typer.Option("--extend", help=EXTEND_HELP)] = False,
) -> None:
    """Run a sweep: all runs of a benchmark, or a grid. The same command again skips finished runs and continues the others.

    $ maskrl sweep toy --seeds 3
    $ maskrl sweep dmcontrol-100k --methods mlr,curl --tasks cheetah-run
    $ maskrl sweep dmcontrol/cheetah-run seed=1,2 --backend print
    """
    from maskrl.runs.directory import RunError, RunFiles
    from maskrl.studies.backends import local, on_ray
    from maskrl.studies.jobs import expand
    from maskrl.studies.sweep import SweepError, require_plain, write_manifest

    only, folder = {"methods": listed(methods), "tasks": listed(tasks)}, out or Path("sweeps") / name.replace("/", "-")
    asked = {"sweep": name, "seeds": seeds, **only, "grid": grid or [], "profile": profile}
    with refusing(ValueError, ModuleNotFoundError, SweepError, RunError):
        jobs = expand(name, seeds=seeds, **only, grid=grid or (), profile=profile)
        entries = write_manifest(folder, asked, jobs, extend=extend)
    with refusing(RunError):
        for job in jobs:
            require_plain(folder, job.directory)
    todo = [job for job in jobs if RunFiles(folder / job.directory).status != "done"]
    sweep = Sweep(name, folder, jobs, todo, entries, _typed(context))
    if backend == "print":
        _print_commands(sweep)
        return
    if not todo:
        _end(sweep, {}, 0.0)
        return
    sizes = _checked_sizes(sweep)
    if backend == "local":
        place = local(sweep.there, todo, sizes, workers=workers, runs_per_gpu=runs_per_gpu)
    else:
        place = on_ray(sweep.there, todo, sizes, address=address, runs_per_gpu=runs_per_gpu)
    _make(sweep, place, sizes, retries)


def _typed(context: typer.Context) -> str:
    """The command as typed, without defaults."""
    given = {param.name or "": context.params[param.name or ""] for param in context.command.params}
    defaults = {param.name: param.default for param in context.command.params}
    words = [given.pop("name"), *(given.pop("grid") or ())]
    return command("sweep", *words, **{name: value for name, value in given.items() if value != defaults[name]})


def _print_commands(sweep: Sweep) -> None:
    """Print the commands, to copy or pipe to a shell: all other lines are comments."""
    print(f"# sweep {sweep.name}: {count(len(sweep.jobs), 'run')}, {len(sweep.todo)} of them not done yet")
    for job in sweep.todo:
        print(paste(*job.command(sweep.folder)))
    print(f"# then: {command('report', str(sweep.folder))}")


def _checked_sizes(sweep: Sweep) -> "Mapping[str, Size]":
    """The sizes of runs by directory. Refuses now if a run would fail later: a full disk, a missing file."""
    from maskrl.runs.directory import RunError, begun_from
    from maskrl.studies.backends import sizes_of
    from maskrl.studies.sweep import SweepError

    # RuntimeError: no OpenGL backend draws.
    with refusing(SweepError, RunError, ValueError, ModuleNotFoundError, RuntimeError):
        for job in sweep.todo:
            begun_from(job.recipe)
        sizes = sizes_of(sweep.todo)
        new = [job.directory for job in sweep.todo if not (sweep.folder / job.directory).exists()]
        needed, free = sum(sizes[directory].disk for directory in new), shutil.disk_usage(sweep.folder).free
        if needed > free:
            raise SweepError(
                f"{count(len(new), 'run')} will take {size(needed)} on the disk of {sweep.there}, which has {size(free)} free. "
                "Choose an --out on a larger disk, fewer tasks or seeds, or a smaller replay.capacity."
            )
    return sizes


def _make(sweep: Sweep, place: "AbstractContextManager[Place]", sizes: "Mapping[str, Size]", retries: int) -> None:
    """Run all jobs that are not done."""
    from maskrl.runs.signals import stopping
    from maskrl.studies.sweep import SweepError, drive

    began = time.monotonic()
    try:
        with ExitStack() as stack:
            with refusing(SweepError, ModuleNotFoundError):
                backend = stack.enter_context(place)
            _banner(sweep, sizes, backend.words)
            news = News(sweep.there, sweep.entries)
            stop = stack.enter_context(stopping())  # after Ray, which installs its own handler
            given_up = drive(sweep.todo, sweep.there, backend, retries=retries, stop=stop, tell=tell, watch=news.watch)
            news.watch(now=True)
    except KeyboardInterrupt:
        print(f"\nStopped at once: progress since the last checkpoints is lost. Continue with:\n  {sweep.again}")
        raise typer.Exit(130) from None
    if stop:
        print(f"\nStopped; every run is saved. Continue with:\n  {sweep.again}")
        raise typer.Exit(128 + stop[0])
    _end(sweep, given_up, time.monotonic() - began)


def _banner(sweep: Sweep, sizes: "Mapping[str, Size]", where: str) -> None:

    recipes, done = [job.recipe for job in sweep.jobs], len(sweep.jobs) - len(sweep.todo)
    tasks, methods, seeds = ({getattr(one, side) for one in recipes} for side in ("name", "method", "seed"))
    sides = ", ".join([count(len(tasks), "task"), count(len(methods), "method"), count(len(seeds), "seed")])
    rows = {
        "runs": f"{len(sweep.jobs)}: {sides}" + (f"; {done} are done already" if done else ""),
        "profile": " and ".join(sorted({job.profile for job in sweep.jobs})),
        "backend": where,
        "disk": f"{size(sum(sizes[job.directory].disk for job in sweep.todo))} at most",
        "directory": str(sweep.folder),
    }
    print(f"maskrl {__version__}: sweep {sweep.name}")
    print_rows(rows)
    print(flush=True)


def _end(sweep: Sweep, given_up: dict[str, str], seconds: float) -> None:
    """Print the outcome and what to do next. A sweep with failed runs ends with exit code 1."""
    from maskrl.studies.sweep import log_of, look, tail

    done = sum(look(sweep.there, entry).state == "done" for entry in sweep.entries)
    print(f"\n{done} of {count(len(sweep.entries), 'run')} done, in {duration(seconds)}.")
    for directory, why in given_up.items():
        lines = [f"\n{directory} failed: {why}. The end of {log_of(sweep.folder, directory)}:"]
        print(shown("\n  ".join([*lines, *tail(sweep.there, directory)])))
    print(f"Next: {command('report', str(sweep.folder))}")
    if given_up:
        print(f"{count(len(given_up), 'run')} failed. Once the cause is removed, go on with:\n  {sweep.again}")
        raise typer.Exit(1)


# ── Status ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a sweep.")],
    as_json: options.AsJson = False,
) -> None:
    """Show the progress of a sweep. Reads the directories of its runs, on any machine.

    $ maskrl sweep status sweeps/toy
    """
    from maskrl.runs.directory import RunError
    from maskrl.studies.sweep import SweepError, log_of, look, read_manifest, seconds_left

    with refusing(SweepError, RunError):
        asked, entries = read_manifest(folder)
        looks = [look(folder, entry) for entry in entries]
    if as_json:
        counts = Counter(one.state for one in looks)
        left, runs = seconds_left(looks, counts["running"]), [one._asdict() for one in looks]
        print(json.dumps({"asked": asked, "counts": counts, "seconds_left": left, "runs": runs}))
        return
    print(shown(f"sweep {asked['sweep']} in {folder}: {_summary(looks)}"))
    headings = ("run", "state", "frames", "", "score", "time")
    console().print(table(headings, map(_row, looks), left=2, folds=("run",)))
    for one in looks:
        if one.state == "failed":
            print(shown(f"{one.directory} failed: {one.why}. See {log_of(folder, one.directory)}"))
    if all(one.state == "done" for one in looks):
        print(f"Next: {command('report', str(folder))}")


# States of unfinished runs with their colours, most important first.
STYLES: "dict[State, str]" = {"failed": "red", "running": "cyan", "interrupted": "yellow", "waiting": "dim"}


def _row(one: "Look") -> "list[str | Text]":
    from rich.text import Text

    from maskrl.words import duration, number

    return [
        one.directory,
        Text(one.state, STYLES.get(one.state, "green")),
        f"{one.frames:,} of {one.budget:,}",
        f"{one.frames / max(1, one.budget):.0%}",
        "–" if one.score is None else number(one.score),
        duration(one.seconds) if one.frames else "–",
    ]


def _summary(looks: "Sequence[Look]") -> str:
    """Such as "3 of 12 runs done, 2 running, 7 waiting; 41 % of all frames, 2 min 10 s to go"."""
    from maskrl.studies.sweep import seconds_left

    counts = Counter(one.state for one in looks)
    others = [f"{counts[state]} {state}" for state in STYLES if counts[state]]
    words = ", ".join([f"{counts['done']} of {count(len(looks), 'run')} done", *others])
    if counts["done"] + counts["failed"] == len(looks):
        return words
    frames = sum(one.budget if one.state == "done" else one.frames for one in looks)
    share = frames / max(1, sum(one.budget for one in looks))
    left = seconds_left(looks, counts["running"])
    rest = f", {duration(left)} {'to go' if counts['running'] else 'of work left'}" if left else ""
    return f"{words}; {share:.0%} of all frames{rest}"


def tell(line: str) -> None:
    with suppress(OSError):  # the terminal was closed; the runs will save themselves
        print(line, flush=True)


class News:
    """Prints a line when a run begins or ends, and a summary every minute."""

    every_seconds = 60.0  # between two summaries

    def __init__(self, folder: Path, entries: "Sequence[Entry]") -> None:
        self._folder, self._entries = folder, entries
        self._looks: dict[str, Look] = {}
        self._next, self._told = 0.0, time.monotonic()
        self.watch()

    def watch(self, *, now: bool = False) -> None:
        """Read the state of the unfinished runs, unless it was read just now, and print the changes."""
        from maskrl.studies.sweep import look

        began = time.monotonic()
        if not now and began < self._next:
            return
        before, self._looks = self._looks, {}
        for entry in self._entries:
            had = before.get(entry.directory)
            self._looks[entry.directory] = had if had and had.state == "done" else look(self._folder, entry)
            if had and had.state != self._looks[entry.directory].state:
                tell(_change(had, self._looks[entry.directory]))
        self._next = time.monotonic() + max(1.0, 20 * (time.monotonic() - began))  # less often with a slow disk
        if time.monotonic() - self._told >= self.every_seconds:
            self._told = time.monotonic()
            tell(_summary(list(self._looks.values())))


def _change(had: "Look", one: "Look") -> str:
    """A line about a run that has begun or ended; empty if neither."""
    from maskrl.words import duration, number

    if one.state == "running":
        return f"{one.directory}: {f'continues after {had.frames:,} frames' if had.frames else 'begins'}"
    if one.state == "done" and one.score is not None:
        return f"{one.directory}: done, score {number(one.score)}, {duration(one.seconds)}"
    return f"{one.directory}: {one.state}{f', {one.why}' if one.why else ''}"
