"""What an encoder has learned to see, on encoders whose answers can be worked out; then on runs; then MLR-Pre"""

import hashlib
import json
import math
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file
from torch import Tensor, nn

from builders import Silent, at, require_drawing
from maskrl import Clip, recipes
from maskrl.agents.base import Spaces
from maskrl.envs import Atari, DMControl, ToyArcade, ToyControl
from maskrl.envs.base import state_of
from maskrl.nn.encoders import Encoder
from maskrl.nn.masking import CubeMasker
from maskrl.objectives.base import Host, Needs, Objective
from maskrl.recipes.overrides import from_json, with_overrides
from maskrl.recipes.schema import Budget, Evaluation, Recipe, ReplayConfig, as_json, digest
from maskrl.replay.buffer import Replay
from maskrl.representation import latents as representation
from maskrl.representation import pretrain as pretraining
from maskrl.representation.latents import (
    dead_channels,
    dead_units,
    effective_rank,
    latents,
    linear_probe,
    masking,
    mean_cosine,
    play,
    split,
    summary,
    varying,
)
from maskrl.representation.probe import probe
from maskrl.runs import encoder_file
from maskrl.runs.build import build_agent, load_encoder, replay_size
from maskrl.runs.directory import Run, RunError
from maskrl.runs.loop import train
from maskrl.runs.signals import Stopped
from maskrl.runs.state import State
from tiny_runs import events, same, same_end, tiny_rainbow, tiny_recipe, trained

# ── Cosine ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class LeftHidden:
    """Hides the left half of every frame."""

    def __call__(self, x: Tensor) -> Tensor:
        keep = torch.ones(1, x.shape[1], 1, *x.shape[-2:], dtype=torch.bool)
        keep[..., : x.shape[-1] // 2] = False
        return keep

    def hide(self, x: Tensor, keep: Tensor) -> Tensor:
        return torch.where(keep, x, 0)


class Columns(Encoder):
    """The latent is the row of pixels itself, or some columns of it."""

    def __init__(self, *columns: int) -> None:
        super().__init__()
        self.columns = list(columns)

    def features(self, pixels: Tensor) -> Tensor:
        return pixels[..., self.columns]

    def embed(self, features: Tensor) -> Tensor:
        return features.flatten(1)


def clip_of(*rows: list[int]) -> Clip:
    """One clip of observations of one row of pixels."""
    obs = torch.tensor(rows, dtype=torch.uint8)[None, :, None, None]
    return Clip(obs, torch.zeros(1, len(rows), 1))


def cosine(encoder: Encoder, *clips: Clip) -> float:
    seen = latents(encoder, LeftHidden(), clips)
    return mean_cosine(seen.masked, seen.original)


def test_an_encoder_that_does_not_look_at_what_is_hidden_has_a_cosine_of_1():
    clip = clip_of([10, 200, 30, 40], [1, 2, 3, 4], [9, 9, 0, 7])
    assert cosine(Columns(2, 3), clip) == pytest.approx(1)


def test_the_cosine_of_an_encoder_that_sees_all_is_that_of_the_pixels():
    same, three_to_four = clip_of([50, 50, 50, 50]), clip_of([0, 4, 0, 3])
    assert cosine(Columns(0, 1, 2, 3), same) == pytest.approx(math.sqrt(1 / 2))
    assert cosine(Columns(0, 1, 2, 3), three_to_four) == pytest.approx(3 / 5)
    assert cosine(Columns(0, 1, 2, 3), same, three_to_four) == pytest.approx((math.sqrt(1 / 2) + 3 / 5) / 2)


def test_the_mean_latent_is_taken_away_from_both_sides():
    original, masked = torch.tensor([[1.0, 10.0], [-1.0, 10.0]]), torch.tensor([[0.0, 11.0], [-3.0, 10.0]])
    assert mean_cosine(masked, original) > 0.9  # what they share hides that the first points elsewhere
    assert mean_cosine(masked, original, centred=True) == pytest.approx((0 + 1) / 2)


def test_masked_and_original_are_seen_through_the_same_window():
    class RightOnly(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images[..., 2:]

    clip = clip_of([10, 200, 30, 40])
    seen = latents(Columns(0, 1), LeftHidden(), [clip], centre=RightOnly())
    assert torch.allclose(seen.original * 255, torch.tensor([[30.0, 40.0]]))
    assert torch.equal(seen.masked, seen.original)


def test_the_objective_is_asked_about_both_and_gets_the_masked_side_as_in_training():
    class Doubling(Objective):
        masked_scale = 255.0

        def decode(self, states: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
            return 2 * states

    clip, host = clip_of([50, 50, 50, 50]), Host(nn.Identity(), latent_dim=2, action_dim=1)
    seen = latents(Columns(0, 3), LeftHidden(), [clip], objective=Doubling(host, needs=Needs(1)))
    assert torch.allclose(seen.masked * 255, torch.tensor([[0.0, 50.0]]))
    original, masked = seen.decoded
    assert torch.allclose(original * 255, torch.tensor([[100.0, 100.0]]))
    assert torch.allclose(masked, torch.tensor([[0.0, 100.0]]))
    assert summary(seen)["decoder_cosine"] == pytest.approx(math.sqrt(1 / 2))


def test_an_objective_that_predicts_no_states_has_no_cosine_of_its_own():
    clip, host = clip_of([50, 50, 50, 50]), Host(nn.Identity(), latent_dim=2, action_dim=1)
    seen = latents(Columns(0, 3), LeftHidden(), [clip], objective=Objective(host, needs=Needs(1)))
    assert seen.decoded is None
    assert "decoder_cosine" not in summary(seen)


def test_every_batch_of_clips_gets_a_mask_of_its_own_and_torchs_generator_stays():
    clip = Clip(torch.full((2, 4, 1, 8, 8), 255, dtype=torch.uint8), torch.zeros(2, 4, 1))

    class Everything(Columns):
        def features(self, pixels: Tensor) -> Tensor:
            return pixels

    before = torch.get_rng_state()
    one, again, other = (latents(Everything(), CubeMasker((4, 2, 2)), [clip] * 2, seed=seed) for seed in (0, 0, 1))
    assert torch.equal(before, torch.get_rng_state())
    assert torch.equal(one.masked, again.masked)
    assert not torch.equal(one.masked, other.masked)
    first, second = one.masked.chunk(2)
    assert torch.equal(first, first[:1].expand_as(first))  # shared within a batch, as in training
    assert not torch.equal(first, second)


@pytest.mark.parametrize("name", [name for name in recipes.names() if not name.startswith("atari/") or "pong" in name])
@pytest.mark.parametrize("profile", ["paper", "lite"])
def test_without_an_objective_the_masks_are_as_coarse_and_hide_as_much_as_those_of_the_tasks_own(name, profile):
    (own, length), (usual, _) = (masking(recipes.find(name, profile, method)) for method in ("mlr", "baseline"))
    size, (_, *sides) = recipes.find(name, profile).env.size, own.cube
    assert list(usual.cube) == [1, *sides]
    cells = (size // sides[0]) ** 2
    assert usual.build().hidden_fraction(length, cells) == own.build().hidden_fraction(length // own.cube[0], cells)
    assert (usual.fill, usual.ratio) == (own.fill, own.ratio)


def test_a_recipe_that_masks_features_is_probed_with_patches_of_pixels():
    recipe = recipes.ablation("variants/MLR-F", profile="paper")
    assert masking(recipe)[0].cube == (1, 10, 10)
    assert masking(recipe)[1] == 16


# ── Rank and dead units ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("k", [1, 2, 5])
@pytest.mark.parametrize("shape", ["more observations", "more units"])
def test_k_orthogonal_directions_of_one_weight_have_rank_k(k: int, shape: str):
    rows = torch.cat([torch.eye(k), -torch.eye(k)])  # centred
    padded = nn.functional.pad(rows, (0, 20)) if shape == "more units" else rows.repeat(9, 1)
    assert effective_rank(3 * padded + 7) == pytest.approx(k, rel=1e-6)


def test_rank_by_hand():
    """Singular values 2 and 1, shares 2/3 and 1/3: exp of -(2/3)·ln(2/3) - (1/3)·ln(1/3), which is 3 / 2^(2/3)."""
    x = torch.tensor([[2.0, 0.0], [-2.0, 0.0], [0.0, 1.0], [0.0, -1.0]])
    assert effective_rank(x) == pytest.approx(3 / 2 ** (2 / 3))
    assert effective_rank(torch.ones(5, 3)) == 0


@given(seed=st.integers(0, 1000), n=st.integers(2, 12), d=st.integers(1, 12), scale=st.floats(1e-3, 1e3))
def test_rank_lies_between_one_and_what_fits_and_does_not_see_scale_or_rotation(seed, n, d, scale):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, d, generator=generator, dtype=torch.float64)
    rotation = torch.linalg.qr(torch.randn(d, d, generator=generator, dtype=torch.float64)).Q
    rank = effective_rank(x)
    assert 1 - 1e-9 <= rank <= min(n - 1, d) + 1e-9
    assert effective_rank(scale * x @ rotation + 5) == pytest.approx(rank, rel=1e-6)


def test_dead_units_are_those_that_do_not_change():
    x = torch.tensor([[0.0, 1.0, 5.0, 0.0], [0.0, 2.0, 5.000001, 1e-3], [0.0, 3.0, 5.0, 0.0]])
    assert dead_units(x) == 0.5  # the second is alive, and the last one, if only just
    assert dead_units(torch.ones(4, 3)) == 1


def test_a_channel_is_dead_if_it_shows_the_same_at_every_place_of_every_observation():
    class Maps(Columns):
        def features(self, pixels: Tensor) -> Tensor:
            varies, never, edge = pixels, torch.zeros_like(pixels), torch.zeros_like(pixels)
            edge[..., 0] = 1  # alive, though no two observations differ in it
            return torch.cat([varies, never, edge, never], dim=1)

    clips = [clip_of([1, 1, 1]), clip_of([2, 2, 2])]  # within a batch the first is constant, too
    seen = latents(Maps(), LeftHidden(), clips)
    assert dead_channels(seen.low, seen.high) == 0.5


# ── The linear probe ──────────────────────────────────────────────────────────────────────────────────────────────────


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


EPISODES = torch.arange(400) // 40


def test_what_is_linear_in_the_latent_is_read_off_it_and_noise_is_not():
    x = numbers(400, 6)
    states = torch.stack([x[:, 0], 100 + 3 * x[:, 1] - x[:, 2], numbers(400, seed=1)], dim=1)
    first, second, noise = linear_probe(x, states, EPISODES).tolist()
    assert [first, second] == pytest.approx([1, 1], abs=1e-6)
    assert noise == pytest.approx(0, abs=0.05)


def test_half_of_a_state_in_the_latent_is_half_of_its_variance():
    x = numbers(4000, 2)
    (half,) = linear_probe(x[:, :1], x.sum(dim=1, keepdim=True), torch.arange(4000) // 40).tolist()
    assert half == pytest.approx(0.5, abs=0.05)


def test_the_mean_has_an_r2_of_0():
    (r2,) = linear_probe(torch.ones(400, 3), numbers(400, 1), EPISODES).tolist()
    assert r2 == pytest.approx(0, abs=1e-12)


def test_the_split_is_by_episode_never_by_frame():
    known, new = split(EPISODES)
    assert set(EPISODES[known].tolist()) == set(range(8))
    assert set(EPISODES[new].tolist()) == {8, 9}
    # The latent tells which episode it is, the state is drawn once for each: a split by frame would find R² near 1.
    (r2,) = linear_probe(nn.functional.one_hot(EPISODES, 10), numbers(10, 1)[EPISODES], EPISODES).tolist()
    assert r2 < 0.1
    with pytest.raises(ValueError, match="at least two episodes"):
        split(torch.zeros(5))


def test_a_value_that_hardly_varies_is_left_out():
    often, seldom, early, late = torch.zeros(4, 400)
    often[::2], seldom[7], early[:40], late[-40:] = 1, 1, 5, 5  # the last two differ on one side of the split alone
    assert varying(torch.stack([often, seldom, early, late], dim=1), EPISODES).tolist() == [True, False, False, False]


def test_states_are_those_of_the_observations_and_every_second_episode_is_random():
    recipe = tiny_recipe(env=ToyControl(size=28))
    env = recipe.env.make(seed=1, training=False)
    agent = build_agent(recipe, env)
    asked = []
    agent.act = lambda obs, *_, **how: asked.append(how) or np.ones((1, 2), np.float32)  # type: ignore[method-assign]
    lived = play(agent, env, [agent.encoder], decisions=90, longest=30, seed=3, clock=at(150))
    assert lived.names == ["dot.x", "dot.y", "goal.x", "goal.y"]
    assert lived.episodes.tolist() == [0] * 30 + [1] * 30 + [2] * 30
    assert asked == [{"explore": True, "clock": at(150)}] * 60
    dots = lived.states[:, 0].reshape(3, 30)
    assert dots[0].tolist() == pytest.approx([min(0.15 * step, 1) for step in range(30)])
    assert dots[1, 5] != dots[0, 5]
    env.reset(seed=7)
    obs = torch.from_numpy(env.step(np.array([1, -1], np.float32))[0])
    assert state_of(env)["dot.y"] == pytest.approx(-0.15)
    assert lived.latents[0].shape == (90, agent.encoder.latent_dim)
    with torch.no_grad():
        assert agent.policy().encode(obs[None]).shape == lived.latents[0][:1].shape


def test_an_environment_that_does_not_tell_its_state_is_not_asked_twice():
    class Mute(gym.Wrapper):
        unwrapped = property(lambda self: self)

    recipe = tiny_recipe()
    env = Mute(recipe.env.make(seed=1, training=False))
    env.state = np.zeros(4)  # as Gymnasium's CartPole has it
    agent = build_agent(recipe, env)
    assert play(agent, env, [agent.encoder], decisions=90, longest=30, seed=3, clock=at(150)) is None


def test_the_states_of_a_game_and_of_the_console():
    env = ToyArcade().make(seed=1, training=False)
    env.reset(seed=1)
    assert state_of(env) == {"paddle": 4, "ball.row": 0, "ball.column": env.unwrapped.column}
    pytest.importorskip("ale_py")
    env = Atari(task="pong").make(seed=1, training=False)
    env.reset(seed=1)
    assert list(state_of(env).values()) == env.unwrapped.ram().tolist()


@pytest.mark.parametrize("task", ["reacher-hard", "walker-run", "cartpole-swingup"])
def test_a_task_of_the_suite_tells_what_it_shows_an_agent_without_eyes(task: str):
    require_drawing()
    env = DMControl(task=task, action_repeat=4, size=16, shadow_size=64).make(seed=1, training=False)
    env.reset(seed=1)
    first = state_of(env)
    _, _, terminated, truncated, _ = env.step(env.action_space.sample())
    assert [terminated, truncated] == [False, False]
    assert list(first) == list(state_of(env))
    assert first != state_of(env)
    groups = {name.partition("[")[0] for name in first}
    assert (
        groups
        == {
            "reacher-hard": {"position", "to_target", "velocity"},
            "walker-run": {"orientations", "height", "velocity"},
            "cartpole-swingup": {"position", "velocity"},
        }[task]
    )
    env.close()


# ── During training ───────────────────────────────────────────────────────────────────────────────────────────────────

each_agent = pytest.mark.parametrize("make", [tiny_recipe, tiny_rainbow], ids=["SAC", "Rainbow"])
NUMBERS = {"encoder_cosine", "encoder_cosine_centred", "rank", "dead", "dead_channels"}


@pytest.mark.slow
@pytest.mark.parametrize("name", [pytest.param("baseline", marks=pytest.mark.slow), "mlr", "rainbow"])
def test_a_run_logs_a_probe_at_every_evaluation_and_is_not_changed_by_it(finished, name, tmp_path, monkeypatch):
    run = finished[name]
    probes = list(run.events("probe"))
    assert [event["frames"] for event in probes] == [50, 100]  # at 0 there is nothing to look at
    for event in probes:
        assert set(event) - {"kind", "frames", "decisions", "updates", "seconds"} == NUMBERS | (
            {"decoder_cosine"} if name != "baseline" else set()
        )
        assert all(math.isfinite(event[name]) for name in NUMBERS)
    monkeypatch.setattr("maskrl.runs.state.cheap_probe", lambda *_: None)
    without, _ = trained(tmp_path / "without", run.recipe)
    assert not list(without.events("probe"))
    assert [event for event in events(run) if event["kind"] != "probe"] == events(without)
    assert same_end(run, without)


def test_a_glance_touches_no_generator():
    recipe = tiny_recipe()
    env = recipe.env.make(seed=1, training=True)
    agent, replay = build_agent(recipe, env), filled(recipe)
    before = [torch.get_rng_state(), np.random.get_state()[1].copy(), replay.state_dict()["generators"]]
    weights = [parameter.clone() for parameter in agent.encoder.parameters()]
    assert representation.cheap_probe(agent, replay, recipe) == representation.cheap_probe(agent, replay, recipe)
    after = [torch.get_rng_state(), np.random.get_state()[1], replay.state_dict()["generators"]]
    assert torch.equal(before[0], after[0])
    assert (before[1] == after[1]).all()
    assert before[2] == after[2]
    assert all(map(torch.equal, weights, agent.encoder.parameters()))
    assert representation.cheap_probe(agent, filled(recipe, decisions=0), recipe) is None


def filled(recipe: Recipe, decisions: int = 40) -> Replay:
    """What random actions lead to."""
    env = recipe.env.make(seed=1, training=True)
    spaces, generator = Spaces.of(env), np.random.default_rng(0)
    replay = Replay(frame_shape=(3, 28, 28), action_dim=2, frame_stack=3, capacity=100, seed=0)
    obs, _ = env.reset(seed=1)
    replay.begin_episode(obs)
    for _ in range(decisions):
        action = spaces.random_action(generator)
        obs, reward, terminated, truncated, _ = env.step(action)
        replay.add(action, reward, obs, terminated=terminated, truncated=truncated)
    return replay


def test_the_time_of_every_part_is_logged_piece_by_piece(tmp_path):
    short = {"budget": Budget(frames=80), "evaluation": Evaluation(every=40, episodes=1)}
    run, agent = trained(tmp_path, tiny_recipe(**short))
    timings = list(run.events("timing"))
    assert [event["frames"] for event in timings] == [0, 40, 80]
    assert set(timings[-1]["parts"]) >= {"environment", "critic", "objective", "evaluation", "probe", "checkpoint"}
    assert timings[0]["parts"].get("critic", 0) == 0
    for part in ("environment", "critic", "evaluation"):  # the pieces add up, to the last evaluation
        assert sum(event["parts"].get(part, 0) for event in timings) == pytest.approx(
            agent.watch.seconds[part], abs=0.01
        )
    lines = (tmp_path / "metrics.jsonl").read_text().replace('"parts": {', '"parts": {"x": "y", ', 1)
    (tmp_path / "metrics.jsonl").write_text(lines)
    assert len(list(run.events("timing"))) == len(timings) - 1  # no number: no event of ours


# ── Of a run ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("maskrl.representation.probe.DECISIONS", 400)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Run]:
    """Small runs that are done: 100 decisions, of which the first 60 are random."""
    control, arcade = {"budget": Budget(frames=100)}, {"budget": Budget(decisions=100)}
    recipes = {
        "mlr": tiny_recipe(**control),
        "baseline": tiny_recipe(mlr=False, **control),
        "rainbow": tiny_rainbow(**arcade),
    }
    return {name: trained(tmp_path_factory.mktemp(name), recipe)[0] for name, recipe in recipes.items()}


def sums(run: Run) -> dict[str, str]:
    files = (file for file in sorted(run.path.rglob("*")) if file.is_file() and file.name != "probe.json")
    return {str(file): hashlib.sha256(file.read_bytes()).hexdigest() for file in files}


@pytest.mark.parametrize("name", ["mlr", "baseline", "rainbow"])
def test_a_run_is_probed_to_the_same_numbers_every_time_and_is_not_touched(finished, name):
    run, told = finished[name], list[str]()
    before, generator = sums(run), torch.get_rng_state()
    found = probe(run, tell=told.append)
    assert sums(run) == before
    assert torch.equal(generator, torch.get_rng_state())
    assert json.loads((run.path / "probe.json").read_text()) == json.loads(json.dumps(found))
    torch.manual_seed(5)
    assert probe(run, tell=told.append) == found
    assert found["frames"] == 100
    assert found["observations"] == found["clips"] * found["clip_length"] <= 100
    assert "fewer than 10,000" in told[0]
    assert (found["decoder_cosine"] is None) == (name == "baseline")
    linear = found["linear"]
    expected = ["paddle", "ball.row", "ball.column"] if name == "rainbow" else ["dot.x", "dot.y", "goal.x", "goal.y"]
    assert linear["names"] == expected
    assert linear["r2"] == pytest.approx(np.mean(linear["per_value"]))
    assert linear["fitted_to"] > linear["tested_on"] > 0


def test_results_of_earlier_checkpoints_are_kept(finished):
    """Probed at 40 and 80 frames before: probe.json has them below the newest result. Of a later time there is nothing."""
    run = finished["baseline"]
    first, second, later = ({"frames": frames, "rank": frames / 10, "linear": None} for frames in (40, 80, 120))
    for before, kept in (({**second, "earlier": [first, 7]}, [first, second]), (later, []), ({"earlier": 3}, [])):
        (run.path / "probe.json").write_text(json.dumps(before))
        assert probe(run, clips=2, tell=no_words)["earlier"] == kept
        again = probe(run, clips=2, tell=no_words)
        assert again["earlier"] == kept == json.loads((run.path / "probe.json").read_text())["earlier"]


def test_the_masks_and_the_number_of_clips_can_be_given(finished):
    mask = tiny_recipe().objective
    found = probe(finished["baseline"], like=mask, clips=2, tell=no_words)
    assert (found["clips"], found["observations"]) == (2, 16)
    assert tuple(found["mask"]["cube"]) == mask.mask.cube


def no_words(text: str) -> None:
    raise AssertionError(text)


def test_a_run_without_files_of_its_replay_is_probed_from_its_checkpoint(tmp_path):
    short = {"budget": Budget(frames=70), "evaluation": Evaluation(every=70, episodes=1)}
    run, _ = trained(tmp_path, tiny_recipe(replay=ReplayConfig(storage="memory"), **short))
    assert probe(run, tell=lambda _: None)["clips"] > 5


def test_what_cannot_be_probed_is_said(finished, tmp_path):
    run = Run.create(tmp_path / "new", tiny_recipe())
    with pytest.raises(RunError, match="no checkpoint yet"):
        probe(run)
    run = Run.open(shutil.copytree(finished["mlr"].path, tmp_path / "copy"))
    (run.path / "replay" / "frames.u8").rename(tmp_path / "frames.u8")
    with pytest.raises(RunError, match="has no replay any more"):
        probe(run)
    assert not (run.path / "replay" / "frames.u8").exists()


# ── MLR-Pretraining ───────────────────────────────────────────────────────────────────────────────────────────────────


class Looking:
    """Counts, and may interrupt."""

    def __init__(self, *, stop: tuple[str, int] | None = None) -> None:
        self.seen: list[tuple[str, int, int]] = []
        self.stop = stop

    def __call__(self, stage: str, done: int, total: int, metrics: object) -> None:
        self.seen.append((stage, done, total))
        if self.stop == (stage, done):
            os.kill(os.getpid(), signal.SIGINT)


def origin(run: Run) -> Recipe:
    return tiny_rainbow() if run.recipe.name == "toy/catch" else tiny_recipe()


def pretrained(run: Run, out: Path, look: Looking | None = None, **amounts: int) -> Path:
    plan = pretraining.plan(run, origin(run), **amounts)
    return pretraining.pretrain(run, out, plan, look or Looking(), no_words)


def test_the_default_is_as_much_as_the_run_lived_and_as_its_recipe_would_learn(finished):
    plan = pretraining.plan(finished["baseline"], origin(finished["baseline"]))
    assert (plan.transitions, plan.updates) == (100, 100 - 60)
    plan = pretraining.plan(finished["rainbow"], tiny_rainbow())
    assert (plan.transitions, plan.updates) == (100, 2 * (100 - 60))
    cheetah = recipes.find("dmcontrol/cheetah-run", "paper", "baseline")
    assert cheetah.frames // cheetah.env.action_repeat - cheetah.agent.warmup_decisions == 24_000  # the same sum


@pytest.mark.parametrize("name", ["baseline", "rainbow"])
def test_pretraining_interrupted_twice_ends_with_the_same_bytes(finished, tmp_path, name):
    run, look = finished[name], Looking()
    before = sums(run)
    whole = pretrained(run, tmp_path / "whole", look, transitions=60, updates=30)
    assert look.seen[0] == ("collecting", 1, 60)
    assert look.seen[59:61] == [("collecting", 60, 60), ("learning", 1, 30)]
    assert look.seen[-1] == ("learning", 30, 30)
    for stop in (("collecting", 45), ("learning", 11)):
        with pytest.raises(Stopped):
            pretrained(run, tmp_path / "parts", Looking(stop=stop), transitions=60, updates=30)
        assert not (tmp_path / "parts" / "encoder.safetensors").exists()
    parts = pretrained(run, tmp_path / "parts", transitions=60, updates=30)
    assert parts.read_bytes() == whole.read_bytes()
    assert sums(run) == before
    look = Looking()
    assert pretrained(run, tmp_path / "whole", look, transitions=60, updates=30) == whole
    assert look.seen == []  # it was done already
    about = encoder_file.read(whole)[1]
    assert (about["transitions"], about["updates"]) == (60, 30)
    assert [point["updates"] for point in about["curve"]] == [1, 30]
    assert about["probe"]["rank"] > 1


@each_agent
def test_the_objective_alone_moves_nothing_of_the_agent_but_its_encoder_and_what_it_lends(make):
    recipe = make()
    env = recipe.env.make(seed=1, training=True)
    agent, replay = build_agent(recipe, env), _collected(recipe)
    before = {name: value.clone() for name, value in _flat(agent.state_dict()) if isinstance(value, Tensor)}
    for _ in range(3):
        agent.update_objective(replay)
    after = dict(_flat(agent.state_dict()))
    moved = {name for name in before if not same(before[name], after[name])}
    parts = {".".join(name.split(".")[1:3]) for name in moved if name.startswith("modules.")}
    assert any(name.startswith("modules.encoder.") for name in moved)
    lent = {"head.first"} if make is tiny_rainbow else set()
    inside = {part for part in parts if not part.startswith(("encoder.", "objective."))}
    assert inside == lent
    if make is tiny_recipe:
        assert any(name.startswith("auxiliary.objective.decoder.") for name in moved)
        assert any(name.startswith("auxiliary.objective.target.prediction.") for name in moved)


def _collected(recipe: Recipe) -> Replay:
    world = pretraining.World(recipe, no_words)
    size = replay_size(recipe, world.spaces)
    replay = Replay(**{**size, "reserve": 0}, seed=0)
    agent = build_agent(recipe, world.env)
    assert len(list(pretraining.collect(agent, at(0), world, replay, 70))) == 70
    assert len(replay) == 70
    return replay


def _flat(tree: object, path: str = "") -> Iterator[tuple[str, object]]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield from _flat(value, f"{path}.{name}".lstrip("."))
    else:
        yield path, tree


def test_a_noisy_agent_does_not_collect_with_one_noise_for_all():
    recipe = tiny_rainbow()
    world = pretraining.World(recipe, no_words)
    agent, noises = build_agent(recipe, world.env), set()
    straight = agent.act

    def act(*seen: object, **how: object) -> object:
        noises.add(tuple(value.sum().item() for value in agent.head.buffers()))
        return straight(*seen, **how)

    agent.act = act
    replay = Replay(**{**replay_size(recipe, world.spaces), "reserve": 0}, seed=0)
    list(pretraining.collect(agent, at(0), world, replay, 10))
    assert len(noises) == 10


def test_another_plan_or_other_things_in_the_directory_are_refused(finished, tmp_path):
    run = finished["baseline"]
    pretrained(run, tmp_path / "a", transitions=20, updates=1)
    with pytest.raises(RunError, match=r"differs in: updates\. Choose another --out"):
        pretrained(run, tmp_path / "a", transitions=20, updates=2)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "thesis.txt").write_text("precious")
    with pytest.raises(RunError, match="is not empty and holds no pre-training"):
        pretrained(run, tmp_path / "b")
    with pytest.raises(RunError, match="no checkpoint yet"):
        pretraining.plan(Run.create(tmp_path / "c", tiny_recipe(mlr=False)), tiny_recipe())


# ── Beginning with an encoder ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def encoders(finished, tmp_path_factory) -> dict[str, Path]:
    out = tmp_path_factory.mktemp("encoders")
    names = ("baseline", "rainbow")
    return {name: pretrained(finished[name], out / name, transitions=40, updates=5) for name in names}


@pytest.mark.parametrize(("name", "make"), [("baseline", tiny_recipe), ("rainbow", tiny_rainbow)])
@pytest.mark.parametrize("mlr", [False, True])
def test_a_run_begins_with_exactly_these_weights(encoders, tmp_path, name, make, mlr, monkeypatch):
    file, begun = encoders[name], list[dict[str, Tensor]]()
    straight = State.resume

    def look(state):
        obs = straight(state)
        weights = _flat(state.agent.state_dict())
        begun.append({name: value.clone() for name, value in weights if isinstance(value, Tensor)})
        return obs

    monkeypatch.setattr(State, "resume", look)
    recipe = make(
        mlr=mlr, encoder_from=str(file), budget=Budget(frames=70), evaluation=Evaluation(every=70, episodes=1)
    )
    run, agent = trained(tmp_path / "run", recipe)
    weights, _ = encoder_file.read(file)
    assert weights.keys() == agent.encoder.state_dict().keys()
    for weight, value in weights.items():
        assert torch.equal(begun[0][f"modules.encoder.{weight}"], value)
        assert torch.equal(begun[0][f"modules.target_encoder.copy.{weight}"], value)
        if mlr:
            place = "auxiliary.objective" if make is tiny_recipe else "modules.objective"
            assert torch.equal(begun[0][f"{place}.target.encoder.copy.{weight}"], value)
    assert any(not torch.equal(agent.encoder.state_dict()[weight], weights[weight]) for weight in weights)  # not frozen
    assert run.versions()["encoder"] == hashlib.sha256(file.read_bytes()).hexdigest()[:16]


def test_the_actor_acts_on_the_convolutions_of_the_file(encoders, tmp_path):
    recipe = tiny_recipe(mlr=False, encoder_from=str(encoders["baseline"]))
    env = recipe.env.make(seed=1, training=True)
    agent = build_agent(recipe, env)
    obs = np.random.default_rng(0).integers(0, 256, (1, 9, 28, 28), dtype=np.uint8)
    before = agent.policy().act(obs)
    load_encoder(recipe, agent)
    assert not np.array_equal(before, agent.policy().act(obs))


def test_a_run_that_began_with_an_encoder_needs_its_file_no_more(encoders, tmp_path):
    file = tmp_path / "encoder.safetensors"
    file.write_bytes(encoders["baseline"].read_bytes())
    recipe = tiny_recipe(mlr=False, encoder_from=str(file), budget=Budget(frames=100))
    whole, _ = trained(tmp_path / "whole", recipe)
    with pytest.raises(Stopped):
        trained(tmp_path / "parts", recipe, Silent(interrupt_at=97))
    file.unlink()
    parts, _ = trained(tmp_path / "parts", recipe)
    assert events(parts) == events(whole)
    assert same_end(parts, whole)


def test_a_run_does_not_go_on_with_another_file_under_the_same_name(encoders, tmp_path):
    file = tmp_path / "seed-1.safetensors"
    file.write_bytes(encoders["baseline"].read_bytes())
    recipe = tiny_recipe(mlr=False, encoder_from=str(tmp_path / "seed-{seed}.safetensors"))
    run = Run.create(tmp_path / "run", recipe)
    weights, _ = encoder_file.read(file)
    save_file({name: value + 1 for name, value in weights.items()}, file, {"maskrl_encoder": "{}"})
    with pytest.raises(RunError, match="was begun with another encoder"):
        Run.create(tmp_path / "run", recipe)
    with pytest.raises(RunError, match="was begun with another encoder"):
        train(recipe, run)


def test_a_file_that_is_missing_or_of_another_shape_or_something_else_is_refused(encoders, tmp_path):
    missing = tiny_recipe(mlr=False, encoder_from=str(tmp_path / "none.safetensors"))
    with pytest.raises(RunError, match=r"There is no file .*none\.safetensors.*maskrl pretrain"):
        Run.create(tmp_path / "a", missing)
    assert not (tmp_path / "a").exists()
    larger = with_overrides(tiny_recipe(mlr=False), ["agent.encoder.filters=5", f"encoder_from={encoders['baseline']}"])
    env = larger.env.make(seed=1, training=True)
    with pytest.raises(RunError, match=r"convolutions\.0\.weight is \(4, 9, 3, 3\), the recipe's \(5, 9, 3, 3\)"):
        load_encoder(larger, build_agent(larger, env))
    other = tmp_path / "other.safetensors"
    for content in (b"", b"no", b"\x10" + b"\0" * 30):
        other.write_bytes(content)
        with pytest.raises(RunError, match="not an encoder of `maskrl pretrain`"):
            encoder_file.read(other)
    save_file({"x": torch.ones(1)}, other)
    with pytest.raises(RunError, match="a safetensors file with other content"):
        encoder_file.read(other)


def test_the_path_of_an_encoder_is_a_text_whatever_it_looks_like():
    recipe = tiny_recipe()
    chosen = with_overrides(recipe, ["encoder_from=a,b/7.safetensors"])
    assert chosen.encoder_from == "a,b/7.safetensors"
    assert from_json(as_json(chosen)) == chosen
    assert digest(chosen) != digest(recipe)
    assert with_overrides(chosen, ["encoder_from=none"]) == recipe
    assert with_overrides(recipe, ["encoder_from=7"]).encoder_from == "7"


# ── Learning ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
def test_pretraining_on_the_toy_lowers_the_loss_and_raises_the_cosine(tmp_path):
    small = ["budget.frames=400", "evaluation.every=400", "evaluation.episodes=1", "checkpoint_every=400"]
    run, _ = trained(tmp_path / "run", recipes.resolve("toy/reach", small, method="baseline"))
    plan = pretraining.plan(run, recipes.find("toy/reach"), transitions=400, updates=300)
    about = encoder_file.read(pretraining.pretrain(run, tmp_path / "out", plan, Looking(), no_words))[1]
    first, last = about["curve"][0], about["curve"][-1]
    assert last["mlr/loss"] < 0.5 * first["mlr/loss"]
    assert last["mlr/cosine"] > 0.5 > first["mlr/cosine"]
    probes = list(run.events("probe"))
    assert about["probe"]["encoder_cosine_centred"] > probes[-1]["encoder_cosine_centred"]
