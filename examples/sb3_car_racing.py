"""stable-baselines3's SAC on CarRacing from pixels, with MLR. Needs `pip install 'maskrl[sb3]' 'gymnasium[box2d]'`.

    python examples/sb3_car_racing.py [STEPS]        # 100 000 steps are a night on a CPU, an hour or two on a GPU

It saves car_racing.zip (the agent) and car_racing.mlr.safetensors (the objective), and goes on from them if they are there.
"""

import sys
from pathlib import Path
from typing import Any, SupportsFloat

import gymnasium as gym
from stable_baselines3 import SAC
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.vec_env import VecFrameStack

from maskrl import AugmentConfig, MaskConfig, MLRConfig
from maskrl.integrations.sb3 import Auxiliary, FrameReplayBuffer, PixelSACPolicy

STACK = 3


class Repeat(gym.Wrapper):  # type: ignore[type-arg]
    """Take each action 4 times."""

    def step(self, action: Any) -> tuple[Any, SupportsFloat, bool, bool, dict[str, Any]]:
        total = 0.0
        for _ in range(4):
            obs, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return obs, total, terminated, truncated, info


def main(steps: int) -> None:
    env = VecFrameStack(make_vec_env("CarRacing-v3", n_envs=1, seed=1, wrapper_class=Repeat), STACK)
    agent, objective = Path("car_racing.zip"), Path("car_racing.mlr.safetensors")
    mlr = Auxiliary(
        MLRConfig(
            mask=MaskConfig(cube=(8, 12, 12)),  # 12 divides the frame of 96 pixels
            augment=AugmentConfig(crop=None, shift=4),
            decoder_width=64,  # of the 512 features that SB3's encoder has: the whole width would cost more than the agent
        ),
        clips=16,
    )
    if agent.exists():
        model, mlr = SAC.load(agent, env=env), mlr.load(objective)
    else:
        model = SAC(
            PixelSACPolicy,
            env,
            buffer_size=50_000,
            learning_starts=min(1000, steps // 2),
            batch_size=128,
            replay_buffer_class=FrameReplayBuffer,
            replay_buffer_kwargs={"frame_stack": STACK, "shift": 4},
            seed=1,
            verbose=1,
        )
    model.learn(steps, callback=mlr, log_interval=1, reset_num_timesteps=not agent.exists())
    model.save(agent)
    mlr.save(objective)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 100_000)
