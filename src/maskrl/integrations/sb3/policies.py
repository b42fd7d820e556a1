"""Policies for SAC and TD3 in which the critic owns the encoder and the actor uses it.

SB3 offers separate encoders, of which an objective would train only one, or a shared one that only the actor trains. Pixel agents
in the literature do the opposite: the losses of the critic and the objective train one encoder.
"""

from typing import Any

import torch
from gymnasium import spaces
from stable_baselines3.common.policies import ContinuousCritic
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor, CombinedExtractor, NatureCNN
from stable_baselines3.common.type_aliases import Schedule
from stable_baselines3.sac.policies import SACPolicy
from stable_baselines3.td3.policies import TD3Policy
from torch import Tensor


class Lent(BaseFeaturesExtractor):
    """A critic's encoder for its actor: without a gradient, and not among the actor's parameters."""

    def __init__(self, encoder: BaseFeaturesExtractor) -> None:
        super().__init__(encoder._observation_space, encoder.features_dim)
        self._lender = (encoder,)  # in a tuple, so that torch does not register it

    @property
    def lender(self) -> BaseFeaturesExtractor:
        return self._lender[0]

    def forward(self, observations: Any) -> Tensor:
        with torch.no_grad():
            features: Tensor = self.lender(observations)
        return features


class _Critic(ContinuousCritic):
    """SB3's critic, without the encoder's backward pass in the actor's loss, which does not need it."""

    def forward(self, obs: Tensor, actions: Tensor) -> tuple[Tensor, ...]:
        # Actions have a gradient only in the actor's loss, which needs no other.
        with torch.set_grad_enabled(torch.is_grad_enabled() and not actions.requires_grad):
            features = self.extract_features(obs, self.features_extractor)
        inputs = torch.cat([features, actions], dim=1)
        return tuple(network(inputs) for network in self.q_networks)


class _OneEncoder:
    """A mixin of both policies, before SB3's own class."""

    critic: ContinuousCritic
    critic_target: ContinuousCritic

    def __init__(
        self, observation_space: spaces.Space[Any], action_space: spaces.Box, lr_schedule: Schedule, **options: Any
    ) -> None:
        if options.get("share_features_extractor"):
            raise ValueError(
                "share_features_extractor=True lets only the actor train the encoder. With this policy the critic trains it: "
                "leave the option out."
            )
        pictures = CombinedExtractor if isinstance(observation_space, spaces.Dict) else NatureCNN
        options = {"features_extractor_class": pictures, **options}
        super().__init__(observation_space, action_space, lr_schedule, **options)  # type: ignore[call-arg]

    def make_critic(self, features_extractor: BaseFeaturesExtractor | None = None) -> ContinuousCritic:
        policy: Any = self
        return _Critic(**policy._update_features_extractor(policy.critic_kwargs, features_extractor)).to(policy.device)

    def _build_critics(self) -> None:
        self.critic, self.critic_target = self.make_critic(), self.make_critic()
        self.critic_target.load_state_dict(self.critic.state_dict())
        self.critic_target.set_training_mode(False)

    def _build_optimizers(self, lr_schedule: Schedule) -> None:
        policy: Any = self
        for network in (policy.actor, policy.critic):
            options = {"lr": lr_schedule(1), **policy.optimizer_kwargs}
            network.optimizer = policy.optimizer_class(network.parameters(), **options)


class PixelSACPolicy(_OneEncoder, SACPolicy):
    """SAC's policy with one encoder: the critic trains it, the actor only uses it. For pictures, or a Dict with pictures."""

    def _build(self, lr_schedule: Schedule) -> None:
        self._build_critics()
        self.actor = self.make_actor(Lent(self.critic.features_extractor))
        self._build_optimizers(lr_schedule)


class PixelTD3Policy(_OneEncoder, TD3Policy):
    """TD3's and DDPG's policy with one encoder: the critic trains it, the actor only uses it, also in the slow copies."""

    def _build(self, lr_schedule: Schedule) -> None:
        self._build_critics()
        self.actor = self.make_actor(Lent(self.critic.features_extractor))
        self.actor_target = self.make_actor(Lent(self.critic_target.features_extractor))
        self.actor_target.load_state_dict(self.actor.state_dict())
        self.actor_target.set_training_mode(False)
        self._build_optimizers(lr_schedule)
