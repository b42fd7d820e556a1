"""A trained policy, read from a run: frames in, actions out. Needs no simulator and no replay."""

import warnings
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from maskrl.agents.base import PolicyNetwork, Spaces
from maskrl.agents.encoders import Factory, OwnEncoderConfig
from maskrl.clock import Clock
from maskrl.envs.base import Pad
from maskrl.envs.gym import Outside
from maskrl.envs.pixels import as_channels_last, channels_last
from maskrl.recipes.schema import Recipe
from maskrl.runs.directory import Run, RunError

Frames = NDArray[np.uint8]


class Policy:
    """The best actions of a trained agent, one frame at a time. It keeps the stack of frames itself.

        policy.reset()                 # at the start of every episode
        action = policy.act(frame)     # a frame (c, H, W) or (H, W, c), or a batch of them with one more axis in front

    Frames are uint8 and unstacked, of shape `frame_shape` = (c, H, W). A policy of a Gymnasium environment also takes that
    environment's own pictures, of any layout, and converts them to frames; its actions are in the environment's own range. If the
    observations are a Dict, pass the whole Dict, or pass the vector observation as a second argument: `act(picture, vector)`.
    Batches are for several environments at once; their size must stay the same until the next reset.
    """

    def __init__(
        self,
        network: PolicyNetwork,
        spaces: Spaces,
        *,
        frame_stack: int,
        pad: Pad,
        clock: Clock,
        outside: Outside | None = None,
    ) -> None:
        self.outside = outside  # the environment's pictures and actions, if they differ from the network's
        self.network, self.spaces, self.clock = network.eval(), spaces, clock
        channels, height, width = spaces.obs
        self.frame_shape = (channels // frame_stack, height, width)
        self.frame_stack, self.pad = frame_stack, pad
        self._stack: Frames | None = None  # (N, C, H, W)

    def reset(self) -> None:
        """Forget the frames seen so far."""
        self._stack = None

    def act(self, frame: Any, vector: Any = None) -> Any:
        """The action after this frame: a vector in [-1, 1], or the index of a discrete action; for a batch, one for each.

        For a Gymnasium environment: an action in its own action space.
        """
        observed = frame if isinstance(frame, Mapping) else None
        frames, is_batch = self._frames(frame if observed is None else self._picture_of(observed))
        beside = self._beside(vector if observed is None else observed, len(frames))
        self._stack = self._pushed(self._stack, frames)
        actions = self.network.act(self._stack, beside)
        actions = actions if is_batch else actions[0]
        return actions if self.outside is None else self.outside.actions.outward(actions)

    @torch.no_grad()
    def encode(self, frames: Any) -> NDArray[np.float32]:
        """Latent states (T, d) of T consecutive frames of an episode (T, c, H, W), or of T whole stacks (T, C, H, W)."""
        given = np.asarray(frames)
        if given.shape[1:] != self.spaces.obs:
            stack, stacks = None, []
            for one in self._frames(given, batch=True)[0]:
                stack = self._pushed(stack, one[None])
                stacks.append(stack)
            given = np.concatenate(stacks)
        states: NDArray[np.float32] = self.network.encode(self.network.on_device(given)).cpu().numpy()
        return states

    def _picture_of(self, observed: Mapping[str, Any]) -> Any:
        key = None if self.outside is None else self.outside.image
        if key is None or key not in observed:
            raise ValueError(
                f"Got a Dict of {', '.join(observed)}; expected {'a frame' if key is None else key + ' in it'}."
            )
        return observed[key]

    def _beside(self, given: Any, count: int) -> NDArray[np.float32] | None:
        """The vector observations as the network takes them, (N, V); None if there are none."""
        vector = None if self.outside is None else self.outside.vector
        if vector is None:
            return None
        if given is None:
            raise ValueError(
                f"This policy takes {len(vector)} numbers with a picture ({', '.join(vector.keys)}). Pass the environment's "
                "whole observation, or act(picture, vector)."
            )
        if isinstance(given, Mapping):
            return vector.scaled(vector.rows(given, count))
        return vector.scaled(vector.checked(np.asarray(given, np.float32).reshape(count, -1)))

    def _pushed(self, stack: Frames | None, frames: Frames) -> Frames:
        """The stack (N, C, H, W) with the newest frames (N, c, H, W) at its end."""
        if stack is None:
            past = frames if self.pad == "repeat" else np.zeros_like(frames)
            return np.concatenate([*[past] * (self.frame_stack - 1), frames], axis=1)
        if len(stack) != len(frames):
            raise ValueError(
                f"This batch has {len(frames)} frames, the last one had {len(stack)}. Keep the number of environments, or "
                "call reset() first."
            )
        return np.concatenate([stack[:, self.frame_shape[0] :], frames], axis=1)

    def _frames(self, frame: Any, *, batch: bool = False) -> tuple[Frames, bool]:
        """The frames (N, c, H, W), and whether a batch was given."""
        given, (channels, height, width) = np.asarray(frame), self.frame_shape
        if (made := self._made(given, batch)) is not None:
            return made
        last = (height, width, channels)
        for shape, axes in ((self.frame_shape, (0, 1, 2, 3)), (last, (0, 3, 1, 2))):
            if given.dtype == np.uint8 and given.shape[1:] == shape:
                return np.ascontiguousarray(given.transpose(axes)), True
            if given.dtype == np.uint8 and given.shape == shape and not batch:
                return np.ascontiguousarray(given[None].transpose(axes)), False
        raise ValueError(
            f"Got {given.dtype} of shape {given.shape}; expected {self._expected()}a frame of uint8 with shape {self.frame_shape} "
            f"or {last}, or a batch of them. Pass the environment's pictures, before frames are stacked."
        )

    def _expected(self) -> str:
        if self.outside is None:
            return ""
        picture = self.outside.picture
        return f"a picture of uint8 with shape {(picture.height, picture.width, picture.channels)}, or "

    def _made(self, given: NDArray[Any], batch: bool) -> tuple[Frames, bool] | None:
        """Frames (N, c, H, W) from the environment's own pictures, and whether a batch was given; None if it got no pictures."""
        if self.outside is None or given.dtype != np.uint8:
            return None
        picture = self.outside.picture
        shape = (picture.height, picture.width, picture.channels)
        if channels_last(given.shape) == shape and not batch:
            return picture.frame(as_channels_last(given, shape))[None], False
        if channels_last(given.shape[1:]) == shape:
            return np.stack([picture.frame(as_channels_last(one, shape)) for one in given]), True
        return None


def load(path: str | Path, *, device: str = "cpu", encoder: Factory | None = None) -> Policy:
    """Load the policy of a run from its newest checkpoint. This runs no code of the run and needs no simulator.

    `encoder`: the class of the run's encoder, if it is your own module.
    """
    if encoder is not None:
        OwnEncoderConfig.of(encoder)
    run = Run.open(Path(path))
    state = run.newest(lambda text: warnings.warn(text, stacklevel=5), older=True)
    policy = policy_of(run.recipe, state, device=device)
    if run.status not in ("done", "running"):
        trained = f"{policy.clock.frames:,} of {run.recipe.frames:,} frames"
        warnings.warn(f"The run in {path} is not finished: its policy has trained for {trained}.", stacklevel=2)
    return policy


def policy_of(recipe: Recipe, state: dict[str, Any], *, device: str = "cpu") -> Policy:
    """The policy in the state of a checkpoint."""
    try:
        spaces = _spaces(recipe, state)
        network = recipe.agent.build(spaces, None, torch.device(device)).policy()
        network.load_agent_state(state["agent"])
        clock = clock_of(recipe, state)
        outside = None if state.get("outside") is None else Outside.from_plain(state["outside"])
    except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, IndexError, OverflowError) as error:
        raise RunError(
            f"The checkpoint does not fit the recipe beside it: {type(error).__name__}: {error}\nPut back the recipe.json and "
            "the checkpoints of one run."
        ) from error
    stack, pad = recipe.env.frame_stack, recipe.env.pad
    return Policy(network, spaces, frame_stack=stack, pad=pad, clock=clock, outside=outside)


def clock_of(recipe: Recipe, state: dict[str, Any]) -> Clock:
    """The clock of the checkpoint."""
    position, updates = state["position"], int(state["agent"]["updates"])
    decisions = int(position["decisions"])
    return Clock(decisions * recipe.env.action_repeat, decisions, updates, float(position["seconds"]))


def _spaces(recipe: Recipe, state: dict[str, Any]) -> Spaces:
    """The spaces from the checkpoint. Format 4 lacks them, so the environment is made once."""
    if "spaces" in state:
        return Spaces(**state["spaces"] | {"obs": tuple(state["spaces"]["obs"])})
    with closing(recipe.env.make(seed=recipe.seed, training=False)) as env:
        return Spaces.of(env)
