"""A recipe for any Gymnasium environment: SAC for continuous actions, Rainbow for discrete ones.

The values are the paper's for DMControl (its default for tasks) and for Atari-100k, or this project's lite ones, with what is said
here put in their place. `maskrl.recipes.sources` has the source of every value.
"""

import json
from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, replace
from typing import Any, Literal, NamedTuple

import gymnasium as gym

from maskrl.envs import consent
from maskrl.envs.gym import Factory, Gym, GymEnv
from maskrl.objectives.curl import CURLConfig
from maskrl.recipes import atari, dmcontrol
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import AnyObjective, Profile, Recipe, with_objective

Kind = Literal["sac", "rainbow"]
AGENTS: dict[str, tuple[str, ...]] = {"sac": (), "rainbow": ()}

# The tasks whose recipes these are made of: ones for which the paper has nothing but its defaults.
LIKE: dict[Kind, str] = {"sac": "dmcontrol/acrobot-swingup", "rainbow": "atari/alien"}

# What decides which environment it is, and what it shows and takes. It is looked at with these before an agent is chosen.
DECIDES = ("env.kwargs", "env.wrappers", "env.pixels", "env.image", "env.action_limit")

ENV: dict[tuple[Kind, Profile], dict[str, Any]] = {
    ("sac", "paper"): {"size": 100, "frame_stack": 3, "action_repeat": 2},
    ("sac", "lite"): {"size": 48, "frame_stack": 3, "action_repeat": 2},
    ("rainbow", "paper"): {"size": 84, "frame_stack": 4, "action_repeat": 1, "reward_clip": 1.0},
    ("rainbow", "lite"): {"size": 48, "frame_stack": 4, "action_repeat": 1, "reward_clip": 1.0},
}

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


_kinds: dict[str, Kind] = {}  # of environments that were looked at: a sweep asks for the same ones over and over


class Seen(NamedTuple):
    """An environment, and the agent that can act in it."""

    env: Gym
    kind: Kind


def is_own(name: object) -> bool:
    """Whether a name is of an environment of one's own: gym/ID, FILE.py:FUNCTION, or a callable."""
    if not isinstance(name, str):
        return True
    return name.startswith("gym/") or name.rpartition(":")[0].endswith(".py") or name.endswith(".py")


def look(name: str | Factory, overrides: Iterable[str] = ()) -> Seen:
    """Make the environment once, with those overrides that decide what it is, and look at its actions."""
    env = Gym.named(name.removeprefix("gym/") if isinstance(name, str) else name)
    decisive = [line for line in overrides if line.strip().startswith(DECIDES)]
    env = seen(_with_mlr(Seen(env, "sac"), "lite", decisive)).env
    consent.allow(env.identity)
    key = json.dumps(asdict(env), sort_keys=True)
    if key not in _kinds or env.source == "python":  # a callable of the same name may be another one
        with closing(GymEnv(env, 0, training=True)) as made:
            _kinds[key] = "rainbow" if isinstance(made.action_space, gym.spaces.Discrete) else "sac"
    return Seen(env, _kinds[key])


def seen(recipe: Recipe) -> Seen:
    """What a recipe was made of. Looks at no environment."""
    assert isinstance(recipe.env, Gym)
    return Seen(recipe.env, recipe.agent.kind)


def objectives(seen: Seen, profile: Profile) -> dict[str, AnyObjective]:
    """The objectives by name, as they are for this environment."""
    recipe = _with_mlr(seen, profile)
    assert recipe.objective is not None
    curl = {"curl": CURLConfig(augment=recipe.agent.augment)} if seen.kind == "sac" else {}
    return {"mlr": recipe.objective, **curl}


def recipe(seen: Seen, profile: Profile, agent: str | None = None, objective: str | None = "mlr") -> Recipe:
    """The environment with the agent that its actions ask for, and one of the objectives or none."""
    if agent not in (None, seen.kind):
        takes = {"sac": "continuous", "rainbow": "discrete"}[seen.kind]
        raise ValueError(
            f"{seen.env.task} takes {takes} actions, for agent {seen.kind}: agent {agent!r} cannot act there."
        )
    chosen = None if objective is None else objectives(seen, profile)[objective]
    return with_objective(_with_mlr(seen, profile), chosen)


def _with_mlr(seen: Seen, profile: Profile, overrides: Sequence[str] = ()) -> Recipe:
    suite, _, task = LIKE[seen.kind].partition("/")
    like = {"dmcontrol": dmcontrol, "atari": atari}[suite].recipe(task, profile)
    key = (seen.kind, profile)
    env = replace(seen.env, **ENV[key])
    return with_overrides(replace(like, name=f"gym/{env.task}", env=env), [*VALUES[key], *overrides])
