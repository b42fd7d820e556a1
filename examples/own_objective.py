"""An objective of your own beside SAC: consecutive observations belong together. `python own_objective.py [RUN_DIR] [FRAMES]`"""

import sys
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

import maskrl
from maskrl import AugmentConfig, Contrast, Host, Loss, Material, Needs, ObjectiveConfig, View, Views
from maskrl.objectives.contrast import info_nce
from maskrl.testing import check_objective


@dataclass(frozen=True)
class NextViews(Views):
    now: View  # (B, C, H, W)
    then: View  # (B, C, H, W), one step later


class Next(Contrast[NextViews]):  # a contrast couples clips, so it is never split
    name = "next"  # prefix of its metrics

    def __init__(self, host: Host, augment: nn.Module, weight: float) -> None:
        super().__init__(host, needs=Needs(clip_length=2), weight=weight)
        self.augment, self.head = augment, nn.Linear(host.latent_dim, host.latent_dim)

    @torch.no_grad()
    def views(self, material: Material) -> NextViews:  # all the randomness is here
        clip = self.clip_of(material)
        return NextViews(*(self.augment(clip.obs[:, step], clip.actions.dtype) for step in (0, 1)))

    def embed(self, views: NextViews) -> tuple[Tensor, Tensor]:  # every clip by itself
        now, then = (self.host.encoder(view.pixels()) for view in (views.now, views.then))
        return normalize(self.head(now), dim=-1), normalize(then, dim=-1).detach()

    def compare(self, now: Tensor, then: Tensor) -> Loss:  # every clip with every other
        per_clip = info_nce(now @ then.T / 0.1)
        return Loss(per_clip, {"next/loss": per_clip.mean().detach()})


@dataclass(frozen=True, kw_only=True)
class NextConfig(ObjectiveConfig):
    kind: Literal["next"] = "next"
    augment: AugmentConfig = field(default_factory=lambda: AugmentConfig(crop=28))
    needs = Needs(clip_length=2)

    def build(self, host: Host) -> Next:
        like = next(host.encoder.parameters())
        return Next(host, self.augment.build(host.generator), self.weight).to(like.device, like.dtype)


if __name__ == "__main__":
    check_objective(NextConfig(), frame=32, size=28)
    run_dir, frames = (sys.argv[1:] + ["runs/own-objective", "1500"][len(sys.argv) - 1 :])[:2]
    recipe = maskrl.recipe("toy/reach", f"budget.frames={frames}", "agent.auxiliary.clips=32", objective="none")
    run = maskrl.train(replace(recipe, objective=NextConfig(weight=0.5)), run_dir)
    print([round(score["score"], 1) for score in run.scores], "random play has", recipe.env.random_return)
