"""The page of published results says what the page of their runs says, and no more than is known."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from maskrl import files
from maskrl.analysis.reading import read
from maskrl.analysis.results import publish
from maskrl.analysis.scores import Scores, ScoresError
from maskrl.recipes import resolve
from maskrl.recipes.schema import Recipe
from maskrl.report import report
from maskrl.report.document import Lines, Report, Section
from maskrl.report.page import render
from maskrl.report.published import Study, study
from maskrl.report.tables import Cell, Table
from written import VERSIONS, write_run

RESULTS = sorted(file.parent for file in (Path(__file__).parents[2] / "results").glob("*/about.json"))
SCORES_ONLY = ("first-run", "first-run-assault")  # of these runs, nothing else was kept
SCORES = {"mlr": (20.0, 22.0, 27.0, 23.0), "baseline": (10.0, 12.0, 13.0, 14.0)}
COST = {"mlr": 3600.0, "baseline": 1800.0}  # processor seconds
MACHINE = {"platform": "Linux", "cpu": "one", "threads": 1}
EVIL = "</script><img src=x onerror=alert(1)>"


def toy(seed: int, method: str) -> Recipe:
    return replace(resolve("toy/reach", method=method), seed=seed)  # type: ignore[arg-type]


def events(method: str, seed: int) -> list[dict[str, Any]]:
    """Probes, and the last evaluation with its processor seconds."""
    probes = [
        {"kind": "probe", "frames": at, "encoder_cosine": 0.5 + seed / 100, "rank": 20.5, "dead": 0.0}
        for at in (1500, 3000)
    ]
    score = SCORES[method][seed - 1]
    cost = {"cpu_seconds": COST[method], "seconds": 2 * COST[method]}
    return [*probes, {"kind": "evaluation", "frames": 3000, "score": score, "returns": [score], **cost}]


def toy_runs(path: Path, seeds: int = 4) -> Path:
    for method in SCORES:
        for seed in range(1, seeds + 1):
            run = write_run(
                path / f"{method}-{seed}",
                toy(seed, method),
                {0: 1.0},
                versions=VERSIONS | MACHINE,
                events=events(method, seed),
            )
            linear = {"r2": 0.25 * seed, "r2_random_encoder": 0.1}
            (run / "probe.json").write_text(json.dumps({"frames": 3000, "linear": linear}))
    return path


def published(path: Path, seeds: int = 4) -> Path:
    publish([toy_runs(path / "runs", seeds)], path / "results", commands=["maskrl sweep toy"])
    return path / "results"


def results_of(study: str) -> Path:
    return Path(__file__).parents[2] / "results" / study


def section(page: Report, key: str) -> Section:
    (found,) = [one for one in page.sections if one.key == key]
    return found


def table(page: Report, key: str) -> Table:
    (found,) = [one for one in page.tables if one.key == key]
    return found


def cells(page: Report, key: str, *without: str) -> list[list[Cell]]:
    """The rows of a table, without these columns."""
    found = table(page, key)
    kept = [index for index, column in enumerate(found.columns) if column.name not in without]
    return [[row[index] for index in kept] for row in found.all_rows]


def lines(page: Report, title: str) -> list[str]:
    blocks = [block for one in page.sections for block in one.blocks if isinstance(block, Lines)]
    return [line.text for block in blocks if block.title.startswith(title) for line in block.lines]


def changed(results: Path, **values: object) -> Path:
    """Change what about.json says."""
    file = results / "about.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | values))
    return results


# ── The same page ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_page_of_published_results_says_what_the_page_of_their_runs_says(tmp_path: Path) -> None:
    results = published(tmp_path)
    theirs, ours = report([tmp_path / "runs"]), report([results])
    assert ours.problems == theirs.problems == ()
    assert ours.headline == theirs.headline  # the verdicts in words
    assert ours.facts == theirs.facts
    ending = "Every run is finished."
    assert theirs.in_short == f"Of 1 comparison, 1 is above. {ending}"
    assert ours.in_short == (
        "Of 1 comparison, 1 is above. Every run here is finished; published results do not say whether more were planned."
    )
    keys = [one.key for one in theirs.tables]
    assert {"what-was-run", "representation", "time", "versions", "runs"} <= set(keys)
    assert [one.key for one in ours.tables] == keys
    for key in keys:
        if key not in ("versions", "runs"):
            assert cells(ours, key) == cells(theirs, key), key
    names = [{row[0].text: row[1].text for row in cells(page, "versions")} for page in (ours, theirs)]
    assert names[0] == names[1] == {name: str(value) for name, value in (VERSIONS | MACHINE).items()}
    by_run = [sorted(map(str, cells(page, "runs", "run"))) for page in (ours, theirs)]
    assert by_run[0] == by_run[1]
    charts = [{chart.key: chart for chart in page.charts} for page in (ours, theirs)]
    assert charts[0] == charts[1]
    assert "probe-curves" in charts[0]


def test_a_page_of_published_results_has_the_cost_beside_the_baseline(tmp_path: Path) -> None:
    page = report([published(tmp_path)])
    names = [column.name for column in table(page, "time").columns]
    rows = {row[2].text: dict(zip(names, (cell.text for cell in row), strict=True)) for row in table(page, "time").rows}
    told = ("finished", "hours per run", "processor hours", "× baseline", "frames per second")
    assert [rows["mlr"][name] for name in told] == ["4", "2.00", "1.00", "2.00", "0.4"]
    assert [rows["baseline"][name] for name in told] == ["4", "1.00", "0.50", "1.00", "0.8"]
    words = section(page, "time").words
    assert words[0].startswith("The time of whole runs over all sessions, evaluations included. ")
    assert "evaluations" not in names
    assert "Published results do not say where the time went." in words
    assert not [chart for chart in page.charts if chart.kind == "bars"]


@pytest.mark.parametrize("methods", [("mlr",), ("mlr", "baseline")])
def test_times_of_rows_without_updates_may_lack_evaluations(tmp_path: Path, methods: tuple[str, ...]) -> None:
    results = published(tmp_path)
    names, *rows = [line.split(",") for line in (results / "scores.csv").read_text().splitlines()]
    for row in rows:
        row[names.index("updates")] = "" if row[0] in methods else row[names.index("updates")]
    (results / "scores.csv").write_text("\n".join(",".join(row) for row in (names, *rows)) + "\n")
    page = report([results])
    found = table(page, "time")
    place = [column.name for column in found.columns].index("evaluations")
    told = {row[2].text: row[place].text for row in found.rows}
    assert told == {method: "unknown" if method in methods else "included" for method in SCORES}
    assert not any(column.name == "× baseline" for column in found.columns)
    first, second, *_ = section(page, "time").words
    included = " over all sessions, evaluations included unless the table says “unknown”" if len(methods) == 1 else ""
    assert first == f"The time of whole runs{included}. It depends on the machine and its load."
    assert "do not say whether their times include evaluations" in second


def test_the_times_of_other_programs_are_not_compared_with_the_baseline(tmp_path: Path) -> None:
    published(tmp_path)
    cost = {"kind": "evaluation", "frames": 3000, "score": 20.0, "returns": [20.0], "cpu_seconds": 2700.0}
    write_run(tmp_path / "curl", toy(1, "curl"), {0: 1.0}, versions=VERSIONS | MACHINE, events=[cost])
    publish([tmp_path / "runs", tmp_path / "curl"], tmp_path / "results")
    results = without(tmp_path / "results", "updates", range(10, 18))  # the rows of MLR
    found = table(report([results]), "time")
    names = [column.name for column in found.columns]
    rows = {row[2].text: dict(zip(names, (cell.text for cell in row), strict=True)) for row in found.rows}
    assert {method: (row["evaluations"], row["× baseline"]) for method, row in rows.items()} == {
        "baseline": ("included", "1.00"),
        "curl": ("included", "1.50"),
        "mlr": ("unknown", "–"),
    }


def test_a_run_in_a_directory_and_published_is_one_run(tmp_path: Path) -> None:
    published(tmp_path)
    page = report([tmp_path])
    assert page.facts[0] == ("8", "runs")
    assert len(table(page, "runs").rows) == 8
    (cosine, _) = [row[3].text for row in table(page, "representation").rows]
    assert cosine == "0.525 ± 0.013 (4)"


def test_every_file_of_published_results_is_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results, names = published(tmp_path, 1), list[str]()
    opened = files.open_file
    monkeypatch.setattr(
        files,
        "open_file",
        lambda folder, name, *rest, **more: names.append(name) or opened(folder, name, *rest, **more),
    )
    report([results, results / "scores.csv"])
    assert sorted(names) == ["about.json", "probes.csv", "scores.csv"]


def test_a_budget_in_decisions_is_one_in_published_results_too(tmp_path: Path) -> None:
    recipe = replace(toy(1, "mlr"), budget=replace(toy(1, "mlr").budget, frames=None, decisions=3000))
    write_run(tmp_path / "runs", recipe, {0: 1.0, 3000: 20.0})
    publish([tmp_path / "runs"], tmp_path / "results")
    assert (
        table(report([tmp_path / "results"]), "runs").rows[0][-2:]
        == table(report([tmp_path / "runs"]), "runs").rows[0][-2:]
    )


def without(results: Path, column: str, rows: range) -> Path:
    """Empty a column in some rows of scores.csv, from the first row, 0."""
    names, *every = [line.split(",") for line in (results / "scores.csv").read_text().splitlines()]
    for row in (every[place] for place in rows):
        row[names.index(column)] = ""
    (results / "scores.csv").write_text("\n".join(",".join(row) for row in (names, *every)) + "\n")
    return results


def test_rows_without_the_unit_of_their_budget_are_left_out(tmp_path: Path) -> None:
    results = without(published(tmp_path), "frames", range(0, 8, 2))  # the rows at 0 frames of the Baseline
    page = report([results])
    assert page.problems == (
        f"{results / 'scores.csv'}, line 2 and 3 more: frames is missing, the unit of the budget in about.json "
        "(baseline,toy/reach,1,,0,0,1.0,0.0,,). Left out.",
    )
    assert {(row[4].text, row[5].text, row[7].text) for row in table(page, "runs").rows} == {
        ("done", "3,000", "frames")
    }
    rest = without(results, "frames", range(16))
    with pytest.raises(ScoresError, match="line 2 and 15 more: frames is missing"):
        report([rest])


def test_scores_that_end_before_the_budget_do_not_make_a_run_done(tmp_path: Path) -> None:
    results = without(published(tmp_path), "frames", range(15, 16))  # the last row of MLR's fourth seed
    page = report([results])
    (row,) = [row for row in table(page, "runs").rows if (row[2].text, row[3].text) == ("mlr", "4")]
    assert [cell.text for cell in row[4:7]] == ["unknown", "0", "3,000"]
    assert row[4].note == "its scores end before its budget"
    assert "unfinished" not in dict(map(reversed, page.facts))  # type: ignore[arg-type]
    assert lines(page, "Failed") == []
    finished = {row[2].text: row[4].text for row in table(page, "time").rows}
    assert finished == {"baseline": "4", "mlr": "3"}
    assert any("seed 4" in problem and "has no score at 3000 frames" in problem for problem in page.problems)


def test_the_time_of_a_run_is_that_of_its_latest_row(tmp_path: Path) -> None:
    results = published(tmp_path)
    names, *rows = (results / "scores.csv").read_text().splitlines()
    (results / "scores.csv").write_text("\n".join([names, *reversed(rows)]) + "\n")
    probed, *probes = (results / "probes.csv").read_text().splitlines()
    (results / "probes.csv").write_text("\n".join([probed, *reversed(probes)]) + "\n")
    ours, theirs = report([results]), report([tmp_path / "runs"])
    for key in ("time", "representation"):
        assert cells(ours, key) == cells(theirs, key), key
    (fact,) = [fact for fact in study_of(results).facts if fact.run.name == "mlr on toy/reach, seed 1"]
    assert (fact.frames, fact.seconds, fact.cpu_seconds) == (3000, 7200, 3600)
    assert [probe["frames"] for probe in fact.probes] == [1500, 3000]


def study_of(folder: Path) -> Study:
    (results,) = read([folder]).results
    return study(results)


@pytest.mark.parametrize(
    "results", [path for path in RESULTS if path.name not in SCORES_ONLY], ids=lambda path: path.name
)
def test_every_published_result_of_this_repository_gives_a_page(results: Path) -> None:
    page = report([results])
    assert render(page).startswith("<!doctype html>")
    keys = {one.key for one in page.sections}
    assert {"time", "versions"} <= keys
    assert ("representation" in keys) is (results / "probes.csv").exists()
    differs = [row[-1].text for row in table(page, "what-was-run").rows]
    assert not any("CSV" in text or "cannot be read" in text for text in differs)
    assert {row[4].text for row in table(page, "runs").rows} == {"done"}
    assert not re.search(r"Every run is finished", page.in_short)
    assert not re.search(r"[0-9a-f]{64}", render(page))


@pytest.mark.parametrize("study", SCORES_ONLY)
def test_published_scores_without_recipes_give_a_page_that_says_what_is_missing(study: str) -> None:
    page = report([results_of(study)])
    assert render(page).startswith("<!doctype html>")
    assert [text for text in page.problems if " has no recipe of mlr on " in text] == list(page.problems) != []
    assert {row[4].text for row in table(page, "runs").rows} == {"unknown"}
    assert "time" not in {one.key for one in page.sections}


def test_results_of_own_environments_have_short_digests_and_no_problems() -> None:
    page = report([results_of("own-environments")])
    (title,) = [group.title for group in page.headline if "crafter" in group.title]
    assert re.search(r" · env\.sha256=[0-9a-f]{8} · ", title)
    assert page.problems == ()


# ── What is not known ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_seeds_that_a_method_lacks_are_missing_runs_in_the_summary(tmp_path: Path) -> None:
    results = published(tmp_path)
    scores = (results / "scores.csv").read_text()
    (results / "scores.csv").write_text(re.sub(r"mlr,toy/reach,[34],.*\n", "", scores))
    page = report([results])
    assert page.in_short == "Of 1 comparison, 1 is without a verdict. 2 missing runs: see Gaps."
    assert lines(page, "Missing runs") == ["Toys · 3,000 frames: mlr lacks seeds 3–4, which others have, on reach."]
    assert lines(page, "Published results") == [
        f"{results} holds 6 runs, made by maskrl sweep toy. Runs that were not finished are not in it."
    ]


def test_nobody_says_that_the_runs_of_a_csv_are_finished(tmp_path: Path) -> None:
    file = tmp_path / "scores.csv"
    file.write_text("method,task,seed,frames,score\nmlr,toy/reach,1,3000,20\nbaseline,toy/reach,1,3000,10\n")
    page = report([file])
    assert page.in_short.endswith("Whether every run is finished is unknown: a CSV does not say it.")
    assert "unfinished" not in dict(map(reversed, page.facts))  # type: ignore[arg-type]
    (told,) = section(page, "gaps").words
    assert told == "No method lacks a seed or a task. Whether every run is finished is unknown: a CSV does not say it."


def test_a_recipe_of_another_version_is_unknown(tmp_path: Path) -> None:
    results = published(tmp_path)
    recipes = json.loads((results / "about.json").read_text())["recipes"]
    recipes[1]["recipe"]["agent"]["kind"] = "of-tomorrow"
    page = report([changed(results, recipes=recipes)])
    (problem,) = [line for line in page.problems if "about.json" in line]
    assert "recipe 2 cannot be read by this version of maskrl" in problem
    assert problem in lines(page, "Problems")
    rows = {row[0].text: row[-1].text for row in table(page, "what-was-run").rows}
    assert rows["mlr"] == "unknown: its recipe cannot be read"
    states = {(row[2].text, row[4].text, row[6].text) for row in table(page, "runs").rows}
    assert states == {("baseline", "done", "3,000"), ("mlr", "unknown", "–")}
    assert "finished" not in page.in_short


def test_a_baseline_whose_recipe_is_unknown_has_tasks_in_common(tmp_path: Path) -> None:
    results = published(tmp_path)
    recipes = json.loads((results / "about.json").read_text())["recipes"]
    rows = table(report([changed(results, recipes=recipes[1:])]), "what-was-run").rows
    assert {row[0].text: row[-1].text for row in rows} == {
        "baseline": "unknown: its recipe cannot be read",
        "mlr": "unknown: the recipe of baseline cannot be read",
    }


def test_a_method_whose_recipe_is_known_on_another_task_only(tmp_path: Path) -> None:
    write_run(tmp_path / "b", toy(1, "baseline"), {3000: 1.0})
    write_run(tmp_path / "m", resolve("toy/catch", ["budget.frames=3000"]), {3000: 1.0})
    file = tmp_path / "scores.csv"
    file.write_text("method,task,seed,frames,score\nmlr,toy/reach,1,3000,20\n")
    rows = table(report([tmp_path], mixed=True), "what-was-run").rows
    assert {row[0].text: row[-1].text for row in rows}["mlr"] == "no task in common with baseline"
    rows = table(report([tmp_path, file], mixed=True), "what-was-run").rows
    assert {row[0].text: row[-1].text for row in rows}["mlr"] == "unknown: mlr is from a CSV"


def test_one_recipe_for_several_methods_does_not_say_how_they_differ(tmp_path: Path) -> None:
    results = published(tmp_path)
    recipes = json.loads((results / "about.json").read_text())["recipes"]
    recipes[0]["recipe"] = recipes[1]["recipe"]
    rows = {
        row[0].text: row[-1].text for row in table(report([changed(results, recipes=recipes)]), "what-was-run").rows
    }
    assert rows["mlr"] == "unknown: the recipe published for baseline is mlr’s"


def test_machines_that_differ_are_a_choice(tmp_path: Path) -> None:
    machines = [MACHINE, {"cpu": "other", "threads": 1}]
    page = report([changed(published(tmp_path), machines=machines)])
    rows = [(row[0].text, row[1].text, row[1].mark) for row in table(page, "versions").rows]
    assert rows[0] == ("cpu", "one or other", "warn")
    assert ("threads", "1", "") in rows
    assert section(page, "versions").words == (
        "Published results do not say which run was made on which of their machines.",
    )


def test_machines_with_two_simulators_do_not_say_whose_version_a_run_has(tmp_path: Path) -> None:
    recipe = resolve("dmcontrol/reacher-easy", profile="paper")
    write_run(tmp_path / "runs", recipe, {100_000: 900.0}, versions=VERSIONS | MACHINE)
    publish([tmp_path / "runs"], tmp_path / "results")
    (known,) = Scores.read(tmp_path / "results").runs
    assert known.protocol["mujoco"] == VERSIONS["mujoco"]
    (unknown,) = Scores.read(changed(tmp_path / "results", machines=[{"mujoco": "3.4.0"}])).runs
    assert "mujoco" not in unknown.protocol
    assert unknown.protocol["dm_control"] == VERSIONS["dm_control"]


def test_versions_of_published_runs_are_counted_by_runs(tmp_path: Path) -> None:
    results = published(tmp_path)  # 8 runs, which share one mapping of versions
    write_run(tmp_path / "other", toy(9, "mlr"), {3000: 20.0}, versions=VERSIONS | {"torch": "2.11.0"})
    rows = {row[0].text: row[1].text for row in table(report([results, tmp_path / "other"]), "versions").rows}
    assert rows["torch"] == "2.10.0 (8), 2.11.0 (1)"


# ── Folders from strangers ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("values", "problem"),
    [
        ({"recipes": None}, "it has no list of recipes"),
        ({"recipes": {"a": 1}}, "it has no list of recipes"),
        ({"recipes": []}, "has no recipe of baseline on toy/reach; mlr on toy/reach"),
        (
            {"recipes": ["text", 5, None]},
            "recipe 2 cannot be read by this version of maskrl (expected an object with method, "
            "task and recipe, got 5). It is unknown.",
        ),
        (
            {"recipes": [{"method": []}]},
            "recipe 1 cannot be read by this version of maskrl (method: expected a text, got [])",
        ),
        ({"recipes": [{"method": "mlr"}]}, "(task: expected a text, got nothing)"),
        ({"recipes": [{"method": "m", "task": "t", "recipe": 5}]}, "(A recipe: expected a group of name, "),
        ({"recipes": [["a"] * 50]}, 'task and recipe, got ["a", "a", "a", "a", "a", "a", "a", "a",…). It is unknown.'),
        ({"recipes": [{}] * 3000}, "has 3,000 recipes, of which the first 2,000 were read"),
        ({"versions": [1]}, "does not say the versions of these runs: expected an object, got [1]."),
        ({"versions": {"a": "x" * 1000, "b": [1], "y" * 1000: 1, "torch": "2"}}, "3 of its versions cannot be read"),
        ({"machines": [{f"key {index}": index for index in range(10_000)}] * 3}, None),
        ({"commands": [EVIL, 5, "y" * 10_000] * 1000}, None),
        ({"commands": 5, "machines": 7, "runs": "many"}, None),
    ],
)
def test_a_malformed_about_is_unknown(tmp_path: Path, values: dict[str, object], problem: str | None) -> None:
    page = report([changed(published(tmp_path, 2), **values)])
    text = render(page)
    assert "<img" not in text
    assert len(text) < 200_000
    assert page.facts[0] == ("4", "runs")
    if problem is None:
        assert page.problems == ()
    else:
        assert any(problem in line for line in lines(page, "Problems"))


def test_many_unreadable_recipes_are_counted(tmp_path: Path) -> None:
    page = report([changed(published(tmp_path, 1), recipes=[{}] * 1500)])
    told = [line for line in lines(page, "Problems") if "cannot be read" in line]
    assert len(told) == 6
    assert told[-1].endswith("about.json: 1,495 more recipes cannot be read.")


def test_an_about_that_is_no_json_leaves_the_scores(tmp_path: Path) -> None:
    texts = {
        "{": "it is not JSON (Expecting property name",
        "": "it is not JSON (Expecting value: line 1 column 1 (char 0)).",
        "[" * 100_000: "it is nested too deeply.",
        '{"recipes": ' + '{"a":' * 50_000: "it is nested too deeply.",
        "5": "expected an object, got 5.",
        "[]": "expected an object, got [].",
        "{}": "it has no list of recipes.",
    }
    for number, (text, why) in enumerate(texts.items()):
        folder = tmp_path / str(number)
        (published(folder, 1) / "about.json").write_text(text)
        page = report([folder / "results"])
        (problem,) = page.problems
        assert problem.startswith(f"{folder / 'results' / 'about.json'} does not say how these scores were made: {why}")
        assert [row[-1].text for row in table(page, "what-was-run").rows] == ["unknown: its recipe cannot be read"] * 2


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ("mlr,toy/reach,1,3000,high,,20,0,,", "probes.csv, line 18: cannot be read"),
        ("mlr,toy/reach,one,3000,0.5,,20,0,,\nmlr", "probes.csv, line 18 and 1 more: cannot be read"),
        ("mlr,toy/reach,1,3e,0.5,,20,0,,", "probes.csv, line 18: cannot be read"),
        (f"{EVIL},toy/reach,1,3000,0.5,,20,0,,", None),
        (f"mlr,toy/reach,1,{'9' * 400},0.5,,20,0,,", "probes.csv, line 18: cannot be read"),
        ("mlr,toy/reach,1,3001,nan,inf,1e300,-inf,,", None),
        ("mlr,toy/reach,1,3001,,,,,,,,,,,,,,", None),
        ("\0" * 200_000, "probes.csv"),
        (f'"{"a" * 200_000}"', "probes.csv cannot be read as a CSV"),
    ],
)
def test_a_malformed_probe_is_unknown(tmp_path: Path, row: str, problem: str | None) -> None:
    results = published(tmp_path)
    with (results / "probes.csv").open("a") as file:
        file.write(f"{row}\n")
    page = report([results])
    text = render(page)
    assert "<img" not in text
    assert "NaN" not in text
    if problem is None:
        assert page.problems == ()
    else:
        assert any(problem in line for line in lines(page, "Problems"))
    if problem is None or "line" in problem:
        assert table(page, "representation").rows[0][3].text == "0.525 ± 0.013 (4)"


@pytest.mark.parametrize("text", [b"", b"frames\n", b"\xff\xfe", b"a,b\n1,2\n"])
def test_a_table_of_probes_of_another_kind_is_unknown(tmp_path: Path, text: bytes) -> None:
    results = published(tmp_path, 1)
    (results / "probes.csv").write_bytes(text)
    page = report([results])
    assert any("probes.csv" in line for line in lines(page, "Problems"))
    assert "representation" not in {one.key for one in page.sections}


def test_times_of_another_kind_are_unknown(tmp_path: Path) -> None:
    results = published(tmp_path, 1)
    scores = (results / "scores.csv").read_text()
    wrong = scores.replace(",7200.0,3600.0,", f",{EVIL},inf,").replace(",3600.0,1800.0,", ",3600.0,1e999,")
    (results / "scores.csv").write_text(wrong)
    page = report([results])
    assert page.problems == ()
    found = table(page, "time")
    assert [(row[2].text, row[5].text) for row in found.rows] == [("baseline", "1.00")]
    assert not any("processor" in column.name for column in found.columns)
    assert "<img" not in render(page)
