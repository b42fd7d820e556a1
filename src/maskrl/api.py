"""The Python API: find a recipe by name, train it, and load its policy."""

import sys
import threading
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from maskrl import recipes
from maskrl.agents.encoders import Factory as EncoderFactory
from maskrl.agents.encoders import OwnEncoderConfig
from maskrl.cost.forecast import forecast
from maskrl.envs.gym import Factory
from maskrl.recipes import AnyProfile
from maskrl.recipes.schema import Recipe
from maskrl.runs import export as exporting
from maskrl.runs import loop
from maskrl.runs.check import check_env
from maskrl.runs.directory import Run, default_path
from maskrl.runs.loggers import Logger
from maskrl.runs.policy import Policy, load
from maskrl.runs.signals import Stopped
from maskrl.runs.terminal import Terminal

__all__ = ["Policy", "Recipe", "Run", "check_env", "export", "load", "recipe", "train"]


def recipe(
    name: str | Factory,
    *overrides: str,
    profile: AnyProfile = "auto",
    method: str | None = None,
    agent: str | None = None,
    objective: str | None = None,
    encoder: EncoderFactory | None = None,
) -> Recipe:
    """The recipe with this name, such as "dmcontrol/cartpole-swingup", and overrides such as "seed=3".

    Your own environment is "gym/CarRacing-v3", "gym/my_package:MyEnv-v0", "my_env.py:make_env", or a callable that returns one.

    `profile` is "paper", "lite", or "auto": paper with a CUDA device, otherwise lite. `method` names a published pair of agent and
    objective (`maskrl recipes list methods`); `agent` and `objective` name its halves. `encoder` is your own class or
    function, which takes the shape (C, H, W) of an observation and returns an nn.Module.
    """
    found = recipes.resolve(name, overrides, profile=profile, method=method, agent=agent, objective=objective)
    if encoder is None:
        return found
    own: Any = replace(found.agent, encoder=OwnEncoderConfig.of(encoder))
    return replace(found, agent=own)


def train(
    recipe: Recipe | str | Factory,
    run_dir: str | Path | None = None,
    loggers: Sequence[Logger] | None = None,
    *,
    stop: threading.Event | None = None,
) -> Run:
    """Train to the end of the recipe's budget, or continue the run in `run_dir`; returns the run.

    The default `run_dir` is runs/NAME/METHOD/seed-SEED-DIGEST. `loggers` replaces the progress lines; [] is silent. In the
    main thread, Ctrl-C saves the run and then raises KeyboardInterrupt; in any thread, setting `stop` saves it and returns. The
    same call continues it.
    """
    chosen = recipe if isinstance(recipe, Recipe) else recipes.resolve(recipe)
    path = default_path(chosen) if run_dir is None else Path(run_dir)
    if not (path / "recipe.json").exists():
        forecast(chosen, path)  # raises an error, before anything is written, if it cannot run
    run = Run.create(path, chosen)
    if run.status == "done":
        return run
    try:
        loop.train(chosen, run, [Terminal(run)] if loggers is None else loggers, stop=stop)
    except Stopped as stopped:
        if stopped.signal_number is not None:
            how = (
                "Stopped and saved"
                if stopped.saved
                else "Stopped without saving, because the environment did not answer,"
            )
            raise KeyboardInterrupt(f"{how} in {path}. The same call continues it.") from None
    return run


def export(
    run: str | Path | Run,
    out: str | Path,
    *,
    encoder: EncoderFactory | None = None,
    env: str | None = None,
    trust: bool = False,
    episodes: int = 5,
    observations: int = 1000,
    force: bool = False,
) -> exporting.Proof:
    """Write the policy of a run to policy.onnx or policy.pt2, and check that its actions are the same: `maskrl export`.

    Returns the result of the check, which the file stores, too. The check plays in the run's environment, if this user trained
    it on this machine or `trust`; in `env`, such as "my_env.py:make_env"; otherwise it compares actions on random pictures.
    `encoder`: the class of the run's encoder, if it is your own module. `force` replaces files that are not an export of this run.
    """
    path, opened = Path(out), run if isinstance(run, Run) else Run.open(Path(run))
    exporting.require_format(path)
    exporting.require_place(path, opened, force=force)
    policy, played = load(opened.path, encoder=encoder), opened.recipe
    if env is not None:
        other: Any = played.env.made_from(env)
        played = replace(played, env=other)
    elif trust:
        played.env.allow()
    with redirect_stdout(sys.stderr):  # an environment may print
        _, proof = exporting.write_checked(
            path, policy, opened.recipe, played=played, episodes=episodes, observations=observations
        )
    return proof
