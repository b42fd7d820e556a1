"""Find the encoder of an SB3 agent for an objective, if the critic trains it, and the shape of its observations."""

from typing import Any, Literal, NamedTuple

from gymnasium import spaces
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.preprocessing import is_image_space
from torch import nn

from maskrl.integrations.sb3.policies import Lent

# The networks that own an encoder, of SAC, TD3 and DDPG; DQN; QR-DQN.
OWNERS = ("critic", "q_net", "quantile_net")

Choice = Literal["shared", "critic"]


class Borrowed(NamedTuple):
    encoder: nn.Module
    obs_shape: tuple[int, int, int]  # (C, H, W)


def borrow(model: BaseAlgorithm, key: str | None, choice: Choice) -> Borrowed:
    """The encoder of the agent's pictures; raise ValueError, with advice, if there is none to train."""
    policy: Any = model.policy
    space = _picture_space(model, key)
    if not policy.normalize_images:
        raise ValueError(
            "policy_kwargs has normalize_images=False, so the encoder gets 0..255, but the objective would give it 0..1. Leave "
            "it out, so that SB3 divides."
        )
    encoder = _encoder(policy, choice)
    if key is not None:
        parts = getattr(encoder, "extractors", None)
        if parts is None or key not in parts:
            raise ValueError(
                f"{type(encoder).__name__} has no separate encoder for {key!r}: expected `extractors[{key!r}]`, as in SB3's "
                "CombinedExtractor."
            )
        encoder = parts[key]
    channels, height, width = space.shape
    return Borrowed(encoder, (channels, height, width))


def _picture_space(model: BaseAlgorithm, key: str | None) -> spaces.Box:
    space: Any = model.observation_space
    if isinstance(space, spaces.Dict):
        keys = ", ".join(repr(name) for name, part in space.spaces.items() if is_image_space(part))
        if key is None or key not in space.spaces:
            raise ValueError(
                f"The observations are a Dict with pictures under {keys or 'no key'}; got key={key!r}. Choose one: "
                "Auxiliary(key=...)."
            )
        space = space.spaces[key]
    elif key is not None:
        raise ValueError(f"key={key!r}, but the observations are {space}, not a Dict. Leave it out.")
    normaliser = model.get_vec_normalize_env()
    if normaliser is not None and normaliser.norm_obs and (key is None or key in (normaliser.norm_obs_keys or ())):
        raise ValueError(
            "VecNormalize normalises the pictures, but the objective would not. Use norm_obs=False, or "
            "norm_obs_keys without the pictures."
        )
    if not is_image_space(space):
        raise ValueError(
            f"The observations are {space}, not pictures: expected uint8 of shape (C, H, W) with values 0..255. "
            "Objectives need pictures; vectors are not supported."
        )
    assert isinstance(space, spaces.Box)
    return space


def _encoder(policy: Any, choice: Choice) -> nn.Module:
    owner = next((getattr(policy, name) for name in OWNERS if hasattr(policy, name)), None)
    if owner is None:  # PPO and A2C: one encoder, or one per head
        if not policy.share_features_extractor and choice == "shared":
            raise ValueError(
                "share_features_extractor=False gives the actor a separate encoder, which the objective would not train. "
                'Leave it out, or use Auxiliary(encoder="critic") to train only the value function\'s.'
            )
        only: nn.Module = policy.features_extractor if policy.share_features_extractor else policy.vf_features_extractor
        return only
    encoder: nn.Module = owner.features_extractor
    actor = getattr(policy, "actor", None)
    if actor is None or choice == "critic":
        return encoder
    seen = actor.features_extractor
    if seen is encoder:
        raise ValueError(
            "share_features_extractor=True lets only the actor train the encoder, not the critic. Use the policy "
            'PixelSACPolicy or PixelTD3Policy, or Auxiliary(encoder="critic") to keep it so.'
        )
    if not (isinstance(seen, Lent) and seen.lender is encoder):
        raise ValueError(
            f"The actor of {type(policy).__name__} has a separate encoder, which the objective would not train. Use the "
            'policy PixelSACPolicy or PixelTD3Policy, or Auxiliary(encoder="critic") to train only the critic\'s.'
        )
    return encoder
