"""A study is the page that people read: its blocks are what is run."""

from pathlib import Path

import pytest

from calling import called
from maskrl.recipes.schema import digest
from maskrl.studies.jobs import expand
from maskrl.studies.registered import LARGEST, page_of, read

PAGE = """# A question

It takes some runs.

```sweep
toy --methods mlr,baseline --profile lite seed=11,12
toy/reach seed=11,12 objective.every=1,2 --methods=mlr \\
    --profile lite  # the first of the two is a run of the line above
```

```python
print("is not run")
```
"""


@pytest.fixture
def study(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "studies").mkdir()
    (tmp_path / "studies" / "one.md").write_text(PAGE)
    return "studies/one"


def test_a_study_is_the_runs_of_its_sweeps_each_once(study: str):
    jobs = expand(study)
    first = expand("toy", methods=["mlr", "baseline"], profile="lite", grid=["seed=11,12"])
    second = expand("toy/reach", methods=["mlr"], profile="lite", grid=["seed=11,12", "objective.every=1,2"])
    wanted = {digest(job.recipe) for job in (*first, *second)}
    assert [digest(job.recipe) for job in jobs[: len(first)]] == [digest(job.recipe) for job in first]
    assert {digest(job.recipe) for job in jobs} == wanted
    assert len(jobs) == len(wanted) == 2 * 2 * 2 + 2
    assert expand(f"{study}.md") == jobs


@pytest.mark.parametrize(
    "more", [{"seeds": 2}, {"methods": ["mlr"]}, {"tasks": ["reach"]}, {"grid": ["seed=1"]}, {"profile": "lite"}]
)
def test_a_study_takes_nothing_but_its_name(study: str, more):
    with pytest.raises(ValueError, match="defines the runs"):
        expand(study, **more)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("# No block", "has no block"),
        ("```sweep\n\n```", "has no block"),
        ("```sweep\ntoy --out /\n```", "--out is not an option of a study"),
        ("```sweep\ntoy catch\n```", "'catch' comes after 'toy'"),
        ("```sweep\nseed=1\n```", "names no sweep"),
        ("```sweep\ntoy 'seed=1\n```", "cannot be read: No closing quotation"),
        ("```sweep\ntoy --profile large\n```", "--profile is one of"),
        ("```sweep\ntoy --seeds many\n```", "--seeds is a number"),
        ("```sweep\nstudies/one\n```", "names another study"),
        ("```sweep\nnothing-like-it\n```", "'nothing-like-it' is not known"),
        ("x" * (LARGEST + 1), "the maximum is 1,000,000"),
    ],
)
def test_a_page_that_cannot_be_run_says_why(study: str, text: str, complaint: str):
    Path(f"{study}.md").write_text(text)
    with pytest.raises(ValueError, match=complaint):
        expand(study)


def test_a_study_that_is_not_there_is_named_and_other_names_are_not_studies(study: str):
    with pytest.raises(ValueError, match=r"studies/two\.md cannot be read: No such file"):
        expand("studies/two")
    assert page_of("toy/reach") is None
    assert page_of("dmcontrol-100k") is None
    assert len(read(Path("studies/one.md"))) == 2


def test_the_plan_of_a_study_prints_a_command_that_is_taken(study: str):
    code, printed = called(["plan", study, "--quick"])
    assert code == 0
    assert printed.rstrip().endswith(f"  maskrl sweep {study}")  # with a --profile it would be refused
