"""The paper's ablations: that all of its rows are here under their labels, what each changes, and that each runs."""

import re
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from maskrl import cli
from maskrl.agents.base import Spaces
from maskrl.analysis.protocol import method_of
from maskrl.nn.encoders import ControlEncoder
from maskrl.objectives.base import Host
from maskrl.recipes import ablation, explain, find, resolve
from maskrl.recipes.ablations import LITE, STUDIES, names, overrides
from maskrl.recipes.overrides import with_overrides
from maskrl.recipes.published import MAIN_TABLES, citations, published_aggregates, published_scores
from maskrl.recipes.schema import leaves
from maskrl.replay.buffer import Replay
from maskrl.runs.directory import encoder_path

PROFILES = ("paper", "lite")
TASK = "dmcontrol/cheetah-run"

# In what a row differs from its task's recipe. Rows that are not here are that recipe.
CHANGES = {
    "MLR-S": {"objective.mask.strategy": "spatial"},
    "MLR-T": {"objective.mask.strategy": "temporal"},
    "MLR-Pixel": {"objective.reconstruct": "pixels"},
    "MLR w.o. ActTok": {"objective.action_tokens": False},
    "MLR-F": {"objective.corrupt": "features"},
    "MLR-MoDec": {"objective.momentum_decoder": True},
    "layers=1": {"objective.decoder_depth": 1},
    "layers=4": {"objective.decoder_depth": 4},
    "layers=8": {"objective.decoder_depth": 8},
    "cosine, no heads": {"objective.projection": "none", "objective.prediction": "none"},
    "cosine, prediction head": {"objective.projection": "none"},
    "mse, both heads": {"objective.distance": "mse"},
    "K=8": {"objective.clip_length": 8},
    "K=24": {"objective.clip_length": 24},
    "ratio=0.1": {"objective.mask.ratio": 0.1},
    "ratio=0.3": {"objective.mask.ratio": 0.3},
    "ratio=0.7": {"objective.mask.ratio": 0.7},
    "ratio=0.9": {"objective.mask.ratio": 0.9},
    "k=2": {"objective.mask.cube": (2, 10, 10)},
    "k=4": {"objective.mask.cube": (4, 10, 10)},
    "k=16": {"objective.mask.cube": (16, 10, 10)},
    "h=w=5": {"objective.mask.cube": (8, 5, 5)},
    "h=w=20": {"objective.mask.cube": (8, 20, 20)},
    "h=w=25": {"objective.mask.cube": (8, 25, 25)},
}
REFERENCE = {  # what the recipe has where a table varies it: the label that is then the recipe itself
    "layers=2": ("objective.decoder_depth", 2),
    "cosine, both heads": ("objective.distance", "2-2cos"),
    "K=16": ("objective.clip_length", 16),
    "ratio=0.5": ("objective.mask.ratio", 0.5),
    "k=8": ("objective.mask.cube", (8, 10, 10)),
    "h=w=10": ("objective.mask.cube", (8, 10, 10)),
}


# ── The paper's rows ──────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_row_of_the_papers_tables_is_here_under_its_label_and_no_other():
    printed = {(line.table, line.method) for line in (*published_scores(), *published_aggregates())}
    ablated = {row for row in printed if row[0] not in MAIN_TABLES or row[0] == "table:challenging_tasks"}
    ours = [(study.table, label) for study in STUDIES.values() if study.table for label in study.rows]
    assert len(ours) == len(set(ours))
    assert set(ours) == ablated


@pytest.mark.parametrize("study", [study for study in STUDIES.values() if study.table], ids=lambda study: study.place)
def test_tasks_times_and_seeds_are_those_of_the_paper(study):
    assert citations()[study.table] == study.place
    cells = [score for score in published_scores() if score.table == study.table]
    if cells:  # Tables 4 and 7 have nothing but means and medians
        assert {score.task for score in cells} == {f"dmcontrol/{task}" for task in study.tasks}
        assert {score.at for score in cells} == set(study.frames)
        assert {score.seeds for score in cells} == {study.seeds}


def test_rows_without_a_number_are_those_of_the_figures_and_say_so():
    figures = {name for name, study in STUDIES.items() if study.table is None}
    assert figures == {"mask-ratio", "cube-depth", "patch"}
    assert {name for name, study in STUDIES.items() if "values: ours" in study.note} == figures
    assert all(STUDIES[name].place.startswith("Figure ") for name in figures)


def test_mlr_pretraining_is_a_baseline_with_an_encoder_of_its_task_and_seed():
    row = ablation("pretraining/MLR-Pretraining", TASK, "paper")
    file = "pretrained/dmcontrol/cheetah-run/seed-{seed}/encoder.safetensors"
    assert row == replace(find(TASK, "paper", "baseline"), encoder_from=file)
    seeds = [encoder_path(replace(row, seed=seed)) for seed in (1, 2)]
    assert seeds == [Path(file.replace("{seed}", seed)) for seed in ("1", "2")]


# ── What a row is ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", names())
def test_a_row_differs_from_the_recipe_in_what_its_label_says(name):
    label, row = name.partition("/")[2], ablation(name, TASK, "paper")
    if label in ("Baseline", "MLR-Pretraining"):
        assert replace(row, encoder_from=None) == find(TASK, "paper", "baseline")
        assert (row.encoder_from is None) == (label == "Baseline")
        return
    plain, own = leaves(find(TASK, "paper")), leaves(row)
    assert {path: own[path] for path in own if own[path] != plain[path]} == CHANGES.get(label, {})
    if label in REFERENCE:
        path, value = REFERENCE[label]
        assert own[path] == value


def test_every_label_is_told_apart():
    labels = {name.partition("/")[2] for name in names()}
    assert labels == {*CHANGES, *REFERENCE, "Baseline", "MLR", "MLR-Auxiliary", "MLR-Pretraining"}


@pytest.mark.parametrize("profile", PROFILES)
@pytest.mark.parametrize("task", ["cheetah-run", "reacher-easy"])  # cubes 8 and 4 steps deep: all that a row reads
def test_a_row_is_what_its_overrides_make_on_the_command_line_and_a_report_can_tell_it_from_the_others(task, profile):
    plain = find(f"dmcontrol/{task}", profile)
    for key, study in STUDIES.items():
        rows = [ablation(f"{key}/{label}", f"dmcontrol/{task}", profile) for label in study.rows]
        typed = [overrides(f"{key}/{label}", plain) for label in study.rows]
        assert [resolve(f"dmcontrol/{task}", lines, profile=profile) for lines in typed] == rows
        assert len({method_of(row) for row in rows}) == len(rows)


def test_a_cube_keeps_the_sides_of_its_task_that_the_row_does_not_vary():
    def cube(name, task, profile):
        return ablation(name, task, profile).objective.mask.cube

    assert cube("patch/h=w=20", "dmcontrol/reacher-easy", "paper") == (4, 20, 20)
    assert cube("patch/h=w=20", "dmcontrol/reacher-easy", "lite") == (4, 16, 16)
    assert cube("patch/h=w=10", "dmcontrol/reacher-easy", "paper") == (4, 10, 10)
    assert cube("cube-depth/k=2", "dmcontrol/reacher-easy", "lite") == (2, 8, 8)


def test_what_the_lite_profile_scales_are_rows_whose_patches_divide_its_frame():
    assert set(LITE) <= set(names())
    sides = [ablation(f"patch/{label}", TASK, "lite").objective.mask.cube[1] for label in STUDIES["patch"].rows]
    assert sides == sorted(set(sides))
    assert all(find(TASK, "lite").env.size % side == 0 for side in sides)


def test_a_row_says_what_it_overrides():
    (line,) = (line for line in explain(ablation("masking/MLR-S", TASK, "paper")) if line.path.endswith("strategy"))
    assert line.source == "override: the recipe has cube"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["masking/mlr-s"], "ablation 'masking/mlr-s' is not known: did you mean masking/MLR-S? `maskrl recipes list"),
        (["clip-length/K=17"], "did you mean clip-length/K=16?"),
        (["xyz"], "ablation 'xyz' is not known. `maskrl recipes list ablations` has them all."),
        (["MLR-MoDec"], "did you mean variants/MLR-MoDec?"),
        (["masking/MLR-S", "dmcontrol/cheeta-run"], "did you mean dmcontrol/cheetah-run, "),
        (["masking/MLR-S", "atari/pong"], "ablations are on DMControl: there are none on atari/pong"),
        (["masking/MLR-S", "toy/reach"], "ablations are on DMControl: there are none on toy/reach"),
    ],
)
def test_what_is_not_known_is_refused(arguments, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        ablation(*arguments)


# ── Running ───────────────────────────────────────────────────────────────────────────────────────────────────────────

SMALL = ["agent.encoder.filters=4", "agent.hidden=8", "agent.batch_size=4", "agent.auxiliary.clips=2"]
ONE_OF_EACH = list(
    {tuple(STUDIES[name.partition("/")[0]].rows[name.partition("/")[2]]): name for name in names()}.values()
)


@cache
def random_replay(size: int, decisions: int = 30, actions: int = 2) -> Replay:
    """One episode of noise, long enough for the longest clip. Every row draws from it, none changes it."""
    generator = np.random.default_rng(0)
    replay = Replay(frame_shape=(3, size, size), action_dim=actions, frame_stack=3, capacity=2 * decisions, seed=0)
    obs = generator.integers(0, 256, (decisions + 1, 9, size, size), dtype=np.uint8)
    replay.begin_episode(obs[0])
    for step in range(decisions):
        action = generator.uniform(-1, 1, actions).astype(np.float32)
        replay.add(action, 1.0, obs[step + 1], terminated=False, truncated=False)
    return replay


@pytest.mark.filterwarnings("ignore:A patch of 2 × 2 does not divide the frame of 9 × 9")  # MLR-F, lite
@pytest.mark.parametrize("profile", [pytest.param("paper", marks=pytest.mark.slow), "lite"])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_row_builds_an_agent_that_learns(name, profile):
    recipe = with_overrides(ablation(name, TASK, profile), SMALL)
    size = recipe.env.size
    agent = recipe.agent.build(Spaces((9, size, size), 2, discrete=False), recipe.objective, torch.device("cpu"))
    before = [parameter.clone() for parameter in agent.encoder.parameters()]
    metrics = agent.update(random_replay(size))
    assert all(torch.isfinite(value) for value in metrics.values())
    assert ("mlr/loss" in metrics) == (recipe.objective is not None)
    assert any(not torch.equal(a, b) for a, b in zip(before, agent.encoder.parameters(), strict=True))


@cache
def full_encoder() -> ControlEncoder:
    return ControlEncoder()


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_row_builds_at_full_size(name):
    recipe = ablation(name, TASK, "paper")
    if recipe.objective is not None:
        objective = recipe.objective.build(Host(full_encoder(), 50, 6, obs_shape=(9, 84, 84)))
        assert objective.needs.clip_length == recipe.objective.clip_length


@pytest.mark.parametrize(("layers", "printed"), [(1, "20.4K"), (2, "40.8K"), (4, "81.6K"), (8, "163.2K")])
def test_the_decoder_has_the_papers_number_of_parameters(layers, printed):
    recipe = ablation(f"decoder-depth/layers={layers}", TASK, "paper")
    mlr = recipe.objective.build(Host(full_encoder(), 50, 6))
    assert f"{sum(parameter.numel() for parameter in mlr.decoder.core.parameters()) / 1000:.1f}K" == printed


# ── The command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def printed(capsys, *arguments: str) -> str:
    with pytest.raises(SystemExit) as end:
        cli.main(arguments)
    assert not end.value.code
    return capsys.readouterr().out


def test_the_ablations_are_listed_with_the_papers_numbers_and_what_to_type(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    out = printed(capsys, "recipes", "list", "ablations")
    assert re.search(r"MLR-S +727\.3 +756\.5 +objective\.mask\.strategy=spatial\b", out)
    assert re.search(r"Baseline +613\.7 +613\.0 +objective=none\b", out)
    assert re.search(r"MLR w\.o\. ActTok +694\.2 +824\.2\* +objective\.action_tokens=false\b", out)
    assert "* MLR w.o. ActTok: the six scores of the column give 824.0." in out
    assert re.search(r"layers=2 +767\.3 +833\.0 +none\b", out)
    assert re.search(r"MLR-Pretraining +468 ± 27 +862 ± 180 +objective=none\b", out)
    assert re.search(r"MLR +624 ± 220 +181 ± 19 +844 ± 129 +576 ± 25 +none\b", out)
    assert all(f"{name}: {study.title}\npaper, {study.place}: " in out for name, study in STUDIES.items())
    plain = find(TASK, "lite")
    assert all(line in out for name in names() for line in overrides(name, plain))
    assert "  maskrl train dmcontrol/cheetah-run objective.mask.strategy=spatial\n" in out
    assert "`maskrl pretrain`" in out.splitlines()[-1]


def test_the_harder_tasks_are_listed_with_the_papers_numbers(capsys):
    out = printed(capsys, "recipes", "list")
    assert re.search(r"dmcontrol/reacher-hard +624 ± 220 +341 ± 275", out)
    assert re.search(r"dmcontrol/walker-run +181 ± 19 +105 ± 47", out)


def test_another_list_is_refused(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["recipes", "list", "ablation"])
    assert end.value.code == 2
    error = capsys.readouterr().err
    assert all(word in error for word in ("'ablation'", "'methods'", "'ablations'"))
