"""DMControl against the paper: its hyper-parameters (Table 12), its scores (Tables 1 and 11), and that each recipe runs."""

from statistics import mean, median

import numpy as np
import pytest
import torch

from builders import require_drawing
from maskrl.agents.base import Spaces
from maskrl.recipes import METHODS as ALL
from maskrl.recipes import explain, find, names, pair_on, published_for
from maskrl.recipes.dmcontrol import LITE, OTHER_TASKS, PAPER_TASKS, SISTERS
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.schema import leaves
from maskrl.recipes.sources import sources_of
from maskrl.replay.buffer import Replay

PROFILES, METHODS = ("paper", "lite"), ("mlr", "baseline")
CONTROL = [name for name in names() if not name.startswith("atari/") and name != "toy/catch"]  # SAC's
EVERY = [(name, profile, method) for name in CONTROL for profile in PROFILES for method in METHODS]

WALKER = "dmcontrol/walker-walk"

# Paper, Table 12, row by row: what it says, where we have it, and the value by task or for all of them.
TABLE_12 = [
    ("Frame stack", "env.frame_stack", 3),
    ("Observation rendering", "env.size", 100),
    ("Observation downsampling", "agent.augment.crop", 84),
    ("Observation downsampling", "objective.augment.crop", 84),
    ("Augmentation", "objective.augment.intensity", 0.05),  # "random intensity"; its scale is the released code's
    ("Replay buffer size", "replay.capacity", 100_000),
    ("Initial exploration steps", "agent.warmup_decisions", 1000),
    ("Action repeat", "env.action_repeat", {"finger-spin": 2, "walker-walk": 2, "cartpole-swingup": 8, "otherwise": 4}),
    ("Evaluation episodes", "evaluation.episodes", 10),
    ("Optimizer (β1 of the temperature)", "agent.temperature_beta", 0.5),
    ("Learning rate (f, ω)", "agent.learning_rate", {"cheetah-run": 0.0002, "otherwise": 0.001}),
    ("Learning rate (f, φ, g, q)", "agent.auxiliary.learning_rate", {"cheetah-run": 0.0001, "otherwise": 0.0005}),
    ("Learning rate warmup", "agent.auxiliary.warmup_updates", 6000),
    ("Learning rate (α)", "agent.temperature_learning_rate", 0.0001),
    ("Batch size for policy learning", "agent.batch_size", 512),
    ("Batch size for auxiliary task", "agent.auxiliary.clips", 128),
    ("Q-function EMA m", "agent.q_momentum", 0.99),
    ("Critic target update freq", "agent.target_every", 2),
    ("Discount factor", "agent.discount", 0.99),
    ("Initial temperature", "agent.temperature", 0.1),
    ("Target network EMA m", "objective.momentum", {"walker-walk": 0.9, "otherwise": 0.95}),
    ("State representation dimension d", "agent.encoder.latent_dim", 50),
    ("Weight of MLR loss λ", "objective.weight", 1),
    ("Mask ratio η", "objective.mask.ratio", 0.5),
    ("Sequence length K", "objective.clip_length", 16),
    (
        "Cube k × h × w",
        "objective.mask.cube",
        {"cartpole-swingup": (4, 10, 10), "reacher-easy": (4, 10, 10), "otherwise": (8, 10, 10)},
    ),
    ("Decoder depth L", "objective.decoder_depth", 2),
]

# Where the paper and its released code disagree, or the paper is silent: what the code does.
RELEASED_CODE = {
    "agent.augment.intensity": 0.0,  # the paper: also the policy batch
    "agent.auxiliary.momentum_every": 2,  # the paper, "target network update period": 1
    "agent.auxiliary.schedule": "unit_peak",
    "agent.auxiliary.max_grad_norm": 10,
    "agent.encoder.filters": 64,
    "agent.encoder.strides": (2, 1, 1, 1),
    "agent.encoder_momentum": 0.95,
    "agent.actor_every": 2,
    "agent.hidden": 1024,
    "env.camera": 0,
    "evaluation.every": 5000,
    "objective.head_width": 100,
    "objective.distance": "2-2cos",
    "objective.norm_floor": 1e-3,
    "objective.mask.balanced": True,
    "objective.mask.per_clip": False,
    "objective.mask.fill": 0,
    "objective.mask.rounding": "floor",
}


@pytest.mark.parametrize("task", PAPER_TASKS)
def test_the_paper_profile_is_the_papers_table(task):
    recipe = leaves(find(f"dmcontrol/{task}", "paper"))
    expected = {
        path: value.get(task, value["otherwise"]) if isinstance(value, dict) else value for _, path, value in TABLE_12
    }
    assert {path: recipe[path] for path in expected} == expected
    assert {path: recipe[path] for path in RELEASED_CODE} == RELEASED_CODE
    assert (recipe["budget.frames"], recipe["budget.decisions"]) == (100_000, None)
    assert recipe["agent.micro_batch"] is recipe["threads"] is None


def test_the_six_tasks_come_first_then_the_harder_ones_then_the_26_games_then_the_toys():
    assert names()[:6] == [f"dmcontrol/{task}" for task in PAPER_TASKS]
    assert names()[6:9] == ["dmcontrol/reacher-hard", "dmcontrol/walker-run", "atari/alien"]
    assert names()[-3:] == ["atari/up_n_down", "toy/reach", "toy/catch"]
    assert len(names()) == 6 + 2 + 26 + 2


@pytest.mark.parametrize(("task", "sister"), SISTERS.items())
def test_a_harder_task_is_its_sister_in_all_but_the_name(task, sister):
    own, other = (leaves(find(f"dmcontrol/{name}", "paper")) for name in (task, sister))
    assert {path for path in own if own[path] != other[path]} == {"name", "env.task"}


@pytest.mark.parametrize(("name", "profile"), [(name, profile) for name in CONTROL for profile in PROFILES])
def test_the_baseline_differs_by_its_objective_and_initialisation_alone(name, profile):
    mlr, baseline = find(name, profile), find(name, profile, "baseline")
    assert mlr.objective is not None
    assert baseline.objective is None
    ours, theirs = leaves(mlr), leaves(baseline)
    assert ours["agent.encoder.linear_init"] == "truncated_normal"
    assert theirs["agent.encoder.linear_init"] == "orthogonal"
    differing = {path for path in theirs if path != "objective" and ours[path] != theirs[path]}
    assert differing == {"agent.encoder.linear_init"}


@pytest.mark.parametrize("task", [*PAPER_TASKS, *SISTERS, "quadruped-walk"])
def test_the_lite_profile_changes_what_its_table_names(task):
    paper, lite = (leaves(find(f"dmcontrol/{task}", profile)) for profile in PROFILES)
    assert {path for path in lite if lite[path] != paper[path]} <= {line.partition("=")[0] for line in LITE}
    assert lite["profile"] == "lite"
    assert lite["objective.mask.cube"][0] == paper["objective.mask.cube"][0]


# ── Finding ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_auto_is_the_paper_with_cuda_and_lite_without(monkeypatch):
    for available, profile in ((True, "paper"), (False, "lite")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert find("dmcontrol/walker-walk").profile == profile
        assert find("atari/pong").profile == profile
        assert find("toy/reach").profile == "lite"


@pytest.mark.parametrize("name", ["toy/reach", "toy/catch"])
@pytest.mark.parametrize("profile", ["auto", *PROFILES])
def test_a_toy_has_one_profile(name, profile):
    assert find(name, profile) == find(name)


def test_every_other_task_of_the_suite_has_the_papers_defaults():
    for task in OTHER_TASKS:
        recipe = find(f"dmcontrol/{task}", "paper")
        assert recipe.env.task == task
        repeat = 8 if task == "cartpole-balance" else 4  # which our first run has, by runs of our own
        assert (recipe.env.action_repeat, recipe.objective.mask.cube) == (repeat, (8, 10, 10))


def test_the_list_of_tasks_is_the_suites():
    require_drawing()  # the suite chooses its backend when it is imported
    from dm_control import suite

    ours = {*PAPER_TASKS, *SISTERS, *OTHER_TASKS}
    assert len(ours) == len(PAPER_TASKS) + len(SISTERS) + len(OTHER_TASKS)
    assert {"-".join(names) for names in suite.ALL_TASKS} >= ours


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dmcontrol/cheeta-run"], "recipe 'dmcontrol/cheeta-run' is not known: did you mean dmcontrol/cheetah-run, "),
        (["dmcontrol/quadruped-wlak"], "did you mean dmcontrol/quadruped-walk, "),
        (["cheetah-run"], "did you mean dmcontrol/cheetah-run?"),
        (
            ["xyz"],
            "recipe 'xyz' is not known. A name is suite/task, such as .* `maskrl recipes list` has the paper's tasks",
        ),
        (["toy/reach", "papr"], "profile 'papr' is not known: did you mean paper\\? There are auto, paper, lite\\."),
        (
            ["toy/reach", "lite", "base"],
            "method 'base' is not known: did you mean baseline\\? There are mlr, baseline, ",
        ),
    ],
)
def test_a_name_that_is_not_known_is_refused_with_the_nearest(arguments, message):
    with pytest.raises(ValueError, match=message):
        find(*arguments)


# ── Sources ───────────────────────────────────────────────────────────────────────────────────────────────────────────


SYSTEMS = [(n, p, m) for n in (WALKER, "toy/reach") for p in PROFILES for m in ALL if pair_on(n, m)]
OTHERS = [("dmcontrol/fish-swim", p, m) for p in PROFILES for m in ("mlr", "baseline", "drqv2")]


@pytest.mark.parametrize(("name", "profile", "method"), [*EVERY, *OTHERS, *SYSTEMS])
def test_every_value_has_a_source(name, profile, method):
    recipe = find(name, profile, method)
    explanations = explain(recipe)
    assert {line.path: line.value for line in explanations} == leaves(recipe)
    assert all(line.source and not line.source.startswith("ours: the paper has no ") for line in explanations)


def test_every_source_is_that_of_a_value():
    assert set(sources_of("dmcontrol")) == set(leaves(find("dmcontrol/walker-walk", "paper")))


def test_values_of_the_papers_table_say_so():
    where = {path: source.where for path, source in sources_of("dmcontrol").items()}
    assert all(where[path].startswith("paper, Table 12") for _, path, _ in TABLE_12)


def why(path, *arguments, overrides=()):
    (line,) = (line for line in explain(with_overrides(find(*arguments), overrides)) if line.path == path)
    return line


def test_sources_that_disagree_are_shown_with_the_value():
    line = why("agent.auxiliary.momentum_every", "dmcontrol/walker-walk", "paper")
    assert line.value == 2
    assert line.conflict == "paper: every update; released code: every second"
    assert why("agent.discount", "dmcontrol/walker-walk", "paper").conflict is None


def test_what_the_lite_profile_changes_says_so_and_what_it_was():
    paper, lite = (explain(find("dmcontrol/walker-walk", profile)) for profile in PROFILES)
    for before, now in zip(paper, lite, strict=True):
        assert now.source.startswith("lite profile: ") == (before.value != now.value)
    line = why("agent.encoder.strides", "dmcontrol/walker-walk", "lite")
    assert line.source == "lite profile: scaled to a CPU; the paper profile has 2,1,1,1"


def test_what_the_paper_does_not_have_says_so():
    assert (
        "the paper does not have quadruped-walk" in why("env.action_repeat", "dmcontrol/quadruped-walk", "paper").source
    )
    assert "no settings; as for walker-walk" in why("objective.momentum", "dmcontrol/walker-run", "paper").source
    assert why("agent.discount", "dmcontrol/quadruped-walk", "paper").source == "paper, Table 12"
    assert why("agent.hidden", "toy/reach").source.startswith("toy suite: ")
    assert "no objective" in why("agent.auxiliary.clips", "dmcontrol/walker-walk", "paper", "baseline").source


def test_an_override_says_so_and_what_the_recipe_has():
    line = why("objective.mask.ratio", "dmcontrol/walker-walk", "paper", overrides=["objective.mask.ratio=0.3"])
    assert line[1:] == (0.3, "override: the recipe has 0.5", None)


# ── Published scores ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("frames", "method", "printed_mean", "printed_median"),
    [
        (100_000, "mlr", 772.8, 836.0),
        (100_000, "baseline", 616.8, 620.5),
        (500_000, "mlr", 896.5, 948.0),
        (500_000, "baseline", 856.3, 907.0),
    ],
)
def test_the_scores_have_the_papers_mean_and_median(frames, method, printed_mean, printed_median):
    recipes = [find(f"dmcontrol/{task}", "paper", method) for task in PAPER_TASKS]
    scores = [published_for(recipe, frames).mean for recipe in recipes]
    assert mean(scores) == pytest.approx(printed_mean, abs=0.051)
    assert median(scores) == printed_median


def test_published_scores():
    def of(task: str, method: str, frames: int) -> object:
        found = published_for(find(f"dmcontrol/{task}", "paper", method), frames)
        return found and (found.mean, found.std, found.seeds, found.source)

    assert of("walker-walk", "mlr", 100_000) == (643, 114, 10, "paper, Table 1")
    assert of("cheetah-run", "baseline", 500_000) == (602, 67, 10, "paper, Table 1")
    assert of("reacher-hard", "mlr", 100_000) == (624, 220, 3, "paper, Table 11")
    assert of("walker-run", "baseline", 500_000) == (466, 39, 3, "paper, Table 11")
    assert of("walker-walk", "mlr", 40_000) is None
    assert of("quadruped-walk", "mlr", 100_000) is None
    cells = [
        of(task, method, at) for task in (*PAPER_TASKS, *SISTERS) for method in METHODS for at in (100_000, 500_000)
    ]
    assert None not in cells


# ── Running ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SMALL = ["agent.encoder.filters=4", "agent.hidden=8", "agent.batch_size=4", "agent.auxiliary.clips=2"]


def random_replay(size: int, decisions: int = 24, actions: int = 2) -> Replay:
    generator = np.random.default_rng(0)
    replay = Replay(frame_shape=(3, size, size), action_dim=actions, frame_stack=3, capacity=2 * decisions, seed=0)

    def obs():
        return generator.integers(0, 256, (9, size, size), dtype=np.uint8)

    replay.begin_episode(obs())
    for _ in range(decisions):
        action = generator.uniform(-1, 1, actions).astype(np.float32)
        replay.add(action, 1.0, obs(), terminated=False, truncated=False)
    return replay


# One of each agent and depth of cube; the others differ by numbers.
FAST = ("dmcontrol/cartpole-swingup", "dmcontrol/walker-walk", "toy/reach")


@pytest.mark.parametrize(
    ("name", "profile", "method"),
    [
        pytest.param(*case, marks=[] if case[0] in FAST else pytest.mark.slow)
        for case in dict.fromkeys([*EVERY, *SYSTEMS])
    ],
)
def test_every_recipe_builds_an_agent_that_learns(name, profile, method):
    recipe = with_overrides(find(name, profile, method), SMALL)
    size = recipe.env.size
    agent = recipe.agent.build(Spaces((9, size, size), 2, discrete=False), recipe.objective, torch.device("cpu"))
    metrics = agent.update(random_replay(size))
    assert all(torch.isfinite(value) for value in metrics.values())
    assert recipe.objective is None or f"{recipe.objective.kind}/loss" in metrics
    assert agent.policy().act(np.zeros((3, 9, size, size), np.uint8)).shape == (3, 2)
