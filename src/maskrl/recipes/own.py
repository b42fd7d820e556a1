"""A recipe for any Gymnasium environment: SAC for continuous actions, Rainbow for discrete ones.

The values are the paper's for DMControl (its default for tasks) and Atari-100k, or this project's lite ones, with the changes
below. `maskrl.recipes.sources` has the source of every value.
"""

import json
from collections.abc import Iterable
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple

import gymnasium as gym

from maskrl.envs import consent
from maskrl.envs.gym import Factory, Gym, GymEnv
from maskrl.recipes import atari, dmcontrol
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import AnyObjective, Profile, Recipe, as_override, leaves, with_objective
from maskrl.recipes.suggest import misfit

Kind = Literal["sac", "rainbow"]
AGENTS: dict[str, tuple[str, ...]] = {**dmcontrol.AGENTS, **atari.AGENTS}

# The tasks whose recipes are the basis: those with only the paper's defaults.
LIKE: dict[Kind, str] = {"sac": "dmcontrol/acrobot-swingup", "rainbow": "atari/alien"}

# Values that determine the environment and its observations and actions. It is made with these before an agent is chosen.
DECIDES = ("env.kwargs", "env.wrappers", "env.pixels", "env.image", "env.action_limit")

ENV: dict[Kind, dict[str, Any]] = {"sac": {"action_repeat": 2}, "rainbow": {"action_repeat": 1, "reward_clip": 1.0}}

VALUES: dict[tuple[Kind, Profile], tuple[str, ...]] = {
    ("sac", "paper"): (),
    ("sac", "lite"): ("evaluation.episodes=5",),
    ("rainbow", "paper"): (
        *("budget.decisions=none", "budget.frames=100000", "evaluation.every=10000", "evaluation.episodes=10"),
        *("evaluation.side_by_side=10", "checkpoint_every=5000"),
    ),
    ("rainbow", "lite"): (
        *("budget.decisions=none", "budget.frames=20000", "evaluation.every=5000", "evaluation.episodes=5"),
        *("evaluation.side_by_side=5", "checkpoint_every=2000", "agent.correction_updates=19000"),
    ),
}

# Defects of the released Atari code (fidelity F8, F9) that its scores were made with. They do not apply to your environment.
REPAIRED: dict[str, Any] = {"masked_input_scale": "unit", "count_past_end": False}


_kinds: dict[str, Kind] = {}  # by environment, because a sweep requests the same ones repeatedly


class Seen(NamedTuple):
    """An environment and the kind of agent that fits it."""

    env: Gym
    kind: Kind

    @property
    def like(self) -> str:
        """The suite whose agents, objectives and methods apply."""
        return LIKE[self.kind].partition("/")[0]


def is_own(name: object) -> bool:
    """Whether this names a user's environment: gym/ID, FILE.py:FUNCTION, or a callable."""
    if not isinstance(name, str):
        return True
    return name.startswith("gym/") or name.rpartition(":")[0].endswith(".py") or name.endswith(".py")


def look(name: str | Factory, overrides: Iterable[str] = ()) -> Seen:
    """Make the environment once, with the overrides that define it, and check its actions."""
    env = Gym.named(name.removeprefix("gym/") if isinstance(name, str) else name)
    decisive = [line for line in overrides if line.strip().startswith(DECIDES)]
    env = seen(with_overrides(recipe(Seen(env, "sac"), "lite"), decisive)).env
    consent.allow(env.identity)
    key = json.dumps(asdict(env), sort_keys=True)
    if key not in _kinds or env.source == "python":  # another callable may have the same name
        with closing(GymEnv(env, 0, training=True)) as made:
            _kinds[key] = "rainbow" if isinstance(made.action_space, gym.spaces.Discrete) else "sac"
    return Seen(env, _kinds[key])


def seen(recipe: Recipe) -> Seen:
    """The environment and agent of a recipe, without making the environment."""
    assert isinstance(recipe.env, Gym)
    return Seen(recipe.env, "rainbow" if recipe.agent.kind == "rainbow" else "sac")


def objectives(seen: Seen, profile: Profile) -> dict[str, AnyObjective]:
    """The objectives by name."""
    suite, task = _like(seen)
    known: dict[str, AnyObjective] = suite.objectives(task, profile)
    return known | {"mlr": replace(known["mlr"], **REPAIRED)}


def recipe(seen: Seen, profile: Profile, agent: str | None = None, objective: str | None = "mlr") -> Recipe:
    """The recipe of an environment, with an agent that fits its actions, and an objective or none."""
    suite, task = _like(seen)
    if agent is not None and agent not in suite.AGENTS:
        raise ValueError(misfit(seen.env.task, seen.kind, agent, suite.AGENTS))
    like: Recipe = suite.recipe(task, profile, agent, objective)
    env = replace(seen.env, size=like.env.size, frame_stack=like.env.frame_stack, **ENV[seen.kind])
    own = with_overrides(replace(like, name=f"gym/{env.task}", env=env), VALUES[seen.kind, profile])
    repairs = {path: REPAIRED[path.rpartition(".")[2]] for path in leaves(own) if path.rpartition(".")[2] in REPAIRED}
    repaired = with_overrides(own, [f"{path}={as_override(value)}" for path, value in repairs.items()])
    return with_objective(repaired, repaired.objective)  # at the pace of this environment


def _like(seen: Seen) -> tuple[Any, str]:
    """The suite and the task whose values are used."""
    return {"dmcontrol": dmcontrol, "atari": atari}[seen.like], LIKE[seen.kind].partition("/")[2]
