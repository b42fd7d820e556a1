"""Atari-100k against the paper: its hyper-parameters (Table 13), its scores (Tables 5 and 6), and that each recipe runs."""

from dataclasses import replace
from statistics import mean, median

import numpy as np
import pytest
import torch

from builders import fast_for
from maskrl.agents.base import Spaces
from maskrl.recipes import METHODS, explain, find, human_normalised, names, pair_on, published_for
from maskrl.recipes.atari import AGENTS, GAMES, LITE
from maskrl.recipes.overrides import from_json, with_overrides
from maskrl.recipes.schema import Recipe, as_json, leaves
from maskrl.recipes.sources import sources_of
from maskrl.replay.buffer import Replay

PROFILES = ("paper", "lite")
ON_ATARI = tuple(name for name, method in METHODS.items() if "atari" in method.suites)
RELATIVES = ("der", "otr", "drq", "drq_eps")

# Paper, Table 13, row by row: what it says, where we have it, and the value by game or for all of them.
TABLE_13 = [
    ("Frame stack", "env.frame_stack", 4),
    ("Observation downsampling", "env.size", 84),
    # The reach of the crop, a shift, and the scale of the intensity are the released code's.
    ("Augmentation: random crop", "agent.augment.shift", 4),
    ("Augmentation: random intensity", "agent.augment.intensity", 0.05),
    ("Augmentation: random crop", "objective.augment.shift", 4),
    ("Augmentation: random intensity", "objective.augment.intensity", 0.05),
    ("Action repeat", "env.action_repeat", 4),
    ("Training steps", "budget.decisions", 100_000),
    ("Max frames per episode", "env.max_frames", 108_000),
    ("Replay buffer size", "replay.capacity", 100_000),
    ("Minimum replay size for sampling", "agent.warmup_decisions", 2000),
    ("Mini-batch size", "agent.batch_size", 32),
    ("Optimizer: learning rate", "agent.learning_rate", 0.0001),
    ("Optimizer: ε", "agent.adam_epsilon", 0.00015),
    ("Max gradient norm", "agent.max_grad_norm", 10),
    ("Update: distributional Q", "agent.returns", "categorical"),
    ("Dueling", "agent.dueling", True),
    ("Support of Q-distribution", "agent.atoms", 51),
    ("Discount factor", "agent.discount", 0.99),
    ("Priority exponent", "agent.priority_exponent", 0.5),
    ("Priority correction", "agent.correction", 0.4),
    ("Priority correction: 1 at the end", "agent.correction_updates", 2 * (100_000 - 2000)),
    ("Evaluation trajectories", "evaluation.episodes", 100),
    ("Updates per step", "agent.updates_per_decision", 2),
    ("Multi-step return length", "agent.n_step", 10),
    ("Q network: channels", "agent.encoder.filters", (32, 64, 64)),
    ("Q network: filter size", "agent.encoder.kernels", (8, 4, 3)),
    ("Q network: stride", "agent.encoder.strides", (4, 2, 1)),
    ("Q network: hidden units", "agent.hidden", 256),
    ("Target network update period", "agent.target_every", 1),
    ("τ (EMA coefficient)", "objective.momentum", 0),
    ("Weight of MLR loss λ", "objective.weight", {"pong": 5, "up_n_down": 5, "otherwise": 1}),
    ("Mask ratio η", "objective.mask.ratio", 0.5),
    ("Sequence length K", "objective.clip_length", 16),
    ("Cube k × h × w", "objective.mask.cube", (8, 12, 12)),
    ("Decoder depth L", "objective.decoder_depth", 2),
]

# Where the paper and its released code disagree, or the paper is silent: what the code does.
RELEASED_CODE = {
    "agent.noisy_std": 0.1,  # the paper: 0.5
    "agent.augment.crop": None,  # the paper: a crop, of which frames of 84 pixels leave nothing to choose
    "agent.support": 10,
    "agent.double": True,
    "agent.clips": None,
    "agent.epsilon": 0,
    "agent.epsilon_decisions": 0,
    "env.noops": 30,
    "evaluation.epsilon": 0.001,
    "evaluation.every": 40_000,  # every 10 000 decisions
    "objective.augment.crop": None,
    "objective.masked_input_scale": "raw255",
    "objective.mask.rounding": "ceil",  # 25 of 49 cells are hidden
    "objective.mask.balanced": True,
    "objective.mask.per_clip": False,
    "objective.mask.fill": 0,
    "objective.decoder_width": None,  # the latent's, 3136
    "objective.projection": "q",
    "objective.prediction": "linear",
    "objective.distance": "2-2cos",
    "objective.norm_floor": 1e-3,
    "objective.init": "torch",
    "objective.count_past_end": True,
}

# Where we follow neither: a bug that contradicts the algorithm, and momentum networks that begin as copies.
OURS = {"agent.late_ends": True, "objective.momentum_init": "copy", "agent.micro_batch": None, "threads": None}


@pytest.mark.parametrize("game", GAMES)
def test_the_paper_profile_is_the_papers_table(game):
    recipe = leaves(find(f"atari/{game}", "paper"))
    expected = {
        path: value.get(game, value["otherwise"]) if isinstance(value, dict) else value for _, path, value in TABLE_13
    }
    expected |= RELEASED_CODE | OURS | {"env.kind": "atari", "env.task": game, "name": f"atari/{game}"}
    assert {path: recipe[path] for path in expected} == expected
    assert recipe["budget.frames"] is recipe["preset"] is None
    assert find(f"atari/{game}", "paper").frames == 400_000


def test_adam_has_the_tables_betas():
    agent = find("atari/pong", "paper", "baseline").agent.build(Spaces((4, 84, 84), 6, True), None, torch.device("cpu"))
    assert agent.optimizer.defaults["betas"] == (0.9, 0.999)  # Table 13: β1, β2


@pytest.mark.parametrize("name", ["atari/alien", "toy/catch"])
@pytest.mark.parametrize("profile", PROFILES)
def test_the_baseline_differs_by_its_objective_alone(name, profile):
    ours, theirs = leaves(find(name, profile)), leaves(find(name, profile, "baseline"))
    assert theirs["objective"] is None
    assert {path: ours[path] for path in theirs if path != "objective"} == {
        path: value for path, value in theirs.items() if path != "objective"
    }


@pytest.mark.parametrize("method", ON_ATARI)
def test_the_lite_profile_changes_what_its_table_names_and_what_is_counted_in_a_budget(method):
    paper, lite = (leaves(find("atari/alien", profile, method)) for profile in PROFILES)
    changed = {path for path in lite if lite[path] != paper[path]}
    counted = {"agent.epsilon_decisions", "objective.ramp_length", "objective.ramp_start", "objective.ramp_stride"}
    counted |= {"objective.augment.crop", "objective.augment.enlarge"}  # CURL's, of smaller frames
    assert changed <= {line.partition("=")[0] for line in LITE} | counted
    assert {"profile", "budget.decisions"} <= changed


@pytest.mark.parametrize("method", ON_ATARI)
@pytest.mark.parametrize("profile", PROFILES)
def test_learning_and_exploring_fit_into_the_budget(profile, method):
    recipe = find("atari/alien", profile, method)
    decisions, agent = recipe.budget.decisions, recipe.agent
    learning = decisions - agent.warmup_decisions
    assert learning >= decisions / 2
    assert agent.epsilon_decisions <= learning
    # β is 1 in the end, and not before nine tenths of the updates; uniform draws have none.
    if agent.priority_exponent is not None:
        assert 0.9 <= agent.correction_updates / (learning * agent.updates_per_decision) <= 1


# ── Relatives of the agent ────────────────────────────────────────────────────────────────────────────────────────────

ALIKE = {"agent.hidden": 512, "agent.batch_size": 32, "agent.discount": 0.99, "agent.adam_epsilon": 1.5e-4}
ALIKE |= {"evaluation.episodes": 100, "env.max_frames": 108_000, "env.noops": 30, "objective": None}
ALIKE |= {"agent.encoder.filters": (32, 64, 64), "agent.encoder.kernels": (8, 4, 3), "agent.encoder.strides": (4, 2, 1)}

DQN = {"agent.returns": "scalar", "agent.noisy_std": None, "agent.priority_exponent": None}
DQN |= {"agent.dueling": True, "agent.double": True, "agent.n_step": 10, "agent.warmup_decisions": 1600}
DQN |= {"agent.updates_per_decision": 1, "agent.target_every": 1, "agent.learning_rate": 1e-4}
DQN |= {"agent.augment.shift": 4, "agent.augment.intensity": 0.05, "agent.epsilon_decisions": 5000}

# Dopamine's configurations for Atari-100k, row by row.
CONFIGURATIONS = {
    "der": {
        **{"agent.returns": "categorical", "agent.atoms": 51, "agent.support": 10, "agent.noisy_std": 0.1},
        **{"agent.dueling": True, "agent.double": True, "agent.priority_exponent": 0.5},
        "agent.n_step": 10,
        "agent.warmup_decisions": 1600,
        "agent.updates_per_decision": 1,
        "agent.target_every": 2000,
        **{"agent.epsilon": 0.01, "evaluation.epsilon": 0.001, "agent.epsilon_decisions": 2000},
        "agent.learning_rate": 1e-4,
        **{"agent.augment.crop": None, "agent.augment.shift": None, "agent.augment.intensity": 0},
    },
    "otr": {
        **{"agent.returns": "categorical", "agent.atoms": 51, "agent.support": 10, "agent.noisy_std": None},
        **{"agent.dueling": False, "agent.double": False, "agent.priority_exponent": 0.5},
        "agent.n_step": 3,
        "agent.warmup_decisions": 20_000,
        "agent.updates_per_decision": 8,
        "agent.target_every": 4000,  # a period of 500 decisions, at 8 updates each
        **{"agent.epsilon": 0.01, "evaluation.epsilon": 0.001, "agent.epsilon_decisions": 50_000},
        "agent.learning_rate": 6.25e-5,
        **{"agent.augment.crop": None, "agent.augment.shift": None, "agent.augment.intensity": 0},
    },
    "drq": {**DQN, "agent.epsilon": 0.1, "evaluation.epsilon": 0.05},
    "drq_eps": {**DQN, "agent.epsilon": 0.01, "evaluation.epsilon": 0.001},
}


@pytest.mark.parametrize("method", RELATIVES)
def test_a_relative_is_its_published_configuration(method):
    recipe = find("atari/qbert", "paper", method)
    expected = ALIKE | CONFIGURATIONS[method] | {"preset": method, "name": "atari/qbert"}
    assert {path: leaves(recipe)[path] for path in expected} == expected
    assert recipe.method == method


@pytest.mark.parametrize("method", RELATIVES)
def test_a_relative_differs_from_the_baseline_by_its_preset_alone(method):
    own, baseline = leaves(find("atari/qbert", "paper", method)), leaves(find("atari/qbert", "paper", "baseline"))
    changed = {path for path in own if own[path] != baseline[path]}
    assert changed == {line.partition("=")[0] for line in AGENTS[method]} - {
        path for path in own if path == "evaluation.epsilon" and own[path] == baseline[path]
    } | {"preset"}


@pytest.mark.parametrize("name", ["dmcontrol/walker-walk", "toy/reach", "toy/catch"])
@pytest.mark.parametrize("method", ["der", "otr", "drq_eps"])
def test_a_relative_of_rainbow_plays_atari_alone(name, method):
    with pytest.raises(ValueError, match=f"method '{method}' .*{name}.* Choose one of mlr, baseline"):
        find(name, "lite", method)


def test_a_relative_can_have_the_objective_and_says_so():
    mlr = find("atari/pong", "paper").objective
    recipe = with_overrides(find("atari/pong", "paper", "der"), ["objective=mlr"], objectives={"mlr": mlr})
    assert recipe.method == "der+mlr"
    assert recipe.objective == mlr
    assert find("atari/pong").method == "mlr"
    assert find("atari/pong", method="baseline").method == "baseline"


# ── Finding ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("typed", "name"),
    [
        ("atari/ALE/Pong-v5", "atari/pong"),
        ("atari/Pong-v5", "atari/pong"),
        ("atari/Pong", "atari/pong"),
        ("atari/UpNDownNoFrameskip-v4", "atari/up_n_down"),
        ("atari/up_n_down", "atari/up_n_down"),
        ("atari/BankHeist", "atari/bank_heist"),
    ],
)
def test_a_game_has_its_name_whoever_spells_it(typed, name):
    assert find(typed, "paper") == find(name, "paper")
    assert find(typed, "paper").name == name
    assert find(typed, "paper").objective.weight == (5 if name in ("atari/pong", "atari/up_n_down") else 1)


def test_every_other_game_of_ale_has_the_settings_of_the_26():
    pytest.importorskip("ale_py")
    recipe = find("atari/SpaceInvaders-v5", "paper")
    assert (recipe.name, recipe.env.task) == ("atari/space_invaders", "space_invaders")
    own, other = leaves(recipe), leaves(find("atari/alien", "paper"))
    assert {path for path in own if own[path] != other[path]} == {"name", "env.task"}
    assert "atari/space_invaders" not in names()
    assert published_for(recipe, 400_000) is None
    assert human_normalised(recipe, 100.0) is None


@pytest.mark.parametrize(
    ("name", "likely"),
    [
        ("atari/pnog", "atari/pong"),
        ("atari/up-n-down", "atari/up_n_down"),
        ("atari/BreakOut", "atari/breakout"),
        ("pong", "atari/pong"),
        ("atari/space_invader", "atari/space_invaders"),
    ],
)
def test_a_game_that_is_not_known_is_refused_with_the_nearest(name, likely):
    if likely == "atari/space_invaders":
        pytest.importorskip("ale_py")
    with pytest.raises(ValueError, match=f"is not known: did you mean {likely}[,? ]"):
        find(name)


def test_the_26_games_are_in_ale():
    roms = pytest.importorskip("ale_py.roms")
    assert set(GAMES) <= set(roms.get_all_rom_ids())
    assert len(GAMES) == 26


# ── Sources ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SOME = ["atari/alien", "atari/pong", "toy/catch"]
CASES = [(name, p, m) for name in SOME for p in PROFILES for m in ON_ATARI if pair_on(name, m)]


@pytest.mark.parametrize(("name", "profile", "method"), CASES)
def test_every_value_has_a_source(name, profile, method):
    recipe = find(name, profile, method)
    explanations = explain(recipe)
    assert {line.path: line.value for line in explanations} == leaves(recipe)
    assert all(line.source and not line.source.startswith("ours: the paper has no ") for line in explanations)
    assert not any(line.source.startswith("override") for line in explanations)


def test_every_game_is_explained_alike():
    def sources(game: str) -> list[tuple[str, str]]:
        return [(line.path, line.source) for line in explain(find(f"atari/{game}", "paper"))]

    assert all(sources(game) == sources("alien") for game in GAMES)


def test_no_source_of_atari_names_dmcontrol_or_its_table():
    for line in explain(find("atari/alien", "paper")):
        words = f"{line.source} {line.conflict}"
        assert "Table 12" not in words, line.path
        assert "DMControl" not in words, line.path


def test_every_source_is_that_of_a_value():
    assert set(sources_of("atari")) <= set(leaves(find("atari/alien", "paper")))


def test_values_of_the_papers_table_say_so():
    sources = {line.path: line.source for line in explain(find("atari/alien", "paper"))}
    exceptions = {"agent.returns"}  # "Distributional Q": a part of Rainbow, like the ones that the table leaves out
    assert [
        path for _, path, _ in TABLE_13 if path not in exceptions and not sources[path].startswith("paper, Table 13")
    ] == []


def test_sources_that_disagree_with_the_value_are_shown():
    lines = {line.path: line for line in explain(find("atari/alien", "paper"))}
    assert lines["agent.noisy_std"].conflict == "paper: 0.5; released code and its command line: 0.1"
    for path in ("agent.late_ends", "objective.masked_input_scale", "objective.mask.rounding", "replay.capacity"):
        assert lines[path].conflict


def why(path, *arguments, overrides=()):
    (line,) = (line for line in explain(with_overrides(find(*arguments), overrides)) if line.path == path)
    return line


def test_what_the_lite_profile_changes_says_so_and_what_it_was():
    for method in ON_ATARI:
        paper, lite = (explain(find("atari/alien", profile, method)) for profile in PROFILES)
        for before, now in zip(paper, lite, strict=True):
            assert now.source.startswith("lite profile: ") == (before.value != now.value), now
    line = why("agent.clips", "atari/alien", "lite")
    assert line[1:] == (8, "lite profile: scaled to a CPU; the paper profile has none", None)


@pytest.mark.parametrize("method", RELATIVES)
def test_what_a_preset_sets_says_so(method):
    paths = {line.partition("=")[0] for line in AGENTS[method]}
    for line in explain(find("atari/alien", "paper", method)):
        assert line.source.startswith(f"{method}: {METHODS[method].source}") == (line.path in paths), line


def test_an_override_says_so_and_what_the_recipe_has():
    def told(path, method, override):
        return why(path, "atari/pong", "paper", method, overrides=[override])[1:]

    assert told("agent.noisy_std", "mlr", "agent.noisy_std=0.5") == (0.5, "override: the recipe has 0.1", None)
    assert told("agent.n_step", "otr", "agent.n_step=5") == (5, "override: the recipe has 3", None)
    assert told("objective.weight", "mlr", "objective.weight=1") == (1, "override: the recipe has 5.0", None)


def test_a_pair_that_was_not_published_has_the_sources_of_its_halves():
    lines = {line.path: line.source for line in explain(find("atari/pong", "paper", agent="der", objective="mlr"))}
    assert lines["objective.mask.ratio"] == "paper, Table 13"
    assert lines["agent.hidden"].startswith("der: ")
    changed = replace(find("atari/pong", "paper", "der"), objective=replace(find("atari/pong").objective, weight=2.0))
    lines = {line.path: line.source for line in explain(changed)}
    assert lines["objective.weight"] == "override: the recipe has 5.0"


def test_a_toy_says_that_it_is_one():
    assert why("agent.hidden", "toy/catch").source == "toy suite: ours, small on purpose"
    assert why("agent.hidden", "toy/catch", overrides=["agent.hidden=9"]).source == "override: the recipe has 64"
    assert why("agent.discount", "toy/catch").source == "paper, Table 13"


# ── Published scores ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("method", "expected_mean", "expected_median"), [("mlr", 0.679, 0.428), ("baseline", 0.498, 0.314)]
)
def test_the_scores_have_the_mean_and_median_over_the_games(method, expected_mean, expected_median):
    recipes = [find(f"atari/{game}", "paper", method) for game in GAMES]
    scores = [human_normalised(recipe, published_for(recipe, recipe.frames).mean) for recipe in recipes]
    assert round(mean(scores), 3) == expected_mean
    assert round(median(scores), 3) == expected_median


def test_a_random_player_is_0_and_a_human_1():
    for game, random, human in (("alien", 227.8, 7127.7), ("boxing", 0.1, 12.1), ("up_n_down", 533.4, 11693.2)):
        recipe = find(f"atari/{game}", "lite")
        assert human_normalised(recipe, random) == 0
        assert human_normalised(recipe, human) == 1
    assert human_normalised(find("atari/pong", "lite"), (-20.7 + 14.6) / 2) == pytest.approx(0.5)
    assert human_normalised(find("toy/catch"), 5.0) is human_normalised(find("dmcontrol/walker-walk"), 5.0) is None


def test_published_scores():
    def of(name: str, method: str, frames: int = 400_000) -> object:
        found = published_for(find(name, "paper", method), frames)
        return found and (found.mean, found.std, found.seeds, found.source)

    assert of("atari/pong", "mlr") == (4.9, 3.1, 3, "paper, Table 5")
    assert of("atari/kung_fu_master", "baseline") == (10517.3, 5026.9, 3, "paper, Table 5")
    assert of("atari/qbert", "der") == (1773.5, None, 100, "paper, Table 5")
    assert of("atari/boxing", "otr") == (1.6, None, 100, "paper, Table 5")
    assert of("atari/alien", "drq") == (734.1, None, 100, "paper, Table 5")
    assert of("atari/alien", "drq_eps") is None
    assert of("atari/pong", "mlr", 100_000) is None  # frames: 25 000 decisions
    assert of("toy/catch", "mlr") is None
    der = find("atari/pong", "paper", "der")
    assert published_for(replace(der, objective=find("atari/pong", "paper").objective), 400_000) is None


def test_published_scores_are_those_of_the_repeat_that_was_used():
    recipe = with_overrides(find("atari/pong", "paper"), ["env.action_repeat=2"])
    assert published_for(recipe, recipe.frames).mean == 4.9  # 100 000 decisions all the same


# ── Running ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SMALL = ["agent.encoder.filters=4,4,4", "agent.hidden=8", "agent.batch_size=2"]
SMALL_MLR = ["objective.clip_length=8", "objective.decoder_width=8", "agent.clips=2"]


def random_replay(recipe: Recipe, decisions: int = 24, actions: int = 3) -> Replay:
    """Frames of noise; an episode ends half way, so that returns and clips meet an end."""
    generator, size, stack = np.random.default_rng(0), recipe.env.size, recipe.env.frame_stack
    replay = Replay(
        frame_shape=(1, size, size),
        action_dim=actions,
        frame_stack=stack,
        capacity=2 * decisions,
        seed=0,
        discrete=True,
        priority_exponent=recipe.agent.priority_exponent,
    )

    def obs():
        return generator.integers(0, 256, (stack, size, size), dtype=np.uint8)

    for step in range(decisions):
        if step % (decisions // 2) == 0:
            replay.begin_episode(obs())
        action, last = np.eye(actions, dtype=np.float32)[step % actions], step % (decisions // 2) == decisions // 2 - 1
        replay.add(action, 1.0, obs(), terminated=last, truncated=False)
    return replay


def takes_a_step(recipe: Recipe) -> None:
    size, stack = recipe.env.size, recipe.env.frame_stack
    agent = recipe.agent.build(Spaces((stack, size, size), 3, discrete=True), recipe.objective, torch.device("cpu"))
    before = [parameter.detach().clone() for parameter in agent.encoder.parameters()]
    metrics = agent.update(random_replay(recipe))
    assert all(torch.isfinite(value) for value in metrics.values())
    assert recipe.objective is None or f"{recipe.objective.kind}/loss" in metrics
    assert not all(torch.equal(a, b) for a, b in zip(before, agent.encoder.parameters(), strict=True))
    actions = agent.policy().act(np.zeros((5, stack, size, size), np.uint8))
    assert actions.shape == (5,)
    assert set(actions) <= {0, 1, 2}


@pytest.mark.parametrize("method", ON_ATARI)
@pytest.mark.parametrize("profile", PROFILES)
def test_every_method_learns_in_both_profiles(profile, method):
    small = [*SMALL, *(SMALL_MLR if method == "mlr" else [])]
    if method == "curl":
        small[0] = "agent.encoder.filters=4,4"
    takes_a_step(with_overrides(find("atari/pong", profile, method), small))


@pytest.mark.parametrize("method", [method for method in ON_ATARI if pair_on("toy/catch", method)])
def test_the_toy_learns_as_it_is(method):
    takes_a_step(find("toy/catch", method=method))


@pytest.mark.parametrize("game", fast_for(GAMES, "alien", "up_n_down"))  # of weight 1 and 5, beside Pong
def test_every_game_is_the_same_agent_so_one_that_learns_is_enough(game):
    for profile in PROFILES:
        for method in ON_ATARI:
            own, other = find(f"atari/{game}", profile, method), find("atari/pong", profile, method)
            assert own.agent == other.agent
            assert (own.objective is None) == (other.objective is None)
            if own.objective is not None:
                assert replace(own.objective, weight=other.objective.weight) == other.objective


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("method", ON_ATARI)
def test_a_recipe_survives_its_json(profile, method):
    recipe = find("atari/up_n_down", profile, method)
    assert from_json(as_json(recipe)) == recipe
