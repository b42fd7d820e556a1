"""Figures of the pages that no machine changes: parameters, operations and bytes are counted again here."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from maskrl import recipes
from maskrl.bench.update import trained
from maskrl.cost.forecast import blank_agent, takes_of
from maskrl.cost.operations import spaces_of, update_cost
from maskrl.recipes.schema import Recipe

DOCS = Path(__file__).parents[1] / "docs"


def rows(page: str, heading: str) -> Iterator[list[str]]:
    """The rows of the table whose first line starts with this."""
    (start,) = (
        place.end() for place in re.finditer(rf"^\| {re.escape(heading)}.*\n", (DOCS / page).read_text(), re.MULTILINE)
    )
    for line in (DOCS / page).read_text()[start:].partition("\n\n")[0].splitlines()[1:]:
        yield [cell.strip(" `") for cell in line.strip("|").split("|")]


def number(cell: str) -> float:
    return 0.0 if cell == "–" else float(re.sub(r"[, ]|[kMG]B", "", cell))


def close(told: str, counted: float) -> bool:
    """Whether the cell is this number, rounded to the digits that it has."""
    digits = len(told.split(" ")[0].partition(".")[2])
    return abs(number(told) - counted) <= 0.5001 * 10**-digits


def test_a_cell_must_be_the_number_rounded():
    assert close("1,328.9", 1328.94)
    assert not close("1,328.9", 1328.97)
    assert close("0.41 GB", 0.412)
    assert close("–", 0)


NAMES = {"DMControl (walker-walk)": "dmcontrol/walker-walk", "Atari (Pong)": "atari/pong"}


def test_the_plan_page_has_the_operations_of_an_update():
    for name, *cells in rows("plan.md", "of one update"):
        task, profile, method = name.split(", ")
        recipe = recipes.find(NAMES[task], profile.split()[0], method=method.lower())  # type: ignore[arg-type]
        phases = update_cost(recipe).phases
        counted = [phases.get(phase, 0) for phase in ("critic", "objective", "actor")]
        counted.append(sum(phases.values()))
        assert all(close(cell, each / 2e9) for cell, each in zip(cells, counted, strict=True)), (name, cells, counted)


def replay_of(recipe: Recipe) -> float:
    spaces = spaces_of(recipe)
    return takes_of(recipe, spaces, blank_agent(recipe, spaces)).replay / 1e9


def test_the_memory_page_has_the_bytes_of_the_replay():
    for repeat, decisions, told in rows("memory.md", "action repeat"):
        recipe = recipes.resolve("dmcontrol/walker-walk", [f"env.action_repeat={repeat}"], profile="paper")
        assert recipe.frames // recipe.env.action_repeat == number(decisions)
        assert close(told, replay_of(recipe)), (repeat, told)
    for profile, decisions, told in rows("memory.md", "profile"):
        recipe = recipes.resolve("atari/pong", profile=profile)  # type: ignore[arg-type]
        assert recipe.frames // recipe.env.action_repeat == number(decisions)
        assert close(told, replay_of(recipe)), (profile, told)


SYSTEMS = [("DMControl | parameters", "dmcontrol/cheetah-run"), ("Atari (6", "atari/pong")]


@pytest.mark.parametrize(("heading", "task"), SYSTEMS)
def test_the_page_of_systems_and_its_measurements_have_every_method(heading: str, task: str):
    methods = {name for name in recipes.METHODS if recipes.pair_on(task, name)}
    assert {method for method, *_ in rows("systems.md", heading)} == methods
    if (measured := measurements(task)) is not None:
        assert {row["method"] for row in measured["methods"]} == methods
        assert (measured["recipe"], measured["profile"], measured["threads"]) == (task, "lite", 1)


def measurements(task: str) -> dict[str, Any] | None:
    """What `maskrl bench methods` wrote, if it was run."""
    file = DOCS.parent / "results" / f"methods-{task.partition('/')[0]}.json"
    return json.loads(file.read_text()) if file.exists() else None


@pytest.mark.slow
@pytest.mark.parametrize(("heading", "task"), SYSTEMS)
def test_the_page_of_systems_has_their_parameters_and_operations(heading: str, task: str):
    measured = {row["method"]: row for row in (measurements(task) or {"methods": []})["methods"]}
    for method, parameters, operations, _ in rows("systems.md", heading):
        recipe = recipes.resolve(task, profile="paper", method=method)
        spaces = spaces_of(recipe)
        assert close(operations, update_cost(recipe, spaces).flops / 1e9), (method, operations)
        counted = sum(parameter.numel() for parameter in trained(blank_agent(recipe, spaces)))
        assert sum(map(number, parameters.split(" + "))) == counted, (method, parameters, counted)
        if method in measured:
            small = update_cost(recipes.resolve(task, profile="lite", method=method))
            assert measured[method]["flop_per_update"] == pytest.approx(small.flops)


def test_the_readme_says_how_much_larger_the_papers_update_is():
    told = re.search(r"more than ([\d,]+) times", (DOCS.parent / "README.md").read_text())
    assert told is not None
    paper, lite = (
        update_cost(recipes.find("dmcontrol/cartpole-balance", profile)).flops for profile in ("paper", "lite")
    )
    assert number(told[1]) < paper / lite < 1.2 * number(told[1])


def test_the_readme_has_the_bytes_of_replays_that_were_measured():
    measured = {cells[1]: cells[4] for cells in rows("sb3.md", "lite recipe |")}
    ours, theirs = measured["maskrl's SAC"], measured["SB3's SAC"]
    assert f"| a full replay of cartpole-balance, lite | {ours} | {theirs} |" in (DOCS.parent / "README.md").read_text()
