import csv
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from maskrl import recipes
from maskrl.analysis import statistics
from maskrl.analysis.reading import RunScores
from maskrl.analysis.scores import Scores
from maskrl.cli import main
from maskrl.recipes.published import published
from maskrl.report import plots
from maskrl.report.plots import draw, draw_published, styles
from maskrl.runs.directory import Clock, Run

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
def test_two_methods_give_every_figure_at_its_width(tmp_path: Path, width: plots.Width):
    figures = draw(some_scores(), tmp_path, format="png", width=width)
    assert figures.problems == []
    assert names(figures.files) == {f"{kind}-dmcontrol" for kind in EVERY}
    for file in figures.files:
        with Image.open(file) as picture:
            assert picture.width == round(300 * {"single": 3.3, "double": 6.8}[width])
    for colour in (plots.COLOURS["mlr"], plots.COLOURS["baseline"]):
        assert has_colour(tmp_path / "curves-dmcontrol.png", colour)
        assert has_colour(tmp_path / "profiles-dmcontrol.png", colour)


@pytest.mark.slow
def test_the_same_scores_give_the_same_bytes_whatever_the_time_and_the_process(tmp_path: Path):
    scores = some_scores(tasks=TASKS[:1])
    scores.write_csv(tmp_path / "scores.csv")
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
    figures = plots.Figures(tmp_path)
    with figures.figure("one", 1.0) as figure:
        figure.subplots().set_title("Naïve τ")
    content = (tmp_path / "one.pdf").read_bytes()
    assert b"/Type0" in content  # a TrueType font, which is Type 42
    assert b"/Type3" not in content
    assert [file.name for file in tmp_path.iterdir()] == ["one.pdf"]  # and nothing half written


@pytest.mark.slow
def test_the_paper_alone_is_redrawn(tmp_path: Path):
    figures = draw_published(tmp_path, format="png")
    of_dmc = {f"{kind}-dmcontrol-{at}" for kind in EVERY - {"curves", "efficiency"} for at in ("100k", "500k")}
    of_atari = {f"{kind}-atari-100k" for kind in EVERY - {"curves", "efficiency"}}
    assert names(figures.files) == of_dmc | of_atari | {"efficiency-dmcontrol"}
    assert len(figures.problems) == 1
    assert figures.problems[0].startswith("SLAC is left out: the paper has no score of it on")


def test_the_papers_columns_give_its_own_means_and_print_its_own_aggregates():
    tasks = [f"dmcontrol/{task}" for task in recipes.dmcontrol.PAPER_TASKS]
    (mlr,) = (column for column in plots._paper_columns(tasks, 100_000, "frames") if column.method == "MLR")
    assert float(statistics.mean(mlr.scores)) == pytest.approx(0.7728, abs=1e-4)  # 772.8 in Table 1
    games = [f"atari/{game}" for game in recipes.atari.GAMES]
    (atari,) = (column for column in plots._paper_columns(games, 100_000, "decisions") if column.method == "MLR")
    assert atari.printed == {"iqm": 0.432, "optimality_gap": 0.522}
    found = plots._with_printed(statistics.estimate_all(atari.scores, resamples=10), atari)
    assert float(found["iqm"].value) == 0.432  # of runs; its game means would give 0.435
    assert plots._paper_columns(games[:5], 100_000, "decisions")[0].printed == {}  # of all games or of none
    assert plots._paper_columns(games, 100_000, "frames") == []  # 25 000 decisions


def test_a_misprinted_spread_is_not_drawn(tmp_path: Path):
    columns = plots._paper_columns(["dmcontrol/walker-walk"], 500_000, "frames")
    (drq,) = (column for column in columns if column.method == "DrQ")
    cell = published("dmcontrol/walker-walk", 500_000, "DrQ")
    assert cell is not None
    assert cell.misprint
    assert drq.spread is None
    runs = some_scores(methods=("drq",), tasks=TASKS[1:], seeds=1, end=500_000).runs
    figures = plots.Figures(tmp_path)
    with figures.figure("one", 2.0) as figure:
        axes = figure.subplots()
        assert plots._paper_band(figures, axes, runs, styles(["drq"])["drq"], asked=True) is not None
        (band,) = axes.patches
        assert band.get_height() == 0


def test_how_often_the_papers_means_and_spreads_say_that_one_beats_the_other():
    def column(mean: float, std: float) -> plots.Column:
        return plots.Column("any", ("dmcontrol/a",), np.array([[mean]]), paper=True, spread=np.array([std]))

    assert plots._beats(column(0.5, 0.1), column(0.5, 0.2)) == 0.5
    assert plots._beats(column(0.8, 0.3), column(0.3, 0.4)) == pytest.approx(0.8413, abs=1e-4)  # one standard deviation
    assert plots._beats(column(0.8, 0.0), column(0.3, 0.0)) == 1.0


def test_sample_efficiency_is_the_interquartile_mean_at_the_times_that_all_runs_have():
    scores = some_scores(methods=("mlr",), tasks=TASKS[:1], seeds=2).normalised()
    column = plots.Column("mlr", TASKS[:1], scores.at().matrix("mlr", TASKS[:1]))
    times, estimate = plots._over_time(scores, column)
    assert times == [0, 20_000, 40_000, 60_000, 80_000, 100_000]
    # Two runs, of which a quarter is none: the mean of 610 and 620 points of 1000.
    assert estimate.value == pytest.approx([0.615 * step / 5 for step in range(6)])


def test_sample_efficiency_is_of_the_runs_in_the_aggregates(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Of three seeds the first was broken off: the second and third are in both figures."""
    runs = some_scores(methods=("mlr",), tasks=TASKS[:1]).runs
    given = list[Scores]()
    monkeypatch.setattr(plots, "_efficiency", lambda figures, name, scores, *others: given.append(scores))
    draw(Scores((replace(runs[0], curve=runs[0].curve[:3]), *runs[1:])), tmp_path, format="png")
    assert [run.seed for run in given[0].runs] == [2, 3]


def test_a_method_has_the_same_colour_everywhere_and_no_two_look_alike():
    few, many = (
        styles(["mlr", "x"]),
        styles(["mlr", "Baseline", "DrQ", "CURL", "SPR", "x", *(f"z{n}" for n in range(20))]),
    )
    assert few["mlr"] == many["mlr"] == (plots.COLOURS["mlr"], "-")
    assert few["x"] == many["x"]
    assert len(set(many.values())) == len(many)
    assert styles(["MLR", "mlr"]) == {"MLR": few["mlr"], "mlr": (plots.COLOURS["mlr"], "--")}


def test_long_names_are_cut_only_as_far_as_they_stay_distinct():
    begin = "mlr agent.encoder.latent_dim=50 agent.hidden=1024"
    assert plots._names(["mlr", begin]) == {"mlr": "MLR", begin: "mlr agent.encoder.latent_dim=50 agent.hidde…"}
    ratios = [f"{begin} objective.mask.ratio={ratio}" for ratio in (0.3, 0.5)]
    assert list(plots._names(ratios).values()) == [
        "mlr agent.encoder.lat…jective.mask.ratio=0.3",
        "mlr agent.encoder.lat…jective.mask.ratio=0.5",
    ]
    assert plots._names(["MLR", "mlr", "baseline"]) == {"MLR": "MLR", "mlr": "mlr", "baseline": "Baseline"}


def legends(monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """The labels of every legend that is drawn from now on."""
    seen, real = list[list[str]](), plots._legend
    monkeypatch.setattr(
        plots, "_legend", lambda f, handles, labels, i: (seen.append(list(labels)), real(f, handles, labels, i))
    )
    return seen


@pytest.mark.parametrize("methods", [tuple(f"mlr {'a' * 50}={n}" for n in (1, 2)), ("MLR", "mlr")])
def test_methods_whose_names_look_alike_have_their_own_numbers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, methods: tuple[str, ...]
):
    drawn = list[tuple[float, float]]()
    real = plots._interval

    def interval(axes: object, estimate: statistics.Estimate, place: float, *words: object, **more: object) -> None:
        drawn.append((place, float(estimate.value)))
        real(axes, estimate, place, *words, **more)  # type: ignore[arg-type]

    seen = legends(monkeypatch)
    monkeypatch.setattr(plots, "_interval", interval)
    draw(some_scores(methods=methods, tasks=TASKS[:1], seeds=1), tmp_path, format="png")
    assert drawn[:2] == [(0, pytest.approx(0.61)), (1, pytest.approx(0.41))]  # the mean: 600 + 10 and 400 + 10 points
    assert len({label for label in seen[0] if "paper" not in label}) == 2  # of the curves


def test_overrides_that_all_methods_have_are_left_out_of_their_names(tmp_path: Path):
    scores = some_scores(methods=("mlr a=1 b=2", "baseline a=1"), tasks=TASKS[:1], seeds=1)
    short, shared = plots._without_shared_words(scores)
    assert (short.methods, shared) == (["baseline", "mlr b=2"], ["a=1"])
    figures = draw(some_scores(methods=("mlr a=1",), tasks=TASKS[:1], seeds=1), tmp_path, format="png")
    assert figures.problems == ["All methods have a=1, which is left out of their names."]
    assert not has_colour(tmp_path / "curves-dmcontrol.png", plots.COLOURS["baseline"])
    assert figures.altered  # so the paper is no yardstick, whatever they are called


def test_no_legend_is_wider_than_its_figure():
    assert plots._across(["MLR", "Baseline"], 3.3) == 2
    assert plots._across(["MLR", "mlr objective.mask.strategy=temporal"], 3.3) == 1
    assert plots._across(["a"] * 9, 6.8) == 4


# ── against the paper ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_band_of_the_paper_is_in_colour_only_where_it_can_be_compared(tmp_path: Path):
    scores = some_scores(methods=("mlr",), tasks=TASKS[:1], seeds=1)
    lite = Scores(
        tuple(run.__class__(**{**run.__dict__, "protocol": {**run.protocol, "profile": "lite"}}) for run in scores.runs)
    )
    bands = []
    for of in (scores, lite):
        figures = plots.Figures(tmp_path)
        with figures.figure("one", 2.0) as figure:
            axes = figure.subplots()
            bands.append(
                [plots._paper_band(figures, axes, of.runs, styles(["mlr"])["mlr"], asked) for asked in (False, True)]
            )
    (label, line), (again, _) = bands[0]
    assert label == again == "MLR, paper at 100k"
    assert line.get_color() == plots.COLOURS["mlr"]
    assert line.get_ydata()[0] == published(TASKS[0], 100_000, "MLR").mean
    assert bands[1][0] is None
    assert bands[1][1][0] == "MLR, paper at 100k, not comparable"
    assert bands[1][1][1].get_color() == "#777777"


@pytest.mark.parametrize(
    ("end", "change", "remark", "said"),
    [
        (100_000, {}, "paper", None),
        (500_000, {}, "paper", None),
        (200_000, {}, "paper at 100k, not comparable", "these runs end at 200,000 frames"),
        (100_000, {"profile": "lite"}, "paper at 100k, not comparable", "do not have the paper's protocol"),
    ],
)
def test_the_papers_columns_say_whether_they_may_be_compared(
    tmp_path: Path, end: int, change: dict[str, str], remark: str, said: str | None
):
    runs = some_scores(methods=("mlr",), end=end, seeds=1).runs
    scores = Scores(tuple(replace(run, protocol={**run.protocol, **change}) for run in runs)).at()
    figures = plots.Figures(tmp_path)
    columns = plots._beside(figures, "any", scores, TASKS)
    assert columns[0].label == f"MLR ({remark})"
    assert {column.remark for column in columns} == {remark}
    assert [said in problem for problem in figures.problems if said] == [True] * (said is not None)


def test_runs_of_another_unit_or_with_shared_overrides_are_not_compared_with_the_paper(tmp_path: Path):
    runs = some_scores(methods=("mlr",), seeds=1).runs
    decisions = [
        replace(run, unit="decisions", protocol={"budget.frames": None, "budget.decisions": 100_000}) for run in runs
    ]
    figures = plots.Figures(tmp_path)
    assert plots._beside(figures, "any", Scores(tuple(decisions)).at(), TASKS) == []
    assert figures.problems == [
        "any: the paper has no scores on these tasks in decisions, which these runs are counted in."
    ]
    altered = plots.Figures(tmp_path, altered=True)
    assert "not comparable" in plots._beside(altered, "any", Scores(runs).at(), TASKS)[0].label


def test_against_the_paper_says_when_its_columns_are_no_yardstick(tmp_path: Path):
    recipe = recipes.find("dmcontrol/cheetah-run", "lite")
    evaluated(tmp_path / "runs" / "a", recipe, end=recipe.frames)
    figures = draw(Scores.read(tmp_path / "runs"), tmp_path / "out", format="png", against_paper=True)
    assert any("do not have the paper's protocol" in problem for problem in figures.problems)
    assert kinds(figures.files) == EVERY - {"improvement"}  # one method of ours: nothing to be better than


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
    assert any("so only its curves are drawn" in problem for problem in figures.problems)


def test_a_hostile_task_name_stays_within_the_folder(tmp_path: Path):
    scores = some_scores(tasks=(r"../../evil/$\frac$ & <b>",), seeds=1)
    figures = draw(scores, tmp_path / "out", format="png")
    assert all(file.parent == tmp_path / "out" for file in figures.files)
    assert kinds(figures.files) == {"curves"}  # such a task has no scale
    assert any("no scale" in problem for problem in figures.problems)
