"""`maskrl probe`: all measures of latents.py on the newest checkpoint of a run. Only reads the run's files."""

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from typing import Any

import gymnasium as gym

from maskrl.agents.base import Agent
from maskrl.clock import Clock
from maskrl.envs.base import EnvConfig
from maskrl.files import listed, read_object, write_whole
from maskrl.nn.clip import Clip
from maskrl.objectives.base import ObjectiveConfig
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Draw, Replay
from maskrl.representation.latents import agent_latents, linear_probe, masking, play, seeded, split, summary, varying
from maskrl.runs.build import build_agent, build_replay
from maskrl.runs.directory import Run, RunError
from maskrl.runs.policy import clock_of
from maskrl.runs.state import load_agent, load_replay
from maskrl.runs.world import Tell

OBSERVATIONS = 10_000  # minimum, if the replay has this many
CLIPS_PER_MASK = 128  # the paper's batch
DECISIONS, LONGEST = 4000, 250  # of the linear probe: in total, and the maximum per episode
PROBE_SEED = 2_000_000  # added to the run's seed, so that episodes differ from training and evaluation


def probe(
    run: Run,
    *,
    like: ObjectiveConfig | None = None,
    clips: int | None = None,
    tell: Tell = print,
    played: EnvConfig | None = None,
) -> dict[str, Any]:
    """Probe a run and write `probe.json` into its directory. The same run gives the same numbers.

    `like`: the objective whose masks are used for a run without its own. `played`: another environment than the run's.
    """
    recipe, state = run.recipe, run.newest(tell)
    clock = clock_of(recipe, state)
    mask, length = masking(recipe, like)
    wanted = -(-OBSERVATIONS // length) if clips is None else clips
    env = (played or recipe.env).make(seed=recipe.seed, training=False)
    with closing(env), seeded(recipe.seed + PROBE_SEED):
        agent, replay = load_agent(run, env, state), _stored(run, env, state["replay"], tell)
        draw = replay.spread(wanted, span=length)
        if len(draw) == 0:
            raise RunError(f"{run.path} has no {length} consecutive decisions yet, as a clip needs. Train it longer.")
        seen = agent_latents(agent, mask.build(), _clips(replay, draw, length), seed=recipe.seed)
        linear, why = _linear(recipe, agent, env, clock)
    if clips is None and len(draw) < wanted:
        tell(f"The replay has room for {len(draw) * length:,} observations in clips, fewer than {OBSERVATIONS:,}.")
    found = {
        "frames": clock.frames,
        "observations": len(draw) * length,
        "clips": len(draw),
        "clip_length": length,
        "mask": asdict(mask),
        "decoder_cosine": None,
        **summary(seen),
        "linear": linear,
        "linear_reason": why,
        "earlier": _earlier(run, clock.frames),
    }
    write_whole(run.path / "probe.json", json.dumps(found, indent=2))
    return found


def _earlier(run: Run, frames: int) -> list[dict[str, Any]]:
    """What probe.json has of the run's earlier checkpoints, oldest first."""
    before = read_object(run.path, "probe.json")
    known = [one for one in (*listed(before, "earlier"), before) if isinstance(one.get("frames"), int)]
    return [{key: one[key] for key in one if key != "earlier"} for one in known if one["frames"] < frames]


def _stored(run: Run, env: gym.Env[Any, Any], state: dict[str, Any], tell: Tell) -> Replay:
    """Load the saved replay without changing its files."""
    file = run.path / "replay" / "frames.u8"
    if run.recipe.replay.storage == "disk" and not file.is_file():
        raise RunError(f"{run.path} has no replay any more: {file.relative_to(run.path)} is missing. Put it back.")
    replay = build_replay(run.recipe, env, run, mend=False)
    try:
        load_replay(replay, state, tell)
    except ValueError as error:
        raise RunError(f"The replay of {run.path} cannot be read: {error}") from error
    return replay


def _clips(replay: Replay, draw: Draw, length: int) -> Iterator[Clip]:
    for start in range(0, len(draw), CLIPS_PER_MASK):
        part = slice(start, start + CLIPS_PER_MASK)
        yield replay.clips(Draw(draw.starts[part], draw.weights[part]), length=length)


def _linear(
    recipe: Recipe, agent: Agent, env: gym.Env[Any, Any], clock: Clock
) -> tuple[dict[str, Any] | None, str | None]:
    """The linear probe of the agent's encoder and of a random one; or None and the reason."""
    seed = recipe.seed + PROBE_SEED
    fresh = build_agent(recipe, env).encoder
    played = play(agent, env, [agent.encoder, fresh], decisions=DECISIONS, longest=LONGEST, seed=seed, clock=clock)
    if played is None:
        return None, "the environment does not report its state: it has no method state() -> dict[str, float]"
    chosen = varying(played.states, played.episodes)
    if not chosen.any():
        return None, "no value of the state varies"
    own, floor = (linear_probe(latents, played.states[:, chosen], played.episodes) for latents in played.latents)
    known, new = split(played.episodes)
    return {
        "r2": own.mean().item(),
        "r2_random_encoder": floor.mean().item(),
        "names": [name for name, varies in zip(played.names, chosen.tolist(), strict=True) if varies],
        "per_value": own.tolist(),
        "per_value_random_encoder": floor.tolist(),
        "episodes": len(set(played.episodes.tolist())),
        "fitted_to": len(known),
        "tested_on": len(new),
    }, None
