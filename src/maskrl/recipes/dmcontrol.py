"""The paper's experiments on DMControl: one base, the differences between tasks, and the lite profile.

Values not set here are the defaults of the configs, which are the paper's; `maskrl.recipes.sources` has the source of each.
"""

from dataclasses import replace
from functools import cache
from typing import Any

from maskrl.agents.drqv2 import ENCODER, DrQv2Config
from maskrl.agents.encoders import ControlEncoderConfig
from maskrl.agents.sac import SACConfig
from maskrl.envs.dmcontrol import DMControl
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.masking import MaskConfig
from maskrl.objectives.autoencoder import AutoencoderConfig
from maskrl.objectives.curl import CURLConfig
from maskrl.objectives.mlr import MLRConfig
from maskrl.objectives.mooss import MOOSSConfig
from maskrl.objectives.playvirtual import PlayVirtualConfig
from maskrl.objectives.spr import SPRConfig
from maskrl.recipes.overrides import with_known, with_overrides
from maskrl.recipes.schema import AnyObjective, Budget, Evaluation, Profile, Recipe, objective_named, with_objective

# Paper, Table 12, with its defaults for the rest: an action repeat of 4, cubes 8 steps deep, m = 0.95.
PAPER_TASKS: dict[str, tuple[str, ...]] = {
    "finger-spin": ("env.action_repeat=2",),
    "cartpole-swingup": ("env.action_repeat=8", "objective.mask.cube=4,10,10"),  # "due to their large motion range"
    "reacher-easy": ("env.action_repeat=4", "objective.mask.cube=4,10,10"),
    "cheetah-run": ("env.action_repeat=4", "agent.learning_rate=2e-4", "agent.auxiliary.learning_rate=1e-4"),
    "walker-walk": ("env.action_repeat=2", "objective.momentum=0.9"),
    "ball_in_cup-catch": ("env.action_repeat=4",),
}

# Paper, Table 11, has their scores, but no source has their settings; we use those of the sister task.
SISTERS = {"reacher-hard": "reacher-easy", "walker-run": "walker-walk"}

# No source has their settings; we chose them by runs (docs/profiles.md).
OURS: dict[str, tuple[str, ...]] = {"cartpole-balance": ("env.action_repeat=8",)}  # as for cartpole-swingup

# Changes of the lite profile, for a CPU with a few cores. {k} is the task's cube depth.
LITE: tuple[str, ...] = (
    "profile=lite",
    "budget.frames=100000",
    "evaluation.every=20000",
    "checkpoint_every=2000",
    # Small frames, with shifts of the same share as in DrQ. A crop of 100 to 84 shifts by twice that, at a higher cost.
    "env.size=48",
    # At 48 pixels shadows and reflections add no information, and cost nine tenths of the drawing time without a GPU.
    "env.drawing=plain",
    "agent.augment.crop=none",
    "agent.augment.shift=2",
    "objective.augment.crop=none",
    "objective.augment.shift=2",
    "objective.mask.cube={k},8,8",
    "agent.encoder.filters=16",
    # Two strides of 2: delta-orthogonal kernels see only the centre of their window and miss 15 pixels of 16 at first.
    "agent.encoder.strides=2,2,1",
    "agent.encoder.convolution_init=orthogonal",
    "agent.hidden=256",
    "agent.warmup_decisions=500",
    # With 32 filters and batches of 128, a run on cartpole-swingup learns about as much per frame, in three times the time.
    "agent.batch_size=64",
    "agent.actor_every=1",
    "agent.auxiliary.clips=8",
    "agent.auxiliary.warmup_updates=1000",
    "objective.every=2",
)

# The other tasks of the suite (dm_control 1.0), with the paper's defaults. Written out, because querying the suite would load its
# simulator.
OTHER_TASKS = (
    *("acrobot-swingup", "acrobot-swingup_sparse", "cartpole-balance", "cartpole-balance_sparse"),
    *("cartpole-swingup_sparse", "cartpole-two_poles", "cartpole-three_poles", "dog-stand", "dog-walk", "dog-trot"),
    *("dog-run", "dog-fetch", "finger-turn_easy", "finger-turn_hard", "fish-upright", "fish-swim", "hopper-stand"),
    *("hopper-hop", "humanoid-stand", "humanoid-walk", "humanoid-run", "humanoid-run_pure_state", "humanoid_CMU-stand"),
    *("humanoid_CMU-walk", "humanoid_CMU-run", "lqr-lqr_2_1", "lqr-lqr_6_2", "manipulator-bring_ball"),
    *("manipulator-bring_peg", "manipulator-insert_ball", "manipulator-insert_peg", "pendulum-swingup"),
    *("point_mass-easy", "point_mass-hard", "quadruped-walk", "quadruped-run", "quadruped-escape", "quadruped-fetch"),
    *("stacker-stack_2", "stacker-stack_4", "swimmer-swimmer6", "swimmer-swimmer15", "walker-stand"),
)


# DrQ-v2's settings of tasks: the decisions over which σ falls, and other differences. Other tasks use those of medium ones.
EASY, MEDIUM, HARD = 100_000, 500_000, 2_000_000
DRQV2_NOISE = {
    **dict.fromkeys(("cartpole-balance", "cartpole-balance_sparse", "cartpole-swingup", "ball_in_cup-catch"), EASY),
    **dict.fromkeys(("finger-spin", "hopper-stand", "pendulum-swingup", "walker-stand", "walker-walk"), EASY),
    **dict.fromkeys(("humanoid-stand", "humanoid-walk", "humanoid-run"), HARD),
}
DRQV2_TASKS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("walker-stand", "walker-walk", "walker-run"), ("agent.n_step=1", "agent.batch_size=512")),
    **dict.fromkeys(
        ("humanoid-stand", "humanoid-walk", "humanoid-run"),
        ("agent.learning_rate=8e-5", "agent.encoder.latent_dim=100"),
    ),
    "quadruped-run": ("replay.capacity=100000",),
}
# Of DrQ and DrQ-v2.
CAMERAS = dict.fromkeys(("quadruped-walk", "quadruped-run", "quadruped-escape", "quadruped-fetch"), 2)
_DRQV2 = (
    *("env.size=84", "env.action_repeat=2", "replay.capacity=1000000", "evaluation.every=10000"),
    "agent.noise_decisions={noise}",
)

# Named settings of the agent, as differences from the paper's SAC. {learning_rate} is the task's.
AGENTS: dict[str, tuple[str, ...]] = {
    "sac": (),
    # CURL's SAC: 32 filters, and an Adam for the objective with the critic's rate, without warm-up or clipping.
    "curl_sac": (
        *("agent.encoder.filters=32", "agent.auxiliary.learning_rate={learning_rate}"),
        *("agent.auxiliary.schedule=constant", "agent.auxiliary.max_grad_norm=none"),
    ),
    # PlayVirtual's SAC: no warm-up of the objective's Adam. Its other SPR also differs in rate and weight, without clipping.
    "playvirtual_sac": ("agent.auxiliary.schedule=constant",),
    "spr_mean_sac": (
        *("agent.auxiliary.learning_rate=1e-3", "agent.auxiliary.schedule=constant"),
        *("agent.auxiliary.max_grad_norm=none", "objective.weight=1"),
    ),
    "mooss_sac": ("agent.encoder.latent_dim=64",),
    # SAC+AE's SAC: no augmentation, a tanh after the encoder, and 1000 updates at once after the warm-up. One rate for all tasks.
    "sac_pixel": (
        *("env.size=84", "replay.capacity=1000000", "agent.batch_size=128", "agent.burst=1000"),
        "agent.learning_rate=1e-3",
        *(
            "agent.augment.crop=none",
            "agent.augment.shift=none",
            "agent.encoder.filters=32",
            "agent.encoder.squash=true",
        ),
        *("agent.auxiliary.learning_rate=1e-3", "agent.auxiliary.schedule=constant"),
        "agent.auxiliary.max_grad_norm=none",
    ),
    # DrQ: two shifted views of every observation, and one rate for all tasks.
    "drq_sac": (
        "agent.learning_rate=1e-3",
        *("env.size=84", "agent.views=2", "agent.augment.crop=none", "agent.augment.shift=4"),
        *("agent.encoder.filters=32", "agent.encoder.squash=true", "agent.encoder_momentum=0.99"),
        "agent.encoder.convolution_init=orthogonal",
        *("agent.temperature_learning_rate=1e-3", "agent.temperature_beta=0.9"),
    ),
    "drqv2": _DRQV2,
    # Ours, for little data: noise falls over half of the decisions, with one update per decision.
    "drqv2-100k": (*_DRQV2[:-1], "agent.noise_decisions={half}", "agent.updates_per_decision=1"),
}


def objectives(task: str, profile: Profile) -> dict[str, AnyObjective]:
    """The objectives by name, with this task's values."""
    recipe = _with_mlr(task, profile)
    mlr = recipe.objective
    assert isinstance(mlr, MLRConfig)
    patch = (mlr.augment.crop or recipe.env.size) // 12  # MOOSS: 12 × 12 cubes
    return {
        "mlr": mlr,
        "curl": CURLConfig(every=mlr.every, augment=recipe.agent.augment),
        "autoencoder": AutoencoderConfig(every=mlr.every),
        "spr": SPRConfig(every=mlr.every, augment=mlr.augment),
        "playvirtual": PlayVirtualConfig(
            every=mlr.every,
            augment=mlr.augment,
            ramp_length=recipe.frames // 2,  # 50 000 of 100 000 frames
        ),
        "mooss": MOOSSConfig(
            every=mlr.every,
            augment=mlr.augment,
            mask=MaskConfig(strategy="walk", cube=(mlr.mask.cube[0], patch, patch)),
            momentum=mlr.momentum,
        ),
    }


@cache  # a sweep requests the same ones repeatedly
def recipe(task: str, profile: Profile, agent: str | None = None, objective: str | None = "mlr") -> Recipe:
    """A task with the paper's or the lite profile, with one of the objectives or the agent alone."""
    plain = with_objective(_with_mlr(task, profile), None)
    if agent not in (None, "sac"):
        plain = _with_agent(plain, agent)
    known = {name: suited(known, plain) for name, known in objectives(task, profile).items()}
    chosen = None if objective is None else objective_named(objective, known)
    return with_known(with_objective(plain, chosen), AGENTS[agent or "sac"], of="objective.")


def _with_agent(plain: Recipe, agent: str) -> Recipe:
    """The recipe with an agent's named settings; the lite profile keeps its own sizes."""
    task, is_lite = plain.name.partition("/")[2], plain.profile == "lite"
    learning_rate, values = plain.agent.learning_rate, [*AGENTS[agent]]
    if agent.startswith("drqv2"):
        plain = replace(plain, agent=_drqv2(is_lite))
        values += DRQV2_TASKS.get(task, ())
    if agent.startswith("drq") and task in CAMERAS:
        values.append(f"env.camera={CAMERAS[task]}")
    if is_lite:  # keep the objective None if the method has none
        sizes = {"replay.capacity", *(line.partition("=")[0] for line in LITE)}
        values = [line for line in values if line.partition("=")[0] not in sizes or line.endswith("=none")]
    half = plain.frames // (2 * 2)  # half of the decisions at DrQ-v2's action repeat
    told = {"learning_rate": learning_rate, "noise": DRQV2_NOISE.get(task, MEDIUM), "half": half}
    return with_overrides(with_known(plain, [line.format(**told) for line in values]), [f"preset={agent}"])


def _drqv2(is_lite: bool) -> DrQv2Config:
    if not is_lite:
        return DrQv2Config()
    encoder = replace(ENCODER, filters=16, strides=(2, 2, 1))
    return DrQv2Config(
        encoder=encoder,
        hidden=256,
        augment=AugmentConfig(crop=None, shift=2, intensity=0.0),
        warmup_decisions=1000,
        batch_size=64,
        auxiliary=replace(DrQv2Config().auxiliary, clips=8),
    )


def suited(objective: AnyObjective, recipe: Recipe, patch: int = 12) -> AnyObjective:
    """The objective with views of the same size as the agent's."""
    agent, changes = recipe.agent.augment, dict[str, Any]()
    views = getattr(objective, "augment", None)
    if views is not None and views.enlarge is None and views.crop != agent.crop:
        changes["augment"] = replace(views, crop=agent.crop, shift=agent.shift)
        if objective.masks is not None:  # cubes on whole frames: as on Atari, with the same frame size
            changes["mask"] = replace(objective.masks, cube=(objective.masks.cube[0], patch, patch))
    return replace(objective, **changes)


@cache
def _with_mlr(task: str, profile: Profile) -> Recipe:
    base = Recipe(
        name=f"dmcontrol/{task}",
        profile="paper",
        env=DMControl(task=task, action_repeat=4),
        agent=SACConfig(encoder=ControlEncoderConfig(linear_init="truncated_normal")),
        objective=MLRConfig(),
        budget=Budget(frames=100_000),
        evaluation=Evaluation(side_by_side=10),
    )
    full = with_overrides(base, (PAPER_TASKS | OURS).get(SISTERS.get(task, task), ()))
    if profile == "lite":
        assert full.objective is not None
        assert full.objective.masks is not None
        full = with_overrides(full, [line.format(k=full.objective.masks.cube[0]) for line in LITE])
    return full
