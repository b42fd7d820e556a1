"""Measures of an encoder's representation: the paper's test (appendix, Table 10) and three more.

- cosine: the similarity of latents of masked and original observations, with and without the mean latent that all observations
  share; after the encoder, and after the objective's decoder.
- rank: the number of directions that the latents use (effective rank; Roy and Vetterli, 2007).
- dead: the share of latent units, and of channels of the last convolution, that are the same for all observations.
- linear: how well a linear map predicts the simulator's true state from the latents, in episodes that it was not fitted to.

No measure draws from a generator that training uses.
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

CHEAP_PROBE = 256  # observations of a probe during training
BATCH = 256  # observations to encode at once


# ── Latents of masked and of original observations ────────────────────────────────────────────────────────────────────


class Latents(NamedTuple):
    """The latents of N observations, and of the same observations with parts hidden."""

    original: Tensor  # (N, d)
    masked: Tensor  # (N, d)
    low: Tensor  # (F,), minimum of each channel of the last map over the originals
    high: Tensor  # (F,), maximum
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
    """Mask every clip as in training, but with a centre crop instead of a random one, and without a gain.

    Each `Clip` is a batch with one mask. The objective's decoder gets the masked side at the scale of training.
    """
    parts = [list[Tensor]() for _ in range(6)]
    with seeded(seed):
        for clip in clips:
            obs = clip.obs.cpu()  # so that the mask is drawn from the generator that `seeded` sets
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
    """(B, K, C, H, W) uint8 → latents (B, K, d), and the minimum and maximum of every channel (1, F)."""
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
    """Seed torch's CPU generator within the context, and restore its state afterwards."""
    before = torch.get_rng_state()
    torch.default_generator.manual_seed(seed)  # torch.manual_seed would also seed every GPU
    try:
        yield
    finally:
        torch.set_rng_state(before)


# ── Measures ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def mean_cosine(a: Tensor, b: Tensor, *, centred: bool = False) -> float:
    """(N, d), (N, d) → the mean cosine over N. `centred`: subtract the mean of `b` from both first."""
    a, b = a.double(), b.double()
    mean = b.mean(dim=0) if centred else 0.0
    return F.cosine_similarity(a - mean, b - mean, dim=-1).mean().item()


def effective_rank(latents: Tensor) -> float:
    """(N, d) → exp of the entropy of the singular values, scaled to a sum of 1, of the centred latents: from 1 to d.

    k directions of equal weight give k. 0 if all latents are equal.
    """
    x = latents.double()
    x = x - x.mean(dim=0)
    squares = torch.linalg.eigvalsh(x @ x.T if len(x) < x.shape[1] else x.T @ x)  # of the singular values
    noise = max(x.shape) * torch.finfo(x.dtype).eps * squares[-1]
    values = squares[squares > noise].sqrt()
    shares = values / values.sum()
    return float((-shares * shares.log()).sum().exp()) if len(values) else 0.0


def dead_units(latents: Tensor) -> float:
    """(N, d) → the share of units whose range over N is at most a millionth of the widest unit's, which is only rounding."""
    ranges = latents.amax(dim=0) - latents.amin(dim=0)
    return (ranges <= 1e-6 * ranges.max()).double().mean().item()


def dead_channels(low: Tensor, high: Tensor) -> float:
    """(F,), (F,) → the share of channels with one value at every position of every observation (after a ReLU: 0)."""
    return (low == high).double().mean().item()


def masking(recipe: Recipe, like: ObjectiveConfig | None = None) -> tuple[MaskConfig, int]:
    """The masks and the clip length to probe a recipe with: those of its objective, or of `like` if it has none.

    Without either (or with one that masks features), patches with the paper's ratio and about its size: the divisor of the frame
    nearest to 10 pixels. For every recipe of maskrl, that is the patch of its own objective. The depth of a cube does not matter
    to an encoder, which sees one observation at a time.
    """
    objective, size = recipe.objective or like, recipe.env.size
    length = (0 if objective is None else objective.needs.clip_length) or 16
    if objective is not None and objective.masks is not None:
        return objective.masks, length
    patch = min((side for side in range(1, size // 2 + 1) if size % side == 0), key=lambda side: abs(side - 10))
    mask = MaskConfig(strategy="spatial", cube=(1, patch, patch), rounding="ceil")
    return mask, length


def cheap_probe(agent: Agent, replay: Replay, recipe: Recipe) -> dict[str, float] | None:
    """The cheap probe that a run logs at its evaluations; None while no clip is stored."""
    mask, length = masking(recipe)
    draw = replay.spread(max(1, CHEAP_PROBE // length), span=length)
    if len(draw) == 0:
        return None
    # A mask per clip: a few clips with one mask would measure the mask more than the encoder.
    masker, clip = replace(mask, per_clip=True).build(), replay.clips(draw, length=length)
    return summary(agent_latents(agent, masker, [clip], seed=recipe.seed))


def agent_latents(agent: Agent, masker: Masker, clips: Iterable[Clip], *, seed: int) -> Latents:
    """The latents of an agent's encoder, and of its objective's decoder if it has one."""
    centre = agent.policy().centre
    return latents(agent.encoder, masker, clips, centre=centre, objective=agent.objective, seed=seed)


def summary(seen: Latents) -> dict[str, float]:
    """All measures by name; `decoder_cosine` only if there is a decoder."""
    return {
        "encoder_cosine": mean_cosine(seen.masked, seen.original),
        "encoder_cosine_centred": mean_cosine(seen.masked, seen.original, centred=True),
        **({} if seen.decoded is None else {"decoder_cosine": mean_cosine(seen.decoded[1], seen.decoded[0])}),
        "rank": effective_rank(seen.original),
        "dead": dead_units(seen.original),
        "dead_channels": dead_channels(seen.low, seen.high),
    }


# ── A linear probe of the true state ──────────────────────────────────────────────────────────────────────────────────

RIDGES = tuple(10.0**power for power in range(-6, 4))  # the best on held-out episodes is used


class Played(NamedTuple):
    """Decisions of a few episodes: the latents of each encoder, and the true states."""

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
    """Play episodes of at most `longest` decisions until there are enough, in turns with the exploring agent and at random.

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
    """(N, d), (N, S), (N,) → the R² of every value on the last quarter of the episodes, by ridge regression on the others.

    Predicting the mean of the others gives an R² of 0. The strength of the ridge is chosen on the last quarter of the others,
    separately for each value.
    """
    known, new = split(episodes)
    x, y = (_standardised(values.double(), known) for values in (latents, states))
    inner, held = (known[places] for places in split(episodes[known]))
    errors = (_guesses(x[inner], y[inner], x[held]) - y[held]).square().sum(dim=1)  # (ridges, S)
    guesses = _guesses(x[known], y[known], x[new])  # (ridges, N', S)
    guess = guesses.gather(0, errors.argmin(dim=0).expand(1, len(new), -1))[0]
    residues = (y[new] - guess).square().sum(dim=0)
    return 1 - residues / y[new].square().sum(dim=0)  # the mean of the others is 0 after standardising


def varying(states: Tensor, episodes: Tensor) -> Tensor:
    """(N, S), (N,) → (S,) bool: whether no single number makes up 99 % of a value on either side of the split."""
    shares = [(states[side] == states[side].mode(dim=0).values).double().mean(dim=0) for side in split(episodes)]
    return (shares[0] < 0.99) & (shares[1] < 0.99)


def split(episodes: Tensor) -> tuple[Tensor, Tensor]:
    """The indices of all but the last quarter of the episodes, and of that quarter, so that no episode is in both."""
    numbers = sorted(set(episodes.tolist()))
    if len(numbers) < 2:
        raise ValueError("A split by episode needs at least two episodes.")
    first_new = numbers[-max(1, len(numbers) // 4)]
    return (episodes < first_new).nonzero().flatten(), (episodes >= first_new).nonzero().flatten()


def _standardised(values: Tensor, known: Tensor) -> Tensor:
    """Standardise by the mean and spread of the known rows; values constant there become 0."""
    spread = values[known].std(dim=0, correction=0)
    return (values - values[known].mean(dim=0)) / torch.where(spread > 0, spread, 1.0)


def _guesses(x: Tensor, y: Tensor, new: Tensor) -> Tensor:
    """(n, d), (n, S), (N', d) → predictions (ridges, N', S) with the w and b that minimise |y - xw - b|²/n + ridge·|w|²."""
    x_mean, y_mean = x.mean(dim=0), y.mean(dim=0)
    x, y = x - x_mean, y - y_mean
    values, vectors = torch.linalg.eigh(x.T @ x / len(x))
    rotated = vectors.T @ (x.T @ y) / len(x)
    weights = [vectors @ (rotated / (values.clamp(min=0) + ridge)[:, None]) for ridge in RIDGES]
    return torch.stack([(new - x_mean) @ w + y_mean for w in weights])
