"""`maskrl bench`: how fast this machine is, and where its time goes."""

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from maskrl.cli.words import (
    Asked,
    MethodOption,
    Overrides,
    Profile,
    ProfileOption,
    RecipeName,
    Refusal,
    count,
    refusing,
)

if TYPE_CHECKING:
    from maskrl.bench.speed import Kernel, Measured, UpdateBench
    from maskrl.bench.throughput import RunBench
    from maskrl.recipes.schema import Recipe

DEFAULT = "dmcontrol/cheetah-run"

app = typer.Typer(
    help="How fast this machine is: updates, the replay, environments, whole runs.",
    epilog="Seconds of a shared machine say little: compare what one command prints, not two commands.",
    no_args_is_help=True,
)

OptionalRecipe = Annotated[
    str, typer.Argument(metavar="[RECIPE]", help="Such as dmcontrol/cheetah-run, atari/pong or toy/reach.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Rounds = Annotated[int, typer.Option(metavar="N", min=1, help="How often everything is measured, in alternation.")]


@app.command()
def update(
    recipe: OptionalRecipe = DEFAULT,
    overrides: Overrides = None,
    profile: ProfileOption = "auto",
    method: MethodOption = None,
    rounds: Rounds = 5,
    plain: Annotated[
        bool, typer.Option(" /--no-plain", help="Leave out the same update written plainly, which is slower.")
    ] = True,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Name the operations that take the most time, by torch's profiler.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Time an update and its phases, beside the machine's limit for such layers and the same update written plainly."""
    from maskrl.bench.speed import bench_update

    chosen = _recipe(recipe, overrides, profile, method)
    with _friendly():
        bench = bench_update(chosen, rounds=rounds, plain=plain, kernels=kernels, tell=_tell)
    if as_json:
        _print_json(bench.as_dict())
        return
    _print_update(bench)


def _print_update(bench: "UpdateBench") -> None:
    from maskrl.cost.forecast import size

    cost = bench.cost
    memory = "not known here" if bench.memory is None else size(bench.memory)
    print(_title(bench.recipe))
    _print_facts(
        {
            "sizes": _sizes(bench),
            "device": bench.device + (f", {count(bench.threads, 'thread')}" if bench.device == "cpu" else ""),
            "update": f"{_spread(bench.seconds, 's')}, {count(bench.rounds, 'round')}",
            "work": f"{cost.flops / 1e9:,.4g} GFLOP, {cost.convolutions / cost.flops:.0%} of it in convolutions",
            "speed": _spread(bench.rate, "GFLOP/s", 1e9),
            "ceiling": f"{_spread(bench.ceiling, 'GFLOP/s', 1e9)}: {bench.best}",
            "utilisation": _spread(bench.utilisation, "of the ceiling"),
            "memory": f"{memory} above the replay at the peak; the replay of this benchmark: {size(bench.replay_memory)}",
            "plain": bench.note or "" if bench.plain is None else _spread(bench.plain, "s"),
            **({} if bench.speed_up is None else {"speed-up": _spread(bench.speed_up, "times")}),
        }
    )
    whole = sum(bench.phases.values())
    rows = [
        [phase, f"{1000 * seconds:.4g}", f"{seconds / whole:.1%}", *_work(cost.phases.get(phase), seconds)]
        for phase, seconds in bench.phases.items()
    ]
    print()
    _print_table(["phase", "ms an update", "share", "GFLOP", "GFLOP/s"], rows)
    if bench.kernels is not None:
        print()
        _print_kernels(bench.kernels)
    print("\nMedians (least – most). Ratios are of the same round.")


def _print_kernels(kernels: "Sequence[Kernel]") -> None:
    """The longest, one by one down to 1 % of the time, then the rest together."""
    whole = sum(kernel.seconds for kernel in kernels)
    long = [kernel for kernel in kernels if kernel.seconds >= whole / 100]
    rest = kernels[len(long) :]
    rows = [
        [name, f"{1000 * seconds:.4g}", f"{seconds / whole:.1%}", f"{calls:,.0f}" if calls >= 100 else f"{calls:.3g}"]
        for name, calls, seconds in (
            *long,
            (f"others ({len(rest)})", sum(kernel.calls for kernel in rest), sum(kernel.seconds for kernel in rest)),
        )
    ]
    _print_table(["kernel", "ms an update", "share", "calls"], rows)


def _sizes(bench: "UpdateBench") -> str:
    """The shapes that decide what an update costs."""
    recipe = bench.recipe
    agent, objective = recipe.agent, recipe.objective
    channels, side, _ = bench.spaces.obs
    seen = agent.augment.crop or side
    filters = agent.encoder.filters
    listed = ", ".join(map(str, filters)) if isinstance(filters, tuple) else str(filters)
    words = f"{channels} × {seen} × {seen}, {listed} filters, batches of {agent.batch_size}"
    if objective is None:
        return words
    clips = agent.auxiliary.clips if agent.kind == "sac" else agent.clips or agent.batch_size
    return f"{words}, {count(clips, 'clip')} of {objective.needs.clip_length}"


def _work(flops: float | None, seconds: float) -> list[str]:
    return ["–", "–"] if not flops else [f"{flops / 1e9:.4g}", f"{flops / seconds / 1e9:.3g}"]


@app.command()
def replay(
    sizes: Annotated[
        str,
        typer.Option(
            metavar="N,N,…",
            help="Transitions, of one replay after the other. On DMControl, 1,000,000 are 30 GB: what has no room is skipped.",
        ),
    ] = "10000,100000,1000000",
    as_json: AsJson = False,
) -> None:
    """Time draws from full replays as the paper's agents have them, in memory and on disk, and say what they take."""
    from maskrl.bench import throughput
    from maskrl.cost.forecast import size

    wanted = _numbers("--sizes", sizes, least=throughput.CLIP)
    with _friendly():
        done = list(throughput.bench_replay(wanted, tell=_tell))
    promises = throughput.promises()
    if as_json:
        rows: list[dict[str, Any]] = [{**vars(row), "bytes_per_transition": row.bytes_per_transition} for row in done]
        _print_json({"replays": rows, "limits": [promise._asdict() for promise in promises]})
        return
    _print_table(
        ["replay", "in", "transitions", "takes", "bytes each", "transitions/s", f"clips of {throughput.CLIP}/s"],
        [
            [row.kind, row.storage, f"{row.transitions:,}", size(row.nbytes), f"{row.bytes_per_transition:,.0f}"]
            + ["skipped", "skipped"] * bool(row.skipped)
            + [f"{rate:,.0f}" for rate in (row.transitions_per_second, row.clips_per_second) if rate is not None]
            for row in done
        ],
    )
    print()
    for row in done:
        if row.skipped:
            print(f"{row.kind}, {row.transitions:,} transitions: skipped, as {row.skipped}.")
    for promise in promises:
        verdict = "as it should be" if promise.nbytes <= promise.limit else "MORE than it should"
        print(
            f"{promise.kind}: {promise.transitions:,} transitions take {promise.nbytes / 1e9:.2f} GB; at most "
            f"{promise.limit / 1e9:.1f} GB, {verdict}."
        )


@app.command()
def env(
    recipes: Annotated[
        list[str] | None,
        typer.Argument(metavar="[RECIPE]...", help=f"Default: {DEFAULT} atari/pong toy/reach toy/catch."),
    ] = None,
    sizes: Annotated[
        str, typer.Option(metavar="N,N,…", help="Sides of the frames of DMControl and Atari.")
    ] = "48,64,84,100",
    seconds: Annotated[float, typer.Option(metavar="S", min=0.01, help="Seconds for each measurement.")] = 1.0,
    as_json: AsJson = False,
) -> None:
    """Time environments by OpenGL backend, frame size and shadow map, and say where their time goes."""
    from maskrl.bench.throughput import bench_env

    wanted = _numbers("--sizes", sizes, least=16)
    chosen = [
        Asked(name, profile="lite").recipe() for name in recipes or [DEFAULT, "atari/pong", "toy/reach", "toy/catch"]
    ]
    with _friendly():
        table = bench_env(chosen, sizes=wanted, seconds=seconds, tell=_tell)
    if as_json:
        _print_json(table.as_dict())
        return
    _print_table(
        ["task", "backend", "size", "shadows", "frames/s", "ms a decision", "of these"],
        [
            [
                *(row.task, row.backend or "–", str(row.size), str(row.shadow_size or "–")),
                *(f"{row.frames_per_second:,.0f}", f"{sum(row.milliseconds.values()):.3g}", _parts(row.milliseconds)),
            ]
            for row in table.rows
        ],
    )
    print()
    for difference in table.differences:
        print(
            f"{difference.task} by {difference.backend} at {difference.size} × {difference.size}: a shadow map of 512 instead "
            f"of 2048 changes the values by {difference.mean:.4f} of 255 on average, and {difference.share:.2%} of the "
            "pixels by more than 2."
        )
    for backend, complaint in table.failures.items():
        print(f"{backend} does not draw here: {complaint}")
    print("A frame is one of the simulator; a decision has action_repeat of them.")


@app.command()
def run(
    recipe: RecipeName,
    overrides: Overrides = None,
    decisions: Annotated[int, typer.Option(metavar="N", min=1, help="Decisions of learning that are timed.")] = 100,
    side_by_side: Annotated[
        int, typer.Option(metavar="M", min=1, help="So many runs at once, on one thread each if more than one.")
    ] = 1,
    compare: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Also with this override (may be given again), in alternation."),
    ] = None,
    profile: ProfileOption = "auto",
    method: MethodOption = None,
    rounds: Annotated[
        int, typer.Option(metavar="N", min=1, help="With --compare: how often both are run, in alternation.")
    ] = 3,
    as_json: AsJson = False,
) -> None:
    """Time the real training loop from end to end after a short warm-up, evaluations left out, and say where its time goes."""
    from maskrl.bench.throughput import averaged, bench_run, compare_runs

    chosen = _recipe(recipe, overrides, profile, method)
    other = _recipe(recipe, [*(overrides or []), *(compare or [])], profile, method)
    _tell(f"{count(decisions, 'decision')} of learning after a short warm-up.")
    if not compare:
        with _friendly():
            done = bench_run(chosen, decisions=decisions, processes=side_by_side)
        if as_json:
            _print_json(_named(chosen) | {"processes": side_by_side} | done.as_dict())
            return
        print(_title(chosen))
        _print_runs({"share": done}, side_by_side)
        return
    with _friendly():
        both = compare_runs((chosen, other), decisions=decisions, processes=side_by_side, rounds=rounds, tell=_tell)
    words = " ".join(compare)
    if as_json:
        first, second = ([done.as_dict() for done in side] for side in both.runs)
        _print_json(
            _named(chosen)
            | {"processes": side_by_side, "compared": compare, "rounds": first, "rounds_compared": second}
            | {"ratio": both.ratio._asdict()}
        )
        return
    print(_title(chosen))
    _print_runs({"as it is": averaged(both.runs[0]), words: averaged(both.runs[1])}, side_by_side)
    print(f"{words}: {_spread(both.ratio, 'times the decisions per second')}, {count(rounds, 'round')} of both.")


def _print_runs(runs: Mapping[str, "RunBench"], processes: int) -> None:
    parts = list(dict.fromkeys(part for done in runs.values() for part in done.seconds))

    def cells(done: "RunBench", part: str) -> tuple[str, str]:
        if part not in done.seconds:
            return "–", "–"
        return f"{1000 * done.seconds[part]:.3g} ms", f"{done.shares[part]:.1%}"

    rows = [[part, *(cell for done in runs.values() for cell in cells(done, part))] for part in parts]
    _print_table(["part of a decision", *(cell for name in runs for cell in ("", name))], rows)
    print()
    for name, done in runs.items():
        label = "" if len(runs) == 1 else f"{name}: "
        each = ""
        if processes > 1:
            each = f" of {processes} processes together ({' + '.join(f'{rate:.3g}' for rate in done.rates)})"
        print(
            f"{label}{done.rate:.3g} decisions a second{each}; {done.outside:.1%} outside the networks and the renderer."
        )
    if "checkpoint" not in parts:
        print("No checkpoint fell into these decisions.")


@app.command()
def scale(
    recipe: OptionalRecipe = DEFAULT,
    overrides: Overrides = None,
    profile: ProfileOption = "auto",
    rounds: Rounds = 5,
    figure: Annotated[Path | None, typer.Option(metavar="FILE.png", help="Also draw it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time how an update grows with clips, K, filters, image size and decoder width, each varied alone; fit exponents."""
    from maskrl.bench import scaling

    chosen = _recipe(recipe, overrides, profile, "mlr")
    if figure is not None:
        _require_figure(figure)
    with _friendly():
        growths = scaling.bench_scale(chosen, rounds=rounds, tell=_tell)
        if figure is not None:
            scaling.draw(growths, f"{chosen.name}: the cost of an update, each size varied alone", figure)
    if as_json:
        _print_json(_named(chosen) | {"base": scaling.BASE, "growth": [growth.as_dict() for growth in growths]})
        return
    base = ", ".join(f"{name} {value}" for name, value in scaling.BASE.items())
    print(f"{_title(chosen)}, around {base}")
    rows = []
    for growth in growths:
        fitted = [f"^{growth.seconds_exponent:.2f}", f"^{growth.flops_exponent:.2f}"]
        numbers = [[str(p.value), f"{1000 * p.seconds:.4g}", f"{p.flops / 1e9:.4g}"] for p in growth.points]
        rows += [[growth.name, *numbers[0], *fitted], *(["", *others, "", ""] for others in numbers[1:])]
    _print_table(["varied", "value", "ms an update", "GFLOP", "time", "FLOP"], rows)
    print("\n^ is the exponent of the power of the value that fits best.")
    if figure is not None:
        print(figure)


@app.command()
def pieces(
    recipe: OptionalRecipe = DEFAULT,
    overrides: Overrides = None,
    sizes: Annotated[
        str, typer.Option(metavar="N,N,…", help="Observations in a piece; clips with Rainbow.")
    ] = "16,32,64,128",
    profile: ProfileOption = "auto",
    method: MethodOption = None,
    rounds: Rounds = 5,
    as_json: AsJson = False,
) -> None:
    """Time an update in pieces of several sizes, to choose agent.micro_batch for this machine."""
    from maskrl.bench.scaling import bench_pieces

    wanted = _numbers("--sizes", sizes, least=1)
    chosen = _recipe(recipe, overrides, profile, method)
    with _friendly():
        done = bench_pieces(chosen, wanted, rounds=rounds, tell=_tell)
    if as_json:
        rows = [{**each._asdict(), "seconds": each.seconds._asdict(), "speed": each.speed._asdict()} for each in done]
        _print_json(_named(chosen) | {"pieces": rows})
        return
    print(_title(chosen))
    _print_table(
        ["agent.micro_batch", "an update", "speed"],
        [[str(each.micro_batch), _spread(each.seconds, "s"), _spread(each.speed, "times")] for each in done],
    )
    best = min(done, key=lambda each: each.seconds.median)
    print(f"\nMedians (least – most). Speeds are by that of {done[-1].micro_batch}, in the same round.")
    print(f"The fastest here: agent.micro_batch={best.micro_batch}.")


def _require_figure(figure: Path) -> None:
    from maskrl.envs.base import require_extra

    if figure.suffix.lower() != ".png":
        raise Refusal(f"--figure {figure}: a figure is a .png file.")
    if not figure.absolute().parent.is_dir():
        raise Refusal(f"--figure {figure}: there is no folder {figure.absolute().parent}.")
    with refusing(ModuleNotFoundError):
        require_extra("matplotlib", "report")


# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _recipe(name: str, overrides: Sequence[str] | None, profile: Profile, method: str | None) -> "Recipe":
    """Overrides alone are of the default recipe."""
    if "=" in name:
        name, overrides = DEFAULT, [name, *(overrides or [])]
    return Asked(name, overrides, profile, method).recipe()


def _friendly() -> Any:
    """All of these are written for whoever typed the command: no OpenGL, no simulator, no room."""
    from maskrl.replay.buffer import NothingToDrawError
    from maskrl.runs.directory import RunError

    return refusing(RunError, NothingToDrawError, ValueError, ModuleNotFoundError, RuntimeError, OSError)


def _tell(text: str) -> None:
    """Progress goes where it does not mix with the result."""
    print(text, file=sys.stderr, flush=True)


def _named(recipe: "Recipe") -> dict[str, Any]:
    return {"recipe": recipe.name, "profile": recipe.profile, "method": recipe.method}


def _title(recipe: "Recipe") -> str:
    return f"{recipe.name}, {recipe.method}, {recipe.profile} profile"


def _print_json(value: dict[str, Any]) -> None:
    print(json.dumps(value, indent=2))


def _print_facts(facts: Mapping[str, str]) -> None:
    for name, words in facts.items():
        print(f"  {name:<13}{words}")


def _print_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Words to the left, numbers to the right; as wide as it needs to be, for a file or a pipe as well."""
    columns = list(zip(headings, *rows, strict=True))
    widths = [max(map(len, column)) for column in columns]
    left = [all(cell[:1].isalpha() or cell[:1] == "_" or cell in ("", "–") for cell in column) for column in columns]
    for row in (headings, *rows):
        cells = [
            f"{cell:<{width}}" if is_left else f"{cell:>{width}}"
            for cell, width, is_left in zip(row, widths, left, strict=True)
        ]
        print("  ".join(cells).rstrip())


def _parts(milliseconds: Mapping[str, float]) -> str:
    return ", ".join(f"{part} {value:.3g}" for part, value in sorted(milliseconds.items(), key=lambda item: -item[1]))


def _spread(measured: "Measured", unit: str, by: float = 1.0) -> str:
    middle, low, high = (value / by for value in measured)
    return f"{middle:.3g} {unit} ({low:.3g} – {high:.3g})"


def _numbers(option: str, text: str, *, least: int) -> list[int]:
    try:
        numbers = [int(word) for word in text.split(",")]
    except ValueError:
        raise Refusal(f"{option} {text}: expected whole numbers with commas between them, such as 1000,2000.") from None
    if min(numbers) < least:
        raise Refusal(f"{option} {text}: the least is {least}.")
    return numbers
