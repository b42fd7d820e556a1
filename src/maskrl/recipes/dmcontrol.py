"""The paper's experiments on DMControl: one base, what differs between tasks, and what differs on a laptop.

Values that are not set here are the defaults of the configs, which are the paper's; `maskrl.recipes.sources` has the source of
every one.
"""

from functools import cache

from maskrl.agents.sac import ControlEncoderConfig, SACConfig
from maskrl.envs.dmcontrol import DMControl
from maskrl.objectives.curl import CURLConfig
from maskrl.objectives.mlr import MLRConfig
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import AnyObjective, Budget, Evaluation, Profile, Recipe, with_objective

# Paper, Table 12, and its default for what is not named: an action repeat of 4, cubes 8 steps deep, m = 0.95.
PAPER_TASKS: dict[str, tuple[str, ...]] = {
    "finger-spin": ("env.action_repeat=2",),
    "cartpole-swingup": ("env.action_repeat=8", "objective.mask.cube=4,10,10"),  # "due to their large motion range"
    "reacher-easy": ("env.action_repeat=4", "objective.mask.cube=4,10,10"),
    "cheetah-run": ("env.action_repeat=4", "agent.learning_rate=2e-4", "agent.auxiliary.learning_rate=1e-4"),
    "walker-walk": ("env.action_repeat=2", "objective.momentum=0.9"),
    "ball_in_cup-catch": ("env.action_repeat=4",),
}

# Paper, Table 11, has their scores but nothing has their settings: those of the sister task, by our choice.
SISTERS = {"reacher-hard": "reacher-easy", "walker-run": "walker-walk"}

# Nothing has their settings, either: what we chose by runs (docs/training.md).
OURS: dict[str, tuple[str, ...]] = {"cartpole-balance": ("env.action_repeat=8",)}  # as for cartpole-swingup

# What the lite profile changes in the paper's recipe, for a CPU of a few cores. {k} is the task's cube depth.
LITE: tuple[str, ...] = (
    "profile=lite",
    "budget.frames=100000",
    "evaluation.every=20000",
    "checkpoint_every=2000",
    # Small frames, shifted by as large a share as in DrQ: a crop of 100 to 84 moves them by twice that, at a higher price.
    "env.size=48",
    # At 48 pixels shadows and reflections tell nothing that the bodies do not, and cost nine tenths of a picture without a GPU.
    "env.drawing=plain",
    "agent.augment.crop=none",
    "agent.augment.shift=2",
    "objective.augment.crop=none",
    "objective.augment.shift=2",
    "objective.mask.cube={k},8,8",
    "agent.encoder.filters=16",
    # Two strides of 2: delta-orthogonal kernels, which see but the centre of their window, would miss 15 pixels of 16 at first.
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

# The other tasks of the suite (dm_control 1.0), which have the paper's defaults. Listed, because to ask the suite is to load
# its simulator.
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


# Named values of the agent, by what differs from the paper's SAC. {learning_rate} is the task's.
AGENTS: dict[str, tuple[str, ...]] = {
    "sac": (),
    # CURL's SAC: 32 filters, and an Adam for the objective with the critic's rate, neither warmed up nor clipped.
    "curl_sac": (
        *("agent.encoder.filters=32", "agent.auxiliary.learning_rate={learning_rate}"),
        *("agent.auxiliary.schedule=constant", "agent.auxiliary.max_grad_norm=none"),
    ),
}


def objectives(task: str, profile: Profile) -> dict[str, AnyObjective]:
    """The objectives by name, as they are for this task."""
    recipe = _with_mlr(task, profile)
    assert recipe.objective is not None
    return {"mlr": recipe.objective, "curl": CURLConfig(augment=recipe.agent.augment)}


@cache  # a sweep asks for the same ones over and over
def recipe(task: str, profile: Profile, agent: str | None = None, objective: str | None = "mlr") -> Recipe:
    """A task of the suite as the paper ran it, or scaled to a laptop; with one of the objectives, or as the agent alone."""
    chosen = None if objective is None else objectives(task, profile)[objective]
    plain = with_objective(_with_mlr(task, profile), chosen)
    if agent in (None, "sac"):
        return plain
    values = [line.format(learning_rate=plain.agent.learning_rate) for line in AGENTS[agent]]
    return with_overrides(plain, [*values, f"preset={agent}"])


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
