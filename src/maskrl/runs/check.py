"""Check an environment before training on it: play random actions in a separate process, and report what to fix."""

import multiprocessing
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, redirect_stdout, suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Literal, NamedTuple
from zlib import crc32

import numpy as np
import torch
from numpy.typing import NDArray

from maskrl import recipes
from maskrl.agents.base import Spaces
from maskrl.envs.base import episode_seed
from maskrl.envs.gym import Factory
from maskrl.files import EnvironmentFailedError
from maskrl.machine import die_with_parent
from maskrl.recipes.schema import Recipe
from maskrl.words import count, number, size

DECISIONS = 500
REPEATED = 100  # decisions played a second time, to compare the results
SHOWN = 8  # pictures of a contact sheet
LEAK = 2000  # bytes per step from which growth is reported: 1 GB in half a million steps
Verdict = Literal["good", "look", "bad"]


class Finding(NamedTuple):
    """One row of the report: what was checked, what was seen, and how to fix it."""

    what: str
    seen: str
    verdict: Verdict = "good"
    fix: str = ""


@dataclass
class Sample:
    """What was observed in an environment. Plain values and arrays, so that another process can send it."""

    observation_space: str
    action_space: str
    rewards: list[float] = field(default_factory=list)  # one per decision, scaled and clipped as in training
    scores: list[float] = field(default_factory=list)  # the same, as the environment gave them
    lengths: list[int] = field(default_factory=list)  # of the finished episodes, in decisions
    ends: list[tuple[bool, bool]] = field(default_factory=list)  # terminated and truncated of these episodes
    changed: list[bool] = field(default_factory=list)  # whether each frame differs from the one before
    seconds: float = 0.0
    steps: int = 0
    grown: float | None = None  # bytes of memory per step
    differs: str | None = None  # the first difference in the second play
    printed: int = 0  # characters written to standard output
    beside: str | None = None  # description of the vector observation
    low: int = 255  # smallest pixel value of all frames
    high: int = 0
    pictures: list[NDArray[np.uint8]] = field(default_factory=list)  # from the environment, (H, W, C)
    frames: list[NDArray[np.uint8]] = field(default_factory=list)  # inputs of the network, (c, size, size)


def check_env(
    name: str | Factory, *overrides: str, timeout: float = 60.0
) -> tuple[Recipe | None, Sample | None, list[Finding]]:
    """Return the recipe of an environment, a sample of some hundred decisions, and the findings.

    It plays in a separate process, which is killed after `timeout` seconds without an answer. A callable that another process
    cannot import by its name (a lambda, a closure, a function of the main script) plays in this process, without a time limit; the
    findings say so. A script must call this under `if __name__ == "__main__":`, because the other process imports it again.
    """
    if not isinstance(name, str) and not _is_importable(name):
        recipe = recipes.resolve(name, overrides)
        try:
            sample = play(recipe)
        except EnvironmentFailedError as error:
            return None, None, [_failure(str(error))]
        alone = Finding(
            "process",
            f"played in this process: another cannot import {getattr(recipe.env, 'task', name)}",
            "look",
            "If it hangs or crashes, so does this process. Name it as FILE.py:FUNCTION to avoid this.",
        )
        return recipe, sample, [*findings(recipe, sample), alone]
    context = multiprocessing.get_context("spawn")  # torch's threads and OpenGL's contexts do not survive a fork
    ours, theirs = context.Pipe()
    process = context.Process(target=_answer, args=(theirs, name, overrides), daemon=True)
    process.start()
    theirs.close()
    try:
        while ours.poll(timeout):
            kind, value = ours.recv()
            if kind == "done":
                return (*value, findings(*value))
            if kind == "refused":
                return None, None, [_failure(value)]
        words = f"no answer for {timeout:g} seconds"
        fix = "Find what it waits for; a run with env.timeout=60 kills it after 60 seconds and restores it."
    except EOFError:
        process.join(5)
        words, fix = (
            f"its process ended with exit code {process.exitcode}",
            'Run the environment alone to find out why. A script must call check_env under `if __name__ == "__main__":`.'
            if process.exitcode == 1
            else "Its native code crashed: run the environment alone to find out why.",
        )
    finally:
        process.kill()
        process.join()
    return None, None, [Finding("environment", words, "bad", fix)]


def _failure(words: str) -> Finding:
    return Finding("environment", words, "bad", "fix this error")


def _is_importable(factory: Factory) -> bool:
    """Whether another process finds this function or class by its name. Those of the main script would run the script again."""
    found: Any = sys.modules.get(getattr(factory, "__module__", None) or "")
    for part in getattr(factory, "__qualname__", "<nameless>").split("."):
        found = getattr(found, part, None)
    return found is factory and factory.__module__ != "__main__"


def _answer(pipe: Connection, name: str | Factory, overrides: Sequence[str]) -> None:
    """The main function of the other process."""
    die_with_parent()
    try:
        recipe = recipes.resolve(name, overrides)
        pipe.send(("made", None))
        pipe.send(("done", (recipe, play(recipe, lambda: pipe.send(("alive", None))))))
    except Exception as error:
        ours = isinstance(error, ValueError | ModuleNotFoundError | EnvironmentFailedError)
        pipe.send(("refused", str(error) if ours else f"{type(error).__name__}: {error}"))


# ── Playing ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class _Counter:
    """Replaces standard output and counts characters."""

    def __init__(self) -> None:
        self.written = 0

    def write(self, text: str) -> int:
        self.written += len(text)
        return sys.stderr.write(text)

    def flush(self) -> None:
        sys.stderr.flush()


def play(recipe: Recipe, beat: Any = lambda: None, decisions: int = DECISIONS) -> Sample:
    """Play uniformly random actions, then repeat the first of them in the same environment and in a fresh one."""
    counter: Any = _Counter()
    with redirect_stdout(counter), closing(recipe.env.make(seed=recipe.seed, training=True)) as env:
        own: Any = env.unwrapped
        own.prints, inner = counter, getattr(own, "_env", env)
        sample = Sample(str(inner.observation_space), str(inner.action_space))
        sample.beside = _numbers(env.metadata.get("outside") or {})
        memory, begun = None, time.perf_counter()
        sums = []
        for place, (checksum, obs) in enumerate(_decisions(env, recipe, decisions, sample)):
            sums.append(checksum)
            if place == decisions // 4:
                memory = (_memory(), sample.steps)
            _look(env, obs, sample, _kept(recipe))
            if place % 20 == 0:
                beat()
        sample.seconds = time.perf_counter() - begun
        if memory is not None and memory[0] is not None and (now := _memory()) is not None:
            sample.grown = (now - memory[0]) / max(1, sample.steps - memory[1])
        sample.differs = _difference(env, recipe, sums, "when it is reset")
        with closing(recipe.env.make(seed=recipe.seed + 1, training=True)) as fresh:
            sample.differs = sample.differs or _difference(fresh, recipe, sums, "in a fresh environment")
    sample.printed = counter.written
    return sample


def _decisions(env: Any, recipe: Recipe, decisions: int, sample: Sample | None = None) -> Iterator[tuple[int, Any]]:
    """Play random decisions, the same every time; yield check sums of their results, and the observations."""
    generator, spaces, episode = np.random.default_rng(recipe.seed), Spaces.of(env), 0
    obs, _ = env.reset(seed=episode_seed(recipe.seed, episode))
    length = 0
    for _ in range(decisions):
        obs, reward, terminated, truncated, info = env.step(spaces.random_action(generator))
        length += 1
        if sample is not None:
            sample.rewards.append(float(reward))
            sample.scores.append(float(info.get("score", reward)))
            sample.steps += int(info.get("frames", 1))
        seen = crc32(np.ascontiguousarray(obs).data)
        seen = crc32(info["vector"].tobytes(), seen) if "vector" in info else seen
        yield crc32(np.float64(reward).tobytes(), seen), obs
        if terminated or truncated:
            if sample is not None:
                sample.lengths.append(length)
                sample.ends.append((bool(terminated), bool(truncated)))
            episode, length = episode + 1, 0
            obs, _ = env.reset(seed=episode_seed(recipe.seed, episode))


def _difference(env: Any, recipe: Recipe, sums: Sequence[int], when: str) -> str | None:
    again = [checksum for checksum, _ in _decisions(env, recipe, min(REPEATED, len(sums)))]
    places = [place for place, (one, other) in enumerate(zip(sums, again, strict=False), start=1) if one != other]
    return f"decision {places[0]} differs {when}" if places else None


def _numbers(outside: dict[str, Any]) -> str | None:
    """Describe the vector observation; None if there is none."""
    vector = outside.get("vector")
    if vector is None:
        return None
    free = sum(low is None for low in vector["low"])
    return f"{', '.join(vector['keys'])}: {count(len(vector['low']), 'number')}, {free} without bounds"


def _kept(recipe: Recipe) -> int:
    """The number of frames to keep: a clip of the objective."""
    return SHOWN if recipe.objective is None else max(SHOWN, recipe.objective.needs.clip_length)


def _look(env: Any, obs: NDArray[np.uint8], sample: Sample, kept: int) -> None:
    channels = env.unwrapped.observation_space.shape[0]
    frame = obs[-channels:]
    before = obs[-2 * channels : -channels] if len(obs) > channels else None
    if before is not None:
        sample.changed.append(not np.array_equal(frame, before))
    sample.low, sample.high = min(sample.low, int(frame.min())), max(sample.high, int(frame.max()))
    if len(sample.frames) < kept:
        raw = getattr(env.unwrapped, "raw", None)
        sample.pictures.append(frame.transpose(1, 2, 0).copy() if raw is None else raw().copy())
        sample.frames.append(frame.copy())


def _memory() -> int | None:
    """Memory of this process in bytes; None if unknown."""
    with suppress(OSError, ValueError, IndexError):
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    return None


# ── Findings ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def findings(recipe: Recipe, sample: Sample) -> list[Finding]:
    """One finding per check."""
    shape = sample.frames[0].shape
    frames = f"{sample.observation_space} → {recipe.env.frame_stack} × uint8 {shape}"
    agent = f"{sample.action_space} → {'Rainbow' if recipe.agent.kind == 'rainbow' else 'SAC'}"
    return [
        Finding("pictures", frames),
        *([] if sample.beside is None else [Finding("beside them", f"{sample.beside} → actor and critic")]),
        _range(sample),
        _change(sample),
        Finding("actions", agent),
        _rewards(recipe, sample),
        *_episodes(recipe, sample),
        _determinism(sample),
        Finding(
            "speed",
            f"{number(len(sample.rewards) / sample.seconds)} decisions/s, {number(sample.steps / sample.seconds)} steps/s",
        ),
        _growth(sample),
        Finding("prints", "nothing to standard output")
        if not sample.printed
        else Finding(
            "prints",
            f"{sample.printed:,} characters to standard output",
            "look",
            "Print to standard error, or not at all.",
        ),
    ]


def _range(sample: Sample) -> Finding:
    seen = f"{sample.low} to {sample.high}"
    if sample.high <= 1:
        return Finding("pixel values", seen, "bad", "uint8 pixels go from 0 to 255: multiply by 255 before the cast.")
    dark = sample.high - sample.low < 32
    return Finding(
        "pixel values", seen, "look" if dark else "good", "Hardly any contrast: look at the sheet." if dark else ""
    )


def _change(sample: Sample) -> Finding:
    if not sample.changed:
        return Finding("motion", "only one frame is stacked", "look", "Use env.frame_stack=3.")
    still = 1 - float(np.mean(sample.changed))
    seen = f"{still:.0%} of the frames equal the one before"
    if still == 1:
        return Finding(
            "motion", seen, "bad", "Pictures never change: return a new array each step, and draw after moving."
        )
    return Finding(
        "motion",
        seen,
        "look" if still > 0.5 else "good",
        "Fine if many actions have no effect; otherwise try a larger env.action_repeat." if still > 0.5 else "",
    )


def _rewards(recipe: Recipe, sample: Sample) -> Finding:
    rewards = np.array(sample.rewards)
    if not np.isfinite(rewards).all():
        return Finding("rewards", "not finite", "bad", "A reward must be a number: look for a division by zero.")
    zeros, largest = float(np.mean(rewards == 0)), float(np.abs(rewards).max())
    scores = np.array(sample.scores)
    sizes = np.abs(scores[scores != 0])
    seen = f"{number(scores.min())} to {number(scores.max())} per decision, {zeros:.1%} are 0"
    if (
        (limit := getattr(recipe.env, "reward_clip", None)) is not None
        and largest == limit
        and sizes.max() > 2 * sizes.min()
    ):
        fix = f"If their sizes matter, scale them below the clip: env.reward_scale={limit / sizes.max():.1g}."
        return Finding("rewards", f"{seen}; training clips them to ± {limit:g}", "look", fix)
    if zeros == 1:
        return Finding(
            "rewards",
            seen,
            "look",
            "Random play earns no reward, and learning starts with the first one. Shape the reward if you can.",
        )
    if largest > 100:
        return Finding("rewards", seen, "look", f"Large for the critic: try env.reward_scale={10 / largest:.1g}.")
    if largest < 0.001:
        return Finding("rewards", seen, "look", f"Small for the critic: try env.reward_scale={1 / largest:.1g}.")
    return Finding("rewards", seen)


def _episodes(recipe: Recipe, sample: Sample) -> Iterator[Finding]:
    clip = recipe.objective.needs.clip_length if recipe.objective is not None else 0
    if not sample.lengths:
        seen = f"none ended in {count(len(sample.rewards), 'decision')}"
        yield Finding("episodes", seen, "look", "Fine if episodes are long. Set env.time_limit if they never end.")
        return
    lengths = sample.lengths
    seen = f"{count(len(lengths), 'episode')} of {min(lengths)} to {max(lengths)} decisions"
    if min(lengths) < clip:
        seen += f"; steps past an end do not count in clips of {clip}"
    yield Finding("episodes", seen)
    both = sum(terminated and truncated for terminated, truncated in sample.ends)
    terminated = [length for length, (ended, _) in zip(lengths, sample.ends, strict=True) if ended]
    seen = f"{len(terminated)} terminated, {len(lengths) - len(terminated)} truncated"
    if both:
        yield Finding("ends", f"{seen}, {both} both", "look", "Return one of the two: truncated if only time ran out.")
    elif len(terminated) > 2 and len(set(terminated)) == 1:
        yield Finding(
            "ends",
            f"{seen}, all after {terminated[0]} decisions",
            "look",
            "A time limit? Then return truncated, not terminated.",
        )
    else:
        yield Finding("ends", seen)


def _determinism(sample: Sample) -> Finding:
    if sample.differs is None:
        same = f"the same seeds and actions gave the same results in {count(min(REPEATED, len(sample.rewards)), 'decision')}"
        return Finding("determinism", f"{same}: a resume should be exact")
    fix = "A resume closes the open episode. Draw all random numbers from self.np_random, which reset(seed=…) seeds."
    return Finding("determinism", f"{sample.differs}: a resume is not exact", "look", fix)


def _growth(sample: Sample) -> Finding:
    if sample.grown is None:
        return Finding("memory", "not known on this system")
    seen = f"{size(max(0, int(sample.grown)))} more per step"
    return Finding(
        "memory",
        seen,
        "look" if sample.grown > LEAK else "good",
        "Memory grows: look for lists that are never cleared." if sample.grown > LEAK else "",
    )


# ── Inputs of the network ─────────────────────────────────────────────────────────────────────────────────────────────


def contact_sheet(recipe: Recipe, sample: Sample, path: Path) -> None:
    """Write a picture with three rows: the environment's pictures, the network's frames, and frames under the objective's mask."""
    from PIL import Image, PngImagePlugin

    from maskrl.envs.gym import in_colour

    shown = sample.frames[:SHOWN]
    rows = [sample.pictures[:SHOWN], [frame.transpose(1, 2, 0) for frame in shown]]
    if recipe.objective is not None and recipe.objective.masks is not None:
        clip, masker = torch.from_numpy(np.stack(sample.frames[: _kept(recipe)]))[None], recipe.objective.masks.build()
        hidden = masker.hide(clip, masker(clip, torch.Generator().manual_seed(recipe.seed)))[0].numpy()
        rows.append([frame.transpose(1, 2, 0) for frame in hidden[:SHOWN]])
    side = 160
    sheet = Image.new("RGB", (len(shown) * (side + 4), len(rows) * (side + 4)), "white")
    for row, pictures in enumerate(rows):
        for column, picture in enumerate(pictures):
            tile = Image.fromarray(in_colour(picture, 1)).resize((side, side), Image.Resampling.NEAREST)
            sheet.paste(tile, (column * (side + 4) + 2, row * (side + 4) + 2))
    about = PngImagePlugin.PngInfo()
    about.add_text("Software", "maskrl check")
    sheet.save(path, pnginfo=about)
