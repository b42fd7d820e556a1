"""Does it help? stable-baselines3's SAC from pixels with and without our parts, beside maskrl's own, at the lite profile's size.

    python examples/sb3_study.py OUT [RECIPE] [SEEDS] [ARM,ARM] [KEY=VALUE]...   # dmcontrol/cartpole-swingup 3 all

Hours. Every value is the recipe's: environment, encoder, widths, batch, rates, budget, evaluation. Each score is written to
OUT/scores.csv when it is known, with what is needed to go on. Run the same command again to continue; it ends with the table.
"""

import csv
import shutil
import sys
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import maskrl
from maskrl.bench.peers import Peer, build_peer
from maskrl.envs.base import episode_seed

PEERS = {
    "sb3": Peer("SB3 alone"),
    "shift": Peer("+ FrameReplayBuffer(shift)", replay=True),
    "policy": Peer("+ PixelSACPolicy", policy=True, replay=True),
    "mlr": Peer("+ MLR", policy=True, replay=True, objective=True),
}
OURS = {"maskrl": "baseline", "maskrl-mlr": "mlr"}
COLUMNS = ("arm", "seed", "frames", "score", "cpu_seconds")


def scores(out: Path) -> list[dict[str, str]]:
    path = out / "scores.csv"
    return list(csv.DictReader(path.open())) if path.exists() else []


def write(out: Path, **row: Any) -> None:
    path = out / "scores.csv"
    new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)
    print("  ".join(f"{name} {row[name]}" for name in COLUMNS), flush=True)


def evaluate(model: Any, recipe: maskrl.Recipe) -> float:
    """The mean return of the deterministic policy, from starts that all arms share."""
    env, returns = recipe.env.make(seed=recipe.seed, training=False), []
    for episode in range(recipe.evaluation.episodes):
        obs, _ = env.reset(seed=episode_seed(recipe.seed, 1_000_000 + episode))
        total, over = 0.0, False
        while not over:
            action, _ = model.predict(obs, deterministic=True)
            obs, reward, terminated, truncated, _ = env.step(action)
            total, over = total + float(reward), terminated or truncated
        returns.append(total)
    env.close()
    return fmean(returns)


def save(aside: Path, model: Any, callback: Any) -> None:
    """Replace what is there as a whole: a study may be stopped at any moment."""
    new = aside.with_suffix(".new")
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    model.save(new / "model.zip")
    model.save_replay_buffer(new / "replay.pkl")
    if callback is not None:
        callback.save(new / "objective.safetensors")
    shutil.rmtree(aside, ignore_errors=True)
    new.rename(aside)


def load(aside: Path, model: Any, callback: Any, env: Any, seed: int) -> tuple[Any, Any]:
    if not aside.exists():
        aside.with_suffix(".new").rename(aside)  # stopped between the last two lines of `save`
    model = type(model).load(aside / "model.zip", env=env)
    model.load_replay_buffer(aside / "replay.pkl")
    model.set_random_seed(seed)  # a continued run goes other ways, but it does not repeat itself
    return model, None if callback is None else callback.load(aside / "objective.safetensors")


def train_peer(out: Path, arm: str, recipe: maskrl.Recipe) -> None:
    done = [row for row in scores(out) if row["arm"] == arm and row["seed"] == str(recipe.seed)]
    frames, spent = (int(done[-1]["frames"]), float(done[-1]["cpu_seconds"])) if done else (0, 0.0)
    if frames >= recipe.frames:
        return
    aside, repeat = out / f"{arm}-{recipe.seed}", recipe.env.action_repeat
    env = recipe.env.make(seed=recipe.seed + frames, training=True)
    model, callback = build_peer(recipe, env, PEERS[arm], capacity=recipe.frames // repeat)
    if frames:
        model, callback = load(aside, model, callback, env, recipe.seed + frames)
    while frames < recipe.frames:
        further = min(recipe.evaluation.every, recipe.frames - frames)
        if model.num_timesteps * repeat <= frames:  # else it was saved, and stopped before it was scored
            began = time.process_time()
            model.learn(further // repeat, callback=callback, reset_num_timesteps=not frames, log_interval=None)
            spent += time.process_time() - began  # evaluations are not counted
            save(aside, model, callback)
        frames += further
        score = evaluate(model, recipe)
        write(out, arm=arm, seed=recipe.seed, frames=frames, score=f"{score:.1f}", cpu_seconds=f"{spent:.0f}")
    shutil.rmtree(aside)


def train_ours(out: Path, arm: str, recipe: maskrl.Recipe) -> None:
    if any(row["arm"] == arm and row["seed"] == str(recipe.seed) for row in scores(out)):
        return
    began = time.process_time()
    run = maskrl.train(recipe, out / f"{arm}-{recipe.seed}")  # it continues by itself
    spent = time.process_time() - began
    for record in run.scores:
        row = {"frames": record["frames"], "score": f"{record['score']:.1f}", "cpu_seconds": f"{spent:.0f}"}
        write(out, arm=arm, seed=recipe.seed, **row)


def table(out: Path) -> str:
    """The last score of every seed."""
    rows, lines = scores(out), []
    for arm in (*PEERS, *OURS):
        ends = {row["seed"]: row for row in rows if row["arm"] == arm}  # the last one of each seed
        if ends:
            each = " ".join(f"{float(row['score']):6.1f}" for row in ends.values())
            mean = fmean(float(row["score"]) for row in ends.values())
            cpu = fmean(float(row["cpu_seconds"]) for row in ends.values()) / 60
            frames = next(iter(ends.values()))["frames"]
            lines.append(f"{arm:12s} {frames:>7s} frames  {each}  mean {mean:6.1f}  {cpu:6.1f} CPU minutes")
    return "\n".join(lines)


def main(
    out: Path, name: str = "dmcontrol/cartpole-swingup", seeds: str = "3", arms: str = "all", *overrides: str
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    for seed in range(1, int(seeds) + 1):  # one seed of every arm first: a study that is stopped has whole comparisons
        for arm in [*PEERS, *OURS] if arms == "all" else arms.split(","):
            words = (f"seed={seed}", "threads=1", "device=cpu", *overrides)
            recipe = maskrl.recipe(name, *words, method=OURS.get(arm, "mlr"), profile="lite")
            (train_peer if arm in PEERS else train_ours)(out, arm, recipe)
    print(table(out))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
