"""From an environment of one's own to a policy in use: recipe, run, resume, load, export."""

import json
import os
import subprocess
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import gymnasium as gym
import numpy as np
import onnxruntime
import pytest
import torch

import maskrl
import own_env
from maskrl import recipes
from maskrl.analysis.protocol import method_of
from maskrl.cli import main
from maskrl.envs import consent
from maskrl.recipes.overrides import from_json
from maskrl.recipes.schema import Recipe, as_json
from maskrl.runs import export, extend
from maskrl.runs.directory import Run
from tiny_runs import same_end, trained

FILE = Path(own_env.__file__)
TINY = [
    *("budget.frames=120", "evaluation.every=60", "evaluation.episodes=2", "checkpoint_every=20"),
    *("agent.warmup_decisions=20", "agent.batch_size=8", "agent.hidden=16", "env.size=36", "threads=1"),
    *("objective.clip_length=8", "objective.mask.cube=4,6,6"),
]
SAC = [*TINY, "agent.encoder.filters=4", "agent.auxiliary.clips=2", "env.action_repeat=1"]
RAINBOW = [*TINY, "agent.clips=2", "agent.micro_batch=none", "objective.decoder_width=16", "env.kwargs.choices=3"]


@pytest.fixture(autouse=True)
def config(tmp_path, monkeypatch):
    """What is trusted stays in the test."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv(consent.INHERITED, "")


def own(*overrides: str, **options: str) -> Recipe:
    return maskrl.recipe(f"{FILE}:make_env", *overrides, profile="lite", **options)  # type: ignore[arg-type]


# ── the recipe ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_actions_choose_the_agent_and_overrides_reach_the_constructor():
    assert own().agent.kind == "sac"
    chosen = own("env.kwargs.choices=5", "env.kwargs.length=7")
    assert chosen.agent.kind == "rainbow"
    assert chosen.env.make(seed=1, training=True).action_space == gym.spaces.Discrete(5)
    assert from_json(as_json(chosen)) == chosen
    with pytest.raises(ValueError, match="is for agent sac, because it takes continuous actions"):
        own(agent="rainbow")


@pytest.mark.parametrize(
    ("overrides", "objective"),
    [([], "mlr"), (["env.kwargs.choices=3"], "mlr"), (["objective=none", "objective=mlr"], "mlr"), ([], "mlr+spr")],
)
def test_defects_of_the_released_atari_code_are_not_inherited(overrides, objective):
    """F8 and F9: only its own scores need them, and `maskrl.recipe("atari/pong")` has them."""
    found = own("env.kwargs.choices=3", *overrides, objective=objective).objective
    mlr = getattr(found, "first", found)
    assert (mlr.masked_input_scale, mlr.count_past_end) == ("unit", False)
    assert own("env.kwargs.choices=3", method="baseline").objective is None


@pytest.mark.parametrize("profile", ["lite", "paper"])
@pytest.mark.parametrize("arguments", [[], ["env.kwargs.choices=3"]])
def test_every_value_has_a_source(profile, arguments):
    recipe = maskrl.recipe(f"{FILE}:make_env", *arguments, profile=profile)
    unexplained = [line.path for line in recipes.explain(recipe) if line.source.startswith("ours: the paper has no")]
    assert not unexplained
    overridden = [line.path for line in recipes.explain(recipe) if line.source.startswith("override")]
    assert not overridden


@pytest.mark.parametrize(("arguments", "path", "value"), [([], "", {}), (["env.kwargs.choices=3"], ".choices", 3)])
def test_arguments_of_the_constructor_are_explained_also_if_there_are_none(arguments, path, value):
    found = [line for line in recipes.explain(own(*arguments)) if line.path.startswith("env.kwargs")]
    assert found == [(f"env.kwargs{path}", value, "of the constructor: env.kwargs.NAME=VALUE", None)]


def test_runs_are_told_apart_without_their_environment():
    assert method_of(own("objective.mask.ratio=0.3")) == "mlr objective.mask.ratio=0.3"
    assert method_of(own(method="baseline")) == "baseline"
    stranger = replace(own(), env=replace(own().env, sha256="0" * 64, kwargs={"run": "me"}))
    assert method_of(stranger) == "mlr"


# ── the run ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("overrides", [SAC, RAINBOW])
def test_a_stopped_run_continues_to_the_same_end(tmp_path, overrides):
    recipe = own(*overrides)
    whole, _ = trained(tmp_path / "whole", recipe)
    killed = "import sys, maskrl, os\nfrom maskrl.runs.state import State\nadd = State.add\n"
    killed += (
        "def until(self, *a):\n    if self.clock.decisions == 70: os.kill(os.getpid(), 9)\n    return add(self, *a)\n"
    )
    killed += "State.add = until\n"
    killed += f"maskrl.train(maskrl.recipe({f'{FILE}:make_env'!r}, *{overrides!r}, profile='lite'), sys.argv[1], [])\n"
    path = [str(Path(maskrl.__file__).parents[1]), str(FILE.parent)]
    command = [sys.executable, "-c", f"import sys\nsys.path[:0] = {path!r}\n{killed}", str(tmp_path / "killed")]
    assert subprocess.run(command, check=False).returncode == -9
    assert Run.open(tmp_path / "killed").status == "stopped"  # not running, as its file says: its process is dead
    continued, _ = trained(tmp_path / "killed", recipe)
    assert same_end(whole, continued)


def test_episodes_may_be_shorter_than_a_clip(tmp_path):
    run, _ = trained(tmp_path / "run", own(*SAC, "env.kwargs.length=5"))
    lengths = {event["length"] for event in run.events("episode")}
    assert lengths == {5}
    assert all(np.isfinite(event["mlr/loss"]) for event in run.events("update"))


def test_a_callable_can_be_trained_and_continued(tmp_path):
    recipe = maskrl.recipe(lambda: own_env.make_env(), *SAC, profile="lite")
    run = maskrl.train(recipe, tmp_path / "run", [])
    assert run.status == "done"
    assert Run.open(tmp_path / "run").recipe == recipe
    with pytest.raises(ValueError, match="overlap=true puts the environment into a separate process"):
        maskrl.train(replace(recipe, overlap=True), tmp_path / "other", [])
    with pytest.raises(
        ValueError, match=r"env\.timeout=60 puts the environment into a separate process, which cannot import"
    ):
        maskrl.train(replace(recipe, env=replace(recipe.env, timeout=60.0)), tmp_path / "third", [])


def test_the_run_of_a_callable_is_extended_from_python(tmp_path, capsys):
    recipe = maskrl.recipe(lambda: own_env.make_env(), *SAC, "budget.frames=60", profile="lite")
    run = maskrl.train(recipe, tmp_path / "run", [])
    with pytest.raises(SystemExit):
        main(["extend", str(run.path), "budget.frames=120", "--trust"])
    assert "only that program can continue" in capsys.readouterr().err
    longer = extend.extend(run, extend.plan(run, ["budget.frames=120"]).recipe)
    assert maskrl.train(longer.recipe, run.path, []).status == "done"
    assert Run.open(run.path).scores[-1]["frames"] == 120


HANGS = """
import multiprocessing, os, time
import own_env

class Hangs(own_env.Dot):
    def step(self, action):
        apart = multiprocessing.parent_process() is not None  # not an evaluation, which plays in the run's process
        if apart and self.steps == 11 and os.path.exists(__file__ + ".hang"):
            os.unlink(__file__ + ".hang")
            time.sleep(600)
        return super().step(action)
"""


def test_a_time_limit_alone_kills_an_environment_that_hangs_and_changes_no_bit(tmp_path):
    mine, hang = tmp_path / "mine.py", tmp_path / "mine.py.hang"
    mine.write_text(HANGS)
    short = [*SAC, "budget.frames=60"]
    whole, _ = trained(tmp_path / "whole", maskrl.recipe(f"{mine}:Hangs", *short, profile="lite"))
    hang.touch()
    run, _ = trained(tmp_path / "run", maskrl.recipe(f"{mine}:Hangs", *short, "env.timeout=8", profile="lite"))
    assert not hang.exists()
    assert any("did not answer for 8 seconds and was killed" in event["text"] for event in run.events("note"))
    assert same_end(whole, run)


def test_a_policy_takes_pictures_and_answers_in_the_environments_own_range(tmp_path):
    run, _ = trained(tmp_path / "run", own(*SAC))
    policy = maskrl.load(run.path)
    env, made = own_env.make_env(), run.recipe.env.make(seed=1, training=False)
    picture, _ = env.reset(seed=3)
    stacked, _ = made.reset(seed=3)
    for _ in range(5):
        action = policy.act(picture)
        assert action in env.action_space
        inner = policy.network.act(stacked[None])[0]
        assert (made.unwrapped.outside.actions.outward(inner) == action).all()
        picture, *_ = env.step(action)
        stacked, *_ = made.step(inner)
    policy.reset()
    assert policy.act(np.stack([picture] * 3)).shape == (3, 2)
    with pytest.raises(ValueError, match=r"expected a picture of uint8 with shape \(40, 60, 3\)"):
        policy.act(picture[:30])


# ── export ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("grey", [False, True])
def test_an_exported_policy_sees_the_same_frames_to_the_bit(tmp_path, grey):
    recipe = own(*SAC, f"env.colour={'grey' if grey else 'rgb'}", "budget.frames=20", "evaluation.every=20")
    run, _ = trained(tmp_path / "run", recipe)
    policy = maskrl.load(run.path)
    pictures = np.random.default_rng(0).integers(256, size=(4, 3, 40, 60, 3), dtype=np.uint8)
    made = export.Exported(policy).frames(torch.from_numpy(pictures)).numpy()
    expected = [np.concatenate([policy.outside.picture.frame(one) for one in stack]) for stack in pictures]
    assert (made == np.stack(expected)).all()


@pytest.mark.parametrize(("overrides", "ending"), [(SAC, "onnx"), (RAINBOW, "onnx"), (SAC, "pt2")])
def test_an_exported_policy_plays_the_same(tmp_path, capsys, overrides, ending):
    run, _ = trained(tmp_path / "run", own(*overrides))
    out = tmp_path / f"policy.{ending}"
    main_ends("export", str(run.path), "--out", str(out), "--observations", "50", "--episodes", "2")
    assert "the same returns over 2 episodes" in capsys.readouterr().out
    if ending == "onnx":
        session = onnxruntime.InferenceSession(out)
        about = json.loads(session.get_modelmeta().custom_metadata_map["maskrl.json"])
        assert about["proof"]["observations"] == 50
        assert about["proof"]["largest_difference"] < 1e-5
        assert from_json(json.dumps(about["recipe"])) == run.recipe
        stack = about["frame_stack"]
        (actions,) = session.run(None, {"pictures": np.zeros((7, stack, 40, 60, 3), np.uint8)})
        assert len(actions) == 7


WAYS = {
    "observed": ("env.kwargs.layout=CHW", "env.max_of_two=true", "env.action_repeat=3", "env.time_limit=13"),
    "drawn": ("env.kwargs.layout=vector", "env.kwargs.render_mode=rgb_array", "env.pixels=render"),
}
ALONE = """
import runpy, sys
sys.modules["torch"] = sys.modules["maskrl"] = None  # an import of them fails
print(runpy.run_path(sys.argv[1])["main"](*sys.argv[2:4], episodes=2))
"""


@pytest.mark.parametrize("way", WAYS)
def test_the_example_plays_as_the_policy_does_without_torch_and_maskrl(tmp_path, way):
    run, _ = trained(
        tmp_path / "run", own(*SAC, *WAYS[way], "budget.frames=90", "evaluation.every=90", "checkpoint_every=90")
    )
    out, factory = tmp_path / "policy.onnx", tmp_path / "my_env.py"
    main_ends("export", str(run.path), "--out", str(out), "--observations", "5", "--episodes", "1")
    kwargs = run.recipe.env.kwargs
    factory.write_text(f"import own_env\ndef make_env():\n    return own_env.make_env(**{kwargs!r})\n")
    example = FILE.parents[1] / "examples" / "play_onnx.py"
    command = [sys.executable, "-c", ALONE, str(example), str(out), f"{factory}:make_env"]
    played = subprocess.run(
        command, env=os.environ | {"PYTHONPATH": str(FILE.parent)}, capture_output=True, text=True, check=True
    )
    policy, expected = maskrl.load(run.path), []
    with closing(run.recipe.env.make(seed=1, training=False)) as env:
        for seed in range(2):
            env.reset(seed=seed)
            policy.reset()
            total, ended = 0.0, False
            while not ended:
                _, reward, terminated, truncated, _ = env.unwrapped.step_outside(policy.act(env.unwrapped.raw()))
                total, ended = total + reward, terminated or truncated
            expected.append(total)
    assert json.loads(played.stdout.splitlines()[-1]) == expected


def test_a_proof_says_how_far_returns_are_apart():
    proof = export.Proof("observations of its own play", 10, 1e-7, returns=(3.0, 4.5), policy_returns=(3.0, 4.25))
    assert proof.words.endswith("returns that differ by up to 0.25 over 2 episodes")


def test_an_export_of_a_strangers_run_runs_no_code(tmp_path, capsys, monkeypatch):
    run, _ = trained(tmp_path / "run", own(*SAC))
    monkeypatch.setenv(consent.INHERITED, "")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "stranger"))
    main_ends("export", str(run.path), "--out", str(tmp_path / "policy.onnx"))
    assert "random pictures" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["evaluate", str(run.path)])
    assert "--trust" in capsys.readouterr().err
    main_ends("evaluate", str(run.path), "--episodes", "1", "--trust", "--json")
    assert json.loads(capsys.readouterr().out)["frames"] == 120
    monkeypatch.setenv(consent.INHERITED, "")  # another process: --trust was for one command
    with pytest.raises(SystemExit):
        main(["evaluate", str(run.path)])
    assert "--trust" in capsys.readouterr().err
    main_ends("evaluate", str(run.path), "--episodes", "1", "--env", f"{FILE}:make_env", "--json")
    assert json.loads(capsys.readouterr().out)["frames"] == 120


@pytest.mark.parametrize("name", ["gym/strangers_module:Env-v0", "strangers_file.py:make_env"])
def test_the_name_of_a_strangers_run_is_not_taken_for_what_the_user_typed(tmp_path, name, monkeypatch, capsys):
    """Commands that look for the task's usual recipe must not import what the run's recipe names."""
    monkeypatch.chdir(tmp_path)
    for file in ("strangers_module.py", "strangers_file.py"):
        (tmp_path / file).write_text("open('ran', 'w').close()\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    run, _ = trained(tmp_path / "run", own(*[line for line in SAC if "objective" not in line], method="baseline"))
    tree = json.loads((run.path / "recipe.json").read_text())
    tree["name"], tree["env"] = (
        name,
        tree["env"] | {"source": "id", "task": "strangers_module:Env-v0", "file": None, "sha256": None},
    )
    (run.path / "recipe.json").write_text(json.dumps(tree))
    for words in (
        ["masks", "run"],
        ["probe", "run"],
        ["pretrain", "run", "--out", "encoder"],
        ["report", "run"],
        ["evaluate", "run"],
    ):
        with pytest.raises(SystemExit):
            main(words)
    assert not (tmp_path / "ran").exists()


def test_an_export_never_replaces_what_is_not_one(tmp_path, capsys):
    run, _ = trained(tmp_path / "run", own(*SAC, "budget.frames=20", "evaluation.every=20"))
    out = tmp_path / "notes.onnx"
    out.write_text("mine")
    with pytest.raises(SystemExit):
        main(["export", str(run.path), "--out", str(out)])
    assert "not an earlier output" in capsys.readouterr().err
    assert out.read_text() == "mine"


@pytest.mark.parametrize("ending", ["onnx", "pt2"])
def test_an_export_of_another_run_is_replaced_only_on_request(tmp_path, capsys, ending):
    short = ("budget.frames=20", "evaluation.every=20")
    mine, other = (trained(tmp_path / f"run{seed}", own(*SAC, *short, f"seed={seed}"))[0] for seed in (1, 2))
    out, quick = tmp_path / f"policy.{ending}", ("--observations", "5", "--episodes", "0")
    main_ends("export", str(mine.path), "--out", str(out), *quick)
    main_ends("export", str(mine.path), "--out", str(out), *quick)  # the same run: a newer checkpoint, perhaps
    before = out.read_bytes()
    with pytest.raises(SystemExit):
        main(["export", str(other.path), "--out", str(out), *quick])
    assert f"{out} is an exported policy of another run (gym/own_env.py:make_env, seed 1)" in capsys.readouterr().err
    assert out.read_bytes() == before
    main_ends("export", str(other.path), "--out", str(out), *quick, "--force")
    facts = export.facts_of(out)
    assert facts is not None
    assert facts["recipe"]["seed"] == 2


def test_an_extended_run_may_replace_its_earlier_export(tmp_path):
    run, _ = trained(tmp_path / "run", own(*SAC, "budget.frames=20", "evaluation.every=20"))
    out, quick = tmp_path / "policy.pt2", ("--observations", "5", "--episodes", "0")
    main_ends("export", str(run.path), "--out", str(out), *quick)
    main_ends("extend", str(run.path), "budget.frames=40", "--log", "none")
    main_ends("export", str(run.path), "--out", str(out), *quick)
    facts = export.facts_of(out)
    assert facts is not None
    assert facts["trained"]["frames"] == 40


def test_an_export_that_cannot_be_checked_changes_nothing(tmp_path, monkeypatch):
    """The check plays in the environment, which may fail; then the file of before is still there, and no other."""
    run, _ = trained(tmp_path / "run", own(*SAC, "budget.frames=20", "evaluation.every=20"))
    (tmp_path / "out").mkdir()
    out = tmp_path / "out" / "policy.pt2"
    main_ends("export", str(run.path), "--out", str(out), "--observations", "5", "--episodes", "0")
    before = out.read_bytes()

    def fails(*_: object) -> None:
        raise KeyError("gripper")

    monkeypatch.setattr(sys.modules[type(own_env_of(run)).__module__].Dot, "step", fails)
    with pytest.raises(SystemExit) as ended:
        main(["export", str(run.path), "--out", str(out)])
    assert ended.value.code == 1
    assert out.read_bytes() == before
    assert list(out.parent.iterdir()) == [out]


def own_env_of(run: Run) -> gym.Env:
    """The environment of the run's file, which is a module of its own, not this test's `own_env`."""
    return run.recipe.env.open().unwrapped


def main_ends(*words: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert ended.value.code in (None, 0)
