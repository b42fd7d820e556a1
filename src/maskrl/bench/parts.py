"""Where the time of an update, an environment or a run goes: functions timed from outside, without their help."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import gymnasium as gym
from torch import nn

from maskrl.agents.base import Agent
from maskrl.bench.reference import optimizers_of
from maskrl.clock import Stopwatch
from maskrl.nn.augment import View
from maskrl.nn.momentum import Momentum
from maskrl.replay.buffer import Replay

PHASES = ("draw", "views", "pixels", "critic", "objective", "actor", "momentum", "optimizer")  # of an update


class Wrap(ExitStack):
    """Replaces functions of others by timed ones, until the context is left."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self.watch = watch

    def __call__(self, owner: Any, names: Sequence[str], part: str) -> None:
        """Time methods of an object, or of all objects of a class. Names that it does not have are skipped."""
        for name in names:
            if hasattr(owner, name):
                self.replace(owner, name, self._timed(getattr(owner, name), part))

    def replace(self, owner: Any, name: str, value: Any) -> None:
        undo = (setattr, owner, name, getattr(owner, name)) if name in vars(owner) else (delattr, owner, name)
        self.callback(*undo)
        setattr(owner, name, value)

    def _timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def timed(*args: Any, **options: Any) -> Any:
            with self.watch(part):
                return function(*args, **options)

        return timed


@contextmanager
def watched(agent: Any, replay: Replay) -> Iterator[Stopwatch]:
    """A stopwatch with the seconds of `PHASES`. Where a device works on its own, they are of the calls that start it."""
    with Wrap(Stopwatch()) as wrap:
        wrap.replace(agent, "watch", wrap.watch)
        wrap(replay, ["draw", "transitions", "clips", "reprioritise"], "draw")
        wrap_agent(wrap, agent)
        yield wrap.watch
    wrap.watch.seconds["draw"] += wrap.watch.seconds.pop("replay", 0.0)


def wrap_agent(wrap: Wrap, agent: Any) -> None:
    """Time the parts that an agent's own stopwatch does not separate."""
    wrap(View, ["pixels"], "pixels")
    wrap(agent.augment, ["forward"], "views")
    if agent.objective is not None:
        wrap(agent.objective, ["views"], "views")
    for module in modules_of(agent):
        if isinstance(module, Momentum):
            wrap(module, ["update"], "momentum")
    for optimizer in optimizers_of(agent):
        wrap(optimizer, ["step"], "optimizer")


def modules_of(agent: Agent) -> list[nn.Module]:
    """All modules of the agent and of its objective, each once."""
    parts = [part for part in (*vars(agent).values(), agent.objective) if isinstance(part, nn.Module)]
    return list(dict.fromkeys(module for part in parts for module in part.modules()))


def wrap_env(wrap: Wrap, env: gym.Env[Any, Any]) -> None:
    """Time drawing (DMControl, the toys), physics, emulation and the picture made of it, where an environment has them."""
    inner: Any = env.unwrapped
    wrap(inner, ["_draw"], "drawing")
    if hasattr(inner, "_suite"):
        wrap(inner._suite, ["step", "reset"], "physics")
    if hasattr(inner, "_ale"):
        inner._ale = _Console(inner._ale)
        wrap(inner._ale, ["act", "reset_game", "restoreState"], "emulation")
        wrap(inner._ale, ["getScreenGrayscale"], "picture")
        wrap(inner, ["_shrink"], "picture")


class _Console:
    """Stands in for ALE's object, whose methods cannot be replaced."""

    def __init__(self, ale: Any) -> None:
        self._ale = ale

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ale, name)
