"""The paper's experiments on Atari-100k: one base, the two games that differ, relatives of the agent, and a laptop's share of it.

Values that are not set here are the defaults of the configs; `maskrl.recipes.sources` has the source of every one.
"""

import importlib.util
from dataclasses import replace
from functools import cache

from maskrl.agents.rainbow import RainbowConfig
from maskrl.envs.atari import Atari, normalise
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.masking import MaskConfig
from maskrl.objectives.mlr import MLRConfig
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.published import published_scores
from maskrl.recipes.schema import AnyObjective, Budget, Evaluation, Profile, Recipe, with_objective

# The benchmark: those of which the paper has scores.
GAMES = tuple(dict.fromkeys(score.task[6:] for score in published_scores() if score.task.startswith("atari/")))

# Paper, Table 13: "their MLR losses are relatively smaller than the rest".
WEIGHT_5 = ("pong", "up_n_down")

# The masked branch as the released code has it: nothing but its own scores speaks for these (docs/fidelity.md).
RELEASED_MLR = MLRConfig(
    mask=MaskConfig(cube=(8, 12, 12), rounding="ceil"),  # its mask keeps what it should hide: 25 of 49 cells hidden
    augment=AugmentConfig(crop=None, shift=4),
    masked_input_scale="raw255",
    projection="q",
    prediction="linear",
    momentum=0.0,
    init="torch",
    count_past_end=True,
)

# What the lite profile changes, for a CPU of a few cores.
LITE: tuple[str, ...] = (
    "profile=lite",
    # Frames of 48 pixels cost a third of those of 84; shifts and cubes shrink with them.
    "env.size=48",
    "agent.augment.shift=2",
    "objective.augment.shift=2",
    "objective.mask.cube=8,8,8",
    "budget.decisions=10000",
    "evaluation.every=20000",
    "evaluation.side_by_side=25",
    "checkpoint_every=4000",
    "agent.warmup_decisions=1000",
    "agent.updates_per_decision=1",
    "agent.correction_updates=9000",
    # A tenth of the updates: larger steps. With noisy layers alone, many seeds never leave one constant behaviour.
    "agent.learning_rate=3e-4",
    "agent.epsilon=0.02",
    "agent.epsilon_decisions=3000",
    "agent.clips=8",
    "agent.micro_batch=64",  # 4 clips
    "objective.decoder_width=128",
    "objective.every=2",
)

# Named values of the agent, by what differs from the paper's Rainbow: its relatives (Dopamine's configurations for Atari-100k).
AGENTS: dict[str, tuple[str, ...]] = {
    "rainbow": (),
    "der": (
        *("agent.hidden=512", "agent.warmup_decisions=1600", "agent.updates_per_decision=1", "agent.target_every=2000"),
        *(
            "agent.epsilon=0.01",
            "agent.epsilon_decisions=2000",
            "agent.augment.shift=none",
            "agent.augment.intensity=0",
        ),
        "agent.correction_updates=98400",
    ),
    "otr": (
        *("agent.hidden=512", "agent.noisy_std=none", "agent.dueling=false", "agent.double=false", "agent.n_step=3"),
        *("agent.warmup_decisions=20000", "agent.updates_per_decision=8", "agent.target_every=4000"),  # 500 decisions
        *("agent.epsilon=0.01", "agent.epsilon_decisions=50000", "agent.learning_rate=6.25e-5"),
        *("agent.augment.shift=none", "agent.augment.intensity=0", "agent.correction_updates=640000"),
    ),
    "drq": (
        *("agent.hidden=512", "agent.returns=scalar", "agent.noisy_std=none", "agent.priority_exponent=none"),
        *(
            "agent.warmup_decisions=1600",
            "agent.updates_per_decision=1",
            "agent.epsilon=0.1",
            "agent.epsilon_decisions=5000",
        ),
        "evaluation.epsilon=0.05",
    ),
}
AGENTS["drq_eps"] = (*AGENTS["drq"], "agent.epsilon=0.01", "evaluation.epsilon=0.001")


def objectives(task: str, profile: Profile) -> dict[str, AnyObjective]:
    """The objectives by name, as they are for this game."""
    mlr = _with_mlr(normalise(task), profile).objective
    assert mlr is not None
    return {"mlr": mlr}


@cache  # a sweep asks for the same ones over and over
def recipe(task: str, profile: Profile, agent: str | None = None, objective: str | None = "mlr") -> Recipe:
    """A game as the paper ran it, or scaled to a laptop; with one of the objectives or none, by Rainbow or a relative."""
    chosen = None if objective is None else objectives(task, profile)[objective]
    plain = with_objective(_with_mlr(normalise(task), profile), chosen)
    if agent in (None, "rainbow"):
        return plain
    preset = [*AGENTS[agent], f"preset={agent}"]
    return with_overrides(plain, [*preset, *_in_a_tenth(preset)] if profile == "lite" else preset)


@cache
def _with_mlr(task: str, profile: Profile) -> Recipe:
    full = Recipe(
        name=f"atari/{task}",
        profile="paper",
        env=Atari(task=task),
        agent=RainbowConfig(),
        objective=replace(RELEASED_MLR, weight=5.0 if task in WEIGHT_5 else 1.0),
        budget=Budget(decisions=100_000),
        evaluation=Evaluation(every=40_000, episodes=100, epsilon=0.001, side_by_side=100),
        checkpoint_every=20_000,
    )
    return with_overrides(full, LITE) if profile == "lite" else full


def _in_a_tenth(preset: list[str]) -> list[str]:
    """What a preset counts in decisions or updates of the paper's budget, for the lite profile's tenth of it."""
    counts = (line.split("=") for line in preset)
    scaled = ("agent.warmup_decisions", "agent.epsilon_decisions", "agent.correction_updates")
    return [f"{path}={int(value) // 10}" for path, value in counts if path in scaled]


def other_games() -> list[str]:
    """The games of ALE that the benchmark leaves out, if ALE is installed."""
    if importlib.util.find_spec("ale_py") is None:
        return []
    from ale_py import roms

    return [game for game in roms.get_all_rom_ids() if game not in GAMES]
