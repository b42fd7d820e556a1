"""stable-baselines3's DQN on an Atari game, with MLR. Needs `pip install 'maskrl[sb3,atari]'`.

    python examples/sb3_atari.py [STEPS] [GAME] [plain]      # plain: without MLR, to compare

The objective is one callback: the policy, the replay and the agent are SB3's own, so the saved agent loads without maskrl. (With
`replay_buffer_class=FrameReplayBuffer` the replay would take an eighth of the memory.)
"""

import sys

import ale_py
import gymnasium as gym
from stable_baselines3 import DQN
from stable_baselines3.common.env_util import make_atari_env
from stable_baselines3.common.vec_env import VecFrameStack

from maskrl import AugmentConfig, MaskConfig, MLRConfig
from maskrl.integrations.sb3 import Auxiliary

STACK = 4


def main(steps: int, game: str, *, plain: bool) -> None:
    gym.register_envs(ale_py)
    env = VecFrameStack(make_atari_env(f"{game}NoFrameskip-v4", n_envs=1, seed=1), STACK)
    model = DQN(
        "CnnPolicy",
        env,
        buffer_size=min(steps, 50_000),
        learning_starts=min(2000, steps // 2),
        train_freq=1,
        target_update_interval=2000,
        exploration_fraction=0.1,
        seed=1,
        verbose=1,
    )
    mlr = Auxiliary(
        MLRConfig(
            mask=MaskConfig(cube=(8, 12, 12)),  # 12 divides the frame of 84 pixels
            augment=AugmentConfig(crop=None, shift=4),
            decoder_width=64,
        ),
        clips=8,
    )
    model.learn(steps, callback=None if plain else mlr, log_interval=1)
    model.save(f"{game.lower()}.zip")
    if not plain:
        mlr.save(f"{game.lower()}.mlr.safetensors")


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "plain"]
    main(
        int(words[0]) if words else 100_000,
        words[1] if len(words) > 1 else "Pong",
        plain="plain" in sys.argv,
    )
