"""Forecast the cost of many runs and the power of their statistics.

Costs are counted (`maskrl.cost.operations`) and timed on this machine, with real updates and real steps of the environments. The
power is computed from known differences and spreads: the paper's for its own profile, those of our studies for the lite profile. A
plan assumes that they hold.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from maskrl.analysis.power import power, seeds_for
from maskrl.analysis.protocol import changes_of, unit_of
from maskrl.analysis.scores import scale
from maskrl.analysis.statistics import ENOUGH, Summary, effect_size
from maskrl.cost.operations import RunCost, UpdateCost, run_cost, update_cost
from maskrl.cost.timing import ASSUMED, Stepped, Updated, measure_env, measure_updates
from maskrl.recipes.measured import measured
from maskrl.recipes.own import is_own
from maskrl.recipes.published import published
from maskrl.recipes.schema import Profile, Recipe
from maskrl.runs.players import helpers_allowed
from maskrl.studies.backends import at_once, largest, needs_of, this_machine
from maskrl.studies.jobs import PAIR, Job

Tell = Callable[[str], None]


# ── The plan ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Speed:
    """Seconds of the parts of a run."""

    update: float  # the mean over a full cycle, as some parts do not run in every update
    act: float  # one action
    act_together: float  # one action in an evaluation: on one thread, or in a batch on a GPU
    step: float  # of the environment, per decision, including resets
    episode: float  # decisions per episode in evaluation


@dataclass(frozen=True)
class Line:
    """Runs that differ only in the seed."""

    label: str  # "mlr", or with overrides: "mlr mask.ratio=0.1"
    recipe: Recipe
    seeds: int
    cost: RunCost
    speed: Speed

    @property
    def task(self) -> str:
        return self.recipe.name

    @property
    def seconds(self) -> float:
        """The seconds of one run alone."""
        cost, speed = self.cost, self.speed
        learning = cost.updates * speed.update
        acting = cost.chosen * speed.act + cost.decisions * speed.step
        floor = self.recipe.evaluation.episodes * speed.episode * speed.step  # random actions at the start
        played = floor + cost.episodes * speed.episode * (speed.step + speed.act_together)
        return learning + acting + played / (1 + helpers_allowed(self.recipe))

    @property
    def flops(self) -> float:
        """The FLOP of one run."""
        return self.cost.learning + self.cost.acting(self.speed.episode)


@dataclass(frozen=True)
class Plan:
    lines: tuple[Line, ...]
    workers: int
    comparison: "Comparison"
    notes: tuple[str, ...]  # assumptions

    @property
    def runs(self) -> int:
        return sum(line.seeds for line in self.lines)

    @property
    def seconds(self) -> float:
        """The seconds of all runs, one after another."""
        return math.fsum(line.seeds * line.seconds for line in self.lines)

    @property
    def elapsed(self) -> float:
        """The seconds until the last run ends."""
        return makespan([line.seconds for line in self.lines for _ in range(line.seeds)], self.workers)

    @property
    def flops(self) -> float:
        return math.fsum(line.seeds * line.flops for line in self.lines)

    @property
    def memory(self) -> int:
        """The bytes of memory if the largest runs are executed together."""
        every = sorted((line.cost.memory for line in self.lines for _ in range(line.seeds)), reverse=True)
        return sum(every[: self.workers])

    @property
    def disk(self) -> int:
        return sum(line.seeds * line.cost.takes.disk for line in self.lines)


def makespan(seconds: Sequence[float], workers: int) -> float:
    """The seconds until the last run ends, if each worker takes the next waiting run."""
    free = [0.0] * min(workers, max(1, len(seconds)))
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


# ── Statistical power ─────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Question:
    """Does MLR score above its Baseline, on one task or in the mean over several? Assumes a known difference and spread."""

    tasks: tuple[str, ...]
    source: str  # "study lite-dmcontrol (5 seeds) at 60,000 of 100,000 frames"
    early: bool  # the known scores are from before the end of the planned budget
    difference: float  # of the means
    unit: str  # of the difference: "points", or "human-normalised" for the mean over games
    effect: float | None  # in standard deviations, see `effect_size`; None: no score varies
    seeds: int  # planned per method, the fewest of any task
    power: float | None  # the probability to find the difference with these seeds; None: too few, or no score varies
    needed: int | None  # seeds for a power of 80 %; None: MLR is not above, or no score varies
    seconds: float | None  # of the needed runs of both methods, one after another


@dataclass(frozen=True)
class Comparison:
    sources: tuple[str, ...]  # "the paper (10 seeds) at 100,000 frames"
    tasks: tuple[Question, ...]
    overall: Question | None  # over these tasks, if there are several with one scale
    planned: int  # tasks of the plan
    gaps: tuple[str, ...]  # sentences: what is not compared, and why


class _Pair(NamedTuple):
    """A task with both methods: known scores, and the cost of one run of each together."""

    task: str
    profile: Profile
    label: str  # of MLR
    source: str
    early: bool
    mlr: Summary
    baseline: Summary
    seeds: int
    seconds: float

    @property
    def varies(self) -> bool:
        return self.mlr.std > 0 or self.baseline.std > 0


class _Gap(NamedTuple):
    """A task about which the plan cannot say something. Tasks with the same words share a sentence."""

    task: str
    before: str  # words before the tasks
    after: str  # and behind them


def compare(lines: Sequence[Line]) -> Comparison:
    """Compare MLR with its Baseline, on the tasks where the plan has both and the spread is known."""
    together: dict[tuple[str, Profile], list[Line]] = {}
    for line in lines:
        together.setdefault((line.task, line.recipe.profile), []).append(line)
    found = [_pair(some) for some in together.values()]
    pairs = [one for one in found if isinstance(one, _Pair)]
    gaps = [one for one in found if isinstance(one, _Gap)]
    gaps += [
        _Gap(
            pair.task,
            f"Of MLR, only runs with the {pair.profile} profile's own values ({pair.label}) are compared on",
            ".",
        )
        for pair in pairs
        if any(line.recipe.method == "mlr" and changes_of(line.recipe) for line in together[pair.task, pair.profile])
    ]
    gaps += [
        _Gap(
            pair.task,
            f"Without a spread there is no power: all seeds of a method score the same in {pair.source}, on",
            ".",
        )
        for pair in pairs
        if not pair.varies
    ]
    overall = _overall(pairs)
    sentences = _sentences(gaps)
    if len(pairs) > 1 and overall is None:
        sentences.append("There is no mean over these tasks: they differ in profile or scale.")
    sources = tuple(dict.fromkeys(pair.source for pair in pairs))
    return Comparison(sources, tuple(_question([pair]) for pair in pairs), overall, len(together), tuple(sentences))


def _sentences(gaps: Sequence[_Gap]) -> list[str]:
    tasks: dict[tuple[str, str], list[str]] = {}
    for task, *words in gaps:
        tasks.setdefault((words[0], words[1]), []).append(task)
    return [f"{before} {', '.join(some)}{after}" for (before, after), some in tasks.items()]


def _pair(lines: Sequence[Line]) -> _Pair | _Gap:
    """MLR and its Baseline with the profile's own values, or why they are not compared. The lines have one task and profile.

    Recipes decide, not labels: in a grid, the profile's own value has a label, too. Of several budgets, the longest counts.
    """
    own: dict[str, dict[int, Line]] = {method: {} for method in PAIR}
    for line in lines:
        if line.recipe.method in own and not changes_of(line.recipe):
            own[line.recipe.method].setdefault(line.recipe.frames, line)
    mlr, baseline = own.values()
    if not (shared := mlr.keys() & baseline.keys()):
        return _unpaired(lines, [method for method in PAIR if not own[method]])
    both = [arm[max(shared)] for arm in (mlr, baseline)]
    recipe = both[0].recipe
    known = _published(recipe) if recipe.profile == "paper" else _measured(recipe)
    if known is None:
        return _unknown(recipe)
    seeds, seconds = min(line.seeds for line in both), math.fsum(line.seconds for line in both)
    return _Pair(recipe.name, recipe.profile, both[0].label, *known, seeds, seconds)


def _unknown(recipe: Recipe) -> _Gap:
    pilot = f": run a pilot of both methods, with {ENOUGH} seeds or more."
    if is_own(recipe.name):
        return _Gap(recipe.name, "No scores are kept for your own environments, such as", pilot)
    within = f"within {_time(recipe.frames, recipe):,} {unit_of(recipe)}"
    if recipe.profile == "paper":
        return _Gap(recipe.name, f"The paper has no scores {within} for", pilot)
    values = f"with the {recipe.profile} profile's own values and {within}"
    return _Gap(recipe.name, f"No study of ours compares {ENOUGH} runs of MLR and of its Baseline, {values}, on", pilot)


def _unpaired(lines: Sequence[Line], missing: Sequence[str]) -> _Gap:
    """Why no run of these methods can be compared. Without missing methods, budgets differ."""
    task, names = lines[0].task, {"mlr": "MLR", "baseline": "Baseline"}
    there = {line.recipe.method for line in lines}
    if absent := [names[method] for method in missing if method not in there]:
        return _Gap(task, f"The plan has no {' and no '.join(absent)} on", ".")
    if not missing:
        return _Gap(task, "MLR and its Baseline have different budgets on", ".")
    changes = [change for line in lines if line.recipe.method in missing for change in changes_of(line.recipe)]
    changed = ", ".join(dict.fromkeys(change.partition("=")[0] for change in changes))
    whose = f"{' and '.join(names[method] for method in missing)} with other values than the {lines[0].recipe.profile} profile's"
    return _Gap(task, f"No scores of {whose} ({changed}) for", ": run a pilot.")


class _Known(NamedTuple):
    """Known scores of both methods, on one task."""

    source: str  # as in `Question`
    early: bool
    mlr: Summary
    baseline: Summary


def _measured(recipe: Recipe) -> _Known | None:
    """The latest scores within the budget of our own runs with this profile."""
    scores = measured(recipe.name, recipe.profile, recipe.frames)
    if not scores:
        return None
    mlr, baseline = (scores[method] for method in PAIR)
    a, b = (Summary(score.mean, score.std, score.seeds) for score in (mlr, baseline))
    return _known(f"study {mlr.study}", a, b, mlr.frames, recipe)


def _published(recipe: Recipe) -> _Known | None:
    """The paper's latest scores within the budget for which it has the spread."""
    repeat = recipe.env.action_repeat if _suite(recipe.name) == "atari" else 1  # the paper counts decisions on Atari
    for at in (500_000, 100_000):
        cells = [published(recipe.name, at, method) for method in PAIR]
        usable = [cell for cell in cells if cell and cell.std is not None and cell.seeds and not cell.misprint]
        if len(usable) == len(cells) and at * repeat <= recipe.frames:
            mlr, baseline = (Summary(cell.mean, cell.std or 0.0, cell.seeds or 0) for cell in usable)
            return _known("the paper", mlr, baseline, at * repeat, recipe)
    return None


def _known(whose: str, mlr: Summary, baseline: Summary, frames: int, recipe: Recipe) -> _Known:
    """Name the scores with their time, and with the budget if that is longer."""
    early = frames < recipe.frames
    of = f"of {_time(recipe.frames, recipe):,} " if early else ""
    seeds = min(mlr.runs, baseline.runs)
    source = f"{whose} ({seeds} seeds) at {_time(frames, recipe):,} {of}{unit_of(recipe)}"
    return _Known(source, early, mlr, baseline)


def _time(frames: int, recipe: Recipe) -> int:
    """Frames in the unit of the recipe's budget."""
    return frames // recipe.env.action_repeat if unit_of(recipe) == "decisions" else frames


def _suite(name: str) -> str:
    return name.partition("/")[0]


def _question(pairs: Sequence[_Pair], unit: str = "points") -> Question:
    x, y = [pair.mlr for pair in pairs], [pair.baseline for pair in pairs]
    varies, seeds = any(pair.varies for pair in pairs), min(pair.seeds for pair in pairs)
    needed = seeds_for(x, y) if varies else None
    return Question(
        tasks=tuple(pair.task for pair in pairs),
        source=" and ".join(dict.fromkeys(pair.source for pair in pairs)),
        early=any(pair.early for pair in pairs),
        difference=math.fsum(a.mean - b.mean for a, b in zip(x, y, strict=True)) / len(pairs),
        unit=unit,
        effect=effect_size(x, y) if varies else None,
        seeds=seeds,
        power=power(x, y, [pair.seeds for pair in pairs]) if varies and seeds >= ENOUGH else None,
        needed=needed,
        seconds=None if needed is None else needed * math.fsum(pair.seconds for pair in pairs),
    )


def _overall(pairs: Sequence[_Pair]) -> Question | None:
    """The mean over tasks. All have one suite and one profile: scores of different sizes or scales are never averaged."""
    if len(pairs) < 2 or len({(_suite(pair.task), pair.profile) for pair in pairs}) > 1:
        return None
    suite = _suite(pairs[0].task)
    if suite == "dmcontrol":  # its tasks have one scale
        return _question(pairs)
    ends = [scale(pair.task) if suite == "atari" else None for pair in pairs]
    scaled = [
        pair._replace(mlr=pair.mlr.scaled(*both), baseline=pair.baseline.scaled(*both))
        for pair, both in zip(pairs, ends, strict=True)
        if both is not None
    ]
    return _question(scaled, "human-normalised") if len(scaled) == len(pairs) else None


# ── Making a plan ─────────────────────────────────────────────────────────────────────────────────────────────────────


class Group(NamedTuple):
    """Jobs that differ only in the seed."""

    label: str
    recipe: Recipe
    seeds: int


def groups_of(jobs: Sequence[Job]) -> list[Group]:
    """Group jobs, in their order. The label is the part of the directory between the task and the seed."""
    found: dict[Recipe, list[Job]] = {}
    for job in jobs:
        found.setdefault(replace(job.recipe, seed=0), []).append(job)
    groups = []
    for job, *others in found.values():
        label = job.directory.removeprefix(f"{job.recipe.name}/").rpartition("/")[0].replace("/", " ")
        groups.append(Group(label, job.recipe, 1 + len(others)))
    return groups


def make_plan(jobs: Sequence[Job], *, seconds: float = 60.0, workers: int | None = None, tell: Tell = print) -> Plan:
    """Measure for about `seconds`, then compute the plan. Default `workers`: as many as cores and memory allow."""
    groups = groups_of(jobs)
    stepped = _stepped(groups, 0.35 * seconds, tell)
    tell("counting operations")
    costs = _costs(groups, stepped)
    speeds, notes = _speeds(groups, costs, stepped, 0.6 * seconds, tell)
    lines = tuple(Line(*group, cost, speed) for group, cost, speed in zip(groups, costs, speeds, strict=True))
    workers = workers or _room(lines)
    comparison = compare(lines)
    return Plan(lines, workers, comparison, (*notes, *_assumptions(lines, workers, comparison)))


def _assumptions(lines: Sequence[Line], workers: int, comparison: Comparison) -> list[str]:
    notes, atari = [], _suite(lines[0].task) == "atari"
    if workers > 1:
        notes.append("Runs were timed alone. Together they share caches and memory, and take somewhat longer.")
    if atari:
        notes.append("Games are assumed to be as long as with random actions. Better players often play longer.")
    if comparison.sources:
        notes.append(
            "Assumed: MLR differs from its Baseline, and scores vary over seeds, as in "
            f"{' and in '.join(comparison.sources)}. This is an estimate; for a longer budget it is a guess. After a few seeds, "
            "`maskrl report` shows your own difference."
        )
    return notes


def _stepped(groups: Sequence[Group], seconds: float, tell: Tell) -> list[Stepped]:
    """Time every environment once; returns one entry per group."""
    envs = {group.recipe.env: group.recipe for group in groups}
    found = {}
    for place, (env, recipe) in enumerate(envs.items(), 1):
        tell(f"timing the environment {recipe.name} ({place} of {len(envs)})")
        found[env] = measure_env(recipe, min(4.0, seconds / len(envs)))
    return [found[group.recipe.env] for group in groups]


def _costs(groups: Sequence[Group], stepped: Sequence[Stepped]) -> list[RunCost]:
    """The costs of the groups; equal updates are counted once."""
    updates: dict[Any, UpdateCost] = {}
    costs = []
    for (_, recipe, _), step in zip(groups, stepped, strict=True):
        key = (recipe.agent, recipe.objective, step.spaces)
        updates[key] = updates.get(key) or update_cost(recipe, step.spaces)
        costs.append(run_cost(recipe, step.spaces, updates[key]))
    return costs


def _speeds(
    groups: Sequence[Group], costs: Sequence[RunCost], stepped: Sequence[Stepped], seconds: float, tell: Tell
) -> tuple[list[Speed], list[str]]:
    """Time one group per kind of update. Others of its kind are assumed to have the same speed per FLOP."""
    kinds, timed = _kinds(groups, costs), dict[int, Updated]()
    names = {kind: f"{groups[kind].recipe.name} {groups[kind].label}" for kind in kinds}
    for place, (kind, name) in enumerate(names.items(), 1):
        tell(f"timing updates of {name} ({place} of {len(names)})")
        each = min(15.0, seconds / len(names))
        timed[kind] = measure_updates(groups[kind].recipe, costs[kind].update, stepped[kind], each)
    speeds = []
    for kind, cost, step in zip(kinds, costs, stepped, strict=True):
        seen, share = timed[kind], cost.update.flops / costs[kind].update.flops
        speeds.append(Speed(seen.update * share, seen.act, seen.act_together, step.step, step.episode))
    return speeds, _timing_notes({names[kind]: seen for kind, seen in timed.items()})


def _timing_notes(timed: Mapping[str, Updated]) -> list[str]:
    notes = [
        "Updates and environment steps were timed on this machine for a minute or less: the processor time of the fastest sample."
    ]
    if small := [f"1/{1 / seen.share:.0f} ({name})" for name, seen in timed.items() if 0 < seen.share < 1]:
        notes.append(
            f"A full update takes too long to time. Updates with 1/64 of the batches and with {' and '.join(small)} were timed and "
            "extrapolated by their FLOP."
        )
    if none := [name for name, seen in timed.items() if seen.share == 0]:
        notes.append(
            f"There is not enough memory to time {' and '.join(none)}: the time is from FLOP, at {ASSUMED:.0%} of a matrix "
            "product's speed."
        )
    return notes


def _kinds(groups: Sequence[Group], costs: Sequence[RunCost]) -> list[int]:
    """For every group, the first group with the same kind of agent and threads, and similar FLOP in each phase."""

    def alike(a: int, b: int) -> bool:
        x, y = (groups[place].recipe for place in (a, b))
        same = (x.agent.kind, x.threads, x.device) == (y.agent.kind, y.threads, y.device)
        one, other = costs[a].update.phases, costs[b].update.phases
        return same and one.keys() == other.keys() and all(math.isclose(one[k], other[k], rel_tol=0.1) for k in one)

    return [next(other for other in range(place + 1) if alike(place, other)) for place in range(len(groups))]


def _room(lines: Sequence[Line]) -> int:
    """The number of runs at once, as in `maskrl sweep`."""
    room = this_machine()
    needs = [needs_of(line.recipe, line.cost.memory, gpus=room.gpus > 0) for line in lines]
    return min(at_once(largest(needs), room), sum(line.seeds for line in lines))
