"""How fast an update is, how fast it could be, and how fast a textbook's would be: `maskrl bench update`."""

import gc
import re
import statistics
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from maskrl.agents.base import Agent, Spaces
from maskrl.bench.ceiling import Layer, best_layers, ceiling
from maskrl.bench.measure import CPU, Measured, Tell, fresh_processes, in_turns, seconds_each
from maskrl.bench.noise import Learner, noise_replay
from maskrl.bench.parts import PHASES, watched
from maskrl.bench.reference import copied, is_known, plain_update
from maskrl.bench.result import Result, Row, named
from maskrl.cost.operations import UpdateCost, update_cost
from maskrl.recipes.schema import Recipe
from maskrl.runs.build import build_agent, configure_process

ROUND = 50e9  # FLOP of our updates in a round: a single small update says little


def bench_update(
    recipe: Recipe, *, rounds: int = 5, plain: bool = True, kernels: bool = False, tell: Tell = print
) -> Result:
    """Measure updates of a recipe's agent on a replay of noise.

    Seconds and FLOP are of one update: means over whole turns, in which every part of the agent has run (`AgentConfig.turn`).
    """
    configure_process(recipe)
    env = recipe.env.make(seed=recipe.seed, training=True)
    spaces = Spaces.of(env)
    cost, learner = update_cost(recipe, spaces), Learner(recipe, spaces, transitions=600)
    device, first = learner.device, 2 * learner.turn
    tell(f"{cost.flops / 1e9:,.1f} GFLOP an update. Measuring the memory of the first {first} updates.")
    memory = peak_bytes(lambda: learner.begin(build_agent(recipe, env), first), device)
    env.close()
    tell("Looking for the best that this machine does on layers of these shapes.")
    times = updates_in_a_round(cost.flops, learner.turn)
    sampler = _Sampler(learner, cost, times, best_layers(learner.agent, spaces.obs, device))
    samplers: dict[str, Callable[[], float]] = {"update": sampler}
    note = why_not_plain(learner.agent, device) if plain else "not asked for"
    with fresh_processes(1) as pool:
        if note is None:
            arguments = recipe, spaces, times, torch.get_num_threads()
            samplers["plain"] = lambda: pool.submit(plain_seconds, *arguments).result()
            tell("The first updates of the plain version.")
            samplers["plain"]()
        samples = in_turns(samplers, rounds, tell)
    ours, theirs = samples["update"], samples.get("plain")
    values = {
        **named(recipe),
        "device": str(device),
        "threads": torch.get_num_threads(),
        "rounds": rounds,
        **sampler.values(ours),
        "peak_bytes_above_replay": memory,
        "replay_bytes": learner.replay.nbytes,
        "plain_seconds_per_update": Measured.of(theirs) if theirs else None,
        "speed_up": Measured.ratio(theirs, ours) if theirs else None,
        "note": note,
        "kernels": kernels_of(learner.update, times, device) if kernels else None,
    }
    long = [kernel for kernel in values["kernels"] or () if kernel["share"] >= 0.01]
    return Result(values, ["Medians (least – most). Ratios are of the same round."], values | {"kernels": long})


class _Sampler:
    """Times updates, with their phases and the machine's ceiling at the same moment."""

    def __init__(self, learner: Learner, cost: UpdateCost, times: int, best: Sequence[Layer]) -> None:
        self.learner, self.cost, self.times, self.best = learner, cost, times, best
        self.ceilings: list[float] = []
        self.phases: list[dict[str, float]] = []

    def __call__(self) -> float:
        learner = self.learner
        before = [layer.rate(learner.device) for layer in self.best]
        with watched(learner.agent, learner.replay) as watch:
            seconds = learner.seconds(self.times)
        after = [layer.rate(learner.device) for layer in self.best]
        self.ceilings.append(ceiling(self.cost, self.best, list(map(max, before, after))))
        phases = {phase: watch.seconds.get(phase, 0.0) / self.times for phase in PHASES}
        self.phases.append(phases | {"other": seconds - sum(phases.values())})
        return seconds

    def values(self, seconds: Sequence[float]) -> Row:
        """Of the samples taken."""
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


def updates_in_a_round(flops: float, turn: int) -> int:
    """As many turns as have the work of a round, but at most five."""
    return turn * min(5, max(1, round(ROUND / (turn * flops))))


def why_not_plain(agent: Agent, device: torch.device) -> str | None:
    if not is_known(agent.objective):
        return "not written for this variant of the objective"
    return None if device.type == "cpu" else "written for a CPU alone"


def plain_seconds(recipe: Recipe, spaces: Spaces, times: int, threads: int) -> float:
    """The seconds of a plain update, in a process of its own: `configure_process` changes how all of ours keeps memory."""
    torch.set_num_threads(threads)
    return seconds_each(_plain_update(recipe, spaces), times)


@cache
def _plain_update(recipe: Recipe, spaces: Spaces) -> Callable[[], Any]:
    """Built at the first call in a process."""
    torch.manual_seed(recipe.seed)
    agent = recipe.agent.build(spaces, recipe.objective, CPU)
    update = plain_update(copied(agent), noise_replay(recipe, spaces))
    assert update is not None  # see why_not_plain
    return update


def peak_bytes(call: Callable[[], Any], device: torch.device) -> int | None:
    """The memory that a call takes at its peak, on a GPU or in this process; None where the system does not tell."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
        call()
        return torch.cuda.max_memory_allocated()
    try:
        Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    except OSError:
        call()
        return None
    before = resident("VmRSS")
    call()
    return resident("VmHWM") - before


def resident(what: str) -> int:
    """Bytes that this process has ("VmRSS") or had at its peak ("VmHWM"), on Linux."""
    (kilobytes,) = re.findall(rf"{what}:\s+(\d+)", Path("/proc/self/status").read_text())
    return 1024 * int(kilobytes)


def kernels_of(call: Callable[[], Any], times: int, device: torch.device) -> list[Row]:
    """Torch's operations, each without those that it calls, the longest first, by its profiler.

    The profiler takes time itself, relatively most in small operations.
    """
    cuda = device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if cuda else ProfilerActivity.CPU]) as seen:
        seconds_each(call, times, device)
    kernels = list[Row]()
    for part in seen.key_averages():
        spent = part.self_device_time_total if cuda else part.self_cpu_time_total
        kernels.append({"name": part.key, "calls": part.count / times, "seconds": spent / times / 1e6})
    whole = sum(kernel["seconds"] for kernel in kernels)
    kernels.sort(key=lambda kernel: -kernel["seconds"])
    return [{**kernel, "share": kernel["seconds"] / whole} for kernel in kernels]
