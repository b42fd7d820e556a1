"""The updates in plain torch, to compare with the agents' own: the same mathematics with torch's defaults.

Whole batches, channels first, a ReLU after each convolution, torch's default Adam. As in the released code, the actor step runs
the convolutions for the policy and for the Q functions, and every token goes through every layer of the decoder. There are no
needless copies: masks and crops work on bytes, which become floats once, and maps are flattened in memory order. Random numbers are
drawn in the agents' order, so the same weights and seed give the same losses and weights; a test checks this.
"""

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from maskrl.agents.rainbow import Rainbow
from maskrl.agents.sac import SAC
from maskrl.nn.clip import Clip
from maskrl.nn.decoder import sinusoid
from maskrl.objectives.mlr import MLRConfig
from maskrl.objectives.step import SCHEDULES
from maskrl.recipes.schema import Recipe
from maskrl.replay.buffer import Replay

Update = Callable[[], dict[str, Tensor]]


def is_known(recipe: Recipe, device: torch.device) -> bool:
    """Whether there is a plain update for this recipe and device."""
    mlr = recipe.objective
    written = mlr is None or (
        isinstance(mlr, MLRConfig)
        and (mlr.corrupt, mlr.reconstruct, mlr.momentum_decoder, mlr.decoder_width)
        == ("pixels", "latents", False, None)
        and mlr.when != "last"
    )
    agent: Any = recipe.agent
    usual = (getattr(agent, "views", 1), getattr(agent, "burst", 0), getattr(agent, "priority", "kl")) == (1, 0, "kl")
    drawn_alike = not getattr(agent, "stratified", False) and not getattr(agent.encoder, "dropout", 0)
    return written and usual and drawn_alike and agent.kind in UPDATES and device.type == "cpu"


def plain_update(agent: Any, replay: Replay) -> Update:
    """The agent's update in plain torch.

    It trains the agent. The weights get torch's default layout, and Adam torch's default kernels.
    """
    for module in (*agent.modules.values(), *([] if agent.objective is None else [agent.objective])):
        channels_first(module, agent.encoder.feature_shape if agent.encoder.latent_order is None else None)
    optimizers = [*agent.optimizers.values(), *([] if agent.auxiliary is None else [agent.auxiliary.optimizer])]
    for group in (group for optimizer in optimizers for group in optimizer.param_groups):
        group["fused"] = group["foreach"] = None
    return partial(UPDATES[agent.config.kind], agent, replay)


def channels_first(module: nn.Module, maps: tuple[int, int, int] | None) -> None:
    """Convert kernels to channels first, and reorder the columns of layers that read `maps` (F, h, w) accordingly."""
    for parameter in module.parameters():
        parameter.data = parameter.data.contiguous()
    if maps is not None:
        filters, height, width = maps
        for layer in module.modules():
            if getattr(layer, "in_features", None) == math.prod(maps):
                weight: Any = layer.weight
                weight.data = weight.data.unflatten(1, (height, width, filters)).permute(0, 3, 1, 2).flatten(1)


def sac_update(agent: SAC, replay: Replay) -> dict[str, Tensor]:
    config, metrics, clip = agent.config, dict[str, Tensor](), None
    if agent.auxiliary is not None and agent.updates % agent.every == 0:
        steps = agent.needs.clip_length
        clip = replay.clips(replay.draw(config.auxiliary.clips, span=steps, purpose="clips"), length=steps)
    batch = replay.transitions(replay.draw(config.batch_size), discount=config.discount)
    obs, next_obs = _augmented(agent.augment, batch.obs), _augmented(agent.augment, batch.next_obs)
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
    nn.utils.clip_grad_norm_(step.parameters, config.max_grad_norm or math.inf)
    step.optimizer.step()
    if step.updates % config.momentum_every == 0:
        step.objective.update_momentum()
    step.updates += 1
    return {"mlr/loss": loss.detach()}


def rainbow_update(agent: Rainbow, replay: Replay) -> dict[str, Tensor]:
    config, objective = agent.config, agent.objective if agent.updates % agent.every == 0 else None
    span = max(config.n_step, objective.needs.clip_length if objective else 1)
    draw = replay.draw(config.batch_size, span=span, whole=False, correction=agent.correction)
    batch = replay.transitions(draw, n_step=config.n_step, discount=config.discount, late_ends=config.late_ends)
    pixels, next_pixels = _augmented(agent.augment, batch.obs), _augmented(agent.augment, batch.next_obs)
    judged = _augmented(agent.augment, batch.next_obs) if config.double else next_pixels
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


def mlr_loss(objective: Any, clip: Clip) -> Tensor:
    """(B,)"""
    masker, target = objective.corruption.masker, objective.target
    keep = masker(clip.obs, objective.corruption.generator)
    valid = torch.ones_like(clip.valid) if objective.count_past_end else clip.valid
    masked = _augmented(objective.augment, masker.hide(clip.obs, keep), objective.masked_scale)
    original = _augmented(objective.augment, clip.obs)
    with torch.no_grad():
        slow = target.momentum_projection(encode(target.encoder.copy, original.flatten(0, 1)))
    states = encode(objective.host.encoder, masked.flatten(0, 1))
    decoded = decode(objective.decoder, states.view(*valid.shape, -1), clip.actions, valid)
    predicted = target.prediction(target.projection(decoded.flatten(0, 1)))
    error = target.distance(predicted, slow).view(valid.shape)
    loss: Tensor = (error * valid).sum(dim=1) / valid.sum(dim=1)
    return loss


def decode(decoder: Any, states: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
    """Pass all tokens through all layers; return those of the states."""
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


def encode(encoder: Any, pixels: Tensor) -> Tensor:
    states: Tensor = encoder.embed(maps_of(encoder, pixels))
    return states


def maps_of(encoder: Any, pixels: Tensor) -> Tensor:
    """The encoder's maps, layer by layer. If units have no fixed order, the maps are permuted so that flattening needs no copy."""
    for layer in encoder.convolutions.children():
        pixels = layer(pixels)
    n, filters, height, width = pixels.shape
    return pixels.view(n, height, width, filters).permute(0, 3, 1, 2) if encoder.latent_order is None else pixels


def _taken(outputs: Tensor, actions: Tensor) -> Tensor:
    """The outputs of these actions: (B, A, width), (B,) → (B, width)."""
    return outputs[torch.arange(len(actions)), actions]


@torch.no_grad()
def _augmented(augment: Any, obs: Tensor, scale: float = 1.0) -> Tensor:
    """(…, C, H, W) uint8 → float in [0, 1], times the scale and a gain."""
    pixels: Tensor = augment.move(obs).float()
    gain = augment.intensity(obs.shape[:-3], dtype=pixels.dtype, device=pixels.device)
    return pixels.mul_((scale / 255 * gain)[..., None, None, None])


def _step(optimizer: torch.optim.Optimizer, loss: Tensor) -> None:
    optimizer.zero_grad()
    torch.autograd.backward(loss)
    optimizer.step()


UPDATES: dict[str, Callable[[Any, Replay], dict[str, Tensor]]] = {"sac": sac_update, "rainbow": rainbow_update}
