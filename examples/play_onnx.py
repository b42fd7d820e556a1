"""Play with an exported policy: numpy and onnxruntime alone, and the environment.

    maskrl export RUN --out policy.onnx
    python examples/play_onnx.py policy.onnx CarRacing-v3
    python examples/play_onnx.py policy.onnx my_env.py:make_env

The file itself says how many pictures it takes, which numbers beside them, and for how many steps an action is held.
"""

import json
import runpy
import sys

import gymnasium
import numpy as np
import onnxruntime


def main(path: str, environment: str, episodes: int = 1) -> list[float]:
    session = onnxruntime.InferenceSession(path)
    about = json.loads(session.get_modelmeta().custom_metadata_map["maskrl.json"])
    env, returns = make(environment), []
    for episode in range(episodes):
        seen, _ = env.reset(seed=episode)
        picture, numbers = taken(seen, about)
        recent = [picture if about["pad"] == "repeat" else np.zeros_like(picture)] * about["frame_stack"]
        total, ended = 0.0, False
        while not ended:
            picture, numbers = taken(seen, about)
            recent = [*recent[1:], picture]
            (actions,) = session.run(None, {"pictures": np.stack(recent)[None], **numbers})
            for _ in range(about["action_repeat"]):
                seen, reward, terminated, truncated, _ = env.step(actions[0])
                total += float(reward)
                if ended := terminated or truncated:
                    break
        returns.append(total)
        print(f"episode {episode}: {total:.1f}")
    return returns


def make(environment: str) -> gymnasium.Env:
    """An environment of Gymnasium by its id, or of FILE.py:FUNCTION."""
    file, _, function = environment.rpartition(":")
    return runpy.run_path(file)[function]() if file.endswith(".py") else gymnasium.make(environment)


def taken(seen, about):
    """The picture in an observation, and the numbers beside it if the policy takes some."""
    picture = seen[about["image"]] if about["image"] else seen
    keys = about["vector"]["keys"] if about["vector"] else []
    rows = [np.asarray(seen[key], np.float32).reshape(1, -1) for key in keys]
    return np.array(picture), {"vectors": np.concatenate(rows, axis=1)} if rows else {}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python play_onnx.py POLICY.onnx ENVIRONMENT")
    main(sys.argv[1], sys.argv[2])
