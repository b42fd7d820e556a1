"""The time of an update, an environment or a run by part. Functions are timed from outside and are not changed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import gymnasium as gym
import torch

from maskrl.agents.base import Agent
from maskrl.clock import Stopwatch
from maskrl.nn.augment import Augment, View
from maskrl.nn.momentum import Momentum
from maskrl.replay.buffer import Replay

PHASES = ("draw", "views", "pixels", "critic", "objective", "actor", "momentum", "optimizer")  # of an update


class Wrap(ExitStack):
    """Replaces functions by timed ones within the context."""

    def __init__(self, watch: Stopwatch) -> None:
        super().__init__()
        self.watch = watch

    def __call__(self, owner: Any, names: Sequence[str], part: str) -> None:
        """Time methods of an object, or of all objects of a class. Missing names are skipped."""
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
    """A stopwatch with the seconds of `PHASES`. For an asynchronous device, they are those of the calls on the host."""
    with Wrap(Stopwatch()) as wrap:
        wrap.replace(agent, "watch", wrap.watch)
        wrap(replay, ["draw", "transitions", "clips", "reprioritise"], "draw")
        wrap_agent(wrap, agent)
        yield wrap.watch
    wrap.watch.seconds["draw"] += wrap.watch.seconds.pop("replay", 0.0)


def wrap_agent(wrap: Wrap, agent: Agent) -> None:
    """Time the parts that an agent's own stopwatch does not separate."""
    wrap(View, ["pixels"], "pixels")
    wrap(Augment, ["forward"], "views")
    wrap(Momentum, ["update"], "momentum")
    wrap(torch.optim.Adam, ["step"], "optimizer")
    if agent.objective is not None:
        wrap(agent.objective, ["views"], "views")


def wrap_env(wrap: Wrap, env: gym.Env[Any, Any]) -> None:
    """Time the drawing, and the physics of DMControl, if an environment has them."""
    inner: Any = env.unwrapped
    wrap(inner, ["_draw", "_shrink"], "drawing")
    if hasattr(inner, "_suite"):
        wrap(inner._suite, ["step", "reset"], "physics")
