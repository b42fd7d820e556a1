"""The paper's experiments on Atari-100k: one base, the two games that differ, relatives of the agent, and a laptop's share of it.

Values that are not set here are the defaults of the configs; `maskrl.recipes.sources` has the source of every one.
"""

import importlib.util
from dataclasses import replace
from typing import NamedTuple

from maskrl.agents.rainbow import RainbowConfig
from maskrl.envs.atari import Atari, normalise
from maskrl.experiments.evaluate import Published
from maskrl.experiments.recipe import (
    Budget,
    Evaluation,
    Method,
    Preset,
    Profile,
    Recipe,
    with_overrides,
    without_objective,
)
from maskrl.nn.augment import AugmentConfig
from maskrl.objectives.mlr import MaskConfig, MLRConfig

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
    "budget.decisions=10000",
    "evaluation.every=20000",
    "evaluation.side_by_side=25",
    "checkpoint_every=4000",
    "agent.warmup_decisions=1000",
    "agent.updates_per_decision=1",
    "agent.correction_updates=9000",
    "agent.clips=8",
    "agent.micro_batch=4",
    "objective.decoder_width=128",
)

# Relatives of the agent in the paper's table, by what differs from it (Dopamine's configurations for Atari-100k).
PRESETS: dict[Preset, tuple[str, ...]] = {
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
PRESETS["drq_eps"] = (*PRESETS["drq"], "agent.epsilon=0.01", "evaluation.epsilon=0.001")


def recipe(task: str, profile: Profile, method: Method = "mlr") -> Recipe:
    """A game as the paper ran it, or scaled to a laptop; with its objective, without (the Baseline), or a relative."""
    task = normalise(task)
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
    if profile == "lite":
        full = with_overrides(full, LITE)
    if method == "mlr":
        return full
    plain = without_objective(full)
    if method == "baseline":
        return plain
    preset = [*PRESETS[method], f"preset={method}"]
    return with_overrides(plain, [*preset, *_in_a_tenth(preset)] if profile == "lite" else preset)


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

    return [game for game in roms.get_all_rom_ids() if game not in PUBLISHED]


class Scores(NamedTuple):
    """Of one game. The paper has standard deviations over its 3 seeds for its own two methods alone."""

    random: float
    human: float
    mlr: tuple[float, float]
    baseline: tuple[float, float]
    der: float
    otr: float
    drq: float


# Paper, Table 5, and Table 6 for the standard deviations: scores after 100 000 decisions.
PUBLISHED: dict[str, Scores] = {
    "alien": Scores(227.8, 7127.7, mlr=(990.1, 79.2), baseline=(678.5, 61.2), der=802.3, otr=570.8, drq=734.1),
    "amidar": Scores(5.8, 1719.5, mlr=(227.7, 48), baseline=(132.8, 70.7), der=125.9, otr=77.7, drq=94.2),
    "assault": Scores(222.4, 742, mlr=(643.7, 28), baseline=(493.3, 4.3), der=561.5, otr=330.9, drq=479.5),
    "asterix": Scores(210, 8503.3, mlr=(883.7, 43.3), baseline=(1021.3, 32.1), der=535.4, otr=334.7, drq=535.6),
    "bank_heist": Scores(14.2, 753.1, mlr=(180.3, 49.7), baseline=(288.2, 39.2), der=185.5, otr=55, drq=153.4),
    "battle_zone": Scores(
        2360, 37187.5, mlr=(16080, 1139.6), baseline=(13076.7, 2070.2), der=8977, otr=5139.4, drq=10563.6
    ),
    "boxing": Scores(0.1, 12.1, mlr=(26.4, 7.4), baseline=(14.3, 7.3), der=-0.3, otr=1.6, drq=6.6),
    "breakout": Scores(1.7, 30.5, mlr=(16.8, 1.4), baseline=(16.7, 1.8), der=9.2, otr=8.1, drq=15.4),
    "chopper_command": Scores(
        811, 7387.8, mlr=(910.7, 242.1), baseline=(878.7, 119.9), der=925.9, otr=813.3, drq=792.4
    ),
    "crazy_climber": Scores(
        10780.5, 35829.4, mlr=(24633.3, 2334.5), baseline=(28235.7, 12980.1), der=34508.6, otr=14999.3, drq=21991.6
    ),
    "demon_attack": Scores(152.1, 1971, mlr=(854.6, 149.7), baseline=(310.5, 89.8), der=627.6, otr=681.6, drq=1142.4),
    "freeway": Scores(0, 29.6, mlr=(30.2, 1), baseline=(30.9, 0.3), der=20.9, otr=11.5, drq=17.8),
    "frostbite": Scores(65.2, 4334.7, mlr=(2381.1, 607.3), baseline=(994.3, 1295.3), der=871, otr=224.9, drq=508.1),
    "gopher": Scores(257.6, 2412.5, mlr=(822.3, 266), baseline=(650.9, 7.9), der=467, otr=539.4, drq=618),
    "hero": Scores(1027, 30826.4, mlr=(7919.3, 692), baseline=(4661.2, 2562.3), der=6226, otr=5956.5, drq=3722.6),
    "jamesbond": Scores(29, 302.8, mlr=(423.2, 20.8), baseline=(270, 108.2), der=275.7, otr=88, drq=251.8),
    "kangaroo": Scores(52, 3035, mlr=(8516, 3025.9), baseline=(5036, 3801.2), der=581.7, otr=348.5, drq=974.5),
    "krull": Scores(1598, 2665.5, mlr=(3923.1, 792), baseline=(3571.3, 605.9), der=3256.9, otr=3655.9, drq=4131.4),
    "kung_fu_master": Scores(
        258.5, 22736.3, mlr=(10652, 971.8), baseline=(10517.3, 5026.9), der=6580.1, otr=6659.6, drq=7154.5
    ),
    "ms_pacman": Scores(307.3, 6951.6, mlr=(1481.3, 249.4), baseline=(1320.9, 124.3), der=1187.4, otr=908, drq=1002.9),
    "pong": Scores(-20.7, 14.6, mlr=(4.9, 3.1), baseline=(-3.1, 11.5), der=-9.7, otr=-2.5, drq=-14.3),
    "private_eye": Scores(24.9, 69571.3, mlr=(100, 0), baseline=(93.3, 11.5), der=72.8, otr=59.6, drq=24.8),
    "qbert": Scores(163.9, 13455, mlr=(3410.4, 96.3), baseline=(553.8, 346.6), der=1773.5, otr=552.5, drq=934.2),
    "road_runner": Scores(
        11.5, 7845, mlr=(12049.7, 669.1), baseline=(12337, 4632.6), der=11843.4, otr=2606.4, drq=8724.7
    ),
    "seaquest": Scores(68.4, 42054.7, mlr=(628.3, 92.2), baseline=(471.9, 107.1), der=304.6, otr=272.9, drq=310.5),
    "up_n_down": Scores(
        533.4, 11693.2, mlr=(6675.7, 531.5), baseline=(4112.8, 919.3), der=3075, otr=2331.7, drq=3619.1
    ),
}


def human_normalised(task: str, score: float) -> float | None:
    """0 is a random player, 1 a human one; None for a game that the benchmark does not have."""
    if task not in PUBLISHED:
        return None
    random, human = PUBLISHED[task].random, PUBLISHED[task].human
    return (score - random) / (human - random)


def published(task: str, decisions: int, method: str) -> Published | None:
    """What the paper reports for a game after 100 000 decisions; nothing for other budgets or games."""
    if task not in PUBLISHED or decisions != 100_000 or method not in Scores._fields:
        return None
    found = getattr(PUBLISHED[task], method)
    mean, std = found if isinstance(found, tuple) else (found, None)
    return Published(mean, std, 3 if std is not None else 100, "paper, Table 5")
