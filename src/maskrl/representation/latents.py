"""Measures of what an encoder has learned: the paper's test (appendix, Table 10) and three more.

- cosine: how alike the latents of masked and of original observations are, plainly and with the mean latent taken away, which all
  observations share; after the encoder, and after the objective's decoder.
- rank: how many directions the latents make use of (effective rank; Roy and Vetterli, 2007).
- dead: the share of latent units, and of channels of the last convolution, that are the same whatever is seen.
- linear: how well the simulator's true state can be read off the latents by a linear map, in episodes that it was not fitted to.

None of it draws from a generator that training uses.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskrl.agents.base import Action, Agent, Spaces
from maskrl.clock import Clock
from maskrl.envs.base import episode_seed, rows_of, state_of
from maskrl.nn.clip import Clip
from maskrl.nn.encoders import Encoder
from maskrl.nn.masking import MaskConfig, Masker
from maskrl.objectives.base import Objective, ObjectiveConfig
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay

CHEAP_PROBE = 256  # observations of a look during training
BATCH = 256  # observations that are encoded at once


# ── Latents of masked and of original observations ────────────────────────────────────────────────────────────────────


class Latents(NamedTuple):
    """The latents of N observations, and of the same observations with parts hidden."""

    original: Tensor  # (N, d)
    masked: Tensor  # (N, d)
    low: Tensor  # (F,), the least that each channel of the last map shows of the originals, anywhere
    high: Tensor  # (F,), the most
    decoded: tuple[Tensor, Tensor] | None  # (N, d) each, after the objective's decoder: of the original, of the masked


@torch.no_grad()
def latents(
    encoder: Encoder,
    masker: Masker,
    clips: Iterable[Clip],
    *,
    centre: nn.Module | None = None,
    objective: Objective[Any] | None = None,
    seed: int = 0,
) -> Latents:
    """Hide parts of every clip as training does, but see its centre instead of a random crop, and without a gain.

    A clip here is a batch of them, with one mask. The objective's decoder gets the masked side at the scale of training.
    """
    parts = [list[Tensor]() for _ in range(6)]
    with seeded(seed):
        for clip in clips:
            obs = clip.obs.cpu()  # so that the generator that `seeded` sets draws the mask
            hidden = masker.hide(obs, masker(obs))
            original, low, high = _encode(encoder, obs, centre)
            masked, _, _ = _encode(encoder, hidden, centre)
            rows = [original, masked, low, high]
            if objective is not None:
                scale = objective.masked_scale
                seen = masked if scale == 1 else _encode(encoder, hidden, centre, scale)[0]
                about = clip.actions.to(original.device), clip.valid.to(original.device)
                both = [objective.decode(states, *about) for states in (original, seen)]
                rows += [states for states in both if states is not None]
            for part, row in zip(parts, rows, strict=False):
                part.append(row.flatten(0, 1).cpu())
    original, masked = torch.cat(parts[0]), torch.cat(parts[1])
    low, high = torch.stack(parts[2]).amin(dim=0), torch.stack(parts[3]).amax(dim=0)
    decoded = (torch.cat(parts[4]), torch.cat(parts[5])) if parts[5] else None
    return Latents(original, masked, low, high, decoded)


def _encode(
    encoder: Encoder, obs: Tensor, centre: nn.Module | None, scale: float = 1.0
) -> tuple[Tensor, Tensor, Tensor]:
    """(B, K, C, H, W) uint8 → latents (B, K, d), and the least and the most of every channel (1, F)."""
    device = next((parameter.device for parameter in encoder.parameters()), obs.device)
    states, lows, highs = list[Tensor](), list[Tensor](), list[Tensor]()
    for images in torch.split(obs.flatten(0, 1), BATCH):
        images = images if centre is None else centre(images)
        maps = encoder.features(images.to(device).float() * (scale / 255))
        states.append(encoder.embed(maps))
        lows.append(maps.amin(dim=(0, 2, 3), keepdim=True))
        highs.append(maps.amax(dim=(0, 2, 3), keepdim=True))
    low, high = torch.cat(lows).amin(dim=0), torch.cat(highs).amax(dim=0)
    return torch.cat(states).reshape(*obs.shape[:2], -1), low.reshape(1, -1), high.reshape(1, -1)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Draw from torch's generator of the CPU as if it had this seed, and leave it as it was."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would seed those of every GPU, too
    try:
        yield
    finally:
        torch.set_rng_state(before)


# ── What there is to say of them ──────────────────────────────────────────────────────────────────────────────────────


def mean_cosine(a: Tensor, b: Tensor, *, centred: bool = False) -> float:
    """(N, d), (N, d) → the mean over N. `centred` takes the mean of `b` away from both first."""
    a, b = a.double(), b.double()
    mean = b.mean(dim=0) if centred else 0.0
    return F.cosine_similarity(a - mean, b - mean, dim=-1).mean().item()


def effective_rank(latents: Tensor) -> float:
    """(N, d) → exp of the entropy of the singular values, scaled to a sum of 1, of the centred latents: from 1 to d.

    k directions of the same weight give k. 0 if all latents are the same.
    """
    x = latents.double()
    x = x - x.mean(dim=0)
    squares = torch.linalg.eigvalsh(x @ x.T if len(x) < x.shape[1] else x.T @ x)  # of the singular values
    noise = max(x.shape) * torch.finfo(x.dtype).eps * squares[-1]
    values = squares[squares > noise].sqrt()
    shares = values / values.sum()
    return float((-shares * shares.log()).sum().exp()) if len(values) else 0.0


def dead_units(latents: Tensor) -> float:
    """(N, d) → the share of units whose range over N is at most a millionth of the widest unit's, which is rounding."""
    ranges = latents.amax(dim=0) - latents.amin(dim=0)
    return (ranges <= 1e-6 * ranges.max()).double().mean().item()


def dead_channels(low: Tensor, high: Tensor) -> float:
    """(F,), (F,) → the share of channels that show the same at every place of every observation: after a ReLU, nothing."""
    return (low == high).double().mean().item()


def masking(recipe: Recipe, like: ObjectiveConfig | None = None) -> tuple[MaskConfig, int]:
    """Which masks a recipe is probed with, and the length of a clip: those of its objective, or of `like` if it has none.

    Without either (or with one that masks features), patches of the paper's share at about its size: the divisor of the frame
    that is nearest to 10 pixels. For every recipe here, that is the patch of its own objective. The depth of a cube makes no
    difference to an encoder, which sees one observation at a time.
    """
    objective, size = recipe.objective or like, recipe.env.size
    length = (0 if objective is None else objective.needs.clip_length) or 16
    if objective is not None and objective.masks is not None:
        return objective.masks, length
    patch = min((side for side in range(1, size // 2 + 1) if size % side == 0), key=lambda side: abs(side - 10))
    mask = MaskConfig(strategy="spatial", cube=(1, patch, patch), rounding="ceil")
    return mask, length


def cheap_probe(agent: Agent, replay: Replay, recipe: Recipe) -> dict[str, float] | None:
    """The cheap look that a run logs at its evaluations; None as long as there is no clip to look at."""
    mask, length = masking(recipe)
    draw = replay.spread(max(1, CHEAP_PROBE // length), span=length)
    if len(draw) == 0:
        return None
    # A mask for every clip: few clips under one mask would measure the mask more than the encoder.
    masker, clip = replace(mask, per_clip=True).build(), replay.clips(draw, length=length)
    return summary(agent_latents(agent, masker, [clip], seed=recipe.seed))


def agent_latents(agent: Agent, masker: Masker, clips: Iterable[Clip], *, seed: int) -> Latents:
    """As the agent sees, and as its objective predicts if it does."""
    centre = agent.policy().centre
    return latents(agent.encoder, masker, clips, centre=centre, objective=agent.objective, seed=seed)


def summary(seen: Latents) -> dict[str, float]:
    """The numbers by name; `decoder_cosine` only if there is a decoder."""
    return {
        "encoder_cosine": mean_cosine(seen.masked, seen.original),
        "encoder_cosine_centred": mean_cosine(seen.masked, seen.original, centred=True),
        **({} if seen.decoded is None else {"decoder_cosine": mean_cosine(seen.decoded[1], seen.decoded[0])}),
        "rank": effective_rank(seen.original),
        "dead": dead_units(seen.original),
        "dead_channels": dead_channels(seen.low, seen.high),
    }


# ── A linear probe of the true state ──────────────────────────────────────────────────────────────────────────────────

RIDGES = tuple(10.0**power for power in range(-6, 4))  # of which the best on held-back episodes is taken


class Played(NamedTuple):
    """Decisions of a few episodes: what each encoder made of them, and what was true."""

    latents: list[Tensor]  # (N, d), of each encoder
    states: Tensor  # (N, S)
    names: list[str]  # S of them
    episodes: Tensor  # (N,), the number of the episode


@torch.no_grad()
def play(
    agent: Agent,
    env: gym.Env[Any, Any],
    encoders: Sequence[Encoder],
    *,
    decisions: int,
    longest: int,
    seed: int,
    clock: Clock,
) -> Played | None:
    """Play episodes of at most `longest` decisions until there are enough: the agent explores in one, the next is random.

    None if the environment does not report its state.
    """
    spaces, generator, names = Spaces.of(env), np.random.default_rng(seed), list[str]()
    states, numbers, seen = list[list[float]](), list[int](), [list[Tensor]() for _ in encoders]
    while len(states) < decisions:
        number = numbers[-1] + 1 if numbers else 0
        obs, info = env.reset(seed=episode_seed(seed, number), options={"restart": True})
        shown, ended = list[Tensor](), False
        while not ended and len(shown) < longest:
            state = state_of(env)
            if state is None:
                return None
            names = list(state)
            states.append(list(state.values()))
            shown.append(torch.from_numpy(np.array(obs)))
            action: Action = spaces.random_action(generator)
            if number % 2 == 0:
                action = agent.act(obs[None], rows_of(info), explore=True, clock=clock)[0]
            obs, _, terminated, truncated, info = env.step(action)
            ended = terminated or truncated
        numbers += [number] * len(shown)
        for encoder, made in zip(encoders, seen, strict=True):
            made.append(_encode(encoder, torch.stack(shown)[:, None], agent.policy().centre)[0].flatten(0, 1).cpu())
    return Played([torch.cat(made) for made in seen], torch.tensor(states).double(), names, torch.tensor(numbers))


def linear_probe(latents: Tensor, states: Tensor, episodes: Tensor) -> Tensor:
    """(N, d), (N, S), (N,) → the R² of every value in the last quarter of the episodes, by a ridge regression on the others.

    To predict the mean of the others has an R² of 0. The last quarter of the others chooses the strength of the ridge, for each
    value by itself.
    """
    known, new = split(episodes)
    x, y = (_standardised(values.double(), known) for values in (latents, states))
    inner, held = (known[places] for places in split(episodes[known]))
    errors = (_guesses(x[inner], y[inner], x[held]) - y[held]).square().sum(dim=1)  # (ridges, S)
    guesses = _guesses(x[known], y[known], x[new])  # (ridges, N', S)
    guess = guesses.gather(0, errors.argmin(dim=0).expand(1, len(new), -1))[0]
    residues = (y[new] - guess).square().sum(dim=0)
    return 1 - residues / y[new].square().sum(dim=0)  # the mean of the others is 0, once standardised


def varying(states: Tensor, episodes: Tensor) -> Tensor:
    """(N, S), (N,) → (S,) bool: whether a value takes any one number in less than 99 % of either side of the split."""
    shares = [(states[side] == states[side].mode(dim=0).values).double().mean(dim=0) for side in split(episodes)]
    return (shares[0] < 0.99) & (shares[1] < 0.99)


def split(episodes: Tensor) -> tuple[Tensor, Tensor]:
    """The places of all but the last quarter of the episodes, and those of that quarter: never a frame of one in the other."""
    numbers = sorted(set(episodes.tolist()))
    if len(numbers) < 2:
        raise ValueError("A split by episode needs two of them at least.")
    first_new = numbers[-max(1, len(numbers) // 4)]
    return (episodes < first_new).nonzero().flatten(), (episodes >= first_new).nonzero().flatten()


def _standardised(values: Tensor, known: Tensor) -> Tensor:
    """By mean and spread of those at the known places; what is constant there stays at 0 there."""
    spread = values[known].std(dim=0, correction=0)
    return (values - values[known].mean(dim=0)) / torch.where(spread > 0, spread, 1.0)


def _guesses(x: Tensor, y: Tensor, new: Tensor) -> Tensor:
    """(n, d), (n, S), (N', d) → (ridges, N', S): what the weights w and offset b that minimise |y - xw - b|²/n + ridge·|w|² say."""
    x_mean, y_mean = x.mean(dim=0), y.mean(dim=0)
    x, y = x - x_mean, y - y_mean
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    rotated = vectors.T @ (x.T @ y) / len(x)
    weights = [vectors @ (rotated / (values.clamp(min=0) + ridge)[:, None]) for ridge in RIDGES]
    return torch.stack([(new - x_mean) @ w + y_mean for w in weights])
