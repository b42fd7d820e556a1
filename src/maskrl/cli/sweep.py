"""`maskrl sweep` and `maskrl sweep status`."""

import json
import os
import shlex
import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperGroup

from maskrl import __version__
from maskrl.cli.words import (
    GRID_HELP,
    MethodsOption,
    ProfileOption,
    SeedsOption,
    TasksOption,
    count,
    listed,
    print_rows,
    refusing,
)

if TYPE_CHECKING:
    from rich.table import Table

    from maskrl.studies.backends import Size
    from maskrl.studies.jobs import Job
    from maskrl.studies.sweep import Entry, Look, State


class StartIsUnderstood(TyperGroup):
    """`maskrl sweep toy` is `maskrl sweep start toy`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in self.commands:
            args = ["start", *(args or ["--help"])]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=StartIsUnderstood, help="Many runs with one command, here or on a Ray cluster; and how they do.")


@app.command(
    epilog="The word start may be left out. `maskrl sweep status DIR` shows a sweep that is running, or has run."
)
def start(
    context: typer.Context,
    name: Annotated[
        str,
        typer.Argument(
            metavar="NAME",
            help="dmcontrol-100k, dmcontrol-500k, atari-100k, toy, ablations, ablations/STUDY (see `maskrl recipes list "
            "ablations`), or a recipe such as dmcontrol/cheetah-run.",
        ),
    ],
    grid: Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE,...]...", help=GRID_HELP)] = None,
    out: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Where the runs live (default: sweeps/NAME, with - for /).")
    ] = None,
    backend: Annotated[
        Literal["local", "ray", "print"],
        typer.Option(
            help="local: processes on this machine. ray: tasks on a Ray cluster. print: the commands, to run them yourself."
        ),
    ] = "local",
    seeds: SeedsOption = None,
    methods: MethodsOption = None,
    tasks: TasksOption = None,
    profile: ProfileOption = "auto",
    workers: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="local: runs at a time at most (default: what fits).")
    ] = None,
    retries: Annotated[
        int, typer.Option(metavar="N", min=0, help="How often a run that failed is tried again, from its checkpoint.")
    ] = 2,
    address: Annotated[
        str, typer.Option(help="ray: auto, HOST:PORT, ray://HOST:PORT, or local for a Ray on this machine alone.")
    ] = "auto",
    runs_per_gpu: Annotated[int, typer.Option(metavar="N", min=1, help="Runs that share a GPU, if there is one.")] = 1,
    extend: Annotated[
        bool,
        typer.Option(
            "--extend", help="DIR may hold a part of this sweep, fewer seeds for instance; the rest is added."
        ),
    ] = False,
) -> None:
    """Run a sweep: all runs of a benchmark, or a grid. The same command again skips what is done and continues the rest."""
    from maskrl.runs.directory import RunError, RunFiles, begun_from
    from maskrl.runs.signals import stopping
    from maskrl.studies.backends import local, on_ray, sizes_of
    from maskrl.studies.jobs import expand
    from maskrl.studies.sweep import SweepError, drive, write_manifest

    only = {"methods": listed(methods), "tasks": listed(tasks)}
    with refusing(ValueError, ModuleNotFoundError):
        jobs = expand(name, seeds=seeds, **only, grid=grid or (), profile=profile)
    folder = out or Path("sweeps") / name.replace("/", "-")
    asked = {"sweep": name, "seeds": seeds, **only, "grid": grid or [], "profile": profile}
    with refusing(SweepError):
        entries = write_manifest(folder, asked, jobs, extend=extend)
    todo = [job for job in jobs if RunFiles(folder / job.directory).status != "done"]
    if backend == "print":
        _print_commands(name, folder, jobs, todo)
        return

    there = folder.absolute()  # a node of a cluster has another working directory
    # RuntimeError: no OpenGL backend draws.
    with refusing(SweepError, RunError, ValueError, ModuleNotFoundError, RuntimeError):
        for job in todo:
            begun_from(job.recipe)  # a file that is not there, before others have taken days
        sizes = sizes_of(todo)
        _require_disk(there, todo, sizes)
    began = time.monotonic()
    try:
        with ExitStack() as stack:
            with refusing(SweepError, ModuleNotFoundError):
                chosen = stack.enter_context(
                    local(there, todo, sizes, workers=workers, runs_per_gpu=runs_per_gpu)
                    if backend == "local"
                    else on_ray(there, todo, sizes, address=address, runs_per_gpu=runs_per_gpu)
                )
            _banner(name, jobs, todo, sizes, folder, chosen.words)
            board = stack.enter_context(_board(there, entries))
            stop = stack.enter_context(stopping())  # after Ray, which has a handler of its own
            given_up = drive(todo, there, chosen, retries=retries, stop=stop, tell=board.tell, draw=board.draw)
    except KeyboardInterrupt:
        print(f"\nStopped in a hurry: what was not saved yet is lost. Continue with:\n  {_typed(context)}")
        raise typer.Exit(130) from None
    if stop:
        print(f"\nStopped; every run is saved. Continue with:\n  {_typed(context)}")
        raise typer.Exit(128 + stop[0])
    _end(there, folder, entries, given_up, time.monotonic() - began, _typed(context))


def _typed(context: typer.Context) -> str:
    """The command again, defaults left out."""
    words = ["maskrl", "sweep", context.params["name"], *(context.params["grid"] or ())]
    for option in context.command.params:
        value = context.params[option.name or ""]
        if option.opts[0].startswith("--") and value != option.default:
            words += [option.opts[0]] if value is True else [option.opts[0], str(value)]
    return shlex.join(words)


def _print_commands(name: str, folder: Path, jobs: "Sequence[Job]", todo: "Sequence[Job]") -> None:
    """To be copied, or read by a shell: what is no command is a comment."""
    done = len(jobs) - len(todo)
    print(f"# sweep {name}: {count(len(jobs), 'run')}" + (f", of which {done} are done already" if done else ""))
    for job in todo:
        print(shlex.join(["maskrl", *job.command(folder)]))
    print(f"# then: maskrl report {shlex.quote(str(folder))}")


def _require_disk(folder: Path, todo: "Sequence[Job]", sizes: "Mapping[str, Size]") -> None:
    from maskrl.cost.forecast import size
    from maskrl.studies.sweep import SweepError

    new = [job for job in todo if not (folder / job.directory).exists()]
    needed, free = sum(sizes[job.directory].disk for job in new), shutil.disk_usage(folder).free
    if needed > free:
        raise SweepError(
            f"{count(len(new), 'run')} will take {size(needed)} on the disk of {folder}, which has {size(free)} free. Choose an "
            "--out on a larger disk, fewer tasks or seeds, or a smaller replay.capacity."
        )


def _banner(
    name: str, jobs: "Sequence[Job]", todo: "Sequence[Job]", sizes: "Mapping[str, Size]", folder: Path, where: str
) -> None:
    from maskrl.cost.forecast import size

    recipes = [job.recipe for job in jobs]
    tasks, methods = ({getattr(recipe, what) for recipe in recipes} for what in ("name", "method"))
    words = [count(len(some), noun) for some, noun in ((tasks, "task"), (methods, "method"))]
    words.append(count(len({recipe.seed for recipe in recipes}), "seed"))
    rows = {
        "runs": f"{len(jobs)}: {', '.join(words)}"
        + (f"; {len(jobs) - len(todo)} are done already" if todo != jobs else ""),
        "profile": " and ".join(sorted({job.profile for job in jobs})),
        "backend": where,
        **({"disk": f"{size(sum(sizes[job.directory].disk for job in todo))} at most"} if todo else {}),
        "directory": str(folder),
    }
    print(f"maskrl {__version__}: sweep {name}")
    print_rows(rows)
    print(flush=True)


def _end(
    there: Path, folder: Path, entries: "Sequence[Entry]", given_up: dict[str, str], seconds: float, again: str
) -> None:
    """What came of it, and what to do next. A sweep with failed runs ends with exit code 1."""
    from maskrl.runs.terminal import duration
    from maskrl.studies.sweep import log_of, look, tail

    done = sum(look(there, entry).state == "done" for entry in entries)
    print(f"\n{done} of {count(len(entries), 'run')} done, in {duration(seconds)}.")
    shown = 5
    for directory, why in list(given_up.items())[:shown]:
        print(f"\n{directory} failed: {why}. The end of {log_of(folder, directory)}:")
        print("\n".join(f"  {line}" for line in tail(there, directory)))
    for directory, why in list(given_up.items())[shown:]:
        print(f"{directory} failed: {why}. See {log_of(folder, directory)}")
    if given_up:
        print(f"\n{count(len(given_up), 'run')} failed. Once the cause is removed, go on with:\n  {again}")
    print(f"Next: maskrl report {shlex.quote(str(folder))}" + (", which will tell what is missing" if given_up else ""))
    if given_up:
        raise typer.Exit(1)


# ── How the runs do ───────────────────────────────────────────────────────────────────────────────────────────────────


@app.command()
def status(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="The folder of a sweep.")],
    every: Annotated[bool, typer.Option("--all", help="Every run, however many there are.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Show how a sweep does: from the directories of its runs, whoever makes them, now or later."""
    from rich.console import Console

    from maskrl.runs.directory import RunError
    from maskrl.studies.sweep import SweepError, log_of, look, read_manifest, seconds_left

    with refusing(SweepError, RunError):
        asked, entries = read_manifest(folder)
        looks = [look(folder, entry) for entry in entries]
    if as_json:
        left = seconds_left(looks, _running(looks))
        counts = Counter(one.state for one in looks)
        print(
            json.dumps(
                {"asked": asked, "counts": counts, "seconds_left": left, "runs": [one._asdict() for one in looks]}
            )
        )
        return
    print(f"sweep {asked['sweep']} in {folder}: {_summary(looks)}")
    Console(width=None if sys.stdout.isatty() else 160, highlight=False).print(
        _table(looks, len(looks) if every else SHOWN)
    )
    for one in looks:
        if one.state == "failed":
            print(f"{one.directory} failed: {one.why}. See {log_of(folder, one.directory)}")
    if all(one.state == "done" for one in looks):
        print(f"Next: maskrl report {shlex.quote(str(folder))}")


SHOWN = 24  # rows of a table, of those that matter most
ORDER: "tuple[State, ...]" = ("failed", "running", "interrupted", "waiting", "done")
STYLES = {"failed": "red", "running": "cyan", "interrupted": "yellow", "waiting": "dim", "done": "green"}


def _running(looks: "Sequence[Look]") -> int:
    return sum(one.state == "running" for one in looks)


def _summary(looks: "Sequence[Look]") -> str:
    """3 of 12 runs done, 2 running, 7 waiting; 41 % of all frames, 2 min 10 s to go."""
    from maskrl.runs.terminal import duration
    from maskrl.studies.sweep import seconds_left

    counts = Counter(one.state for one in looks)
    words = [f"{counts['done']} of {count(len(looks), 'run')} done"]
    words += [f"{counts[state]} {state}" for state in ORDER[:-1] if counts[state]]
    share = sum(one.budget if one.state == "done" else one.frames for one in looks) / sum(one.budget for one in looks)
    left = seconds_left(looks, _running(looks))
    ending = f"; {share:.0%} of all frames"
    if left and counts["running"]:
        ending += f", {duration(left)} to go"
    elif left:
        ending += f", {duration(left)} of work left"
    return ", ".join(words) + (ending if counts["done"] + counts["failed"] < len(looks) else "")


def _table(looks: "Sequence[Look]", rows: int) -> "Table":
    """The runs in their order, or those that matter most and how many others there are."""
    from rich.table import Table

    from maskrl.runs.terminal import duration, number

    ranked = sorted(looks, key=lambda one: ORDER.index(one.state))
    shown = set(ranked[:rows])
    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("run", "state", "frames", "", "score", "time"):
        table.add_column(heading, justify="left" if heading in ("run", "state") else "right", no_wrap=heading != "run")
    for one in looks:
        if one in shown:
            table.add_row(
                one.directory,
                f"[{STYLES[one.state]}]{one.state}[/]",
                f"{one.frames:,} of {one.budget:,}",
                f"{one.frames / one.budget:.0%}",
                "–" if one.score is None else number(one.score),
                duration(one.seconds) if one.frames else "–",
            )
    others = Counter(one.state for one in ranked[rows:])
    if others:
        table.add_row("and " + ", ".join(f"{others[state]} {state}" for state in ORDER if others[state]))
    return table


class PlainBoard:
    """A line when a run begins or ends, and a summary now and then: for a log."""

    every_seconds = 60.0

    def __init__(self, folder: Path, entries: "Sequence[Entry]") -> None:
        from maskrl.studies.sweep import look

        self._looks = {entry.directory: look(folder, entry) for entry in entries}
        self._folder, self._entries, self._told = folder, entries, time.monotonic()
        self._pause, self._looked = 1.0, 0.0

    def __enter__(self) -> "PlainBoard":
        return self

    def __exit__(self, *_: object) -> None:
        self.draw(now=True)

    def tell(self, line: str) -> None:
        print(line, flush=True)

    def draw(self, *, now: bool = False) -> None:
        if now or time.monotonic() - self._looked >= self._pause:
            before, self._looks = self._looks, self._again()
            self.show(before)

    def _again(self) -> "dict[str, Look]":
        """Look at the runs that may have changed; with many on a slow disk, less often."""
        from maskrl.studies.sweep import look

        began = time.monotonic()
        looks = {
            entry.directory: old if (old := self._looks[entry.directory]).state == "done" else look(self._folder, entry)
            for entry in self._entries
        }
        self._looked = time.monotonic()
        self._pause = max(1.0, 20 * (self._looked - began))
        return looks

    def show(self, before: "dict[str, Look]") -> None:
        from maskrl.runs.terminal import duration, number

        for directory, one in self._looks.items():
            if one.state == before[directory].state:
                continue
            if one.state == "running":
                had = before[directory].frames
                self.tell(f"{directory}: " + (f"continues after {had:,} frames" if had else "begins"))
            elif one.state == "done" and one.score is not None:
                self.tell(f"{directory}: done, score {number(one.score)}, {duration(one.seconds)}")
            else:
                self.tell(f"{directory}: {one.state}" + (f", {one.why}" if one.why else ""))
        if time.monotonic() - self._told >= self.every_seconds:
            self._told = time.monotonic()
            self.tell(_summary(list(self._looks.values())))


class LiveBoard(PlainBoard):
    """A table that is rewritten in place; a retry leaves a line above it."""

    def __enter__(self) -> "LiveBoard":
        from rich.live import Live

        self._live = Live(auto_refresh=False, vertical_overflow="crop")
        self._live.start()
        self.show(self._looks)
        return self

    def __exit__(self, *_: object) -> None:
        self.draw(now=True)
        self._live.stop()

    def tell(self, line: str) -> None:
        self._live.console.print(line, highlight=False, markup=False)

    def show(self, before: "dict[str, Look]") -> None:
        from rich.console import Group

        looks = list(self._looks.values())
        rows = max(3, min(SHOWN, self._live.console.height - 5))
        with suppress(OSError):  # the terminal was closed, and the runs are about to save themselves
            self._live.update(Group(_summary(looks), _table(looks, rows)), refresh=True)


def _board(folder: Path, entries: "Sequence[Entry]") -> PlainBoard:
    tty = sys.stdout.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")
    return LiveBoard(folder, entries) if tty else PlainBoard(folder, entries)
