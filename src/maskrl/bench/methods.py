"""`maskrl bench methods`: the updates of every method of a suite, each in turns with MLR's."""

from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

from torch.utils._python_dispatch import TorchDispatchMode

from maskrl.bench.measure import Measured, Tell, in_turns
from maskrl.bench.noise import Learner
from maskrl.bench.result import Result, Row, named
from maskrl.bench.update import first_losses, trained, turns_in_a_round
from maskrl.cost.operations import UpdateCost, spaces_of, update_cost
from maskrl.machine import processor
from maskrl.recipes.schema import Recipe, settled
from maskrl.runs.build import configure_process
from maskrl.runs.threads import threads_of

REFERENCE = "mlr"


class _Method(NamedTuple):
    learner: Learner
    cost: UpdateCost
    turns: int  # per round

    def seconds(self) -> float:
        """Of an update: the mean over turns."""
        return self.learner.seconds(self.turns)


def bench_methods(recipes: Mapping[str, Recipe], *, rounds: int = 5, tell: Tell = print) -> Result:
    """Time updates of these recipes, by the names of their methods. Seconds and FLOP are per update.

    In every round, each method follows directly after some updates of MLR, and its speed is relative to these. MLR also follows
    itself: its own ratio shows how exact the others are.
    """
    tell(f"Building {', '.join(recipes)}.")
    threads = threads_of(recipes[REFERENCE])
    methods = {name: _built(recipe, threads) for name, recipe in recipes.items()}
    reference, before = methods[REFERENCE], dict[str, list[float]]()

    def sample(name: str) -> float:
        before.setdefault(name, []).append(reference.seconds())
        return methods[name].seconds()

    samples = in_turns({name: partial(sample, name) for name in methods}, rounds, tell)
    rows = [_row(name, method, samples[name], before[name], reference) for name, method in methods.items()]
    values = named(recipes[REFERENCE]) | {
        "device": str(reference.learner.device),
        "threads": threads,
        "processor": processor(),
        "rounds": rounds,
        "methods": rows,
    }
    del values["method"]
    notes = [
        "Medians (least – most). The speed relative to MLR is that of operations per second, to MLR's just before.",
        "A torch call is an operation of torch of any size: the fewer FLOP it has, the more the call itself weighs.",
    ]
    return Result(values, notes)


def _built(recipe: Recipe, threads: int) -> _Method:
    recipe = settled(recipe)
    configure_process(recipe, threads)  # with the recipe's seed, which the first loss depends on
    spaces = spaces_of(recipe)
    cost, learner = update_cost(recipe, spaces), Learner(recipe, spaces)
    # An even number, because slow copies move at every second update, of the agent or of the objective.
    return _Method(learner, cost, 2 * turns_in_a_round(cost.flops * learner.turn))


def _row(name: str, method: _Method, seconds: list[float], before: list[float], reference: _Method) -> Row:
    learner, flops, objective = method.learner, method.cost.flops, method.learner.agent.objective
    parameters = sum(parameter.numel() for parameter in trained(learner.agent))
    own = None if objective is None else sum(parameter.numel() for parameter in objective.own_parameters())
    rates, references = [flops / each for each in seconds], [reference.cost.flops / each for each in before]
    calls = torch_calls(learner)
    return {
        "method": name,
        "parameters_of_agent": parameters - (own or 0),
        "parameters_of_objective": own,
        "first_loss": None if objective is None else first_losses(learner.first).get(objective.name),
        "flop_per_update": flops,
        "seconds_per_update": Measured.of(seconds),
        "flop_per_second": Measured.of(rates),
        "speed_relative_to_mlr": Measured.ratio(rates, references),
        "torch_calls_per_update": calls,
        "flop_per_torch_call": flops / calls,
    }


class _Calls(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the operations that torch carries out within its context, small and large."""

    count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += 1
        return func(*args, **(kwargs or {}))


def torch_calls(learner: Learner) -> float:
    """The mean of an update. Each costs time, however small it is."""
    updates = 2 * learner.turn
    with _Calls() as calls:  # type: ignore[no-untyped-call]
        for _ in range(updates):
            learner.update()
    return float(calls.count / updates)
