"""Mask-based Latent Reconstruction (Yu et al., NeurIPS 2022), in the order of sections 3.2 (i)-(iv) of the paper.

Hide random space-time cubes of a clip of K observations, encode the masked observations with the agent's own encoder f, let a
small transformer φ with action tokens predict every latent state, and match the momentum projections of the unmasked
observations by cosine. Only this loss uses the decoder and the heads; acting uses f alone.

Every variant of the paper's ablations is a setting of `MLRConfig`: the shape of cubes, the corruption (pixels or features), the
target (latents or pixels), or an option of one of them.

Departures from the paper's text, towards the released code unless stated otherwise; docs/fidelity.md lists all of them:

- The loss is ‖n(ŷ) − n(ȳ)‖², which is 2 − 2cos once the norms exceed the floor of 1e-3, not 1 − cos (`distance`).
- Exactly η of the cubes are hidden in every temporal block, not in the clip as a whole (`mask.balanced`), and all clips of an
  update share one mask (`mask.per_clip`).
- Positions are absolute within the clip, as in the paper's formula; its text says relative.
- Momentum copies start as copies; the released code initialises some of their layers again (`momentum_init`).
- Building the objective leaves the encoder as it is; the released code re-initialises its linear layer. Here
  that initialisation is an option of the encoder (`linear_init`).
- Steps past the end of an episode (`Clip.valid`) count neither in the loss nor in the attention; the released Atari code counts
  them (`count_past_end`). Our own choice; DMControl clips never have any.
- MLR-F, MLR-Pixel, MLR-MoDec and the MSE distance were not released. They follow the paper's text; docs/fidelity.md lists our
  choices where it leaves some open.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Protocol, TypeVar

import torch
from torch import Tensor, nn

from maskrl.nn.augment import Augment, AugmentConfig, View
from maskrl.nn.clip import over_time
from maskrl.nn.decoder import LatentDecoder, NarrowDecoder
from maskrl.nn.encoders import Encoder
from maskrl.nn.layers import truncated_normal_init
from maskrl.nn.masking import MaskConfig, Masker
from maskrl.nn.momentum import Borrowed, Momentum
from maskrl.nn.pixels import PixelDecoder
from maskrl.objectives.base import (
    EnvSize,
    Group,
    Host,
    Learner,
    Loss,
    Material,
    Needs,
    Objective,
    ObjectiveConfig,
    Views,
    check_crops,
    on_host,
)
from maskrl.objectives.match import (
    CosineDistance,
    Distance,
    Match,
    Prediction,
    Projection,
    mean_over_valid,
    prediction_of,
    projection_of,
    squared_distance,
)

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class MLRViews(Views):
    """A clip after masking and augmentation, still uint8."""

    masked: View  # (B, K, C, H', W'), what the online encoder sees
    original: View  # (B, K, C, H', W'), what the targets are computed from
    keep: Tensor  # (1 or B, K, 1, h, w) bool, True = visible: frames, or feature maps for MLR-F
    actions: Tensor  # (B, K, A)
    valid: Tensor  # (B, K) bool


class MLR(Objective[MLRViews]):
    """The MLR objective. Its parts can be exchanged: see `Corruption`, `Target` and `MLRConfig.build`."""

    name = "mlr"

    def __init__(
        self,
        host: Host,
        *,
        clip_length: int,
        corruption: "Corruption",
        augment: Augment,
        decoder: LatentDecoder | NarrowDecoder,
        target: "Target",
        weight: float = 1.0,
        masked_scale: float = 1.0,
        count_past_end: bool = False,
    ) -> None:
        super().__init__(host, needs=Needs(clip_length), weight=weight)
        self.corruption, self.augment, self.decoder, self.target = corruption, augment, decoder, target
        self.masked_scale, self.count_past_end = masked_scale, count_past_end

    def parameter_groups(self) -> list[Group]:
        """The transformer, clipped as a group of its own, and the rest, not clipped: both as in the released Atari code."""
        core = list(self.decoder.core.parameters())
        rest = [other for other in self.own_parameters() if not any(other is parameter for parameter in core)]
        return [Group(core, "decoder"), Group(rest, clipped=False)]

    @torch.no_grad()
    def views(self, material: Material) -> MLRViews:
        """(i) Masking, then augmentation, drawn separately for each observation and for its target."""
        clip = self.clip_of(material)
        hidden, keep = self.corruption.hide(clip.obs)
        masked, original, keep = self.target.views(self.augment, hidden, clip.obs, keep, clip.actions.dtype)
        return MLRViews(
            masked=replace(masked, gain=masked.gain * self.masked_scale),
            original=original,
            keep=keep,
            actions=clip.actions,
            valid=torch.ones_like(clip.valid) if self.count_past_end else clip.valid,
        )

    def decode(self, states: Tensor, actions: Tensor, valid: Tensor) -> Tensor:
        decoded: Tensor = self.decoder(states, actions, valid)
        return decoded

    def loss(self, views: MLRViews) -> Loss:
        states = self.corruption.encode(self.host.encoder, views)  # (ii) encoding (B, K, d)
        expected = (*views.valid.shape, self.host.latent_dim)
        if tuple(states.shape) != expected:
            raise ValueError(
                f"The encoder must return latent states (N, d) = (N, {self.host.latent_dim}); it returned {tuple(states.shape)} "
                f"for (B, K) = {expected[:2]} observations; expected {expected}. Pass its true width as Host.latent_dim."
            )
        decoded = self.decode(states, views.actions, views.valid)  # (iii) decoding (B, K, d)
        error, metrics = self.target(decoded, views)  # (iv) reconstruction (B, K)
        per_clip = mean_over_valid(error, views.valid)
        watched = {"loss": per_clip.mean(), "hidden": 1 - views.keep.to(error.dtype).mean(), **metrics}
        return Loss(per_clip, {f"{self.name}/{key}": value.detach() for key, value in watched.items()})


# ── Where the cubes are hidden ────────────────────────────────────────────────────────────────────────────────────────


class Corruption(Protocol):
    """Where cubes are masked: in the frames before the augmentation, or inside the encoder."""

    def hide(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """(B, K, C, H, W) uint8 → the input of the augmentation, and keep (1 or B, K, 1, h, w)."""
        ...

    def encode(self, encoder: nn.Module, views: MLRViews) -> Tensor:
        """The latent states of the masked view, (B, K, d)."""
        ...


@dataclass(frozen=True)
class MaskedPixels:
    """MLR: mask cubes of the frames before the augmentation, so a crop cuts the grid of cubes at a random offset."""

    masker: Masker
    generator: torch.Generator | None = None

    def hide(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        keep = self.masker(obs, self.generator)
        return self.masker.hide(obs, keep), keep

    def encode(self, encoder: nn.Module, views: MLRViews) -> Tensor:
        return over_time(encoder, views.masked.pixels())


@dataclass(frozen=True)
class MaskedFeatures:
    """MLR-F: leave the frames whole and mask cubes of the encoder's convolutional maps."""

    masker: Masker
    feature_shape: tuple[int, int, int]  # (F, h, w)
    generator: torch.Generator | None = None

    def hide(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        return obs, self.masker(obs[:, :, :1, :1, :1].expand(-1, -1, *self.feature_shape), self.generator)

    def encode(self, encoder: nn.Module, views: MLRViews) -> Tensor:
        assert isinstance(encoder, Encoder)  # checked by MLRConfig.build
        features = over_time(encoder.features, views.masked.pixels())  # (B, K, F, h, w)
        return over_time(encoder.embed, self.masker.hide(features, views.keep))


# ── What is reconstructed ─────────────────────────────────────────────────────────────────────────────────────────────


class Target(Protocol):
    """What the decoded states must match, and the views of the clip that this takes."""

    def views(
        self, augment: Augment, hidden: Tensor, obs: Tensor, keep: Tensor, dtype: torch.dtype
    ) -> tuple[View, View, Tensor]:
        """The masked view, the original view, and `keep` as the loss needs it."""
        ...

    def __call__(self, decoded: Tensor, views: MLRViews) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, K, d) → the error of every step (B, K), and metrics."""
        ...


class LatentTarget(Match):
    """MLR: ŷ = q(g(ŝ)) must match ȳ = ḡ(f̄(o)), the momentum projection of the unmasked observation.

    With a momentum decoder (MLR-MoDec), ȳ = ḡ(φ̄(f̄(o), a)).
    """

    def __init__(self, *, decoder: Momentum | None = None, **parts: Any) -> None:
        super().__init__(**parts)
        self.decoder = decoder

    def views(
        self, augment: Augment, hidden: Tensor, obs: Tensor, keep: Tensor, dtype: torch.dtype
    ) -> tuple[View, View, Tensor]:
        masked: View = augment(hidden, dtype)
        original: View = augment(obs, dtype)
        return masked, original, keep

    def forward(self, decoded: Tensor, views: MLRViews) -> tuple[Tensor, dict[str, Tensor]]:
        predicted = self.predict(decoded)  # ŷ (B, K, p)
        with torch.no_grad():
            states = over_time(self.encoder, views.original.pixels())  # s̄ (B, K, d)
            if self.decoder is not None:
                states = self.decoder(states, views.actions, views.valid)
            target = over_time(self.momentum_projection, states)  # ȳ (B, K, p)
        return self.distance(predicted, target), self.metrics(predicted.detach(), target, views.valid)


class PixelTarget(nn.Module):
    """MLR-Pixel: reconstruct the same crop of the unmasked observation from the decoded states, without an intensity gain."""

    def __init__(self, decoder: nn.Module, *, hidden_only: bool) -> None:
        super().__init__()
        self.decoder, self.hidden_only = decoder, hidden_only

    def views(
        self, augment: Augment, hidden: Tensor, obs: Tensor, keep: Tensor, dtype: torch.dtype
    ) -> tuple[View, View, Tensor]:
        # Augmented together as channels of one image, so that all three stay aligned.
        aligned = [hidden, obs, *([keep.to(torch.uint8).expand(len(obs), -1, -1, -1, -1)] if self.hidden_only else [])]
        moved = augment.move(torch.cat(aligned, dim=2))
        masked, original, *moved_keep = torch.split(moved, [part.shape[2] for part in aligned], dim=2)
        gain = torch.ones(obs.shape[:2], dtype=dtype, device=obs.device)
        return View(masked, gain), View(original, gain), moved_keep[0].bool() if moved_keep else keep

    def forward(self, decoded: Tensor, views: MLRViews) -> tuple[Tensor, dict[str, Tensor]]:
        drawn, original = over_time(self.decoder, decoded), views.original.pixels()  # (B, K, C, H, W)
        if drawn.shape != original.shape:
            raise ValueError(
                f"The pixel decoder draws {tuple(drawn.shape[2:])}, but the augmented observations are "
                f"{tuple(original.shape[2:])}. Pass Host(obs_shape={tuple(original.shape[2:])})."
            )
        squared = (drawn - original).square()
        if not self.hidden_only:
            return squared.mean(dim=(2, 3, 4)), {}
        hidden = (~views.keep).expand_as(squared)
        # A crop may contain no hidden pixel of a step (always so for some steps of temporal masks); its error is then 0.
        return (squared * hidden).sum(dim=(2, 3, 4)) / hidden.sum(dim=(2, 3, 4)).clamp(min=1), {}


# ── Configuration: the paper's ablations as settings. Only `build` reads them ─────────────────────────────────────────


@dataclass(frozen=True, kw_only=True)
class MLRConfig(ObjectiveConfig):
    """The paper's MLR on DMControl; each of its variants is one changed field."""

    linear_init = "truncated_normal"  # the released code re-initialises the encoder's linear layer for MLR

    kind: Literal["mlr"] = "mlr"
    clip_length: int = 16  # K
    mask: MaskConfig = field(default_factory=MaskConfig)
    augment: AugmentConfig = field(default_factory=AugmentConfig)
    corrupt: Literal["pixels", "features"] = "pixels"  # features: MLR-F
    masked_input_scale: Literal["unit", "raw255"] = "unit"  # raw255: the released Atari code's unscaled masked branch
    action_tokens: bool = True  # False: MLR w.o. ActTok
    decoder_depth: int = 2  # L
    decoder_width: int | None = None  # None: as wide as the latent, as in the paper
    reconstruct: Literal["latents", "pixels"] = "latents"  # pixels: MLR-Pixel
    pixel_loss_on: Literal["all", "hidden"] = "all"
    projection: Projection = "mlp"  # q: the host's own Q layers (Atari)
    prediction: Prediction = "mlp"  # linear: Atari
    head_width: int = 100  # hidden width of the mlp heads
    distance: Literal["2-2cos", "1-cos", "mse"] = "2-2cos"
    norm_floor: float = 1e-3
    momentum: float = 0.95  # m
    momentum_decoder: bool = False  # True: MLR-MoDec
    momentum_init: Literal["copy", "independent"] = "copy"
    init: Literal["truncated_normal", "torch"] = (
        "truncated_normal"  # of φ and the heads; torch: the released Atari code's
    )
    count_past_end: bool = False  # True: steps past an episode's end count, as in the released Atari code

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.clip_length < 2:
            raise ValueError(
                f"clip_length={self.clip_length} must be at least 2: a clip needs context. The paper uses 16."
            )
        self.require_positive("decoder_depth", "decoder_width", "head_width", "norm_floor")
        if not 0 <= self.momentum < 1:
            raise ValueError(
                f"momentum={self.momentum} must be in [0, 1); the paper uses 0.95 on DMControl and 0 on Atari."
            )
        if self.corrupt == "features" and self.reconstruct == "pixels" and self.pixel_loss_on == "hidden":
            raise ValueError(
                "corrupt='features' hides no pixels, so pixel_loss_on='hidden' counts none. Use pixel_loss_on='all'."
            )
        self.mask.build(of=self.corrupt).blocks(self.clip_length)

    @property
    def needs(self) -> Needs:
        return Needs(self.clip_length, q_projection=self.projection == "q" and self.reconstruct == "latents")

    @property
    def masks(self) -> MaskConfig | None:
        return self.mask if self.corrupt == "pixels" else None

    def advice(self, missing: Sequence[str]) -> str:
        return ": objective.projection=mlp" if "q_projection" in missing else ""

    def check(self, env: EnvSize, agent: Learner) -> None:
        super().check(env, agent)
        check_crops(self.augment, env, agent)
        mask = self.mask
        if self.corrupt == "pixels" and mask.strategy != "temporal" and max(mask.cube[1:]) > env.size:
            cube = ",".join(map(str, mask.cube))
            raise ValueError(f"objective.mask.cube={cube} does not fit into the frame, env.size={env.size}. Lower it.")

    def build(self, host: Host) -> MLR:
        decoder = self._initialised(self._decoder(host))
        mlr = MLR(
            host,
            clip_length=self.clip_length,
            corruption={"pixels": self._masked_pixels, "features": self._masked_features}[self.corrupt](host),
            augment=self.augment.build(host.generator),
            decoder=decoder,
            target={"latents": self._latent_target, "pixels": self._pixel_target}[self.reconstruct](host, decoder),
            weight=self.weight,
            masked_scale={"unit": 1.0, "raw255": 255.0}[self.masked_input_scale],
            count_past_end=self.count_past_end,
        )
        return on_host(mlr, host)

    def _decoder(self, host: Host) -> LatentDecoder | NarrowDecoder:
        width = self.decoder_width or host.latent_dim
        # The table of positions is fixed, so training cannot adapt to the order of its columns. The released code flattens maps
        # channels first, our encoders channels last. A narrow decoder adds positions after its own linear layer.
        order = getattr(host.encoder, "latent_order", None) if self.decoder_width is None else None
        decoder = LatentDecoder(
            width, host.action_dim, depth=self.decoder_depth, action_tokens=self.action_tokens, order=order
        )
        return decoder if self.decoder_width is None else NarrowDecoder(host.latent_dim, decoder, width=width)

    def _masked_pixels(self, host: Host) -> Corruption:
        return MaskedPixels(self.mask.build(), host.generator)

    def _masked_features(self, host: Host) -> Corruption:
        if not isinstance(host.encoder, Encoder):
            raise TypeError(
                f"corrupt='features' needs an encoder in two halves (maskrl.nn.encoders.Encoder: features, embed, feature_shape); "
                f"got {type(host.encoder).__name__}. Subclass it, or use corrupt='pixels'."
            )
        masker, (_, height, width) = self.mask.build(of="features"), host.encoder.feature_shape
        blocks, rows, columns = masker.grid(self.clip_length, height, width)  # raises if the map cannot be masked
        masker.hidden_fraction(blocks, rows * columns)
        return MaskedFeatures(masker, host.encoder.feature_shape, host.generator)

    def _latent_target(self, host: Host, decoder: nn.Module) -> Target:
        projection, width = projection_of(host, self.projection, self.head_width)
        if self.projection != "q":
            self._initialised(projection)
        distances: dict[str, Distance] = {
            "2-2cos": CosineDistance(1.0, self.norm_floor),
            "1-cos": CosineDistance(0.5, self.norm_floor),
            "mse": squared_distance,
        }
        return LatentTarget(
            encoder=self._momentum(host.encoder),
            projection=Borrowed(projection) if self.projection == "q" else projection,
            momentum_projection=self._momentum(projection),
            prediction=self._initialised(prediction_of(self.prediction, width, self.head_width)),
            distance=distances[self.distance],
            decoder=self._momentum(decoder) if self.momentum_decoder else None,
        )

    def _pixel_target(self, host: Host, decoder: nn.Module) -> Target:
        if host.obs_shape is None:
            raise ValueError(
                "reconstruct='pixels' needs Host.obs_shape, which is None: pass Host(obs_shape=(C, H, W)), the shape after "
                "augmentation."
            )
        return PixelTarget(PixelDecoder(host.latent_dim, host.obs_shape), hidden_only=self.pixel_loss_on == "hidden")

    def _momentum(self, online: nn.Module) -> Momentum:
        slow = Momentum(online, self.momentum)
        if self.momentum_init == "independent":
            truncated_normal_init(slow.copy)
        return slow

    def _initialised(self, module: M) -> M:
        """Initialise a module of the objective; never call it on the host's."""
        return truncated_normal_init(module) if self.init == "truncated_normal" else module
