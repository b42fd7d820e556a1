"""Play with an exported policy: numpy and onnxruntime alone, and the environment.

    maskrl export RUN --out policy.onnx
    python examples/play_onnx.py policy.onnx CarRacing-v3

The file itself says how many pictures it takes, and for how many steps an action is held.
"""

import json
import sys

import gymnasium
import numpy as np
import onnxruntime


def main(path: str, environment: str, episodes: int = 1) -> list[float]:
    session = onnxruntime.InferenceSession(path)
    about = json.loads(session.get_modelmeta().custom_metadata_map["maskrl.json"])
    env, returns = gymnasium.make(environment), []
    for episode in range(episodes):
        picture, _ = env.reset(seed=episode)
        black = np.zeros_like(picture)
        recent = [picture if about["pad"] == "repeat" else black] * about["frame_stack"]
        total, ended = 0.0, False
        while not ended:
            recent = [*recent[1:], picture]
            (actions,) = session.run(None, {"pictures": np.stack(recent)[None]})
            for _ in range(about["action_repeat"]):
                picture, reward, terminated, truncated, _ = env.step(actions[0])
                total += float(reward)
                if ended := terminated or truncated:
                    break
        returns.append(total)
        print(f"episode {episode}: {total:.1f}")
    return returns


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python play_onnx.py POLICY.onnx ENVIRONMENT")
    main(sys.argv[1], sys.argv[2])
