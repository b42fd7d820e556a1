"""Rainbow with each objective of Atari: whole updates, written out for one observation at a time, in float64."""

import math
from collections import defaultdict
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import row_by_row as by_row
from builders import at
from by_hand import adam
from maskrl.agents.base import Spaces
from maskrl.agents.rainbow import Rainbow, RainbowConfig
from maskrl.recipes import find
from maskrl.replay.buffer import Draw, Replay
from maskrl.testing import _random_replay
from row_by_row import Weights

SIZE, ACTIONS, ROWS, CLIPS, ATOMS = 16, 3, 6, 4, 7
SPACES = Spaces((2, SIZE, SIZE), ACTIONS, discrete=True)
FILTERS, STRIDES, MAP = (8, 4), (4, 1), (4, 3, 3)  # the first layer sees 4 × 4 pixels, the second 2 × 2 cells
RATE, EPSILON, LIMIT, UPDATES = 2.0**-9, 1.5e-4, 0.02, 4

# The groups that are clipped separately, by the metric of their norm: the parts of the agent and the objective in each.
GROUPS: dict[str, dict[str, tuple[str, ...]]] = {
    "mlr": {"critic": ("encoder.", "head."), "decoder": ("objective.decoder.blocks.",)},
    "curl": {"critic": ("encoder.", "head.", "objective.")},
    "spr": {"critic": ("encoder.", "head."), "spr": ("objective.transition.",)},
    "playvirtual": {
        "critic": ("encoder.", "head."),
        "playvirtual": ("objective.transition.",),
        "playvirtual_backward": ("objective.backward_transition.",),
    },
}
GROUPS["spr_dropout"] = GROUPS["spr"]
MOMENTUM = {"mlr": 0.0, "curl": 0.999, "spr": 0.0, "playvirtual": 0.0, "spr_dropout": 0.99}
SHORT: dict[str, dict[str, Any]] = {  # what makes the recipe's objective fit tiny frames
    "mlr": {"clip_length": 4},
    "curl": {"head": (8, 5)},
    "spr": {"steps": 3},
    "spr_dropout": {"steps": 3},
    "playvirtual": {"steps": 3, "cycle_steps": 2, "ramp_length": 20, "ramp_start": 4, "ramp_stride": 5},
}


def recipes_agent(method: str) -> Rainbow:
    """The agent of a recipe, with tiny networks and batches, in double precision, its slow copies away from what they follow."""
    known = find("atari/breakout", "paper", method)
    assert isinstance(known.agent, RainbowConfig)
    assert known.objective is not None
    encoder = replace(known.agent.encoder, filters=FILTERS, kernels=(4, 2), strides=STRIDES)
    changes = {"target_every": 2} if known.agent.target_every > 1 else {}
    config = replace(
        known.agent, encoder=encoder, hidden=10, atoms=ATOMS, support=3.0, batch_size=ROWS, n_step=3, learning_rate=RATE,
        max_grad_norm=LIMIT, correction_updates=8, clips=None if method == "curl" else CLIPS, **changes,
    )  # fmt: skip
    assert (config.adam_epsilon, config.discount, config.micro_batch) == (EPSILON, 0.99, None)
    objective: Any = known.objective
    if method == "mlr":
        objective = replace(objective, mask=replace(objective.mask, cube=(2, 4, 4)))
    objective = replace(objective, **SHORT[method])
    if method == "curl":
        objective = replace(objective, augment=replace(objective.augment, crop=14, enlarge=SIZE))
    torch.manual_seed(5)
    agent = config.build(SPACES, objective, torch.device("cpu"), seed=3)
    for module in (*agent.modules.values(), agent.returns):
        module.double()
    for part in agent.modules.values():
        for name, parameter in part.named_parameters():
            if name.startswith("copy.") or ".copy." in name:
                parameter.data += 0.1 * torch.randn_like(parameter)
    augment = agent.augment
    agent.augment = lambda obs: augment(obs, torch.float64)  # type: ignore[assignment]
    return agent


def replay_in_double() -> tuple[Replay, dict[str, Any]]:
    """A replay that mostly draws the ends of episodes, and a copy of the last that it drew and read, as float64."""
    replay = _random_replay(SPACES, 2, 0.5)
    starts = np.flatnonzero(replay.state_dict()["leaf"])
    errors = np.random.default_rng(2).uniform(0.2, 2, len(starts)) + 100 * (starts % 41 > 36)
    replay.reprioritise(Draw(starts, torch.ones(len(starts))), errors)
    seen: dict[str, Any] = {}

    def keep(name: str, read: Callable[..., Any], numbers: tuple[str, ...]) -> Callable[..., Any]:
        def kept(*args: Any, **options: Any) -> Any:
            seen[f"{name} options"] = options
            seen[name] = made = read(*args, **options)
            seen[name] = made = replace(made, **{number: getattr(made, number).double() for number in numbers})
            return made

        return kept

    floats = {"draw": (), "transitions": ("actions", "rewards", "discounts"), "clips": ("actions",)}
    for name, numbers in floats.items():
        setattr(replay, name, keep(name, getattr(replay, name), numbers))
    return replay, seen


# ── Views ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def augmented(obs: Tensor, stream: torch.Generator, *, plain: bool) -> Tensor:
    """Shifts of up to 4 pixels and a gain, drawn for every image (…, C, H, W); `plain`: only in [0, 1]."""
    if plain:
        return obs.double() / 255
    images = by_row.shifted(obs.flatten(0, -4), 4, stream)
    gains = torch.randn(obs.shape[:-3], generator=stream, dtype=torch.float64).flatten()
    brighter = [image * (1 + 0.05 * min(max(gain, -2), 2)) for image, gain in zip(images, gains.tolist(), strict=True)]
    return torch.stack(brighter).view(obs.shape)


def placed(obs: Tensor, stream: torch.Generator) -> Tensor:
    """CURL's views: a crop of 14 × 14, somewhere in a frame of 16 × 16 whose rest repeats the crop's border."""
    crops = by_row.cropped(obs, 14, stream)
    downs, rights = torch.randint(3, (2, len(obs)), generator=stream).tolist()
    frames = torch.empty(obs.shape, dtype=torch.float64)
    for row in range(len(obs)):
        for y in range(SIZE):
            for x in range(SIZE):
                from_y, from_x = (min(max(to + by - 2, 0), 13) for to, by in ((y, downs[row]), (x, rights[row])))
                frames[row, :, y, x] = crops[row, :, from_y, from_x]
    return frames


def masked(obs: Tensor, stream: torch.Generator) -> Tensor:
    """(B, K, C, H, W) with 8 of the 16 squares of 4 × 4 pixels black in every two steps, the same in all clips."""
    ranks = torch.rand((1, 2, 16), generator=stream).argsort(dim=-1).argsort(dim=-1)
    hidden = obs.clone()
    for step in range(obs.shape[1]):
        for cell in range(16):
            if ranks[0, step // 2, cell] < 8:
                top, left = cell // 4 * 4, cell % 4 * 4
                hidden[:, step, :, top : top + 4, left : left + 4] = 0
    return hidden


# ── Networks, of one observation ──────────────────────────────────────────────────────────────────────────────────────


def convolved(maps: Tensor, weight: Tensor, bias: Tensor, stride: int = 1) -> Tensor:
    size = weight.shape[-1]
    windows = maps.unfold(1, size, stride).unfold(2, size, stride)
    return torch.einsum("chwij,fcij->fhw", windows, weight) + bias[:, None, None]


def rescaled(units: Tensor) -> Tensor:
    return (units - units.min()) / (units.max() - units.min() + 1e-5)


def normed(x: Tensor) -> Tensor:
    """A layer norm without parameters."""
    centred = x - x.sum() / len(x)
    return centred / ((centred**2).sum() / len(x) + 1e-5).sqrt()


def linear(weights: Weights, name: str, x: Tensor) -> Tensor:
    out = weights[f"{name}.weight"] @ x
    return out + weights[f"{name}.bias"] if f"{name}.bias" in weights else out


def encoded(encoder: Weights, pixels: Tensor, *, rescale: bool, kept: list[Tensor] | None = None) -> Tensor:
    """Two convolutions with ReLUs; their map, channels innermost. `kept`: the units that dropout leaves, of each layer."""
    names = [name.removesuffix(".weight") for name in encoder if name.endswith(".weight")]
    for layer, (name, stride) in enumerate(zip(names, STRIDES, strict=True)):
        pixels = convolved(pixels, encoder[f"{name}.weight"], encoder[f"{name}.bias"], stride).relu()
        if kept is not None:
            pixels = pixels * kept[layer] / 0.5
    units = pixels.permute(1, 2, 0).flatten()
    return rescaled(units) if rescale else units


def q_logits(head: Weights, noise: Weights, state: Tensor) -> Tensor:
    """(A, atoms): value plus advantage, less the mean advantage. Both streams together send 1/√2 of their gradient back."""
    state = state.detach() + (state - state.detach()) / 2**0.5

    def noisy(name: str, x: Tensor) -> Tensor:
        inner, outer = noise[f"{name}.noise_in"], noise[f"{name}.noise_out"]
        rows = head[f"{name}.weight"] + head[f"{name}.weight_sigma"] * outer[:, None] * inner[None, :]
        return rows @ x + head[f"{name}.bias"] + head[f"{name}.bias_sigma"] * outer

    value, advantage = (noisy(f"last.{stream}", noisy(f"first.{stream}", state).relu()) for stream in (0, 1))
    advantages = advantage.view(ACTIONS, ATOMS)
    return torch.stack([value + each - advantages.sum(dim=0) / ACTIONS for each in advantages])


def projected(head: Weights, state: Tensor, first: str = "first.") -> Tensor:
    """The Q head's first layers without noise, the value stream's first."""
    return torch.cat([linear(head, f"{first}{stream}", state) for stream in (0, 1)])


def advanced(weights: Weights, name: str, states: list[Tensor], actions: Tensor) -> list[Tensor]:
    """SPR's transition model: only its batch norm sees more than one row."""
    channels, height, width = MAP

    def spread(maps: Tensor, layer: str) -> Tensor:
        around = torch.nn.functional.pad(maps, (1, 1, 1, 1))
        return convolved(around, weights[f"{name}.{layer}.weight"], weights[f"{name}.{layer}.bias"]).relu()

    mixed = []
    for state, action in zip(states, actions, strict=True):
        planes = [torch.full((1, height, width), value, dtype=torch.float64) for value in action.tolist()]
        mixed.append(spread(torch.cat([state.view(height, width, channels).permute(2, 0, 1), *planes]), "mix"))
    following, together = [], torch.stack(mixed)
    means = [together[:, channel].mean() for channel in range(channels)]
    spreads = [((together[:, channel] - mean) ** 2).mean() + 1e-5 for channel, mean in enumerate(means)]
    gain, shift = weights[f"{name}.norm.weight"], weights[f"{name}.norm.bias"]
    for maps in mixed:
        scaled = [(maps[c] - means[c]) / spreads[c].sqrt() * gain[c] + shift[c] for c in range(channels)]
        following.append(rescaled(spread(torch.stack(scaled), "refine").permute(1, 2, 0).flatten()))
    return following


def decoded(weights: Weights, states: list[Tensor], actions: Tensor) -> list[Tensor]:
    """MLR's transformer over s₀, a₀, s₁, a₁, …: two blocks, each with one head of attention and an MLP."""
    d, (channels, height, width) = len(states[0]), MAP
    tokens = []
    for step, (state, action) in enumerate(zip(states, actions, strict=True)):
        place = torch.empty(d, dtype=torch.float64)
        for unit in range(d):  # the table's columns are in the order of the released code: channels outermost
            cell, channel = divmod(unit, channels)
            column = channel * height * width + cell
            angle = step * 10_000 ** (-(column - column % 2) / d)
            place[unit] = math.cos(angle) if column % 2 else math.sin(angle)
        tokens += [state + place, linear(weights, "decoder.embed_action", action) + place]

    def norm(name: str, x: Tensor) -> Tensor:
        return normed(x) * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    for block in ("decoder.blocks.0", "decoder.blocks.1"):
        seen = [norm(f"{block}.norm_attention", token) for token in tokens]
        keys, values = zip(*(linear(weights, f"{block}.key_value", each).split(d) for each in seen), strict=True)
        written = []
        for token, each in zip(tokens, seen, strict=True):
            query = linear(weights, f"{block}.query", each)
            scores = torch.stack([(query * key).sum() / d**0.5 for key in keys]).exp()
            read = sum(score / scores.sum() * value for score, value in zip(scores, values, strict=True))
            token = token + linear(weights, f"{block}.project", read)  # type: ignore[arg-type]
            hidden = linear(weights, f"{block}.mlp.0", norm(f"{block}.norm_mlp", token))
            hidden = hidden * (1 + torch.erf(hidden / 2**0.5)) / 2
            written.append(token + linear(weights, f"{block}.mlp.2", hidden))
        tokens = written
    return tokens[::2]


def distance(predicted: Tensor, target: Tensor) -> Tensor:
    units = [vector / max(vector.norm(), torch.tensor(1e-3)) for vector in (predicted, target)]
    return ((units[0] - units[1]) ** 2).sum()


# ── Updates ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class WrittenOut:
    """The whole update: both losses in loops over rows, then clipping, slow copies of the objective, Adam, the target network."""

    def __init__(self, agent: Rainbow, method: str) -> None:
        self.method, self.family, self.updates = method, method.removesuffix("_dropout"), 0
        self.slow_target, self.rescale = method == "curl", method != "curl"
        parts = {"encoder": agent.encoder, "head": agent.head, "objective": agent.objective}
        weights = {name: by_row.weights_of(module) for name, module in parts.items()}
        self.encoder, self.head = weights["encoder"], weights["head"]
        self.objective = {name: p for name, p in weights["objective"].items() if ".copy." not in name}
        self.learned = {
            f"{part}.{name}": p
            for part, own in (("encoder", self.encoder), ("head", self.head), ("objective", self.objective))
            for name, p in own.items()
        }
        self.target_encoder = by_row.weights_of(agent.target_encoder.copy)
        self.target_head = by_row.weights_of(agent.target_head.copy)
        self.target_noise = {name: noise.clone() for name, noise in agent.target_head.copy.named_buffers()}
        self.slow_encoder, self.slow_head = (by_row.weights_of(copy) for copy in slow_copies(agent))
        self.moments = {name: (torch.zeros_like(p), torch.zeros_like(p)) for name, p in self.learned.items()}
        self.augment, self.explore, self.views = (
            torch.Generator().set_state(stream.get_state())
            for stream in (agent.generators.augment, agent.generators.explore, agent.generators.objective)
        )
        self.plain = method in ("curl", "spr_dropout")
        self.kept = dropouts(agent) if method == "spr_dropout" else None

    def update(self, seen: dict[str, Any]) -> tuple[dict[str, Tensor], list[float]]:
        """Metrics and errors of an update with what the replay gave."""
        weights, batch = seen["draw"].weights.double(), seen["transitions"]
        count = ROWS if self.method == "curl" else CLIPS
        obs, next_obs, judged = (
            augmented(each, self.augment, plain=self.plain) for each in (batch.obs, batch.next_obs, batch.next_obs)
        )
        noise = self.drawn_noise(self.head)
        self.target_noise = self.drawn_noise(self.target_head) if self.slow_target else self.target_noise

        losses, errors, best = [], [], []
        next_states = self.states("target_encoder", self.target_encoder, next_obs)
        judged_states = self.states("encoder", self.encoder, judged)
        states = self.states("encoder", self.encoder, obs)
        for row in range(ROWS):
            target = self.target(
                q_logits(self.target_head, self.target_noise, next_states[row]),
                q_logits(self.head, noise, judged_states[row]),
                batch.rewards[row].item(),
                batch.discounts[row].item(),
            )
            outputs = q_logits(self.head, noise, states[row])
            best.append(max((of_action.softmax(0) * torch.arange(-3.0, 4)).sum() for of_action in outputs))
            log_shares = outputs[int(batch.actions[row].argmax())].log_softmax(0)
            losses.append(-sum(share * log for share, log in zip(target, log_shares, strict=True)))
            floored = [max(share, 1e-6) for share in target]
            divergence = sum(s * (math.log(s) - log.item()) for s, log in zip(floored, log_shares, strict=True))
            errors.append(losses[-1].item() if self.method == "curl" else divergence)
        q_loss = by_row.mean([weights[row] * losses[row] for row in range(ROWS)])

        per_clip = getattr(self, self.family)(obs[:count], seen)
        if self.method == "curl":
            errors = [error + per_clip[0].item() for error in errors]
        weighted = by_row.mean([weights[row] * per_clip[row] for row in range(count)])
        norms = self.step(q_loss + weighted)
        if not self.slow_target or self.updates % 2 == 0:
            self.copy_target(noise)
        return {"critic/loss": q_loss, "critic/q": by_row.mean(best), **norms}, errors

    def states(self, name: str, encoder: Weights, pixels: Tensor) -> list[Tensor]:
        """One call of an encoder: the latent state of every row, with the dropout of that call."""
        kept = None if self.kept is None else [masks.pop(0) for masks in self.kept[name]]
        return [
            encoded(encoder, each, rescale=self.rescale, kept=None if kept is None else [m[row] for m in kept])
            for row, each in enumerate(pixels)
        ]

    def drawn_noise(self, head: Weights) -> Weights:
        noise = {}
        for layer in ("first.0", "first.1", "last.0", "last.1"):
            fan_out, fan_in = head[f"{layer}.weight"].shape
            for side, width in (("noise_in", fan_in), ("noise_out", fan_out)):
                drawn = torch.randn(width, generator=self.explore, dtype=torch.float64)
                noise[f"{layer}.{side}"] = torch.stack([each.sign() * each.abs() ** 0.5 for each in drawn])
        return noise

    def target(self, outputs: Tensor, judge: Tensor, reward: float, discount: float) -> list[float]:
        """C51: every atom moves to reward + discount · atom; its mass goes to the two atoms beside that, by nearness."""
        expected = [(each.softmax(0) * torch.arange(-3.0, 4)).sum().item() for each in judge]
        shares = outputs[expected.index(max(expected))].softmax(0).tolist()
        target = [0.0] * ATOMS
        for atom, share in enumerate(shares):
            place = min(max(reward + discount * (atom - 3), -3), 3) + 3
            below = min(math.floor(place), ATOMS - 2)
            target[below] += share * (below + 1 - place)
            target[below + 1] += share * (place - below)
        return target

    # Objectives: the loss of every clip, times the objective's weight.

    def mlr(self, obs: Tensor, seen: dict[str, Any]) -> list[Tensor]:
        clip = seen["clips"]
        hidden = 255 * augmented(masked(clip.obs, self.views), self.views, plain=False)
        originals, per_clip = augmented(clip.obs, self.views, plain=False), []
        for row in range(CLIPS):
            states = [encoded(self.encoder, each, rescale=True) for each in hidden[row]]
            errors = []
            for state, original in zip(decoded(self.objective, states, clip.actions[row]), originals[row], strict=True):
                predicted = linear(self.objective, "target.prediction", projected(self.head, state))
                errors.append(
                    distance(predicted, self.slowly_projected(encoded(self.slow_encoder, original, rescale=True)))
                )
            per_clip.append(by_row.mean(errors))  # also steps past the end count
        return per_clip

    def curl(self, obs: Tensor, seen: dict[str, Any]) -> list[Tensor]:
        stored = seen["transitions"].obs
        anchors, positives = placed(stored, self.views), placed(stored, self.views)

        def embedded(encoder: Weights, head: Weights, name: str, pixels: Tensor) -> Tensor:
            hidden = normed(linear(head, f"{name}layers.0", encoded(encoder, pixels, rescale=False))).relu()
            return normed(linear(head, f"{name}layers.1", hidden))

        queries = [embedded(self.encoder, self.objective, "head.", each) for each in anchors]
        keys = [embedded(self.slow_encoder, self.slow_head, "", each).detach() for each in positives]
        losses = []
        for row, query in enumerate(queries):
            scores = torch.stack([0.1 * (query @ (self.objective["product"] @ key)) for key in keys])
            losses.append(-(scores - scores.max()).log_softmax(0)[row])
        return [by_row.mean(losses)] * ROWS

    def spr(self, obs: Tensor, seen: dict[str, Any]) -> list[Tensor]:
        """Five times the mean over the steps; steps past the end count as 0."""
        states = self.states("encoder", self.encoder, obs)
        return [5 * loss for loss in self.predictions(states, seen["clips"])]

    def predictions(self, states: list[Tensor], clip: Any) -> list[Tensor]:
        following = augmented(clip.obs[:, 1:4], self.views, plain=self.plain)
        targets = self.states("slow", self.slow_encoder, following.flatten(0, 1))
        errors: list[list[Tensor]] = [[] for _ in range(CLIPS)]
        for step in range(3):
            states = advanced(self.objective, "transition", states, clip.actions[:, step])
            for row, state in enumerate(states):
                error = distance(self.predicted(state), self.slowly_projected(targets[3 * row + step]))
                errors[row].append(error if clip.valid[row, step + 1] else 0 * error)
        return [by_row.mean(each) for each in errors]

    def playvirtual(self, obs: Tensor, seen: dict[str, Any]) -> list[Tensor]:
        """Nine times SPR's mean over the steps, and the mean over 2 · A cycles, which ramps up."""
        clip, cycles = seen["clips"], 2 * ACTIONS
        states = self.states("encoder", self.encoder, obs)
        predictions = self.predictions(states, clip)
        chosen = torch.randint(ACTIONS, (CLIPS, cycles, 2), generator=self.views)
        origins = augmented(clip.obs[:, :1].expand(-1, cycles, -1, -1, -1), self.views, plain=False)
        actions = torch.eye(ACTIONS, dtype=torch.float64)[chosen.flatten(0, 1)]  # (B·M, K', A)
        rows = [state for state in states for _ in range(cycles)]
        for step in (0, 1):
            rows = advanced(self.objective, "transition", rows, actions[:, step])
        for step in (1, 0):
            rows = advanced(self.objective, "backward_transition", rows, actions[:, step])
        truths = self.states("slow", self.slow_encoder, origins.flatten(0, 1))
        errors = [
            distance(self.predicted(row), self.slowly_projected(truth)) for row, truth in zip(rows, truths, strict=True)
        ]
        ramp = math.exp(-5 * max(0.0, 1 - (4 + 5 * self.updates + 1) / 20) ** 2)
        cycle = [by_row.mean(errors[cycles * row : cycles * (row + 1)]) for row in range(CLIPS)]
        return [9 * predictions[row] + ramp * cycle[row] * bool(clip.valid[row, 0]) for row in range(CLIPS)]

    def predicted(self, state: Tensor) -> Tensor:
        return linear(self.objective, "match.prediction", projected(self.head, state))

    def slowly_projected(self, state: Tensor) -> Tensor:
        return projected(self.slow_head, state, "").detach()

    # The end of an update.

    def step(self, loss: Tensor) -> dict[str, Tensor]:
        names, self.updates = list(self.learned), self.updates + 1
        gradients = dict(zip(names, torch.autograd.grad(loss, list(self.learned.values())), strict=True))
        assert not [
            name for name, gradient in gradients.items() if not gradient.any()
        ]  # or the comparison would say nothing
        norms, seen = {}, set[str]()
        for group, begins in GROUPS[self.method].items():
            members = [name for name in names if name.startswith(begins)]
            norm = torch.stack([(gradients[name] ** 2).sum() for name in members]).sum().sqrt()
            assert norm > LIMIT
            assert not seen & set(members)
            seen |= set(members)
            for name in members:
                gradients[name] = gradients[name] * LIMIT / (norm + 1e-6)
            norms[f"{group}/gradient_norm"] = norm
        # The objective's copies move before the step, so with a momentum of 0 they are one update behind.
        by_row.follow(self.slow_encoder, self.encoder, MOMENTUM[self.method])
        begin = "objective.head." if self.method == "curl" else "head.first."
        online = {name.removeprefix(begin): p for name, p in self.learned.items() if name.startswith(begin)}
        by_row.follow(self.slow_head, online, MOMENTUM[self.method])
        for name, parameter in self.learned.items():
            adam(parameter, gradients[name], self.moments[name], RATE, self.updates, epsilon=EPSILON)
        return norms

    def copy_target(self, noise: Weights) -> None:
        by_row.follow(self.target_encoder, self.encoder, 0.0)
        by_row.follow(self.target_head, self.head, 0.0)
        self.target_noise = noise


def slow_copies(agent: Rainbow) -> tuple[nn.Module, nn.Module]:
    """The objective's slow encoder and slow head."""
    objective: Any = agent.objective
    if hasattr(objective, "slow_encoder"):
        return objective.slow_encoder.copy, objective.slow_head.copy
    match = objective.target if hasattr(objective, "target") else objective.match
    return match.encoder.copy, match.momentum_projection.copy


def dropouts(agent: Rainbow) -> dict[str, list[list[Tensor]]]:
    """For every encoder and layer, a list to which each call adds the units that its dropout leaves (or that were 0 before)."""
    kept: dict[str, list[list[Tensor]]] = defaultdict(list)
    encoders = {"encoder": agent.encoder, "target_encoder": agent.target_encoder.copy, "slow": slow_copies(agent)[0]}
    for name, encoder in encoders.items():
        for layer in (module for module in encoder.modules() if isinstance(module, nn.Dropout)):
            calls: list[Tensor] = []
            layer.register_forward_hook(
                lambda _, given, out, calls=calls: calls.append(((out != 0) | (given[0] == 0)).double())
            )
            kept[name].append(calls)
    return kept


@pytest.mark.parametrize("method", GROUPS)
def test_four_updates_are_those_written_out_row_by_row(method: str):
    """Losses, norms, priorities, weights, target network and slow copies after each."""
    agent, (replay, seen) = recipes_agent(method), replay_in_double()
    written = WrittenOut(agent, method)
    past_end, ended = 0, 0
    for number in range(UPDATES):
        leaves = replay.state_dict()["leaf"].copy()
        found = agent.update(replay)
        expected, errors = written.update(seen)
        for name, value in expected.items():
            assert found[name].item() == pytest.approx(value.item(), rel=1e-9), name
        assert {name for name in found if "norm" in name} == {name for name in expected if "norm" in name}

        starts = seen["draw"].starts
        weights = (leaves[starts] + 1e-5) ** -(0.4 + 0.6 * number / 8)
        assert seen["draw"].weights.tolist() == pytest.approx((weights / weights.max()).tolist(), rel=1e-6)
        assert seen["draw options"]["stratified"] == (method == "curl")
        for place in reversed(range(ROWS)):  # of a start that was drawn twice, the first error counts
            leaves[starts[place]] = errors[place] ** 0.5
        np.testing.assert_allclose(replay.state_dict()["leaf"], leaves, rtol=1e-9)

        slow_encoder, slow_head = slow_copies(agent)
        for module, own in (
            (agent.encoder, written.encoder), (agent.head, written.head), (slow_encoder, written.slow_encoder),
            (agent.target_encoder.copy, written.target_encoder), (agent.target_head.copy, written.target_head),
            (slow_head, written.slow_head),
        ):  # fmt: skip
            by_row.check_same(module, own)
        assert agent.objective is not None
        learned = {name: p.detach() for name, p in agent.objective.named_parameters() if ".copy." not in name}
        own = {name: p.detach() for name, p in written.objective.items()}
        torch.testing.assert_close(learned, own, rtol=1e-9, atol=1e-12)
        noise = dict(agent.target_head.copy.named_buffers())
        torch.testing.assert_close(noise, written.target_noise, rtol=1e-12, atol=0)
        past_end += 0 if method == "curl" else int((~seen["clips"].valid).sum())
        ended += int((seen["transitions"].discounts == 0).sum())
    assert method == "curl" or past_end > 0  # episodes end within some clips, and within some returns
    assert ended > 0


def test_dropout_is_also_in_the_slow_copies_and_off_when_the_agent_acts():
    agent, (replay, _) = recipes_agent("spr_dropout"), replay_in_double()
    kept = dropouts(agent)
    obs = np.random.default_rng(0).integers(256, size=(2, *SPACES.obs), dtype=np.uint8)
    for _ in range(2):
        agent.update(replay)
        for name, calls in {"encoder": 3, "target_encoder": 1, "slow": 1}.items():
            assert len(kept[name]) == len(FILTERS)
            for layer in kept[name]:
                assert len(layer) == calls
                assert all(mask.mean() < 0.95 for mask in layer)
                layer.clear()
        for module in (agent.encoder, agent.head, agent.returns):
            module.float()  # an agent acts on pixels of float32
        agent.act(obs, explore=True, clock=at(5000))
        agent.act(obs, explore=False, clock=at(5000))
        for module in (agent.encoder, agent.head, agent.returns):
            module.double()
        assert all(mask.all() for layer in kept["encoder"] for mask in layer)
        assert not kept["target_encoder"][0]
        for layer in kept["encoder"]:
            assert layer
            layer.clear()
