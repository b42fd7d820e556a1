"""An environment in a separate process, which steps while this one computes."""

import atexit
import multiprocessing
import random
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.connection import Connection
from typing import Any, Protocol

import gymnasium as gym
import numpy as np

from maskrl.envs.base import words_of
from maskrl.machine import die_with_parent

LOOK = 0.1  # seconds between two checks whether the run should stop, while the process does not answer
GRACE = 2.0  # seconds it has to answer once the run should stop
CLOSE = 2.0  # seconds it has to end


class Makes(Protocol):
    """A config that another process can use to make an environment: the `env` of a recipe."""

    def make(self, *, seed: int, training: bool) -> gym.Env[Any, Any]: ...


class InterruptedStep(BaseException):
    """The run should stop, and the environment's process does not answer. Not an error, like KeyboardInterrupt."""


class SubprocessEnv(gym.Env[Any, Any]):
    """The environment of `config`. `step_async` begins a step, and `step` with the same action waits for its result.

    Steps have the same order and results as in this process. If the process does not answer within `timeout` seconds, it is
    killed and a TimeoutError is raised. While waiting, `is_stopping` is polled, so that the run can stop.
    """

    def __init__(
        self,
        config: Makes,
        *,
        seed: int,
        training: bool,
        timeout: float = 300.0,
        is_stopping: Callable[[], bool] = lambda: False,
    ) -> None:
        self._timeout, self._is_stopping = timeout, is_stopping
        # Spawn, not fork: torch's threads and OpenGL's contexts do not survive a fork.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_live, args=(theirs, config, seed, training), daemon=True)
        self._process.start()
        theirs.close()  # so that the pipe closes when the process ends
        self._stepping = False
        atexit.register(self.close)  # before multiprocessing sends it a signal, which it ignores
        try:
            self.observation_space, self.action_space, self.metadata = self._answer()
        except Exception:
            self.close()
            raise

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        return self._ask("reset", seed=seed, options=options)

    def step_async(self, action: Any) -> None:
        """Begin a step; `step` raises its errors."""
        with suppress(OSError):
            self._pipe.send(("step", (action,), {}))
        self._stepping = True

    def step(self, action: Any) -> Any:
        if not self._stepping:
            return self._ask("step", action)
        self._stepping = False
        return self._answer()

    def render(self) -> Any:
        return self._ask("render")

    def close(self) -> None:
        atexit.unregister(self.close)
        with suppress(OSError):
            self._pipe.close()
        self._process.join(timeout=CLOSE)  # it ends when the pipe closes
        if self._process.is_alive():
            self._process.kill()
            self._process.join()

    def _ask(self, name: str, *arguments: Any, **options: Any) -> Any:
        self._pipe.send((name, arguments, options))
        return self._answer()

    def _answer(self) -> Any:
        try:
            self._await_answer()
            failed, answer = self._pipe.recv()
        except TimeoutError:
            raise
        except (EOFError, OSError) as error:
            self._process.join(timeout=CLOSE)
            raise RuntimeError(f"its process has ended with exit code {self._process.exitcode}") from error
        if failed:
            raise RuntimeError(answer)
        return answer

    def _await_answer(self) -> None:
        begun, asked = time.monotonic(), None
        while not self._pipe.poll(LOOK):
            now = time.monotonic()
            asked = now if asked is None and self._is_stopping() else asked
            if asked is not None and now - asked > GRACE:
                self._process.kill()
                raise InterruptedStep
            if now - begun > self._timeout:
                self._process.kill()
                raise TimeoutError(f"its process did not answer for {self._timeout:g} seconds and was killed")


def _live(pipe: Connection, config: Makes, seed: int, training: bool) -> None:
    """Runs in the other process: answer requests until the pipe is closed."""
    die_with_parent()
    for told in ("SIGINT", "SIGTERM", "SIGHUP"):  # only for the training process, which needs this one to save
        with suppress(AttributeError):  # not every system has all of them
            signal.signal(getattr(signal, told), signal.SIG_IGN)
    random.seed(seed)  # as in the training process: an environment may use these generators
    np.random.seed(seed % 2**32)
    try:
        env = config.make(seed=seed, training=training)
        pipe.send((False, (env.observation_space, env.action_space, env.metadata)))
    except Exception as error:
        with suppress(OSError):  # the training process may have been killed in the meantime
            pipe.send((True, words_of(error)))
        return
    with suppress(EOFError, OSError):
        while True:
            name, arguments, options = pipe.recv()
            try:
                answer = getattr(env, name)(*arguments, **options)
                pipe.send((False, answer))
            except (EOFError, BrokenPipeError):
                break
            except Exception as error:
                pipe.send((True, words_of(error)))
    env.close()
