"""MLR in a loop of your own: an encoder learns from clips of moving shapes, without an agent or an environment.

    python examples/own_loop.py

It prints the paper's representation test in miniature: how similar the latent of a masked observation is to the latent of the
same observation unmasked, before and after. Under a minute on a CPU.
"""

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor

from maskrl import (
    AugmentConfig,
    AuxiliaryConfig,
    AuxiliaryStep,
    Clip,
    ControlEncoder,
    CubeMasker,
    Host,
    MaskConfig,
    MLRConfig,
)
from maskrl.nn.augment import CenterCrop
from maskrl.nn.clip import over_time

SIZE, CROP, STACK, STEPS = 48, 40, 3, 16


def moving_shapes(clips: int) -> Clip:
    """A disc in every clip that an action pushes around a field with a fixed cross: (B, K, 9, 48, 48) and (B, K, 2)."""
    steps = STEPS + STACK - 1
    actions = torch.randn(clips, steps, 2).clamp(-1, 1)
    start = torch.rand(clips, 1, 2) * 1.2 - 0.6
    place = (start + 0.12 * (actions.cumsum(dim=1) - actions)).clamp(-0.8, 0.8)  # where the disc is before its action
    radius = torch.rand(clips, 1, 1, 1) * 0.15 + 0.2
    axis = torch.linspace(-1, 1, SIZE)
    y, x = torch.meshgrid(axis, axis, indexing="ij")
    distance = ((x - place[..., 0, None, None]) ** 2 + (y - place[..., 1, None, None]) ** 2).sqrt()
    disc = ((radius - distance) * SIZE / 2).clamp(0, 1)  # (B, T, 48, 48), with a soft edge
    cross = ((x.abs() < 0.05) | (y.abs() < 0.05)).float() * 0.4
    frames = torch.stack([disc, cross.expand_as(disc), 1 - disc], dim=2)  # (B, T, 3, 48, 48)
    stacks = torch.cat([frames[:, i : i + STEPS] for i in range(STACK)], dim=2)  # oldest frame first
    return Clip((stacks * 255).to(torch.uint8), actions[:, STACK - 1 :])


@torch.no_grad()
def masked_cosine(encoder: ControlEncoder, clip: Clip, *, centred: bool) -> float:
    """Mean cosine between the latents of masked and unmasked observations (the test of the paper's appendix).

    `centred` first takes away the mean latent, which all observations share and which makes any two of them look alike.
    """
    masker, crop = CubeMasker((8, 8, 8)), CenterCrop(CROP)

    def latents(obs: Tensor) -> Tensor:
        return over_time(encoder, over_time(crop, obs).float() / 255)

    whole, masked = latents(clip.obs), latents(masker.hide(clip.obs, masker(clip.obs)))
    mean = whole.mean(dim=(0, 1)) if centred else 0
    return F.cosine_similarity(masked - mean, whole - mean, dim=-1).mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--updates", type=int, default=200, help="how many updates to train (default: %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="seed of data, weights and masks (default: %(default)s)")
    arguments = parser.parse_args()
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(1)  # so small a network gains nothing from more

    encoder = ControlEncoder((3 * STACK, CROP, CROP), filters=16, strides=(2, 2, 1, 1))
    config = MLRConfig(mask=MaskConfig(cube=(8, 8, 8)), augment=AugmentConfig(crop=CROP))
    mlr = config.build(Host(encoder, latent_dim=encoder.latent_dim, action_dim=2))
    step = AuxiliaryStep(mlr, AuxiliaryConfig(learning_rate=1e-3, warmup_updates=100))

    held_out = moving_shapes(64)
    before = [masked_cosine(encoder, held_out, centred=centred) for centred in (False, True)]
    for update in range(arguments.updates):
        metrics = step(moving_shapes(8))
        if update % max(1, arguments.updates // 8) == 0:
            shown = "  ".join(f"{name.removeprefix('mlr/')} {value.item():.3g}" for name, value in metrics.items())
            print(f"update {update:4d} of {arguments.updates}  {shown}", flush=True)
    after = [masked_cosine(encoder, held_out, centred=centred) for centred in (False, True)]
    print("cosine between the latents of masked and unmasked observations, before and after:")
    for name, b, a in zip(("plain, as in the paper", "mean latent removed"), before, after, strict=True):
        print(f"  {name:24s}{b:.3f} -> {a:.3f}")


if __name__ == "__main__":
    main()
