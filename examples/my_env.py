"""A small environment of your own: a square appears on the left or on the right, and pressing its side earns 1 point.

`maskrl train my_env.py:make_env` trains on it. Replace it by yours: a function that returns a gymnasium.Env with pictures.
"""

import gymnasium
import numpy as np

STEPS = 20  # of an episode


class Sides(gymnasium.Env):
    """Observations: uint8 (64, 64, 3). Actions: 0 is left, 1 is right."""

    observation_space = gymnasium.spaces.Box(0, 255, (64, 64, 3), np.uint8)
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = STEPS
        return self.picture(), {}

    def step(self, action):
        self.left -= 1
        reward = float(action == self.side)
        return self.picture(), reward, False, self.left == 0, {}

    def picture(self):
        self.side, row = (int(self.np_random.integers(count)) for count in (2, 48))
        drawn = np.zeros((64, 64, 3), np.uint8)
        drawn[row : row + 16, 40 * self.side + 4 : 40 * self.side + 20] = (240, 160, 40)
        return drawn


def make_env():
    return Sides()
