import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from maskrl import recipes
from maskrl.analysis import statistics
from maskrl.analysis.reading import RunScores
from maskrl.analysis.scores import Scores
from maskrl.cli import main
from maskrl.clock import Clock
from maskrl.recipes.published import PublishedScore, published, published_scores
from maskrl.report import plots
from maskrl.report.figures import COLOURS, Figures, Width, entries_across, styles
from maskrl.report.paper import estimates, methods_of, spread_row
from maskrl.report.plots import draw, draw_published
from maskrl.runs.directory import Run

pytest.importorskip("matplotlib")
Image = pytest.importorskip("PIL.Image")

TASKS = ("dmcontrol/cheetah-run", "dmcontrol/walker-walk")
EVERY = {"curves", "tasks", "aggregates", "profiles", "improvement", "efficiency"}


def some_scores(
    *,
    methods: tuple[str, ...] = ("mlr", "baseline"),
    tasks: tuple[str, ...] = TASKS,
    seeds: int = 3,
    end: int = 100_000,
) -> Scores:
    """Straight lines from 0 to 600 and 400 points, a seed 10 points above the one before."""
    runs = [
        RunScores(
            method, task, seed, "frames",
            tuple((at, (600 - 200 * place + 10 * seed) * at / end) for at in range(0, end + 1, end // 5)),
            {"budget.frames": end, "budget.decisions": None, "profile": "paper"}, f"{method}-{seed}",
        )
        for place, method in enumerate(methods) for task in tasks for seed in range(1, seeds + 1)
    ]  # fmt: skip
    return Scores(tuple(runs))


def names(files: list[Path]) -> set[str]:
    return {file.stem for file in files}


def kinds(files: list[Path]) -> set[str]:
    return {file.stem.partition("-")[0] for file in files}


def has_colour(file: Path, colour: str) -> bool:
    rgb = [int(colour[i : i + 2], 16) for i in (1, 3, 5)]
    with Image.open(file) as picture:
        distance = np.abs(np.asarray(picture.convert("RGB")).astype(int) - rgb).max(axis=-1)
    return bool((distance <= 3).any())


# ── what is drawn ─────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("width", ["single", "double"])
def test_two_methods_give_every_figure_at_its_width(tmp_path: Path, width: Width):
    figures = draw(some_scores(), tmp_path, format="png", width=width)
    assert figures.problems == []
    assert names(figures.files) == {f"{kind}-dmcontrol" for kind in EVERY}
    for file in figures.files:
        with Image.open(file) as picture:
            assert picture.width == round(300 * {"single": 3.3, "double": 6.8}[width])
    for colour in (COLOURS["mlr"], COLOURS["baseline"]):
        assert has_colour(tmp_path / "curves-dmcontrol.png", colour)
        assert has_colour(tmp_path / "profiles-dmcontrol.png", colour)


@pytest.mark.slow
def test_the_same_scores_give_the_same_bytes_whatever_the_time_and_the_process(tmp_path: Path):
    scores = some_scores(tasks=TASKS[:1])
    rows = [f"{r.method},{r.task},{r.seed},{at},{score}" for r in scores.runs for at, score in r.curve]
    (tmp_path / "scores.csv").write_text("\n".join(["method,task,seed,frames,score", *rows]))
    code = "import sys; from maskrl.cli import main; main(sys.argv[1:])"
    for folder, chance in (("a", "1"), ("b", "2")):
        environment = os.environ | {"PYTHONHASHSEED": chance, "TZ": f"UTC+{chance}"}
        words = ["plot", str(tmp_path / "scores.csv"), "--out", str(tmp_path / folder)]
        subprocess.run([sys.executable, "-c", code, *words], env=environment, check=True, capture_output=True)
    files = sorted((tmp_path / "a").iterdir())
    assert kinds(files) == EVERY
    for file in files:
        assert file.read_bytes() == (tmp_path / "b" / file.name).read_bytes()
        assert b"CreationDate" not in file.read_bytes()


def test_text_stays_text_in_a_pdf(tmp_path: Path):
    figures = Figures(tmp_path)
    with figures.figure("one", 1.0) as figure:
        figure.subplots().set_title("Naïve τ")
    content = (tmp_path / "one.pdf").read_bytes()
    assert b"/Type0" in content  # a TrueType font, which is Type 42
    assert b"/Type3" not in content
    assert [file.name for file in tmp_path.iterdir()] == ["one.pdf"]  # and nothing half written


@pytest.mark.slow
def test_the_paper_alone_is_redrawn(tmp_path: Path):
    figures = draw_published(tmp_path, format="png")
    tables = ("dmcontrol-100k", "dmcontrol-500k", "atari-100k")
    assert names(figures.files) == {
        f"{kind}-{table}" for kind in ("tasks", "aggregates", "profiles") for table in tables
    }
    assert figures.problems == []


def papers_cells(tasks: list[str], at: int) -> list[PublishedScore]:
    cells = [published(task, at, method) for task in tasks for method in methods_of(published_scores())]
    return [cell for cell in cells if cell is not None]


def test_the_papers_numbers_are_its_own_means_and_the_aggregates_that_it_prints():
    tasks = [f"dmcontrol/{task}" for task in recipes.dmcontrol.PAPER_TASKS]
    control = estimates(papers_cells(tasks, 100_000), statistics.EVERYWHERE, simulated=False)
    assert float(control["MLR"]["mean"].value) == pytest.approx(0.7728, abs=1e-4)  # 772.8 in Table 1
    assert "iqm" not in control["MLR"]  # the paper has none here
    assert "SLAC" not in control  # of which the paper has only some of the tasks
    games = [f"atari/{game}" for game in recipes.atari.GAMES]
    atari = estimates(papers_cells(games, 100_000), statistics.EVERYWHERE, simulated=False)
    assert float(atari["MLR"]["iqm"].value) == 0.432  # of runs; its game means would give 0.435
    few = estimates(papers_cells(games[:5], 100_000), statistics.EVERYWHERE, simulated=False)
    assert set(few["MLR"]) == {"mean", "median"}  # what is printed is of all games


def test_a_misprinted_spread_is_not_drawn():
    cell = published("dmcontrol/walker-walk", 500_000, "DrQ")
    assert cell is not None
    assert cell.misprint
    assert spread_row(cell) == {"name": "DrQ", "value": cell.mean, "low": None, "high": None}


def test_sample_efficiency_is_the_interquartile_mean_at_the_times_that_all_runs_have():
    scores = some_scores(methods=("mlr",), tasks=TASKS[:1], seeds=2).normalised()
    times, found = plots.over_time(scores, "mlr", TASKS[:1])
    assert times == [0, 20_000, 40_000, 60_000, 80_000, 100_000]
    # Two runs, of which a quarter is none: the mean of 610 and 620 points of 1000.
    assert [float(one.value) for one in found] == pytest.approx([0.615 * step / 5 for step in range(6)])


def test_sample_efficiency_is_of_the_runs_in_the_aggregates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of three seeds the first was broken off: the second and third are in both figures."""
    runs = some_scores(methods=("mlr",), tasks=TASKS[:1]).runs
    given, real = list[Scores](), plots.over_time
    monkeypatch.setattr(plots, "over_time", lambda scores, *others: (given.append(scores), real(scores, *others))[1])
    draw(Scores((replace(runs[0], curve=runs[0].curve[:3]), *runs[1:])), tmp_path, format="png")
    assert [run.seed for run in given[0].runs] == [2, 3]


def test_a_method_has_the_same_colour_everywhere_and_no_two_look_alike():
    few, many = (
        styles(["mlr", "x"]),
        styles(["mlr", "Baseline", "DrQ", "CURL", "SPR", "x", *(f"z{n}" for n in range(20))]),
    )
    assert few["mlr"] == many["mlr"] == (COLOURS["mlr"], "-")
    assert few["x"] == many["x"]
    assert len(set(many.values())) == len(many)
    assert styles(["MLR", "mlr"]) == {"MLR": few["mlr"], "mlr": (COLOURS["mlr"], "--")}


class Drawn(NamedTuple):
    """What the figures were asked to show."""

    legends: list[dict[str, str]]  # label → colour
    rows: list[tuple[str, str, dict[str, Any]]]  # figure, panel, row of an interval


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> Drawn:
    seen, legend, intervals = Drawn([], []), Figures._legend, plots._intervals

    def spy_legend(figures: Figures, figure: Any, entries: Any) -> None:
        seen.legends.append({label: line.get_color() for label, line in entries.items()})
        legend(figures, figure, entries)

    def spy_intervals(figures: Figures, name: str, panels: Any) -> None:
        seen.rows.extend((name, panel["title"], row) for panel in panels for row in panel["rows"])
        intervals(figures, name, panels)

    monkeypatch.setattr(Figures, "_legend", spy_legend)
    monkeypatch.setattr(plots, "_intervals", spy_intervals)
    return seen


@pytest.mark.parametrize("methods", [tuple(f"mlr {'a' * 50}={n}" for n in (1, 2)), ("MLR", "mlr")])
def test_methods_whose_names_look_alike_have_their_own_numbers(tmp_path: Path, drawn: Drawn, methods: tuple[str, ...]):
    draw(some_scores(methods=methods, tasks=TASKS[:1], seeds=1), tmp_path, format="png")
    means = {row["name"]: row["value"] for name, title, row in drawn.rows if title == "mean"}
    assert means == {methods[0]: pytest.approx(0.61), methods[1]: pytest.approx(0.41)}  # 600 + 10 and 400 + 10 points
    assert len([label for label in drawn.legends[0] if "paper" not in label]) == 2  # of the curves


def test_methods_of_the_paper_are_spelt_as_there(tmp_path: Path, drawn: Drawn):
    draw(some_scores(methods=("mlr", "baseline", "drq", "mine"), tasks=TASKS[:1], seeds=1), tmp_path, format="png")
    assert list(drawn.legends[-1]) == ["MLR", "Baseline", "DrQ", "mine"]


def test_a_figure_has_the_numbers_of_the_page(tmp_path: Path, drawn: Drawn):
    scores = some_scores(tasks=TASKS[:1])
    draw(scores, tmp_path, format="png")
    expected = statistics.estimate_all(scores.at().normalised().matrix("mlr", TASKS[:1]))["iqm"]
    found = next(row for _, title, row in drawn.rows if title == "interquartile mean" and row["name"] == "MLR")
    assert [found[key] for key in ("value", "low", "high")] == pytest.approx([*map(float, expected)], abs=1e-5)
    dots = next(row for name, _, row in drawn.rows if name == "tasks-dmcontrol" and row["name"] == "MLR")
    assert dots["scores"] == pytest.approx([610, 620, 630])


def test_no_legend_is_wider_than_its_figure():
    assert entries_across(["MLR", "Baseline"], 3.3) == 2
    assert entries_across(["MLR", "mlr objective.mask.strategy=temporal"], 3.3) == 1
    assert entries_across(["a"] * 9, 6.8) == 4


# ── against the paper ─────────────────────────────────────────────────────────────────────────────────────────────────


def with_profile(scores: Scores, profile: str) -> Scores:
    return Scores(tuple(replace(run, protocol={**run.protocol, "profile": profile}) for run in scores.runs))


def test_the_band_of_the_paper_is_in_colour_only_where_it_can_be_compared(tmp_path: Path, drawn: Drawn):
    scores = some_scores(methods=("mlr",), tasks=TASKS[:1], seeds=1)
    bands = []
    for of, asked in ((scores, False), (with_profile(scores, "lite"), False), (with_profile(scores, "lite"), True)):
        drawn.legends.clear()
        draw(of, tmp_path, format="png", against_paper=asked)
        bands.append({label: colour for label, colour in drawn.legends[0].items() if "paper" in label})
    grey = "#777777"
    assert bands[0] == {"paper: MLR": COLOURS["mlr"]}
    assert bands[1] == {}
    assert bands[2] == {"paper: MLR, not comparable": grey, "paper: Baseline, not comparable": grey}


@pytest.mark.parametrize(
    ("end", "profile", "remark", "said"),
    [
        (100_000, "paper", "paper", None),
        (500_000, "paper", "paper", None),
        (200_000, "paper", None, "the paper has no scores on these tasks at 200,000 frames"),
        (100_000, "lite", "paper, not comparable", "not comparable: lite profile"),
    ],
)
def test_the_papers_rows_say_whether_they_may_be_compared(
    tmp_path: Path, drawn: Drawn, end: int, profile: str, remark: str | None, said: str | None
):
    scores = with_profile(some_scores(methods=("mlr",), end=end, seeds=1), profile)
    figures = draw(scores, tmp_path, format="png", against_paper=True)
    for figure in ("tasks-dmcontrol", "aggregates-dmcontrol"):
        remarks = {row["remark"] for name, _, row in drawn.rows if name == figure and "remark" in row}
        assert remarks == ({remark} if remark else set())
    assert [said in problem for problem in figures.problems if said] == [True] * (said is not None)


def test_runs_that_are_counted_in_another_unit_get_none_of_the_papers_rows(tmp_path: Path, drawn: Drawn):
    runs = some_scores(methods=("mlr",), seeds=1).runs
    protocol = {"budget.frames": None, "budget.decisions": 100_000}
    decisions = [replace(run, unit="decisions", protocol=protocol) for run in runs]
    figures = draw(Scores(tuple(decisions)), tmp_path, format="png", against_paper=True)
    assert figures.problems == ["dmcontrol: the paper has no scores on these tasks at 100,000 decisions."]
    assert not any("remark" in row for _, _, row in drawn.rows)


def test_one_method_has_nothing_to_be_better_than(tmp_path: Path):
    recipe = recipes.find("dmcontrol/cheetah-run", "lite")
    evaluated(tmp_path / "runs" / "a", recipe, end=recipe.frames)
    figures = draw(Scores.read(tmp_path / "runs"), tmp_path / "out", format="png", against_paper=True)
    assert kinds(figures.files) == EVERY - {"improvement"}


# ── bad input ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def evaluated(path: Path, recipe: recipes.Recipe, *, end: int, score: float = 300.0) -> Run:
    run = Run.create(path, recipe)
    for at in (0, end // 2, end):
        now = score * at / end
        run.log("evaluation", Clock(at, at // 4, 0, 1.0), {"score": now, "returns": [now]})
    return run


def run_cli(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["plot", *words])
    return int(ended.value.code or 0)


def test_nothing_to_draw_is_said_and_no_folder_is_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "empty").mkdir()
    assert run_cli(str(tmp_path / "empty"), str(tmp_path / "gone"), "--out", str(tmp_path / "out")) == 2
    said = capsys.readouterr().err
    assert "holds no run" in said
    assert "does not exist" in said
    assert "There is nothing to draw." in said
    assert not (tmp_path / "out").exists()


def test_a_csv_with_other_columns_and_scores_that_are_no_numbers(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "other.csv").write_text("algo,env,reward\nmlr,walker-walk,3\n")
    with (tmp_path / "good.csv").open("w", newline="") as file:
        rows = [
            ["mlr", "toy/reach", 1, 100, 20.0],
            ["mlr", "toy/reach", 2, 100, "nan"],
            ["mlr", "toy/reach", 3, 100, 30.0],
        ]
        csv.writer(file).writerows([["method", "task", "seed", "frames", "score"], *rows])
    assert run_cli(*(str(tmp_path / name) for name in ("other.csv", "good.csv")), "--out", str(tmp_path / "out")) == 0
    told = capsys.readouterr()
    assert "there is no method, no task" in told.err
    assert "the score is not a finite number" in told.err
    assert "no two times" in told.err  # one evaluation is no curve over time
    assert {Path(line).stem for line in told.out.splitlines()} == {
        f"{k}-toy" for k in ("curves", "tasks", "aggregates", "profiles")
    }


def test_one_seed_has_no_interval_and_is_drawn(tmp_path: Path):
    figures = draw(some_scores(seeds=1, tasks=TASKS[:1]), tmp_path, format="png")
    assert (figures.problems, kinds(figures.files)) == ([], EVERY)


def test_runs_of_other_budgets_are_drawn_apart(tmp_path: Path):
    short, long = some_scores(end=50_000, tasks=TASKS[:1], seeds=2), some_scores(tasks=TASKS[:1], seeds=2)
    figures = draw(Scores((*short.runs, *long.runs)), tmp_path, format="png")
    assert {name.partition("-")[2] for name in names(figures.files)} == {"dmcontrol-paper-50k", "dmcontrol-paper-100k"}
    assert any("drawn apart" in problem for problem in figures.problems)


def test_a_task_that_a_method_lacks_is_left_out_of_the_aggregates_and_named(tmp_path: Path):
    whole = some_scores(seeds=2)
    scores = whole.where(lambda run: (run.method, run.task) != ("baseline", TASKS[1]))
    figures = draw(scores, tmp_path, format="png")
    assert f"dmcontrol: not all methods have scores on {TASKS[1]}: not in the aggregates." in figures.problems
    assert kinds(figures.files) == EVERY


def test_an_unfinished_run_has_its_curve_only(tmp_path: Path):
    recipe = recipes.find("toy/reach")
    evaluated(tmp_path / "runs", recipe, end=recipe.frames // 2, score=20.0)
    figures = draw(Scores.read(tmp_path / "runs"), tmp_path / "out", format="png")
    assert kinds(figures.files) == {"curves"}
    assert any("only its curves are drawn" in problem for problem in figures.problems)


def test_a_hostile_task_name_stays_within_the_folder(tmp_path: Path):
    scores = some_scores(tasks=(r"../../evil/$\frac$ & <b>",), seeds=1)
    figures = draw(scores, tmp_path / "out", format="png")
    assert all(file.parent == tmp_path / "out" for file in figures.files)
    assert kinds(figures.files) == {"curves"}  # such a task has no scale
    assert any("no scale" in problem for problem in figures.problems)
