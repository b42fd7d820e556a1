"""Equal seeds of two methods are paired: they differ in what the objective does, and in no random number that they share."""

from pathlib import Path
from typing import Any

import pytest
import torch

from maskrl.agents.base import Generators
from maskrl.objectives.curl import CURLConfig
from maskrl.recipes.schema import Recipe, with_objective
from tiny_runs import events, same, tiny_rainbow, tiny_recipe, trained

CURL = CURLConfig(augment=tiny_recipe().agent.augment)
PAIRS = {
    "SAC, MLR": (tiny_recipe(), tiny_recipe(mlr=False)),
    "SAC, CURL": (with_objective(tiny_recipe(), CURL), tiny_recipe(mlr=False)),
    "Rainbow, MLR": (tiny_rainbow(), tiny_rainbow(mlr=False)),
}


def ended(tmp_path: Path, pair: tuple[Recipe, Recipe]) -> list[tuple[list[dict[str, Any]], dict[str, Any]]]:
    """The log and the last state of both."""
    found = []
    for name, recipe in zip(("with", "without"), pair, strict=True):
        run, _ = trained(tmp_path / name, recipe)
        state = run.restore()
        assert state is not None
        found.append((events(run), state))
    return found


@pytest.mark.parametrize(
    "pair",
    [pytest.param(pair, marks=[] if "SAC, MLR" in name else pytest.mark.slow) for name, pair in PAIRS.items()],
    ids=PAIRS,
)
def test_two_methods_share_every_stream_but_the_objectives(pair: tuple[Recipe, Recipe], tmp_path: Path):
    (mine, one), (theirs, other) = ended(tmp_path, pair)
    unused = Generators(pair[0].seed, torch.device("cpu")).state_dict()
    for stream in ("explore", "augment"):
        assert torch.equal(one["agent"]["generators"][stream], other["agent"]["generators"][stream]), stream
        assert not torch.equal(one["agent"]["generators"][stream], unused[stream]), stream
    assert not torch.equal(one["agent"]["generators"]["objective"], other["agent"]["generators"]["objective"])
    assert torch.equal(one["generators"]["torch"], other["generators"]["torch"])  # the noise inside updates
    assert same(one["generators"]["explorer"], other["generators"]["explorer"])
    assert same(one["replay"]["generators"]["transitions"], other["replay"]["generators"]["transitions"])

    warmup = pair[0].agent.warmup_decisions
    for kind, until in (("episode", warmup), ("random", 1)):
        early = [
            [event for event in log if event["decisions"] < until and event["kind"] == kind] for log in (mine, theirs)
        ]
        assert early[0] == early[1] != []
    # Episodes are reset by their number, whatever happened in those before: as many began, from the same starts.
    assert one["world"]["episode"] == other["world"]["episode"]
