"""`maskrl recipes list` and `maskrl recipes show`."""

from typing import Annotated, Literal

import typer

from maskrl.cli import words
from maskrl.cli.help import App
from maskrl.cli.words import console, table

HELP = """List the recipes, or show one with all its values.

$ maskrl recipes list
$ maskrl recipes show dmcontrol/cheetah-run --why
"""

app = App(help=HELP, no_args_is_help=False)


@app.callback(invoke_without_command=True)
def recipes(context: typer.Context) -> None:
    if context.invoked_subcommand is None:
        list_recipes()


@app.command("list")
def list_recipes(
    what: Annotated[
        Literal["methods", "ablations"] | None,
        typer.Argument(metavar="methods|ablations", help="The methods, or the rows of the paper's ablations."),
    ] = None,
) -> None:
    """List recipes with the paper's scores, methods, or ablations.

    $ maskrl recipes list
    $ maskrl recipes list methods
    $ maskrl recipes list ablations
    """
    {"methods": _list_methods, "ablations": _list_ablations, None: _list_names}[what]()


def _list_methods() -> None:
    """Print the methods, with their agents and objectives."""
    from maskrl import recipes as known
    from maskrl.recipes.methods import QUOTED

    headings, rows = ("method", "agent", "objective", "suites", "source"), []
    for name, method in known.METHODS.items():
        suites: dict[tuple[str, str], list[str]] = {}
        for suite, pair in method.pairs.items():
            suites.setdefault((pair.agent or "the suite's own", pair.objective or "none"), []).append(suite)
        for number, (halves, where) in enumerate(suites.items()):
            rows.append((name, *halves, ", ".join(where), method.source if number == 0 else ""))
    console().print(table(headings, rows, left=5, folds=("source",)))
    one = words.command("train", "RECIPE", method="NAME")
    print(f"\n{one} runs one. To combine halves: --agent NAME --objective NAME|NAME+NAME|none.")
    for suite, module in known.SUITES.items():
        if suite == "gym":  # has no tasks to list
            continue
        objectives = module.objectives(known.example_task(suite), "lite")
        print(f"  {suite}: agents {', '.join(module.AGENTS)}; objectives {', '.join(objectives)}")
    print(f"{', '.join(QUOTED)} are quoted from the paper's tables and not run.")


def _list_names() -> None:
    from maskrl import recipes as known
    from maskrl.recipes import published_for

    def printed(value: float | None) -> str:
        """A score as the paper prints it: 907 on DMControl, 4.9 on Atari."""
        return f"{value or 0.0:,.1f}".removesuffix(".0")

    rows = []
    for name in known.names():
        paper_recipes = [known.find(name, "paper", method) for method in ("mlr", "baseline")]
        papers = [published_for(recipe, recipe.frames) for recipe in paper_recipes]
        rows.append(
            (name, *("–" if paper is None else " ± ".join(map(printed, (paper.mean, paper.std))) for paper in papers))
        )
    console().print(table(("recipe", "paper's 100k: MLR", "Baseline"), rows, left=1))
    print("\n100k is 100,000 frames on DMControl and 100,000 decisions on Atari.")
    shown, trained = words.command("recipes", "show", "RECIPE"), words.command("train", "RECIPE")
    print(f"{shown} prints one; {trained} runs it.")
    print("Your own environment: gym/ID, gym/PACKAGE:ID or FILE.py:FUNCTION (docs/own-environment.md).")


def _list_ablations() -> None:
    """Print each study: its rows, the paper's numbers, and the overrides of each row."""
    from maskrl import recipes as known
    from maskrl.recipes import ablations
    from maskrl.recipes.published import published_aggregates

    name = "dmcontrol/cheetah-run"
    recipe, out = known.find(name), console()
    for key, study in ablations.STUDIES.items():
        frames = " and ".join(f"{at:,}" for at in study.frames)
        print(f"{key}: {study.title}")
        print(f"paper, {study.place}: {len(study.tasks)} tasks, {frames} frames, {study.seeds} seeds")
        if study.note:
            print(study.note)
        headings = ("row", *_reported(study.table, next(iter(study.rows))), "overrides")
        rows = []
        for label in study.rows:
            overrides = ablations.overrides(f"{key}/{label}", recipe)
            rows.append((label, *_reported(study.table, label).values(), " ".join(overrides) or "none"))
        out.print(table(headings, rows, left=1, folds=("overrides",)))
        print()
    tables = {study.table for study in ablations.STUDIES.values()}
    for line in published_aggregates():
        if line.misprint and line.table in tables:
            print(f"* {line.method}: {line.misprint}.")
    print(f"Overrides are for {name} in the {recipe.profile} profile. Sides of a cube that a row does not set are the")
    print("task's own: k is 4 on cartpole-swingup and reacher, otherwise 8. To train an agent of masking/MLR-S:")
    print(f"  {words.Asked(name, ablations.overrides('masking/MLR-S', recipe)).command()}")
    print(f"An agent of pretraining/MLR-Pretraining starts from an encoder made by `{words.command('pretrain')}`.")


def _reported(source: str | None, label: str) -> dict[str, str]:
    """Heading → the paper's number in a row: mean and median over tasks, or the score of every task."""
    from maskrl.recipes.published import published_aggregates, published_scores

    row = (source, label)
    over_tasks = [line for line in published_aggregates() if (line.table, line.method) == row]
    if over_tasks:
        marked = ((line, "*" if line.misprint else "") for line in over_tasks)
        return {line.name.removesuffix("_over_tasks"): f"{line.value:.1f}{mark}" for line, mark in marked}
    scores = [score for score in published_scores() if (score.table, score.method) == row]
    return {
        f"{score.task.partition('/')[2]}\n{score.at // 1000}k": f"{score.mean:.0f} ± {score.std or 0.0:.0f}"
        for score in scores
    }


@app.command("show")
def show_recipe(
    recipe: words.RecipeName,
    overrides: words.Overrides = None,
    profile: words.ProfileOption = "auto",
    method: words.MethodOption = None,
    agent: words.AgentOption = None,
    objective: words.ObjectiveOption = None,
    why: Annotated[
        bool, typer.Option("--why", help="Also show the source of each value, and sources that disagree.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it as JSON, as in a run's recipe.json.")] = False,
) -> None:
    """Show every value of a recipe.

    $ maskrl recipes show atari/pong
    $ maskrl recipes show dmcontrol/cheetah-run --method curl --why
    """
    from maskrl import recipes as known
    from maskrl.recipes import schema as describing
    from maskrl.runs.directory import title

    chosen = words.Asked(recipe, overrides, profile, method, agent, objective).recipe()
    if as_json:
        print(describing.as_json(chosen))
        return
    columns = 4 if why else 2
    headings = ("path", "value", "source", "disagrees")[:columns]
    rows = [
        (path, describing.as_override(value), source, conflict or "")[:columns]
        for path, value, source, conflict in known.explain(chosen)
    ]
    print(f"{title(chosen)}\n")
    console().print(table(headings, rows, left=4, folds=headings))
