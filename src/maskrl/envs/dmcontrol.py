"""The DeepMind Control Suite from pixels (Tunyasuvunakool et al., 2020), used directly, without a wrapper package."""

import difflib
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from maskrl.envs.base import EnvConfig, Frame, FrameStack, image_space, require_begun, require_extra
from maskrl.envs.gl import choose_gl

FRAMES_PER_EPISODE = 1000  # the suite's limit for every task except lqr, which has none
VIDEO_SIZE = 480
PLAIN_FACETS = (12, 8)  # around and along a round shape; the suite's are 28 and 16


@dataclass(frozen=True, kw_only=True)
class DMControl(EnvConfig):
    """One task of the suite. Observations: uint8 (3 · frame_stack, size, size); actions: [-1, 1]^A."""

    packages: ClassVar[tuple[str, ...]] = ("mujoco", "dm_control")
    returns: ClassVar[tuple[float, float] | None] = (0.0, 1000.0)  # at most 1 per frame, 1000 frames per episode

    kind: Literal["dmcontrol"] = "dmcontrol"
    task: str  # "cartpole-swingup", "ball_in_cup-catch"
    action_repeat: int  # frames per decision
    size: int = 100
    frame_stack: int = 3
    camera: int = 0
    # full: as the suite draws. plain: without shadows and reflections, and with fewer facets of round shapes; takes a tenth of the
    # time without a GPU.
    drawing: Literal["full", "plain"] = "full"
    shadow_size: int | None = None  # side of the shadow map; None: the suite's 2048. Smaller is faster without a GPU

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require_at_least(1, "shadow_size")
        if self.shadow_size is not None and self.drawing == "plain":
            raise ValueError(
                f"shadow_size={self.shadow_size} has no effect with drawing=plain, which has no shadows: set "
                "env.shadow_size=none, or env.drawing=full."
            )
        if "-" not in self.task:
            raise ValueError(f"task={self.task!r} must be a domain and a task, such as 'cartpole-swingup'.")

    def make(self, *, seed: int, training: bool) -> gym.Env[Frame, NDArray[np.float32]]:
        """Make the task with this seed. Rewards and endings are the same in training and evaluation."""
        return FrameStack(DMControlEnv(self, seed), self.frame_stack, pad=self.pad)

    @property
    def episode_decisions(self) -> int:
        return math.ceil(FRAMES_PER_EPISODE / self.action_repeat)

    def renderer(self) -> str | None:
        try:
            return " ".join(choose_gl())
        except RuntimeError:  # no backend can draw; `make` reports it
            return None

    def variants(self, sizes: Sequence[int]) -> list["DMControl"]:
        """The configs that `maskrl bench env` compares: frames of these sizes, drawn fully, with coarse shadows, and plain."""
        ways: list[dict[str, Any]] = [
            {"drawing": "full"},
            {"drawing": "full", "shadow_size": 512},
            {"drawing": "plain"},
        ]
        return [replace(self, size=size, **{"shadow_size": None} | way) for size in sizes for way in ways]


class DMControlEnv(gym.Env[Frame, NDArray[np.float32]]):
    """One decision is `action_repeat` frames of the suite; only the last is drawn: uint8 (3, size, size)."""

    render_mode = "rgb_array"

    def __init__(self, config: DMControl, seed: int) -> None:
        self._suite = load(config.task)
        self._action_repeat = config.action_repeat
        self._frames_left = 0  # of this episode; 0 before the first reset

        self._camera_id = config.camera
        self._camera = camera_of(self._suite.physics, config)
        self._film: Any = None  # a copy of the physics that draws videos

        spec = self._suite.action_spec()
        bounded = np.abs(spec.minimum) < 1e10  # MuJoCo's infinity: lqr has no bounds, its actions stay in [-1, 1]
        low, high = np.where(bounded, spec.minimum, -1.0), np.where(bounded, spec.maximum, 1.0)
        self._action_middle, self._action_reach = (low + high) / 2, (high - low) / 2
        self.action_space = gym.spaces.Box(-1.0, 1.0, spec.shape, np.float32)
        self.observation_space = image_space(3, config.size, config.size)
        seconds = self._suite.control_timestep() * config.action_repeat
        self.metadata = {"render_modes": ["rgb_array"], "render_fps": 1 / seconds}
        self._seed(seed)

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Frame, dict[str, Any]]:
        """Begin an episode with this seed, or with the generator's next."""
        if seed is not None:
            self._seed(seed)
        self._suite.reset()
        self._end_film()
        self._frames_left = FRAMES_PER_EPISODE
        return self._draw(), {"frames": 0}

    def step(self, action: NDArray[np.float32]) -> tuple[Frame, float, bool, bool, dict[str, Any]]:
        """Hold `action` for a decision. The rewards of its frames are summed, and their number is `info["frames"]`."""
        require_begun(self._frames_left > 0)
        control = self._action_middle + self._action_reach * action
        reward = 0.0
        for frames in range(1, min(self._action_repeat, self._frames_left) + 1):  # noqa: B007
            now = self._suite.step(control)
            reward += float(now.reward or 0.0)
            if now.last():
                break
        self._frames_left = 0 if now.last() else self._frames_left - frames
        terminated = now.last() and now.discount == 0
        truncated = not self._frames_left and not terminated
        return self._draw(), reward, terminated, truncated, {"frames": frames}

    def render(self) -> Frame:
        """The current scene in the suite's full quality, for videos: uint8 (480, 480, 3)."""
        import mujoco  # type: ignore[import-untyped]

        physics = self._suite.physics
        self._film = self._film or physics.copy(share_model=True)
        mujoco.mj_copyData(self._film.data.ptr, physics.model.ptr, physics.data.ptr)
        image: Frame = self._film.render(VIDEO_SIZE, VIDEO_SIZE, self._camera_id)
        return image

    def state(self) -> dict[str, float]:
        """The suite's state observations, for agents without pixels: "position[0]", "velocity[1]", "to_target[0]", …"""
        shown = self._suite.task.get_observation(self._suite.physics)
        groups = {name: np.ravel(np.asarray(values, np.float64)) for name, values in shown.items()}
        return {
            f"{name}[{place}]": float(value) for name, values in groups.items() for place, value in enumerate(values)
        }

    def close(self) -> None:
        """Free the simulation and its OpenGL context."""
        self._end_film()
        self._suite.physics.free()

    def _seed(self, seed: int) -> None:
        super().reset(seed=seed)  # Gymnasium's generator, which the suite does not use
        self._suite.task.random.seed(seed)

    def _draw(self) -> Frame:
        # The camera draws into the same memory every time, bottom row first: flipping also makes the copy that we return.
        return np.ascontiguousarray(self._camera.render().transpose(2, 0, 1))

    def _end_film(self) -> None:
        """Free the film renderer: a new episode may have another scene, such as the terrain of quadruped-escape."""
        if self._film is not None:
            self._film.free()
            self._film = None


def camera_of(physics: Any, config: DMControl) -> Any:
    """Make the renderer of the frames. Its context keeps the quality it is created with; the suite's own is then restored, for
    videos.
    """
    import mujoco
    from dm_control.mujoco.engine import Camera  # type: ignore[import-untyped]

    canvas, quality = physics.model.vis.global_, physics.model.vis.quality
    suites = quality.shadowsize, quality.numslices, quality.numstacks
    quality.shadowsize = config.shadow_size or quality.shadowsize
    if config.drawing == "plain":
        quality.numslices, quality.numstacks = PLAIN_FACETS
    # MuJoCo clears its whole canvas for every picture, and the suite's has 640 × 480 pixels. A canvas of the picture's size saves
    # that time without a GPU.
    canvas.offwidth = canvas.offheight = config.size
    camera = Camera(physics, config.size, config.size, config.camera)
    if config.drawing == "plain":
        camera.scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        camera.scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
    canvas.offwidth = canvas.offheight = VIDEO_SIZE
    quality.shadowsize, quality.numslices, quality.numstacks = suites
    return camera


def load(task: str) -> Any:
    """Load a task of the suite, with a working OpenGL backend."""
    require_extra("dm_control", "dmcontrol")
    choose_gl()
    from dm_control import suite  # type: ignore[import-untyped]

    tasks = ["-".join(names) for names in suite.ALL_TASKS]
    if task not in tasks:
        likely = difflib.get_close_matches(task, tasks, n=1)
        raise ValueError(
            f"task={task!r} is not in the suite{f': did you mean {likely[0]!r}?' if likely else '.'} "
            f"It has {', '.join(tasks)}."
        )
    domain, name = task.split("-", 1)
    # lqr draws random springs when it is loaded: use one seed, so that the task is the same for every run and episode.
    return suite.load(domain, name, task_kwargs={"random": 0})
