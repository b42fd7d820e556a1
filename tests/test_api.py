"""The Python API: `maskrl.recipe`, `maskrl.train` and `maskrl.load`, and run directories of an older version."""

import importlib.util
import json
import tarfile
import threading
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import pytest
import torch

import maskrl
from builders import Silent, at
from maskrl import AugmentConfig, Logger, cli
from maskrl.agents.base import Agent
from maskrl.clock import Clock
from maskrl.recipes.schema import Budget, Evaluation, Recipe
from maskrl.runs import checkpoint
from maskrl.runs.directory import Run, RunError
from tiny_runs import events, same_end, tiny_rainbow, tiny_recipe, trained

SHORT = {"budget": Budget(frames=100), "evaluation": Evaluation(every=50, episodes=2)}


class Kept(Logger):
    """Keeps the points it is given."""

    def __init__(self, name: str = "") -> None:
        self.name = name
        self.points: list[tuple[int, dict[str, float]]] = []

    def write(self, points: Mapping[str, float], clock: Clock) -> None:
        self.points.append((clock.decisions, dict(points)))


# ── recipe ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_recipe_has_its_overrides_and_its_halves():
    chosen = maskrl.recipe("toy/reach", "seed=3", "agent.hidden=16", method="baseline")
    assert (chosen.name, chosen.seed, chosen.agent.hidden, chosen.objective) == ("toy/reach", 3, 16, None)
    assert maskrl.recipe("toy/reach", objective="none") == maskrl.recipe("toy/reach", method="baseline")
    with pytest.raises(ValueError, match="toy/reach"):
        maskrl.recipe("toy/reech")
    with pytest.raises(ValueError, match=r"did you mean seed"):
        maskrl.recipe("toy/reach", "sed=3")


# ── train ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that nothing interrupted."""
    return maskrl.train(tiny_recipe(**SHORT), tmp_path_factory.mktemp("whole") / "run", [])


def test_a_finished_run_is_returned_as_it_is(whole: Run):
    assert whole.status == "done"
    assert [score["frames"] for score in whole.scores] == [0, 50, 100]
    before, logger = events(whole), Kept()
    again = maskrl.train(whole.recipe, whole.path, [logger])
    assert (again.path, again.status) == (whole.path, "done")
    assert events(again) == before
    assert logger.points == []


def test_another_recipe_in_the_same_directory_is_refused(whole: Run):
    with pytest.raises(RunError, match=r"(?s)seed: 1 -> 2.*choose another --run-dir"):
        maskrl.train(tiny_recipe(**SHORT, seed=2), whole.path, [])


def test_an_event_from_another_thread_stops_the_run_and_the_same_call_finishes_it(whole: Run, tmp_path: Path):
    reached, stop, returned = threading.Event(), threading.Event(), list[Run]()

    class Waiting(Logger):
        def write(self, points: Mapping[str, float], clock: Clock) -> None:
            if clock.decisions == 70:
                reached.set()
                stop.wait(60)

    def work() -> None:
        returned.append(maskrl.train(whole.recipe, tmp_path / "run", [Waiting()], stop=stop))

    thread = threading.Thread(target=work)
    thread.start()
    assert reached.wait(120)
    stop.set()
    thread.join(120)
    (run,) = returned
    assert run.status == "stopped"
    assert run.restore()["position"]["decisions"] == 70
    again = maskrl.train(whole.recipe, tmp_path / "run", [])
    assert again.status == "done"
    assert [score["score"] for score in again.scores] == [score["score"] for score in whole.scores]
    assert same_end(again, whole)


def test_ctrl_c_saves_and_raises_and_the_same_call_finishes_the_run(whole: Run, tmp_path: Path):
    with pytest.raises(KeyboardInterrupt, match="saved"):
        maskrl.train(whole.recipe, tmp_path, [Silent(interrupt_at=70)])
    run = Run.open(tmp_path)
    assert (run.status, run.restore()["position"]["decisions"]) == ("stopped", 70)
    assert events(maskrl.train(whole.recipe, tmp_path, [])) == events(whole)


def test_no_loggers_are_silent_and_the_default_prints_lines(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    short = tiny_recipe(budget=Budget(frames=50), evaluation=Evaluation(every=50, episodes=1))
    maskrl.train(short, tmp_path / "silent", [])
    assert capsys.readouterr() == ("", "")
    maskrl.train(short, tmp_path / "lines")
    assert "50 frames: score" in capsys.readouterr().out


def test_a_logger_of_ones_own_gets_the_points(tmp_path: Path):
    logger = Kept()
    run = maskrl.train(tiny_recipe(**SHORT), tmp_path, [logger])
    scores = [
        (decisions, points["evaluation/score"]) for decisions, points in logger.points if "evaluation/score" in points
    ]
    assert scores == [(score["decisions"], score["score"]) for score in run.scores]
    assert any("critic/loss" in points for _, points in logger.points)


def test_a_logger_that_raises_is_reported_once_and_the_run_ends(tmp_path: Path):
    class Broken(Logger):
        def write(self, points: Mapping[str, float], clock: Clock) -> None:
            raise ConnectionError("the cable is cut")

    run = maskrl.train(tiny_recipe(**SHORT), tmp_path, [Broken()])
    assert run.status == "done"
    (note,) = run.events("note")
    assert "'Broken'" in note["text"]
    assert "the cable is cut" in note["text"]


def test_two_loggers_of_one_name_are_refused(tmp_path: Path):
    with pytest.raises(ValueError, match="another `name`"):
        maskrl.train(tiny_recipe(**SHORT), tmp_path / "run", [Kept("mine"), Kept("mine")])
    assert not (tmp_path / "run").exists() or Run.open(tmp_path / "run").status == "new"


# ── load ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

AGENTS: dict[str, Callable[..., Recipe]] = {"SAC": tiny_recipe, "Rainbow": tiny_rainbow}


@pytest.fixture(scope="module", params=AGENTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Run, Agent]:
    """A finished run, and its agent as training left it."""
    recipe = AGENTS[request.param](budget=Budget(decisions=100), evaluation=Evaluation(every=100, episodes=1))
    return trained(tmp_path_factory.mktemp("pair"), recipe)


def stacks(recipe: Recipe, steps: int, *, seed: int = 5) -> list[np.ndarray]:
    """The observations of an episode under random actions."""
    env = recipe.env.make(seed=1, training=False)
    env.action_space.seed(seed)
    seen = [env.reset(seed=seed)[0]]
    while len(seen) < steps:
        seen.append(env.step(env.action_space.sample())[0])
    env.close()
    return seen


def newest(policy: maskrl.Policy, obs: np.ndarray) -> np.ndarray:
    """The last frame of a stack."""
    return obs[-policy.frame_shape[0] :]


@pytest.mark.slow
def test_a_loaded_policy_acts_as_the_agent_does_in_evaluations(pair: tuple[Run, Agent]):
    run, agent = pair
    policy, seen = maskrl.load(run.path), stacks(run.recipe, 9)
    assert (policy.clock.decisions, policy.clock.updates) == (100, agent.updates)
    expected = [agent.act(obs[None], explore=False, clock=at(100))[0] for obs in seen]
    for frames in (lambda obs: obs, lambda obs: obs.transpose(1, 2, 0)):  # the channels first, or last
        policy.reset()
        assert np.array_equal([policy.act(frames(newest(policy, obs))) for obs in seen], expected)


def test_a_batch_of_frames_has_an_action_for_each(pair: tuple[Run, Agent]):
    run, agent = pair
    policy = maskrl.load(str(run.path))
    for pairs in zip(*(stacks(run.recipe, 6, seed=seed) for seed in (5, 6)), strict=True):
        actions = policy.act(np.stack([newest(policy, obs) for obs in pairs]))
        np.testing.assert_allclose(actions, agent.act(np.stack(pairs), explore=False, clock=at(100)), rtol=1e-6)
    frame = newest(policy, pairs[0])
    with pytest.raises(ValueError, match=r"3 frames, the last one had 2.*call reset\(\)"):
        policy.act(np.stack([frame] * 3))
    policy.reset()
    assert len(policy.act(np.stack([frame] * 3))) == 3


def test_frames_of_another_shape_or_type_are_refused_and_change_nothing(pair: tuple[Run, Agent]):
    run, _ = pair
    policy, other = maskrl.load(run.path), maskrl.load(run.path)
    first, second = (newest(policy, obs) for obs in stacks(run.recipe, 2))
    policy.act(first)
    other.act(first)
    shape = ", ".join(map(str, policy.frame_shape))
    for wrong in (second[:, 1:], second.astype(np.float32) / 255, second[None, None], second.astype(int)):
        with pytest.raises(ValueError, match=rf"expected a frame of uint8 with shape \({shape}\)"):
            policy.act(wrong)
    assert np.array_equal(policy.act(second), other.act(second))


def test_frames_are_encoded_as_the_encoder_sees_their_stacks(pair: tuple[Run, Agent]):
    run, agent = pair
    policy, seen = maskrl.load(run.path), np.stack(stacks(run.recipe, 6))
    frames = np.stack([newest(policy, obs) for obs in seen])
    with torch.no_grad():
        expected = agent.policy().encode(torch.from_numpy(seen)).numpy()
    assert expected.shape == (6, agent.encoder.latent_dim)
    for given in (frames, frames.transpose(0, 2, 3, 1), seen):
        np.testing.assert_allclose(policy.encode(given), expected, rtol=1e-5, atol=1e-6)


def test_an_unfinished_run_is_loaded_with_a_warning(tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        maskrl.train(tiny_recipe(), tmp_path, [Silent(interrupt_at=70)])
    with pytest.warns(UserWarning, match="not finished.*70 of 150 frames") as warned:
        assert maskrl.load(tmp_path).clock.frames == 70
    assert warned[0].filename == __file__  # it points at the call


def test_what_holds_no_policy_is_refused(tmp_path: Path):
    with pytest.raises(RunError, match=r"holds no run.*recipe\.json"):
        maskrl.load(tmp_path)
    run = Run.create(tmp_path / "new", tiny_recipe())
    with pytest.raises(RunError, match="no checkpoint yet"):
        maskrl.load(run.path)


@pytest.fixture
def stopped(tmp_path: Path) -> Run:
    """A run with two checkpoints, of 50 and 70 decisions."""
    with pytest.raises(KeyboardInterrupt):
        maskrl.train(tiny_recipe(), tmp_path, [Silent(interrupt_at=70)])
    return Run.open(tmp_path)


def test_a_damaged_checkpoint_is_passed_over_and_two_are_refused(stopped: Run):
    newer, older = checkpoint.checkpoints(stopped.checkpoints)
    newer.path.write_bytes(newer.path.read_bytes()[:-9])
    with pytest.warns(UserWarning, match="is damaged|not finished") as warned:
        assert maskrl.load(stopped.path).clock.frames == 50
    assert [name in str(warned[0].message) for name in (newer.path.name, older.path.name)] == [True, True]
    assert warned[0].filename == __file__
    older.path.write_bytes(b"")
    with pytest.raises(RunError, match=r"no checkpoint that can be read.*Put a good copy there"):
        maskrl.load(stopped.path)


def test_a_checkpoint_of_a_future_format_is_refused_with_the_version_to_use(stopped: Run, monkeypatch):
    state = stopped.restore()
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 99)
        file = stopped.save(state)
    by = stopped.versions()
    with pytest.raises(RunError) as refused:
        maskrl.load(stopped.path)
    assert all(words in str(refused.value) for words in (str(file), "format 99", f"maskrl {by['maskrl']}"))


# ── Runs of the version before agents and objectives had the present shape ────────────────────────────────────────────

RETURNS = {"catch-done": [-3.0, -3.0], "reach-stopped": [15.43903348401758, 7.792582853086238]}
OVERRIDES = [
    *("budget.frames=2000", "evaluation.every=60", "evaluation.episodes=2", "checkpoint_every=60", "env.size=32"),
    *("agent.warmup_decisions=40", "agent.hidden=8", "agent.batch_size=4", "agent.auxiliary.clips=2"),
    *("agent.encoder.filters=4", "agent.encoder.latent_dim=8", "replay.capacity=100", "objective.head_width=12"),
]


@pytest.fixture(scope="module")
def old(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("old")
    with tarfile.open(Path(__file__).parent / "fixtures" / "runs-e560ce7.tar.gz") as archive:
        archive.extractall(folder, filter="data")
    return folder


def typed(*arguments: object) -> int | str | None:
    """The exit code of a command."""
    with pytest.raises(SystemExit) as end:
        cli.main([str(argument) for argument in arguments])
    return end.value.code


@pytest.mark.parametrize("name", RETURNS)
def test_an_old_run_is_opened_loaded_and_evaluated(old: Path, name: str, capsys: pytest.CaptureFixture[str]):
    run = Run.open(old / name)
    logged = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    scores = [event["score"] for event in logged if event["kind"] == "evaluation"]
    assert scores
    assert [score["score"] for score in run.scores] == scores
    assert not typed("evaluate", run.path, "--json")
    result = json.loads(capsys.readouterr().out)
    assert result["returns"] == pytest.approx(RETURNS[name], rel=1e-3)
    if name == "catch-done":
        assert maskrl.load(run.path).clock.frames == result["frames"]


def test_old_runs_are_reported(old: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pytest.importorskip("jinja2")
    assert not typed("report", old, "--out", tmp_path / "report.html")
    printed = capsys.readouterr().out
    assert "2 runs" in printed
    assert "cannot be read" not in printed
    assert "toy/reach" in (tmp_path / "report.html").read_text()


def test_an_old_run_is_not_continued_and_the_version_to_use_is_named(old: Path, capsys: pytest.CaptureFixture[str]):
    run = Run.open(old / "reach-stopped")
    before = {file: file.read_bytes() for file in run.path.rglob("*") if file.is_file()}
    version = f"maskrl {run.versions()['maskrl']}"
    command = ["train", "toy/reach", *OVERRIDES, "--run-dir", run.path, "--log", "none"]
    assert typed(*command) == 2  # a default has changed since
    message = capsys.readouterr().err
    assert all(words in message for words in ("replay.on_device: false -> none", version))
    assert typed(*command, "replay.on_device=false") == 2
    message = capsys.readouterr().err
    assert all(words in message for words in ("format 4", version))
    assert all(file.read_bytes() == content for file, content in before.items())


# ── An objective of one's own ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_recipe_with_an_objective_of_ones_own_is_reopened_continued_and_reported(tmp_path: Path, capsys):
    pytest.importorskip("jinja2")
    file = Path(__file__).parents[1] / "examples" / "own_objective.py"
    spec = importlib.util.spec_from_file_location("own_objective", file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    recipe = tiny_recipe(**SHORT, objective=module.NextConfig(augment=AugmentConfig(crop=24)))
    with pytest.raises(KeyboardInterrupt):
        maskrl.train(recipe, tmp_path / "run", [Silent(interrupt_at=70)])
    run = Run.create(tmp_path / "run", recipe)
    assert run.recipe.objective == recipe.objective
    assert maskrl.train(recipe, run.path, []).status == "done"
    assert maskrl.load(run.path).clock.frames == 100
    assert not typed("report", run.path, "--out", tmp_path / "report.html")
    printed = capsys.readouterr().out
    assert "sac+next" in printed
    assert "Left out" not in printed
