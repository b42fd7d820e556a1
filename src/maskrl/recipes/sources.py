"""Where every number of a recipe comes from, and what the other sources say."""

from typing import Any, NamedTuple

from maskrl.recipes import atari, dmcontrol, toy
from maskrl.recipes.methods import METHODS
from maskrl.recipes.schema import Recipe, as_override, leaves


class Source(NamedTuple):
    where: str
    conflict: str | None = None  # sources that disagree, each with its value


class Explanation(NamedTuple):
    """One line of `maskrl recipes show --why`."""

    path: str
    value: Any
    source: str
    conflict: str | None


TABLE = Source("paper, Table 12")
CODE = Source("released code")
OURS = Source("ours: a matter of speed and space, not of the method")
NO_VARIANT = Source("paper, section 3: the method itself; other values are its ablations")

SOURCES: dict[str, Source] = {
    "name": Source("the task's name"),
    "profile": Source("paper: the settings as published"),
    "env.kind": Source("paper, section 4: DMControl"),
    "env.task": Source("the recipe's name"),
    "env.action_repeat": TABLE,
    "env.size": TABLE,
    "env.frame_stack": TABLE,
    "env.camera": CODE,
    "env.shadow_size": Source("the suite's own"),
    "agent.kind": Source("paper, section 4: SAC on DMControl"),
    "agent.encoder.filters": Source(
        "released code", "paper: the encoder of CURL, whose code has 32; released code: 64"
    ),
    "agent.encoder.latent_dim": TABLE,
    "agent.encoder.strides": CODE,
    "agent.encoder.convolution_init": CODE,
    "agent.encoder.linear_init": Source(
        "released code: a truncated normal with MLR, orthogonal in the Baseline",
        "paper: silent; released code: the two methods differ",
    ),
    "agent.hidden": CODE,
    "agent.augment.crop": TABLE,
    "agent.augment.shift": Source("released code: no shift on DMControl; the paper names the crop alone"),
    "agent.augment.intensity": Source(
        "released code", "paper: crop and intensity; released code: crop alone for the policy batch"
    ),
    "agent.warmup_decisions": TABLE,
    "agent.updates_per_decision": Source("paper, Algorithm 1: an update after every step"),
    "agent.batch_size": TABLE,
    "agent.discount": TABLE,
    "agent.learning_rate": TABLE,
    "agent.temperature": TABLE,
    "agent.temperature_learning_rate": TABLE,
    "agent.temperature_beta": TABLE,
    "agent.actor_every": CODE,
    "agent.target_every": TABLE,
    "agent.q_momentum": TABLE,
    "agent.encoder_momentum": Source("released code", "paper: lists only the Q function's 0.99; released code: 0.95"),
    "agent.auxiliary.clips": TABLE,
    "agent.auxiliary.learning_rate": TABLE,
    "agent.auxiliary.schedule": Source(
        "released code",
        "paper: the printed formula peaks at 1/77 of the learning rate; released code: at the learning rate",
    ),
    "agent.auxiliary.warmup_updates": Source(
        "paper, Table 12", "released configuration: 1000, which its code does not read; paper and released code: 6000"
    ),
    "agent.auxiliary.max_grad_norm": Source("released code", "paper: silent on DMControl; released code: 10"),
    "agent.auxiliary.momentum_every": Source("released code", "paper: every update; released code: every second"),
    "agent.micro_batch": OURS,
    "objective.kind": Source("paper, section 3: MLR"),
    "objective.weight": TABLE,
    "objective.every": Source("paper, Algorithm 1"),
    "objective.when": Source("released code: after the critic's step"),
    "objective.clip_length": Source(
        "paper, Table 12", "released configuration: 7; paper and released command line: 16"
    ),
    "objective.mask.strategy": NO_VARIANT,
    "objective.mask.cube": TABLE,
    "objective.mask.ratio": TABLE,
    "objective.mask.balanced": Source(
        "released code", "paper: drawn over all cubes; released code: the exact share in every block of time"
    ),
    "objective.mask.rounding": CODE,
    "objective.mask.per_clip": Source("released code", "paper: silent; released code: one mask for the whole batch"),
    "objective.mask.fill": Source("released code", "paper: the figure shows white; released code: black"),
    "objective.mask.feature_patch": Source("ours: used by the ablation MLR-F alone, of which the paper says no more"),
    "objective.augment.crop": TABLE,
    "objective.augment.shift": Source("released code: no shift on DMControl; the paper names the crop alone"),
    "objective.augment.intensity": Source("paper, Table 12: random intensity; its scale: released code"),
    "objective.corrupt": NO_VARIANT,
    "objective.masked_input_scale": CODE,
    "objective.action_tokens": NO_VARIANT,
    "objective.decoder_depth": TABLE,
    "objective.decoder_width": Source("paper, Table 4: 20.4 K parameters per layer"),
    "objective.reconstruct": NO_VARIANT,
    "objective.pixel_loss_on": Source("ours: used by the ablation MLR-Pixel alone, of which the paper says no more"),
    "objective.projection": NO_VARIANT,
    "objective.prediction": NO_VARIANT,
    "objective.head_width": CODE,
    "objective.distance": Source("released code", "paper: 1 - cos; released code: 2 - 2 cos"),
    "objective.norm_floor": CODE,
    "objective.momentum": TABLE,
    "objective.momentum_decoder": NO_VARIANT,
    "objective.momentum_init": Source(
        "paper, section 3, implied: the momentum networks begin as copies",
        "released code: they start from weights of their own, forgotten within some 100 updates",
    ),
    "objective.init": CODE,
    "objective.count_past_end": Source("ours: no clip passes the end of an episode on DMControl"),
    "preset": Source("the name of the agent's values, where they are not the suite's own"),
    "encoder_from": Source(
        "paper, appendix (Table 9): its MLR-Pretraining alone begins with an encoder that has learned"
    ),
    "budget.decisions": Source("paper, section 4: DMControl counts frames"),
    "budget.frames": Source(
        "paper, Table 1: DMControl-100k; budget.frames=500000 for DMControl-500k",
        "released command line: 100000, which stops before the evaluation there; released configuration: 105000",
    ),
    "evaluation.every": CODE,
    "evaluation.episodes": TABLE,
    "evaluation.epsilon": Source("released code: its mean actions alone"),
    "evaluation.side_by_side": OURS,
    "replay.capacity": TABLE,
    "replay.storage": OURS,
    "replay.on_device": OURS,
    "checkpoint_every": OURS,
    "overlap": OURS,
    "seed": Source("the run's own: the paper averages over several"),
    "device": OURS,
    "precision": OURS,
    "compile": OURS,
    "threads": OURS,
}

ATARI_TABLE = Source("paper, Table 13")
PARTS = Source("paper, appendix A: a part of Rainbow; other values are its relatives")

# Where Atari has another source than DMControl, or a value that only Rainbow has.
ATARI_SOURCES: dict[str, Source] = {
    "env.kind": Source("paper, section 4: Atari-100k"),
    "env.action_repeat": ATARI_TABLE,
    "env.size": ATARI_TABLE,
    "env.frame_stack": ATARI_TABLE,
    "env.noops": CODE,
    "env.max_frames": ATARI_TABLE,
    "agent.kind": Source("paper, section 4: Rainbow on Atari"),
    "agent.encoder.filters": ATARI_TABLE,
    "agent.encoder.kernels": ATARI_TABLE,
    "agent.encoder.strides": ATARI_TABLE,
    "agent.hidden": ATARI_TABLE,
    "agent.returns": PARTS,
    "agent.atoms": ATARI_TABLE,
    "agent.support": CODE,
    "agent.noisy_std": Source("released code", "paper: 0.5; released code and its command line: 0.1"),
    "agent.dueling": ATARI_TABLE,
    "agent.double": PARTS,
    "agent.augment.crop": Source("released code: a shift, which the paper calls a crop"),
    "agent.augment.shift": Source("paper, Table 13: random crop; its reach: released code"),
    "agent.augment.intensity": Source("paper, Table 13: random intensity; its scale: released code"),
    "agent.warmup_decisions": ATARI_TABLE,
    "agent.updates_per_decision": ATARI_TABLE,
    "agent.batch_size": ATARI_TABLE,
    "agent.n_step": ATARI_TABLE,
    "agent.late_ends": Source(
        "the n-step return as it is defined", "released code: its library looks for an end at the first step alone"
    ),
    "agent.discount": ATARI_TABLE,
    "agent.learning_rate": ATARI_TABLE,
    "agent.adam_epsilon": ATARI_TABLE,
    "agent.max_grad_norm": ATARI_TABLE,
    "agent.target_every": ATARI_TABLE,
    "agent.priority_exponent": ATARI_TABLE,
    "agent.correction": ATARI_TABLE,
    "agent.correction_updates": Source("paper, Table 13: 1 in the end, which is after 2 × 98 000 updates"),
    "agent.epsilon": Source("released code: noisy nets alone explore"),
    "agent.epsilon_decisions": Source("released code: noisy nets alone explore"),
    "agent.clips": Source("released code: a clip at every drawn transition"),
    "objective.weight": ATARI_TABLE,
    "objective.when": Source("released code: in one loss with the critic's"),
    "objective.mask.cube": ATARI_TABLE,
    "objective.mask.ratio": ATARI_TABLE,
    "objective.mask.rounding": Source(
        "released code: it hides what its mask should keep, 25 of 49 cells", "paper: half; released code: 25 of 49"
    ),
    "objective.augment.crop": Source("released code: a shift, which the paper calls a crop"),
    "objective.augment.shift": Source("paper, Table 13: random crop; its reach: released code"),
    "objective.augment.intensity": Source("paper, Table 13: random intensity; its scale: released code"),
    "objective.masked_input_scale": Source(
        "released code: the masked branch is not divided by 255", "paper: implies one scale for all"
    ),
    "objective.clip_length": Source(
        "paper, Table 13", "released configuration: 10; its command line and the paper: 16"
    ),
    "objective.decoder_depth": ATARI_TABLE,
    "objective.decoder_width": Source(
        "released code: as wide as the latent, 78.7 M parameters per layer", "paper: a lightweight decoder"
    ),
    "objective.projection": Source("released code: the Q head's first layers, as in SPR", "paper: a head of its own"),
    "objective.prediction": CODE,
    "objective.momentum": ATARI_TABLE,
    "objective.count_past_end": Source("released code", "paper: silent; SPR leaves such steps out"),
    "budget.frames": Source("paper, section 4: Atari-100k counts decisions"),
    "budget.decisions": ATARI_TABLE,
    "evaluation.every": Source("released code: every 10 000 decisions, if asked to"),
    "evaluation.episodes": ATARI_TABLE,
    "evaluation.epsilon": CODE,
    "evaluation.side_by_side": OURS,
    "replay.capacity": Source("paper, Table 13", "paper: 100 000; released code: 1 000 000, of which it fills a tenth"),
}
# Where the values of an objective other than MLR come from, by its kind.
OBJECTIVE_SOURCES: dict[str, dict[str, Source]] = {
    "curl": {
        "objective.kind": Source("Laskin et al., ICML 2020, section 4"),
        "objective.weight": Source("CURL's released code: the plain loss"),
        "objective.every": Source("CURL's released code: every update"),
        "objective.when": Source("CURL's released code: after the update of the slow copies"),
        "objective.augment.crop": Source("CURL, Table 3"),
        "objective.augment.shift": Source("CURL, section 4.3: random crops alone"),
        "objective.augment.intensity": Source("CURL, section 4.3: random crops alone"),
    },
}

# What the paper sets by task: for any other task there is no source.
BY_TASK = (
    "env.action_repeat",
    "agent.learning_rate",
    "agent.auxiliary.learning_rate",
    "objective.mask.cube",
    "objective.momentum",
)


def explain(recipe: Recipe) -> list[Explanation]:
    """Every value of a recipe with its source: the paper, its code, the profile, or whoever overrode it."""
    suite, task = recipe.name.split("/")
    objective = None if recipe.objective is None else recipe.objective.kind
    # The toys are explained beside a task of the paper that their agent is for.
    like = {"toy/reach": "dmcontrol/finger-spin", "toy/catch": "atari/alien"}.get(recipe.name, recipe.name)
    is_toy, on_atari = suite == "toy", like.startswith("atari/")
    sources = {**SOURCES, **ATARI_SOURCES} if on_atari else SOURCES
    sources = {**sources, **OBJECTIVE_SOURCES.get(objective or "", {})}
    of_suite = atari if on_atari else dmcontrol
    # Values of one's own have no recipe to be compared with: they are overrides of the suite's.
    known = [*of_suite.objectives(like.partition("/")[2], "paper"), None]
    pair = (
        recipe.preset if recipe.preset in of_suite.AGENTS else None,
        objective if objective in known else None,
    )
    paper = leaves(of_suite.recipe(like.partition("/")[2], "paper", *pair))
    usual = leaves((toy if is_toy else of_suite).recipe(task, recipe.profile, *pair))
    preset = {line.partition("=")[0] for line in of_suite.AGENTS.get(recipe.preset or "", ())}
    preset_source = next((method.source for method in METHODS.values() if method.agent == recipe.preset), "ours")

    def explanation(path: str, value: Any) -> Explanation:
        source, conflict = sources.get(path, Source(f"ours: the paper has no {path}"))
        ours = None
        if path not in usual or value != usual[path]:
            ours = f"override: the recipe has {as_override(usual.get(path))}"
        elif recipe.objective is None and path.startswith("agent.auxiliary."):
            ours = "not used: there is no objective"
        elif is_toy and value != paper.get(path):
            ours = "toy suite: ours, small on purpose"
        elif value != paper.get(path):
            ours = f"lite profile: scaled to a CPU; the paper profile has {as_override(paper.get(path))}"
        elif path in preset:
            ours = f"{recipe.preset}: {preset_source}"
        elif path in BY_TASK and task in dmcontrol.SISTERS:
            ours = f"ours: the paper has scores of {task} but no settings; as for {dmcontrol.SISTERS[task]}"
        elif path in BY_TASK and not is_toy and not on_atari and task not in dmcontrol.PAPER_TASKS:
            ours = f"ours: the paper does not have {task}; its default for tasks"
        return Explanation(path, value, ours or source, None if ours else conflict)

    absent = {"objective": Source("paper, section 4: the Baseline is the agent without MLR")}
    return [
        Explanation(path, value, *absent[path]) if path in absent and value is None else explanation(path, value)
        for path, value in leaves(recipe).items()
    ]
