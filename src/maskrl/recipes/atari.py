"""The paper's experiments on Atari-100k: one base, the two games that differ, variants of the agent, and the lite profile.

Values not set here are the defaults of the configs; `maskrl.recipes.sources` has the source of each.
"""

import importlib.util
from collections.abc import Sequence
from dataclasses import replace
from functools import cache

from maskrl.agents.rainbow import RainbowConfig
from maskrl.envs.atari import Atari, normalise
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.masking import MaskConfig
from maskrl.objectives.curl import CURLConfig
from maskrl.objectives.mlr import MLRConfig
from maskrl.objectives.playvirtual import PlayVirtualConfig
from maskrl.objectives.spr import SPRConfig
from maskrl.recipes.overrides import with_known, with_overrides
from maskrl.recipes.published import published_scores
from maskrl.recipes.schema import AnyObjective, Budget, Evaluation, Profile, Recipe, objective_named, with_objective

# The benchmark: the games for which the paper has scores.
GAMES = tuple(dict.fromkeys(score.task[6:] for score in published_scores() if score.task.startswith("atari/")))

# Paper, Table 13: "their MLR losses are relatively smaller than the rest".
WEIGHT_5 = ("pong", "up_n_down")

# CURL's released code uses a hundredth of its loss in these games.
LITTLE_CURL = ("pong", "boxing", "private_eye", "freeway")

# The masked branch of the released code; only its scores support these values (docs/fidelity.md).
RELEASED_MLR = MLRConfig(
    mask=MaskConfig(cube=(8, 12, 12), rounding="ceil"),  # its mask is inverted: it hides 25 of 49 cells
    augment=AugmentConfig(crop=None, shift=4),
    masked_input_scale="raw255",
    projection="q",
    prediction="linear",
    momentum=0.0,
    init="torch",
    count_past_end=True,
)

# Changes of the lite profile, for a CPU with a few cores.
LITE: tuple[str, ...] = (
    "profile=lite",
    # Frames of 48 pixels cost a third of those of 84; shifts and cubes are scaled down with them.
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
    # Larger steps for a tenth of the updates. With noisy layers only, many seeds get stuck in one constant behaviour.
    "agent.learning_rate=3e-4",
    "agent.epsilon=0.02",
    "agent.epsilon_decisions=3000",
    "agent.clips=8",
    "agent.micro_batch=64",  # 4 clips
    "objective.decoder_width=128",
    "objective.every=2",
)

# Named settings of the agent, as differences from the paper's Rainbow: its variants (Dopamine's configurations for Atari-100k).
AGENTS: dict[str, tuple[str, ...]] = {
    "rainbow": (),
    "spr_rainbow": ("agent.noisy_std=0.5",),
    # SPR without augmentation: dropout instead, and slow copies with a high momentum.
    "spr_dropout": (
        *("agent.noisy_std=0.5", "agent.encoder.dropout=0.5", "agent.augment.shift=none", "agent.augment.intensity=0"),
        *("objective.augment.shift=none", "objective.augment.intensity=0", "objective.momentum=0.99"),
    ),
    # CURL's Rainbow, with its own start of a game.
    "curl_rainbow": (
        *("env.noops=29", "env.least_noops=0", "env.shrink_first=true", "agent.encoder.filters=32,64"),
        *("agent.encoder.kernels=5,5", "agent.encoder.strides=5,5", "agent.encoder.renormalise=false"),
        *("agent.warmup_decisions=1600", "agent.updates_per_decision=1", "agent.n_step=20", "agent.target_every=2000"),
        *("agent.augment.shift=none", "agent.augment.intensity=0", "agent.priority=cross_entropy"),
        *("agent.stratified=true", "agent.correction_updates=98400"),
    ),
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
    """The objectives by name, with this game's values."""
    recipe = _with_mlr(normalise(task), profile)
    mlr = recipe.objective
    assert isinstance(mlr, MLRConfig)
    spr = SPRConfig(
        weight=5.0,
        every=mlr.every,
        steps=5,
        transition="map",
        projection="q",
        prediction="linear",
        momentum=0.0,
        momentum_init="copy",
        augment=mlr.augment,
        shares_view=True,
    )
    virtual = vars(spr) | {"kind": "playvirtual", "weight": 9.0, "steps": 9, "cycle_steps": 9, "cycles": 2}
    ramp = {"ramp_length": recipe.frames // recipe.env.action_repeat // 2}  # 50 000 of 100 000 decisions
    curl = CURLConfig(
        weight=0.01 if normalise(task) in LITTLE_CURL else 1.0,
        every=mlr.every,
        when=None,
        augment=AugmentConfig(crop=recipe.env.size * 80 // 84, enlarge=recipe.env.size, intensity=0.0),
        shares_view=False,
        head=(256, 128),
        momentum=0.999,
        scale=0.1,
        joins_priorities=True,
    )
    return {"mlr": mlr, "curl": curl, "spr": spr, "playvirtual": PlayVirtualConfig(**virtual | ramp)}


@cache  # a sweep requests the same ones repeatedly
def recipe(task: str, profile: Profile, agent: str | None = None, objective: str | None = "mlr") -> Recipe:
    """A game with the paper's or the lite profile, with one of the objectives or none, and Rainbow or a variant."""
    plain = with_objective(_with_mlr(normalise(task), profile), None)
    preset = AGENTS[agent or "rainbow"]
    if agent not in (None, "rainbow"):
        lines = [*preset, *(_in_a_tenth(preset) if profile == "lite" else [])]
        plain = with_overrides(with_known(plain, lines), [f"preset={agent}"])
    chosen = None if objective is None else objective_named(objective, objectives(task, profile))
    return with_known(with_objective(plain, chosen), preset, of="objective.")


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


def _in_a_tenth(preset: Sequence[str]) -> list[str]:
    """A preset's values in decisions or updates, scaled to the lite profile's tenth of the budget."""
    counts = (line.split("=") for line in preset)
    scaled = ("agent.warmup_decisions", "agent.epsilon_decisions", "agent.correction_updates")
    return [f"{path}={int(value) // 10}" for path, value in counts if path in scaled]


def other_games() -> list[str]:
    """The games of ALE that the benchmark leaves out, if ALE is installed."""
    if importlib.util.find_spec("ale_py") is None:
        return []
    from ale_py import roms

    return [game for game in roms.get_all_rom_ids() if game not in GAMES]
