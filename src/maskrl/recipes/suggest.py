"""Suggestions for a name or a path that does not exist."""

import difflib
import re
from collections.abc import Iterable, Sequence

# Synonyms of our fields. A value is the end of a path, or several, all of which are suggested.
SYNONYMS: dict[str, tuple[str, ...]] = {
    # torch
    "lr": ("learning_rate",),
    "eps": ("adam_epsilon",),
    "amp": ("precision",),
    "dtype": ("precision",),
    "bf16": ("precision",),
    "fp16": ("precision",),
    "cuda": ("device",),
    "gpu": ("device",),
    "num_threads": ("threads",),
    # symbols in papers
    "gamma": ("discount",),
    "alpha": ("agent.temperature",),
    "k": ("clip_length",),
    "lambda": ("objective.weight",),
    # stable-baselines3
    "buffer_size": ("replay.capacity",),
    "learning_starts": ("warmup_decisions",),
    "total_timesteps": ("budget.decisions", "budget.frames"),
    "gradient_steps": ("updates_per_decision",),
    "ent_coef": ("agent.temperature",),
    "target_update_interval": ("target_every",),
    "features_dim": ("latent_dim",),
    "n_stack": ("frame_stack",),
    "eval_freq": ("evaluation.every",),
    "save_freq": ("checkpoint_every",),
    # the released code of CURL, DrQ and MLR
    "actor_lr": ("agent.learning_rate",),
    "critic_lr": ("agent.learning_rate",),
    "encoder_lr": ("agent.learning_rate",),
    "init_steps": ("warmup_decisions",),
    "num_seed_frames": ("warmup_decisions",),
    "num_train_steps": ("budget.decisions", "budget.frames"),
    "num_eval_episodes": ("evaluation.episodes",),
    "replay_buffer_capacity": ("replay.capacity",),
    "hidden_dim": ("agent.hidden",),
    "encoder_feature_dim": ("latent_dim",),
    "num_filters": ("encoder.filters",),
    "init_temperature": ("agent.temperature",),
    "actor_update_freq": ("actor_every",),
    "critic_target_update_freq": ("target_every",),
    "image_size": ("env.size",),
    "jumps": ("clip_length", "objective.steps"),
    # released Rainbows
    "memory_capacity": ("replay.capacity",),
    "learn_start": ("warmup_decisions",),
    "history_length": ("frame_stack",),
    "hidden_size": ("agent.hidden",),
    "multi_step": ("n_step",),
    "target_update": ("target_every",),
    "norm_clip": ("max_grad_norm",),
    "priority_weight": ("correction",),
    "v_max": ("support",),
    # everyday words
    "batch": ("batch_size",),
    "steps": ("budget.decisions", "budget.frames"),
    "timesteps": ("budget.decisions", "budget.frames"),
    "warmup": ("warmup_decisions",),
    "frame_skip": ("action_repeat",),
    "frameskip": ("action_repeat",),
    "resolution": ("env.size",),
    "img_size": ("env.size",),
    "patch_size": ("mask.cube",),
    "cube_size": ("mask.cube",),
    "mask_size": ("mask.cube",),
    "grad_clip": ("max_grad_norm",),
    "replay_ratio": ("updates_per_decision",),
    "utd": ("updates_per_decision",),
    "random_seed": ("seed",),
    "eval_every": ("evaluation.every",),
    "eval_episodes": ("evaluation.episodes",),
}


def fields_like(path: str, fields: Iterable[str]) -> list[str]:
    """The fields that a path may mean, by its words: mask_ratio → objective.mask.ratio, agent.lr → agent.learning_rate.

    If the path names a group and fields of that group match, only these are returned.
    """
    group, _, last = path.lower().rpartition(".")
    names, fields = [last, *SYNONYMS.get(last, ())], sorted(fields, key=len)
    return _ending([f"{group}.{name}" for name in names], fields) or _ending(names, fields)


def fields_with_the_last_word_of(path: str, fields: Iterable[str]) -> list[str]:
    """The fields that match the last words of a path: encoder_lr → learning_rate, masking_ratio → ratio."""
    words = path.lower().replace(".", "_").split("_")
    tails = ("_".join(words[start:]) for start in range(1, len(words)))
    return next((found for tail in tails if (found := fields_like(tail, fields))), [])


def _ending(names: Iterable[str], fields: Iterable[str]) -> list[str]:
    """The fields that end with one of the names, treating dots and underscores as equal."""
    ends = [re.compile(r"(^|\.)" + "[._]".join(map(re.escape, re.split("[._]", name))) + "$") for name in names]
    return [field for field in fields if any(end.search(field) for end in ends)][:3]


def nearest(name: str, known: Iterable[str], number: int = 1) -> list[str]:
    """The most similar names, best first: "pong" → atari/pong, "cheetah" → dmcontrol/cheetah-run."""
    known = list(known)
    same = [other for other in known if f"/{other}".casefold().endswith(f"/{name}".casefold())]
    within = [other for other in known if len(name) > 2 and name.casefold() in other.casefold()]
    return (same or difflib.get_close_matches(name, known, n=number) or within)[:number]


def choices(names: Sequence[str]) -> str:
    """The names as words of a sentence: "a", "a or b", "a, b or c"."""
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def misfit(name: str, kind: str, agent: str, fitting: Iterable[str]) -> str:
    """The message for an agent of the other kind of actions. `kind`: the recipe's own agent; `fitting`: those to choose from."""
    takes = "discrete" if kind == "rainbow" else "continuous"
    return (
        f"{name} is for agent {kind}, because it takes {takes} actions: agent {agent!r} does not fit. Choose one of "
        f"{', '.join(fitting)}."
    )
