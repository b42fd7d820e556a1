"""On another device than the CPU, everything computes the same, bit for bit, and the host waits for it as rarely as it must.

The device is the pretend accelerator of `pretend.py`; `test_cuda.py` has what needs a real one.
"""

import copy
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import maskrl
import pretend
from builders import CROP, Silent, at, tiny_mask, tiny_mlr
from maskrl import AugmentConfig
from maskrl.agents.base import Agent, Spaces
from maskrl.bench.noise import noise_replay
from maskrl.cost.operations import spaces_of
from maskrl.nn.augment import RandomCrop, RandomPlace, RandomShift
from maskrl.objectives.base import ObjectiveConfig
from maskrl.objectives.curl import CURLConfig
from maskrl.objectives.step import AuxiliaryConfig
from maskrl.recipes.schema import Budget, Evaluation, Recipe, ReplayConfig
from maskrl.replay.buffer import Replay
from maskrl.representation.probe import probe
from maskrl.runs import build, players
from maskrl.runs.build import numerics
from maskrl.runs.directory import Run, RunError
from maskrl.runs.loop import train
from maskrl.runs.signals import Stopped
from pretend import DEVICE
from tiny_runs import events, same, same_end, tiny_rainbow, tiny_recipe, trained

CPU = torch.device("cpu")
SHIFT = AugmentConfig(crop=None, shift=1)

VARIANTS: dict[str, dict[str, object]] = {
    "MLR": {},
    "MLR-S": {"mask": tiny_mask(strategy="spatial")},
    "MLR-T": {"mask": tiny_mask(strategy="temporal")},
    "MLR-F": {"corrupt": "features"},
    "MLR-Pixel": {"reconstruct": "pixels", "pixel_loss_on": "hidden"},
    "MLR-MoDec": {"momentum_decoder": True},
    "no action tokens": {"action_tokens": False},
    "narrow decoder, own masks": {"decoder_width": 4, "mask": tiny_mask(per_clip=True, fill=255)},
}
SAC_OBJECTIVES: dict[str, ObjectiveConfig | None] = {
    "none": None,
    **{name: tiny_mlr(**changes) for name, changes in VARIANTS.items()},
    "CURL": CURLConfig(augment=AugmentConfig(crop=CROP, intensity=0.0)),
    "CURL after the critic": CURLConfig(augment=AugmentConfig(crop=CROP, intensity=0.0), when="after_critic", every=2),
}
RAINBOW_OBJECTIVES: dict[str, ObjectiveConfig | None] = {
    "none": None,
    **{name: tiny_mlr(augment=SHIFT, **changes) for name, changes in VARIANTS.items()},
    "Atari": tiny_mlr(augment=SHIFT, projection="q", prediction="linear", init="torch", momentum=0.0),
}
FAST = ("SAC, MLR", "SAC, CURL", "Rainbow, none", "Rainbow, Atari")
PAIRS = [
    pytest.param(replace(recipe, objective=objective), id=pair, marks=[] if pair in FAST else [pytest.mark.slow])
    for agent, recipe, objectives in (
        ("SAC", tiny_recipe(), SAC_OBJECTIVES),
        ("Rainbow", tiny_rainbow(), RAINBOW_OBJECTIVES),
    )
    for name, objective in objectives.items()
    for pair in [f"{agent}, {name}"]
]
UNIFORM = replace(tiny_rainbow(), agent=replace(tiny_rainbow().agent, priority_exponent=None))
RECIPES: dict[str, Callable[..., Recipe]] = {"SAC": tiny_recipe, "Rainbow": tiny_rainbow}
each_agent = pytest.mark.parametrize("make", RECIPES.values(), ids=RECIPES.keys())
one_agent_is_fast = pytest.mark.parametrize(
    "make", [pytest.param(tiny_recipe, marks=pytest.mark.slow), tiny_rainbow], ids=RECIPES.keys()
)


def short(make: Callable[..., Recipe]) -> Recipe:
    """30 decisions after the warm-up, with a checkpoint among them: every operation takes its time here."""
    return make(budget=Budget(frames=90), evaluation=Evaluation(every=45, episodes=1), checkpoint_every=70)


def learner(recipe: Recipe, device: torch.device) -> tuple[Agent, Replay]:
    """An agent, and a replay that is the same every time."""
    torch.manual_seed(7)
    spaces = spaces_of(recipe)
    agent = recipe.agent.build(spaces, recipe.objective, device, seed=3)
    torch.manual_seed(8)
    return agent, noise_replay(recipe, spaces)


def learned(recipe: Recipe, device: torch.device, updates: int = 3) -> dict[str, Any]:
    """All that is left of some updates."""
    agent, replay = learner(recipe, device)
    metrics = []
    for _ in range(updates):
        with numerics(recipe):
            metrics.append(agent.update(replay))
    return pretend.on_host({"metrics": metrics, "agent": agent.state_dict(), "replay": replay.state_dict()})


def plain(state: dict[str, Any]) -> dict[str, Any]:
    """With arrays as tensors, for `same`."""
    return {
        name: plain(value)
        if isinstance(value, dict)
        else torch.from_numpy(value)
        if isinstance(value, np.ndarray)
        else value
        for name, value in state.items()
    }


# ── An update, acting ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("ignore:A patch of")
@pytest.mark.parametrize("recipe", PAIRS)
def test_an_update_is_the_same_bit_for_bit(recipe: Recipe):
    expected = learned(recipe, CPU)
    with pretend.accelerator():
        found = learned(recipe, DEVICE)
    assert same(plain(found), plain(expected))


@pytest.mark.parametrize("geometry", [RandomCrop(5), RandomShift(2), RandomShift(9), RandomPlace(12)], ids=repr)
def test_images_move_as_on_the_cpu(geometry: torch.nn.Module):
    """The CPU copies slices; the device gathers, in few operations."""
    images = torch.randint(256, (40, 3, 7, 8), dtype=torch.uint8)
    torch.manual_seed(0)
    expected = geometry(images.clone())
    with pretend.accelerator() as seen:
        on_device = images.to(DEVICE)
        geometry(on_device)  # makes the tables that it keeps
        torch.manual_seed(0)
        seen.clear()
        found = geometry(on_device)
        assert seen.operations.total() <= 7, seen.operations
    assert torch.equal(pretend.on_host(found), expected)


@each_agent
def test_an_update_of_the_objective_alone_is_the_same(make):
    def left(device: torch.device) -> dict[str, Any]:
        agent, replay = learner(make(), device)
        metrics = [agent.update_objective(replay) for _ in range(2)]
        return pretend.on_host({"metrics": metrics, "agent": agent.state_dict()})

    with pretend.accelerator():
        found = left(DEVICE)
    assert same(found, left(CPU))


@each_agent
@pytest.mark.parametrize("explore", [True, False])
def test_acting_is_the_same_and_waits_once_for_the_action(make, explore: bool):
    recipe = make()
    obs = np.random.default_rng(0).integers(256, size=(3, *spaces_of(recipe).obs), dtype=np.uint8)

    def actions(device: torch.device) -> tuple[Any, Agent]:
        agent, _ = learner(recipe, device)
        return agent.act(obs, explore=explore, clock=at(1)), agent

    with pretend.accelerator() as seen:
        found, agent = actions(DEVICE)
        seen.clear()
        agent.act(obs, explore=explore, clock=at(1))
        assert seen.synchronisations.total() == 1, seen.synchronisations
    assert np.array_equal(found, actions(CPU)[0])


@pytest.mark.parametrize(
    ("recipe", "waits"),
    [
        pytest.param(tiny_recipe(), 0, id="SAC, MLR"),
        pytest.param(replace(tiny_recipe(), objective=SAC_OBJECTIVES["CURL"]), 0, id="SAC, CURL"),
        pytest.param(tiny_rainbow(), 1, id="Rainbow, MLR"),
        pytest.param(UNIFORM, 0, id="uniform draws"),
    ],
)
def test_an_update_waits_for_the_device_only_where_it_must_know_priorities(recipe: Recipe, waits: int):
    with pretend.accelerator() as seen:
        agent, replay = learner(recipe, DEVICE)
        agent.update(replay)
        for _ in range(3):
            seen.clear()
            agent.update(replay)
            assert seen.synchronisations.total() == waits, seen.synchronisations


@pytest.mark.parametrize(
    ("name", "spaces", "waits", "operations", "launches", "around"),
    [
        ("dmcontrol/cheetah-run", Spaces((9, 48, 48), 6, discrete=False), 0, (1059, 496), (566, 270), 20),
        ("atari/pong", Spaces((4, 48, 48), 6, discrete=True), 1, (1027, 430), (614, 286), 20),
    ],
    ids=["SAC", "Rainbow"],
)
def test_an_update_of_the_lite_profile_has_no_more_operations_than_it_had(
    name: str, spaces: Spaces, waits: int, operations: tuple[int, int], launches: tuple[int, int], around: int
):
    """With the objective, and without it. `launches`: no views.

    `around`: those that are left to the host when the update is recorded (`capture=true`).
    """
    recipe = maskrl.recipe(name, profile="lite")
    spaces = replace(spaces, obs=(spaces.obs[0], recipe.env.size, recipe.env.size))
    left = pretend.Seen()

    def record(agent: Agent, learn: Callable[[], Any]) -> Callable[[], Any]:
        def run() -> Any:
            before = sum(seen.operations.values())
            learned = learn()
            left.operations["learn"] = sum(seen.operations.values()) - before
            return learned

        return run

    with pretend.accelerator() as seen:
        config = replace(recipe.agent, micro_batch=None)  # whole batches, as a GPU wants them
        agent = config.build(spaces, recipe.objective, DEVICE)
        replay = noise_replay(recipe, spaces, transitions=200)
        updated(agent, replay, 2)
        for most, most_launches in zip(operations, launches, strict=True):
            seen.clear()
            agent.update(replay)
            assert seen.synchronisations.total() <= waits, seen.synchronisations
            assert seen.operations.total() <= most
            assert seen.launches.total() <= most_launches
        agent.capture(record)
        updated(agent, replay, 4)
        seen.clear()
        agent.update(replay)
        assert seen.operations.total() - left.operations["learn"] <= around


# ── What is not finite ────────────────────────────────────────────────────────────────────────────────────────────────


def weights_of(agent: Agent) -> dict[str, Any]:
    """All that learns, and all that follows it."""
    modules = {**agent.modules, **({} if agent.objective is None else {"objective": agent.objective})}
    optimizers = {**agent.optimizers, **({} if agent.auxiliary is None else {"auxiliary": agent.auxiliary.optimizer})}
    values: dict[str, Any] = {
        name: [parameter.detach().clone() for parameter in module.parameters()] for name, module in modules.items()
    }
    values |= {f"steps of {name}": copy.deepcopy(o.state_dict()["state"]) for name, o in optimizers.items()}
    return pretend.on_host(
        values | {"own": {name: value.detach().clone() for name, value in agent.own_state().items()}}
    )


def updated(agent: Agent, replay: Replay, updates: int) -> None:
    for _ in range(updates):
        agent.update(replay)


BREAKS: dict[str, tuple[Callable[..., Recipe], Callable[[Any], torch.Tensor], str]] = {
    "critic": (tiny_recipe, lambda agent: agent.target_critic.copy.q1[0].bias, "The critic loss is nan at update 3"),
    "actor": (tiny_recipe, lambda agent: agent.actor.trunk[-1].bias, "The critic loss is nan at update 3"),
    "objective": (
        tiny_recipe,
        lambda agent: agent.objective.decoder.blocks[0].query.weight,
        "The gradient of mlr has norm nan at update 3",
    ),
    "Q": (tiny_rainbow, lambda agent: agent.head.last[1].weight, "The Q loss is nan at update 3"),
    "Q's objective": (
        tiny_rainbow,
        lambda agent: agent.objective.decoder.blocks[0].query.weight,
        "The gradient of the loss is nan at update 3",
    ),
}


@pytest.mark.parametrize(("make", "part", "message"), BREAKS.values(), ids=BREAKS.keys())
def test_what_is_not_finite_is_reported_later_and_leaves_what_an_error_at_once_leaves(make, part, message: str):
    def broken(device: torch.device) -> tuple[Agent, Replay]:
        agent, replay = learner(make(), device)
        updated(agent, replay, 3)
        with torch.no_grad():
            part(agent).fill_(torch.nan)
        return agent, replay

    refusal = f"{message}; the weights were left as they were"
    agent, replay = broken(CPU)
    with pytest.raises(FloatingPointError, match=refusal):
        agent.update(replay)
    expected = weights_of(agent)  # the step of a part that came earlier in the update is among them
    with pretend.accelerator():
        agent, replay = broken(DEVICE)
        agent.update(replay)  # nobody knows yet
        assert same_or_nan(weights_of(agent), expected)
        with pytest.raises(FloatingPointError, match=refusal):
            updated(agent, replay, 4)
        assert same_or_nan(weights_of(agent), expected)


@each_agent
def test_no_state_is_given_away_before_it_is_known_to_be_good(make):
    with pretend.accelerator():
        agent, replay = learner(make(mlr=False), DEVICE)
        agent.update(replay)
        with torch.no_grad():
            next(agent.encoder.parameters()).fill_(torch.nan)
        agent.update(replay)
        with pytest.raises(FloatingPointError, match="at update 1; the weights were left as they were"):
            agent.state_dict()


def same_or_nan(a: Any, b: Any) -> bool:
    if isinstance(a, torch.Tensor):
        return torch.equal(a.nan_to_num(123.0), b.nan_to_num(123.0))
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same_or_nan(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return len(a) == len(b) and all(map(same_or_nan, a, b))
    return bool(a == b)


# ── Recorded updates ──────────────────────────────────────────────────────────────────────────────────────────────────

PERIODS = replace(
    tiny_recipe(),
    objective=tiny_mlr(every=2),
    agent=replace(
        tiny_recipe().agent, target_every=3, auxiliary=AuxiliaryConfig(clips=2, warmup_updates=10, momentum_every=2)
    ),
)
RECORDED = {
    "SAC": tiny_recipe(),
    "SAC by turns": PERIODS,
    "CURL": replace(tiny_recipe(), objective=SAC_OBJECTIVES["CURL"]),
    "Rainbow": tiny_rainbow(),
    "Rainbow's baseline": tiny_rainbow(mlr=False),
}


def frozen(agent: Agent, learn: Callable[[], Any]) -> Callable[[], Any]:
    """As a graph would, run it every time with the numbers of the host that there were when it was recorded."""
    parts: list[Any] = [agent, *([] if agent.auxiliary is None else [agent.auxiliary])]
    recorded = [part.updates for part in parts]

    def run() -> Any:
        now = [part.updates for part in parts]
        for part, number in zip(parts, recorded, strict=True):
            part.updates = number
        learned = learn()
        for part, number in zip(parts, now, strict=True):
            part.updates = number
        return learned

    return run


@pytest.mark.parametrize("recipe", RECORDED.values(), ids=RECORDED.keys())
@pytest.mark.parametrize("device", [CPU, pytest.param(DEVICE, marks=pytest.mark.slow)], ids=str)
def test_what_would_be_recorded_computes_the_same_as_the_plain_update(recipe: Recipe, device: torch.device):
    def left(capture: bool) -> dict[str, Any]:
        agent, replay = learner(recipe, device)
        if capture:
            agent.capture(frozen)
        metrics = [agent.update(replay) for _ in range(14)]  # two rounds of all turns, and some
        return plain(pretend.on_host({"metrics": metrics, "agent": agent.state_dict(), "replay": replay.state_dict()}))

    with pretend.accelerator():
        assert same(left(capture=True), left(capture=False))


@pytest.mark.parametrize("recipe", RECORDED.values(), ids=RECORDED.keys())
def test_what_would_be_recorded_reads_the_same_memory_every_time_and_nothing_of_the_host(recipe: Recipe):
    """A graph repeats addresses and numbers. One that is the host's, or a copy from there, would be that of the first time."""
    addresses: dict[object, set[tuple[int, ...]]] = {}

    def record(agent: Agent, learn: Callable[[], Any]) -> Callable[[], Any]:
        name, (drawn,) = agent.due(), learn.args  # type: ignore[attr-defined]

        def run() -> Any:
            assert agent.due() == name
            addresses.setdefault(name, set()).add(tuple(tensor.data_ptr() for tensor in drawn.tensors()))
            seen.clear()
            learned = learn()
            assert not seen.crossings, seen.crossings
            assert not seen.synchronisations
            return learned

        return run

    with pretend.accelerator() as seen:
        agent, replay = learner(recipe, DEVICE)
        agent.capture(record)
        updated(agent, replay, 14)
    assert addresses
    assert {len(found) for found in addresses.values()} == {1}


def test_a_cpu_refuses_to_record(tmp_path: Path):
    recipe = tiny_recipe(capture=True, device="cpu")
    with pytest.raises(
        RunError, match=r"capture=true, but this run is on cpu, which has no CUDA graphs. Use capture=false"
    ):
        trained(tmp_path / "run", recipe)


# ── A whole run ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def on_device(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Let every run from now on be on the device."""

    def patch() -> None:
        for module in (build, players):
            monkeypatch.setattr(module, "device_of", lambda recipe: DEVICE)

    return patch


def logged(run: Run) -> list[dict[str, Any]]:
    return [rounded(event) for event in events(run)]


def rounded(event: dict[str, Any]) -> dict[str, Any]:
    """Where tensors may be in disguise, torch has LAPACK find eigenvectors, too, and rounds the values in another way."""
    return event | {"rank": round(event.get("rank", 0.0), 9)}


class Killed(BaseException):
    """Leaves no time to save, as kill -9 does."""


class Deadly(Silent):
    def write(self, points: Any, clock: Any) -> None:
        super().write(points, clock)
        if clock.decisions == 75:
            raise Killed


@one_agent_is_fast
def test_a_run_that_is_killed_and_continued_there_ends_as_one_on_the_cpu(tmp_path: Path, make, on_device):
    recipe = short(make)
    expected, _ = trained(tmp_path / "cpu", recipe)
    on_device()
    with pretend.accelerator():
        run = Run.create(tmp_path / "device", recipe)
        with pytest.raises(Killed):
            train(recipe, run, [Deadly()])
        with pytest.raises(Stopped):
            train(recipe, run, [Silent(interrupt_at=82)])
        agent = train(recipe, run)
    assert {parameter.device for parameter in agent.encoder.parameters()} == {DEVICE}
    assert logged(run) == logged(expected)  # evaluations and cheap probes among them
    assert same_end(run, expected)


@one_agent_is_fast
def test_a_run_whose_frames_are_there_ends_as_one_whose_frames_are_here(
    tmp_path: Path, make, on_device, monkeypatch: pytest.MonkeyPatch
):
    recipe = short(make)
    expected, _ = trained(tmp_path / "cpu", recipe)
    on_device()
    monkeypatch.setattr(pretend.backend, "free", 1 << 40)
    with pretend.accelerator():
        run = Run.create(tmp_path / "device", recipe)
        with pytest.raises(Killed):
            train(recipe, run, [Deadly()])
        train(recipe, run)
    assert same_end(run, expected)


@pytest.mark.parametrize(
    ("free", "wanted", "there"), [(0, None, False), (0, True, True), (1 << 40, None, True), (1 << 40, False, False)]
)
def test_frames_are_kept_there_if_they_fit_or_if_that_is_asked_for(
    tmp_path: Path, free: int, wanted: bool | None, there: bool, on_device, monkeypatch: pytest.MonkeyPatch
):
    recipe = replace(tiny_recipe(), replay=ReplayConfig(on_device=wanted, capacity=100))
    monkeypatch.setattr(pretend.backend, "free", free)
    on_device()
    with pretend.accelerator() as seen, closing(recipe.env.make(seed=1, training=True)) as env:
        replay = build.build_replay(recipe, env, Run.create(tmp_path / "run", recipe))
        obs, _ = env.reset(seed=1)
        replay.begin_episode(obs)
        for _ in range(30):
            replay.add(np.zeros(2), 1.0, obs, terminated=False, truncated=False)
        assert replay.clips(replay.draw(3, span=4), length=4).obs.device == (DEVICE if there else CPU)
        assert replay.ahead.depth == (0 if there else 2)
        assert not seen.synchronisations


# ── Batches gathered ahead ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("depth", [pytest.param(1, marks=pytest.mark.slow), 3])
@pytest.mark.parametrize(
    "uniform", [tiny_recipe(), pytest.param(UNIFORM, marks=pytest.mark.slow)], ids=["SAC", "Rainbow"]
)
def test_a_run_whose_batches_are_gathered_ahead_ends_as_one_that_waits(
    tmp_path: Path, uniform: Recipe, depth: int, on_device
):
    """Killed between two checkpoints, too: no draw is made before the checkpoint that belongs to a later update."""
    agent = replace(uniform.agent, updates_per_decision=3)
    recipe = replace(uniform, agent=agent, budget=Budget(frames=78), evaluation=Evaluation(every=78, episodes=1))
    recipe = replace(recipe, checkpoint_every=3)
    expected, _ = trained(tmp_path / "cpu", recipe)
    ahead = replace(recipe, replay=replace(recipe.replay, prefetch=depth))
    on_device()
    with pretend.accelerator():
        run = Run.create(tmp_path / "device", ahead)
        with pytest.raises(Killed):
            train(ahead, run, [Deadly()])
        train(ahead, run)
    assert same_end(run, expected)


def test_only_the_reading_is_left_to_a_thread(monkeypatch: pytest.MonkeyPatch):
    threads: dict[str, set[str]] = {"draw": set(), "transitions": set(), "clips": set()}
    for name, seen in threads.items():
        method = getattr(Replay, name)

        def noted(*args: Any, _method: Any = method, _seen: set[str] = seen, **options: Any) -> Any:
            _seen.add(threading.current_thread().name.partition("_")[0])
            return _method(*args, **options)

        monkeypatch.setattr(Replay, name, noted)
    agent, replay = learner(tiny_recipe(), CPU)
    replay.ahead.depth = 2
    agent.prepare(replay, 3)
    assert len(replay.ahead) == 2
    agent.prepare(replay, 3)  # asked twice, gathered once
    assert len(replay.ahead) == 2
    updated(agent, replay, 2)
    assert len(replay.ahead) == 0
    here = threading.current_thread().name
    assert threads == {"draw": {here}, "transitions": {"maskrl-replay"}, "clips": {"maskrl-replay"}}


def test_draws_by_priority_are_not_made_ahead():
    assert build.prefetch_of(tiny_rainbow()) == 0
    with pytest.raises(
        ValueError, match=r"replay.prefetch=2, but agent.priority_exponent=0.5: .* Use replay.prefetch=none"
    ):
        tiny_rainbow(replay=ReplayConfig(prefetch=2))
    with pytest.raises(ValueError, match=r"prefetch=1, but draws by priority wait .* Use prefetch=0"):
        Replay(
            frame_shape=(1, 4, 4), action_dim=1, frame_stack=1, capacity=9, seed=0, priority_exponent=0.5, prefetch=1
        )


@pytest.mark.slow
@each_agent
def test_a_run_begun_on_one_device_is_continued_on_the_other(tmp_path: Path, make, on_device):
    recipe = short(make)
    expected, _ = trained(tmp_path / "cpu", recipe)
    run = Run.create(tmp_path / "moves", recipe)
    with pytest.raises(Stopped):
        train(recipe, run, [Silent(interrupt_at=75)])
    on_device()
    with pretend.accelerator():
        train(recipe, run)
    assert same_end(run, expected)


@each_agent
def test_a_policy_is_loaded_onto_it_and_acts_the_same(tmp_path: Path, make):
    run, _ = trained(tmp_path / "run", replace(short(make), objective=None))
    policy = maskrl.load(run.path)
    frames = np.random.default_rng(0).integers(256, size=(4, *policy.frame_shape), dtype=np.uint8)
    with pretend.accelerator():
        there = maskrl.load(run.path, device=str(DEVICE))
        assert [np.asarray(there.act(frame)).tolist() for frame in frames] == [
            np.asarray(policy.act(frame)).tolist() for frame in frames
        ]
        assert np.array_equal(there.encode(frames), policy.encode(frames))


def test_a_probe_there_finds_the_same(tmp_path: Path, on_device, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("maskrl.representation.probe.DECISIONS", 150)
    run, _ = trained(tmp_path / "run", short(tiny_recipe))
    expected = probe(run, clips=4, tell=str)
    on_device()
    with pretend.accelerator():
        assert rounded(probe(run, clips=4, tell=str)) == rounded(expected)


@each_agent
def test_an_update_in_bfloat16_is_the_same(make, on_device):
    recipe = replace(make(), precision="bfloat16")
    expected = learned(recipe, CPU)
    on_device()
    with pretend.accelerator():
        found = learned(recipe, DEVICE)
    assert same(plain(found), plain(expected))


def test_bfloat16_is_of_the_newest_weights(monkeypatch: pytest.MonkeyPatch):
    """Within an update, weights that a step has changed must be lowered anew."""
    recipe = replace(tiny_recipe(mlr=False), precision="bfloat16")
    monkeypatch.setattr(build, "device_of", lambda recipe: CPU)
    layer, optimum = torch.nn.Linear(1, 1, bias=False), []
    with numerics(recipe):
        for _ in range(2):
            optimum.append(layer(torch.ones(1, 1)).item())
            with torch.no_grad():
                layer.weight.add_(1)
    assert optimum[1] == pytest.approx(optimum[0] + 1, abs=0.02)
