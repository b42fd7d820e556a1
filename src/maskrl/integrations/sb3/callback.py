"""An objective beside an agent of SB3, as a callback. SB3's classes are not changed."""

import math
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from stable_baselines3.common.callbacks import BaseCallback

from maskrl.integrations.sb3.borrowing import Borrowed, Choice, borrow
from maskrl.integrations.sb3.clips import ClipSource, ReplayClips, RolloutClips
from maskrl.integrations.sb3.state import read_state, write_state
from maskrl.nn.augment import AugmentConfig
from maskrl.nn.clip import Clip
from maskrl.objectives.base import ObjectiveConfig
from maskrl.objectives.collapse import CollapseAlarm
from maskrl.objectives.door import host_for
from maskrl.objectives.mlr import MLRConfig
from maskrl.objectives.step import AuxiliaryConfig, AuxiliaryStep
from maskrl.replay.buffer import NothingToDrawError
from maskrl.replay.spaces import Actions


class Auxiliary(BaseCallback):
    """`model.learn(100_000, callback=Auxiliary(clips=64))`: an objective also trains the agent's encoder.

    It runs after each rollout, before the agent's own updates: by default as many updates as the agent makes (off-policy), or one
    pass over the rollout (PPO, A2C). It has its own optimiser, masks and draws, so an agent has the same initial weights and random
    numbers with and without it. SB3 does not save callbacks: use `save`.
    """

    def __init__(
        self,
        objective: ObjectiveConfig | None = None,  # None: MLR with random shifts of 4 pixels
        *,
        clips: int | None = None,  # B; None: optimiser.clips
        optimiser: AuxiliaryConfig | None = None,  # learning rate, warm-up, clipping; None: the paper's on DMControl
        updates: int | None = None,  # per rollout; None: see above
        key: str | None = None,  # of the pictures in Dict observations
        encoder: Choice = "shared",  # critic: allow an actor with another encoder
        micro_batch: int | None = None,  # observations at once; None: all
        seed: int | None = None,  # None: the agent's, or 0
        verbose: int = 0,
    ) -> None:
        super().__init__(verbose)
        self.objective = objective or MLRConfig(augment=AugmentConfig(crop=None, shift=4))
        config = optimiser or AuxiliaryConfig()
        self.optimiser = config if clips is None else replace(config, clips=clips)
        if updates is not None and updates < 1:
            raise ValueError(
                f"updates={updates} must be at least 1 per rollout, or None for as many as the agent makes."
            )
        if self.objective.when is not None:
            raise ValueError(
                f"objective.when={self.objective.when}, but a callback runs between the rollout and the agent's updates. Leave "
                "it None."
            )
        self.updates, self.key, self.encoder, self.micro_batch, self.seed = updates, key, encoder, micro_batch, seed
        self.step: AuxiliaryStep | None = None  # set by the first `learn`
        self.alarm = CollapseAlarm()
        self._borrowed: Borrowed | None = None
        self._state: dict[str, Any] | None = None  # loaded, for the next agent
        self._source: ClipSource | None = None
        self._steps = 0  # of the current rollout
        self._due = 0  # updates of the agent since the last of the objective, see `objective.every`
        self._missed = False

    # ── SB3 calls these ───────────────────────────────────────────────────────────────────────────────────────────

    def _init_callback(self) -> None:
        """Called at every `learn`: check the agent, and build the objective if it is for another agent or new."""
        borrowed = borrow(self.model, self.key, self.encoder)
        self._require_room()
        if self._borrowed is None or self._borrowed.encoder is not borrowed.encoder:
            if self.step is not None and self._state is None:
                self._state = self._snapshot()
            self._build(borrowed)
        if self._state is not None:
            self._restore(self._state)
            self._state = None
        self._source = self._open_source()

    def _on_step(self) -> bool:
        self._steps += 1
        return True

    def _on_rollout_start(self) -> None:
        self._steps = 0

    def _on_rollout_end(self) -> None:
        if isinstance(self._source, ReplayClips):
            self._source.look(self._steps)
        if self.model.num_timesteps <= getattr(self.model, "learning_starts", -1):
            return
        self._due += self._updates()
        while self._due >= self.objective.every:
            self._due -= self.objective.every
            self._update()

    # ── updates ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _updates(self) -> int:
        if self.updates is not None:
            return self.updates
        model: Any = self.model
        if hasattr(model, "rollout_buffer"):
            seen = self.optimiser.clips * self.objective.needs.clip_length
            steps: int = model.rollout_buffer.size() * model.n_envs
            return math.ceil(steps / seen)
        return int(model.gradient_steps) if model.gradient_steps >= 0 else self._steps * model.n_envs

    def _update(self) -> None:
        assert self.step is not None
        assert self._source is not None
        assert self._borrowed is not None
        try:
            obs, actions = self._source.draw_clips(self._draws, self.optimiser.clips, self.objective.needs.clip_length)
        except NothingToDrawError as error:
            if not self._missed:
                warnings.warn(f"No update of {self.objective.kind} yet. {error}", stacklevel=2)
            self._missed = True
            return
        clip = Clip(torch.from_numpy(obs), torch.from_numpy(self._rows(actions))).to(self.model.device)
        encoder = self._borrowed.encoder
        encoder.train()  # SB3 sets evaluation mode for the rollout, and training mode for its own updates
        metrics = self.step(clip)
        encoder.eval()
        for name, value in metrics.items():
            self.logger.record_mean(name, float(value))
        self.alarm(metrics)

    def _rows(self, actions: NDArray[Any]) -> NDArray[np.float32]:
        """(B, K, …) as SB3 stores them → (B, K, A). Off-policy agents store actions in [-1, 1], others store them as sampled."""
        space = Actions(self.model.action_space)
        stored = actions.reshape(*actions.shape[:2], *space.stored[1])
        scaled = not hasattr(self.model, "rollout_buffer") or bool(getattr(self.model.policy, "squash_output", False))
        return space.rows(stored, scaled=scaled)

    def _build(self, borrowed: Borrowed) -> None:
        seed = self.seed if self.seed is not None else self.model.seed or 0
        device = next(borrowed.encoder.parameters()).device
        self._draws = np.random.default_rng((seed, 1))
        generator = torch.Generator(device).manual_seed(seed)
        actions = Actions(self.model.action_space)
        host = host_for(
            *(self.objective, borrowed.encoder),
            obs_shape=borrowed.obs_shape,
            action_dim=actions.dim,
            discrete=actions.discrete,
            generator=generator,
        )
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(seed)
            objective = self.objective.build(host)
        self.step = AuxiliaryStep(objective, self.optimiser, micro_batch=self.micro_batch)
        self._borrowed = borrowed

    def _open_source(self) -> ClipSource:
        model: Any = self.model
        if hasattr(model, "rollout_buffer"):
            return RolloutClips(model.rollout_buffer, self.key)
        if hasattr(model.replay_buffer, "draw_clips"):
            source: ClipSource = model.replay_buffer
            return source
        reader = self._source
        if not (isinstance(reader, ReplayClips) and reader.knows(model.replay_buffer)):
            reader = ReplayClips(model.replay_buffer, self.key)
        reader.cut()
        return reader

    def _require_room(self) -> None:
        model: Any = self.model
        length = self.objective.needs.clip_length
        if hasattr(model, "rollout_buffer"):
            if model.n_steps < length:
                raise ValueError(
                    f"A rollout has n_steps={model.n_steps} steps of each environment, but a clip has {length}. Raise n_steps, or "
                    "lower the objective's clip_length."
                )
            return
        buffer: Any = getattr(model, "replay_buffer", None)
        if buffer is None:
            raise ValueError(f"{type(model).__name__} has neither a replay nor a rollout buffer to draw clips from.")
        room = buffer.buffer_size - int(buffer.optimize_memory_usage)
        if room < length:
            raise ValueError(
                f"The replay holds {room} steps of each of {buffer.n_envs} environments, but a clip has {length}. Raise "
                "buffer_size, or lower the objective's clip_length."
            )

    # ── saving ────────────────────────────────────────────────────────────────────────────────────────────────────

    def save(self, path: str | Path) -> None:
        """Write the objective's weights, optimiser and random state. `model.save` writes the encoder, which is the agent's."""
        if self.step is None:
            raise ValueError("There is nothing to save before the first learn(callback=...).")
        write_state(Path(path), self._snapshot(), self._words())

    def load(self, path: str | Path) -> "Auxiliary":
        """Continue from a file: `model.learn(..., callback=Auxiliary(same values).load(path))`."""
        self._state = read_state(Path(path), self._words())
        return self

    def _words(self) -> str:
        return f"{self.objective!r} {self.optimiser!r}"

    def _snapshot(self) -> dict[str, Any]:
        assert self.step is not None
        generator = self.step.objective.host.generator
        assert generator is not None
        streams = {"draws": self._draws.bit_generator.state, "due": self._due}
        return {**self.step.state_dict(), "generator": generator.get_state(), "streams": streams}

    def _restore(self, state: dict[str, Any]) -> None:
        assert self.step is not None
        generator = self.step.objective.host.generator
        assert generator is not None
        self.step.load_state_dict(state)
        generator.set_state(state["generator"])
        self._draws.bit_generator.state, self._due = state["streams"]["draws"], state["streams"]["due"]
