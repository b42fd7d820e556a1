"""Before many runs are begun: what they will cost, and what their scores will be able to tell.

Costs are counted (`maskrl.cost.operations`) and timed on this machine, with real updates and real steps of the environments. What
the scores can tell is worked out from the paper's own differences and spreads: a plan assumes that they hold here, too.
"""

import heapq
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, cast

from maskrl import recipes
from maskrl.analysis.power import cheapest_seeds, power, seeds_for
from maskrl.analysis.protocol import method_of, protocol_difference, protocol_of
from maskrl.analysis.scores import scale
from maskrl.analysis.statistics import Summary, effect_size
from maskrl.cost.forecast import free_memory
from maskrl.cost.operations import RunCost, UpdateCost, run_cost, update_cost
from maskrl.cost.timing import ASSUMED, Stepped, Updated, measure_env, measure_updates
from maskrl.doctor import cores_allowed
from maskrl.envs import AnyEnv, Atari
from maskrl.recipes.published import published, training_hours
from maskrl.recipes.schema import Method, Recipe
from maskrl.studies.sweep import Job

# On a GPU that is not here. The paper's MLR takes 4.2 hours longer on Atari than its Baseline, on an RTX 3090, which is sold with
# 35.6 TFLOP/s. The released code computes 197 PFLOP more: 13 TFLOP/s, 0.37 of it.
UTILISATION = 0.35
UPDATE_OVERHEAD = 0.005  # seconds to launch the kernels of an update, however small they are
ACT_OVERHEAD = 0.001

Tell = Callable[[str], None]


# ── What is planned ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Speed:
    """Seconds, and how they are known."""

    update: float  # the mean of a full turn of what is not done every time
    act: float  # one action, for one observation
    act_together: float  # for one of those that are evaluated side by side
    step: float  # of the environment: a decision, resets included
    episode: float  # decisions of an episode in evaluation
    how: str


@dataclass(frozen=True)
class Line:
    """The runs of a recipe that differ in nothing but the seed."""

    label: str  # "mlr", or with what it was asked for beside the task: "mlr objective.mask.ratio=0.1"
    recipe: Recipe
    seeds: int
    cost: RunCost
    speed: Speed
    papers_hours: float | None  # of a run of its method, on one RTX 3090

    @property
    def task(self) -> str:
        return self.recipe.name

    @property
    def seconds(self) -> float:
        """Of one run, by itself."""
        cost, speed = self.cost, self.speed
        learning = cost.updates * speed.update
        acting = cost.chosen * speed.act + cost.decisions * speed.step
        floor = self.recipe.evaluation.episodes * speed.episode * speed.step  # of random actions, at the start
        return learning + acting + floor + cost.episodes * speed.episode * (speed.step + speed.act_together)

    @property
    def flops(self) -> float:
        """Of one run."""
        return self.cost.learning + self.cost.acting(self.speed.episode)

    @property
    def memory(self) -> int:
        """Bytes of one run."""
        return self.cost.memory


@dataclass(frozen=True)
class Plan:
    lines: tuple[Line, ...]
    workers: int
    comparison: "Comparison | None"  # None: the paper has nothing to go by, or one of the two methods is missing
    notes: tuple[str, ...]  # what was assumed

    @property
    def runs(self) -> int:
        return sum(line.seeds for line in self.lines)

    @property
    def seconds(self) -> float:
        """Of work, as if done one after another."""
        return math.fsum(line.seeds * line.seconds for line in self.lines)

    @property
    def elapsed(self) -> float:
        """Until the last run has ended."""
        return makespan([line.seconds for line in self.lines for _ in range(line.seeds)], self.workers)

    @property
    def flops(self) -> float:
        return math.fsum(line.seeds * line.flops for line in self.lines)

    @property
    def memory(self) -> int:
        """Bytes, if the largest runs happen to be at work together."""
        every = sorted((line.memory for line in self.lines for _ in range(line.seeds)), reverse=True)
        return sum(every[: self.workers])

    @property
    def disk(self) -> int:
        return sum(line.seeds * line.cost.takes.disk for line in self.lines)


def makespan(seconds: Sequence[float], workers: int) -> float:
    """When the last run ends, if each worker takes the next that waits."""
    free = [0.0] * min(workers, max(1, len(seconds)))
    for one in seconds:
        heapq.heapreplace(free, free[0] + one)
    return max(free)


# ── What scores can tell ──────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Question:
    """Does MLR score above its Baseline: on one task, or in the mean over several? With the paper's difference and spread."""

    tasks: tuple[str, ...]
    difference: float  # of the means, the paper's; over several tasks of Atari human-normalised
    effect: float  # in standard deviations, see `effect_size`
    seeds: int  # planned for each method, the fewest of any task
    power: float  # the chance to find that difference with so many
    needed: int | None  # for the power that is called enough; None: the paper's MLR is not above
    seconds: float  # that the needed runs take, one after another; infinite if there are none


@dataclass(frozen=True)
class Comparison:
    at: str  # "100,000 frames"
    tasks: tuple[Question, ...]
    overall: Question | None  # of several tasks
    cheapest: Question | None  # of the tasks, with a gain in the paper
    allocation: Mapping[str, int] | None  # task → seeds of each method: the cheapest that settles the mean over tasks


@dataclass(frozen=True)
class _Pair:
    """A task with both methods: the paper's scores, and what a run of each costs together."""

    task: str
    mlr: Summary
    baseline: Summary
    seeds: int
    seconds: float


def compare(lines: Sequence[Line]) -> Comparison | None:
    """What can be said of MLR against its Baseline, on the tasks where the plan has both and the paper has a spread."""
    pairs, times = list[_Pair](), set[str]()
    for task in dict.fromkeys(line.task for line in lines):
        both = {line.label: line for line in lines if line.task == task and line.label in ("mlr", "baseline")}
        if len(both) < 2:
            continue
        at, unit = papers_time(both["mlr"].recipe)
        cells = [published(task, at, method) for method in ("MLR", "Baseline")]
        told = [
            Summary(cell.mean, cell.std, cell.seeds)
            for cell in cells
            if cell is not None and cell.std is not None and cell.seeds and not cell.misprint
        ]
        if len(told) == 2:
            seconds = both["mlr"].seconds + both["baseline"].seconds
            pairs.append(_Pair(task, told[0], told[1], min(line.seeds for line in both.values()), seconds))
            times.add(f"{at:,} {unit}")
    if not pairs:
        return None
    questions = [_question([pair]) for pair in pairs]
    several = [_scaled(pair) for pair in pairs] if len(pairs) > 1 else []
    settled = [question for question in questions if question.needed is not None]
    seeds = cheapest_seeds(*_sides(several), [pair.seconds for pair in several]) if several else None
    return Comparison(
        at=" and ".join(sorted(times)),
        tasks=tuple(questions),
        overall=_question(several) if several else None,
        cheapest=min(settled, key=lambda question: question.seconds, default=None),
        allocation=None if seeds is None else {pair.task: n for pair, n in zip(several, seeds, strict=True)},
    )


def papers_time(recipe: Recipe) -> tuple[int, str]:
    """Which of the paper's times a run stands for: its own in the paper's profile, the nearer one in the lite profile."""
    if isinstance(recipe.env, Atari):
        return 100_000, "decisions"
    return (500_000 if recipe.frames > 250_000 else 100_000), "frames"


def _caveats(lines: Sequence[Line]) -> list[str]:
    """Why the paper's difference and spread may not be those of these runs."""
    guess = "show the same difference and spread is a guess. After a few seeds, `maskrl report` has your own."
    notes = []
    if any(line.recipe.profile == "lite" for line in lines):
        notes.append(f"These are the paper's scores, not the lite profile's: that smaller networks and budgets {guess}")
    compared = [line.recipe for line in lines if line.label in ("mlr", "baseline")]
    if words := list(dict.fromkeys(word for recipe in compared for word in departures(recipe))):
        notes.append(f"These are the paper's scores, and not of runs with {', '.join(words)}: that such runs {guess}")
    return notes


def departures(recipe: Recipe) -> list[str]:
    """What sets a run apart from those that the paper has scores of, as overrides; its profile aside."""
    named = protocol_of(recipes.find(recipe.name, recipe.profile, cast(Method, recipe.method)))
    changes = [line.partition(": ") for line in protocol_difference(named, protocol_of(recipe))]
    words = [f"{path}={values.partition(' -> ')[2]}" for path, _, values in changes if not path.startswith("budget.")]
    at, unit = papers_time(recipe)
    time = recipe.frames if unit == "frames" else recipe.frames // recipe.env.action_repeat
    other = recipe.profile == "paper" and time != at
    return [*method_of(recipe).split()[1:], *words, *([f"a budget of {time:,} {unit}"] if other else [])]


def _question(pairs: Sequence[_Pair]) -> Question:
    x, y = _sides(pairs)
    needed = seeds_for(x, y)
    return Question(
        tasks=tuple(pair.task for pair in pairs),
        difference=math.fsum(a.mean - b.mean for a, b in zip(x, y, strict=True)) / len(pairs),
        effect=effect_size(x, y),
        seeds=min(pair.seeds for pair in pairs),
        power=power(x, y, [pair.seeds for pair in pairs]),
        needed=needed,
        seconds=math.inf if needed is None else needed * math.fsum(pair.seconds for pair in pairs),
    )


def _sides(pairs: Sequence[_Pair]) -> tuple[list[Summary], list[Summary]]:
    return [pair.mlr for pair in pairs], [pair.baseline for pair in pairs]


def _scaled(pair: _Pair) -> _Pair:
    """Human-normalised on Atari, where games have scales of their own; as it is on DMControl."""
    ends = scale(pair.task) if pair.task.startswith("atari/") else None
    return pair if ends is None else replace(pair, mlr=pair.mlr.scaled(*ends), baseline=pair.baseline.scaled(*ends))


# ── Making a plan ─────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Gpu:
    """Another machine: so many devices, each sold with so many TFLOP/s, of which a share is reached."""

    tflops: float
    count: int = 1
    utilisation: float = UTILISATION


class Group(NamedTuple):
    """Jobs that differ in nothing but the seed."""

    label: str
    recipe: Recipe
    seeds: int


def groups_of(jobs: Sequence[Job]) -> list[Group]:
    """In the order of the jobs. A label has the method, and what was asked for that not all of its runs have."""
    found: dict[Recipe, list[Job]] = {}
    for job in jobs:
        found.setdefault(replace(job.recipe, seed=0), []).append(job)
    first = [members[0] for members in found.values()]
    groups = []
    for job, members in zip(first, found.values(), strict=True):
        alike = [set(other.overrides) for other in first if other.recipe.method == job.recipe.method]
        words = [word for word in job.overrides if not word.startswith("seed=") and any(word not in a for a in alike)]
        groups.append(Group(" ".join([job.recipe.method, *words]), job.recipe, len(members)))
    return groups


def make_plan(
    jobs: Sequence[Job],
    *,
    seconds: float = 60.0,
    workers: int | None = None,
    gpu: Gpu | None = None,
    tell: Tell = lambda text: None,
) -> Plan:
    """Measure for about so many seconds, then work it out. Without `workers`, as many as cores and memory have room for."""
    groups = groups_of(jobs)
    stepped = _stepped(groups, 0.35 * seconds, 0.0 if gpu else 0.6 * seconds, tell)
    tell("counting operations")
    updates: dict[Any, UpdateCost] = {}
    costs = []
    for _, recipe, _ in groups:
        spaces = stepped[recipe.env].spaces
        key = (recipe.agent, recipe.objective, spaces)
        updates[key] = updates.get(key) or update_cost(recipe, spaces)
        costs.append(run_cost(recipe, spaces, updates[key]))
    speeds, notes = (_speeds_there if gpu else _speeds_here)(groups, costs, stepped, gpu, 0.6 * seconds, tell)
    lines = tuple(
        Line(*group, cost, speed, _papers_hours(group.recipe))
        for group, cost, speed in zip(groups, costs, speeds, strict=True)
    )
    workers = workers or (gpu.count if gpu else _room(lines))
    if workers > 1 and gpu is None:
        notes.append("Runs were timed alone. Side by side they share caches and memory, and take somewhat longer.")
    if any(isinstance(line.recipe.env, Atari) for line in lines):
        notes.append("A game is taken to be as long as those of random actions. Better players often play longer.")
    comparison = compare(lines)
    if comparison is not None:
        notes.append(
            f"The paper's difference between MLR and its Baseline at {comparison.at}, and its spread over seeds, are taken for the "
            f"truth. They are estimates, from {3 if lines[0].task.startswith('atari/') else 10} seeds. The task that looks "
            "cheapest is also the luckiest of the estimates: allow for some seeds more."
        )
        notes += _caveats(lines)
    return Plan(lines, workers, comparison, tuple(notes))


def _stepped(groups: Sequence[Group], seconds: float, updates: float, tell: Tell) -> dict[AnyEnv, Stepped]:
    of_env = {group.recipe.env: group.recipe for group in groups}
    each, stepped = min(4.0, seconds / len(of_env)), dict[AnyEnv, Stepped]()
    for place, (env, recipe) in enumerate(of_env.items()):
        left = each * (len(of_env) - place) + updates
        tell(f"timing the environment {recipe.name} ({place + 1} of {len(of_env)}), about {left:.0f} s to go")
        stepped[env] = measure_env(recipe, each)
    return stepped


def _speeds_here(
    groups: Sequence[Group],
    costs: Sequence[RunCost],
    stepped: Mapping[AnyEnv, Stepped],
    gpu: Gpu | None,
    seconds: float,
    tell: Tell,
) -> tuple[list[Speed], list[str]]:
    """One group of every kind of update is timed. The others of its kind take as long for each FLOP."""
    kinds = _kinds(groups, costs)
    each, timed = min(15.0, seconds / len(set(kinds))), dict[int, Updated]()
    for place, kind in enumerate(dict.fromkeys(kinds)):
        group = groups[kind]
        left, number = each * (len(set(kinds)) - place), f"{place + 1} of {len(set(kinds))}"
        tell(f"timing updates of {group.recipe.name} {group.label} ({number}), about {left:.0f} s to go")
        timed[kind] = measure_updates(group.recipe, costs[kind].update, stepped[group.recipe.env], each)
    speeds = []
    for group, cost, kind in zip(groups, costs, kinds, strict=True):
        step, seen = stepped[group.recipe.env], timed[kind]
        update = seen.update * cost.update.flops / costs[kind].update.flops
        speeds.append(Speed(update, seen.act, seen.act_together, step.step, step.episode, _how(seen)))
    notes = [
        "Updates and environment steps were timed on this machine for a minute or less: the processor time of the fastest sample."
    ]
    names = {kind: f"{groups[kind].recipe.name} {groups[kind].label}" for kind in timed}
    if small := [f"1/{1 / seen.share:.0f} ({names[kind]})" for kind, seen in timed.items() if 0 < seen.share < 1]:
        notes.append(
            f"A full update takes too long to try. Updates with 1/64 of the batches and with {' and '.join(small)} were timed, and "
            "the line through both was drawn out by their FLOP."
        )
    if none := [names[kind] for kind, seen in timed.items() if seen.share == 0]:
        notes.append(
            f"There is no room in the memory here to try {' and '.join(none)}: the time is by FLOP, at {ASSUMED:.0%} of a matrix "
            "product's speed."
        )
    core = min(seen.core for seen in timed.values())
    if core < 0.85:
        notes.append(
            f"This machine is busy: while it was timed, this process got {core:.0%} of the cores it asked for. The hours are "
            "for a machine that has nothing else to do."
        )
    return speeds, notes


def _how(seen: Updated) -> str:
    return "measured" if seen.share == 1 else "extrapolated" if seen.share else "assumed"


def _kinds(groups: Sequence[Group], costs: Sequence[RunCost]) -> list[int]:
    """For every group the first that has the same kind of agent, the same threads, and about as many FLOP in each phase."""

    def alike(a: int, b: int) -> bool:
        (_, x, _), (_, y, _) = groups[a], groups[b]
        same = (type(x.agent), x.threads, x.device) == (type(y.agent), y.threads, y.device)
        one, other = costs[a].update.phases, costs[b].update.phases
        return same and one.keys() == other.keys() and all(math.isclose(one[k], other[k], rel_tol=0.1) for k in one)

    return [next(other for other in range(place + 1) if alike(place, other)) for place in range(len(groups))]


def _speeds_there(
    groups: Sequence[Group],
    costs: Sequence[RunCost],
    stepped: Mapping[AnyEnv, Stepped],
    gpu: Gpu | None,
    seconds: float,
    tell: Tell,
) -> tuple[list[Speed], list[str]]:
    """By FLOP, but for the environments, which are timed here."""
    assert gpu is not None
    rate, speeds = gpu.tflops * 1e12 * gpu.utilisation, []
    for (_, recipe, _), cost in zip(groups, costs, strict=True):
        step, act = stepped[recipe.env], cost.update.act / rate
        together = min(recipe.evaluation.side_by_side, recipe.evaluation.episodes)
        speeds.append(
            Speed(
                update=UPDATE_OVERHEAD + cost.update.flops / rate,
                act=ACT_OVERHEAD + act,
                act_together=ACT_OVERHEAD / together + act,
                step=step.step,
                episode=step.episode,
                how="by FLOP",
            )
        )
    notes = [
        f"Nothing was timed on that machine: updates run at {gpu.utilisation:.0%} of {gpu.tflops:g} TFLOP/s, plus "
        f"{UPDATE_OVERHEAD * 1e3:.0f} ms each to launch them and {ACT_OVERHEAD * 1e3:.0f} ms for an action. On Atari the paper's "
        "MLR takes 4.2 hours longer than its Baseline and 197 PFLOP more: 37 % of the 35.6 TFLOP/s of its RTX 3090.",
        "Environments were timed on this machine; there, a core is taken to be as fast.",
    ]
    return speeds, notes


def _room(lines: Sequence[Line]) -> int:
    """Runs at a time, as `maskrl sweep` has them: so that neither cores nor memory are short."""
    cores = cores_allowed() // max(line.recipe.threads or cores_allowed() for line in lines)
    free, largest = free_memory(), max(line.memory for line in lines)
    return max(1, min(cores, sum(line.seeds for line in lines), cores if free is None else free // largest))


def _papers_hours(recipe: Recipe) -> float | None:
    """In the paper's profile only: another has nothing to do with them."""
    method = {"mlr": "MLR", "baseline": "Baseline"}.get(recipe.method, recipe.method)
    return training_hours().get((recipe.name.partition("/")[0], method)) if recipe.profile == "paper" else None
