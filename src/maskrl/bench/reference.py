"""The updates as a textbook would write them, to measure the agents' own against: the same mathematics, without thrift.

Whole batches, pixels as floats from the start and channels first, a replay of whole stacks (SAC's; that of the released Atari code
stores frames once, too), the actor's convolutions twice, every token through every layer of the decoder, Adam parameter by
parameter. Random numbers are drawn in the agents' order, so that from the same weights and the same seed the same losses must come
out; a test holds them to it.
"""

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from maskrl.agents.base import Agent
from maskrl.agents.rainbow import Rainbow
from maskrl.agents.sac import SAC
from maskrl.nn.clip import Clip
from maskrl.nn.decoder import LatentDecoder, sinusoid
from maskrl.nn.encoders import Encoder
from maskrl.nn.masking import CubeMasker
from maskrl.objectives.base import Objective
from maskrl.objectives.mlr import MLR, LatentTarget, MaskedPixels
from maskrl.objectives.step import SCHEDULES
from maskrl.replay.buffer import Draw, Replay, Transitions

Update = Callable[[], dict[str, Tensor]]


def is_known(objective: Objective[Any] | None) -> bool:
    """Whether an objective, if there is one, is written here."""
    return objective is None or (
        isinstance(objective, MLR)
        and isinstance(objective.corruption, MaskedPixels)
        and isinstance(objective.corruption.masker, CubeMasker)
        and isinstance(objective.decoder, LatentDecoder)
        and isinstance(objective.target, LatentTarget)
        and objective.target.decoder is None
    )


def plain_update(agent: Agent, replay: Replay) -> Update | None:
    """The update of this agent, written plainly; None if its objective is a variant that is not written here.

    The agent should be a copy (`copied`), as it learns from this.
    """
    if not is_known(agent.objective):
        return None
    if isinstance(agent, SAC):
        stacks = StackedReplay(replay)
        return lambda: sac_update(agent, replay, stacks)
    assert isinstance(agent, Rainbow)
    return lambda: rainbow_update(agent, replay)


def copied(agent: Agent) -> Any:
    """A copy with weights and their moments channels first, and Adam without a fused kernel."""
    twin: Any = copy.deepcopy(agent)
    for module in (twin.encoder, twin.target_encoder, twin.objective):
        for parameter in module.parameters() if module is not None else ():
            parameter.data = parameter.data.contiguous()
    for optimizer in optimizers_of(twin):
        for group in optimizer.param_groups:
            group["fused"], group["foreach"] = False, False
        for moments in optimizer.state.values():
            moments.update({name: value.contiguous() for name, value in moments.items()})
    return twin


def optimizers_of(agent: Any) -> list[torch.optim.Optimizer]:
    if isinstance(agent, Rainbow):
        return [agent.optimizer]
    auxiliary = [] if agent.auxiliary is None else [agent.auxiliary.optimizer]
    return [agent.optimizers["critic"], agent.optimizers["actor"], agent.optimizers["temperature"], *auxiliary]


class StackedReplay:
    """Every transition with both its stacks of frames: at a stack of 3, six times the bytes of frames that are stored once."""

    def __init__(self, replay: Replay) -> None:
        draw = replay.spread(len(replay))
        self.starts, self.all = draw.starts, replay.transitions(draw, discount=1.0)

    def rows(self, starts: Any) -> Tensor:
        return torch.from_numpy(np.searchsorted(self.starts, starts))

    def transitions(self, draw: Draw, discount: float) -> Transitions:
        rows = self.rows(draw.starts)
        one = self.all
        return Transitions(
            one.obs[rows], one.actions[rows], one.rewards[rows], one.next_obs[rows], discount * one.discounts[rows]
        )

    def clips(self, draw: Draw, length: int) -> Clip:
        rows = self.rows(draw.starts)[:, None] + torch.arange(length)
        return Clip(self.all.obs[rows], self.all.actions[rows])


# ── SAC ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def sac_update(agent: SAC, replay: Replay, stacks: StackedReplay) -> dict[str, Tensor]:
    config, metrics, clip = agent.config, dict[str, Tensor](), None
    if agent.auxiliary is not None and agent.updates % agent.every == 0:
        steps = agent.needs.clip_length
        clip = stacks.clips(replay.draw(config.auxiliary.clips, span=steps, purpose="clips"), steps)
    batch = stacks.transitions(replay.draw(config.batch_size), config.discount)
    obs, next_obs = (_augmented(agent.augment, _floats(obs)) for obs in (batch.obs, batch.next_obs))
    temperature = agent.log_temperature.exp()

    with torch.no_grad():
        next_actions, log_prob = agent.actor(maps_of(agent.encoder, next_obs))
        next_q = agent.target_critic(encode(agent.target_encoder.copy, next_obs), next_actions).amin(dim=0)
        target = batch.rewards + batch.discounts * (next_q - temperature * log_prob)
    q = agent.critic(encode(agent.encoder, obs), batch.actions)
    loss = (q - target).square().mean(dim=1).sum()
    _step(agent.optimizers["critic"], loss)
    metrics["critic/loss"] = loss.detach()

    if agent.auxiliary is not None and clip is not None:
        metrics |= auxiliary_update(agent.auxiliary, clip)
    if agent.updates % config.actor_every == 0:
        actions, log_prob = agent.actor(maps_of(agent.encoder, obs).detach())
        q = agent.critic(encode(agent.encoder, obs).detach(), actions).amin(dim=0)
        loss = (temperature.detach() * log_prob - q).mean()
        _step(agent.optimizers["actor"], loss)
        _step(agent.optimizers["temperature"], temperature * (-log_prob.detach() - agent.target_entropy).mean())
        metrics["actor/loss"] = loss.detach()
    if agent.updates % config.target_every == 0:
        agent.target_encoder.update()
        agent.target_critic.update()
    agent.updates += 1
    return metrics


def auxiliary_update(step: Any, clip: Clip) -> dict[str, Tensor]:
    config = step.config
    for group in step.optimizer.param_groups:
        group["lr"] = config.learning_rate * SCHEDULES[config.schedule](step.updates, config.warmup_updates)
    step.optimizer.zero_grad()
    loss = mlr_loss(step.objective, clip).mean()
    torch.autograd.backward(step.objective.weight * loss)
    nn.utils.clip_grad_norm_(step.parameters, config.max_grad_norm)
    step.optimizer.step()
    if step.updates % config.momentum_every == 0:
        step.objective.update_momentum()
    step.updates += 1
    return {"mlr/loss": loss.detach()}


# ── Rainbow ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def rainbow_update(agent: Rainbow, replay: Replay) -> dict[str, Tensor]:
    config, objective = agent.config, agent.objective if agent.updates % agent.every == 0 else None
    span = max(config.n_step, objective.needs.clip_length if objective else 1)
    draw = replay.draw(config.batch_size, span=span, whole=False, correction=agent.correction)
    batch = replay.transitions(draw, n_step=config.n_step, discount=config.discount, late_ends=config.late_ends)
    pixels, next_pixels = (_augmented(agent.augment, _floats(obs)) for obs in (batch.obs, batch.next_obs))
    judged = _augmented(agent.augment, _floats(batch.next_obs)) if config.double else next_pixels
    agent.renew_noise()
    with torch.no_grad():
        next_outputs = agent.target_head(encode(agent.target_encoder.copy, next_pixels))
        judge = agent.head(encode(agent.encoder, judged)) if config.double else next_outputs
        best = agent.returns.mean(judge).argmax(dim=-1)
        target = agent.returns.target(batch.rewards, batch.discounts, _taken(next_outputs, best))
    taken = _taken(agent.head(encode(agent.encoder, pixels)), batch.actions.argmax(dim=-1))
    q_loss = (draw.weights * agent.returns.loss(taken, target)).mean()
    if replay.is_prioritised:
        replay.reprioritise(draw, agent.returns.surprise(taken.detach(), target))

    metrics, total = {"critic/loss": q_loss.detach()}, q_loss
    if objective is not None:
        starts = draw.first(config.clips or len(draw))
        per_clip = mlr_loss(objective, replay.clips(starts, length=objective.needs.clip_length))
        total = total + objective.weight * (starts.weights * per_clip).mean()
        metrics["mlr/loss"] = per_clip.detach().mean()
    agent.optimizer.zero_grad()
    torch.autograd.backward(total)
    agent.step(objective)
    if agent.updates % config.target_every == 0:
        agent.target_encoder.update()
        agent.target_head.update()
    return metrics


# ── MLR ───────────────────────────────────────────────────────────────────────────────────────────────────────────────


def mlr_loss(objective: Objective[Any], clip: Clip) -> Tensor:
    """(B,)"""
    assert isinstance(objective, MLR)
    assert isinstance(objective.corruption, MaskedPixels)
    masker, target = objective.corruption.masker, objective.target
    assert isinstance(masker, CubeMasker)
    assert isinstance(target, LatentTarget)
    keep = masker(clip.obs, objective.corruption.generator)
    valid = torch.ones_like(clip.valid) if objective.count_past_end else clip.valid
    pixels = _floats(clip.obs)
    with torch.no_grad():
        masked = objective.masked_scale * _augmented(objective.augment, torch.where(keep, pixels, masker.fill / 255))
        original = _augmented(objective.augment, pixels)
        slow = target.momentum_projection(encode(target.encoder.copy, original.flatten(0, 1)))
    states = encode(objective.host.encoder, masked.flatten(0, 1))
    decoded = decode(objective.decoder, states.view(*valid.shape, -1), clip.actions, valid)
    predicted = target.prediction(target.projection(decoded.flatten(0, 1)))
    error = target.distance(predicted, slow).view(valid.shape)
    return (error * valid).sum(dim=1) / valid.sum(dim=1)


def decode(decoder: Any, states: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
    """All tokens through all layers, and those of the states in the end."""
    steps = states.shape[1]
    position = sinusoid(steps, states)
    position = position if decoder.order is None else position[:, decoder.order]
    tokens = states + position
    if decoder.embed_action is not None:
        tokens = torch.cat([tokens, decoder.embed_action(actions) + position], dim=1)
        valid = torch.cat([valid, valid], dim=1)
    for block in decoder.blocks:
        tokens = block(tokens, valid)
    return tokens[:, :steps]


# ── Shared ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def encode(encoder: Any, pixels: Tensor) -> Tensor:
    """As `Encoder.forward`, with the maps as they come."""
    assert isinstance(encoder, Encoder)
    states: Tensor = encoder.embed(maps_of(encoder, pixels))
    return states


def maps_of(encoder: Encoder, pixels: Tensor) -> Tensor:
    """Layer by layer, in the layout that the pixels have."""
    for layer in encoder.convolutions.children():
        pixels = layer(pixels)
    return pixels


def _taken(outputs: Tensor, actions: Tensor) -> Tensor:
    """(B, A, width), (B,) → (B, width)."""
    return outputs[torch.arange(len(actions)), actions]


def _floats(obs: Tensor) -> Tensor:
    return obs.float() / 255


def _augmented(augment: Any, pixels: Tensor) -> Tensor:
    moved = augment.move(pixels)
    gain = augment.intensity(pixels.shape[:-3], dtype=pixels.dtype, device=pixels.device)
    out: Tensor = moved * gain[..., None, None, None]
    return out


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()
