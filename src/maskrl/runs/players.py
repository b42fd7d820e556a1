"""Play the episodes of an evaluation: in this process, and in helper processes if that saves time."""

import os
import pickle
import queue
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any, TypedDict

import torch
from numpy.typing import NDArray

from maskrl.agents.base import PolicyNetwork, Spaces
from maskrl.envs.base import words_of
from maskrl.machine import cores_allowed, free_memory
from maskrl.recipes.schema import Recipe
from maskrl.runs.build import configure_process, device_of, make_evaluation_envs, torch_threads
from maskrl.runs.evaluate import Camera, Counter, Env, EpisodeReturns, next_of, nobody, play

START = 2.0  # seconds to start a process: started only for at least as much work
ALIVE = None  # sent by a helper while it plays
HEARTBEAT = 1.0  # seconds between these messages
MEMORY = 450_000_000  # bytes per helper on DMControl, the maximum; all may take half of the free memory

Weights = dict[str, NDArray[Any]]


class Rules(TypedDict):
    """Settings of an episode besides its number."""

    seed: int
    epsilon: float


class Players:
    """Plays whole episodes; returns do not depend on which process plays them.

    On a CPU the policy takes one observation at a time, on one thread, so a return depends neither on the number of processes nor
    on other episodes. Helper processes start once there is enough work for them, and stay until `close`. On a GPU this process
    plays all episodes in one batch.
    """

    def __init__(self, recipe: Recipe, tell: Callable[[str], None] = lambda _: None) -> None:
        self._recipe, self._tell = recipe, tell
        self._envs = make_evaluation_envs(recipe)
        self._helpers: list[Helper] = []
        self._most = helpers_allowed(recipe)
        self.waiting: float | None = None  # time.monotonic() since which this process waits for its environments

    @property
    def fps(self) -> float:
        """Decisions per second of a video."""
        return float(self._envs[0].metadata["render_fps"])

    def play(
        self,
        policy: PolicyNetwork | None,
        *,
        episodes: int,
        seed: int,
        epsilon: float = 0.0,
        watcher: Camera | None = None,
        counter: Counter | None = None,
    ) -> EpisodeReturns:
        """Play this many episodes with a policy, or with random actions. Episodes for `watcher` are played in this process."""
        on_gpu, spaces = device_of(self._recipe).type != "cpu", Spaces.of(self._envs[0])
        match = _Match(policy, episodes, {"seed": seed, "epsilon": 1.0 if policy is None else epsilon})
        begun, most, envs = time.perf_counter(), self._most, self._envs
        if watcher is not None:
            most, envs = 0, envs[:1]

        def count(ended: int) -> None:
            self.waiting = time.monotonic()
            for helper in self._helpers:
                helper.kill_if_late(self._recipe.env.timeout)
            if counter is not None:
                counter(ended)
            left = len(match.waiting) * (time.perf_counter() - begun) / ended if ended else 0.0  # seconds
            if most and left > START and not self._helpers:
                new = min(most, int(left / START), (free_memory() or sys.maxsize) // 2 // MEMORY)
                self._helpers += [Helper(self._recipe, spaces) for _ in range(new)]
                match.share(self._helpers)

        with nullcontext() if on_gpu else torch_threads(1):
            try:
                self.waiting = time.monotonic()
                match.share(self._helpers[:most])
                while len(match.returns) < episodes:
                    if match.waiting:
                        match.play(envs, watcher, count)
                    else:
                        time.sleep(0.005)  # helpers play the last episodes
                        count(len(match.returns))
            except BaseException:
                self._dismiss(self._helpers)
                raise
            finally:
                self.waiting = None
        for helper, words in match.failed:
            self._tell(f"A process that plays evaluation episodes failed ({words}). The others play its episodes.")
            self._dismiss([helper])
            self._most -= 1
        return EpisodeReturns(tuple(match.returns[number] for number in range(episodes)))

    def renew(self) -> None:
        """Replace all environments and helper processes."""
        self.close()
        self._envs = make_evaluation_envs(self._recipe)

    def close(self) -> None:
        self._dismiss(self._helpers)
        for env in self._envs:
            with suppress(Exception):  # an environment that has failed may fail again
                env.close()

    def _dismiss(self, helpers: "list[Helper]") -> None:
        for helper in list(helpers):
            helper.close()
            self._helpers.remove(helper)


def helpers_allowed(recipe: Recipe) -> int:
    """The number of helpers: one core is for this process. None for a compiled policy, which rounds differently from theirs."""
    if device_of(recipe).type != "cpu" or recipe.compile or not _is_portable(recipe):
        return 0
    return min(recipe.evaluation.side_by_side, recipe.evaluation.episodes, recipe.threads or cores_allowed()) - 1


def _is_portable(recipe: Recipe) -> bool:
    return recipe.env.is_portable and recipe.agent.encoder.is_portable


class _Match:
    """The episodes of one evaluation: those not started yet, and the returns of the others."""

    def __init__(self, policy: PolicyNetwork | None, episodes: int, rules: Rules) -> None:
        self._policy, self._rules = policy, rules
        self.waiting, self.returns = deque(range(episodes)), dict[int, float]()
        self.failed: list[tuple[Helper, str]] = []

    def play(self, envs: Sequence[Env], watcher: Camera | None, counter: Counter) -> None:
        """Play in this process until all episodes have started."""
        act = nobody if self._policy is None else self._policy.act
        play(act, envs, self.waiting, self.returns, **self._rules, watcher=watcher, counter=counter)

    def share(self, helpers: "Sequence[Helper]") -> None:
        """Let helpers take episodes. A thread of this process waits for each helper."""
        if not helpers:
            return
        state = {} if self._policy is None else self._policy.state_dict()
        weights = None if self._policy is None else {name: tensor.cpu().numpy() for name, tensor in state.items()}
        for helper in helpers:
            threading.Thread(target=self._follow, args=(helper, weights), daemon=True).start()

    def _follow(self, helper: "Helper", weights: Weights | None) -> None:
        number = None
        try:
            with helper.busy:  # it may still be starting for the last evaluation
                helper.learn(weights, self._rules)
                while (number := next_of(self.waiting)) is not None:
                    self.returns[number] = helper.play(number)
        except Exception as error:
            self.failed.append((helper, str(error)))
            if number is not None:
                self.waiting.append(number)


class Helper:
    """Another Python process that plays episodes. It ends when its standard input closes, so also if this process crashes."""

    def __init__(self, recipe: Recipe, spaces: Spaces) -> None:
        self._recipe, self._spaces, self._begun = recipe, spaces, False
        self._heard: float | None = None  # time of its last message; None: it is idle
        self._late = ""  # why it was killed
        self.busy = threading.Lock()
        # Without multiprocessing, which would run the user's script again.
        script = "from maskrl.machine import die_with_parent; die_with_parent(); "
        script += "from maskrl.runs.players import help_out; help_out()"
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; {script}"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # simulators print warnings; errors come as answers
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            start_new_session=True,  # Ctrl-C is only for the training process
        )

    def learn(self, weights: Weights | None, rules: Rules) -> None:
        """Send the weights and rules for the next episodes. The first time, the helper also makes its environment."""
        if not self._begun:
            self._ask("begin", self._recipe, self._spaces)
            self._begun = True
        self._ask("learn", weights, rules)

    def play(self, number: int) -> float:
        """Play an episode; return its return."""
        return float(self._ask("play", number))

    def kill_if_late(self, timeout: float) -> None:
        """Kill the helper if it sent nothing for `timeout` seconds. Another process then plays its episode."""
        if self._heard is not None and time.monotonic() - self._heard > timeout:
            self._late = f"it did not answer for {timeout:g} seconds and was killed"
            self._process.kill()

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            with suppress(OSError):  # it may not have read everything
                if pipe is not None:
                    pipe.close()

    def _ask(self, *request: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._heard = time.monotonic()
            pickle.dump(request, self._process.stdin)
            self._process.stdin.flush()
            while (message := pickle.load(self._process.stdout)) is ALIVE:
                self._heard = time.monotonic()
            failed, answer = message
        except (
            OSError,
            EOFError,
            ValueError,
            pickle.UnpicklingError,
        ) as error:  # ValueError: closed from another thread
            raise RuntimeError(self._late or f"it ended with exit code {self._process.wait()}") from error
        finally:
            self._heard = None
        if failed:
            raise RuntimeError(answer)
        return answer


class _Helping:
    """The other side of a `Helper`."""

    def __init__(self, beat: Callable[[int], None]) -> None:
        self._beat = beat  # called at every decision

    def begin(self, recipe: Recipe, spaces: Spaces) -> None:
        configure_process(recipe)
        torch.set_num_threads(1)
        self._env = recipe.env.make(seed=recipe.seed, training=False)
        self._policy = recipe.agent.build(spaces, None, torch.device("cpu")).policy()

    def learn(self, weights: Weights | None, rules: Rules) -> None:
        self._act, self._rules = nobody if weights is None else self._policy.act, rules
        if weights is not None:
            self._policy.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})

    def play(self, number: int) -> float:
        returns = dict[int, float]()
        play(self._act, [self._env], deque([number]), returns, **self._rules, counter=self._beat)
        return returns[number]


def help_out() -> None:
    """The main function of a helper: answer requests until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # keep output of libraries out of the answers
    requests: queue.Queue[Any] = queue.Queue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    last = time.monotonic()

    def send(message: Any) -> None:
        nonlocal last
        last = time.monotonic()
        pickle.dump(message, answers)
        answers.flush()

    def beat(_: int) -> None:
        if time.monotonic() - last > HEARTBEAT:
            send(ALIVE)

    helping = _Helping(beat)
    while True:
        request = requests.get()
        try:
            if isinstance(request, Exception):
                raise request
            name, *arguments = request
            answer = (False, getattr(helping, name)(*arguments))
        except Exception as error:
            answer = (True, words_of(error))  # not every error can be pickled
        send(answer)


def _listen(requests: "queue.Queue[Any]") -> None:
    """Read requests, also during an episode, so that a helper ends as soon as its parent does."""
    while True:
        try:
            requests.put(pickle.load(sys.stdin.buffer))
        except EOFError:
            os._exit(0)
        except Exception as error:  # the request cannot be unpickled, such as a class of the user's script
            requests.put(error)
