import json
import resource
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from builders import Silent
from maskrl.envs.subprocess import SubprocessEnv
from maskrl.recipes.schema import Budget, Evaluation, Recipe
from maskrl.replay.buffer import Replay
from maskrl.runs.build import keep_freed_memory
from maskrl.runs.directory import Run, RunError
from maskrl.runs.loop import train
from maskrl.runs.signals import Stopped
from tiny_runs import events, same_end, same_weights, tiny_breakout, tiny_rainbow, tiny_recipe, trained

RECIPES = {"SAC": tiny_recipe, "Rainbow": tiny_rainbow}
each_agent = pytest.mark.parametrize("make", RECIPES.values(), ids=RECIPES.keys())
# One of them in the fast tests, both in the whole suite.
one_agent_is_fast = pytest.mark.parametrize(
    "make", [pytest.param(tiny_recipe, marks=pytest.mark.slow), tiny_rainbow], ids=RECIPES.keys()
)


@one_agent_is_fast
@pytest.mark.parametrize("mlr", [pytest.param(False, marks=pytest.mark.slow), True])
def test_the_same_seed_gives_the_same_run_bit_for_bit_and_another_does_not(tmp_path: Path, make, mlr: bool):
    recipe = make(mlr=mlr)
    (first, agent), (second, twin) = trained(tmp_path / "a", recipe), trained(tmp_path / "b", recipe)
    assert events(first) == events(second)
    assert same_weights(agent, twin)
    assert same_end(first, second)
    third, other = trained(tmp_path / "c", replace(recipe, seed=2))
    assert events(first) != events(third)
    assert not same_weights(agent, other)


@pytest.mark.slow
@each_agent
def test_an_environment_that_steps_meanwhile_leads_to_the_same_run_bit_for_bit(tmp_path: Path, make):
    (one, _), (other, _) = trained(tmp_path / "a", make()), trained(tmp_path / "b", make(overlap=True))
    assert events(one) == events(other)
    assert same_end(one, other)


@pytest.mark.slow
def test_one_whose_process_is_killed_is_brought_back_to_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    step_async, calls = SubprocessEnv.step_async, []

    def deadly(self: SubprocessEnv, action: object) -> None:
        calls.append(action)
        if len(calls) == 20:
            self._process.kill()
            self._process.join()
        step_async(self, action)

    undisturbed, _ = trained(tmp_path / "a", tiny_recipe(overlap=True))
    monkeypatch.setattr(SubprocessEnv, "step_async", deadly)
    killed, _ = trained(tmp_path / "b", tiny_recipe(overlap=True))
    assert len(calls) > 20
    assert "its process has ended with exit code -9" in next(killed.events("note"))["text"]
    assert same_end(undisturbed, killed)


@pytest.mark.slow
@each_agent
def test_bfloat16_computes_almost_the_same_with_weights_of_float32(tmp_path: Path, make):
    (plain, _), (half, agent) = trained(tmp_path / "a", make()), trained(tmp_path / "b", make(precision="bfloat16"))
    assert {parameter.dtype for parameter in agent.encoder.parameters()} == {torch.float32}
    first, rounded = (next(run.events("update")) for run in (plain, half))
    for name in ("critic/loss", "mlr/loss"):
        assert first[name] == pytest.approx(rounded[name], rel=0.05)  # 8 bits for a fraction
        assert first[name] != rounded[name]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated")  # by torch, within torch.compile
def test_compiled_convolutions_compute_the_same(tmp_path: Path):
    (_, agent), (_, compiled) = (
        trained(tmp_path / "a", tiny_recipe()),
        trained(tmp_path / "b", tiny_recipe(compile=True)),
    )
    for name, weight in agent.encoder.state_dict().items():
        torch.testing.assert_close(compiled.encoder.state_dict()[name], weight, rtol=1e-3, atol=1e-4)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0  # else it was not compiled


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="of GNU's C library")
def test_memory_that_a_large_tensor_leaves_is_kept_for_the_next_one():
    keep_freed_memory()
    for _ in range(4):
        torch.ones(64 * 2**18)  # 64 MB: 16,384 pages that the system has to clear
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(64 * 2**18)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before < 1000


def test_evaluations_come_at_exactly_the_frames_asked_for_and_at_the_end(tmp_path: Path):
    watcher = Silent()
    run, agent = trained(tmp_path, tiny_recipe(evaluation=Evaluation(every=40, episodes=1)), watcher)
    assert watcher.evaluations == [0, 40, 80, 120, 150]
    assert [event["frames"] for event in run.events("evaluation")] == watcher.evaluations
    assert agent.updates == 150 - 60  # one per decision after the random ones
    assert run.status == "done"


@pytest.mark.slow
def test_two_updates_for_a_decision_are_two_updates_and_the_log_tells_them_apart(tmp_path: Path):
    run, agent = trained(tmp_path, tiny_rainbow())
    assert agent.updates == 2 * (150 - 60)
    logged = [(event["decisions"], event["updates"]) for event in run.events("update")]
    assert logged == [(60, 1), (85, 51), (110, 101), (135, 151)]  # 2 · (85 - 60) were made before decision 85


def test_a_budget_in_decisions_is_spent_in_decisions(tmp_path: Path):
    watcher = Silent()
    run, agent = trained(tmp_path, tiny_breakout(), watcher)
    assert watcher.evaluations == [0, 1000]
    assert run.restore()["position"]["decisions"] == 250
    assert agent.updates == 2 * (250 - 200)


@pytest.mark.slow
@one_agent_is_fast
def test_evaluation_does_not_disturb_training(tmp_path: Path, make):
    often = make(evaluation=Evaluation(every=10, episodes=3, side_by_side=2))
    rarely = make(evaluation=Evaluation(every=150, episodes=1))
    (first, agent), (second, twin) = trained(tmp_path / "a", often), trained(tmp_path / "b", rarely)
    assert same_weights(agent, twin)
    learned = [[event for event in events(run) if event["kind"] in ("update", "episode")] for run in (first, second)]
    assert learned[0] == learned[1]


@one_agent_is_fast
def test_an_interrupted_run_continues_to_the_same_end(tmp_path: Path, make):
    recipe = make()
    whole, agent = trained(tmp_path / "whole", recipe)
    for stop in (30, 97):  # among the random decisions, and in the middle of an episode
        with pytest.raises(Stopped):
            trained(tmp_path / "parts", recipe, Silent(interrupt_at=stop))
        assert Run.open(tmp_path / "parts").status == "stopped"
    watcher = Silent()
    parts, twin = trained(tmp_path / "parts", recipe, watcher)
    assert watcher.began.decisions == 97
    assert events(parts) == events(whole)
    assert same_weights(agent, twin)
    assert same_end(parts, whole)


@pytest.mark.slow
@each_agent
def test_what_was_logged_after_the_checkpoint_is_done_and_logged_again_once(tmp_path: Path, make):
    recipe = make()
    whole, _ = trained(tmp_path / "whole", recipe)
    for at in (30, 135):  # before the first checkpoint, and after that of frame 100
        crash(tmp_path / "crashed", recipe, at=at)
        assert Run.open(tmp_path / "crashed").status == "failed"
    crashed, _ = trained(tmp_path / "crashed", recipe)
    assert events(crashed) == events(whole)
    assert same_end(crashed, whole)


def test_priorities_are_part_of_what_is_continued(tmp_path: Path):
    run, _ = trained(tmp_path, tiny_rainbow())
    leaves = run.restore()["replay"]["leaf"]
    assert len(leaves[leaves > 0].unique()) > 20  # not the 1 of a transition that was never drawn, alone


@pytest.mark.slow
def test_a_game_is_continued_in_the_middle_of_a_later_life(tmp_path: Path):
    """What a life sees depends on all that was done in the lives before it, so all of them are lived through again."""
    recipe = tiny_breakout()
    whole, _ = trained(tmp_path / "whole", recipe)
    first_end, second_end = [event["decisions"] for event in whole.events("episode")][:2]
    for stop, lives in (
        (first_end, 1),  # the moment after a life is lost: the next one is still to begin
        (first_end + 1, 2),
        (second_end - 1, 2),
        (second_end + 5, 3),
    ):
        with pytest.raises(Stopped):
            trained(tmp_path / "parts", recipe, Silent(interrupt_at=stop))
        state = Run.open(tmp_path / "parts").restore()
        assert [state["position"]["decisions"], len(state["world"]["actions"])] == [stop, lives]
        assert state["world"]["running"] == (stop != first_end)
    parts, _ = trained(tmp_path / "parts", recipe)
    assert events(parts) == events(whole)
    assert same_end(parts, whole)
    frames = [(path / "replay" / "frames.u8").read_bytes() for path in (whole.path, parts.path)]
    assert frames[0] == frames[1]


@pytest.mark.slow
def test_a_game_is_continued_after_a_crash_while_it_is_learnt(tmp_path: Path):
    recipe = tiny_breakout()
    whole, _ = trained(tmp_path / "whole", recipe)
    for at in (150, 230):  # from the checkpoints of decision 100 and 200
        crash(tmp_path / "crashed", recipe, at=at)
        state = Run.open(tmp_path / "crashed").restore()
        assert state["position"]["decisions"] == at // 100 * 100
        assert len(state["world"]["actions"]) > 1  # in the middle of a game
    crashed, _ = trained(tmp_path / "crashed", recipe)
    assert events(crashed) == events(whole)
    assert same_end(crashed, whole)


@pytest.mark.slow
def test_an_update_logged_at_the_decision_of_the_checkpoint_is_logged_once(tmp_path: Path):
    recipe = tiny_recipe(
        checkpoint_every=60, budget=Budget(frames=120)
    )  # the first update comes right after the checkpoint of frame 60
    whole, _ = trained(tmp_path / "whole", recipe)
    crash(tmp_path / "crashed", recipe, at=70)
    crashed, _ = trained(tmp_path / "crashed", recipe)
    assert events(crashed) == events(whole)


@pytest.mark.slow
def test_what_is_saved_already_is_not_saved_again(tmp_path: Path):
    """Else the one that is kept for bad times would be of the same moment."""
    recipe = tiny_recipe()
    for _ in range(2):
        crash(tmp_path, recipe, at=101)
    run, _ = trained(tmp_path, recipe)
    assert [event["frames"] for event in run.events("checkpoint")] == [50, 100, 150]
    with pytest.raises(Stopped):
        trained(tmp_path / "stopped", recipe, Silent(interrupt_at=100))
    assert [event["frames"] for event in Run.open(tmp_path / "stopped").events("checkpoint")] == [50, 100]


def crash(path: Path, recipe: Recipe, *, at: int) -> None:
    """Train until the replay has stored this decision, and fails."""
    watcher, add = Silent(), Replay.add

    def fail(replay: Replay, *arguments: Any, **options: Any) -> None:
        add(replay, *arguments, **options)
        if watcher.clock.decisions + 1 == at:
            raise RuntimeError("a crash")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replay, "add", fail)
        with pytest.raises(RuntimeError, match="a crash"):
            trained(path, recipe, watcher)


@pytest.mark.slow
def test_every_part_of_rainbow_that_learns_is_in_the_log(tmp_path: Path):
    run, _ = trained(tmp_path, tiny_rainbow())
    update = next(run.events("update"))
    assert {"critic/loss", "critic/q", "mlr/loss", "mlr/cosine", "critic/gradient_norm"} <= update.keys()


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
    trained(tmp_path, tiny_recipe(budget=Budget(frames=50)))
    with pytest.raises(RunError, match=r"(?s)another recipe.*seed.*1.*2"):
        Run.create(tmp_path, tiny_recipe(budget=Budget(frames=50), seed=2))
    with pytest.raises(RunError, match="holds no run"):
        Run.open(tmp_path / "nothing")


def test_a_run_says_with_what_it_was_made(tmp_path: Path):
    trained(tmp_path, tiny_recipe(budget=Budget(frames=50)))
    written = json.loads((tmp_path / "versions.json").read_text())
    assert written["torch"] == torch.__version__
    assert {"python", "mujoco", "dm_control", "renderer", "platform"} <= written.keys()
    assert json.loads((tmp_path / "recipe.json").read_text())["env"]["kind"] == "toy_control"
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        *("checkpoints", "lock", "metrics.jsonl", "recipe.json", "replay", "status.json", "versions.json")
    ]


def test_a_directory_with_other_things_in_it_is_left_alone(tmp_path: Path):
    (tmp_path / "thesis.txt").write_text("precious")
    with pytest.raises(RunError, match="is not empty and holds no run"):
        Run.create(tmp_path, tiny_recipe())
    assert [file.name for file in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_torn_line_of_the_log_is_passed_over(tmp_path: Path):
    run, _ = trained(tmp_path, tiny_recipe(budget=Budget(frames=50)))
    before = list(run.events())
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "upd')
    assert list(run.events()) == before


def test_training_works_outside_the_main_thread(tmp_path: Path):
    outcome: list[Run] = []
    thread = threading.Thread(
        target=lambda: outcome.append(trained(tmp_path, tiny_recipe(budget=Budget(frames=50)))[0])
    )
    thread.start()
    thread.join()
    assert outcome[0].status == "done"


def test_a_run_of_a_version_whose_recipes_had_fewer_fields_goes_on(tmp_path: Path):
    recipe = tiny_recipe()
    file = Run.create(tmp_path, recipe).path / "recipe.json"
    fields = json.loads(file.read_text())
    del fields["overlap"]  # which is as it was before there was such a field
    file.write_text(json.dumps(fields))
    run = Run.open(tmp_path)
    train(recipe, run)
    assert Run.create(tmp_path, recipe).restore() is not None
