"""What the name of a sweep means."""

import itertools
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from maskrl.recipes import ablation, ablations, find, resolve
from maskrl.recipes.schema import digest
from maskrl.studies.jobs import Job, expand, sweep_names


def kinds(jobs: list[Job]) -> set[tuple[str, str, int]]:
    return {(job.recipe.name, job.recipe.method, job.recipe.seed) for job in jobs}


def test_the_benchmarks_are_as_large_as_the_papers():
    assert len(expand("dmcontrol-100k", profile="paper")) == 6 * 2 * 10
    assert len(expand("atari-100k", profile="paper")) == 26 * 2 * 3
    assert len(expand("toy")) == 2 * 2 * 4
    assert len(expand("dmcontrol/cheetah-run")) == 2 * 10
    assert len(expand("ablations/masking")) == 5 * 6 * 5


@pytest.mark.parametrize(("profile", "frames"), [("paper", 500_000), ("lite", 500_000)])
def test_500k_is_five_times_100k(profile, frames):
    jobs = expand("dmcontrol-500k", seeds=1, profile=profile) + expand("ablations/harder-tasks", profile=profile)
    assert {job.recipe.frames for job in jobs} == {frames}
    assert len(jobs) == 6 * 2 + 2 * 2 * 3


@pytest.mark.parametrize("name", ["toy", "atari/pong", "ablations/variants", "ablations/harder-tasks"])
def test_a_job_is_what_its_words_come_to(name):
    for job in expand(name, seeds=1):
        assert resolve(job.name, job.overrides, profile=job.profile, method=job.method) == job.recipe
        assert job.directory.endswith(f"seed-1-{digest(job.recipe)}")


def test_every_study_of_the_paper_is_a_sweep_with_all_its_rows():
    assert [name[10:] for name in sweep_names() if name.startswith("ablations/")] == list(ablations.STUDIES)
    for key, study in ablations.STUDIES.items():
        task = f"dmcontrol/{study.tasks[0]}"
        rows = [replace(ablation(f"{key}/{row}", task), threads=1) for row in study.rows]
        jobs = expand(f"ablations/{key}", seeds=1, tasks=[task], grid=[f"budget.frames={rows[0].frames}"])
        assert [job.recipe for job in jobs] == rows


def test_runs_that_ablations_share_are_made_once():
    jobs = expand("ablations", seeds=1, tasks=["cheetah-run"])
    rows = sum(len(study.rows) for study in ablations.STUDIES.values())
    assert len({job.directory for job in jobs}) == len({digest(job.recipe) for job in jobs}) == len(jobs) < rows
    # the Baseline, and for the harder tasks the one that is five times as long
    assert [job.recipe.frames // jobs[0].recipe.frames for job in jobs if job.method == "baseline"] == [1, 5]


def test_the_ablations_take_as_many_seeds_as_the_paper_for_each_study():
    jobs = expand("ablations", tasks=["cheetah-run"])
    seeds = {
        kind: [job.recipe.seed for job in some]
        for kind, some in itertools.groupby(jobs, lambda job: job.overrides[:-1])
    }
    assert seeds["objective.mask.strategy=spatial", "threads=1"] == [1, 2, 3, 4, 5]
    assert seeds["objective.mask.ratio=0.9", "threads=1"] == [1, 2, 3]


def test_tasks_methods_and_seeds_can_be_chosen():
    jobs = expand("dmcontrol-100k", seeds=2, methods=["baseline"], tasks=["walker-walk", "dmcontrol/hopper-hop"])
    assert kinds(jobs) == {
        (f"dmcontrol/{task}", "baseline", seed) for task in ("walker-walk", "hopper-hop") for seed in (1, 2)
    }
    assert {job.method for job in expand("ablations/masking", seeds=1, methods=["mlr"])} == {"mlr"}


def test_a_grid_multiplies_and_the_baseline_is_run_once():
    jobs = expand("toy", seeds=2, tasks=["reach"], grid=["objective.mask.ratio=0.1,0.5", "agent.hidden=8,16"])
    assert len(jobs) == (2 * 2 + 2) * 2
    ratios = [(job.recipe.objective.mask.ratio, job.recipe.agent.hidden) for job in jobs if job.recipe.objective]
    assert ratios[::2] == [(0.1, 8), (0.1, 16), (0.5, 8), (0.5, 16)]
    assert jobs[0].directory.startswith("toy/reach/mlr/mask.ratio=0.1+hidden=8/seed-1-")
    jobs = expand("toy", seeds=2, tasks=["reach"], grid=["agent.auxiliary.learning_rate=1e-3,1e-4"])
    assert [job.method for job in jobs] == ["mlr"] * 4 + ["baseline"] * 2
    assert len({job.recipe.agent.auxiliary for job in jobs if job.recipe.objective is None}) == 1


@pytest.mark.parametrize(
    "grid",
    [
        ["objective.mask.cube=4,8,8;2,8,8"],
        ["objective.mask.cube=4,8,8", "objective.mask.cube=2,8,8"],
        ["objective.mask.cube=[4,8,8];[2,8,8]"],
    ],
)
def test_values_with_commas_are_separated_by_semicolons_or_by_the_key(grid):
    jobs = expand("toy", seeds=1, methods=["mlr"], tasks=["reach"], grid=grid)
    assert [job.recipe.objective.mask.cube for job in jobs] == [(4, 8, 8), (2, 8, 8)]


def test_the_same_key_may_take_one_value_or_several_by_the_agent():
    """SAC's encoder has as many filters in every layer, Rainbow's a number for each."""
    jobs = expand("toy", seeds=1, methods=["baseline"], grid=["agent.encoder.filters=4,8"])
    assert [job.recipe.agent.encoder.filters for job in jobs] == [4, 8, (4, 8)]


def test_a_key_is_for_the_runs_that_have_it():
    jobs = expand("toy", seeds=1, methods=["mlr"], grid=["agent.auxiliary.clips=2", "agent.n_step=2"])
    assert [job.overrides[0] for job in jobs] == ["agent.auxiliary.clips=2", "agent.n_step=2"]


def test_seeds_may_be_given_by_number():
    assert [job.recipe.seed for job in expand("toy/reach", methods=["mlr"], grid=["seed=7,3"])] == [7, 3]


def test_a_run_of_a_sweep_has_one_thread_unless_told_otherwise():
    assert find("atari/pong").threads is None
    assert {job.recipe.threads for job in expand("atari/pong")} == {1}
    assert {job.recipe.threads for job in expand("atari/pong", grid=["threads=3"])} == {3}


@given(st.sampled_from(["toy", "toy/reach", "dmcontrol/walker-walk"]), st.integers(1, 4), st.integers(1, 3))
def test_there_are_as_many_runs_as_the_sides_multiply_to(name, seeds, values):
    grid = [f"agent.batch_size={','.join(str(8 * (n + 1)) for n in range(values))}"]
    jobs = expand(name, seeds=seeds, grid=grid)
    assert len({job.directory for job in jobs}) == len(jobs) == (2 if name == "toy" else 1) * 2 * seeds * values


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"name": "dmcontrol-10k"}, "did you mean dmcontrol-100k"),
        ({"name": "masking"}, "did you mean ablations/masking"),
        ({"name": "ablations/maskin"}, "did you mean ablations/masking"),
        ({"name": "dmcontrol/chetah-run"}, "did you mean dmcontrol/cheetah-run"),
        ({"name": "toy", "seeds": 0}, "at least one"),
        ({"name": "toy", "seeds": 2, "grid": ["seed=3"]}, "choose one of the two"),
        ({"name": "toy", "methods": ["mrl"]}, "did you mean mlr"),
        ({"name": "toy", "methods": ["der"]}, "method 'der' is published for atari, not for toy"),
        ({"name": "ablations/masking", "methods": ["der"]}, "not der"),
        ({"name": "toy", "tasks": ["reech"]}, "did you mean toy/reach"),
        ({"name": "toy/reach", "tasks": ["catch"]}, "one task already"),
        ({"name": "toy", "grid": ["objective.mask.ration=0.1"]}, "did you mean ratio"),
        ({"name": "toy", "grid": ["colour=blue"]}, "colour is not a field"),
        ({"name": "toy", "grid": ["ratio"]}, "key=value,value"),
        ({"name": "toy", "grid": ["agent.batch_size=8,many"]}, "whole number"),
        ({"name": "toy", "grid": ["name=x"]}, "another recipe"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_with_advice(arguments, words):
    with pytest.raises(ValueError, match=words):
        expand(**arguments)
