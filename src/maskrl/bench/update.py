"""`maskrl bench update`: the speed of an update, the machine's limit, and the speed of a plain update."""

import statistics
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from maskrl.agents.base import Agent, Metrics, Spaces, numbers
from maskrl.bench.ceiling import Layer, best_layers, ceiling
from maskrl.bench.measure import Measured, Tell, fresh_processes, in_turns, peak_memory
from maskrl.bench.noise import Learner, noise_replay
from maskrl.bench.parts import PHASES, watched
from maskrl.bench.reference import is_known, plain_update
from maskrl.bench.result import Result, Row, named
from maskrl.cost.operations import UpdateCost, update_cost
from maskrl.cost.timing import seconds_each
from maskrl.recipes.schema import Recipe, settled
from maskrl.runs.build import build_agent, configure_process, keep_freed_memory

ROUND = 50e9  # FLOP of our updates per round: one small update is too short to measure


def bench_update(
    recipe: Recipe, *, rounds: int = 5, plain: bool = True, kernels: bool = False, tell: Tell = print
) -> Result:
    """Measure updates of a recipe's agent on a replay of noise. Seconds and FLOP are per update."""
    configure_process(recipe)
    recipe = settled(recipe)
    env = recipe.env.make(seed=recipe.seed, training=True)
    program = peak_memory()
    spaces, agent = Spaces.of(env), build_agent(recipe, env)
    env.close()
    cost, learner = update_cost(recipe, spaces), Learner(recipe, spaces, agent)
    device, turns = learner.device, turns_in_a_round(cost.flops * learner.turn)
    tell(f"{cost.flops / 1e9:,.1f} GFLOP per update. Searching for the fastest layers of these shapes on this machine.")
    sampler = _Sampler(learner, cost, turns, best_layers(agent, spaces.obs, device))
    samplers: dict[str, Callable[[], float]] = {"update": sampler}
    notes = ["Medians (least – most). Ratios are within a round."]
    with ExitStack() as stack:
        if plain and not is_known(recipe, device):
            notes.append("There is no plain update for this agent, objective or device, so no speed-up is shown.")
        elif plain:
            tell("Running the first updates of the plain version.")
            # Each in a separate process, because the handling of freed memory is set per process.
            for name, keeps in (("plain", False), ("plain_kept", True)):
                pool = stack.enter_context(fresh_processes(1))
                pool.submit(_begin_plain, recipe, spaces, torch.get_num_threads(), keeps).result()
                samplers[name] = partial(_of_pool, pool, turns * learner.turn)
        samples = in_turns(samplers, rounds, tell)
    ours, theirs, kept = samples["update"], samples.get("plain"), samples.get("plain_kept")
    values = {
        **named(recipe),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        "trained_parameters": sum(parameter.numel() for parameter in trained(agent)),
        "first_loss": first_losses(learner.first),
        "bytes_of_program": program,  # with the environment, before there are an agent and a replay
        "bytes_of_process": peak_memory(),  # at most
        "bytes_of_replay": learner.replay.nbytes,
        **sampler.values(ours),
        "plain_seconds_per_update": Measured.of(theirs) if theirs else None,  # with torch's default memory handling
        "speed_up": Measured.ratio(theirs, ours) if theirs else None,
        "plain_seconds_with_freed_memory_kept": Measured.of(kept) if kept else None,
        "speed_up_with_freed_memory_kept": Measured.ratio(kept, ours) if kept else None,
        "kernels": kernels_of(learner.update, turns * learner.turn, device) if kernels else None,
    }
    return Result(values, notes)


def trained(agent: Agent) -> Iterable[torch.Tensor]:
    """Every trained parameter, once."""
    groups = (group for optimizer in agent.all_optimizers() for group in optimizer.param_groups)
    return dict.fromkeys(parameter for group in groups for parameter in group["params"])


def first_losses(first: Metrics) -> dict[str, float]:
    """The losses of a new agent's first update, by part."""
    return {name.removesuffix("/loss"): value for name, value in numbers(first).items() if name.endswith("/loss")}


_plain: dict[str, Callable[[], Any]] = {}  # the plain update, in its own process


def _begin_plain(recipe: Recipe, spaces: Spaces, threads: int, keeps: bool) -> None:
    """Run the first plain updates, in their own process."""
    torch.manual_seed(recipe.seed)
    torch.set_num_threads(threads)
    if keeps:
        keep_freed_memory()
    agent = recipe.agent.build(spaces, recipe.objective, torch.device("cpu"))
    _plain["update"] = plain_update(agent, noise_replay(recipe, spaces))
    _plain_seconds(recipe.agent.turn(recipe.objective))


def _plain_seconds(times: int) -> float:
    return seconds_each(_plain["update"], times)


def _of_pool(pool: ProcessPoolExecutor, times: int) -> float:
    return pool.submit(_plain_seconds, times).result()


class _Sampler:
    """Times updates, their phases, and the machine's ceiling at the same time."""

    def __init__(self, learner: Learner, cost: UpdateCost, turns: int, best: Sequence[Layer]) -> None:
        self.learner, self.cost, self.turns, self.best = learner, cost, turns, best
        self.ceilings: list[float] = []
        self.phases: list[dict[str, float]] = []

    def __call__(self) -> float:
        learner = self.learner
        before = [layer.rate(learner.device) for layer in self.best]
        with watched(learner.agent, learner.replay) as watch:
            seconds = learner.seconds(self.turns)
        after = [layer.rate(learner.device) for layer in self.best]
        self.ceilings.append(ceiling(self.cost, self.best, list(map(max, before, after))))
        updates = self.turns * learner.turn
        phases = {phase: watch.seconds.get(phase, 0.0) / updates for phase in PHASES}
        self.phases.append(phases | {"other": seconds - sum(phases.values())})
        return seconds

    def values(self, seconds: Sequence[float]) -> Row:
        """Summarise the samples."""
        cost, rates = self.cost, [self.cost.flops / each for each in seconds]
        phases = {phase: statistics.median(each[phase] for each in self.phases) for phase in self.phases[0]}
        whole = sum(phases.values())
        return {
            "flop_per_update": cost.flops,
            "flop_of_convolutions": cost.convolutions,
            "seconds_per_update": Measured.of(seconds),
            "flop_per_second": Measured.of(rates),
            "ceiling_flop_per_second": Measured.of(self.ceilings),
            "ceiling_layers": "; ".join(layer.name for layer in self.best),
            "utilisation": Measured.ratio(rates, self.ceilings),
            "seconds_by_phase": phases,
            "share_by_phase": {phase: each / whole for phase, each in phases.items()},
            "flop_by_phase": dict(cost.phases),
            "flop_per_second_by_phase": {phase: flops / phases[phase] for phase, flops in cost.phases.items()},
        }


def turns_in_a_round(flops: float) -> int:
    """The number of turns of this many FLOP that make up a round, at most five."""
    return min(5, max(1, round(ROUND / flops)))


def kernels_of(call: Callable[[], Any], times: int, device: torch.device) -> list[Row]:
    """Torch's operations with at least 1 % of the time, excluding operations they call, longest first.

    The profiler itself takes time, relatively most in small operations.
    """
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        seconds_each(call, times, device)
    parts = seen.key_averages()
    spent = [(part.self_device_time_total if cuda else part.self_cpu_time_total) / 1e6 for part in parts]
    kernels = [
        {"name": part.key, "calls": part.count / times, "seconds": each / times, "share": each / sum(spent)}
        for part, each in zip(parts, spent, strict=True)
    ]
    return sorted((kernel for kernel in kernels if kernel["share"] >= 0.01), key=lambda kernel: -kernel["seconds"])
