"""MLR, and any objective that needs only clips, in agents of stable-baselines3. See docs/sb3.md.

    model = SAC(PixelSACPolicy, env, replay_buffer_class=FrameReplayBuffer, replay_buffer_kwargs={"frame_stack": 3, "shift": 4})
    model.learn(100_000, callback=Auxiliary(clips=64))

DQN, QR-DQN, PPO and A2C need only the callback. SB3's own buffers work, too.
"""

from importlib.util import find_spec

if find_spec("stable_baselines3") is None:
    raise ModuleNotFoundError("stable_baselines3 is not installed: pip install 'maskrl[sb3]'", name="stable_baselines3")

from maskrl.integrations.sb3.callback import Auxiliary
from maskrl.integrations.sb3.policies import PixelSACPolicy, PixelTD3Policy
from maskrl.integrations.sb3.replay import FrameReplayBuffer

__all__ = ["Auxiliary", "FrameReplayBuffer", "PixelSACPolicy", "PixelTD3Policy"]
