"""`maskrl recipes list` and `maskrl recipes show`."""

import difflib
from pathlib import Path
from typing import Annotated

import typer

from maskrl.cli.words import (
    AgentOption,
    Asked,
    MethodOption,
    ObjectiveOption,
    Overrides,
    ProfileOption,
    RecipeName,
    Refusal,
)

app = typer.Typer(help="The recipes: list them, or show one with every value of it.", no_args_is_help=False)


@app.callback(invoke_without_command=True)
def recipes(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_recipes()


@app.command("list")
def list_recipes(
    what: Annotated[
        str | None,
        typer.Argument(metavar="[methods|ablations]", help="The methods, or the rows of the paper's ablations."),
    ] = None,
) -> None:
    """List the recipes with what the paper reports, the methods, or the paper's ablations."""
    topics = {"methods": _list_methods, "ablations": _list_ablations, None: _list_names}
    if what not in topics:
        words = ["methods", "ablations"]
        likely = difflib.get_close_matches(str(what), words, n=1)
        advice = f"did you mean {likely[0]}?" if likely else f"there are {' and '.join(words)}."
        raise Refusal(f"recipes list {what!r} is not known: {advice} Without a word, the recipes are listed.")
    topics[what]()


def _list_methods() -> None:
    """Methods, and the agents and objectives that they are made of."""
    from rich.console import Console
    from rich.table import Table

    from maskrl import recipes as known
    from maskrl.recipes.methods import QUOTED

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("method", "agent", "objective", "suites", "source"):
        table.add_column(heading, overflow="fold")
    for name, method in known.METHODS.items():
        halves = (method.agent or "the suite's own", method.objective or "none")
        table.add_row(name, *halves, ", ".join(method.suites), method.source)
    Console().print(table)
    print(
        "\nmaskrl train RECIPE --method NAME runs one. Its halves can be combined: --agent NAME --objective NAME|none."
    )
    for suite, module in known.SUITES.items():
        objectives = module.objectives(known.example_task(suite), "lite")
        print(f"  {suite}: agents {', '.join(module.AGENTS)}; objectives {', '.join(objectives)}")
    print(f"{', '.join(QUOTED)} are quoted from the paper's tables and not run.")


def _list_names() -> None:
    from rich.console import Console
    from rich.table import Table

    from maskrl import recipes as known
    from maskrl.recipes import published_for

    def printed(value: float | None) -> str:
        """As in the paper: 907 on DMControl, 4.9 on Atari."""
        return f"{value or 0.0:,.1f}".removesuffix(".0")

    table = Table(box=None, pad_edge=False, header_style="bold")
    for heading in ("recipe", "paper's 100k: MLR", "Baseline"):
        table.add_column(heading, justify="left" if heading == "recipe" else "right", no_wrap=True)
    for name in known.names():
        paper_recipes = [known.find(name, "paper", method) for method in ("mlr", "baseline")]
        papers = [published_for(recipe, recipe.frames) for recipe in paper_recipes]
        table.add_row(name, *("–" if paper is None else " ± ".join(map(printed, (paper.mean, paper.std))) for paper in papers))
    Console().print(table)
    print("\n100k is 100,000 frames on DMControl and 100,000 decisions on Atari.")
    print("maskrl recipes show RECIPE prints one; maskrl train RECIPE runs it.")


def _list_ablations() -> None:
    """Study by study: the rows, what the paper reports of them, and the overrides that make one of a recipe."""
    from rich.console import Console
    from rich.table import Table

    from maskrl import recipes as known
    from maskrl.recipes import ablations
    from maskrl.recipes.published import published_aggregates, published_scores

    def numbers(study: ablations.Study, label: str) -> dict[str, str]:
        """Heading → what the paper has: mean and median over tasks, or the score of every task."""
        row = (study.table, label)
        over_tasks = [line for line in published_aggregates() if (line.table, line.method) == row]
        if over_tasks:
            marked = ((line, "*" if line.misprint else "") for line in over_tasks)
            return {line.name.removesuffix("_over_tasks"): f"{line.value:.1f}{mark}" for line, mark in marked}
        scores = [score for score in published_scores() if (score.table, score.method) == row]
        return {
            f"{score.task.partition('/')[2]}\n{score.at // 1000}k": f"{score.mean:.0f} ± {score.std or 0.0:.0f}"
            for score in scores
        }

    name = "dmcontrol/cheetah-run"
    recipe, console = known.find(name), Console(highlight=False)
    for key, study in ablations.STUDIES.items():
        frames = " and ".join(f"{at:,}" for at in study.frames)
        print(f"{key}: {study.title}")
        print(f"paper, {study.place}: {len(study.tasks)} tasks, {frames} frames, {study.seeds} seeds")
        if study.note:
            print(study.note)
        table = Table(box=None, header_style="bold")
        table.add_column("row", no_wrap=True)
        for heading in numbers(study, next(iter(study.rows))):
            table.add_column(heading, justify="right", no_wrap=True)
        table.add_column("overrides", overflow="fold")
        for label in study.rows:
            overrides = ablations.overrides(f"{key}/{label}", recipe)
            table.add_row(label, *numbers(study, label).values(), " ".join(overrides) or "none")
        console.print(table)
        print()
    tables = {study.table for study in ablations.STUDIES.values()}
    for line in published_aggregates():
        if line.misprint and line.table in tables:
            print(f"* {line.method}: {line.misprint}.")
    print(f"Overrides are for {name} in the {recipe.profile} profile. Sides of a cube that a row does not vary are the")
    print("task's own: k is 4 on cartpole-swingup and reacher, else 8. To train an agent of masking/MLR-S:")
    print(f"  {Asked(name, ablations.overrides('masking/MLR-S', recipe)).command()}")
    print("An agent of pretraining/MLR-Pretraining is trained in three steps:")
    run, out = Path("runs") / name / "collector", Path(ablations.encoder(name).replace("{seed}", "1")).parent
    print(f"  {Asked(name, method='baseline').command(run)}")
    print(f"  maskrl pretrain {run} --out {out}")
    print(f"  {Asked(name, ablations.overrides('pretraining/MLR-Pretraining', recipe)).command()}")


@app.command("show")
def show_recipe(
    recipe: RecipeName,
    overrides: Overrides = None,
    profile: ProfileOption = "auto",
    method: MethodOption = None,
    agent: AgentOption = None,
    objective: ObjectiveOption = None,
    why: Annotated[bool, typer.Option("--why", help="Also where each value comes from, and who disagrees.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, as in a run's recipe.json.")] = False,
) -> None:
    """Show every value of a recipe."""
    from rich.console import Console
    from rich.table import Table

    from maskrl import recipes as known
    from maskrl.recipes import schema as describing
    from maskrl.runs.directory import title

    chosen = Asked(recipe, overrides, profile, method, agent, objective).recipe()
    if as_json:
        print(describing.as_json(chosen))
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    columns = 4 if why else 2
    for heading in ("path", "value", "source", "disagrees")[:columns]:
        table.add_column(heading, overflow="fold")
    for path, value, source, conflict in known.explain(chosen):
        table.add_row(*(path, describing.as_override(value), source, conflict or "")[:columns])
    print(f"{title(chosen)}\n")
    Console().print(table)
