"""Play with an exported policy: numpy and onnxruntime alone, and the environment.

    maskrl export RUN --out policy.onnx
    python examples/play_onnx.py policy.onnx CarRacing-v3
    python examples/play_onnx.py policy.onnx my_env.py:make_env

The file itself says how many pictures it takes, which numbers beside them, and for how many steps an action is held. It runs no
code: arguments and wrappers of the environment (env.kwargs, env.wrappers) belong into a function of yours.
"""

import json
import runpy
import sys

import gymnasium
import numpy as np
import onnxruntime

# Only runs of `gym/…` and FILE.py:FUNCTION have these settings.
USUAL = {"pixels": "observation", "max_of_two": False, "time_limit": 27_000}


def main(path: str, environment: str, episodes: int = 1) -> list[float]:
    session = onnxruntime.InferenceSession(path)
    about = json.loads(session.get_modelmeta().custom_metadata_map["maskrl.json"])
    settings, returns = USUAL | about["recipe"]["env"], []
    drawn = settings["pixels"] == "render"
    env = make(environment, drawn=drawn)
    for episode in range(episodes):
        seen, _ = env.reset(seed=episode)
        picture = shown(env.render() if drawn else seen, about)
        recent = [picture if about["pad"] == "repeat" else np.zeros_like(picture)] * about["frame_stack"]
        total, ended, left = 0.0, False, settings["time_limit"]
        while not ended:
            recent = [*recent[1:], picture]
            (actions,) = session.run(None, {"pictures": np.stack(recent)[None], **numbers(seen, about)})
            pictures = []
            for _ in range(min(about["action_repeat"], left)):
                seen, reward, terminated, truncated, _ = env.step(actions[0])
                pictures = [*pictures[-1:], shown(env.render() if drawn else seen, about)]
                total, left = total + float(reward), left - 1
                if ended := terminated or truncated or left == 0:
                    break
            picture = np.max(pictures, axis=0) if settings["max_of_two"] else pictures[-1]
        returns.append(total)
        print(f"episode {episode}: {total:.1f}")
    return returns


def make(environment: str, *, drawn: bool) -> gymnasium.Env:
    """An environment of Gymnasium by its id, or of FILE.py:FUNCTION."""
    file, _, function = environment.rpartition(":")
    if file.endswith(".py"):
        return runpy.run_path(file)[function]()
    return gymnasium.make(environment, **({"render_mode": "rgb_array"} if drawn else {}))


def shown(seen, about):
    """The picture in an observation, with its channels last."""
    picture = np.array(seen[about["image"]] if about["image"] else seen)
    shape = tuple(about["picture"][side] for side in ("height", "width", "channels"))
    if picture.ndim == 3 and picture.shape != shape:
        picture = picture.transpose(1, 2, 0)
    return picture.reshape(shape)


def numbers(seen, about):
    """The numbers beside the picture, if the policy takes some."""
    keys = about["vector"]["keys"] if about["vector"] else []
    rows = [np.asarray(seen[key], np.float32).reshape(1, -1) for key in keys]
    return {"vectors": np.concatenate(rows, axis=1)} if rows else {}


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python play_onnx.py POLICY.onnx ENVIRONMENT")
    main(sys.argv[1], sys.argv[2])
