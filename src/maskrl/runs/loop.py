"""The training loop: act, update, step, evaluate. To change it, edit it."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from maskrl.agents.base import Action, Agent
from maskrl.clock import Clock
from maskrl.envs.base import words_of
from maskrl.envs.subprocess import InterruptedStep
from maskrl.files import EnvironmentFailedError
from maskrl.recipes.schema import Recipe
from maskrl.runs.directory import Run, RunError
from maskrl.runs.evaluate import EpisodeReturns
from maskrl.runs.loggers import Logger, Loggers
from maskrl.runs.signals import InterruptedEvaluation, Stop, Stopped, stopping
from maskrl.runs.state import State
from maskrl.runs.watchdog import watchdog

EVALUATION_SEED = 1_000_000  # added to the run's seed, so that evaluation and training episodes start differently


def train(recipe: Recipe, run: Run, loggers: Sequence[Logger] = (), *, stop: threading.Event | None = None) -> Agent:
    """Train to the end of the recipe's budget, from the run's newest checkpoint if there is one. Closes the loggers.

    Raises `Stopped`, with everything saved, on a signal (in the main thread) or when `stop` is set. If an environment's process
    does not answer, nothing is saved.
    """
    everyone = Loggers(loggers, tell=lambda text, clock: run.log("note", clock, {"text": text}))
    with closing(everyone), run.locked(), _recording_failure(run), State(recipe, run, everyone) as state:
        recipe.env.trust()  # the user agreed when the run was created
        patience = recipe.env.timeout * (2 if recipe.is_apart else 1)  # a separate process has its own time-out
        with stopping(stop) as asked, watchdog(run, (*state.worlds, state.players), patience):
            for world in state.worlds:
                world.is_stopping = lambda: bool(asked)
            try:
                _loop(state, asked)
            except InterruptedStep:
                run.set_status("stopped")
                raise Stopped(asked.signal_number, saved=False) from None
        if not state.is_done:
            run.set_status("stopped")
            raise Stopped(asked.signal_number)
        run.set_status("done")
        return state.agent


def _loop(state: State, stop: Stop) -> None:
    agent = state.agent
    state.resume()
    while True:
        state.log_notes()
        if state.is_evaluation_due:
            _evaluate(state, stop)
        state.save_if_due(ending=state.is_done or bool(stop))
        if state.is_done or stop:
            return

        now, idle = state.clock, state.idle()
        for place in idle:
            if state.obs[place] is None:
                state.begin_episode(place)
        due = agent.updates_due(now)
        agent.prepare(state.replay, due)  # in parallel to the choice of an action
        for place in idle:
            state.send(place, _choose(state, place, now))
        for _ in range(due):  # as in the released code: choose an action, update, then step
            state.update()
        with agent.watch("environment"):
            state.fetch()


def _choose(state: State, place: int, now: Clock) -> Action:
    """The next action for the environment at `place`."""
    if now.decisions < state.recipe.agent.warmup_decisions:
        return state.spaces.random_action(state.explorer)
    obs = state.obs[place]
    assert obs is not None  # an episode is open
    with state.agent.watch("actor"):
        action: Action = state.agent.act(obs[None], state.worlds[place].rows, explore=True, clock=now)[0]
    return action


def _evaluate(state: State, stop: Stop) -> None:
    """Evaluate the agent and log the score; before training, also log the score of random actions."""
    clock, cpu_seconds = state.clock, state.cpu_seconds
    state.agent.check()
    with suppress(InterruptedEvaluation):
        with state.agent.watch("evaluation"):
            floor, returns = _play_twice(state, stop)
        points = {"evaluation/score": returns.score, "evaluation/spread": returns.spread}
        if floor is not None:
            state.run.log("random", clock, {"score": floor.score, "returns": floor.returns})
            points["random/score"] = floor.score
        values = {"score": returns.score, "returns": returns.returns, "cpu_seconds": cpu_seconds}
        state.run.log("evaluation", clock, values)
        state.position.evaluated = clock.frames
        state.log_probe()
        state.loggers.write(points | state.times(), state.clock)


def _play_twice(state: State, stop: Stop) -> tuple[EpisodeReturns | None, EpisodeReturns]:
    """The returns of random actions (before training; otherwise None) and of the agent. Tries twice, as errors may be temporary."""
    try:
        return _play(state, stop)
    except Exception as error:
        state.note(f"An evaluation failed ({words_of(error)}). Trying once more in fresh environments.")
    state.players.renew()
    try:
        return _play(state, stop)
    except Exception as error:
        failed = f"An evaluation failed, and again in fresh environments: {words_of(error)}"
        raise EnvironmentFailedError(failed) from error


def _play(state: State, stop: Stop) -> tuple[EpisodeReturns | None, EpisodeReturns]:
    recipe, players, clock = state.recipe, state.players, state.clock
    seed, episodes, shown = recipe.seed + EVALUATION_SEED, recipe.evaluation.episodes, [-1]

    def count(ended: int) -> None:
        if stop:
            raise InterruptedEvaluation
        if ended != shown[0]:
            shown[0] = ended
            state.loggers.write({"evaluation/ended": float(ended), "evaluation/episodes": float(episodes)}, clock)

    floor = players.play(None, episodes=episodes, seed=seed, counter=count) if clock.frames == 0 else None
    policy, epsilon = state.agent.policy(), recipe.evaluation.epsilon
    return floor, players.play(policy, episodes=episodes, seed=seed, epsilon=epsilon, counter=count)


@contextmanager
def _recording_failure(run: Run) -> Iterator[None]:
    """Record the error of a failed run, and raise it again. A `RunError` is a refusal and leaves the status unchanged."""
    try:
        yield
    except (Stopped, RunError):
        raise
    except Exception as error:
        with suppress(OSError):  # the disk may have failed
            run.set_status("failed", f"{type(error).__name__}: {error}")
        raise
