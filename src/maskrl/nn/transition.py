"""Transition models: predict the next latent state from a latent state and an action."""

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from maskrl.nn.layers import rescaled


class Transition(Protocol):
    """The next latent states: (N, d), (N, A) → (N, d)."""

    def __call__(self, states: Tensor, actions: Tensor) -> Tensor: ...


class VectorTransition(nn.Module):
    """For latent vectors (SPR and PlayVirtual on DMControl): no residual, no norm on the output.

    53 298, 53 810 and 55 858 parameters for d = 50 and 1, 2 and 6 actions.
    """

    def __init__(self, latent_dim: int, action_dim: int, *, hidden: int = 512) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(latent_dim + action_dim, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, latent_dim)
        )

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        following: Tensor = self.layers(torch.cat([states, actions], dim=-1))
        return following


class MapTransition(nn.Module):
    """For feature maps that an encoder flattens (SPR and PlayVirtual on Atari): actions are planes beside the map's channels.

    76 288 and 84 352 parameters for 64 channels and 4 and 18 actions. The batch norm always uses the statistics of the current
    batch and keeps no running ones.
    """

    def __init__(self, feature_shape: tuple[int, int, int], action_dim: int, *, epsilon: float = 1e-5) -> None:
        super().__init__()
        channels, self.height, self.width = feature_shape
        self.channels, self.epsilon = channels, epsilon
        self.mix = nn.Conv2d(channels + action_dim, channels, 3, padding=1)
        self.norm = nn.BatchNorm2d(channels, track_running_stats=False)
        self.refine = nn.Conv2d(channels, channels, 3, padding=1)

    def forward(self, states: Tensor, actions: Tensor) -> Tensor:
        # Encoders flatten maps with the channels last.
        maps = states.view(-1, self.height, self.width, self.channels).permute(0, 3, 1, 2)
        planes = actions[:, :, None, None].expand(-1, -1, self.height, self.width)
        mixed = self.norm(F.relu(self.mix(torch.cat([maps, planes], dim=1))))
        units = F.relu(self.refine(mixed)).permute(0, 2, 3, 1).flatten(1)
        return rescaled(units, self.epsilon)  # as the encoder does


def rollout(transition: Transition, state: Tensor, actions: Tensor) -> Tensor:
    """(N, d), (N, K, A) → the K states that follow, (N, K, d)."""
    states = []
    for action in actions.unbind(dim=1):
        state = transition(state, action)
        states.append(state)
    return torch.stack(states, dim=1)
