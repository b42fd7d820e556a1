"""Does it help? stable-baselines3's SAC from pixels with and without our parts, beside maskrl's own, at the lite profile's size.

    python examples/sb3_study.py OUT [RECIPE] [SEEDS] [METHOD,METHOD] [KEY=VALUE]...   # dmcontrol/cartpole-balance 3 all

Hours. Every value is the recipe's: environment, encoder, widths, batch, rates, budget, evaluation. Each score is written to
OUT/scores.csv when it is known, with what is needed to go on. Run the same command again to continue; it ends with the table.
`maskrl report OUT/scores.csv` draws the curves. OUT/about.json says how the scores were made: put both files into a folder to
publish them. Seconds count training and evaluations.
"""

import csv
import json
import shutil
import sys
import time
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import maskrl
from maskrl.bench.peers import Peer, build_peer
from maskrl.envs.base import episode_seed
from maskrl.files import write_whole
from maskrl.recipes.schema import as_json
from maskrl.runs.directory import HARDWARE, versions

PEERS = {
    "sb3": Peer("SB3 alone"),
    "sb3+shift": Peer("+ FrameReplayBuffer(shift)", replay=True),
    "sb3+policy": Peer("+ PixelSACPolicy", policy=True, replay=True),
    "sb3+mlr": Peer("+ MLR", policy=True, replay=True, objective=True),
}
OURS = ("baseline", "mlr")
COLUMNS = ("method", "task", "seed", "frames", "decisions", "updates", "score", "seconds", "cpu_seconds")
TAKEN = (  # what `build_peer` reads of a recipe's agent
    *("warmup_decisions", "updates_per_decision", "batch_size", "encoder", "hidden", "discount", "learning_rate"),
    *("temperature", "q_momentum"),
)


def scores(out: Path) -> list[dict[str, str]]:
    path = out / "scores.csv"
    return list(csv.DictReader(path.open())) if path.exists() else []


def write(out: Path, **row: Any) -> None:
    path = out / "scores.csv"
    new = not path.exists()
    row |= {name: f"{row[name]:.{digits}f}" for name, digits in (("score", 1), ("seconds", 0), ("cpu_seconds", 0))}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if new:
            writer.writeheader()
        writer.writerow(row)
    print("  ".join(f"{name} {row[name]}" for name in COLUMNS), flush=True)


def evaluate(model: Any, recipe: maskrl.Recipe) -> float:
    """The mean return of the deterministic policy, from starts that all methods share."""
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


def scored(out: Path, method: str, recipe: maskrl.Recipe) -> list[dict[str, str]]:
    return [row for row in scores(out) if row["method"] == method and row["seed"] == str(recipe.seed)]


def train_peer(out: Path, method: str, recipe: maskrl.Recipe) -> None:
    done = scored(out, method, recipe)
    frames = int(done[-1]["frames"]) if done else 0
    seconds, cpu_seconds = (float(done[-1][name]) if done else 0.0 for name in ("seconds", "cpu_seconds"))
    if frames >= recipe.frames:
        return
    aside, repeat = out / f"{method}-{recipe.seed}", recipe.env.action_repeat
    env = recipe.env.make(seed=recipe.seed + frames, training=True)
    model, callback = build_peer(recipe, env, PEERS[method], capacity=recipe.frames // repeat)
    if frames:
        model, callback = load(aside, model, callback, env, recipe.seed + frames)
    while frames < recipe.frames:
        further = min(recipe.evaluation.every, recipe.frames - frames)
        wall, cpu = time.perf_counter(), time.process_time()
        if model.num_timesteps * repeat <= frames:  # otherwise it was saved, but stopped before it was scored
            model.learn(further // repeat, callback=callback, reset_num_timesteps=not frames, log_interval=None)
            save(aside, model, callback)
        frames += further
        score = evaluate(model, recipe)
        seconds += time.perf_counter() - wall
        cpu_seconds += time.process_time() - cpu
        counts = {"frames": frames, "decisions": model.num_timesteps, "updates": model._n_updates}
        told = counts | {"score": score, "seconds": seconds, "cpu_seconds": cpu_seconds}
        write(out, method=method, task=recipe.name, seed=recipe.seed, **told)
    shutil.rmtree(aside)


def train_ours(out: Path, method: str, recipe: maskrl.Recipe) -> None:
    if scored(out, method, recipe):
        return
    run = maskrl.train(recipe, out / f"{method}-{recipe.seed}")  # it continues by itself
    for record in run.events("evaluation"):
        told = {name: record[name] for name in COLUMNS if name in record}
        write(out, **told | {"method": method, "task": recipe.name, "seed": recipe.seed})


def recipe_of(method: str, name: str, *words: str) -> maskrl.Recipe:
    """The recipe that the method takes its values from. SB3's agents take MLR's encoder, but only one of them its objective."""
    recipe = maskrl.recipe(name, *words, method=method if method in OURS else "mlr", profile="lite")
    return replace(recipe, objective=None) if method in PEERS and not PEERS[method].objective else recipe


def described(method: str, recipe: maskrl.Recipe) -> dict[str, Any]:
    """The method's entry in about.json. A note says what an agent of SB3 takes from the recipe."""
    tree = json.loads(as_json(recipe)) | {"seed": 0, "threads": None}
    entry = {"method": method, "task": recipe.name, "recipe": tree}
    if method not in PEERS:
        return entry
    taken = [*TAKEN, *["augment.shift"] * PEERS[method].replay, *["auxiliary"] * PEERS[method].objective]
    note = f"The SAC of stable-baselines3, not maskrl's. Of the recipe's agent it takes only {', '.join(taken)}."
    return entry | {"note": note}


def describe(out: Path, command: str, method: str, recipe: maskrl.Recipe) -> None:
    """Write into OUT/about.json how the scores of a method are made, beside what is there."""
    path = out / "about.json"
    about = json.loads(path.read_text()) if path.exists() else {"commands": [], "machines": [], "recipes": []}
    told = versions(recipe) | {"threads": recipe.threads, "stable-baselines3": version("stable-baselines3")}
    machine = {key: told.pop(key) for key in HARDWARE}
    others = [one for one in about["recipes"] if (one["method"], one["task"]) != (method, recipe.name)]
    content = {
        "commands": [*dict.fromkeys([*about["commands"], command])],
        "runs": len({(row["method"], row["task"], row["seed"]) for row in scores(out)}),
        "versions": told,
        "machines": [*about["machines"], *[machine] * (machine not in about["machines"])],
        "recipes": [*others, described(method, recipe)],
    }
    write_whole(path, json.dumps(content, indent=1) + "\n")


def table(out: Path) -> str:
    """The last score of every seed."""
    rows, lines = scores(out), []
    for method in (*PEERS, *OURS):
        ends = {row["seed"]: row for row in rows if row["method"] == method}  # the last one of each seed
        if ends:
            each = " ".join(f"{float(row['score']):6.1f}" for row in ends.values())
            mean = fmean(float(row["score"]) for row in ends.values())
            cpu = fmean(float(row["cpu_seconds"]) for row in ends.values()) / 60
            frames = next(iter(ends.values()))["frames"]
            lines.append(f"{method:12s} {frames:>7s} frames  {each}  mean {mean:6.1f}  {cpu:6.1f} CPU minutes")
    return "\n".join(lines)


def main(
    out: Path, name: str = "dmcontrol/cartpole-balance", seeds: str = "3", methods: str = "all", *overrides: str
) -> None:
    out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    command = " ".join(["python examples/sb3_study.py OUT", name, seeds, methods, *overrides])
    for seed in range(
        1, int(seeds) + 1
    ):  # one seed of every method first: a study that is stopped has whole comparisons
        for method in [*PEERS, *OURS] if methods == "all" else methods.split(","):
            words = (f"seed={seed}", "threads=1", "device=cpu", *overrides)
            recipe = recipe_of(method, name, *words)
            (train_peer if method in PEERS else train_ours)(out, method, recipe)
            describe(out, command, method, recipe)
    print(table(out))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
