import json
import threading
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from builders import Silent, tiny_mask, tiny_mlr
from maskrl import AugmentConfig
from maskrl.agents.base import Agent, Metrics
from maskrl.agents.sac import ControlEncoderConfig, SACConfig
from maskrl.envs import ToyControl
from maskrl.experiments.evaluate import evaluate, random_returns
from maskrl.experiments.recipe import Evaluation, Recipe
from maskrl.experiments.run import Clock, Run, RunError
from maskrl.experiments.train import EVALUATION_SEED, Stopped, build_agent, train
from maskrl.objectives.base import AuxiliaryConfig


def tiny_recipe(*, mlr: bool = True, **changes: object) -> Recipe:
    """150 decisions on the toy, the first 60 of them random; 3 full episodes and most of a fourth."""
    settings: dict[str, object] = {
        "name": "toy/reach",
        "profile": "lite",
        "env": ToyControl(size=28),
        "agent": SACConfig(
            encoder=ControlEncoderConfig(filters=4, latent_dim=10),
            hidden=16,
            augment=AugmentConfig(crop=24, intensity=0.0),
            batch_size=8,
            warmup_decisions=60,
            auxiliary=AuxiliaryConfig(clips=2, warmup_updates=10),
        ),
        "objective": tiny_mlr(mask=tiny_mask()) if mlr else None,
        "frames": 150,
        "evaluation": Evaluation(every=50, episodes=2),
        "checkpoint_every": 50,
    }
    return Recipe(**(settings | changes))  # type: ignore[arg-type]


def trained(path: Path, recipe: Recipe, watcher: Silent | None = None) -> tuple[Run, Agent]:
    run = Run.create(path, recipe)
    return run, train(recipe, run, watcher or Silent())


def events(run: Run) -> list[dict[str, object]]:
    """Without the seconds, which no seed decides."""
    return [{key: value for key, value in event.items() if key != "seconds"} for event in run.events()]


def same_weights(one: Agent, other: Agent) -> bool:
    pairs = zip(one.encoder.parameters(), other.encoder.parameters(), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("mlr", [False, True])
def test_the_same_seed_gives_the_same_run_bit_for_bit_and_another_does_not(tmp_path: Path, mlr: bool):
    recipe = tiny_recipe(mlr=mlr)
    (first, agent), (second, twin) = trained(tmp_path / "a", recipe), trained(tmp_path / "b", recipe)
    assert events(first) == events(second)
    assert same_weights(agent, twin)
    third, other = trained(tmp_path / "c", replace(recipe, seed=2))
    assert events(first) != events(third)
    assert not same_weights(agent, other)


def test_evaluations_come_at_exactly_the_frames_asked_for_and_at_the_end(tmp_path: Path):
    watcher = Silent()
    run, agent = trained(tmp_path, tiny_recipe(evaluation=Evaluation(every=40, episodes=1)), watcher)
    assert watcher.evaluations == [0, 40, 80, 120, 150]
    assert [event["frames"] for event in run.events("evaluation")] == watcher.evaluations
    assert agent.updates == 150 - 60  # one per decision after the random ones
    assert run.status == "done"


def test_evaluation_does_not_disturb_training(tmp_path: Path):
    often = replace(tiny_recipe(), evaluation=Evaluation(every=10, episodes=3))
    rarely = replace(tiny_recipe(), evaluation=Evaluation(every=150, episodes=1))
    (first, agent), (second, twin) = trained(tmp_path / "a", often), trained(tmp_path / "b", rarely)
    assert same_weights(agent, twin)
    learned = [[event for event in events(run) if event["kind"] in ("update", "episode")] for run in (first, second)]
    assert learned[0] == learned[1]


def test_an_interrupted_run_continues_to_the_same_end(tmp_path: Path):
    recipe = tiny_recipe()
    whole, agent = trained(tmp_path / "whole", recipe)
    for stop in (30, 97):  # among the random decisions, and in the middle of an episode
        with pytest.raises(Stopped):
            trained(tmp_path / "parts", recipe, Silent(interrupt_at=stop))
        assert Run.open(tmp_path / "parts").status == "running"
    watcher = Silent()
    parts, twin = trained(tmp_path / "parts", recipe, watcher)
    assert watcher.began.decisions == 97
    assert events(parts) == events(whole)
    assert same_weights(agent, twin)


def test_what_was_logged_after_the_checkpoint_is_done_and_logged_again_once(tmp_path: Path):
    recipe = tiny_recipe()
    whole, _ = trained(tmp_path / "whole", recipe)
    for at in (30, 135):  # before the first checkpoint, and after that of frame 100
        with pytest.raises(RuntimeError, match="a crash"):
            trained(tmp_path / "crashed", recipe, Crashing(at=at))
        assert Run.open(tmp_path / "crashed").status == "failed"
    crashed, _ = trained(tmp_path / "crashed", recipe)
    assert events(crashed) == events(whole)


def test_an_update_logged_at_the_decision_of_the_checkpoint_is_logged_once(tmp_path: Path):
    recipe = tiny_recipe(
        checkpoint_every=60, frames=120
    )  # the first update comes right after the checkpoint of frame 60
    whole, _ = trained(tmp_path / "whole", recipe)
    with pytest.raises(RuntimeError, match="a crash"):
        trained(tmp_path / "crashed", recipe, Crashing(at=70))
    crashed, _ = trained(tmp_path / "crashed", recipe)
    assert events(crashed) == events(whole)


class Crashing(Silent):
    def __init__(self, at: int) -> None:
        super().__init__()
        self.at = at

    def decision(self, clock: Clock, metrics: Metrics, seconds: Mapping[str, float]) -> None:
        if clock.decisions == self.at:
            raise RuntimeError("a crash")


def test_every_part_that_learns_is_in_the_log(tmp_path: Path):
    run, _ = trained(tmp_path, tiny_recipe())
    updates = list(run.events("update"))
    assert [event["updates"] for event in updates] == [1, 51]
    assert {"critic/loss", "actor/loss", "actor/temperature", "mlr/loss", "mlr/cosine"} <= updates[0].keys()


def test_a_finished_run_trains_no_more(tmp_path: Path):
    run, _ = trained(tmp_path, tiny_recipe())
    before = events(run)
    watcher = Silent()
    trained(tmp_path, tiny_recipe(), watcher)
    assert watcher.began.decisions == 150
    assert events(run) == before


def test_a_run_of_another_recipe_is_refused_with_the_difference(tmp_path: Path):
    trained(tmp_path, tiny_recipe(frames=50))
    with pytest.raises(RunError, match=r"(?s)another recipe.*seed.*1.*2"):
        Run.create(tmp_path, tiny_recipe(frames=50, seed=2))
    with pytest.raises(RunError, match="holds no run"):
        Run.open(tmp_path / "nothing")


def test_a_run_says_with_what_it_was_made(tmp_path: Path):
    run, _ = trained(tmp_path, tiny_recipe(frames=50))
    written = json.loads((tmp_path / "versions.json").read_text())
    assert written["torch"] == torch.__version__
    assert {"python", "mujoco", "dm_control", "renderer", "platform"} <= written.keys()
    assert json.loads((tmp_path / "recipe.json").read_text())["env"]["kind"] == "toy_control"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        *("checkpoint.pt", "metrics.jsonl", "recipe.json", "replay", "status.json", "versions.json")
    ]
    assert run.restore()["format"] == 1


def test_a_directory_with_other_things_in_it_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(RunError, match="is not empty and holds no run"):
        Run.create(tmp_path, tiny_recipe())
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_damaged_checkpoint_is_reported_and_not_overwritten(tmp_path: Path):
    run, _ = trained(tmp_path, tiny_recipe(frames=50))
    (tmp_path / "checkpoint.pt").write_bytes(b"not a checkpoint")
    with pytest.raises(RunError, match=r"checkpoint.pt is damaged"):
        train(run.recipe, run, Silent())
    assert (tmp_path / "checkpoint.pt").read_bytes() == b"not a checkpoint"


def test_a_torn_line_of_the_log_is_passed_over(tmp_path: Path):
    run, _ = trained(tmp_path, tiny_recipe(frames=50))
    before = list(run.events())
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "upd')
    assert list(run.events()) == before


def test_training_works_outside_the_main_thread(tmp_path: Path):
    outcome: list[Run] = []
    thread = threading.Thread(target=lambda: outcome.append(trained(tmp_path, tiny_recipe(frames=50))[0]))
    thread.start()
    thread.join()
    assert outcome[0].status == "done"


def test_the_budget_must_be_whole_decisions():
    with pytest.raises(ValueError, match=r"frames=0 frames must be a positive multiple of env.action_repeat=1"):
        tiny_recipe(frames=0)


def test_two_evaluations_see_the_same_starts_and_agree():
    recipe = tiny_recipe()
    env = recipe.env.make(seed=1, training=False)
    agent = build_agent(recipe, env)
    first, second = (evaluate(agent, env, episodes=3, seed=EVALUATION_SEED) for _ in range(2))
    assert first == second
    assert first.score == pytest.approx(sum(first.returns) / 3)


def test_random_actions_earn_what_the_toy_says():
    env = ToyControl().make(seed=1, training=False)
    returns = random_returns(env, episodes=100, seed=1)
    assert abs(returns.score - ToyControl.random_return) < 4 * returns.spread / 10  # four standard errors
