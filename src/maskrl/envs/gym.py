"""Any Gymnasium environment that shows pixels: by its id, from a file, or from a callable.

A frame is one step of the environment; a decision is `action_repeat` of them.
"""

import difflib
import hashlib
import importlib
import importlib.util
import inspect
import json
import sys
import sysconfig
import types
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np

from maskrl.envs import consent
from maskrl.envs.actions import Actions
from maskrl.envs.base import EnvConfig, Frame, FrameStack, image_space, require_begun
from maskrl.envs.pixels import Picture, as_channels_last, channels_last
from maskrl.envs.vectors import Numbers, Vector
from maskrl.files import EnvironmentFailedError, RunError, read_bytes

Factory = Callable[..., gym.Env[Any, Any]]
FPS = 30.0  # of a video, if the environment does not specify it
VIDEO_SIZE = 256  # minimum side in pixels, if the environment cannot render videos

# Packages that register ids when they are imported, by the ids' prefixes. For others: gym/PACKAGE:ID.
PACKAGES = {
    "ALE/": "ale_py",
    "MiniGrid-": "minigrid",
    "BabyAI-": "minigrid",
    "Vizdoom": "vizdoom.gymnasium_wrapper",
    "Meta-World/": "metaworld",
    "dm_control/": "shimmy",
}

# Callables passed from Python in this process, by the task's name: a recipe is text and cannot hold them.
_given: dict[str, Factory] = {}


class EnvironmentRefusedError(RunError, ValueError):
    """An environment that cannot be made or used; the message says what was seen, what was expected and what to do."""


class WrongAnswerError(EnvironmentFailedError, ValueError):
    """What reset() or step() returned does not fit the environment's spaces."""


@dataclass(frozen=True, kw_only=True)
class Gym(EnvConfig):
    """One environment. Observations: uint8 (frame_stack · c, size, size), c = 3 or 1; actions: [-1, 1]^A, or discrete.

    In training, rewards are multiplied by `reward_scale` and clipped to ± `reward_clip`; in evaluation they are unchanged.
    """

    packages: ClassVar[tuple[str, ...]] = ("gymnasium",)
    least_size: ClassVar[int] = 36

    kind: Literal["gym"] = "gym"
    task: str  # "CarRacing-v3", "my_package:MyEnv-v0", "my_env.py:make_env", or the name of a callable
    source: Literal["id", "file", "python"] = "id"
    file: str | None = None  # the file with the function
    sha256: str | None = None  # of that file
    kwargs: dict[str, Any] = field(default_factory=dict)  # of the constructor
    wrappers: tuple[str, ...] = ()  # "module:Class", innermost first

    action_repeat: int = 1  # steps per decision
    size: int = 84
    frame_stack: int = 3
    colour: Literal["rgb", "grey"] = "rgb"
    pixels: Literal["observation", "render"] = "observation"  # render: the output of render(), for vector observations
    image: str | None = None  # the picture's key in a Dict observation; None: the only picture
    vectors: tuple[str, ...] | None = (
        "all",
    )  # keys of a Dict observation to use as the vector observation; None: none
    max_of_two: bool = False  # the pixelwise maximum of a decision's last two pictures, as on Atari
    time_limit: int = 27_000  # maximum steps of an episode, besides the environment's own limit
    reward_scale: float = 1.0  # in training
    reward_clip: float | None = None  # in training, after the scale
    action_limit: float | None = None  # replaces infinite bounds of a Box

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "time_limit")
        self.require_positive("reward_scale", "reward_clip", "action_limit")
        if (self.source == "file") != (self.file is not None and self.sha256 is not None):
            raise ValueError("env.file and env.sha256 are only for env.source=file. Set them only then.")
        try:
            json.dumps(self.kwargs, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(f"env.kwargs={self.kwargs!r} must be plain values: {error}.") from None

    def __hash__(self) -> int:
        return hash(json.dumps(asdict(self), sort_keys=True))  # kwargs is a dict, which cannot be hashed

    # ── naming one ────────────────────────────────────────────────────────────────────────────────────────────────

    @classmethod
    def named(cls, name: str | Factory) -> "Gym":
        """The config of an id, of "FILE.py:FUNCTION", or of a callable. Naming an environment is consent to run its code."""
        if not isinstance(name, str):
            return cls._of_callable(name)
        path, colon, function = name.rpartition(":")
        if colon and path.endswith(".py"):
            return cls._of_file(Path(path), function)
        if name.endswith(".py"):
            raise EnvironmentRefusedError(f"{name} is a file. Name the function in it: {name}:make_env.")
        found = cls(task=name)
        consent.allow(found.identity)
        return found

    @classmethod
    def _of_file(cls, path: Path, function: str) -> "Gym":
        try:
            content = _content(path)
        except OSError as error:
            raise EnvironmentRefusedError(
                f"{path} cannot be read: {error.strerror}. Name a file as FILE.py:FUNCTION."
            ) from None
        digest = hashlib.sha256(content).hexdigest()
        found = cls(task=f"{path.name}:{function}", source="file", file=str(path.resolve()), sha256=digest)
        consent.allow(found.identity)
        return found

    @classmethod
    def _of_callable(cls, factory: Factory) -> "Gym":
        if not callable(factory):
            raise EnvironmentRefusedError(
                f"Got {factory!r}. Expected a name, or a callable that returns a gymnasium.Env: it is called more than "
                "once, so pass the function, not its result."
            )
        name = f"{getattr(factory, '__module__', '?')}.{getattr(factory, '__qualname__', type(factory).__name__)}"
        _given[name] = factory
        found = cls(task=name, source="python")
        consent.allow(found.identity)
        return found

    @property
    def identity(self) -> dict[str, Any]:
        """The values that determine which code runs."""
        names = ("task", "source", "file", "sha256", "kwargs", "wrappers")
        return {name: getattr(self, name) for name in names}

    @property
    def is_portable(self) -> bool:
        """Whether another process can import it."""
        return self.source != "python" or not ("<" in self.task or self.task.startswith("__main__."))

    @property
    def is_trusted(self) -> bool:
        return (self.source == "python" and self.task in _given) or consent.is_allowed(self.identity)

    def made_from(self, name: str) -> "Gym":
        """The same preprocessing and arguments for another environment, which the user has named."""
        other = self.named(name.removeprefix("gym/"))
        made = replace(self, **{name: getattr(other, name) for name in ("task", "source", "file", "sha256")})
        consent.allow(made.identity)
        return made

    def allow(self) -> None:
        consent.allow(self.identity)

    def trust(self) -> None:
        self.allow()
        if self.is_portable:
            consent.remember(self.identity)

    # ── making one ────────────────────────────────────────────────────────────────────────────────────────────────

    def make(self, *, seed: int, training: bool) -> gym.Env[Frame, Any]:
        """Make the environment with its preprocessing. Rewards are scaled and clipped only in training."""
        return FrameStack(GymEnv(self, seed, training=training), self.frame_stack, pad=self.pad)

    def open(self) -> gym.Env[Any, Any]:
        """Make the environment with its own wrappers, without maskrl's."""
        self.require_consent()
        with redirect_stdout(sys.stderr):  # keep its prints out of a command's output
            made = {"id": self._from_id, "file": self._from_file, "python": self._from_python}[self.source]()
            for name in self.wrappers:
                made = _called(_imported(name), name, made)
            if self.pixels == "render" and made.render_mode != "rgb_array":
                raise EnvironmentRefusedError(
                    f"env.pixels=render, but {self.task} has render_mode={made.render_mode!r}. Expected 'rgb_array': "
                    f"{'it does not draw' if self.source == 'id' else 'pass render_mode to its constructor'}."
                )
        return made

    def require_consent(self) -> None:
        if not self.is_trusted:
            where = {"id": f"gym/{self.task}", "file": f"{self.file}", "python": f"the callable {self.task}"}[
                self.source
            ]
            raise consent.ConsentError(
                f"This run's environment is {where}, which this user has not trained on this machine, so its code is not run. If "
                "you know where the run comes from, add --trust. To use your own environment instead, add --env "
                "FILE.py:FUNCTION, or --env gym/ID."
            )

    def _from_id(self) -> gym.Env[Any, Any]:
        spec = _spec(self.task)
        creator = (
            gym.envs.registration.load_env_creator(spec.entry_point) if isinstance(spec.entry_point, str) else None
        )
        modes = getattr(creator or spec.entry_point, "metadata", {}).get("render_modes") or ()
        kwargs = {**({"render_mode": "rgb_array"} if "rgb_array" in modes else {}), **self.kwargs}
        try:
            return gym.make(spec, disable_env_checker=True, **kwargs)
        except Exception as error:
            raise EnvironmentRefusedError(
                _failed(f"gymnasium.make({self.task!r}, {_listed(kwargs)})", error)
            ) from error

    def _from_file(self) -> gym.Env[Any, Any]:
        assert self.file is not None
        module = _module(Path(self.file), str(self.sha256))
        function = self.task.rpartition(":")[2]
        if not hasattr(module, function):
            names = [name for name, value in vars(module).items() if callable(value) and not name.startswith("_")]
            likely = difflib.get_close_matches(function, names, n=1)
            raise EnvironmentRefusedError(
                f"{self.file} has no function {function!r}{f': did you mean {likely[0]!r}?' if likely else '.'}"
            )
        return _called(getattr(module, function), self.task, **self.kwargs)

    def _from_python(self) -> gym.Env[Any, Any]:
        factory = _given.get(self.task)
        if factory is None and not self.is_portable:
            raise EnvironmentRefusedError(
                f"This environment is the callable {self.task} of a Python program, which another process cannot import. Put it "
                "into a file and pass --env FILE.py:FUNCTION, or pass the callable to maskrl.train in the same program. "
                "overlap and other processes need a function at the top level of a module."
            )
        module, _, name = self.task.rpartition(".")
        return _called(factory or _imported(f"{module}:{name}"), self.task, **self.kwargs)

    def variants(self, sizes: Sequence[int]) -> list["Gym"]:
        return [replace(self, size=size) for size in sizes]


@dataclass(frozen=True)
class Outside:
    """The observations and actions of an environment before preprocessing, as plain values for checkpoints."""

    picture: Picture
    actions: Actions
    vector: Vector | None = None  # the vector observation
    image: str | None = None  # the picture's key, if observations are a Dict

    def as_plain(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_plain(cls, plain: dict[str, Any]) -> "Outside":
        def fixed(value: Any) -> Any:
            return tuple(value) if isinstance(value, list) else value

        actions, vector = (
            {name: fixed(value) for name, value in (plain.get(part) or {}).items()} for part in ("actions", "vector")
        )
        return cls(
            Picture(**plain["picture"]), Actions(**actions), Vector(**vector) if vector else None, plain.get("image")
        )


class GymEnv(gym.Env[Frame, Any]):
    """One decision is `action_repeat` steps: uint8 (c, size, size). `info["frames"]` is the number of steps taken."""

    render_mode = "rgb_array"

    def __init__(self, config: Gym, seed: int, *, training: bool) -> None:
        self._config, self._training = config, training
        self.prints: Any = None  # where its prints go; None: standard error
        self._env = config.open()
        try:
            self._key, shape = self._look()
            picture = Picture(*shape, config.size, config.colour == "grey")
            named = None if config.pixels == "render" and config.vectors == ("all",) else config.vectors
            vector = Vector.of(self._env.observation_space, self._key, named)
            actions = Actions.of(self._env.action_space, config.action_limit)
            self.outside = Outside(picture, actions, vector, self._key)
        except ValueError as error:
            self._env.close()
            raise EnvironmentRefusedError(f"{config.task}: {error}") from None
        except EnvironmentFailedError:
            self._env.close()
            raise
        self._picture, self._shape = picture, shape
        self._declared = str(self._env.action_space)
        self._newest: Frame = np.zeros(shape, np.uint8)
        self._numbers: Numbers | None = None  # the current vector observation, unscaled
        self._steps_left = 0
        self._first_seed: int | None = seed  # an environment may use random numbers before its first reset with a seed
        self.observation_space = image_space(*picture.frame_shape)
        self.action_space = self.outside.actions.space
        fps = self._env.metadata.get("render_fps") or FPS
        self.metadata = {
            "render_modes": ["rgb_array"], "render_fps": fps / config.action_repeat, "outside": self.outside.as_plain(),
            "vector": 0 if vector is None else len(vector),
        }  # fmt: skip

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Begin an episode with this seed, or with the next of the environment's generator."""
        seed, self._first_seed = self._first_seed if seed is None else seed, None
        answer = self._asked(self._env.reset, seed=seed)
        with self._judging():
            if not isinstance(answer, tuple) or len(answer) != 2:
                raise TypeError(
                    f"reset() returned {_shape_of(answer)}, and must return (observation, info), as in Gymnasium"
                )
            space = self._env.action_space
            if Actions.of(space, self._config.action_limit) != self.outside.actions:
                raise ValueError(
                    f"its actions are {space} after a reset, and were {self._declared} before: an agent needs the same in every "
                    "episode. Set action_space in the constructor"
                )
            self._steps_left = self._config.time_limit
            self._newest = self._shown(answer[0])
            return self._picture.frame(self._newest), {"frames": 0, **self._beside(answer[0])}

    def step(self, action: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Hold an agent's action for a decision, and add up the rewards."""
        return self.step_outside(self.outside.actions.outward(action))

    def step_outside(self, outward: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """The same for an action of the environment's own action space."""
        require_begun(self._steps_left > 0)
        with self._judging():
            return self._step(outward)

    def _step(self, outward: Any) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        config, total = self._config, 0.0
        last = min(config.action_repeat, self._steps_left)
        before: Frame | None = None
        for steps in range(1, last + 1):
            answer = self._asked(self._env.step, outward)
            if not isinstance(answer, tuple) or len(answer) != 5:
                raise TypeError(
                    f"step() returned {_shape_of(answer)}, and must return (observation, reward, terminated, truncated, info), "
                    "as in Gymnasium; shimmy's GymV21CompatibilityV0 wraps environments of the older gym"
                )
            obs, reward, terminated, truncated, _ = answer
            total += float(reward)
            if terminated or truncated:
                break
            if config.max_of_two and steps == last - 1:
                before = self._shown(obs)
        self._newest = self._shown(obs)
        if before is not None:
            self._newest = np.maximum(before, self._newest)
        self._steps_left = 0 if terminated or truncated else self._steps_left - steps
        truncated = bool(truncated) or (self._steps_left == 0 and not terminated)
        reward = self._worth(total) if self._training else total
        info = {"frames": steps, "score": total, **self._beside(obs)}
        return self._picture.frame(self._newest), reward, bool(terminated), truncated, info

    def raw(self) -> Frame:
        """The newest picture before resizing, uint8 (height, width, channels)."""
        return self._newest

    def raw_vector(self) -> Numbers | None:
        """The newest vector observation, unscaled, (V,)."""
        return self._numbers

    def _beside(self, obs: Any) -> dict[str, Numbers]:
        """The vector observation, scaled for the network, as an entry of `info`."""
        vector = self.outside.vector
        if vector is None:
            return {}
        self._numbers = vector.raw(obs)
        return {"vector": vector.scaled(self._numbers)}

    def render(self) -> Frame:
        """A picture for a video: uint8 (H, W, 3)."""
        if self._env.render_mode == "rgb_array":
            drawn: Any = self._asked(self._env.render)
            if isinstance(drawn, np.ndarray) and drawn.dtype == np.uint8 and drawn.ndim == 3 and drawn.shape[2] >= 3:
                return np.ascontiguousarray(drawn[..., :3])
        return in_colour(self._newest)

    def state(self) -> Any:
        """The true state behind the pixels, if the environment reports it."""
        tell = getattr(self._env.unwrapped, "state", None)
        return self._asked(tell) if callable(tell) else None

    def close(self) -> None:
        self._asked(self._env.close)

    def _asked(self, function: Callable[..., Any], *arguments: Any, **options: Any) -> Any:
        """Call the user's code. Its prints stay out of a command's output, and its errors say where they come from."""
        out, sys.stdout = sys.stdout, sys.stderr if self.prints is None else self.prints  # redirect_stdout is slower
        try:
            return function(*arguments, **options)
        except Exception as error:
            name = getattr(function, "__name__", "a call")
            raise EnvironmentFailedError(_failed(f"{self._config.task} failed in {name}()", error)) from error
        finally:
            sys.stdout = out

    @contextmanager
    def _judging(self) -> Iterator[None]:
        try:
            yield
        except (TypeError, ValueError) as error:
            raise WrongAnswerError(f"{self._config.task}: {error}") from error

    def _worth(self, reward: float) -> float:
        scaled, clip = reward * self._config.reward_scale, self._config.reward_clip
        return scaled if clip is None else min(max(scaled, -clip), clip)

    def _shown(self, obs: Any) -> Frame:
        """The current picture, (height, width, channels)."""
        if self._config.pixels == "render":
            obs = self._asked(self._env.render)
        elif self._key is not None:
            obs = obs[self._key]
        return as_channels_last(obs, self._shape)

    def _look(self) -> tuple[str | None, tuple[int, int, int]]:
        """The picture's key in a Dict observation, and its height, width and channels."""
        if self._config.pixels == "render":
            self._asked(self._env.reset, seed=0)
            drawn: Any = self._asked(self._env.render)
            shape = channels_last(drawn.shape) if isinstance(drawn, np.ndarray) and drawn.dtype == np.uint8 else None
            if shape is None:
                raise ValueError(f"render() returned {_shape_of(drawn)}. Expected a picture of uint8 (H, W, 3).")
            return None, shape
        space = self._env.observation_space
        if not isinstance(space, gym.spaces.Dict):
            return None, _picture_shape(space, "observations are")
        shapes = {key: _is_picture(inner) for key, inner in space.spaces.items()}
        found = [key for key, shape in shapes.items() if shape is not None]
        key = self._config.image
        if key is None and len(found) == 1:
            key = found[0]
        if key is None or key not in space.spaces:
            raise ValueError(
                f"its observations are a Dict of {_listed(space.spaces)}, in which {', '.join(found) or 'nothing'} is a picture. "
                "Expected one: name it with env.image=KEY, or use env.pixels=render."
            )
        return key, _picture_shape(space.spaces[key], f"{key} of its observations is")


def _is_picture(space: gym.Space[Any]) -> tuple[int, int, int] | None:
    return channels_last(space.shape) if isinstance(space, gym.spaces.Box) and space.dtype == np.uint8 else None


def _picture_shape(space: gym.Space[Any], words: str) -> tuple[int, int, int]:
    shape = _is_picture(space)
    if shape is not None:
        return shape
    expected = (
        "Expected a picture: uint8 of shape (H, W, 3), (H, W, 1), (H, W) or (3, H, W), at least 16 pixels a side."
    )
    fix = "Use env.pixels=render to learn from the output of render()."
    if isinstance(space, gym.spaces.Box) and space.dtype != np.uint8 and channels_last(space.shape) is not None:
        fix = (
            "Return the picture as uint8 from 0 to 255: gymnasium.wrappers.TransformObservation with "
            "(255 * obs).astype(np.uint8) if it is in [0, 1]."
        )
    raise ValueError(f"{words} {space}. {expected} {fix}")


# ── Importing and calling a user's environment ────────────────────────────────────────────────────────────────────────


def _spec(task: str) -> Any:
    """Gymnasium's spec of an id; raise an error with the nearest ids if there is none."""
    module, _, name = task.rpartition(":")
    package = module or next((known for start, known in PACKAGES.items() if name.startswith(start)), None)
    if package is not None and (module or importlib.util.find_spec(package.partition(".")[0]) is not None):
        try:
            importlib.import_module(package)
        except Exception as error:
            raise EnvironmentRefusedError(_failed(f"import {package}", error)) from error
    elif package is not None:
        raise EnvironmentRefusedError(
            f"gym/{task} is an id of the package {package.partition('.')[0]}, which is not installed. Install it, or name another."
        )
    try:
        return gym.spec(name)
    except gym.error.Error as error:
        _import_packages()
        near = difflib.get_close_matches(name, gym.registry, n=3, cutoff=0.5)
        words = f"did you mean {' or '.join(f'gym/{one}' for one in near)}?" if near else "no installed id is near it."
        raise EnvironmentRefusedError(
            f"gym/{task} is not registered ({str(error).rstrip('.')}): {words} An id of another package is gym/PACKAGE:ID."
        ) from None


def _import_packages() -> None:
    """Import the installed ones of `PACKAGES`, so that their ids are registered and can be suggested."""
    for package in sorted(set(PACKAGES.values())):
        with warnings.catch_warnings(), suppress(Exception):  # not installed, or broken
            warnings.simplefilter("ignore")
            importlib.import_module(package)


def _content(path: Path) -> bytes:
    """The source of a module: of a regular file, because a run may name a pipe or a device. Follows links."""
    there = path.resolve()
    return read_bytes(there.parent, there.name)


def _module(path: Path, sha256: str) -> types.ModuleType:
    """The module of a file with this digest, executed once. Its folder is on the import path, as with `python FILE`."""
    name = f"maskrl_env_{path.stem}_{sha256[:12]}"
    if name in sys.modules:
        return sys.modules[name]
    try:
        content = _content(path)
    except OSError as error:
        raise EnvironmentRefusedError(
            f"{path}, the environment of this run, cannot be read: {error.strerror}. Put it back, or use another with --env."
        ) from None
    if (found := hashlib.sha256(content).hexdigest()) != sha256:
        raise EnvironmentRefusedError(
            f"{path} has changed since the run was made: its SHA-256 was {sha256[:16]}… and is {found[:16]}… now. Put it back, "
            f"or use it as it is with --env {path.name}:FUNCTION."
        )
    module = types.ModuleType(name)
    module.__file__ = str(path)
    if str(path.parent) not in sys.path:
        sys.path.insert(0, str(path.parent))
    sys.modules[name] = module
    try:
        exec(compile(content, str(path), "exec"), module.__dict__)
    except BaseException as error:
        del sys.modules[name]
        raise EnvironmentRefusedError(_failed(f"The file {path} cannot be imported", error)) from error
    return module


def _imported(name: str) -> Any:
    """Import the object named "module:Name"."""
    module, _, attribute = name.rpartition(":")
    try:
        value: Any = importlib.import_module(module or "builtins")
        for part in attribute.split("."):
            value = getattr(value, part)
    except Exception as error:
        raise EnvironmentRefusedError(_failed(f"{name!r} cannot be imported (expected module:Name)", error)) from error
    return value


def _called(factory: Any, name: str, *arguments: Any, **kwargs: Any) -> gym.Env[Any, Any]:
    """Call the factory; raise an error if its result is not an environment."""
    try:
        made = factory(*arguments, **kwargs)
    except Exception as error:
        raise EnvironmentRefusedError(_failed(f"{name} failed", error)) from error
    if isinstance(made, gym.Env):
        return made
    if inspect.isclass(made):
        fix = f"It returned the class {made.__name__}: return {made.__name__}(), or name the class itself."
    elif hasattr(made, "reset") and hasattr(made, "step"):
        fix = (
            f"It returned {type(made).__module__}.{type(made).__qualname__}, which has reset and step but is not a gymnasium.Env: "
            "derive it from that, or wrap it (an environment of the older gym by shimmy's GymV21CompatibilityV0)."
        )
    else:
        fix = f"It returned {type(made).__name__}."
    raise EnvironmentRefusedError(f"{name} must return a gymnasium.Env. {fix}")


def _failed(what: str, error: BaseException) -> str:
    """An error's text with its place: the innermost line of the user's own files, otherwise of an installed package."""
    frames = inspect.getinnerframes(error.__traceback__) if error.__traceback__ is not None else []
    ours = tuple(str(Path(str(file)).parent) for file in (__file__, importlib.__file__))
    theirs = [frame for frame in frames if not frame.filename.startswith(("<", *ours))]
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "purelib", "platlib"))
    theirs = [frame for frame in theirs if not frame.filename.startswith(installed)] or theirs
    place = f" ({theirs[-1].filename}, line {theirs[-1].lineno})" if theirs else ""
    return f"{what}: {type(error).__name__}: {error}{place}"


def _shape_of(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"{value.dtype} of shape {value.shape}"
    return f"a tuple of {len(value)}" if isinstance(value, tuple) else type(value).__name__


def _listed(names: Any) -> str:
    items = names.items() if isinstance(names, dict) else names
    return ", ".join(f"{name}={value!r}" for name, value in items)


def in_colour(picture: Frame, least: int = VIDEO_SIZE) -> Frame:
    """(H, W, c) → (H', W', 3), enlarged to at least `least` pixels per side."""
    colours = picture[..., :3] if picture.shape[2] >= 3 else np.repeat(picture[..., :1], 3, axis=2)
    times = max(1, -(-least // min(colours.shape[:2])))
    return np.ascontiguousarray(colours.repeat(times, axis=0).repeat(times, axis=1))
